"""
A simulated engine table as ``ObservedTable``, read from its bytes and its journal.

The observer reads the simulated bytes directly and not through a port. So an observation changes
nothing and does not rely on the engine's own view. It decodes slots one by one and opens base
files by name; the order of the journal decides which deletes are permitted. Slots and completed
data files never change, so each is decoded once per simulated system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from filegroups.files.delete_block import decode_deletes
from filegroups.schema.schema import KEY_COLUMN
from tests.simulator.invariants import (
    Violation,
    check_all,
    check_structure,
    files_of_snapshot,
    needed_files,
)
from tests.simulator.table_facts import (
    DeletionFact,
    InstantFact,
    ObservedSlotKind,
    ObservedTable,
    SlotFact,
    StatFact,
)
from tests.simulator.world import POWER_CUT, SimulatedSystem
from timeline.codecs.archive_manifest import parse_manifest, parse_version
from timeline.codecs.archived_instants import parse_archived_instants
from timeline.codecs.commit_log import decode_slot
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.log_blocks import BlockType, BytesSource, iter_blocks, read_content
from timeline.model.commit_metadata import NO_PREVIOUS_COMMIT, CommitMetadata
from timeline.model.file_names import (
    HISTORY,
    HOODIE,
    SLOTS,
    TIMELINE,
    data_file_time,
    parse_base_file_name,
    parse_instant_name,
)
from timeline.model.instant import WRITE_ACTIONS, Instant
from timeline.model.slot import Slot
from timeline.model.slot import SlotKind as EngineKind
from timeline.snapshot import ActiveTimeline, Snapshot

#: Key of the commit's extra metadata that names the client's operation.
OPERATION_KEY = "simulation.operation"

#: Subfolders of ``.hoodie`` that ``structure`` reads.
_READ_FOLDERS = (f"{SLOTS}/", f"{TIMELINE}/")
_HISTORY_FOLDER = f"{HISTORY}/"

_KINDS = {
    EngineKind.COMMIT: ObservedSlotKind.COMMIT,
    EngineKind.PLAN: ObservedSlotKind.PLAN,
    EngineKind.ABORT: ObservedSlotKind.ABORT,
    EngineKind.CANCEL: ObservedSlotKind.ABORT,  # both permit deletes of files that the target wrote
    EngineKind.CLEAN: ObservedSlotKind.CLEAN,
}


@dataclass(slots=True)
class EngineObserver:
    """
    Reads one world again and again.

    Args:
        world: Whose bytes.
        operation_column: Column of the rows that holds the id of the operation that wrote
            them last (register mode: one id per row).
        commits_retained: Of the cleaner, to know the oldest readable snapshot; None when
            nothing cleans.
    """

    world: SimulatedSystem
    operation_column: str = "operation"
    commits_retained: int | None = None
    _slots: list[Slot] = field(default_factory=list)
    _facts_of_slots: list[SlotFact] = field(default_factory=list)
    _completed: dict[str, InstantFact] = field(default_factory=dict)
    _paths: dict[tuple[tuple[str, str], str], str] = field(default_factory=dict)
    _rows_of_files: dict[str, list[tuple[str, str | None]]] = field(default_factory=dict)
    _archived_by_file: dict[str, frozenset[str]] = field(default_factory=dict)
    _data_paths: dict[str, None] = field(default_factory=dict)
    # The last observation of slots, timeline and archive; None after a change.
    _by_slots: ObservedTable | None = None
    _instants_known: tuple[InstantFact, ...] | None = None
    _archived_known: frozenset[str] | None = None
    _seen: int = 0
    _slots_created: int = 0
    _slots_judged: int = 0  # number of slots that were checked one by one
    _owners: dict[str, str] = field(default_factory=dict)
    _deletions: list[DeletionFact] = field(default_factory=list)

    def of_copy(self, world: SimulatedSystem) -> EngineObserver:
        """
        Return an observer with the same decoded data, for a copy of the system at this moment.
        """
        return replace(
            self,
            world=world,
            _slots=list(self._slots),
            _facts_of_slots=list(self._facts_of_slots),
            _completed=dict(self._completed),
            _paths=dict(self._paths),
            _rows_of_files=dict(self._rows_of_files),
            _archived_by_file=dict(self._archived_by_file),
            _data_paths=dict(self._data_paths),
            _owners=dict(self._owners),
            _deletions=list(self._deletions),
        )

    def check_step(self, _: SimulatedSystem) -> list[Violation]:
        """Check I5 to I9 again, but only after a relevant change."""
        if not self._read_journal():
            return []
        facts = self.structure()
        found = check_structure(facts, same_slots=len(self._slots) == self._slots_judged)
        if not found:
            self._slots_judged = len(self._slots)
        return found

    def check_end(self, _: SimulatedSystem) -> list[Violation]:
        """I1 to I9 and I14 over everything."""
        return self.judge(self.facts())

    def judge(self, facts: ObservedTable) -> list[Violation]:
        """Everything a run's end must keep."""
        return [*check_all(facts), *check_unique_keys(facts)]

    def leftovers(self) -> list[str]:
        """Return files that should be gone at rest; a subclass knows more of them."""
        return []

    def structure(self) -> ObservedTable:
        """The facts without rows."""
        self._read_journal()
        self._read_slots()
        if self._by_slots is None:
            by_slots = ObservedTable(slots=tuple(self._facts_of_slots), floor=self._floor())
            self._by_slots = replace(by_slots, needed=needed_files(by_slots))
        if self._instants_known is None:
            self._instants_known = tuple(self._instants())
        if self._archived_known is None:
            self._archived_known = self._archived()
        files, known = self.world.files, self._by_slots
        return ObservedTable(
            slots=known.slots,
            floor=known.floor,
            needed=known.needed,
            instants=self._instants_known,
            files={path: len(files[path].data) for path in self._data_paths},
            deletions=tuple(self._deletions),
            history=tuple(self.world.history),
            archived=self._archived_known,
        )

    def facts(self, visible: Mapping[int, frozenset[str]] | None = None) -> ObservedTable:
        """
        Everything, with the rows of every snapshot whose files are all there.

        ``visible`` are the files that the engine's own readers chose, by snapshot number.
        """
        self._archived_known = None  # a power cut tears files and leaves the journal as it is
        facts = self.structure()
        rows = {}
        numbers = [slot.number for slot in facts.slots if slot.kind is ObservedSlotKind.COMMIT]
        for number in {*numbers, facts.head}:
            paths = files_of_snapshot(facts, number)
            if all(facts.files.get(path) == stat.size_bytes for path, stat in paths.items()):
                rows[number] = self._rows(paths)
        return replace(facts, rows=rows, visible=dict(visible or {}))

    def slot_of(self, snapshot: Snapshot) -> int:
        """Number of the newest commit slot that an engine snapshot shows, 0 for none."""
        self._read_slots()
        return max(
            (
                slot.number
                for slot in self._slots
                if slot.kind is EngineKind.COMMIT and slot.requested_time in snapshot.completions
            ),
            default=0,
        )

    # ------------------------------------------------------------ slots and instants

    def _read_slots(self) -> None:
        while True:
            number = len(self._slots) + 1
            path = f"{SLOTS}/{number:020d}"
            entry = self.world.files.get(path)
            data = self.world.removed.get(path) if entry is None else entry.data
            if data is None:
                return
            slot = decode_slot(data, path=path, number=number)
            self._slots.append(slot)
            self._by_slots = None
            if slot.kind is EngineKind.VOID:  # the one before never happened
                nothing = replace(
                    self._facts_of_slots[-1],
                    kind=ObservedSlotKind.NOOP,
                    stats=(),
                    replaces=frozenset(),
                    operations=frozenset(),
                )
                self._facts_of_slots[-1] = nothing
            self._facts_of_slots.append(self._slot_fact(slot))

    def _slot_fact(self, slot: Slot) -> SlotFact:
        metadata = None
        if slot.kind is EngineKind.COMMIT:
            metadata = decode_commit(slot.body, path=f"slot {slot.number}")
        replaced = (metadata.partition_to_replace_file_ids if metadata else None) or {}
        operation = metadata.extra_metadata.get(OPERATION_KEY) if metadata else None
        return SlotFact(
            number=slot.number,
            kind=_KINDS.get(slot.kind, ObservedSlotKind.NOOP),
            action=slot.action.value,
            requested_time=slot.requested_time,
            completion_time=None if slot.kind is EngineKind.PLAN else slot.completion_time,
            own_requested_time=slot.own_requested_time,
            stats=self._stats(metadata, slot.requested_time) if metadata else (),
            replaces=frozenset((path, one) for path, ids in replaced.items() for one in ids),
            removes=frozenset(slot.deletes),
            operations=frozenset({operation} if operation else ()),
        )

    def _stats(self, metadata: CommitMetadata, requested_time: str) -> tuple[StatFact, ...]:
        found = []
        for partition_path, stats in metadata.partition_to_write_stats.items():
            for stat in stats:
                group = (partition_path, stat.file_id)
                previous = None
                if stat.prev_commit != NO_PREVIOUS_COMMIT:
                    unknown = f"an unknown file of {stat.prev_commit}"
                    previous = self._paths.get((group, stat.prev_commit), unknown)
                path = stat.path or ""
                self._paths[group, requested_time] = path
                found.append(
                    StatFact(
                        partition_path=partition_path,
                        file_id=stat.file_id,
                        path=path,
                        size_bytes=stat.file_size_in_bytes,
                        is_base=parse_base_file_name(path.rpartition("/")[2]) is not None,
                        previous_base=previous,
                        repeats=metadata.operation_type == "LOG_COMPACT",
                        change_logs=tuple(stat.cdc_stats or ()),
                    )
                )
        return tuple(found)

    def _instants(self) -> Iterator[InstantFact]:
        """Return each completed file (a second one is a finding), then the pending instants."""
        ended: set[tuple[str, str]] = set()
        begun: list[tuple[str, tuple[str, str]]] = []
        for name in self.world.child_names(TIMELINE):
            known = self._completed.get(name)
            if known is None:
                instant, key = _named(name)
                if instant is None or f"{TIMELINE}/{name}" not in self.world.files:
                    continue
                if not instant.completed:
                    begun.append((name, key))
                    continue
                known = self._completed[name] = self._completed_fact(name, instant)
            ended.add((known.requested_time, known.action))
            yield known
        yield from _pending_facts(tuple(name for name, key in begun if key not in ended))

    def _archived(self) -> frozenset[str]:
        """
        Requested times in the files that the newest manifest of the archive names.

        ``_version_`` alone does not decide which manifest is the newest. An archiver that wakes may set
        it back for a moment until it checks again. Until then a complete manifest with a greater number
        counts, as it does for the archiver.
        """
        manifests = sorted(
            int(name.removeprefix("manifest_"))
            for name in self.world.child_names(HISTORY)
            if name.startswith("manifest_")
        )
        version = self.world.files.get(f"{HISTORY}/_version_")
        if version is None:
            return frozenset()
        newest = parse_version(version.data)
        for number in reversed([newest, *(one for one in manifests if one > newest)]):
            path = f"{HISTORY}/manifest_{number}"
            files = parse_manifest(self.world.files[path].data, path=path)
            paths = [f"{HISTORY}/{one.file_name}" for one in files]
            if number == newest or all(path in self.world.files for path in paths):
                return frozenset().union(*map(self._archived_in, paths))
        return frozenset()

    def _archived_in(self, path: str) -> frozenset[str]:
        if path not in self._archived_by_file:
            rows = parse_archived_instants(self.world.files[path].data, path=path, times_only=True)
            self._archived_by_file[path] = frozenset(row.requested_time for row in rows)
        return self._archived_by_file[path]

    def _completed_fact(self, name: str, instant: Instant) -> InstantFact:
        stats: tuple[StatFact, ...] = ()
        if instant.action.completes_as in WRITE_ACTIONS:
            path = f"{TIMELINE}/{name}"
            metadata = decode_commit(self.world.files[path].data, path=path)
            stats = self._stats(metadata, instant.requested_time)
        return InstantFact(
            action=instant.action.completes_as.value,
            requested_time=instant.requested_time,
            state=instant.state.value,
            completion_time=instant.completion_time,
            stats=stats,
        )

    def _floor(self) -> int:
        """The oldest snapshot the cleaner's policy (latest commits) had to keep readable."""
        floor = 1
        if self.commits_retained is None:
            return floor
        before: list[SlotFact] = []
        for slot in self._facts_of_slots:
            if slot.kind is ObservedSlotKind.COMMIT:
                before.append(slot)
            elif slot.kind is ObservedSlotKind.CLEAN and len(before) > self.commits_retained:
                ordered = sorted(before, key=lambda one: one.requested_time)
                floor = max(floor, ordered[-self.commits_retained].number)
        return floor

    # ------------------------------------------------------------ files and rows

    def _read_journal(self) -> bool:
        """Follow the journal to its end; whether anything happened that may break a rule."""
        journal = self.world.journal
        if len(journal) == self._seen:
            return False
        matters = False
        for change in journal[self._seen :]:
            path = change.path
            if path.startswith(f"{HOODIE}/"):
                matters = self._is_read(path) or matters
                if path.startswith(f"{SLOTS}/") and change.kind == "create":
                    self._slots_created += 1
                continue
            requested_time = _requested_time_of(path)
            if change.kind == "delete":
                matters = True  # a new file that no slot names yet breaks nothing
                self._data_paths.pop(path, None)
            elif requested_time is not None:
                self._data_paths[path] = None
            if requested_time is None or change.actor == POWER_CUT:
                # a power cut removed it, not a process; I7 checks what a power cut must keep
                continue
            if change.kind == "delete":
                self._deletions.append(
                    DeletionFact(
                        path=path,
                        actor=change.actor,
                        head=self._slots_created,
                        requested_time=requested_time,
                        owner=self._owners.get(path, ""),
                    )
                )
            else:
                self._forget_former(path, requested_time)
                self._owners[path] = change.actor
        self._seen = len(journal)
        return matters

    def _is_read(self, path: str) -> bool:
        """Whether ``structure`` reads this changed file of ``.hoodie``."""
        if path.startswith(_HISTORY_FOLDER):
            self._archived_known = None
            return True
        if path.startswith(_READ_FOLDERS):
            self._instants_known = None
            return True
        return False

    def _forget_former(self, path: str, requested_time: str) -> None:
        """
        Forget earlier deletes of a name that exists again: they concern an earlier file.

        Another process may draw the time of an instant that was abandoned without a trace. Then deletes
        of the abandoned instant do not concern the new one. An outside observer may see the file again
        only together with the slot, so deletes before the slot belong to the earlier file.
        """
        self._read_slots()
        taken = [slot.number for slot in self._slots if slot.requested_time == requested_time]
        since = min(taken, default=self._slots_created + 1)
        self._deletions = [
            one
            for one in self._deletions
            if one.path != path or one.actor != one.owner or one.head >= since
        ]

    def _rows(self, paths: Mapping[str, StatFact]) -> dict[str, tuple[str, ...]]:
        """
        Record key to the operations of its rows; more than one is a doubled key.

        Logs count in the order of their slots: readers take the order of requested times,
        and among conflicting writers both must be the same.
        """
        groups: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
        for path, stat in paths.items():
            rows = groups.setdefault(stat.file_group, {})
            if stat.repeats:
                continue  # those it repeats are there as long as it is
            for key, operation in self._rows_of(path, stat):
                if stat.is_base and operation is not None:
                    rows[key] = (*rows.get(key, ()), operation)
                else:
                    rows[key] = () if operation is None else (operation,)
        found: dict[str, tuple[str, ...]] = {}
        for rows in groups.values():
            for key, operations in rows.items():
                if operations:
                    found[key] = (*found.get(key, ()), *operations)
        return found

    def _rows_of(self, path: str, stat: StatFact) -> list[tuple[str, str | None]]:
        """Record key and operation of each row of a file; without one where a log deletes."""
        known = self._rows_of_files.get(path)
        if known is not None:
            return known
        data = self.world.files[path].data
        rows: list[tuple[str, str | None]] = []
        if stat.is_base:
            rows += _stored(data, self.operation_column)
        else:
            source = BytesSource(data)
            for block in iter_blocks(source, len(data), path=path):
                content = read_content(source, block)
                if block.block_type is BlockType.DELETE:
                    deletes = decode_deletes(content, path=path)
                    rows += [(key, None) for key in deletes.column(KEY_COLUMN).to_pylist()]
                else:
                    rows += _stored(content, self.operation_column)
        self._rows_of_files[path] = rows
        return rows


