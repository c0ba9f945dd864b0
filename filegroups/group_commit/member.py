"""
The writer's side of a group that another process publishes (GRP-4).

It keeps the rows and writes the files; the committer only asks, now and then for the rows
themselves. A few rows it sends along, and has no part in what is done with them (GRP-8).
Whenever the committer is gone, silent or at a loss, the writer finds out by itself what became
of its write: the commit slot tells, and where there is none an abort slot sees to it that there
never will be (RB-1).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from filegroups.files.rewrite import FileGroupTask
from filegroups.group_commit.coalesce import member_result, member_results
from filegroups.group_commit.commit_group import GROUP_KEY
from filegroups.group_commit.messages import (
    Assigned,
    AssignRows,
    CandidateFile,
    Channel,
    CountRows,
    Failed,
    FallBack,
    GivenRows,
    GiveRows,
    MemberResult,
    Message,
    Offer,
    OutcomeUnknown,
    PeerLostError,
    Precompute,
    Precomputed,
    RewriteTasks,
    Rewritten,
    RowsCounted,
    Tagged,
    TagKeys,
    WasCommitted,
    are_rows_of,
    encoded_rows,
    offer_of,
)
from filegroups.index import IndexedFile
from filegroups.writing.commit_result import CommitResult
from filegroups.writing.local_workload import LocalWorkload
from filegroups.writing.workload import Workload
from filegroups.writing.write import PreparedWrite, action_of
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.revalidate import without_void
from timeline.context import TableContext
from timeline.errors import (
    HoodooError,
    InternalError,
    InvariantError,
    OutcomeUnknownError,
)
from timeline.layout import slot_path
from timeline.model.commit_metadata import CommitMetadata, WriteStat
from timeline.model.file_names import data_file_time, join
from timeline.model.instant import WRITE_ACTIONS
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.rollback.rollback import rollback

__all__ = ["Member", "can_be_offered", "write_by_committer"]

_LOOKS_MAX = 4
#: Of the rows that go along with an offer: to ask about them takes longer than to write them.
OFFERED_BYTES_MAX: Final = 64 * 1024


def can_be_offered(work: PreparedWrite) -> bool:
    """Whether another process can publish a write: its plan is one that can be told and shared."""
    plan, workload = work.plan, work.workload
    if plan.operation.replaces or workload is None or workload.attempted() is None:
        return False
    if plan.rules.keys.carried:
        return False  # a committer plans by the table and the options, not by the rows
    # What a plug-in merges, only processes that have the plug-in can write.
    return plan.reads is None and plan.rules.merge.merger is None


@dataclass(slots=True)
class Member:
    """
    One write as its writer sees it while a committer publishes it.

    Args:
        work: The write, its rows prepared.
        release: Of this program.
        few_bytes: Rows that take no more memory go along with the offer.
    """

    work: PreparedWrite
    release: str
    few_bytes: int = OFFERED_BYTES_MAX
    requested_time: InstantTime | None = None  # of the instant its files were written for
    stats: tuple[tuple[WriteStat, ...], ...] = field(default=())
    joined_as: str | None = None  # its name there, where the committer writes its rows
    was_asked: bool = False  # anything, since it was offered

    def offer(self) -> Offer:
        """What the committer must know to place the write."""
        work, workload, few = self.work, self._workload(), self._few_rows()
        columns = workload.schema.remove_metadata().serialize().to_pybytes()
        return Offer(
            release=self.release,
            table_id=work.context.table_id,
            operation=work.plan.operation.value,
            partial=work.plan.rules.partial,
            batch_id=work.plan.batch_id,
            plan=offer_of(work.context, work.plan),
            avro_json=work.schema.avro_json,
            schema_before=work.schema_before,
            columns=base64.b64encode(columns).decode("ascii"),
            partition_paths=workload.partition_paths(),
            rows_bytes=workload.rows.nbytes if isinstance(workload, LocalWorkload) else None,
            rows=None if few is None else encoded_rows(few.rows),
        )

    def _few_rows(self) -> LocalWorkload | None:
        """The workload, if its rows go along with the offer."""
        work, workload = self.work, self.work.workload
        if not isinstance(workload, LocalWorkload) or work.plan.rules.partial:
            return None
        few = workload.rows.nbytes <= self.few_bytes
        return workload if few and are_rows_of(workload.rows, work.schema) else None

    def answer(self, question: Message) -> Message:
        """
        Do what the committer asks; what fails is told, and the write goes alone later.

        Raises:
            PeerLostError: It is no question.
        """
        self.was_asked = True
        try:
            return self._done(question)
        except PeerLostError:
            raise
        except Exception as error:  # noqa: BLE001 - as its own instant the write is told
            return Failed(why=f"{type(error).__name__}: {error}"[:2000], attempted=self._tried())

    def _done(self, question: Message) -> Message:
        workload = self._workload()
        match question:
            case TagKeys():
                found = workload.tag(
                    {path: [_indexed(one) for one in files] for path, files in _items(question)}
                )
                return Tagged(inserts=found.inserts, updates=tuple(found.updates.items()))
            case CountRows(remainder=remainder, ring=ring):
                shares = remainder or ring
                if shares is None:
                    raise PeerLostError("told no shares")
                counts = workload.spread(shares)
                return RowsCounted(rows=tuple((*key, rows) for key, rows in counts.items()))
            case AssignRows(buckets=buckets):
                ids = {bucket.number: file_id for bucket, file_id in buckets}
                workload.assign([bucket for bucket, _ in buckets], ids)
                return Assigned()
            case Precompute(tasks=tasks):
                workload.make_ahead([FileGroupTask.from_json(text) for text in tasks])
                return Precomputed()
            case RewriteTasks():
                return self._rewrite(question)
            case GiveRows():
                return self._give(question, workload)
        raise PeerLostError(f"no question: {question.kind}")

    def _rewrite(self, question: RewriteTasks) -> Message:
        tasks = [FileGroupTask.from_json(text) for text in question.tasks]
        if any(task.requested_time != question.requested_time for task in tasks):
            raise PeerLostError("tasks of another instant than it says")
        self.requested_time, self.stats, self.joined_as = question.requested_time, (), None
        stats = self._workload().rewrite(tasks)
        self.stats = tuple(stats)
        return Rewritten(stats=self.stats, attempted=self._tried())

    def _give(self, question: GiveRows, workload: Workload) -> Message:
        if not isinstance(workload, LocalWorkload):
            raise InvariantError("rows were asked for that were not offered")
        self.requested_time, self.stats = question.requested_time, ()
        self.joined_as = question.name
        return GivenRows(rows=None if self._few_rows() else encoded_rows(workload.rows))

    def receipt(self, told: WasCommitted) -> CommitResult:
        """What a published write is told: its own rows, the group's times."""
        own = told.own if self.joined_as is not None else self._own_part(told.requested_time)
        context, plan = self.work.context, self.work.plan
        receipt = CommitResult(
            action=action_of(context, plan.operation).value,
            operation=plan.operation.value,
            requested_time=told.requested_time,
            completion_time=told.completion_time,
            attempts=1,
            rows_inserted=own.rows_inserted,
            rows_updated=own.rows_updated,
            rows_deleted=own.rows_deleted,
            files_written=own.files_written,
            bytes_written=own.bytes_written,
            lost_slots=told.lost_slots,
            group=told.group,
        )
        context.world.events.emit(
            "write.done",
            rt=receipt.requested_time,
            ct=receipt.completion_time,
            attempts=1,
            inserted=receipt.rows_inserted,
            updated=receipt.rows_updated,
            group=receipt.group,
        )
        return receipt

    def find_out(self, context: TableContext) -> CommitResult | None:
        """
        What became of a write whose committer did not say.

        Returns:
            Its receipt when it is published; None when it is not and never will be, and nothing
            of it is left.

        Raises:
            OutcomeUnknownError: The storage or the lock do not answer, or too much happened since.
        """
        given = self.joined_as is not None
        if self.requested_time is None or not (given or self.stats or self._tried()):
            return None  # there is nothing that somebody could publish
        time = self.requested_time
        try:
            slot = _ending_of(context, time)
            own = None if slot is None else self._own_part_in(slot)
            if slot is not None and own is not None:
                context.world.events.emit("group.found", rt=time)
                return self.receipt(_answer_from(slot, own))
            self._clear(context, time)
        except (InternalError, OutcomeUnknownError):
            raise
        except HoodooError as error:
            raise _unknown(time, error.message) from error
        context.world.events.emit("group.not_published", rt=time)
        return None

    def _own_part_in(self, slot: Slot) -> MemberResult | None:
        """What a commit slot says of this write, None where it is not in it."""
        if self.joined_as is not None:
            return member_results(_metadata_in(slot)).get(self.joined_as)
        return self._own_part(slot.requested_time) if self._is_in(slot) else None

    def _own_part(self, published: InstantTime) -> MemberResult:
        """What it wrote for the published instant, nothing of a group that broke up before."""
        written = self.stats if published == self.requested_time else ()
        stats = tuple(one for each in written for one in each)
        return member_result(CommitMetadata(partition_to_write_stats={"": stats}))

    def _is_in(self, slot: Slot) -> bool:
        """A group takes all files of a member or none."""
        mine = {path for stats in self.stats for stat in stats for path in stat.paths}
        return any(
            join(one.file_group.partition_path, name) in mine
            for one in slot.claim.file_groups
            for name in one.files
        )

    def _clear(self, context: TableContext, time: InstantTime) -> None:
        """
        RB-10: take away what this process wrote after its instant had ended without it.

        Markers stay for the next clean, which looks by them for files of whoever sleeps still.
        """
        for path in self._tried():
            if data_file_time(path.rpartition("/")[2]) == time:
                context.world.storage.delete(path)

    def _tried(self) -> tuple[str, ...]:
        return tuple(sorted(self._workload().attempted() or ()))

    def _workload(self) -> Workload:
        if self.work.workload is None:
            raise InvariantError("a write without rows was offered to a group")
        return self.work.workload


