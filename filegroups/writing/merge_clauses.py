"""
The clauses of a merge or an update, and the changes that they make to rows.

No table and no executor appear here: a caller joins the rows, and ``apply_clauses``
returns the changed ones. The semantics are those of SQL's ``MERGE``. For each row the first clause whose
condition is true acts; false and null do not. All steps work on whole columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.keys.keys import plain_column
from filegroups.merge.rules import MergeRules, known_values, not_below, ordering_column
from filegroups.reading.filter_text import FilterText, computed, computed_type
from filegroups.reading.filters import Filter, to_expression
from filegroups.schema.casting import cast_column
from filegroups.schema.schema import META_COLUMNS
from timeline.errors import InvalidInputError, counted

#: The structs of a joined row, by which conditions and values name columns.
TARGET: Final = "target"
SOURCE: Final = "source"

Mask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.intp]


class When(Enum):
    """The rows that a clause may act on, and the sides of the join that they have."""

    MATCHED = (TARGET, SOURCE)
    NOT_MATCHED = (SOURCE,)
    NOT_MATCHED_BY_SOURCE = (TARGET,)


class MergeAction(Enum):
    """The effect of a clause."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClause:
    """
    One clause, as a user states it.

    Args:
        when: The rows that it may act on.
        action: Its effect.
        condition: A SQL text or a pyarrow expression over ``target`` and ``source``; None for all.
        values: For each column a SQL text, a pyarrow expression or a literal; None takes every
            column from the source's column of its name.
    """

    when: When
    action: MergeAction
    condition: Filter = None
    values: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundClause:
    """A clause bound to the columns of a target and a source."""

    when: When
    action: MergeAction
    condition: pc.Expression | None
    values: Mapping[str, pc.Expression | pa.Scalar[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRules:
    """
    The target of a merge.

    Args:
        schema: Its rows as read: the meta columns that are needed, then its own columns.
        fixed: Columns that no update may change, by dotted name.
        ordering: Ordering fields that no update may lower; empty if a lower value may lose.
        merge: How the table merges a changed row with the stored one.
    """

    schema: pa.Schema
    fixed: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    merge: MergeRules | None = None

    @property
    def own(self) -> list[pa.Field[Any]]:
        """The columns without meta columns."""
        return [each for each in self.schema if each.name not in META_COLUMNS]


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows in the target's schema, and a mask of those to delete; all others are written."""

    rows: pa.Table
    deleted: pa.ChunkedArray

    @classmethod
    def of(cls, parts: Iterable[ChangedRows], schema: pa.Schema) -> ChangedRows:
        """Concatenate parts."""
        every = [cls(schema.empty_table(), pa.chunked_array([], pa.bool_())), *parts]
        chunks = [chunk for part in every for chunk in part.deleted.chunks]
        return cls(
            pa.concat_tables([part.rows for part in every]), pa.chunked_array(chunks, pa.bool_())
        )


# ---- Bind clauses to columns


def joined_schema(when: When, target: pa.Schema, source: pa.Schema) -> pa.Schema:
    """Return the schema of the rows that a clause sees: a struct for each side."""
    sides = {TARGET: target, SOURCE: source}
    return pa.schema([pa.field(side, pa.struct(list(sides[side]))) for side in when.value])


def bind_clauses(
    clauses: Sequence[MergeClause], target: TargetRules, source: pa.Schema
) -> list[BoundClause]:
    """
    Bind the clauses of a merge.

    Raises:
        InvalidInputError: There is no clause, or one that never acts (``merge_clauses``); and as
            ``bind_clause``.
    """
    refuse_idle_clauses((one.when, one.action, one.condition is not None) for one in clauses)
    return [bind_clause(clause, target, source) for clause in clauses]


def refuse_idle_clauses(clauses: Iterable[tuple[When, MergeAction, bool]]) -> None:
    """
    Refuse a merge without clauses, and clauses that never act.

    Args:
        clauses: Of each the rows, the effect, and whether it has a condition.

    Raises:
        InvalidInputError: ``merge_clauses``.
    """
    ended: set[When] = set()
    named = list(clauses)
    if not named:
        raise InvalidInputError(
            "a merge needs a clause, such as when_matched_update_all() or "
            "when_not_matched_insert_all()",
            kind="merge_clauses",
        )
    for when, action, has_condition in named:
        if when in ended:
            raise InvalidInputError(
                "a clause never acts, because one before it has no condition; give that one a "
                f"condition, or leave this out: when_{when.name.lower()}_{action.value}",
                kind="merge_clauses",
            )
        if not has_condition:
            ended.add(when)


def bind_clause(clause: MergeClause, target: TargetRules, source: pa.Schema) -> BoundClause:
    """
    Bind a clause to the columns of target and source.

    Raises:
        InvalidInputError: A text does not parse (``filter``, ``expression``), a column is unknown
            or ambiguous (``unknown_column``), or a value does not fit its column.
    """
    schema = joined_schema(clause.when, target.schema, source)
    condition, values = clause.condition, {}
    if isinstance(condition, str):
        condition = FilterText(condition, schema, sides=True).expression
    if clause.action is not MergeAction.DELETE:
        given: Any = _source_columns(target, source) if clause.values is None else clause.values
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InvalidInputError(
                "values map names of columns to their values, for example {'price': 'price * 2'}, "
                f"not {type(given).__name__}",
                kind="expression",
            )
        if not given:
            raise InvalidInputError("name at least one column to set", kind="no_column")
        for name, value in given.items():
            column = _target_column(name, target)
            if column.name in values:
                raise InvalidInputError(
                    f"a column is set twice: {column.name!r}", kind="expression", column=name
                )
            values[column.name] = _bound_value(value, column, schema)
    return BoundClause(
        when=clause.when,
        action=clause.action,
        condition=to_expression(condition, schema),
        values=values,
    )


def _source_columns(target: TargetRules, source: pa.Schema) -> dict[str, pc.Expression]:
    """Return each column of the target as the source's column of that name."""
    by_name = {name.casefold(): name for name in source.names}
    by_name |= {name: name for name in source.names}
    found = {
        each.name: by_name.get(each.name) or by_name.get(each.name.casefold())
        for each in target.own
    }
    missing = [name for name, other in found.items() if other is None]
    if missing:
        raise InvalidInputError(
            "a clause that takes all columns needs all columns of the table in the source; add "
            f"these, or name the values of the others by values={{...}}: {missing}",
            kind="unknown_column",
            columns=missing,
        )
    return {name: pc.field(SOURCE, other) for name, other in found.items()}


def _target_column(name: str, target: TargetRules) -> pa.Field[Any]:
    bare = name.removeprefix(f"{TARGET}.")
    own = {each.name: each for each in target.own}
    alike = [each for each in own.values() if each.name.casefold() == bare.casefold()]
    if bare in own:
        return own[bare]
    if len(alike) == 1:
        return alike[0]
    near = difflib.get_close_matches(bare, list(own), n=1)
    raise InvalidInputError(
        f"no such column to set: {name!r}; the table has {list(own)}."
        + (f" Did you mean {near[0]!r}?" if near else ""),
        kind="unknown_column",
        columns=[name],
    )


def _bound_value(
    value: object, column: pa.Field[Any], schema: pa.Schema
) -> pc.Expression | pa.Scalar[Any]:
    try:
        if isinstance(value, str):
            text = FilterText(value, schema, kind="expression", sides=True)
            value = text.value(column.type)
        if isinstance(value, pc.Expression):
            kind = computed_type(schema, value)
            _stored(pa.chunked_array([], kind), column)
            return value
        return value if isinstance(value, pa.Scalar) else pa.scalar(value, column.type)
    except InvalidInputError:
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"the value of a column does not fit it: {column.name} has type {column.type}: {error}. "
            "A text is SQL: write the text itself in single quotes, 'like this'",
            kind="expression",
            column=column.name,
        ) from error


def _stored(values: pa.ChunkedArray, column: pa.Field[Any]) -> pa.ChunkedArray:
    """Return values in the type of their column: a number that does not fit is an error."""
    own, kind = values.type, column.type
    if pa.types.is_null(own):
        return pa.chunked_array([pa.nulls(len(values), kind)])
    if not (_is_number(own) and _is_number(kind)):
        return cast_column(values, kind, column.name)
    if pa.types.is_decimal(own) and pa.types.is_decimal(kind) and own.scale > kind.scale:
        values = pc.round(values, ndigits=kind.scale, round_mode="half_towards_infinity")  # as SQL
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"a computed number does not fit its column: {column.name} has type {kind}: {error}; "
            "leave such rows out by a condition, or write CAST(... AS INT) to cut digits off",
            kind="expression_value",
            column=column.name,
        ) from error


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


