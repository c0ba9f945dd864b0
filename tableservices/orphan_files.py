"""
Find and remove orphan files: no instant, plan, marker or savepoint names them.

A crash leaves none: instant and markers name the files of a dead writer. Orphan files come from
causes outside the protocol: an instant's files deleted by hand, a task that continued after its job
had ended, an engine without markers. A delete is final, so a file is an orphan only if:

- it has the name of a base or log file, and is older than the horizon;
- the oldest pending instant is younger than the file's time, no marker folder has that time, no
  savepoint names the file, and no pending plan owns its file group;
- its time is that of no instant, although the active or archived timeline covers it. Or it is that
  of an instant which a slot ended. Or it is that of a completed instant that names only other base
  files (its log files are kept: not every engine names all of them).

A temporary file of a killed process is an orphan by its name and age alone, because a live process
renames or removes it within moments.

Files are listed before the timeline, so that the timeline includes every instant that begins or
completes in between.

A metadata table does not list a file that no instant names, unless Java Hudi built it from the
folders. A listed orphan is deleted by a clean, whose slot takes it out of the metadata table, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from filegroups.metadata_table.contents import contents_of_clean
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.reading.scan import known_schema
from filegroups.supported import load_writable
from filegroups.writing.metadata_update import ServiceUpdate
from tableservices.cleaning.plan import CleaningPolicy, deleted_files, refuse_uncleanable
from tableservices.restoring.savepoints import savepoints
from tableservices.restoring.state_at import refuse_during_foreign_service
from timeline.archived import ArchivedTimes
from timeline.codecs.instant_avro import decode_clean, encode_clean, encode_clean_plan
from timeline.commit.section import open_commit
from timeline.commit_log import ended_times
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import (
    MARKERS,
    data_file_time,
    instant_file_name,
    join,
    parse_base_file_name,
    parse_log_file_name,
    timeline_path,
)
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime, Residue
from timeline.model.plans import CleanerPlan, CleanFileInfo, CleanMetadata
from timeline.model.slot import SlotKind, plan_version_entry
from timeline.partitions import list_partition_paths
from timeline.pending_plans import file_groups_in_clustering, pending_compactions
from timeline.ports.ports import ListsTemporaries, Storage
from timeline.properties.properties_file import load_config
from timeline.snapshot import ActiveTimeline

#: Minimum age of an orphan, ms: no write with its retries takes that long.
HORIZON_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A file that no instant, marker or plan names."""

    path: str  # relative to the table
    size_bytes: int
    age_ms: int  # by the storage's clock
    why: str


def find_orphans(context: TableContext, *, horizon_ms: int = HORIZON_MS) -> list[Orphan]:
    """
    Return every orphan file, sorted by path; change nothing.

    Outside: 1 list a partition, 3 lists, 1 get per pending plan, savepoint and completed instant
    whose base files are not all known; where the storage leaves temporary files, 1 list of every
    folder.

    Args:
        context: The table.
        horizon_ms: Younger files are never orphans, ms.

    Raises:
        InvalidInputError: The horizon is not longer than the tolerated interval of writers.
        UnsupportedTableError: The table's timeline has another layout.
        MetadataTableOnError: The metadata table has a partition that is not maintained.
    """
    if horizon_ms <= context.limits.heartbeat.tolerated_ms:
        raise InvalidInputError(
            "orphan files must be older than a live writer may be silent "
            f"({context.limits.heartbeat.tolerated_ms} ms): choose a longer time: {horizon_ms} ms",
            kind="horizon",
            horizon_ms=horizon_ms,
        )
    load_writable(context)
    found = _old_temporaries(context.ports.storage, horizon_ms)
    old = _old_files(context.ports.storage, horizon_ms)
    if old:
        rules = _OrphanRules.of(context)
        orphans = (rules.orphan(path, *fact) for path, fact in old.items())
        found += [one for one in orphans if one is not None]
    return sorted(found, key=lambda one: one.path)


