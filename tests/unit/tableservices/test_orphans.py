"""Orphans: only unreferenced files, nothing younger than the horizon or a pending instant."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from filegroups.metadata_table.encode import encode_log_file, encode_records
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.metadata_table.records import FILES, RecordType
from filegroups.table import TableReader
from hoodoo.verify.verify import verify
from tableservices.orphan_files import HORIZON_MS, find_orphans, remove_orphans
from tableservices.restoring.restore import restore
from tests.unit.timeline.engine import (
    StillClock,
    begun,
    data_files,
    new_table,
    opened,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.metadata_tables import FIRST, add_metadata_table
from timeline.codecs.instant_avro import encode_commit
from timeline.errors import InvalidInputError, MetadataTableOnError
from timeline.model.commit_metadata import CommitMetadata, TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE
from timeline.model.instant import Action
from timeline.model.instant_time import WallMs, instant_time
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.properties.properties_file import update_properties
from timeline.storage.local import LocalStorage

COW, MOR = TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ


def old_table(table_type: TableType = COW) -> tuple[TableReader, StillClock]:
    """A table whose one commit is two days old."""
    clock = StillClock()
    table = new_table(MemoryStorage(ports=MemoryWorld(clock)), clock=clock, table_type=table_type)
    upsert(table, [{"id": "k", "p": "p", "ts": 1, "v": 1}])
    return table, clock


def create_file(table: TableReader, clock: StillClock, name: str, *, hours: int = 1) -> str:
    """Create a file in the partition; ``{}`` in its name is the time now; then advance the time."""
    path = f"p/{name.format(instant_time(WallMs(clock.now_ms())))}"
    table.context.ports.storage.create(path, b"data")
    clock.sleep_ms(hours * 3_600_000)
    return path


def found(table: TableReader) -> list[str]:
    return [one.path for one in find_orphans(table.context)]


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_files_without_an_instant_are_found_and_removed(table_type: TableType) -> None:
    table, clock = old_table(table_type)
    clock.sleep_ms(1_000)
    base = create_file(table, clock, "f-0_0-0-0_{}.parquet")
    log = create_file(table, clock, ".f-0_{}.log.1_0-0-0")
    kept = create_file(table, clock, "notes_{}.txt")
    assert found(table) == []
    clock.sleep_ms(HORIZON_MS)
    rows = rows_of(table)
    assert found(table) == [log, base]
    assert [one.path for one in remove_orphans(table.context)] == [log, base]
    assert found(table) == []
    storage = table.context.ports.storage
    assert storage.stat(kept) is not None
    assert storage.stat("p/.hoodie_partition_metadata") is not None
    assert rows_of(table) == rows


def test_nothing_at_or_above_the_oldest_pending_instant_is_an_orphan() -> None:
    table, clock = old_table()
    clock.sleep_ms(1_000)
    below = create_file(table, clock, "f-0_0-0-0_{}.parquet")
    begun(
        opened(table, clock=clock), WriteOperation.UPSERT, [{"id": "x", "p": "p", "ts": 1, "v": 1}]
    )
    clock.sleep_ms(1_000)
    create_file(table, clock, "f-1_0-0-0_{}.parquet")
    clock.sleep_ms(3 * HORIZON_MS)
    assert found(table) == [below]


def test_archived_and_marked_files_are_no_orphans() -> None:
    table, clock = old_table()
    storage = table.context.ports.storage
    storage.create("p/f-0_0-0-0_20200101000000000.parquet", b"archived")
    clock.sleep_ms(1_000)
    marked = create_file(table, clock, "f-1_0-0-0_{}.parquet")
    time = marked.rpartition("_")[2].removesuffix(".parquet")
    storage.create(f".hoodie/.temp/{time}/p/f-1_0-0-0_{time}.parquet.marker.CREATE", b"")
    clock.sleep_ms(3 * HORIZON_MS)
    assert found(table) == []


def test_a_second_base_file_of_a_completed_write_is_an_orphan_its_own_and_logs_are_not() -> None:
    table, clock = old_table()
    (own,) = data_files(table)
    time = own.rpartition("_")[2].removesuffix(".parquet")
    double = create_file(table, clock, f"f-9_0-7-7_{time}.parquet")
    create_file(table, clock, f".f-9_{time}.log.1_0-0-0")
    clock.sleep_ms(3 * HORIZON_MS)
    assert found(table) == [double]


def test_a_file_created_after_the_restore_of_its_instant_is_an_orphan() -> None:
    table, clock = old_table()
    first = table.context.active().completed_writes[0].requested_time
    gone = upsert(table, [{"id": "k", "p": "p", "ts": 2, "v": 2}]).requested_time
    restore(table.context, first)
    late = create_file(table, clock, f"f-9_0-0-0_{gone}.parquet")
    clock.sleep_ms(3 * HORIZON_MS)
    (orphan,) = find_orphans(table.context)
    assert (orphan.path, orphan.why) == (late, f"the instant {gone} was ended")
    assert orphan.age_ms > HORIZON_MS


def test_temporary_files_of_killed_processes_are_deleted_after_the_horizon(tmp_path: Path) -> None:
    clock = StillClock()
    table = new_table(LocalStorage(tmp_path / "t", clock=clock), clock=clock)
    upsert(table, [{"id": "k", "p": "p", "ts": 1, "v": 1}])
    nonce = "0123456789abcdef" * 2
    left = [f".hoodie/timeline/.tmp-{nonce}", f"p/.tmp-{nonce}"]
    others = [f"p/.tmp-{nonce}0", "p/.tmp-notes", f"p/.tmp-{'f' * 32}"]
    for path in (*left, *others):
        (tmp_path / "t" / path).write_bytes(b"half")
        os.utime(tmp_path / "t" / path, (0, 0))
    now_s = clock.now_ms() / 1_000
    os.utime(tmp_path / "t" / others[-1], (now_s, now_s))
    assert found(table) == left
    assert {one.why for one in find_orphans(table.context)} == {
        "a process was killed while it created a file"
    }
    remove_orphans(table.context)
    assert found(table) == []
    assert all((tmp_path / "t" / path).exists() for path in others)


def test_a_short_horizon_and_a_partition_that_is_not_maintained_are_refused() -> None:
    table, _ = old_table()
    with pytest.raises(InvalidInputError, match="silent"):
        find_orphans(table.context, horizon_ms=60_000)
    listed = {"hoodie.table.metadata.partitions": "files,expr_index_upper"}
    update_properties(table.context.ports.storage, listed, now="now")
    with pytest.raises(MetadataTableOnError):
        find_orphans(table.context)


def list_in_metadata_table(table: TableReader, *paths: str) -> None:
    """List files as Java's rebuild does, which takes every file of the folders."""
    time = f"{FIRST[:-1]}1"
    rows = [
        {"key": folder, "name": name, "size": 4, "is_deleted": False}
        for folder, _, name in (path.rpartition("/") for path in paths)
    ]
    entries = encode_records(pa.Table.from_pylist(rows, FILES), RecordType.FILES, table_version=9)
    data = encode_log_file("files", time, table_version=9, created_ms=0, entries=entries)
    storage = table.context.ports.storage
    storage.create(f"{METADATA_TABLE}/files/.files-0000-0_{time}.log.1_0-0-0", data)
    for ending in ("requested", "inflight"):
        storage.create(f"{METADATA_TIMELINE}/{time}.deltacommit.{ending}", b"")
    body = encode_commit(CommitMetadata())
    storage.create(f"{METADATA_TIMELINE}/{time}_{time}.deltacommit", body)


