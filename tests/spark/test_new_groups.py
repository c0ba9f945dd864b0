"""Rows of new file groups: tasks write them in one pass, without a count and without a cache."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from filegroups.files.rewrite import FileGroupTask
from filegroups.index import LookupRules
from filegroups.keys.keys import KeySpec
from filegroups.schema.schema import TableSchema
from filegroups.writing import pending_commit
from filegroups.writing import write as write_module
from filegroups.writing.workload import NewGroups, NewGroupStats
from filegroups.writing.write_request import RowRules
from hoodoo.spark import tasks
from hoodoo.spark.attempts import keep_if_awaited
from hoodoo.spark.tasks import KEY, PARTITION
from hoodoo.spark.workload import SparkWorkload
from tests.spark.conftest import OPTIONS
from timeline.commit.markers import MarkedFile, announced, create_marker, withdraw_marker
from timeline.errors import InvalidInputError, UnavailableError
from timeline.model.commit_metadata import MergeMode, WriteOperation, WriteStat
from timeline.model.file_names import IOType, heartbeat_path
from timeline.model.merge_definition import MergeDefinition
from timeline.storage.open_storage import storage_for

pytestmark = pytest.mark.spark

OPERATION = "hoodie.datasource.write.operation"
SORT = "hoodie.bulkinsert.sort.mode"
SMALL_FILES = {
    "hoodie.copyonwrite.insert.auto.split": "false",
    "hoodie.copyonwrite.insert.split.size": "100",
    "hoodie.parquet.small.file.limit": "0",
}


@pytest.fixture
def job_count(spark: Any, jobs: Any) -> Iterator[Callable[[], int]]:
    """Return the number of jobs of this test so far."""
    spark.sparkContext.setJobGroup("new groups", "")
    yield lambda: len(jobs().getJobIdsForGroup("new groups"))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def many(spark: Any, count: int = 1000, paths: int = 2, tasks: int = 3) -> Any:
    """Return rows whose keys are not in order."""
    return spark.range(0, count, 1, tasks).selectExpr(
        f"(id * 7919) % {count} id", f"concat('day', id % {paths}) day", "id at", "id * 0.5D amount"
    )


def files_of(path: str) -> dict[str, list[list[str]]]:
    """Return the keys of each file by partition path, in the order of the file."""
    found: dict[str, list[list[str]]] = {}
    for file in sorted(Path(path).glob("*/*.parquet")):
        keys = pq.read_table(file, partitioning=None).column(KEY).to_pylist()
        found.setdefault(file.parent.name, []).append(keys)
    return found


def write(df: Any, path: str, **options: str) -> Any:
    return df.write.format("hoodoo").options(**OPTIONS, **options).mode("append").save(path)


def test_a_bulk_insert_runs_one_job_and_caches_nothing(
    spark: Any, path: str, job_count: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = []
    cached_rdds = spark.sparkContext._jsc.getPersistentRDDs
    write_new_groups = SparkWorkload.write_new_groups

    def noted(self: SparkWorkload, groups: NewGroups) -> list[NewGroupStats]:
        found = write_new_groups(self, groups)
        cached.append(set(cached_rdds()))
        return found

    monkeypatch.setattr(SparkWorkload, "write_new_groups", noted)
    before = set(cached_rdds())
    result = write(many(spark), path, **{OPERATION: "bulk_insert"})
    assert job_count() == 1
    assert cached == [before]
    assert result.rows_inserted == 1000
    written = files_of(path)
    assert sorted(written) == ["day0", "day1"]
    assert all(len(files) == 3 for files in written.values())  # one for each task
    with hoodoo.open_table(path) as table:
        assert table.verify().problems == ()
        rows = table.to_arrow(with_hoodie_columns=True)
    numbers = rows.column("_hoodie_commit_seqno").to_pylist()
    assert len(set(numbers)) == 1000
    assert sorted(rows.column("id").to_pylist()) == list(range(1000))


def test_a_full_file_is_followed_by_another(spark: Any, path: str) -> None:
    write(many(spark, tasks=1), path, **{OPERATION: "bulk_insert"}, **SMALL_FILES)
    for files in files_of(path).values():
        assert [len(keys) for keys in files] == [100] * 5


def test_rows_without_keys_get_keys_that_differ(spark: Any, path: str) -> None:
    options = {"hoodie.datasource.write.partitionpath.field": "day", **SMALL_FILES}
    df = many(spark)
    df.write.format("hoodoo").options(**options).mode("append").save(path)
    keys = [key for files in files_of(path).values() for one in files for key in one]
    assert len(keys) == len(set(keys)) == 1000


@pytest.mark.parametrize("driver", [False, True])
def test_a_global_sort_sorts_keys_over_all_files(
    spark: Any, path: str, request: pytest.FixtureRequest, driver: bool
) -> None:
    if driver:
        request.getfixturevalue("driver_writes")
    options = {OPERATION: "bulk_insert", SORT: "GLOBAL_SORT", **SMALL_FILES}
    write(many(spark), path, **options)
    for files in files_of(path).values():
        assert all(keys == sorted(keys) for keys in files)
        ranges = sorted((keys[0], keys[-1]) for keys in files)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
        assert sum(map(len, files)) == 500


def test_a_partition_sort_sorts_the_keys_of_each_file(spark: Any, path: str) -> None:
    write(many(spark), path, **{OPERATION: "bulk_insert", SORT: "PARTITION_SORT"})
    for files in files_of(path).values():
        assert len(files) == 3
        assert all(keys == sorted(keys) for keys in files)


@pytest.mark.parametrize("mode", ["", "_AND_SORT"])
def test_a_repartition_by_path_writes_one_file_for_each(spark: Any, path: str, mode: str) -> None:
    options = {OPERATION: "bulk_insert", SORT: f"PARTITION_PATH_REPARTITION{mode}"}
    write(many(spark, paths=5), path, **options)
    assert [len(files) for files in files_of(path).values()] == [1] * 5


@pytest.mark.parametrize("operation", ["insert", "upsert"])
def test_the_first_rows_of_a_table_need_no_count(
    spark: Any, path: str, rows: Any, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def counted(*_: Any) -> None:
        pytest.fail("the rows were counted and routed")

    monkeypatch.setattr(SparkWorkload, "rewrite", counted)
    write(many(spark, paths=3), path, **{OPERATION: operation})
    assert sorted(files_of(path)) == ["day0", "day1", "day2"]
    assert [row[0] for row in rows()] == list(range(1000))


def test_an_insert_that_fills_no_small_file_needs_no_count(
    spark: Any, path: str, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(*_: Any) -> None:
        pytest.fail("the rows were counted and routed")

    options = {OPERATION: "insert", **SMALL_FILES}
    write(many(spark, count=300), path, **options)
    monkeypatch.setattr(SparkWorkload, "rewrite", counted)
    write(many(spark, count=300), path, **options)  # the same keys again: an insert adds rows
    assert [row[0] for row in rows()] == [number // 2 for number in range(600)]
    assert sum(len(keys) for files in files_of(path).values() for keys in files) == 600


@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE"])
def test_the_first_upsert_keeps_one_row_of_each_key(
    spark: Any, path: str, rows: Any, index: str
) -> None:
    df = spark.range(0, 900, 1, 4).selectExpr(
        "id % 100 id", "concat('day', id % 2) day", "id at", "id * 1D amount"
    )
    write(df, path, **{"hoodie.index.type": index})
    assert rows() == [(n, f"day{n % 2}", 800 + n, 800.0 + n) for n in range(100)]


def test_files_of_another_attempt_are_deleted_before_the_commit(
    spark: Any, path: str, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_new_groups, reconcile = SparkWorkload.write_new_groups, pending_commit.reconcile_files
    late = f"{uuid.uuid4()}-0_7-7-7_{{}}.parquet"  # of an attempt on a lost executor
    announcements: list[frozenset[str]] = []

    def twice(self: SparkWorkload, groups: NewGroups) -> list[NewGroupStats]:
        lost = write_new_groups(self, groups)  # as an attempt whose result did not arrive
        assert len(list(Path(path).glob("*/*.parquet"))) == len(lost)
        time = groups.task.requested_time
        name = late.format(time)
        create_marker(self._address.open(), time, "day0", name, IOType.CREATE)
        return write_new_groups(self, groups)

    def noted(context: Any, begun: Any, *others: Any) -> None:
        time, storage = begun.requested_time, context.ports.storage
        announcements.append(announced(storage, time, "day0"))
        reconcile(context, begun, *others)
        announcements.append(announced(storage, time, "day0"))
        assert storage.stat(heartbeat_path(time)) is not None
        assert announcements[0] - announcements[1] == {late.format(time)}

    monkeypatch.setattr(SparkWorkload, "write_new_groups", twice)
    monkeypatch.setattr(write_module, "reconcile_files", noted)
    monkeypatch.setattr(pending_commit, "_LATE_FILES_MS", 0)
    result = write(many(spark), path, **{OPERATION: "bulk_insert"})
    assert len(announcements) == 2
    assert len(list(Path(path).glob("*/*.parquet"))) == result.files_written == 6
    assert [row[0] for row in rows()] == list(range(1000))


@pytest.mark.parametrize("ended", ["", "withdrawn", "committed"])
def test_an_attempt_deletes_files_that_its_write_no_longer_awaits(
    tmp_path: Path, ended: str
) -> None:
    storage, time = storage_for(str(tmp_path)), "20260101000000000"
    file = MarkedFile("day0", f"{uuid.uuid4()}-0_0-0-1_{time}.parquet", IOType.CREATE)
    storage.write(heartbeat_path(time), b"")
    create_marker(storage, time, *file)
    with storage.open_output(file.path) as sink:
        sink.write(b"rows")
    if ended == "withdrawn":
        withdraw_marker(storage, time, file)
    elif ended == "committed":
        storage.delete(heartbeat_path(time))
    stats = [WriteStat(file_id="f", path=file.path, partition_path="day0")]
    if ended:
        with pytest.raises(UnavailableError) as caught:
            keep_if_awaited(storage, time, stats)
        assert caught.value.kind == "tasks_run_on"
    else:
        keep_if_awaited(storage, time, stats)
    assert (storage.stat(file.path) is None) is bool(ended)


def test_bad_rows_of_a_later_bulk_insert_leave_no_file(spark: Any, path: str) -> None:
    write(many(spark), path, **{OPERATION: "bulk_insert"})
    before = sorted(Path(path).rglob("*.parquet"))
    bad = many(spark).selectExpr(
        "if(id > 600, null, id) id", "concat('new', day) day", "at", "amount"
    )
    with pytest.raises(InvalidInputError) as caught:
        write(bad, path, **{OPERATION: "bulk_insert"})
    assert caught.value.kind == "null_key"
    assert caught.value.fields["rows"] == 399
    assert sorted(Path(path).rglob("*.parquet")) == before
    with hoodoo.open_table(path) as table:
        assert len(table.timeline) == 1


@pytest.mark.parametrize("operation", ["bulk_insert", "upsert"])
def test_a_failing_query_of_the_first_save_makes_no_table(
    spark: Any, path: str, operation: str
) -> None:
    bad = many(spark, tasks=1).selectExpr(
        "id", "day", "at", "if(id = 5, raise_error('broken'), amount) amount"
    )
    with pytest.raises(Exception, match="broken"):
        write(
            bad.selectExpr("id", "day", "at", "cast(amount as double) amount"),
            path,
            **{OPERATION: operation},
        )
    assert not Path(path, ".hoodie").exists()
    assert list(Path(path).rglob("*.parquet")) == []


def test_a_nested_partition_is_refused_after_its_files_were_written(spark: Any, path: str) -> None:
    df = spark.sql("select 1L id, 'a' day, 1L at, 1D amount union all select 2L, 'a/b', 1L, 1D")
    with pytest.raises(InvalidInputError) as caught:
        write(df, path, **{OPERATION: "bulk_insert"})
    assert caught.value.kind == "nested_partition"
    assert list(Path(path).rglob("*.parquet")) == []


def new_groups(rows_per_file: int, bytes_per_file: int = 0) -> NewGroups:
    """Return new file groups of this size."""
    task = FileGroupTask(
        requested_time="20260101000000000",
        operation=WriteOperation.BULK_INSERT,
        partition_path="",
        file_id="",
        write_token="",
        task_number=0,
        avro_json="",
    )
    return NewGroups(task=task, rows_per_file=rows_per_file, bytes_per_file=bytes_per_file)


def test_many_bytes_of_several_partitions_become_smaller_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "_KEPT_BYTES_MAX", 10_000)
    kept = tasks._RowsByPartition(new_groups(1_000_000))
    written: list[tuple[str, pa.Table]] = []
    for start in range(0, 3000, 300):
        numbers = np.arange(start, start + 300)
        paths = [f"p{number % 3}" for number in numbers]
        written.extend(kept.add(pa.table({"n": numbers, PARTITION: paths})))
        assert sum(kept._bytes.values()) <= 10_000
    assert len(written) > 3
    written.extend(kept.rest())
    assert sorted(n for _, rows in written for n in rows["n"].to_pylist()) == list(range(3000))
    assert all(set(rows[PARTITION].to_pylist()) == {path} for path, rows in written)


@pytest.mark.parametrize("piece_rows", [1, 3, 7, 100])
def test_rows_of_a_key_in_several_batches_become_one(
    monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    monkeypatch.setattr(tasks, "_PIECE_ROWS", piece_rows)
    schema = TableSchema.from_arrow(pa.schema([("id", pa.int64()), ("v", pa.int64())]), "t")
    rules = RowRules(
        keys=KeySpec(record_key_fields=("id",), partition_fields=("day",)),
        operation=WriteOperation.UPSERT,
        merge=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING),
        ordering_fields=(),
        combine=True,
        tags=True,
    )
    task = FileGroupTask(
        requested_time="20260101000000000",
        operation=WriteOperation.UPSERT,
        partition_path="",
        file_id="",
        write_token="",
        task_number=0,
        avro_json=schema.avro_json,
    )
    work = tasks.WriteNewGroups(
        address=tasks.StorageAddress(base_uri="unused"),
        rules=rules,
        schema=schema.arrow,
        groups=NewGroups(task=task, rows_per_file=10),
        prepared=True,
    )
    ids = [0] * 5 + [1] + [2] * 9 + [3, 3]
    days = ["a"] * 12 + ["b"] * 5  # so key 2 is in two partitions
    rows = pa.table(
        {
            "id": ids,
            "v": range(17),
            KEY: list(map(str, ids)),
            PARTITION: days,
            tasks.ORDER: range(17),
            tasks.ROWS: [1] * 17,
            tasks.ERROR: pa.nulls(17, pa.string()),
        }
    )
    pieces = list(work._pieces(rows.to_batches(2)))
    found = pa.concat_tables([one for one in pieces if isinstance(one, pa.Table)])
    assert found.column("v").to_pylist() == [4, 5, 11, 14, 16]
    assert found.column(PARTITION).to_pylist() == ["a", "a", "a", "b", "b"]
    everywhere = replace(rules, lookup=LookupRules(whole_table=True))
    work_of_index = tasks.CombineRows(rules=everywhere, avro_json=schema.avro_json)
    kept = pa.Table.from_batches(work_of_index(rows.to_batches(2)))
    assert kept.schema == rows.schema
    assert kept.column("v").to_pylist() == [4, 5, 14, 16]


def test_the_rows_of_the_last_key_start_where_they_begin() -> None:
    rows = pa.table({PARTITION: ["a", "a", "b", "b", "b"], KEY: ["1", "2", "2", "3", "3"]})
    assert tasks._start_of_last(rows, (PARTITION, KEY)) == 3
    assert tasks._start_of_last(rows.slice(0, 3), (PARTITION, KEY)) == 2
    assert tasks._start_of_last(rows.slice(0, 3), (KEY,)) == 1
    assert tasks._start_of_last(rows.slice(3), (PARTITION, KEY)) == 0


def test_a_file_is_full_by_its_rows_and_by_their_bytes() -> None:
    rows = pa.table({"v": range(50), PARTITION: ["a"] * 50})

    def files(rows_per_file: int, bytes_per_file: int) -> list[int]:
        held = tasks._RowsByPartition(new_groups(rows_per_file, bytes_per_file))
        full = [one for _ in range(4) for one in held.add(rows)]
        made = [one for _, one in (*full, *held.rest())]
        found = [number for one in made for number in one.column("v").to_pylist()]
        assert found == list(range(50)) * 4
        return [one.num_rows for one in made]

    assert files(80, 0) == [80, 80, 40]
    assert files(30, 2 * rows.nbytes) == [100, 100]
    assert files(120, 2 * rows.nbytes) == [120, 80]
    assert files(30, rows.nbytes // 2) == [30] * 6 + [20]
    assert files(1000, 1) == [200]
