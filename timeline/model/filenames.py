"""
The grammar of every file name a Hudi table uses, in both directions (fmt 2.2, 4.1, 5.1).

Names are untrusted on the way in: what does not match the grammar is not ours to read,
let alone to delete (SEC2). The instant table below is the only place that knows which
action is spelled how in which state; the round trip over its full product is a test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from timeline.errors import MalformedNameError
from timeline.model.instant import Action, Instant, State
from timeline.model.paths import check_partition_path, check_relative_path
from timeline.model.times import InstantTime

__all__ = [
    "BaseFileName",
    "IOType",
    "LogFileName",
    "data_file_time",
    "instant_file_name",
    "is_data_file",
    "marker_name",
    "parse_base_file_name",
    "parse_instant_name",
    "parse_log_file_name",
    "parse_marker_name",
    "pending_file_names",
]

#: (action, pending state) -> what follows the requested time. Completed names are
#: ``<requested>_<completion>.<completes_as>``, legacy ones lack the completion time. A
#: savepoint has no requested state.
PENDING_SUFFIXES: dict[tuple[Action, State], str] = {
    (Action.COMMIT, State.REQUESTED): ".commit.requested",
    (Action.COMMIT, State.INFLIGHT): ".inflight",
    (Action.DELTACOMMIT, State.REQUESTED): ".deltacommit.requested",
    (Action.DELTACOMMIT, State.INFLIGHT): ".deltacommit.inflight",
    (Action.REPLACECOMMIT, State.REQUESTED): ".replacecommit.requested",
    (Action.REPLACECOMMIT, State.INFLIGHT): ".replacecommit.inflight",
    (Action.COMPACTION, State.REQUESTED): ".compaction.requested",
    (Action.COMPACTION, State.INFLIGHT): ".compaction.inflight",
    (Action.LOGCOMPACTION, State.REQUESTED): ".logcompaction.requested",
    (Action.LOGCOMPACTION, State.INFLIGHT): ".logcompaction.inflight",
    (Action.CLUSTERING, State.REQUESTED): ".clustering.requested",
    (Action.CLUSTERING, State.INFLIGHT): ".clustering.inflight",
    (Action.CLEAN, State.REQUESTED): ".clean.requested",
    (Action.CLEAN, State.INFLIGHT): ".clean.inflight",
    (Action.ROLLBACK, State.REQUESTED): ".rollback.requested",
    (Action.ROLLBACK, State.INFLIGHT): ".rollback.inflight",
    (Action.RESTORE, State.REQUESTED): ".restore.requested",
    (Action.RESTORE, State.INFLIGHT): ".restore.inflight",
    (Action.SAVEPOINT, State.INFLIGHT): ".savepoint.inflight",
    (Action.INDEXING, State.REQUESTED): ".indexing.requested",
    (Action.INDEXING, State.INFLIGHT): ".indexing.inflight",
    (Action.SCHEMACOMMIT, State.REQUESTED): ".schemacommit.requested",
    (Action.SCHEMACOMMIT, State.INFLIGHT): ".schemacommit.inflight",
}
_PENDING_BY_SUFFIX = {suffix: key for key, suffix in PENDING_SUFFIXES.items()}
_COMPLETED_BY_SUFFIX = {
    "." + action.value: action for action in Action if action.completes_as is action
}

_INSTANT = re.compile(r"(\d{14}|\d{17})(?:_(\d{14}|\d{17}))?((?:\.[a-z]+){1,2})", re.ASCII)
_FILE_ID = r"[^._/\\\x00-\x1f]+"
_TOKEN = r"\d+-\d+-\d+"  # noqa: S105 - a file name part
_BASE = re.compile(rf"({_FILE_ID})_({_TOKEN})_(\d{{14}}|\d{{17}})\.parquet", re.ASCII)
_LOG = re.compile(
    rf"\.({_FILE_ID})_(\d{{14}}|\d{{17}})\.(log|archive)\.(\d+)(?:_({_TOKEN})(\.cdc)?)?",
    re.ASCII,
)
_MARKER = re.compile(r"(.+)\.marker\.(CREATE|MERGE|APPEND)")


class IOType(Enum):
    """What a marker announces (fmt 1.4); APPEND is read from old tables only."""

    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


@dataclass(frozen=True, slots=True)
class BaseFileName:
    """``<file id>_<write token>_<requested time>.parquet``."""

    file_id: str
    write_token: str
    requested_time: InstantTime

    @property
    def text(self) -> str:
        """The file's name."""
        return f"{self.file_id}_{self.write_token}_{self.requested_time}.parquet"


