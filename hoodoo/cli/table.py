"""``hoodoo table``: create, show, verify, tidy, upgrade and drop a table."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from filegroups.schema.schema import drop_meta, hudi_type_name
from hoodoo.catalog import create_table, drop_table, preview_create
from hoodoo.cli.invocation import PROBLEMS_FOUND, CommandGroup, Invocation, changing, reading
from hoodoo.cli.printing import count_text, size_text
from hoodoo.input_files import read_rows
from hoodoo.inspect.instants import time_text
from hoodoo.table import Table
from hoodoo.timestamp_repair import repair_timestamps
from hoodoo.verify.verify import Verification, verify_at
from hoodoo.write_requests import (
    column_changes,
    file_rules_of,
    preview_columns,
    refuse_column_changes,
)
from hoodoo.writer import register_writer
from tableservices.orphan_files import HORIZON_MS, find_orphans, remove_orphans
from tableservices.upgrade import NEWEST_VERSION, plan_upgrade
from tableservices.upgrade import upgrade as upgrade_table
from timeline.entries import timeline_entries
from timeline.errors import InvalidInputError, TableNotFoundError, UnsupportedTableError, counted
from timeline.rollback.end_bad_slot import end_slot, find_bad_slot
from timeline.writer_registry import refuse_with_writers, reset_copied_table

_HOUR_MS = 3_600_000
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


@click.group(cls=CommandGroup)
def table() -> None:
    """Create, show, verify, repair or drop a table."""


@table.command()
@click.argument("address", metavar="TABLE")
@click.option("--schema", metavar="'NAME TYPE, ..'", help="Types: " + " ".join(_TYPES))
@click.option(
    "--schema-from", type=click.Path(path_type=Path), help="A file with the same columns."
)
@click.option("--key", metavar="A,B,..", help="Record key columns.")
@click.option("--partition-by", metavar="A,B,..", help="Partition columns.")
@click.option("--ordering", metavar="A,..", help="Ordering columns: the greatest value wins.")
@click.option("--name", help="Default: the last part of the path.")
@click.option(
    "--table-type",
    type=click.Choice(["COPY_ON_WRITE", "MERGE_ON_READ"]),
    help="Default: COPY_ON_WRITE.",
)
@changing
def create(
    invocation: Invocation,
    *,
    address: str,
    schema: str | None,
    schema_from: Path | None,
    key: str | None,
    partition_by: str | None,
    ordering: str | None,
    name: str | None,
    table_type: str | None,
) -> None:
    """
    Create an empty table.

    Without a schema the first write gives the columns. The command asks no question, so --yes
    has no effect.
    """
    columns = _columns(schema) if schema else None
    if schema_from is not None:
        columns = drop_meta(read_rows(schema_from).schema)
    given: dict[str, Any] = {
        "schema": columns,
        "record_key": key or "",
        "partition_by": partition_by or "",
        "ordering": ordering or "",
        "name": name,
        "table_type": table_type,
        "properties": invocation.layers,
    }
    if invocation.dry_run:
        preview_create(address, **given)
        _refuse_existing(invocation, address)
        invocation.printer.result(
            {"creates_table": address, "columns": _names(columns)},
            f"would create the table {address} with {counted(len(_names(columns)), 'column')}",
        )
        return
    with create_table(address, **given) as made:
        _show(invocation, made)


def _refuse_existing(invocation: Invocation, address: str) -> None:
    try:
        opened = invocation.open_table(address)
    except TableNotFoundError:
        return
    opened.close()
    raise InvalidInputError(
        f"a table exists already; open it or choose another path: {address}", kind="table_exists"
    )


def _names(columns: pa.Schema | None) -> list[str]:
    return [] if columns is None else list(columns.names)


def _columns(text: str) -> pa.Schema:
    fields = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s+([a-z]+)\s*", part)
        kind = _TYPES.get(match[2]) if match else None
        if match is None or kind is None:
            raise InvalidInputError(
                f"a schema is 'name type, ..' with the types {', '.join(_TYPES)}: {part.strip()!r}",
                kind="schema",
            )
        fields.append(pa.field(match[1], kind))
    return pa.schema(fields)


@table.command()
@click.argument("address", metavar="TABLE")
@reading
def show(invocation: Invocation, *, address: str) -> None:
    """Show keys, partitions, columns and size."""
    with invocation.open_table(address) as opened:
        _show(invocation, opened)


def _show(invocation: Invocation, opened: Table) -> None:
    document = _facts(opened)
    printer = invocation.printer
    if not printer.for_people:
        printer.document(document)
        return
    last = document["last_completion_time"]
    shown = {key: _value_text(value) for key, value in document.items() if key != "columns"} | {
        "bytes": size_text(document["bytes"]),
        "last_completion_time": f"{time_text(last)[:19]} {opened.context.zone.name}"
        if last
        else "",
    }
    labels = {"bytes": "size", "last_completion_time": "last commit", "base_path": "path"}
    printer.facts({labels.get(key, key.replace("_", " ")): each for key, each in shown.items()})
    if document["columns"]:
        printer.line()
    printer.grid(
        ("column", "type"),
        [(column["name"], column["type"]) for column in document["columns"]],
        empty="no columns yet; the first write gives them",
    )


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _type_words(column: pa.Field) -> str:
    """Return Arrow's type, and Hudi's in brackets where it says more."""
    named = hudi_type_name(column)
    return str(column.type) if named is None else f"{column.type} ({named})"


def _facts(opened: Table) -> dict[str, Any]:
    config = opened.config
    try:
        columns = [{"name": each.name, "type": _type_words(each)} for each in opened.schema]
    except UnsupportedTableError as error:
        if error.kind != "no_schema":
            raise
        columns = []
    slices = opened.file_slices()
    instants = timeline_entries(opened.context, archived=False)
    completed = [entry for entry in instants if entry.completion_time is not None]
    return {
        "name": config.name,
        "version": config.table_version,
        "type": config.table_type.value,
        "base_path": opened.context.ports.storage.base_uri,
        "record_key": list(config.record_key_fields),
        "partition_by": list(config.partition_fields),
        "ordering": list(config.ordering_fields),
        "merge_mode": config.merge_mode.value,
        "hive_style_partitioning": config.hive_style_partitioning,
        "metadata_table": config.metadata_table_on,
        "partitions": len({one.file_group.partition_path for one in slices}),
        "file_groups": len(slices),
        "bytes": sum(one.size_bytes for one in slices),
        "instants": len(instants),
        "last_completion_time": max((e.completion_time or "" for e in completed), default=None),
        "columns": columns,
    }


@table.command()
@click.argument("address", metavar="TABLE")
@click.argument(
    "journals", nargs=-1, metavar="[JOURNAL]...", type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--history", is_flag=True, help="Check the archived timeline, and search for lost updates."
)
@click.option("--all-columns", is_flag=True, help="Read all columns, not the keys only.")
@click.option(
    "--expect-head",
    metavar="NUMBER:DIGEST",
    help="The head of the hash chain that an earlier verify printed; the chain must contain it.",
)
@reading
def verify(
    invocation: Invocation,
    *,
    address: str,
    journals: tuple[Path, ...],
    history: bool,
    all_columns: bool,
    expect_head: str | None,
) -> None:
    """
    Check a table from properties to keys.

    Exit code 5 if there are problems. --history also searches for lost updates, duplicates,
    dirty and non-repeatable reads, write skew and cycles: in the timeline, slots and rows, and
    in JOURNALs of clients.
    """
    printer = invocation.printer
    if journals and not history:
        raise click.UsageError("a JOURNAL needs --history")
    found = verify_at(
        address,
        invocation.layers,
        history=history,
        journals=journals,
        all_columns=all_columns,
        expect_head=expect_head,
        progress=printer.progress,
    )
    _print_findings(invocation, found)
    if not found.ok:
        raise click.exceptions.Exit(PROBLEMS_FOUND)


def _print_findings(invocation: Invocation, found: Verification) -> None:
    printer = invocation.printer
    if not printer.for_people:
        printer.document(found.as_document())
        return
    for name, findings in (("problem", found.problems), ("note", found.notes)):
        if findings:
            printer.grid((name, "path", "text"), [(f.kind, f.path, f.message) for f in findings])
    if found.evidence is not None:
        printer.line(found.evidence.text)
    if found.ok:
        printer.line(f"verified: {found.summary}", style="green")
    else:
        printer.line(
            f"{counted(len(found.problems), 'problem')}; {found.summary}", style="bold red"
        )


@table.command()
@click.argument("address", metavar="TABLE")
@changing
def upgrade(invocation: Invocation, *, address: str) -> None:
    """
    Upgrade a table to the newest table version.

    Stop all writers first; no instant may be pending. Log files of version 6 are merged into
    base files. Its metadata table is dropped; that of version 8 is upgraded with the table.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        planned = plan_upgrade(context)
        if planned is not None and not invocation.dry_run:
            invocation.confirm(
                f"upgrade from version {planned.from_version} to {NEWEST_VERSION}, which older "
                "releases of Hudi cannot open?"
            )
            rules = file_rules_of(opened.settings)
            planned = upgrade_table(context, rules)
        config = opened.config
    text = f"{config.name} has the newest version {NEWEST_VERSION} already"
    if planned is not None:
        text = (
            f"{'would upgrade' if invocation.dry_run else 'upgraded'} {config.name} from version "
            f"{planned.from_version} to {NEWEST_VERSION}; {len(planned.changes)} properties "
            f"change, {planned.file_groups_merged} file groups merged"
        )
        if planned.drops_metadata_table:
            text += ", the metadata table dropped"
    invocation.printer.result(
        {
            "name": config.name,
            "from_version": planned.from_version if planned else config.table_version,
            "version": NEWEST_VERSION,
            "changes": dict(planned.changes) if planned else {},
            "file_groups_merged": planned.file_groups_merged if planned else 0,
            "drops_metadata_table": planned is not None and planned.drops_metadata_table,
            "upgraded": planned is not None and not invocation.dry_run,
        },
        text,
    )


