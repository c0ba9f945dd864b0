"""The interfaces that the author of a lock provider implements: client, holding, owner text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from timeline.ports.ports import Clock, Ids

# ---- The owner of a lock, as one line of JSON that others may read
#
# Every provider shows the same facts and no more: host, pid, writer id, purpose and start
# (SEC6: no environment, no stack, no settings).

PURPOSE_CHARACTERS_MAX = 200
APPLICATION_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerNote:
    """The owner of one attempt to take the lock."""

    owner: str  # host/pid/writer id
    host: str
    pid: int
    application: str
    purpose: str
    since_ms: int  # wall clock of the holder when it asked, ms since 1970 UTC; display only
    nonce: str  # differs with every attempt, so that a client recognises its own entry

    @property
    def text(self) -> str:
        """The note as one line of ASCII JSON."""
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":"))


def note_owner(ids: Ids, clock: Clock, purpose: str) -> OwnerNote:
    """Return a new note about this process; long texts are cut, they are for reading only."""
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
    """Return the fields of a note, or None if it was cut or another engine wrote it."""
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) else None


def shared_owner_note(text: str) -> str:
    """Return the note of one sharer of the lock, marked as shared; return a cut note unchanged."""
    note = parse_note(text)
    if note is None:
        return text
    return json.dumps({**note, "shared": True}, ensure_ascii=True, separators=(",", ":"))


def describe_owner(text: str | None) -> str:
    """Return a holder's text for an error message; foreign text is escaped (SEC19)."""
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


# ---- Client and holding
#
# ``acquire.py`` and ``lease.py`` do the waiting, deadlines, renewal, events and the check before
# every timeline write for all providers. A provider only takes, checks and releases the lock. Rules
# for all providers:
#
# - ``try_acquire`` never waits for another holder; it sends one request (or a few) and returns.
# - A client renews and releases only its own holding (F26: Java's file lock deletes a stranger's).
# - If an error occurs after the lock may have been taken, release it before raising the error.
# - Use ports only: no ``time``, no threads, no own randomness.
#
# A service with its own queue (ZooKeeper, the metastore) also offers ``enter``. A waiter then keeps
# one queue entry for the whole acquire, so later waiters do not overtake it, and the service wakes
# it instead of blind polling.


class Holding(Protocol):
    """One successful ``try_acquire``."""

    @property
    def fencing_token(self) -> int | None:
        """A number larger than that of every earlier holding, or None if the provider has none."""

    def expires_in_ms(self) -> int | None:
        """
        Return the time until others may take the lock, by the monotonic clock; None without an end.

        It counts from before the request was sent, so it never promises too much.
        """

    def renew(self) -> None:
        """
        Move the end to a full lease length from now; do nothing without an end.

        Raises:
            LeaseLostError: Another writer has the lock, or it is gone.
            UnavailableError: No answer; the lease tries again at its next beat.
        """

    def is_held(self) -> bool:
        """Return whether the lock is still ours, as far as known without a network request."""

    def release(self) -> None:
        """
        Release the own holding, and only that; a second call does nothing.

        Raises:
            UnavailableError: No answer; the lock ends with its lease.
        """


class LockClient(Protocol):
    """A provider's connection for one lock of one table."""

    @property
    def identity(self) -> str:
        """Name of the lock; two writers with equal names exclude each other (REG-1)."""

    @property
    def margin_ms(self) -> int:
        """Time before its end when a lease counts as lost: twice the request time-out, or 0."""

    def try_acquire(self, owner_text: str) -> Holding | None:
        """
        Take the lock if it is free, else return None at once.

        Args:
            owner_text: Description of this process for others to read; host, pid and ids only
                (SEC6).

        Raises:
            UnavailableError: No answer; the caller tries again within its budget.
            UnsafeSetupError: The set-up cannot work; waiting does not help.
        """

    def holder(self) -> str | None:
        """Return the owner text of the current holder, or None if free or unknown."""

    def close(self) -> None:
        """Close connections; a second call does nothing."""


@runtime_checkable
class SharedHolding(Holding, Protocol):
    """A short holding that hoodoo writers share; it expires and is never released."""

    @property
    def margin_ms(self) -> int:
        """Time before its end at which it counts as lost, in place of the client's margin."""


@runtime_checkable
class DelayedHolding(Holding, Protocol):
    """An exclusive holding that may follow a shared one."""

    def ready_in_ms(self) -> int:
        """Return the time until the last shared lease ends; the holder does nothing until then."""


class QueueEntry(Protocol):
    """One waiter's entry in the queue of a service; made by ``enter``, used by one thread."""

    def try_acquire(self) -> Holding | None:
        """
        Enter the queue on the first call; take the lock if the entry is first, else return None.

        It returns at once.

        Raises:
            UnavailableError: No answer; the entry may be lost, and the next call repairs that.
            UnsafeSetupError: The set-up cannot work; waiting does not help.
        """

    def wait(self, duration_ms: int) -> None:
        """Wait, but return as soon as ``try_acquire`` may have a different result."""

    def leave(self) -> None:
        """
        Remove the entry, so that no waiter stays behind it; never raise. Twice is no error.

        The caller calls it exactly when the entry led to no holding, whatever the reason.
        """


@runtime_checkable
class QueueingLockClient(LockClient, Protocol):
    """A client whose service keeps its own queue."""

    def enter(self, owner_text: str) -> QueueEntry:
        """Return an entry for one acquire; send no request yet."""


@runtime_checkable
class SharingLockClient(LockClient, Protocol):
    """A client whose lock hoodoo writers may share, while it excludes other engines."""

    @property
    def shares(self) -> bool:
        """Whether it would be shared now, as far as known without a request."""

    def try_share(self, owner_text: str, *, starts: bool) -> Holding | None:
        """
        Join the sharers of the lock, or take a free lock, else return None at once.

        Args:
            owner_text: As of ``try_acquire``.
            starts: Whether a free lock becomes a shared one; else the holding is exclusive.

        Raises:
            UnavailableError, UnsafeSetupError: As ``try_acquire``.
        """


@runtime_checkable
class BreakableLockClient(LockClient, Protocol):
    """A client that can take the lock away from one holder without harm to another one."""

    def break_lock(self, holder_text: str) -> bool:
        """
        Take the lock away if its holder is still the named one; atomically, or not at all.

        The broken holder must notice it at its next renewal, and its release must not affect the
        next holder.

        Args:
            holder_text: The result of ``holder``.

        Returns:
            Whether it was taken away; False if it is free or has another holder now.

        Raises:
            UnavailableError: No answer.
        """


@runtime_checkable
class ClockedLockClient(LockClient, Protocol):
    """A client whose service reports its time."""

    def server_now_ms(self) -> int:
        """
        Return the service's wall clock, ms since 1970-01-01 UTC.

        Raises:
            UnavailableError: No answer.
        """
