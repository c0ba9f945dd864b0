"""Metadata stays small: a table of 3,000 commits is opened as fast as one of 100."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

FEW, MANY = 100, 3_000


def files_of_metadata(path: Path) -> int:
    """Without the history's, of which those that were merged stay for two minutes."""
    found = (path / ".hoodie").rglob("*")
    return sum(one.is_file() and one.parent.name != "history" for one in found)


def seconds_to_open(path: Path) -> float:
    """The best of some openings, each with a read of everything."""

    def once() -> float:
        started = perf_counter()
        with hoodoo.open_table(path) as table:
            table.to_arrow()
        return perf_counter() - started

    return min(once() for _ in range(20))


def test_opening_a_table_costs_at_most_twice_what_it_cost_after_100_commits(tmp_path: Path):
    path = tmp_path / "t"
    seconds: dict[int, float] = {}
    files: dict[int, int] = {}
    with hoodoo.create_table(path, record_key="id", ordering="ts") as table:
        for number in range(1, MANY + 1):
            table.upsert(pa.table({"id": ["a", "b"], "ts": [number, number]}))
            if number in (FEW, MANY):
                seconds[number] = seconds_to_open(path)
                files[number] = files_of_metadata(path)
    assert seconds[MANY] <= 2 * seconds[FEW], seconds
    assert files[MANY] <= 2 * files[FEW], files
    with hoodoo.open_table(path) as table:
        assert len([one for one in table.timeline if one.action == "commit"]) == MANY
    assert verify_at(path, Layers()).ok
