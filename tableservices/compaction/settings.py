"""Settings of compaction, read from ``hoodie.compact.*`` and ``hoodie.compaction.*`` keys."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from tableservices.planned_service import PLAN_EXPIRY
from timeline.properties.option_settings import OptionSettings
from timeline.properties.options import Option, OptionKind

__all__ = [
    "COMPACTION_OPTIONS",
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
_BOOL, _INT, _ENUM, _TEXT = OptionKind.BOOL, OptionKind.INT, OptionKind.ENUM, OptionKind.TEXT

# By the field of CompactionSettings that it sets.
COMPACTION_OPTIONS: Mapping[str, Option] = {
    "runs_inline": Option(
        key="hoodie.compact.inline",
        default="false",
        kind=_BOOL,
        doc="Plan a compaction after a commit when it is due, and carry it out.",
    ),
    "plans_inline": Option(
        key="hoodie.compact.schedule.inline",
        default="false",
        kind=_BOOL,
        doc="Only plan a compaction after a commit; a worker carries it out.",
    ),
    "asynchronous": Option(
        key="hoodie.datasource.compaction.async.enable",
        default="false",
        kind=_BOOL,
        doc="Compact on a thread beside the writes; Hudi's default is true, for streams alone.",
    ),
    "trigger": Option(
        key="hoodie.compact.inline.trigger.strategy",
        default=CompactionTrigger.NUM_COMMITS.value,
        kind=_ENUM,
        choices=tuple(one.value for one in CompactionTrigger),
        doc="What makes a compaction due: delta commits, time, both or either of them.",
    ),
    "commits_max": Option(
        key="hoodie.compact.inline.max.delta.commits",
        default="5",
        kind=_INT,
        doc="Delta commits since the last compaction that make the next one due.",
    ),
    "seconds_max": Option(
        key="hoodie.compact.inline.max.delta.seconds",
        default="3600",
        kind=_INT,
        doc="Seconds since the last compaction that make the next one due.",
    ),
    "strategy": Option(
        key="hoodie.compaction.strategy",
        default=_JAVA + CompactionStrategy.LOG_FILE_SIZE.value,
        kind=_TEXT,
        doc="Which file slices are compacted first, and how many: a class name of Hudi's.",
    ),
    "target_io_mb": Option(
        key="hoodie.compaction.target.io",
        default="512000",
        kind=_INT,
        doc="Megabytes that one compaction may read and write.",
    ),
    "log_bytes_min": Option(
        key="hoodie.compaction.logfile.size.threshold",
        default="0",
        kind=_INT,
        doc="Bytes of log files below which a file slice is left alone.",
    ),
    "log_files_min": Option(
        key="hoodie.compaction.logfile.num.threshold",
        default="0",
        kind=_INT,
        doc="Log files below which a file slice is left alone (LogFileNumBased).",
    ),
    "days_max": Option(
        key="hoodie.compaction.daybased.target.partitions",
        default="10",
        kind=_INT,
        doc="How many of the latest partitions one compaction looks at (DayBased).",
    ),
    "expiry_ms": PLAN_EXPIRY,
}

_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Size = Annotated[int, Field(ge=0, le=2**62)]


class CompactionSettings(OptionSettings):
    """All settings of compaction; the fields of ``COMPACTION_OPTIONS``."""

    options: ClassVar[Mapping[str, Option]] = COMPACTION_OPTIONS

    runs_inline: bool = False
    plans_inline: bool = False
    asynchronous: bool = False
    trigger: CompactionTrigger = CompactionTrigger.NUM_COMMITS
    commits_max: _Count = 5
    seconds_max: _Count = 3_600
    strategy: CompactionStrategy | str = CompactionStrategy.LOG_FILE_SIZE  # a plug-in's name
    target_io_mb: _Count = 512_000
    log_bytes_min: _Size = 0
    log_files_min: _Size = 0
    days_max: _Count = 10
    expiry_ms: Annotated[int, Field(ge=0, le=2**53)] = 86_400_000

    @field_validator("strategy", mode="before")
    @classmethod
    def _by_class_name(cls, value: object) -> object:
        """Map a class name by fixed tables; never import it (SEC4)."""
        return _STRATEGIES.get(value, value) if isinstance(value, str) else value