# ---- Apply clauses


@dataclass(frozen=True, slots=True)
class _Rows:
    """Joined rows: row n of each table belongs together."""

    sides: Mapping[str, pa.Table]

    @property
    def joined(self) -> pa.Table:
        return pa.table({side: rows.to_struct_array() for side, rows in self.sides.items()})

    def filter(self, mask: Mask) -> _Rows:
        return _Rows({side: rows.filter(pa.array(mask)) for side, rows in self.sides.items()})


def apply_clauses(
    sides: Mapping[str, pa.Table], clauses: Sequence[BoundClause], target: TargetRules
) -> tuple[ChangedRows, Mask]:
    """
    Apply the clauses of one ``When`` to joined rows.

    Args:
        sides: By ``TARGET`` and ``SOURCE`` the rows of each side; row n of both belongs together.
        clauses: In the order of the statement.
        target: The target.

    Returns:
        The changed rows, and a mask of the joined rows that a clause acted on.

    Raises:
        InvalidInputError: A value cannot be computed (``expression_value``) or does not fit its
            column (``lossy_value``), or an update changes a fixed column (``changed_key``) or
            lowers an ordering value (``ordering_lowered``).

    Shapes: sides (n rows) -> changed rows (m,), mask (n,); m is the number of true values.
    """
    rows = _Rows(sides)
    (count,) = {len(side) for side in sides.values()}
    left, parts = np.ones(count, np.bool_), []
    joined = rows.joined
    for clause in clauses:
        hits = left.copy()
        if clause.condition is not None:
            holds = pc.fill_null(computed(joined, clause.condition, "the condition"), False)
            hits &= np.asarray(holds).astype(np.bool_)
        left &= ~hits
        chosen = rows.filter(hits)
        made = _made(chosen, clause, target)
        gone = clause.action is MergeAction.DELETE
        parts.append(ChangedRows(made, pa.chunked_array([pa.repeat(gone, made.num_rows)])))
    return ChangedRows.of(parts, target.schema), ~left


