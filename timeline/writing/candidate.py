"""
What a written attempt offers for publication: claim, metadata, checks.

Between the data files and the critical section: everything the slot and the completed
file will hold is made here, before the lock is taken (PUB-1).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from timeline.context import TableContext
from timeline.files.markers import marker_files
from timeline.files.rewrite import FileGroupTask
from timeline.model.claim import Claim, FileGroupId, Touch, TouchedFileGroup
from timeline.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from timeline.model.file_group import LogFile
from timeline.model.paths import join
from timeline.model.schema import TableSchema
from timeline.model.slot import Batch
from timeline.publishing.begin import Begun
from timeline.publishing.checks import WhatIPublish, further_checks
from timeline.publishing.publish import Candidate
from timeline.publishing.read_watch import ReadWatch
from timeline.publishing.refusal import RefusalReport, Waited
from timeline.publishing.rivals import claim_of
from timeline.reading.read_set import READS_KEY
from timeline.writing.placing import Placement
from timeline.writing.receipt import WritePlan

__all__ = ["Written", "candidate_of", "facts_of", "planned_claim", "reconcile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Data files of one attempt, durable and not visible."""

    placement: Placement
    stats: tuple[tuple[FileGroupTask, tuple[WriteStat, ...]], ...]
    schema: TableSchema
    schema_before: str
    refusals: tuple[RefusalReport, ...]
    attempts: int
    watch: ReadWatch | None = None  # of a plan with reads
    waits: tuple[Waited, ...] = ()
    dropped: frozenset[str] = frozenset()  # files of former tasks that are deleted already

    def bytes_of(self, file_groups: frozenset[FileGroupId] | None) -> int:
        """Bytes written to some file groups, None for all."""
        return sum(
            stat.file_size_in_bytes
            for task, stats in self.stats
            for stat in stats
            if file_groups is None or FileGroupId(task.partition_path, task.file_id) in file_groups
        )


def reconcile(
    context: TableContext, begun: Begun, written: Written, attempted: frozenset[str] | None
) -> None:
    """
    Delete what failed or superseded tasks left, make the rest durable (PUB-1, LOC-2).

    A file of this instant that the commit metadata does not name would become visible with
    it (fmt 4.1), so it goes before the slot. ``attempted``: as ``Workload.attempted``.
    """
    storage = context.world.storage
    kept = {path for _, stats in written.stats for stat in stats for path in stat.paths}
    if attempted is None:
        marked = marker_files(storage, begun.requested_time)
        attempted = frozenset(join(partition, name) for partition, name, _ in marked)
    for path in sorted(attempted - kept - written.dropped):
        storage.delete(path)
    storage.sync_folders(
        sorted({stat.partition_path or "" for _, stats in written.stats for stat in stats})
    )


def candidate_of(
    context: TableContext,
    begun: Begun,
    plan: WritePlan,
    written: Written,
    batches: tuple[Batch, ...] = (),
) -> Candidate:
    """
    Everything an attempt offers for publication: what it touched, its metadata, its checks.

    ``batches`` are those of a group's members; a plan's own is added here.
    """
    by_partition: dict[str, list[WriteStat]] = {}
    for task, stats in written.stats:
        by_partition.setdefault(task.partition_path, []).extend(stats)
    replaced: dict[str, tuple[str, ...]] | None = None
    if plan.operation.replaces:
        replaced = {}
        for group in written.placement.replaced:
            replaced[group.partition_path] = (
                *replaced.get(group.partition_path, ()),
                group.file_id,
            )
    metadata = CommitMetadata(
        partition_to_write_stats={path: tuple(by_partition[path]) for path in sorted(by_partition)},
        operation_type=plan.operation.hudi_name,
        extra_metadata=_extra_metadata(context, plan, written),
        partition_to_replace_file_ids=replaced,
    )
    claim = claim_of(metadata)
    # A task that changed nothing wrote no file, but its answer rests on what it read (PUB-4).
    idle = tuple(
        TouchedFileGroup(
            file_group=FileGroupId(task.partition_path, task.file_id),
            touch=_touch_of(task),
            source_requested_time=task.base_requested_time,
        )
        for task, stats in written.stats
        if not stats and _touch_of(task) is not Touch.NEW
    )
    written_to = {item.file_group for item in claim.file_groups}
    found = (one for one in written.placement.read_only if one.file_group not in written_to)
    read_only = (*idle, *found)
    claim = Claim.of(claim.file_groups, written.placement.claimed_partitions, claim.inserting)
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
    check = further_checks(
        context, facts_of(begun, plan, written, claim, batches, read_only=read_only)
    )
    return Candidate(
        claim=claim,
        metadata=metadata,
        read_only=read_only,
        inside=written.placement.inside,
        logs_may_meet=written.placement.logs_may_meet,
        schema_before=written.schema_before,
        schema_after=written.schema.avro_json,
        batches=batches,
        check=check if written.watch is None else written.watch.before(check, claim),
    )


