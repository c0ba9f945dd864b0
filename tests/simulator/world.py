"""
The simulated system: the bytes, time, locks and requests that all actors of one run share.

It is separate from the scheduler, so that a test can prepare it, run several groups of actors on
it one after the other and check it afterwards. It chooses nothing: every change comes from a port
call or from a move of the scheduler.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from tests.simulator.table_facts import ClientEvent, ClientEventKind
from timeline.model.instant_time import UTC_ZONE, TimelineZone
from timeline.ports.ports import Value

#: 2026-01-01 00:00:00 UTC, when every simulated world begins.
START_MS = 1_767_225_600_000

#: The actor that the journal names for data that a power cut removed.
POWER_CUT = "power cut"


class ActorCrashed(BaseException):
    """
    The actor's process died; thrown at its pending port call.

    A ``BaseException``, so that no handler of the engine takes it for a failure it can
    answer. Port calls made by ``finally`` blocks on the way out raise it again.
    """


class CallKind:
    """The effect of a port call, which decides the faults that fit it."""

    READ = "read"
    CREATE = "create"
    CHANGE = "change"
    WAIT = "wait"


class PortCall:
    """
    One call that an actor makes and the scheduler has not applied yet.

    Args:
        port: Name of the port, for example ``storage``.
        method: Name of its method.
        path: The object of the call, for the trace.
        apply: Applies the call and returns the answer, or raises the port's error.
        kind: One of ``CallKind``.
        ready: Whether it can be applied now; None is always.
        wake_at: Simulated time in ms at which it may become ready; None is never by time.
        late: Puts the call into the queue of late requests; only for ``CREATE``.
    """

    __slots__ = ("apply", "kind", "late", "method", "path", "port", "ready", "wake_at")

    def __init__(
        self,
        port: str,
        method: str,
        path: str,
        apply: Callable[[], object],
        *,
        kind: str = CallKind.READ,
        ready: Callable[[], bool] | None = None,
        wake_at: Callable[[], int | None] | None = None,
        late: Callable[[], None] | None = None,
    ) -> None:
        self.port = port
        self.method = method
        self.path = path
        self.apply = apply
        self.kind = kind
        self.ready = ready
        self.wake_at = wake_at
        self.late = late


@dataclass(slots=True)
class SimFile:
    """An object of the simulated storage."""

    data: bytes
    modified_ms: int
    rewrites: int  # keeps growing over deletes, so that no version repeats
    data_durable: bool
    name_durable: bool
    durable_before: bytes | None = None  # the bytes that a power cut may restore after a replace

    def twin(self) -> SimFile:
        """The same object in another world; every schedule begins with dozens of them."""
        return SimFile(
            self.data,
            self.modified_ms,
            self.rewrites,
            self.data_durable,
            self.name_durable,
            self.durable_before,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One applied change of the storage."""

    step: int
    actor: str
    kind: str  # create, write, delete
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCreate:
    """A create whose answer was lost and which the storage applies later."""

    actor: str
    path: str
    data: bytes
    durable: bool


@dataclass(slots=True)
class LockState:
    """The holder of one lock."""

    holdings: int = 0
    token: int | None = None  # the present holding, None when free
    actor: str = ""
    purpose: str = ""
    ends_ms: int | None = None  # world time; None while a living owner renews it

    def is_free(self, now_ms: int) -> bool:
        """Whether an actor may take it at simulated time ``now_ms``."""
        return self.token is None or (self.ends_ms is not None and now_ms >= self.ends_ms)


@dataclass(slots=True)
class TickerState:
    """A background repetition of one actor."""

    actor: ActorState
    interval_ms: int
    due_ms: int
    work: Callable[[], None]
    stopped: bool = False
    running: bool = False


@dataclass(slots=True)
class ActorState:
    """The state of one simulated process: clock error, random draws, background work, life."""

    name: str
    index: int
    random: random.Random
    clock_offset_ms: int = 0
    drift_ppm: int = 0
    dead: bool = False
    ended: bool = False
    calls: int = 0
    ids_drawn: int = 0
    observed: bytes = b""  # digest of everything it has seen, for state hashing
    tickers: list[TickerState] = field(default_factory=list)

    def observe(self, seen: object) -> None:
        """Mix something the actor saw into its digest."""
        text = repr(seen).encode()
        self.observed = blake2b(self.observed + text, digest_size=16).digest()


class Runner(Protocol):
    """The part of the scheduler that ports need."""

    @property
    def is_inside(self) -> bool:
        """Whether the caller runs as an actor."""

    def submit(self, actor: ActorState, call: PortCall) -> object:
        """Hand the call over and wait for its answer."""


