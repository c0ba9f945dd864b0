"""
Plans and savepoints with other engines: only their owner creates their files (FOR-9).

A planner of ours is stopped or dies between its slot and the plan's file, its lease ends, and
another engine plans for the same file groups. Java Hudi fails on two pending compactions of one
file group. Java Hudi deletes a savepoint without a slot, and it must not exist again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tableservices.cleaning.execute import clean
from tableservices.planned_service import Phase, run_round
from tableservices.restoring.savepoints import savepoint
from tableservices.service import pending_plans
from tests.simulation.engine_kit import (
    CLEANING,
    TOLERATED_MS,
    Job,
    MakeContext,
    do_write,
    open_table,
    outside,
    patiently,
    ports_of,
    rows_now,
    seeded,
)
from tests.simulation.test_compaction import SERVICE, execute, logged
from tests.simulation.test_second_refresh import (
    HELD,
    LOOK,
    NIGHTLY,
    SHOW,
    SLOT,
    SparingPolicy,
    alone,
    foreign,
    kinds,
    shared,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Script, ScriptStage, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.commit.section import apply_pending_slots
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.file_names import TIMELINE
from timeline.model.slot import SlotKind
from timeline.pending_plans import pending_compactions
from timeline.rollback.resolve_unknown import WriteOutcome, resolve

PLAN, CANCEL, COMMIT = SlotKind.PLAN, SlotKind.CANCEL, SlotKind.COMMIT
SAVEPOINT, UNSAVEPOINT = SlotKind.SAVEPOINT, SlotKind.UNSAVEPOINT
FAULTS = pytest.mark.parametrize("fault", [(), (Fault.CRASH_BEFORE,)], ids=["stopped", "died"])
STOPS = pytest.mark.parametrize(
    "calls",
    [(SLOT, LOOK), (SLOT, LOOK, HELD)],
    ids=["before the second look", "before the lock's second proof"],
)


def acting(name: str, make: MakeContext, act: Callable[[TableContext], object]) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make)
        try:
            act(context)
        except HoodooError as error:
            ports.events.emit("sim.failed", why=str(error))

    return Actor(name=name, body=body)


def plan(context: TableContext) -> None:
    run_round(context, SERVICE, Phase.SCHEDULE, now=True)


def play(world: SimulatedSystem, actors: Sequence[Actor], stages: Sequence[ScriptStage]) -> None:
    script = Script(stages)
    trace = run(world, actors, faults=Faults(time_jump_ms=10), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()


def cut_short(calls: Sequence[str], fault: Sequence[Fault]) -> list[ScriptStage]:
    """A is stopped before the last of these calls or dies there, and its lease ends."""
    return [*stopped(calls, fault), Fault.LEASE_LOST]


def stopped(calls: Sequence[str], fault: Sequence[Fault]) -> list[ScriptStage]:
    *way, last = calls
    return [*(Until("A", one) for one in way), Until("A", last, *fault)]


def planned_twice(
    calls: Sequence[str], fault: Sequence[Fault], ours: MakeContext = shared
) -> SimulatedSystem:
    """J plans while A is between its plan's slot and file; then another process writes."""
    world = logged("planned-twice")
    actors = [acting("A", ours, plan), acting("J", foreign, plan)]
    play(world, actors, [*cut_short(calls, fault), UntilEnd("J")])
    write_later(world)
    return world


def write_later(world: SimulatedSystem, make: MakeContext = shared) -> TableContext:
    world.now_ms += 4 * TOLERATED_MS
    ports = make_ports(world, world.new_actor("survivor", seed=0))
    context = make(ports_of(ports))
    do_write(ports, context, Job(operation="S", keys=("b9",)))
    return context


def planned_for(world: SimulatedSystem) -> list[int]:
    """How many pending compactions each planned file group has."""
    context = shared(outside(world))
    return [len(times) for times in pending_compactions(context, context.active()).values()]


