"""List the instants of a table, active and archived, as shown to users."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.context import TableContext
from timeline.model.instant import Instant, State
from timeline.model.instant_time import InstantTime


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One instant, active or archived."""

    requested_time: InstantTime
    completion_time: InstantTime | None
    action: str
    state: str
    archived: bool


def timeline_entries(context: TableContext, *, archived: bool = True) -> list[TimelineEntry]:
    """Return every instant, ascending by requested time, with the archived ones on request."""
    active = context.active()
    found = [_entry(instant) for instant in active.instants]
    if archived:
        present = {(entry.requested_time, entry.action) for entry in found}
        found.extend(
            TimelineEntry(
                requested_time=row.requested_time,
                completion_time=row.completion_time,
                action=row.action,
                state=State.COMPLETED.value,
                archived=True,
            )
            for row in context.archived_timeline.instants()
            if (row.requested_time, row.action) not in present
        )
    return sorted(found, key=lambda entry: (entry.requested_time, entry.action))


def _entry(instant: Instant) -> TimelineEntry:
    action = instant.action.completes_as if instant.completed else instant.action
    return TimelineEntry(
        requested_time=instant.requested_time,
        completion_time=instant.completion_time,
        action=action.value,
        state=instant.state.value,
        archived=False,
    )
