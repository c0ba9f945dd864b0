"""Commit several writes in one instant: begin once, write concurrently, commit once (GRP-1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from filegroups.files.rewrite import FileGroupTask
from filegroups.group_commit.coalesce import CoalescedWrite, coalesce, member_results_text
from filegroups.group_commit.messages import MemberResult
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.scan import view_of
from filegroups.writing.assign_file_groups import FileGroupAssignment, assign_file_groups
from filegroups.writing.commit_checks import rejected_by
from filegroups.writing.idempotency import committed_batch
from filegroups.writing.metadata_update import MetadataWriter
from filegroups.writing.pending_commit import (
    WrittenFiles,
    announce_tasks,
    commit_facts_of,
    pending_commit_of,
    planned_write_set,
    reconcile_files,
)
from filegroups.writing.workload import Workload
from filegroups.writing.write import PreparedWrite, action_of, commit_result_of, finish_commit
from filegroups.writing.write_request import CommitResult, WriteRequest
from filegroups.writing.write_schema import refuse_other_key_types, schema_for
from timeline.commit.begin import StartedWrite, begin
from timeline.commit.commit import CommittedWrite, commit_write
from timeline.commit.commit_lock import BaseState, PendingCommit
from timeline.commit.concurrent_commits import verdict_on
from timeline.context import TableContext
from timeline.errors import (
    HeartbeatExpiredError,
    InvariantError,
    MissingFileError,
    OutcomeUnknownError,
    RolledBackError,
    SchemaConflictError,
)
from timeline.model.commit_metadata import (
    GROUP_KEY,
    SINK_CHECKPOINT_KEY,
    CommitMetadata,
    FileGroupId,
    WriteSet,
    WriteStat,
)
from timeline.model.instant_time import InstantTime
from timeline.rollback.rollback import discard_attempt
from timeline.rules.conflicts import ConcurrentCommit, NoConflict, Rebase, Rejected

# ---- Order of the logs of a group (GRP-2)
#
# Logs of one instant in one file group count in the order of their write tokens, which readers
# compare as texts (fmt 5.7): ``10-0-0`` sorts before ``9-0-0``. Numbers of equal length keep the
# order of the members.

_ONE_DIGIT: Final = 10  # this many numbers have one digit


def in_text_order(tasks: Sequence[FileGroupTask], count: int) -> tuple[FileGroupTask, ...]:
    """
    Return a member's tasks with write tokens whose text order is the group's task order.

    Args:
        tasks: The tasks of one member, numbered through the whole group.
        count: Number of tasks of all members; task numbers are below it.
    """
    first = 0 if count <= _ONE_DIGIT else 10 ** len(str(count))
    return tuple(
        replace(
            task,
            task_number=first + task.task_number,
            write_token=f"{first + task.task_number}-0-0",
        )
        for task in tasks
    )


# ---- Writes that may share an instant, by their plans and earlier conflicts

_Waiting = TypeVar("_Waiting")


def are_compatible(first: PreparedWrite, other: PreparedWrite) -> bool:
    """
    Return whether two writes differ in their rows only, so that one commit can contain both.

    Overwrites have whole partitions in their write sets and never share an instant. Nor do writes
    with rows on a cluster, whose files only the instant's markers list.
    """
    if first.plan.operation.replaces or first.workload is None or other.workload is None:
        return False
    if first.workload.attempted() is None or other.workload.attempted() is None:
        return False
    if first.plan.reads is not None or other.plan.reads is not None:
        return False  # each is validated by its own reads
    return replace(first.plan, batch_id=None) == replace(other.plan, batch_id=None)


def without_known_conflict(
    waiting: Iterable[_Waiting], conflict_on: Callable[[_Waiting], frozenset[FileGroupId]]
) -> list[_Waiting]:
    """
    Return the waiting writes that may join one group, judging by their last conflicts.

    A write is left out if its last conflict was on the file groups of an earlier one. Writes that
    conflict would be assigned again in each group, only to conflict again. So the first of
    them joins now, the rest later in order.

    Args:
        waiting: The writes, in order.
        conflict_on: Returns the file groups of a write's last conflict in a group.
    """
    chosen, taken = [], set[FileGroupId]()
    for one in waiting:
        if taken.isdisjoint(conflict_on(one)):
            chosen.append(one)
            taken |= conflict_on(one)
    return chosen


# ---- The members of a group as one write (GRP-1)


def merge_members(members: Sequence[WrittenFiles]) -> WrittenFiles:
    """Return the files of all members as those of one write."""
    first = members[0]
    new_rows: dict[str, int] = {}
    for one in members:
        for path, rows in one.assignment.new_rows.items():
            new_rows[path] = new_rows.get(path, 0) + rows
    missed = {path for one in members for path in one.assignment.partitions_without_match}
    assignment = replace(
        first.assignment,
        tasks=tuple(task for one in members for task in one.assignment.tasks),
        partitions_without_match=tuple(sorted(missed)),
        deleted_below_logs={
            key: rows for one in members for key, rows in one.assignment.deleted_below_logs.items()
        },
        new_rows=new_rows,
        outer_folders=tuple(
            sorted({folder for one in members for folder in one.assignment.outer_folders})
        ),
        read_only=tuple(item for one in members for item in one.assignment.read_only),
    )
    stats = tuple(pair for one in members for pair in one.stats)
    return replace(first, assignment=assignment, stats=stats)


def merged_profile(profiles: Sequence[CommitMetadata]) -> CommitMetadata:
    """Return the inflight content of all members: per partition new rows, then updates."""
    inserts: dict[str, int] = {}
    updates: dict[str, list[WriteStat]] = {}
    for profile in profiles:
        for path, (new, *known) in profile.partition_to_write_stats.items():
            inserts[path] = inserts.get(path, 0) + new.num_inserts
            updates.setdefault(path, []).extend(known)
    stats = {
        path: (WriteStat(num_inserts=rows), *updates[path])
        for path, rows in sorted(inserts.items())
    }
    return CommitMetadata(operation_type=profiles[0].operation_type, partition_to_write_stats=stats)


def merged_request(
    first: WriteRequest, plans: Sequence[WriteRequest], parts: Mapping[str, MemberResult]
) -> WriteRequest:
    """Return the write request of all members together, without batch ids."""
    metadata = {**first.extra_metadata, GROUP_KEY: str(len(plans)), **member_results_text(parts)}
    entries = [plan.extra_metadata.get(SINK_CHECKPOINT_KEY) for plan in plans]
    streams = [json.loads(entry) for entry in entries if entry is not None]
    if streams:
        merged = {name: number for stream in streams for name, number in stream.items()}
        metadata[SINK_CHECKPOINT_KEY] = json.dumps(merged, separators=(",", ":"))
    return replace(first, batch_id=None, extra_metadata=metadata)


# ---- The commit of a group (GRP-1)
#
# For many small writes the instant is the cost, not the rows. Each member is validated as if the
# members before it had just been committed (GRP-2), by the usual conflict rules. A member that
# conflicts leaves the group, unless its rows can be coalesced (GRP-7). A member that fails leaves
# no files in it.

#: The outcome of a member's phase: a stat tuple for each of its tasks, or the error.
MemberOutcome = Sequence[tuple[WriteStat, ...]] | Exception
MemberPhase = Callable[[], MemberOutcome]
RunPhases = Callable[[Mapping[int, MemberPhase]], Mapping[int, MemberOutcome]]
#: Receives an instant that is about to commit, and the numbers of the writes in it.
BeforeCommit = Callable[[InstantTime, frozenset[int]], object]
OnConflict = Callable[[int, frozenset[FileGroupId]], object]
#: Names the instant to the writers of these writes; returns the numbers of the lost ones.
NameInstant = Callable[[InstantTime, frozenset[int]], frozenset[int]]


class NotCommitted(Enum):
    """Why a write is not in the group it was offered to; nothing of it was committed."""

    CONFLICTS = "meets"  # conflicts with an earlier member: try the next group
    ALONE = "alone"  # it failed, or the group was rejected: commit alone
    LOST = "lost"  # the process of its writer is lost: no answer is needed


#: The answer to a write of a group.
Answer = CommitResult | NotCommitted | OutcomeUnknownError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One write, or a coalesced one, of a group; ``written`` is set once its files exist."""

    coalesced: CoalescedWrite
    work: PreparedWrite
    workload: Workload
    assignment: FileGroupAssignment
    written: WrittenFiles | None = None
    pending_commit: PendingCommit | None = None

    @property
    def write_set(self) -> WriteSet:
        return (
            planned_write_set(self.assignment)
            if self.pending_commit is None
            else self.pending_commit.write_set
        )


