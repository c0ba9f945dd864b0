"""
A committer that dies at each of its calls while its writers live on (GRP-4 to GRP-6).

No write has a batch id. Each writer looks up its outcome by the instant of its files, and writes
again only rows that are not and never will be committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from filegroups.group_commit.commit_group import NotCommitted
from filegroups.group_commit.member import Member
from filegroups.group_commit.messages import Joined, Message, PeerLostError
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import prepare_write, write
from filegroups.writing.write_request import CommitResult, WriteRequest
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
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.faults import Fault, Faults
from tests.simulator.ports import Actor, ActorPorts
from tests.simulator.scheduler import crash_points, run
from tests.simulator.trace import Trace
from tests.simulator.world import SimulatedSystem
from tests.unit.timeline.loopback import RELEASE, Loopback, commit_offers
from timeline.codecs.instant_avro import decode_commit
from timeline.context import TableContext
from timeline.errors import CorruptTableError, HoodooError
from timeline.model.commit_metadata import GROUP_KEY, WriteOperation
from timeline.model.file_names import HEARTBEATS, MARKERS
from timeline.model.slot import Slot, SlotKind

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
UPSERTS = plan_for("group")  # the request of all members
INSERTS = plan_for("group", WriteOperation.INSERT)  # done twice, they are there twice

#: Upserts of D and E insert one key, which shows when their files are written.
MEMBERS = {"B": ("b1",), "D": ("d1",), "E": ("d1", "d2")}
FRESH = {"B": ("b4",), "D": ("d1",), "E": ("d2", "d3")}
STRANGER = ("b3", "e1")  # in the base file of B
SEEDED = ("b1", "b2", "b3", "e1")


@dataclass
class Writers:
    """The writers' processes: their state when the committer is dead."""

    plan: WriteRequest = UPSERTS
    members: dict[str, Member] = field(default_factory=dict)
    results: dict[str, CommitResult] = field(default_factory=dict)
    found: int = 0  # of a committer that did not say so
    alone: int = 0
    lost: int = 0  # writers that the committer gave up

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        return FRESH if self.plan is INSERTS else MEMBERS

    def workload(self, context: TableContext, name: str) -> LocalWorkload:
        return LocalWorkload(context.ports, rows_of(name, self.keys[name]))


def committer(writers: Writers, *, sleeps: str = "") -> Actor:
    """Commits the offered writes, group after group, as long as it lives."""

    def body(ports: ActorPorts) -> None:
        context = patiently(ports, open_table)
        channels = {}
        for name in MEMBERS:
            rows = writers.workload(context, name)
            work = prepare_write(context, writers.plan, rows, context.cached_snapshot())
            writers.members[name] = Member(work, RELEASE)
            channels[name] = Loopback(writers.members[name])
        if sleeps:
            channels[sleeps].acts["join"] = _silent
        while channels:
            try:
                answers = commit_offers(context, list(channels.values()))
            except HoodooError as error:
                ports.events.emit("sim.group_failed", why=str(error))
                return
            answered = {
                name: answer
                for name, answer in zip(channels, answers, strict=True)
                if answer is not NotCommitted.CONFLICTS
            }
            for name, answer in answered.items():
                del channels[name]
                if isinstance(answer, CommitResult):
                    writers.results[name] = answer
                writers.lost += answer is NotCommitted.LOST

    return Actor(name="G", body=body)


def _silent() -> Message | None:
    raise PeerLostError("silent")


def stranger() -> Actor:
    def body(ports: ActorPorts) -> None:
        client_write(ports, patiently(ports, open_table), Job(operation="S", keys=STRANGER))

    return Actor(name="S", body=body)


def go_on(
    world: SimulatedSystem, writers: Writers, *others: Actor, faults: Faults | None = None
) -> Trace:
    """Each writer without an answer looks up its outcome, and writes uncommitted rows by itself."""

    def writer(name: str) -> Actor:
        def body(ports: ActorPorts) -> None:
            context = patiently(ports, open_table)
            member = writers.members.get(name)
            result = None if member is None else member.resolve(context)
            writers.found += result is not None
            if result is None:
                writers.alone += 1
                result = write(context, writers.plan, writers.workload(context, name))
            writers.results[name] = result

        return Actor(name=f"w{name}", body=body)

    left = [writer(name) for name in MEMBERS if name not in writers.results]
    return run(world, [*left, *others], seed=0, faults=faults or Faults())


def at_rest(world: SimulatedSystem) -> Trace:
    def body(ports: ActorPorts) -> None:
        context = open_table(ports_of(ports))
        for _ in range(3):
            ports.clock.sleep_ms(2 * TOLERATED_MS)
            clean(context, CLEANING)

    return run(world, [Actor(name="T", body=body)], seed=0)


