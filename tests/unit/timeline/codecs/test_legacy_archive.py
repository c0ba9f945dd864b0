"""The archive of version 6 (format 11.2): log files with the states of instants."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.interop import golden_tables
from tests.unit.timeline.engine import Heard
from tests.unit.timeline.memory import MemoryStorage
from timeline.archived import ArchivedTimeline
from timeline.codecs import archived_instants as legacy_archive
from timeline.codecs import avro_schemas as schemas
from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.codecs.archived_instants import archive_file_number, parse_archive_file
from timeline.codecs.instant_avro import decode_clean, decode_commit
from timeline.codecs.log_blocks import BlockType, HeaderKey, encode_block
from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.storage.local import LocalStorage

T1, T2, T3 = "20260101000000001", "20260101000000002", "20260101000000003"
FOLDER = ".hoodie/archived"


def entry_schema(**kinds: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "HoodieArchivedMetaEntry",
        "namespace": schemas.NAMESPACE,
        "fields": [
            {"name": name, "type": ["null", kind], "default": None}
            for name, kind in {
                "hoodieCommitMetadata": schemas.COMMIT_METADATA,
                "hoodieCleanMetadata": schemas.CLEAN_METADATA,
                "commitTime": "string",
                "actionType": "string",
                "actionState": "string",
                "stateTransitionTime": "string",
                **kinds,
            }.items()
        ],
    }


def block(*entries: dict[str, Any], version: int = 3, schema: Any = None) -> bytes:
    chosen = schema or entry_schema()
    parsed = fastavro.parse_schema(chosen)
    content = struct.pack(">ii", version, len(entries))
    for one in entries:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, one)
        content += struct.pack(">i", len(body.getvalue())) + body.getvalue()
    return encode_block(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(chosen)}, content)


def state(time: str, action: str, how_far: str | None, at: str | None = T3, **more: Any) -> Any:
    return {
        "commitTime": time,
        "actionType": action,
        "actionState": how_far,
        "stateTransitionTime": at,
        **more,
    }


def blocks_read(data: bytes) -> list[tuple[str, str | None, str]]:
    return [
        (one.requested_time, one.completion_time, one.action) for one in parse_archive_file(data)
    ]


def test_only_the_completed_state_counts() -> None:
    data = block(state(T1, "commit", "REQUESTED"), state(T1, "commit", "INFLIGHT")) + block(
        state(T1, "commit", "COMPLETED"), state(T2, "compaction", "INFLIGHT")
    )
    assert blocks_read(data) == [(T1, T3, "commit")]


def test_services_have_the_action_that_they_complete_as() -> None:
    data = block(
        state(T1, "compaction", "COMPLETED"),
        state(T2, "logcompaction", "COMPLETED"),
        state(T3, "clustering", "COMPLETED"),
    )
    assert [action for _, _, action in blocks_read(data)] == [
        "commit",
        "deltacommit",
        "replacecommit",
    ]


def test_files_of_the_oldest_releases_have_neither_state_nor_completion_time() -> None:
    assert blocks_read(block(state(T1, "commit", None, None))) == [(T1, T1, "commit")]


def test_archived_content_equals_that_of_later_versions() -> None:
    clean = {
        "startCleanTime": T2,
        "timeTakenInMillis": 5,
        "totalFilesDeleted": 1,
        "earliestCommitToRetain": T1,
        "partitionMetadata": {},
    }
    data = block(
        state(T1, "deltacommit", "COMPLETED", hoodieCommitMetadata={"operationType": "UPSERT"}),
        state(T2, "clean", "COMPLETED", hoodieCleanMetadata=clean),
        state(T3, "commit", "COMPLETED"),
    )
    first, second, third = parse_archive_file(data)
    assert decode_commit(first.metadata or b"").operation_type == "UPSERT"
    assert decode_clean(second.metadata or b"").total_files_deleted == 1
    assert third.metadata is None


def test_times_are_read_without_the_content() -> None:
    data = block(state(T1, "commit", "COMPLETED", hoodieCommitMetadata={}))
    assert parse_archive_file(data, times_only=True) == (
        ArchivedInstant(requested_time=T1, completion_time=T3, action="commit"),
    )


def test_a_torn_block_at_the_end_is_skipped() -> None:
    whole = block(state(T1, "commit", "COMPLETED"))
    assert blocks_read(whole + block(state(T2, "commit", "COMPLETED"))[:-9]) == [(T1, T3, "commit")]


def test_damage_before_whole_blocks_is_skipped_as_java_does_and_reported() -> None:
    whole = [block(state(time, "commit", "COMPLETED")) for time in (T1, T2, T3)]
    damaged = bytearray(whole[1])
    damaged[6:14] = bytes(8)  # its size: the end of the block is unknown
    storage, heard = MemoryStorage(), Heard()
    storage.create(
        f"{FOLDER}/.commits_.archive.1_1-0-1", whole[0] + bytes(damaged) + whole[2] + b"#HUDI#torn"
    )
    history = ArchivedTimeline(storage, heard, legacy_folder=FOLDER)
    assert [one.requested_time for one in history.instants()] == [T1, T3]
    assert heard.named("history.corrupt") == [
        {
            "path": f"{FOLDER}/.commits_.archive.1_1-0-1",
            "offset": len(whole[0]),
            "bytes": len(damaged),
        }
    ]


@pytest.mark.parametrize(
    "data",
    [
        block(state("now", "commit", "COMPLETED")),
        block(state(T1, "commit", "COMPLETED", "soon")),
        block(state(T1, "vanish", "COMPLETED")),
        block(state(T1, "commit", "COMPLETED"), version=4),
        block({}, schema={"type": "record", "name": "Other", "fields": []}),
        encode_block(
            BlockType.AVRO_DATA, {HeaderKey.SCHEMA: "{"}, struct.pack(">iiib", 3, 1, 1, 0)
        ),
        encode_block(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: "{}"}, struct.pack(">iii", 3, 1, 9)),
        encode_block(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: "{}"}, struct.pack(">ii", 3, 1)),
        encode_block(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: "{}"}, b""),
        encode_block(BlockType.AVRO_DATA, {}, struct.pack(">ii", 3, 0)),
    ],
)
def test_damage_names_its_path(data: bytes) -> None:
    with pytest.raises(CorruptTableError) as caught:
        parse_archive_file(data, path="a")
    assert caught.value.fields["path"] == "a"


def test_large_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_archive, "HISTORY_BYTES_MAX", 3)
    with pytest.raises(CorruptTableError, match="more than the allowed 3"):
        parse_archive_file(b"####")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (".commits_.archive.12_1-0-1", 12),
        (".commits_.archive.3", 3),
        (".commits_.archive.3_1-0-1.crc", None),
        ("commits_.archive.3_1-0-1", None),
        ("mergeArchivePlan", None),
    ],
)
def test_archive_files_are_known_by_their_name(name: str, number: int | None) -> None:
    assert archive_file_number(name) == number


def test_java_s_archive_has_its_instants_in_order_with_their_metadata(tmp_path: Path) -> None:
    table = golden_tables.unpack("v6_cow_clean_archive", tmp_path)
    history = ArchivedTimeline(LocalStorage(str(table)), Heard(), legacy_folder=".hoodie/archived")
    found = history.instants(times_only=False)
    assert (len(found), found[0].requested_time, found[-1].requested_time) == (
        26,
        "20261121102422326",
        "20261121102505110",
    )
    stat = decode_commit(found[0].metadata or b"").write_stats()[0]
    assert (stat.path, stat.num_inserts) == (
        "84b10cf5-1e41-4950-843c-73ac5519171e-0_0-727-908_20261121102422326.parquet",
        1,
    )
    assert (
        ArchivedTimeline(LocalStorage(str(table)), Heard(), legacy_folder=".hoodie/none").instants()
        == []
    )


VERSION_AND_KIND = range(14, 22)  # of a block, after its magic and its length

WHOLE = block(state(T1, "commit", "COMPLETED", hoodieCommitMetadata={"operationType": "UPSERT"}))


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
@example(position=14, byte=1)
@example(position=18, byte=1)
def test_damaged_bytes_are_a_corrupt_table_or_one_of_a_newer_release_and_nothing_else(
    position: int, byte: int
) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] = byte
    try:
        parse_archive_file(bytes(damaged), path="a")
    except (CorruptTableError, UnsupportedTableError) as error:
        assert error.fields["path"] == "a"  # noqa: PT017
        # a later release may know this version or kind of block
        known = isinstance(error, CorruptTableError) or position in VERSION_AND_KIND
        assert known, error  # noqa: PT017
