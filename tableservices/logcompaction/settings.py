"""Settings of log compaction, read from ``hoodie.log.compaction.*`` keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from tableservices.planned_service import PLAN_EXPIRY
from timeline.properties.option_settings import OptionSettings
from timeline.properties.options import Option, OptionKind

__all__ = ["LOG_COMPACTION_OPTIONS", "LogCompactionSettings"]

# By the field of LogCompactionSettings that it sets.
LOG_COMPACTION_OPTIONS: Mapping[str, Option] = {
    "enabled": Option(
        key="hoodie.log.compaction.enable",
        default="false",
        kind=OptionKind.BOOL,
        doc="Put log files together where compacting them into base files comes too seldom.",
    ),
    "inline": Option(
        key="hoodie.log.compaction.inline",
        default="false",
        kind=OptionKind.BOOL,
        doc="Plan a log compaction after a commit when it is due, and carry it out.",
    ),
    "blocks_min": Option(
        key="hoodie.log.compaction.blocks.threshold",
        default="5",
        kind=OptionKind.INT,
        doc="Log blocks of a file slice, and delta commits, that make one worth it.",
    ),
    "expiry_ms": PLAN_EXPIRY,
}


class LogCompactionSettings(OptionSettings):
    """Everything that can be set about it; the fields of ``LOG_COMPACTION_OPTIONS``."""

    options: ClassVar[Mapping[str, Option]] = LOG_COMPACTION_OPTIONS

    enabled: bool = False
    inline: bool = False
    blocks_min: Annotated[int, Field(ge=2, le=1_000_000)] = 5
    expiry_ms: Annotated[int, Field(ge=0, le=2**53)] = 86_400_000
