"""
The small grammar of ``--filter``: ``column operator value [and ...]``, typed by the schema.

    month = 3 and carrier in (AA, UA) and arr_delay > 60 and tailnum != 'N 1'

Operators are ``= == != < <= > >= in``, and ``not in``. A value in quotes may hold anything;
quotes inside are doubled.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from timeline.errors import InvalidInputError

__all__ = ["Condition", "parse_filter"]

Condition = tuple[str, str, Any]

_TOKEN: Final = re.compile(
    r"""\s*(?:
        '(?P<single>(?:[^']|'')*)' | "(?P<double>(?:[^"]|"")*)"
        | (?P<operator>==|!=|<=|>=|=|<|>) | (?P<mark>[(),])
        | (?P<word>[^\s'"(),=!<>]+)
    )""",
    re.VERBOSE,
)
_OPERATORS: Final = {"=": "==", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
TEXT_CHARACTERS_MAX: Final = 100_000

_Token = tuple[str, str]


def parse_filter(text: str, schema: pa.Schema) -> list[Condition]:
    """
    Read a filter.

    Args:
        text: As the user wrote it.
        schema: Columns that may be named, with the types their values get.

    Returns:
        ``(column, operator, value)`` triples that all hold; values are Arrow scalars, lists
        Arrow arrays.

    Raises:
        InvalidInputError: It does not follow the grammar, names no column, or a value does
            not fit the column's type.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise _refused(f"a filter has at most {TEXT_CHARACTERS_MAX} characters", text[:80])
    tokens = _tokens(text)
    found: list[Condition] = []
    while True:
        found.append(_condition(tokens, schema, text))
        if not tokens:
            return found
        kind, word = tokens.pop(0)
        if kind != "word" or word.casefold() != "and":
            raise _refused(f"expected 'and', found {word!r}", text)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise _refused(f"cannot read it from {stripped[position : position + 20]!r}", text)
        kind = str(match.lastgroup)
        value = match.group(kind)
        if kind == "single":
            kind, value = "text", value.replace("''", "'")
        elif kind == "double":
            kind, value = "text", value.replace('""', '"')
        found.append((kind, value))
        position = match.end()
    return found


def _condition(tokens: list[_Token], schema: pa.Schema, text: str) -> Condition:
    kind, column = _next(tokens, "a column", text)
    if kind not in ("word", "text"):
        raise _refused(f"expected a column, found {column!r}", text)
    if column not in schema.names:
        raise InvalidInputError(
            f"no such column: {column!r}; the table has {list(schema.names)}",
            kind="unknown_column",
            columns=[column],
        )
    kind, operator = _next(tokens, "an operator", text)
    wanted = schema.field(column).type
    if kind == "operator" and operator in _OPERATORS:
        return column, _OPERATORS[operator], _value(tokens, column, wanted, text)
    negated = kind == "word" and operator.casefold() == "not"
    if negated:
        kind, operator = _next(tokens, "'in'", text)
    if kind == "word" and operator.casefold() == "in":
        return column, "not in" if negated else "in", _values(tokens, column, wanted, text)
    raise _refused(f"expected one of = != < <= > >= in, 'not in', found {operator!r}", text)


def _values(tokens: list[_Token], column: str, wanted: pa.DataType, text: str) -> pa.Array:
    if _next(tokens, "'('", text) != ("mark", "("):
        raise _refused("a list of values stands in parentheses", text)
    values = [_value(tokens, column, wanted, text)]
    while True:
        mark = _next(tokens, "')'", text)
        if mark == ("mark", ")"):
            return pa.array([value.as_py() for value in values], wanted)
        if mark != ("mark", ","):
            raise _refused(f"expected ',' or ')', found {mark[1]!r}", text)
        values.append(_value(tokens, column, wanted, text))


def _value(tokens: list[_Token], column: str, wanted: pa.DataType, text: str) -> Any:
    kind, value = _next(tokens, "a value", text)
    if kind not in ("word", "text"):
        raise _refused(f"expected a value, found {value!r}", text)
    try:
        if pa.types.is_timestamp(wanted) and wanted.tz is not None:
            # A time without a zone is UTC, as everywhere in this engine.
            has_zone = re.search(r"(Z|[+-]\d{2}:?\d{2})$", value) is not None
            return pc.cast(pa.scalar(value if has_zone else f"{value}Z"), wanted)
        return pc.cast(pa.scalar(value), wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the value does not fit the column: {column} has type {wanted}: {value[:80]!r}",
            kind="filter_value",
            column=column,
        ) from error


def _next(tokens: list[_Token], what: str, text: str) -> _Token:
    if not tokens:
        raise _refused(f"it ends where {what} should stand", text)
    return tokens.pop(0)


def _refused(why: str, text: str) -> InvalidInputError:
    return InvalidInputError(
        f"a filter reads: column operator value [and ...]; {why}: {text[:200]!r}",
        kind="filter",
    )
