"""
A committer of a host that sleeps before each of its calls, while its writers continue without it.

Each looks up the outcome of its rows and writes the uncommitted ones by itself (GRP-6). Then the
committer wakes and continues. No write has a batch id: a repeated write leaves its rows twice.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from filegroups.group_commit.commit_group import Answer, NotCommitted
from filegroups.group_commit.member import Member
from filegroups.group_commit.messages import MemberResult, Message, PeerLostError, WasCommitted
from filegroups.writing.write import prepare_write, write
from filegroups.writing.write_request import CommitResult, WriteRequest
from tests.simulation.asleep_kit import (
    LOCK_FREE,
    OURS,
    SHARED,
    Act,
    Story,
    acting,
    all_slots,
    sweep,
)
from tests.simulation.engine_kit import rows_now, seeded
from tests.simulation.test_committer import (
    INSERTS,
    MEMBERS,
    SEEDED,
    UPSERTS,
    Writers,
    _writes_in,
)
from tests.simulator.ports import ActorPorts
from tests.simulator.world import SimulatedSystem
from tests.unit.timeline.loopback import RELEASE, Loopback, commit_offers
from timeline.context import TableContext
from timeline.errors import HoodooError, OutcomeUnknownError
from timeline.model.slot import SlotKind

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
MODES = {"ours": OURS, "none": LOCK_FREE, "shared": SHARED}
#: Keys that are written again: b1 by the cleanup, d1 by the later one of two writers.
ALSO = {"b1": ("final",), "d1": ("D", "E")}


@dataclass
class Wire(Loopback):
    """Its writer may abandon it while the committer sleeps, but not during an answer of its own."""

    answering: bool = False

    def send(self, message: Message) -> None:
        self.answering = True
        super().send(message)
        self.answering = False
        if self.closed:
            raise PeerLostError("given up meanwhile")


@dataclass
class Host:
    """The committer and its writers, created again for every call it sleeps before."""

    plan: WriteRequest
    writers: Writers = field(default_factory=Writers)
    wires: dict[str, Wire] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    found: int = 0
    alone: int = 0

    def __call__(self, ports: ActorPorts, context: TableContext) -> None:
        self.writers, self.wires, self.unknown = Writers(self.plan), {}, set()
        for name in MEMBERS:
            rows = self.writers.workload(context, name)
            member = Member(
                prepare_write(context, self.plan, rows, context.cached_snapshot()), RELEASE
            )
            self.wires[name] = Wire(member)
        waiting = list(MEMBERS)
        while waiting:
            try:
                answers = commit_offers(context, [self.wires[name] for name in waiting])
            except HoodooError as error:
                ports.events.emit("sim.group_failed", why=str(error))
                answers = [NotCommitted.ALONE] * len(waiting)
            for name, answer in zip(list(waiting), answers, strict=True):
                if answer is not NotCommitted.CONFLICTS:
                    waiting.remove(name)
                    self.record(context, name, answer)

    def record(self, context: TableContext, name: str, answer: Answer) -> None:
        """Record a writer's answer, or resolve its write without one."""
        wire = self.wires[name]
        if isinstance(answer, CommitResult) and not wire.closed:
            outcome = WasCommitted(
                requested_time=answer.requested_time,
                completion_time=answer.completion_time,
                group=answer.group,
                lost_slots=answer.lost_slots,
                own=MemberResult.of(answer),
            )
            self.writers.results[name] = wire.member.commit_result(outcome)
        self.go_on(context, name, finds_out=wire.closed or answer is not NotCommitted.ALONE)

    def go_on(self, context: TableContext, name: str, *, finds_out: bool) -> None:
        if name in self.writers.results or name in self.unknown:
            return
        self.wires[name].closed = True
        try:
            result = self.wires[name].member.resolve(context) if finds_out else None
            self.found += result is not None
            self.alone += result is None
            if result is None:
                result = write(context, self.plan, self.writers.workload(context, name))
            self.writers.results[name] = result
        except OutcomeUnknownError:
            self.unknown.add(name)

    def gives_up(self, name: str) -> Act:
        def act(_: ActorPorts, context: TableContext) -> None:
            if name in self.wires and not self.wires[name].answering:
                self.go_on(context, name, finds_out=True)

        return act

    def wrong(self, world: SimulatedSystem) -> list[str]:
        """Rows that do not exist exactly once, or have another answer."""
        slots, results = all_slots(world), self.writers.results
        void = {one.number - 1 for one in slots if one.kind is SlotKind.VOID}
        commits = [one for one in slots if one.kind is SlotKind.COMMIT and one.number not in void]
        times = {one.requested_time for one in commits}
        found = [
            f"{name} got: {one}"
            for name, one in results.items()
            if one.requested_time not in times
            or one.rows_inserted + one.rows_updated != len(MEMBERS[name])
        ]
        written = sum(map(_writes_in, commits))
        if not len(results) <= written <= len(results) + len(self.unknown):
            found.append(f"{written} writes were committed, not those of {sorted(results)}")
        rows = rows_now(world)
        return found + [
            f"{key} is of {rows.get(key)}, not {name}"
            for name in results
            for key in self.writers.keys[name]
            if rows.get(key) not in (name, *ALSO.get(key, ()))
        ]


QUICK = [(INSERTS, "ours"), (INSERTS, "shared"), (UPSERTS, "none")]
MET = [(plan, mode) for plan in (UPSERTS, INSERTS) for mode in MODES]


@pytest.mark.spec("GRP-6")
@pytest.mark.spec("GRP-8")
@pytest.mark.parametrize(
    ("plan", "mode"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in MET if one not in QUICK)],
)
def test_a_committer_that_resumes_after_its_writers_commits_no_row_twice(
    plan: WriteRequest, mode: str
) -> None:
    host, limits = Host(plan), MODES[mode]
    found = sweep(
        Story(
            before=seeded("committer-asleep", SEEDED),
            jobs={},
            sleeper=host,
            others=[acting(f"w{name}", limits, host.gives_up(name)) for name in MEMBERS],
            limits=limits,
            far=mode != "shared",
            rows=host.wrong,
        ),
        every=1 if NIGHTLY else 3,
    )
    assert found == []
    assert host.found > 3
    assert host.alone > 10
