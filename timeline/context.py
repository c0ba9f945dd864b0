"""
An open table: its ports, settings, caches and commit log, in one value.

``LowWaterMark`` names the slots that the writes and snapshots of this process still need. The
registry entry shows it, and the archiver truncates the commit log below it (GC-2).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property, partial
from itertools import count
from typing import TypeVar

from timeline.archived import ArchivedTimeline
from timeline.commit_log import CommitLog, ended_times
from timeline.errors import StorageUnavailableError, TableReplacedError, UnsafeSetupError
from timeline.heartbeat import HeartbeatLimits
from timeline.model.commit_metadata import ConcurrencyMode
from timeline.model.file_names import (
    PROPERTIES,
    PROPERTIES_BACKUP,
    TABLE_DESCRIPTOR,
    TimestampTexts,
    legacy_archive,
    timeline_folder,
)
from timeline.model.file_slice import Slicing
from timeline.model.instant_time import LOCAL, UTC_ZONE, InstantTime, SkewLimits, TimelineZone
from timeline.model.slot import NO_SEALS, NOT_APPLIED_MAX, SlotSigning
from timeline.model.table_config import TableConfig
from timeline.model.time_arguments import TimeArgument, parse_instant
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Ports,
    Storage,
)
from timeline.properties.properties_file import (
    TableDescriptor,
    decode_table_descriptor,
    encode_table_descriptor,
)
from timeline.properties.setting_enums import ClusteringUpdates, CommitLockMode, ForeignWriters
from timeline.rules.conflicts import SIMPLE, ConflictStrategy
from timeline.rules.isolation import Isolation
from timeline.rules.retry import RateLimit, RetryBudget
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot, TimelineReader


@dataclass(slots=True)
class LowWaterMark:
    """
    Hold the low-water mark: the process needs the slots above ``number``, as its entry shows.

    ``entry`` is the registry entry without the mark, None while the process is in no registry.
    ``held`` maps each running write to the head of its base snapshot.
    """

    entry: Mapping[str, object] | None = None
    path: str = ""
    number: int = 0
    written_at_ms: int = 0  # monotonic, before the put; the mark counts from then on
    kept_above: dict[InstantTime, int] = field(default_factory=dict)
    overruns: int = 0  # changes whenever the mark has to be set again
    numbers: Iterator[int] = field(default_factory=partial(count, 1))

    def keep_above(self, requested_time: InstantTime, head: int) -> None:
        """Keep the slots of a write that began on a snapshot at or above this head."""
        self.kept_above[requested_time] = head

    def release(self, requested_time: InstantTime) -> None:
        """Release the slots of a write that ended."""
        self.kept_above.pop(requested_time, None)

    def floor(self, known_head: int) -> int:
        """
        Return the greatest slot number that this process no longer needs.

        The last two slots of a snapshot are read again, because their files may have appeared
        after the listing. All slots before them are applied (PUB-3).
        """
        return max(
            self.number, min([known_head, *list(self.kept_above.values())]) - NOT_APPLIED_MAX
        )


# ---- One opened table: its ports, configuration, commit log and limits in one value
# ``hoodoo.factory`` creates it once per open, and tests create it over simulated ports. Functions
# receive it as their first argument and keep no state themselves.

Answer = TypeVar("Answer")

_IDENTITY_TRIES = 5
GLANCE_MS = 100  # after that another writer has probably committed
_CACHED_REFRESHES = 30  # in refreshes of a high-latency store: a commit takes 12, a group 20
_GLANCE_MS_MAX = 2_000
_SLOTS_KEPT = 64  # by a process that only reads


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """Every limit that a function needs; the defaults are Hudi's where Hudi has one."""

    skew: SkewLimits = field(default_factory=SkewLimits)
    heartbeat: HeartbeatLimits = field(default_factory=HeartbeatLimits)
    retry: RetryBudget = field(default_factory=RetryBudget)
    unknown_ms_max: int = 60_000
    reader_lease_ms: int = 900_000  # 0 for none
    instant_files_max: int = 3_000_000
    publish_lock: CommitLockMode = CommitLockMode.LOCK
    mode: ConcurrencyMode = ConcurrencyMode.SINGLE_WRITER
    foreign_writers: ForeignWriters = ForeignWriters.NONE
    clustering_updates: ClusteringUpdates | None = None
    strategy: ConflictStrategy = SIMPLE
    waits_for_announced: bool = False  # to live writers that announced the same earlier
    cancels_conflicting_plans: bool = False  # cancel a clustering that would reject a write
    isolation: Isolation = Isolation.SNAPSHOT
    rate_limit: RateLimit | None = None  # None: no limit
    slot_signing: SlotSigning = NO_SEALS
    lists_by_metadata: bool | None = None  # reads; None: where that takes fewer requests


