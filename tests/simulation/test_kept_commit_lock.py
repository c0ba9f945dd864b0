"""The kept commit lock: a writer that lost often enough cannot lose again, and loses no row."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from filegroups.writing.write_request import CommitResult
from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    EngineObserver,
    Job,
    heal,
    open_table,
    play,
    rows_now,
    seeded,
    writer,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, ScriptStage, Tick, Until, UntilEnd
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.ports.ports import Ports as EngineWorld

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
AFTER = 2
IMPATIENT_MS = 1_000  # no attempt takes that long, but where time jumps
MARKER = "create .hoodie/.temp/"  # before a file
NAMES = ("A", "B", "C", "D")

Opens = Callable[[EngineWorld], TableContext]


def opens(**retry: int) -> Opens:
    limits = replace(LIMITS, retry=replace(LIMITS.retry, **retry))
    return lambda world: open_table(world, limits)


open_queueing = opens(lock_after_conflicts=AFTER)
open_short = opens(lock_short_ms=600_000)
open_impatient = opens(lock_short_ms=IMPATIENT_MS)


@pytest.mark.spec("PUB-11")
@pytest.mark.parametrize(
    ("make_context", "refusals_max"), [(open_queueing, AFTER), (open_short, 1)]
)
def test_no_writer_conflicts_more_often_than_the_commit_lock_permits(
    make_context: Opens, refusals_max: int
) -> None:
    """Four writers of one file group, two writes each: at least one must retry under the lock."""
    queued = 0
    for seed in range(300 if NIGHTLY else 6):
        world = seeded("held-queue", ("a1",))
        answers: dict[str, CommitResult | HoodooError] = {}
        facts = EngineObserver(world, commits_retained=RETAINED)
        actors = [
            writer(
                name,
                [Job(operation=f"{name}{section}", keys=("a1",)) for section in range(2)],
                make_context=make_context,
                answers=answers,
            )
            for name in NAMES
        ]
        trace = run(world, actors, seed=seed, check_step=facts.check_step)
        assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
        assert len(answers) == 2 * len(NAMES)
        for operation, answer in answers.items():
            assert isinstance(answer, CommitResult), f"seed {seed}: {operation}: {answer}"
            assert len(answer.refusals) <= refusals_max, f"seed {seed}: {operation}"
        queued += world.counters["write.queued"]
        healing = heal(world, facts)
        assert healing.failure is None, f"seed {seed}: {healing.failure}\n{healing.story()}"
    assert queued


@pytest.mark.spec("PUB-11")
def test_a_long_retry_releases_the_commit_lock_and_continues() -> None:
    """B wins over A's first attempt; while A does it again for too long, C is let through."""
    world = seeded("held-queue-late", ("a1",))
    answers: dict[str, CommitResult | HoodooError] = {}
    actors = [
        writer(
            name, [Job(operation=name, keys=("a1",))], make_context=open_impatient, answers=answers
        )
        for name in ("A", "B", "C")
    ]
    stages: list[ScriptStage] = [
        Until("A", MARKER),
        UntilEnd("B"),
        Until("A", "acquire"),
        Until("A", MARKER),
        Pause(2),
        Tick(),
        Until("A", "close"),
        UntilEnd("C"),
        UntilEnd("A"),
    ]
    trace = play(world, actors, stages, jump_ms=IMPATIENT_MS)
    assert trace.failure is None, trace.story()
    assert world.counters["write.queue_given_back"] == 1
    assert [answers[name].attempts for name in "ABC"] == [3, 1, 1]
    assert rows_now(world) == {"a1": "A"}


@pytest.mark.parametrize("make_context", [open_queueing, open_short, open_impatient])
def test_a_lost_lease_or_a_death_under_the_commit_lock_costs_no_row(make_context: Opens) -> None:
    for seed in range(300 if NIGHTLY else 6):
        world = seeded("held-queue-faults", ("a1",))
        facts = EngineObserver(world, commits_retained=RETAINED)
        actors = [
            writer(name, [Job(operation=name, keys=("a1", name))], make_context=make_context)
            for name in NAMES
        ]
        budgets = {Fault.LEASE_LOST: 2, Fault.CRASH_BEFORE: seed % 2, Fault.AMBIGUOUS_LATE: 1}
        trace = run(
            world, actors, seed=seed, faults=Faults(budgets=budgets), check_step=facts.check_step
        )
        assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
        healing = heal(world, facts)
        assert healing.failure is None, f"seed {seed}: {healing.failure}\n{trace.story()}"
