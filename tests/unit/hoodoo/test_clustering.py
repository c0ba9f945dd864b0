"""Clustering by the front door: Python, inline after a commit, refused settings."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from timeline.errors import InvalidInputError, SettingError
from timeline.model.instant import Action

_KEEP_APART = {"hoodie.parquet.small.file.limit": "0", "hoodie.clean.automatic": "false"}


def rows(first: int) -> pa.Table:
    ids = [f"{first + n}" for n in range(4)]
    return pa.table({"id": ids, "a": [3, 1, 2, first], "b": [1.5, 0.5, 9.0, 2.5]})


def new_table(path: Path, **more: str) -> hoodoo.Table:
    properties = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "",
        **_KEEP_APART,
        **more,
    }
    return hoodoo.create_table(path, properties=properties)


def test_small_files_become_one_in_the_sort_order(tmp_path: Path) -> None:
    with new_table(tmp_path / "t") as table:
        for first in (0, 10, 20):
            table.insert(rows(first))
        before = sorted(table.to_arrow().to_pylist(), key=str)
        result = table.services.cluster(["a", "b"], curve="zorder")
        assert result is not None
        assert result.text.startswith("clustered 3 file groups into 1 file, 12 rows")
        assert sorted(table.to_arrow().to_pylist(), key=str) == before
        assert len(table.file_slices()) == 1
        assert table.services.cluster(["a", "b"], curve="zorder") is None
        table.services.cluster(["a"])
        assert table.to_arrow().column("a").to_pylist() == sorted(row["a"] for row in before)
    assert verify_at(tmp_path / "t", Layers()).problems == ()


def test_a_writer_clusters_after_enough_commits(tmp_path: Path) -> None:
    inline = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "3"}
    with new_table(tmp_path / "t", **inline) as table:
        for first in (0, 10):
            table.insert(rows(first))
        assert len(table.file_slices()) == 2
        table.insert(rows(20))
        assert len(table.file_slices()) == 1
        table.insert(rows(30))
        assert len(table.file_slices()) == 2


def test_a_writer_may_only_plan_and_another_executes_the_plan(tmp_path: Path) -> None:
    planning = {
        "hoodie.clustering.schedule.inline": "true",
        "hoodie.clustering.inline.max.commits": "2",
    }
    with new_table(tmp_path / "t", **planning) as table:
        table.insert(rows(0))
        table.insert(rows(10))
        [planned] = table.context.active().pending
        assert planned.action is Action.CLUSTERING
        table.services.execute(planned.requested_time)
        assert len(table.file_slices()) == 1


def test_a_table_with_a_left_out_clustering_group_is_complete(tmp_path: Path) -> None:
    groups = {"hoodie.clustering.plan.strategy.max.bytes.per.group": "1"}
    sorting = {"hoodie.clustering.plan.strategy.sort.columns": "a"}
    with new_table(tmp_path / "t", **groups, **sorting) as table:
        for first in (0, 10, 20):
            table.insert(rows(first))
        planned = table.services.schedule("cluster")
        assert planned is not None
        table.upsert(rows(10))
        result = table.services.execute(planned.requested_time)
        assert result is not None
        assert result.text.endswith("1 group left to writers")
        assert table.to_arrow().num_rows == 12
        table.services.clean()
        assert table.to_arrow().num_rows == 12
    assert verify_at(tmp_path / "t", Layers()).problems == ()


def test_a_wrong_column_or_curve_changes_nothing(tmp_path: Path) -> None:
    with new_table(tmp_path / "t") as table:
        table.insert(rows(0))
        table.insert(rows(10))
        with pytest.raises(InvalidInputError, match="nope"):
            table.services.cluster(["nope"])
        with pytest.raises(SettingError, match="HILBERT"):
            table.services.cluster(["a"], curve="peano")
        assert table.context.active().pending == ()
