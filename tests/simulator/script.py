"""
A policy that plays one written interleaving: an actor, the call to run it to, and a fault.

For tests that name a hole: each stage lets one actor run until its next call is the one
described, while all other actors pause. When the stages are over, the rest runs in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.simulator.faults import Chooser, Fault, Move, PlannedPolicy


@dataclass(frozen=True, slots=True)
class Until:
    """
    Run ``actor`` until its next call contains ``call`` (``method path``), not yet applied.

    Args:
        actor: Name of the actor.
        call: A piece of ``method path``.
        fault: Hits that call, which is thereby made.
    """

    actor: str
    call: str
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class UntilEnd:
    """Run ``actor`` until it ends."""

    actor: str


@dataclass(frozen=True, slots=True)
class Pause:
    """No actor runs while ``jumps`` times the run's ``time_jump_ms`` pass."""

    jumps: int = 1


@dataclass(frozen=True, slots=True)
class Tick:
    """Start all background work that is due, of any actor."""


@dataclass(frozen=True, slots=True)
class Land:
    """The storage applies the oldest request whose answer was lost."""


ScriptStage: TypeAlias = Until | UntilEnd | Pause | Tick | Land | Fault


class Script:
    """
    Plays the stages one after the other; a bare ``Fault`` as a stage hits all actors.

    Give the run ``Faults(time_jump_ms=...)``: such jumps wake an actor that sleeps or waits in its
    stage while others pause.
    """

    def __init__(self, stages: Sequence[ScriptStage]) -> None:
        self._stages = list(reversed(stages))
        self._rest = PlannedPolicy()
        self._began = False
        self._missed = False

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        """The next move of the present stage."""
        while self._stages:
            move = self._move(self._stages[-1], plain, run)
            if move is not None:
                return move
            self._stages.pop()
            self._began = False
        return self._rest.choose(plain, run)

    @property
    def played(self) -> bool:
        """Whether every stage was reached and left, no ``Until`` missed by an actor's end."""
        left = self._stages[:-1] if self._began else self._stages
        return not self._missed and all(isinstance(stage, UntilEnd) for stage in left)

    def _move(self, stage: ScriptStage, plain: Sequence[Move], run: Chooser) -> Move | None:
        if isinstance(stage, Pause):
            self._stages[-1] = Pause(stage.jumps - 1)
            return (Fault.TIME_JUMP.value, 0) if stage.jumps > 0 else None
        if isinstance(stage, (Tick, Land, Fault)):
            return self._once(stage, plain)
        if not run.is_running(stage.actor):
            self._missed = self._missed or (isinstance(stage, Until) and not self._began)
            return None
        mine = [move for move in plain if (run.task_of(move) or ("", 0))[0] == stage.actor]
        if isinstance(stage, Until):
            for move in mine:
                if stage.call in run.describe(move):
                    if stage.fault is None or self._began:
                        return None
                    self._began = True
                    return (stage.fault.value, move[1])
            if self._began:
                return None
        # Background work that a ``Tick`` started goes first: it is the newest task.
        return mine[-1] if mine else (Fault.TIME_JUMP.value, 0)

    def _once(self, stage: Tick | Land | Fault, plain: Sequence[Move]) -> Move | None:
        if self._began:
            return None
        self._began = True
        if isinstance(stage, Fault):
            return (stage.value, 0)
        kind = "tick" if isinstance(stage, Tick) else "land"
        return next((move for move in plain if move[0] == kind), None)
