"""
Isolation levels in any order and with deaths: reads and writes have a serial order.

Every order of the committed transactions is tried, which needs no theory. One must exist in which
each read the state that the ones before it left, and all together leave the table's state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import pytest

import filegroups.writing.write as write_path
import timeline.rules.isolation as rules
from filegroups.table import TableReader
from filegroups.writing.commit_checks import ReadValidation
from filegroups.writing.retry import rerun_until_unchanged
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult
from tests.simulation.engine_kit import (
    LIMITS,
    MakeContext,
    open_table,
    outside,
    patiently,
    plan_for,
    rows_of,
    seeded,
)
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.codecs.commit_log import decode_slot
from timeline.codecs.instant_avro import decode_commit
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS
from timeline.model.slot import SlotKind
from timeline.ports.ports import Ports as EngineWorld
from timeline.rules.conflicts import Rejected
from timeline.rules.isolation import Isolation

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SOME, STRICT = Isolation.WRITE_SERIALIZABLE, Isolation.SERIALIZABLE
UPSERT, BULK, DELETE = WriteOperation.UPSERT, WriteOperation.BULK_INSERT, WriteOperation.DELETE

State = dict[str, str]
START: State = {"a1": "seed", "a2": "seed", "b1": "seed"}


@dataclass(frozen=True, kw_only=True)
class Deed:
    """The work of a client: read whole partitions, then write."""

    name: str
    reads: tuple[str, ...]  # none: it is blind
    keys: tuple[str, ...]  # of a delete: those that it spares
    kind: WriteOperation = UPSERT
    pause_ms: int = 0
    only: tuple[str, ...] = ()  # keys it asks for; none: all


@dataclass(frozen=True, kw_only=True)
class Done:
    """One attempt of it."""

    reads: tuple[str, ...]
    only: tuple[str, ...]
    found: State
    leaves: dict[str, str | None]


@dataclass
class Log:
    """Every attempt by the name of its operation."""

    attempts: dict[str, Done] = field(default_factory=dict)


def at(level: Isolation) -> MakeContext:
    def opened(world: EngineWorld) -> TableContext:
        return open_table(world, replace(LIMITS, isolation=level))

    return opened


def attempt_of(context: TableContext, deed: Deed, log: Log) -> CommitResult:
    number = sum(name.startswith(f"{deed.name}.") for name in log.attempts)
    operation, keys = f"{deed.name}.{number}", deed.keys
    state = TableReader(context).current_state()
    asked = [("id", "in", list(deed.only))] if deed.only else None
    found: State = {}
    if deed.reads:
        rows = state.to_arrow(
            columns=["id", "operation"], partitions=deed.reads, filter=asked
        ).to_pylist()
        found = {row["id"]: row["operation"] for row in rows}
    leaves: dict[str, str | None] = dict.fromkeys(keys, operation)
    if deed.kind is DELETE:
        keys = tuple(sorted(set(found) - set(deed.keys)))
        leaves = dict.fromkeys(keys)
    log.attempts[operation] = Done(reads=deed.reads, only=deed.only, found=found, leaves=leaves)
    plan = plan_for(operation, deed.kind)
    rows_written = rows_of(operation, keys)
    if deed.kind is DELETE:
        rows_written = rows_written.select(["id", "part"])
    if deed.reads:
        plan = replace(plan, reads=state.reads(partitions=deed.reads, filter=asked))
    return write(context, plan, LocalWorkload(context.ports, rows_written))


def client(name: str, log: Log, level: Isolation, *deeds: Deed) -> Actor:
    def body(ports: ActorPorts) -> None:
        context = patiently(ports, at(level))
        for deed in deeds:
            ports.clock.sleep_ms(deed.pause_ms)
            try:
                rerun_until_unchanged(context, lambda _, deed=deed: attempt_of(context, deed, log))
            except HoodooError as error:
                ports.events.emit("sim.refused", why=str(error))

    return Actor(name=name, body=body)


# ---------------------------------------------------------------- invariants


def published(world: SimulatedSystem) -> list[str]:
    """Operations in the order of their slots."""
    found = []
    for path in sorted(path for path in world.files if path.startswith(f"{SLOTS}/")):
        number = int(path.rpartition("/")[2])
        slot = decode_slot(world.files[path].data, path=path, number=number)
        if slot.kind is SlotKind.COMMIT:
            extra = decode_commit(slot.body, path=path).extra_metadata
            found.append(extra.get(OPERATION_KEY, ""))  # "": a service
    return found


def explains(order: Sequence[Done], last: State) -> bool:
    state = dict(START)
    for one in order:
        there = {
            key: value
            for key, value in state.items()
            if key[0] in one.reads and (not one.only or key in one.only)
        }
        if one.reads and one.found != there:
            return False
        state.update({key: value for key, value in one.leaves.items() if value is not None})
        for key, value in one.leaves.items():
            if value is None:
                state.pop(key, None)
    return state == last


def rows_at_the_end(world: SimulatedSystem) -> list[dict[str, Any]]:
    """After a survivor's write applied the slot of a dead one, whose lock may outlive it."""
    context = open_table(outside(world))
    context.ports.clock.sleep_ms(world.lease_ms)
    write(context, plan_for("last"), LocalWorkload(context.ports, rows_of("last", ["z1"])))
    rows = TableReader(context).to_arrow(columns=["id", "operation"]).to_pylist()
    return [row for row in rows if row["id"] != "z1"]


