"""
Cleaning, from the dead writers to the leftovers (CLN-1, CLN-2).

Everything slow happens before the turn: listing, deciding, encoding. In the turn only the
timeline's newest names are compared with those the decision was made from; then the clean
takes its slot, and the deletes follow it, so that whoever finds an interrupted clean
repeats exactly them (HELP-1), but for those that a reader's lease holds. A clean that would
delete nothing leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tableservices.cleaning.facts import SAVEPOINTED, Gathered, gather
from tableservices.cleaning.foreign import ForeignCleans, finish_foreign_cleans
from tableservices.cleaning.leftovers import remove_leftovers
from tableservices.cleaning.memory import CleanMemory
from tableservices.cleaning.plan import CleanPlan, plan_clean
from tableservices.cleaning.refusal import refuse_uncleanable
from tableservices.cleaning.settings import CleaningSettings
from tableservices.cleaning.trigger import is_due
from timeline.codecs.instant_avro import encode_clean, encode_clean_plan
from timeline.context import TableContext
from timeline.model.instant import Action
from timeline.model.plans import (
    ActionInstant,
    CleanerPlan,
    CleanFileInfo,
    CleanMetadata,
    CleanPartitionMetadata,
)
from timeline.model.slot import Slot, SlotKind
from timeline.model.times import InstantTime
from timeline.publishing.look import Turn
from timeline.publishing.turn import take_turn
from timeline.reading.snapshot import Snapshot
from timeline.rules.succession import Residue
from timeline.undoing.undo import rollback_dead_writers

__all__ = ["CleanReceipt", "clean"]

_PLANS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReceipt:
    """What one clean did; times are instant times."""

    requested_time: InstantTime
    completion_time: InstantTime
    files: tuple[str, ...]  # relative to the table
    retained_since: InstantTime | None  # the line, None when slices are counted

    @property
    def text(self) -> str:
        """One line for people."""
        kept = f", everything since {self.retained_since} is kept" if self.retained_since else ""
        return f"cleaned {len(self.files)} files{kept}"


class _Stale(Enum):
    STALE = "stale"


def clean(
    context: TableContext, settings: CleaningSettings, *, memory: CleanMemory | None = None
) -> CleanReceipt | None:
    """
    Clean the table once.

    Outside: 1 get, see ``gather``; then 1 turn (lock, list, get, create), the deletes, 3 creates; last
    the listings of heartbeats and markers.

    Args:
        context: The table.
        settings: Policy and retention.
        memory: Kept between the looks of one process, so that a table with nothing to
            supersede is not listed again and again.

    Returns:
        None when there was nothing to delete or it was not due.

    Raises:
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.publishing.publish.publish``; a clean whose slot was taken is finished, or
            ended (FOR-9), by the next turn of anybody.
        TableConfigConflictError, UnsupportedTableError: As ``refuse_uncleanable``.
        CorruptTableError, MissingFileError: What the decision depends on cannot be read;
            nothing was deleted.
    """
    memory = memory or CleanMemory()
    if memory.may_rest(context):
        return None
    refuse_uncleanable(context)
    snapshot = context.snapshot()
    if settings.rolls_back and rollback_dead_writers(context, snapshot.active):
        snapshot = context.snapshot()
    receipt = None
    foreign = finish_foreign_cleans(context, settings, snapshot.active)
    if foreign is not ForeignCleans.AT_WORK:
        if foreign is ForeignCleans.ENDED:
            snapshot = context.snapshot()
        receipt = _clean_own(context, settings, snapshot, memory)
    remove_leftovers(context)
    memory.note_look(context)
    return receipt


def _clean_own(
    context: TableContext, settings: CleaningSettings, snapshot: Snapshot, memory: CleanMemory
) -> CleanReceipt | None:
    if memory.still_quiet(context):
        return None
    for _ in range(_PLANS_MAX):
        started = context.world.clock.monotonic_ms()
        if not is_due(snapshot.active, settings):
            return None
        gathered = gather(context, snapshot, settings)
        plan = plan_clean(gathered.facts, settings)
        if not plan.paths:
            memory.note(snapshot, gathered.facts)
            return None
        taken = context.world.clock.monotonic_ms() - started
        outcome = _publish(context, settings, gathered, plan, taken)
        if not isinstance(outcome, _Stale):
            return outcome
        context.world.events.emit("cleaning.replanned", head=snapshot.head)
        snapshot = context.snapshot()
    return None


def _publish(
    context: TableContext,
    settings: CleaningSettings,
    gathered: Gathered,
    plan: CleanPlan,
    taken_ms: int,
) -> CleanReceipt | _Stale:
    nonce = context.world.ids.nonce()
    plan_bytes = encode_clean_plan(_cleaner_plan(context, settings, gathered, plan))

    def decide(turn: Turn) -> Slot | None:
        if not gathered.still_holds(context, turn):
            return None
        refuse_uncleanable(context)
        requested = turn.draw(context, Residue.SLOT_REQUESTED)
        return turn.slot(
            context,
            SlotKind.CLEAN,
            Action.CLEAN,
            requested,
            nonce=nonce,
            base=gathered.snapshot.head,
            body=encode_clean(
                _metadata(context, settings, gathered, plan, requested, taken_ms=taken_ms)
            ),
            plan=plan_bytes,
            deletes=plan.paths,
            floor=plan.floor,
        )

    slot, _ = take_turn(context, "clean", decide)
    if slot is None:
        return _Stale.STALE
    line = gathered.facts.line
    context.world.events.emit(
        "cleaning.done", rt=slot.requested_time, number=slot.number, files=len(plan.paths)
    )
    return CleanReceipt(
        requested_time=slot.requested_time,
        completion_time=slot.completion_time,
        files=plan.paths,
        retained_since=line.requested_time if line is not None else None,
    )


def _cleaner_plan(
    context: TableContext, settings: CleaningSettings, gathered: Gathered, plan: CleanPlan
) -> CleanerPlan:
    line = gathered.facts.line
    locate = context.world.storage.locate
    return CleanerPlan(
        earliest_instant_to_retain=None
        if line is None
        else ActionInstant(
            requested_time=line.requested_time,
            action=line.action.completes_as.value,
            state=line.state.name,
        ),
        last_completed_commit_timestamp=_last_completed(gathered),
        policy=settings.policy.value,
        file_paths_to_be_deleted_per_partition={
            partition: tuple(CleanFileInfo(file_path=locate(path)) for path in paths)
            for partition, paths in plan.files.items()
        },
        extra_metadata=_extra(gathered),
    )


def _metadata(
    context: TableContext,
    settings: CleaningSettings,
    gathered: Gathered,
    plan: CleanPlan,
    requested: InstantTime,
    *,
    taken_ms: int,
) -> CleanMetadata:
    line = gathered.facts.line
    partitions = {}
    for partition, paths in plan.files.items():
        names = tuple(path.rpartition("/")[2] for path in paths)
        partitions[partition] = CleanPartitionMetadata(
            partition_path=partition,
            policy=settings.policy.value,
            delete_path_patterns=names,
            success_delete_files=names,
        )
    return CleanMetadata(
        start_clean_time=requested,
        time_taken_in_millis=taken_ms,
        total_files_deleted=len(plan.paths),
        earliest_commit_to_retain=line.requested_time if line is not None else "",
        last_completed_commit_timestamp=_last_completed(gathered),
        partition_metadata=partitions,
        # Who it was outlives the slot, which archiving removes.
        extra_metadata={**_extra(gathered), **context.world.ids.identity().as_metadata},
    )


def _last_completed(gathered: Gathered) -> InstantTime:
    completed = gathered.snapshot.active.completed_writes
    return completed[-1].requested_time if completed else ""


def _extra(gathered: Gathered) -> dict[str, str]:
    return {SAVEPOINTED: ",".join(gathered.savepoints)} if gathered.savepoints else {}
