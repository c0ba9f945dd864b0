"""
What a reader of the metadata table sees, compared with the table's own timeline at every moment.

The rule of Java Hudi is implemented here again, small, from the simulated bytes alone: a file of the
metadata table counts if its instant is completed there and not pending on the table. A log file
belongs to the newest base file whose instant began before the log's completed. Only the codecs of
blocks and of instants are the engine's. At the end, the engine's own reader must agree.

At every moment the list of files equals what the completed instants of the table wrote, without
what completed cleans deleted. So no block of an aborted write is visible, and nothing is missing.
Only a commit that a later slot ended may be missing on either side: its late file is deleted again.
Archived instants count as before.

If the timelines differ from the beginning, the list is judged whenever the engine's reader trusts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa

from filegroups.metadata_table.decode import decode_block, decode_hfile
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.metadata_table.records import FILES, RECORD_INDEX
from tests.simulator.engine_facts import EngineObserver
from tests.simulator.invariants import Violation, files_of_snapshot
from tests.simulator.ports import make_ports
from tests.simulator.table_facts import ObservedTable
from tests.simulator.world import POWER_CUT, SimulatedSystem
from timeline.archived import ArchivedTimeline
from timeline.codecs.instant_avro import decode_commit
from timeline.codecs.log_blocks import BytesSource, iter_blocks, read_content
from timeline.errors import HoodooError, MissingFileError
from timeline.model.file_names import TIMELINE, parse_instant_name
from timeline.model.instant import WRITE_ACTIONS, Action, Instant, State
from timeline.model.metadata_table import PartitionKind
from timeline.model.slot import Slot, SlotKind
from timeline.properties.properties_file import load_config
from timeline.snapshot import CommitReader, Snapshot, TimelineReader
from timeline.system import NullEvents

FOLDER = ".hoodie/metadata"
INSTANTS = f"{FOLDER}/.hoodie/timeline"
_LISTED = f"{FOLDER}/files"
_INDEX = f"{FOLDER}/record_index"
_LOG = re.compile(r"\.(.+)_(\d{17})\.log\.(\d+)_(\S+)")
_BASE = re.compile(r"([^.].*)_\d+-\d+-\d+_(\d{17})\.hfile")
_PLANS = (Action.COMPACTION, Action.LOGCOMPACTION)
_BUILDING = "0" * 14  # how the instants begin that built a partition


#: Partition path and name to the size of a file.
Listing = dict[tuple[str, str], int]


@dataclass(slots=True)
class MetadataObserver(EngineObserver):
    """
    An observer of a table that has a metadata table.

    ``alone``: every instant has a slot. ``differs``: at first only one of
    the timelines has some instant.
    """

    alone: bool = True
    differs: bool = False
    _judged: int = 0  # changes of the journal that were judged
    _written_by: dict[str, Listing] = field(default_factory=dict)
    _completed_once: dict[str, Instant] = field(default_factory=dict)  # by file name
    _shown_once: set[str] = field(default_factory=set)  # times completed in the metadata table

    def of_copy(self, world: SimulatedSystem) -> MetadataObserver:
        copied = EngineObserver.of_copy(self, world)
        assert isinstance(copied, MetadataObserver)
        return replace(
            copied,
            _judged=len(world.journal),
            _written_by=dict(self._written_by),
            _completed_once=dict(self._completed_once),
            _shown_once=set(self._shown_once),
        )

    def check_step(self, world: SimulatedSystem) -> list[Violation]:
        """The table's own rules, then what the metadata table shows, after a relevant change."""
        return [*EngineObserver.check_step(self, world), *self.check_metadata(world)]

    def check_metadata(self, world: SimulatedSystem) -> list[Violation]:
        """What is visible now; nothing if no file changed that decides it."""
        changes = world.journal[self._judged :]
        self._judged = len(world.journal)
        if not any(one.path.startswith((f"{TIMELINE}/", f"{FOLDER}/")) for one in changes):
            return []
        try:
            return [Violation(invariant="MDT", found=found) for found in self._wrong(world)]
        except (HoodooError, ValueError, pa.ArrowException) as error:
            return [Violation(invariant="MDT", found=f"it cannot be read: {error}")]

    def judge(self, facts: ObservedTable) -> list[Violation]:
        """Everything a run's end must keep; keys and the engine's reader if all slots are applied."""
        found = EngineObserver.judge(self, facts)
        self._judged = 0
        found += self.check_metadata(self.world)
        if not found and not self._not_applied():
            found += [Violation(invariant="MDT", found=one) for one in self._wrong_at_rest(facts)]
        return found

    def leftovers(self) -> list[str]:
        """Files of instants that the metadata table does not have, at rest."""
        mine = _instants(self.world, INSTANTS)
        done = {one.requested_time for one in mine if one.completed or one.action in _PLANS}
        done |= {time for time in self._shown_once if time < _first(mine)}
        left = [
            f"{INSTANTS}/{one.requested_time}"
            for one in _pending(mine)
            if _is_commit(one)  # a plan or a build of the dead waits for the next service
        ]
        for path in self.world.paths_below(FOLDER):
            log = _LOG.fullmatch(path.rpartition("/")[2])
            if log is not None and log[2] not in done and not log[2].startswith(_BUILDING):
                left.append(path)  # a build that died is ended by another build or a drop
        return left

    # ------------------------------------------------------------ one moment

    def _wrong(self, world: SimulatedSystem) -> Iterator[str]:
        self._read_slots()
        table, mine = _instants(world, TIMELINE), _instants(world, INSTANTS)
        ended = _ended(self._slots)
        active = [one for one in table if one.completed and _is_recorded(one)]
        done = [*active, *self._archived_since(active)]
        self._shown_once |= {one.requested_time for one in mine if one.completed}
        if self.differs and not self._is_trusted():
            return
        built = max(
            (one.completion_time or "" for one in mine if one.requested_time.startswith(_BUILDING)),
            default="",
        )
        completed = {(one.requested_time, one.completion_time) for one in mine if one.completed}
        for one in active:
            key = (one.requested_time, one.completion_time)
            is_built = self.differs and (one.completion_time or "") < built
            if key not in completed and key not in ended and not is_built:
                yield f"{key[0]} is completed before its deltacommit (MDT-4)"
        if self.alone and not self.differs:
            decided = {slot.instant_time for slot in self._slots if slot.metadata_update}
            decided |= {slot.requested_time for slot in self._slots if _merges_logs(slot)}
            for one in mine:
                time = one.requested_time
                known = time in decided or one.action is not Action.DELTACOMMIT
                if not known and not time.startswith(_BUILDING):
                    yield f"the instant {time} has no slot (MDT-2)"
        shown = self._listed(world, table, mine)
        whole = self._expected(world, done)
        least = self._expected(
            world, [one for one in done if (one.requested_time, one.completion_time) not in ended]
        )
        for (path, name), size in shown.items():
            if whole.get((path, name)) != size:
                yield f"{path}/{name} is visible with {size} bytes, not {whole.get((path, name))}"
        yield from (f"{path}/{name} is not visible" for path, name in least.keys() - shown.keys())

    def _archived_since(self, active: Iterable[Instant]) -> list[Instant]:
        """Return the archived instants; remember those of the active timeline."""
        names = {_name(one): one for one in active if one.completed and _is_recorded(one)}
        gone = [one for name, one in self._completed_once.items() if name not in names]
        self._completed_once |= names
        archived = self.structure().archived if gone else frozenset()
        return [one for one in gone if one.requested_time in archived]

    def _is_trusted(self) -> bool:
        """Return whether the engine's reader would use the list of files."""
        opened = self._opened()
        return opened is not None and opened.lag.is_trusted

    def _opened(self) -> MetadataTable | None:
        storage = make_ports(self.world, self.world.new_actor("looker", seed=0)).storage
        active = TimelineReader(storage).read()
        snapshot = Snapshot(
            active=active,
            head=0,
            commits=CommitReader(storage),
            history=ArchivedTimeline(storage, NullEvents()),
        )
        return open_metadata_table(storage, load_config(storage), snapshot)

    def _listed(
        self, world: SimulatedSystem, table: Iterable[Instant], mine: Iterable[Instant]
    ) -> Listing:
        """Return the files that the metadata table lists."""
        found: Listing = {}
        tombstones: set[tuple[str, str]] = set()
        for _, data in _counted(world, _LISTED, table, mine):
            for records in _decoded(data, FILES):
                if isinstance(records, pa.Array):
                    gone = set(records.to_pylist())
                    found = {key: size for key, size in found.items() if key[0] not in gone}
                    continue
                for row in records.to_pylist():
                    key = (row["key"], row["name"])
                    if not row["is_deleted"]:
                        found[key] = max(row["size"], found.get(key, 0))
                        tombstones.discard(key)
                    elif found.pop(key, None) is None:
                        tombstones.add(key)
        partitions = {name for path, name in found if path == "__all_partitions__"}
        files = {key: size for key, size in found.items() if key[0] != "__all_partitions__"}
        unlisted = {path for path, _ in files} - partitions
        if unlisted:
            raise ValueError(f"partitions are not listed: {sorted(unlisted)}")
        return files

    def _expected(self, world: SimulatedSystem, done: Iterable[Instant]) -> Listing:
        """Return the files that these completed instants wrote and no clean among them deleted."""
        found: Listing = {}
        cleans = {slot.instant_time: slot for slot in self._slots if slot.kind is SlotKind.CLEAN}
        instants = sorted(done, key=lambda one: one.completion_time or "")
        for one in instants:
            if one.action is not Action.CLEAN:
                found |= self._written(world, one)
                continue
            for path in cleans[one.requested_time].deletes:
                folder, _, name = path.rpartition("/")
                found.pop((folder or ".", name), None)
        return found

    def _written(self, world: SimulatedSystem, one: Instant) -> Listing:
        path = f"{TIMELINE}/{_name(one)}"
        known = self._written_by.get(path)
        if known is None:
            file = world.files.get(path)
            data = world.removed[path] if file is None else file.data  # it may be archived
            metadata = decode_commit(data, path=path)
            known = self._written_by[path] = {
                (folder or ".", (file or "").rpartition("/")[2]): size
                for folder, stats in metadata.partition_to_write_stats.items()
                for stat in stats
                for file, size in [
                    (stat.path, stat.file_size_in_bytes),
                    *(stat.cdc_stats or {}).items(),
                ]
            }
        return known

    # ------------------------------------------------------------ at rest

    def _not_applied(self) -> bool:
        shown = set(self.world.child_names(TIMELINE))
        ended = _ended(self._slots)
        return any(
            slot.kind in (SlotKind.COMMIT, SlotKind.CLEAN)
            and (slot.instant_time, slot.completion_time) not in ended
            and slot.file_name not in shown
            for slot in self._slots
        )

    def _wrong_at_rest(self, facts: ObservedTable) -> Iterator[str]:
        if self.differs and not self._is_trusted():
            return
        world = self.world
        table, mine = _instants(world, TIMELINE), _instants(world, INSTANTS)
        shown = self._listed(world, table, mine)
        mine = _without_services(mine)
        if missing := self.listed_and_missing():
            yield f"listed files do not exist: {missing}"
        yield from self._differences_of_engine(shown)
        yield from _unlike([*table, *self._archived_since(table)], mine)
        if all(one.actor != POWER_CUT for one in world.journal):  # it may take pending files
            for one in mine:
                begun = {other.state for other in mine if _is_same(one, other)}
                if one.completed and _is_commit(one) and len(begun) < len(State):
                    yield f"the instant {one.requested_time} lacks a pending file (MDT-4)"
        if not self._has_index() or facts.head not in facts.rows:
            return
        index = _indexed(world, table, _instants(world, INSTANTS))
        places = self._places(facts)
        if index != places:
            yield f"the record index has {sorted(index.items())}, not {sorted(places.items())}"

    def listed_and_missing(self) -> list[str]:
        """Return the listed files that do not exist."""
        world = self.world
        shown = self._listed(world, _instants(world, TIMELINE), _instants(world, INSTANTS))
        paths = (_path(path, name) for path, name in shown)
        return [path for path in paths if path not in world.files]

    def wrong_beside(self, keys: Iterable[str]) -> Iterator[str]:
        """The same where another engine wrote without slots: these are the keys of all rows."""
        table, mine = _instants(self.world, TIMELINE), _instants(self.world, INSTANTS)
        yield from self._differences_of_engine(self._listed(self.world, table, mine))
        yield from _unlike(table, mine)
        index = _indexed(self.world, table, mine)
        if index.keys() != set(keys):
            yield f"the record index has {sorted(index)}, the table {sorted(keys)}"

    def _has_index(self) -> bool:
        """Return whether the table's properties list the record index as complete."""
        # A crash may leave the properties in their backup.
        storage = make_ports(self.world, self.world.new_actor("looker", seed=0)).storage
        return PartitionKind.RECORD_INDEX.value in load_config(storage).complete_metadata_partitions

    def _places(self, facts: ObservedTable) -> dict[str, tuple[str, str]]:
        """Return the file group of each key in the newest snapshot."""
        found: dict[str, tuple[str, str]] = {}
        by_group: dict[tuple[str, str], dict[str, object]] = {}
        for path, stat in files_of_snapshot(facts, facts.head).items():
            by_group.setdefault(stat.file_group, {})[path] = stat
        for group, paths in by_group.items():
            found |= dict.fromkeys(self._rows(paths), group)  # type: ignore[arg-type]
        alive = {key for key, operations in facts.rows[facts.head].items() if operations}
        return {key: group for key, group in found.items() if key in alive}

    def _differences_of_engine(self, shown: Listing) -> Iterator[str]:
        """Compare with the engine's own reader of the metadata table."""
        opened = self._opened()
        if opened is None:
            yield "the engine's reader finds no metadata table"
            return
        if not opened.lag.is_trusted:
            yield f"the engine's reader does not trust it: {opened.lag}"
        try:
            rows = opened.files_of(opened.partition_paths()).to_pylist()
        except MissingFileError as error:
            yield f"the engine's reader cannot read it: {error}"
            return
        read = {(row["partition_path"] or ".", row["name"]): row["size"] for row in rows}
        if read != shown:
            yield f"the engine's reader sees {sorted(read)}, not {sorted(shown)}"


