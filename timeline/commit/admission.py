"""
The place of a turn in the queue, and what far away is read while it is waited for (PAR-1).

The lock spares work and decides nothing (SLOT-1), so a look at the table need not come after it:
one that is a moment too old costs a slot at worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import TracebackType
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

#: The head of the chain, the timeline listed after it, and how the table's properties are got.
TimelineState: TypeAlias = tuple[int, ActiveTimeline, Callable[[], TableConfig]]
TableState: TypeAlias = tuple[Lease | None, TimelineState | None]

_WITHOUT_LOCK_FIRST = 2  # PublishLock.AUTO takes the queue after two lost slots
_BESIDE = 2  # so many in front are not waited for: a lost slot tells at once that it is taken
_LINE_MS = 10_000  # who began longer ago is dead, or writes for long
_STEP_MS = 5  # later for each in front
_STEPS_MAX = 6
_WAITS_MAX = 16  # in a turn: who is in front may write for long
_STILL_MAX = 4  # reads without a new slot after which nobody is waited for
_STILL_MAX_LOCKED = 8  # as well, where each slot takes its owner's way to the lock, too
_KEEP_UP_MS = 100  # far away, between two looks at the chain of one that waits in the queue


def read_table(
    context: TableContext, *, asks_config: bool, until_still: bool = True
) -> TimelineState:
    """
    Chain, then timeline; beside them the properties, when they will be asked for.

    Without the queue nobody waits ``until_still``: others go on publishing meanwhile.

    Outside: as ``TableContext.look_with``; 1 get the first time the properties are asked for else.
    """
    config = cache(partial(load_config, context.world.storage))
    if asks_config:
        return context.look_with(config, until_still=until_still)
    return *context.look(), config


def waits_for_others(context: TableContext) -> bool:
    """Whether a publication waits for others before its own look, as far as is known."""
    return context.limits.publish_lock is CommitLockMode.LOCK and not is_lock_shared(context)


def is_lock_shared(context: TableContext) -> bool:
    """Whether writers of ours have the lock together, far away, where it is long in use (LOCK-1)."""
    return is_object_store_protocol(context) and context.world.lock.shares


def is_object_store_protocol(context: TableContext) -> bool:
    """Nothing but slots decides, and a look costs a way there and back."""
    foreign = context.limits.foreign_writers is ForeignWriters.EXPECTED
    return context.world.storage.capabilities.far and not foreign


def acquire_commit_lock(
    line: WaitingLine, purpose: str, lost: int
) -> AbstractContextManager[TableState]:
    """
    The lock, where one is taken, and what was read of the table along with it.

    Without it, though the settings ask for it, only who met something while it stood in line.

    Args:
        line: Of this turn.
        purpose: Told to those who wait.
        lost: How many slots this turn has lost.

    Raises:
        LockTimeoutError: It was not free in time.
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
    The lock, had alone; of a storage far away the chain is known by then.

    What others publish is read while they are waited for: read in the turn it would keep the
    whole queue for a round or more for each doubling of what there is.

    Raises:
        LockTimeoutError: It was not free in time.
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
    The lock, and a look that was under way together with it, or was read before.

    Hardly anybody is in front where nobody publishes. Who has to wait all the same looks again,
    without the lock where it learns meanwhile that it is refused. Who may have it together with
    others hardly ever waits, and looks as without it.
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
        else:  # what came while it was asked for refuses the write: nobody waits for the look
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
            # Who had it alone before may have changed the properties since a place had come.
            before_it = line.has_place and not had[0].is_shared
            yield lease, looked if fresh and not before_it else None


