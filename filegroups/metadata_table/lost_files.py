"""Notice a lost file of the metadata table: without it rows would be hidden, or written twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from timeline.errors import MissingFileError
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.file_names import METADATA_TABLE
from timeline.model.file_slice import BaseFile, LogFile
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import InstantTime
from timeline.model.metadata_table import BUILDING, PartitionKind
from timeline.snapshot import Snapshot

#: A lost record of these hides rows, or makes a known key a new one. Without one of the others more
#: files are read.
NEEDS_ALL_FILES = frozenset(
    {
        PartitionKind.FILES,
        PartitionKind.PARTITION_STATS,
        PartitionKind.RECORD_INDEX,
        PartitionKind.SECONDARY_INDEX,
    }
)


def refuse_lost_files(
    own: Snapshot,
    partition: str,
    bases: Sequence[BaseFile],
    logs: Sequence[LogFile],
    read: Callable[[Sequence[Instant]], Sequence[CommitMetadata]],
) -> None:
    """
    Refuse a partition of the metadata table that lacks a file which its timeline names.

    Instants above the newest base files are read. In a partition of one file group, such as
    ``files``, nearly each instant writes into it, so only one without a file there is read. The
    loss of the first file after a build is not noticed, because a build replaces log files, too.

    Args:
        own: The snapshot of the metadata table's timeline.
        partition: Of the metadata table.
        bases: Base files in its folder.
        logs: Log files in its folder.
        read: Reads the metadata of completed writes of ``own``.

    Raises:
        MissingFileError: A file is missing (``metadata_table_missing``).

    Outside: as ``read``.
    """
    if not (bases or logs):
        return
    needed = _needed(own, bases, logs)
    oldest_base = min(needed.base_times.values())
    oldest_merge = min(map(needed.merged_up_to, needed.base_times))
    times = {one.requested_time for one in bases}, {one.instant_time for one in logs}
    is_one = len(needed.base_times) == 1
    present = times if is_one else (set[InstantTime](), set[InstantTime]())

    def may_miss(one: Instant) -> bool:
        time = one.requested_time
        if time.startswith(BUILDING):  # a file group without a base file may have lost it
            return time not in present[0] and time >= needed.build and not oldest_base
        if one.action is Action.COMMIT:
            is_newer = time > oldest_base and (one.completion_time or "") > needed.built_at
            return is_newer and time not in present[0]
        return time not in present[1] and (one.completion_time or "") > oldest_merge

    folder = f"{partition}/"
    names = {one.name for one in bases} | {one.name for one in logs}
    instants = [one for one in own.active.completed_writes if may_miss(one)]
    for one, metadata in zip(instants, read(instants), strict=True):
        for path in metadata.written_paths():
            name = path.removeprefix(folder)
            if name != path and name not in names and needed.names(name, one):
                raise _lost(partition, f"{METADATA_TABLE}/{path}")


@dataclass(frozen=True, slots=True)
class _Needed:
    """
    Which files a partition needs: base files since its newest build, and log files above them.

    A build replaces the files of all file groups; one without records gets a log file only.

    ``base_times`` are the requested times of the newest base files by file id, "" without one.
    ``build`` is the newest build, "" for none, and ``built_at`` its completion time, or a later time
    if it is archived. Commits up to ``after_build`` may lack their log files.
    """

    base_times: Mapping[str, InstantTime]
    build: InstantTime
    built_at: InstantTime
    after_build: InstantTime

    def merged_up_to(self, file_id: str) -> InstantTime:
        """Return the completion time up to which the base file of a file group has all records."""
        base_time = self.base_times.get(file_id, "")
        return base_time if base_time > self.build else self.after_build

    def names(self, name: str, one: Instant) -> bool:
        """Return whether a file of an instant is above the newest base file of its file group."""
        file_id = name.removeprefix(".").partition("_")[0]
        completion_time = one.completion_time or ""
        if name.startswith("."):
            return completion_time > self.merged_up_to(file_id)
        is_build = one.requested_time.startswith(BUILDING)
        is_newer = one.requested_time >= self.build if is_build else completion_time > self.built_at
        return is_newer and one.requested_time > self.base_times.get(file_id, "")


def _needed(own: Snapshot, bases: Sequence[BaseFile], logs: Sequence[LogFile]) -> _Needed:
    base_times: dict[str, InstantTime] = {one.file_group.file_id: "" for one in logs}
    for base in bases:
        file_id = base.file_group.file_id
        base_times[file_id] = max(base_times.get(file_id, ""), base.requested_time)
    times = {one.requested_time for one in bases} | {one.instant_time for one in logs}
    build = max((time for time in times if time.startswith(BUILDING)), default="")
    built_at = own.completions.get(build, "")
    # A build took commits that completed before it, and their log files are gone. The first commit
    # with a log file came after it.
    ends = [own.completions.get(one.instant_time, "") for one in logs]
    after_build = min((end for end in ends if end > built_at), default="9") if build else ""
    return _Needed(base_times, build, built_at or after_build, after_build)


def _lost(partition: str, path: str) -> MissingFileError:
    what, step = "an index", f"rebuild TABLE {partition}"
    if partition == PartitionKind.FILES.value:
        what, step = "its list of files", "rebuild TABLE"
    return MissingFileError(
        f"the metadata table lost a file of {what}: run 'hoodoo metadata {step}': {path}",
        kind="metadata_table_missing",
        path=path,
    )
