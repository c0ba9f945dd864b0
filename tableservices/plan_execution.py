"""Execute a plan: lease it, read it, show that it has begun, and complete it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from itertools import count
from typing import TypeVar

from tableservices.schedule_plan import pending_plans
from timeline.codecs.commit_body import CommitBody, decode_archived_commit
from timeline.commit.apply import data_files_of
from timeline.commit.begin import refuse_during_restore
from timeline.commit.cancel_plan import PlanOutcome, plan_outcome
from timeline.commit.commit import CommittedWrite
from timeline.commit.concurrent_commits import pending_rollback_of
from timeline.commit.markers import delete_markers
from timeline.commit.section import commit_in_section
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.errors import (
    HeartbeatExpiredError,
    InstantNotFoundError,
    MissingFileError,
    StorageUnavailableError,
    TableReplacedError,
)
from timeline.heartbeat import Heartbeat, is_heartbeat_expired
from timeline.layout import HISTORY, heartbeat_path
from timeline.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from timeline.model.file_names import instant_file_name, parse_base_file_name, pending_file_names
from timeline.model.instant import Instant, State
from timeline.model.slot import Slot, SlotKind
from timeline.model.write_set import WriteSet
from timeline.ports.ports import ClusterExecutor, Ports
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError, ObjectMissingError
from timeline.properties.setting_enums import ForeignWriters
from timeline.rollback.abandoned_foreign import is_abandoned
from timeline.rollback.rollback import finish_abandoned
from timeline.rules.instant_times import Residue
from timeline.snapshot import Snapshot

__all__ = [
    "ExecutorState",
    "PlanCheck",
    "commit_metadata",
    "complete",
    "discard_output",
    "discard_output_if_ended",
    "ignore_if_ended",
    "is_plan_leased",
    "lease_plan",
    "leased_plan",
    "make_inflight",
    "on_file_groups",
    "read_requested",
    "spreads",
    "wait_for_executor",
]

# --------------------------------- Claims: one executor for a plan at a time, to save work (CMP-3)
#
# The claim is the heartbeat of the plan's instant, in Hudi's form. Safety never rests on it
# (HB-4): two executors make files of the same names, and the slot decides who completes. An
# executor that dies stops beating, and whoever comes after the tolerated silence takes over.

_FOREIGN_MS = 3_600_000  # for how long another engine's executor is taken for alive
_LOOK_MS = 1_000  # how soon a free plan is noticed by who waits for it


class ExecutorState(Enum):
    """How a plan stands for who would carry it out."""

    FREE = "nobody is at it"
    HELD = "another executor is at it"
    ENDED = "it was completed or cancelled"


def is_plan_leased(context: TableContext, plan: Instant) -> bool:
    """
    Whether an executor of the plan seems to live (HB-2).

    Java's executors do not beat, and one that takes up a plan first deletes what was written
    for it. So where they are expected, an inflight plan without a heartbeat is left to its
    owner for an hour; who knows better names the plan. Outside: 1 stat, 2 beside them.
    """
    beats = _beats(context, plan)
    if beats is not None:
        return beats
    if context.limits.foreign_writers is not ForeignWriters.EXPECTED:
        return False
    storage = context.world.storage
    inflight = pending_file_names(plan.action, plan.requested_time)[0]
    begun = storage.stat(context.instant_path(inflight))
    return begun is not None and storage.now_ms() - begun.modified_ms < _FOREIGN_MS


def _beats(context: TableContext, plan: Instant) -> bool | None:
    """Whether the plan's heartbeat is of somebody who lives; None where there is none."""
    storage = context.world.storage
    beat = storage.stat(heartbeat_path(plan.requested_time))
    if beat is None:
        return None
    return not is_heartbeat_expired(beat.modified_ms, storage.now_ms(), context.limits.heartbeat)


def wait_for_executor(
    context: TableContext, plan: Instant, *, wait_ms: int, named: bool = False
) -> ExecutorState:
    """
    Wait until no executor of a plan seems to live, or the plan has ended.

    An executor that dies is silent for as long as is tolerated (HB-2), and then the plan is
    free; a shorter wait outlasts only the living. Outside: as ``is_plan_leased``, and once a
    second while another executor is at it; 1 list more when one was.

    Args:
        context: The table.
        plan: Pending when it was looked at last.
        wait_ms: For how long; 0 only looks.
        named: Whether somebody names the plan, who then knows that no executor of another
            engine, which does not beat, is at it.
    """
    clock = context.world.clock
    until = clock.monotonic_ms() + wait_ms
    waited = False
    while bool(_beats(context, plan)) if named else is_plan_leased(context, plan):
        left = until - clock.monotonic_ms()
        if left <= 0:
            return ExecutorState.HELD
        if not waited:
            context.world.events.emit("service.waiting", rt=plan.requested_time, wait_ms=wait_ms)
            waited = True
        clock.sleep_ms(min(left, _LOOK_MS))
    if waited and plan.requested_time not in {
        one.requested_time for one in pending_plans(context.active(), plan.action)
    }:
        return ExecutorState.ENDED
    return ExecutorState.FREE


