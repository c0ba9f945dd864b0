"""
The record index in a table's metadata table: the file group of each key.

Java Hudi maintains it in ``.hoodie/metadata/record_index``, itself merge-on-read: HFile base files
with logs of HFile and delete blocks, spread over file groups by the key's hash. hoodoo only reads
it, because it does not write a table whose metadata table is on. A block counts if its instant is
completed in the metadata table and not pending in the table itself.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.avro_columns import decode_datums
from filegroups.files.blocks import VisibleInstants, opened, read_blocks
from filegroups.files.delete_block import decode_deletes
from filegroups.files.hfile import open_hfile
from filegroups.keys.insert_buckets import rows_by_number
from filegroups.keys.java_hashes import java_hashes
from filegroups.schema.casting import uuid_texts
from filegroups.schema.columns import distinct_codes, one_array
from filegroups.schema.schema import KEY_COLUMN
from timeline.codecs.log_blocks import BlockType, ByteSource, BytesSource, LogBlock
from timeline.errors import UnsupportedTableError
from timeline.layout import METADATA_TABLE
from timeline.model.file_names import BaseFile, FileSlice, LogFile, parse_instant_name
from timeline.model.table_config import TableConfig
from timeline.model.write_set import FileGroupId
from timeline.ports.storage import Storage
from timeline.rules.file_slices import slice_files
from timeline.snapshot import Snapshot
from timeline.system import NullEvents

__all__ = ["RecordIndex", "has_record_index", "open_record_index"]

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
            f"the record index lacks some of its file groups: {sorted(shards)}",
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
            f"partition apart: {group.file_id}",
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
            f"the record index has a block of another kind: {block.path}",
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
    rows = file.look_up(sorted(key.encode() for key in keys.to_pylist()))
    if not rows.num_rows:
        return _LAYER.empty_table()
    schema = file.info.get(b"schema")
    if schema is None:
        raise UnsupportedTableError(
            f"a file of the record index tells no schema: {path}", kind="record_index", path=path
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
