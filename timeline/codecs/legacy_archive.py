"""
The archived timeline of version 6: log files whose Avro records are states of instants.

Each state of an instant is a separate record (format 11.2). Only the completed one contains the
result, so only that is returned, in the form in which later versions archive it. So callers need
not know which version wrote an archived instant.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from timeline.codecs import avro_schemas as schemas
from timeline.codecs.archived_instants import HISTORY_BYTES_MAX, INSTANT_DIGITS, ArchivedInstant
from timeline.codecs.avro_container import (
    RecordReader,
    RecordWriter,
    corrupt_file_error,
    refuse_too_large,
)
from timeline.codecs.avro_frames import record_borders
from timeline.codecs.avro_schemas import Schema
from timeline.codecs.log_blocks import BlockType, BytesSource, LogBlock, iter_blocks
from timeline.errors import InvalidInputError
from timeline.model.instant import Action

__all__ = ["archive_file_number", "parse_archive_file"]

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
            raise corrupt_file_error(path, "a block without the number of its records")
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
        raise corrupt_file_error(path, f"an archived instant of no known action: {action!r}")
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
    told = content[_CONTENT[action][0]]
    if told is None:
        return None
    try:
        return _WRITERS[action].write(told)
    except InvalidInputError as failure:
        raise corrupt_file_error(path, failure.message) from failure
