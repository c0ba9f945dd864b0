"""
Waiting for announced writes: no useless work, no endless wait, no lost row.

The greater requested time waits for the smaller one. Forbidden: two writers that wait for each
other, one that waits for a dead one, and one that holds a lock the other needs.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from filegroups.writing.write_request import CommitResult
from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    TOLERATED_MS,
    EngineObserver,
    Job,
    MakeContext,
    heal,
    mutation,
    open_table,
    play,
    rows_now,
    seeded,
    writer,
)
from tests.simulation.mutants import WaitsForAll
from tests.simulation.swarm import expect_seed
from tests.simulator.faults import Fault, Faults
from tests.simulator.scheduler import run
from tests.simulator.script import ScriptStage, Until, UntilEnd
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.ports.ports import Ports as EngineWorld

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
NAMES = ("A", "B", "C", "D")
ANNOUNCED = "create .hoodie/.temp/"  # a marker follows the inflight file
Answers = dict[str, CommitResult | HoodooError]


def giving_way(context: TableContext) -> TableContext:
    return replace(context, limits=replace(context.limits, waits_for_announced=True))


def open_yielding(world: EngineWorld) -> TableContext:
    return open_table(world, replace(LIMITS, waits_for_announced=True))


def open_queueing(world: EngineWorld) -> TableContext:
    retry = replace(LIMITS.retry, lock_after_conflicts=1)
    return open_table(world, replace(LIMITS, waits_for_announced=True, retry=retry))


@pytest.mark.spec("BEG-8")
def test_the_later_writer_waits_and_merges_into_the_file_of_the_first() -> None:
    world = seeded("early", ("a1",))
    answers: Answers = {}
    actors = [
        writer(name, [Job(operation=name, keys=keys)], make_context=open_yielding, answers=answers)
        for name, keys in (("A", ("a1", "a2")), ("B", ("a1", "a3")))
    ]
    stages: list[ScriptStage] = [
        Until("A", ANNOUNCED),
        Until("B", "sleep 20"),
        UntilEnd("A"),
        UntilEnd("B"),
    ]
    trace = play(world, actors, stages)
    assert trace.failure is None, trace.story()
    assert [(answers[name].attempts, answers[name].refusals) for name in "AB"] == [(1, ())] * 2
    assert world.counters["write.rebased_early"] == 1
    assert world.counters["write.redo"] == 0
    assert rows_now(world) == {"a1": "B", "a2": "A", "a3": "B"}


@pytest.mark.parametrize(
    "call", [ANNOUNCED, "create .hoodie/.hoodoo/slots/", "create .hoodie/timeline/"]
)
def test_a_writer_that_waits_for_a_dead_one_continues(call: str) -> None:
    """Before its slot the dead one's write is nothing; after it the next one shows it."""
    world = seeded("early-dead", ("a1",))
    answers: Answers = {}
    started_ms = world.now_ms
    facts = EngineObserver(world, commits_retained=RETAINED)
    actors = [
        writer(
            name,
            [Job(operation=name, keys=("a1", name))],
            make_context=open_yielding,
            answers=answers,
        )
        for name in "AB"
    ]
    stages: list[ScriptStage] = [
        Until("A", ANNOUNCED),
        Until("B", "sleep 20"),
        Until("A", call, Fault.CRASH_BEFORE),
        UntilEnd("B"),
    ]
    trace = play(world, actors, stages, facts=facts)
    assert trace.failure is None, trace.story()
    assert isinstance(answers["B"], CommitResult)
    assert world.now_ms - started_ms < 2 * TOLERATED_MS
    healing = heal(world, facts)
    assert healing.failure is None, healing.story()


def test_four_writers_of_one_file_group_all_commit() -> None:
    """
    With commit lock or not, with deaths or lost leases: each wait ends, acknowledged rows exist.
    """
    waited = 0
    for seed in range(200 if NIGHTLY else 5):
        world = seeded("early-crowd", ("a1",))
        answers: Answers = {}
        facts = EngineObserver(world, commits_retained=RETAINED)
        actors = [
            writer(
                name,
                [Job(operation=f"{name}{section}", keys=("a1", name)) for section in range(2)],
                make_context=open_queueing,
                answers=answers,
            )
            for name in NAMES
        ]
        budgets = {Fault.LEASE_LOST: seed % 3, Fault.CRASH_BEFORE: seed % 2}
        faults = Faults(budgets=budgets)
        trace = run(world, actors, seed=seed, faults=faults, check_step=facts.check_step)
        assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
        acknowledged = [answer for answer in answers.values() if isinstance(answer, CommitResult)]
        assert len(acknowledged) == len(answers), f"seed {seed}: {answers}"
        waited += world.counters["write.gives_way"]
        healing = heal(world, facts)
        assert healing.failure is None, f"seed {seed}: {healing.failure}\n{healing.story()}"
    assert waited


def test_schedules_with_faults_keep_every_promise() -> None:
    waited = 0
    for seed in range(500 if NIGHTLY else 8):
        with mutation(giving_way):
            waited += expect_seed(seed).world.counters["write.gives_way"]
    assert waited


# ---------------------------------------------------------------- without the rule


def open_bounded(world: EngineWorld) -> TableContext:
    retry = replace(LIMITS.retry, total_ms_max=3_000)
    return open_table(world, replace(LIMITS, waits_for_announced=True, retry=retry))


def open_waiting_for_all(world: EngineWorld) -> TableContext:
    real = open_bounded(world)
    return WaitsForAll(**{name: getattr(real, name) for name in real.__dataclass_fields__})


def refused_in(seed: int, make_context: MakeContext) -> int:
    """How many of two writers of one file group are refused in the end."""
    world = seeded("early-circle", ("a1",))
    answers: Answers = {}
    actors = [
        writer(
            name, [Job(operation=name, keys=("a1",))], make_context=make_context, answers=answers
        )
        for name in "AB"
    ]
    assert run(world, actors, seed=seed).failure is None
    return sum(isinstance(answer, HoodooError) for answer in answers.values())


def test_mutant_that_waits_for_later_writers_too_is_found() -> None:
    """Two that see each other both wait, until the time is up for one of them."""
    assert any(refused_in(seed, open_waiting_for_all) for seed in range(60))
    assert not any(refused_in(seed, open_bounded) for seed in range(4))


def test_mutant_that_waits_for_no_announced_write_is_found() -> None:
    """B commits while A computes: A's work is useless."""
    world = seeded("early-rude", ("a1",))
    actors = [
        writer(name, [Job(operation=name, keys=("a1", name))], make_context=open_table)
        for name in "AB"
    ]
    stages: list[ScriptStage] = [Until("A", ANNOUNCED), UntilEnd("B"), UntilEnd("A")]
    assert play(world, actors, stages).failure is None
    assert world.counters["write.refused"] == 1
