"""
Files below a folder, in the order of their modification times.

The checkpoint is Hudi's: the modification time of the newest file that was read, in ms. A batch
takes whole files, and all files of one time. A file whose name begins with ``.`` or ``_`` does not
count: write under such a name, and rename. A rename keeps the modification time, so it must not
take longer than the next batch; ``touch`` the file after a late rename.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from hoodoo.streamer.engine import Engine, FileFormat, FileRows
from hoodoo.streamer.sources.source import SourceBatch, unreadable, wrong_checkpoint
from timeline.ports.ports import Clock, FileStat, Storage

_BYTES_MAX = 256 << 20
_HIDDEN = (".", "_")


class FileSource:
    """
    A source of files.

    Args:
        storage: Holds the folder.
        clock: Waits for young files.
        engine: Reads the files.
        form: Their format.
        bytes_max: Most bytes of files in a batch; None for 256 MiB. A single file may be larger.
        settle_ms: Age from which a file counts.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        engine: Engine,
        form: FileFormat,
        *,
        bytes_max: int | None,
        settle_ms: int,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._engine = engine
        self._form = form
        self._bytes_max = _BYTES_MAX if bytes_max is None else bytes_max
        self._settle_ms = settle_ms

    @property
    def address(self) -> str:
        return self._storage.base_uri

    def check(self, checkpoint: str | None) -> None:
        root = self._storage.capabilities.local_root
        if root is not None and not Path(root).is_dir():
            raise unreadable(self.address, "because it is not a folder; correct the path")
        if checkpoint is not None and not checkpoint.removeprefix("-").isdigit():
            raise wrong_checkpoint(self.address, checkpoint, "a modification time in ms")

    def read(self, checkpoint: str | None, schema: pa.Schema | None) -> SourceBatch:
        new, has_young = self._newer(-1 if checkpoint is None else int(checkpoint))
        if not new:
            return SourceBatch(rows=None, checkpoint=checkpoint)
        within = self._within_limit(new)
        paths = [path for path, _ in within]
        files: list[FileRows] = []
        for one in self._engine.read_files(self._form, self._storage, paths, schema):
            # Files of other columns are a batch of their own: a column that a file lacks is not
            # null, it keeps the values of the table, or is an error.
            if files and set(one.schema.names) != set(files[0].schema.names):
                next_ms = within[len(files)][1].modified_ms
                times = [stat.modified_ms for _, stat in within[: len(files)]]
                before = [each for each, ms in zip(files, times, strict=True) if ms < next_ms]
                files = before or [*files, one]  # the join refuses files of one time that differ
                break
            files.append(one)
        until = within[len(files) - 1][1].modified_ms
        return SourceBatch(
            rows=self._engine.join(files, [self._storage.locate(one.path) for one in files]),
            checkpoint=str(until),
            has_more=has_young or len(files) < len(new),
            bad=tuple(bad for one in files for bad in one.bad),
        )

    def _within_limit(self, new: Sequence[tuple[str, FileStat]]) -> Sequence[tuple[str, FileStat]]:
        """Return the first files within the limit of bytes, and all files of the last time."""
        size, count = 0, 0
        for _, group in groupby(new, key=lambda one: one[1].modified_ms):
            files = list(group)
            size += sum(stat.size_bytes for _, stat in files)
            if count and size > self._bytes_max:
                break
            count += len(files)
        return new[:count]

    def close(self) -> None:
        """Nothing is open between two reads."""

    def _newer(self, after_ms: int) -> tuple[Sequence[tuple[str, FileStat]], bool]:
        """
        Return the path and entry of each newer file, the oldest first, and whether some are young.

        If all are young it waits for them once.
        """
        for waits in (True, False):
            found = [one for one in self._files("") if one[1].modified_ms > after_ms]
            until = self._storage.now_ms() - self._settle_ms
            old = [one for one in found if one[1].modified_ms <= until]
            if old or not found:
                break
            if waits:
                self._clock.sleep_ms(self._settle_ms + 1)
        old.sort(key=lambda one: (one[1].modified_ms, one[0]))
        return old, len(old) < len(found)

    def _files(self, folder: str) -> Iterator[tuple[str, FileStat]]:
        for stat in self._storage.list(folder):
            if stat.name.startswith(_HIDDEN):
                continue
            path = f"{folder}/{stat.name}" if folder else stat.name
            if stat.is_folder:
                yield from self._files(path)
            else:
                yield path, stat
