"""
Assign file groups: decide which file groups the rows of a write go to, and which it replaces.

Reads the base snapshot's file system view, tags the rows, fills small files and opens new file
groups. The result is one task for each file group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from filegroups.files.log_files import LogTarget
from filegroups.files.parquet import read_footer
from filegroups.files.rewrite import FileGroupTask
from filegroups.index import IndexedFile
from filegroups.index.buckets import find_buckets
from filegroups.index.lookup import (
    file_groups_by_index,
    note_unused_index,
)
from filegroups.keys.bucketing import (
    BucketRules,
    InsertBucket,
    SizeSettings,
    SmallFile,
    assign_inserts,
    learn_record_bytes,
)
from filegroups.merge.merging import DeleteKind
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.scan import view_of
from filegroups.schema.schema import IS_DELETED_COLUMN, TableSchema
from filegroups.writing.lookup_files import below_deletes, lookup_files
from filegroups.writing.row_checks import (
    refuse_foreign_buckets,
    refuse_nesting,
    refuse_replacing,
    refuse_updates_in_foreign_buckets,
    rows_to_write,
)
from filegroups.writing.stored_forms import refuse_other_forms
from filegroups.writing.workload import (
    NewGroups,
    OnePassWorkload,
    Workload,
    WorkloadProfile,
)
from filegroups.writing.write_request import FileRules, RowRules
from timeline.context import TableContext
from timeline.model.commit_metadata import (
    WHOLE_TABLE,
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    OperationTraits,
    PlannedUpdate,
    Replaced,
    TableType,
    WriteOperation,
    workload_profile,
)
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.pending_plans import file_groups_in_clustering, file_groups_to_avoid, plan_conflict
from timeline.rules.conflicts import Rejected
from timeline.snapshot import Snapshot

_LEARN_FILES_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupAssignment:
    """The file groups that a write will change, and how."""

    tasks: tuple[FileGroupTask, ...]
    replaced: tuple[FileGroupId, ...]
    overwritten_partitions: tuple[str, ...]
    profile: CommitMetadata  # the inflight content
    conflict: Rejected | None = None  # pending plans own file groups that are written or replaced
    logs_may_conflict: bool = False  # may append to a file group while others do (NBCC-1)
    partitions_without_match: tuple[
        str, ...
    ] = ()  # partitions in which a delete did not find all its keys
    # Of a delete: rows whose keys are in slices with logs, which may have deleted them already.
    deleted_below_logs: Mapping[FileGroupId, int] = field(default_factory=dict)
    new_rows: Mapping[str, int] = field(default_factory=dict)  # of an upsert, by partition path
    # Where an insert that checks for known keys found some.
    read_only: tuple[AccessedFileGroup, ...] = ()
    outer_folders: tuple[
        str, ...
    ] = ()  # parent folders of new partitions whose values have slashes
    # The rows choose their file groups while they are written; then ``tasks`` is still empty.
    new_groups: NewGroups | None = None


class AssignmentBase(Protocol):
    """The parts of a write that the assignment needs: the time of its files, and its snapshot."""

    @property
    def requested_time(self) -> InstantTime:
        """The requested time of the write."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot on which every decision is based."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """The write to assign, as every step sees it."""

    context: TableContext
    started: AssignmentBase
    workload: Workload
    rules: RowRules
    schema: TableSchema
    files: FileRules
    view: FileSystemView
    touched: tuple[str, ...]  # partitions of the rows

    @property
    def operation(self) -> OperationTraits:
        """How the operation treats rows and file groups."""
        return self.rules.operation.traits

    @property
    def buckets(self) -> BucketRules | None:
        """The bucket index that decides where rows go; it finds no key, so None if keys must exist."""
        return None if self.rules.changes_known else self.rules.buckets

    @property
    def appends(self) -> bool:
        """Whether existing file groups get log files."""
        return self.context.config.table_type is TableType.MERGE_ON_READ

    @property
    def agreed(self) -> bool:
        """Whether non-blocking writers agree on the file ids of buckets without a commit."""
        concurrent = self.appends and self.context.non_blocking
        return concurrent and self.buckets is not None and not self.rules.operation.replaces

    @property
    def opens_logs(self) -> bool:
        """
        Return whether a new file group begins with a log file, as concurrent ones may (NBCC-1).

        Java's bulk inserts also create base files in agreed file groups, so validation applies to
        bulk inserts.
        """
        return self.agreed and not self.operation.opens_new_files_only

    @property
    def whole_table(self) -> bool:
        """Whether keys are looked up in every partition."""
        return self.rules.tags and self.rules.lookup.whole_table


