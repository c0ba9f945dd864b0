"""
List and explain the instants of a table: writer, times, conflicts, outcome.

An ``InstantSummary`` joins an instant's files, its commit metadata, its commit slot and the
rejected attempts before it. A value that another engine did not record stays empty.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from filegroups.group_commit.commit_group import GROUP_KEY
from filegroups.table import TableReader
from hoodoo.inspect.rejected_writes import RejectedWrite, rejected_writes
from timeline.codecs.instant_avro import (
    FENCING_TOKEN_KEY,
    decode_clean,
    decode_commit,
    decode_rollback,
)
from timeline.codecs.legacy_commit import decode_archived_clean, decode_archived_commit
from timeline.commit.apply import not_applied
from timeline.commit.revalidate import without_void
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.errors import CorruptTableError, InstantNotFoundError, MissingFileError, counted
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import instant_file_name, pending_file_names
from timeline.model.instant import (
    UTC_ZONE,
    WRITE_ACTIONS,
    Action,
    Instant,
    InstantTime,
    TimelineZone,
)
from timeline.model.plans import CleanMetadata
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.model.time_arguments import TimeArgument
from timeline.ports.ports import ObjectMissingError
from timeline.rollback.rollback import rollback_records
from timeline.snapshot import ActiveTimeline

_REFUSALS_KEY = "hoodoo.refusals"
_WAITS_KEY = "hoodoo.waits"
_RETRIES_KEY = "hoodie.write.num.retries.on.conflict.failures"
_FILE_GROUPS_SHOWN_MAX = 50
_PLACES_SHOWN_MAX = 3  # in a line
_DEAD = (
    "its heartbeat has expired; the next clean rolls it back, or 'hoodoo explain --resolve' does "
    "it now"
)
_PUBLISHED = (
    "committed, as number {}; its completed file is missing, and the next writer or 'hoodoo "
    "explain --resolve' creates it; do not repeat the write"
)
_UNDECIDED = (
    "it has number {}, and its outcome is not decided yet; 'hoodoo explain --resolve' decides it"
)
_UNDONE = "rolled back by {who}, as instant {instant}; the next write deletes its remaining files"
_ROLLED_BACK = ("rolled back", "rolled back by {who} at {when}, as instant {instant}, {number}")
#: Kind of slot that leaves no file of an instant -> the state of the instant and its remark.
_ENDINGS: Mapping[SlotKind, tuple[str, str]] = {
    SlotKind.ABORT: _ROLLED_BACK,
    SlotKind.RESTORE: _ROLLED_BACK,
    SlotKind.TRUNCATE: (
        "decided",
        (
            "the truncation of an archiving, by {who} at {when}, {number}; the next archiving "
            "deletes the remaining files"
        ),
    ),
    SlotKind.CANCEL: ("cancelled", "cancelled by {who} at {when}, {number}"),
    SlotKind.VOID: (
        "void",
        (
            "its writer lost the lock before the completed file existed, and another engine "
            "committed without it: {who} marked it void at {when}, {number}"
        ),
    ),
}


def list_instants(table: TableReader, *, archived: bool = False) -> list[InstantSummary]:
    """
    Return the instants of a table, ascending by requested time.

    Outside: 1 list, 1 get per completed instant and pending write, 1 get per slot; with
    ``archived`` the files of the archived timeline.

    Raises:
        CorruptTableError: A slot cannot be read.
    """
    context = table.context
    slots = _slots_by_instant(context)
    active = context.active()
    summaries = [_summary(context, instant, slots) for instant in active.instants]
    if archived:
        known = {(one.requested_time, one.action) for one in summaries}
        summaries.extend(
            one for one in _archived(context) if (one.requested_time, one.action) not in known
        )
    summaries = [replace(one, zone=context.zone) for one in summaries]
    return sorted(summaries, key=lambda one: (one.requested_time, one.action))


def explain_instant(table: TableReader, requested_time: TimeArgument) -> InstantSummary:
    """
    Return the summary of one instant, also of a rejected, rolled back or archived one.

    Raises:
        InstantNotFoundError: No record of the instant remains.
        InvalidInputError: The argument is not a time.
        UnsafeSetupError: The table's slots are in another place than this process is set up for.
    """
    context = table.context
    time = context.parse_instant(requested_time)
    return replace(_lines_of(context, time), zone=context.zone)


def _lines_of(context: TableContext, requested_time: InstantTime) -> InstantSummary:
    slots = _slots_by_instant(context)
    active = context.active()
    for instant in active.instants:
        if requested_time in (instant.requested_time, instant.completion_time):
            return _summary(context, instant, slots, in_full=True, active=active)
    archived = _archived(context)
    for one in archived:
        if requested_time in (one.requested_time, one.completion_time):
            return one
    return _vanished(context, active, archived, requested_time)


def _vanished(
    context: TableContext,
    active: ActiveTimeline,
    archived: Sequence[InstantSummary],
    time: InstantTime,
) -> InstantSummary:
    """Return the summary of an instant without files, from slots, retries and rollbacks."""
    context.identity.assert_decided_here(context.ports)
    for slot in context.commit_log.newest_first():
        named = slot.requested_time == time and slot.kind is not SlotKind.RESTORE
        if slot.kind in _ENDINGS and (named or time in restored_away_by(slot)):
            state, template = _ENDINGS[slot.kind]
            remark = template.format(
                who=slot.owner.text,
                when=f"{time_text(slot.completion_time)} {context.zone.name}",
                instant=slot.instant_time,
                number=f"number {slot.number} of this table",
            )
            decided = _slots_by_instant(context).get((time, False), slot)
            return _without_files(time, decided.action, state, remark)
    for slot in not_applied(context, context.commit_log.head(), active):
        if slot.instant_time == time and slot.file_name is not None:
            return _without_files(time, slot.own_action, "decided", _not_applied_remark(slot))
    written = (_summary(context, one, {}) for one in active.completed_writes)
    for summary in itertools.chain(written, archived):
        attempt = _refused_first(summary, time)
        if attempt is not None:
            return attempt
    for one in rejected_writes(context):
        if one.has(time):
            return _rejected_write(one, time)
    for undoing in rollback_records(
        context, active, context.archived_timeline.instants(times_only=False)
    ):
        if time in undoing.targets:
            when = f"{time_text(undoing.completion_time)} {context.zone.name}"
            ended = f"rolled back at {when}, as instant "
            remark = ended + undoing.requested_time
            return _without_files(time, undoing.action, "rolled back", remark)
    raise InstantNotFoundError(
        "the table has no trace of this instant: it is neither on the timeline nor archived, and "
        "no rollback or rejected write names it. Check the instant, and that it belongs to this "
        f"table: {time}",
        kind="instant_unknown",
        requested_time=time,
    )


def _without_files(time: InstantTime, action: Action, state: str, remark: str) -> InstantSummary:
    return InstantSummary(
        requested_time=time,
        completion_time=None,
        action=action.value,
        state=state,
        archived=False,
        remarks=(remark,),
    )


def _refused_first(write: InstantSummary, time: InstantTime) -> InstantSummary | None:
    """Return the rejected attempt of a committed write with this requested time, or None."""
    for refusal in write.refusals:
        if refusal.get("instant") == time:
            return _rejected_attempt(
                write, time, f"written again as {write.requested_time}", refusals=(refusal,)
            )
    return None


def _rejected_write(write: RejectedWrite, time: InstantTime) -> InstantSummary:
    """Return one attempt of a rejected write; the last attempt has all conflicts."""
    last = time == write.requested_time
    attempts = (
        write.attempts if last else [one for one in write.attempts if one.get("instant") == time]
    )
    remark = f"not committed after {counted(len(write.attempts), 'attempt')}"
    if write.attempts[-1].get("retry_can_succeed"):
        remark += f"; write again, or raise {_RETRIES_KEY} so that the engine retries by itself"
    return _rejected_attempt(
        write,
        time,
        remark if last else f"written again as {write.requested_time}, which was not committed",
        operation=write.operation,
        attempts=len(write.attempts),
        refusals=tuple(attempts),
    )


def _rejected_attempt(
    write: InstantSummary | RejectedWrite, time: InstantTime, remark: str, **more: Any
) -> InstantSummary:
    return InstantSummary(
        requested_time=time,
        completion_time=None,
        action=write.action,
        state="refused",
        archived=False,
        writer=write.writer,
        host=write.host,
        pid=write.pid,
        application=write.application,
        remarks=(remark,),
        **more,
    )


def rejected_writes_of(context: TableContext) -> list[InstantSummary]:
    """Return the last attempt of each of the ``rejected_writes``."""
    return [_rejected_write(one, one.requested_time) for one in rejected_writes(context)]


_Slots = Mapping[tuple[InstantTime, bool], Slot]


def _slots_by_instant(context: TableContext) -> _Slots:
    """Return the newest slot of each instant; a savepoint has its write's time and an own key."""
    found: dict[tuple[InstantTime, bool], Slot] = {}
    for slot in context.commit_log.newest_first():
        saves = slot.kind in (SlotKind.SAVEPOINT, SlotKind.UNSAVEPOINT)
        found.setdefault((slot.instant_time, saves), slot)  # the end of a plan wins over its start
    return found


