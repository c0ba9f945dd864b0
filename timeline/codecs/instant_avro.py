"""
Instant files to values and back: commit metadata, plans and results of services (format 3).

The Avro schema itself drives the conversion. A record becomes the value class of its name,
`camelCase` becomes `snake_case`, arrays become tuples, and null becomes the value's own default,
which is Hudi's meaning of an absent counter. Maps are written in key order, so equal values give
equal bytes in any order of construction (SLOT-5).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from timeline.codecs import avro_schemas as schemas
from timeline.codecs.avro_container import BYTES_MAX, RecordReader, RecordWriter, corrupt_file_error
from timeline.codecs.avro_schemas import Schema
from timeline.errors import CorruptTableError
from timeline.model import plans
from timeline.model.commit_metadata import CommitMetadata, RuntimeStats, WriteStat

__all__ = [
    "decode_bare_clean",
    "decode_bare_commit",
    "decode_bare_rollback",
    "decode_clean",
    "decode_clean_plan",
    "decode_commit",
    "decode_compaction_plan",
    "decode_requested_replace",
    "decode_restore",
    "decode_restore_plan",
    "decode_rollback",
    "decode_rollback_plan",
    "decode_savepoint",
    "encode_clean",
    "encode_clean_plan",
    "encode_commit",
    "encode_compaction_plan",
    "encode_requested_replace",
    "encode_restore",
    "encode_restore_plan",
    "encode_rollback",
    "encode_rollback_plan",
    "encode_savepoint",
]

_VALUE_CLASSES: Final[Mapping[str, type[Any]]] = {
    "HoodieActionInstant": plans.ActionInstant,
    "HoodieCleanFileInfo": plans.CleanFileInfo,
    "HoodieCleanMetadata": plans.CleanMetadata,
    "HoodieCleanPartitionMetadata": plans.CleanPartitionMetadata,
    "HoodieCleanerPlan": plans.CleanerPlan,
    "HoodieClusteringGroup": plans.ClusteringGroup,
    "HoodieClusteringPlan": plans.ClusteringPlan,
    "HoodieClusteringStrategy": plans.PlanClusteringStrategy,
    "HoodieCommitMetadata": CommitMetadata,
    "HoodieCompactionOperation": plans.CompactionOperation,
    "HoodieCompactionPlan": plans.CompactionPlan,
    "HoodieCompactionStrategy": plans.PlanCompactionStrategy,
    "HoodieInstantInfo": plans.InstantInfo,
    "HoodieReplaceCommitMetadata": CommitMetadata,
    "HoodieRequestedReplaceMetadata": plans.RequestedReplaceMetadata,
    "HoodieRestoreMetadata": plans.RestoreMetadata,
    "HoodieRestorePlan": plans.RestorePlan,
    "HoodieRollbackMetadata": plans.RollbackMetadata,
    "HoodieRollbackPartitionMetadata": plans.RollbackPartitionMetadata,
    "HoodieRollbackPlan": plans.RollbackPlan,
    "HoodieRollbackRequest": plans.RollbackRequest,
    "HoodieRuntimeStats": RuntimeStats,
    "HoodieSavepointMetadata": plans.SavepointMetadata,
    "HoodieSavepointPartitionMetadata": plans.SavepointPartitionMetadata,
    "HoodieSliceInfo": plans.SliceInfo,
    "HoodieWriteStat": WriteStat,
}

# The glossary's word, since Hudi's field name would mislead.
_RENAMED: Final = {"timestamp": "requested_time", "commitTime": "requested_time"}

_Value = TypeVar("_Value")
_Convert = Callable[[Any], Any]


def _identity(item: Any) -> Any:
    return item


def _attribute(name: str) -> str:
    return _RENAMED.get(name) or re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


class _Codec(Generic[_Value]):
    """Encode and decode the values of one record schema."""

    def __init__(self, schema: Schema, value_class: type[_Value]) -> None:
        self._value_class = value_class
        self._name = schema["name"]
        self._text = json.dumps(schema).encode()
        self._writer = RecordWriter(schema)
        self._reader = RecordReader(schema)
        self._to_record = _to_record(self._writer.schema, {})
        self._to_value = _to_value(schema, {})

    def encode(self, value: _Value) -> bytes:
        return self._writer.write(self._to_record(value))

    def decode(self, data: bytes, *, path: str, bytes_max: int) -> _Value:
        _, record = self._reader.read(data, path=path, bytes_max=bytes_max)
        return self.value_of(record, path=path)

    def decode_bare(self, data: bytes, *, path: str) -> _Value:
        record = self._reader.read_bare(data, schema_text=self._text, path=path)
        return self.value_of(record, path=path)

    def value_of(self, record: Mapping[str, Any], *, path: str) -> _Value:
        value = self._to_value(record)
        if not isinstance(value, self._value_class):
            raise corrupt_file_error(path, f"no {self._name}")
        return value


def _to_value(node: Any, named: dict[str, _Convert]) -> _Convert:
    """Compile the conversion of one schema node from fastavro's data to values."""
    if isinstance(node, list):
        branch = _to_value(next(one for one in node if one != "null"), named)
        return lambda item: None if item is None else branch(item)
    if isinstance(node, str):
        return named.get(node, _identity)
    if node["type"] == "array":
        item_of = _to_value(node["items"], named)
        if item_of is _identity:
            return tuple
        return lambda items: tuple([item_of(item) for item in items])
    if node["type"] == "map":
        value_of = _to_value(node["values"], named)
        if value_of is _identity:
            return dict
        return lambda mapping: {key: value_of(item) for key, item in mapping.items()}
    value_class = _VALUE_CLASSES[node["name"]]
    known = {one.name for one in dataclasses.fields(value_class)}
    parts = [
        (one["name"], _attribute(one["name"]), _plain_or(one["type"], _to_value, named))
        for one in node["fields"]
        if _attribute(one["name"]) in known
    ]

    def convert(record: Mapping[str, Any]) -> Any:
        found = {}
        for name, attribute, part_of in parts:
            item = record[name]
            if item is not None:
                found[attribute] = item if part_of is None else part_of(item)
        return value_class(**found)

    named[node["name"]] = convert
    return convert