@dataclass(slots=True)
class DrawnTimes:
    """
    The greatest requested time that this process has drawn.

    An abandoned instant, or one that was restored away, leaves no trace in the table. Its time
    must still not be drawn again, because late requests and slow tasks would find files of that
    name.
    """

    newest: InstantTime | None = None
    took_ms: int = 0  # ms from drawing the last one until its check ended

    def note(self, requested_time: InstantTime) -> None:
        """Record a drawn time."""
        self.newest = max(self.newest or "", requested_time)


@dataclass(slots=True)
class LastRefresh:
    """The last listing of the timeline."""

    at_ms: int = 0  # on the monotonic clock
    took_ms: int = 0
    head: int = 0  # of the commit log, read before the listing


@dataclass(slots=True)
class MetadataTableCache:
    """
    What this process knows of the metadata table.

    ``config`` has the properties in which its partitions were last found changed; None before that.
    ``file_groups`` are of ``filegroups.writing.metadata_update``.
    """

    config: TableConfig | None = None
    file_groups: object = None


@dataclass(frozen=True, slots=True)
class KnownBatches:
    """
    The batch ids of slots and truncation points that were read once and need not be cached.

    Args:
        through: Greatest number of those slots.
        ids: By slot number. Truncated slots may be missing; void slots are included.
        truncation_point: The present truncation point, -1 before the first read.
        archived: By number, the ids in its file and in the earlier files that it names. It may
            contain false positives.
    """

    through: int = 0
    ids: Mapping[int, frozenset[str]] = field(default_factory=dict)
    truncation_point: int = -1
    archived: Mapping[int, Container[str]] = field(default_factory=dict)


@dataclass(slots=True)
class BatchCache:
    """The known batches; replaced as a whole, because threads read it in parallel."""

    cached: KnownBatches = field(default_factory=KnownBatches)


@dataclass(slots=True)
class TableIdentity:
    """
    The table's own identity; its first writer creates it, and it never changes (F27).

    Readers do not need it, so a table on a read-only disk can be opened.
    """

    known: TableDescriptor | None

    def ensure(self, ports: Ports, *, is_asked_later: bool = False) -> str:
        """
        Return the identity; create it if the table has none yet.

        Outside: 1 get if it is not known; if there is none 1 create, and then a check of the
        properties.

        Args:
            ports: The ports.
            is_asked_later: Skip the check after a create. A write reads the properties in its
                commit section, before its slot, and a service reports no rows as written.

        Raises:
            CorruptTableError: The file that holds it is damaged.
            UnsafeSetupError: This process is set up to take slots elsewhere than the table's
                writers (SLOT-6).
            TableReplacedError: The table has no identity because it was dropped.
            StorageUnavailableError: The storage does not answer.
        """
        if self.known is None:
            self.known = decode_table_descriptor(
                _table_descriptor(ports, checks_table=not is_asked_later)
            )
        self.assert_decided_here(ports)
        return self.known.table_id

    def assert_decided_here(self, ports: Ports) -> None:
        """
        Raise if the table's slots are taken elsewhere than by this process; pass without identity.

        Raises:
            UnsafeSetupError: They are taken elsewhere (SLOT-6).
        """
        here = ports.storage.capabilities.slots
        if self.known is not None and self.known.slots != here:
            raise UnsafeSetupError(
                "the table keeps its commit slots in another store than this process uses, so "
                "this process would miss the commits of other writers. Set hoodoo.slots.* as the "
                f"other writers do: the table has {self.known.slots!r}, this process {here!r}",
                kind="slots_elsewhere",
                table=self.known.slots,
                process=here,
            )


