"""Stories of tables that have a metadata table: ours alone, and beside another engine (S20)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial

from filegroups.settings.metadata_settings import MetadataTableSettings
from tableservices.archiving.plan import ArchivingSettings
from tableservices.metadata_table.build import build_partitions
from tableservices.metadata_table.execute import maintain_metadata_table
from tableservices.metadata_table.plan import MetadataServiceSettings
from tableservices.planned_service import Phase, run_round
from tests.simulation import test_compaction as compactions
from tests.simulation import test_engine_archive as archives
from tests.simulation import test_engine_clustering as clusterings
from tests.simulation import test_second_refresh as second
from tests.simulation.engine_kit import (
    TOLERATED_MS,
    Job,
    MakeContext,
    cleaner,
    open_table,
    outside,
    play,
    ports_of,
    rows_now,
    seeded,
    undoer,
    writer,
)
from tests.simulation.family import Prepared, Story, some_of
from tests.simulation.stories_of_others import Sparing, all_there
from tests.simulation.story_kit import (
    ALL,
    BULK,
    COW,
    CRASHES,
    DELETE,
    INSERT,
    MOR,
    OVERWRITE,
    PAUSES,
    SHARED,
    UNKNOWN,
    UPSERT,
    lock_free,
    opening,
    prepared,
    some_writer,
)
from tests.simulator.faults import Fault
from tests.simulator.invariants import Violation
from tests.simulator.metadata_facts import FOLDER, INSTANTS, MetadataObserver
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.script import Until
from tests.simulator.world import SimulatedSystem
from timeline.commit.commit_lock import acquire_exclusively
from timeline.commit.section import apply_pending_slots
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import SLOTS, parse_instant_name, parse_log_file_name
from timeline.model.metadata_table import PartitionKind
from timeline.ports.ports import Storage
from timeline.properties.properties_file import load_config

LISTED = ("files",)
INDEXED = ("files", "record_index")
ONE_FILE_GROUP = MetadataTableSettings(
    record_index_file_groups_min=1, record_index_file_groups_max=1
)

# ---------------------------------------------------------------- systems, made once


def grown(
    partitions: tuple[str, ...] = INDEXED, table_type: TableType = COW, version: int = 9
) -> SimulatedSystem:
    """Two slices of each file group, so that there is something to clean, compact and cluster."""
    world = seeded(
        "metadata",
        SHARED,
        metadata_partitions=partitions,
        table_type=table_type,
        table_version=version,
    )
    jobs = [
        Job(operation="old", keys=("a1", "b1")),
        Job(operation="older", keys=("a3", "a4"), kind=BULK),
    ]
    play(world, [writer("old", jobs)], [])
    return world


def one_slice() -> SimulatedSystem:
    """The smallest one: its metadata table lists files and has no index."""
    return seeded("metadata", ("a1", "b1"), metadata_partitions=LISTED)


#: Calls of a write around its slot; a writer that dies there leaves work for others.
AT_ITS_SLOT = f"create {SLOTS}/"
AT_ITS_INSTANT = SHOW = f"create {INSTANTS}/"


def left_by_the_dead(call: str, died: Fault, *how: object) -> SimulatedSystem:
    """A writer without a lock died at this call, long ago."""
    world = grown(*how)  # type: ignore[arg-type]
    dead = writer("dead", [Job(operation="dead", keys=("a1", "d1"))], make_context=lock_free)
    play(world, [dead], [Until("dead", call, died)])
    world.now_ms += 2 * TOLERATED_MS
    return world


BEGINNINGS: tuple[tuple[str, Fault] | None, ...] = (
    None,
    None,
    (AT_ITS_SLOT, Fault.CRASH_BEFORE),
    (AT_ITS_SLOT, Fault.CRASH_AFTER),
    (AT_ITS_INSTANT, Fault.CRASH_AFTER),
)

# ---------------------------------------------------------------- ours alone


def helper(name: str = "H", make: MakeContext = open_table) -> Actor:
    """Enters a commit section and applies all slots that are not applied."""
    return compactions.serving(name, partial(apply_pending_slots, purpose="help"))


def cluster(context: TableContext) -> None:
    run_round(context, clusterings.SERVICE, now=True)


def compact_metadata(context: TableContext) -> None:
    maintain_metadata_table(context, MetadataServiceSettings(), ArchivingSettings(), now=True)


def merge_metadata_logs(context: TableContext) -> None:
    logs = MetadataServiceSettings(commits_max=1_000, log_compaction=True, log_blocks_min=2)
    maintain_metadata_table(context, logs, ArchivingSettings())


def keep_metadata(context: TableContext) -> None:
    """Merge the log files of the metadata table, then compact it."""
    merge_metadata_logs(context)
    compact_metadata(context)


def build_index(context: TableContext) -> None:
    build_partitions(context, (PartitionKind.RECORD_INDEX.value,), ONE_FILE_GROUP)


def with_metadata_table(draw: random.Random, name: str) -> Story:
    """Writers, a helper, a rollback, a clean and plans; sometimes beside another engine."""
    if draw.random() < 0.3:
        return beside_another_engine(draw, name)
    table_type = draw.choice((COW, COW, MOR))
    how = (draw.choice((LISTED, INDEXED, INDEXED)), table_type, draw.choice((9, 9, 8)))
    began = draw.choice(BEGINNINGS)
    before = prepared(grown, *how) if began is None else prepared(left_by_the_dead, *began, *how)
    world, facts = before.fresh(name)
    make = opening(draw) if draw.random() < 0.7 else lock_free
    kinds = (UPSERT, UPSERT, UPSERT, INSERT, OVERWRITE)
    actors = [
        some_writer(draw, "A", make, kinds=kinds),
        some_writer(draw, "B", make, jobs=draw.choice((1, 1, 2)), kinds=kinds),
    ]
    if draw.random() < 0.3:
        gone = Job(operation="B-delete", keys=(draw.choice(("a2", "a3")),), kind=DELETE)
        actors[1] = writer("B", [gone], make_context=make, shuffled=draw.random() < 0.3)
    others: dict[str, Callable[[], Sequence[Actor]]] = {
        "helper": lambda: [helper()],
        "rollback": lambda: [undoer()],
        "cleaner": lambda: [cleaner(rounds=1, pause_ms=draw.choice((0, 30)))],
        "clusterers": lambda: [
            compactions.serving(one, cluster) for one in ("C", "D")[: draw.choice((1, 2))]
        ],
    }
    if table_type is MOR:
        others["compactors"] = lambda: [
            compactions.serving("C", compactions.compact),
            compactions.serving("D", draw.choice((compactions.execute_unclaimed, call_off))),
        ]
    others["keepers"] = lambda: [
        compactions.serving(one, keep_metadata) for one in ("K", "L")[: draw.choice((1, 1, 2))]
    ]
    if how[0] == LISTED:
        others["builder"] = lambda: [compactions.serving("M", build_index)]
    for one in draw.sample(sorted(others), draw.choice((1, 1, 2))):
        actors += [replace(actor, may_raise=(HoodooError,)) for actor in others[one]()]
    most = {**ALL, Fault.POWER_CUT: 1} if draw.random() < 0.15 else ALL
    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=some_of(
            draw, most, chance=0.4, time_jump_ms=(500, TOLERATED_MS + 500, 2 * TOLERATED_MS)
        ),
        heals=draw.random() < 0.3 or Fault.POWER_CUT in most,
        services=both,
        steps=250,
    )


def call_off(context: TableContext) -> None:
    compactions.call_off(context)


def both(context: TableContext) -> None:
    """Finish what planned services left."""
    if context.config.table_type is MOR:
        compactions.both(context)
    for _ in range(2):
        run_round(context, clusterings.SERVICE, Phase.EXECUTE, now=True)


# ---------------------------------------------------------------- archiving of both timelines


class Left(Enum):
    """What the two timelines have at first, long before the newest commits (MDT-8)."""

    NOTHING = "they agree"
    OLD_COPY = "the metadata table lacks a commit, as an older copy does"
    UNKNOWN = "only the metadata table has a commit"
    PENDING = "a dead process of another engine left a pending commit in the metadata table"


SOME_KEPT = ArchivingSettings(commits_kept_min=2, commits_kept_max=3)


def long_used(left: Left = Left.NOTHING, partitions: tuple[str, ...] = LISTED) -> SimulatedSystem:
    """Six commits and a compaction of the metadata table: there is much to archive in both."""
    world = seeded("metadata archive", metadata_partitions=partitions)
    write_more(world, "old0", "old1")
    leave(world, left)
    write_more(world, "old2", "old3", "old4")
    keep_and_archive(open_table(outside(world, "keeper")))
    write_more(world, "old5")
    world.now_ms += 2 * archives.GRACE_MS
    return world


def write_more(world: SimulatedSystem, *operations: str) -> None:
    jobs = [Job(operation=one, keys=("a1", "b1")) for one in operations]
    play(world, [writer(operations[0], jobs)], [])


def leave(world: SimulatedSystem, left: Left) -> None:
    if left is Left.OLD_COPY:
        newest = max(name for name in world.child_names(INSTANTS) if name.endswith("deltacommit"))
        for path in world.paths_below(FOLDER):
            if newest[:17] in path:
                world.remove("copy", path)
    elif left is not Left.NOTHING:
        stages = [Until("dead", AT_ITS_SLOT), Until("dead", "deltacommit.inflight")]
        last = "_2026" if left is Left.UNKNOWN else "deltacommit.inflight"
        dying = world.copy("dying")
        dead = writer("dead", [Job(operation="dead", keys=("a1", "d1"))], make_context=lock_free)
        play(dying, [dead], [*stages, Until("dead", last, Fault.CRASH_AFTER)])
        for path in dying.paths_below(FOLDER):
            if path not in world.files:
                world.put("dead", path, dying.files[path].data, durable=True, new=True)
        world.now_ms = dying.now_ms


def keep_and_archive(context: TableContext) -> None:
    """Compact the metadata table, and archive its instants."""
    maintain_metadata_table(context, MetadataServiceSettings(), SOME_KEPT, now=True)


def mend(context: TableContext) -> None:
    """Build the whole metadata table again, as ``hoodoo metadata repair`` does."""
    keep_and_archive(context)
    partitions = sorted(load_config(context.ports.storage).complete_metadata_partitions)
    build_partitions(context, partitions, ONE_FILE_GROUP, again=partitions)


@cache
def archived_with(left: Left, partitions: tuple[str, ...]) -> Prepared:
    before = Prepared.of(long_used(left, partitions))
    assert isinstance(before.facts, MetadataObserver)
    before.facts.differs = left is not Left.NOTHING
    return before


def archiving_both(draw: random.Random, name: str) -> Story:
    """Archivers of the table and of its metadata table, whose timelines may differ, and a writer."""
    left = draw.choice(list(Left))
    before = archived_with(left, draw.choice((LISTED, LISTED, INDEXED)))
    world, facts = before.fresh(name)
    make = archives.registered if draw.random() < 0.7 else lock_free
    actors = [
        archives.archiver("X", rounds=draw.choice((1, 2))),
        *(compactions.serving(one, keep_and_archive) for one in ("K", "L")[: draw.choice((1, 2))]),
        archives.writer("A", ["A1", "A2"][: draw.choice((1, 2))], make_context=make),
    ]
    if draw.random() < 0.3:
        actors.append(replace(undoer(), may_raise=(HoodooError,)))
    if draw.random() < 0.2:
        actors.append(cleaner(rounds=1))
    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=some_of(
            draw,
            {**PAUSES, **CRASHES, Fault.UNAVAILABLE: 2, **UNKNOWN},
            chance=0.4,
            time_jump_ms=(3 * archives.GRACE_MS, 1_000),
        ),
        heals=draw.random() < 0.5,
        services=mend if left in (Left.OLD_COPY, Left.UNKNOWN) else keep_and_archive,
        judge=archives.comebacks,
        steps=300,
    )


# ---------------------------------------------------------------- beside another engine


@dataclass(slots=True)
class BesideAnother(MetadataObserver):
    """Another engine takes no slots, so only the two timelines and the files are judged."""

    alone: bool = False

    def check_step(self, world: SimulatedSystem) -> list[Violation]:
        return self.check_metadata(world)


def beside_another_engine(
    draw: random.Random, name: str, ours: MakeContext = second.shared
) -> Story:
    """Writers of ours, and one that has the lock and the two timelines only (MDT-10)."""
    world, _ = prepared(one_group).fresh(name)
    answers: second.Answers = {}
    facts = BesideAnother(world)
    actors = second.cast(answers, ours, others=draw.choice(("", "B", "B")))
    actors.append(as_java(answers, draw.choice((("a1", "a3"), ("c1", "c2")))))
    if draw.random() < 0.3:
        actors.append(Actor(name="R", body=second.roll_back_as_java, may_raise=(HoodooError,)))
    if draw.random() < 0.3:
        actors.append(cleaner(rounds=1, pause_ms=draw.choice((0, 30)), make_context=ours))
    most = {
        **PAUSES,
        Fault.CRASH_BEFORE: 1,
        Fault.CRASH_AFTER: 1,
        Fault.AMBIGUOUS_APPLIED: 1,
        Fault.AMBIGUOUS_LOST: 1,
    }
    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=some_of(
            draw,
            most,
            time_jump_ms=(TOLERATED_MS // 2, TOLERATED_MS + 500),
            chance=0.8,
            victims=frozenset({"A", "B", "cleaner"}),
        ),
        restrain=partial(Sparing, world=world, seed=f"sparing/{name}", at=(second.SLOT, SHOW)),
        judge=partial(all_and_listed, answers, facts),
        judged_at_end=False,
    )


def one_group() -> SimulatedSystem:
    return seeded("metadata", ("a1",), metadata_partitions=INDEXED)


def as_java(answers: second.Answers, keys: tuple[str, ...]) -> Actor:
    """Another engine's writer: it first rolls back pending instants of the metadata table."""
    jobs = [Job(operation="J", keys=keys)]
    writes = writer("J", jobs, make_context=second.foreign, answers=answers)

    def body(ports: ActorPorts) -> None:
        context = second.foreign(ports_of(ports))
        with acquire_exclusively(context, "roll back in the metadata table"):
            roll_back_pending(context.ports.storage)
        writes.body(ports)

    return replace(writes, body=body)


