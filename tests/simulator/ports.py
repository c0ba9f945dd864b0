"""
The simulated ports of one actor: clock, identity, events, executor, lock and client history.

The engine under test gets these instead of the system's ports. So one seed decides every
clock, name, lock and background call, and a run can be repeated exactly. The storage
has its own file, ``tests.simulator.sim_storage``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar, cast

from tests.simulator.sim_storage import SimStorage
from tests.simulator.table_facts import ClientEventKind
from tests.simulator.world import ActorState, CallKind, PortCall, SimulatedSystem, TickerState
from timeline.errors import LeaseLostError, LockTimeoutError
from timeline.model.instant_time import TimelineZone
from timeline.ports.ports import LockSharing, ProcessIdentity, Value

__all__ = [
    "Actor",
    "ActorPorts",
    "ClientLog",
    "SimClock",
    "SimEvents",
    "SimExecutor",
    "SimIds",
    "SimLease",
    "SimLock",
    "SimStorage",
    "SimTicker",
    "in_order",
    "make_ports",
]

Task = TypeVar("Task")
Result = TypeVar("Result")


class SimClock:
    """One actor's clocks: world time with an offset (wall only) and a drift (both)."""

    def __init__(self, world: SimulatedSystem, actor: ActorState) -> None:
        self._world = world
        self._actor = actor

    def now_ms(self) -> int:
        return self._seen(self._actor.clock_offset_ms + self._drifted())

    def monotonic_ms(self) -> int:
        return self._seen(self._drifted())

    def sleep_ms(self, duration_ms: int) -> None:
        wake_ms = self._world.now_ms + max(duration_ms, 0)

        def apply() -> None:  # outside a run only this call moves the time
            self._world.now_ms = max(self._world.now_ms, wake_ms)

        call = PortCall(
            "clock",
            "sleep",
            str(duration_ms),
            apply,
            kind=CallKind.WAIT,
            ready=lambda: self._world.now_ms >= wake_ms,
            wake_at=lambda: wake_ms,
        )
        self._world.perform(self._actor, call)

    def _drifted(self) -> int:
        now_ms = self._world.now_ms
        return now_ms + now_ms % 1_000_000_000 * self._actor.drift_ppm // 1_000_000

    def _seen(self, value_ms: int) -> int:
        if self._world.exploring:
            self._actor.observe(value_ms)
        return value_ms


class SimIds:
    """Readable names that are unique in the world; chance from the seed."""

    def __init__(self, world: SimulatedSystem, actor: ActorState) -> None:
        self._world = world
        self._actor = actor
        self._letters = "abcdef"[(actor.index - 1) % 6] * 4

    def uuid(self) -> str:
        return f"{self._letters}{self._actor.index:04x}-0000-4000-8000-{self._next():012x}"

    def nonce(self) -> str:
        return f"{self._letters}{self._actor.index:04x}{self._next():024x}"

    def jitter(self) -> float:
        return self._actor.random.random()

    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(
            host="simulated",
            pid=1000 + self._actor.index,
            writer_id=f"{self._actor.name}-{self._actor.index}",
            application=self._world.scenario,
        )

    def _next(self) -> int:
        self._actor.ids_drawn += 1
        return self._actor.ids_drawn


class SimEvents:
    """Keeps every event with its step; ``World.counters`` counts the names."""

    def __init__(self, world: SimulatedSystem, actor: ActorState) -> None:
        self._world = world
        self._actor = actor

    def emit(self, name: str, /, **fields: Value) -> None:
        self._world.events.append((self._world.step, self._actor.name, name, fields))
        self._world.counters[name] += 1

    def sometimes(self, name: str, *, condition: bool = True) -> None:
        """Count that a rare state was reached; a zero after many runs is a finding (I20)."""
        self._world.counters[name] += int(condition)


class SimTicker:
    """A background repetition; the scheduler runs it as a move of its actor."""

    def __init__(self, ticker: TickerState) -> None:
        self._ticker = ticker

    def stop(self) -> None:
        self._ticker.stopped = True


