"""The queue held for a redo: whoever lost often enough cannot lose again, and loses no row."""

from __future__ import annotations

import os
from dataclasses import replace

from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    EngineFacts,
    Job,
    heal,
    open_table,
    seeded,
    writer,
)
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.ports.world import World as EngineWorld
from timeline.testing.faults import Fault, Faults
from timeline.testing.scheduler import run
from timeline.writing.write import Receipt

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
AFTER = 2
NAMES = ("A", "B", "C", "D")


def open_queueing(world: EngineWorld) -> TableContext:
    retry = replace(LIMITS.retry, queue_after=AFTER)
    return open_table(world, replace(LIMITS, retry=retry))


def test_nobody_loses_more_often_than_the_queue_allows() -> None:
    """Four writers of one file group, two writes each: somebody must have asked for the queue."""
    queued = 0
    for seed in range(300 if NIGHTLY else 12):
        world = seeded("held-queue", ("a1",))
        answers: dict[str, Receipt | HoodooError] = {}
        facts = EngineFacts(world, commits_retained=RETAINED)
        actors = [
            writer(
                name,
                [Job(operation=f"{name}{turn}", keys=("a1",)) for turn in range(2)],
                make_context=open_queueing,
                answers=answers,
            )
            for name in NAMES
        ]
        trace = run(world, actors, seed=seed, check_step=facts.check_step)
        assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
        assert len(answers) == 2 * len(NAMES)
        for operation, answer in answers.items():
            assert isinstance(answer, Receipt), f"seed {seed}: {operation}: {answer}"
            assert len(answer.refusals) <= AFTER, f"seed {seed}: {operation}"
        queued += world.counters["write.queued"]
        healing = heal(world, facts)
        assert healing.failure is None, f"seed {seed}: {healing.failure}\n{healing.story()}"
    assert queued


def test_a_lost_lease_or_a_death_in_the_queue_costs_no_row() -> None:
    for seed in range(300 if NIGHTLY else 12):
        world = seeded("held-queue-faults", ("a1",))
        facts = EngineFacts(world, commits_retained=RETAINED)
        actors = [
            writer(name, [Job(operation=name, keys=("a1", name))], make_context=open_queueing)
            for name in NAMES
        ]
        budgets = {Fault.LEASE_LOST: 2, Fault.CRASH_BEFORE: seed % 2, Fault.AMBIGUOUS_LATE: 1}
        trace = run(
            world, actors, seed=seed, faults=Faults(budgets=budgets), check_step=facts.check_step
        )
        assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
        healing = heal(world, facts)
        assert healing.failure is None, f"seed {seed}: {healing.failure}\n{trace.story()}"
