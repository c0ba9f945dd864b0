"""
An actor sleeps before one of its calls and loses the lock, others end its work, then it wakes.

This module plays such a run, and checks its end whatever the actors did: the rows equal the commit
log, no removed file exists again, nothing is pending or left over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hoodoo.verify.verify import verify
from tableservices.cleaning.execute import clean
from tests.simulation.engine_kit import (
    CLEANING,
    LIMITS,
    TOLERATED_MS,
    Job,
    do_write,
    open_table,
    outside,
    patiently,
    ports_of,
    rows_now,
)
from tests.simulation.test_engine_archive import comebacks
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.faults import Chooser, Fault, Faults, Move
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.script import Script, ScriptStage, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.codecs.commit_log import decode_slot
from timeline.codecs.instant_avro import decode_commit
from timeline.commit.apply import is_applied
from timeline.context import TableContext, TableLimits
from timeline.errors import HoodooError
from timeline.model.file_names import HEARTBEATS, MARKERS, SLOTS
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.setting_enums import CommitLockMode, ForeignWriters
from timeline.rollback.rollback import rollback_dead_writers

OURS = LIMITS
LOCK_FREE = replace(LIMITS, publish_lock=CommitLockMode.NONE)
AUTO = replace(LIMITS, publish_lock=CommitLockMode.AUTO)
SHARED = replace(LIMITS, foreign_writers=ForeignWriters.EXPECTED)

Act = Callable[[ActorPorts, TableContext], object]


class AsleepAt(Script):
    """The stages begin once S has made so many calls."""

    def __init__(self, calls: int, stages: Sequence[ScriptStage]) -> None:
        super().__init__(stages)
        self._left = calls
        self.slept = False

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        if self._left and run.is_running("S"):
            mine = [move for move in plain if (run.task_of(move) or ("", 0))[0] == "S"]
            if not mine:
                return Fault.TIME_JUMP.value, 0
            self._left -= 1
            return mine[-1]
        self.slept, self._left = self.slept or run.is_running("S"), 0
        return super().choose(plain, run)


def opening(limits: TableLimits) -> Callable[[EngineWorld], TableContext]:
    return lambda world: open_table(world, limits)


def acting(
    name: str,
    limits: TableLimits,
    act: Act,
    make_context: Callable[[EngineWorld], TableContext] | None = None,
    **options: bool,
) -> Actor:
    def body(ports: ActorPorts) -> None:
        try:
            act(ports, patiently(ports, make_context or opening(limits)))
        except HoodooError as error:
            ports.events.emit("sim.refused", who=name, why=f"{type(error).__name__}: {error}")

    return Actor(name=name, body=body, **options)


def all_slots(world: SimulatedSystem) -> list[Slot]:
    """Return every slot there ever was, also truncated ones."""
    data = {path: one for path, one in world.removed.items() if path.startswith(f"{SLOTS}/")}
    data |= {path: world.files[path].data for path in world.paths_below(SLOTS)}
    return [
        decode_slot(one, path=path, number=int(path.rpartition("/")[2]))
        for path, one in sorted(data.items())
    ]


def rows_of_log(slots: Sequence[Slot], jobs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Record key to operation; services change no row, and a void slot decided nothing."""
    void = {one.requested_time for one in slots if one.kind is SlotKind.VOID}
    states: dict[str, dict[str, str]] = {}
    before: dict[str, dict[str, str]] = {}
    now: dict[str, str] = {}
    pending_void = [
        (one.number, later.number)
        for one in slots
        if one.kind is SlotKind.COMMIT and one.requested_time in void
        for later in slots
        if later.kind is SlotKind.VOID and later.requested_time == one.requested_time
    ]
    never = {number for number, later in pending_void if later == number + 1}
    for slot in slots:
        if slot.kind is SlotKind.COMMIT and slot.number not in never:
            operation = decode_commit(slot.body).extra_metadata.get(OPERATION_KEY)
            before[slot.requested_time] = now
            if operation is not None:
                now = now | dict.fromkeys(jobs[operation], operation)
            states[slot.requested_time] = now
        elif slot.kind is SlotKind.RESTORE:
            undoes = slot.action is Action.ROLLBACK
            now = (before if undoes else states)[slot.requested_time]
    return now


