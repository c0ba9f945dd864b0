"""Services over Spark: the cluster's tasks do the work of each file group."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo.spark
from tests.acceptance.cli import run
from timeline.errors import CorruptTableError

pytestmark = pytest.mark.spark

MERGE_ON_READ = {"hoodie__datasource__write__table__type": "MERGE_ON_READ"}
START = [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0), (3, "tue", 10, 3.0)]
LATER = [(1, "mon", 11, 7.0), (3, "tue", 11, 9.0)]


def test_a_compaction_runs_on_the_cluster(
    spark: Any, save: Callable[..., Any], rows: Callable[..., Any], path: str
) -> None:
    save(START, **MERGE_ON_READ)
    save(LATER, **MERGE_ON_READ)
    with hoodoo.spark.table(spark, path) as table:
        result = table.services.compact()
        assert (result.file_groups, result.rows_written) == (2, 3)
        assert all(not one.log_files for one in table.file_slices())
    assert rows() == [(1, "mon", 11, 7.0), (2, "mon", 10, 2.0), (3, "tue", 11, 9.0)]


@pytest.mark.parametrize("front", ["python", "command line"])
def test_the_executor_is_chosen_by_one_option(
    spark: Any, save: Callable[..., Any], path: str, front: str, jobs: Callable[[], Any]
) -> None:
    save(START, **MERGE_ON_READ)
    save(LATER, **MERGE_ON_READ)
    before = set(jobs().getJobIdsForGroup())
    if front == "python":
        properties = {"hoodoo.services.executor": "spark", "hoodoo.services.file.groups.max": "1"}
        with hoodoo.open_table(path, properties=properties) as table:
            result = table.services.compact()
        assert result.file_groups == 2
    else:
        done = run("services", "run", path, "--service", "compact", "--executor", "spark")
        assert done.exit_code == 0, done.err
        assert done.document["file_groups"] == 2
    assert len(set(jobs().getJobIdsForGroup()) - before) == 1


def test_a_clustering_runs_on_the_cluster(
    spark: Any, save: Callable[..., Any], rows: Callable[..., Any], path: str
) -> None:
    save(START, **MERGE_ON_READ)
    save(LATER, **MERGE_ON_READ)
    with hoodoo.spark.table(spark, path) as table:
        names = table.to_arrow().schema.names
        result = table.services.cluster([names[0], names[2]], curve="hilbert")
        assert (result.groups, result.rows_written) == (2, 3)
        assert table.services.cluster([names[0], names[2]], curve="hilbert") is None
    assert rows() == [(1, "mon", 11, 7.0), (2, "mon", 10, 2.0), (3, "tue", 11, 9.0)]


def test_an_error_of_a_task_reaches_the_caller(
    spark: Any, save: Callable[..., Any], path: str
) -> None:
    save(START, **MERGE_ON_READ)
    save(LATER, **MERGE_ON_READ)
    with hoodoo.spark.table(spark, path) as table:
        planned = table.services.schedule("compact").requested_time
        for log in Path(path).glob("*/.*.log.*_*"):
            log.write_bytes(b"damaged")
        with pytest.raises(CorruptTableError, match=r"\.log\."):
            table.services.execute(planned)
        assert [one.state for one in table.timeline][-1] == "inflight"


def test_the_collector_of_a_worker_leaves_out_the_modules(spark: Any) -> None:
    def frozen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        importlib.import_module("hoodoo.spark.tasks")
        yield from (pa.RecordBatch.from_pydict({"n": [gc.get_freeze_count()]}) for _ in batches)

    row = spark.range(0, 1, 1, 1).mapInArrow(frozen, "n long").first()
    assert row.n > 50_000
