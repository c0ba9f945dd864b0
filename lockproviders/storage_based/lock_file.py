"""Java's lock file in the table's store: content, conditional writes, one holding."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lockproviders.storage_based.settings import StorageLockSettings
from timeline.errors import CorruptTableError, LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.model.file_names import LOCKS, check_size
from timeline.ports.ports import AmbiguousWriteError, Clock
from timeline.storage.object_address import ObjectAddress
from timeline.storage.object_client import RequestFailure, classify_failure, request_error

# ---- The content of Java's lock file and its rules: pure, without a connection
#
# The file is ``<table>/.hoodie/.locks/table_lock.json``, for Java Hudi's
# ``StorageBasedLockProvider`` (tests ran it) and for ours. Invariants:
#
# - The file always has Java's three fields; a file without one of them is damaged for Java, too.
# - ``expired`` wins over any ``validUntil``. A free file stays, because object stores cannot delete
#   conditionally.
# - Our further fields distinguish the holdings of one owner (the nonce), name the holder and count
#   holdings. Java ignores them and drops them when it takes the lock.

LOCK_PATH = ".hoodie/.locks/table_lock.json"
DRIFT_MS = 500  # Java's tolerance between the clocks of two machines
RECORD_BYTES_MAX = 64 * 1024
NOTE_CHARACTERS_MAX = 2_000

_EXPIRED, _UNTIL, _OWNER = "expired", "validUntil", "owner"
_NONCE, _NOTE, _TOKEN = "hoodooNonce", "hoodooOwner", "hoodooToken"
_SHARED, _ALONE = "hoodooSharedTo", "hoodooAloneTo"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """One content of the file."""

    expired: bool
    valid_until_ms: int  # wall clock of the holder, ms since 1970 UTC
    owner: str  # one per client; Java's are UUIDs, too
    nonce: str = ""  # ours: one per holding
    note: str = ""  # ours: the holder, for people
    token: int = 0  # ours: the count of holdings; 0 in Java's
    shared_to_ms: int = 0  # ours: hoodoo writers share it, at the longest until then
    alone_to_ms: int = 0  # ours: no writer shares it until then

    def encode(self) -> bytes:
        """Return the bytes of the file: Java's fields in Java's order, then ours."""
        content: dict[str, object] = {
            _EXPIRED: self.expired,
            _UNTIL: self.valid_until_ms,
            _OWNER: self.owner,
        }
        if self.nonce:
            content |= {_NONCE: self.nonce, _NOTE: self.note, _TOKEN: self.token}
        ends = {_SHARED: self.shared_to_ms, _ALONE: self.alone_to_ms}
        content |= {name: end_ms for name, end_ms in ends.items() if end_ms}
        return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes, address: str) -> LockRecord:
        """
        Read the file as Java does: all three of its fields or an error.

        Raises:
            UnsafeSetupError: It is damaged (kind ``lock_file``); no writer, Java's included, can
                take the lock until an operator has repaired it.
        """
        try:
            content = json.loads(data) if len(data) <= RECORD_BYTES_MAX else None
        except (ValueError, RecursionError):
            content = None
        found = content if isinstance(content, dict) else {}
        expired, until, owner = found.get(_EXPIRED), found.get(_UNTIL), found.get(_OWNER)
        if (
            not isinstance(expired, bool)
            or not isinstance(until, int)
            or isinstance(until, bool)
            or not isinstance(owner, str)
        ):
            raise UnsafeSetupError(
                "the lock file is damaged, so neither hoodoo nor Java can take the lock: make "
                f"sure that no writer runs, then delete it: {address}",
                kind="lock_file",
                path=address,
            )
        nonce, note = found.get(_NONCE), found.get(_NOTE)
        return LockRecord(
            expired=expired,
            valid_until_ms=until,
            owner=owner,
            nonce=nonce if isinstance(nonce, str) else "",
            note=note[:NOTE_CHARACTERS_MAX] if isinstance(note, str) else "",
            token=_number(found, _TOKEN),
            shared_to_ms=_number(found, _SHARED),
            alone_to_ms=_number(found, _ALONE),
        )

    @property
    def is_shared(self) -> bool:
        """Whether hoodoo writers share it, or shared it before (LOCK-1)."""
        return self.shared_to_ms > 0

    def is_valid_at(self, now_ms: int) -> bool:
        """Return whether a writer holds the lock at this wall-clock time, by Java's rule."""
        return not self.expired and now_ms <= self.valid_until_ms + DRIFT_MS

    def is_holding(self, owner: str, nonce: str) -> bool:
        """Return whether this is one certain holding of ours, still held."""
        return not self.expired and self.owner == owner and self.nonce == nonce != ""

    def until(self, valid_until_ms: int) -> LockRecord:
        """Return the same holding with another end."""
        return replace(self, valid_until_ms=valid_until_ms)

    def released(self) -> LockRecord:
        """Return the same holding, released; the end stays, as in Java."""
        return replace(self, expired=True)


