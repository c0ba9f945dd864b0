"""
Compact, clean and archive the metadata table (MDT-8).

A commit section fixes the times of a compaction, in one slot. Any process executes the plan: all
names follow from it, and the files of two executors are equal. The process that completed the
compaction deletes slices that no reader needs, and archives instants of the metadata table. Nothing
of this changes what a reader sees. Where Java Hudi writes too, all of it is under the lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from filegroups.metadata_table.lag import newest_merge
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.supported import refuse_unmaintained
from tableservices.archiving.plan import ArchivingSettings
from tableservices.compaction.plan import CompactionTrigger
from tableservices.metadata_table.clean_and_archive import (
    archive_metadata_table,
    clean_metadata_table,
)
from tableservices.metadata_table.merge_files import PlannedMerge, merge_files, merge_metadata
from tableservices.metadata_table.plan import (
    MetadataServiceSettings,
    commits_until_due,
    completion_time_of,
    delta_commits,
    is_due,
    is_log_compaction_due,
    metadata_compaction_plan,
    metadata_log_compaction_plan,
    pending_compactions,
    read_metadata_timeline,
)
from tableservices.service import ServiceResult
from timeline.archived import ArchivedTimeline
from timeline.codecs.instant_avro import (
    decode_compaction_plan,
    encode_commit,
    encode_compaction_plan,
)
from timeline.commit.apply import delete_from_metadata_table, metadata_plan_path
from timeline.commit.begin import refuse_during_restore
from timeline.commit.commit_lock import CommitSection, assert_lease
from timeline.commit.section import open_commit
from timeline.context import TableContext
from timeline.errors import MissingFileError, ServiceConflictError, counted
from timeline.model.file_names import (
    METADATA_TABLE,
    instant_file_name,
    pending_file_names,
)
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime, Residue, WallMs, next_instant_time
from timeline.model.metadata_table import METADATA_TIMELINE
from timeline.model.slot import Slot, SlotKind, refuse_newer_plan
from timeline.model.table_config import TableConfig
from timeline.ports.ports import Lease, ObjectMissingError, create_if_absent
from timeline.properties.properties_file import load_config
from timeline.snapshot import ActiveTimeline
from timeline.storage.subfolder import SubfolderStorage

_PURPOSE: Final = "compact the metadata table"
_FIRST_VERSION: Final = 8
_AGAIN: Final = "run the service again"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataServiceResult:
    """The result of one round; times are instant times. ``action`` says which kind of compaction."""

    action: Action
    requested_time: InstantTime
    completion_time: InstantTime
    file_groups: int
    log_files: int
    files_deleted: int
    instants_archived: int

    @property
    def text(self) -> str:
        """One line for people."""
        if self.action is Action.LOGCOMPACTION:
            return (
                f"merged {counted(self.log_files, 'log file')} of "
                f"{counted(self.file_groups, 'file group')} of the metadata table into one each"
            )
        return (
            f"compacted {counted(self.log_files, 'log file')} of "
            f"{counted(self.file_groups, 'file group')} of the metadata table, deleted "
            f"{counted(self.files_deleted, 'old file')}, archived "
            f"{counted(self.instants_archived, 'instant')} of it"
        )


@dataclass(slots=True)
class CheckBackoff:
    """
    The commit slot from which on a compaction may be due; a writer does not check before.

    Each delta commit of the metadata table has a slot, unless another engine writes.
    """

    from_slot: int = 0


def maintain_metadata_table(
    context: TableContext,
    settings: MetadataServiceSettings,
    archiving: ArchivingSettings,
    *,
    now: bool = False,
    backoff: CheckBackoff | None = None,
) -> MetadataServiceResult | None:
    """
    Finish a pending compaction of the metadata table, or plan and execute one that is due.

    Without a due compaction, a log compaction that is due is planned and executed (MDT-17).

    Outside: 1 get, 1 list. If there is work: 1 commit section with 1 list for each partition; the
    files of each changed file group, 1 create for each; 3 creates; 1 list for each partition, and
    the deletes and the archived timeline of the metadata table.

    Args:
        context: The table.
        settings: When a compaction is due.
        archiving: How many instants remain, as on the table itself.
        now: Compact even if it is not due.
        backoff: Receives the slot from which on the next check is worth its requests.

    Returns:
        None when there was nothing to do, or another process works on it.

    Raises:
        ServiceConflictError: A pending instant holds the compaction, and there are more delta
            commits than ``pending_max`` (``metadata_compaction_held``).
        MetadataTableOnError: As ``refuse_unmaintained``.
        CorruptTableError: A file of the metadata table is damaged.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, StorageUnavailableError: As
            ``CommitProtocol.section`` and ``take``; the next round continues from here.
    """
    storage = context.ports.storage
    config = load_config(storage)
    if not _is_maintained(config):
        return None
    refuse_unmaintained(config)
    own = read_metadata_timeline(storage)
    if backoff is not None:
        backoff.from_slot = context.commit_log.known_head + commits_until_due(own, settings)
    alone = context.has_foreign_writers  # Java respects only the lock
    if not alone and (pending := _without_obsolete(context, own)):
        planned = _abandoned(context, own, pending[0])
        return None if planned is None else _carry_out(context, config, planned, archiving)
    due = now or _is_due(context, own, settings) or is_log_compaction_due(own, settings)
    if not (due or pending_compactions(own)):
        return None
    commit, planned = open_commit(context, _PURPOSE), None
    while not commit.is_decided():
        with commit.section() as section:
            planned, slot = _decided(context, section, settings, now=now)
            if planned is None:
                return None
            if slot is not None:
                commit.take(section, slot)
                if commit.slot is None:
                    continue
            if alone:
                return _carry_out(context, config, planned, archiving, section.lease)
    if alone or planned is None:  # the lock was lost
        return None
    return _carry_out(context, config, planned, archiving)


def _is_maintained(config: TableConfig) -> bool:
    return config.metadata_table_on and config.table_version >= _FIRST_VERSION


def _is_due(context: TableContext, own: ActiveTimeline, settings: MetadataServiceSettings) -> bool:
    return is_due(own, settings, WallMs(context.ports.clock.now_ms()), context.zone)


# ---- Pending plans


def _without_obsolete(context: TableContext, own: ActiveTimeline) -> Sequence[Instant]:
    """
    Return the pending compactions, after those below a completed one were deleted.

    Such a file appeared late: its process slept after its slot, or after another one completed the
    plan. Outside: the deletes.
    """
    found, last = [], newest_merge(own)
    for one in pending_compactions(own):
        if one.requested_time < last:
            _delete_plan(context, one.action, one.requested_time)
        else:
            found.append(one)
    return found


def _delete_plan(context: TableContext, action: Action, requested_time: InstantTime) -> None:
    """
    Delete a plan. The files of a log compaction are deleted with it, because no reader uses them.

    Even if another process completes it meanwhile, the files that it would replace still count.
    """
    context.ports.events.emit("metadata_table.plan_deleted", rt=requested_time)
    if action is Action.LOGCOMPACTION:
        delete_from_metadata_table(context.ports.storage, requested_time)
        return
    for name in pending_file_names(action, requested_time):
        context.ports.storage.delete(f"{METADATA_TIMELINE}/{name}")


def _abandoned(context: TableContext, own: ActiveTimeline, pending: Instant) -> PlannedMerge | None:
    """
    Return a pending plan that its process no longer executes; None for another one.

    Two executors do no harm, only double work (CMP-3). The plan of another engine, which stopped
    writing, names no completion time. Its log compaction is deleted: no process needs it, and writes may
    have completed above its log files. Outside: 1 stat, 1 get, perhaps the deletes.
    """
    storage = context.ports.storage
    stat = storage.stat(metadata_plan_path(pending.requested_time, pending.action))
    if stat is None:
        return None
    age_ms = storage.now_ms() - stat.modified_ms
    if age_ms <= context.limits.heartbeat.tolerated_ms:
        return None
    if pending.action is Action.LOGCOMPACTION:
        planned = _read_plan(context, pending)
        if planned is None:
            _delete_plan(context, pending.action, pending.requested_time)
        return planned
    now = WallMs(context.ports.clock.now_ms())
    above = max(own.newest_time or "", pending.requested_time)
    drawn = next_instant_time(
        now, above, Residue.SLOT_COMPLETION, limits=context.limits.skew, zone=context.zone
    )
    return _read_plan(context, pending, unnamed=drawn)


def _read_plan(
    context: TableContext, pending: Instant, *, unnamed: InstantTime | None = None
) -> PlannedMerge | None:
    """
    Return a pending plan; None if it is gone, or names no completion time. Outside: 1 get.

    ``unnamed`` is the completion time of a plan of another engine.
    """
    path = metadata_plan_path(pending.requested_time, pending.action)
    try:
        data = context.ports.storage.read(path)
    except ObjectMissingError:
        return None
    plan = decode_compaction_plan(data, path=path)
    completion_time = completion_time_of(plan, pending.requested_time) or unnamed
    if completion_time is None:
        return None
    refuse_newer_plan(plan.extra_metadata, path=path)
    return PlannedMerge(
        action=pending.action,
        requested_time=pending.requested_time,
        completion_time=completion_time,
        plan=plan,
    )


def _tell_foreign(context: TableContext, pending: Instant) -> None:
    context.ports.events.emit(
        "metadata_table.compaction_held",
        instant=pending.requested_time,
        why="another engine planned this compaction; its next write completes it",
    )


# ---- Plan in a commit section: all earlier slots are applied, so the plan has every log file


def _decided(
    context: TableContext,
    section: CommitSection,
    settings: MetadataServiceSettings,
    *,
    now: bool,
) -> tuple[PlannedMerge | None, Slot | None]:
    """
    Return what to execute, and the slot to take first; both None when there is nothing to do.

    Outside: 3 lists and 1 get; 1 list for each partition.
    """
    refuse_during_restore(section.timeline)
    storage, config = context.ports.storage, section.config()
    if not _is_maintained(config):
        return None, None
    own = read_metadata_timeline(storage)
    if pending := pending_compactions(own):
        # Under the lock no process executes it; without it, its owner does.
        planned = _read_plan(context, pending[0]) if context.has_foreign_writers else None
        if planned is None and context.has_foreign_writers:
            _tell_foreign(context, pending[0])
        return planned, None
    is_whole = delta_commits(own) > 0 and (now or _is_due(context, own, settings))
    pending_writes = [one for one in section.timeline.pending if one.action is not Action.SAVEPOINT]
    if not is_whole and (pending_writes or not is_log_compaction_due(own, settings)):
        return None, None
    snapshot = replace(context.cached_snapshot(), active=section.timeline, head=section.head)
    table = open_metadata_table(storage, config, snapshot, ports=context.ports)
    if table is None or _is_held(context, config, table, own, settings):
        return None, None
    above = own.newest_time or ""
    slot = section.next_slot(
        context,
        SlotKind.METADATA,
        Action.COMPACTION if is_whole else Action.LOGCOMPACTION,
        section.draw_time(context, Residue.SLOT_REQUESTED, above=above),
        nonce=context.ports.ids.nonce(),
    )
    context.ports.for_each(table.slices, table.partitions)  # together, before the plan uses them
    plan = (
        metadata_compaction_plan(table, slot.completion_time)
        if is_whole
        else metadata_log_compaction_plan(table, slot.completion_time, settings.log_blocks_min)
    )
    if plan is None:
        return None, None
    planned = PlannedMerge(
        action=slot.action,
        requested_time=slot.requested_time,
        completion_time=slot.completion_time,
        plan=plan,
    )
    return planned, replace(slot, body=encode_compaction_plan(plan))


def _is_held(
    context: TableContext,
    config: TableConfig,
    table: MetadataTable,
    own: ActiveTimeline,
    settings: MetadataServiceSettings,
) -> bool:
    """Return whether something prevents a compaction now, and report it."""
    why = held_reason(config, table)
    if why is None:
        return False
    count = delta_commits(own)
    instant = next(iter(table.lag.pending), "")
    context.ports.events.emit("metadata_table.compaction_held", instant=instant, why=why)
    if count > settings.pending_max:
        raise ServiceConflictError(
            f"the metadata table cannot be compacted, because {why}: "
            f"{counted(count, 'delta commit')}, allowed are {settings.pending_max} "
            f"({settings.options['pending_max'].key})",
            kind="metadata_compaction_held",
            requested_time=instant,
            delta_commits=count,
        )
    return True


def held_reason(config: TableConfig, table: MetadataTable) -> str | None:
    """
    Return what prevents a compaction of the metadata table, and what ends it; None for nothing.

    The base files of a partition that is being built appear below those of a compaction. An instant
    that is completed in the metadata table and pending on the table may still be rolled back.
    """
    built = sorted(set(config.metadata_partitions) - set(table.partitions))
    if built:
        return (
            f"partition {built[0]} of the metadata table is being built. If its process is dead, "
            f"build it again, or run 'hoodoo metadata drop TABLE {built[0]}'"
        )
    instant = next(iter(table.lag.pending), None)
    if instant is None:
        return None
    return (
        f"instant {instant} is pending on the table and completed in its metadata table. If its "
        f"writer is dead, run 'hoodoo explain TABLE {instant} --resolve'"
    )


# ---- Execute


def _carry_out(
    context: TableContext,
    config: TableConfig,
    planned: PlannedMerge,
    archiving: ArchivingSettings,
    lease: Lease | None = None,
) -> MetadataServiceResult | None:
    """
    Execute a plan, then clean and archive the metadata table.

    Returns:
        None if a file of the plan is missing; the plan was deleted then.
    """
    storage = context.ports.storage
    table = open_metadata_table(storage, config, context.snapshot(), ports=context.ports)
    if table is None:
        return None
    made: list[str] = []
    try:
        stats = merge_files(context, table, config, planned, made)
    except MissingFileError:
        # A restore removed an instant of it, a partition was dropped, or the plan is obsolete.
        stats = None
    if stats is None or _is_overtaken(context, planned):
        assert_lease(lease)
        _delete_plan(context, planned.action, planned.requested_time)
        stats = None
    if stats is None or not _is_still_planned(context, config, planned):
        _discard(context, planned, made)
        return None
    inflight, _ = pending_file_names(planned.action, planned.requested_time)
    completed = instant_file_name(
        Instant(
            action=planned.action.completes_as,
            requested_time=planned.requested_time,
            state=State.COMPLETED,
            completion_time=planned.completion_time,
        )
    )
    metadata = merge_metadata(stats, config.table_version, planned.action)
    files = [(inflight, b""), (completed, encode_commit(metadata))]
    if planned.action is Action.LOGCOMPACTION:  # the next write of Java fails at a pending inflight
        files.reverse()
    for name, data in files:
        assert_lease(lease)
        create_if_absent(storage, f"{METADATA_TIMELINE}/{name}", data, repeat=_AGAIN)
    is_whole = planned.action is Action.COMPACTION
    result = MetadataServiceResult(
        action=planned.action,
        requested_time=planned.requested_time,
        completion_time=planned.completion_time,
        file_groups=len(stats),
        log_files=sum(one.total_log_files_compacted for one in stats),
        files_deleted=clean_metadata_table(context, config, lease) if is_whole else 0,
        instants_archived=archive_metadata_table(context, archiving, lease) if is_whole else 0,
    )
    context.ports.events.emit(
        "metadata_table.compacted",
        rt=result.requested_time,
        action=result.action.value,
        file_groups=result.file_groups,
        log_files=result.log_files,
        files_deleted=result.files_deleted,
        instants_archived=result.instants_archived,
    )
    return result


def _is_still_planned(context: TableContext, config: TableConfig, planned: PlannedMerge) -> bool:
    """
    Return whether the plan counts: no restore, build or drop ended it meanwhile.

    Outside: 1 get, 1 stat.
    """
    storage = context.ports.storage
    same = load_config(storage).metadata_state == config.metadata_state
    path = metadata_plan_path(planned.requested_time, planned.action)
    return same and storage.stat(path) is not None


def _is_overtaken(context: TableContext, planned: PlannedMerge) -> bool:
    """
    Return whether the table has a write between the log files of a log compaction (MDT-17).

    Its requested file appeared between the listing of the section and the slot. A later begin sees
    the slot and draws a greater time (BEG-5). Outside: for a log compaction 1 list.
    """
    if planned.action is not Action.LOGCOMPACTION:
        return False
    time = planned.requested_time
    return any(
        one.requested_time < time and (not one.completed or one.newest_time > time)
        for one in context.active().instants
        if one.action is not Action.SAVEPOINT
    )


def _discard(context: TableContext, planned: PlannedMerge, made: Sequence[str]) -> None:
    """
    Delete the files that this process made, unless another process completed the plan.

    Later, a file of an instant below the active timeline of the metadata table would count. Outside:
    1 list; perhaps the archived timeline of the metadata table; the deletes.
    """
    storage, time = context.ports.storage, planned.requested_time
    done = read_metadata_timeline(storage).find(time, planned.action.completes_as)
    history = ArchivedTimeline(SubfolderStorage(storage, METADATA_TABLE), context.ports.events)
    if (done is not None and done.completed) or time in history.times().completions:
        return
    for path in made:
        storage.delete(path)


# ---- The service


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTableService:
    """Compaction, clean and archive of the metadata table; does nothing without one."""

    settings: MetadataServiceSettings
    archiving: ArchivingSettings
    after_commits: bool = False
    name: str = "metadata"
    backoff: CheckBackoff = field(default_factory=CheckBackoff)

    @property
    def runs_inline(self) -> bool:
        """Return ``hoodoo.metadata.services.inline``."""
        return self.settings.inline

    @property
    def runs_in_background(self) -> bool:
        """Return False: only workers run it apart from commits."""
        return False

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Run one round; errors as ``maintain_metadata_table``."""
        backoff = None
        if self.after_commits:
            known = context.metadata_table.config or context.config
            if not known.metadata_table_on or self._is_early(context):
                return None
            backoff = self.backoff
        return maintain_metadata_table(context, self.settings, self.archiving, backoff=backoff)

    def run_now(self, context: TableContext) -> ServiceResult | None:
        """Run one round, due or not; errors as ``maintain_metadata_table``."""
        return maintain_metadata_table(context, self.settings, self.archiving, now=True)

    def _is_early(self, context: TableContext) -> bool:
        """Return whether too few slots were taken since the last check."""
        counts = self.settings.trigger is CompactionTrigger.NUM_COMMITS
        early = context.commit_log.known_head < self.backoff.from_slot
        return counts and early and not context.has_foreign_writers

    def preview(self, context: TableContext) -> Mapping[str, object]:
        """Return the file groups, log files and bytes of a plan made now."""
        config = load_config(context.ports.storage)
        if not _is_maintained(config):
            return {"due": False, "file_groups": 0, "log_files": 0, "log_bytes": 0}
        table = open_metadata_table(context.ports.storage, config, context.snapshot())
        plan = table and metadata_compaction_plan(table, "")
        operations = plan.operations if plan else ()
        return {
            "due": table is not None and _is_due(context, table.own.active, self.settings),
            "file_groups": len(operations),
            "log_files": sum(len(one.delta_file_paths) for one in operations),
            "log_bytes": int(sum(one.metrics["TOTAL_LOG_FILES_SIZE"] for one in operations)),
        }


def idle_reason_of(context: TableContext, settings: MetadataServiceSettings) -> str:
    """
    Return why a round had nothing to do.

    Outside: 1 get, 1 list; as ``open_metadata_table`` if a compaction is due.
    """
    config = load_config(context.ports.storage)
    if not config.metadata_table_on:
        return "the table has no metadata table"
    own = read_metadata_timeline(context.ports.storage)
    if pending := pending_compactions(own):
        return f"another process executes compaction {pending[0].requested_time} of it"
    if _is_due(context, own, settings):
        table = open_metadata_table(context.ports.storage, config, context.snapshot())
        if table is not None and (why := held_reason(config, table)) is not None:
            return why
    if is_log_compaction_due(own, settings):
        return (
            "its log compaction waits until no instant is pending on the table and a file group has "
            f"{settings.log_blocks_min} log files ({settings.options['log_blocks_min'].key})"
        )
    count, key = delta_commits(own), settings.options["commits_max"].key
    return f"{counted(count, 'delta commit')}; it runs after {settings.commits_max} ({key})"
