"""A clean that deleted files of the base snapshot rejects the write (CLN-3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.timeline.engine import BRISK, new_table
from tests.unit.timeline.publishing import B, begun_after, pending_commit, seen_by, two_writers
from timeline.codecs.instant_avro import encode_clean, encode_clean_plan
from timeline.commit.concurrent_commits import clean_conflict, foreign_clean_conflict
from timeline.commit.validate import validate_since
from timeline.context import TableContext
from timeline.model.commit_metadata import Access, AccessedFileGroup, FileGroupId, WriteSet
from timeline.model.file_names import TIMELINE
from timeline.model.instant import Action
from timeline.model.plans import (
    CleanerPlan,
    CleanFileInfo,
    CleanMetadata,
    CleanPartitionMetadata,
)
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.properties.setting_enums import ForeignWriters
from timeline.rules.conflicts import ConcurrentCommit, Rejected

FIRST, SECOND, THIRD = "20260101000000100", "20260101000000200", "20260101000000300"
CLEAN = "20260101000000900"
FILE_ID = "11111111-2222-3333-4444-555555555555-0"
BASE = f"{FILE_ID}_0-1-0_{FIRST}.parquet"
LOG = f".{FILE_ID}_{FIRST}.log.1_0-1-0"
SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)


def slot(
    kind: SlotKind = SlotKind.CLEAN,
    *,
    at: str = CLEAN,
    deletes: tuple[str, ...] = (f"x/{BASE}",),
    floor: str = "",
) -> Slot:
    return Slot(
        number=1,
        table_id="t",
        kind=kind,
        action=Action.CLEAN,
        requested_time=CLEAN,
        completion_time=at,
        base=0,
        nonce="n",
        owner=SlotOwner(host="h", pid=1, writer_id="w"),
        deletes=deletes,
        floor=floor,
    )


def concurrent(completed: str, partition: str = "x", file_id: str = FILE_ID) -> ConcurrentCommit:
    touched = AccessedFileGroup(file_group=FileGroupId(partition, file_id), access=Access.BASE)
    return ConcurrentCommit(
        action=Action.COMMIT,
        requested_time=completed,
        completion_time=completed,
        write_set=WriteSet(file_groups=(touched,)),
    )


# ---- ours


@pytest.mark.spec("CLN-3")
def test_a_clean_conflict_names_the_first_commit_that_the_snapshot_lacks() -> None:
    first, later = concurrent(SECOND), concurrent(THIRD)
    refused = clean_conflict([slot(floor=THIRD)], [later, first])
    assert refused is not None
    assert refused.concurrent_commits == (first,)
    assert CLEAN in refused.why


@pytest.mark.parametrize(
    ("one", "rejects"),
    [
        pytest.param(
            slot(floor=FIRST),
            False,
            id="a snapshot without the concurrent commit needs no slice of it",
        ),
        pytest.param(slot(floor=SECOND), True, id="the floor is the concurrent commit"),
        pytest.param(slot(at=FIRST), False, id="without a floor, before the concurrent commit"),
        pytest.param(
            slot(at=SECOND), True, id="without a floor, at the time of the concurrent commit"
        ),
        pytest.param(slot(deletes=()), False, id="it took nothing"),
        pytest.param(slot(SlotKind.COMMIT), False, id="a commit that deletes superseded files"),
    ],
)
def test_a_clean_conflicts_when_its_floor_is_above_the_snapshot(one: Slot, rejects: bool) -> None:
    assert bool(clean_conflict([one], [concurrent(SECOND)])) is rejects
    assert bool(clean_conflict([slot(deletes=()), one], [concurrent(SECOND)])) is rejects


# ---- another engine's


def shared_table() -> TableContext:
    return new_table(limits=SHARED).context


def cleaned(context: TableContext, *names: str, partition: str = "x") -> None:
    """Create another engine's completed clean; in version 9 its file name has both times."""
    done = CleanPartitionMetadata(partition_path=partition, success_delete_files=names)
    metadata = CleanMetadata(start_clean_time=CLEAN, partition_metadata={partition: done})
    storage = context.ports.storage
    storage.create(f"{TIMELINE}/{CLEAN}_{CLEAN}.clean", encode_clean(metadata))


