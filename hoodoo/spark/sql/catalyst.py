"""
Spark's parser, plans and expressions from Python, by py4j.

Spark's classes differ between versions in their constructors, not in the names of their fields. So
fields are read by name, and a changed copy of an object takes all other fields from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import lit
from pyspark.sql.types import StringType, StructType

from hoodoo.spark.formats import has_hudi_bundle
from hoodoo.spark.java import java_class, java_type
from timeline.errors import InvalidInputError

_HAS_CLASSIC = find_spec("pyspark.sql.classic") is not None  # since Spark 4.0
_DATASET = "org.apache.spark.sql.{}Dataset".format("classic." if _HAS_CLASSIC else "")
_TREE_NODE = "org.apache.spark.sql.catalyst.trees.TreeNode"


#: Statements that may have common table expressions before them.
_WRITES = ("InsertIntoStatement", "UpdateTable", "DeleteFromTable", "MergeIntoTable")


def parse_plan(spark: Any, text: str) -> Any:
    """
    Return the logical plan of a statement, not analysed.

    A statement that writes has its common table expressions in its parts, as Spark puts them there.

    Raises:
        ParseException: Spark's.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    if has_hudi_bundle(spark):  # its own parser does not note the places of nodes in the text
        parser = java_class(spark, "org.apache.spark.sql.execution.SparkSqlParser")()
    plan = parser.parsePlan(text)
    if kind_of(plan) == "UnresolvedWith" and kind_of(plan.child()) in _WRITES:
        return catalyst(spark, "analysis.CTESubstitution").apply(plan)
    return plan


def parse_expression(spark: Any, text: str) -> Any:
    """Return the expression of a text, not analysed. Raises: Spark's ParseException."""
    return spark._jsparkSession.sessionState().sqlParser().parseExpression(text)  # noqa: SLF001


def kind_of(node: Any) -> str:
    """Return the class of a node without its package, for example ``MergeIntoTable``."""
    return str(node.getClass().getSimpleName())


def catalyst(spark: Any, name: str) -> Any:
    """Return a class of the package ``org.apache.spark.sql.catalyst``."""
    return java_class(spark, f"org.apache.spark.sql.catalyst.{name}")


# ---- Scala's collections


def option(spark: Any, value: Any) -> Any:
    """Return a Scala Option: None for None."""
    return java_class(spark, "scala.Option").apply(value)


def value_of(found: Any) -> Any:
    """Return the value of a Scala Option, or None."""
    return found.get() if found.isDefined() else None


def listed_seq(seq: Any) -> list[Any]:
    """Return a Scala collection as a list."""
    iterator, found = seq.iterator(), []
    while iterator.hasNext():
        found.append(iterator.next())
    return found


def listed_map(entries: Any) -> dict[str, Any]:
    """Return a Scala map as a dict."""
    return {str(one._1()): one._2() for one in listed_seq(entries)}  # noqa: SLF001


def scala_seq(spark: Any, values: list[Any]) -> Any:
    """Return an immutable Scala sequence."""
    converters = java_class(spark, "org.apache.spark.api.python.PythonUtils")
    return converters.toSeq(values).toList()


def scala_map(spark: Any, values: Mapping[str, str]) -> Any:
    """Return an immutable Scala map."""
    found = catalyst(spark, "catalog.CatalogStorageFormat").empty().properties()
    for key, value in values.items():
        found = found.updated(key, value)
    return found


# ---- Case classes


def field_names(product: Any) -> list[str]:
    """Return the names of the fields of a case class, in the order of its constructor."""
    if _HAS_CLASSIC:  # Scala 2.13
        return [str(name) for name in listed_seq(product.productElementNames())]
    fields = product.getClass().getDeclaredFields()
    return [str(fields[number].getName()) for number in range(product.productArity())]


def copied(product: Any, **changes: Any) -> Any:
    """Return a copy of a case class with some fields changed."""
    names = field_names(product)
    values = [
        changes[name] if name in changes else product.productElement(number)
        for number, name in enumerate(names)
    ]
    return product.copy(*values)


def has_field(node: Any, name: str) -> bool:
    """Return whether this version of Spark has a field of a case class."""
    return name in field_names(node)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, which is enough of Spark's."""
    return str(error).strip().split("\n", 1)[0]


