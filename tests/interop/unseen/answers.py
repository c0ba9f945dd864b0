"""
Compare every answer of ours about a table with Java's; return the differences.

The rules are those of the golden tables (`tests/unit/timeline/test_golden_tables.py`), which
this module imports. If Java refuses an answer, we may too.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

import hoodoo
from filegroups.table import TableReader
from tests.interop.values import META, comparable, encoded, same, without_meta
from tests.unit.timeline import test_golden_tables as golden
from timeline.errors import HoodooError

#: The error that is an answer: the files of that time were cleaned, or may still change.
RULED_OUT = "HoodieTimeTravelException"

Rows = list[dict[str, Any]]


def differences(path: Path, account: dict[str, Any]) -> list[str]:
    """One line for each answer that differs; empty when all are Java's."""
    try:
        with hoodoo.open_table(path) as opened:
            return [*_structure(opened, account), *_rows(opened, account)]
    except HoodooError as error:
        return [f"open: {error}"]


def _structure(table: TableReader, account: dict[str, Any]) -> Iterator[str]:
    entries = _asked(
        lambda: [
            {
                "requested": entry.requested_time,
                "completion": entry.completion_time,
                "action": entry.action,
                "state": entry.state.upper(),
                **({"archived": True} if entry.archived else {}),
            }
            for entry in table.timeline
        ]
    )
    theirs = golden.in_order(_timeline(account))
    mine = entries if isinstance(entries, str) else golden.in_order(entries)
    if mine != theirs:
        yield f"timeline: {_apart(mine, theirs)}"
    if isinstance(account["slices"], list):
        mine = _asked(lambda: golden.slices_of(table))
        theirs = golden.committed(account)
        if mine != theirs:
            yield f"slices: {_apart(mine, theirs)}"


def _rows(table: TableReader, account: dict[str, Any]) -> Iterator[str]:
    partitioned_by = [
        name.partition(":")[0]
        for name in account["properties"].get("hoodie.table.partition.fields", "").split(",")
    ]

    def differences_in(what: str, theirs: Any, ask: Callable[[], pa.Table]) -> Iterator[str]:
        mine = _asked(lambda: encoded(ask()))
        if isinstance(theirs, dict):
            # Java fails where it should answer, or refuses a table that we must refuse, too.
            if RULED_OUT in json.dumps(theirs) and not isinstance(mine, str):
                yield f"{what}: java refuses, we return {len(mine)} rows: {theirs}"
            return
        if isinstance(mine, list) and theirs and META[0] not in theirs[0]:
            mine = without_meta(mine)
        if isinstance(mine, str) and "no_schema" in mine and not theirs:
            return  # nothing was ever written: we return no rows, Java returns nothing
        expected = comparable(theirs)
        if isinstance(mine, list):
            expected = comparable(from_folders(expected, mine, partitioned_by))
        if mine != expected or not same(mine, expected):
            yield f"{what}: {_apart(mine, expected)}"

    meta = {"with_hoodie_columns": True}
    yield from differences_in(
        "snapshot", account["snapshot"], lambda: table.current_state().to_arrow(**meta)
    )
    read_optimized = account["read_optimized"] or account["snapshot"]
    if account["read_optimized"] is not None:
        read_optimized = account["read_optimized"]
    yield from differences_in(
        "read_optimized",
        read_optimized,
        lambda: table.current_state().to_arrow(query_type="read_optimized", **meta),
    )
    for time, theirs in account["as_of"].items():
        yield from differences_in(
            f"as_of {time}", theirs, lambda time=time: table.as_of(time).to_arrow(**meta)
        )
    for asked in account["incremental"]:
        start, end = asked["start"], asked["end"]
        since = start
        if account["hudi"] == "1.0.2" and start != "0":
            since = str(int(start) - 1)  # 1.0.2 counts the start in
        yield from differences_in(
            f"incremental {start}..{end}",
            asked["rows"],
            lambda since=since, end=end: table.changes(since, end, **meta).read_all(),
        )