def _to_record(node: Any, named: dict[str, _Convert]) -> _Convert:
    """Compile the conversion of one node of a parsed schema from values to fastavro's data."""
    if isinstance(node, list):
        chosen = next(one for one in node if one != "null")
        branch = _to_record(chosen, named)
        name = _branch_name(chosen)
        # With the branch name, fastavro does not try the values below to find the branch. Every
        # branch has its name: below a branch that fastavro tries, none may have one.
        return lambda item: None if item is None else (name, branch(item))
    if isinstance(node, str):
        return named.get(node, _identity)
    if node["type"] == "array":
        item_of = _to_record(node["items"], named)
        return lambda items: [item_of(item) for item in items]
    if node["type"] == "map":
        value_of = _to_record(node["values"], named)
        return lambda mapping: {key: value_of(mapping[key]) for key in sorted(mapping)}
    value_class = _VALUE_CLASSES[node["name"].rpartition(".")[2]]
    known = {one.name for one in dataclasses.fields(value_class)}
    parts = [
        (one["name"], _attribute(one["name"]), _plain_or(one["type"], _to_record, named))
        for one in node["fields"]
        if _attribute(one["name"]) in known
    ]
    # If the value has no such field (the version of commit metadata), Hudi writes null instead of
    # the schema's default.
    absent = {one["name"]: None for one in node["fields"] if _attribute(one["name"]) not in known}

    def convert(value: Any) -> dict[str, Any]:
        record: dict[str, Any] = dict(absent)
        for name, attribute, part_of in parts:
            item = getattr(value, attribute)
            record[name] = item if part_of is None else part_of(item)
        return record

    named[node["name"]] = convert
    return convert


def _branch_name(node: Any) -> str:
    """Return fastavro's name for a branch of a union."""
    if isinstance(node, str):
        return node
    return str(node["name"] if node["type"] == "record" else node["type"])


def _plain_or(
    node: Any,
    compile_node: Callable[[Any, dict[str, _Convert]], _Convert],
    named: dict[str, _Convert],
) -> _Convert | None:
    """Return the conversion, or None if the item passes unchanged, as most fields of a stat do."""
    branches = node if isinstance(node, list) else [node]
    if all(isinstance(one, str) and one not in named for one in branches):
        return None
    return compile_node(node, named)


