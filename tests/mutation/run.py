"""
``make mutation``: make each small mistake in the rules, commits and slots, and run the tests.

A mutant counts as killed when a test fails, or when the tests take more than five times as long as
they should. Survivors are printed with their place. The program ends with status 1 when a group
stays under the wanted share.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.mutation.exclusions import RULES, kept_equivalents
from tests.mutation.farm import Choice, Job, Outcome, farm
from tests.mutation.groups import ROOT, groups
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.reach import Reach, reach_of
from tests.mutation.report import Row, results, sums, table

KEPT = ROOT / ".mutation"  # data of a run for the next one; not part of the repository
WANTED = 85
LIVED = (Outcome.SURVIVED.value, Outcome.UNREACHED.value)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The mutants of a module that a run uses, and how many there are."""

    path: str
    group: str
    mutants: tuple[Mutant, ...]
    all: int
    excluded: dict[str, int]


def chosen(wanted: list[str], *, sample: int, each: int = 0, seed: int) -> list[Chosen]:
    """Modules of the wanted groups or paths; of each group or module a sample (0 for all)."""
    equivalent = kept_equivalents()
    found: list[Chosen] = []
    for group, paths in groups().items():
        here = [path for path in paths if {group, path} & set(wanted)]
        per_module: dict[str, tuple[list[Mutant], dict[str, int]]] = {}
        for path in here:
            mutants: list[Mutant] = []
            excluded: dict[str, int] = {}
            for mutant in mutants_of(path, (ROOT / path).read_text(encoding="utf-8")):
                rule = mutant.excluded or ("equivalent" if mutant.key in equivalent else None)
                if rule:
                    excluded[rule] = excluded.get(rule, 0) + 1
                else:
                    mutants.append(mutant)
            per_module[path] = (mutants, excluded)
        parts = [sampled(several, each, seed) for several, _ in per_module.values()]
        left = [m for ms, _ in per_module.values() for m in ms if m.key in set().union(*parts)]
        taken = sampled(left, sample, seed)
        for path, (mutants, excluded) in per_module.items():
            found.append(
                Chosen(
                    path=path,
                    group=group,
                    mutants=tuple(m for m in mutants if m.key in taken),
                    all=len(mutants),
                    excluded=excluded,
                )
            )
    return found


def sampled(mutants: list[Mutant], sample: int, seed: int) -> set[str]:
    """Keys of so many mutants, of all for 0; for a seed each sample is part of a greater one."""
    keys = [mutant.key for mutant in mutants]
    random.Random(seed).shuffle(keys)
    return set(keys[:sample] if sample else keys)


