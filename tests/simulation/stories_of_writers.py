"""Stories of writers, alone and with faults: S1, S2, S9, S11 to S14, S17."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.simulation import test_engine_restore as restores
from tests.simulation import test_non_blocking as free
from tests.simulation.engine_kit import (
    TOLERATED_MS,
    Job,
    cleaner,
    client_write,
    open_table,
    outside,
    patiently,
    undoer,
    writer,
)
from tests.simulation.family import Story, some_of
from tests.simulation.story_kit import (
    ALL,
    BULK,
    CLOCKS,
    COW,
    CRASHES,
    DELETE,
    INSERT,
    MOR,
    OVERWRITE,
    PAUSES,
    SHARED,
    UNKNOWN,
    UPSERT,
    heals,
    limits_of,
    opening,
    prepared,
    sliced,
    small,
    some_job,
    some_writer,
    without_files,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import CommitLockMode

# ---------------------------------------------------------------- S1, S2: writers


def optimistic(draw: random.Random, name: str) -> Story:
    world, facts = prepared(small, COW, draw.choice((9, 9, 8))).fresh(name)
    make = opening(draw)
    kinds = (UPSERT, UPSERT, UPSERT, INSERT, BULK, OVERWRITE)
    actors = [
        some_writer(draw, "A", make, jobs=draw.choice((1, 1, 2)), kinds=kinds),
        some_writer(draw, "B", make, kinds=kinds),
    ]
    if draw.random() < 0.2:
        gone = Job(operation="B-delete", keys=("a2",), kind=DELETE)
        actors[1] = writer("B", [gone], make_context=make)
    faults = some_of(draw, ALL, chance=0.4)
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


def far_away(draw: random.Random, name: str) -> Story:
    """The file of one commit and the slot of the next are made at once (PUB-3)."""
    world, facts = prepared(without_files, draw.choice((1, 2, 2))).fresh(name)
    limits = replace(limits_of(draw), publish_lock=CommitLockMode.NONE)

    def make(engine: EngineWorld) -> TableContext:
        return open_table(engine, limits)

    actors = [
        writer(
            one,
            [
                some_job(draw, f"{one}{number}", (UPSERT, UPSERT, INSERT))
                for number in range(draw.choice((1, 1, 2)))
            ],
            make_context=make,
            shuffled=draw.random() < 0.8,
        )
        for one in "ABC"[: draw.choice((1, 2, 2, 3))]
    ]
    if draw.random() < 0.4:
        actors.append(replace(draw.choice((undoer, cleaner))(), may_raise=(HoodooError,)))
    faults = some_of(draw, ALL, chance=0.4)
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


def appending(draw: random.Random, name: str) -> Story:
    return non_blocking(draw, name) if draw.random() < 0.5 else appending_optimistically(draw, name)


def non_blocking(draw: random.Random, name: str) -> Story:
    """Writers of one bucket and concurrent compactions; the slots define the rows."""
    world, facts = prepared(free.empty, "S2").fresh(name)
    actors = free.writers()[: draw.choice((2, 3))]
    services = draw.choice(((), (free.compact,), (free.compact_unclaimed, free.compact_logs)))
    actors += [free.service(f"S{place}", act) for place, act in enumerate(services)]
    last = Job(operation="zz-last", keys=("a9",))

    def judge(world: SimulatedSystem) -> Sequence[object]:
        world.now_ms += 2 * TOLERATED_MS
        free.append(free.open_free(outside(world, "survivor")), last)
        defined, seen = free.defined_rows(world, [*free.JOBS, last]), free.read_rows(world)
        return [] if defined == seen else [f"NBCC-3: rows {seen}, the slots define {defined}"]

    most = {**CRASHES, **UNKNOWN, **PAUSES}
    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=some_of(draw, most, chance=0.4),
        judge=judge,
        judged_at_end=False,
        steps=250,
    )


def appending_optimistically(draw: random.Random, name: str) -> Story:
    world, facts = prepared(small, MOR).fresh(name)
    make = opening(draw)
    actors = [
        some_writer(draw, one, make, kinds=(UPSERT, UPSERT, BULK))
        for one in "ABC"[: draw.choice((2, 2, 3))]
    ]
    faults = some_of(draw, {**CRASHES, **UNKNOWN, **PAUSES}, chance=0.4)
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


# ---------------------------------------------------------------- S9, S11: silence, clocks


def silent_storage(draw: random.Random, name: str) -> Story:
    world, facts = prepared(small).fresh(name)
    make = opening(draw)
    actors = [
        some_writer(draw, "A", make, jobs=draw.choice((1, 2))),
        some_writer(draw, "B", make),
        replace(undoer(), may_raise=(HoodooError,)),
    ]
    faults = some_of(
        draw,
        {Fault.UNAVAILABLE: 6, Fault.UNAVAILABLE_AFTER: 4, **UNKNOWN, Fault.TIME_JUMP: 3},
        chance=0.8,
        time_jump_ms=(500, TOLERATED_MS + 500),
    )
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


def clocks(draw: random.Random, name: str) -> Story:
    world, facts = prepared(small).fresh(name)
    make = opening(draw)
    offsets = (0, -60_000, -5_000, 5_000, 60_000)
    actors = [
        some_writer(draw, one, make, jobs=jobs, clock_offset_ms=draw.choice(offsets))
        for one, jobs in (("A", 2), ("B", 1))
    ]
    faults = some_of(draw, {**CLOCKS, Fault.CRASH_BEFORE: 1}, chance=0.7)
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


# ---------------------------------------------------------------- S12 to S14


def batches(draw: random.Random, name: str) -> Story:
    """A client that dies or never hears an answer, and its successor with the same batch."""
    world, facts = prepared(small).fresh(name)
    make = opening(draw)
    keys = tuple(draw.sample(SHARED, 2))

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make)
        job = Job(operation="A", keys=keys, batch_id="source/1")
        if all(event.operation != "A" for event in world.history):
            ports.client.invoke("A", keys)
        try:
            restores.do_write(ports, context, job)
        except HoodooError as error:
            ports.events.emit("sim.batch_failed", why=str(error))

    actors = [
        Actor(name="A", body=body),
        Actor(name="A2", body=body, start_after="A" if draw.random() < 0.6 else None),
        some_writer(draw, "B", make, kinds=(UPSERT,)),
    ]
    faults = some_of(draw, {**CRASHES, **UNKNOWN, Fault.LEASE_LOST: 1})
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))


def power_cuts(draw: random.Random, name: str) -> Story:
    """All actors die at once, un-synced data is lost or torn; then the survivor runs."""
    table_type = draw.choice((COW, MOR))
    world, facts = prepared(sliced, table_type).fresh(name)
    actors = [
        some_writer(draw, "A", open_table, jobs=draw.choice((1, 2))),
        cleaner(rounds=1, pause_ms=0)
        if draw.random() < 0.5
        else some_writer(draw, "B", open_table),
    ]
    faults = Faults(budgets={Fault.POWER_CUT: 1}, rate=draw.choice((0.01, 0.02)))
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=True)


def growing_schema(draw: random.Random, name: str) -> Story:
    """One writer brings a column that the others do not know."""
    world, facts = prepared(small, draw.choice((COW, MOR))).fresh(name)
    make = opening(draw)

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make)
        client_write(ports, context, Job(operation="N", keys=("a1", "c1"), extra="colour"))

    actors = [Actor(name="N", body=body), some_writer(draw, "A", make)]
    faults = some_of(draw, {**CRASHES, **UNKNOWN, Fault.LEASE_LOST: 1}, chance=0.4)
    return Story(world=world, facts=facts, actors=actors, faults=faults, heals=heals(draw))
