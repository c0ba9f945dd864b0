"""
The committer: publishes what the writers of a host offer, one group at a time (GRP-4).

One thread does it all: it looks who offers something, begins an instant, makes a group of what
goes together by then, publishes it by the same function as threads of one process do, and tells
each writer. While it publishes, the next offers wait in their sockets, so a group is as big as
the load makes it.
Writers that were just answered often come back at once: for a small part of what their group
took they are waited for, or each would only be in every second group.
The rows come with the offers, and the members' files are written side by side.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from filegroups.group_commit.commit_group import (
    Answer,
    NotCommitted,
    are_compatible,
    commit_group,
    without_known_conflict,
)
from filegroups.group_commit.committer import PATIENCE
from filegroups.group_commit.member import name_instant, offered_work
from filegroups.group_commit.messages import (
    FallBack,
    MemberResult,
    Message,
    Offer,
    OutcomeUnknown,
    PeerLostError,
    WasCommitted,
    offer_of,
)
from filegroups.writing.write import PreparedWrite
from filegroups.writing.write_request import CommitResult, WriteRequest
from filegroups.writing.write_schema import with_stored_forms
from hoodoo.committer.client import answer_ms, release
from hoodoo.committer.sockets import SocketChannel, SocketListener
from hoodoo.factory import write_request_of
from hoodoo.table import Table
from hoodoo.writer import TableWriter
from timeline.context import TableContext
from timeline.errors import HoodooError, OutcomeUnknownError, UnsafeSetupError
from timeline.model.commit_metadata import ConcurrencyMode, FileGroupId, WriteOperation
from timeline.model.instant import InstantTime
from timeline.properties.options import DEFAULT_LAYER
from timeline.system import Started, ThreadExecutor

_CONNECTIONS_MAX = 512
_STEP_S = 0.2  # how soon a stop is noticed
_PARTS_MAX = 64  # members of a high-latency store whose files are sent at a time
_SAID_MAX = 2000
_WRITES_MAX = 64  # of an instant, unless the option says another number


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTable:
    """
    A table and how its groups are made.

    Args:
        context: The table.
        plan_of: What this process would ask for in place of a writer.
        writes_max: Most writes of one instant.
        linger_ms: How long the first write of a group waits for others.
        answer_ms: How long a writer may take for one answer.
        before: Done before each group.
        after: Done after each group.
    """

    context: TableContext
    plan_of: Callable[[Offer], WriteRequest]
    writes_max: int
    linger_ms: int
    answer_ms: int
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None


def committer_table(table: Table) -> ServedTable:
    """
    An opened table as a committer serves it, by the table's properties.

    Raises:
        UnsafeSetupError: Its writers say that there is but one.
        HoodooError: As of a first write: the table cannot be written by this process.
    """
    settings = table.settings
    if settings.concurrency_mode is ConcurrencyMode.SINGLE_WRITER:
        raise UnsafeSetupError(
            "a table with a committer has several writers: it, and each of them when it is gone; set "
            "hoodie.write.concurrency.mode and a lock provider for all of them: "
            f"{table.context.ports.storage.base_uri}",
            kind="committer_single_writer",
        )
    writer = TableWriter(table.context, table.properties, settings, table.services)
    writer.begin()
    _warm_up()

    def plan(offer: Offer) -> WriteRequest:
        operation = WriteOperation(offer.operation)
        config = table.context.config
        made = write_request_of(
            settings, config, operation, batch_id=offer.batch_id, partial=offer.partial
        )
        keys, context = made.rules.keys, table.context
        # The writer looked at what is stored, too.
        if keys.has_two_forms or offer_of(context, made) != offer.plan:
            made = with_stored_forms(context, context.cached_snapshot(), made)
        return made

    told = settings.origin("group_writes_max") != DEFAULT_LAYER
    return ServedTable(
        context=table.context,
        plan_of=plan,
        writes_max=settings.group_writes_max if told else _WRITES_MAX,
        linger_ms=settings.group_linger_ms,
        answer_ms=answer_ms(settings),
        before=writer.before_group,
        after=writer.after_group,
    )


def _warm_up() -> None:
    """
    What the first group would wait for, most of a second for each writer in it.

    Where pandas is installed, Arrow imports it when it first makes an array of Python values.
    """
    pa.array([0])


class Stop(Protocol):
    """Asked between two groups."""

    def is_set(self) -> bool:
        """Whether the committer is to end."""


@dataclass(slots=True)
class CommitterReport:
    """What a committer did so far."""

    groups: int = 0  # instants it published
    writes: int = 0  # in them
    handed_back: int = 0  # writers that were told to publish by themselves
    lost: int = 0  # connections that ended while a write was offered
    failures: int = 0  # groups that failed as a whole
    connections: int = 0  # now
    last_failure: str = ""


class CommitterListener(Protocol):
    """Who is told how a committer fares, on its thread."""

    def rested(self, report: CommitterReport) -> None:
        """It has nothing to do, or a second has passed."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """An offer that has no answer yet."""

    channel: SocketChannel
    work: PreparedWrite
    since_ms: int
    conflict_on: frozenset[FileGroupId] = frozenset()  # in an earlier group


@dataclass(slots=True)
class _TableQueue:
    """One table and who waits for it, in their order."""

    served: ServedTable
    threads: ThreadExecutor
    waiting: list[_Waiting] = field(default_factory=list)
    answered: set[SocketChannel] = field(default_factory=set)  # in the last group, not back yet
    patient_until_ms: int = 0
    tidying: Started[None] | None = None  # up after the last group


class Committer:
    """
    Serves some tables at one socket until it is told to stop.

    Args:
        listener: Open; the caller closes it.
        tables: At least one; one group at a time is published, whosever it is.
        watcher: Told how it fares.
    """

    def __init__(
        self,
        listener: SocketListener,
        tables: Sequence[ServedTable],
        *,
        watcher: CommitterListener | None = None,
    ) -> None:
        self._listener = listener
        self._desks = {one.context.table_id: _desk_of(one) for one in tables}
        self._clock = tables[0].context.ports.clock
        self._events = tables[0].context.ports.events
        self._watcher = watcher
        self._told_ms = 0
        self._channels: set[SocketChannel] = set()
        self._busy: dict[SocketChannel, _TableQueue] = {}
        self.report = CommitterReport()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self, stop: Stop) -> CommitterReport:
        """
        Publish groups until stopped; the present one is brought to its end.

        Who waits then is told to publish by itself.

        Raises:
            UnsafeSetupError: Nobody finds it any more; it would wait for ever.
        """
        self._events.emit("committer.began", tables=len(self._desks))
        try:
            while not stop.is_set() and self._listener.is_reachable():
                self._listen(
                    min(
                        [
                            _STEP_S,
                            *(self._linger_ms(one) / 1000 for one in self._tables_with_waiting()),
                        ]
                    )
                )
                for desk in self._tables_with_waiting():
                    if desk.waiting and self._linger_ms(desk) <= 0 and not stop.is_set():
                        self._run_group(desk)
                self._notify()
            for desk in self._desks.values():
                for one in desk.waiting:
                    self._answer(one, FallBack(why="the committer ends"))
        finally:
            # Broken off in a group, nobody may be told that it can go alone: each finds out.
            for channel in list(self._channels):
                self._drop(channel)
            self._selector.close()
            for desk in self._desks.values():
                _wait_for_tidy(desk)
                desk.threads.close()
        self._events.emit("committer.ended", groups=self.report.groups, writes=self.report.writes)
        if not stop.is_set():
            raise UnsafeSetupError(
                "the socket was removed, or another committer took its place, so that no writer "
                f"comes here any more; start this one again if it is needed: {self._listener.path}",
                kind="committer_not_found",
                path=str(self._listener.path),
            )
        return self.report

    def _notify(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._watcher is not None and now_ms - self._told_ms >= 1000:
            self._told_ms = now_ms
            self.report.connections = len(self._channels)
            self._watcher.rested(self.report)

    # ---- who offers something

    def _tables_with_waiting(self) -> list[_TableQueue]:
        """The tables for which somebody waits."""
        return [desk for desk in self._desks.values() if desk.waiting]

    def _linger_ms(self, desk: _TableQueue) -> int:
        """How long the first write still waits before an instant is begun for it."""
        if len(desk.waiting) >= desk.served.writes_max:
            return 0
        waited_ms = self._clock.monotonic_ms() - desk.waiting[0].since_ms
        return max(0, desk.served.linger_ms - waited_ms)

    def _left_ms(self, desk: _TableQueue) -> int:
        """How long a group may still wait for those who were just answered."""
        if not desk.answered or len(desk.waiting) >= desk.served.writes_max:
            return 0
        return desk.patient_until_ms - self._clock.monotonic_ms()

    def _listen(self, wait_s: float) -> None:
        """Hear all who have said something by now, so that the next group has them."""
        for _ in range(_CONNECTIONS_MAX):  # who speaks without end does not keep the others
            ready = self._selector.select(wait_s)
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, SocketChannel):
                    self._receive(key.fileobj)
            if not ready:
                return
            wait_s = 0

    def _accept(self) -> None:
        channel = self._listener.accept()
        if channel is None:
            return
        if len(self._channels) >= _CONNECTIONS_MAX:
            channel.close()  # the writer publishes by itself
            return
        self._channels.add(channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def _receive(self, channel: SocketChannel) -> None:
        try:
            message = channel.poll()
            if message is None:
                return
            if channel in self._busy or not isinstance(message, Offer):
                raise PeerLostError(f"nobody asked for that: {message.kind}")
            self._take(channel, message)
        except PeerLostError as error:
            if self._drop(channel):
                self._events.emit("committer.lost", why=str(error))

    def _take(self, channel: SocketChannel, offer: Offer) -> None:
        desk = self._desks.get(offer.table_id)
        why = "this committer does not serve the table"
        if offer.release != release():
            why = f"the committer is of another release: {release()}, the writer's {offer.release}"
        elif desk is not None:
            try:
                work, why = self._work_of(desk.served, offer)
            except (HoodooError, ValueError) as error:
                work, why = None, str(error)
            if work is not None:
                now_ms = self._clock.monotonic_ms()
                desk.waiting.append(_Waiting(channel=channel, work=work, since_ms=now_ms))
                desk.answered.discard(channel)
                self._busy[channel] = desk
                return
        self._events.emit("committer.handed_back", why=why)
        self.report.handed_back += 1
        self._send(channel, FallBack(why=why[:_SAID_MAX]))

    def _work_of(self, served: ServedTable, offer: Offer) -> tuple[PreparedWrite | None, str]:
        plan = served.plan_of(offer)
        mine = offer_of(served.context, plan)
        if mine != offer.plan:
            names = sorted(
                name for name in {*mine, *offer.plan} if mine.get(name) != offer.plan.get(name)
            )
            return None, f"the committer is configured otherwise: {', '.join(names[:5])}"
        work = offered_work(served.context, plan, offer)
        if not are_compatible(work, work):
            return None, "such a write is never shared"
        return work, ""

    # ---- groups

    def _run_group(self, desk: _TableQueue) -> None:
        group = [desk.waiting[0]]
        left: list[Callable[[], None]] = []  # of the group, which nobody waits for
        began_ms = self._clock.monotonic_ms()
        answers = self._answers(desk, group, left)
        desk.answered = set()
        for one, answer in zip(group, answers, strict=True):
            if answer is NotCommitted.CONFLICTS:
                continue  # it stays, and the first of those who stay leads the next group
            desk.waiting = [waiting for waiting in desk.waiting if waiting is not one]
            if answer is NotCommitted.LOST:
                self._drop(one.channel)
            elif isinstance(answer, CommitResult):
                desk.answered.add(one.channel)
                self._answer(one, _told(answer))
            elif isinstance(answer, OutcomeUnknownError):
                self._answer(one, OutcomeUnknown())
            else:
                self.report.handed_back += 1
                self._answer(one, FallBack(why="it failed in the group, or the group was refused"))
        now_ms = self._clock.monotonic_ms()
        desk.patient_until_ms = now_ms + (now_ms - began_ms) // PATIENCE
        self._tidy_up(desk, left)
        self._afterwards(desk.served)

    def _tidy_up(self, desk: _TableQueue, left: Sequence[Callable[[], None]]) -> None:
        """What is left of a group; far away while the next one is begun."""
        _wait_for_tidy(desk)

        def tidy_up() -> None:
            for work in left:
                work()

        if left and desk.served.context.ports.storage.capabilities.high_latency:
            desk.tidying = desk.threads.start(tidy_up)
        else:
            tidy_up()

    def _joined(self, desk: _TableQueue, group: list[_Waiting]) -> list[PreparedWrite]:
        """Who came while the group's instant was begun, and who comes in what is left of its time."""
        while (left_ms := self._left_ms(desk)) > 0:
            self._listen(min(_STEP_S, left_ms / 1000))
        self._listen(0)
        group.extend(_others(desk, group[0]))
        return [one.work for one in group[1:]]

    def _answers(
        self, desk: _TableQueue, group: list[_Waiting], left: list[Callable[[], None]]
    ) -> Sequence[Answer]:
        served = desk.served
        joined = False

        def join() -> list[PreparedWrite]:
            nonlocal joined
            joined = True
            return self._joined(desk, group)

        def name(time: InstantTime, numbers: frozenset[int]) -> frozenset[int]:
            channels = {number: group[number].channel for number in sorted(numbers)}
            return name_instant(channels, time, self._clock, answer_ms=served.answer_ms)

        try:
            served.before()
            answers = commit_group(
                served.context,
                [group[0].work],
                meeting=partial(_note, group),
                join=join,
                name_instant=name,
                later=left.append,
            )
        except Exception as error:  # noqa: BLE001 - nothing was published: each tries by itself
            if not joined:  # it was not begun, which was tried for these, too
                group.extend(_others(desk, group[0]))
            self._failed(error)
            return [NotCommitted.ALONE] * len(group)
        unknown = [one for one in answers if isinstance(one, OutcomeUnknownError)]
        if unknown:
            self._failed(unknown[0])
        published = sum(isinstance(one, CommitResult) for one in answers)
        self.report.groups += published > 0
        self.report.writes += published
        return answers

    def _afterwards(self, served: ServedTable) -> None:
        try:
            served.after()
        except Exception as error:  # noqa: BLE001 - upkeep of a table ends no committer
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.report.failures += 1
        self.report.last_failure = f"{type(error).__name__}: {error}"[:_SAID_MAX]
        self._events.emit("committer.failed", why=self.report.last_failure)

    # ---- connections

    def _answer(self, one: _Waiting, message: Message) -> None:
        self._busy.pop(one.channel, None)
        self._send(one.channel, message)

    def _send(self, channel: SocketChannel, message: Message) -> None:
        try:
            channel.send(message)
        except PeerLostError as error:
            self._drop(channel)
            self._events.emit("committer.lost", why=str(error))

    def _drop(self, channel: SocketChannel) -> bool:
        """Forget a connection; whether a write was offered on it."""
        if channel not in self._channels:
            return False
        self._channels.remove(channel)
        self._selector.unregister(channel)
        channel.close()
        for each in self._desks.values():
            each.answered.discard(channel)
        desk = self._busy.pop(channel, None)
        if desk is None:
            return False
        self.report.lost += 1
        desk.waiting = [one for one in desk.waiting if one.channel is not channel]
        return True


