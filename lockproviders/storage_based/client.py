"""
The lock in the table's own object store: Java Hudi's lock file, replaced on conditions.

Needs no service beside S3, GCS or Azure, and excludes Java's ``StorageBasedLockProvider``
(concurrency 7.2). Invariants:

- Every change is one conditional request that no client repeats by itself; "it has changed"
  and no answer at all are both looked up by owner and nonce before anything is concluded
  (F16: the own write that was delivered twice looks like a stranger's).
- An acquire whose answer was lost is remembered: if it turns out to have worked, this client
  takes it over instead of waiting for its own lease to end.
- A holder that did not release is followed only when its time is over by this machine's
  clock (Java's rule) and by the store's: a clock that runs ahead steals nothing (F12).
- The file is never deleted: only a replacement can be made on a condition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry
from lockproviders.storage_based.lock_file import (
    LOCK_PATH,
    NOTE_CHARACTERS_MAX,
    LockRecord,
    next_token,
)
from lockproviders.storage_based.objects import ChangedError, ConditionalObject, Seen, Tag
from timeline.errors import LeaseLostError, SettingError, UnavailableError, UnsafeSetupError
from timeline.ports.clock import Clock
from timeline.ports.ids import Ids
from timeline.ports.storage import AmbiguousWriteError
from timeline.properties.options import (
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    read_option,
)
from timeline.storage.object_address import is_object_address, parse_object_address, with_account
from timeline.storage.object_client import ObjectSettings, open_client

__all__ = ["ENTRY", "OPTIONS", "StorageClient", "StorageLockSettings"]

_SECOND_MS = 1_000
_RENEWALS_PER_VALIDITY = 10  # Java's rule; it refuses to start otherwise
_SECONDS_MAX = 7 * 24 * 3_600
_REQUESTS_PER_VALIDITY = 20
_REQUEST_MS_MIN, _REQUEST_MS_MAX = 500, 10_000
_ROUNDS_MAX = 4
_PAUSE_MS = 200  # before the second round of a release; doubled for each further one

OPTIONS: Mapping[str, Option] = {
    "validity_seconds": Option(
        key="hoodie.write.lock.storage.validity.timeout.secs",
        default="300",
        kind=OptionKind.INT,
        doc="Seconds until others may take the lock of a holder that does not renew it.",
    ),
    "renew_seconds": Option(
        key="hoodie.write.lock.storage.renew.interval.secs",
        aliases=("hoodie.write.lock.storage.heartbeat.poll.secs",),
        default="30",
        kind=OptionKind.INT,
        doc="Seconds between two renewals of Java's holders; at most a tenth of the validity. "
        "Ours are renewed after a third of the validity.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLockSettings:
    """Length of a lease, and how long one request may take."""

    validity_ms: int
    request_ms: int

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> StorageLockSettings:
        """
        The settings among all properties.

        Raises:
            SettingError: A value is no number of seconds, or breaks Java's rule that a lease
                is at least ten renewals long.
        """
        said = as_property_set(properties)
        validity, renew = (_seconds(said, option) for option in OPTIONS.values())
        if not 1 <= renew <= _SECONDS_MAX:
            raise _wrong("renew_seconds", renew, "a renewal comes every 1 to 604800 seconds")
        if not validity <= _SECONDS_MAX:
            raise _wrong("validity_seconds", validity, "a lease is at most 604800 seconds long")
        if validity < _RENEWALS_PER_VALIDITY * renew:
            raise _wrong(
                "validity_seconds",
                validity,
                f"a lease lasts at least ten renewals (10 x {renew} s), Java refuses less",
            )
        return cls.of(validity * _SECOND_MS)

    @classmethod
    def of(cls, validity_ms: int) -> StorageLockSettings:
        """Settings of a lease of this length; a request gets a twentieth, 0.5 to 10 s."""
        share_ms = validity_ms // _REQUESTS_PER_VALIDITY
        request_ms = max(_REQUEST_MS_MIN, min(share_ms, _REQUEST_MS_MAX))
        return cls(validity_ms=validity_ms, request_ms=request_ms)


class StorageHolding:
    """One holding: the record that is ours and the tag under which the store keeps it."""

    def __init__(
        self,
        place: ConditionalObject,
        record: LockRecord,
        tag: Tag,
        *,
        sent_at_ms: int,
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
        self._over = False  # released, or known to be lost
        self._guard = threading.Lock()  # a renewal never overtakes the release

    @property
    def fencing_token(self) -> int | None:
        """Above that of every earlier holding of ours."""
        return self._record.token

    def expires_in_ms(self) -> int | None:
        """Time left, counted from before the last request that was answered."""
        return self._ends_at_ms - self._clock.monotonic_ms()

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


class StorageClient:
    """
    The client of one lock file.

    Args:
        place: The lock file.
        settings: Lengths of leases and requests.
        clock: Clock port.
        ids: Identity port.
    """

    def __init__(
        self, place: ConditionalObject, settings: StorageLockSettings, *, clock: Clock, ids: Ids
    ) -> None:
        self._place = place
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._owner = ids.uuid()
        self._last_token = 0
        self._is_proven = False  # that the store keeps its conditions
        # Nonces of acquires whose fate is unknown, and of holdings that could not be given back.
        # A later success of ours ends them all: they were conditional on a content that is gone.
        self._doubtful: set[str] = set()
        # What our last release left behind, and its tag: as long as that is there the lock is
        # free and nobody had it since, which the condition of a put tells by itself.
        self._left: tuple[LockRecord, Tag] | None = None

    @property
    def identity(self) -> str:
        """The lock file by its canonical address."""
        return f"storage:{self._place.address}"

    @property
    def margin_ms(self) -> int:
        """Two requests."""
        return 2 * self._settings.request_ms

    def try_acquire(self, owner_text: str) -> StorageHolding | None:
        """
        Take the lock if it is free, else None.

        Outside: 1 get, when free 1 put, in doubt 1 get; the first time 3 puts more. Without
        the first get where nobody had the lock since this client.

        Raises:
            UnavailableError: No answer; should the lock be ours by it, the next try knows.
            UnsafeSetupError: The file is damaged, access is refused, there is no bucket, or
                the store ignores the conditions.
        """
        left, self._left = self._left, None
        if left is not None:
            holding = self._take_over(left[0], left[1], owner_text)
            if holding is not None:
                return holding
        seen = self._place.read()
        before = None if seen is None else LockRecord.decode(seen.data, self._place.address)
        if seen is not None and before is not None and not self._is_free(before, seen):
            return None
        if not self._is_proven:
            self._place.prove(self._ids.nonce())
            self._is_proven = True
        return self._take_over(before, None if seen is None else seen.tag, owner_text)

    def _take_over(
        self, before: LockRecord | None, over: Tag | None, owner_text: str
    ) -> StorageHolding | None:
        """Take the lock if the file is still the one with this tag, else None."""
        sent_at_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        validity_ms = self._settings.validity_ms
        record = LockRecord(
            expired=False,
            valid_until_ms=now_ms + validity_ms,
            owner=self._owner,
            nonce=self._ids.nonce(),
            note=owner_text[:NOTE_CHARACTERS_MAX],
            token=next_token(
                before, now_ms=now_ms, validity_ms=validity_ms, at_least=self._last_token
            ),
        )
        tag = self._take(record, over)
        if tag is None:
            return None
        self._doubtful.clear()
        self._last_token = max(self._last_token, record.token)
        return StorageHolding(
            self._place,
            record,
            tag,
            sent_at_ms=sent_at_ms,
            settings=self._settings,
            clock=self._clock,
            left=self._note_left,
            kept=self._doubt,
        )

    def _note_left(self, record: LockRecord, tag: Tag) -> None:
        self._left = (record, tag)

    def _doubt(self, nonce: str) -> None:
        self._doubtful.add(nonce)

    def holder(self) -> str | None:
        """Who holds it, None when free. Outside: 1 get."""
        seen = self._place.read()
        if seen is None:
            return None
        record = LockRecord.decode(seen.data, self._place.address)
        if not record.is_valid_at(self._clock.now_ms()):
            return None
        return _holder_text(record)

    def break_lock(self, holder_text: str) -> bool:
        """
        Mark the lock as ended if its holder is still the named one. Outside: 1 get, 1 put.

        Raises:
            UnavailableError: No answer, or none that tells; look at the holder again.
        """
        seen = self._place.read()
        if seen is None:
            return False
        record = LockRecord.decode(seen.data, self._place.address)
        if not record.is_valid_at(self._clock.now_ms()) or _holder_text(record) != holder_text:
            return False
        try:
            self._place.put(record.released().encode(), seen.tag)
        except ChangedError:
            return False
        except AmbiguousWriteError as error:
            raise UnavailableError(
                f"the store did not say whether the lock was broken: {self._place.address}",
                path=self._place.address,
            ) from error
        return True

    def server_now_ms(self) -> int:
        """The store's clock in whole seconds. Outside: 1 put, 1 head."""
        return self._place.store_now_ms()

    def close(self) -> None:
        """Give back an acquire of unknown fate that worked, or a holding whose release failed."""
        doubtful, self._doubtful = self._doubtful, set()
        if not doubtful:
            return
        try:
            seen = self._place.read()
            if seen is None:
                return
            found = LockRecord.decode(seen.data, self._place.address)
            if any(found.is_holding(self._owner, nonce) for nonce in doubtful):
                self._place.put(found.released().encode(), seen.tag)
        except (UnavailableError, UnsafeSetupError, ChangedError, AmbiguousWriteError):
            return  # then it ends with its lease

    def _take(self, record: LockRecord, over: Tag | None) -> Tag | None:
        try:
            return self._place.put(record.encode(), over)
        except ChangedError:
            return self._tag_of(record)
        except AmbiguousWriteError as error:
            self._doubtful.add(record.nonce)
            tag = self._tag_of(record)
            if tag is not None:
                return tag
            raise UnavailableError(
                f"the store did not say whether the lock was taken: {self._place.address}",
                path=self._place.address,
            ) from error

    def _tag_of(self, record: LockRecord) -> Tag | None:
        """The tag of our own holding if it is the one in the file, by owner and nonce (F16)."""
        seen = self._place.read()
        if seen is None:
            return None
        found = LockRecord.decode(seen.data, self._place.address)
        return seen.tag if found.is_holding(record.owner, record.nonce) else None

    def _is_free(self, record: LockRecord, seen: Seen) -> bool:
        if record.expired:
            return True
        if any(record.is_holding(self._owner, nonce) for nonce in tuple(self._doubtful)):
            return True  # our own, whose answer was lost
        if record.is_valid_at(self._clock.now_ms()):
            return False
        # The holder may be alive and our clock ahead of its clock. Stamps are whole seconds.
        silent_ms = self._place.store_now_ms() - seen.modified_ms
        return silent_ms + _SECOND_MS >= self._settings.validity_ms


