"""
The audit trail: files in the table that record each holding of the lock and its length.

Hudi's storage-based provider writes one file of JSON lines per holding under
``.hoodie/.locks/audit/``. Ours have the same names and fields, for every provider, so the tools of
both engines read both. ``ownerId``, the one free-text field, contains host, process and purpose.
Invariants:

- No file is written while other writers wait: the file of a holding is written after its release.
  If a holding lasts longer than ``FLUSH_MS``, a separate thread writes its file meanwhile. So the
  holding is on record even if its holder dies, and a slow storage delays no renewal.
- A trail that cannot be written causes an event, never an error.
- The trail is off unless ``hoodoo.lock.audit`` turns it on: it costs a small write per commit, and
  the commit log records every commit anyway. Files older than the kept days are deleted.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from timeline.errors import HoodooError
from timeline.model.instant_time import parse_wall_ms
from timeline.ports.ports import (
    Clock,
    EventSink,
    Executor,
    Ids,
    ObjectMissingError,
    Storage,
    Ticker,
)

AUDIT_FOLDER = ".hoodie/.locks/audit"
FLUSH_MS = 2_000
DAY_MS = 24 * 3_600_000
FILE_BYTES_MAX = 1 << 20
FILES_MAX = 200_000
PRUNED_AT_ONCE_MAX = 1_000
RENEWALS_KEPT_MAX = 500  # the newest; bounds the file of a lease that is held for days

_FILE_NAME = re.compile(r"(\d{1,15})_[^/]+\.(?:jsonl|broken\.json)")

Value = str | int | float | bool | None
HowEnded = Literal["released", "lost", "broken", "open"]


@dataclass(slots=True)
class _OpenHolding:
    """One holding that has not ended yet."""

    start_ms: int
    owner_id: str
    path: str
    ticker: Ticker
    lines: list[bytes] = field(default_factory=list)
    written: int = 0


class AuditTrail:
    """
    Turn a lock's events into audit files, as an event sink.

    Args:
        storage: The table's storage.
        clock: Time of the records, ms since 1970 UTC.
        executor: Writes the file of a long holding.
        events: Receives ``lock.audit_failed``.
        keep_days: Age at which files are deleted; 0 keeps all.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock,
        executor: Executor,
        events: EventSink,
        keep_days: int,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._executor = executor
        self._events = events
        self._keep_days = keep_days
        self._guard = threading.Lock()
        self._open: dict[tuple[Value, Value], _OpenHolding] = {}
        self._last_start_ms = 0
        self._pruned = False

    def emit(self, name: str, /, **fields: Value) -> None:
        """Process one event; ignore all but the acquire, renew, loss and release of a lock."""
        key = (fields.get("purpose"), fields.get("fencing_token"))
        if name == "lock.acquired":
            self._begin(key, fields)
        elif name == "lock.renewed":
            self._add(key, "RENEW", held=True, fields=fields)
        elif name == "lock.released":
            self._add(key, "END", held=not fields.get("lost"), fields=fields)
            self._end(key)

    def _begin(self, key: tuple[Value, Value], fields: Mapping[str, Value]) -> None:
        with self._guard:
            # Two holdings of one writer get different names, however quickly they follow.
            start_ms = max(self._clock.now_ms(), self._last_start_ms + 1)
            self._last_start_ms = start_ms
        owner = str(fields.get("owner"))
        holding = _OpenHolding(
            start_ms=start_ms,
            owner_id=_compact(
                {
                    "owner": owner,
                    "purpose": fields.get("purpose"),
                    "provider": fields.get("provider"),
                    "fencing_token": fields.get("fencing_token"),
                }
            ),
            path=f"{AUDIT_FOLDER}/{start_ms}_{_name_part(owner)}.jsonl",
            ticker=self._executor.every(FLUSH_MS, lambda: self._flush(key)),
        )
        with self._guard:
            forgotten = self._open.pop(key, None)
            self._open[key] = holding
        if forgotten is not None:
            forgotten.ticker.stop()  # lost, and never given back
        self._add(key, "START", held=True, fields=fields)

    def _add(
        self, key: tuple[Value, Value], state: str, *, held: bool, fields: Mapping[str, Value]
    ) -> None:
        now_ms = self._clock.now_ms()
        left_ms = fields.get("expires_in_ms")
        with self._guard:
            holding = self._open.get(key)
            if holding is None:
                return  # acquired before this trail began
            line = {
                "ownerId": holding.owner_id,
                "transactionStartTime": holding.start_ms,
                "timestamp": holding.start_ms if state == "START" else now_ms,
                "state": state,
                # Java requires a number; a lock without an end is known to be held until now.
                "lockExpiration": now_ms + (left_ms if isinstance(left_ms, int) else 0),
                "lockHeld": held,
            }
            holding.lines.append(_compact(line).encode() + b"\n")
            if len(holding.lines) > RENEWALS_KEPT_MAX:
                del holding.lines[1]
                holding.written = 0

    def _end(self, key: tuple[Value, Value]) -> None:
        with self._guard:
            holding = self._open.get(key)
        if holding is None:
            return
        holding.ticker.stop()
        self._flush(key)
        with self._guard:
            self._open.pop(key, None)
        if not self._pruned and self._keep_days > 0:
            self._pruned = True
            self._prune()

    def _flush(self, key: tuple[Value, Value]) -> None:
        with self._guard:
            holding = self._open.get(key)
            if holding is None or holding.written == len(holding.lines):
                return
            content = b"".join(holding.lines)
            holding.written = len(holding.lines)
        try:
            self._storage.write(holding.path, content)
        except Exception as error:  # noqa: BLE001 - an audit that fails never fails the lock
            self._events.emit("lock.audit_failed", path=holding.path, error=str(error))

    def _prune(self) -> None:
        oldest_ms = self._clock.now_ms() - self._keep_days * DAY_MS
        try:
            names = self._storage.names(AUDIT_FOLDER)
            old = [name for name in names if (_start_of(name) or oldest_ms) < oldest_ms]
            for name in old[:PRUNED_AT_ONCE_MAX]:
                self._storage.delete(f"{AUDIT_FOLDER}/{name}")
        except Exception as error:  # noqa: BLE001 - as above
            self._events.emit("lock.audit_failed", path=AUDIT_FOLDER, error=str(error))


