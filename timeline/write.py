"""
The write path, readable top to bottom: plan, begin, place, write, validate, publish.

Each step hands one frozen value to the next. A refused attempt redoes the least: the
overlapping file groups when their newest slice lies below this write's requested time,
everything otherwise, within one budget. Data is never deleted while the outcome of a
publication is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from timeline.begin import Begun, begin, make_inflight
from timeline.boundary import keep_up
from timeline.candidate import Written, candidate_of, planned_claim
from timeline.context import GLANCE_MS, TableContext
from timeline.errors import (
    BudgetSpentError,
    HeartbeatExpiredError,
    InvalidInputError,
    MissingFileError,
    OutcomeUnknownError,
    RolledBackError,
    UnsupportedTableError,
)
from timeline.files.markers import delete_markers, marker_files
from timeline.files.rewrite import FileGroupTask
from timeline.model.claim import FileGroupId
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.instant import Action
from timeline.model.operations import TableType, WriteOperation
from timeline.model.paths import join
from timeline.model.schema import TableSchema, drop_meta, missing_fields, reconcile
from timeline.model.times import InstantTime
from timeline.placing import place
from timeline.publish import Met, Published, Seen, judge_early, publish
from timeline.receipt import Receipt, WritePlan, published_batch
from timeline.refusal import RefusalReport, as_error, report_of
from timeline.rules.conflicts import Rebaseable, Refused, Rival, RuleId
from timeline.rules.retry import pause_ms
from timeline.snapshot import Snapshot
from timeline.undo import abandon
from timeline.workload import Workload

__all__ = ["Receipt", "WritePlan", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What stays the same during one attempt."""

    context: TableContext
    plan: WritePlan
    workload: Workload | None
    schema: TableSchema
    schema_before: str  # the table's own, "" for none


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
        InvalidInputError: The rows do not fit; nothing was begun.
        ConflictError: Refused for good; the fields hold the report.
        BudgetSpentError: Every attempt met a conflict.
        OutcomeUnknownError: Published or not, nobody knows yet; do not repeat blindly.
        HeartbeatExpiredError, RolledBackError: Shut out in every attempt.
        LockTimeoutError, StorageUnavailableError: Something outside did not answer.
    """
    known = published_batch(context, plan)
    if known is not None:
        return known
    _refuse_keyless(plan)
    asked_at_ms = context.world.clock.monotonic_ms()
    looked = looked or context.glance()
    schema, before = _schema_for(context, looked, workload, plan)
    if workload is not None:
        workload.prepare(plan.rules, _rows_schema(context, schema, workload.schema, plan))
    budget = context.limits.retry
    # Preparing a big batch takes long, which is no part of the retries' budget.
    started = context.world.clock.monotonic_ms()
    snapshot = looked if started - asked_at_ms <= GLANCE_MS else None
    refusals: list[RefusalReport] = []
    last: Met | None = None
    for attempt in range(budget.conflict_retries_max + 1):
        if attempt:
            if context.world.clock.monotonic_ms() - started > budget.total_ms_max:
                break
            context.world.clock.sleep_ms(pause_ms(attempt - 1, context.world.ids.jitter(), budget))
            snapshot = context.snapshot()
            schema, before = _schema_for(context, snapshot, workload, plan)
        work = _Work(
            context=context, plan=plan, workload=workload, schema=schema, schema_before=before
        )
        outcome = _attempt(work, refusals, snapshot)
        if isinstance(outcome, Receipt):
            return outcome
        last = outcome
        if isinstance(outcome.verdict, Refused) and outcome.verdict.rule is RuleId.SAME_BATCH:
            twin = published_batch(context, plan)
            if twin is not None:
                return twin
        if isinstance(outcome.verdict, Refused) and not outcome.verdict.retry_can_succeed:
            break
    return _give_up(last, refusals)


def _give_up(last: Met | None, refusals: Sequence[RefusalReport]) -> Receipt:
    if last is not None and (
        len(refusals) == 1
        or (isinstance(last.verdict, Refused) and not last.verdict.retry_can_succeed)
    ):
        raise as_error(refusals[-1], last.verdict.rule)
    raise BudgetSpentError(
        "every attempt met a conflict; write less at once, write at another time, or raise "
        f"hoodie.write.num.retries.on.conflict.failures; last: {refusals[-1].text}",
        attempts=[report.as_document() for report in refusals],
        report=refusals[-1].as_document(),
    )


def action_of(context: TableContext, operation: WriteOperation) -> Action:
    """What a write is on the timeline; one of a merge-on-read table may append."""
    if operation.replaces:
        return Action.REPLACECOMMIT
    merges = context.config.table_type is TableType.MERGE_ON_READ
    return Action.DELTACOMMIT if merges else Action.COMMIT


def _attempt(
    work: _Work, refusals: list[RefusalReport], snapshot: Snapshot | None
) -> Receipt | Met:
    """One instant from its begin to its end; a refused one leaves nothing behind."""
    context = work.context
    begun = begin(context, action_of(context, work.plan.operation), snapshot)
    try:
        outcome = _write_and_publish(work, begun, refusals)
    except OutcomeUnknownError:
        # UNK-3: nothing of it may be deleted; without a heartbeat others will find out.
        begun.heartbeat.stop()
        raise
    except (MissingFileError, HeartbeatExpiredError, RolledBackError) as error:
        abandon(context, begun)
        outcome = _met_by_error(context, begun, error, refusals)
        if len(refusals) > context.limits.retry.conflict_retries_max:
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


def _write_and_publish(work: _Work, begun: Begun, refusals: list[RefusalReport]) -> Receipt | Met:
    context, plan, workload = work.context, work.plan, work.workload
    placement = place(
        context,
        begun,
        workload,
        plan.rules,
        work.schema,
        files=plan.files,
        delete_partitions=plan.partitions_deleted(begun.snapshot),
    )
    make_inflight(context, begun, placement.profile)
    seen = Seen.by(begun.snapshot)
    # A key of a global index may have moved to another file group: it must be found again.
    # One that a partial update changes may be gone.
    anew = plan.rules.lookup.whole_table or plan.rules.partial
    if plan.detect_early:
        # ``seen`` stays the base snapshot: what else must hold beside these rivals (schema,
        # batch, keys inserted by both) can only be asked once the files are written.
        verdict, met = judge_early(context, begun, planned_claim(placement), seen)
        if isinstance(verdict, Refused) or (isinstance(verdict, Rebaseable) and anew):
            refusals.append(report_of(begun.requested_time, verdict))
            return Met(verdict=verdict, seen=met)
        if isinstance(verdict, Rebaseable):
            context.world.events.emit("write.rebased_early", rt=begun.requested_time)
            placement = replace(placement, tasks=_on_newest_files(placement.tasks, verdict))
    stats = workload.rewrite(placement.tasks) if workload is not None else []
    written = Written(
        placement=placement,
        stats=tuple(zip(placement.tasks, stats, strict=True)),
        schema=work.schema,
        schema_before=work.schema_before,
        refusals=tuple(refusals),
        attempts=len(refusals) + 1,
    )
    redone = 0
    while True:
        _reconcile(context, begun, written, workload)
        candidate = candidate_of(context, begun, plan, written)
        outcome = publish(context, begun, candidate, seen)
        if isinstance(outcome, Published):
            return _after(work, begun, candidate.metadata, outcome, written)
        refusals.append(report_of(begun.requested_time, outcome.verdict))
        context.world.events.emit("write.refused", rt=begun.requested_time, why=refusals[-1].text)
        spent = len(refusals) > context.limits.retry.conflict_retries_max
        if isinstance(outcome.verdict, Refused) or spent or anew or workload is None:
            return outcome
        redone += 1
        written = _redo(workload, written, outcome.verdict, redone, refusals)
        seen = outcome.seen


def _redo(
    workload: Workload,
    written: Written,
    verdict: Rebaseable,
    redone: int,
    refusals: Sequence[RefusalReport],
) -> Written:
    """Merge only the overlapping file groups again, on the winner's files."""
    stale = set(verdict.file_groups)
    tasks = {
        FileGroupId(task.partition_path, task.file_id): task for task in written.placement.tasks
    }
    again = []
    for group in sorted(stale):
        base_path, base_time = _newest_file(group, verdict.rivals)
        task = tasks[group]
        again.append(
            replace(
                task,
                write_token=f"{task.task_number}-{redone}-0",
                base_path=base_path,
                base_requested_time=base_time,
            )
        )
    fresh = dict(zip(sorted(stale), zip(again, workload.rewrite(again), strict=True), strict=True))
    stats = tuple(
        fresh.get(FileGroupId(task.partition_path, task.file_id), (task, made))
        for task, made in written.stats
    )
    return replace(
        written,
        stats=stats,
        placement=replace(written.placement, tasks=tuple(task for task, _ in stats)),
        refusals=tuple(refusals),
        attempts=len(refusals) + 1,
    )


