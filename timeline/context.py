"""
One opened table as every path sees it: ports, configuration, chain and limits in one value.

Made once per open by ``filegroups.table`` (or by a test over simulated ports); paths receive
it as their first argument and keep nothing themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from timeline.active_timeline import ActiveTimeline, TimelineReader
from timeline.archived import ArchivedTimeline
from timeline.codecs.properties import (
    TableDescriptor,
    decode_table_descriptor,
    encode_table_descriptor,
)
from timeline.commit_log import CommitLog
from timeline.errors import (
    StorageUnavailableError,
    TableReplacedError,
    UnsafeSetupError,
)
from timeline.heartbeat import HeartbeatLimits
from timeline.layout import (
    PROPERTIES,
    PROPERTIES_BACKUP,
    TABLE_DESCRIPTOR,
    legacy_archive,
    timeline_folder,
)
from timeline.low_water_mark import LowWaterMark
from timeline.model.commit_metadata import ConcurrencyMode
from timeline.model.instant_time import LOCAL, UTC_ZONE, InstantTime, TimelineZone
from timeline.model.slot import NO_SEALS, SlotSigning
from timeline.model.table_config import TableConfig
from timeline.model.time_arguments import TimeArgument, parse_instant
from timeline.ports.ports import Ports
from timeline.ports.storage import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Storage,
)
from timeline.properties.setting_enums import ClusteringUpdates, CommitLockMode, ForeignWriters
from timeline.restored_away import ended_times
from timeline.rules.conflicts import SIMPLE, ConflictStrategy
from timeline.rules.file_slices import Slicing
from timeline.rules.instant_times import SkewLimits, TimestampTexts
from timeline.rules.isolation import Isolation
from timeline.rules.retry import RateLimit, RetryBudget
from timeline.snapshot import CommitReader, Snapshot

__all__ = [
    "GLANCE_MS",
    "BatchCache",
    "DrawnTimes",
    "KnownBatches",
    "LastRefresh",
    "TableContext",
    "TableIdentity",
    "TableLimits",
]

Answer = TypeVar("Answer")

_IDENTITY_TRIES = 5
GLANCE_MS = 100  # after that another writer has probably published
_GLANCE_LOOKS = 30  # what a look costs far away, times this: a commit takes a dozen, a group twenty
_GLANCE_MS_MAX = 2_000
_SLOTS_KEPT = 64  # by who only reads


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """Every bound a path needs; defaults are Hudi's where Hudi has one."""

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
    gives_way: bool = False  # to living writers that announced the same before
    cancels_met_plans: bool = False  # a clustering that would refuse a write is cancelled
    isolation: Isolation = Isolation.SNAPSHOT
    pace: RateLimit | None = None  # writes begin as often as they like
    sealing: SlotSigning = NO_SEALS
    without_metadata_table: bool = False  # what is published switches it off where it is on (FOR-7)


@dataclass(slots=True)
class DrawnTimes:
    """
    The greatest requested time this process has begun with.

    A withdrawn or abandoned instant leaves no trace in the table; its time must still not
    be drawn again, because late requests and straggling tasks would meet files of that name.
    """

    newest: InstantTime | None = None
    took_ms: int = 0  # from drawing the last one until it was seen to stand, or not

    def note(self, requested_time: InstantTime) -> None:
        """Remember a drawn time."""
        self.newest = max(self.newest or "", requested_time)


@dataclass(slots=True)
class LastRefresh:
    """The last listing of the timeline."""

    at_ms: int = 0  # on the monotonic clock
    took_ms: int = 0
    head: int = 0  # of the chain, known before it was listed


@dataclass(frozen=True, slots=True)
class KnownBatches:
    """
    The batch ids that were looked through once, in slots and boundaries, which need not be kept.

    Args:
        through: Greatest number of those slots.
        ids: By slot number; those of collected slots may lack, and a void one's are there.
        boundary: The present boundary, -1 before any was looked for.
        archived: By number, those in its file and in those of the earlier ones it names; some
            that were never there may seem to be.
    """

    through: int = 0
    ids: Mapping[int, frozenset[str]] = field(default_factory=dict)
    boundary: int = -1
    archived: Mapping[int, Container[str]] = field(default_factory=dict)


@dataclass(slots=True)
class BatchCache:
    """What batches were seen; replaced as a whole, since threads look side by side."""

    seen: KnownBatches = field(default_factory=KnownBatches)


