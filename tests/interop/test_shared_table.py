"""
One table, one ZooKeeper lock, two engines that write at the same time.

A Java Hudi writer with optimistic concurrency control and a hoodoo writer commit
alternately and concurrently, with the same lock settings. Every commit changes a row of
its own that no other changes, in a file group that both write, so that one lost commit is
one wrong row. It also inserts rows of its own.

In a further run two Java writers and four of hoodoo are killed at random. ``HOODOO_KILLED_S`` is its
length in seconds.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.java import JavaOracle, JavaRefusedError
from tests.interop.values import comparable, encoded, same, without_meta
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("p", pa.string()),
        pa.field("round", pa.int64()),
        pa.field("by", pa.string()),
    ]
)
BOTH = "both"  # the partition whose one file group both engines write
NEW = 3  # rows that each commit inserts
ROUNDS, ROUNDS_NIGHTLY = 10, 20
TRIES_MAX = 40
JAVA_CONFLICT = "HoodieWriteConflictException"

#: Options of both engines.
SHARED = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": (
        "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
    ),
    "hoodie.write.lock.zookeeper.base_path": "/hudi/locks",
    "hoodie.write.lock.zookeeper.lock_key": "shared",
    "hoodie.write.lock.zookeeper.session_timeout_ms": "20000",
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
}
JAVA = {
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.index.type": "SIMPLE",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.archive.automatic": "false",
}
OURS = {
    "hoodoo.foreign.writers": "expected",
    "hoodie.write.num.retries.on.conflict.failures": "20",
    "hoodie.datasource.write.hive_style_partitioning": "true",
}
#: Both clean after their commits, and roll back the other's dead writes; Java also archives.
SERVICES = {
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "4",
    "hoodie.client.heartbeat.interval_in_ms": "3000",
    "hoodie.client.heartbeat.tolerable.misses": "4",
}
ARCHIVING = {
    "hoodie.archive.automatic": "true",
    "hoodie.keep.min.commits": "8",
    "hoodie.keep.max.commits": "10",
}

#: Java builds a metadata table at its first write; both maintain it from then on.
METADATA = {key: value for key, value in SHARED.items() if key != "hoodie.metadata.enable"}
JAVA_METADATA = JAVA | {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.index.type": "RECORD_INDEX",
}

#: With writers that are killed: dead ones are noticed and rolled back within the run.
KILLED = (
    METADATA
    | SERVICES
    | {
        "hoodie.client.heartbeat.interval_in_ms": "3000",
        "hoodie.client.heartbeat.tolerable.misses": "8",
        "hoodie.write.lock.zookeeper.session_timeout_ms": "10000",
    }
)
JAVA_SIDES, OUR_SIDES = ("java-0", "java-1"), ("ours-0", "ours-1", "ours-2", "ours-3")
BATCHES_MAX = 400  # of each writer of that run
KILLED_S, KILLED_S_NIGHTLY = 120, 600

#: A writer of ours that ends when it is killed, or when its folder has a file named ``stop``.
WRITER = """
import json, sys
from pathlib import Path
import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.test_shared_table import BATCHES_MAX, arrow, batch
from timeline.errors import HoodooError
path, side, properties, journal, begin = sys.argv[1:]
with Path(journal).open("a") as out, hoodoo.open_table(path, properties=json.loads(properties)) as table:
    for number in range(int(begin), BATCHES_MAX):
        if Path(journal).with_name("stop").exists():
            break
        print("begin", number, file=out, flush=True)
        try:
            table.upsert(arrow(batch(side, number)))
        except HoodooError as error:
            print("error", number, error.kind, file=out, flush=True)
        else:
            print("ok", number, file=out, flush=True)
