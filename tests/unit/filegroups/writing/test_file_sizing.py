"""Small files are filled first, large ones are split, every row gets one file group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from filegroups.keys.bucketing import (
    InsertBucket,
    SizeSettings,
    SmallFile,
    assign_buckets,
    assign_inserts,
    learn_record_bytes,
)
from filegroups.schema.arrow_columns import rows_by_number

SETTINGS = SizeSettings(file_bytes_max=1000, small_file_bytes=800, record_bytes=10)


def small(file_id: str, size_bytes: int) -> SmallFile:
    return SmallFile(file_id=file_id, size_bytes=size_bytes)


def shares(buckets: tuple[InsertBucket, ...]) -> list[tuple[str, str | None, int]]:
    return [(each.partition_path, each.file_id, each.rows) for each in buckets]


def test_hudis_defaults_put_122880_rows_into_a_new_file():
    assert SizeSettings().rows_per_file == 122_880


def test_new_records_without_small_files_are_split_by_size():
    buckets = assign_inserts({"q": 30, "p": 250}, {}, SETTINGS)
    assert shares(buckets) == [("p", None, 100), ("p", None, 100), ("p", None, 50), ("q", None, 30)]
    assert [each.number for each in buckets] == [0, 1, 2, 3]


def test_small_files_are_filled_up_to_the_limit_smallest_first():
    files = {"p": [small("big", 800), small("b", 700), small("a", 500)]}
    assert shares(assign_inserts({"p": 90}, files, SETTINGS)) == [
        ("p", "a", 50),
        ("p", "b", 30),
        ("p", None, 10),
    ]


def test_a_limit_of_zero_never_fills_files():
    settings = SizeSettings(small_file_bytes=0)
    assert shares(assign_inserts({"p": 5}, {"p": [small("a", 1)]}, settings)) == [("p", None, 5)]


def test_without_auto_split_the_row_limit_counts():
    settings = SizeSettings(auto_split=False, insert_rows=2)
    assert shares(assign_inserts({"": 3}, {}, settings)) == [("", None, 2), ("", None, 1)]


def test_no_records_need_no_bucket():
    assert assign_inserts({"p": 0}, {"p": [small("a", 1)]}, SETTINGS) == ()


def test_record_size_is_learnt_from_enough_rows_only():
    assert learn_record_bytes([(5_000, 100)]) == 1_024
    assert learn_record_bytes([(50_000, 1_000), (60_000, 1_000)]) == 55


def test_rows_fill_their_partitions_buckets_in_order():
    paths = pa.chunked_array([["q", "p"], ["p", "q", "p"]])
    buckets = (
        InsertBucket(number=0, partition_path="p", file_id="a", rows=2),
        InsertBucket(number=1, partition_path="p", file_id=None, rows=1),
        InsertBucket(number=2, partition_path="q", file_id=None, rows=1),
    )
    assert assign_buckets(paths, buckets).tolist() == [2, 0, 0, 2, 1]


def test_rows_are_split_by_number_in_order():
    parts = rows_by_number(np.array([7, 2, 7, 2, 9]))
    assert {number: rows.tolist() for number, rows in parts.items()} == {
        2: [1, 3],
        7: [0, 2],
        9: [4],
    }
    assert rows_by_number(np.array([], np.int64)) == {}


def test_numbers_far_apart_are_split_too():
    parts = rows_by_number(np.array([1 << 40, 0, 1 << 40]))
    assert {number: rows.tolist() for number, rows in parts.items()} == {0: [1], 1 << 40: [0, 2]}
