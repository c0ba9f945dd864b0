"""
Hudi's class names of clustering, and what they mean here: fixed tables, never an import (SEC4).

A class is named in full or by its last part. What is not in the tables is refused by name,
because guessing would rewrite other files or put them in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NoReturn

from timeline.errors import SettingError

__all__ = [
    "EXECUTION_DEFAULT",
    "PLAN_DEFAULT",
    "Grouping",
    "PartitionMode",
    "execution_class",
    "grouping_of",
]


class PartitionMode(Enum):
    """Which partitions a plan looks at; the value is Hudi's name."""

    NONE = "NONE"
    RECENT_DAYS = "RECENT_DAYS"
    SELECTED_PARTITIONS = "SELECTED_PARTITIONS"
    DAY_ROLLING = "DAY_ROLLING"


class Grouping(Enum):
    """How file slices come together."""

    BY_SIZE = "by size"  # small ones fill a group up
    EACH_ALONE = "each alone"  # every slice becomes one sorted file


_PLAN_PACKAGE: Final = "org.apache.hudi.client.clustering.plan.strategy."
_RUN_PACKAGE: Final = "org.apache.hudi.client.clustering.run.strategy."

PLAN_DEFAULT: Final = f"{_PLAN_PACKAGE}SparkSizeBasedClusteringPlanStrategy"
EXECUTION_DEFAULT: Final = f"{_RUN_PACKAGE}SparkSortAndSizeExecutionStrategy"

# What is grouped how, and which partitions are looked at when the class says it.
_PLANS: Final[Mapping[str, tuple[Grouping, PartitionMode | None]]] = MappingProxyType(
    {
        "SparkSizeBasedClusteringPlanStrategy": (Grouping.BY_SIZE, None),
        "JavaSizeBasedClusteringPlanStrategy": (Grouping.BY_SIZE, None),
        "FlinkSizeBasedClusteringPlanStrategy": (Grouping.BY_SIZE, None),
        "SparkStreamCopyClusteringPlanStrategy": (Grouping.BY_SIZE, None),
        "SparkSingleFileSortPlanStrategy": (Grouping.EACH_ALONE, None),
        "SparkRecentDaysClusteringPlanStrategy": (Grouping.BY_SIZE, PartitionMode.RECENT_DAYS),
        "JavaRecentDaysClusteringPlanStrategy": (Grouping.BY_SIZE, PartitionMode.RECENT_DAYS),
        "FlinkRecentDaysClusteringPlanStrategy": (Grouping.BY_SIZE, PartitionMode.RECENT_DAYS),
        "SparkSelectedPartitionsClusteringPlanStrategy": (
            Grouping.BY_SIZE,
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


def grouping_of(name: str) -> tuple[Grouping, PartitionMode | None]:
    """
    What a plan strategy does.

    Raises:
        SettingError: It is not in the table.
    """
    found = _PLANS.get(name.removeprefix(_PLAN_PACKAGE))
    if found is None:
        _refuse("hoodie.clustering.plan.strategy.class", name, _PLAN_PACKAGE, sorted(_PLANS))
    return found


def execution_class(name: str) -> str:
    """
    The full name of an execution strategy that sorts rows into files.

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
        why = "buckets of consistent hashing are not resized by this release"
    raise SettingError(
        f"{why}; use one of {', '.join(known)} of {package[:-1]}: {key}={name[:200]!a}",
        kind="unsupported_setting",
        key=key,
        value=name[:200],
        suggestion=known[0],
    )
