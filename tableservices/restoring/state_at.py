"""
The state of the table when an instant completed, and the instants after it (SAV-1, RST-1).

Savepoints and restores use the same rule. A restore removes the instants after its target; a
savepoint keeps the files of the remaining state. The rule is Java Hudi's: instants compare by
completion time. A compaction of a merge-on-read table compares by requested time, because it
changes no row and its position is that of its plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from filegroups.reading.scan import view_of
from filegroups.reading.time_travel import retained_since
from timeline.archived import ARCHIVED_WRITES
from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.codecs.commit_log import decode_truncation_point
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, InvalidInputError, ServiceConflictError
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import instant_file_name, parse_log_file_name, slot_path
from timeline.model.instant import WRITE_ACTIONS, Action, Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.slot import SlotKind
from timeline.model.time_arguments import instant_not_found
from timeline.snapshot import ActiveTimeline, Snapshot

#: Actions that may not be pending during a restore or savepoint, because another engine runs them
#: without slots; and the command that finishes each if its engine died.
_HOW_TO_FINISH = {
    Action.CLEAN: "'hoodoo services run --service clean TABLE'",
    Action.ROLLBACK: (
        "'hoodoo services run --service clean TABLE' ('hoodoo rollback TABLE INSTANT' for that of "
        "a completed write)"
    ),
    Action.RESTORE: "'hoodoo restore TABLE --finish'",
}


def instants_after(
    timeline: ActiveTimeline, target: Instant, table_type: TableType
) -> tuple[Instant, ...]:
    """Return every write and plan after ``target``, pending ones included, newest first."""
    found = [
        one
        for one in timeline.instants
        if one.action in WRITE_ACTIONS and one != target and _is_after(one, target, table_type)
    ]
    return tuple(
        sorted(found, key=lambda one: (one.completion_time or "9", one.requested_time))[::-1]
    )


def _is_after(one: Instant, target: Instant, table_type: TableType) -> bool:
    if table_type is TableType.MERGE_ON_READ and Action.COMMIT in (
        one.action.completes_as,
        target.action.completes_as,
    ):
        moved_rows_only = one.action.completes_as is Action.COMMIT
        if one.completed or moved_rows_only:
            return one.requested_time > target.requested_time
    return not one.completed or (one.completion_time or "") > (target.completion_time or "")


def _archived(row: ArchivedInstant) -> Instant:
    return Instant(
        action=Action(row.action),
        requested_time=row.requested_time,
        state=State.COMPLETED,
        completion_time=row.completion_time or row.requested_time,
    )


def completed_write(timeline: ActiveTimeline, requested_time: InstantTime) -> Instant:
    """
    Return the completed write with this requested time.

    Raises:
        InstantNotFoundError: There is none on the active timeline.
    """
    for one in timeline.completed_writes:
        if one.requested_time == requested_time:
            return one
    raise instant_not_found(
        "the active timeline has no completed write with this requested time; 'hoodoo timeline "
        "show TABLE' lists them",
        requested_time,
        [one.requested_time for one in timeline.completed_writes],
        kind="no_such_write",
    )


def files_of_state(
    context: TableContext, snapshot: Snapshot, target: Instant
) -> Mapping[str, tuple[str, ...]]:
    """
    Return the names of the files that hold the table's state at ``target``, by partition path.

    Outside: as a view of every partition.
    """
    gone = instants_after(snapshot.active, target, context.config.table_type)
    then = without(snapshot, frozenset(one.requested_time for one in gone))
    found: dict[str, list[str]] = {}
    for one in view_of(context, then).latest_slices():
        names = found.setdefault(one.file_group.partition_path, [])
        if one.base_file is not None:
            names.append(one.base_file.name)
        names.extend(log.name for log in one.log_files)
    return {path: tuple(sorted(names)) for path, names in sorted(found.items())}


def without(snapshot: Snapshot, times: frozenset[InstantTime]) -> Snapshot:
    """
    Return a snapshot in which some writes are pending.

    They are not left out, because files below the first write count as committed. Writes that the
    timeline does not have any more are pending, too: another engine's restore may have died.
    """
    known = {one.requested_time for one in snapshot.active.instants}
    instants = [
        Instant(action=Action.COMMIT, requested_time=time, state=State.INFLIGHT)
        for time in sorted(times - known)
    ]
    for one in snapshot.active.instants:
        removed = one.requested_time in times and one.action in WRITE_ACTIONS
        instants.append(
            replace(one, state=State.INFLIGHT, completion_time=None, legacy=False)
            if removed
            else one
        )
    instants.sort(key=lambda one: one.requested_time)
    names = snapshot.active.file_names
    return replace(snapshot, active=ActiveTimeline(instants=tuple(instants), file_names=names))


def savepoint_times(timeline: ActiveTimeline) -> frozenset[InstantTime]:
    """Return the requested times of instants with a savepoint, completed or pending."""
    return frozenset(
        one.requested_time for one in timeline.instants if one.action is Action.SAVEPOINT
    )


def refuse_cleaned(context: TableContext, snapshot: Snapshot, target: Instant) -> None:
    """
    Pass when no clean deleted files of the state at ``target``. Outside: 1 get after a clean.

    A clean that counts slices instead of commits retains no fixed time. After it, only states that
    completed later are known to be whole.

    Raises:
        InstantNotFoundError: The files may be deleted.
    """
    retained = retained_since(context, snapshot)
    if retained is None:
        cleans = (
            one.completion_time or ""
            for one in snapshot.active.instants
            if one.action is Action.CLEAN and one.completed
        )
        if (target.completion_time or "") > max(cleans, default=""):
            return
    elif target.requested_time >= retained:
        return
    raise InstantNotFoundError(
        "files of that state were cleaned, or may have been; choose a later instant"
        + (f" (from {retained} on)" if retained else "")
        + f": {target.requested_time}",
        kind="state_cleaned",
        requested_time=target.requested_time,
        retained=retained,
    )


def refuse_archived_since(context: TableContext, target: Instant) -> None:
    """
    Pass when every write after ``target`` is still on the active timeline.

    This fails where commits behind a savepoint were archived (``hoodie.archive.beyond.savepoint``),
    because an archived instant cannot be removed. It also fails where a write that began before the
    target completed after it and was archived, as Java Hudi does. Outside: as the archived
    timeline.

    Raises:
        InvalidInputError: One is archived.
    """
    later = [
        row.requested_time
        for row in context.archived_timeline.instants()
        if row.action in ARCHIVED_WRITES
        and _is_after(_archived(row), target, context.config.table_type)
    ]
    if later:
        raise InvalidInputError(
            "later writes are archived already, so a restore cannot remove them. Read the state "
            f"as of {target.requested_time}, then write it with insert_overwrite_table: "
            f"{later[-1]} and {len(later) - 1} more",
            kind="archived_since",
            requested_time=target.requested_time,
            archived=later[-1],
        )


def refuse_during_archiving(
    context: TableContext, timeline: ActiveTimeline, needed: Iterable[Instant]
) -> None:
    """
    Pass when no archive is moving any of these instants, or died while it did.

    A truncation names the instants before it moves them (GC-1). Its owner may continue after a
    savepoint or a restore, and archive a saved or removed instant. Outside: slots that were not
    read yet.

    Raises:
        InvalidInputError: The last truncation names one that is still on the timeline.
    """
    slots = context.commit_log.newest_first()
    cut = next((slot for slot in slots if slot.kind is SlotKind.TRUNCATE), None)
    if cut is None:
        return
    named = decode_truncation_point(cut.body, path=slot_path(cut.number)).completed
    moving = timeline.file_names.intersection(named)
    moved = [one.requested_time for one in needed if instant_file_name(one) in moving]
    if moved:
        raise InvalidInputError(
            "the instant is being archived, or its archiving process died. Run 'hoodoo services "
            "run --service archive TABLE', then choose an instant that is still on the timeline: "
            f"{moved[0]}",
            kind="being_archived",
            requested_time=moved[0],
        )


def refuse_old_logs(context: TableContext, gone: Iterable[Instant]) -> None:
    """
    Pass when the file names of these instants have the instants' times.

    A log of version 6 has the time of its base file (fmt 5.1). It would remain when its writer is
    removed, and count again when the instants before it are archived. Outside: 1 get each, on
    tables that were upgraded from that version.

    Raises:
        InvalidInputError: One wrote such a log.
    """
    for one in gone if context.config.may_have_old_logs else ():
        if not one.completed:
            continue
        for path in context.commits.read(one).written_paths():
            log = parse_log_file_name(path.rpartition("/")[2])
            if log is not None and log.instant_time != one.requested_time:
                raise InvalidInputError(
                    "logs that were written before the upgrade from version 6 cannot be removed: "
                    f"choose a later instant, or read the older state and write it again: {path}",
                    kind="logs_of_version_6",
                    path=path,
                )


def refuse_during_foreign_service(
    timeline: ActiveTimeline,
    *,
    but: frozenset[Action] = frozenset(),
    taken_over: Instant | None = None,
) -> None:
    """
    Pass when no other engine is cleaning, rolling back or restoring.

    In the commit section every pending one is another engine's: those of hoodoo are applied
    (PUB-3).

    Args:
        timeline: Of the commit section.
        but: Actions that may be pending.
        taken_over: The instant that this commit section ends.

    Raises:
        ServiceConflictError: One is pending, its engine at work or dead.
    """
    upkeep = [one for one in timeline.pending if one.action in _HOW_TO_FINISH.keys() - but]
    pending = [one for one in upkeep if one != taken_over]
    if pending:
        raise ServiceConflictError(
            "a service of another engine is pending: let that engine finish it. If that engine "
            f"has ended, finish it with {_HOW_TO_FINISH[pending[0].action]}, then repeat: "
            f"{pending[0]}",
            kind="upkeep_pending",
            pending=[str(one) for one in pending],
        )


def refuse_savepointed(held: frozenset[InstantTime], times: frozenset[InstantTime]) -> None:
    """
    Pass when no savepoint keeps any of the instants.

    Raises:
        InvalidInputError: One does.
    """
    savepointed = sorted(held & times)
    if savepointed:
        raise InvalidInputError(
            "a savepoint needs what this would remove: delete the savepoint first ('hoodoo "
            f"savepoint delete'): {', '.join(savepointed)}",
            kind="savepointed",
            savepoints=savepointed,
        )
