"""
Avro object container files with exactly one record, as every instant file has.

This module writes the framing itself and uses fastavro only for the record, for three reasons. The
sync marker comes from the content, so equal values give equal bytes (SLOT-5). The header is built
once per schema. And a reader can refuse, before decoding, schemas that would let a few damaged or
hostile bytes take all memory (SEC3): recursive ones and array items without a size.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from timeline.codecs.avro_schemas import Schema
from timeline.errors import CorruptTableError, InvalidInputError

__all__ = ["BYTES_MAX", "RecordReader", "RecordWriter", "corrupt_file_error", "refuse_too_large"]

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
        f"file is damaged ({why}): restore it or roll the instant back: {path}", path=path
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
                f"value does not fit its instant file, correct it and repeat: {failure}",
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
        raise ValueError("schema is no record")
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
