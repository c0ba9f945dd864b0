"""
A group that dies at each of its calls, or conflicts with others (GRP-1 to GRP-3).

All members die with their process. The successor repeats each write by its batch id. Then
every row exists once, whatever the group had decided.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from filegroups.group_commit import coalesce as coalesced_writes
from filegroups.group_commit import commit_group as group_write
from filegroups.group_commit.coalesce import CoalescedWrite
from filegroups.group_commit.commit_group import commit_group
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import PreparedWrite, prepare_write, write, write_prepared
from filegroups.writing.write_request import CommitResult, RowCounts, WriteRequest
from tableservices.cleaning.execute import clean
from tests.simulation.engine_kit import (
    CLEANING,
    TOLERATED_MS,
    Job,
    client_write,
    open_table,
    outside,
    patiently,
    plan_for,
    ports_of,
    rows_now,
    rows_of,
    seeded,
)
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from timeline.context import TableContext
from timeline.errors import CorruptTableError, HoodooError, OutcomeUnknownError
from timeline.model.file_names import HEARTBEATS, MARKERS
from timeline.model.slot import Batch, SlotKind
from timeline.rules.conflicts import NoConflict

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SHARED = plan_for("group")  # the request of all members

#: Two that share a base file, two that insert one key: joined they are two writes (GRP-7).
MEMBERS = {"B": ("b1",), "C": ("b2",), "D": ("d1",), "E": ("d1", "d2")}
STRANGER = ("b3", "e1")  # in the base file of B and C
SEEDED = ("b1", "b2", "b3", "e1")
EXPECTED = {key: name for name, keys in MEMBERS.items() for key in keys if key != "d1"}


@dataclass
class MemberAnswers:
    """The answers that members got before their process ended."""

    results: dict[str, CommitResult] = field(default_factory=dict)


class Apart:
    """Rows that are joined with no others, as those of another process."""

    def __init__(self, inner: LocalWorkload) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def works_of(context: TableContext, *, joined: bool) -> list[PreparedWrite]:
    works = []
    for name, keys in MEMBERS.items():
        rows: Any = LocalWorkload(context.ports, rows_of(name, keys))
        workload = rows if joined else Apart(rows)
        works.append(prepare_write(context, planned(name), workload, context.snapshot()))
    return works


def planned(name: str) -> WriteRequest:
    return replace(SHARED, batch_id=f"source/{name}")


def group(members: MemberAnswers, *, joined: bool) -> Actor:
    """The threads of one process: together, then each remaining one alone."""

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, open_table)
        try:
            works = works_of(context, joined=joined)
            answers = commit_group(context, works)
        except HoodooError as error:
            ports.events.emit("sim.group_failed", why=str(error))
            return
        for name, work, answer in zip(MEMBERS, works, answers, strict=True):
            if isinstance(answer, OutcomeUnknownError):
                ports.events.emit("sim.member_unknown", why=str(answer))
                continue
            try:
                members.results[name] = (
                    answer if isinstance(answer, CommitResult) else write_prepared(work)
                )
            except HoodooError as error:
                ports.events.emit("sim.member_failed", why=str(error))

    return Actor(name="G", body=body)


def stranger() -> Actor:
    def body(ports: ActorPorts) -> None:
        client_write(ports, patiently(ports, open_table), Job(operation="S", keys=STRANGER))

    return Actor(name="S", body=body)


def takes_over(world: SimulatedSystem) -> Trace:
    """Another process repeats all by batch id, when the signs of life of the dead have ended."""

    def body(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        ports.clock.sleep_ms(2 * TOLERATED_MS)
        for name, keys in MEMBERS.items():
            write(context, planned(name), LocalWorkload(context.ports, rows_of(name, keys)))
        for _ in range(2):
            clean(context, CLEANING)
            ports.clock.sleep_ms(TOLERATED_MS + 1)

    return run(world, [Actor(name="T", body=body)], seed=0)


def findings(world: SimulatedSystem, members: MemberAnswers, *, strangers: bool) -> list[str]:
    """Return the findings at rest: rows, commit results, or something left over."""
    context = open_table(outside(world))
    published: dict[str, tuple[str, Batch]] = {}
    found: list[str] = []
    for slot in context.commit_log.between(0, context.commit_log.head()):
        for batch in slot.batches if slot.kind is SlotKind.COMMIT else ():
            if batch.batch_id in published:
                found.append(f"published twice: {batch.batch_id}")
            published[batch.batch_id] = (slot.requested_time, batch)
    for name, keys in MEMBERS.items():
        time, batch = published[f"source/{name}"]
        if batch.rows_inserted + batch.rows_updated != len(keys):
            found.append(f"the rows of {name} are not listed exactly: {batch}")
        result = members.results.get(name)
        if result is None:
            continue
        if result.requested_time != time:
            found.append(f"{name} got another instant")
        if (result.rows_inserted, result.rows_updated) != (
            batch.rows_inserted,
            batch.rows_updated,
        ):
            found.append(f"{name} got other rows: {result}")
    rows = rows_now(world)
    expected = dict.fromkeys(SEEDED, "seed") | EXPECTED
    expected |= dict.fromkeys(STRANGER, "S") if strangers else {}
    found += [
        f"{key} is of {rows.get(key)}" for key, name in expected.items() if rows.get(key) != name
    ]
    left = [str(one) for one in context.active().pending]
    left += world.paths_below(MARKERS) + world.paths_below(HEARTBEATS)
    return found + [f"left over: {one}" for one in left]


def played(
    seed: int, faults: Faults, *others: Actor, joined: bool
) -> tuple[SimulatedSystem, list[str]]:
    world, members = seeded("group", SEEDED), MemberAnswers()
    trace = run(world, [group(members, joined=joined), *others], seed=seed, faults=faults)
    assert trace.failure is None, trace.story()
    assert takes_over(world).failure is None, trace.story()
    return world, findings(world, members, strangers=rows_now(world)["e1"] == "S")


@pytest.mark.spec("GRP-3")
@pytest.mark.parametrize("joined", [False, True])
def test_a_leader_that_dies_at_any_call_neither_loses_nor_duplicates_a_row(joined: bool) -> None:
    members: list[MemberAnswers] = []

    def make_run() -> tuple[SimulatedSystem, Sequence[Actor]]:
        members.append(MemberAnswers())
        return seeded("group-death", SEEDED), [group(members[-1], joined=joined)]

    shared = 0
    for number, case in enumerate(crash_points(make_run, "G")):
        assert case.trace.failure is None, case.trace.story()
        shared += case.world.counters["group.done"]
        assert takes_over(case.world).failure is None
        assert findings(case.world, members[number], strangers=False) == [], case.trace.story()
    assert shared > 2


@pytest.mark.spec("GRP-1")
@pytest.mark.spec("GRP-2")
@pytest.mark.spec("GRP-7")
@pytest.mark.parametrize("joined", [False, True])
def test_a_group_concurrent_with_another_writer_neither_loses_nor_duplicates_a_row(
    joined: bool,
) -> None:
    shared = alone = 0
    for seed in range(600 if NIGHTLY else 16):
        budgets = {
            Fault.LEASE_LOST: seed % 2,
            Fault.CRASH_BEFORE: seed % 3 % 2,
            Fault.AMBIGUOUS_LATE: 1,
            Fault.AMBIGUOUS_APPLIED: 1,
        }
        world, found = played(seed, Faults(budgets=budgets), stranger(), joined=joined)
        assert found == [], f"seed {seed}"
        shared += world.counters["group.done"]
        alone += world.counters["group.refused"]
    assert shared > 5
    assert alone > 2


#: Guards of a group; without one of them the checks above must find something.
MUTANTS: dict[str, tuple[Any, str, Callable[..., object], bool]] = {
    "whoever comes is let in": (group_write, "verdict_on", lambda *_: NoConflict(), False),
    "new keys of members are not compared": (group_write, "rejected_by", lambda *_: None, False),
    "files of those who are not in it stay": (
        group_write,
        "reconcile_files",
        lambda *_: None,
        False,
    ),
    "joined rows of one key all stay": (
        coalesced_writes,
        "combined",
        lambda rows, *_: rows,
        True,
    ),
    "batches of joined writes are not told": (CoalescedWrite, "batches", lambda _: (), True),
    "joined writes are told the rows of all": (
        CoalescedWrite,
        "rows_of_each",
        lambda joint, metadata: [RowCounts.of(metadata)] * len(joint.works),
        True,
    ),
}


@pytest.mark.parametrize("guard", MUTANTS)
def test_a_group_without_one_of_its_guards_is_caught(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, mutant, joined = MUTANTS[guard]
    monkeypatch.setattr(where, name, mutant)
    try:
        _, found = played(0, Faults(), joined=joined)
    except (AssertionError, CorruptTableError, KeyError) as error:
        found = [repr(error)]  # two rows, two files, one failed run, a batch that is nowhere
    assert found
