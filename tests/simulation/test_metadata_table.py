"""
The metadata table and other engines, dead processes and plans: what its readers see is right.

``stories_of_metadata`` plays the same in many schedules; these are the interleavings that once
failed, and the shortest ones for each rule. Each returns what is wrong, so that the table of guards
shows their mutants with it.
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
    MakeContext,
    client_write,
    open_table,
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
    INDEXED,
    LISTED,
    BesideAnother,
    Left,
    archived_with,
    as_java,
    build_index,
    grown,
    keep_and_archive,
    merge_metadata_logs,
    one_group,
    one_slice,
)
from tests.simulation.story_kit import DELETE, lock_free
from tests.simulation.test_compaction import serving
from tests.simulation.test_engine_archive import GRACE_MS
from tests.simulator.faults import Fault, Faults
from tests.simulator.metadata_facts import FOLDER, MetadataObserver
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, Script, ScriptStage, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.commit.section import apply_pending_slots
from timeline.context import TableContext
from timeline.model.file_names import TIMELINE
from timeline.model.slot import SlotKind

IDENTITY = "read .hoodie/.hoodoo/table.json"
LOGS = f"create {FOLDER}/files/"
#: The calls of a write beside another engine that show it in the metadata table.
SHOWN = ("deltacommit.inflight", "_2026", second.LOOK)


def played(
    world: SimulatedSystem, actors: Sequence[Actor], stages: Sequence[ScriptStage]
) -> tuple[BesideAnother, str]:
    """Play one interleaving; return its observer, and what was wrong after one of its steps."""
    facts = BesideAnother(world)
    script = Script(stages)
    faults = Faults(time_jump_ms=TOLERATED_MS + 500)
    trace = run(world, actors, faults=faults, policy=script, check_step=facts.check_step)
    if trace.failure is None and not script.played:
        raise AssertionError(f"the script was not played to its end\n{trace.story()}")
    return facts, trace.failure or ""


def wrong_now(facts: BesideAnother, *, indexed: bool) -> str:
    """What is wrong in the end: in the list of files, in the index, for the engine's reader."""
    found: list[object] = [*facts.check_metadata(facts.world)]
    if indexed:
        found += facts.wrong_beside(rows_now(facts.world).keys())
    return "; ".join(map(str, [*found, *facts.listed_and_missing(), *facts.leftovers()]))


def acting(name: str, act: Callable[[TableContext], object]) -> Actor:
    """A service that knows of other engines."""

    def body(ports: ActorPorts) -> None:
        act(second.shared(ports_of(ports)))

    return Actor(name=name, body=body)


# ---------------------------------------------------------------- beside another engine


def rolled_back_in_the_metadata_table(calls: int) -> str:
    """Java rolls back A's pending instant there and commits elsewhere; then A continues."""
    world = one_group().copy("rolled-back")
    answers: second.Answers = {}
    actors = [*second.cast(answers, second.shared, others=""), as_java(answers, ("c1",))]
    stages: list[ScriptStage] = [Until("A", AT_ITS_SLOT), Until("A", AT_ITS_INSTANT)]
    stages += [Until("A", call) for call in SHOWN[:calls]]
    facts, wrong = played(world, actors, [*stages, Fault.LEASE_LOST, UntilEnd("J"), UntilEnd("A")])
    if wrong or not second.is_ok(answers, "A"):
        return wrong or "A ended without an answer"
    assert SlotKind.VOID in second.kinds(world)
    assert rows_now(world).keys() == {"a1", "a2", "c1"}
    return wrong_now(facts, indexed=True)


@pytest.mark.spec("MDT-10")
@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_a_void_write_makes_the_log_files_again_that_another_engine_rolled_back(
    calls: int,
) -> None:
    assert rolled_back_in_the_metadata_table(calls) == ""


def rolled_back_by_another_engine() -> str:
    """Another engine treats A as dead, whose deltacommit exists and whose completed file does not."""
    world = one_group().copy("rolled-back-by-java")
    answers: second.Answers = {}
    rollback = Actor(name="R", body=second.roll_back_as_java)
    actors = [*second.cast(answers, second.shared, others=""), rollback]
    stages: list[ScriptStage] = [Until("A", AT_ITS_SLOT), Until("A", AT_ITS_INSTANT)]
    stages += [Until("A", call) for call in SHOWN]
    _, wrong = played(world, actors, [*stages, Fault.LEASE_LOST, Pause(3), UntilEnd("R")])
    return wrong


@pytest.mark.spec("MDT-7")
def test_a_rollback_hides_the_deltacommit_before_its_write_leaves_the_timeline() -> None:
    assert rolled_back_by_another_engine() == ""


