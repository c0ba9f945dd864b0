"""Bounds and counts of columns equal those of Java Hudi, and contain every value."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.files.avro_columns import encode_records
from filegroups.files.delete_block import encode_deletes
from filegroups.files.parquet import parquet_bytes
from filegroups.files.parquet_layout import ParquetSettings
from filegroups.metadata_table.column_stats import (
    ColumnStats,
    base_file_stats,
    column_stats_records,
    columns_to_index,
    deleted_column_stats,
    evolved_columns,
    log_file_stats,
    merge_stats,
    partition_stats_records,
    unknown_stats,
)
from filegroups.metadata_table.index_definitions import parse_index_definitions
from filegroups.metadata_table.keys import IndexVersion
from filegroups.schema.schema import TableSchema, avro_with_meta, with_meta
from tests.interop import golden_tables
from tests.unit.filegroups.metadata_table.java_records import java_records
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.log_blocks import BlockType, HeaderKey, encode_block
from timeline.errors import CorruptTableError
from timeline.model.file_names import INDEX_DEFINITIONS
from timeline.model.file_slice import LogFile

BASE = "f-0_1-0-0_20260101000000000.parquet"
LOG = ".f-0_20260101000000000.log.1_1-0-0"
V1, V2 = IndexVersion.V1, IndexVersion.V2
WITH_STATS = (
    "v8_cow_all",
    "v8_cow_colstats_nonpart",
    "v8_cow_services",
    "v9_cow_services",
    "v9_mor_compacted",
    "v9_mor_ri",
    "v9a_cow_all",
)


def storage_with(name: str, data: bytes) -> MemoryStorage:
    storage = MemoryStorage(f"memory://{name}")
    storage.create(name, data)
    return storage


def parquet(rows: pa.Table, **options: Any) -> bytes:
    made = io.BytesIO()
    pq.write_table(rows, made, store_schema=False, **options)
    return made.getvalue()


def stats_of(column: pa.Array, **options: Any) -> ColumnStats:
    data = parquet(pa.table({"c": column}), **options)
    (found,) = base_file_stats(storage_with(BASE, data), BASE, ["c"])
    return found


def records(stats: ColumnStats, version: IndexVersion = V2) -> dict[str, Any]:
    (row,) = column_stats_records([("p", BASE, [stats])], version).to_pylist()
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in row.items()
    }


def without_nulls(bound: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in bound.items() if value is not None}


# ---- Java's own records


def java_form(record: dict[str, Any], *, is_log: bool) -> dict[str, Any]:
    """Return a record of Java in the flat form, without the key."""
    stats, typed = record["ColumnStatsMetadata"], record["ColumnStatsMetadata"].get("valueType")
    bounds = {
        "min": java_bound(stats["minValue"], -0.0, is_log=is_log),
        "max": java_bound(stats["maxValue"], 0.0, is_log=is_log),
    }
    return bounds | {
        "file_name": stats["fileName"],
        "column_name": stats["columnName"],
        "value_count": stats["valueCount"],
        "null_count": stats["nullCount"],
        "total_size": stats["totalSize"],
        "total_uncompressed_size": stats["totalUncompressedSize"],
        "is_deleted": stats["isDeleted"],
        "is_tight": stats["isTightBound"],
        "value_type": typed["typeOrdinal"] if typed else None,
        "additional_info": typed["additionalInfo"] if typed else None,
    }


def java_bound(bound: Any, zero: float, *, is_log: bool) -> dict[str, Any] | None:
    if bound is None:
        return None
    name, value = bound[0].rpartition(".")[2], bound[1]["value"]
    # A deliberate difference: bounds of logs have both zeros, too, as footers do.
    is_zero = is_log and isinstance(value, float) and value == 0
    return {name: repr(zero) if is_zero else repr(value)}


def compared(row: dict[str, Any]) -> dict[str, Any]:
    row = {name: value for name, value in row.items() if name != "key"}
    for name in ("min", "max"):
        if row[name] is not None:
            row[name] = {key: repr(value) for key, value in without_nulls(row[name]).items()}
    return row


@pytest.mark.parametrize("name", WITH_STATS)
def test_statistics_of_files_equal_those_that_java_recorded(name: str) -> None:
    version = V1 if name.startswith("v8") else V2
    with golden_tables.open_zip(name) as archive:
        files = {
            PurePosixPath(path).name: path
            for path in archive.namelist()
            if not path.startswith(".hoodie")
        }
        defined = parse_index_definitions(archive.read(INDEX_DEFINITIONS))["column_stats"]
        expected: dict[str, dict[str, Any]] = {}
        for record in java_records(name):
            if record.value["type"] == 3:
                file = record.value["ColumnStatsMetadata"]["fileName"]
                expected.setdefault(file, {})[record.key] = record.value
        assert defined.version is version
        for file in expected.keys() & files.keys():
            path, data = files[file], archive.read(files[file])
            folder = path.rpartition("/")[0]
            storage = storage_with(path, data)
            if file.startswith("."):
                log = LogFile.found(folder, file, len(data))
                assert log is not None
                stats = log_file_stats(storage, log, defined.source_fields)
            else:
                stats = base_file_stats(storage, path, defined.source_fields)
            made = column_stats_records([(folder, file, stats)], version).to_pylist()
            is_log = file.startswith(".")
            assert {row["key"]: compared(row) for row in made} == {
                key: java_form(record, is_log=is_log) for key, record in expected[file].items()
            }
        assert expected.keys() & files.keys()


@pytest.mark.parametrize("name", [name for name in WITH_STATS if name != "v9_cow_services"])
def test_the_first_columns_of_a_schema_are_indexed_as_by_java(name: str) -> None:
    schema = json.loads(
        '{"type":"record","name":"t","fields":[{"name":"id","type":"string"},'
        '{"name":"part","type":"string"},{"name":"ts","type":"long"},{"name":"a","type":"int"},'
        '{"name":"name","type":["null","string"]},{"name":"price","type":["null",{"type":"fixed",'
        '"name":"f","size":5,"logicalType":"decimal","precision":10,"scale":2}]},'
        '{"name":"d","type":{"type":"int","logicalType":"date"}},'
        '{"name":"t","type":{"type":"long","logicalType":"timestamp-micros"}},'
        '{"name":"ok","type":"boolean"},{"name":"x","type":"double"}]}'
    )
    version = V1 if name.startswith("v8") else V2
    with golden_tables.open_zip(name) as archive:
        defined = parse_index_definitions(archive.read(INDEX_DEFINITIONS))["column_stats"]
    assert columns_to_index(json.dumps(schema), version) == defined.source_fields


def test_records_arrays_maps_and_enums_are_not_indexed() -> None:
    kinds: dict[str, Any] = {
        "r": {"type": "record", "name": "r", "fields": [{"name": "x", "type": "int"}]},
        "l": {"type": "array", "items": "int"},
        "m": {"type": "map", "values": "int"},
        "e": {"type": "enum", "name": "e", "symbols": ["A"]},
        "n": ["null", "string"],
        "wide": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = json.dumps({"type": "record", "name": "t", "fields": fields})
    meta = ("_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key")
    assert columns_to_index(schema, V2) == (*meta, "n", "wide")
    assert columns_to_index(schema, V1) == (*meta, "n")
    assert columns_to_index(schema, V2, columns_max=1) == (*meta, "n")
    assert columns_to_index(schema, V2, listed=["r.x", "e", "n"]) == (*meta, "r.x", "n")


def test_a_new_column_joins_an_index_of_the_first_columns_only() -> None:
    before, after = (
        TableSchema.from_arrow(pa.schema([(name, pa.int32()) for name in names]), "t").avro_json
        for names in ("ab", "abc")
    )
    first = columns_to_index(before, V2)
    assert evolved_columns(first, before, after, V2) == (*first, "c")
    assert evolved_columns(first[:-1], before, after, V2) == first[:-1]


def test_damaged_index_definitions_raise_a_typed_error() -> None:
    for text in (b"[]", b"{}", b"\xff", b'{"indexDefinitions": {"a": {"version": "V7"}}}'):
        with pytest.raises(CorruptTableError) as caught:
            parse_index_definitions(text)
        assert caught.value.kind == "bad_index_definitions"


# ---- Base files


def test_nan_makes_the_greatest_bound_infinite() -> None:
    found = stats_of(pa.array([2.0, math.nan, None, 1.0]))
    assert (found.least, found.greatest, found.value_count, found.null_count) == (1, math.inf, 4, 1)
    only = stats_of(pa.array([math.nan], pa.float32()))
    assert (only.least, only.greatest) == (math.inf, math.inf)


def test_long_texts_have_bounds_that_footers_omit() -> None:
    texts = ["b" * 5000, "c" * 9000, None]
    found = stats_of(pa.array(texts))
    assert (found.least, found.greatest, found.null_count) == (texts[0], texts[1], 1)
    row = records(found)
    assert row["min"] == {"StringWrapper": "b" * 4096}
    assert row["max"] == {"StringWrapper": "c" * 4095 + "d"}


def test_a_cut_text_ends_before_characters_that_java_orders_otherwise() -> None:
    row = records(stats_of(pa.array(["a" * 4000 + "\uffff" * 100])))
    assert row["max"] == {"StringWrapper": "a" * 3999 + "b"}
    row = records(stats_of(pa.array(["\U0010ffff" * 2000])))
    assert row["max"] == {"StringWrapper": "\U0010ffff" * 8}
    row = records(stats_of(pa.array([b"\x01" + b"\xff" * 9000])))
    assert row["max"] == {"BytesWrapper": b"\x02"}


def test_bounds_are_read_if_the_footer_has_no_statistics() -> None:
    found = stats_of(pa.array([3, None, 1]), write_statistics=False)
    assert (found.least, found.greatest, found.null_count, found.value_count) == (1, 3, 1, 3)
    assert found.total_size > 0


def test_times_in_96_bits_are_bounds_of_microseconds() -> None:
    column = pa.array([-(10**17), 10**15], pa.timestamp("us"))  # before the year 1677
    found = stats_of(column, use_deprecated_int96_timestamps=True, row_group_size=1)
    assert (found.least, found.greatest) == (-(10**17), 10**15)


def test_a_column_of_nulls_has_no_bounds() -> None:
    found = stats_of(pa.nulls(3, pa.int32()))
    assert (found.least, found.greatest, found.null_count, found.value_count) == (None, None, 3, 3)
    row = records(found)
    assert (row["min"], row["max"], row["value_type"]) == (None, None, 3)


def test_a_file_without_row_groups_has_no_statistics() -> None:
    # Java's rebuild left them out of its file from which a delete took all rows (seed 2, step 55).
    made = io.BytesIO()
    pq.ParquetWriter(made, pa.schema([("c", pa.int32())])).close()
    assert base_file_stats(storage_with(BASE, made.getvalue()), BASE, ["c"]) is None


def test_a_field_of_a_struct_is_measured_by_its_dotted_name() -> None:
    rows = pa.table({"s": pa.array([{"x": 1.5}, None, {"x": None}]), "l": pa.array([[1], [], []])})
    storage = storage_with(BASE, parquet(rows))
    found = base_file_stats(storage, BASE, ["s.x", "l", "none", "s"])
    assert [(each.column, each.least, each.null_count) for each in found] == [("s.x", 1.5, 2)]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
FLOATS = st.floats(width=32)


def of_type(kind: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal(f"{n}e-{kind.scale}"))
    if types.is_floating(kind):
        return FLOATS if types.is_float32(kind) else st.floats()
    if types.is_string(kind):
        return TEXTS | TEXTS.map(lambda text: text * 1500) | st.just("\U0001f600" * 1100)
    if types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if types.is_binary(kind):
        return st.binary(max_size=6) | st.binary(max_size=2).map(lambda data: data * 4000)
    if types.is_date32(kind):
        return st.integers(-(2**31), 2**31 - 1)
    if types.is_time(kind):
        return st.integers(0, {"ms": 86_399_999, "us": 86_399_999_999}[kind.unit])
    bits = kind.bit_width - 1
    return st.integers(-(2**bits), 2**bits - 1)


KINDS = st.sampled_from(
    [
        *(pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()),
        *(pa.binary(), pa.binary(3), pa.date32(), pa.time32("ms"), pa.time64("us")),
        *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC")),
    ]
) | st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: pa.decimal128(digits, scale))
)
COLUMNS = KINDS.flatmap(
    lambda kind: st.lists(st.none() | of_type(kind), max_size=9).map(
        lambda values: pa.array(values, kind)
    )
)


def stored(column: pa.Array) -> list[Any]:
    """Return the values as bounds store them."""
    kind = column.type
    if pa.types.is_decimal(kind):
        texts = pc.cast(column, pa.string()).to_pylist()
        return [None if each is None else unscaled(each, kind.scale) for each in texts]
    if pa.types.is_temporal(kind):
        return column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return column.to_pylist()


def unscaled(text: str, scale: int) -> int:
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits))) * 10 ** (exponent + scale)
    return -number if sign else number


def number_of(bound: Any, kind: pa.DataType) -> Any:
    """Return a record's bound in the form of `stored`."""
    ((wrapper, value),) = bound.items()
    if pa.types.is_decimal(kind):
        if wrapper == "DecimalWrapper":
            return unscaled(str(value), kind.scale)
        return int.from_bytes(value, "big", signed=True)
    return value


