"""
The faults that a run may inject, and the policies that choose the next move.

A policy sees the moves that are possible now and picks one. The random policy draws everything
from one seed, also its own habits, so that different seeds explore different styles of schedules
(swarm testing). The planned policy runs actors in order and injects named faults at named calls,
for enumerations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

#: (kind, target): kind is ``step``, ``tick``, ``land`` or the value of a ``Fault``; the
#: target is the index of a task, ticker or actor.
Move = tuple[str, int]


class Fault(Enum):
    """A fault at one call (first group) or around it (second group)."""

    CRASH_BEFORE = "crash_before"  # the process dies, the call was not applied
    CRASH_AFTER = "crash_after"  # the process dies, the call was applied
    UNAVAILABLE = "unavailable"  # the storage does not answer, nothing applied
    UNAVAILABLE_AFTER = "unavailable_after"  # applied, the answer is an error (not for creates)
    AMBIGUOUS_APPLIED = "ambiguous_applied"
    AMBIGUOUS_LOST = "ambiguous_lost"
    AMBIGUOUS_LATE = "ambiguous_late"  # applied at some later moment
    DUPLICATED = "duplicated"  # applied, then answered as if the name had been taken (F16)
    LEASE_LOST = "lease_lost"  # the lock's present lease ends although its owner lives
    TIME_JUMP = "time_jump"  # simulated time passes while no actor runs (all are paused)
    WALL_JUMP = "wall_jump"  # one actor's wall clock jumps, forwards or back
    POWER_CUT = "power_cut"  # all actors die, un-synced data is dropped or torn


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """
    How many faults of each kind a run may inject.

    Args:
        budgets: Number of injections of each kind; kinds not named do not happen.
        rate: Chance for each step that a fault is drawn instead of a plain step.
        victims: Names of the actors that may be hit; empty is all.
        time_jump_ms: Length of ``TIME_JUMP``.
        wall_jump_ms: Length of ``WALL_JUMP``, forward or back.
    """

    budgets: Mapping[Fault, int] | None = None
    rate: float = 0.05
    victims: frozenset[str] = frozenset()
    time_jump_ms: int = 300_000
    wall_jump_ms: int = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """Inject ``fault`` into call number ``call`` (from 0) of ``actor``."""

    actor: str
    call: int
    fault: Fault


class Policy(Protocol):
    """Chooses the next move."""

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        """Pick one of ``plain`` (never empty) or one of ``run.fault_moves()``."""


class Chooser(Protocol):
    """The part of a run that a policy may read."""

    def fault_moves(self) -> list[Move]:
        """The faults possible now."""

    def task_of(self, move: Move) -> tuple[str, int] | None:
        """Actor and number of its pending call for a ``step`` move, else None."""

    def describe(self, move: Move) -> str:
        """``method path`` of the call that a ``step`` move would make."""

    def is_running(self, actor: str) -> bool:
        """Whether the actor's own program has neither ended nor died."""


class RandomPolicy:
    """Draws every choice from one seed; how sticky it is to an actor is drawn as well."""

    def __init__(self, seed: int, rate: float) -> None:
        self._random = random.Random(f"schedule/{seed}")
        self._stay = self._random.choice((0.0, 0.5, 0.9))
        self._rate = rate * self._random.choice((0.3, 1.0, 2.0))
        self._last: Move | None = None

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        draw = self._random.random
        fault = _drawn_fault(self._random, self._rate, run)
        if fault is not None:
            return fault
        if self._stay and self._last in plain and draw() < self._stay:
            assert self._last is not None
            return self._last
        self._last = plain[int(draw() * len(plain))] if len(plain) > 1 else plain[0]
        return self._last


class PctPolicy:
    """
    Probabilistic concurrency testing: run the task with the greatest priority.

    Every task draws a priority when it first appears. At ``depth - 1`` steps, drawn before the run,
    the running task gets the lowest priority. A mistake that needs ``depth`` orderings among
    n tasks and k steps is found with a chance of at least ``1 / (n * k ** (depth - 1))``.

    Args:
        seed: Decides everything.
        rate: Chance for each step that a fault is drawn instead.
        depth: Orderings that a mistake may need.
        steps: Approximate length of a run.
    """

    def __init__(self, seed: int, rate: float, *, depth: int = 3, steps: int = 200) -> None:
        self._random = random.Random(f"pct/{seed}")
        self._rate = rate * self._random.choice((0.3, 1.0, 2.0))
        self._changes = {self._random.randrange(steps) for _ in range(depth - 1)}
        self._importance: dict[Move, float] = {}
        self._made = 0

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        fault = _drawn_fault(self._random, self._rate, run)
        if fault is not None:
            return fault
        for move in plain:
            if move not in self._importance:
                self._importance[move] = self._random.random()
        chosen = max(plain, key=self._importance.__getitem__)
        if self._made in self._changes:
            self._importance[chosen] = -self._made
        self._made += 1
        return chosen


def _drawn_fault(chance: random.Random, rate: float, run: Chooser) -> Move | None:
    if not rate or chance.random() >= rate:
        return None
    faults = run.fault_moves()
    if not faults:
        return None
    # First the kind, then the target: many tasks must not drown rare kinds.
    kind = chance.choice(sorted({kind for kind, _ in faults}))
    return chance.choice([move for move in faults if move[0] == kind])


class PlannedPolicy:
    """Keep the current actor running; inject each planned fault at its call."""

    def __init__(self, planned: Sequence[PlannedFault] = ()) -> None:
        self._planned = {(fault.actor, fault.call): fault.fault for fault in planned}
        self._last: Move | None = None

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        move = self._last if self._last in plain else plain[0]
        assert move is not None
        self._last = move
        task = run.task_of(move)
        if task is not None and task in self._planned:
            return (self._planned.pop(task).value, move[1])
        return move


class ReplayPolicy:
    """Takes the listed moves, skips those not possible now, then runs actors in order."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves = list(reversed(moves))
        self._rest = PlannedPolicy()

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        while self._moves:
            move = self._moves.pop()
            if move in plain or (move[0] not in _PLAIN_KINDS and move in run.fault_moves()):
                return move
        return self._rest.choose(plain, run)


_PLAIN_KINDS = frozenset({"step", "tick", "land"})
