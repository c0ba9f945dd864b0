"""
The executor of a plan sleeps before each of its calls, and others end its work.

A restore, a cancel, another executor, the rollback of the newest write, an archiver, or the table
is dropped and made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest

from filegroups.schema.new_table import new_table_properties
from filegroups.table import create_table_files
from tableservices.archiving.execute import archive
from tableservices.cleaning.execute import clean
from tableservices.planned_service import Phase, PlannedService, run_round
from tableservices.restoring.restore import restore
from tableservices.restoring.rollback import rollback_write
from tableservices.service import pending_plans
from tests.simulation import stories_of_dropped_tables as dropped
from tests.simulation import test_compaction as compactions
from tests.simulation import test_engine_archive as archives
from tests.simulation import test_engine_clustering as clusterings
from tests.simulation.asleep_kit import (
    LOCK_FREE,
    OURS,
    SHARED,
    Act,
    Story,
    acting,
    all_slots,
    opening,
    sweep,
)
from tests.simulation.engine_kit import (
    LIMITS,
    Job,
    client_write,
    do_write,
    open_table,
    outside,
    ports_of,
    rows_now,
)
from tests.simulation.stories_of_dropped_tables import BELOW, MADE_ANEW_MS, OWN
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.script import Pause, Script, ScriptStage, Until, UntilEnd
from tests.simulator.world import Change, SimulatedSystem
from timeline.commit.cancel_plan import cancel_pending_plan
from timeline.context import TableContext, TableLimits
from timeline.model.commit_metadata import TableType
from timeline.model.file_names import HISTORY, SLOTS, TIMELINE
from timeline.model.instant import Action
from timeline.model.slot import SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.truncation import truncated_up_to

COW, MOR = TableType.COPY_ON_WRITE, TableType.MERGE_ON_READ
NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
EVERY = 1 if NIGHTLY else 2
JOBS = {
    "seed": ("a1", "a2", "b1"),
    "old": ("a1", "b1"),
    "older": ("a2",),
    "second": ("a3", "a4"),
    "third": ("a1",),
    "V": ("a1", "c1"),
    **{f"old{number}": ("a1", "b1") for number in range(6)},
    **{f"w{number}": ("a1", "b1") for number in range(6)},
}
SERVICES: dict[Action, PlannedService] = {
    Action.COMPACTION: compactions.SERVICE,
    Action.LOGCOMPACTION: compactions.OF_LOGS,
    Action.CLUSTERING: clusterings.SERVICE,
}


def does(action: Action, part: Phase = Phase.BOTH) -> Act:
    return lambda _, context: run_round(context, SERVICES[action], part, now=True)


def finishes(context: TableContext) -> None:
    for service in SERVICES.values():
        if context.config.table_type is COW and service is not clusterings.SERVICE:
            continue
        run_round(context, service, Phase.EXECUTE, now=True)


# ---------------------------------------------------------------- actors meanwhile


def restores(_: ActorPorts, context: TableContext) -> None:
    """To the second write of all."""
    second = sorted(context.active().completed_writes, key=lambda one: one.completion_time or "")[1]
    restore(context, second.requested_time, force=True)


def cancels(_: ActorPorts, context: TableContext) -> None:
    for one in pending_plans(context.active()):
        cancel_pending_plan(context, one)


def executes(_: ActorPorts, context: TableContext) -> None:
    """Executes the plan; treats the sleeper as dead."""
    for one in pending_plans(context.active()):
        context.ports.storage.delete(f".hoodie/.heartbeat/{one.requested_time}")
        SERVICES[one.action].execute(context, one)


def rolls_back(_: ActorPorts, context: TableContext) -> None:
    newest = max(context.active().completed_writes, key=lambda one: one.completion_time or "")
    rollback_write(context, newest.requested_time)


def writes(ports: ActorPorts, context: TableContext) -> None:
    do_write(ports, context, Job(operation="V", keys=JOBS["V"]))


def writes_on(ports: ActorPorts, context: TableContext) -> None:
    for number in range(6):
        do_write(ports, context, Job(operation=f"w{number}", keys=JOBS["w0"]))


def archives_all(ports: ActorPorts, context: TableContext) -> None:
    for _ in range(2):
        archive(context, archives.RULES)
        ports.clock.sleep_ms(40)


def both(*acts: Act) -> Act:
    def all_(ports: ActorPorts, context: TableContext) -> None:
        for act in acts:
            act(ports, context)

    return all_


MEANWHILE: dict[str, Sequence[Act]] = {
    "restore": (restores, writes),
    "restore alone": (restores,),
    "cancel": (cancels, writes),
    "executor": (executes, writes),
    "executor, restore": (executes, restores),
    "rollback": (rolls_back, writes),
    "rollback alone": (rolls_back,),
    "executor, rollback": (executes, rolls_back),
    "cancel, restore": (cancels, restores),
    "writer, restore": (writes, restores),
}


@cache
def grown(action: Action, table_type: TableType) -> SimulatedSystem:
    if action is Action.CLUSTERING:
        return clusterings.small_files("asleep", table_type)
    return compactions.twice_logged("asleep")


def slept(
    action: Action,
    who: str,
    limits: TableLimits,
    *,
    far: bool,
    table_type: TableType = MOR,
    every: int = 1,
) -> list[str]:
    others = [acting(f"R{n}", limits, act) for n, act in enumerate(MEANWHILE[who])]
    return sweep(
        Story(
            before=grown(action, table_type),
            jobs=JOBS,
            sleeper=does(action),
            others=others,
            limits=limits,
            far=far,
            finish=finishes,
        ),
        every=every,
    )


LIMITS_OF = {"ours": OURS, "none": LOCK_FREE, "shared": SHARED}
MET = [
    (action, table_type, who, mode)
    for action, table_type in (
        (Action.COMPACTION, MOR),
        (Action.LOGCOMPACTION, MOR),
        (Action.CLUSTERING, COW),
        (Action.CLUSTERING, MOR),
    )
    for who in MEANWHILE
    for mode in LIMITS_OF
]
QUICK = [
    (Action.COMPACTION, MOR, "executor, restore", "ours"),
    (Action.LOGCOMPACTION, MOR, "restore", "none"),
    (Action.CLUSTERING, COW, "cancel", "shared"),
]


@pytest.mark.spec("RST-4")
@pytest.mark.spec("CAN-1")
@pytest.mark.parametrize(
    ("action", "table_type", "who", "mode"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in MET if one not in QUICK)],
)
def test_a_plan_ends_once_while_its_executor_pauses(
    action: Action, table_type: TableType, who: str, mode: str
) -> None:
    far = mode != "shared"
    every = 1 if NIGHTLY else 5
    found = slept(action, who, LIMITS_OF[mode], far=far, table_type=table_type, every=every)
    assert found == []


# ---------------------------------------------------------------- the archive, and past it

GRACE = [Pause(2 * archives.GRACE_MS // 1_000)]


def cleans_and_archives(ports: ActorPorts, context: TableContext) -> None:
    for _ in range(2):
        clean(context, archives.RULES.cleaning)
        archive(context, archives.RULES)
        ports.clock.sleep_ms(2 * archives.GRACE_MS)


def registered(limits: TableLimits) -> Callable[[EngineWorld], TableContext]:
    return partial(archives.registered, make=opening(limits))


def cut_slept(
    who: Sequence[Act], limits: TableLimits, *, far: bool, past: bool, every: int = 1
) -> list[str]:
    others = [acting(f"R{n}", limits, act) for n, act in enumerate(who)]
    return sweep(
        Story(
            before=old_commits(),
            jobs={**JOBS, "seed": ("a1", "b1")},
            sleeper=archives_all,
            others=others,
            limits=limits,
            far=far,
            make_context=registered(limits),
            pauses=GRACE if past else (),
            jump_ms=1_000,
            finish=lambda context: archive(context, archives.RULES),
        ),
        every=every,
    )


@cache
def old_commits() -> SimulatedSystem:
    """Five commits, none of them archived."""
    return archives.grown(5)


def restores_newest_but_one(_: ActorPorts, context: TableContext) -> None:
    second = sorted(context.active().completed_writes, key=lambda one: one.completion_time or "")[
        -2
    ]
    restore(context, second.requested_time, force=True)


#: Actors that run while an archiver sleeps.
AMID_A_CUT: dict[str, Sequence[Act]] = {
    "restore": (restores_newest_but_one, writes_on),
    "restore, archiver": (restores_newest_but_one, writes_on, archives_all),
    "rollback": (rolls_back, writes_on, archives_all),
    "archiver": (writes_on, archives_all),
}


@pytest.mark.spec("GC-3")
@pytest.mark.spec("GC-4")
@pytest.mark.slow
@pytest.mark.parametrize("mode", LIMITS_OF)
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("who", AMID_A_CUT)
def test_an_archiver_that_paused_during_its_truncation_moves_nothing_back(
    who: str, past: bool, mode: str
) -> None:
    limits, every = LIMITS_OF[mode], 1 if NIGHTLY else 4
    far = mode != "shared"
    assert cut_slept(AMID_A_CUT[who], limits, far=far, past=past, every=every) == []


@pytest.mark.spec("RB-10")
@pytest.mark.spec("GC-6")
@pytest.mark.parametrize(
    ("ended_by", "call"),
    [
        (executes, "create .hoodie/timeline/"),
        (cancels, "create a/"),
        pytest.param(executes, "create a/", marks=pytest.mark.slow),
        pytest.param(cancels, "create .hoodie/timeline/", marks=pytest.mark.slow),
    ],
)
def test_an_executor_of_a_plan_archived_long_ago_deletes_only_its_own_files(
    ended_by: Act, call: str
) -> None:
    """It is about to begin the plan, or writes for it, and sleeps for longer than the grace."""
    world = compactions.planned("asleep-executor")
    acts = (ended_by, writes_on, cleans_and_archives)
    others = [acting(f"R{n}", OURS, act) for n, act in enumerate(acts)]
    sleeper = acting("S", OURS, does(Action.COMPACTION, Phase.EXECUTE), registered(OURS))
    stages: list[ScriptStage] = [Until("S", call), *GRACE, *(UntilEnd(one.name) for one in others)]
    script = Script([*stages, UntilEnd("S")])
    trace = run(world, [sleeper, *others], faults=Faults(time_jump_ms=1_000), policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    [plan] = [one for one in all_slots(world) if one.kind is SlotKind.PLAN]
    assert plan.requested_time < (open_table(outside(world)).active().first_write_time or "")
    assert rows_now(world) == {"a1": "w5", "a2": "seed", "b1": "w5"}, trace.story()
    left = [path for path in world.files if f"_{plan.requested_time}." in path]
    assert left == [] or ended_by is executes, trace.story()
    assert [path for path in world.paths_below(TIMELINE) if plan.requested_time in path] == []


@pytest.mark.spec("HELP-2")
def test_a_plan_that_was_restored_away_and_truncated_during_a_pause_stays_invisible() -> None:
    """The restore's slot is truncated too, so nothing shows the restore afterwards."""
    world = compactions.twice_logged("collected-plan")
    acts = (restores, writes_on, cleans_and_archives)
    others = [acting(f"R{n}", OURS, act) for n, act in enumerate(acts)]
    stages: list[ScriptStage] = [
        Until("S", f"create {SLOTS}/"),
        Until("S", f"names {HISTORY}"),
        Fault.LEASE_LOST,
        *GRACE,
        *(UntilEnd(one.name) for one in others),
        UntilEnd("S"),
    ]
    sleeper = acting("S", OURS, does(Action.COMPACTION, Phase.SCHEDULE))
    faults = Faults(time_jump_ms=1_000, budgets={Fault.LEASE_LOST: 1})
    script = Script(stages)
    trace = run(world, [sleeper, *others], faults=faults, policy=script)
    assert trace.failure is None, trace.story()
    assert script.played, trace.story()
    [plan] = [one for one in all_slots(world) if one.kind is SlotKind.PLAN]
    assert truncated_up_to(outside(world).storage) > plan.number, trace.story()
    assert open_table(outside(world)).active().pending == (), trace.story()