"""

Rows = list[dict[str, Any]]


@dataclass
class Account:
    """The counts of one side."""

    commits: int = 0
    conflicts: int = 0
    times: list[str] = field(default_factory=list)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield {"hoodie.write.lock.zookeeper.url": server.address}


@pytest.mark.parametrize(
    ("shared", "of_java"),
    [
        pytest.param(SHARED, JAVA, id="writers"),
        pytest.param(
            SHARED | SERVICES, JAVA | ARCHIVING, id="writers-and-services", marks=pytest.mark.slow
        ),
        pytest.param(METADATA, JAVA_METADATA, id="metadata-table", marks=pytest.mark.slow),
    ],
)
def test_no_row_is_lost_when_java_and_hoodoo_write_at_the_same_time(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    lock: Mapping[str, str],
    nightly: bool,
    shared: dict[str, str],
    of_java: dict[str, str],
) -> None:
    rounds = ROUNDS_NIGHTLY if nightly else ROUNDS
    both = {**shared, **lock}
    java, path = java_oracle("1.2.0"), tmp_path / "shared"
    with hoodoo.create_table(
        path, schema=SCHEMA, record_key="id", partition_by="p", properties={**both, **OURS}
    ) as table:
        table.bulk_insert(
            arrow([seed(side, i) for side in ("java", "ours") for i in range(rounds)])
        )

    theirs, mine = Account(), Account()
    stopped = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        sides = [
            pool.submit(java_writes, java, path, {**of_java, **both}, rounds, theirs, stopped),
            pool.submit(hoodoo_writes, path, {**both, **OURS}, rounds, mine, theirs, stopped),
        ]
        try:
            for side in sides:
                side.result()
        finally:
            stopped.set()
    listed = java.timeline(path, archived=True)
    print(f"java: {theirs}\nours: {mine}\n" + "\n".join(map(str, listed)))

    expected = without_meta(
        row for side in ("java", "ours") for i in range(rounds) for row in batch(side, i)
    )
    with hoodoo.open_table(path) as table:
        found = encoded(table.to_arrow())
    assert difference(found, expected) == []
    for metadata in ("false", "true"):
        conf = {"hoodie.metadata.enable": metadata, "hoodie.enable.data.skipping": metadata}
        assert difference(without_meta(java.read(path, conf=conf)), expected) == []
    assert same(found, expected)

    completed = [i for i in listed if i["state"] == "COMPLETED" and i["action"] == "commit"]
    assert len(completed) == 2 * rounds + 1
    by_completion = sorted(completed[1:], key=lambda i: str(i["completion"]))
    ours_at = [i["requested"] in mine.times for i in by_completion]
    assert sum(ours_at) == rounds
    assert sum(a != b for a, b in pairwise(ours_at)) >= rounds // 2, "they did not alternate"
    assert theirs.conflicts + mine.conflicts > 0, "they never met"

    command = [sys.executable, "-m", "hoodoo.cli", "table", "verify", str(path)]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    print(checked.stdout)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.spec("MDT-10")
def test_no_row_is_lost_when_writers_of_both_engines_are_killed(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    lock: Mapping[str, str],
    nightly: bool,
) -> None:
    seconds = float(os.environ.get("HOODOO_KILLED_S", KILLED_S_NIGHTLY if nightly else KILLED_S))
    path, both = tmp_path / "killed", {**KILLED, **lock}
    java = java_oracle("1.2.0")
    seeds = [seed(side, i) for side in (*JAVA_SIDES, *OUR_SIDES) for i in range(BATCHES_MAX)]
    conf = {**JAVA_METADATA, **ARCHIVING, **both}
    with hoodoo.create_table(
        path, schema=SCHEMA, record_key="id", partition_by="p", properties={**both, **OURS}
    ) as table:
        table.bulk_insert(arrow(seeds))
    java.write(path, batch("first", 0), "upsert", conf=conf)  # builds the metadata table
    writers: dict[str, Writer] = {
        **{side: JavaWriter(tmp_path, path, side, conf) for side in JAVA_SIDES},
        **{side: OurWriter(tmp_path, path, side, {**both, **OURS}) for side in OUR_SIDES},
    }
    chance, ends, kills = random.Random(40), time.monotonic() + seconds, 0
    with ExitStack() as running:
        for writer in writers.values():
            writer.start()
            running.callback(writer.kill)
        while time.monotonic() < ends:
            time.sleep(chance.uniform(2, 10))
            side = chance.choice([*OUR_SIDES, *OUR_SIDES, *JAVA_SIDES])
            if writers[side].has_written():  # since it began: a JVM needs some time
                writers[side].kill()
                writers[side].start()
                kills += 1
        (tmp_path / "stop").touch()
        for writer in writers.values():
            writer.wait()
    journals = {side: writer.outcomes() for side, writer in writers.items()}
    for side, outcomes in journals.items():
        print(side, {each: list(outcomes.values()).count(each) for each in set(outcomes.values())})
    print(f"{kills} kills")

    with hoodoo.open_table(path, properties={**both, **OURS}) as table:
        table.services.rollback_dead_writers()
        found = encoded(table.to_arrow())
        listed = encoded(
            hoodoo.open_table(path, properties={"hoodie.metadata.enable": "false"}).to_arrow()
        )
        assert table.metadata.verify() == ()
    assert found == listed
    changed = {one["id"] for one in found if one["round"] >= 0}
    expected = without_meta(batch("first", 0))
    for side, outcomes in journals.items():
        for number in range(BATCHES_MAX):
            row = seed(side, number)
            known = outcomes.get(number)
            # A writer that was killed leaves a whole batch or nothing.
            written = known == "ok" or (known is not None and row["id"] in changed)
            expected += batch(side, number) if written else [row]
    assert difference(found, expected) == []
    for metadata in ("false", "true"):
        reads = {"hoodie.metadata.enable": metadata, "hoodie.enable.data.skipping": metadata}
        assert difference(without_meta(java.read(path, conf=reads)), expected) == []
    assert verify_at(path, Layers()).problems == ()
    assert all("ok" in outcomes.values() for outcomes in journals.values()), "one never wrote"
    assert kills > seconds / 60


class Writer(ABC):
    """A writer whose journal has the outcome of each batch; a killed one begins again."""

    def __init__(self, folder: Path, path: Path, side: str, properties: Mapping[str, str]) -> None:
        self.folder, self.path, self.side, self.properties = folder, path, side, properties
        self.journal = folder / f"{side}.journal"
        self.journal.touch()
        self._before = 0

    def start(self) -> None:
        self._before = self._count_ok()

    @abstractmethod
    def kill(self) -> None:
        """Kill the process."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the process ended."""

    def has_written(self) -> bool:
        return self._count_ok() > self._before

    def outcomes(self) -> dict[int, str]:
        """Return the last word on each batch that was begun: begin, error or ok."""
        found = {}
        for line in self.journal.read_text().splitlines():
            word, number, *_ = line.split()
            found[int(number)] = word
        return found

    def _count_ok(self) -> int:
        return list(self.outcomes().values()).count("ok")

    def _next(self) -> int:
        return max(self.outcomes(), default=-1) + 1


