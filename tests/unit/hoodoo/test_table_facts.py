"""A table's properties, its history and its writers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import hoodoo

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("v", pa.int64())])


def test_a_table_shows_its_properties_and_its_timeline(tmp_path: Path) -> None:
    with hoodoo.create_table(
        tmp_path / "t", schema=SCHEMA, record_key="id", partition_by="day", name="a<b"
    ) as table:
        first = table.upsert([{"id": "1", "day": "a", "v": 1}, {"id": "2", "day": "b", "v": 2}])
        second = table.delete([{"id": "1", "day": "a"}])
        assert repr(table) == f"<Table 'a<b' at {(tmp_path / 't').as_uri().replace('///', '/')}>"
        shown = table._repr_html_()
        assert "<td>COPY_ON_WRITE, version 9</td>" in shown
        assert "<caption>a&lt;b</caption>" in shown
        assert "v int64" in shown

        assert repr(first).startswith(f"<upsert {first.requested_time}: +2 ~0 -0 rows, 2 files, ")
        assert "\n" not in repr(second)
        assert [one.requested_time for one in table.history()] == [
            second.requested_time,
            first.requested_time,
        ]
        assert [one.rows_deleted for one in table.history(limit=1)] == [1]
        assert str(table.explain(first.completion_time)).splitlines()[:2] == [
            f"commit {first.requested_time}: completed",
            "operation upsert",
        ]
        assert [one.alive for one in table.writers()] == [True]
        found = table.verify(all_columns=True)
        assert (found.problems, found.rows) == ((), 1)
