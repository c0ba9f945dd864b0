#!/usr/bin/env python3
"""
`make bench`: hoodoo next to its peers, all in one run, then ratios and targets.

It drives the framework in this folder (README.md) with the settings our targets are stated for.
Only ratios within one run are judged: seconds belong to the machine. Engines that are not installed are left out and named; a target
that needs one of them is then reported as not decided.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / ".work" / "bench"
JARS = ROOT / ".work" / "hudi-oracle" / "jars"
BUNDLE = "hudi-spark3.5-bundle_2.12"
BUNDLE_VERSION = "1.2.0"
SLOW_UPSERT = '{"skip": ["W2-1", "W2-10"]}'  # half a minute and more, and judged by nothing

#: label -> (how run.py takes it, the module it needs, None for what is always there)
ENGINES = {
    "floor": ("arrow_floor:floor", None),
    "hoodoo": ("hoodoo", None),
    "hoodoo-open": ('hoodoo:hoodoo-open:{"keep_open": true}', None),
    "delta-rs": ("delta_rs:delta-rs", "deltalake"),
    "ducklake": ("ducklake", "duckdb_extension_ducklake"),
    "pyiceberg": (f"pyiceberg_sql:pyiceberg:{SLOW_UPSERT}", "pyiceberg"),
    "hudi": ("hudi_spark:hudi", "pyspark"),
}
#: Suite -> who takes part. A thousand commits of pyiceberg alone would take minutes.
TAKE_PART = {
    "mor": ("floor", "hoodoo", "hudi"),
    "big": ("floor", "hoodoo", "delta-rs", "ducklake", "pyiceberg", "hudi"),
    "small": tuple(ENGINES),
    "hist": ("floor", "hoodoo", "delta-rs", "ducklake", "hudi"),
}
SMALL_FACTOR_MAX = 4.0
GROWTH_MAX = 1.5
HELD_CREATES_MAX = 8.0
UPSERT_FACTOR = 5.0
LOAD_FACTOR = 3.0
COMPACT_FACTOR = 3.0
CLUSTER_FACTOR = 2.0
MOR_UPSERT_FACTOR = 10.0
MERGED_READ_FACTOR = 3.0
PRUNED_READ_MAX = 1.3  # over pyarrow's time for the same columns of the same files
MERGED_SPEED_MIN = 0.5  # of reading the base files alone; told, not a target
PEAK_GROUPS_MAX = 2.0  # a caller may still hold rows of one file group when the next is read
BUSY = 0.25  # share of the machine that others took: such a run decides nothing for good

Records = list[dict[str, Any]]
Verdict = tuple[str, str]  # met, MISSED or open; the text


def main(arguments: list[str]) -> int:
    """Run the chosen suites, print the report, then each target with what was measured."""
    options = parse(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    out = WORK / "results.jsonl"
    out.unlink(missing_ok=True)
    surroundings = environment()
    present, absent = engines(options, surroundings)
    for label, why in absent.items():
        print(f"left out: {label}: {why}")
    for suite in options.suites.split(","):
        specs = [ENGINES[label][0] for label in TAKE_PART[suite] if label in present]
        command = [sys.executable, str(HERE / "run.py"), suite, "--engines", ",".join(specs)]
        command += ["--out", str(out), *words_of(suite, options)]
        print(f"\n--- {suite}", flush=True)
        if subprocess.run(command, env=surroundings, check=False).returncode:
            print(f"the suite stopped early: {suite}", file=sys.stderr)
    if not out.exists():
        print("nothing was measured; see the lines above", file=sys.stderr)
        return 1
    report = subprocess.run(
        [sys.executable, str(HERE / "report.py"), str(out)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    verdicts = judge(records)
    told = "\n".join(
        ["### Targets\n", *(f"- {state}: {text}" for state, text in verdicts), "", noise(records)]
    )
    print(f"\n{report}\n{told}")
    if options.save:
        save(options, records, f"{told}\n\n{report}", verdicts, absent)
    return 1 if any(state == "MISSED" for state, _ in verdicts) else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line; ``--quick`` is a look at a tenth of the size."""
    parser = argparse.ArgumentParser(description="hoodoo next to its peers")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--commits", type=int, help="small commits of each kind")
    parser.add_argument("--history", type=int, help="commits of the table that is opened")
    parser.add_argument("--engines", help=f"some of {', '.join(ENGINES)}")
    parser.add_argument("--suites", default="small,big,mor,hist")
    parser.add_argument("--save", metavar="NAME", help="write results/NAME.md and NAME.json")
    options = parser.parse_args(arguments)
    full = {"rows": 2_000_000, "rounds": 2, "commits": 200, "history": 1_000}
    quick = {"rows": 200_000, "rounds": 1, "commits": 100, "history": 200}
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def environment() -> dict[str, str]:
    """Interpreters and jars, taken from the environment or from where this project keeps them."""
    found = {"PF_PY": sys.executable, "PF_PEER_PY": sys.executable, "PF_SCRATCH": str(WORK)}
    for variable, folder in (("PF_PEER_PY", "bench-peers"), ("PF_SPARK_PY", "bench-spark")):
        python = ROOT / ".work" / folder / "bin" / "python"
        if python.exists():
            found[variable] = str(python)
    if JARS.is_dir():
        found["PF_JARS"] = str(JARS)
    return {**found, **os.environ}


