"""Settings of clustering, and the meaning of Hudi class names in them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Final, NoReturn, Self

from pydantic import Field

from tableservices.clustering.curves import COLUMNS_MAX, Curve
from tableservices.planned_service import PlannedServiceSettings
from timeline.errors import SettingError
from timeline.properties.options import Expression, OptionKind, option

# ---- Hudi's class names of clustering: fixed tables, never an import (SEC4)
#
# A class is named in full or by its last part. Names outside the tables are refused, because a
# guess would rewrite other files or order them differently.


class PartitionMode(Enum):
    """The partitions that a plan covers; the value is Hudi's name."""

    NONE = "NONE"
    RECENT_DAYS = "RECENT_DAYS"
    SELECTED_PARTITIONS = "SELECTED_PARTITIONS"
    DAY_ROLLING = "DAY_ROLLING"


class SliceGrouping(Enum):
    """How file slices form groups."""

    BY_SIZE = "by size"  # small ones fill a group up
    EACH_ALONE = "each alone"  # every slice becomes one sorted file


_PLAN_PACKAGE: Final = "org.apache.hudi.client.clustering.plan.strategy."
_RUN_PACKAGE: Final = "org.apache.hudi.client.clustering.run.strategy."

PLAN_DEFAULT: Final = f"{_PLAN_PACKAGE}SparkSizeBasedClusteringPlanStrategy"
EXECUTION_DEFAULT: Final = f"{_RUN_PACKAGE}SparkSortAndSizeExecutionStrategy"

# The grouping, and the partition mode where the class implies one.
_PLANS: Final[Mapping[str, tuple[SliceGrouping, PartitionMode | None]]] = MappingProxyType(
    {
        "SparkSizeBasedClusteringPlanStrategy": (SliceGrouping.BY_SIZE, None),
        "JavaSizeBasedClusteringPlanStrategy": (SliceGrouping.BY_SIZE, None),
        "FlinkSizeBasedClusteringPlanStrategy": (SliceGrouping.BY_SIZE, None),
        "SparkStreamCopyClusteringPlanStrategy": (SliceGrouping.BY_SIZE, None),
        "SparkSingleFileSortPlanStrategy": (SliceGrouping.EACH_ALONE, None),
        "SparkRecentDaysClusteringPlanStrategy": (SliceGrouping.BY_SIZE, PartitionMode.RECENT_DAYS),
        "JavaRecentDaysClusteringPlanStrategy": (SliceGrouping.BY_SIZE, PartitionMode.RECENT_DAYS),
        "FlinkRecentDaysClusteringPlanStrategy": (SliceGrouping.BY_SIZE, PartitionMode.RECENT_DAYS),
        "SparkSelectedPartitionsClusteringPlanStrategy": (
            SliceGrouping.BY_SIZE,
            PartitionMode.SELECTED_PARTITIONS,
        ),
    }
)

# All of them write the rows of a group into new files, sorted where columns are named.
_RUNS: Final = frozenset(
    {
        "SparkSortAndSizeExecutionStrategy",
        "SparkSingleFileSortExecutionStrategy",
        "SparkBinaryCopyClusteringExecutionStrategy",
        "SparkStreamCopyClusteringExecutionStrategy",
        "JavaSortAndSizeExecutionStrategy",
    }
)


def slice_grouping_of(name: str) -> tuple[SliceGrouping, PartitionMode | None]:
    """
    Return the grouping and the partition mode of a plan strategy.

    Raises:
        SettingError: It is not in the table.
    """
    found = _PLANS.get(name.removeprefix(_PLAN_PACKAGE))
    if found is None:
        _refuse("hoodie.clustering.plan.strategy.class", name, _PLAN_PACKAGE, sorted(_PLANS))
    return found


def execution_class(name: str) -> str:
    """
    Return the full name of an execution strategy that sorts rows into files.

    Raises:
        SettingError: It is not in the table.
    """
    short = name.removeprefix(_RUN_PACKAGE)
    if short not in _RUNS:
        key = "hoodie.clustering.execution.strategy.class"
        _refuse(key, name, _RUN_PACKAGE, sorted(_RUNS))
    return _RUN_PACKAGE + short


def _refuse(key: str, name: str, package: str, known: list[str]) -> NoReturn:
    why = "this clustering strategy is not known"
    if "Consistent" in name:
        why = "this release does not resize buckets of consistent hashing"
    raise SettingError(
        f"{why}; use one of {', '.join(known)} of {package[:-1]}: {key}={name[:200]!a}",
        kind="unsupported_setting",
        key=key,
        value=name[:200],
        suggestion=known[0],
    )


# ---- Settings of clustering, read from ``hoodie.clustering.*`` keys; defaults of Hudi 1.2.0
#
# The behaviour of a writer that conflicts with a pending clustering is the writer's own option
# (``hoodie.clustering.updates.strategy``) and is not read here.

_PLAN = "hoodie.clustering.plan.strategy"


class SliceOrder(Enum):
    """The order in which slices fill groups."""

    SIZE = "SIZE"
    INSTANT_TIME = "INSTANT_TIME"


_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Bytes = Annotated[int, Field(ge=1, le=1 << 50)]


