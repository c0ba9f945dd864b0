"""
Create and read markers, which announce data files before they are written.

A rollback, by Java Hudi or this engine, finds an instant's files by its markers alone, so none may
be missing (fmt 1.4). Java writes them in two forms: one file each, or lists kept by its timeline
server. This module reads both and writes one file each. Names are read from the table and decide
what a rollback deletes. A name that does not follow the grammar is never used (SEC2).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from timeline.errors import MalformedNameError, StorageUnavailableError
from timeline.model.file_names import (
    MARKERS,
    IOType,
    check_partition_path,
    join,
    marker_name,
    parse_marker_name,
)
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Storage,
)

_TYPE_FILE = "MARKERS.type"
_LIST_FILE = re.compile(r"MARKERS\d+")
_TIME = re.compile(r"\d{14}|\d{17}")
_DEPTH_MAX = 32  # partition levels; more is a loop or an attack


class MarkedFile(NamedTuple):
    """A data file that an instant announced; it may or may not exist."""

    partition_path: str
    file_name: str
    io_type: IOType

    @property
    def path(self) -> str:
        """Return the data file's path, relative to the table."""
        return join(self.partition_path, self.file_name)


def create_marker(
    storage: Storage,
    requested_time: InstantTime,
    partition_path: str,
    file_name: str,
    io_type: IOType,
) -> None:
    """
    Announce a data file; this must return before the file is created.

    An existing marker is fine: a repeated attempt announces the same file. The marker is not synced
    (LOC-2 names data, slot and completed file). After a power failure its writer is gone, and a
    rollback uses markers and a listing together.

    Raises:
        MalformedNameError: The path would leave the table.
        StorageUnavailableError: The storage did not answer; the marker may exist or still appear.

    Outside: 1 create.
    """
    folder = join(_root(requested_time), check_partition_path(partition_path))
    path = join(folder, marker_name(file_name, io_type))
    try:
        storage.create(path, b"", durable=False)
    except ObjectExistsError:
        return
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; write again: {path}", path=path
        ) from error


def marker_files(storage: Storage, requested_time: InstantTime) -> tuple[MarkedFile, ...]:
    """
    Return the file of every valid marker of an instant, in both of Java's forms.

    Outside: 1 list per folder, 1 read per list file of the timeline server.
    """
    root = _root(requested_time)
    found: set[MarkedFile] = set()
    folders = [""]
    while folders:
        folder = folders.pop()
        for entry in storage.list(join(root, folder)):
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_folder:
                if relative.count("/") < _DEPTH_MAX:
                    folders.append(relative)
            elif folder == "" and entry.name == _TYPE_FILE:
                continue
            elif folder == "" and _LIST_FILE.fullmatch(entry.name):
                for line in _lines(storage, f"{root}/{entry.name}"):
                    _add_valid(line, found)
            else:
                _add_valid(relative, found)
    return tuple(sorted(found, key=_order))


def announced(storage: Storage, requested_time: InstantTime, partition_path: str) -> frozenset[str]:
    """Return the names of the files with markers in a partition; Java's lists do not count. Outside: 1 list."""
    entries = storage.list(join(_root(requested_time), partition_path))
    found = (parse_marker_name(entry.name) for entry in entries if not entry.is_folder)
    return frozenset(one[0] for one in found if one is not None)


def withdraw_marker(storage: Storage, requested_time: InstantTime, marked: MarkedFile) -> None:
    """Delete the marker of one file, so that a late attempt to write it gives up. Outside: 1 delete."""
    name = marker_name(marked.file_name, marked.io_type)
    storage.delete(join(_root(requested_time), join(marked.partition_path, name)))


def delete_markers(storage: Storage, requested_time: InstantTime) -> None:
    """Delete all markers of an instant after its completion or rollback. Outside: 1 delete."""
    storage.delete_folder(_root(requested_time))


def _root(requested_time: InstantTime) -> str:
    # An empty or foreign text here would name the markers of every running writer.
    if not _TIME.fullmatch(requested_time):
        raise MalformedNameError(
            f"not a requested time: {requested_time!r}", path=f"{MARKERS}/{requested_time}"
        )
    return join(MARKERS, requested_time)


def _order(marked: MarkedFile) -> tuple[str, str, str]:
    return marked.partition_path, marked.file_name, marked.io_type.value


def _lines(storage: Storage, path: str) -> list[str]:
    try:
        content = storage.read(path)
    except ObjectMissingError:  # the writer has finished and removed its markers meanwhile
        return []
    return [line for line in content.decode("utf-8", "replace").split("\n") if line]


def _add_valid(relative: str, found: set[MarkedFile]) -> None:
    partition_path, _, name = relative.rpartition("/")
    parsed = parse_marker_name(name)
    if parsed is None or relative.startswith("/"):
        return
    try:
        check_partition_path(partition_path)
    except MalformedNameError:
        return
    found.add(MarkedFile(partition_path=partition_path, file_name=parsed[0], io_type=parsed[1]))