def _wait_for_tidy(desk: _TableQueue) -> None:
    tidying, desk.tidying = desk.tidying, None
    if tidying is not None:
        tidying.wait()


def _others(desk: _TableQueue, first: _Waiting) -> list[_Waiting]:
    """Who may be in a group with the first of it."""
    others = (
        one for one in desk.waiting if one is not first and are_compatible(first.work, one.work)
    )
    together = without_known_conflict([first, *others], lambda one: one.conflict_on)
    return together[1 : desk.served.writes_max]


def _note(group: Sequence[_Waiting], number: int, file_groups: frozenset[FileGroupId]) -> None:
    group[number].conflict_on = file_groups


def _told(receipt: CommitResult) -> WasCommitted:
    return WasCommitted(
        requested_time=receipt.requested_time,
        completion_time=receipt.completion_time,
        group=receipt.group,
        lost_slots=receipt.lost_slots,
        own=MemberResult.of(receipt),
    )


def _desk_of(served: ServedTable) -> _TableQueue:
    """Return the queue of a table; on a high-latency store each member has a thread that waits."""
    context = served.context
    threads = ThreadExecutor(min(served.writes_max, _PARTS_MAX) + 1, events=context.ports.events)
    if context.ports.storage.capabilities.high_latency:
        # The caches stay the table's own: upkeep after a group refreshes nothing twice.
        context = replace(context, ports=replace(context.ports, executor=threads))
    return _TableQueue(served=replace(served, context=context), threads=threads)