@table.command()
@click.argument("address", metavar="TABLE")
@click.option("--rename", multiple=True, metavar="NAME=NEW", help="A column and its new name.")
@click.option("--drop", multiple=True, metavar="NAME", help="A column to remove.")
@click.option(
    "--type", "types", multiple=True, metavar="NAME=TYPE", help="A wider type, or string."
)
@click.option("--add", multiple=True, metavar="NAME=TYPE", help="A new column.")
@click.option(
    "--move", multiple=True, metavar="NAME=AFTER", help="A column to move behind another."
)
@changing
def alter(
    invocation: Invocation,
    *,
    address: str,
    rename: tuple[str, ...],
    drop: tuple[str, ...],
    types: tuple[str, ...],
    add: tuple[str, ...],
    move: tuple[str, ...],
) -> None:
    """
    Rename, drop, add and move columns.

    No row is rewritten. The first change needs hoodie.schema.on.read.enable=true, as do all later
    readers of Java Hudi. A dotted name is a field inside a struct. Options may be repeated; all
    changes are one commit.
    """
    changes: dict[str, Any] = {
        "rename": _pairs(rename),
        "drop": drop,
        "types": _typed(types),
        "add": _typed(add),
        "move": _pairs(move),
    }
    with invocation.open_table(address) as opened:
        wanted = column_changes(**changes)
        refuse_column_changes(opened.context, opened.settings, wanted)
        planned = preview_columns(opened.context, opened.settings, wanted)
        lines = [change.text for change in planned]
        done = None
        if not invocation.dry_run:
            invocation.confirm(f"change columns ({'; '.join(lines) or 'their order'})?")
            done = opened.alter_schema(**changes)
        columns = opened.schema.names
        name = opened.config.name
    invocation.printer.result(
        {
            "name": name,
            "columns": list(columns),
            "schema_changes": lines,
            "instant": None if done is None else done.requested_time,
        },
        "\n".join(["would change columns" if done is None else f"changed columns: {done}", *lines]),
    )


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not (name and separator):
            raise InvalidInputError(
                f"a change is 'name=value', for example price=amount: {each!r}", kind="schema"
            )
        found[name] = value
    return found


