"""A dry run names the live writers of the same file groups, and changes no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from filegroups.files.rewrite import FileGroupTask, announce_base_file
from filegroups.table import TableReader
from filegroups.writing.dry_run import dry_run_write
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tableservices.clustering.plan import schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    StillClock,
    as_table,
    begun,
    files_below,
    new_table,
    opened,
    planned,
    put,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.commit.conflict_report import ConflictReport
from timeline.context import TableLimits
from timeline.model.commit_metadata import TableType, WriteOperation, WriteStat
from timeline.properties.setting_enums import ClusteringUpdates
from timeline.rules.conflicts import find_strategy

UPSERT, OVERWRITE = WriteOperation.UPSERT, WriteOperation.INSERT_OVERWRITE
APART = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))


def row(key: str, p: str = "x", ts: int = 2) -> dict[str, Any]:
    return {"id": key, "p": p, "ts": ts, "v": 1}


def table_of(kind: TableType = TableType.COPY_ON_WRITE, limits: TableLimits = BRISK) -> TableReader:
    table = new_table(table_type=kind, limits=limits)
    for key in "ab":
        put(table, WriteOperation.INSERT, [row(key, ts=1)], files=APART)
    return table


def conflicts_of(
    table: TableReader, operation: WriteOperation, rows: list[dict[str, Any]]
) -> tuple[ConflictReport, ...]:
    workload = LocalWorkload(table.context.ports, pa.Table.from_pylist(rows))
    return dry_run_write(table.context, planned(table, operation, files=APART), workload)


def during(
    table: TableReader, operation: WriteOperation, rows: list[dict[str, Any]], check: Any
) -> Any:
    """Return the answer of a call during another write."""
    seen: list[Any] = []
    put(table, operation, rows, lambda: seen.append(check()), files=APART)
    return seen[0]


@pytest.mark.parametrize("kind", list(TableType))
def test_a_live_writer_of_the_same_file_group_is_named(kind: TableType) -> None:
    table = table_of(kind)
    other = opened(table)
    [report] = during(
        other, UPSERT, [row("a", ts=3)], lambda: conflicts_of(table, UPSERT, [row("a")])
    )
    assert (report.rule, report.kind, report.instant) == ("C1", "write_conflict", "")
    assert report.redo == ("file groups" if kind is TableType.COPY_ON_WRITE else "everything")
    assert len(report.file_groups) == len(report.winners) == 1


def test_a_writer_of_other_file_groups_and_an_idle_table_are_no_conflict() -> None:
    table = table_of()
    assert conflicts_of(table, UPSERT, [row("a")]) == ()
    check = lambda: conflicts_of(table, UPSERT, [row("a")])  # noqa: E731
    assert during(opened(table), UPSERT, [row("b", ts=3)], check) == ()


def test_a_pending_overwrite_is_named_with_its_partition() -> None:
    table = table_of()
    check = lambda: conflicts_of(table, UPSERT, [row("n")])  # noqa: E731
    [report] = during(opened(table), OVERWRITE, [row("o")], check)
    assert (report.rule, report.partitions) == ("C4", ("x",))


def test_the_strategy_is_applied_too() -> None:
    table = table_of(limits=replace(BRISK, strategy=find_strategy("partition")))
    check = lambda: conflicts_of(table, UPSERT, [row("n")])  # noqa: E731
    [report] = during(opened(table), UPSERT, [row("m")], check)
    assert report.kind == "strategy"


def test_a_clustering_that_would_reject_is_named_and_not_cancelled() -> None:
    refusing = replace(BRISK, clustering_updates=ClusteringUpdates.REJECT)
    table = table_of(limits=refusing)
    schedule_clustering(table.context, ClusteringSettings())
    [report] = conflicts_of(table, UPSERT, [row("a")])
    assert (report.kind, report.retry_can_succeed) == ("service_conflict", False)
    first = opened(table, limits=replace(refusing, cancels_conflicting_plans=True))
    assert conflicts_of(first, UPSERT, [row("a")]) == ()
    assert len(table.context.active().pending) == 1


def test_a_writer_that_only_began_has_announced_no_write_set() -> None:
    table = table_of()
    begun(opened(table), UPSERT, [row("a", ts=3)])
    assert conflicts_of(table, UPSERT, [row("a")]) == ()


def test_nothing_is_written() -> None:
    table = table_of()
    before = files_below(table.context.ports.storage)
    conflicts_of(table, UPSERT, [row("a"), row("n")])
    assert files_below(table.context.ports.storage) == before
    assert upsert(table, [row("a")]).attempts == 1


class RepeatedTask(LocalWorkload):
    """Rows whose task has a second attempt; its file appears after the job has ended."""

    late: FileGroupTask

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        self.late = replace(tasks[0], write_token="0-0-9")
        announce_base_file(self._world.storage, self.late)
        return super().rewrite(tasks)

    def attempted(self) -> None:  # type: ignore[override]
        return None


@pytest.mark.spec("PUB-1")
def test_a_file_of_a_second_attempt_that_appears_late_is_not_visible() -> None:
    class LateClock(StillClock):
        def sleep_ms(self, duration_ms: int) -> None:
            super().sleep_ms(duration_ms)
            if self.steady >= 1_000 and path() not in made:
                made.add(path())
                storage.write(path(), b"late")

    def path() -> str:
        return f"{rows.late.partition_path}/{rows.late.file_name}"

    made: set[str] = set()
    storage, clock = MemoryStorage(), LateClock()
    table = new_table(storage, clock=clock)
    rows = RepeatedTask(table.context.ports, as_table([{"id": "k1", "p": "x", "ts": 1}]))
    write(table.context, planned(table, WriteOperation.UPSERT), rows)
    clock.sleep_ms(2_000)  # at the latest now
    assert made
    assert storage.stat(path()) is None
