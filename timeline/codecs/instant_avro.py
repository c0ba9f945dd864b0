"""
Instant files to values and back: Avro object container files with exactly one record.

This module writes the framing itself and uses fastavro only for the record, for three reasons. The
sync marker comes from the content, so equal values give equal bytes (SLOT-5). The header is built
once per schema. And a reader can refuse, before decoding, schemas that would let a few damaged or
hostile bytes take all memory (SEC3): recursive ones and array items without a size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from timeline.codecs import avro_schemas as schemas
from timeline.codecs.avro_schemas import Schema
from timeline.errors import CorruptTableError, InvalidInputError
from timeline.model import plans
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.slot import refuse_newer_plan

BYTES_MAX: Final = 256 * 1024 * 1024
"""The largest instant file that is read, bytes."""

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_SCHEMA_BYTES_MAX: Final = 1024 * 1024
_HEADER_ENTRIES_MAX: Final = 1024

# The parser raises these on damaged bytes.
_PARSER_FAILURES: Final = (
    ArithmeticError,
    AttributeError,
    AssertionError,
    EOFError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    struct.error,
    SchemaParseException,
    SchemaResolutionError,
)


def corrupt_file_error(path: str, why: str) -> CorruptTableError:
    """Return the error for a file with damaged bytes; `why` names the finding."""
    return CorruptTableError(
        f"a file is damaged ({why}): restore it from a backup, or roll the instant back with "
        f"'hoodoo rollback TABLE INSTANT': {path}",
        path=path,
    )


def refuse_too_large(data: bytes, path: str, bytes_max: int) -> None:
    """Raise ``CorruptTableError`` for a file of more bytes than allowed."""
    if len(data) > bytes_max:
        raise corrupt_file_error(path, f"{len(data)} bytes are more than the allowed {bytes_max}")


def _long_bytes(number: int) -> bytes:
    zigzag = number << 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


class RecordWriter:
    """Write one record of a fixed schema, the parsed ``schema``; build it once per schema."""

    def __init__(self, schema: Schema) -> None:
        text = json.dumps(schema, separators=(",", ":")).encode()
        key = b"avro.schema"
        self.schema = fastavro.parse_schema(schema)
        self._header = b"".join(
            (_MAGIC, b"\x02", _long_bytes(len(key)), key, _long_bytes(len(text)), text, b"\x00")
        )
        self._digest = hashlib.blake2b(self._header, digest_size=_SYNC_BYTES)

    def write(self, record: Mapping[str, Any]) -> bytes:
        """
        Encode one record; the same record always gives the same bytes.

        Raises:
            InvalidInputError: a value does not fit its field, for example a number beyond 64 bits
                or invalid Unicode.
        """
        body = io.BytesIO()
        try:
            fastavro.schemaless_writer(body, self.schema, record)
        except _PARSER_FAILURES as failure:
            raise InvalidInputError(
                "a value cannot be written into the file of its instant: correct the value, then "
                f"repeat the call: {failure}",
                kind="unencodable_metadata",
            ) from failure
        content = body.getvalue()
        digest = self._digest.copy()
        digest.update(content)
        sync = digest.digest()
        return b"".join((self._header, sync, b"\x02", _long_bytes(len(content)), content, sync))


@dataclass(frozen=True, slots=True)
class _WriterSchema:
    """A checked writer's schema, with its record name without namespace."""

    name: str
    parsed: Any


