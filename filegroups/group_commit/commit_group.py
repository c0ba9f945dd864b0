"""Commit several writes in one instant: begin once, write side by side, commit once (GRP-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from filegroups.files.rewrite import FileGroupTask
from filegroups.group_commit.coalesce import CoalescedWrite, coalesce, member_results_text
from filegroups.group_commit.messages import MemberResult, PeerLostError
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.read import view_of
from filegroups.writing.assign_file_groups import FileGroupAssignment, assign_file_groups
from filegroups.writing.commit_checks import rejected_by
from filegroups.writing.commit_result import CommitResult, WriteRequest
from filegroups.writing.idempotency import committed_batch
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
from filegroups.writing.write_schema import refuse_other_key_types, schema_for
from timeline.commit.begin import StartedWrite, begin
from timeline.commit.commit import (
    BaseState,
    CommittedWrite,
    PendingCommit,
    commit_write,
    verdict_on,
)
from timeline.context import TableContext
from timeline.errors import (
    HeartbeatExpiredError,
    HoodooError,
    InvariantError,
    MissingFileError,
    OutcomeUnknownError,
    RolledBackError,
    SchemaConflictError,
)
from timeline.model.commit_metadata import CommitMetadata, WriteOperation, WriteStat
from timeline.model.instant import Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import FileGroupId, WriteSet
from timeline.rollback.rollback import discard_attempt, rollback
from timeline.rules.conflicts import ConcurrentCommit, NoConflict, Rebase, Rejected

__all__ = [
    "GROUP_KEY",
    "Answer",
    "MemberOutcome",
    "MemberPhase",
    "NotCommitted",
    "OnConflict",
    "RunPhases",
    "are_compatible",
    "commit_group",
    "in_text_order",
    "merge_members",
    "merged_profile",
    "merged_request",
    "without_known_conflict",
]

# -------------------------------------------- The order in which the logs of a group count (GRP-2)
#
# Those of one instant in one file group count in the order of their tokens, which every reader
# compares as texts (fmt 5.7): ``10-0-0`` comes before ``9-0-0``. Numbers of equal length keep the
# order of the members.

_ONE_DIGIT: Final = 10  # so many numbers have one


def in_text_order(tasks: Sequence[FileGroupTask], count: int) -> tuple[FileGroupTask, ...]:
    """
    Tasks that are numbered through a whole group, with tokens whose order as texts is that.

    Args:
        tasks: Of one member.
        count: Of all members; numbers are below it.
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


# ------ Which of some waiting writes may share an instant, as far as their plans and the past tell

_Waiting = TypeVar("_Waiting")


def are_compatible(first: PreparedWrite, other: PreparedWrite) -> bool:
    """
    Whether two writes ask for the same thing with other rows, so that one commit can say it.

    Overwrites claim whole partitions and are never shared; nor are rows of a cluster, whose
    files only the markers of an instant tell.
    """
    if first.plan.operation.replaces or first.workload is None or other.workload is None:
        return False
    if first.workload.attempted() is None or other.workload.attempted() is None:
        return False
    if first.plan.reads is not None or other.plan.reads is not None:
        return False  # each is judged by what it read
    return replace(first.plan, batch_id=None) == replace(other.plan, batch_id=None)


def without_known_conflict(
    waiting: Iterable[_Waiting], met_on: Callable[[_Waiting], frozenset[FileGroupId]]
) -> list[_Waiting]:
    """
    Those of some waiting writes that did not meet in an earlier group what one before them did.

    Writes that meet are placed anew in each group they are offered to, only to meet again; the
    first of them goes now, and the others in their order.

    Args:
        waiting: In their order.
        met_on: On which file groups one met somebody, when it was last offered.
    """
    chosen, taken = [], set[FileGroupId]()
    for one in waiting:
        if taken.isdisjoint(met_on(one)):
            chosen.append(one)
            taken |= met_on(one)
    return chosen