# ---------------------------------------------------------------- reading the bytes


def _instants(world: SimulatedSystem, folder: str) -> list[Instant]:
    return [one for one in map(_parsed, world.child_names(folder)) if one is not None]


_parsed = lru_cache(maxsize=8_192)(parse_instant_name)


def _name(one: Instant) -> str:
    return f"{one.requested_time}_{one.completion_time}.{one.action.value}"


def _path(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"


def _is_recorded(one: Instant) -> bool:
    return one.action in WRITE_ACTIONS or one.action is Action.CLEAN


def _is_commit(one: Instant) -> bool:
    """Return whether an instant of the metadata table belongs to one of the table."""
    return one.action is Action.DELTACOMMIT and not one.requested_time.startswith(_BUILDING)


def _merges_logs(slot: Slot) -> bool:
    return slot.kind is SlotKind.METADATA and slot.action is Action.LOGCOMPACTION


def _first(mine: Iterable[Instant]) -> str:
    """Return the time below which an instant of the metadata table counts as archived."""
    writes = (one for one in mine if one.completed and one.action in WRITE_ACTIONS)
    return min((one.requested_time for one in writes), default="")


def _without_services(mine: Iterable[Instant]) -> list[Instant]:
    """Leave out log compactions, whose completed file is that of a deltacommit."""
    mine = list(mine)
    merged = {one.requested_time for one in mine if one.action is Action.LOGCOMPACTION}
    return [one for one in mine if one.requested_time not in merged]


def _is_same(one: Instant, other: Instant) -> bool:
    return one.requested_time == other.requested_time and one.action is other.action


def _unlike(table: Iterable[Instant], mine: Iterable[Instant]) -> Iterator[str]:
    """Yield how the completed instants of the two timelines differ, but for those of a build."""
    done = {(one.requested_time, one.completion_time) for one in table if one.completed}
    for one in _without_services(mine):
        key = (one.requested_time, one.completion_time)
        if one.completed and _is_commit(one) and key not in done:
            yield f"the table has no instant {key} (MDT-7)"


def _pending(instants: Iterable[Instant]) -> list[Instant]:
    """Return the pending instants; a savepoint has the time of its completed commit."""
    instants = list(instants)
    done = {
        (one.requested_time, one.action.completes_as.value) for one in instants if one.completed
    }
    return [
        one
        for one in instants
        if not one.completed
        and one.action is not Action.SAVEPOINT
        and (one.requested_time, one.action.completes_as.value) not in done
    ]


def _ended(slots: Iterable[Slot]) -> set[tuple[str, str]]:
    """Return the instants whose slot a later one made void, by their two times."""
    ended: set[tuple[str, str]] = set()
    newest: dict[str, str] = {}
    for slot in slots:
        if slot.kind in (SlotKind.COMMIT, SlotKind.CLEAN):
            newest[slot.instant_time] = slot.completion_time
        elif slot.kind is SlotKind.VOID and slot.requested_time in newest:
            ended.add((slot.requested_time, newest[slot.requested_time]))
    return ended


def _counted(
    world: SimulatedSystem, folder: str, table: Iterable[Instant], mine: Iterable[Instant]
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a partition that readers take, in the order of merging."""
    mine = list(mine)
    pending = {one.requested_time for one in _pending(table)}
    done = {one.requested_time: one.completion_time or "" for one in mine if one.completed}
    first = _first(mine)
    bases: dict[str, tuple[str, str]] = {}  # the newest of each file group
    logs = []
    for name in world.child_names(folder):
        base, log = _BASE.fullmatch(name), _LOG.fullmatch(name)
        time = log[2] if log is not None else base[2] if base is not None else ""
        if f"{folder}/{name}" not in world.files or not time:
            continue
        if time >= first and (time not in done or time in pending):
            continue
        if log is not None:
            logs.append((time, int(log[3]), log[4], log[1], name))
        elif base is not None:
            bases[base[1]] = max(bases.get(base[1], ("", "")), (time, name))
    for _, name in sorted(bases.values()):
        yield name, world.files[f"{folder}/{name}"].data
    for time, _, _, group, name in sorted(logs):
        if bases.get(group, ("", ""))[0] < done.get(time, time):
            yield name, world.files[f"{folder}/{name}"].data


def _indexed(
    world: SimulatedSystem, table: Iterable[Instant], mine: Iterable[Instant]
) -> dict[str, tuple[str, str]]:
    """Return partition and file group of each key in the record index."""
    index: dict[str, tuple[str, str]] = {}
    for _, data in _counted(world, _INDEX, table, mine):
        for records in _decoded(data, RECORD_INDEX):
            if isinstance(records, pa.Array):
                for key in records.to_pylist():
                    index.pop(key, None)
                continue
            for row in records.to_pylist():
                index[row["key"]] = (row["partition_path"], row["file_id"])
    return index


@lru_cache(maxsize=8_192)
def _decoded(data: bytes, shape: pa.Schema) -> tuple[pa.Table | pa.Array, ...]:
    """The records and deleted keys of a file, in their order; many worlds hold the same."""
    source = BytesSource(data)
    if not data.startswith(b"#HUDI#"):
        return (decode_hfile(source, len(data), shape, path="a base file"),)
    blocks = list(iter_blocks(source, len(data), path="a log file"))
    if not blocks:
        raise ValueError("a log file without a block counts")
    return tuple(decode_block(block, read_content(source, block), shape) for block in blocks)
