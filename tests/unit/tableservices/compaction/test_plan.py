"""When a compaction is due, and which file slices it takes first: values in, values out."""

from __future__ import annotations

import pytest

from tableservices.compaction.execute import is_due
from tableservices.compaction.plan import (
    CompactionOrder,
    CompactionSettings,
    CompactionStrategy,
    CompactionTrigger,
    choose,
    operations_of,
)
from timeline.errors import SettingError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant_time import WallMs, wall_ms
from timeline.model.plans import CompactionOperation
from timeline.snapshot import ActiveTimeline

MB = 1024 * 1024
T = "202601020300{:02d}000".format  # the second of one minute


def timeline(*names: str) -> ActiveTimeline:
    return ActiveTimeline.of(names)


def delta(begun: int, done: int) -> str:
    return f"{T(begun)}_{T(done)}.deltacommit"


FOUR = (delta(1, 2), delta(3, 4), delta(5, 6), delta(7, 8))
COMPACTED = f"{T(4)}_{T(9)}.commit"  # begun before the third completed


def due(trigger: CompactionTrigger, *names: str, commits: int, seconds: int, at: int) -> bool:
    settings = CompactionSettings(trigger=trigger, commits_max=commits, seconds_max=seconds)
    return is_due(timeline(*names), settings, WallMs(wall_ms(T(at))))


@pytest.mark.parametrize(
    ("trigger", "commits", "seconds", "expected"),
    [
        (CompactionTrigger.NUM_COMMITS, 4, 99, True),
        (CompactionTrigger.NUM_COMMITS, 5, 1, False),
        (CompactionTrigger.TIME_ELAPSED, 99, 10, True),
        (CompactionTrigger.TIME_ELAPSED, 1, 11, False),
        (CompactionTrigger.NUM_AND_TIME, 4, 10, True),
        (CompactionTrigger.NUM_AND_TIME, 4, 11, False),
        (CompactionTrigger.NUM_AND_TIME, 5, 10, False),
        (CompactionTrigger.NUM_OR_TIME, 5, 10, True),
        (CompactionTrigger.NUM_OR_TIME, 4, 11, True),
        (CompactionTrigger.NUM_OR_TIME, 5, 11, False),
    ],
)
def test_commits_and_time_since_the_first_delta_commit(
    trigger: CompactionTrigger, commits: int, seconds: int, expected: bool
) -> None:
    assert due(trigger, *FOUR, commits=commits, seconds=seconds, at=11) is expected


def test_only_commits_completed_after_the_last_compaction_was_requested_count() -> None:
    number = CompactionTrigger.NUM_COMMITS
    assert due(number, *FOUR, COMPACTED, commits=2, seconds=99, at=20)
    assert not due(number, *FOUR, COMPACTED, commits=3, seconds=99, at=20)


def test_a_pending_plan_counts_only_where_the_last_request_does() -> None:
    planned = f"{T(4)}.compaction.requested"
    for trigger, expected in (
        (CompactionTrigger.NUM_COMMITS, True),
        (CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST, False),
    ):
        assert due(trigger, *FOUR, planned, commits=4, seconds=99, at=20) is expected


def test_time_alone_makes_nothing_due_where_nothing_was_appended() -> None:
    elapsed = CompactionTrigger.TIME_ELAPSED
    assert not due(elapsed, COMPACTED, commits=1, seconds=1, at=50)
    assert not due(elapsed, delta(1, 2), COMPACTED, commits=1, seconds=1, at=50)


def test_no_compaction_is_due_while_a_restore_is_pending() -> None:
    restoring = f"{T(9)}.restore.inflight"
    number = CompactionTrigger.NUM_COMMITS
    assert not due(number, *FOUR, restoring, commits=1, seconds=1, at=20)


def slice_of(
    file_id: str, *logs: int, base: int | None = 0, partition_path: str = "p"
) -> FileSlice:
    group = FileGroupId(partition_path, file_id)
    return FileSlice(
        file_group=group,
        base_instant_time=T(1),
        base_file=None
        if base is None
        else BaseFile(
            file_group=group, name=f"{file_id}_0-0-0_{T(1)}.parquet", requested_time=T(1),
            size_bytes=base,
        ),
        log_files=tuple(
            LogFile(
                file_group=group, name=f".{file_id}_{T(number)}.log.1_0-0-0", log_version=1,
                instant_time=T(number), write_token="0-0-0", size_bytes=size,
            )
            for number, size in enumerate(logs, start=2)
        ),
    )  # fmt: skip


def operations(*slices: FileSlice) -> list[CompactionOperation]:
    return operations_of(slices, (), new_file_bytes=120 * MB)


