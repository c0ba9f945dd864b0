"""
Commit on a high-latency store: each round trip between two commits counts (PAR-1, PUB-3).

The lock saves work and decides nothing (SLOT-1). So a writer may refresh before it holds the lock:
a state that is a moment old costs at worst a slot. One commit's completed file and the next
commit's slot are created at the same time, which saves one of two round trips between commits. The
next commit's own file follows both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial

from timeline.commit.apply import (
    APPLIED_BY_A_FILE,
    apply,
    has_instant_file,
    is_applied,
    may_overlap,
    newest_slots,
    not_applied,
    revert_if_restored,
    try_apply,
)
from timeline.commit.commit_lock import (
    CommitSection,
    TimelineState,
    WriteToCommit,
    acquire_exclusively,
    follow_commit_log,
    read_table,
)
from timeline.commit.concurrent_commits import CONCURRENT_KINDS, commit_of_slot, verdict_on
from timeline.commit.protocol import (
    DRAWS_WITHOUT_LOCK,
    CommitProtocol,
    check_same_table,
    delete_from_wrong_table,
    repeat_until_known,
)
from timeline.context import TableContext
from timeline.errors import (
    HoodooError,
    MissingFileError,
    StorageUnavailableError,
    TableReplacedError,
)
from timeline.model.commit_metadata import Access, FileGroupId, WriteSet
from timeline.model.instant import State
from timeline.model.instant_time import InstantTime, WallMs, instant_time, wall_ms
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Lease, LockSharing, is_exclusive
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import CommitLockMode
from timeline.rules.conflicts import NoConflict
from timeline.snapshot import ActiveTimeline

_AHEAD_MAX = 2  # does not wait for this many writers ahead: a lost slot is noticed at once
_LINE_MS = 10_000  # ignores writers that began earlier: they are dead or write for long
_STEP_MS = 5  # delay for each writer ahead
_STEPS_MAX = 6
_WAITS_MAX = 16  # in one commit: a writer ahead may write for long
_STILL_MAX = 4  # stops waiting after this many reads without a new slot
_PAUSE_MS_MAX = 100  # between two reads of the commit log by a writer that waits


class ObjectStoreCommit(CommitProtocol):
    """
    A commit on a high-latency store.

    Without a lock all writers that lose a slot notice it at once and would request the next slot at
    once. One of them wins, and a writer may lose many times by bad luck. The same holds for writers
    that poll for a lock. So they commit in the order of their requested times. The timeline shows
    which writers are about to commit and since when. A writer that does not commit is not waited
    for (HB-4).
    """

    creates_during_refresh = True

    def __init__(
        self, context: TableContext, purpose: str, write: WriteToCommit | None = None
    ) -> None:
        super().__init__(context, purpose, write)
        self._read = write.read if write is not None else None  # the state for the next refresh
        self._has_place = self._read is not None  # no writer is ahead any more
        self._create_files = write.pending.create_files if write is not None else None
        self._validated = write.base_head if write is not None else 0
        self._gave_up_lock = False  # at most once in a commit
        self._is_without_lock = False  # the section under way is to find the conflict
        self._has_asked = False  # this section asked for a slot, or gave up the lock
        self._applied = 0  # this commit has applied all slots up to this number
        self._waited_at = 0  # head of the commit log at the last wait
        self._waits_left = _WAITS_MAX

    # ---- The lock, with a refresh meanwhile

    @contextmanager
    def _acquire(self) -> Iterator[Lease | None]:
        """
        Acquire the commit lock, if one is taken, and read the table meanwhile.

        The lease is None if the settings take no lock, or if a conflict was found while the writer
        waited.

        Raises:
            LockTimeoutError: The lock was not free in time.
        """
        self._has_asked = False
        if not self.takes_lock():
            yield None
            return
        before, self._read = self._read, None
        if self.context.ports.lock.is_fifo and self.context.commit_log.is_contended:
            with acquire_exclusively(self.context, self.purpose) as lease:
                yield lease
        else:
            with self._lock_and_state(before) as lease:
                yield lease

    @contextmanager
    def _lock_and_state(self, before: TimelineState | None) -> Iterator[Lease | None]:
        """
        Acquire the lock together with a refresh, or with a state that was read before.

        Where no other writer commits, the lock is usually free, so the refresh is usually still
        valid. A writer that had to wait refreshes again; it does so without the lock if the commit
        log meanwhile shows a conflict. A writer that may share the lock rarely waits, and refreshes
        as it does without a lock.
        """
        context = self.context
        clock = context.ports.clock
        sharing = LockSharing.START if context.commit_log.is_contended else LockSharing.JOIN
        had: list[Lease] = []
        started_ms = clock.monotonic_ms() - (context.last_refresh.took_ms if before else 0)
        ended_ms: list[int] = []

        def acquire() -> None:
            lease = context.ports.lock.acquire_while(self._is_hopeful, self.purpose, sharing)
            ended()
            if lease is None:
                return
            if lease.is_shared or self._is_hopeful():
                had.append(lease)
            else:  # a new commit rejects the write: do not hold the lock during the refresh
                lease.release()

        def read() -> TimelineState:
            asks_config = self.write is not None
            found = before or read_table(context, asks_config=asks_config)
            ended_ms.append(clock.monotonic_ms())
            return found

        with follow_commit_log(context) as ended:
            try:
                _, state, _ = context.ports.concurrently(acquire, read, self._create_before_slot)
            except BaseException:
                for lease in had:
                    lease.release()
                raise
            if not had:
                self._give_up_lock()
                yield None
                return
            with had[0] as lease:
                waited_ms = clock.monotonic_ms() - ended_ms[0]
                known = state[0] == context.commit_log.known_head
                fresh = waited_ms <= ended_ms[0] - started_ms and known
                # An exclusive holder may have changed the properties since the wait in the waiting
                # line ended.
                before_it = self._has_place and not lease.is_shared
                self._read = state if fresh and not before_it else None
                yield lease

    def _is_hopeful(self) -> bool:
        """Return whether no known slot rejects the write, or a refresh has already said so."""
        return self._gave_up_lock or not self._is_rejected()

    def _is_rejected(self) -> bool:
        """
        Return whether the slots that are in memory reject the write. Outside: nothing.

        The writer asks while it waits for the lock, and before it waits for earlier writers.
        """
        if self.write is None:
            return False
        commit_log, pending = self.context.commit_log, self.write.pending
        slots = commit_log.known_between(self._validated, commit_log.known_head)
        commits = [commit_of_slot(slot) for slot in slots if slot.kind in CONCURRENT_KINDS]
        if not commits:
            return False
        verdict = verdict_on(self.context, pending, self.write.requested_time, commits)
        mine = set(pending.write_set.inserting)
        # If both inserted keys, only the files show whether the keys are equal (C9).
        may_conflict = any(not mine.isdisjoint(one.write_set.inserting) for one in commits)
        return may_conflict or not isinstance(verdict, NoConflict)

    def _give_up_lock(self) -> None:
        """Make the next refresh without the lock, to find what rejects the write."""
        self._gave_up_lock = self._is_without_lock = True

    # ---- The refresh

    def refresh(self, lease: Lease | None) -> CommitSection:
        """
        Refresh as on a local store; a write then waits for earlier writers and refreshes again.

        It keeps a shared lease meanwhile. To join the lock again would cost a request.
        """
        section = super().refresh(lease)
        while self._wait_before_slot(section):
            section = super().refresh(lease)
        return section

    def _wait_before_slot(self, section: CommitSection) -> bool:
        """Wait for the writers ahead; return whether the table must be read again."""
        if (
            self.write is None
            or self._has_place
            or self._is_without_lock
            or not self.context.commit_log.is_contended
            or is_exclusive(section.lease)
            or self._is_rejected()
        ):
            return False
        ahead = _writes_ahead_count(section.timeline, self.write.requested_time)
        if ahead > _AHEAD_MAX and self._waits_left and section.head != self._waited_at:
            self._waits_left -= 1
            self._waited_at = section.head
            self._read_until(section.head + ahead - _AHEAD_MAX)
            return True
        self.context.ports.clock.sleep_ms(_STEP_MS * min(ahead, _STEPS_MAX))
        return False

    def _read_table(self) -> TimelineState:
        read, self._read = self._read, None
        ask = super()._read_table
        if self._create_files is None:
            return read or ask()
        state, _ = self.context.ports.concurrently(lambda: read or ask(), self._create_before_slot)
        return state

    def _create_before_slot(self) -> None:
        """Create the files of the write that must exist before its slot (MDT-2)."""
        create, self._create_files = self._create_files, None
        if create is not None:
            create()

    def _apply_earlier(self, read: TimelineState, lease: Lease | None) -> CommitSection:
        """
        Apply pending slots, but leave a commit at the head to the writer of the next slot (PUB-3).

        All committing writers wait for this round trip, so the names of the commits' files are
        added to the timeline instead of another listing (PAR-1). Validation finds later instants as
        it finds everything after a refresh.
        """
        context = self.context
        head, timeline, config = read
        left = not_applied(context, head, timeline)
        deferred = left[-1] if self.write is not None and may_overlap(left[-1]) else None
        for slot in left:
            if slot is not deferred and self._applied < slot.number:
                try_apply(context, slot)
                revert_helped(context, slot)
        names = [
            slot.file_name for slot in left if slot.file_name and slot.kind in APPLIED_BY_A_FILE
        ]
        shown = context.active() if len(names) < len(left) else timeline.with_names(names)
        section = CommitSection.of(context, (head, shown, config), left[-1], lease)
        return replace(section, deferred_slot=deferred)

    def _leave(self, section: CommitSection) -> None:
        if not self._has_asked:
            self._apply_deferred(section)  # a retry must find what rejected this attempt
            self._revert_deferred(section)

    def _apply_deferred(self, section: CommitSection) -> None:
        if section.deferred_slot is not None and self._applied < section.deferred_slot.number:
            try_apply(self.context, section.deferred_slot)
            self._applied = section.deferred_slot.number

    def _revert_deferred(self, section: CommitSection) -> None:
        """Revert the previous commit's file if RST-4 requires it, after the next slot was lost."""
        if section.deferred_slot is not None:
            revert_helped(self.context, section.deferred_slot)

    # ---- The slot

    def take(self, section: CommitSection, slot: Slot) -> None:
        """
        Take the slot.

        If the lock was given up, and validation did not reject the write, no slot is requested: the
        caller refreshes and validates again.
        """
        self._has_asked = True
        self._validated = slot.base
        if self._is_without_lock:
            self._is_without_lock = False
            return
        super().take(section, slot)

    def _create(self, section: CommitSection, slot: Slot) -> bool:
        """Take the slot; apply the slot before it first, or at the same time where allowed."""
        take = partial(
            self.context.commit_log.take,
            slot,
            on_taken=partial(self._read_after_loss, section),
        )
        if section.deferred_slot is None:
            return take()
        if not may_overlap(slot):
            self._apply_deferred(section)
            return take()

        def help_on() -> None:
            with suppress(StorageUnavailableError):  # tried again below if the slot is ours
                self._apply_deferred(section)

        try:
            _, taken = self.context.ports.concurrently(help_on, take)
        except TableReplacedError:
            delete_from_wrong_table(self.context, slot)
            raise
        if taken:
            self._apply_deferred(section)  # PUB-3: files appear in the order of their slots
        return taken

    def _apply_own(self, section: CommitSection, slot: Slot) -> str:
        """
        Apply the slot, and release the lock meanwhile (PAR-1).

        A writer that enters next and finds no completed file helps (HELP-1), as it does without a
        lock. RST-4 is checked together with the table's identity, to save a round trip.
        """
        if slot.kind not in APPLIED_BY_A_FILE:
            return super()._apply_own(section, slot)
        if section.lease is None or section.lease.is_shared:
            apply(self.context, slot)
        else:
            self.context.ports.concurrently(
                partial(apply, self.context, slot), section.lease.release
            )
        return ""

    def assert_same_table(self, slot: Slot) -> None:
        """Check the table's identity and, at the same time, RST-4."""
        context = self.context
        asks = [partial(repeat_until_known, context, slot, context.commit_log.assert_same_table)]
        if slot.kind in APPLIED_BY_A_FILE:
            revert = partial(revert_if_restored, context, slot, None)
            asks.append(partial(repeat_until_known, context, slot, revert))
        check_same_table(context, slot, partial(context.ports.concurrently, *asks))

    def _lose(self, section: CommitSection, slot: Slot, outcome: str) -> None:
        self._revert_deferred(section)
        super()._lose(section, slot, outcome)

    def _pause(self) -> None:
        if self._read is None:  # else the table was read together with the lost slot
            super()._pause()

    # ---- Reads while others commit

    def _read_after_loss(self, section: CommitSection) -> None:
        """Read the table after a lost slot; an exclusive lock makes such slots rare."""
        self._read = None
        if not is_exclusive(section.lease):
            with suppress(HoodooError):  # the next refresh raises it
                self._read = self._refresh_at_once()

    def _read_until(self, head: int) -> None:
        """
        Read the log until ``head``, or until no new slot appears for some reads.

        The last read is a whole refresh.
        """
        commit_log, clock = self.context.commit_log, self.context.ports.clock
        still = 0
        while still < _STILL_MAX and (before := commit_log.known_head) < head:
            others = head - before - 1  # at most one slot appears in a round trip
            clock.sleep_ms(
                _STEP_MS + min(others * self.context.last_refresh.took_ms, _PAUSE_MS_MAX)
            )
            if others:
                commit_log.head()
            else:
                self._read = self._refresh_at_once()
            still = 0 if commit_log.known_head > before else still + 1

    def _refresh_at_once(self) -> TimelineState:
        return refresh_at_once(self.context, asks_config=self.write is not None)

    # ---- Before the section

    def draws_without_lock(self) -> int:
        """Return as for a local store; a shared lock keeps no other writer from committing."""
        return DRAWS_WITHOUT_LOCK if self.shares_lock() else super().draws_without_lock()

    def shares_lock(self) -> bool:
        """Return whether writers share the lock of the busy store now, as far as is known."""
        return self.context.ports.lock.is_shareable

    def must_wait_in_line(self, write_set: WriteSet) -> bool:
        """
        Return whether a write must wait for earlier writers of its file groups.

        That is so if no lock is taken, or writers share it, and another process is known to have
        committed to these file groups lately. Outside: nothing.
        """
        unlocked = self.context.limits.publish_lock is CommitLockMode.NONE
        if not (unlocked or self.shares_lock()):
            return False
        return newest_commit_there(self.context, rewritten_file_groups(write_set)) is not None


