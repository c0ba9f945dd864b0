"""Convert rows of callers to Arrow, in the types of the table."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from json import dumps
from numbers import Real
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from filegroups.schema.casting import cast_column
from filegroups.schema.evolution import is_list, is_variant
from filegroups.schema.schema import META_FIELDS
from filegroups.schema.variant import variant_struct
from timeline.errors import HoodooError, InvalidInputError
from timeline.model.file_names import listed

# ---- Rows without types take the table's types: dicts, objects of pandas, lines of JSON
# A Python value has a class, not a column's type: 1 may be an int or a long, a dict a struct or a
# map. So each column is built for the table's type. Arrow converts the values of one class
# together. The rules here decide which type a class may become; no digit is lost.

#: From this value on two integers may share one double, so a float may have lost digits.
_EXACT_MAX: Final = 2**53
_LONG_END: Final = 2**63
_BLOCK_BYTES_MAX: Final = 2**31 - 1
_MISSING_CLASSES: Final = frozenset(
    {"NoneType", "NAType", "NaTType"}
)  # the last two come from pandas
_FLOAT_WORDS: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def typed_rows(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, *, json: bool = False
) -> pa.Table:
    """
    Return rows as an Arrow table; new columns get the types that Arrow infers.

    Columns have the table's order; new columns follow in order of appearance. The result has no
    column that no row names.

    Args:
        rows: Each maps names to values.
        schema: The table's own columns; None without a table.
        json: Binary values are base64 and floats may be the words that ``hoodoo read`` prints.

    Shapes: rows (n) -> (n rows); order kept.

    Raises:
        InvalidInputError: A value does not fit its column (``lossy_value``,
            ``schema_mismatch``), or the values of a new column have no common type (``data``).
    """
    known = {each.name: each.type for each in (*META_FIELDS, *(schema or ()))}
    named = dict.fromkeys(listed(dict.fromkeys(chain.from_iterable(rows)), "names of columns"))
    names = [name for name in known if name in named]
    names += [name for name in named if name not in known]
    if not names:  # empty rows, or no rows
        return pa.table({}) if not rows else pa.Table.from_pylist(list(rows))
    columns = [
        typed_column([row.get(name) for row in rows], known.get(name), name, json=json)
        for name in names
    ]
    return pa.table(dict(zip(names, columns, strict=True)))


def typed_column(
    values: list[Any], kind: pa.DataType | None, name: str, *, json: bool = False
) -> pa.Array:
    """
    Return one column in the table's type.

    Args:
        values: Of any classes; None is null, and so is NaN if the type has no NaN.
        kind: The table's type; None for a new column.
        name: For messages.
        json: As of ``typed_rows``.

    Shapes: values (n) -> (n,).

    Raises: as ``typed_rows``.
    """
    if kind is None:
        return _inferred_json(values, name) if json else _inferred(values, name)
    if is_variant(kind):
        values = [variant_struct(one) if isinstance(one, str) else one for one in values]
    if pa.types.is_struct(kind):
        return _struct(values, kind, name, json=json)
    if pa.types.is_map(kind):
        return _map(values, kind, name, json=json)
    if is_list(kind):
        return _list(values, kind, name, json=json)
    return _flat(values, kind, name, json=json)


def typed_floats(values: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """
    Convert a float column of pandas, which uses floats also because of a missing value.

    Whole numbers become integers, and numbers that fit become decimals. Values with a fraction
    stay unchanged.

    Shapes: (n,) -> (n,).

    Raises:
        InvalidInputError: A whole number is too big for an exact float (``lossy_value``).
    """
    if values.null_count == len(values):
        return pa.chunked_array([pa.nulls(len(values), kind)])
    if pa.types.is_integer(kind):
        whole = pc.all(pc.equal(values, pc.trunc(values))).as_py()
        return _each(values, partial(_whole_numbers, kind=kind, name=name)) if whole else values
    if pa.types.is_decimal(kind):
        return _each(values, partial(cast_values, kind=kind, name=name))
    return values


def _each(values: pa.ChunkedArray, made: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    return pa.chunked_array([made(chunk) for chunk in values.chunks])


# ---- nested values


def _struct(values: list[Any], kind: pa.DataType, name: str, *, json: bool) -> pa.Array:
    """Return a struct column without the fields that no value names; schema rules handle those."""
    given = [one for one in values if not _is_missing(one)]
    _refuse_others(given, (Mapping,), kind, name)
    named = dict.fromkeys(chain.from_iterable(given))
    known = {each.name: each.type for each in kind}
    if not named:
        if given:
            raise _mismatch(name, kind, given[0])
        return pa.nulls(len(values))
    names = [one for one in known if one in named]
    names += [one for one in named if one not in known]
    full = [{} if _is_missing(one) else one for one in values]
    children = [
        typed_column(
            [one.get(child) for one in full], known.get(child), f"{name}.{child}", json=json
        )
        for child in names
    ]
    mask = pa.array([_is_missing(one) for one in values], pa.bool_())
    return pa.StructArray.from_arrays(children, names=[str(one) for one in names], mask=mask)


def _list(values: list[Any], kind: pa.DataType, name: str, *, json: bool) -> pa.Array:
    given = [one for one in values if not _is_missing(one)]
    _refuse_others(given, (list, tuple, np.ndarray), kind, name)
    offsets = _offsets(values)
    inner = typed_column(
        list(chain.from_iterable(given)), kind.value_type, name + ".element", json=json
    )
    return pa.ListArray.from_arrays(offsets, inner)


def _map(values: list[Any], kind: pa.DataType, name: str, *, json: bool) -> pa.Array:
    """Return a map column from dicts or from lists of pairs (Arrow's ``to_pylist``)."""
    given = [one for one in values if not _is_missing(one)]
    _refuse_others(given, (Mapping, list, tuple, np.ndarray), kind, name)
    entries = [
        None if _is_missing(one) else list(one.items() if isinstance(one, Mapping) else one)
        for one in values
    ]
    pairs = [_pair(one, kind, name) for one in chain.from_iterable(filter(None, entries))]
    keys = typed_column([one[0] for one in pairs], kind.key_type, name + ".key", json=json)
    if keys.null_count:
        raise _mismatch(name + ".key", kind.key_type, None)
    items = typed_column([one[1] for one in pairs], kind.item_type, name + ".value", json=json)
    return pa.MapArray.from_arrays(_offsets(entries), keys, items)


def _pair(entry: Any, kind: pa.DataType, name: str) -> tuple[Any, Any]:
    if isinstance(entry, Mapping) and set(entry) == {"key", "value"}:
        return entry["key"], entry["value"]
    if isinstance(entry, tuple | list) and len(entry) == 2:
        return entry[0], entry[1]
    raise _mismatch(name, kind, entry)


def _offsets(values: Iterable[Any]) -> pa.Array:
    """Return the offset of each list; null for a missing list. Shapes: (n) -> (n + 1,)."""
    missing = np.array([one is None or _is_missing(one) for one in values], np.bool_)
    lengths = [0 if gone else len(one) for gone, one in zip(missing, values, strict=True)]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.array(ends, mask=np.append(missing, False))


# ---- flat values, converted class by class


def _flat(values: list[Any], kind: pa.DataType, name: str, *, json: bool) -> pa.Array:
    types = set(map(type, values))
    types.discard(type(None))
    if len(types) == 1 and not issubclass(next(iter(types)), dt.datetime):
        return _of_class(values, kind, name, json=json)
    classes = [_class_of(one) for one in values]
    distinct = dict.fromkeys(classes)
    distinct.pop(None, None)
    if not distinct:
        return pa.nulls(len(values), kind)
    if len(distinct) == 1:
        return _of_class(values, kind, name, json=json)
    parts, places = [pa.nulls(1, kind)], np.zeros(len(values), np.int64)
    filled = 1
    for one in distinct:
        own = [number for number, each in enumerate(classes) if each == one]
        part = _of_class([values[number] for number in own], kind, name, json=json)
        places[own] = np.arange(filled, filled + len(own))
        filled += len(own)
        parts.append(part)
    return pa.concat_arrays(parts).take(pa.array(places))


def _class_of(value: Any) -> object:
    """Return the class of a value; Arrow infers the type of a whole column from its first value."""
    if _is_missing(value):
        return None
    if isinstance(value, dt.datetime):
        return dt.datetime, value.tzinfo is None
    return type(value)


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in _MISSING_CLASSES


def _of_class(values: list[Any], kind: pa.DataType, name: str, *, json: bool) -> pa.Array:
    """Return the column of values that share one class; missing values are allowed."""
    values = [None if _is_missing(one) else one for one in values]
    first = next((one for one in values if one is not None), None)
    types = pa.types
    made: pa.Array | None = None
    if type(first).__name__ == "UUID" and types.is_fixed_size_binary(kind):
        made = pa.array([one and one.bytes for one in values], pa.binary(16))
    elif isinstance(first, str) and json:
        made = _of_json_texts(values, kind, name)
    elif json and type(first) in (decimal.Decimal, int) and types.is_floating(kind):
        # The number's text gives the exact float.
        texts = [None if one is None else float(decimal.Decimal(one)) for one in values]
        made = pa.array(texts, pa.float64())
        if pc.any(pc.is_inf(made)).as_py():
            raise _lossy(name, kind, pa.string(), "a number is above the greatest of the type")
    return cast_values(_inferred(values, name) if made is None else made, kind=kind, name=name)


def _of_json_texts(values: list[Any], kind: pa.DataType, name: str) -> pa.Array | None:
    """Return binary values and special floats from their texts in JSON; None for other types."""
    types = pa.types
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        try:
            raw = [None if one is None else base64.b64decode(one, validate=True) for one in values]
        except (binascii.Error, ValueError) as error:
            raise InvalidInputError(
                f"a value of a binary column must be base64: encode it: column={name!r}: {error}",
                kind="lossy_value",
                column=name,
                table_type=str(kind),
                incoming_type="string",
            ) from error
        return pa.array(raw, pa.binary())
    if types.is_floating(kind) and _FLOAT_WORDS.issuperset(filter(None, values)):
        return pa.array([None if one is None else float(one) for one in values], pa.float64())
    return None


def _inferred(values: list[Any], name: str) -> pa.Array:
    try:
        made = pa.array(values)
    except OverflowError as error:  # above a long; a decimal has 38 digits
        if not all(one is None or isinstance(one, Real | decimal.Decimal) for one in values):
            raise _not_taken(name, error) from error
        return _inferred([None if one is None else decimal.Decimal(one) for one in values], name)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _not_taken(name, error) from error
    # Arrow reads timestamps of pandas as Python's, which have microseconds.
    if pa.types.is_timestamp(made.type) and any(getattr(one, "nanosecond", 0) for one in values):
        raise _lossy(
            name,
            made.type,
            pa.timestamp("ns"),
            "a time has nanoseconds, and a Hudi table stores microseconds; round it",
        )
    return made


def _inferred_json(values: list[Any], name: str) -> pa.Array:
    """Return a new column in the type that ``read_json`` infers."""
    if not values:
        return pa.nulls(0)
    if any(type(one) is int and abs(one) >= _LONG_END for one in values):
        return _inferred(values, name)  # Arrow's reader would convert them to floats
    try:
        lines = "\n".join(dumps({"c": one}, default=_nearest_float) for one in values)
        text = pa.py_buffer(lines.encode())
        block_bytes = min(len(lines) + 1, _BLOCK_BYTES_MAX)
        return read_json(text, pa.schema([]), block_bytes).column("c").combine_chunks()
    except (pa.ArrowInvalid, OverflowError) as error:
        raise _not_taken(name, error) from error


def read_json(text: pa.Buffer, asked: pa.Schema, block_bytes: int) -> pa.Table:
    """
    Read lines of JSON by Arrow.

    JSON has no times, so a text stays a text, as in Spark's reader. Arrow alone would take each
    column of which the texts are like times for timestamps.

    Args:
        text: The lines.
        asked: The columns of known types; Arrow infers those of the others.
        block_bytes: Bytes of a block; a row must fit into one.

    Shapes: lines (n) -> (n rows).

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: Arrow cannot read the text.
    """

    def read(columns: pa.Schema) -> pa.Table:
        return pajson.read_json(
            pa.BufferReader(text),
            pajson.ReadOptions(block_size=block_bytes),
            pajson.ParseOptions(explicit_schema=columns, unexpected_field_behavior="infer"),
        )

    rows = read(asked)
    texts = pa.schema([(one.name, _times_as_texts(one.type)) for one in rows.schema])
    return rows if texts == rows.schema else read(texts)


def _times_as_texts(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _times_as_texts(one.type)) for one in kind])
    if is_list(kind):
        return pa.list_(_times_as_texts(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _nearest_float(number: decimal.Decimal) -> float:
    if math.isinf(made := float(number)):
        raise OverflowError(f"{number} is above the greatest float")
    return made


def _not_taken(name: str, why: object) -> InvalidInputError:
    return InvalidInputError(
        "the rows cannot be converted to Arrow: correct the values of the column: "
        f"column={name!r}: {why}",
        kind="data",
        column=name,
    )


def cast_values(values: pa.Array, *, kind: pa.DataType, name: str) -> pa.Array:
    """
    Cast values to another type without loss.

    Args:
        values: The values; texts may hold a decimal, a date, a time or a timestamp.
        kind: The table's type, not nested.
        name: For messages.

    Shapes: (n,) -> (n,).

    Raises: as ``typed_rows``.
    """
    types, source = pa.types, values.type
    if source == kind:
        return values
    try:
        if types.is_floating(source):
            return _of_floats(values, kind, name)
        if types.is_integer(source) and (types.is_integer(kind) or types.is_floating(kind)):
            return pc.cast(values, kind)
        if types.is_integer(source) and types.is_decimal(kind):
            return pc.cast(pc.cast(values, pa.decimal128(19, 0)), kind)
        if types.is_decimal(source) and types.is_decimal(kind):
            return pc.cast(values, kind)
        if types.is_decimal(source) and types.is_integer(kind):
            return pc.cast(values, kind)
        if types.is_string(source):
            return _of_texts(values, kind, name)
        if types.is_binary(source) and types.is_fixed_size_binary(kind):
            return pc.cast(values, kind)
    except pa.ArrowInvalid as error:
        raise _lossy(name, kind, source, error) from error
    return cast_column(pa.chunked_array([values]), kind, name).combine_chunks()


def _of_floats(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Cast floats; NaN becomes null if the type has no NaN."""
    types = pa.types
    if types.is_floating(kind):
        made = pc.cast(values, kind)
        grown = pc.and_(pc.is_inf(made), pc.is_finite(values))
        if pc.any(grown).as_py():
            raise _lossy(name, kind, values.type, "a number is above the greatest of the type")
        return made
    known = pc.if_else(pc.is_nan(values), None, values)
    if known.null_count == len(known):
        return pa.nulls(len(known), kind)
    if types.is_integer(kind):
        return _whole_numbers(known, kind=kind, name=name)
    if types.is_decimal(kind):
        return pc.cast(pc.cast(known, pa.string()), kind)
    return cast_column(pa.chunked_array([known]), kind, name).combine_chunks()


def _whole_numbers(values: pa.Array, *, kind: pa.DataType, name: str) -> pa.Array:
    if pc.any(pc.greater_equal(pc.abs(values), float(_EXACT_MAX))).as_py():
        raise _lossy(
            name,
            kind,
            values.type,
            "a float of 2**53 or more may have lost digits; in pandas use the type Int64, which "
            "allows missing values",
        )
    try:
        return pc.cast(values, kind)
    except pa.ArrowInvalid as error:
        raise _lossy(name, kind, values.type, error) from error


def _of_texts(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Cast texts: a decimal, or a date, time or timestamp in the form of ISO 8601."""
    types = pa.types
    if types.is_decimal(kind) or types.is_date(kind) or types.is_timestamp(kind):
        return pc.cast(values, kind)
    if types.is_time(kind):
        return pc.cast(pc.cast(_as_moments(values), pa.time64("us")), kind)
    return cast_column(pa.chunked_array([values]), kind, name).combine_chunks()


def _as_moments(times: pa.Array) -> pa.Array:
    return pc.cast(pc.binary_join_element_wise("1970-01-01T", times, ""), pa.timestamp("us"))


# ---- errors


def _refuse_others(
    values: Iterable[Any], allowed: tuple[type, ...], kind: pa.DataType, name: str
) -> None:
    for one in values:
        if not isinstance(one, allowed):
            raise _mismatch(name, kind, one)


def _mismatch(name: str, kind: pa.DataType, value: object) -> InvalidInputError:
    found = type(value).__name__
    return InvalidInputError(
        f"a value does not fit the table: use a value of the column's type: column={name!r} "
        f"table_type={kind} value={str(value)[:80]!r} ({found})",
        kind="schema_mismatch",
        column=name,
        table_type=str(kind),
        incoming_type=found,
    )


def _lossy(name: str, kind: pa.DataType, source: pa.DataType, why: object) -> HoodooError:
    return InvalidInputError(
        "a value does not fit the column without loss: round or cast it, or write an Arrow table "
        f"of a wider type to widen the column: column={name!r} table_type={kind} "
        f"incoming_type={source} detail={why}",
        kind="lossy_value",
        column=name,
        table_type=str(kind),
        incoming_type=str(source),
    )


# ---- Rows of any form


def to_arrow_table(data: object, table_schema: Callable[[], pa.Schema] | None = None) -> pa.Table:
    """
    Convert incoming rows to an Arrow table.

    Values without a type take the table's type: all values of dicts, and object and float columns
    of pandas, which uses floats also because of a missing value.

    Args:
        data: Arrow: a Table, RecordBatch, RecordBatchReader, Dataset, or an object with
            ``__arrow_c_stream__``, such as a DuckDB relation. Dataframes: of pandas, without its
            row labels, or of polars, also a LazyFrame. Python: a mapping of column names to
            values, or an iterable of batches or of mappings.
        table_schema: Returns the table's own columns; called only for values without a type.

    Raises:
        InvalidInputError: The rows have another form, values have no common Arrow type, or they
            do not fit the table (``lossy_value``, ``schema_mismatch``).
    """
    try:
        return _taken(data, table_schema or _no_columns)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the rows cannot be converted to Arrow: correct the value: {error}", kind="data"
        ) from error


def _no_columns() -> pa.Schema:
    return pa.schema([])


def _taken(data: Any, table_schema: Callable[[], pa.Schema]) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if _is_a(data, "pandas", "DataFrame"):
        # Before the stream, which would add the row labels as a column.
        return _of_pandas(data, table_schema)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if _is_a(data, "pyarrow", "Dataset"):
        return data.to_table()
    if _is_a(data, "polars", "LazyFrame"):
        return pa.table(data.collect())
    if isinstance(data, Mapping):
        return _of_columns(data, table_schema())
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        rows = data if isinstance(data, Sequence) else list(data)
        if all(isinstance(row, Mapping) for row in rows):
            return typed_rows(rows, table_schema())
        if all(isinstance(row, pa.RecordBatch | pa.Table) for row in rows):
            return pa.concat_tables(_taken(one, table_schema) for one in rows)
    raise InvalidInputError(
        "rows of this class are not supported: pass an Arrow table, a DataFrame of pandas, polars "
        "or DuckDB, a dict of columns, a list of dicts, or the path of a file: "
        f"{type(data).__name__}",
        kind="data",
    )


def _is_a(data: object, package: str, name: str) -> bool:
    """Return whether a value is of a class of a package, without an import of the package."""
    return any(
        (kind.__module__.partition(".")[0], kind.__name__) == (package, name)
        for kind in type(data).__mro__
    )


def _of_columns(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    known = {each.name: each.type for each in schema}
    single = [name for name, values in columns.items() if _is_single(values)]
    if single:
        raise InvalidInputError(
            f"a dict maps each column to a list of its values, and {single[0]!r} has one value: "
            "write one row as a list of one dict: [{...}]",
            kind="data",
        )
    return pa.table(
        {
            name: typed_column(list(values), known.get(name), name)
            if isinstance(values, list | tuple)
            else pa.array(values)
            for name, values in columns.items()
        }
    )


def _is_single(values: object) -> bool:
    return isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__")


def _of_pandas(frame: Any, table_schema: Callable[[], pa.Schema]) -> pa.Table:
    untyped = [
        number
        for number, kind in enumerate(frame.dtypes)
        if str(kind) == "object" or getattr(kind, "kind", "") == "f"
    ]
    known = {each.name: each.type for each in table_schema()} if untyped else {}
    own = {n: str(frame.columns[n]) for n in untyped if str(frame.columns[n]) in known}
    objects = [n for n in own if str(frame.dtypes.iloc[n]) == "object"]
    kept = [n for n in range(len(frame.columns)) if n not in objects]
    # Timestamp objects become a timestamp column with nanoseconds.
    rows = pa.Table.from_pandas(frame.iloc[:, kept].infer_objects(), preserve_index=False)
    rows = rows.replace_schema_metadata(None)
    columns = dict(zip(kept, rows.columns, strict=True))
    for number, name in own.items():
        if number in columns:
            columns[number] = typed_floats(columns[number], known[name], name)
        else:
            values = frame.iloc[:, number].tolist()
            columns[number] = pa.chunked_array([typed_column(values, known[name], name)])
    names = [str(name) for name in frame.columns]
    return pa.Table.from_arrays([columns[n] for n in range(len(names))], names=names)
