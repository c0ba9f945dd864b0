"""Clustering across the engines: each executes the other's plan, and reads the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hoodoo
from tests.interop.java import JavaOracle, JavaRefusedError
from tests.interop.mor import COMMON, EVENT_TIME, FORMAT, JAVA, SCHEMA, SIMPLE, START, arrow, row
from tests.interop.values import comparable, encoded, same
from timeline.errors import ServiceConflictError
from timeline.model.instant import Action

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

CHANGES = [row("a", 20, "newer"), row("b", 5, "late"), row("e", 20, "newer")]
MORE = [row("x", 10, "second"), row("y", 10, "second")]
_PLAN = "hoodie.clustering.plan.strategy"
SORTED = {f"{_PLAN}.sort.columns": "val,id", "hoodie.layout.optimize.strategy": "LINEAR"}
CASES = [
    pytest.param("1.2.0", "9", "MERGE_ON_READ"),
    pytest.param("1.2.0", "9", "COPY_ON_WRITE", marks=pytest.mark.slow),
    pytest.param("1.2.0", "8", "MERGE_ON_READ", marks=pytest.mark.slow),
    pytest.param("1.0.2", "8", "COPY_ON_WRITE", marks=pytest.mark.slow),
]


def settings(version: str, table_type: str) -> dict[str, str]:
    return {
        **COMMON,
        **EVENT_TIME,
        **SIMPLE,
        **SORTED,
        FORMAT: "parquet",
        "hoodie.write.table.version": version,
        "hoodie.datasource.write.table.type": table_type,
        "hoodie.parquet.small.file.limit": "0",
    }


def made(path: Path, options: dict[str, str]) -> list[dict[str, object]]:
    """Several file groups, one of them with changed rows; returns their rows."""
    with hoodoo.create_table(path, schema=SCHEMA, properties=options) as table:
        table.insert(arrow(START))
        table.insert(arrow(MORE))
        table.upsert(arrow(CHANGES))
    return ours(path, options)


def ours(path: Path, options: dict[str, str]) -> list[dict[str, object]]:
    with hoodoo.open_table(path, properties=options) as table:
        return encoded(table.current_state().to_arrow(with_hoodie_columns=True))


def but_for_names(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows keep everything when they move, commit times included, but not their file names."""
    kept = [{name: v for name, v in one.items() if name != "_hoodie_file_name"} for one in rows]
    return sorted(kept, key=str)


@pytest.mark.parametrize(("release", "version", "table_type"), CASES)
def test_clustering_plans_cross_between_the_engines(
    java_oracle: Callable[..., JavaOracle],
    tmp_path: Path,
    release: str,
    version: str,
    table_type: str,
) -> None:
    java = java_oracle(release)
    options = settings(version, table_type)
    conf = {**options, **JAVA, "hoodie.auto.commit": "true"}  # for 1.0.2
    for planner in ("ours", "java"):
        path = tmp_path / planner
        before = made(path, options)
        if planner == "ours":
            with hoodoo.open_table(path, properties=options) as table:
                planned = table.services.schedule("cluster").requested_time
            java.service(path, "cluster", pending=planned, conf=conf)
        else:
            planned = java.service(path, "cluster", schedule_only=True, conf=conf)["result"]
            with hoodoo.open_table(path, properties=options) as table:
                assert table.services.execute(planned) is not None
        with hoodoo.open_table(path, properties=options) as table:
            active = table.context.active()
            assert active.pending == ()
            assert active.find(planned).action is Action.REPLACECOMMIT
            slices = table.view.latest_slices()
            assert {one.base_instant_time for one in slices} == {planned}
            assert not any(one.log_files for one in slices)
        mine = ours(path, options)
        assert but_for_names(mine) == but_for_names(before)
        theirs = java.read(path)
        assert same(comparable(theirs), mine)


@pytest.mark.slow
def test_java_continues_on_a_table_that_hoodoo_clustered_during_a_write(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    """One group was left to a writer: its unpublished file is named as replaced, then gone."""
    java = java_oracle("1.2.0")
    options = settings("9", "COPY_ON_WRITE") | {f"{_PLAN}.max.bytes.per.group": "1"}
    path = tmp_path / "t"
    made(path, options)
    with hoodoo.open_table(path, properties=options) as table:
        planned = table.services.schedule("cluster").requested_time
        table.upsert(arrow([row("x", 30, "meanwhile")]))
        result = table.services.execute(planned)
        assert result.groups_left_out == 1
        assert result.groups >= 1
    assert same(comparable(java.read(path)), ours(path, options))
    java.write(path, [row("a", 50, "by java")], conf={**options, **JAVA})
    mine = ours(path, options)
    assert same(comparable(java.read(path)), mine)
    assert ("a", "by java") in {(one["id"], one["val"]) for one in mine}


@pytest.mark.slow
def test_a_preferred_writer_cancels_a_plan_of_java(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    """Java's clustering does not validate its input again, so a write into it would be lost."""
    java = java_oracle("1.2.0")
    options = settings("9", "COPY_ON_WRITE")
    conf = {**options, **JAVA}
    path = tmp_path / "t"
    made(path, options)
    planned = java.service(path, "cluster", schedule_only=True, conf=conf)["result"]
    change = arrow([row("x", 30, "meanwhile")])
    with hoodoo.open_table(path, properties=options) as table:
        with pytest.raises(ServiceConflictError):
            table.upsert(change)
        assert [one.requested_time for one in table.context.active().pending] == [planned]
    strategy = "org.apache.hudi.client.transaction.PreferWriterConflictResolutionStrategy"
    first = options | {"hoodie.write.lock.conflict.resolution.strategy": strategy}
    with hoodoo.open_table(path, properties=first) as table:
        assert table.upsert(change).attempts == 1
        assert table.context.active().pending == ()
    with pytest.raises(JavaRefusedError):
        java.service(path, "cluster", pending=planned, conf=conf)
    mine = ours(path, options)
    assert ("x", "meanwhile") in {(one["id"], one["val"]) for one in mine}
    assert same(comparable(java.read(path)), mine)
    again = java.service(path, "cluster", schedule_only=True, conf=conf)["result"]
    java.service(path, "cluster", pending=again, conf=conf)
    assert but_for_names(ours(path, options)) == but_for_names(mine)
    assert same(comparable(java.read(path)), ours(path, options))
