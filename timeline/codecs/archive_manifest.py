"""
The manifest and the version file of the archived timeline (format 8), and its instants as values.

Names inside a manifest are checked against the grammar, because they become paths (SEC1). In
archives that Java migrated from version 6, the range in a file's name may be reversed (format
11.2). ``archived_instants.py`` reads and writes the rows of the files; this module needs no Arrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from timeline.errors import CorruptTableError, MalformedNameError

_MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
_FILE_NAME: Final = re.compile(r"([0-9]{14,17})_([0-9]{14,17})_([0-9]{1,4})\.parquet", re.ASCII)
_VERSION: Final = re.compile(rb"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One parquet file of a manifest; `first_time` and `last_time` are in ascending order."""

    file_name: str
    size_bytes: int
    first_time: str
    last_time: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedInstant:
    """
    One archived instant.

    `metadata` is the content of its completed file and `plan` that of its requested one;
    both are None when empty, or when only the times were asked for.
    """

    requested_time: str
    completion_time: str | None
    action: str
    metadata: bytes | None = None
    plan: bytes | None = None


def parse_version(data: bytes, *, path: str = "") -> int:
    """Parse `_version_`, the number of the newest manifest; `CorruptTableError` otherwise."""
    text = data.strip()
    if not _VERSION.fullmatch(text):
        raise damaged_archive(path, "no manifest number")
    return int(text)


def parse_manifest(data: bytes, *, path: str = "") -> tuple[ArchiveFile, ...]:
    """
    Parse a manifest, in its own order.

    Raises:
        MalformedNameError: it names a file outside the grammar.
        CorruptTableError: it is not such a JSON document, or larger than 64 MiB.
    """
    if len(data) > _MANIFEST_BYTES_MAX:
        raise damaged_archive(
            path, f"{len(data)} bytes are more than the allowed {_MANIFEST_BYTES_MAX}"
        )
    try:
        listed = json.loads(data)["files"]
        named = [(str(one["fileName"]), int(one["fileLen"])) for one in listed]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as failure:
        raise damaged_archive(path, f"no manifest: {type(failure).__name__}") from failure
    return tuple(_history_file(name, size_bytes, path) for name, size_bytes in named)


def encode_manifest(files: Iterable[ArchiveFile]) -> bytes:
    """Return a manifest in the form of Java Hudi's writer: the complete list of valid files."""
    listed = [
        f'{{\n    "fileName" : "{one.file_name}",\n    "fileLen" : {one.size_bytes}\n  }}'
        for one in files
    ]
    return ('{\n  "files" : [ ' + ", ".join(listed) + " ]\n}").encode()


def archive_file(first: str, last: str, *, level: int, size_bytes: int) -> ArchiveFile:
    """Return a file with the values of its name."""
    return ArchiveFile(
        file_name=f"{first}_{last}_{level}.parquet",
        size_bytes=size_bytes,
        first_time=first,
        last_time=last,
        level=level,
    )


def _history_file(name: str, size_bytes: int, path: str) -> ArchiveFile:
    match = _FILE_NAME.fullmatch(name)
    if match is None or size_bytes < 0:
        raise MalformedNameError(
            "a manifest of the archived timeline names a file with a wrong name: restore the "
            f"manifest from a backup: {name!r} in {path}",
            path=path,
            name=name,
        )
    one, other, level = match.groups()
    return ArchiveFile(
        file_name=name,
        size_bytes=size_bytes,
        first_time=min(one, other),
        last_time=max(one, other),
        level=int(level),
    )


def damaged_archive(path: str, why: str) -> CorruptTableError:
    """Return the error of a damaged file of the archived timeline."""
    return CorruptTableError(
        f"a file of the archived timeline is damaged ({why}): restore it from a backup: {path}",
        path=path,
    )
