"""
The shipped engine inside the simulated world: a tiny table, its writers, cleaner, reader.

Nothing of the engine is replaced: only its ports are. Rows carry the id of the operation
that wrote them last, so every lost, doubled or reordered update shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from filegroups.files.parquet_layout import ParquetSettings
from filegroups.keys.generators import KeyGenerator
from filegroups.keys.keys import KeySpec
from filegroups.schema.new_table import new_table_properties
from filegroups.table import TableReader, create_table_files
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult, FileRules, RowRules, WriteRequest
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tests.simulation.remembered_workload import RememberedWorkload
from tests.simulator.engine_facts import OPERATION_KEY, EngineObserver
from tests.simulator.faults import Faults
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Script, ScriptStage
from tests.simulator.table_facts import ObservedSlotKind, ObservedTable
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from tests.unit.timeline.metadata_tables import add_metadata_table
from timeline.context import TableContext, TableLimits
from timeline.errors import (
    HoodooError,
    InternalError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from timeline.heartbeat import HeartbeatLimits
from timeline.model.commit_metadata import ConcurrencyMode, MergeMode, TableType, WriteOperation
from timeline.model.file_names import HEARTBEATS, MARKERS, TIMELINE, parse_base_file_name, slot_path
from timeline.model.merge_definition import MergeDefinition
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.properties_file import load_config
from timeline.rollback.rollback import rollback_dead_writers
from timeline.rules.retry import RetryBudget
from timeline.snapshot import ActiveTimeline

INTERVAL_MS = 1_000
TOLERATED_MS = 2 * INTERVAL_MS
RETAINED = 2

LIMITS = TableLimits(
    heartbeat=HeartbeatLimits(interval_ms=INTERVAL_MS, misses=2),
    retry=RetryBudget(conflict_retries_max=6, pause_base_ms=5, pause_cap_ms=50),
    unknown_ms_max=3_000,
    mode=ConcurrencyMode.OPTIMISTIC_CONCURRENCY_CONTROL,
)
FILES = FileRules(
    parquet=ParquetSettings(compression="none", dictionary=False),
    bloom=None,
    learn_record_size=False,
)
CLEANING = CleaningSettings(commits_retained=RETAINED)

#: Makes the context an actor works with; mutants replace it.
MakeContext = Callable[[EngineWorld], TableContext]


#: The change to every context that actors open while a mutant is tried (``mutation``).
_MUTATIONS: list[Callable[[TableContext], TableContext]] = []


@contextmanager
def mutation(change: Callable[[TableContext], TableContext] | None) -> Iterator[None]:
    """Within the block, every actor works with a mutant of the engine; None changes nothing."""
    if change is None:
        yield
        return
    _MUTATIONS.append(change)
    try:
        yield
    finally:
        _MUTATIONS.pop()


def open_table(world: EngineWorld, limits: TableLimits = LIMITS) -> TableContext:
    context = TableContext.of(world, load_config(world.storage), limits)
    for change in _MUTATIONS:
        context = change(context)
    return context


def ports_of(ports: ActorPorts) -> EngineWorld:
    return EngineWorld(
        storage=ports.storage,
        clock=ports.clock,
        ids=ports.ids,
        events=ports.events,
        executor=ports.executor,
        lock=ports.lock,
        zone=ports.zone,
    )


def outside(world: SimulatedSystem, name: str = "outside") -> EngineWorld:
    """Ports of an actor that acts between runs: every call is made at once."""
    return ports_of(make_ports(world, world.new_actor(name, seed=0)))


def new_world(
    scenario: str,
    *,
    lease_ms: int = 2_000,
    table_version: int = 9,
    table_type: TableType = TableType.COPY_ON_WRITE,
    properties: Mapping[str, str] | None = None,
    metadata_partitions: Sequence[str] = (),
    **options: Any,
) -> SimulatedSystem:
    """
    A world with an empty table in it; further ``options`` are the world's.

    ``metadata_partitions`` are those of its metadata table; without them it has none.
    """
    world = SimulatedSystem(scenario=scenario, lease_ms=lease_ms, **options)
    made = new_table_properties(
        "t",
        record_key_fields=("id",),
        partition_fields=("part",),
        table_version=table_version,
        table_type=table_type,
    )
    create_table_files(outside(world, "founder"), {**made, **(properties or {})}, LIMITS)
    if metadata_partitions:
        add_metadata_table(outside(world, "founder").storage, *metadata_partitions)
    return world


def rows_of(operation: str, keys: Sequence[str]) -> pa.Table:
    """One row per key; the partition is the key's first letter."""
    return _rows_of(operation, tuple(keys))


