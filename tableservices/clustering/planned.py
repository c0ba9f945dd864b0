"""
A clustering plan as Hudi records it, written from groups and read back with distrust.

A plan is a file of the table that anybody may have written. Before a path of it is opened
or deleted, every one must be where a data file of its partition lies and be named as one
(SEC1, SEC2). Java's plans carry absolute paths: below this table's base they are reduced,
those of a table that was moved since are rebuilt from partition and file name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tableservices.clustering.classes import EXECUTION_DEFAULT, execution_class
from tableservices.clustering.curves import COLUMNS_MAX, Curve
from tableservices.clustering.plan import SliceGroup
from tableservices.clustering.settings import ClusteringSettings
from timeline.codecs.instant_avro import decode_requested_replace, encode_requested_replace
from timeline.errors import CorruptTableError, SettingError, UnsupportedTableError
from timeline.model.claim import FileGroupId
from timeline.model.file_group import BaseFile, FileSlice, LogFile
from timeline.model.filenames import parse_base_file_name, parse_log_file_name
from timeline.model.paths import check_partition_path, join
from timeline.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    ClusteringStrategy,
    RequestedReplaceMetadata,
    SliceInfo,
)
from timeline.pending_plans import RECHECKED
from timeline.ports.storage import Storage

__all__ = ["PlannedClustering", "plan_bytes", "read_plan"]

_SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
_CURVE = "hoodie.layout.optimize.strategy"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MB = 1024 * 1024
_OUTPUTS_MAX = 100_000  # of one group


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClustering:
    """What a plan asks for, all its names proven."""

    groups: tuple[SliceGroup, ...]
    sort_columns: tuple[str, ...]
    curve: Curve
    keeps_commit_times: bool


def plan_bytes(
    storage: Storage, groups: Sequence[SliceGroup], settings: ClusteringSettings
) -> bytes:
    """The requested file of a clustering, as Java Hudi writes it."""
    params = {}
    if settings.sort_columns:
        params = {_SORT_COLUMNS: ",".join(settings.sort_columns), _CURVE: settings.curve.value}
    plan = ClusteringPlan(
        input_groups=tuple(_recorded(storage, group) for group in groups),
        strategy=ClusteringStrategy(
            strategy_class_name=execution_class(settings.execution_class),
            strategy_params=params,
        ),
        extra_metadata={RECHECKED: "true"},
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
    Read a requested clustering, and prove every name in it.

    Args:
        storage: Where the table lies, for its addresses; nothing is asked of it.
        data: The requested file.
        path: Its name, for errors.
        curve: The order where the plan says none, which Java's plans never do.

    Raises:
        CorruptTableError: It is damaged, or names something that is no data file of its
            partition, or a file group twice.
        UnsupportedTableError: It is for a strategy that does something else, or has bootstrap
            files.
    """
    plan = decode_requested_replace(data, path=path).clustering_plan
    if plan is None:
        raise _bad(path, "it has no groups")
    groups = tuple(_group(storage, one, path) for one in plan.input_groups)
    seen: set[FileGroupId] = set()
    for one in (one for group in groups for one in group.slices):
        if one.file_group in seen:
            raise _bad(path, f"it names file group {one.file_group} twice")
        seen.add(one.file_group)
    strategy = plan.strategy or ClusteringStrategy()
    try:
        execution_class(strategy.strategy_class_name or EXECUTION_DEFAULT)
    except SettingError as error:
        raise UnsupportedTableError(
            f"this release does not carry out a clustering of that kind; let Java Hudi do it: "
            f"{path} ({error.message})",
            kind="clustering_strategy",
            path=path,
        ) from None
    text = strategy.strategy_params.get(_SORT_COLUMNS, "")
    columns = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    said = strategy.strategy_params.get(_CURVE, curve.value).upper()
    try:
        ordered_by = Curve(said)
    except ValueError:
        raise _bad(path, f"its order is not known: {said[:100]!r}") from None
    if len(columns) > COLUMNS_MAX:
        raise _bad(path, f"it orders by {len(columns)} columns")
    return PlannedClustering(
        groups=groups,
        sort_columns=columns,
        curve=ordered_by,
        keeps_commit_times=plan.preserve_hoodie_metadata,
    )


def _group(storage: Storage, group: ClusteringGroup, path: str) -> SliceGroup:
    slices = tuple(_slice(storage, one, path) for one in group.slices)
    if len({one.file_group.partition_path for one in slices}) != 1:
        raise _bad(path, "a group has no slice, or slices of several partitions")
    if not 1 <= group.num_output_file_groups <= _OUTPUTS_MAX:
        raise _bad(path, f"a group becomes {group.num_output_file_groups} files")
    return SliceGroup(slices=slices, output_files=group.num_output_file_groups)


def _slice(storage: Storage, one: SliceInfo, path: str) -> FileSlice:
    if one.bootstrap_file_path:
        raise UnsupportedTableError(
            f"bootstrapped files are not read by this release; let Java Hudi cluster: {path}",
            kind="bootstrap",
            path=path,
        )
    partition_path = check_partition_path(one.partition_path or "")
    group = FileGroupId(partition_path, one.file_id or "")
    base = None
    if one.data_file_path:
        name = _file_name(storage, partition_path, one.data_file_path, path)
        parsed = parse_base_file_name(name)
        if parsed is None or parsed.file_id != group.file_id:
            raise _bad(path, f"no base file of {group}: {one.data_file_path[:300]!r}")
        base = BaseFile(
            file_group=group, name=name, requested_time=parsed.requested_time, size_bytes=0
        )
    logs = tuple(_log(storage, group, address, path) for address in one.delta_file_paths)
    if base is None and not logs:
        raise _bad(path, f"a slice without files: {group}")
    first = base.requested_time if base else min(log.instant_time for log in logs)
    ordered = tuple(sorted(logs, key=lambda log: log.order))
    return FileSlice(file_group=group, base_instant_time=first, base_file=base, log_files=ordered)


def _log(storage: Storage, group: FileGroupId, address: str, path: str) -> LogFile:
    name = _file_name(storage, group.partition_path, address, path)
    parsed = parse_log_file_name(name)
    if parsed is None or parsed.is_cdc or parsed.file_id != group.file_id:
        raise _bad(path, f"no log file of {group}: {address[:300]!r}")
    return LogFile(
        file_group=group,
        name=name,
        instant_time=parsed.instant_time,
        log_version=parsed.log_version,
        write_token=parsed.write_token,
        size_bytes=0,
    )


def _file_name(storage: Storage, partition_path: str, address: str, path: str) -> str:
    """
    The last part of an address that lies in its partition, of this table or of where it was.

    An address below this table's base must be the very place of the file.
    """
    name = address.rpartition("/")[2]
    if not name or "/../" in address or "/./" in address:
        raise _bad(path, f"an address that leaves its folder: {address[:300]!r}")
    plain = _plain(address)
    expected = join(partition_path, name)
    base = _plain(storage.base_uri).rstrip("/") + "/"
    inside = plain.startswith(base)
    if (inside and plain != base + expected) or not plain.endswith("/" + expected):
        raise _bad(path, f"an address outside its partition {partition_path!r}: {address[:300]!r}")
    return name


def _plain(address: str) -> str:
    """An address without its scheme and with one leading slash."""
    return "/" + _SCHEME.sub("", address, count=1).lstrip("/")


def _bad(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        f"a clustering plan is damaged or hostile; nothing was read or deleted, cancel it and "
        f"plan anew: {path}: {why}",
        kind="bad_plan",
        path=path,
    )
