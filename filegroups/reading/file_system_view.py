"""
The file system view: the files that make up the table in one snapshot.

A listing of the partition folders finds the files, as in every Hudi reader without a metadata
table. The snapshot alone decides which of them count, by completion time. A filter on partition
columns leaves out partitions without matching rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

from filegroups.metadata_table.listing import MetadataListing
from filegroups.reading.file_slices import ListedFiles, SliceRules, newest_slices
from filegroups.reading.partition_pruning import PartitionPruner
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import check_partition_path, is_partition_file
from timeline.model.file_slice import FileSlice
from timeline.model.instant_time import InstantTime
from timeline.partitions import list_partition_paths
from timeline.ports.ports import Stats, Storage
from timeline.snapshot import Snapshot

_LISTED_AT_ONCE = 32  # partitions, on a high-latency store
_COLUMNS_MIN = 512  # files; below, objects are made as fast


#: Leaves out partitions by their statistics.
SkipPartitions: TypeAlias = Callable[[Sequence[str]], Sequence[str]]


@dataclass(kw_only=True)
class FileSystemView:
    """
    The file slices of a snapshot; each partition is listed when first needed.

    ``pending_compactions`` maps a file group to the requested times of its pending compactions.
    ``include_replaced`` also includes file groups that a replacecommit hides, for the cleaner.
    ``together`` lists several folders in parallel on a high-latency store (``Ports.concurrently``).
    ``by_metadata`` lists by the metadata table, while that can be trusted; only for reads, because
    it has no folders.
    """

    storage: Storage
    snapshot: Snapshot
    pending_compactions: dict[FileGroupId, list[InstantTime]] = field(default_factory=dict)
    include_replaced: bool = False
    together: Callable[..., tuple[Any, ...]] | None = None
    by_metadata: MetadataListing | None = None
    _listed: dict[str, tuple[ListedFiles, int]] = field(default_factory=dict)
    _slices: dict[str, dict[FileGroupId, list[FileSlice]]] = field(default_factory=dict)
    _marked: set[str] = field(default_factory=set)
    _parents: set[str] = field(default_factory=set)

    def partition_paths(self, pruner: PartitionPruner | None = None) -> list[str]:
        """Return partition paths with a folder, sorted. Outside: as ``list_partition_paths``."""
        known = None if self.by_metadata is None else self.by_metadata.partition_paths()
        if known is not None:
            return known if pruner is None else pruner.partitions(known)
        if pruner is None:
            return list_partition_paths(self.storage, together=self.together)
        found = list_partition_paths(self.storage, pruner.folders, together=self.together)
        return pruner.partitions(found)

    def slices(self, partition_path: str) -> dict[FileGroupId, list[FileSlice]]:
        """Return the slices of each visible file group, oldest first. Outside: 1 list."""
        known = self._slices.get(partition_path)
        if known is None:
            self._list([partition_path])
            files, number = self._listed[partition_path]
            known = self._rules.slices(partition_path, files.files(number))
            self._slices[partition_path] = known
        return known

    @property
    def with_metadata_file(self) -> frozenset[str]:
        """The partitions seen so far that have their metadata file."""
        return frozenset(self._marked)

    def not_listed(self, partition_paths: Iterable[str]) -> list[str]:
        """Return those of the partitions that are neither listed nor ``marked`` so far."""
        seen = self._listed.keys() | self._marked
        return [path for path in partition_paths if path not in seen]

    def note_metadata_files(self, partition_paths: Iterable[str]) -> None:
        """Record that these partitions have their metadata files."""
        self._marked.update(partition_paths)

    def has_visible_files(self, partition_path: str) -> bool:
        """Return whether a partition was listed and has visible files."""
        return partition_path in self._listed and bool(self.slices(partition_path))

    @property
    def parents(self) -> frozenset[str]:
        """The partitions listed so far that contain folders."""
        return frozenset(self._parents)

    def latest_slices(
        self,
        partitions: Iterable[str] | None = None,
        pruner: PartitionPruner | None = None,
        skip: SkipPartitions | None = None,
    ) -> Sequence[FileSlice]:
        """
        Return the slice with the newest rows of each visible file group, by path and file id.

        This is the newest slice. If a pending compaction has not written its base file yet, the
        result has the base file of the slice below and the logs of both (fmt 6.2). A pruner chooses
        among the partitions, then ``skip`` among those left.
        """
        chosen = self._chosen(partitions, pruner, skip)
        files = self._many_files(chosen)
        if files is not None:
            return newest_slices(files, self._rules)
        return [
            self._rules.newest(slices)
            for partition_path in chosen
            for slices in self.slices(partition_path).values()
            if slices
        ]

    def latest_slice(self, file_group: FileGroupId) -> FileSlice | None:
        """Return the slice of ``latest_slices`` for one file group; None if it is not visible."""
        slices = self.slices(file_group.partition_path).get(file_group)
        return self._rules.newest(slices) if slices else None

    def base_slices(
        self,
        partitions: Iterable[str] | None = None,
        pruner: PartitionPruner | None = None,
        skip: SkipPartitions | None = None,
    ) -> Sequence[FileSlice]:
        """Return the newest base file of each visible file group, without logs (read optimized)."""
        chosen = self._chosen(partitions, pruner, skip)
        files = self._many_files(chosen)
        if files is not None:
            return newest_slices(files, self._rules, base_only=True)
        found = []
        for partition_path in chosen:
            for slices in self.slices(partition_path).values():
                newest = next((one for one in reversed(slices) if one.base_file), None)
                if newest is not None:
                    found.append(replace(newest, log_files=()))
        return found

    def _chosen(
        self,
        partitions: Iterable[str] | None,
        pruner: PartitionPruner | None,
        skip: SkipPartitions | None,
    ) -> list[str]:
        if partitions is None:
            chosen = self.partition_paths(pruner)
        else:
            chosen = sorted(set(partitions))
            chosen = chosen if pruner is None else pruner.partitions(chosen)
        return chosen if skip is None else [*skip(chosen)]

    def _many_files(self, partition_paths: Sequence[str]) -> ListedFiles | None:
        """List partitions; return their files, or None for few, which columns do not make faster."""
        self._list(partition_paths)
        chosen: dict[int, tuple[ListedFiles, list[int]]] = {}
        for files, number in map(self._listed.__getitem__, partition_paths):
            chosen.setdefault(id(files), (files, []))[1].append(number)
        parts = [files.of_partitions(numbers) for files, numbers in chosen.values()]
        if sum(len(part.sizes) for part in parts) < _COLUMNS_MIN:
            return None
        return ListedFiles.joined(parts)

    def _list(self, partition_paths: Iterable[str]) -> None:
        """List the partitions that are not listed."""
        new = [path for path in partition_paths if path not in self._listed]
        if not new:
            return
        for path in new:
            check_partition_path(path)
        known = None if self.by_metadata is None else self.by_metadata.files(new)
        if known is None:
            folders = zip(new, self._folders(new), strict=True)
            found = ListedFiles.of({path: self._noted(path, some) for path, some in folders})
        else:
            found = ListedFiles.of_table(known, new)
        for number, path in enumerate(found.paths):
            self._listed[path] = found, number

    def _folders(self, partition_paths: Sequence[str]) -> Iterator[Stats]:
        """Yield what each folder contains; on a high-latency store many are listed in parallel."""
        if self.together is None or not self.storage.capabilities.high_latency:
            yield from map(self.storage.list, partition_paths)
            return
        for start in range(0, len(partition_paths), _LISTED_AT_ONCE):
            some = partition_paths[start : start + _LISTED_AT_ONCE]
            yield from self.together(*(partial(self.storage.list, path) for path in some))

    def _noted(self, partition_path: str, entries: Stats) -> list[tuple[str, int]]:
        """Return names and sizes of the files; note folders and the partition's metadata file."""
        files = []
        for entry in entries:
            if entry.is_folder:
                self._parents.add(partition_path)
            elif is_partition_file(entry.name):
                self._marked.add(partition_path)
            else:
                files.append((entry.name, entry.size_bytes))
        return files

    @cached_property
    def _rules(self) -> SliceRules:
        return SliceRules(
            snapshot=self.snapshot,
            pending_compactions=self.pending_compactions,
            include_replaced=self.include_replaced,
        )
