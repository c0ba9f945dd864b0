"""
Coalesced writes: write the rows of several members of a group as one write (GRP-7).

Members with rows for the same partitions conflict on a file group, so each would need a group and
an instant of its own. Coalesced, they are one upsert of all their rows. The committer requests the
rows of other processes. Offers may contain a few rows, which the committer writes even if it
coalesces nothing (GRP-8). The commit records the result of each member.
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
from filegroups.writing.workload import (
    CoalescedWorkload,
    LocalWorkload,
    Workload,
    can_coalesce_rows,
    may_coalesce,
)
from filegroups.writing.write import PreparedWrite
from filegroups.writing.write_request import RowCounts
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

#: Limit of rows coalesced into one write: they are in memory twice, and one thread writes them.
COALESCED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Limit of rows received from another process, which writes more rows faster itself.
RECEIVED_BYTES_MAX: Final = 4 * 1024 * 1024

#: Extra metadata of a commit: the result of each write whose rows the committer wrote for it.
JOINED_KEY: Final = "hoodoo.joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalescedWrite:
    """One write of a group, or several as one. ``work`` is the write to assign and write."""

    work: PreparedWrite
    numbers: tuple[int, ...]  # numbers of its writes in the group, in order
    works: tuple[PreparedWrite, ...]

    @property
    def number(self) -> int:
        """Number of its first write, whose thread does the work."""
        return self.numbers[0]

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """Idempotency ids of all its writes that have one."""
        return tuple(one.plan.batch_id for one in self.works if one.plan.batch_id is not None)

    def batches(self) -> tuple[Batch, ...]:
        """Return the batches of several writes, after tagging; empty for a single write."""
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
        Return the row counts of each write, after the files are written.

        Args:
            metadata: Metadata of the files that all its writes share.
        """
        return [RowCounts.of(metadata)] if len(self.works) == 1 else self._counts()

    def parts(self, metadata: CommitMetadata) -> dict[str, MemberResult]:
        """
        Return the results to record in the commit for writes with rows of other processes.

        Args:
            metadata: As for ``rows_of_each``.
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
    """Return the result of a write: its files, and its own row counts if it shares the files."""
    rows = rows or RowCounts.of(metadata)
    return MemberResult(
        rows_inserted=rows.inserted,
        rows_updated=rows.updated,
        rows_deleted=rows.deleted,
        files_written=metadata.total_files,
        bytes_written=metadata.total_bytes,
    )


def member_results_text(parts: Mapping[str, MemberResult]) -> dict[str, str]:
    """Return the extra metadata that ``member_results`` reads; empty without results."""
    told = {name: astuple(part) for name, part in parts.items()}
    return {JOINED_KEY: json.dumps(told, separators=(",", ":"))} if told else {}


def member_results(metadata: CommitMetadata) -> dict[str, MemberResult]:
    """
    Return the results of other processes' writes in a commit, by their names in the instant.

    Raises:
        CorruptTableError: The extra metadata cannot be parsed.
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
    """Writes that share partitions, directly or through other writes."""

    likeness: Any  # must be equal; None for a write that cannot be coalesced
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
    Return the writes of a group, with writes coalesced where possible.

    Args:
        context: The table.
        works: Writes that ``may_share`` an instant, by their number in the group, in order.
        requested_time: Requested time of that instant.
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
    """Return the memory size of rows that are available here, None if they are not."""
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
    Return the prepared rows, as far as available, of the writes that are written here.

    A writer that offered its rows only has to confirm that it knows their instant. The committer
    first sends all these requests and then reads the answers, with one timeout for all. It requests
    the other writers' rows concurrently.
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
    """Return whether the request for rows could be sent; the assignment reports a lost writer."""
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
    """Return the requested rows; None if the writer failed or is lost (reported later)."""
    if not isinstance(work.workload, RemoteWorkload):
        return None
    try:
        return work.workload.given_rows(context, work, waited_ms=waited_ms)
    except (HoodooError, PeerLostError):
        return None


def _rows(
    context: TableContext, requested_time: InstantTime, numbered: tuple[int, PreparedWrite]
) -> LocalWorkload | None:
    """Return the prepared rows of a write, if available."""
    number, work = numbered
    if isinstance(work.workload, LocalWorkload):
        return work.workload
    return _request_rows(context, work) if _is_asked(work, requested_time, number) else None


def _coalesced(
    context: TableContext, works: Mapping[int, PreparedWrite], had: Mapping[int, LocalWorkload]
) -> list[CoalescedWrite]:
    """Coalesce the writes, except those whose rows are not available or cannot be coalesced."""
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
    """Return a write that is not coalesced; rows in its offer are written here all the same."""
    return work if rows is None or not _brings_rows(work) else replace(work, workload=rows)
