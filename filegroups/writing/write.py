"""
The write path, readable top to bottom: plan, begin, place, write, validate, publish.

Each step hands one frozen value to the next. A refused attempt redoes the least: the
overlapping file groups when their newest slice lies below this write's requested time,
everything otherwise, within one budget. Data is never deleted while the outcome of a
publication is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from filegroups.files.rewrite import FileGroupTask
from filegroups.schema.evolution import ColumnChange, schema_changes
from filegroups.schema.schema import TableSchema
from filegroups.writing.assign_file_groups import FileGroupAssignment, assign_file_groups
from filegroups.writing.commit_result import CommitResult, RowCounts, WriteRequest
from filegroups.writing.early_conflict_detection import detect_early, wait_for_rate_limit
from filegroups.writing.idempotency import committed_batch, result_of_batch
from filegroups.writing.pending_commit import (
    WrittenFiles,
    announce,
    pending_commit_of,
    planned_write_set,
    reconcile_files,
)
from filegroups.writing.read_validation import ReadValidation
from filegroups.writing.retry_state import (
    AnnouncedRebase,
    RetryState,
    announce_rebase,
    rebase,
    rebase_tasks,
)
from filegroups.writing.workload import Workload
from filegroups.writing.write_schema import (
    addressed,
    refuse_other_key_types,
    rows_schema,
    schema_for,
    with_stored_forms,
)
from timeline.commit.admission import keep_commit_lock
from timeline.commit.begin import StartedWrite, begin
from timeline.commit.cancel_plan import cancel_blocking_plans
from timeline.commit.commit import BaseState, CommittedWrite, Conflict, commit_write
from timeline.commit.conflict_report import ConflictReport, conflict_error, conflict_report_of
from timeline.commit.markers import list_for_delete_markers
from timeline.commit.pending_writes import announced_writes
from timeline.commit.section import assert_same_table_after_commit
from timeline.commit.waiting_line import WaitResult, must_wait_in_line, wait_in_line
from timeline.context import TableContext
from timeline.errors import (
    BudgetSpentError,
    ConflictError,
    HeartbeatExpiredError,
    MissingFileError,
    OutcomeUnknownError,
    RolledBackError,
)
from timeline.model.commit_metadata import CommitMetadata, TableType, WriteOperation
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot
from timeline.rollback.rollback import discard_attempt
from timeline.rules.conflicts import (
    NoConflict,
    Rebase,
    Rejected,
    RuleId,
    objection_to,
    validate_write_set,
)
from timeline.rules.retry import RetryScope
from timeline.snapshot import Snapshot
from timeline.truncation import advance_low_water_mark

__all__ = [
    "CommitResult",
    "PreparedWrite",
    "WriteRequest",
    "action_of",
    "clean_up",
    "commit_result_of",
    "dry_run_write",
    "finish_commit",
    "prepare_write",
    "write",
    "write_prepared",
]

_QUEUED_GLANCE_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A write whose rows are prepared: what stays the same during one attempt."""

    context: TableContext
    plan: WriteRequest
    workload: Workload | None
    schema: TableSchema
    schema_before: str  # the table's own, "" for none
    queued: bool = False  # nobody else publishes meanwhile


def write(
    context: TableContext,
    plan: WriteRequest,
    workload: Workload | None,
    looked: Snapshot | None = None,
) -> CommitResult:
    """
    Run one write to its end: published, refused or unknown.

    Args:
        context: The table.
        plan: What to do.
        workload: The incoming rows; None for ``delete_partition``.
        looked: A look at the table of a moment ago, where the caller has one.

    Raises:
        InvalidInputError: The rows do not fit, or another operation has the batch id; nothing
            was begun.
        ConflictError: Refused for good; the fields hold the report, or those of all attempts.
        OutcomeUnknownError: Published or not, nobody knows yet; do not repeat blindly.
        HeartbeatExpiredError, RolledBackError: Shut out in every attempt.
        LockTimeoutError, StorageUnavailableError: Something outside did not answer.
    """
    plan = addressed(plan, workload)
    known = result_of_batch(context, plan)
    if known is not None:
        return known
    asked_at_ms = context.world.clock.monotonic_ms()
    looked = looked or context.glance()
    work = prepare_write(context, plan, workload, looked)
    if plan.paced and wait_for_rate_limit(context):
        return write_prepared(work)
    # Preparing a big batch takes long, which is no part of the retries' budget.
    started = context.world.clock.monotonic_ms()
    tries = RetryState(started_ms=started)
    fresh = looked if started - asked_at_ms <= context.glance_ms else None
    return _to_its_end(work, tries, _attempt(work, tries, fresh))


