"""
Read a table by one dataframe tool, and print the answer as JSON: tools.py TOOL TABLE [INSTANT].

It runs under an interpreter of its own (``requirements/frames.txt``), because PySpark does not
accept pandas 3. Each function reads the table, or its state as of an instant, as users of the tool
do.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from typing import Any

import hoodoo
from filegroups.table import TableSnapshot

#: The query that each tool answers: ``SELECT id, v WHERE day = 'b' AND v > 5 ORDER BY id``.
Rows = list[dict[str, Any]]


def pandas(table: TableSnapshot) -> Rows:
    import pandas as pd

    frame = pd.DataFrame.from_arrow(table)
    chosen = frame[(frame["day"] == "b") & (frame["v"] > 5)]
    return chosen[["id", "v"]].sort_values("id").to_dict("records")


def pandas_method(table: TableSnapshot) -> Rows:
    frame = table.to_pandas(["id", "v"], "day = 'b' AND v > 5")
    return frame.sort_values("id").to_dict("records")


def polars(table: TableSnapshot) -> Rows:
    import polars as pl

    frame = pl.DataFrame(table)
    return (
        frame.filter(pl.col("day") == "b", pl.col("v") > 5).select("id", "v").sort("id").to_dicts()
    )


def polars_method(table: TableSnapshot) -> Rows:
    return table.to_polars(["id", "v"], "day = 'b' AND v > 5").sort("id").to_dicts()


def polars_lazy(table: TableSnapshot) -> Rows:
    import polars as pl

    chosen = table.scan_polars().filter(pl.col("day") == "b", pl.col("v") > 5)
    return chosen.select("id", "v").collect().sort("id").to_dicts()


def duckdb(table: TableSnapshot) -> Rows:
    import duckdb as db

    given = table  # DuckDB finds a local variable by its name
    found = db.sql("SELECT id, v FROM given WHERE day = 'b' AND v > 5 ORDER BY id")
    assert given is table
    return found.to_arrow_table().to_pylist()


def duckdb_method(table: TableSnapshot) -> Rows:
    found = table.to_duckdb().filter("day = 'b' AND v > 5").project("id, v").order("id")
    return found.to_arrow_table().to_pylist()


def datafusion(table: TableSnapshot) -> Rows:
    from datafusion import SessionContext, col, lit

    frame = SessionContext().from_arrow(table, "given")
    chosen = frame.filter((col("day") == lit("b")) & (col("v") > lit(5))).select("id", "v")
    return chosen.sort(col("id")).to_pylist()


def datafusion_dataset(table: TableSnapshot) -> Rows:
    from datafusion import SessionContext

    context = SessionContext()
    context.register_dataset("given", table.to_pyarrow_dataset())
    found = context.sql("SELECT id, v FROM given WHERE day = 'b' AND v > 5 ORDER BY id")
    return found.to_pylist()


def daft(table: TableSnapshot) -> Rows:
    import daft as df

    frame = df.from_arrow(table)
    chosen = frame.where((df.col("day") == "b") & (df.col("v") > 5)).select("id", "v").sort("id")
    return chosen.to_pylist()


def ibis(table: TableSnapshot) -> Rows:
    import ibis as ib

    given = ib.memtable(table)
    chosen = given.filter(given.day == "b", given.v > 5).select("id", "v").order_by("id")
    return chosen.to_pyarrow().to_pylist()


def pyarrow(table: TableSnapshot) -> Rows:
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = pa.table(table).filter((pc.field("day") == "b") & (pc.field("v") > 5))
    return chosen.select(["id", "v"]).sort_by("id").to_pylist()


def pyarrow_dataset(table: TableSnapshot) -> Rows:
    import pyarrow.compute as pc

    condition = (pc.field("day") == "b") & (pc.field("v") > 5)
    dataset = table.to_pyarrow_dataset()
    found = dataset.to_table(columns=["id", "v"], filter=condition)
    assert dataset.count_rows(condition) == found.num_rows
    return found.sort_by("id").to_pylist()


TOOLS = {
    one.__name__: one
    for one in (
        pandas,
        pandas_method,
        polars,
        polars_method,
        polars_lazy,
        duckdb,
        duckdb_method,
        datafusion,
        datafusion_dataset,
        daft,
        ibis,
        pyarrow,
        pyarrow_dataset,
    )
}


def main(name: str, path: str, instant: str | None = None) -> int:
    table: TableSnapshot = hoodoo.open_table(path)
    if instant is not None:
        table = table.as_of(instant)
    scans: list[tuple[list[str], list[str]]] = []
    plan = TableSnapshot.plan

    def noted(self: TableSnapshot, **options: Any) -> Any:
        found = plan(self, **options)
        partitions = sorted({one.file_group.partition_path for one in found.slices})
        scans.append((list(found.output_schema.names), partitions))
        return found

    TableSnapshot.plan = noted  # type: ignore[method-assign]
    rows = TOOLS[name](table)
    package = {"ibis": "ibis-framework"}.get(name, name.partition("_")[0])
    print(json.dumps({"rows": rows, "scans": scans, "version": version(package)}))
    sys.stdout.flush()
    if name == "daft":
        os._exit(0)  # its threads may abort the process when the interpreter ends
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
