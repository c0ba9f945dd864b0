"""
Writes of a group that bring rows for the same partitions, written as one (GRP-7).

Each of them would meet the one before it on a file group and wait for the next group, which is
one instant for each write of the same rows. Together they are one upsert of all their rows. Rows
of other processes are asked for, and a few come with their offer, which are written here even if
no others join them (GRP-8); what became of them the commit tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from filegroups.group_commit.messages import MemberResult, PeerLostError
from filegroups.group_commit.remote_workload import RemoteWorkload
from filegroups.writing.commit_result import RowCounts
from filegroups.writing.local_workload import (
    CoalescedWorkload,
    LocalWorkload,
    can_coalesce_rows,
    may_coalesce,
)
from filegroups.writing.workload import Workload
from filegroups.writing.write import PreparedWrite
from timeline.context import TableContext
from timeline.errors import CorruptTableError, HoodooError, InvariantError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Batch

__all__ = [
    "COALESCED_BYTES_MAX",
    "JOINED_KEY",
    "RECEIVED_BYTES_MAX",
    "CoalescedWrite",
    "coalesce",
    "member_result",
    "member_results",
    "member_results_text",
]

#: Of the rows that are written as one: they are in memory once more, and one thread's to write.
COALESCED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Of the rows of one write that come from another process, which writes bigger ones sooner itself.
RECEIVED_BYTES_MAX: Final = 4 * 1024 * 1024

#: Extra metadata of a commit: what each write did whose rows another process wrote.
JOINED_KEY: Final = "hoodoo.joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalescedWrite:
    """One write of a group, or several as one; ``work`` is placed and written."""

    work: PreparedWrite
    numbers: tuple[int, ...]  # of its writes in the group, in their order
    works: tuple[PreparedWrite, ...]

    @property
    def number(self) -> int:
        """Of the first of its writes, whose thread does its part."""
        return self.numbers[0]

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """Of all its writes that have one."""
        return tuple(one.plan.batch_id for one in self.works if one.plan.batch_id is not None)

    def batches(self) -> tuple[Batch, ...]:
        """Of several writes, once their rows are tagged; a single one's is told by its plan."""
        if len(self.works) == 1:
            return ()
        return tuple(
            Batch(
                batch_id=one.plan.batch_id,
                operation=one.plan.operation.value,
                rows_inserted=rows.inserted,
                rows_updated=rows.updated,
                rows_deleted=rows.deleted,
            )
            for one, rows in zip(self.works, self._counts(), strict=True)
            if one.plan.batch_id is not None
        )

    def rows_of_each(self, metadata: CommitMetadata) -> list[RowCounts]:
        """
        What the rows of each write did, once they are written.

        Args:
            metadata: Of the files that all its writes share.
        """
        return [RowCounts.of(metadata)] if len(self.works) == 1 else self._counts()

    def parts(self, metadata: CommitMetadata) -> dict[str, MemberResult]:
        """
        What the commit has to tell of writes whose rows came from other processes.

        Args:
            metadata: As of ``rows_of_each``.
        """
        if self.work.workload is self.works[0].workload:
            return {}
        each = zip(self.numbers, self.works, self.rows_of_each(metadata), strict=True)
        return {
            str(number): member_result(metadata, rows)
            for number, work, rows in each
            if isinstance(work.workload, RemoteWorkload)
        }

    def _counts(self) -> list[RowCounts]:
        if not isinstance(self.work.workload, CoalescedWorkload):
            raise InvariantError("several writes were not joined")
        return self.work.workload.counts()


def member_result(metadata: CommitMetadata, rows: RowCounts | None = None) -> MemberResult:
    """What a write did: its files, and its rows where it shares them with others."""
    rows = rows or RowCounts.of(metadata)
    return MemberResult(
        rows_inserted=rows.inserted,
        rows_updated=rows.updated,
        rows_deleted=rows.deleted,
        files_written=metadata.total_files,
        bytes_written=metadata.total_bytes,
    )


