"""
Incremental ranges of merge-on-read tables equal Java's: with an end and without, for all writers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.table import Table
from tests.interop.java import JavaOracle
from tests.interop.mor import COMMON, EVENT_TIME, JAVA, row
from tests.unit.tableservices.test_polling import Kind, Story
from timeline.storage.local import LocalStorage

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DDL = "id string, p string, ts bigint, val string, _hoodie_is_deleted boolean"
WRITES = ("commit", "deltacommit", "replacecommit")


def comparable_rows(rows: list[dict[str, Any]], name: str) -> list[tuple[Any, ...]]:
    return sorted((one["id"], one["ts"], one[name]) for one in rows)


def assert_ranges_alike(java: JavaOracle, table: Table, path: Path, name: str) -> None:
    """Every range without an end, and those between neighbours."""
    ends = sorted(one.completion_time or "" for one in table.timeline if one.action in WRITES)
    times = ["000", *(one for one in ends if one)]
    for since, until in [*pairwise(times), *((one, None) for one in times[:-1])]:
        mine = comparable_rows(table.changes(since, until).read_all().to_pylist(), name)
        asked = [since] if until is None else [since, until]
        assert mine == comparable_rows(java.read(path, incremental=asked), name), (since, until)


@pytest.mark.parametrize("seed", range(3))
def test_ranges_of_our_tables_are_java_s(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, seed: int
) -> None:
    """Late rows through plans, compactions, log compactions, clusterings and rival writers."""
    draw, path = random.Random(seed), tmp_path / "t"
    index, version = draw.choice(["SIMPLE", "BUCKET"]), draw.choice([8, 9])
    kind = Kind(appends=True, version=version, by_event=seed != 1, index=index)
    story = Story(kind, LocalStorage(path))

    def rows() -> list[dict[str, Any]]:
        keys = draw.sample("abc", draw.randint(1, 3))
        return [{"id": key, "p": "x", "ts": draw.randint(0, 6)} for key in keys]

    story.upsert(rows())
    kinds = ["upsert"] * 4 + ["beside", "plan", "finish", "compact", "join logs", "cluster"]
    for what in draw.choices(kinds, k=7):
        given = {"upsert": 1, "beside": 2}.get(what, 0)
        story.act((what, *(rows() for _ in range(given))))
    assert_ranges_alike(java_oracle("1.2.0"), story.table, path, "v")


@pytest.mark.parametrize("service", ["compact", "logcompact"])
def test_ranges_over_java_s_compactions_are_its_own(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, service: str
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    conf = {**COMMON, **EVENT_TIME, **JAVA, "hoodie.table.timeline.timezone": "UTC"}
    joining = {
        "hoodie.log.compaction.inline": "true",
        "hoodie.log.compaction.blocks.threshold": "1",
    }
    for rows in (
        [row("a", 10, "base"), row("b", 10, "base")],
        [row("a", 20, "kept")],
        [row("a", 15, "late")],
    ):
        java.write(path, rows, schema=DDL, conf=conf)
    java.service(path, service, conf={**conf, **joining})
    java.write(path, [row("b", 5, "late")], conf=conf)
    java.service(path, "compact", schedule_only=True, conf=conf)
    java.write(path, [row("a", 12, "late again")], conf=conf)
    with hoodoo.open_table(path) as table:
        assert_ranges_alike(java, table, path, "val")