def revert_helped(context: TableContext, slot: Slot) -> None:
    """
    Call ``revert_if_restored`` for a slot that a refresh found.

    The refresh and the lock request overlap (PAR-1). A process that slept during the refresh may
    hold the lock alone, yet others may have applied the slot and ended it before that. So the lease
    proves nothing.
    """
    revert_if_restored(context, slot, None)


def refresh_at_once(context: TableContext, *, asks_config: bool = True) -> TimelineState:
    """
    Read commit log and timeline at the same time.

    A listing older than the newest slots lacks only their files, as long as these slots are commits
    of writes that the listing shows. Other slots may have deleted files; then the timeline is
    listed again, after the head is known.

    Outside: commit log probes, 1 list and, with ``asks_config``, 1 get, all at the same time.
    """
    config = cache(partial(load_config, context.ports.storage))
    known = context.commit_log.known_head
    head, timeline, asked = context.refresh_concurrently(config if asks_config else None)
    try:
        # The last two known slots may not have been applied when the listing began.
        came = (*newest_slots(context, known), *context.commit_log.between(known, head))
    except MissingFileError:  # truncated since: the known slots are too old to be of use
        return head, context.active(), asked or config
    if not all(may_overlap(slot) and has_instant_file(slot, timeline) for slot in came):
        return head, context.active(), asked or config
    before = [slot for slot in came if slot.number < head - 1]  # applied by now (PUB-3)
    names = [
        slot.file_name
        for slot in before
        if not is_applied(slot, timeline, context.archived_timeline)
    ]
    return head, timeline.with_names(filter(None, names)), asked or config


