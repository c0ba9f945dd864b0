"""A Spark job and a local writer append to one bucket side by side."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.writing.workload import LocalWorkload
from timeline.model.commit_metadata import WriteOperation

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FREE = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "0",
}
SCHEMA = pa.schema(
    [("id", pa.int64()), ("day", pa.string()), ("at", pa.int64()), ("amount", pa.float64())]
)


def test_a_spark_job_and_a_local_writer_create_one_bucket_together(
    save: Any, rows: Any, path: str
) -> None:
    options = {key.replace(".", "__"): value for key, value in FREE.items()}
    save([(9, "tue", 1, 9.0)], **options)

    class Slow(LocalWorkload):
        """The Spark job begins after this write, and is committed before it."""

        def rewrite(self, tasks: Any) -> Any:
            spark = save([(1, "mon", 5, 50.0), (2, "mon", 5, 50.0)], **options)
            assert (spark.attempts, spark.rows_inserted) == (1, 2)
            return super().rewrite(tasks)

    with hoodoo.open_table(path, properties=FREE) as table:
        mine = pa.Table.from_pylist(
            [
                {"id": 1, "day": "mon", "at": 5, "amount": 1.0},
                {"id": 3, "day": "mon", "at": 5, "amount": 3.0},
            ],
            SCHEMA,
        )
        result = table._run(WriteOperation.UPSERT, Slow(table.context.ports, mine))
        assert result.attempts == 1
        (one,) = (one for one in table.file_slices() if one.file_group.partition_path == "mon")
        assert (one.base_file, len(one.log_files)) == (None, 2)
    # Of the rows of one key that of the greater requested time counts: the job's.
    assert rows() == [
        (1, "mon", 5, 50.0),
        (2, "mon", 5, 50.0),
        (3, "mon", 5, 3.0),
        (9, "tue", 1, 9.0),
    ]
