"""A table's properties, its history and its writers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from timeline.errors import InstantNotFoundError

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


@pytest.mark.parametrize("call", ["restore", "rollback", "savepoint", "explain", "resolve"])
def test_an_unknown_instant_names_the_nearest_instants(tmp_path: Path, call: str) -> None:
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id") as table:
        row = {"id": "1", "day": "a", "v": 1}
        first, second = (table.upsert([row]).requested_time for _ in range(2))
        between = f"{int(first) + 1:017}"
        assert between < second
        for time, before, after in (
            (between, first, second),
            ("20000101000000000", None, first),
            ("29990101000000000", second, None),
        ):
            with pytest.raises(InstantNotFoundError) as caught:
                getattr(table, call)(time)
            assert caught.value.fields["before"] == before
            assert caught.value.fields["after"] == after
            sides = ((before, "before"), (after, "after"))
            shown = ", ".join(f"{one} {side} it" for one, side in sides if one)
            assert caught.value.message.endswith(f"; the nearest: {shown}: {time}")


def test_a_missing_savepoint_names_the_nearest_savepoints(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, record_key="id") as table:
        first, second = (
            table.upsert([{"id": "1", "day": "a", "v": 1}]).requested_time for _ in range(2)
        )
        with pytest.raises(InstantNotFoundError, match="the timeline has none"):
            table.delete_savepoint(second)
        table.savepoint(first)
        with pytest.raises(InstantNotFoundError) as caught:
            table.delete_savepoint(second)
        assert (caught.value.fields["before"], caught.value.fields["after"]) == (first, None)