def roll_back_pending(storage: Storage) -> None:
    """Roll back all pending instants of the metadata table, with their log files, as Java does."""
    instants = [one for one in map(parse_instant_name, storage.names(INSTANTS)) if one is not None]
    done = {one.requested_time for one in instants if one.completed}
    pending = {one.requested_time for one in instants} - done
    for folder in _folders(storage) if pending else ():
        for name in storage.names(folder):
            log = parse_log_file_name(name)
            if log is not None and log.instant_time in pending:
                storage.delete(f"{folder}/{name}")
    for time in sorted(pending):
        for ending in ("inflight", "requested"):
            storage.delete(f"{INSTANTS}/{time}.deltacommit.{ending}")


def _folders(storage: Storage) -> Iterable[str]:
    for entry in storage.list(FOLDER):
        if entry.is_folder and entry.name != ".hoodie":
            yield f"{FOLDER}/{entry.name}"


def all_and_listed(
    answers: second.Answers, facts: BesideAnother, world: SimulatedSystem
) -> Sequence[object]:
    """No acknowledged row is lost, and the metadata table is right after a survivor's write."""
    found = [*all_there(answers, world), *facts.check_metadata(world)]
    if not found:
        keys = rows_now(world).keys()
        found = [Violation(invariant="MDT", found=one) for one in facts.wrong_beside(keys)]
    return found
