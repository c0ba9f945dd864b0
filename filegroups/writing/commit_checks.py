"""
The checks at commit besides the conflict matrix (PUB-4), which also run twice.

They run without the lock, then under the lock on the concurrent commits since. They check that

- the reads of the write still hold, and its batch is new;
- the schema is that of the files;
- no new plan contains a written file group;
- no concurrent commit inserted a key that is new here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.log_files import keys_of_log
from filegroups.files.parquet import read_base_file, read_virtual_keys
from filegroups.keys.bucketing import bucket_of
from filegroups.keys.keys import VirtualKeys
from filegroups.reading.read_set import READS_KEY, ReadSet
from filegroups.reading.scan import plan_scan, scan, view_of
from filegroups.schema.schema import COMMIT_TIME_COLUMN, KEY_COLUMN, TableSchema
from timeline.commit.apply import not_applied
from timeline.commit.begin import StartedWrite
from timeline.commit.commit_lock import BaseState, CommitCheck
from timeline.commit.validate import commits_since
from timeline.context import TableContext
from timeline.errors import HoodooError, MissingFileError
from timeline.model.commit_metadata import (
    Access,
    AccessedFileGroup,
    CommitMetadata,
    FileGroupId,
    WriteSet,
)
from timeline.model.file_names import join, parse_base_file_name
from timeline.model.file_slice import BaseFile, FileSlice, LogFile
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.table_config import TableConfig
from timeline.pending_plans import file_groups_to_avoid, pending_compactions, plan_conflict
from timeline.ports.ports import Storage
from timeline.rules.conflicts import ConcurrentCommit, Rejected, RuleId
from timeline.rules.isolation import validate_reads
from timeline.snapshot import ActiveTimeline, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """The facts of a pending commit that the checks compare with concurrent commits."""

    requested_time: InstantTime
    keys_looked_up: bool  # a key that is new here must be new there too
    batch_ids: tuple[str, ...]
    schemas: tuple[str, ...]  # a concurrent commit with one of these is no schema change
    changes_columns: bool = False  # by statement: older files keep their columns by ids
    write_set: WriteSet
    partitions_without_match: tuple[
        str, ...
    ]  # partitions in which this write's deletes did not find all their keys
    inserted_into: tuple[str, ...]  # paths of this write's base files with new keys
    appended: tuple[LogFile, ...]  # this write's logs on slices that had logs
    virtual_keys: VirtualKeys | None  # how keys are computed where files store none
    read_only: tuple[AccessedFileGroup, ...]  # of the pending commit
    whole_table: bool  # a key is unique in the table, not only in its partition
    by_record_index: bool = False  # a key that a log deleted is new; one that a delete hides is not
    in_buckets: bool  # a bucket has one file group in its partition


def commit_checks(context: TableContext, mine: CommitFacts) -> CommitCheck:
    """
    Return the check of one pending commit.

    Outside, per run: 1 get (properties); 1 get per pending plan; the new files of both commits,
    where both inserted into one partition.
    """

    def check(
        timeline: ActiveTimeline,
        commits: list[ConcurrentCommit],
        config_now: Callable[[], TableConfig],
    ) -> Rejected | None:
        rejected = _replaced_source(mine, commits)
        if rejected is not None:
            return rejected
        # Reads the backup while another writer changes the properties (fmt 1.3).
        config = config_now()
        if config.table_version != context.config.table_version:
            return Rejected(
                RuleId.TABLE_UPGRADED,
                "another process upgraded the table after this process opened it: open the table "
                f"again, then write; its version is {config.table_version}",
                (),
                retry_can_succeed=False,
            )
        changed = config.differs_for_writers(context.config)
        if changed:
            return Rejected(
                RuleId.PROPERTIES_CHANGED,
                "another process changed the table's properties after this process opened it: "
                f"open the table again, then write: {', '.join(changed)}",
                (),
                retry_can_succeed=False,
            )
        return (
            _owned_by_new_plan(context, timeline, mine.write_set)
            or _hidden_by_new_plan(context, timeline, mine)
            or _conflicting_keys(context, mine, commits)
        )

    return check


def rejected_by(
    context: TableContext, mine: CommitFacts, commits: list[ConcurrentCommit]
) -> Rejected | None:
    """
    Return the conflict with concurrent commits alone, as between the members of a group.

    Outside: the new files of both commits, where both inserted into one partition.
    """
    return _replaced_source(mine, commits) or _conflicting_keys(context, mine, commits)


def _replaced_source(mine: CommitFacts, commits: list[ConcurrentCommit]) -> Rejected | None:
    """Reject if a concurrent commit has the same batch, or changed the schema."""
    for concurrent in commits:
        if set(mine.batch_ids) & set(concurrent.batches):
            return Rejected(
                RuleId.SAME_BATCH, "a concurrent commit has the same batch id", (concurrent,)
            )
        if mine.changes_columns and concurrent.requested_time > mine.requested_time:
            return Rejected(
                RuleId.SCHEMA_CHANGED,
                "a concurrent commit wrote files that would count as newer than this change of "
                "columns",
                (concurrent,),
            )
        if concurrent.schema and concurrent.schema not in mine.schemas:
            return Rejected(
                RuleId.SCHEMA_CHANGED,
                "a concurrent commit changed the table's schema; this write must adopt it",
                (concurrent,),
            )
    return None


def _conflicting_keys(
    context: TableContext, mine: CommitFacts, commits: list[ConcurrentCommit]
) -> Rejected | None:
    rejected = _missed_key(mine, commits)
    if rejected is None and mine.in_buckets:
        rejected = _same_bucket(mine, commits)
    if rejected is not None or not mine.keys_looked_up:
        return rejected
    return (
        _dropped_key(mine, commits)
        or _same_new_key(context, mine, commits)
        or _resurrected_key(context, mine, commits)
        or _new_key_in_log(context, mine, commits)
    )


def _owned_by_new_plan(
    context: TableContext, timeline: ActiveTimeline, write_set: WriteSet
) -> Rejected | None:
    if not timeline.has_pending(Action.CLUSTERING, Action.REPLACECOMMIT):
        return None
    owned = file_groups_to_avoid(context, timeline)
    return plan_conflict(owned, (item.file_group for item in write_set.file_groups))


def _hidden_by_new_plan(
    context: TableContext, timeline: ActiveTimeline, mine: CommitFacts
) -> Rejected | None:
    """
    Reject if a compaction planned after the begin would hide a base file of this write (PUB-5).

    The compaction's base file would have the greater requested time and none of this write's rows.
    Logs of this write count on top of it, because they complete later. Outside: 1 get per pending
    compaction, if one is newer than this write.
    """
    if not any(
        one.action is Action.COMPACTION and one.requested_time > mine.requested_time
        for one in timeline.pending
    ):
        return None
    planned = pending_compactions(context, timeline)
    conflicting = tuple(
        item.file_group
        for item in mine.write_set.file_groups
        if item.access in (Access.NEW, Access.BASE)
        and max(planned.get(item.file_group, ()), default="") > mine.requested_time
    )
    if not conflicting:
        return None
    return Rejected(
        RuleId.PENDING_PLAN_OWNS_FILE_GROUP,
        "a compaction plan of another process contains it, and would hide a base file that began before",
        (),
        conflicting,
    )


def _missed_key(mine: CommitFacts, commits: list[ConcurrentCommit]) -> Rejected | None:
    """
    Reject if a concurrent commit may have inserted a key that this write's deletes missed (hole 3).

    Not exact: the keys are not compared. The retry finds them if they exist.
    """
    for concurrent in commits:
        conflicting = tuple(
            sorted(set(mine.partitions_without_match) & set(concurrent.write_set.inserting))
        )
        if mine.whole_table and mine.partitions_without_match:
            conflicting = tuple(sorted(concurrent.write_set.inserting))
        if conflicting:
            return Rejected(
                RuleId.INSERTED_WHERE_I_MISSED,
                "a concurrent commit inserted keys, and this delete had not found all of its own",
                (concurrent,),
                partitions=conflicting,
            )
    return None


def _dropped_key(mine: CommitFacts, commits: list[ConcurrentCommit]) -> Rejected | None:
    """
    Reject if a concurrent commit dropped keys of a file group where this write may restore them.

    A later writer does not find such a key there and inserts it elsewhere. So a rebase onto the
    concurrent commit is not enough. With a global index no key is restored: lookups do not find
    keys that a log deleted, and there is no rebase. Not exact: the keys are not compared.
    """
    if mine.whole_table:
        return None
    mine_there = {item.file_group for item in (*mine.write_set.file_groups, *mine.read_only)}
    for concurrent in commits:
        shared = mine_there & {item.file_group for item in concurrent.write_set.file_groups}
        conflicting = tuple(sorted(shared.intersection(concurrent.dropped()))) if shared else ()
        if conflicting:
            return Rejected(
                RuleId.KEYS_DROPPED,
                "a concurrent commit removed keys from the file group, so my keys must be looked "
                "up again",
                (concurrent,),
                conflicting,
            )
    return None


def _same_new_key(
    context: TableContext, mine: CommitFacts, commits: list[ConcurrentCommit]
) -> Rejected | None:
    """
    Reject if a concurrent commit inserted the same new key into another file group (hole 3).

    Exact: it reads the keys with either instant's commit time from the files of both commits, only
    for partitions into which both inserted. A shared file group needs no check: a rebase decides
    about its keys, and rows that both updated carry both times.
    """
    storage = context.ports.storage
    for concurrent in commits:
        shared = set(mine.write_set.inserting) & set(concurrent.write_set.inserting)
        for path in mine.inserted_into:
            partition_path, _, name = path.rpartition("/")
            if partition_path not in shared and not mine.whole_table:
                continue
            written = parse_base_file_name(name)
            where = None if mine.whole_table else partition_path
            others = _base_files(concurrent, where, but="" if written is None else written.file_id)
            if not others:
                continue
            their_keys = _new_keys(storage, mine.virtual_keys, others, concurrent.requested_time)
            my_keys = _new_keys(storage, mine.virtual_keys, [path], mine.requested_time)
            if pc.any(pc.is_in(my_keys, value_set=their_keys)).as_py():
                return Rejected(
                    RuleId.SAME_NEW_KEY,
                    "a concurrent commit inserted a key that this write inserts, too",
                    (concurrent,),
                    partitions=(partition_path,),
                )
    return None


def _resurrected_key(
    context: TableContext, mine: CommitFacts, commits: list[ConcurrentCommit]
) -> Rejected | None:
    """
    Reject if a concurrent commit inserted a key elsewhere that a log here may restore.

    Logs below this write's log had deleted the key. Exact, as ``_same_new_key``: it reads the
    keys of this write's logs and the other's new keys, only for partitions into which the other
    inserted. Lookups of a global index in files do not find a deleted key. The record index may, if
    the delete only hides a late row.
    """
    if (mine.whole_table and not mine.by_record_index) or not mine.appended:
        return None
    storage = context.ports.storage
    schema = TableSchema.from_avro(mine.schemas[0]).arrow
    for concurrent in commits:
        inserted: dict[tuple[str, ...], pa.Array] = {}  # most logs are compared with the same files
        for log in mine.appended:
            partition_path = log.file_group.partition_path
            where = None if mine.whole_table else partition_path
            if where is not None and where not in concurrent.write_set.inserting:
                continue
            others = _base_files(concurrent, where, but=log.file_group.file_id)
            if not others:
                continue
            if others not in inserted:
                inserted[others] = _new_keys(
                    storage, mine.virtual_keys, others, concurrent.requested_time
                )
            my_keys = keys_of_log(storage, log, schema, mine.virtual_keys)
            if pc.any(pc.is_in(my_keys, value_set=inserted[others])).as_py():
                return Rejected(
                    RuleId.SAME_NEW_KEY,
                    "a concurrent commit inserted a key that a log deleted and that this write writes",
                    (concurrent,),
                    (log.file_group,),
                    (partition_path,),
                )
    return None


def _new_key_in_log(
    context: TableContext, mine: CommitFacts, commits: list[ConcurrentCommit]
) -> Rejected | None:
    """
    Reject if a concurrent commit wrote, to a log, a key that this write inserts elsewhere.

    It is the reverse of ``_resurrected_key``: a log had deleted the key, so the record index does not
    have it. The concurrent writer found it in the base file below. The check is exact.
    """
    if not mine.by_record_index or not mine.inserted_into:
        return None
    storage = context.ports.storage
    schema = TableSchema.from_avro(mine.schemas[0]).arrow
    new: dict[str, pa.Array] = {}  # most files are compared with several logs
    for concurrent in commits:
        for log in _log_files(concurrent):
            group = log.file_group
            others = [
                path
                for path in mine.inserted_into
                if mine.whole_table or path.rpartition("/")[0] == group.partition_path
                if not path.rpartition("/")[2].startswith(f"{group.file_id}_")
            ]
            if not others:
                continue
            found = storage.stat(log.path)
            written = None
            if found is not None:
                whole = replace(log, size_bytes=found.size_bytes)
                written = keys_of_log(storage, whole, schema, mine.virtual_keys, with_deleted=False)
            for path in others:
                if path not in new:
                    new[path] = _new_keys(storage, mine.virtual_keys, [path], mine.requested_time)
                # The log of a commit is missing if a clean deleted it meanwhile: begin again.
                if written is None or pc.any(pc.is_in(new[path], value_set=written)).as_py():
                    return Rejected(
                        RuleId.SAME_NEW_KEY,
                        "a concurrent commit wrote a key that a log deleted and that this write inserts",
                        (concurrent,),
                        (group,),
                        (path.rpartition("/")[0],),
                    )
    return None


def _log_files(concurrent: ConcurrentCommit) -> list[LogFile]:
    """Return the log files of a commit, without their sizes."""
    found = (
        LogFile.found(item.file_group.partition_path, name, 0)
        for item in concurrent.write_set.file_groups
        for name in item.files
    )
    return [log for log in found if log is not None]


def _base_files(
    concurrent: ConcurrentCommit, partition_path: str | None, *, but: str
) -> tuple[str, ...]:
    """Return the commit's base files of a partition (None for all), except those of one file id."""
    return tuple(
        join(item.file_group.partition_path, name)
        for item in concurrent.write_set.file_groups
        if partition_path in (None, item.file_group.partition_path)
        and item.file_group.file_id != but
        for name in item.files
        if parse_base_file_name(name) is not None  # logs contain no new key
    )


