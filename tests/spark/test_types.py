"""Types of Spark that a table has not: refused, never something else under their name."""

from __future__ import annotations

import pytest
from pyspark.sql import types

from hoodoo.spark.schema import arrow_schema_of
from timeline.errors import InvalidInputError

VARIANT = getattr(types, "VariantType", None)


@pytest.mark.skipif(VARIANT is None, reason="Spark has it since 4.0")
@pytest.mark.parametrize("wrap", ["{}", "array<{}>", "map<string,{}>", "struct<x:{}>"])
def test_a_variant_is_refused_at_every_level(wrap: str) -> None:
    shapes = {
        "{}": VARIANT(),
        "array<{}>": types.ArrayType(VARIANT()),
        "map<string,{}>": types.MapType(types.StringType(), VARIANT()),
        "struct<x:{}>": types.StructType().add("x", VARIANT()),
    }
    with pytest.raises(InvalidInputError, match="variant") as caught:
        arrow_schema_of(types.StructType().add("id", "long").add("v", shapes[wrap]))
    assert caught.value.kind == "unsupported_type"


def test_a_column_may_be_called_like_a_type() -> None:
    schema = types.StructType().add("variant", types.ArrayType(types.StringType()))
    assert arrow_schema_of(schema).names == ["variant"]
