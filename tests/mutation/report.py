"""The table of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from tests.mutation.exclusions import Rule


@dataclass(frozen=True, kw_only=True)
class Row:
    """Counts of one module."""

    group: str
    name: str
    all: int
    excluded: int
    killed: int
    timeouts: int
    survived: int

    @property
    def run(self) -> int:
        return self.killed + self.timeouts + self.survived

    @property
    def score(self) -> float:
        return 100 * (self.killed + self.timeouts) / self.run if self.run else 100.0


HEAD = "| Module | Mutants | Run | Killed | Timeouts | Survived | Score |"
RULE = "|---|---:|---:|---:|---:|---:|---:|"


def sums(rows: list[Row]) -> list[Row]:
    """A row per group, in the groups' order."""
    names = dict.fromkeys(row.group for row in rows)
    return [_sum(name, [row for row in rows if row.group == name]) for name in names]


def _sum(name: str, rows: list[Row]) -> Row:
    return Row(
        group=name,
        name=f"**{name}**",
        all=sum(row.all for row in rows),
        excluded=sum(row.excluded for row in rows),
        killed=sum(row.killed for row in rows),
        timeouts=sum(row.timeouts for row in rows),
        survived=sum(row.survived for row in rows),
    )


def table(rows: list[Row]) -> str:
    """Modules under the sum of their group."""
    lines = [HEAD, RULE]
    for total in sums(rows):
        here = [row for row in rows if row.group == total.group]
        lines += [_line(row) for row in [total, *here]]
    return "\n".join(lines)


def _line(row: Row) -> str:
    counts = (row.all, row.run, row.killed, row.timeouts, row.survived)
    return f"| {row.name} | {' | '.join(map(str, counts))} | {row.score:.1f} % |"


def results(
    rows: list[Row], excluded: Mapping[str, int], rules: Mapping[str, Rule], note: str = ""
) -> str:
    """Return the committed page; ``note`` names the state and the sample."""
    reasons = {name: rule.reason for name, rule in rules.items()}
    reasons["equivalent"] = "single places, each with its reason in `equivalent.txt`"
    left = [f"| {name} | {excluded.get(name, 0)} | {why} |" for name, why in reasons.items()]
    return "\n".join(
        [
            "# Mutation testing: results of the last run",
            "",
            "Written by `make mutation`. *Mutants* are all that the operators of `mutants.py` make of a",
            "module, without the parts that the rules below exclude; *run* is less where a sample was taken.",
            "A timeout counts as killed.",
            "",
            *([*textwrap.wrap(note, 118), ""] if note else []),
            table(rows),
            "",
            "## Left alone",
            "",
            "| Rule | Mutants | Why |",
            "|---|---:|---|",
            *left,
            "",
        ]
    )
