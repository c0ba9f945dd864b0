"""
Assign file groups: decide which file groups the rows of a write go to, and which it replaces.

Reads the base snapshot's file system view, tags the rows, fills small files and opens new file
groups. The result is one task for each file group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress
from typing import Protocol

from filegroups.files.bloom import BloomSettings
from filegroups.files.log_files import LogSettings, LogTarget
from filegroups.files.parquet import ParquetSettings, read_footer
from filegroups.files.rewrite import FileGroupTask
from filegroups.files.slice_reader import SliceRead
from filegroups.index import IndexedFile, SliceWithLogs
from filegroups.index.bucket_properties import slices_with_log_inserts
from filegroups.index.buckets import Buckets, find_buckets
from filegroups.index.lookup import may_resurrect
from filegroups.keys.bucketing import BucketEngine
from filegroups.keys.insert_buckets import (
    InsertBucket,
    SizeSettings,
    SmallFile,
    assign_inserts,
    learn_record_bytes,
)
from filegroups.merge.merging import DeleteKind
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.read import plan_scan, view_of
from filegroups.schema.schema import IS_DELETED_COLUMN, KEY_COLUMN, TableSchema
from filegroups.writing.bucket_ownership import refuse_overwriting, refuse_rows, refuse_updates
from filegroups.writing.key_encoding import refuse_other_forms
from filegroups.writing.workload import RowRules, Workload, WorkloadProfile
from timeline.commit.nested_partitions import inner_partitions, with_committed_files
from timeline.context import TableContext
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.commit_metadata import (
    CdcMode,
    CommitMetadata,
    PlannedUpdate,
    TableType,
    WriteOperation,
    workload_profile,
)
from timeline.model.file_names import FileSlice
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import WHOLE_TABLE, Access, AccessedFileGroup, FileGroupId
from timeline.partitions import PARTITION_METADATA, is_partition, partition_created_by
from timeline.pending_plans import file_groups_in_clustering, file_groups_to_avoid, plan_conflict
from timeline.rules.conflicts import Rejected
from timeline.snapshot import Snapshot

__all__ = [
    "AssignmentBase",
    "FileGroupAssignment",
    "FileRules",
    "assign_file_groups",
    "below_deletes",
    "lookup_files",
]

_LEARN_FILES_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """How to make base files and log files."""

    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    bloom: BloomSettings | None = field(default_factory=BloomSettings)
    sizes: SizeSettings = field(default_factory=SizeSettings)
    # Small files to fill in each partition (hoodie.merge.small.file.group.candidates.limit).
    small_files_max: int = 1
    learn_record_size: bool = True
    logs: LogSettings = field(default_factory=LogSettings)  # of merge-on-read tables


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupAssignment:
    """The file groups that a write will change, and how."""

    tasks: tuple[FileGroupTask, ...]
    replaced: tuple[FileGroupId, ...]
    claimed_partitions: tuple[str, ...]
    profile: CommitMetadata  # the inflight content
    met: Rejected | None = None  # pending plans own file groups that are written or replaced
    logs_may_meet: bool = False  # may append beside concurrent logs of one file group (NBCC-1)
    missed_in: tuple[str, ...] = ()  # partitions in which a delete did not find all its keys
    # Of a delete: rows whose keys are in slices with logs, which may have deleted them already.
    sought: Mapping[FileGroupId, int] = field(default_factory=dict)
    new_rows: Mapping[str, int] = field(default_factory=dict)  # of an upsert, by partition path
    read_only: tuple[
        AccessedFileGroup, ...
    ] = ()  # where an insert that checks for known keys found some
    inside: tuple[str, ...] = ()  # parent folders of new partitions whose values have slashes


class AssignmentBase(Protocol):
    """The parts of a write that the assignment needs: the time of its files, and its snapshot."""

    @property
    def requested_time(self) -> InstantTime:
        """The requested time of the write."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot on which every decision is based."""


