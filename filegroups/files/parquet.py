"""
Base files: Parquet as Java Hudi writes and reads it, through the storage port.

A Hudi base file is a Parquet file with Hudi's footer: the Avro schema, the range of record keys and
the bloom filter. Without the filter a Java writer's BLOOM index fails (fmt 4.4). Files are written
once, whole, and never changed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from filegroups.files.bloom import BloomFilter
from filegroups.files.parquet_layout import (
    ParquetSettings,
    has_floats,
    layout_of,
    row_group_rows,
)
from filegroups.keys.keys import VirtualKeys, java_order, key_range
from filegroups.schema.casting import promote, schema_mismatch_error, to_stored_rows
from filegroups.schema.column_ids import Renaming
from filegroups.schema.schema import KEY_COLUMN, avro_with_meta, vector_columns
from timeline.errors import CorruptTableError, InvalidInputError, MissingFileError
from timeline.ports.ports import ObjectMissingError, Storage, open_cached

_AVRO_SCHEMA = "parquet.avro.schema"
_VECTORS = "hoodie.vector.columns"
_BLOOM = "org.apache.hudi.bloomfilter"
_OLD_BLOOM = "com.uber.hoodie.bloomfilter"
_BLOOM_KIND = "hoodie_bloom_filter_type_code"
_KEY_MIN = "hoodie_min_record_key"
_KEY_MAX = "hoodie_max_record_key"
_BATCH_ROWS = 65_536
_THREADS_PAY_ROWS = 10_000  # for fewer rows, threads cost more than decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The contents of a base file's footer; the texts are untrusted."""

    rows: int
    schema: pa.Schema
    avro_json: str | None
    key_min: str | None
    key_max: str | None
    bloom_base64: str | None
    bloom_kind: str
    created_by: str = ""


def write_base_file(
    storage: Storage,
    path: str,
    rows: pa.Table,
    *,
    avro_json: str,
    bloom: BloomFilter | None = None,
    settings: ParquetSettings | None = None,
) -> int:
    """
    Write a new base file and return its size in bytes.

    Args:
        storage: Storage of the table.
        path: Relative path of the new file; never an existing one.
        rows: Meta columns first, then the table's own, in order.
        avro_json: The table's schema without meta columns.
        bloom: Filter that already holds every key of ``rows``; None writes no filter.
        settings: Layout of the file.

    Raises:
        ObjectExistsError: The name is taken.
        StorageUnavailableError: The storage failed; the unfinished file is removed.

    Outside: 1 open_output.
    """
    metadata = _base_metadata(rows, avro_json, bloom)
    with storage.open_output(path) as sink:
        _write(sink, rows, metadata, settings or ParquetSettings())
        return sink.tell()


def base_file_bytes(
    rows: pa.Table,
    *,
    avro_json: str,
    bloom: BloomFilter | None = None,
    settings: ParquetSettings | None = None,
) -> bytes:
    """
    Return a whole base file in memory: a small one, or one to create whole or not at all.

    Arguments: as ``write_base_file``.
    """
    sink = pa.BufferOutputStream()  # Arrow's own: writing to it calls no Python
    metadata = _base_metadata(rows, avro_json, bloom)
    _write(sink, rows, metadata, settings or ParquetSettings())
    return bytes(sink.getvalue().to_pybytes())


def _base_metadata(rows: pa.Table, avro_json: str, bloom: BloomFilter | None) -> dict[str, str]:
    """Return the footer metadata of a base file (fmt 4.4)."""
    metadata = _schema_metadata(rows, avro_json)
    if bloom is not None:
        metadata |= {_BLOOM: bloom.to_base64(), _BLOOM_KIND: bloom.kind}
    limits = key_range(rows.column(KEY_COLUMN)) if KEY_COLUMN in rows.schema.names else None
    if limits is not None:
        metadata |= {_KEY_MIN: limits[0], _KEY_MAX: limits[1]}
    return metadata