@dataclass(slots=True)
class TableIdentity:
    """
    The table's own identity, made by its first writer and never changed (F27).

    Reading needs none, so that a table on a read-only disk can be opened.
    """

    known: TableDescriptor | None

    def ensure(self, world: Ports, *, is_asked_later: bool = False) -> str:
        """
        The identity, made when the table has none yet.

        Outside: 1 get where it is not known; 1 create, and a look at the properties behind it,
        where there is none.

        Args:
            world: The ports.
            is_asked_later: The look behind a new one is spared: a write's turn reads the properties
                before its slot, and a service tells nobody that rows are there.

        Raises:
            CorruptTableError: The file that holds it is damaged.
            UnsafeSetupError: The table's slots are decided elsewhere than this process would
                take them (SLOT-6).
            TableReplacedError: The table has no identity because it was dropped.
            StorageUnavailableError: The storage does not answer.
        """
        if self.known is None:
            self.known = decode_table_descriptor(_table_descriptor(world, looks=not is_asked_later))
        self.assert_decided_here(world)
        return self.known.table_id

    def assert_decided_here(self, world: Ports) -> None:
        """
        Nothing where the table's slots are taken where this process would, or it has no identity.

        Raises:
            UnsafeSetupError: They are decided elsewhere (SLOT-6).
        """
        here = world.storage.capabilities.slots
        if self.known is not None and self.known.slots != here:
            raise UnsafeSetupError(
                "the commit slots of this table are decided elsewhere than this process is set up "
                "for, so it would not see the other writers; set hoodoo.slots.* as they have it: "
                f"the table says {self.known.slots!r}, this process {here!r}",
                kind="slots_elsewhere",
                table=self.known.slots,
                process=here,
            )


@dataclass(frozen=True, kw_only=True)
class TableContext:
    """Everything a path needs to know about one opened table."""

    world: Ports
    config: TableConfig
    identity: TableIdentity
    chain: CommitLog
    commits: CommitReader
    timelines: TimelineReader
    history: ArchivedTimeline  # the archived instants, in the form of the timeline's layout
    zone: TimelineZone = UTC_ZONE  # in which the digits of this table's instant times are read
    limits: TableLimits = field(default_factory=TableLimits)
    drawn: DrawnTimes = field(default_factory=DrawnTimes)
    looked: LastRefresh = field(default_factory=LastRefresh)
    pin: LowWaterMark = field(default_factory=LowWaterMark)
    batches: BatchCache = field(default_factory=BatchCache)
    # Of files, and "" of the table: the forms of keys that may have two (``writing.key_encoding``).
    key_forms: dict[str, frozenset[bool]] = field(default_factory=dict)
    # Of "", the table: how its folders show moments (``writing.moment_folders``).
    moment_texts: dict[str, TimestampTexts] = field(default_factory=dict)

    @staticmethod
    def of(world: Ports, config: TableConfig, limits: TableLimits | None = None) -> TableContext:
        """
        Open over ports; nothing is written. Outside: 1 get.

        Raises:
            CorruptTableError: The table's identity is damaged.
            UnsafeSetupError: Several plug-ins answer to the table's merger, or the table's times are
                in the zone of each process and this one's is not known here.
        """
        chosen = limits or TableLimits()
        history = _history_of(world, config)
        try:
            known = decode_table_descriptor(world.storage.read(TABLE_DESCRIPTOR))
        except ObjectMissingError:
            known = None
        table_id = None if known is None else known.table_id
        chain = CommitLog(
            world, table_id, unknown_ms_max=chosen.unknown_ms_max, key=chosen.sealing.key
        )
        zone = world.zone() if config.timeline_timezone == LOCAL else UTC_ZONE
        return TableContext(
            world=world,
            config=replace(config, merge=config.merge.merged_by(world.mergers)),
            identity=TableIdentity(known),
            chain=chain,
            commits=CommitReader(
                world.storage,
                timeline_folder(config.timeline_layout_version),
                history,
                chain.body_of,
            ),
            timelines=TimelineReader(
                world.storage,
                layout_version=config.timeline_layout_version,
                files_max=chosen.instant_files_max,
                zone=zone,
            ),
            history=history,
            zone=zone,
            limits=chosen,
        )

    @property
    def non_blocking(self) -> bool:
        """Whether writers append to one file group side by side (NBCC-1)."""
        return self.limits.mode is ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL

    @property
    def table_id(self) -> str:
        """The table's identity, for what is written; made on first use."""
        return self.identity.ensure(self.world)

    def instant_named(self, moment: TimeArgument) -> InstantTime:
        """
        The requested or completion time that a caller names by digits or a moment.

        Raises:
            InvalidInputError: As ``parse_time_travel``.
        """
        return parse_instant(moment, self.zone)

    def active(self) -> ActiveTimeline:
        """The timeline now. Outside: 1 list."""
        started, head = self.world.clock.monotonic_ms(), self.chain.known_head
        timeline = self.timelines.read()
        took_ms = self.world.clock.monotonic_ms() - started
        self.looked.at_ms, self.looked.took_ms, self.looked.head = started, took_ms, head
        self.commits.let_go(timeline.file_names)
        return timeline

    def snapshot(self, as_of: InstantTime | None = None) -> Snapshot:
        """
        What is visible now (or as of a requested time).

        The chain is read before the timeline (BEG-4), so that whatever is not in the
        snapshot comes in a slot above ``head``.
        """
        head, active = self.look()
        return self._snapshot(active, head, as_of)

    def look(self) -> tuple[int, ActiveTimeline]:
        """
        The chain's head, then the timeline (BEG-4). Outside: chain probes, 1 list.

        Where the storage is far away as ``look_with``, but what comes while it is listed again
        is left to the next look: begins that wait for the chain to stand still are overtaken.
        """
        known = self.chain.taken_head
        if not (self.world.storage.capabilities.far and self.chain.has_looked):
            head, active = self.chain.head(), self.active()
        else:
            head, active = self.world.together(self.chain.head, self.active)
            if head != known:
                active = self.active()
        self._assert_same_table(head, active)
        if self.pin.entry is None:  # else the pin tells which are needed
            self.chain.keep_newest(_SLOTS_KEPT)
        return head, active

    def look_with(
        self, beside: Callable[[], Answer], *, until_still: bool = True
    ) -> tuple[int, ActiveTimeline, Callable[[], Answer]]:
        """
        As ``look``, and something else that will be asked: beside it, or when it is asked.

        Where the storage is far away the timeline is listed while the next slot is looked for:
        what matters is that the head was known before the listing began. It is listed again
        where there are slots after that, and ``until_still`` both until there are none: whoever
        holds the queue then takes the next one for sure.
        """
        if not (self.world.storage.capabilities.far and self.chain.has_looked):
            return *self.look(), beside
        known = self.chain.taken_head
        head, active, answer = self.world.together(self.chain.head, self.active, beside)
        while head != known:
            known = self.chain.taken_head
            if not until_still:
                active = self.active()
                break
            head, active = self.world.together(self.chain.head, self.active)
        self._assert_same_table(head, active)
        return head, active, lambda: answer

    def look_at_once(
        self, beside: Callable[[], Answer] | None
    ) -> tuple[int, ActiveTimeline, Callable[[], Answer] | None]:
        """
        As ``look_with``, but the timeline is the one before the newest slots, or after them.

        For who knows what those slots change of it. Outside: chain probes and 1 list at once.
        """
        if beside is None:
            head, active = self.world.together(self.chain.head, self.active)
            answered = None
        else:
            head, active, answer = self.world.together(self.chain.head, self.active, beside)

            def answered() -> Answer:
                return answer

        self._assert_same_table(head, active)
        return head, active, answered

    def _assert_same_table(self, head: int, active: ActiveTimeline) -> None:
        """
        SLOT-9: a chain that was read earlier belongs to the timeline that was listed now.

        The files of the newest slots tell: one of them is there, unless all are plans, cuts or
        a commit whose owner is about to show it. Outside: nothing then, else 1 get.
        """
        known = self.chain.newest_known(head)
        if known and not any(self.chain.tells_table(slot, active.file_names) for slot in known):
            self.chain.assert_same_table()

    def glance(self, age_ms_max: int = 0) -> Snapshot:
        """
        A snapshot that may be a moment old, for decisions that a later look corrects.

        A writer of many small commits looked just now, when it published the last one, and
        knows what it added since. Outside: nothing then; else as ``snapshot``.

        Args:
            age_ms_max: How old it may be where that is older than ``glance_ms``.
        """
        last = self.timelines.last
        age_ms = self.world.clock.monotonic_ms() - self.looked.at_ms
        if last is None or age_ms > max(self.glance_ms, age_ms_max):
            return self.snapshot()
        head = self.looked.head
        if self.chain.last_own == head + 1:  # published on that look, and added since
            head += 1
        return self._snapshot(last, head)

    @property
    def glance_ms(self) -> int:
        """How old a look may be that a later one corrects; a slow one may be older."""
        if not self.world.storage.capabilities.far:
            return GLANCE_MS
        return min(max(GLANCE_MS, _GLANCE_LOOKS * self.looked.took_ms), _GLANCE_MS_MAX)

    def instant_path(self, file_name: str) -> str:
        """Where the file of an instant lies in this table's layout."""
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
            history=self.history,
            ended=partial(ended_times, self.chain),
        )


