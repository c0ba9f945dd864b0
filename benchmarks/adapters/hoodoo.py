"""
hoodoo without a JVM, as a short job uses it: every call opens the table again.

With the option `keep_open` a writer of small commits keeps its table open, as in production. Small
commits run under optimistic concurrency control with a real lock, because that is their use. The
option `properties` is a mapping that overrides the ones below; `without`
names mechanisms for high-latency stores to switch off (farstore/mechanisms.py).
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from farstore.client import BUCKET, s3_options
from farstore.mechanisms import without
from pfbench import data
from pfbench.protocol import Adapter, Unsupported, small_table

import hoodoo
from timeline.storage.local import LocalStorage

MANY_WRITERS = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": (
        "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
    ),
}

#: Overrides the ones above: no write is rejected for another's rows of the same keys. A file group
#: for each partition, as copy-on-write makes one for so few rows.
NON_BLOCKING = {
    "hoodie.write.concurrency.mode": "non_blocking_concurrency_control",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
}

BLOCK_FORMAT = "hoodie.logfile.data.block.format"
BLOCKS = {"mor": "parquet", "mor-avro": "avro"}  # by the mode of a merge-on-read table
TWO = ["amount", "qty"]

SERVICE = "hoodoo.group.commit.service"
COMMITTER_SECONDS_MAX = 60

SLOT_BYTES = 8_000  # size of the slot of a small commit
CREATES = 20


def far_properties(url: str) -> dict[str, str]:
    """The table and its lock in the far store, by Hadoop's names."""
    told = s3_options(url)
    return {
        "fs.s3a.endpoint": told["endpoint"],
        "fs.s3a.endpoint.region": told["region"],
        "fs.s3a.access.key": told["access_key_id"],
        "fs.s3a.secret.key": told["secret_access_key"],
        # as in configs/multi_writer_storage.properties: a lock in the table's store; a worker, not
        # part of the run, cleans and archives
        "hoodie.write.lock.provider": "storage_based",
        "hoodie.clean.automatic": "false",
        "hoodie.archive.automatic": "false",
    }


def durable_creates_ms(folder: Path) -> list[float]:
    """Create-if-absent through the engine's own storage, synced, each in milliseconds."""
    storage = LocalStorage(folder)
    taken = []
    for number in range(CREATES + 1):
        started = time.perf_counter()
        storage.create(f"slots/{number}", bytes(SLOT_BYTES))
        taken.append((time.perf_counter() - started) * 1e3)
    shutil.rmtree(folder)
    return taken[1:]  # the first one makes the folders


class Committer:
    """``hoodoo committer`` as a separate process, for one table after the other."""

    def __init__(self, work: str) -> None:
        # A socket's path is short, and all processes of this run find the same one.
        name = hashlib.sha256(work.encode()).hexdigest()[:10]
        self.folder = Path(tempfile.gettempdir()) / f"hoodoo-bench-{os.getuid()}-{name}"
        self.socket = self.folder / "committer"
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, address: str, properties: Mapping[str, str]) -> None:
        """Commit for the writers of this table, and of no other one any more."""
        self.stop()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        file, health = self.folder / "writers.properties", self.folder / "health.json"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        health.unlink(missing_ok=True)
        command = [sys.executable, "-m", "hoodoo.cli", "committer", "--props", str(file)]
        self._process = subprocess.Popen([*command, "--health", str(health), address])
        end = time.monotonic() + COMMITTER_SECONDS_MAX
        while not health.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the committer did not start")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(COMMITTER_SECONDS_MAX)
            self._process = None


