"""Two streams and a batch job write one table; the streams' process is killed and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from tests.integration.kill.streams import NAMES, PROPERTIES
from timeline.model.commit_metadata import SINK_CHECKPOINT_KEY

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.xdist_group("busy"),
]

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
KILLS = 6 if NIGHTLY else 2
FILES = 6 * (KILLS + 1)
ROWS = 20
COMMITS_BEFORE_A_KILL = 3
WAIT_S = 180.0


def rows_of(source: str, number: int) -> pa.Table:
    return pa.table(
        {
            "id": [f"{source}-{number}-{each}" for each in range(ROWS)],
            "source": pa.array([source] * ROWS, pa.string()),
            "n": pa.array([number] * ROWS, pa.int64()),
        }
    )


def numbers(table: Any) -> dict[str, list[int]]:
    """The batches of each stream in the table, the oldest first."""
    found: dict[str, list[int]] = {name: [] for name in NAMES}
    for metadata in table.snapshot.commits_newest_first():
        entry = json.loads(metadata.extra_metadata.get(SINK_CHECKPOINT_KEY, "{}"))
        for name, number in entry.items():
            found[name].insert(0, int(number))
    return found


def batches_in(table: Any) -> int:
    return sum(map(len, numbers(table).values()))


def start(path: str, folder: Path, log: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.integration.kill.streams", path, str(folder)]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def test_streams_and_a_batch_job_write_each_row_once_although_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for name in NAMES:
        (tmp_path / name).mkdir()
        for number in range(FILES):
            pq.write_table(rows_of(name, number), tmp_path / name / f"{number:03}.parquet")
    done = threading.Event()
    batches: list[int] = []
    failed: list[Exception] = []

    def write_batches() -> None:
        try:
            with hoodoo.open_table(path, properties=PROPERTIES) as table:
                while not done.wait(0.5):
                    table.insert(rows_of("batch", len(batches)))
                    batches.append(len(batches))
        except Exception as error:  # noqa: BLE001 - the test shows it
            failed.append(error)

    with hoodoo.create_table(
        path,
        schema=rows_of("", 0).schema,
        record_key="id",
        partition_by="source",
        table_type="MERGE_ON_READ",
        properties=PROPERTIES,
    ) as table:
        job = threading.Thread(target=write_batches)
        job.start()
        try:
            for _ in range(KILLS):
                before = batches_in(table)
                with (tmp_path / "log").open("ab") as log:
                    streams = start(path, tmp_path, log)
                until = time.monotonic() + WAIT_S
                while batches_in(table) < before + COMMITS_BEFORE_A_KILL:
                    assert streams.poll() is None, (tmp_path / "log").read_text()[-3000:]
                    assert time.monotonic() < until
                    time.sleep(0.1)
                os.killpg(streams.pid, signal.SIGKILL)
                streams.wait()
            with (tmp_path / "log").open("ab") as log:
                streams = start(path, tmp_path, log)
            assert streams.wait(WAIT_S) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            done.set()
            job.join()
        assert failed == []
        assert batches
        found = Counter(table.to_arrow(columns=["id"])["id"].to_pylist())
        wanted = {f"{s}-{n}-{r}" for s in NAMES for n in range(FILES) for r in range(ROWS)}
        wanted |= {f"batch-{n}-{r}" for n in batches for r in range(ROWS)}
        assert found == Counter(wanted)
        for committed in numbers(table).values():
            assert committed == sorted(set(committed))
        assert table.verify().problems == ()