def assign_file_groups(
    context: TableContext,
    started: AssignmentBase,
    workload: Workload | None,
    rules: RowRules,
    schema: TableSchema,
    *,
    files: FileRules,
    delete_partitions: Iterable[str] = (),
    view: FileSystemView | None = None,
    counts_rows: bool = False,
) -> FileGroupAssignment:
    """
    Assign every row of a write to a file group.

    Outside: 1 list per written partition, the index's reads, at most 4 footers.

    Args:
        context: The table.
        started: The write; its snapshot is the base of every decision.
        workload: Prepared rows; None for a delete of partitions.
        rules: How rows become records.
        schema: The schema to write with.
        files: How to make base files and log files.
        delete_partitions: Partitions to delete as a whole, or to overwrite even if no row
        belongs to them.
        view: The file system view of the write's snapshot, if several writes share one.
        counts_rows: Count the rows of each file group, even if they could be written without.

    Raises:
        InvalidInputError: An insert that refuses known keys has some; a partial update has new
        keys (``partial_new_key``); rows are of ``foreign_buckets``, or outside the
        overwritten partitions (``outside_partitions``).
        UnsupportedTableError: The write overwrites partitions with fixed file ids.
        MissingFileError: A base file was cleaned meanwhile; begin again.
    """
    view = view or view_of(context, started.snapshot)
    named = tuple(delete_partitions)
    one_pass = not counts_rows and writes_in_one_pass(workload, rules, files, started.snapshot)
    touched = named if workload is None or one_pass else workload.partition_paths()
    plans = _planned_groups(context, started.snapshot)
    replaced, claimed = _replaced(view, rules, named, touched)
    without_rows = FileGroupAssignment(
        tasks=(),
        replaced=replaced,
        overwritten_partitions=claimed,
        profile=_profile(rules.operation, WorkloadProfile(), {}),
        conflict=_conflict(plans, replaced),
    )
    if workload is None:
        return without_rows
    write = _Write(
        context=context,
        started=started,
        workload=workload,
        rules=rules,
        schema=schema,
        files=files,
        view=view,
        touched=touched,
    )
    if one_pass:
        groups = NewGroups(
            task=_shared_task(write),
            rows_per_file=files.sizes.rows_per_file,
            # The estimate of a row's bytes is mostly too high, and here the rows show it.
            bytes_per_file=files.sizes.file_bytes_max if files.sizes.auto_split else 0,
        )
        return replace(without_rows, new_groups=groups)
    latest, located = _existing_slices(write)
    tagged = _tag_rows(write, latest, located)
    counts = rows_to_write(tagged.counts, rules)
    if write.buckets is None:
        buckets = _fill_small_files(write, counts, latest, plans.clustered)
    else:
        counts, buckets = _fill_buckets(write, write.buckets, latest)
    tasks = _route_rows(write, counts, buckets, latest, indexed=tagged.indexed)
    deletes = write.operation.deletes_keys
    return FileGroupAssignment(
        tasks=tasks,
        replaced=replaced,
        overwritten_partitions=claimed,
        profile=_profile(
            rules.operation, replace(counts, inserts={}) if deletes else counts, latest
        ),
        conflict=_conflict(plans, (*replaced, *counts.updates)),
        # An insert that checks for known keys promises its result as of the commit.
        logs_may_conflict=write.opens_logs and not rules.checks_known,
        partitions_without_match=tuple(counts.inserts) if deletes else (),
        deleted_below_logs=_below_logs(counts.updates, latest) if deletes else {},
        new_rows=counts.inserts if write.operation.updates else {},
        read_only=_read_only(tagged.decisive, latest),
        outer_folders=tagged.inside,
    )


def writes_in_one_pass(
    workload: Workload | None, rules: RowRules, files: FileRules, snapshot: Snapshot
) -> bool:
    """Return whether the rows are written without a count before."""
    is_first = snapshot.newest_write is None and snapshot.archived_write is None
    return isinstance(workload, OnePassWorkload) and rules.opens_groups_only(
        is_first=is_first, fills_small_files=files.fills_small_files
    )


# ---- Step 1: file groups of pending plans, and those that the write replaces


