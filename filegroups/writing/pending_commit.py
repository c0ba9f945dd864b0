"""Announce a write before its data files, detect conflicts early, build its pending commit (BEG-6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from filegroups.files.rewrite import FileGroupTask, announce_base_file, create_partition_metadata
from filegroups.merge.merging import DeleteKind
from filegroups.reading.read_set import READS_KEY
from filegroups.schema.schema import TableSchema
from filegroups.writing.assign_file_groups import FileGroupAssignment
from filegroups.writing.commit_checks import CommitFacts, ReadValidation, commit_checks
from filegroups.writing.workload import Workload
from filegroups.writing.write_request import WriteRequest
from timeline.commit.begin import StartedWrite, make_inflight
from timeline.commit.commit_lock import BaseState, PendingCommit
from timeline.commit.concurrent_commits import announced_writes, verdict_on
from timeline.commit.conflict_report import ConflictReport, WaitReport, conflict_report_of
from timeline.commit.markers import marker_files, withdraw_marker
from timeline.commit.validate import validate_unlocked
from timeline.context import TableContext
from timeline.model.commit_metadata import (
    INTERNAL_SCHEMA_KEY,
    SCHEMA_KEY,
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    WriteSet,
    WriteStat,
    write_set_of,
)
from timeline.model.file_slice import LogFile
from timeline.model.slot import Batch
from timeline.rules.conflicts import (
    ConcurrentCommit,
    NoConflict,
    Rebase,
    Rejected,
    RuleId,
)

# ---- Announcement before the first data file: the inflight file, then the markers (BEG-6)
#
# On a high-latency store these requests overlap, with the metadata files of new partitions and the
# early conflict detection. No data file is written before all of them succeed. Meanwhile the writer
# makes small files in memory. A rollback needs a marker for each existing file; a marker without
# a file, or older than the inflight file, does not mislead it.

TimelineState: TypeAlias = tuple[NoConflict | Rebase | Rejected, BaseState]
EarlyDetectionRun: TypeAlias = Callable[
    [TableContext, StartedWrite, FileGroupAssignment], TimelineState
]

_MARKERS_MAX = 16  # above this number each task creates its own marker, concurrently


def announce(
    context: TableContext,
    started: StartedWrite,
    assignment: FileGroupAssignment,
    workload: Workload | None,
    detection: EarlyDetectionRun | None,
    *,
    then: bool,
) -> tuple[FileGroupAssignment, TimelineState]:
    """
    Announce the write set, and detect conflicts early.

    Outside: as ``announce_tasks``, and the requests of ``detection``.

    Args:
        context: The table.
        started: The write.
        assignment: The assigned file groups.
        workload: Its rows, None for none.
        detection: The early conflict detection; None for none.
        then: Run ``detection`` after the own announcement, because it reads announcements (BEG-8).

    Returns:
        The assignment, with announced tasks marked as such, and the result of ``detection``.
    """
    found: list[TimelineState] = []

    def detect() -> None:
        found.append(
            (NoConflict(), BaseState.by(started.snapshot))
            if detection is None
            else detection(context, started, assignment)
        )

    if then or not context.ports.storage.capabilities.high_latency:
        make_inflight(context, started, assignment.profile)
        detect()
        return assignment, found[0]
    parts = [] if workload is None else [(workload, assignment.tasks)]
    shown = announce_tasks(context, started, assignment.profile, parts, detect)
    return replace(assignment, tasks=tuple(task for tasks in shown for task in tasks)), found[0]


def announce_tasks(
    context: TableContext,
    started: StartedWrite,
    profile: CommitMetadata,
    parts: Sequence[tuple[Workload, Sequence[FileGroupTask]]],
    *others: Callable[[], None],
) -> list[tuple[FileGroupTask, ...]]:
    """
    Announce the files that the tasks will write.

    Outside: 1 create; on a high-latency store also 1 create for each base file and for each
    partition that may be new, all at the same time. Tasks that name their files announce them later.

    Args:
        context: The table.
        started: The write.
        profile: The content of its inflight file.
        parts: For each write of the instant, its rows and its tasks.
        others: Other calls to run at the same time.

    Returns:
        For each part its tasks, with announced markers and partitions noted.
    """
    show = partial(make_inflight, context, started, profile)
    storage = context.ports.storage
    bases = [
        task
        for workload, tasks in parts
        for task in tasks
        if task.log is None and not workload.tasks_name_files
    ]
    if not storage.capabilities.high_latency or len(bases) > _MARKERS_MAX:
        context.ports.concurrently(show, *others)
        return [tuple(tasks) for _, tasks in parts]
    opened = {
        one.partition_path: one.partition_metafile for one in bases if _opens_its_partition(one)
    }
    context.ports.concurrently(
        show,
        *others,
        *(partial(announce_base_file, storage, task) for task in bases),
        *(
            partial(
                create_partition_metadata,
                storage,
                path,
                started.requested_time,
                ending=ending,
                checks_first=False,
            )
            for path, ending in sorted(opened.items())
        ),
        *(partial(_precompute, workload, tasks) for workload, tasks in parts),
    )
    return [
        tuple(tasks) if workload.tasks_name_files else tuple(_shown(task, opened) for task in tasks)
        for workload, tasks in parts
    ]


def _precompute(workload: Workload, tasks: Sequence[FileGroupTask]) -> None:
    with suppress(Exception):  # it fails again when the files are written
        workload.precompute(tasks)


def _shown(task: FileGroupTask, opened: Collection[str]) -> FileGroupTask:
    if task.log is not None:
        return task
    marked = task.partition_marked or task.partition_path in opened
    return replace(task, announced=True, partition_marked=marked)


def _opens_its_partition(task: FileGroupTask) -> bool:
    """Return whether the task surely creates the first known file of its partition."""
    new = task.base_path is None and task.deletes is DeleteKind.NONE
    return new and not task.partition_marked


# ---- The pending commit: write set, metadata, checks
#
# This runs before the lock is taken. It makes all content of the slot and the completed file
# (PUB-1).


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """Data files of one attempt: durable, not yet visible."""

    assignment: FileGroupAssignment
    stats: tuple[tuple[FileGroupTask, tuple[WriteStat, ...]], ...]
    schema: TableSchema
    schema_before: str
    conflicts: tuple[ConflictReport, ...]
    attempts: int
    read_validation: ReadValidation | None = None  # of a plan with reads
    waits: tuple[WaitReport, ...] = ()
    dropped: frozenset[str] = frozenset()  # deleted files of earlier tasks

    def bytes_of(self, file_groups: frozenset[FileGroupId] | None) -> int:
        """Return the bytes written to some file groups, None for all."""
        return sum(
            stat.file_size_in_bytes
            for task, stats in self.stats
            for stat in stats
            if file_groups is None or task.file_group in file_groups
        )


_LATE_FILES_MS = 5_000
_LATE_FILES_POLL_MS = 100


def reconcile_files(
    context: TableContext,
    started: StartedWrite,
    written: WrittenFiles,
    attempted: frozenset[str] | None,
) -> None:
    """
    Delete files of failed or superseded tasks, and make the others durable (PUB-1, LOC-2).

    A file of this instant that the commit metadata does not name would become visible with the
    commit (fmt 4.1). So it is deleted before the slot. An attempt whose file is still missing
    loses its marker, and deletes the file itself (PUB-2). ``attempted``: as ``Workload.attempted``.
    """
    storage = context.ports.storage
    kept = {path for _, stats in written.stats for stat in stats for path in stat.paths}
    if attempted is None:
        marked = {one.path: one for one in marker_files(storage, started.requested_time)}
        attempted = frozenset(marked)
        for path in _await_files(context, attempted - kept - written.dropped):
            withdraw_marker(storage, started.requested_time, marked[path])
    for path in sorted(attempted - kept - written.dropped):
        storage.delete(path)
    storage.sync_folders(
        sorted({stat.partition_path or "" for _, stats in written.stats for stat in stats})
    )


def _await_files(context: TableContext, paths: Collection[str]) -> list[str]:
    """
    Wait some seconds for files that are announced and missing; return those that stay missing.

    The cluster ends an attempt that it does not need, or lost it with its executor. Its process may
    still close its file, after the commit if the driver does not wait. Outside: 1 stat for each
    file and poll.
    """
    ports = context.ports
    until = ports.clock.monotonic_ms() + _LATE_FILES_MS
    missing = [path for path in sorted(paths) if ports.storage.stat(path) is None]
    while missing and ports.clock.monotonic_ms() < until:
        ports.clock.sleep_ms(_LATE_FILES_POLL_MS)
        missing = [path for path in missing if ports.storage.stat(path) is None]
    return missing


def pending_commit_of(
    context: TableContext,
    started: StartedWrite,
    plan: WriteRequest,
    written: WrittenFiles,
    batches: tuple[Batch, ...] = (),
) -> PendingCommit:
    """
    Build the pending commit of an attempt: its write set, metadata and checks.

    ``batches`` are those of a group's members. The plan's own batch is added here.
    """
    metadata = _metadata_of(context, started, plan, written)
    changed = write_set_of(metadata)
    read_only = _read_only(written, changed)
    write_set = WriteSet.of(
        changed.file_groups, written.assignment.overwritten_partitions, changed.inserting
    )
    if plan.batch_id is not None:
        batches = (
            *batches,
            Batch(
                batch_id=plan.batch_id,
                operation=plan.operation.value,
                rows_inserted=metadata.total_rows_inserted,
                rows_updated=metadata.total_rows_updated,
                rows_deleted=metadata.total_rows_deleted,
            ),
        )
    ids = written.schema.ids
    check = commit_checks(
        context, commit_facts_of(started, plan, written, write_set, batches, read_only=read_only)
    )
    return PendingCommit(
        write_set=write_set,
        metadata=metadata,
        read_only=read_only,
        outer_folders=written.assignment.outer_folders,
        logs_may_conflict=written.assignment.logs_may_conflict,
        schema_before=written.schema_before,
        schema_after=written.schema.avro_json,
        schema_file=None if ids is None else ids.schema_file(started.requested_time),
        batches=batches,
        check=check
        if written.read_validation is None
        else written.read_validation.reads_first(check, write_set),
    )


def _metadata_of(
    context: TableContext, started: StartedWrite, plan: WriteRequest, written: WrittenFiles
) -> CommitMetadata:
    """Return the content of the completed file."""
    by_partition: dict[str, list[WriteStat]] = {}
    for task, stats in written.stats:
        by_partition.setdefault(task.partition_path, []).extend(stats)
    replaced: dict[str, tuple[str, ...]] = {}
    for group in written.assignment.replaced:
        earlier = replaced.get(group.partition_path, ())
        replaced[group.partition_path] = (*earlier, group.file_id)
    return CommitMetadata(
        partition_to_write_stats={path: tuple(by_partition[path]) for path in sorted(by_partition)},
        operation_type=plan.hudi_name,
        extra_metadata=_extra_metadata(context, started, plan, written),
        partition_to_replace_file_ids=replaced if plan.operation.replaces else None,
    )


def _read_only(written: WrittenFiles, changed: WriteSet) -> tuple[AccessedFileGroup, ...]:
    """Return the file groups that the result depends on and that it does not change (PUB-4)."""
    # A task that changed nothing wrote no file, but its result depends on its reads.
    idle = tuple(
        AccessedFileGroup(
            file_group=task.file_group,
            access=_access_of(task),
            source_requested_time=task.base_requested_time,
        )
        for task, stats in written.stats
        if not stats and _access_of(task) is not Access.NEW
    )
    written_to = {item.file_group for item in changed.file_groups}
    found = (one for one in written.assignment.read_only if one.file_group not in written_to)
    return (*idle, *found)


def commit_facts_of(
    started: StartedWrite,
    plan: WriteRequest,
    written: WrittenFiles,
    write_set: WriteSet,
    batches: tuple[Batch, ...],
    *,
    read_only: tuple[AccessedFileGroup, ...],
) -> CommitFacts:
    """Collect the facts that the checks compare with concurrent commits."""
    return CommitFacts(
        requested_time=started.requested_time,
        keys_looked_up=plan.rules.tags and plan.rules.buckets is None,
        whole_table=plan.rules.lookup.whole_table,
        by_record_index=plan.rules.lookup.by_record_index,
        in_buckets=plan.rules.buckets is not None,
        batch_ids=tuple(batch.batch_id for batch in batches),
        schemas=_adopted_schemas(written),
        changes_columns=plan.changes is not None,
        write_set=write_set,
        read_only=read_only,
        partitions_without_match=_missed_in(written),
        inserted_into=tuple(
            stat.path
            for _, stats in written.stats
            for stat in stats
            if stat.path and stat.num_inserts
        ),
        appended=_appended(written),
        virtual_keys=plan.rules.keys.virtual,
    )


def _adopted_schemas(written: WrittenFiles) -> tuple[str, ...]:
    """
    Return the schemas that concurrent commits may have.

    Where columns have ids, also an equal change of another writer is a conflict: its new columns
    would lack their ids in the history of this one.
    """
    if written.schema.ids is not None:
        return (written.schema_before,)
    return written.schema.avro_json, written.schema_before


def _appended(written: WrittenFiles) -> tuple[LogFile, ...]:
    """Return the logs written onto slices with logs, whose deleted keys these may bring back."""
    found = (
        LogFile.found(task.partition_path, path.rpartition("/")[2], stat.file_size_in_bytes)
        for task, stats in written.stats
        if task.log is not None and task.log.logs
        for stat in stats
        for path in stat.paths
    )
    return tuple(log for log in found if log is not None)


def _missed_in(written: WrittenFiles) -> tuple[str, ...]:
    """
    Return the partitions in which a delete, by key or by a marked row, did not find its key.

    An upsert's rows without a file group were inserted, or they are deletes (hole 3).
    """
    fewer = dict(written.assignment.new_rows)
    for task, stats in written.stats:
        if task.partition_path in fewer:
            fewer[task.partition_path] -= sum(stat.num_inserts for stat in stats)
    rows = (path for path, count in fewer.items() if count > 0)
    # Logs may have deleted a key of the base file; another write may have inserted it elsewhere.
    gone = (
        task.partition_path
        for task, stats in written.stats
        if sum(stat.num_deletes for stat in stats) < _sought(written, task)
    )
    return tuple(sorted({*written.assignment.partitions_without_match, *rows, *gone}))


def _sought(written: WrittenFiles, task: FileGroupTask) -> int:
    group = task.file_group
    return written.assignment.deleted_below_logs.get(group, 0)


def _extra_metadata(
    context: TableContext, started: StartedWrite, plan: WriteRequest, written: WrittenFiles
) -> dict[str, str]:
    refusals = (*plan.conflicts, *written.conflicts)
    extra = {
        **plan.extra_metadata,
        SCHEMA_KEY: written.schema.avro_json,
        **context.ports.ids.identity().as_metadata,
        "hoodoo.attempts": str(len(plan.conflicts) + written.attempts),
    }
    if written.schema.ids is not None:
        extra[INTERNAL_SCHEMA_KEY] = written.schema.ids.latest_schema(started.requested_time)
    if plan.reads is not None:
        extra[READS_KEY] = plan.reads.text
    if plan.batch_id is not None:
        extra["hoodoo.batch_id"] = plan.batch_id
    if refusals:
        extra["hoodoo.refusals"] = json.dumps([report.as_document() for report in refusals[-10:]])
    if written.waits:
        extra["hoodoo.waits"] = json.dumps([wait.as_document() for wait in written.waits[-10:]])
    return extra


def _access_of(task: FileGroupTask) -> Access:
    if task.log is not None:
        return Access.LOG
    return Access.NEW if task.base_path is None else Access.BASE


def planned_commit(assignment: FileGroupAssignment) -> PendingCommit:
    """Return the future commit of an assignment whose files are not written yet."""
    return PendingCommit(
        write_set=planned_write_set(assignment),
        metadata=CommitMetadata(),
        logs_may_conflict=assignment.logs_may_conflict,
    )


def planned_write_set(assignment: FileGroupAssignment) -> WriteSet:
    """Return the write set of an assignment."""
    touched = [
        AccessedFileGroup(
            file_group=task.file_group,
            access=_access_of(task),
            source_requested_time=task.base_requested_time,
        )
        for task in assignment.tasks
    ]
    touched.extend(
        AccessedFileGroup(file_group=group, access=Access.REPLACE) for group in assignment.replaced
    )
    return WriteSet.of(touched, assignment.overwritten_partitions)


# ---- Early conflict detection: validate before any file is written
#
# A write always validates against commits since its base snapshot. By option it also compares with
# announced write sets of live writers. Then the writer with the greater requested time waits,
# without the lock, until the other ends or its heartbeat expires. So waits never form a cycle, and
# a writer that waited precedes all writers that begin later. It then works on the other's files,
# and no work is wasted. Safety does not depend on this: the commit validates again.

_PAUSE_MS_FIRST = 20
_PAUSE_MS_MAX = 1_000


def detect_early(
    context: TableContext,
    started: StartedWrite,
    assignment: FileGroupAssignment,
    *,
    waits_for_announced: bool,
    elapsed_ms: int,
    report_wait: Callable[[WaitReport], None] = lambda _: None,
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """
    Validate a write before any of its files is written.

    Outside: 1 list, probes of the commit log; with ``waits_for_announced`` as ``announced_writes`` and 1
    list, repeated while it waits.

    Args:
        context: The table.
        started: The write; it is announced (BEG-6).
        assignment: The assigned file groups.
        waits_for_announced: Also compare with announced writes; not while this writer keeps a lock that the
            others wait for.
        elapsed_ms: Time since the first attempt of this write: the retry budget bounds the wait.
        report_wait: Receives the report of a wait that ended.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).
        StorageUnavailableError: The storage does not answer.
    """
    planned, seen = planned_commit(assignment), BaseState.by(started.snapshot)
    if waits_for_announced:
        conflict = _wait_for_announced(
            context, started, planned, elapsed_ms=elapsed_ms, report_wait=report_wait
        )
        if conflict is not None:
            return conflict, seen
    return validate_unlocked(context, started, planned, seen)


def _wait_for_announced(
    context: TableContext,
    started: StartedWrite,
    planned: PendingCommit,
    *,
    elapsed_ms: int,
    report_wait: Callable[[WaitReport], None],
) -> Rejected | None:
    """Wait for earlier writers that announced a conflict; return it if the budget ends the wait."""
    clock, events = context.ports.clock, context.ports.events
    budget = context.limits.retry
    began_ms = clock.monotonic_ms()
    pause_ms = 0
    before: Rejected | None = None
    while True:
        conflict = _announced_conflicts(context, started, planned)
        waited_ms = clock.monotonic_ms() - began_ms
        if conflict is None:
            if before is not None:
                events.emit("write.way_given", rt=started.requested_time, wait_ms=waited_ms)
                report = conflict_report_of(started.requested_time, before)
                report_wait(WaitReport(report=report, wait_ms=waited_ms))
            return None
        spent = 0 < budget.total_ms_max < elapsed_ms + waited_ms
        if spent or not budget.conflict_retries_max:
            return conflict
        if before is None:
            commits = ", ".join(
                concurrent.requested_time for concurrent in conflict.concurrent_commits
            )
            events.emit("write.gives_way", rt=started.requested_time, rivals=commits)
        before = conflict if before is None else _both(before, conflict)
        pause_ms = min(2 * pause_ms or _PAUSE_MS_FIRST, _PAUSE_MS_MAX)
        clock.sleep_ms(pause_ms)
        started.heartbeat.check()


def _both(before: Rejected, found: Rejected) -> Rejected:
    """Return one conflict with all awaited writers, in the order in which they were found."""
    return replace(
        before,
        concurrent_commits=tuple(
            {
                one.requested_time: one
                for one in (*before.concurrent_commits, *found.concurrent_commits)
            }.values()
        ),
        file_groups=tuple(sorted({*before.file_groups, *found.file_groups})),
        partitions=tuple(sorted({*before.partitions, *found.partitions})),
    )


def _announced_conflicts(
    context: TableContext, started: StartedWrite, planned: PendingCommit
) -> Rejected | None:
    """Return the conflict with announced writes of live writers with lower requested times."""
    commits: list[ConcurrentCommit] = []
    groups: list[FileGroupId] = []
    partitions: list[str] = []
    before = announced_writes(context, context.active(), below=started.requested_time)
    for concurrent in before:
        verdict = verdict_on(context, planned, started.requested_time, [concurrent])
        if isinstance(verdict, NoConflict):
            continue
        commits.append(concurrent)
        groups += verdict.file_groups
        partitions += verdict.partitions if isinstance(verdict, Rejected) else ()
    if not commits:
        return None
    return Rejected(
        RuleId.ANNOUNCED_BY_OTHER,
        "the other began before and is about to change the same",
        tuple(commits),
        tuple(sorted(set(groups))),
        tuple(sorted(set(partitions))),
    )
