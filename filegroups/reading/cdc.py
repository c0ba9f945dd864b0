"""
CDC reads: each change of a range of instants, record by record, with before and after images.

An incremental read returns the rows as they are at the end of a range. A CDC read returns every
step: insert, update, delete, with the row before and after. The plan has one unit per instant and
file group, in the order of completion. Compaction and clustering only move rows and make no change.
The read needs the files of the whole range; the error names a file that was cleaned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Final, NamedTuple

import pyarrow as pa

from filegroups.files.cdc_log import CdcRead, CdcSource, CdcUnit, read_cdc
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.leased_read import expired_where_missing
from filegroups.reading.scan import plan_scan, read_schema
from filegroups.reading.time_travel import may_be_archived, retained_since
from filegroups.schema.schema import COMMIT_TIME_COLUMN, KEY_COLUMN
from timeline.codecs.instant_avro import decode_restore
from timeline.commit_log import restored_away_in
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError, InvalidInputError
from timeline.model.commit_metadata import (
    NO_PREVIOUS_COMMIT,
    CdcMode,
    CommitMetadata,
    FileGroupId,
    TableType,
    WriteStat,
)
from timeline.model.file_names import (
    check_relative_path,
    instant_file_name,
    join,
    listed,
    parse_base_file_name,
    parse_log_file_name,
)
from timeline.model.file_slice import (
    BaseFile,
    FileSlice,
    LogFile,
    Slicing,
    merged_slice,
    slice_file_group,
)
from timeline.model.instant import Action
from timeline.model.instant_time import EARLIEST, InstantTime
from timeline.model.slot import SlotKind
from timeline.pending_plans import PendingCompactions, pending_compactions
from timeline.snapshot import Snapshot

_NEVER: Final = "9" * 17
#: Operations that move rows and change none.
MOVES_ROWS: Final = frozenset({"COMPACT", "LOG_COMPACT", "CLUSTER"})


@dataclass(frozen=True, kw_only=True)
class CdcPlan:
    """The units in the order of completion, how to read each of them, and their range."""

    snapshot: Snapshot
    since: InstantTime
    until: InstantTime | None
    units: tuple[CdcUnit, ...]
    read: CdcRead

    @property
    def output_schema(self) -> pa.Schema:
        """``op``, ``ts_ms``, ``before``, ``after``."""
        return self.read.output_schema


class _CdcWrite(NamedTuple):
    """A write of the range."""

    completion_time: InstantTime
    requested_time: InstantTime
    metadata: CommitMetadata


def plan_cdc(
    context: TableContext,
    since: InstantTime,
    until: InstantTime | None,
    *,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> CdcPlan:
    """
    Plan the changes of the instants with a completion time in (since, until].

    A bound that is the requested time of a write means that write, so jobs may take bounds from
    ``_hoodie_commit_time``: Java Hudi bounds a CDC read by requested times.

    Args:
        context: The table.
        since: Exclusive start; ``EARLIEST`` or above.
        until: Inclusive end; None for now.
        columns: Columns of an image; None for all of the table's own.
        partitions: Partition paths to read; None for all. Files of other partitions may be missing.

    Raises:
        InstantNotFoundError: A file with a change was cleaned (``changes_cleaned``); the field
            ``path`` names it. Or a restore removed writes that completed before the range begins
            (``changes_taken_back``).
        InvalidInputError: A column is unknown.
        SnapshotExpiredError: A restore or a clean ran during the planning.

    Outside: 1 list; 1 get per instant of the range and pending compaction; 1 list per partition
    whose slices are compared; 1 stat per new file and CDC log; the archived timeline if the range
    begins before the active timeline.
    """
    snapshot = context.snapshot()
    since = _completion_meant(snapshot, since)
    until = None if until is None else _completion_meant(snapshot, until)
    groups = SlicesAtTime(context, snapshot)
    chosen = None if partitions is None else frozenset(listed(partitions, "partitions"))
    with expired_where_missing(context, snapshot):
        _refuse_restored_away(context, snapshot, since)
        units = [
            unit
            for write in _writes_between(context, snapshot, since, until)
            for unit in _units(context, write, groups, chosen)
        ]
        slices = [side for unit in units for side in (unit.before, unit.after) if side is not None]
        read = _read(context, snapshot, slices, columns, groups)
    return CdcPlan(snapshot=snapshot, since=since, until=until, units=tuple(units), read=read)


def _completion_meant(snapshot: Snapshot, bound: InstantTime) -> InstantTime:
    """Return a bound, or the completion time of the write that has it as its requested time."""
    completions = snapshot.completions
    return bound if bound in completions.values() else completions.get(bound, bound)


def refuse_filtered_cdc(condition: object) -> None:
    """
    Refuse a filter on a CDC read.

    Raises:
        InvalidInputError: A filter is given.
    """
    if condition is not None:
        raise InvalidInputError(
            "a filter would have to choose between the row before and after: omit it, or choose "
            "partitions by their paths",
            kind="unsupported_query",
        )


def _refuse_restored_away(context: TableContext, snapshot: Snapshot, since: InstantTime) -> None:
    """
    Refuse a range whose start a restore, or a rollback by name, has removed.

    The reader of such a range holds rows that no longer exist, and the files that would show their
    removal are deleted. A write that completed after ``since`` was in none of its ranges. If no
    slot has the completion time, the requested time decides.
    Outside: 1 get per restore since then; and the slots since then, if there was a restore or a
    rollback.
    """
    later = [
        one
        for one in snapshot.active.instants
        if one.action in (Action.RESTORE, Action.ROLLBACK)
        and one.completed
        and (one.completion_time or one.requested_time) > since
    ]
    if not later:
        return
    taken: set[InstantTime] = set()
    for one in later:
        if one.action is Action.RESTORE:
            path = context.instant_path(instant_file_name(one))
            taken.update(decode_restore(context.ports.storage.read(path)).instants_to_rollback)
    newest = context.commit_log.newest_first()
    slots = list(takewhile(lambda slot: slot.completion_time > since, newest))
    taken |= restored_away_in(slots)
    taken -= {slot.requested_time for slot in slots if slot.kind is SlotKind.COMMIT}
    seen = min((time for time in taken if time < since), default=None)
    if seen is not None:
        raise InstantNotFoundError(
            "a restore removed writes that the reader of this range may have seen: start again "
            f"from 'earliest', or from a new copy of the table: since={since}, removed: {seen}",
            kind="changes_taken_back",
            since=since,
            requested_time=seen,
        )


def stream_cdc(context: TableContext, plan: CdcPlan) -> Iterator[pa.RecordBatch]:
    """Read the units in sequence; one unit is in memory at a time."""
    for unit in plan.units:
        yield from read_cdc(context.ports.storage, context.ports.events, unit, plan.read)


def _read(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    columns: Sequence[str] | None,
    groups: SlicesAtTime,
) -> CdcRead:
    schema = read_schema(context, snapshot)
    named = tuple(schema.arrow.names) if columns is None else tuple(dict.fromkeys(columns))
    plan = plan_scan(context, snapshot, slices, columns=named, visible=frozenset())
    # Without commit times, or if a late record fills in values, only values show a change.
    by_values = plan.read.keys is not None or plan.read.rules.reads_values
    wanted = tuple(schema.arrow.names) if by_values else named
    read = plan_scan(
        context,
        snapshot,
        slices,
        columns=tuple(dict.fromkeys((COMMIT_TIME_COLUMN, KEY_COLUMN, *wanted))),
        visible=frozenset(),
    ).read
    return CdcRead(
        slices=read,
        image=plan.output_schema,
        completions=groups.completions,
        archived_below=snapshot.active.archived_below,
        avro_json=schema.avro_json if by_values else None,
    )


def _writes_between(
    context: TableContext, snapshot: Snapshot, since: InstantTime, until: InstantTime | None
) -> list[_CdcWrite]:
    """Return the writes of the range that may change rows, in the order of completion."""
    on_read = context.config.table_type is TableType.MERGE_ON_READ
    found: dict[InstantTime, _CdcWrite] = {}
    if may_be_archived(context, snapshot, since):
        context.ports.events.emit("changes.archived", since=since, first=snapshot.first_completion)
        for entry, metadata in context.archived_timeline.commits_between(since, until):
            time = entry.requested_time
            if not (on_read and entry.action == Action.COMMIT.value):
                found[time] = _CdcWrite(entry.completion_time or time, time, metadata)
    for instant in snapshot.writes_between(since, until):
        time = instant.requested_time
        if on_read and instant.action is Action.COMMIT:
            continue  # a compaction
        found[time] = _CdcWrite(
            instant.completion_time or time, time, snapshot.commits.read(instant)
        )
    return sorted(
        write for write in found.values() if write.metadata.operation_type not in MOVES_ROWS
    )


def _units(
    context: TableContext, write: _CdcWrite, groups: SlicesAtTime, chosen: frozenset[str] | None
) -> Iterator[CdcUnit]:
    """Yield the units of a write: the file groups it replaced first, then those it wrote."""
    for partition_path, file_ids in sorted(
        (write.metadata.partition_to_replace_file_ids or {}).items()
    ):
        for file_id in sorted(file_ids) if chosen is None or partition_path in chosen else ():
            group = FileGroupId(partition_path, file_id)
            before = groups.merged(group, write, inclusive=False)
            if before is None:
                raise _cleaned(write, str(group))
            yield _unit(group, write, CdcSource.REMOVED, before=before)
    for partition_path, stats in sorted(write.metadata.partition_to_write_stats.items()):
        if chosen is not None and partition_path not in chosen:
            continue
        by_id: dict[str, list[WriteStat]] = {}
        for stat in stats:
            if stat.path:
                by_id.setdefault(stat.file_id, []).append(stat)
        for file_id in sorted(by_id):
            yield _written(
                context, write, FileGroupId(partition_path, file_id), by_id[file_id], groups
            )


def _written(
    context: TableContext,
    write: _CdcWrite,
    group: FileGroupId,
    stats: list[WriteStat],
    groups: SlicesAtTime,
) -> CdcUnit:
    names = [check_relative_path(stat.path or "").rpartition("/")[2] for stat in stats]
    logs = tuple(log for stat in stats for log in _change_logs(group, stat))
    if all(stat.cdc_stats for stat in stats):
        log_bytes = 0
        for path in logs:
            found = context.ports.storage.stat(path)
            if found is None:
                raise _cleaned(write, path)
            log_bytes += found.size_bytes
        if context.config.change_log_mode is CdcMode.DATA_BEFORE_AFTER:
            logged = _unit(group, write, CdcSource.LOGGED, logs=logs)
            return replace(logged, log_bytes=log_bytes)
        before, after = groups.before_and_after(group, write, stats, names)
        return _unit(group, write, CdcSource.LOGGED, before=before, after=after, logs=logs)
    first = _first_base(group, stats, names)
    if first is not None:
        if context.ports.storage.stat(first.path) is None:
            raise _cleaned(write, first.path)
        one = FileSlice(file_group=group, base_instant_time=first.requested_time, base_file=first)
        return _unit(group, write, CdcSource.INSERTED, after=one)
    before, after = groups.before_and_after(group, write, stats, names)
    return _unit(group, write, CdcSource.COMPARED, before=before, after=after)


def _unit(
    group: FileGroupId,
    write: _CdcWrite,
    source: CdcSource,
    *,
    before: FileSlice | None = None,
    after: FileSlice | None = None,
    logs: tuple[str, ...] = (),
) -> CdcUnit:
    return CdcUnit(
        file_group=group,
        requested_time=write.requested_time,
        completion_time=write.completion_time,
        source=source,
        before=before,
        after=after,
        logs=logs,
    )


def _change_logs(group: FileGroupId, stat: WriteStat) -> Iterator[str]:
    """Yield the paths of a stat's CDC logs; names of other file groups are left out."""
    for path in sorted(stat.cdc_stats or ()):
        name = path.rpartition("/")[2]
        parsed = parse_log_file_name(name)
        if parsed is not None and parsed.is_cdc and parsed.file_id == group.file_id:
            yield join(group.partition_path, name)


