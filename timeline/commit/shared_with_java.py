"""
Commit to a table that Java Hudi writes, too; Java takes the lock and reads no slot (FOR-1).

The slot of a commit, plan, savepoint or clean decides together with its file, within one holding of
the lock (FOR-4, FOR-9). The slot contains a digest of the timeline that its owner validated
against, and the owner validates again before it creates the file
(``timeline.commit.revalidate``). If that was interrupted, the next commit section finds out the
outcome.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from timeline.commit.apply import apply, has_instant_file, is_applied, revert_if_restored
from timeline.commit.commit_lock import CommitSection, WriteToCommit, assert_lease, has_lease
from timeline.commit.protocol import CommitProtocol, repeat_until_known, unknown_outcome
from timeline.commit.revalidate import (
    ENDED_BY,
    is_ended_by,
    may_apply,
    timeline_digest,
)
from timeline.context import TableContext
from timeline.errors import LeaseLostError, LockTimeoutError, OutcomeUnknownError
from timeline.heartbeat import instants_with_expired_heartbeat
from timeline.model.instant import State
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Lease
from timeline.snapshot import ActiveTimeline

_WAIT_MS_MAX = 60_000
_PAUSE_MS_FIRST = 20
_PAUSE_MS_MAX = 500


class SharedWithJava(CommitProtocol):
    """A commit to a table that Java Hudi writes, too: it holds the lock, and validates twice."""

    has_foreign_instants = True

    def __init__(
        self, context: TableContext, purpose: str, write: WriteToCommit | None = None
    ) -> None:
        super().__init__(context, purpose, write)
        self._undecided: Slot | None = None  # taken; the next section applies it or ends it
        self._wait_end_ms: int | None = None

    def takes_lock(self) -> bool:
        """Return True: Java knows nothing else."""
        return True

    def is_decided(self) -> bool:
        """Return whether the slot counts; a slot whose file is missing is decided here (FOR-4)."""
        while self._undecided is not None and self.slot is None:
            self._decide(self._undecided)
        return super().is_decided()

    def _decide(self, slot: Slot) -> None:
        if self.lost >= self.context.limits.retry.commit_attempts_max:
            raise unknown_outcome(slot, "the lock was lost during the commit in each attempt")
        if self._is_pausing:
            self._is_pausing = False
            self._pause()
        with self._acquire() as lease:
            try:
                section = self.refresh(lease)
                counts = self._counts(section, slot)
            except LeaseLostError as error:
                self._lose_lease(error)
                return
        self._undecided = None
        if counts:
            self.slot = slot
        else:
            self.lost += 1

    def _counts(self, section: CommitSection, mine: Slot) -> bool:
        """
        Return whether an undecided slot counts, which the slot after it decides (FOR-4).

        If no slot follows, the undecided slot's file exists by now. This function then takes the
        next number. That stops a process which refreshed earlier, lost the lock and is about to
        make the slot void.
        """
        context = self.context
        last = context.commit_log.newest_own_slot(section.head)
        if last is not None and last.number == mine.number:
            requested_time = section.draw_time(context, Residue.SLOT_REQUESTED)
            nonce = context.ports.ids.nonce()
            assert_lease(section.lease)
            noop = section.next_slot(
                context, SlotKind.NOOP, mine.action, requested_time, nonce=nonce
            )
            try:
                context.commit_log.take(section.with_hash_link(context, noop))
            except OutcomeUnknownError as error:
                raise unknown_outcome(mine, "the storage did not answer") from error
        after = _next_of_this_table(context, mine)
        if after is None or not is_ended_by(mine, after):
            return True
        # Apply it again: a file of the own slot may have appeared since. After an unsavepoint,
        # another engine may have created a savepoint of the same write, which stays (FOR-9).
        if after.kind is not SlotKind.UNSAVEPOINT or not is_applied(
            after, context.active(), context.archived_timeline
        ):
            apply(context, after)
        context.commit_log.mark_void(mine)
        return False

    def _lose_lease(self, error: LeaseLostError) -> None:
        if self._undecided is None:
            super()._lose_lease(error)
            return
        self.context.ports.events.emit("publish.lease_lost", purpose=self.purpose)
        self._count_lost()

    def _lose(self, section: CommitSection, slot: Slot, outcome: str) -> None:
        self._undecided = slot if outcome == "undecided" else None
        super()._lose(section, slot, outcome)

    def refresh(self, lease: Lease | None) -> CommitSection:
        """Refresh as every commit; a write also learns which writes have not read the table."""
        section = super().refresh(lease)
        if self.write is None:
            return section
        unread = self._unread_writes(section.timeline, self.write.requested_time)
        return replace(section, unread=unread)

    def take(self, section: CommitSection, slot: Slot) -> None:
        """
        Take the slot with a digest of the timeline that its owner validated against.

        Each slot that decides together with its file has one (FOR-4, FOR-9). The slot for a clean
        that another engine has already started has none.
        """
        adopts = slot.kind is SlotKind.CLEAN and has_instant_file(slot, section.timeline)
        if slot.kind in ENDED_BY and not adopts:
            slot = replace(slot, timeline_digest=timeline_digest(section.timeline, slot))
        super().take(section, slot)

    def _apply_own(self, section: CommitSection, slot: Slot) -> str:
        """Validate again, then apply the slot; it stays undecided if that is forbidden."""
        if slot.kind is SlotKind.METADATA:  # no file of it without the lock (MDT-8)
            self.assert_same_table(slot)
            apply(self.context, slot, may_show=partial(has_lease, section.lease))
            return ""
        if not slot.timeline_digest:
            return super()._apply_own(section, slot)
        context, lease = self.context, section.lease
        if slot.deletes:  # SLOT-10
            self.assert_same_table(slot)
        shown = apply(context, slot, may_show=partial(may_apply, context, slot, lease))
        if shown:
            repeat_until_known(context, slot, partial(revert_if_restored, context, slot, lease))
        # While the lease is held, no other process can have made the slot void.
        return "" if shown and has_lease(lease) else "undecided"

    # ---- Before the section

    def draws_without_lock(self) -> int:
        """
        Return 0: Java draws its times under the lock and does not use our residue classes (FOR-1).

        Without the lock both may draw the same millisecond, and Java's write fails because of our
        requested file.
        """
        return 0

    # ---- Wait until pending writes of other engines have read their base snapshot (FOR-5)
    #
    # Java Hudi creates the requested file, then reads the table and only then creates the inflight
    # file. If our write commits in between with a greater requested time, Java merges from our files
    # and writes them under its smaller requested time. Readers order the versions of a file group by
    # requested time, so they see our version and lose Java's rows. Java validates only after the last
    # completed instant and finds no conflict (hole 23). So in mode ``shared`` a commit waits until all
    # instants requested below it are inflight. Writers of ours are included: they are inflight soon,
    # and the first requested write never waits.

    def _unread_writes(
        self, timeline: ActiveTimeline, requested_time: InstantTime
    ) -> tuple[InstantTime, ...]:
        """
        Return pending writes below a requested time that may not have read the table yet.

        Dead writers are left out: they write a heartbeat before the requested file, and will never
        read. Outside: 1 list if there may be some.
        """
        started = tuple(
            instant.requested_time
            for instant in timeline.pending_ingestion
            if instant.state is State.REQUESTED and instant.requested_time < requested_time
        )
        dead = instants_with_expired_heartbeat(
            self.context.ports.storage, started, self.context.limits.heartbeat
        )
        return tuple(time for time in started if time not in dead)

    def wait_until_read(self, unread: tuple[InstantTime, ...]) -> None:
        """
        Wait until no write of ``unread`` remains; each refresh may find others. Outside: lists.

        It holds no lock, because the awaited writer may need it.

        Raises:
            LockTimeoutError: 60 s passed since the first wait of this commit.
        """
        if self.write is None:
            return
        requested_time = self.write.requested_time
        clock, events = self.context.ports.clock, self.context.ports.events
        began_ms = clock.monotonic_ms()
        if self._wait_end_ms is None:
            self._wait_end_ms = began_ms + _WAIT_MS_MAX
        pause_ms = _PAUSE_MS_FIRST
        while unread:
            if clock.monotonic_ms() >= self._wait_end_ms:
                raise LockTimeoutError(
                    "a writer of another engine began and does not write its files. End it or "
                    f"wait for it, then write again: {', '.join(unread)}",
                    kind="foreign_begin",
                    requested_time=requested_time,
                    waited_for=list(unread),
                )
            clock.sleep_ms(pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
            unread = self._unread_writes(self.context.active(), requested_time)
        wait_ms = clock.monotonic_ms() - began_ms
        events.emit("publish.begin_awaited", rt=requested_time, wait_ms=wait_ms)


def _next_of_this_table(context: TableContext, slot: Slot) -> Slot | None:
    number = slot.number + 1
    while (found := context.commit_log.read(number)) and context.commit_log.is_of_another(found):
        number += 1  # it decides nothing (SLOT-8)
    return found
