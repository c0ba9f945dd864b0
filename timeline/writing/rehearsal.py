"""
What a write would meet if it began now: a dry run that begins nothing and writes nothing.

It places the rows as the write would and holds the file groups against what others have
begun and not published: the writes of living writers, as far as they announced what they
touch, and the clusterings that would refuse the write. Nobody can know who begins in the
next moment, so an empty answer is no promise; the publication decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from timeline.context import TableContext
from timeline.model.times import InstantTime
from timeline.publishing.announced import announced_rivals
from timeline.publishing.refusal import RefusalReport, report_of
from timeline.reading.snapshot import Snapshot
from timeline.rules.conflicts import Clean, Refused, judge
from timeline.rules.strategies import objection_to
from timeline.writing.candidate import planned_claim
from timeline.writing.placing import place
from timeline.writing.receipt import WritePlan
from timeline.writing.workload import Workload
from timeline.writing.write_schema import addressed, as_stored, rows_schema, schema_for

__all__ = ["rehearse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """The base of a write that does not begin."""

    requested_time: InstantTime
    snapshot: Snapshot


def rehearse(
    context: TableContext, plan: WritePlan, workload: Workload | None
) -> tuple[RefusalReport, ...]:
    """
    What a write would meet if all that others have begun were published first.

    Outside: 1 list, as ``place``; 1 get per pending write, their heartbeats.

    Args:
        context: The table.
        plan: What the write would do.
        workload: The incoming rows; None for ``delete_partition``.

    Returns:
        One report for each of the others that it would meet, by requested time; that of
        pending clusterings last. ``instant`` is empty: there is none.

    Raises:
        InvalidInputError, UnsupportedTableError, MissingFileError: As the write itself would.
    """
    plan = addressed(plan, workload)
    snapshot = context.snapshot()
    plan = as_stored(context, snapshot, plan)
    schema, _ = schema_for(context, snapshot, workload, plan)
    if workload is not None:
        workload.prepare(plan.rules, rows_schema(context, schema, workload, plan))
    now = _Now(
        requested_time=context.zone.instant_time(context.world.clock.now_ms()), snapshot=snapshot
    )
    placement = place(
        context,
        now,
        workload,
        plan.rules,
        schema,
        files=plan.files,
        delete_partitions=plan.partitions_deleted(snapshot),
    )
    claim = planned_claim(placement)
    found = []
    for rival in announced_rivals(context, snapshot.active):
        verdict = judge(
            claim,
            max(now.requested_time, rival.completion_time),
            [rival],
            logs_may_meet=placement.logs_may_meet,
        )
        if not isinstance(verdict, Refused):
            verdict = objection_to(claim, [rival], context.limits.strategy) or verdict
        if not isinstance(verdict, Clean):
            found.append(report_of("", verdict))
    if placement.met is not None and not context.limits.cancels_met_plans:
        found.append(report_of("", placement.met))
    return tuple(found)
