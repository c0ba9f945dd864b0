"""The right version of a record remains, as Java Hudi's mergers choose it (fmt 7)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from filegroups.merge.merging import DeleteKind, append_rows, combine_incoming, merge_base
from filegroups.merge.rules import MergeRules
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import MergeDefinition

EVENT = MergeMode.EVENT_TIME_ORDERING
COMMIT = MergeMode.COMMIT_TIME_ORDERING
NAN = float("nan")


def rows(*items: tuple[str, object, str], kind: pa.DataType | None = None) -> pa.Table:
    keys, orders, values = zip(*items, strict=True) if items else ((), (), ())
    return pa.table(
        {
            "_hoodie_record_key": pa.array(keys, pa.string()),
            "ts": pa.array(orders, kind or pa.int64()),
            "v": pa.array(values, pa.string()),
        }
    )


def values(table: pa.Table) -> list[tuple[str, str]]:
    return list(zip(table["_hoodie_record_key"].to_pylist(), table["v"].to_pylist(), strict=True))


def combined(table: pa.Table, fields: tuple[str, ...], mode: MergeMode) -> pa.Table:
    definition = MergeDefinition(mode=mode, ordering_fields=fields)
    return combine_incoming(table, MergeRules(definition=definition))


def merged(base: pa.Table, incoming: pa.Table, mode: MergeMode = EVENT, **more: object):
    definition = MergeDefinition(mode=mode, ordering_fields=("ts",))
    return merge_base(base, incoming, MergeRules(definition=definition), **more)


def test_a_batch_without_duplicates_is_returned_as_it_is():
    table = rows(("a", 1, "x"), ("b", 1, "y"))
    assert combined(table, ("ts",), EVENT) is table


def test_the_greatest_ordering_value_stays_and_later_rows_win_ties():
    table = rows(("a", 2, "old"), ("b", 1, "b"), ("a", 2, "tie"), ("a", 1, "late"))
    assert values(combined(table, ("ts",), EVENT)) == [("b", "b"), ("a", "tie")]


@pytest.mark.parametrize(("fields", "mode"), [(("ts",), COMMIT), ((), EVENT)])
def test_in_commit_time_order_the_last_row_stays(fields, mode):
    table = rows(("a", 9, "first"), ("b", 1, "b"), ("a", 1, "last"))
    assert values(combined(table, fields, mode)) == [("b", "b"), ("a", "last")]


def test_equal_keys_of_different_partitions_are_different_records():
    table = rows(("a", 1, "x"), ("a", 1, "y"), ("a", 1, "z"))
    table = table.append_column("_hoodie_partition_path", pa.array(["p", "q", "p"]))
    assert values(combined(table, (), COMMIT)) == [("a", "y"), ("a", "z")]


def test_chunks_make_no_difference():
    table = pa.concat_tables([rows(("a", 1, "x")), rows(("b", 1, "y")), rows(("a", 2, "z"))])
    assert values(combined(table, ("ts",), EVENT)) == [("b", "y"), ("a", "z")]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.float64(), 1.0, NAN),
        (pa.float64(), float("-inf"), -1.0),
        (pa.string(), "a", "b"),
        (pa.decimal128(9, 2), Decimal("-1.00"), Decimal("0.50")),
        (pa.timestamp("us", "UTC"), 1, 2),
        (pa.date32(), dt.date(2026, 1, 1), dt.date(2026, 1, 2)),
        (pa.int32(), -5, 3),
        (pa.bool_(), False, True),
    ],
)
def test_every_ordering_type_compares_as_java_does(kind, low, high):
    both = rows(("a", high, "high"), ("a", low, "low"), kind=kind)
    assert values(combined(both, ("ts",), EVENT)) == [("a", "high")]
    base, older = rows(("a", high, "high"), kind=kind), rows(("a", low, "low"), kind=kind)
    assert merged(base, older).ignored_late == 1
    assert merged(older, base).updated == 1
    assert merged(base, base).updated == 1


def test_several_ordering_fields_are_compared_left_to_right():
    def two(first: int, second: int, value: str) -> pa.Table:
        return rows(("a", first, value)).append_column("ts2", pa.array([second]))

    def winner(base: pa.Table, incoming: pa.Table) -> list[str]:
        fields = ("ts", "ts2")
        definition = MergeDefinition(mode=EVENT, ordering_fields=fields)
        outcome = merge_base(base, incoming, MergeRules(definition=definition))
        both = combined(pa.concat_tables([base, incoming]), fields, EVENT)
        assert both["v"].to_pylist() == outcome.table["v"].to_pylist()
        return outcome.table["v"].to_pylist()

    assert winner(two(1, 5, "base"), two(1, 4, "new")) == ["base"]
    assert winner(two(1, 5, "base"), two(2, 0, "new")) == ["new"]
    assert winner(two(1, 5, "base"), two(1, 5, "new")) == ["new"]


def test_updates_stay_in_place_and_inserts_follow():
    base = rows(("a", 1, "a"), ("b", 5, "b"), ("c", 1, "c"))
    outcome = merged(base, rows(("d", 1, "D"), ("c", 1, "C"), ("b", 4, "B")))
    assert values(outcome.table) == [("a", "a"), ("b", "b"), ("c", "C"), ("d", "D")]
    assert (outcome.inserted, outcome.updated, outcome.ignored_late) == (1, 1, 1)
    assert outcome.new_keys.to_pylist() == ["d"]


def test_in_commit_time_order_late_data_wins_too():
    outcome = merged(rows(("a", 9, "old")), rows(("a", 1, "new")), COMMIT)
    assert values(outcome.table) == [("a", "new")]


def test_nested_columns_are_replaced_too():
    nested = pa.array([[1], [2]], pa.list_(pa.int32()))
    base = rows(("a", 1, "a"), ("b", 1, "b")).append_column("n", nested)
    incoming = rows(("b", 1, "B")).append_column("n", pa.array([[3, 4]], pa.list_(pa.int32())))
    assert merged(base, incoming).table["n"].to_pylist() == [[1], [3, 4]]


def test_every_copy_of_a_repeated_key_is_updated():
    outcome = merged(rows(("a", 1, "1"), ("a", 1, "2")), rows(("a", 2, "new")))
    assert values(outcome.table) == [("a", "new"), ("a", "new")]
    assert (outcome.updated, outcome.inserted) == (2, 0)


def test_a_base_row_without_an_ordering_value_is_older_than_anything():
    assert merged(rows(("a", None, "old")), rows(("a", -9, "new"))).updated == 1


def test_rows_marked_deleted_obey_the_order():
    flags = pa.array([True, True, True, None])
    base = rows(("a", 5, "a"), ("b", 5, "b"), ("d", 1, "d"))
    incoming = rows(("a", 5, ""), ("b", 4, ""), ("c", 9, ""), ("d", 2, "D"))
    base = base.append_column("_hoodie_is_deleted", pa.nulls(3, pa.bool_()))
    incoming = incoming.append_column("_hoodie_is_deleted", flags)
    outcome = merged(base, incoming, deletes=DeleteKind.COLUMN)
    assert values(outcome.table) == [("b", "b"), ("d", "D")]
    assert (outcome.deleted, outcome.ignored_late, outcome.inserted) == (1, 1, 0)


def test_an_explicit_delete_wins_over_every_ordering_value():
    keys = pa.table({"_hoodie_record_key": ["a", "gone"]})
    outcome = merged(rows(("a", 99, "a"), ("b", 1, "b")), keys, deletes=DeleteKind.EXPLICIT)
    assert values(outcome.table) == [("b", "b")]
    assert (outcome.deleted, outcome.inserted, outcome.changed) == (1, 0, True)


def test_a_merge_without_effect_reports_no_change():
    base = rows(("a", 9, "old"))
    assert not merged(base, rows(("a", 1, "late"))).changed


def test_plain_inserts_may_repeat_keys():
    outcome = append_rows(rows(("a", 1, "1")), rows(("a", 1, "2")))
    assert values(outcome.table) == [("a", "1"), ("a", "2")]
    assert outcome.inserted == 1


def test_empty_sides_are_fine():
    assert values(merged(rows(), rows(("a", 1, "x"))).table) == [("a", "x")]
    assert values(merged(rows(("a", 1, "x")), rows()).table) == [("a", "x")]
