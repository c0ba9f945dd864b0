"""
Going back under faults: savepoint, restore and rollback killed at every call, and with writers.

The expected rows are folded from the commit log alone: a commit adds its rows, a restore
returns to the state of its target. Every run ends with a survivor's write and clean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from tableservices.cleaning.execute import clean
from tableservices.restoring.restore import finish_restore, restore
from tableservices.restoring.rollback import rollback_write
from tableservices.restoring.savepoints import delete_savepoint, savepoint, savepoints
from tests.simulation.engine_kit import (
    CLEANING,
    INTERVAL_MS,
    TOLERATED_MS,
    Job,
    do_write,
    open_table,
    outside,
    patiently,
    play,
    ports_of,
    rows_now,
    writer,
)
from tests.simulation.engine_kit import seeded as seeded_table
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import Until
from tests.simulator.world import SimulatedSystem
from timeline.codecs.instant_avro import decode_commit, encode_rollback_plan
from timeline.commit.apply import is_applied
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import HEARTBEATS, MARKERS, pending_file_names, timeline_path
from timeline.model.instant import Action
from timeline.model.plans import InstantInfo, RollbackPlan
from timeline.model.slot import SlotKind
from timeline.properties.setting_enums import ForeignWriters
from timeline.rollback.rollback import rollback_dead_writers

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
KEYS = ("a1", "b1")
JOBS = {
    "seed": KEYS,
    "old1": ("a1", "c1"),
    "old2": ("a1", "a2", "b1"),  # a2 must not exist again with a1's file
    "dead": ("a1", "d1"),
    "W": ("a1", "e1"),
    "V": ("b1",),
    "final": ("a1", "z9"),
}
TYPES = (TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ)


def grown(table_type: TableType) -> SimulatedSystem:
    """Three commits, and a writer that died before its publication."""
    world = seeded_table("restore", KEYS, table_type=table_type)
    play(
        world, [writer("old", [Job(operation=one, keys=JOBS[one]) for one in ("old1", "old2")])], []
    )
    dead = writer("dead", [Job(operation="dead", keys=JOBS["dead"])])
    play(world, [dead], [Until("dead", "assert_held", Fault.CRASH_BEFORE)])
    world.now_ms += 10 * INTERVAL_MS
    return world


def time_of(world: SimulatedSystem, operation: str) -> str:
    """Requested time of an operation's commit."""
    commit_log = open_table(outside(world)).commit_log
    for slot in commit_log.between(0, commit_log.head()):
        if slot.kind is SlotKind.COMMIT:
            recorded = decode_commit(slot.body).extra_metadata.get(OPERATION_KEY)
            if recorded == operation:
                return slot.requested_time
    raise LookupError(operation)


def goes_back(name: str, world: SimulatedSystem, what: Callable[[TableContext], object]) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, open_table)
        try:
            what(context)
        except HoodooError as error:
            ports.events.emit("sim.refused", who=name, why=str(error))

    return Actor(name=name, body=body)


def restoring(table_type: TableType) -> tuple[SimulatedSystem, Sequence[Actor]]:
    world = grown(table_type)
    target = time_of(world, "old1")
    return world, [goes_back("R", world, lambda context: restore(context, target))]


def rolling_back(table_type: TableType) -> tuple[SimulatedSystem, Sequence[Actor]]:
    world = grown(table_type)
    newest, between = time_of(world, "old2"), open_table(outside(world))
    rollback_write(between, between.active().pending[0].requested_time)
    return world, [goes_back("R", world, lambda context: rollback_write(context, newest))]


def saving(table_type: TableType) -> tuple[SimulatedSystem, Sequence[Actor]]:
    world = grown(table_type)
    target = time_of(world, "old1")
    return world, [goes_back("R", world, lambda context: savepoint(context, target))]


def keeping(table_type: TableType) -> tuple[SimulatedSystem, Sequence[Actor]]:
    """A savepoint, deleted and made again."""
    world = grown(table_type)
    target = time_of(world, "old1")

    def what(context: TableContext) -> None:
        savepoint(context, target)
        delete_savepoint(context, target)
        savepoint(context, target)

    return world, [goes_back("R", world, what)]


def rows_of_log(world: SimulatedSystem) -> dict[str, str]:
    """Record key to operation, folded from the slots."""
    commit_log = open_table(outside(world, "folder")).commit_log
    states: dict[str, dict[str, str]] = {}
    now: dict[str, str] = {}
    before: dict[str, dict[str, str]] = {}
    for slot in commit_log.between(0, commit_log.head()):
        if slot.kind is SlotKind.COMMIT:
            operation = decode_commit(slot.body).extra_metadata[OPERATION_KEY]
            before[slot.requested_time] = now
            now = now | dict.fromkeys(JOBS[operation], operation)
            states[slot.requested_time] = now
        elif slot.kind is SlotKind.RESTORE:
            undoes = slot.action is Action.ROLLBACK
            now = (before if undoes else states)[slot.requested_time]
    return now


