"""Reads: columns, filters, streaming, time travel and ranges of changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from filegroups.table import TableReader
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import (
    StillClock,
    begun,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.errors import (
    InstantNotFoundError,
    InvalidInputError,
    MissingFileError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import TIMELINE

META = [
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
]


def row(key: str, part: str, ts: int, v: int) -> dict[str, Any]:
    return {"id": key, "p": part, "ts": ts, "v": v}


def three_commits() -> tuple[TableReader, list[CommitResult]]:
    """Insert a and b, update a, then insert c into another partition, each a second apart."""
    clock = StillClock()
    table = new_table(clock=clock)
    results = []
    for rows in (
        [row("a", "x", 1, 1), row("b", "x", 1, 1)],
        [row("a", "x", 2, 2)],
        [row("c", "y", 3, 3)],
    ):
        results.append(upsert(table, rows))
        clock.sleep_ms(60_000)
    return table, results


def test_columns_have_the_requested_order():
    table, _ = three_commits()
    found = table.to_arrow(columns=["v", "id"])
    assert found.schema.names == ["v", "id"]
    assert sorted(found.to_pylist(), key=str) == [
        {"v": 1, "id": "b"},
        {"v": 2, "id": "a"},
        {"v": 3, "id": "c"},
    ]


def test_meta_columns_are_returned_on_request():
    table, _ = three_commits()
    assert table.to_arrow().schema.names == ["id", "p", "ts", "v"]
    assert table.to_arrow(with_hoodie_columns=True).schema.names[:5] == META
    assert table.to_arrow(columns=["_hoodie_record_key"]).num_columns == 1


def test_an_unknown_column_is_named():
    table, _ = three_commits()
    with pytest.raises(InvalidInputError) as caught:
        table.scan(columns=["id", "nope"])
    assert caught.value.fields["columns"] == ["nope"]


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ([("v", ">", 1)], ["a", "c"]),
        ([("v", ">", 1), ("p", "=", "x")], ["a"]),
        ([("id", "in", ["a", "b"])], ["a", "b"]),
        ([("id", "not in", ["a", "b"])], ["c"]),
        ([("v", "!=", 2)], ["b", "c"]),
        (pc.field("v") == 3, ["c"]),
        ((pc.field("v") == 3) | (pc.field("id") == "b"), ["b", "c"]),
        (pc.field("_hoodie_record_key") == "a", ["a"]),
        (None, ["a", "b", "c"]),
    ],
)
def test_filters(condition: Any, keys: list[str]):
    table, _ = three_commits()
    assert rows_of(table, "id", filter=condition) == [(key,) for key in keys]
    streamed = table.scan(columns=["id"], filter=condition).read_all()
    assert sorted(streamed["id"].to_pylist()) == keys


@pytest.mark.parametrize(
    "condition",
    [
        [("v", "~", 1)],
        [("v",)],
        ["v > 1"],
        [("id", "in", 1)],
        [("nope", "=", 1)],
        pc.field("nope") == 1,
        [("v", "=", "text")],
        [],
    ],
)
def test_invalid_filters_are_refused(condition: Any):
    table, _ = three_commits()
    with pytest.raises(InvalidInputError):
        table.to_arrow(filter=condition)
    with pytest.raises(InvalidInputError):
        table.scan(filter=condition).read_all()


def test_filters_on_an_added_column_hold_for_old_files():
    table, _ = three_commits()
    upsert(table, [{**row("d", "y", 1, 1), "w": 1}])
    assert rows_of(table, "id", filter=[("w", "=", 1)]) == [("d",)]
    assert rows_of(table, "id", filter=pc.field("w").is_null()) == [("a",), ("b",), ("c",)]


def test_partitions_outside_the_filter_are_not_listed():
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed)
    upsert(table, [row("a", "x", 1, 1), row("b", "y", 1, 1)])
    observed.forget()
    assert table.to_arrow(partitions=["y"])["id"].to_pylist() == ["b"]
    assert not [text for text in observed.operations() if " x" in text]


def test_missing_partitions_are_empty():
    table, _ = three_commits()
    assert table.to_arrow(partitions=["nowhere"]).num_rows == 0


def test_rows_stream_file_by_file():
    observed = RecordingStorage(MemoryStorage())
    table = new_table(observed)
    upsert(table, [row("a", "x", 1, 1), row("b", "y", 1, 1)])
    observed.forget()
    reader = table.scan()
    assert observed.count("open_input") == 0
    assert reader.read_next_batch().num_rows == 1
    assert observed.count("open_input") == 1
    assert reader.read_next_batch().num_rows == 1
    with pytest.raises(StopIteration):
        reader.read_next_batch()


def test_a_pinned_table_does_not_change():
    table, _ = three_commits()
    pinned = table.current_state()
    upsert(table, [row("a", "x", 9, 9)])
    assert sorted(pinned.to_arrow()["v"].to_pylist()) == [1, 2, 3]
    assert sorted(table.to_arrow()["v"].to_pylist()) == [1, 3, 9]


def test_a_table_never_written_has_no_schema():
    with pytest.raises(UnsupportedTableError) as caught:
        new_table().to_arrow()
    assert caught.value.kind == "no_schema"


def test_a_missing_file_is_reported():
    table, _ = three_commits()
    pinned = table.current_state()
    [slice_] = pinned.file_slices(["y"])
    table.context.ports.storage.delete(slice_.base_file.path)
    with pytest.raises(MissingFileError):
        pinned.to_arrow()


def test_uncommitted_files_are_invisible():
    table, _ = three_commits()
    finish = begun(table, WriteOperation.UPSERT, [row("a", "x", 9, 9)])
    time = table.context.active().pending[0].requested_time
    [slice_] = table.file_slices(["x"])
    name = f"{slice_.file_group.file_id}_9-9-9_{time}.parquet"
    storage = table.context.ports.storage
    storage.create(f"x/{name}", storage.read(slice_.base_file.path))
    assert table.file_slices(["x"]) == [slice_]
    storage.delete(f"x/{name}")
    finish()


# ---- time travel


def test_time_travel_shows_the_instants_requested_up_to_a_time():
    table, (first, second, third) = three_commits()

    def at(time: str) -> list[tuple[str, int]]:
        found = table.as_of(time).to_arrow(columns=["id", "v"])
        return sorted(zip(*(c.to_pylist() for c in found.columns), strict=True))

    assert at(first.requested_time) == [("a", 1), ("b", 1)]
    assert at(second.requested_time) == [("a", 2), ("b", 1)]
    assert at(third.requested_time) == [("a", 2), ("b", 1), ("c", 3)]
    just_before = str(int(second.requested_time) - 1)
    assert at(just_before) == [("a", 1), ("b", 1)]
    assert at("2026-09-21 14:14:00") == [("a", 1), ("b", 1)]
    assert at("2026-09-21T16:15:00+02:00") == [("a", 2), ("b", 1)]
    assert at("2026-09-22") == [("a", 2), ("b", 1), ("c", 3)]


def test_time_travel_shows_the_schema_of_that_time():
    table, (_, second, _) = three_commits()
    upsert(table, [{**row("d", "y", 1, 1), "w": 1}])
    assert table.as_of(second.requested_time).schema.names == ["id", "p", "ts", "v"]
    assert table.schema.names[-1] == "w"


def test_a_time_before_the_table_is_refused():
    table, _ = three_commits()
    with pytest.raises(InstantNotFoundError) as caught:
        table.as_of("2020-01-01")
    assert caught.value.kind == "time_travel_too_early"
    fields = caught.value.fields
    expected_text = f"you asked for {fields['time']}; the first instant is {fields['first']}. "
    assert expected_text in caught.value.message


def test_a_time_after_a_pending_write_is_refused():
    table, (_, _, third) = three_commits()
    finish = begun(table, WriteOperation.UPSERT, [row("a", "x", 9, 9)])
    with pytest.raises(InstantNotFoundError) as caught:
        table.as_of("2027-01-01")
    assert caught.value.kind == "time_travel_pending"
    assert table.as_of(third.requested_time).to_arrow().num_rows == 3
    finish()
    assert table.as_of("2027-01-01").to_arrow().num_rows == 3


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01"])
def test_text_that_is_no_time_is_refused(text: str):
    table, _ = three_commits()
    with pytest.raises(InvalidInputError):
        table.as_of(text)


def test_replaced_file_groups_are_hidden_only_after_their_replacement():
    table, (_, _, third) = three_commits()
    put(table, WriteOperation.INSERT_OVERWRITE, [row("n", "x", 1, 7)])
    assert rows_of(table, "id") == [("c",), ("n",)]
    old = table.as_of(third.requested_time).to_arrow(columns=["id"])
    assert sorted(old["id"].to_pylist()) == ["a", "b", "c"]


# ---- changes


def changed(table: TableReader, since: str, until: str | None = None) -> list[tuple[str, int]]:
    found = table.changes(since, until, columns=["id", "v"]).read_all()
    return sorted(zip(*(c.to_pylist() for c in found.columns), strict=True))


def test_changes_exclude_the_start_and_include_the_end():
    table, (first, second, third) = three_commits()
    assert changed(table, "earliest") == [("a", 2), ("b", 1), ("c", 3)]
    assert changed(table, "0", first.completion_time) == [("a", 1), ("b", 1)]
    assert changed(table, first.completion_time) == [("a", 2), ("c", 3)]
    assert changed(table, first.completion_time, second.completion_time) == [("a", 2)]
    assert changed(table, third.completion_time) == []


def test_changes_go_by_completion_not_by_request():
    table = new_table()
    upsert(table, [row("a", "x", 1, 1)])
    slow = begun(opened(table), WriteOperation.UPSERT, [row("s", "z", 1, 1)])
    quick = upsert(table, [row("q", "y", 1, 1)])
    late = slow()
    assert late.requested_time < quick.requested_time
    assert changed(table, quick.completion_time) == [("s", 1)]


def test_changes_of_a_range_without_instants_have_the_schema():
    table, (_, _, third) = three_commits()
    reader = table.changes(third.completion_time)
    assert reader.schema.names == ["id", "p", "ts", "v"]
    assert reader.read_all().num_rows == 0


def test_rows_of_an_overwrite_are_changes():
    table, (_, _, third) = three_commits()
    put(table, WriteOperation.INSERT_OVERWRITE, [row("n", "x", 1, 7)])
    assert changed(table, third.completion_time) == [("n", 7)]


def test_the_timeline_lists_every_instant():
    table, results = three_commits()
    entries = table.timeline
    assert [entry.requested_time for entry in entries] == [r.requested_time for r in results]
    assert {(entry.action, entry.state, entry.archived) for entry in entries} == {
        ("commit", "completed", False)
    }
    assert len(table.context.ports.storage.names(TIMELINE)) == 9


def test_batches_of_a_table_are_those_of_its_scan():
    table, _ = three_commits()
    assert pa.Table.from_batches(list(table)).num_rows == 3
