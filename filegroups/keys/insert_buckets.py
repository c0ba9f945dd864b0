"""
Assign new records to file groups: fill small files first, then create new file groups.

This is Hudi's upsert partitioner, so a table written by both engines keeps files of one size. The
plan uses an estimate of a stored record's bytes, computed from existing files. The module is pure:
the caller adds file ids and write tokens later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from filegroups.schema.columns import distinct_codes
from timeline.model.instant_time import InstantTime

__all__ = [
    "InsertBucket",
    "SizeSettings",
    "SmallFile",
    "assign_buckets",
    "assign_by_bucket",
    "assign_inserts",
    "codes_of",
    "learn_record_bytes",
    "rows_by_number",
]

_LEARN_ROWS_MIN = 1_000  # a smaller file is mostly footer and shows nothing about records


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSettings:
    """The target sizes of base files; defaults are Hudi's."""

    file_bytes_max: int = 125_829_120  # hoodie.parquet.max.file.size
    small_file_bytes: int = 104_857_600  # hoodie.parquet.small.file.limit; 0 never fills files
    record_bytes: int = 1_024  # hoodie.copyonwrite.record.size.estimate
    insert_rows: int = 500_000  # hoodie.copyonwrite.insert.split.size
    auto_split: bool = True  # hoodie.copyonwrite.insert.auto.split: rows follow from bytes

    @property
    def rows_per_file(self) -> int:
        """The number of rows for a new file."""
        if not self.auto_split:
            return max(1, self.insert_rows)
        return max(1, self.file_bytes_max // max(1, self.record_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFile:
    """The newest base file of a file group that may take more records."""

    file_id: str
    base_requested_time: InstantTime
    size_bytes: int
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBucket:
    """The part of a partition's new records that goes to one file group."""

    number: int  # unique within the plan
    partition_path: str
    file_id: str | None  # None makes a new file group
    base_requested_time: InstantTime | None
    rows: int
    share: int | None = None  # takes the rows of this bucket of a bucket index, else any


def learn_record_bytes(files: Iterable[tuple[int, int]], *, default: int = 1_024) -> int:
    """
    Estimate the stored bytes of a record.

    Args:
        files: (bytes of the records, rows) of base files of the table, small ones too.
        default: The result if there are too few rows for an estimate.

    Returns:
        Bytes, at least 1.
    """
    size_bytes = rows = 0
    for file_bytes, file_rows in files:
        size_bytes += file_bytes
        rows += file_rows
    if rows < _LEARN_ROWS_MIN or size_bytes == 0:
        return default
    return max(1, -(-size_bytes // rows))


def assign_inserts(
    counts: Mapping[str, int],
    small_files: Mapping[str, Sequence[SmallFile]],
    settings: SizeSettings,
) -> tuple[InsertBucket, ...]:
    """
    Plan the file groups of each partition's new records.

    Args:
        counts: New records by partition path.
        small_files: Base files by partition path. Larger files are skipped; files owned by a
            pending service must already be left out. A bulk insert passes none.
        settings: Sizes.

    Returns:
        Insert buckets sorted by partition path; in each partition the filled files first, smallest
        first. Their rows add up to the counts.
    """
    buckets: list[InsertBucket] = []
    for partition_path in sorted(counts):
        left = counts[partition_path]
        for small in _by_size(small_files.get(partition_path, ()), settings):
            room = (settings.file_bytes_max - small.size_bytes) // max(1, settings.record_bytes)
            rows = min(room, left)
            if rows > 0:
                buckets.append(
                    InsertBucket(
                        number=len(buckets),
                        partition_path=partition_path,
                        file_id=small.file_id,
                        base_requested_time=small.base_requested_time,
                        rows=rows,
                    )
                )
                left -= rows
        while left > 0:
            rows = min(left, settings.rows_per_file)
            buckets.append(
                InsertBucket(
                    number=len(buckets),
                    partition_path=partition_path,
                    file_id=None,
                    base_requested_time=None,
                    rows=rows,
                )
            )
            left -= rows
    return tuple(buckets)


def assign_buckets(
    partition_paths: pa.Array | pa.ChunkedArray, buckets: Sequence[InsertBucket]
) -> npt.NDArray[np.int64]:
    """
    Assign each new record to an insert bucket: a partition's rows fill its buckets in order.

    The result is the same for the same rows in the same order. Neighbours stay together, so sorted
    data stays sorted in its files.

    Args:
        partition_paths: Of each new record.
        buckets: From ``assign_inserts`` with these rows' counts. Rows beyond the plan go to their
            partition's last bucket.

    Shapes: (n,) -> bucket numbers (n,); order kept.
    """
    shares: dict[str, list[InsertBucket]] = {}
    for bucket in buckets:
        shares.setdefault(bucket.partition_path, []).append(bucket)
    numbers = np.zeros(len(partition_paths), np.int64)
    codes, paths = codes_of(partition_paths)
    for code, rows in rows_by_number(codes).items():
        own = shares[paths[code]]
        share = np.repeat([b.number for b in own], [b.rows for b in own])[: len(rows)]
        rest = np.full(len(rows) - len(share), own[-1].number)
        numbers[rows] = np.concatenate([share, rest])
    return numbers


def assign_by_bucket(
    partition_paths: pa.Array | pa.ChunkedArray,
    shares: npt.NDArray[np.int64],
    buckets: Sequence[InsertBucket],
) -> npt.NDArray[np.int64]:
    """
    Assign each row of a bucket index to the insert bucket with its partition path and bucket.

    Shapes: partition_paths (n,), shares (n,) -> bucket numbers (n,), -1 if there is none.
    """
    codes, paths = codes_of(partition_paths)
    width = int(max(shares.max(initial=0), *(bucket.share or 0 for bucket in buckets), 0)) + 1
    code_of = {path: code for code, path in enumerate(paths)}
    wanted = sorted(
        (code_of[bucket.partition_path] * width + (bucket.share or 0), bucket.number)
        for bucket in buckets
        if bucket.partition_path in code_of
    )
    numbers = np.full(len(codes), -1, np.int64)
    if not wanted or not len(codes):
        return numbers
    places, targets = np.array(wanted, np.int64).T
    mine = codes * width + shares
    positions = np.minimum(np.searchsorted(places, mine), len(places) - 1)
    met = places[positions] == mine
    numbers[met] = targets[positions[met]]
    return numbers


def rows_by_number(numbers: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.intp]]:
    """
    Split rows by a small number that each has.

    Shapes: numbers (n,) -> for each number, ascending, its row positions, ascending.
    """
    if len(numbers) == 0:
        return {}
    least = int(numbers.min())
    span = int(numbers.max()) - least
    # numpy sorts 16-bit numbers by radix in one pass, much faster than by comparison.
    small = (numbers - least).astype(np.uint16) if span < 1 << 16 else numbers
    order = np.argsort(small, kind="stable")
    ordered = numbers[order]
    starts = np.append(0, np.flatnonzero(np.diff(ordered)) + 1)
    parts = np.split(order, starts[1:])
    return {int(ordered[start]): part for start, part in zip(starts, parts, strict=True)}


def _by_size(files: Sequence[SmallFile], settings: SizeSettings) -> list[SmallFile]:
    small = [each for each in files if each.size_bytes < settings.small_file_bytes]
    return sorted(small, key=lambda each: (each.size_bytes, each.file_id))


def codes_of(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Number the distinct texts of a column. Shapes: (n,) -> codes (n,), texts by code."""
    codes, texts = distinct_codes(column)
    return codes, texts.to_pylist()