def engines(
    options: argparse.Namespace, surroundings: Mapping[str, str]
) -> tuple[set[str], dict[str, str]]:
    """Labels that can run, and why the others cannot."""
    wanted = options.engines.split(",") if options.engines else list(ENGINES)
    present = set()
    absent = {}
    for label in wanted:
        module = ENGINES[label][1]
        python = surroundings["PF_PEER_PY"]
        if label == "hudi":
            if "PF_SPARK_PY" not in surroundings:
                absent[label] = "PF_SPARK_PY names no Python with PySpark 3.5 (README.md)"
                continue
            if not bundle_exists(surroundings):
                absent[label] = f"{BUNDLE} {BUNDLE_VERSION} lies neither in PF_JARS nor in PF_M2"
                continue
            python = surroundings["PF_SPARK_PY"]
        if module is not None and not has_module(python, module):
            absent[label] = f"{python} has no module {module}"
            continue
        present.add(label)
    return present, absent


def bundle_exists(surroundings: Mapping[str, str]) -> bool:
    """Whether the adapter will find Hudi's jar."""
    name = f"{BUNDLE}-{BUNDLE_VERSION}.jar"
    repository = Path(surroundings.get("PF_M2", Path.home() / ".m2" / "repository"))
    places = [repository / "org/apache/hudi" / BUNDLE / BUNDLE_VERSION / name]
    if "PF_JARS" in surroundings:
        places.append(Path(surroundings["PF_JARS"]) / name)
    return any(place.exists() for place in places)


def has_module(python: str, module: str) -> bool:
    """Whether that interpreter can import it."""
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    look = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({module!r}))"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def words_of(suite: str, options: argparse.Namespace) -> list[str]:
    """A suite's words for run.py."""
    known = {
        "big": ["--rows", options.rows, "--rounds", options.rounds, "--only", "W1,W2,W8"],
        "mor": ["--rows", options.rows, "--rounds", options.rounds],
        "small": ["--commits", options.commits, "--limit", 15, "--light-warm"],
        "hist": ["--hist", options.history, "--rounds", 5, "--light-warm"],
    }
    return [str(word) for word in known[suite]]


def judge(records: Records) -> list[Verdict]:
    """Every target that this run can decide, and what our engine could not do."""
    return [
        *small_targets(records),
        *held_targets(records),
        big_target(records, "W1", "bulk load", LOAD_FACTOR),
        big_target(records, "W2-1", "upsert of 1 %", UPSERT_FACTOR),
        big_target(records, "W3-compact", "compaction", COMPACT_FACTOR),
        big_target(records, "W8-zorder", "Z-order clustering", CLUSTER_FACTOR),
        *mor_targets(records),
        *comparisons(records),
        *failures(records),
    ]


def verdict(met: bool, text: str) -> Verdict:
    """A decided target."""
    return ("met" if met else "MISSED", text)


