"""Settings of partition TTL, read from ``hoodie.partition.ttl.*``; defaults are Hudi 1.2.0's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, ClassVar

from pydantic import Field

from timeline.properties.option_settings import OptionSettings
from timeline.properties.options import Option, OptionKind

__all__ = ["TTL_OPTIONS", "TtlSettings", "TtlStrategy"]


class TtlStrategy(Enum):
    """The event from which the days of a partition count."""

    BY_TIME = "KEEP_BY_TIME"
    BY_CREATION_TIME = "KEEP_BY_CREATION_TIME"


#: Strategies by the short name of Java's class; no other class is accepted (SEC4).
_CLASSES = {
    "KeepByTimeStrategy": TtlStrategy.BY_TIME,
    "KeepByCreationTimeStrategy": TtlStrategy.BY_CREATION_TIME,
}
_PACKAGE = "org.apache.hudi.table.action.ttl.strategy."

# By the field of TtlSettings that it sets.
TTL_OPTIONS: Mapping[str, Option] = {
    "inline": Option(
        key="hoodie.partition.ttl.inline",
        default="false",
        kind=OptionKind.BOOL,
        doc="Delete expired partitions after a commit.",
    ),
    "strategy": Option(
        key="hoodie.partition.ttl.management.strategy.type",
        default=TtlStrategy.BY_TIME.value,
        kind=OptionKind.ENUM,
        choices=tuple(one.value for one in TtlStrategy),
        doc="Whether the days count from the last write into a partition, or from its first.",
    ),
    "strategy_class": Option(
        key="hoodie.partition.ttl.strategy.class",
        kind=OptionKind.ENUM,
        choices=tuple(f"{_PACKAGE}{name}" for name in _CLASSES),
        doc="The same, by the name of Hudi's class; stronger than the type.",
    ),
    "days_retained": Option(
        key="hoodie.partition.ttl.strategy.days.retain",
        default="-1",
        kind=OptionKind.INT,
        doc="How many days a partition is kept; nothing expires unless it is positive.",
    ),
    "partitions_max": Option(
        key="hoodie.partition.ttl.strategy.max.delete.partitions",
        default="1000",
        kind=OptionKind.INT,
        doc="How many partitions one round deletes at most.",
    ),
    "partitions_selected": Option(
        key="hoodie.partition.ttl.strategy.partition.selected",
        kind=OptionKind.LIST,
        doc="Partition paths that may expire; all of them when it is not said.",
    ),
}


class TtlSettings(OptionSettings):
    """All settings of partition TTL; the fields of ``TTL_OPTIONS``."""

    options: ClassVar[Mapping[str, Option]] = TTL_OPTIONS

    inline: bool = False
    strategy: TtlStrategy = TtlStrategy.BY_TIME
    strategy_class: str | None = None
    days_retained: Annotated[int, Field(ge=-1, le=366 * 1_000)] = -1
    partitions_max: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000
    partitions_selected: tuple[str, ...] = ()

    @property
    def from_creation(self) -> bool:
        """Return whether the days count from a partition's first write."""
        chosen = self.strategy
        if self.strategy_class:
            chosen = _CLASSES[self.strategy_class.rpartition(".")[2]]
        return chosen is TtlStrategy.BY_CREATION_TIME
