"""
Tasks that read file slices with logs, and the rows of base files that the logs hide.

Most rows of a base file are unchanged by its logs. Spark's own reader reads them, without the rows
that tasks of hoodoo name by file and position. Other tasks return the merged rows in their place.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import IntegerType

from filegroups.files.slice_reader import SliceRead, read_slice, split_by_logs
from filegroups.merge.rules import Positions
from filegroups.recently_used import RecentlyUsed
from filegroups.schema.schema import KEY_COLUMN
from hoodoo.spark.error_transport import TaskFailedError
from hoodoo.spark.java import java_class, java_type
from hoodoo.spark.sql.catalyst import catalyst, column_of, option, parse_expression, scala_seq
from hoodoo.spark.tasks import StorageAddress
from timeline.errors import HoodooError
from timeline.model.file_slice import FileSlice
from timeline.ports.ports import Executor
from timeline.system import LoggingEvents

_HIDDEN = "_hoodoo_hidden"
_PLAIN_NAME = re.compile(r"[\w.-]+")  # the metadata column of Spark spells other names differently
_ROW_BITS = 31  # a file has fewer rows; 33 bits of a hash tell the files apart
_SEED = 42  # of Spark's hash
_TAKES_ARROW = find_spec("pyspark.sql.classic") is not None  # since Spark 4.0
_NUMBER = f"shiftleft(xxhash64(_metadata.file_name), {_ROW_BITS}) + _metadata.row_index"
_TASK_ROWS_BYTES = 8 << 20  # of rows from the driver
_OPEN_BYTES = 4 << 20  # the cost of a file, as in Spark
_KEPT_BYTES = 256 << 10  # of a DataFrame without its rows, at most


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
        try:
            yield from map(self._shaped, self._batches(one))
        except HoodooError as error:
            raise TaskFailedError(error) from error

    def _batches(self, one: FileSlice) -> Iterator[pa.RecordBatch]:
        return read_slice(self.address.open(), LoggingEvents(), one, self._read_columns())

    def _read_columns(self) -> SliceRead:
        known = self.read.file_schema.names
        columns = filter(None, dict.fromkeys(self._known_names()))
        return replace(self.read, columns=tuple(columns) or (known[0],))

    def _known_names(self) -> list[str | None]:
        # As Spark's reader: names match in any case, and a missing column is null.
        return [spelled(name, self.read.file_schema.names) for name in self.shape.names]

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            batch.column(name) if name else pa.nulls(batch.num_rows, field.type)
            for name, field in zip(self._known_names(), self.shape, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=self.shape.names).cast(self.shape)


class ReadReplacements(ReadSlices):
    """Read the rows of slices that are in the place of hidden rows, and those of logs alone."""

    __slots__ = ()

    def split(self, one: FileSlice) -> tuple[pa.Array, list[pa.RecordBatch]]:
        """Return the numbers of the hidden rows, and the rows in their place."""
        storage, events = self.address.open(), LoggingEvents()
        hidden, rows = split_by_logs(storage, events, one, self._read_columns())
        return _numbers(one, hidden), list(map(self._shaped, rows.combine_chunks().to_batches()))

    def _batches(self, one: FileSlice) -> Iterator[pa.RecordBatch]:
        storage, events = self.address.open(), LoggingEvents()
        _, rows = split_by_logs(storage, events, one, self._read_columns())
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
                        numbers = _numbers(one, hidden)
                        yield pa.RecordBatch.from_arrays([numbers], names=[_HIDDEN])
        except HoodooError as error:
            raise TaskFailedError(error) from error


def read_packs(spark: Any, work: ReadSlices | ReadHidden, schema: Any) -> Any:
    """Return the rows of all packs, each read by one task."""
    count = len(work.packs)
    return spark.range(0, count, 1, count).mapInArrow(work, schema)


def hidden_in_tasks(spark: Any, work: ReadHidden) -> Any:
    """Return the numbers of hidden rows as a DataFrame that tasks compute."""
    return read_packs(spark, work, f"{_HIDDEN} long")


@dataclass(frozen=True, slots=True)
class Split:
    """
    The changes that logs make to their base files, as the driver computed them.

    Args:
        hidden: The ascending numbers of hidden rows.
        replacing: The rows in their place, as a DataFrame.
    """

    hidden: np.ndarray[Any, np.dtype[np.int64]]
    replacing: Any


# Queries of an unchanged table then read no logs and keys again. The files of a slice never
# change, and the whole plan of a read is the key, so an entry cannot be out of date.
_RECENT: RecentlyUsed[tuple[Any, bytes], Split] = RecentlyUsed(32 << 20)


def split_on_driver(spark: Any, work: ReadReplacements, schema: Any, executor: Executor) -> Split:
    """
    Return the changes that logs make to their base files, computed now or by a recent load.

    Args:
        spark: The session.
        work: The slices, all in one pack.
        schema: Spark's schema of the rows.
        executor: Reads several slices at a time.
    """
    plan = pickle.dumps((work, schema.json()))
    key = spark.sparkContext, plan  # the rows end with it
    found = _RECENT.find(key)
    if found is not None:
        return found
    parts = executor.map(work.split, work.packs[0])
    hidden = np.sort(np.concatenate([np.asarray(numbers) for numbers, _ in parts]))
    batches = [batch for _, some in parts for batch in some]
    rows = pa.Table.from_batches(batches, schema=work.shape).combine_chunks()
    replacing = in_few_tasks(dataframe_of(spark, rows, schema), rows)
    split = Split(hidden, replacing)
    _RECENT.keep(key, split, _KEPT_BYTES + len(plan) + hidden.nbytes + rows.nbytes)
    return split


def in_few_tasks(df: Any, rows: pa.Table) -> Any:
    """
    Return the DataFrame of Arrow rows with as many tasks as their bytes need.

    Spark would spread few rows over as many tasks as run at a time. It would also evaluate a query
    of these rows alone while it plans, row by row and without compiled code.
    """
    return df.coalesce(1 + rows.nbytes // _TASK_ROWS_BYTES)


def dataframe_of(spark: Any, rows: pa.Table, schema: Any) -> Any:
    """Return Arrow rows as a DataFrame, which Spark takes itself since 4.0."""
    if _TAKES_ARROW:
        return spark.createDataFrame(rows, schema=schema)
    if not rows.num_rows:
        return spark.createDataFrame([], schema)
    jvm, context = spark._jvm, spark.sparkContext  # noqa: SLF001
    utils = jvm.PythonSQLUtils
    batches = context._serialize_to_jvm(  # noqa: SLF001
        rows.to_batches(),
        ArrowStreamSerializer(),
        utils.readArrowStreamFromFile,
        jvm.ArrowIteratorServer,
    )
    found = utils.toDataFrame(batches, schema.json(), spark._jsparkSession)  # noqa: SLF001
    return DataFrame(found, spark)


def without_hidden(df: Any, hidden: Any) -> Any:
    """
    Return the rows of base files that no log hides.

    Args:
        df: Spark's read of the base files, with its metadata column.
        hidden: The numbers of the hidden rows: a DataFrame, which each executor gets whole (a
            broadcast), or ascending numbers, which each row is looked up in.
    """
    if isinstance(hidden, np.ndarray):
        spark = df.sparkSession
        return df.where(column_of(spark, _absent(spark, parse_expression(spark, _NUMBER), hidden)))
    numbered = df.withColumn(_HIDDEN, F.expr(_NUMBER))
    return numbered.join(F.broadcast(hidden), _HIDDEN, "left_anti").drop(_HIDDEN)


def _absent(spark: Any, number: Any, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Return Spark's expression that a number is not among ascending ones, by a binary search."""
    memory = java_class(spark, "org.apache.spark.unsafe.Platform")
    array = spark.sparkContext._gateway.new_array(spark._jvm.long, len(numbers))  # noqa: SLF001
    memory.copyMemory(
        numbers.astype("=i8").tobytes(),
        memory.BYTE_ARRAY_OFFSET,
        array,
        memory.LONG_ARRAY_OFFSET,
        numbers.nbytes,
    )
    kind = java_class(spark, "org.apache.spark.sql.types.ObjectType")(array.getClass())
    literal = catalyst(spark, "expressions.Literal")
    search = catalyst(spark, "expressions.objects.StaticInvoke")
    classes, integer = java_class(spark, "java.lang.Class"), java_type(spark, IntegerType())
    given = [
        classes.forName("java.util.Arrays"),
        integer,
        "binarySearch",
        scala_seq(spark, [literal(array, kind), number]),
        scala_seq(spark, []),
        True,  # the result of null is null
        False,  # the result is never null
        True,  # it depends on the arguments only
        option(spark, None),  # since Spark 4.1
    ]
    own = kind.getClass().getClassLoader().loadClass(search._fqn)  # noqa: SLF001
    place = search(*given[: own.getConstructors()[0].getParameterCount()])
    return catalyst(spark, "expressions.LessThan")(place, literal(0, integer))


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


def _numbers(one: FileSlice, hidden: Positions) -> pa.Array:
    return pa.array(hidden.astype(np.int64) + file_code(one))


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
