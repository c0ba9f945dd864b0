"""Paths and file names of a table (fmt 1, 2.2, 4.1, 5.1)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from timeline.errors import CorruptTableError, InvalidInputError, MalformedNameError
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import InstantTime

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


# ---- Folder names of timestamp columns
# Java Hudi writes three forms, and no property of the table records which (fmt 4.1). A DataFrame
# write uses the stored number, or with
# ``hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled`` the text of
# ``java.sql.Timestamp``. Spark SQL uses seconds with escaped colons. The last two are in the time
# zone of the process that wrote.

_SHAPE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d(?::|%3A)\d\d(?::|%3A)\d\d(\.\d{1,9})?")


class TimestampForm(Enum):
    """The form of a timestamp as a folder name."""

    NUMBER = "number"  # 1678451400000000
    TIMESTAMP = "timestamp"  # 2023-03-10 12:30:00.0
    SQL = "sql"  # 2023-03-10 12%3A30%3A00


@dataclass(frozen=True, slots=True)
class TimestampTexts:
    """
    The form of a table's timestamp folders, and the zone of their times.

    ``or_zone`` is a second zone that also fits all folders with rows.
    """

    form: TimestampForm = TimestampForm.NUMBER
    zone: str = "UTC"
    or_zone: str = ""


#: The form of a DataFrame write of Java Hudi.
NUMBERS: Final = TimestampTexts()


def form_of(text: str) -> TimestampForm | None:
    """Return the form of a partition value in a folder name; None if it is no timestamp."""
    if re.fullmatch(r"-?\d+", text):
        return TimestampForm.NUMBER
    found = _SHAPE.fullmatch(text)
    if found is None:
        return None
    return TimestampForm.SQL if found[1] is None else TimestampForm.TIMESTAMP


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