def prepare_write(
    context: TableContext, plan: WriteRequest, workload: Workload | None, looked: Snapshot
) -> PreparedWrite:
    """Fit the rows to the table; nothing is begun, and rows that do not fit are told."""
    plan = addressed(plan, workload)
    plan = with_stored_forms(context, looked, plan)
    schema, before = schema_for(context, looked, workload, plan)
    if workload is not None:
        workload.prepare(plan.rules, rows_schema(context, schema, workload, plan))
    return PreparedWrite(
        context=context, plan=plan, workload=workload, schema=schema, schema_before=before
    )


def write_prepared(work: PreparedWrite) -> CommitResult:
    """Run a write as an instant of its own, from a fresh look. Errors: as ``write``."""
    known = result_of_batch(work.context, work.plan)
    if known is not None:
        return known
    tries = RetryState(started_ms=work.context.world.clock.monotonic_ms())
    return _to_its_end(work, tries, _from_start(work, tries))


def _to_its_end(
    work: PreparedWrite, tries: RetryState, outcome: CommitResult | Conflict
) -> CommitResult:
    context, plan = work.context, work.plan
    while isinstance(outcome, Conflict):
        if isinstance(outcome.verdict, Rejected):
            twin = None
            if outcome.verdict.rule is RuleId.SAME_BATCH:
                twin = result_of_batch(context, plan)
            if twin is not None:
                return twin
            if not outcome.verdict.retry_can_succeed:
                rule, wasted = outcome.verdict.rule, tries.wasted_bytes
                raise conflict_error(tries.refusals[-1], rule, wasted_bytes=wasted)
        bound = tries.spent_bound(context)
        if bound is not None:
            raise _give_up(tries.refusals, outcome.verdict.rule, bound)
        outcome = _next_attempt(work, tries)
    return outcome


def _next_attempt(work: PreparedWrite, tries: RetryState) -> CommitResult | Conflict:
    """The next attempt, from a fresh look; in the queue where it is short or lost too often."""
    hold_ms = tries.hold_ms(work.context)
    if hold_ms is None:
        tries.pause(work.context)
        return _from_start(work, tries)
    purpose = f"write again after {len(tries.refusals)} conflicts"
    with keep_commit_lock(work.context, purpose, ms_max=hold_ms) as held:
        return _from_start(replace(work, context=held, queued=True), tries)


def _from_start(work: PreparedWrite, tries: RetryState) -> CommitResult | Conflict:
    context = work.context
    if work.queued and context.world.storage.capabilities.far:
        # Everybody waits, and this look only says above what a time is drawn: the base snapshot
        # is read afterwards (BEG-4), and tells when it was too low (BEG-5).
        return _attempt(work, tries, context.glance(_QUEUED_GLANCE_MS))
    return _attempt(work, tries, context.snapshot())


def _give_up(
    refusals: Sequence[ConflictReport], rule: RuleId, bound: str
) -> ConflictError | RolledBackError:
    if len(refusals) == 1:
        return conflict_error(refusals[-1], rule, bound)
    return BudgetSpentError(
        "every attempt met a conflict; write less at once, write at another time, or raise "
        f"{bound}; last: {refusals[-1].text}",
        attempts=[report.as_document() for report in refusals],
        report=refusals[-1].as_document(),
        bound=bound,
    )


def action_of(context: TableContext, operation: WriteOperation) -> Action:
    """What a write is on the timeline; one of a merge-on-read table may append."""
    if operation.replaces:
        return Action.REPLACECOMMIT
    merges = context.config.table_type is TableType.MERGE_ON_READ
    return Action.DELTACOMMIT if merges else Action.COMMIT