# -------- The members of a group as one write: what it intends, and the files it publishes (GRP-1)

#: Extra metadata of a commit: how many writes share it.
GROUP_KEY = "hoodoo.group"


def merge_members(members: Sequence[WrittenFiles]) -> WrittenFiles:
    """The files of all members as those of one write."""
    first = members[0]
    new_rows: dict[str, int] = {}
    for one in members:
        for path, rows in one.placement.new_rows.items():
            new_rows[path] = new_rows.get(path, 0) + rows
    missed = {path for one in members for path in one.placement.missed_in}
    placement = replace(
        first.placement,
        tasks=tuple(task for one in members for task in one.placement.tasks),
        missed_in=tuple(sorted(missed)),
        sought={key: rows for one in members for key, rows in one.placement.sought.items()},
        new_rows=new_rows,
        inside=tuple(sorted({folder for one in members for folder in one.placement.inside})),
        read_only=tuple(item for one in members for item in one.placement.read_only),
    )
    stats = tuple(pair for one in members for pair in one.stats)
    return replace(first, placement=placement, stats=stats)


def merged_profile(profiles: Sequence[CommitMetadata]) -> CommitMetadata:
    """The inflight content of all members: per partition one stat of new rows, then the updates."""
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
    first: WriteRequest, size: int, parts: Mapping[str, MemberResult]
) -> WriteRequest:
    """What the members ask for together; their batches are told by themselves."""
    told = {**first.extra_metadata, GROUP_KEY: str(size), **member_results_text(parts)}
    return replace(first, batch_id=None, extra_metadata=told)


# --------- Several writes in one instant: begun once, written side by side, published once (GRP-1)
#
# For many small writes the instant is the cost, not their rows. Members are judged as if those
# before them in the group had been published just before (GRP-2), by the rules for strangers:
# whoever meets one of them is not in this group, but for upserts whose rows can be written as one
# (GRP-7). Whoever fails leaves nothing in it.

#: What a member's part came to: a stat tuple for each of its tasks, or why there is none.
MemberOutcome = Sequence[tuple[WriteStat, ...]] | Exception
MemberPhase = Callable[[], MemberOutcome]
RunPhases = Callable[[Mapping[int, MemberPhase]], Mapping[int, MemberOutcome]]
#: Told of an instant that is about to be published, and the numbers of the writes in it.
BeforeCommit = Callable[[InstantTime, frozenset[int]], object]
OnConflict = Callable[[int, frozenset[FileGroupId]], object]


class NotCommitted(Enum):
    """Why a write is not in the group it was offered to; nothing of it was published."""

    MEETS = "meets"  # one before it: the next group may have it
    ALONE = "alone"  # it failed, or the group was refused: as its own instant it is told why
    LOST = "lost"  # its writer, another process, is gone or silent: nobody waits for an answer


#: What a write of a group is told.
Answer = CommitResult | NotCommitted | OutcomeUnknownError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """What is written as one in a group; ``written`` once its files are."""

    joint: CoalescedWrite
    work: PreparedWrite
    workload: Workload
    placement: FileGroupAssignment
    written: WrittenFiles | None = None
    candidate: PendingCommit | None = None

    @property
    def claim(self) -> WriteSet:
        return planned_write_set(self.placement) if self.candidate is None else self.candidate.claim


