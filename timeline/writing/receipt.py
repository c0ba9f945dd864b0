"""
What a caller asks of a write and what it is told: the plan and the receipt.

A batch id makes a repeated call return the first receipt instead of writing again
(BATCH-1): the id lies in the commit slot, so the answer is as certain as the publication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from timeline.boundary import read_boundary
from timeline.context import SeenBatches, TableContext
from timeline.model.boundary import PublishedBatch
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.evolution import MissingColumns, SchemaRules
from timeline.model.operations import WriteOperation
from timeline.model.slot import Slot, SlotKind
from timeline.model.times import InstantTime
from timeline.properties.setting_names import ForeignWriters
from timeline.publishing.refusal import RefusalReport
from timeline.publishing.second_look import without_void
from timeline.publishing.settle import is_settled
from timeline.publishing.turn import take_turn
from timeline.publishing.withdrawal import withdrawn_by
from timeline.reading.read_set import ReadSet
from timeline.reading.snapshot import Snapshot
from timeline.writing.placing import FileRules
from timeline.writing.workload import RowRules

__all__ = ["Receipt", "RowCounts", "WritePlan", "batches_of", "published_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What a caller wants written."""

    rules: RowRules
    files: FileRules = field(default_factory=FileRules)
    delete_partitions: tuple[str, ...] = ()
    # Instead of those: which, told of the base snapshot of each attempt.
    choose_partitions: Callable[[Snapshot], tuple[str, ...]] | None = None
    extra_metadata: dict[str, str] = field(default_factory=dict)
    batch_id: str | None = None
    reads: ReadSet | None = None  # what the rows were made from
    detect_early: bool = True  # look for conflicts before files are written, too
    paced: bool = True  # by the table's pace; services do not wait
    schema: SchemaRules = field(
        default_factory=lambda: SchemaRules(missing=MissingColumns(fill=True))
    )

    @property
    def operation(self) -> WriteOperation:
        """The operation asked for."""
        return self.rules.operation

    def partitions_deleted(self, base: Snapshot) -> tuple[str, ...]:
        """Partitions that a write which began from ``base`` deletes as wholes."""
        return self.choose_partitions(base) if self.choose_partitions else self.delete_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """What the rows of one write did."""

    inserted: int
    updated: int
    deleted: int

    @classmethod
    def of(cls, metadata: CommitMetadata) -> RowCounts:
        """As a commit tells it."""
        return cls(
            inserted=metadata.total_rows_inserted,
            updated=metadata.total_rows_updated,
            deleted=metadata.total_rows_deleted,
        )


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
    files_written: int = 0  # one that has rows of several writes counts for each (GRP-7)
    bytes_written: int = 0
    refusals: tuple[RefusalReport, ...] = ()
    redone: str = "nothing"  # "publication", "file groups" or "everything"
    lost_slots: int = 0  # others published first, and no data had to be touched
    already_published: bool = False  # a batch id that was published before
    group: int = 1  # writes that one instant published together (GRP-1)


def published_batch(context: TableContext, plan: WritePlan) -> Receipt | None:
    """
    The receipt of a batch id that was published before (BATCH-1).

    Outside: 1 list, 1 get, and 1 get per slot that came since this process asked last; where the
    id was met, as ``SlotChain.newest_first`` as well.
    """
    if plan.batch_id is None:
        return None
    if context.limits.foreign_writers is ForeignWriters.EXPECTED:
        _decide_last(context)
    if not _may_be_published(context, plan.batch_id):
        return None
    withdrawn: set[InstantTime] = set()  # RST-1: such a batch is written anew
    for one in _published_batches(context, withdrawn):
        if one.batch.batch_id != plan.batch_id or one.requested_time in withdrawn:
            continue
        if not _taken_away(context, one.requested_time):
            return Receipt(
                action=one.action,
                operation=plan.operation.value,
                requested_time=one.requested_time,
                completion_time=one.completion_time,
                attempts=1,
                rows_inserted=one.batch.rows_inserted,
                rows_updated=one.batch.rows_updated,
                rows_deleted=one.batch.rows_deleted,
                already_published=True,
            )
    return None


def _may_be_published(context: TableContext, batch_id: str) -> bool:
    """
    Whether a slot or the boundary has the batch, be it void or taken away.

    A process that lives on lets go slots that a new batch would read again, all of them for each
    batch; their ids are kept instead.
    """
    seen, found = context.batches.seen, {}
    for slot in context.chain.newest_first():
        if slot.number <= seen.through:
            break
        found[slot.number] = frozenset(one.batch.batch_id for one in batches_of(slot))
    boundary = read_boundary(context.world.storage)  # after the slots, as of BATCH-2
    ids = {
        number: those
        for number, those in {**seen.ids, **found}.items()
        if those and number > boundary.number
    }
    context.batches.seen = SeenBatches(max(seen.through, *found, 0), ids)
    archived = any(one.batch.batch_id == batch_id for one in boundary.batches)
    return archived or any(batch_id in those for those in ids.values())


def _decide_last(context: TableContext) -> None:
    """A slot whose file is missing may still become void (FOR-4). Outside: 1 get, 1 list."""
    head = context.chain.head()
    last = context.chain.read(head) if head else None
    if last is not None and not is_settled(last, context.active()):
        take_turn(context, f"settle {last.instant_time}", lambda _: None)


def _taken_away(context: TableContext, requested_time: InstantTime) -> bool:
    """Whether another engine's restore took a published instant away. Outside: 1 list."""
    timeline = context.active()
    first = timeline.first_write_time
    archived = first is not None and requested_time < first
    return not archived and timeline.find(requested_time) is None


def _published_batches(
    context: TableContext, withdrawn: set[InstantTime]
) -> Iterator[PublishedBatch]:
    """Newest first; what is collected while slots are read is in the boundary by then (BATCH-2)."""
    for slot in without_void(context.chain.newest_first()):
        withdrawn |= withdrawn_by(slot)
        yield from batches_of(slot)
    yield from read_boundary(context.world.storage).batches


def batches_of(slot: Slot) -> tuple[PublishedBatch, ...]:
    """The batches that a slot published."""
    if slot.kind is not SlotKind.COMMIT:
        return ()
    return tuple(
        PublishedBatch(
            batch=batch,
            action=slot.action.value,
            requested_time=slot.requested_time,
            completion_time=slot.completion_time,
        )
        for batch in slot.batches
    )
