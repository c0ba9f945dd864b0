"""
Journals of clients: JSON lines that tell what each wrote, read and was answered.

A table knows what was committed, not what clients were told or what they saw on the way. Who
wants that judged appends one line per event to a file of its own::

    {
        "event": "write",
        "name": "load-7",
        "answer": "ok",
        "instant": "20260102030405678",
        "keys": ["1", "2"],
        "deletes": false,
        "reads": [["1", "20260102030405000"]],
        "batch": "b7",
    }
    {
        "event": "read",
        "name": "audit-3",
        "at": "20260102030405999",
        "full": true,
        "rows": [["1", "20260102030405678"], ["2", null]],
    }

``answer`` is ``ok``, ``fail`` or ``unknown``; ``instant`` (a receipt's requested time) may be
missing only where it is not ``ok``; writes of a group share it. Versions are the ``_hoodie_commit_time`` of rows, null for
no row; keys are as in ``_hoodie_record_key``. ``at`` is the completion time that was read as of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from timeline.errors import InvalidInputError
from timeline.model.recorded_run import RunRecorder
from timeline.model.times import InstantTime

__all__ = ["read_line", "record_journal", "write_line"]

_ANSWERS: Final = ("ok", "fail", "unknown")
_TIME: Final = re.compile(r"\d{17}", re.ASCII)

Versions = Sequence[tuple[str, InstantTime | None]]


def write_line(
    name: str,
    answer: str,
    keys: Sequence[str],
    *,
    instant: InstantTime | None = None,
    deletes: bool = False,
    reads: Versions = (),
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
    name: str, rows: Versions, *, at: InstantTime | None = None, full: bool = False
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


def record_journal(run: RunRecorder, lines: Iterable[bytes], *, source: str) -> int:
    """
    Add a journal to a run; the last line may be torn, as a killed client leaves it.

    Args:
        run: Where its events go.
        lines: Of the file.
        source: Name of the file, for errors, and to keep readers of equal names apart.

    Returns:
        The number of events.

    Raises:
        InvalidInputError: A line is none of the two forms.
    """
    told = 0
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for number, line in kept:
        try:
            event = json.loads(line)
        except ValueError as error:
            if told and number == kept[-1][0]:
                break
            raise _not_a_journal(source, number, error) from error
        try:
            _record(run, event, f"{source}:{number}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _not_a_journal(source, number, error) from error
        told += 1
    return told


def _not_a_journal(source: str, number: int, error: Exception) -> InvalidInputError:
    return InvalidInputError(
        "a line of a journal is neither a write nor a read in the form that docs/history.md "
        f"tells ({error!r}): {source}, line {number}",
        kind="journal",
        path=source,
        line=number,
    )


def _record(run: RunRecorder, event: dict[str, Any], place: str) -> None:
    if event["event"] == "read":
        name = f"{event.get('name') or 'read'} ({place})"
        rows = _pairs(event["rows"])
        at = _time(event, "at")
        run.transaction(name, snapshot=int(at) if at else None, full=bool(event.get("full", False)))
        run.reads(name, rows)
        return
    if event["event"] != "write" or event["answer"] not in _ANSWERS:
        raise ValueError(event["event"])
    instant = _time(event, "instant")
    if instant is None and event["answer"] == "ok":
        raise KeyError("instant")
    line = f"{event.get('name') or 'write'} ({place})"
    name = instant or line
    keys = [str(key) for key in event["keys"]]
    reads = _pairs(event.get("reads") or [])
    answer = None if event["answer"] == "unknown" else event["answer"]
    run.account(name, line, answer=answer, batch=event.get("batch"), reads=reads)
    rank = None if instant is None else int(instant)
    run.writes(name, keys, deletes=bool(event.get("deletes", False)), rank=rank)


def _time(event: dict[str, Any], field: str) -> InstantTime | None:
    time = event.get(field)
    if time is not None and not _TIME.fullmatch(str(time)):
        raise ValueError(field)
    return None if time is None else str(time)


def _pairs(found: list[Any]) -> list[tuple[str, str | None]]:
    return [(str(key), None if version is None else str(version)) for key, version in found]
