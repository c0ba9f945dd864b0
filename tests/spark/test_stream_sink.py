"""The sink of a stream: Hudi's entry in its commits, its checkpoint folder, retries and services."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.spark.spark_table import SparkTable
from tests.spark.conftest import COLUMNS, OPTIONS, Row, Save
from timeline.errors import InvalidInputError, StorageUnavailableError
from timeline.model.commit_metadata import SINK_CHECKPOINT_KEY

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("driver_writes")]

IDENTIFIER = "hoodie.datasource.write.streaming.checkpoint.identifier"
RETRIES = "hoodie.datasource.write.streaming.retry.count"
INTERVAL = "hoodie.datasource.write.streaming.retry.interval.ms"
IGNORE = "hoodie.datasource.write.streaming.ignore.failed.batch"
DISABLE = "hoodie.datasource.write.streaming.disable.compaction"
PREFIX = "hoodie.datasource.write.commitmeta.key.prefix"
WAIT_S = 60.0

Start = Callable[..., Any]


@pytest.fixture
def give(spark: Any, tmp_path: Path) -> Callable[..., None]:
    """Add a file of rows to the stream's folder."""

    def run(*rows: Row) -> None:
        folder = str(tmp_path / "incoming")
        spark.createDataFrame(list(rows), COLUMNS).coalesce(1).write.mode("append").parquet(folder)

    return run


@pytest.fixture
def start(spark: Any, path: str, tmp_path: Path) -> Start:
    """Start the stream of the folder into a table, one file a batch."""

    def run(
        *,
        to: str = path,
        source: str = "incoming",
        checkpoint: str = "checkpoint",
        forever: bool = False,
        **more: object,
    ) -> Any:
        files = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        writer = files.parquet(str(tmp_path / source)).writeStream.format("hudi")
        writer = writer.options(**{**OPTIONS, **more})
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        trigger = {"processingTime": "0 seconds"} if forever else {"availableNow": True}
        return writer.trigger(**trigger).start(to)

    return run


def run(query: Any) -> None:
    assert query.awaitTermination(120)


def entries(path: str) -> list[str | None]:
    """Hudi's entries of the table's commits, the oldest first."""
    with hoodoo.open_table(path) as table:
        found = [
            one.extra_metadata.get(SINK_CHECKPOINT_KEY)
            for one in table.snapshot.commits_newest_first()
        ]
    return found[::-1]


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


# ---------------------------------------------------------------- Hudi's entry in the commits


def test_a_commit_has_hudi_s_entry_of_its_stream(give: Any, start: Start, path: str) -> None:
    give((1, "mon", 10, 1.0))
    give((2, "mon", 10, 2.0))
    run(start(**{IDENTIFIER: "orders"}))
    assert entries(path) == ['{"orders":"0"}', '{"orders":"1"}']


def test_several_streams_without_an_identifier_write_one_table(
    give: Any, start: Start, path: str, rows: Any
) -> None:
    """Java Hudi skips the batches of the second stream, because it knows no query."""
    give((1, "mon", 10, 1.0))
    run(start())
    give((2, "mon", 10, 2.0))
    run(start(checkpoint="other", **{PREFIX: "none-"}))
    run(start())
    assert rows() == [(1, "mon", 10, 1.0), (2, "mon", 10, 2.0)]
    assert entries(path) == [f'{{"default_single_writer":"{each}"}}' for each in (0, 0, 1, 1)]


def test_a_stream_continues_after_the_batch_that_java_hudi_committed(
    give: Any, start: Start, save: Save, path: str, rows: Any, tmp_path: Path
) -> None:
    give((1, "mon", 10, 1.0))
    run(start(**{IDENTIFIER: "orders"}))
    # As if Java had written batch 0 and had died before Spark noted its end.
    shutil.rmtree(path)
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    save([(1, "mon", 10, 5.0)], **{SINK_CHECKPOINT_KEY: '{"orders":"0"}'})
    give((2, "mon", 10, 2.0))
    run(start(**{IDENTIFIER: "orders"}))
    assert rows() == [(1, "mon", 10, 5.0), (2, "mon", 10, 2.0)]
    # Java commits batch 2 and is killed before its checkpoint has it.
    save([(3, "mon", 10, 6.0)], **{SINK_CHECKPOINT_KEY: '{"orders":"2"}'})
    give((3, "mon", 10, 3.0))
    give((4, "mon", 10, 4.0))
    run(start(**{IDENTIFIER: "orders"}))
    assert rows()[2:] == [(3, "mon", 10, 6.0), (4, "mon", 10, 4.0)]
    assert entries(path) == [f'{{"orders":"{each}"}}' for each in range(4)]


