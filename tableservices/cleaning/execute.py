"""
Execute a clean: roll back dead writers, delete old files, remove stray files (CLN-1).

It also finishes cleans that another engine left behind. ``CleaningService`` is the service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from filegroups.metadata_table.contents import PartitionContents, contents_of_clean
from filegroups.metadata_table.file_group_contents import IndexedTable
from filegroups.reading.scan import known_schema
from filegroups.writing.metadata_update import ServiceUpdate
from tableservices.cleaning.plan import (
    PARTITIONS_CLEANED,
    SAVEPOINTED,
    CleaningPolicy,
    CleaningSettings,
    CleanInput,
    CleanPlan,
    CollectedCleanInput,
    collect_clean_input,
    deleted_files,
    is_due,
    plan_clean,
    refuse_uncleanable,
)
from tableservices.service import PLANS, ServiceResult
from timeline.codecs.instant_avro import decode_clean_plan, encode_clean, encode_clean_plan
from timeline.commit.apply import apply, data_files_of, delete_from_metadata_table
from timeline.commit.markers import delete_markers
from timeline.commit.section import apply_pending_slots, open_commit
from timeline.commit_log import ended_times
from timeline.context import TableContext
from timeline.errors import (
    CorruptTableError,
    HoodooError,
    MalformedNameError,
    MissingFileError,
    counted,
)
from timeline.heartbeat import stray_heartbeats
from timeline.model.commit_metadata import Access
from timeline.model.file_names import (
    MARKERS,
    check_partition_path,
    heartbeat_path,
    join,
    parse_base_file_name,
    parse_log_file_name,
    pending_file_names,
    timeline_path,
    without_scheme,
)
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.plans import ActionInstant, CleanerPlan, CleanFileInfo, CleanMetadata
from timeline.model.slot import SlotKind, plan_version_entry
from timeline.ports.ports import Storage
from timeline.reader_lease import run_deferred_deletes
from timeline.rollback.rollback import requested_age_ms, rollback_dead_writers
from timeline.snapshot import ActiveTimeline, Snapshot

# ---- A cache for a repeated clean: the state in which no file was superseded
#
# A table that only gains file groups has nothing to clean. Listing it after every commit would
# make small commits slower as it grows. The cache is a hint of this process only: the next full
# scan finds commits of another engine.


@dataclass(slots=True)
class LastClean:
    """
    The newest head at which no newer file had superseded another; None before the first scan.

    ``scanned_at_ms`` is the time of the last full scan, on the monotonic clock.
    """

    head: int | None = None
    scanned_at_ms: int = 0

    def may_skip(self, context: TableContext) -> bool:
        """
        Return whether a scan would find nothing: no superseded file, and no new dead writer.

        A writer counts as dead when its heartbeat expires, so one full scan in a heartbeat's
        interval finds dead writers and stray files soon enough. Outside: as ``only_new_file_groups``.
        """
        since_ms = context.ports.clock.monotonic_ms() - self.scanned_at_ms
        return since_ms < context.limits.heartbeat.interval_ms and self.only_new_file_groups(
            context
        )

    def note(self, snapshot: Snapshot, facts: CleanInput) -> None:
        """Record a full scan of the files and its result."""
        quiet = not facts.replaced and all(len(slices) < 2 for slices in facts.groups.values())
        self.head = snapshot.head if quiet else None

    def note_full_scan(self, context: TableContext) -> None:
        """Record a full scan that also looked for dead writers and stray files."""
        self.scanned_at_ms = context.ports.clock.monotonic_ms()

    def only_new_file_groups(self, context: TableContext) -> bool:
        """
        Return whether commits only added file groups since.

        Outside: 1 get per new slot and 1 more.
        """
        seen = self.head  # threads of one table share this memory
        if seen is None:
            return False
        head = context.commit_log.head()
        try:
            slots = context.commit_log.between(seen, head)
        except MissingFileError:  # archived since: their write sets are unknown
            self.head = None
            return False
        for slot in slots:
            fresh = all(item.access is Access.NEW for item in slot.write_set.file_groups)
            if slot.kind is not SlotKind.COMMIT or not fresh or slot.write_set.partitions:
                self.head = None
                return False
        self.head = head
        return True


# ---- Stray files of crashed writers: heartbeats and markers without an instant
#
# A stray file is removed only if no pending instant owns it and it did not change for the
# tolerated interval. The timeline is listed after the folders, to include an instant begun in
# between. Markers of a rolled back or cancelled instant may name files that its owner wrote after
# the rollback listed them (RB-10); the slot that ended it allows to delete those files too.


def remove_stray_files(context: TableContext) -> int:
    """
    Remove stray heartbeats and marker folders; return how many.

    Also run the deferred deletes of earlier cleans. Outside: 3 lists, 2 more and 1 get per lease
    where there are any, and when something is old 1 list more and 1 delete each; for a rolled back
    instant 1 list per partition and 1 delete per late file.
    """
    storage = context.ports.storage
    _sweep_late_plans(context)
    run_deferred_deletes(context)
    limits = context.limits.heartbeat
    beats = stray_heartbeats(storage, frozenset(), limits)
    marked = _old_marker_folders(storage, limits.tolerated_ms)
    if not beats and not marked:
        return 0
    pending = {one.requested_time for one in context.active().pending}
    beats = tuple(one for one in beats if one not in pending)
    marked = tuple(one for one in marked if one not in pending)
    for requested_time in beats:
        storage.delete(heartbeat_path(requested_time))
    aborted = ended_times(context.commit_log) if marked else frozenset()
    for requested_time in marked:
        if requested_time in aborted:
            for path in data_files_of(storage, requested_time):
                storage.delete(path)
            delete_from_metadata_table(storage, requested_time)
        delete_markers(storage, requested_time)
    context.ports.events.emit(
        "cleaning.leftovers", heartbeats=len(beats), marker_folders=len(marked)
    )
    return len(beats) + len(marked)


def _sweep_late_plans(context: TableContext) -> None:
    """
    End plans whose executor created the inflight file after the plan had been cancelled.

    Such a plan has an inflight file but no requested file, and would be pending for ever. If a
    cancel slot ended it, that slot is applied again. Otherwise the plan is archived and keeps its
    data (RB-7). Outside: nothing where there is none, else the slots and the deletes.
    """
    timeline = context.timelines.last or context.active()
    late = {
        one.requested_time: one.action
        for one in timeline.pending
        if one.action in PLANS
        and pending_file_names(one.action, one.requested_time)[-1] not in timeline.file_names
    }
    if not late:
        return
    for slot in context.commit_log.newest_first():
        if slot.kind is SlotKind.CANCEL and slot.requested_time in late:
            apply(context, slot)
    for requested_time, action in late.items():
        inflight = pending_file_names(action, requested_time)[0]
        context.ports.storage.delete(context.instant_path(inflight))
    context.ports.events.emit("cleaning.late_plans", plans=len(late))


def _old_marker_folders(storage: Storage, tolerated_ms: int) -> tuple[str, ...]:
    now = storage.now_ms()
    return tuple(
        entry.name
        for entry in storage.list(MARKERS)
        if entry.is_folder
        and entry.name.isdigit()
        and len(entry.name) in (14, 17)
        and now - entry.modified_ms > tolerated_ms
    )


# ---- Clean: from dead writers to stray files (CLN-1, CLN-2)
#
# Listing, planning and encoding precede the commit section. The commit section only compares the
# timeline's newest names with those the plan was made from. Then the clean takes its slot and
# deletes. A process that finds an interrupted clean repeats the same deletes (HELP-1), except the
# files that a reader lease keeps. A clean without deletes leaves no instant.

_PLANS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """The result of one clean; times are instant times."""

    requested_time: InstantTime
    completion_time: InstantTime
    files: tuple[str, ...]  # relative to the table
    retained_since: InstantTime | None  # earliest commit to retain, None when slices are counted

    @property
    def text(self) -> str:
        """One line for people."""
        kept = f", everything since {self.retained_since} is kept" if self.retained_since else ""
        return f"cleaned {counted(len(self.files), 'file')}{kept}"


class _Stale(Enum):
    STALE = "stale"


def clean(
    context: TableContext, settings: CleaningSettings, *, memory: LastClean | None = None
) -> CleanResult | None:
    """
    Clean the table once.

    Outside: 1 get, see ``collect_clean_input``; then 1 commit section (lock, list, get, create),
    the deletes, 3 creates; last the listings of heartbeats and markers.

    Args:
        context: The table.
        settings: Policy and retention.
        memory: Kept between the cleans of one process, to avoid listing again a table without
            superseded files.

    Returns:
        None when there was nothing to delete or it was not due.

    Raises:
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As
            ``timeline.commit.commit.commit_write``; the next commit section of any process finishes
            a clean whose slot was taken, or ends it (FOR-9).
        MetadataTableOnError, UnsupportedTableError: As ``refuse_uncleanable``.
        CorruptTableError, MissingFileError: An input of the plan cannot be read; nothing was
            deleted.
    """
    memory = memory or LastClean()
    if memory.may_skip(context):
        return None
    refuse_uncleanable(context)
    snapshot = context.snapshot()
    if settings.rolls_back and rollback_dead_writers(context, snapshot.active):
        snapshot = context.snapshot()
    result = None
    foreign = finish_foreign_cleans(context, settings, snapshot.active)
    if foreign is not ForeignCleans.AT_WORK:
        if foreign is ForeignCleans.ENDED:
            snapshot = context.snapshot()
        result = _clean_own(context, settings, snapshot, memory)
    remove_stray_files(context)
    memory.note_full_scan(context)
    return result


def _clean_own(
    context: TableContext, settings: CleaningSettings, snapshot: Snapshot, memory: LastClean
) -> CleanResult | None:
    if memory.only_new_file_groups(context):
        return None
    for _ in range(_PLANS_MAX):
        started = context.ports.clock.monotonic_ms()
        if not is_due(snapshot.active, settings):
            return None
        gathered = collect_clean_input(context, snapshot, settings)
        plan = plan_clean(gathered.clean_input, settings)
        if not plan.paths:
            memory.note(snapshot, gathered.clean_input)
            return None
        taken = context.ports.clock.monotonic_ms() - started
        outcome = _publish(context, settings, gathered, plan, taken)
        if not isinstance(outcome, _Stale):
            return outcome
        context.ports.events.emit("cleaning.replanned", head=snapshot.head)
        snapshot = context.snapshot()
    return None


def _publish(
    context: TableContext,
    settings: CleaningSettings,
    gathered: CollectedCleanInput,
    plan: CleanPlan,
    taken_ms: int,
) -> CleanResult | _Stale:
    nonce = context.ports.ids.nonce()
    in_metadata_table = _update_of(context, gathered.snapshot, plan.paths)
    plan_bytes = encode_clean_plan(_cleaner_plan(context, settings, gathered, plan))
    commit = open_commit(context, "clean")
    while not commit.is_decided():
        with commit.section() as section:
            if not gathered.is_current(context, section):
                return _Stale.STALE
            refuse_uncleanable(context, config=section.config())
            requested = section.draw_time(context, Residue.SLOT_REQUESTED)
            metadata = _metadata(context, settings, gathered, plan, requested, taken_ms=taken_ms)
            cleaning = section.next_slot(
                context,
                SlotKind.CLEAN,
                Action.CLEAN,
                requested,
                nonce=nonce,
                base=gathered.snapshot.head,
                body=encode_clean(metadata),
                plan=plan_bytes,
                deletes=plan.paths,
                floor=plan.floor,
            )
            update = in_metadata_table.of(section.config(), requested, slot_number=section.head + 1)
            commit.take(section, replace(cleaning, metadata_update=update))
    slot = commit.taken
    line = gathered.clean_input.line
    context.ports.events.emit(
        "cleaning.done", rt=slot.requested_time, number=slot.number, files=len(plan.paths)
    )
    return CleanResult(
        requested_time=slot.requested_time,
        completion_time=slot.completion_time,
        files=plan.paths,
        retained_since=line.requested_time if line is not None else None,
    )


def _cleaner_plan(
    context: TableContext,
    settings: CleaningSettings,
    gathered: CollectedCleanInput,
    plan: CleanPlan,
) -> CleanerPlan:
    line = gathered.clean_input.line
    locate = context.ports.storage.locate
    return CleanerPlan(
        earliest_instant_to_retain=None
        if line is None
        else ActionInstant(
            requested_time=line.requested_time,
            action=line.action.completes_as.value,
            state=line.state.name,
        ),
        last_completed_commit_timestamp=_last_completed(gathered),
        policy=settings.policy.value,
        file_paths_to_be_deleted_per_partition={
            partition: tuple(CleanFileInfo(file_path=locate(path)) for path in paths)
            for partition, paths in plan.files.items()
        },
        extra_metadata={**_extra(gathered, settings), **plan_version_entry(Action.CLEAN)},
    )


def _metadata(
    context: TableContext,
    settings: CleaningSettings,
    gathered: CollectedCleanInput,
    plan: CleanPlan,
    requested: InstantTime,
    *,
    taken_ms: int,
) -> CleanMetadata:
    line = gathered.clean_input.line
    return CleanMetadata(
        start_clean_time=requested,
        time_taken_in_millis=taken_ms,
        total_files_deleted=len(plan.paths),
        earliest_commit_to_retain=line.requested_time if line is not None else "",
        last_completed_commit_timestamp=_last_completed(gathered),
        partition_metadata=deleted_files(plan.files, settings.policy.value),
        # The identity outlives the slot, which archiving removes.
        extra_metadata={**_extra(gathered, settings), **context.ports.ids.identity().as_metadata},
    )


def _last_completed(gathered: CollectedCleanInput) -> InstantTime:
    completed = gathered.snapshot.active.completed_writes
    return completed[-1].requested_time if completed else ""


def _extra(gathered: CollectedCleanInput, settings: CleaningSettings) -> dict[str, str]:
    entries = {
        SAVEPOINTED: ",".join(gathered.savepoints),
        PARTITIONS_CLEANED: settings.partition_filter,
    }
    return {key: text for key, text in entries.items() if text}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningService:
    """Cleaning as a service."""

    settings: CleaningSettings
    name: str = "clean"
    last_clean: LastClean = field(default_factory=LastClean)

    @property
    def runs_inline(self) -> bool:
        """Return whether ``hoodie.clean.automatic`` is set and ``hoodie.clean.async`` is not."""
        return self.settings.automatic and not self.settings.asynchronous

    @property
    def runs_in_background(self) -> bool:
        """Return whether ``hoodie.clean.automatic`` and ``hoodie.clean.async`` are set."""
        return self.settings.automatic and self.settings.asynchronous

    def run_once(self, context: TableContext) -> ServiceResult | None:
        """Clean once; errors as ``clean``."""
        return clean(context, self.settings, memory=self.last_clean)


# ---- Finish cleans that another engine left pending, if their plan is harmless
# Java Hudi finishes its interrupted cleans before it plans new ones; hoodoo does the same. But any
# process may have written the plan. Each path must be exactly that of a data file of its partition.
# No existing file may be one that a reader or writer could need. A single doubtful entry leaves the
# whole plan to its owner (SEC1, SEC2).


class ForeignCleans(Enum):
    """The result for the pending cleans of a timeline."""

    NONE = "none"  # there were none, or they were refused
    ENDED = "ended"  # at least one is no longer pending
    AT_WORK = "at_work"  # the owner of at least one may still work on it


def finish_foreign_cleans(
    context: TableContext, settings: CleaningSettings, timeline: ActiveTimeline
) -> ForeignCleans:
    """
    Finish the pending cleans of another engine.

    A clean counts as in progress while its requested file is younger than the tolerated interval of
    writers. Outside per pending clean: 1 stat, 1 get, the listing of ``collect_clean_input``, 1
    commit section.
    """
    at_work = ended = False
    for instant in timeline.pending:
        if instant.action is not Action.CLEAN:
            continue
        if _is_applied(context, instant):
            ended = True
            continue
        age_ms = requested_age_ms(context, instant)
        if age_ms is None:
            continue  # it ended, or it has no requested file and so no known plan
        if age_ms <= context.limits.heartbeat.tolerated_ms:
            at_work = True
            continue
        try:
            _finish(context, settings, instant)
            ended = True
        except (CorruptTableError, MalformedNameError) as error:
            _leave_alone(context, instant, error)
    if at_work:
        return ForeignCleans.AT_WORK
    return ForeignCleans.ENDED if ended else ForeignCleans.NONE


def _is_applied(context: TableContext, instant: Instant) -> bool:
    """Return whether hoodoo's own newest slot made this clean; if so, finish it."""
    last = context.commit_log.read(
        context.commit_log.head()
    )  # all earlier ones are applied (PUB-3)
    if last is None or last.kind is not SlotKind.CLEAN:
        return False
    if last.instant_time != instant.requested_time:
        return False
    if last.timeline_digest:  # under the lock: others may end it, and its file is late (FOR-9)
        apply_pending_slots(context, f"finish clean {instant.requested_time}")
    else:
        apply(context, last)
    return True


