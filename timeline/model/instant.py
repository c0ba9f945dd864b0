"""An instant: one action in one of three states, and which state may follow which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timeline.errors import IllegalTransitionError
from timeline.model.instant_time import InstantTime

__all__ = [
    "LEGAL_TRANSITIONS",
    "WRITE_ACTIONS",
    "AbsentInstant",
    "Action",
    "Instant",
    "State",
    "check_transition",
]


# -------- An instant: one action on the table, named by its requested time, in one of three states


class Action(Enum):
    """What an instant does; the value is its spelling in file names."""

    COMMIT = "commit"
    DELTACOMMIT = "deltacommit"
    REPLACECOMMIT = "replacecommit"
    COMPACTION = "compaction"
    LOGCOMPACTION = "logcompaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    SAVEPOINT = "savepoint"
    INDEXING = "indexing"
    SCHEMACOMMIT = "schemacommit"

    @property
    def completes_as(self) -> Action:
        """The action under which the completed file is named (fmt 2.2)."""
        return _COMPLETES_AS.get(self, self)


_COMPLETES_AS = {
    Action.COMPACTION: Action.COMMIT,
    Action.LOGCOMPACTION: Action.DELTACOMMIT,
    Action.CLUSTERING: Action.REPLACECOMMIT,
}

#: Actions whose completion adds or replaces data files.
WRITE_ACTIONS = frozenset(
    {
        Action.COMMIT,
        Action.DELTACOMMIT,
        Action.REPLACECOMMIT,
        Action.COMPACTION,
        Action.LOGCOMPACTION,
        Action.CLUSTERING,
    }
)


class State(Enum):
    """How far an instant has come; every state is a file of its own (fmt 2.2)."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"

    @property
    def rank(self) -> int:
        """0, 1, 2 in the order of life."""
        return _RANKS[self]


_RANKS = {State.REQUESTED: 0, State.INFLIGHT: 1, State.COMPLETED: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """
    One instant as its file names tell it.

    ``completion_time`` is set exactly in the completed state. Equality of two states of one
    instant is by ``(action.completes_as, requested_time)``; a savepoint shares its requested
    time with the commit it protects (fmt trap 19). ``legacy`` is a completed instant whose
    file tells no completion time and holds what version 6 writes (fmt 2.2, 11.2).
    """

    action: Action
    requested_time: InstantTime
    state: State
    completion_time: InstantTime | None = None
    legacy: bool = False

    @property
    def completed(self) -> bool:
        """Whether readers may see it."""
        return self.state is State.COMPLETED

    @property
    def newest_time(self) -> InstantTime:
        """The greater of its two times."""
        return max(self.requested_time, self.completion_time or "")

    def __str__(self) -> str:
        times = self.requested_time + (f"_{self.completion_time}" if self.completion_time else "")
        return f"{times}.{self.action.value} ({self.state.value})"


# ------------- Which state may follow which, for every action: the life of an instant as one table
#
# Theory of operation. An instant is born when its requested file appears, becomes inflight
# when its work starts, and completed when its completed file appears. A state is a file of
# its own; nothing is renamed. An instant leaves the timeline in two ways: a rollback deletes
# its pending files (``Fate.GONE``), or archiving moves a completed one to the history. The
# exceptions live in the table, not in branches:
#
# - a savepoint has no requested state; it is born inflight;
# - a plan (compaction, log compaction, clustering) that was inflight may go back to
#   requested: rolling back its execution keeps the plan (concurrency 5);
# - a pending clean or rollback is finished, never undone: its deletes are repeated (RB-5).
#
# Worked example, also a test: a commit goes requested -> inflight -> completed; a crashed one
# goes requested -> inflight -> gone, by the rollback instant that documents it.


class AbsentInstant(Enum):
    """Where an instant is when none of its files exists."""

    UNBORN = "unborn"
    GONE = "gone"


Stage = State | AbsentInstant

_WRITE: dict[Stage, frozenset[Stage]] = {
    AbsentInstant.UNBORN: frozenset({State.REQUESTED}),
    State.REQUESTED: frozenset({State.INFLIGHT, AbsentInstant.GONE}),
    State.INFLIGHT: frozenset({State.COMPLETED, AbsentInstant.GONE}),
    State.COMPLETED: frozenset({AbsentInstant.GONE}),  # restore, or archiving into the history
    AbsentInstant.GONE: frozenset(),
}
_PLAN: dict[Stage, frozenset[Stage]] = {
    **_WRITE,
    State.INFLIGHT: frozenset({State.COMPLETED, State.REQUESTED}),
}
_UPKEEP: dict[Stage, frozenset[Stage]] = {
    AbsentInstant.UNBORN: frozenset({State.REQUESTED}),
    State.REQUESTED: frozenset({State.INFLIGHT}),
    State.INFLIGHT: frozenset({State.COMPLETED}),
    State.COMPLETED: frozenset({AbsentInstant.GONE}),
    AbsentInstant.GONE: frozenset(),
}
_SAVEPOINT: dict[Stage, frozenset[Stage]] = {
    AbsentInstant.UNBORN: frozenset({State.INFLIGHT}),
    State.REQUESTED: frozenset(),
    State.INFLIGHT: frozenset({State.COMPLETED, AbsentInstant.GONE}),
    State.COMPLETED: frozenset({AbsentInstant.GONE}),
    AbsentInstant.GONE: frozenset(),
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