def _typed(given: tuple[str, ...]) -> dict[str, pa.DataType]:
    return {name: _columns(f"x {kind}").field(0).type for name, kind in _pairs(given).items()}


@table.command("repair-keys")
@click.argument("address", metavar="TABLE")
@changing
def repair_keys(invocation: Invocation, *, address: str) -> None:
    """
    Move rows to the keys of their columns.

    'hoodoo table verify --all-columns' finds rows with a wrong record key or partition. Of
    several rows of one record the greatest ordering value wins, else the newest row. Writers may
    write meanwhile, unless the form of complex keys changes.
    """
    with invocation.open_table(address) as opened:
        found = opened.repair_keys(dry_run=True)
        if found.rows and not invocation.dry_run:
            invocation.confirm(f"rewrite or delete {counted(found.rows, 'row')} with a wrong key?")
            found = opened.repair_keys()
        name = opened.config.name
    text = f"rows with a wrong key: {found.rows}"
    if found.writes:
        text += f"; {found.rewritten} rewritten, {found.deleted} deleted, in "
        text += counted(found.writes, "write")
    repaired = not invocation.dry_run
    invocation.printer.result({"name": name, **asdict(found), "repaired": repaired}, text)


@table.command("repair-moments")
@click.argument("address", metavar="TABLE")
@changing
def repair_moments_command(invocation: Invocation, *, address: str) -> None:
    """
    Multiply wrongly copied early times by 1000.

    An earlier release of hoodoo divided times by 1000 when it copied rows from files of writers
    before Hudi 1.1. 'hoodoo table verify --all-columns' finds such times before April 1970.
    Check them first: the command also changes times that are truly so early.
    """
    with invocation.open_table(address) as opened:
        found = repair_timestamps(opened, dry_run=True)
        if found.rows and not invocation.dry_run:
            invocation.confirm(f"multiply early times of {counted(found.rows, 'row')} by 1000?")
            found = repair_timestamps(opened)
        name = opened.config.name
    text = f"rows with early times: {found.rows}"
    if found.example:
        text += f", as {found.example}"
    if found.writes:
        text += f"; multiplied by 1000 in {counted(found.writes, 'write')}"
    repaired = not invocation.dry_run
    invocation.printer.result({"name": name, **asdict(found), "repaired": repaired}, text)


