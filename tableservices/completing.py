"""
Completing a plan: the slot of its result or that of its cancel, whichever came first (CAN-1).

The same turn as a write's: everything slow is done before. What a service must ask before
its result may stand (nothing for a compaction, CMP-1) is a check of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from timeline.codecs.commit_body import CommitBody
from timeline.codecs.legacy_commit import decode_archived_commit
from timeline.context import TableContext
from timeline.files.markers import delete_markers
from timeline.heartbeat import Heartbeat
from timeline.model.claim import Claim
from timeline.model.commit_metadata import SCHEMA_KEY, CommitMetadata
from timeline.model.filenames import (
    instant_file_name,
    parse_base_file_name,
    pending_file_names,
)
from timeline.model.instant import Instant, State
from timeline.model.slot import Slot, SlotKind
from timeline.places import HISTORY
from timeline.publishing.begin import refuse_while_restored
from timeline.publishing.look import Turn
from timeline.publishing.plan_ending import Ended, how_it_ended
from timeline.publishing.publish import Published
from timeline.publishing.rivals import pending_rollback_of
from timeline.publishing.settle import data_files_of
from timeline.publishing.turn import take_turn
from timeline.reading.snapshot import Snapshot
from timeline.rules.succession import Residue
from timeline.undoing.left_upkeep import seems_left
from timeline.undoing.undo import finish_left

__all__ = ["Check", "complete", "withdraw", "withdraw_if_ended"]


#: Whether the result may stand in this turn, asked again after each lost slot.
Check = Callable[[Turn], bool]


def complete(
    context: TableContext,
    plan: Instant,
    metadata: CommitMetadata,
    *,
    claim: Claim,
    heartbeat: Heartbeat,
    check: Check | None = None,
) -> Published | Ended:
    """
    Publish what an executor made of a plan, or say why it does not count.

    Outside: 1 turn (lock, list, create), 1 create; then the markers and the heartbeat go.

    Args:
        context: The table.
        plan: A pending compaction, log compaction or clustering.
        metadata: The completed file, with the table's schema as the executor saw it. A newer
            one takes its place: the newest commit tells what the schema is.
        claim: The file groups it touched.
        heartbeat: The executor's.
        check: What must hold beside the plan being pending.

    Raises:
        HeartbeatExpiredError: This process paused too long; another may be at the plan.
        TableConfigConflictError: Another engine's restore is pending; the plan stays, or goes with it.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.publishing.publish.publish``.
    """
    bodies = {metadata.schema_json: CommitBody(metadata)}
    nonce = context.world.ids.nonce()
    ended = Ended.CANCELLED
    undone: Instant | None = None  # by another engine that is gone: a try at the plan

    def decide(turn: Turn) -> Slot | None:
        nonlocal ended, undone
        heartbeat.check()
        why = how_it_ended(turn.timeline, plan)
        undone = pending_rollback_of(context, turn.timeline, plan.requested_time)
        if why is None and undone is not None and not seems_left(context, undone):
            why = Ended.ROLLED_BACK  # planned under the lock, and carried out without (PUB-6)
        if why is None:
            refuse_while_restored(turn.timeline)
        if why is None and check is not None and not check(turn):
            why = Ended.REFUSED
        if why is not None:
            ended = why
            return None
        schema = _schema_in(context, turn) or metadata.schema_json
        if schema is not None and schema not in bodies:
            bodies[schema] = CommitBody(_with_schema(metadata, schema))
        return Slot(
            number=turn.head + 1,
            table_id=context.table_id,
            kind=SlotKind.COMMIT,
            action=plan.action,
            requested_time=plan.requested_time,
            completion_time=turn.draw(context, Residue.SLOT_COMPLETION, above=plan.requested_time),
            base=turn.head,
            nonce=nonce,
            owner=turn.owner,
            claim=claim,
            schema_before=schema or "",
            schema_after=schema or "",
            body=bodies[schema].bytes_with(turn.owner.fencing_token),
        )

    slot, lost = take_turn(context, f"complete {plan.requested_time}", decide)
    context.chain.ended(plan.requested_time)
    if slot is None:
        return ended
    done = Instant(
        action=plan.action.completes_as,
        requested_time=plan.requested_time,
        state=State.COMPLETED,
        completion_time=slot.completion_time,
    )
    told = bodies[slot.schema_after or None].metadata_with(slot.owner.fencing_token)
    context.commits.remember(done, told)
    context.timelines.add(instant_file_name(done))
    try:  # PUB-9: it stands, whatever fails from here on
        delete_markers(context.world.storage, plan.requested_time)
        heartbeat.stop()
        if undone is not None:  # before its engine comes back to it, and deletes what stands now
            finish_left(context, context.active(), undone)
    except Exception as error:  # noqa: BLE001
        context.world.events.emit("service.cleanup_failed", rt=plan.requested_time, why=str(error))
    context.world.events.emit(
        "service.done",
        action=plan.action.value,
        rt=plan.requested_time,
        ct=slot.completion_time,
        number=slot.number,
    )
    return Published(slot=slot, lost_slots=lost)


def _schema_in(context: TableContext, turn: Turn) -> str | None:
    """The table's schema now. Outside: 1 get when a commit came since it was last asked."""
    now = Snapshot(active=turn.timeline, head=turn.head, commits=context.commits)
    return now.newest_schema_json