def small_targets(records: Records) -> list[Verdict]:
    """Small commits: at most so many times the floor, and no slower at the end than at the start."""
    found = []
    for label in ("hoodoo", "hoodoo-open"):
        for kind in ("append", "upsert"):
            ours, floor = (
                loops(records, each, f"W4-{kind}", warm=True) for each in (label, "floor")
            )
            if not ours or not floor:
                continue
            # Engines take turns by chunks, so a chunk and the floor's beside it saw one machine.
            factor = statistics.median(
                mine / theirs
                for mine, theirs in zip(chunk_medians(ours), chunk_medians(floor), strict=False)
            )
            times = [one for loop in ours for one in loop["result"]["lat"]]
            growth = statistics.median(times[-20:]) / statistics.median(times[:20])
            cpu = ours[-1]["cpu"] / max(ours[0]["cpu"], 1e-9)
            text = f"small {kind} ({label}) {factor:.1f} times the floor's p50"
            found.append(verdict(factor <= SMALL_FACTOR_MAX, f"{text}, wanted at most 4"))
            text = f"small {kind} ({label}) grows by {growth:.2f} over {len(times)} commits"
            text += f", by {cpu:.2f} in CPU seconds, wanted less than {GROWTH_MAX}"
            found.append(verdict(growth < GROWTH_MAX, text))
    return found


def held_targets(records: Records) -> list[Verdict]:
    """The lock: held no longer than eight durable creates on this disk, measured beside it."""
    found = []
    for kind in ("append", "upsert"):
        turns = [
            statistics.median(loop["result"]["held_ms"])
            / statistics.median(loop["result"]["creates_ms"])
            for label in ("hoodoo", "hoodoo-open")
            for loop in loops(records, label, f"W4-{kind}")
            if loop["result"].get("held_ms")
        ]
        if turns:
            text = f"small {kind}: lock held for {statistics.median(turns):.1f} durable creates"
            met = statistics.median(turns) <= HELD_CREATES_MAX
            found.append(verdict(met, f"{text}, wanted at most {HELD_CREATES_MAX:.0f}"))
    return found


def big_target(records: Records, work: str, title: str, wanted: float) -> Verdict:
    """A big write against Hudi on Spark, by medians."""
    seconds = medians(records, work, "seconds")
    cpu = medians(records, work, "cpu")
    if not {"hoodoo", "hudi"} <= seconds.keys():
        return ("open", f"{title}: hoodoo and Hudi on Spark must both run")
    factor = seconds["hudi"] / seconds["hoodoo"]
    text = f"{title} {factor:.1f} times as fast as Hudi on Spark"
    text += f" ({cpu['hudi'] / cpu['hoodoo']:.1f} in CPU seconds), wanted {wanted:.0f}"
    return verdict(factor >= wanted, text)


def mor_targets(records: Records) -> list[Verdict]:
    """Merge-on-read: writes and merged reads against Spark, pruned reads against pyarrow, memory."""
    if not any(record["suite"] == "mor" and record.get("ok") for record in records):
        return []
    found = []
    for work, blocks in (("M", "Parquet"), ("MA", "Avro")):
        text = f"MOR upsert of 1 % ({blocks} blocks)"
        found.append(big_target(records, f"{work}-upsert", text, MOR_UPSERT_FACTOR))
        text = f"merged read ({blocks} blocks)"
        found.append(big_target(records, f"{work}-read", text, MERGED_READ_FACTOR))
    found.append(big_target(records, "M-two", "merged read of two columns", MERGED_READ_FACTOR))
    ours, plain = (paired(records, work) for work in ("M-ro", "M-plain"))
    if ours and plain:
        factor = statistics.median(one / other for one, other in zip(ours, plain, strict=False))
        text = f"column-pruned read takes {factor:.2f} times pyarrow's time for the same files"
        found.append(
            verdict(factor <= PRUNED_READ_MAX, f"{text}, wanted at most {PRUNED_READ_MAX}")
        )
    found.extend(peak_targets(records))
    merged, base = (paired(records, work) for work in ("M-read", "M-base"))
    if merged and base:
        share = statistics.median(other / one for one, other in zip(merged, base, strict=False))
        found.append(("told", f"merged read at {share:.2f} of the speed of its base files alone"))
    return found


def peak_targets(records: Records) -> list[Verdict]:
    """Memory of a streamed read: bounded by the largest file group, whatever the table's size."""
    found = []
    for work, blocks in (("M", "Parquet"), ("MA", "Avro")):
        told = [
            record["result"]
            for record in records
            if record["w"] == f"{work}-peak" and record["engine"] == "hoodoo" and record.get("ok")
        ]
        if told:
            peak = max(one["peak_mb"] for one in told)
            group = max(one.get("group_mb", 0) for one in told)
            text = f"peak memory of a streamed merged read ({blocks} blocks): {peak:.0f} MB, "
            text += f"{peak / max(group, 1):.1f} times that of the largest file group alone, "
            text += f"wanted at most {PEAK_GROUPS_MAX:.0f}"
            found.append(verdict(peak <= PEAK_GROUPS_MAX * max(group, 1), text))
    return found