def check_unique_keys(facts: ObservedTable) -> Iterator[Violation]:
    """I14 and I2 in register mode: one row for a key, one slot for an operation."""
    for number, rows in sorted(facts.rows.items()):
        for key, operations in sorted(rows.items()):
            if len(operations) > 1:
                yield Violation(
                    invariant="I14", found=f"snapshot {number} has {key} twice: {operations}"
                )
    counted = Counter(one for slot in facts.slots for one in slot.operations)
    for operation, count in sorted(counted.items()):
        if count > 1:
            yield Violation(invariant="I12", found=f"{operation} is in {count} slots")


@lru_cache(maxsize=4_096)
def _stored(parquet: bytes, operation_column: str) -> tuple[tuple[str, str | None], ...]:
    """Record key and operation of each row; many worlds hold the same bytes."""
    table = pq.ParquetFile(pa.BufferReader(parquet)).read(
        columns=[KEY_COLUMN, operation_column], use_threads=False
    )
    return tuple(zip(*(column.to_pylist() for column in table.columns), strict=True))


@lru_cache(maxsize=256)
def _pending_facts(names: tuple[str, ...]) -> tuple[InstantFact, ...]:
    return tuple(
        InstantFact(
            action=instant.action.value,
            requested_time=instant.requested_time,
            state=instant.state.value,
        )
        for instant in ActiveTimeline.of(names).pending
    )


@lru_cache(maxsize=4_096)
def _named(name: str) -> tuple[Instant | None, tuple[str, str]]:
    """The instant of a file name, and the key that identifies its completed file."""
    instant = parse_instant_name(name)
    if instant is None:
        return None, ("", "")
    return instant, (instant.requested_time, instant.action.completes_as.value)


@lru_cache(maxsize=16_384)
def _requested_time_of(path: str) -> str | None:
    """The requested time in a data file's name, None for every other file."""
    if path.startswith(f"{HOODIE}/"):
        return None
    return data_file_time(path.rpartition("/")[2])
