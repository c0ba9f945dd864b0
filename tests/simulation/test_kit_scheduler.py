"""The scheduler repeats itself, finds the toy's mistakes and kills at every call."""

from __future__ import annotations

import time

import pytest

from tests.simulation.toy_protocol import Publish, check, make_run
from tests.simulator.faults import Fault, Faults, ReplayPolicy
from tests.simulator.scheduler import Actor, crash_points, explore, run, sweep
from tests.simulator.trace import SimulationFailed, Trace
from tests.simulator.world import SimulatedSystem

CREATE_FAULTS = Faults(
    budgets={
        Fault.AMBIGUOUS_APPLIED: 1,
        Fault.AMBIGUOUS_LOST: 1,
        Fault.AMBIGUOUS_LATE: 1,
        Fault.DUPLICATED: 1,
        Fault.CRASH_BEFORE: 1,
        Fault.TIME_JUMP: 1,
    },
    rate=0.15,
)


def toy_run(how: Publish, seed: int, faults: Faults | None = None) -> Trace:
    world, actors = make_run(how, writers=3, operations=2)
    return run(world, actors, seed=seed, faults=faults, check_end=check)


def failing_seeds(how: Publish, seeds: int, faults: Faults | None = None) -> list[int]:
    return [seed for seed in range(seeds) if toy_run(how, seed, faults).failure]


def test_same_seed_gives_the_same_trace() -> None:
    first = [toy_run(Publish.RESOLVE, seed, CREATE_FAULTS) for seed in range(30)]
    again = [toy_run(Publish.RESOLVE, seed, CREATE_FAULTS) for seed in range(30)]
    assert [trace.hash for trace in first] == [trace.hash for trace in again]
    assert [trace.steps for trace in first] == [trace.steps for trace in again]


def test_different_seeds_give_different_traces() -> None:
    assert len({toy_run(Publish.RESOLVE, seed).hash for seed in range(20)}) > 10


def test_replayed_moves_give_the_same_trace() -> None:
    trace = toy_run(Publish.RESOLVE, 7, CREATE_FAULTS)
    world, actors = make_run(Publish.RESOLVE, writers=3, operations=2)
    replay = run(world, actors, seed=7, faults=CREATE_FAULTS, policy=ReplayPolicy(trace.moves))
    assert replay.steps == trace.steps


def test_put_without_create_if_absent_loses_updates() -> None:
    seeds = failing_seeds(Publish.PUT, 20)
    assert seeds
    assert "I1" in (toy_run(Publish.PUT, seeds[0]).failure or "")


def test_lease_checked_before_the_put_still_loses_updates() -> None:
    faults = Faults(budgets={Fault.LEASE_LOST: 2}, rate=0.1)
    assert not failing_seeds(Publish.LOCKED_PUT, 200)
    assert failing_seeds(Publish.LOCKED_PUT, 500, faults)


def test_a_lost_answer_reported_as_a_failure_violates_i2() -> None:
    seeds = failing_seeds(Publish.CREATE, 200, CREATE_FAULTS)
    assert seeds
    assert "I2" in (toy_run(Publish.CREATE, seeds[0], CREATE_FAULTS).failure or "")


def test_create_if_absent_with_resolution_keeps_every_promise() -> None:
    traces = sweep(
        lambda: make_run(Publish.RESOLVE, writers=3, operations=2),
        range(500),
        faults=CREATE_FAULTS,
        check_end=check,
    )
    injected = {fault for trace in traces for fault in trace.faults}
    assert injected == {fault.value for fault in CREATE_FAULTS.budgets or {}}


def test_failing_seed_prints_one_line_to_run_it_again() -> None:
    seed = failing_seeds(Publish.PUT, 20)[0]
    with pytest.raises(SimulationFailed) as failed:
        sweep(lambda: make_run(Publish.PUT, writers=3, operations=2), [seed], check_end=check)
    last = str(failed.value).splitlines()[-1]
    trace = toy_run(Publish.PUT, seed)
    assert last == f"re-run: scenario=toy-put seed={seed} trace={trace.hash}"


def test_crash_enumeration_kills_once_before_each_call_and_once_after_the_last() -> None:
    cases = list(crash_points(lambda: make_run(Publish.RESOLVE, writers=2), "a", check_end=check))
    # Alone at first, a makes two calls: list, create.
    assert cases[0].fault is None
    assert cases[0].trace.outcomes == {"a": "returned", "b": "returned"}
    assert [(case.call, case.fault) for case in cases[1:]] == [
        (0, Fault.CRASH_BEFORE),
        (1, Fault.CRASH_BEFORE),
        (2, Fault.CRASH_AFTER),
    ]
    assert [case.trace.failure for case in cases] == [None] * 4
    assert [case.trace.outcomes["a"] for case in cases[1:]] == ["crashed"] * 3
    assert [len(case.world.paths_below("versions")) for case in cases] == [2, 1, 1, 2]


def test_exploration_proves_the_right_toy_in_a_small_scope() -> None:
    faults = Faults(budgets={Fault.AMBIGUOUS_LATE: 1, Fault.CRASH_AFTER: 1})
    seen = explore(lambda: make_run(Publish.RESOLVE), faults=faults, check_end=check)
    assert seen.failed is None
    assert seen.complete
    assert seen.states > 100


def test_exploration_finds_the_put() -> None:
    seen = explore(lambda: make_run(Publish.PUT), check_end=check)
    assert seen.failed is not None
    assert "I1" in (seen.failed.failure or "")


def test_unexpected_exception_of_an_actor_fails_the_run() -> None:
    def body(ports: object) -> None:
        raise KeyError("lost")

    trace = run(SimulatedSystem(), [Actor(name="a", body=body)])
    assert trace.failure == "a raised KeyError: 'lost'"
    assert (
        run(SimulatedSystem(), [Actor(name="a", body=body, may_raise=(KeyError,))]).failure is None
    )


def test_an_endless_actor_reaches_the_step_limit() -> None:
    def body(ports: object) -> None:
        while True:
            ports.storage.stat("x")  # type: ignore[attr-defined]

    trace = run(SimulatedSystem(), [Actor(name="a", body=body)], steps_max=50)
    assert trace.failure == "not ended after 50 steps"
    assert len(trace.story(last=5).splitlines()) == 6


def test_more_than_twenty_thousand_steps_a_second() -> None:
    """Measured in processor time of this thread, so that a busy machine does not matter."""
    started = time.thread_time()
    steps = sum(len(toy_run(Publish.RESOLVE, seed).steps) for seed in range(100))
    elapsed = time.thread_time() - started
    print(f"{steps / elapsed:.0f} steps/s with the final check")
    body_steps = 20_000

    def body(ports: object) -> None:
        for _ in range(body_steps // 2):
            ports.storage.stat("x")  # type: ignore[attr-defined]

    actors = [Actor(name="a", body=body), Actor(name="b", body=body)]
    started = time.thread_time()
    trace = run(SimulatedSystem(), actors, steps_max=body_steps + 1)
    elapsed = time.thread_time() - started
    print(f"{body_steps / elapsed:.0f} bare steps/s")
    assert len(trace.steps) == body_steps
    assert body_steps / elapsed > 20_000
