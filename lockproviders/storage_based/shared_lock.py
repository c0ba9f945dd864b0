"""
The lock file shared by hoodoo writers: Java is excluded, and the commit log decides among them.

A writer that has the lock alone keeps it for three round trips to the store, and on high-latency
stores all others wait. Among hoodoo writers that saves work and decides nothing (SLOT-1): the lock
excludes an engine that is not announced. So the file may say that all hoodoo writers share the lock
until a time. To Java it is a lock that is held and renewed. Invariants (LOCK-1):

- A sharer counts its time from before the request that showed or created the record, and never more
  than the length of a holding, whatever a clock says.
- A conditional request only ever moves the end back, so no other engine finds the lock free while a
  sharer has time left. No writer releases it: others may share it.
- A writer that wants the lock alone replaces the record, so no further writer joins. It then waits
  until the earlier sharers' time is over. No writer shares the lock for a while after that.
- After a minute the sharing ends, and the lock stays free for longer than Java's polling interval.
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
from timeline.ports.ports import AmbiguousWriteError, Clock, Ids

LENGTH_MS_MAX = 5_000  # of one holding; a writer that wants the lock alone waits this long
MARGIN_SHARE = 5  # the last fifth of a holding's length is not used
SESSION_MS = 60_000
GAP_MS = 1_500  # Java polls once a second
ALONE_MS = 30_000  # after a writer wanted it alone


@dataclass(frozen=True, slots=True)
class _SharedPeriod:
    """This process's share of the holding that it joined last."""

    ends_at_ms: int  # on the monotonic clock
    token: int


class SharedFileHolding:
    """One use of the shared lock by one writer."""

    def __init__(self, sharer: SharedLockState, time: _SharedPeriod, note: str) -> None:
        self._sharer = sharer
        self._time = time
        self._note = note

    @property
    def margin_ms(self) -> int:
        """Time before its end at which it counts as lost."""
        return self._sharer.margin_ms

    @property
    def fencing_token(self) -> int | None:
        """The sharers' common token, above that of every earlier holding of ours."""
        return self._time.token

    def expires_in_ms(self) -> int | None:
        """Return the time left, counted from before the last request that was answered."""
        return self._time.ends_at_ms - self._sharer.clock.monotonic_ms()

    def is_held(self) -> bool:
        """Return whether it is held, by the own clock; no request."""
        return self._sharer.clock.monotonic_ms() < self._time.ends_at_ms

    def renew(self) -> None:
        """
        Move the end back, but keep it if a writer wants the lock alone.

        Outside: as ``SharedLockState.again``.

        Raises:
            UnavailableError: No answer.
        """
        time = self._sharer.again(self._note)
        if time is not None and time.token == self._time.token:
            self._time = time

    def release(self) -> None:
        """Do nothing: others may share it, and it ends by itself."""


class SharedLockState:
    """
    One client's state of the holding that it shares with others.

    Args:
        place: The lock file.
        owner: This client's id in the file.
        validity_ms: Length of an exclusive lease; a shared one is shorter.
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
        self.last_token = 0  # the greatest that this client had, shared or alone
        self._had = _SharedPeriod(0, 0)
        self._alone_to_ms = 0

    @property
    def has_exclusive_request(self) -> bool:
        """Whether a writer recently wanted the lock alone, as far as this client has seen."""
        return self.clock.now_ms() < self._alone_to_ms

    def read(self) -> tuple[LockRecord | None, ObjectVersion | None]:
        """
        Read the file and its record, None if there is none. Outside: 1 get.

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
        """Record until when a writer wants the lock alone, from the file's content."""
        self._alone_to_ms = record.alone_to_ms

    def known(self, note: str) -> SharedFileHolding | None:
        """Return a holding without a request if enough time of the last one is left, else None."""
        return (
            SharedFileHolding(self, self._had, note) if self._left_ms() >= self._enough_ms else None
        )

    def join(
        self, before: LockRecord, tag: Tag, note: str, *, asked_at_ms: int
    ) -> SharedFileHolding | None:
        """
        Join the sharers of the lock; return None while the sharing ends.

        Outside: no request while enough time is left, else 1 put.

        Args:
            before: The record of a shared lock.
            tag: Its tag.
            note: This writer, for others to read.
            asked_at_ms: Time before the record was read, on the monotonic clock.

        Raises:
            ChangedError, AmbiguousWriteError: Read the file again.
            UnavailableError: No answer, and too little time is left.
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
        Turn a free lock, or one whose sharing is over, into a shared one. Outside: 1 put.

        Raises:
            ChangedError, AmbiguousWriteError: Read the file again.
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
        Extend a holding and return its time; return None if the end cannot be moved.

        Outside: no request while enough time is left, else 1 get, and the requests of ``join``.

        Raises:
            UnavailableError: No answer.
        """
        if self._left_ms() >= self._enough_ms:
            return self._had
        asked_at_ms = self.clock.monotonic_ms()
        try:
            record, seen = self.read()
            if seen is None or record is None or not record.is_shared:
                return None
            self.join(record, seen.tag, note, asked_at_ms=asked_at_ms)
            return self._had
        except (ChangedError, AmbiguousWriteError):
            return None
        except UnsafeSetupError as error:
            # A holder can only continue; access that was refused may return.
            raise UnavailableError(error.message, **error.fields) from error

    def _left_ms(self) -> int:
        return self._had.ends_at_ms - self.clock.monotonic_ms()

    def _serves(self) -> bool:
        """Return whether enough time is left: more than the margin by an eighth of the length."""
        return self._left_ms() >= self.margin_ms + self.length_ms // 8
