"""
Statements of ``SparkSession.sql``: Spark parses them, hoodoo runs those that write Hudi tables.

A statement of no interest goes to Spark as it is, after the tables that it reads are served by
name (``names.py``). Paths, times and changes of tables in a query become temporary views first.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.types import StructType

from filegroups.schema.schema import META_COLUMNS
from filegroups.writing.write_request import CommitResult
from hoodoo.spark.formats import has_hudi_bundle, remember_result
from hoodoo.spark.sql.catalyst import (
    Node,
    constants,
    first_line,
    kind_of,
    listed_map,
    listed_seq,
    nodes_of,
    parse_plan,
    value_of,
)
from hoodoo.spark.sql.declared import DEFAULT
from hoodoo.spark.sql.names import (
    SESSION_CATALOG,
    NamedTable,
    PinnedTable,
    find_table,
    forget_rows,
    identifier,
    is_view_of_tables,
    load_named,
    load_pinned,
    names_in,
    required_table,
    served,
)
from timeline.errors import InvalidInputError

#: Texts that a statement may have only if parts of it become views.
_VIEWS = re.compile(r"\bhudi\b|\bhoodoo\b|\bas\s+of\b|\bhudi_", re.IGNORECASE)
_WRITES = re.compile(r"\binsert\b|\bupdate\b|\bdelete\b|\bmerge\b", re.IGNORECASE)
_DEFAULT = re.compile(r"\bdefault\b", re.IGNORECASE)
_THREE_PARTS = re.compile(r"[\w`]\s*\.\s*[\w`]+\s*\.\s*[\w`]")
#: What does the work of Hudi's other functions of tables.
_FUNCTIONS: Final = {
    "hudi_query_timeline": "CALL show_timeline(table => '...')",
    "hudi_filesystem_view": "hoodoo files TABLE",
    "hudi_metadata": "hoodoo metadata status TABLE",
}
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
        views: Temporary views of parts of the statement, by name.
        paths: The tables that views stand for, if the statement names their paths.
        changed: The Hudi table that it changes.
    """

    spark: Any
    text: str
    plan: Any
    by_spark: RunBySpark
    views: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, NamedTable] = field(default_factory=dict)
    changed: NamedTable | None = None

    @property
    def kind(self) -> str:
        """The class of the plan."""
        return kind_of(self.plan)

    def table_of(self, node: Any) -> NamedTable | None:
        """Return the Hudi table that a node names; None for other tables."""
        parts = parts_of(node)
        self.changed = None if parts is None else find_table(self.spark, parts)
        return self.changed

    def target_of(self, node: Any) -> NamedTable | None:
        """
        Return the Hudi table that a node names and the statement changes.

        Raises:
            InvalidInputError: The node names a view (``sql_statement``).
        """
        parts = parts_of(node)
        if parts is None:
            return None
        self.changed = found = find_table(self.spark, parts)
        by_spark = self.kind == "InsertIntoStatement"  # into views of files
        if found is None and is_view_of_tables(self.spark, parts, by_text=by_spark):
            raise InvalidInputError(
                "INSERT, UPDATE, DELETE and MERGE change tables, not views: name the table, or its "
                f"path as hudi.`/path`: {'.'.join(parts)}",
                kind="sql_statement",
            )
        return found

    def replace_defaults(
        self, named: NamedTable, prefixes: Collection[tuple[str, ...]] = ()
    ) -> None:
        """
        Replace DEFAULT by the default value of its column: NULL without a declared one.

        Args:
            named: The changed table.
            prefixes: What may stand before its columns, in lower case.

        Raises:
            InvalidInputError: A field of a struct gets DEFAULT (``expression``).
        """
        own = () if named.entry is None else named.entry.schema().fieldNames()
        if not _DEFAULT.search(self.text) or any(str(one).lower() == "default" for one in own):
            return
        declared, columns = named.declared, self._inserted_columns(named)
        made: dict[tuple[int, int], str] = {}
        for one in nodes_of(self.spark, self.plan):
            span = one.span
            if one.kind != "UnresolvedAttribute" or span is None:
                continue
            if self.text[slice(*span)].lower() != "default":
                continue
            name = columns.get(span, "")
            if kind_of(one.parent) == "Assignment":
                *around, name = (str(part) for part in listed_seq(one.parent.key().nameParts()))
                if around and tuple(part.lower() for part in around) not in prefixes:
                    field = ".".join((*around, name))
                    raise InvalidInputError(
                        f"DEFAULT is a value of columns, and a field has none: set {field} to NULL "
                        "or to a value",
                        kind="expression",
                        column=field,
                    )
            made[span] = f"({declared.get(name.casefold(), {}).get(DEFAULT, 'NULL')})"
        self._replace(made)

    def _inserted_columns(self, named: NamedTable) -> dict[tuple[int, int], str]:
        """Return the columns of the values of an INSERT, by the places of the values in the text."""
        plan = self.plan
        if self.kind != "InsertIntoStatement" or named.entry is None:
            return {}
        fixed = {
            key.lower()
            for key, value in listed_map(plan.partitionSpec()).items()
            if value_of(value)
        }
        names = [str(name) for name in listed_seq(plan.userSpecifiedCols())] or [
            name
            for name in map(str, named.entry.schema().fieldNames())
            if name not in META_COLUMNS and name.lower() not in fixed
        ]
        query = plan.query()
        rows = []
        if kind_of(query) == "UnresolvedInlineTable":
            rows = [listed_seq(row) for row in listed_seq(query.rows())]
        elif kind_of(query) == "Project":
            rows = [listed_seq(query.projectList())]
        return {
            span: name
            for row in rows
            for name, value in zip(names, row, strict=False)
            if (span := Node(value, "", None).span) is not None
        }

    def done(self, result: CommitResult | None = None) -> Any:
        """Return the result of a command for Spark: no rows; and keep that of a commit."""
        if result is not None:
            remember_result(self.spark, result)
        if self.changed is not None:
            forget_rows(self.spark, self.changed)
        return self.spark.createDataFrame([], StructType([]))

    def rows(self, rows: Sequence[Sequence[object]], schema: str) -> Any:
        """Return rows as the result of a command."""
        return self.spark.createDataFrame([tuple(row) for row in rows], schema)

    def prefixes_of(self, node: Any) -> set[tuple[str, ...]]:
        """Return what may stand before the columns of a table without an alias, in lower case."""
        parts = None if kind_of(node) == "SubqueryAlias" else parts_of(node)
        ident = None if parts is None else identifier(self.spark, parts)
        if ident is None:
            return set()
        name = (str(value_of(ident.database())).lower(), str(ident.table()).lower())
        return {name, (SESSION_CATALOG, *name)}

    def shorten_columns(self, *nodes: Any) -> None:
        """
        Replace ``database.table.column`` by ``table.column`` for tables without an alias.

        Args:
            nodes: The nodes of the tables.
        """
        if not _THREE_PARTS.search(self.text):
            return
        prefixes = {prefix for node in nodes for prefix in self.prefixes_of(node)}
        made: dict[tuple[int, int], str] = {}
        for one in nodes_of(self.spark, self.plan):
            if one.kind != "UnresolvedAttribute" or one.span is None:
                continue
            parts = tuple(str(part) for part in listed_seq(one.node.nameParts()))
            folded, (start, end) = tuple(part.lower() for part in parts), one.span
            count = next((n for n in (2, 3) if folded[:n] in prefixes and len(parts) > n), 0)
            if count and parts_in(self.spark, self.text[start:end]) == parts:
                made[start, end] = quoted(parts[count - 1 :])
        self._replace(made)

    def _replace(self, made: Mapping[tuple[int, int], str]) -> None:
        """Replace parts of the text, from start to end, and parse it again."""
        for (start, end), text in sorted(made.items(), reverse=True):
            self.text = self.text[:start] + text + self.text[end:]
        if made:
            self.plan = parse_plan(self.spark, self.text)

    @contextmanager
    def with_views(self, target: Any = None, *, loads: bool = True) -> Iterator[None]:
        """
        Replace the paths, times and changes of tables in the statement by temporary views.

        Args:
            target: The node of the table that the statement changes; it stays.
            loads: Whether views of paths are made now; else ``load_paths`` makes them.
        """
        try:
            if _VIEWS.search(self.text):
                self._replace_by_views(target)
            if loads:
                self.load_paths()
            yield
        finally:
            for name in self.views:
                self.spark.catalog.dropTempView(name)

    def load_paths(self, pinned: PinnedTable | None = None) -> None:
        """Let the views of paths have the newest rows, or those of the pinned snapshot."""
        for name, table in self.paths.items():
            df = self.views[name] = load_pinned(self.spark, table, pinned)
            df.createOrReplaceTempView(name)

    def _replace_by_views(self, target: Any) -> None:
        kept = None if target is None else Node(target, "", None).span
        made: dict[tuple[int, int], str] = {}  # a common table expression may occur twice
        for one in nodes_of(self.spark, self.plan):
            span = one.span
            if span is None or span == kept or span in made:
                continue
            name = f"hoodoo_{uuid.uuid4().hex}"
            if (table := self._path_of(one)) is not None:
                self.paths[name] = table
                made[span] = f"`{name}`"
                continue
            found = self._view_of(one, span)
            if found is None or found[0] in made:
                continue
            where, df, alias = found
            df.createOrReplaceTempView(name)
            self.views[name] = df
            is_named = one.parent is not None and kind_of(one.parent) == "SubqueryAlias"
            made[where] = f"`{name}`" + ("" if is_named or not alias else f" AS `{alias}`")
        self._replace(made)

    def _path_of(self, one: Node) -> NamedTable | None:
        """Return the table that a relation of a query names by its path; None for others."""
        parts = (parts_of(one.node) or ()) if one.kind == "UnresolvedRelation" else ()
        of_time = one.parent is not None and kind_of(one.parent) == "RelationTimeTravel"
        if of_time or len(parts) != 2 or "/" not in parts[-1]:
            return None
        return find_table(self.spark, parts)

    def _view_of(self, one: Node, span: tuple[int, int]) -> tuple[tuple[int, int], Any, str] | None:
        """Return the text that a view replaces, its rows and the name it would have; or None."""
        if one.kind == "RelationTimeTravel":
            names = parts_of(one.node.relation())
            table = None if names is None else find_table(self.spark, names)
            if table is None:
                return None
            inner = Node(one.node.relation(), "", None).span or span
            where = (min(span[0], inner[0]), max(span[1], inner[1]))
            name = (parts_of(one.node.relation()) or ("",))[-1]
            alias = "" if "/" in name else name
            return where, self._loaded(table, {"as.of.instant": self._time_of(one.node)}), alias
        if one.kind == "UnresolvedTableValuedFunction":
            called = [str(part).lower() for part in listed_seq(one.node.name())]
            name = called[-1] if called else ""
            if name in _FUNCTIONS and not has_hudi_bundle(self.spark):
                raise InvalidInputError(
                    f"hoodoo does not have the function {name}: {_FUNCTIONS[name]}",
                    kind="sql_statement",
                )
            if name not in _SERVED_FUNCTIONS:
                return None
            try:
                arguments = constants(self.spark, listed_seq(one.node.functionArgs()))
            except AnalysisException as error:
                raise InvalidInputError(
                    f"the arguments of {name} are literals, such as 'db.orders' or '/path': "
                    f"{first_line(error)}",
                    kind="sql_argument",
                ) from error
            values = [str(value) for value in arguments]
            parts = parts_of_text(values[0] if values else "")
            if has_hudi_bundle(self.spark) and find_table(self.spark, parts) is None:
                return None
            options = _SERVED_FUNCTIONS[name](values)
            table = required_table(self.spark, parts)
            return (span[0], _call_end(self.text, span[0])), self._loaded(table, options), ""
        return None

    def _time_of(self, node: Any) -> str:
        time, version = value_of(node.timestamp()), value_of(node.version())
        if version is not None:
            return str(version)
        (moment,) = constants(self.spark, [time])
        return str(moment)

    def _loaded(self, table: NamedTable, options: Mapping[str, str]) -> Any:
        return load_named(self.spark, table, options)


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


