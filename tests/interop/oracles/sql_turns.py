"""
SQL of Hudi's bundle and of hoodoo in one session; prints what each statement led to as JSON.

``turns``: one table, the statements by turns, and both sides read it after each. ``apart``: each
statement on a table of Java's and on one of ours, and each side reads its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from both_session import session

TASK = json.loads(sys.argv[1])
SIDES = ("java", "ours")
#: Small jobs of the bundle, on a table with the metadata table.
SETTINGS = {
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.insert.shuffle.parallelism": "1",
    "hoodie.delete.shuffle.parallelism": "1",
    "hoodie.bulkinsert.shuffle.parallelism": "1",
    "hoodie.metadata.enable": "true",
}


def main() -> None:
    spark = session(TASK["jar"])
    spark.sparkContext.setLogLevel("OFF")
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    mode, first = TASK["mode"], TASK["first"]
    names = {"java": "of_java", "ours": "of_ours"} if mode == "apart" else dict.fromkeys(SIDES, "t")
    where = {name: f"{TASK['folder']}/{name}" for name in names.values()}
    for side in SIDES if mode == "apart" else [SIDES[first]]:
        run(spark, side, TASK["create"], names[side], where)
    found = []
    for number, text in enumerate(TASK["statements"]):
        turn = SIDES if mode == "apart" else [SIDES[(number + first) % 2]]
        errors = [error for side in turn if (error := tried(spark, side, text, names[side], where))]
        rows = {side: rows_of(spark, side, names[side]) for side in SIDES}
        found.append({"sql": text, "by": list(turn), "errors": errors, **rows})
        print(json.dumps(found[-1]), file=sys.stderr)
    spark.stop()
    print(json.dumps(found))


def run(spark: Any, side: str, text: str, name: str, where: dict[str, str]) -> Any:
    spark.conf.set("hoodoo.spark.serves.hudi", str(side == "ours").lower())
    return spark.sql(text.replace("{t}", name).replace("{path}", where[name]))


def tried(spark: Any, side: str, text: str, name: str, where: dict[str, str]) -> str:
    try:
        run(spark, side, text, name, where).collect()
    except Exception as error:  # it is reported
        return f"{side}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def rows_of(spark: Any, side: str, name: str) -> Any:
    """Return the columns and the sorted rows of a table without meta columns."""
    df = run(spark, side, "SELECT * FROM {t}", name, {name: ""})
    own = [column for column in df.columns if not column.startswith("_hoodie")]
    rows = sorted((list(row) for row in df.select(*own).collect()), key=str)
    return [own, rows]


if __name__ == "__main__":
    main()