class RecordReader:
    """
    Read one record, resolved from the file's own schema into one of some expected ones.

    Args:
        schemas: The expected record schemas; the file's record name chooses. Missing fields take
            their default, also if Hudi's schema has none.
    """

    def __init__(self, *schemas: Schema) -> None:
        self._readers = {
            schema["name"]: fastavro.parse_schema(_tolerant(schema)) for schema in schemas
        }

    def read(self, data: bytes, *, path: str) -> tuple[str, dict[str, Any]]:
        """
        Decode the file's only record.

        Args:
            data: The whole file.
            path: The file's name in errors.

        Returns:
            The record's name without namespace, and its fields by Avro name.

        Raises:
            CorruptTableError: the file is larger than `BYTES_MAX`, is not an Avro container with
                one record of an expected schema, or has trailing bytes.
        """
        refuse_too_large(data, path, BYTES_MAX)
        try:
            schema_text, content = _unframe(data)
            return self._decode(schema_text, content)
        except _PARSER_FAILURES as failure:
            raise corrupt_file_error(path, f"{type(failure).__name__}: {failure}") from failure

    def read_bare(self, content: bytes, *, schema_text: bytes, path: str) -> dict[str, Any]:
        """
        Decode one record without a container, as in log blocks.

        Args:
            content: The record's bytes.
            schema_text: The writer's schema, JSON.
            path: The file's name in errors.

        Raises:
            CorruptTableError: the bytes are not one record of an expected schema.
        """
        try:
            return self._decode(schema_text, content)[1]
        except _PARSER_FAILURES as failure:
            raise corrupt_file_error(path, f"{type(failure).__name__}: {failure}") from failure

    def _decode(self, schema_text: bytes, content: bytes) -> tuple[str, dict[str, Any]]:
        writer = _checked_schema(schema_text)
        reader = self._readers[writer.name]
        body = io.BytesIO(content)
        record = fastavro.schemaless_reader(body, writer.parsed, reader)
        if body.tell() != len(content) or not isinstance(record, dict):
            raise ValueError("bytes after the record")
        return writer.name, record


