"""Every operation of a copy-on-write table alone, and the rows after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.keys.bucketing import SizeSettings
from filegroups.table import TableReader
from filegroups.writing.write import write
from tests.unit.timeline.engine import (
    SMALL,
    Rows,
    begun,
    data_files,
    files_below,
    leftovers,
    new_table,
    opened,
    planned,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import InvalidInputError, UnsupportedTableError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.instant import Action
from timeline.storage.local import LocalStorage

INSERT, UPSERT, DELETE = WriteOperation.INSERT, WriteOperation.UPSERT, WriteOperation.DELETE


def row(key: str, part: str, ts: int, v: int) -> dict[str, Any]:
    return {"id": key, "p": part, "ts": ts, "v": v}


START: Rows = [row("a", "x", 5, 1), row("b", "x", 5, 1), row("c", "y", 5, 1)]


@pytest.fixture(params=["memory 9", "local 9", "memory 8"])
def table(request: pytest.FixtureRequest, tmp_path) -> TableReader:
    where, version = request.param.split()
    storage = MemoryStorage() if where == "memory" else LocalStorage(tmp_path / "t")
    made = new_table(storage, version=int(version))
    upsert(made, START)
    return made


def test_an_upsert_replaces_by_key_and_inserts_the_rest(table: TableReader):
    result = upsert(table, [row("a", "x", 6, 2), row("d", "y", 1, 2)])
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 1, 0)
    assert (result.action, result.operation, result.attempts) == ("commit", "upsert", 1)
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1), ("c", 1), ("d", 2)]
    assert leftovers(table) == []


def test_late_rows_are_ignored(table: TableReader):
    result = upsert(table, [row("a", "x", 4, 2), row("b", "x", 5, 3)])
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 3), ("c", 1)]
    assert result.rows_updated == 1


def test_duplicates_of_a_batch_are_combined_by_order(table: TableReader):
    result = upsert(table, [row("n", "x", 3, 3), row("n", "x", 9, 9), row("n", "x", 4, 4)])
    assert result.rows_inserted == 1
    assert rows_of(table, "id", "v")[-1] == ("n", 9)


def test_an_insert_has_no_key_lookup(table: TableReader):
    put(table, INSERT, [row("a", "x", 6, 2)])
    assert rows_of(table, "id", "v") == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]


def test_an_insert_may_drop_known_keys(table: TableReader):
    result = put(table, INSERT, [row("a", "x", 6, 2), row("n", "x", 6, 2)], drop_found=True)
    assert result.rows_inserted == 1
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 1), ("c", 1), ("n", 2)]


def test_a_bulk_insert_creates_new_files_only(table: TableReader):
    before = set(data_files(table))
    put(table, WriteOperation.BULK_INSERT, [row("n", "x", 1, 1)])
    new = set(data_files(table)) - before
    assert len(new) == 1
    assert not {path.partition("_")[0] for path in new} & {p.partition("_")[0] for p in before}


def test_a_delete_removes_keys(table: TableReader):
    result = put(table, DELETE, [{"id": "a", "p": "x"}, {"id": "nowhere", "p": "x"}])
    assert result.rows_deleted == 1
    assert rows_of(table, "id") == [("b",), ("c",)]


def test_a_delete_of_the_last_rows_leaves_an_empty_partition(table: TableReader):
    put(table, DELETE, [{"id": "c", "p": "y"}])
    assert rows_of(table, "id") == [("a",), ("b",)]
    upsert(table, [row("c", "y", 1, 7)])
    assert rows_of(table, "id", "v")[-1] == ("c", 7)


def test_rows_marked_deleted_are_removed():
    table = new_table()
    upsert(table, [{**each, "_hoodie_is_deleted": False} for each in START])
    upsert(table, [{**row("a", "x", 6, 1), "_hoodie_is_deleted": True}])
    assert rows_of(table, "id") == [("b",), ("c",)]


@pytest.mark.parametrize("operation", [INSERT, WriteOperation.BULK_INSERT])
def test_an_insert_writes_no_row_that_is_marked_deleted(operation: WriteOperation):
    table = new_table()
    upsert(table, [{**each, "_hoodie_is_deleted": False} for each in START])
    marked = [{**row(key, "x", 9, 9), "_hoodie_is_deleted": True} for key in ("b", "gone")]
    new = {**row("new", "x", 9, 9), "_hoodie_is_deleted": None}
    assert put(table, operation, [*marked, new]).rows_inserted == 1
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 1), ("c", 1), ("new", 9)]


def test_an_overwrite_replaces_only_the_partitions_of_its_rows(table: TableReader):
    result = put(table, WriteOperation.INSERT_OVERWRITE, [row("n", "x", 1, 9)])
    assert result.action == "replacecommit"
    assert rows_of(table, "id", "v") == [("c", 1), ("n", 9)]
    assert leftovers(table) == []


def test_an_overwrite_of_the_table_replaces_all(table: TableReader):
    put(table, WriteOperation.INSERT_OVERWRITE_TABLE, [row("n", "z", 1, 9)])
    assert rows_of(table, "id", "p") == [("n", "z")]


def test_partitions_are_deleted_as_wholes(table: TableReader):
    plan = planned(table, WriteOperation.DELETE_PARTITION, delete_partitions=("x",))
    result = write(table.context, plan, None)
    assert (result.action, result.files_written) == ("replacecommit", 0)
    assert rows_of(table, "id") == [("c",)]
    assert leftovers(table) == []


def test_deleting_a_partition_that_is_not_there_changes_nothing(table: TableReader):
    plan = planned(table, WriteOperation.DELETE_PARTITION, delete_partitions=("nowhere",))
    write(table.context, plan, None)
    assert len(rows_of(table)) == 3


def test_without_ordering_the_last_writer_wins():
    table = new_table(ordering=())
    upsert(table, [{"id": "a", "p": "x", "v": 5}])
    upsert(table, [{"id": "a", "p": "x", "v": 3}, {"id": "a", "p": "x", "v": 2}])
    assert rows_of(table, "id", "v") == [("a", 2)]


def test_added_columns_are_null_in_old_rows(table: TableReader):
    upsert(table, [{**row("n", "y", 1, 1), "w": "new"}])
    assert rows_of(table, "id", "w") == [("a", None), ("b", None), ("c", None), ("n", "new")]
    assert table.schema.names == ["id", "p", "ts", "v", "w"]


def test_missing_columns_are_filled_with_nulls():
    table = new_table(ordering=())
    upsert(table, [{"id": "a", "p": "x", "v": 1, "w": 1}])
    upsert(table, [{"id": "b", "p": "x", "v": 2}])
    assert rows_of(table, "id", "w") == [("a", 1), ("b", None)]


def test_narrower_numbers_widen_into_the_table():
    table = new_table(ordering=())
    upsert(table, pa.table({"id": ["a"], "p": ["x"], "v": pa.array([1], pa.int64())}))
    upsert(table, pa.table({"id": ["b"], "p": ["x"], "v": pa.array([2], pa.int32())}))
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 2)]
    assert table.schema.field("v").type == pa.int64()


def test_values_of_another_type_change_nothing(table: TableReader):
    before = files_below(table.context.ports.storage, ".hoodie/timeline")
    with pytest.raises(InvalidInputError):
        upsert(table, [{**row("a", "x", 6, 0), "v": True}])
    assert files_below(table.context.ports.storage, ".hoodie/timeline") == before


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ({"p": "x", "ts": 1, "v": 1}, "missing_key_column"),
        ({"id": None, "p": "x", "ts": 1, "v": 1}, "null_key"),
        ({"id": "a", "p": "x", "v": 1}, None),
        ({"id": "a", "p": "x", "ts": None, "v": 1}, None),
        ({"id": "a", "p": "../x", "ts": 1, "v": 1}, None),
        ({"id": "a", "p": ".hoodie", "ts": 1, "v": 1}, None),
    ],
)
def test_bad_rows_are_refused_before_anything_begins(
    table: TableReader, bad: dict[str, Any], kind: str | None
):
    before = files_below(table.context.ports.storage)
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())])
    rows = pa.Table.from_pylist([bad], pa.schema([f for f in schema if f.name in bad]))
    with pytest.raises(InvalidInputError) as caught:
        upsert(table, rows)
    assert kind is None or caught.value.kind == kind
    assert files_below(table.context.ports.storage) == before


def test_a_key_column_the_first_batch_lacks_is_named():
    with pytest.raises(InvalidInputError) as caught:
        upsert(new_table(), [{"p": "x", "ts": 1}])
    assert caught.value.fields["columns"] == ["id"]


def test_a_delete_from_a_table_without_commits_is_refused():
    with pytest.raises(UnsupportedTableError) as caught:
        put(new_table(), DELETE, [{"id": "a", "p": "x"}])
    assert caught.value.kind == "no_schema"


def test_an_empty_batch_is_a_commit_without_files(table: TableReader):
    empty = pa.Table.from_pylist([], pa.schema([("id", pa.string()), ("p", pa.string())]))
    empty = empty.append_column("ts", pa.array([], pa.int64()))
    result = upsert(table, empty)
    assert result.files_written == 0
    assert len(rows_of(table)) == 3


@pytest.mark.spec("BATCH-1")
def test_a_batch_id_is_committed_once(table: TableReader):
    first = upsert(table, [row("n", "x", 1, 1)], batch_id="b")
    second = upsert(table, [row("n", "x", 2, 2), row("m", "x", 2, 2)], batch_id="b")
    assert second.already_published
    assert not first.already_published
    assert second.requested_time == first.requested_time
    assert second.rows_inserted == 1
    assert ("n", 1) in rows_of(table, "id", "v")
    assert not upsert(table, [row("m", "x", 2, 2)], batch_id="c").already_published


@pytest.mark.spec("BATCH-1")
def test_a_batch_id_of_another_operation_is_refused_and_nothing_is_written(table: TableReader):
    first = upsert(table, [row("n", "x", 1, 1)], batch_id="b")
    before = rows_of(table)
    for each in (table, opened(table)):
        with pytest.raises(InvalidInputError, match="committed as upsert") as refused:
            put(each, DELETE, [row("n", "x", 9, 1)], batch_id="b")
        assert refused.value.kind == "batch_of_another_operation"
        assert refused.value.fields["requested_time"] == first.requested_time
    assert rows_of(table) == before
    assert upsert(table, [row("n", "x", 1, 1)], batch_id="b").already_published


def test_small_files_are_filled_and_big_inserts_split():
    sizes = SizeSettings(file_bytes_max=1_000_000, small_file_bytes=900_000, record_bytes=100_000)
    files = replace(SMALL, sizes=sizes, learn_record_size=False)
    table = new_table()
    put(table, INSERT, [row(f"k{n:02}", "x", 1, n) for n in range(25)], files=files)
    assert len(table.file_slices()) == 3  # ten rows a file
    groups = {one.file_group for one in table.file_slices()}
    put(table, INSERT, [row("later", "x", 1, 1)], files=files)
    assert {one.file_group for one in table.file_slices()} == groups
    assert len(rows_of(table)) == 26


def test_size_of_records_is_learnt_from_small_files_too():
    files = replace(SMALL, sizes=SizeSettings(file_bytes_max=200_000, small_file_bytes=0))
    table = new_table()
    put(table, INSERT, [row(f"k{n:04}", "x", 1, n) for n in range(1_500)])
    put(table, INSERT, [row(f"m{n:04}", "x", 1, n) for n in range(1_500)], files=files)
    assert len(table.file_slices()) == 2  # not eight, as without a known record size


def test_small_files_are_not_filled_when_the_limit_is_zero():
    files = replace(SMALL, sizes=SizeSettings(small_file_bytes=0))
    table = new_table()
    for number in range(3):
        put(table, INSERT, [row(f"k{number}", "x", 1, 1)], files=files)
    assert len(table.file_slices()) == 3


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize(
    ("how", "folder"),
    [
        ({"partitions": ()}, ""),
        ({}, "a b%"),
        ({"hive_style": True}, "p=a b%"),
        ({"url_encode": True}, "a b%25"),
        ({"hive_style": True, "url_encode": True}, "p=a b%25"),
    ],
)
def test_layouts_of_partitions(version: int, how: dict[str, Any], folder: str):
    table = new_table(version=version, **how)
    upsert(table, [row("a", "a b%", 1, 1)])
    upsert(table, [row("a", "a b%", 2, 2)])
    assert {path.rpartition("/")[0] for path in data_files(table)} == {folder}
    assert rows_of(table) == [("a", "a b%", 2, 2)]
    expected = f"{folder}/.hoodie_partition_metadata".lstrip("/")
    assert table.context.ports.storage.stat(expected) is not None


def test_two_key_and_two_partition_fields():
    table = new_table(keys=("id", "v"), partitions=("p", "q"))
    upsert(table, [{**row("a", "x", 1, 1), "q": 7}, {**row("a", "x", 1, 2), "q": 7}])
    upsert(table, [{**row("a", "x", 2, 2), "q": 7}])
    assert rows_of(table, "id", "v", "ts") == [("a", 1, 1), ("a", 2, 2)]
    assert data_files(table)[0].startswith("x/7/")
    keys = rows_of(table, "_hoodie_record_key")
    assert keys == [("id:a,v:1",), ("id:a,v:2",)]


def test_the_commit_records_operation_attempts_and_statistics(table: TableReader):
    result = upsert(table, [row("a", "x", 6, 2)])
    instant = table.context.active().find(result.requested_time, Action.COMMIT)
    metadata = table.context.commits.read(instant)
    assert metadata.operation_type == "UPSERT"
    assert metadata.extra_metadata["hoodoo.attempts"] == "1"
    [stat] = metadata.partition_to_write_stats["x"]
    assert (stat.num_update_writes, stat.num_writes) == (1, 2)
    assert result.bytes_written == stat.file_size_in_bytes


def test_a_started_write_is_invisible(table: TableReader):
    finish = begun(table, UPSERT, [row("a", "x", 6, 2)])
    assert rows_of(table, "id", "v")[0] == ("a", 1)
    finish()
    assert rows_of(table, "id", "v")[0] == ("a", 2)
