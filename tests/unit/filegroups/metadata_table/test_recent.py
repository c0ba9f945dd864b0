"""Kept records are those of the bytes."""

from __future__ import annotations

import pyarrow as pa

from filegroups.metadata_table.encode import encode_base_file, encode_records, in_order
from filegroups.metadata_table.recent import FILE_BYTES_MAX, RECENT, RecentRecords
from filegroups.metadata_table.records import FILES, SECONDARY_INDEX, RecordType


def records(key: str) -> pa.Table:
    return pa.table([[key], [False]], schema=SECONDARY_INDEX)


def test_records_are_found_by_the_bytes_and_the_schema() -> None:
    kept = RecentRecords()
    kept.keep(b"one", records("1"))
    kept.keep(b"two", records("2"))
    assert kept.find(b"one", SECONDARY_INDEX) == records("1")
    assert kept.find(b"other", SECONDARY_INDEX) is None
    assert kept.find(b"one", FILES) is None


def test_some_of_the_records_may_count() -> None:
    kept = RecentRecords()
    both = pa.concat_tables([records("1"), records("2")])
    kept.keep(b"two", both, pa.array([1]))
    assert kept.find(b"two", SECONDARY_INDEX) == records("2")


def test_a_large_file_is_not_kept() -> None:
    kept = RecentRecords()
    kept.keep(bytes(FILE_BYTES_MAX + 1), records("1"))
    assert kept.find(bytes(FILE_BYTES_MAX + 1), SECONDARY_INDEX) is None


def test_the_encoder_keeps_what_it_is_given() -> None:
    rows = in_order(
        pa.table([["b", "a"], [False, False]], schema=SECONDARY_INDEX), RecordType.SECONDARY_INDEX
    )
    entries = encode_records(rows, RecordType.SECONDARY_INDEX, table_version=9)
    data = encode_base_file(entries, table_version=9, created_ms=4711, kept=(rows, None))
    found = RECENT.find(data, SECONDARY_INDEX)
    assert found is not None
    assert found.column("key").to_pylist() == ["a", "b"]
    assert RECENT.find(data[:-1] + b"\x01", SECONDARY_INDEX) is None
