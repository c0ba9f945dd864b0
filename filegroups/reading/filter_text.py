"""
SQL texts: the conditions of a ``WHERE`` clause, and the values that an update computes.

A filter follows the grammar of a ``WHERE`` clause in standard SQL, which sqlglot parses. It compares
a column with values or another column, and has ``AND``, ``OR``, ``NOT``, ``IN``, ``BETWEEN``,
``LIKE``, ``ILIKE`` and ``IS NULL``. Texts are in single quotes, odd column names in double quotes. A row matches
if the condition is true for it; false and null do not match.

A literal gets the type of the column that it is compared with, so ``day = '2026-05-01'`` works for
a text and for a date. A time without a zone is UTC.

A value is a column, a literal or computed from values: ``+ - * / %``, ``||``, ``CASE``, ``CAST``,
intervals and the functions in ``_FUNCTIONS``. Conditions may compare computed values, too. Integers
are computed with 64 bits; ``/`` returns a double, except of decimals. Null gives null, and so does
a division by zero, as in Spark. An overflow is an error.
"""

from __future__ import annotations

import datetime as dt
import difflib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from pyarrow import acero
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from timeline.errors import InvalidInputError

TEXT_CHARACTERS_MAX: Final = 100_000
_SHOWN_MAX: Final = 120  # characters of a text around an error
_DIGITS_MAX: Final = 38  # of a decimal
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

_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": pc.add_checked,
    "sub": pc.subtract_checked,
    "mul": pc.multiply_checked,
    "div": pc.divide_checked,
    "mod": pc.divide_checked,
}
#: By sqlglot's key: functions of one value of any type that the function takes.
_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "abs": pc.abs_checked,
    "ceil": pc.ceil,
    "floor": pc.floor,
    "length": pc.utf8_length,
    "lower": pc.utf8_lower,
    "neg": pc.negate_checked,
    "trim": pc.utf8_trim_whitespace,
    "upper": pc.utf8_upper,
}
_FUNCTION_NAMES: Final = sorted(
    {*_FUNCTIONS, "case", "cast", "coalesce", "concat", "greatest", "if", "least", "mod"} - {"neg"}
    | {"nullif", "round", "substring"}
)
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
}
_INTERVALS: Final = ("WEEK", "DAY", "HOUR", "MINUTE", "SECOND")

#: The text that names an operand in messages, its type and its expression.
_Operand: TypeAlias = tuple[str, pa.DataType, pc.Expression]


