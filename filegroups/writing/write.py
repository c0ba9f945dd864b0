"""
The write path from top to bottom: prepare, begin, assign file groups, write, validate, commit.

Each step hands one frozen value to the next. A retry repeats as little as possible: only the
conflicting file groups if their newest slice is below the requested time of the write, else
everything. One budget bounds all attempts. While the outcome of a commit is unknown, no data is
deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from filegroups.schema.evolution import ColumnChange, schema_changes
from filegroups.schema.schema import TableSchema
from filegroups.writing.assign_file_groups import (
    FileGroupAssignment,
    assign_file_groups,
    writes_in_one_pass,
)
from filegroups.writing.commit_checks import ReadValidation
from filegroups.writing.idempotency import committed_batch, result_of_batch
from filegroups.writing.metadata_update import MetadataWriter
from filegroups.writing.one_pass import write_files
from filegroups.writing.pending_commit import (
    WrittenFiles,
    announce,
    detect_early,
    pending_commit_of,
    planned_write_set,
    reconcile_files,
)
from filegroups.writing.retry import (
    AnnouncedRebase,
    announce_rebase,
    rebase,
    rebase_tasks,
    wait_for_rate_limit,
)
from filegroups.writing.stored_forms import with_stored_forms
from filegroups.writing.workload import OnePassWorkload, Workload
from filegroups.writing.write_request import CommitResult, RowCounts, WriteRequest
from filegroups.writing.write_schema import (
    addressed,
    refuse_other_key_types,
    rows_schema,
    schema_for,
)
from timeline.commit.begin import StartedWrite, begin
from timeline.commit.cancel_plan import cancel_blocking_plans
from timeline.commit.commit import CommittedWrite, Conflict, commit_write
from timeline.commit.commit_lock import BaseState, keep_commit_lock
from timeline.commit.conflict_report import (
    ConflictReport,
    WaitReport,
    conflict_error,
    conflict_report_of,
)
from timeline.commit.markers import delete_markers
from timeline.commit.section import protocol_of
from timeline.commit.waiting_line import WaitResult, wait_in_line
from timeline.context import TableContext
from timeline.errors import (
    BudgetSpentError,
    ConflictError,
    HeartbeatExpiredError,
    MissingFileError,
    OutcomeUnknownError,
    RolledBackError,
    counted,
)
from timeline.model.commit_metadata import CommitMetadata, TableType, WriteOperation
from timeline.model.instant import Action
from timeline.model.slot import Slot
from timeline.rollback.rollback import discard_attempt
from timeline.rules.conflicts import (
    Rebase,
    Rejected,
    RuleId,
)
from timeline.rules.retry import (
    RetryScope,
    exhausted_limit,
    keep_lock_ms,
    pause_ms,
    pause_within_limit,
)
from timeline.snapshot import Snapshot
from timeline.truncation import advance_low_water_mark

_QUEUED_GLANCE_MS = 10_000

#: Retries under the shared lock before a holder takes the lock alone, which ends the sharing for
#: all holders. This is the number of retries that the default allows.
_FIRST_WITHOUT = 3


@dataclass(slots=True)
class RetryState:
    """The attempts of one write so far."""

    started_ms: int
    attempts: int = 0
    groups_rebased: int = 0  # in the current attempt
    wasted_bytes: int = 0
    last_pause_ms: int = 0
    conflicts: list[ConflictReport] = field(default_factory=list)
    waits: list[WaitReport] = field(default_factory=list)
    attempt_started_ms: int = 0  # begin of the last attempt, on the monotonic clock
    commit_started_ms: int | None = None  # when it first asked to commit

    def start_attempt(self, context: TableContext) -> None:
        """Note that one more attempt begins."""
        self.attempts += 1
        self.groups_rebased = 0
        self.attempt_started_ms = context.ports.clock.monotonic_ms()
        self.commit_started_ms = None

    def start_commit(self, context: TableContext) -> None:
        """Note that the attempt asks to commit; later time includes waiting for others."""
        if self.commit_started_ms is None:
            self.commit_started_ms = context.ports.clock.monotonic_ms()

    def spent_bound(self, context: TableContext) -> str | None:
        """Return the option that forbids a further retry; None while retries are allowed."""
        return exhausted_limit(
            context.limits.retry,
            conflicts=len(self.conflicts),
            elapsed_ms=self._elapsed_ms(context),
            wasted_bytes=self.wasted_bytes,
        )

    def keep_lock_ms(self, context: TableContext) -> int | None:
        """Return how long the next attempt may keep the commit lock, as ``keep_lock_ms``."""
        ended_ms = self.commit_started_ms
        if ended_ms is None:
            ended_ms = context.ports.clock.monotonic_ms()
        return keep_lock_ms(
            context.limits.retry,
            conflicts=len(self.conflicts),
            work_ms=ended_ms - self.attempt_started_ms,
            refresh_ms=context.last_refresh.took_ms
            if context.ports.storage.capabilities.high_latency
            else 0,
            first_without=_FIRST_WITHOUT if protocol_of(context).shares_lock() else 0,
        )

    def must_keep_lock(self, context: TableContext) -> bool:
        """Return whether the options make the next retry keep the commit lock, however long."""
        return self.keep_lock_ms(context) == 0

    def prefers_lock(self, context: TableContext, *, groups_left: int) -> bool:
        """
        Return whether to retry everything under the commit lock, although a rebase might be enough.

        A rebase saves most if many file groups stay valid, and no writer waits for it. So it is
        tried once first.
        """
        held_ms = self.keep_lock_ms(context)
        if held_ms is None:
            return False
        return held_ms == 0 or groups_left == 0 or self.groups_rebased > 0

    def pause(self, context: TableContext) -> None:
        """Sleep before everything is repeated, so that other writers commit first."""
        ports, budget = context.ports, context.limits.retry
        self.last_pause_ms = pause_ms(
            self.attempts - 1, ports.ids.jitter(), budget, previous_ms=self.last_pause_ms
        )
        elapsed_ms = self._elapsed_ms(context)
        ports.clock.sleep_ms(pause_within_limit(budget, self.last_pause_ms, elapsed_ms=elapsed_ms))

    def _elapsed_ms(self, context: TableContext) -> int:
        return context.ports.clock.monotonic_ms() - self.started_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A write whose rows are prepared: the values that stay the same during one attempt."""

    context: TableContext
    plan: WriteRequest
    workload: Workload | None
    schema: TableSchema
    schema_before: str  # schema of the table, "" for none
    queued: bool = False  # it keeps the commit lock: no other writer commits


