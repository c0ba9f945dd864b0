"""Commits without rows: their validation and their visibility, one call at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from filegroups.table import TableReader
from tests.unit.timeline.engine import BRISK, StillClock, new_table, opened
from timeline.commit.begin import StartedWrite, begin, make_inflight
from timeline.commit.commit import CommittedWrite, Conflict, commit_write
from timeline.commit.commit_lock import BaseState, CommitSection, PendingCommit, WriteToCommit
from timeline.commit.protocol import CommitProtocol
from timeline.commit.section import open_commit
from timeline.commit.validate import validate_unlocked
from timeline.context import TableContext
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    WriteSet,
)
from timeline.model.instant import Action
from timeline.model.slot import Slot
from timeline.rules.conflicts import NoConflict, Rebase, Rejected

A, B = FileGroupId("x", "a"), FileGroupId("y", "b")


def touching(*groups: FileGroupId, access: Access = Access.BASE) -> WriteSet:
    return WriteSet.of([AccessedFileGroup(file_group=group, access=access) for group in groups])


def pending_commit(*groups: FileGroupId, **more: object) -> PendingCommit:
    return PendingCommit(write_set=touching(*groups), metadata=CommitMetadata(), **more)


def started(table: TableReader) -> StartedWrite:
    """Begin a write that is ready to commit."""
    started_write = begin(table.context, Action.COMMIT)
    make_inflight(table.context, started_write, CommitMetadata())
    return started_write


def seen_by(started_write: StartedWrite) -> BaseState:
    return BaseState.by(started_write.snapshot)


def publish_one(
    table: TableReader, *groups: FileGroupId, **more: object
) -> CommittedWrite | Conflict:
    started_write = started(table)
    return commit_write(
        table.context, started_write, pending_commit(*groups, **more), seen_by(started_write)
    )


def begun_after(other: TableReader, mine: TableReader, *groups: FileGroupId) -> StartedWrite:
    """Begin my write before the other's commit; a rebase resolves the conflict."""
    theirs = started(other)
    started_write = started(mine)
    commit_write(other.context, theirs, pending_commit(*groups), seen_by(theirs))
    return started_write


def two_writers(**changes: object) -> tuple[TableReader, TableReader]:
    first = new_table(clock=StillClock(), limits=replace(BRISK, **changes))
    return first, opened(first, clock=StillClock(), limits=first.context.limits)


def clock_of(table: TableReader) -> StillClock:
    clock = table.context.ports.clock
    assert isinstance(clock, StillClock)
    return clock


def numbers(table: TableReader) -> list[int]:
    commit_log = table.context.commit_log
    return [slot.number for slot in commit_log.between(0, commit_log.head())]


def write_at(requested_time: str, **more: Any) -> WriteToCommit:
    """Return a write with this requested time and no changes."""
    return WriteToCommit(
        requested_time=requested_time, pending=pending_commit(), base_head=0, **more
    )


def commit_by(
    commit: CommitProtocol, decide: Callable[[CommitSection], Slot | None]
) -> tuple[Slot | None, int]:
    """Take the slot that ``decide`` returns; return it, and how many slots were lost."""
    while not commit.is_decided():
        with commit.section() as section:
            slot = decide(section)
            if slot is None:
                return None, commit.lost
            commit.take(section, slot)
    return commit.slot, commit.lost


def commit_in_section(
    context: TableContext, purpose: str, decide: Callable[[CommitSection], Slot | None]
) -> tuple[Slot | None, int]:
    """Take the slot of a table service as ``commit_by`` does."""
    return commit_by(open_commit(context, purpose), decide)


def validate_early(
    context: TableContext,
    started_write: StartedWrite,
    write_set: WriteSet,
    base_state: BaseState,
    *,
    logs_may_conflict: bool = False,
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """Validate a planned write set without the lock, as an early check does."""
    planned = PendingCommit(
        write_set=write_set, metadata=CommitMetadata(), logs_may_conflict=logs_may_conflict
    )
    return validate_unlocked(context, started_write, planned, base_state)
