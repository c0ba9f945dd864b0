"""The doctor detects a faulty lock, and names the required change."""

from __future__ import annotations

import pytest

from lockproviders.doctor import examine
from lockproviders.inprocess import InProcessClient, ProcessLocks
from lockproviders.sql.client import SqlClient, SqlSettings
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import LeaseLostError, StorageUnavailableError, UnsafeSetupError


class LeasedHolding:
    """A holding of a lock whose leases end by the test's clock."""

    def __init__(self, lock: LeasedLock, token: int) -> None:
        self._lock = lock
        self.fencing_token: int | None = token

    def expires_in_ms(self) -> int | None:
        return self._lock.ends_ms - self._lock.clock.time_ms

    def renew(self) -> None:
        if self._lock.renews_old or self.is_held():
            return
        raise LeaseLostError("not ours")

    def is_held(self) -> bool:
        return self._lock.says_held or self._lock.current is self

    def release(self) -> None:
        if self._lock.current is self or self._lock.frees_anybodys:
            self._lock.current = None


class LeasedLock:
    """One lock for any number of clients, with a switch for each fault."""

    def __init__(self, clock, *, lease_ms: int = 3_000) -> None:
        self.clock = clock
        self.lease_ms = lease_ms
        self.current: LeasedHolding | None = None
        self.token = 0
        self.ends_ms = 0
        self.never_ends = False
        self.ends_early_ms = 0
        self.renews_old = False
        self.says_held = False
        self.frees_anybodys = False
        self.tokens_stand_still = False
        self.skew_ms = 0
        self.trouble: Exception | None = None

    def client(self) -> LeasedClient:
        return LeasedClient(self)

    def take(self) -> LeasedHolding | None:
        if self.trouble is not None:
            raise self.trouble
        ended = not self.never_ends and self.clock.time_ms >= self.ends_ms - self.ends_early_ms
        if self.current is not None and not ended:
            return None
        self.token += 0 if self.tokens_stand_still else 1
        self.ends_ms = self.clock.time_ms + self.lease_ms
        self.current = LeasedHolding(self, self.token)
        return self.current


class LeasedClient:
    identity = "leased:t"
    margin_ms = 100

    def __init__(self, lock: LeasedLock) -> None:
        self._lock = lock

    def try_acquire(self, owner_text: str) -> LeasedHolding | None:
        return self._lock.take()

    def holder(self) -> str | None:
        if self._lock.trouble is not None:
            raise self._lock.trouble
        return None if self._lock.current is None else '{"owner":"here/41/w1"}'

    def server_now_ms(self) -> int:
        return self._lock.clock.now_ms() + self._lock.skew_ms

    def close(self) -> None:
        pass


def examined(machine, lock: LeasedLock, *, expire_ms_max: int = 10_000):
    holder, rival = (machine.lock(lock.client(), deadline_ms=100) for _ in range(2))
    return examine(holder, rival, clock=machine.clock, ids=machine.ids, expire_ms_max=expire_ms_max)


def test_healthy_lock_passes_every_check(machine) -> None:
    document = examined(machine, LeasedLock(machine.clock)).as_document()
    assert (document["provider"], document["ok"]) == ("plain", True)
    assert [(check["name"], check["message"]) for check in document["checks"]] == [
        ("reach", "leased:t is free"),
        ("acquire", "acquired by here/41/w1"),
        ("contend", "a second acquire was rejected, holder here/41/w1"),
        ("release", "released, and acquired by the next"),
        ("fence", "an old holding is rejected; tokens 3 then 4"),
        ("expire", "taken over after 3000 ms of a lease of 3000 ms"),
        ("clock", "the lock's server agrees"),
    ]
    assert document["checks"][2]["seconds"] == 0.1
    assert not any(check["skipped"] or check["advice"] for check in document["checks"])


@pytest.mark.parametrize(
    ("switch", "value", "failed", "message"),
    [
        ("never_ends", True, "expire", "a holder without renewals still holds"),
        (
            "ends_early_ms",
            2_000,
            "expire",
            "another holder acquired the lock after 1000 ms, before the end",
        ),
        ("renews_old", True, "fence", "an ended holding was renewed"),
        ("says_held", True, "fence", "reports that it is still held"),
        ("frees_anybodys", True, "fence", "the late release of an old holding released"),
        ("tokens_stand_still", True, "fence", "fencing tokens must grow: 0 then 0"),
        ("skew_ms", 5_000, "clock", "the lock's server is 5000 ms ahead"),
        ("skew_ms", -5_000, "clock", "the lock's server is 5000 ms behind"),
    ],
)
def test_each_fault_is_named_by_its_check(machine, switch, value, failed, message) -> None:
    lock = LeasedLock(machine.clock)
    setattr(lock, switch, value)
    wrong = [check for check in examined(machine, lock).checks if not check.ok]
    assert failed in [check.name for check in wrong]
    found = next(check for check in wrong if check.name == failed)
    assert message in found.message
    assert found.advice


