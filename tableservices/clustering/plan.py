"""
Which file slices are rewritten together: pure decisions from the slices of one snapshot.

Groups are made as Hudi's size-based strategy makes them: within a partition, small slices
fill a group until it would be too big. One difference keeps the service from turning in
circles: slices that one clustering wrote and nobody changed since gain nothing from
another one by the same order.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from tableservices.clustering.classes import Grouping, PartitionMode
from tableservices.clustering.settings import ClusteringSettings, SliceOrder
from timeline.model.claim import FileGroupId
from timeline.model.file_group import FileSlice
from timeline.model.times import InstantTime

__all__ = ["SliceGroup", "chosen_partitions", "plan_groups"]

_HOURS_A_DAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGroup:
    """File slices of one partition that become ``output_files`` new file groups."""

    slices: tuple[FileSlice, ...]
    output_files: int

    @property
    def size_bytes(self) -> int:
        """Bytes that are read."""
        return sum(one.size_bytes for one in self.slices)


def chosen_partitions(
    partitions: Iterable[str], settings: ClusteringSettings, *, hour: int
) -> list[str]:
    """
    The partition paths a plan looks at, sorted.

    Args:
        partitions: All of the table.
        settings: Selection, expression and mode, which all must hold.
        hour: Of this moment, 0 to 23: mode DAY_ROLLING takes every 24th partition from there.
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
        slices: The latest slice of every file group to look at.
        owned: File groups of pending plans, which are left alone.
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
    if settings.grouping is Grouping.EACH_ALONE:
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
    """Whether writing the group anew changes anything: order, number of files, logs merged."""
    if any(one.log_files for one in group.slices):
        return True
    writers = {one.base_instant_time for one in group.slices}
    if len(writers) == 1 and writers <= clustered:
        return False
    return bool(settings.sort_columns) or len(group.slices) > group.output_files
