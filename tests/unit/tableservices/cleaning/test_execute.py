"""Cleaning with the shipped engine: deleted files, the record, and the finish after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from tableservices.cleaning.execute import LastClean, clean
from tableservices.cleaning.plan import CleaningPolicy, CleaningSettings
from timeline.codecs.instant_avro import decode_clean, decode_clean_plan
from timeline.errors import (
    HoodooError,
    OutcomeUnknownError,
    StorageUnavailableError,
    TableConfigConflictError,
)
from timeline.model.instant import Action
from timeline.model.slot import SlotKind
from timeline.properties.setting_enums import FailedWritesPolicy

TWO = CleaningSettings(commits_retained=2)
ONE_VERSION = CleaningSettings(policy=CleaningPolicy.VERSIONS, versions_retained=1)
TOLERATED_MS = 120_000


def test_old_slices_are_deleted_and_the_clean_is_recorded_as_java_does(bench: Any) -> None:
    times = bench.commits(5)
    result = clean(bench.context, TWO)
    assert result is not None
    assert bench.times_left() == times[2:]
    assert result.retained_since == times[3]
    assert result.files == tuple(f"p/f1_0-0-0_{time}.parquet" for time in times[:2])
    (requested,) = bench.timeline_names(".clean.requested")
    (completed,) = bench.timeline_names(".clean")
    assert requested == f"{result.requested_time}.clean.requested"
    assert completed == f"{result.requested_time}_{result.completion_time}.clean"
    plan = decode_clean_plan(bench.storage.read(f".hoodie/timeline/{requested}"))
    assert plan.earliest_instant_to_retain is not None
    assert plan.earliest_instant_to_retain.requested_time == times[3]
    assert plan.earliest_instant_to_retain.action == "commit"
    assert plan.earliest_instant_to_retain.state == "COMPLETED"
    assert plan.last_completed_commit_timestamp == times[4]
    assert plan.version == 2
    assert [one.file_path for one in plan.file_paths_to_be_deleted_per_partition["p"]] == [
        f"memory://table/p/f1_0-0-0_{time}.parquet" for time in times[:2]
    ]
    done = decode_clean(bench.storage.read(f".hoodie/timeline/{completed}"))
    assert done.start_clean_time == result.requested_time
    assert done.earliest_commit_to_retain == times[3]
    assert done.last_completed_commit_timestamp == times[4]
    assert done.total_files_deleted == 2
    partition = done.partition_metadata["p"]
    assert partition.success_delete_files == tuple(f"f1_0-0-0_{time}.parquet" for time in times[:2])
    assert partition.delete_path_patterns == partition.success_delete_files
    assert partition.policy == "KEEP_LATEST_COMMITS"


def test_nothing_to_delete_leaves_no_instant(bench: Any) -> None:
    for file_id in ("f1", "f2", "f3", "f4"):
        bench.commit(file_id)
    assert clean(bench.context, TWO) is None
    assert bench.timeline_names(".clean.requested") == []
    assert bench.context.commit_log.head() == 4


def test_nothing_is_planned_before_enough_commits(bench: Any) -> None:
    bench.commits(5)
    assert clean(bench.context, TWO) is not None
    bench.commit("f1")
    patient = TWO.model_copy(update={"trigger_commits": 2})
    assert clean(bench.context, patient) is None
    bench.commit("f1")
    assert clean(bench.context, patient) is not None


def test_a_later_clean_lists_only_partitions_written_since(bench: Any) -> None:
    bench.commit("q1", partition="q")
    bench.commit("q1", partition="q")
    bench.commits(4)
    first = clean(bench.context, TWO)
    assert first is not None
    assert len(bench.times_left("q1", "q")) == 1
    bench.storage.create("q/q1_9-9-9_20200101000000000.parquet", b"old stray")
    bench.commit("f1")
    second = clean(bench.context, TWO)
    assert second is not None
    assert all(path.startswith("p/") for path in second.files)
    bench.commit("q1", partition="q")
    bench.commits(2)
    third = clean(bench.context, TWO)
    assert third is not None
    assert "q/q1_9-9-9_20200101000000000.parquet" in third.files


def test_a_filtered_clean_leaves_other_partitions_to_the_next_clean_without_a_filter(
    bench: Any,
) -> None:
    bench.commit("q1", partition="q")
    bench.commit("q1", partition="q")
    times = bench.commits(5)
    only_p = CleaningSettings(commits_retained=2, partitions_regex="p")
    first = clean(bench.context, only_p)
    assert first is not None
    assert bench.times_left() == times[2:]
    assert len(bench.times_left("q1", "q")) == 2
    (completed,) = bench.timeline_names(".clean")
    done = decode_clean(bench.storage.read(f".hoodie/timeline/{completed}"))
    assert done.extra_metadata["hoodoo.clean.partitions"] == "p"
    assert set(done.partition_metadata) == {"p"}
    bench.commit("f1")
    second = clean(bench.context, TWO)
    assert second is not None
    assert len(bench.times_left("q1", "q")) == 1


def test_a_filtered_clean_checks_partitions_that_no_recent_write_touched(bench: Any) -> None:
    bench.commit("q1", partition="q")
    bench.commit("q1", partition="q")
    bench.commits(5)
    assert clean(bench.context, CleaningSettings(commits_retained=2, partitions_selected=("p",)))
    bench.commit("f1")
    late = CleaningSettings(commits_retained=2, partitions_selected=("q",))
    result = clean(bench.context, late)
    assert result is not None
    assert all(path.startswith("q/") for path in result.files)
    assert len(bench.times_left("q1", "q")) == 1


def test_a_later_clean_lists_partitions_of_a_deleted_savepoint(bench: Any) -> None:
    kept = bench.commit("q1", partition="q")
    bench.commit("q1", partition="q")
    savepoint = bench.savepoint(kept, f"q1_0-0-0_{kept}.parquet", partition="q")
    bench.commits(5)
    assert clean(bench.context, TWO) is not None
    assert bench.times_left("q1", "q")[0] == kept
    bench.storage.delete(savepoint)
    bench.commit("f1")
    assert clean(bench.context, TWO) is not None
    assert kept not in bench.times_left("q1", "q")


def test_a_later_clean_lists_every_partition_when_the_earliest_retained_commit_was_archived(
    bench: Any,
) -> None:
    times = bench.commits(5)
    assert clean(bench.context, TWO) is not None
    bench.commit("q1", partition="q")
    bench.commit("q1", partition="q")
    bench.commits(3)
    for name in bench.storage.names(".hoodie/timeline"):
        active = name.endswith((".clean", ".clean.requested", ".clean.inflight"))
        if not active and name not in _of_last_three(bench):
            bench.storage.delete(f".hoodie/timeline/{name}")
    result = clean(bench.context, TWO)
    assert result is not None
    assert any(path.startswith("q/") for path in result.files)
    assert times[4] not in bench.times_left()


def _of_last_three(bench: Any) -> set[str]:
    last = {name[:17] for name in bench.timeline_names(".commit")[-3:]}
    return {name for name in bench.storage.names(".hoodie/timeline") if name[:17] in last}


def test_a_later_clean_lists_emptied_partitions(bench: Any) -> None:
    bench.commit("q1", partition="q")
    bench.commits(4)
    assert clean(bench.context, TWO) is not None
    bench.finish(bench.begin(Action.REPLACECOMMIT), [], partition="q", replaces=["q1"])
    bench.commits(3)
    assert clean(bench.context, TWO) is not None
    assert bench.times_left("q1", "q") == []


def test_a_later_clean_lists_partitions_of_a_write_that_completed_after_the_earliest_retained_commit(
    bench: Any,
) -> None:
    old = bench.commit("q1", partition="q")
    bench.commits(2)
    late = bench.begin()
    line = bench.commit("f1")
    newest = bench.finish(late, ["q1"], partition="q")
    bench.commit("f1")
    first = clean(bench.context, TWO)
    assert first is not None
    assert first.retained_since == line > newest
    assert bench.times_left("q1", "q") == [old, newest]  # the line may still be read with the old
    bench.commits(2)
    second = clean(bench.context, TWO)
    assert second is not None
    assert f"q/q1_0-0-0_{old}.parquet" in second.files
    assert bench.times_left("q1", "q") == [newest]


def test_a_pending_write_keeps_the_files_that_it_may_have_read(bench: Any) -> None:
    times = bench.commits(2)
    pending = bench.begin()
    more = bench.commits(3)
    assert clean(bench.context, ONE_VERSION) is not None
    assert bench.times_left() == [times[1], *more]
    bench.finish(pending, ["g1"])
    bench.commit("f1")
    clean(bench.context, ONE_VERSION)
    assert len(bench.times_left()) == 1


def test_a_dead_writer_is_rolled_back_first(bench: Any) -> None:
    bench.commits(2)
    dead = bench.begin()
    bench.storage.create(f"p/f1_0-0-0_{dead.requested_time}.parquet", b"half")
    bench.clock.time_ms += TOLERATED_MS + 1
    later = bench.commits(3)
    assert clean(bench.context, TWO) is not None
    assert bench.times_left() == later
    assert len(bench.timeline_names(".rollback")) == 1


def test_files_of_a_dead_writer_stay_under_the_eager_policy(bench: Any) -> None:
    """Its heartbeat and markers stay too: a rollback needs them."""
    dead = bench.begin().requested_time
    bench.storage.create(f".hoodie/.temp/{dead}/p/x.marker.CREATE", b"")
    bench.clock.time_ms += TOLERATED_MS + 1
    eager = CleaningSettings(failed_writes=FailedWritesPolicy.EAGER)
    assert clean(bench.context, eager) is None
    assert bench.timeline_names(".rollback") == []
    assert bench.storage.names(".hoodie/.heartbeat") == [dead]
    assert [entry.name for entry in bench.storage.list(".hoodie/.temp")] == [dead]


@pytest.mark.spec("CLN-1")
def test_a_savepoint_created_during_planning_stops_the_plan(bench: Any) -> None:
    times = bench.commits(5)
    kept = f"f1_0-0-0_{times[0]}.parquet"

    bench.lock.on_acquire = lambda: bench.savepoint(times[0], kept)
    result = clean(bench.context, TWO)
    assert result is not None
    assert "cleaning.replanned" in bench.events.names()
    assert bench.times_left() == [times[0], *times[2:]]
    (completed,) = bench.timeline_names(".clean")
    done = decode_clean(bench.storage.read(f".hoodie/timeline/{completed}"))
    who = bench.context.ports.ids.identity()
    assert done.extra_metadata == {"savepointed_timestamps": times[0], **who.as_metadata}


def test_a_pending_instant_that_appears_late_stops_the_plan(bench: Any) -> None:
    """Another engine's write may be seen after its time: it began before our snapshot."""
    times = bench.commits(5)
    late = f"{int(times[1]) + 4}.commit.requested"
    bench.lock.on_acquire = lambda: bench.storage.create(f".hoodie/timeline/{late}", b"")
    assert clean(bench.context, TWO) is None
    assert bench.times_left() == times


