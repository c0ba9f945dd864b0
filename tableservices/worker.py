"""
The worker: services of one or many tables in a process of their own, until told to stop.

Any number of workers may run beside the writers: each service takes its slots by the same
turn as they do. One table at a time, one service at a time, so that a worker's load is that
of one service's executor. A failed round is an event; that table's next one comes after a
longer pause, the other tables' do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tableservices.service import ServiceReceipt, TableService
from timeline.context import TableContext
from timeline.ports.clock import Clock

__all__ = ["Served", "StopFlag", "WorkerReport", "run_worker"]

_STEP_MS = 200  # how soon a stop is noticed
_PAUSE_MAX_MS = 300_000


class StopFlag:
    """Asks a worker to end after its present service; may be set from a signal handler."""

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
class Served:
    """A table and what is done for it, in this order in every round."""

    context: TableContext
    services: Sequence[TableService]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker did so far; rounds and the others summed over its tables."""

    rounds: int = 0
    receipts: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Turns:
    """How one table's rounds went and when its next is due, on the monotonic clock."""

    served: Served
    due_ms: int = 0
    rounds: int = 0
    failed_in_row: int = 0


def run_worker(
    tables: Sequence[Served],
    *,
    interval_ms: int,
    stop: StopFlag | None = None,
    rounds_max: int | None = None,
    on_receipt: Callable[[Served, TableService, ServiceReceipt], None] | None = None,
    on_round: Callable[[WorkerReport], None] | None = None,
) -> WorkerReport:
    """
    Run the services of every table every ``interval_ms`` until stopped.

    Args:
        tables: At least one.
        interval_ms: Pause between two rounds of a table, ms; doubled after each failed
            round, up to five minutes, and back after a good one.
        stop: Looked at between services and while waiting.
        rounds_max: End after so many rounds of each table.
        on_receipt: Told about every receipt, for progress.
        on_round: Told after every round, for those who watch the worker's health.
    """
    flag = stop or StopFlag()
    clock = tables[0].context.world.clock
    turns = [_Turns(served) for served in tables]
    report = WorkerReport()
    while not flag.is_set():
        left = [one for one in turns if rounds_max is None or one.rounds < rounds_max]
        if not left:
            break
        turn = min(left, key=lambda one: one.due_ms)
        _wait_until(clock, flag, turn.due_ms)
        if flag.is_set():
            break
        receipts, failures = _round(turn.served, flag, on_receipt)
        turn.rounds += 1
        turn.failed_in_row = turn.failed_in_row + 1 if failures else 0
        turn.due_ms = clock.monotonic_ms() + _pause_ms(interval_ms, turn.failed_in_row)
        report = WorkerReport(
            rounds=report.rounds + 1,
            receipts=report.receipts + receipts,
            failures=report.failures + failures,
        )
        if on_round is not None:
            on_round(report)
    return report


def _round(
    served: Served,
    flag: StopFlag,
    on_receipt: Callable[[Served, TableService, ServiceReceipt], None] | None,
) -> tuple[int, int]:
    """Each service once; how many had work, and how many failed."""
    receipts = failures = 0
    for service in served.services:
        if flag.is_set():
            break
        try:
            receipt = service.run_once(served.context)
        except Exception as error:  # noqa: BLE001 - the next round may succeed
            failures += 1
            served.context.world.events.emit(
                "service.failed",
                table=served.context.config.name,
                service=service.name,
                why=str(error),
            )
            continue
        if receipt is not None:
            receipts += 1
            if on_receipt is not None:
                on_receipt(served, service, receipt)
    return receipts, failures


def _pause_ms(interval_ms: int, failed_in_row: int) -> int:
    grown: int = interval_ms * 2 ** min(failed_in_row, 16)
    return min(grown, max(interval_ms, _PAUSE_MAX_MS))


def _wait_until(clock: Clock, flag: StopFlag, due_ms: int) -> None:
    while (left := due_ms - clock.monotonic_ms()) > 0 and not flag.is_set():
        clock.sleep_ms(min(left, _STEP_MS))
