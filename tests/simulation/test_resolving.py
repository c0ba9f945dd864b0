"""
An unknown outcome is decided for good by the first process that asks (UNK-3).

The writer's slot create is lost, applied unseen or late; the writer stops waiting. One
process asks and is killed at every call, another asks again, and the rows agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.simulation.engine_kit import (
    LIMITS,
    EngineObserver,
    Job,
    client_write,
    do_write,
    found_by,
    open_table,
    outside,
    play,
    ports_of,
    rows_now,
    seeded,
    undoer,
)
from tests.simulator.faults import Fault, PlannedFault, PlannedPolicy
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.script import Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError, OutcomeUnknownError
from timeline.rollback.resolve_unknown import Resolution, WriteOutcome, resolve

SLOT_CREATE = "create .hoodie/.hoodoo/slots/"
IMPATIENT = replace(LIMITS, unknown_ms_max=-1)
UNANSWERED = (
    Fault.AMBIGUOUS_APPLIED,
    Fault.AMBIGUOUS_LOST,
    Fault.AMBIGUOUS_LATE,
)


def impatient(unknown: list[str]) -> Actor:
    """A writer that gives up at the first answer it does not get."""

    def body(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports), IMPATIENT)
        answer = client_write(ports, context, Job(operation="A", keys=("a1", "a2")))
        if isinstance(answer, OutcomeUnknownError):
            unknown.append(str(answer.fields["requested_time"]))

    return Actor(name="A", body=body)


def asker(unknown: list[str], resolutions: list[Resolution], name: str, after: str) -> Actor:
    def body(ports: ActorPorts) -> None:
        if unknown:
            resolutions.append(resolve(open_table(ports_of(ports)), unknown[0]))

    return Actor(name=name, body=body, start_after=after)


def played(
    faults: Sequence[PlannedFault],
) -> tuple[SimulatedSystem, list[str], list[Resolution], Trace]:
    world = seeded("resolve")
    facts = EngineObserver(world)
    unknown: list[str] = []
    resolutions: list[Resolution] = []
    trace = run(
        world,
        [
            impatient(unknown),
            asker(unknown, resolutions, "R", "A"),
            asker(unknown, resolutions, "S", "R"),
        ],
        policy=PlannedPolicy(faults),
        check_step=facts.check_step,
        check_end=facts.check_end,
    )
    assert found_by(world, trace) == ""
    return world, unknown, resolutions, trace


def calls_of(trace: Trace, actor: str, piece: str = "") -> list[int]:
    own = (one for one in trace.steps if one.actor == actor)
    return [at for at, one in enumerate(own) if piece in f"{one.call} {one.path}"]


def unanswered(fault: Fault) -> PlannedFault:
    """Strikes the writer's slot create."""
    _, _, _, plain = played([])
    return PlannedFault(actor="A", call=calls_of(plain, "A", SLOT_CREATE)[0], fault=fault)


@pytest.mark.spec("UNK-3")
@pytest.mark.parametrize("fault", UNANSWERED)
def test_resolve_decides_and_the_rows_agree(fault: Fault) -> None:
    lost = unanswered(fault)
    _, unknown, resolutions, whole = played([lost])
    assert unknown
    assert len(resolutions) == 2
    deaths = [
        [lost, PlannedFault(actor="R", call=call, fault=Fault.CRASH_BEFORE)]
        for call in calls_of(whole, "R")
    ]
    assert len(deaths) > 4
    for faults in ([lost], *deaths):
        world, _, resolutions, _ = played(faults)
        assert resolutions, f"nobody answered: {faults}"
        # Healing wrote a1 again; a2 is the unanswered write's alone.
        expected = WriteOutcome.PUBLISHED if "a2" in rows_now(world) else WriteOutcome.NOT_PUBLISHED
        assert {one.outcome for one in resolutions} == {expected}, f"{faults}"
        again = resolve(open_table(outside(world)), unknown[0])
        assert again.outcome is expected


def test_a_running_write_is_not_resolved() -> None:
    world = seeded("resolve-running")
    found: list[Resolution] = []

    def body(ports: ActorPorts) -> None:
        context: TableContext = open_table(ports_of(ports))
        pending = [one for one in context.active().instants if not one.completed]
        found.extend(resolve(context, one.requested_time) for one in pending)

    def write(ports: ActorPorts) -> None:
        do_write(ports, open_table(ports_of(ports)), Job(operation="A", keys=("a2",)))

    actors = [Actor(name="A", body=write), Actor(name="R", body=body)]
    trace = play(world, actors, [Until("A", SLOT_CREATE), UntilEnd("R"), UntilEnd("A")])
    assert found_by(world, trace) == ""
    assert [one.outcome for one in found] == [WriteOutcome.RUNNING]
    assert "a2" in rows_now(world)


@pytest.mark.spec("UNK-3")
def test_a_write_that_another_process_rolls_back_meanwhile_has_a_trace() -> None:
    """Asked between the reads of the slots and of the timeline, which the write just left."""
    world = seeded("resolve-beside")

    def write(ports: ActorPorts) -> None:
        do_write(ports, open_table(ports_of(ports)), Job(operation="A", keys=("a2",)))

    play(world, [Actor(name="A", body=write)], [Until("A", SLOT_CREATE, Fault.CRASH_BEFORE)])
    world.now_ms += 10 * LIMITS.heartbeat.tolerated_ms
    (dead,) = (one for one in open_table(outside(world)).active().instants if not one.completed)
    found: list[Resolution] = []

    def body(ports: ActorPorts) -> None:
        found.append(resolve(open_table(ports_of(ports)), dead.requested_time))

    stages = [
        Until("R", "names .hoodie/timeline"),
        Until("S", "delete .hoodie/.heartbeat"),
        Until("R", "read .hoodie/.hoodoo/slots"),
        UntilEnd("S"),
        UntilEnd("R"),
    ]
    trace = play(world, [Actor(name="R", body=body), undoer(name="S")], stages)
    assert found_by(world, trace) == ""
    assert [one.outcome for one in found] == [WriteOutcome.NOT_PUBLISHED]


def test_a_write_without_a_trace_is_refused() -> None:
    with pytest.raises(HoodooError, match="no trace of this write"):
        resolve(open_table(outside(seeded("resolve-none"))), "20200101000000000")
