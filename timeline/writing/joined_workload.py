"""
The rows of several writes as one workload: written once, told to each write by itself (GRP-7).

Writes of the same rows that follow each other merge into one file group after the other. Where
that leaves what merging them at once leaves, one file does for all of them. It does where each
row of a key replaces the one before it, or the greater ordering value stays and nothing is
deleted: a delete is forgotten by a base file, so that a late row after it counts again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timeline.index import IndexedFile
from timeline.model.operations import MergeMode, WriteOperation
from timeline.model.schema import KEY_COLUMN, PARTITION_COLUMN
from timeline.ports.world import World
from timeline.rules.merging import key_codes
from timeline.writing.local_workload import LocalWorkload, combined
from timeline.writing.receipt import RowCounts
from timeline.writing.workload import RowRules, WorkloadProfile

__all__ = ["JoinedWorkload", "are_joinable", "may_be_joined"]

_PLAIN_MODES = (MergeMode.COMMIT_TIME_ORDERING, MergeMode.EVENT_TIME_ORDERING)


def may_be_joined(rules: RowRules) -> bool:
    """Whether rows prepared so can be merged with those of others before they are written."""
    merge = rules.merge
    if rules.operation is not WriteOperation.UPSERT or not rules.combine or rules.changes_known:
        return False
    if rules.lookup.whole_table or rules.buckets is not None:
        return False  # keys move between partitions; it is not known before which keys are new
    if merge.mode not in _PLAIN_MODES or merge.merger is not None or merge.updates_partially:
        return False
    return not (merge.precombines or merge.deletes_by_order or merge.late_rows_sign)


def are_joinable(workload: LocalWorkload, avro_json: str) -> bool:
    """
    The same of the rows themselves, where their rules allow it.

    Args:
        workload: Prepared.
        avro_json: The schema it was prepared for.
    """
    combining = workload.rules.combining(avro_json)
    return not combining.by_order or not combining.deletes(workload.rows).any()


class JoinedWorkload(LocalWorkload):
    """
    Rows of several prepared workloads, in the order of their writes.

    Args:
        world: The ports.
        parts: Workloads of one plan that ``may_be_joined``, prepared for one schema.
        avro_json: That schema.
    """

    def __init__(self, world: World, parts: Sequence[LocalWorkload], avro_json: str) -> None:
        rules = parts[0].rules
        every = pa.concat_tables([one.rows for one in parts])
        super().__init__(world, combined(every, rules, avro_json))
        self._schema = parts[0].schema
        self._rules = rules
        self._every = every.select([KEY_COLUMN, PARTITION_COLUMN])
        self._deletes = rules.combining(avro_json).deletes(every)
        self._part_of = np.repeat(np.arange(len(parts)), [one.rows.num_rows for one in parts])
        self._parts = len(parts)
        self._counts: list[RowCounts] | None = None

    def tag(self, candidates: Mapping[str, Sequence[IndexedFile]]) -> WorkloadProfile:
        """As the contract."""
        self._counts = None
        return super().tag(candidates)

    def counts(self) -> list[RowCounts]:
        """
        What each part's rows do, once they are tagged, after those of the parts before it.

        A row that comes late in event-time order counts as an update, though nothing changes.
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
    Whether each row's key was there when its turn came.

    Args:
        codes: Of the rows' keys, in the order of the rows.
        found: Of each key, whether the table had it.
        deletes: Whether a row deletes its key.

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
