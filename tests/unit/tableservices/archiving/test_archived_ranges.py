"""Ranges of changes that reach the archive: archived instants may have completed last (fmt 6.6)."""

from __future__ import annotations

from typing import Any

import pytest

from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tests.unit.timeline.engine import new_table, opened, upsert

RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "3",
        "hoodie.keep.max.commits": "4",
    }
)


def row(key: str, part: str) -> list[dict[str, Any]]:
    return [{"id": key, "p": part, "ts": 1, "v": 1}]


@pytest.mark.parametrize("images", [False, True])
def test_a_long_write_is_in_its_range_although_it_is_archived(
    images: bool,
) -> None:
    """The archive goes by requested times: the write leaves before one that completed earlier."""
    table = new_table()
    other = opened(table)
    upsert(table, row("first", "x"))
    quick: list[Any] = []
    long = upsert(table, row("long", "y"), lambda: quick.append(upsert(other, row("quick", "z"))))
    assert long.requested_time < quick[0].requested_time
    assert quick[0].completion_time < long.completion_time
    for _ in range(2):
        upsert(table, row("last", "x"))
    assert archive(table.context, RULES) is not None
    active = [one.requested_time for one in table.context.active().completed_writes]
    assert quick[0].requested_time in active
    assert long.requested_time not in active
    found = table.changes(quick[0].completion_time, images=images).read_all()
    rows = found["after"].to_pylist() if images else found.to_pylist()
    assert {one["id"] for one in rows} == {"last", "long"}
    assert table.changes(long.completion_time).read_all()["id"].to_pylist() == ["last"]