def _schema_metadata(rows: pa.Table, avro_json: str) -> dict[str, str]:
    metadata = {_AVRO_SCHEMA: avro_with_meta(avro_json), "writer.model.name": "avro"}
    if vectors := vector_columns(rows.schema):
        metadata[_VECTORS] = vectors
    return metadata


def parquet_bytes(rows: pa.Table, avro_json: str, settings: ParquetSettings) -> bytes:
    """
    Return a whole Parquet file in memory: the content of a block of a log file (fmt 5.4).

    Args:
        rows: Meta columns first, then the table's own, in order.
        avro_json: The table's schema without meta columns.
        settings: Layout of the file.
    """
    sink = io.BytesIO()
    metadata = _schema_metadata(rows, avro_json)
    _write(sink, rows, metadata, replace(settings, filtered=()))  # logs are read whole
    return sink.getvalue()


def empty_file(properties: Mapping[str, str]) -> bytes:
    """Return a file without rows whose footer has properties, as Java stores a partition's."""
    made = io.BytesIO()
    schema = pa.schema([pa.field("dummyint", pa.int64())], metadata=dict(properties))
    pq.ParquetWriter(made, schema).close()
    return made.getvalue()


def _write(
    sink: IO[bytes], rows: pa.Table, metadata: Mapping[str, str], settings: ParquetSettings
) -> None:
    rows = to_stored_rows(rows)
    with pq.ParquetWriter(sink, rows.schema, **layout_of(rows, settings)) as writer:
        writer.write_table(rows, row_group_size=row_group_rows(rows, settings))
        # The writer drops the Arrow schema's metadata, so the footer's keys are added here.
        writer.add_key_value_metadata(metadata)


def read_base_file(
    storage: Storage,
    path: str,
    *,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    row_filter: pc.Expression | None = None,
    renaming: Renaming | None = None,
    kept: bool = False,
) -> pa.Table:
    """
    Read a base file.

    Args:
        storage: Storage of the table.
        path: Relative path.
        schema: The schema to return: columns the file lacks become null, older types are promoted
            (``promote``). None returns the file as it is.
        columns: Names to return, in this order; None returns all.
        row_filter: Rows to return, in the schema's names and types. Row groups that cannot match
            are not read, unless a column it names had another type or name, or has floats.
        renaming: The names of the schema's columns in this file (``SchemaHistory``).
        kept: Whether a copy cached in this process is acceptable (``open_cached``).

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged or does not fit the schema.

    Outside: 1 open_input.
    """
    with open_base_file(storage, path, kept=kept) as (source, file):
        plan = _plan(file, schema, columns, row_filter, renaming)
        if plan.pushed is not None:
            scanner = _scanner(source, plan, plan.pushed, use_threads=True)
            return _shaped(scanner.to_table(), plan, path)
        side_by_side = file.metadata.num_rows >= _THREADS_PAY_ROWS
        rows = file.read(columns=plan.present, use_threads=side_by_side)
        return _shaped(rows, plan, path)


