"""Rules at their bounds: the last accepted value, the first rejected one, and the defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from timeline.heartbeat import (
    HeartbeatLimits,
    is_lease_expired,
    is_lease_trusted,
)
from timeline.model.commit_metadata import Access, AccessedFileGroup, FileGroupId, WriteSet
from timeline.model.file_slice import BaseFile, LogFile, Slicing, merged_slice, slice_file_group
from timeline.model.instant import Action
from timeline.model.instant_time import SkewLimits
from timeline.rules.conflicts import (
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    RuleId,
    validate_write_set,
)

MINE, OLDER, NEWER = "20260102030405004", "20260102030405000", "20260102030405008"
A, B = FileGroupId("x", "a"), FileGroupId("y", "b")


# ---------------------------------------------------------------- liveness


@pytest.mark.spec("RDL-1")
@pytest.mark.parametrize(("now", "over"), [(999, False), (1_000, False), (1_001, True)])
def test_a_lease_is_expired_after_its_end(now: int, over: bool) -> None:
    assert is_lease_expired(1_000, now) is over


@pytest.mark.parametrize(("gap", "trusted"), [(0, True), (2_000, True), (2_001, False)])
def test_a_reader_trusts_its_own_lease_for_two_thirds_of_it(gap: int, trusted: bool) -> None:
    assert is_lease_trusted(7_000, 7_000 + gap, 3_000) is trusted


@pytest.mark.spec("HB-2")
def test_a_heartbeat_may_be_silent_for_two_minutes_by_default() -> None:
    assert HeartbeatLimits() == HeartbeatLimits(interval_ms=60_000, misses=2)
    assert HeartbeatLimits().tolerated_ms == 120_000
    assert HeartbeatLimits(interval_ms=500, misses=4).tolerated_ms == 2_000
    assert HeartbeatLimits().silence_ms == 60_000
    assert HeartbeatLimits(interval_ms=500, misses=1).silence_ms == 500
    assert HeartbeatLimits(interval_ms=500, misses=4).silence_ms == 1_500
    assert HeartbeatLimits().pause_ms == 20_000
    assert HeartbeatLimits(interval_ms=500, misses=9).pause_ms == 500


@pytest.mark.spec("TL-SUCC-2")
def test_a_clock_may_be_ten_minutes_behind_and_is_warned_of_after_one_second() -> None:
    assert (SkewLimits().warn_ms, SkewLimits().refuse_ms) == (1_000, 600_000)


# ---------------------------------------------------------------- conflicts


def touched(access: Access, group: FileGroupId = A, source: str | None = None) -> WriteSet:
    return WriteSet.of(
        [AccessedFileGroup(file_group=group, access=access, source_requested_time=source)]
    )


def concurrent(
    write_set: WriteSet, requested_time: str = OLDER, **more: object
) -> ConcurrentCommit:
    return ConcurrentCommit(
        action=Action.COMMIT,
        requested_time=requested_time,
        completion_time="20260102030405011",
        write_set=write_set,
        **more,
    )


def test_names_of_rules_are_stable() -> None:
    assert {rule.name: rule.value for rule in RuleId} == {
        "NO_CONFLICT": "C0",
        "SAME_FILE_GROUP_WRITTEN": "C1",
        "FILE_GROUP_REPLACED": "C2",
        "WRITTEN_WHAT_I_REPLACE": "C3",
        "PARTITION_CLAIMED_BY_OTHER": "C4",
        "WRITTEN_INTO_MY_CLAIM": "C5",
        "TARGET_OF_ROLLBACK": "C6",
        "SOURCE_NOT_NEWEST": "C7",
        "PENDING_PLAN_OWNS_FILE_GROUP": "C8",
        "SAME_NEW_KEY": "C9",
        "SCHEMA_CHANGED": "C10",
        "SAME_BATCH": "C11",
        "METADATA_TABLE_CHANGED": "C12",
        "TABLE_UPGRADED": "C13",
        "KEYS_DROPPED": "C14",
        "REPLACED_TWICE": "C15",
        "INSERTED_WHERE_I_MISSED": "C16",
        "PROPERTIES_CHANGED": "C17",
        "STRATEGY_REFUSED": "C18",
        "READ_WAS_CHANGED": "C19",
        "ANNOUNCED_BY_OTHER": "C20",
        "NESTED_PARTITION": "C21",
    }


@pytest.mark.spec("PUB-4")
@pytest.mark.parametrize(
    ("theirs", "clean"),
    [(Access.NEW, True), (Access.BASE, True), (Access.LOG, False), (Access.REPLACE, False)],
)
def test_rows_merged_onto_a_base_file_of_a_concurrent_commit_do_not_conflict_with_it(
    theirs: Access, clean: bool
) -> None:
    verdict = validate_write_set(
        touched(Access.BASE, source=OLDER), MINE, [concurrent(touched(theirs))]
    )
    assert (verdict == NoConflict()) is clean


@pytest.mark.spec("NBCC-1")
@pytest.mark.parametrize(
    ("mine", "theirs", "clean"),
    [
        (Access.LOG, Access.LOG, True),
        (Access.LOG, Access.BASE, False),
        (Access.BASE, Access.LOG, False),
        (Access.BASE, Access.BASE, False),
        (Access.REPLACE, Access.LOG, False),
    ],
)
def test_non_blocking_writers_do_not_conflict_in_log_files_only(
    mine: Access, theirs: Access, clean: bool
) -> None:
    verdict = validate_write_set(
        touched(mine), MINE, [concurrent(touched(theirs))], logs_may_conflict=True
    )
    assert (verdict == NoConflict()) is clean


def test_a_restore_rejects_every_write_and_is_named() -> None:
    restore = concurrent(WriteSet(), restores=True)
    verdict = validate_write_set(
        touched(Access.NEW), MINE, [concurrent(touched(Access.NEW, B)), restore]
    )
    assert isinstance(verdict, Rejected)
    assert (verdict.rule, verdict.concurrent_commits) == (RuleId.TARGET_OF_ROLLBACK, (restore,))
    assert (verdict.file_groups, verdict.partitions, verdict.plans) == ((), (), ())


def test_a_rollback_of_the_write_is_named_and_a_retry_may_succeed() -> None:
    rollback = concurrent(WriteSet(), NEWER, aborts=MINE)
    verdict = validate_write_set(touched(Access.NEW), MINE, [rollback])
    assert isinstance(verdict, Rejected)
    assert verdict.concurrent_commits == (rollback,)
    assert verdict.retry_can_succeed


def test_an_overlapping_partition_is_rejected_before_file_groups_are_compared() -> None:
    mine = WriteSet.of([AccessedFileGroup(file_group=A, access=Access.BASE)], ["y"])
    claiming = concurrent(touched(Access.NEW, B))
    verdict = validate_write_set(mine, MINE, [concurrent(touched(Access.REPLACE)), claiming])
    assert isinstance(verdict, Rejected)
    assert (verdict.rule, verdict.concurrent_commits) == (RuleId.WRITTEN_INTO_MY_CLAIM, (claiming,))


def test_a_rebase_names_the_last_concurrent_commit_of_each_file_group_once() -> None:
    both = WriteSet.of(
        [AccessedFileGroup(file_group=group, access=Access.BASE) for group in (A, B)]
    )
    first = concurrent(touched(Access.BASE), writer="first")
    last = concurrent(both, writer="last")
    verdict = validate_write_set(both, MINE, [first, last])
    assert isinstance(verdict, Rebase)
    assert (verdict.rule, verdict.concurrent_commits) == (RuleId.SAME_FILE_GROUP_WRITTEN, (last,))
    assert verdict.file_groups == (A, B)


def test_a_commit_without_conflict_does_not_hide_one_with_a_conflict() -> None:
    """A concurrent commit without a conflict in the same file group does not end the check."""
    compaction = concurrent(touched(Access.BASE), is_compaction=True)
    writer = concurrent(touched(Access.BASE))
    verdict = validate_write_set(touched(Access.LOG), MINE, [compaction, writer])
    assert isinstance(verdict, Rejected)
    assert verdict.concurrent_commits == (writer,)
    other = WriteSet.of(
        [
            AccessedFileGroup(file_group=B, access=Access.BASE),
            AccessedFileGroup(file_group=FileGroupId("z", "c"), access=Access.BASE),
        ]
    )
    mine = touched(Access.BASE, FileGroupId("z", "c"))
    assert isinstance(validate_write_set(mine, MINE, [concurrent(other)]), Rebase)


@pytest.mark.parametrize("requested_time", [OLDER, NEWER])
def test_a_compaction_does_not_conflict_with_a_write_of_the_whole_partition(
    requested_time: str,
) -> None:
    mine = WriteSet.of([], ["x"])
    compaction = concurrent(touched(Access.BASE), requested_time, is_compaction=True)
    assert validate_write_set(mine, MINE, [compaction]) == NoConflict()
    assert isinstance(
        validate_write_set(mine, MINE, [replace(compaction, is_compaction=False)]), Rejected
    )


# ---------------------------------------------------------------- slicing by name


def test_log_files_above_an_unmerged_base_file_are_a_slice_of_their_own() -> None:
    group = FileGroupId("p", "g")
    bases = [
        BaseFile(file_group=group, name="t10.parquet", requested_time="t10", size_bytes=10),
    ]
    logs = [
        LogFile(
            file_group=group,
            name=f"{time}.1.0-0-0",
            instant_time=time,
            log_version=1,
            write_token="0-0-0",
            size_bytes=1,
        )
        for time in ("t05", "t30")
    ]
    slices = slice_file_group(
        group, bases, logs, completion_of=lambda time: None, slicing=Slicing.BY_NAME
    )
    assert [one.base_instant_time for one in slices] == ["t05", "t10", "t30"]
    newest = merged_slice(slices)
    assert (newest.base_instant_time, newest.base_file) == ("t30", None)
    assert [log.name for log in newest.log_files] == ["t30.1.0-0-0"]
