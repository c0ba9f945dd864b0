"""
LOCK-1: the shared lock of hoodoo writers, as it is shipped, in a modelled object store.

First the lock alone: clients that share it, clients that want it alone, and one that follows Java's
own rules. Then the whole engine, whose writers commit on a high-latency store under that lock.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from filegroups.writing.write_request import CommitResult
from lockproviders.acquire import LockPorts, ProviderLock, WaitBudget
from lockproviders.storage_based import shared_lock as sharing
from lockproviders.storage_based.client import StorageClient
from lockproviders.storage_based.lock_file import (
    ChangedError,
    LockRecord,
    ObjectVersion,
    StorageHolding,
    Tag,
)
from lockproviders.storage_based.shared_lock import SharedFileHolding, SharedLockState
from tests.simulation.engine_kit import (
    LIMITS,
    RETAINED,
    EngineObserver,
    Job,
    client_write,
    heal,
    open_table,
    ports_of,
    rows_now,
    seeded,
)
from tests.simulation.stories_of_others import TERMS, ModelObject
from tests.simulator.faults import Fault, Faults
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.world import ActorState, SimulatedSystem
from timeline.context import TableLimits
from timeline.errors import HoodooError, UnavailableError
from timeline.model.file_names import SLOTS
from timeline.ports.ports import AmbiguousWriteError

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SCHEDULES = 30_000 if NIGHTLY else 1_500
LENGTH_MS = sharing.LENGTH_MS_MAX
JAVA_DRIFT_MS = 500


@dataclass
class Holders:
    """The holders of the lock, as each of them believes."""

    shared: dict[str, tuple[ActorState, SharedFileHolding]] = field(default_factory=dict)
    alone: dict[str, tuple[ActorState, StorageHolding]] = field(default_factory=dict)
    java: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)  # kinds of holders that there were
    crowd: int = 0  # so many had it together at once

    def check_step(self, _world: SimulatedSystem) -> list[Violation]:
        together = [
            name
            for name, (actor, one) in self.shared.items()
            if not actor.dead and (one.expires_in_ms() or 0) > one.margin_ms
        ]
        alone = [
            name
            for name, (actor, one) in self.alone.items()
            if not actor.dead and one.is_held() and one.ready_in_ms() == 0
        ]
        self.crowd = max(self.crowd, len(together))
        kinds = {"shared": together, "alone": alone, "java": sorted(self.java)}
        self.seen |= {kind for kind, names in kinds.items() if names}
        if len(alone) + len(self.java) + bool(together) < 2:
            return []
        return [Violation(invariant="LOCK-1", found=f"{together}, {alone} and {self.java} have it")]


def client_of(world: SimulatedSystem, ports: ActorPorts) -> StorageClient:
    place = ModelObject(world, ports.state)
    return StorageClient(place, TERMS, clock=ports.clock, ids=ports.ids)  # type: ignore[arg-type]


def sharer(name: str, holders: Holders, draw: random.Random, world: SimulatedSystem) -> Actor:
    """Has it again and again, sometimes for longer than one holding lasts."""
    uses = [draw.choice((300, 1_500, 4_000)) for _ in range(draw.choice((2, 4)))]
    starts = draw.random() < 0.8

    def body(ports: ActorPorts) -> None:
        client = client_of(world, ports)
        for use_ms in uses:
            held = tried(lambda: client.try_share(name, starts=starts), ports)
            if isinstance(held, SharedFileHolding):
                holders.shared[name] = ports.state, held
                for _ in range(max(1, use_ms // 1_000)):
                    ports.clock.sleep_ms(min(use_ms, 1_000))
                    done(held.renew, ports)
                del holders.shared[name]
            elif isinstance(held, StorageHolding):
                keep(name, held, holders, ports, 300)
            ports.clock.sleep_ms(200)
        client.close()

    return Actor(name=name, body=body, clock_offset_ms=draw.choice((0, 200, -200)))


def loner(name: str, holders: Holders, draw: random.Random, world: SimulatedSystem) -> Actor:
    """Wants it for itself, after a while."""
    after_ms = draw.choice((0, 700, 2_500, 9_000))

    def body(ports: ActorPorts) -> None:
        client = client_of(world, ports)
        ports.clock.sleep_ms(after_ms)
        held = tried(lambda: client.try_acquire(name), ports)
        if isinstance(held, StorageHolding):
            keep(name, held, holders, ports, 800)
        client.close()

    return Actor(name=name, body=body, clock_offset_ms=draw.choice((0, 200, -200)))


def keep(name: str, held: StorageHolding, holders: Holders, ports: ActorPorts, use_ms: int) -> None:
    holders.alone[name] = ports.state, held
    ports.clock.sleep_ms(held.ready_in_ms())
    ports.clock.sleep_ms(use_ms)
    del holders.alone[name]
    done(held.release, ports)


def tried(take: Callable[[], object], ports: ActorPorts) -> object:
    for _ in range(60):
        held = done(take, ports)
        if held is not None:
            return held
        ports.clock.sleep_ms(250)
    return None


def done(work: Callable[[], object], ports: ActorPorts) -> object:
    try:
        return work()
    except (UnavailableError, HoodooError):
        ports.events.emit("sim.lock_trouble")
        return None


def java(
    name: str, held: set[str], draw: random.Random, world: SimulatedSystem, *, sections: int = 1
) -> Actor:
    """Java's provider: its own clock and half a second decide; it checks once a second."""
    after_ms = draw.choice((0, 700, 2_500, 9_000))

    def body(ports: ActorPorts) -> None:
        place = ModelObject(world, ports.state)
        ports.clock.sleep_ms(after_ms)
        left = sections
        for _ in range(100):
            tag = java_took(place, ports)
            if tag is None:
                ports.clock.sleep_ms(1_000)
                continue
            held.add(name)
            ports.clock.sleep_ms(800)
            held.discard(name)
            sent(place, LockRecord(expired=True, valid_until_ms=0, owner=name), tag)
            left -= 1
            if not left:
                return
            ports.clock.sleep_ms(1_000)

    return Actor(name=name, body=body)


