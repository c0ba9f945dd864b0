"""
A running table: writers, every service and readers at work on it at the same time.

Four writers upsert and delete, each its own keys and all of them some shared ones. Compaction,
clustering, cleaning and archiving run as workers of their own. Two readers pin snapshots and
read them again. No process is killed here (``tests/integration/kill`` does that). In this
ordinary operation no service may end a writer, no reader may lose rows that
retention promises, and nothing may grow without bound. Nightly it lasts 15 minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hoodoo
from hoodoo.verify.verify import verify
from tests.integration.running.audit import Audit
from tests.integration.running.roles import (
    ARCHIVING_WAITS_S,
    OWN_KEYS,
    PARTITIONS,
    PINS,
    PROPERTIES,
    RETAINED,
    SECONDS,
    SHARED_KEYS,
    WRITERS,
    Step,
    first_shared,
)

ROOT = Path(__file__).parents[3]
SERVICES = ("compact", "cluster", "clean", "archive")
READERS = 2
SAMPLE_S = 0.5
#: A slow machine may take so many times as long until every service had something to do.
LONGEST = 4
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout((1 + LONGEST) * SECONDS + 240),
    pytest.mark.xdist_group("busy"),
]


def test_services_never_stop_writers_nor_readers_of_a_running_table(tmp_path: Path) -> None:
    _run(tmp_path, "MERGE_ON_READ", SERVICES, SECONDS)


@pytest.mark.slow
def test_a_running_table_without_logs_is_kept_small_during_writes(tmp_path: Path) -> None:
    _run(tmp_path, "COPY_ON_WRITE", SERVICES[1:], min(SECONDS, 180))


def _run(folder: Path, table_type: str, services: tuple[str, ...], seconds: int) -> None:
    address = folder / "table"
    hoodoo.create_table(
        address,
        schema=Step(writer=0, number=0).rows.schema,
        record_key=["id"],
        partition_by=["part"],
        ordering=["version"],
        table_type=table_type,
        properties=PROPERTIES,
    ).close()
    lines = [f"{key}={value}\n" for key, value in PROPERTIES.items()]
    (folder / "table.properties").write_text("".join(lines))
    crew = _Crew(folder)
    audit = Audit(address)
    try:
        for number in range(WRITERS):
            crew.start("write", f"writer-{number}")
        for name in services:
            crew.start("serve", name)
        for number in range(READERS):
            crew.start("read", f"reader-{number}")
        began = time.monotonic()
        due = [name for name in services if name != "archive" or seconds > ARCHIVING_WAITS_S]
        while _goes_on(crew, due, time.monotonic() - began, seconds):
            time.sleep(SAMPLE_S)
            crew.check_alive()
            audit.sample()
        lasted = time.monotonic() - began
        (folder / "stop").touch()
        for name in list(crew.running):
            crew.end(name, ask=name in services)
        audit.sample()
    finally:
        crew.kill()
    with hoodoo.open_table(address, properties=PROPERTIES) as table:
        report = {"seconds": lasted, **_report(folder, services, audit, table)}
        print(json.dumps(report, indent=1))
        _check_rows(table, folder)
        found = verify(table.context, history=True)
        assert found.ok, found.problems
        live_bytes = _live_bytes(table)
    _check_cleaned(address, services)
    assert [str(one) for one in audit.violations(RETAINED)] == []
    _check_progress(report, services, due)
    _check_bounds(audit, services, live_bytes, sum(report["commits"].values()), lasted)


def _goes_on(crew: _Crew, due: Sequence[str], lasted_s: float, seconds: int) -> bool:
    """
    Until the time is up, each service has run once and each reader has read again.

    The amount to clean or compact follows from the writers' commits, not from the time.
    """
    if lasted_s < seconds:
        return True
    busy = [*due, *(f"reader-{number}" for number in range(READERS))]
    return lasted_s < LONGEST * seconds and not all(_done(crew.output_of(name)) for name in busy)


class _Crew:
    """All processes of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str, name: str) -> None:
        with self.log(name).open("wb") as errors, self.output_of(name).open("wb") as out:
            self.running[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.running.roles",
                    role,
                    name,
                    str(self.folder / "table"),
                    str(self.folder),
                ],
                cwd=ROOT,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def output_of(self, name: str) -> Path:
        return self.folder / f"{name}.out"

    def check_alive(self) -> None:
        """No process ends before the test asks it to."""
        for name, process in self.running.items():
            if process.poll() is not None:
                pytest.fail(f"{name} ended: {self.log(name).read_text()[-3000:]}")

    def end(self, name: str, *, ask: bool) -> None:
        """Wait for a process that was asked to stop; a worker is asked by a signal."""
        if ask:
            self.running[name].send_signal(signal.SIGTERM)
        code = self.running[name].wait(120)
        assert code == 0, f"{name}: {self.log(name).read_text()[-3000:]}"

    def kill(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


# ---------------------------------------------------------------- results


def _report(
    folder: Path, services: tuple[str, ...], audit: Audit, table: hoodoo.Table
) -> dict[str, Any]:
    """The figures of the run; shown by ``pytest -s``."""
    steps = {name: _journal(folder, name) for name in map(_writer_name, range(WRITERS))}
    refusals = [one for done in steps.values() for step in done for one in step["refusals"]]
    # "<requested time> <action> by <writer>"
    winners = Counter(
        winner.split(" ")[3] for one in refusals for winner in one["winners"] if " by " in winner
    )
    return {
        "commits": {name: len(done) for name, done in steps.items()},
        "refused_by_rule": dict(Counter(one["rule"] for one in refusals)),
        "refused_by_winner": dict(winners),
        "refusals_of_one_step_max": max(
            (len(step["refusals"]) for done in steps.values() for step in done), default=0
        ),
        "services": {
            name: {
                "receipts": len(_done(folder / f"{name}.out")),
                "health": json.loads((folder / f"{name}.health").read_text()),
                "failures": sorted(set(_lines(folder / f"{name}.log")))[:20],
            }
            for name in services
        },
        "readers": [_journal(folder, f"reader-{number}")[0] for number in range(READERS)],
        "peaks": {
            name: audit.peak(name)
            for name in ("plans_pending", "instants", "slots", "data_files", "data_bytes")
        },
        "last": repr(audit.samples[-1]),
        "longest_wait_s": audit.longest_wait * SAMPLE_S,
        "live_bytes": _live_bytes(table),
        "bytes_written": audit.bytes_written,
    }


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _done(file: Path) -> list[str]:
    """The completed actions of a process, without failed attempts."""
    return [line for line in _lines(file) if '"error"' not in line]


def _writer_name(number: int) -> str:
    return f"writer-{number}"


def _journal(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def _live_bytes(table: hoodoo.Table) -> int:
    """Of the base files that the newest state needs."""
    return sum(one.base_file.size_bytes for one in table.file_slices() if one.base_file is not None)


def _check_rows(table: hoodoo.Table, folder: Path) -> None:
    """Exactly the rows that the acknowledged steps make, by numpy alone."""
    versions = np.zeros(first_shared(PARTITIONS), np.int64)
    for writer in range(WRITERS):
        for done in _journal(folder, _writer_name(writer)):
            step = Step(writer=writer, number=done["step"])
            if step.deletes:
                versions[step.keys] = 0
            else:
                versions[step.keys] = np.maximum(versions[step.keys], step.version)
    there = np.flatnonzero(versions)
    expected = versions[there]
    owners = np.where(there < PARTITIONS * WRITERS * OWN_KEYS, there // OWN_KEYS // WRITERS, -1)
    shared = (there - first_shared(0)) // SHARED_KEYS
    rows = table.to_arrow().sort_by("id")
    assert rows["id"].to_pylist() == there.tolist()
    assert rows["version"].to_pylist() == expected.tolist()
    assert rows["writer"].to_pylist() == ((expected - 1) % WRITERS).tolist()
    assert rows["part"].to_pylist() == [
        f"p{own if own >= 0 else other}"
        for own, other in zip(owners.tolist(), shared.tolist(), strict=True)
    ]
    assert isinstance(rows, pa.Table)


def _check_cleaned(address: Path, services: Sequence[str]) -> None:
    """Once the past is not asked for any more, nothing of it is left, of refused writes neither."""
    properties = {**PROPERTIES, "hoodie.clean.commits.retained": "1"}
    with hoodoo.open_table(address, properties=properties) as table:
        if "compact" in services:
            table.services.compact()
        table.services.cluster()
        # The limit of cleaning is at the last write, which leaves no older slice.
        rows = Step(writer=0, number=0).rows
        table.upsert(rows)
        where = pa.array(["new"] * rows.num_rows)
        table.upsert(rows.set_column(rows.schema.get_field_index("part"), "part", where))
        table.services.clean()
        slices = table.file_slices()
    needed = {log.path for one in slices for log in one.log_files}
    needed |= {one.base_file.path for one in slices if one.base_file is not None}
    assert Audit(address).data_files() == needed


def _check_progress(report: dict[str, Any], services: Sequence[str], due: Sequence[str]) -> None:
    """Writers, services and readers all got on."""
    assert min(report["commits"].values()) >= report["seconds"] // 10, report["commits"]
    for name in services:
        if name in due:
            assert report["services"][name]["receipts"] > 0, report["services"][name]
        health = report["services"][name]["health"]
        assert health["failures"] <= health["rounds"] // 4, report["services"][name]
    for reader in report["readers"]:
        assert reader["re_reads"] >= PINS, reader


def _check_bounds(
    audit: Audit, services: tuple[str, ...], live_bytes: int, commits: int, seconds: float
) -> None:
    """Nothing grows without bound but the archived timeline, which records every commit."""
    commits_a_second = commits / seconds
    # Each worker executes its plan before it plans again.
    assert audit.peak("plans_pending") <= len(services)
    # The limit of archiving: the owner of a cancelled plan, its own rest.
    kept = 2 * int(PROPERTIES["hoodie.keep.max.commits"]) + commits_a_second * ARCHIVING_WAITS_S
    assert audit.peak("instants") <= 2 * kept
    assert audit.peak("slots") <= 2 * kept
    # Cleaning keeps the files that the retained commits need and, as archiving, those added while
    # it waited. A slice is deleted when a compaction has superseded it, and no pending plan or
    # older one needs it.
    assert audit.peak("data_bytes") <= 2 * live_bytes + 2 * kept * audit.bytes_written / commits
    if len(audit.samples) * SAMPLE_S >= 240:
        quarter = len(audit.samples) // 4
        for measure in ("data_bytes", "data_files", "other_bytes", "instants", "slots"):
            values = [getattr(one, measure) for one in audit.samples]
            early, late = (sorted(values[at : at + quarter]) for at in (quarter, 3 * quarter))
            assert late[len(late) // 2] <= 1.5 * early[len(early) // 2], (measure, early, late)