def _made(rows: _Rows, clause: BoundClause, target: TargetRules) -> pa.Table:
    if clause.action is MergeAction.DELETE:
        return rows.sides[TARGET]
    joined = rows.joined
    before = rows.sides.get(TARGET)
    columns = []
    for column in target.schema:
        value = clause.values.get(column.name)
        if isinstance(value, pa.Scalar):
            one = _stored(pa.chunked_array([pa.array([value.as_py()], value.type)]), column)
            columns.append(one.take(pa.array(np.zeros(joined.num_rows, np.int64))))
        elif value is not None:
            columns.append(_stored(computed(joined, value, f"column {column.name}"), column))
        elif before is not None:
            columns.append(before.column(column.name))
        else:
            columns.append(pa.chunked_array([pa.nulls(joined.num_rows, column.type)]))
    made = pa.Table.from_arrays(columns, schema=target.schema)
    if before is not None:
        _refuse_changed_keys(before, made, target)
        _refuse_lower_order(before, made, target)
        _refuse_ignored_values(before, made, clause.values, target)
    return made


def _refuse_changed_keys(before: pa.Table, after: pa.Table, target: TargetRules) -> None:
    for name in target.fixed:
        old, new = plain_column(before, name), plain_column(after, name)
        if old is None or new is None:
            continue
        rows = int(_differs(old, new).sum())
        if rows:
            raise changed_key(name, rows)


def changed_key(column: str, rows: int) -> InvalidInputError:
    """Return the error of updates that change a fixed column."""
    return InvalidInputError(
        "an update cannot change the record key or the partition of a row; delete the row, "
        f"and insert it with its new values: column={column!r} rows={rows}",
        kind="changed_key",
        column=column,
        rows=rows,
    )


def _refuse_lower_order(before: pa.Table, after: pa.Table, target: TargetRules) -> None:
    if not target.ordering or not before.num_rows:
        return
    new, old = (
        [ordering_column(rows, name) for name in target.ordering] for rows in (after, before)
    )
    rows = int((~not_below(new, old)).sum())
    if rows:
        raise ordering_lowered(target.ordering, rows)


def ordering_lowered(columns: Sequence[str], rows: int) -> InvalidInputError:
    """Return the error of updates that lower an ordering value."""
    return InvalidInputError(
        "the ordering value of a changed row cannot be lower than before, because the stored row "
        "would win; leave the column out, or give it a greater value: "
        f"columns={list(columns)} rows={rows}",
        kind="ordering_lowered",
        columns=list(columns),
        rows=rows,
    )


