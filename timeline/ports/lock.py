"""
The lock port: who may publish now.

The lock only shortens the queue in front of the commit slots (SLOT-1 decides), except
where foreign writers share the table: they know nothing but the lock (FOR-1).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Lease", "Lock", "LockSharing", "is_exclusive"]


class LockSharing(Enum):
    """Whether a lock may be had together with others who decide by slots as well (LOCK-1)."""

    NO = "no"
    JOIN = "join"  # with those who have it together
    START = "start"  # with others as well where it is free, since they are about to want it


class Lease(Protocol):
    """One holding of the lock; use it in a ``with`` block. Bound to its process (F26)."""

    @property
    def fencing_token(self) -> int | None:
        """A number that grows with every holding, where the provider has one."""

    @property
    def owner(self) -> str:
        """Who holds it: host, pid and writer id."""

    @property
    def is_shared(self) -> bool:
        """Whether others have it at the same time, who decide by slots as well (LOCK-1)."""

    def remaining_ms(self) -> int | None:
        """Time until the lease must be treated as lost, None when it has no end."""

    def has_room(self) -> bool:
        """Whether enough of it is left for one more request that nothing takes back (FOR-8)."""

    def assert_held(self) -> None:
        """Raises: ``LeaseLostError`` when the lease ended, was lost or was inherited by a fork."""

    def release(self) -> None:
        """Give it back; only the own holding is ever removed. Twice is no error."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Lock(Protocol):
    """A configured lock of one table: provider, identity and waiting budget together."""

    @property
    def provider(self) -> str:
        """Name of the provider, for example ``filesystem``."""

    @property
    def identity(self) -> str:
        """What is locked, comparable between writers (REG-1)."""

    @property
    def in_order(self) -> bool:
        """Whether those who wait get it in the order in which they asked."""

    @property
    def shares(self) -> bool:
        """Whether those who may share it would have it together now, as far as known."""

    def acquire(self, purpose: str) -> Lease:
        """
        Wait for the lock within its budget.

        Args:
            purpose: What it is for (``publish 2026...``), shown to whoever waits.

        Raises:
            LockTimeoutError: The budget ended; names the holder where known.
        """

    def acquire_while(
        self, wanted: Callable[[], bool], purpose: str, sharing: LockSharing = LockSharing.NO
    ) -> Lease | None:
        """
        As ``acquire``, but who does not want it any more leaves the queue with None.

        Args:
            wanted: Asked now and then while the lock is another's; asks nothing of the outside.
            purpose: As of ``acquire``.
            sharing: Whether it may be had together with others.
        """

    def close(self) -> None:
        """Give up connections and threads; a held lease is released."""


def is_exclusive(lease: Lease | None) -> bool:
    """Whether nobody else publishes while this is held."""
    return lease is not None and not lease.is_shared