def _same_bucket(mine: CommitFacts, commits: list[ConcurrentCommit]) -> Rejected | None:
    """
    Reject if a concurrent commit wrote a bucket of this write under another file id (fmt 9).

    Rows of one key would be in both file groups. The next attempt finds the other's file group.
    """
    mine_of: dict[tuple[str, int | None], FileGroupId] = {
        (item.file_group.partition_path, number): item.file_group
        for item in mine.write_set.file_groups
        if item.access is not Access.REPLACE
        and (number := bucket_of(item.file_group.file_id)) is not None
    }
    for concurrent in commits:
        conflicting = tuple(
            item.file_group
            for item in concurrent.write_set.file_groups
            if item.access is not Access.REPLACE
            and mine_of.get(
                (item.file_group.partition_path, bucket_of(item.file_group.file_id)),
                item.file_group,
            )
            != item.file_group
        )
        if conflicting:
            return Rejected(
                RuleId.SAME_FILE_GROUP_WRITTEN,
                "a concurrent commit created another file group for a bucket of this write",
                (concurrent,),
                conflicting,
            )
    return None


def _new_keys(
    storage: Storage, keys: VirtualKeys | None, paths: Sequence[str], requested_time: InstantTime
) -> pa.Array:
    if keys is not None:
        # Files do not record when a row was written, so all keys of both files are compared. A key
        # in two file groups is new in at least one of them.
        files = [read_virtual_keys(storage, path, keys) for path in paths]
        return pa.chunked_array([c for f in files for c in f.chunks], pa.string()).combine_chunks()
    pieces = [
        read_base_file(
            storage,
            path,
            columns=[KEY_COLUMN],
            row_filter=pc.field(COMMIT_TIME_COLUMN) == requested_time,
        ).column(KEY_COLUMN)
        for path in paths
    ]
    chunks = [chunk for piece in pieces for chunk in piece.chunks]
    return pa.chunked_array(chunks, pa.string()).combine_chunks()


