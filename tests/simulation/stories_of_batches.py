"""Batches that are sent again while the slots that have their ids are collected: S18."""

from __future__ import annotations

import random
from collections.abc import Sequence

from filegroups.writing.idempotency import committed_batch
from hoodoo.verify.verify import check_batches
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules
from tests.simulation import test_engine_archive as archives
from tests.simulation.engine_kit import (
    Job,
    client_write,
    do_write,
    open_table,
    outside,
    patiently,
    plan_for,
    play,
    seeded,
)
from tests.simulation.family import Story, some_of
from tests.simulation.story_kit import CRASHES, PAUSES, SILENCE, UNKNOWN, prepared
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.table_facts import ClientEventKind
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError

#: A boundary repeats one id, so that each cut leaves some where they are, or takes some over.
RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.timeline.compaction.batch.size": "2",
        "hoodoo.batch.boundary.ids": "1",
    }
)
#: Number of old batches to archive, truncation by truncation. The next truncation leaves those of
#: the last truncation point in its file, or takes over an earlier file.
LEAVES, TAKES_OVER = 9, 12
KEYS = ("a1", "b1")


def grown(archived: int) -> SimulatedSystem:
    """
    Alternate a batch and an archive, so that truncation points have their ids; add three batches.
    """
    world = seeded("remembering")

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, open_table)
        for number, operation in enumerate(old(archived)):
            client_write(ports, context, batch(operation))
            if number < archived:
                archive(context, RULES)

    play(world, [Actor(name="old", body=body)], [])
    return world


def old(archived: int) -> list[str]:
    return [f"old{number}" for number in range(archived + 3)]


def batch(operation: str) -> Job:
    return Job(operation=operation, keys=KEYS, batch_id=operation)


def sender(name: str, operations: Sequence[str]) -> Actor:
    """Repeats batches; a second commit of one would have its operation twice (I12)."""

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, archives.registered)
        for operation in operations:
            try:
                do_write(ports, context, batch(operation))
            except HoodooError as error:
                ports.events.emit("sim.batch_failed", why=str(error))

    return Actor(name=name, body=body)


def newcomer(name: str, operations: Sequence[str]) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, archives.registered)
        for operation in operations:
            client_write(ports, context, batch(operation))

    return Actor(name=name, body=body)


def remembering(draw: random.Random, name: str) -> Story:
    archived = draw.choice((LEAVES, TAKES_OVER))
    world, facts = prepared(grown, archived).fresh(name)
    new = [f"A{number}" for number in range(draw.choice((1, 2, 3)))]
    actors = [
        newcomer("A", new),
        archives.archiver("X", rounds=draw.choice((1, 2)), rules=RULES),
        sender("S", draw.sample(old(archived), 2)),
    ]
    if draw.random() < 0.5:
        actors.append(archives.archiver("Y", rounds=2, pause_ms=draw.choice((5, 40)), rules=RULES))
    if draw.random() < 0.3:
        actors.append(sender("T", draw.sample(old(archived), 2)))
    faults = some_of(
        draw,
        {**PAUSES, **CRASHES, **SILENCE, **UNKNOWN},
        chance=0.4,
        time_jump_ms=(3 * archives.GRACE_MS, 1_000),
    )
    return Story(world=world, facts=facts, actors=actors, faults=faults, judge=forgotten)


def forgotten(world: SimulatedSystem) -> Sequence[Violation]:
    """
    Removed things that exist again, and acknowledged batches or truncation files that are lost.
    """
    found = archives.comebacks(world)

    class Report:
        def problem(self, kind: str, path: str, message: str) -> None:
            found.append(Violation(invariant="BATCH-2", found=f"{kind}: {path}: {message}"))

    world.now_ms += world.lease_ms  # a writer that died after its slot may have the lock until then
    auditor = open_table(outside(world, "auditor"))
    check_batches(auditor, Report())
    acknowledged = {e.operation for e in world.history if e.kind is ClientEventKind.OK}
    acknowledged -= {"seed"} | {
        one for one in acknowledged if one.startswith("final")
    }  # they have no batch id
    for operation in sorted(acknowledged):
        if not known(auditor, operation):
            found.append(Violation(invariant="BATCH-2", found=f"{operation} is forgotten"))
    return found


def known(context: TableContext, operation: str) -> bool:
    return committed_batch(context, plan_for(operation, batch_id=operation)) is not None
