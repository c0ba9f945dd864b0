"""
Writes whose rows the engine makes from reads, and can make anew when those were overtaken.

A caller's rows are never written again from reads that no longer hold: only the caller knows
how they were made. A delete by predicate is different, its predicate says all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from timeline.context import TableContext
from timeline.errors import BudgetSpentError, WriteConflictError
from timeline.publishing.refusal import KINDS, RefusalReport
from timeline.rules.conflicts import RuleId
from timeline.rules.retry import Redo, pause_ms, spent_bound, within_time
from timeline.writing.pacing import keep_pace
from timeline.writing.receipt import Receipt

__all__ = ["from_fresh_reads"]

_OVERTAKEN = frozenset({KINDS[RuleId.READ_WAS_CHANGED], KINDS[RuleId.INSERTED_WHERE_I_MISSED]})


def from_fresh_reads(
    context: TableContext, attempt: Callable[[tuple[RefusalReport, ...]], Receipt]
) -> Receipt:
    """
    Read and write until nobody changed what was read in between, within the retry budget.

    Args:
        context: The table; its limits hold the budget.
        attempt: Reads, and writes with what it read; told what the attempts before it met.

    Returns:
        The receipt of the last attempt, with the refusals of all.

    Raises:
        BudgetSpentError: Every attempt was overtaken.
        ConflictError: Refused for another reason.
    """
    world, budget = context.world, context.limits.retry
    started_ms = world.clock.monotonic_ms()
    refusals: list[RefusalReport] = []
    pause = wasted_bytes = 0
    while True:
        keep_pace(context)  # not between reading and writing
        try:
            receipt = attempt(tuple(refusals))
        except WriteConflictError as error:
            if error.kind not in _OVERTAKEN:
                raise
            refusals.append(RefusalReport(**error.fields["report"]))
            wasted_bytes += error.fields["wasted_bytes"]
        else:
            break
        elapsed_ms = world.clock.monotonic_ms() - started_ms
        bound = spent_bound(
            budget, conflicts=len(refusals), elapsed_ms=elapsed_ms, wasted_bytes=wasted_bytes
        )
        if bound is not None:
            raise BudgetSpentError(
                "others changed what was read before every attempt was published; write at "
                f"another time, or raise {bound}; last: {refusals[-1].text}",
                attempts=[report.as_document() for report in refusals],
                report=refusals[-1].as_document(),
                bound=bound,
            )
        pause = pause_ms(len(refusals) - 1, world.ids.jitter(), budget, previous_ms=pause)
        world.clock.sleep_ms(within_time(budget, pause, elapsed_ms=elapsed_ms))
    if not refusals:
        return receipt
    return replace(
        receipt,
        attempts=receipt.attempts + len(refusals),
        refusals=(*refusals, *receipt.refusals),
        redone=Redo.EVERYTHING.value,
    )
