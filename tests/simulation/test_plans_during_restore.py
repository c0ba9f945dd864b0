"""RST-1: an executor or planner first finishes a restore that is at its deletes."""

from __future__ import annotations

import pytest

from tableservices.planned_service import Phase, PlannedServiceSettings, run_round
from tableservices.restoring.restore import finish_restore
from tests.simulation.asleep_kit import LOCK_FREE, OURS, SHARED, acting, all_slots
from tests.simulation.engine_kit import TOLERATED_MS, events_of, open_table, outside, rows_now
from tests.simulation.test_paused_services import SERVICES, does, grown, restores
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import Script, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.context import TableLimits
from timeline.errors import TableConfigConflictError
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import TIMELINE
from timeline.model.instant import Action
from timeline.model.slot import SlotKind

MOR = TableType.MERGE_ON_READ
EXPIRY_MS = PlannedServiceSettings().expiry_ms


@pytest.mark.spec("RST-1")
@pytest.mark.parametrize(
    ("action", "limits"),
    [
        (Action.COMPACTION, OURS),
        (Action.LOGCOMPACTION, LOCK_FREE),
        (Action.CLUSTERING, OURS),
        pytest.param(Action.COMPACTION, SHARED, marks=pytest.mark.slow),
        pytest.param(Action.LOGCOMPACTION, SHARED, marks=pytest.mark.slow),
        pytest.param(Action.CLUSTERING, SHARED, marks=pytest.mark.slow),
    ],
)
def test_an_executor_finishes_a_restore_that_died_during_its_deletes(
    action: Action, limits: TableLimits
) -> None:
    """The files are deleted before the plan, and possibly only a worker runs afterwards."""
    before = grown(action, MOR).copy("plan-beside-restore")
    run_round(open_table(outside(before, "planner")), SERVICES[action], Phase.SCHEDULE, now=True)
    rows = rows_now(before)
    found: list[dict[str, str]] = []

    def make() -> tuple[SimulatedSystem, list[Actor]]:
        world = before.copy("plan-beside-restore")
        restorer = acting("R", limits, restores)
        worker = acting("S", limits, does(action, Phase.EXECUTE), start_after="R")
        return world, [restorer, worker]

    for case in crash_points(make, "R"):
        slots = [one.kind for one in all_slots(case.world)]
        if limits is SHARED and SlotKind.RESTORE not in slots:
            continue  # shown and not decided: only an operator ends it
        why = f"call {case.call} {case.fault}\n{case.trace.story()}"
        assert case.trace.failure is None, why
        refused = [one for one in events_of(case.world, "sim.refused") if one["who"] == "S"]
        assert refused == [], why
        active = open_table(outside(case.world, "looker")).active()
        assert [one for one in active.pending if one.action is action] == [], why
        found.append(rows_now(case.world))
    assert found[0] != rows
    assert [one for one in found if one not in (found[0], rows)] == []


@pytest.mark.spec("RST-1")
def test_logs_deleted_by_a_restore_during_planning_are_left_out_of_the_plan() -> None:
    world = grown(Action.LOGCOMPACTION, MOR).copy("log-plan-beside-restore")
    script = Script([Until("S", "open_input a/"), UntilEnd("R"), UntilEnd("S")])
    actors = [
        acting("S", LOCK_FREE, does(Action.LOGCOMPACTION)),
        acting("R", LOCK_FREE, restores),
    ]
    trace = run(world, actors, faults=Faults(time_jump_ms=10), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    assert events_of(world, "sim.refused") == [], trace.story()
    assert world.counters["restore.done"] == 1


@pytest.mark.spec("PLAN-3")
@pytest.mark.spec("RST-1")
@pytest.mark.parametrize("part", [Phase.BOTH, Phase.EXECUTE])
@pytest.mark.parametrize("action", SERVICES)
def test_no_plan_is_made_or_completed_while_a_restore_is_visible_and_undecided(
    action: Action, part: Phase
) -> None:
    """
    Treats it as another engine's: it removes the plan's output, and merged rows would exist again.
    """
    world = grown(action, MOR).copy("shown-restore")
    if part is Phase.EXECUTE:
        run_round(open_table(outside(world, "planner")), SERVICES[action], Phase.SCHEDULE, now=True)
    restored = world.copy("restored")
    restores(None, open_table(outside(restored), SHARED))  # type: ignore[arg-type]
    shown = Script([Until("R", f"create {TIMELINE}/", Fault.CRASH_AFTER)])
    run(world, [acting("R", SHARED, restores)], policy=shown)
    world.now_ms += EXPIRY_MS + 10 * TOLERATED_MS  # a refusal says nothing about the plan
    context = open_table(outside(world, "worker"), SHARED)
    before = all_slots(world)
    with pytest.raises(TableConfigConflictError) as refused:
        run_round(context, SERVICES[action], part, now=True)
    assert refused.value.kind == "restore_pending"
    assert all_slots(world) == before
    finish_restore(open_table(outside(world, "operator"), SHARED))
    assert rows_now(world) == rows_now(restored)
    assert run_round(context, SERVICES[action], Phase.EXECUTE) is None
    assert open_table(outside(world)).active().pending == ()