def parts_of_text(name: str) -> tuple[str, ...]:
    """Return the parts of a name or path that a statement has as a text."""
    return ("hudi", name) if "/" in name else tuple(name.replace("`", "").split("."))


def _changes_options(values: Sequence[str]) -> dict[str, str]:
    """
    Return the read options of ``hudi_table_changes(table, type, start[, end])``.

    Raises:
        InvalidInputError: An argument is wrong.
    """
    if len(values) not in (3, 4) or values[1].lower() not in ("latest_state", "cdc"):
        raise InvalidInputError(
            "hudi_table_changes takes a table or path, 'latest_state' or 'cdc', a start time and "
            f"optionally an end time, not {tuple(values)}",
            kind="sql_argument",
        )
    _, kind, start, *end = values
    options = {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.read.begin.instanttime": start,
    }
    if kind.lower() == "cdc":
        options["hoodie.datasource.query.incremental.format"] = "cdc"
    if end:
        options["hoodie.datasource.read.end.instanttime"] = end[0]
    return options


def _query_options(values: Sequence[str]) -> dict[str, str]:
    """
    Return the read options of ``hudi_query(table, type)``.

    Raises:
        InvalidInputError: An argument is wrong.
    """
    if len(values) != 2 or values[1].lower() not in ("snapshot", "read_optimized"):
        raise InvalidInputError(
            "hudi_query takes a table or path, and 'snapshot' or 'read_optimized', not "
            f"{tuple(values)}; hudi_table_changes reads changes",
            kind="sql_argument",
        )
    return {"hoodie.datasource.query.type": values[1].lower()}


