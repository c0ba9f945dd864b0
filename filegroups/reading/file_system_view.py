"""
The file system view: the files that make up the table in one snapshot.

A listing of the partition folders finds the files, as in every Hudi reader without a metadata
table. The snapshot alone decides which of them count, by completion time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from filegroups.reading.partition_pruning import PartitionPruner
from timeline.errors import CorruptTableError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import (
    BaseFile,
    FileSlice,
    LogFile,
    check_partition_path,
    merged_slice,
    slice_files,
)
from timeline.model.instant import InstantTime
from timeline.partitions import is_partition_file, list_partition_paths
from timeline.ports.ports import Stats, Storage
from timeline.snapshot import Snapshot

_LISTED_AT_ONCE = 32  # partitions, on a high-latency store


@dataclass(kw_only=True)
class FileSystemView:
    """
    The file slices of a snapshot; each partition is listed when first needed.

    ``pending_compactions`` maps a file group to the requested times of its pending compactions.
    ``include_replaced`` also includes file groups that a replacecommit hides, for the cleaner.
    ``together`` lists several partitions in parallel on a high-latency store (``World.together``).
    """

    storage: Storage
    snapshot: Snapshot
    pending_compactions: dict[FileGroupId, list[InstantTime]] = field(default_factory=dict)
    include_replaced: bool = False
    together: Callable[..., tuple[Stats, ...]] | None = None
    _listed: dict[str, Stats] = field(default_factory=dict)
    _slices: dict[str, dict[FileGroupId, list[FileSlice]]] = field(default_factory=dict)
    _marked: set[str] = field(default_factory=set)
    _parents: set[str] = field(default_factory=set)

    def partition_paths(self, pruner: PartitionPruner | None = None) -> list[str]:
        """Return partition paths with a folder, sorted. Outside: as ``list_partition_paths``."""
        if pruner is None:
            return list_partition_paths(self.storage)
        return pruner.partitions(list_partition_paths(self.storage, pruner.folders))

    def slices(self, partition_path: str) -> dict[FileGroupId, list[FileSlice]]:
        """Return the slices of each visible file group, oldest first. Outside: 1 list."""
        known = self._slices.get(partition_path)
        if known is None:
            known = self._slices[partition_path] = self._build(partition_path)
        return known

    @property
    def with_metadata_file(self) -> frozenset[str]:
        """The partitions seen so far that have their metadata file."""
        return frozenset(self._marked)

    def not_listed(self, partition_paths: Iterable[str]) -> list[str]:
        """Return those of the partitions that are neither listed nor ``marked`` so far."""
        seen = self._slices.keys() | self._marked
        return [path for path in partition_paths if path not in seen]

    def note_metadata_files(self, partition_paths: Iterable[str]) -> None:
        """Record that these partitions have their metadata files."""
        self._marked.update(partition_paths)

    def has_visible_files(self, partition_path: str) -> bool:
        """Return whether a partition was listed and has visible files."""
        return bool(self._slices.get(partition_path))

    @property
    def parents(self) -> frozenset[str]:
        """The partitions listed so far that contain folders."""
        return frozenset(self._parents)

    def latest_slices(
        self, partitions: Iterable[str] | None = None, pruner: PartitionPruner | None = None
    ) -> list[FileSlice]:
        """
        Return the slice with the newest rows of each visible file group, by path and file id.

        This is the newest slice. If a pending compaction has not written its base file yet, the
        result has the base file of the slice below and the logs of both (fmt 6.2). A pruner chooses
        among the partitions.
        """
        return [
            merged_slice(slices, self._pending(group))
            for partition_path in self._chosen(partitions, pruner)
            for group, slices in self.slices(partition_path).items()
            if slices
        ]

    def latest_slice(self, file_group: FileGroupId) -> FileSlice | None:
        """Return the slice of ``latest_slices`` for one file group; None if it is not visible."""
        slices = self.slices(file_group.partition_path).get(file_group)
        return merged_slice(slices, self._pending(file_group)) if slices else None

    def base_slices(
        self, partitions: Iterable[str] | None = None, pruner: PartitionPruner | None = None
    ) -> list[FileSlice]:
        """Return the newest base file of each visible file group, without logs (read optimized)."""
        found = []
        for partition_path in self._chosen(partitions, pruner):
            for slices in self.slices(partition_path).values():
                newest = next((one for one in reversed(slices) if one.base_file), None)
                if newest is not None:
                    found.append(replace(newest, log_files=()))
        return found

    def _chosen(
        self, partitions: Iterable[str] | None, pruner: PartitionPruner | None
    ) -> Iterator[str]:
        if partitions is None:
            chosen = self.partition_paths(pruner)
        else:
            chosen = sorted(set(partitions))
            chosen = chosen if pruner is None else pruner.partitions(chosen)
        for start in range(0, len(chosen), _LISTED_AT_ONCE):
            some = chosen[start : start + _LISTED_AT_ONCE]
            self._list([path for path in some if path not in self._slices])
            yield from some

    def _list(self, partition_paths: list[str]) -> None:
        """List partitions in parallel, if the store has a high latency."""
        if self.together is None or not self.storage.capabilities.high_latency:
            return
        for path in partition_paths:
            check_partition_path(path)
        listings = self.together(*(partial(self.storage.list, path) for path in partition_paths))
        self._listed.update(zip(partition_paths, listings, strict=True))

    def _pending(self, file_group: FileGroupId) -> list[InstantTime]:
        return self.pending_compactions.get(file_group, [])

    def _build(self, partition_path: str) -> dict[FileGroupId, list[FileSlice]]:
        check_partition_path(partition_path)
        bases: dict[tuple[FileGroupId, InstantTime], list[BaseFile]] = {}
        logs: list[LogFile] = []
        replaced = {} if self.include_replaced else self.snapshot.replaced
        whole = self._whole
        listed = self._listed.pop(partition_path, None)
        for entry in self.storage.list(partition_path) if listed is None else listed:
            if entry.is_folder:
                self._parents.add(partition_path)
                continue
            if is_partition_file(entry.name):
                self._marked.add(partition_path)
                continue
            base = BaseFile.found(partition_path, entry.name, entry.size_bytes)
            if base is not None:
                group = base.file_group
                if group not in replaced and whole.shows(base):
                    bases.setdefault((group, base.requested_time), []).append(base)
                continue
            log = LogFile.found(partition_path, entry.name, entry.size_bytes)
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
            kept = [pending_commit for pending_commit in candidates if pending_commit.path in named]
            if len(kept) == 1:
                return kept[0]
        raise CorruptTableError(
            "two base files of one instant claim the same file group; keep the one its commit "
            f"metadata names: {[pending_commit.path for pending_commit in candidates]}",
            path=first.path,
        )
