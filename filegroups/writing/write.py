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
from filegroups.schema.evolution import ColumnChange, changes_between
from filegroups.schema.schema import TableSchema
from filegroups.writing.assign_file_groups import Placement, place
from filegroups.writing.commit_result import Receipt, RowCounts, WritePlan
from filegroups.writing.early_conflict_detection import keep_pace, look_early
from filegroups.writing.idempotency import published_batch, receipt_of_batch
from filegroups.writing.pending_commit import (
    Written,
    announce,
    candidate_of,
    planned_claim,
    reconcile,
)
from filegroups.writing.read_validation import ReadWatch
from filegroups.writing.retry_state import Announced, Tries, announce_again, on_newest_files, redo
from filegroups.writing.workload import Workload
from filegroups.writing.write_schema import (
    addressed,
    as_stored,
    refuse_other_key_types,
    rows_schema,
    schema_for,
)
from timeline.commit.admission import holding_the_queue
from timeline.commit.begin import Begun, begin
from timeline.commit.cancel_plan import make_way
from timeline.commit.commit import Met, Published, Seen, publish
from timeline.commit.conflict_report import RefusalReport, as_error, report_of
from timeline.commit.markers import found_markers
from timeline.commit.pending_writes import announced_rivals
from timeline.commit.section import assert_landed
from timeline.commit.waiting_line import Place, await_place, stands_in_line
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
from timeline.rollback.rollback import abandon
from timeline.rules.conflicts import Clean, Rebaseable, Refused, RuleId, judge, objection_to
from timeline.rules.retry import Redo
from timeline.snapshot import Snapshot
from timeline.truncation import keep_up

__all__ = [
    "Receipt",
    "Work",
    "WritePlan",
    "action_of",
    "clean_up",
    "landed",
    "prepared",
    "receipt_of",
    "rehearse",
    "write",
    "write_prepared",
]

