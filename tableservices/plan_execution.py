"""Execute a plan: lease it, read it, create its inflight file, and complete it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import count
from typing import TypeVar

from filegroups.metadata_table.contents import PartitionContents, contents_of_commit
from filegroups.metadata_table.file_group_contents import IndexedTable
from filegroups.schema.column_ids import keeps_names
from filegroups.writing.metadata_update import ServiceUpdate
from tableservices.service import pending_plans
from timeline.codecs.instant_avro import CommitBody
from timeline.codecs.legacy_commit import decode_archived_commit
from timeline.commit.apply import data_files_of, delete_from_metadata_table
from timeline.commit.begin import refuse_during_restore
from timeline.commit.cancel_plan import PlanOutcome, plan_outcome
from timeline.commit.commit import CommittedWrite
from timeline.commit.commit_lock import CommitSection
from timeline.commit.markers import delete_markers
from timeline.commit.section import apply_pending_slots, open_commit
from timeline.context import TableContext
from timeline.errors import (
    HeartbeatExpiredError,
    InstantNotFoundError,
    MissingFileError,
    StorageUnavailableError,
    TableReplacedError,
)
from timeline.heartbeat import Heartbeat, is_heartbeat_expired
from timeline.model.commit_metadata import (
    INTERNAL_SCHEMA_KEY,
    SCHEMA_KEY,
    CommitMetadata,
    WriteSet,
    WriteStat,
)
from timeline.model.file_names import (
    HISTORY,
    heartbeat_path,
    instant_file_name,
    parse_base_file_name,
    pending_file_names,
)
from timeline.model.instant import Instant, State
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.slot import Slot, SlotKind
from timeline.pending_plans import pending_rollback_of
from timeline.ports.ports import ClusterExecutor, ObjectMissingError, Ports, create_if_absent
from timeline.rollback.rollback import finish_abandoned, is_abandoned
from timeline.snapshot import Snapshot

# ---- Executor leases: one executor for a plan at a time, to save work (CMP-3)
#
# The lease is the heartbeat of the plan's instant, in Hudi's form. Safety does not depend on
# it (HB-4): two executors write files of the same names, and the slot decides which one
# completes the plan. When an executor dies, another takes over after the tolerated interval.

_FOREIGN_MS = 3_600_000  # how long another engine's executor counts as alive
_REPEAT = "run the service again"
_POLL_MS = 1_000  # poll interval of a process that waits for a plan


class ExecutorState(Enum):
    """Whether an executor may start a plan."""

    FREE = "no executor works on it"
    LEASED = "another executor works on it"
    ENDED = "it was completed or cancelled"


def is_plan_leased(context: TableContext, plan: Instant) -> bool:
    """
    Return whether a live executor seems to have the plan (HB-2).

    Java's executors write no heartbeat. A Java executor that takes up a plan first deletes the
    files written for it. So where Java writers are expected, an inflight plan without a heartbeat
    is left to its owner for an hour; a caller that names the plan may run it earlier. Outside: 1
    stat, 2 where Java writers are expected.
    """
    beats = _beats(context, plan)
    if beats is not None:
        return beats
    if not context.has_foreign_writers:
        return False
    storage = context.ports.storage
    inflight = pending_file_names(plan.action, plan.requested_time)[0]
    begun = storage.stat(context.instant_path(inflight))
    return begun is not None and storage.now_ms() - begun.modified_ms < _FOREIGN_MS


def _beats(context: TableContext, plan: Instant) -> bool | None:
    """Return whether the plan's heartbeat is not expired; None where there is no heartbeat."""
    storage = context.ports.storage
    beat = storage.stat(heartbeat_path(plan.requested_time))
    if beat is None:
        return None
    return not is_heartbeat_expired(beat.modified_ms, storage.now_ms(), context.limits.heartbeat)


