"""
Acquire the commit lock and, on a high-latency store, read the table while waiting (PAR-1).

The lock saves work and decides nothing (SLOT-1). So a writer may refresh before it holds the lock:
a state that is a moment old costs at worst a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Self, TypeAlias

from timeline.active_timeline import ActiveTimeline
from timeline.commit.apply import has_instant_file, is_applied, may_overlap, newest_slots
from timeline.context import TableContext
from timeline.errors import HoodooError, LeaseLostError, MissingFileError
from timeline.model.instant import State
from timeline.model.instant_time import InstantTime, WallMs, instant_time, wall_ms
from timeline.model.slot import Slot
from timeline.model.table_config import TableConfig
from timeline.ports.lock import Lease, Lock, LockSharing, is_exclusive
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters

__all__ = [
    "TimelineState",
    "WaitingLine",
    "acquire_commit_lock",
    "acquire_exclusively",
    "is_commit_lock_kept",
    "is_lock_shared",
    "is_object_store_protocol",
    "keep_commit_lock",
    "read_table",
    "refresh_in_line",
    "waits_for_others",
]

#: The head of the commit log, the timeline listed after it, and a loader of the table's properties.
TimelineState: TypeAlias = tuple[int, ActiveTimeline, Callable[[], TableConfig]]
TableState: TypeAlias = tuple[Lease | None, TimelineState | None]

_WITHOUT_LOCK_FIRST = 2  # ``CommitLockMode.AUTO`` takes the lock after two lost slots
_BESIDE = 2  # does not wait for this many writers ahead: a lost slot is noticed at once
_LINE_MS = 10_000  # ignores writers that began earlier: they are dead or write for long
_STEP_MS = 5  # delay for each writer ahead
_STEPS_MAX = 6
_WAITS_MAX = 16  # in one commit section: a writer ahead may write for long
_STILL_MAX = 4  # stops waiting after this many reads without a new slot
_STILL_MAX_LOCKED = 8  # the same with a lock, where each slot also costs its owner a lock request
_KEEP_UP_MS = 100  # time between two reads of the commit log while waiting for the lock


def read_table(
    context: TableContext, *, asks_config: bool, until_still: bool = True
) -> TimelineState:
    """
    Read the commit log, then the timeline, and with ``asks_config`` also the properties.

    Without the lock, do not wait ``until_still``: other writers keep committing meanwhile.

    Outside: as ``TableContext.look_with``; without ``asks_config`` 1 get when the properties are
    first read.
    """
    config = cache(partial(load_config, context.world.storage))
    if asks_config:
        return context.look_with(config, until_still=until_still)
    return *context.look(), config


def waits_for_others(context: TableContext) -> bool:
    """Return whether a commit waits for other writers before its refresh, as far as is known."""
    return context.limits.publish_lock is CommitLockMode.LOCK and not is_lock_shared(context)


def is_lock_shared(context: TableContext) -> bool:
    """Return whether our writers share the lock, on a busy high-latency store (LOCK-1)."""
    return is_object_store_protocol(context) and context.world.lock.shares


def is_object_store_protocol(context: TableContext) -> bool:
    """Return whether slots alone decide (mode ``ours``) and a refresh costs a round trip."""
    foreign = context.limits.foreign_writers is ForeignWriters.EXPECTED
    return context.world.storage.capabilities.far and not foreign


def acquire_commit_lock(
    line: WaitingLine, purpose: str, lost: int
) -> AbstractContextManager[TableState]:
    """
    Acquire the commit lock, if one is taken, and return it with the table state read meanwhile.

    The lease is None if the settings take no lock, or if a conflict was found while the writer
    waited in the waiting line.

    Args:
        line: The waiting line of this commit section.
        purpose: Shown to processes that wait.
        lost: How many slots this commit section has lost.

    Raises:
        LockTimeoutError: The lock was not free in time.
    """
    context, looked = line.context, line.read_before()
    mode = context.limits.publish_lock
    if mode is CommitLockMode.NONE or (mode is CommitLockMode.AUTO and lost < _WITHOUT_LOCK_FIRST):
        return nullcontext((None, looked))
    if not is_object_store_protocol(context):
        return _alone(context, purpose)
    in_order = context.world.lock.in_order
    if in_order and context.chain.is_busy:
        return _alone(context, purpose)
    if not (in_order or is_lock_shared(context) or line.stand()):
        return nullcontext((None, None))
    return _lock_and_state(line, purpose, looked)


@contextmanager
def acquire_exclusively(context: TableContext, purpose: str) -> Iterator[Lease]:
    """
    Acquire the lock exclusively; on a high-latency store read the commit log while waiting.

    Reading it only in the commit section would keep all waiting writers for one or more round
    trips.

    Raises:
        LockTimeoutError: The lock was not free in time.
    """
    if not context.world.storage.capabilities.far:
        with context.world.lock.acquire(purpose) as lease:
            yield lease
        return
    with _while_waiting(context) as ended:
        lease = context.world.lock.acquire(purpose)
        ended()
        with lease:
            yield lease


@contextmanager
def _alone(context: TableContext, purpose: str) -> Iterator[TableState]:
    with acquire_exclusively(context, purpose) as lease:
        yield lease, None


@contextmanager
def _lock_and_state(
    line: WaitingLine, purpose: str, before: TimelineState | None
) -> Iterator[TableState]:
    """
    Acquire the lock together with a refresh, or with a state that was read before.

    Where no other writer commits, the lock is usually free, so the refresh is usually still valid.
    A writer that had to wait refreshes again; it does so without the lock if the commit log
    meanwhile shows a conflict. A writer that may share the lock rarely waits, and refreshes as it
    does without a lock.
    """
    context = line.context
    clock = context.world.clock
    shared = is_lock_shared(context)
    sharing = LockSharing.START if context.chain.is_busy else LockSharing.JOIN
    had: list[Lease] = []
    started_ms = clock.monotonic_ms() - (context.looked.took_ms if before else 0)
    ended_ms: list[int] = []

    def acquire() -> None:
        lease = context.world.lock.acquire_while(line.is_hopeful, purpose, sharing)
        ended()
        if lease is None:
            return
        if lease.is_shared or line.is_hopeful():
            had.append(lease)
        else:  # a new commit rejects the write: do not hold the lock during the refresh
            lease.release()

    def read() -> TimelineState:
        found = before or read_table(context, asks_config=line.asks_config, until_still=not shared)
        ended_ms.append(clock.monotonic_ms())
        return found

    with _while_waiting(context) as ended:
        try:
            _, looked = context.world.together(acquire, read)
        except BaseException:
            for lease in had:
                lease.release()
            raise
        if not had:
            line.give_up()
            yield None, None
            return
        with had[0] as lease:
            waited_ms = clock.monotonic_ms() - ended_ms[0]
            fresh = waited_ms <= ended_ms[0] - started_ms and looked[0] == context.chain.known_head
            # An exclusive holder may have changed the properties since the wait in the waiting line
            # ended.
            before_it = line.has_place and not had[0].is_shared
            yield lease, looked if fresh and not before_it else None


@contextmanager
def _while_waiting(context: TableContext) -> Iterator[Callable[[], None]]:
    """
    Read the commit log repeatedly until the yielded function is called.

    A read that is under way at that time ends during the commit section: the lock holder must not
    wait for it.
    """
    waiting = True

    def keep_up() -> None:
        if waiting:
            context.chain.head()

    def end() -> None:
        nonlocal waiting
        waiting = False

    beat = context.world.executor.every(_KEEP_UP_MS, keep_up)
    try:
        yield end
    finally:
        beat.stop()


class WaitingLine:
    """
    Order writers on a high-latency store by requested time, where no lock keeps an order.

    Without a lock all writers that lose a slot notice it at once and would request the next slot at
    once. One of them wins, and a writer may lose many times by bad luck. The same holds for writers
    that poll for a lock. The timeline shows which writers are about to commit and since when. A
    writer that does not commit is not waited for (HB-4).

    Args:
        context: The table.
        asks_config: Whether the commit section reads the table's properties.
        begun: The requested time of the write to commit; a table service does not wait in line.
        is_met: Whether the known part of the commit log rejects the write, so that waiting is
            useless.
        looked: The table state read when the wait ended (``wait_in_line``): no writer is ahead any
            more.
    """

    def __init__(
        self,
        context: TableContext,
        *,
        asks_config: bool,
        begun: InstantTime | None = None,
        is_met: Callable[[], bool] = lambda: False,
        looked: TimelineState | None = None,
    ) -> None:
        self.context = context
        self.asks_config = asks_config
        self._begun = begun
        self._is_met = is_met
        self._gave_up = False  # at most once in a commit section
        self.has_given_up = False  # the lock; the refresh under way is to find the conflict
        self.settled = 0  # this commit section has applied all slots up to this number
        self._read = looked
        self.has_place = looked is not None
        self._head = 0
        self._left = _WAITS_MAX

    @property
    def overlaps(self) -> bool:
        """Return whether the own slot and the previous commit's file overlap (PUB-3)."""
        return self._begun is not None and is_object_store_protocol(self.context)

    @property
    def has_read(self) -> bool:
        """Return whether the table was read together with a lost slot."""
        return self._read is not None

    def read_before(self) -> TimelineState | None:
        """Return the table state that was read that way; later calls return None."""
        looked, self._read = self._read, None
        return looked

    def read_ahead(self, lease: Lease | None) -> None:
        """Read the table during a request for a slot that may well be lost."""
        if self.context.chain.is_busy:
            self._read_without_queue(lease)

    def read_on(self, lease: Lease | None, slot: Slot) -> None:
        """Read the table after a lost slot, unless it was read during that request."""
        if self._read is None or self._read[0] < slot.number:
            self._read = None
            self._read_without_queue(lease)

    def _read_without_queue(self, lease: Lease | None) -> None:
        """Read now on a high-latency store, unless an exclusive lock makes lost slots rare."""
        if not is_exclusive(lease) and self.context.world.storage.capabilities.far:
            with suppress(HoodooError):  # the next refresh raises it
                self._read = self._read_at_once()

    def stand(self) -> bool:
        """
        Wait for the writers ahead before requesting a lock that keeps no order.

        These are the writers ahead on the last refresh except the last one: while that one holds
        the lock, this writer requests it. So it does not wait for a single writer, which may write
        for long. Returns whether the lock is still wanted. A commit of a writer ahead may reject
        the write; then a refresh without the lock decides. The lock is given up at most once.
        """
        timeline = self.context.timelines.last
        if self._begun is None or timeline is None:
            return True
        others = _writes_ahead_count(timeline, self._begun) - 1
        self._until(
            self.context.looked.head + others,
            still_max=_STILL_MAX_LOCKED,
            looks=False,
            ends=lambda: not self.is_hopeful(),
        )
        if self.is_hopeful():
            return True
        self.give_up()
        return False

    def is_hopeful(self) -> bool:
        """Return whether no known slot rejects the write, or a refresh has already said so."""
        return self._gave_up or not self._is_met()

    def goes_on(self) -> bool:
        """Return whether the lock was given up and must be waited for after all."""
        gave_up, self.has_given_up = self.has_given_up, False
        return gave_up

    def give_up(self) -> None:
        """Make the next refresh without the lock, to find what rejects the write."""
        self._gave_up = self.has_given_up = True

    def waits(self, head: int, timeline: ActiveTimeline, slot: Slot) -> bool:
        """Wait for the writers ahead; return whether the caller must refresh."""
        far = self.context.world.storage.capabilities.far
        if self.has_place or self.has_given_up or not (far and self.context.chain.is_busy):
            return False
        front = _writes_ahead_count(timeline, slot.requested_time)
        if front > _BESIDE and self._left and head != self._head:
            self._left -= 1
            self._head = head
            self._until(head + front - _BESIDE)
            return True
        self.context.world.clock.sleep_ms(_STEP_MS * min(front, _STEPS_MAX))
        return False

    def _until(
        self,
        head: int,
        *,
        still_max: int = _STILL_MAX,
        looks: bool = True,
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Read the log until ``head``, a pause in new slots, or ``ends``.

        With ``looks`` the last read is a whole refresh.
        """
        chain, clock = self.context.chain, self.context.world.clock
        still = 0
        while still < still_max and (before := chain.known_head) < head and not ends():
            others = head - before - 1  # at most one slot appears in a round trip
            clock.sleep_ms(_STEP_MS + min(others * self.context.looked.took_ms, _KEEP_UP_MS))
            if looks and not others:
                self._read = self._read_at_once()
            else:
                chain.head()
            still = 0 if chain.known_head > before else still + 1

    def _read_at_once(self) -> TimelineState:
        return refresh_in_line(self.context, asks_config=self.asks_config)


def refresh_in_line(context: TableContext, *, asks_config: bool = True) -> TimelineState:
    """
    Read commit log and timeline, at the same time where only our own slots decide.

    A listing older than the newest slots lacks only their files, as long as these slots are commits
    of writes that the listing shows. Other slots may have deleted files; then the timeline is
    listed again, after the head is known.

    Outside: commit log probes, 1 list and, with ``asks_config``, 1 get, all at the same time.
    """
    if not is_object_store_protocol(context):
        return read_table(context, asks_config=asks_config, until_still=False)
    config = cache(partial(load_config, context.world.storage))
    known = context.chain.known_head
    head, timeline, asked = context.look_at_once(config if asks_config else None)
    try:
        # The last two known slots may not have been applied when the listing began.
        came = (*newest_slots(context, known), *context.chain.between(known, head))
    except MissingFileError:  # truncated since: the known slots are too old to be of use
        return head, context.active(), asked or config
    if not all(may_overlap(slot) and has_instant_file(slot, timeline) for slot in came):
        return head, context.active(), asked or config
    before = [slot for slot in came if slot.number < head - 1]  # applied by now (PUB-3)
    names = [slot.file_name for slot in before if not is_applied(slot, timeline, context.history)]
    return head, timeline.with_names(filter(None, names)), asked or config


def _writes_ahead_count(timeline: ActiveTimeline, begun: InstantTime) -> int:
    """Return how many pending writes began before this one, but not long before."""
    since = instant_time(WallMs(wall_ms(begun) - _LINE_MS))
    return sum(
        one.state is State.INFLIGHT and since < one.requested_time < begun
        for one in timeline.pending
    )


# ---- Keep the commit lock for a whole attempt, so that a write which lost often cannot lose again


def is_commit_lock_kept(context: TableContext) -> bool:
    """Return whether the commit lock is kept for a retry, so that no other writer commits first."""
    lock = context.world.lock
    return isinstance(lock, _KeptLock) and not lock.given_back


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
    world = context.world
    with acquire_exclusively(context, purpose) as lease:
        world.events.emit("write.queued", purpose=purpose)
        held = _KeptLock(world.lock, lease)

        def give_back() -> None:
            if not held.turns and not held.given_back:
                held.give_back()
                world.events.emit("write.queue_given_back", purpose=purpose, held_ms=ms_max)

        beat = world.executor.every(ms_max, give_back) if ms_max else None
        try:
            yield replace(context, world=replace(world, lock=held))
        finally:
            if beat is not None:
                beat.stop()


@dataclass(slots=True)
class _KeptLock:
    """A lock whose holder requests it again."""

    inner: Lock
    lease: Lease
    turns: list[object] = field(default_factory=list)  # borrowed leases in use
    given_back: bool = False

    @property
    def provider(self) -> str:
        """Return the lock's own value."""
        return self.inner.provider

    @property
    def identity(self) -> str:
        """Return the lock's own value."""
        return self.inner.identity

    @property
    def in_order(self) -> bool:
        """Return True: no other process is ahead of the holder."""
        return True

    @property
    def shares(self) -> bool:
        """Return False: the holder has the lock alone."""
        return False

    def give_back(self) -> None:
        """Release the lock; later requests go to the lock itself."""
        self.given_back = True
        self.lease.release()

    def acquire(self, purpose: str) -> Lease:
        """Return a borrowed lease; a new lease of the lock itself if the held one is lost."""
        borrowed = _BorrowedLease(self)
        # Noted first: if the lease is given back now, the commit section notices it by itself.
        self.turns.append(borrowed)
        try:
            self.lease.assert_held()
        except LeaseLostError:
            self.turns.remove(borrowed)
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

    @property
    def fencing_token(self) -> int | None:
        """Return the lease's own value."""
        return self.held.lease.fencing_token

    @property
    def owner(self) -> str:
        """Return the lease's own value."""
        return self.held.lease.owner

    @property
    def is_shared(self) -> bool:
        """Return the lease's own value."""
        return self.held.lease.is_shared

    def remaining_ms(self) -> int | None:
        """Return the lease's own value."""
        return self.held.lease.remaining_ms()

    def has_room(self) -> bool:
        """Return the lease's own value."""
        return self.held.lease.has_room()

    def assert_held(self) -> None:
        """Raise as the lease itself does."""
        self.held.lease.assert_held()

    def release(self) -> None:
        """Give the lock back: the retry has its slot, so other writers need not wait (PAR-1)."""
        self.held.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the commit section only; ``keep_commit_lock`` releases the lease."""
        if self in self.held.turns:
            self.held.turns.remove(self)
