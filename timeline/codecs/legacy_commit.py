"""
Commit metadata as JSON: tables of version 6, and the archive of a table after its upgrade.

The names are those of the Avro form, so one value serves both; only the spelling differs (format
11.2). Releases before 0.15 omit fields and add some of their own: a missing field takes the
value's default, an unknown one is ignored. A field with content of another kind is an error,
never guessed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from timeline.codecs import avro_schemas as schemas
from timeline.codecs.instant_avro import (
    BYTES_MAX,
    corrupt_file_error,
    decode_bare_clean,
    decode_bare_commit,
    decode_bare_rollback,
    decode_clean,
    decode_commit,
    decode_rollback,
    refuse_too_large,
)
from timeline.model.commit_metadata import CommitMetadata, RuntimeStats, WriteStat
from timeline.model.plans import CleanMetadata, RollbackMetadata

_CONTAINER: Final = b"Obj\x01"

_Convert = Callable[[Any], Any]


def decode_legacy_commit(data: bytes, *, path: str = "") -> CommitMetadata:
    """
    Read a commit, deltacommit or replacecommit of a version 6 table, inflight or completed.

    Args:
        data: The whole file; zero bytes mean the default value, as in Java.
        path: The file's name in errors.

    Raises:
        CorruptTableError: The bytes are not such a JSON document, or too many.
    """
    if not data:
        return CommitMetadata()
    refuse_too_large(data, path, BYTES_MAX)
    try:
        found = _object(json.loads(data))
        document = {name: content for name, content in found.items() if content is not None}
        replaced = document.get("partitionToReplaceFileIds")
        return CommitMetadata(
            partition_to_write_stats={
                partition_path: tuple(_stat(one) for one in _array(stats))
                for partition_path, stats in _object(
                    document.get("partitionToWriteStats", {})
                ).items()
            },
            operation_type=_legacy_text(document.get("operationType", "UNKNOWN")),
            extra_metadata={
                key: _legacy_text(value)
                for key, value in _object(document.get("extraMetadata", {})).items()
                if value is not None
            },
            compacted=_flag(document.get("compacted", False)),
            partition_to_replace_file_ids=None if replaced is None else _replaced(replaced),
        )
    except (ArithmeticError, RecursionError, TypeError, ValueError) as failure:
        raise corrupt_file_error(path, f"{type(failure).__name__}: {failure}") from failure


def encode_legacy_commit(metadata: CommitMetadata) -> bytes:
    """Return a completed commit of a version 6 table, which replaces no file group."""
    document = {
        "partitionToWriteStats": {
            partition_path: [_spelled(stat) for stat in stats]
            for partition_path, stats in metadata.partition_to_write_stats.items()
        },
        "compacted": metadata.compacted,
        "extraMetadata": dict(metadata.extra_metadata),
        "operationType": metadata.operation_type,
    }
    return json.dumps(document, indent=2).encode()


def decode_archived_commit(data: bytes, *, action: str, path: str = "") -> CommitMetadata:
    """
    Read the metadata of an archived write with the completed action ``action``.

    In the archive of a table that it upgraded from version 6, Hudi 1.0 keeps JSON or bare records
    (seen: 1.0.2); later releases keep the form that they write themselves.

    Raises:
        CorruptTableError: The bytes are damaged.
    """
    if data.startswith(_CONTAINER):
        return decode_commit(data, path=path)
    if data.startswith(b"{"):
        return decode_legacy_commit(data, path=path)
    return decode_bare_commit(data, path=path, is_replacecommit=action == "replacecommit")


def decode_archived_clean(data: bytes, *, path: str = "") -> CleanMetadata:
    """
    Read the metadata of an archived clean, with or without a container, as for commits.

    Raises:
        CorruptTableError: The bytes are damaged.
    """
    if data.startswith(_CONTAINER):
        return decode_clean(data, path=path)
    return decode_bare_clean(data, path=path)


def decode_archived_rollback(data: bytes, *, path: str = "") -> RollbackMetadata:
    """
    Read the metadata of an archived rollback, with or without a container, as for commits.

    Raises:
        CorruptTableError: The bytes are damaged.
    """
    if data.startswith(_CONTAINER):
        return decode_rollback(data, path=path)
    return decode_bare_rollback(data, path=path)


def _object(item: Any) -> Mapping[str, Any]:
    if not isinstance(item, dict):
        raise TypeError("an object was expected")
    return item


def _array(item: Any) -> list[Any]:
    if not isinstance(item, list):
        raise TypeError("an array was expected")
    return item


def _legacy_text(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError("a text was expected")
    return item


def _number(item: Any) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise TypeError("a whole number was expected")
    return item


def _flag(item: Any) -> bool:
    if not isinstance(item, bool):
        raise TypeError("true or false was expected")
    return item


def _texts(item: Any) -> tuple[str, ...]:
    return tuple(_legacy_text(one) for one in _array(item))


def _sizes(item: Any) -> dict[str, int]:
    return {name: _number(size) for name, size in _object(item).items()}


def _runtime(item: Any) -> RuntimeStats:
    found = _object(item)
    return RuntimeStats(
        **{
            attribute: _number(found[name])
            for name, attribute in _RUNTIME_FIELDS.items()
            if found.get(name) is not None
        }
    )


def _replaced(item: Any) -> dict[str, tuple[str, ...]]:
    return {partition_path: _texts(ids) for partition_path, ids in _object(item).items()}


_RUNTIME_FIELDS: Final = schemas.ATTRIBUTES["HoodieRuntimeStats"]

# The check of each content, by the attribute's type; numbers otherwise.
_CHECKS: Final[Mapping[str, _Convert]] = {
    "str": _legacy_text,
    "str | None": _legacy_text,
    "tuple[str, ...] | None": _texts,
    "Mapping[str, int] | None": _sizes,
    "RuntimeStats | None": _runtime,
}
_STAT_TYPES: Final = {one.name: str(one.type) for one in dataclasses.fields(WriteStat)}

# : Name in the file -> (attribute, conversion that checks the content).
_STAT_FIELDS: Final[Mapping[str, tuple[str, _Convert]]] = {
    name: (attribute, _CHECKS.get(_STAT_TYPES[attribute], _number))
    for name, attribute in schemas.ATTRIBUTES["HoodieWriteStat"].items()
}


def _stat(item: Any) -> WriteStat:
    found: dict[str, Any] = {}
    for name, content in _object(item).items():
        known = _STAT_FIELDS.get(name)
        if known is not None and content is not None:
            attribute, convert = known
            found[attribute] = convert(content)
    return WriteStat(**found)


def _spelled(stat: WriteStat) -> dict[str, Any]:
    found = {name: getattr(stat, attribute) for name, (attribute, _) in _STAT_FIELDS.items()}
    if stat.runtime_stats is not None:
        found["runtimeStats"] = {
            name: getattr(stat.runtime_stats, attribute)
            for name, attribute in _RUNTIME_FIELDS.items()
        }
    return {name: content for name, content in found.items() if content is not None}
