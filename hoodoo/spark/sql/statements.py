"""
Statements of ``SparkSession.sql``: Spark parses them, hoodoo runs those that write Hudi tables.

A statement of no interest goes to Spark as it is, after the tables that it reads are served by
name (``names.py``). Paths, times and changes of tables in a query become temporary views first.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.types import StructType

from filegroups.writing.write_request import CommitResult
from hoodoo.spark.formats import remember_result
from hoodoo.spark.read import load_dataframe
from hoodoo.spark.sql.catalyst import (
    Node,
    constants,
    kind_of,
    listed_seq,
    nodes_of,
    parse_plan,
    value_of,
)
from hoodoo.spark.sql.names import NamedTable, find_table, names_in, required_table, served
from timeline.errors import InvalidInputError

#: Texts that a statement may have only if parts of it become views.
_VIEWS = re.compile(r"\bhudi\b|\bhoodoo\b|\bas\s+of\b|hudi_table_changes", re.IGNORECASE)
_CHANGES: Final = "hudi_table_changes"
_NAMED = ("UnresolvedRelation", "UnresolvedTable", "UnresolvedTableOrView")
_SOURCES = "_hoodoo_sources"

RunBySpark = Callable[[str], Any]


@dataclass(slots=True, kw_only=True)
class Statement:
    """
    A parsed statement.

    Args:
        spark: The session.
        text: Its text.
        plan: Spark's plan, not analysed.
        by_spark: Runs a text by Spark itself.
    """

    spark: Any
    text: str
    plan: Any
    by_spark: RunBySpark
    views: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The class of the plan."""
        return kind_of(self.plan)

    def table_of(self, node: Any) -> NamedTable | None:
        """Return the Hudi table that a node names; None for other tables."""
        parts = parts_of(node)
        return None if parts is None else find_table(self.spark, parts)

    def done(self, result: CommitResult | None = None) -> Any:
        """Return the result of a command for Spark: no rows; and keep that of a commit."""
        if result is not None:
            remember_result(self.spark, result)
        return self.spark.createDataFrame([], StructType([]))

    def rows(self, rows: Sequence[Sequence[object]], schema: str) -> Any:
        """Return rows as the result of a command."""
        return self.spark.createDataFrame([tuple(row) for row in rows], schema)

    @contextmanager
    def with_views(self, target: Any = None) -> Iterator[None]:
        """
        Replace the paths, times and changes of tables in the statement by temporary views.

        Args:
            target: The node of the table that the statement changes; it stays.
        """
        if _VIEWS.search(self.text):
            self._replace_by_views(target)
        try:
            yield
        finally:
            for name in self.views:
                self.spark.catalog.dropTempView(name)

    def _replace_by_views(self, target: Any) -> None:
        kept = None if target is None else Node(target, "", None).span
        made: list[tuple[tuple[int, int], str]] = []
        for one in nodes_of(self.spark, self.plan):
            span = one.span
            if span is None or span == kept:
                continue
            found = self._view_of(one, span)
            if found is None:
                continue
            where, df, alias = found
            name = f"hoodoo_{uuid.uuid4().hex}"
            df.createOrReplaceTempView(name)
            self.views[name] = df
            is_named = one.parent is not None and kind_of(one.parent) == "SubqueryAlias"
            made.append((where, f"`{name}`" + ("" if is_named or not alias else f" AS `{alias}`")))
        for (start, end), text in sorted(made, reverse=True):
            self.text = self.text[:start] + text + self.text[end:]
        if made:
            self.plan = parse_plan(self.spark, self.text)

    def _view_of(self, one: Node, span: tuple[int, int]) -> tuple[tuple[int, int], Any, str] | None:
        """Return the text that a view replaces, its rows and the name it would have; or None."""
        if one.kind == "UnresolvedRelation":
            parts = parts_of(one.node) or ()
            of_time = one.parent is not None and kind_of(one.parent) == "RelationTimeTravel"
            if of_time or len(parts) != 2 or "/" not in parts[-1]:
                return None
            table = find_table(self.spark, parts)
            return None if table is None else (span, self._loaded(table, {}), "")
        if one.kind == "RelationTimeTravel":
            table = self.table_of(one.node.relation())
            if table is None:
                return None
            inner = Node(one.node.relation(), "", None).span or span
            where = (min(span[0], inner[0]), max(span[1], inner[1]))
            name = (parts_of(one.node.relation()) or ("",))[-1]
            alias = "" if "/" in name else name
            return where, self._loaded(table, {"as.of.instant": self._time_of(one.node)}), alias
        if one.kind == "UnresolvedTableValuedFunction":
            called = [str(part).lower() for part in listed_seq(one.node.name())]
            if called[-1:] != [_CHANGES]:
                return None
            values = constants(self.spark, listed_seq(one.node.functionArgs()))
            table, options = changes_options(self.spark, [str(value) for value in values])
            return (span[0], _call_end(self.text, span[0])), self._loaded(table, options), ""
        return None

    def _time_of(self, node: Any) -> str:
        time, version = value_of(node.timestamp()), value_of(node.version())
        if version is not None:
            return str(version)
        (moment,) = constants(self.spark, [time])
        return str(moment)

    def _loaded(self, table: NamedTable, options: Mapping[str, str]) -> Any:
        return load_dataframe(self.spark, [table.path], {**table.options, **options}, warns=False)


