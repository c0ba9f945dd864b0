"""
Filters as text: the conditions of a SQL ``WHERE`` clause.

A text follows the grammar of a ``WHERE`` clause in standard SQL, which sqlglot parses: comparisons
of a column with values or another column, ``AND``, ``OR``, ``NOT``, ``IN``, ``BETWEEN``, ``LIKE``,
``ILIKE``, ``IS NULL``. Texts are in single quotes, odd column names in double quotes. A row matches
if the condition is true for it; false and null do not match.

A literal gets the type of the column that it is compared with, so ``day = '2026-05-01'`` works for
a text and for a date. A time without a zone is UTC.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from timeline.errors import InvalidInputError

TEXT_CHARACTERS_MAX: Final = 100_000
_SHOWN_MAX: Final = 120  # characters of a text around an error
_ZONE: Final = re.compile(r"(Z|[+-]\d{2}(:?\d{2})?)$")

#: By sqlglot's key of a comparison: its function, its negation, and the same with sides exchanged.
_COMPARISONS: Final[Mapping[str, tuple[Callable[[Any, Any], Any], str, str]]] = {
    "eq": (operator.eq, "neq", "eq"),
    "neq": (operator.ne, "eq", "neq"),
    "lt": (operator.lt, "gte", "gt"),
    "lte": (operator.le, "gt", "gte"),
    "gt": (operator.gt, "lte", "lt"),
    "gte": (operator.ge, "lt", "lte"),
}


class FilterText:
    """
    A filter text, parsed and bound to the columns of a schema.

    Raises:
        InvalidInputError: It does not parse (``filter``).
    """

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._root = self._parsed()

    @property
    def expression(self) -> pc.Expression:
        """The condition, true for the rows that match."""
        try:
            return self._condition(self._root, negated=False)
        except RecursionError:
            raise self._refused("it is nested too deeply") from None

    def equalities(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the terms ``column = value`` and ``column IN values`` that ``AND`` joins."""
        root = self._root.unnest()
        for part in root.flatten() if isinstance(root, exp.And) else (root,):
            term = part.unnest()
            if not (isinstance(term, exp.EQ | exp.In) and isinstance(term.this, exp.Column)):
                continue
            name, kind, _ = self._column(term.this)
            if isinstance(term, exp.EQ) and not isinstance(term.expression, exp.Column):
                yield name, "=", self._value(term.expression, name, kind).as_py()
            elif isinstance(term, exp.In):
                yield name, "in", self._values(term, name, kind)[0].to_pylist()

    # ---- Conditions

    def _parsed(self) -> exp.Expr:
        if len(self._text) > TEXT_CHARACTERS_MAX:
            raise self._refused(f"it has more than {TEXT_CHARACTERS_MAX} characters")
        if not self._text.strip():
            raise self._refused("it is empty")
        try:
            return sqlglot.condition(self._text, copy=False)
        except ParseError as error:
            first = error.errors[0] if error.errors else {}
            why = str(first.get("description") or error)
            if "missing for" in why:
                why = f"something is missing after {first.get('highlight')!r}"
            raise self._refused(why, at=self._position_of_error(first)) from error
        except (SqlglotError, RecursionError, ValueError) as error:
            raise self._refused(str(error) or "it is nested too deeply") from error

    def _condition(self, node: exp.Expr, *, negated: bool) -> pc.Expression:
        """Return a condition or its negation; NOT moves inwards, so SQL's rules for null hold."""
        if isinstance(node, exp.Paren):
            return self._condition(node.this, negated=negated)
        if isinstance(node, exp.Not):
            return self._condition(node.this, negated=not negated)
        if isinstance(node, exp.And | exp.Or):
            joined = operator.and_ if isinstance(node, exp.And) is not negated else operator.or_
            return reduce(joined, (self._condition(one, negated=negated) for one in node.flatten()))
        if node.key in _COMPARISONS:
            return self._comparison(node, negated=negated)
        if isinstance(node, exp.Between):
            low = exp.GTE(this=node.this, expression=node.args["low"])
            high = exp.LTE(this=node.this, expression=node.args["high"])
            return self._condition(exp.And(this=low, expression=high), negated=negated)
        if isinstance(node, exp.In):
            return self._in(node, negated=negated)
        if isinstance(node, exp.Is):
            return self._is(node, negated=negated)
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node, negated=negated is not bool(node.args.get("negate")))
        if isinstance(node, exp.Boolean):
            return pc.scalar(bool(node.this) is not negated)
        if isinstance(node, exp.Column):
            name, kind, column = self._column(node)
            if not pa.types.is_boolean(kind):
                raise self._refused(f"column {name!r} of type {kind} is not a condition", node=node)
            return ~column if negated else column
        raise self._unsupported(node)

    def _comparison(self, node: exp.Expr, *, negated: bool) -> pc.Expression:
        left, right, key = node.this.unnest(), node.expression.unnest(), node.key
        if not self._is_column(left) and self._is_column(right):
            left, right, key = right, left, _COMPARISONS[key][2]
        if not self._is_column(left):
            raise self._unsupported(node)
        name, kind, column = self._column(left)
        inverted = negated and pa.types.is_floating(kind)  # each comparison with NaN is false
        compare = _COMPARISONS[_COMPARISONS[key][1] if negated and not inverted else key][0]
        if self._is_column(right):
            other, other_kind, value = self._column(right)
            wrong = f"{name} has type {kind}, {other} has type {other_kind}"
        else:
            value = self._value(right, name, kind)
            wrong = f"{name} has type {kind}"
            if not value.is_valid:
                return pc.scalar(False)
        found: pc.Expression = compare(column, value)
        try:
            self._schema.empty_table().filter(found)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._refused(f"these cannot be compared: {wrong}", node=node) from error
        return ~found if inverted else found

    def _in(self, node: exp.In, *, negated: bool) -> pc.Expression:
        if not self._is_column(node.this) or not node.expressions:
            raise self._unsupported(node)
        name, kind, column = self._column(node.this)
        values, has_null = self._values(node, name, kind)
        if negated and has_null:
            return pc.scalar(False)  # whether a value differs from null is unknown
        found = column.isin(values)
        return column.is_valid() & ~found if negated else found

    def _is(self, node: exp.Is, *, negated: bool) -> pc.Expression:
        if not self._is_column(node.this):
            raise self._unsupported(node)
        name, kind, column = self._column(node.this)
        if isinstance(node.expression, exp.Null):
            return column.is_valid() if negated else column.is_null()
        if isinstance(node.expression, exp.Boolean) and pa.types.is_boolean(kind):
            same = column if node.expression.this else ~column
            return column.is_null() | ~same if negated else column.is_valid() & same
        raise self._refused(f"IS takes NULL, or TRUE and FALSE of a boolean: {name}", node=node)

    def _like(self, node: exp.Expr, *, negated: bool) -> pc.Expression:
        pattern = node.expression
        if not self._is_column(node.this) or not self._is_text(pattern):
            raise self._unsupported(node)
        name, kind, column = self._column(node.this)
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise self._refused(f"LIKE needs a text, and {name} has type {kind}", node=node)
        found = pc.match_like(column, pattern.this, ignore_case=isinstance(node, exp.ILike))
        return ~found if negated else found

    # ---- Columns and values

    def _is_column(self, node: exp.Expr) -> bool:
        return isinstance(node, exp.Column | exp.Dot)

    def _is_text(self, node: exp.Expr) -> bool:
        return isinstance(node, exp.Literal) and node.is_string

    def _column(self, node: exp.Expr) -> tuple[str, pa.DataType, pc.Expression]:
        """Return the name, type and expression of a column, or of a field inside a struct."""
        steps = [part.name for part in node.parts]  # type: ignore[attr-defined]
        names = self._schema.names
        alike = [name for name in names if name.casefold() == steps[0].casefold()]
        if steps[0] not in names and len(alike) == 1:
            steps[0] = alike[0]
        kind = _type_at(self._schema, steps)
        named = ".".join(steps)
        if kind is not None:
            return named, kind, pc.field(*steps)
        near = difflib.get_close_matches(named, names, n=1)
        raise InvalidInputError(
            f"no such column: {named!r}; the table has {list(names)}."
            + (f" Did you mean {near[0]!r}?" if near else f" A text is in single quotes: '{named}'")
            + self._shown(_position_of(node)),
            kind="unknown_column",
            columns=[named],
        )

    def _values(self, node: exp.In, column: str, kind: pa.DataType) -> tuple[pa.Array, bool]:
        """Return the values of a list without null, and whether it has null."""
        found = [self._value(one, column, kind) for one in node.expressions]
        known = [value for value in found if value.is_valid]
        common = kind if all(value.type == kind for value in known) else None
        return pa.array([value.as_py() for value in known], common), len(known) < len(found)

    def _value(self, node: exp.Expr, column: str, kind: pa.DataType) -> pa.Scalar[Any]:
        """Return a literal in the type of a column, or as a number if a number does not fit it."""
        node = node.unnest()
        if isinstance(node, exp.Null):
            return pa.scalar(None, kind)
        sign = ""
        if isinstance(node, exp.Neg):
            node, sign = node.this, "-"
        elif isinstance(node, exp.Cast) and self._is_text(node.this):
            node = node.this  # DATE '2026-05-01', TIMESTAMP '2026-05-01 10:00:00'
        if isinstance(node, exp.Boolean):
            text = str(node.this).lower()
        elif isinstance(node, exp.Literal) and not (sign and node.is_string):
            text = sign + node.this
        else:
            raise self._unsupported(node)
        try:
            return _typed(text, kind, is_number=isinstance(node, exp.Literal) and node.is_number)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"the value does not fit the column: {column} has type {kind}: {text[:80]!r}"
                + self._shown(_position_of(node)),
                kind="filter_value",
                column=column,
            ) from error

    # ---- Errors

    def _unsupported(self, node: exp.Expr) -> InvalidInputError:
        return self._refused(
            f"{node.sql()[:80]!r} is not supported. A condition compares a column with values: "
            "= != < <= > >= IN BETWEEN LIKE IS NULL, joined by AND OR NOT; texts, dates and times "
            "are in single quotes",
            node=node,
        )

    def _refused(
        self, why: str, *, node: exp.Expr | None = None, at: int | None = None
    ) -> InvalidInputError:
        position = at if node is None else _position_of(node)
        return InvalidInputError(
            f"cannot read the filter: {why}{self._shown(position)}", kind="filter"
        )

    def _position_of_error(self, found: Mapping[str, Any]) -> int | None:
        """Return where a parse error is, in characters from the start."""
        line, column = found.get("line"), found.get("col")
        if line is None or column is None:
            return None
        before = sum(map(len, self._text.splitlines(keepends=True)[: line - 1]))
        return max(0, int(before + column - len(str(found.get("highlight") or ""))))

    def _shown(self, at: int | None) -> str:
        """Return the text on a line of its own, and a mark below the position."""
        first = max(0, (at or 0) - _SHOWN_MAX // 2)
        shown = re.sub(r"\s", " ", self._text[first : first + _SHOWN_MAX])
        return f"\n  {shown}" + ("" if at is None else f"\n  {' ' * (at - first)}^")


def _position_of(node: exp.Expr) -> int | None:
    starts = [one.meta["start"] for one in node.walk() if "start" in one.meta]
    return min(starts, default=None)


def _type_at(schema: pa.Schema, steps: Sequence[str]) -> pa.DataType | None:
    """Return the type of a column, or of the field of a struct that steps lead to."""
    if steps[0] not in schema.names:
        return None
    kind = schema.field(steps[0]).type
    for step in steps[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            return None
        kind = kind.field(step).type
    return kind


def _typed(text: str, kind: pa.DataType, *, is_number: bool) -> pa.Scalar[Any]:
    """
    Return the value of a literal.

    A number beyond the column's type stays a number, which Arrow compares exactly: no ``tinyint``
    is 1000, and no ``decimal(10, 2)`` is 1.555.

    Raises:
        pa.ArrowInvalid: The text is no value of the type.
        pa.ArrowNotImplementedError: No text is one.
    """
    if is_number and not pa.types.is_temporal(kind):
        try:
            return pc.cast(pa.scalar(text), kind)
        except pa.ArrowInvalid:
            if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
                whole = re.fullmatch(r"-?[0-9]{1,18}", text)
                return pa.scalar(int(text) if whole else Decimal(text))
            raise
    if pa.types.is_timestamp(kind) and kind.tz is not None and not _ZONE.search(text[10:]):
        text += "Z"
    return pc.cast(pa.scalar(text), kind)
