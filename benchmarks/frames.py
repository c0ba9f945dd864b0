"""
Time the dataframe tools on a merge-on-read table, as ratios to ``to_arrow()``.

Run it by ``make bench-frames``. It needs pandas 3 and the tools of ``requirements/frames.txt``. The
table has two million rows in four partitions and an upsert of 1 % in its logs. The tools run in
turn in one process; the figure is the least of all rounds, divided by that of ``to_arrow()``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import hoodoo

PARTITIONS = 4
TEXT = "one partition of four, two columns of six, half of its rows"
FILTER = "day = 'd1' AND v < 500000"
Query = Callable[[Any], Any]


def batch(ids: np.ndarray, at: int) -> pa.Table:
    """Rows whose values follow from their number."""
    return pa.table(
        {
            "id": pa.array(ids).cast(pa.string()),
            "day": pc.binary_join_element_wise("d", pa.array(ids % PARTITIONS).cast("string"), ""),
            "v": ids * 7919 % 1_000_003,
            "amount": ids * 0.25,
            "note": pc.binary_join_element_wise("note", pa.array(ids * 31).cast("string"), "-"),
            "at": np.full(len(ids), at),
        }
    )


def make_table(path: Path, rows: int) -> None:
    """Load all rows, then update each hundredth into the logs."""
    with hoodoo.create_table(
        path, record_key="id", partition_by="day", ordering="at", table_type="MERGE_ON_READ"
    ) as table:
        table.bulk_insert(batch(np.arange(rows), 1))
        table.upsert(batch(np.arange(0, rows, 100), 2))


def whole() -> dict[str, Query]:
    """Each tool's own way to all rows and columns."""
    import daft
    import duckdb
    import ibis
    import pandas as pd
    from datafusion import SessionContext

    def stream_to_duckdb(table: Any) -> Any:
        given = table.scan()
        return duckdb.from_arrow(given).to_arrow_table()

    return {
        "to_arrow()": lambda table: table.to_arrow(),
        "pyarrow.table(table)": pa.table,
        "to_pandas()": lambda table: table.to_pandas(),
        "pandas.DataFrame.from_arrow(table)": pd.DataFrame.from_arrow,
        "to_polars()": lambda table: table.to_polars(),
        "scan_polars().collect()": lambda table: table.scan_polars().collect(),
        "to_duckdb()": lambda table: table.to_duckdb().to_arrow_table(),
        "duckdb.from_arrow(table.scan())": stream_to_duckdb,
        "DataFusion from_arrow(table)": lambda table: SessionContext().from_arrow(table).collect(),
        "daft.from_arrow(table)": lambda table: daft.from_arrow(table).to_arrow(),
        "ibis.memtable(table)": lambda table: ibis.memtable(table).to_pyarrow(),
    }


def part() -> dict[str, Query]:
    """The same question: one partition, two columns, half of its rows."""
    import daft
    import ibis
    import pandas as pd
    import polars as pl
    from datafusion import SessionContext

    wanted = (pc.field("day") == "d1") & (pc.field("v") < 500_000)

    def of_pandas(table: Any) -> Any:
        frame = pd.DataFrame.from_arrow(table)
        return frame[(frame["day"] == "d1") & (frame["v"] < 500_000)][["id", "v"]]

    def of_polars(table: Any) -> Any:
        frame = table.scan_polars().filter(pl.col("day") == "d1", pl.col("v") < 500_000)
        return frame.select("id", "v").collect()

    def of_datafusion(table: Any) -> Any:
        context = SessionContext()
        context.register_dataset("given", table.to_pyarrow_dataset())
        return context.sql(f"SELECT id, v FROM given WHERE {FILTER}").collect()

    def of_daft(table: Any) -> Any:
        frame = daft.from_arrow(table)
        chosen = frame.where((daft.col("day") == "d1") & (daft.col("v") < 500_000))
        return chosen.select("id", "v").to_arrow()

    def of_ibis(table: Any) -> Any:
        given = ibis.memtable(table)
        return given.filter(given.day == "d1", given.v < 500_000).select("id", "v").to_pyarrow()

    return {
        "to_arrow(columns, filter)": lambda table: table.to_arrow(["id", "v"], FILTER),
        "to_pyarrow_dataset()": lambda table: table.to_pyarrow_dataset().to_table(
            columns=["id", "v"], filter=wanted
        ),
        "to_pandas(columns, filter)": lambda table: table.to_pandas(["id", "v"], FILTER),
        "pandas.DataFrame.from_arrow(table)": of_pandas,
        "to_polars(columns, filter)": lambda table: table.to_polars(["id", "v"], FILTER),
        "scan_polars()": of_polars,
        "to_duckdb()": lambda table: (
            table.to_duckdb().filter(FILTER).project("id, v").to_arrow_table()
        ),
        "DataFusion register_dataset": of_datafusion,
        "daft.from_arrow(table)": of_daft,
        "ibis.memtable(table)": of_ibis,
    }


def measure(table: Any, queries: dict[str, Query], rounds: int) -> dict[str, float]:
    """Return the least seconds of each query; the queries take turns."""
    least: dict[str, float] = {}
    for _ in range(rounds):
        for name, query in queries.items():
            started = time.perf_counter()
            answer = query(table)
            taken = time.perf_counter() - started
            del answer
            least[name] = min(taken, least.get(name, taken))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    packages = ("pandas", "polars", "duckdb", "datafusion", "daft", "ibis-framework", "pyarrow")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    with tempfile.TemporaryDirectory(prefix="frames") as folder:
        make_table(Path(folder) / "t", options.rows)
        with hoodoo.open_table(Path(folder) / "t") as table:
            for title, queries in (("all rows", whole()), (TEXT, part())):
                found = measure(table, queries, options.rounds)
                base = next(iter(found.values()))
                print(f"\n| {title} | times `to_arrow` |\n|---|---|")
                for name, seconds in found.items():
                    print(f"| `{name}` | {seconds / base:.1f} |")
                print(f"\nto_arrow: {base:.2f} s")


if __name__ == "__main__":
    main()