def _with_schema(metadata: CommitMetadata, schema: str) -> CommitMetadata:
    return replace(metadata, extra_metadata={**metadata.extra_metadata, SCHEMA_KEY: schema})


def withdraw(context: TableContext, plan: Instant, ended: Ended, heartbeat: Heartbeat) -> None:
    """
    Take back what this executor made of a plan that ended otherwise.

    After a cancel everything of the instant goes, also what came after the canceller looked
    (RB-10). What another executor completed has the same names and stays, but for base files
    that its result does not name: those of groups it gave up, which are hidden only while the
    instant is not archived (CL-1). Outside: 1 list and the history, the listing of the plan's files,
    and their deletes.
    """
    storage = context.world.storage
    ended, archived = _ended_for_sure(context, plan, ended)
    if ended is Ended.CANCELLED:
        for path in data_files_of(storage, plan.requested_time):
            storage.delete(path)
        for name in pending_file_names(plan.action, plan.requested_time):
            storage.delete(context.instant_path(name))
        delete_markers(storage, plan.requested_time)
    elif ended is Ended.COMPLETED_ELSEWHERE:
        if archived:  # GC-6: what was made too late shows it as pending
            for name in pending_file_names(plan.action, plan.requested_time):
                storage.delete(context.instant_path(name))
        named = _named_by_result(context, plan)
        if named is not None:
            for path in data_files_of(storage, plan.requested_time):
                if path not in named and parse_base_file_name(path.rpartition("/")[2]) is not None:
                    storage.delete(path)
    heartbeat.stop()
    context.world.events.emit(
        "service.withdrawn", action=plan.action.value, rt=plan.requested_time, why=ended.value
    )


def _ended_for_sure(context: TableContext, plan: Instant, ended: Ended) -> tuple[Ended, bool]:
    """
    How a plan ended, asked before any delete, and whether the history alone has its result.

    Once it is archived, an inflight file that its executor made too late looks like one of a plan
    that was cancelled; and what was cancelled looks archived once the timeline begins above it.
    """
    if ended not in (Ended.CANCELLED, Ended.COMPLETED_ELSEWHERE):
        return ended, False
    done = context.active().find(plan.requested_time, plan.action.completes_as)
    if done is not None and done.completed:
        return Ended.COMPLETED_ELSEWHERE, False
    times = context.history.times()
    if plan.requested_time in times.completions:
        return Ended.COMPLETED_ELSEWHERE, True
    return (Ended.CANCELLED if times.rules_out(plan.requested_time) else ended), False


def _named_by_result(context: TableContext, plan: Instant) -> frozenset[str] | None:
    """Files that the plan's completed instant names; None when it is not found any more."""
    action = plan.action.completes_as
    done = context.active().find(plan.requested_time, action)
    if done is not None and done.completed:
        return frozenset(context.commits.read(done).written_paths())
    row = context.history.find(plan.requested_time, action.value)
    if row is None or row.metadata is None:
        return None
    path = f"{HISTORY} ({plan.requested_time})"
    told = decode_archived_commit(row.metadata, action=row.action, path=path)
    return frozenset(told.written_paths())


def withdraw_if_ended(context: TableContext, plan: Instant, heartbeat: Heartbeat) -> None:
    """
    As ``withdraw``, by an executor that slept, where somebody ended the plan meanwhile.

    A plan that is pending still keeps what was made: whoever carries it out uses it.
    """
    ended = how_it_ended(context.active(), plan)
    if ended is not None:
        withdraw(context, plan, ended, heartbeat)
