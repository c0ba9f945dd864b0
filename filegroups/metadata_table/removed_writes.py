"""
The records that take removed writes out of the metadata table (MDT-12).

A removed write usually leaves it with its own log files. This is for the rest: records that a
compaction of the metadata table merged, or that are older than one of its partitions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.metadata_table.contents import (
    DELETES,
    PartitionContents,
    changed_pairs,
    contents_of_clean,
    distinct_keys,
)
from filegroups.metadata_table.file_group_contents import (
    IndexedTable,
    difference,
    keys_in_logs,
    secondary_pairs,
    slice_rows,
)
from filegroups.metadata_table.keys import split_secondary_keys
from filegroups.metadata_table.lag import newest_merge
from filegroups.metadata_table.reading import MetadataTable
from filegroups.metadata_table.records import RECORD_INDEX
from filegroups.schema.arrow_columns import codes_of, one_array
from filegroups.schema.schema import KEY_COLUMN
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import data_file_time, instant_file_name
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import EARLIEST, InstantTime, TimelineZone
from timeline.model.metadata_table import BUILDING, PartitionKind
from timeline.ports.ports import Executor, Stats, Storage
from timeline.snapshot import ActiveTimeline


def contents_of_removal(
    storage: Storage,
    executor: Executor,
    table: IndexedTable,
    metadata: MetadataTable,
    *,
    removed: Container[InstantTime],
    slices: Sequence[FileSlice],
    of_groups: Container[FileGroupId] | None,
    zone: TimelineZone,
) -> dict[str, PartitionContents]:
    """
    Return the records that take completed writes out again: of a restore, or of a rollback.

    They are the difference between two states: the metadata table without the log files of the
    writes, and the table without the writes. Base files of the metadata table may have more of the
    writes. Bounds
    of partitions stay wide, and partitions stay listed.

    Args:
        storage: Storage of the table.
        executor: Maps over the slices.
        table: The indexes to update.
        metadata: The metadata table, in which the writes do not count.
        removed: Requested times of the writes.
        slices: The merged slices without the writes, as far as keys are compared.
        of_groups: The file groups whose keys the writes may have changed; None for all. ``slices``
            has those of them that remain.
        zone: Of the table's timeline.

    Raises:
        MissingFileError, CorruptTableError: As ``MetadataTable.read`` and ``read_slice``.

    Outside: the reads of the list of files; with a record or secondary index those of the index and
    of the slices.
    """
    left: dict[str, list[str]] = {}
    listed = metadata.files_of(metadata.partition_paths())
    paths, names = (listed.column(name).to_pylist() for name in ("partition_path", "name"))
    for path, name in zip(paths, names, strict=True):
        if (time := data_file_time(name)) is not None and time in removed:
            left.setdefault(path, []).append(name)
    made = contents_of_clean(table, left, requested_time=EARLIEST)
    if not table.indexes_keys:
        return made
    secondary = dict(table.secondary)
    work = partial(slice_rows, storage, table, columns=tuple(dict.fromkeys(secondary.values())))
    found = list(zip(slices, executor.map(work, slices), strict=True))
    present = [one_array(rows.column(KEY_COLUMN)) for _, rows in found]
    if table.has(PartitionKind.RECORD_INDEX):
        index = PartitionKind.RECORD_INDEX.value
        held = pa.concat_tables(
            [RECORD_INDEX.empty_table()]
            + [_of_groups(rows, of_groups) for rows in metadata.read(index)]
        )
        in_logs = partial(keys_in_logs, storage, table)
        hidden = zip(slices, executor.map(in_logs, slices), strict=True)
        shown = [(one, one_array(rows.column(KEY_COLUMN))) for one, rows in found]
        # The last location of a key counts: one with a visible row.
        made[index] = _relocated(table, _locations([*hidden, *shown], zone), held)
        present.append(one_array(held.column("key")))
    keys = None if of_groups is None else pc.unique(pa.concat_arrays(present))
    for name, column in secondary.items():
        version = table.definitions[name].version
        wanted = _joined(secondary_pairs(rows, column, version) for _, rows in found)
        held = _joined(_pairs_of(rows, keys, name) for rows in metadata.read(name))
        made[name] = changed_pairs(difference(wanted, held), difference(held, wanted))
    return made


def _of_groups(rows: pa.Table, of_groups: Container[FileGroupId] | None) -> pa.Table:
    """Return the rows of a record index that are in some file groups."""
    if of_groups is None:
        return rows
    paths, ids = one_array(rows.column("partition_path")), one_array(rows.column("file_id"))
    codes, places = codes_of(pc.binary_join_element_wise(paths, ids, "\0"))
    wanted = [FileGroupId(*place.split("\0")) in of_groups for place in places]
    return rows.filter(pa.array(np.array(wanted, bool)[codes]))


def _locations(found: Sequence[tuple[FileSlice, pa.Array]], zone: TimelineZone) -> pa.Table:
    """Return the rows of a record index for the keys of slices."""
    made = [RECORD_INDEX.empty_table()]
    for one, keys in found:
        columns = [
            keys,
            pa.repeat(pa.scalar(one.file_group.partition_path), len(keys)),
            pa.repeat(pa.scalar(one.file_group.file_id), len(keys)),
            pa.repeat(pa.scalar(int(zone.wall_ms(one.base_instant_time))), len(keys)),
        ]
        made.append(pa.Table.from_arrays(columns, schema=RECORD_INDEX))
    return pa.concat_tables(made)


def _relocated(table: IndexedTable, wanted: pa.Table, held: pa.Table) -> PartitionContents:
    """Return what turns the held rows of a record index into the wanted ones."""
    wanted = distinct_keys(wanted, table)
    place = ("partition_path", "key") if table.is_per_partition else ("key",)
    new = _not_in(wanted, held, ("key", "partition_path", "file_id"))
    gone = _not_in(held, wanted, place)
    return PartitionContents(
        records=new,
        deletes=gone.select(DELETES.names).cast(DELETES),
    )


def _not_in(rows: pa.Table, other: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows whose values in some text columns are in no row of another table."""
    mine, theirs = (
        pc.binary_join_element_wise(*(one_array(each.column(name)) for name in columns), "\0")
        for each in (rows, other)
    )
    return rows.filter(pc.invert(pc.is_in(mine, value_set=theirs)))


