"""
A metadata table that is on is switched off right before what is published without it (FOR-7).

The order is what counts. The turn has decided, so nothing refuses the publication any more. The
properties name no metadata table from then on, and readers list folders. Then its folder goes, then
the slot is taken. A death on the way leaves a table without a metadata table and without a
publication; never a publication beside a metadata table that was not told of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from timeline.commit.admission import acquire_exclusively
from timeline.commit.revalidate import assert_lease
from timeline.commit.state import CommitSection
from timeline.context import TableContext
from timeline.model.instant_time import WallMs, instant_time
from timeline.model.slot import Slot, SlotKind
from timeline.ports.lock import Lease, is_exclusive
from timeline.properties.properties_file import load_config, switch_metadata_table_off

__all__ = ["disable_metadata_table", "with_metadata_table_off"]

_PURPOSE = "switch the metadata table off"
#: No file appears or goes, so the metadata table stays true.
_CHANGE_NO_FILE = frozenset({SlotKind.SAVEPOINT, SlotKind.UNSAVEPOINT, SlotKind.NOOP})


@contextmanager
def with_metadata_table_off(
    context: TableContext, turn: CommitSection, slot: Slot, lease: Lease | None
) -> Iterator[Lease | None]:
    """
    Take a slot in here: where the settings say so the metadata table is off by then.

    Outside: nothing where they do not, else the turn's look at the properties, if it has not looked
    yet; where the metadata table is on the lock, if it was not had alone, and as ``switch_metadata_table_off``.

    Yields:
        The lease to take the slot with.

    Raises:
        LockTimeoutError: The lock was not free in time; nothing was changed.
        LeaseLostError: It was lost while the metadata table was deleted, which is off by now.
        StorageUnavailableError: The storage did not answer; the next turn asks again.
    """
    asked = context.limits.without_metadata_table and slot.kind not in _CHANGE_NO_FILE
    if not asked or not turn.config().metadata_table_on:
        yield lease
    elif is_exclusive(lease):
        _switch_off(context)
        assert_lease(lease)
        yield lease
    else:
        if lease is not None:
            lease.release()  # a lock that others have as well is not had alone beside it
        with acquire_exclusively(context, _PURPOSE) as alone:
            _switch_off(context)
            assert_lease(alone)
            yield alone


def disable_metadata_table(context: TableContext) -> None:
    """
    Switch it off for who deletes files without a slot, where the settings say so and it is on.

    Outside: 1 get; where it is on the lock, and as ``switch_metadata_table_off``. Raises: as
    ``with_metadata_table_off``.
    """
    if not context.limits.without_metadata_table:
        return
    if load_config(context.world.storage).metadata_table_on:
        with acquire_exclusively(context, _PURPOSE):
            _switch_off(context)


def _switch_off(context: TableContext) -> None:
    """Under the lock. Another one of ours may have been faster."""
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
