"""Base files, log files and file slices: how the files of a file group form its slices (fmt 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_names import join, parse_base_file_name, parse_log_file_name
from timeline.model.instant_time import InstantTime

# ---- Files of a file group


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """A base file; its requested time is that of the instant that wrote it."""

    file_group: FileGroupId
    name: str
    requested_time: InstantTime
    size_bytes: int

    @classmethod
    def found(cls, partition_path: str, name: str, size_bytes: int) -> BaseFile | None:
        """Return the base file of this name in a partition; None if the name is no base file's."""
        parsed = parse_base_file_name(name)
        if parsed is None:
            return None
        return cls(
            file_group=FileGroupId(partition_path, parsed.file_id),
            name=name,
            requested_time=parsed.requested_time,
            size_bytes=size_bytes,
        )

    @property
    def path(self) -> str:
        """Path relative to the table."""
        return join(self.file_group.partition_path, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A log file; in table versions 8 and 9 it belongs to exactly one instant."""

    file_group: FileGroupId
    name: str
    instant_time: InstantTime
    log_version: int
    write_token: str
    size_bytes: int

    @classmethod
    def found(cls, partition_path: str, name: str, size_bytes: int) -> LogFile | None:
        """Return the log file of this name in a partition; None for change logs and other names."""
        parsed = parse_log_file_name(name)
        if parsed is None or parsed.is_cdc:
            return None
        return cls(
            file_group=FileGroupId(partition_path, parsed.file_id),
            name=name,
            instant_time=parsed.instant_time,
            log_version=parsed.log_version,
            write_token=parsed.write_token,
            size_bytes=size_bytes,
        )

    @property
    def path(self) -> str:
        """Path relative to the table."""
        return join(self.file_group.partition_path, self.name)

    @property
    def order(self) -> tuple[InstantTime, int, str]:
        """The order in which a slice's logs are read (fmt 5.7): by requested time first."""
        return (self.instant_time, self.log_version, self.write_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """
    A base file and the log files on top of it; a slice of only logs has no base file.

    In an incremental read the slice has only the files of the read range.
    """

    file_group: FileGroupId
    base_instant_time: InstantTime
    base_file: BaseFile | None
    log_files: tuple[LogFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        logs = sum(log.size_bytes for log in self.log_files)
        return logs + (self.base_file.size_bytes if self.base_file else 0)


# ---- Assign base and log files to the slices of their file group (fmt 6.1, NBCC-3)
# Every base file opens a slice with its requested time as key. A pending compaction opens an empty
# slice with its own requested time. A log file joins the slice with the greatest key at or below its
# *completion* time: logs that complete after a compaction was requested belong on top of it,
# whenever they began. A log without any slice opens one with its requested time. Within a slice logs
# keep the order of requested times (fmt 5.7).
#
# Example, also a test: base t10; log [t21,t40]; log [t30,t50]; compaction t60 done; log [t35,t90].
# Slices: t60 = base60 + log35..90, t10 = base10 + the other two.

CompletionOf = Callable[[InstantTime], InstantTime | None]


class Slicing(Enum):
    """How a log file finds its slice: by its completion time, or by its name (version 6)."""

    BY_COMPLETION = "completion time"
    BY_NAME = "the base instant in its name"


def slice_file_group(
    file_group: FileGroupId,
    base_files: Iterable[BaseFile],
    log_files: Iterable[LogFile],
    *,
    completion_of: CompletionOf,
    pending_compactions: Iterable[InstantTime] = (),
    slicing: Slicing = Slicing.BY_COMPLETION,
) -> list[FileSlice]:
    """
    Build the slices of one file group, oldest first.

    Args:
        file_group: The file group of the files.
        base_files: Visible base files, at most one per requested time.
        log_files: Visible log files.
        completion_of: Requested time -> completion time of a visible instant; None if it is not
            known, then the log joins the newest slice.
        pending_compactions: Requested times of pending compactions of this file group.
        slicing: With ``BY_NAME`` a log always joins the slice of the instant in its name.
    """
    bases = {base.requested_time: base for base in base_files}
    keys = sorted({*bases, *pending_compactions})
    logs_of: dict[InstantTime, list[LogFile]] = {key: [] for key in keys}
    for log in sorted(log_files, key=lambda item: item.order):
        if slicing is Slicing.BY_NAME:
            candidates = [key for key in keys if key == log.instant_time]
        else:
            completed = completion_of(log.instant_time)
            candidates = keys if completed is None else [key for key in keys if key <= completed]
        if not candidates:
            keys = sorted([*keys, log.instant_time])
            logs_of[log.instant_time] = []
            candidates = [log.instant_time]
        logs_of[candidates[-1]].append(log)
    return [
        FileSlice(
            file_group=file_group,
            base_instant_time=key,
            base_file=bases.get(key),
            log_files=tuple(logs_of[key]),
        )
        for key in keys
    ]


def slice_files(
    base_files: Iterable[BaseFile],
    log_files: Iterable[LogFile],
    *,
    completion_of: CompletionOf,
    pending_compactions: dict[FileGroupId, list[InstantTime]] | None = None,
    slicing: Slicing = Slicing.BY_COMPLETION,
) -> dict[FileGroupId, list[FileSlice]]:
    """Build the slices of all file groups of one partition, oldest first, sorted by id."""

    def by_group(file: BaseFile | LogFile) -> FileGroupId:
        return file.file_group

    bases = {
        group: list(files)
        for group, files in groupby(sorted(base_files, key=by_group), key=by_group)
    }
    logs = {
        group: list(files)
        for group, files in groupby(sorted(log_files, key=by_group), key=by_group)
    }
    plans = pending_compactions or {}
    return {
        group: slice_file_group(
            group,
            bases.get(group, ()),
            logs.get(group, ()),
            completion_of=completion_of,
            pending_compactions=plans.get(group, ()),
            slicing=slicing,
        )
        for group in sorted({*bases, *logs})
    }


def merged_slice(
    slices: Sequence[FileSlice], pending_compactions: Container[InstantTime] = ()
) -> FileSlice:
    """
    Return the slice that has the newest rows of a file group (fmt 6.2).

    Args:
        slices: Of one file group, oldest first; at least one.
        pending_compactions: Requested times of its pending compactions.

    Returns:
        The newest slice. If a pending compaction has not written its base file yet, the slice
        below adds its own base file and logs. Slices that have only logs are merged.
    """
    newest = slices[-1]
    for below in reversed(slices[:-1]):
        pending = newest.base_instant_time in pending_compactions
        if newest.base_file is not None or not (pending or below.base_file is None):
            break
        newest = replace(below, log_files=(*below.log_files, *newest.log_files))
    return newest
