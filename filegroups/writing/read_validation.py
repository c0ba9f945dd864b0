"""
Validate the reads of one attempt against all commits that became visible since.

Validation runs several times and each time gets only the new concurrent commits. The verdict on
reads depends on all of them, so this object collects them during the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow.compute as pc

from filegroups.reading.read import READS_KEY, ReadSet, plan_scan, scan, view_of
from filegroups.schema.schema import COMMIT_TIME_COLUMN
from timeline.active_timeline import ActiveTimeline
from timeline.commit.apply import not_applied
from timeline.commit.begin import StartedWrite
from timeline.commit.commit import BaseState, CommitCheck, commits_since
from timeline.context import TableContext
from timeline.errors import HoodooError, MissingFileError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import BaseFile, FileSlice
from timeline.model.instant import Instant, State
from timeline.model.instant_time import InstantTime
from timeline.model.table_config import TableConfig
from timeline.model.write_set import AccessedFileGroup, FileGroupId, WriteSet
from timeline.rules.conflicts import ConcurrentCommit, Rejected, RuleId
from timeline.rules.isolation import validate_reads
from timeline.snapshot import Snapshot

__all__ = ["ReadValidation"]


class ReadValidation:
    """
    The concurrent commits since a write's reads, as far as its attempt knows them.

    Args:
        context: The table; its limits name the isolation level, unless the reads do.
        begun: The attempt.
        reads: The reads that its rows were computed from.
    """

    def __init__(self, context: TableContext, begun: StartedWrite, reads: ReadSet) -> None:
        self._context = context
        self._begun = begun
        self._reads = reads
        self._rivals: dict[tuple[InstantTime, InstantTime], ConcurrentCommit] = {}
        # Every validation covers all of them, the last one under the lock; files are read once.
        self._missed: dict[tuple[InstantTime, FileGroupId], bool] = {}
        self._held_none: dict[FileGroupId, bool] = {}

    def before_begin(self, mine: WriteSet) -> Rejected | None:
        """
        Validate commits between the reads and the begin, before any file is written.

        Outside: 1 get per slot in between that this process has not read; the times of the archived
        timeline if, at the time of the read, the timeline had no write except savepointed ones.
        """
        read, base = self._reads.snapshot, self._begun.snapshot
        if self._may_miss_archived(read.active, base.active):
            return self._cannot_tell(
                "the timeline begins elsewhere than when this write's rows were read"
            )
        try:
            rivals, _ = commits_since(
                self._context, BaseState.by(read), base.active, head=base.head
            )
        except MissingFileError:
            return self._cannot_tell(
                "commit slots were collected since this write's rows were read"
            )
        # The commit section applies and checks the rest. New reads would not show them yet.
        left = {one.completion_time for one in not_applied(self._context, base.head, base.active)}
        rivals = [one for one in rivals if one.completion_time not in left]
        return self.judge(mine, rivals)

    def _may_miss_archived(self, read: ActiveTimeline, base: ActiveTimeline) -> bool:
        """
        Return whether writes between the reads and the begin may be archived already.

        On an empty table, and if savepoints keep every write, the timeline begins with this write's
        own instant. Then the archived timeline shows what completed after the reads.
        """
        if read.first_write_time == base.first_write_time:
            return False
        if read.first_write_time is not None:
            return True
        completed = self._context.history.times().newest_completion
        return completed > (read.newest_time or "")

    def before(self, check: CommitCheck, mine: WriteSet) -> CommitCheck:
        """Return a pending commit's check that validates the reads first."""

        def both(
            timeline: ActiveTimeline,
            rivals: list[ConcurrentCommit],
            config: Callable[[], TableConfig],
        ) -> Rejected | None:
            return self.judge(mine, rivals) or check(timeline, rivals, config)

        return both

    def judge(self, mine: WriteSet, rivals: Sequence[ConcurrentCommit]) -> Rejected | None:
        """
        Validate the reads against these concurrent commits and all earlier ones.

        Outside: 1 get per concurrent commit whose metadata is needed and unknown. If rows decide,
        the new files of a concurrent commit and the slices that it changed, once.
        """
        for rival in rivals:
            self._rivals[rival.requested_time, rival.completion_time] = rival
        level = self._reads.level or self._context.limits.isolation
        return validate_reads(level, mine, self._reads.part, tuple(self._rivals.values()), self)

    # ---- Facts about a concurrent commit

    def only_inserted(self, rival: ConcurrentCommit, group: FileGroupId) -> bool:
        """See ``CommitProbe``; uses the counts of the commit's metadata."""
        metadata = self._metadata_of(rival)
        if metadata is None:
            return False
        stats = metadata.partition_to_write_stats.get(group.partition_path, ())
        mine = [stat for stat in stats if stat.file_id == group.file_id]
        return bool(mine) and not any(stat.num_update_writes or stat.num_deletes for stat in mine)

    def has_reads(self, rival: ConcurrentCommit) -> bool:
        """See ``CommitProbe``; True if the metadata cannot be read."""
        metadata = self._metadata_of(rival)
        return metadata is None or READS_KEY in metadata.extra_metadata

    def misses(self, rival: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        """See ``CommitProbe``; exact, by the rows with the concurrent commit's commit time."""
        key = (rival.requested_time, item.file_group)
        if key not in self._missed:
            self._missed[key] = self._no_row_of(rival, item)
        return self._missed[key]

    def held_none(self, group: FileGroupId) -> bool:
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

    def _no_row_of(self, rival: ConcurrentCommit, item: AccessedFileGroup) -> bool:
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
            fresh = pc.field(COMMIT_TIME_COLUMN) == rival.requested_time
        return self._none_in(self._begun.snapshot, slices, fresh)

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

    def _metadata_of(self, rival: ConcurrentCommit) -> CommitMetadata | None:
        completed = Instant(
            action=rival.action.completes_as,
            requested_time=rival.requested_time,
            state=State.COMPLETED,
            completion_time=rival.completion_time,
        )
        try:
            return self._context.commits.read(completed)
        except MissingFileError:
            return None  # not applied yet, or archived since

    def _cannot_tell(self, why: str) -> Rejected:
        return Rejected(
            RuleId.READ_WAS_CHANGED,
            f"{why}, so nobody can tell whether they still hold; read again, then write",
            (),
            retry_can_succeed=False,
        )
