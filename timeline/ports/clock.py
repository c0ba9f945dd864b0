"""The clock port: wall time names instants, monotonic time measures waits; they never mix."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """This process's clocks, in milliseconds."""

    def now_ms(self) -> int:
        """Wall clock, ms since 1970-01-01 UTC; may jump."""

    def monotonic_ms(self) -> int:
        """Never goes back; only differences mean anything."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait; a switching point in simulation."""
