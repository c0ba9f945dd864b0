"""
Clustering in the simulated system: killed at every call, with a writer, by two executors.

After each story the rows are exact, nothing is pending and nothing is left over. A mutant
that does not validate again at its completion loses a write, and is found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tableservices import plan_execution as claims
from tableservices.archiving import plan as lines
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.cleaning.execute import clean
from tableservices.clustering.execute import ClusteringService
from tableservices.clustering.plan import schedule_clustering
from tableservices.clustering.settings import ClusteringSettings
from tableservices.planned_service import Phase, run_round
from tests.simulation import mutants
from tests.simulation.engine_kit import (
    FILES,
    RETAINED,
    TOLERATED_MS,
    EngineObserver,
    Job,
    MakeContext,
    check_files_in_slot_order,
    heal,
    open_table,
    outside,
    patiently,
    play,
    rows_now,
    seeded,
    writer,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import Pause, Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.errors import HoodooError
from timeline.model.commit_metadata import TableType, WriteOperation

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SETTINGS = ClusteringSettings(sort_columns=("operation", "id"))
ARCHIVING = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    }
)
SERVICE = ClusteringService(settings=SETTINGS, files=FILES)
KEYS = ("a1", "a2", "b1")


def clusterer(
    name: str = "C",
    *,
    plans: bool = True,
    pause_ms: int = 0,
    rounds: int = 1,
    make_context: MakeContext = open_table,
) -> Actor:
    """Plans, unless another process does, and executes."""

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make_context)
        ports.clock.sleep_ms(pause_ms)
        try:
            for _ in range(rounds):
                run_round(context, SERVICE, Phase.BOTH if plans else Phase.EXECUTE, now=True)
        except HoodooError as error:
            ports.events.emit("sim.clustering_failed", why=str(error))

    return Actor(name=name, body=body)


def successor(name: str = "D") -> Actor:
    """Another worker: starts after the first one's lease, applies slots and finishes its work."""
    return clusterer(name, pause_ms=5_000, rounds=2)


def small_files(scenario: str, table_type: TableType = TableType.COPY_ON_WRITE) -> SimulatedSystem:
    """Two file groups in partition a, one in b; in a merge-on-read table one has a log."""
    world = seeded(scenario, KEYS, table_type=table_type)
    insert = Job(operation="second", keys=("a3", "a4"), kind=WriteOperation.BULK_INSERT)
    play(world, [writer("S", [insert, Job(operation="third", keys=("a1",))])], [])
    return world


def expect_healed(world: SimulatedSystem, trace: Trace, why: str) -> None:
    assert trace.failure is None, f"{why}: {trace.failure}\n{trace.story()}"
    healing = heal(world, EngineObserver(world, commits_retained=RETAINED))
    assert healing.failure is None, (
        f"{why}: {healing.failure}\n{trace.story()}\n--- healing\n{healing.story()}"
    )
    assert check_files_in_slot_order(world) == [], why


@pytest.mark.parametrize("table_type", list(TableType) if NIGHTLY else [TableType.MERGE_ON_READ])
def test_clusterer_killed_at_every_call_and_finished_by_another(table_type: TableType) -> None:
    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        return small_files("crash-clusterer", table_type), [clusterer(), successor()]

    cases = list(crash_points(make, "C"))
    assert len(cases) >= 30
    expected = {"a1": "third", "a2": "seed", "a3": "second", "a4": "second", "b1": "seed"}
    for case in cases:
        why = f"call {case.call} {case.fault}"
        assert rows_now(case.world) == expected, why
        expect_healed(case.world, case.trace, why)


def test_clusterer_killed_at_every_call_during_a_write() -> None:
    """The writer updates a group of the plan between the plan and its completion."""

    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        world = small_files("crash-clusterer-writer")
        context = open_table(outside(world, "planner"))
        schedule_clustering(context, SETTINGS)
        update = Job(operation="A", keys=("a1", "b1"), pause_ms=30)
        return world, [clusterer(plans=False), writer("A", [update]), successor()]

    for case in crash_points(make, "C"):
        why = f"call {case.call} {case.fault}"
        found = rows_now(case.world)
        assert (found["a1"], found["b1"], len(found)) == ("A", "A", 5), why
        expect_healed(case.world, case.trace, why)


