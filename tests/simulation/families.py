"""The table of scenario families, and what each schedule of a family is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from tableservices.restoring.restore import restore
from tests.simulation import test_compaction as compactions
from tests.simulation import test_engine_archive as archives
from tests.simulation import test_engine_clustering as clusterings
from tests.simulation import test_engine_restore as restores
from tests.simulation import test_non_blocking as free
from tests.simulation.engine_kit import (
    LIMITS,
    TOLERATED_MS,
    EngineFacts,
    Job,
    MakeContext,
    cleaner,
    client_write,
    open_table,
    outside,
    patiently,
    play,
    reader,
    seeded,
    undoer,
    writer,
)
from tests.simulation.family import Family, Prepared, Story, some_of
from timeline.context import TableContext, TableLimits
from timeline.errors import HoodooError
from timeline.model.operations import TableType, WriteOperation
from timeline.ports.world import World as EngineWorld
from timeline.setting_names import PublishLock
from timeline.testing.faults import Fault, Faults
from timeline.testing.invariants import Violation
from timeline.testing.ports import Actor, ActorPorts
from timeline.testing.script import Until
from timeline.testing.world import World

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
def prepared(make: Callable[..., World], *arguments: object) -> Prepared:
    return Prepared.of(make(*arguments))


def small(table_type: TableType = COW, version: int = 9) -> World:
    return seeded("family", SHARED, table_type=table_type, table_version=version)


def sliced(table_type: TableType = COW) -> World:
    """Several slices of each file group, so that there is something to clean and to archive."""
    world = small(table_type)
    jobs = [Job(operation=f"old{number}", keys=("a1", "b1")) for number in range(3)]
    play(world, [writer("old", jobs)], [])
    return world


def left_by_the_dead() -> World:
    """A writer died before its slot, long ago."""
    world = small()
    dead = writer("dead", [Job(operation="dead", keys=("a1", "d1"))])
    play(world, [dead], [Until("dead", "assert_held", Fault.CRASH_BEFORE)])
    world.now_ms += 2 * TOLERATED_MS
    return world


# ---------------------------------------------------------------- what actors do


def limits_of(draw: random.Random) -> TableLimits:
    return replace(
        LIMITS,
        publish_lock=draw.choice(list(PublishLock)),
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


def heals(draw: random.Random) -> bool:
    return draw.random() < 0.1


def appending(draw: random.Random, name: str) -> Story:
    return non_blocking(draw, name) if draw.random() < 0.5 else appending_optimistically(draw, name)


def non_blocking(draw: random.Random, name: str) -> Story:
    """Writers of one bucket beside compactions; the rows are those that the slots define."""
    world, facts = prepared(free.empty, "S2").fresh(name)
    actors = free.writers()[: draw.choice((2, 3))]
    services = draw.choice(((), (free.compact,), (free.compact_unclaimed, free.compact_logs)))
    actors += [free.service(f"S{place}", act) for place, act in enumerate(services)]
    last = Job(operation="zz-last", keys=("a9",))

    def judge(world: World) -> Sequence[object]:
        world.now_ms += 2 * TOLERATED_MS
        free.append(free.open_free(outside(world, "survivor")), last)
        told, seen = free.defined_rows(world, [*free.JOBS, last]), free.read_rows(world)
        return [] if told == seen else [f"NBCC-3: rows {seen}, the slots define {told}"]

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
            clusterings.run_round(context, clusterings.SERVICE, clusterings.Part.EXECUTE, now=True)

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
    """Two who roll back, one who may be taken for dead and wakes."""
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

    def judge(world: World) -> Sequence[object]:
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


class Unjudged(EngineFacts):
    """A restore takes rows that clients were told are there: only the chain can tell."""

    def check_step(self, _: World) -> list[Violation]:
        return []


@cache
def restore_target(before: Prepared) -> str:
    return restores.time_of(before.world.copy("looked at"), "old1")


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
    """Everybody dies at once, and what was not synced is gone or torn; then the survivor."""
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


FAMILIES: tuple[Family, ...] = (
    Family(
        id="S1",
        about="optimistic writers of a copy-on-write table, same and other file groups",
        actors="2 writers, 1 or 2 writes each: upsert, insert, bulk insert, overwrite, delete",
        faults="deaths, silence, unknown answers, lost leases, pauses, a clock that jumps",
        checks="I1-I9, I12, I14, files in slot order; sometimes healing and I16",
        build=optimistic,
        share=20,
    ),
    Family(
        id="S2",
        about="writers that append to the same logs, optimistic and non-blocking",
        actors="2 or 3 writers of a merge-on-read table, beside them up to two compactors",
        faults="deaths, unknown answers, lost leases, pauses",
        checks="as S1; non-blocking: rows by plans and requested times (NBCC-2, NBCC-3)",
        build=appending,
        share=6,
    ),
    Family(
        id="S3",
        about="compaction and log compaction planned, executed, cancelled at every point",
        actors="1 or 2 executors, a canceller or a log compactor, 1 or 2 writers",
        faults="a death, unknown answers",
        checks="as S1, and I10",
        build=compacting,
        share=7,
    ),
    Family(
        id="S4",
        about="clustering beside updates, inserts and overwrites",
        actors="1 or 2 executors, a writer",
        faults="a death, an unknown answer",
        checks="as S1, and I10",
        build=clustering,
        share=5,
    ),
    Family(
        id="S5",
        about="cleaning beside a reader and a writer",
        actors="cleaner, reader, writer",
        faults="deaths, silence, a pause",
        checks="as S1, and I3, I4 of what the reader saw",
        build=cleaning,
        share=7,
    ),
    Family(
        id="S6",
        about="two who roll back, and an owner that is taken for dead and wakes",
        actors="2 rollbackers, a writer, the remains of a dead one",
        faults="long pauses, lost leases, unknown answers, a death",
        checks="as S1",
        build=undoing,
    ),
    Family(
        id="S7",
        about="archiving beside writers, another archiver and a reader",
        actors="1 or 2 archivers, a writer, sometimes a reader",
        faults="pauses above the grace, deaths, silence, unknown answers, lost leases",
        checks="as S1; archived stays archived (GC-3)",
        build=archiving,
        share=7,
    ),
    Family(
        id="S8",
        about="a forced restore among writers, with the remains of a dead one",
        actors="restorer, 1 or 2 writers",
        faults="a death, an unknown answer, pauses, lost leases",
        checks="a survivor writes and cleans; rows are what the chain says, folded",
        build=restoring,
        share=5,
    ),
    Family(
        id="S9",
        about="heartbeats under a storage that does not answer",
        actors="2 writers, a rollbacker",
        faults="much silence, unknown answers, pauses around what a heartbeat may miss",
        checks="as S1",
        build=silent_storage,
    ),
    Family(
        id="S10",
        about="each lock provider's algorithm against a model of its server",
        actors="contenders",
        faults="session loss, throttling, lost answers",
        checks="I15",
        missing="providers talk to threads and sockets of their own; their suite runs outside",
        share=0,
    ),
    Family(
        id="S11",
        about="clocks that are wrong and jump",
        actors="2 writers, up to a minute off",
        faults="jumps of one clock, pauses of all, a death",
        checks="as S1, I6 above all",
        build=clocks,
    ),
    Family(
        id="S12",
        about="a client that dies or hears nothing, and its successor with the same batch id",
        actors="a writer, its successor, another writer",
        faults="deaths, unknown answers, lost leases",
        checks="as S1, I12 above all",
        build=batches,
    ),
    Family(
        id="S13",
        about="a power cut that takes or tears what was not synced",
        actors="writer, cleaner or second writer",
        faults="one power cut",
        checks="as S1, always healed (I16)",
        build=power_cuts,
        share=5,
    ),
    Family(
        id="S14",
        about="a column comes while others write",
        actors="a writer with a new column, another writer",
        faults="deaths, unknown answers, a lost lease",
        checks="as S1",
        build=growing_schema,
        share=7,
    ),
    Family(
        id="S15",
        about="a foreign writer without slots",
        actors="ours and Java",
        faults="-",
        checks="-",
        missing="facts are told by slots; a model of Java's writer is not part of the kit",
        share=0,
    ),
    Family(
        id="S16",
        about="the table is dropped and made again under a writer",
        actors="-",
        faults="-",
        checks="-",
        missing="a guard: a slot that lands in the new table is told as ok, and blocks it (F27)",
        share=0,
    ),
)

BY_ID = {family.id: family for family in FAMILIES}


def numbered(block: int, size: int) -> list[tuple[str, int]]:
    """
    The schedules of a block: families in turn by their shares, each at least once.

    Numbers go on from block to block, so that any number of blocks repeats none.
    """
    shares = [family for family in FAMILIES for _ in range(family.share)]
    first = block * size
    return [(shares[place % len(shares)].id, place) for place in range(first, first + size)]


def of_name(name: str) -> tuple[Family, int]:
    """Read back ``S3:17``."""
    family, _, number = name.partition(":")
    if family not in BY_ID or not number.isdigit():
        raise LookupError(f"no schedule has this name, it is like S3:17: {name}")
    return BY_ID[family], int(number)