def _on_newest_files(
    tasks: Sequence[FileGroupTask], verdict: Rebaseable
) -> tuple[FileGroupTask, ...]:
    """The tasks, those of overlapping file groups based on the winner's files."""
    stale = set(verdict.file_groups)
    moved = []
    for task in tasks:
        group = FileGroupId(task.partition_path, task.file_id)
        if group in stale:
            base_path, base_time = _newest_file(group, verdict.rivals)
            moved.append(replace(task, base_path=base_path, base_requested_time=base_time))
        else:
            moved.append(task)
    return tuple(moved)


def _newest_file(group: FileGroupId, rivals: Sequence[Rival]) -> tuple[str, InstantTime]:
    found = [
        (rival.requested_time, item.files[-1])
        for rival in rivals
        for item in rival.claim.file_groups
        if item.file_group == group and item.files
    ]
    time, name = max(found)
    return join(group.partition_path, name), time


def _reconcile(
    context: TableContext, begun: Begun, written: Written, workload: Workload | None
) -> None:
    """
    Delete what failed or superseded tasks left, make the rest durable (PUB-1, LOC-2).

    A file of this instant that the commit metadata does not name would become visible with
    it (fmt 4.1), so it goes before the slot.
    """
    storage = context.world.storage
    kept = {path for _, stats in written.stats for stat in stats for path in stat.paths}
    attempted = frozenset[str]() if workload is None else workload.attempted()
    if attempted is None:
        marked = marker_files(storage, begun.requested_time)
        attempted = frozenset(join(partition, name) for partition, name, _ in marked)
    for path in sorted(attempted - kept):
        storage.delete(path)
    storage.sync_folders(
        sorted({stat.partition_path or "" for _, stats in written.stats for stat in stats})
    )