def write(
    context: TableContext,
    plan: WriteRequest,
    workload: Workload | None,
    cached: Snapshot | None = None,
) -> CommitResult:
    """
    Run one write until it is committed, rejected for good, or of unknown outcome.

    Args:
        context: The table.
        plan: The write request.
        workload: The incoming rows; None for ``delete_partition``.
        cached: A cached snapshot of the table, if the caller has one.

    Raises:
        InvalidInputError: The rows do not fit, or another operation has the batch id. The write
            did not begin.
        ConflictError: Rejected for good; the fields contain the report, or those of all attempts.
        OutcomeUnknownError: The outcome is unknown; do not repeat the write blindly.
        HeartbeatExpiredError, RolledBackError: The writer was fenced in every attempt.
        LockTimeoutError, StorageUnavailableError: The lock or the storage did not answer.
    """
    plan = addressed(plan, workload)
    known = None if plan.batch_id is None else result_of_batch(context, plan)
    if known is not None:
        return known
    asked_at_ms = context.ports.clock.monotonic_ms()
    cached = cached or context.cached_snapshot()
    work = prepare_write(context, plan, workload, cached)
    limited = plan.rate_limited and context.limits.rate_limit is not None
    if limited and wait_for_rate_limit(context):
        return write_prepared(work)
    # The retry budget does not count the preparation, which takes long for a big batch.
    began_ms = context.ports.clock.monotonic_ms()
    tries = RetryState(started_ms=began_ms)
    fresh = cached if began_ms - asked_at_ms <= context.cached_snapshot_age_ms else None
    return _to_its_end(work, tries, _attempt(work, tries, fresh))