@contextmanager
def _while_waiting(context: TableContext) -> Iterator[Callable[[], None]]:
    """
    Read the chain now and then, until what is yielded is called.

    A read that is under way then goes on beside the turn: all others wait for who has the lock.
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
    Far away, where nothing else keeps an order, who began first publishes first.

    Without a lock all who lose a slot learn of it at once, and would send the next one at once:
    one of them wins, and who loses again and again is a matter of luck. So it is of those who ask
    for a lock now and then. The timeline shows who else is about to publish, and since when;
    nobody is waited for who does not publish (HB-4).

    Args:
        context: The table.
        asks_config: Whether the turn will ask for the table's properties.
        begun: The write that is to be published; upkeep has no place in the line.
        is_met: Whether what is known of the chain refuses it, so that nothing is worth a wait.
        looked: What was read when its place had come (``place``): nobody is in front any more.
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
        self._gave_up = False  # once in this turn
        self.has_given_up = False  # to wait for the lock: the look under way is to tell why
        self.settled = 0  # this turn settled all slots up to it
        self._read = looked
        self.has_place = looked is not None
        self._head = 0
        self._left = _WAITS_MAX

    @property
    def overlaps(self) -> bool:
        """Whether the file of the commit before is made beside the own slot (PUB-3)."""
        return self._begun is not None and is_object_store_protocol(self.context)

    @property
    def has_read(self) -> bool:
        """Whether the table was read along with a slot that was lost."""
        return self._read is not None

    def read_before(self) -> TimelineState | None:
        """What was read so, once."""
        looked, self._read = self._read, None
        return looked

    def read_ahead(self, lease: Lease | None) -> None:
        """Beside a slot that may well be lost: read what its loser will have to look at."""
        if self.context.chain.is_busy:
            self._read_without_queue(lease)

    def read_on(self, lease: Lease | None, slot: Slot) -> None:
        """A slot was lost; read all along with it, unless that was read beside it."""
        if self._read is None or self._read[0] < slot.number:
            self._read = None
            self._read_without_queue(lease)

    def _read_without_queue(self, lease: Lease | None) -> None:
        """Far away; in the queue hardly any slot is lost, and a near look costs no more later."""
        if not is_exclusive(lease) and self.context.world.storage.capabilities.far:
            with suppress(HoodooError):  # met by the next look, and no answer to this request
                self._read = self._read_at_once()

    def stand(self) -> bool:
        """
        Before a lock is asked for that keeps no order: wait for all who are in front.

        They are those of the last look, but for the last of them: while one has the lock the next
        one asks for it. Nobody waits for a single one, who may write for long. Returns whether the
        lock is still wanted: what one in front published may refuse the write, and a look without
        the lock tells so. That look has the last word: the lock is given up once.
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
        """Whether nothing that is known of the chain refuses the write, or a look said so before."""
        return self._gave_up or not self._is_met()

    def goes_on(self) -> bool:
        """Whether the lock was given up, and has to be waited for after all."""
        gave_up, self.has_given_up = self.has_given_up, False
        return gave_up

    def give_up(self) -> None:
        """The next look is made without the lock, to tell what refuses the write."""
        self._gave_up = self.has_given_up = True

    def waits(self, head: int, timeline: ActiveTimeline, slot: Slot) -> bool:
        """Whether others are in front, and another look is due, for which it has waited then."""
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
        """Read the chain until it has come so far, stands still or ``ends``; at last with a look."""
        chain, clock = self.context.chain, self.context.world.clock
        still = 0
        while still < still_max and (before := chain.known_head) < head and not ends():
            others = head - before - 1  # a slot comes in a round at the most
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
    Chain and timeline, side by side where only our own slots decide.

    A listing that is older than the newest slots lacks their files alone, as long as they
    are commits of writes that it shows; what else came may have taken files away. Then it is
    listed again, now that the head is known.

    Outside: chain probes, 1 list and, where it ``asks_config``, 1 get at once.
    """
    if not is_object_store_protocol(context):
        return read_table(context, asks_config=asks_config, until_still=False)
    config = cache(partial(load_config, context.world.storage))
    known = context.chain.known_head
    head, timeline, asked = context.look_at_once(config if asks_config else None)
    try:
        # The last two known before need not have been settled when the listing began.
        came = (*newest_slots(context, known), *context.chain.between(known, head))
    except MissingFileError:  # collected since: what was known is too old to tell anything
        return head, context.active(), asked or config
    if not all(may_overlap(slot) and has_instant_file(slot, timeline) for slot in came):
        return head, context.active(), asked or config
    before = [slot for slot in came if slot.number < head - 1]  # settled by now (PUB-3)
    names = [slot.file_name for slot in before if not is_applied(slot, timeline, context.history)]
    return head, timeline.with_names(filter(None, names)), asked or config


def _writes_ahead_count(timeline: ActiveTimeline, begun: InstantTime) -> int:
    """How many began to write before this one, and not long before."""
    since = instant_time(WallMs(wall_ms(begun) - _LINE_MS))
    return sum(
        one.state is State.INFLIGHT and since < one.requested_time < begun
        for one in timeline.pending
    )


# ----------------------- The queue held for a whole redo: whoever lost too often cannot lose again
#
# Nobody else publishes while the table's lock is held, so a write that begins, writes and
# publishes under it meets nothing new. Others wait as long as that lasts. So a write holds it when
# its last attempt was short, and gives it back when this one is not (``hoodoo.retry.queue.short.ms``);
# to the end it holds it only where the user says so (``hoodoo.retry.queue.after``).


def is_commit_lock_kept(context: TableContext) -> bool:
    """Whether the queue is held for a redo, so that nobody comes before its turn."""
    lock = context.world.lock
    return isinstance(lock, _KeptLock) and not lock.given_back


@contextmanager
def keep_commit_lock(
    context: TableContext, purpose: str, *, ms_max: int = 0
) -> Iterator[TableContext]:
    """
    The table with its lock held; what asks for the lock in there has it already.

    A lease that is lost or given back meanwhile costs the privilege, never data: the lock is then
    asked for as usual, and the commit slots decide (SLOT-1).

    Args:
        context: The table.
        purpose: Shown to those who wait.
        ms_max: After that long it is given back, unless a turn is being taken then; 0 for never.

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
    """A lock whose holder asks again."""

    inner: Lock
    lease: Lease
    turns: list[object] = field(default_factory=list)  # that are being taken with the lease
    given_back: bool = False

    @property
    def provider(self) -> str:
        """As the lock's own."""
        return self.inner.provider

    @property
    def identity(self) -> str:
        """As the lock's own."""
        return self.inner.identity

    @property
    def in_order(self) -> bool:
        """Nobody is in front of its holder."""
        return True

    @property
    def shares(self) -> bool:
        """Its holder has it alone."""
        return False

    def give_back(self) -> None:
        """Whoever asks from now on asks for the lock itself."""
        self.given_back = True
        self.lease.release()

    def acquire(self, purpose: str) -> Lease:
        """The lease that is held, which its holder gives back; a new one when it was lost."""
        borrowed = _BorrowedLease(self)
        # Noted first: should it be given back in this moment, the turn finds out by itself.
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
        """As ``acquire``: it is had already, or nobody else is in the way of a redo for long."""
        return self.acquire(purpose)

    def close(self) -> None:
        """Nothing: the lock is its owner's."""


@dataclass(frozen=True, slots=True, eq=False)
class _BorrowedLease:
    """A lease for a turn; who took it gives it back, or the turn that has its slot."""

    held: _KeptLock

    @property
    def fencing_token(self) -> int | None:
        """As the lease's own."""
        return self.held.lease.fencing_token

    @property
    def owner(self) -> str:
        """As the lease's own."""
        return self.held.lease.owner

    @property
    def is_shared(self) -> bool:
        """As the lease's own."""
        return self.held.lease.is_shared

    def remaining_ms(self) -> int | None:
        """As the lease's own."""
        return self.held.lease.remaining_ms()

    def has_room(self) -> bool:
        """As the lease's own."""
        return self.held.lease.has_room()

    def assert_held(self) -> None:
        """As the lease's own."""
        self.held.lease.assert_held()

    def release(self) -> None:
        """The redo has its slot: those who wait need not wait for what is left of it (PAR-1)."""
        self.held.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Only the turn is over: whoever took the lease gives it back."""
        if self in self.held.turns:
            self.held.turns.remove(self)
