"""
Instant files to values and back: commit metadata, plans and results of services (format 3).

The Avro schema itself drives the conversion. A record becomes the value class of its name, arrays become tuples, and null becomes the value's own default,
which is Hudi's meaning of an absent counter. Maps are written in key order, so equal values give
equal bytes in any order of construction (SLOT-5).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from timeline.codecs import avro_schemas as schemas
from timeline.codecs.avro_container import RecordReader, RecordWriter, corrupt_file_error
from timeline.codecs.avro_schemas import Schema
from timeline.errors import CorruptTableError
from timeline.model import plans
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.engine_version import refuse_newer_plan

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

_Value = TypeVar("_Value")
_Convert = Callable[[Any], Any]
_ExtraMetadata = Callable[[_Value], Mapping[str, str] | None]


def _identity(item: Any) -> Any:
    return item


class _Codec(Generic[_Value]):
    """Encode and decode the values of one record schema."""

    def __init__(
        self,
        schema: Schema,
        value_class: type[_Value],
        *,
        if_empty: _Value | None = None,
        extra_of: _ExtraMetadata[_Value] | None = None,
    ) -> None:
        self._value_class = value_class
        self._if_empty = if_empty
        self._extra_of = extra_of
        self._name = schema["name"]
        self._text = json.dumps(schema).encode()
        self._writer = RecordWriter(schema)
        self._reader = RecordReader(schema)
        self._to_record = _to_record(self._writer.schema, {})
        self._to_value = _to_value(schema, {})

    def encode(self, value: _Value) -> bytes:
        return self._writer.write(self._to_record(value))

    def decode(self, data: bytes, *, path: str = "") -> _Value:
        if data:
            value = self.value_of(self._reader.read(data, path=path)[1], path=path)
            if self._extra_of is not None:
                refuse_newer_plan(self._extra_of(value), path=path)
            return value
        if self._if_empty is not None:
            return self._if_empty
        raise CorruptTableError(
            f"instant file is empty: restore it or roll the instant back: {path}",
            kind="empty_file",
            path=path,
        )

    def decode_bare(self, data: bytes, *, path: str = "") -> _Value:
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
    value_class, parts = _parts_of(node, node["name"], _to_value, named)

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
    _, parts = _parts_of(node, node["name"].rpartition(".")[2], _to_record, named)
    # If the value has no such field (the version of commit metadata), Hudi writes null instead of
    # the schema's default.
    absent = dict.fromkeys(one["name"] for one in node["fields"])

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


def _parts_of(
    node: Schema,
    name: str,
    compile_node: Callable[[Any, dict[str, _Convert]], _Convert],
    named: dict[str, _Convert],
) -> tuple[type[Any], list[tuple[str, str, _Convert | None]]]:
    """
    Return the class of a record, and the name, attribute and conversion of each field.

    The conversion is None if the item passes unchanged, as most fields of a stat do.
    """
    parts = []
    attributes = schemas.ATTRIBUTES[name]
    for one in node["fields"]:
        if one["name"] in attributes:
            branches = one["type"] if isinstance(one["type"], list) else [one["type"]]
            is_plain = all(isinstance(each, str) and each not in named for each in branches)
            convert = None if is_plain else compile_node(one["type"], named)
            parts.append((one["name"], attributes[one["name"]], convert))
    return schemas.VALUE_CLASSES[name], parts


_COMMIT = _Codec(schemas.COMMIT_METADATA, CommitMetadata)
_REPLACE = _Codec(schemas.REPLACE_COMMIT_METADATA, CommitMetadata)
_COMMIT_READER = RecordReader(schemas.COMMIT_METADATA, schemas.REPLACE_COMMIT_METADATA)
_CLEANER_PLAN = _Codec(
    schemas.CLEANER_PLAN, plans.CleanerPlan, extra_of=lambda plan: plan.extra_metadata
)
_CLEAN = _Codec(schemas.CLEAN_METADATA, plans.CleanMetadata)
_ROLLBACK_PLAN = _Codec(schemas.ROLLBACK_PLAN, plans.RollbackPlan)
_ROLLBACK = _Codec(schemas.ROLLBACK_METADATA, plans.RollbackMetadata)
_REQUESTED_REPLACE = _Codec(
    schemas.REQUESTED_REPLACE_METADATA,
    plans.RequestedReplaceMetadata,
    if_empty=plans.RequestedReplaceMetadata(),
    extra_of=lambda one: one.clustering_plan.extra_metadata if one.clustering_plan else None,
)
_COMPACTION_PLAN = _Codec(
    schemas.COMPACTION_PLAN, plans.CompactionPlan, extra_of=lambda plan: plan.extra_metadata
)
_RESTORE_PLAN = _Codec(schemas.RESTORE_PLAN, plans.RestorePlan)
_RESTORE = _Codec(schemas.RESTORE_METADATA, plans.RestoreMetadata)
_SAVEPOINT = _Codec(schemas.SAVEPOINT_METADATA, plans.SavepointMetadata)

# Every pair below encodes and decodes one file. ``encode`` raises `InvalidInputError` if a value
# does not fit its field. ``decode`` raises `CorruptTableError` for damaged or too many bytes. Empty
# bytes are an error too, except for a requested replacecommit: Java creates that file empty. For a
# plan of a table service it raises `UnsupportedTableError` if this process is too old (REL-3).
# ``decode_bare`` reads a record without a container.
encode_clean_plan, decode_clean_plan = _CLEANER_PLAN.encode, _CLEANER_PLAN.decode
encode_clean, decode_clean, decode_bare_clean = _CLEAN.encode, _CLEAN.decode, _CLEAN.decode_bare
encode_rollback_plan, decode_rollback_plan = _ROLLBACK_PLAN.encode, _ROLLBACK_PLAN.decode
encode_rollback, decode_rollback = _ROLLBACK.encode, _ROLLBACK.decode
decode_bare_rollback = _ROLLBACK.decode_bare
encode_restore_plan, decode_restore_plan = _RESTORE_PLAN.encode, _RESTORE_PLAN.decode
encode_restore, decode_restore = _RESTORE.encode, _RESTORE.decode
encode_requested_replace = _REQUESTED_REPLACE.encode
decode_requested_replace = _REQUESTED_REPLACE.decode
encode_compaction_plan, decode_compaction_plan = _COMPACTION_PLAN.encode, _COMPACTION_PLAN.decode
encode_savepoint, decode_savepoint = _SAVEPOINT.encode, _SAVEPOINT.decode

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


def decode_commit(data: bytes, *, path: str = "") -> CommitMetadata:
    """
    Read a commit, deltacommit, replacecommit or workload profile.

    Args:
        data: The whole file. Zero bytes mean the default value, as in Java: requested files and
            some inflight ones are empty.
        path: The file's name in errors.

    Raises:
        CorruptTableError: the bytes are damaged or too many.
    """
    if not data:
        return CommitMetadata()
    if len(data) <= _REMEMBERED_BYTES:
        with contextlib.suppress(CorruptTableError):  # raised below, with its path
            return _remembered_commit(data)
    return _commit_of(*_COMMIT_READER.read(data, path=path), path)


@lru_cache(maxsize=256)
def _remembered_commit(data: bytes) -> CommitMetadata:
    """Decode a small commit, cached: its slot and its file repeat it for every table handle."""
    return _commit_of(*_COMMIT_READER.read(data, path=""), "")


def decode_bare_commit(
    data: bytes, *, path: str = "", is_replacecommit: bool = False
) -> CommitMetadata:
    """
    Read commit metadata without a container, hence without a schema of its own.

    Raises:
        CorruptTableError: the bytes are not one record of the schema that every release has.
    """
    if is_replacecommit:
        return _replacing(_REPLACE.decode_bare(data, path=path))
    return _COMMIT.decode_bare(data, path=path)


def _commit_of(name: str, record: Mapping[str, Any], path: str) -> CommitMetadata:
    if name == schemas.COMMIT_METADATA["name"]:
        return _COMMIT.value_of(record, path=path)
    return _replacing(_REPLACE.value_of(record, path=path))


def _replacing(metadata: CommitMetadata) -> CommitMetadata:
    if metadata.partition_to_replace_file_ids is None:
        return dataclasses.replace(metadata, partition_to_replace_file_ids={})
    return metadata