def expect_whole(world: SimulatedSystem, why: str, story: str) -> None:
    """A survivor writes and cleans; then the table equals the commit log exactly."""

    def body(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        ports.clock.sleep_ms(2 * TOLERATED_MS)
        do_write(ports, context, Job(operation="final", keys=JOBS["final"]))
        for _ in range(2):
            clean(context, CLEANING)
            ports.clock.sleep_ms(TOLERATED_MS + 1)

    healing = run(world, [Actor(name="survivor", body=body)])
    assert healing.failure is None, f"{why}: {healing.failure}\n{story}\n{healing.story()}"
    assert rows_now(world) == rows_of_log(world), f"{why}\n{story}"
    context = open_table(outside(world, "auditor"))
    active = context.active()
    assert active.pending == (), f"{why}\n{story}"
    last = context.commit_log.read(context.commit_log.head())
    assert last is None or is_applied(last, active), why
    named = {
        stat.path
        for instant in active.completed_writes
        for stats in context.commits.read(instant).partition_to_write_stats.values()
        for stat in stats
    }
    data = {path for path in world.files if "/" in path and not path.startswith(".hoodie")}
    strange = {path for path in data if not path.endswith(".hoodie_partition_metadata")} - named
    assert strange == set(), f"{why}\n{story}"
    assert world.paths_below(MARKERS) + world.paths_below(HEARTBEATS) == [], why
    for kept in savepoints(context):
        assert set(kept.files) <= world.files.keys(), why


COW, MOR = TYPES
RARE = pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "table_type"),
    [
        (restoring, COW),
        (rolling_back, MOR),
        (saving, COW),
        pytest.param(keeping, COW, marks=RARE),
        pytest.param(restoring, MOR, marks=RARE),
        pytest.param(rolling_back, COW, marks=RARE),
        pytest.param(keeping, MOR, marks=RARE),
    ],
)
def test_restore_and_rollback_killed_at_every_call(
    make: Callable[[TableType], tuple[SimulatedSystem, Sequence[Actor]]], table_type: TableType
) -> None:
    cases = list(crash_points(partial(make, table_type), "R"))
    assert len(cases) >= 15
    refused = [fields for _, _, name, fields in cases[0].world.events if name == "sim.refused"]
    assert refused == []
    for case in cases:
        expect_whole(case.world, f"call {case.call} {case.fault}", case.trace.story())


def restoring_beside_java() -> tuple[SimulatedSystem, Sequence[Actor]]:
    world = grown(COW)
    target = time_of(world, "old1")

    def what(context: TableContext) -> None:
        limits = replace(context.limits, foreign_writers=ForeignWriters.EXPECTED)
        restore(replace(context, limits=limits), target)

    return world, [goes_back("R", world, what)]


def test_other_engines_see_a_restore_from_before_its_slot_until_its_end() -> None:
    """Java begins nothing while one is pending; its log files would have no base file."""
    for case in crash_points(restoring_beside_java, "R"):
        context = open_table(outside(case.world, "heir"))
        last = context.commit_log.read(context.commit_log.head())
        if last is not None and last.kind is SlotKind.RESTORE:
            shown = [one.action for one in context.active().instants]
            assert Action.RESTORE in shown, f"call {case.call}\n{case.trace.story()}"
        case.world.now_ms += 10 * INTERVAL_MS
        finish_restore(context)
        expect_whole(case.world, f"call {case.call} {case.fault}", case.trace.story())


def taking_over(*, vanished: bool) -> tuple[SimulatedSystem, Sequence[Actor]]:
    """Java planned the rollback of the dead write and died, maybe with the write off the timeline."""
    world = grown(COW)
    storage = outside(world, "java").storage
    [dead] = open_table(outside(world)).active().pending
    time = dead.requested_time
    plan = RollbackPlan(instant_to_rollback=InstantInfo(requested_time=time, action="commit"))
    left = f"{int(time) + 8}"
    storage.create(timeline_path(f"{left}.rollback.requested"), encode_rollback_plan(plan))
    if vanished:
        for name in pending_file_names(dead.action, time):
            storage.delete(timeline_path(name))
    world.now_ms += 10 * INTERVAL_MS
    return world, [goes_back("R", world, rollback_dead_writers)]


@pytest.mark.parametrize("vanished", [False, pytest.param(True, marks=RARE)])
def test_a_rollback_that_java_abandoned_ends_once_after_any_death(vanished: bool) -> None:
    for case in crash_points(partial(taking_over, vanished=vanished), "R"):
        expect_whole(case.world, f"call {case.call} {case.fault}", case.trace.story())
        shown = [one.rpartition("/")[2] for one in case.world.files if ".rollback" in one]
        times = {name[:17] for name in shown}
        assert len(times) == 1, f"call {case.call}: {shown}"
        assert len(shown) == 3, f"call {case.call}: {shown}"


@RARE
def test_a_savepoint_is_restored_after_cleaning_and_any_death() -> None:
    for case in crash_points(partial(keeping, TableType.COPY_ON_WRITE), "R"):
        world = case.world
        jobs = [Job(operation="V", keys=JOBS["V"]) for _ in range(4)]
        context = open_table(outside(world, "survivor"))
        world.now_ms += 10 * INTERVAL_MS
        for job in jobs:
            do_write(None, context, job)  # type: ignore[arg-type]
            world.now_ms += 10 * INTERVAL_MS
            clean(context, CLEANING)
        kept = savepoints(context)
        if kept:
            assert restore(context, kept[0].requested_time) is not None
            assert rows_now(world) == {"a1": "old1", "b1": "seed", "c1": "old1"}


@pytest.mark.parametrize("table_type", TYPES)
def test_a_restore_during_writes_loses_only_restored_away_rows(table_type: TableType) -> None:
    """Forced, so that it takes the ground from under writers; one of them may die."""
    restored = 0
    for seed in range(200 if NIGHTLY else 10):
        world = grown(table_type)
        target = time_of(world, "old1")
        actors = [
            writer("W", [Job(operation="W", keys=JOBS["W"])]),
            writer("V", [Job(operation="V", keys=JOBS["V"])]),
            goes_back("R", world, lambda context, to=target: restore(context, to, force=True)),
        ]
        budgets = {Fault.CRASH_BEFORE: 1, Fault.AMBIGUOUS_APPLIED: 1, Fault.LEASE_LOST: 1}
        trace = run(world, actors, seed=seed, faults=Faults(budgets=budgets))
        assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
        restored += world.counters["restore.done"]
        expect_whole(world, f"seed {seed}", trace.story())
    assert restored >= 3
