"""Results of a mutant when some of its tests fail without it."""

from __future__ import annotations

from types import CodeType
from typing import cast

import pytest

from tests.mutation.farm import Farm, Job, Outcome
from tests.mutation.mutants import mutants_of

[MUTANT] = [m for m in mutants_of("m.py", "def f(a):\n    return a\n") if m.operator == "returned"]
NO_SESSION = cast(pytest.Session, None)


class Staged(Farm):
    """Tests by name: some find the mutant, some always fail."""

    def __init__(self, *, seeing: set[str], failing: set[str], slow: Outcome | None = None) -> None:
        job = Job(module="m.py", mutant=MUTANT, inside=True, near=("a", "b"), far=("c",))
        self.outcomes: list[Outcome] = []
        super().__init__([job, job], {}, lambda job, outcome: self.outcomes.append(outcome))
        self.runs: list[tuple[bool, tuple[str, ...]]] = []
        self._seeing, self._failing, self._slow = seeing, failing, slow

    def change(self, job: Job, code: CodeType) -> bool:
        return True

    def test(self, session: pytest.Session, tests: tuple[str, ...], killer: int) -> int:
        return 0

    def _run(
        self, session: pytest.Session, job: Job | None, tests: tuple[str, ...]
    ) -> tuple[Outcome, str]:
        self.runs.append((job is not None, tests))
        if self._slow is not None:
            return self._slow, ""
        failing = self._failing | (self._seeing if job is not None else set())
        culprit = next((test for test in tests if test in failing), "")
        return (Outcome.KILLED if culprit else Outcome.SURVIVED), culprit


def test_a_test_that_fails_without_a_mutant_kills_none() -> None:
    farm = Staged(seeing=set(), failing={"a"})
    farm.play(NO_SESSION)
    assert farm.outcomes == [Outcome.SURVIVED, Outcome.SURVIVED]


def test_the_remaining_tests_run_against_a_mutant() -> None:
    farm = Staged(seeing={"a", "c"}, failing={"a"})
    farm.play(NO_SESSION)
    assert farm.outcomes == [Outcome.KILLED, Outcome.KILLED]


def test_a_killing_test_is_run_once_without_a_mutant_and_then_runs_first() -> None:
    farm = Staged(seeing={"b"}, failing=set())
    farm.play(NO_SESSION)
    assert farm.runs == [(True, ("a", "b")), (False, ("b",)), (True, ("b", "a"))]


def test_tests_that_take_too_long_without_a_mutant_end_the_run() -> None:
    farm = Staged(seeing=set(), failing=set(), slow=Outcome.TIMEOUT)
    with pytest.raises(RuntimeError, match=r"unchanged: m\.py"):
        farm.play(NO_SESSION)