# ---- Validate the reads of one attempt against all commits that became visible since
#
# Validation runs several times and each time gets only the new concurrent commits. The verdict on
# reads depends on all of them, so this object collects them during the attempt.


class ReadValidation:
    """
    The concurrent commits since a write's reads, as far as its attempt knows them.

    Args:
        context: The table; its limits name the isolation level, unless the reads do.
        started: The attempt.
        reads: The reads that its rows were computed from.
    """

    def __init__(self, context: TableContext, started: StartedWrite, reads: ReadSet) -> None:
        self._context = context
        self._announced_changes = started
        self._reads = reads
        self._rivals: dict[tuple[InstantTime, InstantTime], ConcurrentCommit] = {}
        # Every validation covers all of them, the last one under the lock; files are read once.
        self._missed: dict[tuple[InstantTime, FileGroupId], bool] = {}
        self._held_none: dict[FileGroupId, bool] = {}

    def validate_before_begin(self, mine: WriteSet) -> Rejected | None:
        """
        Validate commits between the reads and the begin, before any file is written.

        Outside: 1 get per slot in between that this process has not read; the times of the archived
        timeline if the timeline begins with another write now.
        """
        read, base = self._reads.snapshot, self._announced_changes.snapshot
        if self._may_miss_archived(read.active, base.active):
            return self._cannot_tell(
                "instants were archived after the rows of this write were read"
            )
        try:
            commits, _ = commits_since(
                self._context, BaseState.by(read), base.active, head=base.head
            )
        except MissingFileError:
            return self._cannot_tell(
                "commit slots were truncated after the rows of this write were read"
            )
        # The commit section applies and checks the rest. New reads would not show them yet.
        left = {one.completion_time for one in not_applied(self._context, base.head, base.active)}
        commits = [one for one in commits if one.completion_time not in left]
        return self.validate_reads(mine, commits)

    def _may_miss_archived(self, read: ActiveTimeline, base: ActiveTimeline) -> bool:
        """
        Return whether a write that completed between the reads and the begin is archived already.

        Outside: the times of the archived timeline if the timeline begins with another write now.
        """
        if read.first_write_time == base.first_write_time:
            return False
        archived = self._context.archived_timeline.times()
        if read.first_write_time is not None and read.first_write_time not in archived.completions:
            return True  # it is gone without a trace, and so may be others
        return archived.newest_completion > (read.newest_time or "")

    def reads_first(self, check: CommitCheck, mine: WriteSet) -> CommitCheck:
        """Return a pending commit's check that validates the reads first."""

        def both(
            timeline: ActiveTimeline,
            commits: list[ConcurrentCommit],
            config: Callable[[], TableConfig],
        ) -> Rejected | None:
            return self.validate_reads(mine, commits) or check(timeline, commits, config)

        return both

    def validate_reads(
        self, mine: WriteSet, commits: Sequence[ConcurrentCommit]
    ) -> Rejected | None:
        """
        Validate the reads against these concurrent commits and all earlier ones.

        Outside: 1 get per concurrent commit whose metadata is needed and unknown. If rows decide,
        the new files of a concurrent commit and the slices that it changed, once.
        """
        for concurrent in commits:
            self._rivals[concurrent.requested_time, concurrent.completion_time] = concurrent
        level = self._reads.level or self._context.limits.isolation
        return validate_reads(level, mine, self._reads.part, tuple(self._rivals.values()), self)

    # ---- Facts about a concurrent commit

    def only_inserted(self, concurrent: ConcurrentCommit, group: FileGroupId) -> bool:
        """See ``CommitProbe``; uses the counts of the commit's metadata."""
        metadata = self._metadata_of(concurrent)
        if metadata is None:
            return False
        stats = metadata.partition_to_write_stats.get(group.partition_path, ())
        mine = [stat for stat in stats if stat.file_id == group.file_id]
        return bool(mine) and not any(stat.num_update_writes or stat.num_deletes for stat in mine)

    def has_reads(self, concurrent: ConcurrentCommit) -> bool:
        """See ``CommitProbe``; True if the metadata cannot be read."""
        metadata = self._metadata_of(concurrent)
        return metadata is None or READS_KEY in metadata.extra_metadata

    def wrote_no_match(self, concurrent: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        """See ``CommitProbe``; exact, by the rows with the concurrent commit's commit time."""
        key = (concurrent.requested_time, item.file_group)
        if key not in self._missed:
            self._missed[key] = self._no_row_of(concurrent, item)
        return self._missed[key]

    def had_no_match(self, group: FileGroupId) -> bool:
        """See ``CommitProbe``; exact, by the slice that was read."""
        if group not in self._held_none:
            self._held_none[group] = self._no_row_in(group)
        return self._held_none[group]

    def _no_row_in(self, group: FileGroupId) -> bool:
        read = self._reads.snapshot
        try:
            found = view_of(self._context, read).latest_slice(group)
        except HoodooError:
            return False
        return found is not None and self._none_in(read, [found])

    def _no_row_of(self, concurrent: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        if not item.files:
            return False
        partition_path = item.file_group.partition_path
        files = [BaseFile.found(partition_path, name, 0) for name in item.files]
        slices = [
            FileSlice(
                file_group=item.file_group, base_instant_time=one.requested_time, base_file=one
            )
            for one in files
            if one is not None
        ]
        if len(slices) < len(files):
            return False  # rows of logs are not merged here
        fresh = None
        if self._context.config.populate_meta_fields:
            fresh = pc.field(COMMIT_TIME_COLUMN) == concurrent.requested_time
        return self._none_in(self._announced_changes.snapshot, slices, fresh)

    def _none_in(
        self, seen: Snapshot, slices: list[FileSlice], rows: pc.Expression | None = None
    ) -> bool:
        """Return whether no row of the slices is part of the reads."""
        if self._reads.filter is None:
            return False
        try:
            plan = plan_scan(
                self._context,
                seen,
                slices,
                columns=self._context.config.record_key_fields or None,
                filter=self._reads.filter,
                base_filter=rows,
            )
            return not any(batch.num_rows for batch in scan(self._context, plan))
        except HoodooError:
            return False  # cleaned, or of another schema: unknown

    def _metadata_of(self, concurrent: ConcurrentCommit) -> CommitMetadata | None:
        completed = Instant(
            action=concurrent.action.completes_as,
            requested_time=concurrent.requested_time,
            state=State.COMPLETED,
            completion_time=concurrent.completion_time,
        )
        try:
            return self._context.commits.read(completed)
        except MissingFileError:
            return None  # not applied yet, or archived since

    def _cannot_tell(self, why: str) -> Rejected:
        return Rejected(
            RuleId.READ_WAS_CHANGED,
            f"{why}, so it is unknown whether they still hold; read again, then write",
            (),
            retry_can_succeed=False,
        )
