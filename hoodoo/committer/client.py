"""
Offer writes to the committer of this host, or commit them here if it is missing or fails.

A missing committer costs one request to the file system. A silent committer costs one time-out,
and for that time this process does not call it again. The same holds for a committer that dropped
this process during a write: the process may be too slow and would break up the next group, too.
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

#: Greatest age of the snapshot for which rows are prepared, ms; the commit reads a newer one.
_SNAPSHOT_AGE_MS_MAX = 10_000


class GroupCommit(Protocol):
    """A group commit of the writes of a table: by threads of a process, or by a committer."""

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """Commit one write. Errors: as ``filegroups.writing.write.write``."""

    def close(self) -> None:
        """Close all connections."""


class CommitterWriter:
    """
    Sends the writes of a table to the committer at a socket.

    Args:
        context: The table.
        socket: Path of the committer's socket.
        wait_ms: Longest silence of the committer, ms.
        before: Called before a write that this process commits.
        after: Called after such a write.
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
        self._release = release()  # the running release, not one installed later

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """
        Commit one write, in one instant with compatible writes of other processes.

        Errors: as ``filegroups.writing.write.write``. Also ``OutcomeUnknownError``, if the
        committer does not report the outcome and ``Member.resolve`` cannot look it up.
        """
        cached = self._context.cached_snapshot(_SNAPSHOT_AGE_MS_MAX)
        try:
            work = prepare_write(self._context, plan, workload, cached)
        except HoodooError:  # rows that do not fit the cached snapshot may fit a new one
            now = self._context.snapshot()
            if now.head == cached.head and now.active.file_names == cached.active.file_names:
                raise
            work = prepare_write(self._context, plan, workload, now)
        result = self._shared(work) if can_be_offered(work) else None
        if result is not None:
            return result
        self._before()
        result = write_prepared(work)
        self._after()
        return result

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()

    def _shared(self, work: PreparedWrite) -> CommitResult | None:
        """Return the committer's result; None if the write is not committed."""
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
                    ):  # the committer may have waited for it until a time-out
                        self._rest(str(error))
                        return None
                    # The committer may have ended since the last write, and another may listen now.
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
        """Return a connection for this thread alone, and whether it was used before."""
        ports = self._context.ports
        pid = ports.ids.identity().pid
        if pid != self._pid:  # a forked child must not use its parent's connections
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
    Return the group commit for writes of this process; None if each write has its own instant.

    Args:
        context: The table.
        settings: The write settings.
        before: Called before each group, or each write, that this process commits.
        after: Called after it.
    """
    # The caller names the committer; a path in the table's properties is ignored (SEC4).
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
    """Return a committer's time-out for one answer, ms: shorter than that of its writers."""
    return max(1, settings.group_service_wait_ms // 2)


@cache
def release() -> str:
    """
    Return the release of this program; a message of another release may have another meaning.

    The result is cached, because each call of ``version`` searches and reads package files.
    """
    try:
        return version("hoodoo")
    except PackageNotFoundError:
        return "unknown"
