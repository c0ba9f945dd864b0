"""``hoodoo metadata``: build, show, check, repair and drop the metadata table."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hoodoo.cli.invocation import PROBLEMS_FOUND, CommandGroup, Invocation, changing, reading
from hoodoo.cli.printing import size_text
from hoodoo.metadata import INDEX_TYPES, index_partition
from tableservices.metadata_table.build import MetadataBuild
from timeline.errors import counted


@click.group(cls=CommandGroup)
def metadata() -> None:
    """Build, check and drop the metadata table."""


@metadata.command()
@click.argument("address", metavar="TABLE")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1)
@click.option("--column", metavar="NAME", help="The column of a new secondary index.")
@changing
def create(
    invocation: Invocation, *, address: str, partitions: Sequence[str], column: str | None
) -> None:
    """
    Build partitions of the metadata table.

    Without a PARTITION it builds those that the options of Hudi ask for. Writers may write
    meanwhile. A build that ended early is ended.
    """
    with invocation.open_table(address) as opened:
        wanted = opened.metadata.to_create(*partitions, column=column)
        built = None
        if wanted and not invocation.dry_run:
            invocation.confirm(f"build {', '.join(wanted)}?")
            built = opened.metadata.create(*partitions, column=column)
    _print_build(invocation, "create", wanted, built)


@metadata.command()
@click.argument("address", metavar="TABLE")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1)
@changing
def rebuild(invocation: Invocation, *, address: str, partitions: Sequence[str]) -> None:
    """
    Build partitions again, from the files.

    Without a PARTITION, or with files, it builds all of them. Writers may write meanwhile, and
    readers list folders until it is done.
    """
    with invocation.open_table(address) as opened:
        wanted = opened.metadata.to_rebuild(*partitions)
        built = None
        if wanted and not invocation.dry_run:
            invocation.confirm(f"build {', '.join(wanted)} again?")
            built = opened.metadata.rebuild(*partitions)
    _print_build(invocation, "rebuild", wanted, built)


@metadata.command()
@click.argument("address", metavar="TABLE")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1)
@changing
def drop(invocation: Invocation, *, address: str, partitions: Sequence[str]) -> None:
    """
    Drop partitions of the metadata table.

    Without a PARTITION it drops the whole metadata table, for all engines. Partitions that need a
    dropped one are dropped with it.
    """
    with invocation.open_table(address) as opened:
        gone = opened.metadata.to_drop(*partitions)
        if gone and not invocation.dry_run:
            invocation.confirm(f"drop {', '.join(gone)}?")
            gone = opened.metadata.drop(*partitions)
    _print_drop(invocation, gone)


@metadata.command()
@click.argument("address", metavar="TABLE")
@reading
def status(invocation: Invocation, *, address: str) -> None:
    """
    Show the partitions, their size and the lag.

    It names what waits, and the command that ends it. It opens the newest files without their
    records; 'hoodoo metadata verify' reads those.
    """
    with invocation.open_table(address) as opened:
        found = opened.metadata.status()
    printer = invocation.printer
    if not printer.for_people:
        printer.document(found.as_document())
        return
    if not found.partitions:
        printer.line("the table has no metadata table")
        return
    rows = [
        (
            one.name,
            one.state,
            str(one.file_groups),
            str(one.base_files),
            str(one.log_files),
            size_text(one.bytes),
        )
        for one in found.partitions
    ]
    printer.grid(("partition", "state", "file groups", "base files", "log files", "size"), rows)
    since = f"since the compaction {found.compacted}" if found.compacted else "and no compaction"
    printer.line(f"{counted(found.delta_commits, 'delta commit')} {since}")
    for text in found.remarks:
        printer.line(text, style="bold red")
    if found.trusted:
        printer.line(
            "readers use it; 'hoodoo metadata verify TABLE' reads all of it", style="green"
        )


@metadata.command()
@click.argument("address", metavar="TABLE")
@reading
def verify(invocation: Invocation, *, address: str) -> None:
    """
    Compare it with the files and the keys.

    It names each difference. 'hoodoo table verify' does this, too.
    """
    with invocation.open_table(address) as opened:
        found = opened.metadata.verify()
    printer = invocation.printer
    if not printer.for_people:
        problems = [one.as_document() for one in found]
        printer.document({"ok": not found, "problems": problems})
    elif found:
        rows = [(one.kind, one.path, one.message) for one in found]
        printer.grid(("problem", "path", "text"), rows)
        printer.line(counted(len(found), "problem"), style="bold red")
    else:
        printer.line("verified: no difference", style="green")
    if found:
        raise click.exceptions.Exit(PROBLEMS_FOUND)


@metadata.command()
@click.argument("address", metavar="TABLE")
@changing
def repair(invocation: Invocation, *, address: str) -> None:
    """
    Build the damaged partitions again.

    Those are the partitions in which 'verify' finds a difference. Writers may write meanwhile.
    """
    with invocation.open_table(address) as opened:
        wrong = opened.metadata.to_repair()
        if wrong and not invocation.dry_run:
            invocation.confirm(f"build {', '.join(wrong)} again?")
            opened.metadata.rebuild(*wrong)
    text = "nothing to repair: the metadata table has no difference"
    if wrong:
        verb = "would build again" if invocation.dry_run else "built again"
        text = f"{verb}: {', '.join(wrong)}"
    invocation.printer.result({"action": "repair", "partitions": list(wrong)}, text)


@metadata.command("create-index")
@click.argument("address", metavar="TABLE")
@click.argument("name", metavar="NAME")
@click.option("--column", metavar="NAME", help="The column of a secondary index.")
@click.option(
    "--type",
    "index_type",
    type=click.Choice(INDEX_TYPES),
    default=INDEX_TYPES[0],
    show_default=True,
    help="The type of the index.",
)
@changing
def create_index(
    invocation: Invocation, *, address: str, name: str, column: str | None, index_type: str
) -> None:
    """Create an index, as in Hudi's SQL."""
    partition = index_partition(name, index_type)
    with invocation.open_table(address) as opened:
        wanted = opened.metadata.to_create(partition, column=column)
        built = None
        if wanted and not invocation.dry_run:
            invocation.confirm(f"build {', '.join(wanted)}?")
            built = opened.metadata.create_index(name, column, index_type=index_type)
    _print_build(invocation, "create-index", wanted, built)


