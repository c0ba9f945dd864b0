"""
Wait in line: order the writers of one file group of a table on a high-latency store.

Each of these writers merges its rows with the previous writer's result. So they must follow each
other, and a merge before the previous commit is wasted. A writer that sees another writer's commit
in its file groups therefore waits, without a lock, for all writers that began in between. They
commit in the order of their requested times, so no writer that waits has to begin again (PUB-5).
Then the writer merges and takes the next slot on the refresh that ended its wait; a commit after
that refresh would take the slot (SLOT-1). While it is next, it reads the previous writer's new file
ahead, whose name a marker contains. From one commit to the next that makes three requests in
sequence: the slot is read, the next file is written, its slot is taken.

The line orders work and does not affect safety. A writer that makes no progress is not waited for,
and a writer that is early or late is validated as always (PUB-4).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from timeline.commit.apply import not_applied
from timeline.commit.begin import StartedWrite
from timeline.commit.commit_lock import BaseState, PendingCommit, TimelineState
from timeline.commit.markers import marker_files
from timeline.commit.object_store import (
    newest_commit_there,
    refresh_at_once,
    rewritten_file_groups,
)
from timeline.commit.section import protocol_of
from timeline.commit.validate import validate_since
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import CommitMetadata, FileGroupId, WriteSet
from timeline.model.file_names import join, parse_base_file_name
from timeline.model.instant import State
from timeline.model.instant_time import InstantTime
from timeline.ports.ports import LockSharing, ObjectMissingError, open_cached
from timeline.rules.conflicts import NoConflict, Rebase, Rejected
from timeline.snapshot import ActiveTimeline

_STILL_MAX = 12  # refreshes without a commit of a writer ahead, after which waiting ends
_FRESH_REFRESHES = 4  # a refresh is valid for a commit section for this many times its duration
_STEP_MS = 5
_LONGER_MS_MAX = 100  # between two reads of a writer that is far from being next
_NEAR = 2  # writers ahead when this one is soon next and reads ahead
_EXPECTED = 2  # slots: the awaited one, or the end of the log after it


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitResult:
    """The verdict at the end of a wait, and the table state on which the slot may be taken."""

    verdict: NoConflict | Rebase | Rejected
    base_state: BaseState
    read: TimelineState
    read_at_ms: int  # on the monotonic clock

    def timeline_state(self, context: TableContext) -> TimelineState | None:
        """
        Return the table state while a commit section may use it.

        Any commit since then takes the slot. But times are drawn above all that the state shows
        (TL-SUCC-1), and it contains the table's properties, so its age is limited to a few times
        its duration.
        """
        age_ms = context.ports.clock.monotonic_ms() - self.read_at_ms
        return self.read if age_ms <= _FRESH_REFRESHES * context.last_refresh.took_ms else None


def wait_in_line(
    context: TableContext,
    started: StartedWrite,
    write_set: WriteSet,
    seen: BaseState,
    *,
    logs_may_conflict: bool,
) -> WaitResult | None:
    """
    Wait for earlier writers of the same file groups and validate against their commits.

    Args:
        context: The table.
        started: The write, which has announced its write set.
        write_set: The file groups that it changes or will change.
        seen: The base state.
        logs_may_conflict: As of ``PendingCommit``.

    Returns:
        The result; None if no writer is ahead, or if a slot that may have lost its owner rejects
        the write.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).

    Outside: nothing, or 1 list, 1 get and commit log probes at the same time, repeated while it
    waits.
    """
    wait = _LineWait(context, started, rewritten_file_groups(write_set))
    asked_at_ms = context.ports.clock.monotonic_ms()
    state = wait.wait()
    if state is None:
        return None
    came_at_ms = context.ports.clock.monotonic_ms()
    context.ports.events.emit(
        "write.place_came", rt=started.requested_time, wait_ms=came_at_ms - asked_at_ms
    )
    head, timeline, config = state
    planned = PendingCommit(
        write_set=write_set, metadata=CommitMetadata(), logs_may_conflict=logs_may_conflict
    )
    verdict, now_seen = validate_since(
        context, started, planned, seen, timeline, head=head, config=config
    )
    if isinstance(verdict, Rejected) and not_applied(context, head, timeline):
        return None  # the commit section applies that slot first: a retry needs its files
    return WaitResult(verdict=verdict, base_state=now_seen, read=state, read_at_ms=came_at_ms)


@dataclass(slots=True)
class _LineWait:
    context: TableContext
    started: StartedWrite
    mine: frozenset[FileGroupId]
    #: Files of writers ahead by requested time, and whether each was read.
    writes_ahead: dict[InstantTime, dict[str, bool]] = field(default_factory=dict)
    has_refreshed: bool = False

    def wait(self) -> TimelineState | None:
        """
        Wait until no writer ahead commits any more; return the last state.

        Returns None if no writer was ahead.
        """
        context, commit_log = self.context, self.context.commit_log
        behind = newest_commit_there(context, self.mine)
        if behind is None:
            return None
        front = self._writes_ahead(context.timelines.last, behind)
        if not front:
            return None
        still = 0
        state: TimelineState | None = None
        while (front or state is None) and still < _STILL_MAX:
            before, left = commit_log.known_head, len(front)
            self.started.heartbeat.check()
            state = self._step(front)
            came = commit_log.known_between(before, commit_log.known_head)
            front = front - {slot.requested_time for slot in came}
            if state is not None:
                front = self._writes_ahead(
                    state[1], newest_commit_there(context, self.mine) or behind
                )
            still = 0 if len(front) < left else still + 1  # new writers may follow without end
        return state or refresh_at_once(context)

    def _writes_ahead(
        self, timeline: ActiveTimeline | None, behind: InstantTime
    ) -> set[InstantTime]:
        """Return the pending writes that are to commit before this write and were not passed."""
        commit_log = self.context.commit_log
        shown = {slot.requested_time for slot in commit_log.newest_known(commit_log.known_head)}
        pending = () if timeline is None else timeline.pending
        return {
            one.requested_time
            for one in pending
            if one.state is State.INFLIGHT
            and behind < one.requested_time < self.started.requested_time
        } - shown

    def _step(self, front: set[InstantTime]) -> TimelineState | None:
        """Read the log after a pause; a writer that is next refreshes fully and reads ahead."""
        context, commit_log = self.context, self.context.commit_log
        others = len(front) - 1
        if front:
            # A slot takes at most two round trips; the next two writers pause no longer.
            longer_ms = min(max(others - 1, 0) * context.last_refresh.took_ms, _LONGER_MS_MAX)
            context.ports.clock.sleep_ms(_STEP_MS + longer_ms)
        commit_log.prefetch(_EXPECTED)
        states: list[TimelineState] = []

        def refresh() -> None:
            if others > 0:
                commit_log.head()
            else:
                states.append(refresh_at_once(context))

        joins = (
            [self._join]
            if protocol_of(context).shares_lock() and (others <= 0 or not self.has_refreshed)
            else []
        )
        self.has_refreshed = True
        context.ports.concurrently(refresh, *self._reads_ahead(front), *joins)
        return states[0] if states else None

    def _reads_ahead(self, front: set[InstantTime]) -> list[Callable[[], None]]:
        """
        Return requests that read the new files of the last writer ahead in the own file groups.

        Its markers contain the names. They are listed once, because that may take longer than a
        refresh.
        """
        if not front or len(front) > _NEAR:
            return []
        before = max(front)
        files = self.writes_ahead.setdefault(before, {})
        if not files:
            return [partial(self._ask, before, files)]
        return [partial(self._read, path, files) for path, read in files.items() if not read]

    def _ask(self, requested_time: InstantTime, files: dict[str, bool]) -> None:
        with suppress(HoodooError):
            for partition_path, name, _ in marker_files(self.context.ports.storage, requested_time):
                found = parse_base_file_name(name)
                if found and FileGroupId(partition_path, found.file_id) in self.mine:
                    files.setdefault(join(partition_path, name), False)

    def _read(self, path: str, files: dict[str, bool]) -> None:
        # A file that is not there yet is requested again.
        storage = self.context.ports.storage
        with suppress(HoodooError, ObjectMissingError), open_cached(storage, path):
            files[path] = True

    def _join(self) -> None:
        """
        Join the shared lock during other requests (LOCK-1).

        It is also started if it is free, because the writers ahead are about to need it.
        """
        lock = self.context.ports.lock
        lease = lock.acquire_while(lambda: False, "take a place", LockSharing.START)
        if lease is not None:
            lease.release()
