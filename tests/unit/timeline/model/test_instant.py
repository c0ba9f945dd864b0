"""Every cell of the life of an instant, by hand."""

from __future__ import annotations

import itertools

import pytest

from timeline.errors import IllegalTransitionError
from timeline.model.instant import LEGAL_TRANSITIONS, AbsentInstant, Action, State, check_transition

WRITES = {
    Action.COMMIT,
    Action.DELTACOMMIT,
    Action.REPLACECOMMIT,
    Action.INDEXING,
    Action.SCHEMACOMMIT,
}
PLANS = {Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING}
UPKEEP = {Action.CLEAN, Action.ROLLBACK, Action.RESTORE}
STAGES = [
    AbsentInstant.UNBORN,
    State.REQUESTED,
    State.INFLIGHT,
    State.COMPLETED,
    AbsentInstant.GONE,
]


def legal(action: Action) -> set[tuple[str, str]]:
    if action is Action.SAVEPOINT:
        steps = "unborn inflight, inflight completed, inflight gone, completed gone"
    else:
        steps = "unborn requested, requested inflight, inflight completed, completed gone"
        if action in WRITES:
            steps += ", requested gone, inflight gone"
        if action in PLANS:
            steps += ", requested gone, inflight requested"
    return {tuple(step.split()) for step in steps.split(", ")}


@pytest.mark.parametrize("action", Action)
def test_every_cell(action: Action):
    for before, after in itertools.product(STAGES, STAGES):
        if (before.value, after.value) in legal(action):
            check_transition(action, before, after)
        else:
            with pytest.raises(IllegalTransitionError):
                check_transition(action, before, after)


def test_the_transitions_cover_every_action_and_state():
    assert set(LEGAL_TRANSITIONS) == WRITES | PLANS | UPKEEP | {Action.SAVEPOINT}
    assert all(set(stages) == set(STAGES) for stages in LEGAL_TRANSITIONS.values())


@pytest.mark.parametrize("last", [State.COMPLETED, AbsentInstant.GONE])
def test_the_worked_example(last: State | AbsentInstant):
    life = [AbsentInstant.UNBORN, State.REQUESTED, State.INFLIGHT, last]
    for before, after in itertools.pairwise(life):
        check_transition(Action.COMMIT, before, after)


def test_a_refusal_names_the_step():
    with pytest.raises(IllegalTransitionError) as caught:
        check_transition(Action.CLEAN, State.INFLIGHT, AbsentInstant.GONE)
    assert caught.value.fields == {"action": "clean", "before": "inflight", "after": "gone"}
