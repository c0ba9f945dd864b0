"""
Find the instants and files that a restore removes, from its slot (RST-1).

A slot of kind ``RESTORE`` ends instants for good, committed ones too. Its action is Hudi's instant
that documents it: ``restore`` (everything after the instant in ``requested_time``), or
``rollback`` (that one instant, the newest). The plan in the slot names the removed instants, so
every reader of the commit log knows which instants ended.
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
    """Return the requested times of the instants that a slot removed; none unless a restore."""
    if slot.kind is not SlotKind.RESTORE:
        return frozenset()
    path = f"slot {slot.number}"
    if slot.action is Action.ROLLBACK:
        target = decode_rollback_plan(slot.plan, path=path).instant_to_rollback
        return frozenset() if target is None else frozenset({target.requested_time})
    plan = decode_restore_plan(slot.plan, path=path)
    return frozenset(one.requested_time for one in plan.instants_to_rollback)


def restored_away_in(slots: Iterable[Slot]) -> frozenset[InstantTime]:
    """Return the requested times of the instants that any of the slots removed."""
    return frozenset[InstantTime]().union(*(restored_away_by(slot) for slot in slots))


def ended_times(chain: CommitLog) -> frozenset[InstantTime]:
    """Return the requested times that slots ended: rolled back, cancelled or restored away."""
    slots = tuple(chain.newest_first())
    ended = (SlotKind.ABORT, SlotKind.CANCEL)
    aborted = frozenset(slot.requested_time for slot in slots if slot.kind in ended)
    return aborted | restored_away_in(slots)


def slots_with_removed_file(slots: Sequence[Slot]) -> frozenset[int]:
    """Return the numbers of the slots whose file a later slot removed."""
    gone: set[int] = set()
    for at, later in enumerate(slots):
        if later.kind in _ENDINGS:
            ended = restored_away_by(later)
            gone.update(slot.number for slot in slots[:at] if _takes_file(later, slot, ended))
    return frozenset(gone)


#: Kinds that remove files of earlier slots, and of which kinds. A restore names its own.
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
    List the timeline's files that a restore removes: before the data files, and after them.

    The completed files are removed first, newest completion first, so that readers always see an
    earlier state. The pending files keep the instants known until their data is deleted (fmt 6.3).
    As in Java, a restore also removes the rollbacks after its target, also those that an engine
    began for a restore in which it died. Outside: 1 list.
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
    # Newest first; within an instant `.inflight` and `.commit.inflight` before
    # `.commit.requested`.
    pending.sort(key=lambda name: (name[:17], name.endswith("inflight")), reverse=True)
    return [name for _, name in completed], pending
