"""
The engine on a store without an atomic create, with a slot store elsewhere (SLOT-6).

The simulated storage only writes; a second one, which creates atomically, is the slot store. It
keeps slots at the paths of the storage, so that checks and survivors of the other scenarios
see them. Every scenario is played again with one rule removed, and must then fail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.simulation import test_compaction as compactions
from tests.simulation import test_engine_archive as archives
from tests.simulation import test_engine_crashes as crashes
from tests.simulation.engine_kit import (
    RETAINED,
    EngineObserver,
    Job,
    found_by,
    new_world,
    open_table,
    outside,
    play,
    rows_now,
    seeded,
    writer,
)
from tests.simulator.faults import Fault
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.script import Until, UntilEnd
from tests.simulator.sim_storage import SimStorage
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.commit.apply import is_applied
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS, TABLE_DESCRIPTOR
from timeline.ports.ports import Names, ObjectExistsError
from timeline.storage import external_slots as decided
from timeline.storage.external_slots import ExternalSlotStorage

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SLOT = "create .hoodie/.hoodoo/slots/"
REQUESTED = ".hoodie/timeline/20260101000000000.commit.requested"
ELSEWHERE = ".hoodie/.hoodoo/decided"


class SimSlots:
    """A slot store in the simulated world: every call is a switching point and may fail."""

    def __init__(self, ports: ActorPorts) -> None:
        self._storage = SimStorage(ports.storage._world, ports.state)

    def create(self, path: str, data: bytes) -> None:
        self._storage.create(_place(path), data)

    def read(self, path: str) -> bytes:
        return self._storage.read(_place(path))

    def names(self, folder: str) -> Names:
        return self._storage.names(_place(folder))

    def delete(self, path: str) -> None:
        self._storage.delete(_place(path))

    def close(self) -> None:
        """Nothing is kept open."""


class ReadsThenWrites(SimSlots):
    """Reads the row, then puts it (hole 4)."""

    def create(self, path: str, data: bytes) -> None:
        if self._storage.stat(_place(path)) is not None:
            raise ObjectExistsError(path)
        self._storage.write(_place(path), data)


def _place(path: str) -> str:
    return path.partition("/")[2] if SLOTS in path else f"{ELSEWHERE}/{path}"


class Decided(ExternalSlotStorage):
    """Keeps its slots at the paths of the storage, so that survivors need no slot store."""

    def __init__(self, ports: ActorPorts, slots: SimSlots) -> None:
        super().__init__(ports.storage, slots, where="sim", key="t", ids=ports.ids)
        self._slots_at = "storage"


def elsewhere(actor: Actor, slots: Callable[[ActorPorts], SimSlots] = SimSlots) -> Actor:
    """The same process on a store without an atomic create."""

    def body(ports: ActorPorts) -> object:
        return actor.body(replace(ports, storage=Decided(ports, slots(ports))))

    return replace(actor, body=body, atomic_create=False)


def adopted(world: SimulatedSystem) -> SimulatedSystem:
    """A table that was made with the storage's own slots, as if a slot store had had them."""
    born = f"{ELSEWHERE}/born/t/000001"
    world.put("founder", born, world.files[TABLE_DESCRIPTOR].data, durable=True, new=True)
    return world


# ---------------------------------------------------------------- crashes and faults


def writing() -> tuple[SimulatedSystem, Sequence[Actor]]:
    world, actors = crashes.writing(WriteOperation.UPSERT)
    return adopted(world), [elsewhere(actor) for actor in actors]


@pytest.mark.spec("SLOT-6")
def test_writer_killed_at_every_call() -> None:
    cases = list(crash_points(writing, "A"))
    assert len(cases) >= 40
    for case in cases:
        crashes.expect_healed(case.world, case.trace, f"call {case.call} {case.fault}")


def compacting() -> tuple[SimulatedSystem, Sequence[Actor]]:
    """One plans and is killed, another of the same kind follows, and neither has atomic creates."""
    world, actors = compactions.compacting()
    next_one = compactions.serving("D", compactions.compact)
    return adopted(world), [
        *(elsewhere(actor) for actor in actors if actor.name == "C"),
        elsewhere(replace(next_one, start_after="C")),
    ]


def unsettled() -> set[int]:
    """
    Numbers of slots below others whose files were never created, over every death of a planner.
    """
    found = set()
    for case in crash_points(compacting, "C"):
        why = f"call {case.call} {case.fault}"
        assert case.trace.failure is None, f"{why}: {case.trace.failure}"
        context = open_table(outside(case.world, "looker"))
        shown, (_, *below) = context.active(), context.commit_log.newest_first()
        found.update(slot.number for slot in below if not is_applied(slot, shown))
    return found


def test_a_plan_without_its_file_is_applied_by_the_next_process() -> None:
    """PUB-3: its slot fixes its requested file, and no lease may block it."""
    assert unsettled() == set()


def test_mutant_that_reserves_requested_files_of_plans_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = re.compile(r"\.hoodie/timeline/[^/]+\.requested")
    monkeypatch.setattr(decided, "_CLAIMED", claims)
    assert unsettled() == {3}


