"""
Leave out partitions and file slices whose statistics in the metadata table exclude all matching rows.

``partition_stats`` has bounds of each column in a partition. They are asked first, before the files
of the partitions are listed. Both exact and too wide bounds prove that a value is absent.

``column_stats`` has the least and greatest value of each indexed column of a file. The bounds of a
slice are those of all its files: the value of a merged row comes from one of them. The bounds become
a guarantee, as for partitions. A file without a record, or with bounds that are not sure, keeps its
slice, so a read with statistics returns the rows of a read without them. Not sure are:

- null bounds: Java Hudi also writes them for long texts and for NaN;
- floating-point numbers, whose bounds do not cover NaN;
- texts that UTF-8 and Java's UTF-16 order differently;
- times before table version 9, whose records do not name the unit;
- a column whose type changed.

Bounds of a partition are less sure. Java Hudi counts a long text as a null and leaves it out of the
partition's bounds, and a merge of decimals keeps the scale of one. A file without a column has no
bounds of it, and its rows have nulls there. Meta columns have no statistics in log files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import and_
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.parquet import works_without
from filegroups.metadata_table.keys import column_stats_keys, partition_stats_keys
from filegroups.metadata_table.listing import MetadataListing, metadata_listing
from filegroups.metadata_table.records import ValueType
from filegroups.reading.file_slices import FileSlices, Integers
from filegroups.reading.filters import Filter, to_expression
from filegroups.reading.partition_pruning import guarantees_that_allow
from filegroups.reading.scan import ScanPlan, known_schema
from filegroups.schema.arrow_columns import one_array
from filegroups.schema.column_ids import schema_history
from filegroups.schema.schema import META_COLUMNS, with_meta
from timeline.context import TableContext
from timeline.model.commit_metadata import MergeMode
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.snapshot import Snapshot

_NULLABLE_MAX: Final = 6  # columns with nulls in a guarantee; each doubles the alternatives
_DECIMAL_BYTES: Final = 16
_RECORDS_MAX: Final = 1_000_000  # of columns and files; above, look-ups take longer than footers
_SLICES_MIN: Final = 2  # one slice is read faster than its statistics
_PARTITIONS_MIN: Final = 8  # below, the statistics of their files exclude them as fast
_UNITS: Final = {
    "ms": (ValueType.TIMESTAMP_MILLIS, ValueType.LOCAL_TIMESTAMP_MILLIS),
    "us": (ValueType.TIMESTAMP_MICROS, ValueType.LOCAL_TIMESTAMP_MICROS),
    "ns": (ValueType.TIMESTAMP_NANOS, ValueType.LOCAL_TIMESTAMP_NANOS),
}
_TIMES: Final = [
    *(int(one) for some in _UNITS.values() for one in some),
    *(int(one) for one in (ValueType.DATE, ValueType.TIME_MILLIS, ValueType.TIME_MICROS)),
]


def skip_slices(
    context: TableContext, snapshot: Snapshot, plan: ScanPlan, listing: MetadataListing | None
) -> ScanPlan:
    """
    Return the plan without slices that cannot have a matching row.

    Args:
        context: The table. ``hoodie.metadata.enable`` decides as for the listing of files, and by
            default all tables on a high-latency store have slices skipped.
        snapshot: The snapshot of the plan.
        plan: All slices to read, and the filter.
        listing: The snapshot's, if its files were listed by the metadata table.

    Outside: the files of the metadata table that have the statistics.
    """
    condition = plan.read.filter
    if condition is None or len(plan.slices) < _SLICES_MIN or plan.read.history is not None:
        return plan
    listing = listing or metadata_listing(context, snapshot, of_partitions=False)
    if listing is None or not listing.has_statistics:
        return plan
    schema = plan.file_schema
    names = [
        one.name
        for one in schema
        if _has_bounds(one.type) and not works_without(condition, schema, one.name)
    ]
    files = _files_of(plan.slices, merges_values=context.config.merge_mode is MergeMode.CUSTOM)
    if not 0 < len(names) * len(files.slices) <= _RECORDS_MAX:
        return plan
    keys = [column_stats_keys(_repeated(one, files), files.paths, files.names) for one in names]
    found = listing.statistics(pa.chunked_array(keys))
    if found is None:
        return plan
    columns = []
    for name, key in zip(names, keys, strict=True):
        rows = found.take(pc.index_in(key, value_set=one_array(found.column("key"))))
        kind = schema.field(name).type
        columns.append(_bounds_of_slices(name, rows, kind, files, len(plan.slices)))
    try:
        allowed = guarantees_that_allow(condition, schema, _guarantees(columns, len(plan.slices)))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return plan  # a value that fails here fails again when rows are read
    slices = plan.slices
    if isinstance(slices, FileSlices):
        return replace(plan, slices=slices.take(allowed))
    return replace(plan, slices=tuple(slices[number] for number in allowed))


def skip_partitions(
    context: TableContext,
    snapshot: Snapshot,
    condition: Filter,
    partition_paths: Sequence[str],
    *,
    listing: MetadataListing | None,
) -> Sequence[str]:
    """
    Return the partitions that may have a matching row, in their order (MDT-21).

    Args:
        context: As for ``skip_slices``.
        snapshot: The snapshot that is read.
        condition: The filter of the read.
        partition_paths: Partitions to choose from.
        listing: As for ``skip_slices``.

    Outside: the file group of the metadata table that has the statistics, 1 get.
    """
    config = context.config
    if condition is None or len(partition_paths) < _PARTITIONS_MIN:
        return partition_paths
    if config.merge_mode is MergeMode.CUSTOM:
        return partition_paths  # a merger of the table's owner may compute values
    listing = listing or metadata_listing(context, snapshot, of_partitions=False)
    if listing is None or not listing.has_partition_statistics:
        return partition_paths
    known = known_schema(context, snapshot)
    schema = pa.schema([]) if known is None else with_meta(known.arrow)
    expression = to_expression(condition, schema)
    if expression is None or schema_history(context.ports.storage, snapshot) is not None:
        return partition_paths
    names = [
        one.name
        for one in schema
        if one.name not in META_COLUMNS
        and _has_bounds(one.type)
        and not pa.types.is_decimal(one.type)
        and not works_without(expression, schema, one.name)
    ]
    if not 0 < len(names) * len(partition_paths) <= _RECORDS_MAX:
        return partition_paths
    paths, count = pa.array(partition_paths, pa.string()), len(partition_paths)
    keys = [partition_stats_keys(pa.repeat(pa.scalar(name), count), paths) for name in names]
    found = listing.partition_statistics(pa.concat_arrays(keys))
    if found is None:
        return partition_paths
    columns = []
    for name, key in zip(names, keys, strict=True):
        rows = found.take(pc.index_in(key, value_set=one_array(found.column("key"))))
        columns.append(_bounds_of_partitions(name, rows, schema.field(name).type))
    try:
        allowed = guarantees_that_allow(expression, schema, _guarantees(columns, count))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return partition_paths  # as in ``skip_slices``
    return [partition_paths[number] for number in allowed]


def _bounds_of_partitions(name: str, rows: pa.Table, kind: pa.DataType) -> _Bounds:
    """Return the bounds of a column; ``rows`` has the record of each partition, or null."""
    low, high = (_values(one_array(rows.column(side)), rows, kind) for side in ("min", "max"))
    sure = pc.and_(pc.is_valid(low), pc.is_valid(high))
    if pa.types.is_string(kind):
        no_nulls = pc.equal(one_array(rows.column("null_count")), 0)
        sure = pc.and_(sure, pc.fill_null(no_nulls, False))
    null, has_nulls = pa.scalar(None, kind), np.ones(rows.num_rows, np.bool_)
    return _Bounds(name, pc.if_else(sure, low, null), pc.if_else(sure, high, null), has_nulls)


@dataclass(frozen=True, slots=True)
class _Files:
    """Shapes: for each file (n,) the number of its slice, its partition path and its name."""

    slices: npt.NDArray[np.int64]
    paths: pa.Array
    names: pa.Array


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Shapes: (slices,) each; ``low`` and ``high`` are null where they are not known."""

    name: str
    low: pa.Array
    high: pa.Array
    has_nulls: npt.NDArray[np.bool_]