@lru_cache(maxsize=4_096)
def _rows_of(operation: str, keys: tuple[str, ...]) -> pa.Table:
    """Never changed, and written again by thousands of schedules."""
    return pa.table(
        {
            "id": list(keys),
            "part": [key[0] for key in keys],
            "operation": [operation] * len(keys),
        }
    )


def plan_for(
    operation: str,
    kind: WriteOperation = WriteOperation.UPSERT,
    *,
    batch_id: str | None = None,
    delete_partitions: tuple[str, ...] = (),
    files: FileRules = FILES,
) -> WriteRequest:
    upserts = kind in (WriteOperation.UPSERT, WriteOperation.DELETE)
    return WriteRequest(
        rules=RowRules(
            keys=KeySpec(
                record_key_fields=("id",),
                partition_fields=("part",),
                key_generator=KeyGenerator.SIMPLE,
            ),
            operation=kind,
            merge=MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING),
            ordering_fields=(),
            combine=upserts,
            tags=upserts,
        ),
        files=files,
        extra_metadata={OPERATION_KEY: operation},
        batch_id=batch_id,
        delete_partitions=delete_partitions,
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """One write of a client; ``delete`` writes no rows, it takes them away."""

    operation: str
    keys: tuple[str, ...]
    kind: WriteOperation = WriteOperation.UPSERT
    batch_id: str | None = None
    pause_ms: int = 0
    files: FileRules = FILES
    extra: str = ""  # name of a further column


def do_write(ports: ActorPorts, context: TableContext, job: Job) -> CommitResult:
    """Write without telling the client's history."""
    rows = rows_of(job.operation, job.keys)
    if job.kind is WriteOperation.DELETE:
        rows = rows.select(["id", "part"])
    if job.extra:
        rows = rows.append_column(job.extra, [["x"] * len(rows)])
    plan = plan_for(job.operation, job.kind, batch_id=job.batch_id, files=job.files)
    return write(context, plan, RememberedWorkload(context.ports, rows))


def client_write(ports: ActorPorts, context: TableContext, job: Job) -> CommitResult | HoodooError:
    """Write, and record the engine's answer in the history."""
    deletes = job.kind is WriteOperation.DELETE
    ports.client.invoke(job.operation, job.keys, deletes=deletes)
    try:
        result = do_write(ports, context, job)
    except OutcomeUnknownError as error:
        ports.client.info(job.operation)
        return error
    except InternalError:
        raise  # a mistake of the engine, no answer to a client
    except HoodooError as error:
        ports.client.fail(job.operation)
        return error
    ports.client.ok(job.operation)
    return result


def patiently(ports: ActorPorts, make_context: MakeContext) -> TableContext:
    """Open the table, again when the storage does not answer."""
    while True:
        try:
            return make_context(ports_of(ports))
        except StorageUnavailableError:
            ports.clock.sleep_ms(10)


def writer(
    name: str,
    jobs: Sequence[Job],
    *,
    make_context: MakeContext = open_table,
    answers: dict[str, CommitResult | HoodooError] | None = None,
    clock_offset_ms: int = 0,
    shuffled: bool = False,
    start_after: str | None = None,
) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make_context)
        for job in jobs:
            if job.pause_ms:
                ports.clock.sleep_ms(job.pause_ms)
            answer = client_write(ports, context, job)
            if answers is not None:
                answers[job.operation] = answer

    return Actor(
        name=name,
        body=body,
        clock_offset_ms=clock_offset_ms,
        shuffled=shuffled,
        start_after=start_after,
    )


def cleaner(
    name: str = "cleaner",
    *,
    rounds: int = 3,
    pause_ms: int = 60,
    make_context: MakeContext = open_table,
    clock_offset_ms: int = 0,
) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make_context)
        for _ in range(rounds):
            ports.clock.sleep_ms(pause_ms)
            try:
                clean(context, CLEANING)
            except HoodooError as error:
                ports.events.emit("sim.clean_failed", why=str(error))

    return Actor(name=name, body=body, clock_offset_ms=clock_offset_ms)


Undo = Callable[[TableContext, ActiveTimeline | None], None]


