"""
Decide whether a write's reads are still valid after concurrent commits (isolation levels).

This is backward validation: a writer validates its own reads against every commit that became
visible since. So the order of the commit log is a serial order, and readers announce nothing.
``write_serializable`` also accepts a write that missed new rows, as if it came before them. Then
no change of this write may depend on a later commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from timeline.model.commit_metadata import (
    WHOLE_TABLE,
    Access,
    AccessedFileGroup,
    FileGroupId,
    WriteSet,
)
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.rules.conflicts import ConcurrentCommit, Rejected, RuleId


class Isolation(Enum):
    """The guarantee for a write that passes a read set."""

    SNAPSHOT = "snapshot"  # no other commit changed the same rows; write skew is possible
    WRITE_SERIALIZABLE = "write_serializable"  # some serial order gives the same table
    SERIALIZABLE = "serializable"  # the order of the commit log does


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScope:
    """The part of the table that a write was computed from, at one time."""

    partitions: frozenset[str] | None  # None: the whole table
    instants: frozenset[InstantTime]  # requested times that were visible then

    def covers(self, partition_path: str) -> bool:
        """Return whether the rows of a partition were read, or that it has none."""
        return self.partitions is None or partition_path in self.partitions

    def overwritten_by(self, write_set: WriteSet) -> bool:
        """Return whether a write set replaces a whole partition that was read."""
        return WHOLE_TABLE in write_set.partitions or any(map(self.covers, write_set.partitions))


class CommitProbe(Protocol):
    """Answers that need a commit's metadata or files; called only if they may avoid a rejection."""

    def only_inserted(self, concurrent: ConcurrentCommit, group: FileGroupId) -> bool:
        """Return whether a rewritten base file changed and deleted no existing row."""

    def has_reads(self, concurrent: ConcurrentCommit) -> bool:
        """Return whether the concurrent commit had a read set of its own."""

    def wrote_no_match(self, concurrent: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        """Return whether no row that the commit wrote there matches the read filter."""

    def had_no_match(self, group: FileGroupId) -> bool:
        """Return whether the file group existed and had no row that matches the read filter."""


def validate_reads(
    level: Isolation,
    mine: WriteSet,
    reads: ReadScope,
    commits: Sequence[ConcurrentCommit],
    probe: CommitProbe,
) -> Rejected | None:
    """
    Decide whether a write may be committed although others committed after its reads.

    Args:
        level: The isolation level.
        mine: The write set.
        reads: The read set.
        commits: All commits that became visible since those reads, in slot order.
        probe: Answers about single commits.

    Returns:
        None if it may. After a rejection it is useless to write the same rows again: the caller
        must read again.
    """
    taken = next((one for one in commits if one.restores or one.aborts in reads.instants), None)
    if taken is not None:
        return _changed("a restore removed a commit that this write has read", taken)
    published = [one for one in commits if one.aborts is None]
    match level:
        case Isolation.SNAPSHOT:
            return _first_wins(mine, reads, published)
        case Isolation.SERIALIZABLE:
            return _in_their_order(reads, published, probe)
        case Isolation.WRITE_SERIALIZABLE:
            return _in_some_order(mine, reads, published, probe)


def _first_wins(
    mine: WriteSet, reads: ReadScope, commits: Sequence[ConcurrentCommit]
) -> Rejected | None:
    groups = {item.file_group for item in mine.file_groups}
    changed: set[FileGroupId] = set()  # file groups that now have rows changed after the read
    for concurrent in commits:
        if concurrent.is_compaction:
            continue  # rows stay in their file groups
        conflicting = _conflict_of(reads, concurrent)
        came = _changed_there(concurrent, conflicting, changed)
        changed |= came
        moves = _moves_rows(concurrent)
        if came & groups or (
            not moves and _changes_what_i_change(mine, reads, concurrent, conflicting)
        ):
            return _changed(
                "a concurrent commit changed rows that this write changes, after this write read "
                "them",
                concurrent,
                conflicting,
            )
    return None


def _changed_there(
    concurrent: ConcurrentCommit,
    conflicting: Sequence[AccessedFileGroup],
    changed: set[FileGroupId],
) -> set[FileGroupId]:
    """
    Return a commit's file groups with changed rows that were read, also after moves.

    This write updates its rows in their present file groups. A clustering moves rows to other file
    groups, and an upsert with a global index moves them to another partition, outside the read
    set. The result is not exact, because rows are not compared.
    """
    theirs = concurrent.write_set.file_groups
    groups = {one.file_group for one in theirs}
    if any(one.access is Access.REPLACE and one.file_group in changed for one in theirs):
        return groups
    came = {one.file_group for one in conflicting}
    inserts = not changed and all(one.access is Access.NEW for one in conflicting)
    if inserts or concurrent.action is Action.CLUSTERING:
        came = set()  # no row that was read has changed there
    known = came | groups & changed
    if known and groups - came and not known.isdisjoint(concurrent.dropped()):
        return groups
    return came


def _in_their_order(
    reads: ReadScope, commits: Sequence[ConcurrentCommit], probe: CommitProbe
) -> Rejected | None:
    for concurrent in commits:
        if _moves_rows(concurrent):
            continue
        rejected = _changed_read(reads, concurrent, probe) or _appended_to_read(
            reads, concurrent, probe
        )
        if rejected is not None:
            return rejected
    return None


def _in_some_order(
    mine: WriteSet, reads: ReadScope, commits: Sequence[ConcurrentCommit], probe: CommitProbe
) -> Rejected | None:
    """
    Validate as if this write came before the first insert that it did not read.

    Then no commit with a read set may follow that insert: it may have read the insert, but could
    not read the rows of this write. And this write may not access file groups written since.
    """
    passed: list[ConcurrentCommit] = []  # the first insert that was not read, and all later commits
    for concurrent in commits:
        if passed:
            passed.append(concurrent)
        if _moves_rows(concurrent):
            continue
        rejected = _changed_read(reads, concurrent, probe)
        if rejected is not None:
            return rejected
        conflicting = _conflict_of(reads, concurrent)
        if (conflicting or passed) and probe.has_reads(concurrent):
            rejected = _appended_to_read(reads, concurrent, probe)
            if rejected is None and passed:
                rejected = _appended(
                    "a concurrent commit read the table itself, after inserts that this write "
                    "had not seen",
                    concurrent,
                )
            if rejected is not None:
                return rejected
        elif conflicting and not passed:
            passed.append(concurrent)
    for concurrent in passed:
        built_on = _shared(mine, concurrent)
        if built_on:
            return _appended(
                "this write changes rows of a concurrent commit, after inserts that it had not "
                "seen",
                concurrent,
                built_on,
            )
    return None


def _moves_rows(concurrent: ConcurrentCommit) -> bool:
    return concurrent.is_compaction or concurrent.action is Action.CLUSTERING


def _conflict_of(reads: ReadScope, concurrent: ConcurrentCommit) -> list[AccessedFileGroup]:
    return [
        one
        for one in concurrent.write_set.file_groups
        if reads.covers(one.file_group.partition_path)
    ]


def _changed_read(
    reads: ReadScope, concurrent: ConcurrentCommit, probe: CommitProbe
) -> Rejected | None:
    changed = [
        one
        for one in _conflict_of(reads, concurrent)
        if one.access is not Access.NEW and not _leaves_read(one, concurrent, probe)
    ]
    if not changed and not reads.overwritten_by(concurrent.write_set):
        return None
    return _changed(
        "a concurrent commit changed or deleted rows that this write has read", concurrent, changed
    )


def _leaves_read(one: AccessedFileGroup, concurrent: ConcurrentCommit, probe: CommitProbe) -> bool:
    """Return whether an accessed file group keeps every row that was read; it may have more."""
    if one.access is not Access.BASE:
        return False
    if probe.only_inserted(concurrent, one.file_group):
        return True
    return probe.wrote_no_match(concurrent, one) and probe.had_no_match(one.file_group)


def _appended_to_read(
    reads: ReadScope, concurrent: ConcurrentCommit, probe: CommitProbe
) -> Rejected | None:
    appended = [
        one for one in _conflict_of(reads, concurrent) if not probe.wrote_no_match(concurrent, one)
    ]
    if not appended:
        return None
    return _appended(
        "a concurrent commit inserted rows that match the reads of this write", concurrent, appended
    )


def _changes_what_i_change(
    mine: WriteSet,
    reads: ReadScope,
    concurrent: ConcurrentCommit,
    conflicting: Sequence[AccessedFileGroup],
) -> bool:
    """
    Return whether the commit changed the same rows, by file group; the first one wins.

    A row that the other commit deleted counts as new for this write, so any change of it conflicts
    with my inserts.
    """
    groups = {item.file_group for item in mine.file_groups}
    written = {group.partition_path for group in groups} | set(mine.partitions)
    claims = (
        written
        if WHOLE_TABLE in concurrent.write_set.partitions
        else set(concurrent.write_set.partitions)
    )
    if any(reads.covers(path) for path in claims & written):
        return True
    whole = set(mine.partitions)
    for item in conflicting:
        path = item.file_group.partition_path
        if item.file_group in groups or path in whole or WHOLE_TABLE in whole:
            return True
        if item.access is not Access.NEW and path in mine.inserting:
            return True
    return False


def _shared(mine: WriteSet, concurrent: ConcurrentCommit) -> list[AccessedFileGroup]:
    """Return accesses to file groups that I write, or to partitions that one side replaces."""
    groups = {item.file_group for item in mine.file_groups}
    paths = {group.partition_path for group in groups}
    if WHOLE_TABLE in mine.partitions:  # the other's whole-table writes are rejected before
        return list(concurrent.write_set.file_groups)
    whole = set(mine.partitions) | (paths & set(concurrent.write_set.partitions))
    return [
        one
        for one in concurrent.write_set.file_groups
        if one.file_group in groups or one.file_group.partition_path in whole
    ]


def _changed(
    why: str, concurrent: ConcurrentCommit, conflicting: Sequence[AccessedFileGroup] = ()
) -> Rejected:
    return _rejected(RuleId.READ_WAS_CHANGED, why, concurrent, conflicting)


def _appended(
    why: str, concurrent: ConcurrentCommit, conflicting: Sequence[AccessedFileGroup] = ()
) -> Rejected:
    return _rejected(RuleId.INSERTED_WHERE_I_MISSED, why, concurrent, conflicting)


def _rejected(
    rule: RuleId, why: str, concurrent: ConcurrentCommit, conflicting: Sequence[AccessedFileGroup]
) -> Rejected:
    return Rejected(
        rule,
        f"{why}; read again, then write",
        (concurrent,),
        tuple(one.file_group for one in conflicting),
        partitions=tuple(sorted({one.file_group.partition_path for one in conflicting})),
        retry_can_succeed=False,
    )
