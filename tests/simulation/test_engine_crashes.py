"""
Every death, one by one: a writer, a cleaner, a rollback killed at each of their port calls.

After each a survivor runs, and all invariants must hold: rows exact, nothing pending, nothing
left over. The same with a power cut at each call, which also drops un-synced data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest

from filegroups.table import TableReader
from tests.simulation import mutants
from tests.simulation.engine_kit import (
    RETAINED,
    EngineObserver,
    Job,
    check_files_in_slot_order,
    cleaner,
    heal,
    open_table,
    outside,
    play,
    rows_now,
    seeded,
    writer,
)
from tests.simulator.faults import Chooser, Fault, Faults, Move, PlannedFault, PlannedPolicy
from tests.simulator.ports import Actor
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import Until
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.errors import ChecksumError
from timeline.model.commit_metadata import TableType, WriteOperation

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
KEYS = ("a1", "b1", "p1")
JOBS = {
    WriteOperation.UPSERT: Job(operation="A", keys=("a1", "a2", "c1")),
    WriteOperation.INSERT_OVERWRITE: Job(
        operation="A", keys=("p1",), kind=WriteOperation.INSERT_OVERWRITE
    ),
    WriteOperation.DELETE: Job(operation="A", keys=("b1",), kind=WriteOperation.DELETE),
}


def writing(kind: WriteOperation) -> tuple[SimulatedSystem, Sequence[Actor]]:
    """A writes, B overlaps with it afterwards, then a clean."""
    world = seeded("crash-writer", KEYS)
    return world, [
        writer("A", [JOBS[kind]]),
        writer("B", [Job(operation="B", keys=("a1", "a3"))], start_after="A"),
        cleaner(rounds=1),
    ]


def appending(kind: WriteOperation) -> tuple[SimulatedSystem, Sequence[Actor]]:
    """A appends to logs of two file groups; B to one of them, and opens another; then a clean."""
    world = seeded("crash-appender", KEYS, table_type=TableType.MERGE_ON_READ)
    play(world, [writer("old", [Job(operation="old", keys=("a1",))])], [])
    return world, [
        writer("A", [Job(operation="A", keys=("a1", "b1"), kind=kind)]),
        writer("B", [Job(operation="B", keys=("a1", "a3"))], start_after="A"),
        cleaner(rounds=1),
    ]


def rebasing() -> tuple[SimulatedSystem, Sequence[Actor]]:
    """A conflicted with B's commit and has to merge one file group again."""
    world = seeded("crash-rebase", KEYS)
    return world, [
        writer("A", [Job(operation="A", keys=("a1", "c1"))]),
        writer("B", [Job(operation="B", keys=("a1", "a3"))]),
    ]


def cleaning() -> tuple[SimulatedSystem, Sequence[Actor]]:
    """Old slices to clean, one dead writer to roll back, markers and a heartbeat of it."""
    world = seeded("crash-cleaner", KEYS)
    jobs = [Job(operation=f"old{number}", keys=("a1", "b1")) for number in range(4)]
    play(world, [writer("old", jobs)], [])
    dead = writer("dead", [Job(operation="dead", keys=("a1", "d1"))])
    play(world, [dead], [Until("dead", "assert_held", Fault.CRASH_BEFORE)])
    world.now_ms += 10_000
    return world, [cleaner(rounds=2)]


def expect_healed(world: SimulatedSystem, trace: Trace, why: str) -> None:
    assert trace.failure is None, f"{why}: {trace.failure}\n{trace.story()}"
    healing = heal(world, EngineObserver(world, commits_retained=RETAINED))
    assert healing.failure is None, (
        f"{why}: {healing.failure}\n{trace.story()}\n--- healing\n{healing.story()}"
    )
    assert check_files_in_slot_order(world) == [], why


def checks(world: SimulatedSystem) -> EngineObserver:
    return EngineObserver(world, commits_retained=RETAINED)


@pytest.mark.parametrize("kind", list(JOBS))
def test_writer_killed_at_every_call(kind: WriteOperation) -> None:
    cases = list(crash_points(partial(writing, kind), "A"))
    assert len(cases) >= 30
    for case in cases:
        expect_healed(case.world, case.trace, f"{kind.value}, call {case.call} {case.fault}")


@pytest.mark.parametrize("kind", [WriteOperation.UPSERT, WriteOperation.DELETE])
def test_appender_killed_at_every_call(kind: WriteOperation) -> None:
    cases = list(crash_points(partial(appending, kind), "A"))
    assert len(cases) >= 30
    assert any(".log." in path for path in cases[0].world.files)
    for case in cases:
        expect_healed(case.world, case.trace, f"{kind.value}, call {case.call} {case.fault}")


def logging_changes(kind: WriteOperation) -> tuple[SimulatedSystem, Sequence[Actor]]:
    """A writes change logs for its base files, B overlaps with it afterwards."""
    cdc = {
        "hoodie.table.cdc.enabled": "true",
        "hoodie.table.cdc.supplemental.logging.mode": "DATA_BEFORE_AFTER",
    }
    world = seeded("crash-change-log", KEYS, properties=cdc)
    return world, [
        writer("A", [Job(operation="A", keys=("a1", "b1"), kind=kind)]),
        writer("B", [Job(operation="B", keys=("a1", "a3"))], start_after="A"),
    ]


def replayed(world: SimulatedSystem) -> dict[str, str]:
    """Record key to operation, as every change from the beginning leaves it."""
    found: dict[str, dict[str, str]] = {}
    with TableReader(open_table(outside(world))).changes("earliest", images=True) as changes:
        for row in changes.read_all().to_pylist():
            before, after = row["before"], row["after"]
            key = (after or before)["id"]
            assert found.pop(key, None) == before, f"{key} was not {before}"
            if after is not None:
                found[key] = after
    return {key: row["operation"] for key, row in found.items()}


