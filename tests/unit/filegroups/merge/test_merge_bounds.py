"""Merging with a base file at its bounds: repeated keys, late records, and the counts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from filegroups.merge.merging import Changes, MergeOutcome, append_rows, merge_base, merge_changes
from filegroups.merge.rules import MergeRules
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import MergeDefinition, PartialUpdateMode

EVENT = MergeMode.EVENT_TIME_ORDERING
FILLING = MergeRules(
    definition=MergeDefinition(
        mode=EVENT,
        ordering_fields=("ts",),
        partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS,
    )
)
PLAIN = MergeRules(definition=MergeDefinition(mode=EVENT, ordering_fields=("ts",)))


def rows(*items: tuple[str, int, str | None]) -> pa.Table:
    keys, times, values = zip(*items, strict=True)
    return pa.table({"_hoodie_record_key": keys, "ts": times, "v": pa.array(values, pa.string())})


def as_tuples(table: pa.Table) -> list[tuple[str, int, str | None]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def records(*items: tuple[str, int, str | None], every_copy: bool = False) -> Changes:
    return Changes(rows=rows(*items), kinds=np.zeros(len(items), np.int8), every_copy=every_copy)


def counts(outcome: MergeOutcome) -> tuple[int, int, int, int]:
    return outcome.inserted, outcome.updated, outcome.deleted, outcome.ignored_late


TWICE = rows(("x", 1, "x"), ("k", 1, "first"), ("k", 1, "second"), ("y", 1, "y"))


def test_of_rows_of_one_key_the_first_is_changed_by_logs_and_every_one_by_a_write() -> None:
    new = ("k", 2, "new")
    by_logs = merge_changes(TWICE, records(new), PLAIN)
    assert [row[2] for row in as_tuples(by_logs.table)] == ["x", "new", "second", "y"]
    assert counts(by_logs) == (0, 1, 0, 0)
    for outcome in (
        merge_changes(TWICE, records(new, every_copy=True), PLAIN),
        merge_changes(TWICE, records(new), PLAIN, every_copy=True),
        merge_base(TWICE, rows(new), PLAIN),
    ):
        assert [row[2] for row in as_tuples(outcome.table)] == ["x", "new", "new", "y"]
        assert counts(outcome) == (0, 2, 0, 0)


def test_a_write_fills_values_by_the_rules_of_the_table() -> None:
    base = rows(("a", 5, "a"), ("b", 5, None), ("c", 5, None))
    late = rows(("d", 1, "d"), ("a", 9, None), ("c", 1, "late"), ("b", 1, "b"))
    outcome = merge_base(base, late, FILLING)
    assert as_tuples(outcome.table) == [
        ("a", 9, "a"),
        ("b", 5, "b"),
        ("c", 5, "late"),
        ("d", 1, "d"),
    ]
    assert counts(outcome) == (1, 3, 0, 0)
    plain = merge_base(base, late, PLAIN)
    assert as_tuples(plain.table) == [("a", 9, None), ("b", 5, None), ("c", 5, None), ("d", 1, "d")]
    assert counts(plain) == (1, 1, 0, 2)


def test_appended_rows_are_counted_as_inserted_and_as_nothing_else() -> None:
    outcome = append_rows(rows(("a", 1, "a")), rows(("a", 2, "b"), ("c", 3, "c")))
    assert as_tuples(outcome.table) == [("a", 1, "a"), ("a", 2, "b"), ("c", 3, "c")]
    assert (counts(outcome), outcome.new_keys.to_pylist()) == ((2, 0, 0, 0), ["a", "c"])
    assert outcome.changed


def test_a_merge_that_changes_nothing_needs_no_file() -> None:
    base = rows(("a", 5, "a"))
    outcome = merge_changes(base, records(("a", 1, "late")), PLAIN)
    assert (outcome.table, counts(outcome), outcome.changed) == (base, (0, 0, 0, 1), False)
