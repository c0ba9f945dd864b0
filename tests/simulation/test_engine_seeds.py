"""Seeded runs of the shipped engine under faults; every seed can be run again alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.swarm import expect_seed, run_seed
from tests.simulator.faults import Fault

CHUNKS = 8
NIGHTLY = bool(os.environ.get("HOODOO_NIGHTLY"))
SEEDS_A_CHUNK = 2_500 if NIGHTLY else 8  # of an ordinary day: make sim
KEPT = Path(__file__).with_name("seeds.txt")
#: Events that a long run must contain at least once; otherwise the faults no longer work (I20).
MUST_HAPPEN = (
    "begin.redrawn",
    "cleaning.done",
    "heartbeat.fenced",
    "publish.helped",
    "publish.slot_lost",
    "rollback.done",
    "slot.unknown",
    "write.redo",
    "write.refused",
)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_seeds_keep_every_promise(chunk: int, sim_seed: int | None) -> None:
    """Each chunk is a share of the seeds, so that workers can divide them."""
    if sim_seed is not None:
        if chunk == 0:
            expect_seed(sim_seed)
        return
    events: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK):
        outcome = expect_seed(seed)
        events.update(outcome.world.counters)
        faults.update(outcome.trace.faults)
    if not NIGHTLY:
        return
    never = [name for name in MUST_HAPPEN if not events[name]]
    assert len(never) <= 2, f"these states were not reached: {never}"
    assert len(faults) >= len(Fault) - 3


def test_seeds_that_once_failed_hold_now(sim_seed: int | None) -> None:
    if sim_seed is not None:
        return
    lines = KEPT.read_text().splitlines()
    for line in lines:
        if line[:1].isdigit():
            expect_seed(int(line.split()[0]))


def test_same_seed_gives_the_same_trace_and_another_seed_another_one() -> None:
    first = [run_seed(seed).hash for seed in (3, 5, 8)]
    assert [run_seed(seed).hash for seed in (3, 5, 8)] == first
    assert len(set(first)) == 3


def test_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Nothing may depend on the order of sets, the machine's clock or earlier runs."""
    code = "from tests.simulation.swarm import run_seed; print(run_seed(5).hash)"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hashing in ("1", "2")
    }
    assert hashes == {run_seed(5).hash}
