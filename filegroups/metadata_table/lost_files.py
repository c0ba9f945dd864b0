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
    groups = _newest_bases(own, bases, logs)
    if not groups:
        return
    oldest_base = min(one.base_time for one in groups.values())
    oldest_build = min(one.built_at for one in groups.values())
    oldest_merge = min(one.merged_up_to for one in groups.values())
    times = {one.requested_time for one in bases}, {one.instant_time for one in logs}
    present = times if len(groups) == 1 else (set[InstantTime](), set[InstantTime]())

    def may_miss(one: Instant) -> bool:
        time = one.requested_time
        if one.action is Action.COMMIT:
            is_newer = time > oldest_base and (one.completion_time or "") > oldest_build
            return is_newer and time not in present[0]
        if time.startswith(BUILDING):  # a file group without a base file may have lost it
            return time not in present[0] and not oldest_base
        return time not in present[1] and (one.completion_time or "") > oldest_merge

    folder = f"{partition}/"
    names = {one.name for one in bases} | {one.name for one in logs}
    instants = [one for one in own.active.completed_writes if may_miss(one)]
    for one, metadata in zip(instants, read(instants), strict=True):
        for path in metadata.written_paths():
            name = path.removeprefix(folder)
            if name != path and name not in names and _counts(groups, name, one):
                raise _lost(partition, f"{METADATA_TABLE}/{path}")


@dataclass(frozen=True, slots=True)
class _NewestBase:
    """
    The newest base file of a file group.

    ``built_at`` is when the build completed that wrote it, else "". ``merged_up_to`` is the
    completion time up to which it has all records.
    """

    base_time: InstantTime = ""
    built_at: InstantTime = ""
    merged_up_to: InstantTime = ""


def _newest_bases(
    own: Snapshot, bases: Sequence[BaseFile], logs: Sequence[LogFile]
) -> Mapping[str, _NewestBase]:
    """Return the newest base file of each file group; a build may have left only a log file."""
    newest: dict[str, InstantTime] = {one.file_group.file_id: "" for one in logs}
    for base in bases:
        file_id = base.file_group.file_id
        newest[file_id] = max(newest.get(file_id, ""), base.requested_time)
    built = {
        one.file_group.file_id: one.instant_time
        for one in logs
        if one.instant_time.startswith(BUILDING)
    }
    ends = sorted({own.completions.get(one.instant_time, "") for one in logs})
    found = {}
    for file_id, base_time in newest.items():
        time = base_time or built.get(file_id, "")
        built_at, merged_up_to = "", time
        if time.startswith(BUILDING):
            # A build took commits that completed before it, and their log files are gone. The first
            # commit with a log file came after it.
            built_at = own.completions.get(time, "")
            merged_up_to = next((end for end in ends if end > built_at), "9")
        found[file_id] = _NewestBase(base_time, built_at, merged_up_to)
    return found


def _counts(groups: Mapping[str, _NewestBase], name: str, one: Instant) -> bool:
    """Return whether a file of an instant is above the newest base file of its file group."""
    group = groups.get(name.removeprefix(".").partition("_")[0], _NewestBase())
    if name.startswith("."):
        return (one.completion_time or "") > group.merged_up_to
    is_built = one.requested_time.startswith(BUILDING)
    is_newer = is_built or (one.completion_time or "") > group.built_at
    return is_newer and one.requested_time > group.base_time


def _lost(partition: str, path: str) -> MissingFileError:
    what, step = "an index", f"rebuild TABLE {partition}"
    if partition == PartitionKind.FILES.value:
        what, step = "its list of files", "rebuild TABLE"
    return MissingFileError(
        f"the metadata table lost a file of {what}: run 'hoodoo metadata {step}': {path}",
        kind="metadata_table_missing",
        path=path,
    )
