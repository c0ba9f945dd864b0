"""
The logs of a table, merged into base files before it is upgraded (fmt 11.2).

Those of version 8 go by a compaction like any other, which the next upgrade goes on with.

Version 6 names a log file after the base file below it, later versions after its writer
(fmt 5.1), so no slice that is still read may have logs when the table changes. Java Hudi
compacts them all first, and so does this module: by one compaction that is planned, carried
out and completed in the old layout. Wherever it is cut off the table is a sound one of version
6, perhaps with a pending compaction; its own engine can carry that out, and the next upgrade
goes on with it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tableservices.compaction.execute import execute_compaction, merge_slices, plan_compaction
from tableservices.compaction.plan import compaction_plan, operations_of
from tableservices.compaction.plan_files import read_slices
from tableservices.compaction.settings import CompactionSettings, CompactionStrategy
from tableservices.compaction.tasks import tasks_of
from tableservices.executing import read_requested
from tableservices.scheduling import schedule
from timeline.active import ActiveTimeline
from timeline.codecs.instant_avro import decode_compaction_plan, encode_compaction_plan
from timeline.codecs.legacy_commit import encode_legacy_commit
from timeline.context import TableContext
from timeline.errors import ServiceConflictError
from timeline.files.markers import delete_markers
from timeline.model.file_group import FileSlice
from timeline.model.filenames import instant_file_name
from timeline.model.instant import Action, Instant, State
from timeline.model.times import WallMs
from timeline.ports.storage import ObjectExistsError
from timeline.reading.read import view_of
from timeline.reading.snapshot import Snapshot
from timeline.rules.succession import Residue, next_instant_time
from timeline.writing.placing import FileRules

__all__ = ["begun_merge", "compact_logs", "logged_slices", "merge_logs"]

#: In the extra metadata of a plan: an upgrade made it, and the next one may carry it out.
_OF_UPGRADE = "hoodoo.upgrade"
_EVERY_LOG = CompactionSettings(strategy=CompactionStrategy.UNBOUNDED)


def logged_slices(context: TableContext, snapshot: Snapshot) -> list[FileSlice]:
    """The slices of a snapshot that are read with logs. Outside: 1 list a partition."""
    return [one for one in view_of(context, snapshot).latest_slices() if one.log_files]


def begun_merge(context: TableContext, active: ActiveTimeline) -> Instant | None:
    """
    The compaction of an upgrade that was cut off. Outside: 1 get per pending compaction.

    Raises:
        CorruptTableError: A plan is damaged.
    """
    for instant in active.pending:
        if instant.action is Action.COMPACTION:
            data, path = read_requested(context, instant)
            plan = decode_compaction_plan(data, path=path)
            if _OF_UPGRADE in (plan.extra_metadata or {}):
                return instant
    return None


def compact_logs(context: TableContext, files: FileRules) -> None:
    """
    Compact every slice of a version 8 table that has logs. Calls outside: as a compaction's.

    Raises:
        ServiceConflictError: Another executor is at it.
        Others: As ``schedule_compaction`` and ``execute_compaction``.
    """

    def build(snapshot: Snapshot) -> bytes | None:
        plan = plan_compaction(context, snapshot, _EVERY_LOG, files)
        if plan is None:
            return None
        return encode_compaction_plan(replace(plan, extra_metadata={_OF_UPGRADE: "8"}))

    begun = begun_merge(context, context.active())
    if begun is not None:
        _execute(context, begun, files)
    planned = schedule(context, Action.COMPACTION, build)
    if planned is not None:
        _execute(context, planned, files)


def _execute(context: TableContext, planned: Instant, files: FileRules) -> None:
    if execute_compaction(context, planned, files) is None:
        raise ServiceConflictError(
            "another executor carries this compaction out; upgrade again when it has: "
            f"{planned.requested_time}",
            kind="plan_claimed",
            requested_time=planned.requested_time,
        )


def merge_logs(context: TableContext, files: FileRules) -> None:
    """
    Merge every slice with logs into its next base file; a merge that was begun comes first.

    Holds one file group in memory for each thread of the executor. Call it with the lock held
    and nothing else pending.

    Outside: 2 lists a partition, 1 get, 1 put (the plan), 1 create (inflight), those of
    ``compact_file_group`` for each slice, 1 create (completed), 1 delete.

    Raises:
        UnsupportedTableError: Its rows cannot be merged here; nothing was written.
        CorruptTableError, MissingFileError: A file is damaged or gone.
        ClockRefusedError: The newest instant lies too far ahead of this clock.
        StorageUnavailableError: The storage failed; upgrade again.
    """
    begun = begun_merge(context, context.active())
    if begun is not None:
        _carry_out(context, begun, files)  # the engine of the table may have written on top
    planned = _planned(context, files)
    if planned is not None:
        _carry_out(context, planned, files)


def _planned(context: TableContext, files: FileRules) -> Instant | None:
    snapshot = context.snapshot()
    slices = logged_slices(context, snapshot)
    if not slices:
        return None
    now = WallMs(context.world.clock.now_ms())
    planned = Instant(
        action=Action.COMPACTION,
        requested_time=next_instant_time(
            now,
            snapshot.active.newest_time,
            Residue.SLOT_REQUESTED,
            limits=context.limits.skew,
            zone=context.zone,
        ),
        state=State.REQUESTED,
    )
    tasks_of(context, snapshot, planned, slices, files)  # refuses what a plan would be stuck at
    operations = operations_of(slices, (), new_file_bytes=files.sizes.file_bytes_max)
    plan = replace(compaction_plan(operations), extra_metadata={_OF_UPGRADE: "6"})
    context.world.storage.write(
        context.instant_path(instant_file_name(planned)), encode_compaction_plan(plan), durable=True
    )
    return planned


def _carry_out(context: TableContext, planned: Instant, files: FileRules) -> None:
    metadata = merge_slices(context, planned, read_slices(context, planned), files)
    done = Instant(
        action=Action.COMMIT,
        requested_time=planned.requested_time,
        state=State.COMPLETED,
        completion_time=planned.requested_time,
        legacy=True,
    )
    storage = context.world.storage
    path = context.instant_path(instant_file_name(done))
    with suppress(ObjectExistsError):  # another executor's files hold the same rows
        storage.create(path, encode_legacy_commit(metadata))
    delete_markers(storage, planned.requested_time)
    context.world.events.emit(
        "upgrade.logs_merged", rt=planned.requested_time, file_groups=metadata.total_files
    )
