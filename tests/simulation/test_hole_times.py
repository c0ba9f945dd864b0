"""
Holes of times: collisions, wrong clocks, windows by requested time, snapshots that are too new.

Numbers of holes are those of the list of correctness holes (docs/spec/holes.md). Every test
plays one written interleaving, and plays it again with a mutant that must be found.
"""

from __future__ import annotations

import pytest

from tests.simulation import mutants
from tests.simulation.engine_kit import (
    EngineObserver,
    Job,
    MakeContext,
    events_of,
    found_by,
    new_world,
    open_table,
    play,
    rows_now,
    seeded,
    writer,
)
from tests.simulator.ports import Actor
from tests.simulator.script import Pause, Script, ScriptStage, Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem

REQUESTED = ".commit.requested"
SLOT = "create .hoodie/.hoodoo/slots/"


def slots_of(world: SimulatedSystem) -> list[tuple[str, str]]:
    """(Requested time, completion time) in slot order."""
    facts = EngineObserver(world).structure()
    return [(slot.requested_time, slot.completion_time or "") for slot in facts.slots]


# ---------------------------------------------------------------- hole 1


def collide(*, atomic_create: bool) -> tuple[SimulatedSystem, Trace]:
    """Two processes, equal clocks: both choose the same time before either shows it."""
    world = new_world("hole-1")
    world.call_ms = 0
    actors = [
        Actor(name=name, body=writer(name, [Job(operation=name, keys=(key,))]).body,
              atomic_create=atomic_create)
        for name, key in (("A", "a1"), ("B", "b1"))
    ]  # fmt: skip
    method = "create" if atomic_create else "write"
    stages = [
        Until("A", f"{method} .hoodie/timeline/20260101000000000{REQUESTED}"),
        Until("B", f"{method} .hoodie/timeline/20260101000000000{REQUESTED}"),
        Until("A", f"{method} .hoodie/timeline/20260101000000000.inflight"),
        Until("B", f"{method} .hoodie/timeline/2026010100000000"),
        Until("B", ".inflight"),
    ]
    return world, play(world, actors, stages)


def test_hole_1_two_processes_never_share_a_requested_time() -> None:
    world, trace = collide(atomic_create=True)
    assert found_by(world, trace) == ""
    (first, _), (second, _) = slots_of(world)[:2]
    assert sorted((first, second)) == ["20260101000000000", "20260101000000004"]
    assert trace.outcomes == {"A": "returned", "B": "returned"}


def test_hole_1_mutant_storage_without_atomic_create_is_found() -> None:
    world, trace = collide(atomic_create=False)
    assert "I7" in found_by(world, trace)


# ---------------------------------------------------------------- hole 2


def disordered(make_context: MakeContext) -> tuple[SimulatedSystem, Trace]:
    """One after the other: a clock 5 s ahead, a right one, one 5 s behind that jumps back."""
    world = new_world("hole-2")
    facts = EngineObserver(world, commits_retained=None)
    actors = [
        writer("ahead", [Job(operation="ahead", keys=("a1",))], clock_offset_ms=5_000,
               make_context=make_context),
        writer("right", [Job(operation="right", keys=("a1",))], start_after="ahead",
               make_context=make_context),
        writer("behind", [Job(operation="behind", keys=("a1",))], clock_offset_ms=-5_000,
               start_after="right", make_context=make_context),
    ]  # fmt: skip
    return world, play(world, actors, [], facts=facts)


def test_hole_2_times_ascend_with_any_clocks() -> None:
    world, trace = disordered(open_table)
    assert found_by(world, trace) == ""
    flat = [time for pair in slots_of(world) for time in pair]
    assert flat == sorted(flat)
    assert rows_now(world)["a1"] == "final"


def test_hole_2_mutant_that_draws_from_the_bare_clock_is_found() -> None:
    world, trace = disordered(mutants.bare_clock)
    assert "I6" in found_by(world, trace)


def test_hole_2_wall_clock_that_jumps_back_while_writing() -> None:
    world = seeded("hole-2-jump")
    trace = play(world, [writer("A", [Job(operation="A", keys=("a1",))])], [Until("A", SLOT)])
    assert found_by(world, trace) == ""

    def body(ports: object) -> None:
        ports.state.clock_offset_ms = -30_000  # type: ignore[attr-defined]
        writer("B", [Job(operation="B", keys=("a1",))]).body(ports)  # type: ignore[arg-type]

    trace = play(world, [Actor(name="B", body=body)], [])
    assert trace.failure is None
    completions = [completion for _, completion in slots_of(world)]
    assert completions == sorted(completions)
    assert rows_now(world)["a1"] == "B"


