"""
Linked slots under crashes, lost answers and concurrent writers (SLOT-7): no link breaks.

A writer links its slot to the slot that exists, whatever happened before. The commit log of a
correct engine must never seem edited.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.simulation import test_second_refresh as shared
from tests.simulation.engine_kit import Job, mutation, play, seeded, writer
from tests.simulation.swarm import run_seed
from tests.simulator.faults import Fault
from tests.simulator.script import ScriptStage, Until, UntilEnd
from tests.simulator.world import SimulatedSystem
from timeline.codecs.commit_log import is_signed_by
from timeline.commit_log import CommitLog
from timeline.context import TableContext
from timeline.model.file_names import SLOTS
from timeline.model.slot import (
    NOTHING_BEFORE,
    Slot,
    SlotKind,
    SlotSigning,
    TamperEvidence,
    digest_of,
)
from timeline.properties.setting_enums import CommitLockMode
from timeline.truncation import read_truncation_point

KEY = b"k" * 32
SIGNED = SlotSigning(evidence=TamperEvidence.HMAC, keys=(KEY,))
SEEDS = range(10)
#: The calls of a commit with other engines, up to the last check of its lock.
UNTIL_SHOWN = shared.BEFORE["the lock's second proof"]


def sealing(
    how: SlotSigning, context: TableContext, *, kind: type[CommitLog] = CommitLog, **more: Any
) -> TableContext:
    limits = replace(context.limits, slot_signing=how, **more)
    world, unknown_ms_max = context.ports, limits.unknown_ms_max
    commit_log = kind(world, context.table_id, unknown_ms_max=unknown_ms_max, signing=how)
    return replace(context, limits=limits, commit_log=commit_log)


def torn(world: SimulatedSystem) -> list[int]:
    """Numbers of slots whose link does not fit the slot before, or that are unsigned."""
    found = []
    before = {0: NOTHING_BEFORE}
    truncation_point = read_truncation_point(shared.outside(world, "auditor").storage)
    before[truncation_point.number] = truncation_point.digest or before[0]
    for path in world.paths_below(SLOTS):
        data, number = world.files[path].data, int(path.rpartition("/")[2])
        seal = json.loads(data.partition(b"\n")[0]).get("seal")
        # The founder of a world seals nothing.
        if seal and not (seal["before"] == before[number - 1] and is_signed_by(data, KEY)):
            found.append(number)
        before[number] = digest_of(data)
    return found


def sealed_in(world: SimulatedSystem) -> int:
    return sum(b'"mac":"' in world.files[path].data for path in world.paths_below(SLOTS))


@pytest.mark.spec("SLOT-7")
def test_no_schedule_breaks_the_hash_chain() -> None:
    for seed in SEEDS:
        with mutation(partial(sealing, SIGNED)):
            outcome = run_seed(seed)
        assert torn(outcome.world) == [], seed
        assert sealed_in(outcome.world) > 0, seed


def outrun(kind: type[CommitLog] = CommitLog) -> SimulatedSystem:
    """B commits while A is about to send its slot, which then is lost."""
    world = seeded("sealed")
    jobs = {name: [Job(operation=name, keys=(key,))] for name, key in (("A", "a1"), ("B", "b1"))}
    with mutation(partial(sealing, SIGNED, kind=kind, publish_lock=CommitLockMode.NONE)):
        actors = [writer(name, job) for name, job in jobs.items()]
        trace = play(world, actors, [Until("A", f"create {SLOTS}/"), UntilEnd("B")])
    assert trace.failure is None, trace.story()
    assert (world.counters["publish.slot_lost"], sealed_in(world)) == (1, 2)
    return world


@pytest.mark.spec("SLOT-7")
def test_a_writer_that_lost_a_number_links_its_slot_to_the_winner() -> None:
    assert torn(outrun()) == []


class SealsOnce(CommitLog):
    """A mutant's: a publication keeps the seal of its first try when it lost the number."""

    def take(self, slot: Slot, **looks: Any) -> bool:
        first = self.__dict__.setdefault("first", {}).setdefault(slot.nonce, slot.hash_link)
        return super().take(replace(slot, hash_link=first), **looks)


def test_mutant_that_keeps_its_hash_link_after_a_lost_number_is_found() -> None:
    assert torn(outrun(SealsOnce)) == [3]


@pytest.mark.parametrize(
    ("stages", "kind"),
    [
        (shared.between((shared.SLOT,), early=False), SlotKind.VOID),
        (
            [Until("A", call) for call in UNTIL_SHOWN] + [Fault.LEASE_LOST, UntilEnd("A")],
            SlotKind.NOOP,
        ),
    ],
    ids=["void", "noop"],
)
def test_void_and_cancel_slots_have_hash_links_too(
    stages: list[ScriptStage], kind: SlotKind
) -> None:
    with mutation(partial(sealing, SIGNED)):
        world, _, _ = shared.played(stages)
    assert kind in shared.kinds(world)
    assert torn(world) == []
    assert sealed_in(world) == len(world.paths_below(SLOTS))
