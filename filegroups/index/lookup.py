"""Lookup indexes: find record keys in base files and logs, by partition or table-wide."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import decode_datums
from filegroups.files.bloom import BloomFilter
from filegroups.files.delete_block import decode_deletes
from filegroups.files.hfile import open_hfile
from filegroups.files.log_files import VisibleInstants, opened, read_blocks
from filegroups.files.parquet import (
    Footer,
    read_base_file,
    read_keys,
    read_keys_between,
    read_keys_if,
    read_virtual_keys,
)
from filegroups.files.slice_reader import read_slice
from filegroups.index import IndexedFile, LookupRules, SliceWithLogs
from filegroups.keys.bucketing import java_hashes
from filegroups.keys.keys import key_range
from filegroups.merge.rules import not_below, ordering_column
from filegroups.reading.file_system_view import FileSystemView
from filegroups.schema.casting import (
    codes_of,
    distinct_codes,
    one_array,
    rows_by_number,
    uuid_texts,
)
from filegroups.schema.schema import KEY_COLUMN, PARTITION_COLUMN
from timeline.codecs.log_blocks import BlockType, ByteSource, BytesSource, LogBlock
from timeline.context import TableContext
from timeline.errors import CorruptTableError, UnsupportedTableError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import (
    METADATA_TABLE,
    BaseFile,
    FileSlice,
    LogFile,
    parse_instant_name,
    slice_files,
)
from timeline.model.instant import InstantTime
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Executor, Storage
from timeline.snapshot import Snapshot
from timeline.system import NullEvents
from timeline.truncation import read_truncation_point

# ---- Keys and rows of a file group
#
# The base file alone has them, unless log files with keys that count belong to it. Then the slice
# is merged as for a read, with only the columns needed.


def file_group_keys(storage: Storage, file: IndexedFile) -> pa.ChunkedArray:
    """
    Return the record keys of a file group.

    Raises:
        MissingFileError: A file is missing.
        CorruptTableError: A file is damaged or has no record keys.

    Outside: 1 open_input; those of ``read_slice`` if logs count.
    """
    if file.merged is not None:
        return file_group_rows(storage, file, pa.schema([])).column(0)
    if file.virtual_keys is not None:
        return read_virtual_keys(storage, file.path, file.virtual_keys)
    return read_keys(storage, file.path)


def file_group_rows(
    storage: Storage, file: IndexedFile, schema: pa.Schema, ordering: Sequence[str] = ()
) -> pa.Table:
    """
    Return the record keys of a file group and its rows' ordering values.

    Args:
        storage: Storage of the table.
        file: The file group.
        schema: Has the columns of the ordering fields, in the types of the result.
        ordering: The fields; a dotted name is a field inside a struct.

    Errors as ``file_group_keys``. Outside: 2 open_input; those of ``read_slice`` if logs count.
    """
    heads = dict.fromkeys(name.partition(".")[0] for name in ordering)
    wanted = pa.schema([schema.field(name) for name in heads])
    if file.merged is not None:
        rows = _merged(storage, file.merged)
        read = file.merged.read
        keys = (
            rows.column(KEY_COLUMN) if read.keys is None else pa.chunked_array([read.keys.of(rows)])
        )
        rows = rows.select(wanted.names).cast(wanted)
    else:
        keys = file_group_keys(storage, file)
        if not ordering:
            return pa.table([keys], names=[KEY_COLUMN])
        rows = read_base_file(storage, file.path, schema=wanted)
    values = [ordering_column(rows, name) for name in ordering]
    return pa.table([keys, *values], names=[KEY_COLUMN, *ordering])


def _merged(storage: Storage, merged: SliceWithLogs) -> pa.Table:
    # Corrupt blocks hold nothing that was committed; reads of the table report them.
    batches = read_slice(storage, NullEvents(), merged.slice, merged.read)
    return pa.Table.from_batches(list(batches), schema=merged.read.output_schema)


# ---- Find keys in the key columns of base files
#
# These indexes store nothing, so they are never outdated, whatever other engine writes. SIMPLE
# skips files whose key range does not overlap the batch's, and reads the key column of all others.
# BLOOM first checks each key against the footer's range and bloom filter, and reads only files that
# may hold one. Each worker reads one file at a time.

_SURROGATES = 0xEE  # from this byte on, UTF-8 and Java's UTF-16 may order keys differently


def tag(
    storage: Storage,
    executor: Executor,
    base_files: Mapping[str, Sequence[IndexedFile]],
    keys: pa.Array | pa.ChunkedArray,
    partition_paths: pa.Array | pa.ChunkedArray,
    *,
    filters: bool = False,
) -> pa.Array:
    """
    Return the file id of each row, null for a new record.

    If several file groups hold a key (after plain inserts), the first candidate gets the row.

    Args:
        storage: Storage of the table.
        executor: Reads several files in parallel.
        base_files: Candidates by partition path, the preferred ones first.
        keys: Record keys of the rows; may repeat.
        partition_paths: The partition of each row; a key is looked for there only.
        filters: Whether to check ranges and bloom filters of footers before keys are read.

    Shapes: keys (n,), partition_paths (n,) -> file ids (n,), null = a new record.

    Raises:
        MissingFileError: A candidate was cleaned since; plan again.
        CorruptTableError: A candidate is damaged.

    Outside: at most 1 open_input a candidate file; the files of a slice whose logs count.
    """
    file_ids: list[str] = []
    lookups: list[_Lookup] = []
    rows_of: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]] = []
    path_codes, paths = codes_of(partition_paths)
    for code, rows in rows_by_number(path_codes).items():
        files = base_files.get(paths[code], ())
        if not files:
            continue
        mine = keys if len(rows) == len(keys) else keys.take(pa.array(rows))
        codes, distinct = distinct_codes(mine)
        limits = key_range(distinct)
        if limits is None:
            continue
        for each in files:
            lookups.append(_Lookup(each, distinct, limits, len(rows_of), len(file_ids)))
            file_ids.append(each.file_id)
        rows_of.append((rows, codes))
    found = np.full(len(keys), -1, np.int64)
    find = partial(_find_keys_by_filter if filters else _find_keys, storage)
    for lookup, hits in zip(lookups, executor.map(find, lookups), strict=True):
        rows, codes = rows_of[lookup.group]
        inside = np.zeros(len(lookup.keys), np.bool_)
        inside[hits] = True
        here = rows[inside[codes]]
        here = here[found[here] < 0]
        found[here] = lookup.number
    indices = pa.array(found, mask=found < 0)
    return pa.array(file_ids, pa.string()).take(indices)


@dataclass(frozen=True, slots=True)
class _Lookup:
    file: IndexedFile
    keys: pa.Array  # distinct keys of one partition's rows
    limits: tuple[str, str]
    group: int
    number: int


def _find_keys(storage: Storage, lookup: _Lookup) -> npt.NDArray[np.intp]:
    """Return the positions in ``lookup.keys`` of the keys in the file."""
    file = lookup.file
    if file.virtual_keys is not None or file.merged is not None:
        return _positions(file_group_keys(storage, file), lookup.keys)
    held = read_keys_between(storage, file.path, *lookup.limits)
    return _positions(held, lookup.keys)


def _find_keys_by_filter(storage: Storage, lookup: _Lookup) -> npt.NDArray[np.intp]:
    """Do the same, but read the file's keys only if its footer does not exclude them all."""
    if lookup.file.virtual_keys is not None or lookup.file.merged is not None:
        return _find_keys(storage, lookup)
    held = read_keys_if(storage, lookup.file.path, partial(may_contain_any, lookup.keys))
    return _positions(held, lookup.keys)