@metadata.command("drop-index")
@click.argument("address", metavar="TABLE")
@click.argument("name", metavar="NAME")
@changing
def drop_index(invocation: Invocation, *, address: str, name: str) -> None:
    """Drop an index by its name."""
    with invocation.open_table(address) as opened:
        gone = opened.metadata.to_drop(opened.metadata.index_named(name))
        if not invocation.dry_run:
            invocation.confirm(f"drop {', '.join(gone)}?")
            gone = opened.metadata.drop_index(name)
    _print_drop(invocation, gone)


def _print_build(
    invocation: Invocation, action: str, wanted: Sequence[str], built: MetadataBuild | None
) -> None:
    records = {} if built is None else dict(sorted(built.records.items()))
    text = "nothing to build: all partitions are complete"
    if invocation.dry_run and wanted:
        text = f"would build {', '.join(wanted)}"
    elif built is not None:
        each = (f"{name} ({counted(count, 'record')})" for name, count in records.items())
        text = f"built {', '.join(each)}"
    invocation.printer.result(
        {"action": action, "partitions": list(wanted), "records": records}, text
    )


def _print_drop(invocation: Invocation, gone: Sequence[str]) -> None:
    text = "the table has no metadata table"
    if gone:
        text = f"{'would drop' if invocation.dry_run else 'dropped'} {', '.join(gone)}"
    invocation.printer.result({"action": "drop", "partitions": list(gone)}, text)
