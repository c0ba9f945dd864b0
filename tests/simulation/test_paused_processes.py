"""
An actor sleeps before each of its calls, loses the lock, and a restore runs meanwhile.

Before all of it a writer died after its slot, so the next reader of the commit log helps (HELP-1).
No instant that the restore removed may exist at the end, made by its owner or by a helper. The
table equals its commit log (RST-4).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tableservices.cleaning.execute import clean
from tableservices.restoring.restore import restore
from tableservices.restoring.savepoints import savepoint
from tests.simulation import test_engine_restore as restores
from tests.simulation.asleep_kit import (
    AUTO,
    LOCK_FREE,
    OURS,
    SHARED,
    AsleepAt,
    acting,
    opening,
)
from tests.simulation.engine_kit import CLEANING, TOLERATED_MS, Job, do_write, writer
from tests.simulation.test_engine_archive import comebacks
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.script import Script, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext, TableLimits
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import SLOTS

pytestmark = pytest.mark.spec("RST-4")


def grown(limits: TableLimits, *, far: bool) -> SimulatedSystem:
    """Three commits, one that was never begun to its end, and one without its file."""
    world = restores.grown(TableType.COPY_ON_WRITE)
    job = Job(operation="old3", keys=restores.JOBS["old1"])
    dead = writer("unshown", [job], make_context=opening(limits), shuffled=far)
    run(world, [dead], policy=Script([Until("unshown", f"create {SLOTS}/", Fault.CRASH_AFTER)]))
    world.now_ms += 10 * TOLERATED_MS
    return world


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
def test_a_resumed_process_restores_no_restored_away_file(
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
