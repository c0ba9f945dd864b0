"""Parts of the stories of all families: systems that are prepared once, and drawn work."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from tests.simulation.engine_kit import (
    LIMITS,
    TOLERATED_MS,
    EngineObserver,
    Job,
    MakeContext,
    open_table,
    play,
    seeded,
    writer,
)
from tests.simulation.family import Prepared
from tests.simulator.faults import Fault
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor
from tests.simulator.script import Until
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext, TableLimits
from timeline.model.commit_metadata import TableType, WriteOperation
from timeline.model.file_names import SLOTS
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import CommitLockMode

COW, MOR = TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ
UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE
OVERWRITE, BULK = WriteOperation.INSERT_OVERWRITE, WriteOperation.BULK_INSERT
SHARED = ("a1", "a2", "b1")
OWN_PARTITIONS = {"A": "p", "B": "q"}

CRASHES = {Fault.CRASH_BEFORE: 1, Fault.CRASH_AFTER: 1}
SILENCE = {Fault.UNAVAILABLE: 2, Fault.UNAVAILABLE_AFTER: 2}
UNKNOWN = {
    Fault.AMBIGUOUS_APPLIED: 2,
    Fault.AMBIGUOUS_LOST: 2,
    Fault.AMBIGUOUS_LATE: 2,
    Fault.DUPLICATED: 1,
}
PAUSES = {Fault.LEASE_LOST: 2, Fault.TIME_JUMP: 2}
CLOCKS = {Fault.WALL_JUMP: 3, Fault.TIME_JUMP: 1}
ALL = {**CRASHES, **SILENCE, **UNKNOWN, **PAUSES, Fault.WALL_JUMP: 1}


# ---------------------------------------------------------------- worlds, made once


@cache
def prepared(make: Callable[..., SimulatedSystem], *arguments: object) -> Prepared:
    return Prepared.of(make(*arguments))


def small(table_type: TableType = COW, version: int = 9) -> SimulatedSystem:
    return seeded("family", SHARED, table_type=table_type, table_version=version)


def sliced(table_type: TableType = COW) -> SimulatedSystem:
    """Several slices of each file group, so that there is something to clean and to archive."""
    world = small(table_type)
    jobs = [Job(operation=f"old{number}", keys=("a1", "b1")) for number in range(3)]
    play(world, [writer("old", jobs)], [])
    return world


def left_by_the_dead() -> SimulatedSystem:
    """A writer died before its slot, long ago."""
    world = small()
    dead = writer("dead", [Job(operation="dead", keys=("a1", "d1"))])
    play(world, [dead], [Until("dead", "assert_held", Fault.CRASH_BEFORE)])
    world.now_ms += 2 * TOLERATED_MS
    return world


def without_files(commits: int) -> SimulatedSystem:
    """That many writers without a lock died right after their slots, one after the other."""
    world = small()
    for number, key in enumerate(("a1", "b1")[:commits]):
        job = Job(operation=f"dead{number}", keys=(key, f"{'de'[number]}1"))
        world = next(
            died
            for attempt in range(20)
            if _unshown(died := _behind_its_slot(world, job, attempt)) == number + 1
        )
    return world


def _behind_its_slot(before: SimulatedSystem, job: Job, attempt: int) -> SimulatedSystem:
    """The actor's name decides which of the concurrent calls happens first."""
    world = before.copy(f"{before.scenario}-{attempt}")
    dead = writer(f"{job.operation}-{attempt}", [job], make_context=lock_free, shuffled=True)
    play(world, [dead], [Until(dead.name, f"create {SLOTS}/", Fault.CRASH_AFTER)])
    return world


def _unshown(world: SimulatedSystem) -> int:
    facts = EngineObserver(world).structure()
    shown = sum(one.state == "completed" for one in facts.instants)
    return len(facts.slots) - shown


def lock_free(engine: EngineWorld) -> TableContext:
    return open_table(engine, replace(LIMITS, publish_lock=CommitLockMode.NONE))


# ---------------------------------------------------------------- work of actors


def limits_of(draw: random.Random) -> TableLimits:
    return replace(
        LIMITS,
        publish_lock=draw.choice(list(CommitLockMode)),
        unknown_ms_max=draw.choice((-1, 30, 3_000)),
    )


def opening(draw: random.Random) -> MakeContext:
    limits = limits_of(draw)

    def make(engine: EngineWorld) -> TableContext:
        return open_table(engine, limits)

    return make


def some_job(
    draw: random.Random, operation: str, kinds: Sequence[WriteOperation] = (UPSERT,)
) -> Job:
    """Overlapping upserts mostly; inserts and overwrites stay off the shared keys."""
    kind = draw.choice(kinds)
    keys: tuple[str, ...]
    if kind is UPSERT:
        keys = tuple(draw.sample(SHARED, draw.randint(1, 2)))
        if draw.random() < 0.5:
            keys = (*keys, f"{draw.choice('abc')}{draw.randint(3, 4)}")
    elif kind is OVERWRITE:
        keys = (f"{OWN_PARTITIONS[operation[0]]}1",)
    else:
        keys = (f"{draw.choice('ac')}-{operation}",)
    return Job(operation=operation, keys=keys, kind=kind, pause_ms=draw.choice((0, 0, 0, 20)))


def some_writer(
    draw: random.Random,
    name: str,
    make: MakeContext,
    *,
    jobs: int = 1,
    kinds: Sequence[WriteOperation] = (UPSERT, UPSERT, UPSERT, INSERT),
    clock_offset_ms: int = 0,
) -> Actor:
    return writer(
        name,
        [some_job(draw, f"{name}{number}", kinds) for number in range(jobs)],
        make_context=make,
        clock_offset_ms=clock_offset_ms,
        shuffled=draw.random() < 0.3,
    )


def heals(draw: random.Random) -> bool:
    return draw.random() < 0.1


class Unjudged(EngineObserver):
    """A restore removes rows that clients know: only the commit log decides."""

    def check_step(self, _: SimulatedSystem) -> list[Violation]:
        return []