def lease_plan(context: TableContext, plan: Instant) -> Heartbeat | None:
    """
    Become the executor of a plan; None when another one lives.

    Outside: 1 stat, 1 create, 1 put; a dead one's claim is taken over without the create.

    Raises:
        StorageUnavailableError: The storage does not answer.
    """
    storage = context.world.storage
    path = heartbeat_path(plan.requested_time)
    if storage.stat(path) is None:
        try:
            storage.create(path, b"", durable=False)
        except ObjectExistsError:
            return None
        except AmbiguousWriteError as error:
            raise StorageUnavailableError(
                f"the storage did not answer; run the service again: {path}", path=path
            ) from error
    elif is_plan_leased(context, plan):
        return None  # a beat that lives; without one, who names the plan takes it
    return Heartbeat.start(context.world, plan.requested_time, context.limits.heartbeat)


@contextmanager
def leased_plan(context: TableContext, plan: Instant) -> Iterator[Heartbeat | None]:
    """
    Be the executor of a plan for a while. Answers, calls outside, errors: ``lease_plan``'s.

    One that slept while others ended the plan, or misses files since, takes back what it wrote
    (RB-10).
    """
    heartbeat = lease_plan(context, plan)
    if heartbeat is None:
        context.world.events.emit("service.claimed_elsewhere", rt=plan.requested_time)
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
        heartbeat.stop()  # whatever happened: the plan may be run again at once


@contextmanager
def ignore_if_ended(context: TableContext, plan: Instant) -> Iterator[None]:
    """
    Leave the block where files of a plan are gone because somebody ended it meanwhile.

    A clean takes them once another executor's result has replaced them, a restore before it takes
    the plan; who slept, or had read the plan just before, has nothing left to do. Outside: nothing,
    else 2 lists, and 1 turn where the plan is pending.

    Raises:
        MissingFileError: They are gone and the plan is pending: it can only be cancelled.
        Others: As ``timeline.commit.section.commit_in_section``.
    """
    try:
        yield
    except MissingFileError:
        _end_restore(context, plan)
        ended = plan_outcome(context.active(), plan)
        if ended not in (PlanOutcome.COMPLETED_ELSEWHERE, PlanOutcome.CANCELLED):
            raise
        context.world.events.emit(
            "service.ended_meanwhile", rt=plan.requested_time, why=ended.value
        )


def _end_restore(context: TableContext, plan: Instant) -> None:
    """
    Finish the restore that is taking a plan away, if there is one.

    It deletes what the plan reads before the plan (RST-1), and nobody else may come after its owner
    died. A turn settles what it finds (PUB-3). Outside: 1 list, and 1 turn where the plan is pending.
    """
    if plan_outcome(context.active(), plan) in (None, PlanOutcome.ROLLED_BACK):
        commit_in_section(context, f"look what becomes of {plan.requested_time}", lambda _: None)


# ------------ What all who carry out a plan do: read it, show that it is begun, tell what was made


