"""The records of each commit of a golden table equal those that Java Hudi wrote for it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from filegroups.files.delete_block import decode_deletes
from filegroups.files.hfile import open_hfile
from filegroups.files.slice_reader import SliceRead
from filegroups.merge.rules import MergeRules
from filegroups.metadata_table.contents import PartitionContents, contents_of_commit
from filegroups.metadata_table.file_group_contents import FileGroupChange, IndexedTable
from filegroups.metadata_table.index_definitions import read_index_definitions
from filegroups.metadata_table.keys import IndexVersion
from filegroups.schema.casting import uuid_texts
from filegroups.schema.schema import KEY_COLUMN, TableSchema, with_meta
from tests.interop import golden_tables
from tests.unit.filegroups.metadata_table.java_records import java_files
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.log_blocks import BlockType, BytesSource, iter_blocks, read_content
from timeline.model.commit_metadata import CommitMetadata, FileGroupId
from timeline.model.file_names import parse_instant_name, parse_log_file_name
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action
from timeline.model.instant_time import UTC_ZONE
from timeline.model.table_config import TableConfig
from timeline.properties.properties_file import parse_properties
from timeline.system import ThreadExecutor

WRITES = (Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT)
FIRST = "1"  # above the times with which Java creates partitions of the metadata table
COMPARED = {
    "v8_cow_all": 2,
    "v8_cow_colstats_nonpart": 2,
    "v8_cow_secondary": 2,
    "v8_cow_services": 1,
    "v8_mor_services": 3,
    "v8_mor_savepoint_restore": 2,
    "v9_cow_archived": 1,
    "v9_cow_files": 2,
    "v9_cow_partitioned_ri": 2,
    "v9_cow_services": 1,
    "v9_mor_compacted": 4,
    "v9_mor_ri": 3,
    "v9_mor_savepoint_restore": 2,
    "v9_mor_secondary": 2,
    "v9a_cow_all": 2,
    "v9a_cow_partitioned_ri": 2,
}
"""Golden tables, and the least number of commits whose files still exist."""


def storage_of(name: str) -> MemoryStorage:
    storage = MemoryStorage(f"memory://{name}")
    with golden_tables.open_zip(name) as archive:
        for path in archive.namelist():
            if not path.endswith("/"):
                storage.create(path, archive.read(path))
    return storage


def commits(storage: MemoryStorage) -> Iterator[tuple[str, CommitMetadata]]:
    """Yield the writes of the active timeline, in the order of completion."""
    folder = ".hoodie/timeline"
    parsed = [(parse_instant_name(each.name), each.name) for each in storage.list(folder)]
    done = [(one, name) for one, name in parsed if one is not None and one.completed]
    for one, name in sorted(done, key=lambda each: str(each[0].completion_time)):
        if one.action in WRITES:
            yield one.requested_time, decode_commit(storage.read(f"{folder}/{name}"))


def java_commits(name: str) -> dict[str, dict[str, tuple[list[dict[str, Any]], list[str]]]]:
    """Return the records and deleted keys that Java wrote, by requested time and partition."""
    found: dict[str, dict[str, tuple[list[dict[str, Any]], list[str]]]] = {}
    for partition, file, data in java_files(name):
        log = parse_log_file_name(file)
        if log is None:
            continue
        records, deletes = found.setdefault(log.instant_time, {}).setdefault(partition, ([], []))
        source = BytesSource(data)
        for block in iter_blocks(source, len(data), path=file):
            content = read_content(source, block)
            if block.block_type is BlockType.DELETE:
                deletes += decode_deletes(content, path=file).column(KEY_COLUMN).to_pylist()
                continue
            hfile = open_hfile(BytesSource(content), len(content), path=file)
            schema = fastavro.parse_schema(json.loads(hfile.info[b"schema"]))
            for row in hfile.read_all().to_pylist():
                value = fastavro.schemaless_reader(io.BytesIO(row["value"]), schema, schema)
                records.append(value | {"key": row["key"].decode()})
    return found


def table_of(storage: MemoryStorage, avro_json: str) -> IndexedTable:
    config = TableConfig.from_properties(
        parse_properties(storage.read(".hoodie/hoodie.properties"))
    )
    schema = TableSchema.from_avro(avro_json)
    return IndexedTable(
        partitions=config.metadata_partitions,
        definitions=read_index_definitions(storage),
        read=SliceRead(
            file_schema=with_meta(schema.arrow),
            columns=(),
            rules=MergeRules.of(config.merge, schema.avro_json),
            visible=Everything(),
        ),
        avro_json=schema.avro_json,
        version=IndexVersion.V1 if config.table_version < 9 else IndexVersion.V2,
    )


class Everything:
    def __contains__(self, _: object) -> bool:
        return True


# ---- Our records and Java's in one form


def ours(kind: str, contents: PartitionContents) -> tuple[Any, list[str]]:
    rows, deletes = contents.records.to_pylist(), contents.deletes.column("key").to_pylist()
    if kind == "files":
        return [(r["key"], r["name"], r["size"], r["is_deleted"]) for r in rows], deletes
    if kind in ("column_stats", "partition_stats"):
        return [(r["key"], r["file_name"], r["column_name"]) for r in rows], deletes
    if kind == "bloom_filters":
        return [(r["key"], r["type"], r["timestamp"], r["bloom_filter"]) for r in rows], deletes
    if kind == "record_index":
        return [
            (r["key"], r["partition_path"], r["file_id"], r["instant_ms"]) for r in rows
        ], deletes
    return [(r["key"], r["is_deleted"]) for r in rows], deletes


def javas(kind: str, records: list[dict[str, Any]]) -> list[Any]:
    if kind == "files":
        return [
            (r["key"], name, each["size"], each["isDeleted"])
            for r in records
            for name, each in r["filesystemMetadata"].items()
        ]
    if kind in ("column_stats", "partition_stats"):
        stats = [(r["key"], r["ColumnStatsMetadata"]) for r in records]
        return [(key, each["fileName"], each["columnName"]) for key, each in stats]
    if kind == "bloom_filters":
        blooms = [(r["key"], r["BloomFilterMetadata"]) for r in records]
        return [(key, b["type"], b["timestamp"], b["bloomFilter"]) for key, b in blooms]
    if kind == "record_index":
        return [location(r["key"], r["recordIndexMetadata"]) for r in records]
    return [(r["key"], r["SecondaryIndexMetadata"]["isDeleted"]) for r in records]


def location(key: str, record: dict[str, Any]) -> tuple[Any, ...]:
    bits = (record["fileIdHighBits"], record["fileIdLowBits"])
    raw = b"".join(number.to_bytes(8, "big", signed=True) for number in bits)
    uuid = uuid_texts(pa.array([raw], pa.binary(16)))[0].as_py()
    place = f"{uuid}-{record['fileIndex']}"
    return (key, record["partitionName"], place, record["instantTime"])


@pytest.mark.parametrize("name", COMPARED)
def test_the_records_of_a_commit_equal_those_that_java_wrote(name: str) -> None:
    storage, java = storage_of(name), java_commits(name)
    slices: dict[FileGroupId, FileSlice] = {}
    compared = 0
    for time, commit in commits(storage):
        table = table_of(storage, commit.schema_json or "")
        if time in java and files_exist(storage, commit, slices):
            made = contents_of_commit(
                storage,
                ThreadExecutor(1),
                table,
                commit,
                slices,
                requested_time=time,
                zone=UTC_ZONE,
            )
            for kind, contents in made.items():
                if not any(kind in java[each] for each in java if FIRST < each <= time):
                    continue  # Java created the index later
                records, deletes = java[time].get(kind, ([], []))
                got, gone = ours(kind, contents)
                expected = javas(kind, records)
                if kind == "files" and not commit.partition_to_write_stats:
                    expected = got  # Java's record of a delete_partition lists no partition
                if kind == "partition_stats":  # Java's are tight: of all files of a partition
                    assert set(got) <= set(expected)
                    continue
                assert (kind, sorted(got)) == (kind, sorted(expected)), (time, commit)
                assert (kind, sorted(gone)) == (kind, sorted(deletes))
            compared += 1
        advance(slices, commit, time)
    assert compared >= COMPARED[name]


def files_exist(
    storage: MemoryStorage, commit: CommitMetadata, slices: dict[FileGroupId, FileSlice]
) -> bool:
    paths = list(commit.written_paths())
    reads_slices = commit.operation_type not in ("CLUSTER", "COMPACT")
    for path, file_id in commit.file_groups() if reads_slices else ():
        one = slices.get(FileGroupId(path, file_id))
        if one is None:
            continue
        paths += [log.path for log in one.log_files]
        paths += [one.base_file.path] if one.base_file else []
    return all(storage.stat(path) is not None for path in paths)


def advance(slices: dict[FileGroupId, FileSlice], commit: CommitMetadata, time: str) -> None:
    for path, file_id in commit.replaced_file_groups():
        slices.pop(FileGroupId(path, file_id), None)
    for path, stats in commit.partition_to_write_stats.items():
        for file_id in {stat.file_id for stat in stats}:
            group = FileGroupId(path, file_id)
            mine = tuple(stat for stat in stats if stat.file_id == file_id)
            change = FileGroupChange(file_group=group, stats=mine, before=slices.get(group))
            after = change.after(time)
            assert after is not None
            slices[group] = after