@pytest.mark.parametrize("seed", range(200 if NIGHTLY else 15))
def test_writers_and_archivers_race(seed: int) -> None:
    world, actors = archives.racing()
    adopted(world)
    facts = EngineObserver(world, commits_retained=RETAINED)
    trace = run(
        world,
        [elsewhere(actor) for actor in actors],
        seed=seed,
        faults=archives.FAULTS,
        check_step=facts.check_step,
    )
    assert trace.failure is None, f"{trace.failure}\n{trace.story()}"
    archives.expect_whole(world, facts, f"seed {seed}")


def first_writers() -> tuple[SimulatedSystem, Sequence[Actor]]:
    """Two processes write first to a table that has no identity yet."""
    jobs = {"A": ("a1", "a2"), "B": ("a1", "b1")}
    return new_world("first-writers"), [
        elsewhere(writer(name, [Job(operation=name, keys=keys)])) for name, keys in jobs.items()
    ]


@pytest.mark.parametrize("seed", range(200 if NIGHTLY else 15))
def test_concurrent_first_writers_have_one_table_id_and_one_commit_log(seed: int) -> None:
    world, actors = first_writers()
    facts = EngineObserver(world, commits_retained=RETAINED)
    trace = run(world, actors, seed=seed, faults=archives.FAULTS, check_step=facts.check_step)
    assert trace.failure is None, f"{trace.failure}\n{trace.story()}"
    assert found_by(world, trace) == ""


# ---------------------------------------------------------------- hole 1: one time, two writers


def collide() -> tuple[SimulatedSystem, Trace]:
    """Equal clocks: both choose the same requested time before either shows it."""
    world = adopted(seeded("hole-1-elsewhere"))
    world.call_ms = 0
    actors = [
        elsewhere(writer(name, [Job(operation=name, keys=(key,))]))
        for name, key in (("A", "a2"), ("B", "b2"))
    ]
    requested = "write .hoodie/timeline/"
    stages = [
        Until("A", requested),
        Until("B", requested),
        Until("A", ".inflight"),
        Until("B", ".inflight"),
    ]
    return world, play(world, actors, stages)


@pytest.mark.spec("TL-REQ-1")
def test_hole_1_a_requested_time_is_reserved_before_it_is_visible() -> None:
    world, trace = collide()
    assert found_by(world, trace) == ""
    assert rows_now(world)["a2"] == "A"
    assert rows_now(world)["b2"] == "B"


def test_hole_1_mutant_that_reserves_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decided, "_CLAIMED", re.compile("nothing"))
    world, trace = collide()
    assert "I7" in found_by(world, trace)


# ---------------------------------------------------------------- hole 4: a lease is no fence


def zombie(slots: Callable[[ActorPorts], SimSlots], call: str) -> tuple[SimulatedSystem, Trace]:
    """A loses its lease right before its slot; B commits; A wakes and continues."""
    world = adopted(seeded("hole-4-elsewhere"))
    actors = [
        elsewhere(writer("A", [Job(operation="A", keys=("a1", "a2"))]), slots),
        elsewhere(writer("B", [Job(operation="B", keys=("a1", "a3"))]), slots),
    ]
    stages = [Until("A", call), Fault.LEASE_LOST, UntilEnd("B"), UntilEnd("A")]
    return world, play(world, actors, stages)


def test_hole_4_a_writer_that_lost_its_lease_finds_its_number_taken() -> None:
    world, trace = zombie(SimSlots, SLOT)
    assert trace.failure is None
    assert rows_now(world) == {"a1": "A", "a2": "A", "a3": "B", "b1": "seed"}
    assert found_by(world, trace) == ""


def test_hole_4_mutant_that_reads_then_writes_is_found() -> None:
    world, trace = zombie(ReadsThenWrites, SLOT.replace("create", "write"))
    assert found_by(world, trace)


# ---------------------------------------------------------------- a collected number (GC-2)


@pytest.fixture
def all_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios of the other file, with every process on a store without an atomic create."""

    def played(
        world: SimulatedSystem, actors: Sequence[Actor], *args: object, **options: object
    ) -> Trace:
        if len(actors) == 1:  # the process that makes the table before the scenario
            return play(world, actors, *args, **options)
        return play(adopted(world), [elsewhere(actor) for actor in actors], *args, **options)

    monkeypatch.setattr(archives, "play", played)


@pytest.mark.spec("GC-2")
@pytest.mark.usefixtures("all_elsewhere")
def test_a_truncated_number_that_a_stalled_creator_takes_again_decides_nothing() -> None:
    """SlateDB's RFC-0026: no slot store keeps deleted numbers, so the truncation point decides."""
    assert archives.late_creator() == ""


@pytest.mark.usefixtures("all_elsewhere")
def test_mutant_that_moves_no_truncation_point_is_found() -> None:
    def boundless(world: object) -> object:
        storage = archives.Without(world.storage, archives.BOUNDARIES)
        return archives.registered(replace(world, storage=storage))

    assert archives.late_creator(boundless) != ""
