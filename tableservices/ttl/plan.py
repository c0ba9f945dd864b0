"""
Which partitions have expired: a pure decision from one time for each (as Java Hudi, KEEP_BY_*).

A partition expires when its days are over at the moment of the look, to the millisecond. The
oldest go first, so that a bound on their number delays the youngest.

Worked example, also a test: kept for 2 days, now the 10th at noon; last written on the 8th
at 11:59 goes, on the 8th at 12:00 stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from timeline.model.times import InstantTime, WallMs, instant_time, wall_ms
from timeline.model.zones import UTC_ZONE, TimelineZone

__all__ = ["expired"]

_DAY_MS = 24 * 3_600_000


def expired(
    since: Mapping[str, InstantTime],
    *,
    now: WallMs,
    days_retained: int,
    partitions_max: int,
    zone: TimelineZone = UTC_ZONE,
) -> tuple[str, ...]:
    """
    Partition paths whose days are over, oldest first.

    Args:
        since: Partition path -> the instant time from which its days count.
        now: Ms since 1970-01-01 UTC.
        days_retained: How many days a partition is kept; none expires unless it is positive.
        partitions_max: At most so many.
        zone: The table's, whose clock wrote the times.
    """
    if days_retained <= 0:
        return ()
    line = zone.from_then_on(now - days_retained * _DAY_MS)
    # A time of 14 digits stands for the last millisecond of its second.
    over = sorted(
        (instant_time(wall_ms(time)), path)
        for path, time in since.items()
        if instant_time(wall_ms(time)) < line
    )
    return tuple(path for _, path in over[:partitions_max])
