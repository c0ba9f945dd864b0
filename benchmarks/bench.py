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
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from targets import Records, Verdict, judge, noise

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / ".work" / "bench"
JARS = ROOT / ".work" / "hudi-oracle" / "jars"
#: engine on Spark -> group (as a folder), artifact and version of its jar
SPARK_JARS = {
    "hudi": ("org/apache/hudi", "hudi-spark3.5-bundle_2.12", "1.2.0"),
    "delta": ("io/delta", "delta-spark_2.12", "3.3.2"),
    "iceberg": ("org/apache/iceberg", "iceberg-spark-runtime-3.5_2.12", "1.12.0"),
}
#: All engines on Spark, which take turns in Python processes of PF_SPARK_PY.
ON_SPARK = ("hoodoo-spark", *SPARK_JARS)
BIG_WORKS = "W1,W2,merge_1pct,W3,W7"
SLOW_UPSERT = '{"skip": ["W2-1", "W2-10"]}'  # half a minute and more, and judged by nothing

FREE = '{"keep_open": true, "properties": {"hoodoo.publish.lock": "none"}}'
GROUP = '{"keep_open": true, "threads": true, "properties": '
GROUP += '{"hoodoo.group.commit.max.writes": "64"}}'

METADATA = '{"keep_open": true, "properties": {"hoodie.metadata.enable": "true"}}'

#: label -> (its name in run.py, the module it needs, None if always present)
ENGINES = {
    "floor": ("arrow_floor:floor", None),
    "hoodoo": ("hoodoo", None),
    "hoodoo-open": ('hoodoo:hoodoo-open:{"keep_open": true}', None),
    # No writer waits for a lock: slots alone decide, which a high-latency store rewards.
    "hoodoo-free": (f"hoodoo:hoodoo-free:{FREE}", None),
    # N writers are N threads of one process here, whose writes share instants.
    "hoodoo-group": (f"hoodoo:hoodoo-group:{GROUP}", None),
    # N processes again, whose writes one `hoodoo committer` commits together.
    "hoodoo-service": ('hoodoo:hoodoo-service:{"keep_open": true, "service": true}', None),
    # N processes that append to the same file groups, merge-on-read (docs/how-to/avoid-conflicts.md).
    "hoodoo-nbcc": ('hoodoo:hoodoo-nbcc:{"keep_open": true, "non_blocking": true}', None),
    # With a metadata table, of the partitions that Hudi makes on Spark.
    "hoodoo-metadata": (f"hoodoo:hoodoo-metadata:{METADATA}", None),
    "delta-rs": ("delta_rs:delta-rs", "deltalake"),
    "ducklake": ("ducklake", "duckdb_extension_ducklake"),
    "pyiceberg": (f"pyiceberg_sql:pyiceberg:{SLOW_UPSERT}", "pyiceberg"),
    "hoodoo-spark": ("hoodoo_spark:hoodoo-spark", "pydantic"),  # needs hoodoo's requirements, too
    "hudi": ("hudi_spark:hudi", "pyspark"),
    "delta": ("delta_spark:delta", "pyspark"),
    "iceberg": ("iceberg_spark:iceberg", "pyspark"),
}
#: Ways to write concurrently: alone they are ``hoodoo-open``.
TOGETHER = ("hoodoo-free", "hoodoo-group", "hoodoo-service", "hoodoo-nbcc")
#: Suite -> its engines. A thousand commits of pyiceberg alone would take minutes.
TAKE_PART = {
    "mor": ("floor", "hoodoo", "hudi"),
    "services": ("hoodoo", "delta-rs", "hudi", "delta"),
    "big": ("floor", "hoodoo", "delta-rs", "ducklake", "pyiceberg", *ON_SPARK),
    "conc": ("hoodoo", "hoodoo-open", *TOGETHER, "delta-rs", "pyiceberg"),
    "far": ("hoodoo-open", *TOGETHER, "delta-rs", "pyiceberg"),
    "small": tuple(label for label in ENGINES if label not in ("hoodoo-metadata", *TOGETHER)),
    "metadata": ("hoodoo-open", "hoodoo-metadata"),
    "hist": ("floor", "hoodoo", "delta-rs", "ducklake", "hudi"),
}


#: Suite -> its suites in run.py, if they have other names.
RUNS = {"metadata": "small+conc"}