def _published_by(instant: Instant, slots: _Slots) -> Slot | None:
    """Return the slot that completed an instant; other engines take none, even for our plans."""
    slot = slots.get((instant.requested_time, instant.action is Action.SAVEPOINT))
    return slot if slot and slot.completion_time == instant.completion_time else None


def _summary(
    context: TableContext,
    instant: Instant,
    slots: _Slots,
    *,
    in_full: bool = False,
    active: ActiveTimeline | None = None,
) -> InstantSummary:
    slot = _published_by(instant, slots)
    fields: dict[str, Any] = {}
    if slot is not None:
        fields |= {
            "writer": slot.owner.writer_id,
            "host": slot.owner.host,
            "pid": slot.owner.pid,
            "application": slot.owner.application,
            "slot_number": slot.number,
            "fencing_token": slot.owner.fencing_token,
        }
    remarks: list[str] = []
    if instant.completed:
        if instant.action in WRITE_ACTIONS:
            metadata = _metadata_of(context, instant)
            if metadata is None:
                remarks.append("its metadata cannot be read")
            else:
                fields |= _commit_fields(metadata, in_full=in_full)
                remarks.extend(_members(metadata, slot if in_full else None))
        else:
            fields |= _upkeep_fields(context, instant)
    else:
        if instant.action in WRITE_ACTIONS:
            fields |= _announced_by(context, instant)
        if in_full and active is not None:
            remarks.extend(_pending_remarks(context, instant, active))
    return InstantSummary(
        requested_time=instant.requested_time,
        completion_time=instant.completion_time,
        action=(instant.action.completes_as if instant.completed else instant.action).value,
        state=instant.state.value,
        archived=False,
        remarks=tuple(remarks),
        **fields,
    )


