"""
Show the result of my action against another one, for every pair of actions.

``timeline.rules.conflicts`` decides by file groups and whole partitions. This table shows the same
for actions, with the effect of the other rules (plans, table services, strategies). It serves
readers and ``hoodoo explain --matrix``. No code branches on it. A test runs every cell that can be
run on a table and compares the results.

A cell applies if both actions access the same file group, or the same partition as a whole. The
other action became pending or completed after mine began and before mine commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timeline.rules.conflicts import RuleId


class MatrixAction(Enum):
    """The action of one side; finer than ``Action`` where the matrix needs it."""

    INSERT = "insert into new file groups"
    UPDATE = "base file of a file group"
    APPEND = "log file of a file group"
    OVERWRITE = "overwrite or delete of partitions"
    COMPACTION = "compaction"
    LOG_COMPACTION = "log compaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    SAVEPOINT = "savepoint"
    ARCHIVE = "archiving"


class OtherProgress(Enum):
    """The state of the other action when mine commits."""

    PENDING = "pending"
    COMPLETED = "completed"


class MatrixOutcome(Enum):
    """The result of my action."""

    COMMITS = "both commit"
    REBASES = "mine is retried for these file groups"
    RETRIES = "mine is retried from the start"
    REJECTED = "mine is rejected"
    LEAVES_OUT = "mine omits the changes of the other"
    YIELDS = "mine ends without a result"
    ENDS_IT = "mine ends the other"
    AS_COMPLETED = "as with a completed one"
    NEVER = "cannot be"


@dataclass(frozen=True, slots=True)
class ActionCell:
    """One cell."""

    rule: RuleId
    outcome: MatrixOutcome
    why: str


def _no_conflict(why: str) -> ActionCell:
    return ActionCell(RuleId.NO_CONFLICT, MatrixOutcome.COMMITS, why)


_APART = _no_conflict("they change different things")
_MINDED = _no_conflict(
    "an insert that drops or refuses known keys depends on where it found them, so it is retried "
    "(C1)"
)
_NOT_DELETED = _no_conflict("unless logs had deleted a key that both write: mine is retried (C9)")
_SECOND = _no_conflict("the one that commits second is validated then")
_MOVES = _no_conflict("it moves rows and changes none; my changes apply to its result")
_KEPT = _no_conflict("it keeps the files that a pending instant or plan needs")
_ON_TOP = _no_conflict("a log that completes later belongs to the next slice (PLAN-2)")
_NEVER_LOSES = _no_conflict(
    "a plan contains the slices that were complete before it; its result never loses (CMP-1)"
)
_UNSEEN = _no_conflict("my result is in a file group that is replaced, so no reader sees it")
_VALIDATES = _no_conflict(
    "unless the plan is Java's or updates are rejected (C8, refused): it validates again"
)
_ONE_SLOT = _no_conflict("the service decides in one slot on the state that it finds there")
_REPEATED = _no_conflict("the deletes are repeated, and are the same (RB-5)")
_FINISHED = ActionCell(
    RuleId.NO_CONFLICT,
    MatrixOutcome.AS_COMPLETED,
    "it decided in one slot; the next writer completes it first if it stopped (HELP-1)",
)
_SAME_KEY = ActionCell(
    RuleId.SAME_NEW_KEY,
    MatrixOutcome.RETRIES,
    "one key is new to both: no row twice; both commit with other keys, or if inserts keep both",
)
_WRITTEN = ActionCell(
    RuleId.SAME_FILE_GROUP_WRITTEN,
    MatrixOutcome.REBASES,
    "merged again on the newest slice; all of it where the other began later",
)
_LOGGED = ActionCell(
    RuleId.SAME_FILE_GROUP_WRITTEN,
    MatrixOutcome.RETRIES,
    "a log conflicts, and logs count in the order of requested times",
)
_BOTH_LOGGED = ActionCell(
    RuleId.SAME_FILE_GROUP_WRITTEN,
    MatrixOutcome.RETRIES,
    "logs count in the order of requested times; both commit between non-blocking writers (NBCC-1)",
)
_REPLACED = ActionCell(
    RuleId.FILE_GROUP_REPLACED,
    MatrixOutcome.RETRIES,
    "my rows must be assigned to file groups again",
)
_CLAIMED = ActionCell(
    RuleId.PARTITION_CLAIMED_BY_OTHER,
    MatrixOutcome.RETRIES,
    "the other replaced the whole partition that I wrote into",
)
_INTO_MINE = ActionCell(
    RuleId.WRITTEN_INTO_MY_CLAIM,
    MatrixOutcome.RETRIES,
    "rows that came into a partition which I replace must be replaced, too",
)
_HIDDEN = ActionCell(
    RuleId.PENDING_PLAN_OWNS_FILE_GROUP,
    MatrixOutcome.RETRIES,
    "planned after I began: its base file would hide mine (PUB-5)",
)
_UNDONE = ActionCell(
    RuleId.TARGET_OF_ROLLBACK,
    MatrixOutcome.RETRIES,
    "mine was rolled back, because its heartbeat was expired (PUB-6)",
)
_TAKEN_BACK = ActionCell(
    RuleId.TARGET_OF_ROLLBACK, MatrixOutcome.RETRIES, "the files that mine read may be deleted"
)
_OWNED = ActionCell(
    RuleId.PENDING_PLAN_OWNS_FILE_GROUP,
    MatrixOutcome.NEVER,
    "a file group is in one pending plan at most (PLAN-3)",
)
_CHANGED = ActionCell(
    RuleId.NO_CONFLICT,
    MatrixOutcome.LEAVES_OUT,
    "its groups stay as they are, the others count (CL-1)",
)
_OUTDATED = ActionCell(
    RuleId.NO_CONFLICT, MatrixOutcome.YIELDS, "more than further logs came after the plan (LC-1)"
)
_PLAN_GONE = ActionCell(
    RuleId.NO_CONFLICT, MatrixOutcome.YIELDS, "the restore removed the plan, too"
)
_SPARES = ActionCell(
    RuleId.NO_CONFLICT, MatrixOutcome.LEAVES_OUT, "it keeps the needed files until mine has ended"
)
_UNDOES = ActionCell(
    RuleId.TARGET_OF_ROLLBACK,
    MatrixOutcome.ENDS_IT,
    "the abort slot comes first, the deletes after it",
)
_PUBLISHED = ActionCell(
    RuleId.NO_CONFLICT,
    MatrixOutcome.YIELDS,
    "a committed instant is applied, never rolled back (RB-3)",
)
_ALIVE = ActionCell(
    RuleId.NO_CONFLICT,
    MatrixOutcome.REJECTED,
    "while its heartbeat is fresh, unless forced (RST-1)",
)
_TAKES = ActionCell(
    RuleId.TARGET_OF_ROLLBACK, MatrixOutcome.ENDS_IT, "it removes everything after the savepoint"
)
_FILES_GONE = ActionCell(
    RuleId.NO_CONFLICT, MatrixOutcome.REJECTED, "where files of that state were deleted"
)

# Columns: insert, update, append, overwrite, compaction, log compaction, clustering. The other
# actions decide in one slot, so they are never pending here.
_PENDING: dict[MatrixAction, tuple[ActionCell, ...]] = {
    MatrixAction.INSERT: (_SECOND, _SECOND, _SECOND, _SECOND, _APART, _APART, _APART),
    MatrixAction.UPDATE: (_SECOND, _SECOND, _SECOND, _SECOND, _HIDDEN, _MOVES, _VALIDATES),
    MatrixAction.APPEND: (_SECOND, _SECOND, _SECOND, _SECOND, _ON_TOP, _MOVES, _VALIDATES),
    MatrixAction.OVERWRITE: (_SECOND, _SECOND, _SECOND, _SECOND, _MOVES, _MOVES, _VALIDATES),
    MatrixAction.COMPACTION: (_SECOND, _SECOND, _SECOND, _SECOND, _OWNED, _OWNED, _OWNED),
    MatrixAction.LOG_COMPACTION: (_SECOND, _SECOND, _SECOND, _SECOND, _OWNED, _OWNED, _OWNED),
    MatrixAction.CLUSTERING: (_SECOND, _SECOND, _SECOND, _SECOND, _OWNED, _OWNED, _OWNED),
    MatrixAction.CLEAN: (_SPARES, _SPARES, _SPARES, _SPARES, _SPARES, _SPARES, _SPARES),
    MatrixAction.ROLLBACK: (_UNDOES, _UNDOES, _UNDOES, _UNDOES, _ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
    MatrixAction.RESTORE: (_ALIVE, _ALIVE, _ALIVE, _ALIVE, _TAKES, _TAKES, _TAKES),
    MatrixAction.SAVEPOINT: (
        _ONE_SLOT,
        _ONE_SLOT,
        _ONE_SLOT,
        _ONE_SLOT,
        _ONE_SLOT,
        _ONE_SLOT,
        _ONE_SLOT,
    ),
    MatrixAction.ARCHIVE: (_SPARES, _SPARES, _SPARES, _SPARES, _SPARES, _SPARES, _SPARES),
}

# Columns: all actions, in the order of ``MatrixAction``.
_COMPLETED: dict[MatrixAction, tuple[ActionCell, ...]] = {
    MatrixAction.INSERT: (
        *(_SAME_KEY, _MINDED, _MINDED, _CLAIMED),
        *(_APART, _APART, _APART),
        *(_KEPT, _UNDONE, _TAKEN_BACK, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.UPDATE: (
        *(_APART, _WRITTEN, _LOGGED, _CLAIMED),
        *(_WRITTEN, _LOGGED, _REPLACED),
        *(_KEPT, _UNDONE, _TAKEN_BACK, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.APPEND: (
        *(_NOT_DELETED, _LOGGED, _BOTH_LOGGED, _CLAIMED),
        *(_ON_TOP, _MOVES, _REPLACED),
        *(_KEPT, _UNDONE, _TAKEN_BACK, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.OVERWRITE: (
        *(_INTO_MINE, _INTO_MINE, _INTO_MINE, _INTO_MINE),
        *(_MOVES, _MOVES, _INTO_MINE),
        *(_KEPT, _UNDONE, _TAKEN_BACK, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.COMPACTION: (
        *(_APART, _NEVER_LOSES, _NEVER_LOSES, _UNSEEN),
        *(_OWNED, _OWNED, _OWNED),
        *(_KEPT, _ONE_SLOT, _PLAN_GONE, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.LOG_COMPACTION: (
        *(_APART, _OUTDATED, _NEVER_LOSES, _OUTDATED),
        *(_OWNED, _OWNED, _OWNED),
        *(_KEPT, _ONE_SLOT, _PLAN_GONE, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.CLUSTERING: (
        *(_APART, _CHANGED, _CHANGED, _CHANGED),
        *(_OWNED, _OWNED, _OWNED),
        *(_KEPT, _ONE_SLOT, _PLAN_GONE, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.CLEAN: (
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT, _SPARES, _ONE_SLOT),
    ),
    MatrixAction.ROLLBACK: (
        *(_PUBLISHED, _PUBLISHED, _PUBLISHED, _PUBLISHED),
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
        *(_ONE_SLOT, _REPEATED, _ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.RESTORE: (
        *(_TAKES, _TAKES, _TAKES, _TAKES),
        *(_TAKES, _TAKES, _TAKES),
        *(_FILES_GONE, _ONE_SLOT, _ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.SAVEPOINT: (
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
        *(_FILES_GONE, _ONE_SLOT, _FILES_GONE, _ONE_SLOT, _ONE_SLOT),
    ),
    MatrixAction.ARCHIVE: (
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT),
        *(_ONE_SLOT, _ONE_SLOT, _ONE_SLOT, _SPARES, _ONE_SLOT),
    ),
}

#: (mine, theirs, state of theirs) -> result of mine, with the strategy ``simple``.
ACTION_MATRIX: dict[tuple[MatrixAction, MatrixAction, OtherProgress], ActionCell] = {
    (mine, theirs, standing): cell
    for standing, rows in ((OtherProgress.PENDING, _PENDING), (OtherProgress.COMPLETED, _COMPLETED))
    for mine, cells in rows.items()
    # An action that decides in one slot is never pending: the last columns are the same for all.
    for theirs, cell in zip(
        MatrixAction, (*cells, *[_FINISHED] * (len(MatrixAction) - len(cells))), strict=True
    )
}

_ONE_WRITER = ActionCell(
    RuleId.STRATEGY_REFUSED, MatrixOutcome.RETRIES, "a partition has one writer at a time"
)
_GOES_FIRST = ActionCell(
    RuleId.NO_CONFLICT,
    MatrixOutcome.ENDS_IT,
    "a clustering that would reject me is cancelled; one that validates again does not conflict",
)
_ANNOUNCED = ActionCell(
    RuleId.NO_CONFLICT, MatrixOutcome.LEAVES_OUT, "a live writer announced to change it"
)
_SAME_BUCKET = ActionCell(
    RuleId.SAME_FILE_GROUP_WRITTEN,
    MatrixOutcome.RETRIES,
    "both opened one bucket under different file ids; with a bucket index whatever the strategy",
)

#: Strategy -> the cells that differ from ``simple``.
BY_STRATEGY: dict[str, dict[tuple[MatrixAction, MatrixAction, OtherProgress], ActionCell]] = {
    "simple": {},
    "bucket": {(MatrixAction.INSERT, MatrixAction.INSERT, OtherProgress.COMPLETED): _SAME_BUCKET},
    "prefer_writer": {
        (MatrixAction.UPDATE, MatrixAction.CLUSTERING, OtherProgress.PENDING): _GOES_FIRST,
        (MatrixAction.APPEND, MatrixAction.CLUSTERING, OtherProgress.PENDING): _GOES_FIRST,
        (MatrixAction.OVERWRITE, MatrixAction.CLUSTERING, OtherProgress.PENDING): _GOES_FIRST,
        (MatrixAction.CLUSTERING, MatrixAction.UPDATE, OtherProgress.PENDING): _ANNOUNCED,
        (MatrixAction.CLUSTERING, MatrixAction.APPEND, OtherProgress.PENDING): _ANNOUNCED,
    },
    "partition": {
        (MatrixAction.INSERT, MatrixAction.INSERT, OtherProgress.COMPLETED): _ONE_WRITER,
        (MatrixAction.INSERT, MatrixAction.UPDATE, OtherProgress.COMPLETED): _ONE_WRITER,
        (MatrixAction.INSERT, MatrixAction.APPEND, OtherProgress.COMPLETED): _ONE_WRITER,
        (MatrixAction.UPDATE, MatrixAction.INSERT, OtherProgress.COMPLETED): _ONE_WRITER,
        (MatrixAction.UPDATE, MatrixAction.UPDATE, OtherProgress.COMPLETED): _ONE_WRITER,
        (MatrixAction.APPEND, MatrixAction.INSERT, OtherProgress.COMPLETED): _ONE_WRITER,
    },
}