def findings(world: SimulatedSystem, writers: Writers) -> list[str]:
    """Return the findings at rest: rows, commit results, or something left over."""
    context = open_table(outside(world))
    slots = context.commit_log.between(0, context.commit_log.head())
    published = {one.requested_time for one in slots if one.kind is SlotKind.COMMIT}
    found = [
        f"{name} got an instant that does not exist"
        for name, result in writers.results.items()
        if result.requested_time not in published
    ]
    found += [
        f"{name} counts {result.rows_inserted} and {result.rows_updated}"
        for name, result in writers.results.items()
        if result.rows_inserted + result.rows_updated != len(MEMBERS[name])
    ]
    written = sum(_writes_in(one) for one in slots if one.kind is SlotKind.COMMIT)
    if written != len(MEMBERS):  # of upserts the rows do not show it
        found.append(f"{written} writes were published")
    rows = rows_now(world)
    expected = dict.fromkeys(SEEDED, "seed")
    expected |= {key: name for name, keys in writers.keys.items() for key in keys}
    if writers.plan is UPSERTS and rows.get("d1") in "DE":
        expected["d1"] = rows["d1"]  # the last writer decides
    expected |= dict.fromkeys(STRANGER, "S") if rows["e1"] == "S" else {}
    found += [f"{key} is of {rows.get(key)}" for key in expected if rows.get(key) != expected[key]]
    left = [str(one) for one in context.active().pending]
    left += world.paths_below(MARKERS) + world.paths_below(HEARTBEATS)
    return found + [f"left over: {one}" for one in left]


def _writes_in(slot: Slot) -> int:
    """How many of the members' writes a commit has."""
    metadata = decode_commit(slot.body, path="slot").extra_metadata
    return int(metadata.get(GROUP_KEY, "1")) if metadata.get(OPERATION_KEY) == "group" else 0


def deaths(plan: WriteRequest, *, every: int = 1) -> Iterator[tuple[Writers, list[str]]]:
    """The committer dies at each of its calls, and the writers continue: the findings then."""
    all_writers: list[Writers] = []

    def make_run() -> tuple[SimulatedSystem, Sequence[Actor]]:
        all_writers.append(Writers(plan))
        return seeded("committer-death", SEEDED), [committer(all_writers[-1])]

    for number, case in enumerate(crash_points(make_run, "G")):
        if number % every:
            continue
        writers = all_writers[number]
        assert case.trace.failure is None, case.trace.story()
        try:
            after = go_on(case.world, writers)
            assert after.failure is None, case.trace.story() + after.story()
            assert at_rest(case.world).failure is None
            yield writers, findings(case.world, writers)
        except CorruptTableError as error:
            yield writers, [str(error)]


@pytest.mark.spec("GRP-6")
@pytest.mark.spec("GRP-8")
@pytest.mark.parametrize("plan", [UPSERTS, INSERTS], ids=["upserts", "inserts"])
def test_writers_continue_after_their_committer_dies_at_any_call(
    plan: WriteRequest,
) -> None:
    found = alone = 0
    for number, (writers, wrong) in enumerate(deaths(plan, every=1 if NIGHTLY else 2)):
        assert wrong == [], f"call {number}"
        assert set(writers.results) == set(MEMBERS)
        found, alone = found + writers.found, alone + writers.alone
    assert found > 1
    assert alone > 20


#: Steps of a writer that looks up its outcome; without one of them a row is lost or doubled.
MUTANTS: dict[str, tuple[str, Callable[..., object]]] = {
    "writes again at once": ("member.Member.resolve", lambda *_: None),
    "goes on beside a pending instant": ("member.rollback", lambda *_: None),
    "records no results": ("commit_group.member_results_text", lambda _: {}),
    "does not know where its rows went": ("member.Member.answer", lambda *_: Joined()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_writer_without_one_of_its_checks_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, mutant = MUTANTS[name]
    monkeypatch.setattr(f"filegroups.group_commit.{part}", mutant)
    try:
        wrong = next((found for _, found in deaths(INSERTS) if found), [])
    except AssertionError as error:  # a run that failed, or a row that is there twice
        wrong = [str(error)]
    assert wrong


def played(
    seed: int, faults: Faults, *others: Actor, plan: WriteRequest, sleeps: str = ""
) -> tuple[SimulatedSystem, Writers, list[str]]:
    world, writers = seeded("committer", SEEDED), Writers(plan)
    trace = run(world, [committer(writers, sleeps=sleeps), *others], seed=seed, faults=faults)
    assert trace.failure is None, trace.story()
    after = go_on(world, writers)
    assert after.failure is None, trace.story() + after.story()
    assert at_rest(world).failure is None
    return world, writers, findings(world, writers)


@pytest.mark.spec("GRP-5")
@pytest.mark.spec("GRP-8")
def test_a_committer_with_other_and_silent_writers_neither_loses_nor_duplicates_a_row() -> None:
    lost = refused = 0
    for seed in range(400 if NIGHTLY else 18):
        budgets = {
            Fault.LEASE_LOST: seed % 2,
            Fault.CRASH_BEFORE: seed % 3 % 2,
            Fault.AMBIGUOUS_LATE: 1,
            Fault.AMBIGUOUS_APPLIED: 1,
        }
        sleeps = "BDE"[seed // 2 % 3] if seed % 2 else ""
        plan = INSERTS if seed // 3 % 2 else UPSERTS
        world, writers, found = played(
            seed, Faults(budgets=budgets), stranger(), plan=plan, sleeps=sleeps
        )
        assert found == [], f"seed {seed}"
        lost += writers.lost
        refused += world.counters["group.refused"]
    assert lost > 1
    assert refused > 0
