"""
The reads of one attempt, judged against everything that became visible since they were made.

Publication looks several times and each time at what is new alone; what a write may pass
depends on all of it, so the rivals are gathered here for as long as the attempt goes on.
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
    What became visible since a write read, as far as its attempt has looked.

    Args:
        context: The table; its limits name the isolation level, unless the reads do.
        begun: The attempt.
        reads: What its rows were made from.
    """

    def __init__(self, context: TableContext, begun: StartedWrite, reads: ReadSet) -> None:
        self._context = context
        self._begun = begun
        self._reads = reads
        self._rivals: dict[tuple[InstantTime, InstantTime], ConcurrentCommit] = {}
        # Every look judges all of them, the last one under the lock: files are read once.
        self._missed: dict[tuple[InstantTime, FileGroupId], bool] = {}
        self._held_none: dict[FileGroupId, bool] = {}

    def before_begin(self, mine: WriteSet) -> Rejected | None:
        """
        Judge what was published between the reads and the begin, before any file is written.

        Outside: 1 get per slot in between that this process has not seen; the history's times
        where the timeline had no write at the read that no savepoint keeps.
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
        # Left to the turn, which settles them first: reading again would not show them yet.
        left = {one.completion_time for one in not_applied(self._context, base.head, base.active)}
        rivals = [one for one in rivals if one.completion_time not in left]
        return self.judge(mine, rivals)

    def _may_miss_archived(self, read: ActiveTimeline, base: ActiveTimeline) -> bool:
        """
        Whether writes that came between two looks may be archived already.

        On an empty table, and where savepoints keep every write, the timeline begins with this
        write's own instant. The history then tells what completed after all that was read.
        """
        if read.first_write_time == base.first_write_time:
            return False
        if read.first_write_time is not None:
            return True
        completed = self._context.history.times().newest_completion
        return completed > (read.newest_time or "")

    def before(self, check: CommitCheck, mine: WriteSet) -> CommitCheck:
        """A candidate's check with the reads judged first."""

        def both(
            timeline: ActiveTimeline,
            rivals: list[ConcurrentCommit],
            config: Callable[[], TableConfig],
        ) -> Rejected | None:
            return self.judge(mine, rivals) or check(timeline, rivals, config)

        return both

    def judge(self, mine: WriteSet, rivals: Sequence[ConcurrentCommit]) -> Rejected | None:
        """
        Judge the reads against these rivals and all that were met before.

        Outside: 1 get per rival whose metadata must be looked at and that is not known; where
        rows decide, the new files of a rival and the slices of mine that it changed, once.
        """
        for rival in rivals:
            self._rivals[rival.requested_time, rival.completion_time] = rival
        level = self._reads.level or self._context.limits.isolation
        return validate_reads(level, mine, self._reads.part, tuple(self._rivals.values()), self)

    # ---- what a rival did

    def only_inserted(self, rival: ConcurrentCommit, group: FileGroupId) -> bool:
        """As of ``Looks``, by the counts of its commit."""
        metadata = self._metadata_of(rival)
        if metadata is None:
            return False
        stats = metadata.partition_to_write_stats.get(group.partition_path, ())
        mine = [stat for stat in stats if stat.file_id == group.file_id]
        return bool(mine) and not any(stat.num_update_writes or stat.num_deletes for stat in mine)

    def has_reads(self, rival: ConcurrentCommit) -> bool:
        """As of ``Looks``; what cannot be looked at may have."""
        metadata = self._metadata_of(rival)
        return metadata is None or READS_KEY in metadata.extra_metadata

    def misses(self, rival: ConcurrentCommit, item: AccessedFileGroup) -> bool:
        """As of ``Looks``: exact, by the rows that carry the rival's commit time."""
        key = (rival.requested_time, item.file_group)
        if key not in self._missed:
            self._missed[key] = self._no_row_of(rival, item)
        return self._missed[key]

    def held_none(self, group: FileGroupId) -> bool:
        """As of ``Looks``: exact, by the slice that was read."""
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
        """Whether no row that was asked for is among these."""
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
            return False  # cleaned, or of another schema: nobody can tell

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
            return None  # not settled yet, or archived since

    def _cannot_tell(self, why: str) -> Rejected:
        return Rejected(
            RuleId.READ_WAS_CHANGED,
            f"{why}, so nobody can tell whether they still hold; read again, then write",
            (),
            retry_can_succeed=False,
        )
