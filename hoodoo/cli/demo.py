"""``hoodoo demo``: two writers and a cleaning worker on one table, on real data."""

from __future__ import annotations

from pathlib import Path

import click

from hoodoo.cli.invocation import Invocation, reading

__all__ = ["demo"]


@click.command()
@click.option("--path", type=click.Path(path_type=Path), default=Path("demo-table"))
@reading
def demo(invocation: Invocation, *, path: Path) -> None:
    """Run it."""
    invocation.printer.line(str(path))
