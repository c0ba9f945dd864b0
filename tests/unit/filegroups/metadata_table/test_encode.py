"""Encoded records, log files and base files have the bytes that Java Hudi writes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filegroups.files.avro_columns.encode import FEW_ROWS
from filegroups.files.hfile import open_hfile
from filegroups.metadata_table.decode import decode_hfile
from filegroups.metadata_table.encode import (
    encode_base_file,
    encode_log_file,
    encode_records,
    in_order,
)
from filegroups.metadata_table.records import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    FILES,
    RECORD_INDEX,
    SECONDARY_INDEX,
    RecordType,
)
from tests.interop import golden_tables
from tests.unit.filegroups.metadata_table.java_records import JavaRecord, java_files, java_records
from timeline.codecs.log_blocks import BlockType, BytesSource, iter_blocks, read_content
from timeline.errors import InternalError

GOLDEN = golden_tables.metadata_names()
SHAPES = {
    1: FILES,
    2: FILES,
    3: COLUMN_STATS,
    4: BLOOM_FILTERS,
    5: RECORD_INDEX,
    6: COLUMN_STATS,
    7: SECONDARY_INDEX,
}


def rows_of(record: JavaRecord) -> list[dict[str, Any]]:
    """The record by fastavro, as rows of its flat table."""
    value, key = record.value, record.key
    match value["type"]:
        case 1 | 2:
            return [
                {"key": key, "name": name, "size": info["size"], "is_deleted": info["isDeleted"]}
                for name, info in value["filesystemMetadata"].items()
            ]
        case 3 | 6:
            return [stats_row(key, value["ColumnStatsMetadata"])]
        case 4:
            bloom = value["BloomFilterMetadata"]
            row = {"key": key, "type": bloom["type"], "timestamp": bloom["timestamp"]}
            return [row | {"bloom_filter": bloom["bloomFilter"], "is_deleted": bloom["isDeleted"]}]
        case 5:
            index = value["recordIndexMetadata"]
            place = {"partition_path": index["partitionName"], "file_id": file_id(index)}
            return [{"key": key, **place, "instant_ms": index["instantTime"]}]
        case _:
            return [{"key": key, "is_deleted": value["SecondaryIndexMetadata"]["isDeleted"]}]


def stats_row(key: str, stats: dict[str, Any]) -> dict[str, Any]:
    kind = stats.get("valueType") or {"typeOrdinal": None, "additionalInfo": None}
    return {
        "key": key,
        "file_name": stats["fileName"],
        "column_name": stats["columnName"],
        "min": bound(stats["minValue"]),
        "max": bound(stats["maxValue"]),
        "value_count": stats["valueCount"],
        "null_count": stats["nullCount"],
        "total_size": stats["totalSize"],
        "total_uncompressed_size": stats["totalUncompressedSize"],
        "is_deleted": stats["isDeleted"],
        "is_tight": stats["isTightBound"],
        "value_type": kind["typeOrdinal"],
        "additional_info": kind["additionalInfo"],
    }


def bound(pair: tuple[str, dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if pair is None else {pair[0].rpartition(".")[2]: pair[1]["value"]}


def file_id(index: dict[str, Any]) -> str:
    assert index["fileIdEncoding"] == 0
    number = (index["fileIdHighBits"] % 2**64 << 64) + index["fileIdLowBits"] % 2**64
    text = f"{number:032x}"
    uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return f"{uuid}-{index['fileIndex']}"


def version_of(name: str) -> int:
    return int(name[1])


@pytest.mark.parametrize("name", GOLDEN)
def test_datums_are_those_of_java(name: str) -> None:
    compared = 0
    for number, shape in SHAPES.items():
        theirs: dict[str, list[JavaRecord]] = {}
        for record in java_records(name):
            empty_list = number == 1 and not record.value["filesystemMetadata"]
            if record.value["type"] == number and not empty_list:
                theirs.setdefault(record.key, []).append(record)
        # A key may have several records, in several files: encode the first of all, then the next.
        for place in range(max(map(len, theirs.values()), default=0)):
            records = [found[place] for found in theirs.values() if len(found) > place]
            rows = [row for record in reversed(records) for row in rows_of(record)]
            mine = encode_records(
                pa.Table.from_pylist(rows, shape),
                RecordType(2 if number == 1 else number),
                table_version=version_of(name),
            )
            wanted = {record.key: record for record in records}
            for entry in mine.to_pylist():
                java = wanted.pop(entry["key"].decode())
                assert entry["value"] == without_meta(java), java.value
            assert not wanted
            compared += len(records)
    assert compared > 5


def without_meta(record: JavaRecord) -> bytes:
    """The datum with its meta columns null; Java's compaction fills in the name of the file."""
    name = record.value["_hoodie_file_name"]
    if name is None:
        return record.datum
    text = bytes([2, 2 * len(name)]) if len(name) < 64 else bytes([2, 2 * len(name) & 127 | 128, 1])
    filled = b"\0\0\0\0" + text + name.encode()
    assert record.datum.startswith(filled)
    return b"\0\0\0\0\0" + record.datum[len(filled) :]