def _members(metadata: CommitMetadata, slot: Slot | None) -> list[str]:
    """Return remarks on the writes of a group commit (GRP-1) and on the batches of an instant."""
    size = metadata.extra_metadata.get(GROUP_KEY)
    lines = [f"committed {size} writes together"] if size else []
    lines.extend(
        f"batch {batch.batch_id}: {batch.rows_inserted} inserted, {batch.rows_updated} updated, "
        f"{batch.rows_deleted} deleted"
        for batch in (slot.batches if slot is not None else ())
    )
    return lines


def _metadata_of(context: TableContext, instant: Instant) -> CommitMetadata | None:
    try:
        return context.commits.read(instant)
    except (CorruptTableError, MissingFileError):
        return None


def _commit_fields(metadata: CommitMetadata, *, in_full: bool) -> dict[str, Any]:
    extra = metadata.extra_metadata
    fields: dict[str, Any] = {
        "operation": metadata.operation_type,
        "rows_inserted": metadata.total_rows_inserted,
        "rows_updated": metadata.total_rows_updated,
        "rows_deleted": metadata.total_rows_deleted,
        "files_written": metadata.total_files,
        "bytes_written": metadata.total_bytes,
        "partitions": tuple(sorted(metadata.partition_paths())),
        "refusals": _documents(extra, _REFUSALS_KEY),
        "waits": _documents(extra, _WAITS_KEY),
        **_writer_fields(extra),
    }
    attempts = extra.get("hoodoo.attempts", "")
    if attempts.isdigit():
        fields["attempts"] = int(attempts)
    if in_full:
        groups = sorted(f"{path}/{file_id}" for path, file_id in metadata.file_groups())
        fields["file_groups"] = tuple(groups[:_FILE_GROUPS_SHOWN_MAX])
    return fields


def _writer_fields(extra: Mapping[str, str]) -> dict[str, Any]:
    who = SlotOwner.from_metadata(extra)
    if who is None:
        return {}
    fields: dict[str, Any] = {
        "writer": who.writer_id,
        "host": who.host,
        "pid": who.pid,
        "application": who.application,
    }
    token = extra.get(FENCING_TOKEN_KEY, "")
    if token.isdigit():  # remains after archiving deletes the slot
        fields["fencing_token"] = int(token)
    return fields


