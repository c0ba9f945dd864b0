"""
One writer of the demonstration, a separate process: ``python -m hoodoo.demo.writer``.

The loader writes the halves of the months in order. The corrector waits until a half is on the
timeline, then upserts its corrections, while the loader writes the other half into the same file
group. The loader writes a half only after the half two before it is corrected. Both meet before
the loader writes the second half of a month and the corrector corrects the first. So both write
each month at the same time, even if one of them is slow. Both begin after a line on standard
input, and report their commits in JSON lines on standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import hoodoo
from filegroups.writing.write_request import CommitResult
from hoodoo.demo.flights import FlightBatch, batches, corrections, load_flights
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.properties.properties_file import parse_properties

BATCH_KEY: Final = "demo.batch"
_POLL_S: Final = 0.05
_MEETING_POLL_S: Final = 0.005

# Prepares a write of the rows with the options; the function that it returns writes them.
Prepare = Callable[[pa.Table, dict[str, str]], Callable[[], CommitResult]]


def main(arguments: list[str] | None = None) -> int:
    """Run one writer to its end; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hoodoo.demo.writer")
    parser.add_argument("role", choices=("loader", "corrector"))
    parser.add_argument("path", help="the table")
    parser.add_argument("--props", action="append", default=[], type=Path)
    parser.add_argument("--hoodie-conf", action="append", default=[])
    parser.add_argument("--work", required=True, type=Path, help="folder for rows in transit")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--batches", type=int, default=len(batches()))
    chosen = parser.parse_args(arguments)
    options: dict[str, str] = {}
    for file in chosen.props:
        options |= parse_properties(file.read_bytes(), path=str(file))
    options |= pairs_of(chosen.hoodie_conf) | {
        "hoodie.write.application.id": chosen.role,
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.datasource.write.commitmeta.key.prefix": "demo.",
        # The executors write: the driver alone is so fast that the writers would hardly conflict.
        "hoodoo.spark.driver.write.max.bytes": "0",
    }
    emit(event="starting", engine=chosen.engine)
    rows = load_flights()
    if chosen.engine == "local":
        prepare = _local(chosen.path)
    else:
        prepare = _spark(chosen.role, chosen.path, chosen.work)
    emit(event="ready")
    if not sys.stdin.readline():
        return 1  # the parent has ended
    everything = batches()[: chosen.batches]
    try:
        for batch in everything:
            mine = batch.of(rows)
            if chosen.role == "corrector":
                mine = corrections(mine)
                _wait_for(chosen.path, partial(_has_written, "loader", batch))
            elif batch.number >= 2:
                last_but_one = everything[batch.number - 2]
                _wait_for(chosen.path, partial(_has_written, "corrector", last_but_one))
            write = prepare(mine, {**options, BATCH_KEY: batch.name})
            if chosen.role == "loader" and batch.second_half:
                _meet(chosen.work, batch.month, me="loader", other="corrector")
            if chosen.role == "corrector" and not batch.second_half and batch != everything[-1]:
                _meet(chosen.work, batch.month, me="corrector", other="loader")
            _report(batch, write)
    except HoodooError as error:
        emit(event="failed", kind=error.kind, message=error.message)
        return 1
    emit(event="done")
    return 0


def emit(**fields: Any) -> None:
    """Send one message to the parent process, as a JSON line."""
    sys.stdout.write(json.dumps(fields, default=str) + "\n")
    sys.stdout.flush()


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """Return texts ``key=value`` as a mapping; later ones override earlier ones."""
    parts = [text.partition("=") for text in texts]
    return {key.strip(): value.strip() for key, _, value in parts}


def _report(batch: FlightBatch, write: Callable[[], CommitResult]) -> None:
    began = time.monotonic()
    result = write()
    emit(
        event="wrote",
        batch=batch.name,
        seconds=round(time.monotonic() - began, 2),
        requested_time=result.requested_time,
        attempts=result.attempts,
        rows_inserted=result.rows_inserted,
        rows_updated=result.rows_updated,
        refusals=[report.as_document() for report in result.refusals],
    )


def _wait_for(path: str, seen: Callable[[TableContext], bool]) -> None:
    """Read the timeline, as any reader does, until the condition holds."""
    context = hoodoo.open_table(path).context
    _poll(lambda: seen(context), every_s=_POLL_S)


def _meet(work: Path, month: int, *, me: str, other: str) -> None:
    """Wait until both writers are ready to write rows of the month."""
    (work / f"{me}-{month}.ready").touch()
    _poll((work / f"{other}-{month}.ready").exists, every_s=_MEETING_POLL_S)


def _poll(holds: Callable[[], bool], *, every_s: float) -> None:
    parent = os.getppid()
    while not holds():
        if os.getppid() != parent:
            sys.exit("the demonstration has ended")
        time.sleep(every_s)


def _has_written(writer: str, batch: FlightBatch, context: TableContext) -> bool:
    for instant in reversed(context.active().completed_writes):
        extra = context.commits.read(instant).extra_metadata
        if (extra.get(BATCH_KEY), extra.get("hoodoo.application")) == (batch.name, writer):
            return True
    return False


def _local(path: str) -> Prepare:
    """Return a function that prepares writes without Spark."""

    def prepare(rows: pa.Table, options: dict[str, str]) -> Callable[[], CommitResult]:
        def write() -> CommitResult:
            with hoodoo.open_table(path, properties=options) as table:
                return table.upsert(rows)

        return write

    return prepare


def _spark(role: str, path: str, work: Path) -> Prepare:
    """Return a function that prepares writes by a PySpark job."""
    import hoodoo.spark
    from hoodoo.spark.session import local_session

    spark = local_session(role)

    def prepare(rows: pa.Table, options: dict[str, str]) -> Callable[[], CommitResult]:
        source = work / f"{role}.parquet"
        pq.write_table(rows, source)
        frame = spark.read.parquet(str(source))

        def write() -> CommitResult:
            frame.write.format("hoodoo").options(**options).mode("append").save(path)
            result: CommitResult | None = hoodoo.spark.last_result(spark)
            if result is None:
                raise RuntimeError("the save left no result")
            return result

        return write

    return prepare


if __name__ == "__main__":
    sys.exit(main())
