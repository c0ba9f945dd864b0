"""The settings of every process of a chaos run: tables, properties, seed; in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MUTANTS = ("", "read-then-write")  # their effect: tests.chaos.mutants
RETAINED = 15
BEAT_MS = 1_000
MISSES = 3
_MS_OF_AN_HOUR = 3_600_000

#: Settings besides the lock, the same for every run and process.
SERVED: Mapping[str, str] = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "20",
    "hoodoo.write.isolation.level": "serializable",
    "hoodie.client.heartbeat.interval_in_ms": str(BEAT_MS),
    "hoodie.client.heartbeat.tolerable.misses": str(MISSES),
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.clean.commits.retained": str(RETAINED),
    "hoodie.keep.min.commits": "60",
    "hoodie.keep.max.commits": "80",
    "hoodie.compact.inline.max.delta.commits": "6",
    "hoodie.index.bloom.num_entries": "1000",
    "hoodoo.lock.deadline.ms": "20000",
    "hoodoo.reader.lease.ms": "60000",  # so that leases of the killed end while others work
    "hoodoo.services.beside.writers": "false",  # services are processes of their own here
    # A clock an hour ahead moves the table's time along; a writer with the right time continues.
    "hoodoo.clock.max.ahead.ms": str(3 * _MS_OF_AN_HOUR),
}

#: Of short runs: small files are filled, so that cleaning and rollbacks are most of the upkeep.
SHORT: Mapping[str, str] = {
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "3",
    "hoodie.clustering.async.enabled": "true",
    "hoodie.clustering.async.max.commits": "25",
    "hoodie.index.type": "SIMPLE",
}

#: Of long ones by table type, so that every service has something to do: whole files that clustering
#: joins, logs (a bucket index sends new rows there, too) that compactions merge.
BY_TYPE: Mapping[str, Mapping[str, str]] = {
    "COPY_ON_WRITE": {
        "hoodie.index.type": "SIMPLE",
        "hoodie.parquet.small.file.limit": "0",  # each write makes a file for its new row
        "hoodie.clustering.async.enabled": "true",
        "hoodie.clustering.async.max.commits": "6",
    },
    "MERGE_ON_READ": {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "2",
        "hoodie.log.compaction.enable": "true",
        "hoodie.log.compaction.blocks.threshold": "3",
    },
}


def hold_ms(lease_ms: int) -> int:
    """Silence in ms after which others treat a process as dead."""
    return max(lease_ms, BEAT_MS * MISSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """
    One run as its processes see it.

    ``tables`` are addresses by name, ``properties`` those of each table; ``mutant`` is the fault
    that is built in on purpose, empty for none.
    """

    seed: int
    tables: dict[str, str]
    types: dict[str, str]
    properties: dict[str, dict[str, str]]
    writers: int
    mutant: str = ""

    def save(self, folder: Path) -> None:
        """Write it for the processes; no other user may read it, as it may hold passwords."""
        path = folder / "setup.json"
        path.touch(0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Setup:
        """Read the file of ``save``."""
        return cls(**json.loads((folder / "setup.json").read_text()))
