"""Lines of a client's journal, as docs/how-to/check-history.md describes them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from timeline.model.instant_time import InstantTime

VersionColumns = Sequence[tuple[str, InstantTime | None]]


def write_line(
    name: str,
    answer: str,
    keys: Sequence[str],
    *,
    instant: InstantTime | None = None,
    deletes: bool = False,
    reads: VersionColumns = (),
    batch: str | None = None,
) -> str:
    """The line of a write, with its line feed."""
    document = {
        "event": "write",
        "name": name,
        "answer": answer,
        "instant": instant,
        "keys": list(keys),
        "deletes": deletes,
        "reads": [list(pair) for pair in reads],
        "batch": batch,
    }
    return json.dumps(document) + "\n"


def read_line(
    name: str, rows: VersionColumns, *, at: InstantTime | None = None, full: bool = False
) -> str:
    """The line of a read, with its line feed."""
    document = {
        "event": "read",
        "name": name,
        "at": at,
        "full": full,
        "rows": [list(pair) for pair in rows],
    }
    return json.dumps(document) + "\n"