class _LostWhileWritingError(Exception):
    """Writers of other processes were lost, and may write files still."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(f"{len(numbers)} writers were lost while they wrote")
        self.numbers = tuple(numbers)


def commit_group(
    context: TableContext,
    works: Sequence[PreparedWrite],
    publishing: BeforeCommit = lambda _time, _numbers: None,
    side_by_side: RunPhases | None = None,
    meeting: OnConflict = lambda _number, _groups: None,
    *,
    join: Callable[[], Sequence[PreparedWrite]] = tuple,
    later: Callable[[Callable[[], None]], object] = lambda work: work(),
) -> list[Answer]:
    """
    Publish as many of some writes as do not meet in one instant.

    Args:
        context: The table.
        works: Writes that ``are_compatible`` with the first one; their order is their serial order.
        publishing: Told the requested time before the publication, and the numbers of the writes
            in it, from where on an interruption leaves an unknown outcome of these.
        side_by_side: Carries out the members' parts, by their number, where there are better
            threads for them than the executor's; answers when the last one ended (PUB-2).
        meeting: Told the number of a write that met one before it, and on which file groups.
        join: Asked once for more such writes, which come after the others: those that came
            while the instant was begun, which takes several rounds where the storage is far away.
        later: Takes what is left to do of a published group, which nobody needs to wait for:
            it never fails. Done at once where nothing is said.

    Returns:
        For each write, those that joined last, its receipt, or why it has none. An
        ``OutcomeUnknownError`` of those that are published or not, nobody knows yet.

    Raises:
        LockTimeoutError, StorageUnavailableError: Nothing of the group was published.
    """
    begun = begin(context, action_of(context, works[0].plan.operation), context.glance())
    published = False
    placed: dict[int, _Member] = {}
    written: dict[int, _Member] = {}
    answers: list[Answer] = [NotCommitted.ALONE] * len(works)
    try:
        with _ended_by_error(context, begun):
            works = [*works, *join()]
            answers = [NotCommitted.ALONE] * len(works)
            run = side_by_side or partial(_by_executor, context)
            fresh = {number: work for number, work in enumerate(works) if _is_fresh(context, work)}
            joints = coalesce(context, fresh, begun.requested_time)
            view = _view_for(context, begun, joints, run)
            placed = _assigned(context, begun, joints, answers, view, meeting=meeting)
            written = _written(context, begun, placed, answers, run) if placed else {}
            if written:
                publishing(begun.requested_time, _numbers_of(written))
                receipts = _publish(context, begun, written, placed, later)
                published = bool(receipts)
                for number, receipt in receipts.items():
                    answers[number] = receipt
    except OutcomeUnknownError as error:
        if not written:
            raise
        # Who left before is not in that instant, whatever becomes of it.
        return [error if n in _numbers_of(written) else one for n, one in enumerate(answers)]
    except (MissingFileError, HeartbeatExpiredError, RolledBackError) as error:
        context.world.events.emit("group.refused", rt=begun.requested_time, why=error.message)
        return [
            one if one in (NotCommitted.MEETS, NotCommitted.LOST) else NotCommitted.ALONE
            for one in answers
        ]
    except _LostWhileWritingError as error:
        _end_for_good(context, begun)  # GRP-5
        for number, member in placed.items():
            _tell(
                answers,
                member.joint,
                NotCommitted.LOST if number in error.numbers else NotCommitted.MEETS,
            )
        return answers
    else:
        if not published:
            discard_attempt(context, begun)
    finally:
        context.pin.release(begun.requested_time)
        context.chain.ended(begun.requested_time)
    return answers


@contextmanager
def _ended_by_error(context: TableContext, begun: StartedWrite) -> Iterator[None]:
    """
    What an error leaves of the instant is taken away, as far as that may be.

    Raises:
        OutcomeUnknownError: Instead of the error, behind a slot that may stand (UNK-3).
    """
    try:
        yield
    except OutcomeUnknownError:
        begun.heartbeat.stop()  # nothing of it may be deleted
        raise
    except _LostWhileWritingError:
        raise
    except Exception:
        discard_attempt(context, begun)  # GRP-3: one abort for all
        raise
    except BaseException:
        begun.heartbeat.stop()  # interrupted, perhaps while publishing: delete nothing
        raise


def _end_for_good(context: TableContext, begun: StartedWrite) -> None:
    """
    An abort slot ends an instant for which a lost writer may still write files (RB-1, RB-10).

    Deleting them would do for what is there now only.
    """
    begun.heartbeat.stop()
    target = Instant(action=begun.action, requested_time=begun.requested_time, state=State.INFLIGHT)
    why = "a writer was lost"
    try:
        rollback(context, target)
    except HoodooError as error:
        why = f"{why}; not rolled back yet: {error.message}"  # the next clean does it
    context.world.events.emit("group.broken", rt=begun.requested_time, why=why)


def _is_fresh(context: TableContext, work: PreparedWrite) -> bool:
    """BATCH-1: the twin of one that is not lies in the base snapshot, and its receipt is returned."""
    return committed_batch(context, work.plan) is None


def _tell(answers: list[Answer], joint: CoalescedWrite, left: NotCommitted) -> None:
    for number in joint.numbers:
        answers[number] = left


def _numbers_of(members: Mapping[int, _Member]) -> frozenset[int]:
    """Of all writes that are in some members."""
    return frozenset(number for one in members.values() for number in one.joint.numbers)


def _view_for(
    context: TableContext,
    begun: StartedWrite,
    joints: Sequence[CoalescedWrite],
    side_by_side: RunPhases,
) -> FileSystemView:
    """The view on which all are placed, their partitions listed side by side."""
    view = view_of(context, begun.snapshot)
    looks = [one for one in joints if one.work.plan.operation is not WriteOperation.BULK_INSERT]
    if looks:
        side_by_side({joint.number: partial(_listed, view, joint.work) for joint in looks})
    return view


def _listed(view: FileSystemView, work: PreparedWrite) -> MemberOutcome:
    try:
        view.latest_slices(work.workload.partition_paths() if work.workload else ())
    except Exception as error:  # noqa: BLE001 - placing meets it again, and tells the write
        return error
    return ()


def _assigned(
    context: TableContext,
    begun: StartedWrite,
    joints: Sequence[CoalescedWrite],
    answers: list[Answer],
    view: FileSystemView,
    *,
    meeting: OnConflict,
) -> dict[int, _Member]:
    """Those of the writes that do not meet, by their number, with tokens of their own."""
    members: dict[int, _Member] = {}
    rivals: list[ConcurrentCommit] = []  # as those after them see the members
    tasks = 0
    for joint in joints:
        try:
            member = _assign_beside(context, begun, joint, rivals, view)
        except PeerLostError as error:
            context.world.events.emit("group.lost", rt=begun.requested_time, why=str(error))
            _tell(answers, joint, NotCommitted.LOST)  # it was not asked to write anything yet
            continue
        except Exception as error:  # noqa: BLE001 - as its own instant the write is told
            context.world.events.emit("group.left", rt=begun.requested_time, why=str(error))
            continue
        if isinstance(member, NotCommitted):
            _tell(answers, joint, member)
            continue
        if not isinstance(member, _Member):
            _tell(answers, joint, NotCommitted.MEETS)
            for number in joint.numbers:
                meeting(number, frozenset(member.file_groups))
            continue
        renumbered = tuple(
            replace(task, task_number=place, write_token=f"{place}-0-0")
            for place, task in enumerate(member.placement.tasks, start=tasks)
        )
        tasks += len(renumbered)
        placed = replace(member, placement=replace(member.placement, tasks=renumbered))
        members[joint.number] = placed
        rivals.append(_as_concurrent_commit(begun, placed))
    return {number: _in_order(member, tasks) for number, member in members.items()}


def _in_order(member: _Member, count: int) -> _Member:
    tasks = in_text_order(member.placement.tasks, count)
    return replace(member, placement=replace(member.placement, tasks=tasks))


def _assign_beside(
    context: TableContext,
    begun: StartedWrite,
    joint: CoalescedWrite,
    rivals: list[ConcurrentCommit],
    view: FileSystemView,
) -> _Member | NotCommitted | Rebase | Rejected:
    work = joint.work
    plan, workload = work.plan, work.workload
    if workload is None:
        raise InvariantError("a write without rows was offered to a group")
    schema, schema_before = schema_for(context, begun.snapshot, workload, plan)
    try:
        refuse_other_key_types(plan, work.schema, schema)
    except SchemaConflictError:
        return NotCommitted.ALONE  # where it is told
    work = replace(work, schema=schema, schema_before=schema_before)
    if any(one.schema != schema.avro_json for one in rivals):
        return NotCommitted.MEETS
    files = plan.files
    # New rows that would fill a file which another member fills get a file of their own.
    for chosen in (files, replace(files, small_files_max=0)) if rivals else (files,):
        placement = assign_file_groups(
            context, begun, workload, plan.rules, schema, files=chosen, view=view
        )
        if placement.met is not None:
            return NotCommitted.ALONE
        member = _Member(joint=joint, work=work, workload=workload, placement=placement)
        planned = PendingCommit(
            claim=member.claim, metadata=CommitMetadata(), logs_may_meet=placement.logs_may_meet
        )
        verdict = verdict_on(context, planned, begun.requested_time, rivals)
        if isinstance(verdict, NoConflict):
            return member
        met = verdict
        if met.file_groups and _updates(placement).issuperset(met.file_groups):
            break  # wherever new rows go
    return met


def _updates(placement: FileGroupAssignment) -> frozenset[FileGroupId]:
    """The file groups with keys that a write changes, whatever new rows fill."""
    return frozenset(
        FileGroupId(path, stat.file_id)
        for path, (_, *known) in placement.profile.partition_to_write_stats.items()
        for stat in known
    )


def _as_concurrent_commit(begun: StartedWrite, member: _Member) -> ConcurrentCommit:
    """A member as those after it see it: published just before."""
    return ConcurrentCommit(
        action=begun.action,
        requested_time=begun.requested_time,
        completion_time=begun.requested_time,
        claim=member.claim,
        schema=member.work.schema.avro_json,
        batches=member.joint.batch_ids,
    )


def _written(
    context: TableContext,
    begun: StartedWrite,
    placed: dict[int, _Member],
    answers: list[Answer],
    side_by_side: RunPhases,
) -> dict[int, _Member]:
    """Those whose files are written, and stand beside the files of those before them."""
    placed = _announced(context, begun, placed)
    outcomes = side_by_side(
        {number: partial(_rewrite, context, member) for number, member in placed.items()}
    )
    lost = [number for number in placed if isinstance(outcomes[number], PeerLostError)]
    if lost:
        raise _LostWhileWritingError(lost)  # PUB-2: nobody knows that their files are all written
    members: dict[int, _Member] = {}
    rivals: list[ConcurrentCommit] = []
    for number, member in placed.items():
        outcome = outcomes[number]
        if isinstance(outcome, Exception):
            context.world.events.emit("group.left", rt=begun.requested_time, why=str(outcome))
            continue
        done = _with_files(context, begun, member, outcome)
        if _has_no_conflict(context, begun, done, rivals):
            members[number] = done
            rivals.append(_as_concurrent_commit(begun, done))
        else:
            _tell(answers, member.joint, NotCommitted.MEETS)
    return members


def _announced(
    context: TableContext, begun: StartedWrite, placed: dict[int, _Member]
) -> dict[int, _Member]:
    """All members' files announced at once, so that far away they wait for one round (PAR-1)."""
    parts = [(member.workload, member.placement.tasks) for member in placed.values()]
    profile = merged_profile([member.placement.profile for member in placed.values()])
    shown = announce_tasks(context, begun, profile, parts)
    return {
        number: replace(member, placement=replace(member.placement, tasks=tasks))
        for (number, member), tasks in zip(placed.items(), shown, strict=True)
    }


