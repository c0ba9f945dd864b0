"""
Coalesced writes: write the rows of several members of a group as one write (GRP-7).

Members with rows for the same partitions conflict on a file group, so each would need a group and
an instant of its own. Coalesced, they are one upsert of all their rows. The commit of a committer
records the result of each member, whose writer may have to look it up (GRP-8).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from filegroups.group_commit.messages import MemberResult
from filegroups.index import IndexedFile
from filegroups.merge.merging import key_codes
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from filegroups.writing.workload import LocalWorkload, WorkloadProfile, combined
from filegroups.writing.write import PreparedWrite
from filegroups.writing.write_request import RowCounts, RowRules
from timeline.context import TableContext
from timeline.errors import CorruptTableError, InvariantError
from timeline.model.commit_metadata import CommitMetadata, MergeMode
from timeline.model.slot import Batch
from timeline.ports.ports import Ports

#: Limit of rows coalesced into one write: they are in memory twice, and one thread writes them.
COALESCED_BYTES_MAX: Final = 64 * 1024 * 1024

#: Extra metadata of a commit by a committer: the result of each write in it.
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

    def member_results(self, metadata: CommitMetadata) -> dict[str, MemberResult]:
        """
        Return the result of each write, to record in the commit.

        Args:
            metadata: As for ``rows_of_each``.
        """
        each = zip(self.numbers, self.rows_of_each(metadata), strict=True)
        return {str(number): member_result(metadata, rows) for number, rows in each}

    def _counts(self) -> list[RowCounts]:
        if not isinstance(self.work.workload, CoalescedWorkload):
            raise InvariantError("several writes were not coalesced; report it")
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
    results = {name: astuple(part) for name, part in parts.items()}
    return {JOINED_KEY: json.dumps(results, separators=(",", ":"))} if results else {}


def member_results(metadata: CommitMetadata) -> dict[str, MemberResult]:
    """
    Return the results of other processes' writes in a commit, by their names in the instant.

    Raises:
        CorruptTableError: The extra metadata cannot be parsed.
    """
    text = metadata.extra_metadata.get(JOINED_KEY, "{}")
    try:
        results = _PARTS.validate_json(text)
    except ValidationError as error:
        raise CorruptTableError(
            "the list of coalesced writes in a commit is damaged: restore the commit's file from "
            f"a backup: {JOINED_KEY}={text[:200]!a}",
            kind="joined_writes",
        ) from error
    return {
        name: MemberResult(**dict(zip(_PART, part, strict=True))) for name, part in results.items()
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


def coalesce(context: TableContext, works: Mapping[int, PreparedWrite]) -> list[CoalescedWrite]:
    """
    Return the writes of a group, with writes coalesced where possible.

    Args:
        context: The table.
        works: Writes that ``may_share`` an instant, by their number in the group, in order.
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
    joints = [
        joint for one in gathered for joint in _coalesced(context, dict(sorted(one.works.items())))
    ]
    return sorted(joints, key=lambda joint: joint.number)


def _gathered(number: int, work: PreparedWrite) -> _CoalescingGroup:
    workload, batch_id = work.workload, work.plan.batch_id
    likeness, paths, size_bytes = None, set[str](), 0
    if isinstance(workload, LocalWorkload) and may_coalesce(work.plan.rules):
        likeness = (work.schema.avro_json, work.schema_before, workload.schema)
        paths, size_bytes = set(workload.partition_paths()), int(workload.rows.nbytes)
    return _CoalescingGroup(
        likeness=likeness,
        paths=paths,
        size_bytes=size_bytes,
        batch_ids=set() if batch_id is None else {batch_id},
        works={number: work},
    )


def _coalesced(context: TableContext, works: Mapping[int, PreparedWrite]) -> list[CoalescedWrite]:
    """Coalesce the writes, except those whose rows cannot be coalesced."""
    found = {
        number: work.workload
        for number, work in works.items()
        if len(works) > 1
        and isinstance(work.workload, LocalWorkload)
        and can_coalesce_rows(work.workload, work.schema.avro_json)
    }
    if len(found) < 2:
        found = {}
    joints = [
        CoalescedWrite(work=work, numbers=(number,), works=(work,))
        for number, work in works.items()
        if number not in found
    ]
    if found:
        together = tuple(works[number] for number in found)
        first = together[0]
        rows = CoalescedWorkload(context.ports, list(found.values()), first.schema.avro_json)
        plan = replace(first.plan, batch_id=None)
        work = replace(first, plan=plan, workload=rows)
        joints.append(CoalescedWrite(work=work, numbers=tuple(found), works=together))
    return joints


