"""Another engine was to roll back its own attempt at a plan that we execute (PUB-6, RB-5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import TableReader
from tableservices.compaction.execute import execute_compaction, schedule_compaction
from tableservices.compaction.plan import CompactionSettings
from tests.unit.timeline.engine import BRISK, SMALL, StillClock, new_table, rows_of, upsert
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.codecs.instant_avro import encode_rollback_plan
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import timeline_path
from timeline.model.instant import Action, Instant
from timeline.model.plans import InstantInfo
from timeline.properties.setting_enums import ForeignWriters
from timeline.rollback.rollback import rollback_plan

HOUR_MS = 3_600_000


def planned_and_undone(clock: StillClock) -> tuple[TableReader, Instant]:
    """A plan, and a rollback of a try at it that got no further than its pending files."""
    storage = MemoryStorage(ports=MemoryWorld(clock))
    limits = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
    table = new_table(storage, table_type=TableType.MERGE_ON_READ, clock=clock, limits=limits)
    upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}])
    upsert(table, [{"id": "a", "p": "x", "ts": 2, "v": 2}])
    plan = schedule_compaction(table.context, CompactionSettings(), SMALL)
    assert plan is not None
    info = InstantInfo(requested_time=plan.requested_time, action=Action.COMPACTION.value)
    body = encode_rollback_plan(rollback_plan(storage, info, ()))
    time = int(plan.requested_time) + 4
    for state, data in (("requested", body), ("inflight", b"")):
        storage.create(timeline_path(f"{time}.rollback.{state}"), data)
    return table, plan


def actions(table: TableReader) -> list[Action]:
    return [one.action for one in table.context.active().instants]


@pytest.mark.spec("PUB-6")
def test_a_plan_is_not_completed_while_a_live_engine_rolls_it_back() -> None:
    table, plan = planned_and_undone(StillClock())
    assert execute_compaction(table.context, plan, SMALL) is None
    assert actions(table)[-2:] == [Action.COMPACTION, Action.ROLLBACK]


@pytest.mark.spec("RB-5")
def test_a_plan_is_completed_over_an_abandoned_rollback_which_is_deleted() -> None:
    """Otherwise its engine would finish it later, and delete files that are committed now."""
    clock = StillClock()
    table, plan = planned_and_undone(clock)
    clock.sleep_ms(HOUR_MS)
    assert execute_compaction(table.context, plan, SMALL) is not None
    assert Action.ROLLBACK not in actions(table)
    assert rows_of(table, "id", "v") == [("a", 2)]