def test_a_restore_that_begins_during_planning_stops_the_plan(bench: Any) -> None:
    times = bench.commits(5)

    def restore() -> None:
        name = f"{int(bench.context.active().newest_time) + 5}.restore.requested"
        bench.storage.create(f".hoodie/timeline/{name}", b"")

    bench.lock.on_acquire = restore
    assert clean(bench.context, TWO) is None
    assert bench.times_left() == times


def test_a_newer_slice_that_was_deleted_meanwhile_stops_the_plan(bench: Any) -> None:
    """A restore took the line's commit away: its predecessors count one more."""
    times = bench.commits(5)
    (fourth,) = (n for n in bench.timeline_names(".commit") if n.startswith(times[3]))
    bench.lock.on_acquire = lambda: bench.storage.delete(f".hoodie/timeline/{fourth}")
    result = clean(bench.context, TWO)
    assert result is not None
    assert result.files == (f"p/f1_0-0-0_{times[0]}.parquet",)


def test_replaced_groups_are_deleted_as_a_whole_after_the_earliest_commit_to_retain(
    bench: Any,
) -> None:
    bench.commits(2)
    bench.finish(bench.begin(Action.REPLACECOMMIT), ["g1"], replaces=["f1"])
    bench.commit("g1")
    assert clean(bench.context, CleaningSettings(commits_retained=1)) is not None
    assert bench.times_left("f1") == []
    assert len(bench.times_left("g1")) == 2


