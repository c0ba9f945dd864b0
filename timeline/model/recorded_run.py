"""
A recorded run: who wrote and read which versions of what, as three tables.

Where it comes from does not matter: the simulator, a table's own timeline, slots and rows, or
journals that clients kept. An *item* is what has versions (a record key, a file group); a
version is named by the transaction that wrote it. Tables of texts, because runs have millions
of reads: ``timeline.rules.anomalies`` judges them without a loop over rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["READS", "TRANSACTIONS", "WRITES", "RecordedRun", "RunRecorder"]

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
class RecordedRun:
    """
    What is judged.

    ``ordered`` tells whether the newest version of an item is the one that readers must see;
    where rows bring their own order (event time) it is not. Versions named below
    ``known_since``, a text, were committed before the recording. ``cleared`` is the position of
    the newest delete of unknown items: what was written below it may be gone. What is named
    below ``taken_back``, a text, and not committed may have been, until a restore.
    """

    transactions: pa.Table
    writes: pa.Table
    reads: pa.Table
    ordered: bool = True
    known_since: str = ""
    cleared: int = -1
    taken_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    source: str
    answer: str | None
    batch: str | None
    reads: Sequence[tuple[str, str | None]]


@dataclass(slots=True)
class RunRecorder:
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
    _accounts: dict[str, list[_Account]] = field(default_factory=dict)

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

    def account(
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
        told = _Account(source=source, answer=answer, batch=batch, reads=reads)
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

    def taken_back(self, before: str) -> None:
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

    def finish(self) -> RecordedRun:
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
        return RecordedRun(
            transactions=pa.Table.from_pylist(told, schema=TRANSACTIONS),
            writes=writes,
            reads=pa.concat_tables([READS.empty_table(), *self._reads]),
            ordered=self.ordered,
            known_since=self.known_since,
            cleared=self.cleared,
            taken_back=self._taken_back,
        )

    def _join(self, name: str, accounts: Sequence[_Account]) -> None:
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
