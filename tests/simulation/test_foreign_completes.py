"""
RB-12, FOR-4: another engine, which reads no slots, completes an instant that ours ended or ran.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from filegroups.writing.write_request import CommitResult
from tableservices.planned_service import Phase, run_round
from tableservices.service import pending_plans
from tests.simulation import test_compaction as compactions
from tests.simulation.engine_kit import (
    TOLERATED_MS,
    Job,
    do_write,
    open_table,
    outside,
    ports_of,
    rows_now,
    seeded,
    writer,
)
from tests.simulation.test_second_refresh import LOOK, SLOT, foreign, shared, survive
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, Script, ScriptStage, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.codecs.instant_avro import encode_restore, encode_rollback_plan
from timeline.commit import commit as publish
from timeline.commit.apply import data_files_of
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.heartbeat import Heartbeat
from timeline.model.file_names import TIMELINE, timeline_path
from timeline.model.instant import Instant
from timeline.model.plans import InstantInfo, RestoreMetadata, RollbackPlan
from timeline.ports.ports import Ports as EngineWorld
from timeline.ports.ports import Storage
from timeline.rollback.rollback import rollback_dead_writers

FAULTS = pytest.mark.parametrize("fault", [(), (Fault.CRASH_BEFORE,)], ids=["stopped", "died"])


def play(world: SimulatedSystem, actors: list[Actor], *stages: ScriptStage) -> None:
    script = Script(stages)
    trace = run(world, actors, faults=Faults(time_jump_ms=TOLERATED_MS), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()


def java_compacts(ports: ActorPorts) -> None:
    compactions.execute_unclaimed(foreign(ports_of(ports)))


def write_later(world: SimulatedSystem) -> None:
    world.now_ms += 4 * TOLERATED_MS
    ports = make_ports(world, world.new_actor("survivor", seed=0))
    do_write(ports, shared(ports_of(ports)), Job(operation="S", keys=("b9",)))


@pytest.mark.spec("RB-12")
@FAULTS
@pytest.mark.parametrize(
    "call", ["create .hoodie/timeline/", "delete "], ids=["before the plan", "before the deletes"]
)
def test_a_rolled_back_write_that_java_completed_is_not_deleted(
    fault: tuple[Fault, ...], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Java's: a late beat revives it, and it asks for no rollback that is planned.
    monkeypatch.setattr(Heartbeat, "fenced", lambda _: False)
    monkeypatch.setattr(publish, "pending_rollback_of", lambda *_: None)
    world, answers = seeded("woke", ("a1",)), {}

    def undo(ports: ActorPorts) -> None:
        try:
            rollback_dead_writers(shared(ports_of(ports)))
        except HoodooError as error:
            ports.events.emit("sim.failed", why=str(error))

    job = Job(operation="J", keys=("a1", "a3"))
    play(
        world,
        [
            writer("J", [job], make_context=foreign, answers=answers),
            Actor(name="R", body=undo),
        ],
        Until("J", "acquire"),
        Pause(3),
        Until("R", SLOT),
        Until("R", call, *fault),
        Fault.LEASE_LOST,
        UntilEnd("J"),
    )
    survive(world)
    assert isinstance(answers["J"], CommitResult)
    assert rows_now(world)["a3"] == "J"


@pytest.mark.spec("RB-12")
@FAULTS
def test_a_plan_that_was_completed_and_cancelled_at_once_keeps_its_files(
    fault: tuple[Fault, ...],
) -> None:
    world = compactions.planned("cancelled")

    def call_off(ports: ActorPorts) -> None:
        context = shared(ports_of(ports))
        for one in pending_plans(context.active()):
            cancel_pending_plan(context, one)

    play(
        world,
        [Actor(name="J", body=java_compacts), Actor(name="R", body=call_off)],
        Until("J", "acquire"),
        Until("R", SLOT),
        Until("R", "delete ", *fault),
        Fault.LEASE_LOST,
        UntilEnd("J"),
    )
    write_later(world)
    assert rows_now(world) == {"a1": "old", "a2": "seed", "b1": "old", "b9": "S"}
    (done,) = (name for name in world.paths_below(".hoodie/timeline") if name.endswith(".commit"))
    time = done.rpartition("/")[2][:17]
    assert [name for name in world.paths_below("a") if time in name]


@pytest.mark.spec("RST-3")
@pytest.mark.parametrize("make", [open_table, shared], ids=["ours", "shared"])
def test_a_plan_that_java_restored_away_stays_restored_away(
    make: Callable[[EngineWorld], TableContext],
) -> None:
    """Its files are deleted, so no executor could finish it."""
    world = compactions.logged("restored")
    context = make(outside(world, "planner"))
    first, second = context.active().completed_writes
    run_round(context, compactions.SERVICE, Phase.SCHEDULE, now=True)
    [plan] = pending_plans(context.active())
    restore_as_java(context.ports.storage, first, (second, plan))
    world.now_ms += 5_000
    ports = make_ports(world, world.new_actor("later", seed=0))
    later = make(ports_of(ports))
    do_write(ports, later, Job(operation="S", keys=("b9",)))
    assert not pending_plans(later.active())


def restore_as_java(storage: Storage, kept: Instant, gone: tuple[Instant, ...]) -> None:
    """Delete all instants after one instant, with their files, and leave one restore."""
    names = [n for n in storage.names(TIMELINE) if n[:17] > kept.requested_time]
    times = tuple(one.requested_time for one in gone)
    for path in data_files_of(storage, *times):
        storage.delete(path)
    for name in names:
        storage.delete(timeline_path(name))
    time = int(max(times)) + 1_000
    done = RestoreMetadata(
        start_restore_time=str(time),
        instants_to_rollback=times,
        restore_instant_info=tuple(
            InstantInfo(requested_time=one.requested_time, action=one.action.value) for one in gone
        ),
    )
    for name, data in (
        (f"{time}.restore.requested", b""),
        (f"{time}.restore.inflight", b""),
        (f"{time}_{time + 8}.restore", encode_restore(done)),
    ):
        storage.create(timeline_path(name), data)


@pytest.mark.spec("PUB-6")
def test_a_plan_with_a_planned_rollback_is_not_completed() -> None:
    """Its files would be deleted when that rollback is carried out."""
    world = compactions.planned("planned")

    def ours(ports: ActorPorts) -> None:
        compactions.execute_unclaimed(shared(ports_of(ports)))

    def java_plans(ports: ActorPorts) -> None:
        context = foreign(ports_of(ports))
        [plan] = pending_plans(context.active())
        info = InstantInfo(requested_time=plan.requested_time, action="compaction")
        name = f"{int(plan.requested_time) + 40}.rollback.requested"
        data = encode_rollback_plan(RollbackPlan(instant_to_rollback=info))
        context.ports.storage.create(timeline_path(name), data)

    play(
        world,
        [Actor(name="C", body=ours), Actor(name="J", body=java_plans)],
        Until("C", "acquire"),
        UntilEnd("J"),
        UntilEnd("C"),
    )
    assert not [n for n in world.paths_below(".hoodie/timeline") if n.endswith(".commit")]


@pytest.mark.spec("FOR-4")
@FAULTS
def test_one_plan_that_both_engines_execute_has_one_end(fault: tuple[Fault, ...]) -> None:
    world = compactions.planned("both")

    def ours(ports: ActorPorts) -> None:
        compactions.execute_unclaimed(shared(ports_of(ports)))

    play(
        world,
        [Actor(name="J", body=java_compacts), Actor(name="C", body=ours)],
        Until("J", "acquire"),
        Until("C", SLOT),
        Until("C", LOOK, *fault),
        Fault.LEASE_LOST,
        UntilEnd("J"),
    )
    write_later(world)
    names = world.paths_below(".hoodie/timeline")
    assert len([name for name in names if name.endswith(".commit")]) == 1
