"""
Decide whether a write conflicts with concurrent commits (PUB-4, PUB-5).

The matrix below is data: (my access to a file group, the other's access to it) -> rule.
``timeline.rules.action_matrix`` shows it by actions. ``validate_write_set`` adds write sets of
whole partitions, which file ids cannot express. Rules return verdicts; callers raise. Concurrent
commits are chosen by completion time, never by requested time (hole 2, 20): the caller passes
every commit that became visible after the base snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

from timeline.model.commit_metadata import (
    WHOLE_TABLE,
    Access,
    AccessedFileGroup,
    FileGroupId,
    WriteSet,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime


class RuleId(Enum):
    """Stable names of the rules, for conflict reports and ``hoodoo explain --matrix``."""

    NO_CONFLICT = "C0"
    SAME_FILE_GROUP_WRITTEN = "C1"
    FILE_GROUP_REPLACED = "C2"
    WRITTEN_WHAT_I_REPLACE = "C3"
    PARTITION_CLAIMED_BY_OTHER = "C4"
    WRITTEN_INTO_MY_CLAIM = "C5"
    TARGET_OF_ROLLBACK = "C6"
    SOURCE_NOT_NEWEST = "C7"
    PENDING_PLAN_OWNS_FILE_GROUP = "C8"
    SAME_NEW_KEY = "C9"
    SCHEMA_CHANGED = "C10"
    SAME_BATCH = "C11"
    METADATA_TABLE_CHANGED = "C12"
    TABLE_UPGRADED = "C13"
    KEYS_DROPPED = "C14"
    REPLACED_TWICE = "C15"
    INSERTED_WHERE_I_MISSED = "C16"
    PROPERTIES_CHANGED = "C17"
    STRATEGY_REFUSED = "C18"
    READ_WAS_CHANGED = "C19"
    ANNOUNCED_BY_OTHER = "C20"
    NESTED_PARTITION = "C21"


@dataclass(frozen=True, slots=True)
class Rule:
    """One cell of the matrix."""

    rule: RuleId
    rebaseable: bool  # a rebase on the newest slice is enough
    why: str


_CLEAN = Rule(RuleId.NO_CONFLICT, rebaseable=True, why="they change different file groups")
_WRITTEN = Rule(
    RuleId.SAME_FILE_GROUP_WRITTEN,
    rebaseable=True,
    why="a concurrent commit wrote the file group that my rows merge into; the first commit wins",
)
_APPENDED = Rule(
    RuleId.SAME_FILE_GROUP_WRITTEN,
    rebaseable=False,  # logs count in requested-time order: retry all
    why="both wrote the file group, one of them a log file; the first commit wins",
)
_REPLACED = Rule(
    RuleId.FILE_GROUP_REPLACED,
    rebaseable=False,
    why="a concurrent commit replaced the file group; my rows must be assigned to file groups "
    "again",
)
_TWICE = Rule(
    RuleId.REPLACED_TWICE,
    rebaseable=False,
    why="both replaced the file group; its rows would exist twice",
)
_I_REPLACE = Rule(
    RuleId.WRITTEN_WHAT_I_REPLACE,
    rebaseable=False,
    why="a concurrent commit wrote rows into a file group that I replace; they would be lost",
)

#: (mine, theirs) for the same file group. A NEW file group has a fresh id, so it only conflicts
#: with an access that began later, or with the same constant bucket id.
MATRIX: dict[tuple[Access, Access], Rule] = {
    (Access.NEW, Access.NEW): _WRITTEN,  # same constant bucket id
    (Access.NEW, Access.BASE): _WRITTEN,
    (Access.NEW, Access.LOG): _APPENDED,
    (Access.NEW, Access.REPLACE): _REPLACED,
    (Access.BASE, Access.NEW): _WRITTEN,
    (Access.BASE, Access.BASE): _WRITTEN,
    (Access.BASE, Access.LOG): _APPENDED,
    (Access.BASE, Access.REPLACE): _REPLACED,
    (Access.LOG, Access.NEW): _APPENDED,
    (Access.LOG, Access.BASE): _APPENDED,
    (Access.LOG, Access.LOG): _APPENDED,
    (Access.LOG, Access.REPLACE): _REPLACED,
    (Access.REPLACE, Access.NEW): _I_REPLACE,
    (Access.REPLACE, Access.BASE): _I_REPLACE,
    (Access.REPLACE, Access.LOG): _I_REPLACE,
    (Access.REPLACE, Access.REPLACE): _TWICE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentCommit:
    """An instant that became visible after the base snapshot of this write."""

    action: Action
    requested_time: InstantTime
    completion_time: InstantTime
    write_set: WriteSet
    aborts: InstantTime | None = None  # the target of a rollback
    restores: bool = False  # it removed committed instants
    writer: str = ""  # host, pid, application, as far as known
    is_compaction: bool = False  # it only moved rows: no conflict with LOG and REPLACE (PUB-4)
    #: File groups it removed keys from. Call it only if needed: it may read the commit.
    dropped: Callable[[], Collection[FileGroupId]] = field(default=frozenset, compare=False)
    schema: str = ""  # the table schema of the commit, "" if not known
    batches: tuple[str, ...] = ()  # idempotent batches it contains (BATCH-1)


@dataclass(frozen=True, slots=True)
class NoConflict:
    """No concurrent commit conflicts."""


@dataclass(frozen=True, slots=True)
class Rebase:
    """Merging these file groups again on their newest slices is enough."""

    rule: RuleId
    why: str
    concurrent_commits: tuple[ConcurrentCommit, ...]
    file_groups: tuple[FileGroupId, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The write cannot be committed as it is; most can be retried from the start."""

    rule: RuleId
    why: str
    concurrent_commits: tuple[ConcurrentCommit, ...]
    file_groups: tuple[FileGroupId, ...] = ()
    partitions: tuple[str, ...] = ()
    retry_can_succeed: bool = True
    plans: tuple[Instant, ...] = ()  # pending plans that cause the conflict


