"""
The group committer: threads submit writes, and the first one commits for all that wait.

Writes that arrive during a commit wait and form the next group, so the load decides the group size.
The leader waits a moment for threads of the last group, because threads of a busy process return at
once; otherwise the fastest would lead every second group alone. Meanwhile it begins the group's
instant. Post-commit steps for which no writer waits run during the next group. Both save round
trips on a high-latency store. There is no extra thread: the first waiting writer leads. If the
process dies, all its members die with it (GRP-3).

Each member has a condition of its own. To wake all members at each step would cost more than their
rows, since the interpreter runs one thread at a time.
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
from filegroups.writing.retry import wait_for_rate_limit
from filegroups.writing.workload import Workload
from filegroups.writing.write import PreparedWrite, prepare_write, write_prepared
from filegroups.writing.write_request import CommitResult, WriteRequest
from timeline.context import TableContext
from timeline.errors import HoodooError, OutcomeUnknownError, StorageUnavailableError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.instant_time import InstantTime
from timeline.snapshot import Snapshot

#: Threads of the last group may take one part in this many of its time to return.
PATIENCE = 4


@dataclass(slots=True, eq=False)
class _WaitingWrite:
    """A write that waits for its group, later its answer."""

    work: PreparedWrite
    changed: threading.Condition  # on the committer's lock; for this write only
    thread: int = field(default_factory=threading.get_ident)
    alone: bool = False
    conflict_on: frozenset[FileGroupId] = frozenset()  # conflicts in an earlier group
    phase: MemberPhase | None = None  # files to write on its own thread
    busy: bool = False  # its thread runs a part, perhaps of an interrupted leader
    outcome: MemberOutcome | None = None  # of that part
    gone: bool = False  # its thread was interrupted and no longer waits
    result: CommitResult | None = None
    failure: BaseException | None = None

    @property
    def answered(self) -> bool:
        return self.result is not None or self.failure is not None


class GroupCommitter:
    """
    Commits the writes of a process's threads together, one group at a time.

    Args:
        context: The table; the leader alone uses it.
        writes_max: Most writes of one instant.
        linger_ms: How long a leader waits for more writes before it begins; the wait precedes its
            snapshot, so the snapshot is still fresh at validation.
        before: Called by the leader before each group.
        after: Called by the leader after each group, when its members have their answers.
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
        self._births: dict[
            int, threading.Lock
        ] = {}  # by process, so that no fork copies a held lock
        self._reset()

    def _reset(self) -> None:
        """Reset all state: no write waits and no thread leads, as in a new or forked process."""
        self._snapshot: Snapshot | None = None  # of the last leader; rows are prepared for it
        self._lock = threading.Lock()
        self._gathered = threading.Condition(self._lock)  # signals that no more writes are expected
        self._waiting: list[_WaitingWrite] = []
        self._leading = False
        self._coming = 0  # number of threads that prepare rows
        self._returning: set[int] = set()  # threads of the last group that have not returned
        self._patient_until_ms = 0

    def _reset_after_fork(self) -> None:
        """F26: reset the state in a forked process, because it belongs to the parent."""
        pid = self._context.ports.ids.identity().pid
        if pid == self._pid:
            return
        with self._births.setdefault(pid, threading.Lock()):
            if pid != self._pid:
                self._reset()
                self._pid = pid

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """
        Run one write, in one instant with others that do not conflict.

        Errors: as ``filegroups.writing.write.write``; an error of the group's commit is raised for
        every member.
        """
        self._reset_after_fork()
        with self._lock:
            snapshot = self._snapshot = self._snapshot or self._context.snapshot()
            self._coming += 1
        try:
            work = self._prepared(plan, workload, snapshot)
        finally:
            with self._lock:
                self._coming -= 1
        # A group validates no reads and needs workloads that list their files, even a group of one.
        alone = not are_compatible(work, work)
        entry = _WaitingWrite(work=work, changed=threading.Condition(self._lock), alone=alone)
        with self._lock:
            self._waiting.append(entry)
            self._returning.discard(entry.thread)
            if self._all_are_there():
                self._gathered.notify()
        try:
            while not entry.answered:
                part = self._wait_for_phase(entry)
                if part is not None:
                    self._carry_out(entry, part)
                elif not entry.answered:
                    self._run_group(entry)
        finally:
            if not entry.answered:
                self._leave(entry)
        if entry.result is None:
            raise entry.failure or OutcomeUnknownError(
                "a group ended without an answer, so the outcome of this write is unknown. Run "
                "'hoodoo timeline show TABLE' and check whether its rows were committed before "
                "you repeat it"
            )
        return entry.result

    def _prepared(
        self, plan: WriteRequest, workload: Workload | None, snapshot: Snapshot
    ) -> PreparedWrite:
        """Prepare rows by the cached snapshot; if they do not fit, once more by a fresh one."""
        try:
            return prepare_write(self._context, plan, workload, snapshot)
        except HoodooError:
            now = self._context.snapshot()
            if now.head == snapshot.head and now.active.file_names == snapshot.active.file_names:
                raise
            with self._lock:
                self._snapshot = now
        return prepare_write(self._context, plan, workload, now)

    def close(self) -> None:
        """Do nothing: no state is kept between two writes."""

    def _leave(self, entry: _WaitingWrite) -> None:
        """Remove a write whose thread was interrupted while it waited."""
        with self._lock:
            entry.gone = True
            self._waiting = [one for one in self._waiting if one is not entry]
            entry.changed.notify_all()
            self._call_next()

    def _call_next(self) -> None:
        """Wake the leader of the next group; the lock is held."""
        if self._waiting and not self._leading:
            self._waiting[0].changed.notify_all()

    def _wait_for_phase(self, entry: _WaitingWrite) -> MemberPhase | None:
        """Wait for a part to run, an answer, or the lead, which the longest waiting write takes."""
        with self._lock:
            while not entry.answered:
                if entry.phase is not None:
                    part, entry.phase, entry.busy = entry.phase, None, True
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
        """Run the members' phases, each on its own thread, which waits anyway."""
        leader, others = group[0], {number: group[number] for number in parts if number}
        with self._lock:
            for entry in group:
                entry.outcome = None
            for number, entry in others.items():
                entry.phase = parts[number]
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
                        entry.phase, entry.outcome = None, _interrupted()
                    else:
                        entry.changed.wait()

    def _run_group(self, leader: _WaitingWrite) -> None:
        group = [leader]
        publishing: list[tuple[InstantTime, frozenset[int]]] = []
        left: list[Callable[[], None]] = []  # post-commit steps for which no writer waits
        try:
            wait_for_rate_limit(self._context)  # others join meanwhile
            began_ms = self._context.ports.clock.monotonic_ms()
            self._run(group, publishing, left)
            now_ms = self._context.ports.clock.monotonic_ms()
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
                    entry.phase = None  # of this group, if it was interrupted before the part began
                _wake(group)
                self._call_next()
            for work in left:  # while the next group begins
                work()

    def _run(
        self,
        group: list[_WaitingWrite],
        publishing: list[tuple[InstantTime, frozenset[int]]],
        left: list[Callable[[], None]],
    ) -> None:
        leader = group[0]
        complete = leader.alone  # whether all members of the group are known

        def join() -> list[PreparedWrite]:
            nonlocal complete
            self._wait_for_more()
            with self._lock:
                group.extend(self._others_of(leader))
                self._returning.clear()
            complete = True
            return [entry.work for entry in group[1:]]

        def on_conflict(number: int, file_groups: frozenset[FileGroupId]) -> None:
            group[number].conflict_on = file_groups

        try:
            self._before()
            self._snapshot = self._context.cached_snapshot()
            if complete or not self._others_may_come():
                complete = True
                leader.result = write_prepared(leader.work)
                return
            if self._linger_ms:
                self._context.ports.clock.sleep_ms(self._linger_ms)
            answers = commit_group(
                self._context,
                [leader.work],
                lambda *arguments: publishing.append(arguments),
                partial(self._side_by_side, group),
                on_conflict,
                join=join,
                later=left.append,
            )
        except Exception:
            # The waiting writes get the error too: it would repeat for each of them.
            if not complete:
                with self._lock:
                    group.extend(self._others_of(leader))
            raise
        for entry, answer in zip(group, answers, strict=True):
            if isinstance(answer, CommitResult):
                entry.result = answer
            elif isinstance(answer, OutcomeUnknownError):
                entry.failure = copy.copy(answer)
            elif answer is NotCommitted.ALONE:
                entry.alone = True

    def _others_may_come(self) -> bool:
        with self._lock:
            coming = self._coming and self._context.ports.storage.capabilities.high_latency
            return bool(self._linger_ms or self._returning or coming or len(self._waiting) > 1)

    def _wait_for_more(self) -> None:
        left_ms = self._patient_until_ms - self._context.ports.clock.monotonic_ms()
        with self._lock:
            self._gathered.wait_for(self._all_are_there, timeout=max(0, left_ms) / 1000)

    def _all_are_there(self) -> bool:
        return not self._returning or len(self._waiting) >= self._writes_max

    def _others_of(self, leader: _WaitingWrite) -> list[_WaitingWrite]:
        """
        Return the writes that join the leader; the lock is held.

        A write whose thread still runs a part of an interrupted leader does not join, because the
        part's files would count as files of the new instant. It leads a group when the part is
        done.
        """
        others = (
            one
            for one in self._waiting
            if one is not leader
            and not (one.alone or one.busy)
            and are_compatible(leader.work, one.work)
        )
        apart = without_known_conflict([leader, *others], lambda one: one.conflict_on)
        return apart[1 : self._writes_max]


def _wake(group: Iterable[_WaitingWrite]) -> None:
    """Wake the threads that have their answers; the lock is held."""
    for entry in group:
        if entry.answered:
            entry.changed.notify_all()


def _interrupted() -> StorageUnavailableError:
    return StorageUnavailableError(
        "the thread of this write was interrupted; write again", kind="interrupted"
    )


def _unknown(requested_time: InstantTime) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the writer that committed this write with its own was interrupted. Run 'hoodoo explain "
        f"TABLE {requested_time} --resolve' before you repeat the write",
        requested_time=requested_time,
    )