def assign_file_groups(
    context: TableContext,
    begun: AssignmentBase,
    workload: Workload | None,
    rules: RowRules,
    schema: TableSchema,
    *,
    files: FileRules,
    delete_partitions: Iterable[str] = (),
    view: FileSystemView | None = None,
) -> FileGroupAssignment:
    """
    Assign every row of a write to a file group.

    Outside: 1 list per written partition, the index's reads, at most 4 footers.

    Args:
        context: The table.
        begun: The write; its snapshot is the base of every decision.
        workload: Prepared rows; None for a delete of partitions.
        rules: How rows become records.
        schema: The schema to write with.
        files: How to make base files and log files.
        delete_partitions: Partitions to delete as a whole, or to overwrite even if no row
        belongs to them.
        view: The file system view of the write's snapshot, if several writes share one.

    Raises:
        InvalidInputError: An insert that refuses known keys has some; a partial update has new
        keys (``partial_new_key``); rows are of ``foreign_buckets``, or outside the
        overwritten partitions (``outside_partitions``).
        UnsupportedTableError: The write overwrites partitions with fixed file ids.
        MissingFileError: A base file was cleaned meanwhile; begin again.
    """
    view = view or view_of(context, begun.snapshot)
    # Rows that must change existing records are always looked up, to refuse new keys.
    in_buckets = rules.buckets is not None and not rules.changes_known
    operation = rules.operation
    named = tuple(delete_partitions)
    touched = named if workload is None else workload.partition_paths()
    owned = file_groups_in_clustering(context, begun.snapshot.active)
    reserved = file_groups_to_avoid(context, begun.snapshot.active) if owned else {}
    replaced: tuple[FileGroupId, ...] = ()
    claimed: tuple[str, ...] = ()
    if operation.replaces:
        _refuse_fixed_file_ids(rules)
        refuse_overwriting(rules)
        _refuse_outside(named or touched, touched)
        replaced, claimed = _replaced(view, operation, named or touched)
    if workload is None:
        profile = workload_profile(operation_type=operation.hudi_name, planned_insert_rows={})
        return FileGroupAssignment(
            tasks=(),
            replaced=replaced,
            claimed_partitions=claimed,
            profile=profile,
            met=plan_conflict(reserved, replaced),
        )
    # A bulk insert reads no existing file: it opens new file groups only.
    bulk = operation is WriteOperation.BULK_INSERT and not in_buckets
    appends = context.config.table_type is TableType.MERGE_ON_READ
    agreed = appends and in_buckets and context.non_blocking and not operation.replaces
    # Java's bulk inserts also create base files in agreed file groups, so validation applies to
    # bulk inserts (NBCC-1).
    free = agreed and operation is not WriteOperation.BULK_INSERT
    everywhere = rules.tags and rules.lookup.whole_table
    latest: Mapping[FileGroupId, FileSlice] = {}
    if not (operation.replaces or bulk):
        latest = _latest_of(view.latest_slices(None if everywhere else touched))
    # With a bucket index, only inserts that check for known keys look them up.
    minds_known = rules.drop_found or rules.refuse_found
    looks = rules.tags and (not in_buckets or minds_known)
    if rules.tags or in_buckets:
        refuse_other_forms(context, begun.snapshot, latest.values(), rules.keys)
    candidates = lookup_files(context, view, latest.values(), rules) if looks else {}
    inside: tuple[str, ...] = ()
    if operation is not WriteOperation.DELETE:
        inside = _refuse_nesting(context, view, touched, rules)
    # Other writers may bring back a key that logs deleted, where this write inserts it elsewhere.
    # With a global index or a bucket index this does not happen.
    in_partitions = minds_known and not (in_buckets or everywhere)
    below = below_deletes(candidates) if in_partitions else {}
    beside = workload.tag(below).updates if below else ()
    tagged = workload.tag(candidates)
    counts = _wanted(tagged, rules)
    if rules.buckets is not None and in_buckets:
        where = find_buckets(
            context.world.storage, begun.snapshot, rules.buckets, touched, latest, agreed=agreed
        )
        rows = workload.spread(where.shares)
        refuse_rows(rules, rows)
        counts, buckets = _in_buckets(context, rows, where, operation)
    else:
        refuse_updates(rules, counts)
        new = {} if operation is WriteOperation.DELETE else counts.inserts
        buckets = _buckets(context, _InsertPlan(rules.operation, files, latest, owned), new)
    updates = counts.updates
    ids = {bucket.number: bucket.file_id or f"{context.world.ids.uuid()}-0" for bucket in buckets}
    workload.assign(buckets, ids)
    groups = dict.fromkeys(updates)
    groups.update((FileGroupId(b.partition_path, ids[b.number]), None) for b in buckets)
    deletes = operation is WriteOperation.DELETE
    planned = replace(counts, inserts={}) if deletes else counts
    mode = context.config.change_log_mode
    common = _TaskDefaults(
        begun.requested_time,
        rules,
        schema,
        files,
        mode,
        free,
        view.marked,
        context.config.partition_metafile_ending,
    )
    # Lookups find the rows of a filled small file in a base file only, so the write rewrites it,
    # as Java does. All other changes of a merge-on-read table are appended.
    rewritten = (
        set() if in_buckets else {FileGroupId(b.partition_path, b.file_id or "") for b in buckets}
    )
    tasks = tuple(
        _task(common, group, latest.get(group), number, appends=appends and group not in rewritten)
        for number, group in enumerate(groups)
    )
    return FileGroupAssignment(
        tasks=tasks,
        replaced=replaced,
        claimed_partitions=claimed,
        profile=_profile(operation, planned, latest),
        met=plan_conflict(reserved, (*replaced, *updates)),
        # An insert that checks for known keys promises its result as of the commit.
        logs_may_meet=free and not minds_known,
        missed_in=tuple(counts.inserts) if deletes else (),
        sought=_below_logs(counts.updates, latest) if deletes else {},
        new_rows=counts.inserts if operation is WriteOperation.UPSERT else {},
        read_only=_read_only((*tagged.updates, *beside), latest) if minds_known else (),
        inside=inside,
    )


