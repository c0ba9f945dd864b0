"""
The actors of the running table: a writer, a worker or a reader, each a process of its own.

Run as ``python -m tests.integration.running.roles ROLE NAME TABLE FOLDER``. Writers and readers
work until the folder has a file named ``stop``, and write their observations to ``NAME.jsonl``.
A worker is the command ``hoodoo services worker`` until SIGTERM. No process retries after a
rejection: any error ends the process, and with it the test.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hoodoo
from filegroups.table import TableSnapshot
from hoodoo.cli import main as command_line
from timeline.errors import HoodooError, InstantNotFoundError

WRITERS = 4
PARTITIONS = 6
OWN_KEYS = 40  # of each writer in each partition
DELETED_KEYS = 8  # the first of them, now and then
SHARED_KEYS = 10  # in each partition, written by all
RETAINED = 15
PINS = 4

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
#: How long, in seconds; longer by hand: HOODOO_RUNNING_SECONDS=300.
SECONDS = int(os.environ.get("HOODOO_RUNNING_SECONDS", "900" if NIGHTLY else "25"))
ARCHIVING_WAITS_S = 40

PROPERTIES = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.write.num.retries.on.conflict.failures": "30",
    # Each heartbeat of a writer releases slots for archiving, which waits for five silences after a
    # cancelled plan. A short run must not wait for archiving. No process in it is dead, so a pause
    # of some seconds on a busy machine must not count as a death.
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "4" if SECONDS > ARCHIVING_WAITS_S else "30",
    "hoodie.index.type": "SIMPLE",
    "hoodie.index.bloom.num_entries": "1000",
    "hoodie.parquet.small.file.limit": "0",  # each insert makes a file, for clustering to join
    "hoodie.clean.async": "true",
    "hoodie.clean.commits.retained": str(RETAINED),
    "hoodie.archive.async": "true",
    "hoodie.keep.min.commits": "20",
    "hoodie.keep.max.commits": "28",
    "hoodie.compact.inline.max.delta.commits": "4",
    "hoodie.clustering.async.enabled": "true",
    "hoodie.clustering.async.max.commits": "6",
    "hoodie.clustering.plan.strategy.sort.columns": "version",
    "hoodoo.services.interval.ms": "300",
    "hoodoo.services.beside.writers": "false",  # each service is a process of its own
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The work of a writer in one call; a function of its number alone."""

    writer: int
    number: int

    @property
    def partition(self) -> int:
        """Three steps in one partition, so that the others rest for a while."""
        return (self.number // 3 + self.writer) % PARTITIONS

    @property
    def deletes(self) -> bool:
        """Whether it deletes instead of upserting."""
        return self.number % 7 == 6

    @property
    def version(self) -> int:
        """Greater than that of every earlier step of the writer, and unique to it."""
        return WRITERS * self.number + self.writer + 1

    @property
    def keys(self) -> np.ndarray:
        """Own keys, and in every second step the shared ones."""
        first = (self.partition * WRITERS + self.writer) * OWN_KEYS
        if self.deletes:
            return np.arange(first, first + DELETED_KEYS)
        own = np.arange(first, first + OWN_KEYS)
        shared = first_shared(self.partition) + np.arange(SHARED_KEYS)
        return np.concatenate([own, shared]) if self.number % 2 == 0 else own

    @property
    def rows(self) -> pa.Table:
        """Of the upsert."""
        keys = self.keys
        return pa.table(
            {
                "id": keys,
                "part": pa.array([f"p{self.partition}"] * len(keys), pa.string()),
                "version": np.full(len(keys), self.version, np.int64),
                "writer": np.full(len(keys), self.writer, np.int64),
            }
        )


def first_shared(partition: int) -> int:
    """The first shared key of a partition."""
    return PARTITIONS * WRITERS * OWN_KEYS + partition * SHARED_KEYS


def main() -> None:
    """Run one role."""
    role, name, address, folder = sys.argv[1:5]
    if role == "serve":
        _serve(name, address, Path(folder))
    elif role == "write":
        _write(int(name.rpartition("-")[2]), address, Path(folder), name)
    else:
        _read(address, Path(folder), name)


def _serve(name: str, address: str, folder: Path) -> None:
    """As a user runs it; failed rounds are warnings of the logger."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    props, health = folder / "table.properties", folder / f"{name}.health"
    sys.argv[1:] = ["services", "worker", address, "--service", name, "--props", str(props)]
    sys.argv += ["--hoodie-conf", f"hoodie.write.application.id={name}"]
    sys.argv += ["--health", str(health), "--output", "ndjson"]
    command_line()


# ---------------------------------------------------------------- writers


def _write(writer: int, address: str, folder: Path, name: str) -> None:
    properties = {**PROPERTIES, "hoodie.write.application.id": name}
    stop = folder / "stop"
    number = 0
    with (
        hoodoo.open_table(address, properties=properties) as table,
        (folder / f"{name}.jsonl").open("w") as out,
    ):
        while not stop.exists():
            step = Step(writer=writer, number=number)
            rows = step.rows
            if step.deletes:
                result = table.delete(rows.select(["id", "part"]))
            else:
                result = table.upsert(rows)
            refusals = [report.as_document() for report in result.refusals]
            print(json.dumps({"step": number, "refusals": refusals}), file=out, flush=True)
            number += 1


# ---------------------------------------------------------------- readers


@dataclass(slots=True)
class Pin:
    """A pinned state, and the rows of its first read."""

    since: str  # the newest time it shows
    as_of: str | None  # for those that ask by time again, instead of holding the snapshot
    held: TableSnapshot
    rows: pa.Table
    reads: int = 1


def _read(address: str, folder: Path, name: str) -> None:
    table = hoodoo.open_table(address)
    chance = random.Random(name)
    stop = folder / "stop"
    pins: list[Pin] = []
    counts = {"pins": 0, "re_reads": 0, "expired": 0, "too_early": 0}
    while not stop.exists():
        if len(pins) < PINS:
            pin = _pinned(table, counts, by_time=chance.random() < 0.5)
            if pin is not None:
                _check_whole(pin.rows)
                pins.append(pin)
                counts["pins"] += 1
            continue
        pin = chance.choice(pins)
        try:
            held = pin.held if pin.as_of is None else table.as_of(pin.as_of)
            rows = held.to_arrow().sort_by("id")
        except HoodooError as error:
            left = _commits_after(table, pin)
            if left < RETAINED:
                sys.exit(f"pin of {pin.since} lost after {left} commits: {error.kind}: {error}")
            counts["expired"] += 1
            pins.remove(pin)
            continue
        if not rows.equals(pin.rows):
            if (left := _commits_after(table, pin)) < RETAINED:
                sys.exit(f"pin of {pin.since} changed after {left} commits")
            pins.remove(pin)
            continue
        pin.reads += 1
        counts["re_reads"] += 1
        if pin.reads > 2 * PINS:
            pins.remove(pin)
        if counts["re_reads"] >= PINS:
            print("read again", flush=True)
    (folder / f"{name}.jsonl").write_text(json.dumps(counts) + "\n")


def _pinned(table: hoodoo.Table, counts: dict[str, int], *, by_time: bool) -> Pin | None:
    """A new pin, read once; None if the requested time may still change."""
    held: Any = table.current_state()
    completed = held.snapshot.active.completed_writes
    if not completed:
        return None
    since = max(one.completion_time or "" for one in completed)
    as_of = completed[-1].requested_time if by_time else None
    try:
        if as_of is not None:
            held = table.as_of(as_of)
            since = as_of
        rows = held.to_arrow().sort_by("id")
    except HoodooError as error:
        pin = Pin(since=since, as_of=as_of, held=held, rows=pa.table({}))
        if isinstance(error, InstantNotFoundError) and error.kind == "time_travel_pending":
            counts["too_early"] += 1
        elif (left := _commits_after(table, pin)) < RETAINED:
            sys.exit(f"no read of {since} after {left} commits: {error.kind}: {error}")
        return None
    return Pin(since=since, as_of=as_of, held=held, rows=rows)


def _commits_after(table: hoodoo.Table, pin: Pin) -> int:
    """How many commits are behind the line that cleaning would draw at this pin, by now."""
    completed = table.snapshot.active.completed_writes
    return sum(1 for one in completed if one.requested_time > pin.since)


def _check_whole(rows: pa.Table) -> None:
    """Steps are visible as wholes: the rows of one step have one version, or are absent."""
    ids = rows["id"].to_numpy()
    versions = rows["version"].to_numpy()
    if len(np.unique(ids)) != len(ids):
        sys.exit("a snapshot shows a key twice")
    for first, last in _groups():
        inside = (ids >= first + DELETED_KEYS) & (ids < last)
        found = versions[inside]
        if len(found) not in (0, OWN_KEYS - DELETED_KEYS) or len(np.unique(found)) > 1:
            sys.exit(f"a snapshot shows part of a step: keys {first} to {last}: {found.tolist()}")


def _groups() -> Iterator[tuple[int, int]]:
    """The own keys of each writer in each partition, as (first, behind the last)."""
    for number in range(PARTITIONS * WRITERS):
        yield number * OWN_KEYS, (number + 1) * OWN_KEYS


if __name__ == "__main__":
    main()