def test_two_cleaners_do_not_plan_the_same_files_twice(bench: Any) -> None:
    bench.commits(5)
    other = bench.open(bench.storage)
    bench.lock.on_acquire = lambda: clean(other, TWO)
    assert clean(bench.context, TWO) is None
    assert len(bench.timeline_names(".clean")) == 1


def test_a_pending_restore_stops_cleaning(bench: Any) -> None:
    times = bench.commits(5)
    bench.storage.create(".hoodie/timeline/29991231235959999.restore.requested", b"")
    assert clean(bench.context, TWO) is None
    assert bench.times_left() == times


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("hoodie.table.metadata.partitions", "files,expr_index_x", "metadata_table_on"),
    ],
)
def test_a_table_that_cleaning_would_damage_is_refused(
    bench: Any, key: str, value: str, kind: str
) -> None:
    times = bench.commits(5)
    bench.set_property(key, value)
    with pytest.raises(HoodooError) as refused:
        clean(bench.context, TWO)
    assert refused.value.kind == kind
    assert bench.times_left() == times


def test_an_unknown_index_built_during_planning_stops_the_plan(bench: Any) -> None:
    times = bench.commits(5)
    partitions = "hoodie.table.metadata.partitions"
    bench.lock.on_acquire = lambda: bench.set_property(partitions, "expr_index_x")
    with pytest.raises(TableConfigConflictError):
        clean(bench.context, TWO)
    assert bench.times_left() == times
    assert bench.context.commit_log.head() == 5