_COMMIT = _Codec(schemas.COMMIT_METADATA, CommitMetadata)
_REPLACE = _Codec(schemas.REPLACE_COMMIT_METADATA, CommitMetadata)
_COMMIT_READER = RecordReader(schemas.COMMIT_METADATA, schemas.REPLACE_COMMIT_METADATA)
_COMMIT_TEXT, _REPLACE_TEXT = (
    (schema["name"], json.dumps(schema).encode())
    for schema in (schemas.COMMIT_METADATA, schemas.REPLACE_COMMIT_METADATA)
)
_CLEANER_PLAN = _Codec(schemas.CLEANER_PLAN, plans.CleanerPlan)
_CLEAN = _Codec(schemas.CLEAN_METADATA, plans.CleanMetadata)
_ROLLBACK_PLAN = _Codec(schemas.ROLLBACK_PLAN, plans.RollbackPlan)
_ROLLBACK = _Codec(schemas.ROLLBACK_METADATA, plans.RollbackMetadata)
_REQUESTED_REPLACE = _Codec(schemas.REQUESTED_REPLACE_METADATA, plans.RequestedReplaceMetadata)
_COMPACTION_PLAN = _Codec(schemas.COMPACTION_PLAN, plans.CompactionPlan)
_RESTORE_PLAN = _Codec(schemas.RESTORE_PLAN, plans.RestorePlan)
_RESTORE = _Codec(schemas.RESTORE_METADATA, plans.RestoreMetadata)
_SAVEPOINT = _Codec(schemas.SAVEPOINT_METADATA, plans.SavepointMetadata)


_REMEMBERED_BYTES: Final = 16_384


def encode_commit(metadata: CommitMetadata) -> bytes:
    """
    Encode a commit, deltacommit or replacecommit file, or a workload profile.

    The schema is that of a replacecommit if the value names replaced file ids, even none.

    Raises:
        InvalidInputError: a value does not fit its field.
    """
    codec = _COMMIT if metadata.partition_to_replace_file_ids is None else _REPLACE
    return codec.encode(metadata)


def decode_commit(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX, allow_empty: bool = True
) -> CommitMetadata:
    """
    Read a commit, deltacommit, replacecommit or workload profile.

    Args:
        data: The whole file.
        path: The file's name in errors.
        bytes_max: Largest file that is decoded, bytes.
        allow_empty: Whether zero bytes mean the default value, as in Java (requested files and some
            inflight ones are empty); otherwise they are an error.

    Raises:
        CorruptTableError: the bytes are damaged or too many, or empty and not allowed to be.
    """
    if not data:
        if allow_empty:
            return CommitMetadata()
        raise _empty(path)
    if len(data) <= min(_REMEMBERED_BYTES, bytes_max):
        with contextlib.suppress(CorruptTableError):  # raised below, with its path
            return _remembered_commit(data)
    return _decoded_commit(data, path, bytes_max)


def _decoded_commit(data: bytes, path: str, bytes_max: int) -> CommitMetadata:
    name, record = _COMMIT_READER.read(data, path=path, bytes_max=bytes_max)
    return _commit_of(name, record, path)


@lru_cache(maxsize=256)
def _remembered_commit(data: bytes) -> CommitMetadata:
    """Decode a small commit, cached: its slot and its file repeat it for every table handle."""
    return _decoded_commit(data, "", BYTES_MAX)


def decode_bare_commit(
    data: bytes, *, path: str = "", is_replacecommit: bool = False
) -> CommitMetadata:
    """
    Read commit metadata without a container, hence without a schema of its own.

    Raises:
        CorruptTableError: the bytes are not one record of the schema that every release has.
    """
    name, text = _REPLACE_TEXT if is_replacecommit else _COMMIT_TEXT
    return _commit_of(name, _COMMIT_READER.read_bare(data, schema_text=text, path=path), path)


def _commit_of(name: str, record: Mapping[str, Any], path: str) -> CommitMetadata:
    if name == schemas.COMMIT_METADATA["name"]:
        return _COMMIT.value_of(record, path=path)
    metadata = _REPLACE.value_of(record, path=path)
    if metadata.partition_to_replace_file_ids is None:
        return dataclasses.replace(metadata, partition_to_replace_file_ids={})
    return metadata


def _empty(path: str) -> CorruptTableError:
    return CorruptTableError(
        f"instant file is empty: restore it or roll the instant back: {path}",
        kind="empty_file",
        path=path,
    )


def encode_clean_plan(plan: plans.CleanerPlan) -> bytes:
    """Encode a requested clean; `InvalidInputError` if a value does not fit its field."""
    return _CLEANER_PLAN.encode(plan)