def taken(strategy: CompactionStrategy, *slices: FileSlice, **settings: int) -> list[str]:
    chosen = choose(operations(*slices), CompactionSettings(strategy=strategy, **settings))
    return [f"{one.file_id}" for one in chosen]


def test_metrics_are_counted_as_by_java() -> None:
    with_base, without = operations(
        slice_of("a", 3 * MB, 4 * MB + 5, base=10 * MB), slice_of("b", 7, base=None)
    )
    assert with_base.metrics == {
        "TOTAL_LOG_FILES": 2.0,
        "TOTAL_LOG_FILES_SIZE": 7.0 * MB + 5,
        "TOTAL_IO_READ_MB": 17.0,
        "TOTAL_IO_WRITE_MB": 10.0,
        "TOTAL_IO_MB": 27.0,
    }
    assert without.metrics["TOTAL_IO_WRITE_MB"] == 120.0
    assert (without.data_file_path, without.base_instant_time) == (None, T(1))


def test_slices_without_logs_and_those_of_other_plans_are_not_planned() -> None:
    busy = {FileGroupId("p", "c")}
    slices = [slice_of("a", 1), slice_of("b"), slice_of("c", 1)]
    found = operations_of(slices, busy, new_file_bytes=0)
    assert [one.file_id for one in found] == ["a"]


def test_slices_with_the_most_log_bytes_are_first_and_small_ones_wait() -> None:
    slices = [slice_of("a", 5), slice_of("b", 50), slice_of("c", 500)]
    by_size = CompactionStrategy.LOG_FILE_SIZE
    assert taken(by_size, *slices) == ["c", "b", "a"]
    assert taken(by_size, *slices, log_bytes_min=50) == ["c", "b"]


def test_slices_with_the_most_log_files_are_first_and_those_with_few_wait() -> None:
    slices = [slice_of("a", 9), slice_of("b", 1, 1), slice_of("c", 1, 1, 1)]
    by_number = CompactionStrategy.LOG_FILE_NUM
    assert taken(by_number, *slices) == ["c", "b", "a"]
    assert taken(by_number, *slices, log_files_min=2) == ["c", "b"]


def test_megabytes_bound_a_compaction_but_one_is_always_taken() -> None:
    slices = [slice_of("a", 2 * MB, base=4 * MB), slice_of("b", MB), slice_of("c", MB)]
    bounded = CompactionStrategy.BOUNDED_IO
    assert taken(bounded, *slices, target_io_mb=1) == ["a"]
    assert taken(bounded, *slices, target_io_mb=11) == ["a", "b"]
    assert taken(CompactionStrategy.UNBOUNDED, *slices, target_io_mb=1) == ["a", "b", "c"]


def test_the_latest_days_are_first() -> None:
    days = ("2026/01/02", "2026/01/10", "2025/12/31")
    for paths in (days, tuple(f"d={day.replace('/', '-')}" for day in days)):
        slices = [slice_of(f"f{n}", 1, partition_path=path) for n, path in enumerate(paths)]
        assert taken(CompactionStrategy.DAY_BASED, *slices, days_max=2) == ["f1", "f0"]


def test_strategies_are_named_as_by_hudi() -> None:
    java = "org.apache.hudi.table.action.compact.strategy.UnBoundedCompactionStrategy"
    for name in (java, "UnBoundedCompactionStrategy"):
        settings = CompactionSettings.from_properties({"hoodie.compaction.strategy": name})
        assert settings.strategy is CompactionStrategy.UNBOUNDED
    assert CompactionSettings.from_properties({}).strategy is CompactionStrategy.LOG_FILE_SIZE


def test_an_unknown_strategy_is_refused_by_name() -> None:
    settings = CompactionSettings(strategy="com.acme.Best")
    with pytest.raises(SettingError, match=r"BoundedIOCompactionStrategy.*com\.acme\.Best"):
        choose(operations(slice_of("a", 1)), settings)
    last = CompactionOrder(name="com.acme.Best", choose=lambda found, _: found[-1:])
    chosen = choose(operations(slice_of("a", 1), slice_of("b", 1)), settings, [last])
    assert [one.file_id for one in chosen] == ["b"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.compact.inline.max.delta.commits", "0"),
        ("hoodie.compact.inline.max.delta.seconds", "soon"),
        ("hoodie.compact.inline.trigger.strategy", "SOMETIMES"),
        ("hoodie.compaction.target.io", "-1"),
    ],
)
def test_a_wrong_value_names_its_key(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=key):
        CompactionSettings.from_properties({key: value})