_SERVED_FUNCTIONS: Final[Mapping[str, Callable[[Sequence[str]], dict[str, str]]]] = {
    "hudi_table_changes": _changes_options,
    "hudi_query": _query_options,
}


def run_by_spark(statement: Statement) -> Any:
    """Run a statement by Spark, which reads Hudi tables by their names."""
    spark = statement.spark
    _refuse_inner_writes(statement)
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
        elif statement.kind == "DescribeQueryCommand":  # before Spark 4.0 it shows no query
            plan = plan.plan()
        with served(spark, names_in(plan)) as loaded:
            result = statement.by_spark(statement.text)
        setattr(result, _SOURCES, (*loaded, *statement.views.values()))  # the leases of their files
    return result


def _refuse_inner_writes(statement: Statement) -> None:
    """Refuse a statement that writes a Hudi table inside another one, where Spark would run it."""
    if not _WRITES.search(statement.text):
        return
    for one in nodes_of(statement.spark, statement.plan):
        if one.kind in ("InsertIntoStatement", "UpdateTable", "DeleteFromTable"):
            target = one.node.table()
        elif one.kind == "MergeIntoTable":
            target = one.node.targetTable()
        else:
            continue
        if statement.table_of(target) is not None:
            raise InvalidInputError(
                "a statement that writes a Hudi table cannot be part of another statement: write no "
                "EXPLAIN, BEGIN or FROM before it, and run several INSERTs one by one",
                kind="sql_statement",
            )


def read_by_name(spark: Any, name: str, by_spark: Callable[[str], Any]) -> Any:
    """Return the rows of a table, as ``spark.table``."""
    parts = name_parts(spark, name)
    with served(spark, [parts]) as loaded:
        result = by_spark(name)
    setattr(result, _SOURCES, tuple(loaded))
    return result


def parts_in(spark: Any, text: str) -> tuple[str, ...] | None:
    """Return the parts of a name; None for another text."""
    try:
        return name_parts(spark, text)
    except ParseException:
        return None


def quoted(parts: Sequence[str]) -> str:
    """Return a name of parts in backticks."""
    return ".".join("`{}`".format(part.replace("`", "``")) for part in parts)


def name_parts(spark: Any, name: str) -> tuple[str, ...]:
    """Return the parts of a name. Raises: Spark's ParseException."""
    parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    return tuple(str(part) for part in listed_seq(parser.parseMultipartIdentifier(name)))
