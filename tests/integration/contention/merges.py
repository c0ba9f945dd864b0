"""A Spark session that merges into rows that another one changes; it prints its commits."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import hoodoo.spark
from hoodoo.spark.session import local_session

KEYS = 6


def main(task: dict[str, Any]) -> None:
    spark = local_session(f"merges {task['name']}")
    for key, value in task["properties"].items():
        spark.sql(f"SET {key}={value}")
    print("ready", flush=True)
    for level, path in task["tables"].items():
        spark.sql(f"SET hoodoo.write.isolation.level={level}")
        sys.stdin.readline()
        commits = merge(spark, path, random.Random(f"{task['name']} {level}"), task)
        print(json.dumps(commits), flush=True)
    spark.stop()


def merge(spark: Any, path: str, chance: random.Random, task: dict[str, Any]) -> list[list[Any]]:
    """
    Run the statements on one table.

    Returns:
        The requested time of each commit, the kind of the statement and the keys it changed.
    """
    commits: list[list[Any]] = []
    table = f"hudi.`{path}`"
    for number in range(task["statements"]):
        keys = sorted(chance.sample(range(KEYS), 2))
        if chance.random() < 0.3:  # reads all rows, and changes one
            kind, keys = "total", keys[:1]
            source = f"SELECT {keys[0]} AS id, sum(v) % 1009 AS v FROM {table} WHERE id < {KEYS}"
            spark.sql(
                f"MERGE INTO {table} t USING ({source}) s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET v = s.v"
            )
        else:
            kind, own = "add", task["first"] + number
            source = " UNION ALL ".join(f"SELECT {key} AS id, 1 AS v" for key in [*keys, own])
            spark.sql(
                f"MERGE INTO {table} t USING ({source}) s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET v = t.v + s.v WHEN NOT MATCHED THEN INSERT *"
            )
            keys = [*keys, own]
        result = hoodoo.spark.last_result(spark)
        assert result is not None
        commits.append([result.completion_time, kind, keys])
    return commits


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
