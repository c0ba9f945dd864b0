"""Files of the archived timeline that Java wrote, and damage to them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeline.codecs import archived_instants
from timeline.codecs.archive_manifest import (
    ArchivedInstant,
    ArchiveFile,
    parse_manifest,
    parse_version,
)
from timeline.codecs.archived_instants import parse_archived_completions, parse_archived_instants
from timeline.codecs.instant_avro import decode_clean, decode_clean_plan
from timeline.errors import CorruptTableError, MalformedNameError

DATA = Path(__file__).parents[1] / "data"
ROWS = (DATA / "20261121100954622_20261121100956962_0.parquet").read_bytes()


def test_javas_manifest_lists_its_files_in_order() -> None:
    files = parse_manifest((DATA / "manifest_16").read_bytes())
    assert [one.level for one in files] == [1, 1, 1, 0]
    assert files[3] == ArchiveFile(
        file_name="20261121100954622_20261121100956962_0.parquet",
        size_bytes=8049,
        first_time="20261121100954622",
        last_time="20261121100956962",
        level=0,
    )


def test_a_reversed_range_is_corrected() -> None:
    name = "20261121100956962_20261121100954622_0.parquet"
    (one,) = parse_manifest(f'{{"files":[{{"fileName":"{name}","fileLen":1}}]}}'.encode())
    assert (one.first_time, one.last_time) == ("20261121100954622", "20261121100956962")


@pytest.mark.parametrize("name", ["../x.parquet", "1_2_0.parquet", "a.parquet", "x/y"])
def test_names_outside_the_grammar_are_refused(name: str) -> None:
    with pytest.raises(MalformedNameError):
        parse_manifest(f'{{"files":[{{"fileName":"{name}","fileLen":1}}]}}'.encode(), path="m")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"files":[1]}', b"[" * 100_000, b"\xff"])
def test_a_damaged_manifest_names_its_path(data: bytes) -> None:
    with pytest.raises(CorruptTableError) as refused:
        parse_manifest(data, path="m")
    assert refused.value.fields["path"] == "m"


def test_the_version_is_a_plain_number() -> None:
    assert parse_version(b"16") == 16
    with pytest.raises(CorruptTableError):
        parse_version(b"x", path="_version_")


def test_times_are_read_without_the_content() -> None:
    assert parse_archived_instants(ROWS, times_only=True) == (
        ArchivedInstant(
            requested_time="20261121100954622",
            completion_time="20261121100954896",
            action="clean",
        ),
        ArchivedInstant(
            requested_time="20261121100955621",
            completion_time="20261121100956316",
            action="commit",
        ),
        ArchivedInstant(
            requested_time="20261121100956452",
            completion_time="20261121100956752",
            action="clean",
        ),
        ArchivedInstant(
            requested_time="20261121100956962",
            completion_time="20261121100957667",
            action="commit",
        ),
    )


def test_completion_times_are_found_by_requested_time() -> None:
    assert parse_archived_completions(ROWS) == {
        "20261121100954622": "20261121100954896",
        "20261121100955621": "20261121100956316",
        "20261121100956452": "20261121100956752",
        "20261121100956962": "20261121100957667",
    }


def written(*rows: tuple[str | None, str | None, str | None]) -> bytes:
    columns = zip(("instantTime", "completionTime", "action"), zip(*rows, strict=True), strict=True)
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    "row",
    [(None, "2", "c"), ("1x", "2", "c"), ("", None, "c"), ("1", "-", "c"), ("1" * 21, "2", "c")],
)
def test_a_row_without_a_time_is_damage(row: tuple[str | None, str | None, str | None]) -> None:
    with pytest.raises(CorruptTableError, match="without time"):
        parse_archived_completions(written(("1", "2", "commit"), row))


def test_content_is_that_of_the_instants_own_files() -> None:
    clean, commit, _, _ = parse_archived_instants(ROWS)
    assert decode_clean(clean.metadata or b"").start_clean_time == "20261121100954622"
    assert decode_clean_plan(clean.plan or b"").policy == "KEEP_LATEST_COMMITS"
    assert commit.plan is None


@pytest.mark.parametrize("parse", [parse_archived_instants, parse_archived_completions])
def test_a_file_above_the_limit_is_refused(
    parse: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived_instants, "HISTORY_BYTES_MAX", len(ROWS) - 1)
    with pytest.raises(CorruptTableError, match="bytes are more than"):
        parse(ROWS)


def test_rows_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived_instants, "HISTORY_BYTES_MAX", len(ROWS))
    with pytest.raises(CorruptTableError, match="its rows exceed"):
        parse_archived_instants(ROWS)


@settings(max_examples=30, deadline=None)
@given(position=st.integers(0, len(ROWS) - 1), flip=st.integers(0, 255))
def test_damaged_rows_are_a_corrupt_table_and_nothing_else(position: int, flip: int) -> None:
    damaged = bytearray(ROWS)
    damaged[position] ^= flip
    data = bytes(damaged) if flip else ROWS[:position]
    for parse in (parse_archived_instants, parse_archived_completions):
        try:
            parse(data, path="h")
        except CorruptTableError as error:
            assert error.fields["path"] == "h"  # noqa: PT017