def java_took(place: ModelObject, ports: ActorPorts) -> Tag | None:
    try:
        seen: ObjectVersion | None = place.read()
    except UnavailableError:
        return None
    now_ms = ports.clock.now_ms()
    if seen is not None:
        record = LockRecord.decode(seen.data, place.address)
        if not record.expired and now_ms <= record.valid_until_ms + JAVA_DRIFT_MS:
            return None
    wanted = LockRecord(expired=False, valid_until_ms=now_ms + 20_000, owner="java")
    return sent(place, wanted, None if seen is None else seen.tag)


def sent(place: ModelObject, record: LockRecord, over: Tag | None) -> Tag | None:
    try:
        return place.put(record.encode(), over)
    except (ChangedError, AmbiguousWriteError, UnavailableError):
        return None


def play_lock(seed: int) -> tuple[str, Holders]:
    draw = random.Random(f"shared lock {seed}")
    world, holders = SimulatedSystem(scenario="shared-lock"), Holders()
    actors = [sharer(name, holders, draw, world) for name in "AB"[: draw.choice((1, 2, 2))]]
    actors += [loner(name, holders, draw, world) for name in "LM"[: draw.choice((0, 1, 1, 2))]]
    if draw.random() < 0.6:
        actors.append(java("J", holders.java, draw, world))
    budgets = {
        Fault.AMBIGUOUS_APPLIED: draw.choice((0, 1, 2)),
        Fault.AMBIGUOUS_LOST: draw.choice((0, 1)),
        Fault.DUPLICATED: draw.choice((0, 1)),
        Fault.CRASH_BEFORE: draw.choice((0, 0, 1)),
        Fault.CRASH_AFTER: draw.choice((0, 0, 1)),
    }
    victims = frozenset("ABLM")
    trace = run(
        world,
        actors,
        seed=seed,
        faults=Faults(budgets=budgets, victims=victims),
        check_step=holders.check_step,
    )
    return (
        "" if trace.failure is None else f"seed {seed}: {trace.failure}\n{trace.story()}",
        holders,
    )


@pytest.mark.spec("LOCK-1")
def test_a_shared_lock_never_overlaps_with_an_exclusive_holder_or_java() -> None:
    seen: set[str] = set()
    crowd = 0
    for seed in range(SCHEDULES):
        failure, holders = play_lock(seed)
        assert not failure, failure
        seen |= holders.seen
        crowd = max(crowd, holders.crowd)
    assert seen == {"shared", "alone", "java"}
    assert crowd == 2


def first_failure() -> str:
    return next(filter(None, (play_lock(seed)[0] for seed in range(600))), "")


def test_an_exclusive_holder_that_does_not_wait_for_members_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StorageHolding, "ready_in_ms", lambda self: 0)
    assert "have it" in first_failure()


def test_a_lease_that_is_counted_from_the_answer_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SharedFileHolding, "expires_in_ms", lambda self: LENGTH_MS)
    assert "have it" in first_failure()


def test_a_member_that_releases_the_shared_lock_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SharedLockState.again

    def gives_back(self: SharedLockState, note: str) -> object:
        seen = self._place.read()
        if seen is not None:
            record = LockRecord.decode(seen.data, self._place.address)
            if record.is_shared:
                sent(self._place, record.released(), seen.tag)  # type: ignore[arg-type]
        return real(self, note)

    monkeypatch.setattr(SharedLockState, "again", gives_back)
    assert "have it" in first_failure()