def member_results_text(parts: Mapping[str, MemberResult]) -> dict[str, str]:
    """The extra metadata that ``member_results`` reads; none where there is nothing to tell."""
    told = {name: astuple(part) for name, part in parts.items()}
    return {JOINED_KEY: json.dumps(told, separators=(",", ":"))} if told else {}


def member_results(metadata: CommitMetadata) -> dict[str, MemberResult]:
    """
    The writes of other processes whose rows a commit has, by their names in the instant.

    Raises:
        CorruptTableError: What it says of them is no such text.
    """
    text = metadata.extra_metadata.get(JOINED_KEY, "{}")
    try:
        told = _PARTS.validate_json(text)
    except ValidationError as error:
        raise CorruptTableError(
            f"a commit tells of its writes what nobody can read: {JOINED_KEY}={text[:200]!a}",
            kind="joined_writes",
        ) from error
    return {
        name: MemberResult(**dict(zip(_PART, part, strict=True))) for name, part in told.items()
    }


_PART: Final = tuple(each.name for each in fields(MemberResult))
_PARTS: Final = TypeAdapter(dict[str, tuple[int, int, int, int, int]])


@dataclass(slots=True)
class _CoalescingGroup:
    """Writes that share partitions, directly or by others between them."""

    likeness: Any  # what must be equal; None of a write that is joined with no other
    paths: set[str]
    size_bytes: int
    batch_ids: set[str] = field(default_factory=set)
    works: dict[int, PreparedWrite] = field(default_factory=dict)

    def may_take(self, other: _CoalescingGroup) -> bool:
        return (
            self.likeness is not None
            and self.likeness == other.likeness
            and not self.paths.isdisjoint(other.paths)
            and self.batch_ids.isdisjoint(other.batch_ids)  # BATCH-1: one batch counts once
            and self.size_bytes + other.size_bytes <= COALESCED_BYTES_MAX
        )

    def take(self, other: _CoalescingGroup) -> None:
        self.paths |= other.paths
        self.size_bytes += other.size_bytes
        self.batch_ids |= other.batch_ids
        self.works |= other.works


def coalesce(
    context: TableContext, works: Mapping[int, PreparedWrite], requested_time: InstantTime
) -> list[CoalescedWrite]:
    """
    The writes of a group, those that can be written as one put together.

    Args:
        context: The table.
        works: That ``may_share`` an instant, by their number in the group, in their order.
        requested_time: Of that instant.
    """
    gathered: list[_CoalescingGroup] = []
    for number, work in works.items():
        new = _gathered(number, work)
        apart = []
        for one in gathered:
            if one.may_take(new):
                one.take(new)
                new = one
            else:
                apart.append(one)
        gathered = [*apart, new]
    had = _had(context, works, gathered, requested_time)
    joints = [
        joint
        for one in gathered
        for joint in _coalesced(context, dict(sorted(one.works.items())), had)
    ]
    return sorted(joints, key=lambda joint: joint.number)


def _gathered(number: int, work: PreparedWrite) -> _CoalescingGroup:
    workload, batch_id = work.workload, work.plan.batch_id
    likeness, paths = None, set[str]()
    size_bytes = _size_bytes(workload)
    if workload is not None and size_bytes is not None and may_coalesce(work.plan.rules):
        likeness = (work.schema.avro_json, work.schema_before, workload.schema)
        paths = set(workload.partition_paths())
    return _CoalescingGroup(
        likeness=likeness,
        paths=paths,
        size_bytes=size_bytes or 0,
        batch_ids=set() if batch_id is None else {batch_id},
        works={number: work},
    )


def _size_bytes(workload: Workload | None) -> int | None:
    """Of rows that can be had, in memory; None of those that cannot."""
    if isinstance(workload, LocalWorkload):
        return int(workload.rows.nbytes)
    if isinstance(workload, RemoteWorkload) and workload.rows_bytes is not None:
        return workload.rows_bytes if workload.rows_bytes <= RECEIVED_BYTES_MAX else None
    return None