class ProtocolKind(Enum):
    """The commit protocols; ``timeline.commit.section`` has the class of each."""

    LOCAL = auto()
    OBJECT_STORE = auto()
    SHARED_WITH_JAVA = auto()


@dataclass(frozen=True, kw_only=True)
class TableContext:
    """Everything that a function needs to know about one opened table."""

    ports: Ports
    config: TableConfig
    identity: TableIdentity
    commit_log: CommitLog
    commits: CommitReader
    timelines: TimelineReader
    archived_timeline: ArchivedTimeline  # in the form of the timeline's layout
    zone: TimelineZone = UTC_ZONE  # the zone of this table's instant times
    limits: TableLimits = field(default_factory=TableLimits)
    drawn_times: DrawnTimes = field(default_factory=DrawnTimes)
    last_refresh: LastRefresh = field(default_factory=LastRefresh)
    low_water_mark: LowWaterMark = field(default_factory=LowWaterMark)
    batches: BatchCache = field(default_factory=BatchCache)
    metadata_table: MetadataTableCache = field(default_factory=MetadataTableCache)
    # By file, and "" for the table: the forms of keys that may have two
    # (``filegroups.writing.stored_forms``).
    key_encodings: dict[str, frozenset[bool]] = field(default_factory=dict)
    # How timestamps are shown: for "" in the table's folders, for "key" in its record keys
    # (``filegroups.writing.stored_forms``).
    timestamp_texts: dict[str, TimestampTexts] = field(default_factory=dict)

    @staticmethod
    def of(ports: Ports, config: TableConfig, limits: TableLimits | None = None) -> TableContext:
        """
        Open a table over ports; write nothing. Outside: 1 get.

        Raises:
            CorruptTableError: The table's identity is damaged.
            UnsafeSetupError: Several plug-ins offer the table's merger; or the table's times are
                in the zone of each process, and this process's zone is unknown.
        """
        chosen = limits or TableLimits()
        if ports.mergers:
            config = replace(config, merge=config.merge.merged_by(ports.mergers))
        history = _history_of(ports, config)
        try:
            known = decode_table_descriptor(ports.storage.read(TABLE_DESCRIPTOR))
        except ObjectMissingError:
            known = None
        table_id = None if known is None else known.table_id
        commit_log = CommitLog(
            ports, table_id, unknown_ms_max=chosen.unknown_ms_max, signing=chosen.slot_signing
        )
        zone = ports.zone() if config.timeline_timezone == LOCAL else UTC_ZONE
        return TableContext(
            ports=ports,
            config=config,
            identity=TableIdentity(known),
            commit_log=commit_log,
            commits=CommitReader(
                ports.storage,
                timeline_folder(config.timeline_layout_version),
                history,
                commit_log.body_of,
            ),
            timelines=TimelineReader(
                ports.storage,
                layout_version=config.timeline_layout_version,
                files_max=chosen.instant_files_max,
                zone=zone,
            ),
            archived_timeline=history,
            zone=zone,
            limits=chosen,
        )

    @cached_property
    def protocol(self) -> ProtocolKind:
        """The commit protocol of this table; its settings and storage choose it once."""
        if self.limits.foreign_writers is ForeignWriters.EXPECTED:
            return ProtocolKind.SHARED_WITH_JAVA
        far = self.ports.storage.capabilities.high_latency
        return ProtocolKind.OBJECT_STORE if far else ProtocolKind.LOCAL

    @property
    def has_foreign_writers(self) -> bool:
        """Whether Java Hudi may write to the table, too."""
        return self.protocol is ProtocolKind.SHARED_WITH_JAVA

    @property
    def non_blocking(self) -> bool:
        """Whether writers append to one file group at the same time (NBCC-1)."""
        return self.limits.mode is ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL

    @property
    def table_id(self) -> str:
        """The table's identity, for writing; created on first use."""
        return self.identity.ensure(self.ports)

    def parse_instant(self, moment: TimeArgument) -> InstantTime:
        """
        Return the requested or completion time that a caller gives as digits or as a date and time.

        Raises:
            InvalidInputError: As ``parse_time_travel``.
        """
        return parse_instant(moment, self.zone)

    def active(self) -> ActiveTimeline:
        """Return the active timeline now. Outside: 1 list."""
        started, head = self.ports.clock.monotonic_ms(), self.commit_log.known_head
        timeline = self.timelines.read()
        took_ms = self.ports.clock.monotonic_ms() - started
        self.last_refresh.at_ms, self.last_refresh.took_ms, self.last_refresh.head = (
            started,
            took_ms,
            head,
        )
        self.commits.evict(timeline.file_names)
        return timeline

    def snapshot(self, as_of: InstantTime | None = None) -> Snapshot:
        """
        Return the snapshot now, or as of a requested time.

        The commit log is read before the timeline (BEG-4), so everything that is not in the
        snapshot has a slot above ``head``.
        """
        head, active = self.refresh()
        return self._snapshot(active, head, as_of)

    def refresh(self) -> tuple[int, ActiveTimeline]:
        """
        Refresh: return the commit log's head, then the timeline (BEG-4).

        Outside: slot probes, 1 list. On a high-latency store as ``refresh_with``, but slots that
        appear during the second listing are left to the next refresh. A begin that waited for a
        quiet commit log would be overtaken.
        """
        known = self.commit_log.taken_head
        if not (self.ports.storage.capabilities.high_latency and self.commit_log.is_loaded):
            head, active = self.commit_log.head(), self.active()
        else:
            head, active = self.ports.concurrently(self.commit_log.head, self.active)
            if head != known:
                active = self.active()
        self._assert_same_table(head, active)
        if self.low_water_mark.entry is None:  # else the low-water mark decides which to keep
            self.commit_log.keep_newest(_SLOTS_KEPT)
        return head, active

    def refresh_with(
        self, request: Callable[[], Answer]
    ) -> tuple[int, ActiveTimeline, Callable[[], Answer]]:
        """
        Refresh as ``refresh``, and start another request in parallel, or when it is needed.

        On a high-latency store the timeline is listed while the next slot is probed. That is
        correct if the head was known before the listing began. If there are slots after that head,
        the timeline is listed again.
        """
        if not (self.ports.storage.capabilities.high_latency and self.commit_log.is_loaded):
            return *self.refresh(), request
        known = self.commit_log.taken_head
        head, active, answer = self.ports.concurrently(self.commit_log.head, self.active, request)
        if head != known:
            active = self.active()
        self._assert_same_table(head, active)
        return head, active, lambda: answer

    def refresh_concurrently(
        self, request: Callable[[], Answer] | None
    ) -> tuple[int, ActiveTimeline, Callable[[], Answer] | None]:
        """
        Refresh as ``refresh_with``, but the timeline may be from before or after the newest slots.

        For callers that know how those slots change it. Outside: slot probes and 1 list in
        parallel.
        """
        if request is None:
            head, active = self.ports.concurrently(self.commit_log.head, self.active)
            answered = None
        else:
            head, active, answer = self.ports.concurrently(
                self.commit_log.head, self.active, request
            )

            def answered() -> Answer:
                return answer

        self._assert_same_table(head, active)
        return head, active, answered

    def _assert_same_table(self, head: int, active: ActiveTimeline) -> None:
        """
        Check that the listed timeline belongs to the table of the cached commit log (SLOT-9).

        It does if the timeline has a file of one of the newest slots. It has none if all of them
        are plans, truncations or a commit whose owner is about to apply it; then the identity is
        read. Outside: nothing if it has one, else 1 get.
        """
        known = self.commit_log.newest_known(head)
        if known and not any(
            self.commit_log.shows_same_table(slot, active.file_names) for slot in known
        ):
            self.commit_log.assert_same_table()

    def cached_snapshot(self, age_ms_max: int = 0) -> Snapshot:
        """
        Return a cached snapshot, for decisions that a later refresh corrects.

        A writer of many small commits refreshed in its last commit, and knows the files that it
        added since. Outside: nothing if the cache is recent enough; else as ``snapshot``.

        Args:
            age_ms_max: The greatest age of the cache in ms, if greater than ``cached_snapshot_age_ms``.
        """
        last = self.timelines.last
        age_ms = self.ports.clock.monotonic_ms() - self.last_refresh.at_ms
        if last is None or age_ms > max(self.cached_snapshot_age_ms, age_ms_max):
            return self.snapshot()
        head = self.last_refresh.head
        if self.commit_log.last_own == head + 1:  # committed on that refresh, and added since
            head += 1
        return self._snapshot(last, head)

    @property
    def cached_snapshot_age_ms(self) -> int:
        """How old in ms a cached snapshot may be; after a slow refresh it may be older."""
        if not self.ports.storage.capabilities.high_latency:
            return GLANCE_MS
        return min(max(GLANCE_MS, _CACHED_REFRESHES * self.last_refresh.took_ms), _GLANCE_MS_MAX)

    def instant_path(self, file_name: str) -> str:
        """Return the path of an instant's file in this table's layout."""
        return f"{timeline_folder(self.config.timeline_layout_version)}/{file_name}"

    def _snapshot(
        self, active: ActiveTimeline, head: int, as_of: InstantTime | None = None
    ) -> Snapshot:
        layout_1 = self.config.timeline_layout_version == 1
        return Snapshot(
            active=active,
            head=head,
            commits=self.commits,
            as_of=as_of,
            slicing=Slicing.BY_NAME if layout_1 else Slicing.BY_COMPLETION,
            history=self.archived_timeline,
            ended=partial(ended_times, self.commit_log),
        )


