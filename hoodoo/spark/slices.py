"""
Tasks that read file slices with logs, and the rows of base files that the logs hide.

Most rows of a base file are unchanged by its logs. Spark's own reader reads them, without the rows
that tasks of hoodoo name by file and position. Other tasks return the merged rows in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from filegroups.files.slice_reader import SliceRead, read_slice, split_by_logs
from filegroups.schema.schema import KEY_COLUMN
from hoodoo.spark.error_transport import TaskFailedError
from hoodoo.spark.tasks import StorageAddress
from timeline.errors import HoodooError
from timeline.model.file_names import FileSlice
from timeline.system import LoggingEvents

_HIDDEN = "_hoodoo_hidden"
_PLAIN_NAME = re.compile(r"[\w.-]+")  # the metadata column of Spark spells other names differently
_ROW_BITS = 31  # a file has fewer rows; 33 bits of a hash tell the files apart
_SEED = 42  # of Spark's hash
_OPEN_BYTES = 4 << 20  # the cost of a file, as in Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlices:
    """Read the slices of a pack by its number, in the columns and types of a DataFrame."""

    address: StorageAddress
    packs: tuple[tuple[FileSlice, ...], ...]
    read: SliceRead
    shape: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the packs that the batches number; runs in a worker."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for one in self.packs[number]:
                    yield from self.rows(one)

    def rows(self, one: FileSlice) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice."""
        # As Spark's reader: names match in any case, and a missing column is null.
        known = self.read.file_schema.names
        named = [spelled(name, known) for name in self.shape.names]
        read = replace(self.read, columns=tuple(filter(None, dict.fromkeys(named))) or (known[0],))
        try:
            for batch in self._batches(one, read):
                columns = [
                    batch.column(name) if name else pa.nulls(batch.num_rows, field.type)
                    for name, field in zip(named, self.shape, strict=True)
                ]
                found = pa.RecordBatch.from_arrays(columns, names=self.shape.names)
                yield found.cast(self.shape)
        except HoodooError as error:
            raise TaskFailedError(error) from error

    def _batches(self, one: FileSlice, read: SliceRead) -> Iterator[pa.RecordBatch]:
        return read_slice(self.address.open(), LoggingEvents(), one, read)


class ReadReplacements(ReadSlices):
    """Read the rows of slices that are in the place of hidden rows, and those of logs alone."""

    __slots__ = ()

    def _batches(self, one: FileSlice, read: SliceRead) -> Iterator[pa.RecordBatch]:
        _, rows = split_by_logs(self.address.open(), LoggingEvents(), one, read)
        return iter(rows.combine_chunks().to_batches())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHidden:
    """Read which rows of base files the logs hide, as numbers over all files."""

    address: StorageAddress
    packs: tuple[tuple[FileSlice, ...], ...]
    read: SliceRead

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the numbers of the packs that the batches number; runs in a worker."""
        read = replace(self.read, columns=(KEY_COLUMN,))
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for one in self.packs[number]:
                        hidden, _ = split_by_logs(self.address.open(), LoggingEvents(), one, read)
                        numbers = hidden.astype(np.int64) + file_code(one)
                        yield pa.RecordBatch.from_arrays([pa.array(numbers)], names=[_HIDDEN])
        except HoodooError as error:
            raise TaskFailedError(error) from error


def read_packs(spark: Any, work: ReadSlices | ReadHidden, schema: Any) -> Any:
    """Return the rows of all packs, each read by one task."""
    count = len(work.packs)
    return spark.range(0, count, 1, count).mapInArrow(work, schema)


def without_hidden(df: Any, work: ReadHidden) -> Any:
    """
    Return the rows of base files that no log hides.

    Args:
        df: Spark's read of the base files, with its metadata column.
        work: Reads the hidden rows of these files. Each Spark task gets all of them (a broadcast).
    """
    hidden = read_packs(df.sparkSession, work, f"{_HIDDEN} long")
    number = F.shiftleft(F.xxhash64("_metadata.file_name"), _ROW_BITS) + F.col(
        "_metadata.row_index"
    )
    return (
        df.withColumn(_HIDDEN, number).join(F.broadcast(hidden), _HIDDEN, "left_anti").drop(_HIDDEN)
    )


def splittable(slices: Sequence[FileSlice], log_bytes_max: int) -> list[FileSlice]:
    """
    Return the slices whose hidden rows can be numbered and fit into the memory of each task.

    Args:
        slices: Slices with a base file and logs.
        log_bytes_max: Greatest size of their logs together; the smallest logs are chosen.
    """
    chosen: dict[int, FileSlice] = {}
    left = log_bytes_max
    for one in sorted(slices, key=log_bytes):
        left -= log_bytes(one)
        if left < 0:
            break
        if one.base_file is not None and _PLAIN_NAME.fullmatch(one.base_file.name):
            chosen.setdefault(file_code(one), one)
    return list(chosen.values())


def file_code(one: FileSlice) -> int:
    """Return the number of the first row of a base file; Spark computes it from the name, too."""
    name = one.base_file.name if one.base_file is not None else ""
    code = xxhash.xxh64_intdigest(name.encode(), seed=_SEED) << _ROW_BITS
    return int.from_bytes(code.to_bytes(16, "little")[:8], "little", signed=True)


def log_bytes(one: FileSlice) -> int:
    """Return the size of a slice's logs."""
    return sum(log.size_bytes for log in one.log_files)


def packed(
    slices: Sequence[FileSlice], tasks: int, bytes_max: int
) -> tuple[tuple[FileSlice, ...], ...]:
    """
    Distribute slices over tasks by their bytes, as Spark does with files.

    Args:
        slices: The slices.
        tasks: Number of tasks that run at a time.
        bytes_max: Greatest size for a task that reads several slices.
    """
    total = sum(_OPEN_BYTES + one.size_bytes for one in slices)
    limit = min(bytes_max, total // max(tasks, 1))
    packs: list[list[FileSlice]] = []
    room = 0
    for one in sorted(slices, key=lambda one: one.size_bytes, reverse=True):
        room -= _OPEN_BYTES + one.size_bytes
        if room < 0 or not packs:
            packs.append([])
            room = limit - _OPEN_BYTES - one.size_bytes
        packs[-1].append(one)
    return tuple(map(tuple, packs))


def spelled(name: str, known: Sequence[str]) -> str | None:
    """Return the known column of this name, or else the first that differs in case only."""
    alike = [each for each in known if each.lower() == name.lower()]
    return name if name in alike else next(iter(alike), None)
