"""
A helper that slept between a slot and its file while others applied that slot (RST-4).

The worst case is a writer on a high-latency store that helps the commit before its own. The file
of that commit and the helper's own slot are created at the same time (PUB-3). Others may apply
both and roll them back before the file arrives. An overwrite shows it best: its completed file
hides the rows that the restore brought back.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tableservices.restoring.restore import restore
from tableservices.restoring.savepoints import delete_savepoint, savepoint
from tests.simulation import test_engine_restore as restores
from tests.simulation import test_second_refresh as second
from tests.simulation.engine_kit import (
    LIMITS,
    TOLERATED_MS,
    Job,
    open_table,
    outside,
    rows_now,
    seeded,
    writer,
)
from tests.simulation.story_kit import OVERWRITE, UPSERT, lock_free
from tests.simulator.faults import Fault, Faults
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, Script, ScriptStage, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS, TIMELINE, timeline_path
from timeline.model.slot import SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import CommitLockMode

SEED = {"a1": "seed", "a2": "seed", "b1": "seed"}
SLOT = f"create {SLOTS}/{3:020d}"


def overwritten() -> tuple[SimulatedSystem, str]:
    """One overwrote a partition and died behind its slot; the world, and the file it lacks."""
    world = seeded("sleeping-helper", tuple(SEED))
    job = Job(operation="dead", keys=("a9",), kind=OVERWRITE)
    dead = writer("dead", [job], make_context=lock_free)
    script = Script([Until("dead", f"create {SLOTS}/", Fault.CRASH_AFTER)])
    run(world, [dead], policy=script)
    last = open_table(outside(world)).commit_log.read(2)
    assert last is not None
    assert last.file_name is not None
    return world, last.file_name


def slept(before: str, key: str = "b1") -> dict[str, str]:
    """H is stopped before one of its calls, and the state before the dead one is brought back."""
    world, name = overwritten()
    seed = open_table(outside(world)).commit_log.read(1)
    assert seed is not None
    helper = writer(
        "H", [Job(operation="H", keys=(key, "e1"))], make_context=lock_free, shuffled=True
    )
    back = restores.goes_back(
        "R", world, lambda context: restore(context, seed.requested_time, force=True)
    )
    showing = f"create {TIMELINE}/{name}"
    stages: list[ScriptStage] = [
        Until("H", before.format(showing=showing)),
        UntilEnd("R"),
        UntilEnd("H"),
    ]
    script = Script(stages)
    trace = run(world, [helper, back], faults=Faults(time_jump_ms=10), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    kinds = [slot.kind for slot in open_table(outside(world)).commit_log.newest_first()]
    assert SlotKind.RESTORE in kinds, trace.story()
    rows = rows_now(world)
    assert f"{TIMELINE}/{name}" not in world.files, f"{rows}\n{trace.story()}"
    return rows


@pytest.mark.spec("RST-4")
def test_a_paused_helper_with_the_next_slot_restores_no_file() -> None:
    assert slept("{showing}") == SEED


@pytest.mark.spec("RST-4")
def test_a_paused_helper_that_lost_the_next_slot_restores_no_file() -> None:
    assert slept(SLOT) == {**SEED, "b1": "H", "e1": "H"}


@pytest.mark.spec("RST-4")
def test_a_paused_helper_that_conflicts_with_the_helped_commit_restores_no_file() -> None:
    assert slept("{showing}", key="a1") == {**SEED, "a1": "H", "e1": "H"}


@pytest.mark.spec("RST-4")
def test_a_paused_writer_with_a_lock_that_others_do_not_take_restores_no_file() -> None:
    """Under ``auto`` only a writer that lost two slots has the lock, and it excludes no other."""
    world = seeded("auto", tuple(SEED))
    seed = open_table(outside(world)).commit_log.read(1)
    assert seed is not None
    job = Job(operation="A", keys=("a9",), kind=OVERWRITE)
    actors = [
        writer("A", [job], make_context=auto),
        writer("B", [Job(operation="B", keys=("b1",))], make_context=auto),
        writer("C", [Job(operation="C", keys=("c1",))], make_context=auto),
        restores.goes_back("R", world, partial(restored_by_auto, seed.requested_time)),
    ]
    stages: list[ScriptStage] = [
        Until("A", f"create {SLOTS}/{2:020d}"),
        UntilEnd("B"),
        Until("A", f"create {SLOTS}/{3:020d}"),
        UntilEnd("C"),
        Until("A", f"create {SLOTS}/{4:020d}"),
        Until("A", f"create {TIMELINE}/"),
        UntilEnd("R"),
        UntilEnd("A"),
    ]
    script = Script(stages)
    trace = run(world, actors, faults=Faults(time_jump_ms=10), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    assert "lock.acquire" in trace.story(400)
    assert rows_now(world) == SEED, trace.story()


def auto(engine: EngineWorld) -> TableContext:
    return open_table(engine, replace(LIMITS, publish_lock=CommitLockMode.AUTO))


def restored_by_auto(requested_time: str, context: TableContext) -> None:
    limits = replace(LIMITS, publish_lock=CommitLockMode.AUTO)
    restore(replace(context, limits=limits), requested_time, force=True)


@pytest.mark.spec("RST-4")
def test_a_process_that_paused_during_the_end_of_a_savepoint_leaves_no_file_of_it() -> None:
    world = seeded("slept-over-savepoint", tuple(SEED))
    seed = open_table(outside(world)).commit_log.read(1)
    assert seed is not None
    time = seed.requested_time
    actors = [
        restores.goes_back("A", world, lambda context: savepoint(context, time)),
        restores.goes_back("U", world, lambda context: delete_savepoint(context, time)),
        writer("W", [Job(operation="W", keys=("b1",))]),
    ]
    stages: list[ScriptStage] = [
        Until("A", f"create {TIMELINE}/{time}.savepoint"),
        Fault.LEASE_LOST,
        UntilEnd("U"),
        UntilEnd("W"),
        UntilEnd("A"),
    ]
    faults = Faults(budgets={Fault.LEASE_LOST: 1}, time_jump_ms=10)
    script = Script(stages)
    trace = run(world, actors, faults=faults, policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    assert [path for path in world.files if ".savepoint" in path] == [], trace.story()
    assert savepoint(open_table(outside(world)), time).requested_time == time


@pytest.mark.spec("FOR-4")
@pytest.mark.parametrize("kind", [UPSERT, OVERWRITE])
def test_a_paused_helper_does_not_apply_a_slot_that_was_voided_long_ago(
    kind: WriteOperation,
) -> None:
    """A dies after its slot; H refreshes, is about to apply it, and the lock is lost."""
    world = seeded("void-helper", ("a1",))
    answers: second.Answers = {}
    jobs = {
        "A": Job(operation="A", keys=("a2",), kind=kind),
        "H": Job(operation="H", keys=("b1",)),
        "J": Job(operation="J", keys=("a1", "a3")),
        "B": Job(operation="B", keys=("c1",)),
    }
    actors = [
        writer(
            name,
            [job],
            make_context=second.foreign if name == "J" else second.shared,
            answers=answers,
        )
        for name, job in jobs.items()
    ]
    stages: list[ScriptStage] = [
        Until("A", second.SLOT, Fault.CRASH_AFTER),
        Pause(2 * TOLERATED_MS // 10),
        Until("H", second.SHOW),
        Fault.LEASE_LOST,
        UntilEnd("J"),
        UntilEnd("B"),
        UntilEnd("H"),
    ]
    faults = Faults(time_jump_ms=10, budgets={Fault.LEASE_LOST: 1})
    script = Script(stages)
    trace = run(world, actors, faults=faults, policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    assert SlotKind.VOID in second.kinds(world)
    assert rows_now(world) == {"a1": "J", "a3": "J", "b1": "H", "c1": "B"}, trace.story()
    last = open_table(outside(world)).commit_log.read(2)
    assert last is not None
    assert timeline_path(last.file_name or "") not in world.files, trace.story()