def _files_of(slices: Sequence[FileSlice], *, merges_values: bool) -> _Files:
    of_base_files: list[tuple[Integers, pa.Array, pa.Array]] = []
    others: Iterable[tuple[int, FileSlice]] = enumerate(slices)
    if isinstance(slices, FileSlices):
        of_base_files, others = [slices.plain], slices.others
    numbers, paths, names = [], [], []
    for number, one in others:
        if one.log_files and merges_values:
            continue  # a merger of the table's owner may compute values
        files: list[BaseFile | LogFile] = [*one.log_files]
        files += [one.base_file] if one.base_file is not None else []
        for file in files:
            numbers.append(number)
            paths.append(one.file_group.partition_path)
            names.append(file.name)
    made = np.array(numbers, np.int64), pa.array(paths, pa.string()), pa.array(names, pa.string())
    every = list(zip(*of_base_files, made, strict=True))
    return _Files(
        np.concatenate(every[0]),
        one_array(pa.chunked_array(every[1])),
        one_array(pa.chunked_array(every[2])),
    )


def _repeated(name: str, files: _Files) -> pa.Array:
    return pa.repeat(pa.scalar(name), len(files.slices))


def _bounds_of_slices(
    name: str, rows: pa.Table, kind: pa.DataType, files: _Files, count: int
) -> _Bounds:
    """Return the bounds of a column in all slices; ``rows`` has the record of each file, or null."""
    low, high = (_values(one_array(rows.column(side)), rows, kind) for side in ("min", "max"))
    has_both = pc.and_(pc.is_valid(low), pc.is_valid(high))
    # A log of deletes alone has no values.
    is_empty = pc.fill_null(pc.equal(one_array(rows.column("value_count")), 0), False)
    known = pc.or_(has_both, pc.and_(is_empty, pc.and_(pc.is_null(low), pc.is_null(high))))
    nulls = pc.fill_null(pc.not_equal(rows.column("null_count"), 0), True)
    found = pa.table(
        {
            "slice": files.slices,
            "low": low,
            "high": high,
            "known": known,
            "nulls": one_array(nulls),
        }
    ).group_by("slice")
    merged = found.aggregate([("low", "min"), ("high", "max"), ("known", "min"), ("nulls", "max")])
    where = pc.index_in(pa.array(np.arange(count)), value_set=one_array(merged.column("slice")))
    merged = merged.take(where)
    is_known = pc.fill_null(merged.column("known_min"), False)
    null = pa.scalar(None, kind)
    return _Bounds(
        name,
        one_array(pc.if_else(is_known, merged.column("low_min"), null)),
        one_array(pc.if_else(is_known, merged.column("high_max"), null)),
        np.asarray(pc.fill_null(merged.column("nulls_max"), True)).astype(np.bool_),
    )


