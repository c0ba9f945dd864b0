"""
Bounds and counts of the columns of one file: the records of ``column_stats`` and ``partition_stats``.

The footer of a base file has them for most columns. Footers omit the bounds of long values, and they
ignore NaN, so such columns are read. A bound may be too wide, but never too narrow: Java prunes a
file, or a whole partition, by it. A column without values has no bounds; a column that cannot be
measured gets the widest bounds of its type.

Texts and bytes are ordered by their bytes, as in footers and in Spark's comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from filegroups.files.avro_columns.types import Leaf, Node, Record, Union, is_null, parse_schema
from filegroups.files.avro_columns.types import arrow_type as arrow_type_of
from filegroups.files.log_files import block_rows, read_blocks
from filegroups.files.parquet import open_base_file
from filegroups.keys.keys import plain_column
from filegroups.metadata_table.keys import IndexVersion, column_stats_keys, partition_stats_keys
from filegroups.metadata_table.records import COLUMN_STATS, ValueType
from filegroups.schema.schema import COMMIT_TIME_COLUMN, KEY_COLUMN, META_COLUMNS, PARTITION_COLUMN
from timeline.codecs.log_blocks import BlockType, LogBlock
from timeline.model.file_slice import LogFile
from timeline.ports.ports import Storage
from timeline.system import NullEvents

ALWAYS_INDEXED: Final = (COMMIT_TIME_COLUMN, PARTITION_COLUMN, KEY_COLUMN)
COLUMNS_MAX: Final = 32
"""Default of ``hoodie.metadata.index.column.stats.max.columns.to.index``."""

_INT96: Final = "INT96"  # old timestamps of Spark
_BATCH_ROWS: Final = 65_536
_BOUND_BYTES_MAX: Final = 4_096  # longer bounds are cut; footers have none that is longer
_WIDEST_TEXT: Final = "\U0010ffff" * 8
_LAST_BEFORE_SURROGATES: Final = 0xD7FF
_DECIMAL_V1: Final = pa.decimal128(30, 15)
# The years 1 to 9999: Java's conversions fail on times far beyond them.
_DAYS: Final = (-719_162, 2_932_896)
_MS_OF_DAY: Final = 86_400_000
_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}

Value = bool | int | float | str | bytes
"""A bound: of a date, time or timestamp the stored number, of a decimal the unscaled integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStats:
    """
    The statistics of one column in one file, or in several.

    Args:
        column: Its name; a dotted name is a field inside a struct.
        kind: The Arrow type of its values; None if no rows were seen.
        least: A value that none is below; None if there are only nulls.
        greatest: A value that none is above, except NaN; None if there are only nulls.
        value_count: Rows, with those that are null.
        null_count: Rows that are null.
        total_size: Compressed bytes of the column in base files.
        total_uncompressed_size: The same, decompressed.
    """

    column: str
    kind: pa.DataType | None
    least: Value | None = None
    greatest: Value | None = None
    value_count: int = 0
    null_count: int = 0
    total_size: int = 0
    total_uncompressed_size: int = 0


# ---- Which columns are indexed


def columns_to_index(
    avro_json: str,
    version: IndexVersion,
    *,
    listed: Sequence[str] = (),
    columns_max: int = COLUMNS_MAX,
) -> tuple[str, ...]:
    """
    Return the columns of a new ``column_stats`` index, as Java chooses them.

    Three meta columns come first. Records, arrays, maps and enums have no bounds; V1 also has none of
    decimals that its wrapper cannot hold.

    Args:
        avro_json: The table's schema.
        version: Version of the index definition.
        listed: ``hoodie.metadata.index.column.stats.column.list``; empty for the first columns.
        columns_max: ``hoodie.metadata.index.column.stats.max.columns.to.index``; without a list.
    """
    root = parse_schema(avro_json, path="")
    names = [name for name in listed or root.names if name not in META_COLUMNS]
    fitting = [name for name in names if _is_indexable(_node(root, name), version)]
    return (*ALWAYS_INDEXED, *(fitting if listed else fitting[:columns_max]))


