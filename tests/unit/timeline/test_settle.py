"""What each kind of slot writes and takes away, as a function of the slot alone (SLOT-5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.timeline.engine import files_below, new_table
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind, SlotOwner
from timeline.places import TIMELINE, timeline_path
from timeline.settle import completed_name, is_settled, settle
from timeline.table import Table

RT, OWN, CT = "20260102030405005", "20260102030405009", "20260102030405011"


def slot_of(table: Table, kind: SlotKind, action: Action, **fields: object) -> Slot:
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


def names(table: Table) -> dict[str, bytes]:
    storage = table.context.world.storage
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
        {f"{RT}_{CT}.commit": b"body"},
    ),
    "savepoint": (
        (SlotKind.SAVEPOINT, Action.SAVEPOINT, {}),
        {f"{RT}.savepoint.inflight": b"", f"{RT}_{CT}.savepoint": b"body"},
    ),
    "restore": (
        (SlotKind.RESTORE, Action.COMMIT, {"own_requested_time": OWN}),
        {
            f"{OWN}.restore.requested": b"plan",
            f"{OWN}.restore.inflight": b"",
            f"{OWN}_{CT}.restore": b"body",
        },
    ),
    "noop": ((SlotKind.NOOP, Action.COMMIT, {}), {}),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_slot_writes_its_files(name: str):
    (kind, action, fields), expected = WRITTEN[name]
    table = new_table()
    slot = slot_of(table, kind, action, **fields)
    assert is_settled(slot, table.context.active()) is (not expected)
    settle(table.context, slot)
    settle(table.context, slot)
    assert names(table) == expected
    assert is_settled(slot, table.context.active())


def test_a_cancel_takes_the_plan_away_and_what_was_written_for_it():
    table = new_table()
    storage = table.context.world.storage
    settle(table.context, slot_of(table, SlotKind.PLAN, Action.COMPACTION, completion_time=RT))
    storage.create(timeline_path(f"{RT}.compaction.inflight"), b"")
    storage.create("x/.hoodie_partition_metadata", b"")
    storage.create(f"x/f-0_0-0-0_{RT}.parquet", b"rows")
    storage.create(f"x/f-0_0-0-0_{OWN}.parquet", b"rows")
    cancel = slot_of(table, SlotKind.CANCEL, Action.COMPACTION)
    assert not is_settled(cancel, table.context.active())
    settle(table.context, cancel)
    settle(table.context, cancel)
    assert names(table) == {}
    assert files_below(storage, "x") == [
        "x/.hoodie_partition_metadata",
        f"x/f-0_0-0-0_{OWN}.parquet",
    ]
    assert is_settled(cancel, table.context.active())
    assert completed_name(cancel) is None


def test_the_end_of_a_savepoint_takes_its_files_away():
    table = new_table()
    made = slot_of(table, SlotKind.SAVEPOINT, Action.SAVEPOINT)
    settle(table.context, made)
    paths = tuple(timeline_path(name) for name in names(table))
    ended = replace(made, kind=SlotKind.UNSAVEPOINT, deletes=paths)
    assert not is_settled(ended, table.context.active())
    settle(table.context, ended)
    assert names(table) == {}
    assert is_settled(ended, table.context.active())
