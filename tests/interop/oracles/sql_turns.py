"""
SQL of Hudi's bundle and of hoodoo in one session; prints what each statement led to as JSON.

``turns``: statements by turns on the same tables, and both sides read the table after each.
``apart``: each side runs each statement on tables of its own, and reads them. A query, or a
refresh, is run by both sides always, and its rows are compared.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from both_session import session

TASK = json.loads(sys.argv[1])
SIDES = ("java", "ours")
#: Small jobs of the bundle, on tables with the metadata table.
SETTINGS = {
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.insert.shuffle.parallelism": "1",
    "hoodie.delete.shuffle.parallelism": "1",
    "hoodie.bulkinsert.shuffle.parallelism": "1",
    "hoodie.metadata.enable": "true",
    "hoodoo.reader.lease.ms": "0",  # else cleaned files stay in the folders, which Java lists
}
QUERY = re.compile(r"\s*(select|show|with|refresh|call (show|stats|validate)_)", re.IGNORECASE)
TABLE = re.compile(r"{(\w)}")
#: By side and table the times of the first commit and of the newest one with rows.
first_times: dict[tuple[str, str], str] = {}
last_times: dict[tuple[str, str], str] = {}


def main() -> None:
    spark = session(TASK["jar"])
    spark.sparkContext.setLogLevel("OFF")
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    changes = 0
    found = []
    for text in TASK["statements"]:
        table = match[1] if (match := TABLE.search(text)) else ""
        if QUERY.match(text):
            by, query, errors = list(SIDES), text, []
        else:
            by = list(SIDES) if TASK["apart"] else [SIDES[(changes + TASK["first"]) % 2]]
            changes += 1
            errors = [error for side in by if (error := tried(spark, side, text, table))]
            reads = table and not errors and not text.lower().startswith("drop table")
            query = "SELECT * FROM {%s}" % table if reads else ""
        rows: dict[str, Any] = {}
        for side in SIDES if query else ():
            try:
                rows[side] = rows_of(run(spark, side, query, table), side, table)
            except Exception as error:  # it is reported
                errors.append(told(side, error))
        found.append({"sql": text, "by": by, "errors": errors, "rows": rows})
        print(json.dumps(found[-1], default=str), file=sys.stderr, flush=True)
    procedures = procedures_of(spark)
    spark.stop()
    print(json.dumps({"found": found, "procedures": procedures}, default=str))


def run(spark: Any, side: str, text: str, table: str) -> Any:
    spark.conf.set("hoodoo.spark.serves.hudi", str(side == "ours").lower())
    prefix = f"{side}_" if TASK["apart"] else ""
    text = text.replace("{first}", first_times.get((side, table), ""))
    text = text.replace("{last}", last_times.get((side, table), ""))
    text = TABLE.sub(lambda match: prefix + match[1], text)
    text = text.replace("{path}", f"{TASK['folder']}/{prefix}{table}")
    return spark.sql(text, {"id": 2}) if ":id" in text else spark.sql(text)


def tried(spark: Any, side: str, text: str, table: str) -> str:
    try:
        run(spark, side, text, table).collect()
    except Exception as error:  # it is reported
        return told(side, error)
    return ""


def told(side: str, error: Exception) -> str:
    causes = re.findall(r"Caused by: [^\n]*", str(error))
    return f"{side}: {type(error).__name__}: {str(error)[:300]} {causes[-2:]}"


def procedures_of(spark: Any) -> dict[str, Any]:
    """Return the arguments and the columns of the bundle's procedures."""
    java = spark._jvm.java.lang
    package = "org.apache.spark.sql.hudi.command.procedures"
    loader = java.Thread.currentThread().getContextClassLoader()
    module = java.Class.forName(f"{package}.HoodieProcedures$", True, loader)
    entries = module.getField("MODULE$").get(None).procedures().iterator()
    found = {}
    while entries.hasNext():
        entry = entries.next()
        one = entry._2().get().build()
        found[entry._1()] = {
            "arguments": [each.name() for each in one.parameters()],
            "columns": one.outputType().simpleString(),
        }
    return found


def rows_of(df: Any, side: str, table: str) -> Any:
    """Return the columns and the sorted rows without meta columns; note the times of commits."""
    own = [column for column in df.columns if not column.startswith("_hoodie")]
    found = [row.asDict() for row in df.collect()]
    if found and "_hoodie_commit_time" in df.columns:
        times = [row["_hoodie_commit_time"] for row in found]
        first_times.setdefault((side, table), min(times))
        last_times[side, table] = max(times)
    return [own, sorted(([row[name] for name in own] for row in found), key=str)]


if __name__ == "__main__":
    main()
