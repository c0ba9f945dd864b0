"""Records of a new partition are sorted with few of them in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tableservices.metadata_table.sorting import SortedRecords
from timeline.errors import StorageUnavailableError

SHAPE = pa.schema([("key", pa.string()), ("v", pa.int64())])
Row = tuple[int, str, int]


def sorted_rows(
    batches: list[list[Row]], *, once: bool, rows_max: int
) -> tuple[list[Row], list[int]]:
    """The rows, and how many rows each item had."""
    with SortedRecords(SHAPE, once=once, rows_max=rows_max) as records:
        for batch in batches:
            numbers, keys, values = (list(part) for part in zip(*batch, strict=True))
            rows = pa.table([keys, values], schema=SHAPE)
            records.add(rows, np.array(numbers, np.int64))
        found = list(records.runs())
    rows_of = [
        (number, row["key"], row["v"]) for number, table in found for row in table.to_pylist()
    ]
    return rows_of, [table.num_rows for _, table in found]


def expected(batches: list[list[Row]], *, once: bool) -> list[Row]:
    rows = [row for batch in batches for row in batch]
    if once:
        rows = list({row[:2]: row for row in rows}.values())
    return sorted(rows, key=lambda row: (row[0], row[1].encode()))


@pytest.mark.parametrize("once", [True, False])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_are_sorted_by_file_group_and_bytes_of_the_key(data: Any, once: bool) -> None:
    texts = st.text(st.sampled_from("ab\uffff😀é0"), max_size=3)
    row = st.tuples(st.sampled_from([0, 2, 11, 100_000]), texts, st.integers(0, 99))
    batches = data.draw(st.lists(st.lists(row, min_size=1, max_size=30), max_size=8))
    rows_max = data.draw(st.sampled_from([2, 5, 1_000]))
    found, _ = sorted_rows(batches, once=once, rows_max=rows_max)
    assert found == expected(batches, once=once)


def test_items_are_small_unless_one_key_has_more_rows() -> None:
    chance = np.random.default_rng(1)
    keys = [f"{number:05d}" for number in chance.permutation(5_000)] + ["same"] * 300
    batches = [[(0, key, 1) for key in keys[start : start + 50]] for start in range(0, 5_300, 50)]
    found, sizes = sorted_rows(batches, once=False, rows_max=200)
    assert [key for _, key, _ in found] == sorted(keys)
    assert max(sizes) < 500
    assert Counter(key for _, key, _ in found)["same"] == 300
    assert len([size for size in sizes if size > 200]) <= 1


def test_temporary_files_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = pa.table([["a"] * 9, list(range(9))], schema=SHAPE)
    with SortedRecords(SHAPE, once=False, rows_max=2) as records:
        records.add(rows, np.zeros(9, np.int64))
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
    assert not list(tmp_path.iterdir())
    assert sorted_rows([[(0, "a", 1)]], once=True, rows_max=2)[0] == [(0, "a", 1)]
    assert not list(tmp_path.iterdir())


def test_a_temporary_folder_without_room_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr("tempfile.tempdir", str(missing))
    with pytest.raises(StorageUnavailableError, match="TMPDIR") as failed:
        sorted_rows([[(0, "a", 1), (0, "b", 1)]], once=True, rows_max=1)
    assert failed.value.fields["path"] == str(missing)
