"""The short forms of instants and times: ``@-1``, the first digits, ``2h``, ``yesterday``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Final

from hoodoo.inspect.instants import time_text
from timeline.context import TableContext
from timeline.entries import timeline_entries
from timeline.errors import InstantNotFoundError, InvalidInputError, counted
from timeline.model.instant import Instant
from timeline.model.instant_time import InstantTime, WallMs
from timeline.model.time_arguments import nearest_instants, parse_time_travel

_NEWEST: Final = re.compile(r"@-([1-9]\d{0,5})", re.ASCII)
_DIGITS_MIN: Final = 4  # of a prefix
_PREFIX: Final = re.compile(r"\d{4,13}|\d{15,16}", re.ASCII)
_AGO: Final = re.compile(r"(\d{1,6}) ?(s|m|min|h|d|w)(?: ago)?", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DATE: Final = re.compile(r"\d{4}-\d", re.ASCII)
_SHOWN_MAX: Final = 5
_FORMS: Final = (
    "an INSTANT or a TIME is an instant of 'hoodoo log TABLE' or its first digits (at least 4), "
    "@-1 for the newest write, an ISO time such as 2026-01-31T12:00, 2h for 2 hours ago, now, "
    "today or yesterday"
)


def instant_named(
    context: TableContext, text: str, among: Sequence[Instant] | None = None
) -> InstantTime:
    """
    Return the requested time of the instant that a text names.

    Args:
        context: The table; its timeline is read.
        text: ``@-1`` is the newest completed write, ``@-2`` the one before. Digits are a requested
            or completion time, or its first digits, at least 4. Any other form of ``time_named``
            means the newest completed write until that time.
        among: The instants that are meant instead of completed writes, such as pending plans.

    Raises:
        InvalidInputError: No or several instants begin with the digits, or the text has another
            form (``instant_time``).
        InstantNotFoundError: No such instant is as old as the time (``instant_unknown``).
    """
    found = _instant_of(context, text.strip(), among)
    if found is not None:
        return found[0]
    named = time_named(context, text)
    exact = context.parse_instant(named)
    known = {
        one
        for each in timeline_entries(context)
        for one in (each.requested_time, each.completion_time)
    }
    if (named.isdecimal() and named == text.strip()) or exact in known:
        return exact
    until = parse_time_travel(named, context.zone)
    chosen = context.snapshot().active.completed_writes if among is None else among
    times = sorted(one.requested_time for one in chosen)
    if times and times[0] <= until:
        return max(time for time in times if time <= until)
    what, zone = "completed write" if among is None else "such instant", context.zone.name
    oldest = f"the oldest is {times[0]}" if times else f"the table has no {what}"
    raise InstantNotFoundError(
        f"no {what} began until {time_text(until)} {zone}; {oldest}; 'hoodoo log TABLE' lists "
        f"the instants: {text}",
        kind="instant_unknown",
        requested_time=exact,
    )


def time_named(context: TableContext, text: str, *, completed: bool = False) -> str:
    """
    Return a time that a text names in the digits of the table, or the text if it is a plain time.

    Args:
        context: The table; ``yesterday`` and the digits of the result are in its time zone.
        text: ``2h``, ``30min``, ``1d`` or ``1d ago``, ``now``, ``today`` or ``yesterday`` (its
            first moment), an instant in a form of ``instant_named``, or a form of ``Table.as_of``.
        completed: Return the completion time of an instant, not its requested time.

    Raises:
        InvalidInputError: As ``instant_named``.
    """
    plain = text.strip().lower()
    found = _instant_of(context, plain)
    if found is not None:
        return found[1] if completed else found[0]
    now_ms = context.ports.clock.now_ms()
    if match := _AGO.fullmatch(plain):
        now_ms -= int(match[1]) * _SECONDS[match[2]] * 1000
    elif plain not in ("now", "today", "yesterday"):
        if not (completed and plain == "earliest"):
            _refuse_other_form(context, text.strip())
        return text
    digits = context.zone.instant_time(WallMs(now_ms))
    if plain in ("today", "yesterday"):
        day = date(int(digits[:4]), int(digits[4:6]), int(digits[6:8]))
        return str(day - timedelta(days=plain == "yesterday"))
    return digits


def _refuse_other_form(context: TableContext, text: str) -> None:
    """Raise an error that lists the forms of the command line, if the text has none of them."""
    short = text.isdecimal() and text.strip("0") != "" and len(text) < _DIGITS_MIN
    try:
        if not short:
            context.parse_instant(text)
            return
    except InvalidInputError:
        if _DATE.match(text):  # such as a month that does not exist
            raise
    raise InvalidInputError(f"{_FORMS}, not {text!r}", kind="instant_time", value=text)


def _instant_of(
    context: TableContext, text: str, among: Sequence[Instant] | None = None
) -> tuple[InstantTime, InstantTime] | None:
    """Return the requested and the completion time of an instant that a text names as such."""
    if match := _NEWEST.fullmatch(text):
        writes = context.snapshot().active.completed_writes if among is None else among
        if int(match[1]) <= len(writes):
            one = writes[-int(match[1])]
            return one.requested_time, one.completion_time or one.requested_time
        raise InvalidInputError(
            f"the active timeline has only {len(writes)} "
            f"{'completed writes' if among is None else 'such instants'}: {text}; "
            "'hoodoo log TABLE' lists them",
            kind="instant_time",
            value=text,
        )
    if not _PREFIX.fullmatch(text):
        return None
    instants = timeline_entries(context) if among is None else among
    found = [
        (one.requested_time, one.completion_time or one.requested_time)
        for one in instants
        if one.requested_time.startswith(text) or (one.completion_time or "").startswith(text)
    ]
    if len(found) == 1:
        return found[0]
    what = f"{counted(len(found), 'instant')} begin" if found else "no instant begins"
    shown = ", ".join(requested for requested, _ in found[:_SHOWN_MAX])
    if not found:
        *_, shown = nearest_instants(text, [one.requested_time for one in instants])
    raise InvalidInputError(
        f"{what} with {text}: {shown}; 'hoodoo log TABLE' lists them",
        kind="instant_time",
        value=text,
    )
