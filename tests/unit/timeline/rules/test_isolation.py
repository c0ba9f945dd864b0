"""Isolation levels: which concurrent commits may change the reads of a write."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc
import pytest

from filegroups.reading.read_set import READS_KEY, ReadSet
from filegroups.table import TableSnapshot
from filegroups.writing.retry import rerun_until_unchanged
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import (
    BRISK,
    Rows,
    TableReader,
    as_table,
    begun,
    heard,
    leftovers,
    limited,
    new_table,
    opened,
    planned,
    put,
    rows_of,
    upsert,
)
from timeline.errors import BudgetSpentError, InvalidInputError, WriteConflictError
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.rules.isolation import Isolation

UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE
BULK, OVERWRITE = WriteOperation.BULK_INSERT, WriteOperation.INSERT_OVERWRITE
SNAPSHOT, SOME, STRICT = Isolation.SNAPSHOT, Isolation.WRITE_SERIALIZABLE, Isolation.SERIALIZABLE
BOTH_SERIAL = (SOME, STRICT)


def row(key: str, partition: str, v: int, ts: int = 1) -> dict[str, object]:
    return {"id": key, "p": partition, "ts": ts, "v": v}


START: Rows = [row("a", "x", 1), row("b", "y", 1)]


def two_writers(
    level: Isolation, start: Rows = START, **how: object
) -> tuple[TableReader, TableReader]:
    limits = replace(BRISK, isolation=level)
    table = new_table(limits=limits, **how)
    upsert(table, start)
    return table, opened(table, limits=limits)


def from_reads(
    table: TableReader, operation: WriteOperation, rows: Rows, reads: ReadSet, **options: object
) -> CommitResult:
    plan = replace(planned(table, operation, **options), reads=reads)
    return write(table.context, plan, LocalWorkload(table.context.ports, as_table(rows)))


def matching(state: TableSnapshot, condition: pc.Expression) -> Rows:
    return state.to_arrow(columns=("id", "p"), filter=condition).to_pylist()


# ---------------------------------------------------------------- delete against insert


def delete_concurrent_with_insert(level: Isolation) -> tuple[TableReader, CommitResult]:
    """The delete reads first and the insert commits first; a rejected delete is retried."""
    table, other = two_writers(level, [row("a", "x", 1), row("k", "x", 9)])
    archived = pc.field("v") == 1
    inserts = [lambda: put(other, BULK, [row("c", "x", 1)])]

    def attempt(_: object) -> CommitResult:
        state = table.current_state()
        found = matching(state, archived)
        while inserts:
            inserts.pop()()
        return from_reads(table, DELETE, found, state.reads(partitions=("x",), filter=archived))

    return table, rerun_until_unchanged(table.context, attempt)


def test_serializable_rereads_and_deletes_a_row_inserted_before_it_in_the_timeline():
    table, result = delete_concurrent_with_insert(STRICT)
    assert rows_of(table, "id") == [("k",)]
    assert (result.attempts, result.refusals[0].kind) == (2, "appended_into_read")
    assert result.redone == "everything"


def test_write_serializable_orders_the_delete_before_the_insert():
    table, result = delete_concurrent_with_insert(SOME)
    assert rows_of(table, "id") == [("c",), ("k",)]
    assert result.attempts == 1


def test_an_insert_that_the_predicate_does_not_match_is_no_conflict():
    table, other = two_writers(STRICT)
    state = table.current_state()
    put(other, BULK, [row("c", "x", 7)])
    reads = state.reads(partitions=("x",), filter=[("v", "==", 1)])
    assert from_reads(table, DELETE, [{"id": "a", "p": "x"}], reads).attempts == 1
    assert rows_of(table, "id") == [("b",), ("c",)]


@pytest.mark.parametrize("level", BOTH_SERIAL)
@pytest.mark.parametrize(
    ("key", "v", "passes"),
    [("c", 8, True), ("c", 1, False), ("a", 8, False), ("k", 8, False)],
    ids=["of another file group", "that matches now", "that matched", "next to a row that matched"],
)
def test_a_changed_row_conflicts_by_level(level: Isolation, key: str, v: int, passes: bool):
    """The check is by file group: a filter v = 1 reads the file group of a and k."""
    table, other = two_writers(level, [row("a", "x", 1), row("k", "x", 9)])
    put(table, BULK, [row("c", "x", 7)])
    state = table.current_state()
    upsert(other, [row(key, "x", v, 2)])
    reads = state.reads(partitions=("x",), filter=[("v", "==", 1)])
    if passes:
        assert from_reads(table, BULK, [row("n", "y", 1)], reads).attempts == 1
        return
    with pytest.raises(WriteConflictError) as refused:
        from_reads(table, BULK, [row("n", "y", 1)], reads)
    assert refused.value.kind == "changed_under_read"


@pytest.mark.parametrize("level", BOTH_SERIAL)
def test_an_insert_into_another_partition_is_no_conflict(level: Isolation):
    table, other = two_writers(level)
    state = table.current_state()
    put(other, BULK, [row("c", "y", 1)])
    reads = state.reads(partitions=("x",))
    assert from_reads(table, UPSERT, [row("a", "x", 2)], reads).attempts == 1


# ---------------------------------------------------------------- write skew and lost updates


def write_skew(level: Isolation) -> TableReader:
    """Both writes read a and b, which must not both be 0, and each sets another one to 0."""
    table, other = two_writers(level)
    mine, theirs = table.current_state().reads(), other.current_state().reads()
    from_reads(other, UPSERT, [row("a", "x", 0, 2)], theirs)
    from_reads(table, UPSERT, [row("b", "y", 0, 2)], mine)
    return table


def test_snapshot_permits_write_skew():
    assert rows_of(write_skew(SNAPSHOT), "id", "v") == [("a", 0), ("b", 0)]


@pytest.mark.spec("PUB-10")
@pytest.mark.parametrize("level", BOTH_SERIAL)
def test_write_skew_is_rejected_under_serializable_levels(level: Isolation):
    with pytest.raises(WriteConflictError) as refused:
        write_skew(level)
    assert refused.value.kind == "changed_under_read"
    assert refused.value.fields["report"]["redo"] == "nothing"


@pytest.mark.parametrize("level", BOTH_SERIAL)
def test_write_skew_by_inserts_is_rejected_under_serializable_levels(level: Isolation):
    """Each write counts one partition and inserts into the other, so neither insert is blind."""
    table, other = two_writers(level)
    mine, theirs = (
        table.current_state().reads(partitions=("x",)),
        other.current_state().reads(partitions=("y",)),
    )
    from_reads(other, BULK, [row("n", "x", 1)], theirs)
    with pytest.raises(WriteConflictError) as refused:
        from_reads(table, BULK, [row("m", "y", 1)], mine)
    assert refused.value.kind == "appended_into_read"


@pytest.mark.parametrize("level", list(Isolation))
def test_a_read_row_that_another_changed_is_never_overwritten(level: Isolation):
    table, other = two_writers(level)
    reads = table.current_state().reads()
    upsert(other, [row("a", "x", 5, 2)])
    with pytest.raises(WriteConflictError) as refused:
        from_reads(table, UPSERT, [row("a", "x", 2, 2)], reads)
    assert refused.value.kind == "changed_under_read"
    assert rows_of(table, "id", "v") == [("a", 5), ("b", 1)]
    assert leftovers(table) == []


@pytest.mark.parametrize("level", list(Isolation))
def test_a_changed_row_in_a_log_conflicts_like_one_in_a_base_file(level: Isolation):
    table, other = two_writers(level, table_type=TableType.MERGE_ON_READ)
    reads = table.current_state().reads()
    upsert(other, [row("a", "x", 5, 2)])
    assert table.current_state().file_slices(["x"])[0].log_files
    with pytest.raises(WriteConflictError) as refused:
        from_reads(table, UPSERT, [row("a", "x", 2, 2)], reads)
    assert refused.value.kind == "changed_under_read"


@pytest.mark.parametrize("level", list(Isolation))
def test_a_read_row_that_another_writer_deleted_stays_deleted(level: Isolation):
    table, other = two_writers(level)
    reads = table.current_state().reads()
    put(other, DELETE, [row("a", "x", 1, 2)])
    with pytest.raises(WriteConflictError):
        from_reads(table, UPSERT, [row("a", "x", 2, 2)], reads)
    assert rows_of(table, "id") == [("b",)]


@pytest.mark.parametrize("level", list(Isolation))
def test_a_read_partition_that_another_overwrote_is_not_written(level: Isolation):
    table, other = two_writers(level)
    reads = table.current_state().reads()
    put(other, OVERWRITE, [row("z", "x", 5)])
    with pytest.raises(WriteConflictError):
        from_reads(table, UPSERT, [row("a", "x", 2, 2)], reads)


@pytest.mark.parametrize("level", list(Isolation))
def test_a_commit_during_the_write_is_validated_like_one_before_it(level: Isolation):
    table, other = two_writers(level)
    plan = replace(planned(table, UPSERT), reads=table.current_state().reads())
    workload = LocalWorkload(table.context.ports, as_table([row("a", "x", 2, 2)]))
    concurrent_write = begun(other, UPSERT, [row("a", "x", 5, 2)])
    inner = workload.rewrite
    workload.rewrite = lambda tasks: (concurrent_write(), inner(tasks))[1]  # type: ignore[method-assign]
    with pytest.raises(WriteConflictError) as refused:
        write(table.context, plan, workload)
    assert refused.value.kind == "changed_under_read"


# ---------------------------------------------------------------- what write_serializable may pass


def test_a_write_is_rejected_after_a_commit_that_read_an_unseen_insert():
    """The third write read the insert and my row, so mine is neither before nor after it."""
    table, other = two_writers(SOME)
    reads = table.current_state().reads(partitions=("x",))
    put(other, BULK, [row("i", "x", 1)])
    counted = other.current_state().reads(partitions=("x",))
    from_reads(other, BULK, [row("sum", "y", 2)], counted)
    with pytest.raises(WriteConflictError) as refused:
        from_reads(table, BULK, [row("m", "x", 1)], reads)
    assert refused.value.kind == "appended_into_read"


def test_rows_of_an_unseen_insert_are_not_updated():
    table, other = two_writers(SOME)
    reads = table.current_state().reads(partitions=("x",))
    put(other, BULK, [row("i", "x", 1)])
    with pytest.raises(WriteConflictError) as refused:
        from_reads(table, UPSERT, [row("i", "x", 2, 2)], reads)
    assert refused.value.kind == "appended_into_read"


def test_filling_a_small_file_counts_as_an_insert():
    table, other = two_writers(SOME)
    reads = table.current_state().reads(partitions=("x",))
    put(other, INSERT, [row("i", "x", 1)])
    assert len(table.current_state().file_slices(["x"])) == 1
    assert from_reads(table, BULK, [row("m", "y", 1)], reads).attempts == 1


# ---------------------------------------------------------------- the time and scope of reads


@pytest.mark.parametrize("level", list(Isolation))
def test_a_write_without_a_read_set_is_not_validated_against_reads(level: Isolation):
    table, other = two_writers(level)
    concurrent_write = begun(other, UPSERT, [row("a", "x", 5, 2)])
    assert upsert(table, [row("b", "y", 2, 2)], concurrent_write).attempts == 1


def test_reads_of_a_time_travel_snapshot_are_refused():
    table, _ = two_writers(STRICT)
    first = table.timeline[-1].requested_time
    with pytest.raises(InvalidInputError) as refused:
        table.as_of(first).reads()
    assert refused.value.kind == "reads_of_the_past"


def test_a_commit_records_the_partitions_of_its_read_set():
    table, _ = two_writers(STRICT)
    from_reads(
        table, UPSERT, [row("a", "x", 2, 2)], table.current_state().reads(partitions=("x", "y"))
    )
    snapshot = table.snapshot
    assert snapshot.newest_write is not None
    assert snapshot.commits.read(snapshot.newest_write).extra_metadata[READS_KEY] == "x,y"


def test_a_stale_write_is_rejected_before_it_writes_files():
    table, other = two_writers(STRICT)
    reads = table.current_state().reads()
    upsert(other, [row("a", "x", 5, 2)])
    plan = replace(planned(table, UPSERT), reads=reads)
    workload = LocalWorkload(table.context.ports, as_table([row("a", "x", 2, 2)]))
    workload.rewrite = lambda tasks: pytest.fail("written")  # type: ignore[method-assign]
    with pytest.raises(WriteConflictError):
        write(table.context, plan, workload)
    assert heard(table, "begin.done")


def test_rereading_ends_with_the_budget():
    table, other = two_writers(STRICT)
    limits = replace(limited(conflict_retries_max=2), isolation=STRICT)
    mine = opened(table, limits=limits)

    def attempt(_: object) -> CommitResult:
        reads = mine.current_state().reads()
        upsert(other, [row("b", "y", 2, 2)])
        return from_reads(mine, UPSERT, [row("a", "x", 2, 2)], reads)

    with pytest.raises(BudgetSpentError) as spent:
        rerun_until_unchanged(mine.context, attempt)
    assert len(spent.value.fields["attempts"]) == 3
