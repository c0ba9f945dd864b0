"""
The group committer: threads hand in writes, and whoever is first publishes for those waiting.

Writes that come while one is being published wait and form the next group, so a group is as
big as the load makes it. Who was just answered is waited for a moment: the threads of a busy
process come back at once, and without that the fastest of them would lead every second group
alone. The group's instant is begun meanwhile, and what nobody needs to wait for is done while the
next one is: both take rounds where the storage is far away. There is no thread of its own: the
writer that came first leads, and when the process dies all its members die with it (GRP-3).

Each member is woken for what is its own: waking all of them for each step of each would cost
more than their rows, since the interpreter lets one thread run at a time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from filegroups.group_commit.commit_group import (
    MemberOutcome,
    MemberPhase,
    NotCommitted,
    are_compatible,
    commit_group,
    without_known_conflict,
)
from filegroups.writing.commit_result import CommitResult, WriteRequest
from filegroups.writing.early_conflict_detection import wait_for_rate_limit
from filegroups.writing.workload import Workload
from filegroups.writing.write import PreparedWrite, prepare_write, write_prepared
from timeline.context import TableContext
from timeline.errors import HoodooError, OutcomeUnknownError, StorageUnavailableError
from timeline.model.instant_time import InstantTime
from timeline.model.write_set import FileGroupId
from timeline.snapshot import Snapshot

__all__ = ["PATIENCE", "GroupCommitter"]

#: Who was answered may take this part of the group's time to come back.
PATIENCE = 4


@dataclass(slots=True, eq=False)
class _WaitingWrite:
    """A write that waits for its group, later its answer."""

    work: PreparedWrite
    changed: threading.Condition  # of the committer's lock: wakes who waits for this write alone
    thread: int = field(default_factory=threading.get_ident)
    alone: bool = False
    met_on: frozenset[FileGroupId] = frozenset()  # in an earlier group
    part: MemberPhase | None = None  # files to write, for its own thread
    busy: bool = False  # its thread does a part, perhaps of a leader that was interrupted
    outcome: MemberOutcome | None = None  # of that part
    gone: bool = False  # its thread was interrupted and waits no more
    receipt: CommitResult | None = None
    failure: BaseException | None = None

    @property
    def answered(self) -> bool:
        return self.receipt is not None or self.failure is not None


class GroupCommitter:
    """
    Publishes the writes of a process's threads together, one group at a time.

    Args:
        context: The table; the leader alone uses it.
        writes_max: Most writes of one instant.
        linger_ms: How long a leader waits for more writes before it begins; what it looked at
            then is not old when they are judged.
        before: Done by the leader before each group.
        after: Done by the leader after each group, whose members have their answers then.
    """

    def __init__(
        self,
        context: TableContext,
        *,
        writes_max: int,
        linger_ms: int = 0,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self._context = context
        self._writes_max = writes_max
        self._linger_ms = linger_ms
        self._before = before
        self._after = after
        self._pid = 0
        self._births: dict[int, threading.Lock] = {}  # by process, so that none is held at a fork
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nobody waits, and nobody leads: in a forked child neither does any thread of its parent."""
        self._looked: Snapshot | None = None  # by the last leader; rows are prepared for it
        self._lock = threading.Lock()
        self._gathered = threading.Condition(self._lock)  # nobody else is waited for
        self._waiting: list[_WaitingWrite] = []
        self._leading = False
        self._coming = 0  # threads that prepare the rows of a write
        self._returning: set[int] = set()  # threads that were answered by the last group
        self._patient_until_ms = 0

    def _be_born(self) -> None:
        """F26: what was under way when this process was forked is its parent's."""
        pid = self._context.world.ids.identity().pid
        if pid == self._pid:
            return
        with self._births.setdefault(pid, threading.Lock()):
            if pid != self._pid:
                self._begin_anew()
                self._pid = pid

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """
        Run one write, in an instant with others where they do not meet.

        Errors: as ``filegroups.writing.write.write``; one of the group's publication is every member's.
        """
        self._be_born()
        with self._lock:
            looked = self._looked = self._looked or self._context.snapshot()
            self._coming += 1
        try:
            work = self._prepared(plan, workload, looked)
        finally:
            with self._lock:
                self._coming -= 1
        # A group judges no reads, and knows only files that a workload tells; one of one, too.
        alone = not are_compatible(work, work)
        entry = _WaitingWrite(work=work, changed=threading.Condition(self._lock), alone=alone)
        with self._lock:
            self._waiting.append(entry)
            self._returning.discard(entry.thread)
            if self._all_are_there():
                self._gathered.notify()
        try:
            while not entry.answered:
                part = self._next_part(entry)
                if part is not None:
                    self._carry_out(entry, part)
                elif not entry.answered:
                    self._lead(entry)
        finally:
            if not entry.answered:
                self._leave(entry)
        if entry.receipt is None:
            raise entry.failure or OutcomeUnknownError("a group ended without an answer")
        return entry.receipt

    def _prepared(
        self, plan: WriteRequest, workload: Workload | None, looked: Snapshot
    ) -> PreparedWrite:
        """Rows that do not fit an older look may fit the table as it is now: asked once."""
        try:
            return prepare_write(self._context, plan, workload, looked)
        except HoodooError:
            now = self._context.snapshot()
            if now.head == looked.head and now.active.file_names == looked.active.file_names:
                raise
            with self._lock:
                self._looked = now
        return prepare_write(self._context, plan, workload, now)

    def close(self) -> None:
        """Nothing is kept between two writes."""

    def _leave(self, entry: _WaitingWrite) -> None:
        """Its thread was interrupted while it waited: nobody waits for it."""
        with self._lock:
            entry.gone = True
            self._waiting = [one for one in self._waiting if one is not entry]
            entry.changed.notify_all()
            self._call_next()

    def _call_next(self) -> None:
        """Wake who leads the next group; the lock is held."""
        if self._waiting and not self._leading:
            self._waiting[0].changed.notify_all()

    def _next_part(self, entry: _WaitingWrite) -> MemberPhase | None:
        """Wait for a part to do, an answer, or the lead, which the longest waiting write takes."""
        with self._lock:
            while not entry.answered:
                if entry.part is not None:
                    part, entry.part, entry.busy = entry.part, None, True
                    return part
                if not self._leading and self._waiting[0] is entry:
                    self._leading = True
                    return None
                entry.changed.wait()
            return None

    def _carry_out(self, entry: _WaitingWrite, part: MemberPhase) -> None:
        outcome: MemberOutcome = _interrupted()
        try:
            outcome = part()
        finally:
            with self._lock:
                entry.outcome, entry.busy = outcome, False
                entry.changed.notify_all()

    def _side_by_side(
        self, group: Sequence[_WaitingWrite], parts: Mapping[int, MemberPhase]
    ) -> dict[int, MemberOutcome]:
        """Each member writes its files on its own thread, which waits for them anyway."""
        leader, others = group[0], {number: group[number] for number in parts if number}
        with self._lock:
            for entry in group:
                entry.outcome = None
            for number, entry in others.items():
                entry.part = parts[number]
                entry.changed.notify_all()
        try:
            if 0 in parts:
                self._carry_out(leader, parts[0])
        finally:
            self._wait_for(others.values())  # PUB-2: no straggler
        done = ((number, group[number].outcome) for number in parts)
        return {number: outcome for number, outcome in done if outcome is not None}

    def _wait_for(self, entries: Iterable[_WaitingWrite]) -> None:
        with self._lock:
            for entry in entries:
                while entry.outcome is None:
                    if entry.gone:
                        entry.part, entry.outcome = None, _interrupted()
                    else:
                        entry.changed.wait()

    def _lead(self, leader: _WaitingWrite) -> None:
        group = [leader]
        publishing: list[tuple[InstantTime, frozenset[int]]] = []
        left: list[Callable[[], None]] = []  # of the group, which nobody waits for
        try:
            wait_for_rate_limit(self._context)  # others join meanwhile
            began_ms = self._context.world.clock.monotonic_ms()
            self._run(group, publishing, left)
            now_ms = self._context.world.clock.monotonic_ms()
            with self._lock:
                self._waiting = [one for one in self._waiting if not one.answered]
                self._returning = {one.thread for one in group if one.answered}
                self._patient_until_ms = now_ms + (now_ms - began_ms) // PATIENCE
                _wake(group)
            if all(one.failure is None for one in group):
                self._after()
        except BaseException as error:
            for number, entry in enumerate(group):
                if entry.answered:
                    continue
                if entry is leader or isinstance(error, Exception):
                    entry.failure = copy.copy(error)
                elif publishing and number in publishing[0][1]:
                    entry.failure = _unknown(publishing[0][0])
            raise
        finally:
            with self._lock:
                self._leading = False
                self._waiting = [one for one in self._waiting if not one.answered]
                for entry in group:
                    entry.part = None  # of this group, if it was interrupted before it was begun
                _wake(group)
                self._call_next()
            for work in left:  # while the next group is begun
                work()

    def _run(
        self,
        group: list[_WaitingWrite],
        publishing: list[tuple[InstantTime, frozenset[int]]],
        left: list[Callable[[], None]],
    ) -> None:
        leader = group[0]
        complete = leader.alone  # whether all who are in it are known

        def join() -> list[PreparedWrite]:
            nonlocal complete
            self._wait_for_more()
            with self._lock:
                group.extend(self._others_of(leader))
                self._returning.clear()
            complete = True
            return [entry.work for entry in group[1:]]

        def meeting(number: int, file_groups: frozenset[FileGroupId]) -> None:
            group[number].met_on = file_groups

        try:
            self._before()
            self._looked = self._context.glance()
            if complete or not self._others_may_come():
                complete = True
                leader.receipt = write_prepared(leader.work)
                return
            if self._linger_ms:
                self._context.world.clock.sleep_ms(self._linger_ms)
            answers = commit_group(
                self._context,
                [leader.work],
                lambda *told: publishing.append(told),
                partial(self._side_by_side, group),
                meeting,
                join=join,
                later=left.append,
            )
        except Exception:
            # It was tried for those who wait, too, and would fail for each of them.
            if not complete:
                with self._lock:
                    group.extend(self._others_of(leader))
            raise
        for entry, answer in zip(group, answers, strict=True):
            if isinstance(answer, CommitResult):
                entry.receipt = answer
            elif isinstance(answer, OutcomeUnknownError):
                entry.failure = copy.copy(answer)
            elif answer is NotCommitted.ALONE:
                entry.alone = True

    def _others_may_come(self) -> bool:
        with self._lock:
            coming = self._coming and self._context.world.storage.capabilities.far
            return bool(self._linger_ms or self._returning or coming or len(self._waiting) > 1)

    def _wait_for_more(self) -> None:
        left_ms = self._patient_until_ms - self._context.world.clock.monotonic_ms()
        with self._lock:
            self._gathered.wait_for(self._all_are_there, timeout=max(0, left_ms) / 1000)

    def _all_are_there(self) -> bool:
        return not self._returning or len(self._waiting) >= self._writes_max

    def _others_of(self, leader: _WaitingWrite) -> list[_WaitingWrite]:
        """
        Who joins the leader; the lock is held.

        Who still does a part of an interrupted leader does not: what comes of it would be taken
        for files of the new instant. It leads a group once it has done.
        """
        others = (
            one
            for one in self._waiting
            if one is not leader
            and not (one.alone or one.busy)
            and are_compatible(leader.work, one.work)
        )
        apart = without_known_conflict([leader, *others], lambda one: one.met_on)
        return apart[1 : self._writes_max]


def _wake(group: Iterable[_WaitingWrite]) -> None:
    """Those who have their answers; the lock is held."""
    for entry in group:
        if entry.answered:
            entry.changed.notify_all()


def _interrupted() -> StorageUnavailableError:
    return StorageUnavailableError("the thread of this write was interrupted", kind="interrupted")


def _unknown(requested_time: InstantTime) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the writer that published this one together with its own was interrupted; run "
        f"'hoodoo explain' on instant {requested_time} before you repeat the write",
        requested_time=requested_time,
    )
