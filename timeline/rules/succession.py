"""
Which time comes next on a timeline (TL-SUCC-1, TL-SUCC-2, TL-RES-1).

Order must not depend on clocks: a new time is above every time already there, and the
clock only decides how far above. Residues modulo 4 milliseconds tell who drew a time, so
that a begin and a time fixed inside a slot can never be equal without either seeing it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from timeline.errors import ClockRefusedError
from timeline.model.instant import Action
from timeline.model.times import InstantTime, WallMs, instant_time, wall_ms
from timeline.model.zones import UTC_ZONE, TimelineZone

__all__ = ["Residue", "SkewLimits", "begin_residue", "next_instant_time"]

_MODULUS = 4


class Residue(IntEnum):
    """Milliseconds modulo 4 of a drawn time (TL-RES-1)."""

    BEGIN = 0  # requested time of a commit or deltacommit
    SLOT_REQUESTED = 1  # requested time drawn inside a slot: plans, cleans, rollbacks
    BEGIN_REPLACE = 2  # requested time of a replacecommit
    SLOT_COMPLETION = 3  # completion time


def begin_residue(action: Action) -> Residue:
    """The residue of requested times drawn at the begin of an action."""
    return Residue.BEGIN_REPLACE if action is Action.REPLACECOMMIT else Residue.BEGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewLimits:
    """How far the newest time on a timeline may lie ahead of this clock (TL-SUCC-2)."""

    warn_ms: int = 1_000
    refuse_ms: int = 600_000


def next_instant_time(
    now: WallMs,
    newest: InstantTime | None,
    residue: Residue,
    *,
    limits: SkewLimits,
    zone: TimelineZone = UTC_ZONE,
) -> InstantTime:
    """
    Choose the next time on one timeline.

    Args:
        now: This host's wall clock, ms since 1970-01-01 UTC.
        newest: Largest requested or completion time anywhere on the timeline or in a slot;
            None for an empty timeline.
        residue: Who draws the time.
        limits: How far ``newest`` may be ahead of ``now`` before it is refused.
        zone: The table's. While its clock shows an hour for the second time, times go on above
            the first pass in steps of a few milliseconds.

    Returns:
        The smallest time with this residue that is at or after ``now`` and above ``newest``.

    Raises:
        ClockRefusedError: ``newest`` is further ahead than ``limits.refuse_ms``: one wrong
            clock must not drag the table into the future.

    Spec: TL-SUCC-1, TL-SUCC-2, TL-RES-1 (compare Delta's in-commit timestamp rule).
    """
    shown_ms = wall_ms(zone.instant_time(now))  # of the digits alone, as their order is
    newest_ms = wall_ms(newest) if newest is not None else WallMs(0)
    ahead = ahead_ms(now, newest, zone)
    if ahead > limits.refuse_ms:
        other_zone = (
            ""
            if zone is UTC_ZONE
            else (
                f", or run with the time zone (TZ) of the table's other writers, here {zone.name},"
            )
        )
        raise ClockRefusedError(
            "the newest time on the timeline is ahead of this clock by more than "
            "hoodoo.clock.max.ahead.ms; correct the clock of this host or of the one that "
            f"wrote {newest}{other_zone}; a commit slot that no writer of yours made is ended by "
            f"'hoodoo table end-slot TABLE NUMBER': {ahead} ms ahead",
            newest_time=newest,
            ahead_ms=ahead,
            limit_ms=limits.refuse_ms,
        )
    least = max(shown_ms, newest_ms + 1)
    return instant_time(WallMs(least + (residue - least) % _MODULUS))


def ahead_ms(now: WallMs, newest: InstantTime | None, zone: TimelineZone) -> int:
    """
    How far the newest time is ahead of a clock.

    Not by the hour that a zone's clock was set back: times of its first pass are above those that
    the clock shows again, and the times after them, too, until the clock is there.
    """
    if newest is None:
        return 0
    return min(zone.wall_ms(newest) - now, wall_ms(newest) - wall_ms(zone.reached(now)))
