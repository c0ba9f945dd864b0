"""The event port: what happened, for logs, metrics, progress and the tests' counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Event", "EventSink"]

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
