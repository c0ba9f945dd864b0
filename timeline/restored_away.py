"""
What a restore takes away: instants that were published or begun, told by its slot (RST-1).

A slot of kind ``RESTORE`` ends instants for good, published ones among them. Its action says
which of Hudi's instants documents it: ``restore`` (everything after the instant in
``requested_time``), or ``rollback`` (that one instant, the newest). The plan inside the slot
names what goes, so the end of an instant is known wherever the chain is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from timeline.codecs.instant_avro import decode_restore_plan, decode_rollback_plan
from timeline.commit_log import CommitLog
from timeline.model.file_names import parse_instant_name
from timeline.model.instant import WRITE_ACTIONS, Action, Instant
from timeline.model.instant_time import InstantTime, is_between
from timeline.model.slot import Slot, SlotKind
from timeline.ports.storage import Storage

__all__ = [
    "ended_times",
    "files_removed_by_restore",
    "restored_away_by",
    "restored_away_in",
    "slots_with_removed_file",
]


def restored_away_by(slot: Slot) -> frozenset[InstantTime]:
    """Requested times of the instants that a slot took away; none unless it is a restore."""
    if slot.kind is not SlotKind.RESTORE:
        return frozenset()
    path = f"slot {slot.number}"
    if slot.action is Action.ROLLBACK:
        target = decode_rollback_plan(slot.plan, path=path).instant_to_rollback
        return frozenset() if target is None else frozenset({target.requested_time})
    plan = decode_restore_plan(slot.plan, path=path)
    return frozenset(one.requested_time for one in plan.instants_to_rollback)


def restored_away_in(slots: Iterable[Slot]) -> frozenset[InstantTime]:
    """Requested times of the instants that any of the slots took away."""
    return frozenset[InstantTime]().union(*(restored_away_by(slot) for slot in slots))


def ended_times(chain: CommitLog) -> frozenset[InstantTime]:
    """Requested times of what slots ended: rolled back, cancelled, taken away by a restore."""
    slots = tuple(chain.newest_first())
    ended = (SlotKind.ABORT, SlotKind.CANCEL)
    aborted = frozenset(slot.requested_time for slot in slots if slot.kind in ended)
    return aborted | restored_away_in(slots)


def slots_with_removed_file(slots: Sequence[Slot]) -> frozenset[int]:
    """Numbers of the slots whose file a later slot of the chain took away again."""
    gone: set[int] = set()
    for at, later in enumerate(slots):
        if later.kind in _ENDINGS:
            ended = restored_away_by(later)
            gone.update(slot.number for slot in slots[:at] if _takes_file(later, slot, ended))
    return frozenset(gone)


#: What takes files of earlier slots away, and of which kinds they are; a restore tells itself.
_ENDINGS: Mapping[SlotKind, frozenset[SlotKind]] = {
    SlotKind.CANCEL: frozenset({SlotKind.PLAN}),
    SlotKind.UNSAVEPOINT: frozenset({SlotKind.SAVEPOINT}),
    SlotKind.VOID: frozenset({SlotKind.COMMIT, SlotKind.CLEAN}),
    SlotKind.RESTORE: frozenset(),
}


def _takes_file(later: Slot, slot: Slot, ended: frozenset[InstantTime]) -> bool:
    if later.kind is not SlotKind.RESTORE:
        same = slot.requested_time == later.requested_time
        return same and slot.kind in _ENDINGS[later.kind]
    if slot.kind is SlotKind.SAVEPOINT:
        return False
    if slot.kind is SlotKind.ABORT or slot.action is Action.ROLLBACK:
        return later.action is Action.RESTORE and slot.instant_time > later.requested_time
    return slot.instant_time in ended


def files_removed_by_restore(
    storage: Storage, slot: Slot, folder: str
) -> tuple[list[str], list[str]]:
    """
    The timeline's files that a restore removes: before the data files, and after them.

    First the completed files, newest completion first, so that readers see an earlier state
    at every moment; the pending ones keep the instants known until their data is gone (fmt
    6.3). As Java does, a restore also removes the rollbacks after its target, and those which
    an engine that died in its restore had begun for it. Outside: 1 list.
    """
    times = restored_away_by(slot)
    completed: list[tuple[Instant, str]] = []
    pending: list[str] = []
    for name in storage.names(folder):
        instant = parse_instant_name(name)
        if instant is None:
            continue
        if instant.action is Action.ROLLBACK:
            after = is_between(instant.requested_time, slot.requested_time, slot.completion_time)
            if after and slot.action is Action.RESTORE:
                pending.append(name)
        elif instant.action in WRITE_ACTIONS and instant.requested_time in times:
            if instant.completed:
                completed.append((instant, name))
            else:
                pending.append(name)
    completed.sort(key=lambda one: one[0].completion_time or "", reverse=True)
    # Newest first; of one instant `.inflight` and `.commit.inflight` before `.commit.requested`.
    pending.sort(key=lambda name: (name[:17], name.endswith("inflight")), reverse=True)
    return [name for _, name in completed], pending
