"""
What only Spark's catalog keeps of columns: comments, default values and the lengths of texts.

Spark keeps them in the metadata of a column's field, and Hudi's files have none of them. Statements
by a name of the catalog follow them, as Spark does for its own tables; statements by a path do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StringType, StructField, StructType

from hoodoo.spark.java import java_type
from hoodoo.spark.sql.catalyst import catalyst, first_line, value_of
from timeline.errors import InvalidInputError

#: Spark's keys in the metadata of a field.
COMMENT: Final = "comment"
DEFAULT: Final = "CURRENT_DEFAULT"
LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"

#: For a column's name in lower case, values by these keys.
Declared = Mapping[str, Mapping[str, str]]


def fields_of(spark: Any, schema: Any) -> list[StructField]:
    """Return the fields of a schema of the JVM; ``CHAR`` and ``VARCHAR`` become texts with a length."""
    plain = catalyst(spark, "util.CharVarcharUtils").replaceCharVarcharWithStringInSchema(schema)
    return list(StructType.fromJson(json.loads(plain.json())).fields)


def declared_in(fields: Iterable[StructField]) -> dict[str, dict[str, str]]:
    """Return what fields declare."""
    keys = (COMMENT, DEFAULT, LENGTH)
    found = {
        one.name.casefold(): {key: str(one.metadata[key]) for key in keys if key in one.metadata}
        for one in fields
    }
    return {name: kept for name, kept in found.items() if kept}


def with_declared(schema: Any, declared: Declared) -> Any:
    """Return a schema whose fields declare this, and nothing else that a catalog keeps."""
    fields = []
    for one in schema.fields:
        metadata = {**one.metadata, **declared.get(one.name.casefold(), {})}
        fields.append(StructField(one.name, one.dataType, one.nullable, metadata))
    return StructType(fields)


def without_defaults(declared: Declared) -> dict[str, dict[str, str]]:
    """Return the same without default values."""
    return {
        name: {key: value for key, value in kept.items() if key != DEFAULT}
        for name, kept in declared.items()
    }


def check_declared(spark: Any, fields: Iterable[StructField]) -> None:
    """
    Check what a statement declares.

    Raises:
        InvalidInputError: A default is no constant of the column's type (``expression``), or a
            type has CHAR or VARCHAR inside it (``unsupported_type``).
    """
    for one in fields:
        length = one.metadata.get(LENGTH, "")
        if length and not length.lower().startswith(("char(", "varchar(")):
            raise InvalidInputError(
                f"a text inside another type has no length; use STRING there: {one.name} {length}",
                kind="unsupported_type",
            )
        if DEFAULT not in one.metadata:
            continue
        field = java_type(spark, StructType([one])).apply(0)
        rules = catalyst(spark, "util.ResolveDefaultColumns")
        try:
            rules.analyze(field, "CREATE TABLE", DEFAULT)
        except AnalysisException as error:
            raise InvalidInputError(
                f"this is no default value of column {one.name}: {first_line(error)}",
                kind="expression",
                column=one.name,
            ) from error


def as_declared(df: Any, declared: Declared) -> Any:
    """Return rows whose columns tell Spark their lengths: it compares CHAR without its spaces."""
    sized = {name: kept[LENGTH] for name, kept in declared.items() if LENGTH in kept}
    if not sized:
        return df
    columns = []
    for name in df.columns:
        length = sized.get(name.casefold())
        column = F.col(f"`{name}`")
        columns.append(column if length is None else column.alias(name, metadata={LENGTH: length}))
    return df.select(*columns)


def sized(spark: Any, expression: Any, length: str | None) -> Any:
    """Return the expression of a text with a length: Spark fills or refuses each value."""
    if length is None:
        return expression
    field = StructField("text", StringType(), metadata={LENGTH: length})
    metadata = java_type(spark, StructType([field])).apply(0).metadata()
    rules = catalyst(spark, "util.CharVarcharUtils")
    return rules.stringLengthCheck(expression, value_of(rules.getRawType(metadata)))
