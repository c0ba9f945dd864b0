"""Receipts as documents: what a command that changed something says it did."""

from __future__ import annotations

from typing import Any

from timeline.rules.retry import Redo
from timeline.writing.write import Receipt

__all__ = ["nothing_done", "receipt_document"]


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    """The promised shape; what had to be done again and why is added when there was anything."""
    document: dict[str, Any] = {
        "action": receipt.action,
        "operation": receipt.operation,
        "requested_time": receipt.requested_time,
        "completion_time": receipt.completion_time,
        "attempts": receipt.attempts,
        "rows_inserted": receipt.rows_inserted,
        "rows_updated": receipt.rows_updated,
        "rows_deleted": receipt.rows_deleted,
        "files_written": receipt.files_written,
        "bytes_written": receipt.bytes_written,
    }
    if receipt.redone != Redo.NOTHING.value:
        document["redone"] = receipt.redone
        document["lost_slots"] = receipt.lost_slots
    if receipt.refusals:
        document["refusals"] = [report.as_document() for report in receipt.refusals]
    if receipt.schema_changes:
        document["schema_changes"] = [
            {"column": one.column, "before": one.before, "after": one.after}
            for one in receipt.schema_changes
        ]
    if receipt.group > 1:
        document["group"] = receipt.group
    if receipt.already_published:
        document["already_published"] = True
    return document


def nothing_done(action: str, operation: str) -> dict[str, Any]:
    """The same shape when there was nothing to do, or only a look was wanted."""
    return {
        "action": action,
        "operation": operation,
        "requested_time": None,
        "completion_time": None,
        "attempts": 0,
        "rows_inserted": 0,
        "rows_updated": 0,
        "rows_deleted": 0,
        "files_written": 0,
        "bytes_written": 0,
    }