def evolved_columns(
    listed: Sequence[str], before: str, after: str, version: IndexVersion
) -> tuple[str, ...]:
    """
    Return the columns of an index after the table's schema changed.

    Java adds new columns of the table to an index that has the first columns. Files without records of
    such a column would be pruned by it, so a write that adds a column adds it to the index.

    Args:
        listed: The columns of the index definition.
        before: The table's schema before.
        after: The table's schema after.
        version: Version of the index definition.
    """
    if not set(columns_to_index(before, version)) <= set(listed):
        return tuple(listed)  # the columns were chosen by name
    return tuple(dict.fromkeys((*listed, *columns_to_index(after, version))))


def _node(root: Record, name: str) -> Node | None:
    found: Node | None = root
    for step in name.split("."):
        if not isinstance(found, Record) or step not in found.names:
            return None
        found = found.nodes[found.names.index(step)]
        if isinstance(found, Union):
            values = [each for each in found.branches if not is_null(each)]
            found = values[0] if len(values) == 1 else None
    return found


def _is_indexable(node: Node | None, version: IndexVersion) -> bool:
    if not isinstance(node, Leaf) or node.kind == "enum":
        return False
    return can_bound(arrow_type_of(node), version)


def can_bound(kind: pa.DataType, version: IndexVersion) -> bool:
    """Return whether a record can hold bounds of a type."""
    if version is IndexVersion.V1 and pa.types.is_decimal(kind):
        return bool(kind.scale <= 15 and kind.precision + 15 - kind.scale <= 30)
    return _value_type(kind) is not None


# ---- Statistics of base files


def base_file_stats(
    storage: Storage,
    path: str,
    columns: Sequence[str],
) -> tuple[ColumnStats, ...] | None:
    """
    Return the statistics of columns of a base file; a column that it lacks has none.

    They are None for a file without row groups, of which Java has no records.

    Args:
        storage: Storage of the table.
        path: Relative path of the file.
        columns: Names of columns and dotted names of fields in structs.

    Raises:
        MissingFileError: The file does not exist.
        CorruptTableError: The file is damaged.

    Outside: 1 open_input.
    """
    with open_base_file(storage, path) as (source, file):
        batches = partial(_batches, source, file)
        return _file_stats(file.metadata, file.schema_arrow, columns, batches)


def _batches(source: Any, file: Any, names: list[str]) -> Iterable[Any]:
    columns = (file.metadata.schema.column(number) for number in range(file.metadata.num_columns))
    if any(each.physical_type == _INT96 for each in columns):
        # Arrow's nanoseconds cannot hold the times before 1677.
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    return file.iter_batches(_BATCH_ROWS, columns=names)  # type: ignore[no-any-return]


def _file_stats(
    metadata: pq.FileMetaData, schema: pa.Schema, columns: Sequence[str], batches: Any
) -> tuple[ColumnStats, ...] | None:
    if not metadata.num_row_groups:
        return None
    leaves = _leaves(metadata)
    found: dict[str, ColumnStats] = {}
    unread: list[str] = []
    for name in columns:
        kind = _kind_in(schema, name)
        if name not in leaves or kind is None:
            continue
        if metadata.schema.column(leaves[name]).physical_type == _INT96:
            kind = pa.timestamp("us", "UTC")
        stats, whole = _of_footer(metadata, leaves[name], name, kind)
        found[name] = stats
        if not whole:
            unread.append(name)
    if unread:
        heads = list(dict.fromkeys(name.partition(".")[0] for name in unread))
        measured = _Measured(unread)
        for batch in batches(heads):
            measured.add(pa.Table.from_batches([batch]) if _is_batch(batch) else batch)
        for name, stats in measured.stats().items():
            sizes = found[name]
            found[name] = replace(
                stats,
                kind=sizes.kind,
                value_count=sizes.value_count,
                total_size=sizes.total_size,
                total_uncompressed_size=sizes.total_uncompressed_size,
            )
    return tuple(found[name] for name in columns if name in found)


