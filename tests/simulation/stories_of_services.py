"""Stories of table services and concurrent writers: S3 to S8."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tableservices.restoring.restore import restore
from tests.simulation import test_compaction as compactions
from tests.simulation import test_engine_archive as archives
from tests.simulation import test_engine_clustering as clusterings
from tests.simulation import test_engine_restore as restores
from tests.simulation.engine_kit import (
    TOLERATED_MS,
    Job,
    cleaner,
    reader,
    undoer,
    writer,
)
from tests.simulation.family import Prepared, Story, some_of
from tests.simulation.stories_of_metadata import archiving_both
from tests.simulation.story_kit import (
    COW,
    CRASHES,
    DELETE,
    INSERT,
    MOR,
    OVERWRITE,
    PAUSES,
    SILENCE,
    UNKNOWN,
    UPSERT,
    Unjudged,
    heals,
    left_by_the_dead,
    opening,
    prepared,
    sliced,
    some_job,
    some_writer,
)
from tests.simulator.faults import Fault
from tests.simulator.invariants import Violation
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError

# ---------------------------------------------------------------- S3, S4: planned services


def compacting(draw: random.Random, name: str) -> Story:
    begin = draw.choice((compactions.logged, compactions.planned, compactions.twice_logged))
    world, facts = prepared(begin, "S3").fresh(name)
    first = compactions.execute if begin is compactions.planned else compactions.compact
    second = draw.choice(
        (compactions.execute_unclaimed, compactions.call_off, compactions.compact_logs, None)
    )
    actors = [compactions.serving("C", first)]
    if second is not None:
        actors.append(compactions.serving("D", second))
    jobs = [some_job(draw, "A0")]
    actors.append(writer("A", jobs, make_context=opening(draw)))
    if second is None:
        actors.append(writer("W", [Job(operation="W", keys=("b1",), kind=DELETE)]))
    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=some_of(draw, {Fault.CRASH_BEFORE: 1, **UNKNOWN}, chance=0.4),
        heals=heals(draw),
        services=compactions.both,
        steps=250,
    )


def clustering(draw: random.Random, name: str) -> Story:
    world, facts = prepared(clusterings.small_files, "S4", draw.choice((COW, COW, MOR))).fresh(name)
    actors = [clusterings.clusterer("C")]
    if draw.random() < 0.5:
        actors.append(clusterings.clusterer("D", plans=False, pause_ms=20))
    kinds = (UPSERT, UPSERT, INSERT, OVERWRITE)
    actors.append(some_writer(draw, "A", opening(draw), kinds=kinds))

    def finish(context: TableContext) -> None:
        for _ in range(2):
            clusterings.run_round(context, clusterings.SERVICE, clusterings.Phase.EXECUTE, now=True)

    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=some_of(draw, {Fault.CRASH_BEFORE: 1, Fault.AMBIGUOUS_APPLIED: 1}),
        heals=heals(draw),
        services=finish,
        steps=250,
    )


# ---------------------------------------------------------------- S5, S6: cleaning, undoing


def cleaning(draw: random.Random, name: str) -> Story:
    world, facts = prepared(sliced, draw.choice((COW, MOR))).fresh(name)
    make = opening(draw)
    actors = [
        cleaner(rounds=1, pause_ms=draw.choice((0, 30)), make_context=make),
        reader(facts, rounds=1),
        some_writer(draw, "A", make, jobs=draw.choice((1, 2))),
    ]
    faults = some_of(draw, {**CRASHES, **SILENCE, Fault.TIME_JUMP: 1}, chance=0.4)
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


def undoing(draw: random.Random, name: str) -> Story:
    """Two rollbacks, and an owner that may be treated as dead and wakes."""
    world, facts = prepared(left_by_the_dead).fresh(name)
    make = opening(draw)
    actors = [
        undoer(name="R1"),
        undoer(name="R2"),
        some_writer(draw, "A", make, kinds=(UPSERT,)),
    ]
    faults = some_of(
        draw,
        {**PAUSES, Fault.TIME_JUMP: 3, Fault.CRASH_BEFORE: 1, **UNKNOWN},
        time_jump_ms=(TOLERATED_MS + 500, 2 * TOLERATED_MS),
    )
    actors = [replace(one, may_raise=(HoodooError,)) for one in actors]
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


# ---------------------------------------------------------------- S7, S8: archiving, going back


def archiving(draw: random.Random, name: str) -> Story:
    world, facts = prepared(archives.grown, 3).fresh(name)
    actors = [
        archives.archiver("X", rounds=1),
        archives.writer("A", ["A1", "A2"][: draw.choice((1, 2))]),
    ]
    if draw.random() < 0.5:
        actors.append(archives.archiver("Y", rounds=1))
    if draw.random() < 0.3:
        actors.append(reader(facts, rounds=1))
    faults = some_of(
        draw,
        {**PAUSES, Fault.CRASH_BEFORE: 1, Fault.UNAVAILABLE: 2, **UNKNOWN},
        chance=0.4,
        time_jump_ms=(3 * archives.GRACE_MS, 1_000),
    )
    if draw.random() > 0.85:  # drawn last, so that the others keep their names
        return archiving_both(draw, name)
    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=faults,
        judge=archives.comebacks,
    )


def restoring(draw: random.Random, name: str) -> Story:
    """Forced, so that it takes the ground from under the writers."""
    before = prepared(restores.grown, draw.choice((COW, MOR)))
    world, _ = before.fresh(name)
    target = restore_target(before)
    actors = [
        restores.goes_back("R", world, lambda context: restore(context, target, force=True)),
        writer("W", [Job(operation="W", keys=restores.JOBS["W"])]),
    ]
    if draw.random() < 0.5:
        actors.append(writer("V", [Job(operation="V", keys=restores.JOBS["V"])]))

    def judge(world: SimulatedSystem) -> Sequence[object]:
        try:
            restores.expect_whole(world, name, "")
        except AssertionError as broken:
            return [Violation(invariant="RST-1", found=str(broken))]
        return ()

    return Story(
        world=world,
        facts=Unjudged(world),
        actors=actors,
        faults=some_of(draw, {Fault.CRASH_BEFORE: 1, Fault.AMBIGUOUS_APPLIED: 1, **PAUSES}),
        judge=judge,
        judged_at_end=False,
    )


@cache
def restore_target(before: Prepared) -> str:
    return restores.time_of(before.world.copy("looked at"), "old1")
