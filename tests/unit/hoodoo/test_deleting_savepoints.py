"""A savepoint that archiving went past is deleted so that no archived row is hidden by it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from tableservices.restoring.savepoints import delete_savepoint
from timeline.errors import InvalidInputError

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
PROPERTIES = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "5",
    "hoodie.clean.commits.retained": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.archive.beyond.savepoint": "true",
}


def write(table: hoodoo.Table, number: int) -> hoodoo.CommitResult:
    rows = pa.table({"id": [f"r{number}"], "v": [number]}, schema=SCHEMA)
    return table.bulk_insert(rows, batch_id=f"b{number}")


@pytest.fixture
def passed(tmp_path: Path) -> tuple[hoodoo.Table, str]:
    """A table whose third write was saved, and whose later ones were archived."""
    table = hoodoo.create_table(
        str(tmp_path / "t"), schema=SCHEMA, record_key="id", properties=PROPERTIES
    )
    for number in range(3):
        write(table, number)
    saved = table.savepoint().requested_time
    for number in range(3, 12):
        write(table, number)
    assert table.services.archive() is not None
    return table, saved


@pytest.mark.spec("GC-1")
def test_the_savepointed_write_is_archived_before_its_savepoint_is_deleted(
    passed: tuple[hoodoo.Table, str], tmp_path: Path
) -> None:
    table, saved = passed
    assert table.context.active().find(saved) is not None
    table.delete_savepoint(saved)
    assert table.savepoints == []
    assert table.context.active().find(saved) is None
    for each in (table, hoodoo.open_table(str(tmp_path / "t"), properties=PROPERTIES)):
        assert sorted(each.to_arrow()["v"].to_pylist()) == list(range(12))
        assert write(each, 5).already_published, "an archived batch stays a batch of the table"


@pytest.mark.spec("GC-1")
def test_a_savepoint_that_keeps_archived_rows_visible_is_not_deleted(
    passed: tuple[hoodoo.Table, str],
) -> None:
    table, saved = passed
    with pytest.raises(InvalidInputError) as caught:
        delete_savepoint(table.context, saved)
    assert caught.value.kind == "savepoint_before_archive"
    assert [one.requested_time for one in table.savepoints] == [saved]
    assert table.to_arrow().num_rows == 12
