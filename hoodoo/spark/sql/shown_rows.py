"""
The rows of Hudi's procedures that only read: ``show_...``, ``stats_...`` and ``validate_...``.

Each function takes the open table and the arguments of the call. Rows have the columns, types and
order of Hudi 1.2; ``procedures.py`` names them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import ceil
from typing import Any

from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.metadata_table.records import BOUND
from filegroups.reading.file_system_view import FileSystemView
from hoodoo.spark.spark_table import SparkTable
from timeline.codecs.instant_avro import (
    decode_clean,
    decode_clean_plan,
    decode_compaction_plan,
    decode_requested_replace,
    decode_rollback,
    decode_rollback_plan,
)
from timeline.codecs.legacy_commit import (
    decode_archived_clean,
    decode_archived_commit,
    decode_archived_rollback,
)
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import NO_PREVIOUS_COMMIT, CommitMetadata, WriteStat
from timeline.model.file_names import instant_file_name, is_partition_file, pending_file_names
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.metadata_table import PartitionKind
from timeline.model.plans import CleanerPlan, CleanMetadata, RollbackMetadata

Rows = Iterator[Sequence[object]]
Given = Mapping[str, Any]

_WRITES = frozenset({"commit", "deltacommit", "replacecommit"})


# ---- Commits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    requested_time: str
    completion_time: str | None
    action: str
    metadata: CommitMetadata


def _commits(table: SparkTable, *, archived: bool = False) -> Iterator[_Commit]:
    """Yield completed writes, newest first: those of one of the two timelines."""
    context = table.context
    if archived:
        for row in reversed(context.archived_timeline.instants(times_only=False)):
            if row.action in _WRITES and row.metadata:
                path = f"archived timeline ({row.requested_time})"
                yield _Commit(
                    requested_time=row.requested_time,
                    completion_time=row.completion_time,
                    action=row.action,
                    metadata=decode_archived_commit(row.metadata, action=row.action, path=path),
                )
        return
    for one in reversed(context.active().instants):
        if one.completed and one.action in WRITE_ACTIONS:
            yield _Commit(
                requested_time=one.requested_time,
                completion_time=one.completion_time,
                action=one.action.completes_as.value,
                metadata=context.commits.read(one),
            )


def _commit_at(table: SparkTable, time: object) -> _Commit:
    wanted = str(time)
    for one in _commits(table):
        if wanted in (one.requested_time, one.completion_time):
            return one
    raise InvalidInputError(
        f"the active timeline has no completed write of this time; CALL show_commits lists them: "
        f"{wanted}",
        kind="sql_argument",
    )


def show_commits(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    """Yield completed writes, newest first, with their totals."""
    for one in _commits(table):
        yield one.requested_time, one.completion_time, one.action, *_totals(one.metadata)


def show_archived_commits(table: SparkTable, given: Given) -> Rows:
    """Yield archived writes between ``start_ts`` and ``end_ts``, newest first."""
    for one in _between(table, given):
        yield one.requested_time, one.completion_time, *_totals(one.metadata)


def _between(table: SparkTable, given: Given) -> Iterator[_Commit]:
    start, end = str(given["start_ts"] or ""), str(given["end_ts"] or "9")
    return (one for one in _commits(table, archived=True) if start <= one.requested_time <= end)


def _totals(metadata: CommitMetadata) -> tuple[int, ...]:
    stats = metadata.write_stats()
    added = sum(_is_new(one) for one in stats)
    return (
        metadata.total_bytes,
        added,
        len(stats) - added,
        len(metadata.partition_to_write_stats),
        sum(one.num_writes for one in stats),
        sum(one.num_update_writes for one in stats),
        sum(one.total_write_errors for one in stats),
    )


def _is_new(one: WriteStat) -> bool:
    return one.prev_commit in ("", NO_PREVIOUS_COMMIT)


def show_commits_metadata(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    """Yield each file of completed writes, newest first."""
    yield from _files_of_commits(_commits(table))


def show_archived_commits_metadata(table: SparkTable, given: Given) -> Rows:
    """Yield each file of archived writes between ``start_ts`` and ``end_ts``."""
    yield from _files_of_commits(_between(table, given))


def _files_of_commits(commits: Iterable[_Commit]) -> Rows:
    for commit in commits:
        for path, one in _stats(commit):
            yield (
                commit.requested_time,
                commit.completion_time,
                commit.action,
                path,
                one.file_id,
                one.prev_commit,
                one.num_writes,
                one.num_inserts,
                one.num_deletes,
                one.num_update_writes,
                one.total_write_errors,
                one.total_log_blocks,
                one.total_corrupt_log_block,
                one.total_rollback_blocks,
                one.total_log_records,
                one.total_updated_records_compacted,
                one.total_write_bytes,
            )


def _stats(commit: _Commit) -> Iterator[tuple[str, WriteStat]]:
    for path, stats in commit.metadata.partition_to_write_stats.items():
        for one in stats:
            yield path, one


def show_commit_files(table: SparkTable, given: Given) -> Rows:
    """Yield each file of one write."""
    commit = _commit_at(table, given["instant_time"])
    for path, one in _stats(commit):
        yield (
            commit.action,
            path,
            one.file_id,
            one.prev_commit,
            one.num_update_writes,
            one.num_writes,
            one.total_write_bytes,
            one.total_write_errors,
            one.file_size_in_bytes,
        )


def show_commit_partitions(table: SparkTable, given: Given) -> Rows:
    """Yield each partition of one write, with its totals."""
    commit = _commit_at(table, given["instant_time"])
    for path, stats in commit.metadata.partition_to_write_stats.items():
        updated = [one for one in stats if not _is_new(one)]
        yield (
            commit.action,
            path,
            len(stats) - len(updated),
            len(updated),
            sum(one.num_inserts for one in stats),
            sum(one.num_update_writes for one in updated),
            sum(one.total_write_bytes for one in stats),
            sum(one.total_write_errors for one in stats),
        )


def show_commit_write_stats(table: SparkTable, given: Given) -> Rows:
    """Yield the bytes and rows of one write."""
    commit = _commit_at(table, given["instant_time"])
    rows = sum(one.num_writes for _, one in _stats(commit))
    size = commit.metadata.total_bytes
    yield commit.action, size, rows, ceil(size / rows) if rows else 0


def show_commit_extra_metadata(table: SparkTable, given: Given) -> Rows:
    """Yield the extra metadata of one write, by default of the newest."""
    time, key = given["instant_time"], given["metadata_key"]
    commit = next(_commits(table), None) if time is None else _commit_at(table, time)
    if commit is None:
        return
    for name, value in commit.metadata.extra_metadata.items():
        if key is None or name == str(key).strip():
            yield commit.requested_time, commit.action, name, value


def stats_wa(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    """Yield how many rows each commit rewrote for its updates, oldest first, then the total."""
    upserted = written = 0
    for commit in reversed([one for one in _commits(table) if one.action != "deltacommit"]):
        updates = sum(one.num_update_writes for _, one in _stats(commit))
        rows = sum(one.num_writes for _, one in _stats(commit))
        yield commit.requested_time, updates, rows, _factor(rows, updates)
        upserted, written = upserted + updates, written + rows
    yield "Total", upserted, written, _factor(written, upserted)


def _factor(written: int, updated: int) -> str:
    return f"{written / updated:.2f}".removeprefix("0") if updated else "0"


# ---- Instants


def show_timeline(table: SparkTable, given: Given) -> Rows:
    """Yield the instants, newest first, and which rollback belongs to which instant."""
    start, end = str(given["starttime"] or "").strip(), str(given["endtime"] or "").strip()
    undone = _undone(table, archived=bool(given["showarchived"]))
    by: dict[str, list[str]] = defaultdict(list)
    for time, instants in undone.items():
        for instant in instants:
            by[instant].append(time)
    for one in table.history(archived=bool(given["showarchived"])):
        if not start <= one.requested_time <= (end or "9"):
            continue
        info = None
        if one.action == "rollback" and one.requested_time in undone:
            begin = "Rolled back: " if one.completion_time else "Rolls back "
            info = begin + ", ".join(undone[one.requested_time])
        elif one.requested_time in by:
            info = f"Rolled back by: {', '.join(by[one.requested_time])}"
        yield (
            one.requested_time,
            one.action,
            one.state.upper(),
            _date(one.requested_time),
            None if one.state == "requested" else _date(one.requested_time),
            _date(one.completion_time),
            "ARCHIVED" if one.archived else "ACTIVE",
            info,
        )


def _date(time: str | None) -> str | None:
    """Return an instant time as ``MM-dd HH:mm:ss``."""
    if time is None:
        return None
    parts = [time[at : at + 2] for at in range(4, 14, 2)]
    return f"{parts[0]}-{parts[1]} {':'.join(parts[2:])}"


def _undone(table: SparkTable, *, archived: bool = False) -> dict[str, tuple[str, ...]]:
    """Return the times of rollbacks, newest first, and the instants that each one rolls back."""
    found = {
        instant.requested_time: metadata.commits_rollback for instant, metadata in _rollbacks(table)
    }
    for one, data in _plans(table, Action.ROLLBACK):
        if not one.completed:
            plan = decode_rollback_plan(data, path=one.requested_time)
            if plan.instant_to_rollback is not None:
                found[one.requested_time] = (plan.instant_to_rollback.requested_time,)
    if archived:
        for row in table.context.archived_timeline.instants(times_only=False):
            if row.action == Action.ROLLBACK.value and row.metadata:
                undone = decode_archived_rollback(row.metadata, path=row.requested_time)
                found[row.requested_time] = undone.commits_rollback
    return found


def _completed_bytes(table: SparkTable, instant: Instant) -> bytes:
    path = table.context.instant_path(instant_file_name(instant))
    return table.context.ports.storage.read(path)


def _completed(table: SparkTable, action: Action) -> Iterator[Instant]:
    for one in reversed(table.context.active().instants):
        if one.action is action and one.completed:
            yield one


def _rollbacks(table: SparkTable) -> Iterator[tuple[Instant, RollbackMetadata]]:
    for one in _completed(table, Action.ROLLBACK):
        yield one, decode_rollback(_completed_bytes(table, one), path=one.requested_time)


def show_rollbacks(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    """Yield completed rollbacks, newest first."""
    for _, one in _rollbacks(table):
        for undone in one.commits_rollback:
            yield (
                one.start_rollback_time,
                undone,
                one.total_files_deleted,
                one.time_taken_in_millis,
                len(one.partition_metadata),
            )


def show_rollback_detail(table: SparkTable, given: Given) -> Rows:
    """Yield the files that one rollback deleted."""
    wanted = str(given["instant_time"])
    for instant, one in _rollbacks(table):
        if instant.requested_time != wanted:
            continue
        undone = f"[{', '.join(one.commits_rollback)}]"
        for path, part in one.partition_metadata.items():
            for name in part.success_delete_files:
                yield one.start_rollback_time, undone, path, name, True
            for name in part.failed_delete_files:
                yield one.start_rollback_time, undone, path, name, False
        return
    raise InvalidInputError(
        f"the active timeline has no completed rollback of this time; CALL show_rollbacks lists "
        f"them: {wanted}",
        kind="sql_argument",
    )


# ---- Cleans


def _cleans(table: SparkTable, given: Given) -> Iterator[tuple[str, str | None, CleanMetadata]]:
    """Yield requested time, completion time and metadata of cleans, newest first."""
    for one in _completed(table, Action.CLEAN):
        decoded = decode_clean(_completed_bytes(table, one), path=one.requested_time)
        yield one.requested_time, one.completion_time, decoded
    if given["showarchived"]:
        for row in reversed(table.context.archived_timeline.instants(times_only=False)):
            if row.action == Action.CLEAN.value and row.metadata:
                decoded = decode_archived_clean(row.metadata, path=row.requested_time)
                yield row.requested_time, row.completion_time, decoded


def show_cleans(table: SparkTable, given: Given) -> Rows:
    """Yield completed cleans, newest first."""
    for requested, completed, one in _cleans(table, given):
        yield (
            requested,
            completed,
            "clean",
            one.start_clean_time,
            one.time_taken_in_millis,
            one.total_files_deleted,
            one.earliest_commit_to_retain,
            one.last_completed_commit_timestamp,
            one.version,
        )


def show_cleans_metadata(table: SparkTable, given: Given) -> Rows:
    """Yield each partition of completed cleans, newest first."""
    for requested, completed, one in _cleans(table, given):
        for path, part in one.partition_metadata.items():
            yield (
                requested,
                completed,
                "clean",
                one.start_clean_time,
                path,
                part.policy,
                len(part.delete_path_patterns),
                len(part.success_delete_files),
                len(part.failed_delete_files),
                part.is_partition_deleted,
                one.time_taken_in_millis,
                one.total_files_deleted,
            )


def show_clean_plans(table: SparkTable, given: Given) -> Rows:
    """Yield the plans of cleans, newest first."""
    for one, data in _plans(table, Action.CLEAN):
        plan = decode_clean_plan(data, path=one.requested_time)
        yield _plan_row(one.requested_time, one.state.value.upper(), plan)
    if given["showarchived"]:
        for row in reversed(table.context.archived_timeline.instants(times_only=False)):
            if row.action == Action.CLEAN.value and row.plan:
                plan = decode_clean_plan(row.plan, path=row.requested_time)
                yield _plan_row(row.requested_time, "COMPLETED", plan)


def _plan_row(time: str, state: str, plan: CleanerPlan) -> Sequence[object]:
    earliest = plan.earliest_instant_to_retain
    return (
        time,
        state,
        "clean",
        None if earliest is None else earliest.requested_time,
        plan.last_completed_commit_timestamp,
        plan.policy,
        plan.version,
        len(plan.file_paths_to_be_deleted_per_partition),
        len(plan.partitions_to_be_deleted),
        ", ".join(f"{key}={value}" for key, value in plan.extra_metadata.items()) or None,
    )


# ---- Plans


def show_compaction(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    """Yield the plans of compactions, newest first."""
    for one, data in _plans(table, Action.COMPACTION):
        plan = decode_compaction_plan(data, path=one.requested_time)
        yield one.requested_time, len(plan.operations), one.state.value.upper()


def show_clustering(table: SparkTable, given: Given) -> Rows:
    """Yield the plans of clusterings, newest first."""
    for one, data in _plans(table, Action.CLUSTERING, Action.REPLACECOMMIT):
        plan = decode_requested_replace(data, path=one.requested_time).clustering_plan
        if plan is None:
            continue
        places = {each.partition_path or "" for group in plan.input_groups for each in group.slices}
        named = ",".join(sorted(places)) if given["show_involved_partition"] else "*"
        yield one.requested_time, len(plan.input_groups), one.state.value.upper(), named


def _plans(table: SparkTable, *actions: Action) -> Iterator[tuple[Instant, bytes]]:
    """Yield the instants that have a plan of these actions, also completed ones, and its bytes."""
    context = table.context
    active = context.active()
    for one in reversed(active.instants):
        for action in actions:
            name = pending_file_names(action, one.requested_time)[-1]
            if name in active.file_names:
                yield one, context.ports.storage.read(context.instant_path(name))


# ---- Files


def show_fsview_all(table: SparkTable, given: Given) -> Rows:
    """Yield all file slices."""
    view = table.current_state().view
    for path in _partitions(view, str(given["path_regex"])):
        for slices in view.slices(path).values():
            for one in reversed(slices):
                yield *_slice_row(table, one), _log_names(one.log_files)


def show_fsview_latest(table: SparkTable, given: Given) -> Rows:
    """Yield the newest file slice of each file group."""
    view = table.current_state().view
    pattern = str(given["path_regex"])
    if pattern == _ALL:
        pattern = str(given["partition_path"])
    for one in view.latest_slices(_partitions(view, pattern)):
        base = one.base_file.size_bytes if one.base_file else 0
        logs = sum(log.size_bytes for log in one.log_files)
        own = [log for log in one.log_files if log.instant_time == one.base_instant_time]
        others = [log for log in one.log_files if log.instant_time != one.base_instant_time]
        yield (
            *_slice_row(table, one),
            logs,
            0,
            logs / base if base else -1.0,
            0.0 if base else -1.0,
            _log_names(own),
            _log_names(others),
        )


_ALL = "ALL_PARTITIONS"


def _partitions(view: FileSystemView, pattern: str) -> list[str]:
    paths = view.partition_paths()
    return paths if pattern in ("", _ALL) else [one for one in paths if fnmatchcase(one, pattern)]


def _slice_row(table: SparkTable, one: FileSlice) -> tuple[object, ...]:
    base = one.base_file
    return (
        one.file_group.partition_path,
        one.file_group.file_id,
        one.base_instant_time,
        "" if base is None else _address(table, base.path),
        0 if base is None else base.size_bytes,
        len(one.log_files),
        sum(log.size_bytes for log in one.log_files),
    )


def _address(table: SparkTable, path: str) -> str:
    return f"{table.path.rstrip('/')}/{path}"


def _log_names(logs: Iterable[LogFile]) -> str:
    return f"[{', '.join(log.path for log in logs)}]"


def stats_file_sizes(table: SparkTable, given: Given) -> Rows:
    """Yield the spread of the sizes of the files on storage, by the instant that wrote them."""
    sizes: dict[str, list[int]] = defaultdict(list)
    view = table.current_state().view
    for path in _partitions(view, str(given["partition_path"])):
        for entry in table.context.ports.storage.list(path):
            if entry.is_folder or is_partition_file(entry.name):
                continue
            base = BaseFile.found(path, entry.name, entry.size_bytes)
            log = LogFile.found(path, entry.name, entry.size_bytes)
            if base is not None:
                sizes[base.requested_time].append(entry.size_bytes)
            elif log is not None:
                sizes[log.instant_time].append(entry.size_bytes)
    for time in sorted(sizes):
        yield _spread(time, sizes[time])
    yield _spread("ALL", [size for some in sizes.values() for size in some])


def _spread(name: str, sizes: Sequence[int]) -> Sequence[object]:
    if not sizes:
        return name, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0
    ordered = sorted(sizes)

    def quantile(share: float) -> float:
        position = share * (len(ordered) + 1)
        below = int(position)
        if below < 1:
            return float(ordered[0])
        if below >= len(ordered):
            return float(ordered[-1])
        return ordered[below - 1] + (position - below) * (ordered[below] - ordered[below - 1])

    return (
        name,
        ordered[0],
        quantile(0.1),
        quantile(0.5),
        statistics.fmean(ordered),
        quantile(0.95),
        ordered[-1],
        len(ordered),
        statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
    )


# ---- Metadata table


def _metadata_table(table: SparkTable) -> MetadataTable:
    context = table.context
    snapshot = table.current_state().snapshot
    found = open_metadata_table(context.ports.storage, context.config, snapshot)
    if found is None:
        raise InvalidInputError(
            "the table has no metadata table: CALL create_metadata_table, or write with "
            "hoodie.metadata.enable=true",
            kind="metadata_partition_unknown",
        )
    return found


def show_metadata_table_partitions(table: SparkTable, given: Given) -> Rows:  # noqa: ARG001
    """Yield the partitions of the table that the metadata table lists."""
    for path in _metadata_table(table).partition_paths():
        yield (path,)


def show_metadata_table_files(table: SparkTable, given: Given) -> Rows:
    """Yield the files of one partition that the metadata table lists."""
    files = _metadata_table(table).files_of([str(given["partition"] or "")])
    for name in sorted(files.column("name").to_pylist()):
        yield (name,)


def show_metadata_table_column_stats(table: SparkTable, given: Given) -> Rows:
    """Yield the bounds of columns in each base file of the newest slices, as texts."""
    wanted = {one.strip() for one in str(given["targetcolumns"] or "").split(",")} - {""}
    opened = _metadata_table(table)
    if PartitionKind.COLUMN_STATS.value not in opened.partitions:
        return
    bases = [one.base_file for one in table.file_slices()]
    newest = {one.path.rpartition("/")[2] for one in bases if one is not None}
    for part in opened.read(PartitionKind.COLUMN_STATS.value):
        for row in part.to_pylist():
            if row["is_deleted"] or row["file_name"] not in newest:
                continue
            if not wanted or row["column_name"] in wanted:
                bounds = (_bound(row["min"]), _bound(row["max"]))
                yield row["file_name"], row["column_name"], *bounds, row["null_count"]


def _bound(value: Mapping[str, Any] | None) -> str | None:
    found = (value or {}).get
    return next((str(found(one.name)) for one in BOUND if found(one.name) is not None), None)


def validate_metadata_table_files(table: SparkTable, given: Given) -> Rows:
    """Yield the files that folders and metadata table list differently; all if ``verbose``."""
    opened = _metadata_table(table)
    storage = table.context.ports.storage
    view = replace(table.current_state().view, by_metadata=None)
    for path in sorted({*opened.partition_paths(), *view.partition_paths()}):
        files = opened.files_of([path])
        known = dict(zip(files["name"].to_pylist(), files["size"].to_pylist(), strict=True))
        seen = {
            one.name: one.size_bytes
            for one in storage.list(path)
            if not one.is_folder and not is_partition_file(one.name)
        }
        for name in sorted({*known, *seen}):
            if given["verbose"] or known.get(name) != seen.get(name):
                yield path, name, name in seen, name in known, seen.get(name, 0), known.get(name, 0)
