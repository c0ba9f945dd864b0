"""A recorded history: which versions each transaction wrote and read, as tables and as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# ---- A recorded run: who wrote and read which versions of what, as three tables
# Where it comes from does not matter: the simulator, a table's own timeline, slots and rows, or
# journals that clients kept. An *item* is what has versions (a record key, a file group); a
# version is named by the transaction that wrote it. Tables of texts, because runs have millions
# of reads: ``hoodoo.history_checker.anomalies`` judges them without a loop over rows.

#: ``position`` is where it was committed, null when it was not; ``snapshot`` the position it
#: read at. ``answer`` is what its client was told: ok, fail, or null for neither. ``full``: its
#: reads are all items there are. ``places``: where it wrote, null where nobody tells.
#: ``undone``: it was committed, and taken back by somebody.
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
#: ``rank`` orders the versions of an item; null where commit positions do. ``in_rows``: whether
#: a full read lists it.
WRITES: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("item", pa.string()),
        pa.field("deletes", pa.bool_()),
        pa.field("rank", pa.int64()),
        pa.field("in_rows", pa.bool_()),
    ]
)
#: ``version`` is null where the item was absent; ``place`` tells rows of equal items apart that
#: may stand beside each other, as those of one key in two partitions.
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
    What is judged.

    ``ordered`` tells whether the newest version of an item is the one that readers must see;
    where rows bring their own order (event time) it is not. Versions named below
    ``known_since``, a text, were committed before the recording. ``cleared`` is the position of
    the newest delete of unknown items: what was written below it may be gone. What is named
    below ``restored_away``, a text, and not committed may have been, until a restore.
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
    Puts a run together, one event or one table of rows at a time.

    ``by_commits``: the versions of rows follow each other in the order of commits, whatever
    rank is told with them; so it is where no log is merged.
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
        """One writer or reader; fields as of ``TRANSACTIONS``. Told twice, the parts add up."""
        told = {
            "position": position,
            "snapshot": snapshot,
            "answer": answer,
            "batch": batch,
            "full": full or None,
            "places": None if places is None else list(places),
            "undone": undone or None,
        }
        known = self._transactions.setdefault(name, {"name": name})
        known.update({key: value for key, value in told.items() if value is not None})

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
        What one client tells of a transaction, under a name of its own for this ``source``.

        Where several tell of one, each tells of a part of it (GRP-1).
        """
        self.transaction(name)
        told = _ClientRecord(source=source, answer=answer, batch=batch, reads=reads)
        self._accounts.setdefault(name, []).append(told)

    def writes(
        self,
        name: str,
        items: Sequence[str],
        *,
        deletes: bool = False,
        rank: int | None = None,
        in_rows: bool = True,
    ) -> None:
        """The items that a transaction wrote or deleted; more as of ``WRITES``."""
        count = len(items)
        columns: list[Sequence[object]] = [[name] * count, items]
        columns += [[deletes] * count, [rank] * count, [in_rows] * count]
        self._writes.append(pa.Table.from_arrays(_typed(columns, WRITES), schema=WRITES))

    def reads(self, name: str, versions: Sequence[tuple[str, str | None]]) -> None:
        """The versions that a transaction read; None for an item that was absent."""
        items, found = [one for one, _ in versions], [one for _, one in versions]
        columns: list[Sequence[object]] = [[name] * len(items), items, found, [None] * len(items)]
        self._reads.append(pa.Table.from_arrays(_typed(columns, READS), schema=READS))

    def reads_rows(
        self, name: str, items: pa.ChunkedArray, versions: pa.ChunkedArray, places: pa.ChunkedArray
    ) -> None:
        """The rows that a transaction read, as columns."""
        names = pa.repeat(pa.scalar(name), len(items))
        self._reads.append(pa.table([names, items, versions, places], schema=READS))

    def restored_away(self, before: str) -> None:
        """A restore took uncommitted writes of smaller names back, whatever was answered."""
        self._taken_back = max(self._taken_back, before)

    def deletes(self) -> Mapping[str, int]:
        """How many items each transaction deleted, of what was told so far."""
        count: Counter[str] = Counter()
        for table in self._writes:
            deleted = table.filter(table.column("deletes")).column("name")
            count.update(
                {one["values"]: one["counts"] for one in deleted.value_counts().to_pylist()}
            )
        return count

    def finish(self) -> History:
        """The run; once."""
        for name, accounts in self._accounts.items():
            self._join(name, accounts)
        told = list(self._transactions.values())
        for known in told:
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
            transactions=pa.Table.from_pylist(told, schema=TRANSACTIONS),
            writes=writes,
            reads=pa.concat_tables([READS.empty_table(), *self._reads]),
            ordered=self.ordered,
            known_since=self.known_since,
            cleared=self.cleared,
            restored_away=self._taken_back,
        )

    def _join(self, name: str, accounts: Sequence[_ClientRecord]) -> None:
        """Of several accounts the one that is wrong counts, and each read on its own snapshot."""
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


# ---- A recorded run in numbers: names and items by code, the versions of each item in their order
#
# What the checks of ``hoodoo.history_checker.anomalies`` search in, made once by a few sorts.

