"""
Sort the records of a new partition of the metadata table, on disk if they are many.

A base file has its records by ascending key. A build gets them by the files of the table, so it
sorts them all. Rows above a limit go to a temporary file. Keys of a sample then split it into files
that fit in memory, each with a range of keys.
"""

from __future__ import annotations

import shutil
import tempfile  # noqa: TID251 - a folder for its owner alone (SEC12); rows of an object store, too
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.arrow_columns import one_array
from timeline.errors import StorageUnavailableError

_ROWS_MAX: Final = 256 * 1024  # in memory; a row has some hundred bytes
_PARTS_MAX: Final = 64  # files that one file is split into
_SAMPLED: Final = 64  # keys of each batch
_PLACE: Final = "place"
_DIGITS: Final = 9  # of the number of a file group


class SortedRecords(AbstractContextManager["SortedRecords"]):
    """
    Records by file group and key; of equal keys the last one counts, if a key occurs once.

    Args:
        shape: The schema of the records, with a column ``key`` of texts.
        once: Whether a key occurs once in a file group.
        rows_max: The most rows in memory; more rows only if they have one key.
    """

    def __init__(self, shape: pa.Schema, *, once: bool, rows_max: int = _ROWS_MAX) -> None:
        self._shape = shape.append(pa.field(_PLACE, pa.string()))
        self._once = once
        self._rows_max = rows_max
        self._pending: list[pa.Table] = []
        self._count = 0
        self._folder: Path | None = None
        self._file: _Spilled | None = None

    def add(self, records: pa.Table, numbers: npt.NDArray[np.int64]) -> None:
        """Add records, and the number of the file group of each. Shapes: n rows, (n,)."""
        if not records.num_rows:
            return
        digits = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), _DIGITS, "0")
        places = pc.binary_join_element_wise(digits, one_array(records.column("key")), "")
        self._pending.append(records.append_column(_PLACE, places).cast(self._shape))
        self._count += records.num_rows
        if self._count > self._rows_max:
            if self._file is None:
                with _no_room():
                    self._folder = Path(tempfile.mkdtemp(prefix="hoodoo-"))
                    self._file = _Spilled(self._folder / "all", self._shape)
            self._file.write(pa.concat_tables(self._pending))
            self._pending, self._count = [], 0

    def runs(self) -> Iterator[tuple[int, pa.Table]]:
        """
        Yield number and records of file groups, ascending by number and then by key.

        A file group may be in several items that follow each other; the rows of a key are in one.
        """
        if self._file is None:
            parts = iter([pa.concat_tables([self._shape.empty_table(), *self._pending])])
        else:
            if self._pending:
                self._file.write(pa.concat_tables(self._pending))
                self._pending = []
            parts = self._file.parts(self._rows_max)
        for part in parts:
            yield from self._sorted(part)

    def _sorted(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        places = one_array(rows.column(_PLACE))
        order = pc.sort_indices(places)  # stable: a later record stays behind
        places = places.take(order)
        if self._once and len(places):
            differs = np.asarray(pc.not_equal(places[:-1], places[1:])).astype(np.bool_)
            is_last = pa.array(np.append(differs, True))
            order, places = order.filter(is_last), places.filter(is_last)
        numbers = np.asarray(pc.cast(pc.utf8_slice_codeunits(places, 0, _DIGITS), pa.int64()))
        starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)])
        for start, stop in pairwise([*starts.tolist(), len(numbers)]):
            some = rows.take(order[start:stop]).drop_columns([_PLACE])
            yield int(numbers[start]), some

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete the temporary files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _no_room() -> Iterator[None]:
    """Raise an error of hoodoo if the temporary folder has no room."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(
            "cannot write to the temporary folder, in which a build sorts many records: free some "
            f"room there, or set TMPDIR to another folder, then build again: {tempfile.gettempdir()} "
            f"({error})",
            path=tempfile.gettempdir(),
        ) from error


class _Spilled:
    """Rows in a temporary file."""

    def __init__(self, path: Path, shape: pa.Schema) -> None:
        self._path = path
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, shape)
        self._shape = shape
        self._rows = 0
        self._sample: list[str] = []

    def write(self, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            with _no_room():
                self._writer.write_batch(batch)
            step = max(1, batch.num_rows // _SAMPLED)
            self._sample += batch.column(_PLACE)[::step].to_pylist()
        self._rows += rows.num_rows

    def parts(self, rows_max: int) -> Iterator[pa.Table]:
        """Yield the rows in parts of ascending places, then delete the file."""
        with _no_room():
            self._writer.close()
            self._sink.close()
        bounds = self._bounds(rows_max)
        if not bounds:
            with pa.OSFile(str(self._path)) as source:
                found = pa.ipc.open_stream(source).read_all()
            self._path.unlink()
            yield found
            return
        files = [
            _Spilled(self._path.with_name(f"{self._path.name}-{number}"), self._shape)
            for number in range(len(bounds) + 1)
        ]
        with pa.OSFile(str(self._path)) as source:
            for batch in pa.ipc.open_stream(source):
                self._split(pa.Table.from_batches([batch]), bounds, files)
        self._path.unlink()
        for file in files:
            yield from file.parts(rows_max)

    def _bounds(self, rows_max: int) -> list[str]:
        """Return places that split the rows into parts; none if they fit or have one place."""
        count = min(_PARTS_MAX, -(-2 * self._rows // rows_max))
        known = sorted(self._sample)
        if self._rows <= rows_max or known[0] == known[-1]:
            return []
        chosen = {known[number * len(known) // count] for number in range(1, count)}
        return sorted(chosen - {known[0]}) or [known[-1]]

    @staticmethod
    def _split(rows: pa.Table, bounds: list[str], files: list[_Spilled]) -> None:
        places = rows.column(_PLACE)
        number = np.zeros(rows.num_rows, np.int64)
        for bound in bounds:
            number += np.asarray(pc.greater_equal(places, bound)).astype(np.int64)
        order = np.argsort(number, kind="stable")
        ends = np.searchsorted(number[order], np.arange(len(files)), side="right")
        sorted_rows, start = rows.take(pa.array(order)), 0
        for file, end in zip(files, ends.tolist(), strict=True):
            if end > start:
                file.write(sorted_rows.slice(start, end - start))
            start = end
