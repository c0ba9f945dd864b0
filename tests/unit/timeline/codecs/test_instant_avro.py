"""Instant files: we read Java's, Java's schema reads ours, and damage is named."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeline.codecs import avro_schemas
from timeline.codecs import instant_avro as avro_container
from timeline.codecs import instant_avro as codec
from timeline.codecs.avro_schemas import COMMIT_METADATA
from timeline.codecs.instant_avro import RecordReader, RecordWriter
from timeline.errors import CorruptTableError, InvalidInputError
from timeline.model.commit_metadata import (
    CommitMetadata,
    PlannedUpdate,
    RuntimeStats,
    WriteStat,
    workload_profile,
)
from timeline.model.plans import (
    ActionInstant,
    CleanerPlan,
    CleanFileInfo,
    CompactionOperation,
    CompactionPlan,
    InstantInfo,
    RequestedReplaceMetadata,
    RollbackMetadata,
    RollbackPartitionMetadata,
    RollbackPlan,
    RollbackRequest,
    SavepointMetadata,
    SavepointPartitionMetadata,
)

DATA = Path(__file__).parents[1] / "data"

JAVA_FILES: list[tuple[str, Callable[..., Any], Callable[[Any], bytes]]] = [
    ("v8_update.commit", codec.decode_commit, codec.encode_commit),
    ("v8_update.inflight", codec.decode_commit, codec.encode_commit),
    ("v9_overwrite.replacecommit", codec.decode_commit, codec.encode_commit),
    ("v9_clean.requested", codec.decode_clean_plan, codec.encode_clean_plan),
    ("v9_completed.clean", codec.decode_clean, codec.encode_clean),
    ("v8_rollback.requested", codec.decode_rollback_plan, codec.encode_rollback_plan),
    ("v8_completed.rollback", codec.decode_rollback, codec.encode_rollback),
    (
        "v8_clustering.requested",
        codec.decode_requested_replace,
        codec.encode_requested_replace,
    ),
]
DECODERS = sorted({decode for _, decode, _ in JAVA_FILES}, key=lambda one: one.__name__)


def avro(data: bytes) -> tuple[dict[str, Any], Any]:
    reader = fastavro.reader(io.BytesIO(data))
    return json.loads(reader.metadata["avro.schema"]), list(reader)


@pytest.mark.parametrize(
    ("name", "decode", "encode"), JAVA_FILES, ids=[one[0] for one in JAVA_FILES]
)
class TestFilesOfJava:
    def test_decoding_the_encoding_gives_the_same_value(
        self, name: str, decode: Callable[..., Any], encode: Callable[[Any], bytes]
    ) -> None:
        value = decode((DATA / name).read_bytes(), path=name)
        assert decode(encode(value), path=name) == value

    def test_hoodoos_bytes_decode_to_the_same_values_as_javas_under_javas_schema(
        self, name: str, decode: Callable[..., Any], encode: Callable[[Any], bytes]
    ) -> None:
        theirs = (DATA / name).read_bytes()
        schema, records = avro(theirs)
        ours = encode(decode(theirs, path=name))
        resolved = fastavro.reader(io.BytesIO(ours), reader_schema=schema)
        assert list(resolved) == records

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_damaged_bytes_are_a_corrupt_table_and_nothing_else(
        self,
        name: str,
        decode: Callable[..., Any],
        encode: Callable[[Any], bytes],
        data: st.DataObject,
    ) -> None:
        whole = bytearray((DATA / name).read_bytes())
        position = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            damaged = bytes(whole[:position])
        else:
            whole[position] ^= data.draw(st.integers(1, 255))
            damaged = bytes(whole)
        try:
            decode(damaged, path="p/x")
        except CorruptTableError as error:
            assert error.fields["path"] == "p/x"  # noqa: PT017


def test_javas_update_commit_is_read_field_by_field() -> None:
    metadata = codec.decode_commit((DATA / "v8_update.commit").read_bytes())
    assert metadata.operation_type == "UPSERT"
    assert metadata.partition_to_write_stats["region=eu"] == (
        WriteStat(
            file_id="b30e7970-a3d0-46a7-a186-5b02c2dcffbb-1",
            path="region=eu/b30e7970-a3d0-46a7-a186-5b02c2dcffbb-1_0-94-97_20261121100701087.parquet",
            prev_commit="20261121100657634",
            num_writes=3,
            num_update_writes=1,
            total_write_bytes=5530,
            partition_path="region=eu",
            file_size_in_bytes=5530,
            prev_base_file="b30e7970-a3d0-46a7-a186-5b02c2dcffbb-1_0-71-0_20261121100657634.parquet",
            runtime_stats=RuntimeStats(total_upsert_time=242),
        ),
    )
    assert metadata.partition_to_replace_file_ids is None
    assert (metadata.schema_json or "").startswith(
        '{"type":"record","name":"v8_cow_part_record","namespace":"hoodie.v8_cow_part"'
    )
    assert metadata.total_rows_inserted == 1
    assert metadata.total_rows_updated == 2
    assert metadata.total_rows_deleted == 0
    assert metadata.total_bytes == 16405
    assert metadata.total_files == 3


def test_file_groups_include_replaced_ones() -> None:
    metadata = codec.decode_commit((DATA / "v9_overwrite.replacecommit").read_bytes())
    assert metadata.file_groups() == {
        ("region=us", "5582ef6b-628f-43fa-827c-b0fb6b54e217-0"),
        ("region=us", "faae0921-3564-417e-b723-b84aa3cd75ec-0"),
    }


def test_the_workload_profile_equals_that_of_java_for_the_same_write() -> None:
    eu, us = "b30e7970-a3d0-46a7-a186-5b02c2dcffbb-1", "b30e7970-a3d0-46a7-a186-5b02c2dcffbb-0"
    profile = workload_profile(
        operation_type="UPSERT",
        planned_insert_rows={"region=jp": 1},
        planned_updates=tuple(
            PlannedUpdate(
                partition_path=path,
                file_id=file_id,
                base_requested_time="20261121100657634",
                update_rows=1,
            )
            for path, file_id in (("region=eu", eu), ("region=us", us))
        ),
    )
    assert profile == codec.decode_commit((DATA / "v8_update.inflight").read_bytes())
    assert profile.file_groups() == {("region=eu", eu), ("region=us", us)}
    assert profile.partition_paths() == {"region=eu", "region=jp", "region=us"}


def test_javas_clean_plan_is_read_field_by_field() -> None:
    plan = codec.decode_clean_plan((DATA / "v9_clean.requested").read_bytes())
    assert plan == CleanerPlan(
        earliest_instant_to_retain=ActionInstant(
            requested_time="20261121102745011", action="commit", state="COMPLETED"
        ),
        last_completed_commit_timestamp="20261121102746907",
        policy="KEEP_LATEST_COMMITS",
        version=2,
        file_paths_to_be_deleted_per_partition={
            "": (
                CleanFileInfo(
                    file_path="file:/tmp/w/gt/v9_cow_300_commits/"
                    "1a1646ac-694e-4c1f-9bdf-f40a8f0af7df-0_0-5595-7372_20261121102741752.parquet"
                ),
            )
        },
    )


def test_javas_rollback_is_read_field_by_field() -> None:
    path = (
        "/tmp/w/gt/v8_rolled_back/region=us/"
        "abb7bccc-4aa1-4453-987a-dd764ad80a52-0_0-1513-1770_20261121101020140.parquet"
    )
    target = InstantInfo(requested_time="20261121101020140", action="deltacommit")
    assert codec.decode_rollback_plan(
        (DATA / "v8_rollback.requested").read_bytes()
    ) == RollbackPlan(
        instant_to_rollback=target,
        rollback_requests=(
            RollbackRequest(partition_path="region=us", files_to_be_deleted=(path,)),
        ),
    )
    assert codec.decode_rollback((DATA / "v8_completed.rollback").read_bytes()) == RollbackMetadata(
        start_rollback_time="20261121101021209",
        time_taken_in_millis=172,
        total_files_deleted=1,
        commits_rollback=("20261121101020140",),
        partition_metadata={
            "region=us": RollbackPartitionMetadata(
                partition_path="region=us", success_delete_files=(path,)
            )
        },
        instants_rollback=(target,),
    )


def test_clustering_plan_names_the_file_groups_it_owns() -> None:
    requested = codec.decode_requested_replace((DATA / "v8_clustering.requested").read_bytes())
    assert requested.clustering_plan is not None
    assert requested.clustering_plan.preserve_hoodie_metadata
    assert requested.clustering_plan.file_groups() == {
        ("region=us", "02568ce8-ca1e-431d-966c-478c737cb048-0"),
        ("region=us", "48ae2126-8f02-4a6d-8bb1-28c16a744a16-0"),
        ("region=us", "c23bc55e-2729-4fbb-81f8-853f2085bbd1-0"),
    }


def test_requested_replace_of_an_overwrite_holds_only_nulls() -> None:
    _, records = avro(codec.encode_requested_replace(RequestedReplaceMetadata()))
    assert records == [
        {"operationType": None, "clusteringPlan": None, "extraMetadata": None, "version": None}
    ]


def test_compaction_plan_and_savepoint_survive_a_round_trip() -> None:
    plan = CompactionPlan(
        operations=(
            CompactionOperation(
                base_instant_time="20261121100657634",
                delta_file_paths=(".f-0_20261121100701087.log.1_0-1-1",),
                file_id="f-0",
                partition_path="region=us",
                metrics={"TOTAL_LOG_FILES": 1.0},
            ),
        )
    )
    assert codec.decode_compaction_plan(codec.encode_compaction_plan(plan)) == plan
    assert plan.file_groups() == {("region=us", "f-0")}
    savepoint = SavepointMetadata(
        savepointed_by="me",
        savepointed_at=1795255870193,
        partition_metadata={"": SavepointPartitionMetadata(partition_path="")},
    )
    assert codec.decode_savepoint(codec.encode_savepoint(savepoint)) == savepoint


@pytest.mark.spec("SLOT-5")
def test_equal_values_give_equal_bytes_in_any_order_of_their_maps() -> None:
    one, other = (WriteStat(file_id="a-0"),), (WriteStat(file_id="b-0"),)
    forth = CommitMetadata(
        partition_to_write_stats={"p": one, "q": other}, extra_metadata={"a": "1", "b": "2"}
    )
    back = CommitMetadata(
        partition_to_write_stats={"q": other, "p": one}, extra_metadata={"b": "2", "a": "1"}
    )
    assert codec.encode_commit(forth) == codec.encode_commit(back)


def test_empty_replace_stays_a_replace() -> None:
    metadata = CommitMetadata(partition_to_replace_file_ids={}, operation_type="DELETE_PARTITION")
    decoded = codec.decode_commit(codec.encode_commit(metadata))
    assert decoded.partition_to_replace_file_ids == {}


def test_zero_bytes_are_the_default_only_where_they_may_be() -> None:
    assert codec.decode_commit(b"") == CommitMetadata()
    assert codec.decode_requested_replace(b"") == RequestedReplaceMetadata()
    with pytest.raises(CorruptTableError) as refused:
        codec.decode_clean(b"", path="t/1.clean")
    assert (refused.value.kind, refused.value.fields["path"]) == ("empty_file", "t/1.clean")


def test_a_file_above_the_limit_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = (DATA / "v8_update.commit").read_bytes()
    monkeypatch.setattr(avro_container, "BYTES_MAX", len(data))
    assert codec.decode_commit(data).operation_type == "UPSERT"
    with pytest.raises(CorruptTableError, match="4528 bytes are more than the allowed 4527"):
        codec.decode_commit(data + b"x")


def test_a_field_the_file_lacks_takes_its_default() -> None:
    older = {
        "type": "record",
        "name": "HoodieCommitMetadata",
        "namespace": "org.apache.hudi.avro.model",
        "fields": [
            {"name": "operationType", "type": "string"},
            {"name": "addedByALaterRelease", "type": ["null", "long"]},
        ],
    }
    data = RecordWriter(older).write({"operationType": "INSERT", "addedByALaterRelease": 7})
    assert codec.decode_commit(data) == CommitMetadata(operation_type="INSERT")


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "E", "fields": []},
        {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
    ],
)
def test_schemas_that_grow_without_bytes_or_recurse_are_refused(items: Any) -> None:
    hostile = {
        "type": "record",
        "name": "HoodieCommitMetadata",
        "fields": [{"name": "x", "type": {"type": "array", "items": items}}],
    }
    data = RecordWriter(hostile).write({"x": []})
    with pytest.raises(CorruptTableError, match="schema"):
        RecordReader(COMMIT_METADATA).read(data, path="p")


def test_text_without_unicode_meaning_is_refused_on_writing() -> None:
    with pytest.raises(InvalidInputError):
        codec.encode_commit(CommitMetadata(extra_metadata={"note": "\ud800"}))


@given(noise=st.binary(max_size=60))
@pytest.mark.parametrize("decode", DECODERS)
def test_noise_is_a_corrupt_table(decode: Callable[..., Any], noise: bytes) -> None:
    try:
        decode(noise)
    except CorruptTableError:
        return
    assert noise == b""


def test_schemas_derived_from_the_value_classes_are_hudis_text() -> None:
    texts = [
        json.dumps(getattr(avro_schemas, name), separators=(",", ":"))
        for name in sorted(vars(avro_schemas))
        if name.endswith(("METADATA", "PLAN"))
    ]
    assert len(texts) == 11
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    assert digest == "2241644ab70f960ca6fccf4bd4c06a0a83d7d18c8939c7dd034fab813302adb9"
