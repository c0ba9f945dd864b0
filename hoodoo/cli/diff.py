"""``hoodoo diff``: the rows that differ between two snapshots of a table."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from hoodoo.cli.instants import time_named
from hoodoo.cli.invocation import Command, Invocation, reading
from hoodoo.cli.printing import Printer
from hoodoo.cli.rows import CHANGE_SIGNS, change_text, with_variants
from timeline.errors import counted

if TYPE_CHECKING:
    from filegroups.reading.diff import DiffCounts, TableDiff


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="[AFTER]", required=False)
@click.option("--rows", "with_rows", is_flag=True, help="Print the rows with both values.")
@click.option("--partitions", is_flag=True, help="Count each partition, too.")
@click.option("--columns", metavar="A,B,..", help="Compare these columns only.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Maximum number of rows of --rows.",
)
@reading
def diff(
    invocation: Invocation,
    *,
    address: str,
    before: str,
    after: str | None,
    with_rows: bool,
    partitions: bool,
    columns: str | None,
    limit: int,
) -> None:
    """
    Show which rows differ between two snapshots.

    BEFORE and AFTER are instants or times; AFTER is now by default. Rows are compared by record
    key and partition. With --rows a program gets one JSON object for each row: op (i, u, d),
    partition, key, changed columns, and the row before and after.
    """
    names = None if columns is None else [one.strip() for one in columns.split(",")]
    with invocation.open_table(address) as opened:
        times = (
            time_named(opened.context, before),
            None if after is None else time_named(opened.context, after),
        )
        found = opened.diff(*times, columns=names)
        if with_rows and not invocation.printer.for_people:
            invocation.printer.rows(_limited(found, limit))
            return
        counts = found.counts()
        if not invocation.printer.for_people:
            invocation.printer.document(_document(times, counts, partitions=partitions))
            return
        _print_counts(invocation.printer, counts, partitions=partitions)
        if with_rows and (counts.inserted or counts.updated or counts.deleted):
            invocation.printer.line()
            _print_rows(invocation.printer, found, limit)


def _document(
    times: tuple[str, str | None], counts: DiffCounts, *, partitions: bool
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "before": times[0],
        "after": times[1],
        **_figures(counts),
        "columns": dict(sorted(counts.columns.items())),
    }
    if partitions:
        document["partitions"] = [
            {"partition": path, **_figures(one)} for path, one in counts.partitions.items()
        ]
    return document


def _figures(counts: DiffCounts) -> dict[str, int]:
    return {
        "rows_inserted": counts.inserted,
        "rows_updated": counts.updated,
        "rows_deleted": counts.deleted,
    }


def _print_counts(printer: Printer, counts: DiffCounts, *, partitions: bool) -> None:
    printer.line(
        f"{counts.inserted} inserted, {counts.updated} updated, {counts.deleted} deleted, in "
        + counted(len(counts.partitions), "partition")
    )
    if counts.columns:
        changed = (f"{name} ({rows})" for name, rows in sorted(counts.columns.items()))
        printer.line(f"updated columns: {', '.join(changed)}")
    if partitions and counts.partitions:
        printer.line()
        printer.grid(
            ("partition", "inserted", "updated", "deleted"),
            [
                (path or "(none)", one.inserted, one.updated, one.deleted)
                for path, one in counts.partitions.items()
            ],
        )


def _limited(found: TableDiff, limit: int) -> pa.RecordBatchReader:
    def batches() -> Any:
        left = limit
        for batch in found.rows():
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    return pa.RecordBatchReader.from_batches(found.row_schema, batches())


def _print_rows(printer: Printer, found: TableDiff, limit: int) -> None:
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in _limited(found, limit))
    printer.grid(
        ("", "key", "partition", "values"),
        [
            (CHANGE_SIGNS[one["op"]], one["key"], one["partition"], change_text(with_variants(one)))
            for one in rows
        ],
        empty="no rows",
    )