def unexplained(world: SimulatedSystem, trace: Trace, log: Log, level: Isolation) -> str:
    """Empty when a serial order of the level explains the run."""
    if trace.failure is not None:
        return f"{trace.failure}\n{trace.story()}"
    rows = rows_at_the_end(world)
    last = {row["id"]: row["operation"] for row in rows}
    done = [log.attempts[name] for name in published(world) if name in log.attempts]
    orders = permutations(done) if level is SOME else [done]
    if len(last) == len(rows) and any(explains(order, last) for order in orders):
        return ""
    return f"no order explains {done} -> {last}\n{trace.story()}"


# ---------------------------------------------------------------- actors


def skewed(log: Log, level: Isolation, deeds: int = 2) -> list[Actor]:
    """Both read all, and each writes its own."""
    both = ("a", "b")
    mine = [Deed(name=f"A{n}", reads=both, keys=("a1",)) for n in range(deeds)]
    theirs = [Deed(name=f"B{n}", reads=both, keys=("b1",)) for n in range(deeds)]
    return [client("A", log, level, *mine), client("B", log, level, *theirs)]


def mixed(log: Log, level: Isolation) -> list[Actor]:
    """
    A delete by predicate, a blind insert, one that read after it, and one that may commit before
    it.
    """
    return [
        client("D", log, level, Deed(name="D", reads=("a",), keys=("a1",), kind=DELETE)),
        client("I", log, level, Deed(name="I", reads=(), keys=("a5",), kind=BULK, pause_ms=5)),
        client("S", log, level, Deed(name="S", reads=("a",), keys=("b9",), pause_ms=10)),
        client("T", log, level, Deed(name="T", reads=("a",), keys=("a7", "b8"), kind=BULK)),
    ]


def built_on(log: Log, level: Isolation) -> list[Actor]:
    """One that read before an insert, and changes rows that were changed after it."""
    return [
        client("I", log, level, Deed(name="I", reads=(), keys=("a5", "b5"))),
        client("U", log, level, Deed(name="U", reads=(), keys=("b5",), pause_ms=20)),
        client("T", log, level, Deed(name="T", reads=("a",), keys=("b5",), pause_ms=3)),
    ]


def asking(log: Log, level: Isolation) -> list[Actor]:
    """Each asks for single rows of a partition, and writes where another one asks."""
    own = ("a2",)
    return [
        client("I", log, level, Deed(name="I", reads=(), keys=("a5",))),
        client("A", log, level, Deed(name="A", reads=("a",), only=own, keys=("b1",), pause_ms=5)),
        client("U", log, level, Deed(name="U", reads=("b",), keys=("a5",), pause_ms=20)),
        client("D", log, level, Deed(name="D", reads=("a", "b"), keys=("a1", "b1"), kind=DELETE)),
    ]