Verdict = NoConflict | Rebase | Rejected


def validate_write_set(
    mine: WriteSet,
    requested_time: InstantTime,
    commits: Sequence[ConcurrentCommit],
    *,
    logs_may_conflict: bool = False,
) -> Verdict:
    """
    Decide whether an instant may be committed after its concurrent commits.

    Args:
        mine: The instant's write set.
        requested_time: The instant's own requested time.
        commits: All commits that became visible after the base snapshot, in slot order. If my rows
            were merged onto a commit's base file, the two do not conflict in that file group.
        logs_may_conflict: Non-blocking mode: two log files in one file group are no conflict.

    Returns:
        The worst verdict: rejected before rebase before no conflict. If a commit with a greater
            requested time wrote a file group, this write cannot rebase it under its own requested
            time: a base file below an existing one would be hidden (PUB-5, hole 23).
    """
    for concurrent in commits:
        if concurrent.restores:
            return Rejected(
                RuleId.TARGET_OF_ROLLBACK,
                "a restore reset the table to an earlier state, so the files that this write "
                "read may be deleted",
                (concurrent,),
            )
        if concurrent.aborts == requested_time:
            return Rejected(
                RuleId.TARGET_OF_ROLLBACK,
                "another process rolled this instant back, because its heartbeat was expired",
                (concurrent,),
            )
    for concurrent in commits:
        rejected = _write_sets_conflict(mine, concurrent) or _nested(mine, concurrent)
        if rejected is not None:
            return rejected
    my_touches = {item.file_group: item for item in mine.file_groups}
    rebase: dict[FileGroupId, ConcurrentCommit] = {}
    for concurrent in commits:
        for item in concurrent.write_set.file_groups:
            my_item = my_touches.get(item.file_group)
            if my_item is None or _built_on(my_item, item, concurrent):
                continue
            rule = _cell(
                my_item.access, item.access, concurrent, logs_may_conflict=logs_may_conflict
            )
            if rule.rule is RuleId.NO_CONFLICT:
                continue
            if not rule.rebaseable or concurrent.requested_time > requested_time:
                return Rejected(rule.rule, rule.why, (concurrent,), (item.file_group,))
            rebase[item.file_group] = concurrent
    if not rebase:
        return NoConflict()
    conflicting = tuple(dict.fromkeys(rebase.values()))
    return Rebase(_WRITTEN.rule, _WRITTEN.why, conflicting, tuple(sorted(rebase)))


