"""
Holes of liveness and undoing: woken writers, rollbacks that race with them (5, 6, 8).

Being dead is only a guess; the abort slot makes it safe to act on it.
"""

from __future__ import annotations

import pytest

from tests.simulation import mutants
from tests.simulation.engine_kit import (
    TOLERATED_MS,
    Job,
    MakeContext,
    Undo,
    events_of,
    found_by,
    open_table,
    play,
    roll_back_dead_writers,
    rows_now,
    seeded,
    undoer,
    writer,
)
from tests.simulator.faults import Fault
from tests.simulator.script import Pause, ScriptStage, Tick, Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.model.file_names import HEARTBEATS

CREATE = "create .hoodie/.hoodoo/slots/"
PAUSE = Pause(TOLERATED_MS // 10 + 50)


# ---------------------------------------------------------------- hole 5


def paused(make_context: MakeContext) -> tuple[SimulatedSystem, Trace]:
    """A pauses for longer than others tolerate; then its heartbeat thread wakes first."""
    world = seeded("hole-5")
    actors = [writer("A", [Job(operation="A", keys=("a1",))], make_context=make_context)]
    stages: list[ScriptStage] = [Until("A", "open_output"), PAUSE, Tick(), UntilEnd("A")]
    return world, play(world, actors, stages)


def beats_of_first_instant(world: SimulatedSystem) -> int:
    first = str(events_of(world, "begin.done")[1]["rt"])
    return sum(
        change.path == f"{HEARTBEATS}/{first}" and change.kind == "write"
        for change in world.journal
    )


def test_hole_5_no_heartbeat_is_written_after_a_pause() -> None:
    """HB-3: the writer fences itself for good and begins again."""
    world, trace = paused(open_table)
    assert found_by(world, trace) == ""
    assert beats_of_first_instant(world) == 1
    assert len(events_of(world, "heartbeat.fenced")) == 1
    assert rows_now(world)["a1"] == "final"


def test_hole_5_mutant_that_never_fences_itself_is_found() -> None:
    world, _ = paused(mutants.unfenced)
    assert beats_of_first_instant(world) > 1


# ---------------------------------------------------------------- hole 6


def woken(undo: Undo, make_context: MakeContext = open_table) -> tuple[SimulatedSystem, Trace]:
    """A sleeps right before its slot; R takes it for dead and undoes it; A wakes."""
    world = seeded("hole-6")
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a2"))], make_context=make_context),
        undoer(undo),
    ]
    stages: list[ScriptStage] = [Until("A", CREATE), Fault.LEASE_LOST, PAUSE, UntilEnd("R")]
    return world, play(world, actors, [*stages, UntilEnd("A")])


def test_hole_6_a_resumed_writer_cannot_commit_after_its_rollback() -> None:
    """The abort takes its slot; it begins again and its rows exist in the end."""
    world, trace = woken(roll_back_dead_writers)
    assert trace.failure is None
    assert rows_now(world) == {"a1": "A", "a2": "A", "b1": "seed"}
    assert len(events_of(world, "write.redo")) == 1
    assert found_by(world, trace) == ""


def test_hole_6_mutant_that_deletes_without_an_abort_slot_is_found() -> None:
    world, trace = woken(mutants.delete_dead_writers)
    assert "I9" in found_by(world, trace)


def test_hole_6_a_writer_that_committed_first_is_helped_and_not_rolled_back() -> None:
    """A pauses between its slot and its completed file (RB-3)."""
    world = seeded("hole-6-helped")
    actors = [writer("A", [Job(operation="A", keys=("a1", "a2"))]), undoer()]
    stages: list[ScriptStage] = [
        Until("A", CREATE),
        Until("A", "create .hoodie/timeline/"),
        Fault.LEASE_LOST,
        PAUSE,
        UntilEnd("R"),
    ]
    trace = play(world, actors, [*stages, UntilEnd("A")])
    assert trace.failure is None
    assert rows_now(world) == {"a1": "A", "a2": "A", "b1": "seed"}
    assert events_of(world, "rollback.done") == []
    assert found_by(world, trace) == ""


@pytest.mark.parametrize("call", ["open_output", "close", "marker", ".inflight", "sync_folders"])
def test_hole_6_a_writer_rolled_back_at_any_step_leaves_no_file_and_retries(call: str) -> None:
    """RB-10: it deletes the files it wrote after its abort."""
    world = seeded("hole-6-any")
    actors = [writer("A", [Job(operation="A", keys=("a1", "c1"))]), undoer()]
    stages: list[ScriptStage] = [Until("A", call), PAUSE, UntilEnd("R"), UntilEnd("A")]
    trace = play(world, actors, stages)
    assert found_by(world, trace) == ""
    assert [one.kind.value for one in world.history if one.operation == "A"] == ["invoke", "ok"]


# ---------------------------------------------------------------- hole 8


def just_committed(undo: Undo) -> tuple[SimulatedSystem, Trace]:
    """R listed A as pending; A commits and removes its heartbeat; R then checks the heartbeat."""
    world = seeded("hole-8")
    actors = [writer("A", [Job(operation="A", keys=("a1", "a2"))]), undoer(undo)]
    stages: list[ScriptStage] = [
        Until("A", "acquire"),
        Until("R", f"list {HEARTBEATS}"),
        UntilEnd("A"),
        UntilEnd("R"),
    ]
    return world, play(world, actors, stages)


@pytest.mark.spec("HB-4")
def test_hole_8_an_instant_just_committed_is_not_rolled_back_without_heartbeat() -> None:
    world, trace = just_committed(roll_back_dead_writers)
    assert trace.failure is None
    assert rows_now(world) == {"a1": "A", "a2": "A", "b1": "seed"}
    assert events_of(world, "rollback.done") == []
    assert found_by(world, trace) == ""


def test_hole_8_mutant_that_trusts_its_old_listing_is_found() -> None:
    world, trace = just_committed(mutants.delete_dead_writers)
    assert "I7" in found_by(world, trace)
