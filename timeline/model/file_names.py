"""Paths and file names of a table, and the file slices of a file group (fmt 1, 2.2, 4.1, 5.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import groupby

from timeline.errors import CorruptTableError, InvalidInputError, MalformedNameError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.instant import Action, Instant, InstantTime, State

# ---- Paths below a table (SEC1, SEC2)
# Names come from data (partition values), from the table's own files (plans, markers, metadata)
# and from users. They are untrusted until a function here has checked them.

_SEGMENT_BYTES_MAX = 255
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


def _refuse(path: str, why: str) -> MalformedNameError:
    return MalformedNameError(
        f"{why}. Nothing was changed; correct the name, or the file that contains it: {path!r}",
        path=path,
    )


def check_relative_path(path: str) -> str:
    """
    Return ``path`` if it is strictly below the table.

    Raises:
        MalformedNameError: Empty, absolute, with empty, ``.`` or ``..`` segments, with control
            characters, backslashes or a segment above 255 bytes.
    """
    if not path:
        raise _refuse(path, "an empty path")
    if _FORBIDDEN.search(path):
        raise _refuse(path, "a path with control characters or backslashes")
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            raise _refuse(path, "a path that is absolute or leads out of its folder")
        if len(segment) > 63 and len(segment.encode()) > _SEGMENT_BYTES_MAX:
            raise _refuse(path, "a path with a segment above 255 bytes")
    return path


def check_partition_path(partition_path: str) -> str:
    """
    Return a partition path that may be used as a folder; ``""`` is the unpartitioned table.

    Raises:
        MalformedNameError: As ``check_relative_path``, or a path into ``.hoodie``.
    """
    if partition_path == "":
        return partition_path
    check_relative_path(partition_path)
    if partition_path == ".hoodie" or partition_path.startswith(".hoodie/"):
        raise _refuse(partition_path, "a partition path inside the table's own folder")
    return partition_path


def listed(names: object, what: str) -> tuple[str, ...]:
    """
    Return a caller's names as a tuple.

    Raises:
        InvalidInputError: A single text, whose letters could be names; no list; or an item that is
            no text, because a number would equal no name.
    """
    if isinstance(names, str):
        raise InvalidInputError(
            f"{what} must be a list of texts: put the text into brackets: [{names!r}]",
            kind="one_text",
        )
    found = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(issubclass(kind, str) for kind in set(map(type, found))):  # few kinds, of many keys
        strange = next(one for one in found if not isinstance(one, str))
        raise InvalidInputError(
            f"{what} must be a list of texts, spelled as in the table: {strange!r}", kind="no_text"
        )
    return found


def without_scheme(address: str) -> str:
    """Return an address without its scheme and with one leading slash."""
    return "/" + _SCHEME.sub("", address, count=1).lstrip("/")


def join(*segments: str) -> str:
    """Join relative pieces, leaving out empty ones (the table's base), and check the result."""
    return check_relative_path("/".join(piece for piece in segments if piece))


def parent_folder(path: str) -> str:
    """Return the folder of a path; ``""`` for the table's base folder."""
    return path.rpartition("/")[0]


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


# ---- File names (fmt 2.2, 4.1, 5.1)
# Names are untrusted when read. A name that does not match the grammar is not read, and never
# deleted (SEC2). Only the table of instants below spells actions and states; a test parses and
# formats its full product.

#: The file that makes a folder a partition (fmt 4.1).
PARTITION_METADATA = ".hoodie_partition_metadata"

#: (action, pending state) -> suffix after the requested time. Completed names are
#: ``<requested>_<completion>.<completes_as>``, legacy ones lack the completion time. A savepoint
#: has no requested state.
PENDING_SUFFIXES: dict[tuple[Action, State], str] = {
    (action, state): f".{action.value}.{state.name.lower()}"
    for action in Action
    for state in (State.REQUESTED, State.INFLIGHT)
    if (action, state) != (Action.SAVEPOINT, State.REQUESTED)
} | {(Action.COMMIT, State.INFLIGHT): ".inflight"}
_PENDING_BY_SUFFIX = {suffix: key for key, suffix in PENDING_SUFFIXES.items()}
_COMPLETED_BY_SUFFIX = {
    "." + action.value: action for action in Action if action.completes_as is action
}

_INSTANT = re.compile(r"(\d{14}|\d{17})(?:_(\d{14}|\d{17}))?((?:\.[a-z]+){1,2})", re.ASCII)
_FILE_ID = r"[^._/\\\x00-\x1f]+"
_TOKEN = r"\d+-\d+-\d+"  # noqa: S105 - a file name part
#: The grammar of base and log file names, for Python and for RE2.
BASE_FILE_PATTERN = rf"(?P<id>{_FILE_ID})_(?P<token>{_TOKEN})_(?P<time>\d{{14}}|\d{{17}})\.parquet"
LOG_FILE_PATTERN = (
    rf"\.(?P<id>{_FILE_ID})_(?P<time>\d{{14}}|\d{{17}})\.(?:log|archive)\.(?P<version>\d+)"
    rf"(?:_(?P<token>{_TOKEN})(?P<cdc>\.cdc)?)?"
)
_BASE = re.compile(BASE_FILE_PATTERN, re.ASCII)
_LOG = re.compile(LOG_FILE_PATTERN, re.ASCII)
_MARKER = re.compile(r"(.+)\.marker\.(CREATE|MERGE|APPEND)")


class IOType(Enum):
    """The kind of write that a marker announces (fmt 1.4); APPEND only in old tables."""

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
    Return the file name of one state of an instant, of layout 1 if it is legacy.

    Raises:
        MalformedNameError: The action has no such state (a requested savepoint), or a completed
            instant lacks its completion time.
    """
    if instant.state is State.COMPLETED:
        if instant.completion_time is None:
            raise MalformedNameError(
                "a completed instant has no completion time: restore its file from a backup: "
                f"{instant}",
                path=str(instant),
            )
        name = instant.action.completes_as.value
        if instant.legacy:
            return f"{instant.requested_time}.{name}"
        return f"{instant.requested_time}_{instant.completion_time}.{name}"
    suffix = PENDING_SUFFIXES.get((instant.action, instant.state))
    if suffix is None:
        raise MalformedNameError(
            "an instant in this state has no file: report it with the output of 'hoodoo timeline "
            f"show TABLE': {instant}",
            path=str(instant),
        )
    return instant.requested_time + suffix


def pending_file_names(action: Action, requested_time: InstantTime) -> tuple[str, ...]:
    """Return an instant's inflight and requested file names, in a rollback's order of deletes."""
    return tuple(
        requested_time + PENDING_SUFFIXES[action, state]
        for state in (State.INFLIGHT, State.REQUESTED)
        if (action, state) in PENDING_SUFFIXES
    )


@lru_cache(maxsize=8_192)
def parse_instant_name(name: str) -> Instant | None:
    """
    Return the instant of a file in the timeline folder, or None for any other file.

    A completed name without a completion time gives a legacy instant that completed at its
    requested time. A caller that knows the file's age may correct it (fmt 2.2).
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
    """Parse the name of a base file; return None for other names."""
    match = _BASE.fullmatch(name)
    return BaseFileName(*match.groups()) if match else None


def parse_log_file_name(name: str) -> LogFileName | None:
    """Parse the name of a log file; return None for other names."""
    match = _LOG.fullmatch(name)
    if match is None:
        return None
    file_id, instant, version, token, cdc = match.groups()
    return LogFileName(file_id, instant, int(version), token or "", is_cdc=cdc is not None)


def data_file_time(name: str) -> InstantTime | None:
    """Return the instant in the name of a base or log file; None for any other file."""
    base = parse_base_file_name(name)
    if base is not None:
        return base.requested_time
    log = parse_log_file_name(name)
    return None if log is None else log.instant_time


def is_data_file(path: str) -> bool:
    """Return whether a path names a base or log file in a partition of the table (SEC1, SEC2)."""
    try:
        check_relative_path(path)
        check_partition_path(path.rpartition("/")[0])
    except MalformedNameError:
        return False
    return data_file_time(path.rpartition("/")[2]) is not None


def is_partition_file(name: str) -> bool:
    """Return whether a file of this name makes its folder a partition."""
    return name == PARTITION_METADATA or name.startswith(PARTITION_METADATA + ".")


def marker_name(data_file_name: str, io_type: IOType) -> str:
    """Return the name of the marker of a data file (fmt 1.4)."""
    return f"{data_file_name}.marker.{io_type.value}"


def parse_marker_name(name: str) -> tuple[str, IOType] | None:
    """
    Return the data file name and the kind of a marker.

    None if the name is no marker, or names anything but a base or log file (SEC2).
    """
    match = _MARKER.fullmatch(name)
    if match is None:
        return None
    data_file, io_type = match.groups()
    if parse_base_file_name(data_file) is None and parse_log_file_name(data_file) is None:
        return None
    return data_file, IOType(io_type)


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


# ---- The paths below a table's base folder (fmt 1); hoodoo's own are in ``.hoodie/.hoodoo``

HOODIE = ".hoodie"
PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = ".hoodie/hoodie.properties.backup"
TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
MARKERS = ".hoodie/.temp"
HEARTBEATS = ".hoodie/.heartbeat"
LOCKS = ".hoodie/.locks"
INDEX_DEFINITIONS = ".hoodie/.index_defs/index.json"  # of Java's metadata table
SCHEMAS = ".hoodie/.schema"  # schema versions, for schema on read
METADATA_TABLE = ".hoodie/metadata"
OURS = ".hoodie/.hoodoo"
SLOTS = ".hoodie/.hoodoo/slots"
BOUNDARIES = ".hoodie/.hoodoo/boundary"
WRITERS = ".hoodie/.hoodoo/writers"
READERS = ".hoodie/.hoodoo/readers"
DEFERRED_DELETES = ".hoodie/.hoodoo/owed"  # files that cleans deferred
REJECTED_WRITES = ".hoodie/.hoodoo/refused"  # conflicts of rejected writes
TABLE_DESCRIPTOR = ".hoodie/.hoodoo/table.json"


_MIB = 1 << 20
#: The most bytes of a file that is read whole, by the start of its path (SEC14); the first match
#: counts.
_BYTES_MAX = (
    (PROPERTIES, 16 * _MIB),  # and its backup
    (SLOTS, 512 * _MIB),  # a commit's metadata and plan, written in base64
    (f"{OURS}/bodies", 512 * _MIB),  # bodies of slots in a slot store
    (BOUNDARIES, 512 * _MIB),  # a slot's body, as are two more below
    (WRITERS, _MIB),
    (READERS, _MIB),
    (DEFERRED_DELETES, 512 * _MIB),
    (OURS, 16 * _MIB),
    (f"{HISTORY}/manifest_", 64 * _MIB),
    (f"{HISTORY}/_version_", _MIB),
    (HISTORY, 2_048 * _MIB),
    (f"{HOODIE}/archived", 2_048 * _MIB),
    (TIMELINE, 512 * _MIB),
    (MARKERS, 64 * _MIB),
    (HEARTBEATS, _MIB),
    (LOCKS, _MIB),
    (SCHEMAS, 64 * _MIB),
    (METADATA_TABLE, 2_048 * _MIB),
    (f"{HOODIE}/", 512 * _MIB),  # instants of layout 1, definitions of indexes, bucket metadata
)


def check_size(path: str, size_bytes: int) -> None:
    """
    Refuse, before it is read, a file below ``.hoodie`` that is too large for its kind.

    Raises:
        CorruptTableError: It is too large (``file_too_large``; fields ``path``, ``bytes``,
            ``bytes_max``).
    """
    if not path.startswith(f"{HOODIE}/"):
        return
    most = _bytes_max(path)
    if size_bytes > most:
        raise CorruptTableError(
            f"a file of the table is too large, so it was not read: {path} has {size_bytes:,} "
            f"bytes, and a file of its kind has at most {most:,}. Restore it from a backup, or "
            "delete it if no writer created it",
            kind="file_too_large",
            path=path,
            bytes=size_bytes,
            bytes_max=most,
        )


def check_slot_size(size_bytes: int) -> None:
    """
    Refuse, before it is created, a slot that is larger than readers accept.

    The files that apply the slot are no larger: they contain its body, which the slot has in
    base64.

    Raises:
        InvalidInputError: It is too large (``commit_too_large``; fields ``bytes``, ``bytes_max``).
    """
    most = _bytes_max(f"{SLOTS}/")
    if size_bytes > most:
        raise InvalidInputError(
            "the commit names too many files: split it into several writes with fewer rows or "
            f"partitions: its commit slot would have {size_bytes:,} bytes, at most {most:,} are "
            "allowed",
            kind="commit_too_large",
            bytes=size_bytes,
            bytes_max=most,
        )


def _bytes_max(path: str) -> int:
    return next(most for start, most in _BYTES_MAX if path.startswith(start))


def timeline_folder(layout_version: int) -> str:
    """Return the folder of instants' files in a timeline layout (fmt 11.2)."""
    return HOODIE if layout_version == 1 else TIMELINE


def legacy_archive(folder: str | None) -> str:
    """Return the archive folder of version 6; ``folder`` is the one in the table's properties."""
    return check_relative_path(f"{HOODIE}/{folder or 'archived'}")


def timeline_path(file_name: str) -> str:
    """Return the path of an instant's file in layout 2, the only layout that is written."""
    return f"{TIMELINE}/{file_name}"


def slot_path(number: int) -> str:
    """Return the path of a slot."""
    return f"{SLOTS}/{number:020d}"


def truncation_point_path(number: int) -> str:
    """Return the path of the file that makes this slot number the truncation point."""
    return f"{BOUNDARIES}/{number:020d}"


def heartbeat_path(requested_time: InstantTime) -> str:
    """Return the path of a pending instant's heartbeat."""
    return f"{HEARTBEATS}/{requested_time}"


def reader_path(reader_id: str) -> str:
    """Return the path of a reader lease."""
    return f"{READERS}/{reader_id}.json"


def deferred_deletes_path(slot_number: int) -> str:
    """Return the path of the list of files that a clean deferred because of reader leases."""
    return f"{DEFERRED_DELETES}/{slot_number:020d}"