def _read_only(
    found: Iterable[FileGroupId], latest: Mapping[FileGroupId, FileSlice]
) -> tuple[AccessedFileGroup, ...]:
    """Return the file groups whose keys decide about rows; a change of one is a conflict."""
    return tuple(
        AccessedFileGroup(
            file_group=group,
            touch=Access.LOG if latest[group].log_files else Access.BASE,
            source_requested_time=base.requested_time if base is not None else None,
        )
        for group in dict.fromkeys(found)
        for base in [latest[group].base_file]
    )


def _below_logs(
    rows: Mapping[FileGroupId, int], latest: Mapping[FileGroupId, FileSlice]
) -> dict[FileGroupId, int]:
    return {
        group: number
        for group, number in rows.items()
        if group in latest and latest[group].log_files
    }


def _refuse_outside(named: tuple[str, ...], touched: tuple[str, ...]) -> None:
    """Refuse rows outside the named partitions: they would replace partitions not named."""
    outside = sorted(set(touched).difference(named))
    if outside:
        raise InvalidInputError(
            "rows belong to other partitions than those that are to be overwritten; name these, "
            f"too, or leave the rows out: {outside[:5]}, named: {list(named[:5])}",
            kind="outside_partitions",
            partitions=outside[:5],
        )


def _refuse_nesting(
    context: TableContext, view: FileSystemView, touched: tuple[str, ...], rules: RowRules
) -> tuple[str, ...]:
    """
    Refuse a partition inside another one: no engine looks for partitions below a partition.

    Validation checks partitions that concurrent writes open (C21).

    Outside: 1 get for each partition that was not listed yet, and 1 list unless a committed write
    opened it; these overlap. The times of the archived timeline, if that write may be archived.
    For new or empty partitions with slashes in their values at most 2 stats of each parent folder,
    and a walk below those that have folders. Before the first write of a table only the stats.

    Returns:
        The parent folders of new or empty partitions whose values have slashes.
    """
    every = set(touched)
    fields = rules.keys.partition_fields
    if not fields or rules.keys.url_encode:
        return ()
    written = view.snapshot.newest_write is not None or view.snapshot.archived_write is not None
    ending = context.config.partition_metafile_ending
    look = partial(is_partition, context.world.storage, ending=ending)
    stand: set[str] = set()
    if written:
        unseen = view.unseen(touched)
        times = context.world.each(partial(partition_created_by, context.world.storage), unseen)
        # An instant that never completed may also be older than the first write, where each
        # instant seems committed.
        done = view.snapshot.completions
        stand.update(
            path
            for path, time in zip(unseen, times, strict=True)
            if time in done or (time is not None and time in view.snapshot.archived.completions)
        )
        view.mark(stand)
        view.latest_slices([path for path in unseen if path not in stand])
    # A failed write may have left an empty partition, inside another partition or around one.
    opened = [path for path in touched if path not in stand and not view.shows_rows(path)]
    above = {path: [path[:at] for at, c in enumerate(path) if c == "/"] for path in opened}
    deep = (folders for path, folders in above.items() if path.count("/") >= len(fields))
    inside = sorted(set(chain.from_iterable(deep)))
    around = every.union(compress(inside, context.world.each(look, inside)))
    for path in opened:
        outer = around.intersection(above[path])
        if outer:
            empty = outer.difference(every, with_committed_files(context, view.snapshot, outer))
            raise _nested(path, outer, empty)
        inner = inner_partitions(context, view.snapshot, path) if path in view.parents else ()
        if inner:
            raise _nested(path, inner)
    return tuple(inside)


