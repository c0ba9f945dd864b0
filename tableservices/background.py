"""Services in a writer process: inline after a commit, or on a background thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tableservices.service import ServiceResult, TableService
from tableservices.worker import FailingService, StopFlag, WorkerListener, WorkerTable, run_worker
from timeline.context import TableContext
from timeline.ports.ports import Ticker

__all__ = ["BackgroundServices", "InlineOutcome", "run_inline"]


# ---- Services right after a commit, in the writer's own process
#
# The commit remains whatever fails here. A failure is reported; the next round tries again (PUB-9).


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineOutcome:
    """The results of the services, and one line for each that failed."""

    receipts: tuple[ServiceResult, ...]
    warnings: tuple[str, ...]


def run_inline(context: TableContext, services: Sequence[TableService]) -> InlineOutcome:
    """Run once every service that runs after a commit. Raises nothing."""
    receipts = []
    warnings = []
    for service in services:
        if not service.inline:
            continue
        try:
            receipt = service.run_once(context)
        except Exception as error:  # noqa: BLE001 - PUB-9: a published write never fails
            context.world.events.emit("service.failed", service=service.name, why=str(error))
            warnings.append(f"the write is done, but {service.name} after it failed: {error}")
            continue
        if receipt is not None:
            receipts.append(receipt)
    return InlineOutcome(receipts=tuple(receipts), warnings=tuple(warnings))


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
        executor = served.context.world.executor
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

    def failed(self, failing: FailingService) -> None:
        """As ``WorkerListener``."""
        self._failed[failing.service] = f"beside the writes, {failing.text}"
