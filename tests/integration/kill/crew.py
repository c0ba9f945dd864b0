"""
Writer processes of one host that hand their writes to a committer, until a stop file exists.

crew.py PROPERTIES TABLE FOLDER WRITERS OPERATION

Each inserts into a partition of its own, or upserts into a shared one, one row at a time. It
appends every commit result to ``FOLDER/<number>.ndjson``. The crew ends when all its writers have
ended; a killed writer is no failure.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

import hoodoo

WRITES_MAX = 2000
PAUSE_S = 0.1  # processes that start meanwhile get a share of a small machine


def write_on(properties: str, address: str, folder: Path, number: int, operation: str) -> None:
    stop = folder / "stop"
    (folder / f"{number}.pid").write_text(str(os.getpid()))
    with (
        hoodoo.open_table(address, properties=properties) as table,
        (folder / f"{number}.ndjson").open("w", encoding="utf-8", buffering=1) as notes,
    ):
        for count in range(WRITES_MAX):
            key = f"{number}-{count}"
            inserts = operation == "insert"
            path = f"p{number}" if inserts else "all"
            row = pa.table({"id": [key], "p": [path], "v": [count]})
            result = table.insert(row) if inserts else table.upsert(row)
            note = {
                "key": key,
                "time": result.requested_time,
                "rows": result.rows_inserted,
                "group": result.group,
            }
            notes.write(json.dumps(note) + "\n")
            if stop.exists():
                return
            time.sleep(PAUSE_S)


def main() -> None:
    properties, address, folder, writers, operation = sys.argv[1:]
    context = multiprocessing.get_context("fork")  # nothing was opened yet
    crew = [
        context.Process(
            target=write_on, args=(properties, address, Path(folder), number, operation)
        )
        for number in range(int(writers))
    ]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    sys.exit(max(abs(one.exitcode or 0) for one in crew if one.exitcode != -signal.SIGKILL))


if __name__ == "__main__":
    main()
