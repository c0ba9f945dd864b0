"""Archive files that we write have the shape of Java Hudi's (fmt 8)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from timeline.codecs.archive_manifest import (
    ArchivedInstant,
    ArchiveFile,
    archive_file,
    encode_manifest,
    parse_manifest,
)
from timeline.codecs.archived_instants import encode_archived_instants, parse_archived_instants

DATA = Path(__file__).parents[1] / "data"
ROWS = (DATA / "20261121100954622_20261121100956962_0.parquet").read_bytes()
MANIFEST = (DATA / "manifest_16").read_bytes()

ARCHIVED = (
    ArchivedInstant(
        requested_time="20260102030405001",
        completion_time="20260102030405003",
        action="clean",
        metadata=b"done",
        plan=b"plan",
    ),
    ArchivedInstant(
        requested_time="20260102030405008", completion_time="20260102030405011", action="commit"
    ),
)


def opened(data: bytes) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(data))


def test_archived_rows_are_decoded_as_they_were_encoded():
    assert parse_archived_instants(encode_archived_instants(ARCHIVED)) == ARCHIVED


def test_javas_rows_written_again_have_javas_columns_footer_and_compression():
    theirs = opened(ROWS)
    ours = opened(encode_archived_instants(parse_archived_instants(ROWS)))
    columns = range(theirs.metadata.num_columns)
    for number in columns:
        one, other = theirs.schema.column(number), ours.schema.column(number)
        assert (one.name, one.physical_type, one.max_definition_level) == (
            other.name,
            other.physical_type,
            other.max_definition_level,
        )
        assert str(one.logical_type) == str(other.logical_type)
    assert ours.metadata.metadata == theirs.metadata.metadata
    assert {ours.metadata.row_group(0).column(number).compression for number in columns} == {"GZIP"}
    assert ours.metadata.format_version == theirs.metadata.format_version
    assert ours.read().equals(theirs.read())


def test_javas_manifest_is_written_again_byte_for_byte():
    assert encode_manifest(parse_manifest(MANIFEST)) == MANIFEST


def test_a_file_is_named_by_first_and_last_time_and_level():
    assert archive_file("20260102030405001", "20260102030405008", level=2, size_bytes=7) == (
        ArchiveFile(
            file_name="20260102030405001_20260102030405008_2.parquet",
            size_bytes=7,
            first_time="20260102030405001",
            last_time="20260102030405008",
            level=2,
        )
    )