def _is_batch(rows: Any) -> bool:
    return isinstance(rows, pa.RecordBatch)


def _leaves(metadata: pq.FileMetaData) -> Mapping[str, int]:
    """Return the position of each column that is in no list or map, by its dotted name."""
    columns = ((number, metadata.schema.column(number)) for number in range(metadata.num_columns))
    return {each.path: number for number, each in columns if not each.max_repetition_level}


def _kind_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    column = plain_column(schema.empty_table(), name)
    if column is None or _value_type(column.type) is None:
        return None
    return column.type


def _of_footer(
    metadata: pq.FileMetaData, leaf: int, name: str, kind: pa.DataType
) -> tuple[ColumnStats, bool]:
    """Return the statistics in a footer, and whether they are complete."""
    counts_all = not pa.types.is_floating(kind)  # a footer ignores NaN
    whole = True
    chunks = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups)]
    pieces = []
    for chunk in chunks:
        found = chunk.statistics
        nulls = found.null_count if found is not None and found.has_null_count else None
        least = greatest = None
        if nulls != chunk.num_values:
            whole = whole and counts_all and nulls is not None and found.has_min_max
            if whole:
                least, greatest = _stored(found.min_raw, kind), _stored(found.max_raw, kind)
                whole = least is not None and greatest is not None
        pieces.append(
            ColumnStats(
                column=name,
                kind=kind,
                least=least,
                greatest=greatest,
                value_count=chunk.num_values,
                null_count=nulls or 0,
                total_size=chunk.total_compressed_size,
                total_uncompressed_size=chunk.total_uncompressed_size,
            )
        )
    return reduce(_merge, pieces), whole


def _stored(raw: Any, kind: pa.DataType) -> Value | None:
    """Convert a value of a footer; None if it is a part of a text."""
    if pa.types.is_string(kind):
        try:
            text: str = raw.decode()
        except UnicodeDecodeError:
            return None
        return text
    if pa.types.is_decimal(kind) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw  # type: ignore[no-any-return]


# ---- Statistics of log files


def log_file_stats(
    storage: Storage, log: LogFile, columns: Sequence[str]
) -> tuple[ColumnStats, ...]:
    """
    Return the statistics of columns in the rows of a log file, as Java's writers compute them.

    Deletes have keys only and count nothing: a log of deletes has statistics without type for every
    column. A column that some block of rows lacks has none (partial updates).

    Args:
        storage: Storage of the table.
        log: The file.
        columns: As ``base_file_stats``.

    Errors and calls outside: as ``read_blocks``.
    """
    heads = {name.partition(".")[0] for name in columns}
    measured = _Measured(columns)

    def add(block: LogBlock, content: bytes) -> None:
        if block.block_type is BlockType.DELETE:
            return
        root = parse_schema(block.schema_json, path=block.path)
        fields = zip(root.names, root.nodes, strict=True)
        wanted = pa.schema([(name, arrow_type_of(node)) for name, node in fields if name in heads])
        measured.add(block_rows(block, content, wanted))

    read_blocks(storage, NullEvents(), [log], frozenset((log.instant_time,)), add)
    found = measured.stats()
    return tuple(found[name] for name in columns if name in found)


