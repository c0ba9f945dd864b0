"""
The queue held for a whole redo: whoever lost too often cannot lose again.

Nobody else publishes while the table's lock is held, so a write that begins, writes and
publishes under it meets nothing new. Others wait as long as that lasts, which is why a
write asks for it only after several conflicts (``hoodoo.retry.queue.after``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from timeline.context import TableContext
from timeline.errors import LeaseLostError
from timeline.ports.lock import Lease, Lock

__all__ = ["holding_the_queue"]


@contextmanager
def holding_the_queue(context: TableContext, purpose: str) -> Iterator[TableContext]:
    """
    The table with its lock held; what asks for the lock in there has it already.

    A lease that is lost meanwhile costs the privilege, never data: the lock is then asked for
    as usual, and the commit slots decide (SLOT-1).

    Raises:
        LockTimeoutError: The lock was not free in time.
    """
    lock = context.world.lock
    with lock.acquire(purpose) as lease:
        context.world.events.emit("write.queued", purpose=purpose)
        yield replace(context, world=replace(context.world, lock=_HeldLock(lock, lease)))


@dataclass(frozen=True, slots=True)
class _HeldLock:
    """A lock whose holder asks again."""

    inner: Lock
    lease: Lease

    @property
    def provider(self) -> str:
        """As the lock's own."""
        return self.inner.provider

    @property
    def identity(self) -> str:
        """As the lock's own."""
        return self.inner.identity

    def acquire(self, purpose: str) -> Lease:
        """The lease that is held, which its holder gives back; a new one when it was lost."""
        try:
            self.lease.assert_held()
        except LeaseLostError:
            return self.inner.acquire(purpose)
        return _Borrowed(self.lease)

    def close(self) -> None:
        """Nothing: the lock is its owner's."""


@dataclass(frozen=True, slots=True)
class _Borrowed:
    """A lease that somebody else releases."""

    lease: Lease

    @property
    def fencing_token(self) -> int | None:
        """As the lease's own."""
        return self.lease.fencing_token

    @property
    def owner(self) -> str:
        """As the lease's own."""
        return self.lease.owner

    def remaining_ms(self) -> int | None:
        """As the lease's own."""
        return self.lease.remaining_ms()

    def has_room(self) -> bool:
        """As the lease's own."""
        return self.lease.has_room()

    def assert_held(self) -> None:
        """As the lease's own."""
        self.lease.assert_held()

    def release(self) -> None:
        """Nothing: whoever took it gives it back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None
