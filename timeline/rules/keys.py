"""
Record keys and partition paths: how column values become the two texts that place a record.

Java Hudi computes the same texts from the same rows, so every form here is its form
(fmt 4.1, 4.3); one different character would make an update an insert. Partition values
end up as folder names, so this is also where hostile values are refused (SEC1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import InvalidInputError

__all__ = [
    "DEFAULT_PARTITION",
    "KeyGenerator",
    "KeySpec",
    "infer_key_generator",
    "java_order",
    "key_range",
    "partition_paths",
    "record_keys",
    "validate_ordering",
]

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_NULL_KEY, _EMPTY_KEY = "__null__", "__empty__"
_PREFIXED_SINGLE_KEY_VERSION = 9  # COMPLEX with one field: bare below, prefixed from here on
_SEGMENT_BYTES_MAX = 255
_HOSTILE = re.compile(r"[\x00-\x1f\x7f\\/]")
_ESCAPED = re.compile(r"[\x01-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
_UTF16_RANK = np.arange(256, dtype=np.uint8)
_UTF16_RANK[[0xEE, 0xEF, 0xFE, 0xFF]] = [0xFE, 0xFF, 0xEE, 0xEF]
_UTF16_UNRANK = bytes(_UTF16_RANK)


class KeyGenerator(Enum):
    """How keys and partition paths are made, spelled as in ``hoodie.table.keygenerator.type``."""

    SIMPLE = "SIMPLE"
    COMPLEX = "COMPLEX"
    NON_PARTITION = "NON_PARTITION"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpec:
    """Which columns of a table are its key, its partition and its order."""

    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...] = ()
    key_generator: KeyGenerator = KeyGenerator.SIMPLE
    hive_style: bool = False
    url_encode: bool = False
    table_version: int = 9
    ordering_fields: tuple[str, ...] = ()

    @property
    def prefixes_keys(self) -> bool:
        """Whether keys read ``field:value`` instead of the bare value (fmt 4.3)."""
        if len(self.record_key_fields) > 1:
            return True
        return (
            self.key_generator is KeyGenerator.COMPLEX
            and self.table_version >= _PREFIXED_SINGLE_KEY_VERSION
        )


def infer_key_generator(n_keys: int, n_partitions: int) -> KeyGenerator:
    """The generator Hudi takes for so many key and partition fields when none is named."""
    if n_partitions == 0:
        return KeyGenerator.NON_PARTITION
    return KeyGenerator.SIMPLE if n_keys == n_partitions == 1 else KeyGenerator.COMPLEX


def record_keys(table: pa.Table, spec: KeySpec) -> pa.Array:
    """
    Compute each row's record key.

    Shapes: table (n rows) -> string array (n,); order kept; no nulls.

    Raises:
        InvalidInputError: The table has no key fields (``no_key_fields``), a key column is
            missing (``missing_key_column``), has a type without a key form
            (``unsupported_key_type``), or rows have no key (``null_key``; fields
            ``columns``, ``rows``).
    """
    fields = spec.record_key_fields
    if not fields:
        raise InvalidInputError(
            "the table has no record key fields, and writing keyless rows is not supported; set "
            "hoodie.datasource.write.recordkey.field",
            kind="no_key_fields",
        )
    columns = [_column(table, name, "record key", "missing_key_column") for name in fields]
    texts = [
        _text(column, name, "unsupported_key_type")
        for column, name in zip(columns, fields, strict=True)
    ]
    if not spec.prefixes_keys:
        _refuse_missing(_is_missing(texts[0]), fields)
        return _one_array(texts[0])
    parts: list[Any] = []
    all_missing: Any = None
    for number, (name, text) in enumerate(zip(fields, texts, strict=True)):
        missing = _is_missing(text)
        all_missing = missing if all_missing is None else pc.and_(all_missing, missing)
        parts.append(pa.scalar(f",{name}:" if number else f"{name}:"))
        parts.append(_marked(text))
    _refuse_missing(all_missing, fields)
    return _one_array(pc.binary_join_element_wise(*parts, ""))


def partition_paths(table: pa.Table, spec: KeySpec) -> pa.Array:
    """
    Compute each row's partition path; ``""`` everywhere when the table has no partitions.

    Only distinct values are formatted and checked; rows are looked up in the result.

    Shapes: table (n rows) -> string array (n,); order kept; no nulls.

    Raises:
        InvalidInputError: A partition column is missing (``missing_partition_column``), has
            a type that makes no folder name (``unsupported_partition_type``), or a value
            would leave the table or name no folder (``bad_partition_value``; fields
            ``column``, ``value``).
    """
    if spec.key_generator is KeyGenerator.NON_PARTITION or not spec.partition_fields:
        return pa.repeat(pa.scalar(""), table.num_rows)
    segments = []
    for name in spec.partition_fields:
        column = _column(table, name, "partition", "missing_partition_column")
        codes = _one_array(column.dictionary_encode(null_encoding="encode"))
        values = _text(codes.dictionary, name, "unsupported_partition_type").to_pylist()
        folders = [_segment(value, name, spec) for value in values]
        segments.append(pc.take(pa.array(folders, pa.string()), codes.indices))
    if len(segments) == 1:
        return segments[0]
    return pc.binary_join_element_wise(*segments, "/")


def java_order(key: str) -> bytes:
    """A sort key that orders texts as Java's ``compareTo`` does: by UTF-16 code units."""
    return key.encode("utf-16-be", "surrogatepass")


