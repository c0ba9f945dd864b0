"""``hoodoo sync``: sync a table with a Hive Metastore or Glue."""

from __future__ import annotations

from dataclasses import asdict

import click

from hoodoo.cli.invocation import Command, Invocation, reading


@click.command(cls=Command)
@click.argument("address", metavar="TABLE")
@click.option("--full", is_flag=True, help="Compare all partitions, not only changed ones.")
@reading
def sync(invocation: Invocation, *, address: str, full: bool) -> None:
    """
    Sync a table with a Hive Metastore or Glue.

    The options are hoodie.datasource.hive_sync.* and hoodie.meta.sync.client.tool.class, by --props
    or --hoodie-conf. A writer with these options syncs after each commit. This command repeats a
    sync that failed, and makes the first one of an existing table.
    """
    with invocation.open_table(address) as opened:
        result = opened.sync(full=full)
    entries = () if result is None else result.entries
    document = {
        "action": "sync",
        "synced_until": None if result is None else result.requested_time,
        "entries": [asdict(one) for one in entries],
    }
    lines = [f"{one.text}, in {one.catalog}" for one in entries]
    invocation.printer.result(document, *(lines or ["the table has no write to sync"]))
