"""
Placing a write: which file groups its rows go to, and which it replaces.

Reads the base snapshot's view, asks the workload where the keys are, fills small files,
opens new file groups and turns all of it into one task per file group.
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
    """How base files and log files are made."""

    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    bloom: BloomSettings | None = field(default_factory=BloomSettings)
    sizes: SizeSettings = field(default_factory=SizeSettings)
    # Filled by one write in each partition (hoodie.merge.small.file.group.candidates.limit).
    small_files_max: int = 1
    learn_record_size: bool = True
    logs: LogSettings = field(default_factory=LogSettings)  # of merge-on-read tables


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupAssignment:
    """What a write will do to which file groups."""

    tasks: tuple[FileGroupTask, ...]
    replaced: tuple[FileGroupId, ...]
    claimed_partitions: tuple[str, ...]
    profile: CommitMetadata  # the inflight content
    met: Rejected | None = None  # pending plans own what is written or replaced
    logs_may_meet: bool = False  # beside logs of others in one file group (NBCC-1)
    missed_in: tuple[str, ...] = ()  # partitions in which a delete did not find all its keys
    # Of a delete: rows whose keys lie below logs, which may have deleted them already.
    sought: Mapping[FileGroupId, int] = field(default_factory=dict)
    new_rows: Mapping[str, int] = field(default_factory=dict)  # of an upsert, by partition path
    read_only: tuple[
        AccessedFileGroup, ...
    ] = ()  # where an insert that minds known keys found some
    inside: tuple[str, ...] = ()  # folders around new partitions whose values have slashes


class AssignmentBase(Protocol):
    """What placing needs of a write: the time its files will carry, and what it saw."""

    @property
    def requested_time(self) -> InstantTime:
        """Names the write."""

    @property
    def snapshot(self) -> Snapshot:
        """The base of every decision."""


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
    Decide where every row goes.

    Outside: 1 list per touched partition, the index's reads, at most 4 footers.

    Args:
        context: The table.
        begun: The write; its snapshot is the base of every decision.
        workload: Prepared rows; None for a delete of partitions.
        rules: How rows become records.
        schema: The schema to write with.
        files: How base files and log files are made.
        delete_partitions: Partitions to delete as wholes, or to overwrite though no row is
            of them.
        view: Of the write's snapshot, where writes share one.

    Raises:
        InvalidInputError: An insert that must not meet known keys meets some, or a partial
            update new ones (``partial_new_key``), or rows are of ``foreign_buckets``, or of
            other partitions than are to be overwritten (``outside_partitions``).
        UnsupportedTableError: Partitions are to be overwritten whose file ids are fixed.
        MissingFileError: A base file was cleaned meanwhile; begin again.
    """
    view = view or view_of(context, begun.snapshot)
    # Rows that change records are looked up wherever they are: a new key must be refused.
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
    # A bulk insert looks at no file that is there: it opens new file groups only.
    bulk = operation is WriteOperation.BULK_INSERT and not in_buckets
    appends = context.config.table_type is TableType.MERGE_ON_READ
    agreed = appends and in_buckets and context.non_blocking and not operation.replaces
    # Java's bulk inserts make base files in agreed file groups, too, and are judged (NBCC-1).
    free = agreed and operation is not WriteOperation.BULK_INSERT
    everywhere = rules.tags and rules.lookup.whole_table
    latest: Mapping[FileGroupId, FileSlice] = {}
    if not (operation.replaces or bulk):
        latest = _latest_of(view.latest_slices(None if everywhere else touched))
    # In a bucket index only inserts that mind known keys look for them.
    minds_known = rules.drop_found or rules.refuse_found
    looks = rules.tags and (not in_buckets or minds_known)
    if rules.tags or in_buckets:
        refuse_other_forms(context, begun.snapshot, latest.values(), rules.keys)
    candidates = lookup_files(context, view, latest.values(), rules) if looks else {}
    inside: tuple[str, ...] = ()
    if operation is not WriteOperation.DELETE:
        inside = _refuse_nesting(context, view, touched, rules)
    # Where others bring a key back that logs deleted: this write inserts it elsewhere. Of a key
    # of the whole table, or of a bucket, nobody does.
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
    # Rows that fill a small file are found again in a base file only: it is written anew, as
    # Java does. All other changes of a merge-on-read table are appended.
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
        # Whether keys are there already is promised of the moment of publication.
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
    """File groups whose keys decide what is done with rows, as long as nobody changes them."""
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
    """Rows of other partitions than those that are said to be overwritten would replace them."""
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
    Refuse a partition inside of another: no engine looks for partitions below one.

    What others open meanwhile the publication judges (C21).
    Outside: 1 get for each partition that was not listed yet, and 1 list unless a committed write
    opened it, side by side, and the times of the history where that may be archived; for new or empty ones at most 2 stats of each folder above where their
    values have slashes, and a walk below those that have folders. Before the first write of a table
    the stats alone.

    Returns:
        The folders above partitions that are new or empty, and whose values have slashes.
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
        # What never completed may lie below the first write as well, where all seems committed.
        done = view.snapshot.completions
        stand.update(
            path
            for path, time in zip(unseen, times, strict=True)
            if time in done or (time is not None and time in view.snapshot.archived.completions)
        )
        view.mark(stand)
        view.latest_slices([path for path in unseen if path not in stand])
    # An empty one may be what a failed write began, inside of others or around them.
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
    """The file groups that an operation replaces, and what it claims for that."""
    whole = operation is WriteOperation.INSERT_OVERWRITE_TABLE
    slices = view.latest_slices(None if whole else touched)
    return tuple(one.file_group for one in slices), (WHOLE_TABLE,) if whole else touched


