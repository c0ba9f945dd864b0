"""
Slices whose logs hold keys that no base file has, because a writer inserted them into a log.

Java Hudi does so where its index knows what lies in logs: INMEMORY, HBASE, Flink's state, buckets.
Its own SIMPLE and BLOOM look into base files only and write such a key a second time; here the
write stats of the logs tell which slices must be read whole. Stats count a new key as an update
where the writer chose the file group itself: with buckets, and in Flink, which fills small file
groups so. Flink's inflight files name no file groups, and buckets show in file ids or in metadata
of their own; all other writers name in the inflight file the file groups that they update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.legacy_commit import decode_legacy_commit
from timeline.context import TableContext
from timeline.errors import CorruptTableError, MissingFileError
from timeline.index.adoption import keeps_buckets
from timeline.index.consistent import FOLDER
from timeline.model.claim import FileGroupId
from timeline.model.commit_metadata import LOG_COMPACT, CommitMetadata
from timeline.model.file_group import FileSlice, LogFile
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Instant
from timeline.model.slot import SlotOwner
from timeline.ports.storage import ObjectMissingError
from timeline.reading.snapshot import Snapshot
from timeline.reading.view import FileSystemView
from timeline.rules.bucketing import bucket_of

__all__ = ["hold_inserted"]

_BUCKETS_MAX = 100_000  # file ids that are random begin with such a number once in 40,000


def hold_inserted(
    context: TableContext, view: FileSystemView, slices: Iterable[FileSlice]
) -> Iterator[FileSlice]:
    """
    The slices with a base file and logs that may hold a key which the base file never had.

    A log counts when its write stat says inserts, or says nothing: its instant is archived or its
    metadata damaged, the log is named as in version 6, or its writer's counts cannot be trusted.

    Args:
        context: The table.
        view: Of the write's snapshot, which tells what instants are on the timeline.
        slices: Those that a write looks into.

    Outside: 1 get an instant whose metadata is not known yet; where another engine wrote, 1 list
    and 1 get an instant of its that updated.
    """
    logged = [one for one in slices if one.base_file is not None and one.log_files]
    told = _Told(context, view.snapshot, logged)
    return (one for one in logged if told.inserts(one))


class _Told:
    """What the instants of logs told, each asked once."""

    def __init__(
        self, context: TableContext, snapshot: Snapshot, slices: Iterable[FileSlice]
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        times = {log.instant_time for one in slices if not _is_bucket(one) for log in one.log_files}
        found = [snapshot.active.find(time) for time in sorted(times)]
        instants = [one for one in found if one is not None and one.completed]
        read = context.world.each(self._read, instants)
        self._written = {
            one.requested_time: (one, metadata)
            for one, metadata in zip(instants, read, strict=True)
        }
        self._planned: dict[str, frozenset[FileGroupId]] = {}

    def inserts(self, one: FileSlice) -> bool:
        """Whether a log of a slice may have inserted a key."""
        if _is_bucket(one):
            return True
        # What a log compaction wrote lies in the logs it read, too, as long as they are there.
        said = [self._inserted(log) for log in one.log_files]
        return any(said) or all(each is None for each in said)

    def _inserted(self, log: LogFile) -> bool | None:
        """Whether a log may hold inserts; None of one that a log compaction wrote."""
        instant, metadata = self._written.get(log.instant_time, (None, None))
        if instant is None or metadata is None:
            return True
        if metadata.operation_type == LOG_COMPACT:
            return None
        stats = metadata.partition_to_write_stats.get(log.file_group.partition_path, ())
        mine = [one for one in stats if (one.path or "").rpartition("/")[2] == log.name]
        if not mine or any(one.num_inserts for one in mine):
            return True
        if not any(one.num_writes or one.num_update_writes for one in mine):
            return False  # deletes alone
        if SlotOwner.told_in(metadata.extra_metadata) is not None:
            return keeps_buckets(self._context.config)
        return self._rings or log.file_group not in self._updates(instant)

    def _read(self, instant: Instant) -> CommitMetadata | None:
        try:
            return self._snapshot.commits.read(instant)
        except (CorruptTableError, MissingFileError):
            return None

    def _updates(self, instant: Instant) -> frozenset[FileGroupId]:
        """The file groups that a write said to update before it wrote."""
        time = instant.requested_time
        if time not in self._planned:
            path = self._context.instant_path(pending_file_names(instant.action, time)[0])
            decode = decode_legacy_commit if instant.legacy else decode_commit
            try:
                data = self._context.world.storage.read(path)
                groups = decode(data, path=path).file_groups()
                self._planned[time] = frozenset(FileGroupId(*each) for each in groups)
            except (ObjectMissingError, CorruptTableError):
                self._planned[time] = frozenset()
        return self._planned[time]

    @cached_property
    def _rings(self) -> bool:
        """Whether the table has buckets of consistent hashing, which no file id shows."""
        return bool(self._context.world.storage.list(FOLDER))


def _is_bucket(one: FileSlice) -> bool:
    number = bucket_of(one.file_group.file_id)
    return number is not None and number < _BUCKETS_MAX