@given(column=COLUMNS, group=st.sampled_from([1, 3, 100]), nested=st.booleans())
def test_bounds_contain_every_value_of_a_base_file(
    column: pa.Array, group: int, nested: bool
) -> None:
    name = "s.c" if nested else "c"
    outer = pa.StructArray.from_arrays([column], ["c"]) if nested else column
    rows = pa.table({name[0]: outer})
    data = parquet(rows, row_group_size=group, version="2.6")
    (found,) = base_file_stats(storage_with(BASE, data), BASE, [name])
    assert_contains(found, column)
    assert found.total_size > 0 or not len(column)


def assert_contains(found: ColumnStats, column: pa.Array) -> None:
    values = [each for each in stored(column) if each is not None]
    assert (found.value_count, found.null_count) == (len(column), column.null_count)
    for version in (V1, V2):
        listed = column_stats_records([("p", BASE, [found])], version).to_pylist()
        if not listed:  # a decimal that V1 cannot hold
            assert version is V1
            continue
        row = listed[0]
        if not values:
            assert (row["min"], row["max"]) == (None, None)
            continue
        kind = column.type
        least, greatest = (number_of(without_nulls(row[end]), kind) for end in ("min", "max"))
        for value in values:
            if isinstance(value, float) and math.isnan(value):
                assert greatest == math.inf
            else:
                assert least <= value <= greatest
    if not any(isinstance(value, str | bytes) and len(value) > 1000 for value in values):
        assert found.least in values or not values or math.inf in (found.least, found.greatest)


