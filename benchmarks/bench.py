#!/usr/bin/env python3
"""
`make bench`: hoodoo next to the peers that install from packages, then ratios and targets.

It drives the framework in this folder (README.md) with the settings that our targets are stated
for. Only ratios within one run are judged: seconds belong to the machine. Hudi on Spark joins
when PF_SPARK_PY names a Python with PySpark 3.5 and its bundle lies in the Maven repository;
without it, its targets are compared with the recorded factor to the floor and say so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".work" / "bench"
ENGINES = ("arrow_floor:floor", "hoodoo", "delta_rs:delta-rs", "ducklake")
HUDI = "hudi_spark:hudi"
# Seconds of Hudi 1.2.0 on Spark over seconds of the floor, results/2026-11.md.
RECORDED_HUDI = {"W1": 18.7 / 2.18, "W2-1": 33.3 / 0.89}
RECORDED_ROWS = 2_000_000  # the factor depends on the size, so it decides nothing at another

Records = list[dict[str, Any]]


def main(arguments: list[str]) -> int:
    """Run the chosen suites, print the report, then each target with what was measured."""
    options = parse(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    out = WORK / "results.jsonl"
    out.unlink(missing_ok=True)
    engines = options.engines or ",".join(
        (*ENGINES, HUDI) if os.environ.get("PF_SPARK_PY") else ENGINES
    )
    surroundings = {"PF_PY": sys.executable, "PF_LAKE_PY": sys.executable}
    surroundings = {**surroundings, "PF_SCRATCH": str(WORK), **os.environ}
    for suite, words in suites(options):
        command = [sys.executable, str(HERE / "run.py"), suite, "--engines", engines]
        command += ["--out", str(out), *words]
        if subprocess.run(command, env=surroundings, check=False).returncode:
            print(f"the suite stopped early: {suite}", file=sys.stderr)
    subprocess.run([sys.executable, str(HERE / "report.py"), str(out)], check=True)
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return judge(records)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="hoodoo next to its peers")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--history", type=int, default=1_000)
    parser.add_argument("--engines", help="as run.py takes them")
    parser.add_argument("--suites", default="big,small,hist")
    return parser.parse_args(arguments)


def suites(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Each suite with its words for run.py."""
    known = {
        "big": ["--rows", options.rows, "--rounds", options.rounds, "--only", "W1,W2"],
        "small": ["--commits", options.commits, "--limit", 60, "--light-warm"],
        "conc": ["--ns", "1,2,4", "--light-warm"],
        "hist": ["--hist", options.history, "--rounds", options.rounds, "--light-warm"],
    }
    chosen = options.suites.split(",")
    return [(name, [str(word) for word in known[name]]) for name in chosen]


def judge(records: Records) -> int:
    """Print every target that this run can decide; 1 when our engine failed or missed one."""
    lines = [*big_targets(records), *small_targets(records), *failures(records)]
    if not lines:
        lines = [(False, "none could be decided: hoodoo and the floor must both run, at full size")]
    print("\n### Targets\n")
    for met, text in lines:
        print(f"- {'met' if met else 'MISSED'}: {text}")
    return 0 if all(met for met, _ in lines) else 1


def big_targets(records: Records) -> list[tuple[bool, str]]:
    """Bulk load and upsert against Hudi on Spark: of this run, else by the recorded factor."""
    lines = []
    for work, title, times in (("W1", "bulk load", 3.0), ("W2-1", "upsert of 1 %", 5.0)):
        seconds = medians(records, work)
        if "hoodoo" not in seconds or not {"hudi", "floor"} & seconds.keys():
            continue
        live = "hudi" in seconds
        if not live and any(r["rows"] != RECORDED_ROWS for r in records if r["w"] == work):
            continue
        hudi = seconds["hudi"] if live else seconds["floor"] * RECORDED_HUDI[work]
        source = "this run" if live else "the floor of this run x the recorded factor"
        factor = hudi / seconds["hoodoo"]
        text = f"{title} {factor:.1f} times as fast as Hudi on Spark (wanted {times}; {source})"
        lines.append((factor >= times, text))
    return lines


def small_targets(records: Records) -> list[tuple[bool, str]]:
    """Small commits: at most four times the floor, and no slower at the end than at the start."""
    lines = []
    for kind in ("append", "upsert"):
        latency = latencies(records, f"W4-{kind}")
        if not latency.get("hoodoo") or not latency.get("floor"):
            continue
        ours = latency["hoodoo"]
        factor = statistics.median(ours) / statistics.median(latency["floor"])
        growth = statistics.median(ours[-20:]) / statistics.median(ours[:20])
        lines += [
            (factor <= 4, f"small {kind} {factor:.1f} times the floor's p50 (wanted 4 at most)"),
            (growth < 1.5, f"small {kind} grows by {growth:.2f} over {len(ours)} (wanted < 1.5)"),
        ]
    return lines


def failures(records: Records) -> list[tuple[bool, str]]:
    """What our engine could not do, unless it says that it does not support it."""
    return [
        (False, f"{record['w']} failed: {str(record.get('error'))[:200]}")
        for record in records
        if record["engine"] == "hoodoo" and not record.get("ok") and not record.get("unsupported")
    ]


def medians(records: Records, work: str) -> Mapping[str, float]:
    """Median seconds per engine."""
    seconds: dict[str, list[float]] = {}
    for record in records:
        if record["w"] == work and record.get("ok"):
            seconds.setdefault(record["engine"], []).append(record["seconds"])
    return {engine: statistics.median(values) for engine, values in seconds.items()}


def latencies(records: Records, work: str) -> Mapping[str, list[float]]:
    """Seconds of each small commit per engine, in order."""
    found: dict[str, list[float]] = {}
    for record in records:
        if record["w"] == work and record.get("op") == "commit_loop" and record.get("ok"):
            found.setdefault(record["engine"], []).extend(record["result"]["lat"])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
