"""
Processes that write one table at the same moment, and report the conflicts of each commit.

Every process opens the table, waits at a barrier before each round with all the others, and
commits once. A fork server has imported everything before, so that the machine's two cores
are not busy starting Python when the race begins.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import hoodoo
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult
from hoodoo.write_requests import write_request_of
from timeline.context import TableContext
from timeline.errors import HoodooError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import SLOTS
from timeline.ports.ports import ObjectExistsError

WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One acknowledged commit, or the error that ended it."""

    writer: int
    round: int
    requested_time: str = ""
    completion_time: str = ""
    lost_slots: int = 0
    refused: int = 0
    redone: str = ""
    error: str = ""


#: The rows of a writer in a round.
Round = Callable[[int, int], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The writes of a race and their number."""

    address: str
    operation: WriteOperation
    properties: Mapping[str, str]
    rows: Round
    writers: int
    rounds: int
    careless: bool = False
    latency_ms: int = 0  # of each request, as on a high-latency store
    think_ms: int = 0  # at most, before each commit


class DistantStorage:
    """Every request takes its time, without work for the processor."""

    def __init__(self, inner: Any, latency_ms: int) -> None:
        self._inner = inner
        self._latency_s = latency_ms / 1000

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._inner, name)
        if name not in _REQUESTS:
            return asked

        def answer(*words: Any, **how: Any) -> Any:
            time.sleep(self._latency_s)
            return asked(*words, **how)

        return answer


_REQUESTS = frozenset({"create", "list", "names", "read", "stat", "write"})


class CarelessStorage:
    """The mutant: checks whether a slot exists, then writes it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes, **how: Any) -> Any:
        if not path.startswith(f"{SLOTS}/"):
            return self._inner.create(path, data, **how)
        if self._inner.stat(path) is not None:
            raise ObjectExistsError(path)
        return self._inner.write(path, data)


def commits_of(race: Race) -> list[Commit]:
    """Run a race to its end; return every commit of all processes."""
    started = prepared_processes()
    barrier, answers = started.Barrier(race.writers), started.Queue()
    processes = [
        started.Process(target=_contend, args=(race, number, barrier, answers))
        for number in range(race.writers)
    ]
    with running(processes):
        return [answers.get(timeout=WAIT_S) for _ in range(race.writers * race.rounds)]


def prepared_processes() -> Any:
    """Where processes start with everything imported; asked for before any is started."""
    started = multiprocessing.get_context("forkserver")
    started.set_forkserver_preload([__name__])
    return started


@contextmanager
def running(processes: Sequence[Any]) -> Iterator[None]:
    """Start these processes, and end them in any case."""
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            process.join(WAIT_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def _contend(race: Race, number: int, barrier: Any, answers: Any) -> None:
    with hoodoo.open_table(race.address, properties=dict(race.properties)) as table:
        commit, thought = _commit_by(table, race), random.Random(number)
        for section in range(race.rounds):
            rows = race.rows(number, section)
            barrier.wait(WAIT_S)
            time.sleep(thought.random() * race.think_ms / 1000)
            try:
                result = commit(rows)
            except HoodooError as error:
                answers.put(Commit(writer=number, round=section, error=f"{os.getpid()}: {error!r}"))
                continue
            answers.put(
                Commit(
                    writer=number,
                    round=section,
                    requested_time=result.requested_time,
                    completion_time=result.completion_time,
                    lost_slots=result.lost_slots,
                    refused=len(result.refusals),
                    redone=result.redone,
                )
            )


def _commit_by(table: hoodoo.Table, race: Race) -> Callable[[pa.Table], CommitResult]:
    """How a writer commits: through the front door, or through another storage."""
    if not (race.careless or race.latency_ms):
        by_name: Callable[[pa.Table], CommitResult] = getattr(table, race.operation.value)
        return by_name
    context = table.context
    inner = context.ports.storage
    storage: Any = DistantStorage(inner, race.latency_ms)
    if race.careless:
        storage = CarelessStorage(inner)
    ports = replace(context.ports, storage=storage)
    behind = TableContext.of(ports, context.config, context.limits)
    plan = write_request_of(table.settings, table.config, race.operation)
    return lambda rows: write(behind, plan, LocalWorkload(ports, rows))
