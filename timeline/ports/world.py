"""All ports of one table in one value, passed down explicitly; there are no globals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, overload

from timeline.model.zones import TimelineZone, utc_zone
from timeline.ports.clock import Clock
from timeline.ports.events import EventSink
from timeline.ports.executor import Executor
from timeline.ports.ids import Ids
from timeline.ports.lock import Lock
from timeline.ports.merger import RecordMerger
from timeline.ports.storage import Storage

__all__ = ["World"]

One = TypeVar("One")
Two = TypeVar("Two")
Three = TypeVar("Three")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
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