def _built_on(
    mine: AccessedFileGroup, theirs: AccessedFileGroup, concurrent: ConcurrentCommit
) -> bool:
    """Return whether my rows were merged onto the commit's base file, or onto a later one."""
    source = mine.source_requested_time
    return (
        theirs.access in (Access.NEW, Access.BASE)
        and source is not None
        and source >= concurrent.requested_time
    )


def _cell(
    mine: Access, theirs: Access, concurrent: ConcurrentCommit, *, logs_may_conflict: bool
) -> Rule:
    if concurrent.is_compaction and mine in (Access.LOG, Access.REPLACE):
        return _CLEAN
    if logs_may_conflict and mine is theirs is Access.LOG:
        return _CLEAN
    return MATRIX[mine, theirs]


def _write_sets_conflict(mine: WriteSet, concurrent: ConcurrentCommit) -> Rejected | None:
    if concurrent.is_compaction:
        return None  # it moves rows of existing file groups, which a whole-partition write replaces
    theirs = concurrent.write_set
    into_mine = _overlap(mine.partitions, theirs)
    if into_mine:
        return Rejected(
            RuleId.WRITTEN_INTO_MY_CLAIM,
            "a concurrent commit wrote into a partition that I overwrite or delete",
            (concurrent,),
            partitions=into_mine,
        )
    into_theirs = _overlap(theirs.partitions, mine)
    if into_theirs:
        return Rejected(
            RuleId.PARTITION_CLAIMED_BY_OTHER,
            "a concurrent commit overwrote or deleted a partition that I write into",
            (concurrent,),
            partitions=into_theirs,
        )
    return None


def _nested(mine: WriteSet, concurrent: ConcurrentCommit) -> Rejected | None:
    """Reject if one partition is inside the other's; readers find only the outer one."""
    if concurrent.is_compaction:
        return None
    written, theirs = _written_to(mine), _written_to(concurrent.write_set)
    inner = {path for path in written if not theirs.isdisjoint(_above(path))}
    outer = written.intersection(chain.from_iterable(map(_above, theirs)))
    if not (inner or outer):
        return None
    return Rejected(
        RuleId.NESTED_PARTITION,
        "a concurrent commit wrote a partition inside or around mine, and readers find only the "
        "outer one",
        (concurrent,),
        partitions=tuple(sorted(inner | outer)),
    )


def _above(path: str) -> list[str]:
    """Return the folders above a partition, without the table's base folder."""
    return [path[:at] for at, letter in enumerate(path) if letter == "/"]


def _written_to(write_set: WriteSet) -> frozenset[str]:
    return frozenset(
        item.file_group.partition_path
        for item in write_set.file_groups
        if item.access is not Access.REPLACE
    )


def _overlap(claimed: Collection[str], other: WriteSet) -> tuple[str, ...]:
    """Return the partitions, accessed as a whole, that the other write set also contains."""
    if not claimed:
        return ()
    written = {item.file_group.partition_path for item in other.file_groups}
    written.update(other.partitions)
    claims = set(claimed)
    if WHOLE_TABLE in claims:
        return tuple(sorted(written))
    return tuple(sorted(claims & written))


