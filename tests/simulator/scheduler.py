"""
The deterministic scheduler: run actors by a seed, kill one at every call, or try everything.

All choices come from a policy (``tests.simulator.faults``), so the same seed gives the
same trace. ``run`` makes one run, ``crash_points`` enumerates the deaths of one actor,
``explore`` visits every schedule of a small scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.simulator.faults import (
    Fault,
    Faults,
    Move,
    PlannedFault,
    PlannedPolicy,
    Policy,
    RandomPolicy,
)
from tests.simulator.ports import Actor
from tests.simulator.simulated_run import Check, Run
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem

__all__ = [
    "Actor",
    "Check",
    "CrashCase",
    "Exploration",
    "MakeRun",
    "Run",
    "crash_points",
    "explore",
    "run",
    "sweep",
]

#: Builds a fresh world with its actors.
MakeRun = Callable[[], tuple[SimulatedSystem, Sequence[Actor]]]


def run(
    world: SimulatedSystem,
    actors: Sequence[Actor],
    *,
    seed: int = 0,
    faults: Faults | None = None,
    policy: Policy | None = None,
    check_step: Check | None = None,
    check_end: Check | None = None,
    steps_max: int = 20_000,
) -> Trace:
    """
    Run actors to their ends and return the trace.

    Args:
        world: The system they act on; it can be used again afterwards.
        actors: The processes of the scenario.
        seed: Decides every choice of the default policy and every actor's random draws.
        faults: Budgets of faults; none by default.
        policy: Chooses the moves; ``RandomPolicy(seed, faults.rate)`` by default.
        check_step: Runs after every move (keep it cheap).
        check_end: Runs once, after all actors ended and all late requests landed.
        steps_max: A longer run fails (an actor waits for ever or loops).

    Returns:
        The trace; ``failure`` names the broken rule. A broken rule raises nothing: call
        ``Trace.expect_ok``.
    """
    faults = faults or Faults()
    chosen = policy or RandomPolicy(seed, faults.rate if faults.budgets else 0.0)
    going = Run(world, actors, seed=seed, faults=faults)
    trace = going.trace
    try:
        while trace.failure is None:
            moves = going.plain_moves()
            if not moves:
                break
            if len(trace.steps) >= steps_max:
                going.fail(f"not ended after {steps_max} steps")
                break
            going.do(chosen.choose(moves, going))
            if check_step is not None:
                going.judge(check_step)
        going.finish(check_end)
    finally:
        going.close()
    return trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashCase:
    """One variation of ``crash_points``: which call the actor died at, and the outcome."""

    call: int
    fault: Fault | None  # None: the undisturbed run
    world: SimulatedSystem
    trace: Trace


def crash_points(
    make_run: MakeRun,
    victim: str,
    *,
    seed: int = 0,
    check_end: Check | None = None,
    check_step: Check | None = None,
) -> Iterator[CrashCase]:
    """
    Kill one actor at each of its port calls, in the schedule that runs actors in order.

    An undisturbed run counts the victim's n port calls. Then follow n + 1 runs on new systems: a
    crash before each call, and one after the last call was applied. A crash before call i + 1 is
    also a crash after call i, because the process makes no other call in between.

    Args:
        make_run: Builds a new system with its actors; called n + 2 times.
        victim: Name of the actor that dies.
        seed: As in ``run``.
        check_end: As in ``run``.
        check_step: As in ``run``.

    Yields:
        The undisturbed run first, then each variation; the caller checks ``trace.failure``.
    """

    def attempt(planned: Sequence[PlannedFault]) -> tuple[SimulatedSystem, Trace]:
        world, actors = make_run()
        trace = run(
            world,
            actors,
            seed=seed,
            policy=PlannedPolicy(planned),
            check_step=check_step,
            check_end=check_end,
        )
        return world, trace

    world, trace = attempt(())
    calls = trace.calls.get(victim, 0)
    yield CrashCase(call=calls, fault=None, world=world, trace=trace)
    for call in range(calls + 1):
        after = call == calls
        fault = Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE
        number = call - 1 if after else call
        world, trace = attempt((PlannedFault(actor=victim, call=number, fault=fault),))
        yield CrashCase(call=call, fault=fault, world=world, trace=trace)


def sweep(
    make_run: MakeRun,
    seeds: Sequence[int],
    *,
    faults: Faults | None = None,
    check_end: Check | None = None,
    check_step: Check | None = None,
    steps_max: int = 20_000,
) -> list[Trace]:
    """
    One run for each seed, each on a fresh world; the arguments are those of ``run``.

    Raises:
        SimulationFailed: At the first seed that breaks something, with its re-run line.
    """
    traces: list[Trace] = []
    for seed in seeds:
        world, actors = make_run()
        trace = run(
            world,
            actors,
            seed=seed,
            faults=faults,
            check_step=check_step,
            check_end=check_end,
            steps_max=steps_max,
        )
        traces.append(trace.expect_ok())
    return traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """The result of ``explore``; ``complete`` means that no schedule was left out."""

    runs: int
    states: int
    complete: bool
    failed: Trace | None  # the first broken run


def explore(
    make_run: MakeRun,
    *,
    faults: Faults | None = None,
    states_max: int = 100_000,
    check_end: Check | None = None,
    check_step: Check | None = None,
    steps_max: int = 1_000,
) -> Exploration:
    """
    Visit every schedule of a small scenario, depth first, with every fault the budgets allow.

    Greenlets cannot be copied, so each branch runs its prefix again. Two moments count as
    one state when storage, time, locks, late requests, budgets and everything each actor
    has observed are equal; the order of events of *different* clients is not part of it, so
    a check must not depend on that order alone. Calls take no time here.

    Args:
        make_run: Builds a fresh world with its actors, always the same.
        faults: Budgets; a rate means nothing here.
        states_max: Stop (not complete) after this many states.
        check_end: As in ``run``.
        check_step: As in ``run``.
        steps_max: As in ``run``, for each schedule.

    Returns:
        Counts, and the trace of the first broken run if there is one.
    """
    seen: set[tuple[object, ...]] = set()
    stack: list[list[Move]] = [[]]
    runs = 0
    while stack and len(seen) < states_max:
        prefix = stack.pop()
        world, actors = make_run()
        world.exploring, world.call_ms = True, 0
        going = Run(world, actors, seed=0, faults=faults)
        runs += 1
        try:
            for move in prefix:
                going.plain_moves()  # also moves the time, as it did the first time
                going.do(move)
            _go_deeper(
                going,
                seen,
                stack,
                check_step=check_step,
                check_end=check_end,
                steps_max=steps_max,
            )
        finally:
            going.close()
        if going.trace.failure is not None:
            return Exploration(runs=runs, states=len(seen), complete=False, failed=going.trace)
    return Exploration(runs=runs, states=len(seen), complete=not stack, failed=None)


def _go_deeper(
    going: Run,
    seen: set[tuple[object, ...]],
    stack: list[list[Move]],
    *,
    check_step: Check | None,
    check_end: Check | None,
    steps_max: int,
) -> None:
    """Follow first moves from here until an end or a known state; leave the others on the stack."""
    trace = going.trace
    while trace.failure is None:
        if check_step is not None:
            going.judge(check_step)
        plain = going.plain_moves()
        key = going.state_key()
        if key in seen:
            return
        seen.add(key)
        if not plain:
            going.finish(check_end)
            return
        if len(trace.moves) >= steps_max:
            going.fail(f"not ended after {steps_max} steps")
            return
        first, *others = plain + going.fault_moves()
        stack.extend([*trace.moves, other] for other in others)
        going.do(first)
