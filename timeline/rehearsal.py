"""
What a write would meet if it began now: a dry run that begins nothing and writes nothing.

It places the rows as the write would and holds the file groups against what others have
begun and not published: the writes of living writers, as far as they announced what they
touch, and the clusterings that would refuse the write. Nobody can know who begins in the
next moment, so an empty answer is no promise; the publication decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from timeline.active import ActiveTimeline
from timeline.candidate import planned_claim
from timeline.codecs.instant_avro import decode_commit
from timeline.context import TableContext
from timeline.heartbeat import instants_that_seem_dead
from timeline.model.claim import Claim, Touch
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.filenames import pending_file_names
from timeline.model.instant import Action
from timeline.model.times import InstantTime, WallMs, instant_time
from timeline.placing import place
from timeline.ports.storage import ObjectMissingError
from timeline.receipt import WritePlan
from timeline.refusal import RefusalReport, report_of
from timeline.rivals import claim_of
from timeline.rules.conflicts import Clean, Refused, Rival, judge
from timeline.rules.strategies import objection_to
from timeline.snapshot import Snapshot
from timeline.workload import Workload
from timeline.write_schema import refuse_keyless, rows_schema, schema_for

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
    refuse_keyless(plan)
    snapshot = context.snapshot()
    schema, _ = schema_for(context, snapshot, workload, plan)
    if workload is not None:
        workload.prepare(plan.rules, rows_schema(context, schema, workload.schema, plan))
    now = _Now(requested_time=instant_time(WallMs(context.world.clock.now_ms())), snapshot=snapshot)
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
    for rival in _announced(context, snapshot.active):
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


def _announced(context: TableContext, timeline: ActiveTimeline) -> list[Rival]:
    """Pending writes that seem alive, as if they were published; what they did not say is free."""
    pending = timeline.pending_ingestion
    times = tuple(one.requested_time for one in pending)
    dead = instants_that_seem_dead(context.world.storage, times, context.limits.heartbeat)
    found = []
    for one in pending:
        if one.requested_time in dead:
            continue
        path = context.instant_path(pending_file_names(one.action, one.requested_time)[0])
        try:
            profile = decode_commit(context.world.storage.read(path), path=path)
        except ObjectMissingError:
            continue  # it has not said yet what it touches, or has ended
        found.append(
            Rival(
                action=one.action,
                requested_time=one.requested_time,
                completion_time=one.requested_time,
                claim=_announced_claim(profile, one.action),
            )
        )
    return found


def _announced_claim(profile: CommitMetadata, action: Action) -> Claim:
    """A profile does not tell how a file group is changed: of a delta commit by a log, mostly."""
    claim = claim_of(profile)
    if action is not Action.DELTACOMMIT:
        return claim
    touched = (
        replace(item, touch=Touch.LOG) if item.touch is Touch.BASE else item
        for item in claim.file_groups
    )
    return Claim.of(touched, claim.partitions, claim.inserting)
