"""
Check the history of a table: its timeline, slots and rows, and the journals of its clients.

A table records its commits, but not the answers to its clients or their reads. A client records
these in a journal: a file of JSON lines, one for each event::

    {
        "event": "write",
        "name": "load-7",
        "answer": "ok",
        "instant": "20260102030405678",
        "keys": ["1", "2"],
        "deletes": false,
        "reads": [["1", "20260102030405000"]],
        "batch": "b7",
    }
    {
        "event": "read",
        "name": "audit-3",
        "at": "20260102030405999",
        "full": true,
        "rows": [["1", "20260102030405678"], ["2", null]],
    }

``answer`` is ``ok``, ``fail`` or ``unknown``. ``instant`` is the requested time of the commit
result; only an ``ok`` needs it, and the members of a group share it. Versions are the
``_hoodie_commit_time`` of rows, or null for no row. Keys are as in ``_hoodie_record_key``. ``at``
is the completion time of the snapshot that was read.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from filegroups.schema.schema import COMMIT_TIME_COLUMN, KEY_COLUMN, PARTITION_COLUMN
from filegroups.table import TableSnapshot
from hoodoo.history_checker.anomalies import Anomaly, find_anomalies
from hoodoo.history_checker.history import HistoryRecorder
from timeline.archived import ARCHIVED_WRITES
from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.codecs.legacy_commit import decode_archived_commit
from timeline.commit.revalidate import without_void
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import Access, CommitMetadata, MergeMode, TableType, WriteSet
from timeline.model.file_names import HISTORY
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.rollback.rollback import rollback_records
from timeline.snapshot import Snapshot

_ANSWERS: Final = ("ok", "fail", "unknown")
_TIME: Final = re.compile(r"\d{17}", re.ASCII)


def read_client_history(run: HistoryRecorder, lines: Iterable[bytes], *, source: str) -> int:
    """
    Add a journal to a history; skip a torn last line, which a killed client leaves.

    Args:
        run: Receives the events.
        lines: The lines of the file.
        source: The file's name, for errors and to distinguish readers with equal names.

    Returns:
        The number of events.

    Raises:
        InvalidInputError: A line has neither of the two forms.
    """
    recorded = 0
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for number, line in kept:
        try:
            event = json.loads(line)
        except ValueError as error:
            if recorded and number == kept[-1][0]:
                break
            raise _not_a_journal(source, number, error) from error
        try:
            _record(run, event, f"{source}:{number}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _not_a_journal(source, number, error) from error
        recorded += 1
    return recorded


def _not_a_journal(source: str, number: int, error: Exception) -> InvalidInputError:
    return InvalidInputError(
        "a line of a journal is neither a write nor a read in the form of "
        f"docs/how-to/check-history.md ({error!r}): correct the line: {source}, line {number}",
        kind="journal",
        path=source,
        line=number,
    )


def _record(run: HistoryRecorder, event: dict[str, Any], place: str) -> None:
    if event["event"] == "read":
        name = f"{event.get('name') or 'read'} ({place})"
        rows = _pairs(event["rows"])
        at = _time(event, "at")
        run.transaction(name, snapshot=int(at) if at else None, full=bool(event.get("full", False)))
        run.reads(name, rows)
        return
    if event["event"] != "write" or event["answer"] not in _ANSWERS:
        raise ValueError(event["event"])
    instant = _time(event, "instant")
    if instant is None and event["answer"] == "ok":
        raise KeyError("instant")
    line = f"{event.get('name') or 'write'} ({place})"
    name = instant or line
    keys = [str(key) for key in event["keys"]]
    reads = _pairs(event.get("reads") or [])
    answer = None if event["answer"] == "unknown" else event["answer"]
    run.client(name, line, answer=answer, batch=event.get("batch"), reads=reads)
    rank = None if instant is None else int(instant)
    run.writes(name, keys, deletes=bool(event.get("deletes", False)), rank=rank)


def _time(event: dict[str, Any], field: str) -> InstantTime | None:
    time = event.get(field)
    if time is not None and not _TIME.fullmatch(str(time)):
        raise ValueError(field)
    return None if time is None else str(time)


def _pairs(found: list[Any]) -> list[tuple[str, str | None]]:
    return [(str(key), None if version is None else str(version)) for key, version in found]


# ----------------------------------------------------------------
# Compare the timeline, the slots, the rows and the journals of clients.
#
# The timeline has the commits and their order. A slot has the source version of each file group
# that a write changed, and the batches of the write. A row names the last writer of its key. A
# journal has the answers and reads of a client. Each source alone is consistent; a lost update is a
# contradiction between two of them.

#: Operations that hide rows without naming their keys.
_HIDING: Final = frozenset({"DELETE_PARTITION", "INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"})


def check_history(context: TableContext, journals: Sequence[Path] = ()) -> list[Anomaly]:
    """
    Return the anomalies in the history of a table.

    Args:
        context: The table.
        journals: Journals of clients, in the form that this module's docstring shows; may be empty.

    Raises:
        InvalidInputError: A journal cannot be read.
        CorruptTableError: The table cannot be read.

    Outside: the active and the archived timeline; 1 get per instant and slot; the key columns of
    all rows.
    """
    run = HistoryRecorder(
        ordered=context.config.merge.mode is MergeMode.COMMIT_TIME_ORDERING,
        by_commits=context.config.table_type is TableType.COPY_ON_WRITE,
    )
    for journal in journals:
        try:
            with journal.open("rb") as lines:
                read_client_history(run, lines, source=journal.name)
        except OSError as error:
            raise InvalidInputError(
                f"a journal cannot be read ({error.strerror}): correct its path or its rights: "
                f"{journal}",
                kind="journal",
                path=str(journal),
            ) from error
    record_table(context, run)
    return find_anomalies(run.finish())


def record_table(context: TableContext, run: HistoryRecorder) -> None:
    """Add commits, slots and rows of a table; add journals before. Outside: as check_history."""
    deletes = run.deletes()
    snapshot = context.snapshot()
    archived = context.archived_timeline.instants(times_only=False)
    committed: dict[InstantTime, int] = {}
    for name, position, metadata in _commits(snapshot, archived):
        run.transaction(name, position=position, places=sorted(metadata.partition_paths()))
        committed[name] = position
        if _clears(metadata, deletes.get(name, 0)):
            run.cleared = max(run.cleared, position)
    run.known_since = min(committed, default="")
    # The time until which each removed commit may have hidden rows from readers.
    restored_away = _restored_away(context, snapshot, archived, committed)
    claims: list[tuple[InstantTime, WriteSet]] = []
    for slot in without_void(context.commit_log.newest_first(snapshot.head)):
        if slot.kind is SlotKind.COMMIT and slot.requested_time in committed:
            _record_batches(run, slot)
            claims.append((slot.requested_time, slot.write_set))
        for name in restored_away_by(slot):
            restored_away[name] = int(slot.completion_time)
        if slot.kind is SlotKind.COMMIT and slot.requested_time in restored_away:
            restored_away[slot.requested_time] = int(slot.completion_time)
        if slot.kind is SlotKind.ABORT:
            restored_away.pop(slot.requested_time, None)  # never committed, so never seen
    for name in restored_away.keys() - committed.keys():
        run.transaction(name, undone=True)
        run.cleared = max(run.cleared, restored_away[name])
    # With logs, a compaction runs while writers append, so versions of base files form no chain.
    if context.config.table_type is TableType.COPY_ON_WRITE:
        record_versions(run, claims)
    restores = [
        one.requested_time
        for one in snapshot.active.instants
        if one.action is Action.RESTORE and one.completed
    ]
    restores += [one.requested_time for one in archived if one.action == Action.RESTORE.value]
    run.restored_away(max(restores, default=""))
    if context.config.populate_meta_fields and committed:
        _record_rows(context, run, snapshot)


def _restored_away(
    context: TableContext,
    snapshot: Snapshot,
    archived: Sequence[ArchivedInstant],
    committed: Mapping[InstantTime, int],
) -> dict[InstantTime, int]:
    """
    Return the removed instants that may have been committed, with the time of the removal.

    A rollback removes a committed write only if it is the newest. So no write that began after it
    was committed at that time.
    """
    begun = sorted(committed)
    ends = list(accumulate((committed[name] for name in reversed(begun)), min))[::-1]

    def was_newest(name: InstantTime, at: int) -> bool:
        later = bisect_right(begun, name)
        return later == len(begun) or ends[later] > at

    return {
        name: int(one.completion_time)
        for one in rollback_records(context, snapshot.active, archived)
        for name in one.targets
        if one.action is Action.RESTORE or was_newest(name, int(one.requested_time))
    }


def _commits(
    snapshot: Snapshot, archived: Sequence[ArchivedInstant]
) -> Iterator[tuple[str, int, CommitMetadata]]:
    """Yield requested time, completion time and metadata of every committed write."""
    present = {one.requested_time for one in snapshot.active.completed_writes}
    for row in archived:
        if row.action in ARCHIVED_WRITES and row.requested_time not in present:
            path = f"{HISTORY} ({row.requested_time})"
            metadata = decode_archived_commit(row.metadata or b"", action=row.action, path=path)
            yield row.requested_time, int(row.completion_time or row.requested_time), metadata
    for one in snapshot.active.completed_writes:
        position = int(one.completion_time or one.requested_time)
        yield one.requested_time, position, snapshot.commits.read(one)


def _clears(metadata: CommitMetadata, known_deletes: int) -> bool:
    """Return whether a commit deleted more rows than the ``known_deletes`` ones of the journals."""
    deletes = sum(stat.num_deletes for stat in metadata.write_stats())
    operation = metadata.operation_type.upper()
    return (
        deletes > known_deletes
        or operation in _HIDING
        or (operation == "DELETE" and not known_deletes)
    )


def _record_batches(run: HistoryRecorder, slot: Slot) -> None:
    position = int(slot.completion_time)
    for number, batch in enumerate(slot.batches):
        name = slot.requested_time
        of_batch = name if number == 0 else f"{name} ({batch.batch_id})"
        run.transaction(of_batch, position=position, batch=batch.batch_id)


def record_versions(run: HistoryRecorder, claims: Sequence[tuple[InstantTime, WriteSet]]) -> None:
    """
    Add the versions of file groups: the writer and the source version of each.

    The order of versions is that of requested times, also for a version whose slot is truncated.
    Its commit position would put it after a version that an earlier-begun write made from it.

    Args:
        run: Receives the versions.
        claims: Requested times and write sets of slots, of a table without logs.
    """
    written, sources = set[tuple[str, str]](), set[tuple[str, str]]()
    for name, claim in claims:
        made = [one for one in claim.file_groups if one.access in (Access.NEW, Access.BASE)]
        read = [(str(one.file_group), one.source_requested_time) for one in made]
        run.reads(name, [(item, source) for item, source in read if source is not None])
        written |= {(name, item) for item, _ in read}
        sources |= {(source, item) for item, source in read if source is not None}
    for name, pairs in groupby(sorted(written | sources), itemgetter(0)):
        run.writes(name, [item for _, item in pairs], rank=int(name), in_rows=False)


def _record_rows(context: TableContext, run: HistoryRecorder, snapshot: Snapshot) -> None:
    columns = [KEY_COLUMN, COMMIT_TIME_COLUMN, PARTITION_COLUMN]
    rows = TableSnapshot(context, snapshot).to_arrow(columns=columns)
    name = "the newest state"
    run.transaction(name, snapshot=int(snapshot.newest_completion or 0), full=True)
    run.reads_rows(name, *(rows.column(column) for column in columns))
