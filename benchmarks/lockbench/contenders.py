"""
Contenders: processes that take and release one lock as often as they can.

They are started once and take part in all games, because starting sixteen interpreters for each
would take longer than measuring. Only the in-process lock has contenders that are threads of one
process, because it excludes no other process.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from lockbench.bare import BARE, GIVE_UP_SECONDS, GaveUpError, Locker
from lockproviders.acquire import LockPorts, ProviderLock, WaitBudget
from lockproviders.hookspecs import LockContext
from lockproviders.registry import ProviderRegistry
from lockproviders.settings import LockSettings
from timeline.errors import LockTimeoutError
from timeline.system import NullEvents, SystemClock, SystemIds, ThreadExecutor

ANSWER_SECONDS_MAX = 120.0
COLD_TIMES = 5
START_SECONDS = 0.03  # until all know that the game begins
MODULES = ("lockbench.contenders", "boto3", "pymysql", "portalocker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The counts of one contender."""

    done: int  # within the time
    waits: Sequence[float]  # seconds from asking to having given back, each
    gave_up: int = 0  # waits that ended without the lock


class OurLocker:
    """Our provider as a writer gets it: with its waiting, its lease and its renewal."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        entry = ProviderRegistry().find(spec["provider"])
        ports = LockPorts(
            clock=SystemClock(), ids=SystemIds(), events=NullEvents(), executor=ThreadExecutor()
        )
        client = entry.factory(
            LockContext(
                properties=spec["properties"],
                table_identity=spec["address"],
                table_address=spec["address"],
                table_folder=spec.get("folder"),
                clock=ports.clock,
                ids=ports.ids,
            )
        )
        settings = LockSettings.from_properties({})
        patience_ms = round(GIVE_UP_SECONDS * 1000)
        budget = WaitBudget(
            deadline_ms=patience_ms,
            try_ms=patience_ms,
            retries=0,
            pause_ms=0,
            hold_budget_ms=settings.hold_budget_ms,
            poll_first_ms=entry.poll_first_ms,
            poll_max_ms=entry.poll_max_ms,
        )
        self._lock = ProviderLock(entry.name, client, budget=budget, ports=ports)

    def cycle(self) -> None:
        try:
            lease = self._lock.acquire("benchmark")
        except LockTimeoutError as error:
            raise GaveUpError(f"ours: {error.message}") from error
        lease.release()

    def close(self) -> None:
        self._lock.close()


def locker_of(spec: Mapping[str, Any]) -> Locker:
    """Ours, or the bare client that is named."""
    return OurLocker(spec) if spec["kind"] == "ours" else BARE[spec["kind"]](spec)


class Contenders:
    """
    The processes; ``with Contenders(16) as contenders``.

    Args:
        count: How many at most.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(MODULES))
        self._pipes: list[Connection] = []
        self._asked = 0
        self._opened: dict[str, Callable[[], None]] = {}
        for _ in range(count):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs,), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)

    def open(self, label: str, spec: Mapping[str, Any], count: int, *, threads: bool) -> None:
        """Connect so many contenders and let each have the lock once, one after the other."""
        processes = 1 if threads else count

        def again() -> None:
            self._ask(processes, "open", label, spec, count if threads else 1)
            self._warm(label, processes)

        self._opened[label] = again
        again()

    def play(self, label: str, count: int, seconds: float, *, threads: bool) -> list[Tally]:
        """All at once for so long; a contender that waits at the end still gets the lock."""
        processes = 1 if threads else count
        try:
            self._warm(label, processes)  # a connection may have been idle for too long
        except RuntimeError as error:
            # A contender that stopped may have left a request that only the end of its connection
            # removes.
            print(f"connecting anew: {error}", flush=True)
            self._opened[label]()
        start = time.monotonic() + START_SECONDS
        answers = self._ask(processes, "play", label, count, start, seconds)
        return [tally for answer in answers for tally in answer]

    def cycles(self, label: str, times: int, *, contender: int = 0) -> None:
        """One contender alone takes and gives back so often."""
        self._ask(1, "cycles", label, times, first=contender)

    def cold(self, spec: Mapping[str, Any]) -> list[float]:
        """Seconds from nothing to a lock taken and given back, of one contender alone."""
        seconds: list[float] = self._ask(1, "cold", spec)[0]
        return seconds

    def close(self, label: str) -> None:
        """Hang up."""
        self._ask(len(self._pipes), "close", label)

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # they end at the end of their pipe

    def _warm(self, label: str, processes: int) -> None:
        for contender in range(processes):
            self._ask(1, "cycles", label, 1, first=contender)

    def _ask(self, count: int, *question: Any, first: int = 0) -> list[Any]:
        asked = self._pipes[first : first + count]
        self._asked += 1
        for pipe in asked:
            pipe.send((self._asked, question))
        answers, failures = [], []
        for pipe in asked:
            number = 0
            while number != self._asked:  # an older answer was too late
                if not pipe.poll(ANSWER_SECONDS_MAX):
                    raise TimeoutError(f"a contender did not answer: {question[:2]}")
                number, failure, answer = pipe.recv()
            answers.append(answer)
            failures += [failure] if failure else []
        if failures:
            raise RuntimeError(failures[0])
        return answers


def _serve(pipe: Connection) -> None:
    lockers: dict[str, list[Locker]] = {}
    while True:
        try:
            number, question = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((number, "", _answer(lockers, *question)))
        except Exception as error:  # noqa: BLE001  sent to the parent, which decides
            pipe.send((number, f"{type(error).__name__}: {error}", None))


def _answer(lockers: dict[str, list[Locker]], op: str, *rest: Any) -> Any:
    if op == "cold":
        return [_cold(rest[0]) for _ in range(COLD_TIMES)]
    label = rest[0]
    if op == "open":
        _, spec, count = rest
        for locker in lockers.pop(label, []):
            locker.close()
        lockers[label] = [locker_of(spec) for _ in range(count)]
    elif op == "cycles":
        for _ in range(rest[1]):
            for locker in lockers[label]:
                locker.cycle()
    elif op == "play":
        _, count, start, seconds = rest
        return _play(lockers[label][:count], start, seconds)
    elif op == "close":
        for locker in lockers.pop(label, []):
            locker.close()
    return None


def _cold(spec: Mapping[str, Any]) -> float:
    began = time.monotonic()
    locker = locker_of(spec)
    locker.cycle()
    took = time.monotonic() - began
    locker.close()
    return took


def _play(lockers: Sequence[Locker], start: float, seconds: float) -> list[Tally]:
    if len(lockers) == 1:
        return [_contend(lockers[0], start, seconds)]
    with ThreadPoolExecutor(len(lockers)) as threads:
        return list(threads.map(lambda locker: _contend(locker, start, seconds), lockers))


def _contend(locker: Locker, start: float, seconds: float) -> Tally:
    clock, cycle, end = time.monotonic, locker.cycle, start + seconds
    time.sleep(max(0.0, start - clock()))
    waits: list[float] = []
    done = gave_up = 0
    while (asked := clock()) < end:
        try:
            cycle()
        except GaveUpError:
            gave_up += 1
        answered = clock()
        waits.append(answered - asked)
        done += answered <= end
    return Tally(done=done, waits=waits, gave_up=gave_up)
