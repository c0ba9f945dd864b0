"""Nested partitions: of two that concurrent writers open, one remains and is visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from filegroups.files.rewrite import FileGroupTask
from filegroups.group_commit.commit_group import NotCommitted, commit_group
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import prepare_write, write
from filegroups.writing.write_request import CommitResult
from tests.unit.timeline.engine import (
    BRISK,
    Far,
    Meddled,
    as_table,
    limited,
    new_table,
    opened,
    planned,
    put,
    put_watched,
    rows_of,
    upsert,
)
from tests.unit.timeline.memory import MemoryStorage
from timeline.codecs.instant_avro import encode_commit
from timeline.context import TableLimits
from timeline.errors import InvalidInputError, WriteConflictError
from timeline.model.commit_metadata import (
    NO_PREVIOUS_COMMIT,
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    TableType,
    WriteOperation,
    WriteSet,
    WriteStat,
)
from timeline.model.file_names import pending_file_names, timeline_path
from timeline.model.instant import Action
from timeline.model.instant_time import WallMs, instant_time
from timeline.partitions import delete_hiding_metadata
from timeline.properties.setting_enums import ForeignWriters
from timeline.rollback.rollback import rollback_dead_writers
from timeline.rules.conflicts import (
    ConcurrentCommit,
    NoConflict,
    Rejected,
    RuleId,
    validate_write_set,
)

UPSERT = WriteOperation.UPSERT
EXPECTED = ForeignWriters.EXPECTED
NESTED = [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a"), ("a", "a/b/c"), ("a/b/c", "a/b")]


def row(partition: str) -> dict[str, Any]:
    return {"id": partition, "p": partition, "ts": 1, "v": 1}


def two_writers(
    *, far: bool = False, written: bool = True, **how: Any
) -> tuple[TableReader, TableReader]:
    storage = MemoryStorage()
    table = new_table(storage, **how)
    if written:
        upsert(table, [row("x/y")])
    return opened(table, storage=Far(storage) if far else storage), opened(table)


def partitions(table: TableReader) -> list[str]:
    return [one for (one,) in rows_of(opened(table), "p") if one != "x/y"]


def write_set(access: Access, *paths: str) -> WriteSet:
    return WriteSet.of(
        AccessedFileGroup(file_group=FileGroupId(path, path), access=access) for path in paths
    )


def concurrent(theirs: WriteSet, **more: Any) -> ConcurrentCommit:
    return ConcurrentCommit(
        action=Action.COMMIT, requested_time="1", completion_time="3", write_set=theirs, **more
    )


@pytest.mark.spec("PUB-13")
@pytest.mark.parametrize(("mine", "theirs"), NESTED)
def test_commits_of_nested_partitions_conflict(mine: str, theirs: str):
    verdict = validate_write_set(
        write_set(Access.NEW, mine, "z"), "2", [concurrent(write_set(Access.LOG, theirs, "w"))]
    )
    assert isinstance(verdict, Rejected)
    assert (verdict.rule, verdict.partitions) == (RuleId.NESTED_PARTITION, (mine,))
    assert verdict.retry_can_succeed
    replaced = concurrent(write_set(Access.REPLACE, theirs))
    moved = concurrent(write_set(Access.BASE, theirs), is_compaction=True)
    for harmless in (replaced, moved, concurrent(write_set(Access.NEW, f"{mine}c", "c/a/b"))):
        assert validate_write_set(write_set(Access.NEW, mine, "z"), "2", [harmless]) == NoConflict()


@pytest.mark.parametrize(
    ("far", "early"),
    [(False, False), (False, True), (True, True)],
    ids=["near", "near early", "far early"],
)
@pytest.mark.parametrize("written", [False, True], ids=["first write", "later"])
@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize(("mine", "theirs"), [*NESTED[:2], NESTED[4]])
def test_the_second_writer_of_nested_partitions_is_refused(
    mine: str, theirs: str, kind: TableType, written: bool, far: bool, early: bool
):
    one, other = two_writers(far=far, written=written, table_type=kind)

    def act() -> None:
        upsert(other, [row(theirs)])

    acts, first = ((), act) if early else ((act,), None)
    with pytest.raises(InvalidInputError) as refused:
        put_watched(one, UPSERT, [row(mine)], *acts, early=first)
    assert refused.value.kind == "nested_partition"
    assert partitions(one) == [theirs]


@pytest.mark.parametrize(("mine", "theirs"), NESTED)
def test_without_retries_nested_partitions_are_reported_as_a_conflict(mine: str, theirs: str):
    table, other = two_writers()
    one = opened(table, limits=limited(conflict_retries_max=0))
    with pytest.raises(WriteConflictError) as refused:
        upsert(one, [row(mine)], lambda: upsert(other, [row(theirs)]))
    assert refused.value.kind == "nested_conflict"
    assert partitions(one) == [theirs]


@pytest.mark.parametrize("operation", [WriteOperation.BULK_INSERT, WriteOperation.INSERT_OVERWRITE])
def test_operations_without_a_key_lookup_are_refused_as_well(operation: WriteOperation):
    one, other = two_writers()
    with pytest.raises(InvalidInputError):
        put(one, operation, [row("a")], lambda: put(other, operation, [row("a/b")]))
    assert partitions(one) == ["a/b"]


class Failing(Meddled):
    """Fails after its files are written."""

    error: BaseException = RuntimeError("no more room")

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> Any:
        super().rewrite(tasks)
        raise self.error


def failing(
    table: TableReader, partition: str, *acts: Callable[[], object], dies: bool = False
) -> None:
    workload = Failing(LocalWorkload(table.context.ports, as_table([row(partition)])), *acts)
    workload.error = KeyboardInterrupt() if dies else RuntimeError("no more room")
    with pytest.raises(type(workload.error)):
        write(table.context, planned(table, UPSERT), workload)


@pytest.mark.spec("PUB-13")
@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
def test_files_of_a_failed_write_hide_no_partition_committed_after_it(dies: bool):
    one, other = two_writers()
    result = upsert(one, [row("a/b/c")], lambda: failing(other, "a", dies=dies))
    assert result.attempts == 1
    assert partitions(one) == ["a/b/c"]


@pytest.mark.spec("PUB-13")
@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
def test_the_rollback_of_a_write_uncovers_earlier_commits(dies: bool):
    one, other = two_writers()
    failing(one, "a", lambda: upsert(other, [row("a/b")]), dies=dies)
    if dies:
        assert partitions(one) == []
        rollback_dead_writers(other.context)
    assert partitions(one) == ["a/b"]


def test_a_metadata_file_stays_where_rows_of_its_partition_are_committed():
    one, other = two_writers()
    upsert(one, [row("a")])
    one.context.ports.storage.write("a/b/.hoodie_partition_metadata", b"")
    failing(other, "a")
    assert partitions(one) == ["a"]


@pytest.mark.parametrize("written", [False, True], ids=["first write", "later"])
def test_a_refusal_names_the_file_of_a_failed_write(written: bool):
    one, other = two_writers(written=written)
    failing(one, "a")
    with pytest.raises(InvalidInputError) as refused:
        upsert(other, [row("a/b")])
    assert ".hoodie_partition_metadata file of a folder without rows" in refused.value.message
    assert refused.value.message.endswith("['a']: 'a/b', ['a']")
    one.context.ports.storage.delete("a/.hoodie_partition_metadata")
    upsert(other, [row("a/b")])
    assert partitions(one) == ["a/b"]
    with pytest.raises(InvalidInputError) as refused:
        upsert(other, [row("a/b/c")])
    assert "delete" not in refused.value.message


@pytest.mark.parametrize("written", [False, True], ids=["first write", "later"])
def test_a_partition_may_contain_files_of_a_failed_write(written: bool):
    one, other = two_writers(written=written)
    failing(one, "a/b")
    upsert(other, [row("a")])
    assert partitions(one) == ["a"]


@pytest.mark.spec("PUB-13")
@pytest.mark.parametrize("operation", [UPSERT, WriteOperation.BULK_INSERT])
@pytest.mark.parametrize("path", ["a", "a/b"])
def test_a_partition_is_not_created_around_rows_below_files_of_a_dead_writer(
    path: str, operation: WriteOperation
):
    one, other = two_writers()
    failing(one, "a/b", lambda: upsert(other, [row("a/b/c")]), dies=True)
    with pytest.raises(InvalidInputError):
        put(opened(one), operation, [row(path)])
    rollback_dead_writers(other.context)
    assert partitions(one) == ["a/b/c"]


@pytest.mark.parametrize("written", [False, True], ids=["first write", "later"])
def test_a_bulk_insert_checks_a_partition_that_a_failed_write_created(written: bool):
    one, other = two_writers(written=written)
    failing(one, "a/b")
    upsert(other, [row("a")])
    with pytest.raises(InvalidInputError):
        put(one, WriteOperation.BULK_INSERT, [row("a/b")])
    assert partitions(one) == ["a"]


def test_a_partition_counts_as_committed_only_if_the_write_of_that_time_wrote_to_it() -> None:
    """A discarded attempt leaves no instant, so a later write may have its requested time."""
    one, other = two_writers()
    time = upsert(other, [row("a")]).requested_time
    left = f"commitTime={time}\npartitionDepth=2\n".encode()
    one.context.ports.storage.write("a/b/.hoodie_partition_metadata", left)
    with pytest.raises(InvalidInputError):
        put(one, WriteOperation.BULK_INSERT, [row("a/b")])
    assert partitions(one) == ["a"]


def test_members_of_a_group_create_no_nested_partitions():
    table, _ = two_writers()
    works = []
    for path in ("a", "a/b"):
        workload = LocalWorkload(table.context.ports, as_table([row(path)]))
        glance = table.context.cached_snapshot()
        works.append(prepare_write(table.context, planned(table, UPSERT), workload, glance))
    first, second = commit_group(table.context, works)
    assert isinstance(first, CommitResult)
    assert second is NotCommitted.CONFLICTS
    assert partitions(table) == ["a"]


@pytest.mark.spec("PUB-13")
@pytest.mark.parametrize("limits", [BRISK, replace(BRISK, foreign_writers=EXPECTED)])
@pytest.mark.parametrize("theirs", ["a", "a/b/c"])
def test_a_partition_that_another_engine_creates_meanwhile_conflicts(
    theirs: str, limits: TableLimits
):
    table, _ = two_writers()
    one, storage = opened(table, limits=limits), table.context.ports.storage
    [source] = table.file_slices(["x/y"])
    assert source.base_file is not None
    content = storage.read(source.base_file.path)

    def another_engine() -> None:
        now = table.context.ports.clock.now_ms()
        began, ended = instant_time(WallMs(now + 50)), instant_time(WallMs(now + 60))
        path = f"{theirs}/{source.file_group.file_id}_0-9-9_{began}.parquet"
        stat = WriteStat(
            file_id=source.file_group.file_id,
            path=path,
            prev_commit=NO_PREVIOUS_COMMIT,
            partition_path=theirs,
            num_writes=1,
        )
        metadata = CommitMetadata(
            partition_to_write_stats={theirs: (stat,)}, operation_type=UPSERT.hudi_name
        )
        storage.create(f"{theirs}/.hoodie_partition_metadata", b"")
        storage.create(path, content)
        storage.create(timeline_path(f"{began}_{ended}.commit"), encode_commit(metadata))

    with pytest.raises(InvalidInputError) as refused:
        upsert(one, [row("a/b")], another_engine)
    assert refused.value.kind == "nested_partition"
    assert rows_of(opened(table), "id") == [("x/y",), ("x/y",)]


@pytest.mark.spec("PUB-13")
def test_in_mode_shared_a_folder_stays_while_a_pending_write_has_files_in_it():
    table, _ = two_writers()
    upsert(table, [row("a/b")])
    one = opened(table, limits=replace(BRISK, foreign_writers=EXPECTED))
    storage = table.context.ports.storage
    began = instant_time(WallMs(table.context.ports.clock.now_ms() + 50))
    pending = [timeline_path(name) for name in pending_file_names(Action.COMMIT, began)]
    for path in (*pending, "a/.hoodie_partition_metadata", f"a/f-0_0-9-9_{began}.parquet"):
        storage.create(path, b"")
    delete_hiding_metadata(one.context, ["a"])
    assert partitions(one) == []
    for path in pending:
        storage.delete(path)
    delete_hiding_metadata(one.context, ["a"])
    assert partitions(one) == ["a/b"]