@pytest.mark.spec("MDT-16")
def test_orphan_files_that_the_metadata_table_lists_leave_it_by_a_clean() -> None:
    clock = StillClock()
    table = new_table(MemoryStorage(ports=MemoryWorld(clock)), clock=clock)
    storage = table.context.ports.storage
    add_metadata_table(storage, "files", "column_stats")
    table = opened(table, clock=clock)
    first = upsert(table, [{"id": "k", "p": "p", "ts": 1, "v": 1}]).requested_time
    clock.sleep_ms(1_000)
    listed = create_file(table, clock, "f-0_0-0-0_{}.parquet")
    other = create_file(table, clock, "f-1_0-0-0_{}.parquet")
    list_in_metadata_table(table, listed)
    upsert(table, [{"id": "k", "p": "p", "ts": 2, "v": 2}])
    clock.sleep_ms(HORIZON_MS)
    assert found(table) == [listed, other]
    rows = rows_of(table)
    remove_orphans(table.context)
    assert found(table) == []
    metadata = open_metadata_table(storage, table.config, table.context.snapshot())
    assert metadata is not None
    assert metadata.lag.is_trusted
    names = set(metadata.files_of(["p"]).column("name").to_pylist())
    assert names == {path.rpartition("/")[2] for path in data_files(table)}
    assert rows_of(table) == rows
    [clean] = [one for one in table.context.active().instants if one.action is Action.CLEAN]
    assert clean.completed
    assert verify(table.context).problems == ()
    restore(table.context, first)  # the clean retains every state
    assert rows_of(table, "v") == [(1,)]


@pytest.mark.spec("MDT-16")
def test_an_orphan_file_that_the_metadata_table_does_not_list_needs_no_instant() -> None:
    table, clock = old_table()
    add_metadata_table(table.context.ports.storage)
    clock.sleep_ms(1_000)
    path = create_file(table, clock, "f-0_0-0-0_{}.parquet")
    clock.sleep_ms(HORIZON_MS)
    before = table.context.active().file_names
    assert [one.path for one in remove_orphans(table.context)] == [path]
    assert table.context.active().file_names == before
