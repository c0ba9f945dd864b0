"""All ports of one table in one value; and clock, ids, events and executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from timeline.model.instant_time import TimelineZone, utc_zone
from timeline.ports.lock import Lock
from timeline.ports.merger import RecordMerger
from timeline.ports.storage import Storage

__all__ = [
    "Clock",
    "ClusterExecutor",
    "Event",
    "EventSink",
    "Executor",
    "Ids",
    "Ports",
    "ProcessIdentity",
    "Ticker",
]


# ---- The clock port: wall time names instants, monotonic time measures waits


class Clock(Protocol):
    """This process's clocks, in milliseconds."""

    def now_ms(self) -> int:
        """Return the wall clock, ms since 1970-01-01 UTC; it may jump."""

    def monotonic_ms(self) -> int:
        """Return a time that never decreases; only differences have a meaning."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait; the simulator may switch to another task here."""


# ---- The identity port: the source of every random number and name of the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """The identity of this process for others (SEC6: no environment, no stack, no settings)."""

    host: str
    pid: int
    writer_id: str  # unique per process and start
    application: str  # the user's text (``hoodie.write.application.id``), may be empty

    @property
    def as_metadata(self) -> dict[str, str]:
        """Return the identity for an instant's extra metadata, where it outlives the slot."""
        told = {
            "hoodoo.writer": self.writer_id,
            "hoodoo.host": self.host,
            "hoodoo.pid": str(self.pid),
        }
        return told | ({"hoodoo.application": self.application} if self.application else {})


class Ids(Protocol):
    """Randomness and identity."""

    def uuid(self) -> str:
        """Return a random UUID, lower-case hex with dashes."""

    def nonce(self) -> str:
        """Return 128 random bits as 32 hex digits."""

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""

    def identity(self) -> ProcessIdentity:
        """Return the identity of this process."""


# ---- The event port: events for logs, metrics, progress and the tests' counters

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Event:
    """One event: a dotted name (``publish.refused``) and plain values."""

    name: str
    fields: Mapping[str, Value]


class EventSink(Protocol):
    """Receive events; never raise and never block."""

    def emit(self, name: str, /, **fields: Value) -> None:
        """Process one event."""


# ---- The executor port: parallel work, and repeated work in the background

Task = TypeVar("Task")
Result = TypeVar("Result")


class Ticker(Protocol):
    """A running background repetition."""

    def stop(self) -> None:
        """End it; return when no further call can start. A second call does nothing."""


class Executor(Protocol):
    """Run the engine's own functions on this machine."""

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        Run ``work`` on every task, in any order, and return the results in task order.

        The first exception is raised after all started tasks ended (PUB-2: no straggler).
        """

    def at_once(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """As ``map``, for calls that only wait for the storage."""

    def every(self, interval_ms: int, work: Callable[[], None]) -> Ticker:
        """Call ``work`` every ``interval_ms`` until stopped; its exceptions end in an event."""


@runtime_checkable
class ClusterExecutor(Executor, Protocol):
    """
    An executor that also sends work to other processes, on a cluster.

    The work uses the ports of the process where it runs, not the caller's. It is a plain function,
    and its tasks and results are values.
    """

    def spread(self, work: Callable[[Ports, Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        Run ``work`` like ``map``, in other processes.

        Raises:
            HoodooError: The error that a task raised.
        """


# ---- All ports of one table in one value, passed explicitly; there are no globals

One = TypeVar("One")
Two = TypeVar("Two")
Three = TypeVar("Three")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything outside the engine, for one writer or reader of one table."""

    storage: Storage
    clock: Clock
    ids: Ids
    events: EventSink
    executor: Executor
    lock: Lock
    mergers: tuple[RecordMerger, ...] = ()  # from the plug-ins that the caller allows
    zone: Callable[[], TimelineZone] = utc_zone  # this process's, for tables of zone LOCAL

    @overload
    def together(self, one: Callable[[], One], two: Callable[[], Two], /) -> tuple[One, Two]: ...

    @overload
    def together(
        self, one: Callable[[], One], two: Callable[[], Two], three: Callable[[], Three], /
    ) -> tuple[One, Two, Three]: ...

    @overload
    def together(self, *calls: Callable[[], One]) -> tuple[One, ...]: ...

    def together(self, *calls: Callable[[], Any]) -> tuple[Any, ...]:
        """
        Make independent calls and return their results in the order of the calls.

        On a high-latency store all calls run at once, in any order, and take the time of the
        longest. On a local store they run one after the other, because such a call ends before a
        thread has started. The first failure is raised after all started calls have ended.
        """
        if len(calls) > 1 and self.storage.capabilities.far:
            return tuple(self.executor.at_once(calls))
        return tuple(call() for call in calls)

    def each(self, work: Callable[[One], Two], items: Sequence[One]) -> list[Two]:
        """
        Make the same small request for each item, in any order; return results in item order.

        On a high-latency store it works like ``together``, else on as many threads as there are
        processors.
        """
        if self.storage.capabilities.far:
            return list(self.together(*(partial(work, item) for item in items)))
        return self.executor.map(work, items)
