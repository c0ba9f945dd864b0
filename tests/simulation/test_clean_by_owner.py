"""
Cleans with other engines: no file is deleted that another engine pinned before (FOR-9).

A cleaner of ours is stopped or dies between its slot and its files, and its lease ends. Java Hudi
saw nothing of the clean. It makes a savepoint of a state that the clean is about to remove.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hoodoo.inspect.explain import explain_instant
from hoodoo.verify.verify import verify
from tableservices.cleaning.execute import clean
from tableservices.restoring.savepoints import savepoint, savepoints
from tests.simulation.engine_kit import (
    CLEANING,
    TOLERATED_MS,
    Job,
    MakeContext,
    do_write,
    open_table,
    outside,
    ports_of,
    seeded,
    writer,
)
from tests.simulation.test_plans_by_owner import (
    COMMIT,
    FAULTS,
    acting,
    cut_short,
    play,
    saved,
    stopped,
    write_later,
)
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
from tests.simulator.ports import make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.commit.section import apply_pending_slots
from timeline.context import TableContext
from timeline.model.file_names import TIMELINE, timeline_path
from timeline.model.slot import SlotKind
from timeline.rollback.resolve_unknown import WriteOutcome, resolve

CLEAN, VOID = SlotKind.CLEAN, SlotKind.VOID
INFLIGHT = (SLOT, LOOK, HELD, SHOW, LOOK, HELD, SHOW)


def cleaning(context: TableContext) -> None:
    clean(context, CLEANING)


def much_written(name: str) -> tuple[SimulatedSystem, Callable[[TableContext], object]]:
    """
    A table of which a clean removes the first states, and a function that pins the first of them.
    """
    world = seeded(name, ("a1",))
    kept = shared(outside(world)).active().newest_completed_write
    assert kept is not None
    first = kept.requested_time
    for number in range(4):
        ports = make_ports(world, world.new_actor(f"W{number}", seed=0))
        do_write(ports, shared(ports_of(ports)), Job(operation=f"W{number}", keys=("a1",)))
    return world, lambda context: savepoint(context, first)


def pinned_during_clean(
    calls: Sequence[str], fault: Sequence[Fault], ours: MakeContext = shared
) -> SimulatedSystem:
    """J pins a state while A is between its clean's slot and file; then another writer writes."""
    world, keep_first = much_written("clean-kept-beside")
    actors = [acting("A", ours, cleaning), acting("J", foreign, keep_first)]
    play(world, actors, [*cut_short(calls, fault), UntilEnd("J")])
    write_later(world)
    return world


def broken(world: SimulatedSystem) -> list[str]:
    """Files that a savepoint lists and the table has not."""
    context = shared(outside(world))
    listed = [path for one in savepoints(context) for path in one.files]
    assert listed
    return [path for path in listed if context.ports.storage.stat(path) is None]


def cleans(world: SimulatedSystem) -> list[str]:
    """The cleans' files, without their times."""
    names = outside(world).storage.names(TIMELINE)
    return sorted(name.partition(".")[2] for name in names if ".clean" in name)


@pytest.mark.spec("FOR-9")
@FAULTS
@pytest.mark.parametrize("calls", [(SLOT, LOOK), (SLOT, LOOK, HELD), INFLIGHT[:4]])
def test_a_savepoint_of_another_engine_before_the_clean_is_visible_keeps_its_files(
    calls: Sequence[str], fault: Sequence[Fault]
) -> None:
    world = pinned_during_clean(calls, fault)
    assert broken(world) == []
    # An owner that lives plans again, around the savepoint.
    assert kinds(world)[5:-1] == ([CLEAN, VOID] if fault else [CLEAN, VOID, CLEAN])
    assert cleans(world) == ([] if fault else ["clean", "clean.inflight", "clean.requested"])
    cleaning(write_later(world))
    assert cleans(world).count("clean") == len(cleans(world)) // 3 > 0
    assert broken(world) == []


def test_mutant_whose_clean_slot_has_no_timeline_digest_is_found() -> None:
    assert broken(pinned_during_clean((SLOT, SHOW), (Fault.CRASH_BEFORE,), ours=alone)) != []


def test_a_late_first_file_of_an_ended_clean_is_deleted() -> None:
    """The request was on its way when others ended the slot; nothing was deleted for it."""
    world, keep_first = much_written("clean-too-late")
    wakes = acting("B", shared, lambda context: apply_pending_slots(context, "settle"))
    actors = [acting("A", shared, cleaning), acting("J", foreign, keep_first), wakes]
    stages = [*cut_short(INFLIGHT[:4], ()), UntilEnd("J"), UntilEnd("B"), UntilEnd("A")]
    play(world, actors, stages)
    assert kinds(world)[5:] == [CLEAN, VOID, CLEAN]
    assert cleans(world) == ["clean", "clean.inflight", "clean.requested"]
    assert broken(world) == []


@FAULTS
@pytest.mark.parametrize(
    "calls", [INFLIGHT[:5], INFLIGHT, (*INFLIGHT, LOOK), (*INFLIGHT, LOOK, HELD)]
)
def test_a_visible_clean_is_finished_by_any_process(
    calls: Sequence[str], fault: Sequence[Fault]
) -> None:
    """
    It may have begun to delete, or no commit followed.

    Its owner deletes nothing once it lost the lock.
    """
    world, _ = much_written("clean-shown")
    later = acting("B", shared, lambda context: apply_pending_slots(context, "settle"))
    play(world, [acting("A", shared, cleaning), later], [*cut_short(calls, fault), UntilEnd("B")])
    assert kinds(world)[5:] == ([CLEAN] if fault else [CLEAN, SlotKind.NOOP])
    assert cleans(world) == ["clean", "clean.inflight", "clean.requested"]
    slot = shared(outside(world)).commit_log.read(6)
    assert slot is not None
    deleted = [one for one in world.journal if one.kind == "delete" and one.path in slot.deletes]
    assert {one.actor for one in deleted} == {"B"}
    assert {one.path for one in deleted} == set(slot.deletes)


