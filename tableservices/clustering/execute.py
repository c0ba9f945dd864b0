"""Execute a clustering plan: read groups, sort rows, and write new file groups."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.rewrite import FileGroupTask, write_clustered_file
from filegroups.files.slice_reader import SliceRead, read_slice
from filegroups.reading.scan import plan_scan, view_of
from filegroups.schema.casting import uuid_texts
from filegroups.schema.column_ids import refuse_renamed
from filegroups.schema.schema import META_COLUMNS, TableSchema, with_meta
from filegroups.writing.write_request import FileRules
from tableservices.clustering.curves import row_order
from tableservices.clustering.plan import (
    CLUSTER,
    ORDER,
    PlannedClustering,
    clusterings,
    commits_since_clustering,
    concatenated,
    order_text,
    plan_clustering,
    read_plan,
    refuse_bucket_names,
    refuse_unclusterable,
    refuse_unsortable,
    schedule_clustering,
    take_rows,
)
from tableservices.clustering.settings import ClusteringSettings
from tableservices.plan_execution import (
    commit_metadata,
    complete,
    discard_output,
    ignore_if_ended,
    is_plan_leased,
    leased_plan,
    make_inflight,
    on_file_groups,
    read_requested,
    spreads,
)
from tableservices.planned_service import Phase, run_round
from tableservices.service import ServiceResult, pending_plans
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.cancel_plan import PlanOutcome, cancel_pending_plan, plan_outcome
from timeline.commit.commit_lock import BaseState, CommitSection
from timeline.commit.validate import commits_since
from timeline.context import TableContext
from timeline.errors import MissingFileError, counted
from timeline.heartbeat import Heartbeat, instants_with_expired_heartbeat
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    WriteOperation,
    WriteSet,
    WriteStat,
)
from timeline.model.file_names import join, parse_base_file_name, pending_file_names
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import ObjectMissingError, Ports
from timeline.snapshot import ActiveTimeline, Snapshot

# ---- One group of a clustering: read its slices, order the rows, write new files
#
# File ids follow from the plan and from ``_WAY``, without random values. So a second executor
# writes the same files (CMP-2). An executor that orders rows differently writes other files;
# these are committed as replaced.

_WAY = 1  # increase it when the execution of plans changes, so that file names change too


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """The input of one group of a plan; a value, which an executor can send elsewhere."""

    requested_time: InstantTime
    number: int  # its position in the plan
    plan: PlannedClustering
    slices: tuple[FileSlice, ...]  # their present state
    read: SliceRead  # commit time, sequence number, record key, then the table's own columns
    avro_json: str  # the new files' schema, without meta columns
    files: FileRules
    stores_keys: bool

    def file(self, file_id: str, index: int) -> FileGroupTask:
        """Return one output file."""
        return FileGroupTask(
            requested_time=self.requested_time,
            operation=WriteOperation.BULK_INSERT,
            partition_path=self.slices[0].file_group.partition_path,
            file_id=file_id,
            write_token=f"{index}-{self.number}-0",
            task_number=self.number,
            avro_json=self.avro_json,
            parquet=self.files.parquet,
            bloom=self.files.bloom,
            stores_keys=self.stores_keys,
            partition_marked=True,  # or its slices would not have been found
        )


def file_groups_of(
    requested_time: InstantTime, plan: PlannedClustering, number: int
) -> list[FileGroupId]:
    """Return the file groups that a group of a plan may become, however many rows it has."""
    group = plan.groups[number]
    way = [_WAY, requested_time, plan.curve.value, *plan.sort_columns, plan.preserves_commit_times]
    digests = [
        hashlib.blake2b(json.dumps([*way, number, output]).encode(), digest_size=16).digest()
        for output in range(group.output_files)
    ]
    partition_path = group.slices[0].file_group.partition_path
    texts = uuid_texts(pa.array(digests, pa.binary(16))).to_pylist()
    return [FileGroupId(partition_path, f"{text}-0") for text in texts]


def write_group(ports: Ports, task: GroupTask) -> tuple[WriteStat, ...]:
    """
    Write the files of one group, unless an earlier executor did; hold the group in memory.

    Raises:
        MissingFileError: A file of a slice is missing.
        CorruptTableError, UnsupportedTableError: A file cannot be read.
        InvalidInputError: A sort column is missing or has no order.
        StorageUnavailableError: The storage failed; execute the plan again.

    Outside: those of ``read_slice`` for each slice, of ``write_clustered_file`` for each file.
    """
    rows = pa.concat_tables(ports.executor.map(partial(_rows_of, ports, task.read), task.slices))
    order = None
    if task.plan.sort_columns:
        rows = concatenated(rows)  # else each file would be gathered from thousands of pieces
        order = row_order(rows, task.plan.sort_columns, task.plan.curve)
    groups = file_groups_of(task.requested_time, task.plan, task.number)
    cuts = np.linspace(0, rows.num_rows, min(len(groups), rows.num_rows) + 1).astype(np.int64)
    pieces = [
        _OutputPiece(
            task, task.file(groups[index].file_id, index), rows, order, int(first), int(last)
        )
        for index, (first, last) in enumerate(pairwise(cuts))
    ]
    return tuple(ports.executor.map(partial(_write_piece, ports), pieces))


@dataclass(frozen=True, slots=True)
class _OutputPiece:
    task: GroupTask
    file: FileGroupTask
    rows: pa.Table
    order: npt.NDArray[np.int64] | None
    first: int
    last: int

    def gathered(self) -> pa.Table:
        count = self.last - self.first
        if self.order is None:
            rows = self.rows.slice(self.first, count)
        else:
            order = self.order[self.first : self.last]
            rows = take_rows(self.rows, order, self.task.read.output_schema)
        if self.task.plan.preserves_commit_times or not self.task.stores_keys:
            return rows
        time = self.task.requested_time
        numbers = pc.cast(pa.array(np.arange(self.first, self.last)), pa.string())
        sequence = pc.binary_join_element_wise(f"{time}_{self.task.number}_", numbers, "")
        rows = rows.set_column(0, rows.schema.field(0), pa.repeat(pa.scalar(time), count))
        return rows.set_column(1, rows.schema.field(1), sequence)


def _rows_of(ports: Ports, read: SliceRead, one: FileSlice) -> pa.Table:
    batches = read_slice(ports.storage, ports.events, one, read)
    return pa.Table.from_batches(batches, read.output_schema)


def _write_piece(ports: Ports, piece: _OutputPiece) -> WriteStat:
    file, rows = piece.file, piece.gathered()
    size_bytes = write_clustered_file(ports.storage, file, rows)
    return WriteStat(
        file_id=file.file_id,
        path=join(file.partition_path, file.file_name),
        partition_path=file.partition_path,
        num_writes=rows.num_rows,
        num_inserts=rows.num_rows,
        total_write_bytes=size_bytes,
        file_size_in_bytes=size_bytes,
    )


# ---- Clustering from plan to commit; hoodoo or Java Hudi scheduled it
#
# Writers continue during a clustering. Before the commit each group is checked again (CL-1). A
# group is left out if the newest slice of one of its file groups differs from the plan, or is
# missing; the rest is committed. The commit section repeats the check for later commits. On a
# conflict the service is rejected, not the writer.
#
# No file is deleted before the slot, because another executor may complete the plan at any time.
# The new files of left-out groups, and files of this plan under other names, are committed as
# replaced instead. So no reader sees them, even if a late executor writes them again. They are
# deleted when this executor has the slot.

_KEPT_META = META_COLUMNS[:3]  # the others are equal in all rows of a file: written again
_CHECKS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringResult:
    """The result of one clustering; times are instant times, sizes bytes."""

    requested_time: InstantTime
    completion_time: InstantTime
    groups: int
    groups_left_out: int
    file_groups_replaced: int
    files_written: int
    rows_written: int
    bytes_written: int

    @property
    def text(self) -> str:
        """One line for people."""
        out = self.groups_left_out
        left = f", {counted(out, 'group')} left to writers" if out else ""
        return (
            f"clustered {counted(self.file_groups_replaced, 'file group')} into "
            f"{counted(self.files_written, 'file')}, {counted(self.rows_written, 'row')} ({self.bytes_written} bytes){left}"
        )


def execute_clustering(
    context: TableContext, planned: Instant, settings: ClusteringSettings, files: FileRules
) -> ClusteringResult | None:
    """
    Execute a pending clustering of any planner, also one that another executor began.

    Outside: 2 gets, the lease, 1 create (inflight), those of ``write_group`` for each group, 2
    lists per partition of the plan, those of ``complete``.

    Args:
        context: The table.
        planned: The pending instant.
        settings: The curve where the plan has none, and whether announced writes take precedence.
        files: How to write base files.

    Returns:
        None when another executor has it or has ended it, or when writers changed all of its groups
        meanwhile: then it is cancelled.

    Raises:
        InstantNotFoundError: The plan does not exist any more.
        CorruptTableError, MalformedNameError: The plan is damaged or hostile; nothing was read or
            written.
        UnsupportedTableError, InvalidInputError, MetadataTableOnError: As ``plan_clustering``;
            or this release does not support the plan's strategy.
        HeartbeatExpiredError: This process paused too long.
        MissingFileError: A file of the plan is missing, though it is the newest of its file group.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, StorageUnavailableError: As
            ``complete``; the plan remains, and its next executor adopts the files.
    """
    schema = refuse_unclusterable(context, context.snapshot())
    data, path = read_requested(context, planned)
    plan = read_plan(context.ports.storage, data, path=path, curve=settings.curve)
    refuse_unsortable(schema, plan.sort_columns)
    refuse_bucket_names(one.file_group for group in plan.groups for one in group.slices)
    with ignore_if_ended(context, planned), leased_plan(context, planned) as heartbeat:
        if heartbeat is not None:
            run = _ClusteringRun(
                context=context, planned=planned, plan=plan, settings=settings, heartbeat=heartbeat
            )
            make_inflight(context, planned)
            return run.publish(run.written(files))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusteringRun:
    """One executor and its plan."""

    context: TableContext
    planned: Instant
    plan: PlannedClustering
    settings: ClusteringSettings
    heartbeat: Heartbeat

    def written(self, files: FileRules) -> dict[int, tuple[WriteStat, ...]]:
        """
        Write and return the new files of every group that is unchanged since the plan.

        If writers change a group, a clean may delete its files during the read; the group is left
        out.
        """
        snapshot = self.context.snapshot()
        left, written = self.unchanged(snapshot), dict[int, tuple[WriteStat, ...]]()
        while left:
            try:
                self._write(snapshot, left, files, written)
                break
            except MissingFileError:
                snapshot = self.context.snapshot()
                still = self.unchanged(snapshot)
                if left.keys() <= still.keys() or self._is_lost(snapshot, left.keys() - still):
                    raise
                self.context.ports.events.emit(
                    "clustering.looks_again", rt=self.planned.requested_time
                )
                left = {number: still[number] for number in left.keys() & still.keys()}
        return written

    def _is_lost(self, snapshot: Snapshot, groups: Iterable[int]) -> bool:
        """Return whether a slice of these groups is missing without a newer or replacing one."""
        view = view_of(self.context, snapshot)
        return any(
            one.file_group not in snapshot.replaced
            and (
                (newest := view.latest_slice(one.file_group)) is None
                or newest.base_instant_time < one.base_instant_time
            )
            for number in groups
            for one in self.plan.groups[number].slices
        )

    def _write(
        self,
        snapshot: Snapshot,
        left: dict[int, tuple[FileSlice, ...]],
        files: FileRules,
        written: dict[int, tuple[WriteStat, ...]],
    ) -> None:
        """Write those groups; move each written one from ``left`` to ``written``."""
        context = self.context
        schema = _schema_of(context, snapshot)
        to_read = [one for slices in left.values() for one in slices]
        scan = plan_scan(context, snapshot, to_read, with_hoodie_columns=True).read
        refuse_renamed(scan.history, self.planned.requested_time)
        # The old files left out columns that the folder's name holds; so do the new ones.
        read = replace(
            scan,
            file_schema=with_meta(schema.arrow),
            columns=(*_KEPT_META, *schema.arrow.names),
            folders=None,
        )
        tasks = [
            GroupTask(
                requested_time=self.planned.requested_time,
                number=number,
                plan=self.plan,
                slices=slices,
                read=read,
                avro_json=schema.avro_json,
                files=files.filtering(context.config.record_key_fields),
                stores_keys=context.config.populate_meta_fields,
            )
            for number, slices in sorted(left.items())
        ]
        # In this process one after the other: each needs memory for all its rows.
        together = [tasks] if spreads(context.ports) else [[task] for task in tasks]
        for some in together:
            self.heartbeat.check()
            made = on_file_groups(context.ports, write_group, some)
            for task, stats in zip(some, made, strict=True):
                written[task.number] = stats
                del left[task.number]

    def unchanged(self, snapshot: Snapshot) -> dict[int, tuple[FileSlice, ...]]:
        """Return the slices of groups whose planned slices are all still the newest (CL-1)."""
        view = view_of(self.context, snapshot)
        yields = self.settings.yields_to_announced or self.context.limits.strategy.prefers_writers
        begun = self._announced_changes(snapshot) if yields else frozenset()
        found = {}
        for number, group in enumerate(self.plan.groups):
            newest = [view.latest_slice(one.file_group) for one in group.slices]
            same = tuple(
                now
                for now, planned in zip(newest, group.slices, strict=True)
                if now is not None and _same_files(now, planned) and now.file_group not in begun
            )
            if len(same) == len(group.slices):
                found[number] = same
        return found

    def _announced_changes(self, snapshot: Snapshot) -> frozenset[FileGroupId]:
        """
        Return the file groups announced by live writers.

        Outside: 1 list, 1 get per pending write.
        """
        context, pending = self.context, snapshot.active.pending_ingestion
        times = tuple(one.requested_time for one in pending)
        dead = instants_with_expired_heartbeat(
            context.ports.storage, times, context.limits.heartbeat
        )
        found: set[FileGroupId] = set()
        for one in pending:
            if one.requested_time in dead:
                continue
            path = context.instant_path(pending_file_names(one.action, one.requested_time)[0])
            try:
                profile = decode_commit(context.ports.storage.read(path), path=path)
            except ObjectMissingError:
                continue
            found.update(FileGroupId(*group) for group in profile.file_groups())
        return frozenset(found)

    def publish(self, written: Mapping[int, tuple[WriteStat, ...]]) -> ClusteringResult | None:
        """Commit the groups that are unchanged; check again after each concurrent commit."""
        context, planned = self.context, self.planned
        for _ in range(_CHECKS_MAX):
            snapshot = context.snapshot()
            kept = [number for number in self.unchanged(snapshot) if number in written]
            if not kept:
                context.ports.events.emit("clustering.yielded", rt=planned.requested_time)
                cancel_pending_plan(context, planned)
                # A writer with priority may have cancelled first, without all these files.
                ended = plan_outcome(context.active(), planned)
                if ended is not None:
                    discard_output(context, planned, ended, self.heartbeat)
                return None
            stats = [stat for number in kept for stat in written[number]]
            context.ports.storage.sync_folders(
                sorted({stat.partition_path or "" for stat in stats})
            )
            unwanted = self._unwanted(stats)
            metadata = self._metadata(snapshot, kept, stats, unwanted)
            write_set = self._write_set(kept, stats)
            outcome = complete(
                context,
                planned,
                metadata,
                write_set=write_set,
                heartbeat=self.heartbeat,
                check=_StillAsSeen(context, snapshot, write_set, metadata.schema_json or ""),
            )
            if not isinstance(outcome, PlanOutcome):
                self._delete(unwanted)
                return self._result(outcome.completion_time, kept, stats)
            if outcome is not PlanOutcome.REJECTED:
                discard_output(context, planned, outcome, self.heartbeat)
                return None
            context.ports.events.emit("clustering.looks_again", rt=planned.requested_time)
        return None

    def _unwanted(self, stats: Iterable[WriteStat]) -> dict[str, FileGroupId]:
        """
        Return the plan's files that are not committed, by path. Outside: 1 list a partition.

        They belong to left-out groups, or to an executor that ran the plan differently.
        """
        made = {stat.path for stat in stats}
        found = {}
        for partition_path in sorted(
            {one.file_group.partition_path for group in self.plan.groups for one in group.slices}
        ):
            for name in self.context.ports.storage.names(partition_path):
                base = parse_base_file_name(name)
                if base is None or base.requested_time != self.planned.requested_time:
                    continue
                path = join(partition_path, name)
                if path not in made:
                    found[path] = FileGroupId(partition_path, base.file_id)
        return found

    def _delete(self, unwanted: Iterable[str]) -> None:
        """Delete these files after the commit (PUB-9); a clean deletes the remaining ones."""
        try:
            for path in unwanted:
                self.context.ports.storage.delete(path)
        except Exception as error:  # noqa: BLE001
            self.context.ports.events.emit(
                "service.cleanup_failed", rt=self.planned.requested_time, why=str(error)
            )

    def _metadata(
        self,
        snapshot: Snapshot,
        kept: Sequence[int],
        stats: Sequence[WriteStat],
        unwanted: Mapping[str, FileGroupId],
    ) -> CommitMetadata:
        gone = set(unwanted.values())
        for number, group in enumerate(self.plan.groups):
            if number in kept:
                gone.update(one.file_group for one in group.slices)
            else:
                gone.update(file_groups_of(self.planned.requested_time, self.plan, number))
        replaced: dict[str, list[str]] = {}
        for each in sorted(gone):
            replaced.setdefault(each.partition_path, []).append(each.file_id)
        schema = _schema_of(self.context, snapshot)
        ids = snapshot.newest_internal_schema_json
        made = commit_metadata(self.context, CLUSTER, stats, schema.avro_json, ids)
        order = order_text(self.plan.sort_columns, self.plan.curve)
        return replace(
            made,
            compacted=False,
            extra_metadata={**made.extra_metadata, ORDER: order},
            partition_to_replace_file_ids={path: tuple(ids) for path, ids in replaced.items()},
        )

    def _write_set(self, kept: Sequence[int], stats: Iterable[WriteStat]) -> WriteSet:
        """Return the write set: inputs are replaced, outputs are new; no key is inserted."""
        touched = [
            AccessedFileGroup(file_group=one.file_group, access=Access.REPLACE)
            for number in kept
            for one in self.plan.groups[number].slices
        ]
        touched.extend(
            AccessedFileGroup(
                file_group=FileGroupId(stat.partition_path or "", stat.file_id),
                access=Access.NEW,
                files=((stat.path or "").rpartition("/")[2],),
                written_bytes=stat.total_write_bytes,
            )
            for stat in stats
        )
        return WriteSet.of(touched)

    def _result(
        self, completion_time: InstantTime, kept: Sequence[int], stats: Sequence[WriteStat]
    ) -> ClusteringResult:
        return ClusteringResult(
            requested_time=self.planned.requested_time,
            completion_time=completion_time,
            groups=len(kept),
            groups_left_out=len(self.plan.groups) - len(kept),
            file_groups_replaced=sum(len(self.plan.groups[number].slices) for number in kept),
            files_written=len(stats),
            rows_written=sum(stat.num_writes for stat in stats),
            bytes_written=sum(stat.total_write_bytes for stat in stats),
        )


class _StillAsSeen:
    """The check inside the commit section: no input changed since the snapshot, nor the schema."""

    def __init__(
        self, context: TableContext, snapshot: Snapshot, write_set: WriteSet, schema_json: str
    ) -> None:
        self._context = context
        self._seen = BaseState.by(snapshot)
        self._inputs = {
            one.file_group for one in write_set.file_groups if one.access is Access.REPLACE
        }
        self._schema_json = schema_json

    def __call__(self, section: CommitSection) -> bool:
        """Run the check. Outside: 1 get per new instant of another engine."""
        commits, _ = commits_since(self._context, self._seen, section.timeline, head=section.head)
        return not any(
            concurrent.schema not in ("", self._schema_json)
            or any(one.file_group in self._inputs for one in concurrent.write_set.file_groups)
            for concurrent in commits
        )


def _same_files(newest: FileSlice, planned: FileSlice) -> bool:
    names = {log.name for log in newest.log_files}
    return (newest.base_file and newest.base_file.name) == (
        planned.base_file and planned.base_file.name
    ) and names == {log.name for log in planned.log_files}


def _schema_of(context: TableContext, snapshot: Snapshot) -> TableSchema:
    """Return the schema of new files; a clustered table was written, and so has one."""
    return TableSchema.from_avro(
        snapshot.newest_schema_json or context.config.create_schema_json or ""
    )


# ---- Clustering as a service: inline after a commit, or in rounds of a worker

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringService:
    """
    Clustering.

    Args:
        settings: Of the clustering.
        files: How to write base files.
        phase: The phases of a round.
        by_writer: Whether a writer runs it; then the inline number of commits is the trigger.
    """

    settings: ClusteringSettings
    files: FileRules
    phase: Phase = Phase.BOTH
    by_writer: bool = False
    name: str = "cluster"
    action: Action = Action.CLUSTERING

    @property
    def runs_inline(self) -> bool:
        """Return ``hoodie.clustering.inline`` or ``hoodie.clustering.schedule.inline``."""
        return self.settings.inline or self.settings.schedule_inline

    @property
    def runs_in_background(self) -> bool:
        """Return ``hoodie.clustering.async.enabled``, unless clustering runs inline."""
        return self.settings.asynchronous and not self.settings.inline

    @property
    def after_commit(self) -> ClusteringService:
        """Return the service as a writer runs it."""
        phase = Phase.BOTH if self.settings.inline else Phase.SCHEDULE
        return replace(self, phase=phase, by_writer=True)

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Expire old plans without an executor, then run one round; errors as ``run_round``."""
        if self.settings.expires and self.phase.executes:
            self._expire(context)
        return run_round(context, self, self.phase, expiry_ms=self.settings.expiry_ms)

    def _expire(self, context: TableContext) -> None:
        age_ms = self.settings.expiration_mins * _MINUTE_MS
        oldest = context.zone.earliest_from(context.ports.clock.now_ms() - age_ms)
        for planned in pending_plans(context.active(), self.action):
            if planned.requested_time < oldest and not is_plan_leased(context, planned):
                cancel_pending_plan(context, planned)

    def is_due(self, context: TableContext, timeline: ActiveTimeline) -> bool:
        """
        Return whether enough commits completed since the last clustering.

        A worker schedules only if ``hoodie.clustering.async.enabled`` is set; else it executes the
        plans of others.
        """
        wanted = self.settings.inline_commits if self.by_writer else self.settings.async_commits
        if not (self.by_writer or self.settings.asynchronous):
            return False
        clustered = clusterings(context.commits, timeline)
        return commits_since_clustering(timeline, clustered) >= wanted

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the groups, file groups and bytes of a plan made now."""
        snapshot = context.snapshot()
        groups = plan_clustering(context, snapshot, self.settings)
        return {
            "due": self.is_due(context, snapshot.active),
            "groups": len(groups),
            "file_groups": sum(len(group.slices) for group in groups),
            "output_files": sum(group.output_files for group in groups),
            "bytes": sum(group.size_bytes for group in groups),
        }

    def schedule(self, context: TableContext) -> Instant | None:
        """Schedule a plan; errors as ``schedule_clustering``."""
        return schedule_clustering(context, self.settings)

    def execute(self, context: TableContext, planned: Instant) -> ClusteringResult | None:
        """Execute a plan; errors as ``execute_clustering``."""
        return execute_clustering(context, planned, self.settings, self.files)