def wait_for_executor(
    context: TableContext, plan: Instant, *, wait_ms: int, named: bool = False
) -> ExecutorState:
    """
    Wait until no live executor seems to have the plan, or the plan has ended.

    The heartbeat of a dead executor expires after the tolerated interval (HB-2), and the plan
    becomes free. A shorter wait succeeds only if a live executor finishes. Outside: as
    ``is_plan_leased``, once a second while another executor has the plan; then 1 list more.

    Args:
        context: The table.
        plan: Pending at the last refresh.
        wait_ms: How long to wait, ms; 0 checks once.
        named: Whether the caller named the plan, and so knows that no executor of another engine
            (which writes no heartbeat) works on it.
    """
    clock = context.ports.clock
    until = clock.monotonic_ms() + wait_ms
    waited = False
    while bool(_beats(context, plan)) if named else is_plan_leased(context, plan):
        left = until - clock.monotonic_ms()
        if left <= 0:
            return ExecutorState.LEASED
        if not waited:
            context.ports.events.emit("service.waiting", rt=plan.requested_time, wait_ms=wait_ms)
            waited = True
        clock.sleep_ms(min(left, _POLL_MS))
    if waited and plan.requested_time not in {
        one.requested_time for one in pending_plans(context.active(), plan.action)
    }:
        return ExecutorState.ENDED
    return ExecutorState.FREE


def lease_plan(context: TableContext, plan: Instant) -> Heartbeat | None:
    """
    Lease a plan for this executor; return None when another live executor has it.

    Outside: 1 stat, 1 create, 1 put; taking over an expired lease needs no create.

    Raises:
        StorageUnavailableError: The storage does not answer.
    """
    storage = context.ports.storage
    path = heartbeat_path(plan.requested_time)
    if storage.stat(path) is None:
        if not create_if_absent(storage, path, b"", repeat=_REPEAT, durable=False):
            return None
    elif is_plan_leased(context, plan):
        return None  # a live heartbeat; without one, only a caller that names the plan takes it
    return Heartbeat.start(context.ports, plan.requested_time, context.limits.heartbeat)


@contextmanager
def leased_plan(context: TableContext, plan: Instant) -> Iterator[Heartbeat | None]:
    """
    Hold the lease of a plan for a block. Results, calls outside, errors: as ``lease_plan``.

    If the block fails because its heartbeat expired or files are missing, and the plan has ended,
    the output of the block is deleted (RB-10).
    """
    heartbeat = lease_plan(context, plan)
    if heartbeat is None:
        context.ports.events.emit("service.claimed_elsewhere", rt=plan.requested_time)
        yield None
        return
    try:
        yield heartbeat
    except (HeartbeatExpiredError, MissingFileError) as error:
        if isinstance(error, MissingFileError):
            _end_restore(context, plan)
        with suppress(StorageUnavailableError):
            discard_output_if_ended(context, plan, heartbeat)
        raise
    finally:
        heartbeat.stop()  # after any outcome, so that the plan may run again at once


@contextmanager
def ignore_if_ended(context: TableContext, plan: Instant) -> Iterator[None]:
    """
    Leave the block when files of a plan are missing because the plan has ended.

    A clean deletes them after another executor's result replaced them. A restore deletes them
    before it removes the plan. An executor that slept, or read the plan just before, has nothing
    left to do. Outside: nothing, else 2 lists, and 1 commit section where the plan is pending.

    Raises:
        MissingFileError: They are missing and the plan is pending; cancel the plan.
        Others: As ``timeline.commit.section.apply_pending_slots``.
    """
    try:
        yield
    except MissingFileError:
        _end_restore(context, plan)
        ended = plan_outcome(context.active(), plan)
        if ended not in (PlanOutcome.COMPLETED_BY_OTHER, PlanOutcome.CANCELLED):
            raise
        context.ports.events.emit(
            "service.ended_meanwhile", rt=plan.requested_time, why=ended.value
        )


def _end_restore(context: TableContext, plan: Instant) -> None:
    """
    Finish the restore that is removing a plan, if there is one.

    The restore deletes the files that the plan reads before the plan itself (RST-1). If its owner
    died, perhaps no other process would finish it. Entering the commit section applies the pending
    slot (PUB-3). Outside: 1 list, and 1 commit section where the plan is pending.
    """
    if plan_outcome(context.active(), plan) in (None, PlanOutcome.ROLLED_BACK):
        apply_pending_slots(context, f"wait for {plan.requested_time}")


# ---- Shared by all executors: read the plan, create its inflight file, report the result