def story(seed: int, actors: Callable[[], Sequence[Actor]]) -> str:
    """Run the actors in an order of the seed; return the findings, empty when all is well."""
    world = small_files("clustering-seeds")
    facts = EngineObserver(world, commits_retained=RETAINED)
    faults = Faults(budgets={Fault.CRASH_BEFORE: 1, Fault.AMBIGUOUS_APPLIED: 1})
    trace = run(world, actors(), seed=seed, faults=faults, check_step=facts.check_step)
    if trace.failure is not None:
        return trace.failure
    clear = run(world, [successor()], seed=seed, check_step=facts.check_step)
    return (
        clear.failure or heal(world, EngineObserver(world, commits_retained=RETAINED)).failure or ""
    )


def crowd(make_context: MakeContext = open_table) -> Sequence[Actor]:
    """Two executors, one of them soon taken for dead, and two writers into the same groups."""
    return [
        clusterer("C", make_context=make_context),
        clusterer("D", plans=False, pause_ms=20, make_context=make_context),
        writer("A", [Job(operation="A", keys=("a1", "b1"))]),
        writer("B", [Job(operation="B", keys=("a3",), pause_ms=10)]),
    ]


def test_two_executors_and_two_writers_in_any_order_lose_nothing() -> None:
    for seed in range(300 if NIGHTLY else 5):
        assert story(seed, crowd) == "", f"seed {seed}"


@pytest.mark.spec("CL-1")
def test_mutant_that_does_not_validate_again_in_its_commit_section_is_found() -> None:
    """CL-1: between the refresh and the slot a writer commits, and its rows vanish."""
    blind = partial(crowd, mutants.with_chain(mutants.BlindChain))
    found = [story(seed, blind) for seed in range(30)]
    assert any("I1" in failure for failure in found)


# ---- an executor that slept


def keeper(name: str = "K") -> Actor:
    """Cleans and archives once."""

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, open_table)
        clean(context, ARCHIVING.cleaning)
        archive(context, ARCHIVING)

    return Actor(name=name, body=body)


def outslept() -> list[str]:
    """
    C sleeps before its first file, of the group of partition a, which a writer changes.

    D completes the plan without that group, writers continue, and old files are cleaned and
    archived. Returns the findings after C has woken and ended.
    """
    world = small_files("outslept-clusterer", TableType.COPY_ON_WRITE)
    later = [Job(operation=f"later{number}", keys=("a2",)) for number in range(5)]
    trace = play(
        world,
        [
            clusterer("C"),
            writer("A", [Job(operation="A", keys=("a1",))]),
            clusterer("D", plans=False),
            writer("B", later),
            keeper(),
        ],
        [
            Until("C", "create a/"),
            UntilEnd("A"),
            Pause(1 + TOLERATED_MS // 1_000),
            UntilEnd("D"),
            UntilEnd("B"),
            UntilEnd("K"),
            UntilEnd("C"),
        ],
        jump_ms=1_000,
    )
    return [str(one) for one in (trace.failure, *_doubled(world)) if one]


def _doubled(world: SimulatedSystem) -> list[str]:
    try:
        found = rows_now(world)
    except AssertionError as error:
        return [str(error)]
    expected = {"a1": "A", "a2": "later4", "a3": "second", "a4": "second", "b1": "seed"}
    return [] if found == expected else [f"{found}"]


@pytest.mark.spec("RB-10")
def test_files_of_an_executor_that_resumed_after_the_archive_are_invisible() -> None:
    assert outslept() == []


@pytest.mark.spec("GC-1")
def test_mutant_that_archives_a_plan_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And its owner does not take it back: its rows are there twice for good."""
    monkeypatch.setattr(lines, "_may_come", lambda *_: frozenset())
    monkeypatch.setattr(claims, "discard_output_if_ended", lambda *_: None)
    assert any("two rows" in one for one in outslept())