def record_break(
    storage: Storage, *, clock: Clock, ids: Ids, holder_text: str, provider: str, identity: str
) -> str:
    """
    Write the audit line of an operator's break of a held lock (SEC15).

    Returns:
        The file's path.

    Raises:
        StorageUnavailableError: It could not be written.
    """
    me = ids.identity()
    now_ms = clock.now_ms()
    by = f"{me.host}/{me.pid}/{me.writer_id}"
    path = f"{AUDIT_FOLDER}/{now_ms}_{_name_part(by)}.broken.json"
    line = {
        "ownerId": holder_text[:4096],
        "timestamp": now_ms,
        "state": "BROKEN",
        "by": by,
        "provider": provider,
        "identity": identity,
    }
    storage.write(path, _compact(line).encode() + b"\n", durable=True)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedHolding:
    """One holding from its audit file; times in ms since 1970 UTC by the holder's clock."""

    owner: str
    purpose: str
    provider: str
    fencing_token: int | None
    start_ms: int
    last_ms: int  # the newest record
    end_ms: int | None  # None: still held, or its holder died
    renewals: int
    ended: HowEnded
    by: str = ""  # the operator that broke it

    @property
    def held_ms(self) -> int:
        """How long the lock was held, as far as known."""
        return max(0, (self.end_ms or self.last_ms) - self.start_ms)

    def as_document(self) -> dict[str, object]:
        """Return one entry of ``hoodoo locks audit --output json``; times in ms since 1970 UTC."""
        return {
            "owner": self.owner,
            "purpose": self.purpose,
            "provider": self.provider,
            "fencing_token": self.fencing_token,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "held_ms": self.held_ms,
            "renewals": self.renewals,
            "ended": self.ended,
            "by": self.by,
        }


def read_audit(
    storage: Storage, *, since_ms: int | None = None, until_ms: int | None = None
) -> list[AuditedHolding]:
    """
    Return all recorded holdings that overlap the given time, oldest first.

    It reads Java's records like ours and skips damaged ones. Outside: 1 list, 1 get per file that
    begins before ``until_ms``.

    Raises:
        StorageUnavailableError: The storage does not answer.
    """
    found = []
    for name in storage.names(AUDIT_FOLDER)[-FILES_MAX:]:
        start_ms = _start_of(name)
        if start_ms is None or (until_ms is not None and start_ms > until_ms):
            continue
        holding = _read_file(storage, name)
        if holding is None:
            continue
        if since_ms is None or (holding.end_ms or holding.last_ms) >= since_ms:
            found.append(holding)
    return sorted(found, key=lambda one: (one.start_ms, one.owner))


def _read_file(storage: Storage, name: str) -> AuditedHolding | None:
    try:
        content = storage.read(f"{AUDIT_FOLDER}/{name}")
    except (ObjectMissingError, HoodooError):
        return None  # deleted meanwhile, or not readable
    records = [_record(line) for line in content[:FILE_BYTES_MAX].splitlines()]
    known = [record for record in records if record is not None]
    if not known:
        return None
    try:
        return _holding_of(known)
    except (ArithmeticError, TypeError, ValueError):
        return None


def _holding_of(records: list[dict[str, Any]]) -> AuditedHolding:
    first, last = records[0], records[-1]
    who = _owner_of(str(first.get("ownerId", "")))
    start_ms = parse_wall_ms(first.get("transactionStartTime", first["timestamp"]))
    last_ms = parse_wall_ms(last["timestamp"])
    state = last.get("state")
    ended: HowEnded = "open"
    if state == "BROKEN":
        ended = "broken"
    elif state == "END":
        # Java's last record does not say how the holding ended; ours does.
        ended = "lost" if who["ours"] and last.get("lockHeld") is False else "released"
    token = who["fencing_token"]
    return AuditedHolding(
        owner=str(who["owner"]),
        purpose=str(who["purpose"] or ""),
        provider=str(last.get("provider") or who["provider"] or ""),
        fencing_token=token if isinstance(token, int) else None,
        start_ms=start_ms,
        last_ms=last_ms,
        end_ms=last_ms if ended != "open" else None,
        renewals=sum(1 for record in records if record.get("state") == "RENEW"),
        ended=ended,
        by=str(last.get("by", "")),
    )


def _owner_of(owner_id: str) -> dict[str, Any]:
    """Return the parts of our owner text; the owner of a Java record is only its UUID."""
    try:
        parts = json.loads(owner_id)
    except (ValueError, RecursionError):
        parts = None
    ours = isinstance(parts, dict) and isinstance(parts.get("owner"), str)
    known = parts if ours and isinstance(parts, dict) else {"owner": owner_id}
    return {
        "ours": ours,
        "owner": known["owner"],
        "purpose": known.get("purpose"),
        "provider": known.get("provider"),
        "fencing_token": known.get("fencing_token"),
    }


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "timestamp" in record else None


def _start_of(name: str) -> int | None:
    match = _FILE_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def _name_part(owner: str) -> str:
    """Return the writer's id; the file contains the rest of the owner."""
    return re.sub(r"[^A-Za-z0-9-]", "-", owner.rpartition("/")[2])[:64] or "unknown"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