def key_range(keys: pa.Array | pa.ChunkedArray) -> tuple[str, str] | None:
    """
    Find the least and the greatest key in Java's order, None without keys.

    Shapes: keys (n,) strings without nulls.
    """
    ends: list[str] = []
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        if len(chunk):
            ends.extend(_chunk_range(chunk))
    if not ends:
        return None
    return min(ends, key=java_order), max(ends, key=java_order)


def _chunk_range(chunk: pa.Array) -> tuple[str, str]:
    # UTF-8 bytes order texts by code point; UTF-16 puts the lead bytes F0-F4 (surrogate pairs)
    # before EE and EF. Renaming those two above F4 makes byte order equal to Java's.
    _, offsets, data = chunk.buffers()
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if text.max(initial=0) >= 0xEE:
        renamed = pa.py_buffer(_UTF16_RANK[text])
        binary = pa.binary() if pa.types.is_string(chunk.type) else pa.large_binary()
        parts = [None, offsets, renamed]
        chunk = pa.Array.from_buffers(binary, len(chunk), parts, offset=chunk.offset)
    else:
        chunk = chunk.view(pa.binary()) if pa.types.is_string(chunk.type) else chunk
    found = pc.min_max(chunk)
    return _original(found["min"].as_py()), _original(found["max"].as_py())


def _original(ranked: bytes | str) -> str:
    if isinstance(ranked, str):
        return ranked
    return ranked.translate(_UTF16_UNRANK).decode()


def validate_ordering(table: pa.Table, fields: Sequence[str]) -> None:
    """
    Refuse rows without an ordering value: Java mergers fail on them for ever after (fmt 7).

    Raises:
        InvalidInputError: ``missing_ordering_column``, or ``null_ordering`` with the fields
            ``column`` and ``rows``.
    """
    for name in fields:
        column = _column(table, name, "ordering", "missing_ordering_column")
        if column.null_count:
            raise InvalidInputError(
                "rows have no value in the ordering field; fill it or drop them: "
                f"column={name!r} rows={column.null_count}",
                kind="null_ordering",
                column=name,
                rows=column.null_count,
            )


def _column(table: pa.Table, name: str, role: str, kind: str) -> pa.ChunkedArray:
    position = table.schema.get_field_index(name)
    if position >= 0:
        return table.column(position)
    head, *rest = name.split(".")
    position = table.schema.get_field_index(head)
    if position < 0 or not rest:
        raise _missing_column(name, role, kind)
    column = table.column(position)
    for step in rest:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(step) < 0:
            raise _missing_column(name, role, kind)
        column = pc.struct_field(column, step)
    return column


def _missing_column(name: str, role: str, kind: str) -> InvalidInputError:
    return InvalidInputError(
        f"the data has no column for the table's {role} field; add it: column={name!r}",
        kind=kind,
        column=name,
    )


