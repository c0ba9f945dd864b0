#!/usr/bin/env python3
"""
Compare the speed of writers with and without each mechanism for high-latency stores.

All runs are in simulated time (``simulated.py``), so the machine's load does not matter. Each seed makes
a pair: the same writers with all mechanisms, and without one. ``docs/design/far-stores.md`` holds a result.

``python benchmarks/farstore/compare.py --cases own,same --without waiting-line,shared-lock``
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hoodoo
from benchmarks.farstore.mechanisms import MECHANISMS, without
from benchmarks.farstore.simulated import SimulatedStore
from benchmarks.pfbench import data
from timeline.errors import HoodooError
from timeline.system import NullEvents

ROWS = 100
START_MS = 600  # the writers start within this time
ADDRESS = "s3://bench/table"
PROPERTIES = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": "storage_based",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "fs.s3a.endpoint": "http://127.0.0.1:1",  # no request leaves the process
    "fs.s3a.endpoint.region": "us-east-1",
    "fs.s3a.access.key": "bench",
    "fs.s3a.secret.key": "bench",
}


@dataclass(frozen=True, slots=True)
class Case:
    """Writers of one table: 100 rows a commit, of their own partitions or of the same keys."""

    writers: int
    same_rows: bool
    lock: str = "lock"  # of hoodoo.publish.lock
    switched_off: tuple[str, ...] = ()


CASES = {
    "lone": Case(1, same_rows=True),
    "own": Case(16, same_rows=False),
    "own-unlocked": Case(16, same_rows=False, lock="none"),
    "own-exclusive": Case(16, same_rows=False, switched_off=("shared-lock",)),
    "same": Case(16, same_rows=True),
    "same-unlocked": Case(16, same_rows=True, lock="none"),
    "same-exclusive": Case(16, same_rows=True, switched_off=("shared-lock",)),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The commits of one run."""

    latencies_ms: tuple[float, ...]
    refused: int
    speed: float  # commits per second
    requests: int


def play(case: Case, seed: int, *, seconds: float, off: Collection[str] = ()) -> Outcome:
    """
    Let writers commit for a simulated time; each starts no commit after it.

    Raises:
        AssertionError: The table has not exactly the acknowledged rows.
    """
    properties = {**PROPERTIES, "hoodoo.publish.lock": case.lock}
    quiet = NullEvents()
    latencies: list[float] = []
    refused = ended = 0
    with SimulatedStore(seed) as store, without({*case.switched_off, *off}):
        create = partial(
            hoodoo.create_table,
            ADDRESS,
            schema=data.SCHEMA,
            record_key=["id"],
            partition_by=["part"],
            ordering=["ts"],
            properties=properties,
        )
        store.perform(lambda: create().close())
        opened = [
            store.perform(partial(hoodoo.open_table, ADDRESS, properties=properties, events=quiet))
            for _ in range(case.writers)
        ]
        start_ms, asked = store.now, store.requests
        last_ms = start_ms

        def write(number: int) -> None:
            nonlocal refused, ended, last_ms
            count = 0
            while store.now - start_ms < seconds * 1000:
                first = 10_000_000 * (number + 1) + count * ROWS
                shared, part = (ROWS - 1, "p00") if case.same_rows else (0, f"p{number:02}")
                rows = data.small(first, ROWS, shared, part, float(count))
                table, began_ms = opened[number], store.now
                commit = table.upsert if case.same_rows else table.bulk_insert
                try:
                    commit(rows)
                except HoodooError:
                    refused += 1
                else:
                    latencies.append(store.now - began_ms)
                    last_ms = store.now
                count += 1
            ended += 1

        for number in range(case.writers):
            store.start(partial(write, number), store.now + store.draw() * START_MS)
        store.run(lambda: ended == case.writers)
        asked = store.requests - asked
        rows = store.perform(lambda: opened[0].to_arrow(columns=["id"]).num_rows)
    own, common = (1, ROWS - 1) if case.same_rows else (ROWS, 0)
    assert rows == common + own * len(latencies), f"{rows} rows of {len(latencies)} commits"
    speed = len(latencies) / (last_ms - start_ms) * 1000
    return Outcome(tuple(sorted(latencies)), refused, speed, asked)


def main(arguments: Sequence[str]) -> int:
    """Print a table: each mechanism's median ratio in each case, with the least and greatest."""
    parser = argparse.ArgumentParser(description="writers with and without each mechanism")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--without", default=",".join(MECHANISMS), help="mechanisms, one at a time")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12, help="simulated time of a run")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    cases, names = options.cases.split(","), options.without.split(",")
    jobs = [
        (case, name, seed, options.seconds)
        for case in cases
        for name in ("", *names)
        if name not in CASES[case].switched_off
        for seed in range(1, options.pairs + 1)
    ]
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=8) as pool:
        found = dict(zip((job[:3] for job in jobs), pool.starmap(_job, jobs), strict=True))
    print("| without | " + " | ".join(cases) + " |")
    print("|---" * (len(cases) + 1) + "|")
    for name in names:
        print(f"| {name} | " + " | ".join(_cell(found, case, name) for case in cases) + " |")
    return 0


def _job(case: str, name: str, seed: int, seconds: float) -> tuple[float, int]:
    warnings.simplefilter("ignore")
    outcome = play(CASES[case], seed, seconds=seconds, off=[name] if name else [])
    lone = CASES[case].writers == 1  # the time of a commit, without the first ones
    speed = 1000 / median(outcome.latencies_ms) if lone else outcome.speed
    return speed, outcome.refused


def _cell(found: dict[tuple[str, str, int], tuple[float, int]], case: str, name: str) -> str:
    runs = [seed for told, other, seed in found if told == case and other == name]
    if not runs:
        return ""
    ratios = sorted(found[case, "", seed][0] / found[case, name, seed][0] for seed in runs)
    refused = [sum(found[case, one, seed][1] for seed in runs) for one in ("", name)]
    text = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return f"{text}, refused {refused[0]}:{refused[1]}" if any(refused) else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
