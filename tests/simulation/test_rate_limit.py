"""The rate limit of a table without a coordinator: writers compete for tokens, die, lose leases."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from filegroups.writing import write as write_path
from filegroups.writing.write_request import CommitResult
from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    EngineObserver,
    Job,
    heal,
    open_table,
    outside,
    seeded,
    writer,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.scheduler import run
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.instant_time import wall_ms
from timeline.ports.ports import Ports as EngineWorld
from timeline.rules.retry import RateLimit

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
NAMES = ("A", "B", "C", "D")
WRITES = 3
SLACK = len(NAMES) - 1  # each may have refreshed before the others' begins existed


def paced(pace: RateLimit) -> Callable[[EngineWorld], TableContext]:
    return lambda world: open_table(world, replace(LIMITS, rate_limit=pace))


def begins(world: SimulatedSystem) -> list[int]:
    instants = open_table(outside(world)).active().completed_writes
    return sorted(wall_ms(one.requested_time) for one in instants)[1:]  # the first one seeded


def most_too_many(times: Sequence[int], pace: RateLimit) -> float:
    """By how much the begins of any stretch of time exceed burst and rate."""
    return max(
        later - first + 1 - pace.burst - (times[later] - times[first]) / pace.interval_ms
        for first in range(len(times))
        for later in range(first, len(times))
    )


def played(
    pace: RateLimit, seed: int, faults: Faults
) -> tuple[SimulatedSystem, dict[str, CommitResult | HoodooError], list[int]]:
    world = seeded("pace", ("a1",))
    facts = EngineObserver(world, commits_retained=RETAINED)
    answers: dict[str, CommitResult | HoodooError] = {}
    actors = [
        writer(
            name,
            [Job(operation=f"{name}{section}", keys=("a1", name)) for section in range(WRITES)],
            make_context=paced(pace),
            answers=answers,
            clock_offset_ms=(seed % 3) * 200 * number,
        )
        for number, name in enumerate(NAMES)
    ]
    trace = run(world, actors, seed=seed, faults=faults, check_step=facts.check_step)
    assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
    times = begins(world)
    healing = heal(world, facts)
    assert healing.failure is None, f"seed {seed}: {healing.failure}\n{trace.story()}"
    return world, answers, times


@pytest.mark.spec("PACE-1")
@pytest.mark.parametrize("burst", [1, 3])
def test_concurrent_writers_keep_the_rate_limit(burst: int) -> None:
    pace = RateLimit(per_minute=120, burst=burst)
    worst, held = [], 0
    for seed in range(200 if NIGHTLY else 3):
        world, answers, times = played(pace, seed, Faults())
        assert all(isinstance(answer, CommitResult) for answer in answers.values()), f"seed {seed}"
        assert len(times) == len(NAMES) * WRITES, f"seed {seed}"
        worst.append(most_too_many(times, pace))
        assert worst[-1] <= SLACK, f"seed {seed}: {times}"
        held += world.counters["pace.waited"]
        assert world.counters["pace.overdue"] == 0
    assert held > len(worst)


def test_a_death_or_a_lost_lease_costs_no_row_and_keeps_the_rate_limit() -> None:
    pace = RateLimit(per_minute=120, burst=2)
    for seed in range(200 if NIGHTLY else 3):
        budgets = {Fault.CRASH_BEFORE: 1, Fault.LEASE_LOST: seed % 2, Fault.AMBIGUOUS_LATE: 1}
        _, _, times = played(pace, seed, Faults(budgets=budgets))
        assert most_too_many(times, pace) <= SLACK, f"seed {seed}"


def test_a_violated_rate_limit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_path, "wait_for_rate_limit", lambda _: False)
    pace = RateLimit(per_minute=120)
    assert max(most_too_many(played(pace, seed, Faults())[2], pace) for seed in range(2)) > SLACK
