"""
The first scenario: two writers, a cleaner and a reader on one table, everything from one seed.

The seed decides the work, the clocks, how publications queue, which faults may happen (swarm
testing: a subset for each seed) and every choice of the schedule. Afterwards a survivor heals
the table and every promise must hold.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    EngineObserver,
    Job,
    check_files_in_slot_order,
    cleaner,
    heal,
    open_table,
    reader,
    seeded,
    writer,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.scheduler import run
from tests.simulator.trace import SimulationFailed, Trace
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteOperation
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import CommitLockMode

SHARED = ("a1", "a2", "b1", "b2")
_MOST = {
    Fault.CRASH_BEFORE: 1,
    Fault.CRASH_AFTER: 1,
    Fault.UNAVAILABLE: 3,
    Fault.UNAVAILABLE_AFTER: 2,
    Fault.AMBIGUOUS_APPLIED: 2,
    Fault.AMBIGUOUS_LOST: 2,
    Fault.AMBIGUOUS_LATE: 2,
    Fault.DUPLICATED: 1,
    Fault.LEASE_LOST: 2,
    Fault.TIME_JUMP: 1,
    Fault.WALL_JUMP: 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One seed's run and healing."""

    world: SimulatedSystem
    trace: Trace
    healing: Trace | None
    failure: str | None

    @property
    def hash(self) -> str:
        """Of both runs together."""
        return f"{self.trace.hash}-{self.healing.hash if self.healing else ''}"


def run_seed(seed: int, **options: Any) -> Outcome:
    """Everything that this seed means; ``options`` are those of ``new_world``."""
    draw = random.Random(f"swarm/{seed}")
    version = draw.choice((9, 9, 9, 8))
    world = seeded(f"swarm-{seed}", (*SHARED, "p1", "q1"), table_version=version, **options)
    facts = EngineObserver(world, commits_retained=RETAINED)
    limits = replace(LIMITS, publish_lock=draw.choice(list(CommitLockMode)))
    limits = replace(limits, unknown_ms_max=draw.choice((-1, 30, 3_000)))

    def make_context(engine: EngineWorld) -> TableContext:
        return open_table(engine, limits)

    actors = [
        writer(
            name,
            _jobs(draw, name, own),
            make_context=make_context,
            clock_offset_ms=draw.choice((0, -5_000, 5_000)),
            shuffled=draw.random() < 0.5,
        )
        for name, own in (("A", "p"), ("B", "q"))
    ]
    actors.append(cleaner(make_context=make_context, clock_offset_ms=draw.choice((0, -5_000))))
    actors.append(reader(facts))
    trace = run(
        world,
        actors,
        seed=seed,
        faults=_faults(draw),
        check_step=facts.check_step,
        check_end=facts.check_end,
    )
    if trace.failure is not None:
        return Outcome(world=world, trace=trace, healing=None, failure=trace.failure)
    healing = heal(world, facts, seed=seed)
    broken = healing.failure or "; ".join(map(str, check_files_in_slot_order(world))) or None
    return Outcome(world=world, trace=trace, healing=healing, failure=broken)


def expect_seed(seed: int, **options: Any) -> Outcome:
    """
    Run a seed that must hold.

    Raises:
        SimulationFailed: With the story and the line that runs it again.
    """
    outcome = run_seed(seed, **options)
    if outcome.failure is None:
        return outcome
    last_trace = outcome.healing or outcome.trace
    cause = next(iter(last_trace.errors.values()), None)
    raise SimulationFailed(
        f"{outcome.failure}\n{last_trace.story(80)}\n"
        f"re-run: make sim SEED={seed}   (trace {outcome.hash})"
    ) from cause


def _faults(draw: random.Random) -> Faults:
    chosen = {fault: count for fault, count in _MOST.items() if draw.random() < 0.6}
    return Faults(
        budgets=chosen,
        rate=draw.choice((0.01, 0.03, 0.08)),
        time_jump_ms=draw.choice((500, 4_000)),
        wall_jump_ms=draw.choice((5_000, 60_000)),
    )


def _jobs(draw: random.Random, name: str, own: str) -> list[Job]:
    """
    Two to four writes: mostly overlapping upserts, then any other operation of a writer.

    A delete names an existing row that no other actor inserts again before (only B deletes).
    Overwrites stay in the writer's own partition, whose keys never change.
    """
    jobs = []
    kinds = [WriteOperation.UPSERT] * 5
    kinds += [WriteOperation.INSERT, WriteOperation.BULK_INSERT, WriteOperation.INSERT_OVERWRITE]
    for number in range(draw.randint(2, 4)):
        operation = f"{name}{number}"
        kind = draw.choice(kinds)
        keys: tuple[str, ...]
        if kind is WriteOperation.INSERT_OVERWRITE:
            keys = (f"{own}1",)
        elif kind is WriteOperation.UPSERT:
            some = draw.sample(SHARED, draw.randint(1, 3))
            keys = (*some, f"{draw.choice('abc')}{draw.randint(3, 6)}")
        else:
            keys = (f"{draw.choice('ab')}-{operation}", f"d-{operation}")
        pause = draw.choice((0, 0, 40))
        jobs.append(Job(operation=operation, keys=keys, kind=kind, pause_ms=pause))
    if name == "B" and draw.random() < 0.5:
        deletes = Job(operation="B-delete", keys=("b2",), kind=WriteOperation.DELETE)
        jobs.insert(draw.randrange(len(jobs) + 1), deletes)
    return jobs
