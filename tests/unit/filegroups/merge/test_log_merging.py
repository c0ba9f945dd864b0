"""Logs fold to the result of Java Hudi's mergers (fmt 7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.merge.merging import ChangeKind, Changes, fold_changes, join_changes, merge_changes
from filegroups.merge.rules import MergeRules
from timeline.errors import UnsupportedTableError
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import MergeDefinition, PartialUpdateMode


def rules_of(mode: MergeMode, *fields: str, defaults=None, **more: object) -> MergeRules:
    definition = MergeDefinition(mode=mode, ordering_fields=fields, **more)
    return MergeRules(definition=definition, defaults=defaults or {})


EVENT = rules_of(MergeMode.EVENT_TIME_ORDERING, "ts")
COMMIT = rules_of(MergeMode.COMMIT_TIME_ORDERING)
SCHEMA = pa.schema(
    [
        ("_hoodie_record_key", pa.string()),
        ("ts", pa.int64()),
        ("a", pa.string()),
        ("b", pa.string()),
    ]
)


def record(ts: int | None, a: str, b: str = "b", key: str = "k") -> Changes:
    return change(ChangeKind.RECORD, key, ts, a, b)


def deleted_row(ts: int) -> Changes:
    return change(ChangeKind.DELETE_ROW, "k", ts)


def delete(ts: int | None = None) -> Changes:
    kind = ChangeKind.COMMIT_TIME_DELETE if ts is None else ChangeKind.DELETE
    return change(kind, "k", ts)


def partial(ts: int | None, **named: str) -> Changes:
    """Return a block with the named columns only (IS_PARTIAL)."""
    whole = change(ChangeKind.RECORD, "k", ts, named.get("a"), named.get("b"))
    lacking = {name for name in ("a", "b") if name not in named} | ({"ts"} if ts is None else set())
    return Changes(
        rows=whole.rows.drop_columns(sorted(lacking)),
        kinds=whole.kinds,
        known={name: np.zeros(1, np.bool_) for name in lacking},
    )


def change(
    kind: ChangeKind, key: str, ts: int | None, a: str | None = None, b: str | None = None
) -> Changes:
    row = {"_hoodie_record_key": [key], "ts": [ts], "a": [a], "b": [b]}
    return Changes(rows=pa.table(row, schema=SCHEMA), kinds=np.array([kind], np.int8))


def base_row(ts: int | None = 10, a: str = "base", b: str = "b") -> pa.Table:
    row = {"_hoodie_record_key": ["k"], "ts": [ts], "a": [a], "b": [b]}
    return pa.table(row, schema=SCHEMA)


def read(*logs: Changes, base: pa.Table | None = None, rules: MergeRules = EVENT) -> list[tuple]:
    """Return the rows (ts, a, b) that a reader gets."""
    folded = fold_changes(join_changes(logs, SCHEMA), rules)
    merged = merge_changes(SCHEMA.empty_table() if base is None else base, folded, rules).table
    return [(row["ts"], row["a"], row["b"]) for row in merged.to_pylist()]


def test_the_greater_ordering_value_stays_in_any_order():
    assert read(record(1, "low"), record(2, "high")) == [(2, "high", "b")]
    assert read(record(2, "high"), record(1, "low")) == [(2, "high", "b")]


def test_of_equal_ordering_values_the_newer_stays():
    assert read(record(2, "older"), record(2, "newer")) == [(2, "newer", "b")]
    assert read(record(10, "log"), base=base_row(10)) == [(10, "log", "b")]


def test_in_commit_time_order_the_last_change_stays():
    assert read(record(9, "a"), record(1, "late"), rules=COMMIT) == [(1, "late", "b")]
    assert read(record(9, "a"), delete(1), rules=COMMIT) == []
    assert read(delete(9), record(1, "late"), rules=COMMIT) == [(1, "late", "b")]
    assert read(record(1, "late"), base=base_row(9), rules=COMMIT) == [(1, "late", "b")]


def test_without_ordering_fields_event_time_order_is_commit_time_order():
    rules = rules_of(MergeMode.EVENT_TIME_ORDERING)
    assert read(record(9, "a"), record(1, "late"), rules=rules) == [(1, "late", "b")]


@pytest.mark.parametrize(
    ("logs", "rows"),
    [
        # the columns of fmt 5.5: base row 10 below each
        ([delete()], []),
        ([record(20, "u"), delete()], []),
        ([delete(), record(20, "u")], [(20, "u", "b")]),
        ([record(20, "u"), delete(), record(5, "late")], [(10, "base", "b")]),
        ([delete(10)], []),  # a tie: the delete wins
        ([record(20, "u"), delete(10)], [(20, "u", "b")]),
        ([delete(10), record(20, "u")], [(20, "u", "b")]),
        ([record(20, "u"), delete(10), record(5, "late")], [(20, "u", "b")]),
        ([delete(99)], []),
        ([record(20, "u"), delete(99)], []),
        ([delete(99), record(20, "u")], []),
        ([record(20, "u"), delete(99), record(5, "late")], []),
        # a delete older than the base row
        ([delete(9)], [(10, "base", "b")]),
        ([deleted_row(9)], [(10, "base", "b")]),
        ([deleted_row(10)], []),
        # a delete with a value never replaces one without
        ([delete(), delete(99), record(20, "u")], [(20, "u", "b")]),
        ([delete(), deleted_row(99), record(20, "u")], []),
        ([delete(), delete(99)], []),
        # two deletes without a value, late rows around them
        ([record(30, "x"), delete(), record(20, "u"), delete(), record(15, "w")], [(15, "w", "b")]),
    ],
)
def test_deletes_have_the_meaning_that_java_gives_them(logs, rows):
    assert read(*logs, base=base_row(10)) == rows


def test_a_commit_time_delete_wins_with_any_ordering_value():
    gone = change(ChangeKind.COMMIT_TIME_DELETE, "k", 0)  # in Java no ordering value (fmt 5.5)
    assert read(gone, record(5, "later"), base=base_row(3)) == [(5, "later", "b")]
    assert read(record(20, "u"), gone, base=base_row(10)) == []
    both = pa.concat_tables(
        [base_row(10), base_row(10).set_column(0, "_hoodie_record_key", [["o"]])]
    )
    assert read(gone, record(11, "other", key="o"), base=both) == [(11, "other", "b")]
    assert read(gone, record(9, "late", key="o"), base=both) == [(10, "base", "b")]


@pytest.mark.parametrize("late", [1, 20])
def test_a_record_without_ordering_value_replaces_and_is_replaced(late):
    assert read(record(9, "a"), record(None, "none")) == [(None, "none", "b")]
    assert read(record(9, "a"), record(None, "none"), record(late, "z")) == [(late, "z", "b")]
    assert read(record(1, "log"), base=base_row(None)) == [(1, "log", "b")]


def test_several_ordering_fields_compare_left_to_right():
    rules = rules_of(MergeMode.EVENT_TIME_ORDERING, "ts", "a")
    assert read(record(1, "z"), record(2, "a"), rules=rules) == [(2, "a", "b")]
    assert read(record(2, "b"), record(2, "a"), rules=rules) == [(2, "b", "b")]
    assert read(record(2, "m"), base=base_row(2, "n"), rules=rules) == [(2, "n", "b")]


def test_keys_are_merged_independently():
    logs = [record(1, "x", key="p"), record(5, "y", key="q"), delete(), record(2, "z", key="p")]
    assert read(*logs, base=base_row(10)) == [(5, "y", "b"), (2, "z", "b")]


def test_a_partial_update_changes_the_columns_it_names():
    assert read(partial(11, b="new"), base=base_row(10)) == [(11, "base", "new")]
    assert read(partial(9, b="late"), base=base_row(10)) == [(10, "base", "b")]
    assert read(partial(9, b="late"), base=base_row(10), rules=COMMIT) == [(9, "base", "late")]


def test_partial_updates_over_each_other_unite_their_columns():
    assert read(partial(11, b="x"), partial(12, a="y"), base=base_row(10)) == [(12, "y", "x")]
    # The late one fills what the newer does not name.
    assert read(partial(12, b="x"), partial(11, a="y"), base=base_row(10)) == [(12, "y", "x")]
    assert read(partial(12, b="x"), partial(11, a="y", b="z")) == [(12, "y", "x")]


def test_a_partial_update_keeps_other_columns_in_a_batch_with_whole_records():
    logs = [partial(11, b="new"), record(1, "x", key="q")]
    assert read(*logs, base=base_row(10)) == [(11, "base", "new"), (1, "x", "b")]
    assert read(*logs[::-1], base=base_row(10)) == [(11, "base", "new"), (1, "x", "b")]
    logs.append(partial(12, b="newer"))
    assert read(*logs, base=base_row(10)) == [(12, "base", "newer"), (1, "x", "b")]


def test_a_partial_update_over_a_record_of_the_logs_completes_it():
    assert read(record(11, "log", "l"), partial(12, b="x")) == [(12, "log", "x")]
    assert read(record(12, "log", "l"), partial(11, b="x")) == [(12, "log", "l")]
    assert read(partial(11, b="x"), record(12, "log", "l")) == [(12, "log", "l")]


def test_a_partial_update_after_a_delete_starts_from_null_columns():
    assert read(record(11, "log"), delete(), partial(12, b="x")) == [(12, None, "x")]
    assert read(record(11, "log"), delete(13), partial(12, b="x")) == []
    assert read(partial(12, b="x"), delete(), base=base_row(10)) == []
    # The delete has no effect, so columns that the update omits come from the base row again.
    assert read(delete(), partial(12, b="x"), base=base_row(10)) == [(12, "base", "x")]
    assert read(delete(11), partial(12, b="x"), base=base_row(10)) == [(12, "base", "x")]


def test_a_partial_update_without_the_ordering_column_keeps_the_order():
    logs = [record(20, "log"), partial(None, b="x"), record(15, "late")]
    assert read(*logs) == [(20, "log", "x")]
    assert read(partial(None, b="x"), base=base_row(10)) == [(10, "base", "x")]


def test_defaults_are_ignored_by_the_rules_of_the_table():
    rules = rules_of(
        MergeMode.EVENT_TIME_ORDERING,
        "ts",
        partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS,
        defaults={"b": ""},
    )
    assert read(record(11, None, "n"), base=base_row(10), rules=rules) == [(11, "base", "n")]
    assert read(record(11, "n", ""), base=base_row(10), rules=rules) == [(11, "n", "b")]
    # The late record fills what the newer one holds the default of.
    assert read(record(9, "late", "l"), base=base_row(10, None), rules=rules) == [(10, "late", "b")]
    assert read(record(12, None, "n"), record(11, "o", "o"), rules=rules) == [(12, "o", "n")]
    assert read(record(12, None, ""), rules=rules) == [(12, None, "")]
    # A column that a partial update omits has no value, not even the default.
    assert read(partial(12, a="n"), record(11, "o", "o"), rules=rules) == [(12, "n", "o")]
    logs = [partial(12, a="n"), record(11, "o", "")]
    assert read(*logs, base=base_row(10), rules=rules) == [(12, "n", "b")]


def test_markers_are_ignored_by_the_rules_of_the_table():
    rules = rules_of(
        MergeMode.COMMIT_TIME_ORDERING,
        partial_update_mode=PartialUpdateMode.FILL_UNAVAILABLE,
        unavailable_marker="?",
    )
    assert read(record(1, "?", "n"), base=base_row(10), rules=rules) == [(1, "base", "n")]
    assert read(record(1, "x"), record(2, "?", "n"), rules=rules) == [(2, "x", "n")]
    assert read(record(2, None, "n"), base=base_row(10), rules=rules) == [(2, None, "n")]


def test_rows_marked_deleted_are_removed():
    rules = rules_of(MergeMode.COMMIT_TIME_ORDERING, delete_field="Op", delete_marker="D")
    rows = pa.table(
        {
            "_hoodie_is_deleted": [True, None, False, None],
            "Op": ["U", "D", None, "d"],
        }
    )
    assert rules.deletes(rows).tolist() == [True, True, False, False]
    assert COMMIT.deletes(pa.table({"_hoodie_operation": ["D", "-U", "U", None]})).tolist() == [
        True,
        True,
        False,
        False,
    ]


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["record", "row", "delete", "commit", "none"]),
        st.integers(0, 4),
        st.sampled_from("pq"),
    ),
    max_size=12,
)


@given(MOVES)
def test_the_closed_form_is_the_fold_one_by_one(moves):
    made = []
    for number, (what, ts, key) in enumerate(moves):
        kind = {
            "record": ChangeKind.RECORD,
            "none": ChangeKind.RECORD,
            "row": ChangeKind.DELETE_ROW,
            "delete": ChangeKind.DELETE,
            "commit": ChangeKind.COMMIT_TIME_DELETE,
        }[what]
        value = None if what in ("none", "commit") else ts
        made.append(change(kind, key, value, str(number)))
    joined = join_changes(made, SCHEMA)
    at_once = fold_changes(joined, EVENT)
    named = {"b": np.ones(len(moves), np.bool_)}  # all together: the same result in steps
    by_steps = fold_changes(Changes(rows=joined.rows, kinds=joined.kinds, known=named), EVENT)
    assert at_once.rows.drop_columns("b").equals(by_steps.rows.drop_columns("b"))
    assert at_once.kinds.tolist() == by_steps.kinds.tolist()
    assert dict(one_by_one(moves)) == {
        row["_hoodie_record_key"]: at_once_kind
        for row, at_once_kind in zip(
            at_once.rows.select(["_hoodie_record_key"]).to_pylist(),
            zip(at_once.kinds.tolist(), at_once.rows["ts"].to_pylist(), strict=True),
            strict=True,
        )
    }


def one_by_one(moves):
    """Apply the rules of fmt 7, one change after the other."""
    kept: dict[str, tuple[int, int | None]] = {}
    for what, ts, key in moves:
        kind = {"record": 0, "none": 0, "row": 1, "delete": 2, "commit": 3}[what]
        new = (kind, None if what in ("none", "commit") else ts)
        old = kept.get(key)
        if old is not None and kind == 2 and old[0] == 3:
            continue
        if old is None or new[1] is None or old[1] is None or new[1] >= old[1]:
            kept[key] = new
    return kept.items()


def test_ordering_fields_that_the_schema_lacks_order_nothing():
    text = (
        '{"type":"record","name":"t","fields":[{"name":"ts","type":"long"},'
        '{"name":"n","type":"string","default":""},{"name":"m","type":["null","int"]}]}'
    )

    def rules(*fields: str, **more: object) -> MergeRules:
        mode = MergeMode.EVENT_TIME_ORDERING
        return MergeRules.of(MergeDefinition(mode=mode, ordering_fields=fields, **more), text)

    assert rules("gone").by_order is False
    assert rules("gone", "ts", "ts.inner").ordering_fields == ("ts", "ts.inner")
    assert rules("ts").defaults == {}
    ignoring = rules("ts", partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS)
    assert ignoring.defaults == {"n": ""}
    assert MergeRules.of(ignoring.definition).defaults == {}
    assert rules("ts", delete_field="m", delete_marker="D").columns_for(
        pa.schema([(name, pa.int64()) for name in ("ts", "m", "x")])
    ) == ["ts", "m"]


def test_custom_mergers_are_refused_by_name():
    definition = MergeDefinition(mode=MergeMode.CUSTOM, payload_class="com.acme.Payload")
    with pytest.raises(UnsupportedTableError) as caught:
        MergeRules.of(definition)
    assert caught.value.kind == "custom_merger"
    assert "com.acme.Payload" in caught.value.message


SIX_LATEST = rules_of(MergeMode.COMMIT_TIME_ORDERING, "ts", precombines=True)
SIX_EVENT = rules_of(MergeMode.EVENT_TIME_ORDERING, "ts", precombines=True)


@pytest.mark.parametrize(
    ("logs", "latest", "event"),
    [
        # results of Java 0.15 for tables of version 6; base row 10 below each
        ([record(5, "late")], [(5, "late", "b")], [(10, "base", "b")]),
        ([record(20, "u"), record(15, "late")], [(20, "u", "b")], [(20, "u", "b")]),
        ([record(20, "u"), record(20, "tie")], [(20, "tie", "b")], [(20, "tie", "b")]),
        ([delete(5)], [], []),  # against a base file a delete has no order
        ([deleted_row(5)], [], [(10, "base", "b")]),
        ([record(20, "u"), delete(15)], [(20, "u", "b")], [(20, "u", "b")]),
        ([record(20, "u"), delete(20)], [], []),
        ([record(20, "u"), delete()], [], []),
        ([delete(20), record(15, "back")], [(15, "back", "b")], [(15, "back", "b")]),
        ([delete(20), record(5, "back")], [(5, "back", "b")], [(10, "base", "b")]),
        ([delete(20), delete(5), record(1, "back")], [(1, "back", "b")], [(10, "base", "b")]),
        (
            [record(30, "u"), delete(20), record(25, "v")],
            [(30, "u", "b")],
            [(30, "u", "b")],
        ),
    ],
)
def test_logs_of_version_6_fold_by_order_and_forget_deletes(
    logs: list[Changes], latest: list[tuple], event: list[tuple]
) -> None:
    assert read(*logs, base=base_row(), rules=SIX_LATEST) == latest
    assert read(*logs, base=base_row(), rules=SIX_EVENT) == event


def test_without_ordering_fields_the_last_change_stays_in_version_6_too() -> None:
    rules = rules_of(MergeMode.COMMIT_TIME_ORDERING, precombines=True)
    assert read(record(9, "a"), record(1, "late"), rules=rules) == [(1, "late", "b")]


def test_values_count_against_the_base_file_only_where_version_6_ignores_defaults() -> None:
    partly = {"partial_update_mode": PartialUpdateMode.IGNORE_DEFAULTS, "precombines": True}
    whole = rules_of(MergeMode.COMMIT_TIME_ORDERING, "ts", **partly)
    logs = [record(20, "u", None), record(21, None, "v")]
    assert read(*logs, base=base_row(b="below"), rules=whole) == [(21, "base", "v")]
    filling = rules_of(MergeMode.EVENT_TIME_ORDERING, "ts", **partly)
    assert read(*logs, base=base_row(b="below"), rules=filling) == [(21, "u", "v")]


EIGHT_LATEST = rules_of(MergeMode.COMMIT_TIME_ORDERING, "ts", deletes_by_order=True)


@pytest.mark.parametrize(
    ("logs", "rows"),
    [
        # results of Java 1.0.2 for payload classes that version 8 keeps; base row 10 below each
        ([record(5, "late")], [(5, "late", "b")]),
        ([record(20, "u"), record(15, "late")], [(15, "late", "b")]),
        ([delete(5)], [(10, "base", "b")]),
        ([delete(10)], []),
        ([delete(20), record(15, "late")], []),
        ([delete(20), record(20, "back")], [(20, "back", "b")]),
        ([record(20, "u"), delete(15)], [(20, "u", "b")]),
        ([record(20, "u"), delete(15), record(5, "late")], [(5, "late", "b")]),
        ([record(20, "u"), delete()], []),
        ([deleted_row(5)], [(10, "base", "b")]),
        ([delete(20), delete(5)], []),
        ([delete(5), delete(20)], []),
        ([delete(5), delete(4)], [(10, "base", "b")]),
    ],
)
def test_payloads_of_version_8_order_deletes_though_they_order_no_records(
    logs: list[Changes], rows: list[tuple]
) -> None:
    assert read(*logs, base=base_row(), rules=EIGHT_LATEST) == rows


def test_a_late_record_that_fills_gaps_signs_the_row_where_its_payload_does() -> None:
    def signed(ts: int, a: str | None, time: str) -> Changes:
        one = record(ts, a)
        rows = one.rows.append_column("_hoodie_commit_time", pa.array([time]))
        return Changes(rows=rows, kinds=one.kinds)

    schema = SCHEMA.append(pa.field("_hoodie_commit_time", pa.string()))
    base = signed(10, None, "t0").rows
    by_payload = rules_of(
        MergeMode.EVENT_TIME_ORDERING,
        "ts",
        partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS,
        late_rows_sign=True,
    )

    def row(*logs: Changes, by: MergeRules = by_payload) -> tuple:
        folded = fold_changes(join_changes(logs, schema), by)
        (found,) = merge_changes(base, folded, by).table.to_pylist()
        return found["ts"], found["a"], found["_hoodie_commit_time"]

    assert row(signed(5, "late", "t1")) == (10, "late", "t1")
    assert row(signed(20, "u", "t1"), signed(15, "late", "t2")) == (20, "u", "t2")
    assert row(signed(20, "u", "t1"), delete(), signed(30, "v", "t3")) == (30, "v", "t3")
    other = MergeRules(definition=replace(by_payload.definition, late_rows_sign=False))
    late = [signed(20, None, "t1"), signed(15, "late", "t2")]
    assert row(*late, by=other) == (20, "late", "t1")
    assert row(*late) == (20, "late", "t2")


@pytest.mark.parametrize(
    ("logs", "row"),
    [
        # MySQL positions as Java 0.15 reads them: texts in changes, file and position below
        ([(1, 100, "1.100"), (1, 20, "1.20")], (1, 20)),
        ([(1, 20, "1.20"), (1, 100, "1.100")], (1, 20)),
        ([(2, 9, "2.9"), (1, 80, "1.80")], (2, 9)),
        ([(1, 9, "1.9")], (1, 10)),
    ],
)
def test_changes_in_logs_compare_by_a_field_of_their_own(
    logs: list[tuple[int, int, str]], row: tuple[int, int]
) -> None:
    def rows(file: int, position: int, seq: str) -> pa.Table:
        return pa.table(
            {"_hoodie_record_key": ["k"], "file": [file], "pos": [position], "seq": [seq]}
        )

    rules = rules_of(
        MergeMode.EVENT_TIME_ORDERING, "file", "pos", precombines=True, precombine_fields=("seq",)
    )
    base = rows(1, 10, "1.10")
    changes = [Changes(rows=rows(*one), kinds=np.zeros(1, np.int8)) for one in logs]
    folded = fold_changes(join_changes(changes, base.schema), rules)
    (found,) = merge_changes(base, folded, rules).table.to_pylist()
    assert (found["file"], found["pos"]) == row
