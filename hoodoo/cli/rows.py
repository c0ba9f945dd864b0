"""Rows for people and programs: a table of the width of the screen, or JSON lines."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.cells import cell_len, set_cell_size

from filegroups.schema.evolution import is_list, is_variant
from filegroups.schema.variant import variant_json
from hoodoo.cli.texts import compact_json
from timeline.errors import CorruptTableError

# ---- Rows as JSON lines, column by column, without a Python loop over rows of plain types
# Timestamps become ISO 8601 with their zone, dates ISO, decimals and 64-bit integers JSON
# numbers, binary base64, structs and maps objects. Arrow has no kernel for binary columns and
# for texts that need escapes, so Python converts these values.

#: A regular expression of Arrow for texts that JSON has to escape.
NEEDS_ESCAPE = (
    "[^ -!#-\\[\\]-~\u00a0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\U0010ffff]"
)

_NOT_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def json_lines(batch: pa.RecordBatch) -> pa.Array:
    """
    Return one JSON object for each row.

    Shapes: batch (n rows); result (n,) string in the same order.
    """
    if batch.num_columns == 0:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    parts: list[Any] = []
    for number, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        parts.append(("{" if number == 0 else ",") + compact_json(field.name) + ":")
        parts.append(pc.fill_null(json_values(column), "null"))
    return pc.binary_join_element_wise(*parts, "}", "")


def json_values(column: pa.Array) -> pa.Array:
    """Return each value as JSON; null stays null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return json_values(column.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(column.cast(pa.string()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_timestamp(kind):
        return _quoted(_iso(column))
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if is_variant(kind):
        return _variants(column)
    if pa.types.is_struct(kind):
        return _struct(column)
    if pa.types.is_map(kind):
        return _map(column)
    if is_list(kind):
        return _list(column)
    texts = [None if value is None else compact_json(_plain(value)) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def _variants(column: pa.StructArray) -> pa.Array:
    """Return variants as JSON texts; other values stay structs."""
    texts = [None if one is None else _variant_text(one) for one in column.to_pylist()]
    shown = _strings(pa.array(texts, pa.string()))
    return pc.coalesce(shown, _struct(column)) if shown.null_count else shown


def with_variants(value: Any) -> Any:
    """Return a value in which each variant, at any level, is its JSON text."""
    if isinstance(value, dict):
        if (text := _variant_text(value)) is not None:
            return text
        return {key: with_variants(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_variants, value))
    return value


#: The mark of a change by its ``op``.
CHANGE_SIGNS = {"i": "+", "u": "~", "d": "-"}


def change_text(change: Mapping[str, Any]) -> str:
    """Return the columns of an updated row that differ, with both values, else the whole row."""
    old, new = change["before"], change["after"]
    if old is None or new is None:
        return ", ".join(f"{name}: {value}" for name, value in (old or new or {}).items())
    changed = (name for name in new if old[name] != new[name])
    return ", ".join(f"{name}: {old[name]} -> {new[name]}" for name in changed)


def _variant_text(value: dict[str, Any]) -> str | None:
    """Return the JSON text of a variant; None for other structs and damaged variants."""
    metadata, data = value.get("metadata"), value.get("value")
    if len(value) != 2 or not isinstance(metadata, bytes) or not isinstance(data, bytes):
        return None
    with suppress(CorruptTableError):
        return variant_json(metadata, data)
    return None


def _struct(column: pa.StructArray) -> pa.Array:
    parts: list[Any] = []
    for number, child in enumerate(column.type):
        parts.append(("{" if number == 0 else ",") + compact_json(child.name) + ":")
        parts.append(pc.fill_null(json_values(column.field(number)), "null"))
    texts = pc.binary_join_element_wise(*parts, "}", "")
    return pc.if_else(column.is_valid(), texts, None)


def _list(column: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return _joined(column, lengths, json_values(column.flatten()), "[]")


def _map(column: pa.MapArray) -> pa.Array:
    as_list = pa.ListArray.from_arrays(
        column.offsets, pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"])
    )
    entries = pc.if_else(column.is_valid(), as_list, None)
    lengths = pc.fill_null(pc.list_value_length(entries), 0)
    pairs = entries.flatten()
    values = pc.fill_null(json_values(pairs.field(1)), "null")
    texts = pc.binary_join_element_wise(json_values(pairs.field(0)), values, ":")
    return _joined(column, lengths, texts, "{}")


def _joined(column: pa.Array, lengths: pa.Array, texts: pa.Array, ends: str) -> pa.Array:
    """Join the texts of the elements of each row. Shapes: (n,), (n,), (m,) -> (n,)."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pc.fill_null(texts, "null")), ",")
    whole = pc.binary_join_element_wise(ends[0], joined, ends[1], "")
    return pc.if_else(column.is_valid(), whole, None)


def _strings(column: pa.Array) -> pa.Array:
    special = pc.fill_null(pc.match_substring_regex(column, NEEDS_ESCAPE), fill_value=False)
    quoted = _quoted(column)
    if not pc.any(special).as_py():
        return quoted
    escaped = [compact_json(text) for text in column.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _floats(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.float32() if pa.types.is_float16(column.type) else column.type)
    texts = texts.cast(pa.string())
    texts = pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)  # an integer cannot be -0
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return texts
    for word, text in _NOT_NUMBERS.items():  # JSON has no words for them
        texts = pc.if_else(pc.equal(texts, word), text, texts)
    return texts


def _iso(column: pa.Array) -> pa.Array:
    """Return ``2013-01-01T10:00:00.000000Z``; a timestamp without a zone has no ``Z``."""
    if column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    return pc.replace_substring(column.cast(pa.string()), " ", "T")


def _plain(value: Any) -> Any:
    """Return a value in a type of JSON, for types without a conversion by columns."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


# ---- Rows as a table of the width of the screen
# A cell without room ends in an ellipsis. Headings are shortened before values, and the longest
# values first. The last columns are left out if there is no room for them; an ellipsis marks that.

ELLIPSIS = "…"
_GAP = 1  # between two columns
_HEADING_MIN = 3
_VALUE_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRows:
    """
    The visible part of rows.

    Args:
        headings: One for each visible column, perhaps shortened.
        lines: The cells of each row, perhaps shortened.
        widths: The widths of the columns, in cells of the screen.
        hidden: The names of the columns without room.
    """

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    hidden: tuple[str, ...]

    def text_lines(self, width: int | None) -> list[str]:
        """Return headings and rows as lines; with room, two cells separate the columns."""
        wide = sum(self.widths) + 2 * (len(self.widths) - 1)
        gap = " " * (2 if width is None or wide <= width else _GAP)
        return [
            gap.join(
                cell + " " * (room - cell_len(cell))
                for cell, room in zip(line, self.widths, strict=True)
            ).rstrip()
            for line in (self.headings, *self.lines)
        ]


def fit_rows(
    headings: Sequence[str], lines: Sequence[Sequence[str]], width: int | None
) -> FittedRows:
    """
    Fit rows into the width of the screen.

    Args:
        headings: The names of the columns.
        lines: The cells of each row, without line breaks.
        width: Cells of a line; None for no limit.
    """
    values = [max((cell_len(line[at]) for line in lines), default=0) for at in range(len(headings))]
    names = [cell_len(heading) for heading in headings]
    shown = len(headings)
    if width is not None:
        shown = _columns_with_room(values, names, width)
        if shown < len(headings):
            shown = _columns_with_room(values, names, width - _GAP - 1)
    hidden = tuple(headings[shown:])
    room = None if width is None else width - (_GAP + 1 if hidden else 0) - _GAP * (shown - 1)
    widths = _widths(values[:shown], names[:shown], room)
    marks = [ELLIPSIS] if hidden else []
    return FittedRows(
        headings=(*map(_cut, headings, widths), *marks),
        lines=tuple((*map(_cut, line, widths), *marks) for line in lines),
        widths=(*widths, *(1 for _ in marks)),
        hidden=hidden,
    )


def _columns_with_room(values: Sequence[int], names: Sequence[int], width: int) -> int:
    """Return how many of the first columns fit with a readable width; at least one."""
    left = width + _GAP
    for at, least in enumerate(map(_least, values, names)):
        left -= least + _GAP
        if left < 0:
            return max(at, 1)
    return len(values)


def _least(value: int, name: int) -> int:
    return max(min(value, _VALUE_MIN), min(name, _HEADING_MIN))


def _widths(values: Sequence[int], names: Sequence[int], room: int | None) -> list[int]:
    """Return the width of each column, within the room for all."""
    wanted = [max(value, name) for value, name in zip(values, names, strict=True)]
    if room is None or sum(wanted) <= room:
        return wanted
    needed = [
        max(value, min(name, _HEADING_MIN)) for value, name in zip(values, names, strict=True)
    ]
    if sum(needed) > room:
        return _shared(needed, room)
    rest = _shared([one - two for one, two in zip(wanted, needed, strict=True)], room - sum(needed))
    return [one + two for one, two in zip(needed, rest, strict=True)]


def _shared(wanted: Sequence[int], room: int) -> list[int]:
    """Share the room: each column gets its wish up to one common limit."""
    given = [0] * len(wanted)
    left = max(room, 0)
    for rank, at in enumerate(sorted(range(len(wanted)), key=lambda at: wanted[at])):
        given[at] = min(wanted[at], left // (len(wanted) - rank))
        left -= given[at]
    return given


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS if width > 0 else ""
