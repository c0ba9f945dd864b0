"""
Holes of committing: lost leases, two rollbacks, lost answers, helpers, batches (4, 7, 15, 17).

A lease is no fence and an answer may be lost; the slot decides in each case.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import mutants
from tests.simulation.engine_kit import (
    LIMITS,
    EngineObserver,
    Job,
    MakeContext,
    check_files_in_slot_order,
    do_write,
    events_of,
    found_by,
    open_table,
    play,
    ports_of,
    rows_now,
    seeded,
    writer,
)
from tests.simulator.faults import Fault, PlannedFault, PlannedPolicy
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.script import Land, Pause, ScriptStage, Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import CallKind, SimulatedSystem
from timeline.errors import OutcomeUnknownError
from timeline.rollback.rollback import rollback_dead_writers

SLOT = " .hoodie/.hoodoo/slots/"
CREATE = "create" + SLOT
IMPATIENT = replace(LIMITS, unknown_ms_max=-1)
UNANSWERED = (
    Fault.AMBIGUOUS_APPLIED,
    Fault.AMBIGUOUS_LOST,
    Fault.AMBIGUOUS_LATE,
    Fault.DUPLICATED,
)


def kinds_of(world: SimulatedSystem) -> list[str]:
    return [slot.kind.value for slot in EngineObserver(world).structure().slots]


# ---------------------------------------------------------------- holes 4 and 15


def zombie(make_context: MakeContext, call: str) -> tuple[SimulatedSystem, Trace]:
    """A loses its lease right before its slot; B commits; A wakes and continues."""
    world = seeded("hole-4")
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a2"))], make_context=make_context),
        writer("B", [Job(operation="B", keys=("a1", "a3"))]),
    ]
    stages: list[ScriptStage] = [Until("A", call), Fault.LEASE_LOST, UntilEnd("B"), UntilEnd("A")]
    return world, play(world, actors, stages)


@pytest.mark.spec("SLOT-1")
@pytest.mark.spec("FOR-3")
def test_hole_4_a_writer_that_lost_its_lease_cannot_commit_over_another() -> None:
    world, trace = zombie(open_table, CREATE)
    assert trace.failure is None
    assert rows_now(world) == {"a1": "A", "a2": "A", "a3": "B", "b1": "seed"}
    assert len(events_of(world, "publish.slot_lost")) == 1
    assert found_by(world, trace) == ""


def test_hole_4_mutant_that_trusts_its_lease_is_found() -> None:
    world, trace = zombie(mutants.with_chain(mutants.OverwritingChain), "write" + SLOT)
    assert found_by(world, trace)


def test_hole_15_a_deleted_lock_costs_a_commit_section_and_frees_no_other_lock() -> None:
    """The stranger deletes A's lock; B holds the next one while A notices and gives back."""
    world = seeded("hole-15")
    actors = [
        writer("A", [Job(operation="A", keys=("a1",))]),
        writer("B", [Job(operation="B", keys=("b1",))]),
    ]
    stages: list[ScriptStage] = [
        Until("A", "assert_held"),
        Fault.LEASE_LOST,
        Until("B", CREATE),
        Until("A", "sleep"),
    ]
    trace = play(world, actors, [*stages, UntilEnd("B"), UntilEnd("A")])
    assert trace.failure is None
    assert len(events_of(world, "publish.lease_lost")) == 1
    returned = [step for step in trace.steps if step.call == "lock.acquire"]
    assert [step.actor for step in returned] == ["A", "B", "A"]
    assert found_by(world, trace) == ""


# ---------------------------------------------------------------- hole 7


def two_rollbackers(make_context: MakeContext, call: str) -> tuple[SimulatedSystem, Trace]:
    """A died; R1 is about to take its abort slot, R2 rolls back meanwhile."""
    world = seeded("hole-7")

    def rollbacker(name: str) -> Actor:
        def body(ports: ActorPorts) -> None:
            rollback_dead_writers(make_context(ports_of(ports)))

        return Actor(name=name, body=body)

    died = writer("A", [Job(operation="A", keys=("a1",))])
    play(world, [died], [Until("A", CREATE, Fault.CRASH_BEFORE)])
    world.now_ms += 10_000
    stages: list[ScriptStage] = [
        Until("R1", call),
        Fault.LEASE_LOST,
        UntilEnd("R2"),
        UntilEnd("R1"),
    ]
    return world, play(world, [rollbacker("R1"), rollbacker("R2")], stages)


