"""The switches of the benchmarks for high-latency stores fit the engine, and their runs repeat."""

from __future__ import annotations

import pytest

from benchmarks.farstore.compare import CASES, play
from benchmarks.farstore.mechanisms import MECHANISMS, without


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_each_mechanism_can_be_switched_off(name: str) -> None:
    with without([name]):
        pass


def test_a_seed_repeats_a_run_and_requests_one_after_the_other_take_longer() -> None:
    run = play(CASES["lone"], 1, seconds=2)
    assert play(CASES["lone"], 1, seconds=2) == run
    serial = play(CASES["lone"], 1, seconds=2, off=["parallel-requests"])
    assert serial.speed < run.speed
    assert run.refused + serial.refused == 0
