"""
Writes that a committer of this host publishes, or this process itself when it cannot.

A committer that is not there costs one look at the file system; one that went silent costs its
time-out once and is left alone for as long. So is one that gave this process up amid a write: a
write that takes longer than it waits would break up the next group as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from filegroups.group_commit.committer import GroupCommitter
from filegroups.group_commit.member import Member, can_be_offered, write_by_committer
from filegroups.group_commit.messages import PeerLostError, PeerSilentError
from filegroups.settings.settings import WriteSettings
from filegroups.writing.workload import Workload
from filegroups.writing.write import PreparedWrite, prepare_write, write_prepared
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.committer.sockets import SocketChannel, connect
from timeline.context import TableContext
from timeline.errors import HoodooError, UnsafeSetupError
from timeline.properties.options import TABLE_LAYER

#: How old a look rows are fitted to the table by may be: whoever publishes them looks again.
_LOOK_MS_MAX = 10_000


class GroupCommit(Protocol):
    """Whoever publishes the writes of a table together."""

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """Run one write. Errors: as ``filegroups.writing.write.write``."""

    def close(self) -> None:
        """Give up connections."""


class CommitterWriter:
    """
    Hands the writes of a table to the committer at a socket.

    Args:
        context: The table.
        socket: The committer's.
        wait_ms: Longest silence of the committer.
        before: Done before a write that this process publishes itself.
        after: Done after such a write.
    """

    def __init__(
        self,
        context: TableContext,
        socket: Path,
        *,
        wait_ms: int,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self._context = context
        self._path = socket
        self._wait_ms = wait_ms
        self._before = before
        self._after = after
        self._idle: list[SocketChannel] = []
        self._pid = 0
        self._rests_until_ms: int | None = None
        self._release = release()  # what runs, not what may be installed beside it later

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """
        Run one write, in an instant with those of other processes where they do not meet.

        Errors: as ``filegroups.writing.write.write``; and ``OutcomeUnknownError`` when the committer died
        and the storage does not say what became of the write.
        """
        looked = self._context.cached_snapshot(_LOOK_MS_MAX)
        try:
            work = prepare_write(self._context, plan, workload, looked)
        except HoodooError:  # rows that do not fit an older look may fit the table as it is now
            now = self._context.snapshot()
            if now.head == looked.head and now.active.file_names == looked.active.file_names:
                raise
            work = prepare_write(self._context, plan, workload, now)
        receipt = self._shared(work) if can_be_offered(work) else None
        if receipt is not None:
            return receipt
        self._before()
        receipt = write_prepared(work)
        self._after()
        return receipt

    def close(self) -> None:
        """Give up all connections."""
        while self._idle:
            self._idle.pop().close()

    def _shared(self, work: PreparedWrite) -> CommitResult | None:
        """The receipt of the committer; None when nothing of the write was published."""
        try:
            channel, used = self._channel()
            while channel is not None:
                member = Member(work, self._release)
                try:
                    return self._through(channel, member)
                except PeerSilentError:
                    raise
                except PeerLostError as error:
                    if (
                        member.requested_time is not None
                    ):  # it may have waited for this write in vain
                        self._rest(str(error))
                        return None
                    # It may have ended since the last write, and another one listen by now.
                    channel, used = self._connected() if used else None, False
        except PeerSilentError as error:
            self._rest(str(error))
        except UnsafeSetupError as error:
            self._rest(error.message)
        return None

    def _through(self, channel: SocketChannel, member: Member) -> CommitResult | None:
        return write_by_committer(
            channel, member, wait_ms=self._wait_ms, done=lambda: self._idle.append(channel)
        )

    def _channel(self) -> tuple[SocketChannel | None, bool]:
        """A connection, and whether it was used before; nobody else has it meanwhile."""
        ports = self._context.ports
        pid = ports.ids.identity().pid
        if pid != self._pid:  # a forked child must not speak on its parent's connections
            self.close()
            self._pid = pid
        until_ms = self._rests_until_ms
        if until_ms is not None and ports.clock.monotonic_ms() < until_ms:
            return None, False
        self._rests_until_ms = None
        try:
            return self._idle.pop(), True
        except IndexError:
            return self._connected(), False

    def _connected(self) -> SocketChannel | None:
        found = connect(self._path, self._context.ports.clock, send_ms=self._wait_ms)
        if found is None:
            self._context.ports.events.emit("group.no_committer", socket=str(self._path))
        return found

    def _rest(self, why: str) -> None:
        ports = self._context.ports
        self._rests_until_ms = ports.clock.monotonic_ms() + self._wait_ms
        self.close()
        ports.events.emit("group.committer_failed", socket=str(self._path), why=why)


def group_commit_of(
    context: TableContext,
    settings: WriteSettings,
    *,
    before: Callable[[], object],
    after: Callable[[], object],
) -> GroupCommit | None:
    """
    How writes of this process share instants; None when each has its own.

    Args:
        context: The table.
        settings: Of its writes.
        before: Done before each group, or each write, that this process publishes.
        after: Done after it.
    """
    # Whom a process talks to is its caller's word, never the table's (SEC4).
    origin = settings.origin("group_service")
    if settings.group_service and origin != TABLE_LAYER:
        return CommitterWriter(
            context,
            Path(settings.group_service),
            wait_ms=settings.group_service_wait_ms,
            before=before,
            after=after,
        )
    if settings.group_writes_max < 2:
        return None
    return GroupCommitter(
        context,
        writes_max=settings.group_writes_max,
        linger_ms=settings.group_linger_ms,
        before=before,
        after=after,
    )


def answer_ms(settings: WriteSettings) -> int:
    """How long a committer waits for one answer: less than its other writers wait for it."""
    return max(1, settings.group_service_wait_ms // 2)


@cache
def release() -> str:
    """
    What this program is; tasks of another release may mean something else.

    Looked up once a process: each time the files of its package are searched for and read.
    """
    try:
        return version("hoodoo")
    except PackageNotFoundError:
        return "unknown"