@dataclass(frozen=True, kw_only=True)
class Story:
    """A simulated system, its sleeper S, the actors meanwhile, and the final cleanup."""

    before: SimulatedSystem
    jobs: Mapping[str, Sequence[str]]
    sleeper: Act
    others: Sequence[Actor]
    limits: TableLimits
    far: bool
    make_context: Callable[[EngineWorld], TableContext] | None = None
    pauses: Sequence[ScriptStage] = ()
    jump_ms: int = 10
    finish: Callable[[TableContext], object] = lambda _: None
    # expected rows; None means those of the commit log
    rows: Callable[[SimulatedSystem], list[str]] | None = None
    judge: Callable[[SimulatedSystem], list[str]] | None = None  # instead of all that


def sweep(story: Story, *, every: int = 1) -> list[str]:
    """Return the findings for each call before which S slept."""
    found: list[str] = []
    calls = 0
    while True:
        world = story.before.copy(f"asleep-{calls}")
        sleeper = acting("S", story.limits, story.sleeper, story.make_context, shuffled=story.far)
        stages: list[ScriptStage] = [Fault.LEASE_LOST, *story.pauses]
        stages += [UntilEnd(one.name) for one in story.others]
        script = AsleepAt(calls, [*stages, UntilEnd("S")])
        faults = Faults(time_jump_ms=story.jump_ms, budgets={Fault.LEASE_LOST: 1})
        trace = run(world, [sleeper, *story.others], faults=faults, policy=script)
        wrong = [trace.failure] if trace.failure is not None else judged(world, story)
        if wrong:
            text = "\n".join(map(str, wrong))
            found.append(f"asleep before call {calls}: {text}\n{trace.story(400)}")
        if calls and not script.slept:
            break
        calls += every
    assert calls > 10, "it made no calls"
    return found


def judged(world: SimulatedSystem, story: Story) -> list[str]:
    """Let a survivor end the remaining work, write and clean; then compare with the commit log."""
    if story.judge is not None:
        return story.judge(world)
    back = [str(one) for one in comebacks(world)]

    def body(ports: ActorPorts) -> None:
        context = open_table(
            ports_of(ports), replace(story.limits, publish_lock=LIMITS.publish_lock)
        )
        ports.clock.sleep_ms(2 * TOLERATED_MS)
        rollback_dead_writers(context)
        for _ in range(2):
            story.finish(context)
        for _ in range(3):
            do_write(ports, context, Job(operation="final", keys=("a1", "b1", "z9")))
            clean(context, CLEANING)
            ports.clock.sleep_ms(TOLERATED_MS + 1)

    healing = run(world, [Actor(name="survivor", body=body)])
    if healing.failure is not None:
        return [*back, f"{healing.failure}\n{healing.story()}"]
    found = back + [str(one) for one in comebacks(world) if str(one) not in back]
    try:
        found += story.rows(world) if story.rows is not None else _rows(world, story.jobs)
    except (AssertionError, HoodooError) as error:
        return [*found, repr(error)]
    context = open_table(outside(world, "auditor"))
    active = context.active()
    found += [f"pending: {one}" for one in active.pending]
    last = context.commit_log.read(context.commit_log.head())
    if last is not None and not is_applied(last, active):
        found.append(f"not settled: {last.number}")
    found += [f"left over: {one}" for one in world.paths_below(MARKERS)]
    found += [f"left over: {one}" for one in world.paths_below(HEARTBEATS)]
    report = verify(context, history=True)
    found += [f"{one.kind} {one.path}: {one.message}" for one in (*report.problems, *report.notes)]
    return found


def _rows(world: SimulatedSystem, jobs: Mapping[str, Sequence[str]]) -> list[str]:
    expected = rows_of_log(all_slots(world), {**jobs, "final": ("a1", "b1", "z9")})
    rows = rows_now(world)
    return [] if rows == expected else [f"rows are {rows}, not {expected}"]
