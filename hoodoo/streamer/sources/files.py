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

from hoodoo.input_files import join_rows, read_rows, read_stored_rows
from hoodoo.streamer.bad_records import BadRecord, parse_json, read_good
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
        ending: The format, as an ending of ``input_files.FORMATS``; names of files do not count.
        bytes_max: Most bytes of files in a batch; None for 256 MiB. A single file may be larger.
        settle_ms: Age from which a file counts.
        leaves_out_bad: Whether lines of JSON that cannot be read are left out.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        *,
        ending: str,
        bytes_max: int | None,
        settle_ms: int,
        leaves_out_bad: bool = False,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._ending = ending
        self._bytes_max = _BYTES_MAX if bytes_max is None else bytes_max
        self._settle_ms = settle_ms
        self._leaves_out_bad = leaves_out_bad and ending == ".json"

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
        tables: list[pa.Table] = []
        bad: list[BadRecord] = []
        names: list[str] = []
        size, until = 0, 0
        for modified_ms, group in groupby(new, key=lambda one: one[1].modified_ms):
            files = list(group)
            more = sum(stat.size_bytes for _, stat in files)
            if tables and size + more > self._bytes_max:
                break
            found = [self._rows(path, schema) for path, _ in files]
            read = [rows for rows, _ in found]
            # Files of other columns are a batch of their own: a column that a file lacks is not
            # null, it keeps the values of the table, or is an error.
            if tables and any(set(t.column_names) != set(tables[0].column_names) for t in read):
                break
            tables += read
            bad += [one for _, those in found for one in those]
            names += [path for path, _ in files]
            size, until = size + more, modified_ms
        rows = join_rows(tables, [self._storage.locate(name) for name in names])
        has_more = has_young or len(names) < len(new)
        return SourceBatch(rows=rows, checkpoint=str(until), has_more=has_more, bad=tuple(bad))

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

    def _rows(self, path: str, schema: pa.Schema | None) -> tuple[pa.Table, list[BadRecord]]:
        root, where = self._storage.capabilities.local_root, self._storage.locate(path)
        if root is None:
            rows = read_stored_rows(self._storage.open_input(path), where, ending=self._ending)
            return rows, []
        if not self._leaves_out_bad:
            return read_rows(Path(root) / path, schema, ending=self._ending), []
        lines = (Path(root) / path).read_bytes().splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
        rows, bad = read_good([lines[one - 1] for one in numbers], schema, parse_json(where))
        return rows, [
            BadRecord(
                position=f"{where} line {numbers[one]}",
                record=lines[numbers[one] - 1].decode("utf-8", "replace"),
                reason=reason,
            )
            for one, reason in bad.items()
        ]
