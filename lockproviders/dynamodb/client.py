"""
The lock in a DynamoDB table that Java Hudi writers use, too: the same rows.

A holder is alive as long as it changes the row's version number. A waiter measures that on its own
monotonic clock, as tests against Java's provider showed. Invariants:

- One conditional write takes the lock. After a lost answer the client reads the row and checks the
  version number, which is new for every attempt (F10, F14, F16).
- The client keeps the version number that it saw, and since when, over its attempts. Otherwise
  attempts shorter than the lease would never replace a dead holder.
- The client remembers version numbers whose request may still arrive. A row with one of them has no
  holder, and this client may take it at once.
- The lease is ``hoodie.write.lock.wait_time_ms``, as in Java.
- The fencing token is counted after the lock is held, in a row that Java never changes.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockproviders.dynamodb.connection import (
    THROTTLED,
    BotoTransport,
    ConditionFailedError,
    Connection,
    MissingTableError,
    TableExistsError,
    check_extra,
    create_request,
    region_of_machine,
)
from lockproviders.dynamodb.rows import (
    KEY,
    DynamoLockRow,
    RowAddress,
    SeenVersion,
    Take,
    count_request,
    decide,
    decode_row,
    decode_token,
    put_request,
    read_request,
    release_request,
    renew_request,
)
from lockproviders.dynamodb.settings import DynamoOptions, DynamoSettings
from lockproviders.hookspecs import SERVER_SHARED_WITH_JAVA, LockContext, LockProviderEntry
from lockproviders.settings import ADDRESS_OPTION, hashed_address, path_hash
from timeline.errors import LeaseLostError, UnavailableError, UnsafeSetupError
from timeline.ports.ports import Clock, Ids

ABANDONED_VERSIONS_MAX = 64
OURS_MAX = 32  # version numbers that one row may have after unanswered renewals
TAKES_PER_TRY = 2  # a write without reading, then one that follows the row
BREAK_TRIES = 5
RELEASE_PAUSES_MS = (200, 400, 800)  # while throttled, before each repetition
_NO_ROW = (ConditionFailedError, MissingTableError)


class DynamoHolding:
    """One holding: the own row, identified by owner and version number."""

    def __init__(self, client: DynamoClient, row: DynamoLockRow, *, sent_at_ms: int) -> None:
        self._client = client
        self._row = row
        self._ours: tuple[str, ...] = (row.version,)  # several after unanswered renewals
        self._ends_at_ms = sent_at_ms + row.lease_ms
        self._lost = False
        self._released = False
        self.fencing_token: int | None = None  # the count of holdings, unless counting is off

    def expires_in_ms(self) -> int:
        """Return the time until a waiter may take over, from before the last request was sent."""
        return self._ends_at_ms - self._client.monotonic_ms()

    def is_held(self) -> bool:
        """Return whether the lock is held, as far as known without a request."""
        return not self._lost and not self._released

    def renew(self) -> None:
        """Write a new version number. Raises: ``LeaseLostError``, ``UnavailableError``."""
        if not self.is_held():
            raise self._lost_error("it was released or lost earlier")
        row = replace(self._row, version=self._client.new_version())
        sent_at_ms = self._client.monotonic_ms()
        with _seen_by_holder():
            self._change_version(row)
        self._ours = (row.version,)
        self._ends_at_ms = sent_at_ms + row.lease_ms

    def release(self) -> None:
        """Delete the own row; keep the row of another owner. Raises: ``UnavailableError``."""
        # A row that stays keeps all writers waiting for a whole lease.
        self.give_back(pauses_ms=RELEASE_PAUSES_MS)

    def give_back(self, *, pauses_ms: Sequence[int] = ()) -> None:
        """Delete the own row; repeat a throttled request after each of the pauses."""
        if self._released:
            return
        self._released = True
        try:
            with _seen_by_holder():
                self._delete(pauses_ms)
        except ConditionFailedError:
            pass  # taken by another client, or our first copy of this request arrived first
        except UnavailableError:
            # If the row is still there later, this client need not wait for its end.
            self._client.abandon_versions(*self._ours)
            with _seen_by_holder():
                left = self._client.read()
            if left is not None and left.version in self._ours:
                raise

    def _delete(self, pauses_ms: Sequence[int]) -> None:
        request = release_request(self._client.address, self._row.owner, self._ours)
        for pause_ms in pauses_ms:
            try:
                self._client.ask("delete_item", request)
            except UnavailableError as error:
                # Only if the request was certainly not executed: a repetition could find its own
                # first copy.
                if error.kind != THROTTLED:
                    raise
                self._client.sleep_ms(pause_ms)
            else:
                return
        self._client.ask("delete_item", request)

    def _change_version(self, row: DynamoLockRow) -> None:
        """Renew once; return only when the row has the new number."""
        request = renew_request(self._client.address, row, self._ours)
        try:
            self._client.ask("update_item", request)
        except ConditionFailedError as failure:
            found = self._client.row_after(failure)
            if found is None or found.version != row.version:
                raise self._lose() from None
        except UnavailableError as error:
            if not error.fields.get("maybe_done", True):
                raise
            self._ours = (*self._ours, row.version)[-OURS_MAX:]
            found = self._client.read()
            if found is None or found.version not in self._ours:
                raise self._lose() from error
            if found.version != row.version:
                raise

    def _lose(self) -> LeaseLostError:
        self._lost = True
        return self._lost_error("another holder took the lock, or the row was deleted")

    def _lost_error(self, because: str) -> LeaseLostError:
        return LeaseLostError(
            f"the dynamodb lock is no longer held: stop this write; {because}: "
            f"{self._client.identity}",
            identity=self._client.identity,
            because=because,
        )


class DynamoClient:
    """
    The client of one row; several threads may share it.

    Args:
        settings: Address of the row and length of a lease.
        connect: Makes the transport, at the first request and again in a forked child.
        clock: Monotonic time of leases and sightings.
        ids: Owner names and version numbers.
    """

    def __init__(
        self,
        settings: DynamoSettings,
        connect: Callable[[], BotoTransport],
        *,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.address = RowAddress(table=settings.table, key=settings.key)
        self._settings = settings
        self._connection = Connection(connect, ids)
        self._clock = clock
        self._ids = ids
        self._owners: dict[int, str] = {}  # by process
        self._sighting: SeenVersion | None = None
        self._given_up: deque[str] = deque(maxlen=ABANDONED_VERSIONS_MAX)
        self._created_at_ms: int | None = None

    @property
    def identity(self) -> str:
        """Region, endpoint, table and key."""
        return self._settings.identity

    @property
    def margin_ms(self) -> int:
        """Twice the time-out of a request."""
        return 2 * self._settings.request_ms

    def monotonic_ms(self) -> int:
        """Return the monotonic time of leases and sightings."""
        return self._clock.monotonic_ms()

    def sleep_ms(self, duration_ms: int) -> None:
        """Pause before a repetition."""
        self._clock.sleep_ms(duration_ms)

    def try_acquire(self, owner_text: str) -> DynamoHolding | None:
        """
        Take the lock if it is free or its holder is dead, else return None.

        It sends two or three requests: the write (before it a read, if the row was seen taken), and
        one for the token. It creates a missing table if the settings allow that.

        Raises:
            UnavailableError: No answer, throttled, or the table is being created.
            UnsafeSetupError: No table, a wrong one, no access, no credentials, or not a lock's row.
        """
        # Without knowledge of the row, a write is also the fastest way to read it.
        try:
            row = None if self._sighting is None else self.read()
            for _ in range(TAKES_PER_TRY):
                take = decide(row, self._sighting, tuple(self._given_up), self.monotonic_ms())
                if take is None:
                    return None
                holding, row = self._take(take, row, owner_text)
                if holding is not None:
                    self._finish(holding)
                    return holding
        except MissingTableError as error:
            raise self._missing_table(error) from error
        return None

    def holder(self) -> str | None:
        """Return the note of the holder, or Java's owner name; one read."""
        try:
            row = self.read()
        except MissingTableError:
            return None
        return None if row is None else row.holder_text

    def break_lock(self, holder_text: str) -> bool:
        """Delete the row of the named holder; see ``BreakableLockClient``."""
        for _ in range(BREAK_TRIES):
            try:
                row = self.read()
                if row is None or row.holder_text != holder_text:
                    return False
                self.ask("delete_item", release_request(self.address, row.owner, (row.version,)))
            except MissingTableError:
                return False
            except ConditionFailedError:
                continue  # the holder is alive and has just renewed
            return True
        return False

    def close(self) -> None:
        """Delete rows that an unanswered request may have left, then close the connections."""
        if self._given_up and self._connection.is_open:
            with contextlib.suppress(UnavailableError, UnsafeSetupError, *_NO_ROW):
                row = self.read()
                if row is not None and row.version in self._given_up:
                    request = release_request(self.address, row.owner, (row.version,))
                    self.ask("delete_item", request)
        self._connection.close()

    def ask(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send one request; raise the errors of the transport."""
        return self._connection.call(operation, request)

    def read(self) -> DynamoLockRow | None:
        """Read the row; record when its version number was first seen."""
        return self._noted(self.ask("get_item", read_request(self.address)).get("Item"))

    def row_after(self, failure: ConditionFailedError) -> DynamoLockRow | None:
        """Return the row that failed a condition; read it if the server did not send it."""
        return self.read() if failure.item is None else self._noted(failure.item)

    def new_version(self) -> str:
        """Return a new version number that no row had before."""
        return self._ids.uuid()

    def abandon_versions(self, *versions: str) -> None:
        """Remember version numbers that belong to no holder, in case their row appears."""
        self._given_up.extend(versions)

    def _take(
        self, take: Take, seen: DynamoLockRow | None, owner_text: str
    ) -> tuple[DynamoHolding | None, DynamoLockRow | None]:
        """Do one conditional write; return the holding, or the row that prevented it."""
        self._connection.open()  # may take long the first time
        row = DynamoLockRow(
            owner=self._owner(),
            lease_ms=self._settings.lease_ms,
            version=self.new_version(),
            note=owner_text,
        )
        request = put_request(self.address, row, take, None if seen is None else seen.version)
        sent_at_ms = self.monotonic_ms()
        try:
            try:
                self.ask("put_item", request)
            except ConditionFailedError as failure:
                found = self.row_after(failure)
            except UnavailableError as error:
                if not error.fields.get("maybe_done", True):
                    raise
                found = self.read()
            else:
                found = row
        except BaseException:
            self.abandon_versions(row.version)
            raise
        if found is None or found.version != row.version:
            self.abandon_versions(row.version)  # an unanswered request may still arrive
            return None, found
        self._sighting = None
        return DynamoHolding(self, row, sent_at_ms=sent_at_ms), None

    def _finish(self, holding: DynamoHolding) -> None:
        """Count the holding; refuse it if its lease ended while we waited for answers."""
        try:
            if self._settings.count_holdings:
                holding.fencing_token = self._count()
            if holding.expires_in_ms() <= self.margin_ms:
                raise UnavailableError(
                    "dynamodb answers too slowly for the lease: raise "
                    f"hoodie.write.lock.wait_time_ms: {self.identity}"
                )
        except BaseException:
            with contextlib.suppress(UnavailableError):
                holding.give_back()  # without pauses: an attempt does not wait
            raise

    def _count(self) -> int | None:
        request = count_request(
            self.address, self._owner(), self.new_version(), self._clock.now_ms()
        )
        return decode_token(self.ask("update_item", request))

    def _noted(self, item: Mapping[str, Any] | None) -> DynamoLockRow | None:
        """Return the row of an item; record since when its version number is known."""
        row = decode_row(self.address, item)
        if row is None or row.released:
            self._sighting = None
            return row
        now_ms = self.monotonic_ms()
        known = self._sighting or SeenVersion(version=row.version, since_ms=now_ms)
        self._sighting = known.or_newer(row, now_ms)
        return row

    def _missing_table(self, error: MissingTableError) -> UnavailableError | UnsafeSetupError:
        """Create the table if the settings allow that; the caller waits by trying again."""
        settings = self._settings
        if not settings.create_table:
            return UnsafeSetupError(
                "the table of locks does not exist: check region and endpoint, create it with "
                "one hash key named 'key' of type text, or set "
                f"{DynamoOptions.options['create_table'].key}=true in one writer; "
                f"{settings.table!a} in {settings.region}: {error}",
                kind="lock_table_missing",
                table=settings.table,
                region=settings.region,
            )
        now_ms = self.monotonic_ms()
        if self._created_at_ms is None:
            # Another writer may create it first, which serves as well.
            with contextlib.suppress(TableExistsError):
                self.ask("create_table", create_request(settings.table, [KEY], settings.capacity))
            self._created_at_ms = now_ms
        elif now_ms - self._created_at_ms > settings.creation_timeout_ms:
            return UnsafeSetupError(
                "the new table of locks did not become active: check it in the AWS console, or "
                f"raise {DynamoOptions.options['creation_timeout_ms'].key}: {settings.table!a} in "
                f"{settings.region}",
                kind="lock_table_missing",
                table=settings.table,
                region=settings.region,
            )
        return UnavailableError(
            f"the table of locks is being created; try again: {settings.table}", maybe_done=False
        )

    def _owner(self) -> str:
        """Return this process's name, as Java composes it."""
        identity = self._ids.identity()
        if identity.pid not in self._owners:
            self._owners.setdefault(identity.pid, identity.host + self._ids.uuid())
        return self._owners[identity.pid]


@contextlib.contextmanager
def _seen_by_holder() -> Iterator[None]:
    """Turn setup errors into unavailability: a holder keeps trying until its lease ends."""
    try:
        yield
    except UnsafeSetupError as error:
        raise UnavailableError(
            f"the lock's row cannot be changed now; try again: {error.message}", maybe_done=False
        ) from error
    except MissingTableError as error:
        raise UnavailableError(
            f"the table of the locks was deleted: create it again, then retry: {error}",
            maybe_done=False,
        ) from error


def _client(context: LockContext, implicit_key: str | None = None) -> DynamoClient:
    check_extra()
    settings = DynamoSettings.from_properties(
        context.properties, implicit_key=implicit_key, machine_region=region_of_machine
    )
    return DynamoClient(
        settings, lambda: BotoTransport(settings), clock=context.clock, ids=context.ids
    )


def _implicit_client(context: LockContext) -> DynamoClient:
    return _client(context, path_hash(hashed_address(context)))


_JAVA = "org.apache.hudi.aws.transaction.lock."

ENTRY = LockProviderEntry(
    name="dynamodb",
    factory=_client,
    capabilities=SERVER_SHARED_WITH_JAVA,
    jvm_class_names=(_JAVA + "DynamoDBBasedLockProvider",),
    options=tuple(DynamoOptions.options.values()),
    poll_first_ms=25,
    poll_max_ms=500,  # Java asks once a second
)

IMPLICIT_ENTRY = replace(
    ENTRY,
    name="dynamodb_implicit",
    factory=_implicit_client,
    jvm_class_names=(_JAVA + "DynamoDBBasedImplicitPartitionKeyLockProvider",),
    options=(*DynamoOptions.options.values(), ADDRESS_OPTION),
)
