"""A metastore in memory behind the wire protocol; the test chooses its faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockproviders.hivemetastore.database import LockName, MetastoreLockRow
from lockproviders.hivemetastore.thrift_connection import Granted
from timeline.errors import LeaseLostError, UnavailableError


class PlainMetastore:
    """The rows of one lock, granted in order; the wires of several clients share it."""

    def __init__(self) -> None:
        self.rows: list[MetastoreLockRow] = []
        self.next_id = 1
        self.lease = "300s"

    def ask(self, user: str, host: str, agent: str) -> Granted:
        acquired = not self.rows
        row = MetastoreLockRow(
            lock_id=self.next_id, acquired=acquired, user=user, host=host, agent=agent
        )
        self.next_id += 1
        self.rows.append(row)
        return Granted(lock_id=row.lock_id, acquired=acquired)

    def remove(self, lock_id: int) -> None:
        self.rows = [row for row in self.rows if row.lock_id != lock_id]
        if self.rows and not self.rows[0].acquired:
            first = self.rows[0]
            self.rows[0] = MetastoreLockRow(
                lock_id=first.lock_id,
                acquired=True,
                user=first.user,
                host=first.host,
                agent=first.agent,
            )


def nothing() -> None:
    """Let the request succeed."""


def lose() -> None:
    """Lose the answer."""
    raise UnavailableError("no answer")


class PlainWire:
    """One connection; a named request may raise ``before`` or ``after`` it runs."""

    def __init__(self, metastore: PlainMetastore) -> None:
        self.metastore = metastore
        self.is_open = False
        self.requests: list[str] = []
        self.timeouts: list[int] = []
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}

    def connect(self, timeout_ms: int) -> None:
        self._do("connect", lambda: None)
        self.timeouts.append(timeout_ms)
        self.is_open = True

    def limit(self, timeout_ms: int) -> None:
        self.timeouts.append(timeout_ms)

    def drop(self) -> None:
        self.is_open = False

    def lease_text(self) -> str:
        return self.metastore.lease

    def lock(self, name: LockName, host: str, agent: str) -> Granted:
        return self._do("lock", lambda: self.metastore.ask("hoodoo", host, agent))

    def heartbeat(self, lock_id: int) -> None:
        def beat() -> None:
            if lock_id not in [row.lock_id for row in self.metastore.rows]:
                raise LeaseLostError("gone")

        self._do("heartbeat", beat)

    def unlock(self, lock_id: int) -> None:
        self._do("unlock", lambda: self.metastore.remove(lock_id))

    def show(self, name: LockName) -> list[MetastoreLockRow]:
        return self._do("show", lambda: list(self.metastore.rows))

    def _do(self, request: str, work: Callable[[], Any]) -> Any:
        self.requests.append(request)
        try:
            self.before.pop(request, nothing)()
            answer = work()
            self.after.pop(request, nothing)()
        except UnavailableError:
            self.is_open = False
            raise
        return answer
