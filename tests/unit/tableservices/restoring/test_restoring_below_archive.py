"""
Archived instants stay visible if savepoints keep all that is left of the timeline (fmt 6.3).

A restore to a savepoint leaves no other write. Neither does an archive of all before the first one,
nor a rollback of the only write after it. Then the timeline does not show where it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.files.log_files import VisibleInstants
from hoodoo.configuration import Layers
from hoodoo.table import Table
from hoodoo.verify.verify import verify_at
from tableservices.orphan_files import HORIZON_MS, find_orphans
from timeline.errors import InvalidInputError
from timeline.model.file_names import data_file_time

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
PROPERTIES = {
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.compact.inline.max.delta.commits": "1",
}
SCHEMA = pa.schema([("k", pa.string()), ("p", pa.string()), ("v", pa.int64())])
Rows = list[tuple[str, int]]


def new(path: Path, kind: str, **more: str) -> Table:
    properties = {**PROPERTIES, **{f"hoodie.{key}": value for key, value in more.items()}}
    return hoodoo.create_table(
        path,
        schema=SCHEMA,
        record_key="k",
        partition_by="p",
        table_type=kind,
        properties=properties,
    )


def write(table: Table, value: int, keys: str = "xy") -> str:
    """Each key has a partition of its own, so each has a file group of its own."""
    rows = [{"k": key, "p": f"p{key}", "v": value} for key in keys]
    return table.upsert(pa.Table.from_pylist(rows, SCHEMA)).requested_time


def rows(table: Table) -> Rows:
    found = table.to_arrow(columns=["k", "v"]).to_pylist()
    return sorted((row["k"], row["v"]) for row in found)


def restored(table: Table) -> tuple[str, Rows]:
    """Restored to a savepoint above an archived write."""
    write(table, 1)
    saved = write(table, 2, "x")
    table.savepoint(saved)
    wanted = rows(table)
    for value in (10, 11, 12):
        write(table, value, "xz")
        table.services.archive()
    assert table.restore(saved) is not None
    return saved, wanted


def archived_up_to_the_savepoints(table: Table) -> tuple[str, Rows]:
    """All before the first savepoint is archived, and savepoints keep the rest."""
    write(table, 1)
    write(table, 2, "x")
    saved = [write(table, value, "x") for value in (3, 4)]
    for one in saved:
        table.savepoint(one)
    assert table.services.archive() is not None
    return saved[1], rows(table)


def rolled_back(table: Table) -> tuple[str, Rows]:
    """The only writes that no savepoint keeps are rolled back."""
    saved, wanted = archived_up_to_the_savepoints(table)
    last = write(table, 9, "xyz")
    table.rollback(last)
    return saved, wanted


WAYS: list[Callable[[Table], tuple[str, Rows]]] = [
    restored,
    archived_up_to_the_savepoints,
    rolled_back,
]


def expect(path: Path, table: Table, wanted: Rows) -> None:
    """From the same handle, from a fresh one, and without a finding."""
    assert rows(table) == wanted
    with hoodoo.open_table(path, properties=PROPERTIES) as fresh:
        assert rows(fresh) == wanted
    assert verify_at(path, Layers()).problems == ()


@pytest.mark.spec("RST-1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_archived_rows_stay_visible_where_savepoints_keep_every_active_write(
    tmp_path: Path, way: Callable[[Table], tuple[str, Rows]], kind: str
) -> None:
    path = tmp_path / "t"
    with new(path, kind) as table:
        saved, wanted = way(table)
        assert table.context.active().first_write_time is None
        expect(path, table, wanted)
        if kind == "MERGE_ON_READ":
            table.services.compact()
        else:
            table.services.cluster(["k"])
        expect(path, table, wanted)
        table.services.clean()
        write(table, 20, "z")
        expect(path, table, [*wanted, ("z", 20)])
        table.services.clean()
        table.services.archive()
        expect(path, table, [*wanted, ("z", 20)])
        assert table.restore(saved) is not None
        expect(path, table, wanted)
        table.delete_savepoint(saved)
        write(table, 21, "y")
        expect(path, table, [wanted[0], ("y", 21)])


@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_returned_where_savepoints_keep_every_active_write(
    tmp_path: Path, kind: str
) -> None:
    with new(tmp_path / "t", kind, **{"table.cdc.enabled": "true"}) as table:
        _, wanted = restored(table)
        found = table.changes("earliest").read_all().to_pylist()
        assert sorted((row["k"], row["v"]) for row in found) == wanted
        last = {}
        for one in table.changes("earliest", images=True).read_all().to_pylist():
            last[one["after"]["k"]] = one["after"]["v"]
        assert sorted(last.items()) == wanted


@pytest.mark.parametrize("way", WAYS)
def test_blocks_of_archived_instants_count_up_to_the_time_that_is_read(
    tmp_path: Path, way: Callable[[Table], tuple[str, Rows]]
) -> None:
    with new(tmp_path / "t", "MERGE_ON_READ") as table:
        way(table)
        context = table.context
        archived = min(context.archived_timeline.times().completions)
        visible = VisibleInstants.of(context.snapshot())
        assert archived in visible
        assert "20990101000000000" not in visible
        before = VisibleInstants.of(context.snapshot(as_of=archived))
        assert archived in before
        assert (context.active().archived_below or "") not in before


@pytest.mark.parametrize("kind", KINDS)
def test_a_gap_between_savepoints_stays_visible_and_is_not_read(tmp_path: Path, kind: str) -> None:
    """
    Beyond a savepoint the archive skips saved writes: only the archived timeline shows the gap.
    """
    path = tmp_path / "t"
    with new(path, kind, **{"archive.beyond.savepoint": "true"}) as table:
        write(table, 1)
        first = write(table, 2, "x")
        hole = write(table, 3, "z")
        saved = [first, *(write(table, value, "x") for value in (4, 5))]
        for one in saved:
            table.savepoint(one)
        assert table.services.archive() is not None
        context = table.context
        assert hole in context.archived_timeline.times().completions
        assert context.active().first_write_time is None
        wanted = [("x", 5), ("y", 1), ("z", 3)]
        expect(path, table, wanted)
        assert context.snapshot().is_committed(hole)
        with pytest.raises(InvalidInputError) as caught:
            table.restore(first)
        assert caught.value.kind == "archived_since"
        table.delete_savepoint(first)  # the saved write is archived first
        assert first in context.archived_timeline.times().completions
        expect(path, table, wanted)
        write(table, 6, "y")
        expect(path, table, [("x", 5), ("y", 6), ("z", 3)])


def test_orphan_files_are_distinguished_from_archived_ones(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with new(path, "COPY_ON_WRITE") as table:
        saved, _ = restored(table)
        above = f"{int(saved) + 1}"
        old = next((path / "py").glob("*.parquet"))
        time = data_file_time(old.name)
        assert time is not None
        stray = old.with_name(old.name.replace(time, above))
        stray.write_bytes(old.read_bytes())
        wanted = rows(table)
        expected = [("x", 2), ("y", 1)]
        assert wanted == expected
        reported = [one.path for one in verify_at(path, Layers()).problems]
        assert reported == [f"py/{stray.name}"]
        storage: Any = table.context.ports.storage
        clock = storage.now_ms
        storage.now_ms = lambda: clock() + HORIZON_MS + 1
        try:
            found = find_orphans(table.context)
        finally:
            del storage.now_ms
        assert [one.path for one in found] == [f"py/{stray.name}"]


@pytest.mark.spec("PUB-10")
@pytest.mark.parametrize("kind", KINDS)
def test_a_delete_by_filter_is_validated_where_the_timeline_begins_with_it(
    tmp_path: Path, kind: str
) -> None:
    with new(tmp_path / "t", kind) as table:
        table.delete([("v", "=", 1)])  # of an empty table
        restored(table)
        assert table.delete([("v", "=", 1)]).rows_deleted == 1
        assert rows(table) == [("x", 2)]


@pytest.mark.spec("SAV-1")
@pytest.mark.parametrize("kind", KINDS)
def test_a_savepoint_is_made_right_after_a_rollback_and_after_a_restore(
    tmp_path: Path, kind: str
) -> None:
    with new(tmp_path / "t", kind) as table:
        first, second = write(table, 1), write(table, 2)
        table.rollback(second)
        table.savepoint(first)
        write(table, 3)
        table.restore(first)
        table.delete_savepoint(first)
        write(table, 4)
        table.restore(first)
        kept = table.savepoint(first)
        assert len(kept.files) == 2
        assert rows(table) == [("x", 1), ("y", 1)]
