"""
The queue held for a whole redo: whoever lost too often cannot lose again.

Nobody else publishes while the table's lock is held, so a write that begins, writes and
publishes under it meets nothing new. Others wait as long as that lasts. So a write holds it when
its last attempt was short, and gives it back when this one is not (``hoodoo.retry.queue.short.ms``);
to the end it holds it only where the user says so (``hoodoo.retry.queue.after``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from timeline.context import TableContext
from timeline.errors import LeaseLostError
from timeline.ports.lock import Lease, Lock, Sharing
from timeline.publishing.queue import queue_alone

__all__ = ["holding_the_queue", "is_held"]


def is_held(context: TableContext) -> bool:
    """Whether the queue is held for a redo, so that nobody comes before its turn."""
    lock = context.world.lock
    return isinstance(lock, _HeldLock) and not lock.given_back


@contextmanager
def holding_the_queue(
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
    with queue_alone(context, purpose) as lease:
        world.events.emit("write.queued", purpose=purpose)
        held = _HeldLock(world.lock, lease)

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
class _HeldLock:
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
        borrowed = _Borrowed(self)
        # Noted first: should it be given back in this moment, the turn finds out by itself.
        self.turns.append(borrowed)
        try:
            self.lease.assert_held()
        except LeaseLostError:
            self.turns.remove(borrowed)
            return self.inner.acquire(purpose)
        return borrowed

    def acquire_while(
        self, _wanted: Callable[[], bool], purpose: str, _sharing: Sharing = Sharing.NO
    ) -> Lease | None:
        """As ``acquire``: it is had already, or nobody else is in the way of a redo for long."""
        return self.acquire(purpose)

    def close(self) -> None:
        """Nothing: the lock is its owner's."""


@dataclass(frozen=True, slots=True, eq=False)
class _Borrowed:
    """A lease for a turn; who took it gives it back, or the turn that has its slot."""

    held: _HeldLock

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
