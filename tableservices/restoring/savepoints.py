"""
Savepoints: keep the files of one state, whatever the retention of cleaning (SAV-1).

The list of files is made before the commit section. The slot is taken only if no clean since may
have deleted one of them. From the slot on the cleaner respects the savepoint, because its commit
section compares the savepoints with those of its input (CLN-2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from filegroups.supported import refuse_old_version
from tableservices.restoring.state_at import (
    completed_write,
    files_of_state,
    refuse_cleaned,
    refuse_during_archiving,
    refuse_during_foreign_service,
    savepoint_times,
)
from timeline.codecs.instant_avro import decode_savepoint, encode_savepoint
from timeline.commit.apply import is_applied
from timeline.commit.section import open_commit
from timeline.context import TableContext
from timeline.errors import BudgetSpentError, InstantNotFoundError, InvalidInputError
from timeline.model.file_names import instant_file_name, join, parse_instant_name, timeline_path
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import SavepointMetadata, SavepointPartitionMetadata
from timeline.model.slot import Slot, SlotKind
from timeline.model.time_arguments import instant_not_found
from timeline.ports.ports import ObjectMissingError
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.truncation import slots_since_snapshot

_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A savepoint: the state of the table when the write ``requested_time`` completed."""

    requested_time: InstantTime
    completion_time: InstantTime | None  # of the savepoint; None for a planned one
    made_by: str
    comments: str
    files: tuple[str, ...]  # relative to the table


def savepoints(context: TableContext) -> list[Savepoint]:
    """Return every completed savepoint, oldest write first. Outside: 1 list, 1 get each."""
    found = []
    for one in context.active().instants:
        if one.action is not Action.SAVEPOINT or not one.completed:
            continue
        path = timeline_path(instant_file_name(one))
        try:
            metadata = decode_savepoint(context.ports.storage.read(path), path=path)
        except ObjectMissingError:
            continue  # deleted since it was listed
        found.append(
            Savepoint(
                requested_time=one.requested_time,
                completion_time=one.completion_time,
                made_by=metadata.savepointed_by,
                comments=metadata.comments,
                files=_paths(
                    {
                        path: kept.savepoint_data_file
                        for path, kept in metadata.partition_metadata.items()
                    }
                ),
            )
        )
    return found


def plan_savepoint(context: TableContext, requested_time: InstantTime | None = None) -> Savepoint:
    """Return the savepoint that ``savepoint`` would make. Arguments and errors: as there."""
    return _draft(context, requested_time)[1]


def savepoint(
    context: TableContext,
    requested_time: InstantTime | None = None,
    *,
    comments: str = "",
) -> Savepoint:
    """
    Keep the files of the table's state when a write completed.

    Outside: the view of every partition; 1 commit section (lock, list, create), 2 creates.

    Args:
        context: The table.
        requested_time: The write's; None for the newest completed one.
        comments: Text for people, kept in the savepoint.

    Raises:
        InstantNotFoundError: No such write on the active timeline, or files of that state were
            cleaned.
        InvalidInputError: The write has a savepoint already, or is being archived.
        ServiceConflictError: Another engine's clean, rollback or restore is pending.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``commit_write``.
        BudgetSpentError: The table was restored during every attempt.
    """
    nonce = context.ports.ids.nonce()
    for _ in range(_TRIES):
        seen, draft, body = _encoded(context, requested_time, comments)
        taken = _take(context, seen, draft, body, nonce)
        if taken is not None:
            context.ports.events.emit(
                "savepoint.done", rt=taken.requested_time, files=len(draft.files)
            )
            return Savepoint(
                requested_time=taken.requested_time,
                completion_time=taken.completion_time,
                made_by=draft.made_by,
                comments=comments,
                files=draft.files,
            )
    raise BudgetSpentError(
        f"the table was restored during every attempt: create the savepoint again: {_TRIES} "
        "attempts",
        attempts=_TRIES,
    )


def _draft(
    context: TableContext, requested_time: InstantTime | None
) -> tuple[Snapshot, Savepoint, Mapping[str, tuple[str, ...]]]:
    refuse_old_version(context.config)
    snapshot = context.snapshot()
    timeline = snapshot.active
    if requested_time is None:
        newest = timeline.newest_completed_write
        if newest is None:
            raise InstantNotFoundError(
                "the table has no completed write yet: write to it first, then create the "
                "savepoint",
                kind="no_such_write",
            )
        target = newest
    else:
        target = completed_write(timeline, requested_time)
    _refuse_second(savepoint_times(timeline), target)
    refuse_during_archiving(context, timeline, [target])
    refuse_cleaned(context, snapshot, target)
    kept = files_of_state(context, snapshot, target)
    who = context.ports.ids.identity()
    draft = Savepoint(
        requested_time=target.requested_time,
        completion_time=None,
        made_by=who.application or f"hoodoo on {who.host}",
        comments="",
        files=_paths(kept),
    )
    return snapshot, draft, kept


