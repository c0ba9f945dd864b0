"""
The columns of changed rows on Spark: values of clauses in the types of the table, and checks.

The rows that clauses act on arrive joined, with the number of the clause. All steps are columns of
Spark; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StringType, StructType

from filegroups.merge.merging import RELOCATED_COLUMN
from filegroups.schema.schema import KEY_COLUMN, META_COLUMNS
from filegroups.writing.merge_clauses import (
    TARGET,
    MergeAction,
    TargetRules,
    When,
    changed_key,
    ordering_lowered,
)
from hoodoo.spark.schema import spark_schema_of
from hoodoo.spark.sql.catalyst import (
    assignable,
    attribute,
    can_up_cast,
    cast_to_store,
    column_of,
    kind_of,
    listed_seq,
    parse_expression,
)
from hoodoo.spark.sql.declared import DEFAULT, LENGTH, Declared, sized
from timeline.errors import InvalidInputError

ACT: Final = "_hoodoo_act"  # the number of the clause that acts on a row
_BEFORE: Final = "_hoodoo_before_{}"  # a column of the target
_VALUE: Final = "_hoodoo_value_{}_{}"  # of a clause, of a column
_FLAG: Final = "_hoodoo_refused_{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkClause:
    """
    One clause of a merge, over Spark's columns.

    Args:
        when: The rows that it may act on.
        action: Its effect.
        condition: A parsed expression or a column; None for all rows.
        values: For each column of the table an expression or a column, or values of its fields; None
            takes every column from the source's column of its name.
    """

    when: When
    action: MergeAction
    condition: Any = None
    values: Mapping[str, Any] | None = None

    def takes_all_of(self, source: str, target: Target) -> bool:
        """Return whether it replaces rows by the columns of a source, whatever they have."""
        if self.action is not MergeAction.UPDATE or self.condition is not None:
            return False
        if self.values is None:
            return True
        taken = {
            target.named(name) for name, value in self.values.items() if _is_column(value, source)
        }
        return taken == {*target.types}


def _is_column(value: Any, relation: str) -> bool:
    """Return whether a parsed expression is a column of a relation, which it names."""
    if isinstance(value, Column | FieldValues) or kind_of(value) != "UnresolvedAttribute":
        return False
    around = [str(part).casefold() for part in listed_seq(value.nameParts())][:-1]
    return around == [relation.casefold()]


@dataclass(frozen=True, slots=True)
class FieldValues:
    """Values of fields of a struct: expressions by names of fields in lower case, outside first."""

    by_path: Mapping[tuple[str, ...], Any]


@dataclass(frozen=True, slots=True)
class Check:
    """A column of flags; rows with a true flag are refused with an error of their number."""

    column: str
    error: Callable[[int], InvalidInputError]


@dataclass(frozen=True, slots=True)
class Target:
    """The columns of the table of a statement."""

    spark: Any
    alias: str
    rules: TargetRules
    types: Mapping[str, Any]  # Spark's, of its own columns
    declared: Declared

    @classmethod
    def of(cls, spark: Any, alias: str, rules: TargetRules, declared: Declared) -> Target:
        """Return the columns of a table that conditions name by an alias."""
        shape = spark_schema_of(rules.schema)
        types = {each.name: each.dataType for each in shape if each.name not in META_COLUMNS}
        return cls(spark, alias, rules, types, declared)

    @property
    def stored(self) -> list[str]:
        """The meta columns that carry the key of a row that was read."""
        return [name for name in self.rules.schema.names if name in META_COLUMNS]

    def column(self, name: str) -> Any:
        """Return one of its columns."""
        return column_of(self.spark, attribute(self.spark, self.alias, name))

    def named(self, name: str) -> str:
        """Return a column's own spelling. Raises: InvalidInputError if there is none."""
        bare = name.removeprefix(f"{self.alias}.")
        for own in (*(one for one in self.types if one == bare), *self.types):
            if own.casefold() == bare.casefold():
                return own
        raise InvalidInputError(
            f"no such column to set: {name!r}; the table has {list(self.types)}",
            kind="unknown_column",
            columns=[name],
        )

    def stores_as_compared(self, name: str, given: Any) -> bool:
        """
        Return whether a value that equals none of a column also differs from all after it is stored.

        Spark compares values in the wider type of both, and a column may get a narrower one. It
        compares texts as they are, and fills or cuts those of a column with a length.
        """
        wanted = self.types[name]
        if LENGTH in self.declared.get(name.casefold(), {}):
            return False
        widens = not isinstance(wanted, StringType) and can_up_cast(self.spark, given, wanted)
        return given == wanted or widens