def commit_group(
    context: TableContext,
    works: Sequence[PreparedWrite],
    publishing: BeforeCommit = lambda _time, _numbers: None,
    side_by_side: RunPhases | None = None,
    on_conflict: OnConflict = lambda _number, _groups: None,
    *,
    join: Callable[[], Sequence[PreparedWrite]] = tuple,
    name_instant: NameInstant | None = None,
    later: Callable[[Callable[[], None]], object] = lambda work: work(),
) -> list[Answer]:
    """
    Commit in one instant as many of the writes as do not conflict with each other.

    Args:
        context: The table.
        works: Writes that ``are_compatible`` with the first one; their order is their serial order.
        publishing: Called before the commit, with the requested time and the numbers of the writes
            in the instant. After this call an interruption leaves their outcome unknown.
        side_by_side: Runs the members' phases, by their number, on better threads than those of the
            executor; returns when the last phase ended (PUB-2).
        on_conflict: Called with the number of a write that conflicts with an earlier one, and the file
            groups.
        join: Called once for more such writes, which follow the others: those that arrived during
            the begin, which takes several round trips on a high-latency store.
        name_instant: Names the instant to the writers in other processes, before anything is
            written, and returns the numbers of lost ones (GRP-8). The commit then records the
            result of each write.
        later: Runs the remaining post-commit steps of the group, which never fail and for which no
            writer waits. By default they run at once.

    Returns:
        For each write, those from ``join`` last, its commit result, or why it has none:
        ``OutcomeUnknownError`` if the outcome is unknown.

    Raises:
        LockTimeoutError, StorageUnavailableError: Nothing of the group was committed.
    """
    started = begin(context, action_of(context, works[0].plan.operation), context.cached_snapshot())
    published = False
    placed: dict[int, _Member] = {}
    written: dict[int, _Member] = {}
    answers: list[Answer] = [NotCommitted.ALONE] * len(works)
    try:
        with _ended_by_error(context, started):
            works = [*works, *join()]
            answers = [NotCommitted.ALONE] * len(works)
            run = side_by_side or partial(_by_executor, context)
            fresh = {number: work for number, work in enumerate(works) if _is_fresh(context, work)}
            if name_instant is not None:
                for number in name_instant(started.requested_time, frozenset(fresh)):
                    del fresh[number]
                    answers[number] = NotCommitted.LOST
            joints = coalesce(context, fresh)
            view = _view_for(context, started, joints, run)
            placed = _assigned(context, started, joints, answers, view, on_conflict=on_conflict)
            written = _written(context, started, placed, answers, run) if placed else {}
            if written:
                publishing(started.requested_time, _numbers_of(written))
                named = name_instant is not None
                receipts = _publish(context, started, written, placed, later, named=named)
                published = bool(receipts)
                for number, result in receipts.items():
                    answers[number] = result
    except OutcomeUnknownError as error:
        if not written:
            raise
        # A write that left before is not in that instant, whatever its outcome.
        return [error if n in _numbers_of(written) else one for n, one in enumerate(answers)]
    except (MissingFileError, HeartbeatExpiredError, RolledBackError) as error:
        context.ports.events.emit("group.refused", rt=started.requested_time, why=error.message)
        return [
            one if one in (NotCommitted.CONFLICTS, NotCommitted.LOST) else NotCommitted.ALONE
            for one in answers
        ]
    else:
        if not published:
            discard_attempt(context, started)
    finally:
        context.low_water_mark.release(started.requested_time)
        context.commit_log.ended(started.requested_time)
    return answers


