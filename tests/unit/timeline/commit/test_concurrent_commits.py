"""Commits that became visible during a write, as the conflict rules receive them (FOR-2, FOR-6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.timeline.archives import with_metadata
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import heard, new_table
from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.codecs.instant_avro import encode_commit, encode_rollback_plan
from timeline.commit.concurrent_commits import archived_commits, commit_of_slot, foreign_commits
from timeline.context import TableContext
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import (
    NO_PREVIOUS_COMMIT,
    WHOLE_TABLE,
    Access,
    CommitMetadata,
    FileGroupId,
    WriteOperation,
    WriteStat,
    write_set_of,
)
from timeline.model.file_names import TIMELINE
from timeline.model.instant import Action
from timeline.model.plans import InstantInfo, RollbackPlan
from timeline.model.slot import SlotKind
from timeline.pending_plans import pending_rollback_of, rollback_target
from timeline.rules.conflicts import ConcurrentCommit

T1, T2, T3, T4, T5 = (f"2026010100000{n}000" for n in range(1, 6))
F = FileGroupId("x", "f")


def stat(**facts: object) -> WriteStat:
    return WriteStat(**{"file_id": "f", "path": "x/f_0-1-0_1.parquet", "prev_commit": T1, **facts})


def commit(operation: str = "UPSERT", **facts: object) -> CommitMetadata:
    return CommitMetadata(
        partition_to_write_stats={"x": (stat(**facts),)}, operation_type=operation
    )


# ---- the archive


@pytest.fixture
def story() -> tuple[TableContext, RecordingStorage]:
    """Create a table of which only the newest instants are not archived."""
    storage = RecordingStorage(MemoryStorage())
    context = new_table(storage).context
    rows = [(T1, T1, "commit"), (T2, T3, "commit"), (T3, T4, "clean"), (T4, T5, "deltacommit")]
    with_metadata(storage, lambda time: encode_commit(commit()), (f"{T1}_{T5}_0.parquet", rows))
    return context, storage


def times(found_commits: list[ConcurrentCommit]) -> list[tuple[str, str]]:
    return [(one.requested_time, one.completion_time) for one in found_commits]


@pytest.mark.spec("FOR-6")
@pytest.mark.parametrize(
    ("first", "known", "remaining"),
    [
        (T1, [], [(T1, T1), (T2, T3), (T4, T5)]),
        (T2, [], [(T2, T3), (T4, T5)]),
        (T3, [], [(T4, T5)]),
        (T1, [(T1, T1), (T4, T5)], [(T2, T3)]),
        (T1, [(T1, T1), (T2, T2), (T5, T5)], [(T2, T3), (T4, T5)]),
        (T5, [], []),
    ],
)
def test_archived_writes_that_were_not_known_as_completed_are_concurrent_commits(
    story: tuple[TableContext, RecordingStorage],
    first: str,
    known: list[tuple[str, str]],
    remaining: list[tuple[str, str]],
) -> None:
    found = archived_commits(story[0], first, frozenset(known))
    assert times(found) == remaining
    assert all([item.file_group for item in one.write_set.file_groups] == [F] for one in found)
    assert {one.writer for one in found} <= {"another engine"}


@pytest.mark.spec("FOR-6")
@pytest.mark.parametrize(
    ("first", "known"), [(T5, frozenset()), (T2, frozenset({(T2, T3), (T3, T4), (T4, T5)}))]
)
def test_the_archive_is_not_read_where_all_its_times_are_known(
    story: tuple[TableContext, RecordingStorage],
    first: str,
    known: frozenset[tuple[str, str]],
) -> None:
    context, storage = story
    context.archived_timeline.times()
    storage.forget()
    assert archived_commits(context, first, known) == []
    assert not [one for one in storage.operations() if one.endswith(".parquet")]


# ---- another engine's instants


def foreign(name: str, content: bytes, *fresh: tuple[str, str]) -> list[ConcurrentCommit]:
    context = new_table().context
    context.ports.storage.create(f"{TIMELINE}/{name}", content)
    found = foreign_commits(context, context.active(), fresh)
    assert len(heard(context, "publish.foreign")) == len(found)
    return found


@pytest.mark.spec("FOR-2")
def test_a_commit_of_another_engine_has_the_write_set_of_its_metadata() -> None:
    metadata = commit(num_deletes=1, num_inserts=2)
    [found] = foreign(f"{T1}_{T2}.commit", encode_commit(metadata), (T1, T2), (T1, T3), (T2, T2))
    assert (found.requested_time, found.completion_time) == (T1, T2)
    assert (found.aborts, found.restores, found.is_compaction) == (None, False, False)
    assert (found.write_set, set(found.dropped())) == (write_set_of(metadata), {F})
    assert found.schema == "", "it does not name its schema"


@pytest.mark.parametrize(
    ("operation", "is_compaction", "dropped"),
    [("UPSERT", False, {F}), ("COMPACT", True, {F}), ("LOG_COMPACT", True, set())],
)
def test_a_compaction_only_moves_rows_and_a_log_compaction_keeps_deletes(
    operation: str, is_compaction: bool, dropped: set[FileGroupId]
) -> None:
    metadata = encode_commit(commit(operation, num_deletes=1))
    [found] = foreign(f"{T1}_{T2}.commit", metadata, (T1, T2))
    assert (found.is_compaction, set(found.dropped())) == (is_compaction, dropped)


@pytest.mark.parametrize(
    "plan",
    [None, RollbackPlan(instant_to_rollback=InstantInfo(requested_time=T1, action="commit"))],
)
def test_a_rollback_of_another_engine_aborts_the_instant_of_its_plan(
    plan: RollbackPlan | None,
) -> None:
    context = new_table().context
    storage = context.ports.storage
    if plan is not None:
        storage.create(f"{TIMELINE}/{T2}.rollback.requested", encode_rollback_plan(plan))
    storage.create(f"{TIMELINE}/{T2}_{T3}.rollback", b"done")
    [found] = foreign_commits(context, context.active(), [(T2, T3)])
    assert (found.aborts, found.restores) == (T1 if plan else None, False)


@pytest.mark.parametrize(("action", "restores"), [("clean", False), ("restore", True)])
def test_other_services_of_another_engine_access_no_file_group(action: str, restores: bool) -> None:
    [found] = foreign(f"{T2}_{T3}.{action}", b"done", (T2, T3))
    assert (found.aborts, found.restores, found.is_compaction) == (None, restores, False)
    assert (found.write_set.file_groups, found.schema, found.dropped()) == ((), "", frozenset())


# ---- pending rollbacks


def rolling_back(context: TableContext, time: str, content: bytes) -> None:
    context.ports.storage.create(f"{TIMELINE}/{time}.rollback.requested", content)


def plan_for(target: str) -> bytes:
    return encode_rollback_plan(
        RollbackPlan(instant_to_rollback=InstantInfo(requested_time=target, action="commit"))
    )


@pytest.mark.parametrize(
    ("before", "content"),
    [
        pytest.param("commit.requested", b"", id="a write"),
        pytest.param("rollback.requested", b"damaged", id="a rollback whose plan is damaged"),
        pytest.param("rollback.requested", plan_for(T5), id="one of another write"),
    ],
)
def test_the_target_of_a_rollback_is_found(before: str, content: bytes) -> None:
    context = new_table().context
    context.ports.storage.create(f"{TIMELINE}/{T2}.{before}", content)
    rolling_back(context, T3, plan_for(T1))
    found = pending_rollback_of(context, context.active(), T1)
    assert found is not None
    assert found.requested_time == T3
    assert pending_rollback_of(context, context.active(), T4) is None


def test_a_damaged_rollback_plan_raises_only_when_its_target_is_read() -> None:
    context = new_table().context
    rolling_back(context, T2, b"damaged")
    [pending] = context.active().pending
    with pytest.raises(CorruptTableError):
        rollback_target(context, pending)


# ---- the write set of a commit


@pytest.mark.parametrize(
    ("facts", "access", "source", "files"),
    [
        ({"path": "x/f_1.parquet"}, Access.BASE, T1, ("f_1.parquet",)),
        ({"path": "f_1.parquet"}, Access.BASE, T1, ("f_1.parquet",)),
        ({"path": None}, Access.BASE, T1, ()),
        ({"path": "x/"}, Access.BASE, T1, ()),
        ({"prev_commit": None, "path": "x/g"}, Access.NEW, None, ("g",)),
        ({"prev_commit": NO_PREVIOUS_COMMIT, "path": "x/g"}, Access.NEW, None, ("g",)),
        ({"path": "x/.f_1.log.1_0-1-0"}, Access.LOG, None, (".f_1.log.1_0-1-0",)),
    ],
)
def test_a_write_stat_gives_access_source_and_files_of_its_file_group(
    facts: dict[str, object], access: Access, source: str | None, files: tuple[str, ...]
) -> None:
    [item] = write_set_of(commit(file_size_in_bytes=7, **facts)).file_groups
    assert (item.file_group, item.access, item.source_requested_time) == (F, access, source)
    assert (item.files, item.written_bytes) == (files, 7)


@pytest.mark.parametrize(
    ("operation", "inserts", "inserting"),
    [
        ("UPSERT", 1, ("x",)),
        ("UPSERT", 0, ()),
        ("COMPACT", 1, ()),
        ("LOG_COMPACT", 1, ()),
        ("CLUSTER", 1, ("x",)),
    ],
)
def test_only_new_rows_make_a_partition_an_insert_target(
    operation: str, inserts: int, inserting: tuple[str, ...]
) -> None:
    assert write_set_of(commit(operation, num_inserts=inserts)).inserting == inserting


@pytest.mark.spec("BEG-7")
@pytest.mark.parametrize(
    ("operation", "claimed"),
    [
        (WriteOperation.INSERT_OVERWRITE, ("x", "y")),
        (WriteOperation.DELETE_PARTITION, ("x", "y")),
        (WriteOperation.INSERT_OVERWRITE_TABLE, (WHOLE_TABLE,)),
        (WriteOperation.UPSERT, ()),
    ],
)
def test_the_write_set_of_an_overwrite_has_replaced_and_written_partitions(
    operation: WriteOperation, claimed: tuple[str, ...]
) -> None:
    metadata = CommitMetadata(
        partition_to_write_stats={"x": (stat(),)},
        partition_to_replace_file_ids={"y": ("g",)},
        operation_type=operation.hudi_name,
    )
    write_set = write_set_of(metadata)
    assert write_set.partitions == claimed
    touches = [(item.file_group, item.access) for item in write_set.file_groups]
    assert touches == [(F, Access.BASE), (FileGroupId("y", "g"), Access.REPLACE)]


# ---- slots


@pytest.mark.parametrize(
    ("kind", "action", "aborts", "restores", "is_compaction", "dropped"),
    [
        (SlotKind.COMMIT, Action.COMMIT, False, False, False, {F}),
        (SlotKind.COMMIT, Action.COMPACTION, False, False, True, {F}),
        (SlotKind.COMMIT, Action.LOGCOMPACTION, False, False, True, {F}),
        (SlotKind.ABORT, Action.COMMIT, True, False, False, set()),
        (SlotKind.RESTORE, Action.RESTORE, False, True, False, set()),
    ],
)
def test_a_slot_becomes_a_concurrent_commit_of_its_kind(
    kind: SlotKind,
    action: Action,
    aborts: bool,
    restores: bool,
    is_compaction: bool,
    dropped: set[FileGroupId],
) -> None:
    slot = commit_slot(1, kind=kind, body=encode_commit(commit(num_deletes=1)))
    found = commit_of_slot(replace(slot, action=action))
    assert found.aborts == (slot.requested_time if aborts else None)
    assert (found.restores, found.is_compaction) == (restores, is_compaction)
    assert set(found.dropped()) == dropped
    assert found.writer == "pid 1 on h"
