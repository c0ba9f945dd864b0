"""The slices that are rewritten together, the partitions that are read, and the trigger."""

from __future__ import annotations

from typing import Any

import pytest

from tableservices.clustering.curves import Curve
from tableservices.clustering.plan import (
    SliceGroup,
    chosen_partitions,
    commits_since_clustering,
    plan_groups,
)
from tableservices.clustering.settings import (
    EXECUTION_DEFAULT,
    PLAN_DEFAULT,
    ClusteringSettings,
)
from timeline.errors import SettingError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.properties.options import as_property_set
from timeline.snapshot import ActiveTimeline

_T1, _T2 = "20260101000000000", "20260102000000000"
_PLAN = "hoodie.clustering.plan.strategy"


def _slice(
    file_id: str, size: int, *, partition: str = "p", time: str = _T1, log_bytes: int = 0
) -> FileSlice:
    group = FileGroupId(partition, file_id)
    base = BaseFile(file_group=group, name=f"{file_id}.x", requested_time=time, size_bytes=size)
    log = LogFile(
        file_group=group,
        name=f".{file_id}.log",
        instant_time=time,
        log_version=1,
        write_token="",
        size_bytes=log_bytes,
    )
    return FileSlice(
        file_group=group,
        base_instant_time=time,
        base_file=base if size else None,
        log_files=(log,) if log_bytes else (),
    )


def _settings(**values: Any) -> ClusteringSettings:
    return ClusteringSettings(**{"target_file_bytes": 100, "group_bytes": 200, **values})


def _ids(groups: tuple[SliceGroup, ...]) -> list[tuple[str, ...]]:
    return [tuple(one.file_group.file_id for one in group.slices) for group in groups]


def test_small_slices_of_a_partition_fill_groups_the_biggest_first() -> None:
    slices = [_slice("a", 50), _slice("b", 120), _slice("c", 60), _slice("d", 90, partition="q")]
    groups = plan_groups(slices, {}, _settings(single_groups=True, sort_columns=("x",)))
    assert _ids(groups) == [("b", "c"), ("a",), ("d",)]
    assert [group.output_files for group in groups] == [2, 1, 1]


def test_large_files_owned_groups_and_empty_slices_are_not_planned() -> None:
    slices = [_slice("big", 80), _slice("owned", 10), _slice("empty", 0), _slice("a", 10)]
    settings = _settings(small_file_bytes=80, sort_columns=("x",))
    owned = {FileGroupId("p", "owned"): "a pending plan"}
    assert _ids(plan_groups(slices, owned, settings)) == [("a",)]


def test_a_slice_of_logs_alone_is_rewritten() -> None:
    assert _ids(plan_groups([_slice("l", 0, log_bytes=7)], {}, _settings())) == [("l",)]


def test_the_number_of_groups_is_bounded() -> None:
    slices = [_slice(name, 150) for name in "abcd"]
    settings = _settings(groups_max=3, sort_columns=("x",))
    assert _ids(plan_groups(slices, {}, settings)) == [("a",), ("b",), ("c",)]


def test_a_single_slice_makes_a_group_only_by_option() -> None:
    settings = _settings(single_groups=False, sort_columns=("x",))
    assert plan_groups([_slice("a", 150), _slice("b", 150)], {}, settings) == ()


def test_each_slice_alone_when_files_are_only_sorted() -> None:
    settings = _settings(
        plan_class=PLAN_DEFAULT.replace("SizeBasedClustering", "SingleFileSort"),
        sort_columns=("x",),
    )
    groups = plan_groups([_slice("a", 150), _slice("b", 10)], {}, settings)
    assert _ids(groups) == [("a",), ("b",)]
    assert [group.output_files for group in groups] == [1, 1]


