"""
Writes that another process commits: the writer's side, and that of the committer (GRP-4).

The writer prepares its rows and offers them. The committer assigns file groups, writes the files
and commits. Before that it names the instant to each writer (GRP-8). If the committer is lost or
does not know the outcome, the writer looks it up in the commit log. If there is no slot, it takes
an abort slot, so that no commit can follow (RB-1).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from filegroups.group_commit.coalesce import member_results
from filegroups.group_commit.messages import (
    OFFERED_BYTES_MAX,
    Channel,
    FallBack,
    Joined,
    JoinInstant,
    MemberResult,
    Message,
    Offer,
    OutcomeUnknown,
    PeerLostError,
    WasCommitted,
    are_rows_of,
    decoded_rows,
    encoded_rows,
    offer_of,
)
from filegroups.schema.schema import TableSchema
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import PreparedWrite, action_of
from filegroups.writing.write_request import CommitResult, WriteRequest
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.revalidate import without_void
from timeline.context import TableContext
from timeline.errors import (
    HoodooError,
    InternalError,
    InvariantError,
    OutcomeUnknownError,
)
from timeline.model.commit_metadata import GROUP_KEY, CommitMetadata
from timeline.model.file_names import check_partition_path, slot_path
from timeline.model.instant import WRITE_ACTIONS
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Clock
from timeline.rollback.rollback import rollback

_CHECKS_MAX = 4


def can_be_offered(work: PreparedWrite) -> bool:
    """Return whether another process can commit the write, because rows and plan can be sent."""
    plan, workload = work.plan, work.workload
    if plan.operation.replaces or not isinstance(workload, LocalWorkload):
        return False
    if plan.rules.keys.carried:
        return False  # a committer plans by the table and the options, not by the rows
    if plan.reads is not None or plan.rules.merge.merger is not None:
        return False  # only processes with the plug-in can write rows that a plug-in merges
    few = workload.rows.nbytes <= OFFERED_BYTES_MAX
    return few and are_rows_of(workload.rows, work.schema, plan.rules)


@dataclass(slots=True)
class Member:
    """
    One write, as its writer sees it while a committer commits it.

    Args:
        work: The write, its rows prepared; it ``can_be_offered``.
        release: The release of this program.
    """

    work: PreparedWrite
    release: str
    requested_time: InstantTime | None = None  # requested time of the instant that has its rows
    name: str = ""  # its name in that instant

    def offer(self) -> Offer:
        """Return the offer: all that the committer needs to write the rows."""
        work, workload = self.work, self.work.workload
        if not isinstance(workload, LocalWorkload):
            raise InvariantError("a write was offered whose rows are in another process; report it")
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
            rows=encoded_rows(workload.rows),
        )

    def answer(self, question: Message) -> Message:
        """
        Note the instant that the committer names.

        Raises:
            PeerLostError: The message is no such request.
        """
        if not isinstance(question, JoinInstant):
            raise PeerLostError(f"no question: {question.kind}")
        self.requested_time, self.name = question.requested_time, question.name
        return Joined()

    def commit_result(self, answer: WasCommitted) -> CommitResult:
        """Return the commit result: the write's own rows, the group's times."""
        own = answer.own
        context, plan = self.work.context, self.work.plan
        result = CommitResult(
            action=action_of(context, plan.operation).value,
            operation=plan.operation.value,
            requested_time=answer.requested_time,
            completion_time=answer.completion_time,
            attempts=1,
            rows_inserted=own.rows_inserted,
            rows_updated=own.rows_updated,
            rows_deleted=own.rows_deleted,
            files_written=own.files_written,
            bytes_written=own.bytes_written,
            lost_slots=answer.lost_slots,
            group=answer.group,
        )
        context.ports.events.emit(
            "write.done",
            rt=result.requested_time,
            ct=result.completion_time,
            attempts=1,
            inserted=result.rows_inserted,
            updated=result.rows_updated,
            group=result.group,
        )
        return result

    def resolve(self, context: TableContext) -> CommitResult | None:
        """
        Look up the outcome of a write whose committer did not report it.

        Returns:
            Its commit result if it is committed. None if it is not and never will be; then nothing
            of it is left.

        Raises:
            OutcomeUnknownError: The storage or the lock does not answer, or the timeline changed
                too often.
        """
        if self.requested_time is None:
            return None  # the committer did not use its rows
        time = self.requested_time
        try:
            slot = _ending_of(context, time)
            own = None if slot is None else member_results(_metadata_in(slot)).get(self.name)
            if slot is not None and own is not None:
                context.ports.events.emit("group.found", rt=time)
                return self.commit_result(_answer_from(slot, own))
        except (InternalError, OutcomeUnknownError):
            raise
        except HoodooError as error:
            raise _unknown(time, error.message) from error
        context.ports.events.emit("group.not_published", rt=time)
        return None


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
        OutcomeUnknownError: See ``Member.resolve``.
    """
    usable = False
    try:
        last = _conversation(channel, member, wait_ms)
        usable = True
    except PeerLostError as error:
        channel.close()
        emit = member.work.context.ports.events.emit
        emit("group.committer_lost", rt=member.requested_time or "", why=str(error))
        result = member.resolve(member.work.context)
        if result is None:
            raise
        return result
    finally:
        if not usable:
            channel.close()  # interrupted: the committer must not wait for an answer
    done()
    if isinstance(last, WasCommitted):
        return member.commit_result(last)
    if isinstance(last, FallBack):
        member.work.context.ports.events.emit("group.alone", why=last.why)
        return None
    return member.resolve(member.work.context)


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
    for _ in range(_CHECKS_MAX):
        target = context.active().find(time, *WRITE_ACTIONS)
        if target is not None and not target.completed:
            rollback(
                context, target
            )  # or its slot is applied, and the next read shows it completed
            continue
        slot = _slot_of(context, time)
        if slot is not None:
            return slot if slot.kind is SlotKind.COMMIT else None
        if target is not None or time in context.archived_timeline.times().completions:
            break
        return None  # ended without a slot: its files are deleted (RB-9)
    raise _unknown(time, "the timeline went on")