@pytest.mark.parametrize("name", GOLDEN)
def test_empty_log_files_and_delete_blocks_are_those_of_java(name: str) -> None:
    for partition, file, data in java_files(name):
        if ".log." not in file:
            continue
        for block in iter_blocks(BytesSource(data), len(data), path=file):
            if block.block_type is BlockType.DELETE:
                content = read_content(BytesSource(data), block)
                options: dict[str, Any] = {"table_version": version_of(name), "created_ms": 0}
                if len(content) > 9:
                    options["deleted_keys"] = deleted(content)
                mine = encode_log_file(partition, block.instant_time, **options)
                (own,) = iter_blocks(BytesSource(mine), len(mine), path="x")
                assert read_content(BytesSource(mine), own) == content
                assert own.header == block.header  # in another order before Hudi 1.1
                if not name.startswith("v8"):
                    assert mine == data[block.offset : block.end_offset]


def deleted(content: bytes) -> pa.Array:
    from filegroups.files.delete_block import decode_deletes

    return decode_deletes(content, path="").column("_hoodie_record_key")


# ---- Every kind is decoded to what was encoded

KEYS = st.text(st.characters(codec="utf-8"), max_size=12)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.none() | KEYS
BOUNDS = st.none() | st.one_of(
    st.builds(lambda value: {"BooleanWrapper": value}, st.booleans()),
    st.builds(lambda value: {"IntWrapper": value}, INTS),
    st.builds(lambda value: {"LongWrapper": value}, LONGS),
    st.builds(lambda value: {"FloatWrapper": value}, st.floats(width=32, allow_nan=False)),
    st.builds(lambda value: {"DoubleWrapper": value}, st.floats(allow_nan=False)),
    st.builds(lambda value: {"BytesWrapper": value}, st.binary(max_size=20)),
    st.builds(lambda value: {"StringWrapper": value}, KEYS),
    st.builds(lambda value: {"DateWrapper": value}, INTS),
    st.builds(
        lambda value: {"DecimalWrapper": value},
        st.decimals(Decimal(-(10**15) + 1), Decimal(10**15 - 1), places=15, allow_nan=False),
    ),
    st.builds(lambda value: {"TimeMicrosWrapper": value}, st.integers(0, 86_399_999_999)),
    st.builds(lambda value: {"TimestampMicrosWrapper": value}, LONGS),
    st.builds(lambda value: {"LocalDateWrapper": value}, INTS),
)
UUIDS = st.uuids().map(str)
FILE_IDS = st.one_of(
    st.builds(lambda uuid, number: f"{uuid}-{number}", UUIDS, st.integers(0, 99)),
    UUIDS,
    UUIDS.map(str.upper),
    st.sampled_from(["bucket-1", "x", "00000003-0000-0000-0000-000000000000-0"]),
)
STATS = st.fixed_dictionaries(
    {
        "file_name": TEXTS,
        "column_name": TEXTS,
        "min": BOUNDS,
        "max": BOUNDS,
        **{
            name: st.none() | LONGS
            for name in ("value_count", "null_count", "total_size", "total_uncompressed_size")
        },
        "is_deleted": st.booleans(),
        "is_tight": st.booleans(),
    }
)
KIND = st.none() | st.tuples(st.integers(0, 20), TEXTS)
ROWS: dict[RecordType, Any] = {
    RecordType.COLUMN_STATS: st.tuples(STATS, KIND).map(
        lambda pair: {
            **pair[0],
            "value_type": pair[1] and pair[1][0],
            "additional_info": pair[1] and pair[1][1],
        }
    ),
    RecordType.BLOOM_FILTERS: st.fixed_dictionaries(
        {
            "type": KEYS,
            "timestamp": KEYS,
            "bloom_filter": st.binary(),
            "is_deleted": st.booleans(),
        }
    ),
    RecordType.RECORD_INDEX: st.fixed_dictionaries(
        {
            "partition_path": KEYS.filter(lambda path: path != "."),
            "file_id": FILE_IDS,
            "instant_ms": LONGS,
        }
    ),
    RecordType.SECONDARY_INDEX: st.fixed_dictionaries({"is_deleted": st.booleans()}),
}
ROWS[RecordType.PARTITION_STATS] = ROWS[RecordType.COLUMN_STATS]