def main(arguments: list[str]) -> int:
    """Run the chosen suites, print the report, then each target with its measurement."""
    options = parse(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    out = WORK / "results.jsonl"
    out.unlink(missing_ok=True)
    surroundings = environment()
    for name in options.without.split(",") if options.without else ():
        label, off = f"without-{name}", f'{{"keep_open": true, "without": ["{name}"]}}'
        ENGINES[label] = (f"hoodoo:{label}:{off}", None)
        TAKE_PART["far"] = (*TAKE_PART["far"], label)
        options.engines = options.engines and f"{options.engines},{label}"
    present, absent = engines(options, surroundings)
    for label, why in absent.items():
        print(f"left out: {label}: {why}")
    for suite in options.suites.split(","):
        specs = [ENGINES[label][0] for label in TAKE_PART[suite] if label in present]
        run = ["run.py", RUNS.get(suite, suite), "--engines", ",".join(specs)]
        programs = [[*run, *words_of(suite, options)]]
        programs += programs_of_metadata(options, present) if suite == "metadata" else []
        print(f"\n--- {suite}", flush=True)
        for name, *words in programs:
            python = surroundings["PF_SPARK_PY"] if "--hudi" in words else sys.executable
            command = [python, str(HERE / name), *words, "--out", str(out)]
            if subprocess.run(command, env=surroundings, check=False).returncode:
                print(f"the suite stopped early: {suite}, {name}", file=sys.stderr)
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
    """The command line; ``--quick`` runs a tenth of the size."""
    parser = argparse.ArgumentParser(description="hoodoo next to its peers")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one round")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--commits", type=int, help="small commits of each kind")
    parser.add_argument("--history", type=int, help="commits of the table that is opened")
    parser.add_argument("--writers", default="1,2,4,8,16", help="numbers of them in conc and far")
    parser.add_argument("--kinds", default="disjoint,overlap", help="work of conc and far")
    parser.add_argument("--engines", help=f"some of {', '.join(ENGINES)}")
    parser.add_argument("--without", help="far: also without these, one at a time (far-stores.md)")
    parser.add_argument("--suites", default="small,conc,far,big,mor,services,hist")
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
    found["PYTHONPATH"] = str(ROOT)  # the Python of Spark has only our requirements
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
        if label in ON_SPARK:
            if "PF_SPARK_PY" not in surroundings:
                absent[label] = "PF_SPARK_PY names no Python with PySpark 3.5 (README.md)"
                continue
            if label in SPARK_JARS and not jar_exists(label, surroundings):
                _, name, version = SPARK_JARS[label]
                absent[label] = f"{name} {version} is neither in PF_JARS nor in PF_M2"
                continue
            python = surroundings["PF_SPARK_PY"]
        if module is not None and not has_module(python, module):
            absent[label] = f"{python} has no module {module}"
            continue
        present.add(label)
    return present, absent


def jar_exists(label: str, surroundings: Mapping[str, str]) -> bool:
    """Whether the adapter will find its engine's jar."""
    group, artifact, version = SPARK_JARS[label]
    name = f"{artifact}-{version}.jar"
    repository = Path(surroundings.get("PF_M2", Path.home() / ".m2" / "repository"))
    places = [repository / group / artifact / version / name]
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
    many = ["--ns", options.writers, "--only", options.kinds, "--light-warm"]
    known = {
        "big": ["--rows", options.rows, "--rounds", options.rounds, "--only", BIG_WORKS],
        "mor": ["--rows", options.rows, "--rounds", options.rounds],
        # Seconds a run, not commits: a slow engine is stopped, and judged by its finished commits.
        "conc": [*many, "--conc-commits", 10, "--conc-limit", 20],
        "far": [*many, "--conc-commits", 24, "--conc-limit", 20],
        "services": ["--rows", options.rows, "--rounds", options.rounds],
        "small": ["--commits", options.commits, "--limit", 15, "--light-warm"],
        "hist": ["--hist", options.history, "--rounds", 5, "--light-warm"],
        "metadata": ["--ns", 16, "--commits", options.commits, "--limit", 30, "--light-warm"],
    }
    known["metadata"] += ["--conc-commits", 10, "--conc-limit", 20]
    return [str(word) for word in known[suite]]


def programs_of_metadata(options: argparse.Namespace, present: set[str]) -> list[list[str]]:
    """The programs that plan reads of many files and look up keys, with their words."""
    size = ["--partitions", "1000"] if options.quick else []
    keys = [] if options.quick else ["--keys", "5000000", "--groups", "1000"]
    if {"hudi", "hoodoo-spark"} <= present:  # a Python with PySpark and with our requirements
        keys.append("--hudi")
    return [["planning.py", *size], ["record_index.py", *keys]]


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
    for record, full in zip(kept, records, strict=True):
        if full.get("op") == "concurrent" and full.get("ok"):
            record["result"] = {k: v for k, v in full["result"].items() if k != "errors"}
        if "error" in record:  # paths of this machine say nothing elsewhere
            record["error"] = str(record["error"]).replace(str(WORK), "...")
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
    # Files of a killed run.
    shutil.rmtree(WORK / "w", ignore_errors=True)
    sys.exit(main(sys.argv[1:]))
