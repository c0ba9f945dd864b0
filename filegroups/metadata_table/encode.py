"""
Encode the flat tables of ``records``: to entries of HFiles, and to log files of the metadata table.

A record is an Avro datum of ``HoodieMetadataRecord`` whose own key is empty; the key is that of its
HFile entry. One field of the record is filled, the one of its kind. All functions are pure: equal
records give equal bytes, so a task may repeat them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns.encode import (
    FEW_ROWS,
    RowWriter,
    encode_few_rows,
    shortest_bytes,
)
from filegroups.files.avro_columns.types import parse_schema
from filegroups.files.delete_block import encode_deletes
from filegroups.files.hfile_writer import WrittenHFile, encode_hfile, write_hfile
from filegroups.metadata_table.recent import RECENT
from filegroups.metadata_table.records import (
    ALL_PARTITIONS,
    BLOOM_FILTERS,
    BOUND,
    COLUMN_STATS,
    FILES,
    RECORD_INDEX,
    SECONDARY_INDEX,
    RecordType,
)
from filegroups.schema.arrow_columns import one_array
from timeline.codecs.log_blocks import BlockType, HeaderKey, encode_block
from timeline.codecs.metadata_instants import metadata_record_schema
from timeline.errors import InvariantError
from timeline.model.instant_time import InstantTime

_CHUNK_ROWS: Final = 64 * 1024
_ENTRIES: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_UUID: Final = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:-(0|[1-9][0-9]{0,8}))?",
    re.ASCII,
)
KeptRecords: TypeAlias = tuple[pa.Table, pa.Array | None]
"""Records from ``in_order``, and the places of those that count; None for all."""

_RAW_FILE_ID: Final = 1  # the encoding of a file id that is no UUID


def encode_records(records: pa.Table, record_type: RecordType, *, table_version: int) -> pa.Table:
    """
    Encode records as the entries of an HFile.

    Args:
        records: Of the schema of their kind in ``records``, in any order. Each key occurs once; in
            ``FILES`` each name of a key.
        record_type: Their type. ``FILES`` also means the list of partitions.
        table_version: Decides the schema: 8 or 9.

    Shapes: n records -> columns ``key`` and ``value`` of bytes, at most n, ascending by key.

    Raises:
        InvariantError: A file name repeats under one key.
    """
    return encode_in_order(in_order(records, record_type), record_type, table_version=table_version)


def encode_in_order(rows: pa.Table, record_type: RecordType, *, table_version: int) -> pa.Table:
    """Return the entries of rows from ``in_order``; errors as ``encode_records``."""
    _, nest, field_name = _KINDS[record_type]
    rows = rows.set_column(0, "key", one_array(rows.column("key")).cast(pa.binary()))
    schema_json = metadata_record_schema(table_version, with_meta_columns=True)
    values = _values_of_few if rows.num_rows <= FEW_ROWS else _values
    parts = [
        pa.Table.from_arrays(
            [keys, values(schema_json, types, field_name, nested)], schema=_ENTRIES
        )
        for keys, types, nested in nest(rows, record_type)
    ]
    if len(parts) == 1:
        return parts[0]
    return pa.concat_tables(parts) if parts else _ENTRIES.empty_table()


def _values(schema_json: str, types: pa.Array, field_name: str, nested: pa.Array) -> pa.Array:
    """Return the datum of each record. Shapes: (n,), (n,) -> (n,)."""
    schema, count = parse_schema(schema_json, path=""), len(types)
    columns, nothing = {"type": types, field_name: nested}, pa.nulls(count)
    writer = RowWriter(count)
    for name, node in zip(schema.names, schema.nodes, strict=True):
        if name == "key":
            writer.number(0)  # the length of the empty text
        else:
            writer.value(node, columns.get(name, nothing), name)
    return writer.rows()


def _values_of_few(
    schema_json: str, types: pa.Array, field_name: str, nested: pa.Array
) -> pa.Array:
    """Return what ``_values`` returns, for at most `FEW_ROWS` records."""
    names = parse_schema(schema_json, path="").names
    rows = []
    for kind, value in zip(types.to_pylist(), nested.to_pylist(), strict=True):
        filled = {"key": "", "type": kind, field_name: value}
        rows.append([filled.get(name) for name in names])
    return pa.array(encode_few_rows(schema_json, rows), pa.binary())


def in_order(records: pa.Table, record_type: RecordType) -> pa.Table:
    """Return records in one piece, ascending by the bytes of the key: as they are decoded."""
    shape = _KINDS[record_type][0]
    rows = records.select(shape.names)
    # Each step takes as long as the encoding of a few rows, so it is left out if it changes nothing.
    rows = (rows if rows.schema.equals(shape) else rows.cast(shape)).combine_chunks()
    keys = one_array(rows.column("key")).cast(pa.binary())
    if len(keys) <= FEW_ROWS:
        listed = keys.to_pylist()
        is_ascending = listed == sorted(listed)
    else:
        is_ascending = not pc.any(pc.greater(keys[:-1], keys[1:])).as_py()
    return rows if is_ascending else rows.take(pc.sort_indices(keys))


def encode_base_file(
    entries: pa.Table,
    *,
    table_version: int,
    created_ms: int,
    kept: KeptRecords | None = None,
) -> bytes:
    """
    Return a base file of the metadata table.

    Args:
        entries: From ``encode_records``.
        table_version: As of the entries.
        created_ms: Creation time in the file, milliseconds since 1970.
        kept: The records of the entries, to be kept for the next compaction.

    Raises:
        InvariantError: A key repeats.
        InvalidInputError: A key is longer than HFiles store (``long_key``).
    """
    schema_json = metadata_record_schema(table_version, with_meta_columns=True)
    data = encode_hfile(entries, schema_json=schema_json, created_ms=created_ms)
    if kept is not None:
        RECENT.keep(data, *kept)
    return data


def write_base_file(
    sink: IO[bytes], parts: Iterable[pa.Table], *, table_version: int, created_ms: int
) -> WrittenHFile:
    """
    Write a base file of the metadata table, one part of its entries in memory at a time.

    Args:
        sink: Receives the bytes.
        parts: From ``encode_records``, ascending by key over all parts.
        table_version: As of the entries.
        created_ms: Creation time in the file, milliseconds since 1970.

    Raises: as ``encode_base_file``.
    """
    schema_json = metadata_record_schema(table_version, with_meta_columns=True)
    return write_hfile(sink, parts, schema_json=schema_json, created_ms=created_ms)


def encode_log_file(
    partition: str,
    requested_time: InstantTime,
    *,
    table_version: int,
    created_ms: int,
    entries: pa.Table | None = None,
    kept: KeptRecords | None = None,
    deleted_keys: pa.Array | pa.ChunkedArray | None = None,
    compacted_times: Sequence[InstantTime] = (),
) -> bytes:
    """
    Return a log file of the metadata table: a data block, then a delete block.

    Args:
        partition: The partition of the metadata table.
        requested_time: Requested time of the instant that writes it.
        table_version: As of the entries.
        created_ms: Creation time in the file, milliseconds since 1970.
        entries: From ``encode_records``.
        kept: As of ``encode_base_file``.
        deleted_keys: Keys whose records the log removes. A key among the entries, too, is removed:
            the delete block comes last.
        compacted_times: Of a log compaction: the instants whose blocks it replaces, newest first. Its
            delete block comes first, so a deleted key may have a newer record.

    Without entries and deleted keys it is the file of 80 bytes by which a new file group exists.

    Raises:
        InvariantError: A key of the entries repeats.
        InvalidInputError: A key is longer than HFiles store (``long_key``), or a block has more
            bytes than Java reads (``log_block_size``).
    """
    header: dict[int, str] = {
        HeaderKey.INSTANT_TIME: requested_time,
        HeaderKey.SCHEMA: metadata_record_schema(table_version, with_meta_columns=True),
    }
    if compacted_times:
        header[HeaderKey.COMPACTED_BLOCK_TIMES] = ",".join(compacted_times)
    blocks = []
    if entries is not None and entries.num_rows:
        data = encode_base_file(
            entries, table_version=table_version, created_ms=created_ms, kept=kept
        )
        blocks.append(encode_block(BlockType.HFILE_DATA, header, data))
    if deleted_keys is not None and len(deleted_keys):
        blocks.append(
            encode_block(BlockType.DELETE, header, encode_deletes(deleted_keys, partition))
        )
    if not blocks:
        nothing = encode_deletes(pa.array([], pa.string()), partition)
        time_only: dict[int, str] = {HeaderKey.INSTANT_TIME: requested_time}
        blocks.append(encode_block(BlockType.DELETE, time_only, nothing))
    return b"".join(reversed(blocks) if compacted_times else blocks)


# ---- The field of each kind, from sorted rows in runs of limited size

_Run = tuple[pa.Array, pa.Array, pa.Array]  # keys, types, values of the field
_Nest = Callable[[pa.Table, RecordType], Iterator[_Run]]


def _each(nested: Callable[[pa.Table], pa.Array]) -> _Nest:
    """Return runs of records that have a row each."""

    def runs(rows: pa.Table, record_type: RecordType) -> Iterator[_Run]:
        for start in range(0, rows.num_rows, _CHUNK_ROWS):
            run = rows.slice(start, _CHUNK_ROWS).combine_chunks()
            types = pa.repeat(pa.scalar(int(record_type), pa.int32()), run.num_rows)
            yield one_array(run.column("key")), types, nested(run)

    return runs


def _files(rows: pa.Table, record_type: RecordType) -> Iterator[_Run]:
    """Return all records of a file group: each has the rows of its key as a map."""
    if not rows.num_rows:
        return
    keys, names, sizes, deleted = (one_array(column) for column in rows.columns)
    first = np.append(True, np.asarray(pc.not_equal(keys[1:], keys[:-1])).astype(np.bool_))
    coded = names.dictionary_encode()
    places = np.cumsum(first) * len(coded.dictionary) + np.asarray(coded.indices)
    if len(np.unique(places)) < rows.num_rows:
        raise InvariantError("a file name repeats in a record of the metadata table; report it")
    starts = np.flatnonzero(first)
    offsets = pa.array(np.append(starts, len(keys)), pa.int32())
    infos = pa.StructArray.from_arrays([sizes, deleted], ["size", "isDeleted"])
    keys = keys.take(pa.array(starts))
    is_list = pc.equal(keys, pa.scalar(ALL_PARTITIONS.encode(), pa.binary()))
    types = pc.if_else(
        is_list,
        pa.scalar(int(RecordType.PARTITION_LIST), pa.int32()),
        pa.scalar(int(record_type), pa.int32()),
    )
    yield keys, types, pa.MapArray.from_arrays(offsets, names, infos)


def _column_stats(rows: pa.Table) -> pa.Array:
    of = {name: one_array(rows.column(name)) for name in rows.column_names}
    value_type = pa.StructArray.from_arrays(
        [of["value_type"], of["additional_info"]],
        ["typeOrdinal", "additionalInfo"],
        mask=of["value_type"].is_null(),
    )
    return pa.StructArray.from_arrays(
        [
            *(of["file_name"], of["column_name"], _bound(of["min"]), _bound(of["max"])),
            *(of["value_count"], of["null_count"]),
            *(of["total_size"], of["total_uncompressed_size"]),
            *(of["is_deleted"], of["is_tight"], value_type),
        ],
        [
            *("fileName", "columnName", "minValue", "maxValue", "valueCount", "nullCount"),
            *("totalSize", "totalUncompressedSize", "isDeleted", "isTightBound", "valueType"),
        ],
    )


def _bound(bounds: pa.StructArray) -> pa.StructArray:
    """Return bounds whose decimals are bytes, as few as Java writes."""
    children = bounds.flatten()
    children = [
        shortest_bytes(child) if pa.types.is_decimal(child.type) else child for child in children
    ]
    return pa.StructArray.from_arrays(children, [field.name for field in BOUND])


def _bloom_filters(rows: pa.Table) -> pa.Array:
    columns = [one_array(column) for column in rows.columns[1:]]
    return pa.StructArray.from_arrays(columns, ["type", "timestamp", "bloomFilter", "isDeleted"])


def _record_index(rows: pa.Table) -> pa.Array:
    _, paths, file_ids, instants = (one_array(column) for column in rows.columns)
    count = rows.num_rows
    coded = file_ids.dictionary_encode()
    parts = [_file_id_parts(text) for text in coded.dictionary.to_pylist()]
    kinds = (pa.int64(), pa.int64(), pa.int32(), pa.string(), pa.int32())
    high, low, number, raw, encoding = (
        pa.array([part[place] for part in parts], kind).take(coded.indices)
        for place, kind in enumerate(kinds)
    )
    return pa.StructArray.from_arrays(
        [paths, high, low, number, raw, instants, encoding, pa.nulls(count, pa.int64())],
        [
            *("partitionName", "fileIdHighBits", "fileIdLowBits", "fileIndex", "fileId"),
            *("instantTime", "fileIdEncoding", "position"),
        ],
    )


def _file_id_parts(file_id: str) -> tuple[int, int, int, str, int]:
    """Return a file id as Java stores it: the halves of its UUID and its number, or its text."""
    found = _UUID.fullmatch(file_id)
    if found is None:
        return -1, -1, -1, file_id, _RAW_FILE_ID
    octets = bytes.fromhex(found[1].replace("-", ""))
    high, low = (int.from_bytes(half, "big", signed=True) for half in (octets[:8], octets[8:]))
    return high, low, -1 if found[2] is None else int(found[2]), "", 0


def _secondary_index(rows: pa.Table) -> pa.Array:
    return pa.StructArray.from_arrays([one_array(rows.column("is_deleted"))], ["isDeleted"])


_STATS: Final = (COLUMN_STATS, _each(_column_stats), "ColumnStatsMetadata")
_KINDS: Final[dict[RecordType, tuple[pa.Schema, _Nest, str]]] = {
    RecordType.FILES: (FILES, _files, "filesystemMetadata"),
    RecordType.COLUMN_STATS: _STATS,
    RecordType.PARTITION_STATS: _STATS,
    RecordType.BLOOM_FILTERS: (BLOOM_FILTERS, _each(_bloom_filters), "BloomFilterMetadata"),
    RecordType.RECORD_INDEX: (RECORD_INDEX, _each(_record_index), "recordIndexMetadata"),
    RecordType.SECONDARY_INDEX: (
        SECONDARY_INDEX,
        _each(_secondary_index),
        "SecondaryIndexMetadata",
    ),
}