# ---------------------------------------------------------------- the engine under it

BUDGET = WaitBudget(
    deadline_ms=120_000,
    try_ms=60_000,
    retries=1,
    pause_ms=100,
    hold_budget_ms=0,
    poll_first_ms=50,
    poll_max_ms=250,
)
QUICK = replace(LIMITS, retry=replace(LIMITS.retry, lock_short_ms=600_000))


def publisher(
    name: str,
    jobs: list[Job],
    world: SimulatedSystem,
    answers: dict[str, CommitResult | HoodooError],
    limits: TableLimits = QUICK,
) -> Actor:
    def body(ports: ActorPorts) -> None:
        lock = ProviderLock(
            "storage_based",
            client_of(world, ports),
            budget=BUDGET,
            ports=LockPorts(
                clock=ports.clock, ids=ports.ids, events=ports.events, executor=ports.executor
            ),
        )
        context = open_table(replace(ports_of(ports), lock=lock), limits)
        for job in jobs:
            answers[job.operation] = client_write(ports, context, job)
        lock.close()

    return Actor(name=name, body=body, shuffled=True)


class OursBesideJava:
    """A table's rules, and that no slot is taken while Java has the lock."""

    def __init__(self, world: SimulatedSystem) -> None:
        self.facts = EngineObserver(world, commits_retained=RETAINED)
        self.java: set[str] = set()
        self.slots = self._slots(world)

    def check_step(self, world: SimulatedSystem) -> list[Violation]:
        found = list(self.facts.check_step(world))
        before, self.slots = self.slots, self._slots(world)
        if self.java and self.slots != before:
            found.append(Violation(invariant="LOCK-1", found="a slot while Java has the lock"))
        return found

    @staticmethod
    def _slots(world: SimulatedSystem) -> int:
        return sum(path.startswith(f"{SLOTS}/") for path in world.files)


def play_engine(seed: int) -> SimulatedSystem:
    draw = random.Random(f"shared lock, engine {seed}")
    world = seeded("shared-lock-engine", ("a1", "b1"))
    judge = OursBesideJava(world)
    answers: dict[str, CommitResult | HoodooError] = {}
    partition = dict(zip("ABC", draw.choice(("abc", "aab", "aaa")), strict=True))
    after = draw.choice((0, 1))  # conflicts after which they want the lock alone; else a place
    limits = replace(QUICK, retry=replace(QUICK.retry, lock_after_conflicts=after))
    actors = [
        publisher(
            name,
            [Job(operation=f"{name}{section}", keys=(f"{part}1",)) for section in range(3)],
            world,
            answers,
            limits,
        )
        for name, part in partition.items()
    ]
    if draw.random() < 0.5:
        actors.append(java("J", judge.java, draw, world, sections=2))
    budgets = {
        Fault.AMBIGUOUS_APPLIED: draw.choice((0, 1)),
        Fault.AMBIGUOUS_LOST: draw.choice((0, 1)),
        Fault.CRASH_BEFORE: draw.choice((0, 0, 1)),
    }
    faults = Faults(budgets=budgets, victims=frozenset("ABC"))
    trace = run(world, actors, seed=seed, faults=faults, check_step=judge.check_step)
    assert trace.failure is None, f"seed {seed}: {trace.failure}\n{trace.story()}"
    healing = heal(world, judge.facts)
    assert healing.failure is None, f"seed {seed}: {healing.failure}\n{trace.story()}"
    if not any(budgets.values()):
        refused = [name for name, one in answers.items() if not isinstance(one, CommitResult)]
        assert not refused, f"seed {seed}: {refused}"
        assert set(rows_now(world)) >= {f"{part}1" for part in partition.values()}
    return world


def test_a_slot_under_javas_lock_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StorageClient, "_is_free", lambda *_: True)
    with pytest.raises(AssertionError, match="a slot while Java has the lock"):
        deque(map(play_engine, range(200)), maxlen=0)


@pytest.mark.spec("LOCK-1")
def test_on_a_high_latency_store_writers_share_the_lock_and_exclude_java() -> None:
    shared = alone = queued = places = 0
    for seed in range(1_000 if NIGHTLY else 40):
        world = play_engine(seed)
        kinds = [fields["shared"] for _, _, name, fields in world.events if name == "lock.acquired"]
        shared += kinds.count(True)
        alone += kinds.count(False)
        queued += world.counters["write.queued"]
        places += world.counters["write.place_came"]
    assert shared
    assert alone
    assert queued, "a writer retried a conflict under an exclusive lock"
    assert places, "somebody waited in line"