class Changes:
    """
    The rows that clauses make of joined rows.

    Args:
        target: The target.
        clauses: They act on rows whose column ``ACT`` has their number.
        source: The name of the source.
        source_names: Its columns; None without a source.
    """

    def __init__(
        self,
        target: Target,
        clauses: Sequence[SparkClause],
        source: str,
        source_names: Sequence[str] | None,
    ) -> None:
        self._target = target
        self._clauses = clauses
        self._source = source
        self._values = [self._bound(one, source_names) for one in clauses]
        self._fixed = self._set_columns(target.rules.fixed)
        self._ordering = self._set_columns(target.rules.ordering)

    @property
    def checks(self) -> list[Check]:
        """The checks of rows that are made."""
        made = [
            Check(_FLAG.format(number), partial(changed_key, name))
            for number, name in enumerate(self._fixed)
        ]
        if self._ordering:
            fields = self._target.rules.ordering
            number = len(self._fixed)
            made.append(Check(_FLAG.format(number), partial(ordering_lowered, fields)))
        return made

    def _set_columns(self, names: Sequence[str]) -> list[str]:
        """Return those of the target's columns that an update may change, by their dotted names."""
        updates = [
            values
            for one, values in zip(self._clauses, self._values, strict=True)
            if one.action is MergeAction.UPDATE
        ]
        return [name for name in names if any(name.partition(".")[0] in v for v in updates)]

    def _bound(self, clause: SparkClause, source_names: Sequence[str] | None) -> dict[str, Any]:
        if clause.action is MergeAction.DELETE:
            return {}
        if clause.values is not None:
            if not clause.values:
                raise InvalidInputError("name at least one column to set", kind="no_column")
            found: dict[str, Any] = {}
            for name, value in clause.values.items():
                own = self._target.named(name)
                if own in found:
                    raise set_twice(own)
                found[own] = value
                if isinstance(value, FieldValues):
                    kind, before = self._target.types[own], self._target.column(own)
                    found[own] = _with_fields(self._target.spark, own, kind, before, value.by_path)
            return found
        folded = {name.casefold(): name for name in source_names or ()}
        missing = [name for name in self._target.types if name.casefold() not in folded]
        if missing:
            raise InvalidInputError(
                "a clause that takes all columns needs all columns of the table in the source; add "
                f"these, or name the columns to set: {missing}",
                kind="unknown_column",
                columns=missing,
            )
        spark = self._target.spark
        return {
            name: attribute(spark, self._source, folded[name.casefold()])
            for name in self._target.types
        }

    def of(
        self,
        joined: Any,
        when: When,
        *,
        keeps: Sequence[str] = (),
        new_key: Any = None,
    ) -> Any:
        """
        Return the changed rows: keys, own columns, a mark of deletes, and flags for the checks.

        Args:
            joined: Rows with ``ACT``.
            when: The clauses that act on them.
            keeps: Further columns to keep.
            new_key: The record key of inserts into a table without key fields.
        """
        target, spark = self._target, self._target.spark
        has_target = TARGET in when.value
        inner = [F.col(name) for name in dict.fromkeys((ACT, *keeps))]
        if has_target:
            names = [*target.stored, *target.types]
            inner += [target.column(name).alias(_BEFORE.format(name)) for name in names]
        acting = [(n, one) for n, one in enumerate(self._clauses) if one.when is when]
        for number, _ in acting:
            inner += [
                F.when(F.col(ACT) == number, column_of(spark, value)).alias(
                    _VALUE.format(number, name)
                )
                for name, value in self._values[number].items()
            ]
        staged = joined.select(*inner)
        given = {each.name: each.dataType for each in staged.schema}
        made = {
            name: self._made(name, acting, given, has_target=has_target) for name in target.types
        }
        columns = []
        for name in target.stored:
            before = F.lit(None).cast("string")
            if has_target:
                before = F.col(_BEFORE.format(name))
            elif name == KEY_COLUMN and new_key is not None:
                before = new_key
            columns.append(before.alias(name))
        deletes = [n for n, one in acting if one.action is MergeAction.DELETE]
        mark = F.col(ACT).isin(deletes) if deletes else F.lit(False)
        columns += [value.alias(name) for name, value in made.items()]
        columns.append(mark.alias(RELOCATED_COLUMN))
        columns += [F.col(name) for name in keeps]
        columns += self._flags(made, has_target=has_target)
        return staged.select(*columns)

    def _made(
        self,
        name: str,
        acting: Sequence[tuple[int, SparkClause]],
        given: Mapping[str, Any],
        *,
        has_target: bool,
    ) -> Any:
        target, kind = self._target, self._target.types[name]
        declared = target.declared.get(name.casefold(), {})
        if has_target:
            made = F.col(_BEFORE.format(name))
        else:
            made = default_column(target.spark, kind, declared)
        for number, _ in reversed(acting):
            if name not in self._values[number]:
                continue
            key = _VALUE.format(number, name)
            value = stored_column(
                target.spark,
                key,
                given[key],
                kind,
                column=name,
                declared=declared,
                reads_texts=True,
            )
            made = F.when(F.col(ACT) == number, value).otherwise(made)
        return made

    def _flags(self, made: Mapping[str, Any], *, has_target: bool) -> list[Any]:
        flags = []
        for number, name in enumerate(self._fixed):
            flag = F.lit(False)
            if has_target:
                flag = ~_field(made, name).eqNullSafe(_before(name))
            flags.append(flag.alias(_FLAG.format(number)))
        if self._ordering:
            flag = F.lit(False)
            if has_target:
                flag = _is_lower(self._target.rules.ordering, made)
            flags.append(flag.alias(_FLAG.format(len(self._fixed))))
        return flags


