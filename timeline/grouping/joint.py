"""
Writes of a group that bring rows for the same partitions, written as one (GRP-7).

Each of them would meet the one before it on a file group and wait for the next group, which is
one instant for each write of the same rows. Together they are one upsert of all their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from timeline.context import TableContext
from timeline.errors import InvariantError
from timeline.model.commit_metadata import CommitMetadata, WriteStat
from timeline.model.slot import Batch
from timeline.writing.joined_workload import JoinedWorkload, RowCounts, may_be_joined
from timeline.writing.local_workload import LocalWorkload
from timeline.writing.write import Work

__all__ = ["JOINT_BYTES_MAX", "Joint", "joints_of"]

#: Of the rows that are written as one: they are in memory once more, and one thread's to write.
JOINT_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """One write of a group, or several as one; ``work`` is placed and written."""

    work: Work
    numbers: tuple[int, ...]  # of its writes in the group, in their order
    works: tuple[Work, ...]

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
                rows_inserted=rows.inserted,
                rows_updated=rows.updated,
                rows_deleted=rows.deleted,
            )
            for one, rows in zip(self.works, self._counts(), strict=True)
            if one.plan.batch_id is not None
        )

    def metadata_of_each(self, metadata: CommitMetadata) -> list[CommitMetadata]:
        """For each write its own rows; the files are those that all its writes share."""
        if len(self.works) == 1:
            return [metadata]
        return [_with_rows(metadata, rows) for rows in self._counts()]

    def _counts(self) -> list[RowCounts]:
        if not isinstance(self.work.workload, JoinedWorkload):
            raise InvariantError("several writes were not joined")
        return self.work.workload.counts()


def _with_rows(metadata: CommitMetadata, rows: RowCounts) -> CommitMetadata:
    """The files of a write, with other numbers of rows."""
    told: dict[str, tuple[WriteStat, ...]] = {}
    left = rows
    for path, stats in metadata.partition_to_write_stats.items():
        own = []
        for stat in stats:
            own.append(
                replace(
                    stat,
                    num_inserts=left.inserted,
                    num_update_writes=left.updated,
                    num_deletes=left.deleted,
                )
            )
            left = RowCounts(inserted=0, updated=0, deleted=0)
        told[path] = tuple(own)
    return replace(metadata, partition_to_write_stats=told)


@dataclass(slots=True)
class _Gathered:
    """Writes that share partitions, directly or by others between them."""

    likeness: Any  # what must be equal; None of a write that is joined with no other
    paths: set[str]
    size_bytes: int
    batch_ids: set[str] = field(default_factory=set)
    works: dict[int, Work] = field(default_factory=dict)

    def may_take(self, other: _Gathered) -> bool:
        return (
            self.likeness is not None
            and self.likeness == other.likeness
            and not self.paths.isdisjoint(other.paths)
            and self.batch_ids.isdisjoint(other.batch_ids)  # BATCH-1: one batch counts once
            and self.size_bytes + other.size_bytes <= JOINT_BYTES_MAX
        )

    def take(self, other: _Gathered) -> None:
        self.paths |= other.paths
        self.size_bytes += other.size_bytes
        self.batch_ids |= other.batch_ids
        self.works |= other.works


def joints_of(context: TableContext, works: Mapping[int, Work]) -> list[Joint]:
    """
    The writes of a group, those that can be written as one put together.

    Args:
        context: The table.
        works: That ``may_share`` an instant, by their number in the group, in their order.
    """
    gathered: list[_Gathered] = []
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
    joints = [_joint(context, one.works) for one in gathered]
    return sorted(joints, key=lambda joint: joint.number)


def _gathered(number: int, work: Work) -> _Gathered:
    workload, batch_id = work.workload, work.plan.batch_id
    likeness, paths, size_bytes = None, set[str](), 0
    if isinstance(workload, LocalWorkload) and may_be_joined(workload, work.schema.avro_json):
        likeness = (
            work.schema.avro_json,
            work.schema_before,
            workload.schema,
            workload.rows.schema,
        )
        paths = set(workload.partition_paths())
        size_bytes = workload.rows.nbytes
    return _Gathered(
        likeness=likeness,
        paths=paths,
        size_bytes=size_bytes,
        batch_ids=set() if batch_id is None else {batch_id},
        works={number: work},
    )


def _joint(context: TableContext, works: Mapping[int, Work]) -> Joint:
    numbers = tuple(sorted(works))
    ordered = tuple(works[number] for number in numbers)
    first = ordered[0]
    work = first
    if len(ordered) > 1:
        work = replace(
            first,
            plan=replace(first.plan, batch_id=None),
            workload=JoinedWorkload(context.world, _rows_of(ordered), first.schema.avro_json),
        )
    return Joint(work=work, numbers=numbers, works=ordered)


def _rows_of(works: Sequence[Work]) -> list[LocalWorkload]:
    return [work.workload for work in works if isinstance(work.workload, LocalWorkload)]
