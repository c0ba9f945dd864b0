"""
List the instants of a table: writer, times, rows, rejected attempts.

An ``InstantSummary`` joins an instant's files, its commit metadata, its commit slot and the
rejected attempts before it. A value that another engine did not record stays empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from timeline.codecs.instant_avro import (
    FENCING_TOKEN_KEY,
    decode_clean,
    decode_commit,
    decode_rollback,
)
from timeline.codecs.legacy_commit import decode_archived_clean, decode_archived_commit
from timeline.context import TableContext
from timeline.errors import CorruptTableError, MissingFileError, counted
from timeline.model.commit_metadata import GROUP_KEY, CommitMetadata
from timeline.model.file_names import instant_file_name, pending_file_names
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.instant_time import UTC_ZONE, InstantTime, TimelineZone
from timeline.model.plans import CleanMetadata
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.ports.ports import ObjectMissingError

_REFUSALS_KEY = "hoodoo.refusals"
_WAITS_KEY = "hoodoo.waits"
_FILE_GROUPS_SHOWN_MAX = 50
_PLACES_SHOWN_MAX = 3  # in a line


def list_instants(context: TableContext, *, archived: bool = False) -> list[InstantSummary]:
    """
    Return the instants of a table, ascending by requested time.

    Outside: 1 list, 1 get per completed instant and pending write, 1 get per slot; with
    ``archived`` the files of the archived timeline.

    Raises:
        CorruptTableError: A slot cannot be read.
    """
    slots = slots_by_instant(context)
    active = context.active()
    summaries = [summarize(context, instant, slots) for instant in active.instants]
    if archived:
        known = {(one.requested_time, one.action) for one in summaries}
        summaries.extend(
            one
            for one in archived_summaries(context)
            if (one.requested_time, one.action) not in known
        )
    summaries = [replace(one, zone=context.zone) for one in summaries]
    return sorted(summaries, key=lambda one: (one.requested_time, one.action))


SlotsByInstant = Mapping[tuple[InstantTime, bool], Slot]


def slots_by_instant(context: TableContext) -> SlotsByInstant:
    """Return the newest slot of each instant; a savepoint has its write's time and an own key."""
    found: dict[tuple[InstantTime, bool], Slot] = {}
    for slot in context.commit_log.newest_first():
        saves = slot.kind in (SlotKind.SAVEPOINT, SlotKind.UNSAVEPOINT)
        found.setdefault((slot.instant_time, saves), slot)  # the end of a plan wins over its start
    return found


def _published_by(instant: Instant, slots: SlotsByInstant) -> Slot | None:
    """Return the slot that completed an instant; other engines take none, even for our plans."""
    slot = slots.get((instant.requested_time, instant.action is Action.SAVEPOINT))
    return slot if slot and slot.completion_time == instant.completion_time else None


def summarize(
    context: TableContext, instant: Instant, slots: SlotsByInstant, *, in_full: bool = False
) -> InstantSummary:
    """
    Return the summary of an instant of the active timeline.

    Outside: 1 get per completed instant and pending write.

    Args:
        context: The table.
        instant: The instant.
        slots: As ``slots_by_instant``.
        in_full: Add the file groups, and the batches of the slot.
    """
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
    elif instant.action in WRITE_ACTIONS:
        fields |= _announced_by(context, instant)
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


def archived_summaries(context: TableContext) -> list[InstantSummary]:
    """Return the summaries of all instants of the archived timeline."""
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
            if self.state != "rejected" or number != self.attempts:  # the last one is not repeated
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
        lines.extend(f"rejected: {text}" for text in self.rejections_text)
        lines.extend(f"waited: {text}" for text in self.waits_text)
        lines.extend(self.remarks)
        return lines


def time_text(time: InstantTime) -> str:
    """Return an instant time in the form ``2026-11-21 10:09:56.962``."""
    text = time if len(time) == 17 else f"{time}000"
    date = f"{text[:4]}-{text[4:6]}-{text[6:8]}"
    return f"{date} {text[8:10]}:{text[10:12]}:{text[12:14]}.{text[14:]}"