# ---- Plans and expressions


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a parsed tree, its kind, and the node around it."""

    node: Any
    kind: str
    parent: Any

    @property
    def span(self) -> tuple[int, int] | None:
        """Return start and end of the node in the text; None if the parser did not note them."""
        origin = self.node.origin()
        start, stop = value_of(origin.startIndex()), value_of(origin.stopIndex())
        return None if start is None or stop is None else (int(start), int(stop) + 1)


def nodes_of(spark: Any, root: Any) -> Iterator[Node]:
    """Yield all nodes of a parsed plan, also those of sub-queries and of common table expressions."""
    classes = java_class(spark, "java.lang.Class")
    loader = root.getClass().getClassLoader()
    tree, many, pair = (
        classes.forName(name, True, loader)
        for name in (_TREE_NODE, "scala.collection.Iterable", "scala.Tuple2")
    )
    waiting: list[tuple[Any, Any]] = [(root, None)]
    while waiting:
        value, parent = waiting.pop()
        if not hasattr(value, "_target_id"):  # a text or a number
            continue
        if tree.isInstance(value):
            kind = kind_of(value)
            yield Node(value, kind, parent)
            inner = value.productIterator()
            while inner.hasNext():
                waiting.append((inner.next(), value))
        elif pair.isInstance(value):
            waiting += [(value._1(), parent), (value._2(), parent)]  # noqa: SLF001
        elif many.isInstance(value) or kind_of(value) == "Some":
            waiting += [(one, parent) for one in listed_seq(value)]


def dataframe_of(spark: Any, plan: Any) -> DataFrame:
    """Return the rows of a parsed query. Raises: Spark's AnalysisException."""
    return DataFrame(java_class(spark, _DATASET).ofRows(spark._jsparkSession, plan), spark)  # noqa: SLF001


def column_of(spark: Any, expression: Any) -> Column:
    """Return a parsed expression as a column; a column itself stays."""
    if isinstance(expression, Column):
        return expression
    if _HAS_CLASSIC:
        utils = java_class(spark, "org.apache.spark.sql.classic.ExpressionUtils")
        return Column(utils.column(expression))
    return Column(java_class(spark, "org.apache.spark.sql.Column")(expression))


def part_of(spark: Any, value: object) -> Any:
    """
    Return a condition or a value of Spark's API for a statement: a SQL text, a column or a literal.

    Raises:
        InvalidInputError: A text is no expression (``expression``).
    """
    if isinstance(value, Column):
        return value
    if not isinstance(value, str):
        return lit(value)
    try:
        return parse_expression(spark, value)
    except ParseException as error:
        raise InvalidInputError(
            f"this is no expression of Spark's SQL: {value!r}: {first_line(error)}. A text is SQL: "
            "write the text itself in single quotes, 'like this'",
            kind="expression",
        ) from error


def constants(spark: Any, expressions: list[Any]) -> list[Any]:
    """Return the values of expressions without columns. Raises: Spark's AnalysisException."""
    if not expressions:
        return []
    columns = [column_of(spark, one).alias(str(n)) for n, one in enumerate(expressions)]
    row = spark.range(1).toDF("_hoodoo_row")  # a variable may have the name id
    return list(row.select(*columns).first())


def assignable(spark: Any, given: Any, wanted: Any, *, reads_texts: bool = False) -> bool:
    """
    Return whether a value of one Spark type may be stored in a column of another.

    Args:
        spark: The session, whose policy decides.
        given: The type of the value.
        wanted: The type of the column.
        reads_texts: Whether Spark's default policy also takes texts for what they say, in fields
            of structs, too.
    """
    policy = str(spark.conf.get("spark.sql.storeAssignmentPolicy", "ANSI")).upper()
    types = catalyst(spark, "expressions.Cast")
    kinds = [java_type(spark, one) for one in (given, wanted)]
    if policy == "LEGACY":
        return bool(types.canCast(*kinds))
    if policy == "STRICT":
        return bool(types.canUpCast(*kinds))
    stores = bool(types.canANSIStoreAssign(*kinds))
    if stores or not reads_texts:
        return stores
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return len(given) == len(wanted) and all(
            assignable(spark, one.dataType, other.dataType, reads_texts=True)
            for one, other in zip(given, wanted, strict=True)
        )
    return isinstance(given, StringType) and bool(types.canAnsiCast(*kinds))


def can_up_cast(spark: Any, given: Any, wanted: Any) -> bool:
    """Return whether each value of one Spark type has its like in another."""
    kinds = [java_type(spark, one) for one in (given, wanted)]
    return bool(catalyst(spark, "expressions.Cast").canUpCast(*kinds))


def cast_to_store(spark: Any, expression: Any, wanted: Any, *, tries: bool = False) -> Any:
    """Return an expression in the type of a column; what does not fit is an error, or null."""
    modes = catalyst(spark, "expressions.EvalMode")
    mode = modes.TRY() if tries else modes.ANSI()
    made = catalyst(spark, "expressions.Cast")
    return made(expression, java_type(spark, wanted), option(spark, None), mode)


def attribute(spark: Any, *names: str) -> Any:
    """Return the expression of a column by its names: of the relation, of the column."""
    quoted = ".".join("`{}`".format(name.replace("`", "``")) for name in names)
    return catalyst(spark, "analysis.UnresolvedAttribute").quotedString(quoted)