def sorted_by_key(table: pa.Table) -> pa.Table:
    keys = table.column("key").cast(pa.binary())
    return table.take(pa.compute.sort_indices(keys))


@pytest.mark.parametrize("record_type", list(ROWS))
@settings(max_examples=40)
@given(st.data())
def test_records_are_decoded_to_what_was_encoded(record_type: RecordType, data: Any) -> None:
    found = data.draw(st.dictionaries(KEYS, ROWS[record_type], max_size=8))
    table = pa.Table.from_pylist(
        [{"key": key, **row} for key, row in found.items()], SHAPES[int(record_type)]
    )
    rows = in_order(table, record_type)
    entries = encode_records(rows, record_type, table_version=9)
    file = encode_base_file(entries, table_version=9, created_ms=1)
    again = decode_hfile(BytesSource(file), len(file), table.schema, path="x")
    assert again.schema == rows.schema  # a compaction takes the rows for the decoded ones
    assert again.to_pylist() == rows.to_pylist() == sorted_by_key(table).to_pylist()


ROWS_OF_FILES = st.fixed_dictionaries({"size": LONGS, "is_deleted": st.booleans()})


@pytest.mark.parametrize("record_type", [RecordType.FILES, *ROWS])
@pytest.mark.parametrize("table_version", [8, 9])
@settings(max_examples=20)
@given(st.data())
def test_few_records_have_the_bytes_of_many(
    record_type: RecordType, table_version: int, data: Any
) -> None:
    kind = ROWS.get(record_type, ROWS_OF_FILES)
    found = data.draw(st.dictionaries(KEYS, kind, min_size=1, max_size=8))
    rows = [{"key": key, "name": key * 2, **row} for key, row in found.items()]
    shape = SHAPES[int(record_type)]
    more = [{**rows[0], "key": f"{'x' * 13}{number}"} for number in range(FEW_ROWS)]
    few, many = (
        encode_records(
            pa.Table.from_pylist(each, shape), record_type, table_version=table_version
        ).to_pylist()
        for each in (rows, rows + more)
    )
    assert len(few) == len(rows)
    assert {each["key"]: each["value"] for each in many}.items() >= {
        each["key"]: each["value"] for each in few
    }.items()


def test_many_records_of_the_record_index_are_in_the_order_of_their_keys() -> None:
    count = 150_000
    table = pa.table(
        {
            "key": pa.array([f"k{number * 7919 % count:06d}" for number in range(count)]),
            "partition_path": pa.repeat("p", count),
            "file_id": pa.repeat("11111111-2222-3333-4444-555555555555-0", count),
            "instant_ms": pa.array(range(count)),
        },
        RECORD_INDEX,
    )
    entries = encode_records(table, RecordType.RECORD_INDEX, table_version=9)
    file = encode_base_file(entries, table_version=9, created_ms=1)
    again = decode_hfile(BytesSource(file), len(file), RECORD_INDEX, path="x")
    assert again.equals(sorted_by_key(table).combine_chunks())


def files(*rows: tuple[str, str, int, bool]) -> pa.Table:
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=FILES)


def test_a_log_file_has_the_records_and_then_the_deletes() -> None:
    table = files(("__all_partitions__", "p", 0, False), ("p", "f", 5, False), ("p", "g", 0, True))
    entries = encode_records(table, RecordType.FILES, table_version=8)
    options: dict[str, Any] = {"table_version": 8, "created_ms": 9, "entries": entries}
    log = encode_log_file("files", "20260101000000000", deleted_keys=pa.array(["q"]), **options)
    data, delete = iter_blocks(BytesSource(log), len(log), path="x")
    assert (data.block_type, delete.block_type) == (BlockType.HFILE_DATA, BlockType.DELETE)
    assert data.instant_time == delete.instant_time == "20260101000000000"
    content = read_content(BytesSource(log), data)
    assert open_hfile(BytesSource(content), len(content), path="x").entry_count == 2
    assert decode_hfile(BytesSource(content), len(content), FILES, path="x").equals(table)
    assert deleted(read_content(BytesSource(log), delete)).to_pylist() == ["q"]


def test_a_log_file_of_nothing_has_eighty_bytes() -> None:
    at = f"{datetime(2026, 1, 1, tzinfo=UTC):%Y%m%d%H%M%S}000"
    assert len(encode_log_file("record_index", at, table_version=9, created_ms=0)) == 80


def test_a_name_twice_under_one_key_is_a_defect() -> None:
    with pytest.raises(InternalError):
        encode_records(
            files(("p", "f", 1, False), ("p", "f", 2, False)), RecordType.FILES, table_version=9
        )
