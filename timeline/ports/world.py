"""All ports of one table in one value, passed down explicitly; there are no globals."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.ports.clock import Clock
from timeline.ports.events import EventSink
from timeline.ports.executor import Executor
from timeline.ports.ids import Ids
from timeline.ports.lock import Lock
from timeline.ports.merger import RecordMerger
from timeline.ports.storage import Storage

__all__ = ["World"]


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
