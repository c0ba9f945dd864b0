"""Settings of partition TTL, read from ``hoodie.partition.ttl.*``; defaults are Hudi 1.2.0's."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from timeline.properties.option_settings import OptionSettings, option

__all__ = ["TtlSettings", "TtlStrategy"]


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


class TtlSettings(OptionSettings):
    """All settings of partition TTL."""

    inline: bool = option(
        "hoodie.partition.ttl.inline", False, "Delete expired partitions after a commit."
    )
    strategy: TtlStrategy = option(
        "hoodie.partition.ttl.management.strategy.type",
        TtlStrategy.BY_TIME,
        "Whether the days count from the last write into a partition, or from its first.",
    )
    strategy_class: str | None = option(
        "hoodie.partition.ttl.strategy.class",
        None,
        "The same, by the name of Hudi's class; stronger than the type.",
        choices=tuple(f"{_PACKAGE}{name}" for name in _CLASSES),
    )
    days_retained: Annotated[int, Field(ge=-1, le=366 * 1_000)] = option(
        "hoodie.partition.ttl.strategy.days.retain",
        -1,
        "How many days a partition is kept; nothing expires unless it is positive.",
    )
    partitions_max: Annotated[int, Field(ge=1, le=1_000_000)] = option(
        "hoodie.partition.ttl.strategy.max.delete.partitions",
        1_000,
        "How many partitions one round deletes at most.",
    )
    partitions_selected: tuple[str, ...] = option(
        "hoodie.partition.ttl.strategy.partition.selected",
        (),
        "Partition paths that may expire; all of them when it is not said.",
    )

    @property
    def from_creation(self) -> bool:
        """Return whether the days count from a partition's first write."""
        chosen = self.strategy
        if self.strategy_class:
            chosen = _CLASSES[self.strategy_class.rpartition(".")[2]]
        return chosen is TtlStrategy.BY_CREATION_TIME
