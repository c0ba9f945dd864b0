"""RST-4: a process that paused between slot and file restores nothing that others deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from filegroups.writing.write import write
from tableservices.cleaning.execute import clean
from tableservices.planned_service import Phase, run_round
from tableservices.restoring.savepoints import delete_savepoint, savepoint, savepoints
from tests.simulation.engine_kit import (
    CLEANING,
    Job,
    do_write,
    open_table,
    outside,
    plan_for,
    ports_of,
    rows_now,
    seeded,
)
from tests.simulation.test_clean_during_restore import restores, rolls_back
from tests.simulation.test_compaction import SERVICE, logged, serving
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Script, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.commit.section import apply_pending_slots
from timeline.context import TableContext
from timeline.model.commit_metadata import WriteOperation

pytestmark = pytest.mark.spec("RST-4")

SLOT = "create .hoodie/.hoodoo/slots/"
SHOWS = "create .hoodie/timeline/"


def asleep(world: SimulatedSystem, sleeper: Actor, meanwhile: Callable[[ActorPorts], None]) -> None:
    """``sleeper`` stops behind its slot, before the file that shows it, and loses the lock."""
    name = sleeper.name
    script = Script(
        [
            Until(name, SLOT),
            Until(name, SHOWS),
            Fault.LEASE_LOST,
            UntilEnd("X"),
            UntilEnd(name),
        ]
    )
    others = Actor(name="X", body=meanwhile)
    trace = run(world, [sleeper, others], faults=Faults(time_jump_ms=1_000), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()


@pytest.mark.parametrize("goes_back", [restores, rolls_back])
def test_a_restored_away_commit_stays_restored_away(
    goes_back: Callable[[TableContext], None],
) -> None:
    """With a delete of a partition hidden files would be shown, or cleaned for good."""
    world = seeded("sleeper", ("a1", "b1"))

    def deletes(context: TableContext) -> None:
        plan = plan_for("gone", WriteOperation.DELETE_PARTITION, delete_partitions=("a",))
        write(context, plan, None)

    def meanwhile(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        apply_pending_slots(context, "settle")
        goes_back(context)

    asleep(world, serving("D", deletes), meanwhile)
    found = [rows_now(world)]
    ports = make_ports(world, world.new_actor("later", seed=0))
    later = open_table(ports_of(ports))
    for _ in range(4):
        do_write(ports, later, Job(operation="later", keys=("b1",)))
        clean(later, CLEANING)
    found.append(rows_now(world))
    assert found == [{"a1": "seed", "b1": "seed"}, {"a1": "seed", "b1": "later"}]


def test_a_cancelled_plan_stays_cancelled() -> None:
    world = logged("sleeper")

    def meanwhile(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        do_write(ports, context, Job(operation="B", keys=("b1",)))  # applies the plan
        for one in context.active().pending:
            cancel_pending_plan(context, one)
        do_write(ports, context, Job(operation="C", keys=("b1",)))

    asleep(
        world, serving("P", lambda c: run_round(c, SERVICE, Phase.SCHEDULE, now=True)), meanwhile
    )
    assert not open_table(outside(world, "judge")).active().pending


def test_a_deleted_savepoint_stays_deleted() -> None:
    """Its files were cleaned: a restore to it would leave an empty table."""
    world = seeded("sleeper", ("a1", "b1"))

    def meanwhile(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        time = context.active().completed_writes[0].requested_time
        do_write(ports, context, Job(operation="B", keys=("b1",)))  # applies the savepoint
        delete_savepoint(context, time)
        for number in range(4):
            do_write(ports, context, Job(operation=f"later{number}", keys=("a1", "b1")))
        clean(context, CLEANING)

    asleep(world, serving("P", savepoint), meanwhile)
    assert savepoints(open_table(outside(world, "operator"))) == []
