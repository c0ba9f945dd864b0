"""
The engine with one rule removed, each by a replaced class; ``mutants.md`` lists the killers.

Nothing is patched: a context, a commit log, a timeline or a limit of another class replaces
the real one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.engine_kit import LIMITS, open_table
from timeline.codecs.commit_log import encode_slot
from timeline.commit.apply import data_files_of
from timeline.commit_log import CommitLog
from timeline.context import DrawnTimes, TableContext
from timeline.errors import StorageUnavailableError
from timeline.heartbeat import HeartbeatLimits, instants_with_expired_heartbeat
from timeline.model.commit_metadata import WriteSet
from timeline.model.file_names import WRITERS, pending_file_names, slot_path, timeline_path
from timeline.model.instant import Action, Instant
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError
from timeline.ports.ports import Ports as EngineWorld
from timeline.snapshot import ActiveTimeline, Snapshot
from timeline.writer_registry import registered_writers


def with_chain(kind: type[CommitLog]) -> object:
    """Makes contexts whose chain is of this class."""

    def make(world: EngineWorld) -> TableContext:
        context = open_table(world)
        commit_log = kind(world, context.table_id, unknown_ms_max=LIMITS.unknown_ms_max)
        return replace(context, commit_log=commit_log)

    return make


def with_context(kind: type[TableContext]) -> object:
    """Makes contexts of this class."""

    def make(world: EngineWorld) -> TableContext:
        context = open_table(world)
        return kind(**{name: getattr(context, name) for name in context.__dataclass_fields__})

    return make


# ---------------------------------------------------------------- the chain


class OverwritingChain(CommitLog):
    """Trusts its lock: puts the slot without create-if-absent (hole 4)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        self._world.storage.write(slot_path(slot.number), encode_slot(slot), durable=True)
        return self._remember(slot)


class RelaxedChain(CommitLog):
    """Does not wait until its slot is on the disk (LOC-2)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        self._world.storage.create(slot_path(slot.number), encode_slot(slot), durable=False)
        return self._remember(slot)


class ImpatientChain(CommitLog):
    """Takes a lost answer for a failure (hole 17, UNK-1)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        try:
            self._world.storage.create(slot_path(slot.number), encode_slot(slot))
        except ObjectExistsError:
            return False
        except (AmbiguousWriteError, StorageUnavailableError):
            return False
        return self._remember(slot)


class ForgetfulChain(CommitLog):
    """Takes its own earlier slot for another's: compares no nonce (UNK-2)."""

    def _found_by(self, mine: Slot) -> Slot | None:
        found = super()._found_by(mine)
        return None if found is None else replace(found, nonce="")


class BlindChain(CommitLog):
    """Hides the part of the write sets that ``_blur`` removes."""

    def between(self, after: int, last: int) -> list[Slot]:
        return [
            replace(slot, write_set=self._blur(slot.write_set))
            for slot in super().between(after, last)
        ]

    def _blur(self, claim: WriteSet) -> WriteSet:
        return WriteSet()


class KeylessChain(BlindChain):
    """Does not see that others inserted keys (hole 3)."""

    def _blur(self, claim: WriteSet) -> WriteSet:
        return replace(claim, inserting=())


class FileIdChain(BlindChain):
    """Knows other writers' file ids only, no partitions (hole 9)."""

    def _blur(self, claim: WriteSet) -> WriteSet:
        groups = tuple(
            replace(item, file_group=replace(item.file_group, partition_path="elsewhere"))
            for item in claim.file_groups
        )
        return WriteSet(file_groups=groups)


class AbortlessChain(CommitLog):
    """Does not check for an abort of itself (PUB-6)."""

    def between(self, after: int, last: int) -> list[Slot]:
        return [slot for slot in super().between(after, last) if slot.kind is not SlotKind.ABORT]


# ---------------------------------------------------------------- times


class TimelessSlot(Slot):
    @property
    def newest_time(self) -> str:
        return ""


class TimelessChain(CommitLog):
    """No slot raises a time."""

    def read(self, number: int) -> Slot | None:
        slot = super().read(number)
        if slot is None:
            return None
        return TimelessSlot(**{name: getattr(slot, name) for name in slot.__dataclass_fields__})


class Timeless(ActiveTimeline):
    newest_time = None  # type: ignore[assignment]
    newest_decided_time = None  # type: ignore[assignment]


def _timeless(timeline: ActiveTimeline) -> Timeless:
    return Timeless(instants=timeline.instants, file_names=timeline.file_names)


class _BareClockContext(TableContext):
    def active(self) -> ActiveTimeline:
        return _timeless(super().active())


