"""Assignment at its bounds: sizes, learnt record size, last row of a plan, bucket weights."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from filegroups.keys.bucketing import (
    InsertBucket,
    SizeSettings,
    SmallFile,
    assign_buckets,
    assign_by_bucket,
    assign_inserts,
    learn_record_bytes,
)
from filegroups.schema.arrow_columns import codes_of, rows_by_number

RT = "20260101000000000"


def small(file_id: str, size_bytes: int) -> SmallFile:
    return SmallFile(file_id=file_id, size_bytes=size_bytes)


def bucket(number: int, path: str, rows: int = 0, share: int | None = None) -> InsertBucket:
    return InsertBucket(
        number=number,
        partition_path=path,
        file_id=None,
        rows=rows,
        weight=share,
    )


def test_sizes_are_hudis_by_default() -> None:
    assert SizeSettings() == SizeSettings(
        file_bytes_max=125_829_120,
        small_file_bytes=104_857_600,
        record_bytes=1_024,
        insert_rows=500_000,
        auto_split=True,
    )
    assert small("a", 1).rows == 0


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (SizeSettings(file_bytes_max=100, record_bytes=30), 3),
        (SizeSettings(file_bytes_max=100, record_bytes=1_000), 1),
        (SizeSettings(file_bytes_max=100, record_bytes=0), 100),
        (SizeSettings(file_bytes_max=0, record_bytes=1), 1),
        (SizeSettings(auto_split=False, insert_rows=7), 7),
        (SizeSettings(auto_split=False, insert_rows=0), 1),
    ],
)
def test_a_new_file_gets_the_rows_that_fit_and_at_least_one(
    settings: SizeSettings, rows: int
) -> None:
    assert settings.rows_per_file == rows


@pytest.mark.parametrize(
    ("files", "record_bytes"),
    [
        ([], 7),
        ([(99_900, 999)], 7),
        ([(0, 1_000)], 7),
        ([(100_000, 1_000)], 100),
        ([(100_001, 1_000)], 101),
        ([(1, 1_000)], 1),
        ([(50_000, 500), (150_000, 500)], 200),
    ],
)
def test_a_record_is_learnt_from_a_thousand_rows_and_rounded_up(
    files: list[tuple[int, int]], record_bytes: int
) -> None:
    assert learn_record_bytes(files, default=7) == record_bytes


def test_a_filled_file_is_named_with_its_base() -> None:
    settings = SizeSettings(file_bytes_max=1_000, small_file_bytes=800, record_bytes=10)
    files = {"p": [small("b", 799), small("full", 800), small("a", 799)], "q": [small("c", 1)]}
    assert assign_inserts({"p": 50}, files, settings) == (
        InsertBucket(number=0, partition_path="p", file_id="a", rows=20),
        InsertBucket(number=1, partition_path="p", file_id="b", rows=20),
        bucket(2, "p", 10),
    )


def test_a_file_without_room_for_one_record_is_passed_over() -> None:
    settings = SizeSettings(file_bytes_max=1_000, small_file_bytes=2_000, record_bytes=10)
    files = {"p": [small("over", 1_100), small("nearly", 991), small("one", 990)]}
    assert assign_inserts({"p": 2}, files, settings) == (
        InsertBucket(number=0, partition_path="p", file_id="one", rows=1),
        bucket(1, "p", 1),
    )
    without_size = SizeSettings(file_bytes_max=10, small_file_bytes=10, record_bytes=0)
    assert [b.rows for b in assign_inserts({"p": 12}, {"p": [small("a", 6)]}, without_size)] == [
        4,
        8,
    ]


def test_rows_beyond_the_plan_go_to_their_partitions_last_bucket() -> None:
    buckets = [bucket(0, "p", 1), bucket(1, "p", 1), bucket(2, "q", 1)]
    paths = pa.array(["p", "q", "p", "p", "q", "p"])
    assert assign_buckets(paths, buckets).tolist() == [0, 2, 1, 1, 2, 1]
    assert assign_buckets(pa.array(["p"]), [bucket(0, "p", 5)]).tolist() == [0]


def test_each_row_of_a_bucket_index_gets_the_bucket_of_its_partition_and_number() -> None:
    paths = pa.array(["q", "p", "p", "q", "p", "r"])
    shares = np.array([0, 1, 0, 3, 3, 0])
    buckets = [
        bucket(0, "p", share=0),
        bucket(1, "p", share=1),
        bucket(2, "q", share=0),
        bucket(3, "q", share=3),
        bucket(4, "z", share=0),
    ]
    assert assign_by_bucket(paths, shares, buckets).tolist() == [2, 1, 0, 3, -1, -1]
    assert assign_by_bucket(paths, shares, buckets[::-1]).tolist() == [2, 1, 0, 3, -1, -1]


def test_a_number_beyond_all_buckets_gets_none_of_the_next_partition() -> None:
    paths, shares = pa.array(["p", "q", "p"]), np.array([2, 0, 1])
    assert assign_by_bucket(paths, shares, [bucket(5, "p", share=1), bucket(6, "q", share=0)]).tolist() == [-1, 6, 5]  # fmt: skip
    # a bucket with a weight above that of any row
    assert assign_by_bucket(paths, np.array([0, 0, 1]), [bucket(5, "p", share=4), bucket(6, "q", share=0)]).tolist() == [-1, 6, -1]  # fmt: skip


def test_a_bucket_without_a_number_is_the_first() -> None:
    assert assign_by_bucket(pa.array(["p", "p"]), np.array([0, 1]), [bucket(5, "p")]).tolist() == [5, -1]  # fmt: skip


def test_without_rows_or_buckets_no_row_is_assigned() -> None:
    none = np.array([], np.int64)
    assert assign_by_bucket(pa.array([], pa.string()), none, [bucket(0, "p")]).tolist() == []
    assert assign_by_bucket(pa.array(["p"]), np.array([0]), []).tolist() == [-1]


@pytest.mark.parametrize("far", [0, 65_535, 65_536, 1 << 40])
def test_rows_are_split_by_near_and_distant_numbers(far: int) -> None:
    parts = rows_by_number(np.array([far + 3, 3, far + 3, 3 + (far > 0)]))
    assert list(parts) == sorted({3, 3 + (far > 0), far + 3})
    assert parts[far + 3].tolist() == ([0, 2] if far else [0, 1, 2, 3])
    assert parts[3][:2].tolist() == ([1] if far else [0, 1])


def test_no_rows_are_split_into_no_groups() -> None:
    assert rows_by_number(np.array([], np.int64)) == {}


def test_texts_are_numbered_by_their_first_row() -> None:
    codes, texts = codes_of(pa.chunked_array([["b", "a"], ["b"]]))
    assert [texts[code] for code in codes.tolist()] == ["b", "a", "b"]
    assert sorted(texts) == ["a", "b"]
