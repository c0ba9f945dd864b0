"""
Non-blocking writers in one bucket, with concurrent services (NBCC-1 to NBCC-5).

This module computes the expected rows from the slots alone, without the reader: of the logs on top
of the newest plan or base file, the one with the greatest requested time counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from filegroups.writing.write import write
from tableservices.cleaning.execute import clean
from tableservices.compaction.execute import CompactionService, execute_compaction
from tableservices.compaction.plan import CompactionSettings
from tableservices.logcompaction.execute import LogCompactionService, LogCompactionSettings
from tableservices.planned_service import run_round
from tableservices.service import pending_plans
from tests.simulation.engine_kit import (
    CLEANING,
    FILES,
    LIMITS,
    RETAINED,
    TOLERATED_MS,
    EngineObserver,
    Job,
    new_world,
    outside,
    patiently,
    plan_for,
    ports_of,
    rows_of,
)
from tests.simulation.remembered_workload import RememberedWorkload
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.codecs.commit_log import decode_slot
from timeline.codecs.instant_avro import decode_commit
from timeline.commit_log import CommitLog
from timeline.context import TableContext
from timeline.errors import ConflictError, HoodooError, OutcomeUnknownError
from timeline.model.commit_metadata import ConcurrencyMode, TableType
from timeline.model.file_names import HEARTBEATS, MARKERS, SLOTS
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import CommitLockMode

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
FREE = replace(LIMITS, mode=ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL)
ONE = BucketRules(buckets=1, hash_fields=("id",))
COMPACTION = CompactionService(settings=CompactionSettings(), files=FILES)
OF_LOGS = LogCompactionService(settings=LogCompactionSettings(blocks_min=2), files=FILES)

Open = Callable[[EngineWorld], TableContext]


def open_free(world: EngineWorld) -> TableContext:
    return TableContext.of(world, load_config(world.storage), FREE)


def open_lock_free(world: EngineWorld) -> TableContext:
    """Nothing but the slots decides."""
    limits = replace(FREE, publish_lock=CommitLockMode.NONE)
    return TableContext.of(world, load_config(world.storage), limits)


def empty(scenario: str) -> SimulatedSystem:
    return new_world(scenario, table_type=TableType.MERGE_ON_READ)


def append(context: TableContext, job: Job) -> int:
    """Write rows of a job into the one bucket of their partition; how often it was refused."""
    plan = plan_for(job.operation, job.kind)
    plan = replace(plan, rules=replace(plan.rules, buckets=ONE))
    rows = rows_of(job.operation, job.keys)
    return len(write(context, plan, RememberedWorkload(context.ports, rows)).refusals)


def appender(name: str, *jobs: Job, make_context: Open = open_free) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make_context)
        for job in jobs:
            if job.pause_ms:
                ports.clock.sleep_ms(job.pause_ms)
            ports.client.invoke(job.operation, job.keys)
            try:
                refused = append(context, job)
            except OutcomeUnknownError:
                ports.client.info(job.operation)
            except HoodooError as error:
                if isinstance(error, ConflictError):
                    ports.events.emit("sim.refused", why=str(error))
                ports.client.fail(job.operation)
            else:
                if refused:
                    ports.events.emit("sim.redone", operation=job.operation)
                ports.client.ok(job.operation)

    return Actor(name=name, body=body)


def service(
    name: str,
    act: Callable[[TableContext], object],
    *,
    make_context: Open = open_lock_free,
    clock_offset_ms: int = 0,
) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make_context)
        for _ in range(3):
            try:
                act(context)
            except HoodooError as error:
                ports.events.emit("sim.service_failed", why=str(error))
            ports.clock.sleep_ms(15)

    return Actor(name=name, body=body, clock_offset_ms=clock_offset_ms)


def compact(context: TableContext) -> None:
    run_round(context, COMPACTION, now=True)


def compact_logs(context: TableContext) -> None:
    run_round(context, OF_LOGS, now=True)


def compact_unclaimed(context: TableContext) -> None:
    """Plan and execute; treats any other executor as dead (HB-4)."""
    for one in pending_plans(context.active()):
        if one.action is Action.COMPACTION:
            context.ports.storage.delete(f".hoodie/.heartbeat/{one.requested_time}")
            execute_compaction(context, one, FILES)
    compact(context)


# ---------------------------------------------------------------- expected rows


def slots_of(world: SimulatedSystem) -> list[Slot]:
    paths = sorted(path for path in world.files if path.startswith(f"{SLOTS}/"))
    return [
        decode_slot(world.files[path].data, path=path, number=int(path.rpartition("/")[2]))
        for path in paths
    ]


def operation_of(slot: Slot) -> str | None:
    """The client's operation that a slot committed."""
    if slot.kind is not SlotKind.COMMIT or slot.action is not Action.DELTACOMMIT:
        return None
    metadata = decode_commit(slot.body, path=f"slot {slot.number}")
    return metadata.extra_metadata.get(OPERATION_KEY)


