"""
The engine with one guard dropped, each as a change of the context its actors work with.

The classes in ``mutants.py`` serve the tests that name a hole. ``make mutants`` tries both these
and those. Nothing is patched: a commit log, ports, a low-water mark or limits of another class
replace the engine's own. ``guards.py`` is the table of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tests.simulation import mutants
from timeline.codecs.commit_log import encode_slot
from timeline.commit_log import CommitLog
from timeline.context import TableContext
from timeline.errors import TableReplacedError
from timeline.model.file_names import (
    BOUNDARIES,
    METADATA_TABLE,
    PROPERTIES,
    READERS,
    TIMELINE,
    parse_instant_name,
    slot_path,
    timeline_path,
)
from timeline.model.instant import WRITE_ACTIONS
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import AmbiguousWriteError, ObjectExistsError
from timeline.snapshot import ActiveTimeline, Snapshot

Change = Callable[[TableContext], TableContext]


def commit_log(kind: type[CommitLog]) -> Change:
    """Contexts whose chain is of this class."""

    def change(context: TableContext) -> TableContext:
        limits = context.limits
        made = kind(context.ports, context.table_id, unknown_ms_max=limits.unknown_ms_max)
        if isinstance(made, mutants._RequestedWindowChain):
            made.drawn = context.drawn_times
        return replace(context, commit_log=made)

    return change


def context_of(kind: type[TableContext], *more: Change) -> Change:
    """Contexts of this class."""

    def change(context: TableContext) -> TableContext:
        fields = {name: getattr(context, name) for name in context.__dataclass_fields__}
        made: TableContext = kind(**fields)
        for one in more:
            made = one(made)
        return made

    return change


class Wrapped:
    """Something of which some methods are others."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def storage(kind: type[Wrapped]) -> Change:
    """Contexts that see the storage through this."""

    def change(context: TableContext) -> TableContext:
        world = replace(context.ports, storage=kind(context.ports.storage))
        fresh = CommitLog(world, context.table_id, unknown_ms_max=context.limits.unknown_ms_max)
        timelines = type(context.timelines)(
            world.storage, layout_version=context.config.timeline_layout_version
        )
        return replace(context, ports=world, commit_log=fresh, timelines=timelines)

    return change


def only(actors: str, change: Change) -> Change:
    """The change of the contexts of some actors; each has a name of one letter."""

    def change_some(context: TableContext) -> TableContext:
        name = context.ports.ids.identity().writer_id
        return change(context) if name[0] in actors and name[1] == "-" else context

    return change_some


# ---------------------------------------------------------------- the chain


class TakesAnothersForItsOwn(CommitLog):
    """Sees that the number is taken and believes it did it (SLOT-1)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        with suppress(ObjectExistsError, AmbiguousWriteError):
            self._world.storage.create(slot_path(slot.number), encode_slot(slot))
        return self._remember(slot)


class LooksOnce(CommitLog):
    """Reads back once after a lost answer; absent means failed (UNK-1)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        try:
            self._world.storage.create(slot_path(slot.number), encode_slot(slot))
        except ObjectExistsError:
            found = self.read(slot.number)
            return found is not None and found.nonce == slot.nonce and self._remember(slot)
        except AmbiguousWriteError:
            found = self.read(slot.number)
            if found is None or found.nonce != slot.nonce:
                self._sent.discard(slot.requested_time)
                return False
        return self._remember(slot)


class FirstSaysFailed(CommitLog):
    """Gives up at the first lost answer and lets the caller delete (UNK-3)."""

    def may_have_committed(self, requested_time: str) -> bool:
        return False

    def take(self, slot: Slot, **looks: Any) -> bool:
        try:
            self._world.storage.create(slot_path(slot.number), encode_slot(slot))
        except ObjectExistsError:
            return False
        except AmbiguousWriteError:
            self._sent.discard(slot.requested_time)
            return False
        return self._remember(slot)


