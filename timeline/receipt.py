"""
What a caller asks of a write and what it is told: the plan and the receipt.

A batch id makes a repeated call return the first receipt instead of writing again
(BATCH-1): the id lies in the commit slot, so the answer is as certain as the publication.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from timeline.context import TableContext
from timeline.model.evolution import MissingColumns, SchemaRules
from timeline.model.operations import WriteOperation
from timeline.model.slot import Batch, Slot, SlotKind
from timeline.model.times import InstantTime
from timeline.placing import FileRules
from timeline.refusal import RefusalReport
from timeline.workload import RowRules

__all__ = ["Receipt", "WritePlan", "published_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What a caller wants written."""

    rules: RowRules
    files: FileRules = field(default_factory=FileRules)
    delete_partitions: tuple[str, ...] = ()
    extra_metadata: dict[str, str] = field(default_factory=dict)
    batch_id: str | None = None
    detect_early: bool = True  # look for conflicts before files are written, too
    schema: SchemaRules = field(
        default_factory=lambda: SchemaRules(missing=MissingColumns(fill=True))
    )

    @property
    def operation(self) -> WriteOperation:
        """The operation asked for."""
        return self.rules.operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a write did."""

    action: str
    operation: str
    requested_time: InstantTime
    completion_time: InstantTime
    attempts: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    files_written: int = 0
    bytes_written: int = 0
    refusals: tuple[RefusalReport, ...] = ()
    already_published: bool = False  # a batch id that was published before


def published_batch(context: TableContext, plan: WritePlan) -> Receipt | None:
    """The receipt of a batch id that was published before (BATCH-1)."""
    if plan.batch_id is None:
        return None
    head = context.chain.head()
    for slot in reversed(context.chain.between(0, head)):
        if slot.kind is not SlotKind.COMMIT:
            continue
        for batch in slot.batches:
            if batch.batch_id == plan.batch_id:
                return _receipt_of_batch(slot, batch, plan)
    return None


def _receipt_of_batch(slot: Slot, batch: Batch, plan: WritePlan) -> Receipt:
    return Receipt(
        action=slot.action.value,
        operation=plan.operation.value,
        requested_time=slot.requested_time,
        completion_time=slot.completion_time,
        attempts=1,
        rows_inserted=batch.rows_inserted,
        rows_updated=batch.rows_updated,
        rows_deleted=batch.rows_deleted,
        already_published=True,
    )
