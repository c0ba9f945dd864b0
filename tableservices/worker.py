"""Run table services: in a worker process, after a commit, or on a thread of a writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field

from tableservices.service import ServiceResult, TableService
from timeline.context import TableContext
from timeline.errors import reason_of
from timeline.ports.ports import Clock, Ticker
from timeline.properties.options import OptionKind, OptionSettings, option

# ---- Settings of every process that runs table services


class ServiceExecutor(Enum):
    """Which processes work on file groups: this one, or a Spark cluster."""

    LOCAL = "local"
    SPARK = "spark"


class WorkerSettings(OptionSettings):
    """All settings of running services."""

    enabled: bool = option(
        "hoodie.table.services.enabled",
        True,
        "Writers run services after their writes or in the background. With false "
        "only workers and commands run them, whatever the services' own options are.",
    )
    executor: ServiceExecutor = option(
        "hoodoo.services.executor",
        ServiceExecutor.LOCAL,
        "Where services process file groups: in this process, or on the cluster of "
        "its Spark session.",
    )
    file_groups_max: Annotated[int, Field(ge=1, le=100_000)] | None = option(
        "hoodoo.services.file.groups.max",
        None,
        "Number of file groups that a service processes at the same time; the number "
        "of processors by default.",
    )
    wait_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=2**53)] = option(
        "hoodoo.services.wait.ms",
        0,
        "Longest wait for another executor of a plan; 0 leaves the plan to it.",
    )
    in_background: bool = option(
        "hoodoo.services.beside.writers",
        True,
        "Writers run asynchronous services in the background; with false only workers do.",
    )
    interval_ms: Annotated[int, OptionKind.MS, Field(ge=100, le=7 * 24 * 3_600_000)] = option(
        "hoodoo.services.interval.ms",
        10_000,
        "Pause between two rounds of a worker, and of background services of a writer.",
    )


# ---- The worker: run the services of one or many tables until stopped
#
# Any number of workers may run at the same time as the writers; each service takes its slots in
# the same commit section. A worker runs one service on one table at a time, so its load is that
# of one service's executor. A failed round emits an event. The next round of that table waits
# longer; other tables do not wait for it.

_STEP_MS = 200  # the longest delay until a stop is noticed
_PAUSE_MAX_MS = 300_000


class StopFlag:
    """Asks a worker to end after its present service; a signal handler may set it."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Ask the worker to stop."""
        self._set = True

    def is_set(self) -> bool:
        """Return whether a stop was requested."""
        return self._set


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTable:
    """A table and its services, in the order in which every round runs them."""

    context: TableContext
    services: Sequence[TableService]

    @property
    def address(self) -> str:
        """The table's address."""
        return self.context.ports.storage.base_uri


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingService:
    """A service whose last run on a table failed."""

    table: str  # address
    service: str
    error: Exception

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.service} of {self.table} failed: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The work of a worker so far; numbers are summed over its tables."""

    rounds: int = 0
    receipts: int = 0
    failures: int = 0
    failing: tuple[FailingService, ...] = ()  # failed and did not succeed since


class WorkerListener:
    """Receives the worker's progress, on the worker's thread; override the methods you need."""

    def on_start(self, served: WorkerTable, service: TableService) -> None:
        """A service begins its run on a table."""

    def on_done(self, served: WorkerTable, service: TableService, result: ServiceResult) -> None:
        """The service had work and did it."""

    def on_nothing(self, served: WorkerTable, service: TableService) -> None:
        """The service ran and had nothing to do."""

    def on_failure(self, failing: FailingService) -> None:
        """The service failed; the next round retries it."""

    def on_idle(self, report: WorkerReport) -> None:
        """A round of one table ended."""


@dataclass(slots=True)
class _Schedule:
    """The state of one table's rounds and the time of its next, on the monotonic clock."""

    served: WorkerTable
    due_ms: int = 0
    rounds: int = 0
    failed_in_row: int = 0