def _positions(held: pa.ChunkedArray | None, keys: pa.Array) -> npt.NDArray[np.intp]:
    if held is None:
        return np.zeros(0, np.intp)
    positions = pc.drop_null(pc.index_in(held, value_set=keys))
    return np.asarray(positions).astype(np.intp)


def may_contain_any(keys: pa.Array, footer: Footer) -> bool:
    """Return whether a base file may hold one of the keys; False is certain. Shapes: keys (n,)."""
    inside = _within(keys, footer)
    if footer.bloom_base64 is None or len(inside) == 0:
        return len(inside) > 0
    try:
        held = BloomFilter.load(footer.bloom_base64, footer.bloom_kind)
    except CorruptTableError:
        return True  # an old format: read the keys instead
    return bool(held.may_contain(inside).any())


def _within(keys: pa.Array, footer: Footer) -> pa.Array:
    """Return the keys in the file's range; all keys if byte order may differ from Java's."""
    limits = (footer.key_min, footer.key_max)
    if footer.rows == 0:
        return keys.slice(0, 0)
    if limits[0] is None or limits[1] is None:
        return keys
    data = keys.buffers()[2]
    texts = (data or b"", *(limit.encode() for limit in limits if limit is not None))
    if any(np.frombuffer(text, np.uint8).max(initial=0) >= _SURROGATES for text in texts):
        return keys
    inside = pc.and_(pc.greater_equal(keys, limits[0]), pc.less_equal(keys, limits[1]))
    return keys.filter(inside)


