"""Commit metadata of version 6 (format 11.2): the same value in another encoding."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.interop import golden_tables
from timeline.codecs import avro_schemas as schemas
from timeline.codecs import legacy_commit
from timeline.codecs.instant_avro import encode_clean, encode_rollback
from timeline.codecs.legacy_commit import (
    decode_archived_clean,
    decode_archived_rollback,
    decode_legacy_commit,
    encode_legacy_commit,
)
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import CommitMetadata, RuntimeStats, WriteStat
from timeline.model.plans import CleanMetadata, RollbackMetadata

STAT: dict[str, Any] = {
    "fileId": "f-0",
    "path": "p=1/f-0_0-1-2_20260101000000000.parquet",
    "cdcStats": {"a.cdc": 7},
    "prevCommit": "20250101000000000",
    "numWrites": 3,
    "numDeletes": 1,
    "numUpdateWrites": 2,
    "numInserts": 1,
    "totalWriteBytes": 10,
    "tempPath": None,
    "partitionPath": "p=1",
    "fileSizeInBytes": 10,
    "minEventTime": None,
    "runtimeStats": {"totalScanTime": 1, "totalUpsertTime": 2, "totalCreateTime": None},
    "logVersion": 2,
    "logFiles": [".f-0_20250101000000000.log.1_0-1-2"],
    "recordsStats": {"val": None},
    "writeStatus": "of some older release",
}


def commit(**fields: Any) -> bytes:
    return json.dumps({"partitionToWriteStats": {"p=1": [STAT]}, **fields}).encode()


def test_every_field_is_found_under_its_java_name() -> None:
    decoded = decode_legacy_commit(
        commit(
            compacted=True,
            operationType="UPSERT",
            extraMetadata={"schema": "{}", "nothing": None},
        )
    )
    assert decoded == CommitMetadata(
        partition_to_write_stats={
            "p=1": (
                WriteStat(
                    file_id="f-0",
                    path="p=1/f-0_0-1-2_20260101000000000.parquet",
                    cdc_stats={"a.cdc": 7},
                    prev_commit="20250101000000000",
                    num_writes=3,
                    num_deletes=1,
                    num_update_writes=2,
                    num_inserts=1,
                    total_write_bytes=10,
                    partition_path="p=1",
                    file_size_in_bytes=10,
                    runtime_stats=RuntimeStats(total_scan_time=1, total_upsert_time=2),
                    log_version=2,
                    log_files=(".f-0_20250101000000000.log.1_0-1-2",),
                ),
            )
        },
        operation_type="UPSERT",
        extra_metadata={"schema": "{}"},
        compacted=True,
    )


def test_only_a_replacecommit_names_replaced_file_groups() -> None:
    assert decode_legacy_commit(commit()).partition_to_replace_file_ids is None
    replaced = decode_legacy_commit(commit(partitionToReplaceFileIds={"p=1": ["a", "b"]}))
    assert replaced.partition_to_replace_file_ids == {"p=1": ("a", "b")}
    assert decode_legacy_commit(b'{"partitionToReplaceFileIds":{}}') == CommitMetadata(
        partition_to_replace_file_ids={}
    )


def test_missing_fields_take_their_defaults() -> None:
    assert decode_legacy_commit(b"") == CommitMetadata()
    assert decode_legacy_commit(b'{"extraMetadata":null,"operationType":null}') == CommitMetadata()


def test_java_s_own_files_are_read(tmp_path: Path) -> None:
    table = golden_tables.unpack("v6_overwrite", tmp_path)
    overwrite = (table / ".hoodie/20261121102527411.replacecommit").read_bytes()
    decoded = decode_legacy_commit(overwrite)
    assert decoded.operation_type == "INSERT_OVERWRITE"
    assert decoded.replaced_file_groups() == {
        ("region=us", "24aaae8d-0260-4769-a0d6-41815ed47337-0")
    }
    assert decoded.written_paths() == (
        "region=us/a150f4c5-1272-4394-a4ba-fe85aec508e8-0_0-1459-1658_20261121102527411.parquet",
    )


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"partitionToWriteStats":[]}',
        b'{"partitionToWriteStats":{"p":{}}}',
        b'{"partitionToWriteStats":{"p":[1]}}',
        b'{"partitionToWriteStats":{"p":[{"fileId":1}]}}',
        b'{"partitionToWriteStats":{"p":[{"numWrites":"1"}]}}',
        b'{"partitionToWriteStats":{"p":[{"numWrites":true}]}}',
        b'{"partitionToWriteStats":{"p":[{"numWrites":1.5}]}}',
        b'{"partitionToWriteStats":{"p":[{"logFiles":"x"}]}}',
        b'{"extraMetadata":{"schema":{}}}',
        b'{"compacted":"true"}',
        b'{"operationType":7}',
        b'{"partitionToReplaceFileIds":{"p":"x"}}',
    ],
)
def test_damage_names_its_path_and_is_never_guessed_at(data: bytes) -> None:
    with pytest.raises(CorruptTableError) as caught:
        decode_legacy_commit(data, path="x.commit")
    assert caught.value.fields["path"] == "x.commit"


def test_large_files_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_commit, "BYTES_MAX", 10)
    with pytest.raises(CorruptTableError, match="more than the allowed 10"):
        decode_legacy_commit(b"{" * 11)


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, len(commit()) - 1), byte=st.integers(0, 255))
def test_damaged_bytes_are_a_corrupt_table_and_nothing_else(position: int, byte: int) -> None:
    damaged = bytearray(commit())
    damaged[position] = byte
    try:
        decode_legacy_commit(bytes(damaged), path="c")
    except CorruptTableError as error:
        assert error.fields["path"] == "c"  # noqa: PT017


def test_an_archived_clean_is_read_with_and_without_a_container() -> None:
    metadata = CleanMetadata(start_clean_time="1", earliest_commit_to_retain="20250101000000000")
    assert decode_archived_clean(encode_clean(metadata)) == metadata
    bare, names = io.BytesIO(), ("startCleanTime", "earliestCommitToRetain")
    record = {
        **{one["name"]: one.get("default") for one in schemas.CLEAN_METADATA["fields"]},
        **dict(zip(names, ("1", "20250101000000000"), strict=True)),
        "timeTakenInMillis": 0,
        "totalFilesDeleted": 0,
        "lastCompletedCommitTimestamp": "",
        "partitionMetadata": {},
    }
    fastavro.schemaless_writer(bare, schemas.CLEAN_METADATA, record)
    assert decode_archived_clean(bare.getvalue()).earliest_commit_to_retain == "20250101000000000"
    with pytest.raises(CorruptTableError):
        decode_archived_clean(bare.getvalue()[:-1])


def test_an_archived_rollback_is_read_with_and_without_a_container() -> None:
    metadata = RollbackMetadata(start_rollback_time="2", commits_rollback=("1",))
    assert decode_archived_rollback(encode_rollback(metadata)) == metadata
    bare = io.BytesIO()
    record = {
        "startRollbackTime": "2",
        "timeTakenInMillis": 0,
        "totalFilesDeleted": 0,
        "commitsRollback": ["1"],
        "partitionMetadata": {},
        "version": 1,
        "instantsRollback": [],
    }
    fastavro.schemaless_writer(bare, schemas.ROLLBACK_METADATA, record)
    assert decode_archived_rollback(bare.getvalue()) == metadata
    with pytest.raises(CorruptTableError):
        decode_archived_rollback(bare.getvalue()[:-1])


def test_legacy_metadata_is_encoded_with_javas_field_names() -> None:
    stat = {name: text for name, text in STAT.items() if text is not None}
    decoded = decode_legacy_commit(
        commit(compacted=True, operationType="COMPACT", extraMetadata={"schema": "{}"})
    )
    data = encode_legacy_commit(decoded)
    document = json.loads(data)
    [encoded] = document["partitionToWriteStats"]["p=1"]
    assert encoded["runtimeStats"] == {
        "totalScanTime": 1,
        "totalCreateTime": 0,
        "totalUpsertTime": 2,
    }
    foreign = ("recordsStats", "writeStatus", "runtimeStats")
    assert {name: encoded[name] for name in stat if name not in foreign} == {
        name: text for name, text in stat.items() if name not in foreign
    }
    assert "baseFile" not in encoded
    assert decode_legacy_commit(data) == decoded
