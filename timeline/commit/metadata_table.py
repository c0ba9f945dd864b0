"""
Switch the metadata table off right before a commit that does not maintain it (FOR-7).

The order matters. The commit section has decided, so nothing rejects the commit any more. First the
properties stop naming a metadata table, and readers list folders. Then its folder is deleted. Then
the slot is taken. A crash in between leaves a table without a metadata table and without the
commit. It never leaves a commit with a metadata table that lacks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from timeline.commit.commit_lock import acquire_exclusively, assert_lease
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.model.instant_time import WallMs, instant_time
from timeline.model.slot import Slot, SlotKind
from timeline.ports.lock import Lease, is_exclusive
from timeline.properties.properties_file import load_config, switch_metadata_table_off

__all__ = ["disable_metadata_table", "with_metadata_table_off"]

_PURPOSE = "switch the metadata table off"
#: These create and delete no data file, so the metadata table stays correct.
_CHANGE_NO_FILE = frozenset({SlotKind.SAVEPOINT, SlotKind.UNSAVEPOINT, SlotKind.NOOP})


@contextmanager
def with_metadata_table_off(
    context: TableContext, section: CommitSection, slot: Slot
) -> Iterator[Lease | None]:
    """
    Take a slot in this block: the metadata table is off in it, if the settings require it.

    Outside: nothing if the settings do not require it, else a read of the properties, if this
    commit section has not read them yet. If the metadata table is on: the lock, unless it is held
    exclusively, and as ``switch_metadata_table_off``.

    Yields:
        The lease to take the slot with.

    Raises:
        LockTimeoutError: The lock was not free in time; nothing was changed.
        LeaseLostError: The lock was lost while the metadata table was deleted; it is off by now.
        StorageUnavailableError: The storage did not answer; the next commit section tries again.
    """
    asked = context.limits.without_metadata_table and slot.kind not in _CHANGE_NO_FILE
    lease = section.lease
    if not asked or not section.config().metadata_table_on:
        yield lease
    elif is_exclusive(lease):
        _switch_off(context)
        assert_lease(lease)
        yield lease
    else:
        if lease is not None:
            lease.release()  # a shared lock cannot be held exclusively at the same time
        with acquire_exclusively(context, _PURPOSE) as alone:
            _switch_off(context)
            assert_lease(alone)
            yield alone


def disable_metadata_table(context: TableContext) -> None:
    """
    Switch the metadata table off before deletes without a slot, if the settings require it.

    Outside: 1 get; if the metadata table is on, the lock, and as ``switch_metadata_table_off``.
    Raises: as ``with_metadata_table_off``.
    """
    if not context.limits.without_metadata_table:
        return
    if load_config(context.world.storage).metadata_table_on:
        with acquire_exclusively(context, _PURPOSE):
            _switch_off(context)


def _switch_off(context: TableContext) -> None:
    """Switch it off under the lock, unless another process of ours did so first."""
    storage = context.world.storage
    on = load_config(storage)
    if not on.metadata_table_on:
        return
    switch_metadata_table_off(storage, now=instant_time(WallMs(context.world.clock.now_ms())))
    context.world.events.emit(
        "metadata_table.switched_off",
        table=on.name,
        partitions=", ".join(on.metadata_partitions),
    )
