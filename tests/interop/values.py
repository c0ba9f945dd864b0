"""
Rows as the Java oracle writes them down, so that both can be compared as plain JSON.

Bytes are `{"b64"}`, decimals `{"dec"}`, maps `{"map": [[k, v]]}`, floats that are no numbers
`{"f"}`, dates and timestamps ISO text in UTC without a zone. The sequence number is left
out: it names Spark's tasks, not the data.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

META = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)

Rows = list[dict[str, Any]]


def encoded(table: pa.Table) -> Rows:
    """Arrow rows in the oracle's words, sorted."""
    types = {field.name: field.type for field in table.schema}
    return comparable(
        {name: _value(value, types[name]) for name, value in row.items()}
        for row in table.to_pylist()
    )


def comparable(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows without sequence numbers, in one order for any order of their columns."""
    kept = [{k: v for k, v in row.items() if k != "_hoodie_commit_seqno"} for row in rows]
    return sorted(kept, key=lambda row: json.dumps(row, sort_keys=True))


def without_meta(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """The rows' own columns only, sorted."""
    return comparable({k: v for k, v in row.items() if k not in META} for row in rows)


def same(mine: Rows, theirs: Rows) -> bool:
    """Equal as JSON, so that 1 and 1.0 or 0.0 and -0.0 differ."""
    return json.dumps(mine, sort_keys=True) == json.dumps(theirs, sort_keys=True)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = [[_value(k, kind.key_type), _value(v, kind.item_type)] for k, v in value]
        return {"map": sorted(pairs, key=json.dumps)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, decimal.Decimal):
        return {"dec": str(value)}
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return {"f": repr(value)}
    return value