class _Measured:
    """Statistics of columns that are measured batch by batch."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._found = {name: ColumnStats(column=name, kind=None) for name in columns}

    def add(self, rows: pa.Table) -> None:
        """Measure more rows; a column that they lack is left out from now on."""
        for name, before in list(self._found.items()):
            column = plain_column(rows, name)
            if column is None or _value_type(column.type) is None:
                del self._found[name]
                continue
            merged = merge_stats([before, _measure(name, column)])
            assert merged is not None
            self._found[name] = merged

    def stats(self) -> dict[str, ColumnStats]:
        """Return the statistics, by column."""
        return self._found


def _measure(name: str, column: pa.ChunkedArray) -> ColumnStats:
    kind, nulls = column.type, column.null_count
    values, special = column, False
    if pa.types.is_floating(kind):
        values = column.filter(pc.invert(pc.is_nan(column)))
        special = len(values) - values.null_count < len(column) - nulls
    ends = pc.min_max(values)
    least, greatest = _scalar(ends["min"]), _scalar(ends["max"])
    if special:
        least, greatest = math.inf if least is None else least, math.inf
    if least is not None and greatest is not None and pa.types.is_floating(kind):
        # Footers have the two zeros, too: -0.0 and 0.0 are equal for a filter.
        least, greatest = least or -0.0, greatest or 0.0
    return ColumnStats(
        column=name,
        kind=kind,
        least=least,
        greatest=greatest,
        value_count=len(column),
        null_count=nulls,
    )


def _scalar(value: pa.Scalar) -> Value | None:
    if not value.is_valid:
        return None
    if pa.types.is_temporal(value.type):
        return value.value  # type: ignore[no-any-return]
    plain = value.as_py()
    if isinstance(plain, Decimal):
        sign, digits, _ = plain.as_tuple()
        return int("".join(map(str, digits))) * (-1 if sign else 1)
    return plain  # type: ignore[no-any-return]


# ---- Merging, and bounds that are wide enough


def merge_stats(pieces: Iterable[ColumnStats]) -> ColumnStats | None:
    """
    Return the statistics of all rows of several pieces of one column; None for no piece.

    Pieces of different types get the widest bounds of the last type.
    """
    merged: ColumnStats | None = None
    for piece in pieces:
        merged = piece if merged is None else _merge(merged, piece)
    return merged


def _merge(one: ColumnStats, other: ColumnStats) -> ColumnStats:
    kind = one.kind if other.kind is None else other.kind
    least: Any
    greatest: Any
    if one.kind is not None and other.kind is not None and one.kind != other.kind:
        least, greatest = _widest(other.kind)
    else:
        least = _extreme(min, one.least, other.least)
        greatest = _extreme(max, one.greatest, other.greatest)
    return ColumnStats(
        column=other.column,
        kind=kind,
        least=least,
        greatest=greatest,
        value_count=one.value_count + other.value_count,
        null_count=one.null_count + other.null_count,
        total_size=one.total_size + other.total_size,
        total_uncompressed_size=one.total_uncompressed_size + other.total_uncompressed_size,
    )


def _extreme(choose: Any, one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def unknown_stats(column: str, kind: pa.DataType, rows: int) -> ColumnStats:
    """Return statistics that exclude no filter: the widest bounds, some nulls and some values."""
    least, greatest = _widest(kind)
    return ColumnStats(
        column=column,
        kind=kind,
        least=least,
        greatest=greatest,
        value_count=2 * max(rows, 1),
        null_count=max(rows, 1),
    )


def _widest(kind: pa.DataType) -> tuple[Value, Value]:
    types = pa.types
    if types.is_boolean(kind):
        return False, True
    if types.is_floating(kind):
        return -math.inf, math.inf
    if types.is_string(kind):
        return "", _WIDEST_TEXT
    if types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width), b"\xff" * kind.byte_width
    if types.is_binary(kind):
        return b"", b"\xff" * 32
    if types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if types.is_date32(kind):
        return _DAYS
    if types.is_time(kind):
        return 0, _MS_OF_DAY * _PER_MS[kind.unit] - 1
    if types.is_timestamp(kind) and kind.unit != "ns":
        of_day = _MS_OF_DAY * _PER_MS[kind.unit]
        return _DAYS[0] * of_day, (_DAYS[1] + 1) * of_day - 1
    bits = kind.bit_width
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _cut_below(value: Value) -> Value:
    """Return a short value that is not above a long one."""
    if isinstance(value, str) and len(value.encode()) > _BOUND_BYTES_MAX:
        return _prefix(value)
    if isinstance(value, bytes) and len(value) > _BOUND_BYTES_MAX:
        return value[:_BOUND_BYTES_MAX]
    return value


def _cut_above(value: Value) -> Value:
    """Return a short value that is not below a long one."""
    if isinstance(value, str) and len(value.encode()) > _BOUND_BYTES_MAX:
        kept = _prefix(value)
        while kept and ord(kept[-1]) >= _LAST_BEFORE_SURROGATES:
            kept = kept[:-1]
        # The next character is greater in Java's order of UTF-16 units, too.
        return kept[:-1] + chr(ord(kept[-1]) + 1) if kept else _WIDEST_TEXT
    if isinstance(value, bytes) and len(value) > _BOUND_BYTES_MAX:
        head = value[:_BOUND_BYTES_MAX].rstrip(b"\xff")
        return head[:-1] + bytes([head[-1] + 1]) if head else b"\xff" * (_BOUND_BYTES_MAX + 1)
    return value


def _prefix(text: str) -> str:
    return text.encode()[:_BOUND_BYTES_MAX].decode(errors="ignore")


# ---- Records


def column_stats_records(
    files: Iterable[tuple[str, str, Sequence[ColumnStats]]], version: IndexVersion
) -> pa.Table:
    """
    Return the records of ``column_stats`` of some files.

    Args:
        files: Partition path, file name without folder, and the file's statistics.
        version: Version of the index definition.

    Shapes: a table of schema `COLUMN_STATS`, in the order of the files and columns.
    """
    entries = [
        (path, name, each)
        for path, name, stats in files
        for each in stats
        if each.kind is None or can_bound(each.kind, version)
    ]
    made = _records([(name, each) for _, name, each in entries], version)
    keys = column_stats_keys(made.column("column_name"), _texts(entries), made.column("file_name"))
    return _keyed(keys, made)


def partition_stats_records(
    partitions: Iterable[tuple[str, Sequence[ColumnStats]]], version: IndexVersion
) -> pa.Table:
    """
    Return the records of ``partition_stats`` of some partitions.

    They are not tight: a reader widens the partition's bounds by them. So a commit writes
    them without reading what other commits wrote.

    Args:
        partitions: Partition path, and the merged statistics of its new files.
        version: Version of the index definition.
    """
    entries = [
        (path, each)
        for path, stats in partitions
        for each in stats
        if each.kind is None or can_bound(each.kind, version)
    ]
    made = _records(entries, version)
    return _keyed(partition_stats_keys(made.column("column_name"), made.column("file_name")), made)


def deleted_column_stats(
    files: Iterable[tuple[str, str]], columns: Sequence[str], version: IndexVersion
) -> pa.Table:
    """Return the records that delete the statistics of files: partition path and name of each."""
    nothing = [ColumnStats(column=name, kind=None) for name in columns]
    made = column_stats_records([(path, name, nothing) for path, name in files], version)
    position = made.schema.get_field_index("is_deleted")
    gone = pa.repeat(pa.scalar(True), made.num_rows)
    return made.set_column(position, COLUMN_STATS.field(position), gone)


def _texts(entries: Sequence[tuple[str, str, ColumnStats]]) -> pa.Array:
    return pa.array([path for path, _, _ in entries], pa.string())


def _keyed(keys: pa.Array, made: pa.Table) -> pa.Table:
    return pa.Table.from_arrays([keys, *made.columns], schema=COLUMN_STATS)


def _records(entries: Sequence[tuple[str, ColumnStats]], version: IndexVersion) -> pa.Table:
    """Return records without keys, one for each name and column."""
    typed = version is not IndexVersion.V1
    rows = [
        {
            "file_name": name,
            "column_name": each.column,
            "min": _wrapped(each.kind, each.least, version, above=False),
            "max": _wrapped(each.kind, each.greatest, version, above=True),
            "value_count": each.value_count,
            "null_count": each.null_count,
            "total_size": each.total_size,
            "total_uncompressed_size": each.total_uncompressed_size,
            "is_deleted": False,
            "is_tight": False,
            "value_type": int(_ordinal(each.kind)) if typed else None,
            "additional_info": _info(each.kind) if typed else None,
        }
        for name, each in entries
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMN_STATS)[1:]))


def _wrapped(
    kind: pa.DataType | None, value: Value | None, version: IndexVersion, *, above: bool
) -> dict[str, Any] | None:
    """Return a bound as its wrapper's name and value."""
    if kind is None or value is None:
        return None
    value = _cut_above(value) if above else _cut_below(value)
    if pa.types.is_decimal(kind):
        assert isinstance(value, int)
        if version is IndexVersion.V1:
            # From a text, because arithmetic of decimals rounds to 28 digits.
            return {"DecimalWrapper": Decimal(f"{value}e-{kind.scale}")}
        size = value.bit_length() // 8 + 1 if value >= 0 else (value + 1).bit_length() // 8 + 1
        return {"BytesWrapper": value.to_bytes(size, "big", signed=True)}
    if pa.types.is_date32(kind) and version is IndexVersion.V1:
        return {"DateWrapper": value}
    return {_WRAPPERS[_ordinal(kind)]: value}


