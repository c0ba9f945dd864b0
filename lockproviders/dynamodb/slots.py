"""
Commit slots in a DynamoDB table: one conditional put decides which writer creates an item (SLOT-6).

The table is separate from the locks' table: folder and name are its hash and sort key, so that one
query lists the slots of one table. All reads are consistent. The library's own retries are off,
because a repeated put finds its own first copy (F16).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lockproviders.dynamodb.connection import (
    BotoTransport,
    ConditionFailedError,
    Connection,
    MissingTableError,
    TableExistsError,
    create_request,
)
from lockproviders.dynamodb.settings import DynamoOptions, DynamoSettings
from timeline.errors import StorageUnavailableError, UnavailableError, UnsafeSetupError
from timeline.ports.ports import (
    AmbiguousWriteError,
    Clock,
    Ids,
    ObjectExistsError,
    ObjectMissingError,
    SlotNames,
    slot_store_lost,
)

_FOLDER, _NAME, _CONTENT = "folder", "name", "content"
_WHOLE = b"1"  # before every content, since some servers store no empty one
_CREATION_PAUSE_MS = 500


class DynamoSlotStore:
    """
    A slot store in one DynamoDB table; several threads may share it.

    Args:
        settings: Table name and endpoint, credentials, and whether the table may be created.
        connect: Makes the transport, at the first request and again in a forked child.
        clock: Waits for a table that is being created.
        ids: Identifies the current process.
    """

    def __init__(
        self,
        settings: DynamoSettings,
        connect: Callable[[], BotoTransport],
        *,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._settings = settings
        self._connection = Connection(connect, ids)
        self._clock = clock
        self._ids = ids
        self._guards: dict[int, threading.Lock] = {}  # by process, so that none is held at a fork
        self._answered = False  # the table existed; a new one would let every number be taken again

    @property
    def identity(self) -> str:
        """Region or endpoint and table; equal for all processes that use it."""
        settings = self._settings
        where = f"{settings.region}@{settings.endpoint}" if settings.endpoint else settings.region
        return f"dynamodb:{where}/{settings.table}"

    def create(self, path: str, data: bytes) -> None:
        """Create a slot; see the port. Outside: 1 put."""
        request = {
            "Item": {**_key(path), _CONTENT: {"B": _WHOLE + data}},
            "ConditionExpression": "attribute_not_exists(#folder)",
            "ExpressionAttributeNames": {"#folder": _FOLDER},
        }
        try:
            self._ask("put_item", request)
        except ConditionFailedError as error:
            raise ObjectExistsError(path) from error
        except UnavailableError as error:
            if error.fields.get("maybe_done", True):
                raise AmbiguousWriteError(path) from error
            raise _unavailable(error) from error

    def read(self, path: str) -> bytes:
        """Return the bytes of a slot; see the port. Outside: 1 get."""
        answer = self._repeatable("get_item", {"Key": _key(path), "ConsistentRead": True})
        item = answer.get("Item")
        if item is None:
            raise ObjectMissingError(path)
        return bytes(item[_CONTENT]["B"])[len(_WHOLE) :]

    def names(self, folder: str) -> SlotNames:
        """Return the names in a folder; see the port. Outside: 1 query per megabyte of items."""
        request: dict[str, Any] = {
            "KeyConditionExpression": "#folder = :folder",
            "ProjectionExpression": "#name",
            "ExpressionAttributeNames": {"#folder": _FOLDER, "#name": _NAME},
            "ExpressionAttributeValues": {":folder": {"S": folder}},
            "ConsistentRead": True,
        }
        found: SlotNames = []
        while True:
            answer = self._repeatable("query", request)
            found.extend(item[_NAME]["S"] for item in answer.get("Items", ()))
            last = answer.get("LastEvaluatedKey")
            if not last:
                return sorted(found)
            request["ExclusiveStartKey"] = last

    def delete(self, path: str) -> None:
        """Delete a slot; see the port. Outside: 1 delete."""
        self._repeatable("delete_item", {"Key": _key(path)})

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _repeatable(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request that may run twice; repeat it once if there is no answer."""
        try:
            try:
                return self._ask(operation, request)
            except UnavailableError:
                return self._ask(operation, request)
        except UnavailableError as error:
            raise _unavailable(error) from error

    def _ask(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        named = {"TableName": self._settings.table, **request}
        # Read before the request: another thread may create the table while it is on its way.
        was_answered = self._answered
        try:
            answer = self._call(operation, named)
        except ConditionFailedError:
            self._answered = True
            raise
        except MissingTableError as error:
            if was_answered:
                raise slot_store_lost(self.identity) from error
            with self._guards.setdefault(self._ids.identity().pid, threading.Lock()):
                if not self._answered:
                    self._make_table(error)
            answer = self._ask_of_new_table(operation, named)
        self._answered = True
        return answer

    def _ask_of_new_table(self, operation: str, named: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._call(operation, named)
        except MissingTableError as error:  # one of its servers does not know the table yet
            raise UnavailableError(
                f"the new table of slots is not active yet; try again: {error}",
                maybe_done=False,
            ) from error

    def _call(self, operation: str, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send one request; adapt the transport's errors, which speak of locks, to slots."""
        try:
            return self._connection.call(operation, named)
        except UnsafeSetupError as error:
            if error.kind == "lock_denied":
                raise self._no_table(
                    f"this identity may not use the table of slots: allow {error.fields['action']} "
                    f"on all of its keys; {error.fields['said']}",
                    kind="slots_denied",
                ) from error
            if error.kind == "lock_table_schema":
                raise self._no_table(
                    f"this is not a table of slots: it needs the hash key {_FOLDER!r} and the "
                    f"sort key {_NAME!r}, both texts; name another with hoodoo.slots.table; "
                    f"{error.fields['said']}"
                ) from error
            raise

    def _make_table(self, missing: MissingTableError) -> None:
        """Create the table if the settings allow that, and wait until it is usable."""
        settings = self._settings
        if not settings.create_table:
            raise self._no_table(
                "the table of slots does not exist: check region and endpoint, create it with "
                f"the hash key {_FOLDER!r} and the sort key {_NAME!r}, both texts, or set "
                f"{DynamoOptions.options['create_table'].key}=true in one writer; {missing}"
            ) from missing
        with contextlib.suppress(TableExistsError):  # another writer created it first
            request = create_request(settings.table, [_FOLDER, _NAME], settings.capacity)
            self._call("create_table", request)
        ends_at_ms = self._clock.monotonic_ms() + settings.creation_timeout_ms
        while self._clock.monotonic_ms() < ends_at_ms:
            try:
                found = self._call("describe_table", {"TableName": settings.table})
            except MissingTableError:
                found = {}
            if found.get("Table", {}).get("TableStatus") == "ACTIVE":
                return
            self._clock.sleep_ms(_CREATION_PAUSE_MS)
        raise self._no_table(
            "the new table of slots did not become active: check it in the AWS console, or raise "
            f"{DynamoOptions.options['creation_timeout_ms'].key}"
        )

    def _no_table(self, text: str, *, kind: str = "slot_table_missing") -> UnsafeSetupError:
        settings = self._settings
        return UnsafeSetupError(
            f"{text}: {settings.table!a} in {settings.region}",
            kind=kind,
            table=settings.table,
            region=settings.region,
        )


def _key(path: str) -> dict[str, Any]:
    folder, _, name = path.rpartition("/")
    return {_FOLDER: {"S": folder}, _NAME: {"S": name}}


def _unavailable(error: UnavailableError) -> StorageUnavailableError:
    return StorageUnavailableError(f"the slot store does not answer; try again: {error.message}")