def _after(
    work: _Work, begun: Begun, metadata: CommitMetadata, published: Published, written: Written
) -> Receipt:
    """PUB-9: the write stands; what fails from here on is an event, never a failed write."""
    context = work.context
    try:
        delete_markers(context.world.storage, begun.requested_time)
        begun.heartbeat.stop()
        keep_up(context)
    except Exception as error:  # noqa: BLE001 - whatever it is, the write is published
        context.world.events.emit("write.cleanup_failed", rt=begun.requested_time, why=str(error))
    receipt = Receipt(
        action=begun.action.value,
        operation=work.plan.operation.value,
        requested_time=begun.requested_time,
        completion_time=published.completion_time,
        attempts=written.attempts,
        rows_inserted=metadata.total_rows_inserted,
        rows_updated=metadata.total_rows_updated,
        rows_deleted=metadata.total_rows_deleted,
        files_written=metadata.total_files,
        bytes_written=metadata.total_bytes,
        refusals=written.refusals,
    )
    context.world.events.emit(
        "write.done",
        rt=receipt.requested_time,
        ct=receipt.completion_time,
        attempts=receipt.attempts,
        inserted=receipt.rows_inserted,
        updated=receipt.rows_updated,
    )
    return receipt


def _schema_for(
    context: TableContext, snapshot: Snapshot, workload: Workload | None, plan: WritePlan
) -> tuple[TableSchema, str]:
    """The schema to write with, and the table's own before (Avro JSON, "" for none)."""
    text = snapshot.newest_schema_json or context.config.create_schema_json
    _refuse_schema_on_read(snapshot)
    if workload is None or plan.rules.partial or plan.operation is WriteOperation.DELETE:
        if text is None:
            raise UnsupportedTableError(
                "nothing was ever written to this table, so there is nothing to delete or update",
                kind="no_schema",
            )
        schema = TableSchema.from_avro(text)
        return schema, schema.avro_json
    stored = _stored_columns(context, workload.schema)
    if text is None:
        _check_fields(context, workload.schema)
        return TableSchema.from_arrow(stored, context.config.name), ""
    before = TableSchema.from_avro(text)
    changed, _ = reconcile(before, stored, plan.schema)
    return changed, before.avro_json


