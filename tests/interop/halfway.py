"""
Tables on which an engine died during a table service.

A service runs to its end, and then its last steps are undone: the completed file
is deleted, and some deleted files are restored. The engine would have
left the table in this state, whichever engine it was, and it is the same in every run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_LONG_S = 3_600


class Before:
    """The files of a table before a service ran, relative to its base."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = {one: (path / one).read_bytes() for one in _files(path)}

    @property
    def gone(self) -> list[str]:
        """Data files that were there and are not, sorted."""
        now = set(_files(self._path))
        return sorted(one for one in self._files if one not in now and is_data(one))

    def died(self, *steps: str, back: Iterable[str] = ()) -> None:
        """
        Undo the last steps.

        Args:
            steps: Endings of new timeline files that were not written yet, such as ``.clean``.
            back: Files that were not deleted yet: data files and files of the timeline.
        """
        for one in self._new():
            if one.startswith(".hoodie/timeline/") and one.removesuffix(".crc").endswith(steps):
                (self._path / one).unlink()
        for one in back:
            for each in (one, _checksum(one)):
                if each in self._files:
                    (self._path / each).write_bytes(self._files[each])
        age(self._path)

    def writer_died(self, *, indexed: bool = True) -> str:
        """
        Undo the commit of the newest write; return its requested time.

        Its markers exist again: a writer deletes them when it is done.

        Args:
            indexed: Whether the instant of the metadata table was complete.
        """
        begun = (one for one in self._new() if one.startswith(".hoodie/timeline/"))
        name = min(one for one in begun if one.endswith(".requested"))
        requested_time = name.rpartition("/")[2][:17]
        for one in filter(is_data, self._new()):
            marker = self._path / ".hoodie" / ".temp" / requested_time / f"{one}.marker.CREATE"
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        for one in self._new():
            done = one.startswith(f".hoodie/metadata/.hoodie/timeline/{requested_time}_")
            if one.startswith(".hoodie/.hoodoo/slots/") or (done and not indexed):
                (self._path / one).unlink()
        self.died(".commit", ".deltacommit")
        return requested_time

    def _new(self) -> set[str]:
        return set(_files(self._path)) - set(self._files)

    def timeline(self, *parts: str) -> list[str]:
        """The timeline's files from before whose names hold all these parts."""
        return [
            one
            for one in self._files
            if one.startswith(".hoodie/timeline/") and all(part in one for part in parts)
        ]


def age(path: Path) -> None:
    """Make everything old, so that no process seems to work on it any more."""
    then = time.time() - _LONG_S
    for one in _files(path):
        os.utime(path / one, (then, then))


def is_data(file: str) -> bool:
    """Whether a relative path is that of a base or log file."""
    name = file.rpartition("/")[2]
    return (
        not file.startswith(".hoodie/")
        and (".parquet" in name or ".log." in name)
        and (not name.endswith(".crc"))
    )


def _checksum(file: str) -> str:
    folder, _, name = file.rpartition("/")
    return f"{folder}/.{name}.crc" if folder else f".{name}.crc"


def _files(path: Path) -> list[str]:
    return [str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()]
