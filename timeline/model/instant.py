"""Instants: one action in one of three states, and the legal changes of state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timeline.errors import IllegalTransitionError
from timeline.model.instant_time import InstantTime, Residue


class Action(Enum):
    """The action of an instant; the value is its spelling in file names."""

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
        """The action in the name of the completed file (fmt 2.2)."""
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
    """The state of an instant; each state is one file (fmt 2.2)."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"

    @property
    def rank(self) -> int:
        """0, 1, 2 in the order of the states."""
        return _RANKS[self]


_RANKS = {State.REQUESTED: 0, State.INFLIGHT: 1, State.COMPLETED: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """
    One instant, as parsed from a file name.

    Only a completed instant has ``completion_time``. Two states belong to one instant if
    ``(action.completes_as, requested_time)`` are equal. A savepoint has the requested time of its
    commit (fmt trap 19). ``legacy`` marks a completed instant of version 6, without a completion
    time in its file name (fmt 2.2, 11.2).
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


# ---- Changes of state
# An instant begins with its requested file. It becomes inflight when its work starts, and
# completed when its completed file appears. Each state is a file of its own; nothing is renamed.
# An instant leaves the timeline in two ways: a rollback deletes its pending files
# (``AbsentInstant.GONE``), or archiving moves a completed one to the archived timeline. The
# exceptions are in the table, not in branches:
#
# - a savepoint has no requested state; it begins inflight;
# - the rollback of a plan's execution (compaction, log compaction, clustering) keeps the plan:
#   its state changes from inflight back to requested;
# - a pending clean or rollback is completed, never rolled back: its deletes are repeated (RB-5).
#
# Example, also a test: a commit changes from requested to inflight to completed. A crashed one
# changes from requested to inflight to gone, by the rollback instant that documents it.


class AbsentInstant(Enum):
    """The state of an instant without files: not begun yet, or removed."""

    UNBORN = "unborn"
    GONE = "gone"


Stage = State | AbsentInstant

_WRITE: dict[Stage, frozenset[Stage]] = {
    AbsentInstant.UNBORN: frozenset({State.REQUESTED}),
    State.REQUESTED: frozenset({State.INFLIGHT, AbsentInstant.GONE}),
    State.INFLIGHT: frozenset({State.COMPLETED, AbsentInstant.GONE}),
    State.COMPLETED: frozenset({AbsentInstant.GONE}),  # restored away, or archived
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
    Raise unless the table allows the change.

    Raises:
        IllegalTransitionError: It does not; a defect of the caller.
    """
    if after not in LEGAL_TRANSITIONS[action][before]:
        raise IllegalTransitionError(
            "an instant must not change its state like this; report it with the output of "
            f"'hoodoo timeline show TABLE': {action.value} {before.value} -> {after.value}",
            action=action.value,
            before=before.value,
            after=after.value,
        )


def begin_residue(action: Action) -> Residue:
    """Return the residue of a requested time that is drawn when an action begins."""
    return Residue.BEGIN_REPLACE if action is Action.REPLACECOMMIT else Residue.BEGIN
