"""After each commit the metadata table has exactly the files, keys and bounds of the table (MDT-1)."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.reading.scan import view_of
from filegroups.table import TableReader
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tests.unit.timeline.engine import SMALL, new_table, opened, put
from tests.unit.timeline.metadata_tables import add_metadata_table
from timeline.errors import UnsupportedTableError
from timeline.model.commit_metadata import ConcurrencyMode, TableType, WriteOperation
from timeline.model.file_names import INDEX_DEFINITIONS, METADATA_TABLE
from timeline.partitions import list_partition_paths

INDEXES = ("column_stats", "files", "partition_stats", "record_index")
META = ["_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key"]
KEYS = [f"k{number}" for number in range(12)]


def metadata_of(table: TableReader) -> MetadataTable:
    context = table.context
    found = open_metadata_table(context.ports.storage, table.config, context.snapshot())
    assert found is not None
    assert found.lag.is_trusted
    assert not found.lag.pending
    return found


def check(table: TableReader) -> None:
    """Compare the metadata table with the folders and the rows."""
    table = opened(table)
    storage, metadata = table.context.ports.storage, metadata_of(table)
    snapshot = table.context.snapshot()
    view = view_of(table.context, snapshot)
    slices = view.latest_slices()
    there = {
        (path, entry.name, entry.size_bytes)
        for path in list_partition_paths(storage)
        for entry in storage.list(path)
        if not entry.name.startswith(".hoodie_partition_metadata")
    }
    listed = metadata.files_of(metadata.partition_paths()).to_pylist()
    assert {(one["partition_path"], one["name"], one["size"]) for one in listed} == there
    rows = table.to_arrow(with_hoodie_columns=True).to_pylist()
    index = pa.concat_tables(metadata.read("record_index")).to_pylist()
    assert sorted((one["key"], one["partition_path"]) for one in index) == sorted(
        (one["_hoodie_record_key"], one["_hoodie_partition_path"]) for one in rows
    )
    groups = {(one.file_group.partition_path, one.file_group.file_id) for one in slices}
    assert {(one["partition_path"], one["file_id"]) for one in index} <= groups
    stats = pa.concat_tables(metadata.read("partition_stats")).to_pylist()
    bounds = {one["file_name"]: one for one in stats if one["column_name"] == "v"}
    for row in rows:
        one = bounds[row["_hoodie_partition_path"]]
        assert one["min"]["LongWrapper"] <= row["v"] <= one["max"]["LongWrapper"]
    measured = pa.concat_tables(metadata.read("column_stats")).to_pylist()
    names = {one["file_name"] for one in measured}
    assert {name for _, name, _ in there} == names


def rows(keys: list[str], value: int) -> list[dict[str, Any]]:
    return [{"id": key, "p": f"p{int(key[1:]) % 3}", "ts": value, "v": value} for key in keys]


@pytest.mark.spec("MDT-1")
@pytest.mark.parametrize("table_type", list(TableType))
@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("seed", range(2))
def test_the_metadata_table_has_exactly_what_the_table_has_after_each_commit(
    table_type: TableType, version: int, seed: int
) -> None:
    chance = random.Random(f"{table_type} {version} {seed}")
    table = new_table(version=version, table_type=table_type)
    add_metadata_table(table.context.ports.storage, *INDEXES)
    table = opened(table)
    put(table, WriteOperation.UPSERT, rows(KEYS[:4], 0))
    check(table)
    for value in range(1, 10):
        keys = chance.sample(KEYS, chance.randint(1, 4))
        work = chance.choice(["upsert"] * 3 + ["delete", "overwrite", "service"])
        if work == "service" and table_type is TableType.MERGE_ON_READ:
            planned = schedule_compaction(table.context, CompactionSettings(), files=SMALL)
            if planned is not None:
                execute_compaction(table.context, planned, SMALL)
        elif work == "service":
            clean(table.context, CleaningSettings(commits_retained=1))
        elif work == "delete":
            put(table, WriteOperation.DELETE, rows(keys, value))
        elif work == "overwrite":
            put(table, WriteOperation.INSERT_OVERWRITE, rows(keys, value))
        else:
            put(table, WriteOperation.UPSERT, rows(keys, value))
        check(table)
    clean(table.context, CleaningSettings(commits_retained=1))
    check(table)


def test_a_table_without_a_metadata_table_gets_none() -> None:
    table = new_table()
    put(table, WriteOperation.UPSERT, rows(KEYS, 1))
    assert table.context.ports.storage.list(METADATA_TABLE) == []


@pytest.mark.spec("MDT-1")
def test_a_late_row_below_a_delete_is_in_the_index_when_a_compaction_forgets_the_delete() -> None:
    """The plan of the compaction merges the delete, and the log with the late row is on top of it."""
    table = new_table(table_type=TableType.MERGE_ON_READ)
    add_metadata_table(table.context.ports.storage, *INDEXES)
    put(table, WriteOperation.UPSERT, rows(["k0", "k3"], 5))
    put(table, WriteOperation.DELETE, rows(["k0"], 5))
    planned = schedule_compaction(table.context, CompactionSettings(), files=SMALL)
    assert planned is not None
    put(table, WriteOperation.UPSERT, rows(["k0"], 3))
    assert execute_compaction(table.context, planned, SMALL) is not None
    assert table.current_state().to_arrow(["id"]).num_rows == 2
    check(table)


def defined(*columns: str) -> bytes:
    """The definition of an index of columns, as Java writes it."""
    entry = {
        "indexName": "column_stats",
        "indexType": "column_stats",
        "indexFunction": "column_stats",
        "sourceFields": [*META, *columns],
        "indexOptions": {},
        "version": "V2",
    }
    return json.dumps({"indexDefinitions": {"column_stats": entry}}).encode()


def indexed_columns(table: TableReader) -> list[str]:
    found = json.loads(table.context.ports.storage.read(INDEX_DEFINITIONS))
    return found["indexDefinitions"]["column_stats"]["sourceFields"]


@pytest.mark.spec("MDT-13")
@pytest.mark.parametrize(
    ("listed", "expected"),
    [(("id", "p", "ts", "v"), ("id", "p", "ts", "v", "w")), (("v",), ("v",))],
    ids=["the first columns", "chosen columns"],
)
def test_a_new_column_joins_an_index_of_the_first_columns(
    listed: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    table = new_table()
    storage = table.context.ports.storage
    add_metadata_table(storage, "column_stats", "files", "partition_stats")
    storage.create(INDEX_DEFINITIONS, defined(*listed))
    put(table, WriteOperation.UPSERT, rows(["k0"], 1))
    put(table, WriteOperation.UPSERT, [{**rows(["k3"], 2)[0], "w": 7}])
    assert indexed_columns(table) == [*META, *expected]
    metadata = metadata_of(opened(table))
    measured = pa.concat_tables(metadata.read("column_stats")).to_pylist()
    bounds = {
        one["max"]["LongWrapper"] for one in measured if one["column_name"] == "w" and one["max"]
    }
    assert bounds == ({7} if "w" in expected else set())


@pytest.mark.spec("MDT-13")
def test_a_new_column_has_nulls_and_the_widest_bounds_in_partitions_with_older_files() -> None:
    table = new_table()
    storage = table.context.ports.storage
    add_metadata_table(storage, "column_stats", "files", "partition_stats")
    storage.create(INDEX_DEFINITIONS, defined("id", "p", "ts", "v"))
    put(table, WriteOperation.UPSERT, rows(["k0", "k1"], 1))
    put(table, WriteOperation.INSERT, [{**one, "w": 7} for one in rows(["k3", "k2"], 2)])
    put(opened(table), WriteOperation.INSERT, [{**rows(["k4"], 3)[0], "w": 8}])
    found = pa.concat_tables(metadata_of(opened(table)).read("partition_stats")).to_pylist()
    of_new = {one["file_name"]: one for one in found if one["column_name"] == "w"}
    bounds = {
        path: (one["min"]["LongWrapper"], one["max"]["LongWrapper"], one["null_count"] > 0)
        for path, one in of_new.items()
    }
    widest = (-(2**63), 2**63 - 1, True)
    assert bounds == {"p0": widest, "p1": widest, "p2": (7, 7, False)}


@pytest.mark.spec("MDT-14")
def test_a_non_blocking_write_is_refused_if_the_table_has_an_index_of_keys() -> None:
    table = new_table(table_type=TableType.MERGE_ON_READ)
    add_metadata_table(table.context.ports.storage, "files", "record_index")
    mode = ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL
    other = opened(table, limits=replace(table.context.limits, mode=mode))
    with pytest.raises(UnsupportedTableError) as caught:
        put(other, WriteOperation.UPSERT, rows(["k0"], 1))
    assert caught.value.kind == "index_non_blocking"
    assert "record_index" in caught.value.message
    assert other.context.active().instants == ()
