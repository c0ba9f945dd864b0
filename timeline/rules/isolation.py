"""
Whether what a write was made from still holds beside what others published (isolation levels).

Backward validation: whoever publishes judges its own reads against everything that became
visible since, so the order of publication is a serial order and no reader has to announce
what it reads. ``write_serializable`` also lets a write stand that is older than rows it did
not see, as if it had come before them; then nothing it does may rest on what came after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import WHOLE_TABLE, Access, AccessedFileGroup, FileGroupId, WriteSet
from timeline.rules.conflicts import ConcurrentCommit, Rejected, RuleId

__all__ = ["CommitProbe", "Isolation", "ReadScope", "validate_reads"]


class Isolation(Enum):
    """What a write that tells its reads is promised."""

    SNAPSHOT = "snapshot"  # nobody changed what it changes; write skew is possible
    WRITE_SERIALIZABLE = "write_serializable"  # some serial order gives the same table
    SERIALIZABLE = "serializable"  # the order of publication does


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScope:
    """The part of the table that a write was made from, at one moment."""

    partitions: frozenset[str] | None  # None: the whole table
    instants: frozenset[InstantTime]  # requested times that were visible then

    def covers(self, partition_path: str) -> bool:
        """Whether rows of a partition were read, or its emptiness."""
        return self.partitions is None or partition_path in self.partitions

    def claimed_by(self, claim: WriteSet) -> bool:
        """Whether a claim takes away something that was read as a whole."""
        return WHOLE_TABLE in claim.partitions or any(map(self.covers, claim.partitions))


class CommitProbe(Protocol):
    """What only a look at a rival's metadata or files tells; asked where it may spare a refusal."""

    def only_inserted(self, rival: ConcurrentCommit, group: FileGroupId) -> bool:
        """Whether a rewritten base file changed and deleted no row that was there."""

    def has_reads(self, rival: ConcurrentCommit) -> bool:
        """Whether the rival was made from reads of its own."""

    def misses(self, rival: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        """Whether no row that the rival wrote there is one that was asked for."""

    def held_none(self, group: FileGroupId) -> bool:
        """Whether the file group was there and held no row that was asked for."""


def validate_reads(
    level: Isolation,
    mine: WriteSet,
    reads: ReadScope,
    rivals: Sequence[ConcurrentCommit],
    looks: CommitProbe,
) -> Rejected | None:
    """
    Decide whether a write may be published though others did since it read.

    Args:
        level: What it is promised.
        mine: What the write touches.
        reads: What it was made from.
        rivals: Everything that became visible since those reads, in the order of slots.
        looks: Answers about single rivals.

    Returns:
        None when it may. A refusal can not be answered by writing the same rows again: the
        caller reads anew.
    """
    taken = next((one for one in rivals if one.restores or one.aborts in reads.instants), None)
    if taken is not None:
        return _changed("the other took back what this write was made from", taken)
    published = [one for one in rivals if one.aborts is None]
    match level:
        case Isolation.SNAPSHOT:
            return _first_wins(mine, reads, published)
        case Isolation.SERIALIZABLE:
            return _in_their_order(reads, published, looks)
        case Isolation.WRITE_SERIALIZABLE:
            return _in_some_order(mine, reads, published, looks)


def _first_wins(
    mine: WriteSet, reads: ReadScope, rivals: Sequence[ConcurrentCommit]
) -> Rejected | None:
    groups = {item.file_group for item in mine.file_groups}
    changed: set[FileGroupId] = set()  # where rows lie now that others changed after they were read
    for rival in rivals:
        if rival.is_compaction:
            continue  # rows stay in their file groups
        met = _conflict_of(reads, rival)
        came = _changed_there(rival, met, changed)
        changed |= came
        moves = _moves_rows(rival)
        if came & groups or (not moves and _changes_what_i_change(mine, reads, rival, met)):
            return _changed(
                "the other changed what this write changes, after this one read it", rival, met
            )
    return None


def _changed_there(
    rival: ConcurrentCommit, met: Sequence[AccessedFileGroup], changed: set[FileGroupId]
) -> set[FileGroupId]:
    """
    The file groups of a rival with changed rows that were read, also where it moved them.

    This write looks for its rows where they lie now: a clustering takes them to other file
    groups, an upsert by a global index to another partition, out of what was read. Not exact:
    the rows are not compared.
    """
    theirs = rival.claim.file_groups
    groups = {one.file_group for one in theirs}
    if any(one.touch is Access.REPLACE and one.file_group in changed for one in theirs):
        return groups
    came = {one.file_group for one in met}
    inserts = not changed and all(one.touch is Access.NEW for one in met)
    if inserts or rival.action is Action.CLUSTERING:
        came = set()  # no row that was read is another one there
    known = came | groups & changed
    if known and groups - came and not known.isdisjoint(rival.dropped()):
        return groups
    return came


def _in_their_order(
    reads: ReadScope, rivals: Sequence[ConcurrentCommit], looks: CommitProbe
) -> Rejected | None:
    for rival in rivals:
        if _moves_rows(rival):
            continue
        refused = _changed_read(reads, rival, looks) or _appended_to_read(reads, rival, looks)
        if refused is not None:
            return refused
    return None


def _in_some_order(
    mine: WriteSet, reads: ReadScope, rivals: Sequence[ConcurrentCommit], looks: CommitProbe
) -> Rejected | None:
    """
    As if this write came before the first insert that it did not see.

    Then nobody who read anything may have come after that insert (it may have read it, and
    what this write is to bring), and this write may touch nothing written since.
    """
    passed: list[ConcurrentCommit] = []  # the first insert that was not seen, and all after it
    for rival in rivals:
        if passed:
            passed.append(rival)
        if _moves_rows(rival):
            continue
        refused = _changed_read(reads, rival, looks)
        if refused is not None:
            return refused
        met = _conflict_of(reads, rival)
        if (met or passed) and looks.has_reads(rival):
            refused = _appended_to_read(reads, rival, looks)
            if refused is None and passed:
                refused = _appended(
                    "the other was made from reads of its own, after inserts that this write "
                    "had not seen",
                    rival,
                )
            if refused is not None:
                return refused
        elif met and not passed:
            passed.append(rival)
    for rival in passed:
        built_on = _shared(mine, rival)
        if built_on:
            return _appended(
                "this write changes what the other wrote, after inserts that it had not seen",
                rival,
                built_on,
            )
    return None


def _moves_rows(rival: ConcurrentCommit) -> bool:
    return rival.is_compaction or rival.action is Action.CLUSTERING


def _conflict_of(reads: ReadScope, rival: ConcurrentCommit) -> list[AccessedFileGroup]:
    return [one for one in rival.claim.file_groups if reads.covers(one.file_group.partition_path)]


def _changed_read(reads: ReadScope, rival: ConcurrentCommit, looks: CommitProbe) -> Rejected | None:
    changed = [
        one
        for one in _conflict_of(reads, rival)
        if one.touch is not Access.NEW and not _leaves_read(one, rival, looks)
    ]
    if not changed and not reads.claimed_by(rival.claim):
        return None
    return _changed("the other changed or deleted rows where this write had read", rival, changed)


def _leaves_read(one: AccessedFileGroup, rival: ConcurrentCommit, looks: CommitProbe) -> bool:
    """Whether a touched file group keeps each row that was asked for; it may have got more."""
    if one.touch is not Access.BASE:
        return False
    if looks.only_inserted(rival, one.file_group):
        return True
    return looks.misses(rival, one) and looks.held_none(one.file_group)


def _appended_to_read(
    reads: ReadScope, rival: ConcurrentCommit, looks: CommitProbe
) -> Rejected | None:
    appended = [one for one in _conflict_of(reads, rival) if not looks.misses(rival, one)]
    if not appended:
        return None
    return _appended("the other inserted rows where this write had read", rival, appended)


def _changes_what_i_change(
    mine: WriteSet, reads: ReadScope, rival: ConcurrentCommit, met: Sequence[AccessedFileGroup]
) -> bool:
    """
    First publisher wins among those that change the same rows, by file group.

    A row that the other deleted is new to me now, so any change of it meets where I insert.
    """
    groups = {item.file_group for item in mine.file_groups}
    written = {group.partition_path for group in groups} | set(mine.partitions)
    claims = written if WHOLE_TABLE in rival.claim.partitions else set(rival.claim.partitions)
    if any(reads.covers(path) for path in claims & written):
        return True
    whole = set(mine.partitions)
    for item in met:
        path = item.file_group.partition_path
        if item.file_group in groups or path in whole or WHOLE_TABLE in whole:
            return True
        if item.touch is not Access.NEW and path in mine.inserting:
            return True
    return False


def _shared(mine: WriteSet, rival: ConcurrentCommit) -> list[AccessedFileGroup]:
    """Where I write into what the rival wrote, or into partitions it took as wholes."""
    groups = {item.file_group for item in mine.file_groups}
    paths = {group.partition_path for group in groups}
    if WHOLE_TABLE in mine.partitions:  # a rival's claim of it takes all reads, met before
        return list(rival.claim.file_groups)
    whole = set(mine.partitions) | (paths & set(rival.claim.partitions))
    return [
        one
        for one in rival.claim.file_groups
        if one.file_group in groups or one.file_group.partition_path in whole
    ]


def _changed(why: str, rival: ConcurrentCommit, met: Sequence[AccessedFileGroup] = ()) -> Rejected:
    return _refused(RuleId.READ_WAS_CHANGED, why, rival, met)


def _appended(why: str, rival: ConcurrentCommit, met: Sequence[AccessedFileGroup] = ()) -> Rejected:
    return _refused(RuleId.INSERTED_WHERE_I_MISSED, why, rival, met)


def _refused(
    rule: RuleId, why: str, rival: ConcurrentCommit, met: Sequence[AccessedFileGroup]
) -> Rejected:
    return Rejected(
        rule,
        f"{why}; read again, then write",
        (rival,),
        tuple(one.file_group for one in met),
        partitions=tuple(sorted({one.file_group.partition_path for one in met})),
        retry_can_succeed=False,
    )
