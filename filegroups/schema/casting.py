"""
Convert rows to a schema: strictly for writes, by Hudi's promotions for reads.

``filegroups.schema.evolution`` decides about types; this module converts the values. Arrow's own
cast handles all flat types, except where Java's result differs: numbers that become text, and a
float that becomes a double through its text (0.1 stays 0.1). Nested types are split and rebuilt
here, because Arrow has neither rule and loses values of list views (pyarrow 26).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.evolution import (
    SHREDDED,
    UNKNOWN_UNIT,
    canonical_scalar,
    fits,
    fits_vector,
    is_list,
    is_variant,
    promotes,
    stored_in,
    stored_type,
    type_mismatch_error,
)
from filegroups.schema.java_text import java_text
from filegroups.schema.variant import variant_struct
from timeline.errors import CorruptTableError, HoodooError, InvalidInputError, UnsupportedTableError

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_DASHES = (8, 13, 18, 23)
_VARIANT_ROWS = 4_096  # Python objects of so many rows are a few megabytes


def normalise(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """
    Convert rows for a write to exactly this schema: order, types, missing columns as nulls.

    Columns that the schema does not name are left out.

    Shapes: table (n rows) -> (n rows); order kept.

    Raises:
        InvalidInputError: A value does not fit its column's type without loss (``lossy_value``), or
            the type cannot be converted (``schema_mismatch``).
    """
    return _shaped(table, schema, reading=False)


def refuse_null_elements(table: pa.Table) -> None:
    """
    Refuse lists with null elements: Java's writers fail on a file that has one (fmt 4.4).

    All readers accept them, so they are refused only if Java writes the table, too.

    Raises:
        InvalidInputError: There is one (``null_element``).
    """
    for each in table.schema:
        if pa.types.is_nested(each.type):
            for chunk in table.column(each.name).chunks:
                _refuse_null_elements_in(chunk, each.name)


def promote(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """
    Convert rows of a base file or a log block to the schema of a reader.

    Names match at every level. Columns and struct fields that the rows lack become null; those that
    the schema lacks are left out. Older types are promoted by Hudi's table, and as an ``alter
    table`` under schema on read may have stated. Lists of any Parquet form become
    ``list<element>``. For renamed columns, call ``Renaming.apply`` first.

    Shapes: table (n rows) -> (n rows); order kept.

    Raises:
        InvalidInputError: ``schema_mismatch`` or ``lossy_value``: no such promotion exists;
            ``unknown_time_unit``: the unit of timestamps is not known.
    """
    return _shaped(table, schema, reading=True)


def schema_mismatch_error(
    error: InvalidInputError, what: str, path: str, *, kind: str
) -> HoodooError:
    """
    Return the error for stored rows that do not fit the table's schema.

    Args:
        error: Of ``promote``.
        what: The kind of file, for the message.
        path: The file.
        kind: The error kind of such damage. Timestamps without a unit and shredded variants are not
            damage and keep their own kind.
    """
    message = f"{what} does not fit the table's schema: {path} ({error.message})"
    if error.kind not in (UNKNOWN_UNIT, SHREDDED):
        return CorruptTableError(message, kind=kind, path=path)
    fields = {name: error.fields[name] for name in ("column", "table_type", "stored_type")}
    advice = "read the other columns, or rewrite the column with the tool that wrote the file"
    return UnsupportedTableError(f"{message}; {advice}", kind=error.kind, path=path, **fields)


def to_stored_rows(table: pa.Table) -> pa.Table:
    """
    Return rows as a data file stores them: vectors as bytes, the rest unchanged.

    Shapes: table (n rows) -> (n rows); order kept.
    """
    for at, each in enumerate(table.schema):
        if not each.type.num_fields:
            continue  # a flat type is stored as it is
        kind = stored_type(each.type)
        if kind != each.type:
            column = cast_column(table.column(at), kind, each.name)
            table = table.set_column(at, each.with_type(kind), column)
    return table


def cast_column(
    column: pa.ChunkedArray, kind: pa.DataType, name: str, *, reading: bool = False
) -> pa.ChunkedArray:
    """
    Convert one column.

    Args:
        column: The values.
        kind: A stored type (``canonical_type``).
        name: For messages.
        reading: Allow every promotion of a reader, instead of a writer's.

    Raises:
        InvalidInputError: ``lossy_value`` or ``schema_mismatch``.
    """
    if column.type == kind:
        return column
    chunks = [_converted(chunk, kind, name, reading=reading) for chunk in column.chunks]
    if not chunks:
        # An impossible conversion must not depend on whether there are rows.
        chunks = [_converted(pa.array([], column.type), kind, name, reading=reading)]
    return pa.chunked_array(chunks, type=kind)


def _shaped(table: pa.Table, schema: pa.Schema, *, reading: bool) -> pa.Table:
    if table.schema.equals(schema):
        return table.replace_schema_metadata(None) if table.schema.metadata else table
    columns = []
    names = set(table.schema.names)
    for each in schema:
        if each.name not in names:
            nulls = pa.nulls(table.num_rows, each.type)
            columns.append(pa.chunked_array([nulls], type=each.type))
            continue
        column = table.column(each.name)
        columns.append(cast_column(column, each.type, each.name, reading=reading))
    return pa.Table.from_arrays(columns, schema=schema)


def _converted(values: pa.Array, kind: pa.DataType, name: str, *, reading: bool) -> pa.Array:
    values = _bare(values)
    source, types = values.type, pa.types
    if source == kind:
        return values
    if types.is_null(source):
        return pa.nulls(len(values), kind)
    if types.is_struct(kind) and types.is_struct(source):
        return _struct(values, kind, name, reading=reading)
    if not reading and is_variant(kind) and _is_text(source):
        return _variants(values, kind)
    if types.is_fixed_size_list(kind):
        return _vectors(values, kind, name)
    if types.is_fixed_size_list(source) and stored_type(source) == kind:
        return _vector_bytes(values)
    if types.is_list(kind) and is_list(source):
        offsets, inner = _list_parts(values)
        made = _converted(inner, kind.value_type, name + ".element", reading=reading)
        return pa.ListArray.from_arrays(offsets, made, type=kind)
    if types.is_map(kind) and types.is_map(source):
        return _map(values, kind, name, reading=reading)
    if types.is_nested(kind) or types.is_nested(source):
        raise type_mismatch_error(name, kind, source)
    return _flat(values, kind, name, reading=reading)


def _flat(values: pa.Array, kind: pa.DataType, name: str, *, reading: bool) -> pa.Array:
    if reading and (stored := stored_in(values.type, kind, name)) is not None:
        return values.view(stored)
    source = values.type
    promoted = promotes(source, kind, stated=reading)
    if not (promoted or fits(source, kind) or (reading and _same_bits(source, kind))):
        raise type_mismatch_error(name, kind, source)
    try:
        if promoted and pa.types.is_string(kind) and not _is_text(source):
            return java_text(values)
        if pa.types.is_float32(source) and pa.types.is_float64(kind):
            # 0.1 stays 0.1, as in Java: for an older file and for incoming rows alike.
            return pc.cast(pc.cast(values, pa.string()), kind)
        if pa.types.is_integer(source) and pa.types.is_decimal(kind):
            return pc.cast(pc.cast(values, pa.decimal128(19, 0)), kind)
        # A reader uses the nearest number, as Java does; a writer gets an error if digits are lost.
        nearest = reading and promoted and pa.types.is_floating(kind)
        return pc.cast(values, kind, safe=not nearest)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            "a value does not fit the column without loss; round or cast it before writing: "
            f"column={name!r} table_type={kind} incoming_type={source} detail={error}",
            kind="lossy_value",
            column=name,
            table_type=str(kind),
            incoming_type=str(source),
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise type_mismatch_error(name, kind, source) from error


def _same_bits(source: pa.DataType, kind: pa.DataType) -> bool:
    """
    Return whether a file may store a date or time as a bare number, or the other way round.

    A table whose newest writer is older than Hudi 1.1 declares timestamps as numbers; INT96 has no
    zone.
    """
    types = pa.types
    if types.is_timestamp(source) and types.is_timestamp(kind):
        return bool(source.unit == "ns")
    pairs = {
        (pa.int32(), pa.date32()),
        (pa.int32(), pa.time32("ms")),
        (pa.int64(), pa.time64("us")),
    }
    if (source, kind) in pairs or (kind, source) in pairs:
        return True
    return bool(kind == pa.int64() and types.is_timestamp(source) and source.unit in ("ms", "us"))


def _struct(values: pa.Array, kind: pa.DataType, name: str, *, reading: bool) -> pa.Array:
    source = values.type
    held = {source.field(i).name: i for i in range(source.num_fields)}
    if reading and is_variant(kind) and "typed_value" in held:
        raise InvalidInputError(
            "the file contains a variant as typed columns (shredded): write the column "
            f"unshredded: column={name!r}",
            kind=SHREDDED,
            column=name,
            table_type="variant",
            stored_type=str(source),
        )
    if not reading:
        wanted = {each.name for each in kind}
        foreign = [one for one in held if one not in wanted]
        if foreign:
            raise type_mismatch_error(f"{name}.{foreign[0]}", kind, source)
    children = [
        _converted(values.field(held[each.name]), each.type, f"{name}.{each.name}", reading=reading)
        if each.name in held
        else pa.nulls(len(values), each.type)
        for each in kind
    ]
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _map(values: pa.Array, kind: pa.DataType, name: str, *, reading: bool) -> pa.Array:
    offsets, low, high = _offsets(values)
    keys = _converted(
        values.keys.slice(low, high - low), kind.key_type, name + ".key", reading=reading
    )
    items = _converted(
        values.items.slice(low, high - low), kind.item_type, name + ".value", reading=reading
    )
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind)


def _vectors(values: pa.Array, kind: pa.FixedSizeListType, name: str) -> pa.Array:
    """
    Convert values to a table's vectors, from their bytes or from lists; nulls stay.

    Shapes: (n,) -> (n,), all of the vector's dimension.

    Raises:
        InvalidInputError: The values are not vectors (``schema_mismatch``), have another dimension
            (``vector_length``), contain a null (``null_element``), or a number that the element's
            type cannot hold (``lossy_value``).
    """
    source, size = values.type, kind.list_size
    if not fits_vector(source, kind):
        raise type_mismatch_error(name, kind, source)
    mask = values.is_null() if values.null_count else None
    if pa.types.is_fixed_size_binary(source):
        whole = pc.fill_null(values, pa.scalar(bytes(source.byte_width), source))
        data = whole.buffers()[1].slice(whole.offset * source.byte_width)
        numbers = pa.Array.from_buffers(kind.value_type, len(values) * size, [None, data])
        return pa.FixedSizeListArray.from_arrays(numbers, type=kind, mask=mask)
    lengths = pc.list_value_length(values)
    if not pc.all(pc.equal(lengths, size)).as_py() and pc.any(pc.not_equal(lengths, size)).as_py():
        found = pc.unique(lengths.drop_null()).to_pylist()
        raise InvalidInputError(
            "a vector has another number of elements than its column: correct its length: "
            f"column={name!r} dimension={size} found={found[:10]}",
            kind="vector_length",
            column=name,
            dimension=size,
        )
    inner = values.drop_null().flatten()
    if inner.null_count:
        raise InvalidInputError(
            f"a vector has a null element; write a number or a null vector: column={name!r}",
            kind="null_element",
            column=name,
        )
    numbers = _vector_numbers(inner, kind.value_type, name)
    if mask is not None:
        places = np.repeat(np.cumsum(np.asarray(pc.invert(mask))) - 1, size).clip(0) * size
        places += np.tile(np.arange(size), len(values))
        filler = pa.array([0] * size, kind.value_type)
        numbers = (numbers if len(numbers) else filler).take(pa.array(places))
    return pa.FixedSizeListArray.from_arrays(numbers, type=kind, mask=mask)


def _vector_numbers(numbers: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert numbers: floats are rounded, as by Spark's cast; integers must be exact."""
    try:
        return pc.cast(_bare(numbers), kind, safe=not pa.types.is_floating(kind))
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            "a vector has a number that its column cannot hold: round or scale it: "
            f"column={name!r} element_type={kind} detail={error}",
            kind="lossy_value",
            column=name,
            table_type=str(kind),
            incoming_type=str(numbers.type),
        ) from error


