"""Files of the metadata table are decoded to exactly what Java wrote, or refused."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from filegroups.files.avro_columns import decode_datums
from filegroups.files.delete_block import encode_deletes
from filegroups.files.hfile import open_hfile
from filegroups.metadata_table.decode import (
    SHAPE_OF_KIND,
    decode_block,
    decode_hfile,
    decode_together,
)
from filegroups.metadata_table.records import (
    BOUND,
    COLUMN_STATS,
    FILES,
    RECORD_INDEX,
    SECONDARY_INDEX,
)
from tests.interop import golden_tables
from tests.unit.filegroups.metadata_table.java_records import FOLDER, java_files, java_records
from timeline.codecs.log_blocks import (
    BlockType,
    BytesSource,
    HeaderKey,
    LogBlock,
    encode_block,
    iter_blocks,
    read_content,
)
from timeline.errors import CorruptTableError, HoodooError
from timeline.model.metadata_table import kind_of

LOG = f"{FOLDER}files/.files-0000-0_1.log.1_0-0-0"


def decoded(name: str) -> dict[str, list[dict[str, Any]]]:
    """The decoded rows of all files of a golden metadata table, by partition."""
    found: dict[str, list[dict[str, Any]]] = {}
    for partition, file, data in java_files(name):
        shape = shape_of(partition)
        source = BytesSource(data)
        if file.endswith(".hfile"):
            tables = [decode_hfile(source, len(data), shape, path=file)]
        else:
            blocks = [
                decode_block(block, read_content(source, block), shape)
                for block in iter_blocks(source, len(data), path=file)
            ]
            tables = [one for one in blocks if isinstance(one, pa.Table)]
        for one in tables:
            one.validate(full=True)
            assert one.schema == shape
            found.setdefault(partition, []).extend(one.to_pylist())
    return found


def shape_of(partition: str) -> pa.Schema:
    kind = kind_of(partition)
    assert kind is not None
    return SHAPE_OF_KIND[kind]


def rows_of(record: Any) -> list[dict[str, Any]]:
    """The rows of a record that fastavro decoded."""
    value, key = record.value, record.key
    if value["filesystemMetadata"] is not None:
        return [
            {"key": key, "name": name, "size": info["size"], "is_deleted": info["isDeleted"]}
            for name, info in value["filesystemMetadata"].items()
        ]
    if value["recordIndexMetadata"] is not None:
        one = part(value["recordIndexMetadata"])
        halves = (one[name] % 2**64 for name in ("fileIdHighBits", "fileIdLowBits"))
        high, low = halves
        file_id = f"{uuid.UUID(int=(high << 64) + low)}-{one['fileIndex']}"
        row = {"partition_path": one["partitionName"], "file_id": file_id}
        return [{"key": key, **row, "instant_ms": one["instantTime"]}]
    if value["ColumnStatsMetadata"] is not None:
        return [stats_row(key, part(value["ColumnStatsMetadata"]))]
    if value["BloomFilterMetadata"] is not None:
        one = part(value["BloomFilterMetadata"])
        row = {"bloom_filter": one["bloomFilter"], "is_deleted": one["isDeleted"]}
        return [{"key": key, "type": one["type"], "timestamp": one["timestamp"], **row}]
    return [{"key": key, "is_deleted": part(value["SecondaryIndexMetadata"])["isDeleted"]}]


def stats_row(key: str, one: dict[str, Any]) -> dict[str, Any]:
    kind = part(one.get("valueType")) or {"typeOrdinal": None, "additionalInfo": None}
    sizes = {"total_size": "totalSize", "total_uncompressed_size": "totalUncompressedSize"}
    return {
        "key": key,
        "file_name": one["fileName"],
        "column_name": one["columnName"],
        "min": bound(one["minValue"]),
        "max": bound(one["maxValue"]),
        "value_count": one["valueCount"],
        "null_count": one["nullCount"],
        **{ours: one[theirs] for ours, theirs in sizes.items()},
        "is_deleted": one["isDeleted"],
        "is_tight": one["isTightBound"],
        "value_type": kind["typeOrdinal"],
        "additional_info": kind["additionalInfo"],
    }


def part(value: Any) -> Any:
    """A record without its name."""
    return value[1] if isinstance(value, tuple) else value


def bound(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    name, held = value
    found = held["value"]
    # fastavro reads a date of the union as a number, and a decimal as a Decimal
    return {one.name: found if name.endswith(one.name) else None for one in BOUND}


@pytest.mark.parametrize("name", golden_tables.metadata_names())
def test_every_record_that_java_wrote_is_decoded(name: str) -> None:
    expected: dict[str, list[dict[str, Any]]] = {}
    for record in java_records(name):
        expected.setdefault(record.partition, []).extend(rows_of(record))
    found = {partition: rows for partition, rows in decoded(name).items() if rows}
    assert found == {partition: rows for partition, rows in expected.items() if rows}


def test_only_the_wanted_keys_are_decoded() -> None:
    for partition, file, data in java_files("v9_cow_services"):
        if partition == "record_index" and file.endswith(".hfile"):
            whole = decode_hfile(BytesSource(data), len(data), RECORD_INDEX, path=file)
            for key in whole.column("key").to_pylist():
                wanted = pa.array(["", key, "nothing"])
                some = decode_hfile(BytesSource(data), len(data), RECORD_INDEX, wanted, path=file)
                assert some.column("key").to_pylist() == [key]


def test_a_delete_block_gives_its_keys() -> None:
    content = encode_deletes(pa.array(["a", "b"]), "record_index")
    block = block_of(BlockType.DELETE, content)
    assert decode_block(block, content, RECORD_INDEX).to_pylist() == ["a", "b"]
    assert decode_block(block, content, RECORD_INDEX, pa.array(["b"])).to_pylist() == ["b"]


def block_of(kind: BlockType, content: bytes) -> LogBlock:
    data = encode_block(kind, {HeaderKey.INSTANT_TIME: "1"}, content)
    return next(iter_blocks(BytesSource(data), len(data), path=LOG))


def data_blocks(name: str, partition: str) -> Iterator[tuple[LogBlock, bytes]]:
    """The data blocks of the logs of a partition."""
    for folder, file, data in java_files(name):
        if folder == partition and ".log." in file:
            source = BytesSource(data)
            for block in iter_blocks(source, len(data), path=LOG):
                if block.block_type is BlockType.HFILE_DATA:
                    yield block, read_content(source, block)


def several_blocks(partition: str) -> list[tuple[LogBlock, bytes]]:
    """Return the data blocks of a partition in each table of Java's, those without records too."""
    names = golden_tables.metadata_names()
    return [one for name in names for one in data_blocks(name, partition)]


