"""
Base files by Spark's own Parquet reader, with partition columns as Spark's partitions.

Spark's public reader derives partitions from the names of folders below one root, and lists all of
it. So a relation is made by Spark's inner classes: exactly the visible files, whose names and sizes
are known, and the values of their partitions. Then Spark opens only the files of the partitions
that a filter or a join leaves. A session whose classes differ reads the same files without
partitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from filegroups.recently_used import RecentlyUsed
from hoodoo.spark.file_index import FileSkipping, SkippingFileIndex
from hoodoo.spark.java import java_class, java_type
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.sql.catalyst import kind_of, listed_seq
from timeline.errors import MissingFileError
from timeline.ports.ports import EventSink

_SCALA = "org.apache.spark.api.python.PythonUtils"
_PATTERN = re.compile(r"[\[\]{}*?\\]")
# Session settings for other files would drop rows or move days before 1582 by a week. They would
# do so only in the base files that Spark reads, not in those that tasks of hoodoo read.
_AS_WRITTEN = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
_NAMED_FILES_MAX = 1_000  # Spark looks up more of them itself, in parallel
_WITH_BLOCKS = ("hdfs", "viewfs")  # only a lookup says which machines have a file
FEW_FILES = 32  # on the local disk Spark looks up so many without a job, and faster
_INDEXED_FILE_BYTES = 2 << 10  # of Python and the JVM together, about


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFile:
    """
    A base file that Spark reads.

    Args:
        path: Absolute path.
        size_bytes: Its size.
        values: The values of the partition columns in all its rows, as Arrow stores them; None if
            they are not certain.
    """

    path: str
    size_bytes: int
    values: tuple[Any, ...] | None = None

    @property
    def folder(self) -> str:
        """The folder of the file."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The name of the file, which no other file of the table has."""
        return self.path.rpartition("/")[2]


# An index takes half the time of a load. Base files never change, so neither does an index of them.
_INDEXES: RecentlyUsed[tuple[Any, tuple[SparkFile, ...], str], Any] = RecentlyUsed(32 << 20)


def read_base_files(
    spark: Any,
    files: Sequence[SparkFile],
    wanted: Any,
    columns: pa.Schema,
    *,
    events: EventSink,
    skip: FileSkipping | None = None,
    each: Callable[[Any], Any] | None = None,
) -> Any:
    """
    Read base files.

    Args:
        spark: The session.
        files: At least one file.
        wanted: Spark's schema of the result.
        columns: The partition columns, in the order of ``SparkFile.values``.
        events: Hears of a session that cannot prune partitions (``spark.partitions_not_pruned``).
        skip: Leaves out files for the filters of a query; None if no statistics are known.
        each: Applied to each relation of files before their union, which has no metadata column.

    Raises:
        MissingFileError: Spark did not find a file that it looked up.
    """
    partition_schema = _partition_schema(columns, wanted)
    known = [one for one in files if one.values is not None] if partition_schema else []
    plain = [one for one in files if one.values is None] if partition_schema else list(files)
    parts = []
    try:
        if known and partition_schema is not None:
            parts.append(
                _relation(spark, known, wanted, partition_schema, events=events, skip=skip)
            )
        if plain and skip is not None:
            parts.append(_relation(spark, plain, wanted, StructType([]), events=events, skip=skip))
            plain = []
    except (Py4JError, TypeError) as error:
        events.emit("spark.partitions_not_pruned", why=str(error)[:200])
        parts, plain = [], list(files)
    if plain:
        reader = spark.read.format("parquet").options(**_AS_WRITTEN).schema(wanted)
        try:
            parts.append(reader.load([_no_pattern(one.path) for one in plain]))
        except AnalysisException as error:
            lost = next((one.path for one in plain if one.name in str(error)), None)
            if lost is None:
                raise
            raise MissingFileError.of_table(lost) from error
    parts = parts if each is None else list(map(each, parts))
    return reduce(lambda one, other: one.union(other), parts)


def _partition_schema(columns: pa.Schema, wanted: Any) -> Any:
    """Return the partition columns in Spark's types; None unless all of them are wanted so."""
    if not columns.names:
        return None
    fields = spark_schema_of(columns).fields
    there = {each.name: each for each in wanted.fields}
    same = all(one.name in there and there[one.name].dataType == one.dataType for one in fields)
    return StructType([there[one.name] for one in fields]) if same else None


def _relation(
    spark: Any,
    files: Sequence[SparkFile],
    wanted: Any,
    partition_schema: Any,
    *,
    events: EventSink,
    skip: FileSkipping | None,
) -> Any:
    session = spark._jsparkSession  # noqa: SLF001
    own = StructType([each for each in wanted.fields if each.name not in partition_schema.names])
    index = whole = _index(spark, files, partition_schema)
    if skip is not None:
        ensure_callback_server_started(spark.sparkContext._gateway)  # noqa: SLF001
        index = SkippingFileIndex(
            whole,
            skip.columns_in(own.fields),
            partial(_part, spark, files, partition_schema, skip),
            events,
        )
    relation = _source(spark, "HadoopFsRelation")(
        index,
        java_type(spark, partition_schema),
        java_type(spark, wanted),  # with the partition columns, which then keep their places
        java_class(spark, "scala.Option").apply(None),
        _source(spark, "parquet.ParquetFileFormat")(),
        java_class(spark, _SCALA).toScalaMap(dict(_AS_WRITTEN)),
        session,
    )
    return DataFrame(session.baseRelationToDataFrame(relation), spark)