def _attempt(
    work: PreparedWrite, tries: RetryState, snapshot: Snapshot | None
) -> CommitResult | Conflict:
    """One instant from its begin to its end; a refused one leaves nothing behind."""
    context = work.context
    tries.begin(context)
    begun = begin(context, action_of(context, work.plan.operation), snapshot)
    try:
        outcome = _write_and_publish(work, begun, tries)
    except OutcomeUnknownError:
        # UNK-3: nothing of it may be deleted; without a heartbeat others will find out.
        begun.heartbeat.stop()
        raise
    except (MissingFileError, HeartbeatExpiredError, RolledBackError) as error:
        discard_attempt(context, begun)
        outcome = _conflict_of_error(context, begun, error, tries.refusals)
        if tries.spent_bound(context) is not None:
            raise
    except Exception:
        discard_attempt(context, begun)
        raise
    except BaseException:
        # Interrupted, perhaps while publishing: delete nothing. Without a heartbeat the next
        # clean rolls it back, or helps it if it was published.
        begun.heartbeat.stop()
        raise
    else:
        if isinstance(outcome, Conflict):
            discard_attempt(context, begun)
    finally:
        context.pin.release(begun.requested_time)
        context.chain.ended(begun.requested_time)
    return outcome


def _conflict_of_error(
    context: TableContext,
    begun: StartedWrite,
    error: MissingFileError | HeartbeatExpiredError | RolledBackError,
    refusals: list[ConflictReport],
) -> Conflict:
    """A base file cleaned meanwhile (hole 12) or a shut-out writer: all is redone."""
    rule = RuleId.SOURCE_NOT_NEWEST
    if not isinstance(error, MissingFileError):
        rule = RuleId.TARGET_OF_ROLLBACK
    verdict = Rejected(rule, error.message, ())
    refusals.append(conflict_report_of(begun.requested_time, verdict))
    context.world.events.emit("write.redo", rt=begun.requested_time, why=error.message)
    return Conflict(verdict=verdict, seen=BaseState.by(begun.snapshot))


def _write_and_publish(
    work: PreparedWrite, begun: StartedWrite, tries: RetryState
) -> CommitResult | Conflict:
    context, plan, workload = work.context, work.plan, work.workload
    refusals, waits = tries.refusals, tries.waits
    # Another may have changed it since the look with which the rows were prepared.
    schema, before = schema_for(context, begun.snapshot, workload, plan)
    refuse_other_key_types(plan, work.schema, schema)
    work = replace(work, schema=schema, schema_before=before)
    if committed_batch(context, plan) is not None:
        # BATCH-1: a twin that published since the last look lies in the base snapshot, where
        # nothing is judged any more; ``write`` answers with its receipt.
        twin = Rejected(RuleId.SAME_BATCH, "the same batch was published meanwhile", ())
        refusals.append(conflict_report_of(begun.requested_time, twin))
        return Conflict(verdict=twin, seen=BaseState.by(begun.snapshot))
    placement = _assigned(work, begun)
    watch, stale = _watched(work, begun, placement)
    if stale is not None:
        refusals.append(conflict_report_of(begun.requested_time, stale))
        return Conflict(verdict=stale, seen=BaseState.by(begun.snapshot))
    seen = BaseState.by(begun.snapshot)
    # A key of a global index may have moved, one that a partial update changes may be gone, and
    # merging again keeps no promise about known keys.
    rules = plan.rules
    anew = rules.lookup.whole_table or rules.changes_known
    anew |= rules.drop_found or rules.refuse_found
    # ``seen`` stays the base snapshot: what else must hold beside these rivals (schema,
    # batch, keys inserted by both) can only be asked once the files are written.
    gives_way = context.limits.gives_way and plan.paced and not work.queued
    elapsed_ms = context.world.clock.monotonic_ms() - tries.started_ms
    look = partial(detect_early, gives_way=gives_way, elapsed_ms=elapsed_ms, told=waits.append)
    # While it holds the queue nobody publishes, and nothing new is met.
    early = look if plan.detect_early and not work.queued else None
    placement, (verdict, met) = announce(context, begun, placement, workload, early, then=gives_way)
    if isinstance(verdict, Rejected) or (isinstance(verdict, Rebase) and anew):
        refusals.append(conflict_report_of(begun.requested_time, verdict))
        return Conflict(verdict=verdict, seen=met)
    if isinstance(verdict, Rebase):
        context.world.events.emit("write.rebased_early", rt=begun.requested_time)
        placement = replace(placement, tasks=rebase_tasks(placement.tasks, verdict))
    tasks, here, refused = _wait_in_line(work, begun, placement, seen, anew=anew)
    if refused is not None:
        refusals.append(conflict_report_of(begun.requested_time, refused.verdict))
        return refused
    placement = replace(placement, tasks=tasks)
    stats = workload.rewrite(tasks) if workload is not None else []
    written = WrittenFiles(
        placement=placement,
        stats=tuple(zip(placement.tasks, stats, strict=True)),
        schema=work.schema,
        schema_before=work.schema_before,
        refusals=tuple(refusals),
        attempts=len(refusals) + 1,
        waits=tuple(waits),
        watch=watch,
    )
    return _publish_written(work, begun, written, seen, tries, here=here, anew=anew)


