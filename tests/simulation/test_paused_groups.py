"""
A group commit whose committer sleeps before each of its calls, while others roll back (GRP-1).

It loses the lock, and a restore or the rollback of the newest write runs meanwhile. Every batch is
committed once at most, members' results are true, and the rows equal the commit log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest

from filegroups.group_commit.commit_group import commit_group
from filegroups.writing.write import write_prepared
from filegroups.writing.write_request import CommitResult
from tests.simulation import test_group_commit as groups
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
from tests.simulation.engine_kit import Job, play, rows_now, seeded, writer
from tests.simulation.test_paused_services import restores, rolls_back, writes
from tests.simulator.engine_facts import OPERATION_KEY
from tests.simulator.ports import ActorPorts
from tests.simulator.world import SimulatedSystem
from timeline.codecs.instant_avro import decode_commit
from timeline.commit_log import restored_away_by
from timeline.context import TableContext
from timeline.errors import HoodooError, OutcomeUnknownError
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind

NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
OLD = ("b1", "e1")
JOBS = {
    "seed": groups.SEEDED,
    "old": OLD,
    "older": OLD,
    "final": ("a1", "b1", "z9"),
    "V": ("a1", "c1"),
}
MODES = {"ours": OURS, "none": LOCK_FREE, "shared": SHARED}
MEANWHILE: dict[str, Sequence[Act]] = {
    "restore": (restores,),
    "restore, writer": (restores, writes),
    "rollback": (rolls_back, writes),
}


class Group:
    """
    The threads of one process and their results; created again for every call it sleeps before.
    """

    def __init__(self, *, joined: bool) -> None:
        self._joined = joined
        self.results: dict[str, CommitResult] = {}

    def __call__(self, ports: ActorPorts, context: TableContext) -> None:
        self.results = {}
        works = groups.works_of(context, joined=self._joined)
        answers = commit_group(context, works)
        for name, work, answer in zip(groups.MEMBERS, works, answers, strict=True):
            if isinstance(answer, OutcomeUnknownError):
                ports.events.emit("sim.member_unknown", why=str(answer))
                continue
            try:
                self.results[name] = (
                    answer if isinstance(answer, CommitResult) else write_prepared(work)
                )
            except HoodooError as error:
                ports.events.emit("sim.member_failed", why=str(error))


def grown() -> SimulatedSystem:
    """Three commits, of which a restore keeps two."""
    world = seeded("group-asleep", groups.SEEDED)
    play(world, [writer("old", [Job(operation=one, keys=OLD) for one in ("old", "older")])], [])
    return world


def rows_of(slot: Slot) -> dict[str, str]:
    """Of a group's commit those of its members, in their order."""
    if not slot.batches:
        operation = decode_commit(slot.body).extra_metadata[OPERATION_KEY]
        return dict.fromkeys(JOBS[operation], operation)
    names = [one.batch_id.partition("/")[2] for one in slot.batches]
    return {key: name for name in names for key in groups.MEMBERS[name]}


def wrong(world: SimulatedSystem, results: Mapping[str, CommitResult]) -> list[str]:
    """Differences of the table, or of members' results, from the commit log."""
    slots = all_slots(world)
    void = {one.number - 1 for one in slots if one.kind is SlotKind.VOID}
    found: list[str] = []
    times: dict[str, str] = {}
    gone: set[str] = set()
    now: dict[str, str] = {}
    states: dict[str, dict[str, str]] = {}
    before: dict[str, dict[str, str]] = {}
    for slot in slots:
        if slot.kind is SlotKind.COMMIT and slot.number not in void:
            found += [f"twice: {one}" for one in slot.batches if one.batch_id in times]
            times |= {one.batch_id: slot.requested_time for one in slot.batches}
            before[slot.requested_time], now = now, now | rows_of(slot)
            states[slot.requested_time] = now
        elif slot.kind is SlotKind.RESTORE:
            now = (before if slot.action is Action.ROLLBACK else states)[slot.requested_time]
            gone |= restored_away_by(slot)
            times = {batch: time for batch, time in times.items() if time not in gone}
    found += [
        f"{name} was told of {one.requested_time}"
        for name, one in results.items()
        if one.requested_time not in gone and times.get(f"source/{name}") != one.requested_time
    ]
    rows = rows_now(world)
    if {rows.get("d1"), now.get("d1")} <= {"D", "E"}:
        now["d1"] = rows["d1"]  # joined: the later one decides
    return found if rows == now else [*found, f"rows are {rows}, not {now}"]


QUICK = [("restore", "none", True)]
MET = [(who, mode, joined) for who in MEANWHILE for mode in MODES for joined in (True, False)]


@pytest.mark.spec("GRP-1")
@pytest.mark.spec("RST-4")
@pytest.mark.parametrize(
    ("who", "mode", "joined"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in MET if one not in QUICK)],
)
def test_a_paused_committer_commits_the_results_that_it_reports(
    who: str, mode: str, joined: bool
) -> None:
    group, limits = Group(joined=joined), MODES[mode]
    found = sweep(
        Story(
            before=grown(),
            jobs=JOBS,
            sleeper=group,
            others=[acting(f"R{n}", limits, act) for n, act in enumerate(MEANWHILE[who])],
            limits=limits,
            far=mode != "shared",
            rows=lambda world: wrong(world, group.results),
        ),
        every=1 if NIGHTLY else 5,
    )
    assert found == []
