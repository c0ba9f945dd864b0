"""Where everything lies below a table's base folder (fmt 1); ours alone is ``.hoodie/.hoodoo``."""

from __future__ import annotations

from timeline.model.times import InstantTime

__all__ = [
    "HEARTBEATS",
    "HISTORY",
    "HOODIE",
    "MARKERS",
    "METADATA_TABLE",
    "PROPERTIES",
    "PROPERTIES_BACKUP",
    "SLOTS",
    "TABLE_FACTS",
    "TIMELINE",
    "WRITERS",
    "heartbeat_path",
    "slot_path",
    "timeline_path",
]

HOODIE = ".hoodie"
PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = ".hoodie/hoodie.properties.backup"
TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
MARKERS = ".hoodie/.temp"
HEARTBEATS = ".hoodie/.heartbeat"
METADATA_TABLE = ".hoodie/metadata"
SLOTS = ".hoodie/.hoodoo/slots"
WRITERS = ".hoodie/.hoodoo/writers"
TABLE_FACTS = ".hoodie/.hoodoo/table.json"


def timeline_path(file_name: str) -> str:
    """An instant's file."""
    return f"{TIMELINE}/{file_name}"


def slot_path(number: int) -> str:
    """A commit slot's object."""
    return f"{SLOTS}/{number:020d}"


def heartbeat_path(requested_time: InstantTime) -> str:
    """A pending instant's heartbeat."""
    return f"{HEARTBEATS}/{requested_time}"