class FailingStorage:
    """Passes everything on until a call that the test forbids."""

    def __init__(self, inner: Any, forbidden: str, suffix: str) -> None:
        self._inner = inner
        self._forbidden = forbidden
        self._suffix = suffix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._forbidden:
            return found

        def guarded(path: str, *rest: Any, **named: Any) -> Any:
            if path.endswith(self._suffix):
                raise KeyboardInterrupt  # simulates the death of the process
            return found(path, *rest, **named)

        return guarded


@pytest.mark.spec("CLN-1")
@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("create", ".clean.requested"),
        ("create", ".clean.inflight"),
        ("delete", ".parquet"),
        ("create", ".clean"),
    ],
)
def test_a_clean_that_dies_after_its_slot_is_applied_by_the_next_commit(
    bench: Any, method: str, suffix: str
) -> None:
    times = bench.commits(5)
    dying = bench.open(FailingStorage(bench.storage, method, suffix))
    with pytest.raises(KeyboardInterrupt):
        clean(dying, TWO)
    assert bench.timeline_names(".clean") == []
    assert bench.context.commit_log.read(bench.context.commit_log.head()).kind is SlotKind.CLEAN
    sixth = bench.commit("f1")
    assert bench.times_left() == [*times[2:], sixth]
    assert len(bench.timeline_names(".clean")) == 1


def test_a_dead_clean_is_finished_by_the_next_clean(bench: Any) -> None:
    times = bench.commits(5)
    dying = bench.open(FailingStorage(bench.storage, "delete", ".parquet"))
    with pytest.raises(KeyboardInterrupt):
        clean(dying, TWO)
    assert clean(bench.context, TWO) is None
    assert bench.times_left() == times[2:]
    assert len(bench.timeline_names(".clean")) == 1


def test_a_file_that_cannot_be_deleted_keeps_the_clean_open(bench: Any) -> None:
    """If recorded as deleted but still there, it would be visible again one day."""
    bench.commits(5)

    class NoDelete(FailingStorage):
        def __getattr__(self, name: str) -> Any:
            if name == "delete":

                def refuse(path: str) -> None:
                    raise StorageUnavailableError("no", path=path)

                return refuse
            return getattr(self._inner, name)

    with pytest.raises(OutcomeUnknownError):
        clean(bench.open(NoDelete(bench.storage, "", "")), TWO)
    assert bench.timeline_names(".clean") == []


def test_old_stray_files_are_deleted(bench: Any) -> None:
    bench.commit("f1")
    gone = "20200101000000000"
    bench.storage.write(f".hoodie/.heartbeat/{gone}", b"")
    bench.storage.create(f".hoodie/.temp/{gone}/p/x.marker.CREATE", b"")
    assert clean(bench.context, TWO) is None
    assert bench.storage.names(".hoodie/.heartbeat") == [gone]
    assert bench.storage.names(f".hoodie/.temp/{gone}/p") == ["x.marker.CREATE"]
    live = bench.begin().requested_time
    bench.storage.create(f".hoodie/.temp/{live}/p/x.marker.CREATE", b"")
    bench.clock.time_ms += TOLERATED_MS + 1
    bench.storage.write(f".hoodie/.heartbeat/{live}", b"")
    assert clean(bench.context, TWO) is None
    assert bench.storage.names(".hoodie/.heartbeat") == [live]
    assert [entry.name for entry in bench.storage.list(".hoodie/.temp")] == [live]


def test_threads_of_one_table_share_what_the_last_clean_found(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one thread reads the head, another may have found superseded files."""
    context, memory = bench.context, LastClean()
    bench.commit("f1")
    clean(context, TWO, memory=memory)
    assert memory.head is not None
    found = context.commit_log.head()

    def head() -> int:
        memory.head = None
        return found

    monkeypatch.setattr(context.commit_log, "head", head)
    assert memory.only_new_file_groups(context)
