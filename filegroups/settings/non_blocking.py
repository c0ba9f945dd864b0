"""
Check that a table fits non-blocking writers, before it is opened (NBCC-1).

Such writers append to one file group without reading each other's commits. So the key alone must
determine the file group, and they may only add logs: merge-on-read with a bucket index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeline.model.commit_metadata import ConcurrencyMode, TableType
from timeline.properties.setting_enums import IndexType

if TYPE_CHECKING:
    from filegroups.settings.settings import WriteSettings

__all__ = ["contradiction_of_non_blocking"]


def contradiction_of_non_blocking(settings: WriteSettings) -> tuple[str, str, str] | None:
    """Return why a table cannot have non-blocking writers: field, message, suggestion; or None."""
    if settings.concurrency_mode is not ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL:
        return None
    instead = (
        f"use {settings.options['concurrency_mode'].key}="
        f"{ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL.value}"
    )
    if settings.table_type is not TableType.MERGE_ON_READ:
        return (
            "table_type",
            "non-blocking writers append log files, which only merge-on-read tables have",
            instead,
        )
    if settings.index_type is not IndexType.BUCKET:
        return (
            "index_type",
            "non-blocking writers see no new keys of each other; the key alone must say where",
            f"use BUCKET for a new table, else {instead}",
        )
    if settings.change_logs:
        return (
            "change_logs",
            "what a row was before a change is not known while others append beside it",
            instead,
        )
    return None
