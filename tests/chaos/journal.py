"""
The events of a chaos process: one JSON object a line, synced, in a file that outlives it.

A process may be killed within a line. A reader skips such a line, and the next process that writes
to the file begins a new one. Times are of the system's monotonic clock: all processes share it, and
no fault changes it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.work import Op
from tests.history_lines import write_line


class Journal:
    """The file of one process, opened for more."""

    def __init__(self, path: Path) -> None:
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._out = path.open("ab")
        if torn:
            self._out.write(b"\n")

    def log(self, event: str, **more: Any) -> None:
        """Add an event."""
        line = json.dumps({"event": event, "at": round(time.monotonic(), 4), **more})
        self._out.write(f"{line}\n".encode())
        self._out.flush()
        os.fsync(self._out.fileno())


def events_of(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file; nothing where there is none."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # torn by a kill
        if isinstance(event, dict) and "event" in event:
            found.append(event)
    return found


@dataclass(slots=True, kw_only=True)
class OpRecord:
    """The outcome of one operation, as its client saw it."""

    op: Op
    invoked: float
    reads: list[tuple[str, str]]
    answered: float | None = None
    answer: str | None = None  # ok or fail, once the outcome is known
    instant: str | None = None
    repeated: bool = False
    was_unknown: bool = False
    error: str | None = None


def operations_of(path: Path, seed: int, tables: Sequence[str]) -> list[OpRecord]:
    """The operations of one writer in their order."""
    found: dict[int, OpRecord] = {}
    for event in events_of(path):
        number = event.get("op")
        if number is None:
            continue
        if event["event"] == "invoke":
            reads = [(str(key), str(version)) for key, version in event.get("reads", ())]
            op = Op.of(seed, number, tables)
            found[number] = OpRecord(op=op, invoked=event["at"], reads=reads)
            continue
        known = found[number]
        known.instant = event.get("instant") or known.instant
        known.error = event.get("error") or known.error
        if event["event"] == "unknown":
            known.was_unknown = True
        elif event["event"] == "repeat":
            known.was_unknown = known.repeated = True
        else:
            known.answer, known.answered = event["event"], event["at"]
    return list(found.values())


def write_history(path: Path, writer: str, table: str, operations: Sequence[OpRecord]) -> None:
    """The journal of one client of one table, as ``hoodoo table verify --history`` takes it."""
    lines = []
    for one in operations:
        if one.op.table == table:
            lines.append(
                write_line(
                    f"{writer}-{one.op.number}",
                    one.answer or "unknown",
                    [str(key) for key in one.op.all_keys],
                    instant=one.instant,
                    # A repetition does not know which reads its first attempt was made from.
                    reads=() if one.repeated else one.reads,
                    batch=one.op.batch_id,
                )
            )
    path.write_text("".join(lines))
