"""An executor that waits for another one's plan: whenever that one dies, the plan is completed."""

from __future__ import annotations

from collections.abc import Sequence

from tableservices.planned_service import Phase, run_round
from tableservices.service import pending_plans
from tests.simulation.engine_kit import open_table, outside, rows_now
from tests.simulation.test_compaction import SERVICE, execute, planned, serving
from tests.simulator.ports import Actor
from tests.simulator.scheduler import crash_points
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext


def wait_and_execute(context: TableContext) -> None:
    silence = context.limits.heartbeat.tolerated_ms
    run_round(context, SERVICE, Phase.EXECUTE, wait_ms=3 * silence)


def executing_while_another_waits() -> tuple[SimulatedSystem, Sequence[Actor]]:
    """Both conflict with one plan."""
    return planned("crash-waited-for"), [
        serving("C", execute),
        serving("W", wait_and_execute),
    ]


def test_a_waiting_executor_completes_the_plan_of_one_killed_at_any_call() -> None:
    cases = list(crash_points(executing_while_another_waits, "C"))
    assert len(cases) >= 20
    waits = 0
    for case in cases:
        why = f"call {case.call} {case.fault}"
        waits += case.world.counters["service.waiting"]
        # None where it died between its slot and its event: then the slot completed the plan.
        assert case.world.counters["service.done"] <= 1, why
        assert pending_plans(open_table(outside(case.world, "looker")).active()) == (), why
        assert rows_now(case.world) == {"a1": "old", "a2": "seed", "b1": "old"}, why
    assert waits > 5