def prepare_write(
    context: TableContext,
    plan: WriteRequest,
    workload: Workload | None,
    snapshot: Snapshot,
    *,
    counts_rows: bool = False,
) -> PreparedWrite:
    """
    Fit the rows to the table before the write begins. Raise if they do not fit.

    A workload of one pass shows bad rows only when it writes them, unless ``counts_rows``.
    """
    plan = addressed(plan, workload)
    plan = with_stored_forms(context, snapshot, plan)
    schema, before = schema_for(context, snapshot, workload, plan)
    if workload is not None:
        own = rows_schema(context, schema, workload, plan)
        one_pass = not counts_rows and writes_in_one_pass(
            workload, plan.rules, plan.files, snapshot
        )
        if one_pass and isinstance(workload, OnePassWorkload):
            workload.prepare_one_pass(plan.rules, own)
        else:
            workload.prepare(plan.rules, own)
    return PreparedWrite(
        context=context, plan=plan, workload=workload, schema=schema, schema_before=before
    )


def write_prepared(work: PreparedWrite) -> CommitResult:
    """Run a write as an instant of its own, from a fresh snapshot. Errors: as ``write``."""
    known = None if work.plan.batch_id is None else result_of_batch(work.context, work.plan)
    if known is not None:
        return known
    tries = RetryState(started_ms=work.context.ports.clock.monotonic_ms())
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
                raise conflict_error(tries.conflicts[-1], rule, wasted_bytes=wasted)
        bound = tries.spent_bound(context)
        if bound is not None:
            raise _give_up(tries.conflicts, outcome.verdict.rule, bound)
        outcome = _next_attempt(work, tries)
    return outcome


def _next_attempt(work: PreparedWrite, tries: RetryState) -> CommitResult | Conflict:
    """Make the next attempt from a fresh snapshot; keep the commit lock if the rules allow it."""
    hold_ms = tries.keep_lock_ms(work.context)
    if hold_ms is None:
        tries.pause(work.context)
        return _from_start(work, tries)
    purpose = f"write again after {counted(len(tries.conflicts), 'conflict')}"
    with keep_commit_lock(work.context, purpose, ms_max=hold_ms) as held:
        return _from_start(replace(work, context=held, queued=True), tries)


def _from_start(work: PreparedWrite, tries: RetryState) -> CommitResult | Conflict:
    context = work.context
    if work.queued and context.ports.storage.capabilities.high_latency:
        # The other writers wait, so a cached snapshot is enough: it only bounds the drawn time.
        # The base snapshot is read later (BEG-4) and shows if the time was too low (BEG-5).
        return _attempt(work, tries, context.cached_snapshot(_QUEUED_GLANCE_MS))
    return _attempt(work, tries, context.snapshot())


def _give_up(
    refusals: Sequence[ConflictReport], rule: RuleId, bound: str
) -> ConflictError | RolledBackError:
    if len(refusals) == 1:
        return conflict_error(refusals[-1], rule, bound)
    return BudgetSpentError(
        "every attempt had a conflict: write fewer rows at once, write at another time, or raise "
        f"{bound}; last: {refusals[-1].text}",
        attempts=[report.as_document() for report in refusals],
        report=refusals[-1].as_document(),
        bound=bound,
    )


def action_of(context: TableContext, operation: WriteOperation) -> Action:
    """Return the action of a write; on a merge-on-read table it may append."""
    if operation.replaces:
        return Action.REPLACECOMMIT
    merges = context.config.table_type is TableType.MERGE_ON_READ
    return Action.DELTACOMMIT if merges else Action.COMMIT


def _attempt(
    work: PreparedWrite, tries: RetryState, snapshot: Snapshot | None
) -> CommitResult | Conflict:
    """Run one instant from begin to end; a rejected one leaves nothing behind."""
    context = work.context
    tries.start_attempt(context)
    started = begin(context, action_of(context, work.plan.operation), snapshot)
    try:
        outcome = _write_and_publish(work, started, tries)
    except OutcomeUnknownError:
        # UNK-3: delete nothing. The heartbeat stops, so that another process resolves the write.
        started.heartbeat.stop()
        raise
    except (MissingFileError, HeartbeatExpiredError, RolledBackError) as error:
        discard_attempt(context, started)
        outcome = _conflict_of_error(context, started, error, tries)
        if tries.spent_bound(context) is not None:
            raise
    except Exception:
        discard_attempt(context, started)
        raise
    except BaseException:
        # Interrupted, perhaps during the commit: delete nothing. Without a heartbeat the next
        # clean rolls the write back, or applies its slot if it was committed.
        started.heartbeat.stop()
        raise
    else:
        if isinstance(outcome, Conflict):
            discard_attempt(context, started)
    finally:
        context.low_water_mark.release(started.requested_time)
        context.commit_log.ended(started.requested_time)
    return outcome


