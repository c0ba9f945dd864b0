"""
Jobs on a Spark cluster that write one table at the same time: jobs.py ROLE MASTER TABLE PROPERTIES FOLDER.

Each role is the driver of an application. It notes what it has written in ``FOLDER/<role>.json``,
and goes on from there if it is started again.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from timeline.properties.properties_file import parse_properties

COLUMNS = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
PARTITIONS = 4
STEP = 4_000
DOOMED = 6_000
FILES = 3
FILE_ROWS = 3_000


def rows(kind: str, numbers: range, value: int) -> pa.Table:
    """Return rows of a kind; the number decides key and partition."""
    keys = [f"{kind}-{number:07d}" for number in numbers]
    parts = [f"p{number % PARTITIONS}" for number in numbers]
    return pa.table([keys, parts, [value] * len(keys)], schema=COLUMNS)


def backfill_rows(number: int) -> pa.Table:
    """Return the rows of a backfill: half of them update those of the one before."""
    return rows("b", range(number * STEP, (number + 2) * STEP), number)


def doomed_rows(number: int, count: int) -> pa.Table:
    """Return the rows that a delete of ``count`` deletes."""
    share = DOOMED // count
    return rows("d", range(number * share, (number + 1) * share), 0)


def stream_rows(number: int) -> pa.Table:
    """Return the rows of a file of the stream."""
    return rows("s", range(number * FILE_ROWS, (number + 1) * FILE_ROWS), number)


def session(role: str, master: str) -> Any:
    from pyspark.sql import SparkSession

    import hoodoo.spark

    settings = {
        "spark.ui.enabled": "false",
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Attempts that are a little slow get a rival.
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "1ms",
    }
    builder = SparkSession.builder.master(master).appName(role)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return hoodoo.spark.install(spark)


def rivals(spark: Any) -> int:
    """Return how many speculative attempts Spark has started."""
    store = spark.sparkContext._jsc.sc().statusStore()
    gateway = spark.sparkContext._gateway
    numbers, none = gateway.new_array(gateway.jvm.double, 0), gateway.jvm.java.util.ArrayList()
    stages = store.stageList(None, False, False, numbers, none)
    found = 0
    for number in range(stages.size()):
        stage = stages.apply(number)
        summary = store.speculationSummary(stage.stageId(), stage.attemptId())
        found += summary.get().numTasks() if summary.isDefined() else 0
    return found


def lose_attempts() -> None:
    """Let the first attempt of a task of each write fail after it has written its files."""
    from pyspark import TaskContext

    from hoodoo.spark import workload
    from hoodoo.spark.tasks import WriteGroups

    class Losing(WriteGroups):
        def __call__(self, batches: Any) -> Any:
            yield from WriteGroups.__call__(self, batches)
            context = TaskContext.get()
            if context.partitionId() == 0 and context.attemptNumber() == 0:
                raise RuntimeError("the attempt is lost after its files")

    vars(workload)["WriteGroups"] = Losing


def write_rounds(
    spark: Any, table: str, options: dict[str, str], note: Path, rounds: int, *, operation: str
) -> None:
    """Write the rounds that are not noted yet."""
    done = json.loads(note.read_text())["done"] if note.exists() else 0
    made = backfill_rows if operation == "upsert" else lambda n: doomed_rows(n, rounds)
    for number in range(done, rounds):
        file = note.parent / f"{operation}-{number}.parquet"
        pq.write_table(made(number), file)
        df = spark.read.parquet(str(file))
        named = {**options, "hoodie.datasource.write.operation": operation}
        df.write.format("hudi").options(**named).mode("append").save(table)
        note.write_text(json.dumps({"done": number + 1}))


def stream(spark: Any, table: str, options: dict[str, str], note: Path) -> None:
    """Write the files of a folder, one in each micro-batch."""
    folder = note.parent
    source = (
        spark.readStream.schema("id string, p string, v long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "source"))
    )
    query = (
        source.writeStream.format("hudi")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(table)
    )
    query.awaitTermination()
    note.write_text(json.dumps({"done": FILES}))


def main() -> None:
    """Run one role to its end."""
    faulthandler.register(signal.SIGUSR1)  # shows where a job waits
    role, master, table, properties, folder, rounds = sys.argv[1:]
    options = parse_properties(Path(properties).read_bytes(), path=properties)
    options["hoodie.write.application.id"] = role
    spark, note = session(role, master), Path(folder) / f"{role}.json"
    print(spark.sparkContext.applicationId, flush=True)
    if role == "stream":
        stream(spark, table, options, note)
    else:
        operation = "upsert" if role == "backfill" else "delete"
        if role == "backfill":
            lose_attempts()
        write_rounds(spark, table, options, note, int(rounds), operation=operation)
    note.write_text(json.dumps({**json.loads(note.read_text()), "rivals": rivals(spark)}))
    spark.stop()


if __name__ == "__main__":
    main()