@pytest.mark.parametrize("kind", [WriteOperation.UPSERT, WriteOperation.DELETE])
def test_writer_of_change_logs_killed_at_every_call(kind: WriteOperation) -> None:
    """Changes explain the table's state after every death; no log outlives its writer."""
    cases = list(crash_points(partial(logging_changes, kind), "A"))
    assert len(cases) >= 30
    assert any(path.endswith(".cdc") for path in cases[0].world.files)
    for case in cases:
        why = f"{kind.value}, call {case.call} {case.fault}"
        assert replayed(case.world) == rows_now(case.world), why
        expect_healed(case.world, case.trace, why)


def test_two_appenders_in_any_order_lose_nothing() -> None:
    """Both append to one file group; the order of slots and of requested times must agree."""
    for seed in range(200 if NIGHTLY else 5):
        world = seeded("appenders", KEYS, table_type=TableType.MERGE_ON_READ)
        actors = [
            writer(
                name,
                [
                    Job(operation=f"{name}1", keys=("a1", "b1")),
                    Job(operation=f"{name}2", keys=("a1",), kind=kind),
                ],
            )
            for name, kind in (("A", WriteOperation.DELETE), ("B", WriteOperation.UPSERT))
        ]
        facts = checks(world)
        faults = Faults(budgets={Fault.CRASH_BEFORE: 1, Fault.AMBIGUOUS_APPLIED: 1})
        trace = run(world, actors, seed=seed, faults=faults, check_step=facts.check_step)
        expect_healed(world, trace, f"seed {seed}")


def test_cleaner_and_rollbacker_killed_at_every_call() -> None:
    cases = list(crash_points(cleaning, "cleaner"))
    assert len(cases) >= 60
    assert cases[0].world.counters["rollback.done"] == 1
    assert cases[0].world.counters["cleaning.done"] >= 1
    for case in cases:
        expect_healed(case.world, case.trace, f"call {case.call} {case.fault}")


class _RebasePolicy(PlannedPolicy):
    """A runs to its lock, B to its end, then A; a crash strikes A's call of this number."""

    def __init__(self, call: int | None) -> None:
        faults = (
            [] if call is None else [PlannedFault(actor="A", call=call, fault=Fault.CRASH_BEFORE)]
        )
        super().__init__(faults)
        self._waits = False

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        of_b = [move for move in plain if (run.task_of(move) or ("", 0))[0] == "B"]
        self._waits = self._waits or any(
            "acquire" in run.describe(move)
            for move in plain
            if (run.task_of(move) or ("", 0))[0] == "A"
        )
        return super().choose(of_b if self._waits and of_b else plain, run)


def test_writer_killed_at_every_call_of_a_rebase() -> None:
    def attempt(call: int | None) -> tuple[SimulatedSystem, Trace]:
        world, actors = rebasing()
        facts = checks(world)
        policy = _RebasePolicy(call)
        return world, run(world, actors, policy=policy, check_step=facts.check_step)

    world, plain = attempt(None)
    assert world.counters["write.refused"] == 1
    assert plain.calls["A"] >= 50
    for call in range(plain.calls["A"]):
        expect_healed(*attempt(call), f"call {call}")


class _PowerCut(PlannedPolicy):
    """All actors die before step number ``at``; un-synced data may be lost or torn."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        self._left -= 1
        return (Fault.POWER_CUT.value, 0) if self._left == -1 else super().choose(plain, run)


@pytest.mark.parametrize("seed", range(20 if NIGHTLY else 1))
def test_power_cut_at_every_call_of_a_write_and_of_a_clean(seed: int) -> None:
    """LOC-2: acknowledged data survives, torn data is never visible."""
    makes = [partial(writing, WriteOperation.UPSERT), cleaning]
    if NIGHTLY:
        makes.append(partial(appending, WriteOperation.UPSERT))
    for make in makes:
        world, actors = make()
        steps = len(run(world, actors, policy=PlannedPolicy()).steps)
        for at in range(steps):
            world, actors = make()
            trace = run(world, actors, seed=seed, policy=_PowerCut(at))
            expect_healed(world, trace, f"power cut at {at}")


def test_power_cut_mutant_that_does_not_wait_for_its_slot_is_found() -> None:
    """The slot's name was never made durable, its completed file was."""
    found = []
    for at, seed in product(range(30, 50), range(12)):
        world = seeded("power-mutant", KEYS)
        job = JOBS[WriteOperation.UPSERT]
        actor = writer("A", [job], make_context=mutants.with_chain(mutants.RelaxedChain))
        run(world, [actor], seed=seed, policy=_PowerCut(at))
        try:
            found.append(heal(world, checks(world)).failure or "")
        except ChecksumError:
            found.append("torn slot")
    assert "torn slot" in found
    assert any("I6" in failure for failure in found)


@pytest.mark.slow
def test_cleaner_killed_at_every_call_after_a_writer_was_killed_at_every_call() -> None:
    """Two deaths in a row, all pairs; for the night."""
    for first in crash_points(partial(writing, WriteOperation.UPSERT), "A"):
        if first.fault is None:
            continue

        def make(call: int = first.call) -> tuple[SimulatedSystem, Sequence[Actor]]:
            world, actors = writing(WriteOperation.UPSERT)
            fault = PlannedFault(actor="A", call=call, fault=Fault.CRASH_BEFORE)
            run(world, actors[:1], policy=PlannedPolicy([fault]))
            world.now_ms += 10_000
            return world, [cleaner(rounds=1)]

        for second in crash_points(make, "cleaner"):
            expect_healed(second.world, second.trace, f"calls {first.call}, {second.call}")