def _nested(
    path: str, others: Iterable[str], empty: Collection[str] = frozenset()
) -> InvalidInputError:
    advice = "write values with the same number of slashes as the table's folders have"
    if empty:
        advice = (
            f"{advice}, or delete the {PARTITION_METADATA} files of those that have no rows, which "
            f"failed writes left, while no writer runs, and write again: {sorted(empty)[:5]}"
        )
    return InvalidInputError(
        "the rows' partition would lie inside of another, or around one, and readers find only "
        f"the outer; {advice}: {path!r}, {sorted(others)[:5]}",
        kind="nested_partition",
        partition=path,
    )


def _replaced(
    view: FileSystemView, operation: WriteOperation, touched: tuple[str, ...]
) -> tuple[tuple[FileGroupId, ...], tuple[str, ...]]:
    """Return the file groups that an operation replaces, and the partitions of its write set."""
    whole = operation is WriteOperation.INSERT_OVERWRITE_TABLE
    slices = view.latest_slices(None if whole else touched)
    return tuple(one.file_group for one in slices), (WHOLE_TABLE,) if whole else touched


def _wanted(found: WorkloadProfile, rules: RowRules) -> WorkloadProfile:
    """Return the counts of rows to write; refuse known or new keys where the rules forbid them."""
    if rules.refuse_found and found.updates:
        raise InvalidInputError(
            "the insert has keys that are there already; upsert them, or set "
            "hoodie.datasource.insert.dup.policy to drop or none: "
            f"{sum(found.updates.values())} rows",
            kind="duplicate_key",
            rows=sum(found.updates.values()),
        )
    if rules.partial:
        _refuse_new(found)
    elif rules.changes_known:
        _refuse_unknown(found)
    return WorkloadProfile(inserts=found.inserts) if rules.drop_found else found


def _refuse_new(counts: WorkloadProfile) -> None:
    """Refuse new keys: no reader could read a partial log block of a record that does not exist."""
    if counts.inserts:
        raise InvalidInputError(
            "a partial update changes records that are there, and some keys are not, or are in "
            "another partition; upsert whole rows of them first: "
            f"{sum(counts.inserts.values())} rows in {sorted(counts.inserts)[:5]}",
            kind="partial_new_key",
            rows=sum(counts.inserts.values()),
            partitions=sorted(counts.inserts)[:5],
        )


def _refuse_unknown(counts: WorkloadProfile) -> None:
    """Refuse keys the table does not have: its own keys are from another table, or deleted."""
    if counts.inserts:
        raise InvalidInputError(
            "rows are updated by the record keys and partition paths in their meta columns, and "
            "the table has no such rows: they were deleted meanwhile, or come from another table; "
            "read them again, or insert them without meta columns: "
            f"{sum(counts.inserts.values())} rows in {sorted(counts.inserts)[:5]}",
            kind="unknown_record_key",
            rows=sum(counts.inserts.values()),
            partitions=sorted(counts.inserts)[:5],
        )


def _refuse_fixed_file_ids(rules: RowRules) -> None:
    """Refuse to replace file groups with fixed ids: a replaced id stays hidden (fmt 6.4)."""
    if rules.buckets is None or rules.buckets.engine is BucketEngine.SIMPLE:
        return
    raise UnsupportedTableError(
        "partitions with consistent hashing cannot be overwritten or deleted as wholes, because "
        "their file groups keep their ids; delete the rows instead: "
        f"operation {rules.operation.value}",
        kind="not_writable",
        feature="overwriting consistent hashing buckets",
    )


def _in_buckets(
    context: TableContext,
    rows: Mapping[tuple[str, int], int],
    where: Buckets,
    operation: WriteOperation,
) -> tuple[WorkloadProfile, tuple[InsertBucket, ...]]:
    """Return row counts by file group, and the file group of each bucket; a delete makes none."""
    inserts: dict[str, int] = {}
    updates: dict[FileGroupId, int] = {}
    buckets: list[InsertBucket] = []
    for (path, share), count in sorted(rows.items()):
        group = where.known.get((path, share))
        if group is not None:
            updates[group] = count
        else:
            inserts[path] = inserts.get(path, 0) + count
        if group is None and operation is WriteOperation.DELETE:
            continue
        buckets.append(
            InsertBucket(
                number=len(buckets),
                partition_path=path,
                file_id=where.file_id(path, share, context.world.ids.uuid),
                base_requested_time=None,
                rows=count,
                share=share,
            )
        )
    return WorkloadProfile(inserts=inserts, updates=updates), tuple(buckets)


