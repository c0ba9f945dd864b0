"""
The record of one simulated run: every move with its answer, and how the run ended.

Two runs are the same when their hashes are. A failing trace prints its last steps and
one line that repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple


class SimulationFailed(AssertionError):  # noqa: N818 - reads as what a test reports
    """A simulated run broke a rule; the text ends with the line that repeats it."""


class TraceStep(NamedTuple):
    """One move: actor, call and answer; ``fault`` is empty for a plain step."""

    actor: str
    call: str
    path: str
    outcome: str
    fault: str


@dataclass(slots=True)
class Trace:
    """
    The record of one run.

    ``outcomes`` maps each actor to ``returned``, ``crashed`` or the name of the error it raised.
    ``errors`` keeps each error with its traceback. ``moves`` repeats the run when given to
    ``ReplayPolicy``.
    """

    scenario: str
    seed: int
    steps: list[TraceStep] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    failure: str | None = None

    @property
    def hash(self) -> str:
        """16 hex digits over all steps, the outcomes and the failure."""
        digest = blake2b(digest_size=8)
        for step in self.steps:
            digest.update("\x1f".join(step).encode() + b"\n")
        digest.update(repr((sorted(self.outcomes.items()), self.failure)).encode())
        return digest.hexdigest()

    @property
    def rerun_line(self) -> str:
        """The one line that repeats this run."""
        return f"re-run: scenario={self.scenario} seed={self.seed} trace={self.hash}"

    def story(self, last: int | None = None) -> str:
        """The steps as a table: number, actor, call, path, outcome; only the ``last`` ones."""
        first = 0 if last is None else max(0, len(self.steps) - last)
        lines = [] if first == 0 else [f"... {first} steps before"]
        for number, step in enumerate(self.steps[first:], start=first):
            fault = f"  [{step.fault}]" if step.fault else ""
            lines.append(
                f"{number:5d} {step.actor:<12} {step.call:<22} {step.path:<48} "
                f"{step.outcome}{fault}"
            )
        return "\n".join(lines)

    def expect_ok(self, *, last: int = 60) -> Trace:
        """
        Return itself when the run broke nothing.

        Raises:
            SimulationFailed: It did; the text has the failure, the last steps, the re-run line.
        """
        if self.failure is None:
            return self
        cause = next(iter(self.errors.values()), None)
        text = f"{self.failure}\n{self.story(last)}\n{self.rerun_line}"
        raise SimulationFailed(text) from cause