def _pairs_of(rows: pa.Table, keys: pa.Array | None, partition: str) -> pa.Array:
    """Return the keys of a secondary index that belong to some record keys; None for all."""
    pairs = one_array(rows.column("key"))
    if keys is None:
        return pairs
    _, owners = split_secondary_keys(pairs, path=partition)
    return pairs.filter(pc.is_in(owners, value_set=keys))


def _joined(arrays: Iterable[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.string()), *arrays])


def merged_times(timeline: Stats, times: Iterable[InstantTime]) -> frozenset[InstantTime]:
    """
    Return those of some instants that the metadata table has in more than their own log files.

    A compaction merged them, or a partition was built after them. The base files of a build may
    contain commits that completed after the build's completion time, so the storage's times of change
    decide. An instant without a deltacommit is returned, too: it may be older than the metadata
    table.

    Args:
        timeline: The files of the metadata table's timeline.
        times: Requested times of instants that completed on the table.
    """
    own = ActiveTimeline.of([one.name for one in timeline])
    done = {one.requested_time: one for one in own.instants if one.completed}
    modified = {one.name: one.modified_ms for one in timeline}
    at = {time: modified[instant_file_name(one)] for time, one in done.items()}
    built = max((at[one] for one in done if one.startswith(BUILDING)), default=-1)
    merging = newest_merge(own)
    exact = {
        time
        for time in done.keys() & set(times)
        if at[time] > built and (done[time].completion_time or "") > merging
    }
    return frozenset(times) - exact