NONE: Final = -1
"""Stands for a null."""

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class EncodedHistory:
    """
    A run in numbers: names and items by their code, versions in the order of each item.

    ``at`` is the snapshot of those who only read: a writer that began anew in part saw more than
    its first one. ``several`` flags items that are more than one row, ``unsure`` these and others
    whose versions nobody can order: no read of them is too old, and no write of them is known to
    be over another; ``by_rows`` also those whose rows bring their own order. ``undone`` flags
    those that somebody wrote and a restore took back: what was seen in between is not judged.
    """

    def __init__(self, run: History) -> None:
        self.run = run
        told, writes, reads = run.transactions, run.writes, run.reads
        codes, self.names = _encode(
            told.column("name"),
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
        self.position[transactions] = numbers(told.column("position"))
        self.snapshot = np.full(count, NONE, np.int64)
        self.snapshot[transactions] = numbers(told.column("snapshot"))
        self.known = np.zeros(count, bool)
        self.known[transactions] = True
        self.full = np.zeros(count, bool)
        self.full[transactions] = _flags(told.column("full"))
        self.committed = self.position != NONE
        # Who wrote before the recording is committed, but where is not known.
        self.early = ~self.known & self._named_below(run.known_since)
        self.restored_away = ~self.committed & self._named_below(run.restored_away)
        self.restored_away[transactions[_flags(told.column("undone"))]] = True
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
        """Items that stand in more than one place: which of them a writer meant is not known."""
        told = np.flatnonzero(self.places != NONE)
        pairs = np.unique(np.stack([self.items_read[told], self.places[told]]), axis=1)
        return np.asarray(np.bincount(pairs[0], minlength=len(self.items)) > 1)

    def _never_together(self, transactions: Numbers) -> Flags:
        """Items without a place that all who wrote them wrote to: they were more than one row."""
        lists = self.run.transactions.column("places").combine_chunks()
        (place,), _ = _encode(pa.chunked_array([lists.flatten()]))
        told = numbers(pc.fill_null(pc.list_value_length(lists), 0))
        first, width = np.zeros((2, len(self.names)), np.int64)
        first[transactions], width[transactions] = np.cumsum(told) - told, told
        # Who wrote without a journal is known by what was read.
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
        """Items whose rows' versions (of logs) are not in the order of commits, or in one commit."""
        commits = self.position[self.version_writer]
        same = (self.version_item[1:] == self.version_item[:-1]) & self.version_in_rows[1:]
        same &= self.version_writer[1:] != self.version_writer[:-1]
        flagged = np.zeros(len(self.items), bool)
        flagged[self.version_item[1:][same & (commits[1:] <= commits[:-1])]] = True
        return flagged

    def _order_versions(self) -> None:
        """Committed writes sorted by item and version; ``key`` is what to search for."""
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
        """The rank of the version that each read saw; ``placed`` tells where it is known."""
        there = self.versions != NONE
        self.rank_read = np.full(len(self.versions), NONE, np.int64)
        self.rank_read[there] = self.position_rank[self.versions[there]]
        exact = self.row_of_write(self.items_read, self.versions)
        found = exact != NONE
        self.rank_read[found] = rank_of_write[exact[found]]
        self.placed = there & (self.rank_read != NONE)
        # Nothing was there: before the first version, or after a delete that it could see.
        self._place_absent(self.snapshot_rank)
        self._place_absent(np.where(self.committed, self.position_rank - 1, NONE))

    def _place_absent(self, until: Numbers) -> None:
        """
        Place reads of nothing, by readers at a rank of commits, after what deleted the item.

        Where it was not deleted by then, a reader that has no place yet saw what was before the
        first version.
        """
        absent = (self.versions == NONE) & (until[self.readers] != NONE)
        rows = np.flatnonzero(absent)
        newest = self.newest_by(self.items_read[rows], until[self.readers[rows]])
        rows, newest = rows[newest != NONE], newest[newest != NONE]
        gone = self.may_be_gone(newest)
        self.rank_read[rows[gone]] = self.rank_at(newest[gone])
        self.placed |= absent

    def may_be_gone(self, index: Numbers) -> Flags:
        """Whether versions, by their index, are deletes or hidden by one of unknown items."""
        below = self.position[self.version_writer[index]] <= self.run.cleared
        return np.asarray(self.version_deletes[index] | below)

    def _key(self, items: Numbers, ranks: Numbers) -> Numbers:
        return items * (self.scale + 2) + ranks + 1

    def row_of_write(self, items: Numbers, writers: Numbers) -> Numbers:
        """Row of the write of an item by a transaction, ``NONE`` where there is none."""
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
        """Index of the first version of an item above a rank, ``NONE`` for none."""
        place = np.searchsorted(self.key, self._key(items, ranks), side="right")
        found = np.full(len(items), NONE, np.int64)
        inside = np.flatnonzero(place < len(self.key))
        same = self.version_item[place[inside]] == items[inside]
        found[inside[same]] = place[inside[same]]
        return found

    def newest_by(self, items: Numbers, commit_ranks: Numbers) -> Numbers:
        """Index of the newest version of each item that was committed by then."""
        # Where versions are not in the order of commits the greatest so far counts.
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
        """The rank of versions by their index."""
        return self.key[index] - self._key(self.version_item[index], np.zeros_like(index))

    def name(self, code: Any) -> str:
        """Of a transaction."""
        return self.names[code] if code != NONE else "nobody"


def _encode(*columns: pa.ChunkedArray) -> tuple[list[Numbers], list[str]]:
    """Each column as codes of one dictionary; nulls are ``NONE``."""
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
    """An integer column, nulls as ``NONE``."""
    filled = pc.fill_null(column.cast(pa.int64()), NONE)
    return np.asarray(filled.to_numpy(), np.int64)


def _flags(column: pa.ChunkedArray) -> Flags:
    return np.asarray(pc.fill_null(column, False).combine_chunks().to_numpy(zero_copy_only=False))


def _dense(*columns: Numbers) -> tuple[int, list[Numbers]]:
    """Ranks instead of values, so that they fit beside an item's code; ``NONE`` stays."""
    values = np.unique(np.concatenate(columns))
    values = values[values != NONE]
    ranked = [np.where(column == NONE, NONE, np.searchsorted(values, column)) for column in columns]
    return len(values), ranked