def _wanted(found: WorkloadProfile, rules: RowRules) -> WorkloadProfile:
    """What is written of the rows with known and with new keys; what may not be is refused."""
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
    """A log block of some columns of a record that is not there could not be read by anybody."""
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
    """Keys that the table gave to rows are its own: others come from another table, or are gone."""
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
    """A replaced file group stays hidden for ever, so its id cannot be used again (fmt 6.4)."""
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
    """Counts by file group, and the file group of each bucket; a delete makes none."""
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
    """What decides where new records go, beside their number."""

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
    """Bytes of a stored record, from the biggest files at hand."""
    biggest = sorted(slices, key=lambda one: -one.size_bytes)[:_LEARN_FILES_MAX]
    sampled = []
    for one in biggest:
        if one.base_file is not None:
            footer = read_footer(context.world.storage, one.base_file.path)
            # The bloom filter, which may be most of a small file, is no record.
            filter_bytes = len(footer.bloom_base64 or "")
            sampled.append((one.base_file.size_bytes - filter_bytes, footer.rows))
    return learn_record_bytes(sampled, default=default)


@dataclass(frozen=True, slots=True)
class _TaskDefaults:
    """What all tasks of one write share."""

    requested_time: InstantTime
    rules: RowRules
    schema: TableSchema
    files: FileRules
    change_log: CdcMode | None = None
    opens_logs: bool = False  # a new file group begins with a log file
    marked: frozenset[str] = frozenset()  # partitions whose metadata file is there
    metafile: str = ""  # the ending of such a file


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


# ------------ Where a write looks its record keys up: base files, or whole slices where logs count
#
# A key that a log deleted lies in the base file still, until a compaction drops it. Most writes
# bring it back there, by a log. One that minds known keys inserts it elsewhere, so the two must
# not pass each other unseen (PUB-4).


def lookup_files(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice], rules: RowRules
) -> dict[str, list[IndexedFile]]:
    """
    Where keys are looked for: base files, or whole slices where it matters what logs say.

    Our new keys of one partition lie in base files, and one that a log deleted comes back where
    it was, so that base files tell enough there, as to Java. Unless a compaction dropped it while
    a log brought it back, or a writer inserted it into a log: then it lies in that log alone
    (CMP-4, LOGIN-1). In the whole table a deleted key would be found where it no longer lives, an
    insert would be taken for known, and a partial update would bring the rest of a deleted row
    back.

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

    # First where keys live for certain; last the base files whose logs are known to delete them.
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
    """The base files below logs that count: there others find keys that these logs delete."""
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
    """How keys are read of slices with logs, and the order of rows where it decides a move."""
    virtual = rules.keys.virtual
    fields = [name.partition(".")[0] for name in virtual.fields] if virtual else []
    ordering = [name.partition(".")[0] for name in rules.ordering_fields if rules.moves_rows]
    columns = tuple(dict.fromkeys((KEY_COLUMN, *fields, *ordering)))
    return plan_scan(context, snapshot, slices, columns=columns).read
