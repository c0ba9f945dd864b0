"""Writes by the record index: the rows are those of a look-up in files, and none is opened for it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from filegroups.index import LookupRules
from filegroups.metadata_table.index_definitions import (
    IndexDefinition,
    write_index_definitions,
)
from filegroups.table import TableReader
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tests.unit.timeline.engine import (
    SMALL,
    begun,
    files_below,
    heard,
    new_table,
    opened,
    put,
    rows_of,
)
from tests.unit.timeline.metadata_tables import (
    PARTITIONS,
    add_metadata_table,
)
from tests.unit.timeline.recording import RecordingStorage
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE
from timeline.properties.properties_file import update_properties

UNUSED = "record_index.not_used"
KEYS = [f"k{number}" for number in range(12)]
PER_PARTITION = IndexDefinition(
    name="record_index", index_type="record_index", options={"isPartitioned": "true"}
)
UPSERT, DELETE, INSERT = WriteOperation.UPSERT, WriteOperation.DELETE, WriteOperation.INSERT
GLOBAL = LookupRules(whole_table=True, by_record_index=True)
STAYING = LookupRules(whole_table=True, moves_rows=False, by_record_index=True)
OF_PARTITION = LookupRules(by_record_index=True)
MOR = TableType.MERGE_ON_READ


def indexed_table(*, per_partition: bool = False, **options: Any) -> TableReader:
    table = new_table(**options)
    storage = table.context.ports.storage
    add_metadata_table(storage, "files", *(() if per_partition else ("record_index",)))
    if per_partition:
        write_index_definitions(storage, [PER_PARTITION])
        update_properties(storage, {PARTITIONS: "files,record_index"}, now="now")
    return opened(table)


def row(key: str, partition: str, value: int) -> dict[str, Any]:
    return {"id": key, "p": partition, "ts": value, "v": value}


def reasons(table: TableReader) -> list[str]:
    return [one["reason"] for one in heard(table, UNUSED)]


def rows(table: TableReader) -> list[tuple[Any, ...]]:
    return sorted(rows_of(table, "id", "p", "ts", "v"))


@pytest.mark.spec("MDT-20")
@pytest.mark.parametrize("table_type", list(TableType))
@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("lookup", [GLOBAL, STAYING, OF_PARTITION], ids=repr)
def test_writes_by_the_record_index_leave_the_rows_of_writes_by_files(
    table_type: TableType, version: int, lookup: LookupRules
) -> None:
    chance = random.Random(f"{table_type} {version} {lookup}")
    per_partition = not lookup.whole_table
    table = indexed_table(per_partition=per_partition, table_type=table_type, version=version)
    other = new_table(table_type=table_type, version=version)
    in_files = LookupRules(whole_table=lookup.whole_table, moves_rows=lookup.moves_rows)
    for one in (table, other):
        put(one, UPSERT, [row("k0", "p0", 0)])
    for value in range(1, 9):
        keys = chance.sample(KEYS, chance.randint(1, 4))
        some = [row(key, f"p{chance.randint(0, 2)}", value) for key in keys]
        work = chance.choice(["upsert"] * 4 + ["delete", "insert", "compaction"])
        for one, rules in ((table, lookup), (other, in_files)):
            if work == "compaction" and table_type is MOR:
                planned = schedule_compaction(one.context, CompactionSettings(), files=SMALL)
                if planned is not None:
                    execute_compaction(one.context, planned, SMALL)
            elif work == "delete":
                put(one, DELETE, some, lookup=rules)
            elif work == "insert":
                put(one, INSERT, some, lookup=rules, drop_found=True)
            else:
                put(one, UPSERT, some, lookup=rules)
        assert rows(table) == rows(other), (value, work)
    assert set(reasons(table)) <= ({"metadata_table_missing"} if per_partition else set())


@pytest.mark.parametrize("lookup", [GLOBAL, OF_PARTITION], ids=repr)
def test_an_append_by_the_record_index_opens_no_base_file_before_its_files(
    lookup: LookupRules,
) -> None:
    table = indexed_table(per_partition=not lookup.whole_table, table_type=MOR)
    put(table, UPSERT, [row(key, f"p{number}", 1) for number, key in enumerate(KEYS)])
    storage = RecordingStorage(table.context.ports.storage)
    mine = opened(table, storage=storage)

    def no_file_opened() -> None:
        data = [
            call.path
            for call in storage.calls
            if call.operation in ("open_input", "read") and call.path.endswith(".parquet")
        ]
        assert data == []

    put(mine, UPSERT, [row("k3", "p3", 2), row("new", "p3", 2)], no_file_opened, lookup=lookup)
    assert not reasons(mine)
    assert ("k3", "p3", 2, 2) in rows(mine)


def test_without_the_index_keys_are_looked_up_in_files() -> None:
    table = new_table()
    put(table, UPSERT, [row("k0", "p0", 1)], lookup=GLOBAL)
    put(table, UPSERT, [row("k0", "p1", 2)], lookup=GLOBAL)
    assert rows(table) == [("k0", "p1", 2, 2)]
    assert reasons(table) == ["no_index", "no_index"]


@pytest.mark.parametrize("lookup", [GLOBAL, OF_PARTITION], ids=repr)
def test_an_index_of_another_scope_is_not_used(lookup: LookupRules) -> None:
    table = indexed_table(per_partition=lookup.whole_table)
    put(table, UPSERT, [row("k0", "p0", 1)])
    put(table, UPSERT, [row("k0", "p0", 2)], lookup=lookup)
    assert rows(table) == [("k0", "p0", 2, 2)]
    assert reasons(table) == ["other_scope"]


@pytest.mark.parametrize("missing", [True, False])
def test_a_damaged_or_missing_index_is_not_used(*, missing: bool) -> None:
    table = indexed_table()
    put(table, UPSERT, [row("k0", "p0", 1)])
    storage = table.context.ports.storage
    for path in files_below(storage, f"{METADATA_TABLE}/record_index"):
        if ".log." in path:
            data = storage.read(path)
            storage.delete(path)
            if not missing:
                storage.create(path, data[: len(data) // 2] + b"x" * (len(data) // 2))
    mine = opened(table)
    found: list[str] = []

    def note() -> None:
        found.extend(reasons(mine))

    try:
        put(mine, UPSERT, [row("k0", "p1", 2)], note, lookup=GLOBAL)
    except Exception:  # noqa: BLE001 - the index cannot be maintained, either
        assert reasons(mine)
        return
    assert rows(mine) == [("k0", "p1", 2, 2)]


@pytest.mark.spec("MDT-20")
def test_a_commit_that_the_metadata_table_lacks_makes_the_index_unusable() -> None:
    table = indexed_table()
    put(table, UPSERT, [row("k0", "p0", 1)])
    storage = table.context.ports.storage
    newest = max(
        name for name in files_below(storage, METADATA_TABLE) if name.endswith(".deltacommit")
    )
    storage.delete(newest)
    mine = opened(table)
    put(mine, UPSERT, [row("k0", "p1", 2)], lookup=GLOBAL)
    assert rows(mine) == [("k0", "p1", 2, 2)]
    assert reasons(mine) == ["behind"]


@pytest.mark.spec("PUB-4")
@pytest.mark.parametrize("table_type", list(TableType))
@pytest.mark.parametrize("lookup", [GLOBAL, OF_PARTITION], ids=repr)
def test_two_writers_that_insert_one_key_leave_one_row(
    table_type: TableType, lookup: LookupRules
) -> None:
    table = indexed_table(per_partition=not lookup.whole_table, table_type=table_type)
    put(table, UPSERT, [row("k0", "p0", 1)])
    finish = begun(opened(table), UPSERT, [row("new", "p0", 3)], lookup=lookup)
    put(table, UPSERT, [row("new", "p0", 2)], finish, lookup=lookup)
    assert [one[0] for one in rows(table)] == ["k0", "new"]


@pytest.mark.spec("PUB-4")
@pytest.mark.parametrize("indexed_first", [True, False])
def test_a_deleted_key_that_a_writer_by_files_restores_is_not_inserted_a_second_time(
    *, indexed_first: bool
) -> None:
    """A look-up in base files finds a key that a log deleted; the record index does not have it."""
    table = indexed_table(per_partition=True, table_type=MOR)
    put(table, UPSERT, [row("k0", "p0", 1), row("k1", "p0", 1)])
    put(table, DELETE, [row("k0", "p0", 2)])
    by_files, by_index = LookupRules(), OF_PARTITION
    first, second = (by_index, by_files) if indexed_first else (by_files, by_index)
    finish = begun(opened(table), UPSERT, [row("k0", "p0", 3)], lookup=first)
    put(table, UPSERT, [row("k0", "p0", 4)], finish, lookup=second)
    assert [one[0] for one in rows(table)] == ["k0", "k1"]


def test_a_key_that_an_older_delete_hides_stays_in_its_file_group() -> None:
    table = indexed_table(table_type=MOR)
    put(table, UPSERT, [row("k0", "p0", 5), row("k1", "p0", 5)])
    put(table, DELETE, [row("k0", "p0", 6)])
    put(table, UPSERT, [row("k0", "p0", 3)], lookup=LookupRules())
    put(table, UPSERT, [row("k0", "p0", 7)], lookup=GLOBAL)
    assert rows(table) == [("k0", "p0", 7, 7), ("k1", "p0", 5, 5)]
