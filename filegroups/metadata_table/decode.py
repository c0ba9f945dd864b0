"""
Decode files of the metadata table: HFiles and delete blocks to the flat tables of ``records``.

A record is an Avro datum of ``HoodieMetadataRecord``; the key is that of its HFile entry. Each kind of
partition uses one field of the record, and only that field is decoded. The bytes are untrusted: a
record without its field, or of a type that its partition cannot have, is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import decode_datums
from filegroups.files.delete_block import decode_deletes
from filegroups.files.hfile import open_hfile, read_together
from filegroups.metadata_table.records import (
    ALL_PARTITIONS,
    BLOOM_FILTERS,
    BOUND,
    COLUMN_STATS,
    FILES,
    NO_PARTITION,
    RECORD_INDEX,
    SECONDARY_INDEX,
    RecordType,
)
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.casting import uuid_texts
from filegroups.schema.schema import KEY_COLUMN
from timeline.codecs.log_blocks import BlockType, ByteSource, BytesSource, LogBlock
from timeline.errors import CorruptTableError, HoodooError
from timeline.model.metadata_table import PartitionKind

_SCHEMA: Final = b"schema"  # in the file info
_TYPE: Final = pa.field("type", pa.int32())
_TIME_OF_DAY: Final = "TimeMicrosWrapper"
# The decoder builds times of day as such; a bound holds their number.
_DECODED_BOUND: Final = pa.struct(
    [pa.field(one.name, pa.time64("us")) if one.name == _TIME_OF_DAY else one for one in BOUND]
)

SHAPE_OF_KIND: Final = {
    PartitionKind.FILES: FILES,
    PartitionKind.COLUMN_STATS: COLUMN_STATS,
    PartitionKind.PARTITION_STATS: COLUMN_STATS,
    PartitionKind.BLOOM_FILTERS: BLOOM_FILTERS,
    PartitionKind.RECORD_INDEX: RECORD_INDEX,
    PartitionKind.SECONDARY_INDEX: SECONDARY_INDEX,
}
"""The flat table of each kind of partition. An expression index has that of its function."""


def decode_block(
    block: LogBlock,
    content: bytes,
    shape: pa.Schema,
    keys: pa.Array | None = None,
    *,
    by_prefix: bool = False,
) -> pa.Table | pa.Array:
    """
    Decode the content of a log block.

    Args:
        block: A block of a log file in the metadata table.
        content: From ``read_content``.
        shape: The flat table to build, one of ``records``.
        keys: Decode only records of these keys; None for all.
        by_prefix: Whether ``keys`` are the beginnings of keys.

    Returns:
        The records, as of ``decode_hfile``; or the array of deleted keys, for a delete block. Of
        deleted keys that were not asked for, some may be included.

    Raises:
        CorruptTableError: The block is damaged or has another type.
        UnsupportedTableError: As ``decode_hfile``.
    """
    if block.block_type is BlockType.HFILE_DATA:
        source, size = BytesSource(content), len(content)
        return decode_hfile(source, size, shape, keys, by_prefix=by_prefix, path=block.path)
    if block.block_type is not BlockType.DELETE:
        raise _damaged(block.path, f"a block of type {block.block_type.name}")
    deleted = one_array(decode_deletes(content, path=block.path).column(KEY_COLUMN))
    return (
        deleted if keys is None or by_prefix else deleted.filter(pc.is_in(deleted, value_set=keys))
    )


def decode_together(blocks: Sequence[tuple[LogBlock, bytes]], shape: pa.Schema) -> pa.Table:
    """
    Decode small data blocks at once, because most of the work does not grow with the records.

    Args:
        blocks: Of type ``HFILE_DATA``, in their order, with their contents.
        shape: As of ``decode_hfile``.

    Shapes: -> the tables of ``decode_hfile``, one after the other.

    Errors: as ``decode_hfile``.
    """
    files = [
        open_hfile(BytesSource(content), len(content), path=block.path) for block, content in blocks
    ]
    schemas = {one.info.get(_SCHEMA, b"") for one in files}
    entries = read_together(files) if len(schemas) == 1 else None
    if entries is not None:
        try:
            return _with_schema(entries, schemas.pop(), shape, blocks[0][0].path)
        except CorruptTableError:
            pass  # one by one, the error names the damaged file
    return pa.concat_tables(
        decode_hfile(BytesSource(content), len(content), shape, path=block.path)
        for block, content in blocks
    )


def _with_schema(entries: pa.Table, schema: bytes, shape: pa.Schema, path: str) -> pa.Table:
    """Decode entries by the schema of their file; none need it."""
    if not entries.num_rows:
        return shape.empty_table()
    if not schema:
        raise _damaged(path, "its file info has no schema")
    return _decoded(entries, schema.decode("utf-8", "replace"), shape, path)


def decode_hfile(
    source: ByteSource,
    size_bytes: int,
    shape: pa.Schema,
    keys: pa.Array | None = None,
    *,
    by_prefix: bool = False,
    path: str,
) -> pa.Table:
    """
    Decode the records of an HFile.

    Args:
        source: The bytes of the file.
        size_bytes: Their number.
        shape: The flat table to build, one of ``records``.
        keys: Decode only records of these keys; None for all.
        by_prefix: Whether ``keys`` are the beginnings of keys; none may begin with another.
        path: The file that errors name.

    Shapes: -> a table of ``shape``, in the order of the keys' bytes.

    Raises:
        CorruptTableError: The file or a record is damaged.
        UnsupportedTableError: The HFile has another version or compression.

    Outside: 1 read of each block that may hold one of the keys, and 5 for trailer and indexes.
    """
    file = open_hfile(source, size_bytes, path=path)
    if keys is None:
        entries = file.read_all()
    else:
        entries = file.get_rows(pc.cast(keys, pa.binary()).to_pylist(), by_prefix=by_prefix)
    return _with_schema(entries, file.info.get(_SCHEMA, b""), shape, path)


def _decoded(entries: pa.Table, schema_json: str, shape: pa.Schema, path: str) -> pa.Table:
    kind = _KINDS[shape]
    wanted = pa.schema([_TYPE, pa.field(kind.name, kind.type)])
    try:
        found = decode_datums(one_array(entries.column("value")), schema_json, wanted, path=path)
        names = pc.cast(one_array(entries.column("key")), pa.string())
    except (HoodooError, pa.ArrowInvalid) as error:
        raise _damaged(path, getattr(error, "message", str(error))) from error
    types = one_array(found.column("type"))
    known = pc.is_in(types, value_set=pa.array([int(one) for one in kind.types], pa.int32()))
    strange = types.filter(pc.invert(known))
    if len(strange):
        raise _damaged(path, f"a record of type {strange[0].as_py()}")
    values = one_array(found.column(kind.name))
    if values.null_count and not pa.types.is_map(values.type):
        raise _damaged(path, f"a record without {kind.name}")
    columns = kind.columns(names, values, path)
    for field, column in zip(shape, columns, strict=True):
        if not field.nullable and column.null_count:
            raise _damaged(path, f"a record without {field.name}")
    return pa.table(columns, schema=shape)


# ---- The field of each kind


def _files(names: pa.Array, maps: pa.MapArray, path: str) -> list[pa.Array]:
    """Return one row for each name in a map; a record without a map has none."""
    counts = np.diff(np.asarray(maps.offsets))
    keys = names.take(pa.array(np.repeat(np.arange(len(maps)), counts)))
    sizes = pc.struct_field(maps.items, "size")
    deleted = pc.struct_field(maps.items, "isDeleted")
    least = pc.if_else(pc.or_(deleted, pc.equal(keys, ALL_PARTITIONS)), 0, 1)
    if pc.any(pc.less(sizes, least)).as_py():
        # Java refuses such a record, too.
        raise _damaged(path, "a file of less than 1 byte")
    return [keys, maps.keys, sizes, deleted]


def _column_stats(names: pa.Array, values: pa.StructArray, path: str) -> list[pa.Array]:
    del path
    whole = _children(values)
    kind = _children(whole["valueType"])
    return [
        names,
        whole["fileName"],
        whole["columnName"],
        _bound(whole["minValue"]),
        _bound(whole["maxValue"]),
        *(whole[one] for one in ("valueCount", "nullCount", "totalSize")),
        whole["totalUncompressedSize"],
        whole["isDeleted"],
        pc.fill_null(whole["isTightBound"], False),
        kind["typeOrdinal"],
        kind["additionalInfo"],
    ]


def _bloom_filters(names: pa.Array, values: pa.StructArray, path: str) -> list[pa.Array]:
    del path
    whole = _children(values)
    return [names, *(whole[one] for one in ("type", "timestamp", "bloomFilter", "isDeleted"))]


def _record_index(names: pa.Array, values: pa.StructArray, path: str) -> list[pa.Array]:
    del path
    whole = _children(values)
    paths = whole["partitionName"]
    paths = pc.if_else(pc.equal(paths, NO_PARTITION), "", paths)
    return [names, paths, _file_ids(whole), whole["instantTime"]]


def _secondary_index(names: pa.Array, values: pa.StructArray, path: str) -> list[pa.Array]:
    del path
    return [names, _children(values)["isDeleted"]]


def _children(values: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields of structs; a field of a null struct is null."""
    return {one.name: pc.struct_field(values, one.name) for one in values.type}


