"""
Which state may follow which, for every action: the life of an instant as one table.

Theory of operation. An instant is born when its requested file appears, becomes inflight
when its work starts, and completed when its completed file appears. A state is a file of
its own; nothing is renamed. An instant leaves the timeline in two ways: a rollback deletes
its pending files (``Fate.GONE``), or archiving moves a completed one to the history. The
exceptions live in the table, not in branches:

- a savepoint has no requested state; it is born inflight;
- a plan (compaction, log compaction, clustering) that was inflight may go back to
  requested: rolling back its execution keeps the plan (concurrency 5);
- a pending clean or rollback is finished, never undone: its deletes are repeated (RB-5).

Worked example, also a test: a commit goes requested -> inflight -> completed; a crashed one
goes requested -> inflight -> gone, by the rollback instant that documents it.
"""

from __future__ import annotations

from enum import Enum

from timeline.errors import IllegalTransitionError
from timeline.model.instant import Action, State

__all__ = ["LEGAL_TRANSITIONS", "Fate", "check_transition"]


class Fate(Enum):
    """Where an instant is when none of its files exists."""

    UNBORN = "unborn"
    GONE = "gone"


Stage = State | Fate

_WRITE: dict[Stage, frozenset[Stage]] = {
    Fate.UNBORN: frozenset({State.REQUESTED}),
    State.REQUESTED: frozenset({State.INFLIGHT, Fate.GONE}),
    State.INFLIGHT: frozenset({State.COMPLETED, Fate.GONE}),
    State.COMPLETED: frozenset({Fate.GONE}),  # restore, or archiving into the history
    Fate.GONE: frozenset(),
}
_PLAN: dict[Stage, frozenset[Stage]] = {
    **_WRITE,
    State.INFLIGHT: frozenset({State.COMPLETED, State.REQUESTED}),
}
_UPKEEP: dict[Stage, frozenset[Stage]] = {
    Fate.UNBORN: frozenset({State.REQUESTED}),
    State.REQUESTED: frozenset({State.INFLIGHT}),
    State.INFLIGHT: frozenset({State.COMPLETED}),
    State.COMPLETED: frozenset({Fate.GONE}),
    Fate.GONE: frozenset(),
}
_SAVEPOINT: dict[Stage, frozenset[Stage]] = {
    Fate.UNBORN: frozenset({State.INFLIGHT}),
    State.REQUESTED: frozenset(),
    State.INFLIGHT: frozenset({State.COMPLETED, Fate.GONE}),
    State.COMPLETED: frozenset({Fate.GONE}),
    Fate.GONE: frozenset(),
}

LEGAL_TRANSITIONS: dict[Action, dict[Stage, frozenset[Stage]]] = {
    Action.COMMIT: _WRITE,
    Action.DELTACOMMIT: _WRITE,
    Action.REPLACECOMMIT: _WRITE,
    Action.COMPACTION: _PLAN,
    Action.LOGCOMPACTION: _PLAN,
    Action.CLUSTERING: _PLAN,
    Action.CLEAN: _UPKEEP,
    Action.ROLLBACK: _UPKEEP,
    Action.RESTORE: _UPKEEP,
    Action.SAVEPOINT: _SAVEPOINT,
    Action.INDEXING: _WRITE,
    Action.SCHEMACOMMIT: _WRITE,
}


def check_transition(action: Action, before: Stage, after: Stage) -> None:
    """
    Pass when the table allows the change.

    Raises:
        IllegalTransitionError: It does not; a defect of the caller.
    """
    if after not in LEGAL_TRANSITIONS[action][before]:
        raise IllegalTransitionError(
            f"an instant may not change like this: {action.value} {before.value} -> {after.value}",
            action=action.value,
            before=before.value,
            after=after.value,
        )
