"""An instant: one action on the table, named by its requested time, in one of three states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timeline.model.times import InstantTime

__all__ = ["WRITE_ACTIONS", "Action", "Instant", "State"]


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
