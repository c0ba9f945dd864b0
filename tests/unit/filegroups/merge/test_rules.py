"""Rows whose key moved to another partition leave the base file, marked by their own column."""

from __future__ import annotations

import pyarrow as pa

from filegroups.merge.merging import (
    RELOCATED_COLUMN,
    mark_relocated_keys,
    remove_relocated_keys,
    split_relocated_keys,
)


def rows(*keys: str) -> pa.Table:
    return pa.table({"_hoodie_record_key": pa.array(keys, pa.string()), "v": [1] * len(keys)})


def keys(table: pa.Table) -> list[str]:
    return table.column("_hoodie_record_key").to_pylist()


def test_the_mark_is_hoodoos_own_column() -> None:
    marked = mark_relocated_keys(rows("a", "b"), rows("c"))
    assert RELOCATED_COLUMN == "_hoodoo_leaves"
    assert marked.schema.names == ["_hoodie_record_key", "v", "_hoodoo_leaves"]
    assert (keys(marked), marked.column(2).to_pylist()) == (["a", "b", "c"], [False, False, True])


def test_marked_rows_are_split_again() -> None:
    staying, leaving = split_relocated_keys(mark_relocated_keys(rows("a", "b"), rows("c")))
    assert staying.equals(rows("a", "b"))
    assert leaving is not None
    assert leaving.to_pylist() == ["c"]


def test_unmarked_rows_all_stay() -> None:
    incoming = rows("a")
    assert split_relocated_keys(incoming) == (incoming, None)
    base = rows("a", "x")
    assert remove_relocated_keys(base, incoming) == (base, incoming, 0)


def test_every_row_of_a_moved_key_is_removed_from_the_base() -> None:
    base = rows("x", "c", "y", "c")
    kept, staying, left = remove_relocated_keys(
        base, mark_relocated_keys(rows("a"), rows("c", "z"))
    )
    assert (keys(kept), keys(staying), left) == (["x", "y"], ["a"], 2)
