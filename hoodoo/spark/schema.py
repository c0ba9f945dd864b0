"""
Convert between Spark's types and Arrow's, for the columns of a table.

The conversion is Spark's. This module bridges the gaps of some versions, so that a table has the
same Spark schema in each version of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from filegroups.schema.avro_schema import HUDI_TYPE
from timeline.errors import InvalidInputError

# Newer versions of Spark drop the zone without this argument, and two types would become one.
_ZONE: Final[dict[str, str]] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)

# Spark converts these types to binary columns, which no reader could convert back.
_TAKEN_APART: Final = ("variant", "geometry", "geography")


def arrow_schema_of(schema: Any) -> pa.Schema:
    """
    Return the Arrow schema of a DataFrame's rows; timestamps with a zone are in UTC.

    Raises:
        InvalidInputError: Arrow has no type for a column.
    """
    apart = next((name for name in _names_of(schema) if name.startswith(_TAKEN_APART)), None)
    if apart is not None:
        advice = ""
        if apart == "variant":
            advice = (
                "a variant is written as its JSON text (to_json), which a VARIANT column accepts"
            )
        raise _unsupported(advice or f"a Hudi table has no {apart}")
    try:
        found: pa.Schema = to_arrow_schema(schema, **_ZONE)
    except Exception as error:  # Spark's own, of another class in each version
        raise _unsupported(error) from error
    fields = zip(found, schema.fields, strict=True)
    return pa.schema([_with_hudi_type(_in_utc(each), field.metadata) for each, field in fields])


def spark_schema_of(schema: pa.Schema) -> Any:
    """Return the Spark schema of Arrow columns, with each column nullable."""
    plain = pa.schema([pa.field(each.name, _plain(each.type)) for each in schema])
    return from_arrow_schema(plain, prefer_timestamp_ntz=True)


def transport_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows from a task to Spark, which has no lists of fixed size."""
    return pa.schema([each.with_type(_carried(each.type)) for each in schema])


def _carried(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_fixed_size_list(kind) or types.is_list(kind):
        return pa.list_(pa.field("element", _carried(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _carried(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([each.with_type(_carried(each.type)) for each in kind])
    return kind


def _names_of(kind: Any) -> Iterator[str]:
    """Yield the names of a Spark type and of all types in it."""
    yield kind.typeName()
    inner = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
    inner += [each.dataType for each in getattr(kind, "fields", ())]
    for each in inner:
        if each is not None:
            yield from _names_of(each)


def _unsupported(why: object) -> InvalidInputError:
    return InvalidInputError(
        f"a column's type cannot be written; cast it to a plain type first: {why}",
        kind="unsupported_type",
    )


def _with_hudi_type(field: pa.Field, metadata: Mapping[str, Any] | None) -> pa.Field:
    """Return the field with the Hudi type of Spark's metadata, for example ``VECTOR(3)``."""
    hudi_type = (metadata or {}).get(HUDI_TYPE)
    return field if hudi_type is None else field.with_metadata({HUDI_TYPE: str(hudi_type)})


def _in_utc(field: pa.Field) -> pa.Field:
    if pa.types.is_timestamp(field.type) and field.type.tz:
        return field.with_type(pa.timestamp("us", "UTC"))
    return field


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    return kind