def _documents(extra: Mapping[str, str], key: str) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(extra.get(key, "[]"))
    except ValueError:
        return ()
    if not isinstance(found, list):
        return ()
    return tuple(each for each in found if isinstance(each, dict))


def _upkeep_fields(context: TableContext, instant: Instant) -> dict[str, Any]:
    path = context.instant_path(instant_file_name(instant))
    try:
        data = context.ports.storage.read(path)
        if instant.action is Action.CLEAN:
            clean = decode_clean(data, path=path)
            return _clean_fields(clean)
        if instant.action is Action.ROLLBACK:
            undone = decode_rollback(data, path=path)
            return {
                "files_deleted": undone.total_files_deleted,
                "operation": f"of {', '.join(undone.commits_rollback)}",
            }
    except (CorruptTableError, ObjectMissingError):
        return {}
    return {}


def _clean_fields(clean: CleanMetadata) -> dict[str, Any]:
    counts = {"files_deleted": clean.total_files_deleted, "operation": "clean"}
    return {**counts, **_writer_fields(clean.extra_metadata)}


def _announced_by(context: TableContext, instant: Instant) -> dict[str, Any]:
    """Return the writer and operation that a pending write announces (BEG-6)."""
    path = context.instant_path(pending_file_names(instant.action, instant.requested_time)[0])
    try:
        announced = decode_commit(context.ports.storage.read(path), path=path)
    except (CorruptTableError, ObjectMissingError):
        return {}  # the file is missing yet, or belongs to a plan
    return {"operation": announced.operation_type, **_writer_fields(announced.extra_metadata)}


def _pending_remarks(context: TableContext, instant: Instant, active: ActiveTimeline) -> list[str]:
    if instant not in active.pending_ingestion:
        return ["a plan that no executor has completed yet"]
    context.identity.assert_decided_here(context.ports)
    taken = _deciding(context, instant)
    if taken is not None and taken.kind is not SlotKind.COMMIT:
        return [_UNDONE.format(who=taken.owner.text, instant=taken.instant_time)]
    if taken is not None:
        return [_not_applied_remark(taken)]
    dead = instants_with_expired_heartbeat(
        context.ports.storage, (instant.requested_time,), context.limits.heartbeat
    )
    if dead:
        return [_DEAD]
    return ["the heartbeat of its writer is fresh"]


def _not_applied_remark(slot: Slot) -> str:
    """Return the remark on a slot whose completed file is missing."""
    return (_UNDECIDED if slot.timeline_digest else _PUBLISHED).format(slot.number)


def _deciding(context: TableContext, instant: Instant) -> Slot | None:
    """Return the slot that committed or ended a pending write, regardless of its files."""
    time = instant.requested_time
    return next(
        (
            slot
            for slot in without_void(context.commit_log.newest_first())
            if time in restored_away_by(slot)
            or (slot.kind in (SlotKind.COMMIT, SlotKind.ABORT) and slot.requested_time == time)
        ),
        None,
    )


def _archived(context: TableContext) -> list[InstantSummary]:
    summaries = []
    for row in context.archived_timeline.instants(times_only=False):
        fields: dict[str, Any] = {}
        path = f"archived timeline ({row.requested_time})"
        try:
            if row.metadata and row.action in ("commit", "deltacommit", "replacecommit"):
                metadata = decode_archived_commit(row.metadata, action=row.action, path=path)
                fields = _commit_fields(metadata, in_full=False)
            elif row.metadata and row.action == Action.CLEAN.value:
                fields = _clean_fields(decode_archived_clean(row.metadata, path=path))
        except CorruptTableError:
            fields = {"remarks": ("its metadata cannot be read",)}
        summaries.append(
            InstantSummary(
                requested_time=row.requested_time,
                completion_time=row.completion_time,
                action=row.action,
                state="completed",
                archived=True,
                **fields,
            )
        )
    return summaries