def _history_of(ports: Ports, config: TableConfig) -> ArchivedTimeline:
    if config.timeline_layout_version == 2:
        return ArchivedTimeline(ports.storage, ports.events)
    folder = legacy_archive(config.raw.get("hoodie.archivelog.folder"))
    return ArchivedTimeline(ports.storage, ports.events, legacy_folder=folder)


def _table_descriptor(ports: Ports, *, checks_table: bool) -> bytes:
    """Return the content of the identity file; the writer that creates it first decides."""
    storage, fresh = ports.storage, b""
    for _ in range(_IDENTITY_TRIES):
        try:
            found = storage.read(TABLE_DESCRIPTOR)
        except ObjectMissingError:
            found = fresh = fresh or _new_table_descriptor(ports)
            try:
                storage.create(TABLE_DESCRIPTOR, fresh)
            except (ObjectExistsError, AmbiguousWriteError):
                continue  # taken or unanswered: read it again (UNK-5)
        if checks_table and found == fresh:
            try:
                _assert_is_there(storage)
            except TableReplacedError:
                storage.delete(TABLE_DESCRIPTOR)
                raise
        return found
    raise StorageUnavailableError(
        f"the storage did not answer; open the table again: {TABLE_DESCRIPTOR}",
        path=TABLE_DESCRIPTOR,
    )


def _assert_is_there(storage: Storage) -> None:
    """
    Raise if the table has no properties: one that is being dropped gets no identity (SLOT-9).

    The properties are checked twice, because an update of them may move between file and backup.
    """
    if all(storage.stat(one) is None for one in (PROPERTIES, PROPERTIES_BACKUP, PROPERTIES)):
        raise TableReplacedError(
            "the table was dropped while it was open. Create it again, or correct the path: "
            f"{storage.base_uri}",
            path=storage.base_uri,
        )


def _new_table_descriptor(ports: Ports) -> bytes:
    slots = ports.storage.capabilities.slots
    return encode_table_descriptor(TableDescriptor(table_id=ports.ids.uuid(), slots=slots))
