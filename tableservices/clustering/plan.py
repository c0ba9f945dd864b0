"""Plan a clustering: when it is due, its groups of slices, and the plan as Hudi records it."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from filegroups.index.buckets import FOLDER as CONSISTENT_FOLDER
from filegroups.index.buckets import has_bucket_rules
from filegroups.keys.bucketing import bucket_of
from filegroups.reading.scan import read_schema, view_of
from filegroups.schema.schema import TableSchema
from filegroups.supported import load_writable
from tableservices.clustering.curves import COLUMNS_MAX, Curve, sortable_column
from tableservices.clustering.settings import (
    EXECUTION_DEFAULT,
    ClusteringSettings,
    PartitionMode,
    SliceGrouping,
    SliceOrder,
    execution_class,
)
from tableservices.planned_service import invalid_plan_error, planned_slice, refuse_repeated
from tableservices.service import schedule
from timeline.codecs.instant_avro import decode_requested_replace, encode_requested_replace
from timeline.context import TableContext
from timeline.errors import SettingError, UnsupportedTableError, counted
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    PlanClusteringStrategy,
    RequestedReplaceMetadata,
    SliceInfo,
)
from timeline.model.slot import plan_version_entry
from timeline.pending_plans import RECHECKED, file_groups_in_plans
from timeline.ports.ports import Storage
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot

# ---- Take rows of a group in a given order, for any size of text columns
#
# A text column of Arrow holds 2 GiB in one piece, and taking rows joins the pieces. So a bigger
# group first gets 64-bit offsets. The taken rows are cast back in parts, because files have the
# table's own types.

_NARROW_BYTES_MAX = (1 << 31) - (1 << 20)

_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def concatenated(rows: pa.Table) -> pa.Table:
    """Join rows to one piece; use 64-bit offsets for text if all columns together are too big."""
    if rows.nbytes > _NARROW_BYTES_MAX:
        rows = rows.cast(
            pa.schema([each.with_type(_WIDE.get(each.type, each.type)) for each in rows.schema])
        )
    return rows.combine_chunks()


def take_rows(rows: pa.Table, positions: npt.NDArray[np.int64], schema: pa.Schema) -> pa.Table:
    """
    Return the rows at these positions, in their order, with the schema's own types.

    Shapes: positions (n,) -> n rows.
    """
    if rows.schema.equals(schema):
        return rows.take(pa.array(positions))
    row_bytes = max(1, rows.nbytes // max(rows.num_rows, 1))
    parts = -(-len(positions) * row_bytes // (_NARROW_BYTES_MAX // 2)) or 1
    pieces: list[Any] = [
        rows.take(pa.array(part)).cast(schema) for part in np.array_split(positions, parts)
    ]
    return pa.concat_tables(pieces)


# ---- A clustering plan as Hudi records it: encode it, and read it as untrusted input
#
# ``planned_slices`` checks its names; this section checks its order and sizes.

_SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
_CURVE = "hoodie.layout.optimize.strategy"
_MB = 1024 * 1024
_OUTPUTS_MAX = 100_000  # of one group


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClustering:
    """The content of a plan, with all its names checked."""

    groups: tuple[SliceGroup, ...]
    sort_columns: tuple[str, ...]
    curve: Curve
    preserves_commit_times: bool


def encode_plan(
    storage: Storage, groups: Sequence[SliceGroup], settings: ClusteringSettings
) -> bytes:
    """Return the requested file of a clustering, as Java Hudi writes it."""
    params = {}
    if settings.sort_columns:
        params = {_SORT_COLUMNS: ",".join(settings.sort_columns), _CURVE: settings.curve.value}
    plan = ClusteringPlan(
        input_groups=tuple(_recorded(storage, group) for group in groups),
        strategy=PlanClusteringStrategy(
            strategy_class_name=execution_class(settings.execution_class),
            strategy_params=params,
        ),
        extra_metadata={RECHECKED: "true", **plan_version_entry(Action.CLUSTERING)},
        preserve_hoodie_metadata=True,
    )
    return encode_requested_replace(
        RequestedReplaceMetadata(
            operation_type="CLUSTER", clustering_plan=plan, extra_metadata={}, version=1
        )
    )


def _recorded(storage: Storage, group: SliceGroup) -> ClusteringGroup:
    log_bytes = sum(log.size_bytes for one in group.slices for log in one.log_files)
    read_mb = float(group.size_bytes // _MB)
    return ClusteringGroup(
        slices=tuple(
            SliceInfo(
                data_file_path=storage.locate(one.base_file.path) if one.base_file else "",
                delta_file_paths=tuple(storage.locate(log.path) for log in one.log_files),
                file_id=one.file_group.file_id,
                partition_path=one.file_group.partition_path,
            )
            for one in group.slices
        ),
        metrics={
            "TOTAL_IO_MB": 2 * read_mb,
            "TOTAL_IO_READ_MB": read_mb,
            "TOTAL_IO_WRITE_MB": read_mb,
            "TOTAL_LOG_FILES": float(sum(len(one.log_files) for one in group.slices)),
            "TOTAL_LOG_FILES_SIZE": float(log_bytes),
        },
        num_output_file_groups=group.output_files,
    )


def read_plan(storage: Storage, data: bytes, *, path: str, curve: Curve) -> PlannedClustering:
    """
    Read a requested clustering, and check every name in it.

    Args:
        storage: The table's storage, for its addresses; not called.
        data: The requested file.
        path: Its name, for errors.
        curve: The order where the plan has none, as in all of Java's plans.

    Raises:
        CorruptTableError: It is damaged, or names a file that is no data file of its partition, or
            a file group twice.
        UnsupportedTableError: It is for an unsupported strategy, or has bootstrap files.
    """
    plan = decode_requested_replace(data, path=path).clustering_plan
    if plan is None:
        raise invalid_plan_error(path, "it has no groups")
    groups = tuple(_planned_group(storage, one, path) for one in plan.input_groups)
    refuse_repeated([one for group in groups for one in group.slices], path=path)
    strategy = plan.strategy or PlanClusteringStrategy()
    try:
        execution_class(strategy.strategy_class_name or EXECUTION_DEFAULT)
    except SettingError as error:
        raise UnsupportedTableError(
            "this release does not execute a clustering of this kind: let Java Hudi execute it: "
            f"{path} ({error.message})",
            kind="clustering_strategy",
            path=path,
        ) from None
    text = strategy.strategy_params.get(_SORT_COLUMNS, "")
    columns = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    curve_name = strategy.strategy_params.get(_CURVE, curve.value).upper()
    try:
        ordered_by = Curve(curve_name)
    except ValueError:
        raise invalid_plan_error(path, f"its order is not known: {curve_name[:100]!r}") from None
    if len(columns) > COLUMNS_MAX:
        raise invalid_plan_error(path, f"it orders by {counted(len(columns), 'column')}")
    return PlannedClustering(
        groups=groups,
        sort_columns=columns,
        curve=ordered_by,
        preserves_commit_times=plan.preserve_hoodie_metadata,
    )


def _planned_group(storage: Storage, group: ClusteringGroup, path: str) -> SliceGroup:
    slices = tuple(
        planned_slice(
            storage,
            partition_path=one.partition_path,
            file_id=one.file_id,
            base_file=one.data_file_path,
            log_files=one.delta_file_paths,
            bootstrap_file=one.bootstrap_file_path,
            path=path,
        )
        for one in group.slices
    )
    if len({one.file_group.partition_path for one in slices}) != 1:
        raise invalid_plan_error(path, "a group has no slice, or slices of several partitions")
    if not 1 <= group.num_output_file_groups <= _OUTPUTS_MAX:
        raise invalid_plan_error(
            path, f"a group becomes {counted(group.num_output_file_groups, 'file')}"
        )
    return SliceGroup(slices=slices, output_files=group.num_output_file_groups)


# ---- Which file slices are rewritten together: pure decisions from the slices of one snapshot
#
# Groups are made as Hudi's size-based strategy makes them: within a partition, small slices fill a
# group until it would be too big. One difference prevents endless rewrites: slices that one
# clustering wrote, and that are unchanged since, are not clustered again by the same order.

_HOURS_A_DAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGroup:
    """File slices of one partition that become ``output_files`` new file groups."""

    slices: tuple[FileSlice, ...]
    output_files: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes to read."""
        return sum(one.size_bytes for one in self.slices)