def _by_executor(
    context: TableContext, parts: Mapping[int, MemberPhase]
) -> dict[int, MemberOutcome]:
    outcomes = context.world.executor.map(_carry_out, list(parts.values()))
    return dict(zip(parts, outcomes, strict=True))


def _carry_out(part: MemberPhase) -> MemberOutcome:
    return part()


def _rewrite(context: TableContext, member: _Member) -> MemberOutcome:
    """One member's files; its failure is its own."""
    try:
        stats = member.workload.rewrite(member.placement.tasks)
        # Asked again before the slot, which costs nothing then: here members wait side by side.
        context.world.storage.sync_folders(
            sorted({task.partition_path for task in member.placement.tasks})
        )
        return stats
    except Exception as error:  # noqa: BLE001 - as its own instant the write is told
        return error


def _with_files(
    context: TableContext,
    begun: StartedWrite,
    member: _Member,
    stats: Sequence[tuple[WriteStat, ...]],
) -> _Member:
    written = WrittenFiles(
        placement=member.placement,
        stats=tuple(zip(member.placement.tasks, stats, strict=True)),
        schema=member.work.schema,
        schema_before=member.work.schema_before,
        refusals=(),
        attempts=1,
    )
    batches = member.joint.batches()
    candidate = pending_commit_of(context, begun, member.work.plan, written, batches)
    return replace(member, written=written, candidate=candidate)