def by_requested_time(slot: Slot) -> str:
    return slot.requested_time


def by_completion_time(slot: Slot) -> str:
    return slot.completion_time


def defined_rows(
    world: SimulatedSystem, jobs: Sequence[Job], order: Callable[[Slot], str] = by_requested_time
) -> dict[str, str]:
    """Record key to operation: NBCC-3 by plans, NBCC-2 among the logs between two of them."""
    named = {job.operation: job for job in jobs}
    slots = slots_of(world)
    plans = [
        slot.requested_time
        for slot in slots
        if slot.kind is SlotKind.PLAN and slot.action is Action.COMPACTION
    ]
    appended = [
        (sum(plan <= slot.completion_time for plan in plans), order(slot), named[operation])
        for slot in slots
        if (operation := operation_of(slot)) is not None
    ]
    rows: dict[str, str] = {}
    for _, _, job in sorted(appended, key=lambda one: one[:2]):
        rows.update(dict.fromkeys(job.keys, job.operation))
    return rows


def read_rows(world: SimulatedSystem) -> dict[str, str]:
    rows = TableReader(open_free(outside(world))).to_arrow(columns=["id", "operation"]).to_pylist()
    found = {row["id"]: row["operation"] for row in rows}
    assert len(found) == len(rows), f"a key has two rows: {sorted(row['id'] for row in rows)}"
    return found


def expect_defined(world: SimulatedSystem, trace: Trace, jobs: Sequence[Job], why: str) -> None:
    """
    The rows are the expected ones now, and after a survivor has tidied up; no write was rejected.
    """
    assert trace.failure is None, f"{why}: {trace.failure}\n{trace.story()}"
    events = [(name, fields) for _, _, name, fields in world.events]
    assert not [one for one in events if one[0] in ("sim.redone", "sim.refused")], why
    answered = {one.operation for one in world.history if one.kind.value == "ok"}
    assert answered <= {operation_of(slot) for slot in slots_of(world)}, why
    assert read_rows(world) == defined_rows(world, jobs), f"{why}\n{trace.story()}"
    last = Job(operation="zz-last", keys=("a9",))

    def body(ports: ActorPorts) -> None:
        context = open_free(ports_of(ports))
        ports.clock.sleep_ms(2 * TOLERATED_MS)
        append(context, last)
        for _ in range(2):
            compact_logs(context)
            compact(context)
            clean(context, CLEANING)
            ports.clock.sleep_ms(TOLERATED_MS + 1)

    facts = EngineObserver(world, commits_retained=RETAINED)
    healing = run(world, [Actor(name="survivor", body=body)], check_step=facts.check_step)
    assert healing.failure is None, f"{why}: {healing.failure}\n{trace.story()}"
    assert read_rows(world) == defined_rows(world, [*jobs, last]), f"{why}\n{trace.story()}"
    assert not TableReader(open_free(outside(world))).context.active().pending, why
    left = [*world.paths_below(MARKERS), *world.paths_below(HEARTBEATS)]
    assert not left, f"{why}: {left}"


# ---------------------------------------------------------------- actors

