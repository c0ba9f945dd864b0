"""
The clock of an object store, read from the stamps it puts on objects.

Heartbeats are judged by the store's stamps; a machine whose own clock is off by minutes
would take every living writer for dead (F12). Stores tell their time only by stamping, in
whole seconds, so this clock is learned from a small object and kept by the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable

from timeline.errors import UnavailableError
from timeline.ports.clock import Clock

__all__ = ["CLOCK_OBJECT", "StoreClock"]

CLOCK_OBJECT = ".hoodie/.hoodoo/probe/clock"

_AGE_MS_MAX = 10 * 60_000  # a quartz drifts less than a stamp is coarse in this time
_SECOND_MS = 1_000


class StoreClock:
    """
    The store's time.

    Args:
        clock: The own clocks.
        stamp: Writes the object of this path and gives the store's stamp on it, ms since 1970.
        path: Path of the object that is written.
    """

    def __init__(
        self, clock: Clock, stamp: Callable[[str], int], *, path: str = CLOCK_OBJECT
    ) -> None:
        self._clock = clock
        self._stamp = stamp
        self._path = path
        self._ahead_ms = 0  # of the store's time over the own monotonic clock
        self._read_at_ms: int | None = None

    def now_ms(self) -> int:
        """
        The store's time in whole seconds, as it stamps, ms since 1970 UTC.

        Where the store cannot be asked (no right to write), the own clock has to do.
        Outside: 1 put and 1 head, once in ten minutes.
        """
        monotonic_ms = self._clock.monotonic_ms()
        if self._read_at_ms is None or monotonic_ms - self._read_at_ms > _AGE_MS_MAX:
            self._read()
        now_ms = self._clock.monotonic_ms() + self._ahead_ms
        return now_ms - now_ms % _SECOND_MS

    def _read(self) -> None:
        sent_ms, sent_wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        try:
            stamp_ms = self._stamp(self._path)
        except UnavailableError:
            if self._read_at_ms is None:
                self._ahead_ms = sent_wall_ms - sent_ms
            self._read_at_ms = self._clock.monotonic_ms()  # asked again as late as otherwise
            return
        got_ms = self._clock.monotonic_ms()
        # The stamp was put between sending and answer and its second is cut off.
        least, most = stamp_ms - got_ms, stamp_ms + _SECOND_MS - sent_ms
        own = sent_wall_ms - sent_ms
        self._ahead_ms = own if least <= own < most else (least + most) // 2
        self._read_at_ms = got_ms