def _rows_schema(
    context: TableContext, schema: TableSchema, incoming: pa.Schema, plan: WritePlan
) -> TableSchema:
    """
    The columns of the rows as they are written: the table's, or those of a partial update.

    Raises:
        InvalidInputError: A partial update has columns that the table lacks.
        UnsupportedTableError: Nobody could read it.
    """
    chosen = plan.rules.partial_columns
    if chosen is None:
        return schema
    _refuse_partial(context)
    names = drop_meta(_stored_columns(context, incoming)).names
    if chosen:
        names = [name for name in names if name in plan.schema.required.union(chosen)]
    unknown = sorted({*names, *chosen}.difference(schema.arrow.names))
    if unknown:
        raise InvalidInputError(
            "a partial update changes columns that the table has; add new ones with whole rows "
            f"first: {unknown}; it has {schema.arrow.names}",
            kind="unknown_column",
            columns=unknown,
        )
    return schema.only(names)


def _refuse_partial(context: TableContext) -> None:
    config = context.config
    if config.merge.merger is not None:
        raise UnsupportedTableError(
            "a plug-in merges whole rows of this table; upsert whole rows",
            kind="custom_merger_partial",
        )
    if config.table_type is TableType.MERGE_ON_READ and not config.populate_meta_fields:
        raise UnsupportedTableError(
            "Java Hudi cannot read partial updates of a merge-on-read table whose files store no "
            "keys (hoodie.populate.meta.fields); upsert whole rows",
            kind="partial_virtual_keys",
        )


def _refuse_schema_on_read(snapshot: Snapshot) -> None:
    """Rows written without column ids would lose the names that an ``alter table`` gave."""
    if snapshot.newest_internal_schema_json:
        raise UnsupportedTableError(
            "the table's columns have ids (schema on read): this release reads such a table and "
            "does not write it; write with Java Hudi and hoodie.schema.on.read.enable=true",
            kind="schema_on_read",
        )


def _stored_columns(context: TableContext, incoming: pa.Schema) -> pa.Schema:
    """The columns that files will have: partition columns may be in the folder's name only."""
    config = context.config
    if not config.drop_partition_columns:
        return incoming
    return pa.schema([each for each in incoming if each.name not in config.partition_fields])


def _refuse_keyless(plan: WritePlan) -> None:
    """Rows without a key are only ever added: nothing can be found again by it."""
    looks = plan.operation in (WriteOperation.UPSERT, WriteOperation.DELETE) or plan.rules.tags
    if plan.rules.keys.automatic and looks:
        raise InvalidInputError(
            "the table has no record key fields, so its rows cannot be found again; insert, "
            f"bulk_insert or overwrite instead: {plan.operation.value}",
            kind="no_key_fields",
            operation=plan.operation.value,
        )


def _check_fields(context: TableContext, incoming: pa.Schema) -> None:
    """A key, partition or ordering field the data does not have is found before anything begins."""
    config = context.config
    named = (*config.record_key_fields, *config.partition_fields, *config.ordering_fields)
    missing = missing_fields(incoming, named)
    if missing:
        raise InvalidInputError(
            f"the table is keyed, partitioned or ordered by columns the data does not have: "
            f"{missing}; it has {list(incoming.names)}",
            kind="missing_key_column",
            columns=missing,
        )
