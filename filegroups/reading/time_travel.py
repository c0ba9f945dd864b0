"""
Time travel: return the snapshot of a time, or raise if the answer is not certain (fmt 6.5).

A time in the archived timeline is answered as long as its files exist. Java Hudi then returns the
rows that remain after cleaning. hoodoo raises instead if a later clean deleted a file that was
visible at that time and that no remaining file supersedes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from filegroups.files.parquet import read_footer
from filegroups.reading.scan import view_of
from timeline.archived import ARCHIVED_WRITES
from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.codecs.instant_avro import decode_clean
from timeline.codecs.legacy_commit import decode_archived_clean, decode_archived_commit
from timeline.context import TableContext
from timeline.errors import InstantNotFoundError
from timeline.model.commit_metadata import SCHEMA_KEY, CommitMetadata, FileGroupId
from timeline.model.file_names import (
    HISTORY,
    instant_file_name,
    parse_base_file_name,
    parse_log_file_name,
)
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.plans import CleanMetadata
from timeline.pending_plans import moves_rows_only
from timeline.snapshot import Snapshot


def may_be_archived(context: TableContext, snapshot: Snapshot, since: InstantTime) -> bool:
    """
    Return whether instants that completed after ``since`` may be archived.

    Archiving chooses instants by requested time. A long-running instant is archived with those that
    began at the same time, and may have completed after many that stay active. Before layout 2 the archived
    timeline has no completion times.

    Outside: as ``History.times``, unless the active timeline is enough.
    """
    if since < snapshot.first_completion:
        return True
    if context.config.timeline_layout_version == 1:
        return False
    return context.archived_timeline.times().newest_completion > since


def snapshot_as_of(context: TableContext, time: InstantTime) -> Snapshot:
    """
    Return the snapshot of the instants requested at or before a time (fmt 6.5).

    Raises:
        InstantNotFoundError: The time is before the oldest instant; or files of that time were
            cleaned; or it is at or after the oldest pending write, so the answer could change.

    Outside: as ``TableContext.snapshot``, and 1 get of the last clean. Below the active timeline
    also the archived timeline. If the last clean names no earliest commit to retain, 1 get per
    later clean and 1 list per partition it cleaned.
    """
    snapshot = context.snapshot(as_of=time)
    active = snapshot.active
    # Pending compactions and clusterings move rows without changing them: Java answers too.
    pending = [
        one
        for one in active.pending_ingestion
        if time >= one.requested_time and not moves_rows_only(context, one)
    ]
    if pending:
        raise InstantNotFoundError(
            "a write that began before this time is still pending, so the result could still "
            f"change: read a time before {pending[0].requested_time}, or wait: {time}",
            kind="time_travel_pending",
            time=time,
            pending=pending[0].requested_time,
        )
    retained = retained_since(context, snapshot)
    if retained is not None and time < retained:
        raise InstantNotFoundError(
            "cleaning deleted files of that time: read a later time; the oldest retained one is "
            f"{retained}: {time}",
            kind="time_travel_cleaned",
            time=time,
            retained=retained,
        )
    archived: list[ArchivedInstant] = []
    if active.completed_writes and not snapshot.decides_schema:
        archived = context.archived_timeline.instants(times_only=False)
        snapshot = _with_archived_write(context, snapshot, archived)
    if retained is None:
        _refuse_cleaned(context, snapshot, archived)
    return snapshot


def retained_since(context: TableContext, snapshot: Snapshot) -> InstantTime | None:
    """Return the earliest commit to retain of the last completed clean; None if there is none."""
    cleans = _cleans(snapshot)
    if not cleans:
        return None
    last = max(cleans, key=lambda instant: instant.completion_time or "")
    return _clean_metadata(context, last).earliest_commit_to_retain or None


def _cleans(snapshot: Snapshot) -> list[Instant]:
    return [i for i in snapshot.active.instants if i.action is Action.CLEAN and i.completed]


def _clean_metadata(context: TableContext, clean: Instant) -> CleanMetadata:
    path = context.instant_path(instant_file_name(clean))
    return decode_clean(context.ports.storage.read(path), path=path)


def _with_archived_write(
    context: TableContext, snapshot: Snapshot, archived: Sequence[ArchivedInstant]
) -> Snapshot:
    """
    Return the snapshot with the write that decided its schema, archived or still active.

    Services repeat a schema; theirs is used only if no write has one.
    """
    time, kept = snapshot.as_of or "", snapshot.newest_schema_commit
    writes = [one for one in archived if one.action in ARCHIVED_WRITES]
    shown = [one for one in writes if one.requested_time <= time]
    repeated: CommitMetadata | None = None
    for one in sorted(shown, key=_completion_before, reverse=True):
        if kept is not None and _completion_before(one) < (
            kept.completion_time or kept.requested_time
        ):
            break
        metadata = _commit_of(one)
        if metadata.schema_json and metadata.decides_schema:
            return replace(snapshot, archived_write=metadata)
        repeated = repeated or (metadata if metadata.schema_json else None)
    if kept is not None:
        return replace(snapshot, archived_write=snapshot.commits.read(kept))
    if snapshot.completions:
        return snapshot
    if repeated is not None:
        return replace(snapshot, archived_write=repeated)
    # Java also reads the schema from a file if no instant has it; the archive may be deleted.
    newest = max(
        (one.base_file for one in view_of(context, snapshot).base_slices() if one.base_file),
        key=lambda base: base.requested_time,
        default=None,
    )
    if newest is not None:
        schema = read_footer(context.ports.storage, newest.path).avro_json or ""
        write = CommitMetadata(extra_metadata={SCHEMA_KEY: schema})
        return replace(snapshot, archived_write=write)
    if shown:
        return snapshot
    active = snapshot.active.completed_writes[0]
    first = min([active.requested_time, *(one.requested_time for one in writes)])
    raise InstantNotFoundError(
        f"the table has no instant that old: you asked for {time}; the first instant is {first}. "
        "Read a time from it on",
        kind="time_travel_too_early",
        time=time,
        first=first,
    )


def _completion_before(write: ArchivedInstant) -> InstantTime:
    """Return the completion time; the requested time if there is none (before layout 2)."""
    return write.completion_time or write.requested_time


def _commit_of(write: ArchivedInstant) -> CommitMetadata:
    path = f"{HISTORY} ({write.requested_time})"
    return decode_archived_commit(write.metadata or b"", action=write.action, path=path)


def _refuse_cleaned(
    context: TableContext, snapshot: Snapshot, archived: Sequence[ArchivedInstant]
) -> None:
    """Raise if a later clean deleted a file of that time that no remaining file supersedes."""
    time = snapshot.as_of or ""
    view = view_of(context, snapshot)
    hidden: set[FileGroupId] | None = None
    for partition_path, name in _deleted_since(context, snapshot, archived):
        file = _data_file(name)
        if file is None:
            continue
        group = FileGroupId(partition_path, file.file_id)
        slices = view.slices(partition_path).get(group, [])
        if file.time > time or _is_superseded(slices, file):
            continue
        if hidden is None:
            hidden = {*snapshot.replaced, *_replaced_in(archived, time)}
        if group in hidden:
            continue
        raise InstantNotFoundError(
            "cleaning deleted files of that time, so the result would lack rows: read a later "
            f"time: {time}",
            kind="time_travel_cleaned",
            time=time,
            path=f"{partition_path}/{name}",
        )


class _DataFile(NamedTuple):
    """The fields of a deleted file's name."""

    file_id: str
    time: InstantTime
    is_base: bool