# ---------------------------------------------------------------- the checkpoint folder


def refused(start: Start, text: str, **more: Any) -> None:
    with pytest.raises(InvalidInputError, match=text) as raised:
        start(**more)
    assert raised.value.kind == "stream_checkpoint"


def test_an_identifier_of_another_query_is_refused(give: Any, start: Start, path: str) -> None:
    give((1, "mon", 10, 1.0))
    run(start(**{IDENTIFIER: "orders"}))
    refused(start, "orders.*identifier", checkpoint="new", **{IDENTIFIER: "orders"})
    run(start(checkpoint="new", **{IDENTIFIER: "other"}))
    refused(start, "orders", checkpoint="new", **{IDENTIFIER: "orders"})
    assert len(entries(path)) == 2


def test_a_new_checkpoint_for_a_stream_of_java_hudi_is_refused(
    give: Any, start: Start, save: Save
) -> None:
    save([(1, "mon", 10, 5.0)], **{SINK_CHECKPOINT_KEY: '{"default_single_writer":"7"}'})
    give((1, "mon", 10, 1.0))
    refused(start, "Java Hudi")
    run(start(**{IDENTIFIER: "orders"}))
    refused(start, "batch 7", **{IDENTIFIER: "default_single_writer"})


def test_a_checkpoint_of_another_table_is_refused(
    give: Any, start: Start, path: str, tmp_path: Path
) -> None:
    give((1, "mon", 10, 1.0))
    run(start())
    refused(start, "into another table", to=str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_checkpoint_whose_table_is_missing_is_refused(give: Any, start: Start, path: str) -> None:
    give((1, "mon", 10, 1.0))
    run(start())
    shutil.rmtree(path)
    refused(start, "there is no table")


def test_a_checkpoint_of_a_stream_to_another_format_is_refused(
    give: Any, start: Start, save: Save, spark: Any, tmp_path: Path
) -> None:
    save([(9, "mon", 10, 1.0)])
    give((1, "mon", 10, 1.0))
    files = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "incoming"))
    writer = files.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run(writer.trigger(availableNow=True).format("noop").start())
    refused(start, "does not have")


