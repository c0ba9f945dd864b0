"""
The content of Java's lock file and the rules about it: pure, without a connection.

The file is ``<table>/.hoodie/.locks/table_lock.json``, the same for Java Hudi's
``StorageBasedLockProvider``, which was run, and for ours. Invariants:

- Java's three fields are always there; a file without one of them is damaged for Java too.
- ``expired`` wins over any ``validUntil``; a free file stays where it is, because object
  stores cannot delete on a condition.
- Our further fields tell a holding from another one of the same owner (the nonce), name the
  holder and count holdings; Java reads over them and drops them when it takes the lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from timeline.errors import UnsafeSetupError

__all__ = ["DRIFT_MS", "LOCK_PATH", "NOTE_CHARACTERS_MAX", "LockRecord", "next_token"]

LOCK_PATH = ".hoodie/.locks/table_lock.json"
DRIFT_MS = 500  # Java's tolerance between the clocks of two machines
RECORD_BYTES_MAX = 64 * 1024
NOTE_CHARACTERS_MAX = 2_000

_EXPIRED, _UNTIL, _OWNER = "expired", "validUntil", "owner"
_NONCE, _NOTE, _TOKEN = "hoodooNonce", "hoodooOwner", "hoodooToken"
_SHARED, _ALONE = "hoodooSharedTo", "hoodooAloneTo"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """One content of the file."""

    expired: bool
    valid_until_ms: int  # wall clock of the holder, ms since 1970 UTC
    owner: str  # one for each client; Java's are UUIDs too
    nonce: str = ""  # ours: one for each holding
    note: str = ""  # ours: who that is, for people
    token: int = 0  # ours: the count of holdings; 0 in Java's
    shared_to_ms: int = 0  # ours: writers of hoodoo have it together, at the longest until then
    alone_to_ms: int = 0  # ours: nobody shares it until then

    def encode(self) -> bytes:
        """The bytes as they are written: Java's fields in Java's order, ours behind them."""
        content: dict[str, object] = {
            _EXPIRED: self.expired,
            _UNTIL: self.valid_until_ms,
            _OWNER: self.owner,
        }
        if self.nonce:
            content |= {_NONCE: self.nonce, _NOTE: self.note, _TOKEN: self.token}
        ends = {_SHARED: self.shared_to_ms, _ALONE: self.alone_to_ms}
        content |= {name: end_ms for name, end_ms in ends.items() if end_ms}
        return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes, address: str) -> LockRecord:
        """
        Read the file as Java does: all three of its fields or an error.

        Raises:
            UnsafeSetupError: It is damaged (kind ``lock_file``); nobody can take the lock,
                Java neither, until an operator has looked.
        """
        try:
            content = json.loads(data) if len(data) <= RECORD_BYTES_MAX else None
        except (ValueError, RecursionError):
            content = None
        found = content if isinstance(content, dict) else {}
        expired, until, owner = found.get(_EXPIRED), found.get(_UNTIL), found.get(_OWNER)
        if (
            not isinstance(expired, bool)
            or not isinstance(until, int)
            or isinstance(until, bool)
            or not isinstance(owner, str)
        ):
            raise UnsafeSetupError(
                "the lock file is damaged, so that neither we nor Java can take the lock: make "
                f"sure that no writer is at work, then delete it: {address}",
                kind="lock_file",
                path=address,
            )
        nonce, note = found.get(_NONCE), found.get(_NOTE)
        return LockRecord(
            expired=expired,
            valid_until_ms=until,
            owner=owner,
            nonce=nonce if isinstance(nonce, str) else "",
            note=note[:NOTE_CHARACTERS_MAX] if isinstance(note, str) else "",
            token=_number(found, _TOKEN),
            shared_to_ms=_number(found, _SHARED),
            alone_to_ms=_number(found, _ALONE),
        )

    @property
    def is_shared(self) -> bool:
        """Whether writers of hoodoo have it, or had it, together (LOCK-1)."""
        return self.shared_to_ms > 0

    def is_valid_at(self, now_ms: int) -> bool:
        """Whether somebody holds the lock by this wall clock, as Java judges it."""
        return not self.expired and now_ms <= self.valid_until_ms + DRIFT_MS

    def is_holding(self, owner: str, nonce: str) -> bool:
        """Whether this is one certain holding of ours, still held."""
        return not self.expired and self.owner == owner and self.nonce == nonce != ""

    def until(self, valid_until_ms: int) -> LockRecord:
        """The same holding with another end."""
        return replace(self, valid_until_ms=valid_until_ms)

    def released(self) -> LockRecord:
        """The same given back; the end stays, as Java leaves it."""
        return replace(self, expired=True)


def _number(content: dict[str, object], name: str) -> int:
    found = content.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def next_token(before: LockRecord | None, *, now_ms: int, validity_ms: int, at_least: int) -> int:
    """
    A number above that of every earlier holding.

    Java's holders drop the count, but their ends are wall-clock times like it: a token begins
    at the end of the holding before it and never falls behind. Nor does it behind the end that
    a lease of ours would have now, because those of Java may be shorter.

    Args:
        before: The record that is replaced, None for a new file.
        now_ms: The wall clock, for what no record tells.
        validity_ms: Length of a lease.
        at_least: The last token this client had.
    """
    if before is None:
        return max(now_ms + validity_ms, at_least + 1)
    return max(before.token, before.valid_until_ms, now_ms + validity_ms, at_least) + 1