def read_requested(context: TableContext, planned: Instant) -> tuple[bytes, str]:
    """
    Return the requested file of a plan, and its path for errors. Outside: 1 get.

    Raises:
        InstantNotFoundError: The plan does not exist any more.
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[-1])
    try:
        return context.ports.storage.read(path), path
    except ObjectMissingError:
        raise InstantNotFoundError(
            "the plan no longer exists, because it was completed or cancelled; 'hoodoo timeline "
            f"show TABLE' lists the pending plans: {planned}",
            kind="plan_unknown",
            requested_time=planned.requested_time,
        ) from None


def make_inflight(context: TableContext, planned: Instant) -> bool:
    """
    Create the plan's inflight file; return whether it existed. Outside: 1 create, 1 get.

    Raises:
        StorageUnavailableError: The storage does not answer.
        TableReplacedError: The table was dropped, and perhaps created again. This executor writes
            nothing more there and deletes the inflight file again (SLOT-10).
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[0])
    if not create_if_absent(context.ports.storage, path, b"", repeat=_REPEAT):
        return True
    try:
        context.commit_log.assert_same_table()
    except TableReplacedError:
        context.ports.storage.delete(path)
        raise
    return False


Task = TypeVar("Task")
Result = TypeVar("Result")


def spreads(ports: Ports) -> bool:
    """Return whether work on file groups runs elsewhere, so that it needs no memory here."""
    return isinstance(ports.executor, ClusterExecutor)


def on_file_groups(
    ports: Ports,
    work: Callable[[Ports, Task], Result],
    tasks: Sequence[Task],
    *,
    size_bytes: int | None = None,
) -> list[Result]:
    """
    Run a function of the ports on one task for each file group; results in task order.

    It runs on the executor's threads, with an event for each task (``service.progress``), or in the
    workers of a ``ClusterExecutor``.

    Args:
        ports: The caller's ports.
        work: The function.
        tasks: One for each file group.
        size_bytes: The files that all tasks read, if one task at a time needs little memory: then
            a ``ClusterExecutor`` may leave them to its threads. None for other work.
    """
    executor = ports.executor
    if isinstance(executor, ClusterExecutor) and (
        size_bytes is None or size_bytes > executor.local_bytes_max
    ):
        return executor.map_on_cluster(work, tasks)
    numbers = count(1)

    def run(task: Task) -> Result:
        result = work(ports, task)
        ports.events.emit("service.progress", done=next(numbers), of=len(tasks))
        return result

    return ports.executor.map(run, tasks)


def commit_metadata(
    context: TableContext,
    operation: str,
    stats: Sequence[WriteStat],
    avro_json: str | None,
    column_ids: str | None = None,
) -> CommitMetadata:
    """
    Return the completed file of a compaction or log compaction.

    Args:
        context: The table.
        operation: Hudi's name of it.
        stats: Of the files written.
        avro_json: The table's schema.
        column_ids: The schema with column ids that the files were written with; None without ids.
    """
    by_partition: dict[str, list[WriteStat]] = {}
    for stat in stats:
        by_partition.setdefault(stat.partition_path or "", []).append(stat)
    extra = context.ports.ids.identity().as_metadata
    if avro_json is not None:
        extra[SCHEMA_KEY] = avro_json
    if column_ids is not None:
        extra[INTERNAL_SCHEMA_KEY] = column_ids
    return CommitMetadata(
        partition_to_write_stats={path: tuple(by_partition[path]) for path in sorted(by_partition)},
        operation_type=operation,
        extra_metadata=extra,
        compacted=True,
    )


# ---- Complete a plan: its result and its cancel compete for a slot, the first one wins (CAN-1)
#
# All slow work precedes the commit section, as in a write. A compaction needs no check of its
# result (CMP-1); another service passes its own check.

#: Whether the result is still valid in this commit section; called again after each lost slot.
PlanCheck = Callable[[CommitSection], bool]