# ---- The global lookup: a key is unique in the whole table
#
# A row whose key exists in another partition either moves there or updates the old row in its
# partition. A row that does not replace the old row must not move it: a late row in event-time
# order, and a delete. Such a row goes to the old row's file group, where the merge decides.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTargets:
    """The file group of each row, and the rows that leave another file group for it."""

    partition_paths: pa.Array  # of each row's file group
    file_ids: pa.Array  # null for a row that is new there
    relocated: Mapping[FileGroupId, npt.NDArray[np.intp]]  # positions of rows that leave it


def find_in_table(
    storage: Storage,
    executor: Executor,
    base_files: Mapping[str, Sequence[IndexedFile]],
    rows: pa.Table,
    rules: LookupRules,
    *,
    ordering_fields: Sequence[str] = (),
    deletes: npt.NDArray[np.bool_] | None = None,
) -> RowTargets:
    """
    Find each row's file group in the whole table.

    Args:
        storage: Storage of the table.
        executor: Reads several files in parallel.
        base_files: The newest base file of every file group, by partition path.
        rows: With record key, partition path and the ordering fields; keys are unique.
        rules: How to look keys up, and whether rows move.
        ordering_fields: Compared left to right if they decide; empty in commit-time order.
        deletes: Rows that delete; they never move.

    Shapes: rows (n), deletes (n,) -> (n,) each.

    Raises:
        MissingFileError: A candidate was cleaned since; plan again.
        CorruptTableError: A candidate is damaged.

    Outside: at most 1 open_input a file, 1 more for files of moving rows if order decides.
    """
    files = [(path, each) for path, some in base_files.items() for each in some]
    keys, own_paths = (
        rows.column(KEY_COLUMN),
        one_array(pc.cast(rows.column(PARTITION_COLUMN), pa.string())),
    )
    everything = [replace(each, file_id=str(number)) for number, (_, each) in enumerate(files)]
    one_place = pa.repeat(pa.scalar(""), rows.num_rows)
    found = tag(storage, executor, {"": everything}, keys, one_place, filters=rules.filters)
    numbers = pc.cast(found, pa.int64())
    where = pa.array([path for path, _ in files], pa.string()).take(numbers)
    file_ids = pa.array([each.file_id for _, each in files], pa.string()).take(numbers)
    elsewhere = np.asarray(pc.fill_null(pc.not_equal(where, own_paths), False)).astype(np.bool_)
    moving = elsewhere & np.bool_(rules.moves_rows)
    if deletes is not None:
        moving &= ~deletes
    leaving: dict[FileGroupId, npt.NDArray[np.intp]] = {}
    placed = np.asarray(pc.fill_null(numbers, -1)).astype(np.int64)
    candidates = np.flatnonzero(moving)
    for number, part in rows_by_number(placed[candidates]).items():
        path, file = files[number]
        positions = candidates[part]
        if ordering_fields:
            newer = _replaces(storage, file, rows.take(pa.array(positions)), ordering_fields)
            moving[positions[~newer]] = False
            positions = positions[newer]
        if len(positions):
            leaving[FileGroupId(path, file.file_id)] = positions
    stays = pa.array(elsewhere & ~moving)
    return RowTargets(
        partition_paths=pc.if_else(stays, where, own_paths),
        file_ids=pc.if_else(pa.array(moving), pa.scalar(None, pa.string()), file_ids),
        relocated=leaving,
    )