def _history_of(world: Ports, config: TableConfig) -> ArchivedTimeline:
    if config.timeline_layout_version == 2:
        return ArchivedTimeline(world.storage, world.events)
    folder = legacy_archive(config.raw.get("hoodie.archivelog.folder"))
    return ArchivedTimeline(world.storage, world.events, legacy_folder=folder)


def _table_descriptor(world: Ports, *, looks: bool) -> bytes:
    """What the file of the table's identity holds; whoever creates it first decides."""
    storage, fresh = world.storage, b""
    for _ in range(_IDENTITY_TRIES):
        try:
            found = storage.read(TABLE_DESCRIPTOR)
        except ObjectMissingError:
            found = fresh = fresh or _new_table_descriptor(world)
            try:
                storage.create(TABLE_DESCRIPTOR, fresh)
            except (ObjectExistsError, AmbiguousWriteError):
                continue  # taken or not answered: the next look tells who made it (UNK-5)
        if looks and found == fresh:
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
    A table without an identity may be one that is being dropped, which must get none (SLOT-9).

    The properties are looked at twice, as an update of them may end between file and backup.
    """
    if all(storage.stat(one) is None for one in (PROPERTIES, PROPERTIES_BACKUP, PROPERTIES)):
        raise TableReplacedError(
            f"the table was dropped while this handle was open: {storage.base_uri}",
            path=storage.base_uri,
        )


def _new_table_descriptor(world: Ports) -> bytes:
    slots = world.storage.capabilities.slots
    return encode_table_descriptor(TableDescriptor(table_id=world.ids.uuid(), slots=slots))
