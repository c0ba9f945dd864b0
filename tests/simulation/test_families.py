"""A taste of every scenario family; ``make sim`` runs them by the ten thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.families import BY_ID, FAMILIES, numbered, of_name
from tests.simulation.family import Family, Played, play_schedule, smallest

BUILT = [family.id for family in FAMILIES if family.build is not None]


@pytest.mark.parametrize("name", BUILT)
def test_first_schedules_of_every_family_hold(name: str) -> None:
    for number in range(3):
        played = play_schedule(BY_ID[name], number)
        assert played.failure is None, played.report()


def test_the_families_are_listed_and_those_not_run_have_a_reason() -> None:
    assert [family.id for family in FAMILIES] == [f"S{number}" for number in range(1, 21)]
    for family in FAMILIES:
        assert (family.build is None) == bool(family.missing) == (family.share == 0), family.id


def test_blocks_of_schedules_repeat_none_and_hold_every_family() -> None:
    names = [*numbered(0, 150), *numbered(1, 150)]
    assert len(set(names)) == 300
    assert {family for family, _ in names[:150]} == set(BUILT)


@pytest.mark.parametrize("workers", [1, 2, 5, 40])
def test_processes_share_the_schedules_of_a_block_and_leave_none_out(workers: int) -> None:
    lanes = campaign.lanes_of(workers)
    shared = [dict(campaign.blocks(campaign.BLOCK, 7, lane)).get(0, []) for lane in lanes]
    assert sorted(chain(*shared)) == sorted(numbered(7, campaign.BLOCK))
    if workers < len(BUILT) / 2:
        assert max(map(len, shared)) < 2 * min(map(len, shared))


def test_a_schedule_that_cannot_be_checked_is_a_failure_and_ends_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(family: Family, number: int) -> Played:
        if number == 1:
            raise ValueError("no judge")
        return play_schedule(family, number)

    monkeypatch.setattr(campaign, "play_schedule", play)
    tally = campaign.play_block([("S1", 0), ("S1", 1), ("S1", 2)])
    assert tally.count == 3
    (failure,) = tally.failures
    assert failure.startswith("S1:1 ")
    assert "no judge" in failure


@pytest.mark.parametrize("name", ["S1:4", "S6:8", "S13:3"])
def test_same_name_gives_the_same_trace(name: str) -> None:
    family, number = of_name(name)
    first = play_schedule(family, number)
    assert play_schedule(family, number).hash == first.hash


def test_same_name_gives_the_same_trace_in_another_process() -> None:
    """Nothing may depend on the order of sets, the machine's clock or earlier schedules."""
    code = (
        "from tests.simulation.families import BY_ID\n"
        "from tests.simulation.family import play_schedule\n"
        "print(*[play_schedule(BY_ID[f], 5).hash for f in ('S2', 'S5', 'S12')],\n"
        "      *[play_schedule(BY_ID[f], 1_044).hash for f in ('S4', 'S8')])"
    )
    hashes = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    names = [("S2", 5), ("S5", 5), ("S12", 5), ("S4", 1_044), ("S8", 1_044)]
    assert hashes == [play_schedule(BY_ID[name], number).hash for name, number in names]


def test_schedules_that_once_failed_hold_now() -> None:
    for name in campaign.corpus():
        family, number = of_name(name)
        played = play_schedule(family, number)
        assert played.failure is None, played.report()


def test_schedule_that_holds_has_nothing_to_shrink() -> None:
    assert smallest(BY_ID["S1"], 0) is None


def test_an_unknown_name_is_refused_with_an_example() -> None:
    with pytest.raises(LookupError, match="S3:17"):
        of_name("S99:1")
    waiting = replace(BY_ID["S1"], build=None, missing="what it waits for")
    with pytest.raises(LookupError, match="waits for"):
        play_schedule(waiting, 0)
