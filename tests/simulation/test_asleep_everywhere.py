"""
Somebody sleeps before each of its calls in turn, loses the lock, and a restore comes meanwhile.

Before all of it a writer died behind its slot, so whoever looks next helps (HELP-1). Nothing that
the restore took away may be there at the end, neither by the hand of an owner nor of a helper,
and the table shows what its chain says (RST-4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tableservices.cleaning.execute import clean
from tableservices.restoring.restore import restore
from tableservices.restoring.savepoints import savepoint
from tests.simulation import test_engine_restore as restores
from tests.simulation.engine_kit import (
    CLEANING,
    LIMITS,
    TOLERATED_MS,
    Job,
    do_write,
    open_table,
    patiently,
    writer,
)
from tests.simulation.test_engine_archive import comebacks
from timeline.context import TableContext, TableLimits
from timeline.errors import HoodooError
from timeline.model.operations import TableType
from timeline.places import SLOTS
from timeline.ports.world import World as EngineWorld
from timeline.properties.setting_names import ForeignWriters, PublishLock
from timeline.testing.faults import Chooser, Fault, Faults, Move
from timeline.testing.ports import Actor, ActorPorts
from timeline.testing.scheduler import run
from timeline.testing.script import Script, Stage, Until, UntilEnd
from timeline.testing.world import World

OURS = LIMITS
LOCK_FREE = replace(LIMITS, publish_lock=PublishLock.NONE)
AUTO = replace(LIMITS, publish_lock=PublishLock.AUTO)
SHARED = replace(LIMITS, foreign_writers=ForeignWriters.EXPECTED)

pytestmark = pytest.mark.spec("RST-4")


class AsleepAt(Script):
    """The stages begin once S has made so many calls."""

    def __init__(self, calls: int, stages: Sequence[Stage]) -> None:
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


def grown(limits: TableLimits, *, far: bool) -> World:
    """Three commits, one that was never begun to its end, and one without its file."""
    world = restores.grown(TableType.COPY_ON_WRITE)
    job = Job(operation="old3", keys=restores.JOBS["old1"])
    dead = writer("unshown", [job], make_context=opening(limits), shuffled=far)
    run(world, [dead], policy=Script([Until("unshown", f"create {SLOTS}/", Fault.CRASH_AFTER)]))
    world.now_ms += 10 * TOLERATED_MS
    return world


def opening(limits: TableLimits) -> Callable[[EngineWorld], TableContext]:
    return lambda world: open_table(world, limits)


def acting(
    name: str,
    limits: TableLimits,
    act: Callable[[ActorPorts, TableContext], object],
    **options: bool,
) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, opening(limits))
        try:
            act(ports, context)
        except HoodooError as error:
            ports.events.emit("sim.refused", who=name, why=str(error))

    return Actor(name=name, body=body, **options)


def writes(ports: ActorPorts, context: TableContext) -> None:
    do_write(ports, context, Job(operation="W", keys=restores.JOBS["W"]))


def cleans(_: ActorPorts, context: TableContext) -> None:
    clean(context, CLEANING)


def saves(_: ActorPorts, context: TableContext) -> None:
    savepoint(context)


@pytest.mark.parametrize(
    ("sleeper", "limits", "far"),
    [
        (writes, OURS, True),
        (writes, SHARED, False),
        pytest.param(writes, LOCK_FREE, True, marks=pytest.mark.slow),
        pytest.param(writes, AUTO, False, marks=pytest.mark.slow),
        (cleans, OURS, True),
        pytest.param(saves, OURS, True, marks=pytest.mark.slow),
        pytest.param(saves, SHARED, False, marks=pytest.mark.slow),
    ],
)
def test_nothing_comes_back_by_the_hand_of_a_sleeper(
    sleeper: Callable[[ActorPorts, TableContext], None],
    limits: TableLimits,
    far: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(restores.JOBS, "old3", restores.JOBS["old1"])
    before = grown(limits, far=far)
    target = restores.time_of(before, "old1")
    calls = 0
    while True:
        world = before.copy(f"asleep-{calls}")
        actors = [
            acting("S", limits, sleeper, shuffled=far),
            acting("R", limits, lambda _, context: restore(context, target, force=True)),
            acting("V", limits, lambda ports, context: do_write(ports, context, LATER)),
        ]
        script = AsleepAt(calls, [Fault.LEASE_LOST, UntilEnd("R"), UntilEnd("V"), UntilEnd("S")])
        faults = Faults(time_jump_ms=10, budgets={Fault.LEASE_LOST: 1})
        trace = run(world, actors, faults=faults, policy=script)
        assert trace.failure is None, trace.story()
        assert comebacks(world) == [], f"asleep before call {calls}\n{trace.story()}"
        restores.expect_whole(world, f"asleep before call {calls}", trace.story())
        if calls and not script.slept:
            break
        calls += 1
    assert calls > 30


LATER = Job(operation="V", keys=restores.JOBS["V"])
