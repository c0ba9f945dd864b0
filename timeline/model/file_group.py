"""Base files, log files and file slices: what a file group consists of at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.model.claim import FileGroupId
from timeline.model.filenames import parse_base_file_name, parse_log_file_name
from timeline.model.paths import join
from timeline.model.times import InstantTime

__all__ = ["BaseFile", "FileSlice", "LogFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """A columnar file; its requested time is that of the instant that wrote it."""

    file_group: FileGroupId
    name: str
    requested_time: InstantTime
    size_bytes: int

    @classmethod
    def found(cls, partition_path: str, name: str, size_bytes: int) -> BaseFile | None:
        """The base file of a name in a partition; None when the name is no base file's."""
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
    """Appended changes; in table versions 8 and 9 it belongs to exactly one instant."""

    file_group: FileGroupId
    name: str
    instant_time: InstantTime
    log_version: int
    write_token: str
    size_bytes: int

    @classmethod
    def found(cls, partition_path: str, name: str, size_bytes: int) -> LogFile | None:
        """The log file of a name in a partition; None for change logs and all other names."""
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
        """Logs of a slice are read in this order (fmt 5.7): by requested time, not completion."""
        return (self.instant_time, self.log_version, self.write_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """
    A base file and the log files on top of it; a slice of logs alone has no base file.

    What an incremental read takes of a file group is a slice of the files of its range.
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