def _leave_alone(context: TableContext, instant: Instant, error: HoodooError) -> None:
    context.ports.events.emit("cleaning.foreign_refused", rt=instant.requested_time, why=str(error))


def _finish(context: TableContext, settings: CleaningSettings, instant: Instant) -> None:
    path = timeline_path(pending_file_names(Action.CLEAN, instant.requested_time)[-1])
    data = context.ports.storage.read(path)
    plan = decode_clean_plan(data, path=path)
    planned = planned_paths(context, plan)
    gathered = _input_without_effect(context, settings, planned)
    metadata = _foreign_metadata(instant, plan, planned)
    deletes = tuple(path for paths in planned.values() for path in paths)
    in_metadata_table = _update_of(context, gathered.snapshot, deletes)
    nonce = context.ports.ids.nonce()
    commit = open_commit(context, f"finish clean {instant.requested_time}")
    while not commit.is_decided():
        with commit.section() as section:
            now = section.timeline.find(instant.requested_time, Action.CLEAN)
            if now is None or now.completed or not gathered.is_current(context, section):
                return
            refuse_uncleanable(context, config=section.config())
            slot = section.next_slot(
                context,
                SlotKind.CLEAN,
                Action.CLEAN,
                instant.requested_time,
                nonce=nonce,
                body=encode_clean(metadata),
                plan=data,
                deletes=deletes,
            )
            update = in_metadata_table.of(
                section.config(), instant.requested_time, slot_number=section.head + 1
            )
            commit.take(section, replace(slot, metadata_update=update))
    context.ports.events.emit("cleaning.foreign_finished", rt=instant.requested_time)