def paired(records: Records, work: str) -> list[float]:
    """Our seconds, turn by turn: engines and works take turns, so a turn saw one machine."""
    return [
        record["seconds"]
        for record in records
        if record["w"] == work and record["engine"] == "hoodoo" and record.get("ok")
    ]


def comparisons(records: Records) -> list[Verdict]:
    """Ours over each peer's, for all that has no target of its own."""
    works = {"W1": "bulk load", "W2-1": "upsert of 1 %", "W2-10": "upsert of 10 %"}
    works |= {"M-load": "MOR load", "M-upsert": "MOR upsert of 1 %", "M-read": "merged read"}
    works |= {"MA-upsert": "MOR upsert, Avro blocks", "MA-read": "merged read, Avro blocks"}
    works |= {"M-two": "merged read of two columns", "M-ro": "read-optimized read"}
    works |= {"M-inc": "MOR changes", "M-points": "100 rows by key"}
    works |= {
        record["w"]: f"opening after {record['w'].rpartition('-')[2]} commits"
        for record in records
        if record["w"].startswith("W6-open")
    }
    found = []
    for work, title in works.items():
        seconds = medians(records, work, "seconds")
        if "hoodoo" in seconds:
            others = ", ".join(
                f"{engine} {seconds['hoodoo'] / theirs:.2g}"
                for engine, theirs in seconds.items()
                if engine != "hoodoo"
            )
            found.append(("told", f"{title}: our seconds over those of {others}"))
    return found


def failures(records: Records) -> list[Verdict]:
    """What our engine could not do, unless it says that it does not support it."""
    return [
        ("MISSED", f"{record['w']} failed: {str(record.get('error'))[:200]}")
        for record in records
        if record["engine"].startswith("hoodoo")
        and not record.get("ok")
        and not record.get("unsupported")
    ]


def loops(records: Records, engine: str, work: str, *, warm: bool = False) -> Records:
    """The chunks of small commits of one engine, in order."""
    found = [
        record
        for record in records
        if record["engine"] == engine
        and record["w"] == work
        and record.get("op") == "commit_loop"
        and record.get("ok")
    ]
    return found if warm else found[1:] or found


def chunk_medians(chunks: Records) -> list[float]:
    """The median latency of each chunk."""
    return [statistics.median(chunk["result"]["lat"]) for chunk in chunks]


def medians(records: Records, work: str, field: str) -> Mapping[str, float]:
    """Median seconds or CPU seconds per engine."""
    values: dict[str, list[float]] = {}
    for record in records:
        if record["w"] == work and record.get("ok"):
            values.setdefault(record["engine"], []).append(record[field])
    return {engine: statistics.median(found) for engine, found in values.items()}


def noise(records: Records) -> str:
    """How busy others kept the machine."""
    share = statistics.median(
        record["foreign"] for record in records if record.get("ok") and record["seconds"] > 0.1
    )
    advice = "; run it again on a quiet machine before you quote it" if share > BUSY else ""
    return f"Others took {share:.0%} of the machine (median over the calls){advice}."


def save(
    options: argparse.Namespace,
    records: Records,
    text: str,
    verdicts: Iterable[Verdict],
    absent: Mapping[str, str],
) -> None:
    """The report as Markdown, the figures behind it as JSON."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    today = dt.datetime.now(tz=dt.UTC).date()
    head = f"# {options.save}\n\n{today}, {os.cpu_count()} cores, {options.rows:,} rows, "
    head += f"{options.rounds} rounds, {options.commits} small commits. How to read it: "
    head += "`../README.md`.\n\n"
    (folder / f"{options.save}.md").write_text(head + text, encoding="utf-8")
    kept = [
        {
            name: record.get(name)
            for name in ("engine", "w", "round", "seconds", "cpu", "foreign", "error")
            if record.get(name) is not None
        }
        for record in records
    ]
    document = {
        "date": str(today),
        "rows": options.rows,
        "left_out": dict(absent),
        "targets": [list(one) for one in verdicts],
        "calls": kept,
    }
    (folder / f"{options.save}.json").write_text(
        json.dumps(document, separators=(",", ":")).replace('},{"engine', '},\n{"engine'),
        encoding="utf-8",
    )


if __name__ == "__main__":
    # What a killed run left behind.
    shutil.rmtree(WORK / "w", ignore_errors=True)
    sys.exit(main(sys.argv[1:]))
