"""
The lease: one holding of the lock, with its end, its renewal and its alarm.

The holder must find out by itself when it may no longer act (the Java providers continue after they
lose theirs). Invariants:

- ``assert_held`` reads local state only, so it is cheap enough before every timeline write.
- A lost lease stays lost: a late renewal never revives a lease that was found past its end.
- A lease works only in the process that acquired it. A forked child never inherits it (F26); a
  release there leaves the parent's lock alone.
- The end counts with a margin: 10 % of the lease or the provider's own, whichever is larger.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Self

from lockproviders.client import Holding
from timeline.errors import FencedError, LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock, EventSink, Executor, Ids, Ticker

__all__ = ["HeldLease", "LeaseTerms"]

_LOG = logging.getLogger("hoodoo.lock")

MARGIN_SHARE = 10  # one tenth of the lease
RENEWALS_PER_LEASE = 3
ROOM_SHARE = 6  # of the time of a fresh lease; renewals always leave more than that
TICK_MS_MIN = 10

# No answer, or one that the holder cannot act on, such as a password that changed under a held
# lock.
_REFUSED = (UnavailableError, UnsafeSetupError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The terms of a lease, fixed when it begins."""

    provider: str
    identity: str
    owner: str
    purpose: str
    margin_ms: int  # the provider's own; the lease adds its tenth
    hold_budget_ms: int  # 0: no budget
    is_shared: bool = False