def _update_of(context: TableContext, snapshot: Snapshot, paths: Sequence[str]) -> ServiceUpdate:
    """Return what deleted files are to the metadata table: tombstones (MDT-9)."""
    deleted: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        deleted.setdefault(folder, []).append(name)

    def contents(table: IndexedTable, requested: InstantTime) -> dict[str, PartitionContents]:
        return contents_of_clean(table, deleted, requested_time=requested)

    schema = known_schema(context, snapshot)
    return ServiceUpdate(context, None if schema is None else schema.avro_json, contents)


def planned_paths(context: TableContext, plan: CleanerPlan) -> dict[str, tuple[str, ...]]:
    """
    Return the relative paths of a plan by partition, each checked to be in its partition.

    Raises:
        MalformedNameError: A path leaves its partition or names no data file.
        CorruptTableError: The plan deletes whole partitions or has the old form.
    """
    if plan.partitions_to_be_deleted or plan.files_to_be_deleted_per_partition:
        raise CorruptTableError(
            "a pending clean has a form that this release does not execute: let the engine that "
            "planned it finish it",
            kind="clean_plan_form",
        )
    found: dict[str, tuple[str, ...]] = {}
    for partition_path, files in sorted(plan.file_paths_to_be_deleted_per_partition.items()):
        check_partition_path(partition_path)
        found[partition_path] = tuple(
            _relative(context, partition_path, one.file_path or "") for one in files
        )
    return found


