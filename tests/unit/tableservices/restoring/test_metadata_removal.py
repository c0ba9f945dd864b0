"""After a restore or rollback the metadata table has what the table has, and nothing else (MDT-12)."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.metadata_table.index_definitions import IndexDefinition, write_index_definitions
from filegroups.metadata_table.keys import IndexVersion, split_secondary_keys
from filegroups.metadata_table.new_partitions import MetadataTableSettings
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.reading.scan import view_of
from filegroups.table import TableReader
from tableservices.archiving.plan import ArchivingSettings
from tableservices.clustering.execute import execute_clustering, schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.metadata_table.build import build_partitions
from tableservices.metadata_table.execute import maintain_metadata_table
from tableservices.metadata_table.plan import MetadataServiceSettings
from tableservices.restoring.restore import finish_restore, restore
from tableservices.restoring.rollback import rollback_write
from tableservices.restoring.savepoints import delete_savepoint, savepoint
from tableservices.ttl.execute import TtlSettings, expire
from tests.unit.filegroups.writing.test_metadata_update import check as check_listing
from tests.unit.filegroups.writing.test_metadata_update import metadata_of, rows
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Behind,
    StillClock,
    data_files,
    files_below,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.metadata_tables import (
    PARTITIONS,
    add_metadata_table,
    compact_metadata_table,
)
from timeline.codecs.instant_avro import encode_restore_plan
from timeline.errors import InvalidInputError, ServiceConflictError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import METADATA_TABLE, data_file_time, timeline_path
from timeline.model.file_slice import FileSlice
from timeline.model.instant import Action
from timeline.model.instant_time import WallMs, instant_time, wall_ms
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.plans import InstantInfo, RestorePlan
from timeline.model.slot import SlotKind
from timeline.properties.properties_file import update_properties
from timeline.properties.setting_enums import ForeignWriters
from timeline.system import SystemClock

SECONDARY = IndexDefinition(
    name="secondary_index_v",
    index_type="secondary_index",
    source_fields=("v",),
    version=IndexVersion.V2,
)
INDEXES = (
    *("bloom_filters", "column_stats", "files", "partition_stats", "record_index"),
    SECONDARY.name,
)
COW, MOR = TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ
SORTING = ClusteringSettings(sort_columns=("v",))
KEYS = [f"k{number}" for number in range(9)]


def indexed(table_type: TableType = COW, *, version: int = 9) -> TableReader:
    table = new_table(version=version, table_type=table_type)
    write_index_definitions(table.context.ports.storage, [SECONDARY])
    add_metadata_table(table.context.ports.storage, *INDEXES)
    return opened(table)


def check(table: TableReader) -> None:
    """Compare the whole metadata table with the folders and the rows."""
    table = opened(table)
    check_listing(table)
    context = table.context
    metadata = open_metadata_table(context.ports.storage, table.config, context.snapshot())
    assert metadata is not None
    values, keys = split_secondary_keys(
        pa.concat_tables(metadata.read(SECONDARY.name)).column("key"), path=""
    )
    pairs = list(zip(values.to_pylist(), keys.to_pylist(), strict=True))
    expected = [(str(v), key) for v, key in rows_of(table, "v", "_hoodie_record_key")]
    assert sorted(pairs) == sorted(expected)
    blooms = pa.concat_tables(metadata.read("bloom_filters"))
    bases = [
        name
        for name in metadata.files_of(metadata.partition_paths()).column("name").to_pylist()
        if name.endswith(".parquet")
    ]
    assert blooms.num_rows == len(bases)


def act(table: TableReader, work: str, keys: list[str], value: int, *, kept: str = "") -> None:
    if work == "compact" and table.config.table_type is MOR:
        plan = schedule_compaction(table.context, CompactionSettings(), files=SMALL)
        if plan is not None:
            execute_compaction(table.context, plan, SMALL)
    elif work == "cluster":
        clustering = schedule_clustering(table.context, SORTING)
        if clustering is not None:
            execute_clustering(table.context, clustering, SORTING, SMALL)
    elif work == "delete":
        put(table, WriteOperation.DELETE, rows(keys, value))
    elif work == "overwrite":
        put(table, WriteOperation.INSERT_OVERWRITE, rows(keys, value))
    elif work == "rollback":
        newest = table.context.active().newest_completed_write
        assert newest is not None
        with suppress(InvalidInputError):  # it is not the last one to begin
            if newest.requested_time != kept:
                rollback_write(table.context, newest.requested_time)
    elif work == "metadata":
        maintain_metadata_table(table.context, MetadataServiceSettings(), FEW, now=True)
    elif work == "build":
        again = ["record_index"]
        build_partitions(table.context, again, MetadataTableSettings(), again=again)
    else:
        put(table, WriteOperation.UPSERT, rows(keys, value))


OTHER = ["delete", "overwrite", "compact", "cluster", "rollback", "metadata", "build"]
WORKS = ["upsert"] * 3 + OTHER
FEW = ArchivingSettings(commits_kept_min=2, commits_kept_max=3)


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize(
    ("table_type", "version", "seed"),
    [
        (COW, 8, 0),
        (MOR, 9, 0),
        *(
            pytest.param(table_type, version, seed, marks=pytest.mark.slow)
            for table_type in (COW, MOR)
            for version in (8, 9)
            for seed in range(1, 6)
        ),
    ],
)
def test_a_restore_leaves_the_metadata_table_with_exactly_what_the_table_has(
    table_type: TableType, version: int, seed: int
) -> None:
    chance = random.Random(f"{table_type} {version} {seed}")
    table = indexed(table_type, version=version)
    for turn in range(3):
        first = put(table, WriteOperation.UPSERT, rows(chance.sample(KEYS, 3), 10 * turn))
        for value in range(1, chance.randint(1, 3)):
            work, keys = chance.choice(WORKS), chance.sample(KEYS, 2)
            act(table, work, keys, 10 * turn + value, kept=first.requested_time)
        target = table.context.active().newest_completed_write
        assert target is not None
        kept = rows_of(table, "id", "v")
        for value in range(3, 3 + chance.randint(1, 4)):
            work, keys = chance.choice(WORKS), chance.sample(KEYS, 3)
            act(table, work, keys, 10 * turn + value, kept=target.requested_time)
        check(table)
        restore(table.context, target.requested_time)
        assert rows_of(table, "id", "v") == kept
        check(table)


# ---- Crashes


class Dying(Behind):
    """A storage that crashes before the n-th change."""

    def __init__(self, inner: Any, lives: int) -> None:
        super().__init__(inner)
        self.lives = lives

    def _change(self) -> None:
        if self.lives == 0:
            raise KeyboardInterrupt
        self.lives -= 1

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._change()
        self.inner.create(path, data, durable=durable)

    def delete(self, path: str) -> None:
        self._change()
        self.inner.delete(path)


class ListedByMetadata:
    """The list of files that a reader of the metadata table sees, whatever it knows of restores."""

    def __init__(self, metadata: MetadataTable) -> None:
        self.metadata = metadata

    def partition_paths(self) -> list[str]:
        return self.metadata.partition_paths()

    def files(self, partition_paths: Any) -> Any:
        return self.metadata.files_of(partition_paths)


def copied(table: TableReader) -> TableReader:
    """Copy a table in the order of names, so no instant is older than those that built the index."""
    clock = StillClock(SystemClock().now_ms())
    storage = MemoryStorage(ports=MemoryWorld(clock))
    for path in files_below(table.context.ports.storage):
        clock.sleep_ms(1)
        storage.create(path, table.context.ports.storage.read(path))
    return opened(table, storage=storage)


def later(time: str, duration_ms: int) -> str:
    """Return an instant time some milliseconds later."""
    return instant_time(WallMs(wall_ms(time) + duration_ms))


def history(
    table: TableReader, *, merged: int, table_type: TableType = COW
) -> tuple[list[str], dict[str, Any]]:
    """Write four times, compact the metadata table after the first ones; return times and rows."""
    states: dict[str, Any] = {}
    times = []
    for number in range(4):
        keys = [f"k{number}", f"k{number + 1}", f"k{number + 3}"]
        operation = WriteOperation.DELETE if number == 2 else WriteOperation.UPSERT
        times.append(put(table, operation, rows(keys, number)).requested_time)
        states[times[-1]] = sorted(rows_of(table, "id", "p"))
        if merged == number + 1:
            compact_metadata_table(table.context)
    return times, states


def check_moment(table: TableReader, states: dict[str, Any]) -> None:
    """A reader of the metadata table sees what the timeline shows: slices, and keys if it may."""
    context, snapshot = table.context, table.context.snapshot()
    metadata = open_metadata_table(context.ports.storage, table.config, snapshot)
    assert metadata is not None
    assert not metadata.lag.unknown
    assert not metadata.lag.behind
    by_folder, by_metadata = view_of(context, snapshot), view_of(context, snapshot)
    by_metadata.by_metadata = ListedByMetadata(metadata)  # type: ignore[assignment]
    assert names(by_metadata.latest_slices()) == names(by_folder.latest_slices())
    if not metadata.lag.removing:
        newest = snapshot.active.newest_completed_write
        index = pa.concat_tables(metadata.read("record_index")).to_pylist()
        found = sorted((one["key"], one["partition_path"]) for one in index)
        assert newest is not None
        assert found == states[newest.requested_time]


def names(slices: list[FileSlice]) -> set[str]:
    found = {log.name for one in slices for log in one.log_files}
    return found | {one.base_file.name for one in slices if one.base_file is not None}


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize(
    ("table_type", "merged"),
    [
        (COW, 3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((COW, 0), (MOR, 3), (MOR, 0))),
    ],
)
def test_a_crash_at_any_call_of_a_restore_shows_the_metadata_table_of_a_state_of_the_timeline(
    table_type: TableType, merged: int
) -> None:
    before = indexed(table_type)
    times, states = history(before, merged=merged)
    crashes = 0
    while True:
        table = copied(before)
        dying = opened(table, storage=Dying(table.context.ports.storage, crashes))
        try:
            restore(dying.context, times[1])
            break
        except KeyboardInterrupt:
            crashes += 1
        check_moment(table, states)
        if crashes % 5:
            continue
        upsert(opened(table), rows(["k8"], 9))
        check(table)
    assert crashes > 20
    check_moment(table, states)
    check(table)
    update = table.context.commit_log.newest_own_slot(table.context.commit_log.head())
    assert update is not None
    assert (update.metadata_update is not None) == bool(merged)


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize("merged", [0, 4])
def test_a_rollback_of_the_newest_write_leaves_the_metadata_table_as_before_it(
    merged: int,
) -> None:
    table = indexed()
    times, states = history(table, merged=merged)
    rollback_write(table.context, times[3])
    check_moment(table, states)
    check(table)
    upsert(table, rows(["k3", "k8"], 9))
    check(table)


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize("table_type", [COW, MOR])
@pytest.mark.parametrize("merged", [0, 4])
def test_a_restore_past_a_rollback_keeps_the_update_of_the_rollback(
    merged: int, table_type: TableType
) -> None:
    """The rollback took a merged write out of the metadata table, and this stays so."""
    table = indexed(table_type)
    times, states = history(table, merged=merged)
    own_time = rollback_write(table.context, times[3]).requested_time
    restore(table.context, times[0])
    check_moment(table, states)
    check(table)
    kept = [one.requested_time for one in table.context.active().instants]
    assert (own_time in kept) == bool(merged)
    upsert(table, rows(["k3", "k8"], 9))
    compact_metadata_table(table.context)
    check(table)


# ---- Other states of the metadata table


@pytest.mark.spec("MDT-12")
def test_a_restore_is_refused_while_a_partition_of_the_metadata_table_is_built() -> None:
    table = indexed()
    times, _ = history(table, merged=0)
    building = {
        PARTITIONS: ",".join(INDEXES[:-2]),
        f"{PARTITIONS}.inflight": ",".join(INDEXES[-2:]),
    }
    update_properties(table.context.ports.storage, building, now="now")
    with pytest.raises(ServiceConflictError) as refused:
        restore(table.context, times[1])
    assert refused.value.kind == "metadata_build_pending"


@pytest.mark.spec("MDT-12")
def test_a_restore_is_refused_while_another_process_may_complete_a_compaction() -> None:
    table = indexed()
    times, states = history(table, merged=0)
    time = compact_metadata_table(table.context, dies=True)
    for call in (
        lambda: restore(table.context, times[1]),
        lambda: rollback_write(table.context, times[3]),
    ):
        with pytest.raises(ServiceConflictError) as refused:
            call()
        assert refused.value.kind == "metadata_compaction_pending"
    for path in files_below(table.context.ports.storage, METADATA_TABLE):
        if time in path:  # decided, and not visible yet
            table.context.ports.storage.delete(path)
    commit_log = table.context.commit_log
    slot = commit_slot(commit_log.head() + 1, table.context.table_id, kind=SlotKind.METADATA)
    planned = replace(
        slot,
        action=Action.COMPACTION,
        requested_time=time,
        completion_time=later(time, 1),
        body=b"plan",
    )
    assert commit_log.take(planned)
    with pytest.raises(ServiceConflictError):
        restore(table.context, times[1])
    compact_metadata_table(table.context)
    restore(table.context, times[1])
    check_moment(table, states)
    check(table)


@pytest.mark.spec("MDT-12")
def test_a_restore_beside_another_engine_ends_the_compaction_that_it_left() -> None:
    table = indexed()
    times, states = history(table, merged=0)
    time = compact_metadata_table(table.context, dies=True)
    shared = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
    restore(opened(table, limits=shared).context, times[1])
    check_moment(table, states)
    check(table)
    left = files_below(table.context.ports.storage, METADATA_TABLE)
    assert [path for path in left if time in path] == []


@pytest.mark.spec("MDT-12")
def test_a_pending_compaction_of_older_log_files_survives_a_restore() -> None:
    table = indexed()
    times, _ = history(table, merged=0)
    time = compact_metadata_table(table.context, dies=True)
    newest = upsert(table, rows(["k8"], 9)).requested_time
    restore(table.context, times[3])
    check(table)
    left = files_below(table.context.ports.storage, METADATA_TABLE)
    assert [path for path in left if newest in path] == []
    assert f"{METADATA_TIMELINE}/{time}.compaction.requested" in left


@pytest.mark.spec("MDT-12")
def test_a_restore_removes_a_write_that_is_older_than_the_metadata_table() -> None:
    """Its files and keys are in the base files with which the metadata table was built."""
    table = indexed()
    times, states = history(table, merged=0)
    compact_metadata_table(table.context, builds=True)
    restore(table.context, times[1])
    check_moment(table, states)
    check(table)


@pytest.mark.spec("MDT-12")
@pytest.mark.spec("FOR-4")
@pytest.mark.parametrize("merged", [0, 3])
@pytest.mark.parametrize("died", ["before", "after"])
def test_a_restore_that_another_engine_left_is_finished_in_the_metadata_table(
    merged: int, died: str
) -> None:
    table = indexed()
    times, states = history(table, merged=merged)
    storage = table.context.ports.storage
    removed = [
        one for one in table.context.active().completed_writes if one.requested_time in times[2:]
    ]
    infos = [
        InstantInfo(requested_time=one.requested_time, action=one.action.value) for one in removed
    ]
    plan = RestorePlan(
        instants_to_rollback=tuple(infos[::-1]), savepoint_to_restore_timestamp=times[1]
    )
    own_time = later(times[-1], 1_000)
    storage.create(timeline_path(f"{own_time}.restore.requested"), encode_restore_plan(plan))
    if died == "after":  # it deleted the writes on the table, and not in the metadata table
        for path in [*files_below(storage, ".hoodie/timeline"), *data_files(table)]:
            time = data_file_time(path.rpartition("/")[2]) or path.rpartition("/")[2][:17]
            if time in times[2:]:
                storage.delete(path)
    table = opened(table)
    finish_restore(table.context)
    check_moment(table, states)
    check(table)


@pytest.mark.spec("MDT-12")
def test_a_write_after_a_restore_makes_all_file_groups_of_a_new_partition_again() -> None:
    """In a record index per partition a removed write may have made the file groups."""
    table = new_table()
    storage = table.context.ports.storage
    split = IndexDefinition(
        name="record_index",
        index_type="record_index",
        options={"isPartitioned": "true"},
        version=IndexVersion.V1,
    )
    write_index_definitions(storage, [split])
    add_metadata_table(storage, "files")
    update_properties(storage, {PARTITIONS: "files,record_index"}, now="now")
    table = opened(table)
    times = [upsert(table, rows(["k0", "k3"], 1)).requested_time]
    upsert(table, [{"id": "k1", "p": "p.1", "ts": 1, "v": 1}])
    restore(table.context, times[0])
    index = pa.concat_tables(metadata_of(table).read("record_index"))
    assert sorted(index.column("key").to_pylist()) == ["k0", "k3"]
    upsert(table, [{"id": "k1", "p": "p.1", "ts": 2, "v": 2}])
    index = pa.concat_tables(metadata_of(table).read("record_index"))
    assert sorted(index.column("key").to_pylist()) == ["k0", "k1", "k3"]


# ---- Savepoints, and commits that replace partitions


@pytest.mark.spec("MDT-12")
def test_a_savepoint_writes_nothing_to_the_metadata_table_and_a_restore_returns_to_it() -> None:
    table = indexed()
    times, states = history(table, merged=3)
    before = files_below(table.context.ports.storage, METADATA_TABLE)
    savepoint(table.context, times[1])
    assert files_below(table.context.ports.storage, METADATA_TABLE) == before
    put(table, WriteOperation.INSERT_OVERWRITE_TABLE, rows(["k1", "k4"], 9))
    check(table)
    restore(table.context, times[1])
    check_moment(table, states)
    delete_savepoint(table.context, times[1])
    check(table)


@pytest.mark.spec("MDT-1")
@pytest.mark.parametrize("table_type", [COW, MOR])
def test_commits_that_replace_partitions_leave_the_metadata_table_with_what_the_table_has(
    table_type: TableType,
) -> None:
    clock = StillClock()
    table = new_table(table_type=table_type, clock=clock)
    write_index_definitions(table.context.ports.storage, [SECONDARY])
    add_metadata_table(table.context.ports.storage, *INDEXES)
    table = opened(table, clock=clock)
    upsert(table, rows(KEYS, 1))
    put(table, WriteOperation.DELETE_PARTITION, [], delete_partitions=("p1",))
    check(table)
    put(table, WriteOperation.INSERT_OVERWRITE_TABLE, rows(KEYS[2:6], 2))
    check(table)
    clock.sleep_ms(3 * 24 * 3_600_000)
    upsert(table, rows(["k0"], 3))
    expired = expire(table.context, TtlSettings(days_retained=2))
    assert expired is not None
    assert expired.partitions == ("p1", "p2")
    check(table)
    restore(table.context, table.context.active().completed_writes[0].requested_time)
    check(table)
