"""
Stories with foreign parts: the lock file of an object store (S10), an engine without slots (S15).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from lockproviders.storage_based.client import StorageClient
from lockproviders.storage_based.lock_file import (
    LOCK_PATH,
    ChangedError,
    LockRecord,
    ObjectVersion,
    StorageHolding,
    Tag,
)
from lockproviders.storage_based.settings import StorageLockSettings
from tests.simulation import test_second_refresh as second
from tests.simulation.engine_kit import TOLERATED_MS, MakeContext, seeded
from tests.simulation.family import Story, some_of
from tests.simulation.story_kit import PAUSES, SILENCE, Unjudged, prepared
from tests.simulator.faults import Chooser, Fault, Move, Policy, ReplayPolicy
from tests.simulator.invariants import Violation
from tests.simulator.ports import Actor, ActorPorts, make_ports
from tests.simulator.world import ActorState, CallKind, PortCall, SimulatedSystem
from timeline.errors import LeaseLostError, UnavailableError
from timeline.ports.ports import ObjectExistsError

# ---------------------------------------------------------------- S10: a lock and its server

TERMS = StorageLockSettings.of(20_000)
MARGIN_MS = max(2 * TERMS.request_ms, TERMS.validity_ms // 10)  # as ``HeldLease`` takes it off
TRIES_MAX = 60


class ModelObject:
    """The lock file in a model of an object store, as ``ConditionalObject`` speaks with one."""

    address = "memory:/simulated/table/lock"

    def __init__(self, world: SimulatedSystem, actor: ActorState) -> None:
        self._world = world
        self._actor = actor

    def read(self) -> ObjectVersion | None:
        def apply() -> ObjectVersion | None:
            entry = self._world.files.get(LOCK_PATH)
            if entry is None:
                return None
            tag = (str(entry.rewrites), None)
            return ObjectVersion(
                data=entry.data, tag=tag, modified_ms=in_seconds(entry.modified_ms)
            )

        return self._call("read", apply)

    def put(self, data: bytes, over: Tag | None) -> Tag:
        def apply() -> Tag:
            entry = self._world.files.get(LOCK_PATH)
            if over != (None if entry is None else (str(entry.rewrites), None)):
                raise ChangedError(self.address)
            self._world.put(self._actor.name, LOCK_PATH, data, durable=True, new=entry is None)
            return str(self._world.files[LOCK_PATH].rewrites), None

        try:
            return self._call("put", apply, CallKind.CREATE)
        except ObjectExistsError as error:  # delivered twice: the second one fails (F16)
            raise ChangedError(self.address) from error

    def prove(self, nonce: str) -> None:
        """The model keeps its conditions."""

    def store_now_ms(self) -> int:
        return self._call("now", lambda: in_seconds(self._world.now_ms))

    def _call(self, method: str, apply, kind: str = CallKind.READ):
        call = PortCall("storage", method, LOCK_PATH, apply, kind=kind)
        return self._world.perform(self._actor, call)


def in_seconds(time_ms: int) -> int:
    return time_ms // 1000 * 1000


class LockFacts(Unjudged):
    """I15: the holders, and the content that every content of the lock file followed."""

    def __init__(self, world: SimulatedSystem) -> None:
        super().__init__(world)
        self.held: dict[str, tuple[ActorState, StorageHolding]] = {}
        self.content: tuple[LockRecord, int] | None = None  # and when it was written
        self.tag = 0

    def check_step(self, world: SimulatedSystem) -> list[Violation]:
        entry = world.files.get(LOCK_PATH)
        found = []
        if entry is not None and entry.rewrites != self.tag:
            record = LockRecord.decode(entry.data, LOCK_PATH)
            if self.content is not None:
                found = [*why_not(*self.content, record, entry.modified_ms)]
            self.content, self.tag = (record, entry.modified_ms), entry.rewrites
        holders = sorted(
            name
            for name, (actor, holding) in self.held.items()
            if not actor.dead and holding.is_held() and (holding.expires_in_ms() or 0) > MARGIN_MS
        )
        if len(holders) > 1:
            found.append(f"{' and '.join(holders)} hold the lock at once")
        return [Violation(invariant="I15", found=text) for text in found]


def why_not(before: LockRecord, written_ms: int, after: LockRecord, now_ms: int) -> Sequence[str]:
    """Return the defects of one content of the lock file after another."""
    if after.nonce == before.nonce:
        return ["a holding that was given back lives again"] * (before.expired > after.expired)
    wrong = []
    over = now_ms - written_ms + MARGIN_MS >= TERMS.validity_ms
    if after.expired:
        wrong.append(f"{after.note} gave back what {before.note} holds")
    elif not (before.expired or over or before.owner == after.owner):
        wrong.append(f"{after.note} took what {before.note} holds")
    if after.token <= before.token:
        wrong.append(f"fencing token {after.token} after {before.token}")
    return wrong


def contender(name: str, facts: LockFacts, rounds: int, client_of: type[StorageClient]) -> Actor:
    """Takes the lock, keeps it for a while, renews it once, gives it back."""

    def body(ports: ActorPorts) -> None:
        place = ModelObject(facts.world, ports.state)
        client = client_of(place, TERMS, clock=ports.clock, ids=ports.ids)  # type: ignore[arg-type]
        for _ in range(rounds):
            holding = waited_for(client, name, ports)
            if holding is None:
                break
            facts.held[name] = ports.state, holding
            ports.clock.sleep_ms(TERMS.validity_ms // 3)
            try:
                holding.renew()
                ports.clock.sleep_ms(TERMS.validity_ms // 10)
            except LeaseLostError:
                ports.events.emit("sim.lease_lost")
            except UnavailableError:
                ports.events.emit("sim.not_renewed")
            del facts.held[name]
            try:
                holding.release()
            except UnavailableError:
                ports.events.emit("sim.not_released")
        client.close()

    return Actor(name=name, body=body)


def waited_for(client: StorageClient, name: str, ports: ActorPorts) -> StorageHolding | None:
    for _ in range(TRIES_MAX):
        try:
            holding = client.try_acquire(name)
        except UnavailableError:
            holding = None
        if holding is not None:
            return holding
        ports.clock.sleep_ms(1_000)
    return None


_WALL_JUMPS_MAX = 2


def locking(
    draw: random.Random, name: str, client_of: type[StorageClient] = StorageClient
) -> Story:
    """Two or three want one lock, more than once."""
    world = SimulatedSystem(scenario=name)
    facts = LockFacts(world)
    names = "ABC"[: draw.choice((2, 3))]
    actors = [contender(one, facts, draw.choice((1, 2)), client_of) for one in names]
    most = {
        **SILENCE,
        Fault.AMBIGUOUS_APPLIED: 2,
        Fault.AMBIGUOUS_LOST: 2,
        Fault.DUPLICATED: 2,
        Fault.CRASH_BEFORE: 1,
        Fault.CRASH_AFTER: 1,
        Fault.TIME_JUMP: 2,
        Fault.WALL_JUMP: _WALL_JUMPS_MAX,
    }
    jumps = (TERMS.validity_ms // 2, TERMS.validity_ms + 1_000)
    return Story(
        world=world,
        facts=facts,
        actors=actors,
        faults=some_of(draw, most, time_jump_ms=jumps),
        judge=still_free,
        judged_at_end=False,
        steps=60,
    )


def still_free(world: SimulatedSystem) -> Sequence[object]:
    """In every run: after all leases ended, the next client gets the lock."""
    ahead_ms = _WALL_JUMPS_MAX * 60_000  # all jumps of one clock, a minute each
    world.now_ms += 2 * TERMS.validity_ms + ahead_ms
    ports = make_ports(world, world.new_actor("survivor", seed=0))
    place = ModelObject(world, ports.state)
    client = StorageClient(place, TERMS, clock=ports.clock, ids=ports.ids)  # type: ignore[arg-type]
    if client.try_acquire("survivor") is None:
        return [Violation(invariant="I15", found=f"still held by {client.holder()}")]
    return ()


# ---------------------------------------------------------------- S15: an engine without slots


class Sparing:
    """
    A policy without the faults that this side cannot prevent (FOR-8).

    When it draws a move itself, it often takes the lease from an actor that is about to take a
    slot, or to make another call of ``at``.
    """

    def __init__(
        self,
        policy: Policy,
        world: SimulatedSystem,
        seed: str,
        at: tuple[str, ...] = (second.SLOT,),
    ) -> None:
        self._policy = policy
        self._at = at
        self._world = world
        self._chance = None if isinstance(policy, ReplayPolicy) else random.Random(seed)

    def choose(self, plain: Sequence[Move], run: Chooser) -> Move:
        spared = second.Spared(run, self._world, plain)
        lost = (Fault.LEASE_LOST.value, 0)
        at_slot = any(run.describe(move).startswith(self._at) for move in plain)
        drawn = at_slot and self._chance is not None and self._chance.random() < 0.3
        if drawn and lost in spared.fault_moves():
            return lost
        return self._policy.choose(plain, spared)


def beside_another_engine(
    draw: random.Random, name: str, ours: MakeContext = second.shared
) -> Story:
    """Writers of ours, and one that has the lock and the timeline only (FOR-4)."""
    world, _ = prepared(one_group).fresh(name)
    answers: second.Answers = {}
    most = {
        **PAUSES,
        Fault.CRASH_BEFORE: 1,
        Fault.AMBIGUOUS_APPLIED: 1,
        Fault.AMBIGUOUS_LOST: 1,
    }
    return Story(
        world=world,
        facts=Unjudged(world),
        actors=second.cast(answers, ours, others=draw.choice(("J", "JB", "JB"))),
        faults=some_of(
            draw, most, time_jump_ms=(TOLERATED_MS // 2,), chance=0.8, victims=frozenset("AB")
        ),
        restrain=partial(Sparing, world=world, seed=f"sparing/{name}"),
        judge=partial(all_there, answers),
        judged_at_end=False,
    )


def one_group() -> SimulatedSystem:
    return seeded("family", ("a1",))


def all_there(answers: second.Answers, world: SimulatedSystem) -> Sequence[object]:
    """Acknowledged rows are there, and no file appeared below one that was there before."""
    try:
        second.survive(world)
    except AssertionError as broken:
        return [Violation(invariant="FOR-4", found=f"a survivor cannot write: {broken}")]
    found = [f"{key} is lost" for key in second.lost_rows(world, answers)]
    found += [f"{one} appeared too late" for one in second.shown_below(world)]
    return [Violation(invariant="FOR-4", found=text) for text in found]
