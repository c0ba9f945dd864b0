"""Publications without rows: what is judged and what becomes visible, one call at a time."""

from __future__ import annotations

from dataclasses import replace

from filegroups.table import Table
from tests.unit.timeline.engine import BRISK, StillClock, new_table, opened
from timeline.commit.begin import Begun, begin, make_inflight
from timeline.commit.commit import Candidate, Met, Published, Seen, publish
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.instant import Action
from timeline.model.write_set import Claim, FileGroupId, Touch, TouchedFileGroup

A, B = FileGroupId("x", "a"), FileGroupId("y", "b")


def touching(*groups: FileGroupId, touch: Touch = Touch.BASE) -> Claim:
    return Claim.of([TouchedFileGroup(file_group=group, touch=touch) for group in groups])


def candidate(*groups: FileGroupId, **more: object) -> Candidate:
    return Candidate(claim=touching(*groups), metadata=CommitMetadata(), **more)


def started(table: Table) -> Begun:
    """A write that is about to publish."""
    begun = begin(table.context, Action.COMMIT)
    make_inflight(table.context, begun, CommitMetadata())
    return begun


def seen_by(begun: Begun) -> Seen:
    return Seen.by(begun.snapshot)


def publish_one(table: Table, *groups: FileGroupId, **more: object) -> Published | Met:
    begun = started(table)
    return publish(table.context, begun, candidate(*groups, **more), seen_by(begun))


def begun_after(other: Table, mine: Table, *groups: FileGroupId) -> Begun:
    """Mine began after the other's write, which was published since: a redo is enough."""
    theirs = started(other)
    begun = started(mine)
    publish(other.context, theirs, candidate(*groups), seen_by(theirs))
    return begun


def two_writers(**changes: object) -> tuple[Table, Table]:
    first = new_table(clock=StillClock(), limits=replace(BRISK, **changes))
    return first, opened(first, clock=StillClock(), limits=first.context.limits)


def clock_of(table: Table) -> StillClock:
    clock = table.context.world.clock
    assert isinstance(clock, StillClock)
    return clock


def numbers(table: Table) -> list[int]:
    chain = table.context.chain
    return [slot.number for slot in chain.between(0, chain.head())]
