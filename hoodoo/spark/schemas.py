"""
Between Spark's types and Arrow's, for the columns of a table.

Spark's own conversion is used; what it lacks in some versions is bridged here, so that one
table has the same Spark schema whichever Spark reads it.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from timeline.errors import InvalidInputError

__all__ = ["arrow_schema_of", "spark_schema_of"]

# Newer Sparks leave the zone out unless told, which would make two types one.
_ZONE: Final[dict[str, str]] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)


def arrow_schema_of(schema: Any) -> pa.Schema:
    """
    The Arrow schema of a DataFrame's rows; timestamps with a zone are in UTC.

    Raises:
        InvalidInputError: Arrow has no type for a column.
    """
    try:
        found: pa.Schema = to_arrow_schema(schema, **_ZONE)
    except Exception as error:  # Spark's own, of another class in each version
        raise InvalidInputError(
            f"a column's type cannot be written; cast it to a plain type first: {error}",
            kind="unsupported_type",
        ) from error
    return pa.schema([_in_utc(each) for each in found])


def spark_schema_of(schema: pa.Schema) -> Any:
    """The Spark schema of Arrow columns, every column nullable."""
    plain = pa.schema([pa.field(each.name, _plain(each.type)) for each in schema])
    return from_arrow_schema(plain, prefer_timestamp_ntz=True)


def _in_utc(field: pa.Field) -> pa.Field:
    if pa.types.is_timestamp(field.type) and field.type.tz:
        return field.with_type(pa.timestamp("us", "UTC"))
    return field


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    return kind
