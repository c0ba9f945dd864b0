"""
How a file group grows by log files instead of a new base file, and on top of what.

Merge-on-read only: updates and deletes of records that are there are appended, and whoever
reads merges them (fmt 5, 6.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from timeline.model.claim import FileGroupId
from timeline.model.file_group import LogFile

__all__ = ["LogFormat", "LogSettings", "LogTarget"]

_MIB = 1024 * 1024


class LogFormat(Enum):
    """What the data blocks of a log file hold (fmt 5.4); readers take both."""

    PARQUET = "parquet"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How log files are made."""

    format: LogFormat | None = None  # None: Parquet, where Java's queries read it right
    file_bytes_max: int = 1024 * _MIB  # hoodie.logfile.max.size: a fuller file gets a successor
    block_bytes_max: int = 256 * _MIB  # rows of one block in memory; Java reads it as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTarget:
    """That a task appends, how, and to which log files of its slice."""

    settings: LogSettings = field(default_factory=LogSettings)
    logs: tuple[LogFile, ...] = ()  # those that are there, in their order

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LogTarget:
        """Read back what ``dataclasses.asdict`` made of one, its format as text."""
        settings = dict(document["settings"])
        settings["format"] = LogFormat(settings["format"]) if settings["format"] else None
        logs = (
            LogFile(**{**each, "file_group": FileGroupId(**each["file_group"])})
            for each in document["logs"]
        )
        return cls(settings=LogSettings(**settings), logs=tuple(logs))