def _slot_of(context: TableContext, time: InstantTime) -> Slot | None:
    for slot in without_void(context.commit_log.newest_first()):
        if context.commit_log.is_of_another(slot):
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
        "the committer did not return the outcome of this write, and the timeline does not show "
        f"it. Repeat the write if it has a batch id. Otherwise run 'hoodoo explain TABLE {time} "
        f"--resolve', and if the instant is committed, check for the rows before you repeat: {why}",
        requested_time=time,
    )


# ---- The committer's side

_LAST_MOMENT_MS = 100  # for an answer that has arrived already, after other waits


def offered_work(context: TableContext, plan: WriteRequest, offer: Offer) -> PreparedWrite:
    """
    Return the prepared write of another process, as ``prepare_write`` does.

    Args:
        context: The committer's table.
        plan: The committer's write request, equal to the writer's except for offered fields.
        offer: The writer's offer.

    Raises:
        InvalidInputError: The offer has no valid partition paths.
        CorruptTableError: Its Avro schema is not valid.
        ValueError: It has no valid columns or rows.
    """
    for path in offer.partition_paths:
        check_partition_path(path)
    schema = TableSchema.from_avro(offer.avro_json)
    try:
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(offer.columns, validate=True)))
    except (pa.ArrowInvalid, OSError, binascii.Error) as error:
        raise ValueError(f"this is no schema: {error}") from None
    rows = decoded_rows(offer.rows, schema, plan.rules, offer.partition_paths)
    return PreparedWrite(
        context=context,
        plan=plan,
        workload=LocalWorkload.of_prepared(context.ports, rows, plan.rules, incoming=columns),
        schema=schema,
        schema_before=offer.schema_before,
    )


def name_instant(
    channels: Mapping[int, Channel], requested_time: InstantTime, clock: Clock, *, answer_ms: int
) -> frozenset[int]:
    """
    Name the instant to the writers whose rows it will have, with one timeout for all.

    A writer that does not know its instant would write its rows again when it gives up waiting. So
    the rows of such a writer must not be in the instant (GRP-8).

    Args:
        channels: The channels to the writers, by the number of their write in the instant.
        requested_time: Requested time of the instant.
        clock: Measures the timeout.
        answer_ms: Limit of all answers together, in ms.

    Returns:
        The numbers of the writers that are lost; their channels are closed.
    """
    lost = {
        number
        for number, channel in channels.items()
        if not _sent(channel, JoinInstant(requested_time=requested_time, name=str(number)))
    }
    began_ms = clock.monotonic_ms()
    for number, channel in channels.items():
        left_ms = answer_ms - (clock.monotonic_ms() - began_ms)
        if number not in lost and not _joined(channel, max(left_ms, _LAST_MOMENT_MS)):
            lost.add(number)
    return frozenset(lost)


def _sent(channel: Channel, message: Message) -> bool:
    try:
        channel.send(message)
    except PeerLostError:
        channel.close()
        return False
    return True


def _joined(channel: Channel, wait_ms: int) -> bool:
    try:
        if isinstance(channel.receive(wait_ms), Joined):
            return True
    except PeerLostError:
        pass
    channel.close()
    return False