# ---------------------------------------------------------------- another table in its place


def drops(ports: ActorPorts, _: TableContext) -> None:
    """The table goes with all it has, and another one is made and written to."""
    engine = ports_of(ports)
    for folder in (*BELOW, ".hoodie"):
        engine.storage.delete_folder(folder)
    ports.clock.sleep_ms(MADE_ANEW_MS)
    made = new_table_properties(
        "t",
        record_key_fields=("id",),
        partition_fields=("part",),
        table_version=9,
        table_type=MOR,
    )
    create_table_files(engine, made, LIMITS)
    context = open_table(engine, LIMITS)
    for number in range(3):
        client_write(ports, context, Job(operation=f"D{number}", keys=(f"{OWN}-{number}",)))


def replaced(
    sleeper: Act,
    before: SimulatedSystem,
    limits: TableLimits,
    *,
    far: bool,
    every: int = 1,
    pins: bool = False,
) -> list[str]:
    return sweep(
        Story(
            before=before,
            jobs={},
            sleeper=sleeper,
            others=[acting("D", limits, drops)],
            limits=limits,
            far=far,
            make_context=registered(limits) if pins else None,
            judge=in_the_new_table,
        ),
        every=every,
    )


def in_the_new_table(world: SimulatedSystem) -> list[str]:
    """The new table's writers see their rows, and nothing of the old table is pending."""
    if any(one.actor == "S" and one.kind == "delete" for one in own_slots(world)):
        return []  # slept between its check and a delete of that round: beyond SLOT-10
    pending = open_table(outside(world)).active().pending
    return [*map(str, dropped.judge(True, world)), *(f"pending: {one}" for one in pending)]


def own_slots(world: SimulatedSystem) -> list[Change]:
    """Changes of slots since the new table has any."""
    slots = [one for one in world.journal if one.path.startswith(f"{SLOTS}/")]
    first = next(
        (at for at, one in enumerate(slots) if one.actor == "D" and one.kind == "create"),
        len(slots),
    )
    return slots[first:]


@pytest.mark.spec("SLOT-10")
def test_an_archiver_that_paused_while_its_table_was_replaced_leaves_no_file_in_its_archive() -> (
    None
):
    assert replaced(archives_all, old_commits(), OURS, far=False, pins=True, every=EVERY) == []


@pytest.mark.spec("SLOT-10")
@pytest.mark.parametrize(
    ("action", "table_type"),
    [(Action.COMPACTION, MOR), pytest.param(Action.CLUSTERING, COW, marks=pytest.mark.slow)],
)
def test_an_executor_that_paused_while_its_table_was_replaced_starts_nothing_there(
    action: Action, table_type: TableType
) -> None:
    assert replaced(does(action), grown(action, table_type), OURS, far=False, every=3) == []
