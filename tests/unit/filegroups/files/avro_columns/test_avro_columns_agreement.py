"""Random schemas and rows are written and read by us and by fastavro, with equal results."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filegroups.files.avro_columns import decode_block, encode_records
from filegroups.files.avro_columns.types import arrow_type, parse_schema

# An Avro type (named types by number) and the strategy of its values.
Kind = tuple[Any, st.SearchStrategy[Any]]

PLAIN: list[Kind] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("string", st.text(st.characters(exclude_categories=["Cs"]), max_size=70)),
    ("bytes", st.binary(max_size=70)),
    ({"type": "int", "logicalType": "date"}, st.dates(date(1900, 1, 1), date(2200, 1, 1))),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        st.datetimes(timezones=st.just(UTC), min_value=datetime(1900, 1, 1)),  # noqa: DTZ001
    ),
    ({"type": "fixed", "name": "#", "size": 5}, st.binary(min_size=5, max_size=5)),
    (
        {
            "type": "fixed",
            "name": "#",
            "size": 9,
            "logicalType": "decimal",
            "precision": 20,
            "scale": 2,
        },
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda each: Decimal(each).scaleb(-2)),
    ),
    ({"type": "enum", "name": "#", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")),
]


def nullable(kind: Kind) -> Kind:
    return ["null", kind[0]], st.none() | kind[1]


def array(kind: Kind) -> Kind:
    return {"type": "array", "items": kind[0]}, st.lists(kind[1], max_size=4)


def mapping(kind: Kind) -> Kind:
    keys = st.text("abcdefgh", min_size=1, max_size=3)
    return {"type": "map", "values": kind[0]}, st.dictionaries(keys, kind[1], max_size=3)


def struct_of(kinds: list[Kind]) -> Kind:
    fields = [{"name": f"f{i}", "type": kind[0]} for i, kind in enumerate(kinds)]
    values = {f"f{i}": kind[1] for i, kind in enumerate(kinds)}
    return {"type": "record", "name": "#", "fields": fields}, st.fixed_dictionaries(values)


def wider(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    # Avro forbids a union directly in a union.
    single = inner.filter(lambda kind: not isinstance(kind[0], list))
    return (
        single.map(nullable)
        | inner.map(array)
        | inner.map(mapping)
        | st.lists(inner, min_size=1, max_size=3).map(struct_of)
    )


KINDS = st.recursive(st.sampled_from(PLAIN), wider, max_leaves=4)


def named(avro: Any, number: list[int]) -> Any:
    """Return the type with a unique name for every record, fixed and enum in it."""
    if isinstance(avro, list):
        return [named(each, number) for each in avro]
    if not isinstance(avro, dict):
        return avro
    made = {key: named(each, number) for key, each in avro.items()}
    if made.get("name") == "#":
        number[0] += 1
        made["name"] = f"n{number[0]}"
    return made


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    kinds = draw(st.lists(KINDS, min_size=1, max_size=4))
    avro, values = struct_of(kinds)
    rows = draw(st.lists(values, min_size=1, max_size=4))
    # Repeated, so that arrays are also read all at once.
    return json.dumps(named(avro, [0])), rows * draw(st.sampled_from([1, 50]))


def from_arrow(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: from_arrow(each) for key, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {key: from_arrow(each) for key, each in value}
        return [from_arrow(each) for each in value]
    return value


def emptied(value: Any) -> Any:
    """Replace empty maps by empty lists: Arrow's rows do not distinguish them."""
    if isinstance(value, dict):
        return {key: emptied(each) for key, each in value.items()} or []
    return [emptied(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables())
def test_columns_agree_with_fastavro_both_ways(case: tuple[str, list[dict[str, Any]]]) -> None:
    schema_json, rows = case
    schema = fastavro.parse_schema(json.loads(schema_json))
    theirs = bytearray(struct.pack(">ii", 3, len(rows)))
    for row in rows:
        datum = io.BytesIO()
        fastavro.schemaless_writer(datum, schema, row)
        theirs += struct.pack(">i", datum.tell()) + datum.getvalue()

    table = decode_block(bytes(theirs), schema_json, path="p")
    table.validate(full=True)
    read = [emptied(from_arrow(each)) for each in table.to_pylist()]
    assert read == [emptied(row) for row in rows]

    fields = list(arrow_type(parse_schema(schema_json, path="p")))
    assert table.schema == pa.schema(fields)
    ours = encode_records(table, schema_json)
    assert ours == bytes(theirs)
    some = table.slice(len(rows) // 2)
    assert decode_block(encode_records(some, schema_json), schema_json, path="p") == some
