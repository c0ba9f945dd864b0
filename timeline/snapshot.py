"""
The active timeline and the snapshot: the instants of a table at one time.

Both are values made from one listing of names. Content is read only on request; ``CommitReader``
caches commit metadata.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from timeline.archived import NOTHING_ARCHIVED, ArchivedTimeline, ArchivedTimes
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.legacy_commit import decode_archived_commit, decode_legacy_commit
from timeline.errors import MissingFileError, UnsupportedTableError, counted
from timeline.model.commit_metadata import INTERNAL_SCHEMA_KEY, CommitMetadata, FileGroupId
from timeline.model.file_names import (
    HISTORY,
    TIMELINE,
    instant_file_name,
    parse_instant_name,
    timeline_folder,
)
from timeline.model.file_slice import BaseFile, LogFile, Slicing
from timeline.model.instant import WRITE_ACTIONS, Action, Instant, State
from timeline.model.instant_time import UTC_ZONE, InstantTime, TimelineZone, is_between
from timeline.ports.ports import ObjectMissingError, Storage

#: SEC14: a hostile or neglected table must not fill the memory.
INSTANT_FILES_MAX = 3_000_000
_FILES_OF_INSTANT = 3  # requested, inflight, completed


_Key = tuple[InstantTime, str]  # requested time, action when completed
_Parse = Callable[[str], Instant | None]


@dataclass(frozen=True, kw_only=True)
class ActiveTimeline:
    """The instants in their furthest state, ascending by requested time, then action."""

    instants: tuple[Instant, ...]
    file_names: frozenset[str]

    @staticmethod
    def of(names: Iterable[str], parse: _Parse = parse_instant_name) -> ActiveTimeline:
        """
        Group file names into instants. Skip names that ``parse`` does not know (fmt 2.2).

        A clean may have several completed files under one requested time. The greatest completion
        time counts.
        """
        furthest: dict[_Key, Instant] = {}
        kept = []
        for name in names:
            instant = parse(name)
            if instant is None:
                continue
            kept.append(name)
            key = _key(instant)
            before = furthest.get(key)
            if before is None or _further(instant, before):
                furthest[key] = instant
        ordered = sorted(furthest.values(), key=_order)
        return ActiveTimeline(instants=tuple(ordered), file_names=frozenset(kept))

    def with_names(
        self, added: Iterable[str], parse: _Parse = parse_instant_name
    ) -> ActiveTimeline:
        """Return the timeline with these file names added; no name is removed."""
        instants = list(self.instants)
        kept = []
        new: list[Instant] = []
        old: list[Instant] = []
        for name in added:
            instant = parse(name)
            if instant is None:
                continue
            kept.append(name)
            at = bisect_left(instants, instant.requested_time, key=_requested_time)
            end = at
            while end < len(instants) and instants[end].requested_time == instant.requested_time:
                end += 1
            same = next((i for i in range(at, end) if _key(instants[i]) == _key(instant)), None)
            if same is None:
                instants.insert(end, instant)
            elif _further(instant, instants[same]):
                old.append(instants[same])
                instants[same] = instant
            else:
                continue
            span = slice(at, end + (same is None))
            instants[span] = sorted(instants[span], key=_order)
            new.append(instant)
        grown = ActiveTimeline(instants=tuple(instants), file_names=self.file_names.union(kept))
        self._hand_on(grown, new, old)
        return grown

    def _hand_on(
        self, grown: ActiveTimeline, new: Sequence[Instant], old: Sequence[Instant]
    ) -> None:
        """Pass cached values on, updated by the new instants, because times only grow."""
        known, later = self.__dict__, grown.__dict__
        if "newest_time" in known:
            times = [self.newest_time or "", *(instant.newest_time for instant in new)]
            later["newest_time"] = max(times) or None
        if "newest_decided_time" in known:
            decided = [instant.newest_time for instant in new if _is_decided(instant)]
            later["newest_decided_time"] = max([self.newest_decided_time or "", *decided]) or None
        if "completed_times" in known:
            outdone = frozenset(_times_of_completed(old))  # a clean with two completed files
            later["completed_times"] = (
                self.completed_times.union(_times_of_completed(new)) - outdone
            )
        latest = {_key(instant): instant for instant in new}  # each is further than the old one
        if "pending" in known:
            left = [instant for instant in self.pending if _key(instant) not in latest]
            begun = [instant for instant in latest.values() if not instant.completed]
            later["pending"] = tuple(sorted([*left, *begun], key=_order) if begun else left)
        if any(instant.completed for instant in old):
            return
        written = sorted((i for i in latest.values() if _is_written(i)), key=_order)
        if "completed_writes" in known:
            before = self.completed_writes
            if not before or not written or _order(before[-1]) < _order(written[0]):
                later["completed_writes"] = (*before, *written)
        if "newest_completed_write" in known:
            newest = filter(None, (self.newest_completed_write, *written))
            later["newest_completed_write"] = max(newest, key=completion_order, default=None)

    @cached_property
    def newest_time(self) -> InstantTime | None:
        """The greatest requested or completion time of any instant (T of the timeline)."""
        return max((instant.newest_time for instant in self.instants), default=None)

    @cached_property
    def newest_decided_time(self) -> InstantTime | None:
        """The greatest time that a commit or plan fixed, without pending writes (BEG-5)."""
        return max(
            (instant.newest_time for instant in self.instants if _is_decided(instant)),
            default=None,
        )

    @cached_property
    def completed_writes(self) -> tuple[Instant, ...]:
        """Completed instants that wrote data, ascending by requested time."""
        return tuple(i for i in self.instants if _is_written(i))

    @cached_property
    def newest_completed_write(self) -> Instant | None:
        """The completed write with the greatest completion time."""
        return max(self.completed_writes, key=completion_order, default=None)

    @cached_property
    def completed_times(self) -> frozenset[tuple[InstantTime, InstantTime]]:
        """The (requested time, completion time) pairs of all completed instants."""
        return frozenset(_times_of_completed(self.instants))

    @cached_property
    def pending(self) -> tuple[Instant, ...]:
        """Requested and inflight instants."""
        return tuple(i for i in self.instants if not i.completed)

    def has_pending(self, *actions: Action) -> bool:
        """Return whether a pending instant has one of these actions."""
        return any(one.action in actions for one in self.pending)

    @property
    def pending_ingestion(self) -> tuple[Instant, ...]:
        """Pending commits, deltacommits and replacecommits, which a rollback may target."""
        return tuple(i for i in self.pending if i.action in _BEGUN)

    @cached_property
    def first_write_time(self) -> InstantTime | None:
        """
        The requested time of the first write instant, pending or not, that no savepoint keeps.

        A savepointed write may remain when later writes are archived, so it does not mark where
        the timeline begins. None if savepoints keep every write, or if there is no write.
        """
        saved = {one.requested_time for one in self.instants if one.action is Action.SAVEPOINT}
        writes = (one.requested_time for one in self.instants if one.action in WRITE_ACTIONS)
        return next((time for time in writes if time not in saved), None)

    @cached_property
    def archived_below(self) -> InstantTime | None:
        """
        The requested time below which everything counts as archived, hence committed (fmt 6.3).

        It is the time of the first write that no savepoint keeps. If savepoints keep all writes,
        it is the time of the first write: archiving follows requested times, so everything below
        is archived. ``is_archived`` answers for later times. None without any write.
        """
        if self.first_write_time is not None:
            return self.first_write_time
        return next(
            (one.requested_time for one in self.instants if one.action in WRITE_ACTIONS), None
        )

    def is_archived(
        self, requested_time: InstantTime, archived: Callable[[], ArchivedTimes]
    ) -> bool:
        """
        Return whether an instant that is not on this timeline counts as archived (fmt 6.3).

        The timeline alone decides this while it has a write that no savepoint keeps. After a
        restore it may have none. The archived timeline then decides for times that are not below
        all savepointed writes.

        Args:
            requested_time: The instant's.
            archived: Returns the times of the archived timeline; called only if needed.
        """
        below = self.archived_below
        if below is not None and requested_time < below:
            return True
        return self.first_write_time is None and requested_time in archived().completions

    def find(self, requested_time: InstantTime, *actions: Action) -> Instant | None:
        """Return the instant with this requested time; a savepoint only if its action is given."""
        for instant in self.instants:
            if instant.requested_time != requested_time:
                continue
            if actions and instant.action not in actions:
                continue
            if not actions and instant.action is Action.SAVEPOINT:
                continue
            return instant
        return None


_BEGUN = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


class TimelineReader:
    """
    List the timeline folder repeatedly, and parse only new names.

    One write lists the timeline several times. Between two listings at most a few of thousands of
    names appear.

    Names of legacy instants have no completion time (fmt 2.2). In layout 2 it is the modification
    time of the file, as in Java. In layout 1 it is the requested time. Layout 1 orders nothing by
    completion time, and the files of a copied table have other ages (fmt 11.2).
    """

    def __init__(
        self,
        storage: Storage,
        *,
        layout_version: int = 2,
        files_max: int = INSTANT_FILES_MAX,
        zone: TimelineZone = UTC_ZONE,
    ) -> None:
        self._storage = storage
        self._files_max = files_max
        self._zone = zone
        self._folder = timeline_folder(layout_version)
        self._parse: _Parse = self._aged if layout_version == 2 else _undated
        self._modified_ms: Mapping[str, int] = {}  # of legacy files
        # Replaced as a whole, so readers on several threads need no lock.
        self._last: tuple[Sequence[str], ActiveTimeline] | None = None

    @property
    def last(self) -> ActiveTimeline | None:
        """The timeline of the last listing, with the files that this process created since."""
        return None if self._last is None else self._last[1]

    def add(self, name: str) -> None:
        """Add a file that this process just created."""
        if self._last is not None and name not in self._last[1].file_names:
            names, timeline = self._last
            self._last = (sorted([*names, name]), timeline.with_names([name], self._parse))

    def read(self) -> ActiveTimeline:
        """
        Return the timeline now. Outside: 1 list, another for legacy instants in layout 2.

        Raises:
            UnsupportedTableError: More files than ``files_max`` (SEC14).
        """
        names = self._storage.names(self._folder)
        if len(names) > self._files_max:
            raise UnsupportedTableError(
                "the timeline has more instants than hoodoo.limits.timeline.instants.max allows. "
                "Archive with a higher limit: 'hoodoo services run TABLE --service archive "
                "--hoodie-conf hoodoo.limits.timeline.instants.max=N': found about "
                f"{counted(len(names) // _FILES_OF_INSTANT, 'instant')} ({counted(len(names), 'file')}), allowed are "
                f"{self._files_max // _FILES_OF_INSTANT}",
                kind="limit",
                found=len(names),
            )
        if self._last is not None:
            before, timeline = self._last
            if before == names:
                return timeline
            known = set(before)
            added = [name for name in names if name not in known]
            if len(before) + len(added) == len(names):  # no name disappeared
                self._last = (names, timeline.with_names(added, self._parse))
                return self._last[1]
        self._last = (names, ActiveTimeline.of(names, self._parse))
        return self._last[1]

    def _aged(self, name: str) -> Instant | None:
        instant = parse_instant_name(name)
        if instant is None or not instant.legacy:
            return instant
        if name not in self._modified_ms:
            self._modified_ms = {
                entry.name: entry.modified_ms
                for entry in self._storage.list(self._folder)
                if not entry.is_folder
            }
        modified_ms = self._modified_ms.get(name, 0)
        completed = max(instant.requested_time, self._zone.instant_time(modified_ms))
        return replace(instant, completion_time=completed)


def _undated(name: str) -> Instant | None:
    """Return the instant of a file of layout 1, where names have no completion time."""
    instant = parse_instant_name(name)
    return None if instant is None or (instant.completed and not instant.legacy) else instant


def _is_decided(instant: Instant) -> bool:
    return instant.completed or instant.action not in _BEGUN


def _times_of_completed(instants: Iterable[Instant]) -> Iterator[tuple[InstantTime, InstantTime]]:
    return (
        (one.requested_time, one.completion_time or one.requested_time)
        for one in instants
        if one.completed
    )


def _key(instant: Instant) -> _Key:
    return instant.requested_time, instant.action.completes_as.value


def _order(instant: Instant) -> _Key:
    return instant.requested_time, instant.action.value


def _is_written(instant: Instant) -> bool:
    return instant.completed and instant.action in WRITE_ACTIONS


def completion_order(instant: Instant) -> InstantTime:
    """Return the completion time, for sorting; empty for a pending instant."""
    return instant.completion_time or ""


def _requested_time(instant: Instant) -> InstantTime:
    return instant.requested_time


def _further(one: Instant, other: Instant) -> bool:
    if one.state is other.state is State.COMPLETED:
        if one.legacy is not other.legacy:  # an interrupted upgrade wrote it a second time
            return other.legacy
        return (one.completion_time or "") > (other.completion_time or "")
    return one.state.rank > other.state.rank


# ----------------------------------------------------------------
# A snapshot: the immutable set of instants visible at one time, and the file groups they
# replaced.
#
# Time travel compares requested times, inclusive, as Java Hudi does (fmt 6.5). The rule for a
# committed instant is in fmt 6.3.

_CACHED_MAX = 4_096
_CACHED_LEAST = 64  # this many stay cached on any timeline


class CommitReader:
    """
    Read and cache completed commit metadata, which never changes.

    A snapshot may be pinned for long; instants archived meanwhile are read from the archived
    timeline. ``known`` returns the content of a completed file, by requested and completion time,
    if it is already known: the commit's slot contains it, too (SLOT-5).
    """

    def __init__(
        self,
        storage: Storage,
        folder: str = TIMELINE,
        history: ArchivedTimeline | None = None,
        known: Callable[[InstantTime, InstantTime], bytes | None] = lambda *_: None,
    ) -> None:
        self._known = known
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
            known = self._known(instant.requested_time, instant.completion_time or "")
            data = known if known is not None else self._storage.read(path)
        except ObjectMissingError as error:
            decoded = self._archived(instant)
            if decoded is None:
                raise MissingFileError(
                    "a completed instant was removed while it was read: open the table again: "
                    f"{path}",
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

    def cache(self, instant: Instant, metadata: CommitMetadata) -> None:
        """Cache the metadata of a new commit, so that it need not be read back."""
        self._keep(instant_file_name(instant), metadata)

    def evict(self, file_names: Collection[str]) -> None:
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
    def newest_schema_commit(self) -> Instant | None:
        """The visible active write that decided the table's schema last (fmt 3)."""
        # Nearly always the newest write decides it, so check it before sorting thousands.
        newest = self.newest_write
        if newest is None or self._decides(newest):
            return newest
        return next(filter(self._decides, self.writes_newest_first()), None)

    @property
    def decides_schema(self) -> bool:
        """
        Whether the active timeline alone decides the schema: no archived write can be newer.

        Only a savepoint keeps a write below the active timeline; the writes after it are archived.
        """
        decider, first = self.newest_schema_commit, self.active.first_write_time
        return decider is not None and first is not None and decider.requested_time >= first

    @cached_property
    def newest_schema_json(self) -> str | None:
        """The table schema of the newest visible commit that decides one (fmt 3)."""
        if self.newest_schema_commit is not None and self.decides_schema:
            return self.commits.read(self.newest_schema_commit).schema_json
        if self.archived_write is not None:
            return self.archived_write.schema_json
        # The deciding write may be archived. Services repeat its schema, which is newer than that
        # of a savepointed write.
        schemas = (self.commits.read(instant).schema_json for instant in self.writes_newest_first())
        return next(filter(None, schemas), None)

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

    def commits_newest_first(self) -> Iterator[CommitMetadata]:
        """Yield the metadata of the visible writes, the newest first. Outside: 1 get for each."""
        return (self.commits.read(instant) for instant in self.writes_newest_first())

    def writes_newest_first(self) -> list[Instant]:
        """Return the visible writes, the newest first by completion time."""
        return sorted(self._visible_writes(), key=completion_order, reverse=True)

    def _visible_writes(self) -> list[Instant]:
        return [i for i in self.active.completed_writes if i.requested_time in self.completions]
