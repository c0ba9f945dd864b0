"""DataFrames saved into merge-on-read tables: the same tasks append on Spark's workers."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from filegroups.files.slice_reader import split_by_logs
from hoodoo.spark import slices
from hoodoo.spark.read import plan_load
from timeline.errors import InvalidInputError

pytestmark = pytest.mark.spark

OPERATION = "hoodie__datasource__write__operation"
MERGE_ON_READ = {"hoodie__datasource__write__table__type": "MERGE_ON_READ"}
BUCKETS = {
    **MERGE_ON_READ,
    "hoodie__index__type": "BUCKET",
    "hoodie__bucket__index__num__buckets": "2",
}
START = [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0), (3, "tue", 10, 3.0)]


def logs(path: str) -> list[Path]:
    return sorted(Path(path).glob("*/.*.log.*_*"))


@pytest.mark.parametrize("options", [MERGE_ON_READ, BUCKETS], ids=["simple", "bucket"])
def test_updates_and_deletes_are_appended(
    save: Any, rows: Any, path: str, options: dict[str, str]
) -> None:
    assert save(START, **options).action == "deltacommit"
    before = sorted(Path(path).glob("*/*.parquet"))
    changed = save([(1, "mon", 11, 7.0), (2, "mon", 9, 9.0)], **options)
    assert (changed.action, changed.rows_updated) == ("deltacommit", 2)
    deleting = {**options, OPERATION: "delete"}
    gone = save([(3, "tue"), (77, "tue")], columns="id long, day string", **deleting)
    assert gone.rows_deleted == 1
    assert sorted(Path(path).glob("*/*.parquet")) == before
    assert len(logs(path)) == changed.files_written + gone.files_written
    assert not list(Path(path, ".hoodie", ".temp").iterdir())
    assert rows() == [(1, "mon", 11, 7.0), (2, "mon", 10, 2.0)]


def test_a_null_partition_is_merged_beside_others(save: Any, rows: Any) -> None:
    save([(1, "mon", 10, 1.0), (2, None, 10, 2.0), (3, None, 10, 3.0)], **MERGE_ON_READ)
    save([(1, "mon", 11, 7.0), (2, None, 11, 8.0)], **MERGE_ON_READ)
    for driver_bytes in ("0", "1000000"):
        found = rows(hoodoo__spark__driver__read__max__bytes=driver_bytes)
        assert found == [(1, "mon", 11, 7.0), (2, None, 11, 8.0), (3, None, 10, 3.0)]


@pytest.mark.parametrize("driver_bytes", ["0", "1000000"])
def test_a_load_that_skips_the_merge_returns_the_rows_of_each_file(
    save: Any, rows: Any, driver_bytes: str
) -> None:
    save(START, **MERGE_ON_READ)
    save([(1, "mon", 11, 7.0)], **MERGE_ON_READ)
    save([(1, "mon", 12, 8.0), (3, "tue", 9, 9.0)], **MERGE_ON_READ)
    save([(2, "mon")], columns="id long, day string", **MERGE_ON_READ, **{OPERATION: "delete"})
    reading = {"hoodoo__spark__driver__read__max__bytes": driver_bytes}
    assert rows(**reading) == [(1, "mon", 12, 8.0), (3, "tue", 10, 3.0)]
    skipping = {**reading, "hoodie__datasource__merge__type": "skip_merge"}
    later = [(1, "mon", 11, 7.0), (1, "mon", 12, 8.0), (3, "tue", 9, 9.0)]
    assert rows(**skipping) == sorted([*START, *later])
    only_base = {"hoodie__datasource__query__type": "read_optimized"}
    assert rows(**skipping, **only_base) == START
    ranged = {
        "hoodie__datasource__query__type": "incremental",
        "hoodie__datasource__read__begin__instanttime": "earliest",
    }
    for more, said in (
        (ranged, "for snapshot reads"),
        ({"hoodie__datasource__merge__type": "none"}, "payload_combine or skip_merge"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            rows(**{**skipping, **more})


def test_an_insert_that_drops_known_keys_takes_a_deleted_one_for_new(
    save: Any, rows: Any, path: str
) -> None:
    save(START, **MERGE_ON_READ)
    save([(1, "mon")], columns="id long, day string", **MERGE_ON_READ, **{OPERATION: "delete"})
    dropping = {
        **MERGE_ON_READ,
        OPERATION: "insert",
        "hoodie__datasource__insert__dup__policy": "drop",
    }
    given = save([(1, "mon", 11, 7.0), (2, "mon", 11, 9.0), (4, "mon", 11, 8.0)], **dropping)
    assert given.rows_inserted == 2
    assert rows() == [
        (1, "mon", 11, 7.0),
        (2, "mon", 10, 2.0),
        (3, "tue", 10, 3.0),
        (4, "mon", 11, 8.0),
    ]


@pytest.mark.parametrize(
    "index", ["SIMPLE", "GLOBAL_SIMPLE", pytest.param("BLOOM", marks=pytest.mark.slow)]
)
def test_keys_that_are_only_in_logs_are_replaced_and_deleted(
    save: Any, rows: Any, path: str, index: str
) -> None:
    """A bucket writer put them there, before the table was written without buckets."""
    one = {**BUCKETS, "hoodie__bucket__index__num__buckets": "1"}
    save(START[:2], **one)
    save([(4, "mon", 10, 4.0), (5, "mon", 10, 5.0)], **one)
    properties = Path(path, ".hoodie", "hoodie.properties")
    kept = [line for line in properties.read_text().splitlines() if "index" not in line]
    properties.write_text("\n".join(kept) + "\n")
    other = {**MERGE_ON_READ, "hoodie__index__type": index}
    changed = save([(1, "mon", 11, 7.0), (4, "mon", 11, 8.0), (6, "mon", 11, 9.0)], **other)
    assert (changed.rows_updated, changed.rows_inserted) == (2, 1)
    deleting = {**other, OPERATION: "delete"}
    assert save([(5, "mon")], columns="id long, day string", **deleting).rows_deleted == 1
    assert rows() == [
        (1, "mon", 11, 7.0),
        (2, "mon", 10, 2.0),
        (4, "mon", 11, 8.0),
        (6, "mon", 11, 9.0),
    ]


def test_a_range_of_partial_updates_returns_whole_rows(save: Any, rows: Any, path: str) -> None:
    since = save(START, **MERGE_ON_READ).completion_time
    with hoodoo.open_table(path) as table:
        table.upsert([{"id": 1, "day": "mon", "at": 12}], partial=True)
    asked = {
        "hoodie__datasource__query__type": "incremental",
        "hoodie__datasource__read__begin__instanttime": since,
    }
    assert rows(**asked) == [(1, "mon", 12, 1.0)]


HIDDEN_LOGS = "hoodoo__spark__read__hidden__log__max__bytes"
IN_TASKS = {"hoodoo__spark__driver__read__max__bytes": "0"}
MERGES = {
    "event-time": {},
    "commit-time": {"hoodie__record__merge__mode": "COMMIT_TIME_ORDERING"},
    "values": {"hoodie__table__partial__update__mode": "IGNORE_DEFAULTS"},
}


@pytest.mark.parametrize(
    "merge",
    [
        pytest.param(MERGES["event-time"], id="event-time"),
        pytest.param(MERGES["commit-time"], id="commit-time", marks=pytest.mark.slow),
        pytest.param(MERGES["values"], id="values"),
    ],
)
def test_spark_reads_the_rows_that_no_log_changes(
    spark: Any, save: Any, rows: Any, path: str, merge: dict[str, str]
) -> None:
    options = {**MERGE_ON_READ, **merge}
    save([*START, (4, "mon", 10, 4.0), (5, "tue", 10, 5.0), (6, "sun", 10, 6.0)], **options)
    save([(1, "mon", 11, None), (2, "mon", 9, 9.0), (5, "tue", 12, 55.0)], **options)
    save([(4, "mon")], columns="id long, day string", **options, **{OPERATION: "delete"})
    with hoodoo.open_table(path) as table:
        table.upsert([{"id": 3, "day": "tue", "at": 13}], partial=True)
        assert len(plan_load(table, table.properties).split) == 2
        expected = sorted(tuple(row.values()) for row in table.scan().read_all().to_pylist())
    assert rows() == expected
    assert rows(**IN_TASKS) == expected
    assert rows(**{HIDDEN_LOGS: "0"}) == expected
    df = spark.read.format("hoodoo").load(path).where("at > 2").select("amount")
    plan = df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("ReadSchema: struct<at:bigint,amount:double") == 2
    assert "binarySearch" in plan


def test_a_load_of_an_unchanged_table_reads_its_logs_no_second_time(
    spark: Any, save: Any, rows: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []

    def counted(*args: Any) -> Any:
        read.append(args)
        return split_by_logs(*args)

    monkeypatch.setattr(slices, "split_by_logs", counted)
    save(START, **MERGE_ON_READ)
    first = save([(1, "mon", 11, 7.0)], **MERGE_ON_READ)
    merged = [(1, "mon", 11, 7.0), (2, "mon", 10, 2.0), (3, "tue", 10, 3.0)]
    assert rows() == rows() == merged
    assert len(read) == 1
    left, right = (spark.read.format("hoodoo").load(path) for _ in range(2))
    joined = left.join(right, left["id"] == right["id"]).select(left["at"], right["amount"])
    assert sorted(map(tuple, joined.collect())) == [(10, 2.0), (10, 3.0), (11, 7.0)]
    assert len(read) == 1
    some = spark.read.format("hoodoo").schema("amount double, id long").load(path)
    assert sorted(map(tuple, some.collect())) == [(2.0, 2), (3.0, 3), (7.0, 1)]
    assert len(read) == 2, "other columns are other rows"
    save([(1, "mon", 12, 8.0)], **MERGE_ON_READ)
    assert rows() == [(1, "mon", 12, 8.0), *merged[1:]]
    assert len(read) == 3
    assert rows(as__of__instant=first.requested_time) == merged


def test_tasks_merge_file_groups_with_many_log_records_whole(
    save: Any, rows: Any, path: str
) -> None:
    save(START, **MERGE_ON_READ)
    save([(1, "mon", 11, 7.0)], **MERGE_ON_READ)
    for at in (11, 12):
        save([(3, "tue", at, 3.0)], **MERGE_ON_READ)
    with hoodoo.open_table(path) as table:
        sizes = [one.size_bytes - one.base_file.size_bytes for one in table.plan().merged]
    assert max(sizes) > min(sizes)
    limit = {HIDDEN_LOGS.replace("__", "."): str(min(sizes))}
    with hoodoo.open_table(path, properties=limit) as table:
        load = plan_load(table, table.properties)
        assert [one.file_group.partition_path for one in load.split] == ["mon"]
        assert [one.file_group.partition_path for one in load.merged] == ["tue"]
    expected = [(1, "mon", 11, 7.0), (2, "mon", 10, 2.0), (3, "tue", 12, 3.0)]
    assert rows(**{HIDDEN_LOGS: str(min(sizes))}) == expected


def test_every_way_to_merge_returns_the_same_types(save: Any, spark: Any, path: str) -> None:
    columns = (
        "id long, day string, at long, t timestamp, n timestamp_ntz, d date, c decimal(12,3), "
        "b binary, l array<int>, m map<string,double>, s struct<x:int,y:string>"
    )
    moment = dt.datetime(2026, 4, 1, 2, 3, 4, 567)  # noqa: DTZ001 - in any zone

    def row(number: int, at: int) -> tuple[Any, ...]:
        values = (moment, moment, moment.date(), Decimal("1.250"), b"x", [at, None], {"k": 0.5})
        return (number, "mon", at, *values, (at, None))

    save([row(1, 1), row(2, 1)], columns=columns, **MERGE_ON_READ)
    save([row(1, 2)], columns=columns, **MERGE_ON_READ)
    found = []
    for options in ({}, IN_TASKS, {HIDDEN_LOGS: "0"}):
        given = {key.replace("__", "."): value for key, value in options.items()}
        df = spark.read.format("hoodoo").options(**given).load(path)
        found.append((df.dtypes, sorted(map(str, df.collect()))))
    assert found[0] == found[1] == found[2]
    assert [row.s.x for row in df.sort("id").collect()] == [2, 1]
