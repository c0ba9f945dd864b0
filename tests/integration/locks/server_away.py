"""A lock server that does not answer for longer than a lease, whichever it is."""

from __future__ import annotations

from typing import Protocol

import pytest

from lockproviders.client import LockClient
from lockproviders.testing.contender import build_lock_over
from timeline.errors import LeaseLostError, UnavailableError
from timeline.system import SystemClock


class Freezing(Protocol):
    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


def server_away_costs_the_lock(
    holding: LockClient, waiting: LockClient, server: Freezing, *, lease_ms: int
) -> None:
    """The holder knows that its lease is lost before anybody else can have the lock."""
    lock = build_lock_over(holding)
    lease = lock.acquire("publish")
    assert waiting.try_acquire("waiter") is None
    server.freeze()
    try:
        SystemClock().sleep_ms(lease_ms)
        with pytest.raises(LeaseLostError):
            lease.assert_held()
        with pytest.raises(UnavailableError):
            waiting.try_acquire("waiter")
    finally:
        server.thaw()
    with build_lock_over(waiting).acquire("waiter") as heir:
        lease.release()  # late requests of the lost holder must do no harm
        heir.assert_held()
    lock.close()
    waiting.close()
