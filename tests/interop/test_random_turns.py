"""
Java Hudi and hoodoo write one table by turns, with random operations (MDT-1 to MDT-20).

A model in Python holds the rows. After each few steps Java reads them with its metadata table, data
skipping and indexes, and without; so does hoodoo; and ``verify`` finds no difference.

``make interop`` runs 6 steps of seeds 1 to 4 on one JVM of Java Hudi 1.2.0, in less than four
minutes. ``make nightly`` (``HOODOO_NIGHTLY``) runs 200 steps of each of 50 seeds, in hours, and on
older releases, too. ``HOODOO_TURNS=7:200,8:50`` runs only 200 steps of seed 7 and 50 of seed 8.
A run prints its steps.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.halfway import Before, age
from tests.interop.java import JavaOracle, JavaRefusedError
from tests.interop.test_metadata_services import indexed, listed, statistics
from tests.interop.test_metadata_writes import found_by
from tests.interop.values import META, comparable, encoded
from tests.servers.zookeeper import ZooKeeperServer
from timeline.model.file_names import parse_instant_name, parse_log_file_name

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(3_600)]

#: Release of Java Hudi, version and type of the table; seeds take one after the other, from 1 on.
KINDS = (
    ("1.2.0", 9, "MERGE_ON_READ"),
    ("1.2.0", 9, "COPY_ON_WRITE"),
    ("1.2.0", 8, "MERGE_ON_READ"),
    ("1.2.0", 8, "COPY_ON_WRITE"),
    ("1.0.2", 8, "COPY_ON_WRITE"),
    ("1.1.1", 9, "COPY_ON_WRITE"),
    ("1.0.2", 8, "MERGE_ON_READ"),
    ("1.1.1", 9, "MERGE_ON_READ"),
)
CHECK_EVERY = 4  # steps; and after each of these
RISKS = {"restore", "rebuild_metadata", "compact_metadata", "writer_dies", "log_compact"}
PARTS = ("p0", "p1", "p2")
COLUMNS = {
    "id": (pa.string(), "string"),
    "part": (pa.string(), "string"),
    "ts": (pa.int64(), "bigint"),
    "a": (pa.int32(), "int"),
    "name": (pa.string(), "string"),
    "price": (pa.decimal128(12, 2), "decimal(12,2)"),
    "d": (pa.date32(), "date"),
    "t": (pa.timestamp("us", tz="UTC"), "timestamp"),
    "ok": (pa.bool_(), "boolean"),
    "x": (pa.float64(), "double"),
}
ADDED = {"n1": (pa.int64(), "bigint"), "n2": (pa.string(), "string")}
MOVES = [f"hoodie.{one}.index.update.partition.path" for one in ("record", "simple", "bloom")]
LOCK = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
SHARED = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": LOCK,
    "hoodie.write.lock.zookeeper.base_path": "/hudi/locks",
    "hoodie.write.lock.zookeeper.session_timeout_ms": "4000",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "5",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": "3",
    "hoodie.metadata.record.index.max.filegroup.count": "3",
}
JAVA = {
    "hoodie.write.auto.upgrade": "false",
    "hoodie.compact.inline": "false",
    "hoodie.auto.commit": "true",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.memory.dfs.buffer.max.size": "65536",
    "hoodie.metadata.index.partition.stats.enable": "true",
    **dict.fromkeys(
        (
            "hoodie.metadata.index.column.stats.parallelism",
            "hoodie.metadata.index.partition.stats.parallelism",
            "hoodie.metadata.index.bloom.filter.parallelism",
            "hoodie.metadata.max.init.parallelism",
            "hoodie.finalize.write.parallelism",
            "hoodie.markers.delete.parallelism",
            "hoodie.rollback.parallelism",
            "hoodie.cleaner.parallelism",
            "hoodie.archive.delete.parallelism",
            "hoodie.simple.index.parallelism",
            "hoodie.bloom.index.parallelism",
        ),
        "2",  # as few rows need no more tasks
    ),
}
OURS = {"hoodoo.foreign.writers": "expected", "hoodoo.metadata.services.inline": "false"}
ON = {"hoodie.metadata.enable": "true", "hoodie.enable.data.skipping": "true"}
OFF = {"hoodie.metadata.enable": "false", "hoodie.enable.data.skipping": "false"}

#: A writer that dies before or after a file gets a path of a pattern.
DIES = """
import json, os, re, sys
import pyarrow.parquet as pq
import hoodoo
from timeline.storage.local import LocalStorage
path, rows, properties, pattern, when = sys.argv[1:]
for method in ("_link", "_name_anew"):
    def patched(self, *given, _real=getattr(LocalStorage, method)):
        if re.search(pattern, given[-1]) and when == "before":
            os._exit(9)
        _real(self, *given)
        if re.search(pattern, given[-1]):
            os._exit(9)
    setattr(LocalStorage, method, patched)