def _vector_bytes(values: pa.Array) -> pa.Array:
    """Return vectors as the bytes in a file, little-endian. Shapes: (n,) -> (n,)."""
    kind = stored_type(values.type)
    numbers = values.values.slice(values.offset * values.type.list_size)
    data = numbers.buffers()[1]
    if data is None or not len(values):
        return pa.nulls(len(values), kind)
    data = data.slice(numbers.offset * values.type.value_type.bit_width // 8)
    whole = pa.Array.from_buffers(kind, len(values), [None, data])
    return pc.if_else(values.is_valid(), whole, None) if values.null_count else whole


def _variants(values: pa.Array, kind: pa.StructType) -> pa.Array:
    """
    Convert JSON texts to variants.

    Rows are converted one by one: pyarrow cannot encode variants, and each text has field names of
    its own. Only rows of a user come here; services copy variants as bytes. At most
    ``_VARIANT_ROWS`` rows are Python objects at a time.
    """
    parts = []
    for start in range(0, len(values) or 1, _VARIANT_ROWS):
        texts = values.slice(start, _VARIANT_ROWS).to_pylist()
        found = [None if one is None else variant_struct(one) for one in texts]
        parts.append(pa.array(found, kind))
    return pa.concat_arrays(parts)


def _list_parts(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return offsets (n + 1,), in which a null list starts with null, and their elements."""
    types, kind = pa.types, values.type
    if types.is_list(kind) or types.is_large_list(kind):
        offsets, low, high = _offsets(values)
        return offsets, values.values.slice(low, high - low)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0)).astype(np.int64)
    nulls = np.asarray(values.is_null())
    lengths[nulls] = 0
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    # ``flatten`` follows the views and leaves out the elements of null lists.
    return _marked(ends, nulls), values.flatten()


def _offsets(values: pa.Array) -> tuple[pa.Array, int, int]:
    """Return offsets from zero, and the range of the elements they cover."""
    found = np.asarray(values.offsets).astype(np.int64)
    low, high = (int(found[0]), int(found[-1])) if len(found) else (0, 0)
    ends = (found - low).astype(np.int32) if len(found) else np.zeros(1, np.int32)
    return _marked(ends, np.asarray(values.is_null())), low, high


def _marked(ends: Any, nulls: Any) -> pa.Array:
    if not nulls.any():
        return pa.array(ends)
    return pa.array(ends, mask=np.append(nulls, False))


def _bare(values: pa.Array) -> pa.Array:
    """Return the values without dictionary, run-length or extension around them."""
    while True:
        kind = values.type
        if pa.types.is_dictionary(kind):
            values = values.dictionary_decode()
        elif pa.types.is_run_end_encoded(kind):
            values = pc.run_end_decode(values)
        elif isinstance(kind, pa.BaseExtensionType):
            named = kind.extension_name
            values = values.storage
            if named == "arrow.uuid":
                values = uuid_texts(values)
            elif named == "arrow.bool8":
                values = pc.not_equal(values, 0)
        else:
            return values


def uuid_texts(values: pa.Array) -> pa.Array:
    """Format sixteen-byte values as 8-4-4-4-12 digits; nulls stay. Shapes: (n,) -> (n,)."""
    count = len(values)
    filled = pc.fill_null(values, pa.scalar(bytes(16), pa.binary(16)))
    raw = np.frombuffer(filled.buffers()[1], np.uint8)[filled.offset * 16 :][: count * 16]
    digits = np.stack([_HEX[raw >> 4], _HEX[raw & 15]], axis=-1).reshape(count, 32)
    letters = np.full((count, 36), ord("-"), np.uint8)
    letters[:, [place for place in range(36) if place not in _UUID_DASHES]] = digits
    ends = pa.py_buffer(np.arange(0, 36 * (count + 1), 36, dtype=np.int32))
    text = pa.StringArray.from_buffers(count, ends, pa.py_buffer(letters.tobytes()))
    return pc.if_else(values.is_null(), None, text) if values.null_count else text


def _refuse_null_elements_in(values: pa.Array, name: str) -> None:
    kind = values.type
    if pa.types.is_list(kind):
        inner = values.flatten()
        if inner.null_count:
            raise InvalidInputError(
                "a list has a null element, which the table's Java writers cannot rewrite: "
                f"remove it or write another value: column={name!r}",
                kind="null_element",
                column=name,
            )
        _refuse_null_elements_in(inner, name + ".element")
    elif pa.types.is_map(kind):
        _, low, high = _offsets(values)
        _refuse_null_elements_in(values.items.slice(low, high - low), name + ".value")
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            child = kind.field(number)
            if pa.types.is_nested(child.type):
                _refuse_null_elements_in(values.field(number), f"{name}.{child.name}")


def _is_text(kind: pa.DataType) -> bool:
    return canonical_scalar(kind) in (pa.string(), pa.binary())
