"""
The commit section: the commit lock, and the state that a commit is decided on.

``CommitSection`` has the state, draws the completion time and makes the slot. The lock saves work
and decides nothing among hoodoo writers (SLOT-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Self, TypeAlias

from timeline.context import TableContext
from timeline.errors import LeaseLostError
from timeline.model.commit_metadata import AccessedFileGroup, CommitMetadata, WriteSet
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime, Residue, WallMs, next_instant_time
from timeline.model.metadata_table import MetadataUpdate
from timeline.model.slot import Batch, Slot, SlotKind, SlotOwner
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Lease, Lock, LockSharing
from timeline.properties.properties_file import load_config
from timeline.rules.conflicts import ConcurrentCommit, Rejected
from timeline.snapshot import ActiveTimeline, Snapshot

_KEEP_UP_MS = 100  # time between two reads of the commit log while waiting for the lock


@contextmanager
def acquire_exclusively(context: TableContext, purpose: str) -> Iterator[Lease]:
    """
    Acquire the lock exclusively; on a high-latency store read the commit log while waiting.

    Reading it only in the commit section would keep all waiting writers for one or more round
    trips.

    Raises:
        LockTimeoutError: The lock was not free in time.
    """
    if not context.ports.storage.capabilities.high_latency:
        with context.ports.lock.acquire(purpose) as lease:
            yield lease
        return
    with follow_commit_log(context) as ended:
        lease = context.ports.lock.acquire(purpose)
        ended()
        with lease:
            yield lease


@contextmanager
def follow_commit_log(context: TableContext) -> Iterator[Callable[[], None]]:
    """
    Read the commit log repeatedly until the yielded function is called.

    A read that is under way at that time ends during the commit section: the lock holder must not
    wait for it.
    """
    waiting = True

    def keep_up() -> None:
        if waiting:
            context.commit_log.head()

    def end() -> None:
        nonlocal waiting
        waiting = False

    beat = context.ports.executor.every(_KEEP_UP_MS, keep_up)
    try:
        yield end
    finally:
        beat.stop()


def assert_lease(lease: Lease | None) -> None:
    """
    Return if the lock is held or none is taken.

    Raises:
        LeaseLostError: The lock was lost.
    """
    if lease is not None:
        lease.assert_held()


def has_lease(lease: Lease | None) -> bool:
    """Return whether ``assert_lease`` does not raise."""
    try:
        assert_lease(lease)
    except LeaseLostError:
        return False
    return True


# ---- Keep the commit lock for a whole attempt, so that a write which lost often cannot lose again


def is_commit_lock_kept(context: TableContext) -> bool:
    """Return whether the commit lock is kept for a retry, so that no other writer commits first."""
    lock = context.ports.lock
    return isinstance(lock, _KeptLock) and not lock.is_stopped


@contextmanager
def keep_commit_lock(
    context: TableContext, purpose: str, *, ms_max: int = 0
) -> Iterator[TableContext]:
    """
    Hold the table's lock in this block; lock requests in the block use the held lease.

    A retry under lock finds no new conflict, but other writers wait for it. So a write keeps the
    lock only if its last attempt was short, and gives it back if this one is not
    (``hoodoo.retry.queue.short.ms``). It keeps the lock to the end only if the user says so
    (``hoodoo.retry.queue.after``).

    A lease that is lost or given back meanwhile costs the privilege, never data. The lock is then
    requested as usual, and the slots decide (SLOT-1).

    Args:
        context: The table.
        purpose: Shown to processes that wait.
        ms_max: Give the lock back after this many milliseconds, unless a commit section uses it
            then; 0 for never.

    Raises:
        LockTimeoutError: The lock was not free in time.
    """
    ports = context.ports
    with acquire_exclusively(context, purpose) as lease:
        ports.events.emit("write.queued", purpose=purpose)
        held = _KeptLock(ports.lock, lease, ports.lock.provider, ports.lock.identity)

        def give_back() -> None:
            if not held.sections and not held.is_stopped:
                held.stop_keeping()
                ports.events.emit("write.queue_given_back", purpose=purpose, held_ms=ms_max)

        beat = ports.executor.every(ms_max, give_back) if ms_max else None
        try:
            yield replace(context, ports=replace(ports, lock=held))
        finally:
            if beat is not None:
                beat.stop()


@dataclass(slots=True)
class _KeptLock:
    """A lock whose holder requests it again."""

    inner: Lock
    lease: Lease
    provider: str
    identity: str
    is_fifo: bool = True  # no other process is ahead of the holder
    is_shareable: bool = False  # the holder has the lock alone
    sections: list[object] = field(default_factory=list)  # borrowed leases in use
    is_stopped: bool = False

    def stop_keeping(self) -> None:
        """Release the lock; later requests go to the lock itself."""
        self.is_stopped = True
        self.lease.release()

    def acquire(self, purpose: str) -> Lease:
        """Return a borrowed lease; a new lease of the lock itself if the held one is lost."""
        lease = self.lease
        borrowed = _BorrowedLease(self, lease.fencing_token, lease.owner, lease.is_shared)
        # Noted first: if the lease is given back now, the commit section notices it by itself.
        self.sections.append(borrowed)
        try:
            lease.assert_held()
        except LeaseLostError:
            self.sections.remove(borrowed)
            return self.inner.acquire(purpose)
        return borrowed

    def acquire_while(
        self, _wanted: Callable[[], bool], purpose: str, _sharing: LockSharing = LockSharing.NO
    ) -> Lease | None:
        """Acquire as ``acquire``: the lock is held already, or is not contended for long."""
        return self.acquire(purpose)

    def close(self) -> None:
        """Do nothing: the owner of the lock closes it."""


@dataclass(frozen=True, slots=True, eq=False)
class _BorrowedLease:
    """The kept lease, lent to one commit section."""

    held: _KeptLock
    fencing_token: int | None
    owner: str
    is_shared: bool

    def remaining_ms(self) -> int | None:
        """Return the lease's own value."""
        return self.held.lease.remaining_ms()

    def has_time_for_request(self) -> bool:
        """Return the lease's own value."""
        return self.held.lease.has_time_for_request()

    def assert_held(self) -> None:
        """Raise as the lease itself does."""
        self.held.lease.assert_held()

    def release(self) -> None:
        """Give the lock back: the retry has its slot, so other writers need not wait (PAR-1)."""
        self.held.stop_keeping()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the commit section only; ``keep_commit_lock`` releases the lease."""
        if self in self.held.sections:
            self.held.sections.remove(self)


# ---- The values that the steps of a commit hand on: base state, pending commit, commit section

#: The head of the commit log, the timeline listed after it, and a loader of the table's properties.
TimelineState: TypeAlias = tuple[int, ActiveTimeline, Callable[[], TableConfig]]


def read_table(context: TableContext, *, asks_config: bool) -> TimelineState:
    """
    Read the commit log, then the timeline, and with ``asks_config`` also the properties.

    Outside: as ``TableContext.refresh_with``; without ``asks_config`` 1 get when the properties are
    first read.
    """
    config = cache(partial(load_config, context.ports.storage))
    if asks_config:
        return context.refresh_with(config)
    return *context.refresh(), config


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

    write_set: WriteSet  # the changes; stored in the slot
    metadata: CommitMetadata
    read_only: tuple[
        AccessedFileGroup, ...
    ] = ()  # read but not changed; validated, not in the slot
    outer_folders: tuple[str, ...] = ()  # folders around the partitions that it creates
    schema_before: str = ""
    schema_after: str = ""
    # Path and content of the history of its columns' ids; created before the slot.
    schema_file: tuple[str, bytes] | None = None
    batches: tuple[Batch, ...] = ()
    logs_may_conflict: bool = False  # NBCC-1
    check: CommitCheck | None = None
    metadata_update: MetadataUpdate | None = None
    # Creates its log files before the slot, once (MDT-2); None if they exist.
    create_files: Callable[[], None] | None = None
    # ``TableConfig.metadata_state`` for which the update was made.
    metadata_state: tuple[tuple[str, ...], str] | None = None


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
    head_digest: str = ""  # digest of the head slot, empty when there is none
    deferred_slot: Slot | None = (
        None  # the head, if its file and the next slot are created together
    )
    unread: tuple[InstantTime, ...] = ()  # writes of another engine to wait for (FOR-5)
    config: Callable[[], TableConfig]  # the table's properties, read once in this section

    @staticmethod
    def of(
        context: TableContext, read: TimelineState, last: Slot | None, lease: Lease | None
    ) -> CommitSection:
        """Return the section on a table state; ``last`` is the newest slot that decides."""
        head, timeline, config = read
        top = context.commit_log.read(head) if head else None  # SLOT-8: may differ from ``last``
        times = [one.newest_time for one in (top, last) if one is not None]
        newest = max(filter(None, (timeline.newest_time, *times)), default=None)
        who = context.ports.ids.identity()
        return CommitSection(
            head=head,
            timeline=timeline,
            newest_time=newest,
            head_digest=top.digest if top else "",
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

    def draw_time(self, context: TableContext, residue: Residue, *, above: InstantTime = "") -> str:
        """Draw a time above all others in this commit section (PUB-7)."""
        newest = max(self.newest_time or "", above) or None
        now = WallMs(context.ports.clock.now_ms())
        return next_instant_time(
            now, newest, residue, limits=context.limits.skew, zone=context.zone
        )

    def next_slot(
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
            completion_time=self.draw_time(context, Residue.SLOT_COMPLETION, above=above),
            base=self.head if base is None else base,
            nonce=nonce,
            owner=self.owner,
            body=body,
            plan=plan,
            deletes=deletes,
            floor=floor,
        )

    def with_hash_link(self, context: TableContext, slot: Slot) -> Slot:
        """Return the slot with hash link and signature, if this process signs slots (SLOT-7)."""
        return replace(
            slot, hash_link=context.limits.slot_signing.link(self.head_digest, slot.body)
        )
