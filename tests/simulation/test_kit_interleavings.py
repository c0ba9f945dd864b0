"""The search through interleavings, PCT and shrinking, on the toy with its known mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import comb

import pytest

from tests.simulation.toy_protocol import Publish, check, make_run
from tests.simulator.faults import Fault, Faults, Move, PctPolicy, ReplayPolicy
from tests.simulator.interleavings import Coverage, Scene, cover
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import explore, run
from tests.simulator.shrinking import shrink
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem


def toy(how: Publish, faults: Faults | None = None, writers: int = 2) -> Coverage:
    def make() -> Scene:
        world, actors = make_run(how, writers=writers)
        return Scene(world=world, actors=actors, check_end=check)

    return cover(make, faults=faults)


def calls(*paths: Sequence[str]) -> Coverage:
    """One actor for each list of files, which it writes one after the other."""

    def body(mine: Sequence[str]) -> object:
        def write(ports: ActorPorts) -> None:
            for path in mine:
                ports.storage.write(path, b"x")

        return write

    def make() -> Scene:
        actors = [
            Actor(name="abc"[place], body=body(mine))  # type: ignore[arg-type]
            for place, mine in enumerate(paths)
        ]
        return Scene(world=SimulatedSystem(), actors=actors)

    return cover(make)


def test_calls_on_different_files_have_one_interleaving() -> None:
    found = calls(["a/1", "a/2", "a/3"], ["b/1", "b/2", "b/3"])
    assert (found.runs, found.cut_short, found.complete) == (1, 0, True)


def test_calls_on_one_file_have_every_interleaving_once() -> None:
    found = calls(["x", "x", "x"], ["x", "x"])
    assert (found.runs, found.complete) == (comb(5, 2), True)


def test_three_writers_of_one_file_have_every_order_once() -> None:
    assert calls(["x"], ["x"], ["x"]).runs == 6
    assert calls(["x", "own"], ["own2", "x"], ["x"]).runs == 6


@pytest.mark.parametrize("how", list(Publish))
def test_search_agrees_with_the_one_that_hashes_states(how: Publish) -> None:
    seen = explore(lambda: make_run(how), check_end=check)
    assert (toy(how).failed is None) == (seen.failed is None)


@pytest.mark.parametrize("fault", [Fault.AMBIGUOUS_LATE, Fault.CRASH_BEFORE, Fault.LEASE_LOST])
@pytest.mark.parametrize("how", list(Publish))
def test_search_agrees_under_faults(how: Publish, fault: Fault) -> None:
    faults = Faults(budgets={fault: 1})
    seen = explore(lambda: make_run(how), faults=faults, check_end=check)
    found = toy(how, faults)
    assert (found.failed is None) == (seen.failed is None)
    assert found.complete == (found.failed is None)


def test_search_begins_at_the_start_of_the_scene() -> None:
    def make() -> Scene:
        world, actors = make_run(Publish.RESOLVE)
        return Scene(world=world, actors=actors, begun={"a": "create", "b": "create"})

    assert cover(make).runs < toy(Publish.RESOLVE).runs


def test_bounded_search_is_reported_as_incomplete() -> None:
    def make() -> Scene:
        world, actors = make_run(Publish.RESOLVE, writers=3)
        return Scene(world=world, actors=actors)

    assert not cover(make, runs_max=3).complete


def pct(seed: int, depth: int = 3) -> Trace:
    world, actors = make_run(Publish.PUT, writers=3, operations=2)
    policy = PctPolicy(seed, 0.0, depth=depth, steps=20)
    return run(world, actors, seed=seed, policy=policy, check_end=check)


def test_pct_repeats_itself_and_finds_the_put() -> None:
    assert [pct(seed).hash for seed in range(10)] == [pct(seed).hash for seed in range(10)]
    assert any(pct(seed).failure for seed in range(20))


def test_pct_of_depth_one_runs_every_actor_to_its_end_at_once() -> None:
    actors = [step.actor for step in pct(3, depth=1).steps]
    assert sum(one != other for one, other in pairwise(actors)) == 2


def test_shrunk_schedule_fails_in_the_same_way_and_is_smaller() -> None:
    failing = next(pct(seed) for seed in range(20) if pct(seed).failure)

    def attempt(moves: Sequence[Move]) -> Trace | None:
        world, actors = make_run(Publish.PUT, writers=3, operations=2)
        again = run(world, actors, policy=ReplayPolicy(moves), check_end=check)
        return again if again.failure else None

    shrunk = shrink(failing.moves, attempt)
    assert shrunk is not None
    assert "I1" in (shrunk.trace.failure or "")
    assert len(shrunk.moves) < len(failing.moves) / 2
    assert shrunk.cost[1] <= 4


def test_a_copied_system_is_independent() -> None:
    world = SimulatedSystem()
    world.put("a", "x/y", b"1", durable=True, new=True)
    other = world.copy("other")
    other.put("a", "x/y", b"22", durable=True, new=False)
    other.put("a", "x/z", b"3", durable=True, new=True)
    assert world.child_names("x") == ["y"]
    assert world.files["x/y"].data == b"1"
    assert len(world.journal) == 1
    assert other.digest() != world.digest()
