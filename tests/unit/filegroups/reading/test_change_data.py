"""
Every change of a range with its images equals Java Hudi's, and the changes replay.

A replay of all changes must give the table. Each image before a change must be there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from filegroups.table import TableReader
from tests.interop import golden_tables
from timeline.errors import InstantNotFoundError, InvalidInputError

CLEANED = ("v9_cow_300_commits", "v9_cow_clean_archive", "v9_mor_clean_archive")


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


@pytest.mark.parametrize("name", ["v9_cdc_cow", "v9_cdc_mor"])
def test_changes_are_java_s(opened: Callable[[str], TableReader], name: str) -> None:
    mine = opened(name).changes("0", images=True).read_all().to_pylist()
    theirs = [
        {**row, "before": of_java(row["before"]), "after": of_java(row["after"])}
        for row in golden_tables.account(name)["cdc"]
    ]
    assert sorted(map(text, mine)) == sorted(map(text, theirs))
    assert len(mine) == 6


@pytest.mark.parametrize("name", [n for n in golden_tables.names() if n not in CLEANED])
def test_changes_replay_to_the_table(opened: Callable[[str], TableReader], name: str) -> None:
    table = opened(name)
    rows: list[str] = []
    for change in table.changes("earliest", images=True).read_all().to_pylist():
        assert (change["before"] is None) == (change["op"] == "i")
        assert (change["after"] is None) == (change["op"] == "d")
        if change["before"] is not None:
            rows.remove(text(change["before"]))  # fails if the row is missing
        if change["after"] is not None:
            rows.append(text(change["after"]))
    assert sorted(rows) == sorted(text(row) for row in table.current_state().to_arrow().to_pylist())


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("v8_cow_clustering_done", {"i": 9, "u": 1}),
        ("v6_cow_clustering_done", {"i": 9, "u": 1}),
        ("v8_log_compaction", {"i": 4, "u": 4}),
        ("v9_mor_compaction_done", {"i": 7, "u": 4, "d": 2}),
    ],
)
def test_an_instant_that_only_moves_rows_is_no_change(
    opened: Callable[[str], TableReader], name: str, counts: dict[str, int]
) -> None:
    found = opened(name).changes("0", images=True).read_all().column("op").to_pylist()
    assert Counter(found) == counts


@pytest.mark.parametrize("name", CLEANED)
def test_a_range_whose_files_were_cleaned_is_refused_by_name(
    opened: Callable[[str], TableReader], name: str
) -> None:
    with pytest.raises(InstantNotFoundError) as caught:
        opened(name).changes("earliest", images=True)
    assert caught.value.kind == "changes_cleaned"
    assert caught.value.fields["path"].endswith(".parquet")


def test_a_range_above_the_cleaned_instants_is_returned(
    opened: Callable[[str], TableReader],
) -> None:
    table = opened("v9_cow_clean_archive")
    last = table.current_state().snapshot.active.completed_writes[-2].completion_time
    assert last is not None
    (change,) = table.changes(last, images=True).read_all().to_pylist()
    assert change["op"] == "u"
    assert change["before"]["id"] == change["after"]["id"]


def test_a_range_is_open_at_its_start_and_closed_at_its_end(
    opened: Callable[[str], TableReader],
) -> None:
    table = opened("v9_cdc_cow")
    writes = table.current_state().snapshot.active.completed_writes
    completed = [one.completion_time or "" for one in writes]
    # As in Java's CDC read, a requested time names its write.
    for times in (completed, [one.requested_time for one in writes]):
        found = table.changes(times[0], times[1], images=True).read_all()
        assert found.column("op").to_pylist() == ["u", "i"]


def test_images_have_the_requested_columns(opened: Callable[[str], TableReader]) -> None:
    table = opened("v9_cdc_cow")
    found = table.changes("0", images=True, columns=["val", "id"]).read_all().to_pylist()
    assert found[-1]["before"] == {"val": 1.0, "id": "a01"}
    with pytest.raises(InvalidInputError) as caught:
        table.changes("0", images=True, columns=["nothing"])
    assert caught.value.kind == "unknown_column"


def test_an_older_file_does_not_replace_the_one_that_was_rewritten(tmp_path: Path) -> None:
    """A savepoint may keep an old slice after cleaning deleted the next one."""
    path = golden_tables.unpack("v6_cow_nonpart", tmp_path)
    with hoodoo.open_table(path) as table:
        *_, before_last, last = table.snapshot.active.completed_writes
        assert len(list(path.glob(f"*_{before_last.requested_time}.parquet"))) == 1
        next(path.glob(f"*_{before_last.requested_time}.parquet")).unlink()
        with pytest.raises(InstantNotFoundError) as caught:
            table.changes(before_last.requested_time, images=True)
    assert caught.value.fields["requested_time"] == last.requested_time
    assert caught.value.fields["path"] == f"*_{before_last.requested_time}.parquet"


def test_a_missing_change_log_is_named(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cdc_cow", tmp_path)
    (log,) = path.glob(".*_20261121101645768.log.*")
    log.unlink()
    with (
        hoodoo.open_table(path) as table,
        pytest.raises(InstantNotFoundError) as caught,
    ):
        table.changes("0", images=True)
    assert (caught.value.kind, caught.value.fields["path"]) == ("changes_cleaned", log.name)


def of_java(image: str | None) -> dict[str, Any] | None:
    """Return an image of Java; computed ones have the meta columns, logged ones have not."""
    found = None if image is None else json.loads(image)
    if found is None:
        return None
    return {name: value for name, value in found.items() if not name.startswith("_hoodie_")}


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
