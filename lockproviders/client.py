"""What the author of a lock provider implements: a client, its holding, the owner text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from timeline.ports.ports import Clock, Ids

__all__ = [
    "BreakableLockClient",
    "ClockedLockClient",
    "DelayedHolding",
    "Holding",
    "LockClient",
    "OwnerNote",
    "QueueEntry",
    "QueueingLockClient",
    "SharedHolding",
    "SharingLockClient",
    "describe_owner",
    "note_owner",
    "parse_note",
    "shared_owner_note",
]

# -------------------------------------- Who holds a lock, as one line of JSON that others may read
#
# It exists so that every provider tells the same facts and no more: host, pid, writer id,
# what the lock is for and since when (SEC6: no environment, no stack, no settings).

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


def shared_owner_note(text: str) -> str:
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


# ------------ What the author of a lock provider writes: a client that tries once, and its holding
#
# Waiting, deadlines, renewal, events and the check before every timeline write are the same
# for all providers and live in ``acquire.py`` and ``lease.py``. A provider therefore only
# answers "can I have it now", "do I still have it" and "take it back". Rules for all of them:
#
# - ``try_acquire`` never waits for another holder; one request (or a few) and an answer.
# - Only the own holding is ever renewed or released (F26: Java's file lock deletes
#   a stranger's).
# - An error after the lock may have been taken must give it back before it is raised.
# - Ports only: no ``time``, no threads, no randomness of its own.
#
# A service that keeps a queue of its own (ZooKeeper, the metastore) offers ``enter`` as well:
# a waiter then has one place in that queue for the whole acquire, instead of asking anew and
# being overtaken, and is woken instead of polling blindly.


class Holding(Protocol):
    """One successful ``try_acquire``."""

    @property
    def fencing_token(self) -> int | None:
        """A number larger than that of every earlier holding, or None without one."""

    def expires_in_ms(self) -> int | None:
        """
        Time until others may take the lock, on the monotonic clock; None when it has no end.

        Counted from before the request was sent, so that it never promises too much.
        """

    def renew(self) -> None:
        """
        Push the end back by a full lease length; does nothing without an end.

        Raises:
            LeaseLostError: Somebody else has the lock, or it is gone.
            UnavailableError: No answer; tried again at the next beat.
        """

    def is_held(self) -> bool:
        """What can be known cheaply (no request over a network): is it still ours?"""

    def release(self) -> None:
        """
        Give back the own holding, and only that. Twice is no error.

        Raises:
            UnavailableError: No answer; the lock ends with its lease.
        """


class LockClient(Protocol):
    """A provider's connection for one lock of one table."""

    @property
    def identity(self) -> str:
        """What is locked; equal text in two writers means that they exclude each other (REG-1)."""

    @property
    def margin_ms(self) -> int:
        """How long before its end a lease counts as lost: twice the request timeout, 0 if local."""

    def try_acquire(self, owner_text: str) -> Holding | None:
        """
        Take the lock if it is free, else answer None at once.

        Args:
            owner_text: Who we are, for others to read; host, pid and ids only (SEC6).

        Raises:
            UnavailableError: No answer; the caller tries again within its budget.
            UnsafeSetupError: The set-up cannot work; waiting does not help.
        """

    def holder(self) -> str | None:
        """The owner text of whoever holds the lock now, None when free or not known."""

    def close(self) -> None:
        """Give up connections. Twice is no error."""


@runtime_checkable
class SharedHolding(Holding, Protocol):
    """A holding that writers of hoodoo have together; short, and never given back."""

    @property
    def margin_ms(self) -> int:
        """How long before its end it counts as lost, in place of the client's."""


@runtime_checkable
class DelayedHolding(Holding, Protocol):
    """A holding of its own that may follow a shared one."""

    def ready_in_ms(self) -> int:
        """Time until nobody has it any more who shared it before; nothing is done until then."""


class QueueEntry(Protocol):
    """One waiter's place in the queue of a service; made by ``enter``, used by one thread."""

    def try_acquire(self) -> Holding | None:
        """
        Queue up on the first call, take the lock if it is our turn, else answer None at once.

        Raises:
            UnavailableError: No answer; the place may be kept or not, the next call sees to it.
            UnsafeSetupError: The set-up cannot work; waiting does not help.
        """

    def wait(self, duration_ms: int) -> None:
        """Wait, but end as soon as ``try_acquire`` may answer otherwise than before."""

    def leave(self) -> None:
        """
        Give up the place, so that nobody waits behind it; does not raise. Twice is no error.

        Called exactly when no holding came of it, whatever the reason.
        """


@runtime_checkable
class QueueingLockClient(LockClient, Protocol):
    """A client whose service keeps its own queue."""

    def enter(self, owner_text: str) -> QueueEntry:
        """A place for one acquire; asks the service nothing yet."""


@runtime_checkable
class SharingLockClient(LockClient, Protocol):
    """A client whose lock writers of hoodoo may have together, while other engines are kept out."""

    @property
    def shares(self) -> bool:
        """Whether it would be shared now, as far as known without a request."""

    def try_share(self, owner_text: str, *, starts: bool) -> Holding | None:
        """
        Join those who have it together, or take it if it is free, else answer None at once.

        Args:
            owner_text: As of ``try_acquire``.
            starts: Whether a free lock becomes a shared one; else it is had alone.

        Raises:
            UnavailableError, UnsafeSetupError: As ``try_acquire``.
        """


@runtime_checkable
class BreakableLockClient(LockClient, Protocol):
    """A client that can take the lock away from a holder without harming another one."""

    def break_lock(self, holder_text: str) -> bool:
        """
        Take the lock away, if its holder is still the named one; atomically, or not at all.

        The broken holder must find out at its next renewal, and its release must leave the
        next holder alone.

        Args:
            holder_text: What ``holder`` answered.

        Returns:
            Whether it was taken away; False when somebody else holds it now, or nobody.

        Raises:
            UnavailableError: No answer.
        """


@runtime_checkable
class ClockedLockClient(LockClient, Protocol):
    """A client whose service tells its time."""

    def server_now_ms(self) -> int:
        """
        The service's wall clock, ms since 1970-01-01 UTC.

        Raises:
            UnavailableError: No answer.
        """
