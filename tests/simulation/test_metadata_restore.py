"""A restore and a rollback beside a metadata table: its readers see a state of the table (MDT-12)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tableservices.restoring.restore import restore
from tableservices.restoring.rollback import rollback_write
from tests.simulation import test_engine_restore as restores
from tests.simulation.engine_kit import INTERVAL_MS, Job, open_table, outside, play, seeded, writer
from tests.simulation.family import some_of
from tests.simulation.stories_of_metadata import INDEXED
from tests.simulation.story_kit import PAUSES
from tests.simulator.faults import Fault
from tests.simulator.metadata_facts import MetadataObserver
from tests.simulator.ports import Actor
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import Until
from tests.simulator.world import SimulatedSystem
from timeline.model.commit_metadata import TableType

COW, MOR = TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ
Run = tuple[SimulatedSystem, Sequence[Actor]]


def grown(table_type: TableType) -> SimulatedSystem:
    """Three commits, and a writer that died right before its slot: its log files exist."""
    world = seeded("restore", restores.KEYS, table_type=table_type, metadata_partitions=INDEXED)
    jobs = [Job(operation=one, keys=restores.JOBS[one]) for one in ("old1", "old2")]
    play(world, [writer("old", jobs)], [])
    dead = writer("dead", [Job(operation="dead", keys=restores.JOBS["dead"])])
    play(world, [dead], [Until("dead", "assert_held", Fault.CRASH_BEFORE)])
    world.now_ms += 10 * INTERVAL_MS
    return world


def restoring(table_type: TableType) -> Run:
    world = grown(table_type)
    target = restores.time_of(world, "old1")
    return world, [restores.goes_back("R", world, lambda context: restore(context, target))]


def rolling_back(table_type: TableType) -> Run:
    world = grown(table_type)
    newest, between = restores.time_of(world, "old2"), open_table(outside(world))
    rollback_write(between, between.active().pending[0].requested_time)
    return world, [restores.goes_back("R", world, lambda context: rollback_write(context, newest))]


class Judges:
    """One observer for each world that a sweep makes."""

    def __init__(self) -> None:
        self.of_world: dict[int, MetadataObserver] = {}

    def step(self, world: SimulatedSystem) -> Sequence[object]:
        found = self.of_world.setdefault(id(world), MetadataObserver(world))
        return found.check_metadata(world)

    def end(self, world: SimulatedSystem, story: str) -> None:
        restores.expect_whole(world, "the end", story)
        judge = MetadataObserver(world)
        keys = restores.rows_of_log(world).keys()
        assert [*judge.check_metadata(world), *judge.wrong_beside(keys)] == [], story
        assert judge.listed_and_missing() == [], story
        assert judge.leftovers() == [], story


@pytest.mark.spec("MDT-12")
@pytest.mark.slow
@pytest.mark.parametrize("table_type", [COW, MOR])
@pytest.mark.parametrize("make", [restoring, rolling_back])
def test_a_restore_that_dies_at_any_call_leaves_the_metadata_table_right(
    make: Callable[[TableType], Run], table_type: TableType
) -> None:
    judges, worlds = Judges(), []
    for case in crash_points(partial(make, table_type), "R", check_step=judges.step):
        worlds.append(case.world)  # an observer is found by its identity
        assert case.trace.failure is None, f"{case.trace.failure}\n{case.trace.story()}"
        judges.end(case.world, f"call {case.call} {case.fault}\n{case.trace.story()}")
    assert len(worlds) >= 15


@pytest.mark.spec("MDT-12")
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 300))]
)
def test_a_restore_among_writers_leaves_the_metadata_table_right(seed: int) -> None:
    draw = random.Random(seed)
    world = grown(draw.choice((COW, MOR)))
    target = restores.time_of(world, "old1")
    actors = [
        restores.goes_back("R", world, lambda context: restore(context, target, force=True)),
        writer("W", [Job(operation="W", keys=restores.JOBS["W"])]),
    ]
    if draw.random() < 0.5:
        actors.append(writer("V", [Job(operation="V", keys=restores.JOBS["V"])]))
    judge = MetadataObserver(world)
    faults = some_of(draw, {Fault.CRASH_BEFORE: 1, Fault.AMBIGUOUS_APPLIED: 1, **PAUSES})
    trace = run(world, actors, seed=seed, faults=faults, check_step=judge.check_metadata)
    assert trace.failure is None, f"{trace.failure}\n{trace.story()}"
    Judges().end(world, trace.story())
