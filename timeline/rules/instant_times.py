"""
Choose the next time on a timeline (TL-SUCC-1, TL-SUCC-2, TL-RES-1).

The order must not depend on clocks. A new time is above every time on the timeline, and the clock
only decides how far above. The residue modulo 4 ms shows which step drew a time. So a requested
time drawn at begin never equals a time drawn in a slot, even if neither sees the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import ClockRefusedError, InvalidInputError, UnsupportedTableError
from timeline.model.instant import (
    UTC_ZONE,
    Action,
    InstantTime,
    TimelineZone,
    WallMs,
    instant_time,
    wall_ms,
)

_MODULUS = 4


class Residue(IntEnum):
    """Milliseconds modulo 4 of a drawn time (TL-RES-1)."""

    BEGIN = 0  # requested time of a commit or deltacommit
    SLOT_REQUESTED = 1  # requested time drawn inside a slot: plans, cleans, rollbacks
    BEGIN_REPLACE = 2  # requested time of a replacecommit
    SLOT_COMPLETION = 3  # completion time


def begin_residue(action: Action) -> Residue:
    """Return the residue of a requested time that is drawn when an action begins."""
    return Residue.BEGIN_REPLACE if action is Action.REPLACECOMMIT else Residue.BEGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewLimits:
    """How far the newest time on a timeline may be ahead of this clock (TL-SUCC-2)."""

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
        newest: Largest requested or completion time anywhere on the timeline or in a slot; None
            for an empty timeline.
        residue: The residue of the step that draws the time.
        limits: How far ``newest`` may be ahead of ``now`` before it is refused.
        zone: The table's. While its clock repeats an hour, times continue above those of the first
            pass in steps of a few milliseconds.

    Returns:
        The smallest time with this residue that is at or after ``now`` and above ``newest``.

    Raises:
        ClockRefusedError: ``newest`` is further ahead than ``limits.refuse_ms``: one wrong clock
            must not move the table into the future.

    Spec: TL-SUCC-1, TL-SUCC-2, TL-RES-1 (compare Delta's in-commit timestamp rule).
    """
    shown_ms = wall_ms(zone.instant_time(now))  # from the digits alone, as they are ordered
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
    Return how far the newest time is ahead of a clock, in ms.

    An hour by which the zone's clock was set back does not count. Times of its first pass are
    above the times that the clock repeats, and so are later times until the clock reaches them.
    """
    if newest is None:
        return 0
    return min(zone.wall_ms(newest) - now, wall_ms(newest) - wall_ms(zone.latest_until(now)))


# ---- Folder names of timestamp columns
# Java Hudi writes three forms, and no property of the table records which (fmt 4.1). A DataFrame
# write uses the stored number, or with
# ``hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled`` the text of
# ``java.sql.Timestamp``. Spark SQL uses seconds with escaped colons. The last two are in the time
# zone of the process that wrote.

_SHAPE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d(?::|%3A)\d\d(?::|%3A)\d\d(\.\d{1,9})?")


class TimestampForm(Enum):
    """The form of a timestamp as a folder name."""

    NUMBER = "number"  # 1678451400000000
    TIMESTAMP = "timestamp"  # 2023-03-10 12:30:00.0
    SQL = "sql"  # 2023-03-10 12%3A30%3A00


@dataclass(frozen=True, slots=True)
class TimestampTexts:
    """
    The form of a table's timestamp folders, and the zone of their times.

    ``or_zone`` is a second zone that also fits all folders with rows.
    """

    form: TimestampForm = TimestampForm.NUMBER
    zone: str = "UTC"
    or_zone: str = ""


#: The form of a DataFrame write of Java Hudi.
NUMBERS: Final = TimestampTexts()


def form_of(text: str) -> TimestampForm | None:
    """Return the form of a partition value in a folder name; None if it is no timestamp."""
    if re.fullmatch(r"-?\d+", text):
        return TimestampForm.NUMBER
    found = _SHAPE.fullmatch(text)
    if found is None:
        return None
    return TimestampForm.SQL if found[1] is None else TimestampForm.TIMESTAMP


def timestamp_texts(moments: pa.Array, how: TimestampTexts, name: str) -> pa.Array:
    """
    Format timestamps with a zone as folder names; nulls stay.

    Shapes: (n,) timestamps -> (n,) texts, colons of the SQL form escaped.

    Raises:
        InvalidInputError: The zone is unknown here (``bad_time_zone``).
        UnsupportedTableError: Two zones are possible, and a timestamp differs between them
            (``partition_zone``).
    """
    texts = _texts_in(moments, how.form, how.zone, name)
    if how.or_zone:
        differ = pc.not_equal(texts, _texts_in(moments, how.form, how.or_zone, name))
        if pc.any(differ).as_py():
            raise UnsupportedTableError(
                "the table's folders fit two time zones, and the row's moment has another folder "
                "in each; let another writer of the table write a row of such a moment first, or "
                "run this with TZ=UTC where all writers of the table do: "
                f"column={name!r} zones={[how.zone, how.or_zone]} "
                f"moment={moments.filter(differ)[0].as_py()}",
                kind="partition_zone",
                feature="folders of moments in one of two zones",
            )
    return texts


def _texts_in(moments: pa.Array, form: TimestampForm, zone: str, name: str) -> pa.Array:
    fine = pc.cast(moments, pa.timestamp("us", moments.type.tz))
    try:
        clock = pc.local_timestamp(pc.cast(fine, pa.timestamp("us", zone)))
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"folders of moments show the clock of a zone that is not known here; set TZ to its "
            f"name as the operating system spells it: column={name!r} zone={zone!r}: {error}",
            kind="bad_time_zone",
            column=name,
        ) from error
    if form is TimestampForm.SQL:
        seconds = pc.cast(pc.floor_temporal(clock, unit="second"), pa.timestamp("s"))
        return pc.replace_substring(pc.cast(seconds, pa.string()), ":", "%3A")
    texts = pc.cast(clock, pa.string())
    return pc.replace_substring_regex(texts, r"(\.\d+?)0*$", r"\1")
