"""
Read the archived timeline (fmt 8), or the archive of version 6 (fmt 11.2).

The module only reads. It trusts neither the range in a file's name nor the order of rows or files:
archives that Java migrated from version 6 have both wrong.

A snapshot uses it for files older than the active timeline: to know that they are committed (GC-7)
and when their logs completed. Incremental reads of old ranges and listings of the whole timeline
read it, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from timeline.codecs.archive_manifest import (
    ArchivedInstant,
    ArchiveFile,
    parse_manifest,
    parse_version,
)
from timeline.codecs.legacy_commit import decode_archived_commit
from timeline.errors import CorruptTableError, MissingFileError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import HISTORY
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime, is_between
from timeline.ports.ports import EventSink, ObjectMissingError, Storage

if TYPE_CHECKING:
    from timeline.codecs.log_blocks import LogBlock

_MANIFEST = re.compile(r"manifest_([0-9]{1,18})")
_VERSION = f"{HISTORY}/_version_"

ArchiveFiles = tuple[ArchiveFile, ...]

#: The actions that write rows, as the archive names them.
ARCHIVED_WRITES = frozenset({"commit", "deltacommit", "replacecommit"})

T = TypeVar("T")


@dataclass(frozen=True)
class ArchivedTimes:
    """
    The completion time of every archived instant, by requested time.

    An instant without a completion time completed at its requested time, as in Java. A savepoint
    is left out, because it shares the requested time of its commit (trap 19).
    """

    completions: Mapping[InstantTime, InstantTime]

    @cached_property
    def _oldest(self) -> InstantTime | None:
        return min(self.completions, default=None)

    @cached_property
    def newest_completion(self) -> InstantTime:
        """The greatest completion time; empty without archived instants."""
        return max(self.completions.values(), default="")

    def rules_out(self, requested_time: InstantTime) -> bool:
        """
        Return whether an instant below the active timeline was never archived, so never completed.

        An instant before the oldest archived one may have been in an archive that the table's
        owner deleted, which was common before version 8. For such an instant the answer is False.
        """
        if requested_time in self.completions:
            return False
        return self._oldest is not None and requested_time > self._oldest


NOTHING_ARCHIVED: Final = ArchivedTimes({})


def newest_manifest(
    storage: Storage, known: tuple[int, ArchiveFiles] = (0, ())
) -> tuple[int, ArchiveFiles]:
    """
    Return the newest valid manifest's number and its files; 0 and no files if there is none.

    The valid manifest is the one that ``_version_`` names, or a complete one beyond it. A manifest
    beyond it has two causes: an archiver created it and has not updated ``_version_`` yet, or an
    archiver that slept set ``_version_`` back. Its instants are no longer on the timeline, so a
    reader that trusts ``_version_`` would take commits for never completed. A manifest beyond
    ``_version_`` that is unreadable, or names missing files, is a stray.

    Args:
        storage: The table's.
        known: An earlier result; its manifest is not read again while it is the newest.

    Outside: 1 list, 1 get, 1 get for a manifest that is not known.

    Raises:
        CorruptTableError: There are manifests, but no valid one can be read.
        MissingFileError: ``_version_`` names a missing manifest, and there is no newer one.
    """
    missing = 0
    while True:
        names = frozenset(storage.names(HISTORY))
        version = version_file_number(storage)
        listed = [int(match[1]) for name in names if (match := _MANIFEST.fullmatch(name))]
        # A listing may miss the newest manifest; ``_version_`` names it after its creation.
        numbers = sorted(
            {*listed, *([version] if version and max(listed, default=0) < version else [])}
        )
        if not numbers:
            return 0, ()
        if numbers[-1] == known[0]:
            return known
        for number in reversed(numbers):
            path = f"{HISTORY}/manifest_{number}"
            try:
                files = parse_manifest(storage.read(path), path=path)
            except ObjectMissingError as error:
                if number == missing:
                    raise MissingFileError(
                        "a manifest of the archived timeline is missing: restore the file from a "
                        f"backup: {path}",
                        path=path,
                    ) from error
                missing = number
                break  # deleted since the listing: list again
            except CorruptTableError:
                if number <= version:
                    raise
                continue
            whole = names.issuperset(one.file_name for one in files)
            if whole or not number > version > 0:
                return number, files
        else:
            raise CorruptTableError(
                "no manifest of the archived timeline can be read: restore the folder from a "
                f"backup: {HISTORY}",
                path=HISTORY,
            )


def version_file_number(storage: Storage) -> int:
    """Return the number in ``_version_``, 0 if it is missing or unreadable. Outside: 1 get."""
    try:
        return parse_version(storage.read(_VERSION), path=_VERSION)
    except (ObjectMissingError, CorruptTableError):
        return 0


def read_archive_files(
    storage: Storage,
    files: ArchiveFiles,
    wanted: Callable[[ArchiveFile], bool],
    parse: Callable[[bytes, str], T],
) -> tuple[ArchiveFiles, list[T]]:
    """
    Read the wanted files; return the files (these, or newer ones) and the parsed contents.

    An archiver may merge and delete files meanwhile. The files are then listed and read again.

    Raises:
        MissingFileError: The newest manifest still names a file that is missing.
    """
    while True:
        found: list[T] = []
        try:
            for one in filter(wanted, files):
                path = f"{HISTORY}/{one.file_name}"
                found.append(parse(storage.read(path), path))
        except ObjectMissingError as error:
            before, files = files, newest_manifest(storage)[1]
            if files == before:
                raise missing_archive_file(path) from error
        else:
            return files, found


def missing_archive_file(path: str) -> MissingFileError:
    """Return the error for a missing file that the newest manifest names."""
    return MissingFileError(
        f"a file of the archived timeline is missing: restore it from a backup: {path}", path=path
    )


@dataclass(slots=True, eq=False)
class ArchivedTimeline:
    """
    The archived instants of one table.

    ``legacy_folder`` is the archive folder of a table of version 6; None for later versions. The
    event ``history.corrupt`` reports damage in such an archive.
    """

    storage: Storage
    events: EventSink
    legacy_folder: str | None = field(default=None, kw_only=True)
    _last: _LastTimes | None = field(default=None, init=False)

    def instants(self, *, times_only: bool = True) -> list[ArchivedInstant]:
        """
        Return every archived instant, ascending by requested time.

        Outside: 1 list, 1 get (version), 1 get (manifest), 1 get per file; for version 6 1 list, 1
        get per file.
        """
        legacy = self.legacy_folder is not None
        rows = self._legacy(times_only) if legacy else self._rows(times_only)
        found = {(row.requested_time, row.action): row for row in rows}
        return [found[key] for key in sorted(found)]

    def find(self, requested_time: InstantTime, action: str) -> ArchivedInstant | None:
        """
        Return one archived instant with its content, None if layout 2 does not list it.

        Outside: 1 list, 1 get (version), 1 get (manifest), 1 get per file of that time.
        """
        if self.legacy_folder is not None:
            return None
        for row in self._rows(times_only=False, of=requested_time):
            if (row.requested_time, row.action) == (requested_time, action):
                return row
        return None

    def times(self) -> ArchivedTimes:
        """
        Return the times of every archived instant, as of now.

        Archived instants stay archived, so a call reads only files that are new since the last
        call.

        Outside: 1 list, 1 get (version), and when it changed 1 get (manifest), 1 get per new file;
        for version 6 as ``instants``.
        """
        from timeline.codecs.archived_instants import parse_archived_completions  # needs Arrow

        if self.legacy_folder is not None:
            return ArchivedTimes(
                {
                    row.requested_time: row.completion_time or row.requested_time
                    for row in self.instants()
                    if row.action != Action.SAVEPOINT.value
                }
            )
        last = self._last
        known = (0, ()) if last is None else (last.number, last.files)
        number, files = newest_manifest(self.storage, known)
        if last is not None and last.number == number:
            return last.times
        read = frozenset(one.file_name for one in known[1])
        files, found = read_archive_files(
            self.storage,
            files,
            lambda one: one.file_name not in read,
            lambda data, path: parse_archived_completions(data, path=path),
        )
        merged = dict(last.times.completions) if last is not None else {}
        for completions in found:
            merged.update(completions)
        # Replaced as a whole, so readers on several threads need no lock.
        self._last = _LastTimes(number=number, files=files, times=ArchivedTimes(merged))
        return self._last.times

    def writes_between(
        self,
        since: InstantTime,
        until: InstantTime | None,
        *,
        by_request: bool = False,
        times_only: bool = True,
    ) -> list[ArchivedInstant]:
        """Return archived writes that completed, or were requested, in (since, until]."""
        return [
            row
            for row in self.instants(times_only=times_only)
            if row.action in ARCHIVED_WRITES
            and is_between(
                (not by_request and row.completion_time) or row.requested_time, since, until
            )
        ]

    def commits_between(
        self, since: InstantTime, until: InstantTime | None
    ) -> Iterator[tuple[ArchivedInstant, CommitMetadata]]:
        """Yield archived writes with a completion time in (since, until], and their metadata."""
        for row in self.writes_between(since, until, times_only=False):
            if row.metadata:
                path = f"{HISTORY} ({row.requested_time})"
                yield row, decode_archived_commit(row.metadata, action=row.action, path=path)

    def _rows(self, times_only: bool, of: InstantTime | None = None) -> list[ArchivedInstant]:  # noqa: FBT001
        """Return the rows of the newest files; only of files that may hold the time ``of``."""
        from timeline.codecs.archived_instants import parse_archived_instants  # needs Arrow

        def wanted(one: ArchiveFile) -> bool:
            return of is None or one.first_time <= of <= one.last_time

        def parse(data: bytes, path: str) -> tuple[ArchivedInstant, ...]:
            return parse_archived_instants(data, path=path, times_only=times_only)

        _, found = read_archive_files(self.storage, self._files(), wanted, parse)
        return [row for rows in found for row in rows]

    def _legacy(self, times_only: bool) -> Iterator[ArchivedInstant]:  # noqa: FBT001
        folder = self.legacy_folder or ""
        for name in self._legacy_names(folder):
            path = f"{folder}/{name}"
            data = self.storage.read(path)
            yield from self._parse_legacy(data, path=path, times_only=times_only)

    def _legacy_names(self, folder: str) -> list[str]:
        from timeline.codecs.archived_instants import archive_file_number

        numbered = (
            (number, name)
            for name in self.storage.names(folder)
            if (number := archive_file_number(name)) is not None
        )
        return [name for _, name in sorted(numbered)]

    def _parse_legacy(
        self, data: bytes, *, path: str, times_only: bool
    ) -> tuple[ArchivedInstant, ...]:
        from timeline.codecs.archived_instants import parse_archive_file

        return parse_archive_file(data, path=path, times_only=times_only, missed=self._missed)

    def _missed(self, block: LogBlock) -> None:
        self.events.emit(
            "history.corrupt", path=block.path, offset=block.offset, bytes=block.content_length
        )

    def _files(self) -> ArchiveFiles:
        return newest_manifest(self.storage)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastTimes:
    """The last result of ``times``, and the files it was read from."""

    number: int  # 0 before anything was archived
    files: ArchiveFiles
    times: ArchivedTimes