def test_a_group_without_gain_is_not_planned() -> None:
    alone = [_slice("a", 50)]
    assert plan_groups(alone, {}, _settings()) == ()  # one file in, one file out, no order
    done = frozenset({_T1})
    sorting = _settings(sort_columns=("x",))
    assert plan_groups(alone, {}, sorting, clustered=done) == ()
    changed = [_slice("a", 50), _slice("b", 50, time=_T2)]
    assert _ids(plan_groups(changed, {}, sorting, clustered=done)) == [("a", "b")]
    logged = [_slice("a", 50, log_bytes=5)]
    assert _ids(plan_groups(logged, {}, sorting, clustered=done)) == [("a",)]


def test_the_oldest_slices_are_first_by_option() -> None:
    slices = [_slice("new", 120, time=_T2), _slice("old", 50)]
    settings = _settings(slice_order="INSTANT_TIME", sort_columns=("x",))
    assert _ids(plan_groups(slices, {}, settings)) == [("old", "new")]


_DAYS = ["d=01", "d=02", "d=03", "d=04"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, _DAYS),
        ({"partition_mode": "RECENT_DAYS"}, ["d=03", "d=04"]),
        ({"partition_mode": "RECENT_DAYS", "partitions_skipped": 1}, ["d=02", "d=03"]),
        ({"partition_mode": "RECENT_DAYS", "partitions_lookback": 9}, _DAYS),
        (
            {
                "partition_mode": "SELECTED_PARTITIONS",
                "partitions_begin": "d=02",
                "partitions_end": "d=03",
            },
            ["d=02", "d=03"],
        ),
        ({"partition_mode": "DAY_ROLLING"}, ["d=03"]),
        ({"partitions_regex": "d=0[13]"}, ["d=01", "d=03"]),
        ({"partitions_regex": "0"}, []),
        ({"partitions_selected": ("d=04", "nope")}, ["d=04"]),
        (
            {"plan_class": "SparkRecentDaysClusteringPlanStrategy", "partitions_lookback": 1},
            ["d=04"],
        ),
    ],
)
def test_partitions_are_chosen_as_hudi_chooses_them(
    values: dict[str, Any], expected: list[str]
) -> None:
    assert chosen_partitions(reversed(_DAYS), _settings(**values), hour=2) == expected


def test_commits_count_since_the_last_clustering_pending_or_not() -> None:
    names = [
        "20260101000000001_20260101000000002.commit",
        "20260101000000003_20260101000000004.replacecommit",
        "20260101000000005_20260101000000006.commit",
        "20260101000000007_20260101000000008.replacecommit",
    ]
    timeline = ActiveTimeline.of(names)
    assert commits_since_clustering(timeline, frozenset()) == 4
    assert commits_since_clustering(timeline, frozenset({"20260101000000003"})) == 2
    pending = ActiveTimeline.of([*names, "20260101000000009.clustering.requested"])
    assert commits_since_clustering(pending, frozenset({"20260101000000003"})) == 0


def test_settings_are_read_by_hudis_keys() -> None:
    settings = ClusteringSettings.from_properties(
        {
            f"{_PLAN}.sort.columns": "a, b.c",
            "hoodie.layout.optimize.strategy": "z-order",
            "hoodie.datasource.clustering.inline.enable": "true",
            "hoodie.clustering.execution.strategy.class": EXECUTION_DEFAULT,
        }
    )
    assert (settings.sort_columns, settings.curve) == (("a", "b.c"), Curve.ZORDER)
    assert settings.inline


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        (f"{_PLAN}.class", "com.example.Mine", "not known"),
        (f"{_PLAN}.class", "SparkConsistentBucketClusteringPlanStrategy", "consistent hashing"),
        ("hoodie.clustering.execution.strategy.class", "Mine", "not known"),
        ("hoodie.layout.optimize.strategy", "peano", "LINEAR"),
        (f"{_PLAN}.partition.regex.pattern", "(", "regular expression"),
        (f"{_PLAN}.max.num.groups", "0", "greater"),
        (f"{_PLAN}.sort.columns", ",".join("abcdefghijklmnopqrstuvwxyzABCDEF"), "31"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key: str, value: str, word: str) -> None:
    with pytest.raises(SettingError, match=word) as caught:
        ClusteringSettings.from_properties(as_property_set({key: value}))
    assert caught.value.fields["key"] == key