@contextmanager
def _ended_by_error(context: TableContext, started: StartedWrite) -> Iterator[None]:
    """
    Discard the instant after an error, as far as that is safe.

    Raises:
        OutcomeUnknownError: Instead of the error, if a slot may exist (UNK-3).
    """
    try:
        yield
    except OutcomeUnknownError:
        started.heartbeat.stop()  # UNK-3: delete nothing
        raise
    except Exception:
        discard_attempt(context, started)  # GRP-3: one abort for all
        raise
    except BaseException:
        started.heartbeat.stop()  # interrupted, perhaps during the commit: delete nothing
        raise


def _is_fresh(context: TableContext, work: PreparedWrite) -> bool:
    """Return whether the batch is new; else the committed one is in the base snapshot (BATCH-1)."""
    return committed_batch(context, work.plan) is None


def _tell(answers: list[Answer], joint: CoalescedWrite, left: NotCommitted) -> None:
    for number in joint.numbers:
        answers[number] = left


def _numbers_of(members: Mapping[int, _Member]) -> frozenset[int]:
    """Return the numbers of all writes in the members."""
    return frozenset(number for one in members.values() for number in one.coalesced.numbers)


def _view_for(
    context: TableContext,
    started: StartedWrite,
    joints: Sequence[CoalescedWrite],
    side_by_side: RunPhases,
) -> FileSystemView:
    """Return the view for all assignments, its partitions listed concurrently."""
    view = view_of(context, started.snapshot)
    listing = [one for one in joints if not one.work.plan.operation.traits.opens_new_files_only]
    if listing:
        side_by_side({joint.number: partial(_listed, view, joint.work) for joint in listing})
    return view


