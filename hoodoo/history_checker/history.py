"""Hold a recorded history: the versions that each transaction wrote and read, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# ---- A history as three tables: transactions, their writes and their reads
# The source is the simulator, or the timeline, slots and rows of a table with the journals of its
# clients. An *item* has versions: it is a record key or a file group. The name of a version is the
# transaction that wrote it. A history may have millions of reads, so the data are Arrow columns,
# and ``hoodoo.history_checker.anomalies`` searches them without a loop over rows.

#: ``position`` is the position of the commit, null without one. ``snapshot`` is the position that
#: a reader read at. ``answer`` is the answer to the client: ok, fail, or null if unknown. ``full``:
#: the reads are all items. ``places``: the partitions that it wrote, null if unknown. ``undone``: a
#: rollback or restore removed the commit.
TRANSACTIONS: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("snapshot", pa.int64()),
        pa.field("answer", pa.string()),
        pa.field("batch", pa.string()),
        pa.field("full", pa.bool_()),
        pa.field("places", pa.list_(pa.string())),
        pa.field("undone", pa.bool_()),
    ]
)
#: ``rank`` orders the versions of an item; if it is null, the commit position orders them.
#: ``in_rows``: whether a full read lists the item.
WRITES: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("item", pa.string()),
        pa.field("deletes", pa.bool_()),
        pa.field("rank", pa.int64()),
        pa.field("in_rows", pa.bool_()),
    ]
)
#: ``version`` is null if the item was absent. ``place`` distinguishes rows of one item, such as
#: the rows of one key in two partitions.
READS: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("item", pa.string()),
        pa.field("version", pa.string()),
        pa.field("place", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """
    A recorded history, the input of the checks.

    ``ordered``: readers must see the newest version of an item. This is false for event-time
    ordering. Versions with a name below ``known_since`` (a text) were committed before the
    recording. ``cleared`` is the position of the newest delete of unknown items, which may have
    deleted each older version. A transaction without a commit and with a name below
    ``restored_away`` (a text) may have been committed until a restore removed it.
    """

    transactions: pa.Table
    writes: pa.Table
    reads: pa.Table
    ordered: bool = True
    known_since: str = ""
    cleared: int = -1
    restored_away: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClientRecord:
    source: str
    answer: str | None
    batch: str | None
    reads: Sequence[tuple[str, str | None]]


@dataclass(slots=True)
class HistoryRecorder:
    """
    Collect a history, one event or one table of rows at a time.

    ``by_commits``: commit positions order the versions of rows, and given ranks are ignored. This
    holds for tables without logs.
    """

    ordered: bool = True
    by_commits: bool = False
    known_since: str = ""
    cleared: int = -1
    _taken_back: str = ""
    _transactions: dict[str, dict[str, object]] = field(default_factory=dict)
    _writes: list[pa.Table] = field(default_factory=list)
    _reads: list[pa.Table] = field(default_factory=list)
    _accounts: dict[str, list[_ClientRecord]] = field(default_factory=dict)

    def transaction(
        self,
        name: str,
        *,
        position: int | None = None,
        snapshot: int | None = None,
        answer: str | None = None,
        batch: str | None = None,
        full: bool = False,
        places: Sequence[str] | None = None,
        undone: bool = False,
    ) -> None:
        """Record a writer or reader; a second call for a name adds fields of ``TRANSACTIONS``."""
        values = {
            "position": position,
            "snapshot": snapshot,
            "answer": answer,
            "batch": batch,
            "full": full or None,
            "places": None if places is None else list(places),
            "undone": undone or None,
        }
        known = self._transactions.setdefault(name, {"name": name})
        known.update({key: value for key, value in values.items() if value is not None})

    def client(
        self,
        name: str,
        source: str,
        *,
        answer: str | None,
        batch: str | None,
        reads: Sequence[tuple[str, str | None]],
    ) -> None:
        """
        Record the answer, batch and reads of one client of a transaction.

        If a transaction has several clients, each is a member of a group commit (GRP-1). The reads
        of a member then carry its ``source`` as their name.
        """
        self.transaction(name)
        record = _ClientRecord(source=source, answer=answer, batch=batch, reads=reads)
        self._accounts.setdefault(name, []).append(record)

    def writes(
        self,
        name: str,
        items: Sequence[str],
        *,
        deletes: bool = False,
        rank: int | None = None,
        in_rows: bool = True,
    ) -> None:
        """Record the items that a transaction wrote or deleted; arguments as in ``WRITES``."""
        count = len(items)
        columns: list[Sequence[object]] = [[name] * count, items]
        columns += [[deletes] * count, [rank] * count, [in_rows] * count]
        self._writes.append(pa.Table.from_arrays(_typed(columns, WRITES), schema=WRITES))

    def reads(self, name: str, versions: Sequence[tuple[str, str | None]]) -> None:
        """Record the versions that a transaction read; None for an absent item."""
        items, found = [one for one, _ in versions], [one for _, one in versions]
        columns: list[Sequence[object]] = [[name] * len(items), items, found, [None] * len(items)]
        self._reads.append(pa.Table.from_arrays(_typed(columns, READS), schema=READS))

    def reads_rows(
        self, name: str, items: pa.ChunkedArray, versions: pa.ChunkedArray, places: pa.ChunkedArray
    ) -> None:
        """Record the rows that a transaction read, as columns."""
        names = pa.repeat(pa.scalar(name), len(items))
        self._reads.append(pa.table([names, items, versions, places], schema=READS))

    def restored_away(self, before: str) -> None:
        """Ignore answers of uncommitted writes with names below ``before``: a restore removed them."""
        self._taken_back = max(self._taken_back, before)

    def deletes(self) -> Mapping[str, int]:
        """Return the number of recorded deletes of each transaction."""
        count: Counter[str] = Counter()
        for table in self._writes:
            deleted = table.filter(table.column("deletes")).column("name")
            count.update(
                {one["values"]: one["counts"] for one in deleted.value_counts().to_pylist()}
            )
        return count

    def finish(self) -> History:
        """Return the history; call this once."""
        for name, accounts in self._accounts.items():
            self._join(name, accounts)
        transactions = list(self._transactions.values())
        for known in transactions:
            if "position" in known:
                known.pop("undone", None)
            elif "undone" in known or str(known["name"]) < self._taken_back:
                known.pop("answer", None)
        writes = pa.concat_tables([WRITES.empty_table(), *self._writes])
        if self.by_commits:
            in_rows = writes.column("in_rows")
            ranks = pc.if_else(in_rows, pa.scalar(None, pa.int64()), writes.column("rank"))
            writes = writes.set_column(writes.schema.get_field_index("rank"), "rank", ranks)
        return History(
            transactions=pa.Table.from_pylist(transactions, schema=TRANSACTIONS),
            writes=writes,
            reads=pa.concat_tables([READS.empty_table(), *self._reads]),
            ordered=self.ordered,
            known_since=self.known_since,
            cleared=self.cleared,
            restored_away=self._taken_back,
        )

    def _join(self, name: str, accounts: Sequence[_ClientRecord]) -> None:
        """Join the records of one name: a wrong answer wins, and each keeps its own reads."""
        known = self._transactions[name]
        answers = [one.answer for one in accounts if one.answer is not None]
        wrong = "fail" if "position" in known else "ok"
        if answers:
            known["answer"] = wrong if wrong in answers else answers[0]
        place = {key: known[key] for key in ("position",) if key in known}
        for one in accounts:
            reader = name if len(accounts) == 1 else one.source
            self.transaction(reader)
            self.reads(reader, one.reads)
            if one.batch is not None and known.setdefault("batch", one.batch) != one.batch:
                part = f"{name} ({one.batch})"
                self._transactions[part] = {"name": part, "batch": one.batch, **place}


def _typed(columns: Sequence[Sequence[object]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(values, each.type) for values, each in zip(columns, schema, strict=True)]


# ---- A history in numbers: codes of names and items, and the ordered versions of each item
#
# A few sorts make it once. The checks of ``hoodoo.history_checker.anomalies`` search it.

NONE: Final = -1
"""The code of a null."""

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class EncodedHistory:
    """
    A history in numbers: codes of names and items, and the ordered versions of each item.

    ``at`` is the snapshot of a transaction that only reads. It is ``NONE`` for a writer, because a
    retry may read a newer snapshot than the first one. These masks mark items:

    - ``several``: the item has more than one row.
    - ``undone``: a restore removed a write of the item. The checks skip the reads in between.
    - ``unsure``: either of these, or the order of versions is unknown. No read of the item is
      stale, and no write of it replaces a known version.
    - ``by_rows``: as ``unsure``, or the rows have their own order (event time).
    """

    def __init__(self, run: History) -> None:
        self.run = run
        table, writes, reads = run.transactions, run.writes, run.reads
        codes, self.names = _encode(
            table.column("name"),
            writes.column("name"),
            reads.column("name"),
            reads.column("version"),
        )
        transactions, self.writers, self.readers, self.versions = codes
        (self.written, self.items_read), self.items = _encode(
            writes.column("item"), reads.column("item")
        )
        (self.places,), _ = _encode(reads.column("place"))
        count = len(self.names)
        self.position = np.full(count, NONE, np.int64)
        self.position[transactions] = numbers(table.column("position"))
        self.snapshot = np.full(count, NONE, np.int64)
        self.snapshot[transactions] = numbers(table.column("snapshot"))
        self.known = np.zeros(count, bool)
        self.known[transactions] = True
        self.full = np.zeros(count, bool)
        self.full[transactions] = _flags(table.column("full"))
        self.committed = self.position != NONE
        # A write before the recording is committed at an unknown position.
        self.early = ~self.known & self._named_below(run.known_since)
        self.restored_away = ~self.committed & self._named_below(run.restored_away)
        self.restored_away[transactions[_flags(table.column("undone"))]] = True
        self.undone = np.zeros(len(self.items), bool)
        self.undone[self.written[self.restored_away[self.writers]]] = True
        self._order_versions()
        self.at = np.where(self.committed, NONE, self.snapshot)
        self.at[self.writers] = NONE
        self.several = self._in_several_places() | self._never_together(transactions)
        self.unsure = self.several | self.undone | self._contradicted()
        self.by_rows = self.unsure.copy()
        if not run.ordered:
            self.by_rows[self.written[_flags(writes.column("in_rows"))]] = True

    def _named_below(self, name: str) -> Flags:
        below = pc.less(pa.array(self.names, pa.string()), name)
        return np.asarray(below.to_numpy(zero_copy_only=False), bool)

    def _in_several_places(self) -> Flags:
        """Return a mask of items in several partitions; the row that a writer means is unknown."""
        placed = np.flatnonzero(self.places != NONE)
        pairs = np.unique(np.stack([self.items_read[placed], self.places[placed]]), axis=1)
        return np.asarray(np.bincount(pairs[0], minlength=len(self.items)) > 1)

    def _never_together(self, transactions: Numbers) -> Flags:
        """Return a mask of items whose writers share no partition: they had more than one row."""
        lists = self.run.transactions.column("places").combine_chunks()
        (place,), _ = _encode(pa.chunked_array([lists.flatten()]))
        lengths = numbers(pc.fill_null(pc.list_value_length(lists), 0))
        first, width = np.zeros((2, len(self.names)), np.int64)
        first[transactions], width[transactions] = np.cumsum(lengths) - lengths, lengths
        # Reads show the writers that have no journal.
        seen = self.versions != NONE
        rows = _flags(self.run.writes.column("in_rows"))
        writer = np.concatenate([self.writers[rows], self.versions[seen]])
        item = np.concatenate([self.written[rows], self.items_read[seen]])
        placed = self.committed[writer] & (width[writer] > 0)
        writer, item = writer[placed], item[placed]
        widths = width[writer]
        within = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
        writer, item = np.repeat(writer, widths), np.repeat(item, widths)
        triples = np.unique(np.stack([item, place[first[writer] + within], writer]), axis=1)
        pairs, together = np.unique(triples[:2], axis=1, return_counts=True)
        most = np.zeros(len(self.items), np.int64)
        np.maximum.at(most, pairs[0], together)
        writers = np.unique(np.stack([item, writer]), axis=1)[0]
        return np.asarray(most < np.bincount(writers, minlength=len(self.items)))

    def _contradicted(self) -> Flags:
        """Return a mask of items whose versions in rows contradict the order of commits."""
        commits = self.position[self.version_writer]
        same = (self.version_item[1:] == self.version_item[:-1]) & self.version_in_rows[1:]
        same &= self.version_writer[1:] != self.version_writer[:-1]
        flagged = np.zeros(len(self.items), bool)
        flagged[self.version_item[1:][same & (commits[1:] <= commits[:-1])]] = True
        return flagged

    def _order_versions(self) -> None:
        """Sort the committed writes by item and version into the search key ``key``."""
        ranks = numbers(self.run.writes.column("rank"))
        ranks = np.where(ranks == NONE, self.position[self.writers], ranks)
        self.scale, every = _dense(ranks, self.position, self.snapshot)
        ranks, self.position_rank, self.snapshot_rank = every
        rank_of_write = ranks
        counted = self.committed[self.writers]
        deletes = _flags(self.run.writes.column("deletes"))
        self.deleted_items = np.unique(self.written[deletes & counted])
        key = self._key(self.written, rank_of_write)
        order = np.flatnonzero(counted)[np.argsort(key[counted], kind="stable")]
        self.key = key[order]
        self.version_writer = self.writers[order]
        self.version_item = self.written[order]
        self.version_deletes = deletes[order]
        self.version_in_rows = _flags(self.run.writes.column("in_rows"))[order]
        self._place_reads(rank_of_write)

    def _place_reads(self, rank_of_write: Numbers) -> None:
        """Find the rank of the version of each read; ``placed`` marks reads with a known rank."""
        there = self.versions != NONE
        self.rank_read = np.full(len(self.versions), NONE, np.int64)
        self.rank_read[there] = self.position_rank[self.versions[there]]
        exact = self.row_of_write(self.items_read, self.versions)
        found = exact != NONE
        self.rank_read[found] = rank_of_write[exact[found]]
        self.placed = there & (self.rank_read != NONE)
        # The item was absent: before its first version, or after a delete that the reader saw.
        self._place_absent(self.snapshot_rank)
        self._place_absent(np.where(self.committed, self.position_rank - 1, NONE))

    def _place_absent(self, until: Numbers) -> None:
        """
        Place each read of an absent item after the delete of the item.

        ``until`` is the commit rank of each reader. If the newest version up to it is no delete,
        a read without a rank precedes the first version.
        """
        absent = (self.versions == NONE) & (until[self.readers] != NONE)
        rows = np.flatnonzero(absent)
        newest = self.newest_by(self.items_read[rows], until[self.readers[rows]])
        rows, newest = rows[newest != NONE], newest[newest != NONE]
        gone = self.may_be_gone(newest)
        self.rank_read[rows[gone]] = self.rank_at(newest[gone])
        self.placed |= absent

    def may_be_gone(self, index: Numbers) -> Flags:
        """Return whether each version (by index) is a delete or may be deleted by ``cleared``."""
        below = self.position[self.version_writer[index]] <= self.run.cleared
        return np.asarray(self.version_deletes[index] | below)

    def _key(self, items: Numbers, ranks: Numbers) -> Numbers:
        return items * (self.scale + 2) + ranks + 1

    def row_of_write(self, items: Numbers, writers: Numbers) -> Numbers:
        """Return the row of the write of each item by its transaction, or ``NONE``."""
        width = len(self.names) + 1
        have = self.written * width + self.writers
        order = np.argsort(have, kind="stable")
        wanted = items * width + writers
        place = np.searchsorted(have[order], wanted)
        found = np.full(len(items), NONE, np.int64)
        inside = place < len(order)
        hit = np.flatnonzero(inside)[have[order[place[inside]]] == wanted[inside]]
        found[hit] = order[place[hit]]
        found[writers == NONE] = NONE
        return found

    def next_version(self, items: Numbers, ranks: Numbers) -> Numbers:
        """Return the index of the first version of each item above a rank, or ``NONE``."""
        place = np.searchsorted(self.key, self._key(items, ranks), side="right")
        found = np.full(len(items), NONE, np.int64)
        inside = np.flatnonzero(place < len(self.key))
        same = self.version_item[place[inside]] == items[inside]
        found[inside[same]] = place[inside[same]]
        return found

    def newest_by(self, items: Numbers, commit_ranks: Numbers) -> Numbers:
        """Return the index of each item's newest version up to a commit rank, or ``NONE``."""
        # If versions are not in the order of commits, the greatest version so far counts.
        commits = self.position_rank[self.version_writer]
        key = self._key(self.version_item, commits)
        order = np.argsort(key, kind="stable")
        greatest = np.maximum.accumulate(order) if len(order) else order
        place = np.searchsorted(key[order], self._key(items, commit_ranks), side="right") - 1
        found = np.full(len(items), NONE, np.int64)
        inside = np.flatnonzero(place >= 0)
        index = greatest[place[inside]]
        same = self.version_item[index] == items[inside]
        found[inside[same]] = index[same]
        return found

    def rank_at(self, index: Numbers) -> Numbers:
        """Return the rank of each version (by index)."""
        return self.key[index] - self._key(self.version_item[index], np.zeros_like(index))

    def name(self, code: Any) -> str:
        """Return the name of a transaction code."""
        return self.names[code] if code != NONE else "nobody"


def _encode(*columns: pa.ChunkedArray) -> tuple[list[Numbers], list[str]]:
    """Encode text columns with one dictionary; nulls are ``NONE``."""
    together = pa.chunked_array(
        [chunk for column in columns for chunk in column.chunks], pa.string()
    )
    encoded = together.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = numbers(encoded.indices)
    ends = np.cumsum([len(column) for column in columns])
    return np.split(codes, ends[:-1]), encoded.dictionary.to_pylist()


def numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    """Convert an integer column to numpy; nulls are ``NONE``."""
    filled = pc.fill_null(column.cast(pa.int64()), NONE)
    return np.asarray(filled.to_numpy(), np.int64)


def _flags(column: pa.ChunkedArray) -> Flags:
    return np.asarray(pc.fill_null(column, False).combine_chunks().to_numpy(zero_copy_only=False))


def _dense(*columns: Numbers) -> tuple[int, list[Numbers]]:
    """Replace values by dense ranks, which fit in one key with an item's code; keep ``NONE``."""
    values = np.unique(np.concatenate(columns))
    values = values[values != NONE]
    ranked = [np.where(column == NONE, NONE, np.searchsorted(values, column)) for column in columns]
    return len(values), ranked
