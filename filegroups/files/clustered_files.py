"""
Write rows that only move: a clustering's base files, with their commit times.

The file name follows from the plan (CMP-2), and a file is created whole or not at all. So two
executors of one plan, one of which seemed dead, create the same file. An existing file is adopted.
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
from timeline.ports.storage import Storage, create_if_absent

__all__ = ["write_clustered_file"]


def write_clustered_file(storage: Storage, task: FileGroupTask, rows: pa.Table) -> int:
    """
    Write one base file, or adopt an existing one; return its size in bytes.

    The encoded file is in memory.

    Args:
        storage: Storage of the table.
        task: The file: path, name, schema, layout.
        rows: Commit time, sequence number, record key, then the table's own columns.

    Raises:
        CorruptTableError: The existing file of that name is not a base file.
        StorageUnavailableError: The storage failed, or the existing file has another number of
            rows; a marker may remain, by which a cancel finds what was written.

    Outside: 1 create (marker) and 1 create; 1 open_input and 1 stat if the file exists.
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
    if create_if_absent(storage, path, data, repeat="run the service again"):
        return len(data)
    return _adopted(storage, path, rows.num_rows)


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
