"""A slot orders a compaction of the metadata table against commits (MDT-8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import TableReader
from tests.unit.timeline.commit_slots import commit_slot
from tests.unit.timeline.engine import files_below, new_table
from timeline.codecs.commit_log import decode_slot, encode_slot
from timeline.commit.apply import apply, is_applied, metadata_plan_path
from timeline.model.file_names import METADATA_TABLE, TIMELINE
from timeline.model.instant import Action
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.slot import METADATA_VERSION, Slot, SlotKind, least_version_of_slot
from timeline.rollback.resolve_unknown import WriteOutcome, resolve

SLOT = replace(
    commit_slot(1),
    kind=SlotKind.METADATA,
    action=Action.COMPACTION,
    batches=(),
    body=b"the plan",
)
PLAN = f"{METADATA_TIMELINE}/{SLOT.requested_time}.compaction.requested"


def slot_of(table: TableReader) -> Slot:
    return replace(SLOT, table_id=table.context.table_id)


@pytest.mark.spec("MDT-8")
def test_the_slot_creates_the_plan_on_the_timeline_of_the_metadata_table_only() -> None:
    table = new_table()
    storage = table.context.ports.storage
    before = files_below(storage, TIMELINE)
    assert apply(table.context, slot_of(table))
    assert apply(table.context, slot_of(table))
    assert files_below(storage, METADATA_TABLE) == [PLAN]
    assert storage.read(PLAN) == b"the plan"
    assert files_below(storage, TIMELINE) == before


def test_a_lost_lock_keeps_the_plan_away() -> None:
    table = new_table()
    assert not apply(table.context, slot_of(table), may_show=lambda: False)
    assert files_below(table.context.ports.storage, METADATA_TABLE) == []


def test_no_process_helps_a_plan_of_the_metadata_table() -> None:
    table = new_table()
    assert is_applied(slot_of(table), table.context.active())


def test_the_slot_needs_the_engine_version_of_the_metadata_table() -> None:
    assert least_version_of_slot(SLOT) == METADATA_VERSION
    read = decode_slot(encode_slot(SLOT), path="slot", number=1)
    assert (read.body, read.least_engine_version) == (SLOT.body, METADATA_VERSION)


def test_the_slot_can_be_resolved_by_its_time() -> None:
    table = new_table()
    table.context.commit_log.take(slot_of(table))
    found = resolve(table.context, SLOT.requested_time)
    assert found.outcome is WriteOutcome.PUBLISHED
    assert "the metadata table" in found.why


def test_the_plan_has_the_name_of_a_requested_compaction() -> None:
    assert metadata_plan_path(SLOT.requested_time) == PLAN