def _conflict(
    started: StartedWrite,
    tries: RetryState,
    verdict: Rebase | Rejected,
    base_state: BaseState | None = None,
) -> Conflict:
    """Note the report of a conflict and return it; by default it is one with the base snapshot."""
    tries.conflicts.append(conflict_report_of(started.requested_time, verdict))
    return Conflict(verdict=verdict, base_state=base_state or BaseState.by(started.snapshot))


def _conflict_of_error(
    context: TableContext,
    started: StartedWrite,
    error: MissingFileError | HeartbeatExpiredError | RolledBackError,
    tries: RetryState,
) -> Conflict:
    """
    Return a conflict that repeats the whole write.

    A base file was cleaned meanwhile (hole 12), or the writer is fenced.
    """
    rule = RuleId.SOURCE_NOT_NEWEST
    if not isinstance(error, MissingFileError):
        rule = RuleId.TARGET_OF_ROLLBACK
    context.ports.events.emit("write.redo", rt=started.requested_time, why=error.message)
    return _conflict(started, tries, Rejected(rule, error.message, ()))


def _write_and_publish(
    work: PreparedWrite, started: StartedWrite, tries: RetryState
) -> CommitResult | Conflict:
    context, plan, workload = work.context, work.plan, work.workload
    refusals, waits = tries.conflicts, tries.waits
    # Another writer may have changed the schema since the rows were prepared.
    schema, before = schema_for(context, started.snapshot, workload, plan)
    refuse_other_key_types(plan, work.schema, schema)
    work = replace(work, schema=schema, schema_before=before)
    if plan.batch_id is not None and committed_batch(context, plan) is not None:
        # BATCH-1: the same batch was committed before the base snapshot, so validation does not
        # see it. ``write`` returns its commit result.
        twin = Rejected(RuleId.SAME_BATCH, "a concurrent commit has the same batch id", ())
        return _conflict(started, tries, twin)
    assignment = _assigned(work, started)
    watch, stale = _watched(work, started, assignment)
    if stale is not None:
        return _conflict(started, tries, stale)
    seen = BaseState.by(started.snapshot)
    needs_lookup = plan.rules.depends_on_lookup
    # ``seen`` stays the base snapshot: the other checks against these concurrent commits (schema,
    # batch, keys inserted by both) need the written files.
    waits_for_announced = (
        context.limits.waits_for_announced and plan.rate_limited and not work.queued
    )
    elapsed_ms = context.ports.clock.monotonic_ms() - tries.started_ms
    detection = partial(
        detect_early,
        waits_for_announced=waits_for_announced,
        elapsed_ms=elapsed_ms,
        report_wait=waits.append,
    )
    # No other writer commits while this one keeps the commit lock, so no conflict can appear.
    early = detection if plan.detect_early and not work.queued else None
    assignment, (verdict, base_state) = announce(
        context, started, assignment, workload, early, then=waits_for_announced
    )
    if isinstance(verdict, Rejected) or (isinstance(verdict, Rebase) and needs_lookup):
        return _conflict(started, tries, verdict, base_state)
    if isinstance(verdict, Rebase):
        context.ports.events.emit("write.rebased_early", rt=started.requested_time)
        assignment = replace(assignment, tasks=rebase_tasks(assignment.tasks, verdict))
    here = _wait_in_line(work, started, assignment, seen, needs_lookup=needs_lookup)
    if here is not None and isinstance(here.verdict, Rejected):
        return _conflict(started, tries, here.verdict, here.base_state)
    if here is not None and isinstance(here.verdict, Rebase):
        assignment = replace(assignment, tasks=rebase_tasks(assignment.tasks, here.verdict))
    assignment, stats = write_files(context, started, workload, plan.rules, assignment)
    written = WrittenFiles(
        assignment=assignment,
        stats=tuple(zip(assignment.tasks, stats, strict=True)),
        schema=work.schema,
        schema_before=work.schema_before,
        conflicts=tuple(refusals),
        attempts=len(refusals) + 1,
        waits=tuple(waits),
        read_validation=watch,
    )
    return _publish_written(
        work, started, written, seen, tries, here=here, needs_lookup=needs_lookup
    )


