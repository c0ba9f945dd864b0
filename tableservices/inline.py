"""
Services right after a commit, in the writer's own process.

The commit is published and stays so: whatever fails here is reported and forgotten, the
next round does it again (PUB-9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tableservices.service import ServiceReceipt, TableService
from timeline.context import TableContext

__all__ = ["InlineOutcome", "run_inline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineOutcome:
    """What the services did, and one line for each that failed."""

    receipts: tuple[ServiceReceipt, ...]
    warnings: tuple[str, ...]


def run_inline(context: TableContext, services: Sequence[TableService]) -> InlineOutcome:
    """Run every service that wants to run after a commit, each once. Raises nothing."""
    receipts = []
    warnings = []
    for service in services:
        if not service.inline:
            continue
        try:
            receipt = service.run_once(context)
        except Exception as error:  # noqa: BLE001 - PUB-9: a published write never fails
            context.world.events.emit("service.failed", service=service.name, why=str(error))
            warnings.append(f"the write is done, but {service.name} after it failed: {error}")
            continue
        if receipt is not None:
            receipts.append(receipt)
    return InlineOutcome(receipts=tuple(receipts), warnings=tuple(warnings))
