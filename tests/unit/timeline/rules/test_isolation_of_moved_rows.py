"""Rows that changed after a write read them and that moved to another file group since."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc
import pytest

from filegroups.index import LookupRules
from filegroups.reading.read_set import ReadSet
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tableservices.clustering.execute import execute_clustering
from tableservices.clustering.plan import schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tests.unit.timeline.engine import (
    BRISK,
    SMALL,
    Rows,
    as_table,
    new_table,
    opened,
    planned,
    put,
    rows_of,
    upsert,
)
from timeline.errors import WriteConflictError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.rules.isolation import Isolation

UPSERT, DELETE = WriteOperation.UPSERT, WriteOperation.DELETE
SORTED = ClusteringSettings(sort_columns=("v",))
ANYWHERE = LookupRules(whole_table=True, moves_rows=True)
A = {"id": "a", "p": "x"}

LEVELS = pytest.mark.parametrize("level", list(Isolation))
CHANGES = pytest.mark.parametrize(
    ("operation", "mine"), [(DELETE, A), (UPSERT, {**A, "ts": 3, "v": 2})]
)


def row(key: str, partition: str, v: int, ts: int = 1) -> dict[str, object]:
    return {"id": key, "p": partition, "ts": ts, "v": v}


def two_writers(
    level: Isolation, start: Rows, kind: TableType = TableType.COPY_ON_WRITE
) -> tuple[TableReader, TableReader]:
    limits = replace(BRISK, isolation=level)
    table = new_table(limits=limits, table_type=kind)
    upsert(table, start)
    return table, opened(table, limits=limits)


def change(
    table: TableReader, operation: WriteOperation, rows: Rows, reads: ReadSet, **how: object
):
    plan = replace(planned(table, operation, **how), reads=reads)
    return write(table.context, plan, LocalWorkload(table.context.ports, as_table(rows)))


def insert(table: TableReader) -> None:
    """Insert a file group into x, which a clustering merges with the others."""
    apart = replace(SMALL, sizes=replace(SMALL.sizes, small_file_bytes=0))
    put(table, WriteOperation.INSERT, [row("z", "x", 9)], files=apart)


def cluster(table: TableReader) -> None:
    plan = schedule_clustering(table.context, SORTED)
    assert plan is not None
    assert execute_clustering(table.context, plan, SORTED, SMALL) is not None


@pytest.mark.spec("PUB-10")
@LEVELS
@CHANGES
@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize("times", [1, 2])
def test_a_changed_row_that_a_clustering_moved_counts(
    level: Isolation,
    operation: WriteOperation,
    mine: dict[str, object],
    kind: TableType,
    times: int,
) -> None:
    table, other = two_writers(level, [row("a", "x", 1), row("k", "x", 9)], kind)
    state = table.current_state()
    reads = state.reads(partitions=("x",), filter=pc.field("id") == "a")
    upsert(other, [row("a", "x", 7, ts=2)])
    for _ in range(times):
        insert(other)
        cluster(other)
    with pytest.raises(WriteConflictError) as refused:
        change(table, operation, [mine], reads)
    assert refused.value.kind == "changed_under_read"
    assert ("a", 7) in rows_of(table, "id", "v")


@LEVELS
def test_a_clustering_of_unchanged_rows_does_not_conflict_with_reads(level: Isolation) -> None:
    table, other = two_writers(level, [row("a", "x", 1), row("k", "x", 9), row("b", "y", 1)])
    insert(other)
    reads = table.current_state().reads(partitions=("x",), filter=pc.field("v") == 1)
    upsert(other, [row("b", "y", 7, ts=2)])
    cluster(other)
    assert change(table, DELETE, [A], reads).rows_deleted == 1


def test_under_snapshot_inserts_that_are_clustered_with_read_rows_are_no_change() -> None:
    table, other = two_writers(Isolation.SNAPSHOT, [row("a", "x", 1), row("k", "x", 9)])
    reads = table.current_state().reads(partitions=("x",), filter=pc.field("v") == 1)
    insert(other)
    cluster(other)
    assert change(table, DELETE, [A], reads).rows_deleted == 1


@LEVELS
@pytest.mark.parametrize("partitions", [None, ("x",)])
@pytest.mark.parametrize("moved_again", [False, True])
def test_a_changed_row_that_a_global_index_moved_counts(
    level: Isolation, partitions: tuple[str, ...] | None, moved_again: bool
) -> None:
    table, other = two_writers(level, [row("k", "x", 9), row("j", "y", 9), row("i", "w", 9)])
    upsert(table, [row("a", "x", 1)], lookup=ANYWHERE)
    reads = table.current_state().reads(partitions=partitions, filter=pc.field("v") == 1)
    upsert(other, [row("a", "y", 7, ts=2)], lookup=ANYWHERE)
    if moved_again:
        upsert(other, [row("a", "w", 7, ts=3)], lookup=ANYWHERE)
    with pytest.raises(WriteConflictError) as refused:
        change(table, DELETE, [A], reads, lookup=ANYWHERE)
    assert refused.value.kind == "changed_under_read"
    assert ("a", 7) in rows_of(table, "id", "v")


def test_under_snapshot_a_commit_that_also_wrote_elsewhere_conflicts_only_in_the_read_partition() -> (
    None
):
    """No read row left its partition, so the change in the other partition is not checked."""
    start = [row("a", "x", 1), row("b", "y", 1)]
    table, other = two_writers(Isolation.SNAPSHOT, start)
    reads = table.current_state().reads(partitions=("x",))
    upsert(other, [row("a", "x", 7, ts=2), row("b", "y", 7, ts=2)])
    assert change(table, UPSERT, [row("b", "y", 8, ts=3)], reads).rows_updated == 1
