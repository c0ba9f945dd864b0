#!/usr/bin/env python3
"""
Upserts of a few keys into a table with many file groups: by record index, SIMPLE and BLOOM.

Usage: benchmarks/record_index.py [--keys 5000000 --groups 1000 --touched 10 --turns 5]

One table without partitions is made and copied for each index. All copies have the same metadata
table, so each upsert maintains the record index. The indexes take turns, and medians are compared.
With ``--hudi``, Apache Hudi on Spark upserts the same rows into a copy of its own, by record index too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pfbench.proc import Meter

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


HUDI = "Hudi"


def hudi_upserts(path: Path, type_: str, work: Path) -> Callable[[pa.Table, int], None]:
    """Start Spark with Hudi; return what upserts rows into the table by its record index."""
    from adapters.hudi_spark import Hudi

    engine: Any = Hudi(str(work), str(work), {})
    engine.start()
    options = {
        "hoodie.table.name": "base",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.datasource.write.table.type": type_,
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.index.type": INDEXES[0],
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.index.column.stats.enable": "false",
        "hoodie.metadata.global.record.level.index.enable": "true",
        **QUIET,
    }

    def upsert(batch: pa.Table, turn: int) -> None:
        source = work / f"rows-{turn}.parquet"
        pq.write_table(batch, source)
        frame = engine.spark.read.parquet(str(source))
        frame.write.format("hudi").options(**options).mode("append").save(str(path))

    return upsert


def main() -> None:
    """Make the tables, measure, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--changed", type=int, default=1_000, help="keys of one upsert")
    parser.add_argument("--touched", type=int, default=10, help="file groups of one upsert")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--type", default="MERGE_ON_READ")
    parser.add_argument("--hudi", action="store_true", help="also Hudi on Spark (PF_JARS)")
    parser.add_argument("--out", type=Path, help="add a line of JSON for each call to this file")
    options = parser.parse_args()
    chance = np.random.default_rng(1)
    size = options.keys // options.groups
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        base = Path(folder) / "base"
        make(base, options)
        paths = {}
        indexes = [*INDEXES, *([HUDI] if options.hudi else [])]
        for index in indexes:
            paths[index] = shutil.copytree(base, Path(folder) / index)
        shutil.rmtree(base)
        by_hudi = hudi_upserts(paths[HUDI], options.type, Path(folder)) if options.hudi else None
        taken: dict[str, list[float]] = {index: [] for index in indexes}
        spent: dict[str, list[float]] = {index: [] for index in indexes}
        for turn in range(options.turns + 1):
            groups = chance.choice(options.groups, options.touched, replace=False)
            inside = chance.choice(size * options.touched, options.changed, replace=False)
            batch = rows(groups[inside // size] * size + inside % size, turn + 1)
            for index in indexes:
                with Meter() as meter:
                    if index == HUDI:
                        by_hudi(batch, turn)
                    else:
                        properties = {**QUIET, "hoodie.index.type": index}
                        with hoodoo.open_table(paths[index], properties=properties) as table:
                            result = table.upsert(batch)
                        assert result.rows_inserted == 0, index
                taken[index].append(meter.out["wall"])
                spent[index].append(meter.out["cpu"])
        if options.hudi:
            with hoodoo.open_table(paths[HUDI]) as table:
                values = table.to_arrow(columns=["v"]).column("v").to_numpy()
            assert len(values) == options.keys
            assert (values == options.turns + 1).sum() == options.changed
    # The first turn also pays for imports.
    middle, cpus = (
        {index: statistics.median(times[1:]) for index, times in each.items()}
        for each in (taken, spent)
    )
    first, first_cpu = middle[INDEXES[0]], cpus[INDEXES[0]]
    for index, seconds in middle.items():
        print(
            f"{index:28} {seconds:8.3f} s  {seconds / first:6.2f} times"
            f"  {cpus[index]:8.3f} CPU s  {cpus[index] / first_cpu:6.2f} times"
        )
    if options.out:
        with options.out.open("a", encoding="utf-8") as lines:
            for index, times in taken.items():
                record = {"suite": "metadata", "engine": index, "w": "upsert by index", "ok": True}
                pairs = zip(times[1:], spent[index][1:], strict=True)
                lines.writelines(
                    json.dumps({**record, "seconds": one, "cpu": cpu}) + "\n" for one, cpu in pairs
                )


if __name__ == "__main__":
    main()
