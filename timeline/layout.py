"""The paths below a table's base folder (fmt 1); hoodoo's own are in ``.hoodie/.hoodoo``."""

from __future__ import annotations

from timeline.errors import CorruptTableError, InvalidInputError
from timeline.model.file_names import check_relative_path
from timeline.model.instant import InstantTime

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
            f"a file of the table is too large: {path} has {size_bytes:,} bytes, and a file of its "
            f"kind at most {most:,}. It was not read; restore it from a backup, or remove it if no "
            "writer made it",
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
            "the commit names too many files for one commit; write it in several parts, each of "
            "fewer rows or partitions: its commit slot would have "
            f"{size_bytes:,} bytes, and may have {most:,}",
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