def _listed(view: FileSystemView, work: PreparedWrite) -> MemberOutcome:
    try:
        view.latest_slices(work.workload.partition_paths() if work.workload else ())
    except Exception as error:  # noqa: BLE001 - the assignment raises it again, for the write
        return error
    return ()


def _assigned(
    context: TableContext,
    started: StartedWrite,
    joints: Sequence[CoalescedWrite],
    answers: list[Answer],
    view: FileSystemView,
    *,
    on_conflict: OnConflict,
) -> dict[int, _Member]:
    """Return the writes without conflicts, by number, with write tokens of their own."""
    members: dict[int, _Member] = {}
    commits: list[ConcurrentCommit] = []  # the earlier members, as later ones see them
    tasks = 0
    for joint in joints:
        try:
            member = _assign_member(context, started, joint, commits, view)
        except Exception as error:  # noqa: BLE001 - the write reports it when it commits alone
            context.ports.events.emit("group.left", rt=started.requested_time, why=str(error))
            continue
        if isinstance(member, NotCommitted):
            _tell(answers, joint, member)
            continue
        if not isinstance(member, _Member):
            _tell(answers, joint, NotCommitted.CONFLICTS)
            for number in joint.numbers:
                on_conflict(number, frozenset(member.file_groups))
            continue
        renumbered = tuple(
            replace(task, task_number=place, write_token=f"{place}-0-0")
            for place, task in enumerate(member.assignment.tasks, start=tasks)
        )
        tasks += len(renumbered)
        placed = replace(member, assignment=replace(member.assignment, tasks=renumbered))
        members[joint.number] = placed
        commits.append(_as_concurrent_commit(started, placed))
    return {number: _in_order(member, tasks) for number, member in members.items()}


def _in_order(member: _Member, count: int) -> _Member:
    tasks = in_text_order(member.assignment.tasks, count)
    return replace(member, assignment=replace(member.assignment, tasks=tasks))


