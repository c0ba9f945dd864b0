"""The files that each kind of slot creates and deletes when it is applied (SLOT-5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.engine import files_below, new_table
from timeline.codecs.instant_avro import encode_restore_plan, encode_rollback_plan
from timeline.commit.apply import apply, is_applied
from timeline.model.file_names import TIMELINE, timeline_path
from timeline.model.instant import Action
from timeline.model.plans import InstantInfo, RestorePlan, RollbackPlan
from timeline.model.slot import Slot, SlotKind, SlotOwner

RT, OWN, CT = "20260102030405005", "20260102030405009", "20260102030405011"
GONE, PENDING = "20260102030405006", "20260102030405008"
INFOS = tuple(InstantInfo(requested_time=time, action="commit") for time in (PENDING, GONE))
RESTORE = encode_restore_plan(
    RestorePlan(instants_to_rollback=INFOS, savepoint_to_restore_timestamp=RT)
)
ROLLBACK = encode_rollback_plan(RollbackPlan(instant_to_rollback=INFOS[1]))


def slot_of(table: TableReader, kind: SlotKind, action: Action, **fields: object) -> Slot:
    return Slot(
        **{
            "number": 1,
            "table_id": table.context.table_id,
            "kind": kind,
            "action": action,
            "requested_time": RT,
            "completion_time": CT,
            "base": 0,
            "nonce": "n",
            "owner": SlotOwner(host="h", pid=1, writer_id="w"),
            "body": b"body",
            "plan": b"plan",
            **fields,
        }
    )


def names(table: TableReader) -> dict[str, bytes]:
    storage = table.context.ports.storage
    paths = files_below(storage, TIMELINE)
    return {path.removeprefix(f"{TIMELINE}/"): storage.read(path) for path in paths}


WRITTEN = {
    "plan": (
        (SlotKind.PLAN, Action.COMPACTION, {"completion_time": RT}),
        {f"{RT}.compaction.requested": b"body"},
    ),
    "log compaction plan": (
        (SlotKind.PLAN, Action.LOGCOMPACTION, {"completion_time": RT}),
        {f"{RT}.logcompaction.requested": b"body"},
    ),
    "clustering plan": (
        (SlotKind.PLAN, Action.CLUSTERING, {"completion_time": RT}),
        {f"{RT}.clustering.requested": b"body"},
    ),
    "completed compaction": (
        (SlotKind.COMMIT, Action.COMPACTION, {}),
        {f"{RT}.compaction.requested": b"", f"{RT}_{CT}.commit": b"body"},
    ),
    "savepoint": (
        (SlotKind.SAVEPOINT, Action.SAVEPOINT, {}),
        {f"{RT}.savepoint.inflight": b"", f"{RT}_{CT}.savepoint": b"body"},
    ),
    "restore": (
        (SlotKind.RESTORE, Action.RESTORE, {"own_requested_time": OWN, "plan": RESTORE}),
        {
            f"{OWN}.restore.requested": RESTORE,
            f"{OWN}.restore.inflight": b"",
            f"{OWN}_{CT}.restore": b"body",
        },
    ),
    "rollback of a completed write": (
        (SlotKind.RESTORE, Action.ROLLBACK, {"own_requested_time": OWN, "plan": ROLLBACK}),
        {
            f"{OWN}.rollback.requested": ROLLBACK,
            f"{OWN}.rollback.inflight": b"",
            f"{OWN}_{CT}.rollback": b"body",
        },
    ),
    "noop": ((SlotKind.NOOP, Action.COMMIT, {}), {}),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_apply_creates_the_files_of_each_slot_kind(name: str):
    (kind, action, fields), expected = WRITTEN[name]
    table = new_table()
    slot = slot_of(table, kind, action, **fields)
    if kind is SlotKind.COMMIT:
        table.context.ports.storage.create(timeline_path(f"{RT}.compaction.requested"), b"")
    assert is_applied(slot, table.context.active()) is (not expected)
    apply(table.context, slot)
    apply(table.context, slot)
    assert names(table) == expected
    assert is_applied(slot, table.context.active())


def test_applying_a_cancel_deletes_the_plan_and_its_data_files():
    table = new_table()
    storage = table.context.ports.storage
    apply(table.context, slot_of(table, SlotKind.PLAN, Action.COMPACTION, completion_time=RT))
    storage.create(timeline_path(f"{RT}.compaction.inflight"), b"")
    storage.create("x/.hoodie_partition_metadata", b"")
    storage.create(f"x/f-0_0-0-0_{RT}.parquet", b"rows")
    storage.create(f"x/f-0_0-0-0_{OWN}.parquet", b"rows")
    cancel = slot_of(table, SlotKind.CANCEL, Action.COMPACTION)
    assert not is_applied(cancel, table.context.active())
    apply(table.context, cancel)
    apply(table.context, cancel)
    assert names(table) == {}
    assert files_below(storage, "x") == [
        "x/.hoodie_partition_metadata",
        f"x/f-0_0-0-0_{OWN}.parquet",
    ]
    assert is_applied(cancel, table.context.active())
    assert cancel.file_name is None


def test_applying_the_end_of_a_savepoint_deletes_its_files():
    table = new_table()
    made = slot_of(table, SlotKind.SAVEPOINT, Action.SAVEPOINT)
    apply(table.context, made)
    paths = tuple(timeline_path(name) for name in names(table))
    ended = replace(made, kind=SlotKind.UNSAVEPOINT, deletes=paths)
    assert not is_applied(ended, table.context.active())
    apply(table.context, ended)
    assert names(table) == {}
    assert is_applied(ended, table.context.active())


@pytest.mark.spec("RST-1")
def test_applying_a_restore_deletes_exactly_the_files_that_its_plan_names():
    table = new_table()
    storage = table.context.ports.storage
    storage.create("x/.hoodie_partition_metadata", b"")
    for time in (RT, GONE, PENDING, CT):
        storage.create(f"x/f-0_0-0-0_{time}.parquet", b"rows")
        storage.create(f"x/.f-0_{time}.log.1_0-0-0", b"rows")
        storage.create(timeline_path(f"{time}.inflight"), b"")
        storage.create(f".hoodie/.heartbeat/{time}", b"")
    kept = f"{RT}_{GONE[:-1]}7.commit"
    storage.create(timeline_path(kept), b"")
    storage.create(timeline_path(f"{GONE}_{PENDING[:-1]}9.commit"), b"")
    storage.create(timeline_path(f"{GONE[:-1]}7_{OWN}.rollback"), b"")
    storage.create(timeline_path(f"{OWN[:-2]}10.rollback.requested"), b"")  # of a dead restore
    slot = slot_of(table, SlotKind.RESTORE, Action.RESTORE, own_requested_time=OWN, plan=RESTORE)
    apply(table.context, slot)
    apply(table.context, slot)
    assert [name for name in names(table) if OWN not in name] == [
        f"{RT}.inflight",
        kept,
        f"{CT}.inflight",
    ]
    assert files_below(storage, "x") == [
        f"x/.f-0_{RT}.log.1_0-0-0",
        f"x/.f-0_{CT}.log.1_0-0-0",
        "x/.hoodie_partition_metadata",
        f"x/f-0_0-0-0_{RT}.parquet",
        f"x/f-0_0-0-0_{CT}.parquet",
    ]
    assert files_below(storage, ".hoodie/.heartbeat") == [
        f".hoodie/.heartbeat/{RT}",
        f".hoodie/.heartbeat/{CT}",
    ]


@pytest.mark.parametrize("kind", [SlotKind.ABORT, SlotKind.CLEAN, SlotKind.RESTORE])
def test_a_service_slot_that_another_engine_completed_is_applied(kind: SlotKind):
    table = new_table()
    action = {SlotKind.ABORT: Action.COMMIT, SlotKind.CLEAN: Action.CLEAN}.get(kind, Action.RESTORE)
    slot = slot_of(table, kind, action, own_requested_time=OWN)
    ending = {SlotKind.ABORT: "rollback"}.get(kind, kind.value)
    time = slot.instant_time
    for name in (f"{time}.{ending}.requested", f"{time}.{ending}.inflight"):
        table.context.ports.storage.create(timeline_path(name), b"")
    assert not is_applied(slot, table.context.active())
    table.context.ports.storage.create(timeline_path(f"{time}_{CT[:-1]}9.{ending}"), b"")
    assert is_applied(slot, table.context.active())


@pytest.mark.spec("RST-3")
def test_a_commit_whose_files_are_all_deleted_is_not_applied_again():
    table = new_table()
    slot = slot_of(table, SlotKind.COMMIT, Action.COMMIT)
    assert is_applied(slot, table.context.active())
    table.context.ports.storage.create(timeline_path(f"{RT}.commit.requested"), b"")
    assert not is_applied(slot, table.context.active())
