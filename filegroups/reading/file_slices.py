"""
From the files of partitions to their file slices.

``SliceRules`` builds all slices of some files, one object each. ``newest_slices`` takes the files of
many partitions as columns: it parses names and groups files without a loop over them. The newest
slice of a file group without log files and pending compactions is its base file with the greatest
requested time. The rules build each other group alone. A ``FileSlice`` is made when a caller reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from filegroups.schema.arrow_columns import one_array
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import BASE_FILE_PATTERN, LOG_FILE_PATTERN, check_partition_path
from timeline.model.file_slice import BaseFile, FileSlice, LogFile, merged_slice, slice_files
from timeline.model.instant_time import InstantTime
from timeline.snapshot import Snapshot

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_MADE_AT_ONCE: Final = 1_024  # slices, while a caller reads all
_SEPARATOR: Final = "\0"  # in no partition path and no file id


# ---- Listed files


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFiles:
    """
    The names and sizes of files, by partition.

    Args:
        paths: The partitions, ascending.
        starts: Where the files of each partition begin, and the number of all files.
        names: Names of files.
        sizes: Their bytes.

    Shapes: paths (p,), starts (p + 1,), names and sizes (n,).
    """

    paths: Sequence[str]
    starts: Integers
    names: pa.Array
    sizes: Integers

    @staticmethod
    def of(listings: Mapping[str, Sequence[tuple[str, int]]]) -> ListedFiles:
        """Return the files of partitions from pairs of name and size."""
        paths = sorted(listings)
        files = [file for path in paths for file in listings[path]]
        counts = [len(listings[path]) for path in paths]
        return ListedFiles(
            paths=paths,
            starts=np.cumsum([0, *counts], dtype=np.int64),
            names=pa.array([name for name, _ in files], pa.string()),
            sizes=np.array([size for _, size in files], np.int64),
        )

    @staticmethod
    def of_table(files: pa.Table, partition_paths: Iterable[str]) -> ListedFiles:
        """Return the files of partitions from columns ``partition_path``, ``name`` and ``size``."""
        paths = sorted(partition_paths)
        value_set = pa.array(paths, pa.string())
        partitions = np.asarray(pc.index_in(one_array(files.column(0)), value_set=value_set))
        order = np.argsort(partitions, kind="stable")
        return ListedFiles(
            paths=paths,
            starts=np.searchsorted(partitions[order], np.arange(len(paths) + 1)),
            names=one_array(files.column("name")).take(pa.array(order)),
            sizes=np.asarray(one_array(files.column("size")))[order],
        )

    @staticmethod
    def joined(parts: Sequence[ListedFiles]) -> ListedFiles:
        """Return the files of several partitions that have different paths."""
        if len(parts) == 1:
            return parts[0]
        paths = [path for part in parts for path in part.paths]
        every = ListedFiles(
            paths=paths,
            starts=np.cumsum(
                np.concatenate([[0], *(np.diff(part.starts) for part in parts)]), dtype=np.int64
            ),
            names=one_array(pa.chunked_array([part.names for part in parts], pa.string())),
            sizes=np.concatenate([np.zeros(0, np.int64), *(part.sizes for part in parts)]),
        )
        return every.of_partitions(sorted(range(len(paths)), key=paths.__getitem__))

    def of_partitions(self, numbers: Sequence[int]) -> ListedFiles:
        """Return the files of some partitions, by their positions in ``paths``."""
        if list(numbers) == list(range(len(self.paths))):
            return self
        chosen = np.array(numbers, np.int64)
        counts = np.diff(self.starts)[chosen]
        starts = np.cumsum(np.append(0, counts), dtype=np.int64)
        rows = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], counts)
        return ListedFiles(
            paths=[self.paths[number] for number in numbers],
            starts=starts,
            names=self.names.take(pa.array(rows)),
            sizes=self.sizes[rows],
        )

    def files(self, number: int) -> list[tuple[str, int]]:
        """Return name and size of each file of a partition."""
        start, end = int(self.starts[number]), int(self.starts[number + 1])
        names = self.names[start:end].to_pylist()
        return list(zip(names, self.sizes[start:end].tolist(), strict=True))


# ---- All slices of some files


@dataclass(frozen=True, kw_only=True)
class SliceRules:
    """
    Decides which files of a snapshot count, and builds their slices.

    Args:
        snapshot: The visible instants.
        pending_compactions: Requested times of pending compactions, by file group.
        include_replaced: Whether file groups count that a replacecommit hides.
    """

    snapshot: Snapshot
    pending_compactions: dict[FileGroupId, list[InstantTime]] = field(default_factory=dict)
    include_replaced: bool = False

    @property
    def replaced(self) -> Mapping[FileGroupId, InstantTime]:
        """The file groups that do not count."""
        return {} if self.include_replaced else self.snapshot.replaced

    def shows(self, file: BaseFile | LogFile) -> bool:
        """Return whether a file counts for slicing; it may be newer than the snapshot's time."""
        return self._whole.shows(file)

    def slices(
        self, partition_path: str, files: Iterable[tuple[str, int]]
    ) -> dict[FileGroupId, list[FileSlice]]:
        """
        Return the slices of files of one partition, by file group, oldest first.

        Raises:
            CorruptTableError: Two base files have the same instant and file group, and the commit
                does not name one of them.
        """
        bases: dict[tuple[FileGroupId, InstantTime], list[BaseFile]] = {}
        logs: list[LogFile] = []
        replaced = self.replaced
        whole = self._whole
        for name, size_bytes in files:
            base = BaseFile.found(partition_path, name, size_bytes)
            if base is not None:
                group = base.file_group
                if group not in replaced and whole.shows(base):
                    bases.setdefault((group, base.requested_time), []).append(base)
                continue
            log = LogFile.found(partition_path, name, size_bytes)
            if log is not None and log.file_group not in replaced and whole.shows(log):
                logs.append(log)
        found = slice_files(
            [self._only(candidates) for candidates in bases.values()],
            logs,
            completion_of=lambda time: (
                whole.completions.get(time) or whole.archived.completions.get(time)
            ),
            pending_compactions=self.pending_compactions,
            slicing=whole.slicing,
        )
        return found if whole is self.snapshot else self._as_of(found)

    def newest(self, slices: Sequence[FileSlice]) -> FileSlice:
        """Return the slice with the newest rows of a file group; see ``merged_slice``."""
        return merged_slice(slices, self.pending_compactions.get(slices[-1].file_group, ()))

    @cached_property
    def _whole(self) -> Snapshot:
        """
        The snapshot without an ``as_of`` time, which decides the slices (fmt 6.5).

        A log that completed after a later base file was requested belongs to that file's slice.
        """
        return self.snapshot if self.snapshot.as_of is None else replace(self.snapshot, as_of=None)

    def _as_of(
        self, found: dict[FileGroupId, list[FileSlice]]
    ) -> dict[FileGroupId, list[FileSlice]]:
        """Return the slices without files requested after the snapshot's time."""
        time = self.snapshot.as_of or ""
        kept: dict[FileGroupId, list[FileSlice]] = {}
        for group, slices in found.items():
            for one in slices:
                if one.base_instant_time > time:
                    continue
                logs = [log for log in one.log_files if log.instant_time <= time]
                if one.base_file is not None or logs:
                    kept.setdefault(group, []).append(replace(one, log_files=tuple(logs)))
        return kept

    def _only(self, candidates: list[BaseFile]) -> BaseFile:
        """Return the one base file of an instant and file group that commit metadata names."""
        if len(candidates) == 1:
            return candidates[0]
        first = candidates[0]
        instant = self.snapshot.active.find(first.requested_time)
        if instant is not None and instant.completed:
            named = self.snapshot.commits.read(instant).written_paths()
            kept = [one for one in candidates if one.path in named]
            if len(kept) == 1:
                return kept[0]
        raise CorruptTableError(
            "two base files of one instant have the same file group: keep the file that the "
            "commit's metadata names, and move the other out of the table: "
            f"{[one.path for one in candidates]}",
            path=first.path,
        )


