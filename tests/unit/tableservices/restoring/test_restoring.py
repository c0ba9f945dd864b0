"""Savepoints keep a state, restores go back to it, a rollback undoes the newest write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from tableservices.archiving.archived_timeline import append_to_archive
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tableservices.restoring.restore import finish_restore, plan_restore, restore
from tableservices.restoring.rollback import plan_rollback, rollback_write
from tableservices.restoring.savepoints import (
    delete_savepoint,
    plan_savepoint,
    savepoint,
    savepoints,
)
from tableservices.restoring.state_at import instants_after
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    StillClock,
    begun,
    data_files,
    files_below,
    heard,
    leftovers,
    new_table,
    opened,
    put,
    rows_of,
    upsert,
)
from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.codecs.instant_avro import (
    decode_restore,
    decode_restore_plan,
    decode_rollback,
    decode_savepoint,
    encode_restore_plan,
)
from timeline.commit_log import restored_away_in, slots_with_removed_file
from timeline.errors import (
    CorruptTableError,
    InstantNotFoundError,
    InvalidInputError,
    MetadataTableOnError,
    ServiceConflictError,
    TableConfigConflictError,
)
from timeline.heartbeat import HeartbeatLimits
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import parse_instant_name
from timeline.model.instant_time import WallMs, instant_time, wall_ms
from timeline.model.plans import InstantInfo, RestorePlan
from timeline.model.slot import SlotKind
from timeline.properties.properties_file import update_properties
from timeline.snapshot import ActiveTimeline

COW, MOR = TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ


def grown(
    *numbers: int, table_type: TableType = COW, table: TableReader | None = None
) -> tuple[TableReader, list[str]]:
    """A table with one upsert of the same two keys per number, and their requested times."""
    made = table or new_table(table_type=table_type)
    times = [
        upsert(
            made, [{"id": f"k{i}", "p": f"p{i}", "ts": n, "v": n} for i in (1, 2)]
        ).requested_time
        for n in numbers
    ]
    return made, times


def values(table: TableReader) -> list[Any]:
    return [row[0] for row in rows_of(table, "v")]


def names(table: TableReader) -> list[str]:
    return [
        path.rpartition("/")[2]
        for path in files_below(table.context.ports.storage, ".hoodie/timeline")
    ]


def timeline_of(*file_names: str) -> ActiveTimeline:
    return ActiveTimeline.of(file_names)


def at(*digits: int) -> list[str]:
    return [f"202601010000000{digit:02d}" for digit in digits]


# ---------------------------------------------------------------- after a restore


def test_later_completed_writes_and_pending_writes_are_after_the_target() -> None:
    a, b, c, d, e, f, g, h = at(10, 11, 12, 13, 14, 15, 16, 17)
    timeline = timeline_of(
        f"{a}_{d}.commit",
        f"{b}_{c}.commit",  # began later, was seen earlier: stays
        f"{e}_{f}.replacecommit",
        f"{g}.commit.requested",
        f"{h}_{h}.clean",
    )
    target = timeline.find(a)
    assert target is not None
    assert [one.requested_time for one in instants_after(timeline, target, COW)] == [g, e]


def test_a_compaction_planned_earlier_stays_although_it_completes_later() -> None:
    a, b, c, d, e, f = at(10, 11, 12, 13, 14, 15)
    timeline = timeline_of(
        f"{a}_{e}.commit",
        f"{b}_{c}.deltacommit",
        f"{d}_{f}.deltacommit",
        f"{a}.compaction.requested",
    )
    target = timeline.find(b)
    assert target is not None
    assert [one.requested_time for one in instants_after(timeline, target, MOR)] == [d]
    assert [one.requested_time for one in instants_after(timeline, target, COW)] == [d, a]


# ---------------------------------------------------------------- savepoints


@pytest.mark.parametrize("table_type", [COW, MOR])
def test_a_savepoint_names_the_files_of_its_state(table_type: TableType) -> None:
    table, times = grown(1, 2, table_type=table_type)
    before = {
        path
        for one in table.current_state().file_slices()
        for path in [
            *(log.path for log in one.log_files),
            *([one.base_file.path] if one.base_file else []),
        ]
    }
    grown(3, table=table)
    made = savepoint(table.context, times[1], comments="before the migration")
    assert set(made.files) == before
    assert made.completion_time is not None
    assert f"{times[1]}.savepoint.inflight" in names(table)
    name = f"{times[1]}_{made.completion_time}.savepoint"
    data = table.context.ports.storage.read(f".hoodie/timeline/{name}")
    decoded = decode_savepoint(data)
    assert decoded.comments == "before the migration"
    assert {
        f"{p}/{n}" for p, k in decoded.partition_metadata.items() for n in k.savepoint_data_file
    } == before
    assert savepoints(table.context) == [made]
    assert values(table) == [3, 3]


def test_the_newest_write_is_kept_when_none_is_named() -> None:
    table, times = grown(1, 2)
    assert plan_savepoint(table.context).requested_time == times[1]
    assert savepoint(table.context).requested_time == times[1]
    with pytest.raises(InvalidInputError, match="has a savepoint already"):
        savepoint(table.context)


def test_cleaning_keeps_the_files_of_a_savepoint_until_it_is_deleted() -> None:
    table, times = grown(1)
    made = savepoint(table.context, times[0])
    grown(2, 3, 4, table=table)
    settings = CleaningSettings(commits_retained=1)
    clean(table.context, settings)
    assert set(made.files) <= set(data_files(table))
    delete_savepoint(table.context, times[0])
    assert not any(".savepoint" in name for name in names(table))
    grown(5, table=table)
    clean(table.context, settings)
    assert not set(made.files) & set(data_files(table))


def test_a_savepoint_of_a_cleaned_state_is_refused() -> None:
    table, times = grown(1, 2, 3, 4)
    clean(table.context, CleaningSettings(commits_retained=1))
    with pytest.raises(InstantNotFoundError, match="were cleaned") as caught:
        savepoint(table.context, times[0])
    assert caught.value.kind == "state_cleaned"
    assert savepoint(table.context, times[3]).requested_time == times[3]


@pytest.mark.spec("SAV-1")
def test_a_clean_between_listing_and_slot_refuses_the_savepoint() -> None:
    table, times = grown(1, 2, 3)
    other = opened(table)

    class CleansFirst:
        def acquire(self, purpose: str) -> Any:
            clean(table.context, CleaningSettings(commits_retained=1))
            return other.context.ports.lock.acquire(purpose)

    context = replace(other.context, ports=replace(other.context.ports, lock=CleansFirst()))
    with pytest.raises(InstantNotFoundError, match="were cleaned"):
        savepoint(context, times[0])
    assert savepoints(table.context) == []


def test_unknown_instants_and_savepoints_are_named() -> None:
    table, times = grown(1)
    with pytest.raises(InstantNotFoundError, match=times[0]):
        savepoint(table.context, "20200101000000000")
    with pytest.raises(InstantNotFoundError, match="the timeline has none"):
        delete_savepoint(table.context, times[0])
    with pytest.raises(InstantNotFoundError, match="no completed write"):
        savepoint(new_table().context)


# ---------------------------------------------------------------- restore


@pytest.mark.parametrize("table_type", [COW, MOR])
@pytest.mark.parametrize("held", [True, False])
def test_a_restored_table_has_the_rows_of_its_target(table_type: TableType, held: bool) -> None:
    table, times = grown(1, 2, table_type=table_type)
    files = data_files(table)
    then = rows_of(table)
    if held:
        savepoint(table.context, times[1])
    _, later = grown(3, 4, table=table)
    put(table, WriteOperation.INSERT_OVERWRITE, [{"id": "n", "p": "p1", "ts": 9, "v": 9}])
    planned = plan_restore(table.context, times[1])
    assert values(table) == [4, 9]
    done = restore(table.context, times[1])
    assert done is not None
    assert done.instants[1:] == (later[1], later[0])
    assert done.files == planned.files
    assert rows_of(table) == then
    assert rows_of(opened(table)) == then
    assert data_files(table) == files
    assert leftovers(table) == []
    assert restore(table.context, times[1]) is None
    grown(5, table=table)
    assert values(table) == [5, 5]


def test_a_restore_is_recorded_as_java_does() -> None:
    table, times = grown(1, 2, 3)
    done = restore(table.context, times[0])
    assert done is not None
    own = [name for name in names(table) if name.startswith(done.requested_time)]
    assert own == [
        f"{done.requested_time}.restore.inflight",
        f"{done.requested_time}.restore.requested",
        f"{done.requested_time}_{done.completion_time}.restore",
    ]
    read = table.context.ports.storage.read
    plan = decode_restore_plan(read(f".hoodie/timeline/{own[1]}"))
    decoded = decode_restore(read(f".hoodie/timeline/{own[2]}"))
    assert [one.requested_time for one in plan.instants_to_rollback] == [times[2], times[1]]
    assert plan.savepoint_to_restore_timestamp == times[0]
    assert (plan.version, decoded.version) == (2, 1)
    assert decoded.instants_to_rollback == (times[2], times[1])
    assert decoded.restore_instant_info == plan.instants_to_rollback
    (of_newest,) = decoded.hoodie_restore_metadata[times[2]]
    assert of_newest.total_files_deleted == 2
    assert (
        of_newest.partition_metadata["p1"].success_delete_files[0].endswith(f"_{times[2]}.parquet")
    )
    assert not any(time in name for time in times[1:] for name in names(table))


def test_rollbacks_after_the_target_are_deleted_as_java_deletes_them() -> None:
    table, times = grown(1)
    begun(opened(table), WriteOperation.UPSERT, [{"id": "x", "p": "p1", "ts": 1, "v": 1}])
    pending = table.context.active().pending[0]
    rollback_write(table.context, pending.requested_time, force=True)
    assert any(name.endswith(".rollback") for name in names(table))
    grown(2, table=table)
    restore(table.context, times[0])
    assert not any("rollback" in name for name in names(table))


def test_a_later_savepoint_prevents_a_restore() -> None:
    table, times = grown(1, 2)
    savepoint(table.context, times[1])
    with pytest.raises(InvalidInputError, match=times[1]) as caught:
        restore(table.context, times[0])
    assert caught.value.kind == "savepointed"
    assert values(table) == [2, 2]


def test_a_cleaned_state_can_only_be_restored_from_a_savepoint() -> None:
    table, times = grown(1, 2, 3, 4, 5)
    savepoint(table.context, times[1])
    clean(table.context, CleaningSettings(commits_retained=1))
    with pytest.raises(InstantNotFoundError, match="were cleaned"):
        restore(table.context, times[2])
    assert restore(table.context, times[1]) is not None
    assert values(table) == [2, 2]


def test_a_live_writer_prevents_a_restore_unless_forced_and_then_retries() -> None:
    table, times = grown(1, 2)

    def meanwhile() -> None:
        with pytest.raises(InvalidInputError, match="is fresh") as caught:
            restore(table.context, times[0])
        assert caught.value.kind == "writer_alive"
        done = restore(table.context, times[0], force=True)
        assert done is not None
        assert len(done.instants) == 2

    upsert(opened(table), [{"id": "k1", "p": "p1", "ts": 7, "v": 7}], meanwhile)
    assert values(table) == [1, 7]
    assert leftovers(table) == []
    assert len(data_files(table)) == 3


def test_a_write_based_on_a_restored_away_instant_is_not_committed() -> None:
    """
    The writer began after the restore had refreshed, so the restore does not remove its instant.
    """
    table, times = grown(1)
    # Its second row is in the file that the other writer writes again.
    rows = [{"id": key, "p": "p1", "ts": 2, "v": 2} for key in ("k1", "gone")]
    newest = upsert(table, rows).requested_time
    other = opened(table)

    class Earlier(Behind):
        """Shows the timeline without later begins."""

        def names(self, folder: str) -> list[str]:
            shown = self.inner.names(folder)
            if folder == ".hoodie/timeline":
                shown = [n for n in shown if n[:17] <= newest or "restore" in n]
            return shown

    restorer = opened(table, storage=Earlier(table.context.ports.storage))

    def meanwhile() -> None:
        restore(restorer.context, times[0])

    upsert(other, [{"id": "k1", "p": "p1", "ts": 7, "v": 7}], meanwhile)
    assert values(table) == [1, 7]
    assert leftovers(table) == []


def test_a_restore_deletes_a_dead_writer_and_its_files() -> None:
    table, times = grown(1, 2)
    dead = opened(table)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upsert(dead, [{"id": "k1", "p": "p1", "ts": 7, "v": 7}], die)
    assert restore(table.context, times[0]) is not None
    assert leftovers(table) == []
    assert len(data_files(table)) == 2


@pytest.mark.spec("MDT-6")
def test_a_restore_is_refused_if_the_metadata_table_has_a_partition_that_is_not_maintained() -> (
    None
):
    table, times = grown(1, 2)
    listed = {"hoodie.table.metadata.partitions": "files,expr_index_upper"}
    update_properties(table.context.ports.storage, listed, now="now")
    with pytest.raises(MetadataTableOnError):
        restore(table.context, times[0])
    with pytest.raises(MetadataTableOnError):
        rollback_write(table.context, times[1])


def test_a_restore_is_refused_while_another_engines_service_is_pending() -> None:
    table, times = grown(1, 2)
    table.context.ports.storage.create(".hoodie/timeline/20260101000000000.clean.requested", b"x")
    for change in (restore, rollback_write):
        with pytest.raises(ServiceConflictError, match="upkeep"):
            change(table.context, times[0 if change is restore else 1])
    with pytest.raises(ServiceConflictError, match="upkeep"):
        savepoint(table.context)


def test_a_commit_that_another_engine_restored_away_is_not_applied_again() -> None:
    """Java knows no slots: the newest one still describes a commit whose files are deleted."""
    table, times = grown(1, 2)
    storage = table.context.ports.storage
    for path in files_below(storage):
        if times[1] in path and ".hoodoo" not in path:
            storage.delete(path)
    for other in (opened(table), table):
        upsert(other, [{"id": "k1", "p": "p1", "ts": 7, "v": 7}])
        assert values(table) == [1, 7]
        assert heard(other, "publish.helped") == heard(other, "write.refused") == []
    assert not any(times[1] in name for name in names(table))


def left_by_java(
    table: TableReader, target: str, *gone: str, time: str = "20991231000000000"
) -> None:
    plan = RestorePlan(
        instants_to_rollback=tuple(
            InstantInfo(requested_time=one, action="commit") for one in gone
        ),
        savepoint_to_restore_timestamp=target,
    )
    storage = table.context.ports.storage
    storage.create(f".hoodie/timeline/{time}.restore.requested", encode_restore_plan(plan))
    storage.create(f".hoodie/timeline/{time}.restore.inflight", b"")


def test_a_restore_that_another_engine_abandoned_stops_writers_until_it_is_finished() -> None:
    clock = StillClock()
    table, times = grown(1, 2, 3, table=new_table(clock=clock))
    own = instant_time(WallMs(clock.now_ms() + 50))
    left_by_java(table, times[0], times[2], times[1], time=own)
    with pytest.raises(TableConfigConflictError, match="is pending"):
        upsert(table, [{"id": "k1", "p": "p1", "ts": 7, "v": 7}])
    done = finish_restore(table.context)
    assert done is not None
    assert (done.requested_time, done.restored_to) == (own, times[0])
    assert done.instants == (times[2], times[1])
    assert values(table) == [1, 1]
    assert finish_restore(table.context) is None
    clock.sleep_ms(1_000)
    grown(5, table=table)
    assert values(table) == [5, 5]


@pytest.mark.spec("MDT-6")
def test_an_abandoned_restore_is_not_finished_if_its_metadata_table_cannot_be_updated() -> None:
    table, times = grown(1, 2)
    left = instant_time(WallMs(wall_ms(times[1]) + 50))
    left_by_java(table, times[0], times[1], time=left)
    storage = table.context.ports.storage
    listed = {"hoodie.table.metadata.partitions": "files,expr_index_upper"}
    update_properties(storage, listed, now="now")
    before = files_below(storage)
    with pytest.raises(MetadataTableOnError) as caught:
        finish_restore(table.context)
    assert caught.value.kind == "metadata_table_on"
    assert files_below(storage) == before


def test_a_hostile_restore_plan_is_refused_before_any_file_is_changed() -> None:
    table, times = grown(1, 2)
    before = files_below(table.context.ports.storage)
    left_by_java(table, times[0], "../../elsewhere")
    with pytest.raises(CorruptTableError, match="not an instant"):
        finish_restore(table.context)
    assert set(before) <= set(files_below(table.context.ports.storage))
    storage = table.context.ports.storage
    storage.delete(".hoodie/timeline/20991231000000000.restore.requested")
    with pytest.raises(CorruptTableError, match="empty"):
        finish_restore(table.context)


def test_a_forced_restore_deletes_a_rollback_that_another_engine_abandoned() -> None:
    table, times = grown(1, 2)
    name = f"{times[1][:-1]}9.rollback.requested"
    table.context.ports.storage.create(f".hoodie/timeline/{name}", b"x")
    with pytest.raises(ServiceConflictError):
        restore(table.context, times[0])
    assert restore(table.context, times[0], force=True) is not None
    assert name not in names(table)
    assert values(table) == [1, 1]


def test_a_restored_away_batch_is_written_again() -> None:
    table, times = grown(1)
    rows = [{"id": "k1", "p": "p1", "ts": 5, "v": 5}]
    first = upsert(table, rows, batch_id="b")
    assert upsert(table, rows, batch_id="b").already_published
    restore(table.context, times[0])
    again = upsert(table, rows, batch_id="b")
    assert not again.already_published
    assert again.requested_time > first.requested_time
    assert values(table) == [1, 5]


def test_a_batch_that_another_engine_restored_away_is_written_again() -> None:
    table, _ = grown(1)
    rows = [{"id": "k1", "p": "p1", "ts": 5, "v": 5}]
    first = upsert(table, rows, batch_id="b")
    storage = table.context.ports.storage
    for path in files_below(storage):
        if first.requested_time in path and ".hoodoo" not in path:
            storage.delete(path)
    assert not upsert(table, rows, batch_id="b").already_published
    assert values(table) == [1, 5]


def test_an_archived_instant_cannot_be_restored_away() -> None:
    table, times = grown(1, 2, 3)
    savepoint(table.context, times[0])
    row = ArchivedInstant(requested_time=times[1], completion_time=times[1], action="commit")
    append_to_archive(table.context.ports.storage, [row])
    with pytest.raises(InvalidInputError, match="archived") as caught:
        restore(table.context, times[0])
    assert caught.value.kind == "archived_since"
    assert restore(table.context, times[1]) is not None


def test_an_archived_instant_completed_after_the_target_prevents_the_restore() -> None:
    table, times = grown(1, 2, 3)
    savepoint(table.context, times[0])
    before = f"{int(times[0]) - 1}"
    row = ArchivedInstant(requested_time=before, completion_time=times[2], action="commit")
    append_to_archive(table.context.ports.storage, [row])
    with pytest.raises(InvalidInputError) as caught:
        restore(table.context, times[0])
    assert (caught.value.kind, caught.value.fields["archived"]) == ("archived_since", before)


def test_the_commit_log_shows_which_files_are_deleted() -> None:
    table, times = grown(1, 2)
    savepoint(table.context, times[0])
    delete_savepoint(table.context, times[0])
    restore(table.context, times[0])
    slots = table.context.commit_log.between(0, table.context.commit_log.head())
    assert [slot.kind for slot in slots] == [
        SlotKind.COMMIT,
        SlotKind.COMMIT,
        SlotKind.SAVEPOINT,
        SlotKind.UNSAVEPOINT,
        SlotKind.RESTORE,
    ]
    assert restored_away_in(slots) == {times[1]}
    assert slots_with_removed_file(slots) == {2, 3}


# ---------------------------------------------------------------- rollback


@pytest.mark.spec("RST-2")
def test_the_newest_completed_write_is_rolled_back() -> None:
    table, times = grown(1, 2)
    planned = plan_rollback(table.context, times[1])
    assert len(planned.files) == 2
    done = rollback_write(table.context, times[1])
    assert (done.target, done.why, done.files) == (times[1], "rolled back", planned.files)
    assert values(table) == [1, 1]
    assert len(data_files(table)) == 2
    name = f"{done.requested_time}_{done.completion_time}.rollback"
    decoded = decode_rollback(table.context.ports.storage.read(f".hoodie/timeline/{name}"))
    assert decoded.commits_rollback == (times[1],)
    assert decoded.instants_rollback[0].action == "commit"
    grown(3, table=table)
    assert values(table) == [3, 3]


def test_the_only_write_can_be_rolled_back() -> None:
    table, times = grown(1)
    rollback_write(table.context, times[0])
    assert data_files(table) == []
    assert parse_instant_name(names(table)[-1]) is not None
    grown(2, table=table)
    assert values(table) == [2, 2]


def test_a_write_that_others_need_is_not_rolled_back() -> None:
    table, times = grown(1, 2)
    with pytest.raises(InvalidInputError, match="later or pending writes") as caught:
        rollback_write(table.context, times[0])
    assert caught.value.kind == "later_instants"
    savepoint(table.context, times[1])
    with pytest.raises(InvalidInputError, match="savepoint"):
        rollback_write(table.context, times[1])
    delete_savepoint(table.context, times[1])
    begun(opened(table), WriteOperation.UPSERT, [{"id": "k1", "p": "p1", "ts": 7, "v": 7}])
    with pytest.raises(InvalidInputError, match="later or pending writes"):
        rollback_write(table.context, times[1])
    with pytest.raises(InstantNotFoundError, match="no completed or pending write"):
        rollback_write(table.context, "20200101000000000")


def test_a_write_whose_previous_slices_were_cleaned_is_not_rolled_back() -> None:
    table, _ = grown(1, 2, 3)
    clean(table.context, CleaningSettings(commits_retained=1))
    grown(4, table=table)
    clean(table.context, CleaningSettings(commits_retained=1))
    newest = table.context.active().newest_completed_write
    assert newest is not None
    with pytest.raises(InstantNotFoundError, match="were cleaned"):
        rollback_write(table.context, newest.requested_time)
    assert values(table) == [4, 4]


def test_a_pending_write_is_rolled_back_when_its_writer_is_dead_or_by_force() -> None:
    limits = replace(BRISK, heartbeat=HeartbeatLimits(interval_ms=1_000, misses=2))
    table = new_table(limits=limits)
    grown(1, table=table)
    begun(opened(table), WriteOperation.UPSERT, [{"id": "k1", "p": "p1", "ts": 7, "v": 7}])
    pending = table.context.active().pending[0].requested_time
    with pytest.raises(InvalidInputError, match="is fresh"):
        rollback_write(table.context, pending)
    done = rollback_write(table.context, pending, force=True)
    assert done.why == "rolled back"
    assert table.context.active().pending == ()
