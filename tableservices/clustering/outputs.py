"""
One group of a clustering: its slices read, their rows put in order, and cut into new files.

File ids follow from the plan and from how it is carried out, nothing is drawn: a second
executor makes the same files (CMP-2), one that orders rows otherwise makes others, which
are swept before the plan completes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tableservices.clustering.curves import row_order
from tableservices.clustering.gathering import gather, joined
from tableservices.clustering.planned import PlannedClustering
from timeline.files.moved_rows import write_moved_rows
from timeline.files.rewrite import FileGroupTask
from timeline.files.slice_reader import SliceRead, read_slice
from timeline.heartbeat import Heartbeat
from timeline.model.casting import uuid_texts
from timeline.model.claim import FileGroupId
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_group import FileSlice
from timeline.model.operations import WriteOperation
from timeline.model.paths import join
from timeline.model.times import InstantTime
from timeline.placing import FileRules
from timeline.ports.world import World

__all__ = ["GroupWork", "file_groups_of", "write_group"]

_WAY = 1  # raised when the same plan is carried out otherwise: other files get other names


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """Everything the groups of one plan have in common."""

    requested_time: InstantTime
    plan: PlannedClustering
    slices: Mapping[int, tuple[FileSlice, ...]]  # of each group, as they are now
    read: SliceRead  # commit time, sequence number, record key, then the table's own columns
    avro_json: str  # the new files' schema, without meta columns
    files: FileRules
    stores_keys: bool
    heartbeat: Heartbeat


def file_groups_of(
    requested_time: InstantTime, plan: PlannedClustering, number: int
) -> list[FileGroupId]:
    """The file groups that a group of a plan may become, however many rows it has."""
    group = plan.groups[number]
    way = [_WAY, requested_time, plan.curve.value, *plan.sort_columns, plan.keeps_commit_times]
    digests = [
        hashlib.blake2b(json.dumps([*way, number, output]).encode(), digest_size=16).digest()
        for output in range(group.output_files)
    ]
    partition_path = group.slices[0].file_group.partition_path
    texts = uuid_texts(pa.array(digests, pa.binary(16))).to_pylist()
    return [FileGroupId(partition_path, f"{text}-0") for text in texts]


def write_group(world: World, work: GroupWork, number: int) -> tuple[WriteStat, ...]:
    """
    Write the files of one group, unless an executor before did; holds the group in memory.

    Raises:
        HeartbeatExpiredError: This process paused too long.
        MissingFileError: A file of a slice is gone.
        CorruptTableError, UnsupportedTableError: A file cannot be read.
        InvalidInputError: A sort column is not there or has no order.
        StorageUnavailableError: The storage failed; carry the plan out again.

    Outside: those of ``read_slice`` for each slice, of ``write_moved_rows`` for each file.
    """
    rows = pa.concat_tables(world.executor.map(partial(_rows_of, world, work), work.slices[number]))
    order = None
    if work.plan.sort_columns:
        rows = joined(rows)  # else each file is gathered from thousands of pieces
        order = row_order(rows, work.plan.sort_columns, work.plan.curve)
    ids = file_groups_of(work.requested_time, work.plan, number)
    cuts = np.linspace(0, rows.num_rows, min(len(ids), rows.num_rows) + 1).astype(np.int64)
    pieces = [
        _Piece(work, ids[index], number, index, rows, order, (int(first), int(last)))
        for index, (first, last) in enumerate(pairwise(cuts))
    ]
    return tuple(world.executor.map(partial(_write_piece, world), pieces))


@dataclass(frozen=True, slots=True)
class _Piece:
    work: GroupWork
    file_group: FileGroupId
    number: int  # of the group
    index: int  # of the file in it
    rows: pa.Table
    order: np.ndarray[tuple[int], np.dtype[np.int64]] | None
    between: tuple[int, int]

    def task(self) -> FileGroupTask:
        return FileGroupTask(
            requested_time=self.work.requested_time,
            operation=WriteOperation.BULK_INSERT,
            partition_path=self.file_group.partition_path,
            file_id=self.file_group.file_id,
            write_token=f"{self.index}-{self.number}-0",
            task_number=self.number,
            avro_json=self.work.avro_json,
            parquet=self.work.files.parquet,
            bloom=self.work.files.bloom,
            stores_keys=self.work.stores_keys,
        )

    def gathered(self) -> pa.Table:
        first, last = self.between
        if self.order is None:
            rows = self.rows.slice(first, last - first)
        else:
            rows = gather(self.rows, self.order[first:last], self.work.read.output_schema)
        if self.work.plan.keeps_commit_times or not self.work.stores_keys:
            return rows
        time = self.work.requested_time
        sequence = pa.array([f"{time}_{self.number}_{at}" for at in range(first, last)])
        rows = rows.set_column(0, rows.schema.field(0), pa.repeat(pa.scalar(time), last - first))
        return rows.set_column(1, rows.schema.field(1), sequence)


def _rows_of(world: World, work: GroupWork, one: FileSlice) -> pa.Table:
    batches = read_slice(world.storage, world.events, one, work.read)
    return pa.Table.from_batches(batches, work.read.output_schema)


def _write_piece(world: World, piece: _Piece) -> WriteStat:
    task = piece.task()
    rows = piece.gathered()
    piece.work.heartbeat.check()  # else a file may appear after another executor's sweep
    size_bytes = write_moved_rows(world.storage, task, rows)
    return WriteStat(
        file_id=task.file_id,
        path=join(task.partition_path, task.file_name),
        partition_path=task.partition_path,
        num_writes=rows.num_rows,
        num_inserts=rows.num_rows,
        total_write_bytes=size_bytes,
        file_size_in_bytes=size_bytes,
    )