def _number(content: dict[str, object], name: str) -> int:
    found = content.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def next_token(before: LockRecord | None, *, now_ms: int, validity_ms: int, at_least: int) -> int:
    """
    Return a number above that of every earlier holding.

    Java's holders drop the count, but their ends are wall-clock times like it. So a token is above
    the end of the holding before it. It is also above the end that a lease of ours would have now,
    because Java's leases may be shorter.

    Args:
        before: The record that is replaced, None for a new file.
        now_ms: The wall clock, for what no record contains.
        validity_ms: Length of a lease.
        at_least: The last token this client had.
    """
    if before is None:
        return max(now_ms + validity_ms, at_least + 1)
    return max(before.token, before.valid_until_ms, now_ms + validity_ms, at_least) + 1


# ---- Transport of the lock file: an object that is replaced only if unchanged
#
# The storage port creates, writes and deletes. It has no conditional replacement, because the table
# needs none and local disks have none. The lock needs exactly that, so it has this small client
# over the same options and address.

# : Identifies one content of the object: an ETag on S3 and Azure, a generation on GCS.
Tag = tuple[str | None, str | None]

_SETUP = (RequestFailure.DENIED, RequestFailure.NO_BUCKET, RequestFailure.WRONG)


class ChangedError(Exception):
    """The object has changed since it was read, or the answer says so: read it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """The object as read at one time."""

    data: bytes
    tag: Tag
    modified_ms: int  # by the store's clock, whole seconds


class ConditionalObject:
    """
    One object.

    Args:
        client: obstore's client of the bucket, which never repeats a request.
        address: The table.
        path: The object's path below the table.
    """

    def __init__(self, client: Any, address: ObjectAddress, path: str) -> None:
        self._client = client
        self._key = address.key_of(path)
        self._clock_key = address.key_of(path.rpartition("/")[0] + "/hoodoo_clock")
        self.address = f"{address.base_uri}/{path}"

    def read(self) -> ObjectVersion | None:
        """
        Return the object's current content, or None without an object. Outside: 1 get.

        Raises:
            UnavailableError: No answer.
            UnsafeSetupError: Access is refused, or there is no such bucket.
            CorruptTableError: It is too large for a lock file.
        """
        import obstore

        try:
            found = obstore.get(self._client, self._key)
            meta = found.meta
            check_size(f"{LOCKS}/{self._key.rpartition('/')[2]}", meta["size"])
            data = found.bytes().to_bytes()
        except CorruptTableError:
            raise
        except Exception as error:
            fate = classify_failure(error)
            if fate is RequestFailure.MISSING:
                return None
            raise self._trouble(error, "reading the lock file", fate) from error
        return ObjectVersion(
            data=data,
            tag=(meta.get("e_tag"), meta.get("version")),
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
        )

    def put(self, data: bytes, over: Tag | None) -> Tag:
        """
        Replace the content with tag ``over``, or create the object if None. Outside: 1 put.

        Raises:
            ChangedError: The store reports another content; if the request was delivered twice,
                that may be the own one (F16).
            AmbiguousWriteError: It may have been executed, or may still be.
            UnavailableError: It was certainly not executed.
            UnsafeSetupError: Access is refused, or there is no such bucket.
        """
        import obstore

        mode: Any = "create"
        if over is not None:
            named = zip(("e_tag", "version"), over, strict=True)
            mode = {name: value for name, value in named if value is not None}
        try:
            done = obstore.put(self._client, self._key, data, mode=mode, use_multipart=False)
        except Exception as error:
            fate = classify_failure(error)
            if fate in (
                RequestFailure.EXISTS,
                RequestFailure.CHANGED,
                RequestFailure.BUSY,
                RequestFailure.MISSING,
            ):
                raise ChangedError(self.address) from error
            if fate is RequestFailure.UNKNOWN:
                raise AmbiguousWriteError(self.address) from error
            raise self._trouble(error, "writing the lock file", fate) from error
        return done["e_tag"], done["version"]

    def prove(self, nonce: str) -> None:
        """
        Check that the store refuses to replace a content that is no longer there.

        Several S3-compatible stores accept the condition and ignore it; every writer would then get
        the lock. Outside: 3 puts, on a small separate object.

        Raises:
            UnsafeSetupError: It allowed an outdated replacement, or access is refused.
            UnavailableError: No answer.
        """
        import obstore

        try:
            first = obstore.put(self._client, self._clock_key, f"1 {nonce}".encode())
            obstore.put(self._client, self._clock_key, f"2 {nonce}".encode())
            named = {"e_tag": first["e_tag"], "version": first["version"]}
            outdated: Any = {name: value for name, value in named.items() if value is not None}
            obstore.put(self._client, self._clock_key, b"3", mode=outdated, use_multipart=False)
        except Exception as error:
            fate = classify_failure(error)
            if fate is RequestFailure.CHANGED:
                return
            raise self._trouble(error, "trying a conditional write", fate) from error
        raise UnsafeSetupError(
            "this store ignores the conditions of a conditional write, so every writer would get "
            f"the lock: name another provider: {self.address}",
            kind="lock_storage",
            path=self.address,
        )

    def store_now_ms(self) -> int:
        """
        Return the store's clock, from its timestamp on a small object. Outside: 1 put, 1 head.

        Raises:
            UnavailableError: No answer.
            UnsafeSetupError: Access is refused.
        """
        import obstore

        try:
            obstore.put(self._client, self._clock_key, b"", use_multipart=False)
            found = obstore.head(self._client, self._clock_key)
        except Exception as error:
            raise self._trouble(
                error, "reading the store's clock", classify_failure(error)
            ) from error
        return int(found["last_modified"].timestamp() * 1000)

    def _trouble(
        self, error: Exception, doing: str, fate: RequestFailure
    ) -> UnavailableError | UnsafeSetupError:
        failed = request_error(error, self.address, doing, fate)
        if fate in _SETUP:
            return UnsafeSetupError(failed.message, kind="lock_storage", **failed.fields)
        return UnavailableError(failed.message, **failed.fields)


# ---- One holding of the lock file: renewal, release, and recovery of unknown outcomes

_ROUNDS_MAX = 4
_PAUSE_MS = 200  # before the second round of a release; doubled for each further one


class StorageHolding:
    """One holding: our record and the tag under which the store keeps it."""

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
        """A number above that of every earlier holding of ours."""
        return self._record.token

    def expires_in_ms(self) -> int | None:
        """Return the time left, counted from before the last request that was answered."""
        return self._ends_at_ms - self._clock.monotonic_ms()

    def ready_in_ms(self) -> int:
        """Return the time until the last shared lease ends (LOCK-1)."""
        return max(0, self._ready_at_ms - self._clock.monotonic_ms())

    def is_held(self) -> bool:
        """Return whether it is held, by the own clock; no request."""
        return not self._over and self._clock.monotonic_ms() < self._ends_at_ms

    def renew(self) -> None:
        """
        Move the end back. Outside: 1 put; if in doubt 1 get and 1 put in each of 4 rounds.

        Raises:
            LeaseLostError: Another writer has the lock, or it was broken.
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
        Mark the own holding as ended, and only that; leave a lost one alone.

        Outside: 1 put; if in doubt as ``renew``, with pauses while the store throttles, because an
        unreleased lock keeps all writers waiting for a whole lease.

        Raises:
            UnavailableError: No answer; the lock ends with its lease.
        """
        with self._guard:
            if self._over:
                return
            if self.ready_in_ms():  # the sharers keep other engines out until their leases end
                self._clock.sleep_ms(self.ready_in_ms())
            pause_ms = _PAUSE_MS
            for last in (False, False, False, True):
                try:
                    if self._replace(self._record.released()):
                        self._left(self._record, self._tag)
                except UnavailableError:
                    if last:
                        # No thread acts under it any more, so our client need not wait for its end.
                        self._kept(self._record.nonce)
                        raise
                else:
                    break
                self._clock.sleep_ms(pause_ms)
                pause_ms *= 2
            self._over = True

    def _replace(self, wanted: LockRecord) -> bool:
        """Put a new content of this holding; return False if the lock is not ours any more."""
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
                        continue  # an older request arrived late, or this one did not arrive
                self._record = wanted
                return True
        except UnsafeSetupError as error:
            # A holder can only continue; access that was refused may return.
            raise UnavailableError(error.message, **error.fields) from error
        raise UnavailableError(
            f"the lock file could not be replaced in {_ROUNDS_MAX} rounds; try again: "
            f"{self._place.address}"
        )

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(
            "the lock file has another holder, or the lock was released: stop this write: "
            f"{self._place.address}",
            path=self._place.address,
        )


def _decoded(seen: ObjectVersion, place: ConditionalObject) -> LockRecord | None:
    """Return the record, or None if it is damaged and so certainly not ours."""
    try:
        return LockRecord.decode(seen.data, place.address)
    except UnsafeSetupError:
        return None