class ShowsFirst(CommitLog):
    """Writes the completed file before its slot (SLOT-1: the slot decides)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        name = slot.file_name
        if name is not None and slot.kind is SlotKind.COMMIT:
            with suppress(ObjectExistsError, AmbiguousWriteError):
                self._world.storage.create(timeline_path(name), slot.body)
        return super().take(slot, **looks)


class StopsAtAnothers(CommitLog):
    """Takes a slot of an earlier table for a sign that its own is gone (SLOT-8)."""

    def read(self, number: int) -> Slot | None:
        slot = super().read(number)
        if slot is not None and slot.table_id != self._table_id:
            raise TableReplacedError(f"slot {number} is of another table")
        return slot


class TrustsTheAddress(CommitLog):
    """Trusts the table's address: does not notice another table there (SLOT-9, SLOT-10)."""

    def assert_same_table(self) -> None:
        pass


class HelpsUnseen(CommitLog):
    """Helps to apply a slot and never checks in which table it did so (SLOT-10)."""

    def will_create_file(self, slot: Slot) -> None:
        pass


class Batchless(CommitLog):
    """Reads no batch ids (BATCH-1)."""

    def read(self, number: int) -> Slot | None:
        slot = super().read(number)
        return None if slot is None else replace(slot, batches=())


class LooksForBatchesFirst(CommitLog):
    """Searches for its batch before it begins, not in its base snapshot (BATCH-1)."""

    _looked = False

    def newest_first(self, last: int | None = None) -> Iterator[Slot]:
        if self._looked:
            return
        self._looked = True
        yield from super().newest_first(last)


class WithoutKind(CommitLog):
    """Ignores slots of some kinds in validation and later checks."""

    hidden: frozenset[SlotKind] = frozenset()

    def between(self, after: int, last: int) -> list[Slot]:
        return [slot for slot in super().between(after, last) if slot.kind not in self.hidden]

    def read(self, number: int) -> Slot | None:
        slot = super().read(number)
        if slot is not None and slot.kind in self.hidden:
            return replace(slot, requested_time="0" * 17)
        return slot


class SeesNoCommits(CommitLog):
    """A rollback that does not check whether its target was committed (RB-3)."""

    def read(self, number: int) -> Slot | None:
        slot = super().read(number)
        if slot is None or slot.kind is not SlotKind.COMMIT:
            return slot
        return replace(slot, requested_time="1" * 17)


class SeesNoCleans(WithoutKind):
    """A reader or writer that does not check for cleans after its state (CLN-3, RDL-2)."""

    hidden = frozenset({SlotKind.CLEAN})


class SeesNoCancels(WithoutKind):
    """An executor that does not check for a cancel of its plan (PLAN-4)."""

    hidden = frozenset({SlotKind.CANCEL})


class Gaps(CommitLog):
    """Takes a number that leaves one out (SLOT-1)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        if slot.number > 3:
            return super().take(replace(slot, number=slot.number + 1), **looks)
        return super().take(slot, **looks)


# ---------------------------------------------------------------- ports


class SameNonce(Wrapped):
    """Every content has the same nonce (UNK-2)."""

    def nonce(self) -> str:
        return "0" * 32


def same_nonce(context: TableContext) -> TableContext:
    """Another's slot seems to be the own one."""
    return replace(context, ports=replace(context.ports, ids=SameNonce(context.ports.ids)))


class Replaces(Wrapped):
    """No create-if-absent for the timeline (TL-REQ-1)."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.endswith(".requested"):
            self._inner.write(path, data, durable=durable)
        else:
            self._inner.create(path, data, durable=durable)


class ReplacesAll(Wrapped):
    """No create-if-absent at all (CAP-1): reads, then writes."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if self._inner.stat(path) is not None:
            raise ObjectExistsError(path)
        self._inner.write(path, data, durable=durable)


