"""Where everything lies below a table's base folder (fmt 1); ours alone is ``.hoodie/.hoodoo``."""

from __future__ import annotations

from timeline.model.paths import check_relative_path
from timeline.model.times import InstantTime

__all__ = [
    "BOUNDARIES",
    "HEARTBEATS",
    "HISTORY",
    "HOODIE",
    "MARKERS",
    "METADATA_TABLE",
    "OURS",
    "OWED",
    "PROPERTIES",
    "PROPERTIES_BACKUP",
    "READERS",
    "REFUSED",
    "SCHEMAS",
    "SLOTS",
    "TABLE_FACTS",
    "TIMELINE",
    "WRITERS",
    "boundary_path",
    "heartbeat_path",
    "legacy_archive",
    "owed_path",
    "reader_path",
    "slot_path",
    "timeline_folder",
    "timeline_path",
]

HOODIE = ".hoodie"
PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = ".hoodie/hoodie.properties.backup"
TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
MARKERS = ".hoodie/.temp"
HEARTBEATS = ".hoodie/.heartbeat"
SCHEMAS = ".hoodie/.schema"  # versions of the schema, under schema on read
METADATA_TABLE = ".hoodie/metadata"
OURS = ".hoodie/.hoodoo"
SLOTS = ".hoodie/.hoodoo/slots"
BOUNDARIES = ".hoodie/.hoodoo/boundary"
WRITERS = ".hoodie/.hoodoo/writers"
READERS = ".hoodie/.hoodoo/readers"
OWED = ".hoodie/.hoodoo/owed"  # what cleans left to readers
REFUSED = ".hoodie/.hoodoo/refused"  # what writes met that gave up
TABLE_FACTS = ".hoodie/.hoodoo/table.json"


def timeline_folder(layout_version: int) -> str:
    """Where the files of instants lie in a timeline layout (fmt 11.2)."""
    return HOODIE if layout_version == 1 else TIMELINE


def legacy_archive(folder: str | None) -> str:
    """Where version 6 has its archive; ``folder`` is what the table's properties say, if any."""
    return check_relative_path(f"{HOODIE}/{folder or 'archived'}")


def timeline_path(file_name: str) -> str:
    """An instant's file in layout 2, which is the only one that is written."""
    return f"{TIMELINE}/{file_name}"


def slot_path(number: int) -> str:
    """A commit slot's object."""
    return f"{SLOTS}/{number:020d}"


def boundary_path(number: int) -> str:
    """The object that says that slots up to this number are collected."""
    return f"{BOUNDARIES}/{number:020d}"


def heartbeat_path(requested_time: InstantTime) -> str:
    """A pending instant's heartbeat."""
    return f"{HEARTBEATS}/{requested_time}"


def reader_path(reader_id: str) -> str:
    """A reader's lease."""
    return f"{READERS}/{reader_id}.json"


def owed_path(slot_number: int) -> str:
    """The files that a clean spared because readers had leases."""
    return f"{OWED}/{slot_number:020d}"
