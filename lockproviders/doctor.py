"""
``locks doctor``: does the configured lock really exclude, from here, now?

Two locks of one table play holder and rival and pass the lock between them. It proves the
set-up of this process only; that other machines are excluded shows when they run it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from timeline.errors import HoodooError, LockTimeoutError
from timeline.ports.clock import Clock
from timeline.ports.lock import Lease, Lock

__all__ = ["LockCheck", "LockExamination", "examine"]

PURPOSE = "locks doctor"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCheck:
    """One thing tried."""

    name: str
    ok: bool
    seconds: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockExamination:
    """The answer of ``locks doctor``."""

    provider: str
    checks: tuple[LockCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    def as_document(self) -> dict[str, object]:
        """The shape of ``hoodoo locks doctor --output json``."""
        return {
            "provider": self.provider,
            "ok": self.ok,
            "checks": [
                {
                    "name": check.name,
                    "ok": check.ok,
                    "seconds": check.seconds,
                    "message": check.message,
                }
                for check in self.checks
            ],
        }


def examine(holder: Lock, rival: Lock, *, clock: Clock) -> LockExamination:
    """
    Acquire, refuse a second, release, hand over. Both locks stay usable, none stays held.

    Args:
        holder: The lock as configured; waits for a living holder like any writer.
        rival: A second lock of the same table with a short deadline (100 ms is plenty),
            which the second check waits out.
        clock: Measures the seconds of each check.
    """
    trial = _Trial(clock)
    lease = trial.check("acquire", lambda: _acquire(holder))
    if lease is not None:
        try:
            trial.check("second_refused", lambda: _refuse(rival))
            trial.check("still_held", lambda: _look(lease))
        finally:
            trial.check("release", lambda: _give_back(lease))
        taken = trial.check("hand_over", lambda: _acquire(rival))
        if taken is not None:
            trial.check("tokens_grow", lambda: _compare_tokens(lease, taken))
            taken.release()
    return LockExamination(provider=holder.provider, checks=tuple(trial.checks))


class _DoctorError(Exception):
    """A check found the lock wrong."""


class _Trial:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.checks: list[LockCheck] = []

    def check(self, name: str, work: Callable[[], tuple[Lease | None, str]]) -> Lease | None:
        """Do one thing and write down how it went; its lease, if it has one."""
        began_ms = self._clock.monotonic_ms()
        lease: Lease | None = None
        try:
            lease, message = work()
            ok = True
        except HoodooError as error:
            ok, message = False, error.message
        except _DoctorError as error:
            ok, message = False, str(error)
        seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        self.checks.append(LockCheck(name=name, ok=ok, seconds=seconds, message=message))
        return lease


def _acquire(lock: Lock) -> tuple[Lease, str]:
    lease = lock.acquire(PURPOSE)
    return lease, f"acquired by {lease.owner}"


def _refuse(rival: Lock) -> tuple[None, str]:
    try:
        lease = rival.acquire(PURPOSE)
    except LockTimeoutError as error:
        return None, f"refused, holder {error.fields.get('holder', 'unknown')}"
    lease.release()
    raise _DoctorError(
        "two holders at once: this lock excludes nobody, do not let two writers use it"
    )


def _look(lease: Lease) -> tuple[None, str]:
    lease.assert_held()
    return None, "the first still holds it"


def _give_back(lease: Lease) -> tuple[None, str]:
    lease.release()
    return None, "given back"


def _compare_tokens(earlier: Lease, later: Lease) -> tuple[None, str]:
    first, second = earlier.fencing_token, later.fencing_token
    if first is None or second is None:
        return None, "the provider has no fencing tokens"
    if second <= first:
        raise _DoctorError(f"fencing tokens must grow: {first} then {second}")
    return None, f"{first} then {second}"
