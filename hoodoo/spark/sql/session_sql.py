"""``SparkSession.sql`` with hoodoo installed: arguments, and who runs which kind of statement."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import ParseException, PySparkValueError
from pyspark.sql.sql_formatter import SQLStringFormatter

from hoodoo.spark.sql import alterations, changes, definitions
from hoodoo.spark.sql.call import CALL, call
from hoodoo.spark.sql.catalyst import (
    constants,
    first_line,
    has_field,
    kind_of,
    listed_seq,
    nodes_of,
    parse_expression,
    parse_plan,
)
from hoodoo.spark.sql.names import names_in, served
from hoodoo.spark.sql.statements import Handler, Statement, run_by_spark
from timeline.errors import InvalidInputError

_HANDLERS: Mapping[str, Handler] = {
    **changes.HANDLERS,
    **definitions.HANDLERS,
    **alterations.HANDLERS,
}
#: Statements that not every parser of Spark knows.
_TEXTS = (*alterations.TEXTS, (CALL, call))

_IMMEDIATE = frozenset({"ExecuteImmediateQuery", "UnresolvedExecuteImmediate"})
_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)+", re.DOTALL)

Arguments = Mapping[str, Any] | Sequence[Any] | None


def run_sql(
    spark: Any,
    text: str,
    args: Arguments,
    frames: Mapping[str, Any],
    spark_sql: Callable[..., Any],
) -> Any:
    """
    Run a statement as ``spark.sql`` does.

    Args:
        spark: The session.
        text: The statement.
        args: Values of its parameters.
        frames: DataFrames and other values that the text names in braces.
        spark_sql: Spark's own ``SparkSession.sql``.

    Raises:
        HoodooError: A statement on a Hudi table is refused or fails.
        AnalysisException, ParseException: Spark's, for all other statements.
    """
    formatter = SQLStringFormatter(spark)
    try:
        if frames:
            text = formatter.format(text, **frames)

        def by_spark(changed: str) -> Any:
            return spark_sql(spark, changed, args) if args else spark_sql(spark, changed)

        bare = _COMMENTS.sub("", text)
        for pattern, run in _TEXTS:
            match = pattern.fullmatch(bare)
            if match is not None and args and run is call:
                match = pattern.fullmatch(_bound_call(spark, match, args)) or match
            result = None if match is None else run(spark, match)
            if result is not None:
                return result
        try:
            plan = parse_plan(spark, text)
        except ParseException:
            return by_spark(text)  # it raises the error as the user knows it
        statement = Statement(spark=spark, text=text, plan=plan, by_spark=by_spark)
        handler = _HANDLERS.get(statement.kind)
        is_immediate = statement.kind in _IMMEDIATE
        if args and (handler is not None or is_immediate):
            bound = with_arguments(spark, text, plan, args)
            statement = Statement(
                spark=spark, text=bound, plan=parse_plan(spark, bound), by_spark=by_spark
            )
        if is_immediate:
            return _run_immediate(statement, spark_sql)
        try:
            result = None if handler is None else handler(statement)
        except PySparkValueError as error:
            if "CANNOT_PARSE_DATATYPE" not in str(error):
                raise
            raise InvalidInputError(
                "Spark's Python client does not know a type of the statement, such as INTERVAL: cast "
                f"the column to a text or a number: {first_line(error)}",
                kind="unsupported_type",
            ) from error
        if result is not None:
            return result
        return run_by_spark(Statement(spark=spark, text=text, plan=plan, by_spark=by_spark))
    finally:
        formatter.clear()


def _run_immediate(statement: Statement, spark_sql: Callable[..., Any]) -> Any:
    """Run ``EXECUTE IMMEDIATE text [INTO variables] [USING values]``."""
    spark, plan = statement.spark, statement.plan
    if has_field(plan, "sqlStmtStr"):
        source = plan.sqlStmtStr()
    else:  # until Spark 4.0: a text, or the name of a variable
        source = plan.query().left().get() if plan.query().isLeft() else plan.query().right().get()
    text = source if isinstance(source, str) else constants(spark, [source])[0]
    if listed_seq(plan.targetVariables()):
        with served(spark, names_in(parse_plan(spark, text))):
            return statement.by_spark(statement.text)
    given = listed_seq(plan.args())
    values = constants(spark, given)
    names = [str(one.name()) for one in given if kind_of(one) == "Alias"]
    is_named = bool(names) and len(names) == len(values)
    args = dict(zip(names, values, strict=True)) if is_named else values
    return run_sql(spark, text, args, {}, spark_sql)


def _bound_call(spark: Any, match: re.Match[str], args: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return a CALL with literals in place of its parameters; as it is if Spark cannot parse it."""
    text = f"{match['name']}({match['args']})"
    try:
        parsed = parse_expression(spark, text)
    except ParseException:
        return match[0]
    return f"CALL {with_arguments(spark, text, parsed, args)}"


def with_arguments(
    spark: Any, text: str, parsed: Any, args: Mapping[str, Any] | Sequence[Any]
) -> str:
    """
    Return the text of a statement with literals in place of its parameters.

    Raises:
        InvalidInputError: An argument is missing, or has a type without a literal.
    """
    found: list[tuple[int, int, str | None]] = []
    for one in nodes_of(spark, parsed):
        if one.kind in ("NamedParameter", "PosParameter") and one.span is not None:
            key = str(one.node.name()) if one.kind == "NamedParameter" else None
            found.append((*one.span, key))
    values = iter(args if not isinstance(args, Mapping) else ())
    pieces, end = [], 0
    for start, stop, key in sorted(found, key=lambda each: each[0]):
        try:
            value = args[key] if isinstance(args, Mapping) else next(values)  # type: ignore[index]
        except (KeyError, StopIteration):
            raise InvalidInputError(
                f"a parameter of the statement has no value: pass it in args: {key or '?'}",
                kind="sql_argument",
            ) from None
        pieces += [text[end:start], literal(value)]
        end = stop
    return "".join([*pieces, text[end:]])


def literal(value: object) -> str:
    """
    Return a value as a literal of Spark's SQL.

    Raises:
        InvalidInputError: There is no literal of its type.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"{value}L" if abs(value) >= 2**31 else str(value)
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else f"double('{value}')"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}BD"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, bytes | bytearray):
        return f"X'{bytes(value).hex()}'"
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP'{value.isoformat(sep=' ')}'"
    if isinstance(value, dt.date):
        return f"DATE'{value.isoformat()}'"
    raise InvalidInputError(
        f"a parameter of a statement on a Hudi table is a plain value, not {type(value).__name__}: "
        "write it into the statement",
        kind="sql_argument",
    )
