"""One concurrent commit deletes keys of a file group, and another one inserts them elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_request import FileRules
from tests.unit.timeline.engine import (
    Meddled,
    Rows,
    as_table,
    begun,
    new_table,
    opened,
    planned,
    put,
    put_watched,
    rows_of,
    upsert,
)
from timeline.commit import concurrent_commits
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import CommitMetadata, TableType, WriteOperation

UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE
A = {"id": "a", "p": "x"}
BOTH_FIRST = pytest.mark.parametrize("before", [False, True], ids=["beside", "before"])


def row(key: str, v: int) -> dict[str, object]:
    return {"id": key, "p": "x", "ts": v, "v": v}


START: Rows = [row("a", 1), row("c", 1)]


def two_writers(**how: object) -> tuple[TableReader, TableReader]:
    table = new_table(**how)
    upsert(table, START)
    return table, opened(table)


def apart(table: TableReader) -> FileRules:
    """Let new keys get their own file group."""
    files = planned(table, UPSERT).files
    return replace(files, sizes=replace(files.sizes, small_file_bytes=0))


def deleted_and_inserted_elsewhere(mine: TableReader, other: TableReader) -> Callable[[], None]:
    """An older write deletes ``a``, and a later one inserts it into another file group."""
    deletes = begun(other, DELETE, [A])

    def act() -> None:
        deletes()
        inserted = upsert(opened(mine, application="third"), [row("a", 4)], files=apart(mine))
        assert inserted.rows_inserted == 1

    return act


@pytest.mark.spec("PUB-4")
@BOTH_FIRST
def test_an_update_inserts_no_second_row(before: bool) -> None:
    mine, other = two_writers()
    act = deleted_and_inserted_elsewhere(mine, other)
    acts, early = ((), act) if before else ((act,), None)
    result, _ = put_watched(mine, UPSERT, [row("a", 5)], *acts, early=early, files=apart(mine))
    assert [one.rule for one in result.refusals] == ["C14"]
    assert result.redone == "everything"
    assert rows_of(mine, "id", "v") == [("a", 5), ("c", 1)]


def test_a_delete_finds_the_key_in_its_new_file_group() -> None:
    mine, other = two_writers()
    upsert(mine, [row("b", 1)])
    act = deleted_and_inserted_elsewhere(mine, other)
    result = put(mine, DELETE, [A, {"id": "c", "p": "x"}], act)
    assert result.rows_deleted == 2
    assert rows_of(mine, "id") == [("b",)]


def test_an_update_that_was_too_old_inserts_no_second_row() -> None:
    """The update has no effect, and depends on the location of its key."""
    mine, other = two_writers()
    act = deleted_and_inserted_elsewhere(mine, other)
    upsert(mine, [row("a", 0)], act, files=apart(mine))
    assert rows_of(mine, "id", "v") == [("a", 4), ("c", 1)]


def test_concurrent_updates_merge_the_file_group_again() -> None:
    mine, other = two_writers()
    updates = begun(other, UPSERT, [row("a", 4)])
    result = upsert(mine, [row("a", 5)], updates)
    assert (result.redone, [one.rule for one in result.refusals]) == ("file groups", ["C1"])


@pytest.mark.parametrize("buckets", [None, BucketRules(buckets=1, hash_fields=("id",))])
def test_a_write_without_a_key_lookup_is_rebased_on_concurrent_deletes(
    buckets: BucketRules | None,
) -> None:
    """A plain insert looks up no key, and in a bucket a key has a fixed file group."""
    mine = new_table()
    upsert(mine, START, buckets=buckets)
    deletes = begun(opened(mine), DELETE, [A], buckets=buckets)
    operation = INSERT if buckets is None else UPSERT
    result = put(mine, operation, [row("n", 5)], deletes, buckets=buckets)
    assert result.redone == "file groups"
    assert rows_of(mine, "id", "v") == [("c", 1), ("n", 5)]


# ---------------------------------------------------------------- inserts that drop known keys


@pytest.mark.parametrize("drops", [False, True], ids=["upsert", "insert"])
def test_an_insert_drops_a_key_that_was_inserted_into_its_small_file(drops: bool) -> None:
    mine, other = two_writers()
    concurrent_write = begun(other, INSERT if drops else UPSERT, [row("n", 4)], drop_found=drops)
    result = put(mine, INSERT, [row("n", 5)], concurrent_write, drop_found=True)
    assert (result.rows_inserted, result.redone) == (0, "everything")
    assert rows_of(mine, "id", "v") == [("a", 1), ("c", 1), ("n", 4)]


def test_an_insert_that_refuses_known_keys_refuses_one_inserted_into_its_small_file() -> None:
    mine, other = two_writers()
    concurrent_write = begun(other, UPSERT, [row("n", 4)])
    plan = planned(mine, INSERT, drop_found=True)
    refusing = replace(plan, rules=replace(plan.rules, drop_found=False, refuse_found=True))
    workload = Meddled(LocalWorkload(mine.context.ports, as_table([row("n", 5)])), concurrent_write)
    with pytest.raises(InvalidInputError) as refused:
        write(mine.context, refusing, workload)
    assert refused.value.kind == "key_exists"
    assert rows_of(mine, "id", "v") == [("a", 1), ("c", 1), ("n", 4)]


@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("filled", [False, True])
def test_a_row_that_was_dropped_for_a_known_key_is_inserted_when_that_key_is_deleted(
    kind: TableType, logged: bool, filled: bool
) -> None:
    mine, other = two_writers(table_type=kind)
    if logged:
        upsert(mine, [row("c", 2)])
    given = [row("a", 5), row("n", 5)] if filled else [row("a", 5)]
    result = put(mine, INSERT, given, lambda: put(other, DELETE, [A]), drop_found=True)
    assert result.attempts == 2
    assert ("a", 5) in rows_of(mine, "id", "v")
    assert len(rows_of(mine, "id")) == len(given) + 1


def test_a_dropped_row_stays_dropped_under_concurrent_changes_of_other_partitions() -> None:
    mine, other = two_writers()
    upsert(mine, [{**row("y", 1), "p": "y"}])
    result = put(
        mine,
        INSERT,
        [row("a", 5)],
        lambda: upsert(other, [{**row("y", 2), "p": "y"}]),
        drop_found=True,
    )
    assert (result.attempts, result.rows_inserted) == (1, 0)


def test_a_concurrent_commit_is_decoded_only_where_it_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may name thousands of files, and the writer holds the lock."""
    mine, other = two_writers()
    read: list[str] = []
    decode = concurrent_commits.decode_commit

    def counted(body: bytes, *, path: str) -> CommitMetadata:
        read.append(path)
        return decode(body, path=path)

    monkeypatch.setattr(concurrent_commits, "decode_commit", counted)
    upsert(mine, [row("a", 5)], lambda: upsert(other, [{**row("y", 1), "p": "y"}]))
    assert not read
    upsert(mine, [row("a", 7)], begun(other, UPSERT, [row("a", 6)]))
    assert len(set(read)) == 1