def _with_fields(
    spark: Any, name: str, kind: Any, before: Any, values: Mapping[tuple[str, ...], Any]
) -> Any:
    """
    Return a struct with new values of some fields; the others keep theirs.

    A null struct becomes one whose other fields are null, as in tables of Spark's own.

    Args:
        spark: The session.
        name: The struct, for messages.
        kind: Its type.
        before: The column of the struct as it is.
        values: As of ``FieldValues``.

    Raises:
        InvalidInputError: There is no such field (``unknown_column``), or a field is set twice
            (``expression``).
    """
    own = {one.name.casefold() for one in kind} if isinstance(kind, StructType) else set()
    unknown = [".".join((name, *path)) for path in values if path[0] not in own]
    if unknown:
        raise InvalidInputError(
            f"no such field to set: {unknown}; the column has type {kind.simpleString()}. Set a whole "
            "array or map by its functions",
            kind="unknown_column",
            columns=unknown,
        )
    columns = []
    for field in kind:
        inside = {
            path[1:]: value for path, value in values.items() if path[0] == field.name.casefold()
        }
        made, label = before.getField(field.name), f"{name}.{field.name}"
        if () in inside and len(inside) > 1:
            raise set_twice(label)
        if () in inside:
            made = column_of(spark, inside[()])
        elif inside:
            made = _with_fields(spark, label, field.dataType, made, inside)
        columns.append(made.alias(field.name))
    return F.struct(*columns)


def set_twice(name: str) -> InvalidInputError:
    """Return the error of a statement with two values for a column or a field."""
    return InvalidInputError(f"a column is set twice: {name!r}", kind="expression", column=name)


def _field(made: Mapping[str, Any], name: str) -> Any:
    head, *rest = name.split(".")
    return reduce(lambda column, step: column.getField(step), rest, made[head])


def _before(name: str) -> Any:
    head, *rest = name.split(".")
    return reduce(lambda column, step: column.getField(step), rest, F.col(_BEFORE.format(head)))


def _is_lower(fields: Sequence[str], made: Mapping[str, Any]) -> Any:
    """Return whether ordering values fall; a row without a value is the older one."""
    new = F.struct(*(_field(made, name).alias(str(n)) for n, name in enumerate(fields)))
    old = F.struct(*(_before(name).alias(str(n)) for n, name in enumerate(fields)))
    complete = reduce(lambda one, name: one & _before(name).isNotNull(), fields, F.lit(True))
    return complete & (new < old)


def stored_column(
    spark: Any,
    name: str,
    given: Any,
    wanted: Any,
    *,
    column: str,
    declared: Mapping[str, str],
    reads_texts: bool = False,
) -> Any:
    """
    Return a column in the type of the table's column.

    Args:
        spark: The session.
        name: The column.
        given: Its type.
        wanted: The type of the table's column.
        column: The name of the table's column.
        declared: What the catalog keeps of it.
        reads_texts: Whether texts are read as values of other types, as Java Hudi does in UPDATE
            and MERGE. A text that is no such value is an error.

    Raises:
        InvalidInputError: A value of this type cannot be stored (``expression``).
    """
    if not (given == wanted or assignable(spark, given, wanted, reads_texts=reads_texts)):
        raise InvalidInputError(
            f"a value does not fit its column: {column} has type {wanted.simpleString()}, the "
            f"value {given.simpleString()}; convert it by CAST",
            kind="expression",
            column=column,
        )
    stored = attribute(spark, name)
    if given != wanted:
        stored = cast_to_store(spark, stored, wanted)
    return column_of(spark, sized(spark, stored, declared.get(LENGTH)))


def default_column(spark: Any, wanted: Any, declared: Mapping[str, str]) -> Any:
    """Return the default value of a column; null without a declared one."""
    if DEFAULT not in declared:
        return F.lit(None).cast(wanted)
    stored = cast_to_store(spark, parse_expression(spark, declared[DEFAULT]), wanted)
    return column_of(spark, sized(spark, stored, declared.get(LENGTH)))
