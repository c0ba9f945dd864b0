"""
The simulator at scale: ``make sim``, ``make sim SEED=S3:17``, ``make nightly``.

Plays schedules of all families on all cores, every exhaustive scope, the corpus of seeds that
once failed, and some schedules twice. Prints the counts of runs, faults and findings. Ends with
status 1 after a violation; each failure has the line that runs it again.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from traceback import format_exc

from tests.simulation.families import BY_ID, FAMILIES, numbered, of_name
from tests.simulation.family import play_schedule, smallest
from tests.simulation.scopes import BY_ID as SCOPES_BY_ID
from tests.simulation.scopes import SCOPES
from tests.simulator.faults import Fault

CORPUS = Path(__file__).with_name("seeds.txt")
BLOCK = 100
#: Events that a run of thousands must contain; otherwise the faults no longer work (I20).
MUST_HAPPEN = (
    "archiving.batches_left",
    "archiving.batches_taken_over",
    "archiving.done",
    "begin.redrawn",
    "cleaning.done",
    "heartbeat.fenced",
    "metadata_table.built",
    "metadata_table.compacted",
    "publish.helped",
    "publish.lease_lost",
    "publish.slot_lost",
    "publish.void",
    "restore.done",
    "rollback.done",
    "service.cancelled",
    "service.done",
    "slot.unknown",
    "write.place_came",
    "write.redo",
    "write.refused",
)
FAILURES_TOLD = 5
AHEAD = 4  # blocks given to a process in advance
ENOUGH_TO_MEET_ALL = 10_000
TOLD_EVERY_S = 60.0


@dataclass(kw_only=True)
class Tally:
    """The results of some schedules."""

    schedules: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    healed: int = 0
    hashes: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    memory_mb: int = 0  # most that a process of ours held

    def add(self, other: Tally) -> None:
        self.schedules.update(other.schedules)
        self.steps += other.steps
        self.seconds += other.seconds
        self.events.update(other.events)
        self.faults.update(other.faults)
        self.healed += other.healed
        self.hashes.update(other.hashes)
        self.failures += other.failures
        self.memory_mb = max(self.memory_mb, other.memory_mb)

    @property
    def count(self) -> int:
        return sum(self.schedules.values())


def begin_work() -> None:
    """
    Prepare a process for its first schedule.

    Objects of the engine's modules stay alive: collecting cycles took a sixth of the time. The process
    ends with its parent, also when the parent is killed.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def play_block(names: Sequence[tuple[str, int]], *, hashes: bool = False) -> Tally:
    """Play these schedules in one process; keep the hashes of their traces if requested."""
    tally = Tally()
    started = time.thread_time()
    for family, number in names:
        try:
            played = play_schedule(BY_ID[family], number)
        except Exception:  # noqa: BLE001 - one of a million: the others count
            tally.schedules[family] += 1
            tally.failures.append(f"{family}:{number} could not be judged\n{format_exc()}")
            continue
        if hashes:
            tally.hashes[played.name] = played.hash
        tally.schedules[family] += 1
        tally.steps += played.steps
        tally.events.update(played.counters)
        tally.faults.update(played.trace.faults)
        tally.healed += played.healing is not None
        if played.failure is not None:
            tally.failures.append(played.report())
    tally.seconds = time.thread_time() - started
    tally.memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return tally