# ---------------------------------------------------------------- failed batches, and stops


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors for the next attempts to write; the attempts are counted by their absence."""
    left: list[Exception] = []
    write = SparkTable.write

    def failing(self: SparkTable, *args: Any, **more: Any) -> Any:
        if left:
            raise left.pop(0)
        return write(self, *args, **more)

    monkeypatch.setattr(SparkTable, "write", failing)
    return left


def test_a_batch_is_written_again_as_often_as_set(
    give: Any, start: Start, failures: list[Exception], rows: Any, save: Save
) -> None:
    give((1, "mon", 10, 1.0))
    failures += [StorageUnavailableError("not now") for _ in range(3)]
    query = start(**{RETRIES: "2", INTERVAL: "1"})
    with pytest.raises(Exception, match="not now"):
        query.awaitTermination()
    assert len(failures) == 1
    run(start(**{RETRIES: "2", INTERVAL: "1"}))
    assert rows() == [(1, "mon", 10, 1.0)]


def test_an_error_that_a_repetition_does_not_mend_ends_the_query(
    give: Any, start: Start, failures: list[Exception]
) -> None:
    give((1, "mon", 10, 1.0))
    failures += [InvalidInputError("bad rows " + "x" * 20_000), InvalidInputError("again")]
    query = start(**{INTERVAL: "1"})
    with pytest.raises(Exception, match="bad rows") as raised:
        query.awaitTermination()
    assert len(str(raised.value)) < 10_000
    assert "Traceback" not in str(raised.value)
    assert len(failures) == 1


def test_a_failed_batch_is_left_out_if_so_set(
    give: Any, start: Start, failures: list[Exception], rows: Any, save: Save
) -> None:
    save([(9, "mon", 10, 9.0)])
    give((1, "mon", 10, 1.0))
    failures.append(InvalidInputError("bad rows"))
    run(start(**{IGNORE: "true"}))
    give((2, "mon", 10, 2.0))
    run(start(**{IGNORE: "true"}))
    assert rows() == [(2, "mon", 10, 2.0), (9, "mon", 10, 9.0)]


def test_a_stop_in_the_middle_of_a_batch_is_no_failure(
    give: Any, start: Start, rows: Any, monkeypatch: pytest.MonkeyPatch, save: Save
) -> None:
    save([(9, "mon", 10, 9.0)])
    entered, stopped = threading.Event(), threading.Event()

    def write(*_: Any, **__: Any) -> Any:
        entered.set()
        stopped.wait(WAIT_S)
        raise RuntimeError("job cancelled\n" + "at org.apache.spark\n" * 5_000)

    give((1, "mon", 10, 1.0))
    with monkeypatch.context() as patched:
        patched.setattr(SparkTable, "write", write)
        query = start()
        assert entered.wait(WAIT_S)
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        wait_for(lambda: not query.isActive)
        stopped.set()
        stopping.join(WAIT_S)
        assert query.exception() is None
    run(start())
    assert rows() == [(1, "mon", 10, 1.0), (9, "mon", 10, 9.0)]


# ---------------------------------------------------------------- services between the batches


def actions(path: str) -> list[str]:
    with hoodoo.open_table(path) as table:
        return [one.action for one in table.history()]


@pytest.mark.parametrize("disabled", [False, True])
def test_a_stream_compacts_between_its_batches_until_it_ends(
    give: Any, start: Start, path: str, *, disabled: bool
) -> None:
    options = {
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.compact.inline.max.delta.commits": "1",
        "hoodoo.services.interval.ms": "100",
        DISABLE: str(disabled).lower(),
    }
    give((1, "mon", 10, 1.0))
    query = start(forever=True, **options)
    try:
        wait_for(
            lambda: Path(path, ".hoodie", "hoodie.properties").exists() and len(actions(path)) == 1
        )
        give((1, "mon", 11, 2.0))
        if disabled:
            wait_for(lambda: len(actions(path)) == 2)
            time.sleep(1)
        else:
            wait_for(lambda: "commit" in actions(path))
    finally:
        query.stop()
    assert ("commit" in actions(path)) is not disabled
    with hoodoo.open_table(path) as table:
        wait_for(lambda: table.writers() == [])  # the sink has closed its table
    run(start(**options))


def test_a_stream_clusters_between_its_batches(
    give: Any, start: Start, path: str, rows: Any
) -> None:
    options = {
        "hoodie.parquet.small.file.limit": "0",  # each batch opens a file group
        "hoodie.clustering.async.enabled": "true",
        "hoodie.clustering.async.max.commits": "1",
        "hoodoo.services.interval.ms": "100",
        "hoodie.datasource.write.operation": "insert",
    }
    given = [(number, "mon", 10, float(number)) for number in range(4)]
    give(*given[:2])
    query = start(forever=True, **options)
    try:
        wait_for(lambda: Path(path, "mon").exists() and rows() == given[:2])
        give(*given[2:])
        wait_for(lambda: bool({"clustering", "replacecommit"} & set(actions(path))))
        wait_for(lambda: rows() == given)
    finally:
        query.stop()
    with hoodoo.open_table(path) as table:
        assert table.verify().problems == ()


def test_two_streams_and_a_batch_job_write_one_table_at_once(
    spark: Any, start: Start, path: str, tmp_path: Path, rows: Any, save: Save
) -> None:
    shared = {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.cleaner.policy.failed.writes": "LAZY",
        "hoodie.write.num.retries.on.conflict.failures": "20",
    }
    save(
        [(number, "mon", 1, 0.0) for number in range(40)],
        **{key.replace(".", "__"): value for key, value in shared.items()},
    )
    expected = dict.fromkeys(range(40), 0.0)
    for stream in range(2):
        for batch in range(3):
            given = [(20 * stream + 2 * batch + n, "mon", 2, float(batch)) for n in range(2)]
            frame = spark.createDataFrame(given, COLUMNS).coalesce(1)
            frame.write.mode("append").parquet(str(tmp_path / f"incoming{stream}"))
            expected.update({row[0]: row[3] for row in given})
    queries = [
        start(source=f"incoming{one}", checkpoint=f"checkpoint{one}", **shared) for one in range(2)
    ]
    for batch in range(3):
        given = [(39 - batch, "mon", 3, 9.0 + batch)]
        save(given, **{key.replace(".", "__"): value for key, value in shared.items()})
        expected.update({row[0]: row[3] for row in given})
    for query in queries:
        run(query)
    assert {row[0]: row[3] for row in rows()} == expected
    assert len(rows()) == 40
    assert len(actions(path)) == 1 + 2 * 3 + 3
    with hoodoo.open_table(path) as table:
        assert table.verify().problems == ()