@pytest.mark.parametrize("partition", ["files", "column_stats", "record_index"])
def test_blocks_decoded_together_are_those_decoded_one_by_one(partition: str) -> None:
    shape = shape_of(partition)
    by_schema: dict[bytes, list[tuple[LogBlock, bytes]]] = {}
    for block, content in several_blocks(partition):
        file = open_hfile(BytesSource(content), len(content), path=block.path)
        by_schema.setdefault(file.info.get(b"schema", b""), []).append((block, content))
    runs = [*by_schema.values(), several_blocks(partition)]
    assert max(map(len, by_schema.values())) > 2
    for blocks in runs:
        alone = [decode_block(block, content, shape) for block, content in blocks]
        assert decode_together(blocks, shape).equals(pa.concat_tables(alone))


def test_of_blocks_decoded_together_the_damaged_one_is_named() -> None:
    shape = shape_of("files")
    (first, content), (second, other), *_ = several_blocks("files")
    end = other.index(b"DATABLK*") + 33
    for damaged in (other[:end] + b"\xff" * 40 + other[end + 40 :], other[:-4200]):
        with pytest.raises(CorruptTableError) as caught:
            decode_together([(first, content), (replace(second, path="bad.log"), damaged)], shape)
        assert "bad.log" in caught.value.message