class HeldLease:
    """
    The lease port over a provider's holding; use it in a ``with`` block.

    Args:
        holding: The provider's holding; released with this lease.
        terms: Owner, purpose and budgets.
        clock: Measures holding time and deadline.
        events: Receives ``lock.renewed``, ``lock.lost``, ``lock.released``, ``lock.hold_alarm``
            (once, while held), ``lock.hold_over_budget`` (at release), ``lock.renew_failed`` and
            ``lock.release_failed``.
        ids: Identifies the current process, to detect a fork.
    """

    def __init__(
        self,
        holding: Holding,
        terms: LeaseTerms,
        *,
        clock: Clock,
        events: EventSink,
        ids: Ids,
    ) -> None:
        self._holding = holding
        self._terms = terms
        self._clock = clock
        self._events = events
        self._ids = ids
        self._process = ids.identity().pid
        self._acquired_at_ms = clock.monotonic_ms()
        self._lease_ms = holding.expires_in_ms()
        self._margin_ms = max(terms.margin_ms, (self._lease_ms or 0) // MARGIN_SHARE)
        self._lost_because: str | None = None
        self._released = False
        self._alarmed = False
        self._renew_at_ms = self._next_renewal_ms()
        self._ticker: Ticker | None = None

    @property
    def fencing_token(self) -> int | None:
        """A number that grows with every holding, if the provider has one."""
        return self._holding.fencing_token

    @property
    def owner(self) -> str:
        """The holder: host, pid and writer id."""
        return self._terms.owner

    @property
    def purpose(self) -> str:
        """The purpose that the holder gave to acquire."""
        return self._terms.purpose

    @property
    def is_shared(self) -> bool:
        """Whether other writers may hold it at the same time (LOCK-1)."""
        return self._terms.is_shared

    def remaining_ms(self) -> int | None:
        """Return the time until the lease counts as lost, minus the margin; None without an end."""
        left = self._holding.expires_in_ms()
        return None if left is None else max(0, left - self._margin_ms)

    def has_room(self) -> bool:
        """
        Return whether enough time is left for one request that cannot be undone (FOR-8).

        It does not check the lock. A process that pauses right after the call does harm only if it
        sleeps longer than the time left.
        """
        left = self.remaining_ms()
        fresh_ms = (self._lease_ms or 0) - self._margin_ms
        return left is None or left >= fresh_ms // ROOM_SHARE

    def held_ms(self) -> int:
        """Return the time since the lease was acquired."""
        return self._clock.monotonic_ms() - self._acquired_at_ms

    def assert_held(self) -> None:
        """
        Check that the lock is still ours; call it right before every timeline write.

        Raises:
            LeaseLostError: The lease was released, is past its end, or was taken or removed; or
                this process did not acquire it.
        """
        if self._is_other_process():
            raise self._lost_error("a lease is never inherited by a forked process")
        if self._released:
            raise self._lost_error("it was released before")
        self._look()
        if self._lost_because is not None:
            raise self._lost_error(self._lost_because)

    def release(self) -> None:
        """
        Release the own holding, and only that; a second call does nothing.

        If the provider does not answer or denies access, it emits an event instead of raising:
        commits stay committed, and the lock ends with its lease.
        """
        if self._released or self._is_other_process():
            return
        self._released = True
        if self._lease_ms is not None:
            self._stop_watching()  # no renewal may run after the release
        try:
            self._holding.release()
        except _REFUSED as error:
            self._emit("lock.release_failed", error=error.message)
        finally:
            held_ms = self.held_ms()
            self._stop_watching()
        self._emit("lock.released", held_ms=held_ms, lost=self._lost_because is not None)
        if 0 < self._terms.hold_budget_ms < held_ms:
            self._warn_over_budget(held_ms)

    def watch(self, executor: Executor) -> None:
        """Start renewal and alarm in the background; ``release`` ends them."""
        interval_ms = self._tick_interval_ms()
        if interval_ms is not None:
            self._ticker = executor.every(interval_ms, self.tick)

    def tick(self) -> None:
        """Run one beat: renew after a third of the lease, raise the alarm if held too long."""
        if self._released or self._is_other_process():
            return
        self._look()
        if self._lost_because is None:
            self._renew_when_due()
        held_ms = self.held_ms()
        if not self._alarmed and 0 < self._terms.hold_budget_ms <= held_ms:
            self._alarmed = True
            self._emit("lock.hold_alarm", held_ms=held_ms, budget_ms=self._terms.hold_budget_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_other_process(self) -> bool:
        return self._ids.identity().pid != self._process

    def _look(self) -> None:
        if self._lost_because is not None:
            return
        if self.remaining_ms() == 0:
            self._lose("its end came before a renewal")
        elif not self._holding.is_held():
            self._lose("the provider says that it is no longer ours")

    def _lose(self, because: str) -> None:
        if self._lost_because is None and not self._released:
            self._lost_because = because
            self._emit("lock.lost", reason=because, held_ms=self.held_ms())

    def _lost_error(self, because: str) -> LeaseLostError:
        return LeaseLostError(
            "the lock is not held: stop this write, nothing more may be published with it; "
            f"{because}: {self._terms.identity} ({self._terms.purpose})",
            provider=self._terms.provider,
            identity=self._terms.identity,
            owner=self._terms.owner,
            purpose=self._terms.purpose,
            because=because,
        )

    def _next_renewal_ms(self) -> int | None:
        if self._lease_ms is None:
            return None
        return self._clock.monotonic_ms() + self._lease_ms // RENEWALS_PER_LEASE

    def _renew_when_due(self) -> None:
        if self._renew_at_ms is None or self._clock.monotonic_ms() < self._renew_at_ms:
            return
        try:
            self._holding.renew()
        except FencedError as error:
            self._lose(error.message)
        except _REFUSED as error:
            # The next beat tries again; if no renewal succeeds, the deadline ends the lease.
            self._emit("lock.renew_failed", error=error.message)
        else:
            self._renew_at_ms = self._next_renewal_ms()
            self._emit("lock.renewed", expires_in_ms=self._holding.expires_in_ms())

    def _tick_interval_ms(self) -> int | None:
        wanted = []
        if self._lease_ms is not None:
            wanted.append(self._lease_ms // (2 * RENEWALS_PER_LEASE))
        if self._terms.hold_budget_ms > 0:
            wanted.append(self._terms.hold_budget_ms)
        return max(TICK_MS_MIN, min(wanted)) if wanted else None

    def _warn_over_budget(self, held_ms: int) -> None:
        budget_ms = self._terms.hold_budget_ms
        self._emit("lock.hold_over_budget", held_ms=held_ms, budget_ms=budget_ms)
        _LOG.warning(
            "the lock was held longer than hoodoo.lock.hold.budget.ms, others had to wait: "
            "%d ms of %d ms for %s on %s",
            held_ms,
            budget_ms,
            ascii(self._terms.purpose),
            self._terms.identity,
        )

    def _stop_watching(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()

    def _emit(self, name: str, /, **fields: str | int | float | bool | None) -> None:
        self._events.emit(
            name,
            provider=self._terms.provider,
            identity=self._terms.identity,
            owner=self._terms.owner,
            purpose=self._terms.purpose,
            fencing_token=self._holding.fencing_token,
            **fields,
        )