def _publish_written(
    work: PreparedWrite,
    begun: StartedWrite,
    written: WrittenFiles,
    seen: BaseState,
    tries: RetryState,
    *,
    here: WaitResult | None,
    anew: bool,
) -> CommitResult | Conflict:
    """Ask to be published, merging overlapping file groups again as long as that is enough."""
    context, plan, workload = work.context, work.plan, work.workload
    refusals = tries.refusals
    while True:
        attempted = frozenset[str]() if workload is None else workload.attempted()
        reconcile_files(context, begun, written, attempted)
        candidate = pending_commit_of(context, begun, plan, written)
        tries.offer(context)
        looked = None if here is None else here.looked(context)
        outcome = commit_write(context, begun, candidate, seen, looked)
        if isinstance(outcome, CommittedWrite):
            clean_up(context, begun, outcome.slot)
            return commit_result_of(
                context,
                plan,
                candidate.metadata,
                outcome,
                refusals=refusals,
                redone=_redone(tries, outcome),
            )
        refusals.append(conflict_report_of(begun.requested_time, outcome.verdict))
        context.world.events.emit("write.refused", rt=begun.requested_time, why=refusals[-1].text)
        if isinstance(outcome.verdict, Rejected) or workload is None or anew:
            tries.wasted_bytes += written.bytes_of(None)
            return outcome
        stands = not (work.queued or tries.must_queue(context)) and must_wait_in_line(
            context, candidate.claim
        )
        groups_left = len(written.placement.tasks) - len(outcome.verdict.file_groups)
        if not (stands or work.queued) and tries.queues_rather(context, groups_left=groups_left):
            tries.wasted_bytes += written.bytes_of(None)
            return outcome
        tries.wasted_bytes += written.bytes_of(frozenset(outcome.verdict.file_groups))
        if tries.spent_bound(context) is not None:
            return outcome
        verdict, here = outcome.verdict, None
        tries.groups_redone += 1
        number, announced = tries.groups_redone, AnnouncedRebase()
        if stands:
            announced = announce_rebase(context, written, verdict.file_groups, number=number)
            meet = candidate.logs_may_meet
            # Its files are based on that look then; it goes on to be judged by the one before.
            here = wait_in_line(context, begun, candidate.claim, seen, logs_may_meet=meet)
        if here is not None and isinstance(here.verdict, Rejected):
            refusals.append(conflict_report_of(begun.requested_time, here.verdict))
            return Conflict(verdict=here.verdict, seen=here.seen)
        if here is not None and isinstance(here.verdict, Rebase):
            verdict = here.verdict
        again = rebase(workload, written, verdict, announced, number=number)
        written = replace(again, refusals=tuple(refusals), attempts=len(refusals) + 1)
        seen = outcome.seen


