"""Micro-batches of readStream: limits, the end of what is available now, and changes as a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.spark.schema import spark_schema_of
from tests.spark.conftest import Save
from tests.spark.streams import run_to_its_end
from timeline.errors import InvalidInputError, SettingError

datasource = pytest.importorskip("hoodoo.spark.datasource", reason="Spark has them since 4.0")
if not datasource.HAS_READ_LIMITS:
    pytest.skip("Spark limits micro-batches since 4.2", allow_module_level=True)

INSTANTS = "hoodoo.stream.max.instants"
ROWS = "hoodoo.stream.max.rows"
HUDI_INSTANTS = "hoodie.streamer.source.hoodieincr.num_instants"
CDC = {
    "hoodie.datasource.query.type": "incremental",
    "hoodie.datasource.query.incremental.format": "cdc",
}


@pytest.fixture
def times(tmp_path: Path) -> list[str]:
    """The completion times of four commits of 1, 2, 3 and 4 rows."""
    rows = [{"id": f"{size}-{n}", "v": size} for size in range(1, 5) for n in range(size)]
    schema = hoodoo.inputs.to_arrow_table(rows).schema
    with hoodoo.create_table(str(tmp_path / "t"), schema=schema, record_key="id") as table:
        return [
            table.upsert([row for row in rows if row["v"] == size]).completion_time
            for size in range(1, 5)
        ]


@pytest.fixture
def source(tmp_path: Path) -> Any:
    made = []

    def run(**options: str) -> Any:
        path = str(tmp_path / "t")
        with hoodoo.open_table(path) as table:
            schema = spark_schema_of(table.schema)
        made.append(datasource.HoodooStreamSource({"path": path, **options}, schema))
        return made[-1]

    yield run
    for one in made:
        one.stop()


def ends(stream: Any) -> list[str]:
    """The ends of the micro-batches until nothing is left, as Spark asks for them."""
    found, start = [], stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    while (end := stream.latestOffset(start, limit)) != start:
        found.append(end["completion_time"])
        start = end
    return found


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [3]),
        ({INSTANTS: "1"}, [0, 1, 2, 3]),
        ({HUDI_INSTANTS: "3"}, [2, 3]),
        ({ROWS: "3"}, [1, 2, 3]),
        ({ROWS: "6", INSTANTS: "2"}, [1, 2, 3]),
        ({ROWS: "1"}, [0, 1, 2, 3]),
    ],
)
def test_a_limit_ends_a_batch_between_two_commits(
    times: list[str], source: Any, options: dict[str, str], wanted: list[int]
) -> None:
    assert ends(source(**options)) == [times[each] for each in wanted]


def test_a_trigger_without_limits_reads_all(times: list[str], source: Any) -> None:
    stream = source(**{INSTANTS: "1"})
    unlimited = datasource.ReadAllAvailable()
    assert stream.latestOffset(stream.initialOffset(), unlimited)["completion_time"] == times[-1]


def test_a_query_of_what_is_available_now_ends(
    times: list[str], source: Any, tmp_path: Path
) -> None:
    stream = source(**{INSTANTS: "3"})
    stream.prepareForTriggerAvailableNow()
    with hoodoo.open_table(str(tmp_path / "t")) as table:
        later = table.upsert([{"id": "later", "v": 0}]).completion_time
    assert ends(stream) == [times[2], times[3]]
    assert stream.reportLatestOffset()["completion_time"] == later


def test_compactions_do_not_count_as_commits(tmp_path: Path, source: Any) -> None:
    rows = [{"id": "a", "v": 0}]
    schema = hoodoo.inputs.to_arrow_table(rows).schema
    with hoodoo.create_table(
        str(tmp_path / "t"), schema=schema, record_key="id", table_type="MERGE_ON_READ"
    ) as table:
        table.upsert(rows)
        table.upsert(rows)
        assert table.services.compact() is not None
        third = table.upsert(rows).completion_time
    assert ends(source(**{INSTANTS: "3"})) == [third]


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_is_a_positive_number(times: list[str], source: Any, limit: str) -> None:
    assert times
    with pytest.raises(SettingError, match=ROWS):
        source(**{ROWS: limit}).getDefaultReadLimit()


def test_a_stream_from_the_latest_commit_keeps_its_start_over_a_restart(
    times: list[str], source: Any, tmp_path: Path
) -> None:
    """Spark asks for the start again if the query ended in its first micro-batch."""
    latest = {"hoodie.datasource.streaming.startOffset": "Latest"}
    stream = source(**latest)
    first = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert first["completion_time"] == times[-1]
    with hoodoo.open_table(str(tmp_path / "t")) as table:
        table.upsert([{"id": "later", "v": 9}])
    again = source(**latest)
    assert again.partitions(again.initialOffset(), first) == []
    second = again.latestOffset(first, again.getDefaultReadLimit())
    found = [
        row
        for one in again.partitions(first, second)
        for batch in again.read(one)
        for row in batch.to_pylist()
    ]
    assert found == [{"id": "later", "v": 9}]


# ---------------------------------------------------------------- through Spark


def batches(stream: Any, tmp_path: Path, **trigger: Any) -> list[list[Any]]:
    """The rows of each micro-batch."""
    found: dict[int, list[Any]] = {}

    def keep(batch: Any, number: int) -> None:
        found[number] = sorted(batch.collect())

    writer = stream.writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "read")).trigger(**trigger)
    run_to_its_end(writer.start)
    return [found[number] for number in sorted(found)]


@pytest.mark.spark
def test_available_now_reads_all_in_limited_batches(
    save: Save, spark: Any, path: str, tmp_path: Path
) -> None:
    for key in range(3):
        save([(key, "mon", 10, 1.0)])
    stream = spark.readStream.format("hudi").option(INSTANTS, 1).load(path).select("id")
    assert batches(stream, tmp_path, availableNow=True) == [[(0,)], [(1,)], [(2,)]]
    save([(3, "mon", 10, 1.0)])
    assert batches(stream, tmp_path, availableNow=True) == [[(3,)]]


@pytest.mark.spark
@pytest.mark.parametrize("logs", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_changes_are_a_stream_in_hudi_s_columns(
    save: Save, spark: Any, path: str, tmp_path: Path, logs: str
) -> None:
    save([(1, "mon", 10, 1.0), (2, "tue", 10, None)], hoodie__table__cdc__enabled=logs)
    changes = spark.readStream.format("hudi").options(**CDC).load(path)
    assert [(each.name, each.dataType.simpleString()) for each in changes.schema] == [
        (name, "string") for name in ("op", "ts_ms", "before", "after")
    ]
    [first] = batches(changes, tmp_path, availableNow=True)
    assert [(each["op"], each["before"]) for each in first] == [("i", None)] * 2
    second = save([(2, "tue", 11, 2.5)])
    save([(1, "mon", 12, 0.0)], hoodie__datasource__write__operation="delete")
    [[deleted, updated]] = batches(changes, tmp_path, availableNow=True)
    assert (updated["op"], updated["ts_ms"]) == ("u", second.requested_time)
    old, new = json.loads(updated["before"]), json.loads(updated["after"])
    assert old == {"id": 2, "day": "tue", "at": 10, "amount": None}
    assert new == {"id": 2, "day": "tue", "at": 11, "amount": 2.5}
    assert (deleted["op"], json.loads(deleted["before"])["id"]) == ("d", 1)


@pytest.mark.spark
def test_a_stream_of_changes_returns_the_columns_of_a_given_schema(
    save: Save, spark: Any, path: str
) -> None:
    save([(1, "mon", 10, 1.0)])
    reader = spark.readStream.format("hudi").options(**CDC)
    assert reader.schema("after string, op string").load(path).columns == ["after", "op"]


@pytest.mark.spark
def test_a_stream_of_one_time_is_refused(save: Save, spark: Any, path: str) -> None:
    save([(1, "mon", 10, 1.0)])
    with pytest.raises(SettingError, match="startOffset"):
        spark.readStream.format("hudi").option("as.of.instant", "2024-01-01").load(path)


@pytest.mark.spark
def test_limits_before_spark_4_2_are_refused(
    save: Save, spark: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save([(1, "mon", 10, 1.0)])
    monkeypatch.setattr(datasource, "HAS_READ_LIMITS", False)
    with pytest.raises(InvalidInputError, match=r"before Spark 4\.2"):
        spark.readStream.format("hudi").option(INSTANTS, 1).load(path)