def remove_orphans(context: TableContext, *, horizon_ms: int = HORIZON_MS) -> list[Orphan]:
    """
    Delete every orphan file; folders remain.

    Files that the metadata table lists are deleted by a clean, the others without a slot.

    Outside: as ``find_orphans``, and 1 delete each. With a metadata table the reads of its list of
    files; if it lists one, as a clean.

    Raises:
        As ``find_orphans``; StorageUnavailableError: Some files remain, remove again.
        ServiceConflictError: Another engine's clean, rollback or restore is pending.
        CorruptTableError, MissingFileError: The metadata table is damaged.
        LockTimeoutError, LeaseLostError, OutcomeUnknownError, BudgetSpentError: As ``clean``.
    """
    found = find_orphans(context, horizon_ms=horizon_ms)
    if found:
        listed = _listed_in_metadata_table(context, found)
        if listed:
            _clean(context, listed)
        for one in found:
            if one.path not in listed:
                context.ports.storage.delete(one.path)
    context.ports.events.emit("orphans.removed", files=len(found))
    return found


def _listed_in_metadata_table(context: TableContext, found: Sequence[Orphan]) -> list[str]:
    """Return the paths of the orphans that the metadata table lists, sorted."""
    storage, snapshot = context.ports.storage, context.snapshot()
    metadata = open_metadata_table(storage, load_config(storage), snapshot, ports=context.ports)
    if metadata is None:
        return []
    paths = {one.path for one in found if data_file_time(one.path.rpartition("/")[2]) is not None}
    folders = {path.rpartition("/")[0] for path in paths}
    rows = metadata.files_of(sorted(folders)).select(["partition_path", "name"]).to_pylist()
    return sorted(paths & {join(row["partition_path"], row["name"]) for row in rows})


def _clean(context: TableContext, paths: Sequence[str]) -> None:
    """Delete the files by a clean that retains what the last clean retained."""
    files: dict[str, list[str]] = {}
    for path in paths:
        files.setdefault(path.rpartition("/")[0], []).append(path)
    names = {folder: [path.rpartition("/")[2] for path in some] for folder, some in files.items()}
    policy = CleaningPolicy.VERSIONS.value
    metadata = replace(
        _retained(context),
        total_files_deleted=len(paths),
        partition_metadata=deleted_files(files, policy),
    )
    locate = context.ports.storage.locate
    plan = CleanerPlan(
        last_completed_commit_timestamp=metadata.last_completed_commit_timestamp,
        policy=policy,
        file_paths_to_be_deleted_per_partition={
            folder: tuple(CleanFileInfo(file_path=locate(path)) for path in some)
            for folder, some in files.items()
        },
        extra_metadata={**metadata.extra_metadata, **plan_version_entry(Action.CLEAN)},
    )
    schema = known_schema(context, context.snapshot())
    in_metadata_table = ServiceUpdate(
        context,
        None if schema is None else schema.avro_json,
        lambda table, time: contents_of_clean(table, names, requested_time=time),
    )
    nonce, commit = context.ports.ids.nonce(), open_commit(context, "remove orphan files")
    while not commit.is_decided():
        with commit.section() as section:
            refuse_during_foreign_service(section.timeline)
            refuse_uncleanable(context, config=section.config())
            requested = section.draw_time(context, Residue.SLOT_REQUESTED)
            slot = section.next_slot(
                context,
                SlotKind.CLEAN,
                Action.CLEAN,
                requested,
                nonce=nonce,
                body=encode_clean(replace(metadata, start_clean_time=requested)),
                plan=encode_clean_plan(plan),
                deletes=tuple(paths),
            )
            update = in_metadata_table.of(section.config(), requested, slot_number=slot.number)
            commit.take(section, replace(slot, metadata_update=update))