# ---- The summary of one instant: JSON for programs, lines for people


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class InstantSummary:
    """The summary of one instant. Empty texts and None mean that no record has the value."""

    requested_time: InstantTime
    completion_time: InstantTime | None
    action: str
    state: str
    archived: bool
    operation: str = ""
    writer: str = ""
    host: str = ""
    pid: int | None = None
    application: str = ""
    slot_number: int | None = None
    fencing_token: int | None = None
    attempts: int | None = None
    refusals: tuple[Mapping[str, Any], ...] = ()
    waits: tuple[Mapping[str, Any], ...] = ()  # for announced writes (BEG-8)
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    files_written: int = 0
    files_deleted: int = 0
    bytes_written: int = 0
    partitions: tuple[str, ...] = ()
    file_groups: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    zone: TimelineZone = UTC_ZONE  # of the printed times

    @property
    def who(self) -> str:
        """The name of the application, else process and host."""
        if self.application:
            return self.application
        return f"pid {self.pid} on {self.host}" if self.host else ""

    @property
    def seconds(self) -> float | None:
        """Seconds from the requested time to the completion time; None if pending."""
        if self.completion_time is None:
            return None
        wall_ms = self.zone.wall_ms
        return (wall_ms(self.completion_time) - wall_ms(self.requested_time)) / 1000

    @property
    def rows_text(self) -> str:
        """``+inserted ~updated -deleted``, without zeros."""
        parts = (("+", self.rows_inserted), ("~", self.rows_updated), ("-", self.rows_deleted))
        return " ".join(f"{sign}{count}" for sign, count in parts if count)

    @property
    def rejections_text(self) -> tuple[str, ...]:
        """One line for each rejected attempt: rule, winners, file groups, the repeated work."""
        texts = []
        for number, each in enumerate(self.refusals, 1):
            text = f"{each.get('rule', '?')} {each.get('why', '')}; won by "
            text += "; ".join(each.get("winners", ())) or "an unknown writer"
            places = [*each.get("file_groups", ()), *each.get("partitions", ())]
            if places:
                more = f" and {len(places) - _PLACES_SHOWN_MAX} more"
                text += f"; both access {', '.join(places[:_PLACES_SHOWN_MAX])}"
                text += more if len(places) > _PLACES_SHOWN_MAX else ""
            if self.state != "refused" or number != self.attempts:  # the last one is not repeated
                text += f"; redone: {each.get('redo', '?')}"
            texts.append(text)
        return tuple(texts)

    @property
    def waits_text(self) -> tuple[str, ...]:
        """One line for each wait: its length and the awaited writers."""
        return tuple(
            f"{each.get('wait_ms', '?')} ms for what was announced before: "
            + ("; ".join(each.get("winners", ())) or "an unknown writer")
            for each in self.waits
        )

    def as_document(self) -> dict[str, Any]:
        """Return the summary in a JSON-ready form."""
        document = asdict(replace(self, zone=UTC_ZONE)) | {"zone": self.zone.name}
        document["seconds"] = self.seconds
        return document

    def __repr__(self) -> str:
        """One line for a list of instants; ``print`` shows all facts."""
        rows = self.rows_text and f"{self.rows_text} rows"
        facts = ", ".join(filter(None, (self.state, self.operation.lower(), rows)))
        return f"<{self.action} {self.requested_time}: {facts}>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the summary as lines for people."""
        lines = [f"{self.action} {self.requested_time}: {self.state}"]
        if self.archived:
            lines.append("archived")
        if self.operation:
            lines.append(f"operation {self.operation.lower()}")
        if self.host or self.application:
            named = f"{self.application} (pid {self.pid} on {self.host})"
            lines.append(f"by {named if self.application else self.who}")
        lines.append(f"requested {time_text(self.requested_time)} {self.zone.name}")
        if self.completion_time is not None:
            lines.append(
                f"completed {time_text(self.completion_time)} {self.zone.name}, after {self.seconds} s"
            )
        if self.slot_number is not None:
            token = f", fencing token {self.fencing_token}" if self.fencing_token else ""
            lines.append(f"committed as number {self.slot_number} of this table{token}")
        if self.rows_text or self.files_written:
            lines.append(
                f"rows {self.rows_text or 0}; {counted(self.files_written, 'file')}, "
                f"{self.bytes_written} bytes, in {counted(len(self.partitions), 'partition')}"
            )
        if self.files_deleted:
            lines.append(f"{counted(self.files_deleted, 'file')} deleted")
        if self.attempts is not None:
            lines.append(f"attempts {self.attempts}")
        lines.extend(f"refused: {text}" for text in self.rejections_text)
        lines.extend(f"waited: {text}" for text in self.waits_text)
        lines.extend(self.remarks)
        return lines


def time_text(time: InstantTime) -> str:
    """Return an instant time in the form ``2026-11-21 10:09:56.962``."""
    text = time if len(time) == 17 else f"{time}000"
    date = f"{text[:4]}-{text[4:6]}-{text[6:8]}"
    return f"{date} {text[8:10]}:{text[10:12]}:{text[12:14]}.{text[14:]}"
