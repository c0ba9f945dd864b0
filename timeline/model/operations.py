"""The user's words for a write, a table, a merge and a change log, spelled as Hudi spells them."""

from __future__ import annotations

from enum import Enum

__all__ = ["ChangeLogMode", "ConcurrencyMode", "MergeMode", "TableType", "WriteOperation"]


class WriteOperation(Enum):
    """What a caller asks for; the timeline's own word for what it becomes is ``Action``."""

    INSERT = "insert"
    UPSERT = "upsert"
    BULK_INSERT = "bulk_insert"
    DELETE = "delete"
    INSERT_OVERWRITE = "insert_overwrite"
    INSERT_OVERWRITE_TABLE = "insert_overwrite_table"
    DELETE_PARTITION = "delete_partition"

    @property
    def replaces(self) -> bool:
        """Whether it publishes a replacecommit."""
        return self in _REPLACING

    @property
    def hudi_name(self) -> str:
        """The enum name Java Hudi expects in commit metadata (fmt 3, operationType)."""
        return self.name


_REPLACING = frozenset(
    {
        WriteOperation.INSERT_OVERWRITE,
        WriteOperation.INSERT_OVERWRITE_TABLE,
        WriteOperation.DELETE_PARTITION,
    }
)


class TableType(Enum):
    """How updates are stored."""

    COPY_ON_WRITE = "COPY_ON_WRITE"
    MERGE_ON_READ = "MERGE_ON_READ"


class MergeMode(Enum):
    """What decides between two versions of one record (fmt 7)."""

    COMMIT_TIME_ORDERING = "COMMIT_TIME_ORDERING"
    EVENT_TIME_ORDERING = "EVENT_TIME_ORDERING"
    CUSTOM = "CUSTOM"


class ChangeLogMode(Enum):
    """What a change log holds beside the operation (``hoodie.table.cdc.supplemental...``)."""

    OP_KEY_ONLY = "OP_KEY_ONLY"
    DATA_BEFORE = "DATA_BEFORE"
    DATA_BEFORE_AFTER = "DATA_BEFORE_AFTER"


class ConcurrencyMode(Enum):
    """Who may write at the same time."""

    SINGLE_WRITER = "SINGLE_WRITER"
    OPTIMISTIC_CONCURRENCY_CONTROL = "OPTIMISTIC_CONCURRENCY_CONTROL"
    NON_BLOCKING_CONCURRENCY_CONTROL = "NON_BLOCKING_CONCURRENCY_CONTROL"
