"""Log compaction of the metadata table changes nothing that a reader sees (MDT-17)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.metadata_table.merge import live_files, merge_layers, merge_logs
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.metadata_table.records import COLUMN_STATS, FILES, RECORD_INDEX
from filegroups.table import TableReader
from tableservices.archiving.plan import ArchivingSettings
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tableservices.metadata_table import execute
from tableservices.metadata_table.execute import (
    CheckBackoff,
    MetadataServiceResult,
    idle_reason_of,
    maintain_metadata_table,
)
from tableservices.metadata_table.plan import (
    MetadataServiceSettings,
    pending_compactions,
    read_metadata_timeline,
)
from tableservices.restoring.restore import restore
from tableservices.restoring.rollback import rollback_write
from tests.unit.filegroups.writing.test_metadata_update import KEYS, rows
from tests.unit.tableservices.metadata_table.test_services import (
    LONG_MS,
    Mortal,
    metadata_table,
)
from tests.unit.tableservices.restoring.test_metadata_removal import (
    INDEXES,
    MOR,
    SECONDARY,
    act,
    check,
    indexed,
)
from tests.unit.timeline.engine import BRISK, StillClock, new_table, opened, put
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.metadata_tables import add_metadata_table
from timeline.codecs.instant_avro import decode_commit, encode_compaction_plan
from timeline.commit.apply import metadata_plan_path
from timeline.errors import ServiceConflictError, SnapshotExpiredError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE, TIMELINE
from timeline.model.instant import Action
from timeline.model.metadata_table import METADATA_TIMELINE, parse_metadata_file_name
from timeline.model.plans import CompactionPlan
from timeline.properties.setting_enums import ForeignWriters

LOGS = MetadataServiceSettings(commits_max=1_000, log_compaction=True, log_blocks_min=3)
FEW = ArchivingSettings(commits_kept_min=2, commits_kept_max=3)
SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)


def merged(table: TableReader, settings: MetadataServiceSettings = LOGS) -> Any:
    return maintain_metadata_table(table.context, settings, FEW)


def compacted(table: TableReader) -> MetadataServiceResult | None:
    return maintain_metadata_table(table.context, LOGS, FEW, now=True)


def contents(table: TableReader) -> dict[str, Any]:
    """Return every record of the metadata table, without tombstones, which readers ignore."""
    found = metadata_table(table)
    return {
        name: [
            row
            for one in found.read(name)
            for row in (live_files(one) if name == "files" else one).to_pylist()
        ]
        for name in found.partitions
    }


def written(table: TableReader, times: int = 4) -> TableReader:
    for value in range(times):
        put(table, WriteOperation.UPSERT, rows(KEYS[value : value + 3], value))
    return table


def logs_of(table: TableReader, partition: str) -> list[str]:
    names = table.context.ports.storage.names(f"{METADATA_TABLE}/{partition}")
    return [name for name in names if ".log." in name]


# ---- A reader sees the same


@pytest.mark.spec("MDT-17")
@pytest.mark.parametrize(("table_type", "version"), [(TableType.COPY_ON_WRITE, 8), (MOR, 9)])
@pytest.mark.parametrize("seed", range(2))
def test_a_reader_sees_the_same_records_before_and_after(
    table_type: TableType, version: int, seed: int
) -> None:
    chance = random.Random(f"{table_type} {version} {seed}")
    table = indexed(table_type, version=version)
    put(table, WriteOperation.UPSERT, rows(KEYS[:4], 0))
    found: list[Any] = []
    works = ["upsert"] * 3 + ["delete", "overwrite", "compact", "cluster", "clean"]
    for value in range(1, 16):
        work = chance.choice(works)
        if work == "clean":
            clean(table.context, CleaningSettings(commits_retained=1))
        else:
            act(table, work, chance.sample(KEYS, 3), value)
        before = contents(table)
        result = compacted(table) if value % 7 == 0 else merged(table)
        found += [] if result is None else [result.action]
        assert contents(table) == before
        check(table)
    assert found.count(Action.LOGCOMPACTION) > 1
    assert found.count(Action.COMPACTION) == 2


@pytest.mark.spec("MDT-17")
def test_one_block_replaces_the_logs_of_each_kind_and_is_replaced_in_turn() -> None:
    table = written(indexed())
    put(table, WriteOperation.DELETE, rows(KEYS[:2], 9))
    before = contents(table)
    first = merged(table)
    assert first is not None
    assert first.action is Action.LOGCOMPACTION
    assert first.file_groups == len(INDEXES)
    assert contents(table) == before
    found = metadata_table(table)
    for name in INDEXES:
        (one,) = found.slices(name).values()
        merged_logs = found.merged_logs(name, one)
        assert merged_logs.times == (first.requested_time,), name
    path = f"{METADATA_TIMELINE}/{first.requested_time}_{first.completion_time}.deltacommit"
    done = decode_commit(table.context.ports.storage.read(path), path=path)
    assert done.operation_type == "LOG_COMPACT"
    for value in range(10, 13):
        put(table, WriteOperation.UPSERT, rows(KEYS[value - 8 : value - 5], value))
    before = contents(table)
    second = merged(table)
    assert second is not None
    assert contents(table) == before
    # The file of the first one, and the three above it.
    assert second.log_files == 4 * second.file_groups
    assert second.file_groups >= 4
    check(table)


@pytest.mark.spec("MDT-17")
def test_a_later_compaction_merges_it_and_the_old_files_go() -> None:
    clock = StillClock()
    table = new_table(MemoryStorage(ports=MemoryWorld(clock)), clock=clock)
    add_metadata_table(table.context.ports.storage, "files", "record_index")
    table = written(opened(table, clock=clock))
    result = merged(table)
    assert result is not None
    before = contents(table)
    assert compacted(table) is not None
    assert contents(table) == before
    (one,) = metadata_table(table).slices("record_index").values()
    assert one.base_file is not None
    assert not one.log_files
    for value in range(2):
        clock.sleep_ms(LONG_MS)
        put(table, WriteOperation.UPSERT, rows(KEYS, value))
        assert compacted(table) is not None
    assert not [name for name in logs_of(table, "files") if result.requested_time in name]


# ---- When it runs


@pytest.mark.spec("MDT-17")
def test_it_runs_from_the_threshold_on_and_only_if_it_is_switched_on() -> None:
    table = written(indexed(), 2)  # the metadata table was built by one more delta commit
    few = replace_settings(LOGS, log_blocks_min=4)
    assert merged(table, few) is None
    put(table, WriteOperation.UPSERT, rows(KEYS[:3], 3))
    assert merged(table, replace_settings(few, log_compaction=False)) is None
    assert merged(table, few) is not None
    assert merged(table, few) is None


def replace_settings(settings: MetadataServiceSettings, **given: Any) -> MetadataServiceSettings:
    return settings.model_copy(update=given)


@pytest.mark.spec("MDT-17")
def test_a_due_compaction_goes_first() -> None:
    table = written(indexed())
    result = merged(table, replace_settings(LOGS, commits_max=4))
    assert result is not None
    assert result.action is Action.COMPACTION
    assert merged(table) is None


def test_a_writer_checks_again_when_a_log_compaction_may_be_due() -> None:
    table = indexed()
    backoff = CheckBackoff()
    maintain_metadata_table(table.context, LOGS, FEW, backoff=backoff)
    assert backoff.from_slot == table.context.commit_log.known_head + 2


@pytest.mark.spec("MDT-17")
def test_a_file_group_with_few_logs_keeps_them() -> None:
    table = written(indexed())
    assert merged(table) is not None
    for value in range(5, 8):  # no key is new or moves
        put(table, WriteOperation.UPSERT, rows(KEYS[:3], value))
    result = merged(table)
    assert result is not None
    assert not [name for name in logs_of(table, "record_index") if result.requested_time in name]
    assert [name for name in logs_of(table, "files") if result.requested_time in name]
    check(table)


@pytest.mark.spec("MDT-17")
def test_a_pending_write_holds_it() -> None:
    table = written(indexed())
    storage = table.context.ports.storage
    path = f"{TIMELINE}/{int(table.context.active().newest_time or '') + 1}.commit.requested"
    storage.create(path, b"")
    assert merged(opened(table)) is None
    assert "waits until no instant is pending" in idle_reason_of(table.context, LOGS)
    storage.delete(path)
    assert merged(opened(table)) is not None


@pytest.mark.spec("MDT-17")
def test_a_write_that_appeared_below_the_plan_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(indexed())
    storage, before = table.context.ports.storage, contents(table)
    newest, merge = int(table.context.active().newest_time or ""), execute.merge_files

    def late(*given: Any) -> Any:
        assert str(newest + 1) < given[3].requested_time
        storage.create(f"{TIMELINE}/{newest + 1}.commit.requested", b"")
        return merge(*given)

    monkeypatch.setattr(execute, "merge_files", late)
    assert merged(table) is None
    own = read_metadata_timeline(storage)
    assert not pending_compactions(own)
    assert not [one for one in own.instants if one.action is Action.LOGCOMPACTION]
    assert contents(table) == before
    assert all(len(logs_of(table, name)) <= 5 for name in INDEXES)


# ---- Restores, rollbacks and readers of an older moment


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize("table_type", [TableType.COPY_ON_WRITE, MOR])
@pytest.mark.parametrize("is_rollback", [True, False])
def test_a_restore_or_a_rollback_takes_merged_writes_out_again(
    table_type: TableType, is_rollback: bool
) -> None:
    table, times = indexed(table_type), []
    for value in range(4):
        operation = WriteOperation.DELETE if value == 2 else WriteOperation.UPSERT
        keys = [KEYS[value], KEYS[value + 1], KEYS[value + 3]]
        times.append(put(table, operation, rows(keys, value)).requested_time)
    assert merged(table) is not None
    if is_rollback:
        rollback_write(table.context, times[3])
    else:
        restore(table.context, times[0])
    check(table)
    written(table)
    assert merged(table) is not None
    check(table)


@pytest.mark.spec("MDT-12")
def test_a_restore_is_refused_while_another_process_may_complete_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = written(indexed())
    time = table.context.active().completed_writes[0].requested_time

    def dies(*_given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "merge_files", dies)
    with pytest.raises(KeyboardInterrupt):
        merged(table)
    monkeypatch.undo()
    with pytest.raises(ServiceConflictError) as refused:
        restore(table.context, time)
    assert refused.value.kind == "metadata_compaction_pending"
    storage = table.context.ports.storage
    [pending] = pending_compactions(read_metadata_timeline(storage))
    restore(opened(table, limits=SHARED).context, time)  # under the lock it is ended
    assert not pending_compactions(read_metadata_timeline(storage))
    assert storage.stat(metadata_plan_path(pending.requested_time, pending.action)) is None
    check(table)


@pytest.mark.spec("MDT-17")
def test_an_older_snapshot_does_not_look_up_keys_in_it() -> None:
    table = written(indexed())
    old = table.context.snapshot()
    written(table)
    assert merged(table) is not None
    found = open_metadata_table(table.context.ports.storage, table.config, old)
    assert found is not None
    assert found.is_newer
    with pytest.raises(SnapshotExpiredError):
        list(found.read("record_index"))
    assert list(found.read("files"))


# ---- Crashes and other engines


def dies_at(call: int, foreign_writers: ForeignWriters, *, after: bool) -> bool:
    """Let the service die at a call; return False if it makes fewer calls."""
    clock = StillClock()
    table = new_table(MemoryStorage(ports=MemoryWorld(clock)), clock=clock)
    add_metadata_table(table.context.ports.storage, *(set(INDEXES) - {SECONDARY.name}))
    table = written(opened(table, clock=clock))
    before, died = contents(table), False
    limits = replace(BRISK, foreign_writers=foreign_writers)
    mortal = Mortal(table.context.ports.storage, call, after=after)
    try:
        merged(opened(table, storage=mortal, clock=clock, limits=limits))
    except KeyboardInterrupt:
        died = True
    assert contents(table) == before
    clock.sleep_ms(LONG_MS)
    other = opened(table, clock=clock, limits=limits)
    put(other, WriteOperation.UPSERT, rows(KEYS, 9))
    put(other, WriteOperation.DELETE, rows(KEYS[:1], 10))
    before = contents(other)
    merged(other)
    assert contents(other) == before
    own = read_metadata_timeline(other.context.ports.storage)
    assert not pending_compactions(own)
    done = {one.requested_time for one in own.instants if one.completed}
    found = [parse_metadata_file_name(name) for part in INDEXES for name in logs_of(other, part)]
    assert {one[1] for one in found if one} <= done, "files of a plan that ended"
    assert compacted(other) is not None
    assert contents(other) == before
    return died


@pytest.mark.spec("MDT-17")
@pytest.mark.parametrize(
    ("foreign_writers", "after"), [(ForeignWriters.NONE, True), (ForeignWriters.EXPECTED, False)]
)
def test_a_crash_at_any_call_changes_nothing_that_a_reader_sees(
    foreign_writers: ForeignWriters, after: bool
) -> None:
    call = 1
    while dies_at(call, foreign_writers, after=after):
        call += 1
    assert call > 8


def planned_by_java(table: TableReader) -> str:
    time = f"{int(read_metadata_timeline(table.context.ports.storage).newest_time or '') + 1}"
    plan = encode_compaction_plan(CompactionPlan(operations=()))
    table.context.ports.storage.create(metadata_plan_path(time, Action.LOGCOMPACTION), plan)
    return time


@pytest.mark.spec("MDT-17")
def test_beside_java_its_pending_log_compaction_is_left_alone() -> None:
    table = opened(written(indexed()), limits=SHARED)
    time = planned_by_java(table)
    assert merged(table) is None
    assert compacted(table) is None, "its log file would be above the base files"
    assert table.context.ports.storage.stat(metadata_plan_path(time, Action.LOGCOMPACTION))


@pytest.mark.spec("MDT-17")
def test_a_log_compaction_that_java_left_is_deleted() -> None:
    clock = StillClock()
    table = new_table(MemoryStorage(ports=MemoryWorld(clock)), clock=clock)
    add_metadata_table(table.context.ports.storage, "files", "record_index")
    table = written(opened(table, clock=clock))
    time = planned_by_java(table)
    assert merged(table) is None
    clock.sleep_ms(LONG_MS)
    assert merged(table) is None
    assert not table.context.ports.storage.stat(metadata_plan_path(time, Action.LOGCOMPACTION))
    assert merged(table) is not None


def test_beside_java_all_of_it_happens_under_the_lock() -> None:
    table = opened(written(indexed()), limits=SHARED)
    before = contents(table)
    assert merged(table) is not None
    assert contents(table) == before
    check(table)


# ---- The merged layer has the effect of the layers


def files(*entries: tuple[str, str, int]) -> pa.Table:
    """Size 0 is a tombstone."""
    columns = [*zip(*entries, strict=True)] if entries else [(), (), ()]
    gone = [not size for size in columns[2]]
    return pa.table([*map(list, columns), gone], schema=FILES)


X, Y, Z = "p", "q", "r"
KEY = pa.array([X])


@pytest.mark.parametrize(
    ("base", "layers"),
    [
        (files((X, "a", 5)), [files((X, "a", 7)), files((X, "a", 0))]),
        (files(), [files((X, "a", 7)), files((X, "a", 0))]),
        (files((X, "a", 5), (X, "b", 1)), [files((X, "a", 0)), files((X, "a", 3))]),
        (files((X, "a", 5), (Y, "b", 1)), [KEY, files((Z, "c", 2))]),
        (files((X, "a", 5)), [KEY, files((X, "c", 2)), files((X, "c", 0), (X, "d", 1))]),
        (files((X, "a", 0)), [files((X, "a", 4)), files((X, "b", 0))]),
    ],
)
def test_merged_logs_of_files_leave_the_same_list(base: pa.Table, layers: list[Any]) -> None:
    records, deletes = merge_logs(layers, FILES, base)
    expected = live_files(merge_layers([base, *layers], FILES))
    for times in (1, 2):  # a reader of Java reads the replaced blocks, too
        above = [*(layers if times == 2 else []), deletes, records]
        found = live_files(merge_layers([base, *above], FILES))
        assert found.to_pylist() == expected.to_pylist()


def test_a_file_that_came_and_went_leaves_no_tombstone() -> None:
    layers = [files((X, "a", 7), (X, "b", 1)), files((X, "a", 0))]
    records, _ = merge_logs(layers, FILES, files())
    assert records.to_pylist() == files((X, "b", 1)).to_pylist()


def stats(key: str, least: int, greatest: int, **given: Any) -> pa.Table:
    bound = {"LongWrapper": least}, {"LongWrapper": greatest}
    row = {
        "key": key,
        "file_name": "f",
        "column_name": "v",
        "min": bound[0],
        "max": bound[1],
        "value_count": 2,
        "null_count": 1,
        "total_size": 0,
        "total_uncompressed_size": 0,
        "is_deleted": False,
        "is_tight": False,
        "value_type": 4,
        "additional_info": "",
    }
    return pa.Table.from_pylist([row | given], schema=COLUMN_STATS)


@pytest.mark.parametrize(
    "layers",
    [
        [stats("k", 1, 2), stats("k", 0, 1)],
        [stats("k", 1, 2, is_deleted=True), stats("k", 7, 8)],
        [pa.array(["k"]), stats("k", 7, 8), stats("l", 7, 8)],
        [stats("k", 7, 8), stats("k", 1, 2, is_deleted=True)],
        [stats("k", 7, 8, is_tight=True), stats("k", 5, 6)],
        [stats("k", 7, 8), pa.array(["k"])],
    ],
)
def test_merged_logs_of_statistics_have_the_effect_of_all(layers: list[Any]) -> None:
    base = stats("k", 4, 5)
    records, deletes = merge_logs(layers, COLUMN_STATS, base)
    found = merge_layers([base, deletes, records], COLUMN_STATS)
    expected = merge_layers([base, *layers], COLUMN_STATS)
    assert found.to_pylist() == expected.to_pylist()
    again = merge_layers([base, *layers, deletes, records], COLUMN_STATS)  # as Java reads it
    bounds = ["key", "min", "max"]
    assert again.select(bounds).to_pylist() == expected.select(bounds).to_pylist()


def places(**file_ids: str) -> pa.Table:
    found = [
        {"key": key, "partition_path": "p", "file_id": file_id, "instant_ms": 1}
        for key, file_id in file_ids.items()
    ]
    return pa.Table.from_pylist(found, schema=RECORD_INDEX)


def test_merged_logs_of_a_record_index_have_the_newest_place_of_each_key() -> None:
    base = places(a="f1", b="f1", c="f1")
    layers = [places(a="f2", d="f2"), pa.array(["b", "d", "a"]), places(a="f3")]
    records, deletes = merge_logs(layers, RECORD_INDEX, base)
    assert records.to_pylist() == places(a="f3").to_pylist()
    assert set(deletes.to_pylist()) == {"a", "b", "d"}
    for below in ([base], [base, *layers]):  # Java reads the replaced blocks, too
        found = merge_layers([*below, deletes, records], RECORD_INDEX)
        assert found.to_pylist() == places(a="f3", c="f1").to_pylist()