def _bound(values: pa.StructArray) -> pa.StructArray:
    children = [pc.cast(values.field(place), one.type) for place, one in enumerate(BOUND)]
    # A value in a wrapper that this release does not know is no bound.
    nothing = pc.is_null(pc.coalesce(*(pc.cast(pc.is_valid(one), pa.int8()) for one in children)))
    held = pc.and_not(pc.is_valid(values), nothing)
    return pa.StructArray.from_arrays(children, fields=list(BOUND), mask=pc.invert(held))


def _file_ids(fields: dict[str, pa.Array]) -> pa.Array:
    """Return file ids as texts; most are stored as the two halves of a UUID and a number."""
    halves = [
        np.asarray(pc.fill_null(fields[name], 0)).astype(">i8").view("u1").reshape(-1, 8)
        for name in ("fileIdHighBits", "fileIdLowBits")
    ]
    octets = np.concatenate(halves, axis=1)
    buffers = [None, pa.py_buffer(octets)]
    texts = uuid_texts(pa.Array.from_buffers(pa.binary(16), len(octets), buffers))
    numbers = fields["fileIndex"]
    counted = pc.binary_join_element_wise(texts, pc.cast(numbers, pa.string()), "-")
    made = pc.if_else(pc.greater_equal(numbers, 0), counted, texts)
    raw = pc.equal(fields["fileIdEncoding"], 1)
    return pc.if_else(pc.fill_null(raw, False), fields["fileId"], made)