def _refuse_ignored_values(
    before: pa.Table, after: pa.Table, names: Iterable[str], target: TargetRules
) -> None:
    """Refuse values that the table's merge ignores, so that the stored ones would stay."""
    if target.merge is None or not target.merge.reads_values:
        return
    counts = known_values(after, target.merge)
    for name in counts.keys() & set(names):
        lost = ~counts[name] & _differs(before.column(name), after.column(name))
        if lost.any():
            raise InvalidInputError(
                "the table's partial update mode ignores a value that an update sets, so the stored "
                f"one would stay; delete the rows, and insert them again: column={name!r} "
                f"rows={int(lost.sum())}",
                kind="ignored_value",
                column=name,
                rows=int(lost.sum()),
            )


def _differs(old: pa.ChunkedArray, new: pa.ChunkedArray) -> Mask:
    """Return a mask of values that are not equal; nulls are equal. Values of nested types differ."""
    if pa.types.is_nested(old.type):
        return np.ones(len(old), np.bool_)
    differs = pc.fill_null(pc.not_equal(old, new), True)
    either = pc.or_(pc.is_valid(old), pc.is_valid(new))
    return np.asarray(pc.and_(differs, either)).astype(np.bool_)


# ---- Merge a target, piece by piece, with a source


@dataclass(slots=True, kw_only=True)
class RowMerge:
    """
    A merge in progress: its source is in memory, its target comes in pieces.

    Args:
        clauses: In the order of the statement.
        target: The target.
        source: All rows of the source.
        source_keys: Its values of the columns that both sides are joined by.
        also: A further condition of a match, over ``target`` and ``source``.
    """

    clauses: Sequence[BoundClause]
    target: TargetRules
    source: pa.Table
    source_keys: pa.Table
    also: pc.Expression | None = None
    _matched: Mask = field(init=False)

    def __post_init__(self) -> None:
        self._matched = np.zeros(self.source.num_rows, np.bool_)

    def piece(self, rows: pa.Table, keys: pa.Table) -> ChangedRows:
        """
        Return the changes of some rows of the target; each row belongs to one piece.

        Args:
            rows: The rows.
            keys: Their values of the columns that both sides are joined by.

        Raises:
            InvalidInputError: Two rows of the source change one row (``merge_row_twice``); and as
                ``apply_clauses``.
        """
        mine, others = matches(keys, self.source_keys)
        sides = {TARGET: rows.take(pa.array(mine)), SOURCE: self.source.take(pa.array(others))}
        if self.also is not None:
            holds = computed(_Rows(sides).joined, self.also, "the condition of the match")
            kept = np.asarray(pc.fill_null(holds, False)).astype(np.bool_)
            mine, others = mine[kept], others[kept]
            sides = dict(_Rows(sides).filter(kept).sides)
        self._matched[others] = True
        matched, acted = apply_clauses(sides, self._of(When.MATCHED), self.target)
        twice = len(mine[acted]) - len(np.unique(mine[acted]))
        if twice:
            raise row_twice(twice)
        parts = [matched]
        if lonely := self._of(When.NOT_MATCHED_BY_SOURCE):
            unmatched = np.ones(rows.num_rows, np.bool_)
            unmatched[mine] = False
            alone = {TARGET: rows.filter(pa.array(unmatched))}
            parts.append(apply_clauses(alone, lonely, self.target)[0])
        return ChangedRows.of(parts, self.target.schema)

    def rest(self) -> ChangedRows:
        """Return the inserts, after all pieces: rows of the source that matched no row."""
        alone = {SOURCE: self.source.filter(pa.array(~self._matched))}
        return apply_clauses(alone, self._of(When.NOT_MATCHED), self.target)[0]

    def _of(self, when: When) -> list[BoundClause]:
        return [clause for clause in self.clauses if clause.when is when]


def row_twice(rows: int) -> InvalidInputError:
    """Return the error of a merge in which rows of the source compete for a row of the table."""
    return InvalidInputError(
        "several rows of the source change one row of the table, and no rule chooses "
        f"between them; keep one, or narrow the conditions: {counted(rows, 'row')} too many",
        kind="merge_row_twice",
        rows=rows,
    )


def matches(target: pa.Table, source: pa.Table) -> tuple[Positions, Positions]:
    """
    Return the positions of the pairs of rows with equal values in all columns; null never matches.

    Shapes: target (n rows), source (m rows) of the same types -> (pairs,), (pairs,).
    """
    names = [f"k{number}" for number in range(target.num_columns)]
    left = pa.table([*target.columns, np.arange(target.num_rows)], names=[*names, "target"])
    right = pa.table([*source.columns, np.arange(source.num_rows)], names=[*names, "source"])
    found = left.join(right, names, join_type="inner")
    first, second = (found.column(side).to_numpy() for side in ("target", "source"))
    return first.astype(np.intp), second.astype(np.intp)
