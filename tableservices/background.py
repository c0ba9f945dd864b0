"""Services in a writer process: inline after a commit, or on a thread beside the writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tableservices.service import ServiceResult, TableService
from tableservices.worker import FailingService, StopFlag, WorkerReport, WorkerTable, run_worker
from timeline.context import TableContext
from timeline.ports.ports import Ticker

__all__ = ["BackgroundServices", "InlineOutcome", "run_inline"]


# -------------------------------------- Services right after a commit, in the writer's own process
#
# The commit is published and stays so: whatever fails here is reported and forgotten, the
# next round does it again (PUB-9).


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineOutcome:
    """What the services did, and one line for each that failed."""

    receipts: tuple[ServiceResult, ...]
    warnings: tuple[str, ...]


def run_inline(context: TableContext, services: Sequence[TableService]) -> InlineOutcome:
    """Run every service that wants to run after a commit, each once. Raises nothing."""
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


# ------------------------ Services beside a writer: on a thread of its process, while it writes on
#
# Nothing outside of the process is needed: they take slots like everybody, and the process's
# lock keeps its own threads apart. What fails is an event and is told to the writer as well,
# who would not look at events; the next round tries again.

_BEGIN_MS = 20  # the first round needs no pause before it


class BackgroundServices:
    """
    Rounds of services on a thread of its own; begins when it is made.

    Args:
        served: The table, by a context of its own (a view of the chain belongs to one
            thread), and the services.
        interval_ms: Pause between two rounds.
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
        """End after the present service, and return when it has. Twice is no error."""
        self._flag.set()
        self._ticker.stop()

    def take_failures(self) -> tuple[str, ...]:
        """One line for each service that failed since they were taken last."""
        taken, self._failed = self._failed, {}
        return tuple(taken.values())

    # ---- told by the worker

    def began(self, served: WorkerTable, service: TableService) -> None:
        """As ``Watcher``."""

    def did(self, served: WorkerTable, service: TableService, receipt: ServiceResult) -> None:
        """As ``Watcher``."""

    def failed(self, failing: FailingService) -> None:
        """As ``Watcher``."""
        self._failed[failing.service] = f"beside the writes, {failing.text}"

    def rested(self, report: WorkerReport) -> None:
        """As ``Watcher``."""