def _part(
    spark: Any,
    files: Sequence[SparkFile],
    partition_schema: Any,
    skip: FileSkipping,
    condition: pc.Expression,
) -> Any:
    """Return Spark's index of the files that may match; None for that of all."""
    names = skip.matching(condition, [one.name for one in files])
    kept = [one for one in files if one.name in names]
    return None if len(kept) == len(files) else _index(spark, kept, partition_schema)


def _source(spark: Any, name: str) -> Any:
    return java_class(spark, f"org.apache.spark.sql.execution.datasources.{name}")


def _index(spark: Any, files: Sequence[SparkFile], partition_schema: Any) -> Any:
    """Return Spark's index of files; another load of the same files made it if one did lately."""
    key = spark, tuple(files), partition_schema.json()
    found = _INDEXES.find(key)
    if found is None:
        found = _new_index(spark, files, partition_schema)
        _INDEXES.keep(key, found, len(files) * _INDEXED_FILE_BYTES)
    return found


def _new_index(spark: Any, files: Sequence[SparkFile], partition_schema: Any) -> Any:
    """Return Spark's index of files, which are of the partitions that their values name."""
    scala = java_class(spark, _SCALA)
    path_of = java_class(spark, "org.apache.hadoop.fs.Path")
    paths = [path_of(one.path) for one in files]
    partitions = []
    if partition_schema.names:
        values = {one.folder: one.values or () for one in files}
        rows = _internal_rows(spark, list(values.values()), partition_schema)
        partition_path = _source(spark, "PartitionPath")
        partitions = [
            partition_path(row, path_of(folder)) for folder, row in zip(values, rows, strict=True)
        ]
    nothing = java_class(spark, "scala.Option").apply(None)
    spec = _source(spark, "PartitionSpec")(
        java_type(spark, partition_schema), scala.toSeq(partitions)
    )
    index = _source(spark, "InMemoryFileIndex")(
        spark._jsparkSession,  # noqa: SLF001
        scala.toSeq(paths),
        scala.toScalaMap(dict(_AS_WRITTEN)),
        nothing,
        _named_files(spark, files, paths),
        java_class(spark, "scala.Some")(spec),
        nothing,
    )
    _assert_whole(index, files)
    return index


def _assert_whole(index: Any, files: Sequence[SparkFile]) -> None:
    """Refuse an index without some of its files, whose rows a query would lack without an error."""
    found = index.allFiles()  # Spark leaves out what it did not find
    if found.size() == len(files):
        return
    names = {str(one.getPath().getName()) for one in listed_seq(found)}
    raise MissingFileError.of_table(next(one.path for one in files if one.name not in names))


def _named_files(spark: Any, files: Sequence[SparkFile], paths: Sequence[Any]) -> Any:
    """Return a cache of Spark with the files, which Spark then does not look up."""
    cache = _source(spark, "FileStatusCache").getOrCreate(spark._jsparkSession)  # noqa: SLF001
    if not files:
        return cache
    scheme, few = files[0].path.partition(":")[0], len(files) <= FEW_FILES
    if len(files) > _NAMED_FILES_MAX or scheme in _WITH_BLOCKS or (scheme == "file" and few):
        return cache
    status = java_class(spark, "org.apache.hadoop.fs.FileStatus")
    for one, path in zip(files, paths, strict=True):
        found = spark.sparkContext._gateway.new_array(status, 1)  # noqa: SLF001
        found[0] = status(one.size_bytes, False, 1, 128 << 20, 0, path)
        cache.putLeafFiles(path, found)
    return cache


def _internal_rows(spark: Any, values: Sequence[tuple[Any, ...]], schema: Any) -> list[Any]:
    """Return partition values as rows inside Spark, by a query that needs no job."""
    kinds = [each.dataType.simpleString() for each in schema.fields]
    texts = ", ".join("(" + ", ".join(map(_literal, one, kinds)) + ")" for one in values)
    text = f"SELECT * FROM VALUES {texts}"  # noqa: S608 - hexadecimal digits and numbers
    query = spark._jsparkSession.sql(text).queryExecution()  # noqa: SLF001
    leaf = query.analyzed().collectLeaves().apply(0)
    if kind_of(leaf) == "LocalRelation":  # not in each version
        return listed_seq(leaf.data())
    return list(query.executedPlan().executeCollect())


def _literal(value: Any, kind: str) -> str:
    """Return a value as SQL; dates are days since 1970."""
    if value is None:
        return f"CAST(NULL AS {kind})"
    if kind == "date":
        return f"date_add(DATE'1970-01-01', {int(value)})"
    # No setting of the session changes how hexadecimal digits are read.
    return f"CAST(CAST(X'{str(value).encode().hex()}' AS STRING) AS {kind})"


def as_spelled(file: str, table: str) -> str:
    """Return a file's path with the S3 scheme of the table's path, which the cluster supports."""
    scheme, _, rest = file.partition("://")
    spelled = table.partition("://")[0].lower()
    return f"{spelled}://{rest}" if scheme == "s3" and spelled in ("s3a", "s3n") else file


def _no_pattern(path: str) -> str:
    """Escape the characters of a path that Spark would read as a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)
