"""The table of guards is whole; ``make mutants`` tries every one of them."""

from __future__ import annotations

import pytest

from tests.simulation.families import of_name
from tests.simulation.family import play_schedule, smallest
from tests.simulation.guards import GUARDS
from tests.simulation.kill_mutants import judge, known_kills
from tests.simulation.scopes import SCOPES

PLACES = {guard.name: place for place, guard in enumerate(GUARDS)}


def test_table_has_thirty_guards_with_names_of_their_own() -> None:
    assert len(PLACES) == len(GUARDS) >= 30


def test_every_guard_has_a_schedule_or_a_story_that_detects_its_loss() -> None:
    with_story = {guard.name for guard in GUARDS if guard.story is not None}
    assert with_story | set(known_kills()) == set(PLACES)


@pytest.mark.parametrize("name", ["judges nothing", "batch looked for once", "pins not read"])
def test_mutant_is_killed_by_a_stored_schedule(name: str) -> None:
    verdict = judge(PLACES[name], search=False, limit=100)
    assert verdict.killer is not None
    assert verdict.shows


def test_schedule_that_kills_a_mutant_shrinks_to_its_essential_moves() -> None:
    """Two changes of actor and no fault: one commits after the other has refreshed."""
    guard = GUARDS[PLACES["judges nothing"]]
    family, number = of_name(known_kills()[guard.name])
    whole = play_schedule(family, number, change=guard.change)
    shrunk = smallest(family, number, change=guard.change, replays_max=60)
    assert shrunk is not None
    assert len(shrunk.moves) < len(whole.trace.moves)
    assert (shrunk.trace.failure or "").startswith("I5")
    faults, switches, _ = shrunk.cost
    assert (faults, switches) == (0, 2)


def test_scopes_have_names_of_their_own_and_eight_are_searched_every_time() -> None:
    assert len({scope.id for scope in SCOPES}) == len(SCOPES)
    assert sum(not scope.nightly for scope in SCOPES) >= 8


@pytest.mark.parametrize("name", ["X3", "X11"])
def test_small_scopes_hold_in_every_interleaving(name: str) -> None:
    seen = next(scope for scope in SCOPES if scope.id == name).explore()
    assert seen.failed is None
    assert seen.complete
    assert seen.runs > 10