class HelpsNobody(Wrapped):
    """Makes no completed file of a write that it did not begin (HELP-1, PUB-3)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._own: set[str] = set()

    def create(self, path: str, data: bytes, **how: Any) -> None:
        folder, _, name = path.rpartition("/")
        if name.endswith(".requested"):
            self._own.add(name[:17])
        if folder == TIMELINE and name.endswith(".commit") and name[:17] not in self._own:
            return
        self._inner.create(path, data, **how)


class KeepsData(Wrapped):
    """Forgets to delete files that were aborted (RB-6) or superseded (PUB-1)."""

    def delete(self, path: str) -> None:
        if path.startswith(".hoodie"):
            self._inner.delete(path)


class DeletesFolders(Wrapped):
    """Takes the folder along with a file (CLN-1, M8)."""

    def delete(self, path: str) -> None:
        if path.startswith(".hoodie") or "/" not in path:
            self._inner.delete(path)
        else:
            self._inner.delete_folder(path.rpartition("/")[0])


class SyncsNothing(Wrapped):
    """Names of data files are not durable before the slot (LOC-2)."""

    def sync_folders(self, folders: object) -> None:
        return None

    def sync_soon(self, folders: object) -> Callable[[], None]:
        return lambda: None


class CreatesLoosely(Wrapped):
    """Slots and completed files are not durable (LOC-2)."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._inner.create(path, data, durable=False)


class SeesNoPending(Wrapped):
    """A commit section that does not know the pending instants (GC-1, PUB-6)."""

    def names(self, folder: str) -> Any:
        names = self._inner.names(folder)
        if folder != TIMELINE:
            return names
        return [name for name in names if not name.endswith((".inflight", ".requested"))]


class SeesNoLeases(Wrapped):
    """A clean that ignores the leases of readers (CLN-1, RDL-1)."""

    def names(self, folder: str) -> Any:
        return [] if folder == READERS else self._inner.names(folder)


class ReaderForgets(Wrapped):
    """A completed file of another is taken for its own: create of a taken name succeeds."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        try:
            self._inner.create(path, data, durable=durable)
        except ObjectExistsError:
            if not path.endswith(".requested"):
                raise


# ---------------------------------------------------------------- times, liveness, pins


class _LooksOnceContext(TableContext):
    """Lists the timeline once and believes it for ever."""

    def active(self) -> ActiveTimeline:
        return self.timelines.last or super().active()


class _BeginsAtUnsaved(ActiveTimeline):
    """Where savepoints keep every write, nothing counts as archived (GC-7)."""

    @property
    def archived_below(self) -> InstantTime | None:  # type: ignore[override]
        return self.first_write_time

    def is_archived(self, requested_time: InstantTime, archived: object) -> bool:
        first = self.first_write_time
        return first is not None and requested_time < first


class _ForgetsArchivedContext(TableContext):
    def active(self) -> ActiveTimeline:
        timeline = super().active()
        return _BeginsAtUnsaved(instants=timeline.instants, file_names=timeline.file_names)


def bare_clock(context: TableContext) -> TableContext:
    return context_of(mutants._BareClockContext, commit_log(mutants.TimelessChain))(context)


def no_look_after_begin(context: TableContext) -> TableContext:
    return context_of(mutants._NoLookContext, commit_log(mutants._QuietChain))(context)


class KeepsNewestBoundary(Wrapped):
    """A cut that gives up every boundary before it, also those it names (BATCH-2)."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._inner.create(path, data, durable=durable)
        if path.startswith(BOUNDARIES):
            for name in self._inner.names(BOUNDARIES):
                if name < path.rpartition("/")[2]:
                    self._inner.delete(f"{BOUNDARIES}/{name}")


class AsksNewestBoundary(Wrapped):
    """Searches its batch only in the newest truncation point, not in earlier ones (BATCH-2)."""

    def read(self, path: str) -> Any:
        data = self._inner.read(path)
        if not path.startswith(BOUNDARIES):
            return data
        return json.dumps({**json.loads(data), "earlier": []}).encode()