class SimulatedSystem:
    """
    Everything the actors share.

    Args:
        scenario: Name in traces and in the line that repeats a run.
        call_ms: World time that each applied call takes, ms; 0 merges states best.
        lease_ms: How long a dead owner's lease stays, ms.
        lock_budget_ms: How long ``acquire`` waits, ms.
        exploring: Keep the digests that ``explore`` needs (slower).
        zone: Of every process, which tables of zone LOCAL write their times in.
        start_ms: When it begins, ms since 1970-01-01 UTC.
    """

    def __init__(
        self,
        *,
        scenario: str = "unnamed",
        call_ms: int = 1,
        lease_ms: int = 10_000,
        lock_budget_ms: int = 60_000,
        exploring: bool = False,
        zone: TimelineZone = UTC_ZONE,
        start_ms: int = START_MS,
    ) -> None:
        self.scenario = scenario
        self.zone = zone
        self.call_ms = call_ms
        self.lease_ms = lease_ms
        self.lock_budget_ms = lock_budget_ms
        self.exploring = exploring
        self.now_ms = start_ms
        self.step = 0
        self.files: dict[str, SimFile] = {}
        self.removed: dict[str, bytes] = {}  # content of deleted objects, for the checkers
        self.late: list[LateCreate] = []
        self.locks: dict[str, LockState] = {}
        self.journal: list[Change] = []
        self.history: list[ClientEvent] = []
        self.events: list[tuple[int, str, str, dict[str, Value]]] = []
        self.counters: Counter[str] = Counter()
        self.runner: Runner | None = None
        self._guard = threading.RLock()  # outside a run, tests may call from several threads
        self._actors = 0
        self._rewrites: Counter[str] = Counter()
        self._children: dict[str, dict[str, int]] = {}  # folder to names, with all below each
        self._folder_changes: dict[str, int] = {}

    def copy(self, scenario: str) -> SimulatedSystem:
        """Copy this moment into a new system without actors: cheaper than to build it again."""
        other = SimulatedSystem(
            scenario=scenario,
            call_ms=self.call_ms,
            lease_ms=self.lease_ms,
            lock_budget_ms=self.lock_budget_ms,
            zone=self.zone,
        )
        other.now_ms, other.step, other._actors = self.now_ms, self.step, self._actors
        other.files = {path: entry.twin() for path, entry in self.files.items()}
        other.removed = dict(self.removed)
        other.locks = {name: replace(lock) for name, lock in self.locks.items()}
        other.journal, other.history = list(self.journal), list(self.history)
        other._rewrites = Counter(self._rewrites)
        other._children = {folder: dict(names) for folder, names in self._children.items()}
        other._folder_changes = dict(self._folder_changes)
        return other

    # ------------------------------------------------------------ actors and calls

    def new_actor(
        self, name: str, seed: int, *, clock_offset_ms: int = 0, drift_ppm: int = 0
    ) -> ActorState:
        """
        Add a process with its own random draws; indexes continue over several runs on this system.
        """
        self._actors += 1
        return ActorState(
            name=name,
            index=self._actors,
            random=random.Random(f"{seed}/{name}/{self._actors}"),
            clock_offset_ms=clock_offset_ms,
            drift_ppm=drift_ppm,
        )

    def perform(self, actor: ActorState, call: PortCall) -> object:
        """
        Make one port call: at once outside a run, through the scheduler inside.

        Raises:
            ActorCrashed: The actor is dead; nothing was applied.
        """
        if actor.dead:
            raise ActorCrashed(actor.name)
        if self.runner is None or not self.runner.is_inside:
            with self._guard:
                return call.apply()
        return self.runner.submit(actor, call)

    def client_event(
        self, actor: str, kind: ClientEventKind, operation: str, **details: object
    ) -> None:
        """Append to the history that the checkers read; no switching point."""
        self.history.append(
            ClientEvent(
                position=len(self.history),
                actor=actor,
                kind=kind,
                operation=operation,
                **details,  # type: ignore[arg-type]  # the fields of ClientEvent, checked there
            )
        )

    # ------------------------------------------------------------ storage content

    def put(self, actor: str, path: str, data: bytes, *, durable: bool, new: bool) -> None:
        """Set an object's content; ``new`` is a create, otherwise a replace."""
        before = self.files.get(path)
        self._rewrites[path] += 1
        kept: bytes | None = None
        if before is not None and not durable:
            kept = before.data if before.data_durable else before.durable_before
        self.files[path] = SimFile(
            data=data,
            modified_ms=self.now_ms,
            rewrites=self._rewrites[path],
            data_durable=durable,
            name_durable=durable or (before is not None and before.name_durable),
            durable_before=kept,
        )
        if before is None:
            for folder, name in _ancestry(path):
                children = self._children.get(folder)
                if children is None:
                    children = self._children[folder] = {}
                children[name] = children.get(name, 0) + 1
                self._folder_changes[folder] = self.now_ms
        kind = "create" if new else "write"
        self.journal.append(Change(step=self.step, actor=actor, kind=kind, path=path))

    def remove(self, actor: str, path: str) -> None:
        """Remove an object; absent is no error."""
        gone = self.files.pop(path, None)
        if gone is None:
            return
        self.removed[path] = gone.data
        for folder, name in _ancestry(path):
            self._folder_changes[folder] = self.now_ms
            children = self._children[folder]
            children[name] -= 1
            if not children[name]:
                del children[name]
        self.journal.append(Change(step=self.step, actor=actor, kind="delete", path=path))

    def child_names(self, folder: str) -> list[str]:
        """Names of the direct children of a folder, sorted; ``""`` is the table's base."""
        return sorted(self._children.get(folder, ()))

    def folder_changed_ms(self, folder: str) -> int:
        """World time in ms when something below a folder was made or removed."""
        return self._folder_changes.get(folder, START_MS)

    def paths_below(self, folder: str) -> list[str]:
        """Paths of all objects below a folder, sorted."""
        prefix = f"{folder}/" if folder else ""
        return sorted(path for path in self.files if path.startswith(prefix))

    def land(self) -> LateCreate:
        """Apply the oldest late request: create-if-absent, its answer is lost."""
        request = self.late.pop(0)
        if request.path not in self.files:
            self.put(request.actor, request.path, request.data, durable=request.durable, new=True)
        return request

    def cut_power(self, chance: random.Random) -> None:
        """Drop, tear or keep un-synced data; the caller kills the actors."""
        for path in sorted(self.files):
            entry = self.files[path]
            if not entry.name_durable and chance.random() < 0.5:
                self.remove(POWER_CUT, path)
            elif not entry.data_durable and chance.random() < 0.5:
                torn = entry.data[: chance.randrange(len(entry.data) + 1)]
                entry.data = entry.durable_before if entry.durable_before is not None else torn

    # ------------------------------------------------------------ locks and state

    def lock(self, identity: str) -> LockState:
        """The state of one lock."""
        return self.locks.setdefault(identity, LockState())

    def bury(self, actor: ActorState) -> None:
        """Mark an actor dead: its background work stops, its leases run out."""
        actor.dead = True
        for ticker in actor.tickers:
            ticker.stopped = True
        for lock in self.locks.values():
            if lock.token is not None and lock.actor == actor.name and lock.ends_ms is None:
                lock.ends_ms = self.now_ms + self.lease_ms

    def digest(self) -> bytes:
        """Digest of the state that actors can observe here, times relative to now."""
        now = self.now_ms
        content = [
            (path, entry.data, entry.rewrites, entry.modified_ms - now)
            for path, entry in sorted(self.files.items())
        ]
        locks = [
            (
                name,
                lock.holdings,
                lock.token,
                lock.actor,
                None if lock.ends_ms is None else lock.ends_ms - now,
            )
            for name, lock in sorted(self.locks.items())
        ]
        return blake2b(repr((content, locks, self.late)).encode(), digest_size=16).digest()


def as_label(answer: object) -> str:
    """A short, stable text of a port's answer for traces and trace hashes."""
    if answer is None:
        return "-"
    if isinstance(answer, bytes):
        return _label_of_bytes(answer)
    if isinstance(answer, BaseException):
        return type(answer).__name__
    if isinstance(answer, list):
        return f"{len(answer)} entries"
    name = getattr(answer, "name", None)
    return name if isinstance(name, str) else str(answer)


@lru_cache(maxsize=2_048)
def _label_of_bytes(data: bytes) -> str:
    """Files are read many times in one schedule, and those it begins with in all of them."""
    return f"{len(data)}b:{blake2b(data, digest_size=4).hexdigest()}"


@lru_cache(maxsize=8_192)
def _ancestry(path: str) -> tuple[tuple[str, str], ...]:
    """Each (folder, child name) on the way down to a path."""
    found = []
    folder = ""
    for name in path.split("/"):
        found.append((folder, name))
        folder = f"{folder}/{name}" if folder else name
    return tuple(found)
