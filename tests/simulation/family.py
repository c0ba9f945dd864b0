"""
One schedule of a scenario family: built from its number, run, healed, judged, made small.

``S3:17`` names a schedule for ever: the family's letter and number, and the number from which
everything else is drawn: the work, the clocks, the faults, the style of the scheduler (a random
walk or PCT) and each of its choices.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulation.engine_kit import (
    RETAINED,
    EngineObserver,
    check_files_in_slot_order,
    heal,
    mutation,
)
from tests.simulator.faults import (
    Fault,
    Faults,
    Move,
    PctPolicy,
    Policy,
    RandomPolicy,
    ReplayPolicy,
)
from tests.simulator.metadata_facts import MetadataObserver
from tests.simulator.ports import Actor
from tests.simulator.scheduler import run
from tests.simulator.shrinking import Shrunk, shrink
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.model.file_names import METADATA_TABLE


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A world before anything goes wrong, made once; schedules get copies."""

    world: SimulatedSystem
    facts: EngineObserver

    @staticmethod
    def of(world: SimulatedSystem) -> Prepared:
        has_metadata_table = bool(world.child_names(METADATA_TABLE))
        kind = MetadataObserver if has_metadata_table else EngineObserver
        facts = kind(world, commits_retained=RETAINED)
        facts.facts()  # existing content is decoded once
        return Prepared(world=world, facts=facts)

    def fresh(self, scenario: str) -> tuple[SimulatedSystem, EngineObserver]:
        world = self.world.copy(scenario)
        return world, self.facts.of_copy(world)


def nothing_more(_: TableContext) -> None:
    """No other service than cleaning has work left."""


def unrestrained(policy: Policy) -> Policy:
    return policy


def no_finding(_: SimulatedSystem) -> Sequence[object]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Story:
    """
    The parts of one schedule.

    ``judged_at_end`` is False if rows are judged by ``judge`` alone (a restore removes rows that
    clients know). ``heals`` lets a survivor write, serve and clean afterwards; then nothing
    may be pending or left over.
    """

    world: SimulatedSystem
    facts: EngineObserver
    actors: Sequence[Actor]
    faults: Faults
    heals: bool = False
    services: Callable[[TableContext], None] = nothing_more
    judge: Callable[[SimulatedSystem], Sequence[object]] = no_finding
    judged_at_end: bool = True
    steps: int = 200  # about how long it is, for PCT
    restrain: Callable[[Policy], Policy] = unrestrained  # removes moves that the story excludes


Change = Callable[[TableContext], TableContext]
Build = Callable[[random.Random, str], Story]


@dataclass(frozen=True, kw_only=True)
class Family:
    """
    A kind of scenario.

    ``missing`` says which feature it waits for; then it has no ``build``.
    """

    id: str
    about: str
    actors: str
    faults: str
    checks: str
    build: Build | None = None
    missing: str = ""
    share: int = 10  # of every block of schedules


@dataclass(frozen=True, kw_only=True)
class Played:
    """The result of one schedule."""

    name: str
    world: SimulatedSystem
    trace: Trace
    healing: Trace | None
    failure: str | None
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return f"{self.trace.hash}-{self.healing.hash if self.healing else ''}"

    @property
    def steps(self) -> int:
        return len(self.trace.steps) + (len(self.healing.steps) if self.healing else 0)

    def report(self, last: int = 80) -> str:
        """Text for a developer: the failure, the end of the story, how to run it again."""
        broken = self.healing or self.trace
        return (
            f"{self.name}: {self.failure}\n{broken.story(last)}\n"
            f"run it again: make sim SEED={self.name}   (trace {self.hash})"
        )


def style_of(number: int, faults: Faults, steps: int) -> Policy:
    """Every third schedule is a random walk, the others are PCT of a depth from 2 to 5."""
    rate = faults.rate if faults.budgets else 0.0
    if number % 3 == 0:
        return RandomPolicy(number, rate)
    return PctPolicy(number, rate, depth=2 + number % 4, steps=steps)


def play_schedule(
    family: Family,
    number: int,
    *,
    policy: Policy | None = None,
    change: Change | None = None,
) -> Played:
    """
    Play one schedule; with another policy the same work in another order.

    ``change`` makes mutants of the actors' engine; healing and judging use the real engine.
    """
    name = f"{family.id}:{number}"
    if family.build is None:
        raise LookupError(f"{family.id} waits for {family.missing}")
    story = family.build(random.Random(f"{family.id}/{number}"), name)
    facts = story.facts
    with mutation(change):
        trace = run(
            story.world,
            story.actors,
            seed=number,
            faults=story.faults,
            policy=story.restrain(policy or style_of(number, story.faults, story.steps)),
            check_step=facts.check_step,
            check_end=facts.check_end if story.judged_at_end else None,
        )
    healing, failure = None, trace.failure
    heals = story.heals or (change is not None and story.judged_at_end)
    if failure is None and heals:
        healing = heal(story.world, facts, seed=number, before_cleaning=story.services)
        failure = healing.failure
    if failure is None:
        found = [*story.judge(story.world)]
        if story.judged_at_end:
            found += check_files_in_slot_order(story.world, facts)
        failure = "; ".join(map(str, found)) or None
    return Played(
        name=name,
        world=story.world,
        trace=trace,
        healing=healing,
        failure=failure,
        counters=dict(story.world.counters),
    )


def smallest(
    family: Family, number: int, *, change: Change | None = None, replays_max: int = 300
) -> Shrunk | None:
    """The smallest schedule found that fails as this one does."""
    first = play_schedule(family, number, change=change)
    if first.failure is None:
        return None
    kind = first.failure.split(":")[0]

    def attempt(moves: Sequence[Move]) -> Trace | None:
        again = play_schedule(family, number, policy=ReplayPolicy(moves), change=change)
        same = again.failure is not None and again.failure.split(":")[0] == kind
        return again.trace if same else None

    return shrink(first.trace.moves, attempt, replays_max=replays_max)


def some_of(
    draw: random.Random,
    most: dict[Fault, int],
    *,
    time_jump_ms: Sequence[int] = (500, 4_000),
    chance: float = 0.6,
    victims: frozenset[str] = frozenset(),
) -> Faults:
    """Swarm testing: a subset of the faults for each schedule."""
    return Faults(
        budgets={fault: count for fault, count in most.items() if draw.random() < chance},
        rate=draw.choice((0.01, 0.03, 0.08)),
        time_jump_ms=draw.choice(time_jump_ms),
        wall_jump_ms=draw.choice((5_000, 60_000)),
        victims=victims,
    )
