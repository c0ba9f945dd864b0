"""The rows that an incremental read takes from the files of its range (fmt 6.6)."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa

from filegroups.reading.incremental import IncrementalRead, plan_incremental_read
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tests.unit.timeline.engine import heard, new_table, planned, rows_of, upsert
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.model.commit_metadata import TableType, WriteOperation


def written(*versions: int) -> tuple[TableReader, list[str]]:
    """Return a table whose only row was written several times, and the completion times."""
    table = new_table()
    times = [
        upsert(table, [{"id": "a", "p": "x", "ts": number, "v": number}]).completion_time
        for number in versions
    ]
    return table, times


def test_only_blocks_and_rows_of_the_range_count():
    table, times = written(1, 2, 3)
    changed = plan_incremental_read(table.context, times[0], times[1])
    [inside] = changed.instants
    others = {one.requested_time for one in table.context.active().completed_writes} - {inside}
    assert inside in changed.visible
    assert len(others) == 2
    assert not any(time in changed.visible for time in others)


def test_the_newest_slices_are_read_where_files_of_the_range_are_cleaned():
    table, times = written(1, 2, 3)
    changed = plan_incremental_read(table.context, times[0], times[1])
    table.context.ports.storage.delete(changed.slices[0].base_file.path)
    fallen_back = plan_incremental_read(table.context, times[0], times[1])
    assert [one.base_instant_time for one in fallen_back.slices] == [
        table.context.active().completed_writes[-1].requested_time
    ]
    assert (fallen_back.cleaned, fallen_back.base_condition) == (True, None)
    every = {one.requested_time for one in table.context.active().completed_writes}
    assert all(time in fallen_back.visible for time in every)
    assert heard(table.context, "changes.cleaned")
    assert table.changes(times[0], times[1]).read_all().num_rows == 0


def test_older_files_of_the_range_may_be_missing():
    table, times = written(1, 2, 3)
    first = plan_incremental_read(table.context, "0", times[0])
    table.context.ports.storage.delete(first.slices[0].base_file.path)
    assert not plan_incremental_read(table.context, "0", None).cleaned
    assert table.changes("0").read_all()["v"].to_pylist() == [3]
    assert rows_of(table, "v") == [(3,)]


def test_a_range_is_a_value():
    table, _ = written(1)
    changed = plan_incremental_read(table.context, "0", None)
    assert isinstance(changed, IncrementalRead)
    assert replace(changed, cleaned=True).base_condition is None
    assert "_hoodie_commit_time" in str(changed.base_condition)


def updated_in_part(table: TableReader, rows: list[dict[str, Any]]) -> None:
    """Upsert some columns."""
    plan = planned(table, WriteOperation.UPSERT)
    partial = replace(plan, rules=replace(plan.rules, partial_columns=()))
    write(table.context, partial, LocalWorkload(table.context.ports, pa.Table.from_pylist(rows)))


def test_a_filter_of_a_range_chooses_among_partially_updated_rows_as_well():
    table = new_table(table_type=TableType.MERGE_ON_READ)
    since = upsert(table, [{"id": k, "p": "x", "ts": 1, "v": n} for n, k in enumerate("ab")])
    updated_in_part(table, [{"id": k, "p": "x", "ts": 2} for k in "ab"])
    found = table.changes(since.completion_time, filter=[("v", "=", 1)]).read_all()
    assert found.select(["id", "ts", "v"]).to_pylist() == [{"id": "b", "ts": 2, "v": 1}]


def test_only_partial_updates_list_the_partitions_of_a_range():
    storage = RecordingStorage(MemoryStorage())
    table = new_table(storage, table_type=TableType.MERGE_ON_READ)
    since = upsert(table, [{"id": k, "p": k, "ts": 1, "v": 1} for k in "xyz"]).completion_time
    upsert(table, [{"id": k, "p": k, "ts": 2, "v": 2} for k in "xyz"])
    storage.forget()
    assert table.changes(since).read_all()["v"].to_pylist() == [2, 2, 2]
    assert not storage.count("list")
    updated_in_part(table, [{"id": "y", "p": "y", "ts": 3}])
    storage.forget()
    assert table.changes(since).read_all()["ts"].to_pylist() == [2, 3, 2]
    assert [one for one in storage.operations() if one.startswith("list ")] == ["list y"]
    there = plan_incremental_read(table.context, since, None, ahead=True)
    storage.forget()
    assert [
        there.whole_file_groups.of(one.file_group).base_file is None for one in there.slices
    ] == [False] * 3
    assert not storage.calls
    assert pickle.loads(pickle.dumps(there.whole_file_groups.of)) is not None