def read_batches(
    storage: Storage,
    path: str,
    *,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    row_filter: pc.Expression | None = None,
    renaming: Renaming | None = None,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """
    Read a base file in batches, with about one batch in memory.

    Arguments, errors and the call outside are those of ``read_base_file``. Batches have at most
    ``batch_rows`` rows; empty ones are left out.
    """
    with open_base_file(storage, path) as (source, file):
        plan = _plan(file, schema, columns, row_filter, renaming)
        if plan.pushed is None:
            pieces = file.iter_batches(batch_rows, columns=plan.present, use_threads=False)
        else:
            scanner = _scanner(source, plan, plan.pushed, batch_rows=batch_rows, use_threads=False)
            pieces = scanner.to_batches()
        for piece in pieces:
            if piece.num_rows:
                rows = _shaped(pa.Table.from_batches([piece]), plan, path)
                if rows.num_rows:
                    yield from rows.combine_chunks().to_batches(batch_rows)


def read_keys(storage: Storage, path: str) -> pa.ChunkedArray:
    """
    Read the record keys of a base file, in the file's order.

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged or has no record keys.
    """
    with open_base_file(storage, path) as (_, file):
        return _keys(file, path)


def read_keys_between(storage: Storage, path: str, low: str, high: str) -> pa.ChunkedArray | None:
    """
    Read the record keys of a base file that may hold some between two keys.

    Args:
        storage: Storage of the table.
        path: Relative path.
        low: Least key of interest, in Java's order.
        high: Greatest key of interest.

    Returns:
        All keys of the file; None if its footer excludes the range.

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged or has no record keys.

    Outside: 1 open_kept.
    """
    with open_base_file(storage, path, kept=True) as (_, file):
        texts = file.metadata.metadata or {}
        least, greatest = texts.get(_KEY_MIN.encode()), texts.get(_KEY_MAX.encode())
        if least is not None and java_order(high) < java_order(least.decode()):
            return None
        if greatest is not None and java_order(low) > java_order(greatest.decode()):
            return None
        return _keys(file, path)


def read_keys_if(
    storage: Storage, path: str, wanted: Callable[[Footer], bool]
) -> pa.ChunkedArray | None:
    """
    Read the record keys of a base file; None if its footer is not ``wanted``.

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged or has no record keys.

    Outside: 1 open_kept.
    """
    with open_base_file(storage, path, kept=True) as (_, file):
        return _keys(file, path) if wanted(_footer(file)) else None


def filter_columns(row_filter: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the columns an expression needs."""
    return [name for name in schema.names if not works_without(row_filter, schema, name)]


def read_footer(storage: Storage, path: str, *, kept: bool = False) -> Footer:
    """
    Read a base file's footer only; ``kept`` as in ``read_base_file``.

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged.
    """
    with open_base_file(storage, path, kept=kept) as (_, file):
        return _footer(file)


def _footer(file: pq.ParquetFile | InMemoryParquet) -> Footer:
    texts = file.metadata.metadata or {}

    def text(name: str) -> str | None:
        value = texts.get(name.encode())
        return None if value is None else value.decode()

    return Footer(
        rows=file.metadata.num_rows,
        schema=file.schema_arrow,
        avro_json=text(_AVRO_SCHEMA),
        key_min=text(_KEY_MIN),
        key_max=text(_KEY_MAX),
        bloom_base64=text(_BLOOM) or text(_OLD_BLOOM),
        bloom_kind=text(_BLOOM_KIND) or "SIMPLE",
        created_by=file.metadata.created_by or "",
    )


@dataclass(frozen=True, slots=True)
class _ReadPlan:
    names: list[str]  # the columns to return
    shape: pa.Schema  # the same, and those that a filter of the promoted rows needs
    scan: pa.Schema  # the same columns and all others a filter may name, with the file's types
    present: list[str]  # the columns to read, by their names in the file
    pushed: pc.Expression | None  # applied while reading
    late: pc.Expression | None  # applied to the promoted rows
    renaming: Renaming | None


def _keys(file: pq.ParquetFile | InMemoryParquet, path: str) -> pa.ChunkedArray:
    if KEY_COLUMN not in file.schema_arrow.names:
        raise CorruptTableError(
            "a base file has no record keys, so it cannot be updated: restore it from a backup, "
            f"or roll its write back with 'hoodoo rollback TABLE INSTANT': {path}",
            path=path,
        )
    return file.read(columns=[KEY_COLUMN], use_threads=False).column(0)


@contextmanager
def open_base_file(
    storage: Storage, path: str, *, kept: bool = False
) -> Iterator[tuple[Any, pq.ParquetFile | InMemoryParquet]]:
    """
    Open a base file; return its source and the file. ``kept`` as in ``read_base_file``.

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged; also raised for damage that the body finds.

    Outside: 1 open_input.
    """
    try:
        source = open_cached(storage, path) if kept else storage.open_input(path)
    except ObjectMissingError as error:
        raise MissingFileError(
            "a base file is missing: restore it from a backup, or run 'hoodoo table verify "
            f"TABLE': {path}",
            path=path,
        ) from error
    with source:
        try:
            yield source, open_parquet(source)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise CorruptTableError(
                "a base file cannot be read: restore it from a backup, or roll its write back "
                f"with 'hoodoo rollback TABLE INSTANT': {path} ({_first_line(error)})",
                kind="bad_base_file",
                path=path,
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _plan(
    file: pq.ParquetFile | InMemoryParquet,
    schema: pa.Schema | None,
    columns: Sequence[str] | None,
    row_filter: pc.Expression | None,
    renaming: Renaming | None,
) -> _ReadPlan:
    physical = file.schema_arrow.remove_metadata()
    target = physical if schema is None else schema
    names = target.names if columns is None else list(columns)
    held = {each.name: each for each in physical}
    late = row_filter is not None and (
        renaming is not None or _reads_otherwise(row_filter, target, held)
    )
    shape = [target.field(name) for name in names]
    if late and row_filter is not None:
        named = filter_columns(row_filter, target)
        shape.extend(target.field(name) for name in named if name not in names)
    called = {
        each.name: renaming.written_name(each.name) if renaming else each.name for each in shape
    }
    return _ReadPlan(
        names=names,
        shape=pa.schema(shape),
        scan=pa.schema([held.get(each.name, each) for each in target]),
        present=[name for name in called.values() if name is not None and name in held],
        pushed=None if late else row_filter,
        late=row_filter if late else None,
        renaming=renaming,
    )


def _reads_otherwise(
    row_filter: pc.Expression, target: pa.Schema, held: Mapping[str, pa.Field]
) -> bool:
    """
    Return whether a filter names a column that the file stores with other values.

    Such values are converted: a float is compared as the double Java makes of it, a number as the
    text it became. Milliseconds may have the label of microseconds (``stored_in``), and so may
    their statistics. An older struct lacks fields. The limits of floats exclude NaN, and are -0.0
    and 0.0 for either of the two.
    """
    stored = (each for each in target if each.name in held)
    other = [one.name for one in stored if not _compares_as(held[one.name].type, one.type)]
    return any(not works_without(row_filter, target, name) for name in other)


def _compares_as(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    return not has_floats(target) and bool(
        source == target
        or (types.is_integer(source) and types.is_integer(target))
        or (
            types.is_timestamp(source)
            and types.is_timestamp(target)
            and source.tz == target.tz
            and source.unit != "us"  # a coarser target then means that the label is wrong
        )
    )


def works_without(row_filter: pc.Expression, schema: pa.Schema, name: str) -> bool:
    """Return whether an expression does not name a column, by evaluating it on no rows."""
    try:
        schema.remove(schema.get_field_index(name)).empty_table().filter(row_filter)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):
        return False
    return True


def _scanner(
    source: Any,
    plan: _ReadPlan,
    row_filter: pc.Expression,
    *,
    use_threads: bool,
    batch_rows: int = _BATCH_ROWS,
) -> Any:
    import pyarrow.dataset as ds  # imports pandas, which takes as long as all the rest

    return ds.Scanner.from_fragment(
        ds.ParquetFileFormat().make_fragment(source),
        schema=plan.scan,
        columns=plan.names,
        filter=row_filter,
        batch_size=batch_rows,
        batch_readahead=1,
        use_threads=use_threads,
    )


def _shaped(rows: pa.Table, plan: _ReadPlan, path: str) -> pa.Table:
    try:
        if plan.renaming is not None:
            rows = plan.renaming.apply(rows)
        if not rows.schema.equals(plan.shape):
            rows = promote(rows, plan.shape)
        elif rows.schema.metadata:
            rows = rows.replace_schema_metadata(None)
        return rows if plan.late is None else rows.filter(plan.late).select(plan.names)
    except InvalidInputError as error:
        raise schema_mismatch_error(error, "a base file", path, kind="bad_base_file") from error


# ---- Small Parquet files, decoded once
#
# The key lookup, the merge and every scan read a base file; every scan reads a log's block. With
# few rows, opening and decoding costs many times as much as comparing the bytes with cached ones.

_FILE_BYTES_MAX: Final = 16_384
_ROWS_MAX: Final = 1_000
_DECODED_BYTES_MAX: Final = 65_536  # well compressed bytes may hold very much
_FILES_KEPT: Final = 512  # at most 40 MiB


@dataclass(frozen=True, slots=True)
class InMemoryParquet:
    """The used part of a ``pq.ParquetFile``, with all rows in memory; thread-safe."""

    schema_arrow: pa.Schema
    metadata: pq.FileMetaData
    rows: pa.Table

    def read(self, columns: Sequence[str] | None = None, **_: Any) -> pa.Table:
        """As in ``pq.ParquetFile``; uses no threads."""
        return self.rows if columns is None else self.rows.select(list(columns))

    def iter_batches(
        self, batch_size: int, columns: Sequence[str] | None = None, **_: Any
    ) -> list[pa.RecordBatch]:
        """As in ``pq.ParquetFile``."""
        return list(self.read(columns).to_batches(batch_size))


def open_parquet(source: IO[bytes]) -> pq.ParquetFile | InMemoryParquet:
    """
    Open a Parquet file; a small one is decoded at once and cached by its bytes.

    Raises:
        pa.ArrowException, OSError: The footer is damaged. Damaged rows raise when they are read.
    """
    if source.seek(0, os.SEEK_END) > _FILE_BYTES_MAX:
        return pq.ParquetFile(source)
    source.seek(0)
    return _decoded(source.read()) or pq.ParquetFile(source)


@lru_cache(maxsize=_FILES_KEPT)
def _decoded(data: bytes) -> InMemoryParquet | None:
    """Decode a file; None if the rows would take much memory, or are damaged."""
    with suppress(pa.ArrowException, OSError):
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows > _ROWS_MAX:
            return None
        rows = file.read(use_threads=False)
        if rows.get_total_buffer_size() <= _DECODED_BYTES_MAX:
            return InMemoryParquet(file.schema_arrow, file.metadata, rows)
    return None


# ---- Compute permits: threads that write small files of one table compute in sequence
#
# The interpreter runs one thread at a time anyway. Sixteen ready threads only pass that right
# between processors, at every call of Arrow: of 14 ms processor time of a small commit, 4 were
# spent so. For big tables Arrow works long without the interpreter, and threads use all processors.

_SMALL_BYTES = 1 << 20


def is_small(rows: pa.Table) -> bool:
    """Return whether making a file of these rows takes about as long as waiting for its disk."""
    return bool(rows.get_total_buffer_size() <= _SMALL_BYTES)  # cheaper than nbytes


def with_compute_lock(storage: Storage, rows: pa.Table) -> AbstractContextManager[object]:
    """
    Return a context in which no other thread computes for this table, if there are few rows.

    Call no port inside, or other threads would wait for its answer as well.

    Args:
        storage: Storage of the table; without a ``compute_permit`` no thread waits.
        rows: The rows of the computation.
    """
    permit: AbstractContextManager[object] | None = getattr(storage, "compute_permit", None)
    return permit if permit is not None and is_small(rows) else nullcontext()


# ---- Keys of base files that store none: computed from the key columns (fmt 4.2)


def read_virtual_keys(storage: Storage, path: str, keys: VirtualKeys) -> pa.ChunkedArray:
    """
    Compute the record keys of a base file, in the file's order.

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged, lacks a key column or has rows without a key.

    Outside: 1 open_input.
    """
    columns = list(dict.fromkeys(field.partition(".")[0] for field in keys.fields))
    try:
        rows = read_base_file(storage, path, columns=columns)
        return pa.chunked_array([keys.of(rows)])
    except (InvalidInputError, KeyError) as error:
        raise CorruptTableError(
            "a base file's rows have no key, though the table computes keys from "
            f"{list(keys.fields)}: {path} ({getattr(error, 'message', error)})",
            kind="bad_base_file",
            path=path,
        ) from error
