"""
Write rows that only move: a compaction's or a clustering's base file, commit times kept.

Its name is a function of the plan (CMP-2), so a second executor of the plan makes the same
file. What is there already and whole is adopted; what an executor that died left torn is
made anew.
"""

from __future__ import annotations

import pyarrow as pa

from timeline.codecs.bloom import BloomFilter
from timeline.errors import CorruptTableError, MissingFileError, StorageUnavailableError
from timeline.files.markers import create_marker
from timeline.files.parquet import read_footer, write_base_file
from timeline.files.rewrite import FileGroupTask, placed_rows
from timeline.model.filenames import IOType
from timeline.model.paths import join
from timeline.model.schema import TableSchema
from timeline.ports.storage import ObjectExistsError, Storage

__all__ = ["write_moved_rows"]

_KEY = "_hoodie_record_key"
_TRIES = 3


def write_moved_rows(storage: Storage, task: FileGroupTask, rows: pa.Table) -> int:
    """
    Write one base file, or adopt it where it is; returns its size in bytes.

    Args:
        storage: Where the table lies.
        task: The file: place, name, schema, layout.
        rows: Commit time, sequence number, record key, then the table's own columns.

    Raises:
        StorageUnavailableError: The storage failed, or another executor works on the file; a
            marker may remain, by which a cancel finds what was written.

    Outside: 1 create (marker), 1 open_output; 1 open_input, 1 stat and perhaps 1 delete when
    the file is there. The caller makes the name durable (``sync_folders``).
    """
    path = join(task.partition_path, task.file_name)
    io_type = IOType.CREATE if task.base_path is None else IOType.MERGE
    create_marker(storage, task.requested_time, task.partition_path, task.file_name, io_type)
    for _ in range(_TRIES):
        try:
            return write_base_file(
                storage,
                path,
                placed_rows(
                    rows, task, TableSchema.from_avro(task.avro_json).arrow, task.file_name
                ),
                avro_json=task.avro_json,
                bloom=_bloom(task, rows),
                settings=task.parquet,
            )
        except ObjectExistsError:
            whole = _adopted(storage, path, rows.num_rows)
            if whole is not None:
                return whole
            storage.delete(path)
    raise StorageUnavailableError(
        "another executor of the same plan writes this file; leave the plan to it or run the "
        f"service again: {path}",
        path=path,
    )


def _bloom(task: FileGroupTask, rows: pa.Table) -> BloomFilter | None:
    if task.bloom is None or not task.stores_keys:
        return None
    made = BloomFilter(task.bloom.fitted(rows.num_rows))
    made.add(rows.column(_KEY))
    return made


def _adopted(storage: Storage, path: str, rows: int) -> int | None:
    """The size of a file that has all the rows; None when it is torn or of other rows."""
    try:
        if read_footer(storage, path).rows != rows:
            return None
    except (CorruptTableError, MissingFileError):
        return None
    stat = storage.stat(path)
    return None if stat is None else stat.size_bytes