#: Every writer changes the same key, and one of its own; all begin in an empty bucket.
JOBS = (
    Job(operation="wa-1", keys=("a1", "a2")),
    Job(operation="wa-2", keys=("a1",)),
    Job(operation="wb-1", keys=("a1", "a3")),
    Job(operation="wb-2", keys=("a1", "a2")),
    Job(operation="wc-1", keys=("a1", "a4")),
)


def writers() -> list[Actor]:
    return [
        appender("A", *JOBS[:2], make_context=open_lock_free),
        appender("B", *JOBS[2:4], make_context=open_lock_free),
        appender("C", JOBS[4], make_context=open_lock_free),
    ]


@pytest.mark.spec("NBCC-1")
@pytest.mark.parametrize("victim", ["A", pytest.param("S", marks=pytest.mark.slow)])
def test_death_at_every_call(victim: str) -> None:
    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        world = empty("free-crash")
        run(world, [appender("founder", Job(operation="old", keys=("a1",)))])
        return world, [
            service("S", compact),
            appender("A", *JOBS[:2]),
            appender("B", *JOBS[2:4]),
        ]

    cases = list(crash_points(make, victim))
    assert len(cases) >= 30
    for case in cases:
        jobs = [Job(operation="old", keys=("a1",)), *JOBS]
        expect_defined(case.world, case.trace, jobs, f"call {case.call} {case.fault}")


@pytest.mark.spec("NBCC-2")
@pytest.mark.spec("NBCC-3")
def test_three_writers_and_a_compactor_in_any_order() -> None:
    """With a death and a late answer somewhere; some schedules must really overlap."""
    overlapped = compacted = 0
    for seed in range(400 if NIGHTLY else 25):
        world = empty("free-writers")
        facts = EngineObserver(world, commits_retained=RETAINED)
        faults = Faults(budgets={Fault.AMBIGUOUS_LATE: 1, Fault.CRASH_BEFORE: seed % 2})
        trace = run(
            world,
            [*writers(), service("S", compact)],
            seed=seed,
            faults=faults,
            check_step=facts.check_step,
        )
        overlapped += defined_rows(world, JOBS) != defined_rows(world, JOBS, by_completion_time)
        compacted += world.counters["service.done"]
        expect_defined(world, trace, JOBS, f"seed {seed}")
    assert overlapped  # the order of completion, the likely mistake, would have shown
    assert compacted


def test_both_kinds_of_compaction_concurrent_with_writers() -> None:
    """NBCC-5: a log compaction never covers a log between those it merges."""
    for seed in range(400 if NIGHTLY else 15):
        world = empty("free-services")
        facts = EngineObserver(world, commits_retained=RETAINED)
        actors = [*writers(), service("L", compact_logs), service("D", compact_unclaimed)]
        faults = Faults(budgets={Fault.CRASH_BEFORE: seed % 2}, victims=frozenset({"L", "D"}))
        trace = run(world, actors, seed=seed, faults=faults, check_step=facts.check_step)
        expect_defined(world, trace, JOBS, f"seed {seed}")


# ---------------------------------------------------------------- mutants


class UnslottedPlans(CommitLog):
    """Plans as Java does: the requested file decides, and no slot exists for it (PLAN-1)."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        return slot.kind is SlotKind.PLAN or super().take(slot, **looks)


def open_with_unslotted_plans(world: EngineWorld) -> TableContext:
    context = open_lock_free(world)
    return replace(context, commit_log=UnslottedPlans(world, context.table_id))


@pytest.mark.spec("PLAN-1")
def test_mutant_plans_without_slots_lose_rows() -> None:
    """A log completes below a plan that it is not in, and the base file hides it (hole 24)."""
    for seed in range(300):
        world = empty("free-mutant")
        planner = service("S", compact, make_context=open_with_unslotted_plans, clock_offset_ms=40)
        actors = [*writers(), planner]
        trace = run(world, actors, seed=seed)
        keys = {key for job in JOBS for key in job.keys}
        if trace.failure is not None or read_rows(world).keys() != keys:
            return
    raise AssertionError("the mutant lived")
