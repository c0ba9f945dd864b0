"""Base files have the footer that Java needs, and are read by the table's schema (fmt 4.4)."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from math import nan

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from filegroups.files.bloom import DYNAMIC, BloomFilter, BloomSettings
from filegroups.files.parquet import (
    base_file_bytes,
    parquet_bytes,
    read_base_file,
    read_batches,
    read_footer,
    read_keys,
    write_base_file,
)
from filegroups.files.parquet_layout import ParquetSettings
from filegroups.schema.schema import META_COLUMNS, TableSchema, avro_with_meta, with_meta
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import CorruptTableError, MissingFileError
from timeline.ports.ports import ObjectExistsError

SCHEMA = TableSchema.from_arrow(
    pa.schema(
        [
            ("v", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("dec", pa.decimal128(9, 2)),
            ("arr", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.int32())),
        ]
    ),
    "t",
)


def rows(*keys: str) -> pa.Table:
    meta = {name: pa.array(keys, pa.string()) for name in META_COLUMNS}
    own = {
        "v": pa.array(range(len(keys)), pa.int64()),
        "at": pa.array([1_000_000] * len(keys), pa.timestamp("us", "UTC")),
        "dec": pa.array([None] * len(keys), pa.decimal128(9, 2)),
        "arr": pa.array([["x"]] * len(keys), pa.list_(pa.string())),
        "m": pa.array([[("k", 1)]] * len(keys), pa.map_(pa.string(), pa.int32())),
    }
    return pa.table(meta | own, schema=with_meta(SCHEMA.arrow))


def written(*keys: str, **more: object) -> MemoryStorage:
    storage = MemoryStorage()
    write_base_file(storage, "p/f.parquet", rows(*keys), avro_json=SCHEMA.avro_json, **more)
    return storage


def test_written_rows_are_read_unchanged():
    storage = written("a", "b")
    assert read_base_file(storage, "p/f.parquet", schema=with_meta(SCHEMA.arrow)) == rows("a", "b")
    assert read_keys(storage, "p/f.parquet").to_pylist() == ["a", "b"]


def test_the_returned_size_is_the_files():
    storage = MemoryStorage()
    size = write_base_file(storage, "f.parquet", rows("a"), avro_json=SCHEMA.avro_json)
    assert size == len(storage.read("f.parquet"))


def test_a_file_built_in_memory_equals_the_streamed_one():
    bloom = BloomFilter(BloomSettings(entries=10))
    bloom.add(pa.array(["b", "a"]))
    streamed = written("b", "a", bloom=bloom).read("p/f.parquet")
    made = base_file_bytes(rows("b", "a"), avro_json=SCHEMA.avro_json, bloom=bloom)
    assert made == streamed


def test_the_footer_has_schema_key_range_and_filter():
    bloom = BloomFilter(BloomSettings(entries=10))
    bloom.add(pa.array(["b", "a"]))
    storage = written("b", "a", bloom=bloom)
    footer = read_footer(storage, "p/f.parquet")
    assert (footer.rows, footer.key_min, footer.key_max) == (2, "a", "b")
    assert (footer.bloom_base64, footer.bloom_kind) == (bloom.to_base64(), DYNAMIC)
    assert footer.avro_json == avro_with_meta(SCHEMA.avro_json)
    assert [each["name"] for each in json.loads(footer.avro_json)["fields"]][:5] == list(META_COLUMNS)  # fmt: skip


def test_no_arrow_schema_hides_in_the_footer():
    file = pq.ParquetFile(io.BytesIO(written("a").read("p/f.parquet")))
    assert b"ARROW:schema" not in file.metadata.metadata
    assert file.metadata.metadata[b"writer.model.name"] == b"avro"


def test_the_key_range_follows_javas_order_of_text():
    footer = read_footer(written("\uffee", "\U0001f600", "a"), "p/f.parquet")
    assert (footer.key_min, footer.key_max) == ("a", "\uffee")


def test_an_empty_file_has_no_key_range():
    footer = read_footer(written(), "p/f.parquet")
    assert (footer.rows, footer.key_min, footer.key_max) == (0, None, None)


def test_large_files_have_several_row_groups():
    settings = ParquetSettings(row_group_rows_max=2, compression="ZSTD")
    file = pq.ParquetFile(io.BytesIO(written("a", "b", "c", settings=settings).read("p/f.parquet")))
    assert file.num_row_groups == 2
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_columns_added_later_are_null_and_narrow_types_widen():
    evolved = pa.schema(
        [("v", pa.string()), ("new", pa.float64()), ("_hoodie_record_key", pa.string())]
    )
    found = read_base_file(written("a", "b"), "p/f.parquet", schema=evolved)
    assert found.to_pydict() == {
        "v": ["0", "1"],
        "new": [None, None],
        "_hoodie_record_key": ["a", "b"],
    }


def test_projection_and_filter_reach_the_file():
    storage = written("a", "b", "c")
    options = {
        "schema": with_meta(SCHEMA.arrow),
        "columns": ["_hoodie_record_key"],
        "row_filter": pc.field("v") >= 1,
    }
    assert read_base_file(storage, "p/f.parquet", **options).to_pydict() == {
        "_hoodie_record_key": ["b", "c"]
    }
    batches = list(read_batches(storage, "p/f.parquet", batch_rows=1, **options))
    assert [batch.num_rows for batch in batches] == [1, 1]


def test_a_filter_on_a_column_the_file_lacks_matches_nothing():
    evolved = pa.schema([*SCHEMA.arrow, pa.field("new", pa.int32())])
    found = read_base_file(
        written("a"), "p/f.parquet", schema=evolved, columns=["v"], row_filter=pc.field("new") == 1
    )
    assert found.num_rows == 0


def test_batches_are_bounded():
    batches = list(read_batches(written("a", "b", "c"), "p/f.parquet", batch_rows=2))
    assert [batch.num_rows for batch in batches] == [2, 1]


def test_a_missing_file_is_named():
    with pytest.raises(MissingFileError) as caught:
        read_base_file(MemoryStorage(), "p/gone.parquet")
    assert caught.value.fields["path"] == "p/gone.parquet"


@pytest.mark.parametrize("cut", [0, 3, 100, -9])
def test_a_damaged_file_is_named(cut):
    data = written("a", "b").read("p/f.parquet")
    storage = MemoryStorage()
    storage.create("p/f.parquet", data[:cut])
    for read in (read_base_file, read_footer, read_keys):
        with pytest.raises(CorruptTableError) as caught:
            read(storage, "p/f.parquet")
        assert caught.value.fields["path"] == "p/f.parquet"


def test_a_file_of_another_schema_is_damage():
    other = pa.schema([("v", pa.date32())])
    with pytest.raises(CorruptTableError, match=r"p/f\.parquet"):
        read_base_file(written("a"), "p/f.parquet", schema=other)


def test_names_are_never_reused():
    storage = written("a")
    with pytest.raises(ObjectExistsError):
        write_base_file(storage, "p/f.parquet", rows("b"), avro_json=SCHEMA.avro_json)


@pytest.mark.parametrize(
    "condition",
    [
        pc.field("s", "b").is_null() & (pc.field("s", "a") == 1),
        pc.field("s", "t") < "9",
        pc.field("s", "a") < 2,
    ],
)
def test_a_filter_reads_missing_fields_of_older_structs_as_null(condition: pc.Expression):
    """The file was reported as damaged."""
    storage = MemoryStorage()
    table = pa.table({"k": ["yes", "no"], "s": [{"a": 1, "t": 10}, {"a": 2, "t": 9}]})
    with storage.open_output("f.parquet") as sink:
        pq.write_table(table, sink)
    grown = pa.struct([("a", pa.int64()), ("t", pa.string()), ("b", pa.int64())])
    schema = pa.schema([("k", pa.string()), ("s", grown)])
    how = {"schema": schema, "columns": ["k"], "row_filter": condition}
    read = read_base_file(storage, "f.parquet", **how)
    assert read.column("k").to_pylist() == ["yes"]
    assert pa.Table.from_batches(list(read_batches(storage, "f.parquet", **how))) == read


@pytest.mark.parametrize(
    ("older", "kind", "condition"),
    [
        (pa.array([0.1, 0.2], pa.float32()), pa.float64(), pc.field("v") == 0.1),
        (pa.array([10, 9], pa.int32()), pa.string(), pc.field("v") < "9"),
        (pa.array([10, 9], pa.int32()), pa.int64(), pc.field("v") > 9),
        (pa.array([1e7, 1.0]), pa.string(), pc.field("v") == "1.0E7"),
    ],
)
def test_a_filter_compares_older_values_as_the_reader_sees_them(older, kind, condition):
    storage = MemoryStorage()
    table = pa.table({"k": ["yes", "no"], "v": older, "w": [1, 2]})
    with storage.open_output("f.parquet") as sink:
        pq.write_table(table, sink)
    schema = pa.schema([("k", pa.string()), ("v", kind), ("w", pa.int64()), ("z", pa.string())])
    for columns in (["k"], ["v", "k"]):
        how = {"schema": schema, "columns": columns, "row_filter": condition}
        read = read_base_file(storage, "f.parquet", **how)
        assert (read.schema.names, read.column("k").to_pylist()) == (columns, ["yes"])
        batches = pa.Table.from_batches(list(read_batches(storage, "f.parquet", **how)))
        assert batches == read


@pytest.mark.parametrize(
    ("held", "condition", "column"),
    [
        ([5.0, nan], pc.field("v") != 5.0, "v"),
        ([None, 5.0, nan], ~(pc.field("v") <= 5.0), "v"),
        ([5.0, nan], pc.is_nan(pc.field("v")), "v"),
        ([1.0, nan], pc.field("v").is_null(nan_is_null=True), "v"),
        ([5.0, nan], pc.field("s", "v") != 5.0, "s"),
        ([0.0], pc.field("v").isin([0.0]), "v"),
    ],
)
def test_a_filter_finds_the_floats_that_limits_of_row_groups_leave_out(held, condition, column):
    values = pa.array(held, pa.float64())
    if column == "s":
        values = pa.StructArray.from_arrays([values], ["v"])
    storage, table = MemoryStorage(), pa.table({"k": range(len(held)), column: values})
    with storage.open_output("f.parquet") as sink:
        pq.write_table(table, sink)
    how = {"schema": table.schema, "columns": ["k"], "row_filter": condition}
    found = read_base_file(storage, "f.parquet", **how)
    assert found == table.select(["k"]).slice(len(held) - 1)
    assert pa.Table.from_batches(list(read_batches(storage, "f.parquet", **how))) == found


@pytest.mark.parametrize("as_integer", [True, False])
def test_decimals_of_every_physical_form_are_read(as_integer: bool):
    kinds = {"d9": (9, 2), "d18": (18, 6), "d38": (38, 10)}
    table = pa.table(
        {name: pa.array([Decimal("-1.5"), None], pa.decimal128(*kind)) for name, kind in kinds.items()}
    )  # fmt: skip
    storage = MemoryStorage()
    with storage.open_output("f.parquet") as sink:
        pq.write_table(table, sink, store_decimal_as_integer=as_integer)
    assert read_base_file(storage, "f.parquet", schema=table.schema) == table


def test_columns_with_nan_have_no_limits_in_the_footer() -> None:
    # For Spark NaN is above all numbers, and limits that ignore it would hide the row.
    columns = pa.table(
        {
            "a": [1.0, nan],
            "b": [1.0, None],
            "l": [[nan], []],
            "s": [{"x": 1.0, "y": "q"}, None],
            "m": pa.array([[("k", nan)], []], pa.map_(pa.string(), pa.float32())),
            "n": [[1.0], [2.0]],
        }
    )
    content = parquet_bytes(columns, SCHEMA.avro_json, ParquetSettings())
    group = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    limited = {
        chunk.path_in_schema
        for chunk in chunks
        if chunk.statistics is not None and chunk.statistics.has_min_max
    }
    assert limited == {"b", "s.x", "s.y", "n.list.element"}


def test_a_column_whose_values_differ_has_no_dictionary() -> None:
    # Arrow would build one up to its limit, and the file would be larger.
    numbers = np.arange(30_000)
    columns = pa.table(
        {
            "unique": numbers * 7,
            "text": pa.array(numbers).cast(pa.string()),
            "many": numbers * 7919 % 20_011,  # a dictionary has half of a plain column's bytes
            "sorted": numbers // 3,
            "few": pa.array(numbers % 50).cast(pa.string()),
            "narrow": numbers.astype(np.int32),
            "empty": pa.nulls(len(numbers), pa.string()),
        }
    )

    def encoded(rows: pa.Table) -> set[str]:
        content = parquet_bytes(rows, SCHEMA.avro_json, ParquetSettings())
        group = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        return {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}

    assert encoded(columns) == {"many", "sorted", "few", "narrow", "empty"}
    assert encoded(columns.slice(0, 19_999)) == set(columns.schema.names)


def test_a_big_base_file_has_a_filter_of_its_key_columns() -> None:
    columns = pa.table({"k": np.arange(4_096), "t": ["x"] * 4_096, "b": [True] * 4_096})
    settings = ParquetSettings(filtered=("k", "b", "other"))

    def filtered(content: bytes) -> dict[str, int]:
        group = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
        return {
            one.path_in_schema: one.bloom_filter_length
            for one in chunks
            if one.bloom_filter_offset is not None
        }

    def made(rows: pa.Table) -> dict[str, int]:
        return filtered(base_file_bytes(rows, avro_json=SCHEMA.avro_json, settings=settings))

    found = made(columns)
    assert set(found) == {"k"}
    assert 4_096 < found["k"] < 10_000  # 8,192 bytes and a header
    assert made(columns.slice(1)) == {}
    assert filtered(parquet_bytes(columns, SCHEMA.avro_json, settings)) == {}
