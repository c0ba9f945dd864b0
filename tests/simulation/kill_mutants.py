"""
``make mutants``: each guard of the protocol dropped, and the schedule that notices.

A schedule that killed a mutant once is kept in ``kills.txt`` and tried first; when it no longer
does, or with ``--search``, schedules of the mutant's families are tried from the first one on.
A guard whose mutant survives is not tested: the program ends with status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.simulation.campaign import processes
from tests.simulation.families import BY_ID, of_name
from tests.simulation.family import play_schedule
from tests.simulation.guards import GUARDS, Guard

KILLS = Path(__file__).with_name("kills.txt")
LIMIT = 20_000


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of one mutant; ``tried`` counts schedules from the first one on."""

    guard: str
    rule: str
    killer: str | None
    tried: int
    shows: str = ""

    @property
    def line(self) -> str:
        killer = self.killer or "SURVIVES"
        return f"{self.guard:<34} {self.rule:<26} {killer:<24} {self.tried:>6}  {self.shows[:90]}"


def known_kills() -> dict[str, str]:
    """Guard to the schedule that killed its mutant."""
    lines = [line.split(maxsplit=1) for line in KILLS.read_text().splitlines()]
    return {parts[1]: parts[0] for parts in lines if len(parts) == 2 and parts[0] != "#"}


def try_one(guard: Guard, name: str) -> str:
    """Return the failure that a schedule shows of the mutant; empty when nothing."""
    family, number = of_name(name)
    try:
        return play_schedule(family, number, change=guard.change).failure or ""
    except Exception as error:  # noqa: BLE001 - a table that not even the judges can read
        return f"{type(error).__name__}: {error}"


def names_for(guard: Guard, limit: int) -> list[str]:
    """The first schedules of the guard's families, alternating."""
    rounds = range(-(-limit // len(guard.families)))
    return [f"{family}:{number}" for number in rounds for family in guard.families][:limit]


def judge(place: int, *, search: bool, limit: int) -> Verdict:
    """Find the schedule that kills one mutant."""
    guard = GUARDS[place]
    common = {"guard": guard.name, "rule": guard.rule}
    if guard.story is not None:
        shows = guard.story()
        killer = guard.story_name if shows else None
        return Verdict(**common, killer=killer, tried=1, shows=shows)
    known = known_kills().get(guard.name)
    if known is not None and not search:
        shows = try_one(guard, known)
        if shows:
            family, number = of_name(known)
            section = guard.families.index(family.id) if family.id in guard.families else 0
            tried = number * len(guard.families) + section + 1
            return Verdict(**common, killer=known, tried=tried, shows=shows)
    for tried, name in enumerate(names_for(guard, limit), start=1):
        shows = try_one(guard, name)
        if shows:
            return Verdict(**common, killer=name, tried=tried, shows=shows)
    return Verdict(**common, killer=None, tried=limit)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--search", action="store_true", help="from the first schedule on")
    parser.add_argument("--keep", action="store_true", help="write the results into kills.txt")
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    print(f"{'guard dropped':<34} {'rule':<26} {'killed by':<24} {'tried':>6}  shows as")
    with processes(options.workers) as pool:
        one = partial(judge, search=options.search, limit=options.limit)
        verdicts = []
        for verdict in pool.map(one, range(len(GUARDS))):
            print(verdict.line, flush=True)
            verdicts.append(verdict)
    alive = [verdict.guard for verdict in verdicts if verdict.killer is None]
    count = len(verdicts) - len(alive)
    print(f"{count} of {len(verdicts)} mutants killed in {time.monotonic() - started:.0f} s")
    if options.keep:
        head = "# Which schedule kills the mutant of which guard; written by make mutants ARGS=--keep.\n"
        named = [v for v in verdicts if v.killer is not None and v.killer.split(":")[0] in BY_ID]
        KILLS.write_text(head + "".join(f"{v.killer}  {v.guard}\n" for v in named))
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
