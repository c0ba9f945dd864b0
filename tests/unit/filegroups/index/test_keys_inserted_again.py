"""A key that a log deleted is still in a base file; a write may insert it there or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_request import FileRules, WriteRequest
from tests.unit.filegroups.merge.test_moved_keys import apart
from tests.unit.timeline.engine import (
    Meddled,
    Rows,
    as_table,
    begun,
    new_table,
    opened,
    planned,
    put,
    rows_of,
    upsert,
)
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import TableType, WriteOperation

UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE
A = {"id": "a", "p": "x"}


def row(key: str, v: int, path: str = "x") -> dict[str, object]:
    return {"id": key, "p": path, "ts": v, "v": v}


def logged(**how: Any) -> tuple[TableReader, TableReader, FileRules]:
    """Delete ``a`` in a log; new keys get their own file group."""
    table = new_table(table_type=TableType.MERGE_ON_READ, **how)
    upsert(table, [row("a", 1), row("c", 1)])
    put(table, DELETE, [A])
    return table, opened(table), apart(table)


def refusing(table: TableReader, **options: Any) -> WriteRequest:
    plan = planned(table, INSERT, drop_found=True, **options)
    return replace(plan, rules=replace(plan.rules, drop_found=False, refuse_found=True))


def values_of_a(table: TableReader) -> Rows:
    return [one[1] for one in rows_of(table, "id", "v") if one[0] == "a"]


@pytest.mark.spec("PUB-4")
def test_an_insert_finds_a_deleted_key_that_an_update_inserted_again() -> None:
    mine, other, files = logged()
    concurrent_write = begun(other, UPSERT, [row("a", 4)], files=files)
    result = put(mine, INSERT, [row("a", 5)], concurrent_write, drop_found=True, files=files)
    assert [one.rule for one in result.refusals] == ["C1"]
    assert (result.rows_inserted, values_of_a(mine)) == (0, [4])


def test_an_insert_that_refuses_known_keys_finds_one_that_was_inserted_again() -> None:
    mine, other, files = logged()
    concurrent_write = begun(other, UPSERT, [row("a", 4)], files=files)
    workload = Meddled(LocalWorkload(mine.context.ports, as_table([row("a", 5)])), concurrent_write)
    with pytest.raises(InvalidInputError) as refused:
        write(mine.context, refusing(mine, files=files), workload)
    assert (refused.value.kind, values_of_a(mine)) == ("key_exists", [4])


@pytest.mark.spec("PUB-4")
@pytest.mark.parametrize("keys", [True, False], ids=["stored", "computed"])
def test_an_update_finds_the_key_that_an_insert_put_into_another_file_group(keys: bool) -> None:
    mine, other, files = logged(stores_keys=keys)
    concurrent_write = begun(other, INSERT, [row("a", 4)], drop_found=True, files=files)
    result = upsert(mine, [row("a", 5)], concurrent_write, files=files)
    assert [one.rule for one in result.refusals] == ["C9"]
    assert (result.redone, values_of_a(mine)) == ("everything", [5])


def test_one_key_in_another_file_group_is_found_among_others_that_are_not() -> None:
    mine, other, files = logged()
    concurrent_write = begun(other, INSERT, [row("a", 4)], drop_found=True, files=files)
    result = upsert(mine, [row("a", 5), row("c", 5)], concurrent_write, files=files)
    assert [one.rule for one in result.refusals] == ["C9"]
    assert rows_of(mine, "id", "v") == [("a", 5), ("c", 5)]


def test_a_row_marked_deleted_finds_the_key_that_an_insert_put_into_another_file_group() -> None:
    mine, _, files = logged()
    upsert(mine, [{**row("c", 2), "_hoodie_is_deleted": False}])
    concurrent_write = begun(opened(mine), INSERT, [row("a", 4)], drop_found=True, files=files)
    put_row = {**row("a", 5), "_hoodie_is_deleted": True}
    result = upsert(mine, [put_row], concurrent_write, files=files)
    assert [one.rule for one in result.refusals] == ["C9"]
    assert not values_of_a(mine)


@pytest.mark.parametrize("both", [False, True], ids=["one key", "another beside it"])
def test_a_delete_finds_the_key_that_an_insert_put_into_another_file_group(both: bool) -> None:
    mine, other, files = logged()
    concurrent_write = begun(other, INSERT, [row("a", 4)], drop_found=True, files=files)
    keys = [A, {"id": "c", "p": "x"}] if both else [A]
    result = put(mine, DELETE, keys, concurrent_write, files=files)
    assert [one.rule for one in result.refusals] == ["C16"]
    assert not values_of_a(mine)


def _elsewhere(other: TableReader, files: FileRules) -> Callable[[], object]:
    return begun(other, INSERT, [row("n", 4)], drop_found=True, files=files)


def _of_another_partition(other: TableReader, files: FileRules) -> Callable[[], object]:
    return begun(other, INSERT, [row("a", 4, "y")], drop_found=True, files=files)


def _of_both_partitions(other: TableReader, files: FileRules) -> Callable[[], object]:
    return begun(other, INSERT, [row("n", 4), row("a", 4, "y")], drop_found=True, files=files)


@pytest.mark.parametrize(
    "concurrent_write", [_elsewhere, _of_another_partition, _of_both_partitions]
)
def test_other_keys_are_no_conflict(
    concurrent_write: Callable[[TableReader, FileRules], Callable[[], object]],
) -> None:
    mine, other, files = logged()
    result = upsert(mine, [row("a", 5)], concurrent_write(other, files), files=files)
    assert not result.refusals
    assert ("a", 5) in rows_of(mine, "id", "v")


def test_a_delete_of_a_live_key_does_not_conflict_with_an_insert() -> None:
    mine, other, files = logged()
    concurrent_write = begun(other, INSERT, [row("n", 4)], drop_found=True, files=files)
    assert not put(mine, DELETE, [{"id": "c", "p": "x"}], concurrent_write, files=files).refusals


def test_an_insert_does_not_conflict_with_updates_of_other_keys() -> None:
    mine, other, files = logged()
    concurrent_write = begun(other, UPSERT, [row("c", 4)], files=files)
    result = put(mine, INSERT, [row("n", 5)], concurrent_write, drop_found=True, files=files)
    assert not result.refusals
