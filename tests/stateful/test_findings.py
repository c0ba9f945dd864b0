"""Findings of the machine, each written by hand."""

from __future__ import annotations

from filegroups.keys.bucketing import SizeSettings
from filegroups.writing.write_request import FileRules
from tests.unit.timeline.engine import begun, new_table, opened, put, rows_of
from tests.unit.timeline.memory import MemoryStorage
from timeline.model.commit_metadata import WriteOperation


def row(key: str, ts: int, *, gone: bool = False) -> dict[str, object]:
    return {"id": key, "p": "x", "ts": ts, "_hoodie_is_deleted": gone}


def test_a_row_marked_deleted_deletes_a_row_that_another_writer_just_inserted() -> None:
    """Both change q, the concurrent write first: its inserted row must not outlive the delete."""
    table = new_table(MemoryStorage())
    other = opened(table)
    upsert, never_filled = WriteOperation.UPSERT, FileRules(sizes=SizeSettings(small_file_bytes=0))
    put(table, upsert, [row("q", 1)])
    finish = begun(other, upsert, [row("q", 2), row("b", 2)], files=never_filled)
    put(table, upsert, [row("q", 3), row("b", 3, gone=True)], finish, files=never_filled)
    assert rows_of(table, "id", "ts") == [("q", 3)]
