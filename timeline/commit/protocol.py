"""
The commit protocol: how a writer takes the next slot of the commit log and applies it (SLOT-1).

A commit acquires the commit lock, reads the commit log, lists the timeline, applies slots that are
not applied yet, validates, creates slot n+1 and applies it. Creating the slot decides; the lock
only saves work. Writers and table services commit in the same way::

    commit = open_commit(context, purpose)
    while not commit.is_decided():
        with commit.section() as section:
            ...  # validate against ``section``; leave the block without a slot if it fails
            commit.take(section, slot)

There are three implementations. ``LocalCommit`` is the plain sequence. ``ObjectStoreCommit``
overlaps requests to a high-latency store. ``SharedWithJava`` commits to a table that Java Hudi
writes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

from timeline.codecs.metadata_instants import files_made_in_metadata_table
from timeline.commit.apply import (
    APPLIED_BY_A_FILE,
    apply,
    is_applied,
    may_overlap,
    metadata_plan_path,
    not_applied,
    revert_if_restored,
    revert_truncation,
    staged_completed_file,
    try_apply,
)
from timeline.commit.commit_lock import (
    CommitSection,
    TimelineState,
    WriteToCommit,
    acquire_exclusively,
    assert_lease,
    is_commit_lock_kept,
    read_table,
)
from timeline.commit.revalidate import decide_earlier_slot, was_rolled_back
from timeline.context import TableContext
from timeline.errors import (
    BudgetSpentError,
    HeartbeatExpiredError,
    InternalError,
    LeaseLostError,
    OutcomeUnknownError,
    StorageUnavailableError,
    TableReplacedError,
    counted,
)
from timeline.model.commit_metadata import WriteSet
from timeline.model.file_names import pending_file_names, timeline_path
from timeline.model.instant_time import InstantTime
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Lease
from timeline.properties.setting_enums import CommitLockMode
from timeline.rules.retry import pause_ms
from timeline.truncation import assert_not_truncated, is_truncated

_AGAIN_MS = 100
_WITHOUT_LOCK_FIRST = 2  # ``CommitLockMode.AUTO`` takes the lock after two lost slots
DRAWS_WITHOUT_LOCK = 12  # where the commit lock keeps no other writer from committing
_DRAWS_BEFORE_LOCK = 3
_AHEAD_MS_MAX = 500  # half of the lead that causes a warning (TL-SUCC-2)


class CommitProtocol:
    """
    One commit: its attempts to take the next slot.

    Args:
        context: The table.
        purpose: Shown to processes that wait for the lock.
        write: The write to commit; None for a table service.
    """

    #: Whether another engine adds instants that have no slot.
    has_foreign_instants: ClassVar[bool] = False
    #: Whether it creates small files of a write during its first refresh (PAR-1).
    creates_during_refresh: ClassVar[bool] = False

    def __init__(
        self, context: TableContext, purpose: str, write: WriteToCommit | None = None
    ) -> None:
        self.context = context
        self.purpose = purpose
        self.write = write
        self.slot: Slot | None = None  # once it is taken
        self.lost = 0  # slots that other writers took first
        self._is_pausing = False
        self._paused_ms = 0

    # ---- The sequence

    def is_decided(self) -> bool:
        """
        Return whether the slot is taken; another attempt is needed while it is not.

        Raises:
            BudgetSpentError: Other writers took ``commit_attempts_max`` slots.
        """
        if self.slot is not None:
            return True
        attempts = self.context.limits.retry.commit_attempts_max
        if self.lost >= attempts:
            raise BudgetSpentError(
                "other writers took the next commit slot in each attempt: try again later, or "
                f"raise hoodie.write.commit.retry.max.attempts: {counted(attempts, 'attempt')}",
                attempts=attempts,
            )
        return False

    @property
    def taken(self) -> Slot:
        """The slot of a decided commit."""
        if self.slot is None:
            raise InternalError("this commit has no slot yet", kind="commit")
        return self.slot

    @contextmanager
    def section(self) -> Iterator[CommitSection]:
        """
        Enter the commit section: acquire the lock, read the table, apply earlier slots.

        A lost lease ends the block and costs an attempt, never data (SLOT-1).

        Raises:
            LockTimeoutError: The lock was not free in time.
            LeaseLostError: It was lost in the last attempt.
            StorageUnavailableError: The storage failed while a slot was applied.
            HeartbeatExpiredError: As ``assert_not_truncated``.
        """
        with ExitStack() as held:
            while (section := self._entered(held)) is None:
                held.close()
            try:
                yield section
            except LeaseLostError as error:
                self._lose_lease(error)
            else:
                self._leave(section)

    def take(self, section: CommitSection, slot: Slot) -> None:
        """
        Take the slot and apply it; a lost slot is counted, and the caller tries again.

        After the first request an error no longer means "failed". Any unexpected error becomes an
        unknown outcome, so that no caller deletes files that may be committed.

        Raises:
            InvalidInputError: The slot is too large to be read (``commit_too_large``).
            LeaseLostError: Nothing was sent; ``section`` handles it.
            TableReplacedError: As ``assert_same_table``.
            OutcomeUnknownError: The storage never answered the request for the slot.
        """
        context = self.context
        slot = section.with_hash_link(context, slot)
        context.commit_log.encoded(slot)  # raises if the slot is too large, before the request
        assert_lease(section.lease)
        try:
            outcome = self._take_and_apply(section, slot)
        except (OutcomeUnknownError, HeartbeatExpiredError, TableReplacedError):
            raise
        except Exception as error:
            raise unknown_outcome(
                slot,
                f"an error occurred during the commit ({getattr(error, 'message', error)})",
            ) from error
        if outcome:
            self._lose(section, slot, outcome)
            return
        if self.write is None:
            self.assert_same_table(slot)
        held_ms = context.ports.clock.monotonic_ms() - section.entered_ms
        context.ports.events.emit(
            "publish.done", kind=slot.kind.value, number=slot.number, held_ms=held_ms
        )
        self.slot = slot

    def refresh(self, lease: Lease | None) -> CommitSection:
        """
        Read the commit log, then the timeline, and apply all slots up to the head (PUB-3).

        Raises:
            LeaseLostError: The lock was lost before a slot of mode ``shared`` could be decided.
            StorageUnavailableError: The storage failed while a slot was applied.
            HeartbeatExpiredError: As ``assert_not_truncated``.
        """
        context = self.context
        while True:
            read = self._read_table()
            head, timeline, _ = read
            assert_not_truncated(context)
            last = context.commit_log.newest_own_slot(head)
            gone = last is not None and was_rolled_back(context, last, timeline)
            done = last is None or not (gone or last.deletes_in_metadata_table)
            if last is None or (done and is_applied(last, timeline, context.archived_timeline)):
                return CommitSection.of(context, read, last, lease)
            context.ports.events.emit("publish.helped", number=last.number)
            if not last.timeline_digest:
                return self._apply_earlier(read, lease)
            assert_lease(lease)
            section = CommitSection.of(context, read, last, lease)
            if not decide_earlier_slot(context, section, last, was_rolled_back=gone):
                return section

    def _entered(self, held: ExitStack) -> CommitSection | None:
        """Acquire the lock and refresh; return None if the lease was lost meanwhile."""
        clock = self.context.ports.clock
        if self._is_pausing:
            self._is_pausing = False
            self._pause()
        lease = held.enter_context(self._acquire())
        entered_ms, overruns = clock.monotonic_ms(), self.context.low_water_mark.overruns
        try:
            section = self.refresh(lease)
        except LeaseLostError as error:
            self._lose_lease(error)
            return None
        return replace(section, entered_ms=entered_ms, overruns=overruns)

    def _lose_lease(self, error: LeaseLostError) -> None:
        """Count a lost lease; raise its error in the last attempt."""
        if self.lost + 1 == self.context.limits.retry.commit_attempts_max:
            raise error
        self.context.ports.events.emit("publish.lease_lost", purpose=self.purpose)
        self._count_lost()

    def _lose(self, section: CommitSection, slot: Slot, outcome: str) -> None:  # noqa: ARG002
        """Count a slot that was lost, or whose file may not appear."""
        self.context.ports.events.emit(f"publish.{outcome}", number=slot.number)
        self._count_lost()

    def _count_lost(self) -> None:
        self.lost += 1
        self._is_pausing = True

    def _pause(self) -> None:
        context = self.context
        self._paused_ms = pause_ms(
            self.lost - 1,
            context.ports.ids.jitter(),
            context.limits.retry,
            previous_ms=self._paused_ms,
        )
        context.ports.clock.sleep_ms(self._paused_ms)

    def _take_and_apply(self, section: CommitSection, slot: Slot) -> str:
        """Return "" if the slot is taken and applied, else the name of the other outcome."""
        context = self.context
        with staged_completed_file(context.ports.storage, slot):
            if not self._create(section, slot):
                return "slot_lost"
            if is_truncated(context, slot, section.overruns):
                return ""
            try:
                return self._apply_own(section, slot)
            except TableReplacedError:
                raise
            except Exception:
                # The write ends with this error. No later check would delete what it may have
                # created in another table (SLOT-10).
                with suppress(StorageUnavailableError):
                    check_same_table(context, slot, context.commit_log.assert_same_table)
                raise

    # ---- The steps in which the implementations differ

    def takes_lock(self) -> bool:
        """Return whether this attempt takes the commit lock."""
        mode = self.context.limits.publish_lock
        if mode is CommitLockMode.AUTO:
            return self.lost >= _WITHOUT_LOCK_FIRST
        return mode is CommitLockMode.LOCK

    def _acquire(self) -> AbstractContextManager[Lease | None]:
        if not self.takes_lock():
            return nullcontext()
        return acquire_exclusively(self.context, self.purpose)

    def _read_table(self) -> TimelineState:
        return read_table(self.context, asks_config=self.write is not None)

    def _apply_earlier(self, read: TimelineState, lease: Lease | None) -> CommitSection:
        """Apply pending slots in their order and return the state after them (HELP-1, PUB-3)."""
        context = self.context
        head, timeline, config = read
        left = not_applied(context, head, timeline)
        for slot in left:
            try_apply(context, slot)
            revert_if_restored(context, slot, lease)
        return CommitSection.of(context, (head, context.active(), config), left[-1], lease)

    def _leave(self, section: CommitSection) -> None:
        """End a section in which no slot was taken, or one was."""

    def _create(self, section: CommitSection, slot: Slot) -> bool:  # noqa: ARG002
        """Create the slot; return False if another writer took its number."""
        return self.context.commit_log.take(slot)

    def _apply_own(self, section: CommitSection, slot: Slot) -> str:
        """Apply the slot that this commit took; return "", or "undecided"."""
        context = self.context
        if slot.kind not in APPLIED_BY_A_FILE:
            self.assert_same_table(slot)  # apply deletes files
        apply(context, slot)
        repeat_until_known(context, slot, partial(revert_if_restored, context, slot, section.lease))
        return ""

    def assert_same_table(self, slot: Slot) -> None:
        """
        Check that the table is still the one for which this process took the slot (SLOT-10).

        The check runs after the slot is applied. Only then does it notice a table that was dropped
        and created again since the last refresh. Outside: 1 get; on a high-latency store 1 more at
        the same time.

        Raises:
            TableReplacedError: The table was replaced. Its writers ignore the slot, and this
                function has deleted the files that the slot created.
            OutcomeUnknownError: The storage did not answer.
        """
        context = self.context
        ask = partial(repeat_until_known, context, slot, context.commit_log.assert_same_table)
        check_same_table(context, slot, ask)

    # ---- Before the section

    def least_time(self) -> InstantTime:
        """
        Return a time as far ahead of now as the last attempt to begin took (TL-SUCC-1).

        A writer that commits every other round trip would pass each time drawn from the clock
        before that time is visible.
        """
        ahead_ms = min(self.context.drawn_times.took_ms, _AHEAD_MS_MAX)
        return self.context.zone.instant_time(self.context.ports.clock.now_ms() + ahead_ms)

    def draws_without_lock(self) -> int:
        """Return how many times to draw a requested time before a begin takes the lock."""
        if self.context.limits.publish_lock is CommitLockMode.LOCK:
            return _DRAWS_BEFORE_LOCK
        return DRAWS_WITHOUT_LOCK

    def validates_first(self) -> bool:
        """
        Return whether validation before the section saves more than it costs (PUB-1).

        On a high-latency store it costs a round trip. It saves nothing if the writer does not wait
        for the lock before its refresh, and hardly anything while no other writer commits.
        """
        context = self.context
        if not context.ports.storage.capabilities.high_latency:
            return True
        if is_commit_lock_kept(context) or not context.commit_log.is_contended:
            return False
        return context.limits.publish_lock is CommitLockMode.LOCK and not self.shares_lock()

    def shares_lock(self) -> bool:
        """Return whether writers that decide by slots hold the lock at the same time (LOCK-1)."""
        return False

    def must_wait_in_line(self, write_set: WriteSet) -> bool:  # noqa: ARG002
        """Return whether a write waits for earlier writers of its file groups (PUB-12)."""
        return False

    def wait_until_read(self, unread: tuple[InstantTime, ...]) -> None:
        """Wait, without the lock, until writes of another engine have read the table (FOR-5)."""


class LocalCommit(CommitProtocol):
    """A commit on a local store: lock, read, validate, slot, apply; nothing else."""

    def least_time(self) -> InstantTime:
        """Return "": an attempt to begin ends before another begins."""
        return ""


def repeat_until_known(context: TableContext, slot: Slot, call: Callable[[], object]) -> None:
    """Repeat a call that follows a slot until the storage answers (UNK-5)."""
    clock = context.ports.clock
    started = clock.monotonic_ms()
    while True:
        try:
            call()
        except StorageUnavailableError as error:
            if clock.monotonic_ms() - started > context.limits.unknown_ms_max:
                raise unknown_outcome(slot, "the storage did not answer") from error
            clock.sleep_ms(_AGAIN_MS)
        else:
            return


def unknown_outcome(slot: Slot, why: str) -> OutcomeUnknownError:
    """Return the error of a commit that may have happened."""
    return OutcomeUnknownError(
        f"{why}, so the outcome of this write is unknown. Run 'hoodoo explain TABLE "
        f"{slot.instant_time} --resolve' before you repeat the write",
        requested_time=slot.instant_time,
        slot_number=slot.number,
        nonce=slot.nonce,
    )


def check_same_table(context: TableContext, slot: Slot, ask: Callable[[], object]) -> None:
    """Call ``ask``; if the table was replaced, delete what the slot created there, and raise."""
    try:
        ask()
    except TableReplacedError:
        delete_from_wrong_table(
            context, slot, *pending_file_names(slot.own_action, slot.instant_time)
        )
        context.commit_log.mark_void(slot)
        raise


def delete_from_wrong_table(context: TableContext, slot: Slot, *names: str) -> None:
    """Delete the files that a slot, and slots helped with it (PUB-3), created in a wrong table."""
    helped = filter(may_overlap, context.commit_log.newest_known(slot.number))
    shown = [slot, *helped]
    files = {timeline_path(name) for name in (*names, *(one.file_name for one in shown)) if name}
    in_metadata_table = [path for one in shown for path in files_made_in_metadata_table(one)]
    for path in (*in_metadata_table, *sorted(files)):
        repeat_until_known(context, slot, partial(context.ports.storage.delete, path))
    if slot.kind is SlotKind.METADATA and slot.body:
        path = metadata_plan_path(slot.requested_time, slot.action)
        repeat_until_known(context, slot, partial(context.ports.storage.delete, path))
    if slot.kind is SlotKind.TRUNCATE:
        repeat_until_known(context, slot, partial(revert_truncation, context, slot))
