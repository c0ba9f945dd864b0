"""
The records of the metadata table as flat Arrow tables: one schema for each kind of record.

A reader decodes the records of a partition to the schema of its kind, and a writer encodes from it.
Two kinds of partitions share a schema: ``column_stats`` has a record for each file and column,
``partition_stats`` one for each partition and column. Deleted keys of kinds without an ``is_deleted``
column are an array of their own; on disk they are a delete block.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import pyarrow as pa

ALL_PARTITIONS: Final = "__all_partitions__"
"""The key in ``files`` of the record that lists the partitions of the table."""

NO_PARTITION: Final = "."
"""The name of the base folder, as a key and as a listed partition of ``files``."""


class RecordType(IntEnum):
    """The field ``type`` of a record in the metadata table."""

    PARTITION_LIST = 1
    FILES = 2
    COLUMN_STATS = 3
    BLOOM_FILTERS = 4
    RECORD_INDEX = 5
    PARTITION_STATS = 6
    SECONDARY_INDEX = 7


class ValueType(IntEnum):
    """The type of a column's bounds since table version 9: ``typeOrdinal`` in Hudi."""

    V1 = 0
    NULL = 1
    BOOLEAN = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BYTES = 8
    FIXED = 9
    DECIMAL = 10
    UUID = 11
    DATE = 12
    TIME_MILLIS = 13
    TIME_MICROS = 14
    TIMESTAMP_MILLIS = 15
    TIMESTAMP_MICROS = 16
    TIMESTAMP_NANOS = 17
    LOCAL_TIMESTAMP_MILLIS = 18
    LOCAL_TIMESTAMP_MICROS = 19
    LOCAL_TIMESTAMP_NANOS = 20


# FILES: the rows of one key form the map of one record. The names of `ALL_PARTITIONS` are partition
# paths, those of another key are file names. A deleted name is a tombstone and has size 0.
FILES: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),  # bytes; 0 for a partition
        pa.field("is_deleted", pa.bool_(), nullable=False),
    ]
)

# BOUND: the least or greatest value of a column. Exactly one child of a bound has a value; the child
# is named as the wrapper in Hudi's schema. A null struct is no bound.
BOUND: Final = pa.struct(
    [
        ("BooleanWrapper", pa.bool_()),
        ("IntWrapper", pa.int32()),
        ("LongWrapper", pa.int64()),
        ("FloatWrapper", pa.float32()),
        ("DoubleWrapper", pa.float64()),
        ("BytesWrapper", pa.binary()),
        ("StringWrapper", pa.string()),
        ("DateWrapper", pa.int32()),  # days since 1970
        ("DecimalWrapper", pa.decimal128(30, 15)),
        ("TimeMicrosWrapper", pa.int64()),  # microseconds since midnight
        ("TimestampMicrosWrapper", pa.int64()),  # microseconds since 1970
        ("LocalDateWrapper", pa.int32()),  # days since 1970
    ]
)

# COLUMN_STATS: for partition stats, the file name is the partition path.
COLUMN_STATS: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("file_name", pa.string()),
        pa.field("column_name", pa.string()),
        pa.field("min", BOUND),
        pa.field("max", BOUND),
        pa.field("value_count", pa.int64()),
        pa.field("null_count", pa.int64()),
        pa.field("total_size", pa.int64()),  # compressed bytes
        pa.field("total_uncompressed_size", pa.int64()),
        pa.field("is_deleted", pa.bool_(), nullable=False),
        pa.field("is_tight", pa.bool_(), nullable=False),  # the bounds are exact, not too wide
        pa.field("value_type", pa.int32()),  # a `ValueType`; null before table version 9
        pa.field("additional_info", pa.string()),  # "precision,scale" of a decimal
    ]
)

BLOOM_FILTERS: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("timestamp", pa.string(), nullable=False),  # requested time of the instant
        pa.field("bloom_filter", pa.binary(), nullable=False),  # base64 text, as in the footer
        pa.field("is_deleted", pa.bool_(), nullable=False),
    ]
)

# RECORD_INDEX: the key is a record key.
RECORD_INDEX: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("partition_path", pa.string(), nullable=False),  # "" for the base folder
        pa.field("file_id", pa.string(), nullable=False),
        pa.field("instant_ms", pa.int64(), nullable=False),  # milliseconds since 1970
    ]
)

SECONDARY_INDEX: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("is_deleted", pa.bool_(), nullable=False),
    ]
)
