"""A vector is a list of numbers to users and bytes in files, as Hudi 1.2 has it (fmt 4.4)."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hoodoo
from filegroups.schema.avro_schema import avro_to_arrow
from filegroups.schema.casting import normalise, promote, to_stored_rows
from filegroups.schema.evolution import stored_type
from filegroups.schema.schema import TableSchema
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from timeline.errors import InvalidInputError

FOUND = Path(__file__).resolve().parents[3] / "interop" / "found" / "vector_mor.zip"
ELEMENTS = {"FLOAT": pa.float32(), "DOUBLE": pa.float64(), "INT8": pa.int8()}
NUMBERS: dict[pa.DataType, Any] = {
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.int8(): st.integers(-128, 127),
}
KINDS = [
    ("COPY_ON_WRITE", "avro", "9"),
    ("COPY_ON_WRITE", "avro", "8"),
    ("MERGE_ON_READ", "avro", "9"),
    ("MERGE_ON_READ", "avro", "8"),
    ("MERGE_ON_READ", "parquet", "9"),
]


def vector(name: str, kind: pa.DataType, declared: str) -> pa.Field:
    return pa.field(name, pa.list_(kind), metadata={"hudi_type": declared})


SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("v", pa.int64()),
        vector("f", pa.float32(), "VECTOR(3)"),
        vector("d", pa.float64(), "vector(2, double)"),
        vector("b", pa.int32(), "VECTOR(4,INT8)"),
        vector("again", pa.float32(), "VECTOR(3)"),
    ]
)


def rows(ids: str, value: int) -> list[dict[str, Any]]:
    return [
        {
            "id": one,
            "v": value,
            "f": None if one == "c" else [float(np.float32(0.1)), ord(one), -value],
            "d": [0.1, value * 1.5],
            "b": [-128, 127, 0, value],
            "again": [1.0, 2.0, 3.0],
        }
        for one in ids
    ]


def by_id(found: pa.Table) -> dict[str, Any]:
    return {row["id"]: row for row in found.to_pylist()}


@pytest.mark.parametrize(("table_type", "log_format", "version"), KINDS)
def test_vectors_survive_every_write_and_service(
    tmp_path: Path, table_type: str, log_format: str, version: str
) -> None:
    options = {
        "hoodie.logfile.data.block.format": log_format,
        "hoodie.write.table.version": version,
    }
    with hoodoo.create_table(
        tmp_path / "t",
        schema=SCHEMA,
        record_key="id",
        ordering="v",
        table_type=table_type,
        properties=options,
    ) as table:
        table.insert(rows("abcde", 1))
        table.upsert(rows("bx", 2))
        table.upsert(table.to_arrow().slice(0, 2))
        table.upsert(table.get_rows(["a"]).to_pylist())
        table.delete(pa.table({"id": ["d"]}))
        change = pa.table({"id": ["e"], "v": pa.array([9]), "f": [[7.0, 8.0, 9.0]]})
        table.upsert(change, partial=True)
        expected = {row["id"]: row for row in (*rows("ace", 1), *rows("bx", 2))}
        expected["e"] |= {"v": 9, "f": [7.0, 8.0, 9.0]}
        assert by_id(table.to_arrow()) == expected
        if table_type == "MERGE_ON_READ":
            table.services.compact()
            assert by_id(table.to_arrow(query_type="read_optimized")) == expected
        table.services.cluster()
        assert by_id(table.to_arrow()) == expected
        images = table.changes("earliest", images=True).read_all()
        assert rows("d", 1)[0] in images.column("before").to_pylist()
    assert verify_at(tmp_path / "t", Layers(), all_columns=True).problems == ()


def test_java_s_vectors_are_read_changed_and_written_back(tmp_path: Path) -> None:
    with zipfile.ZipFile(FOUND) as archive:
        archive.extractall(tmp_path)
    path = tmp_path / "vector_mor"
    with hoodoo.open_table(path) as table:  # the archive lacks its metadata table
        table.metadata.drop()
    with hoodoo.open_table(path) as table:
        found = by_id(table.to_arrow())
        shapes = {name: found[2][name] for name in ("embedding1", "embedding2", "embedding3")}
        assert shapes == {
            "embedding1": [float(np.float32(0.1))] * 128,
            "embedding2": [0.2] * 128,
            "embedding3": [3] * 128,
        }
        found[2] |= {"embedding3": [-1] * 128, "ts": 3_000}
        table.upsert(list(found.values()))
        assert by_id(table.to_arrow()) == found
        table.services.compact()
        assert by_id(table.to_arrow()) == found
        base = next(one.base_file for one in table.file_slices() if one.base_file)
        footer = pq.read_metadata(path / base.path).metadata
        assert footer[b"hoodie.vector.columns"] == (
            b"embedding1:VECTOR(128),embedding2:VECTOR(128, DOUBLE),embedding3:VECTOR(128, INT8)"
        )


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"f": [1.0, 2.0]}, "vector_length"),
        ({"f": []}, "vector_length"),
        ({"f": [1.0, None, 3.0]}, "null_element"),
        ({"f": ["a", "b", "c"]}, "schema_mismatch"),
        ({"b": [1, 2, 3, 300]}, "lossy_value"),
        ({"b": [1.5, 2.0, 3.0, 4.0]}, "lossy_value"),
    ],
)
def test_an_invalid_vector_is_refused(tmp_path: Path, change: dict[str, Any], kind: str) -> None:
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id") as table:
        table.insert(rows("a", 1))
        with pytest.raises(InvalidInputError) as caught:
            table.upsert([rows("b", 1)[0] | change])
        assert caught.value.kind == kind
        assert by_id(table.to_arrow()) == {"a": rows("a", 1)[0]}


@pytest.mark.parametrize("declared", ["VECTOR", "VECTOR(0)", "VECTOR(3, TEXT)", "VECTOR(3,4,5)"])
def test_an_invalid_declaration_is_refused(declared: str) -> None:
    with pytest.raises(InvalidInputError, match="VECTOR"):
        TableSchema.from_arrow(pa.schema([vector("f", pa.float32(), declared)]), "t")


@st.composite
def vectors(draw: st.DrawFn) -> pa.Array:
    """Vectors of one dimension, some null, maybe a slice of more."""
    kind = draw(st.sampled_from(list(ELEMENTS.values())))
    size = draw(st.integers(1, 5))
    one = st.none() | st.lists(NUMBERS[kind], min_size=size, max_size=size)
    values = draw(st.lists(one, max_size=8))
    made = pa.array(values, pa.list_(pa.field("element", kind), size))
    return made.slice(draw(st.integers(0, len(made))))


@given(values=vectors(), nested=st.booleans())
def test_vectors_are_stored_as_bytes_and_restored(values: pa.Array, nested: bool) -> None:
    if nested:
        values = pa.StructArray.from_arrays([values], ["inner"])
    rows_ = pa.table({"c": values})
    schema = rows_.schema
    stored = to_stored_rows(rows_)
    assert stored.schema.field("c").type == stored_type(values.type)
    assert promote(stored, schema).equals(rows_)
    lists = pa.table({"c": pa.array(values.to_pylist(), schema.field("c").type)})
    assert normalise(lists, schema).equals(rows_)


def test_the_avro_form_is_hudi_s() -> None:
    schema = TableSchema.from_arrow(SCHEMA, "t")
    assert avro_to_arrow(schema.avro_json) == schema.arrow
    assert (
        '"size":12,"logicalType":"vector","dimension":3,"elementType":"FLOAT"' in schema.avro_json
    )
    once = '{"type":"fixed","name":"vector_int8_2","namespace":"","size":2,"logicalType":"vector","dimension":2,"elementType":"INT8","storageBacking":"FIXED_BYTES"}'  # fmt: skip
    text = '{"type":"record","name":"r","namespace":"n","fields":[{"name":"a","type":%s},{"name":"b","type":["null","vector_int8_2"]}]}'  # fmt: skip
    kind = pa.list_(pa.field("element", pa.int8()), 2)
    assert avro_to_arrow(text % once) == pa.schema([("a", kind), ("b", kind)])


def test_spark_declares_a_vector_in_the_metadata_of_a_column_and_reads_an_array() -> None:
    from pyspark.sql.types import ArrayType, ByteType, StringType, StructField, StructType

    from hoodoo.spark.schema import arrow_schema_of, spark_schema_of

    declared = {"hudi_type": "VECTOR(2, INT8)"}
    fields = [StructField("id", StringType()), StructField("b", ArrayType(ByteType()), True, declared)]  # fmt: skip
    schema = TableSchema.from_arrow(arrow_schema_of(StructType(fields)), "t").arrow
    assert schema.field("b").type == pa.list_(pa.field("element", pa.int8()), 2)
    assert spark_schema_of(schema)["b"].dataType == ArrayType(ByteType())
