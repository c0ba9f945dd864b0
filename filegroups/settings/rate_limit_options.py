"""
Options of the rate limit: how often writes of a table begin, of all writers together.

Part of the table in ``filegroups.settings.option_table``, with the functions that read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeline.properties.options import Option, OptionKind
from timeline.rules.retry import RateLimit

if TYPE_CHECKING:
    from filegroups.settings.settings import WriteSettings

__all__ = ["RATE_LIMIT_OPTIONS", "contradiction_of_rate_limit", "rate_limit_of"]

# By the field of WriteSettings that the option sets.
RATE_LIMIT_OPTIONS: Final[dict[str, Option]] = {
    "pace_per_minute": Option(
        key="hoodoo.commit.pace.per.minute",
        default="0",
        kind=OptionKind.FLOAT,
        doc="So many writes of all writers together begin in a minute, the others wait before "
        "they begin; 0.2 is one in five minutes, 0 no pace. Services do not wait.",
    ),
    "pace_burst": Option(
        key="hoodoo.commit.pace.burst",
        default="1",
        kind=OptionKind.INT,
        doc="So many writes may begin at once after a rest.",
    ),
    "pace_wait_ms_max": Option(
        key="hoodoo.commit.pace.max.wait.ms",
        default="600000",
        kind=OptionKind.MS,
        doc="A write that waited so long for the pace begins all the same.",
    ),
}


def contradiction_of_rate_limit(settings: WriteSettings) -> tuple[str, str, str] | None:
    """Return what is wrong with the rate limit: field, message, suggestion; None if nothing."""
    pace = rate_limit_of(settings)
    if pace is None or pace.interval_ms <= pace.wait_ms_max:
        return None
    return (
        "pace_wait_ms_max",
        "no write would wait long enough for the pace that is asked for",
        f"use at least {round(pace.interval_ms)}",
    )


def rate_limit_of(settings: WriteSettings) -> RateLimit | None:
    """Return the rate limit of the settings; None for none."""
    if not settings.pace_per_minute:
        return None
    return RateLimit(
        per_minute=settings.pace_per_minute,
        burst=settings.pace_burst,
        wait_ms_max=settings.pace_wait_ms_max,
    )