def _latest_of(slices: Iterable[FileSlice]) -> dict[FileGroupId, FileSlice]:
    return {one.file_group: one for one in slices}


@dataclass(frozen=True, slots=True)
class _InsertPlan:
    """The values that decide where new records go, except their number."""

    operation: WriteOperation
    files: FileRules
    latest: Mapping[FileGroupId, FileSlice]
    owned: Mapping[FileGroupId, object]  # by pending clusterings: never filled


def _buckets(
    context: TableContext, plan: _InsertPlan, inserts: Mapping[str, int]
) -> tuple[InsertBucket, ...]:
    if not inserts:
        return ()
    files = plan.files
    fills = plan.operation in (WriteOperation.UPSERT, WriteOperation.INSERT)
    small: dict[str, list[SmallFile]] = {}
    known: list[FileSlice] = []
    for group, one in plan.latest.items():
        base = one.base_file
        if base is None or group.partition_path not in inserts:
            continue
        known.append(one)
        # A file group with logs stays as it is: only a compaction merges them (fmt 6.7).
        may_grow = fills and group not in plan.owned and not one.log_files
        if may_grow and base.size_bytes < files.sizes.small_file_bytes:
            small.setdefault(group.partition_path, []).append(
                SmallFile(
                    file_id=group.file_id,
                    base_requested_time=base.requested_time,
                    size_bytes=base.size_bytes,
                )
            )
    sizes = files.sizes
    if (
        files.learn_record_size
        and known
        and max(inserts.values()) * sizes.record_bytes > (sizes.file_bytes_max // 4)
    ):
        sizes = replace(sizes, record_bytes=_learnt(context, known, sizes.record_bytes))
    chosen = {
        path: sorted(candidates, key=lambda each: (each.size_bytes, each.file_id))[
            : files.small_files_max
        ]
        for path, candidates in small.items()
    }
    return assign_inserts(inserts, chosen, sizes)


def _learnt(context: TableContext, slices: list[FileSlice], default: int) -> int:
    """Return the bytes of a stored record, learned from the biggest files."""
    biggest = sorted(slices, key=lambda one: -one.size_bytes)[:_LEARN_FILES_MAX]
    sampled = []
    for one in biggest:
        if one.base_file is not None:
            footer = read_footer(context.world.storage, one.base_file.path)
            # The bloom filter may be most of a small file; it is not part of the records.
            filter_bytes = len(footer.bloom_base64 or "")
            sampled.append((one.base_file.size_bytes - filter_bytes, footer.rows))
    return learn_record_bytes(sampled, default=default)


@dataclass(frozen=True, slots=True)
class _TaskDefaults:
    """The values that all tasks of one write share."""

    requested_time: InstantTime
    rules: RowRules
    schema: TableSchema
    files: FileRules
    change_log: CdcMode | None = None
    opens_logs: bool = False  # a new file group begins with a log file
    marked: frozenset[str] = frozenset()  # partitions whose metadata file exists
    metafile: str = ""  # ending of that file's name


def _task(
    common: _TaskDefaults,
    group: FileGroupId,
    newest: FileSlice | None,
    number: int,
    *,
    appends: bool,
) -> FileGroupTask:
    rules, schema, files = common.rules, common.schema, common.files
    base = newest.base_file if newest is not None else None
    log = None
    if appends and newest is not None:
        log = LogTarget(settings=files.logs, logs=newest.log_files)
    elif common.opens_logs:
        log = LogTarget(settings=files.logs)
    deletes = DeleteKind.NONE
    if rules.operation is WriteOperation.DELETE:
        deletes = DeleteKind.EXPLICIT
    elif {IS_DELETED_COLUMN, rules.merge.delete_field} & set(schema.arrow.names):
        deletes = DeleteKind.COLUMN
    return FileGroupTask(
        requested_time=common.requested_time,
        operation=rules.operation,
        partition_path=group.partition_path,
        file_id=group.file_id,
        write_token=f"{number}-0-0",
        task_number=number,
        avro_json=schema.avro_json,
        base_path=base.path if base is not None else None,
        base_requested_time=base.requested_time if base is not None else None,
        merge_mode=rules.merge_mode,
        ordering_fields=rules.ordering_fields,
        deletes=deletes,
        parquet=files.parquet,
        bloom=files.bloom,
        merge=rules.merge,
        stores_keys=rules.keys.stores_keys,
        virtual_keys=rules.keys.virtual,
        automatic_keys=rules.keys.automatic,
        log=log,
        change_log=common.change_log,
        partial=rules.partial,
        partition_metafile=common.metafile,
        partition_marked=group.partition_path in common.marked,
    )


def _profile(
    operation: WriteOperation,
    counts: WorkloadProfile,
    latest: Mapping[FileGroupId, FileSlice],
) -> CommitMetadata:
    def base_time(group: FileGroupId) -> InstantTime:
        return latest[group].base_instant_time

    return workload_profile(
        operation_type=operation.hudi_name,
        planned_insert_rows=counts.inserts,
        planned_updates=tuple(
            PlannedUpdate(
                partition_path=group.partition_path,
                file_id=group.file_id,
                base_requested_time=base_time(group),
                update_rows=rows,
            )
            for group, rows in sorted(counts.updates.items())
        ),
    )


# ---- Lookup of record keys: in base files, or in whole slices where logs count
#
# A base file still contains a key that a log deleted, until a compaction drops it. Most writes
# bring the key back there, by a log. An insert that checks for known keys puts it elsewhere, so
# the two writes must conflict (PUB-4).


def lookup_files(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice], rules: RowRules
) -> dict[str, list[IndexedFile]]:
    """
    Return the files in which to look up keys: base files, or whole slices where logs count.

    With an index by partition, new keys of hoodoo are in base files, and a key that a log deleted
    comes back in its old file group. So base files are enough there, as for Java. There are two
    exceptions, where the key is in a log alone: a compaction dropped it while a log brought it
    back, or a writer inserted it into a log (CMP-4, LOGIN-1).

    Elsewhere logs count too. With a global index a deleted key would be found where it no longer
    exists, an insert would take it for known, and a partial update would bring back the rest of a
    deleted row.

    Outside: as ``may_resurrect`` and ``slices_with_log_inserts``.
    """
    minds_logs = rules.lookup.whole_table or rules.changes_known
    minds_logs |= rules.drop_found or rules.refuse_found
    # A plain insert after a delete leaves a key in two base files: the newer one holds the row.
    listed = sorted(slices, key=_base_time, reverse=True)
    logged = [one for one in listed if one.log_files and (minds_logs or one.base_file is None)]
    both: dict[FileGroupId, FileSlice] = {}
    if not minds_logs and any(one.log_files for one in listed):
        more = (
            *may_resurrect(context, view, listed),
            *slices_with_log_inserts(context, view, listed),
        )
        both = {one.file_group: one for one in more}
    merged = [*both.values(), *logged]
    read = _read_of_keys(context, view.snapshot, merged, rules) if merged else None
    known = {one.file_group for one in merged}
    found: dict[str, list[IndexedFile]] = {}

    def look(one: FileSlice, read: SliceRead | None) -> None:
        group = one.file_group
        found.setdefault(group.partition_path, []).append(
            IndexedFile(
                file_id=group.file_id,
                path="" if one.base_file is None else one.base_file.path,
                virtual_keys=rules.keys.virtual,
                merged=None if read is None else SliceWithLogs(slice=one, read=read),
            )
        )

    # First the slices that surely contain keys, last base files whose logs may delete the keys.
    for one in both.values():
        look(one, read)
    for one in listed:
        if one.file_group not in both:
            look(one, read if one.file_group in known else None)
    for one in both.values():
        look(one, None)
    return found


def below_deletes(
    files: Mapping[str, Sequence[IndexedFile]],
) -> dict[str, list[IndexedFile]]:
    """Return the base files under logs that count: other writers look up deleted keys there."""
    below = {
        path: [replace(one, merged=None) for one in some if one.merged and one.path]
        for path, some in files.items()
    }
    return {path: some for path, some in below.items() if some}


def _base_time(one: FileSlice) -> InstantTime:
    return one.base_file.requested_time if one.base_file is not None else ""


def _read_of_keys(
    context: TableContext, snapshot: Snapshot, slices: list[FileSlice], rules: RowRules
) -> SliceRead:
    """Return how to read keys of slices with logs, with ordering fields if they decide a move."""
    virtual = rules.keys.virtual
    fields = [name.partition(".")[0] for name in virtual.fields] if virtual else []
    ordering = [name.partition(".")[0] for name in rules.ordering_fields if rules.moves_rows]
    columns = tuple(dict.fromkeys((KEY_COLUMN, *fields, *ordering)))
    return plan_scan(context, snapshot, slices, columns=columns).read