def test_a_lock_that_excludes_no_client_is_detected(machine) -> None:
    holder, rival = (
        machine.lock(InProcessClient("t", host="here", locks=ProcessLocks())) for _ in range(2)
    )
    examination = examine(holder, rival, clock=machine.clock)
    assert not examination.ok
    contend = next(check for check in examination.checks if check.name == "contend")
    assert (contend.ok, contend.message[:32]) == (False, "the lock has two holders at once")
    assert "name the same server" in contend.advice


def test_a_second_client_without_an_answer_proves_no_exclusion(machine) -> None:
    lock = LeasedLock(machine.clock)
    taken = lock.take

    def unavailable_while_held() -> LeasedHolding | None:
        if lock.current is not None:
            raise StorageUnavailableError("too many connections")
        return taken()

    lock.take = unavailable_while_held  # type: ignore[method-assign]
    contend = examined(machine, lock).checks[2]
    assert (contend.name, contend.ok) == ("contend", False)
    assert "nothing is proven" in contend.message
    assert "too many connections" in contend.message


def test_a_client_without_access_gets_no_advice_about_a_holder(machine) -> None:
    lock = LeasedLock(machine.clock)

    def denied() -> None:
        raise UnsafeSetupError("permission denied")

    lock.take = denied
    acquire = examined(machine, lock).checks[1]
    assert (acquire.name, acquire.ok, acquire.message) == ("acquire", False, "permission denied")
    assert "this user's access" in acquire.advice
    assert "holder" not in acquire.advice


def test_lock_that_is_held_is_waited_for(machine) -> None:
    lock = LeasedLock(machine.clock, lease_ms=10_000_000)
    lock.take()
    acquire = examined(machine, lock).checks[1]
    assert (acquire.name, acquire.ok) == ("acquire", False)
    assert "wait for the holder" in acquire.advice


def test_lock_that_cannot_be_reached_ends_the_examination(machine) -> None:
    lock = LeasedLock(machine.clock)
    lock.trouble = StorageUnavailableError("the server does not answer")
    (reach,) = examined(machine, lock).checks
    assert (reach.name, reach.ok, reach.message) == ("reach", False, "the server does not answer")
    assert "start the server" in reach.advice


def test_a_lock_that_cannot_be_acquired_is_not_examined_further(machine) -> None:
    lock = LeasedLock(machine.clock)
    lock.never_ends = True
    lock.take()
    checks = examined(machine, lock).checks
    assert [(check.name, check.ok) for check in checks] == [
        ("reach", True),
        ("acquire", False),
        ("clock", True),
    ]


def test_long_lease_is_not_waited_out(machine) -> None:
    lock = LeasedLock(machine.clock, lease_ms=60_000)
    expire = examined(machine, lock).checks[5]
    assert (expire.name, expire.ok, expire.skipped) == ("expire", True, True)
    assert "--expire-within 60" in expire.message


def test_a_lock_without_lease_and_clock_skips_these_checks(machine) -> None:
    locks = ProcessLocks()
    holder, rival = (
        machine.lock(InProcessClient("t", host="here", locks=locks), deadline_ms=100)
        for _ in range(2)
    )
    examination = examine(holder, rival, clock=machine.clock, expire_ms_max=10_000)
    assert examination.ok
    assert [check.name for check in examination.checks if check.skipped] == ["expire", "clock"]


def test_no_lock_stays_held(machine) -> None:
    lock = LeasedLock(machine.clock)
    examined(machine, lock)
    assert lock.current is None


def test_clock_of_a_shared_storage_is_compared(machine) -> None:
    locks = ProcessLocks()
    holder, rival = (
        machine.lock(InProcessClient("t", host="here", locks=locks), deadline_ms=100)
        for _ in range(2)
    )
    storage = MemoryStorage()
    examination = examine(holder, rival, clock=machine.clock, storage=storage)
    clock = examination.checks[-1]
    assert clock.name == "clock"
    assert "the storage" in clock.message


def test_sql_lock_is_healthy_and_its_lease_ends(machine, tmp_path) -> None:
    settings = SqlSettings(url=str(tmp_path / "l.db"), create_table=True, lease_ms=60_000)

    def client() -> SqlClient:
        database = settings.database(machine.ids)
        return SqlClient(database, "t", settings=settings, clock=machine.clock, ids=machine.ids)

    holder, rival = (machine.lock(client(), deadline_ms=100) for _ in range(2))
    examination = examine(holder, rival, clock=machine.clock)
    failed = [check.name for check in examination.checks if not check.ok]
    assert failed == ["clock"], "the test's clock is in another year"