def _decoded(seen: Seen, place: ConditionalObject) -> LockRecord | None:
    """The record, None when it is damaged and so certainly not ours."""
    try:
        return LockRecord.decode(seen.data, place.address)
    except UnsafeSetupError:
        return None


def _holder_text(record: LockRecord) -> str:
    return record.note or f"a Java writer, owner {record.owner}"


def _seconds(said: PropertySet, option: Option) -> int:
    found = read_option(said, option)
    return found if isinstance(found, int) else int(option.default or 0)


def _wrong(field: str, value: int, why: str) -> SettingError:
    option = OPTIONS[field]
    return SettingError(
        f"{why}; default {option.default} s: {option.key}={value}",
        kind="setting_value",
        key=option.key,
        value=str(value),
        suggestion=f"default {option.default}",
    )


def _client(context: LockContext) -> StorageClient:
    settings = StorageLockSettings.from_properties(context.properties)
    if not is_object_address(context.table_address):
        raise UnsafeSetupError(
            "the storage_based lock needs the conditional writes of an object store (s3, gs, "
            "abfss), in Java too; for a table on this machine's disks name filesystem, elsewhere "
            f"zookeeper, dynamodb or hivemetastore: {context.table_address}",
            kind="lock_storage",
            address=context.table_address,
        )
    named = parse_object_address(context.table_address)
    reached = ObjectSettings.from_properties(context.properties, named)
    address = with_account(named, reached.azure_account)
    client = open_client(address, reached, retries=False, timeout_ms=settings.request_ms)
    place = ConditionalObject(client, address, LOCK_PATH)
    return StorageClient(place, settings, clock=context.clock, ids=context.ids)


ENTRY = LockProviderEntry(
    name="storage_based",
    factory=_client,
    capabilities=LockCapabilities(
        between_processes=True,
        between_hosts=True,
        excludes_java=True,
        expires=True,
        fencing_tokens=True,
    ),
    jvm_class_names=("org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",),
    options=tuple(OPTIONS.values()),
    poll_first_ms=50,
    # Whoever polls more slowly is overtaken by who has just come: most of a second is long beside
    # the few requests for which the lock is held.
    poll_max_ms=250,
)
