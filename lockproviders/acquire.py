"""
Acquire the commit lock, hold it by a lease, and release it.

The holder must find out by itself when it may no longer act (the Java providers continue after they
lose theirs). Invariants of a lease:

- ``assert_held`` reads local state only, so it is cheap enough before every timeline write.
- A lost lease stays lost: a late renewal never revives a lease that was found past its end.
- A lease works only in the process that acquired it. A forked child never inherits it (F26); a
  release there leaves the parent's lock alone.
- The end counts with a margin: 10 % of the lease or the provider's own, whichever is larger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from lockproviders.client import (
    DelayedHolding,
    Holding,
    LockClient,
    OwnerNote,
    QueueEntry,
    QueueingLockClient,
    SharedHolding,
    SharingLockClient,
    describe_owner,
    note_owner,
)
from timeline.errors import (
    FencedError,
    LeaseLostError,
    LockTimeoutError,
    UnavailableError,
    UnsafeSetupError,
)
from timeline.ports.ports import Clock, EventSink, Executor, Ids, LockSharing, Ticker, Value

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

    def has_time_for_request(self) -> bool:
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
            raise self._lost_error("a forked process never inherits a lease")
        if self._released:
            raise self._lost_error("it was released earlier")
        self._check()
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
            self._ticker = executor.every(interval_ms, self.beat)

    def beat(self) -> None:
        """Run one beat: renew after a third of the lease, raise the alarm if held too long."""
        if self._released or self._is_other_process():
            return
        self._check()
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

    def _check(self) -> None:
        if self._lost_because is not None:
            return
        if self.remaining_ms() == 0:
            self._lose("it expired before a renewal")
        elif not self._holding.is_held():
            self._lose("the provider reports another holder")

    def _lose(self, because: str) -> None:
        if self._lost_because is None and not self._released:
            self._lost_because = because
            self._emit("lock.lost", reason=because, held_ms=self.held_ms())

    def _lost_error(self, because: str) -> LeaseLostError:
        return LeaseLostError(
            "the lock is not held, so this write must not commit: stop it and write again; "
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
            "the lock was held longer than hoodoo.lock.hold.budget.ms, so other writers had to "
            "wait: %d ms of %d ms for %s on %s",
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


# ---- Wait for a lock: the lock port over the client of any provider
# A provider answers "free or not" once. This module does the waiting, so that all providers wait
# alike: with jittered polling and one total deadline. The deadline bounds the retries, which Hudi
# multiplies to 55 minutes. Invariants:
#
# - No wait is longer than ``hoodoo.lock.deadline.ms``, whatever the Hudi keys multiply to.
# - An acquire makes at least one attempt, also with a deadline of 0.
# - An acquire treats a provider that does not answer like a taken lock, within the same budget.
# - The lock is not re-entrant: a second acquire by the holder waits like any other.
# - If the service keeps a queue, one acquire has one entry in it, from the first attempt to the end
#   of the budget, pauses included. It removes the entry whenever it ends without the lock.

POLL_GROWTH = 1.6
REPORT_AFTER_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBudget:
    """How long an acquire may take and how often it polls."""

    deadline_ms: int  # caps everything below
    try_ms: int  # one round of polling
    retries: int  # further rounds
    pause_ms: int  # between rounds
    hold_budget_ms: int  # a longer holding raises an alarm event; 0 never
    poll_first_ms: int = 2
    poll_max_ms: int = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPorts:
    """The ports that a lock uses."""

    clock: Clock
    ids: Ids
    events: EventSink
    executor: Executor


class ProviderLock:
    """
    A configured lock of one table.

    Args:
        provider: Name of the provider, for messages.
        client: The provider's client; closed with this lock.
        budget: Waiting and holding budgets.
        ports: Clock, ids, events and executor.
    """

    def __init__(
        self,
        provider: str,
        client: LockClient,
        *,
        budget: WaitBudget,
        ports: LockPorts,
    ) -> None:
        self._provider = provider
        self._client = client
        self._queue = client if isinstance(client, QueueingLockClient) else None
        self._sharing = client if isinstance(client, SharingLockClient) else None
        self._budget = budget
        self._ports = ports
        self._lease: HeldLease | None = None

    @property
    def provider(self) -> str:
        """Name of the provider, for example ``filesystem``."""
        return self._provider

    @property
    def identity(self) -> str:
        """Name of the locked thing, comparable between writers (REG-1)."""
        return self._client.identity

    @property
    def is_fifo(self) -> bool:
        """Whether the service has a queue; without one, the next client to poll gets the lock."""
        return self._queue is not None

    @property
    def is_shareable(self) -> bool:
        """Whether the lock is in shared use now, as far as known without a request."""
        return self._sharing is not None and self._sharing.shares

    @property
    def client(self) -> LockClient:
        """The provider's own client, for features of some providers (``doctor``, ``break``)."""
        return self._client

    def holder(self) -> str | None:
        """Return the owner text of the current holder, or None if free or unknown."""
        return self._client.holder()

    def acquire(self, purpose: str) -> HeldLease:
        """
        Wait for the lock within its budget.

        Args:
            purpose: Why the caller needs the lock (``publish 2026...``); waiting writers see it.

        Raises:
            LockTimeoutError: The budget ended; the error names the holder if known.
            UnsafeSetupError: The provider cannot work here; waiting would not help.
        """
        lease = self.acquire_while(lambda: True, purpose)
        assert lease is not None
        return lease

    def acquire_while(
        self, wanted: Callable[[], bool], purpose: str, sharing: LockSharing = LockSharing.NO
    ) -> HeldLease | None:
        """
        Wait like ``acquire`` but return None when ``wanted()`` becomes false between two attempts.

        If writers shared the lock before, it waits until their leases have ended (LOCK-1).

        Raises:
            LockTimeoutError, UnsafeSetupError: As ``acquire``.
        """
        note = note_owner(self._ports.ids, self._ports.clock, purpose)
        asked_at_ms = self._ports.clock.monotonic_ms()
        holding = self._wait(note, asked_at_ms, wanted, sharing)
        if holding is None:
            return None
        try:
            if isinstance(holding, DelayedHolding) and holding.ready_in_ms():
                self._ports.clock.sleep_ms(holding.ready_in_ms())
            lease = self._lease_from(holding, note)
            lease.watch(self._ports.executor)
        except BaseException:
            holding.release()
            raise
        self._lease = lease
        self._emit(
            "lock.acquired",
            note,
            fencing_token=lease.fencing_token,
            expires_in_ms=holding.expires_in_ms(),
            wait_ms=self._ports.clock.monotonic_ms() - asked_at_ms,
            shared=lease.is_shared,
        )
        return lease

    def close(self) -> None:
        """Close connections and threads and release a held lease; a second call does nothing."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
        self._client.close()

    def _lease_from(self, holding: Holding, note: OwnerNote) -> HeldLease:
        shared = holding if isinstance(holding, SharedHolding) else None
        terms = LeaseTerms(
            provider=self._provider,
            identity=self.identity,
            owner=note.owner,
            purpose=note.purpose,
            margin_ms=(shared or self._client).margin_ms,
            # Other writers do not wait for a shared holding, however long it lasts.
            hold_budget_ms=0 if shared else self._budget.hold_budget_ms,
            is_shared=shared is not None,
        )
        return HeldLease(
            holding,
            terms,
            clock=self._ports.clock,
            events=self._ports.events,
            ids=self._ports.ids,
        )

    def _wait(
        self,
        note: OwnerNote,
        asked_at_ms: int,
        wanted: Callable[[], bool],
        sharing: LockSharing,
    ) -> Holding | None:
        wait = _AcquireState(note, asked_at_ms, self._queue_entry(note, sharing), wanted)
        try:
            holding = self._wait_in(wait)
        except BaseException:
            # Also after an interrupt: an entry without a waiter would block all entries behind it.
            wait.place.leave()
            raise
        if holding is None:
            wait.place.leave()
        return holding

    def _queue_entry(self, note: OwnerNote, sharing: LockSharing) -> QueueEntry:
        if self._queue is not None:
            return self._queue.enter(note.text)
        if sharing is not LockSharing.NO and self._sharing is not None:
            return _SharingEntry(self._sharing, note.text, self._ports.clock, sharing)
        return _PollingEntry(self._client, note.text, self._ports.clock)

    def _wait_in(self, wait: _AcquireState) -> Holding | None:
        """Run all rounds within the deadline while wanted; each round polls fast again at first."""
        clock = self._ports.clock
        deadline_ms = wait.asked_at_ms + self._budget.deadline_ms
        for round_number in range(self._budget.retries + 1):
            round_end_ms = min(deadline_ms, clock.monotonic_ms() + self._budget.try_ms)
            holding = self._poll_until(round_end_ms, wait)
            if holding is not None or not wait.wanted():
                return holding
            left_ms = deadline_ms - clock.monotonic_ms()
            if left_ms <= 0:
                break
            if round_number < self._budget.retries:
                pause_ms = int(self._budget.pause_ms * (0.5 + self._ports.ids.jitter() / 2))
                # Never 0 ms: rounds and pauses of 0 ms would make a busy loop.
                wait.place.wait(min(left_ms, max(pause_ms, self._budget.poll_first_ms)))
        raise self._timeout(wait)

    def _poll_until(self, end_ms: int, wait: _AcquireState) -> Holding | None:
        clock = self._ports.clock
        interval_ms = float(self._budget.poll_first_ms)
        while True:
            holding = self._try_once(wait)
            if holding is not None:
                return holding
            left_ms = end_ms - clock.monotonic_ms()
            if left_ms <= 0 or not wait.wanted():
                return None
            self._report_once(wait)
            # Between 0.5 and 1.5 times the interval, so that waiters do not poll in step. The last
            # poll is exactly at the end.
            jittered_ms = round(interval_ms * (0.5 + self._ports.ids.jitter()))
            wait.place.wait(max(1, min(left_ms, jittered_ms, self._budget.poll_max_ms)))
            interval_ms = min(interval_ms * POLL_GROWTH, float(self._budget.poll_max_ms))

    def _try_once(self, wait: _AcquireState) -> Holding | None:
        wait.tries += 1
        try:
            holding = wait.place.try_acquire()
        except UnavailableError as error:
            wait.trouble = error
            return None
        wait.trouble = None
        return holding

    def _report_once(self, wait: _AcquireState) -> None:
        waited_ms = self._ports.clock.monotonic_ms() - wait.asked_at_ms
        if wait.is_reported or waited_ms < REPORT_AFTER_MS:
            return
        wait.is_reported = True
        self._emit("lock.waiting", wait.note, holder=self._holder_text(), wait_ms=waited_ms)

    def _emit(self, name: str, note: OwnerNote, /, **fields: Value) -> None:
        self._ports.events.emit(
            name,
            provider=self._provider,
            identity=self.identity,
            owner=note.owner,
            purpose=note.purpose,
            **fields,
        )

    def _holder_text(self) -> str:
        try:
            return describe_owner(self._client.holder())
        except UnavailableError:
            return "unknown"

    def _timeout(self, wait: _AcquireState) -> LockTimeoutError:
        waited_ms = self._ports.clock.monotonic_ms() - wait.asked_at_ms
        # Do not ask a service again that just did not answer: it would cost time past the end.
        holder = "unknown" if wait.trouble is not None else self._holder_text()
        self._emit("lock.timeout", wait.note, holder=holder, wait_ms=waited_ms, tries=wait.tries)
        if wait.trouble is None:
            message = (
                "the lock was not free in time: try again, list its holder with 'hoodoo locks "
                f"holders TABLE', or raise hoodoo.lock.deadline.ms; waited {waited_ms} ms for "
                f"{self.identity}, held by {holder}"
            )
        else:
            message = (
                "the lock's service does not answer, so the engine cannot know whether the lock "
                "is free. Run 'hoodoo locks doctor TABLE', check the server and the network, "
                f"then try again; waited {waited_ms} ms for {self.identity}; last answer: "
                f"{wait.trouble.message}"
            )
        error = LockTimeoutError(
            message,
            kind="lock_timeout" if wait.trouble is None else "lock_unanswered",
            provider=self._provider,
            identity=self.identity,
            holder=holder,
            waited_ms=waited_ms,
            tries=wait.tries,
        )
        error.__cause__ = wait.trouble
        return error


class _AcquireState:
    """The state of one acquire."""

    __slots__ = ("asked_at_ms", "is_reported", "note", "place", "tries", "trouble", "wanted")

    def __init__(
        self, note: OwnerNote, asked_at_ms: int, place: QueueEntry, wanted: Callable[[], bool]
    ) -> None:
        self.wanted = wanted
        self.note = note
        self.asked_at_ms = asked_at_ms
        self.place = place
        self.tries = 0
        self.is_reported = False
        self.trouble: UnavailableError | None = None


class _PollingEntry:
    """The entry of a client without a queue: it asks again each time and sleeps in between."""

    __slots__ = ("_client", "_clock", "_owner_text")

    def __init__(self, client: LockClient, owner_text: str, clock: Clock) -> None:
        self._client = client
        self._owner_text = owner_text
        self._clock = clock

    def try_acquire(self) -> Holding | None:
        return self._client.try_acquire(self._owner_text)

    def wait(self, duration_ms: int) -> None:
        self._clock.sleep_ms(duration_ms)

    def leave(self) -> None:
        """Do nothing: a failed attempt of such a client leaves no trace."""


class _SharingEntry(_PollingEntry):
    """The entry of a writer that may share the lock."""

    __slots__ = ("_sharing", "_starts")

    def __init__(
        self, client: SharingLockClient, owner_text: str, clock: Clock, sharing: LockSharing
    ) -> None:
        super().__init__(client, owner_text, clock)
        self._sharing = client
        self._starts = sharing is LockSharing.START

    def try_acquire(self) -> Holding | None:
        holding = self._sharing.try_share(self._owner_text, starts=self._starts)
        self._starts = True  # a writer that had to wait knows that others want the lock, too
        return holding
