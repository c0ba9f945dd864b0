"""
Early conflict detection: what a write meets before it writes files, when that is still cheap.

Two looks. At what was *published* while keys were looked up: always. At what living writers have
*announced* for the same rows: by option. There the smaller requested time goes on and the greater
one waits in its place, without the lock, until the other has ended or fallen silent; so of two
that see each other one goes on, waits never form a circle, and whoever waited keeps its turn
before all that begin later. What the other published is then the base of this write, and
nothing was computed in vain. Nothing here is needed to be right: the publication judges anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from timeline.context import TableContext
from timeline.model.claim import Claim, FileGroupId
from timeline.publishing.announced import announced_rivals
from timeline.publishing.begin import Begun
from timeline.publishing.publish import Seen, judge_early
from timeline.publishing.refusal import Waited, report_of
from timeline.rules.conflicts import Clean, Rebaseable, Refused, Rival, RuleId, judge
from timeline.rules.strategies import objection_to
from timeline.writing.candidate import planned_claim
from timeline.writing.placing import Placement

__all__ = ["look_early"]

_PAUSE_MS_FIRST = 20
_PAUSE_MS_MAX = 1_000


def look_early(
    context: TableContext,
    begun: Begun,
    placement: Placement,
    *,
    gives_way: bool,
    elapsed_ms: int,
    told: Callable[[Waited], None] = lambda _: None,
) -> tuple[Clean | Rebaseable | Refused, Seen]:
    """
    Judge a placed write before any of its files is written.

    Outside: 1 list, chain probes; with ``gives_way`` as ``announced_rivals`` and 1 list, again
    while it waits.

    Args:
        context: The table.
        begun: The write; it has announced itself (BEG-6).
        placement: What it is going to touch.
        gives_way: Look at announcements, too; not while holding what the others wait for.
        elapsed_ms: Since the first attempt of this write: waiting is bounded as retries are.
        told: Hears of a wait that ended.

    Raises:
        HeartbeatExpiredError: This process paused too long (HB-3).
        StorageUnavailableError: The storage does not answer.
    """
    claim = planned_claim(placement)
    seen = Seen.by(begun.snapshot)
    if gives_way:
        met = _give_way(context, begun, claim, placement, elapsed_ms=elapsed_ms, told=told)
        if met is not None:
            return met, seen
    return judge_early(context, begun, claim, seen, logs_may_meet=placement.logs_may_meet)


def _give_way(
    context: TableContext,
    begun: Begun,
    claim: Claim,
    placement: Placement,
    *,
    elapsed_ms: int,
    told: Callable[[Waited], None],
) -> Refused | None:
    """Wait for those who announced the same before; a refusal when that may not go on."""
    clock, events = context.world.clock, context.world.events
    budget = context.limits.retry
    started = clock.monotonic_ms()
    pause_ms = 0
    before: Refused | None = None
    while True:
        met = _met(context, begun, claim, logs_may_meet=placement.logs_may_meet)
        waited_ms = clock.monotonic_ms() - started
        if met is None:
            if before is not None:
                events.emit("write.way_given", rt=begun.requested_time, wait_ms=waited_ms)
                report = report_of(begun.requested_time, before)
                told(Waited(report=report, wait_ms=waited_ms))
            return None
        spent = 0 < budget.total_ms_max < elapsed_ms + waited_ms
        if spent or not budget.conflict_retries_max:
            return met
        if before is None:
            rivals = ", ".join(rival.requested_time for rival in met.rivals)
            events.emit("write.gives_way", rt=begun.requested_time, rivals=rivals)
        before = met if before is None else _both(before, met)
        pause_ms = min(2 * pause_ms or _PAUSE_MS_FIRST, _PAUSE_MS_MAX)
        clock.sleep_ms(pause_ms)
        begun.heartbeat.check()


def _both(before: Refused, met: Refused) -> Refused:
    """One meeting with all who were waited for, in the order in which they were met."""
    return replace(
        before,
        rivals=tuple({one.requested_time: one for one in (*before.rivals, *met.rivals)}.values()),
        file_groups=tuple(sorted({*before.file_groups, *met.file_groups})),
        partitions=tuple(sorted({*before.partitions, *met.partitions})),
    )


def _met(
    context: TableContext, begun: Begun, claim: Claim, *, logs_may_meet: bool
) -> Refused | None:
    """What living writers that were requested before this one have announced of the same."""
    rivals: list[Rival] = []
    groups: list[FileGroupId] = []
    partitions: list[str] = []
    before = announced_rivals(context, context.active(), below=begun.requested_time)
    for rival in before:
        verdict = judge(claim, begun.requested_time, [rival], logs_may_meet=logs_may_meet)
        if not isinstance(verdict, Refused):
            verdict = objection_to(claim, [rival], context.limits.strategy) or verdict
        if isinstance(verdict, Clean):
            continue
        rivals.append(rival)
        groups += verdict.file_groups
        partitions += verdict.partitions if isinstance(verdict, Refused) else ()
    if not rivals:
        return None
    return Refused(
        RuleId.ANNOUNCED_BY_OTHER,
        "the other began before and is about to change the same",
        tuple(rivals),
        tuple(sorted(set(groups))),
        tuple(sorted(set(partitions))),
    )