def write_by_committer(
    channel: Channel, member: Member, *, wait_ms: int, done: Callable[[], None] = lambda: None
) -> CommitResult | None:
    """
    Have a committer publish a write.

    Args:
        channel: To the committer; closed when it cannot be used again.
        member: The write.
        wait_ms: Longest silence of the committer.
        done: Called when the channel can be used again.

    Returns:
        The receipt; None when nothing of the write was published or is left.

    Raises:
        PeerLostError: As None, and the committer is gone or silent.
        OutcomeUnknownError: See ``Member.find_out``.
    """
    usable = False
    try:
        last = _conversation(channel, member, wait_ms)
        usable = True
    except PeerLostError as error:
        channel.close()
        emit = member.work.context.world.events.emit
        emit("group.committer_lost", rt=member.requested_time or "", why=str(error))
        receipt = member.find_out(member.work.context)
        if receipt is None:
            raise
        return receipt
    finally:
        if not usable:
            channel.close()  # interrupted: the committer must not wait for what does not come
    done()
    if isinstance(last, WasCommitted):
        return member.receipt(last)
    if isinstance(last, FallBack):
        member.work.context.world.events.emit("group.alone", why=last.why)
        return None
    return member.find_out(member.work.context)


def _conversation(
    channel: Channel, member: Member, wait_ms: int
) -> WasCommitted | FallBack | OutcomeUnknown:
    channel.send(member.offer())
    while True:
        message = channel.receive(wait_ms)
        if isinstance(message, WasCommitted | FallBack | OutcomeUnknown):
            return message
        channel.send(member.answer(message))


