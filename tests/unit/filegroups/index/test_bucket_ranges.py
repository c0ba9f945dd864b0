"""Bucket ranges of one writer: parsing, display, and overlaps of two ranges."""

from __future__ import annotations

import pytest

from timeline.rules.bucket_ranges import EVERY_BUCKET, BucketRanges, overlapping_buckets


@pytest.mark.parametrize(
    ("text", "ranges", "shown"),
    [
        ("0-63", ((0, 63),), "0-63"),
        (" 5 ", ((5, 5),), "5"),
        ("8-9,0-3, 5", ((0, 3), (5, 5), (8, 9)), "0-3,5,8-9"),
        ("0-3,4-7,2-5", ((0, 7),), "0-7"),
        ("0-3,4-7", ((0, 7),), "0-7"),
        ("0-3,5-7", ((0, 3), (5, 7)), "0-3,5-7"),
        ("0-9,2-3", ((0, 9),), "0-9"),
    ],
)
def test_ranges_are_read(text: str, ranges: tuple[tuple[int, int], ...], shown: str) -> None:
    own = BucketRanges.parse(text)
    assert (own.ranges, str(own)) == (ranges, shown)
    assert [n for n in range(70) if n in own] == [n for a, b in ranges for n in range(a, b + 1)]


@pytest.mark.parametrize(
    ("text", "last"), [("0-3", 3), ("1-1", 1), ("8-9,0-3", 9), ("0-99999999", 99_999_999)]
)
def test_the_last_bucket_is_the_greatest(text: str, last: int) -> None:
    assert BucketRanges.parse(text).last == last


@pytest.mark.parametrize("text", ["a", "", "3-1", "0-", "-3", "1,,2", "0-3;5", "٣", "123456789"])
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range of buckets"):
        BucketRanges.parse(text)


@pytest.mark.parametrize(
    ("mine", "theirs", "overlap"),
    [
        ("0-3", "4-7", ""),
        ("0-4", "4-7", "4"),
        ("0-3,6", "2-6", "2-3,6"),
        ("0-3", EVERY_BUCKET, "0-3"),
        (EVERY_BUCKET, "0-3", "0-3"),
        (EVERY_BUCKET, EVERY_BUCKET, ""),
        ("", "0-3", ""),
        ("0-3", "", ""),
        ("0-3", "0-3", "0-3"),
        (EVERY_BUCKET, "", ""),
    ],
)
def test_two_writers_overlap_in_the_buckets_that_both_may_write(
    mine: str, theirs: str, overlap: str
) -> None:
    assert overlapping_buckets(mine, theirs) == overlap
