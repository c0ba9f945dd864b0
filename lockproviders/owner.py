"""
Who holds a lock, as one line of JSON that others may read.

It exists so that every provider tells the same facts and no more: host, pid, writer id,
what the lock is for and since when (SEC6: no environment, no stack, no settings).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from timeline.ports.clock import Clock
from timeline.ports.ids import Ids

__all__ = ["OwnerNote", "as_shared", "describe_owner", "note_owner", "parse_note"]

PURPOSE_CHARACTERS_MAX = 200
APPLICATION_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNote:
    """One holder at one time."""

    owner: str  # host/pid/writer id
    host: str
    pid: int
    application: str
    purpose: str
    since_ms: int  # wall clock of the holder when it asked, ms since 1970 UTC; display only
    nonce: str  # differs with every attempt, so that one's own entry is recognised

    @property
    def text(self) -> str:
        """The note as one line of ASCII JSON."""
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":"))


def note_owner(ids: Ids, clock: Clock, purpose: str) -> OwnerNote:
    """A fresh note about this process; long texts are cut, they are for reading only."""
    me = ids.identity()
    return OwnerNote(
        owner=f"{me.host}/{me.pid}/{me.writer_id}",
        host=me.host,
        pid=me.pid,
        application=me.application[:APPLICATION_CHARACTERS_MAX],
        purpose=purpose[:PURPOSE_CHARACTERS_MAX],
        since_ms=clock.now_ms(),
        nonce=ids.nonce(),
    )


def parse_note(text: str) -> dict[str, Any] | None:
    """The fields of a note; None of one that was cut, or that another engine wrote."""
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) else None


def as_shared(text: str) -> str:
    """The note of one of those who have the lock together, which says so; a cut one as it is."""
    note = parse_note(text)
    if note is None:
        return text
    return json.dumps({**note, "shared": True}, ensure_ascii=True, separators=(",", ":"))


def describe_owner(text: str | None) -> str:
    """A holder's text for an error message; foreign text is shown as it is, but escaped (SEC19)."""
    if not text:
        return "unknown"
    note = parse_note(text)
    if note is None or not isinstance(note.get("owner"), str):
        return ascii(text[:PURPOSE_CHARACTERS_MAX])
    described = ascii(note["owner"][:PURPOSE_CHARACTERS_MAX])[1:-1]
    if note.get("purpose"):
        described += f" for {str(note['purpose'])[:PURPOSE_CHARACTERS_MAX]!a}"
    if note.get("shared") is True:
        described += ", together with other writers of hoodoo"
    return described