@dataclass(frozen=True, slots=True)
class _PlannedGroups:
    """File groups of pending plans."""

    clustered: Mapping[FileGroupId, object]  # by pending clusterings: never filled
    avoided: Mapping[FileGroupId, Instant]  # a write of one is rejected


def _planned_groups(context: TableContext, snapshot: Snapshot) -> _PlannedGroups:
    if not snapshot.active.has_pending(Action.CLUSTERING, Action.REPLACECOMMIT):
        return _PlannedGroups({}, {})
    clustered = file_groups_in_clustering(context, snapshot.active)
    avoided = file_groups_to_avoid(context, snapshot.active) if clustered else {}
    return _PlannedGroups(clustered, avoided)


def _conflict(plans: _PlannedGroups, groups: Iterable[FileGroupId]) -> Rejected | None:
    return plan_conflict(plans.avoided, groups) if plans.avoided else None


def _replaced(
    view: FileSystemView, rules: RowRules, named: tuple[str, ...], touched: tuple[str, ...]
) -> tuple[tuple[FileGroupId, ...], tuple[str, ...]]:
    """Return the file groups that the write replaces, and the partitions of its write set."""
    scope = rules.operation.traits.replaces
    if scope is Replaced.NOTHING:
        return (), ()
    refuse_replacing(rules, named, touched)
    partitions = named or touched
    whole = scope is Replaced.TABLE
    slices = view.latest_slices(None if whole else partitions)
    return tuple(one.file_group for one in slices), (WHOLE_TABLE,) if whole else partitions


# ---- Step 2: existing file groups, and the rows whose keys they have


def _existing_slices(
    write: _Write,
) -> tuple[dict[FileGroupId, FileSlice], frozenset[FileGroupId] | None]:
    """
    Return the newest slices that may get rows; none if the write opens new file groups only.

    Also return the file groups that the record index names for the rows' keys, all of them among
    the slices; None if the write does not use it.
    """
    new_only = write.operation.opens_new_files_only and write.buckets is None
    if new_only or write.rules.operation.replaces:
        return {}, None
    located = _located(write)
    if located is not None:
        paths = {*write.touched, *(group.partition_path for group in located)}
        latest = {one.file_group: one for one in write.view.latest_slices(paths)}
        if located <= latest.keys():
            return latest, located
        note_unused_index(write.context, "unknown_file_group")
    slices = write.view.latest_slices(None if write.whole_table else write.touched)
    return {one.file_group: one for one in slices}, None