def read_requested(context: TableContext, planned: Instant) -> tuple[bytes, str]:
    """
    The requested file of a plan, and its path for errors. Outside: 1 get.

    Raises:
        InstantNotFoundError: There is no such plan any more.
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[-1])
    try:
        return context.world.storage.read(path), path
    except ObjectMissingError:
        raise InstantNotFoundError(
            f"there is no such plan any more: {planned}",
            kind="plan_unknown",
            requested_time=planned.requested_time,
        ) from None


def make_inflight(context: TableContext, planned: Instant) -> bool:
    """
    Show that the plan is carried out; whether somebody had begun before. Outside: 1 create, 1 get.

    Raises:
        StorageUnavailableError: The storage does not answer.
        TableReplacedError: The table was dropped, and perhaps another one made: nothing more is
            written there, and what shows the plan is gone again (SLOT-10).
    """
    path = context.instant_path(pending_file_names(planned.action, planned.requested_time)[0])
    try:
        context.world.storage.create(path, b"")
    except ObjectExistsError:
        return True
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; run the service again: {path}", path=path
        ) from error
    try:
        context.chain.assert_same_table()
    except TableReplacedError:
        context.world.storage.delete(path)
        raise
    return False


Task = TypeVar("Task")
Result = TypeVar("Result")


def spreads(world: Ports) -> bool:
    """Whether work on file groups is sent elsewhere, so that it costs this process no memory."""
    return isinstance(world.executor, ClusterExecutor)


def on_file_groups(
    world: Ports, work: Callable[[Ports, Task], Result], tasks: Sequence[Task]
) -> list[Result]:
    """
    Run a function of the ports on one task for each file group; results in task order.

    On the executor's threads, each told as an event (``service.progress``), or wherever a
    ``ClusterExecutor`` sends it.
    """
    if isinstance(world.executor, ClusterExecutor):
        return world.executor.spread(work, tasks)
    numbers = count(1)

    def told(task: Task) -> Result:
        result = work(world, task)
        world.events.emit("service.progress", done=next(numbers), of=len(tasks))
        return result

    return world.executor.map(told, tasks)


def commit_metadata(
    context: TableContext, operation: str, stats: Sequence[WriteStat], avro_json: str | None
) -> CommitMetadata:
    """
    The completed file of a compaction, also of logs.

    Args:
        context: The table.
        operation: Hudi's name of it.
        stats: What was written.
        avro_json: The table's schema.
    """
    by_partition: dict[str, list[WriteStat]] = {}
    for stat in stats:
        by_partition.setdefault(stat.partition_path or "", []).append(stat)
    extra = context.world.ids.identity().as_metadata
    if avro_json is not None:
        extra[SCHEMA_KEY] = avro_json
    return CommitMetadata(
        partition_to_write_stats={path: tuple(by_partition[path]) for path in sorted(by_partition)},
        operation_type=operation,
        extra_metadata=extra,
        compacted=True,
    )


# --- Completing a plan: the slot of its result or that of its cancel, whichever came first (CAN-1)
#
# The same turn as a write's: everything slow is done before. What a service must ask before
# its result may stand (nothing for a compaction, CMP-1) is a check of its own.

#: Whether the result may stand in this turn, asked again after each lost slot.
PlanCheck = Callable[[CommitSection], bool]


def complete(
    context: TableContext,
    plan: Instant,
    metadata: CommitMetadata,
    *,
    claim: WriteSet,
    heartbeat: Heartbeat,
    check: PlanCheck | None = None,
) -> CommittedWrite | PlanOutcome:
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
            ``timeline.commit.commit.publish``.
    """
    bodies = {metadata.schema_json: CommitBody(metadata)}
    nonce = context.world.ids.nonce()
    ended = PlanOutcome.CANCELLED
    undone: Instant | None = None  # by another engine that is gone: a try at the plan

    def decide(turn: CommitSection) -> Slot | None:
        nonlocal ended, undone
        heartbeat.check()
        why = plan_outcome(turn.timeline, plan)
        undone = pending_rollback_of(context, turn.timeline, plan.requested_time)
        if why is None and undone is not None and not is_abandoned(context, undone):
            why = PlanOutcome.ROLLED_BACK  # planned under the lock, and carried out without (PUB-6)
        if why is None:
            refuse_during_restore(turn.timeline)
        if why is None and check is not None and not check(turn):
            why = PlanOutcome.REFUSED
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

    slot, lost = commit_in_section(context, f"complete {plan.requested_time}", decide)
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
            finish_abandoned(context, context.active(), undone)
    except Exception as error:  # noqa: BLE001
        context.world.events.emit("service.cleanup_failed", rt=plan.requested_time, why=str(error))
    context.world.events.emit(
        "service.done",
        action=plan.action.value,
        rt=plan.requested_time,
        ct=slot.completion_time,
        number=slot.number,
    )
    return CommittedWrite(slot=slot, lost_slots=lost)


def _schema_in(context: TableContext, turn: CommitSection) -> str | None:
    """The table's schema now. Outside: 1 get when a commit came since it was last asked."""
    now = Snapshot(active=turn.timeline, head=turn.head, commits=context.commits)
    return now.newest_schema_json


def _with_schema(metadata: CommitMetadata, schema: str) -> CommitMetadata:
    return replace(metadata, extra_metadata={**metadata.extra_metadata, SCHEMA_KEY: schema})


def discard_output(
    context: TableContext, plan: Instant, ended: PlanOutcome, heartbeat: Heartbeat
) -> None:
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
    if ended is PlanOutcome.CANCELLED:
        for path in data_files_of(storage, plan.requested_time):
            storage.delete(path)
        for name in pending_file_names(plan.action, plan.requested_time):
            storage.delete(context.instant_path(name))
        delete_markers(storage, plan.requested_time)
    elif ended is PlanOutcome.COMPLETED_ELSEWHERE:
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


def _ended_for_sure(
    context: TableContext, plan: Instant, ended: PlanOutcome
) -> tuple[PlanOutcome, bool]:
    """
    How a plan ended, asked before any delete, and whether the history alone has its result.

    Once it is archived, an inflight file that its executor made too late looks like one of a plan
    that was cancelled; and what was cancelled looks archived once the timeline begins above it.
    """
    if ended not in (PlanOutcome.CANCELLED, PlanOutcome.COMPLETED_ELSEWHERE):
        return ended, False
    done = context.active().find(plan.requested_time, plan.action.completes_as)
    if done is not None and done.completed:
        return PlanOutcome.COMPLETED_ELSEWHERE, False
    times = context.history.times()
    if plan.requested_time in times.completions:
        return PlanOutcome.COMPLETED_ELSEWHERE, True
    return (PlanOutcome.CANCELLED if times.rules_out(plan.requested_time) else ended), False


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


def discard_output_if_ended(context: TableContext, plan: Instant, heartbeat: Heartbeat) -> None:
    """
    As ``discard_output``, by an executor that slept, where somebody ended the plan meanwhile.

    A plan that is pending still keeps what was made: whoever carries it out uses it.
    """
    ended = plan_outcome(context.active(), plan)
    if ended is not None:
        discard_output(context, plan, ended, heartbeat)