def test_a_block_of_another_type_is_refused() -> None:
    block = block_of(BlockType.PARQUET_DATA, b"x")
    with pytest.raises(CorruptTableError) as caught:
        decode_block(block, b"x", FILES)
    assert caught.value.kind == "bad_metadata_record"


@pytest.mark.parametrize(
    ("partition", "shape"),
    [("files", COLUMN_STATS), ("record_index", FILES), ("column_stats", SECONDARY_INDEX)],
)
def test_records_of_another_partition_are_refused(partition: str, shape: pa.Schema) -> None:
    block, content = next(data_blocks("v9_mor_ri", partition))
    with pytest.raises(CorruptTableError) as caught:
        decode_block(block, content, shape)
    assert caught.value.kind == "bad_metadata_record"


@pytest.mark.parametrize("partition", ["files", "column_stats", "record_index"])
def test_damaged_bytes_give_an_error_or_the_same_rows(partition: str) -> None:
    block, content = next(data_blocks("v8_cow_all", partition))
    shape = shape_of(partition)
    whole = decode_block(block, content, shape)
    for place in range(0, len(content), 29):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        for damaged in (bytes(flipped), content[:place]):
            try:
                found = decode_block(block, damaged, shape)
            except HoodooError:
                continue
            assert found == whole


@pytest.mark.parametrize("name", ["v8_cow_services", "v9_cow_services"])
def test_a_look_up_in_a_damaged_file_gives_an_error_or_the_same_rows(name: str) -> None:
    data = next(
        data for p, f, data in java_files(name) if p == "record_index" and f.endswith(".hfile")
    )
    whole = decode_hfile(BytesSource(data), len(data), RECORD_INDEX, path="f.hfile")
    keys = whole.column("key").combine_chunks()
    # The tail of zeros before the version is of no use to a reader.
    for place in [*range(0, len(data) - 4000, 11), *range(len(data) - 4, len(data))]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        for damaged in (bytes(flipped), data[:place]):
            source = BytesSource(damaged)
            try:
                found = decode_hfile(source, len(damaged), RECORD_INDEX, keys, path="f.hfile")
            except HoodooError:
                continue
            assert found == whole, place


def test_a_union_of_wrappers_becomes_a_struct() -> None:
    wrapper = {"type": "record", "fields": [{"name": "value", "type": "int"}]}
    text = {"type": "record", "name": "Text", "fields": [{"name": "value", "type": "string"}]}
    items = {"type": "array", "items": ["null", "N"]}
    more = {"type": "record", "name": "More", "fields": [{"name": "values", "type": items}]}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "one", "type": ["null", {**wrapper, "name": "N"}, text, more]},
            {"name": "after", "type": "int"},
        ],
    }
    rows = [
        {"one": ("N", {"value": 5}), "after": 1},
        {"one": None, "after": 2},
        {"one": ("Text", {"value": "é"}), "after": 3},
        {"one": ("More", {"values": [None, {"value": 3}]}), "after": 4},
    ]
    datums = []
    for row in rows:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
        datums.append(file.getvalue())
    kind = pa.struct([("Text", pa.string()), ("N", pa.int32()), ("Other", pa.date32())])
    wanted = pa.schema([("one", kind), ("after", pa.int32())])
    found = decode_datums(pa.array(datums, pa.binary()), json.dumps(schema), wanted, path="p")
    none = {"Text": None, "N": None, "Other": None}
    assert found.to_pylist() == [
        {"one": {**none, "N": 5}, "after": 1},
        {"one": None, "after": 2},
        {"one": {**none, "Text": "é"}, "after": 3},
        {"one": none, "after": 4},
    ]


def test_a_decimal_of_version_8_keeps_its_scale() -> None:
    rows = decoded("v8_cow_all")["column_stats"]
    prices = [row["max"]["DecimalWrapper"] for row in rows if row["column_name"] == "price"]
    assert Decimal("5.05") in prices
