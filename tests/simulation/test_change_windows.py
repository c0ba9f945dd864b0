"""
Windows of changes during writes, services and deaths: each change appears exactly once.

A reader reads one window after the other, from the newest completion time it saw to the next.
The images of a window, applied to the state before it, must leave the state after it. Its rows
are the rows of that state which the window wrote. At the end all windows are read once more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from filegroups.keys.bucketing import BucketRules
from filegroups.table import TableReader
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tableservices.cleaning.execute import clean
from tableservices.clustering.execute import ClusteringService
from tableservices.clustering.settings import ClusteringSettings
from tableservices.planned_service import run_round
from tests.simulation.engine_kit import (
    CLEANING,
    FILES,
    LIMITS,
    TOLERATED_MS,
    outside,
    patiently,
    plan_for,
    rows_of,
    seeded,
)
from tests.simulation.test_compaction import OF_LOGS, SERVICE
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError, InstantNotFoundError, SnapshotExpiredError
from timeline.model.commit_metadata import ConcurrencyMode, TableType, WriteOperation
from timeline.model.instant import Instant
from timeline.model.instant_time import InstantTime, is_between
from timeline.ports.ports import Ports as EngineWorld
from timeline.properties.properties_file import load_config
from timeline.rollback.rollback import rollback_dead_writers
from timeline.snapshot import Snapshot

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE
OVERWRITE, DROP = WriteOperation.INSERT_OVERWRITE, WriteOperation.DELETE_PARTITION
KEYS = ("a1", "a2", "a3", "b1")
CLUSTERING = ClusteringService(
    settings=ClusteringSettings(sort_columns=("operation", "id")), files=FILES
)
FREE = replace(LIMITS, mode=ConcurrencyMode.NON_BLOCKING_CONCURRENCY_CONTROL)
ONE = BucketRules(buckets=1, hash_fields=("id",))

State = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Deed:
    """One write of some keys; a drop takes their partitions away."""

    name: str
    kind: WriteOperation
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Game:
    """The drawn parts of a seed: the table, the writers and their operations, the services."""

    table_type: TableType
    properties: dict[str, str]
    free: bool  # non-blocking writers of one bucket
    deeds: tuple[tuple[Deed, ...], ...]
    services: tuple[str, ...]

    def open(self, world: EngineWorld) -> TableContext:
        return TableContext.of(world, load_config(world.storage), FREE if self.free else LIMITS)


def game_of(seed: int) -> Game:
    draw = random.Random(f"change-windows/{seed}")
    logged = draw.random() < 0.6
    free = logged and draw.random() < 0.4
    kinds = (UPSERT, UPSERT, DELETE) if free else (UPSERT, UPSERT, INSERT, DELETE, OVERWRITE, DROP)

    def deed(name: str) -> Deed:
        kind = draw.choice(kinds)
        keys = tuple(draw.sample(KEYS, draw.choice((1, 1, 2))))
        if kind is INSERT:  # promises nothing about known keys, so it uses keys of its own
            keys = tuple(f"{key[0]}-{name}" for key in keys)
        return Deed(name=name, kind=kind, keys=keys)

    mode = draw.choice(("", "OP_KEY_ONLY", "DATA_BEFORE", "DATA_BEFORE_AFTER"))
    services = ["undo"]
    services += [one for one in ("compact", "logs") if logged and draw.random() < 0.6]
    services += [one for one in ("cluster",) if not free and draw.random() < 0.5]
    services += [one for one in ("clean",) if draw.random() < 0.3]
    draw.shuffle(services)
    return Game(
        table_type=TableType.MERGE_ON_READ if logged else TableType.COPY_ON_WRITE,
        properties={
            "hoodie.table.cdc.enabled": "true",
            "hoodie.table.cdc.supplemental.logging.mode": mode,
        }
        if mode and not free
        else {},
        free=free,
        deeds=tuple(
            tuple(deed(f"{name}{number}") for number in range(draw.choice((1, 2, 2))))
            for name in ("A", "B", "C")[: draw.choice((2, 3))]
        ),
        services=tuple(services),
    )


def do(context: TableContext, deed: Deed, game: Game) -> None:
    rows = rows_of(deed.name, deed.keys)
    if deed.kind is DROP:
        gone = tuple(sorted({key[0] for key in deed.keys}))
        write(context, plan_for(deed.name, DROP, delete_partitions=gone), None)
        return
    if deed.kind is DELETE:
        rows = rows.select(["id", "part"])
    plan = plan_for(deed.name, deed.kind)
    if game.free:
        plan = replace(plan, rules=replace(plan.rules, buckets=ONE))
    write(context, plan, LocalWorkload(context.ports, rows))


SERVICES: dict[str, Callable[[TableContext], object]] = {
    "compact": lambda context: run_round(context, SERVICE, now=True),
    "logs": lambda context: run_round(context, OF_LOGS, now=True),
    "cluster": lambda context: run_round(context, CLUSTERING, now=True),
    "clean": lambda context: clean(context, CLEANING),
    "undo": rollback_dead_writers,
}


def acting(name: str, game: Game, *acts: Callable[[TableContext], object]) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, game.open)
        for act in acts:
            try:
                act(context)
            except HoodooError as error:
                ports.events.emit("sim.refused", who=name, why=str(error))

    return Actor(name=name, body=body)


# ---------------------------------------------------------------- what a reader sees


@dataclass
class Windows:
    """The states a reader saw, with the greatest completion time of each, and the findings."""

    game: Game
    seen: list[tuple[str, State]] = field(default_factory=list)
    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def read_window(self, table: TableReader) -> None:
        """Take the newest state, and read the window since the one before."""
        pinned = table.current_state()
        moment = pinned.snapshot.newest_completion
        if moment is None or (self.seen and moment == self.seen[-1][0]):
            return
        state = state_of(pinned.to_arrow(with_hoodie_columns=True).to_pylist())
        self.seen.append((moment, state))
        if len(self.seen) > 1:
            self.check(table, self.seen[-2], self.seen[-1])

    def check(self, table: TableReader, one: tuple[str, State], other: tuple[str, State]) -> None:
        """Read a window and compare."""
        (since, before), (until, after) = one, other
        why = f"({since}, {until}]"
        try:
            images = table.changes(since, until, images=True).read_all().to_pylist()
            found = replayed(before, images)
            if found != plain(after):
                self.wrong.append(f"{why} images: {plain(before)} + {images} -> {after}")
            self.checked += 1
        except InstantNotFoundError as error:
            if "clean" not in self.game.services:
                self.wrong.append(f"{why} {error}")
        except SnapshotExpiredError:
            pass  # to be read again
        try:
            rows = table.changes(since, until, with_hoodie_columns=True).read_all().to_pylist()
        except SnapshotExpiredError:
            return
        self._compare(why, state_of(rows), since, until, after, table)

    def _compare(
        self, why: str, returned: State, since: str, until: str, after: State, table: TableReader
    ) -> None:
        inside = {
            one.requested_time for one in table.context.snapshot().writes_between(since, until)
        }
        wanted = {key: row for key, row in after.items() if time_of(row) in inside}
        lacking = {key: row for key, row in wanted.items() if returned.get(key) != row}
        more = {key: row for key, row in returned.items() if key not in wanted}
        if "clean" in self.game.services:
            lacking = {}  # if files are deleted, rows appear in the range of their newer write
        if self.game.free:
            more = {key: row for key, row in more.items() if time_of(row) not in inside}
        if lacking or more:
            self.wrong.append(f"{why} rows: lacks {lacking}, has {more}; {after}")


def state_of(rows: list[dict[str, Any]]) -> State:
    state = {row["id"]: row for row in rows}
    assert len(state) == len(rows), f"a key is there twice: {rows}"
    # A clustering or compaction moves rows to other files.
    return {
        key: {name: row[name] for name in ("id", "operation", "_hoodie_commit_time")}
        for key, row in state.items()
    }


def time_of(row: dict[str, Any]) -> str:
    return str(row["_hoodie_commit_time"])


def plain(state: State) -> dict[str, str]:
    return {key: row["operation"] for key, row in state.items()}


def replayed(before: State, images: list[dict[str, Any]]) -> dict[str, str] | str:
    """The state after the images of a window, or the image that does not fit."""
    state = plain(before)
    for change in images:
        old, new = change["before"], change["after"]
        key = (new or old)["id"]
        if state.pop(key, None) != (old["operation"] if old else None):
            return f"{change} does not fit"
        if new is not None:
            state[key] = new["operation"]
    return state


def reader(windows: Windows) -> Actor:
    def body(ports: ActorPorts) -> None:
        table = TableReader(patiently(ports, windows.game.open))
        for _ in range(6):
            try:
                windows.read_window(table)
            except HoodooError as error:
                ports.events.emit("sim.read_failed", why=str(error))
                if not isinstance(error, SnapshotExpiredError):
                    windows.wrong.append(f"{type(error).__name__}: {error}")
            ports.clock.sleep_ms(12)

    return Actor(name="R", body=body)


def started(game: Game) -> SimulatedSystem:
    if not game.free:
        return seeded("windows", KEYS, table_type=game.table_type, properties=game.properties)
    world = seeded("windows", ("z9",), table_type=game.table_type)
    first = Deed(name="seed", kind=UPSERT, keys=KEYS)
    run(world, [acting("founder", game, lambda context: do(context, first, game))])
    return world


def played(seed: int) -> tuple[Windows, str]:
    """Play a game; return the findings, empty when all is well."""
    game = game_of(seed)
    world = started(game)
    windows = Windows(game)
    windows.read_window(TableReader(game.open(outside(world))))
    writers = [
        acting(
            deeds[0].name[0],
            game,
            *(lambda context, deed=deed: do(context, deed, game) for deed in deeds),
        )
        for deeds in game.deeds
    ]
    services = acting("S", game, *(SERVICES[name] for name in game.services))
    faults = Faults(
        budgets={Fault.CRASH_BEFORE: seed % 2, Fault.AMBIGUOUS_LATE: seed % 3 == 0},
        victims=frozenset({"A", "B", "S"}),
    )
    trace = run(world, [*writers, services, reader(windows)], seed=seed, faults=faults)
    if trace.failure is not None:
        return windows, f"seed {seed}: {trace.failure}\n{trace.story()}"
    world.now_ms += 10 * TOLERATED_MS
    last = Deed(name="last", kind=UPSERT, keys=("a1",))
    acts = [SERVICES[name] for name in game.services if name != "clean"]
    run(world, [acting("T", game, lambda context: do(context, last, game), *acts)])
    table = TableReader(game.open(outside(world)))
    windows.read_window(table)
    for one, other in [*pairwise(windows.seen), (windows.seen[0], windows.seen[-1])]:
        windows.check(table, one, other)
    if windows.wrong:
        return windows, f"seed {seed}: {windows.wrong[0]}\n{game}\n{trace.story()}"
    return windows, ""


@pytest.mark.parametrize("part", range(2))
def test_each_change_is_returned_in_one_window(part: int) -> None:
    each = 1_000 if NIGHTLY else 15
    checked = 0
    for seed in range(part * each, (part + 1) * each):
        windows, wrong = played(seed)
        assert not wrong
        checked += windows.checked
    assert checked >= each


def test_windows_by_requested_times_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that began early and completed late would be in no window, or in another one."""

    def by_requested(
        self: Snapshot, since: InstantTime, until: InstantTime | None
    ) -> list[Instant]:
        writes = self.active.completed_writes
        return [one for one in writes if is_between(one.requested_time, since, until)]

    monkeypatch.setattr(Snapshot, "writes_between", by_requested)
    assert any(played(seed)[1] for seed in range(10))