class OurWriter(Writer):
    """A process of ours."""

    _process: subprocess.Popen[bytes]

    def start(self) -> None:
        super().start()
        given = (str(self.path), self.side, json.dumps(dict(self.properties)), str(self.journal))
        self._process = subprocess.Popen([sys.executable, "-c", WRITER, *given, str(self._next())])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        assert self._process.wait(300) == 0


class JavaWriter(Writer):
    """A JVM of its own, and a thread that asks it."""

    _java: JavaOracle
    _thread: threading.Thread

    def start(self) -> None:
        super().start()
        self._java = JavaOracle("1.2.0")
        self._thread = threading.Thread(target=self._write, args=(self._java, self._next()))
        self._thread.start()

    def kill(self) -> None:
        self._java.kill()
        self._thread.join()

    def wait(self) -> None:
        self._thread.join(300)
        assert not self._thread.is_alive()

    def _write(self, java: JavaOracle, begin: int) -> None:
        with self.journal.open("a") as out:
            for number in range(begin, BATCHES_MAX):
                if (self.folder / "stop").exists():
                    break
                print("begin", number, file=out, flush=True)
                try:
                    java.write(self.path, batch(self.side, number), conf=self.properties)
                except JavaRefusedError as error:
                    print("error", number, str(error)[:300], file=out, flush=True)
                except (OSError, ValueError, pytest.fail.Exception):  # it was killed
                    break
                else:
                    print("ok", number, file=out, flush=True)


def java_writes(
    java: JavaOracle,
    path: Path,
    conf: Mapping[str, str],
    rounds: int,
    account: Account,
    stopped: threading.Event,
) -> None:
    """Java's writer: conflicts are counted and the write is done again."""
    for number in range(rounds):
        for _ in range(TRIES_MAX):
            if stopped.is_set():
                return
            try:
                java.write(path, batch("java", number), "upsert", conf=conf)
                break
            except JavaRefusedError as error:
                if JAVA_CONFLICT not in str(error):
                    stopped.set()
                    raise
                account.conflicts += 1
        else:
            stopped.set()
            pytest.fail(f"java had a conflict {TRIES_MAX} times in round {number}")
        account.commits += 1


def hoodoo_writes(
    path: Path,
    properties: Mapping[str, str],
    rounds: int,
    account: Account,
    theirs: Account,
    stopped: threading.Event,
) -> None:
    """Ours: one commit somewhere in each of Java's, which take ten times as long."""
    lots = random.Random(4)
    took_s = 1.0
    with hoodoo.open_table(path, properties=properties) as table:
        for number in range(rounds):
            began = time.monotonic()
            while theirs.commits < number and not stopped.is_set():
                time.sleep(0.01)
            if number:
                took_s = 0.5 * (took_s + time.monotonic() - began)
            time.sleep(lots.random() * took_s)
            if stopped.is_set():
                return
            try:
                result = table.upsert(arrow(batch("ours", number)))
            except BaseException:
                stopped.set()
                raise
            account.times.append(result.requested_time)
            account.conflicts += len(result.refusals)
            account.commits += 1


def seed(side: str, number: int) -> dict[str, Any]:
    """A row that the same round of the same side changes later."""
    return {"id": f"{side}-{number:03}", "p": BOTH, "round": -1, "by": "nobody"}


def batch(side: str, number: int) -> Rows:
    """The rows of a commit: one changed in the common file group, and new ones."""
    changed = {**seed(side, number), "round": number, "by": side}
    # Every other round also inserts into the common partition.
    where = BOTH if number % 2 else f"only-{side}"
    return [changed] + [
        {"id": f"{side}-{number:03}-{i}", "p": where, "round": number, "by": side}
        for i in range(NEW)
    ]


def arrow(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def difference(found: Rows, expected: Rows) -> list[str]:
    """Rows that are lost, stale, foreign or doubled."""
    left = [str(sorted(row.items())) for row in comparable(found)]
    right = [str(sorted(row.items())) for row in comparable(expected)]
    lost = [f"missing {row}" for row in right if row not in left]
    more = [f"too much {row}" for row in left if row not in right or left.count(row) > 1]
    return lost + more