def roll_back_dead_writers(context: TableContext, timeline: ActiveTimeline | None = None) -> None:
    """The engine's own, in the shape that its mutants have."""
    rollback_dead_writers(context, timeline)


def undoer(undo: Undo = roll_back_dead_writers, name: str = "R") -> Actor:
    """Rolls back, once, every writer whose heartbeat is expired."""

    def body(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        undo(context, context.active())

    return Actor(name=name, body=body)


def reader(facts: EngineObserver, name: str = "reader", *, rounds: int = 3) -> Actor:
    def body(ports: ActorPorts) -> None:
        table = TableReader(patiently(ports, open_table))
        for number in range(rounds):
            ports.clock.sleep_ms(25)
            try:
                pinned = table.current_state()
                if not pinned.snapshot.completions:
                    continue
                rows = pinned.to_arrow(columns=["id", "operation"]).to_pylist()
            except HoodooError as error:
                ports.events.emit("sim.read_failed", why=type(error).__name__)
                continue
            found: dict[str, tuple[str, ...]] = {}
            for row in rows:
                found[row["id"]] = (*found.get(row["id"], ()), row["operation"])
            ports.client.read(f"{name}.{number}", facts.slot_of(pinned.snapshot), found)

    return Actor(name=name, body=body)


# ---------------------------------------------------------------- after the faults


def heal(
    world: SimulatedSystem,
    facts: EngineObserver,
    *,
    seed: int = 0,
    services: int = 2,
    before_cleaning: Callable[[TableContext], None] = lambda _: None,
) -> Trace:
    """
    Let a survivor write and clean after all faults; then all invariants must hold.

    The survivor begins after the leases and heartbeats of the dead have ended. Services other
    than cleaning that have work left run before it. File groups of a dead clustering are committed
    as replaced: cleaning deletes them after as many commits as retention asks for.
    """
    final = Job(operation="final", keys=("a1", "z9"))

    def body(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        ports.clock.sleep_ms(2 * TOLERATED_MS)
        answer = client_write(ports, context, final)
        if isinstance(answer, HoodooError):
            raise answer
        before_cleaning(context)
        for _ in range(services):
            clean(context, CLEANING)
            ports.clock.sleep_ms(TOLERATED_MS + 1)
        for number in range(RETAINED):
            if not replaced_by_dead(facts.structure()):
                break
            more = client_write(ports, context, Job(operation=f"final{number}", keys=("z9",)))
            if isinstance(more, HoodooError):
                raise more
            clean(context, CLEANING)

    return run(
        world,
        [Actor(name="survivor", body=body)],
        seed=seed,
        check_step=facts.check_step,
        check_end=partial(check_healed, facts),
    )


def unnamed(observed: ObservedTable) -> list[str]:
    """Data files that no slot committed."""
    named = {stat.path for slot in observed.slots for stat in slot.stats}
    named.update(log for slot in observed.slots for stat in slot.stats for log in stat.change_logs)
    return [path for path in observed.files if path not in named]


def replaced_by_dead(observed: ObservedTable) -> list[str]:
    """Those of them that a slot hides: readers never see them, and a clean takes them away."""
    hidden = {group for slot in observed.slots for group in slot.replaces}
    return [
        path
        for path in unnamed(observed)
        if (base := parse_base_file_name(path.rpartition("/")[2])) is not None
        and (path.rpartition("/")[0], base.file_id) in hidden
    ]


def check_healed(facts: EngineObserver, world: SimulatedSystem) -> list[Violation]:
    """At rest: all promises, the engine's own reader agrees, nothing is left over."""
    table = TableReader(open_table(outside(world, "auditor")))
    pinned = table.current_state()
    number = facts.slot_of(pinned.snapshot)
    slices = pinned.file_slices()
    visible = {one.base_file.path for one in slices if one.base_file is not None}
    visible.update(log.path for one in slices for log in one.log_files)
    observed = facts.facts(visible={number: frozenset(visible)})
    found = facts.judge(observed)
    read = sorted(
        (row["id"], row["operation"])
        for row in pinned.to_arrow(columns=["id", "operation"]).to_pylist()
    )
    expected = sorted(
        (key, operation) for key, all_ in observed.rows[observed.head].items() for operation in all_
    )
    if read != expected:
        found.append(Violation(invariant="I4", found=f"the reader sees {read}, not {expected}"))
    leftovers = unnamed(observed) + facts.leftovers()
    leftovers += [
        f"{one.requested_time}.{one.action}.{one.state}"
        for one in observed.instants
        if one.state != "completed"
    ]
    leftovers += world.paths_below(MARKERS) + world.paths_below(HEARTBEATS)
    leftovers += [name for name, lock in world.locks.items() if lock.token is not None]
    if leftovers:
        found.append(Violation(invariant="I16", found=f"left over: {leftovers}"))
    return found


def healed(
    world: SimulatedSystem, facts: EngineObserver, *, seed: int = 0, services: int = 2
) -> SimulatedSystem:
    heal(world, facts, seed=seed, services=services).expect_ok(last=200)
    return world


# ---------------------------------------------------------------- written interleavings


def seeded(scenario: str, keys: Sequence[str] = ("a1", "b1"), **options: Any) -> SimulatedSystem:
    """A world whose table already has these keys, each of operation ``seed``."""
    world = new_world(scenario, **options)
    ports = make_ports(world, world.new_actor("loader", seed=0))
    answer = client_write(
        ports, open_table(ports_of(ports)), Job(operation="seed", keys=tuple(keys))
    )
    if isinstance(answer, HoodooError):
        raise answer
    return world


def play(
    world: SimulatedSystem,
    actors: Sequence[Actor],
    stages: Sequence[ScriptStage],
    *,
    facts: EngineObserver | None = None,
    jump_ms: int = 10,
) -> Trace:
    """One written interleaving; its last check is the structure, the rest is for ``heal``."""
    observed = facts or EngineObserver(world, commits_retained=RETAINED)
    script = Script(stages)
    trace = run(
        world,
        actors,
        faults=Faults(time_jump_ms=jump_ms),
        policy=script,
        check_step=observed.check_step,
        check_end=observed.check_end,
    )
    if trace.failure is None and not script.played:
        raise AssertionError(f"the script was not played to its end\n{trace.story()}")
    return trace


def found_by(world: SimulatedSystem, trace: Trace) -> str:
    """Return the findings in a played run and after its healing; empty when all is well."""
    if trace.failure is not None:
        return trace.failure
    return heal(world, EngineObserver(world, commits_retained=RETAINED)).failure or ""


def rows_now(world: SimulatedSystem) -> dict[str, str]:
    """Record key to operation, as the engine's reader sees them; keys must be unique."""
    rows = TableReader(open_table(outside(world))).to_arrow(columns=["id", "operation"]).to_pylist()
    found = {row["id"]: row["operation"] for row in rows}
    if len(found) != len(rows):
        raise AssertionError(f"a key has two rows: {sorted(row['id'] for row in rows)}")
    return found


def events_of(world: SimulatedSystem, name: str) -> list[dict[str, object]]:
    """Fields of every event of this name."""
    return [dict(fields) for _, _, event, fields in world.events if event == name]


def check_files_in_slot_order(
    world: SimulatedSystem, known: EngineObserver | None = None
) -> list[Violation]:
    """
    PUB-3: when a slot appears, the completed files of all commits before the last one exist.

    That of the last one, too, unless both are commits; and files appear in the order of slots.
    """
    facts = (known or EngineObserver(world)).structure()
    created: dict[str, int] = {}
    for place, change in enumerate(world.journal):
        if change.kind in ("create", "write"):  # calls that need no atomic create are written there
            created.setdefault(change.path, place)
    never = len(world.journal)
    shown = {
        one.requested_time: created.get(
            f"{TIMELINE}/{one.requested_time}_{one.completion_time}.{one.action}", never
        )
        for one in facts.instants
        if one.state == "completed"
    }
    commits = [
        slot
        for slot in facts.slots
        if slot.kind is ObservedSlotKind.COMMIT and slot.requested_time not in facts.archived
    ]
    return [
        Violation(
            invariant="I17", found=f"slot {slot.number} was taken before {before.number} showed"
        )
        for slot in facts.slots
        for before in commits
        if before.number < slot.number - (slot.kind is ObservedSlotKind.COMMIT)
        and shown.get(before.requested_time, never) > created[slot_path(slot.number)]
    ] + [
        Violation(invariant="I17", found=f"slot {slot.number} showed before {before.number}")
        for before, slot in itertools.pairwise(commits)
        if shown.get(slot.requested_time, never) < shown.get(before.requested_time, never)
    ]
