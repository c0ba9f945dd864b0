"""
One group of a clustering: its slices read, their rows put in order, and cut into new files.

File ids follow from the plan and from how it is carried out, nothing is drawn: a second
executor makes the same files (CMP-2), one that orders rows otherwise makes others, which
are swept before the plan completes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableservices.clustering.curves import row_order
from tableservices.clustering.gathering import gather, joined
from tableservices.clustering.planned import PlannedClustering
from timeline.files.moved_rows import write_moved_rows
from timeline.files.rewrite import FileGroupTask
from timeline.files.slice_reader import SliceRead, read_slice
from timeline.model.casting import uuid_texts
from timeline.model.claim import FileGroupId
from timeline.model.commit_metadata import WriteStat
from timeline.model.file_group import FileSlice
from timeline.model.operations import WriteOperation
from timeline.model.paths import join
from timeline.model.times import InstantTime
from timeline.ports.world import World
from timeline.writing.placing import FileRules

__all__ = ["GroupTask", "file_groups_of", "write_group"]

_WAY = 1  # raised when the same plan is carried out otherwise: other files get other names


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """Everything that one group of a plan needs: a value, which an executor can send elsewhere."""

    requested_time: InstantTime
    number: int  # its place in the plan
    plan: PlannedClustering
    slices: tuple[FileSlice, ...]  # as they are now
    read: SliceRead  # commit time, sequence number, record key, then the table's own columns
    avro_json: str  # the new files' schema, without meta columns
    files: FileRules
    stores_keys: bool

    def file(self, file_id: str, index: int) -> FileGroupTask:
        """One file that comes out."""
        return FileGroupTask(
            requested_time=self.requested_time,
            operation=WriteOperation.BULK_INSERT,
            partition_path=self.slices[0].file_group.partition_path,
            file_id=file_id,
            write_token=f"{index}-{self.number}-0",
            task_number=self.number,
            avro_json=self.avro_json,
            parquet=self.files.parquet,
            bloom=self.files.bloom,
            stores_keys=self.stores_keys,
            partition_marked=True,  # or its slices would not have been found
        )


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


def write_group(world: World, task: GroupTask) -> tuple[WriteStat, ...]:
    """
    Write the files of one group, unless an executor before did; holds the group in memory.

    Raises:
        MissingFileError: A file of a slice is gone.
        CorruptTableError, UnsupportedTableError: A file cannot be read.
        InvalidInputError: A sort column is not there or has no order.
        StorageUnavailableError: The storage failed; carry the plan out again.

    Outside: those of ``read_slice`` for each slice, of ``write_moved_rows`` for each file.
    """
    rows = pa.concat_tables(world.executor.map(partial(_rows_of, world, task.read), task.slices))
    order = None
    if task.plan.sort_columns:
        rows = joined(rows)  # else each file is gathered from thousands of pieces
        order = row_order(rows, task.plan.sort_columns, task.plan.curve)
    groups = file_groups_of(task.requested_time, task.plan, task.number)
    cuts = np.linspace(0, rows.num_rows, min(len(groups), rows.num_rows) + 1).astype(np.int64)
    pieces = [
        _Piece(task, task.file(groups[index].file_id, index), rows, order, int(first), int(last))
        for index, (first, last) in enumerate(pairwise(cuts))
    ]
    return tuple(world.executor.map(partial(_write_piece, world), pieces))


@dataclass(frozen=True, slots=True)
class _Piece:
    task: GroupTask
    file: FileGroupTask
    rows: pa.Table
    order: npt.NDArray[np.int64] | None
    first: int
    last: int

    def gathered(self) -> pa.Table:
        count = self.last - self.first
        if self.order is None:
            rows = self.rows.slice(self.first, count)
        else:
            order = self.order[self.first : self.last]
            rows = gather(self.rows, order, self.task.read.output_schema)
        if self.task.plan.keeps_commit_times or not self.task.stores_keys:
            return rows
        time = self.task.requested_time
        numbers = pc.cast(pa.array(np.arange(self.first, self.last)), pa.string())
        sequence = pc.binary_join_element_wise(f"{time}_{self.task.number}_", numbers, "")
        rows = rows.set_column(0, rows.schema.field(0), pa.repeat(pa.scalar(time), count))
        return rows.set_column(1, rows.schema.field(1), sequence)


def _rows_of(world: World, read: SliceRead, one: FileSlice) -> pa.Table:
    batches = read_slice(world.storage, world.events, one, read)
    return pa.Table.from_batches(batches, read.output_schema)


def _write_piece(world: World, piece: _Piece) -> WriteStat:
    file, rows = piece.file, piece.gathered()
    size_bytes = write_moved_rows(world.storage, file, rows)
    return WriteStat(
        file_id=file.file_id,
        path=join(file.partition_path, file.file_name),
        partition_path=file.partition_path,
        num_writes=rows.num_rows,
        num_inserts=rows.num_rows,
        total_write_bytes=size_bytes,
        file_size_in_bytes=size_bytes,
    )
