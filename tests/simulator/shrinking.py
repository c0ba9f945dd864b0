"""
Make a failing schedule small: fewest faults first, then fewest changes of actor, then length.

A list of moves is always a legal schedule, because ``ReplayPolicy`` skips impossible moves
and then runs actors in order. So pieces can be taken out of it and tried again at will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.simulator.faults import Fault, Move
from tests.simulator.trace import Trace

#: Plays some moves; the trace of the run when it fails in the same way, else None.
Attempt = Callable[[Sequence[Move]], Trace | None]

_FAULTS = frozenset(fault.value for fault in Fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest failing schedule that was found, and how many were tried."""

    moves: tuple[Move, ...]
    trace: Trace
    replays: int

    @property
    def cost(self) -> tuple[int, int, int]:
        """Faults, changes of actor, steps."""
        return _cost(self.trace)


def shrink(moves: Sequence[Move], attempt: Attempt, *, replays_max: int = 500) -> Shrunk | None:
    """
    Take pieces out of a failing schedule while it still fails.

    Args:
        moves: Of the failing run (``Trace.moves``).
        attempt: Plays moves on a fresh world.
        replays_max: How many runs may be spent.

    Returns:
        None when the moves do not fail when they are played again.
    """
    best = list(moves)
    trace = attempt(best)
    if trace is None:
        return None
    replays = 1
    piece = max(1, len(best) // 2)
    while replays < replays_max:
        start, smaller = 0, False
        while start < len(best) and replays < replays_max:
            pending_commit = best[:start] + best[start + piece :]
            found = attempt(pending_commit)
            replays += 1
            # The tail costs nothing: moves that are not listed run in order anyway.
            cheaper = found is not None and (
                _cost(found) <= _cost(trace) and len(pending_commit) < len(best)
            )
            if found is not None and cheaper:
                best, trace, smaller = pending_commit, found, True
            else:
                start += piece
        if piece == 1 and not smaller:
            break
        if not smaller or piece > len(best):
            piece = max(1, piece // 2)
    return Shrunk(moves=tuple(best), trace=trace, replays=replays)


def _cost(trace: Trace) -> tuple[int, int, int]:
    faults = sum(move[0] in _FAULTS for move in trace.moves)
    actors = [step.actor for step in trace.steps]
    switches = sum(one != other for one, other in pairwise(actors))
    return faults, switches, len(actors)