def _publish_written(
    work: PreparedWrite,
    started: StartedWrite,
    written: WrittenFiles,
    seen: BaseState,
    tries: RetryState,
    *,
    here: WaitResult | None,
    needs_lookup: bool,
) -> CommitResult | Conflict:
    """Commit the written files; rebase conflicting file groups as long as that is enough."""
    context, plan, workload = work.context, work.plan, work.workload
    refusals = tries.conflicts
    metadata = MetadataWriter(context, started)
    while True:
        attempted = frozenset[str]() if workload is None else workload.attempted()
        reconcile_files(context, started, written, attempted)
        pending_commit = pending_commit_of(context, started, plan, written)
        pending_commit = metadata.with_update(pending_commit, written)
        tries.start_commit(context)
        state = None if here is None else here.timeline_state(context)
        outcome = commit_write(context, started, pending_commit, seen, state)
        if isinstance(outcome, CommittedWrite):
            clean_up(context, started, outcome.slot)
            return commit_result_of(
                context,
                plan,
                pending_commit.metadata,
                outcome,
                refusals=refusals,
                redone=_redone(tries, outcome),
            )
        refusals.append(conflict_report_of(started.requested_time, outcome.verdict))
        context.ports.events.emit("write.refused", rt=started.requested_time, why=refusals[-1].text)
        if isinstance(outcome.verdict, Rejected) or workload is None or needs_lookup:
            tries.wasted_bytes += written.bytes_of(None)
            return outcome
        may_wait = not (work.queued or tries.must_keep_lock(context))
        write_set = pending_commit.write_set
        must_wait = may_wait and protocol_of(context).must_wait_in_line(write_set)
        groups_left = len(written.assignment.tasks) - len(outcome.verdict.file_groups)
        if not (must_wait or work.queued) and tries.prefers_lock(context, groups_left=groups_left):
            tries.wasted_bytes += written.bytes_of(None)
            return outcome
        tries.wasted_bytes += written.bytes_of(frozenset(outcome.verdict.file_groups))
        if tries.spent_bound(context) is not None:
            return outcome
        verdict, here = outcome.verdict, None
        tries.groups_rebased += 1
        number, announced = tries.groups_rebased, AnnouncedRebase()
        if must_wait:
            announced = announce_rebase(
                context, workload, written, verdict.file_groups, number=number
            )
            logs_may_conflict = pending_commit.logs_may_conflict
            # The rebased files use this newer state; validation still starts at the older one.
            here = wait_in_line(
                context, started, write_set, seen, logs_may_conflict=logs_may_conflict
            )
        if here is not None and isinstance(here.verdict, Rejected):
            return _conflict(started, tries, here.verdict, here.base_state)
        if here is not None and isinstance(here.verdict, Rebase):
            verdict = here.verdict
        again = rebase(workload, written, verdict, announced, number=number)
        written = replace(again, conflicts=tuple(refusals), attempts=len(refusals) + 1)
        seen = outcome.base_state


def _wait_in_line(
    work: PreparedWrite,
    started: StartedWrite,
    assignment: FileGroupAssignment,
    seen: BaseState,
    *,
    needs_lookup: bool,
) -> WaitResult | None:
    """Wait, before any file is written, for earlier writers of the same file groups."""
    write_set, logs_may_conflict = planned_write_set(assignment), assignment.logs_may_conflict
    may_wait = not (work.workload is None or needs_lookup or work.queued)
    if not (may_wait and protocol_of(work.context).must_wait_in_line(write_set)):
        return None
    return wait_in_line(work.context, started, write_set, seen, logs_may_conflict=logs_may_conflict)


