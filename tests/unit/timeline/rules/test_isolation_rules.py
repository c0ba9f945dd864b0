"""Each isolation level with each kind of concurrent commit, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from timeline.model.commit_metadata import (
    WHOLE_TABLE,
    Access,
    AccessedFileGroup,
    FileGroupId,
    WriteSet,
)
from timeline.model.instant import Action
from timeline.rules.conflicts import ConcurrentCommit, RuleId
from timeline.rules.isolation import Isolation, ReadScope, validate_reads

SNAPSHOT, SOME, STRICT = Isolation.SNAPSHOT, Isolation.WRITE_SERIALIZABLE, Isolation.SERIALIZABLE
CHANGED, APPENDED = RuleId.READ_WAS_CHANGED, RuleId.INSERTED_WHERE_I_MISSED
READ = ReadScope(partitions=frozenset({"x"}), instants=frozenset({"20260101000000000"}))
ALL = ReadScope(partitions=None, instants=frozenset())


@dataclass
class GivenReadWatch:
    """A read watch with given answers."""

    inserted: set[str] = field(default_factory=set)
    reading: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)

    def only_inserted(self, concurrent: ConcurrentCommit, group: FileGroupId) -> bool:
        return group.file_id in self.inserted

    def has_reads(self, concurrent: ConcurrentCommit) -> bool:
        return concurrent.requested_time in self.reading

    def wrote_no_match(self, concurrent: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        return item.file_group.file_id in self.missing

    def had_no_match(self, group: FileGroupId) -> bool:
        return group.file_id in self.empty


def touched(*items: tuple[str, str, Access], partitions: tuple[str, ...] = ()) -> WriteSet:
    return WriteSet.of(
        [
            AccessedFileGroup(file_group=FileGroupId(partition, file_id), access=access)
            for partition, file_id, access in items
        ],
        partitions,
    )


def concurrent(
    write_set: WriteSet, name: str = "r1", action: Action = Action.COMMIT, **more: object
) -> ConcurrentCommit:
    return ConcurrentCommit(
        action=action, requested_time=name, completion_time=name, write_set=write_set, **more
    )


NEW, BASE, LOG, REPLACE = Access.NEW, Access.BASE, Access.LOG, Access.REPLACE
MINE_ELSEWHERE = touched(("y", "m", BASE))
MINE_THERE = touched(("x", "g", BASE))


@pytest.mark.parametrize(
    ("theirs", "mine", "some", "strict", "snapshot"),
    [
        (touched(("x", "n", NEW)), MINE_ELSEWHERE, None, APPENDED, None),
        (touched(("x", "g", BASE)), MINE_ELSEWHERE, CHANGED, CHANGED, None),
        (touched(("x", "g", LOG)), MINE_ELSEWHERE, CHANGED, CHANGED, None),
        (touched(("x", "g", REPLACE)), MINE_ELSEWHERE, CHANGED, CHANGED, None),
        (touched(partitions=("x",)), MINE_ELSEWHERE, CHANGED, CHANGED, None),
        (touched(partitions=(WHOLE_TABLE,)), MINE_ELSEWHERE, CHANGED, CHANGED, None),
        (touched(partitions=("x",)), MINE_THERE, CHANGED, CHANGED, CHANGED),
        (touched(("x", "g", BASE)), MINE_THERE, CHANGED, CHANGED, CHANGED),
        (touched(("x", "g", LOG)), MINE_THERE, CHANGED, CHANGED, CHANGED),
        (touched(("x", "h", BASE)), MINE_THERE, CHANGED, CHANGED, None),
        (touched(("z", "n", NEW)), MINE_ELSEWHERE, None, None, None),
        (touched(("z", "g", BASE)), MINE_ELSEWHERE, None, None, None),
        (touched(partitions=("z",)), MINE_ELSEWHERE, None, None, None),
        (touched(("x", "n", NEW)), touched(partitions=("x",)), APPENDED, APPENDED, CHANGED),
        (touched(("x", "n", NEW), ("y", "m", BASE)), MINE_ELSEWHERE, APPENDED, APPENDED, None),
    ],
)
def test_each_level_gives_its_rule_for_each_concurrent_commit(
    theirs: WriteSet, mine: WriteSet, some: RuleId, strict: RuleId, snapshot: RuleId
):
    expected = {SOME: some, STRICT: strict, SNAPSHOT: snapshot}
    for level, rule in expected.items():
        found = validate_reads(level, mine, READ, [concurrent(theirs)], GivenReadWatch())
        assert (found.rule if found else None) is rule, level
        if found is not None:
            assert not found.retry_can_succeed


@pytest.mark.parametrize("level", list(Isolation))
def test_moved_rows_do_not_conflict_with_reads(level: Isolation):
    """Compaction and clustering."""
    moved = touched(("x", "g", BASE))
    compaction = concurrent(moved, action=Action.COMPACTION, is_compaction=True)
    clustering = concurrent(touched(("x", "g", REPLACE)), action=Action.CLUSTERING)
    assert (
        validate_reads(level, MINE_THERE, READ, [compaction, clustering], GivenReadWatch()) is None
    )


@pytest.mark.parametrize("level", list(Isolation))
def test_a_restore_invalidates_every_read_set(level: Isolation):
    restored = concurrent(WriteSet(), action=Action.RESTORE, restores=True)
    found = validate_reads(level, MINE_ELSEWHERE, READ, [restored], GivenReadWatch())
    assert found is not None
    assert found.rule is CHANGED


@pytest.mark.parametrize("level", list(Isolation))
def test_a_rollback_of_a_read_instant_invalidates_the_reads(level: Isolation):
    seen = concurrent(WriteSet(), action=Action.ROLLBACK, aborts="20260101000000000")
    unseen = concurrent(WriteSet(), action=Action.ROLLBACK, aborts="20260101000000004")
    assert validate_reads(level, MINE_ELSEWHERE, READ, [unseen], GivenReadWatch()) is None
    found = validate_reads(level, MINE_ELSEWHERE, READ, [seen], GivenReadWatch())
    assert found is not None
    assert found.rule is CHANGED


def test_a_rewritten_file_that_only_grew_is_an_insert():
    grown = [concurrent(touched(("x", "g", BASE)))]
    watch = GivenReadWatch(inserted={"g"})
    assert validate_reads(SOME, MINE_ELSEWHERE, READ, grown, watch) is None
    found = validate_reads(STRICT, MINE_ELSEWHERE, READ, grown, watch)
    assert found is not None
    assert found.rule is APPENDED


def test_inserts_that_the_filter_does_not_match_are_no_conflict():
    inserts = [concurrent(touched(("x", "n", NEW)))]
    assert (
        validate_reads(STRICT, MINE_ELSEWHERE, READ, inserts, GivenReadWatch(missing={"n"})) is None
    )


@pytest.mark.parametrize("level", [SOME, STRICT])
@pytest.mark.parametrize(
    ("access", "missing", "empty", "passes"),
    [
        (BASE, True, True, True),
        (BASE, True, False, False),
        (BASE, False, True, False),
        (LOG, True, True, False),
        (REPLACE, True, True, False),
    ],
)
def test_a_change_in_a_file_group_without_matching_rows(
    level: Isolation, access: Access, missing: bool, empty: bool, passes: bool
):
    watch = GivenReadWatch(missing={"g"} if missing else set(), empty={"g"} if empty else set())
    found = validate_reads(
        level, MINE_ELSEWHERE, READ, [concurrent(touched(("x", "g", access)))], watch
    )
    assert (found is None) is passes


def test_an_insert_made_from_reads_cannot_be_passed():
    inserts = [concurrent(touched(("x", "n", NEW)))]
    found = validate_reads(SOME, MINE_ELSEWHERE, READ, inserts, GivenReadWatch(reading={"r1"}))
    assert found is not None
    assert found.rule is APPENDED
    spared = GivenReadWatch(reading={"r1"}, missing={"n"})
    assert validate_reads(SOME, MINE_ELSEWHERE, READ, inserts, spared) is None


def test_a_commit_made_from_reads_after_an_unseen_insert_cannot_be_passed():
    blind, reader = concurrent(touched(("x", "n", NEW))), concurrent(touched(("z", "s", NEW)), "r2")
    watch = GivenReadWatch(reading={"r2"})
    found = validate_reads(SOME, MINE_ELSEWHERE, READ, [blind, reader], watch)
    assert found is not None
    assert (found.rule, found.concurrent_commits) == (APPENDED, (reader,))
    assert validate_reads(SOME, MINE_ELSEWHERE, READ, [reader, blind], watch) is None


def test_a_row_that_was_written_after_an_unseen_insert_is_not_changed():
    blind, later = concurrent(touched(("x", "n", NEW))), concurrent(touched(("y", "m", BASE)), "r2")
    found = validate_reads(SOME, MINE_ELSEWHERE, READ, [blind, later], GivenReadWatch())
    assert found is not None
    assert (found.rule, found.concurrent_commits) == (APPENDED, (later,))
    assert validate_reads(SOME, MINE_ELSEWHERE, READ, [later, blind], GivenReadWatch()) is None


def test_a_partition_that_was_overwritten_after_an_unseen_insert_is_not_written():
    blind, later = (
        concurrent(touched(("x", "n", NEW))),
        concurrent(touched(partitions=("y",)), "r2"),
    )
    swept = concurrent(touched(("y", "k", REPLACE), partitions=("y",)), "r2")
    assert validate_reads(SOME, MINE_ELSEWHERE, READ, [blind, swept], GivenReadWatch()) is not None
    assert (
        validate_reads(SOME, touched(("w", "m", BASE)), READ, [blind, later], GivenReadWatch())
        is None
    )


def test_under_snapshot_a_row_deleted_by_another_is_not_inserted_again():
    deleted = [concurrent(touched(("x", "g", BASE)))]
    inserting = WriteSet.of(touched(("x", "n", NEW)).file_groups, inserting=["x"])
    found = validate_reads(SNAPSHOT, inserting, READ, deleted, GivenReadWatch())
    assert found is not None
    assert found.rule is CHANGED


@pytest.mark.parametrize("level", [SOME, STRICT])
def test_reads_of_the_whole_table_conflict_with_changes_anywhere(level: Isolation):
    found = validate_reads(
        level, MINE_ELSEWHERE, ALL, [concurrent(touched(("q", "g", BASE)))], GivenReadWatch()
    )
    assert found is not None
    assert found.partitions == ("q",)