@dataclass(frozen=True, slots=True)
class LogFileName:
    """``.<file id>_<instant>.log.<version>_<write token>[.cdc]``."""

    file_id: str
    instant_time: InstantTime
    log_version: int
    write_token: str
    is_cdc: bool = False

    @property
    def text(self) -> str:
        """The file's name."""
        suffix = ".cdc" if self.is_cdc else ""
        token = f"_{self.write_token}" if self.write_token else ""
        return f".{self.file_id}_{self.instant_time}.log.{self.log_version}{token}{suffix}"


def instant_file_name(instant: Instant) -> str:
    """
    The file name of one state of an instant, of layout 1 when it is legacy.

    Raises:
        MalformedNameError: The action has no such state (a requested savepoint), or a
            completed instant lacks its completion time.
    """
    if instant.state is State.COMPLETED:
        if instant.completion_time is None:
            raise MalformedNameError(
                f"a completed instant has no completion time: {instant}", path=str(instant)
            )
        name = instant.action.completes_as.value
        if instant.legacy:
            return f"{instant.requested_time}.{name}"
        return f"{instant.requested_time}_{instant.completion_time}.{name}"
    suffix = PENDING_SUFFIXES.get((instant.action, instant.state))
    if suffix is None:
        raise MalformedNameError(f"no file stands for this state: {instant}", path=str(instant))
    return instant.requested_time + suffix


def pending_file_names(action: Action, requested_time: InstantTime) -> tuple[str, ...]:
    """The inflight and requested file names of an instant, in the order a rollback deletes them."""
    return tuple(
        requested_time + PENDING_SUFFIXES[action, state]
        for state in (State.INFLIGHT, State.REQUESTED)
        if (action, state) in PENDING_SUFFIXES
    )


@lru_cache(maxsize=8_192)
def parse_instant_name(name: str) -> Instant | None:
    """
    The instant a file of the timeline folder stands for, or None for any other file.

    A completed name without a completion time gives a legacy instant that completed when it
    was requested; the caller that knows the file's age may correct it (fmt 2.2).
    """
    match = _INSTANT.fullmatch(name)
    if match is None:
        return None
    requested, completion, suffix = match.groups()
    pending = _PENDING_BY_SUFFIX.get(suffix)
    if pending is not None:
        if completion is not None:
            return None
        return Instant(action=pending[0], requested_time=requested, state=pending[1])
    action = _COMPLETED_BY_SUFFIX.get(suffix)
    if action is None:
        return None
    return Instant(
        action=action,
        requested_time=requested,
        state=State.COMPLETED,
        completion_time=completion or requested,
        legacy=completion is None,
    )


def parse_base_file_name(name: str) -> BaseFileName | None:
    """The parts of a base file's name, or None when it is something else."""
    match = _BASE.fullmatch(name)
    return BaseFileName(*match.groups()) if match else None


def parse_log_file_name(name: str) -> LogFileName | None:
    """The parts of a log file's name, or None when it is something else."""
    match = _LOG.fullmatch(name)
    if match is None:
        return None
    file_id, instant, _, version, token, cdc = match.groups()
    return LogFileName(file_id, instant, int(version), token or "", is_cdc=cdc is not None)


def data_file_time(name: str) -> InstantTime | None:
    """The instant in the name of a base or log file; None for any other file."""
    base = parse_base_file_name(name)
    if base is not None:
        return base.requested_time
    log = parse_log_file_name(name)
    return None if log is None else log.instant_time


def is_data_file(path: str) -> bool:
    """Whether a path names a base or log file in a partition of the table (SEC1, SEC2)."""
    try:
        check_relative_path(path)
        check_partition_path(path.rpartition("/")[0])
    except MalformedNameError:
        return False
    return data_file_time(path.rpartition("/")[2]) is not None


def marker_name(data_file_name: str, io_type: IOType) -> str:
    """The marker's file name for a data file (fmt 1.4)."""
    return f"{data_file_name}.marker.{io_type.value}"


def parse_marker_name(name: str) -> tuple[str, IOType] | None:
    """
    The data file name and kind a marker stands for.

    None when the name is no marker, or names anything but a base or log file (SEC2).
    """
    match = _MARKER.fullmatch(name)
    if match is None:
        return None
    data_file, io_type = match.groups()
    if parse_base_file_name(data_file) is None and parse_log_file_name(data_file) is None:
        return None
    return data_file, IOType(io_type)