def bare_clock(world: EngineWorld) -> TableContext:
    """Draws every time from the clock alone (hole 2, TL-SUCC-1)."""
    context = with_context(_BareClockContext)(world)  # type: ignore[operator]
    commit_log = TimelessChain(world, context.table_id, unknown_ms_max=LIMITS.unknown_ms_max)
    return replace(context, commit_log=commit_log)


class _NoLookContext(TableContext):
    def snapshot(self, as_of: str | None = None) -> Snapshot:
        real = super().snapshot(as_of)
        return replace(real, active=_timeless(real.active), head=self.commit_log.head())


class _QuietChain(CommitLog):
    quiet = False

    def between(self, after: int, last: int) -> list[Slot]:
        slots = super().between(after, last)
        return [
            TimelessSlot(**{name: getattr(slot, name) for name in slot.__dataclass_fields__})
            for slot in slots
        ]


def no_look_after_begin(world: EngineWorld) -> TableContext:
    """Keeps its requested time whatever the base snapshot shows (hole 23, BEG-5)."""
    context = with_context(_NoLookContext)(world)  # type: ignore[operator]
    commit_log = _QuietChain(world, context.table_id, unknown_ms_max=LIMITS.unknown_ms_max)
    return replace(context, commit_log=commit_log)


class _RequestedWindowChain(CommitLog):
    drawn: DrawnTimes

    def between(self, after: int, last: int) -> list[Slot]:
        mine = self.drawn.newest or ""
        return [
            replace(slot, write_set=WriteSet()) if slot.requested_time < mine else slot
            for slot in super().between(after, last)
        ]


def requested_window(world: EngineWorld) -> TableContext:
    """Treats only instants requested after itself as concurrent (hole 20)."""
    context = open_table(world)
    commit_log = _RequestedWindowChain(
        world, context.table_id, unknown_ms_max=LIMITS.unknown_ms_max
    )
    commit_log.drawn = context.drawn_times
    return replace(context, commit_log=commit_log)


# ---------------------------------------------------------------- helping, rolling back


class _NoHelperContext(TableContext):
    def active(self) -> ActiveTimeline:
        timeline = super().active()
        last = self.commit_log.read(self.commit_log.head()) if self.commit_log.head() else None
        name = last.file_name if last is not None else None
        names = timeline.file_names | ({name} if name else set())
        return ActiveTimeline(instants=timeline.instants, file_names=frozenset(names))


def no_helper(world: EngineWorld) -> TableContext:
    """Assumes that every slot is applied (PUB-3)."""
    return with_context(_NoHelperContext)(world)  # type: ignore[operator,no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverFenced(HeartbeatLimits):
    """Others are judged as ever, the writer never judges itself (hole 5, HB-3)."""

    @property
    def silence_ms(self) -> int:
        return 10**12


def unfenced(world: EngineWorld) -> TableContext:
    """A writer that writes heartbeats again after any pause."""
    beat = LIMITS.heartbeat
    limits = NeverFenced(interval_ms=beat.interval_ms, misses=beat.misses)
    return open_table(world, replace(LIMITS, heartbeat=limits))


def delete_dead_writers(context: TableContext, timeline: ActiveTimeline | None = None) -> None:
    """Deletes expired writers without an abort slot (holes 6 and 8, RB-1)."""
    storage = context.ports.storage
    pending = (timeline or context.active()).pending_ingestion
    times = tuple(instant.requested_time for instant in pending)
    for time in instants_with_expired_heartbeat(storage, times, context.limits.heartbeat):
        for path in data_files_of(storage, time):
            storage.delete(path)
        for name in pending_file_names(Action.COMMIT, time):
            storage.delete(timeline_path(name))


def enter_with_one_look(context: TableContext, agreement: dict[str, str]) -> bool:
    """Registers after one comparison, none after the own entry (hole 13, REG-1)."""
    world = context.ports
    who = world.ids.identity()
    if any(other.agreement != agreement for other in registered_writers(context)):
        return False
    document = {
        "writer_id": who.writer_id,
        "host": who.host,
        "pid": who.pid,
        "application": who.application,
        "since_ms": world.storage.now_ms(),
        "agreement": agreement,
    }
    world.storage.write(f"{WRITERS}/{who.writer_id}.json", json.dumps(document).encode())
    return True


# ---------------------------------------------------------------- giving way


class _Eager(str):
    """A requested time that seems smaller than every other one."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __lt__(self, other: str) -> bool:
        return self != other


class _EagerTimeline(ActiveTimeline):
    @property
    def pending_ingestion(self) -> tuple[Instant, ...]:
        found = super().pending_ingestion
        return tuple(replace(one, requested_time=_Eager(one.requested_time)) for one in found)


class WaitsForAll(TableContext):
    """Waits for every announced conflicting write, whether it began before or later (BEG-8)."""

    def active(self) -> ActiveTimeline:
        real = super().active()
        return _EagerTimeline(instants=real.instants, file_names=real.file_names)