# ---- Log files

SCHEMA = TableSchema.from_arrow(pa.schema([("id", pa.string()), ("v", pa.float64())]), "t")
NAMES = ["_hoodie_record_key", "id", "v"]


def log_rows(values: list[float | None]) -> pa.Table:
    keys = [f"k{number}" for number in range(len(values))]
    columns = {"_hoodie_record_key": keys, "id": keys, "v": values}
    schema = with_meta(SCHEMA.arrow)
    arrays = [
        pa.array(columns[each.name], each.type)
        if each.name in columns
        else pa.nulls(len(keys), each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def avro_block(values: list[float | None]) -> bytes:
    text = avro_with_meta(SCHEMA.avro_json)
    header = {HeaderKey.INSTANT_TIME: "20260101000000000", HeaderKey.SCHEMA: text}
    return encode_block(BlockType.AVRO_DATA, header, encode_records(log_rows(values), text))


def parquet_block(values: list[float | None]) -> bytes:
    text = avro_with_meta(SCHEMA.avro_json)
    header = {HeaderKey.INSTANT_TIME: "20260101000000000", HeaderKey.SCHEMA: text}
    content = parquet_bytes(log_rows(values), SCHEMA.avro_json, ParquetSettings())
    return encode_block(BlockType.PARQUET_DATA, header, content)


def delete_block(*keys: str) -> bytes:
    header = {HeaderKey.INSTANT_TIME: "20260101000000000"}
    return encode_block(BlockType.DELETE, header, encode_deletes(pa.array(keys), ""))


def log_stats(data: bytes) -> dict[str, ColumnStats]:
    log = LogFile.found("", LOG, len(data))
    assert log is not None
    return {each.column: each for each in log_file_stats(storage_with(LOG, data), log, NAMES)}


@pytest.mark.parametrize("block", [avro_block, parquet_block])
def test_statistics_of_a_log_count_the_rows_of_its_data_blocks(
    block: Callable[[list[float | None]], bytes],
) -> None:
    found = log_stats(block([2.0, None]) + block([math.nan]) + delete_block("x"))
    v, key = found["v"], found["_hoodie_record_key"]
    assert (v.least, v.greatest, v.value_count, v.null_count) == (2, math.inf, 3, 1)
    assert (key.least, key.greatest, key.value_count, v.total_size) == ("k0", "k1", 3, 0)


def test_a_log_of_deletes_has_statistics_without_type_for_every_column() -> None:
    found = log_stats(delete_block("x"))
    assert [records(each)["value_type"] for each in found.values()] == [1, 1, 1]
    assert {each.value_count for each in found.values()} == {0}


# ---- Merging


def test_merged_statistics_contain_all_pieces() -> None:
    one = ColumnStats(column="c", kind=pa.int32(), least=1, greatest=3, value_count=2)
    nulls = ColumnStats(column="c", kind=pa.int32(), value_count=2, null_count=2)
    deletes = ColumnStats(column="c", kind=None)
    assert merge_stats([deletes, one, nulls, deletes]) == ColumnStats(
        column="c", kind=pa.int32(), least=1, greatest=3, value_count=4, null_count=2
    )
    assert merge_stats([]) is None


def test_pieces_of_different_types_merge_to_the_widest_bounds() -> None:
    one = ColumnStats(column="c", kind=pa.int32(), least=1, greatest=3, value_count=2)
    other = ColumnStats(column="c", kind=pa.string(), least="a", greatest="b", value_count=1)
    merged = merge_stats([one, other])
    assert merged is not None
    assert (merged.least, merged.greatest) == ("", "\U0010ffff" * 8)


@given(kind=KINDS, data=st.data())
def test_unknown_statistics_exclude_no_value_of_the_type(
    kind: pa.DataType, data: st.DataObject
) -> None:
    found = unknown_stats("c", kind, 5)
    assert 0 < found.null_count < found.value_count
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        assert found.least == {"ns": -(2**63)}.get(getattr(kind, "unit", ""), found.least)
        values: list[Any] = [0]
    else:
        value = data.draw(of_type(kind).filter(lambda each: each == each))
        values = [each for each in stored(pa.array([value], kind)) if str(each)[:1] != "\U0010ffff"]
    assert all(found.least <= each <= found.greatest for each in values)


def test_partition_statistics_are_not_tight() -> None:
    one = ColumnStats(column="c", kind=pa.int32(), least=1, greatest=3, value_count=2)
    (row,) = partition_stats_records([("p", [one])], V2).to_pylist()
    assert (row["file_name"], row["column_name"], row["is_tight"]) == ("p", "c", False)
    assert len(row["key"]) == 24


def test_deleted_statistics_have_no_bounds() -> None:
    made = deleted_column_stats([("p", BASE)], ["a", "b"], V2).to_pylist()
    assert [row["column_name"] for row in made] == ["a", "b"]
    assert all(row["is_deleted"] and row["min"] is None and row["value_type"] == 1 for row in made)