def play(
    modules: list[Chosen], *, processes: int, budget_s: float, stale: bool, tests: list[str]
) -> list[Path]:
    """
    Run every mutant; the outcomes go to a file per module and way.

    Returns:
        The output of each process that stopped before its end; the others continue.
    """
    paths = [path for several in groups().values() for path in several]

    def wanted(file: str) -> bool:
        return not tests or Path(file).stem in tests

    reach = reach_of(paths, KEPT / "reach.json", sources_may_differ=stale, wanted=wanted)
    jobs: list[Job] = []
    for module in modules:
        choice = Choice(module.path, reach, budget_s)
        jobs += [choice.job(mutant) for mutant in module.mutants]
    waiting: list[list[Job]] = []
    for inside in (True, False):
        several = [job for job in jobs if job.inside is inside]
        share = -(-len(several) // processes)
        waiting += [several[n : n + share] for n in range(0, len(several), share or 1)]
    running: set[int] = set()
    stopped: list[Path] = []
    while waiting or running:
        while waiting and len(running) < processes:
            jobs = waiting.pop(0)
            child = os.fork()
            if child == 0:
                os._exit(_play_some(jobs, reach))
            running.add(child)
        child, status = os.wait()
        running.discard(child)
        if status:
            stopped.append(_said(child))
        else:
            _said(child).unlink()
    return stopped


def _said(process: int) -> Path:
    return KEPT / "outcomes" / f"{process}.log"


def _play_some(jobs: list[Job], reach: Reach) -> int:
    file = KEPT / "outcomes" / f"{os.getpid()}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)

    def tell(job: Job, outcome: Outcome) -> None:
        with file.open("a", encoding="utf-8") as told:
            told.write(f"{outcome.value} {job.mutant.key}\n")
        if outcome in {Outcome.SURVIVED, Outcome.UNREACHED}:
            shown = f"{job.module}:{job.mutant.line}: {outcome} [{job.mutant.operator}]"
            print(shown, job.mutant.key, file=sys.stderr, flush=True)

    return farm(jobs, reach, tell, _said(os.getpid()))


def gather() -> dict[str, str]:
    """Key -> outcome of the last runs, merged from all processes."""
    kept = KEPT / "outcomes.json"
    found: dict[str, str] = json.loads(kept.read_text()) if kept.is_file() else {}
    told = sorted((KEPT / "outcomes").glob("*.txt"), key=lambda file: file.stat().st_mtime)
    for file in told:
        for line in file.read_text(encoding="utf-8").splitlines():
            outcome, key = line.split(" ", 1)
            found[key] = outcome
    KEPT.mkdir(exist_ok=True)
    kept.write_text(json.dumps(found, indent=0), encoding="utf-8")
    for file in told:
        file.unlink()
    return found


def rows(modules: Iterable[Chosen], outcomes: Mapping[str, str]) -> list[Row]:
    """The results of the chosen mutants, module by module."""
    found = []
    for module in modules:
        counts = dict.fromkeys(Outcome, 0)
        for mutant in module.mutants:
            if mutant.key in outcomes:
                counts[Outcome(outcomes[mutant.key])] += 1
        found.append(
            Row(
                group=module.group,
                name=module.path,
                all=module.all,
                excluded=sum(module.excluded.values()),
                killed=counts[Outcome.KILLED],
                timeouts=counts[Outcome.TIMEOUT],
                survived=counts[Outcome.SURVIVED] + counts[Outcome.UNREACHED],
            )
        )
    return found


def survivors(module: Chosen, outcomes: Mapping[str, str]) -> list[Mutant]:
    """Those that no test saw."""
    return [m for m in module.mutants if outcomes.get(m.key) in LIVED]


def stale_equivalents() -> list[str]:
    """Kept keys that name no mutant any more."""
    kept = set(kept_equivalents())
    known = {
        mutant.key
        for path in {key.split(" ", 1)[0] for key in kept}
        if (ROOT / path).is_file()
        for mutant in mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))
    }
    return sorted(kept - known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="groups or paths; all without one")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each group")
    parser.add_argument("--each", type=int, default=0, help="so many mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of tests a mutant gets")
    parser.add_argument("--survivors", action="store_true", help="only those of the last run")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="only those that were not run yet; with --survivors those as well",
    )
    parser.add_argument(
        "--tests",
        nargs="*",
        default=[],
        metavar="test_x",
        help="reach: measure only these test files now; quick, and may miss some",
    )
    parser.add_argument(
        "--stale-map", action="store_true", help="use the kept map of reached lines"
    )
    parser.add_argument("--report", action="store_true", help="run nothing, print the last run")
    parser.add_argument("--write", type=Path, help="also write the table into this file")
    parser.add_argument("--note", default="", help="for that file: the state and the sample")
    parser.add_argument("--at-least", type=float, default=WANTED, help="killed, in percent")
    asked = parser.parse_args()
    wanted = asked.what or list(groups())
    modules = chosen(wanted, sample=asked.sample, each=asked.each, seed=asked.seed)
    if stale := stale_equivalents():
        raise SystemExit("\n".join(["kept as equivalent, but no such mutant:", *stale]))
    started = time.monotonic()
    stopped: list[Path] = []
    if not asked.report:
        again = modules
        outcomes = gather()
        if asked.survivors or asked.resume:
            wanted_now = (*(LIVED if asked.survivors else ()), *([None] if asked.resume else ()))
            left = [[x for x in m.mutants if outcomes.get(x.key) in wanted_now] for m in again]
            again = [replace(m, mutants=tuple(new)) for m, new in zip(again, left, strict=True)]
        again = [module for module in again if module.mutants]
        stopped = play(
            again,
            processes=asked.processes,
            budget_s=asked.budget,
            stale=asked.stale_map,
            tests=asked.tests,
        )
    outcomes = gather()
    told = rows(modules, outcomes)
    for module in modules:
        for mutant in survivors(module, outcomes):
            print(f"{module.path}:{mutant.line} {mutant.within or '(module)'} [{mutant.operator}]")
            print(f"    - {mutant.before}\n    + {mutant.after}")
    excluded: dict[str, int] = {}
    for module in modules:
        for rule, count in module.excluded.items():
            excluded[rule] = excluded.get(rule, 0) + count
    print(table(told))
    print(f"{time.monotonic() - started:.0f} s; left alone by rule: {excluded}")
    if stopped:
        print(f"not all mutants were run; why: {', '.join(map(str, stopped))}", file=sys.stderr)
        return 1
    if asked.write:
        asked.write.write_text(results(told, excluded, RULES, asked.note), encoding="utf-8")
    return int(any(row.score < asked.at_least for row in sums(told)))


if __name__ == "__main__":
    sys.exit(main())
