"""Open a commit by the protocol of a table, and enter its commit section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from timeline.commit.commit_lock import WriteToCommit
from timeline.commit.object_store import ObjectStoreCommit
from timeline.commit.protocol import CommitProtocol, LocalCommit
from timeline.commit.shared_with_java import SharedWithJava
from timeline.context import ProtocolKind, TableContext

_COMMITS: Final[Mapping[ProtocolKind, type[CommitProtocol]]] = {
    ProtocolKind.LOCAL: LocalCommit,
    ProtocolKind.OBJECT_STORE: ObjectStoreCommit,
    ProtocolKind.SHARED_WITH_JAVA: SharedWithJava,
}


def open_commit(
    context: TableContext, purpose: str, write: WriteToCommit | None = None
) -> CommitProtocol:
    """Return a new commit by the protocol of this table; arguments: as ``CommitProtocol``."""
    return _COMMITS[context.protocol](context, purpose, write)


def protocol_of(context: TableContext) -> CommitProtocol:
    """Return the protocol of this table, to ask it something before a commit."""
    return open_commit(context, "")


def apply_pending_slots(context: TableContext, purpose: str) -> None:
    """
    Enter and leave a commit section, which applies or ends all slots up to the head (PUB-3).

    Args:
        context: The table.
        purpose: Shown to processes that wait for the lock.

    Raises:
        LockTimeoutError, LeaseLostError, StorageUnavailableError: As ``CommitProtocol.section``.
    """
    with open_commit(context, purpose).section():
        pass