def _replaces(
    storage: Storage, file: IndexedFile, rows: pa.Table, ordering_fields: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Return which rows are not older than the rows of their keys in a base file."""
    held = file_group_rows(storage, file, rows.schema, ordering_fields)
    older = held.take(pc.index_in(rows.column(KEY_COLUMN), value_set=held.column(KEY_COLUMN)))
    newer = [ordering_column(rows, name) for name in ordering_fields]
    return not_below(newer, older.columns[1:])


# ---- Slices whose logs may hold a key that their base file lacks (CMP-4)
#
# A key that a log deleted stays in the file group until a compaction removes it. A write that began
# before that compaction completed still finds the key there and writes it again, to a log on the
# new base file. From then on no base file has the key. An index that reads base files only would
# insert it a second time.


def may_resurrect(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice]
) -> Iterator[FileSlice]:
    """
    Yield the slices with a log that began before their base file existed.

    Outside: nothing while the base files' instants are on the active timeline; else 1 list, 1 get,
    and the archived timeline for a log that began before the newest archived instant completed.
    """
    archived: InstantTime | None = None
    for one in slices:
        if one.base_file is None or not one.log_files:
            continue
        began = min(log.instant_time for log in one.log_files)
        base_time = one.base_file.requested_time
        completed = view.snapshot.completions.get(base_time)
        if completed is None:
            if archived is None:
                archived = read_truncation_point(context.ports.storage).time
            if archived and began >= archived:
                continue
            completed = view.snapshot.archived.completions.get(base_time)
        if completed is not None and began < completed:
            yield one


# ---- The record index in a table's metadata table: the file group of each key
# Java Hudi maintains it in ``.hoodie/metadata/record_index``, itself merge-on-read: HFile base files
# with logs of HFile and delete blocks, spread over file groups by the key's hash. hoodoo only reads
# it, because it does not write a table whose metadata table is on. A block counts if its instant is
# completed in the metadata table and not pending in the table itself.

PARTITION: Final = "record_index"
_FOLDER: Final = f"{METADATA_TABLE}/{PARTITION}"
_TIMELINE: Final = f"{METADATA_TABLE}/.hoodie/timeline"
_BASE = re.compile(r"([^._/\\]+)_(\d+-\d+-\d+)_(\d{14}|\d{17})\.hfile", re.ASCII)
_SHARD = re.compile(r"record-index-(\d{4,})-0", re.ASCII)

_LOCATION: Final = pa.struct(
    [
        pa.field("partitionName", pa.string()),
        pa.field("fileIdHighBits", pa.int64()),
        pa.field("fileIdLowBits", pa.int64()),
        pa.field("fileIndex", pa.int32()),
        pa.field("fileId", pa.string()),
        pa.field("fileIdEncoding", pa.int32()),
    ]
)
_FIELD: Final = "recordIndexMetadata"
_LAYER: Final = pa.schema(
    [
        pa.field("record_key", pa.string()),
        pa.field("partition_path", pa.string()),
        pa.field("file_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIndex:
    """The index as of one snapshot. ``shards`` are its file groups' slices, by number."""

    storage: Storage
    visible: Container[str]  # instants of the metadata table whose blocks count
    shards: tuple[FileSlice, ...]

    def locate(self, keys: pa.Array | pa.ChunkedArray) -> pa.Table:
        """
        Return the file groups of keys; unknown keys are left out.

        Shapes: keys (n,), distinct -> columns ``record_key``, ``partition_path``, ``file_id`` (at
        most n,), in no order.

        Raises:
            CorruptTableError: A file of the index is damaged.
            MissingFileError: A file was deleted since; open the index again.
            UnsupportedTableError: This release does not read the index's version.

        Outside: 1 open_input for each file of the shards that the keys belong to.
        """
        one = one_array(pc.cast(keys, pa.string()))
        if not self.shards or not len(one):
            return _LAYER.empty_table()
        # As in Java: abs(abs(hash) % count), and abs of the least number is that number.
        hashes = np.abs(java_hashes(one).view(np.int32).astype(np.int64))
        numbers = hashes % len(self.shards)
        parts = [
            self._in_shard(self.shards[number], one.take(pa.array(rows)))
            for number, rows in rows_by_number(numbers).items()
        ]
        return pa.concat_tables(parts)

    def _in_shard(self, shard: FileSlice, keys: pa.Array) -> pa.Table:
        layers = [_LAYER.empty_table()]
        if shard.base_file is not None:
            path = shard.base_file.path
            with opened(self.storage, path) as source:
                layers.append(_entries(source, shard.base_file.size_bytes, keys, path))
        layers += read_blocks(
            self.storage,
            NullEvents(),
            shard.log_files,
            self.visible,
            partial(_changes, keys),
            base_time=shard.base_file.requested_time if shard.base_file is not None else None,
        )
        return _newest(pa.concat_tables(layers))


def has_record_index(config: TableConfig) -> bool:
    """Return whether the record index is complete and maintained, by the table's properties."""
    built = config.raw.get("hoodie.table.metadata.partitions", "")
    return PARTITION in (one.strip() for one in built.split(","))


def open_record_index(
    storage: Storage, config: TableConfig, snapshot: Snapshot
) -> RecordIndex | None:
    """
    Return the record index of a table; None if there is no complete one.

    The result is valid only if ``has_record_index`` still holds after the lookup.

    Args:
        storage: Storage of the table.
        config: Its configuration, which lists the built parts of the metadata table.
        snapshot: Its pending instants do not count, even if completed in the metadata table.

    Raises:
        UnsupportedTableError: The index is partitioned, one for each partition.

    Outside: 2 lists.
    """
    if not has_record_index(config):
        return None
    completions: dict[str, str] = {}
    for name in storage.names(_TIMELINE):
        instant = parse_instant_name(name)
        if instant is not None and instant.completion_time is not None:
            completions[instant.requested_time] = instant.completion_time
    pending = {instant.requested_time for instant in snapshot.active.pending}
    newest = max((one.requested_time for one in snapshot.active.instants), default="")
    # Instants that began after the snapshot may have moved keys that it has elsewhere.
    visible = frozenset(time for time in completions if time <= newest) - pending
    counting = VisibleInstants(times=visible, archived_below=min(completions, default=None))
    bases, logs = [], []
    for entry in storage.list(_FOLDER):
        base = _BASE.fullmatch(entry.name)
        log = LogFile.found(_FOLDER, entry.name, entry.size_bytes)
        if base is not None and base[3] in counting:
            bases.append(
                BaseFile(
                    file_group=FileGroupId(_FOLDER, base[1]),
                    name=entry.name,
                    requested_time=base[3],
                    size_bytes=entry.size_bytes,
                )
            )
        elif log is not None and log.instant_time in counting:
            logs.append(log)
    slices = slice_files(bases, logs, completion_of=completions.get)
    shards = {_shard(group): some[-1] for group, some in slices.items() if some}
    if sorted(shards) != list(range(len(shards))):
        raise UnsupportedTableError(
            "the record index lacks some of its file groups: use another index "
            f"(hoodie.index.type), or let Java Hudi build the index again: {sorted(shards)}",
            kind="record_index",
            path=_FOLDER,
        )
    if not shards:
        return None  # switched off just now; or version 6, with another timeline folder
    return RecordIndex(
        storage=storage,
        visible=counting,
        shards=tuple(shards[number] for number in sorted(shards)),
    )


def _shard(group: FileGroupId) -> int:
    found = _SHARD.fullmatch(group.file_id)
    if found is None:
        raise UnsupportedTableError(
            "this release reads a record index of the whole table, and this one is kept for each "
            f"partition: use another index (hoodie.index.type): {group.file_id}",
            kind="record_index",
            path=_FOLDER,
        )
    return int(found[1])


def _changes(keys: pa.Array, block: LogBlock, content: bytes) -> pa.Table:
    """Return the locations of some keys in a log block."""
    if block.block_type is BlockType.HFILE_DATA:
        return _entries(BytesSource(content), len(content), keys, block.path)
    if block.block_type is not BlockType.DELETE:
        raise UnsupportedTableError(
            "the record index has a block of an unknown kind: use another index "
            f"(hoodie.index.type), or let Java Hudi build the index again: {block.path}",
            kind="record_index",
            path=block.path,
        )
    gone = decode_deletes(content, path=block.path).column(KEY_COLUMN)
    nowhere = pa.nulls(len(gone), pa.string())
    layer = pa.table([gone, nowhere, nowhere], schema=_LAYER)
    return layer.filter(pc.is_in(gone, value_set=keys))


def _entries(source: ByteSource, size_bytes: int, keys: pa.Array, path: str) -> pa.Table:
    """Return the locations of some keys in an HFile."""
    file = open_hfile(source, size_bytes, path=path)
    rows = file.get_rows(sorted(key.encode() for key in keys.to_pylist()))
    if not rows.num_rows:
        return _LAYER.empty_table()
    schema = file.info.get(b"schema")
    if schema is None:
        raise UnsupportedTableError(
            "a file of the record index has no schema: use another index (hoodie.index.type), or "
            f"let Java Hudi build the index again: {path}",
            kind="record_index",
            path=path,
        )
    values = rows.column("value").combine_chunks()
    shape = pa.schema([pa.field(_FIELD, _LOCATION)])
    found = decode_datums(values, schema.decode("utf-8", "replace"), shape, path=path)
    names = pc.cast(rows.column("key"), pa.string())
    where = found.column(_FIELD).combine_chunks()
    paths = pc.struct_field(where, "partitionName")
    # "." is the base folder of a table without partitions.
    paths = pc.if_else(pc.equal(paths, "."), "", paths)
    return pa.table([names, paths, _file_ids(where)], schema=_LAYER)


def _file_ids(where: pa.StructArray) -> pa.Array:
    """Return file ids as texts; most are stored as the two halves of a UUID and a number."""
    whole = pc.struct_field(where, "fileId")
    halves = [
        np.asarray(pc.fill_null(pc.struct_field(where, name), 0)).astype(">i8").view("u1")
        for name in ("fileIdHighBits", "fileIdLowBits")
    ]
    octets = np.concatenate([half.reshape(len(where), 8) for half in halves], axis=1)
    buffers = [None, pa.py_buffer(octets)]
    texts = uuid_texts(pa.Array.from_buffers(pa.binary(16), len(where), buffers))
    numbers = pc.struct_field(where, "fileIndex")
    counted = pc.binary_join_element_wise(texts, pc.cast(numbers, pa.string()), "-")
    made = pc.if_else(pc.greater_equal(numbers, 0), counted, texts)
    raw = pc.equal(pc.struct_field(where, "fileIdEncoding"), 1)
    return pc.if_else(pc.fill_null(raw, False), whole, made)


def _newest(layers: pa.Table) -> pa.Table:
    """Return the newest location of each key; deleted keys are left out."""
    codes, keys = distinct_codes(layers.column("record_key"))
    last = np.zeros(len(keys), np.int64)
    last[codes] = np.arange(len(codes))
    rows = layers.take(pa.array(last))
    return rows.filter(pc.is_valid(rows.column("file_id")))
