"""
Incremental reads: the rows that instants with a completion time in a range wrote (fmt 6.6).

Commit metadata, active and archived, names the files of the range; they make slices of their own.
The rows of the range are merged with each other, never with an older row. That excludes older base
files, and older rows that a compaction of the range wrote again. So a late row that a snapshot
ignores is returned, and a delete only suppresses rows of the range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.log_files import VisibleInstants
from filegroups.files.slice_reader import WholeFileGroups
from filegroups.reading.cdc import SlicesAtTime
from filegroups.reading.filters import Filter
from filegroups.reading.leased_read import assert_not_cleaned, expired_where_missing
from filegroups.reading.partition_pruning import PartitionPruner
from filegroups.reading.scan import pruner_of, view_of
from filegroups.reading.time_travel import may_be_archived
from filegroups.schema.schema import COMMIT_TIME_COLUMN
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, UnsupportedTableError
from timeline.model.commit_metadata import (
    LOG_COMPACT,
    CommitMetadata,
    FileGroupId,
    TableType,
    WriteStat,
)
from timeline.model.file_names import check_relative_path, listed
from timeline.model.file_slice import BaseFile, FileSlice, LogFile, merged_slice, slice_file_group
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.pending_plans import PendingCompactions, joined_logs, pending_compactions
from timeline.reader_lease import ReaderLease
from timeline.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class IncrementalRead:
    """
    The slices and instants of an incremental read.

    Args:
        slices: Slices of the range's files; the newest ones of the table if some were cleaned.
        instants: Requested times of the range. Blocks and rows of other instants do not count.
        snapshot: The snapshot whose schema applies.
        cleaned: Whether files of the range are missing, or it reaches into the archived timeline.
        until: Completion time up to which files are read; None for now.
        whole_file_groups: The whole file groups that partial updates of the range need; None if not needed.
    """

    slices: tuple[FileSlice, ...]
    instants: frozenset[InstantTime]
    snapshot: Snapshot
    cleaned: bool = False
    until: InstantTime | None = None
    whole_file_groups: WholeFileGroups | None = None

    @property
    def condition(self) -> pc.Expression:
        """Rows last written by an instant of the range."""
        return pc.field(COMMIT_TIME_COLUMN).isin(pa.array(sorted(self.instants), pa.string()))

    @property
    def base_condition(self) -> pc.Expression | None:
        """The rows of base files that logs are merged with: those of the range too."""
        return None if self.cleaned else self.condition

    @property
    def visible(self) -> Container[InstantTime]:
        """The instants whose log blocks count."""
        return VisibleInstants.of(self.snapshot) if self.cleaned else self.instants


def plan_incremental_read(
    context: TableContext,
    since: InstantTime,
    until: InstantTime | None,
    *,
    filter: Filter = None,  # noqa: A002
    partitions: Iterable[str] | None = None,
    ahead: bool = False,
) -> IncrementalRead:
    """
    Plan an incremental read: slices and instants with completion times in (since, until].

    File groups replaced within the range are left out. Files of the range may be cleaned, or one of
    its instants archived. Then the newest slices of the whole table are read instead, as in Java
    Hudi. Rows rewritten since then appear in a later range only.

    Args:
        context: The table.
        since: Exclusive start; ``EARLIEST`` or above.
        until: Inclusive end; None for now.
        filter: Leaves out partitions without matching rows; rows are not filtered here.
        partitions: Partition paths to read; None for all. Files of other partitions may be missing.
        ahead: Whether to find ``whole_file_groups`` now, for tasks that cannot list partitions.

    Raises:
        InvalidInputError: The filter does not fit the table.
        UnsupportedTableError: The rows carry no commit time (``no_meta_columns``).
        SnapshotExpiredError: A restore or a clean ran during the planning.

    Outside: 1 list, 1 get per instant of the range and pending compaction, 2 per log compaction of
    the range, 1 stat per file; the times of the archived timeline, and 1 list per partition if
    instants of the range are archived. ``whole_file_groups``, when used or with ``ahead``: 1 list per
    partition.
    """
    if not context.config.populate_meta_fields:
        raise UnsupportedTableError(
            "a table without meta columns has no incremental reads, because its rows do not say "
            "when they were written: read the whole table",
            kind="no_meta_columns",
        )
    snapshot = context.snapshot()
    with expired_where_missing(context, snapshot):
        pruner = None if filter is None else pruner_of(context, snapshot, filter)
        chosen = ChosenPartitions(
            pruner, None if partitions is None else listed(partitions, "partitions")
        )
        return _changed(context, snapshot, since, until, chosen, ahead=ahead)


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The partitions in which a range is read."""

    pruner: PartitionPruner | None = None
    partitions: tuple[str, ...] | None = None

    def among(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the chosen ones among some partition paths."""
        some = sorted(set(paths) if self.partitions is None else {*paths} & {*self.partitions})
        return frozenset(some if self.pruner is None else self.pruner.partitions(some))


def _changed(
    context: TableContext,
    snapshot: Snapshot,
    since: InstantTime,
    until: InstantTime | None,
    chosen: ChosenPartitions,
    *,
    ahead: bool,
) -> IncrementalRead:
    found = _instants_between(snapshot, since, until)
    archived = _archived_between(context, snapshot, since, until)
    found |= {time: one for time, one in archived.items() if time not in found}
    replaced: set[FileGroupId] = set()
    files, joins = _RangeFiles(), []
    there = chosen.among(path for _, one in found.values() for path in one.partition_to_write_stats)
    for requested_time, (_, metadata) in sorted(found.items()):
        for partition_path, file_ids in (metadata.partition_to_replace_file_ids or {}).items():
            replaced.update(FileGroupId(partition_path, file_id) for file_id in file_ids)
        if metadata.operation_type == LOG_COMPACT:
            joins.append(requested_time)
            continue
        for partition_path, stats in metadata.partition_to_write_stats.items():
            for stat in stats if partition_path in there else ():
                files.add(partition_path, stat, requested_time)
    for requested_time in joins:
        _add_joined(context, snapshot, files, requested_time, found[requested_time].metadata)
    slices: Sequence[FileSlice] = []
    whole_file_groups: WholeFileGroups | None = None
    if archived and context.config.timeline_layout_version > 1:
        context.ports.events.emit("changes.archived", since=since, first=min(archived))
        cleaned = True
    else:
        plans = _plans_at_the_end(context, snapshot, until)
        slices, gone = _sliced(context, snapshot, files, replaced, found, pending=plans)
        cleaned = gone is not None
        if not cleaned:
            whole_file_groups = _wholes(context, snapshot, slices, until, plans, ahead=ahead)
        else:
            context.ports.events.emit("changes.cleaned", since=since, until=until, path=gone)
    if cleaned:
        slices = view_of(context, snapshot).latest_slices(chosen.partitions, chosen.pruner)
    return IncrementalRead(
        slices=tuple(slices),
        instants=frozenset(found),
        snapshot=snapshot,
        cleaned=cleaned,
        until=None if cleaned else until,
        whole_file_groups=whole_file_groups,
    )


class _RangeWrite(NamedTuple):
    """A write of the range."""

    completion_time: InstantTime
    metadata: CommitMetadata


class _RangeFiles:
    """The base and log files that the instants of a range wrote, by file group."""

    def __init__(self) -> None:
        self.bases: dict[FileGroupId, dict[InstantTime, BaseFile]] = defaultdict(dict)
        self.logs: dict[FileGroupId, dict[str, LogFile]] = defaultdict(dict)

    def add(self, partition_path: str, stat: WriteStat, requested_time: InstantTime) -> None:
        """Add the file of one write stat."""
        if stat.path is None:
            return
        name = check_relative_path(stat.path).rpartition("/")[2]
        base = BaseFile.found(partition_path, name, stat.file_size_in_bytes)
        if base is not None:
            self.bases[base.file_group][requested_time] = base
            return
        log = LogFile.found(partition_path, name, stat.file_size_in_bytes)
        if log is not None:
            self.logs[log.file_group][name] = log


def _add_joined(
    context: TableContext,
    snapshot: Snapshot,
    files: _RangeFiles,
    requested_time: InstantTime,
    metadata: CommitMetadata,
) -> None:
    """
    Add the file of a log compaction if the range contains a log that it merged.

    Its block replaces that log, so a row that lost against another merged log is not returned.
    Without such a log, the block would only repeat older rows above later appends.
    """
    instant = snapshot.active.find(requested_time)
    if instant is None or context.config.timeline_layout_version == 1:
        return
    joined = joined_logs(context, instant)
    for partition_path, stats in metadata.partition_to_write_stats.items():
        for stat in stats:
            group = FileGroupId(partition_path, stat.file_id)
            if joined.get(group, frozenset()) & files.logs.get(group, {}).keys():
                files.add(partition_path, stat, requested_time)


def _sliced(
    context: TableContext,
    snapshot: Snapshot,
    files: _RangeFiles,
    replaced: set[FileGroupId],
    found: Mapping[InstantTime, _RangeWrite],
    *,
    pending: PendingCompactions,
) -> tuple[list[FileSlice], str | None]:
    """
    Return the newest slice of each file group, and the path of a missing file or None.

    Logs have their present size.
    """
    slices = []
    for group in sorted({*files.bases, *files.logs} - replaced):
        plans = pending.get(group, ())
        of_group = slice_file_group(
            group,
            files.bases.get(group, {}).values(),
            files.logs.get(group, {}).values(),
            completion_of=lambda time: _completion(time, snapshot, found),
            pending_compactions=plans,
            slicing=snapshot.slicing,
        )
        one = merged_slice(of_group, plans)
        storage = context.ports.storage
        if one.base_file is not None and storage.stat(one.base_file.path) is None:
            return [], one.base_file.path
        logs = []
        for log in one.log_files:
            there = storage.stat(log.path)
            if there is None:
                return [], log.path
            # Version 6: later instants append to the file.
            logs.append(replace(log, size_bytes=there.size_bytes))
        slices.append(replace(one, log_files=tuple(logs)))
    return slices, None


def _wholes(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    until: InstantTime | None,
    plans: PendingCompactions,
    *,
    ahead: bool,
) -> WholeFileGroups | None:
    """
    Return the whole file groups of a range, which the merge of partial updates needs.

    Only the logs show whether they contain partial updates. Version 6 has none.
    """
    groups = [one.file_group for one in slices if one.log_files]
    if context.config.timeline_layout_version == 1 or not groups:
        return None
    past = SlicesAtTime(context, snapshot, plans)
    lease, listed = ReaderLease(context, snapshot, until=until), set[str]()

    def there(group: FileGroupId) -> FileSlice | None:
        with suppress(InstantNotFoundError):  # raised only where the rows are needed
            return past.at(group, until)
        return None

    def on_demand(group: FileGroupId) -> FileSlice | None:
        found = there(group)
        if group.partition_path not in listed:
            assert_not_cleaned(context, snapshot, lease)  # other writers continue after the listing
            listed.add(group.partition_path)
        return found

    of = {group: there(group) for group in groups}.get if ahead else on_demand
    return WholeFileGroups(VisibleInstants.of(snapshot), of)


def _plans_at_the_end(
    context: TableContext, snapshot: Snapshot, until: InstantTime | None
) -> PendingCompactions:
    """
    Return file group -> its compactions that were pending at the end of a range.

    Logs that completed after the plan of such a compaction belong on top of it, even if it has
    completed since (NBCC-3). Outside: 1 get per pending compaction, and per one that completed
    since.
    """
    plans = pending_compactions(context, snapshot.active)
    if until is None or context.config.table_type is not TableType.MERGE_ON_READ:
        return plans
    for one in snapshot.writes_between(until, None):
        if one.action is Action.COMMIT and one.requested_time <= until:
            written = snapshot.commits.read(one).partition_to_write_stats
            for partition_path, stats in written.items():
                for stat in stats:
                    group = FileGroupId(partition_path, stat.file_id)
                    plans.setdefault(group, []).append(one.requested_time)
    return plans


def _completion(
    time: InstantTime, snapshot: Snapshot, found: Mapping[InstantTime, _RangeWrite]
) -> InstantTime | None:
    """Return the completion time of an instant of the range, or of a version 6 base instant."""
    return found[time].completion_time if time in found else snapshot.completions.get(time)


def _instants_between(
    snapshot: Snapshot, since: InstantTime, until: InstantTime | None
) -> dict[InstantTime, _RangeWrite]:
    """
    Return the instants of the active timeline that completed in the range, by requested time.

    A clustering is included: rows it moved keep their commit time, and the file groups it replaced
    must not be read with the new ones. A compaction is included for the logs that are cleaned after
    it.
    """
    return {
        one.requested_time: _RangeWrite(
            one.completion_time or one.requested_time, snapshot.commits.read(one)
        )
        for one in snapshot.writes_between(since, until)
    }


def _archived_between(
    context: TableContext, snapshot: Snapshot, since: InstantTime, until: InstantTime | None
) -> dict[InstantTime, _RangeWrite]:
    """
    Return the archived instants of a range, without files: Java never reads those (golden).

    In version 6 their rows are returned if a file of an active instant of the range has them, in
    merge-on-read tables only. Java filters those tables by the range, the others by its instants.
    """
    if not may_be_archived(context, snapshot, since):
        return {}
    by_request = context.config.timeline_layout_version == 1
    if by_request:
        context.ports.events.emit("changes.archived", since=since, first=snapshot.first_completion)
        if context.config.table_type is TableType.COPY_ON_WRITE:
            return {}
    return {
        row.requested_time: _RangeWrite(row.completion_time or row.requested_time, CommitMetadata())
        for row in context.archived_timeline.writes_between(since, until, by_request=by_request)
    }