def _guarantees(columns: Sequence[_Bounds], count: int) -> list[list[pc.Expression] | None]:
    """Return for each slice the expressions of which one holds for each row; None if unknown."""
    known = [np.asarray(pc.is_valid(one.low)) for one in columns]
    return [
        _guarantee([one for one, some in zip(columns, known, strict=True) if some[number]], number)
        for number in range(count)
    ]


def _guarantee(columns: Sequence[_Bounds], number: int) -> list[pc.Expression] | None:
    sides: list[list[pc.Expression]] = []
    nullable = 0
    for one in columns:
        column = pc.field(one.name)
        alternatives = [(column >= one.low[number]) & (column <= one.high[number])]
        if one.has_nulls[number]:
            nullable += 1
            alternatives.append(column.is_null())
        if nullable <= _NULLABLE_MAX:
            sides.append(alternatives)
    return [reduce(and_, some) for some in product(*sides)] or None if sides else None


# ---- Bounds as values of a column's type; null where they are not sure


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    simple = (types.is_boolean, types.is_int32, types.is_int64, types.is_string, types.is_date32)
    is_time = types.is_timestamp(kind) and kind.unit in _UNITS
    return any(one(kind) for one in (*simple, types.is_decimal128)) or is_time


def _values(bounds: pa.StructArray, rows: pa.Table, kind: pa.DataType) -> pa.Array:
    types = pa.types
    numbers = one_array(rows.column("value_type"))

    def held(wrapper: str) -> pa.Array:
        return pc.struct_field(bounds, wrapper)

    def of_type(values: pa.Array, *wanted: ValueType) -> pa.Array:
        among = pc.is_in(numbers, value_set=pa.array([int(one) for one in wanted], pa.int32()))
        return pc.if_else(among, values, None)

    if types.is_boolean(kind):
        return held("BooleanWrapper")
    if types.is_int32(kind) or types.is_int64(kind):
        whole = pc.coalesce(pc.cast(held("IntWrapper"), pa.int64()), held("LongWrapper"))
        is_time = pc.is_in(numbers, value_set=pa.array(_TIMES, pa.int32()))
        return _cast(pc.if_else(is_time, None, whole), kind)
    if types.is_string(kind):
        return _in_one_order(held("StringWrapper"))
    if types.is_date32(kind):
        days = of_type(held("IntWrapper"), ValueType.DATE)
        return pc.cast(pc.coalesce(days, held("DateWrapper")), kind)
    if types.is_timestamp(kind):
        return pc.cast(of_type(held("LongWrapper"), *_UNITS[kind.unit]), kind)
    info = one_array(rows.column("additional_info"))
    octets = of_type(held("BytesWrapper"), ValueType.DECIMAL)
    return _decimals(held("DecimalWrapper"), octets, info, kind)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast numbers; those that the type cannot hold become null."""
    if pa.types.is_int32(kind):
        limits = np.iinfo(np.int32)
        fits = pc.and_(pc.greater_equal(values, limits.min), pc.less_equal(values, limits.max))
        values = pc.if_else(fits, values, None)
    return pc.cast(values, kind)


def _in_one_order(texts: pa.Array) -> pa.Array:
    """Return the texts that UTF-8 and UTF-16 order equally."""
    plain = pc.invert(pc.match_substring_regex(texts, r"[\x{E000}-\x{10FFFF}]"))
    return pc.if_else(plain, texts, None)


def _decimals(
    whole: pa.Array, octets: pa.Array, info: pa.Array, kind: pa.Decimal128Type
) -> pa.Array:
    """Return the decimals of version 8, and those that are the bytes of a number with a scale."""
    lengths = pc.binary_length(octets)
    fits = pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, _DECIMAL_BYTES))
    fits = pc.and_(fits, pc.equal(info, f"{kind.precision},{kind.scale}"))
    octets = pc.if_else(pc.fill_null(fits, False), octets, None)
    return pc.coalesce(_rescaled(whole, kind), _numbers(octets, kind))


def _rescaled(values: pa.Array, kind: pa.Decimal128Type) -> pa.Array:
    try:
        found = pc.cast(values, kind, safe=False)
        is_exact = pc.equal(pc.cast(found, values.type, safe=False), values)
    except pa.ArrowInvalid:
        return pa.nulls(len(values), kind)
    return pc.if_else(is_exact, found, None)


def _numbers(octets: pa.Array, kind: pa.Decimal128Type) -> pa.Array:
    """Return big-endian two's complement numbers of up to 16 bytes as unscaled decimals."""
    held = np.asarray(pc.is_valid(octets)).astype(np.bool_)
    lengths = np.asarray(pc.fill_null(pc.binary_length(octets), 0)).astype(np.int64)
    joined = np.frombuffer(b"".join(pc.drop_null(octets).to_pylist()), np.uint8)
    filled = np.arange(_DECIMAL_BYTES) >= _DECIMAL_BYTES - lengths[:, None]
    padded = np.zeros((len(octets), _DECIMAL_BYTES), np.uint8)
    padded[filled] = joined
    first = padded[np.arange(len(octets)), np.minimum(_DECIMAL_BYTES - lengths, 15)]
    padded[~filled & (held & (first >= 0x80))[:, None]] = 0xFF
    little = np.ascontiguousarray(padded[:, ::-1])
    valid = pa.py_buffer(np.packbits(held, bitorder="little"))
    return pa.Array.from_buffers(kind, len(octets), [valid, pa.py_buffer(little)])