def run_worker(
    tables: Sequence[WorkerTable],
    *,
    interval_ms: int,
    stop: StopFlag | None = None,
    rounds_max: int | None = None,
    watcher: WorkerListener | None = None,
) -> WorkerReport:
    """
    Run the services of every table every ``interval_ms`` until stopped.

    Args:
        tables: At least one.
        interval_ms: Pause between two rounds of a table, ms; doubled after each failed round, up to
            five minutes, and reset after a good one.
        stop: Checked between services and while waiting.
        rounds_max: End after so many rounds of each table.
        watcher: Called with progress and failures.
    """
    flag = stop or StopFlag()
    listener = watcher or WorkerListener()
    clock = tables[0].context.ports.clock
    sections = [_Schedule(served) for served in tables]
    failing: dict[tuple[str, str], FailingService] = {}
    report = WorkerReport()
    for one in tables:
        names = ",".join(service.name for service in one.services)
        one.context.ports.events.emit("worker.began", table=one.address, services=names)
    while not flag.is_set():
        left = [one for one in sections if rounds_max is None or one.rounds < rounds_max]
        if not left:
            break
        section = min(left, key=lambda one: one.due_ms)
        _wait_until(clock, flag, section.due_ms)
        if flag.is_set():
            break
        receipts, failures = _round(section.served, flag, listener, failing)
        section.rounds += 1
        section.failed_in_row = section.failed_in_row + 1 if failures else 0
        section.due_ms = clock.monotonic_ms() + _pause_ms(interval_ms, section.failed_in_row)
        report = WorkerReport(
            rounds=report.rounds + 1,
            receipts=report.receipts + receipts,
            failures=report.failures + failures,
            failing=tuple(failing.values()),
        )
        listener.on_idle(report)
    for section in sections:
        table = section.served
        table.context.ports.events.emit("worker.ended", table=table.address, rounds=section.rounds)
    return report


def _round(
    served: WorkerTable,
    flag: StopFlag,
    listener: WorkerListener,
    failing: dict[tuple[str, str], FailingService],
) -> tuple[int, int]:
    """Run each service once; return how many had work, and how many failed."""
    receipts = failures = 0
    events = served.context.ports.events
    address = served.address
    for service in served.services:
        if flag.is_set():
            break
        listener.on_start(served, service)
        try:
            result = service.run_once(served.context)
        except Exception as error:  # noqa: BLE001 - the next round may succeed
            failures += 1
            found = FailingService(table=address, service=service.name, error=error)
            failing[address, service.name] = found
            events.emit("service.failed", table=address, service=service.name, why=reason_of(error))
            listener.on_failure(found)
            continue
        failing.pop((address, service.name), None)
        if result is None:
            listener.on_nothing(served, service)
        else:
            receipts += 1
            listener.on_done(served, service, result)
    return receipts, failures


def _pause_ms(interval_ms: int, failed_in_row: int) -> int:
    grown: int = interval_ms * 2 ** min(failed_in_row, 16)
    return min(grown, max(interval_ms, _PAUSE_MAX_MS))


def _wait_until(clock: Clock, flag: StopFlag, due_ms: int) -> None:
    while (left := due_ms - clock.monotonic_ms()) > 0 and not flag.is_set():
        clock.sleep_ms(min(left, _STEP_MS))


# ---- Services on a background thread of a writer process
#
# The services take slots like every writer, and the process's lock keeps its threads apart. A
# failure is an event, and is also reported to the writer, because the writer may not read events.
# The next round tries again.

_BEGIN_MS = 20  # the first round needs no pause before it


class BackgroundServices(WorkerListener):
    """
    Runs rounds of services on its own thread; starts when it is created.

    Args:
        served: The table, by its own context (a view of the commit log belongs to one thread), and
            the services.
        interval_ms: Pause between two rounds, ms.
    """

    def __init__(self, served: WorkerTable, *, interval_ms: int) -> None:
        self._served = served
        self._interval_ms = interval_ms
        self._flag = StopFlag()
        self._failed: dict[str, str] = {}
        executor = served.context.ports.executor
        self._ticker: Ticker = executor.every(_BEGIN_MS, self._serve)

    def _serve(self) -> None:
        run_worker([self._served], interval_ms=self._interval_ms, stop=self._flag, watcher=self)

    def stop(self) -> None:
        """End after the present service, and return when it has ended. May be called twice."""
        self._flag.set()
        self._ticker.stop()

    def take_failures(self) -> tuple[str, ...]:
        """Return one line for each service that failed since the last call."""
        taken, self._failed = self._failed, {}
        return tuple(taken.values())

    def on_failure(self, failing: FailingService) -> None:
        """As ``WorkerListener``."""
        self._failed[failing.service] = f"during the writes, {failing.text}"