_QUEUED_GLANCE_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A write whose rows are prepared: what stays the same during one attempt."""

    context: TableContext
    plan: WritePlan
    workload: Workload | None
    schema: TableSchema
    schema_before: str  # the table's own, "" for none
    queued: bool = False  # nobody else publishes meanwhile


def write(
    context: TableContext,
    plan: WritePlan,
    workload: Workload | None,
    looked: Snapshot | None = None,
) -> Receipt:
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
    known = receipt_of_batch(context, plan)
    if known is not None:
        return known
    asked_at_ms = context.world.clock.monotonic_ms()
    looked = looked or context.glance()
    work = prepared(context, plan, workload, looked)
    if plan.paced and keep_pace(context):
        return write_prepared(work)
    # Preparing a big batch takes long, which is no part of the retries' budget.
    started = context.world.clock.monotonic_ms()
    tries = Tries(started_ms=started)
    fresh = looked if started - asked_at_ms <= context.glance_ms else None
    return _to_its_end(work, tries, _attempt(work, tries, fresh))


def prepared(
    context: TableContext, plan: WritePlan, workload: Workload | None, looked: Snapshot
) -> Work:
    """Fit the rows to the table; nothing is begun, and rows that do not fit are told."""
    plan = addressed(plan, workload)
    plan = as_stored(context, looked, plan)
    schema, before = schema_for(context, looked, workload, plan)
    if workload is not None:
        workload.prepare(plan.rules, rows_schema(context, schema, workload, plan))
    return Work(context=context, plan=plan, workload=workload, schema=schema, schema_before=before)


def write_prepared(work: Work) -> Receipt:
    """Run a write as an instant of its own, from a fresh look. Errors: as ``write``."""
    known = receipt_of_batch(work.context, work.plan)
    if known is not None:
        return known
    tries = Tries(started_ms=work.context.world.clock.monotonic_ms())
    return _to_its_end(work, tries, _afresh(work, tries))


def _to_its_end(work: Work, tries: Tries, outcome: Receipt | Met) -> Receipt:
    context, plan = work.context, work.plan
    while isinstance(outcome, Met):
        if isinstance(outcome.verdict, Refused):
            twin = None
            if outcome.verdict.rule is RuleId.SAME_BATCH:
                twin = receipt_of_batch(context, plan)
            if twin is not None:
                return twin
            if not outcome.verdict.retry_can_succeed:
                rule, wasted = outcome.verdict.rule, tries.wasted_bytes
                raise as_error(tries.refusals[-1], rule, wasted_bytes=wasted)
        bound = tries.spent_bound(context)
        if bound is not None:
            raise _given_up(tries.refusals, outcome.verdict.rule, bound)
        outcome = _again(work, tries)
    return outcome


def _again(work: Work, tries: Tries) -> Receipt | Met:
    """The next attempt, from a fresh look; in the queue where it is short or lost too often."""
    hold_ms = tries.hold_ms(work.context)
    if hold_ms is None:
        tries.pause(work.context)
        return _afresh(work, tries)
    purpose = f"write again after {len(tries.refusals)} conflicts"
    with holding_the_queue(work.context, purpose, ms_max=hold_ms) as held:
        return _afresh(replace(work, context=held, queued=True), tries)


def _afresh(work: Work, tries: Tries) -> Receipt | Met:
    context = work.context
    if work.queued and context.world.storage.capabilities.far:
        # Everybody waits, and this look only says above what a time is drawn: the base snapshot
        # is read afterwards (BEG-4), and tells when it was too low (BEG-5).
        return _attempt(work, tries, context.glance(_QUEUED_GLANCE_MS))
    return _attempt(work, tries, context.snapshot())


def _given_up(
    refusals: Sequence[RefusalReport], rule: RuleId, bound: str
) -> ConflictError | RolledBackError:
    if len(refusals) == 1:
        return as_error(refusals[-1], rule, bound)
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


def _attempt(work: Work, tries: Tries, snapshot: Snapshot | None) -> Receipt | Met:
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
        abandon(context, begun)
        outcome = _met_by_error(context, begun, error, tries.refusals)
        if tries.spent_bound(context) is not None:
            raise
    except Exception:
        abandon(context, begun)
        raise
    except BaseException:
        # Interrupted, perhaps while publishing: delete nothing. Without a heartbeat the next
        # clean rolls it back, or helps it if it was published.
        begun.heartbeat.stop()
        raise
    else:
        if isinstance(outcome, Met):
            abandon(context, begun)
    finally:
        context.pin.release(begun.requested_time)
        context.chain.ended(begun.requested_time)
    return outcome


def _met_by_error(
    context: TableContext,
    begun: Begun,
    error: MissingFileError | HeartbeatExpiredError | RolledBackError,
    refusals: list[RefusalReport],
) -> Met:
    """A base file cleaned meanwhile (hole 12) or a shut-out writer: all is redone."""
    rule = RuleId.SOURCE_NOT_NEWEST
    if not isinstance(error, MissingFileError):
        rule = RuleId.TARGET_OF_ROLLBACK
    verdict = Refused(rule, error.message, ())
    refusals.append(report_of(begun.requested_time, verdict))
    context.world.events.emit("write.redo", rt=begun.requested_time, why=error.message)
    return Met(verdict=verdict, seen=Seen.by(begun.snapshot))


def _write_and_publish(work: Work, begun: Begun, tries: Tries) -> Receipt | Met:
    context, plan, workload = work.context, work.plan, work.workload
    refusals, waits = tries.refusals, tries.waits
    # Another may have changed it since the look with which the rows were prepared.
    schema, before = schema_for(context, begun.snapshot, workload, plan)
    refuse_other_key_types(plan, work.schema, schema)
    work = replace(work, schema=schema, schema_before=before)
    if published_batch(context, plan) is not None:
        # BATCH-1: a twin that published since the last look lies in the base snapshot, where
        # nothing is judged any more; ``write`` answers with its receipt.
        twin = Refused(RuleId.SAME_BATCH, "the same batch was published meanwhile", ())
        refusals.append(report_of(begun.requested_time, twin))
        return Met(verdict=twin, seen=Seen.by(begun.snapshot))
    placement = _placed(work, begun)
    watch, stale = _watched(work, begun, placement)
    if stale is not None:
        refusals.append(report_of(begun.requested_time, stale))
        return Met(verdict=stale, seen=Seen.by(begun.snapshot))
    seen = Seen.by(begun.snapshot)
    # A key of a global index may have moved, one that a partial update changes may be gone, and
    # merging again keeps no promise about known keys.
    rules = plan.rules
    anew = rules.lookup.whole_table or rules.changes_known
    anew |= rules.drop_found or rules.refuse_found
    # ``seen`` stays the base snapshot: what else must hold beside these rivals (schema,
    # batch, keys inserted by both) can only be asked once the files are written.
    gives_way = context.limits.gives_way and plan.paced and not work.queued
    elapsed_ms = context.world.clock.monotonic_ms() - tries.started_ms
    look = partial(look_early, gives_way=gives_way, elapsed_ms=elapsed_ms, told=waits.append)
    # While it holds the queue nobody publishes, and nothing new is met.
    early = look if plan.detect_early and not work.queued else None
    placement, (verdict, met) = announce(context, begun, placement, workload, early, then=gives_way)
    if isinstance(verdict, Refused) or (isinstance(verdict, Rebaseable) and anew):
        refusals.append(report_of(begun.requested_time, verdict))
        return Met(verdict=verdict, seen=met)
    if isinstance(verdict, Rebaseable):
        context.world.events.emit("write.rebased_early", rt=begun.requested_time)
        placement = replace(placement, tasks=on_newest_files(placement.tasks, verdict))
    tasks, here, refused = _in_place(work, begun, placement, seen, anew=anew)
    if refused is not None:
        refusals.append(report_of(begun.requested_time, refused.verdict))
        return refused
    placement = replace(placement, tasks=tasks)
    stats = workload.rewrite(tasks) if workload is not None else []
    written = Written(
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
    work: Work,
    begun: Begun,
    written: Written,
    seen: Seen,
    tries: Tries,
    *,
    here: Place | None,
    anew: bool,
) -> Receipt | Met:
    """Ask to be published, merging overlapping file groups again as long as that is enough."""
    context, plan, workload = work.context, work.plan, work.workload
    refusals = tries.refusals
    while True:
        attempted = frozenset[str]() if workload is None else workload.attempted()
        reconcile(context, begun, written, attempted)
        candidate = candidate_of(context, begun, plan, written)
        tries.offer(context)
        looked = None if here is None else here.looked(context)
        outcome = publish(context, begun, candidate, seen, looked)
        if isinstance(outcome, Published):
            clean_up(context, begun, outcome.slot)
            return receipt_of(
                context,
                plan,
                candidate.metadata,
                outcome,
                refusals=refusals,
                redone=_redone(tries, outcome),
            )
        refusals.append(report_of(begun.requested_time, outcome.verdict))
        context.world.events.emit("write.refused", rt=begun.requested_time, why=refusals[-1].text)
        if isinstance(outcome.verdict, Refused) or workload is None or anew:
            tries.wasted_bytes += written.bytes_of(None)
            return outcome
        stands = not (work.queued or tries.must_queue(context)) and stands_in_line(
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
        number, announced = tries.groups_redone, Announced()
        if stands:
            announced = announce_again(context, written, verdict.file_groups, number=number)
            meet = candidate.logs_may_meet
            # Its files are based on that look then; it goes on to be judged by the one before.
            here = await_place(context, begun, candidate.claim, seen, logs_may_meet=meet)
        if here is not None and isinstance(here.verdict, Refused):
            refusals.append(report_of(begun.requested_time, here.verdict))
            return Met(verdict=here.verdict, seen=here.seen)
        if here is not None and isinstance(here.verdict, Rebaseable):
            verdict = here.verdict
        again = redo(workload, written, verdict, announced, number=number)
        written = replace(again, refusals=tuple(refusals), attempts=len(refusals) + 1)
        seen = outcome.seen


def _in_place(
    work: Work, begun: Begun, placement: Placement, seen: Seen, *, anew: bool
) -> tuple[tuple[FileGroupTask, ...], Place | None, Met | None]:
    """
    Wait before anything is written for those who are about to change the same file groups.

    Returns the tasks, based on what those made, and its place; or what refuses it.
    """
    claim, meet = planned_claim(placement), placement.logs_may_meet
    if work.workload is None or anew or work.queued or not stands_in_line(work.context, claim):
        return placement.tasks, None, None
    here = await_place(work.context, begun, claim, seen, logs_may_meet=meet)
    if here is None:
        return placement.tasks, None, None
    if isinstance(here.verdict, Refused):
        return placement.tasks, None, Met(verdict=here.verdict, seen=here.seen)
    if isinstance(here.verdict, Rebaseable):
        return on_newest_files(placement.tasks, here.verdict), here, None
    return placement.tasks, here, None


def _placed(work: Work, begun: Begun) -> Placement:
    context, plan = work.context, work.plan
    placement = place(
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
            raise as_error(report_of(begun.requested_time, placement.met), placement.met.rule)
        make_way(context, placement.met.plans)
    return placement


def _watched(
    work: Work, begun: Begun, placement: Placement
) -> tuple[ReadWatch | None, Refused | None]:
    """Who looks after the reads of a plan that has some, and what it meets before it writes."""
    if work.plan.reads is None:
        return None, None
    watch = ReadWatch(work.context, begun, work.plan.reads)
    return watch, watch.before_begin(planned_claim(placement))


def receipt_of(
    context: TableContext,
    plan: WritePlan,
    metadata: CommitMetadata,
    published: Published,
    *,
    refusals: Sequence[RefusalReport] = (),
    redone: Redo = Redo.NOTHING,
    group: int = 1,
    rows: RowCounts | None = None,
) -> Receipt:
    """
    What a published write is told; ``metadata`` are its own, also in a group.

    Its ``rows`` are said apart where it shares its files with others.
    """
    slot = published.slot
    rows = rows or RowCounts.of(metadata)
    receipt = Receipt(
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
    return changes_between(old.arrow, new.arrow)


def _redone(tries: Tries, published: Published) -> Redo:
    """The most that had to be done again."""
    if tries.begun > 1:
        return Redo.EVERYTHING
    if tries.groups_redone:
        return Redo.FILE_GROUPS
    return Redo.PUBLICATION if published.lost_slots else Redo.NOTHING


# ------- What a write would meet if it began now: a dry run that begins nothing and writes nothing
#
# It places the rows as the write would and holds the file groups against what others have
# begun and not published: the writes of living writers, as far as they announced what they
# touch, and the clusterings that would refuse the write. Nobody can know who begins in the
# next moment, so an empty answer is no promise; the publication decides.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """The base of a write that does not begin."""

    requested_time: InstantTime
    snapshot: Snapshot


def rehearse(
    context: TableContext, plan: WritePlan, workload: Workload | None
) -> tuple[RefusalReport, ...]:
    """
    What a write would meet if all that others have begun were published first.

    Outside: 1 list, as ``place``; 1 get per pending write, their heartbeats.

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
    plan = as_stored(context, snapshot, plan)
    schema, _ = schema_for(context, snapshot, workload, plan)
    if workload is not None:
        workload.prepare(plan.rules, rows_schema(context, schema, workload, plan))
    now = _Now(
        requested_time=context.zone.instant_time(context.world.clock.now_ms()), snapshot=snapshot
    )
    placement = place(
        context,
        now,
        workload,
        plan.rules,
        schema,
        files=plan.files,
        delete_partitions=plan.partitions_deleted(snapshot),
    )
    claim = planned_claim(placement)
    found = []
    for rival in announced_rivals(context, snapshot.active):
        verdict = judge(
            claim,
            max(now.requested_time, rival.completion_time),
            [rival],
            logs_may_meet=placement.logs_may_meet,
        )
        if not isinstance(verdict, Refused):
            verdict = objection_to(claim, [rival], context.limits.strategy) or verdict
        if not isinstance(verdict, Clean):
            found.append(report_of("", verdict))
    if placement.met is not None and not context.limits.cancels_met_plans:
        found.append(report_of("", placement.met))
    return tuple(found)


