"""The records of an instant are spread over the file groups of each partition."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from filegroups.metadata_table.contents import DELETES, PartitionContents
from filegroups.metadata_table.decode import decode_block
from filegroups.metadata_table.index_definitions import IndexDefinition
from filegroups.metadata_table.keys import IndexVersion, file_group_id, secondary_keys, shards
from filegroups.metadata_table.log_files import MetadataWrite, metadata_log_files
from filegroups.metadata_table.records import FILES, RECORD_INDEX, SECONDARY_INDEX
from timeline.codecs.log_blocks import BytesSource, iter_blocks, read_content
from timeline.errors import InternalError
from timeline.model.metadata_table import MetadataLogFile, PartitionKind

WRITE = MetadataWrite(
    requested_time="20260101000000000", write_token="0-1-2", table_version=9, created_ms=1
)
UUID = "11111111-2222-3333-4444-555555555555-0"
PER_PARTITION = IndexDefinition(
    name="record_index", index_type="record_index", options={"isPartitioned": "true"}
)


def indexed(*rows: tuple[str, str]) -> pa.Table:
    made = [{"key": k, "partition_path": p, "file_id": UUID, "instant_ms": 1} for k, p in rows]
    return pa.Table.from_pylist(made, RECORD_INDEX)


def deleted(*rows: tuple[str, str]) -> pa.Table:
    return pa.Table.from_pylist([{"key": k, "partition_path": p} for k, p in rows], DELETES)


def written(
    partition: str,
    content: PartitionContents,
    groups: list[str],
    definition: IndexDefinition | None = None,
    write: MetadataWrite = WRITE,
) -> list[tuple[MetadataLogFile, bytes]]:
    definitions = {} if definition is None else {partition: definition}
    return list(metadata_log_files({partition: content}, {partition: groups}, definitions, write))


def keys_in(data: bytes, shape: pa.Schema) -> tuple[list[str], list[str]]:
    """Keys that a log puts and keys that it deletes."""
    put: list[str] = []
    gone: list[str] = []
    for block in iter_blocks(BytesSource(data), len(data), path="x"):
        found = decode_block(block, read_content(BytesSource(data), block), shape)
        if isinstance(found, pa.Table):
            put += found.column("key").to_pylist()
        else:
            gone += found.to_pylist()
    return put, gone


def test_each_key_goes_to_the_file_group_of_its_hash() -> None:
    names = [f"k{number}" for number in range(60)]
    content = PartitionContents(
        records=indexed(*((name, "p") for name in names[:40])),
        deletes=deleted(*((name, "p") for name in names[40:])),
    )
    groups = [file_group_id("record_index", number) for number in range(3)]
    found = written("record_index", content, groups[::-1])
    assert [file.file_id for file, _ in found] == groups
    places = shards(pa.array(names), 3, PartitionKind.RECORD_INDEX)
    for number, (file, data) in enumerate(found):
        put, gone = keys_in(data, RECORD_INDEX)
        mine = [name for name, place in zip(names, places, strict=True) if place == number]
        assert put == sorted(name for name in mine if name in names[:40])
        assert gone == [name for name in mine if name in names[40:]]
        assert file == MetadataLogFile(
            partition="record_index",
            file_id=groups[number],
            name=f".{groups[number]}_20260101000000000.log.1_0-1-2",
            size_bytes=len(data),
            records=len(mine),
            base_time="20260101000000000",
        )


def test_a_file_group_without_records_gets_no_file() -> None:
    groups = [file_group_id("record_index", number) for number in range(50)]
    content = PartitionContents(records=indexed(("k", "p")))
    assert len(written("record_index", content, groups)) == 1
    assert not written("record_index", PartitionContents(records=indexed()), groups)


def test_the_records_of_a_partition_count_once_for_each_key() -> None:
    rows = [("p", "a", 1, False), ("p", "b", 2, False), ("__all_partitions__", "p", 0, False)]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=FILES)
    ((file, data),) = written("files", PartitionContents(records=table), ["files-0000-0"])
    assert file.records == 2
    assert keys_in(data, FILES)[0] == ["__all_partitions__", "p", "p"]


@pytest.mark.parametrize("version", list(IndexVersion))
def test_a_secondary_index_is_spread_by_the_version_of_its_definition(
    version: IndexVersion,
) -> None:
    keys = secondary_keys(pa.array(["v"] * 30), pa.array([str(n) for n in range(30)]))
    table = pa.table([keys, pa.repeat(False, 30)], schema=SECONDARY_INDEX)
    name = "secondary_index_s"
    groups = [file_group_id(name, number) for number in range(4)]
    definition = IndexDefinition(name=name, index_type="secondary_index", version=version)
    found = written(name, PartitionContents(records=table), groups, definition)
    assert len(found) == (4 if version is IndexVersion.V1 else 1)
    put = [key for _, data in found for key in keys_in(data, SECONDARY_INDEX)[0]]
    assert sorted(put) == sorted(keys.to_pylist())


def test_a_record_index_per_partition_has_file_groups_of_each_partition() -> None:
    content = PartitionContents(
        records=indexed(("a", "p/1"), ("b", "p/1"), ("a", "new")), deletes=deleted(("a", "p/2"))
    )
    existing = [
        file_group_id("record_index", number, data_partition=path)
        for path in ("p/1", "p/2")
        for number in range(2)
    ]
    write = replace(WRITE, new_file_groups=3)
    found = written("record_index", content, existing, PER_PARTITION, write)
    by_path: dict[str, list[tuple[list[str], list[str]]]] = {}
    for file, data in found:
        by_path.setdefault(file.file_id.split("-")[2], []).append(keys_in(data, RECORD_INDEX))
    assert sorted(key for put, _ in by_path["p%2F1"] for key in put) == ["a", "b"]
    assert by_path["p%2F2"] == [([], ["a"])]
    assert len(by_path["new"]) == 3  # all file groups of a new partition exist from now on
    assert sorted(len(data) == 80 for file, data in found if "-new-" in file.file_id) == [
        *(False, True, True)
    ]


@pytest.mark.parametrize("partition", ["expr_index_x", "unknown", "record_index"])
def test_a_partition_of_another_kind_or_without_file_groups_is_a_defect(partition: str) -> None:
    groups = [] if partition == "record_index" else [f"{partition}-0000-0"]
    with pytest.raises(InternalError):
        written(partition, PartitionContents(records=indexed(("a", "p"))), groups)
