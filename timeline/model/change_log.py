"""
Change logs: what a row of one says, and in which of Hudi's three modes it is written (fmt 5.4).

A change log lies beside a rewritten base file and keeps what the rewrite did to each record.
Its mode decides which images of the record it holds; what it lacks, readers take from the
base files before and after.
"""

from __future__ import annotations

import json
from typing import Any, Final

from timeline.errors import CorruptTableError
from timeline.model.operations import ChangeLogMode

__all__ = [
    "AFTER",
    "BEFORE",
    "CHANGE_TIME",
    "OPERATION",
    "OPERATIONS",
    "RECORD_KEY",
    "change_log_schema",
]

OPERATION: Final = "op"
CHANGE_TIME: Final = "ts_ms"
RECORD_KEY: Final = "record_key"
BEFORE: Final = "before"
AFTER: Final = "after"

OPERATIONS: Final = ("i", "u", "d")
"""Insert, update, delete: the texts in the column `op`, by `rules.change_images.Kind`."""


def change_log_schema(mode: ChangeLogMode, avro_json: str) -> str:
    """
    The Avro schema of a change log's rows, as Java Hudi writes it.

    Args:
        mode: What the rows hold.
        avro_json: The table's schema without meta columns.

    Raises:
        CorruptTableError: The table's schema is no named record.
    """
    if mode is ChangeLogMode.OP_KEY_ONLY:
        both = ["string", "null"]
        fields = [{"name": name, "type": both} for name in (OPERATION, RECORD_KEY)]
        return json.dumps({"type": "record", "name": "Record", "fields": fields})
    row: Any = json.loads(avro_json)
    if not isinstance(row, dict) or row.get("type") != "record" or not row.get("name"):
        raise CorruptTableError(
            f"the table's schema is no named record: {avro_json[:80]}", kind="bad_schema"
        )
    fields = [_field(OPERATION, "string")]
    if mode is ChangeLogMode.DATA_BEFORE:
        fields += [_field(RECORD_KEY, "string"), _field(BEFORE, row)]
    else:
        namespace = row.get("namespace")
        known = f"{namespace}.{row['name']}" if namespace else row["name"]
        fields += [_field(CHANGE_TIME, "string"), _field(BEFORE, row), _field(AFTER, known)]
    document = {"type": "record", "name": "CDC", "fields": fields}
    if row.get("namespace"):
        document["namespace"] = row["namespace"]
    return json.dumps(document)


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}
