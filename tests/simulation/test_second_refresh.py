"""
The second refresh (FOR-4): with an engine that knows the lock only, no row is lost.

A writer of ours is stopped at every call from its slot to its answer, its lease ends, and a
foreign writer of the same file group validates and commits meanwhile. Rows that both
acknowledged must be in the table. The foreign one is the engine with a commit log that neither
sees nor takes slots: it has the lock and the timeline, as Java Hudi has.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader
from filegroups.writing.write_request import CommitResult
from hoodoo.inspect.explain import explain_instant
from tableservices.archiving.execute import archive
from tableservices.cleaning.execute import clean
from tests.simulation import test_compaction as compactions
from tests.simulation.engine_kit import (
    CLEANING,
    LIMITS,
    TOLERATED_MS,
    Job,
    MakeContext,
    client_write,
    do_write,
    open_table,
    outside,
    ports_of,
    rows_now,
    seeded,
    writer,
)
from tests.simulation.test_engine_archive import RULES
from tests.simulator.faults import Chooser, Fault, Faults, Move, RandomPolicy
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, Script, ScriptStage, Until, UntilEnd
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.commit_log import CommitLog
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.file_names import TIMELINE, parse_instant_name, timeline_path
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import ForeignWriters
from timeline.rollback.resolve_unknown import WriteOutcome, resolve
from timeline.rollback.rollback import rollback_dead_writers
from timeline.truncation import truncated_up_to
from timeline.writer_registry import register_process

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SHARED = replace(LIMITS, foreign_writers=ForeignWriters.EXPECTED)
SLOT, LOOK, HELD, SHOW = (
    "create .hoodie/.hoodoo/slots/",
    "names .hoodie/timeline",
    "assert_held",
    "create .hoodie/timeline/",
)
HELD_AGAIN = "assert_held!"
#: Paths of files that show a decision: completed files, plans, savepoints.
SHOWN = re.compile(re.escape(SHOW) + r".*(_|\.compaction\.requested|\.savepoint\.inflight)")
Answers = dict[str, CommitResult | HoodooError]
#: The calls of a publication from its slot on, each of them waiting to be made.
BEFORE: dict[str, tuple[str, ...]] = {
    "the slot": (SLOT,),
    "the second look": (SLOT, LOOK),
    "the lock's second proof": (SLOT, LOOK, HELD),
}


class Slotless(CommitLog):
    """The chain as another engine has it: none."""

    def head(self) -> int:
        return 0

    def read(self, number: int) -> Slot | None:
        return None

    def between(self, after: int, last: int) -> list[Slot]:
        return []

    def newest_first(self, last: int | None = None) -> Iterator[Slot]:
        return iter(())

    def take(self, slot: Slot, **looks: Any) -> bool:
        return True


def foreign(world: EngineWorld) -> TableContext:
    context = open_table(world)
    return replace(context, commit_log=Slotless(world, context.table_id))


def shared(world: EngineWorld) -> TableContext:
    return open_table(world, SHARED)


class SlotAlone(CommitLog):
    """A mutant: its slots contain no base state of their owner, so no process refreshes again."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        return super().take(replace(slot, timeline_digest=""), **looks)


def alone(world: EngineWorld) -> TableContext:
    context = shared(world)
    return replace(context, commit_log=SlotAlone(world, context.table_id))