def _retained(context: TableContext) -> CleanMetadata:
    """Return what the last clean retained; the first write of the timeline if there was none."""
    active = context.active()
    cleans = [one for one in active.instants if one.action is Action.CLEAN and one.completed]
    if cleans:
        last = max(cleans, key=lambda one: one.completion_time or "")
        path = timeline_path(instant_file_name(last))
        return decode_clean(context.ports.storage.read(path), path=path)
    return CleanMetadata(
        start_clean_time="",
        earliest_commit_to_retain=active.first_write_time or "",
        last_completed_commit_timestamp=active.first_write_time or "",
    )


def _old_files(storage: Storage, horizon_ms: int) -> dict[str, tuple[int, int]]:
    """Return path -> size in bytes and age in ms of each data file older than the horizon."""
    now = storage.now_ms()
    return {
        join(partition_path, entry.name): (entry.size_bytes, now - entry.modified_ms)
        for partition_path in list_partition_paths(storage)
        for entry in storage.list(partition_path)
        if not entry.is_folder
        and now - entry.modified_ms > horizon_ms
        and data_file_time(entry.name) is not None
    }


def _old_temporaries(storage: Storage, horizon_ms: int) -> list[Orphan]:
    if not isinstance(storage, ListsTemporaries):
        return []
    now = storage.now_ms()
    return [
        Orphan(
            path=one.name,
            size_bytes=one.size_bytes,
            age_ms=now - one.modified_ms,
            why="a process was killed while it created a file",
        )
        for one in storage.temporaries()
        if now - one.modified_ms > horizon_ms
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OrphanRules:
    """The present instants, plans, markers and savepoints."""

    context: TableContext
    active: ActiveTimeline
    oldest_pending: InstantTime | None
    marked: frozenset[InstantTime]
    kept: frozenset[str]
    owned: frozenset[FileGroupId]
    ended: frozenset[InstantTime]
    archived: ArchivedTimes
    named: dict[InstantTime, frozenset[str]]

    @staticmethod
    def of(context: TableContext) -> _OrphanRules:
        active = context.snapshot().active
        plans: Mapping[FileGroupId, object] = {
            **pending_compactions(context, active),
            **file_groups_in_clustering(context, active),
        }
        markers = context.ports.storage.list(MARKERS)
        return _OrphanRules(
            context=context,
            active=active,
            oldest_pending=min((one.requested_time for one in active.pending), default=None),
            marked=frozenset(one.name for one in markers if one.is_folder),
            kept=frozenset(path for one in savepoints(context) for path in one.files),
            owned=frozenset(plans),
            ended=ended_times(context.commit_log),
            archived=context.archived_timeline.times(),
            named={},
        )

    def orphan(self, path: str, size_bytes: int, age_ms: int) -> Orphan | None:
        partition_path, _, name = path.rpartition("/")
        base, log = parse_base_file_name(name), parse_log_file_name(name)
        file, time = base or log, data_file_time(name)
        if file is None or time is None or time in self.marked or path in self.kept:
            return None
        if self.oldest_pending is not None and time >= self.oldest_pending:
            return None
        if FileGroupId(partition_path, file.file_id) in self.owned:
            return None
        why = self._why(path, time, is_base=base is not None)
        if why is None:
            return None
        return Orphan(path=path, size_bytes=size_bytes, age_ms=age_ms, why=why)

    def _why(self, path: str, time: InstantTime, *, is_base: bool) -> str | None:
        completed = next(
            (one for one in self.active.completed_writes if one.requested_time == time), None
        )
        if completed is not None:
            if time not in self.named:
                paths = self.context.commits.read(completed).written_paths()
                self.named[time] = frozenset(paths)
            unnamed = is_base and path not in self.named[time]
            return f"{completed} does not name it" if unnamed else None
        if time in self.ended:
            return f"the instant {time} was ended"
        counts = self.active.is_archived(time, lambda: self.archived)
        if (counts or self.active.archived_below is None) and not self.archived.rules_out(time):
            return None  # archived, hence committed (fmt 6.3, GC-7)
        return f"no instant has the time {time}"