def _wait_in_line(
    work: PreparedWrite,
    begun: StartedWrite,
    placement: FileGroupAssignment,
    seen: BaseState,
    *,
    anew: bool,
) -> tuple[tuple[FileGroupTask, ...], WaitResult | None, Conflict | None]:
    """
    Wait before anything is written for those who are about to change the same file groups.

    Returns the tasks, based on what those made, and its place; or what refuses it.
    """
    claim, meet = planned_write_set(placement), placement.logs_may_meet
    if work.workload is None or anew or work.queued or not must_wait_in_line(work.context, claim):
        return placement.tasks, None, None
    here = wait_in_line(work.context, begun, claim, seen, logs_may_meet=meet)
    if here is None:
        return placement.tasks, None, None
    if isinstance(here.verdict, Rejected):
        return placement.tasks, None, Conflict(verdict=here.verdict, seen=here.seen)
    if isinstance(here.verdict, Rebase):
        return rebase_tasks(placement.tasks, here.verdict), here, None
    return placement.tasks, here, None


def _assigned(work: PreparedWrite, begun: StartedWrite) -> FileGroupAssignment:
    context, plan = work.context, work.plan
    placement = assign_file_groups(
        context,
        begun,
        work.workload,
        plan.rules,
        work.schema,
        files=plan.files,
        delete_partitions=plan.partitions_deleted(begun.snapshot),
    )
    if placement.met is not None:
        if not context.limits.cancels_met_plans:
            raise conflict_error(
                conflict_report_of(begun.requested_time, placement.met), placement.met.rule
            )
        cancel_blocking_plans(context, placement.met.plans)
    return placement


def _watched(
    work: PreparedWrite, begun: StartedWrite, placement: FileGroupAssignment
) -> tuple[ReadValidation | None, Rejected | None]:
    """Who looks after the reads of a plan that has some, and what it meets before it writes."""
    if work.plan.reads is None:
        return None, None
    watch = ReadValidation(work.context, begun, work.plan.reads)
    return watch, watch.before_begin(planned_write_set(placement))


def commit_result_of(
    context: TableContext,
    plan: WriteRequest,
    metadata: CommitMetadata,
    published: CommittedWrite,
    *,
    refusals: Sequence[ConflictReport] = (),
    redone: RetryScope = RetryScope.NOTHING,
    group: int = 1,
    rows: RowCounts | None = None,
) -> CommitResult:
    """
    What a published write is told; ``metadata`` are its own, also in a group.

    Its ``rows`` are said apart where it shares its files with others.
    """
    slot = published.slot
    rows = rows or RowCounts.of(metadata)
    receipt = CommitResult(
        action=slot.action.value,
        operation=plan.operation.value,
        requested_time=slot.requested_time,
        completion_time=slot.completion_time,
        attempts=len(refusals) + 1,
        rows_inserted=rows.inserted,
        rows_updated=rows.updated,
        rows_deleted=rows.deleted,
        files_written=metadata.total_files,
        bytes_written=metadata.total_bytes,
        refusals=tuple(refusals),
        redone=redone.value,
        lost_slots=published.lost_slots,
        schema_changes=_schema_changes(slot.schema_before, slot.schema_after),
        group=group,
    )
    context.world.events.emit(
        "write.done",
        rt=receipt.requested_time,
        ct=receipt.completion_time,
        attempts=receipt.attempts,
        inserted=receipt.rows_inserted,
        updated=receipt.rows_updated,
        group=group,
    )
    return receipt


def _schema_changes(before: str, after: str) -> tuple[ColumnChange, ...]:
    """Of a table's first rows none: there was nothing to change."""
    if not before or not after or before == after:
        return ()
    old, new = TableSchema.from_avro(before), TableSchema.from_avro(after)
    return schema_changes(old.arrow, new.arrow)


def _redone(tries: RetryState, published: CommittedWrite) -> RetryScope:
    """The most that had to be done again."""
    if tries.begun > 1:
        return RetryScope.EVERYTHING
    if tries.groups_redone:
        return RetryScope.FILE_GROUPS
    return RetryScope.PUBLICATION if published.lost_slots else RetryScope.NOTHING


# ------- What a write would meet if it began now: a dry run that begins nothing and writes nothing
#
# It places the rows as the write would and holds the file groups against what others have
# begun and not published: the writes of living writers, as far as they announced what they
# touch, and the clusterings that would refuse the write. Nobody can know who begins in the
# next moment, so an empty answer is no promise; the publication decides.


