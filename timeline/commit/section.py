"""Choose the commit protocol of a table, and commit by it."""

from __future__ import annotations

from collections.abc import Callable

from timeline.commit.commit_lock import CommitSection, WriteToCommit
from timeline.commit.object_store import ObjectStoreCommit
from timeline.commit.protocol import CommitProtocol, LocalCommit
from timeline.commit.shared_with_java import SharedWithJava
from timeline.context import TableContext
from timeline.model.slot import Slot
from timeline.ports.ports import Lease
from timeline.properties.setting_enums import ForeignWriters


def open_commit(
    context: TableContext, purpose: str, write: WriteToCommit | None = None
) -> CommitProtocol:
    """
    Return a new commit by the protocol of this table; arguments: as ``CommitProtocol``.

    Settings and storage choose the protocol, and neither changes while the table is open.
    """
    if context.limits.foreign_writers is ForeignWriters.EXPECTED:
        return SharedWithJava(context, purpose, write)
    if context.ports.storage.capabilities.high_latency:
        return ObjectStoreCommit(context, purpose, write)
    return LocalCommit(context, purpose, write)


def protocol_of(context: TableContext) -> CommitProtocol:
    """Return the protocol of this table, to ask it something before a commit."""
    return open_commit(context, "")


def commit_in_section(
    context: TableContext, purpose: str, decide: Callable[[CommitSection], Slot | None]
) -> tuple[Slot | None, int]:
    """
    Commit a decision of a table service: take the next slot and apply it.

    Args:
        context: The table.
        purpose: Shown to processes that wait for the lock.
        decide: Returns the slot to take, or None for none; called again after a lost slot.

    Returns:
        The slot, and the number of lost slots.

    Raises:
        BudgetSpentError: Other writers took ``commit_attempts_max`` slots.
        InvalidInputError: The slot is too large to be read (``commit_too_large``).
        TableReplacedError: As ``assert_same_table_after_commit``.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError: As ``commit_write``.
    """
    commit = open_commit(context, purpose)
    while not commit.is_decided():
        with commit.section() as section:
            slot = decide(section)
            if slot is None:
                return None, commit.lost
            commit.take(section, slot)
    return commit.slot, commit.lost


def assert_same_table_after_commit(context: TableContext, slot: Slot) -> None:
    """Check the table's identity after a write, as ``CommitProtocol.assert_same_table``."""
    protocol_of(context).assert_same_table(slot)


def refresh_and_apply(context: TableContext, lease: Lease | None) -> CommitSection:
    """Refresh and apply all slots without taking one, as ``CommitProtocol.refresh``."""
    return open_commit(context, "refresh").refresh(lease)
