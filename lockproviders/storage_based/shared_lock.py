"""
The lock file held by writers of hoodoo together: Java stays out, and they decide by their slots.

Who has the lock alone keeps it for three rounds of requests to the store, and far away all others
wait for them. Among ours that spares work and decides nothing (SLOT-1): the lock is there for an
engine that nobody announced. So the file may say that it belongs to all of ours until a time. To
Java it is a lock that somebody has, and renews. Invariants (LOCK-1):

- A member counts its time from before the request that showed or made it, and never more than
  the length of a holding, whatever a clock says.
- The end is only ever put off, by a conditional request, so no other engine finds the lock free
  while a member has time left. Nobody gives it back: others may be in it.
- Who wants the lock alone replaces the record, from when on nobody joins, and waits as long as
  those who joined before have left. Then it is nobody's together for a while.
- After a minute it ends, and stays free for longer than Java waits between two looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockproviders.storage_based.lock_file import (
    ChangedError,
    ConditionalObject,
    LockRecord,
    ObjectVersion,
    Tag,
    next_token,
)
from timeline.errors import UnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock, Ids
from timeline.ports.storage import AmbiguousWriteError

__all__ = ["ALONE_MS", "GAP_MS", "SESSION_MS", "SharedFileHolding", "SharedLockState"]

LENGTH_MS_MAX = 5_000  # of one holding; so long waits who wants the lock alone
MARGIN_SHARE = 5  # of a holding's length its last fifth is not used
SESSION_MS = 60_000
GAP_MS = 1_500  # Java looks once a second
ALONE_MS = 30_000  # after somebody wanted it alone


@dataclass(frozen=True, slots=True)
class _SharedPeriod:
    """What this process has of the holding that it joined last."""

    ends_at_ms: int  # on the monotonic clock
    token: int


class SharedFileHolding:
    """One use of the lock by one of those who have it together."""

    def __init__(self, sharer: SharedLockState, time: _SharedPeriod, note: str) -> None:
        self._sharer = sharer
        self._time = time
        self._note = note

    @property
    def margin_ms(self) -> int:
        """So much before its end it counts as lost."""
        return self._sharer.margin_ms

    @property
    def fencing_token(self) -> int | None:
        """That of all who share; above that of every earlier holding of ours."""
        return self._time.token

    def expires_in_ms(self) -> int | None:
        """Time left, counted from before the last request that was answered."""
        return self._time.ends_at_ms - self._sharer.clock.monotonic_ms()

    def is_held(self) -> bool:
        """By the own clock; no request."""
        return self._sharer.clock.monotonic_ms() < self._time.ends_at_ms

    def renew(self) -> None:
        """
        Put the end off, unless somebody wants the lock alone: then it stays where it is.

        Outside: as ``Sharer.again``.

        Raises:
            UnavailableError: No answer.
        """
        time = self._sharer.again(self._note)
        if time is not None and time.token == self._time.token:
            self._time = time

    def release(self) -> None:
        """Nothing: others may be in it, and it ends by itself."""


class SharedLockState:
    """
    What one client knows of the holding that it has with others.

    Args:
        place: The lock file.
        owner: This client's id in the file.
        validity_ms: Length of a lease of one's own; one that is shared is shorter.
        clock: Clock port.
        ids: Identity port.
    """

    def __init__(
        self, place: ConditionalObject, *, owner: str, validity_ms: int, clock: Clock, ids: Ids
    ) -> None:
        self.clock = clock
        self._place = place
        self._owner = owner
        self._ids = ids
        self.length_ms = min(LENGTH_MS_MAX, validity_ms // 2)
        self.margin_ms = self.length_ms // MARGIN_SHARE
        self._enough_ms = self.length_ms // 2
        self._validity_ms = validity_ms
        self.last_token = 0  # the greatest that this client had, together with others or alone
        self._had = _SharedPeriod(0, 0)
        self._alone_to_ms = 0

    @property
    def is_wanted_alone(self) -> bool:
        """Whether somebody wanted the lock alone not long ago, as far as this client has seen."""
        return self.clock.now_ms() < self._alone_to_ms

    def look(self) -> tuple[LockRecord | None, ObjectVersion | None]:
        """
        The file, None when there is none. Outside: 1 get.

        Raises:
            UnavailableError: No answer.
            UnsafeSetupError: It is damaged, access is refused, or there is no bucket.
        """
        seen = self._place.read()
        if seen is None:
            return None, None
        record = LockRecord.decode(seen.data, self._place.address)
        self.learn(record)
        return record, seen

    def learn(self, record: LockRecord) -> None:
        """What a content of the file tells about who wants the lock alone."""
        self._alone_to_ms = record.alone_to_ms

    def known(self, note: str) -> SharedFileHolding | None:
        """A holding without a request, where enough is left of the last one."""
        return (
            SharedFileHolding(self, self._had, note) if self._left_ms() >= self._enough_ms else None
        )

    def join(
        self, before: LockRecord, tag: Tag, note: str, *, asked_at_ms: int
    ) -> SharedFileHolding | None:
        """
        Join those who have the lock together; None while that ends.

        Outside: nothing as long as enough is left, else 1 put.

        Args:
            before: The record, of a lock that is shared.
            tag: Its tag.
            note: Who we are, for others to read.
            asked_at_ms: Before the record was read, on the monotonic clock.

        Raises:
            ChangedError, AmbiguousWriteError: Look again.
            UnavailableError: No answer, and too little is left.
        """
        now_ms = self.clock.now_ms()
        if before.expired or now_ms >= before.shared_to_ms + GAP_MS:
            return self.start(before, tag, note)
        left_ms = min(before.valid_until_ms - now_ms, self.length_ms)
        had = _SharedPeriod(asked_at_ms + left_ms, before.token)
        if left_ms < self._enough_ms:
            sent_at_ms, now_ms = self.clock.monotonic_ms(), self.clock.now_ms()
            until_ms = min(now_ms + self.length_ms, before.shared_to_ms)
            if until_ms - now_ms >= self._enough_ms:
                try:
                    self._place.put(replace(before.until(until_ms), note=note).encode(), tag)
                    had = _SharedPeriod(sent_at_ms + until_ms - now_ms, before.token)
                except UnavailableError:
                    self._had = had
                    if not self._serves():
                        raise
        self.last_token = max(self.last_token, had.token)
        self._had = had
        return SharedFileHolding(self, had, note) if self._serves() else None

    def start(self, before: LockRecord | None, tag: Tag | None, note: str) -> SharedFileHolding:
        """
        Make a free lock, or one whose time together is over, one that is shared. Outside: 1 put.

        Raises:
            ChangedError, AmbiguousWriteError: Look again.
            UnavailableError: No answer.
        """
        sent_at_ms, now_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        record = LockRecord(
            expired=False,
            valid_until_ms=now_ms + self.length_ms,
            owner=self._owner,
            nonce=self._ids.nonce(),
            note=note,
            token=next_token(
                before, now_ms=now_ms, validity_ms=self._validity_ms, at_least=self.last_token
            ),
            shared_to_ms=now_ms + SESSION_MS,
        )
        self._place.put(record.encode(), tag)
        self.last_token = record.token
        self._had = _SharedPeriod(sent_at_ms + self.length_ms, record.token)
        return SharedFileHolding(self, self._had, note)

    def again(self, note: str) -> _SharedPeriod | None:
        """
        The time left after another look from within a holding; None where it ends as it was.

        Outside: nothing as long as enough is left, else 1 get, and what ``join`` asks.

        Raises:
            UnavailableError: No answer.
        """
        if self._left_ms() >= self._enough_ms:
            return self._had
        asked_at_ms = self.clock.monotonic_ms()
        try:
            record, seen = self.look()
            if seen is None or record is None or not record.is_shared:
                return None
            self.join(record, seen.tag, note, asked_at_ms=asked_at_ms)
            return self._had
        except (ChangedError, AmbiguousWriteError):
            return None
        except UnsafeSetupError as error:
            # Who has the lock can only go on; access that was taken away may come back.
            raise UnavailableError(error.message, **error.fields) from error

    def _left_ms(self) -> int:
        return self._had.ends_at_ms - self.clock.monotonic_ms()

    def _serves(self) -> bool:
        """Whether something can be done with what is left: more than its margin by an eighth."""
        return self._left_ms() >= self.margin_ms + self.length_ms // 8
