"""
The versions of a table's schema that schema on read keeps in ``.hoodie/.schema``.

Each file there is the whole history up to its instant, newest first, and the newest commit
names the version a reader wants. A table that was never altered that way has neither.
"""

from __future__ import annotations

import re

from timeline.errors import CorruptTableError
from timeline.model.internal_schema import SchemaHistory, parse_history, parse_internal_schema
from timeline.places import SCHEMAS
from timeline.ports.storage import Storage
from timeline.reading.snapshot import Snapshot

__all__ = ["schema_history"]

_NAME = re.compile(r"(\d{14,17})(?:_\d{14,17})?\.schemacommit")


def schema_history(storage: Storage, snapshot: Snapshot) -> SchemaHistory | None:
    """
    What a snapshot's files were written with; None for a table without column ids.

    Versions of instants that are not visible do not count: an ``alter table`` that failed,
    or one after the moment the snapshot shows.

    Raises:
        CorruptTableError: The newest file cannot be read.

    Outside: nothing without column ids, else 1 list and 1 get.
    """
    text = snapshot.newest_internal_schema_json
    if not text:
        return None
    wanted = parse_internal_schema(text)
    found = sorted(
        (match[1], name) for name in storage.names(SCHEMAS) if (match := _NAME.fullmatch(name))
    )
    if not found:
        return SchemaHistory(wanted)
    path = f"{SCHEMAS}/{found[-1][1]}"
    data = storage.read(path)
    try:
        versions = parse_history(data.decode())
    except UnicodeDecodeError as error:
        raise CorruptTableError(
            f"the history of the table's schema is damaged: {path}", kind="bad_schema", path=path
        ) from error
    visible = [
        each for each in versions if not each.version or snapshot.is_committed(str(each.version))
    ]
    return SchemaHistory(wanted, tuple(visible))
