"""
How a Parquet file is laid out: row groups, pages, dictionaries, statistics and bloom filters.

A layout never changes what a reader gets; it decides size and speed, and what a query may skip.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from filegroups.schema.schema import KEY_COLUMN, SEQUENCE_COLUMN

_NO_DICTIONARY = frozenset({KEY_COLUMN, SEQUENCE_COLUMN})  # every value differs
_SAMPLED_ROWS_MIN = 20_000  # a dictionary of fewer values costs little
_SAMPLE_BLOCKS, _BLOCK_ROWS = 4, 2_048
_DISTINCT_SHARE = 0.98  # of a sample: the column has so many values that no dictionary holds them
_HAS_FILTERS = "bloom_filter_options" in signature(pq.ParquetWriter).parameters
_FILTERED_ROWS_MIN = 4_096  # fewer rows are read as fast as a filter
_FILTER_ERRORS = 0.01  # twelve to twenty bits for each key


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSettings:
    """The layout of base files."""

    compression: str = "snappy"  # hoodie.parquet.compression.codec, lower case
    row_group_bytes: int = 120 * 1024 * 1024  # hoodie.parquet.block.size, before compression
    row_group_rows_max: int = 1_000_000
    page_bytes: int = 1024 * 1024  # hoodie.parquet.page.size
    dictionary: bool = True  # hoodie.parquet.dictionary.enabled
    filtered: tuple[str, ...] = ()  # columns that get Parquet's own bloom filter


def layout_of(rows: pa.Table, settings: ParquetSettings) -> dict[str, Any]:
    """Return the arguments of Arrow's writer for a file of these rows."""
    dictionary: Any = False
    if settings.dictionary:
        dictionary = [
            name
            for name in rows.schema.names
            if name not in _NO_DICTIONARY and not _differs_nearly_everywhere(rows.column(name))
        ]
    compression = settings.compression.lower()
    filters = _filters(rows, settings)
    return {
        "version": "2.4",
        "data_page_version": "1.0",
        "compression": "none" if compression == "uncompressed" else compression,
        "use_dictionary": dictionary,
        "write_statistics": _with_statistics(rows),
        "data_page_size": settings.page_bytes,
        "store_schema": False,
        "store_decimal_as_integer": False,
        **({"bloom_filter_options": filters} if filters else {}),
    }


def _filters(rows: pa.Table, settings: ParquetSettings) -> dict[str, Any]:
    """
    Return the options of Parquet's own bloom filters, which a PyArrow that is too old cannot write.

    By them Spark and other engines leave out a row group that lacks the value of a query. They do
    not know the filter in Hudi's footer.
    """
    if not _HAS_FILTERS or rows.num_rows < _FILTERED_ROWS_MIN:
        return {}
    values = min(rows.num_rows, row_group_rows(rows, settings))
    kinds = {
        name: rows.schema.field(name).type
        for name in settings.filtered
        if name in rows.schema.names
    }
    return {
        name: {"ndv": values, "fpp": _FILTER_ERRORS}
        for name, kind in kinds.items()
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
    }


def _differs_nearly_everywhere(column: pa.ChunkedArray) -> bool:
    """
    Return whether nearly every value of a column differs, by a sample of its rows.

    Arrow builds a dictionary up to the page's limit of 1 MiB, then writes the other values plain.
    Such a file is larger, and is written and read more slowly, than one without the attempt.
    The sample's rows are neighbours, so that repeated values of sorted rows are seen. Of 8,192
    rows with 2 % of repeated values, the column has about 200,000 values: 1.6 MB of 8 bytes each.
    """
    types, kind = pa.types, column.type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_wide = types.is_primitive(kind) and kind.bit_width == 64
    count = len(column)
    if count < _SAMPLED_ROWS_MIN or not (is_text or is_wide):
        return False
    starts = [
        number * (count - _BLOCK_ROWS) // (_SAMPLE_BLOCKS - 1) for number in range(_SAMPLE_BLOCKS)
    ]
    blocks = [chunk for start in starts for chunk in column.slice(start, _BLOCK_ROWS).chunks]
    distinct = pc.count_distinct(pa.chunked_array(blocks, kind), mode="all").as_py()
    return bool(distinct >= _DISTINCT_SHARE * _SAMPLE_BLOCKS * _BLOCK_ROWS)


def _with_statistics(rows: pa.Table) -> bool | list[str]:
    """
    Return the columns whose statistics are written; True for all.

    Arrow's limits of floats ignore NaN. For Spark NaN is above all numbers, so ``x > 7`` would skip a
    file whose only such value is NaN. Java's writers also leave the limits of such a column out.
    """
    floats = [each for each in rows.schema if has_floats(each.type)]
    omitted = [
        each.name
        for each in floats
        if any(_has_nan(chunk) for chunk in rows.column(each.name).chunks)
    ]
    if not omitted:
        return True
    made = io.BytesIO()
    pq.write_table(rows.schema.empty_table(), made, store_schema=False)
    columns = pq.read_metadata(made).schema
    paths = (columns.column(number).path for number in range(len(columns)))
    return [path for path in paths if path.partition(".")[0] not in omitted]


def _has_nan(values: pa.Array) -> bool:
    types = pa.types
    if not has_floats(values.type):
        return False
    if types.is_floating(values.type):
        return bool(pc.any(pc.is_nan(values), min_count=0).as_py())
    if types.is_struct(values.type):
        return any(_has_nan(values.field(number)) for number in range(values.type.num_fields))
    if types.is_map(values.type):
        return _has_nan(values.keys) or _has_nan(values.items)
    return _has_nan(values.values)


def row_group_rows(rows: pa.Table, settings: ParquetSettings) -> int:
    """Return the rows of a row group, at least 1."""
    if rows.num_rows == 0:
        return 1
    if rows.get_total_buffer_size() <= settings.row_group_bytes:  # cheaper than nbytes
        return settings.row_group_rows_max
    fitting = settings.row_group_bytes * rows.num_rows // max(rows.nbytes, 1)
    return int(max(1, min(fitting, settings.row_group_rows_max)))


def has_floats(kind: pa.DataType) -> bool:
    """Return whether a type is one of floats, or contains one."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_floating(kind) or any(map(has_floats, inner))
