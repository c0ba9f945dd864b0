"""
Tables of the real Java Hudi are read as Java reads them, without a JVM.

`tests/interop/golden/PROVENANCE.md` describes the tables and the recorded answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.table import TableReader
from tests.interop import golden_tables
from tests.interop.values import comparable, encoded, same, without_meta
from timeline.errors import (
    InstantNotFoundError,
    UnsupportedTableError,
)
from timeline.model.file_names import LogFileName, parse_base_file_name, parse_log_file_name
from timeline.model.file_slice import FileSlice

#: TableReader -> why some of its rows are compared in another form.
HELD_TO_LESS = {
    "v8_timestamp_key": "spark shows the partition source column as text; we keep its number",
    "v9_no_meta_fields": "spark leaves the empty meta columns out",
}

#: Tables that the release of their writer cannot read: the answers of 1.2.0 count.
READ_BY_NEWER = ("v8_complex_key", "v8_deletes_ordering")

EVERY_TABLE = golden_tables.names()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], TableReader]]:
    tables: list[hoodoo.Table] = []

    def open_golden(name: str) -> TableReader:
        table = hoodoo.open_table(golden_tables.unpack(name, tmp_path))
        tables.append(table)
        return table

    yield open_golden
    for table in tables:
        table.close()


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_snapshot_is_java_s(opened: Callable[[str], TableReader], name: str) -> None:
    mine = rows_of(name, opened(name).current_state().to_arrow(with_hoodie_columns=True))
    assert_same(name, mine, answer_of(name, "snapshot"))


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_read_optimized_is_java_s(opened: Callable[[str], TableReader], name: str) -> None:
    pinned = opened(name).current_state()
    found = pinned.to_arrow(with_hoodie_columns=True, query_type="read_optimized")
    theirs = answer_of(name, "read_optimized")
    if theirs is None:  # on copy-on-write it is the snapshot
        theirs = answer_of(name, "snapshot")
    if not isinstance(theirs, dict):
        assert_same(name, rows_of(name, found), theirs)


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_time_travel_is_java_s(opened: Callable[[str], TableReader], name: str) -> None:
    table = opened(name)
    for time, theirs in golden_tables.account(name)["as_of"].items():
        if isinstance(theirs, dict):
            if "Cleaner cleaned" in theirs["error"]:
                with pytest.raises(InstantNotFoundError) as caught:
                    table.as_of(time)
                assert caught.value.kind == "time_travel_cleaned"
            else:
                assert name in READ_BY_NEWER, "Java fails, and there is no other answer"
            continue
        mine = rows_of(name, table.as_of(time).to_arrow(with_hoodie_columns=True))
        assert_same(name, mine, theirs)


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_incremental_ranges_are_java_s(opened: Callable[[str], TableReader], name: str) -> None:
    table = opened(name)
    for asked in golden_tables.account(name)["incremental"]:
        since = start_excluded(name, asked["start"])
        if isinstance(asked["rows"], dict):
            if name in READ_BY_NEWER:
                continue
            with pytest.raises(UnsupportedTableError) as caught:
                table.changes(since, asked["end"])
            assert caught.value.kind == "no_meta_columns"
            continue
        found = table.changes(since, asked["end"], with_hoodie_columns=True).read_all()
        assert_same(name, rows_of(name, found), asked["rows"])


@pytest.mark.parametrize("name", READ_BY_NEWER)
def test_tables_that_java_1_0_2_fails_to_read_are_read_consistently(
    opened: Callable[[str], TableReader], name: str
) -> None:
    table = opened(name)
    newest = max(one["requested"] for one in golden_tables.account(name)["timeline"])
    now = rows_of(name, table.current_state().to_arrow(with_hoodie_columns=True))
    assert rows_of(name, table.as_of(newest).to_arrow(with_hoodie_columns=True)) == now
    assert rows_of(name, table.changes("0", with_hoodie_columns=True).read_all()) == now


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_timeline_active_and_archived_is_java_s(
    opened: Callable[[str], TableReader], name: str
) -> None:
    mine = [
        {
            "requested": entry.requested_time,
            "completion": entry.completion_time,
            "action": entry.action,
            "state": entry.state.upper(),
            **({"archived": True} if entry.archived else {}),
        }
        for entry in opened(name).timeline
    ]
    assert in_order(mine) == in_order(timeline_of(name))


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_file_slices_are_java_s(opened: Callable[[str], TableReader], name: str) -> None:
    assert slices_of(opened(name)) == committed(golden_tables.account(name))


@pytest.mark.parametrize(
    ("name", "error", "kind"),
    [
        *((name, UnsupportedTableError, "table_version") for name in golden_tables.names("v6")),
    ],
)
def test_tables_that_hoodoo_cannot_maintain_are_read_but_not_written(
    tmp_path: Path, name: str, error: type[Exception], kind: str
) -> None:
    path = golden_tables.unpack(name, tmp_path)
    with hoodoo.open_table(path) as table:
        before = table.timeline
        with pytest.raises(error) as caught:
            table.upsert([{"id": "new"}])
        assert getattr(caught.value, "kind", None) == kind
        assert table.timeline == before


def rows_of(name: str, found: pa.Table) -> list[dict[str, Any]]:
    rows = encoded(found)
    if name == "v9_no_meta_fields":  # Spark leaves the empty meta columns out
        return without_meta(rows)
    if name == "v8_timestamp_key":
        return comparable({**row, "ts": str(row["ts"])} for row in rows)
    return rows


def assert_same(name: str, mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    expected = comparable(theirs)
    assert mine == expected, name
    assert same(mine, expected), name  # equal in type, too


def timeline_of(name: str) -> list[dict[str, Any]]:
    """
    Return Java's recorded timeline, with version 6 in our terms.

    Java uses the age of the completed file, which a copy does not keep; we use the requested time.
    Java's archive keeps each state; we keep the last one.
    """
    entries: list[dict[str, Any]] = golden_tables.account(name)["timeline"]
    if not name.startswith("v6"):
        return entries
    return [
        {**entry, "completion": entry["completion"] and entry["requested"]}
        if not entry.get("archived")
        else entry
        for entry in entries
        if not entry.get("archived") or entry["state"] == "COMPLETED"
    ]


def start_excluded(name: str, start: str) -> str:
    """Return the range start for 1.0.2, which includes it: one millisecond earlier."""
    if name.startswith("v8") and start != "0":
        return str(int(start) - 1)
    return start


def in_order(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: (entry["requested"], entry["action"]))


def slices_of(table: TableReader) -> list[dict[str, Any]]:
    """Return every slice of every file group in the recorded answers, newest slice first."""
    view = table.current_state().view
    everything = dataclasses.replace(view, include_replaced=True, _slices={})
    found = []
    for partition_path in everything.partition_paths():
        for group, slices in everything.slices(partition_path).items():
            newest = view.latest_slice(group)
            found.append(
                {
                    "partition": partition_path,
                    "file_id": group.file_id,
                    "replaced": newest is None,
                    "slices": [described(one) for one in reversed(slices)],
                    "latest_merged": None if newest is None else described(newest),
                }
            )
    return sorted(found, key=lambda row: (row["partition"], row["file_id"], row["replaced"]))


def committed(account: dict[str, Any]) -> list[dict[str, Any]]:
    """
    Return the recorded slices without uncommitted files and change logs.

    Java lists both and skips them in reads. Slices of a pending compaction stay, with or without
    its files.
    """
    states = [(one["requested"], one["state"] == "COMPLETED") for one in account["timeline"]]
    pending = {time for time, _ in states} - {time for time, done in states if done}
    compactions = {one["requested"] for one in account["timeline"] if one["action"] == "compaction"}

    def visible(name: str) -> bool:
        parsed = parse_base_file_name(name) or parse_log_file_name(name)
        if isinstance(parsed, LogFileName):
            by_name = account["table_version"] == 6  # the name contains the base instant
            return not parsed.is_cdc and (by_name or parsed.instant_time not in pending)
        return parsed is not None and parsed.requested_time not in pending

    def normalized(one: dict[str, Any]) -> dict[str, Any]:
        base = one["base_file"]
        return {
            "base_instant": one["base_instant"],
            "base_file": base if base and visible(base) else None,
            "log_files": [name for name in one["log_files"] if visible(name)],
        }

    found = []
    for group in account["slices"]:
        slices = [normalized(one) for one in group["slices"]]
        kept = [
            one
            for one in slices
            if one["base_file"] or one["log_files"] or one["base_instant"] in compactions & pending
        ]
        if kept:
            merged = group["latest_merged"]
            found.append({**group, "slices": kept, "latest_merged": merged and normalized(merged)})
    return found


def answer_of(name: str, query: str) -> Any:
    account = golden_tables.account(name)
    return account["read_by"]["1.2.0"][query] if name in READ_BY_NEWER else account[query]


def described(one: FileSlice) -> dict[str, Any]:
    return {
        "base_instant": one.base_instant_time,
        "base_file": None if one.base_file is None else one.base_file.name,
        "log_files": [log.name for log in one.log_files],
    }


@pytest.mark.parametrize(
    ("name", "crashed"),
    [
        ("v8_inflight_crashed", "20261121101039910"),
        ("v9_inflight_crashed", "20261121101124728"),
    ],
)
def test_a_crash_of_java_is_rolled_back(tmp_path: Path, name: str, crashed: str) -> None:
    path = golden_tables.unpack(name, tmp_path)
    assert len(data_files_of(path, crashed)) == 2, "a base file and a log file"
    with hoodoo.open_table(path) as table:
        (undone,) = table.services.rollback_dead_writers()
        assert (undone.target, undone.why) == (crashed, "rolled back")
        expected = [e for e in golden_tables.account(name)["timeline"] if e["completion"]]
        assert [e.requested_time for e in table.timeline if e.action != "rollback"] == [
            entry["requested"] for entry in expected
        ]
        assert table.timeline[-1].action == "rollback"
    assert data_files_of(path, crashed) == []
    # RB-10: the markers stay until they are old, because the writer may still create files.
    assert (path / ".hoodie" / ".temp" / crashed).exists()


def data_files_of(path: Path, requested_time: str) -> list[Path]:
    found = path.glob(f"region=*/*_{requested_time}.*")
    return sorted(file for file in found if not file.name.endswith(".crc"))