Handler = Callable[[Statement], Any]


def parts_of(node: Any) -> tuple[str, ...] | None:
    """Return the name that a node of a parsed plan has; None if it has none."""
    kind = kind_of(node)
    if kind == "SubqueryAlias":
        return parts_of(node.child())
    if kind in _NAMED:
        return tuple(str(part) for part in listed_seq(node.multipartIdentifier()))
    if kind == "UnresolvedIdentifier":
        return tuple(str(part) for part in listed_seq(node.nameParts()))
    return None


def _call_end(text: str, start: int) -> int:
    """Return the position behind the closing parenthesis of a call."""
    depth, quote = 0, ""
    for position in range(start, len(text)):
        sign = text[position]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"`":
            quote = sign
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if not depth:
                return position + 1
    return len(text)


def changes_options(spark: Any, values: Sequence[str]) -> tuple[NamedTable, dict[str, str]]:
    """
    Return table and read options of ``hudi_table_changes(table, type, start[, end])``.

    Raises:
        InvalidInputError: An argument is wrong.
        TableNotFoundError: The first argument leads to no Hudi table.
    """
    if len(values) not in (3, 4) or values[1].lower() not in ("latest_state", "cdc"):
        raise InvalidInputError(
            f"{_CHANGES} takes a table or path, 'latest_state' or 'cdc', a start time and "
            f"optionally an end time, not {tuple(values)}",
            kind="sql_argument",
        )
    name, kind, start, *end = values
    parts = ("hudi", name) if "/" in name else tuple(name.replace("`", "").split("."))
    options = {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.read.begin.instanttime": start,
    }
    if kind.lower() == "cdc":
        options["hoodie.datasource.query.incremental.format"] = "cdc"
    if end:
        options["hoodie.datasource.read.end.instanttime"] = end[0]
    return required_table(spark, parts), options


def run_by_spark(statement: Statement) -> Any:
    """Run a statement by Spark, which reads Hudi tables by their names."""
    spark = statement.spark
    with statement.with_views():
        plan = statement.plan
        if statement.views and "View" in statement.kind:
            raise InvalidInputError(
                "a view keeps names of tables, not paths, times or changes: create a table with "
                "LOCATION and name it, or call createOrReplaceTempView on a loaded DataFrame",
                kind="sql_statement",
            )
        if statement.kind == "ExplainCommand":
            plan = plan.logicalPlan()
        with served(spark, names_in(plan)) as loaded:
            result = statement.by_spark(statement.text)
        setattr(result, _SOURCES, (*loaded, *statement.views.values()))  # the leases of their files
    return result


def read_by_name(spark: Any, name: str, by_spark: Callable[[str], Any]) -> Any:
    """Return the rows of a table, as ``spark.table``."""
    parts = name_parts(spark, name)
    with served(spark, [parts]) as loaded:
        result = by_spark(name)
    setattr(result, _SOURCES, tuple(loaded))
    return result


def name_parts(spark: Any, name: str) -> tuple[str, ...]:
    """Return the parts of a name. Raises: Spark's ParseException."""
    parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    return tuple(str(part) for part in listed_seq(parser.parseMultipartIdentifier(name)))