class SimExecutor:
    """
    Work of one actor, one task after the other; its port calls are the switching points.

    Args:
        world: Its time drives the background work.
        actor: The worker.
        events: Receives failures of background work.
        shuffled: Take the tasks in an order drawn from the actor's seed.
    """

    def __init__(
        self,
        world: SimulatedSystem,
        actor: ActorState,
        events: SimEvents,
        *,
        shuffled: bool = False,
    ) -> None:
        self._world = world
        self._actor = actor
        self._events = events
        self._shuffled = shuffled

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        order = list(range(len(tasks)))
        if self._shuffled:
            self._actor.random.shuffle(order)
        return in_order(order, work, tasks)

    def concurrently(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        return self.map(_made, calls)

    def every(self, interval_ms: int, work: Callable[[], None]) -> SimTicker:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the port: it ends in an event
                self._events.emit("executor.tick_failed", error=type(error).__name__)

        interval = max(interval_ms, 1)
        ticker = TickerState(
            actor=self._actor,
            interval_ms=interval,
            due_ms=self._world.now_ms + interval,
            work=guarded,
        )
        self._actor.tickers.append(ticker)
        return SimTicker(ticker)


def in_order(
    order: Iterable[int], work: Callable[[Task], Result], tasks: Sequence[Task]
) -> list[Result]:
    """Run all tasks in this order, then raise the first failure."""
    results: dict[int, Result] = {}
    first: Exception | None = None
    for place in order:
        try:
            results[place] = work(tasks[place])
        except Exception as error:  # noqa: BLE001 - raised below, when all have ended
            first = first or error
    if first is not None:
        raise first
    return [results[place] for place in range(len(tasks))]


def _made(call: Callable[[], Result]) -> Result:
    return call()


class SimLease:
    """One holding of a simulated lock."""

    def __init__(
        self, world: SimulatedSystem, actor: ActorState, identity: str, token: int
    ) -> None:
        self._world = world
        self._actor = actor
        self._identity = identity
        self._token = token
        self._released = False

    @property
    def fencing_token(self) -> int | None:
        return self._token

    @property
    def owner(self) -> str:
        return self._actor.name

    @property
    def is_shared(self) -> bool:
        return False

    def remaining_ms(self) -> int | None:
        remaining = self._world.lease_ms if self._is_held() else 0
        if self._world.exploring:
            self._actor.observe(remaining)
        return remaining

    def has_time_for_request(self) -> bool:
        return self.remaining_ms() != 0

    def assert_held(self) -> None:
        def apply() -> None:
            if not self._is_held():
                raise LeaseLostError("the lease was lost", owner=self._actor.name)

        self._call("assert_held", apply)

    def release(self) -> None:
        if self._released:
            return
        self._released = True

        def apply() -> None:
            if self._is_held():
                self._world.lock(self._identity).token = None

        self._call("release", apply)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _is_held(self) -> bool:
        return self._world.lock(self._identity).token == self._token

    def _call(self, method: str, apply: Callable[[], None]) -> None:
        call = PortCall("lock", method, self._identity, apply)
        self._world.perform(self._actor, call)


class SimLock:
    """
    A lock whose lease lives as long as its owner's process, unless a fault takes it.

    The scheduler chooses which waiting actor gets it.
    """

    provider = "simulated"
    is_fifo = False
    is_shareable = False  # how writers have a lock together is played with the real one

    def __init__(
        self, world: SimulatedSystem, actor: ActorState, identity: str = "table-lock"
    ) -> None:
        self._world = world
        self._actor = actor
        self.identity = identity

    def acquire(self, purpose: str) -> SimLease:
        lease = self.acquire_while(lambda: True, purpose)
        assert lease is not None
        return lease

    def acquire_while(
        self, wanted: Callable[[], bool], purpose: str, _sharing: LockSharing = LockSharing.NO
    ) -> SimLease | None:
        world, state = self._world, self._world.lock(self.identity)
        deadline_ms = world.now_ms + world.lock_budget_ms

        def ready() -> bool:
            return world.now_ms >= deadline_ms or state.is_free(world.now_ms) or not wanted()

        def wake_at() -> int:
            return deadline_ms if state.ends_ms is None else min(deadline_ms, state.ends_ms)

        def apply() -> int | None:
            if not state.is_free(world.now_ms):
                if world.now_ms < deadline_ms:
                    return None
                raise LockTimeoutError(
                    f"the lock was not free in time, held by {state.actor}", holder=state.actor
                )
            state.holdings += 1
            state.token, state.actor = state.holdings, self._actor.name
            state.purpose, state.ends_ms = purpose, None
            return state.holdings

        call = PortCall(
            "lock",
            "acquire",
            self.identity,
            apply,
            kind=CallKind.WAIT,
            ready=ready,
            wake_at=wake_at,
        )
        token = cast("int | None", world.perform(self._actor, call))
        return None if token is None else SimLease(world, self._actor, self.identity, token)

    def close(self) -> None:
        """Nothing to give up."""


class ClientLog:
    """The outcomes that a client of the engine reports for its operations, for the checkers."""

    def __init__(self, world: SimulatedSystem, actor: ActorState) -> None:
        self._world = world
        self._actor = actor

    def invoke(self, operation: str, keys: Sequence[str], *, deletes: bool = False) -> None:
        """Before the call: the operation's unique id and the record keys it writes."""
        self._say(ClientEventKind.INVOKE, operation, keys=tuple(keys), deletes=deletes)

    def ok(self, operation: str) -> None:
        """The engine reported a commit."""
        self._say(ClientEventKind.OK, operation)

    def fail(self, operation: str) -> None:
        """The engine said it did not and will not happen."""
        self._say(ClientEventKind.FAIL, operation)

    def info(self, operation: str) -> None:
        """The engine does not know."""
        self._say(ClientEventKind.INFO, operation)

    def read(self, operation: str, snapshot: int, rows: Mapping[str, tuple[str, ...]]) -> None:
        """A read of the snapshot whose newest slot is ``snapshot`` gave these rows."""
        self._say(ClientEventKind.READ, operation, snapshot=snapshot, rows=dict(rows))

    def _say(self, kind: ClientEventKind, operation: str, **details: object) -> None:
        self._world.client_event(self._actor.name, kind, operation, **details)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorPorts:
    """All ports of one actor, as its body gets them."""

    storage: SimStorage
    clock: SimClock
    ids: SimIds
    events: SimEvents
    executor: SimExecutor
    lock: SimLock
    client: ClientLog
    state: ActorState
    zone: Callable[[], TimelineZone]


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """
    One process of a scenario.

    Args:
        name: Unique within the run.
        body: Its program; it gets its ports and ends by returning.
        clock_offset_ms: Error of its wall clock.
        drift_ppm: How much faster its clocks run, parts in a million.
        start_after: Name of the actor whose end or crash starts this one; None at once.
        shuffled: Its storage is a high-latency store, and its executor takes tasks in drawn order.
        atomic_create: False gives it a storage without create-if-absent.
        may_raise: Errors that its body may end with; any other error fails the run.
    """

    name: str
    body: Callable[[ActorPorts], object]
    clock_offset_ms: int = 0
    drift_ppm: int = 0
    start_after: str | None = None
    shuffled: bool = False
    atomic_create: bool = True
    may_raise: tuple[type[Exception], ...] = ()


def make_ports(
    world: SimulatedSystem, actor: ActorState, *, shuffled: bool = False, atomic_create: bool = True
) -> ActorPorts:
    """The ports of one actor; ``shuffled`` as of ``Actor``."""
    events = SimEvents(world, actor)
    return ActorPorts(
        storage=SimStorage(world, actor, atomic_create=atomic_create, far=shuffled),
        clock=SimClock(world, actor),
        ids=SimIds(world, actor),
        events=events,
        executor=SimExecutor(world, actor, events, shuffled=shuffled),
        lock=SimLock(world, actor),
        client=ClientLog(world, actor),
        state=actor,
        zone=lambda: world.zone,
    )
