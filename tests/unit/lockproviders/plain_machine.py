"""A simulated machine; its time moves only by sleeping or by the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lockproviders.acquire import LockPorts, ProviderLock, WaitBudget
from timeline.errors import LeaseLostError, UnavailableError
from timeline.ports.ports import ProcessIdentity


class ManualClock:
    def __init__(self) -> None:
        self.time_ms = 1_000
        self.sleeps: list[int] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.sleeps.append(duration_ms)
        self.time_ms += duration_ms
        self.on_sleep()


class PlainIds:
    def __init__(self) -> None:
        self.pid = 41
        self.chance = 0.5
        self.drawn = 0

    def uuid(self) -> str:
        return "00000000-0000-4000-8000-000000000000"

    def nonce(self) -> str:
        self.drawn += 1
        return f"{self.drawn:032x}"

    def jitter(self) -> float:
        return self.chance

    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(host="here", pid=self.pid, writer_id="w1", application="loader")


class KeptEvents:
    def __init__(self) -> None:
        self.kept: list[tuple[str, dict[str, object]]] = []

    def emit(self, name: str, /, **fields: object) -> None:
        self.kept.append((name, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self.kept]

    def fields(self, name: str) -> dict[str, object]:
        return next(fields for kept, fields in self.kept if kept == name)


class ManualTicker:
    def __init__(self, interval_ms: int, work: Callable[[], None]) -> None:
        self.interval_ms = interval_ms
        self.work = work
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


class ManualExecutor:
    def __init__(self) -> None:
        self.tickers: list[ManualTicker] = []

    def map(self, work, tasks):
        return [work(task) for task in tasks]

    def every(self, interval_ms: int, work: Callable[[], None]) -> ManualTicker:
        self.tickers.append(ManualTicker(interval_ms, work))
        return self.tickers[-1]


class PlainHolding:
    """A lock holding whose state the test sets."""

    fencing_token = 7

    def __init__(self, clock: ManualClock, lease_ms: int | None = None) -> None:
        self._clock = clock
        self.lease_ms = lease_ms
        self.ends_ms = clock.time_ms + (lease_ms or 0)
        self.ours = True
        self.renewals = 0
        self.releases = 0
        self.trouble: UnavailableError | LeaseLostError | None = None

    def expires_in_ms(self) -> int | None:
        return None if self.lease_ms is None else self.ends_ms - self._clock.time_ms

    def renew(self) -> None:
        if self.trouble:
            raise self.trouble
        self.renewals += 1
        self.ends_ms = self._clock.time_ms + (self.lease_ms or 0)

    def is_held(self) -> bool:
        return self.ours

    def release(self) -> None:
        if self.trouble:
            raise self.trouble
        self.releases += 1


class PlainClient:
    """A client that the test lets acquire or not; it counts the attempts."""

    identity = "plain:t"
    margin_ms = 0

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.free = True
        self.free_at_try: int | None = None
        self.lease_ms: int | None = None
        self.trouble: UnavailableError | None = None
        self.tries = 0
        self.texts: list[str] = []
        self.holding: PlainHolding | None = None
        self.closed = False

    def try_acquire(self, owner_text: str) -> PlainHolding | None:
        self.tries += 1
        self.texts.append(owner_text)
        if self.trouble is not None:
            raise self.trouble
        if not self.free and self.tries != self.free_at_try:
            return None
        self.holding = PlainHolding(self._clock, self.lease_ms)
        return self.holding

    def holder(self) -> str | None:
        return '{"owner":"there/9/w2","purpose":"publish 20260101000000000"}'

    def close(self) -> None:
        self.closed = True


@dataclass
class Machine:
    clock: ManualClock = field(default_factory=ManualClock)
    ids: PlainIds = field(default_factory=PlainIds)
    events: KeptEvents = field(default_factory=KeptEvents)
    executor: ManualExecutor = field(default_factory=ManualExecutor)

    def ports(self) -> LockPorts:
        return LockPorts(clock=self.clock, ids=self.ids, events=self.events, executor=self.executor)

    def client(self) -> PlainClient:
        return PlainClient(self.clock)

    def holding(self, lease_ms: int | None = None) -> PlainHolding:
        return PlainHolding(self.clock, lease_ms)

    def lock(self, client: PlainClient, **budget: int) -> ProviderLock:
        chosen = {
            "deadline_ms": 1_000,
            "try_ms": 1_000,
            "retries": 0,
            "pause_ms": 0,
            "hold_budget_ms": 0,
            **budget,
        }
        return ProviderLock("plain", client, budget=WaitBudget(**chosen), ports=self.ports())