def _assign_member(
    context: TableContext,
    started: StartedWrite,
    joint: CoalescedWrite,
    commits: list[ConcurrentCommit],
    view: FileSystemView,
) -> _Member | NotCommitted | Rebase | Rejected:
    work = joint.work
    plan, workload = work.plan, work.workload
    if workload is None:
        raise InvariantError("a write without rows was offered to a group; report it")
    schema, schema_before = schema_for(context, started.snapshot, workload, plan)
    try:
        refuse_other_key_types(plan, work.schema, schema)
    except SchemaConflictError:
        return NotCommitted.ALONE  # which reports it
    work = replace(work, schema=schema, schema_before=schema_before)
    if any(one.schema != schema.avro_json for one in commits):
        return NotCommitted.CONFLICTS
    files = plan.files
    # If another member fills the same small file, new rows get a file of their own.
    for chosen in (files, replace(files, small_files_max=0)) if commits else (files,):
        assignment = assign_file_groups(
            context, started, workload, plan.rules, schema, files=chosen, view=view
        )
        if assignment.conflict is not None:
            return NotCommitted.ALONE
        member = _Member(coalesced=joint, work=work, workload=workload, assignment=assignment)
        planned = PendingCommit(
            write_set=member.write_set,
            metadata=CommitMetadata(),
            logs_may_conflict=assignment.logs_may_conflict,
        )
        verdict = verdict_on(context, planned, started.requested_time, commits)
        if isinstance(verdict, NoConflict):
            return member
        conflict = verdict
        if conflict.file_groups and _updates(assignment).issuperset(conflict.file_groups):
            break  # another target for new rows does not help
    return conflict


def _updates(assignment: FileGroupAssignment) -> frozenset[FileGroupId]:
    """Return the file groups with keys that a write changes, without those that new rows fill."""
    return frozenset(
        FileGroupId(path, stat.file_id)
        for path, (_, *known) in assignment.profile.partition_to_write_stats.items()
        for stat in known
    )


def _as_concurrent_commit(started: StartedWrite, member: _Member) -> ConcurrentCommit:
    """Return a member as later members see it: committed just before."""
    return ConcurrentCommit(
        action=started.action,
        requested_time=started.requested_time,
        completion_time=started.requested_time,
        write_set=member.write_set,
        schema=member.work.schema.avro_json,
        batches=member.coalesced.batch_ids,
    )


def _written(
    context: TableContext,
    started: StartedWrite,
    placed: dict[int, _Member],
    answers: list[Answer],
    side_by_side: RunPhases,
) -> dict[int, _Member]:
    """Write the members' files; return the members that conflict with no earlier one."""
    placed = _announced(context, started, placed)
    outcomes = side_by_side(
        {number: partial(_rewrite, context, member) for number, member in placed.items()}
    )
    members: dict[int, _Member] = {}
    commits: list[ConcurrentCommit] = []
    for number, member in placed.items():
        outcome = outcomes[number]
        if isinstance(outcome, Exception):
            context.ports.events.emit("group.left", rt=started.requested_time, why=str(outcome))
            continue
        done = _with_files(context, started, member, outcome)
        if _has_no_conflict(context, started, done, commits):
            members[number] = done
            commits.append(_as_concurrent_commit(started, done))
        else:
            _tell(answers, member.coalesced, NotCommitted.CONFLICTS)
    return members


def _announced(
    context: TableContext, started: StartedWrite, placed: dict[int, _Member]
) -> dict[int, _Member]:
    """Announce all members' files at once: one round trip on a high-latency store (PAR-1)."""
    parts = [(member.workload, member.assignment.tasks) for member in placed.values()]
    profile = merged_profile([member.assignment.profile for member in placed.values()])
    shown = announce_tasks(context, started, profile, parts)
    return {
        number: replace(member, assignment=replace(member.assignment, tasks=tasks))
        for (number, member), tasks in zip(placed.items(), shown, strict=True)
    }


def _by_executor(
    context: TableContext, parts: Mapping[int, MemberPhase]
) -> dict[int, MemberOutcome]:
    outcomes = context.ports.executor.map(_carry_out, list(parts.values()))
    return dict(zip(parts, outcomes, strict=True))


def _carry_out(part: MemberPhase) -> MemberOutcome:
    return part()


