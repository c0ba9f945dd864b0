"""The example merger adds counters up, wherever versions of a record meet."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # not needed once the plug-in is installed

import numpy as np
import pyarrow as pa
from hoodoo_counter_merger import CounterMerger

from hoodoo.plugins import RecordMerger, Versions

MERGER: RecordMerger = CounterMerger()


def versions(*rows: tuple[str | None, int | None], deleted: tuple[int, ...] = ()) -> Versions:
    """Rows of a page's name and its views, some of them deletes."""
    pages, views = zip(*rows, strict=True)
    gone = np.isin(np.arange(len(rows)), deleted)
    return Versions(rows=pa.table({"page": pages, "count_views": views}), deleted=gone)


def test_counters_add_up_and_nulls_count_as_nothing() -> None:
    """The sum, and nothing else: other columns are the newer row's without a word."""
    older = versions(("old", 3), ("old", None), ("old", 5))
    newer = versions(("new", 4), ("new", 7), ("new", None))
    merged = MERGER.merge(older, newer)
    assert {name: column.to_pylist() for name, column in merged.columns.items()} == {
        "count_views": [7, 7, 5]
    }
    assert not merged.deleted.any()


def test_a_delete_deletes_and_what_comes_after_it_counts_anew() -> None:
    """What was counted before a delete is gone with it."""
    older = versions(("old", 3), ("old", 9), deleted=(1,))
    newer = versions((None, None), ("new", 2), deleted=(0,))
    merged = MERGER.merge(older, newer)
    assert merged.deleted.tolist() == [True, False]
    assert merged.columns["count_views"].to_pylist()[1] == 2
