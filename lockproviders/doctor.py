"""
``locks doctor``: check that the configured lock really excludes, from this process, now.

Two locks of one table act as holder and rival. They check the set-up of this process only; run the
doctor on each machine to check that the machines exclude each other. Each failed check says what to
change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from lockproviders.acquire import HeldLease, ProviderLock
from lockproviders.client import ClockedLockClient, Holding, describe_owner, note_owner
from timeline.errors import FencedError, HoodooError, LockTimeoutError, UnavailableError
from timeline.ports.ports import Clock, Ids, Storage

PURPOSE = "locks doctor"
SKEW_MS_MAX = 1_000
EXPIRE_POLL_MS = 100
EXPIRE_PATIENCE_MS = 5_000  # time a service may need after the end of a lease to notice it

_REACH = "start the server, or correct its address and this user's access to it"
_ACQUIRE = "wait for the holder, list it with 'hoodoo locks holders TABLE', or raise the deadline"
_CONTEND = "let all writers name the same server and lock, or choose a provider that excludes"
_FENCE = "this provider does not distinguish an old holding from the new one; choose another"
_EXPIRE = "check whether the server ends locks of dead holders, and after how long"
_CLOCK = "let a time service (NTP) set both clocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCheck:
    """The result of one check."""

    name: str
    ok: bool
    seconds: float
    message: str
    skipped: bool = False
    advice: str = ""  # the change to make, if the check failed

    def as_document(self) -> dict[str, object]:
        """Return one entry of ``LockExamination.as_document``."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockExamination:
    """The results of ``locks doctor``."""

    provider: str
    checks: tuple[LockCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(check.ok for check in self.checks)

    def as_document(self) -> dict[str, object]:
        """Return the JSON document of ``hoodoo locks doctor --output json``."""
        return {
            "provider": self.provider,
            "ok": self.ok,
            "checks": [check.as_document() for check in self.checks],
        }


def examine(
    holder: ProviderLock,
    rival: ProviderLock,
    *,
    clock: Clock,
    ids: Ids | None = None,
    storage: Storage | None = None,
    expire_ms_max: int = 0,
) -> LockExamination:
    """
    Check reach, acquire, contend, release, fence, expire and clock; no lock stays held.

    Args:
        holder: The lock as configured; waits for a living holder like any writer.
        rival: A second lock of the same table with a short deadline (100 ms is enough), which the
            third check waits out.
        clock: Measures the seconds of each check.
        ids: Names this process to other clients that read the holder meanwhile.
        storage: The table's storage; its clock is compared, too.
        expire_ms_max: Longest lease that the check waits out, with the lock held; 0 waits for none.
    """
    trial = _LockCheckRun(holder, rival, clock, ids)
    if trial.check("reach", trial.reach, _REACH):
        lease = trial.acquired()
        if lease is not None:
            try:
                trial.check("contend", lambda: trial.contend(lease), _CONTEND)
            finally:
                trial.check("release", lambda: trial.release(lease), _CONTEND)
            trial.check("fence", trial.fence, _FENCE)
            trial.check("expire", lambda: trial.expire(expire_ms_max), _EXPIRE)
        trial.check("clock", lambda: trial.compare_clocks(storage), _CLOCK)
    return LockExamination(provider=holder.provider, checks=tuple(trial.checks))


class _WrongError(Exception):
    """A check found a fault of the lock."""


class _Skipped(Exception):  # noqa: N818 - an answer, not a fault
    """A check could not be made; says why."""


class _LockCheckRun:
    def __init__(
        self, holder: ProviderLock, rival: ProviderLock, clock: Clock, ids: Ids | None
    ) -> None:
        self._holder = holder
        self._rival = rival
        self._clock = clock
        self._ids = ids
        self.checks: list[LockCheck] = []

    def check(self, name: str, work: Callable[[], str], advice: str) -> bool:
        """Run one check and record its result."""
        began_ms = self._clock.monotonic_ms()
        ok, skipped = True, False
        try:
            message = work()
        except _Skipped as reason:
            skipped, message = True, str(reason)
        except HoodooError as error:
            ok, message = False, error.message
            if advice == _ACQUIRE and not isinstance(error, LockTimeoutError):
                advice = _REACH  # no holder to wait for: the lock can be read but not taken
        except _WrongError as error:
            ok, message = False, str(error)
        self.checks.append(
            LockCheck(
                name=name,
                ok=ok,
                seconds=(self._clock.monotonic_ms() - began_ms) / 1000,
                message=message,
                skipped=skipped,
                advice="" if ok else advice,
            )
        )
        return ok

    def reach(self) -> str:
        """Read the holder of the lock."""
        text = self._holder.holder()
        now = "free" if text is None else f"held by {describe_owner(text)}"
        return f"{self._holder.identity} is {now}"

    def acquired(self) -> HeldLease | None:
        """Acquire the lock as a writer does."""
        taken: list[HeldLease] = []

        def acquire() -> str:
            taken.append(self._holder.acquire(PURPOSE))
            return f"acquired by {taken[0].owner}"

        self.check("acquire", acquire, _ACQUIRE)
        return taken[0] if taken else None

    def contend(self, lease: HeldLease) -> str:
        """Check that a second client is refused and the first one stays unaffected."""
        try:
            second = self._rival.acquire(PURPOSE)
        except LockTimeoutError as error:
            lease.assert_held()
            if error.kind == "lock_unanswered":
                raise _WrongError(f"nothing is proven, try again: {error.message}") from error
            return f"a second acquire was rejected, holder {error.fields.get('holder', 'unknown')}"
        second.release()
        raise _WrongError(
            "the lock has two holders at once, so it excludes no writer: do not let two writers "
            "use it"
        )

    def release(self, lease: HeldLease) -> str:
        """Check that another client gets the lock after its release."""
        lease.release()
        try:
            next_lease = self._rival.acquire(PURPOSE)
        except LockTimeoutError as error:
            holder = str(error.fields.get("holder"))
            if holder != "unknown" and lease.owner not in holder:
                raise _Skipped(f"released; another writer was faster: {holder}") from error
            raise _WrongError(f"released, but the next acquire failed: {error.message}") from error
        with next_lease:
            next_lease.assert_held()
        return "released, and acquired by the next"

    def fence(self) -> str:
        """Check that an ended holding can neither renew nor release, and has the smaller token."""
        old = self._take(self._holder)
        old.release()
        new = self._take(self._rival)
        try:
            if old.is_held():
                raise _WrongError("a released holding reports that it is still held")
            _refuse_renewal(old)
            old.release()
            third = self._holder.client.try_acquire(self._text())
            if third is not None:
                third.release()
            if third is not None or not new.is_held():
                raise _WrongError(
                    "the late release of an old holding released the lock of the new holder"
                )
            return _compared_tokens(old, new)
        finally:
            new.release()

    def expire(self, lease_ms_max: int) -> str:
        """Check that another client gets an expired lease, not before its end and soon after it."""
        dead = self._take(self._holder)
        try:
            lease_ms = dead.expires_in_ms()
            if lease_ms is None:
                raise _Skipped("locks of this provider end with their holder, not by time")
            if lease_ms > lease_ms_max:
                raise _Skipped(
                    f"the lease lasts {lease_ms / 1000:g} s and the lock would be held as long; "
                    f"--expire-within {-(-lease_ms // 1000)} checks it"
                )
            return self._replaced(dead, lease_ms)
        finally:
            dead.release()

    def _replaced(self, dead: Holding, lease_ms: int) -> str:
        margin_ms = self._rival.client.margin_ms
        began_ms = self._clock.monotonic_ms()
        patience_ms = lease_ms + margin_ms + EXPIRE_PATIENCE_MS
        while True:
            heir = self._tried_by_rival()
            waited_ms = self._clock.monotonic_ms() - began_ms
            if heir is not None:
                break
            if waited_ms >= patience_ms:
                raise _WrongError(
                    f"a holder without renewals still holds the lock after {waited_ms} ms, its "
                    f"lease was {lease_ms} ms"
                )
            self._clock.sleep_ms(EXPIRE_POLL_MS)
        heir.release()
        if waited_ms < lease_ms - margin_ms:
            raise _WrongError(
                f"another holder acquired the lock after {waited_ms} ms, before the end of a "
                f"lease of {lease_ms} ms"
            )
        _refuse_renewal(dead)
        return f"taken over after {waited_ms} ms of a lease of {lease_ms} ms"

    def _tried_by_rival(self) -> Holding | None:
        try:
            return self._rival.client.try_acquire(self._text())
        except UnavailableError:
            return None  # asked again within the patience

    def compare_clocks(self, storage: Storage | None) -> str:
        """Compare the clocks of the lock's service and of the storage with the local one."""
        client = self._holder.client
        lines: list[str] = []
        far: list[str] = []
        asked: list[tuple[str, Callable[[], int]]] = []
        if isinstance(client, ClockedLockClient):
            asked.append(("the lock's server", client.server_now_ms))
        if storage is not None and storage.capabilities.local_root is None:
            asked.append(("the storage", storage.now_ms))
        for whose, now_ms in asked:
            before_ms = self._clock.now_ms()
            theirs_ms = now_ms()
            after_ms = self._clock.now_ms()
            # The remote clock was read at some time between the two local readings.
            skew_ms = max(before_ms - theirs_ms, theirs_ms - after_ms, 0)
            word = "behind" if theirs_ms < before_ms else "ahead"
            line = f"{whose} is {skew_ms} ms {word}" if skew_ms else f"{whose} agrees"
            (far if skew_ms > SKEW_MS_MAX else lines).append(line)
        if far:
            raise _WrongError("; ".join(far))
        if not lines:
            raise _Skipped("neither the lock nor the storage has a clock of its own")
        return "; ".join(lines)

    def _take(self, lock: ProviderLock) -> Holding:
        """Take the lock without renewal; another writer may take it first."""
        holding = lock.client.try_acquire(self._text())
        if holding is None:
            raise _Skipped("another writer took the lock in between; try again when no writer runs")
        return holding

    def _text(self) -> str:
        if self._ids is None:
            return PURPOSE
        return note_owner(self._ids, self._clock, PURPOSE).text


def _refuse_renewal(old: Holding) -> None:
    if old.expires_in_ms() is None:
        return  # nothing is renewed
    try:
        old.renew()
    except FencedError:
        return
    raise _WrongError("an ended holding was renewed while the lock had a new holder")


def _compared_tokens(earlier: Holding, later: Holding) -> str:
    first, second = earlier.fencing_token, later.fencing_token
    if first is None or second is None:
        return "an old holding is rejected; the provider has no fencing tokens"
    if second <= first:
        raise _WrongError(f"fencing tokens must grow: {first} then {second}")
    return f"an old holding is rejected; tokens {first} then {second}"
