"""
What a lock row of the Hive Metastore tells about us, and what its settings may say; pure.

Both ways to the lock, by Thrift and by the metastore's database, write the same rows, so
they share this. A row has 128 characters of free text (``agentInfo``): a mark of ours, a
nonce by which an unanswered request is found again, and who asked for what.

Releases of the metastore up to 2.3 put the texts of a request between quotes into SQL without
escaping them. What we write is therefore reduced to harmless characters, and names of a
database or table with others are refused instead of sent.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from timeline.errors import SettingError

__all__ = [
    "LEASE_MS_DEFAULT",
    "USER",
    "LockName",
    "LockRow",
    "agent_text",
    "check_name",
    "duration_ms",
    "nonce_of",
    "plain_text",
]

MARK = "hoodoo"
USER = "hoodoo"  # the account's name stays with us (SEC6)
NONCE_CHARACTERS = 20
TEXT_CHARACTERS_MAX = 128
LEASE_MS_DEFAULT = 300_000  # hive.txn.timeout, where the server does not tell
NO_OWNER = "-"

_UNSAFE = re.compile(r"[^A-Za-z0-9 ._:/@=+,()-]")
_NAME = re.compile(r"[ !#-&(-\[\]-_a-~]{1,128}")  # printable ASCII but quotes and backslash
_DURATION = re.compile(r"([0-9]{1,15})\s*([a-z]*)")
_UNIT_MS = {
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_UNIT_NAMES = {
    "": "s",
    "day": "d",
    "days": "d",
    "hour": "h",
    "hours": "h",
    "min": "m",
    "minute": "m",
    "minutes": "m",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "msec": "ms",
    "millisecond": "ms",
    "milliseconds": "ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockName:
    """What is locked: names as the Java writers spell them; neither need exist."""

    database: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRow:
    """One request of anybody for the lock, as the metastore lists it."""

    lock_id: int
    acquired: bool
    user: str
    host: str
    agent: str

    @property
    def holder_text(self) -> str:
        """Who it belongs to, in the form of ``owner.py``; foreign rows by user and host."""
        words = self.agent.split(" ", 3)
        purpose = words[3] if len(words) > 3 else ""
        if nonce_of(self.agent) is None or len(words) < 3:
            owner = f"{self.user}@{self.host}"
            purpose = "" if self.agent == "Unknown" else self.agent
        elif words[2] == NO_OWNER:
            return purpose
        else:
            owner = f"{self.host}/{words[2]}"
        return json.dumps({"owner": owner, "purpose": purpose, "lock_id": self.lock_id})


def check_name(key: str, value: str | None, layer: str) -> str:
    """
    A database or table name that may be sent verbatim.

    Raises:
        SettingError: It is missing, longer than the row's 128 characters, or has quotes,
            backslashes or characters beyond printable ASCII.
    """
    if value and _NAME.fullmatch(value):
        return value
    wanted = "a name of up to 128 characters of plain ASCII without quotes or backslashes"
    raise SettingError(
        f"the metastore's lock needs {wanted}, spelled as the Java writers spell it; "
        f"{key} is {(value or '')[:200]!a} (from {layer})",
        kind="setting_value" if value else "setting_missing",
        key=key,
        value=(value or "")[:200],
        layer=layer,
        suggestion=wanted,
    )


def agent_text(nonce: str, owner_text: str) -> str:
    """
    The free text of our row: mark, nonce, who and what for; at most 128 harmless characters.

    Args:
        nonce: Differs with every request; hexadecimal.
        owner_text: The JSON note of ``owner.py``, or any other text.
    """
    try:
        note = json.loads(owner_text)
    except (ValueError, RecursionError):
        note = None
    if isinstance(note, dict) and isinstance(note.get("owner"), str):
        # The host has a field of its own in the row.
        who = note["owner"].partition("/")[2] or NO_OWNER
        purpose = str(note.get("purpose", ""))
    else:
        who, purpose = NO_OWNER, owner_text
    words = (MARK, nonce[:NONCE_CHARACTERS], plain_text(who).replace(" ", "_"), purpose)
    return plain_text(" ".join(words)).strip()


def plain_text(text: str) -> str:
    """Text with everything that could mean something in SQL replaced, cut to the row's width."""
    return _UNSAFE.sub("_", text)[:TEXT_CHARACTERS_MAX]


def nonce_of(agent: str) -> str | None:
    """The nonce in a row's free text; None when it is not of our kind."""
    words = agent.split(" ")
    return words[1] if len(words) > 1 and words[0] == MARK else None


def duration_ms(text: str) -> int | None:
    """A duration as Hive writes it (``300s``, ``5 min``, plain seconds); None if it is none."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        return None
    unit_ms = _UNIT_MS.get(_UNIT_NAMES.get(found[2], found[2]))
    return None if unit_ms is None else int(found[1]) * unit_ms
