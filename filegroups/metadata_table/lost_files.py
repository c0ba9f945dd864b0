"""Notice a lost file of the list of files: without it the metadata table would hide rows."""

from __future__ import annotations

from collections.abc import Sequence

from timeline.errors import MissingFileError
from timeline.model.file_names import METADATA_TABLE
from timeline.model.file_slice import BaseFile, LogFile
from timeline.model.instant import Action, Instant
from timeline.model.instant_time import EARLIEST
from timeline.model.metadata_table import BUILDING, PartitionKind
from timeline.snapshot import Snapshot

_FOLDER = f"{PartitionKind.FILES.value}/"


def refuse_lost_files(own: Snapshot, bases: Sequence[BaseFile], logs: Sequence[LogFile]) -> None:
    """
    Refuse a list of files that lacks a file which its timeline names.

    ``files`` has one file group, and nearly each instant writes into it. So only an instant
    without a file there is read, to see whether it names one. The loss of the first file after a
    build is not noticed, because a build replaces log files, too.

    Args:
        own: The snapshot of the metadata table's timeline.
        bases: Base files in the folder of ``files``.
        logs: Log files in that folder.

    Raises:
        MissingFileError: A file is missing (``metadata_table_missing``).

    Outside: 1 get for each instant that wrote only into other partitions.
    """
    whole, added = {one.requested_time for one in bases}, {one.instant_time for one in logs}
    newest = merged = max(whole, default="")
    if newest.startswith(BUILDING):
        # A build took commits that completed before it, and their log files are gone. The first
        # commit with a log file came after it.
        ends = [own.completions[time] for time in added if time in own.completions]
        merged = min((end for end in ends if end > own.completions.get(newest, "")), default="9")

    def is_unseen(one: Instant) -> bool:
        time = one.requested_time
        if time == EARLIEST or one.action is Action.COMMIT:
            return time not in whole and time > newest
        is_merged = (one.completion_time or "") <= merged
        return time not in added and not is_merged and not time.startswith(BUILDING)

    names = {one.name for one in bases} | {one.name for one in logs}
    for one in filter(is_unseen, own.active.completed_writes):
        for path in own.commits.read(one).written_paths():
            if path.startswith(_FOLDER) and path.removeprefix(_FOLDER) not in names:
                whole_path = f"{METADATA_TABLE}/{path}"
                raise MissingFileError(
                    "the metadata table lost a file of its list of files: run 'hoodoo metadata "
                    f"rebuild TABLE': {whole_path}",
                    kind="metadata_table_missing",
                    path=whole_path,
                )
