"""Two Spark streams into one table: ``python -m tests.integration.kill.streams TABLE FOLDER``."""

from __future__ import annotations

import sys

from hoodoo.spark.session import local_session

NAMES = ("first", "second")
COLUMNS = "id string, source string, n long"
PROPERTIES = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.write.num.retries.on.conflict.failures": "30",
    # A killed writer is rolled back after ten seconds; a busy machine pauses for less.
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "10",
    "hoodie.archive.automatic": "false",  # the test reads every commit
    "hoodie.compact.inline.max.delta.commits": "3",
    "hoodoo.services.interval.ms": "300",
}
#: A row that is written twice has two rows in the table.
STREAM = {**PROPERTIES, "hoodie.datasource.write.operation": "insert"}
IDENTIFIER = "hoodie.datasource.write.streaming.checkpoint.identifier"


def main(table: str, folder: str) -> None:
    """Write all files of both sources, one a micro-batch."""
    spark = local_session("streams", cores=2)
    queries = []
    for name in NAMES:
        source = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        writer = source.parquet(f"{folder}/{name}").writeStream.format("hudi").queryName(name)
        writer = writer.options(**{**STREAM, IDENTIFIER: name})
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{name}")
        queries.append(writer.trigger(availableNow=True).start(table))
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