@pytest.mark.spec("FOR-9")
@FAULTS
@STOPS
def test_a_file_group_has_one_pending_compaction(
    calls: Sequence[str], fault: Sequence[Fault]
) -> None:
    world = planned_twice(calls, fault)
    assert planned_for(world) == [1, 1]
    assert kinds(world)[-3:] == [PLAN, CANCEL, COMMIT]
    execute(shared(outside(world)))
    assert rows_now(world) == {"a1": "old", "a2": "seed", "b1": "old", "b9": "S"}
    assert shared(outside(world)).active().pending == ()


def test_mutant_whose_plan_slot_has_no_timeline_digest_is_found() -> None:
    assert planned_for(planned_twice((SLOT, LOOK), (), ours=alone)) != [1, 1]


@FAULTS
@pytest.mark.parametrize("calls", [(SLOT, LOOK), (SLOT, LOOK, HELD, SHOW)])
def test_a_plan_without_its_file_is_made_again(
    calls: Sequence[str], fault: Sequence[Fault]
) -> None:
    """Its owner notices that the lock is gone, or the next round plans."""
    world = logged("planned-again")
    lost = [] if fault else [Fault.LEASE_LOST, UntilEnd("A")]
    play(world, [acting("A", shared, plan)], [*stopped(calls, fault), *lost])
    if fault:
        later = write_later(world)
        assert (pending_plans(later.active()), kinds(world)[-2:]) == ((), [CANCEL, COMMIT])
        plan(later)
    assert planned_for(world) == [1, 1]
    execute(shared(outside(world)))
    assert shared(outside(world)).active().pending == ()


def test_a_plan_file_that_arrives_late_is_deleted() -> None:
    """The request was on its way when others ended the slot; the owner plans nothing more."""
    world = logged("planned-too-late")
    stages = [*cut_short((SLOT, LOOK, HELD, SHOW), ()), UntilEnd("J"), UntilEnd("B"), UntilEnd("A")]
    wakes = acting("B", shared, lambda context: apply_pending_slots(context, "settle"))
    play(world, [acting("A", shared, plan), acting("J", foreign, plan), wakes], stages)
    assert kinds(world)[-2:] == [PLAN, CANCEL]
    assert planned_for(world) == [1, 1]


def test_a_plan_file_created_while_the_lock_was_lost_is_kept() -> None:
    """The file exists when its owner checks its lock: the next commit section decides."""
    world = logged("planned-late")
    stages = [Until("A", SLOT), Until("A", LOOK), Until("A", SHOW), Until("A", HELD)]
    play(world, [acting("A", shared, plan)], [*stages, Fault.LEASE_LOST, UntilEnd("A")])
    assert kinds(world)[-2:] == [PLAN, SlotKind.NOOP]
    assert planned_for(world) == [1, 1]


@pytest.mark.parametrize("later", [open_table, shared], ids=["ours", "a slot from before"])
def test_a_plan_without_a_timeline_digest_is_applied_by_any_process(
    later: MakeContext,
) -> None:
    world = logged("planned-for-all")
    died = stopped((SLOT, SHOW), (Fault.CRASH_BEFORE,))
    play(world, [acting("A", open_table, plan)], died)
    write_later(world, later)
    assert kinds(world)[-2:] == [PLAN, COMMIT]
    assert planned_for(world) == [1, 1]


@pytest.mark.spec("UNK-3")
def test_resolve_ends_a_plan_without_its_file() -> None:
    world = logged("planned-unknown")
    play(world, [acting("A", shared, plan)], stopped((SLOT, LOOK), (Fault.CRASH_BEFORE,)))
    world.now_ms += 4 * TOLERATED_MS
    context = shared(outside(world))
    slot = context.commit_log.newest_own_slot(context.commit_log.head())
    assert slot is not None
    resolution = resolve(context, slot.requested_time)
    assert (resolution.outcome, kinds(world)[-2:]) == (WriteOutcome.NOT_PUBLISHED, [PLAN, CANCEL])


