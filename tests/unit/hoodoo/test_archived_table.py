"""A table whose past is archived, as its user sees it: verified, explained, archived by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.assembly import Layers
from hoodoo.explain import explain_instant
from hoodoo.verify import verify_at
from tests.acceptance.cli import contents, run

FEW = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
KEEP = {**FEW, "hoodie.archive.automatic": "false"}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[hoodoo.Table]:
    """Six commits of one file group, none of them archived."""
    rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
    with hoodoo.create_table(
        tmp_path / "t", schema=rows.schema, record_key=["id"], properties=KEEP
    ) as made:
        for _ in range(6):
            made.upsert(rows)
        yield made


def flags(properties: dict[str, str]) -> list[str]:
    return [
        word for key, value in properties.items() for word in ("--hoodie-conf", f"{key}={value}")
    ]


def test_a_writer_archives_after_its_commit(tmp_path: Path):
    rows = pa.table({"id": [1], "name": ["a"]})
    with hoodoo.create_table(
        tmp_path / "t", schema=rows.schema, record_key=["id"], properties=FEW
    ) as made:
        for _ in range(5):
            made.upsert(rows)
        assert sum(one.archived for one in made.timeline) > 0


def test_what_is_archived_is_verified_and_explained(table: hoodoo.Table, tmp_path: Path):
    first = table.timeline[0].requested_time
    receipt = table.services.archive()
    assert receipt is not None
    assert receipt.text.startswith("archived ")
    found = verify_at(tmp_path / "t", Layers())
    assert (found.problems, found.notes) == ((), ())
    account = explain_instant(table.core, first)
    assert account.archived
    assert account.state == "completed"


def test_the_command_line_tells_what_it_would_archive_and_does_it(
    table: hoodoo.Table, tmp_path: Path
):
    path = tmp_path / "t"
    table.close()
    before = contents(path)
    asked = ("services", "run", path, "--service", "archive", *flags(FEW))
    told = run(*asked, "--dry-run").document["would_archive"]
    assert len(told) >= 3
    assert contents(path) == before
    answer = run(*asked)
    assert answer.exit_code == 0, answer.err
    assert answer.document["text"].startswith(f"archived {len(told)} instants")
    assert run("table", "verify", path).exit_code == 0
    listed = run("timeline", "show", path, "--history").document["instants"]
    assert sum(one["archived"] for one in listed) == len(told)