# ----------------------------------------------------------------
# What is left to do of a published write: whether it landed, its markers, its heartbeat (PUB-9).
#
# The write stands: but for the table being another one now (SLOT-10), what fails here is an
# event, never a failed write.

Answer = TypeVar("Answer")


def clean_up(context: TableContext, begun: Begun, slot: Slot) -> None:
    """
    Do all of it, before the writer is told.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``assert_landed``, which is asked meanwhile.
    """
    context.world.together(partial(assert_landed, context, slot), partial(_tidy_up, context, begun))
    _keep_up(context, begun)


def landed(context: TableContext, begun: Begun, slot: Slot) -> Callable[[], None]:
    """
    Do what must come before anybody is told; calling the answer does the rest, and never fails.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``assert_landed``.
    """
    _, tidy_up = context.world.together(
        partial(assert_landed, context, slot), partial(_found, context, begun)
    )

    def rest() -> None:
        tidy_up()
        _keep_up(context, begun)

    return rest


def _found(context: TableContext, begun: Begun) -> Callable[[], None]:
    """What is there to be taken away, which calling the answer does."""

    def nothing() -> None: ...

    find = partial(found_markers, context.world.storage, begun.requested_time)
    delete = _guarded(context, begun, find) or nothing

    def tidy_up() -> None:
        context.world.together(partial(_guarded, context, begun, delete), begun.heartbeat.stop)

    return tidy_up


def _tidy_up(context: TableContext, begun: Begun) -> None:
    _found(context, begun)()


def _keep_up(context: TableContext, begun: Begun) -> None:
    _guarded(context, begun, partial(keep_up, context))


def _guarded(context: TableContext, begun: Begun, call: Callable[[], Answer]) -> Answer | None:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the write is published
        context.world.events.emit("write.cleanup_failed", rt=begun.requested_time, why=str(error))
        return None