def lanes_of(workers: int) -> list[frozenset[str]]:
    """The families that each process plays first, about as many schedules of each block for all."""
    lanes: list[list[str]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for family in sorted(FAMILIES, key=lambda one: -one.share):
        least = loads.index(min(loads))
        lanes[least].append(family.id)
        loads[least] += family.share
    return [frozenset(lane) for lane in lanes]


def blocks(
    schedules: int, first: int, lane: frozenset[str]
) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """Yield this lane's part of the next block, and the number of blocks before it."""
    for place in range(-(-schedules // BLOCK)):
        names = [each for each in numbered(first + place, BLOCK) if each[0] in lane]
        if names:
            yield place, names


def processes(workers: int, *, hash_seed: int = 0) -> ProcessPoolExecutor:
    """
    Fresh ones: Arrow's threads do not outlive a fork.

    Another ``hash_seed`` gives sets another order, which must not show in any trace.
    """
    os.environ["PYTHONHASHSEED"] = str(hash_seed)  # read by processes that begin later
    return ProcessPoolExecutor(workers, get_context("spawn"), initializer=begin_work)


class Players:
    """
    Processes with families of their own, which play other families when these are done.

    A process remembers its work (``RememberedWorkload``). Two that played all families alike
    would both have to do all of it once. With ``mixed`` each schedule follows other schedules than
    without, and this must not change its trace.
    """

    def __init__(self, workers: int, *, hash_seed: int = 0, mixed: bool = False) -> None:
        self._pools = [processes(1, hash_seed=hash_seed) for _ in range(workers)]
        self._lanes = [frozenset(BY_ID)] if mixed else lanes_of(workers)

    def __enter__(self) -> Players:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    def play_all(
        self,
        schedules: int,
        *,
        hashed: int = 0,
        first_block: int = 0,
        seconds_max: float = math.inf,
        tell: Callable[[Tally], None] = lambda _: None,
    ) -> Tally:
        """
        Play that many; stop after the first few failures, or when time is up.

        The traces of the first ``hashed`` are kept; ``tell`` runs after each block.
        """
        whole = Tally()
        ends = time.monotonic() + seconds_max
        todo = [blocks(schedules, first_block, lane) for lane in self._lanes]
        waiting: dict[Future[Tally], int] = {}

        def give_out(worker: int) -> None:
            if len(whole.failures) >= FAILURES_TOLD or time.monotonic() >= ends:
                return
            for lane in (todo[worker % len(todo)], *todo):
                place, names = next(lane, (0, []))
                if names:
                    played = self._pools[worker].submit(
                        play_block, names, hashes=place * BLOCK < hashed
                    )
                    waiting[played] = worker
                    return

        for worker in range(len(self._pools)):
            for _ in range(AHEAD):
                give_out(worker)
        while waiting:
            done = next(as_completed(waiting))
            worker = waiting.pop(done)
            whole.add(done.result())
            tell(whole)
            give_out(worker)
        return whole


class Progress:
    """Prints each failure at once, and each minute the progress and speed of a long run."""

    def __init__(self, schedules: int) -> None:
        self._schedules = schedules
        self._began = self._told = time.monotonic()
        self._failures = 0

    def tell(self, tally: Tally) -> None:
        for failure in tally.failures[self._failures :]:
            print("failed:", failure.partition("\n")[0], flush=True)
        self._failures = len(tally.failures)
        now = time.monotonic()
        if now - self._told < TOLD_EVERY_S or tally.count >= self._schedules:
            return
        self._told = now
        rate = tally.count / (now - self._began)
        left = (self._schedules - tally.count) / rate / 60
        print(
            f"{tally.count} of {self._schedules} schedules, {rate:.1f} a second, {left:.0f} "
            f"minutes left, {len(tally.failures)} failures, {tally.memory_mb} MiB a process",
            flush=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The result of the search through one scope."""

    scope: str
    line: str
    failure: str


def search_scope(name: str) -> Searched:
    """Run a scope in every interleaving, in one process."""
    scope = SCOPES_BY_ID[name]
    started = time.process_time()
    seen = scope.explore()
    seconds = time.process_time() - started
    end = "complete" if seen.complete else "NOT COMPLETE"
    line = (
        f"{name:<6} {seen.runs:>6} {seen.cut_short:>9} {seen.steps:>8} {seconds:>5.0f} s  {end}: "
        f"{scope.about} ({scope.clauses})"
    )
    failure = ""
    if seen.failed is not None:
        failure = f"scope {name}: {seen.failed.failure}\n{seen.failed.story()}"
    elif not seen.complete and not scope.nightly:
        failure = f"scope {name} was not searched to its end"
    return Searched(scope=name, line=line, failure=failure)


def search_all(pool: ProcessPoolExecutor, *, nightly: bool) -> list[Searched]:
    """Every scope; the big ones at night."""
    names = [scope.id for scope in SCOPES if nightly or not scope.nightly]
    # The big ones first. Otherwise one core would run the last of them while the other is idle.
    begun = {name: pool.submit(search_scope, name) for name in sorted(names, key=_small)}
    return [begun[name].result() for name in names]


def _small(name: str) -> bool:
    return not SCOPES_BY_ID[name].nightly


def run_again(name: str) -> int:
    """One schedule, and the smallest one that fails like it."""
    family, number = of_name(name)
    played = play_schedule(family, number)
    if played.failure is None:
        print(f"{name} holds: {played.steps} calls, trace {played.hash}")
        return 0
    print(played.report(200))
    shrunk = smallest(family, number)
    if shrunk is not None:
        faults, switches, steps = shrunk.cost
        print(
            f"\nthe smallest found in {shrunk.replays} replays: {faults} faults, {switches} changes "
            f"of actor, {steps} calls\n{shrunk.trace.failure}\n{shrunk.trace.story()}"
        )
    return 1


def corpus() -> list[str]:
    """Names of schedules that once failed."""
    lines = CORPUS.read_text().splitlines()
    return [line.split()[0] for line in lines if line.startswith("S")]


def never_met(tally: Tally) -> list[str]:
    """States that this many schedules should have reached."""
    return [name for name in MUST_HAPPEN if not tally.events[name]]


def summary(tally: Tally, wall_seconds: float) -> str:
    """The table of families and the sums."""
    lines = ["family  schedules  about"]
    for family in FAMILIES:
        about = family.about if family.build else f"not run: {family.missing}"
        lines.append(f"{family.id:<7} {tally.schedules[family.id]:>9}  {about}")
    count = tally.count
    faults = ", ".join(f"{name} {number}" for name, number in sorted(tally.faults.items()))
    seconds = max(tally.seconds, 0.001)
    lines += [
        f"{count} schedules, {tally.healed} healed, {tally.steps} calls in {wall_seconds:.0f} s",
        f"{count / seconds:.1f} schedules, {tally.steps / seconds:.0f} calls a second of a core",
        f"{count / max(wall_seconds, 0.001):.1f} schedules a second, {tally.memory_mb} MiB a process",
        f"faults injected: {faults}",
        f"rare states not met: {never_met(tally) or 'none'}",
        f"never injected: {sorted({fault.value for fault in Fault} - set(tally.faults)) or 'none'}",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("seed", nargs="?", help="run this schedule only, for example S3:17")
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop there, and say so")
    parser.add_argument("--first-block", type=int, default=0, help="begin at another place")
    parser.add_argument(
        "--twice", type=int, default=200, help="so many are played again by another process"
    )
    parser.add_argument("--nightly", action="store_true", help="the big scopes, too")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.seed:
        return run_again(options.seed)
    with Players(options.workers) as players:
        started = time.monotonic()
        whole = players.play_all(
            options.schedules,
            first_block=options.first_block,
            seconds_max=60 * options.minutes,
            hashed=options.twice,
            tell=Progress(options.schedules).tell,
        )
        print(summary(whole, time.monotonic() - started), flush=True)
    with processes(options.workers) as pool:
        searched = search_all(pool, nightly=options.nightly)
        print("scope    runs cut short    calls   time  every interleaving")
        print("\n".join(one.line for one in searched), flush=True)
        again = [(family.id, number) for family, number in map(of_name, corpus())]
        old = pool.submit(play_block, again).result()
    with Players(options.workers, hash_seed=1, mixed=True) as players:
        twice = min(options.twice, len(whole.hashes))
        second = players.play_all(twice, hashed=twice, first_block=options.first_block)
    compared = whole.hashes.keys() & second.hashes.keys()
    print(f"{old.count} schedules of the corpus, {len(compared)} in two processes")
    broken = [*whole.failures, *old.failures, *(one.failure for one in searched if one.failure)]
    broken += [
        f"{name} gave two traces"
        for name in sorted(compared)
        if whole.hashes[name] != second.hashes[name]
    ]
    if whole.count < options.schedules:
        print(f"time was up after {whole.count} of {options.schedules} schedules")
    if whole.count >= ENOUGH_TO_MEET_ALL:
        broken += [f"no schedule met {name}" for name in never_met(whole)]
    print("\n\n".join(broken[:FAILURES_TOLD]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
