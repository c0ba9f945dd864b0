"""Keys and file groups of the metadata table equal those that Java Hudi wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filegroups.metadata_table.keys import (
    FileGroupNumber,
    IndexVersion,
    bloom_filter_keys,
    column_stats_keys,
    file_group_id,
    parse_file_group_id,
    partition_stats_keys,
    secondary_keys,
    shards,
    split_secondary_keys,
)
from tests.interop import golden_tables
from tests.unit.filegroups.metadata_table.java_records import JavaRecord, java_files, java_records
from timeline.errors import CorruptTableError
from timeline.model.metadata_table import PartitionKind, kind_of

GOLDEN = golden_tables.metadata_names()
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def partition_of_file(name: str, file: str) -> str:
    for record in java_records(name):
        if record.value["type"] == 2 and file in record.value["filesystemMetadata"]:
            return record.key.replace(".", "")
    raise AssertionError(file)


def rebuilt(name: str, record: JavaRecord) -> str:
    value: dict[str, Any] = record.value
    if record.value["type"] == 3:
        stats = value["ColumnStatsMetadata"]
        column, file = stats["columnName"], stats["fileName"]
        found = column_stats_keys(texts(column), texts(partition_of_file(name, file)), texts(file))
    elif record.value["type"] == 6:
        stats = value["ColumnStatsMetadata"]
        found = partition_stats_keys(texts(stats["columnName"]), texts(stats["fileName"]))
    else:
        found = secondary_keys(*split_secondary_keys(texts(record.key), path=""))
    return str(found[0].as_py())


@pytest.mark.parametrize("name", GOLDEN)
def test_keys_equal_those_java_wrote(name: str) -> None:
    kinds = {3, 6, 7}
    records = {(one.partition, one.key): one for one in java_records(name)}
    for (_, key), record in records.items():
        if record.value["type"] in kinds:
            assert rebuilt(name, record) == key


@pytest.mark.parametrize("name", ["v8_cow_all", "v9a_cow_all"])
def test_bloom_filter_keys_equal_those_java_wrote(name: str) -> None:
    files = [
        (one.key, file)
        for one in java_records(name)
        if one.value["type"] == 2
        for file in one.value["filesystemMetadata"]
    ]
    found = bloom_filter_keys(texts(*(path for path, _ in files)), texts(*(f for _, f in files)))
    theirs = {one.key for one in java_records(name) if one.value["type"] == 4}
    assert theirs
    assert set(found.to_pylist()) == theirs


@pytest.mark.parametrize("name", GOLDEN)
def test_each_key_is_in_the_file_group_of_its_hash(name: str) -> None:
    version = IndexVersion.V1 if name.startswith("v8") else IndexVersion.V2
    groups: dict[str, set[str]] = {}
    for partition, file, _ in java_files(name):
        groups.setdefault(partition, set()).add(file.removeprefix(".").split("_")[0])
    for one in {(r.partition, r.key, r.file_id): r for r in java_records(name)}.values():
        kind = kind_of(one.partition)
        assert kind is not None
        place = parse_file_group_id(one.partition, one.file_id)
        assert place is not None
        assert one.file_id == file_group_id(
            one.partition, place.number, data_partition=place.data_partition
        )
        mine = sorted(
            group
            for group in groups[one.partition]
            if parse_file_group_id(one.partition, group).data_partition == place.data_partition  # type: ignore[union-attr]
        )
        (shard,) = shards(texts(one.key), len(mine), kind, index_version=version)
        assert mine[shard] == one.file_id


def test_shard_of_the_least_java_int_is_that_of_its_amount() -> None:
    key = texts("polygenelubricants")  # its String.hashCode is -2**31, whose abs() Java leaves
    found = [int(shards(key, count, PartitionKind.RECORD_INDEX)[0]) for count in (1, 3, 7, 10)]
    assert found == [0, 2**31 % 3, 2**31 % 7, 2**31 % 10]


def test_all_records_of_a_secondary_value_are_in_one_file_group() -> None:
    keys = secondary_keys(texts(*["va$ue"] * 50), texts(*map(str, range(50))))
    kind = PartitionKind.SECONDARY_INDEX
    assert len(set(shards(keys, 7, kind, index_version=IndexVersion.V2))) == 1
    assert len(set(shards(keys, 7, kind, index_version=IndexVersion.V1))) > 1


@given(st.lists(st.tuples(st.none() | TEXTS, TEXTS), max_size=20))
def test_secondary_key_splits_into_value_and_record_key(pairs: list[tuple[str, str]]) -> None:
    values = pa.array([value for value, _ in pairs], pa.string())
    record_keys = pa.array([key for _, key in pairs], pa.string())
    found = split_secondary_keys(secondary_keys(values, record_keys), path="")
    assert found[0].equals(values)
    assert found[1].equals(record_keys)


def test_secondary_key_of_null_begins_with_a_nul() -> None:
    assert secondary_keys(texts(None, "a\0"), texts("k", "k")).to_pylist() == ["\0$k", "a\\\0$k"]


@pytest.mark.parametrize("key", ["", "abc", "a\\$b"])
def test_secondary_key_without_separator_is_refused(key: str) -> None:
    with pytest.raises(CorruptTableError) as caught:
        split_secondary_keys(texts("a$b", key), path="f")
    assert caught.value.kind == "bad_hfile"


@pytest.mark.parametrize(
    ("partition", "kind"),
    [
        ("files", PartitionKind.FILES),
        ("partition_stats", PartitionKind.PARTITION_STATS),
        ("secondary_index_idx_name", PartitionKind.SECONDARY_INDEX),
        ("expr_index_x", PartitionKind.EXPRESSION_INDEX),
        ("secondary_index_", None),
        ("files2", None),
        ("vector_index", None),
    ],
)
def test_kind_of_a_partition(partition: str, kind: PartitionKind | None) -> None:
    assert kind_of(partition) is kind


@given(TEXTS, st.integers(0, 12_000))
def test_file_group_of_a_record_index_per_partition_names_it(path: str, number: int) -> None:
    path = path.replace("\0", "")
    file_id = file_group_id("record_index", number, data_partition=path)
    assert file_id.count("-") == 4
    assert parse_file_group_id("record_index", file_id) == FileGroupNumber(number, path)


def test_file_group_ids_are_javas() -> None:
    escaped = file_group_id("record_index", 3, data_partition="a/b=c-d_e%f.é")
    assert escaped == "record-index-a%2Fb%3Dc%2Dd%5Fe%25f.é-0003-0"  # printed by Hudi 1.2.0
    assert file_group_id("secondary_index_idx_ts", 6) == "secondary-index-idx-ts-0006-0"
    assert file_group_id("column_stats", 1) == "col-stats-0001-0"
    assert parse_file_group_id("column_stats", "col-stats-0001-0") == FileGroupNumber(1)
    assert parse_file_group_id("column_stats", "files-0001-0") is None
    assert parse_file_group_id("column_stats", "col-stats-a-0001-0") is None


def test_keys_of_many_files_take_each_column_and_partition() -> None:
    keys = column_stats_keys(
        pa.chunked_array([["a"], ["b"]]), texts("", "."), texts("f", "f")
    ).to_pylist()
    assert [key[12:] for key in keys] == [keys[0][12:]] * 2  # "" and "." are the base folder
    assert keys[0][:12] != keys[1][:12]
    assert np.all([len(key) == 48 for key in keys])
