"""A variant is shown as JSON, taken as JSON, and else moved byte for byte; other types say raw."""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

import hoodoo
from filegroups.schema.avro_schema import avro_to_arrow
from filegroups.schema.casting import normalise
from filegroups.schema.schema import hudi_type_name
from filegroups.schema.variant import encode_variant, variant_json
from hoodoo.cli.app import main
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from timeline.errors import CorruptTableError, InvalidInputError, UnsupportedTableError
from timeline.properties.properties_file import update_properties

AVRO = {
    "type": "record",
    "name": "t_record",
    "namespace": "hoodie.t",
    "fields": [
        {"name": "id", "type": ["null", "string"], "default": None},
        {
            "name": "v",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "variant",
                    "logicalType": "variant",
                    "fields": [
                        {"name": "metadata", "type": "bytes"},
                        {"name": "value", "type": "bytes"},
                    ],
                },
            ],
            "default": None,
        },
        {
            "name": "d",
            "type": ["null", {"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"}],
            "default": None,
        },
    ],
}
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=80)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(value=VALUES)
def test_json_becomes_a_variant_that_spark_reads_and_that_is_read_back_as_the_same_json(
    value: Any,
) -> None:
    metadata, data = encode_variant(json.dumps(value))
    assert json.loads(variant_json(metadata, data)) == value
    spark = pytest.importorskip("pyspark.sql.variant_utils", reason="Spark has it since 4.0")
    assert json.loads(spark.VariantUtils.to_json(data, metadata)) == value


@given(digits=st.integers(0, 10**38 - 1), scale=st.integers(1, 38), sign=st.sampled_from(["", "-"]))
@example(digits=1, scale=10, sign="")
@example(digits=10**37, scale=37, sign="-")
def test_a_number_with_a_fraction_is_a_decimal_that_spark_reads(
    digits: int, scale: int, sign: str
) -> None:
    text = f"{digits:0{scale + 1}d}"
    text = f"{sign}{text[:-scale]}.{text[-scale:]}"
    metadata, data = encode_variant(text)
    assert Decimal(variant_json(metadata, data)) == Decimal(text)
    spark = pytest.importorskip("pyspark.sql.variant_utils", reason="Spark has it since 4.0")
    with localcontext(Context(prec=38)):  # PySpark computes the number in it
        assert Decimal(spark.VariantUtils.to_json(data, metadata)) == Decimal(text)


