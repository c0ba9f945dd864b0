"""
Write rows that only move: a clustering's base files, commit times kept.

A name is a function of the plan (CMP-2), and a file is created whole or not at all: two
executors of one plan, one of them taken for dead, make the same file. What is there already
is adopted.
"""

from __future__ import annotations

import pyarrow as pa

from filegroups.files.bloom import BloomFilter
from filegroups.files.parquet import base_file_bytes, read_footer
from filegroups.files.rewrite import FileGroupTask, full_rows
from filegroups.schema.schema import KEY_COLUMN, TableSchema
from timeline.commit.markers import create_marker
from timeline.errors import StorageUnavailableError
from timeline.model.file_names import IOType, join
from timeline.ports.storage import AmbiguousWriteError, ObjectExistsError, Storage

__all__ = ["write_clustered_file"]


def write_clustered_file(storage: Storage, task: FileGroupTask, rows: pa.Table) -> int:
    """
    Write one base file, or adopt it where it is; returns its size in bytes.

    Holds the file in memory, as it is stored.

    Args:
        storage: Where the table lies.
        task: The file: place, name, schema, layout.
        rows: Commit time, sequence number, record key, then the table's own columns.

    Raises:
        CorruptTableError: What is there under the name is no base file of so many rows.
        StorageUnavailableError: The storage failed; a marker may remain, by which a cancel
            finds what was written.

    Outside: 1 create (marker) and 1 create; 1 open_input and 1 stat when the file is there.
    """
    path = join(task.partition_path, task.file_name)
    schema = TableSchema.from_avro(task.avro_json).arrow
    data = base_file_bytes(
        full_rows(rows, task, schema, task.file_name),
        avro_json=task.avro_json,
        bloom=_bloom(task, rows),
        settings=task.parquet,
    )
    create_marker(storage, task.requested_time, task.partition_path, task.file_name, IOType.CREATE)
    try:
        storage.create(path, data)
    except ObjectExistsError:
        return _adopted(storage, path, rows.num_rows)
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; run the service again: {path}", path=path
        ) from error
    return len(data)


def _bloom(task: FileGroupTask, rows: pa.Table) -> BloomFilter | None:
    if task.bloom is None or not task.stores_keys:
        return None
    made = BloomFilter(task.bloom.fitted(rows.num_rows))
    made.add(rows.column(KEY_COLUMN))
    return made


def _adopted(storage: Storage, path: str, rows: int) -> int:
    found = read_footer(storage, path).rows
    stat = storage.stat(path)
    if stat is None or found != rows:
        raise StorageUnavailableError(
            f"a file of the plan vanished or has other rows, cancel the plan and plan anew: {path}",
            path=path,
        )
    return stat.size_bytes