# ---------------------------------------------------------------- the metadata table


def _is_metadata_instant(path: str) -> bool:
    return path.startswith(f"{METADATA_TIMELINE}/")


def _is_metadata_log(path: str) -> bool:
    name = path.rpartition("/")[2]
    return path.startswith(f"{METADATA_TABLE}/") and name.startswith(".") and ".log." in name


def _is_shown_by(path: str) -> str:
    """Return the requested time if this is a completed file of the table's timeline, else ""."""
    folder, _, name = path.rpartition("/")
    instant = parse_instant_name(name) if folder == TIMELINE else None
    return instant.requested_time if instant is not None and instant.completed else ""


class KeepsMetadataLogs(Wrapped):
    """A write that makes its log files again leaves the former ones there (MDT-2)."""

    _ends = False  # the end of a write lists the partitions first

    def list(self, folder: str) -> Any:
        self._ends = self._ends or folder == METADATA_TABLE
        return self._inner.list(folder)

    def open_output(self, path: str) -> Any:
        self._ends = False
        return self._inner.open_output(path)

    def delete(self, path: str) -> None:
        if self._ends or not _is_metadata_log(path):
            self._inner.delete(path)


class SyncsNoMetadata(Wrapped):
    """Log files of the metadata table are not durable before the slot (MDT-2, LOC-2)."""

    def sync_folders(self, folders: Any) -> None:
        self._inner.sync_folders([one for one in folders if not one.startswith(METADATA_TABLE)])


class ShowsCommitFirst(Wrapped):
    """The completed file precedes the deltacommit of the metadata table (MDT-4)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._held: dict[str, tuple[str, bytes]] = {}

    def create(self, path: str, data: bytes, **how: Any) -> None:
        name = path.rpartition("/")[2]
        if _is_metadata_instant(path) and name.endswith(".deltacommit"):
            self._held[name[:17]] = (path, data)
            return
        self._inner.create(path, data, **how)
        held = self._held.pop(_is_shown_by(path), None)
        if held is not None:
            with suppress(ObjectExistsError):
                self._inner.create(*held)


class WithoutRequested(Wrapped):
    """A deltacommit of the metadata table has no requested file (MDT-4)."""

    def create(self, path: str, data: bytes, **how: Any) -> None:
        if not (_is_metadata_instant(path) and path.endswith(".requested")):
            self._inner.create(path, data, **how)


class LooseDeltacommits(Wrapped):
    """The deltacommit is not durable before the completed file (MDT-4)."""

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._inner.create(path, data, durable=durable and not _is_metadata_instant(path))


class HelpsWithoutMetadata(Wrapped):
    """Helps a commit to its completed file, and not to its deltacommit (MDT-4, HELP-1)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._own: set[str] = set()

    def create(self, path: str, data: bytes, **how: Any) -> None:
        folder, _, name = path.rpartition("/")
        if folder == TIMELINE and name.endswith(".requested"):
            self._own.add(name[:17])
        if not _is_metadata_instant(path) or name[:17] in self._own:
            self._inner.create(path, data, **how)


class ReadsPropertiesOnce(Wrapped):
    """A commit that does not see that another process changed the partitions (MDT-5)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._properties: bytes | None = None

    def read(self, path: str) -> Any:
        if path != PROPERTIES:
            return self._inner.read(path)
        if self._properties is None:
            self._properties = self._inner.read(path)
        return self._properties


class EndsTableFirst(Wrapped):
    """The end of a write deletes its files on the table's timeline first (MDT-7)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._held: list[str] = []

    def delete(self, path: str) -> None:
        if path.startswith(f"{METADATA_TABLE}/"):
            self._held.append(path)
            return
        self._inner.delete(path)
        if path.startswith(f"{TIMELINE}/") and path.endswith(".requested"):
            held, self._held = self._held, []
            for one in held:
                self._inner.delete(one)