def _tolerant(node: Any) -> Any:
    """Return the schema with a default on every field, so that an absent field never fails."""
    if isinstance(node, list):
        return [_tolerant(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    if node["type"] == "record":
        return {**node, "fields": [_tolerant_field(one) for one in node["fields"]]}
    return {key: _tolerant(part) for key, part in node.items()}


_ZERO: Final[Mapping[str, Any]] = {"string": "", "int": 0, "long": 0, "array": [], "map": {}}


def _tolerant_field(field: Schema) -> Schema:
    kind = field["type"]
    out = {**field, "type": _tolerant(kind)}
    if "default" not in field:
        name = kind["type"] if isinstance(kind, dict) else kind
        out["default"] = None if isinstance(kind, list) else _ZERO[name]
    return out


def _unframe(data: bytes) -> tuple[bytes, bytes]:
    if data[:4] != _MAGIC:
        raise ValueError("no avro container")
    position = 4
    header: dict[bytes, bytes] = {}
    while True:
        count, position = _read_long(data, position)
        if count == 0:
            break
        if count < 0:
            count = -count
            _, position = _read_long(data, position)
        if len(header) + count > _HEADER_ENTRIES_MAX:
            raise ValueError("too many header entries")
        for _ in range(count):
            key, position = _read_bytes(data, position)
            header[key], position = _read_bytes(data, position)
    if header.get(b"avro.codec", b"null") != b"null":
        raise ValueError("compressed instant file")
    sync = data[position : position + _SYNC_BYTES]
    count, position = _read_long(data, position + _SYNC_BYTES)
    content, position = _read_bytes(data, position)
    if count != 1 or data[position:] != sync or len(sync) != _SYNC_BYTES:
        raise ValueError("not exactly one record, or its end marker differs")
    return header[b"avro.schema"], content


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("number longer than 64 bits")


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    size, position = _read_long(data, position)
    if not 0 <= size <= len(data) - position:
        raise ValueError("length beyond the end of the file")
    return data[position : position + size], position + size


@lru_cache(maxsize=64)
def _checked_schema(text: bytes) -> _WriterSchema:
    if len(text) > _SCHEMA_BYTES_MAX:
        raise ValueError("schema too long")
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("the schema is not a record")
    _check_node(schema, enclosing=())
    return _WriterSchema(
        name=str(schema["name"]).rpartition(".")[2], parsed=fastavro.parse_schema(schema)
    )


def _check_node(node: Any, *, enclosing: tuple[str, ...]) -> None:
    """Refuse recursion and types that grow without consuming bytes (see the module docstring)."""
    if isinstance(node, list):
        for branch in node:
            if branch != "null":
                _check_node(branch, enclosing=enclosing)
    elif isinstance(node, str):
        name = node.rpartition(".")[2]
        if name == "null" or name in enclosing:
            raise ValueError("schema is recursive or has values without a size")
    elif node["type"] == "record":
        name = str(node["name"]).rpartition(".")[2]
        for field in node["fields"]:
            _check_node(field["type"], enclosing=(*enclosing, name))
        _check_size(len(node["fields"]))
    elif node["type"] == "fixed":
        _check_size(node["size"])
    elif node["type"] != "enum":
        part = {"array": "items", "map": "values"}.get(node["type"], "type")
        _check_node(node[part], enclosing=enclosing)


def _check_size(size: int) -> None:
    if size <= 0:
        raise ValueError("schema has values without a size")


# ---- Instant files to values and back: commit metadata, plans and results of services (format 3)
# The Avro schema itself drives the conversion. A record becomes the value class of its name, arrays become tuples, and null becomes the value's own default,
# which is Hudi's meaning of an absent counter. Maps are written in key order, so equal values give
# equal bytes in any order of construction (SLOT-5).

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
            "the file of an instant is empty: restore it from a backup, or roll the instant back "
            f"with 'hoodoo rollback TABLE INSTANT': {path}",
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


# ---- The completed file of a commit, encoded before the lock, with room for the fencing token
#
# The fencing token of a lease is known only under the lock. Encoding the stats of thousands of
# files there would keep all other writers waiting. So the bytes are made earlier with a blank of
# fixed width, and the token is written over the blank: one copy. Java reads the token as one more
# text of the extra metadata.

FENCING_TOKEN_KEY: Final = "hoodoo.fencing_token"  # noqa: S105  a key, no secret
"""Key in the extra metadata: the fencing token of the lock that the commit was made under."""

_DIGITS: Final = 20  # fits all 64-bit numbers; texts of this width sort like the numbers
_BLANK: Final = "\0" * _DIGITS


def _short_text(value: str) -> bytes:
    """Return a short Avro string: zigzag length, then the bytes."""
    data = value.encode("ascii")
    return bytes((len(data) << 1,)) + data


_ENTRY: Final = _short_text(FENCING_TOKEN_KEY) + _short_text(_BLANK)


class CommitBody:
    """
    Metadata of one commit and its bytes, complete except perhaps for the token.

    Args:
        metadata: The result of the commit; a token in it is dropped.

    Raises:
        InvalidInputError: A value does not fit its field.
    """

    def __init__(self, metadata: CommitMetadata) -> None:
        self._plain = replace(metadata, extra_metadata=_without_token(metadata))
        self._bytes: bytes | None = None
        with_room = encode_commit(self.metadata_with(_BLANK))
        before, entry, after = with_room.partition(_ENTRY)
        # A text of the metadata that equals the entry is no accident; then the bytes are encoded
        # later.
        self._room = (before, after) if entry and _ENTRY not in after else None

    def metadata_with(self, token: int | str | None) -> CommitMetadata:
        """Return the metadata as a reader of the bytes gets it."""
        if token is None:
            return self._plain
        metadata = {**self._plain.extra_metadata, FENCING_TOKEN_KEY: _digits(token)}
        return replace(self._plain, extra_metadata=metadata)

    def bytes_with(self, token: int | None) -> bytes:
        """
        Return the completed file with a token; without one it has no such key.

        With a token it costs a copy. Without one it encodes once, which is not urgent: then there
        is no lock, or its provider has no count.
        """
        if token is None:
            if self._bytes is None:
                self._bytes = encode_commit(self._plain)
            return self._bytes
        digits = _digits(token)
        if self._room is None or len(digits) != _DIGITS:
            return encode_commit(self.metadata_with(token))
        before, after = self._room
        return b"".join((before, _short_text(FENCING_TOKEN_KEY), _short_text(digits), after))


def _digits(token: int | str) -> str:
    return token if isinstance(token, str) else str(token).zfill(_DIGITS)


def _without_token(metadata: CommitMetadata) -> dict[str, str]:
    return {
        key: value for key, value in metadata.extra_metadata.items() if key != FENCING_TOKEN_KEY
    }