_Columns = Callable[[pa.Array, pa.Array, str], list[pa.Array]]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A field of the record: its name, its Arrow type, the types of records that use it."""

    name: str
    type: pa.DataType
    types: tuple[RecordType, ...]
    columns: _Columns


_KINDS: Final = {
    FILES: _Kind(
        "filesystemMetadata",
        pa.map_(pa.string(), pa.struct([("size", pa.int64()), ("isDeleted", pa.bool_())])),
        (RecordType.PARTITION_LIST, RecordType.FILES),
        _files,
    ),
    COLUMN_STATS: _Kind(
        "ColumnStatsMetadata",
        pa.struct(
            [
                ("fileName", pa.string()),
                ("columnName", pa.string()),
                ("minValue", _DECODED_BOUND),
                ("maxValue", _DECODED_BOUND),
                ("valueCount", pa.int64()),
                ("nullCount", pa.int64()),
                ("totalSize", pa.int64()),
                ("totalUncompressedSize", pa.int64()),
                ("isDeleted", pa.bool_()),
                ("isTightBound", pa.bool_()),
                (
                    "valueType",
                    pa.struct([("typeOrdinal", pa.int32()), ("additionalInfo", pa.string())]),
                ),
            ]
        ),
        (RecordType.COLUMN_STATS, RecordType.PARTITION_STATS),
        _column_stats,
    ),
    BLOOM_FILTERS: _Kind(
        "BloomFilterMetadata",
        pa.struct(
            [
                ("type", pa.string()),
                ("timestamp", pa.string()),
                ("bloomFilter", pa.binary()),
                ("isDeleted", pa.bool_()),
            ]
        ),
        (RecordType.BLOOM_FILTERS,),
        _bloom_filters,
    ),
    RECORD_INDEX: _Kind(
        "recordIndexMetadata",
        pa.struct(
            [
                ("partitionName", pa.string()),
                ("fileIdHighBits", pa.int64()),
                ("fileIdLowBits", pa.int64()),
                ("fileIndex", pa.int32()),
                ("fileId", pa.string()),
                ("instantTime", pa.int64()),
                ("fileIdEncoding", pa.int32()),
            ]
        ),
        (RecordType.RECORD_INDEX,),
        _record_index,
    ),
    SECONDARY_INDEX: _Kind(
        "SecondaryIndexMetadata",
        pa.struct([("isDeleted", pa.bool_())]),
        (RecordType.SECONDARY_INDEX,),
        _secondary_index,
    ),
}


def _damaged(path: str, why: str) -> CorruptTableError:
    return CorruptTableError(
        "a file of the metadata table is damaged: build it again with 'hoodoo metadata "
        f"rebuild TABLE': {path} ({why})",
        kind="bad_metadata_record",
        path=path,
    )
