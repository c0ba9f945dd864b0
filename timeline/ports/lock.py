"""
The lock port: the right to commit now.

Among hoodoo writers the lock only saves work, because the slot decides (SLOT-1). If foreign writers
share the table, the lock decides: they know nothing else (FOR-1).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol, Self

__all__ = ["Lease", "Lock", "LockSharing", "is_exclusive"]


class LockSharing(Enum):
    """Whether other writers that decide by slots may hold the lock at the same time (LOCK-1)."""

    NO = "no"
    JOIN = "join"  # join the writers that share it
    START = "start"  # make a free lock a shared one, since others will soon want it, too


class Lease(Protocol):
    """One holding of the lock; use it in a ``with`` block. Bound to its process (F26)."""

    @property
    def fencing_token(self) -> int | None:
        """A number that grows with every holding, if the provider has one."""

    @property
    def owner(self) -> str:
        """The holder: host, pid and writer id."""

    @property
    def is_shared(self) -> bool:
        """Whether other writers that decide by slots hold it at the same time (LOCK-1)."""

    def remaining_ms(self) -> int | None:
        """Return the time until the lease counts as lost, or None if it has no end."""

    def has_room(self) -> bool:
        """Return whether enough time is left for one more request that cannot be undone (FOR-8)."""

    def assert_held(self) -> None:
        """Raise ``LeaseLostError`` if the lease ended, was lost or was inherited by a fork."""

    def release(self) -> None:
        """Release the own holding, and only that; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Lock(Protocol):
    """A configured lock of one table: provider, identity and waiting budget together."""

    @property
    def provider(self) -> str:
        """Name of the provider, for example ``filesystem``."""

    @property
    def identity(self) -> str:
        """Name of the locked thing, comparable between writers (REG-1)."""

    @property
    def in_order(self) -> bool:
        """Whether waiting writers get it in the order of their requests."""

    @property
    def shares(self) -> bool:
        """Whether the lock is in shared use now, as far as known without a request."""

    def acquire(self, purpose: str) -> Lease:
        """
        Wait for the lock within its budget.

        Args:
            purpose: Why the caller needs the lock (``publish 2026...``); waiting writers see it.

        Raises:
            LockTimeoutError: The budget ended; the error names the holder if known.
        """

    def acquire_while(
        self, wanted: Callable[[], bool], purpose: str, sharing: LockSharing = LockSharing.NO
    ) -> Lease | None:
        """
        Wait like ``acquire``, but return None when ``wanted()`` becomes false.

        Args:
            wanted: Called now and then while another writer holds the lock; sends no request.
            purpose: As of ``acquire``.
            sharing: Whether other writers may hold it at the same time.
        """

    def close(self) -> None:
        """Close connections and threads and release a held lease."""


def is_exclusive(lease: Lease | None) -> bool:
    """Return whether no other writer can commit while this is held."""
    return lease is not None and not lease.is_shared