class FilterText:
    """
    A SQL text, parsed and bound to the columns of a schema.

    Args:
        text: A condition or a value.
        schema: The columns.
        kind: The name of the text in messages, and their kind: ``filter`` or ``expression``.
        sides: Whether the schema's columns are structs of the rows of a merge. Their fields need no
            qualifier where one struct alone has them.

    Raises:
        InvalidInputError: It does not parse (``filter``, ``expression``).
    """

    def __init__(
        self, text: str, schema: pa.Schema, *, kind: str = "filter", sides: bool = False
    ) -> None:
        self._text = text
        self._kind = kind
        self._schema = schema
        self._sides = sides
        self._root = self._parsed()

    @property
    def expression(self) -> pc.Expression:
        """The condition, true for the rows that match."""
        try:
            return self._condition(self._root, negated=False)
        except RecursionError:
            raise self._refused("it is nested too deeply") from None

    def value(self, kind: pa.DataType | None = None) -> pc.Expression:
        """Return the value; a literal gets the type ``kind``."""
        try:
            return self._operand(self._root, kind)[2]
        except RecursionError:
            raise self._refused("it is nested too deeply") from None

    def column_name(self) -> str | None:
        """Return the dotted name of the column that is the whole text; None for another text."""
        root = self._root.unnest()
        return self._column(root)[0] if self._is_column(root) else None

    def join(self) -> tuple[list[tuple[str, str]], pc.Expression | None]:
        """
        Return the condition of a merge: pairs of equal columns, and the rest, which ``AND`` joins.

        A pair has the dotted names of a column of the target and of one of the source.
        """
        root = self._root.unnest()
        pairs, rest = [], []
        for part in root.flatten() if isinstance(root, exp.And) else (root,):
            term = part.unnest()
            sides = [term.this, term.expression] if isinstance(term, exp.EQ) else []
            if sides and all(map(self._is_column, sides)):
                names = {name.partition(".")[0]: name for name, _, _ in map(self._column, sides)}
                if len(names) == 2:
                    first, second = (names[side].partition(".")[2] for side in self._schema.names)
                    pairs.append((first, second))
                    continue
            rest.append(self._condition(term, negated=False))
        return pairs, reduce(operator.and_, rest) if rest else None

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
        if self._is_literal(left):
            left, right, key = right, left, _COMPARISONS[key][2]
        if self._is_literal(left):
            raise self._unsupported(node)
        name, kind, column = self._operand(left)
        inverted = negated and pa.types.is_floating(kind)  # each comparison with NaN is false
        compare = _COMPARISONS[_COMPARISONS[key][1] if negated and not inverted else key][0]
        if not self._is_literal(right):
            if pa.types.is_temporal(kind) and right.find(exp.Column) is None:
                raise self._unsupported(right)  # day = 2026-05-01 is no date
            other, other_kind, value = self._operand(right)
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
        if self._is_literal(node.this) or not node.expressions:
            raise self._unsupported(node)
        name, kind, column = self._operand(node.this)
        values, has_null = self._values(node, name, kind)
        if negated and has_null:
            return pc.scalar(False)  # whether a value differs from null is unknown
        found = column.isin(values)
        return column.is_valid() & ~found if negated else found

    def _is(self, node: exp.Is, *, negated: bool) -> pc.Expression:
        if self._is_literal(node.this):
            raise self._unsupported(node)
        name, kind, column = self._operand(node.this)
        if isinstance(node.expression, exp.Null):
            return column.is_valid() if negated else column.is_null()
        if isinstance(node.expression, exp.Boolean) and pa.types.is_boolean(kind):
            same = column if node.expression.this else ~column
            return column.is_null() | ~same if negated else column.is_valid() & same
        raise self._refused(f"IS takes NULL, or TRUE and FALSE of a boolean: {name}", node=node)

    def _like(self, node: exp.Expr, *, negated: bool) -> pc.Expression:
        pattern = node.expression
        if self._is_literal(node.this) or not self._is_text(pattern):
            raise self._unsupported(node)
        name, kind, column = self._operand(node.this)
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise self._refused(f"LIKE needs a text, and {name} has type {kind}", node=node)
        found = pc.match_like(column, pattern.this, ignore_case=isinstance(node, exp.ILike))
        return ~found if negated else found

    # ---- Values

    def _operand(self, node: exp.Expr, kind: pa.DataType | None = None) -> _Operand:
        """Return a value; its literals get the type ``kind`` if they are not computed with."""
        node = node.unnest()
        if self._is_column(node):
            return self._column(node)
        text = node.sql()[:80]
        if self._is_literal(node):
            value = self._value(node, text, self._literal_type(node) if kind is None else kind)
            return text, value.type, pc.scalar(value)
        try:
            found = self._computed(node, kind)
            return text, computed_type(self._schema, found), found
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise self._refused(f"cannot compute {text!r}: {error}", node=node) from error

    def _computed(self, node: exp.Expr, kind: pa.DataType | None) -> pc.Expression:
        if node.key in _ARITHMETIC:
            return self._arithmetic(node)
        if node.key in _FUNCTIONS:
            return _FUNCTIONS[node.key](self._operand(node.this)[2])
        if isinstance(node, exp.Cast):
            return self._cast(node)
        if isinstance(node, exp.Case | exp.If):
            return self._case(node, kind)
        if isinstance(node, exp.Coalesce | exp.Greatest | exp.Least):
            values = self._alike([node.this, *node.expressions], kind)
            if isinstance(node, exp.Coalesce):
                return pc.coalesce(*values)
            greatest = isinstance(node, exp.Greatest)
            return (pc.max_element_wise if greatest else pc.min_element_wise)(*values)
        if isinstance(node, exp.Nullif):
            same = pc.coalesce(
                self._condition(exp.EQ(this=node.this, expression=node.expression), negated=False),
                pc.scalar(False),
            )
            _, own, value = self._operand(node.this, kind)
            return pc.if_else(same, pc.scalar(pa.scalar(None, own)), value)
        return self._function(node)

    def _function(self, node: exp.Expr) -> pc.Expression:
        if isinstance(node, exp.Concat | exp.DPipe):
            parts = node.expressions if isinstance(node, exp.Concat) else list(node.flatten())
            texts = [self._operand(part)[2].cast(pa.string()) for part in parts]
            return pc.binary_join_element_wise(*texts, pc.scalar(""))
        if isinstance(node, exp.Round):
            digits = self._whole(node.args.get("decimals"), 0)
            value = self._operand(node.this)[2]
            return pc.round(value, ndigits=digits, round_mode="half_towards_infinity")
        if isinstance(node, exp.Substring):
            first = self._whole(node.args.get("start"), 1) - 1
            length = node.args.get("length")
            stop = None if length is None else first + self._whole(length, 0)
            return pc.utf8_slice_codeunits(self._operand(node.this)[2], start=first, stop=stop)
        if isinstance(node, exp.Interval) and self._is_text(node.this):
            unit = str(node.args["unit"]).upper().removesuffix("S")
            if unit in _INTERVALS and re.fullmatch(r"-?[0-9]{1,9}", node.this.this):
                length = dt.timedelta(**{f"{unit.lower()}s": int(node.this.this)})
                return pc.scalar(pa.scalar(length, pa.duration("us")))
        raise self._no_value(node)

    def _arithmetic(self, node: exp.Expr) -> pc.Expression:
        sides = [self._operand(one) for one in (node.this, node.expression)]
        decimal = any(pa.types.is_decimal(kind) for _, kind, _ in sides)
        number = pa.float64() if isinstance(node, exp.Div) and not decimal else pa.int64()
        left, right = (
            value.cast(number) if pa.types.is_integer(kind) else value for _, kind, value in sides
        )
        if not isinstance(node, exp.Div | exp.Mod):
            return _ARITHMETIC[node.key](left, right)
        is_zero = pc.coalesce(right == pc.scalar(0), pc.scalar(False))
        right = pc.if_else(
            is_zero, pc.scalar(pa.scalar(None, computed_type(self._schema, right))), right
        )
        quotient = pc.divide_checked(left, right)
        if isinstance(node, exp.Div):
            return quotient
        if not all(pa.types.is_integer(kind) for _, kind, _ in sides):
            quotient = pc.trunc(quotient)
        return left - quotient * right

    def _cast(self, node: exp.Cast) -> pc.Expression:
        name = node.to.this.value
        kind = _TYPES.get(name)
        if name == "DECIMAL":
            digits = [int(one.name) for one in node.to.expressions]
            kind = pa.decimal128(*digits) if digits else pa.decimal128(10, 0)
        if kind is None:
            raise self._refused(
                f"CAST does not know the type {name}; it knows DECIMAL(p, s), {', '.join(_TYPES)}",
                node=node,
            )
        _, own, value = self._operand(node.this)
        if pa.types.is_integer(kind) and (pa.types.is_floating(own) or pa.types.is_decimal(own)):
            value = pc.trunc(value)  # as Spark
        elif pa.types.is_decimal(kind) and pa.types.is_decimal(own) and own.scale > kind.scale:
            value = pc.round(value, ndigits=kind.scale, round_mode="half_towards_infinity")
        return value.cast(kind)

    def _case(self, node: exp.Case | exp.If, kind: pa.DataType | None) -> pc.Expression:
        branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        end = node.args.get("default" if isinstance(node, exp.Case) else "false")
        *values, last = self._alike(
            [*(one.args["true"] for one in branches), end or exp.Null()], kind
        )
        for branch, value in reversed(list(zip(branches, values, strict=True))):
            condition = branch.this
            if isinstance(node, exp.Case) and node.this is not None:
                condition = exp.EQ(this=node.this, expression=condition)
            holds = pc.coalesce(self._condition(condition, negated=False), pc.scalar(False))
            last = pc.if_else(holds, value, last)
        return last

    def _alike(self, nodes: Sequence[exp.Expr], kind: pa.DataType | None) -> list[pc.Expression]:
        """Return values in one type, of which each is a value."""
        plain = [one for one in nodes if not self._is_literal(one.unnest())]
        kinds = [self._operand(one, kind)[1] for one in plain]
        values = [self._operand(one, kind or (kinds[0] if kinds else None)) for one in nodes]
        known = [pa.schema([("", kind)]) for _, kind, _ in values if not pa.types.is_null(kind)]
        if not known:
            return [value for _, _, value in values]
        common = pa.unify_schemas(known, promote_options="permissive").field(0).type
        return [value if own == common else value.cast(common) for _, own, value in values]

    def _literal_type(self, node: exp.Expr) -> pa.DataType:
        if isinstance(node, exp.Null):
            return pa.null()
        if isinstance(node, exp.Boolean):
            return pa.bool_()
        if isinstance(node, exp.Cast):
            return _TYPES.get(node.to.this.value, pa.string())
        text = node.this.this if isinstance(node, exp.Neg) else node.this
        if isinstance(node, exp.Literal) and node.is_string:
            return pa.string()
        if re.fullmatch(r"[0-9]{1,18}", text):
            return pa.int64()
        if re.fullmatch(r"[0-9]*\.?[0-9]*", text) and len(text) <= _DIGITS_MAX:
            return pa.scalar(Decimal(text)).type
        return pa.float64()

    def _whole(self, node: exp.Expr | None, default: int) -> int:
        if node is None:
            return default
        text = node.sql()
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise self._refused(f"here is a whole number expected, not {text[:80]!r}", node=node)
        return int(text)

    def _is_literal(self, node: exp.Expr) -> bool:
        node = node.unnest()
        if isinstance(node, exp.Neg):
            return isinstance(node.this, exp.Literal) and not node.this.is_string
        if isinstance(node, exp.Cast):  # DATE '2026-05-01', TIMESTAMP '2026-05-01 10:00:00'
            return self._is_text(node.this) and node.to.this.value.startswith(("DATE", "TIME"))
        return isinstance(node, exp.Literal | exp.Null | exp.Boolean)

    def _no_value(self, node: exp.Expr) -> InvalidInputError:
        name = node.name if isinstance(node, exp.Anonymous) else node.key
        near = difflib.get_close_matches(name.lower(), _FUNCTION_NAMES, n=1)
        return self._refused(
            f"{node.sql()[:80]!r} is not supported as a value. Values are columns, literals, "
            f"+ - * / % || and the functions {', '.join(_FUNCTION_NAMES)}; a condition becomes one "
            "by CASE WHEN ... THEN ... END." + (f" Did you mean {near[0]}?" if near else ""),
            node=node,
        )

    # ---- Columns and literals

    def _is_column(self, node: exp.Expr) -> bool:
        return isinstance(node, exp.Column | exp.Dot)

    def _is_text(self, node: exp.Expr) -> bool:
        return isinstance(node, exp.Literal) and node.is_string

    def _column(self, node: exp.Expr) -> tuple[str, pa.DataType, pc.Expression]:
        """Return the name, type and expression of a column, or of a field inside a struct."""
        steps = [part.name for part in node.parts]  # type: ignore[attr-defined]
        names, named = self._schema.names, ".".join(steps)
        paths = [steps]
        if self._sides:
            if steps[0].casefold() not in names:
                paths = [[side, *steps] for side in names]
            names = [f"{side.name}.{each.name}" for side in self._schema for each in side.type]
        found = [one for path in paths if (one := _resolved(pa.struct(list(self._schema)), path))]
        if len(found) > 1:
            raise self._refused(
                f"the target and the source have a column {named!r}; write target.{named} or "
                f"source.{named}",
                node=node,
            )
        for steps, kind in found:
            return ".".join(steps), kind, pc.field(*steps)
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
            f"cannot read the {self._kind}: {why}{self._shown(position)}", kind=self._kind
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


