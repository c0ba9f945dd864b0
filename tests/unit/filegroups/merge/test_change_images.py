"""The change of each record between two states of a file group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from filegroups.merge.change_images import (
    RecordChanges,
    changes_of_merge,
    compare_slices,
    image,
    operation_texts,
)
from filegroups.merge.merging import MergeOutcome, append_rows
from timeline.errors import InvariantError

NOW = "20261121100000002"
OLD = "20261121100000001"


def state(*rows: tuple[str, str, int]) -> pa.Table:
    keys, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "_hoodie_commit_time": pa.array(times, pa.string()),
            "_hoodie_record_key": pa.array(keys, pa.string()),
            "v": pa.array(values, pa.int64()),
        }
    )


def as_tuples(changes: RecordChanges) -> list[tuple[str, int, int]]:
    texts = operation_texts(changes.kinds).to_pylist()
    return list(zip(texts, changes.before.tolist(), changes.after.tolist(), strict=True))


BEFORE = state(("a", OLD, 1), ("b", OLD, 2), ("c", OLD, 3), ("d", OLD, 4))
AFTER = state(("a", OLD, 1), ("c", NOW, 3), ("d", NOW, 40), ("e", NOW, 5))


def test_an_instant_changed_the_rows_with_its_commit_time() -> None:
    found = compare_slices(BEFORE, AFTER, NOW)
    assert as_tuples(found) == [("d", 1, -1), ("u", 2, 1), ("u", 3, 2), ("i", -1, 3)]


def test_a_merge_gives_the_same_changes_without_a_key_lookup() -> None:
    outcome = MergeOutcome(
        table=AFTER, new_keys=pa.array(["e"]), inserted=1, updated=2, deleted=1, ignored_late=0
    )
    assert as_tuples(changes_of_merge(BEFORE, outcome, NOW)) == as_tuples(
        compare_slices(BEFORE, AFTER, NOW)
    )


def test_appended_rows_of_known_keys_are_inserts() -> None:
    base, more = state(("a", OLD, 1), ("a", OLD, 2)), state(("a", NOW, 3))
    outcome = append_rows(base, more)
    assert as_tuples(changes_of_merge(base, outcome, NOW)) == [("i", -1, 2)]
    assert as_tuples(compare_slices(base, outcome.table, NOW)) == [("i", -1, 2)]


def test_records_of_one_key_are_matched_in_their_order() -> None:
    before = state(("a", OLD, 1), ("b", OLD, 2), ("a", OLD, 3))
    after = state(("a", NOW, 10), ("b", OLD, 2), ("a", NOW, 10))
    assert as_tuples(compare_slices(before, after, NOW)) == [("u", 0, 0), ("u", 2, 2)]


def test_a_merge_of_another_base_is_a_defect() -> None:
    outcome = MergeOutcome(
        table=AFTER, new_keys=pa.array([]), inserted=1, updated=0, deleted=0, ignored_late=0
    )
    with pytest.raises(InvariantError):
        changes_of_merge(state(("x", OLD, 1)), outcome, NOW)


def test_values_show_changes_where_commit_times_do_not() -> None:
    before, after = state(("a", OLD, 1), ("b", OLD, 2)), state(("a", OLD, 1), ("b", OLD, 7))
    values = (before.column("v").cast(pa.string()), after.column("v").cast(pa.string()))
    assert as_tuples(compare_slices(before, after, NOW)) == []
    assert as_tuples(compare_slices(before, after, NOW, values)) == [("u", 1, 1)]


def test_an_empty_state_on_either_side() -> None:
    assert as_tuples(compare_slices(state(), AFTER.slice(3), NOW)) == [("i", -1, 0)]
    assert as_tuples(compare_slices(BEFORE.slice(3), state(), NOW)) == [("d", 0, -1)]
    assert as_tuples(compare_slices(state(), state(), NOW)) == []


def test_an_image_is_null_where_there_is_none() -> None:
    found = image(BEFORE.select(["v"]), np.array([2, -1, 0]))
    assert found.to_pylist() == [{"v": 3}, None, {"v": 1}]
    assert image(state(), np.array([-1])).to_pylist() == [None]


def test_a_whole_slice_is_inserted_or_deleted() -> None:
    assert as_tuples(RecordChanges.all_inserted(2)) == [("i", -1, 0), ("i", -1, 1)]
    assert as_tuples(RecordChanges.all_deleted(2)) == [("d", 0, -1), ("d", 1, -1)]


def test_some_changes_are_taken_in_their_order() -> None:
    found = compare_slices(BEFORE, AFTER, NOW)
    assert len(found) == 4
    assert as_tuples(found.part(1, 2)) == [("u", 2, 1), ("u", 3, 2)]
    assert (len(found.part(3, 5)), len(found.part(4, 1))) == (1, 0)


def test_a_row_without_a_commit_time_is_unchanged() -> None:
    rows = state(("a", None, 1), ("b", OLD, 2))
    assert as_tuples(compare_slices(rows, rows, NOW)) == []
