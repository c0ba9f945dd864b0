"""Defects that the simulation found in the engine, each as the smallest play that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.engine_kit import (
    EngineObserver,
    Job,
    cleaner,
    client_write,
    found_by,
    heal,
    new_world,
    open_table,
    play,
    ports_of,
    rows_now,
    seeded,
    undoer,
    writer,
)
from tests.simulator.faults import Fault, Faults, PlannedFault, PlannedPolicy
from tests.simulator.ports import Actor, ActorPorts, SimLease, SimLock
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, Until, UntilEnd
from timeline.errors import (
    HoodooError,
    LeaseLostError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

SLOT = "create .hoodie/.hoodoo/slots/"
UNANSWERED = (Fault.AMBIGUOUS_APPLIED, Fault.AMBIGUOUS_LOST, Fault.AMBIGUOUS_LATE)


@pytest.mark.parametrize("call", [".marker.CREATE", ".hoodie_partition_metadata"])
@pytest.mark.parametrize("fault", UNANSWERED)
def test_unanswered_marker_or_partition_file_is_a_typed_error(call: str, fault: Fault) -> None:
    """The port's own exception reached the caller (seeds 0 and 4 of the first swarm)."""
    world = seeded("finding-1")
    answers: dict[str, object] = {}
    actor = writer("A", [Job(operation="A", keys=("c1",))], answers=answers)  # type: ignore[arg-type]
    trace = play(world, [actor], [Until("A", f"create {'c' if '_' in call else '.hoodie/.temp'}"),
                                  Until("A", call, fault), UntilEnd("A")])  # fmt: skip
    assert trace.failure is None
    assert isinstance(answers["A"], StorageUnavailableError)
    assert heal(world, EngineObserver(world)).failure is None


def test_rollback_that_died_before_its_completed_file_is_finished_by_the_next_writer() -> None:
    """
    Below the first write that was left it counted as archived, its pending files stayed (seed 1).

    The aborted instant was the first of the table, so nothing older is on the timeline.
    """
    world = new_world("finding-2")
    actors = [writer("A", [Job(operation="A", keys=("a1",))]), cleaner()]
    played = play(
        world,
        actors,
        [
            Until("A", "open_output a/", Fault.CRASH_BEFORE),
            Pause(300),
            Until("cleaner", "delete .hoodie/.heartbeat", Fault.CRASH_AFTER),
        ],
    )
    assert played.outcomes == {"A": "crashed", "cleaner": "crashed"}
    assert found_by(world, played) == ""


class _BrokenLease(SimLease):
    """A lock provider that loses its connection while the lock is given back."""

    def release(self) -> None:
        super().release()
        raise LeaseLostError("the lock service went away")


class _BrokenLock(SimLock):
    def acquire(self, purpose: str) -> SimLease:
        lease = super().acquire(purpose)
        return _BrokenLease(self._world, self._actor, self.identity, lease.fencing_token or 0)


def test_an_error_after_the_slot_deletes_no_committed_file() -> None:
    """The failed write deleted its data files although its slot existed, and reported "failed"."""
    world = seeded("finding-3")
    answers: list[object] = []

    def body(ports: ActorPorts) -> None:
        mine = replace(ports_of(ports), lock=_BrokenLock(world, ports.state))
        answers.append(client_write(ports, open_table(mine), Job(operation="A", keys=("a1",))))

    trace = run(world, [Actor(name="A", body=body)], policy=PlannedPolicy())
    assert trace.failure is None
    assert isinstance(answers[0], OutcomeUnknownError)
    assert rows_now(world)["a1"] == "A"
    assert heal(world, EngineObserver(world)).failure is None


def test_a_helper_that_cannot_apply_anothers_slot_raises_for_its_own_write() -> None:
    """It reported "published, do not repeat" about the other writer's instant, not its own."""
    world = seeded("finding-4")
    crashed = play(
        world,
        [writer("A", [Job(operation="A", keys=("a1",))])],
        [Until("A", SLOT, Fault.CRASH_AFTER)],
    )
    assert crashed.outcomes == {"A": "crashed"}
    answers: list[object] = []

    def body(ports: ActorPorts) -> None:
        answers.append(
            client_write(ports, open_table(ports_of(ports)), Job(operation="B", keys=("b1",)))
        )

    budget = Faults(time_jump_ms=4_000)
    trace = run(
        world,
        [Actor(name="B", body=body)],
        faults=budget,
        policy=_Unanswered("create .hoodie/timeline", ".commit"),
    )
    assert trace.failure is None
    (answer,) = answers
    assert isinstance(answer, StorageUnavailableError)
    assert [event.kind.value for event in world.history if event.operation == "B"] == [
        "invoke",
        "fail",
    ]
    assert heal(world, EngineObserver(world)).failure is None


class _Unanswered(PlannedPolicy):
    """Every completed file stays unanswered, time runs away meanwhile."""

    def __init__(self, call: str, suffix: str) -> None:
        super().__init__(())
        self._call, self._suffix, self._jumped = call, suffix, False

    def choose(self, plain, run):  # type: ignore[no-untyped-def]
        move = super().choose(plain, run)
        text = run.describe(move)
        if text.startswith(self._call) and text.endswith(self._suffix):
            self._jumped = not self._jumped
            if not self._jumped:
                return (Fault.TIME_JUMP.value, 0)
            return (Fault.UNAVAILABLE.value, move[1])
        return move


def test_a_begin_that_fails_after_its_requested_file_stops_its_heartbeat() -> None:
    """A living process must not keep an instant alive that no thread works on."""
    world = seeded("finding-5")

    def body(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        answer = client_write(ports, context, Job(operation="A", keys=("a1",)))
        assert isinstance(answer, HoodooError)
        assert all(ticker.stopped for ticker in ports.state.tickers)

    names = Until("A", "names .hoodie/timeline", Fault.UNAVAILABLE)
    trace = play(
        world,
        [Actor(name="A", body=body)],
        [Until("A", ".commit.requested"), Until("A", "read .hoodie/.hoodoo/slots"), names],
    )
    assert trace.failure is None
    assert found_by(world, trace) == ""


@pytest.mark.spec("RB-10")
def test_a_file_written_after_the_listing_of_its_rollback_is_deleted_by_a_later_clean() -> None:
    """
    A's rollback deleted the files it had listed; A then wrote a file and failed to clean up (seed
    1976).

    Nothing named the file any more, and Java treats it as committed once the timeline is archived.
    """
    world = seeded("finding-6")
    stages = [
        Until("A", "open_output a/"),
        Pause(300),
        UntilEnd("R"),
        Until("A", "sync_folders"),
        Until("A", "list .hoodie/.temp", Fault.CRASH_AFTER),
    ]
    actors = [writer("A", [Job(operation="A", keys=("a1", "c1"))]), undoer()]
    trace = play(world, actors, stages)
    assert trace.outcomes == {"A": "crashed", "R": "returned"}
    assert found_by(world, trace) == ""


def test_planned_faults_reach_every_kind_of_call() -> None:
    """The plays above rest on it: a planned fault strikes the call it names."""
    world = seeded("finding-0")
    planned = PlannedFault(actor="A", call=0, fault=Fault.UNAVAILABLE)
    trace = run(world, [writer("A", [])], policy=PlannedPolicy([planned]))
    assert trace.faults == {"unavailable": 1}