def _had(
    context: TableContext,
    works: Mapping[int, PreparedWrite],
    gathered: Sequence[_CoalescingGroup],
    requested_time: InstantTime,
) -> dict[int, LocalWorkload]:
    """
    The prepared rows of the writes that are written here, those that can be had.

    Who offered them has only to say that it knows where they go: all are told before the first is
    heard, and together they may take as long as one of them. The others are asked side by side.
    """
    shared = {number for one in gathered if len(one.works) > 1 for number in one.works}
    brought = [number for number, one in works.items() if _brings_rows(one)]
    told = [number for number in brought if _is_asked(works[number], requested_time, number)]
    clock = context.world.clock
    began_ms = clock.monotonic_ms()
    had = {
        number: _request_rows(context, works[number], waited_ms=clock.monotonic_ms() - began_ms)
        for number in told
    }
    left = [(number, works[number]) for number in works if number in shared.difference(brought)]
    asked = context.world.executor.map(partial(_rows, context, requested_time), left)
    had |= {number: rows for (number, _), rows in zip(left, asked, strict=True)}
    return {number: rows for number, rows in had.items() if rows is not None}


def _brings_rows(work: PreparedWrite) -> bool:
    return isinstance(work.workload, RemoteWorkload) and work.workload.brings_rows


def _is_asked(work: PreparedWrite, requested_time: InstantTime, number: int) -> bool:
    """Whether a writer could be asked for its rows; one that is lost is met again when placed."""
    if not isinstance(work.workload, RemoteWorkload):
        return False
    try:
        work.workload.ask_for_rows(requested_time, str(number))
    except PeerLostError:
        return False
    return True


def _request_rows(
    context: TableContext, work: PreparedWrite, *, waited_ms: int = 0
) -> LocalWorkload | None:
    """What was asked for; None of a writer that has failed, or is lost, which is met again."""
    if not isinstance(work.workload, RemoteWorkload):
        return None
    try:
        return work.workload.given_rows(context, work, waited_ms=waited_ms)
    except (HoodooError, PeerLostError):
        return None


def _rows(
    context: TableContext, requested_time: InstantTime, numbered: tuple[int, PreparedWrite]
) -> LocalWorkload | None:
    """The prepared rows of a write, if they can be had."""
    number, work = numbered
    if isinstance(work.workload, LocalWorkload):
        return work.workload
    return _request_rows(context, work) if _is_asked(work, requested_time, number) else None


def _coalesced(
    context: TableContext, works: Mapping[int, PreparedWrite], had: Mapping[int, LocalWorkload]
) -> list[CoalescedWrite]:
    """Some writes as one, but for those whose rows cannot be had, or turn out otherwise."""
    found: dict[int, LocalWorkload] = {}
    if len(works) > 1:
        found = {
            number: rows
            for number, work in works.items()
            if (rows := had.get(number)) is not None
            and can_coalesce_rows(rows, work.schema.avro_json)
        }
    if len(found) < 2:
        found = {}
    joints = [
        CoalescedWrite(work=_to_write(work, had.get(number)), numbers=(number,), works=(work,))
        for number, work in works.items()
        if number not in found
    ]
    if found:
        together = tuple(works[number] for number in found)
        first = together[0]
        rows = CoalescedWorkload(context.world, list(found.values()), first.schema.avro_json)
        plan = replace(first.plan, batch_id=None)
        work = replace(first, plan=plan, workload=rows)
        joints.append(CoalescedWrite(work=work, numbers=tuple(found), works=together))
    return joints


def _to_write(work: PreparedWrite, rows: LocalWorkload | None) -> PreparedWrite:
    """A write that is joined with no other: rows that came along are written here all the same."""
    return work if rows is None or not _brings_rows(work) else replace(work, workload=rows)
