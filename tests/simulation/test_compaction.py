"""
Compaction and concurrent writers: every death, two executors, a cancel during a completion.

After each a survivor finishes all plans; then the rows must be those of the writers alone, and
nothing may be left over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from tableservices.compaction.execute import CompactionService, execute_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionService, LogCompactionSettings
from tableservices.planned_service import Phase, run_round
from tableservices.service import pending_plans
from tests.simulation.engine_kit import (
    FILES,
    RETAINED,
    EngineObserver,
    Job,
    heal,
    open_table,
    outside,
    patiently,
    play,
    rows_now,
    seeded,
    writer,
)
from tests.simulation.test_engine_crashes import _PowerCut as PowerCut
from tests.simulator.faults import Fault, Faults, PlannedPolicy
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import TableType, WriteOperation

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SERVICE = CompactionService(settings=CompactionSettings(), files=FILES)
OF_LOGS = LogCompactionService(settings=LogCompactionSettings(blocks_min=2), files=FILES)
KEYS = ("a1", "a2", "b1")


def logged(scenario: str) -> SimulatedSystem:
    """Two file groups with a log each."""
    world = seeded(scenario, KEYS, table_type=TableType.MERGE_ON_READ)
    play(world, [writer("old", [Job(operation="old", keys=("a1", "b1"))])], [])
    return world


def planned(scenario: str) -> SimulatedSystem:
    """The same with a plan for both that no executor has begun."""
    world = logged(scenario)
    run_round(open_table(outside(world, "planner")), SERVICE, Phase.SCHEDULE, now=True)
    return world


def serving(name: str, act: Callable[[TableContext], object]) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, open_table)
        try:
            act(context)
        except HoodooError as error:
            ports.events.emit("sim.service_failed", why=str(error))

    return Actor(name=name, body=body)


def compact(context: TableContext) -> None:
    run_round(context, SERVICE, now=True)


def execute(context: TableContext) -> None:
    for one in pending_plans(context.active()):
        execute_compaction(context, one, FILES)


def execute_unclaimed(context: TableContext) -> None:
    """Execute although another executor may work; it counts as dead at any moment (HB-4)."""
    storage = context.ports.storage
    for one in pending_plans(context.active()):
        storage.delete(f".hoodie/.heartbeat/{one.requested_time}")
        execute_compaction(context, one, FILES)


def compact_logs(context: TableContext) -> None:
    run_round(context, OF_LOGS, now=True)


def call_off(context: TableContext) -> None:
    for one in pending_plans(context.active()):
        cancel_pending_plan(context, one)


def both(context: TableContext) -> None:
    compact_logs(context)
    compact(context)


def expect_healed(world: SimulatedSystem, trace: Trace, why: str) -> None:
    assert trace.failure is None, f"{why}: {trace.failure}\n{trace.story()}"
    facts = EngineObserver(world, commits_retained=RETAINED)
    healing = heal(world, facts, before_cleaning=both)
    assert healing.failure is None, (
        f"{why}: {healing.failure}\n{trace.story()}\n--- healing\n{healing.story()}"
    )


def compacting() -> tuple[SimulatedSystem, Sequence[Actor]]:
    """Plan, execution and completion, then a writer on top."""
    return logged("crash-compactor"), [
        serving("C", compact),
        writer("A", [Job(operation="A", keys=("a1", "a3"))], start_after="C"),
    ]


def test_compactor_killed_at_every_call() -> None:
    cases = list(crash_points(compacting, "C"))
    assert len(cases) >= 50
    assert cases[0].world.counters["service.done"] == 1
    for case in cases:
        why = f"call {case.call} {case.fault}"
        now = rows_now(case.world)
        assert now == {"a1": "A", "a2": "seed", "a3": "A", "b1": "old"}, why
        expect_healed(case.world, case.trace, why)


@pytest.mark.slow
def test_power_cut_at_every_call_of_a_compaction() -> None:
    """LOC-2: a base file that its commit names is on the disk before the slot."""
    world, actors = compacting()
    steps = len(run(world, actors, policy=PlannedPolicy()).steps)
    for at in range(steps):
        world, actors = compacting()
        trace = run(world, actors, policy=PowerCut(at))
        expect_healed(world, trace, f"power cut at {at}")


def test_another_executor_finishes_after_every_death() -> None:
    """The first dies at each of its calls; the second runs the plan again at once."""

    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        return planned("crash-executor"), [
            serving("C", execute),
            serving("D", execute_unclaimed),
        ]

    for case in crash_points(make, "C"):
        why = f"call {case.call} {case.fault}"
        assert case.trace.failure is None, f"{why}: {case.trace.failure}\n{case.trace.story()}"
        assert open_table(outside(case.world, "looker")).active().pending == (), why
        assert rows_now(case.world) == {"a1": "old", "a2": "seed", "b1": "old"}, why
        expect_healed(case.world, case.trace, why)


@pytest.mark.parametrize("second", [execute_unclaimed, call_off], ids=["executor", "canceller"])
def test_one_plan_has_one_end(second: Callable[[TableContext], None]) -> None:
    """Two executors, or one and a canceller, with a writer, in any order and with a death."""
    ended = set()
    for seed in range(300 if NIGHTLY else 15):
        world = planned("two-ends")
        actors = [
            serving("C", execute),
            serving("D", second),
            writer("A", [Job(operation="A", keys=("a1",)), Job(operation="B", keys=("b1", "b2"))]),
        ]
        facts = EngineObserver(world, commits_retained=RETAINED)
        budgets = {Fault.CRASH_BEFORE: seed % 2, Fault.AMBIGUOUS_APPLIED: 1}
        faults = Faults(budgets=budgets, victims=frozenset({"C", "D"}))
        trace = run(world, actors, seed=seed, faults=faults, check_step=facts.check_step)
        ended.add((world.counters["service.done"], world.counters["service.cancelled"]))
        expect_healed(world, trace, f"seed {seed}")
    assert (1, 1) not in ended
    assert len(ended) > 1


def test_concurrent_planning_and_writing_lose_no_log() -> None:
    """PLAN-2: a log is in the plan or on top of it, whichever commits later."""
    for seed in range(300 if NIGHTLY else 5):
        world = logged("plan-and-log")
        actors = [
            serving("C", compact),
            writer("A", [Job(operation="A", keys=("a1",)), Job(operation="B", keys=("a2",))]),
            writer("W", [Job(operation="D", keys=("b1",), kind=WriteOperation.DELETE)]),
        ]
        facts = EngineObserver(world, commits_retained=RETAINED)
        faults = Faults(budgets={Fault.AMBIGUOUS_LATE: 1, Fault.CRASH_BEFORE: seed % 2})
        trace = run(world, actors, seed=seed, faults=faults, check_step=facts.check_step)
        expect_healed(world, trace, f"seed {seed}")


def twice_logged(scenario: str) -> SimulatedSystem:
    """One file group with two logs, another with one."""
    world = logged(scenario)
    play(world, [writer("older", [Job(operation="older", keys=("a2",))])], [])
    return world


def test_log_compactor_killed_at_every_call() -> None:
    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        return twice_logged("crash-log-compactor"), [
            serving("C", compact_logs),
            writer("A", [Job(operation="A", keys=("a1", "a3"))], start_after="C"),
        ]

    cases = list(crash_points(make, "C"))
    assert len(cases) >= 40
    assert cases[0].world.counters["service.done"] == 1
    for case in cases:
        why = f"call {case.call} {case.fault}"
        now = rows_now(case.world)
        assert now == {"a1": "A", "a2": "older", "a3": "A", "b1": "old"}, why
        expect_healed(case.world, case.trace, why)


def test_log_compaction_concurrent_with_a_compaction_and_writers() -> None:
    """LC-1: it is never on top of newer rows."""
    for seed in range(300 if NIGHTLY else 5):
        world = twice_logged("two-compactions")
        actors = [
            serving("L", compact_logs),
            serving("C", compact),
            writer("A", [Job(operation="A", keys=("a1",)), Job(operation="B", keys=("a2",))]),
        ]
        facts = EngineObserver(world, commits_retained=RETAINED)
        faults = Faults(budgets={Fault.AMBIGUOUS_LATE: 1, Fault.CRASH_BEFORE: seed % 2})
        trace = run(world, actors, seed=seed, faults=faults, check_step=facts.check_step)
        expect_healed(world, trace, f"seed {seed}")


def test_a_key_that_a_compaction_drops_is_inserted_again_once() -> None:
    """CMP-4, C14: writers bring a deleted key back while its delete is compacted, and after."""
    ends = set()
    for seed in range(300 if NIGHTLY else 30):
        world = logged("dropped-key")
        gone = Job(operation="gone", keys=("a1",), kind=WriteOperation.DELETE)
        play(world, [writer("D", [gone])], [])
        run_round(open_table(outside(world, "planner")), SERVICE, Phase.SCHEDULE, now=True)
        actors = [
            serving("C", execute),
            writer("A", [Job(operation="A", keys=("a1",), pause_ms=seed % 4 * 25)]),
            writer("W", [Job(operation="E", keys=("a1", "a2"))], start_after="C"),
        ]
        facts = EngineObserver(world, commits_retained=RETAINED)
        trace = run(world, actors, seed=seed, check_step=facts.check_step)
        ends.add(rows_now(world)["a1"])
        expect_healed(world, trace, f"seed {seed}")
    assert ends == {"A", "E"}
