"""
The worker: services in a process of their own, round after round, until told to stop.

Any number of workers may run beside the writers: each service takes its slots by the same
turn as they do. A failed round is an event; the next one comes after a longer pause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tableservices.service import ServiceReceipt, TableService
from timeline.context import TableContext

__all__ = ["StopFlag", "WorkerReport", "run_worker"]

_STEP_MS = 200  # how soon a stop is noticed
_PAUSE_MAX_MS = 300_000


class StopFlag:
    """Asks a worker to end after its present round; may be set from a signal handler."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Ask."""
        self._set = True

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return self._set


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker did in its life."""

    rounds: int
    receipts: int
    failures: int


def run_worker(
    context: TableContext,
    services: Sequence[TableService],
    *,
    interval_ms: int,
    stop: StopFlag | None = None,
    rounds_max: int | None = None,
    on_receipt: Callable[[TableService, ServiceReceipt], None] | None = None,
) -> WorkerReport:
    """
    Run the services every ``interval_ms`` until stopped.

    Args:
        context: The table.
        services: Run in this order in every round.
        interval_ms: Pause between two rounds, ms; doubled after each failed round, up to
            five minutes, and back after a good one.
        stop: Looked at between services and while waiting.
        rounds_max: End after so many rounds.
        on_receipt: Told about every receipt, for progress.
    """
    flag = stop or StopFlag()
    rounds = receipts = failures = failed_in_row = 0
    while not flag.is_set():
        failed = False
        for service in services:
            if flag.is_set():
                break
            try:
                receipt = service.run_once(context)
            except Exception as error:  # noqa: BLE001 - the next round may succeed
                failed = True
                failures += 1
                context.world.events.emit("service.failed", service=service.name, why=str(error))
                continue
            if receipt is not None:
                receipts += 1
                if on_receipt is not None:
                    on_receipt(service, receipt)
        rounds += 1
        failed_in_row = failed_in_row + 1 if failed else 0
        if rounds_max is not None and rounds >= rounds_max:
            break
        _pause(context, flag, _pause_ms(interval_ms, failed_in_row))
    return WorkerReport(rounds=rounds, receipts=receipts, failures=failures)


def _pause_ms(interval_ms: int, failed_in_row: int) -> int:
    grown: int = interval_ms * 2 ** min(failed_in_row, 16)
    return min(grown, max(interval_ms, _PAUSE_MAX_MS))


def _pause(context: TableContext, flag: StopFlag, duration_ms: int) -> None:
    left = duration_ms
    while left > 0 and not flag.is_set():
        step = min(left, _STEP_MS)
        context.world.clock.sleep_ms(step)
        left -= step