def _assigned(work: PreparedWrite, started: StartedWrite) -> FileGroupAssignment:
    context, plan = work.context, work.plan
    assignment = assign_file_groups(
        context,
        started,
        work.workload,
        plan.rules,
        work.schema,
        files=plan.files,
        delete_partitions=plan.partitions_deleted(started.snapshot),
    )
    if assignment.conflict is not None:
        if not context.limits.cancels_conflicting_plans:
            raise conflict_error(
                conflict_report_of(started.requested_time, assignment.conflict),
                assignment.conflict.rule,
            )
        cancel_blocking_plans(context, assignment.conflict.plans)
    return assignment


def _watched(
    work: PreparedWrite, started: StartedWrite, assignment: FileGroupAssignment
) -> tuple[ReadValidation | None, Rejected | None]:
    """Return the validation of the plan's reads, if any, and its verdict before the write."""
    if work.plan.reads is None:
        return None, None
    watch = ReadValidation(work.context, started, work.plan.reads)
    return watch, watch.validate_before_begin(planned_write_set(assignment))


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
    Return the commit result of a committed write.

    Args:
        context: The table.
        plan: The write request.
        metadata: The commit metadata of this write, also in a group.
        published: The committed slot.
        refusals: Reports of rejected attempts.
        redone: How much was repeated.
        group: Writes in this instant.
        rows: Row counts of this write, if it shares its files with other writes.
    """
    slot = published.slot
    rows = rows or RowCounts.of(metadata)
    result = CommitResult(
        action=slot.action.value,
        operation=plan.operation_name,
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
    context.ports.events.emit(
        "write.done",
        rt=result.requested_time,
        ct=result.completion_time,
        attempts=result.attempts,
        inserted=result.rows_inserted,
        updated=result.rows_updated,
        group=group,
    )
    return result


def _schema_changes(before: str, after: str) -> tuple[ColumnChange, ...]:
    """Return the changes of the columns; none for a table's first rows."""
    if not before or not after or before == after:
        return ()
    old, new = TableSchema.from_avro(before), TableSchema.from_avro(after)
    return schema_changes(old.arrow, new.arrow)


def _redone(tries: RetryState, published: CommittedWrite) -> RetryScope:
    """Return the widest scope that was repeated."""
    if tries.attempts > 1:
        return RetryScope.EVERYTHING
    if tries.groups_rebased:
        return RetryScope.FILE_GROUPS
    return RetryScope.PUBLICATION if published.lost_slots else RetryScope.NOTHING


# ---- Post-commit steps: same-table check, markers, heartbeat (PUB-9)
#
# The write is committed. A failure here is an event, not a failed write, unless the table was
# replaced (SLOT-10).


def clean_up(context: TableContext, started: StartedWrite, slot: Slot) -> None:
    """
    Do all post-commit steps before ``write`` returns.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``CommitProtocol.assert_same_table``, which runs
            at the same time.
    """
    context.ports.concurrently(
        partial(protocol_of(context).assert_same_table, slot), partial(_tidy_up, context, started)
    )
    _advance_low_water_mark(context, started)


def finish_commit(context: TableContext, started: StartedWrite, slot: Slot) -> Callable[[], None]:
    """
    Do the post-commit steps that must precede the result; return a callable that does the rest.

    The callable never raises.

    Raises:
        TableReplacedError, OutcomeUnknownError: As ``CommitProtocol.assert_same_table``.
    """
    protocol_of(context).assert_same_table(slot)

    def rest() -> None:
        _tidy_up(context, started)
        _advance_low_water_mark(context, started)

    return rest


def _tidy_up(context: TableContext, started: StartedWrite) -> None:
    delete = partial(delete_markers, context.ports.storage, started.requested_time)
    context.ports.concurrently(partial(_guarded, context, started, delete), started.heartbeat.stop)


def _advance_low_water_mark(context: TableContext, started: StartedWrite) -> None:
    _guarded(context, started, partial(advance_low_water_mark, context))


def _guarded(context: TableContext, started: StartedWrite, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the write is committed
        context.ports.events.emit("write.cleanup_failed", rt=started.requested_time, why=str(error))
