"""
Record writes that were finally rejected, with their conflicts.

A committed write records the conflicts of its earlier attempts. A rejected write leaves nothing on
the timeline: only its client gets the error, and the client may have ended when a user misses the
rows. So hoodoo keeps a few hundred records of rejected writes in the table's folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from timeline.context import TableContext
from timeline.errors import BudgetSpentError, ConflictError, HoodooError, RolledBackError
from timeline.model.file_names import REJECTED_WRITES

if TYPE_CHECKING:
    from filegroups.writing.write_request import WriteRequest

REJECTED_WRITES_MAX: Final = 256
_TIME: Final = re.compile(r"[0-9]{17}")
_SLACK = 32  # extra records before the oldest are deleted, so that deletes are rare


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedWrite:
    """One rejected write; ``attempts`` are the reports of its conflicts, oldest first."""

    requested_time: str  # of its last attempt
    action: str
    operation: str
    kind: str
    message: str
    batch_id: str
    writer: str
    host: str
    pid: int
    application: str
    attempts: tuple[Mapping[str, Any], ...]

    def has(self, instant: str) -> bool:
        """Return whether one of its attempts had this requested time."""
        return any(one.get("instant") == instant for one in self.attempts)


def record_rejected_write(
    context: TableContext, plan: WriteRequest, error: ConflictError | RolledBackError
) -> None:
    """
    Record the conflicts of a rejected write; a failure here is ignored, as the error has them too.

    Outside: 1 put, 1 list, and sometimes deletes of old records.
    """
    from filegroups.writing.write import action_of  # not for readers of the records

    attempts = error.fields.get("attempts") if isinstance(error, BudgetSpentError) else None
    reports = attempts or [error.fields.get("report")]
    recorded = (
        [one for one in reports if isinstance(one, Mapping)] if isinstance(reports, list) else []
    )
    last = str(recorded[-1].get("instant", "")) if recorded else ""
    if not _TIME.fullmatch(last):
        return
    who = context.ports.ids.identity()
    document = {
        "action": action_of(context, plan.operation).value,
        "operation": plan.operation.value,
        "kind": error.kind,
        "message": error.message,
        "batch_id": plan.batch_id or "",
        "writer": who.writer_id,
        "host": who.host,
        "pid": who.pid,
        "application": who.application,
        "attempts": recorded,
    }
    storage = context.ports.storage
    with suppress(HoodooError):
        storage.write(
            f"{REJECTED_WRITES}/{last}.json", json.dumps(document, sort_keys=True).encode()
        )
        names = sorted(storage.names(REJECTED_WRITES))
        if len(names) > REJECTED_WRITES_MAX + _SLACK:
            for name in names[:-REJECTED_WRITES_MAX]:
                storage.delete(f"{REJECTED_WRITES}/{name}")


def rejected_writes(context: TableContext) -> list[RejectedWrite]:
    """
    Return the recorded rejected writes, oldest first, without unreadable records.

    Outside: 1 list, 1 get each.
    """
    storage = context.ports.storage
    names = [name for name in sorted(storage.names(REJECTED_WRITES)) if _TIME.fullmatch(name[:-5])]

    def read(name: str) -> RejectedWrite | None:
        try:
            return _read(name[:-5], json.loads(storage.read(f"{REJECTED_WRITES}/{name}")))
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):
            return None

    return [one for one in context.ports.for_each(read, names) if one is not None]


def _read(time: str, document: Mapping[str, Any]) -> RejectedWrite:
    return RejectedWrite(
        requested_time=time,
        **{
            name: str(document[name])
            for name in (
                *("action", "operation", "kind", "message"),
                *("batch_id", "writer", "host", "application"),
            )
        },
        pid=int(document["pid"]),
        attempts=tuple(dict(one) for one in document["attempts"]),
    )