def _relative(context: TableContext, partition_path: str, address: str) -> str:
    name = address.rpartition("/")[2]
    if parse_base_file_name(name) is not None or parse_log_file_name(name) is not None:
        path = join(partition_path, name)
        if without_scheme(context.ports.storage.locate(path)) == without_scheme(address):
            return path
    raise MalformedNameError(
        "a pending clean names a path that is not a data file of its partition. Nothing was "
        "deleted: end all writers, then delete the requested and inflight files of that clean: "
        f"{address!r}",
        path=address,
    )


def _input_without_effect(
    context: TableContext, settings: CleaningSettings, planned: dict[str, tuple[str, ...]]
) -> CollectedCleanInput:
    """
    Return the clean input in which every planned file is unneeded or already deleted.

    Raises:
        MalformedNameError: A planned file exists, and a reader, writer or savepoint may need it.
    """
    loosest = settings.model_copy(
        update={
            "policy": CleaningPolicy.VERSIONS,
            "versions_retained": 1,
            "partitions_regex": None,  # the plan is another engine's, with its own filter
            "partitions_selected": (),
        }
    )
    gathered = collect_clean_input(context, context.snapshot(), loosest)
    needless = set(plan_clean(gathered.clean_input, loosest).paths)
    for path in (path for paths in planned.values() for path in paths):
        if path not in needless and context.ports.storage.stat(path) is not None:
            raise MalformedNameError(
                "a pending clean names a file that a reader, writer or savepoint may still need. "
                f"Nothing was deleted: wait until they have ended, then clean again: {path!r}",
                path=path,
            )
    return gathered


def _foreign_metadata(
    instant: Instant, plan: CleanerPlan, planned: dict[str, tuple[str, ...]]
) -> CleanMetadata:
    line = plan.earliest_instant_to_retain
    return CleanMetadata(
        start_clean_time=instant.requested_time,
        total_files_deleted=sum(len(paths) for paths in planned.values()),
        earliest_commit_to_retain=line.requested_time if line is not None else "",
        last_completed_commit_timestamp=plan.last_completed_commit_timestamp,
        partition_metadata=deleted_files(planned, plan.policy),
        extra_metadata=plan.extra_metadata,
    )
