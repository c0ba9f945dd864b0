"""
The writer's side of a group that another process commits (GRP-4).

The writer keeps the rows and writes the files. The committer sends requests, and sometimes requests
the rows. An offer may contain a few rows, which the committer then writes (GRP-8). If the committer
is lost or does not know the outcome, the writer looks it up in the commit log. If there is no slot,
it takes an abort slot, so that no commit can follow (RB-1).
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
from filegroups.writing.workload import LocalWorkload, Workload
from filegroups.writing.write import PreparedWrite, action_of
from filegroups.writing.write_request import CommitResult
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
#: Limit of rows sent with an offer: requests about so few rows take longer than their write.
OFFERED_BYTES_MAX: Final = 64 * 1024


def can_be_offered(work: PreparedWrite) -> bool:
    """Return whether another process can commit the write, because its plan can be sent."""
    plan, workload = work.plan, work.workload
    if plan.operation.replaces or workload is None or workload.attempted() is None:
        return False
    if plan.rules.keys.carried:
        return False  # a committer plans by the table and the options, not by the rows
    # Only processes with the plug-in can write rows that a plug-in merges.
    return plan.reads is None and plan.rules.merge.merger is None


@dataclass(slots=True)
class Member:
    """
    One write, as its writer sees it while a committer commits it.

    Args:
        work: The write, its rows prepared.
        release: The release of this program.
        few_bytes: Rows up to this memory size are sent with the offer.
    """

    work: PreparedWrite
    release: str
    few_bytes: int = OFFERED_BYTES_MAX
    requested_time: InstantTime | None = None  # requested time of the instant of its files
    stats: tuple[tuple[WriteStat, ...], ...] = field(default=())
    joined_as: str | None = None  # its name in the instant, if the committer writes its rows
    was_asked: bool = False  # any request since the offer

    def offer(self) -> Offer:
        """Return the offer: all that the committer needs to assign file groups."""
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
        """Return the workload, if its rows are sent with the offer."""
        work, workload = self.work, self.work.workload
        if not isinstance(workload, LocalWorkload) or work.plan.rules.partial:
            return None
        few = workload.rows.nbytes <= self.few_bytes
        return workload if few and are_rows_of(workload.rows, work.schema) else None

    def answer(self, question: Message) -> Message:
        """
        Do a request of the committer; report a failure, after which the write commits alone.

        Raises:
            PeerLostError: The message is no request.
        """
        self.was_asked = True
        try:
            return self._done(question)
        except PeerLostError:
            raise
        except Exception as error:  # noqa: BLE001 - the write reports it when it commits alone
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
        """Return the commit result: the write's own rows, the group's times."""
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
        Look up the outcome of a write whose committer did not report it.

        Returns:
            Its commit result if it is committed. None if it is not and never will be; then nothing
            of it is left.

        Raises:
            OutcomeUnknownError: The storage or the lock does not answer, or the timeline changed
                too often.
        """
        given = self.joined_as is not None
        if self.requested_time is None or not (given or self.stats or self._tried()):
            return None  # there is nothing to commit
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
        """Return this write's result in a commit slot, None if it is not in it."""
        if self.joined_as is not None:
            return member_results(_metadata_in(slot)).get(self.joined_as)
        return self._own_part(slot.requested_time) if self._is_in(slot) else None

    def _own_part(self, published: InstantTime) -> MemberResult:
        """Return the result of its files in the committed instant, none if they are of another."""
        written = self.stats if published == self.requested_time else ()
        stats = tuple(one for each in written for one in each)
        return member_result(CommitMetadata(partition_to_write_stats={"": stats}))

    def _is_in(self, slot: Slot) -> bool:
        """Return whether the slot has its files; a group takes all files of a member or none."""
        mine = {path for stats in self.stats for stat in stats for path in stat.paths}
        return any(
            join(one.file_group.partition_path, name) in mine
            for one in slot.claim.file_groups
            for name in one.files
        )

    def _clear(self, context: TableContext, time: InstantTime) -> None:
        """
        RB-10: delete files that this process wrote after its instant had ended without them.

        Markers stay for the next clean, which uses them to find files of stalled writers.
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
    Let a committer commit a write.

    Args:
        channel: The channel to the committer; closed if it cannot be used again.
        member: The write.
        wait_ms: Longest silence of the committer, in ms.
        done: Called when the channel can be used again.

    Returns:
        The commit result; None if the write is not committed and nothing of it is left.

    Raises:
        PeerLostError: As None, and the committer is lost.
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
            channel.close()  # interrupted: the committer must not wait for an answer
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
    Return the commit slot of an instant, applied; None if there is none and will be none.

    Outside: 1 list and the slots since the instant; for a pending one a rollback.
    """
    for _ in range(_LOOKS_MAX):
        target = context.active().find(time, *WRITE_ACTIONS)
        if target is not None and not target.completed:
            rollback(
                context, target
            )  # or its slot is applied, and the next read shows it completed
            continue
        slot = _slot_of(context, time)
        if slot is not None:
            return slot if slot.kind is SlotKind.COMMIT else None
        if target is not None or time in context.history.times().completions:
            break
        return None  # ended without a slot: its files are deleted (RB-9)
    raise _unknown(time, "the timeline went on")


def _slot_of(context: TableContext, time: InstantTime) -> Slot | None:
    for slot in without_void(context.chain.newest_first()):
        if context.chain.is_of_another(slot):
            continue  # SLOT-8: a slot of another table
        if slot.completion_time < time:
            return None  # slots of an instant follow its begin, and their times ascend
        if slot.requested_time == time and slot.kind in (SlotKind.COMMIT, SlotKind.ABORT):
            return slot
    return None


def _answer_from(slot: Slot, own: MemberResult) -> WasCommitted:
    """Return the message that the committer would have sent."""
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
