"""The data files of a table: duplicates are resolved, and other files are ignored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from filegroups.reading.file_system_view import FileSystemView
from filegroups.table import TableReader
from tests.unit.timeline.engine import data_files, new_table, put, rows_of, upsert
from tests.unit.timeline.memory import MemoryStorage
from timeline.archived import ArchivedTimes
from timeline.errors import CorruptTableError, MissingFileError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import instant_file_name, parse_base_file_name, timeline_path
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot

MARK = ".hoodie_partition_metadata"


def written() -> TableReader:
    table = new_table()
    upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}, {"id": "b", "p": "y", "ts": 1, "v": 1}])
    return table


def twin_of(table: TableReader, path: str, token: str) -> str:
    folder, _, name = path.rpartition("/")
    parsed = parse_base_file_name(name)
    twin = f"{folder}/{parsed.file_id}_{token}_{parsed.requested_time}.parquet"
    storage = table.context.ports.storage
    storage.create(twin, storage.read(path))
    return twin


def test_of_two_files_of_one_instant_the_one_in_its_metadata_counts():
    table = written()
    [path] = [each for each in data_files(table) if each.startswith("x/")]
    twin_of(table, path, "9-9-9")
    assert [one.base_file.path for one in table.file_slices(["x"])] == [path]
    assert rows_of(table, "id") == [("a",), ("b",)]


def test_two_files_of_one_instant_that_its_metadata_does_not_distinguish_are_refused():
    table = written()
    [path] = [each for each in data_files(table) if each.startswith("x/")]
    twin_of(table, path, "9-9-9")
    twin_of(table, path, "8-8-8")
    table.context.ports.storage.delete(path)
    with pytest.raises(CorruptTableError) as caught:
        table.file_slices(["x"])
    assert "9-9-9" in caught.value.message


def test_files_that_follow_no_grammar_are_ignored():
    table = written()
    storage = table.context.ports.storage
    for name in ("x/notes.parquet", "x/.hidden", "x/part-0000.snappy.parquet"):
        storage.create(name, b"")
    assert rows_of(table, "id") == [("a",), ("b",)]


def test_replaced_groups_are_listed_when_the_cleaner_requests_them():
    table = written()
    put(table, WriteOperation.INSERT_OVERWRITE, [{"id": "n", "p": "x", "ts": 1, "v": 1}])
    storage, snapshot = table.context.ports.storage, table.context.snapshot()
    shown = FileSystemView(storage=storage, snapshot=snapshot)
    everything = FileSystemView(storage=storage, snapshot=snapshot, include_replaced=True)
    assert (len(shown.slices("x")), len(everything.slices("x"))) == (1, 2)


def test_every_version_of_a_file_group_is_a_slice():
    table = written()
    for number in (2, 3):
        upsert(table, [{"id": "a", "p": "x", "ts": number, "v": number}])
    [slices] = table.view.slices("x").values()
    assert len(slices) == 3
    assert table.view.latest_slice(slices[0].file_group) == slices[-1]
    assert [one.base_instant_time for one in slices] == sorted(
        one.base_instant_time for one in slices
    )


def test_instants_below_the_timeline_count_as_committed():
    table = written()
    upsert(table, [{"id": "b", "p": "y", "ts": 2, "v": 2}])
    storage = table.context.ports.storage
    first = table.context.active().completed_writes[0]
    for name in storage.names(".hoodie/timeline"):
        if name.startswith(first.requested_time):
            storage.delete(timeline_path(name))  # as archiving does
    assert rows_of(table, "id") == [("a",), ("b",)]


def test_an_instant_removed_during_a_read_is_reported():
    table = written()
    [instant] = table.context.active().completed_writes
    table.context.ports.storage.delete(timeline_path(instant_file_name(instant)))
    with pytest.raises(MissingFileError):
        CommitReader(table.context.ports.storage).read(instant)


def test_metadata_read_once_is_kept():
    table = written()
    [instant] = table.context.active().completed_writes
    first = table.context.commits.read(instant)
    table.context.ports.storage.delete(timeline_path(instant_file_name(instant)))
    assert table.context.commits.read(instant) is first


T1, T3, T5, T9, T20 = (f"202601010000000{number:02}" for number in (1, 3, 5, 9, 20))


def sliced(as_of: str | None, *instants: str, history: Any = None) -> list[tuple[Any, ...]]:
    """Return the slices of a file group with base files of t1 and t9 and logs of t3 and t5."""
    storage = MemoryStorage()
    for name in (MARK, f"g-0_0-0-0_{T1}.parquet", f"g-0_0-0-0_{T9}.parquet"):
        storage.create(name, b"x")
    for time in (T3, T5):
        storage.create(f".g-0_{time}.log.1_0-0-0", b"x")
    active = ActiveTimeline.of(instants)
    commits = CommitReader(storage)
    snapshot = Snapshot(active=active, head=0, commits=commits, as_of=as_of, history=history)
    view = FileSystemView(storage=storage, snapshot=snapshot)
    return [
        (one.base_instant_time, [log.instant_time for log in one.log_files])
        for slices in view.slices("").values()
        for one in slices
    ]


WRITES = (
    f"{T1}_20260101000000002.deltacommit",
    f"{T3}_{T20}.deltacommit",  # began before t9, completed after it
    f"{T5}_20260101000000006.deltacommit",
    f"{T9}_20260101000000010.commit",
)


def test_a_log_that_completed_after_a_base_file_was_requested_is_on_top_of_it():
    assert sliced(None, *WRITES) == [(T1, [T5]), (T9, [T3])]


def test_a_log_in_the_slice_of_a_later_base_file_is_invisible_before_it():
    assert sliced(T5, *WRITES) == [(T1, [T5])]
    assert sliced("20260101000000004", *WRITES) == [(T1, [])]
    assert sliced(T9, *WRITES) == [(T1, [T5]), (T9, [T3])]


def archived(completions: dict[str, str]) -> Any:
    return SimpleNamespace(times=lambda: ArchivedTimes(completions))


@pytest.mark.spec("GC-7")
def test_files_below_the_timeline_count_when_the_archive_knows_them():
    """T3 was rolled back; its writer resumed after the commits around it were archived."""
    known = {T1: "20260101000000002", T5: "20260101000000006"}
    assert sliced(None, WRITES[3], history=archived(known)) == [(T1, [T5]), (T9, [])]
    assert sliced(None, WRITES[3], history=archived({T5: known[T5]})) == [
        (T1, [T5]),
        (T9, [T3]),
    ], "the archive does not list instants before its oldest one"
    assert sliced(None, WRITES[3], history=archived({"0": "0"})) == [(T9, [])]


def test_the_archive_is_not_read_for_instants_of_the_active_timeline():
    assert sliced(None, *WRITES, history=None) == sliced(None, *WRITES, history=SimpleNamespace())


def test_logs_of_archived_instants_are_sliced_by_their_completion_time():
    archive = archived({T3: "20260101000000004", T5: "20260101000000006"})
    assert sliced(None, WRITES[3], history=archive) == [(T1, [T3, T5]), (T9, [])]
    # Its time is unknown, so it counts as the newest.
    assert sliced(None, WRITES[3]) == [(T1, []), (T9, [T3, T5])]
