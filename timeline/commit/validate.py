"""
Validate a write against the commits since its base state (PUB-4).

A write is validated up to three times: before its data files are written, before the commit
section, and in it against the newest commits only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from timeline.commit.apply import is_applied, newest_slots, not_applied
from timeline.commit.begin import StartedWrite
from timeline.commit.commit_lock import BaseState, PendingCommit
from timeline.commit.concurrent_commits import (
    CONCURRENT_KINDS,
    archived_commits,
    clean_conflict,
    commit_of_slot,
    foreign_clean_conflict,
    foreign_commits,
    verdict_on,
)
from timeline.commit.revalidate import without_void
from timeline.commit.section import protocol_of
from timeline.context import TableContext
from timeline.model.slot import Slot, SlotKind
from timeline.model.table_config import TableConfig
from timeline.properties.properties_file import load_config
from timeline.rules.conflicts import ConcurrentCommit, NoConflict, Rebase, Rejected, RuleId
from timeline.snapshot import ActiveTimeline
from timeline.truncation import slots_since


def validate_unlocked(
    context: TableContext, started: StartedWrite, pending_commit: PendingCommit, seen: BaseState
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """
    Validate before the commit section, only to avoid entering it in vain.

    If the commit log has not grown, there is no conflict with our own writers. Commits and plans of
    other engines are validated under the lock, where the timeline is listed anyway. Outside: 1 get;
    1 list if the log has grown.

    A rejection caused by a slot that is not applied is left to the commit section, which applies
    the slot first. The slot's owner may be dead, and a retry needs the slot's files.
    """
    head = context.commit_log.head()
    if head == seen.head:
        return NoConflict(), seen
    timeline = context.active()
    config = partial(load_config, context.ports.storage)
    verdict, now_seen = validate_since(
        context, started, pending_commit, seen, timeline, head=head, config=config
    )
    if not isinstance(verdict, NoConflict) and not_applied(context, head, timeline):
        return NoConflict(), seen
    return verdict, now_seen


def commits_since(
    context: TableContext, seen: BaseState, timeline: ActiveTimeline, *, head: int
) -> tuple[list[ConcurrentCommit], BaseState]:
    """
    Return the commits that became visible since ``seen``, by completion, and the new base state.

    Outside: 1 get per instant of another engine.

    Args:
        context: The table.
        seen: What is known already.
        timeline: Listed after ``head`` was read.
        head: The greatest slot to read.
    """
    slots = _slots_since_base(context, seen, head, timeline)
    commits = [commit_of_slot(slot) for slot in slots if slot.kind in CONCURRENT_KINDS]
    completed = timeline.completed_times
    ours = {(slot.instant_time, slot.completion_time) for slot in slots}
    fresh = completed - seen.completed - ours
    if fresh:
        # Our own commits after ``head`` was read have slots; the next refresh finds them.
        later = context.commit_log.between(head, context.commit_log.head())
        fresh -= {(slot.instant_time, slot.completion_time) for slot in later}
    if fresh:
        commits.extend(foreign_commits(context, timeline, fresh))
    known = seen.completed | ours | completed
    foreign = protocol_of(context).has_foreign_instants
    theirs: list[ConcurrentCommit] = []
    if foreign and seen.first and timeline.first_write_time != seen.first:
        # Java archives all that began before a pending write, whenever it completed.
        theirs = archived_commits(context, seen.first, known)
    archived = frozenset((one.requested_time, one.completion_time) for one in theirs)
    commits.extend(theirs)
    commits.sort(key=lambda concurrent: concurrent.completion_time)
    all_seen = known | archived
    return commits, BaseState(head=head, completed=all_seen, first=seen.first)


def validate_since(
    context: TableContext,
    started: StartedWrite,
    pending_commit: PendingCommit,
    seen: BaseState,
    timeline: ActiveTimeline,
    *,
    head: int,
    config: Callable[[], TableConfig],
) -> tuple[NoConflict | Rebase | Rejected, BaseState]:
    """Validate against slots above ``seen`` up to ``head`` and foreign instants since ``seen``."""
    commits, now_seen = commits_since(context, seen, timeline, head=head)
    verdict: NoConflict | Rebase | Rejected = NoConflict()
    if commits:
        verdict = verdict_on(context, pending_commit, started.requested_time, commits)
    if commits and not isinstance(verdict, Rejected):
        slots = context.commit_log.between(seen.head, head)
        base = started.snapshot.active
        rejected = clean_conflict(slots, commits)
        if rejected is None and protocol_of(context).has_foreign_instants:
            rejected = foreign_clean_conflict(context, base, timeline, slots, commits)
        verdict = rejected or verdict
    # Also checked before a rebase: a rebase never validates against these commits again, and
    # merging again solves neither a changed schema nor a key inserted elsewhere.
    if pending_commit.check is not None and not isinstance(verdict, Rejected):
        if any(
            slot.kind is SlotKind.METADATA for slot in context.commit_log.between(seen.head, head)
        ):
            # The properties may have been read before that slot, at the same time as the log.
            config = cache(partial(load_config, context.ports.storage))
        rejected = pending_commit.check(timeline, commits, config) or _other_metadata_table(
            context, pending_commit, config
        )
        if rejected is not None:
            return rejected, now_seen
    return verdict, now_seen


def _other_metadata_table(
    context: TableContext, pending_commit: PendingCommit, config: Callable[[], TableConfig]
) -> Rejected | None:
    """
    Reject if the metadata table's partitions are not those of the write's update (MDT-5).

    Another attempt writes the records for the present ones. Outside: as ``_without_metadata_logs``.
    """
    now, made_for = config(), pending_commit.metadata_state
    partitions, _ = now.metadata_state
    if (now.metadata_state == made_for) if made_for is not None else not partitions:
        return _without_metadata_logs(context, pending_commit)
    context.metadata_table.config = now
    return Rejected(
        RuleId.METADATA_TABLE_CHANGED,
        "another process changed which partitions the metadata table has, so this write has to "
        f"make other records for it: {', '.join(partitions) or 'it is off now'}",
        (),
    )


def _without_metadata_logs(context: TableContext, pending_commit: PendingCommit) -> Rejected | None:
    """
    Reject if another engine deleted log files of the write's update (MDT-10).

    It rolled back an instant of an earlier slot of this write, which became void, or it built the
    metadata table again. Outside: nothing, or with other engines 1 stat for each log file.
    """
    update, ports = pending_commit.metadata_update, context.ports
    if update is None or not protocol_of(context).has_foreign_instants:
        return None
    if None not in ports.for_each(ports.storage.stat, [one.path for one in update.files]):
        return None
    return Rejected(
        RuleId.METADATA_TABLE_CHANGED,
        "another engine deleted this write's log files in the metadata table, so this write has to "
        "make them again",
        (),
    )


def _slots_since_base(
    context: TableContext, seen: BaseState, head: int, timeline: ActiveTimeline
) -> list[Slot]:
    """
    Return the slots above the base state, and the newest older ones whose files it lacked.

    A snapshot reads the commit log before the timeline, so its newest slots may lack their
    completed file (PUB-3: all before those are applied). If such a file is still missing though
    nothing is left to apply, another engine had removed it before.
    """
    slots = slots_since(context, seen.head, head)
    for last in reversed(newest_slots(context, seen.head)):
        key = (last.instant_time, last.completion_time)
        shows = key in timeline.completed_times or not is_applied(
            last, timeline, context.archived_timeline
        )
        if shows and key not in seen.completed:
            slots = [last, *slots]
    return list(without_void(reversed(slots)))[::-1]
