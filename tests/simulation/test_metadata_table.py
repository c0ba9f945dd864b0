"""
The metadata table and other engines, dead processes and plans: what its readers see is right.

``stories_of_metadata`` plays the same in many schedules; these are the interleavings that once
failed, and the shortest ones for each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tableservices.cleaning.execute import clean
from tableservices.clustering.plan import schedule_clustering
from tableservices.planned_service import Phase, run_round
from tests.simulation import test_engine_clustering as clusterings
from tests.simulation import test_second_refresh as second
from tests.simulation.engine_kit import (
    CLEANING,
    TOLERATED_MS,
    Job,
    outside,
    play,
    ports_of,
    rows_now,
    seeded,
    writer,
)
from tests.simulation.stories_of_metadata import (
    AT_ITS_INSTANT,
    AT_ITS_SLOT,
    LISTED,
    BesideAnother,
    as_java,
    grown,
    one_group,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.metadata_facts import FOLDER, INSTANTS
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.script import Script, ScriptStage, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.commit.section import apply_pending_slots
from timeline.context import TableContext
from timeline.model.slot import SlotKind

LOGS = f"create {FOLDER}/files/"


def played(
    world: SimulatedSystem, actors: Sequence[Actor], stages: Sequence[ScriptStage]
) -> BesideAnother:
    """Play one interleaving; the metadata table is right after each of its steps."""
    facts = BesideAnother(world)
    script = Script(stages)
    faults = Faults(time_jump_ms=TOLERATED_MS + 500)
    trace = run(world, actors, faults=faults, policy=script, check_step=facts.check_step)
    assert trace.failure is None, f"{trace.failure}\n{trace.story()}"
    assert script.played, trace.story()
    return facts


def expect_right(facts: BesideAnother) -> None:
    """Nothing is wrong in the end either: the index has the keys, the engine's reader agrees."""
    keys = rows_now(facts.world).keys()
    assert [*facts.check_metadata(facts.world), *facts.wrong_beside(keys)] == []


@pytest.mark.spec("MDT-10")
@pytest.mark.parametrize("before", ["deltacommit.inflight", f"create {INSTANTS}/20260101"])
def test_a_void_write_makes_the_log_files_again_that_another_engine_rolled_back(
    before: str,
) -> None:
    """Java commits elsewhere, so the write has no conflict with it and needs no other files."""
    world = one_group().copy("rolled-back")
    answers: second.Answers = {}
    actors = [*second.cast(answers, second.shared, others=""), as_java(answers, ("c1",))]
    stages: list[ScriptStage] = [
        Until("A", AT_ITS_SLOT),
        Until("A", AT_ITS_INSTANT),
        Until("A", "deltacommit.inflight"),
        *([] if before.startswith("delta") else [Until("A", "_2026")]),
        Fault.LEASE_LOST,
        UntilEnd("J"),
        UntilEnd("A"),
    ]
    facts = played(world, actors, stages)
    assert second.is_ok(answers, "A")
    assert SlotKind.VOID in second.kinds(world)
    assert rows_now(world).keys() == {"a1", "a2", "c1"}
    expect_right(facts)


@pytest.mark.spec("MDT-10")
def test_a_clean_that_deleted_files_is_completed_and_not_made_void() -> None:
    """Its log files are in its slot: that they do not exist yet proves no rollback (FOR-9)."""
    world = seeded("half-cleaned", ("a1",), metadata_partitions=LISTED)
    play(world, [writer("W", [Job(operation=f"W{n}", keys=("a1",)) for n in range(3)])], [])
    facts = played(
        world,
        [acting("C", lambda context: clean(context, CLEANING))],
        [Until("C", AT_ITS_SLOT), Until("C", "delete a/"), Until("C", LOGS, Fault.CRASH_BEFORE)],
    )
    world.now_ms += 4 * TOLERATED_MS
    apply_pending_slots(second.shared(outside(world, "next")), "finish the clean")
    assert second.kinds(world)[-1] is SlotKind.CLEAN
    assert [*facts.check_metadata(world)] == []
    assert facts.listed_and_missing() == []


@pytest.mark.spec("MDT-10")
@pytest.mark.parametrize("stop", [AT_ITS_INSTANT, "_2026"], ids=["log files", "instant"])
def test_a_void_clustering_leaves_none_of_its_records_to_the_next_attempt(stop: str) -> None:
    """Java updates a file group of the plan, so the second attempt commits fewer files (CL-1)."""
    world = grown(LISTED).copy("void-clustering")
    schedule_clustering(second.shared(outside(world, "planner")), clusterings.SETTINGS)
    answers: second.Answers = {}

    def execute(context: TableContext) -> None:
        run_round(context, clusterings.SERVICE, Phase.EXECUTE, now=True)

    actors = [acting("C", execute), as_java(answers, ("b1",))]
    stages = [Until("C", AT_ITS_SLOT), Until("C", AT_ITS_INSTANT)]
    stages += [Until("C", stop)] if stop != AT_ITS_INSTANT else []
    facts = played(world, actors, [*stages, Fault.LEASE_LOST, UntilEnd("J"), UntilEnd("C")])
    assert second.is_ok(answers, "J")
    kinds = second.kinds(world)
    assert kinds[-3:] == [SlotKind.COMMIT, SlotKind.VOID, SlotKind.COMMIT]
    assert [*facts.check_metadata(world)] == []
    assert facts.leftovers() == []


def acting(name: str, act: Callable[[TableContext], object]) -> Actor:
    """A service that knows of other engines."""

    def body(ports: ActorPorts) -> None:
        act(second.shared(ports_of(ports)))

    return Actor(name=name, body=body)
