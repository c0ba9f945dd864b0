"""One Spark 3.5 session with Hudi's bundle and hoodoo; prints its commits as one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from both_session import session

TASK = json.loads(sys.argv[1])
TABLE, ROWS = TASK["table"], TASK["rows"]
FORMATS = {"java": "hudi", "ours": "hoodoo"}
OPTIONS = {
    "hoodie.table.name": "both",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": (
        "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
    ),
    "hoodie.write.lock.zookeeper.url": TASK["zookeeper"],
    "hoodie.write.lock.zookeeper.base_path": "/hudi/locks",
    "hoodie.write.lock.zookeeper.lock_key": "both",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.index.type": "SIMPLE",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodoo.foreign.writers": "expected",
}
#: hoodoo retries a write. A scheduler runs a Hudi job again.
TRIES = 60


def main() -> None:
    spark = session(TASK["jar"])
    commits, sides = TASK["commits"], TASK["sides"]
    if sides == "turns":
        done = [save(spark, ("java", "ours")[n % 2], n // 2) for n in range(commits)]
    elif sides == "at-once":
        save(spark, "java", 0)  # makes the table
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(series, spark, "java", 1, commits // 2),
                pool.submit(series, spark, "ours", 0, commits - commits // 2),
            ]
            done = [{"side": "java", "number": 0}, *(one for job in jobs for one in job.result())]
    else:
        made = Path(TABLE + ".made")
        if TASK["begin"] == "makes":
            save(spark, sides, 0)
            made.touch()
            done = [{"side": sides, "number": 0}, *series(spark, sides, 1, commits // 2)]
        else:
            while not made.exists():
                time.sleep(0.1)
            done = series(spark, sides, 0, commits - commits // 2)
    spark.stop()
    print(json.dumps(done))


def series(spark: Any, side: str, begin: int, end: int) -> list[dict[str, Any]]:
    return [save(spark, side, number) for number in range(begin, end)]


def save(spark: Any, side: str, number: int) -> dict[str, Any]:
    """Write one batch; a conflict is tried again."""
    rows = [(f"{side}-{number}-{i}", f"p{i % 2}", side, number) for i in range(ROWS // 2)]
    rows += [(f"shared-{i}", f"p{i % 2}", side, number) for i in range(ROWS // 2)]
    frame = spark.createDataFrame(rows, "id string, p string, side string, number int")
    mode = "append" if Path(TABLE, ".hoodie").exists() else "overwrite"
    for tried in range(TRIES):
        try:
            frame.write.format(FORMATS[side]).options(**OPTIONS).mode(mode).save(TABLE)
        except Exception as error:
            text = str(error)
            if tried + 1 == TRIES or "onflict" not in text:
                raise
            print(f"{side} {number}: conflict", file=sys.stderr)
            time.sleep(0.2 * (tried % 5))
        else:
            break
    return {"side": side, "number": number}


if __name__ == "__main__":
    main()