class ClusteringSettings(PlannedServiceSettings):
    """All settings of clustering."""

    inline: bool = option(
        "hoodie.clustering.inline",
        False,
        "Cluster after a commit, if enough commits were made.",
        aliases=("hoodie.datasource.clustering.inline.enable",),
    )
    inline_commits: _Count = option(
        "hoodie.clustering.inline.max.commits",
        4,
        "Number of commits since the last clustering after which a writer clusters.",
    )
    asynchronous: bool = option(
        "hoodie.clustering.async.enabled",
        False,
        "Cluster in the background of the writes; workers plan clustering only with it.",
        aliases=("hoodie.datasource.clustering.async.enable",),
    )
    async_commits: _Count = option(
        "hoodie.clustering.async.max.commits",
        4,
        "Number of commits since the last clustering after which a worker plans one.",
    )
    schedule_inline: bool = option(
        "hoodie.clustering.schedule.inline",
        False,
        "Only plan clustering after a commit; a worker executes it.",
    )
    plan_class: str = option(
        f"{_PLAN}.class",
        PLAN_DEFAULT,
        "How files are grouped: one of Hudi's class names; no class is loaded.",
    )
    execution_class: str = option(
        "hoodie.clustering.execution.strategy.class",
        EXECUTION_DEFAULT,
        "How groups are rewritten: one of Hudi's class names; no class is loaded.",
    )
    sort_columns: Annotated[tuple[str, ...], Field(max_length=COLUMNS_MAX)] = option(
        f"{_PLAN}.sort.columns",
        (),
        "Columns by which rows are sorted; none keeps the order.",
    )
    curve: Curve = option(
        "hoodie.layout.optimize.strategy",
        Curve.LINEAR,
        "How several columns give one order: sorted one after the other, or interleaved.",
        choices=(*(curve.value for curve in Curve), "Z-ORDER"),
    )
    small_file_bytes: Annotated[_Bytes, OptionKind.BYTES] = option(
        f"{_PLAN}.small.file.limit",
        314_572_800,
        "Only file slices whose base file is smaller are rewritten.",
    )
    target_file_bytes: Annotated[_Bytes, OptionKind.BYTES] = option(
        f"{_PLAN}.target.file.max.bytes", 1_073_741_824, "Target size of the new files."
    )
    group_bytes: Annotated[_Bytes, OptionKind.BYTES] = option(
        f"{_PLAN}.max.bytes.per.group",
        2_147_483_648,
        "Most bytes that are read, sorted and written together; they are kept in memory.",
    )
    groups_max: Annotated[int, Field(ge=1, le=100_000)] = option(
        f"{_PLAN}.max.num.groups", 30, "Largest number of groups of one plan."
    )
    single_groups: bool = option(
        f"{_PLAN}.single.group.clustering.enabled",
        True,
        "Whether one file slice alone makes a group.",
    )
    slice_order: SliceOrder = option(
        f"{_PLAN}.file.slices.sort.by",
        SliceOrder.SIZE,
        "Slices that fill groups first: the largest, or the oldest.",
    )
    partition_mode: PartitionMode = option(
        "hoodie.clustering.plan.partition.filter.mode",
        PartitionMode.NONE,
        "Partitions that a plan considers.",
    )
    partitions_begin: str | None = option(
        f"{_PLAN}.cluster.begin.partition",
        None,
        "First partition path of mode SELECTED_PARTITIONS.",
    )
    partitions_end: str | None = option(
        f"{_PLAN}.cluster.end.partition", None, "Last partition path of mode SELECTED_PARTITIONS."
    )
    partitions_lookback: _Count = option(
        f"{_PLAN}.daybased.lookback.partitions",
        2,
        "Number of last partitions that mode RECENT_DAYS includes.",
    )
    partitions_skipped: Annotated[int, Field(ge=0, le=1_000_000_000)] = option(
        f"{_PLAN}.daybased.skipfromlatest.partitions",
        0,
        "Number of last partitions that mode RECENT_DAYS skips.",
    )
    partitions_regex: Expression = option(
        f"{_PLAN}.partition.regex.pattern",
        None,
        "Only partition paths that match this expression as a whole.",
    )
    partitions_selected: tuple[str, ...] = option(
        f"{_PLAN}.partition.selected", (), "Only these partition paths."
    )
    expires: bool = option(
        "hoodie.clustering.enable.expirations",
        False,
        "Cancel pending clusterings that no process executes for long.",
    )
    expiration_mins: _Count = option(
        "hoodie.clustering.expiration.threshold.mins",
        60,
        "Age in minutes from which a pending clustering without an executor is cancelled.",
    )
    yields_to_announced: bool = option(
        "hoodie.clustering.fail.on.pending.ingestion.during.conflict.resolution",
        False,
        "Leave out file groups that a live writer announced to change, not only those"
        " that it changed.",
    )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """
        Read the clustering settings from all properties.

        Raises:
            SettingError: As ``OptionSettings``, or a strategy is not known.
        """
        settings = super().from_properties(properties)
        slice_grouping_of(settings.plan_class)
        execution_class(settings.execution_class)
        return settings

    @property
    def grouping(self) -> SliceGrouping:
        """Return how slices form groups, by the plan strategy."""
        return slice_grouping_of(self.plan_class)[0]

    @property
    def partitions_by(self) -> PartitionMode:
        """Return the partition mode that the plan strategy implies, else the one that is set."""
        return slice_grouping_of(self.plan_class)[1] or self.partition_mode