def complete(
    context: TableContext,
    plan: Instant,
    metadata: CommitMetadata,
    *,
    write_set: WriteSet,
    heartbeat: Heartbeat,
    check: PlanCheck | None = None,
) -> CommittedWrite | PlanOutcome:
    """
    Commit the result of an executor, or return why the plan ended otherwise.

    Outside: 1 commit section (lock, list, create), 1 create; then deletes of the markers and the
    heartbeat.

    Args:
        context: The table.
        plan: A pending compaction, log compaction or clustering.
        metadata: The completed file, with the table's schema as the executor read it. The schema of
            the newest commit replaces an older one.
        write_set: The file groups that the result changes.
        heartbeat: The executor's.
        check: A further condition, besides that the plan is pending.

    Raises:
        HeartbeatExpiredError: This process paused too long; another executor may have the plan.
        TableConfigConflictError: Another engine's restore is pending; the plan remains, or the
            restore removes it.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.commit.commit.commit_write``.
    """
    bodies = {metadata.schema_json: CommitBody(metadata)}
    in_metadata_table = ServiceUpdate(
        context, metadata.schema_json, partial(_contents_of, context, metadata)
    )
    in_metadata_table.prepare(plan.requested_time)
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, f"complete {plan.requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            heartbeat.check()
            # A dead engine's pending rollback of an attempt at the plan.
            undone = pending_rollback_of(context, section.timeline, plan.requested_time)
            ended = _end_of(context, section, plan, undone)
            now = _state_in(context, section)
            if ended is None and not (
                (check is None or check(section)) and _keeps_names(metadata, now)
            ):
                ended = PlanOutcome.REJECTED
            if ended is not None:
                break
            schema = now.newest_schema_json or metadata.schema_json
            if schema is not None and schema not in bodies:
                bodies[schema] = CommitBody(_with_schema(metadata, schema, now))
            commit.take(
                section,
                Slot(
                    number=section.head + 1,
                    table_id=context.table_id,
                    kind=SlotKind.COMMIT,
                    action=plan.action,
                    requested_time=plan.requested_time,
                    completion_time=section.draw_time(
                        context, Residue.SLOT_COMPLETION, above=plan.requested_time
                    ),
                    base=section.head,
                    nonce=nonce,
                    owner=section.owner,
                    write_set=write_set,
                    schema_before=schema or "",
                    schema_after=schema or "",
                    body=bodies[schema].bytes_with(section.owner.fencing_token),
                    metadata_update=in_metadata_table.of(
                        section.config(), plan.requested_time, slot_number=section.head + 1
                    ),
                ),
            )
    context.commit_log.ended(plan.requested_time)
    if ended is not None:
        return ended
    slot = commit.taken
    done = Instant(
        action=plan.action.completes_as,
        requested_time=plan.requested_time,
        state=State.COMPLETED,
        completion_time=slot.completion_time,
    )
    own = bodies[slot.schema_after or None].metadata_with(slot.owner.fencing_token)
    context.commits.cache(done, own)
    context.timelines.add(instant_file_name(done))
    _clean_up(context, plan, undone, heartbeat)
    context.ports.events.emit(
        "service.done",
        action=plan.action.value,
        rt=plan.requested_time,
        ct=slot.completion_time,
        number=slot.number,
    )
    return CommittedWrite(slot=slot, lost_slots=commit.lost)


def _end_of(
    context: TableContext, section: CommitSection, plan: Instant, undone: Instant | None
) -> PlanOutcome | None:
    """Return how the plan ended, as of this section; None while it can be completed."""
    ended = plan_outcome(section.timeline, plan)
    if ended is not None:
        return ended
    if undone is not None and not is_abandoned(context, undone):
        return PlanOutcome.ROLLED_BACK  # planned under the lock, executed later (PUB-6)
    refuse_during_restore(section.timeline)
    return None


def _keeps_names(metadata: CommitMetadata, now: Snapshot) -> bool:
    """Return whether the written files have the present names of the columns."""
    written = metadata.extra_metadata.get(INTERNAL_SCHEMA_KEY)
    return keeps_names(written, now.newest_internal_schema_json)


def _clean_up(
    context: TableContext, plan: Instant, undone: Instant | None, heartbeat: Heartbeat
) -> None:
    """Delete what a completed plan no longer needs; a failure is an event (PUB-9)."""
    try:
        delete_markers(context.ports.storage, plan.requested_time)
        heartbeat.stop()
        if undone is not None:  # or its engine would resume it and delete the committed files
            finish_abandoned(context, context.active(), undone)
    except Exception as error:  # noqa: BLE001
        context.ports.events.emit("service.cleanup_failed", rt=plan.requested_time, why=str(error))


def _contents_of(
    context: TableContext,
    metadata: CommitMetadata,
    table: IndexedTable,
    requested_time: InstantTime,
) -> dict[str, PartitionContents]:
    storage, executor = context.ports.storage, context.ports.executor
    return contents_of_commit(
        storage,
        executor,
        table,
        metadata,
        {},
        requested_time=requested_time,
        zone=context.zone,
    )


