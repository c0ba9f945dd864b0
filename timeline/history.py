"""
The history: instants archived below the timeline (fmt 8), or as version 6 did (fmt 11.2).

Reading only. Neither the range in a file's name nor the order of rows or files is trusted:
archives that Java migrated from version 6 have neither right.

A snapshot never needs it (what is below the active timeline is committed); incremental
reads of old ranges and the display of the whole timeline do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from timeline.codecs.history_rows import (
    HistoryFile,
    HistoryInstant,
    parse_history_rows,
    parse_manifest,
    parse_version,
)
from timeline.codecs.legacy_archive import archive_file_number, parse_archive_file
from timeline.codecs.legacy_commit import decode_archived_commit
from timeline.codecs.log_blocks import LogBlock
from timeline.errors import MissingFileError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.instant import Action
from timeline.model.times import InstantTime, is_between
from timeline.places import HISTORY
from timeline.ports.events import EventSink
from timeline.ports.storage import ObjectMissingError, Storage

__all__ = ["ARCHIVED_WRITES", "History"]

#: The actions that write rows, as the archive names them.
ARCHIVED_WRITES = frozenset({"commit", "deltacommit", "replacecommit"})


class History:
    """
    The archived instants of one table.

    ``legacy_folder`` is where a table of version 6 has its archive; None for later versions.
    Damage within such an archive is told as ``history.corrupt``.
    """

    def __init__(
        self, storage: Storage, events: EventSink, *, legacy_folder: str | None = None
    ) -> None:
        self._storage = storage
        self._events = events
        self._legacy_folder = legacy_folder

    def instants(self, *, times_only: bool = True) -> list[HistoryInstant]:
        """
        Every archived instant, ascending by requested time.

        Outside: 1 get (version) or 1 list, 1 get (manifest), 1 get per file; of version 6
        1 list, 1 get per file.
        """
        rows = self._rows(times_only) if self._legacy_folder is None else self._legacy(times_only)
        found = {(row.requested_time, row.action): row for row in rows}
        return [found[key] for key in sorted(found)]

    def find(self, requested_time: InstantTime, action: str) -> HistoryInstant | None:
        """
        One archived instant with its content, None when it is not in the history of layout 2.

        Outside: 1 get (version) or 1 list, 1 get (manifest), 1 get per file of that time.
        """
        if self._legacy_folder is not None:
            return None
        for row in self._rows(times_only=False, of=requested_time):
            if (row.requested_time, row.action) == (requested_time, action):
                return row
        return None

    @cached_property
    def completions(self) -> Mapping[InstantTime, InstantTime]:
        """
        Requested time -> completion time of every archived instant.

        One without completion time completed when it was requested, as Java takes it. A
        savepoint is left out: it shares the requested time of its commit (trap 19).

        Outside: as ``instants``, once.
        """
        return {
            row.requested_time: row.completion_time or row.requested_time
            for row in self.instants()
            if row.action != Action.SAVEPOINT.value
        }

    def writes_between(
        self,
        since: InstantTime,
        until: InstantTime | None,
        *,
        by_request: bool = False,
        times_only: bool = True,
    ) -> list[HistoryInstant]:
        """Archived writes that completed in (since, until], or were requested then."""
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
    ) -> Iterator[tuple[HistoryInstant, CommitMetadata]]:
        """Archived writes with a completion time in (since, until] and their metadata."""
        for row in self.writes_between(since, until, times_only=False):
            if row.metadata:
                path = f"{HISTORY} ({row.requested_time})"
                yield row, decode_archived_commit(row.metadata, action=row.action, path=path)

    def _rows(self, times_only: bool, of: InstantTime | None = None) -> list[HistoryInstant]:  # noqa: FBT001
        """
        The rows of the newest files; an archiver may merge them and tidy up meanwhile.

        Raises:
            MissingFileError: A file is gone that the newest manifest still names.
        """
        files = self._files()
        while True:
            rows: list[HistoryInstant] = []
            try:
                for one in files:
                    if of is None or one.first_time <= of <= one.last_time:
                        path = f"{HISTORY}/{one.file_name}"
                        data = self._storage.read(path)
                        rows += parse_history_rows(data, path=path, times_only=times_only)
            except ObjectMissingError as error:
                before, files = files, self._files()
                if files == before:
                    raise MissingFileError(
                        f"a file of the history is missing; restore it from a backup: {path}",
                        path=path,
                    ) from error
            else:
                return rows

    def _legacy(self, times_only: bool) -> Iterator[HistoryInstant]:  # noqa: FBT001
        folder = self._legacy_folder or ""
        for name in self._legacy_names(folder):
            path = f"{folder}/{name}"
            data = self._storage.read(path)
            yield from self._parse_legacy(data, path=path, times_only=times_only)

    def _legacy_names(self, folder: str) -> list[str]:
        numbered = (
            (number, name)
            for name in self._storage.names(folder)
            if (number := archive_file_number(name)) is not None
        )
        return [name for _, name in sorted(numbered)]

    def _parse_legacy(
        self, data: bytes, *, path: str, times_only: bool
    ) -> tuple[HistoryInstant, ...]:
        return parse_archive_file(data, path=path, times_only=times_only, missed=self._missed)

    def _missed(self, block: LogBlock) -> None:
        self._events.emit(
            "history.corrupt", path=block.path, offset=block.offset, bytes=block.content_length
        )

    def _files(self) -> tuple[HistoryFile, ...]:
        while True:
            number = self._manifest_number()
            if number is None:
                return ()
            path = f"{HISTORY}/manifest_{number}"
            try:
                return parse_manifest(self._storage.read(path), path=path)
            except ObjectMissingError as error:
                if number == self._manifest_number():
                    raise MissingFileError(
                        f"the history's manifest is missing; restore it from a backup: {path}",
                        path=path,
                    ) from error

    def _manifest_number(self) -> int | None:
        path = f"{HISTORY}/_version_"
        try:
            return parse_version(self._storage.read(path), path=path)
        except ObjectMissingError:
            pass
        numbers = [
            int(name.removeprefix("manifest_"))
            for name in self._storage.names(HISTORY)
            if name.startswith("manifest_") and name.removeprefix("manifest_").isdigit()
        ]
        return max(numbers, default=None)