def _writes_ahead_count(timeline: ActiveTimeline, started: InstantTime) -> int:
    """Return how many pending writes began before this one, but not long before."""
    since = instant_time(WallMs(wall_ms(started) - _LINE_MS))
    return sum(
        one.state is State.INFLIGHT and since < one.requested_time < started
        for one in timeline.pending
    )


def rewritten_file_groups(write_set: WriteSet) -> frozenset[FileGroupId]:
    """Return the rewritten file groups; log writers gain nothing by waiting, so they have none."""
    return frozenset(
        item.file_group for item in write_set.file_groups if item.access is Access.BASE
    )


def newest_commit_there(
    context: TableContext, file_groups: frozenset[FileGroupId]
) -> InstantTime | None:
    """
    Return the greatest requested time committed there lately; a write below it must begin again.

    Returns None if no other process committed there: as far as is known, earlier writers write
    elsewhere.
    """
    commit_log, me = context.commit_log, context.ports.ids.identity().writer_id
    there = [
        slot
        for slot in commit_log.newest_known(commit_log.known_head)
        if slot.kind is SlotKind.COMMIT
        and any(item.file_group in file_groups for item in slot.write_set.file_groups)
    ]
    if all(slot.owner.writer_id == me for slot in there):
        return None
    return max(slot.requested_time for slot in there)