def from_folders(theirs: Rows, mine: Rows, columns: list[str]) -> Rows:
    """
    Java's rows with the partition values of the files.

    Spark takes these values out of the name of the folder: escaped in incremental reads, a
    null for an empty text and for the number of a timestamp, the text of a time for its number.
    The files have the written values, and so have our rows. Only such texts are changed.
    """

    def key(row: dict[str, Any]) -> str:
        known = (row.get(name) for name in (*META[:1], *META[2:], "id"))
        return json.dumps([row.get("ts") if "ts" not in columns else None, *known])

    written = {key(row): row for row in mine}
    found = []
    for row in theirs:
        twin = written.get(key(row), row)
        path = str(row.get("_hoodie_partition_path", ""))
        parts = path.split("/")
        texts = {part.partition("=")[2] if "=" in part else part for part in parts}
        texts |= {unquote(text) for text in texts} | {"-".join(parts)}
        for tail in ("/".join(parts[number:]) for number in range(len(parts))):
            texts |= {tail, tail.partition("=")[2]}
        fixed = dict(row)
        for name in columns:
            shown, kept = row.get(name), twin.get(name)
            odd = shown is None and kept == "" and "__HIVE_DEFAULT_PARTITION__" in texts
            odd = odd or (shown is None and _micros(kept) in texts)
            if odd or (shown is not None and (str(shown) in texts or str(shown) == str(kept))):
                fixed[name] = kept
        found.append(fixed)
    return found


def _micros(value: Any) -> str | None:
    """The number that names the folder of a timestamp."""
    try:
        moment = dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC)
    except (TypeError, ValueError):
        return None
    return str((moment - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1))


def _timeline(account: dict[str, Any]) -> Rows:
    """As `golden.timeline_of`, of an account."""
    entries: Rows = account["timeline"]
    if account["table_version"] > 6:
        return entries
    return [
        # 1.2.0 returns a time of pending ones, too
        {**entry, "completion": entry["requested"] if entry["state"] == "COMPLETED" else None}
        if not entry.get("archived")
        else entry
        for entry in entries
        if not entry.get("archived") or entry["state"] == "COMPLETED"
    ]


def _asked(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except HoodooError as error:
        return f"{type(error).__name__} {getattr(error, 'kind', '')}: {error}"


def _apart(mine: Any, theirs: Any) -> str:
    """
    The entries that only one of two lists has, short; of rows with one key the cells that differ.
    """
    if isinstance(mine, str):
        return f"we fail where java returns {len(theirs)}: {mine}"
    only_ours, only_java = list(mine), []
    for one in theirs:
        twin = next((each for each in only_ours if same([each], [one])), None)
        if twin is None:
            only_java.append(one)
        else:
            only_ours.remove(twin)
    cells: dict[str, list[str]] = {}
    for one in list(only_java):
        twin = next((each for each in only_ours if _name(each) == _name(one) is not None), None)
        if twin is None:
            continue
        only_ours.remove(twin)
        only_java.remove(one)
        for column in sorted({*one, *twin}):
            ours, java = twin.get(column, "lacking"), one.get(column, "lacking")
            if json.dumps(ours) != json.dumps(java):
                cells.setdefault(column, []).append(f"{_name(one)}: {ours!r} for {java!r}")
    parts = [f"{len(mine)} ours, {len(theirs)} java"]
    parts += [f"{column} {'; '.join(shown[:3])} ({len(shown)})" for column, shown in cells.items()]
    parts += [f"ours only {only_ours[:3]}"] if only_ours else []
    parts += [f"java only {only_java[:3]}"] if only_java else []
    return "\n      ".join(parts)


def _name(row: dict[str, Any]) -> Any:
    return row.get("_hoodie_record_key") or row.get("id") or row.get("file_id")
