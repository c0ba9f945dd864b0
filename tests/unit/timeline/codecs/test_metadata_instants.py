"""Instants, properties and schema of the metadata table are those of Java Hudi."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.interop import golden_tables
from tests.unit.filegroups.metadata_table.java_records import java_records
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.metadata_instants import (
    encode_metadata_deltacommit,
    encode_metadata_inflight,
    metadata_partition_body,
    metadata_record_schema,
    metadata_table_properties,
)
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import parse_instant_name
from timeline.model.metadata_table import MetadataLogFile, MetadataUpdate
from timeline.properties.properties_file import parse_properties

GOLDEN = golden_tables.metadata_names()
HOME = ".hoodie/metadata/.hoodie"


def version_of(name: str) -> int:
    return int(name[1])


@pytest.mark.parametrize("name", GOLDEN)
def test_deltacommits_are_those_of_java(name: str) -> None:
    compared = 0
    with golden_tables.open_zip(name) as archive:
        for path in archive.namelist():
            instant = parse_instant_name(path.rpartition("/")[2])
            if not path.startswith(f"{HOME}/timeline/") or not path.endswith(".deltacommit"):
                continue
            assert instant is not None
            theirs = decode_commit(archive.read(path))
            if instant.requested_time.startswith("0000"):  # these create base files
                continue
            compared += 1
            update = MetadataUpdate(
                table_version=version_of(name), partitions=(), files=files_of(theirs)
            )
            assert decode_commit(encode_metadata_deltacommit(update)) == comparable(theirs)
    assert compared


def files_of(theirs: CommitMetadata) -> tuple[MetadataLogFile, ...]:
    return tuple(
        MetadataLogFile(
            partition=partition,
            file_id=stat.file_id,
            name=(stat.path or "").rpartition("/")[2],
            size_bytes=stat.file_size_in_bytes,
            records=stat.num_writes,
            base_time=stat.prev_commit,
        )
        for partition, stats in theirs.partition_to_write_stats.items()
        for stat in stats
    )


def comparable(theirs: CommitMetadata) -> CommitMetadata:
    """Without durations, and without deletes, whose number no reader uses."""
    stats = {
        partition: tuple(replace(stat, runtime_stats=None, num_deletes=0) for stat in listed)
        for partition, listed in theirs.partition_to_write_stats.items()
    }
    return replace(theirs, partition_to_write_stats=stats)


@pytest.mark.parametrize("name", GOLDEN)
def test_properties_are_those_of_java(name: str) -> None:
    with golden_tables.open_zip(name) as archive:
        theirs = parse_properties(archive.read(f"{HOME}/hoodie.properties"))
        table = parse_properties(archive.read(".hoodie/hoodie.properties"))
    name_of_table = table["hoodie.table.name"]
    assert metadata_table_properties(name_of_table, table_version=version_of(name)) == theirs


def test_a_partition_names_the_instant_that_created_it() -> None:
    mine = parse_properties(metadata_partition_body("00000000000000000"))
    with golden_tables.open_zip("v9_mor_ri") as archive:
        theirs = [
            parse_properties(archive.read(path))
            for path in archive.namelist()
            if path.startswith(".hoodie/metadata/") and path.endswith(".hoodie_partition_metadata")
        ]
    assert mine in theirs


def test_inflight_file_has_no_files() -> None:
    assert decode_commit(encode_metadata_inflight()) == CommitMetadata(
        operation_type="UPSERT_PREPPED"
    )


@pytest.mark.parametrize(("version", "name"), [(8, "v8_cow_all"), (9, "v9_mor_ri")])
def test_schema_is_java_s_text(version: int, name: str) -> None:
    texts = {record.schema_text for record in java_records(name)}
    assert texts == {metadata_record_schema(version, with_meta_columns=True)}
