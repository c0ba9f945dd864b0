"""Dry run of a write: the conflicts that it would have with the pending writes of now."""

from __future__ import annotations

from dataclasses import dataclass

from filegroups.writing.assign_file_groups import assign_file_groups
from filegroups.writing.pending_commit import (
    planned_commit,
)
from filegroups.writing.workload import Workload
from filegroups.writing.write import prepare_write
from filegroups.writing.write_request import WriteRequest
from timeline.commit.concurrent_commits import announced_writes, verdict_on
from timeline.commit.conflict_report import ConflictReport, conflict_report_of
from timeline.context import TableContext
from timeline.model.instant_time import InstantTime
from timeline.rules.conflicts import (
    NoConflict,
)
from timeline.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class _DryRunBase:
    """The base of a dry run, which does not begin an instant."""

    requested_time: InstantTime
    snapshot: Snapshot


def dry_run_write(
    context: TableContext, plan: WriteRequest, workload: Workload | None
) -> tuple[ConflictReport, ...]:
    """
    Return the conflicts that a write would have with all pending writes, if those commit first.

    It assigns file groups as the write would, begins nothing and writes nothing. It compares the
    file groups with the announced write sets of live writers and with pending clusterings. An empty
    result is no promise, because other writes may begin later.

    Outside: 1 list, as ``assign_file_groups``; 1 get per pending write, their heartbeats.

    Args:
        context: The table.
        plan: The write request.
        workload: The incoming rows; None for ``delete_partition``.

    Returns:
        One report for each conflicting pending write, by requested time; the report of pending
        clusterings is last. ``instant`` is empty: there is none.

    Raises:
        InvalidInputError, UnsupportedTableError, MissingFileError: As the write itself would.
    """
    snapshot = context.snapshot()
    work = prepare_write(context, plan, workload, snapshot, counts_rows=True)
    plan = work.plan
    now = _DryRunBase(
        requested_time=context.zone.instant_time(context.ports.clock.now_ms()), snapshot=snapshot
    )
    assignment = assign_file_groups(
        context,
        now,
        workload,
        plan.rules,
        work.schema,
        files=plan.files,
        delete_partitions=plan.partitions_deleted(snapshot),
        counts_rows=True,
    )
    planned = planned_commit(assignment)
    found = []
    for concurrent in announced_writes(context, snapshot.active):
        above = max(now.requested_time, concurrent.completion_time)
        verdict = verdict_on(context, planned, above, [concurrent])
        if not isinstance(verdict, NoConflict):
            found.append(conflict_report_of("", verdict))
    if assignment.conflict is not None and not context.limits.cancels_conflicting_plans:
        found.append(conflict_report_of("", assignment.conflict))
    return tuple(found)