def _first_base(group: FileGroupId, stats: list[WriteStat], names: list[str]) -> BaseFile | None:
    """Return the base file that started the file group; None if the write did anything else."""
    if len(stats) > 1 or stats[0].prev_commit not in ("", NO_PREVIOUS_COMMIT):
        return None
    return BaseFile.found(group.partition_path, names[0], stats[0].file_size_in_bytes)


def _cleaned(write: _CdcWrite, path: str) -> InstantNotFoundError:
    return InstantNotFoundError(
        f"cleaning deleted a file with changes of instant {write.requested_time}: begin the range "
        f"after it, or read without images: since={write.completion_time}, {path}",
        kind="changes_cleaned",
        requested_time=write.requested_time,
        completion_time=write.completion_time,
        path=path,
    )


class SlicesAtTime:
    """
    The files of file groups, replaced ones included, as they were at any time.

    Args:
        context: The table.
        snapshot: The snapshot whose instants count.
        plans: File group -> its pending compactions; None to read them.
    """

    def __init__(
        self, context: TableContext, snapshot: Snapshot, plans: PendingCompactions | None = None
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self._archived: Mapping[InstantTime, InstantTime] = {}
        self._plans = pending_compactions(context, snapshot.active) if plans is None else plans
        self._view = FileSystemView(
            storage=context.ports.storage,
            snapshot=snapshot,
            pending_compactions={},
            include_replaced=True,
        )

    @property
    def completions(self) -> Mapping[InstantTime, InstantTime]:
        """Completion times; archived ones if needed, or if savepoints keep all active writes."""
        archived = self._archived
        if self._snapshot.active.first_write_time is None:
            archived = self._snapshot.archived.completions
        return {**archived, **self._snapshot.completions}

    def before_and_after(
        self, group: FileGroupId, write: _CdcWrite, stats: list[WriteStat], names: list[str]
    ) -> tuple[FileSlice | None, FileSlice | None]:
        """
        Return the merged slices before and after a write.

        Raises:
            InstantNotFoundError: A file of one of them was cleaned.
        """
        bases, logs = self._files(group)
        present = {base.name for base in bases} | {log.name for log in logs}
        for name in (*names, *(each for stat in stats for each in _below(stat))):
            if name not in present:
                raise _cleaned(write, join(group.partition_path, name))
        before = self.merged(group, write, inclusive=False)
        for stat in stats:
            name = (stat.path or "").rpartition("/")[2]
            if parse_base_file_name(name) is not None and not _is_based_on(before, stat):
                raise _cleaned(write, join(group.partition_path, f"*_{stat.prev_commit}.parquet"))
        return before, self.merged(group, write, inclusive=True)

    def at(self, group: FileGroupId, time: InstantTime | None) -> FileSlice | None:
        """
        Return the newest rows of a file group at a completion time; None for now.

        Raises:
            InstantNotFoundError: A file was cleaned.
        """
        moment = time or _NEVER
        return self.merged(group, _CdcWrite(moment, moment, CommitMetadata()), inclusive=True)

    def merged(self, group: FileGroupId, write: _CdcWrite, *, inclusive: bool) -> FileSlice | None:
        """Return the newest rows of a file group just before a write completed, or just after."""

        def there(time: InstantTime) -> bool:
            completed = self._completion(time)
            if completed is None:
                return True  # archived, or a base instant in the name of a version 6 log
            return completed < write.completion_time or (
                inclusive and completed == write.completion_time
            )

        bases, logs = self._files(group)
        earlier = [base for base in bases if there(base.requested_time)]
        # Logs written during a compaction belong to a slice that a clean may have deleted.
        if bases and not earlier and write.requested_time < self._cleaned_below:
            raise _cleaned(write, f"the older files of {group}")
        if self._snapshot.slicing is Slicing.BY_NAME:
            # The name has the base instant, perhaps of a compaction that was still pending; each
            # block decides for itself whether it counts.
            pending = {log.instant_time for log in logs} - {one.requested_time for one in earlier}
        else:
            logs = [log for log in logs if there(log.instant_time)]
            # Logs that completed after a compaction's plan belong on top of its base file (NBCC-3).
            pending = {one.requested_time for one in bases if one not in earlier}
            pending.update(self._plans.get(group, ()))
        if not earlier and not logs:
            return None
        slices = slice_file_group(
            group,
            earlier,
            logs,
            completion_of=self._completion,
            pending_compactions=pending,
            slicing=self._snapshot.slicing,
        )
        return merged_slice(slices, pending)

    @cached_property
    def _cleaned_below(self) -> InstantTime:
        """
        The requested time below which a clean may have deleted files.

        If the active timeline has no clean, the archived one may: 1 list and its files.
        """
        active = self._snapshot.active
        if not any(one.action is Action.CLEAN and one.completed for one in active.instants):
            rows = self._context.archived_timeline.instants(times_only=True)
            cleaned = any(row.action == Action.CLEAN.value for row in rows)
            return (active.archived_below or EARLIEST) if cleaned else EARLIEST
        return retained_since(self._context, self._snapshot) or active.instants[-1].requested_time

    def _files(self, group: FileGroupId) -> tuple[list[BaseFile], list[LogFile]]:
        slices = self._view.slices(group.partition_path).get(group, [])
        bases = [one.base_file for one in slices if one.base_file is not None]
        return bases, [log for one in slices for log in one.log_files]

    def _completion(self, time: InstantTime) -> InstantTime | None:
        known = self._snapshot.completions.get(time)
        if known is not None:
            return known
        self._archived = self._snapshot.archived.completions
        return self._archived.get(time)


def _below(stat: WriteStat) -> Iterator[str]:
    """Yield the names of the files below a stat's own; logs are cleaned with their base file."""
    bases = [path for path in (stat.prev_base_file, stat.base_file) if path]
    for path in bases or stat.log_files or ():
        name = path.rpartition("/")[2]
        log = parse_log_file_name(name)
        if (log is not None and not log.is_cdc) or parse_base_file_name(name) is not None:
            yield name


def _is_based_on(before: FileSlice | None, stat: WriteStat) -> bool:
    """Return whether the slice before a base file is the one that was rewritten."""
    if stat.prev_commit in ("", NO_PREVIOUS_COMMIT):
        return True
    if before is None:
        return False
    base = before.base_file
    return base is None or base.requested_time >= stat.prev_commit
