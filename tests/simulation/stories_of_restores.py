"""A restore to a savepoint above the archived instants, with services and writers: S19."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from hoodoo.verify.verify import verify
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tableservices.cleaning.execute import clean
from tableservices.restoring.restore import restore
from tableservices.restoring.savepoints import savepoint
from tests.simulation import test_compaction as compactions
from tests.simulation import test_engine_archive as archives
from tests.simulation import test_engine_clustering as clusterings
from tests.simulation import test_engine_restore as restores
from tests.simulation.engine_kit import (
    CLEANING,
    TOLERATED_MS,
    Job,
    cleaner,
    do_write,
    open_table,
    outside,
    ports_of,
    rows_now,
    seeded,
    writer,
)
from tests.simulation.family import Prepared, Story, some_of
from tests.simulation.story_kit import COW, MOR, PAUSES, UNKNOWN, Unjudged, prepared
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.faults import Fault
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.world import SimulatedSystem
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.section import apply_pending_slots
from timeline.context import TableContext
from timeline.model.commit_metadata import TableType
from timeline.model.slot import SlotKind
from timeline.rollback.rollback import rollback_dead_writers

#: The keys of each write. Each letter is a partition: b1 and c1 are in archived files alone.
JOBS = {
    "seed": ("a1", "b1"),
    "low": ("a2", "c1"),
    "saved": ("a1",),
    "up1": ("a1", "d1"),
    "up2": ("a2", "b1"),
    "up3": ("a1", "e1"),
    "W": ("a1", "f1"),
    "final": ("a1", "z9"),
}
BELOW, ABOVE = ("seed", "low"), ("up1", "up2", "up3")
RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.compact.inline.max.delta.commits": "1",
    }
)


def saved_above_an_archive(table_type: TableType, archived: bool) -> SimulatedSystem:
    """A savepoint, writes before and after it, and those before it archived or to be archived."""
    world = seeded("saved", JOBS["seed"], table_type=table_type)
    for operation in ("low", "saved", *ABOVE):
        run(world, [writer(operation, [Job(operation=operation, keys=JOBS[operation])])])
        if operation == "saved":
            savepoint(open_table(outside(world, "keeper")))
    if archived and archive(open_table(outside(world, "archiver")), RULES) is None:
        raise AssertionError("nothing was archived")
    return world


@cache
def saved_in(before: Prepared) -> tuple[str, int]:
    """Requested time of the saved write and the number of its slot, as in every copy."""
    commit_log = open_table(outside(before.world.copy("looked at"))).commit_log
    for slot in commit_log.newest_first():
        if slot.kind is SlotKind.COMMIT and _operation(slot.body) == "saved":
            return slot.requested_time, slot.number
    raise LookupError("saved")


def _operation(body: bytes) -> str | None:
    return decode_commit(body).extra_metadata.get(OPERATION_KEY)


def rows_of_log(world: SimulatedSystem, first: int) -> dict[str, str]:
    """Record key to operation, folded from the slots since the saved write's, which stay."""
    commit_log = open_table(outside(world, "folder")).commit_log
    states: dict[str, dict[str, str]] = {}
    now = {key: operation for operation in BELOW for key in JOBS[operation]}
    for slot in commit_log.between(first - 1, commit_log.head()):
        if slot.kind is SlotKind.COMMIT and (operation := _operation(slot.body)):
            now = now | dict.fromkeys(JOBS[operation], operation)
            states[slot.requested_time] = now
        elif slot.kind is SlotKind.RESTORE:
            now = states[slot.requested_time]
    return now


def restoring_below_an_archive(draw: random.Random, name: str) -> Story:
    """Compaction, clustering and cleaning run before the next write, or during the restore."""
    table_type = draw.choice((COW, MOR, MOR))
    archived = draw.random() < 0.7
    before = prepared(saved_above_an_archive, table_type, archived)
    world, _ = before.fresh(name)
    target, number = saved_in(before)
    actors = [
        restores.goes_back("R", world, lambda context: restore(context, target, force=True)),
    ]
    serves = compactions.compact if table_type is MOR else _cluster
    behind = "R" if draw.random() < 0.6 else None
    if draw.random() < 0.7:
        actors.append(replace(compactions.serving("C", serves), start_after=behind))
    if draw.random() < 0.4:
        actors.append(replace(cleaner(rounds=1), start_after=behind))
    if not archived or draw.random() < 0.3:
        actors.append(archives.archiver("X", rules=RULES))
    if draw.random() < 0.4:
        actors.append(writer("W", [Job(operation="W", keys=JOBS["W"])]))

    def judge(world: SimulatedSystem) -> Sequence[object]:
        return _findings(world, number)

    return Story(
        world=world,
        facts=Unjudged(world),
        actors=actors,
        faults=some_of(draw, {Fault.CRASH_BEFORE: 1, **UNKNOWN, **PAUSES}, chance=0.4),
        judge=judge,
        judged_at_end=False,
    )


def _cluster(context: TableContext) -> None:
    clusterings.run_round(context, clusterings.SERVICE, now=True)


def _findings(world: SimulatedSystem, first: int) -> list[Violation]:
    """A survivor ends the work, moves rows, writes and cleans; rows equal the commit log."""
    found: list[Violation] = []

    def look(when: str) -> None:
        wanted, seen = rows_of_log(world, first), rows_now(world)
        if seen != wanted:
            found.append(Violation(invariant="RST-1", found=f"{when}: {seen} instead of {wanted}"))
        verified = verify(open_table(outside(world, "auditor"))).problems
        found.extend(Violation(invariant="I8", found=f"{when}: {one}") for one in verified)

    def settles(ports: ActorPorts) -> None:
        ports.clock.sleep_ms(archives.GRACE_MS)
        context = open_table(ports_of(ports))
        apply_pending_slots(context, "look")
        rollback_dead_writers(context)

    def moves(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        if context.config.table_type is MOR:
            compactions.both(context)
        else:
            _cluster(context)

    def writes(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        do_write(ports, context, Job(operation="final", keys=JOBS["final"]))
        for _ in range(2):
            clean(context, CLEANING)
            ports.clock.sleep_ms(TOLERATED_MS + 1)

    for name, body in (("settles", settles), ("moves", moves), ("writes", writes)):
        trace = run(world, [Actor(name=name, body=body)])
        if trace.failure is not None:
            return [*found, Violation(invariant="I16", found=f"{name}: {trace.failure}")]
        look(name)
    return found