def _located(write: _Write) -> frozenset[FileGroupId] | None:
    """Return the file groups that the record index names; None to look the keys up in files."""
    rules = write.rules
    if not (rules.tags and rules.lookup.by_record_index):
        return None
    return file_groups_by_index(
        write.context,
        write.started.snapshot,
        write.workload.locate,
        whole_table=rules.lookup.whole_table,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tagged:
    """The result of the lookup of keys."""

    counts: WorkloadProfile
    indexed: bool  # the record index alone decided
    decisive: tuple[FileGroupId, ...]  # file groups whose keys decided about rows of an insert
    inside: tuple[str, ...]  # as of ``FileGroupAssignment``


def _tag_rows(
    write: _Write,
    latest: Mapping[FileGroupId, FileSlice],
    located: frozenset[FileGroupId] | None,
) -> _Tagged:
    """Look up the keys of the rows; refuse keys and partitions that lookups would miss."""
    context, rules, workload = write.context, write.rules, write.workload
    in_buckets = write.buckets is not None
    if rules.tags or in_buckets:
        refuse_other_forms(context, write.started.snapshot, latest.values(), rules.keys)
    candidates: dict[str, list[IndexedFile]] = {}
    # With a bucket index, only inserts that check for known keys look them up.
    if rules.tags and (rules.checks_known or not in_buckets):
        named = latest.values() if located is None else map(latest.__getitem__, sorted(located))
        candidates = lookup_files(context, write.view, named, rules)
    inside: tuple[str, ...] = ()
    if not write.operation.deletes_keys:
        inside = refuse_nesting(context, write.view, write.touched, rules)
    below = _tag_below_deletes(write, candidates)
    # The record index also has keys whose rows an older delete hides (MDT-14). If that matters, the
    # named files decide.
    reads_files = located is None or rules.checks_known or rules.changes_known
    counts = workload.tag(candidates) if reads_files else workload.tag_located(candidates)
    decisive = (*counts.updates, *below) if rules.checks_known else ()
    return _Tagged(counts=counts, indexed=not reads_files, decisive=decisive, inside=inside)


def _tag_below_deletes(
    write: _Write, candidates: Mapping[str, Sequence[IndexedFile]]
) -> Iterable[FileGroupId]:
    """
    Return the file groups in which other writers may bring back a key that this insert adds.

    Logs deleted the key there. With a global index or a bucket index this does not happen, and the
    commit checks compare the keys of a write by the record index.
    """
    if not write.rules.checks_known or write.whole_table or write.buckets is not None:
        return ()
    if write.rules.lookup.by_record_index:
        return ()
    below = below_deletes(candidates)
    return write.workload.tag(below).updates if below else ()


def _read_only(
    found: Iterable[FileGroupId], latest: Mapping[FileGroupId, FileSlice]
) -> tuple[AccessedFileGroup, ...]:
    """Return the file groups whose keys decide about rows; a change of one is a conflict."""
    return tuple(
        AccessedFileGroup(
            file_group=group,
            access=Access.LOG if latest[group].log_files else Access.BASE,
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


# ---- Step 3: new rows: to the file group of their bucket, else to small files, then to new ones


def _fill_buckets(
    write: _Write, index: BucketRules, latest: Mapping[FileGroupId, FileSlice]
) -> tuple[WorkloadProfile, tuple[InsertBucket, ...]]:
    """Return row counts by file group, and the file group of each bucket; a delete makes none."""
    ids = write.context.ports.ids
    where = find_buckets(
        write.context.ports.storage,
        write.started.snapshot,
        index,
        write.touched,
        latest,
        agreed=write.agreed,
    )
    rows = write.workload.count_by_bucket(where.assigner)
    refuse_foreign_buckets(write.rules, rows)
    inserts: dict[str, int] = {}
    updates: dict[FileGroupId, int] = {}
    buckets: list[InsertBucket] = []
    for (path, share), count in sorted(rows.items()):
        group = where.known.get((path, share))
        if group is not None:
            updates[group] = count
        else:
            inserts[path] = inserts.get(path, 0) + count
        if group is None and write.operation.deletes_keys:
            continue
        buckets.append(
            InsertBucket(
                number=len(buckets),
                partition_path=path,
                file_id=where.file_id(path, share, ids.uuid),
                rows=count,
                weight=share,
            )
        )
    return WorkloadProfile(inserts=inserts, updates=updates), tuple(buckets)


def _fill_small_files(
    write: _Write,
    counts: WorkloadProfile,
    latest: Mapping[FileGroupId, FileSlice],
    clustered: Mapping[FileGroupId, object],
) -> tuple[InsertBucket, ...]:
    """Return the insert buckets of rows with new keys: small files first, then new file groups."""
    refuse_updates_in_foreign_buckets(write.rules, counts)
    inserts, files = counts.inserts, write.files
    if write.operation.deletes_keys or not inserts:
        return ()
    known = [
        one
        for group, one in latest.items()
        if one.base_file is not None and group.partition_path in inserts
    ]
    small: dict[str, list[SmallFile]] = {}
    if write.operation.fills_small_files:
        # A file group with logs stays as it is: only a compaction merges them (fmt 6.7).
        may_grow = (one for one in known if one.file_group not in clustered and not one.log_files)
        small = _small_files(may_grow, files)
    sizes = _sizes_learnt(write, known, rows_max=max(inserts.values()))
    return assign_inserts(inserts, small, sizes)


def _small_files(slices: Iterable[FileSlice], files: FileRules) -> dict[str, list[SmallFile]]:
    """Return the small files to fill by partition path, the smallest first."""
    small: dict[str, list[SmallFile]] = {}
    for one in slices:
        base = one.base_file
        if base is not None and base.size_bytes < files.sizes.small_file_bytes:
            small.setdefault(one.file_group.partition_path, []).append(
                SmallFile(
                    file_id=one.file_group.file_id,
                    size_bytes=base.size_bytes,
                )
            )
    for each in small.values():
        each.sort(key=lambda one: (one.size_bytes, one.file_id))
        del each[files.small_files_max :]
    return small


def _sizes_learnt(write: _Write, known: list[FileSlice], *, rows_max: int) -> SizeSettings:
    """Return the file sizes, with the size of a record learned if it matters for so many rows."""
    sizes = write.files.sizes
    few = rows_max * sizes.record_bytes <= sizes.file_bytes_max // 4
    if few or not known or not write.files.learn_record_size:
        return sizes
    learnt = _learnt_record_bytes(write.context, known, sizes.record_bytes)
    return replace(sizes, record_bytes=learnt)


def _learnt_record_bytes(context: TableContext, slices: list[FileSlice], default: int) -> int:
    """Return the bytes of a stored record, learned from the biggest files."""
    biggest = sorted(slices, key=lambda one: -one.size_bytes)[:_LEARN_FILES_MAX]
    sampled = []
    for one in biggest:
        if one.base_file is not None:
            footer = read_footer(context.ports.storage, one.base_file.path)
            # The bloom filter may be most of a small file; it is not part of the records.
            filter_bytes = len(footer.bloom_base64 or "")
            sampled.append((one.base_file.size_bytes - filter_bytes, footer.rows))
    return learn_record_bytes(sampled, default=default)


# ---- Step 4: one task for each file group


def _route_rows(
    write: _Write,
    counts: WorkloadProfile,
    buckets: tuple[InsertBucket, ...],
    latest: Mapping[FileGroupId, FileSlice],
    *,
    indexed: bool,
) -> tuple[FileGroupTask, ...]:
    """Route the rows to their file groups; return a task for each, updates first."""
    uuid = write.context.ports.ids.uuid
    ids = {bucket.number: bucket.file_id or f"{uuid()}-0" for bucket in buckets}
    write.workload.assign(buckets, ids)
    opened = {FileGroupId(one.partition_path, ids[one.number]): None for one in buckets}
    # Lookups find the rows of a filled small file in a base file only, so the write rewrites it,
    # as Java does. All other changes of a merge-on-read table are appended.
    rewritten = opened if write.buckets is None else {}
    shared = _shared_task(write)
    tasks = (
        _task(write, shared, group, latest.get(group), number, rewrites=group in rewritten)
        for number, group in enumerate(dict.fromkeys((*counts.updates, *opened)))
    )
    return tuple(replace(one, indexed=indexed and one.file_group not in opened) for one in tasks)


def _shared_task(write: _Write) -> FileGroupTask:
    """Return a task with the values that all tasks of the write share, without a file group."""
    rules, schema, files = write.rules, write.schema, write.files
    deletes = DeleteKind.NONE
    if write.operation.deletes_keys:
        deletes = DeleteKind.EXPLICIT
    elif {IS_DELETED_COLUMN, rules.merge.delete_field} & set(schema.arrow.names):
        deletes = DeleteKind.COLUMN
    return FileGroupTask(
        requested_time=write.started.requested_time,
        operation=rules.operation,
        partition_path="",
        file_id="",
        write_token="",
        task_number=0,
        avro_json=schema.avro_json,
        deletes=deletes,
        parquet=files.parquet,
        bloom=files.bloom,
        merge=rules.merge,
        stores_keys=rules.keys.stores_keys,
        virtual_keys=rules.keys.virtual,
        automatic_keys=rules.keys.automatic,
        change_log=write.context.config.change_log_mode,
        partial=rules.partial,
        partition_metafile=write.context.config.partition_metafile_ending,
        history=None if schema.ids is None else schema.ids.history,
    )


def _task(
    write: _Write,
    shared: FileGroupTask,
    group: FileGroupId,
    newest: FileSlice | None,
    number: int,
    *,
    rewrites: bool,
) -> FileGroupTask:
    base = newest.base_file if newest is not None else None
    log = None
    if newest is not None and write.appends and not rewrites:
        log = LogTarget(settings=write.files.logs, logs=newest.log_files)
    elif write.opens_logs:
        log = LogTarget(settings=write.files.logs)
    return replace(
        shared,
        partition_path=group.partition_path,
        file_id=group.file_id,
        write_token=f"{number}-0-0",
        task_number=number,
        base_path=base.path if base is not None else None,
        base_requested_time=base.requested_time if base is not None else None,
        log=log,
        partition_marked=group.partition_path in write.view.with_metadata_file,
    )


def _profile(
    operation: WriteOperation,
    counts: WorkloadProfile,
    latest: Mapping[FileGroupId, FileSlice],
) -> CommitMetadata:
    return workload_profile(
        operation_type=operation.hudi_name,
        planned_insert_rows=counts.inserts,
        planned_updates=tuple(
            PlannedUpdate(
                partition_path=group.partition_path,
                file_id=group.file_id,
                base_requested_time=latest[group].base_instant_time,
                update_rows=rows,
            )
            for group, rows in sorted(counts.updates.items())
        ),
    )