hoodoo.open_table(path, properties=json.loads(properties)).upsert(pq.read_table(rows))
"""

Row = dict[str, Any]


def runs() -> list[Any]:
    """Seeds and steps: four short runs, and long ones for the night."""
    if chosen := os.environ.get("HOODOO_TURNS"):
        return [tuple(map(int, one.split(":"))) for one in chosen.split(",")]
    seeds = range(1, 51) if os.environ.get("HOODOO_NIGHTLY") else range(1, 5)
    long = [pytest.param(seed, 200, marks=pytest.mark.slow) for seed in seeds]
    return [*((seed, 6) for seed in range(1, 5)), *long]


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield {
            "hoodie.write.lock.zookeeper.url": server.address,
            "hoodie.write.lock.zookeeper.lock_key": "turns",
        }


@pytest.mark.parametrize(("seed", "steps"), runs())
def test_java_and_hoodoo_see_the_rows_of_a_model_after_random_turns(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    lock: Mapping[str, str],
    seed: int,
    steps: int,
) -> None:
    release, version, table_type = KINDS[(seed - 1) % len(KINDS)]
    turns = Turns(java_oracle(release), tmp_path / "t", lock, seed, version, table_type)
    turns.create()
    for number in range(1, steps + 1):
        turns.step(number)
    turns.check()


class Turns:
    """A table, its two engines, and the model of its rows."""

    def __init__(
        self,
        java: JavaOracle,
        path: Path,
        lock: Mapping[str, str],
        seed: int,
        version: int,
        table_type: str,
    ) -> None:
        self.java, self.path, self.chance = java, path, random.Random(seed)
        self.logs = table_type == "MERGE_ON_READ"
        self.moves = self.chance.random() < 0.5
        self.secondary = self.chance.random() < 0.3
        bloom = str(self.chance.random() < 0.4).lower()
        self.shared = {
            **SHARED,
            **lock,
            **dict.fromkeys(MOVES, str(self.moves).lower()),
            "hoodie.write.table.version": str(version),
            "hoodie.datasource.write.table.type": table_type,
            "hoodie.metadata.index.bloom.filter.enable": bloom,
            "hoodie.parquet.small.file.limit": self.chance.choice(["0", "104857600"]),
        }
        self.rows: dict[str, Row] = {}
        self.columns = dict(COLUMNS)
        self.saved: dict[str, tuple[dict[str, Row], dict[str, Any]]] = {}
        self.number = self.fresh = 0
        self.merged: set[str] = set()  # instants of log compactions

    def hides_logs(self) -> bool:
        """
        Whether a base file of a dead writer hides later log files from Java's listing.

        Java's file system view puts a log file on the newest base file older than its completion,
        and leaves the slice out if nobody committed the base file (also since its PR #19785).
        """
        table = self.path / ".hoodie" / "timeline"
        instants = [one for file in table.iterdir() if (one := parse_instant_name(file.name))]
        done = {one.requested_time for one in instants if one.completed}
        dead = {one.requested_time for one in instants} - done
        for file in self.path.glob("p*/*.parquet"):
            file_id, _, instant = file.name.removesuffix(".parquet").split("_")
            logs = map(parse_log_file_name, (one.name for one in file.parent.glob(f".{file_id}_*")))
            if instant in dead and any(one and one.instant_time > instant for one in logs):
                return True
        return False

    # ---- the engines

    @property
    def partitions(self) -> set[str]:
        if not self.path.exists():
            return set()
        text = self.java.properties(self.path).get("hoodie.table.metadata.partitions", "")
        return set(text.split(",")) - {""}

    def index(self) -> dict[str, str]:
        """The index of a write: the record index, or one that finds a key in its partition."""
        if "record_index" in self.partitions:
            return {"hoodie.index.type": "RECORD_INDEX"}
        return {"hoodie.index.type": "SIMPLE"}

    def open(self, **more: str) -> hoodoo.Table:
        return hoodoo.open_table(self.path, properties={**self.shared, **OURS, **more})

    def conf(self, **more: str) -> dict[str, str]:
        often = str(self.chance.choice([1, 3, 10]))
        return {**self.shared, **JAVA, "hoodie.metadata.compact.max.delta.commits": often, **more}

    def write(self, who: str, rows: list[Row], operation: str, **more: str) -> None:
        more = {**self.index(), **more}
        if who == "java":
            ddl = ", ".join(f"`{name}` {kind}" for name, (_, kind) in self.columns.items())
            given = [self.as_json(one) for one in rows]
            self.java.write(self.path, given, operation, schema=ddl, conf=self.conf(**more))
            return
        with self.open(**more) as table:
            table.write(self.arrow(rows), operation)

    def arrow(self, rows: list[Row]) -> pa.Table:
        schema = pa.schema([(name, kind) for name, (kind, _) in self.columns.items()])
        return pa.Table.from_pylist(rows, schema)

    def as_json(self, row: Row) -> Row:
        return {
            name: value.isoformat().removesuffix("+00:00")
            if isinstance(value, dt.date)
            else str(value)
            if isinstance(value, Decimal)
            else value
            for name, value in row.items()
        }

    def service(self, who: str, what: str, instant: str | None = None) -> None:
        if who == "java":
            self.java.service(self.path, what, instant, conf=self.conf())
            return
        with self.open() as table:
            if instant is None:
                getattr(table.services, {"logcompact": "log_compact"}.get(what, what))()
            else:
                getattr(table, what)(instant)

    # ---- rows

    def key(self) -> str:
        self.fresh += 1
        return f"k{self.fresh:04}"

    def row(self, key: str, part: str) -> Row:
        draw, maybe = self.chance, lambda value: None if self.chance.random() < 0.15 else value
        row = {
            "id": key,
            "part": part,
            "ts": 1_000 + self.number,
            "a": maybe(draw.randrange(1_000)),
            "name": maybe(f"name {draw.randrange(30)}"),
            "price": maybe(Decimal(draw.randrange(-99_999, 99_999)) / 100),
            "d": maybe(dt.date(2024, 1, 1) + dt.timedelta(draw.randrange(60))),
            "t": maybe(dt.datetime(2024, 2, 3, 4, 5, tzinfo=dt.UTC)
                       + dt.timedelta(microseconds=draw.randrange(10**12))),
            "ok": maybe(draw.random() < 0.5),
            "x": maybe(draw.randrange(-500, 500) / 4),
            "n1": maybe(draw.randrange(10**12)),
            "n2": maybe(f"added {draw.randrange(9)}"),
        }  # fmt: skip
        return {name: row[name] for name in self.columns}

    def new(self, part: str | None = None) -> list[Row]:
        count = self.chance.randint(1, 4)
        return [self.row(self.key(), part or self.chance.choice(PARTS)) for _ in range(count)]

    def known(self, most: int) -> list[str]:
        keys = sorted(self.rows)
        return self.chance.sample(keys, min(len(keys), self.chance.randint(1, most)))

    def put(self, rows: list[Row]) -> None:
        for row in rows:
            old = self.rows.get(row["id"])
            place = row["part"] if old is None or self.moves else old["part"]
            self.rows[row["id"]] = {**row, "part": place}

    # ---- steps; each returns what it did, or None if the table does not allow it now

    def create(self) -> None:
        who, rows = self.chance.choice(["java", "ours"]), [*self.new(), *self.new(), *self.new()]
        if who == "ours":
            hoodoo.create_table(
                self.path,
                schema=self.arrow([]).schema,
                properties={**self.shared, **OURS},
            ).close()
        if who == "ours" or self.chance.random() < 0.5:
            self.write(who, rows, "upsert")
        else:
            self.write(who, rows, "bulk_insert")
        self.put(rows)
        # A JVM of 1.2.0 that compacts a metadata table before it reads one cannot write on: it
        # compares schemas by identity (also on tables of its own).
        self.java.read(self.path, conf=ON)
        print(f"{self.java.version} {self.shared['hoodie.datasource.write.table.type']}", end=" ")
        print(f"created by {who}, moves={self.moves}, secondary={self.secondary}")
        if self.secondary:
            self.create_secondary(self.chance.choice(["java", "ours"]))

    def create_secondary(self, who: str) -> None:
        if who == "ours":
            with self.open() as table:
                table.metadata.create_index("idx_name", "name")
            return
        lock = "org.apache.hudi.client.transaction.lock.InProcessLockProvider"
        conf = {
            "hoodie.metadata.enable": "true",
            "hoodie.write.lock.provider": lock,
            "hoodie.write.table.version": self.shared["hoodie.write.table.version"],
            "hoodie.write.auto.upgrade": "false",  # else 1.2.0 upgrades the metadata table alone
        }
        sets = "".join(f"set {key}={value};;" for key, value in conf.items())
        self.java.sql(self.path, sets + "create index idx_name on {t} (name)")

    def step(self, number: int) -> None:
        self.number = number
        names, weights = zip(*STEPS.items(), strict=True)
        while True:
            (name,) = self.chance.choices(names, weights)
            who = self.chance.choice(["java", "ours"])
            done = getattr(self, name)(who)
            if done is not None:
                print(f"{number}: {name} by {who}: {done}", flush=True)
                break
        if number % CHECK_EVERY == 0 or name in RISKS:
            self.check()

    def upsert(self, who: str) -> str:
        rows = self.new() if self.chance.random() < 0.7 else []
        for key in self.known(6) if self.rows else ():
            part = self.rows[key]["part"]
            if self.chance.random() < 0.25 and "record_index" in self.partitions:
                part = self.chance.choice(PARTS)
            rows.append(self.row(key, part))
        rows = rows or self.new()
        self.write(who, rows, "upsert")
        self.put(rows)
        return str(sorted((one["id"], one["part"]) for one in rows))

    def insert(self, who: str) -> str:
        rows = self.new()
        operation = self.chance.choice(["insert", "bulk_insert"])
        # Java's row writer leaves secondary indexes behind (test_metadata_writes.py shows it).
        by_row = str(not self.secondary).lower() if who == "java" else "true"
        self.write(who, rows, operation, **{"hoodie.datasource.write.row.writer.enable": by_row})
        self.put(rows)
        return operation + str(sorted((one["id"], one["part"]) for one in rows))

    def delete(self, who: str) -> str | None:
        if not self.rows:
            return None
        keys = self.known(3)
        self.write(who, [self.row(key, self.rows[key]["part"]) for key in keys], "delete")
        for key in keys:
            del self.rows[key]
        return str(sorted(keys))

    def overwrite(self, who: str) -> str | None:
        if self.secondary and who == "java":
            return None  # Java refuses
        part = self.chance.choice(PARTS)
        back = [key for key in self.known(2) if self.rows[key]["part"] == part] if self.rows else []
        rows = [*self.new(part), *(self.row(key, part) for key in back)]
        self.write(who, rows, "insert_overwrite")
        self.mend_moved_keys(who)
        self.rows = {key: row for key, row in self.rows.items() if row["part"] != part}
        self.put(rows)
        return part + str(sorted(one["id"] for one in rows))

    def delete_partition(self, who: str) -> str | None:
        parts = sorted({one["part"] for one in self.rows.values()})
        if len(parts) < 2 or (self.secondary and who == "java"):
            return None
        part = self.chance.choice(parts)
        named = {"hoodie.datasource.write.partitions.to.delete": part}
        if who == "java":
            self.write(who, [self.row("none", part)], "delete_partition", **named)
            self.mend_moved_keys(who)
        else:
            with self.open() as table:
                table.delete_partitions([part])
        self.rows = {key: row for key, row in self.rows.items() if row["part"] != part}
        return part

    def mend_moved_keys(self, who: str) -> None:
        """
        Repair the record index after Java replaced a partition from which keys had moved away.

        It drops the entries of those whose delete is in a log file: its commit has their deletes.
        """
        if who == "java" and self.moves and self.logs and "record_index" in self.partitions:
            with self.open() as table:
                assert set(table.metadata.repair()) <= {"record_index"}

    def add_column(self, who: str) -> str | None:
        missing = [name for name in ADDED if name not in self.columns]
        if not missing:
            return None
        self.columns[missing[0]] = ADDED[missing[0]]
        return f"{missing[0]}, {self.upsert(who)}"

    def compact(self, who: str) -> str | None:
        if not self.logs:
            return None
        self.service(who, "compact")
        return ""

    def log_compact(self, who: str) -> str | None:
        if not self.logs:
            return None
        self.service(who, "logcompact")
        timeline = self.path / ".hoodie" / "timeline"
        self.merged |= {one.name[:17] for one in timeline.glob("*.logcompaction.requested")}
        return ""

    def cluster(self, who: str) -> str:
        self.service(who, "cluster")
        return ""

    def clean(self, who: str) -> str:
        self.service(who, "clean")
        return ""

    def archive(self, who: str) -> str:
        self.service(who, "archive")
        return ""

    def savepoint(self, who: str) -> str | None:
        with self.open() as table:
            done = table.context.active().completed_writes
            newest = max(done, key=lambda one: str(one.completion_time)).requested_time
        if newest in self.saved:
            return None
        self.service(who, "savepoint", newest)
        self.saved[newest] = ({**self.rows}, {**self.columns})
        return newest

    def restore(self, who: str) -> str | None:
        if not self.saved:
            return None
        newest, before = max(self.saved), set(self.partitions)
        try:
            self.service(who, "restore", newest)
        except JavaRefusedError as refused:
            own = self.path / ".hoodie/metadata"
            if "there is no base file in MDT" in str(refused):
                # Its clean of the metadata table deleted the base files that its restore needs.
                times = [one.stem.rpartition("_")[2] for one in (own / "files").glob("*.hfile")]
                assert min(times) > newest
            elif "Unable to find completion time for instant" in str(refused):
                # It built the metadata table again, and then restores it to an instant before.
                assert not list((own / ".hoodie/timeline").glob(f"{newest}_*"))
            else:
                raise
            with self.open() as table:
                assert table.finish_restore()
        rows, columns = self.saved[newest]
        self.rows, self.columns = {**rows}, {**columns}
        repaired: tuple[str, ...] = ()
        if who == "java":
            # Java may build the record index before it removes the commits, and then it keeps their
            # entries: rows that the commits had moved, new ones and those of other partitions.
            with self.open() as table:
                others = [one for one in table.metadata.verify() if "record_index" not in one.path]
                assert others == []
                repaired = table.metadata.repair()
                if gone := before - set(self.partitions):
                    table.metadata.create(*sorted(gone))
        return f"{newest}, repaired {repaired}"

    def delete_savepoint(self, who: str) -> str | None:
        if not self.saved:
            return None
        chosen = self.chance.choice(sorted(self.saved))
        self.service(who, "delete_savepoint", chosen)
        del self.saved[chosen]
        return chosen

    def compact_metadata(self, who: str) -> str:
        if who == "ours":
            with self.open() as table:
                return str(table.services.maintain_metadata_table())
        rows = self.new()
        self.write(who, rows, "upsert", **{"hoodie.metadata.compact.max.delta.commits": "1"})
        self.put(rows)
        return str(sorted(one["id"] for one in rows))

    def rebuild_metadata(self, who: str) -> str:
        """Build the metadata table again; that of Java has the records that were there."""
        if who == "ours":
            with self.open() as table:
                built = table.metadata.rebuild()
            return str(built and built.partitions)
        if not self.partitions:
            return self.upsert(who)
        if self.hides_logs():
            self.service("ours", "clean")  # a rebuild would begin with its rows
        files, keys, bounds = listed(self.path), indexed(self.path), statistics(self.path)
        names = sorted(self.partitions)
        index = {"hoodie.index.type": "SIMPLE"}
        rows = self.new()
        self.write(who, rows[:1], "upsert", **index, **{"hoodie.metadata.enable": "false"})
        assert not self.partitions
        self.write(who, rows[1:] or rows, "upsert", **index)
        self.put(rows)
        # Java builds a secondary index again if its definition is still there.
        self.secondary = any(one.startswith("secondary_index_") for one in self.partitions)
        there = {one for one in files if (self.path / one[0] / one[1]).exists()}
        assert there <= listed(self.path)
        again = indexed(self.path), statistics(self.path)
        bounds = {
            place: one
            for place, one in bounds.items()
            if place in again[1] or not self.is_left_out(place[0], one["value_count"])
        }
        for found, expected in zip(again, (keys, bounds), strict=True):
            if found:
                assert {one: found.get(one) for one in expected} == expected
        return f"{names} -> {sorted(self.partitions)}"

    def is_left_out(self, file: str, values: int) -> bool:
        """
        Whether Java's rebuild may leave out the statistics of a log file.

        It does so if the file has deletes only, and if a log compaction made it: the scanner of one
        file takes a merged block only where it meets a block that was merged.
        """
        log = parse_log_file_name(file)
        return log is not None and (not values or log.instant_time in self.merged)

    def writer_dies(self, who: str) -> str:
        """A writer dies at a step of its commit; the next turn is another write, or a clean."""
        rows = [*self.new(), *(self.row(key, self.rows[key]["part"]) for key in self.known(3))]
        heir = self.chance.choice(["java", "ours", "java cleans", "ours cleans"])
        committed = False
        if who == "java":
            before = Before(self.path)
            self.write(who, rows, "upsert")
            indexed = self.chance.random() < 0.5
            before.writer_died(indexed=indexed)
            shown = "indexed" if indexed else "indexing"
        else:
            shown = self.chance.choice(sorted(DEATHS))
            state = DEATHS[shown][1]
            committed = state == "shown" or (state == "slot" and heir.startswith("ours"))
            when, pattern = shown.split()[0], DEATHS[shown][0]
            self.dies(rows, pattern, when)
            age(self.path)
        if committed:
            self.put(rows)
        if heir.endswith("cleans"):
            self.service(heir.split()[0], "clean")
            after = ""
        else:
            after = self.upsert(heir)
        return f"{shown}, then {heir}: {sorted(one['id'] for one in rows)} {committed} {after}"

    def dies(self, rows: list[Row], pattern: str, when: str) -> None:
        import pyarrow.parquet as pq

        file = self.path.with_name("rows.parquet")
        pq.write_table(self.arrow(rows), file)
        properties = json.dumps({**self.shared, **OURS, **self.index()})
        ended = subprocess.run(
            [sys.executable, "-c", DIES, str(self.path), str(file), properties, pattern, when],
            check=False,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 9, ended.stderr

    # ---- checks

    def check(self) -> None:
        """Each way to read the rows gives those of the model."""
        with self.open() as table:
            mine = encoded(table.current_state().to_arrow(with_hoodie_columns=True).drop(["part"]))
        with self.open(**OFF) as table:
            listed = encoded(
                table.current_state().to_arrow(with_hoodie_columns=True).drop(["part"])
            )
        theirs = {
            name: comparable(
                {name: value for name, value in one.items() if name != "part"}
                for one in self.java.read(self.path, conf=conf)
            )
            for name, conf in (("java listing", OFF), ("java metadata", ON))
        }
        schema = self.arrow([]).schema
        wanted = encoded(pa.Table.from_pylist(list(self.rows.values()), schema))
        for name, found in (("ours", mine), ("ours listing", listed), *theirs.items()):
            if name == "java listing" and self.hides_logs():
                continue
            assert self.own(found) == self.own(wanted), name
            assert found == mine, name
        self.check_filters()
        problems = verify_at(self.path, Layers()).problems  # those of the metadata table, too
        # Java's statistics of a partition leave out the nulls of files older than a column.
        kept = "partition_stats" if self.columns.keys() & ADDED.keys() else None
        assert [one for one in problems if not (kept and one.path.endswith(kept))] == []

    def own(self, rows: list[Row]) -> list[Row]:
        kept = []
        for one in rows:
            part = one.get("_hoodie_partition_path", one.get("part"))
            own = {name: value for name, value in one.items() if name not in META}
            kept.append({**own, "part": part})
        return comparable(kept)

    def check_filters(self) -> None:
        draw, rows = self.chance, list(self.rows.values())
        some = self.chance.choice(rows) if rows else self.row("none", "p0")
        number, key = draw.randrange(1_000), draw.choice([some["id"], "k0001", "none"])
        tests: dict[str, Callable[[Row], Any]] = {
            f"a = {some['a'] or 7}": lambda one: one["a"] == (some["a"] or 7),
            f"id = '{key}'": lambda one: one["id"] == key,
            f"id in ('{some['id']}', 'k0002')": lambda one: one["id"] in (some["id"], "k0002"),
            f"a > {number}": lambda one: one["a"] is not None and one["a"] > number,
            "name = 'name 7'": lambda one: one["name"] == "name 7",
            f"name = '{some['name']}'": lambda one: some["name"] and one["name"] == some["name"],
            "price < -500": lambda one: one["price"] is not None and one["price"] < -500,
            "d >= DATE'2024-02-20'": lambda one: one["d"] and one["d"] >= dt.date(2024, 2, 20),
            "x is null": lambda one: one["x"] is None,
            "not ok": lambda one: one["ok"] is False,
        }
        wanted = {
            text: sorted(one["id"] for one in rows if tests[text](one))
            for text in draw.sample(sorted(tests), 3)
        }
        assert found_by(self.java, self.path, list(wanted)) == wanted
        with self.open() as table:
            mine = {
                text: sorted(table.to_arrow(filter=text.replace("DATE", "date "))["id"].to_pylist())
                for text in wanted
            }
            assert mine == wanted
            if "record_index" in self.partitions:
                found = table.get_rows(["none", some["id"]]).column("id").to_pylist()
                assert found == [some["id"]] * (some["id"] in self.rows)


#: A pattern of a file name, and what the writer has by then.
DEATHS = {
    "before the slot": (r"^\.hoodie/\.hoodoo/slots/", "files"),
    "after the slot": (r"^\.hoodie/\.hoodoo/slots/", "slot"),
    "after the pending instant of the metadata table": (
        r"^\.hoodie/metadata/\.hoodie/timeline/.*\.inflight$",
        "slot",
    ),
    "before the completed file": (r"^\.hoodie/timeline/\d{17}_\d{17}\.", "slot"),
    "after the completed file": (r"^\.hoodie/timeline/\d{17}_\d{17}\.", "shown"),
}
#: How often a step is drawn.
STEPS = {
    "upsert": 6,
    "insert": 2,
    "delete": 3,
    "overwrite": 1.5,
    "delete_partition": 0.7,
    "add_column": 0.5,
    "compact": 1.5,
    "log_compact": 1,
    "cluster": 1,
    "clean": 1.5,
    "archive": 1.5,
    "savepoint": 1.3,
    "restore": 1,
    "delete_savepoint": 0.4,
    "compact_metadata": 2,
    "rebuild_metadata": 0.8,
    "writer_dies": 2.5,
}
