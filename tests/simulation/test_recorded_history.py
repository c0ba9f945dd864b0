"""The history checker over simulated runs: silent on the engine, loud on a mutant of it."""

from __future__ import annotations

from hoodoo.history_checker.anomalies import AnomalyKind, find_anomalies
from tests.simulation import mutants
from tests.simulation.engine_kit import EngineObserver, Job, MakeContext, open_table, reader, writer
from tests.simulation.engine_kit import seeded as seeded_world
from tests.simulator.faults import Fault, Faults
from tests.simulator.recorded import recorded_run
from tests.simulator.scheduler import run
from tests.simulator.script import Script, ScriptStage, Until, UntilEnd


def found_in(seed: int, make_context: MakeContext) -> set[AnomalyKind]:
    """Two writers of overlapping keys and a reader, with lost leases and unknown answers."""
    world = seeded_world("recorded", ("a1", "b1"))
    facts = EngineObserver(world)
    actors = [
        writer(
            name,
            [Job(operation=f"{name}{at}", keys=("a1", f"a{at + 2}")) for at in range(2)],
            make_context=make_context,
        )
        for name in ("A", "B")
    ]
    budgets = {Fault.AMBIGUOUS_APPLIED: 1, Fault.LEASE_LOST: 2}
    run(world, [*actors, reader(facts, rounds=2)], seed=seed, faults=Faults(budgets=budgets))
    return {one.kind for one in find_anomalies(recorded_run(facts.facts()))}


def test_the_engine_s_runs_have_no_finding() -> None:
    assert [found_in(seed, open_table) for seed in range(15)] == [set()] * 15


def test_a_mutant_that_commits_over_another_slot_loses_updates() -> None:
    """A loses its lease right before its slot; B commits; A wakes and continues (hole 4)."""
    overwriting: MakeContext = mutants.with_chain(mutants.OverwritingChain)  # type: ignore[assignment]
    world = seeded_world("recorded", ("a1", "b1"))
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a2"))], make_context=overwriting),
        writer("B", [Job(operation="B", keys=("a1", "a3"))]),
    ]
    stages: list[ScriptStage] = [
        Until("A", "write .hoodie/.hoodoo/slots"),
        Fault.LEASE_LOST,
        UntilEnd("B"),
        UntilEnd("A"),
    ]
    run(world, actors, policy=Script(stages), faults=Faults(time_jump_ms=10))
    found = find_anomalies(recorded_run(EngineObserver(world).facts()))
    assert [(one.kind, one.transactions) for one in found] == [(AnomalyKind.LOST_UPDATE, ("B",))]
