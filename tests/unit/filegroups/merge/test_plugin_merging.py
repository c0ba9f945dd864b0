"""A plug-in's merger merges all versions of a record, and its contract is checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import TypeAdapter

from filegroups.merge.merging import (
    ChangeKind,
    Changes,
    DeleteKind,
    combine_incoming,
    fold_changes,
    merge_base,
    merge_changes,
    merge_versions,
)
from filegroups.merge.rules import MergeRules
from timeline.errors import InvalidInputError, UnsafeSetupError, UnsupportedTableError
from timeline.model.commit_metadata import MergeMode
from timeline.model.merge_definition import MergeDefinition
from timeline.ports.merger import MergedRows, Versions

ID = "5d7c0a3e-93a4-4a52-8a55-1d2d7e0f0b11"
RECORD, DELETED, DELETE = ChangeKind.RECORD, ChangeKind.DELETE_ROW, ChangeKind.DELETE


@dataclass(frozen=True)
class Summing:
    """Sums ``n`` up; a zero sum deletes the record, and an addition of zero keeps it."""

    strategy_ids: tuple[str, ...] = (ID,)
    class_names: tuple[str, ...] = ("com.example.Sum",)

    def columns_needed(self, schema: pa.Schema) -> tuple[str, ...]:
        return ("n", "not there")

    def merge(self, older: Versions, newer: Versions) -> MergedRows:
        added = pc.fill_null(newer.rows["n"], 0)
        sums = pc.add(pc.fill_null(older.rows["n"], 0), added)
        zero = np.asarray(pc.equal(sums, 0))
        return MergedRows(
            columns={"n": sums},
            deleted=newer.deleted | zero,
            kept=np.asarray(pc.equal(added, 0)) & ~newer.deleted,
        )


@dataclass(frozen=True)
class Answering(Summing):
    """A merger with a given answer."""

    answer: Any = None

    def merge(self, older: Versions, newer: Versions) -> MergedRows:
        return self.answer


def rules(merger: Any = None) -> MergeRules:
    definition = MergeDefinition(mode=MergeMode.CUSTOM, strategy_id=ID)
    return MergeRules.of(definition.merged_by([merger or Summing()]))


def rows(*items: tuple[str, int | None, str]) -> pa.Table:
    keys, numbers, texts = zip(*items, strict=True) if items else ((), (), ())
    return pa.table(
        {
            "_hoodie_commit_time": pa.array([f"at {text}" for text in texts], pa.string()),
            "_hoodie_record_key": pa.array(keys, pa.string()),
            "n": pa.array(numbers, pa.int64()),
            "v": pa.array(texts, pa.string()),
        }
    )


def changes(*items: tuple[str, int | None, str], kinds: list[int] | None = None) -> Changes:
    return Changes(rows=rows(*items), kinds=np.array(kinds or [RECORD] * len(items), np.int8))


def as_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


BASE = rows(("a", 1, "base"), ("b", 2, "base"), ("c", 3, "base"), ("d", 4, "base"))


def test_base_and_changes_are_merged_pair_by_pair() -> None:
    new = changes(("c", -3, "new"), ("e", 7, "new"), ("a", 10, "new"), ("b", 0, "new"))
    outcome = merge_changes(BASE, new, rules())
    assert as_tuples(outcome.table) == [
        ("at new", "a", 11, "new"),
        ("at base", "b", 2, "base"),  # the merger keeps the stored row with its commit time
        ("at base", "d", 4, "base"),
        ("at new", "e", 7, "new"),
    ]
    assert (outcome.inserted, outcome.updated, outcome.deleted) == (1, 1, 1)
    assert outcome.ignored_late == 1


def test_a_delete_by_key_is_merged_as_a_delete() -> None:
    keys = pa.table({"_hoodie_record_key": ["d"]})
    outcome = merge_base(BASE, keys, rules(), deletes=DeleteKind.EXPLICIT)
    assert outcome.table["_hoodie_record_key"].to_pylist() == ["a", "b", "c"]


def test_a_delete_that_is_not_followed_leaves_the_older_row() -> None:
    kept = MergedRows(columns={}, deleted=np.array([False]))
    gone = changes(("a", None, "gone"), kinds=[DELETE])
    outcome = merge_changes(BASE, gone, rules(Answering(answer=kept)))
    assert as_tuples(outcome.table)[0] == ("at base", "a", 1, "base")


@pytest.mark.parametrize(
    ("old_gone", "new_gone", "gone", "kept", "time", "number", "text"),
    [
        # deletes, the merger's answer; the row's commit time, merged and plain column
        (False, False, False, False, "at new", 9, "new"),
        (False, False, False, True, "at old", 1, "old"),
        (False, False, True, False, "at new", 9, "new"),
        (False, True, True, False, "at new", 2, "new"),
        (False, True, False, False, "at old", 9, "old"),
        (False, True, False, True, "at old", 1, "old"),
        (True, False, False, False, "at new", 9, "new"),
        (True, False, True, False, "at old", 1, "old"),
        (True, False, True, True, "at old", 1, "old"),
        (True, True, True, False, "at new", 2, "new"),
        (True, True, False, False, "at old", 9, "old"),
    ],
)
def test_each_column_is_taken_from_the_version_that_the_merger_chooses(
    old_gone: bool, new_gone: bool, gone: bool, kept: bool, time: str, number: int, text: str
) -> None:
    answer = MergedRows(
        columns={"n": pa.array([9, 9]), "_hoodie_commit_time": pa.array(["never", "never"])},
        deleted=np.array([gone, False]),
        kept=np.array([kept, False]),
    )
    older = Versions(rows=rows(("a", 1, "old"), ("b", 3, "b")), deleted=np.array([old_gone, False]))
    newer = Versions(rows=rows(("a", 2, "new"), ("b", 4, "c")), deleted=np.array([new_gone, False]))
    merged, stayed = merge_versions(Answering(answer=answer), older, newer)
    assert as_tuples(merged.rows) == [(time, "a", number, text), ("at c", "b", 9, "c")]
    assert (merged.deleted.tolist(), stayed.tolist()) == ([gone, False], [kept, False])


def test_a_merger_without_a_kept_column_keeps_no_row() -> None:
    answer = MergedRows(columns={}, deleted=np.array([False]))
    versions = Versions(rows=rows(("a", 1, "x")), deleted=np.array([False]))
    merged, stayed = merge_versions(Answering(answer=answer), versions, versions)
    assert (as_tuples(merged.rows), stayed.tolist()) == ([("at x", "a", 1, "x")], [False])


def test_logs_fold_to_one_change_a_key_oldest_first() -> None:
    one = changes(("a", 1, "1"), ("b", 5, "2"), ("a", 2, "3"), ("c", 9, "4"), ("a", 4, "5"))
    folded = fold_changes(one, rules())
    assert sorted(as_tuples(folded.rows)) == [
        ("at 2", "b", 5, "2"),
        ("at 4", "c", 9, "4"),
        ("at 5", "a", 7, "5"),
    ]
    assert folded.kinds.tolist() == [RECORD] * 3


def test_the_older_side_is_the_older_version() -> None:
    seen: list[tuple[list[Any], list[Any]]] = []

    @dataclass(frozen=True)
    class Watching(Summing):
        def merge(self, older: Versions, newer: Versions) -> MergedRows:
            seen.append((older.rows["v"].to_pylist(), newer.rows["v"].to_pylist()))
            assert older.deleted.tolist() == [text == "gone" for text in seen[-1][0]]
            return super().merge(older, newer)

    logs = changes(
        ("a", 1, "first"), ("a", None, "gone"), ("a", 3, "third"), kinds=[RECORD, DELETE, RECORD]
    )
    fold_changes(logs, rules(Watching()))
    assert seen == [(["first"], ["gone"]), (["gone"], ["third"])]


def test_rows_of_one_key_in_a_batch_are_merged() -> None:
    batch = rows(("a", 1, "1"), ("b", 1, "2"), ("a", 5, "3"))
    assert sorted(as_tuples(combine_incoming(batch, rules()))) == [
        ("at 2", "b", 1, "2"),
        ("at 3", "a", 6, "3"),
    ]


def test_a_delete_born_inside_a_batch_is_marked_or_refused() -> None:
    batch = rows(("a", 1, "1"), ("b", 1, "2"), ("a", -1, "3"))
    with pytest.raises(InvalidInputError) as refused:
        combine_incoming(batch, rules())
    assert refused.value.kind == "merged_delete"
    marked = batch.append_column("_hoodie_is_deleted", pa.nulls(3, pa.bool_()))
    found = combine_incoming(marked, rules())
    assert sorted(as_tuples(found.select(["v", "_hoodie_is_deleted"]))) == [
        ("2", None),
        ("3", True),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        MergedRows(columns={"n": pa.array([1, 2])}, deleted=np.array([False])),
        MergedRows(columns={"n": pa.array(["x"])}, deleted=np.array([False])),
        MergedRows(columns={"n": pa.array([[1]])}, deleted=np.array([False])),
        MergedRows(columns={}, deleted=np.array([False, True])),
        MergedRows(columns={}, deleted=np.array([0])),
        MergedRows(columns={}, deleted=np.array([False]), kept=np.array([True, True])),
    ],
)
def test_an_invalid_answer_is_an_error_of_the_plug_in(answer: MergedRows) -> None:
    with pytest.raises(UnsafeSetupError, match="Answering") as refused:
        merge_changes(BASE, changes(("a", 1, "new")), rules(Answering(answer=answer)))
    assert (refused.value.kind, refused.value.fields) == ("bad_merger", {"merger": "Answering"})


def test_partial_changes_are_refused() -> None:
    one = replace(changes(("a", 1, "x")), known={"v": np.array([False])})
    with pytest.raises(UnsupportedTableError) as refused:
        fold_changes(one, rules())
    assert refused.value.kind == "custom_merger_partial"


def test_columns_that_a_merger_needs_are_read_for_every_projection() -> None:
    assert rules().columns_for(BASE.schema) == ["n"]


def test_the_tables_strategy_id_or_payload_class_chooses_the_merger() -> None:
    custom = MergeDefinition(mode=MergeMode.CUSTOM, strategy_id=ID)
    mine, other = Summing(), Summing(strategy_ids=("other",), class_names=("com.example.Other",))
    assert custom.merged_by([other, mine]).merger is mine
    payload = MergeDefinition(mode=MergeMode.CUSTOM, payload_class="com.example.Other")
    assert payload.merged_by([mine, other]).merger is other
    assert custom.merged_by([other]).merger is None
    plain = MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING, strategy_id=ID)
    assert plain.merged_by([mine]).merger is None
    with pytest.raises(UnsafeSetupError) as refused:
        custom.merged_by([mine, Summing()])
    assert refused.value.kind == "duplicate_merger"


def test_a_definition_is_serialized_as_text_without_its_merger() -> None:
    custom = MergeDefinition(mode=MergeMode.CUSTOM, strategy_id=ID)
    definitions = TypeAdapter(MergeDefinition)
    text = definitions.dump_json(custom.merged_by([Summing()]), exclude={"merger"})
    assert definitions.validate_json(text) == custom