def as_java(keep: Callable[[TableContext], object]) -> Callable[[TableContext], object]:
    """
    Makes a savepoint despite a pending clean, as Java does:

    Java checks only completed cleans.
    """

    def keeps(context: TableContext) -> None:
        storage = context.ports.storage
        (requested,) = (one for one in storage.names(TIMELINE) if one.endswith(".clean.requested"))
        plan = storage.read(timeline_path(requested))
        storage.delete(timeline_path(requested))
        keep(context)
        storage.create(timeline_path(requested), plan)

    return keeps


@pytest.mark.spec("RST-4")
def test_a_paused_helper_leaves_no_file_of_an_ended_clean() -> None:
    """
    B finishes the clean after A's death, and sleeps at the inflight file; C ends it meanwhile.
    """
    world, keep_first = much_written("clean-helper")
    later = acting("B", shared, lambda context: apply_pending_slots(context, "settle"))
    writes = writer("C", [Job(operation="C", keys=("b1",))], make_context=shared, answers={})
    actors = [
        acting("A", shared, cleaning),
        acting("J", foreign, as_java(keep_first)),
        later,
        writes,
    ]
    died = [*stopped(INFLIGHT[:4], ()), Until("A", LOOK, Fault.CRASH_BEFORE), Fault.LEASE_LOST]
    sleeps = [Until("B", SHOW), Until("B", LOOK), Until("B", SHOW), Fault.LEASE_LOST]
    play(world, actors, [*died, *sleeps, UntilEnd("J"), UntilEnd("C"), UntilEnd("B")])
    assert kinds(world)[5:] == [CLEAN, VOID, COMMIT]
    assert cleans(world) == []
    assert broken(world) == []


@FAULTS
def test_a_clean_without_deletes_is_ended_when_a_commit_came_first(fault: Sequence[Fault]) -> None:
    """Its requested file exists; a helper that checks sees that another engine pinned a state."""
    world, keep_first = much_written("clean-requested")
    began = [*stopped(INFLIGHT[:4], ()), Until("A", LOOK, *fault)]
    actors = [acting("A", shared, cleaning), acting("J", foreign, as_java(keep_first))]
    play(world, actors, [*began, Fault.LEASE_LOST, UntilEnd("J")])
    write_later(world)
    assert broken(world) == []
    assert kinds(world)[5:-1] == ([CLEAN, VOID] if fault else [CLEAN, VOID, CLEAN])
    assert cleans(world) == ([] if fault else ["clean", "clean.inflight", "clean.requested"])


@pytest.mark.parametrize("later", [open_table, shared], ids=["ours", "a slot from before"])
def test_a_clean_without_a_timeline_digest_is_finished_by_any_process(
    later: MakeContext,
) -> None:
    world, _ = much_written("clean-for-all")
    play(world, [acting("A", open_table, cleaning)], stopped((SLOT, SHOW), (Fault.CRASH_BEFORE,)))
    write_later(world, later)
    assert kinds(world)[5:] == [CLEAN, COMMIT]
    assert cleans(world) == ["clean", "clean.inflight", "clean.requested"]


@pytest.mark.spec("UNK-3")
def test_resolve_ends_a_clean_without_files() -> None:
    world, _ = much_written("clean-unknown")
    play(world, [acting("A", shared, cleaning)], stopped((SLOT, LOOK), (Fault.CRASH_BEFORE,)))
    world.now_ms += 4 * TOLERATED_MS
    context = shared(outside(world))
    slot = context.commit_log.newest_own_slot(context.commit_log.head())
    assert slot is not None
    assert verify(context).notes[0].kind == "slot_unsettled"
    resolution = resolve(context, slot.requested_time)
    assert (resolution.outcome, kinds(world)[-2:]) == (WriteOutcome.NOT_PUBLISHED, [CLEAN, VOID])
    assert verify(context).notes == ()
    assert explain_instant(context, slot.requested_time).state == "void"


def test_no_savepoint_is_broken_in_any_schedule() -> None:
    """Leases lost, pauses, deaths and lost answers, of ours only."""
    void = 0
    for seed in range(200 if NIGHTLY else 30):
        world, keep_first = much_written("clean-swarm")
        budgets = {
            Fault.LEASE_LOST: 2,
            Fault.CRASH_BEFORE: seed % 2,
            Fault.AMBIGUOUS_APPLIED: 1,
            Fault.AMBIGUOUS_LOST: 1,
        }
        trace = run(
            world,
            [
                acting("A", shared, cleaning),
                acting("J", foreign, keep_first),
                acting("B", shared, cleaning),
            ],
            seed=seed,
            faults=Faults(budgets=budgets, victims=frozenset({"A", "B"})),
            policy=SparingPolicy(seed, world),
        )
        assert trace.failure is None, f"seed {seed}\n{trace.story()}"
        cleaning(write_later(world))
        assert not saved(world) or broken(world) == [], f"seed {seed}\n{trace.story()}"
        assert shared(outside(world)).active().pending == (), f"seed {seed}"
        void += VOID in kinds(world)
    assert void or not NIGHTLY
