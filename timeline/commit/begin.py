"""
Begin a write: draw a requested time above all others, make it visible, read the base snapshot.

In mode ``ours`` it needs no lock: create-if-absent, residue classes and a refresh after creating
make the time unique (BEG-*, TL-REQ-*). The snapshot is read after the requested file exists. So
every commit is either in the snapshot or in a slot above it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from timeline.codecs.instant_avro import encode_commit, encode_requested_replace
from timeline.commit.apply import is_applied, try_apply
from timeline.commit.section import protocol_of
from timeline.context import TableContext
from timeline.errors import (
    InternalError,
    MissingFileError,
    RolledBackError,
    StorageUnavailableError,
    TableConfigConflictError,
)
from timeline.heartbeat import Heartbeat
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import TIMELINE, instant_file_name, timeline_path
from timeline.model.instant import (
    AbsentInstant,
    Action,
    Instant,
    State,
    begin_residue,
    check_transition,
)
from timeline.model.instant_time import InstantTime, WallMs, ahead_ms, next_instant_time
from timeline.model.plans import RequestedReplaceMetadata
from timeline.model.slot import SlotKind
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Ports,
    sync_soon,
)
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.truncation import renew_low_water_mark

_DRAWS_MAX = 100  # under the lock


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWrite:
    """A write that began: its instant, its heartbeat and its base snapshot."""

    action: Action
    requested_time: InstantTime
    heartbeat: Heartbeat
    snapshot: Snapshot
    wait_durable: Callable[[], None]  # returns when the requested file's name is on disk

    def file_name(self, state: State) -> str:
        """Return the instant's file name in a pending state."""
        return instant_file_name(
            Instant(action=self.action, requested_time=self.requested_time, state=state)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedBegin:
    """An attempt to begin that failed."""

    decided: InstantTime  # the next time must exceed it
    state: Snapshot | None = None  # shows that time, and saves the next attempt a refresh


def begin(context: TableContext, action: Action, before: Snapshot | None = None) -> StartedWrite:
    """
    Draw a requested time, make it visible and take the base snapshot.

    Outside per attempt: 1 put (heartbeat) and 1 create, 1 sync, 1 list, commit log probes; before
    it 1 list, unless the caller or the attempt before has read the table.

    Args:
        context: The table.
        action: COMMIT or REPLACECOMMIT (DELTACOMMIT for log writers).
        before: A snapshot taken a moment ago, to save the first list. An old one costs at worst
            another draw: the refresh after creating finds the missing instants (BEG-5).

    Raises:
        TableConfigConflictError: A restore is pending (BEG-3).
        ClockRefusedError: The timeline is too far ahead of this clock.
        StorageUnavailableError: The storage does not answer.
        LockTimeoutError: The lock was not free in time. It is needed in mode ``shared`` or after
            too many draws.
        LeaseLostError: The lock was lost while an earlier slot was decided (FOR-4).
    """
    if renew_low_water_mark(context):
        before = None
    protocol = protocol_of(context)
    least = protocol.least_time() if context.commit_log.is_contended else ""
    for _ in range(protocol.draws_without_lock()):
        started_ms = context.ports.clock.monotonic_ms()
        started = _try_begin(context, action, least, before)
        context.drawn_times.took_ms = context.ports.clock.monotonic_ms() - started_ms
        if isinstance(started, StartedWrite):
            return started
        least, before = max(started.decided, protocol.least_time()), started.state
    # Other writers keep committing between our draw and our refresh: take the lock (BEG-5).
    with context.ports.lock.acquire("begin") as lease:
        if protocol.has_foreign_instants:
            protocol.refresh(lease)  # FOR-4: a begin above a slot that is not applied voids it
        for _ in range(_DRAWS_MAX):
            started = _try_begin(context, action, least, None)
            if isinstance(started, StartedWrite):
                return started
            least = started.decided
    raise InternalError(
        f"the engine drew no requested time in {_DRAWS_MAX} attempts: write again, and report it "
        "if it happens again",
        kind="begin",
    )


def _try_begin(
    context: TableContext, action: Action, least: InstantTime, before: Snapshot | None
) -> StartedWrite | _FailedBegin:
    """Try once to begin."""
    ports = context.ports
    before = _without_restore(context, before or context.snapshot())
    timeline = before.active
    # The newest slot may still lack its file, so the timeline may not show its times.
    last = context.commit_log.newest_own_slot(before.head)
    decided = None if last is None else last.newest_time
    known = (timeline.newest_time, decided, least, context.drawn_times.newest)
    newest = max(filter(None, known), default=None)
    now = WallMs(ports.clock.now_ms())
    requested_time = next_instant_time(
        now,
        newest,
        begin_residue(action),
        limits=context.limits.skew,
        zone=context.zone,
    )
    context.drawn_times.note(requested_time)
    behind_ms = ahead_ms(now, newest, context.zone)
    if behind_ms > context.limits.skew.warn_ms:
        ports.events.emit("clock.warning", behind_ms=behind_ms, newest_time=newest)
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
    context.low_water_mark.keep_above(requested_time, context.commit_log.known_head)
    try:
        started = StartedWrite(
            action=action,
            requested_time=requested_time,
            heartbeat=heartbeat,
            wait_durable=sync_soon(ports.storage, () if content else (TIMELINE,)),
            snapshot=context.snapshot(),
        )
        decided = _decided_since(context, started, before.head)
    except Exception:
        context.low_water_mark.release(requested_time)
        _take_away(ports, path, heartbeat)
        raise
    if decided is not None:
        return _withdraw(context, started, decided)
    ports.events.emit("begin.done", rt=requested_time, action=action.value)
    return started


def _write_requested(
    context: TableContext, requested_time: InstantTime, path: str, content: bytes
) -> Heartbeat | None:
    """
    Write the first heartbeat and the requested file (BEG-2); None if it may not be ours.

    In mode ``shared`` the heartbeat is there first, because another engine takes an instant without
    heartbeat for dead. On a local store the same order costs nothing.
    """
    ports = context.ports
    beating: list[Heartbeat] = []
    shown: list[str] = []

    def beat() -> None:
        beating.append(Heartbeat.start(ports, requested_time, context.limits.heartbeat))

    def show() -> None:
        # An empty file is only a name. It is made durable while file groups are assigned, before
        # the first data file, so that a rollback finds what a power failure left.
        ports.storage.create(path, content, durable=bool(content))
        shown.append(path)

    try:
        if protocol_of(context).has_foreign_instants:
            beat()
            show()
        else:
            ports.concurrently(beat, show)
    except ObjectExistsError:
        remove = _is_over(context, requested_time)
        _stop(beating, remove=remove)
        return None
    except (AmbiguousWriteError, StorageUnavailableError) as error:
        # TL-REQ-2: it can never be proven ours. If it is ours, its missing heartbeat lets a
        # rollback end it.
        _stop(beating, remove=False)
        for one in shown:
            with suppress(StorageUnavailableError):
                ports.storage.delete(one)
        if isinstance(error, StorageUnavailableError):
            raise
        return None
    return beating[0]


def _stop(beating: list[Heartbeat], *, remove: bool) -> None:
    for heartbeat in beating:
        heartbeat.stop(remove=remove)


def _is_over(context: TableContext, requested_time: InstantTime) -> bool:
    """
    Return whether the write whose time was drawn again is completed (TL-REQ-2).

    An old snapshot leads to such a time. The completed write's heartbeat is deleted or about to be,
    and ours would stay for ever, so ours is removed. The heartbeat of a running write shows that it
    is alive. It stays, no matter which process wrote it: the write deletes it when it ends.
    """
    instants = context.active().instants
    return any(i.completed for i in instants if i.requested_time == requested_time)


def _without_restore(context: TableContext, snapshot: Snapshot) -> Snapshot:
    """
    Return a snapshot that no restore is changing (BEG-3).

    A restore of ours is applied first, because its owner may be dead; its slot contains all that is
    left to do. A pending restore of another engine raises.
    """
    last = context.commit_log.newest_own_slot(snapshot.head)
    if (
        last is not None
        and last.kind is SlotKind.RESTORE
        and not is_applied(last, snapshot.active, context.archived_timeline)
    ):
        context.ports.events.emit("begin.finished_restore", number=last.number)
        try_apply(context, last)
        snapshot = context.snapshot()
    refuse_during_restore(snapshot.active)
    return snapshot


def refuse_during_restore(timeline: ActiveTimeline) -> None:
    """
    Refuse to write during another engine's restore, which also removes newer instants.

    Raises:
        TableConfigConflictError: A restore is pending.
    """
    if any(i.action is Action.RESTORE for i in timeline.pending):
        raise TableConfigConflictError(
            "a restore of this table is pending. Wait until it finishes, then write again. If "
            "its process ended, run 'hoodoo restore TABLE --finish' first",
            kind="restore_pending",
        )


def _decided_since(
    context: TableContext, started: StartedWrite, head_before: int
) -> InstantTime | None:
    """Return a time decided since the begin and not below the own one, or None (BEG-5)."""
    decided = started.snapshot.active.newest_decided_time
    if decided is not None and decided >= started.requested_time:
        return decided
    try:
        came = context.commit_log.between(head_before, started.snapshot.head)
    except MissingFileError:  # truncated since that snapshot; its times need not be known
        return started.requested_time
    # A rollback of this very write is among them: its time is not below its target's.
    times = (slot.newest_time for slot in came)
    return next((time for time in times if time >= started.requested_time), None)


def _withdraw(context: TableContext, started: StartedWrite, decided: InstantTime) -> _FailedBegin:
    """Give the time up (BEG-5); nothing is written yet, so that costs one delete."""
    context.low_water_mark.release(started.requested_time)
    context.ports.events.emit("begin.redrawn", rt=started.requested_time, decided=decided)
    _take_away(context.ports, timeline_path(started.file_name(State.REQUESTED)), started.heartbeat)
    return _FailedBegin(decided=decided, state=started.snapshot)


def _take_away(ports: Ports, requested_path: str, heartbeat: Heartbeat) -> None:
    """Delete a failed begin's files; if that fails, at least stop its heartbeat."""
    try:
        ports.concurrently(partial(ports.storage.delete, requested_path), heartbeat.stop)
    except StorageUnavailableError:
        heartbeat.stop(remove=False)
        raise


def make_inflight(context: TableContext, started: StartedWrite, profile: CommitMetadata) -> None:
    """
    Create the inflight file, with workload profile and writer, before the first data file (BEG-6).

    Outside: 1 create.

    The file is not synced: a power failure ends the writer too, and the requested file, which is
    synced, keeps the instant visible to a rollback.

    Raises:
        RolledBackError: The requested file is gone, or the inflight file is not ours or was deleted
            again.
        StorageUnavailableError: The storage does not answer.
    """
    check_transition(started.action, State.REQUESTED, State.INFLIGHT)
    path = timeline_path(started.file_name(State.INFLIGHT))
    metadata = {**profile.extra_metadata, **context.ports.ids.identity().as_metadata}
    data = encode_commit(replace(profile, extra_metadata=metadata))
    try:
        started.wait_durable()
        context.ports.storage.create(path, data, durable=False)
    except ObjectExistsError:
        if _content(context.ports, path) != data:  # equal: our own request arrived twice
            raise RolledBackError(
                "another process already uses this instant time; write again: "
                f"{started.requested_time}",
                requested_time=started.requested_time,
            ) from None
    except AmbiguousWriteError as error:
        raise StorageUnavailableError(
            f"the storage did not answer; write again: {path}", path=path
        ) from error


def _content(ports: Ports, path: str) -> bytes | None:
    """Return the content; None if a rollback deleted the file meanwhile."""
    try:
        return ports.storage.read(path)
    except ObjectMissingError:
        return None