@pytest.mark.spec("MDT-10")
def test_a_clean_that_deleted_files_is_completed_and_not_made_void() -> None:
    """Its log files are in its slot: that they do not exist yet proves no rollback (FOR-9)."""
    world = seeded("half-cleaned", ("a1",), metadata_partitions=LISTED)
    play(world, [writer("W", [Job(operation=f"W{n}", keys=("a1",)) for n in range(3)])], [])
    facts, wrong = played(
        world,
        [acting("C", lambda context: clean(context, CLEANING))],
        [Until("C", AT_ITS_SLOT), Until("C", "delete a/"), Until("C", LOGS, Fault.CRASH_BEFORE)],
    )
    assert wrong == ""
    world.now_ms += 4 * TOLERATED_MS
    apply_pending_slots(second.shared(outside(world, "next")), "finish the clean")
    assert second.kinds(world)[-1] is SlotKind.CLEAN
    assert wrong_now(facts, indexed=False) == ""


def void_clustering(*calls: str) -> str:
    """Java updates a file group of the plan, so the second attempt commits fewer files (CL-1)."""
    world = grown(LISTED).copy("void-clustering")
    schedule_clustering(second.shared(outside(world, "planner")), clusterings.SETTINGS)
    answers: second.Answers = {}

    def execute(context: TableContext) -> None:
        run_round(context, clusterings.SERVICE, Phase.EXECUTE, now=True)

    actors = [acting("C", execute), as_java(answers, ("b1",))]
    stages: list[ScriptStage] = [Until("C", call) for call in (AT_ITS_SLOT, *calls)]
    facts, wrong = played(world, actors, [*stages, Fault.LEASE_LOST, UntilEnd("J"), UntilEnd("C")])
    if not wrong:
        assert second.is_ok(answers, "J")
        assert second.kinds(world)[-2:] == [SlotKind.VOID, SlotKind.COMMIT]
    return wrong or wrong_now(facts, indexed=False)


@pytest.mark.spec("MDT-9")
@pytest.mark.parametrize("calls", [(LOGS,), (AT_ITS_INSTANT,), (AT_ITS_INSTANT, *SHOWN)])
def test_a_void_clustering_leaves_none_of_its_records_to_the_next_attempt(
    calls: Sequence[str],
) -> None:
    assert void_clustering(*calls) == ""


# ---------------------------------------------------------------- ours alone


def rebased() -> str:
    """B commits to a file group of A, which had written its log files: A makes them again."""
    world = one_slice().copy("rebased")
    facts = MetadataObserver(world)
    keys = {"A": ("a1", "b1"), "B": ("a1",)}  # A began later, and keeps its other file
    actors = [
        writer(name, [Job(operation=name, keys=some)], make_context=lock_free)
        for name, some in keys.items()
    ]
    stages = [Until("B", AT_ITS_SLOT), Until("A", AT_ITS_SLOT), UntilEnd("B"), UntilEnd("A")]
    trace = play(world, actors, stages, facts=facts)
    again = [path for path in world.paths_below(FOLDER) if path.endswith("_1-0-0")]
    assert trace.failure or again, "A was not rebased"
    return trace.failure or ""


@pytest.mark.spec("MDT-2")
def test_a_rebased_write_leaves_no_record_of_its_former_files() -> None:
    assert rebased() == ""


def beaten_clustering() -> str:
    """A writer takes the number that C asks for, and updates a file group of its plan."""
    world = grown(LISTED).copy("beaten")
    schedule_clustering(open_table(outside(world, "planner")), clusterings.SETTINGS)
    facts = MetadataObserver(world)

    def execute(ports: ActorPorts) -> None:
        run_round(lock_free(ports_of(ports)), clusterings.SERVICE, Phase.EXECUTE, now=True)

    updates = Job(operation="A", keys=("b1",))
    actors = [Actor(name="C", body=execute), writer("A", [updates], make_context=lock_free)]
    stages = [Until("C", AT_ITS_SLOT), UntilEnd("A"), UntilEnd("C")]
    trace = play(world, actors, stages, facts=facts)
    return trace.failure or "; ".join(facts.leftovers())


@pytest.mark.spec("MDT-9")
def test_a_clustering_that_loses_a_number_leaves_no_record_of_its_first_attempt() -> None:
    assert beaten_clustering() == ""