@pytest.mark.parametrize(
    "text",
    [
        "1" + "0" * 310,
        "-1" + "0" * 310,
        "1" + "0" * 400 + ".5",
        "1e400",
        "1e99999999999999999999",
        '"\\ud800"',
        '{"\\ud800": 1}',
        "[" * 100 + "]" * 100,
    ],
)
def test_json_that_no_variant_can_contain_is_refused_by_kind(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        encode_variant(text)
    assert caught.value.kind == "bad_variant"


def shared(child: bytes, count: int, name: bool = False) -> bytes:
    """An array, or an object of one name, whose elements are all the same bytes."""
    ids = b"\0" * count if name else b""
    offsets = b"\0\0\0" * count + len(child).to_bytes(3, "little")
    head = bytes([2 | 2 << 2 | 1 << 6 if name else 3 | 2 << 2 | 1 << 4])
    return head + count.to_bytes(4, "little") + ids + offsets + child


@pytest.mark.parametrize("name", [False, True])
def test_values_that_share_bytes_are_refused_before_they_grow(name: bool) -> None:
    child = b"\0"
    for _ in range(40):
        child = shared(child, 2, name)
    long = b"\x40" + (1 << 20).to_bytes(4, "little") + b"x" * (1 << 20)
    for value in (child, shared(long, 100_000, name)):
        with pytest.raises(CorruptTableError, match="share"):
            variant_json(b"\x01\x01\x00\x01a", value)


def test_names_are_returned_up_to_a_limit() -> None:
    size = 1 << 20
    metadata = b"\x81\x01\0\0" + b"\0\0\0" + size.to_bytes(3, "little") + b"n" * size
    fields = 100
    value = shared(b"", fields, name=True) + b"\0" * fields
    with pytest.raises(CorruptTableError, match="names"):
        variant_json(metadata, value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x0c\xff", "-1"),
        (b"\x20\x02\x85\xff\xff\xff", "-1.23"),
        (b"\x2c\x01\x00\x00\x00", '"1970-01-02"'),
        (b"\x30\xff\xff\xff\xff\xff\xff\xff\xff", '"1969-12-31T23:59:59.999999Z"'),
        (b"\x34\x01\x00\x00\x00\x00\x00\x00\x00", '"1970-01-01T00:00:00.000001"'),
        (b"\x38\x00\x00\xc0\x7f", '"NaN"'),
        (b"\x3c\x02\x00\x00\x00\x01\x02", '"AQI="'),
        (b"\x50" + bytes(range(16)), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
    ],
)
def test_types_that_json_lacks_are_shown_as_texts(data: bytes, text: str) -> None:
    assert variant_json(b"\x01\x00\x00", data) == text


@given(metadata=st.binary(max_size=12), data=st.binary(max_size=24))
def test_bytes_that_are_no_variant_raise_only_damage(metadata: bytes, data: bytes) -> None:
    with suppress(CorruptTableError):
        variant_json(metadata, data)


def a_table(path: Path, table_type: str) -> hoodoo.Table:
    schema = avro_to_arrow(json.dumps(AVRO))
    options = {"hoodie.compact.inline": "false"}
    with hoodoo.create_table(
        path, schema=schema, record_key="id", table_type=table_type, name="t", properties=options
    ) as made:
        declared = {"hoodie.table.create.schema": json.dumps(AVRO)}
        update_properties(made.context.ports.storage, declared, now="20261127000000000")
    return hoodoo.open_table(path, properties=options)


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_variants_are_written_as_json_and_moved_byte_for_byte(
    tmp_path: Path, table_type: str
) -> None:
    odd = {"metadata": b"\x01\x01\x00\x01a", "value": b"\x02\x01\x00\x00\x02\x0c\x07"}
    with a_table(tmp_path / "t", table_type) as table:
        table.insert([{"id": "a", "v": '{"x": [1, 2.50, "é"]}', "d": b"d" * 12}])
        table.upsert([{"id": "b", "v": odd, "d": None}, {"id": "c", "v": None, "d": None}])
        table.upsert(table.get_rows(["b"]))
        if table_type == "MERGE_ON_READ":
            table.services.compact()
        table.services.cluster()
        found = {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}
        assert (found["b"], found["c"]) == (odd, None)
        assert variant_json(found["a"]["metadata"], found["a"]["value"]) == '{"x":[1,2.50,"é"]}'
        with pytest.raises(InvalidInputError) as caught:
            table.upsert([{"id": "a", "v": "{not json", "d": None}])
        assert caught.value.kind == "bad_variant"
    printed = CliRunner().invoke(main, ["read", str(tmp_path / "t"), "-o", "ndjson"])
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    texts = {row["id"]: row["v"] for row in rows}
    assert texts == {"a": '{"x":[1,2.50,"é"]}', "b": '{"a":7}', "c": None}
    shown = CliRunner().invoke(main, ["read", str(tmp_path / "t"), "-o", "table"])
    assert '{"a":7}' in shown.stdout
    assert verify_at(tmp_path / "t", Layers(), all_columns=True).problems == ()


def test_a_column_of_more_rows_than_one_slice_becomes_variants() -> None:
    schema = avro_to_arrow(json.dumps(AVRO))
    texts = [None if row % 5 == 0 else f'{{"n": {row}}}' for row in range(9_000)]
    made = normalise(pa.table({"v": texts}), pa.schema([schema.field("v")]))["v"].to_pylist()
    assert [one and variant_json(one["metadata"], one["value"]) for one in made] == [
        text and text.replace(" ", "") for text in texts
    ]


def test_a_shredded_variant_is_refused_by_kind(tmp_path: Path) -> None:
    with a_table(tmp_path / "t", "COPY_ON_WRITE") as table:
        table.insert([{"id": "a", "v": "1", "d": None}])
        base = next(one.base_file for one in table.file_slices() if one.base_file)
        file = tmp_path / "t" / base.path
        rows = pq.read_table(file)
        parts = [*rows.column("v").combine_chunks().flatten(), pa.array([1], pa.int64())]
        typed = pa.StructArray.from_arrays(parts, ["metadata", "value", "typed_value"])
        pq.write_table(rows.set_column(rows.schema.get_field_index("v"), "v", typed), file)
        with pytest.raises(UnsupportedTableError) as caught:
            table.to_arrow()
        assert caught.value.kind == "shredded_variant"
    assert "shredded_variant" in {one.kind for one in verify_at(tmp_path / "t", Layers()).problems}


def test_a_type_without_a_decoder_is_labelled_raw(tmp_path: Path) -> None:
    declared = {each.name: hudi_type_name(each) for each in avro_to_arrow(json.dumps(AVRO))}
    assert declared == {"id": None, "v": "VARIANT", "d": "raw duration"}
    with a_table(tmp_path / "t", "COPY_ON_WRITE") as table:
        table.insert([{"id": "a", "v": "1", "d": b"d" * 12}])
    shown = CliRunner().invoke(main, ["table", "show", str(tmp_path / "t")])
    types = {one["name"]: one["type"] for one in json.loads(shown.stdout)["columns"]}
    assert types["d"] == "fixed_size_binary[12] (raw duration)"
    assert types["v"].endswith("(VARIANT)")
    read = CliRunner().invoke(main, ["read", str(tmp_path / "t")])
    assert "raw duration" in read.stderr