# ---------------------------------------------------------------- holes 20 and 23


def older_requested_completes_late(make_context: MakeContext) -> tuple[SimulatedSystem, Trace]:
    """A begins before B, completes after B took its snapshot, both write one file group."""
    world = seeded("hole-20")
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a2"))]),
        writer("B", [Job(operation="B", keys=("a1", "a3"))], make_context=make_context),
    ]
    stages: list[ScriptStage] = [
        Until("A", "acquire"),
        Until("B", "open_output a/"),
        UntilEnd("A"),
        UntilEnd("B"),
    ]
    return world, play(world, actors, stages)


def test_hole_20_a_concurrent_commit_with_an_earlier_requested_time_is_validated() -> None:
    world, trace = older_requested_completes_late(open_table)
    assert found_by(world, trace) == ""
    assert rows_now(world) == {
        "a1": "final", "a2": "A", "a3": "B", "b1": "seed", "z9": "final",
    }  # fmt: skip
    (refusal,) = events_of(world, "write.refused")
    assert "C1" in str(refusal["why"])


def test_hole_20_mutant_that_selects_by_requested_time_is_found() -> None:
    world, trace = older_requested_completes_late(mutants.requested_window)
    assert "I5" in found_by(world, trace)


def snapshot_newer_than_me(make_context: MakeContext) -> tuple[SimulatedSystem, Trace]:
    """A has its requested time and no snapshot yet; B begins later and completes before it."""
    world = seeded("hole-23")
    actors = [
        writer("A", [Job(operation="A", keys=("a1",))], make_context=make_context),
        writer("B", [Job(operation="B", keys=("a1", "a2"))]),
    ]
    stages: list[ScriptStage] = [
        Until("A", f"{REQUESTED}"),
        Until("A", "read .hoodie/.hoodoo/slots/"),
        Pause(1),
        UntilEnd("B"),
        UntilEnd("A"),
    ]
    return world, play(world, actors, stages)


def test_hole_23_writer_draws_again_when_its_snapshot_is_newer_than_itself() -> None:
    """BEG-5: nothing was written yet, so it is cheap."""
    world, trace = snapshot_newer_than_me(open_table)
    assert trace.failure is None
    assert rows_now(world) == {"a1": "A", "a2": "B", "b1": "seed"}
    assert len(events_of(world, "begin.redrawn")) == 1
    assert found_by(world, trace) == ""


def test_hole_23_mutant_that_keeps_its_time_is_found() -> None:
    world, trace = snapshot_newer_than_me(mutants.no_look_after_begin)
    assert "I5" in found_by(world, trace)


def test_beg_5_a_begin_takes_the_lock_when_others_keep_committing() -> None:
    """Three draws are lost to others, the fourth happens in the queue."""
    world = seeded("beg-5")
    concurrent = [
        writer(f"R{number}", [Job(operation=f"R{number}", keys=("a1",))]) for number in range(3)
    ]
    stages: list[ScriptStage] = []
    for number in range(3):
        stages += [
            Until("A", "create .hoodie/timeline/"),
            Until("A", "read .hoodie/.hoodoo/slots/"),
            Pause(1),
            UntilEnd(f"R{number}"),
        ]
    stages.append(UntilEnd("A"))
    actors = [*concurrent, writer("A", [Job(operation="A", keys=("a1",))])]
    trace = play(world, actors, stages)
    assert trace.failure is None
    assert len(events_of(world, "begin.redrawn")) == 3
    acquired = [step for step in trace.steps if step.call == "lock.acquire" and step.actor == "A"]
    assert len(acquired) == 2  # once to begin, once to commit
    assert rows_now(world)["a1"] == "A"


def test_process_never_draws_a_requested_time_twice() -> None:
    """
    An abandoned instant leaves no trace; with a frozen clock its time was drawn again.

    Found by the first seeds of the swarm: the second attempt then used the file names of the
    first, which late requests and straggling tasks still know.
    """
    world = seeded("drawn-once")
    script: list[ScriptStage] = [Until("A", "open_output a/"), Pause(400), UntilEnd("A")]
    slow = writer("A", [Job(operation="A", keys=("a1",))], clock_offset_ms=-60_000)
    trace = play(world, [slow], script)
    assert found_by(world, trace) == ""
    begun = [str(event["rt"]) for event in events_of(world, "begin.done")]
    assert len(events_of(world, "write.abandoned")) == 1
    assert len(set(begun)) == len(begun)


@pytest.mark.parametrize("stages", [[], [Until("A", "create")]])
def test_an_unplayed_script_is_reported(stages: list[ScriptStage]) -> None:
    script = Script(stages)
    assert script.played is (not stages)