def _data_file(name: str) -> _DataFile | None:
    base = parse_base_file_name(name)
    if base is not None:
        return _DataFile(base.file_id, base.requested_time, is_base=True)
    log = parse_log_file_name(name)
    if log is not None and not log.is_cdc:
        return _DataFile(log.file_id, log.instant_time, is_base=False)
    return None


def _is_superseded(slices: Sequence[FileSlice], gone: _DataFile) -> bool:
    """Return whether the files that remain at that time are newer than a deleted file."""
    if gone.is_base:
        bases = (one.base_file for one in slices)
        return any(base is not None and base.requested_time >= gone.time for base in bases)
    return any(one.base_instant_time > gone.time for one in slices)


def _deleted_since(
    context: TableContext, snapshot: Snapshot, archived: Sequence[ArchivedInstant]
) -> Iterator[tuple[str, str]]:
    """Yield partition path and name of each file that cleans after the snapshot's time deleted."""
    time = snapshot.as_of or ""
    for clean in _cleans(snapshot):
        if clean.requested_time > time:
            yield from _deleted(_clean_metadata(context, clean))
    for row in archived:
        if row.action == Action.CLEAN.value and row.requested_time > time and row.metadata:
            path = f"{HISTORY} ({row.requested_time})"
            yield from _deleted(decode_archived_clean(row.metadata, path=path))


def _deleted(metadata: CleanMetadata) -> Iterator[tuple[str, str]]:
    for partition_path, partition in metadata.partition_metadata.items():
        for name in partition.success_delete_files:
            yield partition_path, name.rpartition("/")[2]


def _replaced_in(archived: Sequence[ArchivedInstant], time: InstantTime) -> Iterator[FileGroupId]:
    """Yield the file groups that archived instants had replaced by a time."""
    for row in archived:
        if row.action == Action.REPLACECOMMIT.value and row.requested_time <= time:
            for partition_path, file_id in _commit_of(row).replaced_file_groups():
                yield FileGroupId(partition_path, file_id)
