"""Rows are picked the same way from groups whose text is too long for one piece."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tableservices.clustering import plan
from tableservices.clustering.plan import concatenated, take_rows

_ROWS = pa.table({"t": [f"{n:04d}" for n in range(100)], "b": [b"x"] * 100, "n": range(100)})
_POSITIONS = np.arange(100)[::-1].astype(np.int64)[:90]
_PICKED = [f"{n:04d}" for n in range(99, 9, -1)]


def test_a_small_group_keeps_its_types_and_is_one_piece() -> None:
    whole = concatenated(pa.concat_tables([_ROWS, _ROWS]))
    assert whole.schema == _ROWS.schema
    assert whole.column("t").num_chunks == 1
    assert take_rows(whole, _POSITIONS, _ROWS.schema).column("t").to_pylist() == _PICKED


def test_a_big_group_is_widened_and_its_files_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_NARROW_BYTES_MAX", 200)
    whole = concatenated(_ROWS)
    assert whole.schema.field("t").type == pa.large_string()
    assert whole.schema.field("b").type == pa.large_binary()
    picked = take_rows(whole, _POSITIONS, _ROWS.schema)
    assert picked.schema == _ROWS.schema
    assert picked.column("t").num_chunks > 1
    assert picked.column("t").to_pylist() == _PICKED
    assert picked.column("n").to_pylist() == list(range(99, 9, -1))
