"""The values that the steps of a commit hand on: base state, pending commit, commit section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeAlias

from timeline.active_timeline import ActiveTimeline
from timeline.context import TableContext
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime, WallMs
from timeline.model.slot import Batch, Slot, SlotKind, SlotOwner
from timeline.model.table_config import TableConfig
from timeline.model.write_set import AccessedFileGroup, WriteSet
from timeline.ports.lock import Lease
from timeline.properties.properties_file import load_config
from timeline.rules.conflicts import ConcurrentCommit, Rejected
from timeline.rules.instant_times import Residue, next_instant_time
from timeline.snapshot import Snapshot

__all__ = [
    "BaseState",
    "CommitCheck",
    "CommitSection",
    "PendingCommit",
    "TimelineState",
    "WriteToCommit",
    "read_table",
]

#: The head of the commit log, the timeline listed after it, and a loader of the table's properties.
TimelineState: TypeAlias = tuple[int, ActiveTimeline, Callable[[], TableConfig]]


def read_table(context: TableContext, *, asks_config: bool) -> TimelineState:
    """
    Read the commit log, then the timeline, and with ``asks_config`` also the properties.

    Outside: as ``TableContext.look_with``; without ``asks_config`` 1 get when the properties are
    first read.
    """
    config = cache(partial(load_config, context.world.storage))
    if asks_config:
        return context.look_with(config)
    return *context.look(), config


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseState:
    """The commit log up to ``head`` and the completed instants that a write validated against."""

    head: int
    completed: frozenset[tuple[InstantTime, InstantTime]]
    first: InstantTime | None = None  # first write of that timeline; older ones were archived

    @staticmethod
    def by(snapshot: Snapshot) -> BaseState:
        """Return the state that a snapshot shows."""
        active = snapshot.active
        return BaseState(
            head=snapshot.head, completed=active.completed_times, first=active.first_write_time
        )


#: Takes the timeline, the concurrent commits since the last refresh, and a loader of the
#: properties.
CommitCheck: TypeAlias = Callable[
    [ActiveTimeline, list[ConcurrentCommit], Callable[[], TableConfig]], Rejected | None
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """A write with all files written that is to be committed."""

    claim: WriteSet  # what it changes; stored in the slot
    metadata: CommitMetadata
    read_only: tuple[
        AccessedFileGroup, ...
    ] = ()  # read but not changed; validated, not in the slot
    inside: tuple[str, ...] = ()  # folders around the partitions that it creates
    schema_before: str = ""
    schema_after: str = ""
    batches: tuple[Batch, ...] = ()
    logs_may_meet: bool = False  # NBCC-1
    check: CommitCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteToCommit:
    """
    A write as its commit needs it before it holds the commit lock.

    Args:
        requested_time: Its requested time.
        pending: What it commits.
        base_head: The greatest slot that it validated against.
        read: The table state that was read when its wait in the waiting line ended.
    """

    requested_time: InstantTime
    pending: PendingCommit
    base_head: int
    read: TimelineState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSection:
    """The state of the table at the moment a slot may be taken, and the lease held meanwhile."""

    head: int
    timeline: ActiveTimeline
    newest_time: InstantTime | None
    owner: SlotOwner
    lease: Lease | None
    entered_ms: int = 0  # on the monotonic clock
    overruns: int = 0  # of the low-water mark, when the section was entered
    before: str = ""  # digest of the head slot, empty when there is none
    unshown: Slot | None = None  # the head, if its file and the next slot are created together
    unread: tuple[InstantTime, ...] = ()  # writes of another engine to wait for (FOR-5)
    config: Callable[[], TableConfig]  # the table's properties, read once in this section

    @staticmethod
    def of(
        context: TableContext, read: TimelineState, last: Slot | None, lease: Lease | None
    ) -> CommitSection:
        """Return the section on a table state; ``last`` is the newest slot that decides."""
        head, timeline, config = read
        top = context.chain.read(head) if head else None  # SLOT-8: may differ from ``last``
        times = [one.newest_time for one in (top, last) if one is not None]
        newest = max(filter(None, (timeline.newest_time, *times)), default=None)
        who = context.world.ids.identity()
        return CommitSection(
            head=head,
            timeline=timeline,
            newest_time=newest,
            before=top.digest if top else "",
            config=config,
            lease=lease,
            owner=SlotOwner(
                host=who.host,
                pid=who.pid,
                writer_id=who.writer_id,
                application=who.application,
                fencing_token=lease.fencing_token if lease is not None else None,
            ),
        )

    def draw(self, context: TableContext, residue: Residue, *, above: InstantTime = "") -> str:
        """Draw a time above all others in this commit section (PUB-7)."""
        newest = max(self.newest_time or "", above) or None
        now = WallMs(context.world.clock.now_ms())
        return next_instant_time(
            now, newest, residue, limits=context.limits.skew, zone=context.zone
        )

    def slot(
        self,
        context: TableContext,
        kind: SlotKind,
        action: Action,
        requested_time: InstantTime,
        *,
        nonce: str,
        own_requested_time: InstantTime | None = None,
        base: int | None = None,
        body: bytes = b"",
        plan: bytes = b"",
        deletes: tuple[str, ...] = (),
        floor: InstantTime = "",
    ) -> Slot:
        """
        Return the next slot for a table service; its completion time is above all others (PUB-7).

        Arguments: as the fields of ``Slot``; ``base`` defaults to the head of this section.
        """
        above = own_requested_time or requested_time
        return Slot(
            number=self.head + 1,
            table_id=context.table_id,
            kind=kind,
            action=action,
            requested_time=requested_time,
            own_requested_time=own_requested_time,
            completion_time=self.draw(context, Residue.SLOT_COMPLETION, above=above),
            base=self.head if base is None else base,
            nonce=nonce,
            owner=self.owner,
            body=body,
            plan=plan,
            deletes=deletes,
            floor=floor,
        )

    def sealed(self, context: TableContext, slot: Slot) -> Slot:
        """Return the slot with hash link and signature, if this process signs slots (SLOT-7)."""
        return replace(slot, seal=context.limits.sealing.seal(self.before, slot.body))
