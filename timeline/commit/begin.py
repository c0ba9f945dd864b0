"""
The begin of a write: a requested time above everything, made visible, and a base snapshot.

No lock: create-if-absent, residue classes and a look after creating give uniqueness
(BEG-*, TL-REQ-*). The snapshot is read after the requested file exists, so everything
either is in it or comes in a slot above it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from timeline.active_timeline import ActiveTimeline
from timeline.codecs.instant_avro import encode_commit, encode_requested_replace
from timeline.commit.admission import waits_for_others
from timeline.commit.apply import is_applied, try_apply
from timeline.commit.state import refresh_and_apply
from timeline.context import TableContext
from timeline.errors import (
    InternalError,
    MissingFileError,
    RolledBackError,
    StorageUnavailableError,
    TableConfigConflictError,
)
from timeline.heartbeat import Heartbeat
from timeline.layout import TIMELINE, timeline_path
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import instant_file_name
from timeline.model.instant import AbsentInstant, Action, Instant, State, check_transition
from timeline.model.instant_time import InstantTime, WallMs
from timeline.model.plans import RequestedReplaceMetadata
from timeline.model.slot import SlotKind
from timeline.ports.ports import Ports
from timeline.ports.storage import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    sync_soon,
)
from timeline.properties.setting_enums import ForeignWriters
from timeline.rules.instant_times import ahead_ms, begin_residue, next_instant_time
from timeline.snapshot import Snapshot
from timeline.truncation import renew_low_water_mark

__all__ = ["StartedWrite", "begin", "make_inflight", "refuse_during_restore"]

_REDRAWS_WITHOUT_LOCK = 3
_DRAWS_WITHOUT_QUEUE = 12  # where the lock keeps nobody from publishing
_DRAWS_MAX = 100
_AHEAD_MS_MAX = 500  # half of what is warned of (TL-SUCC-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWrite:
    """A write that began: its name, its proof of life and what it saw."""

    action: Action
    requested_time: InstantTime
    heartbeat: Heartbeat
    snapshot: Snapshot
    made_durable: Callable[[], None]  # returns once the requested file's name is on the disk

    def file_name(self, state: State) -> str:
        """The instant's file name in a pending state."""
        return instant_file_name(
            Instant(action=self.action, requested_time=self.requested_time, state=state)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedBegin:
    """A try that came to nothing."""

    decided: InstantTime  # the next one must exceed it
    look: Snapshot | None = None  # that told it, which spares the next try its own


def begin(context: TableContext, action: Action, before: Snapshot | None = None) -> StartedWrite:
    """
    Draw a requested time, make it visible and take the base snapshot.

    Outside per try: 1 put (heartbeat) and 1 create, 1 sync, 1 list, chain probes; before it 1 list, unless
    the caller or the try before has looked.

    Args:
        context: The table.
        action: COMMIT or REPLACECOMMIT (DELTACOMMIT for log writers).
        before: A look at the table of a moment ago, to spare the first list. An old one
            costs a redraw at worst: what it missed is met by the look after creating (BEG-5).

    Raises:
        TableConfigConflictError: A restore is pending (BEG-3).
        ClockRefusedError: The timeline is too far ahead of this clock.
        StorageUnavailableError: The storage does not answer.
        LockTimeoutError: The lock, needed beside other engines or after too many redraws, was
            not free in time.
        LeaseLostError: It was lost while an earlier publication was decided (FOR-4).
    """
    if renew_low_water_mark(context):
        before = None
    least = _draw_ahead_ms(context, context.drawn.took_ms) if context.chain.is_busy else ""
    # FOR-1: other engines draw under the lock and know nothing of our residues. Without it
    # both may draw the same millisecond, and theirs fails by our requested file.
    shared = context.limits.foreign_writers is ForeignWriters.EXPECTED
    for _ in range(0 if shared else _redraws(context)):
        started_ms = context.world.clock.monotonic_ms()
        begun = _try_begin(context, action, least, before)
        context.drawn.took_ms = context.world.clock.monotonic_ms() - started_ms
        if isinstance(begun, StartedWrite):
            return begun
        least, before = (
            max(begun.decided, _draw_ahead_ms(context, context.drawn.took_ms)),
            begun.look,
        )
    # Others keep publishing between our time and our look: take the queue (BEG-5).
    with context.world.lock.acquire("begin") as lease:
        if shared:  # FOR-4: what is begun above an unsettled slot would make it void
            refresh_and_apply(context, lease)
        for _ in range(_DRAWS_MAX):
            begun = _try_begin(context, action, least, None)
            if isinstance(begun, StartedWrite):
                return begun
            least = begun.decided
    raise InternalError(f"no requested time could be drawn in {_DRAWS_MAX} tries", kind="begin")


def _redraws(context: TableContext) -> int:
    """How often a time is drawn before the queue is taken, which only helps if publishers do."""
    if waits_for_others(context):
        return _REDRAWS_WITHOUT_LOCK
    return _DRAWS_WITHOUT_QUEUE


def _draw_ahead_ms(context: TableContext, took_ms: int) -> InstantTime:
    """
    As far ahead of this moment as the last try far away took (TL-SUCC-1).

    Whoever publishes there every other round would overtake each time that is drawn from the clock
    before it can be seen. This machine's own tries are over before another begins.
    """
    if not context.world.storage.capabilities.far:
        return ""
    return context.zone.instant_time(context.world.clock.now_ms() + min(took_ms, _AHEAD_MS_MAX))


def _try_begin(
    context: TableContext, action: Action, least: InstantTime, before: Snapshot | None
) -> StartedWrite | _FailedBegin:
    """One try."""
    world = context.world
    before = _without_restore(context, before or context.snapshot())
    timeline = before.active
    # The newest slot may still lack the file that shows its times.
    last = context.chain.deciding(before.head)
    decided = None if last is None else last.newest_time
    known = (timeline.newest_time, decided, least, context.drawn.newest)
    newest = max(filter(None, known), default=None)
    now = WallMs(world.clock.now_ms())
    requested_time = next_instant_time(
        now,
        newest,
        begin_residue(action),
        limits=context.limits.skew,
        zone=context.zone,
    )
    context.drawn.note(requested_time)
    behind_ms = ahead_ms(now, newest, context.zone)
    if behind_ms > context.limits.skew.warn_ms:
        world.events.emit("clock.warning", behind_ms=behind_ms, newest_time=newest)
    check_transition(action, AbsentInstant.UNBORN, State.REQUESTED)
    content = b""
    if action is Action.REPLACECOMMIT:
        content = encode_requested_replace(RequestedReplaceMetadata())
    path = timeline_path(
        instant_file_name(
            Instant(action=action, requested_time=requested_time, state=State.REQUESTED)
        )
    )
    heartbeat = _write_requested(context, requested_time, path, content)
    if heartbeat is None:
        return _FailedBegin(decided=requested_time)
    context.pin.hold(requested_time, context.chain.known_head)
    try:
        begun = StartedWrite(
            action=action,
            requested_time=requested_time,
            heartbeat=heartbeat,
            made_durable=sync_soon(world.storage, () if content else (TIMELINE,)),
            snapshot=context.snapshot(),
        )
        decided = _decided_since(context, begun, before.head)
    except Exception:
        context.pin.release(requested_time)
        _take_away(world, path, heartbeat)
        raise
    if decided is not None:
        return _withdraw(context, begun, decided)
    world.events.emit("begin.done", rt=requested_time, action=action.value)
    return begun


def _write_requested(
    context: TableContext, requested_time: InstantTime, path: str, content: bytes
) -> Heartbeat | None:
    """
    The first beat and the requested file (BEG-2); None when that is not to be proven ours.

    Beside another engine, which takes an instant without a heartbeat for dead, one is there
    before the other; as it is on this machine, where it costs nothing.
    """
    world = context.world
    beating: list[Heartbeat] = []
    shown: list[str] = []

    def beat() -> None:
        beating.append(Heartbeat.start(world, requested_time, context.limits.heartbeat))

    def show() -> None:
        # An empty file is its name, and that is made durable while rows are placed: before
        # the first data file it must be, so that a rollback finds what a power cut left.
        world.storage.create(path, content, durable=bool(content))
        shown.append(path)

    try:
        if context.limits.foreign_writers is ForeignWriters.EXPECTED:
            beat()
            show()
        else:
            world.together(beat, show)
    except ObjectExistsError:
        remove = _is_over(context, requested_time)
        _stop(beating, remove=remove)
        return None
    except (AmbiguousWriteError, StorageUnavailableError) as error:
        # TL-REQ-2: never to be proven ours. If it is, its silence lets a rollback have it.
        _stop(beating, remove=False)
        for one in shown:
            with suppress(StorageUnavailableError):
                world.storage.delete(one)
        if isinstance(error, StorageUnavailableError):
            raise
        return None
    return beating[0]


def _stop(beating: list[Heartbeat], *, remove: bool) -> None:
    for heartbeat in beating:
        heartbeat.stop(remove=remove)


def _is_over(context: TableContext, requested_time: InstantTime) -> bool:
    """
    Whether the write whose time was drawn again is completed (TL-REQ-2).

    An old look draws such times. Its own heartbeat is then gone or about to be, and ours would
    stay for good; that of a write which goes on is its proof of life and is left, whoever wrote
    it: the write takes it away when it ends.
    """
    instants = context.active().instants
    return any(i.completed for i in instants if i.requested_time == requested_time)


def _without_restore(context: TableContext, snapshot: Snapshot) -> Snapshot:
    """
    A snapshot that no restore is changing (BEG-3).

    One of ours is finished first, since its owner may be dead: its slot says all that is left
    to do. Another engine's is waited for.
    """
    last = context.chain.deciding(snapshot.head)
    if (
        last is not None
        and last.kind is SlotKind.RESTORE
        and not is_applied(last, snapshot.active, context.history)
    ):
        context.world.events.emit("begin.finished_restore", number=last.number)
        try_apply(context, last)
        snapshot = context.snapshot()
    refuse_during_restore(snapshot.active)
    return snapshot


def refuse_during_restore(timeline: ActiveTimeline) -> None:
    """
    Another engine's restore takes away what it planned to, and whatever came since.

    Raises:
        TableConfigConflictError: One is under way.
    """
    if any(i.action is Action.RESTORE for i in timeline.pending):
        raise TableConfigConflictError(
            "a restore of this table is under way; wait for it to finish, or when its engine has "
            "ended finish it by 'hoodoo restore TABLE --finish', then write again",
            kind="restore_pending",
        )


def _decided_since(
    context: TableContext, begun: StartedWrite, head_before: int
) -> InstantTime | None:
    """A time fixed at or above the own one while this write began, None for none (BEG-5)."""
    decided = begun.snapshot.active.newest_decided_time
    if decided is not None and decided >= begun.requested_time:
        return decided
    try:
        came = context.chain.between(head_before, begun.snapshot.head)
    except MissingFileError:  # collected since that look, by now for all that they decided
        return begun.requested_time
    # One that aborts this very write is among them: its time is not below that of its target.
    times = (slot.newest_time for slot in came)
    return next((time for time in times if time >= begun.requested_time), None)


def _withdraw(context: TableContext, begun: StartedWrite, decided: InstantTime) -> _FailedBegin:
    """BEG-5: nothing is written yet, so giving the time up costs one delete."""
    context.pin.release(begun.requested_time)
    context.world.events.emit("begin.redrawn", rt=begun.requested_time, decided=decided)
    _take_away(context.world, timeline_path(begun.file_name(State.REQUESTED)), begun.heartbeat)
    return _FailedBegin(decided=decided, look=begun.snapshot)


def _take_away(world: Ports, requested_path: str, heartbeat: Heartbeat) -> None:
    """Remove a begin that came to nothing; what cannot be removed must at least stop beating."""
    try:
        world.together(partial(world.storage.delete, requested_path), heartbeat.stop)
    except StorageUnavailableError:
        heartbeat.stop(remove=False)
        raise


def make_inflight(context: TableContext, begun: StartedWrite, profile: CommitMetadata) -> None:
    """
    Show what the write intends, and whose it is, before its first data file (BEG-6).

    Outside: 1 create.

    Not forced to the disk: a power cut ends the writer too, and the requested file, which
    is, keeps its instant known to a rollback.

    Raises:
        RolledBackError: The requested file is gone, or the inflight file is not ours or was
            taken away again.
        StorageUnavailableError: The storage does not answer.
    """
    check_transition(begun.action, State.REQUESTED, State.INFLIGHT)
    path = timeline_path(begun.file_name(State.INFLIGHT))
    told = {**profile.extra_metadata, **context.world.ids.identity().as_metadata}
    data = encode_commit(replace(profile, extra_metadata=told))
    try:
        begun.made_durable()
        context.world.storage.create(path, data, durable=False)
    except ObjectExistsError:
        if _content(context.world, path) != data:  # a request that came twice met itself
            raise RolledBackError(
                f"another process uses this instant; write again: {begun.requested_time}",
                requested_time=begun.requested_time,
            ) from None
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; write again: {path}", path=path
        ) from error


def _content(world: Ports, path: str) -> bytes | None:
    """None where the file is gone: whoever rolled the instant back took it away meanwhile."""
    try:
        return world.storage.read(path)
    except ObjectMissingError:
        return None