def _state_in(context: TableContext, section: CommitSection) -> Snapshot:
    """Return the table's present state. Its schema costs 1 get after a commit since the last call."""
    return Snapshot(active=section.timeline, head=section.head, commits=context.commits)


def _with_schema(metadata: CommitMetadata, schema: str, now: Snapshot) -> CommitMetadata:
    entries = {SCHEMA_KEY: schema, INTERNAL_SCHEMA_KEY: now.newest_internal_schema_json}
    kept = {key: text for key, text in entries.items() if text}
    return replace(metadata, extra_metadata={**metadata.extra_metadata, **kept})


def discard_output(
    context: TableContext, plan: Instant, ended: PlanOutcome, heartbeat: Heartbeat
) -> None:
    """
    Delete the output of this executor for a plan that ended otherwise.

    After a cancel, delete every file of the instant, also those written after the canceller listed
    them (RB-10). After a completion elsewhere, the files have the same names and remain. Base files
    that the result does not name are deleted: they belong to file groups that the result left out,
    and are hidden only until the instant is archived (CL-1). Outside: 1 list and the archived
    timeline, the listing of the plan's files, and their deletes.
    """
    storage = context.ports.storage
    ended, archived = _ended_for_sure(context, plan, ended)
    if ended is PlanOutcome.CANCELLED:
        for path in data_files_of(storage, plan.requested_time):
            storage.delete(path)
        delete_from_metadata_table(storage, plan.requested_time)
        for name in pending_file_names(plan.action, plan.requested_time):
            storage.delete(context.instant_path(name))
        delete_markers(storage, plan.requested_time)
    elif ended is PlanOutcome.COMPLETED_BY_OTHER:
        if archived:  # GC-6: an inflight file made too late makes it pending again
            for name in pending_file_names(plan.action, plan.requested_time):
                storage.delete(context.instant_path(name))
        named = _named_by_result(context, plan)
        if named is not None:
            for path in data_files_of(storage, plan.requested_time):
                if path not in named and parse_base_file_name(path.rpartition("/")[2]) is not None:
                    storage.delete(path)
    heartbeat.stop()
    context.ports.events.emit(
        "service.withdrawn", action=plan.action.value, rt=plan.requested_time, why=ended.value
    )


def _ended_for_sure(
    context: TableContext, plan: Instant, ended: PlanOutcome
) -> tuple[PlanOutcome, bool]:
    """
    Return how a plan ended, checked before any delete, and whether only the archive has its result.

    After archiving, an inflight file that an executor created too late equals that of a
    cancelled plan. A cancelled plan seems archived once the timeline begins above it.
    """
    if ended not in (PlanOutcome.CANCELLED, PlanOutcome.COMPLETED_BY_OTHER):
        return ended, False
    done = context.active().find(plan.requested_time, plan.action.completes_as)
    if done is not None and done.completed:
        return PlanOutcome.COMPLETED_BY_OTHER, False
    times = context.archived_timeline.times()
    if plan.requested_time in times.completions:
        return PlanOutcome.COMPLETED_BY_OTHER, True
    return (PlanOutcome.CANCELLED if times.rules_out(plan.requested_time) else ended), False


def _named_by_result(context: TableContext, plan: Instant) -> frozenset[str] | None:
    """Return the files that the plan's completed instant names; None when it is missing."""
    action = plan.action.completes_as
    done = context.active().find(plan.requested_time, action)
    if done is not None and done.completed:
        return frozenset(context.commits.read(done).written_paths())
    row = context.archived_timeline.find(plan.requested_time, action.value)
    if row is None or row.metadata is None:
        return None
    path = f"{HISTORY} ({plan.requested_time})"
    metadata = decode_archived_commit(row.metadata, action=row.action, path=path)
    return frozenset(metadata.written_paths())


def discard_output_if_ended(context: TableContext, plan: Instant, heartbeat: Heartbeat) -> None:
    """
    Delete this executor's output if the plan ended meanwhile, as ``discard_output``.

    If the plan is still pending, keep the output: its next executor uses it.
    """
    ended = plan_outcome(context.active(), plan)
    if ended is not None:
        discard_output(context, plan, ended, heartbeat)
