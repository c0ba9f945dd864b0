#!/usr/bin/env python3
"""
Open a table of many files and plan a filtered read: by listing folders and by the metadata table.

Usage: benchmarks/planning.py [--partitions 10000 --files 10 --delay-ms 60 --turns 3]

No data file is read, so all data files have the bytes of one real file. Their commit has the stats
of each of them. ``Table.metadata.create`` builds the metadata table from the table's folders, and a
commit of one row follows. The table is read on the local disk, then from a store whose every request takes a fixed time. Both ways
take turns, each in a process without caches of the engine, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent))
from farstore.client import BUCKET, FarStore, s3_options

import hoodoo
from timeline.codecs.instant_avro import decode_commit, encode_commit
from timeline.model.file_names import BaseFileName

WAYS = {"listing": "false", "metadata table": "true"}
ENABLED = "hoodie.metadata.enable"


def make(path: Path, partitions: int, files: int) -> None:
    """Make the table: one commit with many files, then the partition ``files`` of its metadata table."""
    with hoodoo.create_table(
        path, record_key="id", partition_by="part", properties={ENABLED: "false"}
    ) as table:
        table.bulk_insert(pa.table({"id": ["a"], "part": ["p00000"], "v": [1]}))
    (instant,) = (path / ".hoodie/timeline").glob("*_*.commit")
    commit = decode_commit(instant.read_bytes())
    ((stat,),) = commit.partition_to_write_stats.values()
    first = path / (stat.path or "")
    data, marker = first.read_bytes(), (first.parent / ".hoodie_partition_metadata").read_bytes()
    time_of_commit = instant.name.partition("_")[0]
    stats = {}
    for number in range(partitions):
        name = f"p{number:05}"
        folder = path / name
        folder.mkdir(exist_ok=True)
        (folder / ".hoodie_partition_metadata").write_bytes(marker)
        some = [stat] if name == first.parent.name else []
        for each in range(len(some), files):
            # As random as those of writers, so the metadata table is as large as in a real table.
            file_id = f"{uuid.uuid5(uuid.NAMESPACE_OID, f'{number}/{each}')}-0"
            file = folder / BaseFileName(file_id, "0-0-0", time_of_commit).text
            file.write_bytes(data)
            of_table = str(file.relative_to(path))
            some.append(replace(stat, file_id=file_id, path=of_table, partition_path=name))
        stats[name] = tuple(some)
    instant.write_bytes(encode_commit(replace(commit, partition_to_write_stats=stats)))
    instant.with_name(f".{instant.name}.crc").unlink(missing_ok=True)
    with hoodoo.open_table(path) as table:
        table.metadata.create("files")
        # The newest commit, from which a reader takes the schema, is usually a small one.
        table.insert(pa.table({"id": ["b"], "part": ["p00000"], "v": [2]}))


def measure(address: str, properties: Mapping[str, str]) -> dict[str, float]:
    """
    Open and plan; return seconds of both together, CPU seconds of this process, and the files.

    Before, a plan of one partition by another open table loads all code and makes a connection.
    """
    with hoodoo.open_table(address, properties=properties) as table:
        table.plan(filter=[("v", ">", 0)], partitions=["p00000"])
    started, cpu = time.perf_counter(), time.process_time()
    with hoodoo.open_table(address, properties=properties) as table:
        plan = table.plan(filter=[("v", ">", 0)])
        return {
            "seconds": time.perf_counter() - started,
            "cpu": time.process_time() - cpu,
            "files": len(plan.slices),
        }


def compare(
    place: str, address: str, properties: Mapping[str, str], turns: int
) -> list[dict[str, Any]]:
    """Measure both ways in turns, print the medians, return a record of each call."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(turns):
        for way, option in WAYS.items():
            job = json.dumps([address, {**properties, ENABLED: option}])
            command = [sys.executable, __file__, "--job", job]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[way].append(json.loads(told))
    files = {one["files"] for each in found.values() for one in each}
    assert len(files) == 1, files
    middle = {way: statistics.median(one["seconds"] for one in each) for way, each in found.items()}
    for way, seconds in middle.items():
        cpu = statistics.median(one["cpu"] for one in found[way])
        factor = middle["listing"] / seconds
        print(
            f"{place:10} {way:15} {seconds:8.2f} s  CPU {cpu:7.2f} s  {factor:6.1f} times as fast"
        )
    return [
        {"suite": "metadata", "engine": way, "w": f"plan {place}", "ok": True, **one}
        for way, each in found.items()
        for one in each
    ]


def main() -> None:
    """Make the table, measure near and far away, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=10, help="of each partition")
    parser.add_argument("--delay-ms", type=float, default=60)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", help="keep the table here, and use one that is there")
    parser.add_argument("--out", type=Path, help="add a line of JSON for each call to this file")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(*json.loads(options.job))))
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("PF_SCRATCH")) as scratch:
        path = Path(options.folder or scratch) / "table"
        if not path.exists():
            make(path, options.partitions, options.files)
        records = compare("local disk", str(path), {}, options.turns)
        with FarStore(options.delay_ms, path.parent) as store:
            told = s3_options(store.url)
            records += compare(
                f"{options.delay_ms:g} ms",
                f"s3://{BUCKET}/{path.name}",
                {
                    "fs.s3a.endpoint": told["endpoint"],
                    "fs.s3a.endpoint.region": told["region"],
                    "fs.s3a.access.key": told["access_key_id"],
                    "fs.s3a.secret.key": told["secret_access_key"],
                },
                options.turns,
            )
    if options.out:
        with options.out.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(one) + "\n" for one in records)


if __name__ == "__main__":
    main()
