"""Another engine's pending clean: finished when harmless, never believed when not."""

from __future__ import annotations

from typing import Any

import pytest

from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from timeline.codecs.instant_avro import decode_clean, encode_clean_plan
from timeline.model.plans import ActionInstant, CleanerPlan, CleanFileInfo

RETAIN_ALL = CleaningSettings(commits_retained=100)
TWO = CleaningSettings(commits_retained=2)
TOLERATED_MS = 120_000


def plant(bench: Any, files: dict[str, list[str]], **more: Any) -> str:
    """A clean requested by another engine long ago; returns its requested time."""
    snapshot = bench.context.active()
    requested: str = str(int(snapshot.newest_time) + 1)
    plan = CleanerPlan(
        earliest_instant_to_retain=ActionInstant(
            requested_time=requested, action="commit", state="COMPLETED"
        ),
        last_completed_commit_timestamp=requested,
        file_paths_to_be_deleted_per_partition={
            partition: tuple(CleanFileInfo(file_path=path) for path in paths)
            for partition, paths in files.items()
        },
        **more,
    )
    data = encode_clean_plan(plan)
    bench.storage.create(f".hoodie/timeline/{requested}.clean.requested", data)
    bench.storage.create(f".hoodie/timeline/{requested}.clean.inflight", b"")
    return requested


def located(time: str) -> str:
    return f"memory://table/p/f1_0-0-0_{time}.parquet"


def test_a_harmless_plan_is_finished_under_its_own_time(bench: Any) -> None:
    times = bench.commits(4)
    requested = plant(bench, {"p": [located(times[0]), located(times[1])]})
    bench.storage.delete(f"p/f1_0-0-0_{times[0]}.parquet")  # its owner stopped here
    bench.clock.time_ms += TOLERATED_MS + 1
    assert clean(bench.context, RETAIN_ALL) is None
    assert bench.times_left() == times[2:]
    (completed,) = bench.timeline_names(".clean")
    assert completed.startswith(requested + "_")
    done = decode_clean(bench.storage.read(f".hoodie/timeline/{completed}"))
    assert done.start_clean_time == requested
    assert done.partition_metadata["p"].success_delete_files == tuple(
        f"f1_0-0-0_{time}.parquet" for time in times[:2]
    )


def test_a_recent_plan_is_left_to_its_owner_and_no_other_is_made(bench: Any) -> None:
    times = bench.commits(5)
    plant(bench, {"p": [located(times[0])]})
    assert clean(bench.context, TWO) is None
    assert bench.times_left() == times


@pytest.mark.parametrize(
    ("partition", "address"),
    [
        ("../../x", "memory://table/../../x/f1_0-0-0_20200101000000000.parquet"),
        ("p", "memory://table/p/../../x/f1_0-0-0_20200101000000000.parquet"),
        ("p", "../../x/f1_0-0-0_20200101000000000.parquet"),
        ("p", "memory://table/q/f1_0-0-0_20200101000000000.parquet"),
        ("p", "memory://table/p/notes.txt"),
        ("p", "memory://table/.hoodie/hoodie.properties"),
        ("p", ""),
        (".hoodie", "memory://table/.hoodie/hoodie.properties"),
        (".hoodie/timeline", "memory://table/.hoodie/timeline/f1_0-0-0_20200101000000000.parquet"),
    ],
)
def test_a_hostile_path_never_deletes_anything(bench: Any, partition: str, address: str) -> None:
    times = bench.commits(3)
    bench.storage.create("p/notes.txt", b"mine")
    bench.storage.create("q/f1_0-0-0_20200101000000000.parquet", b"another partition's")
    plant(bench, {"p": [located(times[0])], partition: [address]})
    bench.clock.time_ms += TOLERATED_MS + 1
    assert clean(bench.context, RETAIN_ALL) is None
    assert bench.times_left() == times
    assert bench.storage.names("q") == ["f1_0-0-0_20200101000000000.parquet"]
    assert "notes.txt" in bench.storage.names("p")
    assert bench.timeline_names(".clean") == []
    assert "cleaning.foreign_refused" in bench.events.names()


def test_a_plan_of_the_latest_slice_is_refused(bench: Any) -> None:
    times = bench.commits(3)
    plant(bench, {"p": [located(times[0]), located(times[2])]})
    bench.clock.time_ms += TOLERATED_MS + 1
    clean(bench.context, RETAIN_ALL)
    assert bench.times_left() == times
    assert bench.timeline_names(".clean") == []


def test_a_plan_of_a_pending_writes_file_is_refused(bench: Any) -> None:
    times = bench.commits(3)
    bench.clock.time_ms += 1_000
    pending = bench.begin()
    bench.storage.create(f"p/g1_0-0-0_{pending.requested_time}.parquet", b"half")
    plant(bench, {"p": [f"memory://table/p/g1_0-0-0_{pending.requested_time}.parquet"]})
    bench.clock.time_ms += TOLERATED_MS + 1
    bench.storage.write(f".hoodie/.heartbeat/{pending.requested_time}", b"")
    clean(bench.context, RETAIN_ALL)
    assert bench.times_left("g1") == [pending.requested_time]
    assert bench.times_left() == times


def test_a_plan_that_a_savepoint_overtakes_is_not_executed(bench: Any) -> None:
    times = bench.commits(3)
    plant(bench, {"p": [located(times[0])]})
    bench.clock.time_ms += TOLERATED_MS + 1
    bench.lock.on_acquire = lambda: bench.savepoint(times[0], f"f1_0-0-0_{times[0]}.parquet")
    clean(bench.context, RETAIN_ALL)
    assert bench.times_left() == times
    assert bench.timeline_names(".clean") == []


def test_whole_partitions_are_never_deleted(bench: Any) -> None:
    times = bench.commits(3)
    plant(bench, {"p": [located(times[0])]}, partitions_to_be_deleted=("p",))
    bench.clock.time_ms += TOLERATED_MS + 1
    clean(bench.context, RETAIN_ALL)
    assert bench.times_left() == times
    assert bench.timeline_names(".clean") == []


def test_a_refused_plan_does_not_stop_our_own(bench: Any) -> None:
    times = bench.commits(5)
    plant(bench, {"../x": [located(times[0])]})
    bench.clock.time_ms += TOLERATED_MS + 1
    assert clean(bench.context, TWO) is not None
    assert bench.times_left() == times[2:]
