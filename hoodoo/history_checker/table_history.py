"""
Check journals of clients against a table: what was acknowledged, and what the table holds.

A journal is a file of JSON lines, one for each event.
A table knows what was committed, not what clients were told or what they saw on the way. A client
that wants this checked appends one line for each event to a file of its own::

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

``answer`` is ``ok``, ``fail`` or ``unknown``; ``instant`` (a receipt's requested time) may be
missing only where it is not ``ok``; writes of a group share it. Versions are the ``_hoodie_commit_time`` of rows, null for
no row; keys are as in ``_hoodie_record_key``. ``at`` is the completion time that was read as of.
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
from timeline.codecs.archived_instants import ArchivedInstant
from timeline.codecs.legacy_commit import decode_archived_commit
from timeline.commit.revalidate import without_void
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import Access, CommitMetadata, MergeMode, TableType, WriteSet
from timeline.model.file_names import HISTORY
from timeline.model.instant import Action, InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.rollback.rollback import rollback_records
from timeline.snapshot import Snapshot

_ANSWERS: Final = ("ok", "fail", "unknown")
_TIME: Final = re.compile(r"\d{17}", re.ASCII)


def read_client_history(run: HistoryRecorder, lines: Iterable[bytes], *, source: str) -> int:
    """
    Add a journal to a run; the last line may be torn, as a killed client leaves it.

    Args:
        run: Where its events go.
        lines: Of the file.
        source: Name of the file, for errors, and to keep readers of equal names apart.

    Returns:
        The number of events.

    Raises:
        InvalidInputError: A line is none of the two forms.
    """
    told = 0
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for number, line in kept:
        try:
            event = json.loads(line)
        except ValueError as error:
            if told and number == kept[-1][0]:
                break
            raise _not_a_journal(source, number, error) from error
        try:
            _record(run, event, f"{source}:{number}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _not_a_journal(source, number, error) from error
        told += 1
    return told


def _not_a_journal(source: str, number: int, error: Exception) -> InvalidInputError:
    return InvalidInputError(
        "a line of a journal is neither a write nor a read in the form that docs/how-to/check-history.md "
        f"tells ({error!r}): {source}, line {number}",
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
# The history of a table judged: what its timeline, slots, rows and clients' journals tell
# together.
#
# The timeline says what was committed and in which order, slots which version of a file group
# each write was made from and whose batches it published, the rows who wrote each key last, and
# journals what clients were told and saw. Any of them alone is consistent with itself; a lost
# update shows where two of them do not fit.

#: Operations that hide rows which nobody names, not even who asked for them.
_HIDING: Final = frozenset({"DELETE_PARTITION", "INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"})


def check_history(context: TableContext, journals: Sequence[Path] = ()) -> list[Anomaly]:
    """
    Judge what happened to a table so far.

    Args:
        context: The table.
        journals: Files of clients, in the form of ``hoodoo.history_checker.table_history``; some or none.

    Raises:
        InvalidInputError: A journal cannot be read.
        CorruptTableError: As reading the table.

    Outside: the timeline and the history; 1 get per instant and slot; the key columns of all
    rows.
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
                f"a journal cannot be read ({error.strerror}): {journal}",
                kind="journal",
                path=str(journal),
            ) from error
    record_table(context, run)
    return find_anomalies(run.finish())


def record_table(context: TableContext, run: HistoryRecorder) -> None:
    """Add to a run what a table itself tells; journals come first. Outside: as above."""
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
    # Until when each may have hidden rows, so that readers saw them gone.
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
    # Beside logs a base file may be made while others append: only whole files form a chain.
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
    What rollbacks and restores took back that may have been committed, and when each was.

    Only the newest write is rolled back when it was committed; nothing that began after it is.
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
    """Requested time, completion time and content of every write that counts."""
    present = {one.requested_time for one in snapshot.active.completed_writes}
    for row in archived:
        if row.action in ARCHIVED_WRITES and row.requested_time not in present:
            path = f"{HISTORY} ({row.requested_time})"
            metadata = decode_archived_commit(row.metadata or b"", action=row.action, path=path)
            yield row.requested_time, int(row.completion_time or row.requested_time), metadata
    for one in snapshot.active.completed_writes:
        position = int(one.completion_time or one.requested_time)
        yield one.requested_time, position, snapshot.commits.read(one)


def _clears(metadata: CommitMetadata, told: int) -> bool:
    """Whether rows went that no journal names: more than the deletes that were told."""
    deletes = sum(stat.num_deletes for stat in metadata.write_stats())
    operation = metadata.operation_type.upper()
    return deletes > told or operation in _HIDING or (operation == "DELETE" and not told)


def _record_batches(run: HistoryRecorder, slot: Slot) -> None:
    position = int(slot.completion_time)
    for number, batch in enumerate(slot.batches):
        name = slot.requested_time
        of_batch = name if number == 0 else f"{name} ({batch.batch_id})"
        run.transaction(of_batch, position=position, batch=batch.batch_id)


def record_versions(run: HistoryRecorder, claims: Sequence[tuple[InstantTime, WriteSet]]) -> None:
    """
    Add the versions of file groups: who made which, and of which older one.

    Versions stand in the order of their names. So does one whose own slot was collected: by its
    commit it would stand behind a version that was made from it by a write which had begun before.

    Args:
        run: What is recorded.
        claims: Of slots by requested time, of a table without logs.
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
