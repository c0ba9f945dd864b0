#!/usr/bin/env python3
"""
Upserts of a few keys into a table with many file groups: by record index, SIMPLE and BLOOM.

Usage: benchmarks/record_index.py [--keys 5000000 --groups 1000 --touched 10 --turns 5]

One table without partitions is made and copied for each index. All copies have the same metadata
table, so each upsert maintains the record index. The indexes take turns, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import hoodoo

INDEXES = ("GLOBAL_RECORD_LEVEL_INDEX", "SIMPLE", "BLOOM")
QUIET = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
QUIET |= {"hoodie.compact.inline": "false"}


def rows(numbers: np.ndarray, value: int) -> pa.Table:
    """Return rows with the keys of these numbers; keys do not grow with their file group."""
    keys = [f"{number * 2654435761 % 2**32:08x}-{number}" for number in numbers.tolist()]
    stamps = np.full(len(numbers), value)
    return pa.table(
        {"id": keys, "ts": stamps, "v": stamps, "name": [f"name {one}" for one in keys]}
    )


def make(path: Path, options: argparse.Namespace) -> None:
    """Make the table: each file group has as many rows, then both partitions of the metadata table."""
    size = options.keys // options.groups
    properties = {**QUIET, "hoodie.parquet.small.file.limit": "0"}
    properties |= {"hoodie.copyonwrite.insert.auto.split": "false"}
    properties |= {"hoodie.copyonwrite.insert.split.size": str(size)}
    with hoodoo.create_table(
        path, record_key="id", ordering="ts", table_type=options.type, properties=properties
    ) as table:
        step = size * max(1, options.groups // 10)
        for start in range(0, options.keys, step):
            table.insert(rows(np.arange(start, min(start + step, options.keys)), 0))
        for partition in ("files", "record_index"):
            table.metadata.create(partition)


def main() -> None:
    """Make the tables, measure, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--changed", type=int, default=1_000, help="keys of one upsert")
    parser.add_argument("--touched", type=int, default=10, help="file groups of one upsert")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--type", default="MERGE_ON_READ")
    parser.add_argument("--out", type=Path, help="add a line of JSON for each call to this file")
    options = parser.parse_args()
    chance = np.random.default_rng(1)
    size = options.keys // options.groups
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        make(base, options)
        paths = {}
        for index in INDEXES:
            paths[index] = shutil.copytree(base, Path(folder) / index)
        taken: dict[str, list[float]] = {index: [] for index in INDEXES}
        for turn in range(options.turns + 1):
            groups = chance.choice(options.groups, options.touched, replace=False)
            inside = chance.choice(size * options.touched, options.changed, replace=False)
            batch = rows(groups[inside // size] * size + inside % size, turn + 1)
            for index in INDEXES:
                properties = {**QUIET, "hoodie.index.type": index}
                with hoodoo.open_table(paths[index], properties=properties) as table:
                    start = time.perf_counter()
                    result = table.upsert(batch)
                    taken[index].append(time.perf_counter() - start)
                assert result.rows_inserted == 0, index
    # The first turn also pays for imports.
    middle = {index: statistics.median(times[1:]) for index, times in taken.items()}
    first = middle[INDEXES[0]]
    for index, seconds in middle.items():
        print(f"{index:28} {seconds:8.3f} s  {seconds / first:6.2f} times")
    if options.out:
        with options.out.open("a", encoding="utf-8") as lines:
            for index, times in taken.items():
                record = {"suite": "metadata", "engine": index, "w": "upsert by index", "ok": True}
                lines.writelines(json.dumps({**record, "seconds": one}) + "\n" for one in times[1:])


if __name__ == "__main__":
    main()