# ---- The newest slices of many file groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """
    Visible files by partition, file id and requested time.

    Shapes: partitions, names, ids, times, sizes, is_log (n,).
    """

    paths: Sequence[str]
    partitions: Integers
    names: pa.Array
    ids: pa.Array
    times: pa.Array
    sizes: Integers
    is_log: Mask


class FileSlices(Sequence[FileSlice]):
    """
    The newest slice of each file group, by partition path and file id; each is made when read.

    Args:
        rows: The files.
        starts: The first file of each group, and the number of files.
        newest: The base file of each slice.
        is_plain: Whether that base file is the slice; else ``rules`` build it.
        rules: Build slices.
        numbers: The groups to return.

    Shapes: starts, newest, is_plain (groups,), numbers (n,).
    """

    def __init__(
        self,
        rows: _Rows,
        *,
        starts: Integers,
        newest: Integers,
        is_plain: Mask,
        rules: SliceRules,
        numbers: Integers | None = None,
    ) -> None:
        self._rows = rows
        self._starts = starts
        self._newest = newest
        self._is_plain = is_plain
        self._rules = rules
        self._numbers = np.arange(len(newest)) if numbers is None else numbers
        self._built: dict[int, FileSlice] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> FileSlice: ...

    @overload
    def __getitem__(self, at: slice) -> FileSlices: ...

    def __getitem__(self, at: int | slice) -> FileSlice | FileSlices:
        if isinstance(at, slice):
            return self.take(np.arange(len(self))[at])
        (found,) = self._made(self._numbers[[at]])
        return found

    def __iter__(self) -> Iterator[FileSlice]:
        for start in range(0, len(self), _MADE_AT_ONCE):
            yield from self._made(self._numbers[start : start + _MADE_AT_ONCE])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def take(self, places: npt.ArrayLike) -> FileSlices:
        """Return the slices at some positions. Shapes: places (m,) -> m slices."""
        found = FileSlices(
            self._rows,
            starts=self._starts,
            newest=self._newest,
            is_plain=self._is_plain,
            rules=self._rules,
            numbers=self._numbers[np.asarray(places, np.int64)],
        )
        found._built = self._built
        return found

    @property
    def plain(self) -> tuple[Integers, pa.Array, pa.Array]:
        """
        The slices that are one base file each.

        Shapes: -> (m,) their positions, partition paths and names.
        """
        places = np.flatnonzero(self._is_plain[self._numbers])
        rows = self._newest[self._numbers[places]]
        paths = pa.array(self._rows.paths, pa.string()).take(pa.array(self._rows.partitions[rows]))
        return places, paths, self._rows.names.take(pa.array(rows))

    @property
    def others(self) -> Iterator[tuple[int, FileSlice]]:
        """The positions of the other slices, which may have log files, and the slices."""
        for place in np.flatnonzero(~self._is_plain[self._numbers]).tolist():
            yield place, self[place]

    def _made(self, numbers: Integers) -> list[FileSlice]:
        rows = self._newest[numbers]
        plain = self._is_plain[numbers]
        found: list[FileSlice | None] = [None] * len(numbers)
        kept = np.flatnonzero(plain)
        at = pa.array(rows[kept])
        all_rows = self._rows
        columns = (
            kept.tolist(),
            all_rows.partitions[rows[kept]].tolist(),
            all_rows.ids.take(at).to_pylist(),
            all_rows.names.take(at).to_pylist(),
            all_rows.times.take(at).to_pylist(),
            all_rows.sizes[rows[kept]].tolist(),
        )
        for place, partition, file_id, name, time, size in zip(*columns, strict=True):
            group = FileGroupId(all_rows.paths[partition], file_id)
            base = BaseFile(file_group=group, name=name, requested_time=time, size_bytes=size)
            found[place] = FileSlice(file_group=group, base_instant_time=time, base_file=base)
        for place in np.flatnonzero(~plain).tolist():
            found[place] = self._by_rules(int(numbers[place]))
        return [one for one in found if one is not None]

    def _by_rules(self, number: int) -> FileSlice:
        known = self._built.get(number)
        if known is None:
            known = self._built[number] = self._rules.newest(self.slices_of(number))
        return known

    def slices_of(self, number: int) -> list[FileSlice]:
        """Return all slices of a file group, oldest first; empty before its first one."""
        rows, start, end = self._rows, int(self._starts[number]), int(self._starts[number + 1])
        names = rows.names[start:end].to_pylist()
        files = zip(names, rows.sizes[start:end].tolist(), strict=True)
        found = self._rules.slices(rows.paths[int(rows.partitions[start])], files)
        return next(iter(found.values()), [])


def with_logs(slices: Sequence[FileSlice]) -> Iterator[FileSlice]:
    """Yield the slices that have log files; of ``FileSlices`` only these are made."""
    found = (one for _, one in slices.others) if isinstance(slices, FileSlices) else slices
    return (one for one in found if one.log_files)


def with_files(slices: Sequence[FileSlice]) -> Sequence[FileSlice]:
    """Return the slices that have files, as all ``FileSlices`` have."""
    if isinstance(slices, FileSlices):
        return slices
    return tuple(one for one in slices if one.base_file is not None or one.log_files)


def newest_slices(files: ListedFiles, rules: SliceRules, *, base_only: bool = False) -> FileSlices:
    """
    Return the newest slice of each visible file group.

    Args:
        files: Names and sizes.
        rules: Decide which files count.
        base_only: Take no log files and no pending compactions into account (read optimized).

    Raises:
        CorruptTableError: As ``SliceRules.slices``.
    """
    for path in files.paths:
        check_partition_path(path)
    rows = _visible(files, rules, base_only=base_only)
    count = len(rows.sizes)
    same = np.zeros(count, np.bool_)  # as the group of the file before
    same[1:] = (rows.partitions[1:] == rows.partitions[:-1]) & _equal(rows.ids)
    firsts = np.flatnonzero(~same)
    twins = np.zeros(count, np.bool_)  # base files of one group and instant
    twins[1:] = same[1:] & _equal(rows.times) & ~rows.is_log[1:] & ~rows.is_log[:-1]
    numbers = np.cumsum(~same) - 1
    groups = len(firsts)
    has_twins = np.bincount(numbers[twins], minlength=groups) > 0
    is_plain = (np.bincount(numbers[rows.is_log], minlength=groups) == 0) & ~has_twins
    if not base_only and rules.pending_compactions:
        keys = _keys(rows.paths, rows.partitions[firsts], rows.ids.take(pa.array(firsts)))
        is_plain &= ~_among(keys, rules.pending_compactions)
    places = np.arange(count)
    as_of = rules.snapshot.as_of
    if as_of is not None:
        in_time = np.asarray(pc.less_equal(rows.times, as_of)).astype(np.bool_)
        places = np.where(in_time, places, -1)
    newest = np.maximum.reduceat(places, firsts) if groups else np.zeros(0, np.int64)
    found = FileSlices(
        rows,
        starts=np.append(firsts, count),
        newest=newest,
        is_plain=is_plain,
        rules=replace(rules, pending_compactions={}) if base_only else rules,
    )
    # Two files of one instant are damage, which is not found later. Of a group with logs, all files
    # may be newer than the time.
    asked = has_twins if as_of is None else ~is_plain
    is_there = np.where(is_plain, newest >= 0, True)
    for number in np.flatnonzero(asked).tolist():
        is_there[number] = bool(found.slices_of(number))
    return found if is_there.all() else found.take(np.flatnonzero(is_there))


def _visible(files: ListedFiles, rules: SliceRules, *, base_only: bool) -> _Rows:
    """Return the files that count, by partition, file id and requested time."""
    partitions = np.repeat(np.arange(len(files.paths)), np.diff(files.starts))
    parsed = pc.extract_regex(files.names, f"^{BASE_FILE_PATTERN}$")
    rest = np.flatnonzero(np.asarray(pc.is_null(parsed)))
    places = [np.flatnonzero(np.asarray(pc.is_valid(parsed)))]
    found = [parsed.take(pa.array(places[0]))]
    if len(rest) and not base_only:
        logs = pc.extract_regex(files.names.take(pa.array(rest)), f"^{LOG_FILE_PATTERN}$")
        # A change log has a suffix.
        is_log = pc.fill_null(pc.equal(pc.struct_field(logs, "cdc"), ""), False)
        at = np.flatnonzero(np.asarray(is_log))
        places.append(rest[at])
        found.append(logs.take(pa.array(at)))
    chosen = np.concatenate(places)
    names, partitions = files.names.take(pa.array(chosen)), partitions[chosen]
    ids, times = (
        one_array(pa.chunked_array([pc.struct_field(one, name) for one in found], pa.string()))
        for name in ("id", "time")
    )
    is_log = np.arange(len(chosen)) >= len(places[0])
    kept = np.ones(len(chosen), np.bool_)
    known = set(files.paths)
    hidden = [one for one in rules.replaced if one.partition_path in known]
    if hidden:
        kept &= ~_among(_keys(files.paths, partitions, ids), hidden)
    kept = _shown(names, times, is_log, kept, rules)
    table = pa.table([pa.array(partitions), ids, times], names=["partition", "id", "time"])
    order = np.asarray(
        pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    )
    order = order[kept[order]]
    at = pa.array(order)
    return _Rows(
        paths=files.paths,
        partitions=partitions[order],
        names=names.take(at),
        ids=ids.take(at),
        times=times.take(at),
        sizes=files.sizes[chosen[order]],
        is_log=is_log[order],
    )


def _shown(names: pa.Array, times: pa.Array, is_log: Mask, asked: Mask, rules: SliceRules) -> Mask:
    """Return which files are visible; those of one kind and instant are visible together."""
    encoded = times.dictionary_encode()
    codes = np.asarray(encoded.indices).astype(np.int64) * 2 + is_log
    places = np.flatnonzero(asked)
    distinct, firsts = np.unique(codes[places], return_index=True)
    shown = np.zeros(2 * len(encoded.dictionary), np.bool_)
    for code, row in zip(distinct.tolist(), places[firsts].tolist(), strict=True):
        name = names[row].as_py()
        file = (LogFile if code % 2 else BaseFile).found("", name, 0)
        shown[code] = file is not None and rules.shows(file)
    return shown[codes] & asked


def _keys(paths: Sequence[str], partitions: Integers, ids: pa.Array) -> pa.Array:
    of_files = pa.array(paths, pa.string()).take(pa.array(partitions))
    return pc.binary_join_element_wise(of_files, ids, _SEPARATOR)


def _among(keys: pa.Array, groups: Iterable[FileGroupId]) -> Mask:
    wanted = pa.array(
        [f"{one.partition_path}{_SEPARATOR}{one.file_id}" for one in groups], pa.string()
    )
    return np.asarray(pc.is_in(keys, value_set=wanted)).astype(np.bool_)


def _equal(values: pa.Array) -> Mask:
    """Return whether each value equals the one before. Shapes: (n,) -> (n - 1,)."""
    if len(values) < 2:
        return np.zeros(0, np.bool_)
    return np.asarray(pc.equal(values[1:], values[:-1])).astype(np.bool_)