def _rewrite(context: TableContext, member: _Member) -> MemberOutcome:
    """Write one member's files; return its error, which does not affect the others."""
    try:
        stats = member.workload.rewrite(member.assignment.tasks)
        # Repeated before the slot, where it is free then; here the members' waits overlap.
        context.ports.storage.sync_folders(
            sorted({task.partition_path for task in member.assignment.tasks})
        )
        return stats
    except Exception as error:  # noqa: BLE001 - the write reports it when it commits alone
        return error


def _with_files(
    context: TableContext,
    started: StartedWrite,
    member: _Member,
    stats: Sequence[tuple[WriteStat, ...]],
) -> _Member:
    written = WrittenFiles(
        assignment=member.assignment,
        stats=tuple(zip(member.assignment.tasks, stats, strict=True)),
        schema=member.work.schema,
        schema_before=member.work.schema_before,
        conflicts=(),
        attempts=1,
    )
    batches = member.coalesced.batches()
    pending_commit = pending_commit_of(context, started, member.work.plan, written, batches)
    return replace(member, written=written, pending_commit=pending_commit)


def _has_no_conflict(
    context: TableContext, started: StartedWrite, member: _Member, commits: list[ConcurrentCommit]
) -> bool:
    """Return whether a written member has no conflict with the members before it (GRP-2)."""
    pending_commit, written = _files_of(member)
    if not isinstance(
        verdict_on(context, pending_commit, started.requested_time, commits), NoConflict
    ):
        return False
    mine = commit_facts_of(
        started,
        member.work.plan,
        written,
        pending_commit.write_set,
        pending_commit.batches,
        read_only=pending_commit.read_only,
    )
    return rejected_by(context, mine, commits) is None


def _files_of(member: _Member) -> tuple[PendingCommit, WrittenFiles]:
    if member.pending_commit is None or member.written is None:
        raise InvariantError(
            "a member of a group was used before its files were written; report it"
        )
    return member.pending_commit, member.written


def _publish(
    context: TableContext,
    started: StartedWrite,
    members: dict[int, _Member],
    placed: dict[int, _Member],
    later: Callable[[Callable[[], None]], object],
    *,
    named: bool,
) -> dict[int, CommitResult]:
    """Commit all members as one; return each write's commit result, none after a conflict."""
    files = {number: _files_of(member) for number, member in members.items()}
    together = merge_members([written for _, written in files.values()])
    attempted = [member.workload.attempted() or frozenset() for member in placed.values()]
    # PUB-1: also the files of members that failed or had a conflict.
    reconcile_files(context, started, together, frozenset[str]().union(*attempted))
    batches = tuple(
        batch for pending_commit, _ in files.values() for batch in pending_commit.batches
    )
    first = next(iter(members.values())).work.plan
    plans = [one.plan for member in members.values() for one in member.coalesced.works]
    parts: dict[str, MemberResult] = {}
    for number, member in members.items() if named else ():
        parts |= member.coalesced.member_results(files[number][0].metadata)
    shared = merged_request(first, plans, parts)
    pending_commit = MetadataWriter(context, started).with_update(
        pending_commit_of(context, started, shared, together, batches), together
    )
    outcome = commit_write(context, started, pending_commit, BaseState.by(started.snapshot))
    if not isinstance(outcome, CommittedWrite):
        why = outcome.verdict.why
        context.ports.events.emit("group.refused", rt=started.requested_time, why=why)
        return {}
    tidy_up = finish_commit(context, started, outcome.slot)
    context.ports.events.emit("group.done", rt=started.requested_time, size=len(plans))
    later(tidy_up)
    receipts: dict[int, CommitResult] = {}
    for number, member in members.items():
        joint, whole = member.coalesced, files[number][0].metadata
        members_of = zip(joint.numbers, joint.works, joint.rows_of_each(whole), strict=True)
        for each, work, rows in members_of:
            receipts[each] = commit_result_of(
                context, work.plan, whole, outcome, group=len(plans), rows=rows
            )
    return receipts
