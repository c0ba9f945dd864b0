"""
A writer with priority and the executor of the clustering it conflicts with, simulated.

Each is killed at every call while the other runs, and both run in seeded orders. A plan has
exactly one end: its result or its cancel. Rows are exact in both cases. A mutant that completes
without a check of its plan is found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from tableservices.clustering.plan import schedule_clustering
from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    EngineObserver,
    Job,
    MakeContext,
    heal,
    open_table,
    outside,
    rows_now,
    writer,
)
from tests.simulation.mutants import with_context
from tests.simulation.test_engine_clustering import (
    SETTINGS,
    clusterer,
    expect_healed,
    small_files,
    successor,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor
from tests.simulator.scheduler import crash_points, run
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.model.file_names import pending_file_names
from timeline.model.slot import SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import ClusteringUpdates
from timeline.rules.conflicts import find_strategy
from timeline.snapshot import ActiveTimeline

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
_STRATEGY = find_strategy("prefer_writer")
assert _STRATEGY is not None
#: Every conflicting clustering would reject the writer, as with another engine.
FIRST = replace(
    LIMITS,
    clustering_updates=ClusteringUpdates.REJECT,
    strategy=_STRATEGY,
    cancels_conflicting_plans=True,
)


def goes_first(world: EngineWorld) -> TableContext:
    return open_table(world, FIRST)


def preferred(name: str = "A", *, pause_ms: int = 0) -> Actor:
    job = Job(operation=name, keys=("a1", "b1"), pause_ms=pause_ms)
    return writer(name, [job], make_context=goes_first)


def planned_world(scenario: str) -> SimulatedSystem:
    world = small_files(scenario)
    schedule_clustering(open_table(outside(world, "planner")), SETTINGS)
    return world


def ends_of_plans(world: SimulatedSystem) -> list[list[SlotKind]]:
    """For each plan of a clustering, the kinds of the slots that ended it."""
    slots = open_table(outside(world, "judge")).commit_log.newest_first()
    ends: dict[str, list[SlotKind]] = {}
    for slot in slots:
        if slot.action.completes_as is slot.action:
            continue
        found = ends.setdefault(slot.requested_time, [])
        if slot.kind is not SlotKind.PLAN:
            found.append(slot.kind)
    return list(ends.values())


def test_executor_killed_at_every_call_with_a_preferred_writer() -> None:
    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        return planned_world("cancel-executor"), [clusterer(plans=False), preferred(), successor()]

    cases = list(crash_points(make, "C"))
    ended = set()
    for case in cases:
        why = f"call {case.call} {case.fault}"
        found = rows_now(case.world)
        assert (found["a1"], found["b1"], len(found)) == ("A", "A", 5), why
        ends = ends_of_plans(case.world)
        assert all(len(one) == 1 for one in ends), (why, ends)
        ended.add(ends[-1][0])
        expect_healed(case.world, case.trace, why)
    assert ended == {SlotKind.COMMIT, SlotKind.CANCEL}


@pytest.mark.slow
def test_preferred_writer_killed_at_every_call() -> None:
    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        return planned_world("cancel-writer"), [preferred(), clusterer(plans=False), successor()]

    for case in crash_points(make, "A"):
        why = f"call {case.call} {case.fault}"
        found = rows_now(case.world)
        assert (found["a1"], found["b1"]) in {("A", "A"), ("third", "seed")}, why
        assert all(len(one) == 1 for one in ends_of_plans(case.world)), why
        expect_healed(case.world, case.trace, why)


def story(seed: int, actors: Callable[[], Sequence[Actor]]) -> tuple[str, set[SlotKind]]:
    """Run the actors in an order of the seed; return the findings and the ends of the plans."""
    world = planned_world("cancel-seeds")
    facts = EngineObserver(world, commits_retained=RETAINED)
    faults = Faults(budgets={Fault.CRASH_BEFORE: 1, Fault.AMBIGUOUS_APPLIED: 1})
    trace = run(world, actors(), seed=seed, faults=faults, check_step=facts.check_step)
    failure = trace.failure or ""
    if not failure:
        clear = run(world, [successor()], seed=seed, check_step=facts.check_step)
        healing = heal(world, EngineObserver(world, commits_retained=RETAINED))
        failure = clear.failure or healing.failure or ""
    ends = ends_of_plans(world)
    if not failure and any(len(one) != 1 for one in ends):
        failure = f"a plan did not end once: {ends}"
    return failure, {kind for one in ends for kind in one}


def crowd(make_context: MakeContext = open_table) -> Sequence[Actor]:
    """Two executors, one of them soon taken for dead, and two writers that go first."""
    return [
        clusterer("C", plans=False, make_context=make_context),
        clusterer("D", plans=False, pause_ms=20, make_context=make_context),
        preferred("A"),
        preferred("B", pause_ms=15),
    ]


class Stubborn(TableContext):
    """Treats every plan that was ever made as pending: does not check for a cancel (CAN-1)."""

    def active(self) -> ActiveTimeline:
        timeline = super().active()
        names = {
            name
            for slot in self.commit_log.newest_first()
            if slot.kind is SlotKind.PLAN
            for name in pending_file_names(slot.action, slot.requested_time)
        }
        return ActiveTimeline(
            instants=timeline.instants, file_names=timeline.file_names.union(names)
        )


@pytest.mark.spec("CAN-1")
def test_mutant_that_completes_a_cancelled_plan_is_found() -> None:
    """The files of a cancelled plan are deleted, and its result would hide the writer's rows."""
    stubborn = partial(crowd, with_context(Stubborn))
    assert any(story(seed, stubborn)[0] for seed in range(30))


def test_executors_and_preferred_writers_in_any_order_end_each_plan_once() -> None:
    ended: set[SlotKind] = set()
    for seed in range(300 if NIGHTLY else 20):
        failure, kinds = story(seed, crowd)
        assert failure == "", f"seed {seed}: {failure}"
        ended |= kinds
    assert ended == {SlotKind.COMMIT, SlotKind.CANCEL}