def chosen_partitions(
    partitions: Iterable[str], settings: ClusteringSettings, *, hour: int
) -> list[str]:
    """
    Return the partition paths that a plan covers, sorted.

    Args:
        partitions: All of the table.
        settings: Selection, expression and mode; all of them must hold.
        hour: The present hour, 0 to 23: mode DAY_ROLLING takes every 24th partition from there.
    """
    found = sorted(partitions)
    if settings.partitions_selected:
        found = [path for path in found if path in settings.partitions_selected]
    if settings.partitions_regex:
        wanted = re.compile(settings.partitions_regex)
        found = [path for path in found if wanted.fullmatch(path)]
    match settings.partitions_by:
        case PartitionMode.RECENT_DAYS:
            newest_first = found[::-1][settings.partitions_skipped :]
            return sorted(newest_first[: settings.partitions_lookback])
        case PartitionMode.SELECTED_PARTITIONS:
            first, last = settings.partitions_begin, settings.partitions_end
            return [
                path
                for path in found
                if (first is None or path >= first) and (last is None or path <= last)
            ]
        case PartitionMode.DAY_ROLLING:
            return found[hour::_HOURS_A_DAY]
    return found


def plan_groups(
    slices: Iterable[FileSlice],
    owned: Container[FileGroupId],
    settings: ClusteringSettings,
    *,
    clustered: frozenset[InstantTime] = frozenset(),
) -> tuple[SliceGroup, ...]:
    """
    Decide which slices are rewritten together.

    Args:
        slices: The latest slice of every file group in question.
        owned: File groups of pending plans, which are left out.
        settings: Sizes and limits.
        clustered: Requested times of completed clusterings by the same order.
    """
    by_partition: dict[str, list[FileSlice]] = {}
    for one in slices:
        base_bytes = one.base_file.size_bytes if one.base_file is not None else 0
        if one.file_group in owned or base_bytes >= settings.small_file_bytes:
            continue
        if one.size_bytes:
            by_partition.setdefault(one.file_group.partition_path, []).append(one)
    groups = [
        group
        for _, found in sorted(by_partition.items())
        for group in _groups(_ordered(found, settings), settings)
        if _gains(group, settings, clustered)
    ]
    return tuple(groups[: settings.groups_max])


