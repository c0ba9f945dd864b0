"""
Inserts that drop known keys, updates and deletes of the same few keys: each key exists once.

The committed writes, in the timeline's order, must leave the table's rows. Keys are in base files,
in logs, and below logs that deleted them; compactions drop those.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace

import pytest

from filegroups.index import LookupRules
from filegroups.writing import assign_file_groups as placing
from filegroups.writing import commit_checks as checks
from filegroups.writing import pending_commit
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult, FileRules
from tableservices.planned_service import run_round
from tests.simulation.engine_kit import (
    FILES,
    Job,
    open_table,
    patiently,
    plan_for,
    play,
    rows_of,
    seeded,
    writer,
)
from tests.simulation.test_compaction import SERVICE
from tests.simulation.test_isolation import published, rows_at_the_end
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import run
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import TableType, WriteOperation

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
UPSERT, INSERT, DELETE = WriteOperation.UPSERT, WriteOperation.INSERT, WriteOperation.DELETE
KEYS = ("a1", "a2", "a3")
APART = replace(FILES, sizes=replace(FILES.sizes, small_file_bytes=0))

State = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Deed:
    """One write of some keys; an insert leaves those out that are there."""

    name: str
    kind: WriteOperation
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Game:
    """The drawn parts of a seed: the table before, the writers and the services."""

    table_type: TableType
    start: State
    deeds: tuple[tuple[Deed, ...], ...]
    files: FileRules
    lookup: LookupRules
    compacts: bool


def game_of(seed: int) -> Game:
    draw = random.Random(f"known-keys/{seed}")

    def deed(name: str) -> Deed:
        kind = draw.choice((UPSERT, INSERT, INSERT, DELETE))
        return Deed(name=name, kind=kind, keys=tuple(draw.sample(KEYS, draw.choice((1, 1, 2)))))

    logged = draw.random() < 0.7
    return Game(
        table_type=TableType.MERGE_ON_READ if logged else TableType.COPY_ON_WRITE,
        start={key: "seed" for key in KEYS if draw.random() < 0.4},
        deeds=tuple(
            tuple(deed(f"{name}{number}") for number in range(draw.choice((1, 1, 2))))
            for name in ("A", "B", "C")[: draw.choice((2, 3))]
        ),
        files=draw.choice((FILES, APART)),
        lookup=LookupRules(whole_table=draw.random() < 0.2),
        compacts=logged and draw.random() < 0.3,
    )


def do(context: TableContext, deed: Deed, game: Game) -> CommitResult:
    plan = plan_for(deed.name, deed.kind, files=game.files)
    drops = deed.kind is INSERT
    rules = replace(plan.rules, lookup=game.lookup, tags=True, combine=True, drop_found=drops)
    rows = rows_of(deed.name, deed.keys)
    if deed.kind is DELETE:
        rows = rows.select(["id", "part"])
    return write(context, replace(plan, rules=rules), LocalWorkload(context.ports, rows))


def client(name: str, deeds: tuple[Deed, ...], game: Game) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, open_table)
        for deed in deeds:
            try:
                do(context, deed, game)
            except HoodooError as error:
                ports.events.emit("sim.refused", why=str(error))

    return Actor(name=name, body=body)


def compactor(ports: ActorPorts) -> None:
    context = patiently(ports, open_table)
    try:
        run_round(context, SERVICE, now=True)
    except HoodooError as error:
        ports.events.emit("sim.service_failed", why=str(error))


def prepared(game: Game) -> SimulatedSystem:
    """All keys were there once; those that are not were deleted."""
    world = seeded("known-keys", KEYS, table_type=game.table_type)
    gone = tuple(key for key in KEYS if key not in game.start)
    if gone:
        play(world, [writer("old", [Job(operation="old", keys=gone, kind=DELETE)])], [])
    return world


def after(state: State, deed: Deed) -> State:
    if deed.kind is DELETE:
        return {key: value for key, value in state.items() if key not in deed.keys}
    new = dict.fromkeys(deed.keys, deed.name)
    return {**new, **state} if deed.kind is INSERT else {**state, **new}


def expected(start: State, deeds: list[Deed]) -> State:
    """The state after the committed writes, in the timeline's order."""
    state = start
    for deed in deeds:
        state = after(state, deed)
    return state


def first_failure(seeds: range) -> str:
    for seed in seeds:
        game = game_of(seed)
        world = prepared(game)
        actors = [client(deeds[0].name[0], deeds, game) for deeds in game.deeds] + [
            Actor(name="S", body=compactor)
        ] * game.compacts
        faults = Faults(budgets={Fault.AMBIGUOUS_LATE: seed % 2, Fault.CRASH_BEFORE: seed % 5 == 0})
        trace = run(world, actors, seed=seed, faults=faults)
        if trace.failure is not None:
            return f"seed {seed}: {trace.failure}\n{trace.story()}"
        rows = rows_at_the_end(world)
        last = {row["id"]: row["operation"] for row in rows}
        deeds = {deed.name: deed for some in game.deeds for deed in some}
        done = [deeds[name] for name in published(world) if name in deeds]
        if len(last) != len(rows) or last != expected(game.start, done):
            difference = f"{game.start} + {done} -> {rows}"
            return f"seed {seed}: not what the writes leave: {difference}\n{trace.story()}"
    return ""


@pytest.mark.spec("PUB-4")
@pytest.mark.parametrize("part", range(4))
def test_each_key_is_there_once_as_the_timeline_s_order_leaves_it(part: int) -> None:
    each = 2_500 if NIGHTLY else 30
    assert not first_failure(range(part * each, (part + 1) * each))


@pytest.mark.parametrize(
    ("where", "name", "change"),
    [
        (placing, "below_deletes", lambda files: {}),
        (checks, "_resurrected_key", lambda *seen: None),
        (pending_commit, "_sought", lambda written, task: 0),
    ],
    ids=["does not look below logs", "compares no keys of logs", "finds what is deleted"],
)
def test_a_mutant_is_killed(
    where: object, name: str, change: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, change)
    assert "not what the writes leave:" in first_failure(range(2_000))