def _resolved(kind: pa.DataType, steps: Sequence[str]) -> tuple[list[str], pa.DataType] | None:
    """Return the names and the type of a field inside a struct; the case of names may differ."""
    names: list[str] = []
    for step in steps:
        inside = [each.name for each in kind] if pa.types.is_struct(kind) else []
        alike = [name for name in inside if name.casefold() == step.casefold()]
        if step not in inside and len(alike) != 1:
            return None
        names.append(step if step in inside else alike[0])
        kind = kind.field(names[-1]).type
    return names, kind


def computed(rows: pa.Table, value: pc.Expression, name: str = "") -> pa.ChunkedArray:
    """
    Compute an expression for each row; messages contain ``name``.

    Shapes: rows (n rows) -> (n,); order kept.

    Raises:
        InvalidInputError: A value cannot be computed for some row (``expression_value``).
    """
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
            acero.Declaration("project", acero.ProjectNodeOptions([value], [""])),
        ]
    )
    try:
        return plan.to_table(use_threads=False).column(0)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"cannot compute {name or 'a value'} for some row: {error}; leave such rows out by a "
            "condition, or write the value with CASE, COALESCE or NULLIF",
            kind="expression_value",
            column=name,
        ) from error


def computed_type(schema: pa.Schema, value: pc.Expression) -> pa.DataType:
    """Return the type of an expression over the columns of a schema."""
    return computed(schema.empty_table(), value).type


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
        text += "Z" if text[10:] else " 00:00:00Z"
    return pc.cast(pa.scalar(text), kind)