class KeepsMetadataInstants(Wrapped):
    """A late file of an ended instant stays in the metadata table (RST-4, GC-6)."""

    def delete(self, path: str) -> None:
        if not _is_metadata_instant(path):
            self._inner.delete(path)


class BelievesItsLogs(Wrapped):
    """Does not check that its log files of the metadata table still exist (MDT-10)."""

    def stat(self, path: str) -> Any:
        found = self._inner.stat(path)
        return found or self._inner.stat(PROPERTIES) if _is_metadata_log(path) else found


class LogsBeforeSlot(CommitLog):
    """An executor writes the log files of its slot before the slot decides (MDT-9)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        update = slot.metadata_update
        for one in () if update is None else update.files:
            if one.content:
                with suppress(ObjectExistsError, AmbiguousWriteError):
                    self._world.storage.create(one.path, one.content)
        return super().take(slot, **looks)


class OneNameForAll(CommitLog):
    """Log files of all slots of a plan have one name (MDT-9)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        update = slot.metadata_update
        if update is not None and any(one.content for one in update.files):
            slot = replace(slot, metadata_update=update.with_token("0-0-0"))
        return super().take(slot, **looks)


class VoidKeepsFiles(CommitLog):
    """A void slot deletes nothing in the metadata table (MDT-10)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        if slot.kind is SlotKind.VOID:
            shown = tuple(path for path in slot.deletes if path.startswith(f"{TIMELINE}/"))
            slot = replace(slot, deletes=shown)
        return super().take(slot, **looks)


class LooksBeforeItsSlot(Wrapped):
    """A log compaction of the metadata table that lists the table before its slot only (MDT-17)."""

    _listed: Any = ()
    _is_planned = False

    def create(self, path: str, data: bytes, **how: Any) -> None:
        self._is_planned = self._is_planned or path.endswith(".logcompaction.requested")
        self._inner.create(path, data, **how)

    def names(self, folder: str) -> Any:
        if folder != TIMELINE:
            return self._inner.names(folder)
        if not self._is_planned:
            self._listed = self._inner.names(folder)
        return self._listed


class WithoutTombstones(CommitLog):
    """A clean that the metadata table is not told of (MDT-9)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        if slot.kind is SlotKind.CLEAN:
            slot = replace(slot, metadata_update=None)
        return super().take(slot, **looks)


class SeesNoneMissing(Wrapped):
    """Does not see that the metadata table lacks an instant of the table (MDT-8)."""

    def names(self, folder: str) -> Any:
        names = self._inner.names(folder)
        if folder != METADATA_TIMELINE:
            return names
        table = [one for one in map(parse_instant_name, self._inner.names(TIMELINE)) if one]
        shown = {
            f"{one.requested_time}_{one.completion_time}.deltacommit"
            for one in table
            if one.completed and one.action in WRITE_ACTIONS
        }
        return sorted({*names, *shown})


class _AllArchived(ActiveTimeline):
    """An instant that is not on the timeline is an archived one (MDT-8)."""

    def is_archived(self, requested_time: InstantTime, archived: object) -> bool:
        return True


class TakesUnknownForArchived(TableContext):
    """Does not see that the metadata table has an instant that the table lacks (MDT-8)."""

    def snapshot(self, as_of: str | None = None) -> Snapshot:
        real = super().snapshot(as_of)
        seen = real.active
        return replace(
            real, active=_AllArchived(instants=seen.instants, file_names=seen.file_names)
        )


class KeepsPendingInstants(Wrapped):
    """What another engine left pending in the metadata table stays there (MDT-8)."""

    def delete(self, path: str) -> None:
        if not (_is_metadata_instant(path) and path.endswith((".requested", ".inflight"))):
            self._inner.delete(path)


class KeepsLogsOfTheDead(Wrapped):
    """The log files of a commit that another engine left pending stay there (MDT-8)."""

    def delete(self, path: str) -> None:
        if not _is_metadata_log(path):
            self._inner.delete(path)
