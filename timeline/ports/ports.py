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


# --------- The clock port: wall time names instants, monotonic time measures waits; they never mix


class Clock(Protocol):
    """This process's clocks, in milliseconds."""

    def now_ms(self) -> int:
        """Wall clock, ms since 1970-01-01 UTC; may jump."""

    def monotonic_ms(self) -> int:
        """Never goes back; only differences mean anything."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait; a switching point in simulation."""


# ------------------- The identity port: every random number and name of the engine comes from here


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Who this process is, as others may be told (SEC6: no environment, no stack, no settings)."""

    host: str
    pid: int
    writer_id: str  # unique per process and start
    application: str  # text the user gave (``hoodie.write.application.id``), may be empty

    @property
    def as_metadata(self) -> dict[str, str]:
        """The same for the extra metadata of an instant, where it outlives the slot."""
        told = {
            "hoodoo.writer": self.writer_id,
            "hoodoo.host": self.host,
            "hoodoo.pid": str(self.pid),
        }
        return told | ({"hoodoo.application": self.application} if self.application else {})


class Ids(Protocol):
    """Randomness and identity."""

    def uuid(self) -> str:
        """A random UUID, lower-case hex with dashes."""

    def nonce(self) -> str:
        """128 random bits as 32 hex digits."""

    def jitter(self) -> float:
        """A random number in [0, 1)."""

    def identity(self) -> ProcessIdentity:
        """This process."""


# -------------- The event port: what happened, for logs, metrics, progress and the tests' counters

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: a dotted name (``publish.refused``) and plain values."""

    name: str
    fields: Mapping[str, Value]


class EventSink(Protocol):
    """Receives events; must never raise and never block."""

    def emit(self, name: str, /, **fields: Value) -> None:
        """Take one event."""


# ---------------- The executor port: work side by side, and work again and again in the background

Task = TypeVar("Task")
Result = TypeVar("Result")


class Ticker(Protocol):
    """A running background repetition."""

    def stop(self) -> None:
        """End it; returns when no further call can start. Calling twice is no error."""


class Executor(Protocol):
    """Runs the engine's own functions on this machine."""

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        Run ``work`` on every task, in any order, and return the results in task order.

        The first exception is raised after all started tasks ended (PUB-2: no straggler).
        """

    def at_once(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """As ``map``, for calls that do nothing but wait for the storage."""

    def every(self, interval_ms: int, work: Callable[[], None]) -> Ticker:
        """Call ``work`` every ``interval_ms`` until stopped; its exceptions end in an event."""


@runtime_checkable
class ClusterExecutor(Executor, Protocol):
    """
    An executor that also sends work to other processes, on a cluster.

    What it sends meets ports of the place where it runs, not the caller's: it is a plain
    function, and its tasks and results are values.
    """

    def spread(self, work: Callable[[Ports, Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """
        As ``map``, elsewhere.

        Raises:
            HoodooError: What a task raised.
        """


# --------------- All ports of one table in one value, passed down explicitly; there are no globals

One = TypeVar("One")
Two = TypeVar("Two")
Three = TypeVar("Three")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything outside the engine, as one writer or reader of one table sees it."""

    storage: Storage
    clock: Clock
    ids: Ids
    events: EventSink
    executor: Executor
    lock: Lock
    mergers: tuple[RecordMerger, ...] = ()  # of the plug-ins that the caller allows
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
        Make calls that do not wait for each other, and return their answers in their order.

        Where the storage is far away they are under way at once, in any order, and take the
        time of the longest; else they are made one after the other, because a call on this
        machine is over before a thread has begun. The first failure is raised when all have
        ended that had begun.
        """
        if len(calls) > 1 and self.storage.capabilities.far:
            return tuple(self.executor.at_once(calls))
        return tuple(call() for call in calls)

    def each(self, work: Callable[[One], Two], items: Sequence[One]) -> list[Two]:
        """
        One and the same small request for many things, in any order; answers in theirs.

        Where the storage is far away as ``together``, else on as many threads as there are
        processors.
        """
        if self.storage.capabilities.far:
            return list(self.together(*(partial(work, item) for item in items)))
        return self.executor.map(work, items)