# ---- Conflict strategies
# A strategy runs after the matrix, and only if that rejected nothing. So it can reject more writes
# or services, but can never accept two instants that would lose a row. A fixed table maps Hudi's
# class names; no class is loaded (SEC4).


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """The reason to reject a commit that the matrix accepts."""

    why: str
    file_groups: tuple[FileGroupId, ...] = ()
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictStrategy:
    """
    One choice among safe verdicts.

    Attributes:
        name: Its value of ``hoodie.write.lock.conflict.resolution.strategy``.
        class_names: Java classes that mean the same.
        objects: Compares my write set with one concurrent commit; returns None if both may count.
            It runs in the commit section, so it must be fast and do no I/O.
        prefers_writers: A writer that a pending clustering would reject cancels the clustering,
            and a clustering leaves out file groups that live writers announced.
    """

    name: str
    class_names: tuple[str, ...] = ()
    objects: Callable[[WriteSet, ConcurrentCommit], Objection | None] | None = None
    prefers_writers: bool = False


def _same_partition(mine: WriteSet, concurrent: ConcurrentCommit) -> Objection | None:
    """Reject two writers of one partition; services only move rows."""
    if concurrent.is_compaction or concurrent.action is Action.CLUSTERING:
        return None
    shared = _partitions(mine) & _partitions(concurrent.write_set)
    if WHOLE_TABLE in _partitions(mine) | _partitions(concurrent.write_set):
        shared = _partitions(mine) | _partitions(
            concurrent.write_set
        )  # the matrix checked it already
    if not shared:
        return None
    return Objection(
        why="a concurrent commit wrote into the same partition, which has one writer at a time",
        partitions=tuple(sorted(shared)),
    )


def _partitions(write_set: WriteSet) -> set[str]:
    return {item.file_group.partition_path for item in write_set.file_groups} | set(
        write_set.partitions
    )


_JAVA = "org.apache.hudi.client.transaction."

SIMPLE = ConflictStrategy(
    name="simple", class_names=(f"{_JAVA}SimpleConcurrentFileWritesConflictResolutionStrategy",)
)

STRATEGIES: tuple[ConflictStrategy, ...] = (
    SIMPLE,
    # With index BUCKET, two file groups of one bucket always conflict. The name changes nothing
    # and exists for Hudi's configurations.
    ConflictStrategy(
        name="bucket",
        class_names=(f"{_JAVA}BucketIndexConcurrentFileWritesConflictResolutionStrategy",),
    ),
    ConflictStrategy(
        name="prefer_writer",
        class_names=(
            f"{_JAVA}PreferWriterConflictResolutionStrategy",
            f"{_JAVA}IngestionPrimaryWriterBasedConflictResolutionStrategy",  # Hudi 0.x
        ),
        prefers_writers=True,
    ),
    ConflictStrategy(name="partition", objects=_same_partition),
)


def find_strategy(name: str, offered: Iterable[ConflictStrategy] = ()) -> ConflictStrategy | None:
    """
    Return the strategy of a name, or of a Java class with or without package; None if unknown.

    Args:
        name: In any case, with dashes or underscores.
        offered: Strategies of plug-ins; they cannot override a name of hoodoo's.
    """
    folded = name.strip().casefold().replace("-", "_")
    for strategy in (*STRATEGIES, *offered):
        names = [strategy.name]
        for each in strategy.class_names:
            names += [each, each.rpartition(".")[2]]
        if folded in (each.casefold().replace("-", "_") for each in names):
            return strategy
    return None


def objection_to(
    mine: WriteSet, commits: Sequence[ConcurrentCommit], strategy: ConflictStrategy
) -> Rejected | None:
    """Return the first objection of a strategy to an accepted write set; it retries all."""
    if strategy.objects is None:
        return None
    for concurrent in commits:
        objection = strategy.objects(mine, concurrent)
        if objection is not None:
            return Rejected(
                RuleId.STRATEGY_REFUSED,
                objection.why,
                (concurrent,),
                objection.file_groups,
                objection.partitions,
            )
    return None
