"""What the machine found, each told by hand."""

from __future__ import annotations

from tests.unit.timeline.engine import new_table, opened, put, rows_of
from timeline.model.operations import WriteOperation
from timeline.storage.memory import MemoryStorage


def row(key: str, ts: int, *, gone: bool = False) -> dict[str, object]:
    return {"id": key, "p": "x", "ts": ts, "_hoodie_is_deleted": gone}


def test_a_row_that_deletes_what_another_writer_just_inserted_deletes_it() -> None:
    """Both also change q, the rival first: what it inserted must not outlive the delete."""
    table = new_table(MemoryStorage())
    rival = opened(table)
    upsert = WriteOperation.UPSERT
    put(table, upsert, [row("q", 1)])

    def meddle() -> None:
        put(rival, upsert, [row("q", 2)])
        put(rival, WriteOperation.BULK_INSERT, [row("b", 2)])

    put(table, upsert, [row("q", 3), row("b", 3, gone=True)], meddle)
    assert rows_of(table, "id", "ts") == [("q", 3)]
