"""
The lock in the table's own object store: Java Hudi's lock file, replaced under conditions.

It needs no service besides S3, GCS or Azure, and excludes Java's ``StorageBasedLockProvider``.
Invariants:

- Every change is one conditional request that no client library repeats. After a failed condition
  or a lost answer the client reads owner and nonce before any conclusion (F16). An own write that
  was delivered twice fails in the same way as a write after that of another client.
- The client remembers an acquire whose answer was lost. If it did succeed, this client takes the
  lock over instead of waiting for its own lease to end.
- Hoodoo writers may share the lock (``shared_lock.py``). A writer that wants it alone waits for
  them.
- A holder that did not release is replaced only when its time is over by two clocks: that of this
  machine (Java's rule) and that of the store. So a clock that is ahead takes no held lock (F12).
- The file is never deleted: a store can replace it conditionally, but not delete it so.
"""

from __future__ import annotations

from lockproviders.client import shared_owner_note
from lockproviders.hookspecs import SERVER_SHARED_WITH_JAVA, LockContext, LockProviderEntry
from lockproviders.storage_based.lock_file import (
    LOCK_PATH,
    NOTE_CHARACTERS_MAX,
    ChangedError,
    ConditionalObject,
    LockRecord,
    ObjectVersion,
    StorageHolding,
    Tag,
    next_token,
)
from lockproviders.storage_based.settings import StorageLockOptions, StorageLockSettings
from lockproviders.storage_based.shared_lock import ALONE_MS, SharedFileHolding, SharedLockState
from timeline.errors import UnavailableError, UnsafeSetupError
from timeline.ports.ports import AmbiguousWriteError, Clock, Ids
from timeline.storage.object_address import is_object_address, parse_object_address, with_account
from timeline.storage.object_client import ObjectSettings, open_client

