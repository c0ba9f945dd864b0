"""
The streamer's engine of a Spark session: rows are DataFrames, and queries are SQL of Spark.

Tasks read each file of a batch once. The columns of all files decide which of them are a batch, so
Spark keeps the rows until the batch is written. The driver reads messages of Kafka. The write is that
of ``df.write``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StructType

from filegroups.schema.casting import normalise
from filegroups.schema.schema import META_COLUMNS
from filegroups.writing.write_request import CommitResult
from hoodoo.configuration import Layers
from hoodoo.input_files import join_rows
from hoodoo.spark.error_transport import (
    TaskFailedError,
    collect_dataframe,
    error_from_json,
    error_from_spark,
    error_to_json,
)
from hoodoo.spark.options import session_properties, storage_properties
from hoodoo.spark.read import load_dataframe
from hoodoo.spark.schema import arrow_schema_of, spark_schema_of, transport_schema
from hoodoo.spark.session import install
from hoodoo.spark.slices import dataframe_of
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.sql.catalyst import first_line
from hoodoo.spark.tasks import StorageAddress
from hoodoo.spark.write import save_dataframe
from hoodoo.streamer.bad_records import BadRecord, no_key_reason
from hoodoo.streamer.engine import PLACEHOLDER, FileFormat, FileRows
from hoodoo.table import Table
from timeline.errors import HoodooError, InvalidInputError
from timeline.model.commit_metadata import WriteOperation
from timeline.ports.ports import Storage

_FILE, _SCHEMA, _BAD, _ERROR, _ROWS = "file", "schema", "bad", "error", "rows"
_READ = pa.schema(
    [
        pa.field(_FILE, pa.int64()),
        pa.field(_SCHEMA, pa.binary()),
        pa.field(_BAD, pa.string()),
        pa.field(_ERROR, pa.string()),
        pa.field(_ROWS, pa.binary()),
    ]
)
_CHUNK_BYTES = 4 << 20
#: A statement among several: a semicolon in quotes or in a comment ends none.
_STATEMENT = re.compile(
    r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|--[^\n]*|/\*.*?\*/|[^;])+""", re.DOTALL
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/|\s+", re.DOTALL)
_TASKS_MAX = 1_000  # of one batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFiles:
    """Read files by their numbers: first what each is like or why it cannot be read, then its rows."""

    address: StorageAddress
    form: FileFormat
    paths: tuple[str, ...]
    schema: pa.Schema | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the files that the batches number, in the columns of ``_READ``; runs in a worker."""
        storage = self.address.open()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._file(storage, number)

    def _file(self, storage: Storage, number: int) -> Iterator[pa.RecordBatch]:
        try:
            rows, bad = self.form.rows(storage, self.paths[number], self.schema)
        except HoodooError as error:
            yield _read(number, **{_ERROR: error_to_json(error)})
            return
        bad_rows = json.dumps([[one.position, one.record, one.reason] for one in bad])
        yield _read(number, **{_SCHEMA: rows.schema.serialize().to_pybytes(), _BAD: bad_rows})
        count = max(1, rows.num_rows * _CHUNK_BYTES // max(1, rows.nbytes))
        for part in rows.to_batches(max_chunksize=count):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
            yield _read(number, **{_ROWS: sink.getvalue().to_pybytes()})


def _read(number: int, **values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{_FILE: number, **values}], schema=_READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """Decode the rows of ``ReadFiles`` into the columns of a DataFrame."""

    shape: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows; runs in a worker."""
        for batch in batches:
            for packed in batch.column(0):
                with pa.ipc.open_stream(packed.as_buffer()) as reader:
                    yield from _shaped(reader.read_all(), self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformRows:
    """Give rows the columns of a schema."""

    shape: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows; runs in a worker."""
        for batch in batches:
            yield from _shaped(pa.Table.from_batches([batch]), self.shape)


def _shaped(rows: pa.Table, shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        yield from normalise(rows, shape).cast(shape).combine_chunks().to_batches()
    except HoodooError as error:
        raise TaskFailedError(error) from error


class SparkEngine:
    """
    The engine of a session.

    Args:
        spark: A classic session; None for that of this process, or a new one.

    Raises:
        StorageCapabilityError: The session is a Spark Connect one.
    """

    def __init__(self, spark: Any = None) -> None:
        if spark is None:
            spark = SparkSession.builder.appName("hoodoo streamer").getOrCreate()
        self._spark = install(spark)
        self._stores: dict[str, str] = {}
        self._files: Any = None
        self._views: dict[str, bool] = {}  # whether a statement of the user's made it

    def layers(self, layers: Layers) -> Layers:
        found = replace(layers, session=session_properties(self._spark))
        self._stores = storage_properties(found.load())
        return found

    # ---- Sources

    def read_files(
        self, form: FileFormat, storage: Storage, paths: Sequence[str], schema: pa.Schema | None
    ) -> Iterator[FileRows]:
        address = StorageAddress(base_uri=storage.base_uri, options=tuple(self._stores.items()))
        work = ReadFiles(address=address, form=form, paths=tuple(paths), schema=schema)
        numbers = self._spark.range(0, len(paths), 1, min(len(paths), _TASKS_MAX))
        read = numbers.mapInArrow(work, spark_schema_of(_READ))
        self._files = read.persist(StorageLevel.MEMORY_AND_DISK)
        heads = collect_dataframe(self._files.where(F.col(_ROWS).isNull()).drop(_ROWS))
        for head in sorted(heads, key=lambda one: one[_FILE]):
            if head[_ERROR] is not None:
                raise error_from_json(head[_ERROR])
            yield FileRows(
                path=paths[head[_FILE]],
                schema=pa.ipc.read_schema(pa.py_buffer(bytes(head[_SCHEMA]))),
                rows=head[_FILE],
                bad=[
                    BadRecord(position=position, record=record, reason=reason)
                    for position, record, reason in json.loads(head[_BAD])
                ],
            )

    def join(self, files: Sequence[FileRows], names: Sequence[str]) -> Any:
        schema = join_rows([one.schema.empty_table() for one in files], names).schema
        if not schema.names:
            return pa.table({})
        numbers = [one.rows for one in files]
        wanted = self._files.where(F.col(_ROWS).isNotNull() & F.col(_FILE).isin(numbers))
        shape = _spark_shape(schema)
        return wanted.select(_ROWS).mapInArrow(DecodeRows(shape=_carried(shape)), shape)

    def changes(self, table: Table, since: str, until: str) -> Any:
        df = self._loaded(
            table,
            {
                "hoodie.datasource.query.type": "incremental",
                "hoodie.datasource.read.begin.instanttime": since,
                "hoodie.datasource.read.end.instanttime": until,
            },
        )
        return df if collect_dataframe(df.limit(1)) else None

    def _loaded(self, table: Table, options: Mapping[str, str]) -> Any:
        path = table.context.ports.storage.base_uri
        return load_dataframe(self._spark, [path], {**self._stores, **options}, warns=False)

    # ---- Transformers

    def query(self, text: str, tables: Mapping[str, Table], key: str) -> Any:
        loaded = {name: self._loaded(table, {}) for name, table in tables.items()}
        return self._run(text, loaded, key)

    def query_batch(self, text: str, key: str, rows: Any) -> Any:
        name = f"hoodoo_batch_{uuid4().hex}"
        return self._run(text.replace(PLACEHOLDER, name), {name: rows}, key)

    def _run(self, text: str, frames: Mapping[str, Any], key: str) -> Any:
        """
        Run SQL of Spark over DataFrames by their names, as temporary views.

        The last statement is the query. All views live until the batch ends.
        """
        *first, query = [one for one in _STATEMENT.findall(text) if _COMMENT.sub("", one)] or [text]
        try:
            for name, df in frames.items():
                df.createOrReplaceTempView(name)
                self._views[name] = False
            if first:
                self._run_before(first)
            found = self._spark.sql(query)
        except PySparkException as error:
            raise InvalidInputError(
                f"the query fails, correct it: {key}: {first_line(error)[:300]}",
                kind="streamer_query",
                key=key,
            ) from None
        if not found.columns:
            raise InvalidInputError(
                f"the query returns no rows, use a SELECT: {key}", kind="streamer_query", key=key
            )
        return found

    def _run_before(self, statements: Sequence[str]) -> None:
        """Run the statements before a query, and note the views that they make."""
        known = self._temporary_views()
        try:
            for one in statements:
                self._spark.sql(one)
        finally:
            self._views |= dict.fromkeys(self._temporary_views() - known, True)

    def _temporary_views(self) -> set[str]:
        return {one.viewName for one in self._spark.sql("SHOW VIEWS").collect() if one.isTemporary}

    def call(self, function: Callable[[Any], Any], rows: Any) -> Any:
        found = function(rows)
        if not isinstance(found, DataFrame):
            raise TypeError(
                f"on Spark a transformer returns a DataFrame, not {type(found).__name__}"
            )
        return found

    def flatten(self, rows: Any) -> Any:
        while any(isinstance(field.dataType, StructType) for field in rows.schema):
            columns = []
            for field in rows.schema:
                quoted = _quoted(field.name)
                if not isinstance(field.dataType, StructType):
                    columns.append(F.col(quoted))
                    continue
                columns += [
                    F.col(f"{quoted}.{_quoted(one.name)}").alias(f"{field.name}_{one.name}")
                    for one in field.dataType
                ]
            rows = rows.select(*columns)
        return rows

    # ---- Rows

    def to_rows(self, rows: Any, schema: pa.Schema | None) -> Any:
        if isinstance(rows, pa.Table):
            rows = rows if schema is None else normalise(rows, schema)
            shape = _spark_shape(rows.schema)
            return dataframe_of(self._spark, rows.cast(arrow_schema_of(shape)), shape)
        if schema is None:
            return rows
        shape = _spark_shape(schema)
        normalise(
            arrow_schema_of(rows.schema).empty_table(), _carried(shape)
        )  # refuses columns now
        return rows.mapInArrow(ConformRows(shape=_carried(shape)), shape)

    def columns(self, rows: Any) -> Sequence[str]:
        names: list[str] = rows.columns
        return names

    def without_keys(
        self, rows: Any, key_fields: Sequence[str], position: str
    ) -> tuple[Any, list[BadRecord]]:
        named = [F.col(_quoted(name)).isNull() for name in key_fields if name in rows.columns]
        missing = F.lit(False)
        for one in named:
            missing = missing | one
        all_columns = F.struct(*(F.col(_quoted(name)) for name in rows.columns))
        found = collect_dataframe(rows.where(missing).select(F.to_json(all_columns)))
        bad = [
            BadRecord(
                position=f"{position}, row {number}", record=text, reason=no_key_reason(key_fields)
            )
            # Spark's order may differ in a repeated batch; that of the texts does not.
            for number, text in enumerate(sorted(row[0] for row in found))
        ]
        return (rows.where(~missing) if bad else rows), bad

    # ---- The table

    def open_table(self, path: str, layers: Layers) -> Table:
        return SparkTable(self._spark, path, layers=layers)

    def write(
        self,
        table: Table | None,
        path: str,
        layers: Layers,
        rows: Any,
        operation: WriteOperation,
        **how: Any,
    ) -> tuple[CommitResult, int, Table | None]:
        try:
            if table is None:
                own = rows.drop(*META_COLUMNS)
                result = save_dataframe(own, path, {}, mode="append", layers=layers, **how)
            else:
                result = table.write(rows, operation, **how)
        except HoodooError:
            raise
        except PySparkException as error:
            carried = error_from_spark(error)
            if carried is not None:
                raise carried from error
            raise InvalidInputError(
                "Spark cannot compute the rows of the batch; correct the transformer, or the "
                f"values: {first_line(error)[:500]}",
                kind="streamer_transformer",
            ) from error
        assert result is not None  # only the mode ``ignore`` has none
        count = result.rows_inserted + result.rows_updated + result.rows_deleted
        return result, count, table

    def release(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.unpersist()
        while self._views:  # a cached view is let go before the views that it reads
            name, may_be_cached = self._views.popitem()
            if may_be_cached:
                self._spark.sql(f"UNCACHE TABLE IF EXISTS {_quoted(name)}")
            self._spark.catalog.dropTempView(name)


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _spark_shape(schema: pa.Schema) -> Any:
    try:
        return spark_schema_of(schema)
    except PySparkException as error:
        raise InvalidInputError(
            "Spark has no type for a column; give the source a schema with another type: "
            f"{first_line(error)[:300]}",
            kind="unsupported_type",
        ) from error


def _carried(shape: Any) -> pa.Schema:
    """Return the Arrow schema in which a task returns rows to Spark."""
    return transport_schema(arrow_schema_of(shape))
