"""
The lock in the table's own object store: Java Hudi's lock file, replaced on conditions.

Needs no service beside S3, GCS or Azure, and excludes Java's ``StorageBasedLockProvider``.
Invariants:

- Every change is one conditional request that no client repeats by itself; "it has changed"
  and no answer at all are both looked up by owner and nonce before anything is concluded
  (F16: the own write that was delivered twice looks like a stranger's).
- An acquire whose answer was lost is remembered: if it turns out to have worked, this client
  takes it over instead of waiting for its own lease to end.
- Writers of hoodoo may have it together (``shared_lock.py``); who wants it alone then waits for them.
- A holder that did not release is followed only when its time is over by this machine's
  clock (Java's rule) and by the store's: a clock that runs ahead steals nothing (F12).
- The file is never deleted: only a replacement can be made on a condition.
"""

from __future__ import annotations

from lockproviders.client import shared_owner_note
from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry
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
from lockproviders.storage_based.settings import OPTIONS, StorageLockSettings
from lockproviders.storage_based.shared_lock import ALONE_MS, SharedFileHolding, SharedLockState
from timeline.errors import UnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock, Ids
from timeline.ports.storage import AmbiguousWriteError
from timeline.storage.object_address import is_object_address, parse_object_address, with_account
from timeline.storage.object_client import ObjectSettings, open_client

__all__ = ["ENTRY", "StorageClient"]

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
        self._is_proven = False  # that the store keeps its conditions
        # Nonces of acquires whose fate is unknown, and of holdings that could not be given back.
        # A later success of ours ends them all: they were conditional on a content that is gone.
        self._doubtful: set[str] = set()
        # What our last release left behind, and its tag: as long as that is there the lock is
        # free and nobody had it since, which the condition of a put tells by itself.
        self._left: tuple[LockRecord, Tag] | None = None
        # Whether a request without an answer to take what was shared may have been done: whoever
        # joined before it is to be waited for.
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
        """Two requests."""
        return 2 * self._settings.request_ms

    @property
    def shares(self) -> bool:
        """Whether ``try_share`` would share it, as far as this client has seen."""
        return not self._sharer.is_wanted_alone

    def try_acquire(self, owner_text: str) -> StorageHolding | None:
        """
        Take the lock if it is free, else None.

        One that is shared is taken, too: its holding is to be waited for, as it says.

        Outside: 1 get, when free 1 put, in doubt 1 get; the first time 3 puts more. Without
        the first get where nobody had the lock since this client.

        Raises:
            UnavailableError: No answer; should the lock be ours by it, the next try knows.
            UnsafeSetupError: The file is damaged, access is refused, there is no bucket, or
                the store ignores the conditions.
        """
        holding = self._take_left(owner_text)
        if holding is not None:
            return holding
        before, seen = self._sharer.look()
        if not self._is_free(before, seen):
            return None
        self._prove_once()
        return self._take_over(before, None if seen is None else seen.tag, owner_text)

    def try_share(
        self, owner_text: str, *, starts: bool
    ) -> StorageHolding | SharedFileHolding | None:
        """
        Join those of ours who have the lock together, else take it if it is free, else None.

        Outside: nothing as long as enough is left of the last holding; else 1 get, and 1 put where
        its end is put off or the lock is free; as ``try_acquire`` besides.

        Args:
            owner_text: As of ``try_acquire``.
            starts: Whether a free lock is made one that is shared, as others want it, too.

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
            before, seen = self._sharer.look()
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
                continue  # whatever came of it, whoever shares the lock may join
            return self._take_over(before, tag, owner_text, wants_alone=False)
        return None

    def _prove_once(self) -> None:
        """That the store keeps its conditions, before the first of them."""
        if not self._is_proven:
            self._place.prove(self._ids.nonce())
            self._is_proven = True

    def _take_left(self, owner_text: str, *, wants_alone: bool = True) -> StorageHolding | None:
        """Take the lock at once where nobody had it since this client."""
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
        """Take the lock if the file is still the one with this tag, else None."""
        sent_at_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        # Of this try, not of the client: another thread's refusal says nothing of those to wait for.
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
            # Unless it may be an own request that came in between and whose answer was lost.
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
            UnsafeSetupError: Writers of ours have it together (kind ``lock_shared``): it needs no
                one of them to end, and marked as ended it would be free to Java while they
                publish (LOCK-1).
        """
        seen = self._place.read()
        if seen is None:
            return False
        record = LockRecord.decode(seen.data, self._place.address)
        if record.is_shared and record.is_valid_at(self._clock.now_ms()):
            raise UnsafeSetupError(
                "writers of hoodoo have this lock together, and nobody can be stuck with it: it "
                f"ends by itself at most {self._sharer.length_ms / 1000:g} s after the last of "
                "them published; to have it alone use 'hoodoo locks run', to keep them out stop "
                f"them: {self._place.address}",
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
                    f"the store did not say whether the lock was taken: {self._place.address}",
                    path=self._place.address,
                ) from error
        except BaseException:
            # Not before this try gave up: what is doubtful any thread of this client takes over,
            # and whoever takes it over waits for those who shared it before.
            self._is_after_shared = self._is_after_shared or after_shared
            self._doubtful.add(record.nonce)
            raise

    def _tag_of(self, record: LockRecord) -> Tag | None:
        """The tag of our own holding if it is the one in the file, by owner and nonce (F16)."""
        seen = self._place.read()
        if seen is None:
            return None
        found = LockRecord.decode(seen.data, self._place.address)
        return seen.tag if found.is_holding(record.owner, record.nonce) else None

    def _is_free(self, record: LockRecord | None, seen: ObjectVersion | None) -> bool:
        """Whether it may be taken; what is shared may be, by who waits or joins."""
        if record is None or seen is None or record.expired or record.is_shared:
            return True
        if any(record.is_holding(self._owner, nonce) for nonce in tuple(self._doubtful)):
            return True  # our own, whose answer was lost
        if record.is_valid_at(self._clock.now_ms()):
            return False
        # The holder may be alive and our clock ahead of its clock. Stamps are whole seconds.
        silent_ms = self._place.store_now_ms() - seen.modified_ms
        return silent_ms + _SECOND_MS >= self._settings.validity_ms


def _alone_to_ms(before: LockRecord | None, now_ms: int, *, wants_alone: bool) -> int:
    """Until when nobody shares the lock, since somebody wanted it alone: told to all who come."""
    if wants_alone:
        return now_ms + ALONE_MS
    told_ms = before.alone_to_ms if before is not None else 0
    return told_ms if told_ms > now_ms else 0


def _holder_text(record: LockRecord) -> str:
    note = record.note or f"a Java writer, owner {record.owner}"
    return shared_owner_note(note) if record.is_shared else note


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