class HeldTimes:
    """Event sink that keeps how long publications held the lock."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []

    def emit(self, name: str, /, **fields: Any) -> None:
        if name == "publish.done" and fields.get("kind") == "commit":
            self.milliseconds.append(fields["held_ms"])


class Hoodoo(Adapter):
    """The adapter protocol over the public API."""

    name = "hoodoo"

    def __init__(self, work: str, stage: str, options: dict[str, Any]) -> None:
        super().__init__(work, stage, options)
        self.marks: dict[str, str] = {}
        self.writers_open: dict[str, hoodoo.Table] = {}
        self.held = HeldTimes()
        if self.options.get("threads"):  # many writers are threads that share one open table
            self.writers = "threads"
        self.appends = bool(self.options.get("non_blocking"))
        self.committer = Committer(work) if self.options.get("service") else None
        self.switched_off = without(self.options.get("without", ()))  # as long as it lives
        self.switched_off.__enter__()

    def start(self) -> dict[str, str]:
        return {"hoodoo": version("hoodoo"), "pyarrow": pa.__version__}

    def path(self, table: str) -> str:
        if self.far:
            return f"s3://{BUCKET}/{Path(self.work).name}/{table}"
        return str(Path(self.work) / table)

    def source(self, src: str) -> pa.Table:
        return ds.dataset(Path(self.stage) / src).to_table()

    def make(
        self,
        table: str,
        schema: pa.Schema,
        *,
        key: str = "id",
        part: str = "part",
        ordering: str = "ts",
        shared: bool = False,
        mode: str = "cow",
    ) -> hoodoo.Table:
        self.leave(table)
        shutil.rmtree(self.path(table), ignore_errors=True)
        return hoodoo.create_table(
            self.path(table),
            schema=schema,
            record_key=[key],
            partition_by=[part],
            ordering=[ordering],
            table_type="MERGE_ON_READ" if mode in BLOCKS or (shared and self.appends) else None,
            properties=self.properties(shared=shared),
        )

    def open(self, table: str, *, shared: bool = False, mode: str = "cow") -> hoodoo.Table:
        return hoodoo.open_table(
            self.path(table), properties=self.properties(shared=shared, mode=mode), events=self.held
        )

    def properties(self, *, shared: bool, mode: str = "cow") -> dict[str, str]:
        blocks = {BLOCK_FORMAT: BLOCKS[mode]} if mode in BLOCKS else {}
        lock = (MANY_WRITERS if shared else {}) | (far_properties(self.far) if self.far else {})
        together = NON_BLOCKING if shared and self.appends else {}
        shown = {SERVICE: str(self.committer.socket)} if self.committer and shared else {}
        return {**lock, **together, **blocks, **shown, **self.options.get("properties", {})}

    def done(self, table: str, receipt: Any) -> dict[str, Any]:
        self.marks[table] = receipt.completion_time
        return {"attempts": receipt.attempts}

    # -- the big table

    def load(
        self,
        table: str,
        src: str,
        mode: str = "cow",
        key: str = "id",
        part: str = "part",
        ordering: str = "ts",
    ) -> dict[str, Any]:
        rows = self.source(src)
        made = self.make(table, rows.schema, key=key, part=part, ordering=ordering, mode=mode)
        return self.done(table, made.bulk_insert(rows))

    def upsert(self, table: str, src: str, mode: str = "cow") -> dict[str, Any]:
        return self.done(table, self.open(table, mode=mode).upsert(self.source(src)))

    def append(self, table: str, src: str) -> dict[str, Any]:
        return self.done(table, self.open(table).bulk_insert(self.source(src)))

    def read_full(self, table: str) -> dict[str, Any]:
        return {"rows": self.open(table).to_arrow(columns=data.COLUMNS).num_rows}

    def read_column(self, table: str) -> dict[str, Any]:
        rows = self.open(table).to_arrow(columns=["amount"])
        return {"rows": rows.num_rows, "sum": pc.sum(rows["amount"]).as_py()}

    def read_point(self, table: str, id: str, part: str | None = None) -> dict[str, Any]:  # noqa: A002
        rows = self.open(table).to_arrow(
            filter=pc.field("id") == id, partitions=[part] if part else None
        )
        return {"rows": rows.num_rows}

    def read_range(self, table: str, user: list[int], ts: list[int]) -> dict[str, Any]:
        users = (pc.field("user_id") >= user[0]) & (pc.field("user_id") < user[1])
        times = (pc.field("ts") >= ts[0]) & (pc.field("ts") < ts[1])
        rows = self.open(table).to_arrow(columns=["amount"], filter=users & times)
        return {"rows": rows.num_rows, "sum": pc.sum(rows["amount"]).as_py()}

    def cluster(self, table: str, how: str, cols: list[str], target: int) -> dict[str, Any]:
        plan = "hoodie.clustering.plan.strategy"
        wanted = {f"{plan}.target.file.max.bytes": str(target), f"{plan}.max.num.groups": "1000"}
        properties = {**self.properties(shared=False), **wanted}
        with hoodoo.open_table(self.path(table), properties=properties, events=self.held) as opened:
            receipt = opened.services.cluster(cols, curve="zorder" if how == "zorder" else "linear")
        if receipt is None:
            raise Unsupported("nothing to cluster")
        return {"did": receipt.text}

    def pack(self, table: str) -> dict[str, Any]:
        plan = {"hoodie.clustering.plan.strategy.max.num.groups": "1000"}
        with hoodoo.open_table(
            self.path(table), properties={**self.properties(shared=False), **plan}
        ) as opened:
            receipt = opened.services.cluster()
        if receipt is None:
            raise Unsupported("nothing to cluster")
        return {"did": receipt.text}

    def live_files(self, table: str) -> list[str]:
        return self.base_files(table)

    # -- merge-on-read

    def compact(self, table: str) -> dict[str, Any]:
        with self.open(table, mode="mor") as opened:
            receipt = opened.services.compact()
        if receipt is None:
            raise Unsupported("nothing to compact")
        return {"did": receipt.text}

    def read_two(self, table: str) -> dict[str, Any]:
        return self.two(self.open(table).to_arrow(columns=TWO))

    def read_optimized(self, table: str) -> dict[str, Any]:
        return self.two(self.open(table).to_arrow(columns=TWO, query_type="read_optimized"))

    def read_plain(self, table: str) -> dict[str, Any]:
        """Finding the files is the engine's work, so it is left out of the time."""
        paths = self.base_files(table)
        started = time.perf_counter()
        told = self.two(ds.dataset(paths, format="parquet").to_table(columns=TWO))
        return {**told, "seconds": time.perf_counter() - started}

    def read_base(self, table: str) -> dict[str, Any]:
        opened = self.open(table)
        rows = opened.to_arrow(columns=data.COLUMNS, query_type="read_optimized")
        return {"rows": rows.num_rows}

    def read_points(self, table: str, ids: list[str]) -> dict[str, Any]:
        rows = self.open(table).to_arrow(filter=pc.field("id").isin(ids))
        return {"rows": rows.num_rows}

    def read_stream(self, table: str, part: str | None = None) -> dict[str, Any]:
        batches = self.open(table).scan(partitions=None if part is None else [part])
        return {"rows": sum(batch.num_rows for batch in batches)}

    def largest_group(self, table: str) -> str:
        largest = max(
            self.open(table).file_slices(),
            key=lambda one: one.base_file.size_bytes if one.base_file else 0,
        )
        return largest.file_group.partition_path

    def base_files(self, table: str) -> list[str]:
        slices = self.open(table).file_slices()
        return [f"{self.path(table)}/{one.base_file.path}" for one in slices if one.base_file]

    def two(self, rows: pa.Table) -> dict[str, Any]:
        return {"rows": rows.num_rows, "sum": pc.sum(rows["amount"]).as_py()}

    # -- changes

    def mark(self, table: str) -> dict[str, Any]:
        return {"mark": self.marks[table]}

    def changes(self, table: str, mark: str, kind: str = "append") -> dict[str, Any]:
        return {"rows": pa.table(self.open(table).changes(since=mark)).num_rows}

    # -- small commits

    def create_small(self, table: str, mode: str = "cow") -> dict[str, Any]:
        if mode == "mor":
            raise Unsupported("copy-on-write only")
        self.make(table, data.small(0).schema, shared=True).close()
        # Not in the writers, which make a table of their own to warm up.
        if self.committer is not None and multiprocessing.parent_process() is None:
            self.committer.serve(self.path(table), self.properties(shared=True))
        return {}

    def writer(self, table: str) -> hoodoo.Table:
        if table not in self.writers_open:
            self.writers_open[table] = self.open(table, shared=True)
        return self.writers_open[table]

    def stop(self) -> None:
        if self.committer is not None:
            self.committer.stop()

    def queue_held_s(self) -> float:
        return sum(self.held.milliseconds) / 1e3

    def ready(self, table: str) -> None:
        if self.options.get("keep_open"):
            self.writer(table)

    def small(self, table: str, write: Callable[[hoodoo.Table], Any]) -> int:
        receipt = write(self.writer(table))
        if not self.options.get("keep_open"):
            self.leave(table)
        return int(receipt.attempts)

    def leave(self, table: str) -> None:
        opened = self.writers_open.pop(table, None)
        if opened is not None:
            opened.close()

    def commit_loop(self, *words: Any, **named: Any) -> dict[str, Any]:
        """Also how long the lock was held, and durable creates of this moment, in milliseconds."""
        self.held.milliseconds.clear()
        result = super().commit_loop(*words, **named)
        creates_ms = durable_creates_ms(Path(self.work) / "_creates")
        return {**result, "held_ms": list(self.held.milliseconds), "creates_ms": creates_ms}

    def small_append(self, table: str, batch: dict[str, Any]) -> int:
        if self.appends:  # a bulk insert opens buckets, which others may do at the same time
            return self.small(table, lambda opened: opened.insert(small_table(batch)))
        return self.small(table, lambda opened: opened.bulk_insert(small_table(batch)))

    def small_upsert(self, table: str, batch: dict[str, Any]) -> int:
        return self.small(table, lambda opened: opened.upsert(small_table(batch)))

    def open_snapshot(self, table: str) -> dict[str, Any]:
        return {"files": len(self.open(table).file_slices())}

    def history(self, table: str, commits: int) -> dict[str, Any]:
        """Real appends of one row each."""
        self.create_small(table)
        row = data.small(0, 1)
        for _ in range(commits):
            self.small(table, lambda opened: opened.bulk_insert(row))
        self.leave(table)
        return {}

    def scan_ids(self, table: str) -> list[str]:
        return self.open(table).to_arrow(columns=["id"])["id"].to_pylist()


ADAPTER = Hoodoo