_WRAPPERS: Final[Mapping[ValueType, str]] = {
    ValueType.BOOLEAN: "BooleanWrapper",
    ValueType.INT: "IntWrapper",
    ValueType.LONG: "LongWrapper",
    ValueType.FLOAT: "FloatWrapper",
    ValueType.DOUBLE: "DoubleWrapper",
    ValueType.STRING: "StringWrapper",
    ValueType.BYTES: "BytesWrapper",
    ValueType.FIXED: "BytesWrapper",
    ValueType.DATE: "IntWrapper",
    ValueType.TIME_MILLIS: "IntWrapper",
    ValueType.TIME_MICROS: "LongWrapper",
    ValueType.TIMESTAMP_MILLIS: "LongWrapper",
    ValueType.TIMESTAMP_MICROS: "LongWrapper",
    ValueType.TIMESTAMP_NANOS: "LongWrapper",
    ValueType.LOCAL_TIMESTAMP_MILLIS: "LongWrapper",
    ValueType.LOCAL_TIMESTAMP_MICROS: "LongWrapper",
    ValueType.LOCAL_TIMESTAMP_NANOS: "LongWrapper",
}
_PLAIN: Final[Mapping[pa.DataType, ValueType]] = {
    pa.bool_(): ValueType.BOOLEAN,
    pa.int8(): ValueType.INT,
    pa.int16(): ValueType.INT,
    pa.int32(): ValueType.INT,
    pa.int64(): ValueType.LONG,
    pa.float32(): ValueType.FLOAT,
    pa.float64(): ValueType.DOUBLE,
    pa.string(): ValueType.STRING,
    pa.binary(): ValueType.BYTES,
    pa.date32(): ValueType.DATE,
    pa.time32("ms"): ValueType.TIME_MILLIS,
    pa.time64("us"): ValueType.TIME_MICROS,
}
_MOMENTS: Final[Mapping[tuple[str, bool], ValueType]] = {
    ("ms", True): ValueType.TIMESTAMP_MILLIS,
    ("us", True): ValueType.TIMESTAMP_MICROS,
    ("ns", True): ValueType.TIMESTAMP_NANOS,
    ("ms", False): ValueType.LOCAL_TIMESTAMP_MILLIS,
    ("us", False): ValueType.LOCAL_TIMESTAMP_MICROS,
    ("ns", False): ValueType.LOCAL_TIMESTAMP_NANOS,
}


def _value_type(kind: pa.DataType) -> ValueType | None:
    """Return the value type of an Arrow type; None if records hold no bounds of it."""
    if pa.types.is_decimal(kind):
        return ValueType.DECIMAL
    if pa.types.is_fixed_size_binary(kind):
        return ValueType.FIXED
    if pa.types.is_timestamp(kind):
        return _MOMENTS.get((kind.unit, kind.tz is not None))
    return _PLAIN.get(kind)


def _ordinal(kind: pa.DataType | None) -> ValueType:
    return ValueType.NULL if kind is None else _value_type(kind) or ValueType.NULL


def _info(kind: pa.DataType | None) -> str | None:
    if kind is None or not pa.types.is_decimal(kind):
        return None
    return f"{kind.precision},{kind.scale}"