def _has_no_conflict(
    context: TableContext, begun: StartedWrite, member: _Member, rivals: list[ConcurrentCommit]
) -> bool:
    """Whether a written member meets none of those before it (GRP-2)."""
    candidate, written = _files_of(member)
    if not isinstance(verdict_on(context, candidate, begun.requested_time, rivals), NoConflict):
        return False
    mine = commit_facts_of(
        begun,
        member.work.plan,
        written,
        candidate.claim,
        candidate.batches,
        read_only=candidate.read_only,
    )
    return rejected_by(context, mine, rivals) is None


def _files_of(member: _Member) -> tuple[PendingCommit, WrittenFiles]:
    if member.candidate is None or member.written is None:
        raise InvariantError("a member of a group was used before its files were written")
    return member.candidate, member.written


def _publish(
    context: TableContext,
    begun: StartedWrite,
    members: dict[int, _Member],
    placed: dict[int, _Member],
    later: Callable[[Callable[[], None]], object],
) -> dict[int, CommitResult]:
    """One candidate of all members; a receipt for each write, and none when it met somebody."""
    files = {number: _files_of(member) for number, member in members.items()}
    together = merge_members([written for _, written in files.values()])
    attempted = [member.workload.attempted() or frozenset() for member in placed.values()]
    # PUB-1: also the files of those who failed or met somebody.
    reconcile_files(context, begun, together, frozenset[str]().union(*attempted))
    batches = tuple(batch for candidate, _ in files.values() for batch in candidate.batches)
    first = next(iter(members.values())).work.plan
    size = sum(len(member.joint.works) for member in members.values())
    parts: dict[str, MemberResult] = {}
    for number, member in members.items():
        parts |= member.joint.parts(files[number][0].metadata)
    shared = merged_request(first, size, parts)
    candidate = pending_commit_of(context, begun, shared, together, batches)
    outcome = commit_write(context, begun, candidate, BaseState.by(begun.snapshot))
    if not isinstance(outcome, CommittedWrite):
        why = outcome.verdict.why
        context.world.events.emit("group.refused", rt=begun.requested_time, why=why)
        return {}
    tidy_up = finish_commit(context, begun, outcome.slot)
    context.world.events.emit("group.done", rt=begun.requested_time, size=size)
    later(tidy_up)
    receipts: dict[int, CommitResult] = {}
    for number, member in members.items():
        joint, whole = member.joint, files[number][0].metadata
        told = zip(joint.numbers, joint.works, joint.rows_of_each(whole), strict=True)
        for each, work, rows in told:
            receipts[each] = commit_result_of(
                context, work.plan, whole, outcome, group=size, rows=rows
            )
    return receipts
