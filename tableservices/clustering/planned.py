"""
A clustering plan as Hudi records it, written from groups and read back with distrust.

Its names are proven by ``planned_slices``, its order and sizes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tableservices.clustering.classes import EXECUTION_DEFAULT, execution_class
from tableservices.clustering.curves import COLUMNS_MAX, Curve
from tableservices.clustering.plan import SliceGroup
from tableservices.clustering.settings import ClusteringSettings
from tableservices.planned_slices import bad_plan, planned_slice, refuse_repeated
from timeline.codecs.instant_avro import decode_requested_replace, encode_requested_replace
from timeline.errors import SettingError, UnsupportedTableError
from timeline.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    ClusteringStrategy,
    RequestedReplaceMetadata,
    SliceInfo,
)
from timeline.ports.storage import Storage
from timeline.reading.pending_plans import RECHECKED

__all__ = ["PlannedClustering", "plan_bytes", "read_plan"]

_SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
_CURVE = "hoodie.layout.optimize.strategy"
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
        raise bad_plan(path, "it has no groups")
    groups = tuple(_group(storage, one, path) for one in plan.input_groups)
    refuse_repeated([one for group in groups for one in group.slices], path=path)
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
        raise bad_plan(path, f"its order is not known: {said[:100]!r}") from None
    if len(columns) > COLUMNS_MAX:
        raise bad_plan(path, f"it orders by {len(columns)} columns")
    return PlannedClustering(
        groups=groups,
        sort_columns=columns,
        curve=ordered_by,
        keeps_commit_times=plan.preserve_hoodie_metadata,
    )


def _group(storage: Storage, group: ClusteringGroup, path: str) -> SliceGroup:
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
        raise bad_plan(path, "a group has no slice, or slices of several partitions")
    if not 1 <= group.num_output_file_groups <= _OUTPUTS_MAX:
        raise bad_plan(path, f"a group becomes {group.num_output_file_groups} files")
    return SliceGroup(slices=slices, output_files=group.num_output_file_groups)
