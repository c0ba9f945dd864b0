"""
Rules for changes of a column's type: Hudi's table of promotions, and growth in nested types.

The rules are pure; ``filegroups.schema.casting`` converts values. The table was tested against Java
Hudi 1.2.0. A writer's wider type becomes the table's, a narrower one is converted to it. Text and
bytes never replace each other, and dates never become text by a write. Changes that only schema on
read allows (decimals, dates) have their own table, because a user states them; they never follow
from incoming rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from timeline.errors import InvalidInputError

NESTING_MAX = 64  # levels of a type; Java's own recursion fails soon above

#: Types to which a file's or a batch's type converts without loss of meaning.
PROMOTIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "int": frozenset({"long", "float", "double", "string"}),
        "long": frozenset({"float", "double", "string"}),
        "float": frozenset({"double", "string"}),
        "double": frozenset({"string"}),
        "string": frozenset({"bytes"}),
        "bytes": frozenset({"string"}),
        "date": frozenset({"string"}),
    }
)

#: Types that a table's column may become because incoming rows are wider.
WIDENINGS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {name: PROMOTIONS[name] for name in ("int", "long", "float", "double")}
)

#: Further types to which an ``alter table`` under schema on read may have changed a column.
STATED_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "int": frozenset({"decimal"}),
        "long": frozenset({"decimal"}),
        "float": frozenset({"decimal"}),
        "double": frozenset({"decimal"}),
        "decimal": frozenset({"decimal", "string"}),
        "string": frozenset({"date", "decimal"}),
    }
)

#: Error kind for values whose unit of time is not known.
UNKNOWN_UNIT: Final = "unknown_time_unit"

#: Error kind for variants that a file stores as typed columns.
SHREDDED: Final = "shredded_variant"

#: Arrow's extension types that hold plain Hudi types -> the stored type.
EXTENSIONS: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {"arrow.uuid": pa.string(), "arrow.json": pa.string(), "arrow.bool8": pa.bool_()}
)

_INT_BITS: Final[Mapping[pa.DataType, int]] = MappingProxyType(
    {
        pa.int8(): 8,
        pa.int16(): 16,
        pa.int32(): 32,
        pa.int64(): 64,
        pa.uint8(): 9,
        pa.uint16(): 17,
        pa.uint32(): 33,
    }
)  # bits a signed type needs to hold every value
_WORDS: Final[Mapping[pa.DataType, str]] = MappingProxyType(
    {
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.binary(): "bytes",
        pa.date32(): "date",
    }
)
#: Number types of a vector by their name in Hudi; a file stores them in sequence, little-endian.
VECTOR_ELEMENTS: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {"FLOAT": pa.float32(), "DOUBLE": pa.float64(), "INT8": pa.int8()}
)
_VECTOR = re.compile(r"VECTOR\s*\(\s*([1-9]\d{0,8})\s*(?:,\s*([A-Z0-9]+)\s*)?\)")
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class MissingColumns:
    """The treatment of a table's columns that the incoming rows lack."""

    fill: bool = False  # stay, null in these rows (hoodie.write.set.null.for.missing.columns)
    drop: bool = False  # leave the table (hoodie....schema.allow.auto.evolution.column.drop)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRules:
    """The changes to a table's schema that incoming rows may make."""

    missing: MissingColumns = field(default_factory=MissingColumns)
    ordering: frozenset[str] = frozenset()  # never dropped, and never text for numbers
    keys: frozenset[str] = frozenset()  # of keys, folders and buckets, whose texts are stored
    required: frozenset[str] = frozenset()  # never dropped; a later step checks that rows have them


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A write's change of a column: another type, or a new or removed column (None)."""

    column: str  # dotted, inside of nested types
    before: str | None
    after: str | None

    @property
    def text(self) -> str:
        """A line of text for users."""
        if self.before is None:
            return f"new column {self.column}: {self.after}"
        if self.after is None:
            return f"column {self.column} left the schema: {self.before}"
        return f"column {self.column} is {self.after}, was {self.before}"


def schema_changes(before: pa.Schema, after: pa.Schema) -> tuple[ColumnChange, ...]:
    """Return the differences in the order of the columns; fields inside structs separately."""
    return tuple(_differences(list(before), list(after), ""))