def conflicts_of(
    context: TableContext,
    concurrent_commits: list[ConcurrentCommit],
    slots: list[Slot] | None = None,
) -> list[ConcurrentCommit]:
    """Return the conflicts of a write whose base snapshot precedes the clean."""
    base_timeline = shared_table().active()
    refused = foreign_clean_conflict(
        context, base_timeline, context.active(), slots or [], concurrent_commits
    )
    return [] if refused is None else [*refused.concurrent_commits]


@pytest.mark.spec("CLN-3")
@pytest.mark.parametrize("name", [BASE, LOG, f"x/{BASE}", f"file:///t/x/{BASE}"])
def test_commits_conflict_when_another_engine_cleaned_their_file_group(name: str) -> None:
    context = shared_table()
    cleaned(context, name)
    here = [concurrent(SECOND), concurrent(THIRD, file_id="22222222-2222-3333-4444-555555555555-0")]
    assert conflicts_of(context, [*here, concurrent(SECOND, "y")]) == [here[0]]


@pytest.mark.parametrize(
    "plan",
    [
        CleanerPlan(files_to_be_deleted_per_partition={"x": (f"file:///t/x/{BASE}",)}),
        CleanerPlan(files_to_be_deleted_per_partition={"x": (BASE,)}),
        CleanerPlan(
            file_paths_to_be_deleted_per_partition={
                "x": (CleanFileInfo(), CleanFileInfo(file_path=f"file:///t/x/{BASE}"))
            }
        ),
    ],
    ids=["paths", "names", "files"],
)
def test_a_clean_that_is_pending_counts_by_its_plan(plan: CleanerPlan) -> None:
    context = shared_table()
    name = f"{TIMELINE}/{CLEAN}.clean"
    context.ports.storage.create(f"{name}.requested", encode_clean_plan(plan))
    context.ports.storage.create(f"{name}.inflight", encode_clean_plan(plan))
    assert conflicts_of(context, [concurrent(SECOND)]) == [concurrent(SECOND)]
    assert conflicts_of(context, [concurrent(SECOND, "y")]) == []


def test_a_known_clean_or_one_with_a_slot_is_no_foreign_clean_conflict() -> None:
    context = shared_table()
    cleaned(context, BASE)
    assert conflicts_of(context, [concurrent(SECOND)], [slot()]) == []
    now = context.active()
    assert foreign_clean_conflict(context, now, now, [], [concurrent(SECOND)]) is None


def test_known_instants_of_other_actions_hide_no_clean() -> None:
    context = shared_table()
    context.ports.storage.create(f"{TIMELINE}/{CLEAN}.commit.requested", b"")
    base_timeline = context.active()
    cleaned(context, BASE)
    commit = slot(SlotKind.COMMIT)
    assert (
        foreign_clean_conflict(
            context, base_timeline, context.active(), [commit], [concurrent(SECOND)]
        )
        is not None
    )


@pytest.mark.spec("CLN-3")
@pytest.mark.parametrize(
    ("foreign", "is_rejected"),
    [(ForeignWriters.NONE, False), (ForeignWriters.EXPECTED, True)],
)
def test_a_clean_without_a_slot_rejects_a_write_only_where_other_engines_are_expected(
    foreign: ForeignWriters, is_rejected: bool
) -> None:
    mine, other = two_writers(foreign_writers=foreign)
    started_write = begun_after(other, mine, FileGroupId("x", FILE_ID))
    cleaned(mine.context, BASE)
    context = mine.context
    verdict, _ = validate_since(
        context,
        started_write,
        pending_commit(B),
        seen_by(started_write),
        context.active(),
        head=context.commit_log.head(),
        config=lambda: context.config,
    )
    assert isinstance(verdict, Rejected) is is_rejected