def test_no_file_group_is_planned_twice_in_any_schedule() -> None:
    """Leases lost, pauses, deaths and lost answers, of ours only; J's are Java's own affair."""
    cancelled = 0
    for seed in range(200 if NIGHTLY else 30):
        world = logged("planned-swarm")
        budgets = {
            Fault.LEASE_LOST: 2,
            Fault.CRASH_BEFORE: seed % 2,
            Fault.AMBIGUOUS_APPLIED: 1,
            Fault.AMBIGUOUS_LOST: 1,
        }
        trace = run(
            world,
            [acting("A", shared, plan), acting("J", foreign, plan), acting("B", shared, plan)],
            seed=seed,
            faults=Faults(budgets=budgets, victims=frozenset({"A", "B"})),
            policy=SparingPolicy(seed, world),
        )
        assert trace.failure is None, f"seed {seed}\n{trace.story()}"
        plan(write_later(world))
        assert planned_for(world) == [1, 1], f"seed {seed}\n{trace.story()}"
        cancelled += CANCEL in kinds(world)
        execute(shared(outside(world)))
        assert shared(outside(world)).active().pending == (), f"seed {seed}"
    assert cancelled or not NIGHTLY


# ---------------------------------------------------------------- savepoints


def keep(context: TableContext) -> None:
    savepoint(context)


def saved(world: SimulatedSystem) -> list[str]:
    """The savepoints' files, without their times."""
    names = outside(world).storage.names(TIMELINE)
    return sorted(name.partition(".")[2] for name in names if ".savepoint" in name)


WHOLE = ["savepoint", "savepoint.inflight"]


@pytest.mark.spec("FOR-9")
@pytest.mark.parametrize(
    "calls",
    [(SLOT, LOOK), (SLOT, LOOK, HELD, SHOW), (SLOT, LOOK, HELD, SHOW, LOOK, HELD, SHOW)],
    ids=["before the second look", "before its first file", "before its second file"],
)
def test_a_savepoint_whose_owner_died_does_not_count(calls: Sequence[str]) -> None:
    world = seeded("savepoint-died", ("a1",))
    play(world, [acting("A", shared, keep)], stopped(calls, (Fault.CRASH_BEFORE,)))
    world.now_ms += 4 * TOLERATED_MS
    context = shared(outside(world))
    slot = context.commit_log.newest_own_slot(context.commit_log.head())
    assert slot is not None
    assert slot.kind is SAVEPOINT
    resolution = resolve(context, slot.requested_time)
    assert resolution.outcome is WriteOutcome.PUBLISHED  # the write of that time
    assert resolution.why.endswith("; it has no savepoint")
    assert (saved(world), kinds(world)[-2:]) == ([], [SAVEPOINT, UNSAVEPOINT])
    keep(context)
    assert saved(world) == WHOLE
    resolution = resolve(context, slot.requested_time)
    assert resolution.why.endswith("; it has a savepoint")


@STOPS
def test_a_savepoint_whose_owner_lost_the_lock_is_made_again(calls: Sequence[str]) -> None:
    world = seeded("savepoint-again", ("a1",))
    play(world, [acting("A", shared, keep)], [*cut_short(calls, ()), UntilEnd("A")])
    assert kinds(world)[-3:] == [SAVEPOINT, UNSAVEPOINT, SAVEPOINT]
    assert saved(world) == WHOLE


def test_a_savepoint_does_not_appear_when_its_files_were_cleaned_meanwhile() -> None:
    """Another engine's clean takes files that the savepoint lists; its owner wakes up after that."""
    world = seeded("savepoint-cleaned", ("a1",))
    context = shared(outside(world))
    kept = context.active().newest_completed_write
    assert kept is not None

    def keep_first(context: TableContext) -> None:
        savepoint(context, kept.requested_time)

    for number in range(3):
        ports = make_ports(world, world.new_actor(f"W{number}", seed=0))
        do_write(ports, shared(ports_of(ports)), Job(operation=f"W{number}", keys=("a1",)))
    cleaner = acting("J", foreign, lambda context: clean(context, CLEANING))
    stages = [*cut_short((SLOT, LOOK), ()), UntilEnd("J"), UntilEnd("A")]
    play(world, [acting("A", shared, keep_first), cleaner], stages)
    assert ("clean" in str(shared(outside(world)).active().instants), saved(world)) == (True, [])