def _encoded(
    context: TableContext, requested_time: InstantTime | None, comments: str
) -> tuple[Snapshot, Savepoint, bytes]:
    seen, draft, kept = _draft(context, requested_time)
    metadata = SavepointMetadata(
        savepointed_by=draft.made_by,
        savepointed_at=context.ports.clock.now_ms(),
        comments=comments,
        partition_metadata={
            path: SavepointPartitionMetadata(partition_path=path, savepoint_data_file=names)
            for path, names in kept.items()
        },
    )
    return seen, draft, encode_savepoint(metadata)


def _take(
    context: TableContext, seen: Snapshot, draft: Savepoint, body: bytes, nonce: str
) -> Slot | None:
    """Take the savepoint's slot; None when the files must be listed again."""
    head = seen.head
    commit = open_commit(context, f"savepoint {draft.requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            refuse_during_foreign_service(section.timeline)
            # The newest slot of the snapshot may have been deleting files while they were listed,
            # unless it is applied in the snapshot.
            slots = slots_since_snapshot(context, max(0, head - 1), section.head)
            if slots is None or any(
                slot.kind is SlotKind.RESTORE
                and not (
                    slot.number == head and is_applied(slot, seen.active, context.archived_timeline)
                )
                for slot in slots
            ):
                return None
            target = completed_write(section.timeline, draft.requested_time)
            _refuse_second(savepoint_times(section.timeline), target)
            refuse_during_archiving(context, section.timeline, [target])
            now = Snapshot(active=section.timeline, head=section.head, commits=context.commits)
            refuse_cleaned(context, now, target)  # a clean since may have deleted listed files
            taken = section.next_slot(
                context,
                SlotKind.SAVEPOINT,
                Action.SAVEPOINT,
                target.requested_time,
                nonce=nonce,
                base=head,
                body=body,
            )
            commit.take(section, taken)
    return commit.taken


def delete_savepoint(context: TableContext, requested_time: InstantTime) -> InstantTime:
    """
    Delete a savepoint; the next clean treats its files like any others.

    Outside: 1 commit section (lock, list, create), 2 deletes.

    Returns:
        The completion time of the deletion.

    Raises:
        InstantNotFoundError: There is no such savepoint.
        InvalidInputError: Writes after it were archived but the saved one was not. Without the
            savepoint it would be the first of the timeline. Readers, also of Java Hudi, take a
            write above the first that is not on the timeline for uncommitted (fmt 6.3).
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``commit_write``.
    """
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, f"delete savepoint {requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            if is_kept_on_active_timeline(context, section.timeline, requested_time):
                raise InvalidInputError(
                    "writes after this savepoint's write were archived, and readers would lose "
                    "them while the saved write is not archived. Wait until the writers and "
                    "plans that block archiving have ended ('hoodoo writers TABLE' lists them), "
                    f"then run 'hoodoo savepoint delete' again: {requested_time}",
                    kind="savepoint_before_archive",
                    requested_time=requested_time,
                )
            instants = map(parse_instant_name, section.timeline.file_names)
            found = [one for one in instants if one is not None and _names(one, requested_time)]
            if not found:
                raise instant_not_found(
                    "this write has no savepoint; 'hoodoo savepoint list TABLE' shows them",
                    requested_time,
                    savepoint_times(section.timeline),
                    kind="no_such_savepoint",
                )
            found.sort(key=lambda one: one.completed, reverse=True)  # Java's order, too
            slot = section.next_slot(
                context,
                SlotKind.UNSAVEPOINT,
                Action.SAVEPOINT,
                requested_time,
                nonce=nonce,
                deletes=tuple(timeline_path(instant_file_name(one)) for one in found),
            )
            commit.take(section, slot)
    context.ports.events.emit("savepoint.deleted", rt=requested_time)
    return commit.taken.completion_time


def is_kept_on_active_timeline(
    context: TableContext, timeline: ActiveTimeline, requested_time: InstantTime
) -> bool:
    """
    Return whether a saved write is still on the timeline after later ones were archived.

    Outside: the archived timeline, unless a write without a savepoint is before it.
    """
    first = timeline.first_write_time
    saved = timeline.find(requested_time)
    if saved is None or (first is not None and requested_time >= first):
        return False
    archived = context.archived_timeline.times().completions
    return any(requested_time < time and (first is None or time < first) for time in archived)


def _names(one: Instant, requested_time: InstantTime) -> bool:
    return one.action is Action.SAVEPOINT and one.requested_time == requested_time


def _refuse_second(held: Iterable[InstantTime], target: Instant) -> None:
    if target.requested_time in held:
        raise InvalidInputError(
            "this write has a savepoint already: delete it first with 'hoodoo savepoint delete': "
            f"{target.requested_time}",
            kind="savepoint_exists",
            requested_time=target.requested_time,
        )


def _paths(kept: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(join(path, name) for path, names in sorted(kept.items()) for name in names)