def facts_of(
    begun: Begun,
    plan: WritePlan,
    written: Written,
    claim: Claim,
    batches: tuple[Batch, ...],
    *,
    read_only: tuple[TouchedFileGroup, ...],
) -> WhatIPublish:
    """What the checks compare with what others published."""
    return WhatIPublish(
        requested_time=begun.requested_time,
        keys_looked_up=plan.rules.tags and plan.rules.buckets is None,
        whole_table=plan.rules.lookup.whole_table,
        in_buckets=plan.rules.buckets is not None,
        batch_ids=tuple(batch.batch_id for batch in batches),
        schemas=(written.schema.avro_json, written.schema_before),
        claim=claim,
        read_only=read_only,
        missed_in=_missed_in(written),
        inserted_into=tuple(
            stat.path
            for _, stats in written.stats
            for stat in stats
            if stat.path and stat.num_inserts
        ),
        appended=_appended(written),
        virtual_keys=plan.rules.keys.virtual,
    )


def _appended(written: Written) -> tuple[LogFile, ...]:
    """The logs that were written onto logs: these may have deleted keys which mine bring back."""
    found = (
        LogFile.found(task.partition_path, path.rpartition("/")[2], stat.file_size_in_bytes)
        for task, stats in written.stats
        if task.log is not None and task.log.logs
        for stat in stats
        for path in stat.paths
    )
    return tuple(log for log in found if log is not None)


def _missed_in(written: Written) -> tuple[str, ...]:
    """
    Partitions in which a delete did not find its key, by key or by a row that says so.

    Rows of an upsert that found no file group were inserted, or they delete (hole 3).
    """
    fewer = dict(written.placement.new_rows)
    for task, stats in written.stats:
        if task.partition_path in fewer:
            fewer[task.partition_path] -= sum(stat.num_inserts for stat in stats)
    rows = (path for path, count in fewer.items() if count > 0)
    # A key found below logs may be deleted there, and inserted elsewhere since.
    gone = (
        task.partition_path
        for task, stats in written.stats
        if sum(stat.num_deletes for stat in stats) < _sought(written, task)
    )
    return tuple(sorted({*written.placement.missed_in, *rows, *gone}))


def _sought(written: Written, task: FileGroupTask) -> int:
    group = FileGroupId(task.partition_path, task.file_id)
    return written.placement.sought.get(group, 0)


def _extra_metadata(context: TableContext, plan: WritePlan, written: Written) -> dict[str, str]:
    refusals = (*plan.refusals, *written.refusals)
    extra = {
        **plan.extra_metadata,
        SCHEMA_KEY: written.schema.avro_json,
        **context.world.ids.identity().as_metadata,
        "hoodoo.attempts": str(len(plan.refusals) + written.attempts),
    }
    if plan.reads is not None:
        extra[READS_KEY] = plan.reads.text
    if plan.batch_id is not None:
        extra["hoodoo.batch_id"] = plan.batch_id
    if refusals:
        extra["hoodoo.refusals"] = json.dumps([report.as_document() for report in refusals[-10:]])
    if written.waits:
        extra["hoodoo.waits"] = json.dumps([wait.as_document() for wait in written.waits[-10:]])
    return extra


def _touch_of(task: FileGroupTask) -> Touch:
    if task.log is not None:
        return Touch.LOG
    return Touch.NEW if task.base_path is None else Touch.BASE


def planned_claim(placement: Placement) -> Claim:
    """What a placement is going to touch."""
    touched = [
        TouchedFileGroup(
            file_group=FileGroupId(task.partition_path, task.file_id),
            touch=_touch_of(task),
            source_requested_time=task.base_requested_time,
        )
        for task in placement.tasks
    ]
    touched.extend(
        TouchedFileGroup(file_group=group, touch=Touch.REPLACE) for group in placement.replaced
    )
    return Claim.of(touched, placement.claimed_partitions)
