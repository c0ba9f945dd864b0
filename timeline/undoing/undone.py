"""
What completed rollbacks and restores tell about the instants that they took away.

Slots tell it as well, until the archive collects them (GC-2); these instants stay, on the
timeline or in the history, and other engines leave nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from timeline.active import ActiveTimeline
from timeline.codecs.history_rows import HistoryInstant
from timeline.codecs.instant_avro import decode_restore
from timeline.codecs.legacy_commit import decode_archived_rollback
from timeline.context import TableContext
from timeline.model.filenames import instant_file_name
from timeline.model.instant import Action, Instant
from timeline.model.times import InstantTime
from timeline.places import HISTORY
from timeline.ports.storage import ObjectMissingError

__all__ = ["Undoing", "undoings"]

_UNDOING = {one.value: one for one in (Action.ROLLBACK, Action.RESTORE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoing:
    """A completed rollback or restore, and the requested times of what it took away."""

    action: Action
    requested_time: InstantTime
    completion_time: InstantTime
    targets: frozenset[InstantTime]


def undoings(
    context: TableContext, active: ActiveTimeline, archived: Iterable[HistoryInstant]
) -> Iterator[Undoing]:
    """
    Every completed rollback and restore that tells anything.

    A target may be committed all the same: a plan that was rolled back is carried out again.
    Outside: 1 get per rollback and restore on the timeline.

    Args:
        context: The table.
        active: Its timeline.
        archived: Its history, read after that and with its content.

    Raises:
        CorruptTableError: One of them is damaged.
    """
    for one in active.instants:
        if one.completed and one.action.value in _UNDOING:
            path = context.instant_path(instant_file_name(one))
            yield from _told(one, _content(context, one, path), path)
    for row in archived:
        if row.action in _UNDOING:
            yield from _told(row, row.metadata, f"{HISTORY} ({row.requested_time})")


def _content(context: TableContext, instant: Instant, path: str) -> bytes | None:
    try:
        return context.world.storage.read(path)
    except ObjectMissingError:  # archived since it was listed
        row = context.history.find(instant.requested_time, instant.action.value)
        return None if row is None else row.metadata


def _told(one: Instant | HistoryInstant, content: bytes | None, path: str) -> Iterator[Undoing]:
    if not content:
        return
    action = one.action if isinstance(one.action, Action) else _UNDOING[one.action]
    if action is Action.ROLLBACK:
        targets = decode_archived_rollback(content, path=path).commits_rollback
    else:
        targets = decode_restore(content, path=path).instants_to_rollback
    yield Undoing(
        action=action,
        requested_time=one.requested_time,
        completion_time=one.completion_time or one.requested_time,
        targets=frozenset(targets),
    )