def power_failed(cuts: int = 8) -> str:
    """The power fails right after the completed file; names that were not synced may be lost."""
    for seed in range(cuts):
        world = one_slice().copy("power")
        facts = MetadataObserver(world)
        actors = [writer("A", [Job(operation="A", keys=("a1",))], make_context=lock_free)]
        stages = [Until("A", "_2026"), Until("A", IDENTITY), Fault.POWER_CUT]
        trace = run(world, actors, seed=seed, faults=Faults(), policy=Script(stages))
        found = facts.check_metadata(world)
        if trace.failure or found:
            return trace.failure or str(found[0])
    return ""


@pytest.mark.spec("MDT-2")
@pytest.mark.spec("MDT-4")
def test_a_power_failure_after_a_commit_takes_nothing_from_the_metadata_table() -> None:
    assert power_failed() == ""


def merged_meanwhile(make: MakeContext = lock_free) -> str:
    """K lists the table, then A appears with a lesser time and deletes a key that K merges."""
    world = grown(INDEXED).copy("merged")
    facts = MetadataObserver(world)

    def merge(ports: ActorPorts) -> None:
        merge_metadata_logs(make(ports_of(ports)))

    job = Job(operation="A", keys=("a3",), kind=DELETE)
    actors = [writer("A", [job], make_context=lock_free), Actor(name="K", body=merge)]
    begins = Until("A", f"create {TIMELINE}/")
    stages = [
        begins,
        Until("K", AT_ITS_SLOT),
        Until("A", AT_ITS_SLOT),
        UntilEnd("K"),
        UntilEnd("A"),
    ]
    trace = play(world, actors, stages, facts=facts)
    return trace.failure or "; ".join(facts.leftovers())


@pytest.mark.spec("MDT-17")
def test_a_log_compaction_ends_if_a_write_appeared_below_it() -> None:
    assert merged_meanwhile() == ""


def built_meanwhile(make: MakeContext = lock_free) -> str:
    """A record index is built while a writer of new keys is about to take its slot."""
    world = one_slice().copy("built")
    facts = MetadataObserver(world)

    def build(ports: ActorPorts) -> None:
        build_index(open_table(ports_of(ports)))

    job = Job(operation="A", keys=("a7", "c1"))
    actors = [writer("A", [job], make_context=make), Actor(name="M", body=build)]
    trace = play(
        world, actors, [Until("A", AT_ITS_SLOT), UntilEnd("M"), UntilEnd("A")], facts=facts
    )
    return trace.failure or ""


@pytest.mark.spec("MDT-5")
def test_a_write_over_a_build_brings_its_keys_into_the_new_index() -> None:
    assert built_meanwhile() == ""


def left_pending() -> str:
    """A writer of another engine died in the metadata table; K compacts and archives it."""
    world, facts = archived_with(Left.PENDING, LISTED).fresh("left")
    trace = play(world, [serving("K", keep_and_archive)], [], facts=facts)
    return trace.failure or "; ".join(facts.leftovers())


@pytest.mark.spec("MDT-8")
def test_an_archive_ends_what_a_dead_process_of_another_engine_left() -> None:
    assert left_pending() == ""


def paused_in_the_metadata_table() -> str:
    """A pauses at its pending instant there while K, which compacted before, archives."""
    world, facts = archived_with(Left.NOTHING, LISTED).fresh("paused")
    job = Job(operation="A", keys=("a1",))
    actors = [writer("A", [job], make_context=lock_free), serving("K", keep_and_archive)]
    compacted = Until("K", ".commit")
    stages = [compacted, Until("A", AT_ITS_SLOT), Until("A", "_2026"), Pause(), UntilEnd("K")]
    trace = play(world, actors, [*stages, UntilEnd("A")], facts=facts, jump_ms=2 * GRACE_MS)
    return trace.failure or "; ".join(facts.leftovers())


@pytest.mark.spec("MDT-8")
def test_an_archive_ends_no_instant_of_a_writer_that_paused() -> None:
    assert paused_in_the_metadata_table() == ""


def test_the_observer_finds_a_deltacommit_that_nothing_decided() -> None:
    """The judge itself: a file on either timeline that the other lacks is a finding."""
    world = one_slice().copy("judged")
    ports = make_ports(world, world.new_actor("A", seed=0))
    facts = MetadataObserver(world)
    client_write(ports, open_table(ports_of(ports)), Job(operation="A", keys=("a1",)))
    assert facts.check_metadata(world) == []
    [*_, newest] = sorted(path for path in world.files if path.endswith(".commit"))
    world.remove("test", newest)
    assert facts.check_metadata(world) == []  # its pending files still hide it
    for path in [path for path in world.files if path.startswith(newest[:34])]:
        world.remove("test", path)
    assert "is visible" in str(facts.check_metadata(world))
