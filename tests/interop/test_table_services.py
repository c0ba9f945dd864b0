"""Plans of ours carried out by Java Hudi, and Java's by us: the same rows before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hoodoo
from tests.interop.java import JavaOracle
from tests.interop.mor import COMMON, EVENT_TIME, FORMAT, JAVA, SCHEMA, SIMPLE, START, arrow, row
from tests.interop.values import comparable, encoded, same
from timeline.model.instant import Action

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

OPTIONS = {**COMMON, **EVENT_TIME, **SIMPLE}
CHANGES = (
    [row("a", 20, "newer"), row("b", 5, "late"), row("e", 20, "newer")],
    [row("a", 30, "newest"), row("c", 30, None, gone=True)],
)
AFTERWARDS = [row("a", 40, "after"), row("d", 40, "after")]


def made(path: Path, options: dict[str, str]) -> None:
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:
        for rows in (START, *CHANGES):
            table.upsert(arrow(rows))


def ours(path: Path, options: dict[str, str]) -> list[dict[str, object]]:
    with hoodoo.open_table(path, properties=options) as table:
        return encoded(table.current_state().to_arrow(with_hoodie_columns=True))


def values(rows: list[dict[str, object]]) -> list[tuple[object, object]]:
    return sorted((one["id"], one["val"]) for one in rows)


WANTED = [
    ("a", "after"),
    ("b", "first"),
    ("d", "after"),
    ("e", "newer"),
    ("f", "first"),
    ("g", "first"),
    ("h", "first"),
]

CASES = [
    pytest.param("1.2.0", "9", "parquet"),
    pytest.param("1.2.0", "9", "avro", marks=pytest.mark.slow),
    pytest.param("1.2.0", "8", "parquet", marks=pytest.mark.slow),
    pytest.param("1.0.2", "8", "avro", marks=pytest.mark.slow),
]


def crossed(
    java: JavaOracle,
    planner: str,
    service: str,
    path: Path,
    options: dict[str, str],
    conf: dict[str, str],
) -> str:
    """One engine plans, we write, the other engine executes the plan; return its requested time."""
    if planner == "ours":
        with hoodoo.open_table(path, properties=options) as table:
            planned: str = table.services.schedule(service).requested_time
            table.upsert(arrow(AFTERWARDS))
        java.service(path, service, pending=planned, conf=conf)
        return planned
    planned = java.service(path, service, schedule_only=True, conf=conf)["result"]
    with hoodoo.open_table(path, properties=options) as table:
        table.upsert(arrow(AFTERWARDS))
        assert table.services.execute(planned) is not None
    return planned


@pytest.mark.parametrize(("release", "version", "logs"), CASES)
def test_compaction_plans_cross_between_the_engines(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, release: str, version: str, logs: str
) -> None:
    """A log that completes between plan and execution is on top of either's base file."""
    java = java_oracle(release)
    options = {**OPTIONS, FORMAT: logs, "hoodie.write.table.version": version}
    conf = {**options, **JAVA, "hoodie.auto.commit": "true"}  # for 1.0.2
    for planner in ("ours", "java"):
        path = tmp_path / planner
        made(path, options)
        planned = crossed(java, planner, "compact", path, options, conf)
        with hoodoo.open_table(path, properties=options) as table:
            active = table.context.active()
            assert active.pending == ()
            assert active.find(planned).action is Action.COMMIT
            bases = {one.base_file.requested_time for one in table.view.latest_slices()}
            assert bases == {planned}
        mine = ours(path, options)
        assert values(mine) == WANTED
        theirs = java.read(path)
        assert same(comparable(theirs), mine)
        assert values(java.read(path, query_type="read_optimized")) != WANTED


@pytest.mark.slow
@pytest.mark.parametrize("version", ["9", "8"])
def test_log_compaction_plans_cross_between_the_engines(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, version: str
) -> None:
    """One log replaces several, made by either engine; later logs count as always."""
    java = java_oracle("1.2.0")
    options = {
        **OPTIONS,
        "hoodie.write.table.version": version,
        "hoodie.log.compaction.enable": "true",
        "hoodie.log.compaction.blocks.threshold": "2",
    }
    conf = {**options, **JAVA}
    for planner in ("ours", "java"):
        path = tmp_path / planner
        made(path, options)
        planned = crossed(java, planner, "logcompact", path, options, conf)
        with hoodoo.open_table(path, properties=options) as table:
            active = table.context.active()
            assert active.pending == ()
            assert active.find(planned).action is Action.DELTACOMMIT
        mine = ours(path, options)
        assert values(mine) == WANTED
        assert same(comparable(java.read(path)), mine)
        java.service(path, "compact", conf=conf)
        assert values(ours(path, options)) == WANTED