@dataclass(frozen=True, slots=True, kw_only=True)
class _DryRunBase:
    """The base of a write that does not begin."""

    requested_time: InstantTime
    snapshot: Snapshot


def dry_run_write(
    context: TableContext, plan: WriteRequest, workload: Workload | None
) -> tuple[ConflictReport, ...]:
    """
    What a write would meet if all that others have begun were published first.

    Outside: 1 list, as ``assign_file_groups``; 1 get per pending write, their heartbeats.

    Args:
        context: The table.
        plan: What the write would do.
        workload: The incoming rows; None for ``delete_partition``.

    Returns:
        One report for each of the others that it would meet, by requested time; that of
        pending clusterings last. ``instant`` is empty: there is none.

    Raises:
        InvalidInputError, UnsupportedTableError, MissingFileError: As the write itself would.
    """
    plan = addressed(plan, workload)
    snapshot = context.snapshot()
    plan = with_stored_forms(context, snapshot, plan)
    schema, _ = schema_for(context, snapshot, workload, plan)
    if workload is not None:
        workload.prepare(plan.rules, rows_schema(context, schema, workload, plan))
    now = _DryRunBase(
        requested_time=context.zone.instant_time(context.world.clock.now_ms()), snapshot=snapshot
    )
    placement = assign_file_groups(
        context,
        now,
        workload,
        plan.rules,
        schema,
        files=plan.files,
        delete_partitions=plan.partitions_deleted(snapshot),
    )
    claim = planned_write_set(placement)
    found = []
    for rival in announced_writes(context, snapshot.active):
        verdict = validate_write_set(
            claim,
            max(now.requested_time, rival.completion_time),
            [rival],
            logs_may_meet=placement.logs_may_meet,
        )
        if not isinstance(verdict, Rejected):
            verdict = objection_to(claim, [rival], context.limits.strategy) or verdict
        if not isinstance(verdict, NoConflict):
            found.append(conflict_report_of("", verdict))
    if placement.met is not None and not context.limits.cancels_met_plans:
        found.append(conflict_report_of("", placement.met))
    return tuple(found)


# ----------------------------------------------------------------
# What is left to do of a published write: whether it landed, its markers, its heartbeat (PUB-9).
#
# The write stands: but for the table being another one now (SLOT-10), what fails here is an
# event, never a failed write.

Answer = TypeVar("Answer")


def clean_up(context: TableContext, begun: StartedWrite, slot: Slot) -> None:
    """
    Do all of it, before the writer is told.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``assert_same_table_after_commit``, which is asked meanwhile.
    """
    context.world.together(
        partial(assert_same_table_after_commit, context, slot), partial(_tidy_up, context, begun)
    )
    _advance_low_water_mark(context, begun)


def finish_commit(context: TableContext, begun: StartedWrite, slot: Slot) -> Callable[[], None]:
    """
    Do what must come before anybody is told; calling the answer does the rest, and never fails.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``assert_same_table_after_commit``.
    """
    _, tidy_up = context.world.together(
        partial(assert_same_table_after_commit, context, slot), partial(_found, context, begun)
    )

    def rest() -> None:
        tidy_up()
        _advance_low_water_mark(context, begun)

    return rest


def _found(context: TableContext, begun: StartedWrite) -> Callable[[], None]:
    """What is there to be taken away, which calling the answer does."""

    def nothing() -> None: ...

    find = partial(list_for_delete_markers, context.world.storage, begun.requested_time)
    delete = _guarded(context, begun, find) or nothing

    def tidy_up() -> None:
        context.world.together(partial(_guarded, context, begun, delete), begun.heartbeat.stop)

    return tidy_up


def _tidy_up(context: TableContext, begun: StartedWrite) -> None:
    _found(context, begun)()


def _advance_low_water_mark(context: TableContext, begun: StartedWrite) -> None:
    _guarded(context, begun, partial(advance_low_water_mark, context))


def _guarded(
    context: TableContext, begun: StartedWrite, call: Callable[[], Answer]
) -> Answer | None:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the write is published
        context.world.events.emit("write.cleanup_failed", rt=begun.requested_time, why=str(error))
        return None
