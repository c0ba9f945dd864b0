"""
The committer commits the writes that processes of its host offer, one group at a time (GRP-4).

One thread receives offers, begins an instant and groups the compatible writes of that time. It
commits the group by the same function as threads of one process, and answers each writer. During
a commit the next offers wait in their sockets, so the load decides the group size.

An answered writer often sends its next offer at once. So the committer waits for these writers for
a small part of their group's time; otherwise each would be in every second group only. Offers
contain the rows, and the committer writes the files of the members concurrently.
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
from filegroups.writing.stored_forms import with_stored_forms
from filegroups.writing.write import PreparedWrite
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.committer.client import answer_ms, release
from hoodoo.committer.sockets import SocketChannel, SocketListener
from hoodoo.table import Table
from hoodoo.write_requests import write_request_of
from hoodoo.writer import TableWriter
from timeline.context import TableContext
from timeline.errors import HoodooError, OutcomeUnknownError, UnsafeSetupError
from timeline.model.commit_metadata import ConcurrencyMode, FileGroupId, WriteOperation
from timeline.model.instant_time import InstantTime
from timeline.properties.options import DEFAULT_LAYER
from timeline.system import Started, ThreadExecutor

_CONNECTIONS_MAX = 512
_STEP_S = 0.2  # longest delay of a stop
_PARTS_MAX = 64  # members whose files are sent at a time, on a high-latency store
_TEXT_MAX = 2000
_WRITES_MAX = 64  # of an instant, unless the option sets another number


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTable:
    """
    A table, and the limits of its groups.

    Args:
        context: The table.
        plan_of: Returns this process's write request for an offer, to compare it with the writer's.
        writes_max: Most writes of one instant.
        linger_ms: Time that the first write of a group waits for others, ms.
        answer_ms: Time-out of a writer's answer, ms.
        before: Called before each group.
        after: Called after each group.
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
    Return an opened table as a committer serves it, by its properties.

    Raises:
        UnsafeSetupError: The concurrency mode is that of a single writer.
        HoodooError: This process cannot write the table; as of a first write.
    """
    settings = table.settings
    if settings.concurrency_mode is ConcurrencyMode.SINGLE_WRITER:
        raise UnsafeSetupError(
            "a table with a committer has several writers: the committer, and each writer when "
            "the committer has ended. Set hoodie.write.concurrency.mode and a lock provider for "
            f"all of them: {table.context.ports.storage.base_uri}",
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
        # The writer also used the stored forms of keys.
        if keys.has_two_forms or offer_of(context, made) != offer.plan:
            made = with_stored_forms(context, context.cached_snapshot(), made)
        return made

    is_configured = settings.origin("group_writes_max") != DEFAULT_LAYER
    return ServedTable(
        context=table.context,
        plan_of=plan,
        writes_max=settings.group_writes_max if is_configured else _WRITES_MAX,
        linger_ms=settings.group_linger_ms,
        answer_ms=answer_ms(settings),
        before=writer.before_group,
        after=writer.after_group,
    )


def _warm_up() -> None:
    """
    Load pandas now; otherwise the first group waits for it, most of a second for each writer.

    If pandas is installed, Arrow imports it when it first makes an array of Python values.
    """
    pa.array([0])


class Stop(Protocol):
    """A stop request, which the committer checks between two groups."""

    def is_set(self) -> bool:
        """Return whether the committer must end."""


@dataclass(slots=True)
class CommitterReport:
    """The counts of a committer so far."""

    groups: int = 0  # committed instants
    writes: int = 0  # writes in these instants
    handed_back: int = 0  # writes that their writers had to commit themselves
    lost: int = 0  # connections that ended during an offered write
    failures: int = 0  # groups that failed as a whole
    connections: int = 0  # open connections
    last_failure: str = ""


class CommitterListener(Protocol):
    """A receiver of a committer's report; the committer calls it on its own thread."""

    def rested(self, report: CommitterReport) -> None:
        """Receive the report, at most once a second."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """An offer without an answer."""

    channel: SocketChannel
    work: PreparedWrite
    since_ms: int
    conflict_on: frozenset[FileGroupId] = frozenset()  # conflicts in an earlier group


@dataclass(slots=True)
class _TableQueue:
    """One table and its waiting offers, in order of arrival."""

    served: ServedTable
    threads: ThreadExecutor
    waiting: list[_Waiting] = field(default_factory=list)
    answered: set[SocketChannel] = field(default_factory=set)  # last group, without new offer
    patient_until_ms: int = 0
    tidying: Started[None] | None = None  # remaining work of the last group


class Committer:
    """
    Serves tables at one socket until a stop request.

    Args:
        listener: The open socket; the caller closes it.
        tables: At least one table; the committer commits one group at a time, for all tables.
        watcher: Receives the report.
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
        self._notified_ms = 0
        self._channels: set[SocketChannel] = set()
        self._busy: dict[SocketChannel, _TableQueue] = {}
        self.report = CommitterReport()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self, stop: Stop) -> CommitterReport:
        """
        Commit groups until a stop request, and finish the present group.

        Each writer with a waiting offer then commits its write itself.

        Raises:
            UnsafeSetupError: The socket's file was deleted or replaced, so no writer can connect.
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
            # After an interrupted group the outcome is unknown: each writer looks it up.
            for channel in list(self._channels):
                self._drop(channel)
            self._selector.close()
            for desk in self._desks.values():
                _wait_for_tidy(desk)
                desk.threads.close()
        self._events.emit("committer.ended", groups=self.report.groups, writes=self.report.writes)
        if not stop.is_set():
            raise UnsafeSetupError(
                "the socket was deleted, or another committer replaced it, so writers no longer "
                f"reach this committer: start it again if you need it: {self._listener.path}",
                kind="committer_not_found",
                path=str(self._listener.path),
            )
        return self.report

    def _notify(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._watcher is not None and now_ms - self._notified_ms >= 1000:
            self._notified_ms = now_ms
            self.report.connections = len(self._channels)
            self._watcher.rested(self.report)

    # ---- offers

    def _tables_with_waiting(self) -> list[_TableQueue]:
        """Return the tables with waiting offers."""
        return [desk for desk in self._desks.values() if desk.waiting]

    def _linger_ms(self, desk: _TableQueue) -> int:
        """Return the time, in ms, that the first write still waits before its instant begins."""
        if len(desk.waiting) >= desk.served.writes_max:
            return 0
        waited_ms = self._clock.monotonic_ms() - desk.waiting[0].since_ms
        return max(0, desk.served.linger_ms - waited_ms)

    def _left_ms(self, desk: _TableQueue) -> int:
        """Return the time, in ms, that a group still waits for writers of the last group."""
        if not desk.answered or len(desk.waiting) >= desk.served.writes_max:
            return 0
        return desk.patient_until_ms - self._clock.monotonic_ms()

    def _listen(self, wait_s: float) -> None:
        """Receive all messages that have arrived, so that the next group has their offers."""
        for _ in range(_CONNECTIONS_MAX):  # so that one busy writer does not delay the others
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
            channel.close()  # the writer commits itself
            return
        self._channels.add(channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def _receive(self, channel: SocketChannel) -> None:
        try:
            message = channel.poll()
            if message is None:
                return
            if channel in self._busy or not isinstance(message, Offer):
                raise PeerLostError(f"an unexpected message: {message.kind}")
            self._take(channel, message)
        except PeerLostError as error:
            if self._drop(channel):
                self._events.emit("committer.lost", why=str(error))

    def _take(self, channel: SocketChannel, offer: Offer) -> None:
        desk = self._desks.get(offer.table_id)
        why = "this committer does not serve the table"
        if offer.release != release():
            why = f"the committer has release {release()}, and the writer {offer.release}"
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
        self._send(channel, FallBack(why=why[:_TEXT_MAX]))

    def _work_of(self, served: ServedTable, offer: Offer) -> tuple[PreparedWrite | None, str]:
        plan = served.plan_of(offer)
        mine = offer_of(served.context, plan)
        if mine != offer.plan:
            names = sorted(
                name for name in {*mine, *offer.plan} if mine.get(name) != offer.plan.get(name)
            )
            return None, f"the committer has other settings: {', '.join(names[:5])}"
        work = offered_work(served.context, plan, offer)
        if not are_compatible(work, work):
            return None, "such a write is never coalesced"
        return work, ""

    # ---- groups

    def _run_group(self, desk: _TableQueue) -> None:
        group = [desk.waiting[0]]
        left: list[Callable[[], None]] = []  # work of the group for which no writer waits
        began_ms = self._clock.monotonic_ms()
        answers = self._answers(desk, group, left)
        desk.answered = set()
        for one, answer in zip(group, answers, strict=True):
            if answer is NotCommitted.CONFLICTS:
                continue  # it waits, and the first waiting offer leads the next group
            desk.waiting = [waiting for waiting in desk.waiting if waiting is not one]
            if answer is NotCommitted.LOST:
                self._drop(one.channel)
            elif isinstance(answer, CommitResult):
                desk.answered.add(one.channel)
                self._answer(one, _answer_of(answer))
            elif isinstance(answer, OutcomeUnknownError):
                self._answer(one, OutcomeUnknown())
            else:
                self.report.handed_back += 1
                self._answer(one, FallBack(why="it failed in the group, or the group was rejected"))
        now_ms = self._clock.monotonic_ms()
        desk.patient_until_ms = now_ms + (now_ms - began_ms) // PATIENCE
        self._tidy_up(desk, left)
        self._afterwards(desk.served)

    def _tidy_up(self, desk: _TableQueue, left: Sequence[Callable[[], None]]) -> None:
        """Do the remaining work of a group; on a high-latency store during the next begin."""
        _wait_for_tidy(desk)

        def tidy_up() -> None:
            for work in left:
                work()

        if left and desk.served.context.ports.storage.capabilities.high_latency:
            desk.tidying = desk.threads.start(tidy_up)
        else:
            tidy_up()

    def _joined(self, desk: _TableQueue, group: list[_Waiting]) -> list[PreparedWrite]:
        """Return the writes that arrived during the begin, or arrive while the group waits."""
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
                on_conflict=partial(_note, group),
                join=join,
                name_instant=name,
                later=left.append,
            )
        except Exception as error:  # noqa: BLE001 - nothing is committed: each retries alone
            if not joined:  # the begin failed, for the other writes, too
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
        except Exception as error:  # noqa: BLE001 - a failed service ends no committer
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.report.failures += 1
        self.report.last_failure = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
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
        """Close and remove a connection; return whether a write was offered on it."""
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
        tidying.result()


def _others(desk: _TableQueue, first: _Waiting) -> list[_Waiting]:
    """Return the offers that may share a group with its first write."""
    others = (
        one for one in desk.waiting if one is not first and are_compatible(first.work, one.work)
    )
    together = without_known_conflict([first, *others], lambda one: one.conflict_on)
    return together[1 : desk.served.writes_max]


def _note(group: Sequence[_Waiting], number: int, file_groups: frozenset[FileGroupId]) -> None:
    group[number].conflict_on = file_groups


def _answer_of(result: CommitResult) -> WasCommitted:
    return WasCommitted(
        requested_time=result.requested_time,
        completion_time=result.completion_time,
        group=result.group,
        lost_slots=result.lost_slots,
        own=MemberResult.of(result),
    )


def _desk_of(served: ServedTable) -> _TableQueue:
    """Return the queue of a table; on a high-latency store each member has its own thread."""
    context = served.context
    threads = ThreadExecutor(min(served.writes_max, _PARTS_MAX) + 1, events=context.ports.events)
    if context.ports.storage.capabilities.high_latency:
        # The table keeps its caches, so table services after a group refresh nothing twice.
        context = replace(context, ports=replace(context.ports, executor=threads))
    return _TableQueue(served=replace(served, context=context), threads=threads)