_SECOND_MS = 1_000
_ROUNDS_MAX = 4


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
        self._is_proven = False  # whether the store is known to obey conditions
        # Nonces of acquires with unknown outcome, and of holdings whose release failed. A later
        # success of ours ends them all: their condition was a content that is gone.
        self._doubtful: set[str] = set()
        # The content and tag of our last release. While the file has this tag, the lock is free and
        # had no holder since, as the condition of a put proves.
        self._left: tuple[LockRecord, Tag] | None = None
        # Whether an unanswered request to replace a shared record may have been executed. Then the
        # writers that joined before it may still hold the lock.
        self._is_after_shared = False
        self._sharer = SharedLockState(
            place, owner=self._owner, validity_ms=settings.validity_ms, clock=clock, ids=ids
        )

    @property
    def identity(self) -> str:
        """The lock file by its canonical address."""
        return f"storage:{self._place.address}"

    @property
    def margin_ms(self) -> int:
        """Twice the time-out of a request."""
        return 2 * self._settings.request_ms

    @property
    def shares(self) -> bool:
        """Whether ``try_share`` would share it, as far as this client has seen."""
        return not self._sharer.has_exclusive_request

    def try_acquire(self, owner_text: str) -> StorageHolding | None:
        """
        Take the lock if it is free, else return None.

        It also replaces a shared record; the holding then says how long to wait for the sharers.

        Outside: 1 get, if free 1 put, if the outcome is unknown 1 get; the first time 3 puts more.
        No first get if no other client had the lock since this one.

        Raises:
            UnavailableError: No answer; if the request did succeed, the next attempt finds out.
            UnsafeSetupError: The file is damaged, access is refused, there is no bucket, or the
                store ignores the conditions.
        """
        holding = self._take_left(owner_text)
        if holding is not None:
            return holding
        before, seen = self._sharer.read()
        if not self._is_free(before, seen):
            return None
        self._prove_once()
        return self._take_over(before, None if seen is None else seen.tag, owner_text)

    def try_share(
        self, owner_text: str, *, starts: bool
    ) -> StorageHolding | SharedFileHolding | None:
        """
        Join the hoodoo writers that share the lock, else take it if free, else return None.

        Outside: no request while enough time of the last holding is left; else 1 get, and 1 put if
        it moves the end or the lock is free; otherwise as ``try_acquire``.

        Args:
            owner_text: As of ``try_acquire``.
            starts: Whether a free lock becomes a shared one, because other writers want it, too.

        Raises:
            UnavailableError, UnsafeSetupError: As ``try_acquire``.
        """
        note = owner_text[:NOTE_CHARACTERS_MAX]
        known = self._sharer.known(note)
        if known is not None:
            return known
        left = None if starts else self._take_left(owner_text, wants_alone=False)
        if left is not None:
            return left
        for _ in range(_ROUNDS_MAX):
            asked_at_ms = self._clock.monotonic_ms()
            before, seen = self._sharer.read()
            if not self._is_free(before, seen):
                return None
            self._prove_once()
            tag = None if seen is None else seen.tag
            try:
                if before is not None and tag is not None and before.is_shared:
                    return self._sharer.join(before, tag, note, asked_at_ms=asked_at_ms)
                if starts and self.shares:
                    return self._sharer.start(before, tag, note)
            except (ChangedError, AmbiguousWriteError):
                continue  # in either case, a shared lock can be joined now
            return self._take_over(before, tag, owner_text, wants_alone=False)
        return None

    def _prove_once(self) -> None:
        """Check once, before the first condition, that the store obeys conditions."""
        if not self._is_proven:
            self._place.prove(self._ids.nonce())
            self._is_proven = True

    def _take_left(self, owner_text: str, *, wants_alone: bool = True) -> StorageHolding | None:
        """Take the lock at once if no other client had it since this one."""
        left, self._left = self._left, None
        if left is None:
            return None
        return self._take_over(*left, owner_text, wants_alone=wants_alone)

    def _take_over(
        self,
        before: LockRecord | None,
        over: Tag | None,
        owner_text: str,
        *,
        wants_alone: bool = True,
    ) -> StorageHolding | None:
        """Take the lock if the file still has this tag, else return None."""
        sent_at_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        # Per attempt, not per client: a refusal in another thread does not change which sharers to
        # wait for.
        after_shared = before is not None and before.is_shared
        validity_ms = self._settings.validity_ms
        record = LockRecord(
            expired=False,
            valid_until_ms=now_ms + validity_ms,
            owner=self._owner,
            nonce=self._ids.nonce(),
            note=owner_text[:NOTE_CHARACTERS_MAX],
            token=next_token(
                before, now_ms=now_ms, validity_ms=validity_ms, at_least=self._sharer.last_token
            ),
            alone_to_ms=_alone_to_ms(before, now_ms, wants_alone=wants_alone),
        )
        tag = self._take(record, over, after_shared=after_shared)
        if tag is None:
            # Unless an own request with a lost answer may have changed the file.
            self._is_after_shared = self._is_after_shared and bool(self._doubtful)
            return None
        self._doubtful.clear()
        self._sharer.learn(record)
        self._sharer.last_token = max(self._sharer.last_token, record.token)
        wait_ms = self._sharer.length_ms if after_shared or self._is_after_shared else 0
        ready_at_ms = self._clock.monotonic_ms() + wait_ms
        self._is_after_shared = False
        return StorageHolding(
            self._place,
            record,
            tag,
            sent_at_ms=sent_at_ms,
            ready_at_ms=ready_at_ms,
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
        """Return the holder, or None if the lock is free. Outside: 1 get."""
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
            UnavailableError: No answer, or an unclear one; read the holder again.
            UnsafeSetupError: Hoodoo writers share it (kind ``lock_shared``). It ends without them,
                and marked as ended it would be free to Java while they commit (LOCK-1).
        """
        seen = self._place.read()
        if seen is None:
            return False
        record = LockRecord.decode(seen.data, self._place.address)
        if record.is_shared and record.is_valid_at(self._clock.now_ms()):
            raise UnsafeSetupError(
                "several hoodoo writers share this lock, and it cannot be stuck: it ends at most "
                f"{self._sharer.length_ms / 1000:g} s after the last of them commits. To hold it "
                "alone run 'hoodoo locks run'; to keep the writers out stop them: "
                f"{self._place.address}",
                kind="lock_shared",
                path=self._place.address,
            )
        if not record.is_valid_at(self._clock.now_ms()) or _holder_text(record) != holder_text:
            return False
        try:
            self._place.put(record.released().encode(), seen.tag)
        except ChangedError:
            return False
        except AmbiguousWriteError as error:
            raise UnavailableError(
                "the store did not answer whether the lock was broken; try again: "
                f"{self._place.address}",
                path=self._place.address,
            ) from error
        return True

    def server_now_ms(self) -> int:
        """Return the store's clock in whole seconds. Outside: 1 put, 1 head."""
        return self._place.store_now_ms()

    def close(self) -> None:
        """Release a lock that an acquire of unknown outcome or a failed release may have left."""
        doubtful, self._doubtful = self._doubtful, set()
        if not doubtful:
            return
        try:
            seen = self._place.read()
            if seen is None:
                return
            found = LockRecord.decode(seen.data, self._place.address)
            if any(found.is_holding(self._owner, nonce) for nonce in doubtful):
                if self._is_after_shared:
                    self._clock.sleep_ms(self._sharer.length_ms)
                self._place.put(found.released().encode(), seen.tag)
        except (UnavailableError, UnsafeSetupError, ChangedError, AmbiguousWriteError):
            return  # then it ends with its lease

    def _take(self, record: LockRecord, over: Tag | None, *, after_shared: bool) -> Tag | None:
        try:
            try:
                return self._place.put(record.encode(), over)
            except ChangedError:
                return self._tag_of(record)
            except AmbiguousWriteError as error:
                tag = self._tag_of(record)
                if tag is not None:
                    return tag
                raise UnavailableError(
                    "the store did not answer whether the lock was taken; try again: "
                    f"{self._place.address}",
                    path=self._place.address,
                ) from error
        except BaseException:
            # Only after this attempt has ended: any thread of this client takes over a doubtful
            # holding, and must then wait for the writers that shared the lock before.
            self._is_after_shared = self._is_after_shared or after_shared
            self._doubtful.add(record.nonce)
            raise

    def _tag_of(self, record: LockRecord) -> Tag | None:
        """Return the tag of our own holding if the file has it, by owner and nonce (F16)."""
        seen = self._place.read()
        if seen is None:
            return None
        found = LockRecord.decode(seen.data, self._place.address)
        return seen.tag if found.is_holding(record.owner, record.nonce) else None

    def _is_free(self, record: LockRecord | None, seen: ObjectVersion | None) -> bool:
        """Return whether it may be taken; a shared one may be, by a writer that joins or waits."""
        if record is None or seen is None or record.expired or record.is_shared:
            return True
        if any(record.is_holding(self._owner, nonce) for nonce in tuple(self._doubtful)):
            return True  # our own, with a lost answer
        if record.is_valid_at(self._clock.now_ms()):
            return False
        # The holder may be alive and our clock ahead of its clock. Timestamps are whole seconds.
        silent_ms = self._place.store_now_ms() - seen.modified_ms
        return silent_ms + _SECOND_MS >= self._settings.validity_ms


def _alone_to_ms(before: LockRecord | None, now_ms: int, *, wants_alone: bool) -> int:
    """
    Return the time before which no writer may share the lock; 0 for none.

    A writer that wants the lock alone writes it into the file for all others.
    """
    if wants_alone:
        return now_ms + ALONE_MS
    noted_ms = before.alone_to_ms if before is not None else 0
    return noted_ms if noted_ms > now_ms else 0


def _holder_text(record: LockRecord) -> str:
    note = record.note or f"a Java writer, owner {record.owner}"
    return shared_owner_note(note) if record.is_shared else note


def _client(context: LockContext) -> StorageClient:
    settings = StorageLockSettings.from_properties(context.properties)
    if not is_object_address(context.table_address):
        raise UnsafeSetupError(
            "the storage_based lock needs the conditional writes of an object store (s3, gs, "
            "abfss), as in Java. For a table on a local disk name filesystem, elsewhere "
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
    capabilities=SERVER_SHARED_WITH_JAVA,
    jvm_class_names=("org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",),
    options=tuple(StorageLockOptions.options.values()),
    poll_first_ms=50,
    # A slower poller would be overtaken by new clients: a second is long compared with the few
    # requests for which the lock is held.
    poll_max_ms=250,
)
