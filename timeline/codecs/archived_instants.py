"""
The instants of the archived timeline: LSM parquet rows (format 8), and the archive of version 6.

`timeline/archived.py` decides which files to read or write, and when. In archives that Java
migrated from version 6, rows are not ascending (format 11.2); no code here relies on their order.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from timeline.codecs import avro_schemas as schemas
from timeline.codecs.archive_manifest import ArchivedInstant, damaged_archive
from timeline.codecs.avro_schemas import Schema
from timeline.codecs.instant_avro import (
    RecordReader,
    RecordWriter,
    corrupt_file_error,
    refuse_too_large,
)
from timeline.codecs.log_blocks import BlockType, BytesSource, LogBlock, iter_blocks, record_borders
from timeline.errors import InvalidInputError
from timeline.model.instant import Action

HISTORY_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
"""The largest file of the archived timeline, and its rows in memory, bytes."""

INSTANT_DIGITS: Final = re.compile(r"[0-9]{1,20}", re.ASCII)
_TIME_COLUMNS: Final = ("instantTime", "completionTime", "action")
_CONTENT_COLUMNS: Final = ("metadata", "plan")
_TIME_DIGITS_MAX: Final = 20
_BATCH_ROWS: Final = 256
_TIMES_ROWS: Final = 65_536
_TEXT: Final = {"type": "string", "avro.java.string": "String"}
# Java's reader takes the Avro types of the columns from this; the footer has nothing else.
_AVRO: Final = {
    "type": "record",
    "name": "HoodieLSMTimelineInstant",
    "namespace": "org.apache.hudi.avro.model",
    "fields": [
        *({"name": one, "type": ["null", _TEXT], "default": None} for one in _TIME_COLUMNS),
        *({"name": one, "type": ["null", "bytes"], "default": None} for one in _CONTENT_COLUMNS),
        {"name": "version", "type": "int", "default": 1},
    ],
}
_FOOTER: Final = {
    "parquet.avro.schema": json.dumps(_AVRO, separators=(",", ":")),
    "writer.model.name": "avro",
}
_ROW_LAYOUT: Final = 1
_SCHEMA: Final = pa.schema(
    [
        *(pa.field(one, pa.string()) for one in _TIME_COLUMNS),
        *(pa.field(one, pa.binary()) for one in _CONTENT_COLUMNS),
        pa.field("version", pa.int32(), nullable=False),
    ]
)


def encode_archived_instants(rows: Iterable[ArchivedInstant]) -> bytes:
    """Return one LSM parquet file with these archived instants, in their order; GZIP, as Java's."""
    columns = list(zip(*((*_values(row), _ROW_LAYOUT) for row in rows), strict=True))
    table = pa.table(
        [pa.array(values, each.type) for values, each in zip(columns, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )
    return _encoded(table.to_batches())


def merge_archive_files(files: Iterable[tuple[str, bytes]]) -> bytes:
    """
    Merge the rows of several files into one LSM parquet file, in their order.

    Args:
        files: Path, for errors, and bytes of each.

    Raises:
        CorruptTableError: One of them is damaged or has other columns.
    """

    def rows() -> Iterator[pa.RecordBatch]:
        for path, data in files:
            try:
                for batch in _batches(data, tuple(_SCHEMA.names)):
                    yield batch.select(_SCHEMA.names).cast(_SCHEMA)
            except (pa.ArrowException, LookupError, OSError, TypeError, ValueError) as failure:
                raise damaged_archive(
                    path, f"{type(failure).__name__}: {str(failure)[:200]}"
                ) from failure

    return _encoded(rows())


def _encoded(batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        _SCHEMA,
        compression="gzip",
        version="1.0",
        use_dictionary=False,
        store_schema=False,
        write_statistics=list(_TIME_COLUMNS),
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.add_key_value_metadata(_FOOTER)
    return sink.getvalue()


def _values(row: ArchivedInstant) -> tuple[str | bytes | None, ...]:
    return row.requested_time, row.completion_time, row.action, row.metadata, row.plan


def parse_archived_instants(
    data: bytes, *, path: str = "", times_only: bool = False
) -> tuple[ArchivedInstant, ...]:
    """
    Read the instants of one LSM parquet file, in the file's order.

    Args:
        data: The whole file.
        path: The file's name in errors.
        times_only: Read only requested time, completion time and action.

    Raises:
        CorruptTableError: the file is damaged, has other columns, or it or its rows in memory are
            larger than `HISTORY_BYTES_MAX`.
    """
    columns = _TIME_COLUMNS if times_only else _TIME_COLUMNS + _CONTENT_COLUMNS
    rows: list[ArchivedInstant] = []

    def take(batch: pa.RecordBatch) -> None:
        found: dict[str, list[Any]] = batch.to_pydict()
        rows.extend(_instant(*values) for values in zip(*map(found.get, columns), strict=True))

    _each_batch(data, path, columns, take)
    return tuple(rows)


def parse_archived_completions(data: bytes, *, path: str = "") -> dict[str, str]:
    """
    Return the completion time of each instant of one LSM parquet file, by requested time.

    It leaves out savepoints, which share their commit's requested time. An instant without a
    completion time completed when it was requested. Thousands of rows are read whenever files are
    older than the active timeline, so there is no loop over them. Arguments and errors: as
    ``parse_archived_instants``.
    """
    found: dict[str, str] = {}

    def take(batch: pa.RecordBatch) -> None:
        requested, completed, action = (batch[one].cast(pa.string()) for one in _TIME_COLUMNS)
        completed = pc.coalesce(completed, requested)
        if not (_are_times(requested) and _are_times(completed)):
            raise ValueError("an instant without time")
        kept = pc.fill_null(pc.not_equal(action, "savepoint"), fill_value=True)
        times = (each.filter(kept).to_pylist() for each in (requested, completed))
        found.update(zip(*times, strict=True))

    _each_batch(data, path, _TIME_COLUMNS, take, rows=_TIMES_ROWS)
    return found


def _each_batch(
    data: bytes,
    path: str,
    columns: tuple[str, ...],
    take: Callable[[pa.RecordBatch], None],
    *,
    rows: int = _BATCH_ROWS,
) -> None:
    """Pass every batch of a file to a function; refuse damage, and more bytes than allowed."""
    if len(data) > HISTORY_BYTES_MAX:
        raise damaged_archive(
            path, f"{len(data)} bytes are more than the allowed {HISTORY_BYTES_MAX}"
        )
    size_bytes = 0
    try:
        for batch in _batches(data, columns, rows=rows):
            size_bytes += batch.nbytes
            if size_bytes > HISTORY_BYTES_MAX:
                raise damaged_archive(
                    path, f"its rows exceed the allowed {HISTORY_BYTES_MAX} bytes"
                )
            take(batch)
    except (pa.ArrowException, ArithmeticError, LookupError, OSError, TypeError, ValueError) as e:
        raise damaged_archive(path, f"{type(e).__name__}: {str(e)[:200]}") from e


def _are_times(column: pa.StringArray) -> bool:
    """Return whether all are texts of 1 to 20 digits."""
    digits = pc.all(pc.ascii_is_decimal(column), skip_nulls=False, min_count=0).as_py()
    return bool(digits) and (pc.max(pc.binary_length(column)).as_py() or 0) <= _TIME_DIGITS_MAX


def _batches(
    data: bytes, columns: tuple[str, ...], *, rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        missing = set(columns) - set(file.schema_arrow.names)
        if missing:
            raise ValueError(f"columns missing: {sorted(missing)}")
        yield from file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False)


def _instant(
    requested_time: Any,
    completion_time: Any,
    action: Any,
    metadata: Any = None,
    plan: Any = None,
) -> ArchivedInstant:
    times = (requested_time, requested_time if completion_time is None else completion_time)
    if not all(isinstance(one, str) and INSTANT_DIGITS.fullmatch(one) for one in times):
        raise ValueError("an instant without time")
    if not isinstance(action, str) or not all(
        one is None or isinstance(one, bytes) for one in (metadata, plan)
    ):
        raise ValueError("an instant without action, or with content that is not bytes")
    return ArchivedInstant(
        requested_time=requested_time,
        completion_time=completion_time,
        action=action,
        metadata=metadata or None,
        plan=plan or None,
    )


# ---- The archived timeline of version 6: log files whose Avro records are states of instants
# Each state of an instant is a separate record (format 11.2). Only the completed one contains the
# result, so only that is returned, in the form in which later versions archive it. So callers need
# not know which version wrote an archived instant.

_LEGACY_NAME: Final = re.compile(
    r"\.commits_\.archive\.([0-9]{1,9})(?:_[0-9]+-[0-9]+-[0-9]+)?", re.ASCII
)
_TWO_INTS: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_CONTENT_VERSIONS: Final = (1, 2, 3)
_ENTRY: Final = "HoodieArchivedMetaEntry"
_TIME_FIELDS: Final = ("commitTime", "actionType", "actionState", "stateTransitionTime")

# : Completed action -> the field with its metadata, and that field's record.
_CONTENT: Final[Mapping[str, tuple[str, Schema]]] = {
    "commit": ("hoodieCommitMetadata", schemas.COMMIT_METADATA),
    "deltacommit": ("hoodieCommitMetadata", schemas.COMMIT_METADATA),
    "replacecommit": ("hoodieReplaceCommitMetadata", schemas.REPLACE_COMMIT_METADATA),
    "clean": ("hoodieCleanMetadata", schemas.CLEAN_METADATA),
    "rollback": ("hoodieRollbackMetadata", schemas.ROLLBACK_METADATA),
    "savepoint": ("hoodieSavePointMetadata", schemas.SAVEPOINT_METADATA),
}


def _entry(*fields: Schema) -> Schema:
    return {
        "type": "record",
        "name": _ENTRY,
        "namespace": schemas.NAMESPACE,
        "fields": list(fields),
    }


def _maybe(name: str, kind: Any) -> Schema:
    return {"name": name, "type": ["null", kind], "default": None}


_TIMES: Final = RecordReader(_entry(*(_maybe(name, "string") for name in _TIME_FIELDS)))
_READERS: Final = {
    action: RecordReader(_entry(_maybe(field, schema)))
    for action, (field, schema) in _CONTENT.items()
}
_WRITERS: Final = {action: RecordWriter(schema) for action, (_, schema) in _CONTENT.items()}


def archive_file_number(name: str) -> int | None:
    """Return the number of an archive file, which grows with time, or None for another file."""
    match = _LEGACY_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def parse_archive_file(
    data: bytes,
    *,
    path: str = "",
    times_only: bool = False,
    missed: Callable[[LogBlock], object] | None = None,
) -> tuple[ArchivedInstant, ...]:
    """
    Read the completed instants of one archive file, in the file's order.

    It skips a block at the end that a crash left torn: its instants are still active. It skips
    damage with whole blocks after it, as Java does, but its instants may be nowhere else.

    Args:
        data: The whole file.
        path: The file's name in errors.
        times_only: Read only requested time, completion time and action.
        missed: Receives every damaged region that is not at the end.

    Raises:
        CorruptTableError: the file is damaged or above `HISTORY_BYTES_MAX`.
    """
    refuse_too_large(data, path, HISTORY_BYTES_MAX)
    return tuple(
        instant
        for schema_text, record in _records(data, path, missed)
        if (instant := _completed(schema_text, record, path, times_only=times_only)) is not None
    )


def _records(
    data: bytes, path: str, missed: Callable[[LogBlock], object] | None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield every record with its writer's schema."""
    corrupt: LogBlock | None = None
    for block in iter_blocks(BytesSource(data), len(data), path=path):
        if corrupt is not None and missed is not None:
            missed(corrupt)
        corrupt = block if block.block_type is BlockType.CORRUPT else None
        if block.block_type is not BlockType.AVRO_DATA:
            continue
        schema_text = block.schema_json.encode()
        content = data[block.content_offset : block.content_offset + block.content_length]
        if len(content) < _TWO_INTS.size:
            raise corrupt_file_error(path, "a block lacks the number of its records")
        content_version, count = _TWO_INTS.unpack_from(content)
        if content_version not in _CONTENT_VERSIONS:
            raise corrupt_file_error(path, f"records of version {content_version}")
        records = content[_TWO_INTS.size :]
        borders = record_borders(records, count, path=path).tolist()
        for begin, end in itertools.pairwise(borders):
            yield schema_text, records[begin + _INT.size : end]


def _completed(
    schema_text: bytes, record: bytes, path: str, *, times_only: bool
) -> ArchivedInstant | None:
    times = _TIMES.read_bare(record, schema_text=schema_text, path=path)
    requested, action, state, completed = (times[name] for name in _TIME_FIELDS)
    if state not in (None, "COMPLETED"):  # the oldest releases archived no other state
        return None
    completed = completed or requested
    if not all(
        isinstance(one, str) and INSTANT_DIGITS.fullmatch(one) for one in (requested, completed)
    ):
        raise corrupt_file_error(path, "an archived instant without time")
    if action not in _ACTIONS:
        raise corrupt_file_error(path, f"an archived instant has an unknown action: {action!r}")
    action = _ACTIONS[action]
    return ArchivedInstant(
        requested_time=requested,
        completion_time=completed,
        action=action,
        metadata=None if times_only else _metadata(action, schema_text, record, path),
    )


_ACTIONS: Final = {one.value: one.completes_as.value for one in Action}


def _metadata(action: str, schema_text: bytes, record: bytes, path: str) -> bytes | None:
    """Return the content of a completed file of a later version."""
    if action not in _CONTENT:
        return None
    content = _READERS[action].read_bare(record, schema_text=schema_text, path=path)
    content_record = content[_CONTENT[action][0]]
    if content_record is None:
        return None
    try:
        return _WRITERS[action].write(content_record)
    except InvalidInputError as failure:
        raise corrupt_file_error(path, failure.message) from failure