def _differences(
    before: Iterable[pa.Field], after: Iterable[pa.Field], prefix: str
) -> Iterator[ColumnChange]:
    old = {each.name: each.type for each in before}
    new = {each.name: each.type for each in after}
    for name in dict.fromkeys((*old, *new)):
        was, now, path = old.get(name), new.get(name), prefix + name
        if was == now:
            continue
        if was is None or now is None or not _nested_alike(was, now):
            yield ColumnChange(
                column=path,
                before=None if was is None else str(was),
                after=None if now is None else str(now),
            )
        else:
            yield from _differences(_inner(was), _inner(now), f"{path}.")


def _nested_alike(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(one.id == other.id and pa.types.is_nested(one))


def _inner(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type, named as in messages."""
    if pa.types.is_map(kind):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    if is_list(kind):
        return [pa.field("element", kind.value_type)]
    return list(kind)


def unwrapped(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, without dictionary, run-length or known extension."""
    while True:
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType) and kind.extension_name in EXTENSIONS:
            kind = EXTENSIONS[kind.extension_name]
        else:
            return kind


def canonical_type(kind: pa.DataType, name: str, level: int = 0) -> pa.DataType:
    """
    Return the type that a table stores for an incoming type.

    Args:
        kind: Any Arrow type.
        name: The column, for the message.
        level: Its nesting depth.

    Raises:
        InvalidInputError: No Hudi type holds its values (``unsupported_type``).
    """
    kind = unwrapped(kind)
    if level > NESTING_MAX:
        raise _unsupported(name, kind, f"types nest at most {NESTING_MAX} levels deep")
    if isinstance(kind, pa.BaseExtensionType):
        advice = f"write the storage of the extension type {kind.extension_name!r} instead"
        raise _unsupported(name, kind, advice)
    simple = canonical_scalar(kind)
    if simple is not None:
        return simple
    if is_list(kind):
        return pa.list_(
            pa.field("element", canonical_type(kind.value_type, name + ".element", level + 1))
        )
    if pa.types.is_map(kind):
        if canonical_type(kind.key_type, name + ".key", level + 1) != pa.string():
            raise _unsupported(name, kind, "map keys must be strings")
        return pa.map_(pa.string(), canonical_type(kind.item_type, name + ".value", level + 1))
    if pa.types.is_struct(kind) and kind.num_fields:
        children = list(kind)
        _check_children(children, name)
        return pa.struct(
            [
                pa.field(each.name, canonical_type(each.type, f"{name}.{each.name}", level + 1))
                for each in children
            ]
        )
    raise _unsupported(name, kind, _ADVICE.get(str(kind), "cast the column before writing"))


_NO_TIME = "Spark cannot read a time of day; cast the column to text or a number"
_ADVICE = {
    "halffloat": "half floats are not supported; cast the column to float32",
    "uint64": "cast the column to int64 or decimal(20, 0)",
    "time32[s]": _NO_TIME,
    "time32[ms]": _NO_TIME,
    "time64[us]": _NO_TIME,
    "time64[ns]": _NO_TIME,
    "null": "a column with only nulls has no type; remove it or cast it",
}


def column_type(column: pa.Field) -> pa.DataType:
    """
    Return the stored type of a new column: its canonical type, or as its metadata declares.

    As in Hudi, ``hudi_type`` of a list column's metadata makes it a vector: ``VECTOR(128)`` of
    FLOAT, or ``VECTOR(128, DOUBLE)`` and ``VECTOR(128, INT8)``.

    Raises:
        InvalidInputError: The type or the declaration is not supported (``unsupported_type``).
    """
    text = (column.metadata or {}).get(b"hudi_type", b"").decode(errors="replace").strip()
    if not text.upper().startswith("VECTOR"):
        return canonical_type(column.type, column.name)
    match = _VECTOR.fullmatch(text.upper())
    element = VECTOR_ELEMENTS.get(match[2] or "FLOAT") if match else None
    if match is None or element is None:
        advice = f"VECTOR(dimension) or VECTOR(dimension, FLOAT|DOUBLE|INT8), not {text!r}"
        raise _unsupported(column.name, column.type, advice)
    vector = pa.list_(pa.field("element", element), int(match[1]))
    if not fits_vector(column.type, vector):
        raise type_mismatch_error(column.name, vector, column.type)
    return vector


def canonical_scalar(kind: pa.DataType) -> pa.DataType | None:
    """Return the stored type of a flat type; None if there is none or the type is nested."""
    types = pa.types
    if kind in _INT_BITS:
        return pa.int32() if _INT_BITS[kind] <= 32 else pa.int64()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_date(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind):
        return kind
    return kind if types.is_fixed_size_binary(kind) else None


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is any of Arrow's lists."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """
    Return whether values of a flat type fit another type unchanged.

    If only the resolution differs (timestamps), the cast of the values decides later.
    """
    types = pa.types
    source = unwrapped(source)
    if source == target or types.is_null(source):
        return True
    if source in _INT_BITS:
        if target in _INT_BITS:
            return _INT_BITS[source] <= _INT_BITS[target]
        return bool(types.is_float64(target) and _INT_BITS[source] <= 53)
    if types.is_timestamp(source) and types.is_timestamp(target):
        return bool(source.tz) == bool(target.tz)
    if types.is_time(source) and types.is_time(target):
        return True
    if types.is_decimal(source) and types.is_decimal(target):
        whole = source.precision - source.scale <= target.precision - target.scale
        return bool(whole and source.scale <= target.scale)
    if types.is_floating(source) and types.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    if types.is_fixed_size_binary(source) and types.is_binary(target):
        return True
    return bool(canonical_scalar(source) == target)


def stored_in(source: pa.DataType, target: pa.DataType, name: str) -> pa.DataType | None:
    """
    Return the true type of a file's numbers if its label differs from the table's type.

    Writers before Hudi 1.1 wrote ``timestamp-millis`` under the label of microseconds, and local
    timestamps as bare numbers. The table's schema decides, as in Java since 1.1. Numbers labelled
    as microseconds are milliseconds if the table says so. Bare numbers are local timestamps in the
    table's unit. Any other difference of labels is a true one.

    Args:
        source: The file's type.
        target: The table's type, of the timestamp column that is read.
        name: The column, for the message.

    Returns:
        The type of the stored bits; None if the file's label is true.

    Raises:
        InvalidInputError: The unit is not known (``unknown_time_unit``): bare numbers if the table
            has timestamps in UTC; or microseconds if it has milliseconds, one of them local. Java
            1.2 reads those differently from base files and from logs.
    """
    types = pa.types
    if not types.is_timestamp(target) or target.unit not in ("ms", "us"):
        return None
    if source == pa.int64():
        if not target.tz:
            return target
        raise _unknown_unit(source, target, name)
    if not types.is_timestamp(source) or (source.unit, target.unit) != ("us", "ms"):
        return None
    if source.tz and target.tz:
        return target
    raise _unknown_unit(source, target, name)


def _unknown_unit(source: pa.DataType, target: pa.DataType, name: str) -> InvalidInputError:
    return InvalidInputError(
        "the unit of these times is unknown: cast the column to a timestamp with a unit: "
        f"column={name!r} table_type={target} stored_type={source}",
        kind=UNKNOWN_UNIT,
        column=name,
        table_type=str(target),
        stored_type=str(source),
    )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """
    Return the type of a column in a data file: a vector is its bytes (fmt 4.4).

    In a table's schema a list of fixed size is a vector; ``canonical_type`` makes no other.
    """
    types = pa.types
    if types.is_fixed_size_list(kind):
        return pa.binary(kind.list_size * kind.value_type.bit_width // 8)
    if types.is_list(kind):
        inner = stored_type(kind.value_type)
        return kind if inner == kind.value_type else pa.list_(pa.field("element", inner))
    if types.is_map(kind):
        inner = stored_type(kind.item_type)
        return kind if inner == kind.item_type else pa.map_(kind.key_type, inner)
    if types.is_struct(kind):
        return pa.struct([each.with_type(stored_type(each.type)) for each in kind])
    return kind


def needs_repair(kind: pa.DataType) -> bool:
    """Return whether files of writers before Hudi 1.1 may store a type under another label."""
    if pa.types.is_timestamp(kind):
        return kind.unit == "ms" or not kind.tz
    return any(needs_repair(kind.field(number).type) for number in range(kind.num_fields))


def is_variant(kind: pa.DataType) -> bool:
    """Return whether a type is Hudi's storage of a VARIANT: two byte strings of these names."""
    return bool(
        pa.types.is_struct(kind)
        and {each.name: each.type for each in kind}
        == {"metadata": pa.binary(), "value": pa.binary()}
    )


def fits_vector(source: pa.DataType, vector: pa.FixedSizeListType) -> bool:
    """Return whether values can be vectors of a table: lists of numbers, or their bytes."""
    source = unwrapped(source)
    if is_list(source):
        element = unwrapped(source.value_type)
        types = pa.types
        return bool(
            types.is_integer(element) or types.is_floating(element) or types.is_null(element)
        )
    return bool(source == stored_type(vector))


def promotes(source: pa.DataType, target: pa.DataType, *, stated: bool = False) -> bool:
    """
    Return whether Hudi converts a flat type to another between a file and a newer schema.

    Args:
        source: The older or incoming type.
        target: The requested type.
        stated: Whether to include what schema on read allows.
    """
    plain = canonical_scalar(unwrapped(source))
    if plain is None:
        return False
    mine, theirs = _word(plain), _word(target)
    if theirs in PROMOTIONS.get(mine, ()):
        return True
    return stated and theirs in STATED_PROMOTIONS.get(mine, ())


def evolved_type(
    mine: pa.DataType, incoming: pa.DataType, name: str, rules: SchemaRules, level: int = 0
) -> pa.DataType:
    """
    Return the type of a column after rows of another type were written to it.

    Lists, maps and structs evolve inside; new struct fields are last, in their order.

    Args:
        mine: The column's type in the table.
        incoming: Its type in the rows.
        name: The column, for messages.
        rules: Further allowed changes.
        level: Its nesting depth.

    Raises:
        InvalidInputError: Neither type can hold the other's values (``schema_mismatch``), a struct
            lacks a field (``missing_column``), or a new field's name or type is bad.
    """
    incoming = unwrapped(incoming)
    if mine == incoming or pa.types.is_null(incoming):
        return mine
    if level > NESTING_MAX:
        raise _unsupported(name, incoming, f"types nest at most {NESTING_MAX} levels deep")
    if pa.types.is_struct(mine) and pa.types.is_struct(incoming):
        return _evolved_struct(mine, incoming, name, rules, level)
    if is_variant(mine) and canonical_scalar(incoming) == pa.string():
        return mine  # JSON texts
    if pa.types.is_fixed_size_list(mine):
        if fits_vector(incoming, mine):
            return mine
        raise type_mismatch_error(name, mine, incoming)
    if pa.types.is_list(mine) and is_list(incoming):
        element = evolved_type(
            mine.value_type, incoming.value_type, name + ".element", rules, level + 1
        )
        return mine if element == mine.value_type else pa.list_(pa.field("element", element))
    if pa.types.is_map(mine) and pa.types.is_map(incoming):
        if not fits(incoming.key_type, mine.key_type):
            raise type_mismatch_error(name + ".key", mine.key_type, incoming.key_type)
        value = evolved_type(mine.item_type, incoming.item_type, name + ".value", rules, level + 1)
        return mine if value == mine.item_type else pa.map_(pa.string(), value)
    return _evolved_scalar(mine, incoming, name, rules)


def _evolved_scalar(
    mine: pa.DataType, incoming: pa.DataType, name: str, rules: SchemaRules
) -> pa.DataType:
    if fits(incoming, mine) or promotes(incoming, mine):
        return mine
    plain = canonical_scalar(incoming)
    if plain is None:
        raise type_mismatch_error(name, mine, incoming)
    wider = _word(plain) in WIDENINGS.get(_word(mine), ())
    if pa.types.is_decimal(mine) and pa.types.is_decimal(plain):
        wider = fits(mine, plain)
    if not wider:
        raise type_mismatch_error(name, mine, incoming)
    if name in rules.keys and changes_texts(mine, plain):
        raise InvalidInputError(
            "record keys or folder names contain this column, and the wider type has another "
            f"text (7 would become 7.0): cast it before you write: column={name!r} "
            f"table_type={mine} incoming_type={incoming}",
            kind="schema_mismatch",
            column=name,
            table_type=str(mine),
            incoming_type=str(incoming),
        )
    if name in rules.ordering and pa.types.is_string(plain):
        raise InvalidInputError(
            "this column decides the order of the rows, and texts are ordered differently from "
            f"numbers: cast it before you write: column={name!r} table_type={mine} "
            f"incoming_type={incoming}",
            kind="schema_mismatch",
            column=name,
            table_type=str(mine),
            incoming_type=str(incoming),
        )
    return plain


def changes_texts(before: pa.DataType, after: pa.DataType) -> bool:
    """
    Return whether a value that both flat types hold has another text in each (fmt 4.1).

    An integer gets a decimal point as a floating number, a decimal more digits by its scale. Longer
    integers, doubles instead of floats, and texts instead of numbers keep the letters.
    """
    types = pa.types
    if types.is_decimal(before) and types.is_decimal(after):
        return bool(before.scale != after.scale)
    return bool(
        types.is_integer(before) and not (types.is_integer(after) or types.is_string(after))
    )


def _evolved_struct(
    mine: pa.DataType, incoming: pa.DataType, name: str, rules: SchemaRules, level: int
) -> pa.DataType:
    theirs = list(incoming)
    _check_children(theirs, name)
    offered = {each.name: each for each in theirs}
    known = {each.name for each in mine}
    folded = {each.lower() for each in known}
    fields = []
    for each in mine:
        if each.name in offered:
            kind = evolved_type(
                each.type, offered[each.name].type, f"{name}.{each.name}", rules, level + 1
            )
            fields.append(pa.field(each.name, kind))
        elif retains_column(f"{name}.{each.name}", rules, sorted(offered.keys() - known)):
            fields.append(each)
    for each in theirs:
        if each.name not in known:
            if each.name.lower() in folded:
                raise bad_name_error(f"{name}.{each.name}", "differs from another only by case")
            path = f"{name}.{each.name}"
            fields.append(pa.field(each.name, canonical_type(each.type, path, level + 1)))
    made = pa.struct(fields)
    return mine if made == mine else made


def retains_column(name: str, rules: SchemaRules, new: Iterable[str]) -> bool:
    """
    Return whether a column of the table that the rows lack stays in the schema.

    Args:
        name: The column, dotted inside of nested types.
        rules: The allowed changes.
        new: The other names that the rows have and the table lacks, for the error.

    Raises:
        InvalidInputError: No option decides about it (``missing_column``).
    """
    if name in rules.required:
        return True
    if rules.missing.drop and name not in rules.ordering:
        return False
    if rules.missing.fill:
        return True
    names = list(new)
    near = get_close_matches(name.rpartition(".")[2], names, n=1)
    hint = f"did you mean {near[0]} -> {name}? Rename it, or " if near else ""
    others = f", and have {names}, which the table lacks" if names else ""
    raise InvalidInputError(
        f"the rows lack a column of the table{others}: {hint}add it, or let it become null "
        "(hoodie.write.set.null.for.missing.columns=true), or let it be dropped "
        f"(hoodie.datasource.write.schema.allow.auto.evolution.column.drop=true): column={name!r}",
        kind="missing_column",
        column=name,
    )


def type_mismatch_error(
    name: str, table_type: pa.DataType, incoming: pa.DataType
) -> InvalidInputError:
    """Return the error for a type that does not fit, with both types."""
    return InvalidInputError(
        f"the column's type does not fit the table: cast it before you write: column={name!r} "
        f"table_type={table_type} incoming_type={incoming}",
        kind="schema_mismatch",
        column=name,
        table_type=str(table_type),
        incoming_type=str(incoming),
    )


def check_avro_name(name: str) -> None:
    """
    Refuse a name that is not valid in Avro, and so not in Hudi.

    Raises:
        InvalidInputError: ``bad_column_name``.
    """
    if not _AVRO_NAME.fullmatch(name):
        raise bad_name_error(
            name, "may only have letters, digits and underscores and must not start with a digit"
        )


def bad_name_error(name: str, why: str) -> InvalidInputError:
    """Return the error for a bad column name."""
    return InvalidInputError(
        f"the column's name {why}; rename it: column={name!r}", kind="bad_column_name", column=name
    )


def _check_children(children: list[pa.Field], name: str) -> None:
    seen: set[str] = set()
    for each in children:
        check_avro_name(each.name)
        if each.name.lower() in seen:
            raise bad_name_error(f"{name}.{each.name}", "occurs twice (case does not count)")
        seen.add(each.name.lower())


def _word(kind: pa.DataType) -> str:
    return "decimal" if pa.types.is_decimal(kind) else _WORDS.get(kind, "")


def _unsupported(name: str, kind: pa.DataType, advice: str) -> InvalidInputError:
    return InvalidInputError(
        f"a Hudi table cannot store this type; {advice}: column={name!r} type={kind}",
        kind="unsupported_type",
        column=name,
        incoming_type=str(kind),
    )
