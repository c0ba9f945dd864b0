"""
Archiving under faults: killed at every call, raced by writers and another archiver, paused.

Every acknowledged operation must stay visible, on the active or the archived timeline. An archived
instant never returns to the active timeline.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import pytest

from tableservices.archiving.archived_timeline import _write_version_file
from tableservices.archiving.execute import archive
from tableservices.archiving.plan import ArchiveRules, is_due
from tableservices.restoring.rollback import rollback_write
from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    TOLERATED_MS,
    EngineObserver,
    Job,
    client_write,
    open_table,
    outside,
    patiently,
    play,
    ports_of,
    seeded,
    undoer,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import Pause, Script, ScriptStage, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.file_names import BOUNDARIES, HISTORY, SLOTS, TIMELINE, WRITERS
from timeline.ports.ports import Storage
from timeline.properties.setting_enums import CommitLockMode
from timeline.rollback.rollback import rollback_dead_writers
from timeline.truncation import GRACE_OF_SILENCES, raise_low_water_mark, truncated_up_to
from timeline.writer_registry import register_process

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
GRACE_MS = GRACE_OF_SILENCES * TOLERATED_MS
RULES = ArchiveRules.from_properties(
    {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.timeline.compaction.batch.size": "2",
    }
)


def registered(world: object, make: Callable[..., TableContext] = open_table) -> TableContext:
    context = make(world)
    register_process(context, {})
    return context


def archiver(
    name: str = "archiver",
    *,
    rounds: int = 1,
    pause_ms: int = 40,
    make_context: Callable[..., TableContext] = registered,
    rules: ArchiveRules = RULES,
) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make_context)
        for _ in range(rounds):
            try:
                archive(context, rules)
            except HoodooError as error:
                ports.events.emit("sim.archive_failed", why=str(error))
            ports.clock.sleep_ms(pause_ms)

    return Actor(name=name, body=body)


def writer(
    name: str,
    operations: Sequence[str],
    *,
    keys: Sequence[str] = ("a1", "b1"),
    make_context: Callable[..., TableContext] = registered,
) -> Actor:
    """A writer in the registry, which leaves it at its end."""

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, make_context)
        for operation in operations:
            client_write(ports, context, Job(operation=operation, keys=tuple(keys)))

    return Actor(name=name, body=body)


def grown(commits: int = 5) -> SimulatedSystem:
    world = seeded("archive")
    jobs = [f"old{number}" for number in range(commits)]
    play(world, [writer("old", jobs, make_context=open_table)], [])
    return world


@cache
def template(commits: int) -> SimulatedSystem:
    return grown(commits)


def copied(commits: int) -> SimulatedSystem:
    """As ``grown``, without writing it all again."""
    before = template(commits)
    world = SimulatedSystem(scenario=before.scenario, lease_ms=before.lease_ms)
    world.now_ms = before.now_ms
    world.history.extend(before.history)
    for path, entry in before.files.items():
        world.put("old", path, entry.data, durable=True, new=True)
    return world


def comebacks(world: SimulatedSystem) -> list[Violation]:
    """Completed files that were deleted and are there again."""
    gone: set[str] = set()
    back: set[str] = set()
    for change in world.journal:
        if not change.path.startswith(f"{TIMELINE}/") or change.path.endswith(_PENDING):
            continue
        if change.kind == "delete":
            gone.add(change.path)
            back.discard(change.path)
        elif change.path in gone:
            back.add(change.path)
    return [Violation(invariant="GC-3", found=f"{path} came back") for path in sorted(back)]


_PENDING = (".requested", ".inflight", "_version_", ".parquet")


def is_whole(world: SimulatedSystem, facts: EngineObserver) -> list[Violation]:
    """All promises, every commit on the timeline or in the history, slots down to the boundary."""
    found = [*facts.check_end(world), *comebacks(world)]
    context = open_table(outside(world, "auditor"))
    storage = context.ports.storage
    shown = {one.requested_time for one in context.archived_timeline.instants()}
    shown |= {one.requested_time for one in context.active().completed_writes}
    for slot in facts.structure().slots:
        if slot.kind.value == "commit" and slot.requested_time not in shown:
            found.append(Violation(invariant="I6", found=f"{slot.requested_time} is nowhere"))
    numbers = [int(name) for name in storage.names(SLOTS)]
    kept = [number for number in numbers if number > truncated_up_to(storage)]
    if kept != list(range(kept[0], kept[-1] + 1)) or kept[0] > truncated_up_to(storage) + 1:
        found.append(Violation(invariant="GC-2", found=f"a gap in the chain: {kept}"))
    return found


def expect_whole(world: SimulatedSystem, facts: EngineObserver, why: str) -> None:
    """A survivor rolls the dead back, writes and archives; nothing disturbs it any more."""
    world.now_ms += GRACE_MS + 1
    ports = make_ports(world, world.new_actor("survivor", seed=0))
    context = registered(ports_of(ports))
    rollback_dead_writers(context)
    for operation in ("final1", "final2"):
        world.now_ms += GRACE_MS + 1  # rolled back files may be swept by then
        answer = client_write(ports, context, Job(operation=operation, keys=("a1", "z9")))
        assert not isinstance(answer, HoodooError), f"{why}: {answer}"
        archive(context, RULES)
    assert not is_due(context.active(), RULES.archiving), why
    assert is_whole(world, facts) == [], why


def archiving() -> tuple[SimulatedSystem, Sequence[Actor]]:
    return copied(3), [archiver()]


def test_archiver_killed_at_every_call() -> None:
    cases = list(crash_points(archiving, "archiver"))
    assert len(cases) >= 35
    for case in cases:
        why = f"call {case.call} {case.fault}"
        assert case.trace.failure is None, f"{why}: {case.trace.failure}"
        facts = EngineObserver(case.world, commits_retained=RETAINED)
        expect_whole(case.world, facts, why)


def racing() -> tuple[SimulatedSystem, Sequence[Actor]]:
    return copied(3), [
        writer("A", ["A1", "A2", "A3"], keys=("a1", "b1")),
        writer("B", ["B1", "B2"], keys=("b1", "b2")),
        archiver("X", rounds=4),
        archiver("Y", rounds=4, pause_ms=25),
    ]


FAULTS = Faults(
    budgets={
        Fault.CRASH_BEFORE: 1,
        Fault.UNAVAILABLE: 2,
        Fault.AMBIGUOUS_APPLIED: 2,
        Fault.AMBIGUOUS_LATE: 2,
        Fault.LEASE_LOST: 1,
        Fault.TIME_JUMP: 2,
    },
    rate=0.02,
    time_jump_ms=3 * GRACE_MS,
)


@pytest.mark.parametrize("seed", range(200 if NIGHTLY else 6))
def test_writers_and_archivers_race(seed: int) -> None:
    world, actors = racing()
    facts = EngineObserver(world, commits_retained=RETAINED)
    trace = run(world, actors, seed=seed, faults=FAULTS, check_step=facts.check_step)
    assert trace.failure is None, f"{trace.failure}\n{trace.story()}"
    expect_whole(world, facts, f"seed {seed}")


# ---------------------------------------------------------------- sleepers, and rules taken away


def waking_owner(
    *, sleep_ms: int, pins: bool = True
) -> tuple[SimulatedSystem, EngineObserver, list[Violation], str]:
    """
    W took its slot and sleeps before its completed file; others help it, continue and archive.
    """
    world = grown(2)
    facts = EngineObserver(world, commits_retained=RETAINED)
    see = registered if pins else blind_to_pins
    trace = play(
        world,
        [
            writer("W", ["W"], make_context=partial(registered, make=without_lock)),
            writer("V", ["V1", "V2", "V3", "V4"]),
            archiver(make_context=see),
        ],
        [
            Until("W", "create .hoodie/.hoodoo/slots"),
            Until("W", "create .hoodie/timeline"),
            Pause(sleep_ms // 1_000),
            UntilEnd("V"),
            Pause(sleep_ms // 1_000),
            UntilEnd("archiver"),
            UntilEnd("W"),
        ],
        facts=facts,
        jump_ms=1_000,
    )
    return world, facts, is_whole(world, facts), trace.failure or ""


def blind_to_pins(world: object) -> TableContext:
    """An archiver that sees no registry (mutant of GC-3)."""
    return registered(replace(world, storage=Without(world.storage, WRITERS)))  # type: ignore[type-var, attr-defined]


class Without:
    """A storage in which one folder is always empty, and new files in it vanish."""

    def __init__(self, inner: Storage, folder: str) -> None:
        self._inner = inner
        self._folder = folder

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def list(self, folder: str) -> object:
        return [] if folder == self._folder else self._inner.list(folder)

    def create(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if not path.startswith(f"{self._folder}/"):
            self._inner.create(path, data, durable=durable)


def test_a_paused_writer_with_a_live_low_water_mark_finds_its_slot() -> None:
    world, facts, found, failure = waking_owner(sleep_ms=0)
    assert failure == ""
    assert found == []
    assert truncated_up_to(outside(world).storage) < 4  # W's slot is 4
    expect_whole(world, facts, "healed")


@pytest.mark.spec("UNK-4")
def test_a_writer_that_resumes_after_the_grace_restores_no_file() -> None:
    world, facts, found, failure = waking_owner(sleep_ms=2 * GRACE_MS)
    assert failure == ""
    assert found == []
    assert truncated_up_to(outside(world).storage) >= 4
    expect_whole(world, facts, "healed")


@pytest.mark.spec("GC-6")
def test_mutant_that_ignores_low_water_marks_is_found() -> None:
    _, _, found, failure = waking_owner(sleep_ms=0, pins=False)
    assert "GC-3" in failure + str(found)


def without_lock(world: object) -> TableContext:
    return open_table(world, replace(LIMITS, publish_lock=CommitLockMode.NONE))  # type: ignore[arg-type]


def late_creator(
    make_archiver: Callable[..., TableContext] = registered,
    make_writer: Callable[..., TableContext] = registered,
) -> str:
    """W is about to create its slot and sleeps; the number is taken, archived and collected."""
    world = grown(2)
    facts = EngineObserver(world, commits_retained=RETAINED)
    trace = play(
        world,
        [
            writer("W", ["W"], make_context=partial(make_writer, make=without_lock)),
            undoer(),
            writer("V", ["V1", "V2", "V3", "V4"]),
            archiver(make_context=make_archiver),
        ],
        [
            Until("W", "create .hoodie/.hoodoo/slots"),
            Pause(2 * GRACE_MS // 1_000),
            UntilEnd("R"),
            UntilEnd("V"),
            Pause(2 * GRACE_MS // 1_000),
            UntilEnd("archiver"),
            UntilEnd("W"),
        ],
        facts=facts,
        jump_ms=1_000,
    )
    return (trace.failure or "") + "".join(map(str, is_whole(world, facts)))


@pytest.mark.spec("GC-2")
def test_a_slot_created_below_the_truncation_point_decides_nothing() -> None:
    assert late_creator() == ""


@pytest.mark.spec("GC-4")
def test_a_slot_of_an_unregistered_process_decides_nothing() -> None:
    assert late_creator(make_writer=lambda world, make: make(world)) == ""


def hanging_beat(beat: Callable[[TableContext], None] = raise_low_water_mark) -> str:
    """W's heartbeat hangs before it shows its low-water mark; slots that W knows are truncated."""
    world = grown(2)
    facts = EngineObserver(world, commits_retained=RETAINED)

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, partial(registered, make=without_lock))
        beat(context)
        client_write(ports, context, Job(operation="W", keys=("a1", "b1")))

    trace = play(
        world,
        [
            Actor(name="W", body=body),
            writer("V", ["V1", "V2", "V3", "V4"]),
            archiver(),
        ],
        [
            Until("W", "write .hoodie/.hoodoo/writers"),
            Until("W", "names .hoodie/.hoodoo/slots"),
            Pause(2 * GRACE_MS // 1_000),
            UntilEnd("V"),
            Pause(2 * GRACE_MS // 1_000),
            UntilEnd("archiver"),
            UntilEnd("W"),
        ],
        facts=facts,
        jump_ms=1_000,
    )
    if truncated_up_to(outside(world).storage) < 4:
        return "nothing was collected"
    return (trace.failure or "") + "".join(map(str, is_whole(world, facts)))


def trusted_at_once(context: TableContext) -> None:
    """
    A heartbeat that trusts its low-water mark without a check of the truncation point (mutant of
    GC-4).
    """
    context.commit_log.cached_head()
    context.low_water_mark.written_at_ms = context.ports.clock.monotonic_ms()
    raise_low_water_mark(context)


@pytest.mark.spec("GC-4")
def test_a_hanging_heartbeat_does_not_hide_a_lost_low_water_mark() -> None:
    assert hanging_beat() == ""


@pytest.mark.spec("GC-4")
def test_mutant_that_trusts_a_restored_low_water_mark_is_found() -> None:
    assert hanging_beat(trusted_at_once) not in ("", "nothing was collected")


def test_mutant_that_moves_no_truncation_point_is_found() -> None:
    def boundless(world: object) -> TableContext:
        return registered(replace(world, storage=Without(world.storage, BOUNDARIES)))  # type: ignore[type-var, attr-defined]

    assert late_creator(boundless) != ""


def test_an_archiver_with_an_older_listing_does_not_lower_the_version() -> None:
    """It saw manifest n, another made n + 1 and said so: the smaller number is not written."""
    world = grown(5)
    archive(registered(outside(world)), RULES)
    play(world, [writer("new", ["new1", "new2", "new3"], make_context=open_table)], [])
    world.now_ms += 2 * GRACE_MS
    context = registered(outside(world))
    archive(context, RULES)
    storage = context.ports.storage
    version = storage.read(f"{HISTORY}/_version_")
    newest = f"manifest_{version.decode()}"

    class ListedBefore(Without):
        def names(self, folder: str) -> object:
            names = self._inner.names(folder)
            return [name for name in names if name != newest]

    assert int(version) > 1
    _write_version_file(ListedBefore(storage, HISTORY))  # type: ignore[arg-type]
    assert storage.read(f"{HISTORY}/_version_") == version


@pytest.mark.spec("GC-6")
def test_a_rollback_that_was_archived_while_its_owner_paused_is_not_started_again() -> None:
    """Its slot also creates the pending files, and an archived instant has none."""
    world = copied(4)
    newest = open_table(outside(world)).commit_log.read(5)
    assert newest is not None

    def undo(ports: ActorPorts) -> None:
        rollback_write(patiently(ports, registered), newest.requested_time)

    actors = [
        Actor(name="R", body=undo),
        writer("W", [f"w{number}" for number in range(6)]),
        archiver("X", rounds=2),
    ]
    stages: list[ScriptStage] = [
        Until("R", f"create {TIMELINE}/"),
        Pause(3),
        Fault.LEASE_LOST,
        UntilEnd("W"),
        UntilEnd("X"),
        UntilEnd("R"),
    ]
    faults = Faults(time_jump_ms=GRACE_MS, budgets={Fault.LEASE_LOST: 1})
    trace = run(world, actors, faults=faults, policy=Script(stages))
    assert trace.failure is None, trace.story()
    archived = open_table(outside(world)).archived_timeline.instants()
    assert "rollback" in {one.action for one in archived}, trace.story()
    assert [path for path in world.files if ".rollback" in path] == [], trace.story()