def _ending_of(context: TableContext, time: InstantTime) -> Slot | None:
    """
    The commit slot of an instant, settled, or None when it has and will have none.

    Outside: 1 list and the slots since the instant; for a pending one a rollback.
    """
    for _ in range(_LOOKS_MAX):
        target = context.active().find(time, *WRITE_ACTIONS)
        if target is not None and not target.completed:
            rollback(context, target)  # or it is helped, and completed at the next look
            continue
        slot = _slot_of(context, time)
        if slot is not None:
            return slot if slot.kind is SlotKind.COMMIT else None
        if target is not None or time in context.history.times().completions:
            break
        return None  # abandoned without a slot: its files are gone (RB-9)
    raise _unknown(time, "the timeline went on")


def _slot_of(context: TableContext, time: InstantTime) -> Slot | None:
    for slot in without_void(context.chain.newest_first()):
        if context.chain.is_of_another(slot):
            continue  # SLOT-8: of another table's times
        if slot.completion_time < time:
            return None  # every slot of the instant was taken after its begin: times ascend
        if slot.requested_time == time and slot.kind in (SlotKind.COMMIT, SlotKind.ABORT):
            return slot
    return None


def _answer_from(slot: Slot, own: MemberResult) -> WasCommitted:
    """What the committer would have said."""
    return WasCommitted(
        requested_time=slot.requested_time,
        completion_time=slot.completion_time,
        group=int(_metadata_in(slot).extra_metadata.get(GROUP_KEY, "1")),
        lost_slots=0,
        own=own,
    )


def _metadata_in(slot: Slot) -> CommitMetadata:
    return decode_commit(slot.body, path=slot_path(slot.number))


def _unknown(time: InstantTime, why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the committer did not tell what became of the write, and it could not be found out: repeat "
        f"it if it has a batch id; instant {time} may be published without it, so look for its rows "
        f"when 'hoodoo explain --resolve' says that it is, before you repeat one without: {why}",
        requested_time=time,
    )


def _indexed(one: CandidateFile) -> IndexedFile:
    return IndexedFile(file_id=one.file_id, path=one.path, virtual_keys=one.virtual_keys)


def _items(question: TagKeys) -> list[tuple[str, tuple[CandidateFile, ...]]]:
    return list(question.candidates.items())