# ---- The rows of several writes as one workload, with counts for each write
#
# Rows may be coalesced if merging them at once gives the same file as merging write after write.
# That is so if each row of a key replaces the one before it, or if the greater ordering value
# wins and no row is a delete. A base file forgets a delete, so a late row would count again.

_PLAIN_MODES = (MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING)


def may_coalesce(rules: RowRules) -> bool:
    """Return whether rows with these rules may be merged with other rows before the write."""
    merge = rules.merge
    if not rules.operation.traits.updates or not rules.combine or rules.changes_known:
        return False
    if rules.lookup.whole_table or rules.lookup.by_record_index or rules.buckets is not None:
        return False  # keys may move between partitions, or it is unknown which keys are new
    if merge.mode not in _PLAIN_MODES or merge.merger is not None or merge.updates_partially:
        return False
    return not (merge.precombines or merge.deletes_by_order or merge.late_rows_sign)


def can_coalesce_rows(workload: LocalWorkload, avro_json: str) -> bool:
    """
    Return whether the rows themselves can be coalesced, if their rules allow it.

    Args:
        workload: The prepared rows.
        avro_json: The schema they were prepared for.
    """
    combining = workload.rules.combining(avro_json)
    return not combining.by_order or not combining.deletes(workload.rows).any()


class CoalescedWorkload(LocalWorkload):
    """
    Rows of several prepared workloads, in the order of their writes.

    Args:
        ports: The ports.
        parts: Workloads of one plan that ``may_coalesce``, prepared for one schema.
        avro_json: That schema.
    """

    def __init__(self, ports: Ports, parts: Sequence[LocalWorkload], avro_json: str) -> None:
        rules = parts[0].rules
        every = pa.concat_tables([one.rows for one in parts])
        super().__init__(ports, combined(every, rules, avro_json))
        self._schema = parts[0].schema
        self._rules = rules
        self._every = every.select([KEY_COLUMN, PARTITION_COLUMN])
        self._deletes = rules.combining(avro_json).deletes(every)
        self._part_of = np.repeat(np.arange(len(parts)), [one.rows.num_rows for one in parts])
        self._parts = len(parts)
        self._counts: list[RowCounts] | None = None

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """See ``Workload.tag``."""
        self._counts = None
        return super().tag(candidates)

    def counts(self) -> list[RowCounts]:
        """
        Return how many rows each part inserts, updates and deletes, after the parts before it.

        Call it after ``tag``. A late row in event-time order counts as an update, though it changes
        nothing.
        """
        if self._counts is None:
            self._counts = self._counted()
        return self._counts

    def _counted(self) -> list[RowCounts]:
        own = self._rows.select(self._every.schema.names)
        codes, distinct = key_codes(pa.concat_tables([own, self._every]), by_partition=True)
        found = np.zeros(distinct, np.bool_)
        found[codes[: own.num_rows]] = np.asarray(pc.is_valid(self._found))
        there = _there_before(codes[own.num_rows :], found, self._deletes)
        kept = ~self._deletes
        inserted, updated, deleted = (
            np.bincount(self._part_of[mask], minlength=self._parts).tolist()
            for mask in (~there & kept, there & kept, there & self._deletes)
        )
        return [
            RowCounts(inserted=new, updated=changed, deleted=gone)
            for new, changed, gone in zip(inserted, updated, deleted, strict=True)
        ]


def _there_before(codes: Any, found: Any, deletes: Any) -> Any:
    """
    Return for each row whether its key existed before the row.

    Args:
        codes: Codes of the rows' keys, in row order.
        found: For each key, whether the table had it.
        deletes: For each row, whether it deletes its key.

    Shapes: (n,), (keys,), (n,) -> (n,).
    """
    order = np.argsort(codes, kind="stable")
    by_key = codes[order]
    follows = np.zeros(len(codes), np.bool_)
    follows[1:] = by_key[1:] == by_key[:-1]
    left_by_last = np.zeros(len(codes), np.bool_)
    left_by_last[1:] = ~deletes[order[:-1]]
    there = np.empty(len(codes), np.bool_)
    there[order] = np.where(follows, left_by_last, found[by_key])
    return there
