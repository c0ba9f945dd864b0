"""
A writer, cleaning or serving process that may be killed at any moment.

Run as ``python -m tests.integration.kill.writer ROLE TABLE JOURNAL ENGINE``. It works until the
journal's folder has a file named ``stop``. Every acknowledged step is one line in the journal,
written and synced after the commit result arrived; a restarted process continues after the last
line. The steps are idempotent by batch id, so a step that was committed but never acknowledged is
not applied twice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

import hoodoo
from hoodoo.services import services_of
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from timeline.errors import HoodooError

KEYS_PER_STEP = 60
PARTITIONS = 4
PROPERTIES = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "3",
    "hoodie.write.num.retries.on.conflict.failures": "30",
    "hoodie.clean.commits.retained": "4",
    "hoodie.index.bloom.num_entries": "1000",
}


def loaded(step: int) -> pa.Table:
    """The rows of a loading step: new keys, version 0."""
    keys = np.arange(step * KEYS_PER_STEP, (step + 1) * KEYS_PER_STEP)
    return _rows(keys, 0, f"load-{step}")


def corrected(step: int, keys_there: int) -> pa.Table:
    """The rows of a correcting step: some keys that are there, with the step as version."""
    keys = np.arange(step % 7, max(keys_there, 1), 7)
    return _rows(keys, step + 1, f"correct-{step}")


def _rows(keys: np.ndarray, version: int, written_by: str) -> pa.Table:
    return pa.table(
        {
            "id": keys,
            "part": pa.array([f"p{key % PARTITIONS}" for key in keys.tolist()], pa.string()),
            "version": np.full(len(keys), version, np.int64),
            "written_by": pa.array([written_by] * len(keys), pa.string()),
        }
    )


def main() -> None:
    """Run one role until the stop file exists (writers) or for ever (cleaner)."""
    role, address, journal, engine = sys.argv[1:5]
    if role.startswith("serve"):
        _serve_for_ever(address, role)
    if role == "clean":
        _clean_for_ever(address)
    step = len(_journal(journal))
    stop = Path(journal).with_name("stop")
    write = _spark_writer(address, role) if engine == "spark" else _local_writer(address, role)
    while True:
        if role == "load":
            rows, keys_there = loaded(step), 0
        else:
            keys_there = _keys_loaded(journal, at_least=1)
            rows = corrected(step, keys_there)
        result = _insist(write, rows, f"{role}-{step}-{keys_there}")
        with Path(journal).open("a") as out:
            out.write(json.dumps({"step": step, "keys": keys_there, "attempts": result}) + "\n")
            out.flush()
            os.fsync(out.fileno())
        step += 1
        # The loop checks the stop file only here: a killed predecessor's last step may be committed
        # and not in the journal, and must be done again before the end.
        if stop.exists():
            return


def _insist(write, rows: pa.Table, batch: str) -> int:
    """Try again after clear rejections; the batch id resolves an unknown outcome."""
    for _ in range(50):
        try:
            return write(rows, batch)
        except HoodooError as error:
            print(f"{batch}: {error.kind}: {error}", file=sys.stderr, flush=True)
            time.sleep(0.2)
    raise SystemExit(f"{batch} was refused 50 times")


def _local_writer(address: str, role: str):
    table = hoodoo.open_table(
        address, properties={**PROPERTIES, "hoodie.write.application.id": role}
    )
    return lambda rows, batch: table.upsert(rows, batch_id=batch).attempts


def _spark_writer(address: str, role: str):
    from pyspark.sql import SparkSession

    import hoodoo.spark

    spark = (
        SparkSession.builder.master("local[1]")
        .appName(f"kill-{role}")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    hoodoo.spark.install(spark)

    def write(rows: pa.Table, batch: str) -> int:
        frame = spark.createDataFrame(rows.to_pandas())
        options = {
            **PROPERTIES,
            "hoodie.write.application.id": role,
            "hoodoo.batch.id": batch,
            "hoodie.datasource.write.operation": "upsert",
        }
        frame.write.format("hoodoo").options(**options).mode("append").save(address)
        return 1

    return write


def _clean_for_ever(address: str) -> None:
    table = hoodoo.open_table(
        address, properties={**PROPERTIES, "hoodie.write.application.id": "cleaner"}
    )
    settings = CleaningSettings.from_properties(table.properties)
    while True:
        try:
            clean(table.context, settings)
        except HoodooError as error:
            print(f"clean: {error.kind}: {error}", file=sys.stderr, flush=True)
        time.sleep(0.3)


#: Every service, and much of each.
SERVING = {
    **PROPERTIES,
    "hoodie.compact.inline.max.delta.commits": "3",
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.clustering.async.enabled": "true",
    "hoodie.clustering.async.max.commits": "7",
    "hoodie.clustering.updates.strategy": (
        "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
    ),
    "hoodie.keep.min.commits": "12",
    "hoodie.keep.max.commits": "16",
    "hoodoo.services.beside.writers": "false",  # the workers are killed, not the writers' threads
}


def _serve_for_ever(address: str, role: str) -> NoReturn:
    """As ``hoodoo services worker`` does, and louder."""
    table = hoodoo.open_table(address, properties={**SERVING, "hoodie.write.application.id": role})
    table._register_writer()
    services = services_of(table.properties)
    while True:
        for service in services:
            try:
                result = service.run_once(table.context)
            except HoodooError as error:
                print(f"{service.name}: {error.kind}: {error}", file=sys.stderr, flush=True)
                continue
            if result is not None:
                print(f"{service.name}: {result.text}", file=sys.stderr, flush=True)
        time.sleep(0.2)


def _journal(path: str) -> list[dict[str, int]]:
    if not Path(path).exists():
        return []
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.endswith("}")]


def _keys_loaded(own_journal: str, *, at_least: int) -> int:
    """How many keys the loader has acknowledged; waits for the first ones."""
    loader = str(Path(own_journal).with_name("load.jsonl"))
    while len(done := _journal(loader)) < at_least:
        time.sleep(0.05)
    return len(done) * KEYS_PER_STEP


if __name__ == "__main__":
    main()
