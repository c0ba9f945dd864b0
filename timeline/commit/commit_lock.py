"""
Acquire the commit lock, or keep it for a whole attempt.

The lock saves work and decides nothing among hoodoo writers (SLOT-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

from timeline.context import TableContext
from timeline.errors import LeaseLostError
from timeline.ports.lock import Lease, Lock, LockSharing

__all__ = [
    "acquire_exclusively",
    "assert_lease",
    "follow_commit_log",
    "has_lease",
    "is_commit_lock_kept",
    "keep_commit_lock",
]

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
    if not context.world.storage.capabilities.far:
        with context.world.lock.acquire(purpose) as lease:
            yield lease
        return
    with follow_commit_log(context) as ended:
        lease = context.world.lock.acquire(purpose)
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
            context.chain.head()

    def end() -> None:
        nonlocal waiting
        waiting = False

    beat = context.world.executor.every(_KEEP_UP_MS, keep_up)
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
        held = _KeptLock(world.lock, lease, world.lock.provider, world.lock.identity)

        def give_back() -> None:
            if not held.sections and not held.given_back:
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
    provider: str
    identity: str
    in_order: bool = True  # no other process is ahead of the holder
    shares: bool = False  # the holder has the lock alone
    sections: list[object] = field(default_factory=list)  # borrowed leases in use
    given_back: bool = False

    def give_back(self) -> None:
        """Release the lock; later requests go to the lock itself."""
        self.given_back = True
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
        if self in self.held.sections:
            self.held.sections.remove(self)
