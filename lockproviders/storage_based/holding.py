"""One holding of the lock file: it is renewed and given back, and found again where in doubt."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lockproviders.storage_based.lock_file import LockRecord
from lockproviders.storage_based.objects import ChangedError, ConditionalObject, Seen, Tag
from lockproviders.storage_based.settings import StorageLockSettings
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.ports.clock import Clock
from timeline.ports.storage import AmbiguousWriteError

__all__ = ["StorageHolding"]

_ROUNDS_MAX = 4
_PAUSE_MS = 200  # before the second round of a release; doubled for each further one


class StorageHolding:
    """One holding: the record that is ours and the tag under which the store keeps it."""

    def __init__(
        self,
        place: ConditionalObject,
        record: LockRecord,
        tag: Tag,
        *,
        sent_at_ms: int,
        ready_at_ms: int,
        settings: StorageLockSettings,
        clock: Clock,
        left: Callable[[LockRecord, Tag], None],
        kept: Callable[[str], None],
    ) -> None:
        self._left = left
        self._kept = kept
        self._place = place
        self._record = record
        self._tag = tag
        self._settings = settings
        self._clock = clock
        self._ends_at_ms = sent_at_ms + settings.validity_ms
        self._ready_at_ms = ready_at_ms
        self._over = False  # released, or known to be lost
        self._guard = threading.Lock()  # a renewal never overtakes the release

    @property
    def fencing_token(self) -> int | None:
        """Above that of every earlier holding of ours."""
        return self._record.token

    def expires_in_ms(self) -> int | None:
        """Time left, counted from before the last request that was answered."""
        return self._ends_at_ms - self._clock.monotonic_ms()

    def ready_in_ms(self) -> int:
        """Time until nobody has it any more who shared it before (LOCK-1)."""
        return max(0, self._ready_at_ms - self._clock.monotonic_ms())

    def is_held(self) -> bool:
        """By the own clock; no request."""
        return not self._over and self._clock.monotonic_ms() < self._ends_at_ms

    def renew(self) -> None:
        """
        Push the end back. Outside: 1 put; in doubt 1 get and 1 put for each of 4 rounds.

        Raises:
            LeaseLostError: Somebody else has the lock, or it was broken.
            UnavailableError: No answer.
        """
        with self._guard:
            if self._over:
                raise self._lost()
            sent_at_ms = self._clock.monotonic_ms()
            until_ms = self._clock.now_ms() + self._settings.validity_ms
            if not self._replace(self._record.until(until_ms)):
                self._over = True
                raise self._lost()
            self._ends_at_ms = sent_at_ms + self._settings.validity_ms

    def release(self) -> None:
        """
        Mark the own holding as ended, and only that; a lost one is left alone.

        Outside: 1 put; in doubt as ``renew``, with pauses while the store asks for them,
        because a lock that is left behind keeps everybody waiting for a whole lease.

        Raises:
            UnavailableError: No answer; the lock ends with its lease.
        """
        with self._guard:
            if self._over:
                return
            if self.ready_in_ms():  # those who shared it are to keep others out until their end
                self._clock.sleep_ms(self.ready_in_ms())
            pause_ms = _PAUSE_MS
            for last in (False, False, False, True):
                try:
                    if self._replace(self._record.released()):
                        self._left(self._record, self._tag)
                except UnavailableError:
                    if last:
                        # Nobody acts under it any more: our client need not wait for its end.
                        self._kept(self._record.nonce)
                        raise
                else:
                    break
                self._clock.sleep_ms(pause_ms)
                pause_ms *= 2
            self._over = True

    def _replace(self, wanted: LockRecord) -> bool:
        """Put a further content of this holding; False when the lock is not ours any more."""
        try:
            for _ in range(_ROUNDS_MAX):
                try:
                    self._tag = self._place.put(wanted.encode(), self._tag)
                except (ChangedError, AmbiguousWriteError):
                    seen = self._place.read()
                    found = None if seen is None else _decoded(seen, self._place)
                    if seen is None or found is None or found.nonce != self._record.nonce:
                        return False
                    self._tag = seen.tag
                    if found != wanted:
                        if found.expired:
                            return False  # an operator broke it
                        continue  # an older request of ours came late, or this one did not come
                self._record = wanted
                return True
        except UnsafeSetupError as error:
            # Who holds a lock can only go on; access that was taken away may come back.
            raise UnavailableError(error.message, **error.fields) from error
        raise UnavailableError(
            f"the lock file could not be replaced in {_ROUNDS_MAX} rounds: {self._place.address}"
        )

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(
            "the lock file has another holder, or was given back: stop this write: "
            f"{self._place.address}",
            path=self._place.address,
        )


def _decoded(seen: Seen, place: ConditionalObject) -> LockRecord | None:
    """The record, None when it is damaged and so certainly not ours."""
    try:
        return LockRecord.decode(seen.data, place.address)
    except UnsafeSetupError:
        return None