@table.command()
@click.argument("address", metavar="TABLE")
@click.option("--remove", is_flag=True, help="Delete the files. Default: only show them.")
@click.option(
    "--older-than-hours",
    type=click.FloatRange(min=0),
    default=HORIZON_MS / _HOUR_MS,
    show_default=True,
    help="Ignore younger files.",
)
@changing
def orphans(invocation: Invocation, *, address: str, remove: bool, older_than_hours: float) -> None:
    """Show or delete unreferenced data files."""
    horizon_ms = round(older_than_hours * _HOUR_MS)
    with invocation.open_table(address) as opened:
        context = opened.context
        found = find_orphans(context, horizon_ms=horizon_ms)
        removes = remove and bool(found) and not invocation.dry_run
        if removes:
            size = sum(one.size_bytes for one in found)
            invocation.confirm(f"delete {counted(len(found), 'file')} ({size_text(size)})?")
            register_writer(opened.context, opened.properties, opened.settings)
            found = remove_orphans(context, horizon_ms=horizon_ms)
    printer = invocation.printer
    if printer.for_people:
        printer.grid(
            ("orphan", "size", "age", "reason"),
            [
                (one.path, size_text(one.size_bytes), f"{one.age_ms // _HOUR_MS} h", one.why)
                for one in found
            ],
            empty="no orphan",
        )
        if removes:
            printer.line(f"deleted {count_text(len(found), 'file')}")
        return
    printer.document({"orphans": [asdict(one) for one in found], "removed": removes})


@table.command()
@click.argument("address", metavar="TABLE")
@changing
def adopt(invocation: Invocation, *, address: str) -> None:
    """
    Make a copied table independent.

    The copy forgets the writers of the original. The original does not change.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        found = reset_copied_table(context, dry_run=True)
        if found and not invocation.dry_run:
            names = "; ".join(f"{one.text} on {one.address}" for one in found)
            invocation.confirm(f"forget the writers of the original in this copy: {names}?")
            found = reset_copied_table(context)
    writers = [{"writer_id": one.writer_id, "address": one.address} for one in found]
    done = "would forget" if invocation.dry_run else "forgot"
    invocation.printer.result(
        {"forgotten": writers, "adopted": not invocation.dry_run},
        f"{done} {count_text(len(found), 'writer')} of the original",
        *(f"  {one.text} on {one.address}" for one in found),
    )


@table.command("end-slot")
@click.argument("address", metavar="TABLE")
@click.argument("number", type=click.IntRange(min=1), required=False)
@changing
def end_slot_command(invocation: Invocation, *, address: str, number: int | None) -> None:
    """
    End a damaged commit slot.

    No writer can apply a slot that is forged, damaged or too large. Default: the first such slot.
    A slot whose time is far ahead of this clock needs its NUMBER: check this clock first. The
    decision of the slot is lost; restore the slot from a backup if you have one.
    """
    with invocation.open_table(address) as opened:
        context = opened.context
        found = find_bad_slot(context, number)
        if not invocation.dry_run:
            invocation.confirm(f"end slot {found.number} ({found.path})? {found.why}")
            found = end_slot(context, found.number)
    done = "would end" if invocation.dry_run else "ended"
    invocation.printer.result(
        {**asdict(found), "ended": not invocation.dry_run},
        f"{done} slot {found.number} ({found.path}): {found.why}",
    )


@table.command()
@click.argument("address", metavar="TABLE")
@changing
def drop(invocation: Invocation, *, address: str) -> None:
    """
    Delete a table with all its data.

    Stop all writers first.
    """
    with invocation.open_table(address) as opened:
        storage = opened.context.ports.storage
        root = str(storage.capabilities.local_root or storage.base_uri)
        refuse_with_writers(opened.context)
        document = {"dropped": root, "name": opened.config.name}
        if invocation.dry_run:
            invocation.printer.result(
                {**document, "dropped": None, "would_drop": root},
                f"would delete table {opened.config.name} at {root}",
            )
            return
        invocation.confirm(f"delete table {opened.config.name} with all its data at {root}?")
    drop_table(address, properties=invocation.layers)
    invocation.printer.result(document, f"deleted table {document['name']} at {root}")