def _text(column: Any, name: str, kind: str) -> Any:
    """Values as Java's ``toString`` gives them; nulls stay."""
    types, value_type = pa.types, column.type
    if types.is_dictionary(value_type):
        column = pc.cast(column, value_type.value_type)
        value_type = column.type
    if types.is_string(value_type):
        return column
    if types.is_large_string(value_type) or types.is_string_view(value_type):
        return pc.cast(column, pa.string())
    if types.is_integer(value_type) or types.is_boolean(value_type) or types.is_date32(value_type):
        return pc.cast(column, pa.string())
    if types.is_decimal(value_type) or types.is_null(value_type):
        return pc.cast(column, pa.string())
    if types.is_float32(value_type) or types.is_float64(value_type):
        return _distinct_text(column, _java_float(value_type))
    if types.is_timestamp(value_type) and kind == "unsupported_key_type":
        # Hudi's own default: the stored number, not a date (fmt 4.1).
        return pc.cast(pc.cast(column, pa.int64()), pa.string())
    raise InvalidInputError(
        "values of this type make no key or folder name; use a string, integer, date or decimal "
        f"column: column={name!r} type={value_type}",
        kind=kind,
        column=name,
        type=str(value_type),
    )


def _distinct_text(column: Any, write: Callable[[float], str]) -> Any:
    # Formatted once per distinct value: Arrow has no Java-like form of floating numbers.
    encoded = column.dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    encoded = _one_array(encoded)
    texts = [write(value.as_py()) for value in encoded.dictionary]
    return pc.take(pa.array(texts, pa.string()), encoded.indices)


def _java_float(value_type: pa.DataType) -> Callable[[float], str]:
    """``Double.toString`` and ``Float.toString`` with the fewest digits that tell values apart."""
    single = pa.types.is_float32(value_type)

    def write(value: float) -> str:
        if math.isnan(value):
            return "NaN"
        if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        if value == 0:
            return "-0.0" if str(value).startswith("-") else "0.0"
        shortest = _shortest_single(value) if single else repr(value)
        sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
        text = "".join(map(str, digits))
        point = len(text) + int(exponent)  # value = 0.text * 10**point
        minus = "-" if sign else ""
        if -2 <= point <= 7:
            whole = (text[: max(point, 0)] or "0").ljust(point, "0")
            fraction = "0" * max(-point, 0) + text[max(point, 0) :]
            return f"{minus}{whole}.{fraction or '0'}"
        return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"

    return write


def _shortest_single(value: float) -> str:
    candidates = (f"{value:.{digits}g}" for digits in range(1, 10))
    stored = pa.scalar(value, pa.float32())
    return next(c for c in candidates if pa.scalar(float(c), pa.float32()) == stored)


def _segment(value: str | None, name: str, spec: KeySpec) -> str:
    text = DEFAULT_PARTITION if value is None or value == "" else value
    if spec.url_encode:
        if "\x00" in text:
            raise _bad_value(name, text, "holds a zero byte, which no folder name can")
        text = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
    elif _HOSTILE.search(text):
        raise _bad_value(
            name,
            text,
            "holds a slash, backslash or control character; clean it, or create the table with "
            "hoodie.datasource.write.partitionpath.urlencode=true",
        )
    if spec.hive_style:
        text = f"{name}={text}"
    if text.startswith("."):
        raise _bad_value(name, text, "would be a hidden folder or leave its own")
    if len(text.encode()) > _SEGMENT_BYTES_MAX:
        raise _bad_value(name, text[:80], f"is longer than {_SEGMENT_BYTES_MAX} bytes")
    return text


def _bad_value(name: str, value: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"a partition value {why}: column={name!r} value={value!r}",
        kind="bad_partition_value",
        column=name,
        value=value,
    )


def _is_missing(text: Any) -> Any:
    return pc.or_kleene(pc.is_null(text), pc.fill_null(pc.equal(text, ""), True))


def _marked(text: Any) -> Any:
    marked = pc.if_else(pc.equal(text, ""), _EMPTY_KEY, text)
    return pc.fill_null(marked, _NULL_KEY)


def _refuse_missing(missing: Any, fields: Sequence[str]) -> None:
    rows = pc.sum(missing, min_count=0).as_py()
    if rows:
        raise InvalidInputError(
            "rows have no record key (null or empty); fill it or drop them: "
            f"columns={list(fields)} rows={rows}",
            kind="null_key",
            columns=list(fields),
            rows=rows,
        )


def _one_array(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