def _ordered(slices: list[FileSlice], settings: ClusteringSettings) -> list[FileSlice]:
    if settings.slice_order is SliceOrder.INSTANT_TIME:
        return sorted(slices, key=lambda one: (one.base_instant_time, one.file_group))
    return sorted(slices, key=lambda one: (-one.size_bytes, one.file_group))


def _groups(slices: Sequence[FileSlice], settings: ClusteringSettings) -> list[SliceGroup]:
    if settings.grouping is SliceGrouping.EACH_ALONE:
        return [SliceGroup(slices=(one,), output_files=1) for one in slices]
    groups: list[SliceGroup] = []
    held: list[FileSlice] = []
    held_bytes = 0
    for one in slices:
        if held and held_bytes + one.size_bytes > settings.group_bytes:
            groups.append(_group(held, settings))
            held, held_bytes = [], 0
        held.append(one)
        held_bytes += one.size_bytes
    if held:
        groups.append(_group(held, settings))
    if not settings.single_groups:
        return [group for group in groups if len(group.slices) > 1]
    return groups


def _group(slices: Sequence[FileSlice], settings: ClusteringSettings) -> SliceGroup:
    size_bytes = sum(one.size_bytes for one in slices)
    return SliceGroup(
        slices=tuple(slices), output_files=-(-size_bytes // settings.target_file_bytes)
    )


def _gains(
    group: SliceGroup, settings: ClusteringSettings, clustered: frozenset[InstantTime]
) -> bool:
    """Return whether a rewrite changes anything: order, number of files, or merged log files."""
    if any(one.log_files for one in group.slices):
        return True
    writers = {one.base_instant_time for one in group.slices}
    if len(writers) == 1 and writers <= clustered:
        return False
    return bool(settings.sort_columns) or len(group.slices) > group.output_files


# ---- Tables and columns that cannot be clustered, refused by name before planning

_FOLLOWS = "the file group of a record depends on its key, so rows cannot move"
_BUCKETS_MAX = 10_000  # an upper limit: the file ids of other tables begin like this once in 65,536


def refuse_unclusterable(context: TableContext, snapshot: Snapshot) -> TableSchema:
    """
    Pass when the table's rows may move to other file groups; return its schema.

    Outside: 1 get, 1 list.

    Raises:
        MetadataTableOnError: Its metadata table has a partition that cannot be maintained.
        UnsupportedTableError: This release does not write the table; it was never written; or a
            row's file group follows from its key.
    """
    config = load_writable(context)
    if context.ports.storage.list(CONSISTENT_FOLDER):
        raise _buckets("this release does not resize buckets of consistent hashing")
    if has_bucket_rules(config):
        raise _buckets(_FOLLOWS)
    return read_schema(context, snapshot)


def refuse_bucket_names(file_groups: Iterable[FileGroupId]) -> None:
    """
    Refuse file groups that all have bucket names, where the table does not declare its index.

    Raises:
        UnsupportedTableError: They have.
    """
    numbers = [bucket_of(group.file_id) for group in file_groups]
    if numbers and all(number is not None and number < _BUCKETS_MAX for number in numbers):
        raise _buckets(_FOLLOWS)


def _buckets(why: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        f"a table with a bucket index is not clustered: switch clustering off for it: {why}",
        kind="not_clusterable",
        feature="clustering a bucket index",
    )


def refuse_unsortable(schema: TableSchema, columns: Sequence[str]) -> None:
    """
    Refuse sort columns before a plan names them.

    Raises:
        InvalidInputError: One is missing or has no order.
    """
    empty = schema.arrow.empty_table()
    for name in columns:
        sortable_column(empty, name)


# ---- When a clustering is due; pure


def commits_since_clustering(timeline: ActiveTimeline, clustered: Collection[InstantTime]) -> int:
    """
    Return how many writes completed since the last clustering, also a pending one, was requested.

    Args:
        timeline: All instants.
        clustered: Requested times of completed clusterings; on the timeline these are
            replacecommits like others.
    """
    pending = {one.requested_time for one in timeline.pending if one.action is Action.CLUSTERING}
    last = max({*clustered, *pending}, default="")
    return sum(
        1
        for one in timeline.completed_writes
        if one.requested_time > last and one.requested_time not in clustered
    )


# ---- Schedule a plan; find earlier clusterings

CLUSTER = "CLUSTER"  # Hudi's name of the operation, in the commit metadata
ORDER = "hoodoo.clustering.order"  # the order of rows, in its extra metadata


def clusterings(commits: CommitReader, timeline: ActiveTimeline) -> dict[InstantTime, str | None]:
    """
    Return the requested times of completed clusterings, each with its row order; None of Java's.

    Outside: 1 get per replacecommit, cached.
    """
    found = {}
    for one in timeline.completed_writes:
        if one.action.completes_as is Action.REPLACECOMMIT:
            metadata = commits.read(one)
            if metadata.operation_type == CLUSTER:
                found[one.requested_time] = metadata.extra_metadata.get(ORDER)
    return found


def order_text(columns: Sequence[str], curve: Curve) -> str:
    """Return the order of rows as the commit metadata records it."""
    return " ".join((curve.value, *columns)) if columns else "kept"


def plan_clustering(
    context: TableContext, snapshot: Snapshot, settings: ClusteringSettings
) -> tuple[SliceGroup, ...]:
    """
    Return the groups that a clustering of this snapshot would rewrite; change nothing.

    Outside: 1 list per partition, 1 get per pending plan and completed replacecommit.

    Args:
        context: The table.
        snapshot: The visible instants.
        settings: Of the clustering.

    Raises:
        InvalidInputError: A sort column is missing or has no order.
        UnsupportedTableError: The table has buckets that must not change, or cannot be written.
        MetadataTableOnError: Its metadata table has a partition that cannot be maintained.
    """
    schema = refuse_unclusterable(context, snapshot)
    refuse_unsortable(schema, settings.sort_columns)
    view = view_of(context, snapshot)
    hour = int(context.zone.instant_time(context.ports.clock.now_ms())[8:10])
    partitions = chosen_partitions(view.partition_paths(), settings, hour=hour)
    slices = view.latest_slices(partitions)
    refuse_bucket_names(one.file_group for one in slices)
    return plan_groups(
        slices,
        file_groups_in_plans(context, snapshot.active),
        settings,
        clustered=frozenset(
            time
            for time, order in clusterings(context.commits, snapshot.active).items()
            if order == order_text(settings.sort_columns, settings.curve)
        ),
    )


def schedule_clustering(context: TableContext, settings: ClusteringSettings) -> Instant | None:
    """
    Commit a plan; return None when there is nothing to cluster.

    Arguments, calls outside and errors: as ``plan_clustering`` and ``schedule``.
    """

    def build(snapshot: Snapshot) -> bytes | None:
        groups = plan_clustering(context, snapshot, settings)
        return encode_plan(context.ports.storage, groups, settings) if groups else None

    return schedule(context, Action.CLUSTERING, build)
