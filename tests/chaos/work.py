"""
The writes of chaos writers: a number decides each operation, and each leaves two traces.

Every operation inserts one row of its own. It also changes rows that others change too (``add``:
some shared counters are read, raised and written back) or that only its writer changes
(``mark``). So the newest rows show an operation that was lost, done twice, or done although its
client got a failure, whatever happened to the processes in between.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

PARTITIONS = 4
SHARED = 8  # counters in each partition
NUMBERS = 1_000_000  # operations of one writer
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("part", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("total", pa.int64()),
        pa.field("op", pa.int64()),
    ]
)
_OF_A_PARTITION = 1_000
_OWN_ROWS = 1_000_000_000
_POPULAR = [1 / (rank + 1) for rank in range(SHARED)]


def shared_key(partition: int, number: int) -> int:
    """A counter that every writer raises."""
    return partition * _OF_A_PARTITION + number


def mark_key(partition: int, writer: int) -> int:
    """The row in which a writer leaves the number of its newest operation there."""
    return partition * _OF_A_PARTITION + SHARED + writer


def own_row(number: int) -> int:
    """The row that an operation inserts."""
    return _OWN_ROWS + number


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a writer; all of it follows from the seed and its number."""

    number: int
    table: str
    partition: int
    adds: bool
    keys: tuple[int, ...]  # besides its own row

    @classmethod
    def of(cls, seed: int, number: int, tables: Sequence[str]) -> Op:
        """The operation with this number."""
        chance = random.Random(f"{seed}-{number}")
        partition = chance.randrange(PARTITIONS)
        adds = chance.random() < 0.5
        if adds:
            drawn = chance.choices(range(SHARED), _POPULAR, k=3)
            keys = tuple(sorted({shared_key(partition, one) for one in drawn}))
        else:
            keys = (mark_key(partition, number // NUMBERS),)
        return cls(
            number=number, table=chance.choice(tables), partition=partition, adds=adds, keys=keys
        )

    @property
    def batch_id(self) -> str:
        """The id by which a repetition finds the result of the first attempt."""
        return f"op-{self.number}"

    @property
    def path(self) -> str:
        """Its partition."""
        return f"p{self.partition}"

    @property
    def all_keys(self) -> tuple[int, ...]:
        """With its own row."""
        return (*self.keys, own_row(self.number))

    def rows(self, before: pa.Table | None = None) -> pa.Table:
        """
        Its rows.

        Args:
            before: The counters as they were read; needed if it adds.
        """
        keys = np.array(self.all_keys, np.int64)
        counts = np.zeros(len(keys), np.int64)
        totals = np.full(len(keys), self.number, np.int64)
        if self.adds:
            assert before is not None
            there = before.sort_by("id")
            assert there["id"].to_pylist() == list(self.keys), "a counter is gone"
            counts[:-1] = there["count"].to_numpy() + 1
            totals[:-1] += there["total"].to_numpy()
        return _rows(keys, self.path, counts, totals, self.number)


def first_rows(writers: int) -> pa.Table:
    """Counters and marks at zero, before anybody writes."""
    tables = []
    for partition in range(PARTITIONS):
        first = partition * _OF_A_PARTITION
        keys = np.arange(first, first + SHARED + writers)
        nothing = np.zeros(len(keys), np.int64)
        tables.append(_rows(keys, f"p{partition}", nothing, nothing, 0))
    return pa.concat_tables(tables)


def _rows(
    keys: np.ndarray, path: str, counts: np.ndarray, totals: np.ndarray, number: int
) -> pa.Table:
    return pa.table(
        {
            "id": keys,
            "part": pa.array([path] * len(keys), pa.string()),
            "count": counts,
            "total": totals,
            "op": np.full(len(keys), number, np.int64),
        }
    )