def passed_by(log: Log, level: Isolation) -> list[Actor]:
    """Two that may commit before an insert, until a reader of it writes the same rows."""
    mine = [
        client(name, log, level, Deed(name=name, reads=("a",), keys=("b1",), pause_ms=5))
        for name in ("T", "V")
    ]
    return [
        client("I", log, level, Deed(name="I", reads=(), keys=("a5",), kind=BULK)),
        client("S", log, level, Deed(name="S", reads=("a",), keys=("b1",), pause_ms=40)),
        *mine,
    ]


Cast = Callable[[Log, Isolation], list[Actor]]


def first_failure(cast: Cast, level: Isolation, judged: Isolation, seeds: int) -> str:
    for seed in range(seeds):
        world, log = seeded("isolation", tuple(START)), Log()
        faults = Faults(budgets={Fault.AMBIGUOUS_LATE: seed % 2, Fault.CRASH_BEFORE: seed % 3 == 0})
        trace = run(world, cast(log, level), seed=seed, faults=faults)
        why = unexplained(world, trace, log, judged)
        if why:
            return f"seed {seed}: {why}"
    return ""


@pytest.mark.spec("PUB-10")
@pytest.mark.parametrize("level", [SOME, STRICT])
@pytest.mark.parametrize("cast", [skewed, mixed, built_on, asking, passed_by])
def test_a_serial_order_explains_every_run(cast: Cast, level: Isolation) -> None:
    assert not first_failure(cast, level, level, 2_000 if NIGHTLY else 12)


@pytest.mark.parametrize("level", [SOME, STRICT])
def test_death_at_every_call(level: Isolation) -> None:
    logs: list[Log] = []

    def make() -> tuple[SimulatedSystem, Sequence[Actor]]:
        logs.append(Log())
        return seeded("isolation-crash", tuple(START)), skewed(logs[-1], level, 1)

    cases = 0
    for case in crash_points(make, "A"):
        cases += 1
        assert not unexplained(case.world, case.trace, logs[-1], level), f"call {case.call}"
    assert cases >= 30


def test_write_skew_is_found_under_snapshot() -> None:
    assert "no order explains" in first_failure(skewed, Isolation.SNAPSHOT, SOME, 200)


def test_write_serializable_does_not_keep_the_order_of_the_timeline() -> None:
    assert "no order explains" in first_failure(mixed, SOME, STRICT, 200)


# ---------------------------------------------------------------- mutants


class JudgedAtBeginOnly(ReadValidation):
    """Ignores commits made while files are written."""

    def reads_first(self, check: Any, mine: Any) -> Any:
        return check


class JudgedSinceBegin(ReadValidation):
    """Ignores commits between the reads and the begin."""

    def validate_before_begin(self, mine: Any) -> Rejected | None:
        return None


class ForgetsAtEachLook(ReadValidation):
    """Each refresh validates only new commits, so earlier verdicts are lost."""

    def validate_reads(self, mine: Any, concurrent: Any) -> Rejected | None:
        self._rivals.clear()
        return super().validate_reads(mine, concurrent)


class MissesDeletes(ReadValidation):
    """A change counts by its new rows alone, not by its old rows."""

    def had_no_match(self, group: Any) -> bool:
        return True


class MissesUpdates(ReadValidation):
    """A change counts by its old rows alone, not by its new rows."""

    def wrote_no_match(self, concurrent: Any, item: Any) -> bool:
        return True


class BelievesAllBlind(ReadValidation):
    """Inserts that were made from reads are passed like others."""

    def has_reads(self, concurrent: Any) -> bool:
        return False


@pytest.mark.parametrize(
    ("mutant", "cast", "level"),
    [
        (JudgedAtBeginOnly, skewed, STRICT),
        (JudgedSinceBegin, skewed, STRICT),
        (MissesDeletes, asking, STRICT),
        (MissesUpdates, mixed, STRICT),
        (BelievesAllBlind, mixed, SOME),
        (ForgetsAtEachLook, passed_by, SOME),
    ],
)
def test_a_mutant_is_killed(
    mutant: type[ReadValidation], cast: Cast, level: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_path, "ReadValidation", mutant)
    assert "no order explains" in first_failure(cast, level, level, 300)


def test_the_mutant_that_reads_unseen_rows_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_shared", lambda mine, concurrent: [])
    assert "no order explains" in first_failure(built_on, SOME, SOME, 300)