def decode_clean_plan(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.CleanerPlan:
    """Read a requested clean; `CorruptTableError` if damaged, empty or above `bytes_max`."""
    if not data:
        raise _empty(path)
    return _CLEANER_PLAN.decode(data, path=path, bytes_max=bytes_max)


def encode_clean(metadata: plans.CleanMetadata) -> bytes:
    """Encode a completed clean; `InvalidInputError` if a value does not fit its field."""
    return _CLEAN.encode(metadata)


def decode_clean(data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX) -> plans.CleanMetadata:
    """Read a completed clean; `CorruptTableError` if damaged, empty or above `bytes_max`."""
    if not data:
        raise _empty(path)
    return _CLEAN.decode(data, path=path, bytes_max=bytes_max)


def decode_bare_clean(data: bytes, *, path: str = "") -> plans.CleanMetadata:
    """Read a clean without container, as ``decode_bare_commit``; `CorruptTableError` if damaged."""
    return _CLEAN.decode_bare(data, path=path)


def encode_rollback_plan(plan: plans.RollbackPlan) -> bytes:
    """Encode a requested rollback; `InvalidInputError` if a value does not fit its field."""
    return _ROLLBACK_PLAN.encode(plan)


def decode_rollback_plan(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.RollbackPlan:
    """Read a requested rollback; `CorruptTableError` if damaged, empty or above `bytes_max`."""
    if not data:
        raise _empty(path)
    return _ROLLBACK_PLAN.decode(data, path=path, bytes_max=bytes_max)


def encode_rollback(metadata: plans.RollbackMetadata) -> bytes:
    """Encode a completed rollback; `InvalidInputError` if a value does not fit its field."""
    return _ROLLBACK.encode(metadata)


def decode_rollback(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.RollbackMetadata:
    """Read a completed rollback; `CorruptTableError` if damaged, empty or above `bytes_max`."""
    if not data:
        raise _empty(path)
    return _ROLLBACK.decode(data, path=path, bytes_max=bytes_max)


def decode_bare_rollback(data: bytes, *, path: str = "") -> plans.RollbackMetadata:
    """Read a rollback without container (``decode_bare_commit``); may raise `CorruptTableError`."""
    return _ROLLBACK.decode_bare(data, path=path)


def encode_restore_plan(plan: plans.RestorePlan) -> bytes:
    """Encode a requested restore; `InvalidInputError` if a value does not fit its field."""
    return _RESTORE_PLAN.encode(plan)


def decode_restore_plan(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.RestorePlan:
    """Read a requested restore; `CorruptTableError` if damaged, empty or above `bytes_max`."""
    if not data:
        raise _empty(path)
    return _RESTORE_PLAN.decode(data, path=path, bytes_max=bytes_max)


def encode_restore(metadata: plans.RestoreMetadata) -> bytes:
    """Encode a completed restore; `InvalidInputError` if a value does not fit its field."""
    return _RESTORE.encode(metadata)


def decode_restore(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.RestoreMetadata:
    """Read a completed restore; `CorruptTableError` if damaged, empty or above `bytes_max`."""
    if not data:
        raise _empty(path)
    return _RESTORE.decode(data, path=path, bytes_max=bytes_max)


def encode_requested_replace(metadata: plans.RequestedReplaceMetadata) -> bytes:
    """Encode a requested replacecommit or clustering; `InvalidInputError` if a value is wrong."""
    return _REQUESTED_REPLACE.encode(metadata)


def decode_requested_replace(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.RequestedReplaceMetadata:
    """
    Read a requested replacecommit or clustering; zero bytes mean the default value.

    Raises:
        CorruptTableError: the bytes are damaged or above `bytes_max`.
    """
    if not data:
        return plans.RequestedReplaceMetadata()
    return _REQUESTED_REPLACE.decode(data, path=path, bytes_max=bytes_max)


def encode_compaction_plan(plan: plans.CompactionPlan) -> bytes:
    """Encode a requested compaction or log compaction; `InvalidInputError` if a value is wrong."""
    return _COMPACTION_PLAN.encode(plan)


def decode_compaction_plan(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.CompactionPlan:
    """
    Read a requested compaction or log compaction.

    Raises:
        CorruptTableError: the bytes are damaged, empty or above `bytes_max`.
    """
    if not data:
        raise _empty(path)
    return _COMPACTION_PLAN.decode(data, path=path, bytes_max=bytes_max)


def encode_savepoint(metadata: plans.SavepointMetadata) -> bytes:
    """Encode a completed savepoint; `InvalidInputError` if a value does not fit its field."""
    return _SAVEPOINT.encode(metadata)


def decode_savepoint(
    data: bytes, *, path: str = "", bytes_max: int = BYTES_MAX
) -> plans.SavepointMetadata:
    """Read a completed savepoint; `CorruptTableError` if damaged, empty or above `bytes_max`."""
    if not data:
        raise _empty(path)
    return _SAVEPOINT.decode(data, path=path, bytes_max=bytes_max)
