"""
A snapshot: the immutable set of instants visible at one time, and the file groups they replaced.

Time travel compares requested times, inclusive, as Java Hudi does (fmt 6.5). The rule for a
committed instant is in fmt 6.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from timeline.active_timeline import ActiveTimeline, completion_order
from timeline.archived import NOTHING_ARCHIVED, ArchivedTimeline, ArchivedTimes
from timeline.codecs.commit_body import decode_archived_commit, decode_legacy_commit
from timeline.codecs.instant_avro import decode_commit
from timeline.errors import MissingFileError
from timeline.layout import HISTORY, TIMELINE
from timeline.model.commit_metadata import INTERNAL_SCHEMA_KEY, CommitMetadata
from timeline.model.file_names import BaseFile, LogFile, instant_file_name
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime, is_between
from timeline.model.write_set import FileGroupId
from timeline.ports.storage import ObjectMissingError, Storage
from timeline.rules.file_slices import Slicing

__all__ = ["CommitReader", "Snapshot"]

_CACHED_MAX = 4_096
_CACHED_LEAST = 64  # this many stay cached on any timeline


class CommitReader:
    """
    Read and cache completed commit metadata, which never changes.

    A snapshot may be pinned for long; instants archived meanwhile are read from the archived
    timeline. ``told`` returns the content of a completed file, by requested and completion time,
    if it is already known: the commit's slot contains it, too (SLOT-5).
    """

    def __init__(
        self,
        storage: Storage,
        folder: str = TIMELINE,
        history: ArchivedTimeline | None = None,
        told: Callable[[InstantTime, InstantTime], bytes | None] = lambda *_: None,
    ) -> None:
        self._told = told
        self._storage = storage
        self._folder = folder
        self._history = history
        self._kept: dict[str, CommitMetadata] = {}

    def read(self, instant: Instant) -> CommitMetadata:
        """
        Return the metadata of a completed write instant.

        Raises:
            MissingFileError: It was rolled back since it was listed.
            CorruptTableError: It cannot be decoded.
        """
        name = instant_file_name(instant)
        kept = self._kept.get(name)
        if kept is not None:
            return kept
        path = f"{self._folder}/{name}"
        try:
            told = self._told(instant.requested_time, instant.completion_time or "")
            data = told if told is not None else self._storage.read(path)
        except ObjectMissingError as error:
            decoded = self._archived(instant)
            if decoded is None:
                raise MissingFileError(
                    f"a completed instant was removed while it was read; open the table again: {path}",
                    path=path,
                ) from error
        else:
            decode = decode_legacy_commit if instant.legacy else decode_commit
            decoded = decode(data, path=path)
        self._keep(name, decoded)
        return decoded

    def _archived(self, instant: Instant) -> CommitMetadata | None:
        """Return the metadata of an instant that was archived since the caller's snapshot."""
        action = instant.action.completes_as.value
        row = self._history.find(instant.requested_time, action) if self._history else None
        if row is None or row.metadata is None:
            return None
        path = f"{HISTORY} ({row.requested_time})"
        return decode_archived_commit(row.metadata, action=row.action, path=path)

    def remember(self, instant: Instant, metadata: CommitMetadata) -> None:
        """Cache the metadata of a new commit, so that it need not be read back."""
        self._keep(instant_file_name(instant), metadata)

    def let_go(self, file_names: Collection[str]) -> None:
        """
        Drop instants that left the timeline from the cache, once it is larger than the timeline.

        A process may live for months, and the metadata of one commit may take megabytes. Archived
        instants can still be read from the archived timeline.

        Args:
            file_names: All files of the timeline, pending ones included.
        """
        if len(self._kept) > max(len(file_names), _CACHED_LEAST):
            kept = dict(self._kept)  # another thread may add one
            self._kept = {name: one for name, one in kept.items() if name in file_names}

    def _keep(self, name: str, metadata: CommitMetadata) -> None:
        if len(self._kept) >= _CACHED_MAX:
            self._kept.clear()
        self._kept[name] = metadata


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """
    The visible instants.

    Args:
        active: The timeline of the snapshot.
        head: Greatest commit slot at the time of the snapshot (n0 of BEG-4).
        as_of: Only instants requested at or before this time are visible; None for all.
        commits: Reader of commit metadata.
        slicing: How a log file finds its slice; the timeline's layout decides.
        archived_write: The metadata of the write that decided the schema last, if that may be
            archived.
        history: The archived timeline, for questions that the active timeline cannot answer; None
            for an empty one.
        ended: Returns the times that slots ended (``ended_times``); called for instants that
            neither timeline lists.
    """

    active: ActiveTimeline
    head: int
    commits: CommitReader
    as_of: InstantTime | None = None
    slicing: Slicing = Slicing.BY_COMPLETION
    archived_write: CommitMetadata | None = None
    history: ArchivedTimeline | None = None
    ended: Callable[[], frozenset[InstantTime]] = frozenset

    @cached_property
    def completions(self) -> Mapping[InstantTime, InstantTime]:
        """Map the requested time of every visible active write to its completion time."""
        return {
            instant.requested_time: instant.completion_time or instant.requested_time
            for instant in self.active.completed_writes
            if self.as_of is None or instant.requested_time <= self.as_of
        }

    @cached_property
    def first_completion(self) -> InstantTime:
        """
        Completions below this time are archived, and more may be; empty without active writes.

        A write that a savepoint keeps below the active timeline does not count.
        """
        first = self.active.first_write_time or ""
        writes = (one for one in self.active.completed_writes if one.requested_time >= first)
        return min((one.completion_time or "" for one in writes), default="")

    def writes_between(self, since: InstantTime, until: InstantTime | None) -> list[Instant]:
        """Return active writes with a completion time in (since, until]."""
        return [
            one
            for one in self.active.completed_writes
            if is_between(one.completion_time or one.requested_time, since, until)
        ]

    @property
    def newest_completion(self) -> InstantTime | None:
        """Greatest completion time among the visible instants."""
        return max(self.completions.values(), default=None)

    def is_committed(self, requested_time: InstantTime) -> bool:
        """
        Return whether files of this instant are visible (fmt 6.3).

        An instant that counts as archived counts as committed. Outside: the times of the archived
        timeline, once, if savepoints keep every write of the active timeline.
        """
        if self.as_of is not None and requested_time > self.as_of:
            return False
        if requested_time in self.completions:
            return True
        return self.active.is_archived(requested_time, lambda: self.archived)

    @cached_property
    def archived(self) -> ArchivedTimes:
        """Completion times of archived instants. Outside: once as ``ArchivedTimeline.times``."""
        return NOTHING_ARCHIVED if self.history is None else self.history.times()

    def log_file_is_visible(self, instant_time: InstantTime) -> bool:
        """
        Return whether a log file named by this instant may hold visible blocks (fmt 5.7).

        In version 6 the name contains the base instant, which does not identify the writers.
        """
        if self.slicing is Slicing.BY_COMPLETION:
            return self.is_committed(instant_time)
        return self.as_of is None or instant_time <= self.as_of

    def shows(self, file: BaseFile | LogFile) -> bool:
        """
        Return whether a file is visible, unless a replacecommit hides its file group.

        Outside: as ``is_committed``. For a file below the active timeline the times of the
        archived timeline, once, and for an instant that is not listed there the slots.
        """
        if isinstance(file, BaseFile):
            time, visible = file.requested_time, self.is_committed(file.requested_time)
        else:
            time, visible = file.instant_time, self.log_file_is_visible(file.instant_time)
        return visible and not self._rules_out(time)

    def _rules_out(self, time: InstantTime) -> bool:
        """
        Return whether an instant that counts as archived never completed (GC-7); layout 2 only.

        A rolled back writer that wakes up late may write files below the active timeline. Java
        Hudi takes every file there as committed.
        """
        if time in self.completions or self.slicing is not Slicing.BY_COMPLETION:
            return False
        if self.archived.rules_out(time):
            return True
        return time not in self.archived.completions and time in self._ended_times

    @cached_property
    def _ended_times(self) -> frozenset[InstantTime]:
        return self.ended()

    @cached_property
    def replaced(self) -> Mapping[FileGroupId, InstantTime]:
        """File groups that a visible replacecommit hides, with its requested time (fmt 6.4)."""
        hidden: dict[FileGroupId, InstantTime] = {}
        for instant in self.active.completed_writes:
            if instant.action.completes_as is not Action.REPLACECOMMIT:
                continue
            if instant.requested_time not in self.completions:
                continue
            replaced = self.commits.read(instant).partition_to_replace_file_ids or {}
            for partition_path, file_ids in replaced.items():
                for file_id in file_ids:
                    key = FileGroupId(partition_path, file_id)
                    hidden[key] = max(hidden.get(key, ""), instant.requested_time)
        return hidden

    @cached_property
    def newest_write(self) -> Instant | None:
        """The visible write with the greatest completion time."""
        if self.as_of is None:
            return self.active.newest_completed_write
        return max(self._visible_writes(), key=completion_order, default=None)

    @cached_property
    def newest_decider(self) -> Instant | None:
        """The visible active write that decided the table's schema last (fmt 3)."""
        # Nearly always the newest write decides it, so check it before sorting thousands.
        newest = self.newest_write
        if newest is None or self._decides(newest):
            return newest
        return next(filter(self._decides, self._newest_first()), None)

    @property
    def tells_schema(self) -> bool:
        """
        Whether the active timeline alone decides the schema: no archived write can be newer.

        Only a savepoint keeps a write below the active timeline; the writes after it are archived.
        """
        decider, first = self.newest_decider, self.active.first_write_time
        return decider is not None and first is not None and decider.requested_time >= first

    @cached_property
    def newest_schema_json(self) -> str | None:
        """The table schema of the newest visible commit that decides one (fmt 3)."""
        if self.newest_decider is not None and self.tells_schema:
            return self.commits.read(self.newest_decider).schema_json
        if self.archived_write is not None:
            return self.archived_write.schema_json
        # The deciding write may be archived. Services repeat its schema, which is newer than that
        # of a savepointed write.
        told = (self.commits.read(instant).schema_json for instant in self._newest_first())
        return next(filter(None, told), None)

    @cached_property
    def newest_internal_schema_json(self) -> str | None:
        """The schema with column ids of the newest visible commit, used by schema on read."""
        metadata = self.archived_write
        if metadata is None and self.newest_write is not None:
            metadata = self.commits.read(self.newest_write)
        if metadata is None:
            return None
        return metadata.extra_metadata.get(INTERNAL_SCHEMA_KEY) or None

    def _decides(self, instant: Instant) -> bool:
        metadata = self.commits.read(instant)
        return metadata.decides_schema and bool(metadata.schema_json)

    def _newest_first(self) -> list[Instant]:
        return sorted(self._visible_writes(), key=completion_order, reverse=True)

    def _visible_writes(self) -> list[Instant]:
        return [i for i in self.active.completed_writes if i.requested_time in self.completions]