def test_hole_7_two_rollbackers_make_one_rollback() -> None:
    world, trace = two_rollbackers(open_table, CREATE)
    assert found_by(world, trace) == ""
    assert kinds_of(world)[:3] == ["commit", "abort", "commit"]
    completed = [
        one for one in EngineObserver(world).structure().instants if one.action == "rollback"
    ]
    assert len(completed) == 1


def test_hole_7_mutant_that_overwrites_the_abort_slot_is_found() -> None:
    world, trace = two_rollbackers(mutants.with_chain(mutants.OverwritingChain), "write" + SLOT)
    assert "I9" in found_by(world, trace)


# ---------------------------------------------------------------- hole 17


def unanswered(make_context: MakeContext, call: str, fault: Fault) -> tuple[SimulatedSystem, Trace]:
    """One create of A goes wrong; B commits into the same file group afterwards."""
    world = seeded("hole-17")
    actors = [
        writer("A", [Job(operation="A", keys=("a1", "a2"))], make_context=make_context),
        writer("B", [Job(operation="B", keys=("a1",))], start_after="A"),
    ]
    return world, play(world, actors, [Until("A", call, fault), UntilEnd("A")])


@pytest.mark.spec("UNK-2")
@pytest.mark.parametrize("fault", UNANSWERED)
def test_hole_17_unanswered_slot_create_is_resolved_by_repeating_it(fault: Fault) -> None:
    world, trace = unanswered(open_table, CREATE, fault)
    assert found_by(world, trace) == ""
    answers = [one.kind.value for one in world.history if one.operation == "A"]
    assert answers == ["invoke", "ok"]
    assert kinds_of(world)[:3] == ["commit", "commit", "commit"]


@pytest.mark.parametrize(
    ("mutant", "fault"),
    [
        (mutants.ImpatientChain, Fault.AMBIGUOUS_APPLIED),
        (mutants.ForgetfulChain, Fault.DUPLICATED),
    ],
)
def test_hole_17_mutant_that_takes_a_lost_answer_for_a_failure_is_found(
    mutant: type, fault: Fault
) -> None:
    world, trace = unanswered(mutants.with_chain(mutant), CREATE, fault)
    assert "I7" in found_by(world, trace)


@pytest.mark.parametrize("fault", UNANSWERED)
def test_hole_17_no_lost_create_makes_a_write_report_a_wrong_outcome(fault: Fault) -> None:
    """Every create of a writer in order (marker, requested, inflight, slot, completed)."""

    def attempt(call: int | None) -> tuple[SimulatedSystem, Trace]:
        world = seeded("hole-17-all")
        facts = EngineObserver(world)
        planned = [PlannedFault(actor="A", call=call, fault=fault)] if call is not None else []
        trace = run(
            world,
            [writer("A", [Job(operation="A", keys=("a1", "c1"))])],
            policy=PlannedPolicy(planned),
            check_step=facts.check_step,
            check_end=facts.check_end,
        )
        return world, trace

    _, plain = attempt(None)
    creates = [at for at, step in enumerate(plain.steps) if step.call.endswith(CallKind.CREATE)]
    assert len(creates) >= 7
    for call in creates:
        world, trace = attempt(call)
        assert found_by(world, trace) == "", f"call {call}"


# ---------------------------------------------------------------- helping


def crashed_publication(make_context: MakeContext) -> tuple[SimulatedSystem, Trace]:
    """A dies between its slot and its completed file; B follows."""
    world = seeded("helper")
    actors = [
        writer("A", [Job(operation="A", keys=("a1",))]),
        writer("B", [Job(operation="B", keys=("a1", "a2"))], make_context=make_context),
    ]
    stages: list[ScriptStage] = [Until("B", "acquire"), Until("A", CREATE, Fault.CRASH_AFTER)]
    return world, play(world, actors, [*stages, Pause(300), UntilEnd("B")])


