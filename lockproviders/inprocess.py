"""
The in-process lock: one holder per table among the threads of this process.

It serves the in-memory storage, tests and single-process set-ups. It excludes no other process. Its
identity contains host and pid, so two processes that both configure it disagree in the writer
registry (REG-1, hole 14) instead of trusting it.

The locks of a process are one object, so that two clients of one table use the same lock. The
default object is the module's ``_THIS_PROCESS``: the adapter needs exactly one per process, as the
kernel's lock table is one per host. Simulated processes pass their own. References to cells are
weak: a table without a client takes no memory. A forked child starts with empty cells, since a
lease is never inherited (F26).
"""

from __future__ import annotations

import os
import threading
import weakref

from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry


class _Cell:
    """The state of one lock; weak, so that an interrupted acquire cannot block it for ever."""

    __slots__ = ("__weakref__", "holding")

    def __init__(self) -> None:
        self.holding: weakref.ref[InProcessHolding] | None = None


class ProcessLocks:
    """All in-process locks of one process."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._cells: weakref.WeakValueDictionary[str, _Cell] = weakref.WeakValueDictionary()
        self._token = 0

    def _in_this_process(self) -> None:
        # A thread that does not exist in the child may have held the guard.
        if os.getpid() != self._process:
            self._start()

    def cell(self, identity: str) -> _Cell:
        """Return the cell of a lock; create it if new."""
        self._in_this_process()
        with self._guard:
            return self._cells.setdefault(identity, _Cell())

    def take(self, cell: _Cell, owner_text: str) -> InProcessHolding | None:
        """Put a new holding into a free cell."""
        self._in_this_process()
        with self._guard:
            if self._current(cell) is not None:
                return None
            # One count for all locks: it keeps growing even if a cell was deleted meanwhile.
            self._token += 1
            holding = InProcessHolding(self, cell, owner_text, self._token)
            cell.holding = weakref.ref(holding)
            return holding

    def current(self, cell: _Cell) -> InProcessHolding | None:
        """Return the holding in the cell."""
        self._in_this_process()
        with self._guard:
            return self._current(cell)

    def give_back(self, holding: InProcessHolding) -> None:
        """Empty the cell if exactly this holding is in it."""
        self._in_this_process()
        with self._guard:
            if self._current(holding.cell) is holding:
                holding.cell.holding = None

    @staticmethod
    def _current(cell: _Cell) -> InProcessHolding | None:
        holding = None if cell.holding is None else cell.holding()
        # A holding of the parent does not count here.
        return holding if holding is not None and holding.process == os.getpid() else None


class InProcessHolding:
    """One holding; it ends when it is released or deleted."""

    __slots__ = ("__weakref__", "_locks", "cell", "fencing_token", "owner_text", "process")

    def __init__(self, locks: ProcessLocks, cell: _Cell, owner_text: str, token: int) -> None:
        self._locks = locks
        self.cell = cell
        self.owner_text = owner_text
        self.fencing_token: int | None = token
        self.process = os.getpid()

    def expires_in_ms(self) -> int | None:
        """Return None: it has no end."""
        return None

    def renew(self) -> None:
        """Do nothing: it has no end."""

    def is_held(self) -> bool:
        """Return whether this holding is the one in the cell."""
        return self._locks.current(self.cell) is self

    def release(self) -> None:
        """Empty the cell if it is ours."""
        self._locks.give_back(self)


_THIS_PROCESS = ProcessLocks()


class InProcessClient:
    """
    The client of one table's in-process lock.

    Args:
        table_identity: Canonical identity of the table.
        host: Name of this host, part of the lock's identity.
        locks: The process's locks; the real process's own by default.
    """

    def __init__(
        self, table_identity: str, *, host: str, locks: ProcessLocks = _THIS_PROCESS
    ) -> None:
        self._table_identity = table_identity
        self._host = host
        self._locks = locks
        self._cell = locks.cell(table_identity)  # kept: cells live as long as their clients

    @property
    def identity(self) -> str:
        """Name of the lock; it differs between processes, because the lock does."""
        return f"in_process:{self._host}:{os.getpid()}:{self._table_identity}"

    @property
    def margin_ms(self) -> int:
        """0, since there are no requests."""
        return 0

    def try_acquire(self, owner_text: str) -> InProcessHolding | None:
        """Take the lock if it is free, else return None."""
        # Read again, because a forked child starts with empty cells.
        self._cell = self._locks.cell(self._table_identity)
        return self._locks.take(self._cell, owner_text)

    def holder(self) -> str | None:
        """Return the owner text of the holder in this process."""
        holding = self._locks.current(self._cell)
        return None if holding is None else holding.owner_text

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _client(context: LockContext) -> InProcessClient:
    return InProcessClient(context.table_identity, host=context.ids.identity().host)


ENTRY = LockProviderEntry(
    name="in_process",
    factory=_client,
    capabilities=LockCapabilities(
        between_processes=False,
        between_hosts=False,
        excludes_java=False,
        expires=False,
        fencing_tokens=True,
    ),
    jvm_class_names=("org.apache.hudi.client.transaction.lock.InProcessLockProvider",),
    poll_max_ms=20,  # a poll sends no request, so it is cheap
)
