"""Settings of compaction, read from ``hoodie.compact.*`` and ``hoodie.compaction.*`` keys."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated

from pydantic import Field, field_validator

from tableservices.planned_service import PlannedServiceSettings
from timeline.properties.option_settings import option

__all__ = [
    "STRATEGY_NAMES",
    "CompactionSettings",
    "CompactionStrategy",
    "CompactionTrigger",
]


class CompactionTrigger(Enum):
    """The rule by which a compaction becomes due; Hudi's names."""

    NUM_COMMITS = "NUM_COMMITS"
    NUM_COMMITS_AFTER_LAST_REQUEST = "NUM_COMMITS_AFTER_LAST_REQUEST"
    TIME_ELAPSED = "TIME_ELAPSED"
    NUM_AND_TIME = "NUM_AND_TIME"
    NUM_OR_TIME = "NUM_OR_TIME"


class CompactionStrategy(Enum):
    """The choice and order of file slices; the value is the end of Hudi's class name."""

    LOG_FILE_SIZE = "LogFileSizeBasedCompactionStrategy"
    LOG_FILE_NUM = "LogFileNumBasedCompactionStrategy"
    BOUNDED_IO = "BoundedIOCompactionStrategy"
    DAY_BASED = "DayBasedCompactionStrategy"
    UNBOUNDED = "UnBoundedCompactionStrategy"


_JAVA = "org.apache.hudi.table.action.compact.strategy."
_STRATEGIES: Mapping[str, CompactionStrategy] = {
    name: strategy
    for strategy in CompactionStrategy
    for name in (strategy.value, _JAVA + strategy.value)
}
STRATEGY_NAMES = tuple(strategy.value for strategy in CompactionStrategy)


_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Size = Annotated[int, Field(ge=0, le=2**62)]


class CompactionSettings(PlannedServiceSettings):
    """All settings of compaction."""

    runs_inline: bool = option(
        "hoodie.compact.inline",
        False,
        "Plan a compaction after a commit when it is due, and carry it out.",
    )
    plans_inline: bool = option(
        "hoodie.compact.schedule.inline",
        False,
        "Only plan a compaction after a commit; a worker carries it out.",
    )
    asynchronous: bool = option(
        "hoodie.datasource.compaction.async.enable",
        False,
        "Compact on a thread beside the writes; Hudi's default is true, for streams alone.",
    )
    trigger: CompactionTrigger = option(
        "hoodie.compact.inline.trigger.strategy",
        CompactionTrigger.NUM_COMMITS,
        "What makes a compaction due: delta commits, time, both or either of them.",
    )
    commits_max: _Count = option(
        "hoodie.compact.inline.max.delta.commits",
        5,
        "Delta commits since the last compaction that make the next one due.",
    )
    seconds_max: _Count = option(
        "hoodie.compact.inline.max.delta.seconds",
        3_600,
        "Seconds since the last compaction that make the next one due.",
    )
    # a plug-in's name
    strategy: CompactionStrategy | str = option(
        "hoodie.compaction.strategy",
        _JAVA + CompactionStrategy.LOG_FILE_SIZE.value,
        "Which file slices are compacted first, and how many: a class name of Hudi's.",
        validate_default=True,
    )
    target_io_mb: _Count = option(
        "hoodie.compaction.target.io", 512_000, "Megabytes that one compaction may read and write."
    )
    log_bytes_min: _Size = option(
        "hoodie.compaction.logfile.size.threshold",
        0,
        "Bytes of log files below which a file slice is left alone.",
    )
    log_files_min: _Size = option(
        "hoodie.compaction.logfile.num.threshold",
        0,
        "Log files below which a file slice is left alone (LogFileNumBased).",
    )
    days_max: _Count = option(
        "hoodie.compaction.daybased.target.partitions",
        10,
        "How many of the latest partitions one compaction looks at (DayBased).",
    )

    @field_validator("strategy", mode="before")
    @classmethod
    def _by_class_name(cls, value: object) -> object:
        """Map a class name by fixed tables; never import it (SEC4)."""
        return _STRATEGIES.get(value, value) if isinstance(value, str) else value