def played(
    stages: Sequence[ScriptStage],
    *,
    ours: MakeContext = shared,
    others: str = "JB",
    batch: str | None = None,
) -> tuple[SimulatedSystem, Answers, Trace]:
    """One written interleaving."""
    world = seeded("second-look", ("a1",))
    answers: Answers = {}
    actors = cast(answers, ours, others=others, batch=batch)
    script = Script(stages)
    trace = run(world, actors, faults=Faults(time_jump_ms=10), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    return world, answers, trace


def cast(
    answers: Answers, ours: MakeContext, *, others: str = "JB", batch: str | None = None
) -> list[Actor]:
    """A writes a1 and a2, J (another engine) a1 and a3: they share a file group. B is ours, too."""
    return [
        writer(
            name,
            [Job(operation=name, keys=keys, batch_id=batch if name == "A" else None)],
            make_context=make,
            answers=answers,
        )
        for name, keys, make in (
            ("A", ("a1", "a2"), ours),
            ("J", ("a1", "a3"), foreign),
            ("B", ("b1",), ours),
        )
        if name in f"A{others}"
    ]


def survive(world: SimulatedSystem) -> None:
    """A survivor writes and rolls back once everything else has ended."""
    world.now_ms += 4 * TOLERATED_MS
    ports = make_ports(world, world.new_actor("survivor", seed=0))
    context = shared(ports_of(ports))
    answer = client_write(ports, context, Job(operation="S", keys=("b1",)))
    assert isinstance(answer, CommitResult), answer
    rollback_dead_writers(context)


def lost_rows(world: SimulatedSystem, answers: Answers) -> list[str]:
    """Keys of acknowledged writes that the table has not."""
    rows = rows_now(world)
    own = {"A": {"a2"}, "J": {"a3", "c1"}, "B": {"b1"}}
    return [
        min(keys) for name, keys in own.items() if is_ok(answers, name) and keys.isdisjoint(rows)
    ]


def is_ok(answers: Answers, name: str) -> bool:
    return isinstance(answers.get(name), CommitResult)


def kinds(world: SimulatedSystem) -> list[SlotKind]:
    commit_log = open_table(outside(world)).commit_log
    return [slot.kind for slot in commit_log.newest_first()][::-1]


def shown_below(world: SimulatedSystem) -> list[str]:
    """
    Completed files that appeared below the completion time of one that was there before.

    The file of a rollback shows no rows, and a helper may create it at any time (HELP-1).
    """
    found = []
    newest = ""
    for change in world.journal:
        folder, _, name = change.path.rpartition("/")
        instant = parse_instant_name(name) if folder == TIMELINE else None
        if change.kind == "create" and instant is not None and instant.completed:
            if instant.action is Action.ROLLBACK:
                continue
            if (instant.completion_time or "") < newest:
                found.append(name)
            newest = max(newest, instant.completion_time or "")
    return found


def between(calls: Sequence[str], *, early: bool) -> list[ScriptStage]:
    """A is stopped before the last of these calls, loses its lease, and J commits."""
    begun: list[ScriptStage] = [Until("J", "acquire")] if early else []
    stops = [Until("A", call) for call in calls]
    return [*begun, *stops, Fault.LEASE_LOST, UntilEnd("J")]


EARLY = pytest.mark.parametrize("early", [True, False], ids=["begun before", "begun meanwhile"])
STOPS = pytest.mark.parametrize("calls", BEFORE.values(), ids=BEFORE)


@pytest.mark.spec("FOR-4")
@EARLY
@STOPS
def test_a_commit_between_slot_and_completed_file_voids_the_slot(
    calls: tuple[str, ...], early: bool
) -> None:
    world, answers, trace = played(between(calls, early=early))
    assert (is_ok(answers, "A"), is_ok(answers, "J")) == (True, True), trace.story()
    assert lost_rows(world, answers) == []
    assert kinds(world)[:3] == [SlotKind.COMMIT, SlotKind.COMMIT, SlotKind.VOID]
    assert shown_below(world) == []
    survive(world)
    assert lost_rows(world, answers) == []
    assert open_table(outside(world)).active().pending == ()


@STOPS
def test_mutant_without_the_second_refresh_loses_a_row(calls: tuple[str, ...]) -> None:
    world, answers, trace = played(between(calls, early=False), ours=alone)
    assert (is_ok(answers, "A"), is_ok(answers, "J")) == (True, True), trace.story()
    assert lost_rows(world, answers) != [] or shown_below(world) != []


@STOPS
def test_a_lease_that_ends_in_between_costs_nothing_without_other_commits(
    calls: tuple[str, ...],
) -> None:
    stops = [Until("A", call) for call in calls]
    world, answers, _ = played([*stops, Fault.LEASE_LOST, UntilEnd("A")])
    assert lost_rows(world, answers) == []
    assert SlotKind.VOID not in kinds(world)
    assert [is_ok(answers, name) for name in "AJB"] == [True, True, True]


@STOPS
def test_another_hoodoo_writer_voids_the_slot_while_its_owner_pauses(
    calls: tuple[str, ...],
) -> None:
    stages: list[ScriptStage] = [*between(calls, early=False), UntilEnd("B"), UntilEnd("A")]
    world, answers, _ = played(stages)
    assert [is_ok(answers, name) for name in "AJB"] == [True, True, True]
    assert lost_rows(world, answers) == []
    assert shown_below(world) == []


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("call", [SLOT, LOOK, HELD, SHOW, HELD_AGAIN])
def test_the_next_writer_decides_the_slot_of_a_dead_owner(call: str, fault: Fault) -> None:
    """The file is made, or the slot void and the write rolled back; J and B lose nothing."""
    died = [SLOT, LOOK, HELD, SHOW, HELD_AGAIN].index(call)
    way = [SLOT, LOOK, HELD, SHOW, HELD_AGAIN][:died]
    stages = [*(Until("A", one) for one in way), Until("A", call.strip("!"), fault)]
    for others in ([UntilEnd("J")], [UntilEnd("B"), UntilEnd("J")]):
        world, answers, trace = played([*stages, *others])
        assert (is_ok(answers, "J"), is_ok(answers, "B")) == (True, True), trace.story()
        survive(world)
        assert lost_rows(world, answers) == []
        assert shown_below(world) == []
        assert open_table(outside(world)).active().pending == ()
        begun = outcome_of(world)
        assert ("a2" in rows_now(world)) == (begun is WriteOutcome.PUBLISHED)


def outcome_of(world: SimulatedSystem) -> WriteOutcome:
    """The outcome that each process gets for the instant that A began first."""
    begun = next(
        change.path.rpartition("/")[2][:17]
        for change in world.journal
        if change.actor == "A" and change.path.endswith(".commit.requested")
    )
    return resolve(open_table(outside(world), SHARED), begun).outcome


@pytest.mark.parametrize("fault", [None, Fault.CRASH_BEFORE], ids=["it lives", "it dies"])
def test_a_write_that_another_engine_rolled_back_is_not_reported_as_committed(
    fault: Fault | None,
) -> None:
    """Java takes the sleeper for dead and leaves neither pending nor completed file (FOR-4)."""
    world = seeded("second-look-rollback", ("a1",))
    answers: Answers = {}
    actors = [*cast(answers, shared, others=""), Actor(name="R", body=roll_back_as_java)]
    stages = [Until("A", SLOT), Until("A", LOOK, fault), Fault.LEASE_LOST, Pause(3), UntilEnd("R")]
    script = Script(stages)
    trace = run(world, actors, faults=Faults(time_jump_ms=TOLERATED_MS), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    survive(world)
    assert kinds(world)[:3] == [SlotKind.COMMIT, SlotKind.COMMIT, SlotKind.VOID]
    assert outcome_of(world) is WriteOutcome.NOT_PUBLISHED
    assert is_ok(answers, "A") == (fault is None)
    assert ("a2" in rows_now(world)) == (fault is None)


def roll_back_as_java(ports: ActorPorts) -> None:
    rollback_dead_writers(foreign(ports_of(ports)))


# ---------------------------------------------------------------- any schedule


class Spared:
    """
    A run's faults, but for those that this side cannot prevent (FOR-8).

    Neither J nor a writer whose create of a completed file is in flight loses the lease.
    """

    def __init__(self, run: Chooser, world: SimulatedSystem, plain: Sequence[Move]) -> None:
        self._run = run
        holders = {lock.actor for lock in world.locks.values() if lock.token is not None}
        shows = (
            (run.task_of(move) or ("", 0))[0] in holders and SHOWN.match(run.describe(move))
            for move in plain
        )
        self._spared = "J" in holders or any(shows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def fault_moves(self) -> list[Move]:
        moves = self._run.fault_moves()
        lost = Fault.LEASE_LOST.value
        return [move for move in moves if not (self._spared and move[0] == lost)]


class SparingPolicy(RandomPolicy):
    """Draws everything, and often the loss of a lease where a slot is about to be created."""

    def __init__(self, seed: int, world: SimulatedSystem) -> None:
        super().__init__(seed, rate=0.08)
        self._world = world
        self._chance = random.Random(f"sparing/{seed}")

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        spared = Spared(run, self._world, plain)
        lost = (Fault.LEASE_LOST.value, 0)
        at_slot = any(run.describe(move).startswith(SLOT) for move in plain)
        if at_slot and self._chance.random() < 0.3 and lost in spared.fault_moves():
            return lost
        return super().choose(plain, spared)


def test_no_row_is_lost_in_any_schedule() -> None:
    """Leases lost, pauses, deaths and lost answers, of ours only; J's are Java's own affair."""
    void = 0
    for seed in range(400 if NIGHTLY else 40):
        world = seeded("second-look-swarm", ("a1",))
        answers: Answers = {}
        budgets = {
            Fault.LEASE_LOST: 2,
            Fault.CRASH_BEFORE: seed % 2,
            Fault.AMBIGUOUS_APPLIED: 1,
            Fault.AMBIGUOUS_LOST: 1,
            Fault.TIME_JUMP: 1,
        }
        trace = run(
            world,
            cast(answers, shared),
            seed=seed,
            faults=Faults(
                budgets=budgets, victims=frozenset({"A", "B"}), time_jump_ms=TOLERATED_MS // 2
            ),
            policy=SparingPolicy(seed, world),
        )
        assert trace.failure is None, f"seed {seed}\n{trace.story()}"
        survive(world)
        assert lost_rows(world, answers) == [], f"seed {seed}\n{trace.story()}"
        assert shown_below(world) == [], f"seed {seed}\n{trace.story()}"
        void += SlotKind.VOID in kinds(world)
    assert void or not NIGHTLY


@pytest.mark.parametrize("fault", [None, Fault.CRASH_BEFORE], ids=["it lives", "it dies"])
def test_a_void_compaction_is_completed_again(fault: Fault | None) -> None:
    """Its plan and its files exist as before; a log of J's was added between."""
    world = compactions.planned("second-look-compaction")
    answers: Answers = {}

    def body(ports: ActorPorts) -> None:
        compactions.execute(shared(ports_of(ports)))

    logs = [Job(operation="J", keys=("a1", "a3"))]
    actors = [
        Actor(name="C", body=body),
        writer("J", logs, make_context=foreign, answers=answers),
        Actor(name="D", body=body, start_after="C"),
    ]
    stages = [Until("C", SLOT), Until("C", LOOK, fault), Fault.LEASE_LOST, UntilEnd("J")]
    script = Script(stages)
    trace = run(world, actors, faults=Faults(time_jump_ms=TOLERATED_MS), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    world.now_ms += 4 * TOLERATED_MS
    compactions.execute(shared(outside(world)))
    assert kinds(world)[-4:-1] == [SlotKind.PLAN, SlotKind.COMMIT, SlotKind.VOID]
    assert kinds(world)[-1] is SlotKind.COMMIT
    assert rows_now(world) == {"a1": "J", "a2": "seed", "a3": "J", "b1": "old"}
    assert shown_below(world) == []
    assert open_table(outside(world)).active().pending == ()


# ---------------------------------------------------------------- other readers of the commit log


def void_of_the_dead() -> SimulatedSystem:
    """A died before its second refresh, J wrote without it, B marked its slot void."""
    died = Until("A", LOOK, Fault.CRASH_BEFORE)
    world, _, _ = played([Until("A", SLOT), died, UntilEnd("J"), UntilEnd("B")], batch="n1")
    assert kinds(world)[:3] == [SlotKind.COMMIT, SlotKind.COMMIT, SlotKind.VOID]
    return world


@pytest.mark.spec("BATCH-1")
def test_a_batch_in_a_void_slot_is_written_again() -> None:
    world = void_of_the_dead()
    world.now_ms += 4 * TOLERATED_MS
    ports = make_ports(world, world.new_actor("again", seed=0))
    answer = do_write(
        ports, shared(ports_of(ports)), Job(operation="A", keys=("a1", "a2"), batch_id="n1")
    )
    assert not answer.already_published
    assert rows_now(world)["a2"] == "A"


def test_an_undecided_batch_is_decided_before_its_result_is_returned() -> None:
    died = Until("A", LOOK, Fault.CRASH_BEFORE)
    world, _, _ = played([Until("A", SLOT), died, UntilEnd("J")], batch="n1", others="J")
    assert kinds(world) == [SlotKind.COMMIT, SlotKind.COMMIT]
    ports = make_ports(world, world.new_actor("again", seed=0))
    answer = do_write(
        ports, shared(ports_of(ports)), Job(operation="A", keys=("a1", "a2"), batch_id="n1")
    )
    assert not answer.already_published
    assert rows_now(world)["a2"] == "A"


def test_a_void_write_is_explained_before_and_after_its_files_are_deleted() -> None:
    world = void_of_the_dead()
    table = TableReader(open_table(outside(world), SHARED))
    begun = table.context.commit_log.read(2)
    assert begun is not None
    table.context.ports.storage.delete(timeline_path(f"{begun.requested_time}.commit.requested"))
    table.context.ports.storage.delete(timeline_path(f"{begun.requested_time}.inflight"))
    explanation = explain_instant(table.context, begun.requested_time)
    assert explanation.state == "void"
    assert "another engine committed without it" in explanation.remarks[0]
    answer = resolve(table.context, begun.requested_time)
    assert (answer.outcome, answer.completion_time) == (WriteOutcome.NOT_PUBLISHED, None)


def test_archiving_truncates_both_slots() -> None:
    world = void_of_the_dead()
    survive(world)
    ports = make_ports(world, world.new_actor("later", seed=0))
    context = shared(ports_of(ports))
    register_process(context, {})
    for number in range(6):
        do_write(ports, context, Job(operation=f"L{number}", keys=("b1",)))
    clean(context, CLEANING)
    archive(context, RULES)
    assert truncated_up_to(context.ports.storage) >= 3
    assert {"a3", "b1"} <= rows_now(world).keys()