@pytest.mark.spec("HELP-1")
def test_helper_applies_a_crashed_commit_before_its_own_slot() -> None:
    """PUB-3: completed files appear in the order of the slots."""
    world, trace = crashed_publication(open_table)
    assert trace.outcomes["A"] == "crashed"
    assert found_by(world, trace) == ""
    assert check_files_in_slot_order(world) == []
    assert len(events_of(world, "publish.helped")) >= 1


def test_helper_mutant_that_assumes_every_slot_applied_is_found() -> None:
    world, trace = crashed_publication(mutants.no_helper)
    found = [found_by(world, trace), *map(str, check_files_in_slot_order(world))]
    assert any(found)


def test_a_writer_that_finds_an_unapplied_commit_helps_it_instead_of_being_rejected() -> None:
    """Both insert c1 into a new partition; the winner is dead and shows nothing yet."""
    world = seeded("helper-refused")
    actors = [
        writer("A", [Job(operation="A", keys=("c1",))]),
        writer("B", [Job(operation="B", keys=("c1",))], start_after="A"),
    ]
    trace = play(world, actors, [Until("A", CREATE, Fault.CRASH_AFTER), UntilEnd("B")])
    assert trace.failure is None
    assert rows_now(world)["c1"] == "B"
    assert [one.kind.value for one in world.history if one.operation == "B"] == ["invoke", "ok"]
    assert found_by(world, trace) == ""


# ---------------------------------------------------------------- batches


def repeated_batch(fault: Fault, *, batch_id: str | None) -> tuple[SimulatedSystem, Trace]:
    """The answer to the slot is lost for so long that the client stops, and repeats the batch."""
    world = seeded("batch")

    def body(ports: ActorPorts) -> None:
        job = Job(operation="A", keys=("a1", "c1"), batch_id=batch_id)
        ports.client.invoke("A", job.keys)
        with pytest.raises(OutcomeUnknownError):
            do_write(ports, open_table(ports_of(ports), IMPATIENT), job)
        do_write(ports, open_table(ports_of(ports)), job)
        ports.client.ok("A")

    return world, play(
        world, [Actor(name="A", body=body)], [Until("A", CREATE, fault), UntilEnd("A")]
    )


@pytest.mark.parametrize("fault", UNANSWERED[:3])
def test_a_batch_repeated_after_an_unknown_outcome_is_committed_once(fault: Fault) -> None:
    world, trace = repeated_batch(fault, batch_id="source/1")
    assert found_by(world, trace) == ""
    operations = [op for slot in EngineObserver(world).structure().slots for op in slot.operations]
    assert operations.count("A") == 1


def test_batch_mutant_without_an_id_is_found() -> None:
    world, trace = repeated_batch(Fault.AMBIGUOUS_APPLIED, batch_id=None)
    assert "I12" in found_by(world, trace)


def test_a_late_first_slot_of_a_batch_rejects_the_second() -> None:
    """The late request of the first attempt wins the slot the second one wants."""
    world = seeded("batch-late")

    def body(ports: ActorPorts) -> None:
        job = Job(operation="A", keys=("a1",), batch_id="source/1")
        ports.client.invoke("A", job.keys)
        with pytest.raises(OutcomeUnknownError):
            do_write(ports, open_table(ports_of(ports), IMPATIENT), job)
        result = do_write(ports, open_table(ports_of(ports)), job)
        assert result.already_published
        ports.client.ok("A")

    stages: list[ScriptStage] = [
        Until("A", CREATE, Fault.AMBIGUOUS_LATE),
        Until("A", "acquire"),
        Until("A", CREATE),
        Land(),
        UntilEnd("A"),
    ]
    trace = play(world, [Actor(name="A", body=body)], stages)
    assert trace.failure is None
    assert found_by(world, trace) == ""
    assert rows_now(world)["a1"] == "final"
