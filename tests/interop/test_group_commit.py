"""Commits of a group mean the same to Java Hudi and hudi-rs, also several logs of one bucket (GRP-2)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hoodoo
from filegroups.writing.write_request import CommitResult
from tests.interop.java import JavaOracle
from tests.interop.mor import COMMIT_TIME, COMMON, EVENT_TIME, SCHEMA, arrow, row
from tests.interop.test_non_blocking import COMPACTING, FREE, Rows, seen_by

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]

GROUPED = {"hoodoo.group.commit.max.writes": "8", "hoodoo.group.commit.linger.ms": "300"}


@pytest.mark.spec("GRP-2")
@pytest.mark.parametrize("order", [EVENT_TIME, COMMIT_TIME], ids=["event", "commit"])
def test_logs_of_one_group_mean_the_same_to_all(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, order: dict[str, str]
) -> None:
    java, path, options = (
        java_oracle("1.2.0"),
        tmp_path / "t",
        {**COMMON, **order, **FREE, **GROUPED},
    )
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:

        def write(number: int) -> CommitResult:
            mine = [row(key, 10 + number % 2, f"of {number}") for key in "abc"]
            rows: Rows = [*mine, row(f"k{number}", 10, "own")]
            return table.upsert(arrow(rows))

        with ThreadPoolExecutor(4) as threads:
            results = [*threads.map(write, range(4)), *threads.map(write, range(4, 8))]
        assert max(result.group for result in results) > 2
    ours, by_java, by_rust = seen_by(path, options, java)
    assert [key for key, _ in ours] == [*"abc", *(f"k{number}" for number in range(8))]
    assert (by_java, by_rust) == (ours, ours)
    java.service(path, "compact", conf=COMPACTING)
    assert seen_by(path, options, java) == (ours,) * 3
