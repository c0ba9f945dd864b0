"""
The rows of a DynamoDB lock table and the requests about them: pure, without a connection.

The rows are those of Java's lock client, so both take the same lock (tests ran against it). Each
lock has one row. All attributes are texts. A record version number changes with every heartbeat,
and there is no wall-clock time anywhere. Invariants:

- A waiter counts the lease from its own first sight of a version number. A number that stays for a
  whole lease means that the holder is dead.
- Every write is conditional: on absence, on the number seen, or on the own owner and number.
- Java reads attributes of ours as additional ones, and drops them when it takes the lock. The count
  of holdings is therefore in a row of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from timeline.errors import UnsafeSetupError

Request = dict[str, Any]
Item = Mapping[str, Mapping[str, Any]]

KEY = "key"
OWNER = "ownerName"
LEASE = "leaseDuration"
VERSION = "recordVersionNumber"
RELEASED = "isReleased"
NOTE = "hoodooOwner"  # ours: the holder, for people
TOKEN = "fencingToken"  # noqa: S105  ours: the count of holdings, in the row of the count
COUNT_SUFFIX = "#hoodoo-fencing-token"

LEASE_DIGITS_MAX = 15
KEY_BYTES_MAX = 2048  # of a partition key, by the service

_KEY_NAME = {"#k": KEY}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAddress:
    """The address of a row: table and key."""

    table: str
    key: str

    @property
    def counter(self) -> RowAddress:
        """The row with the count of holdings."""
        return RowAddress(table=self.table, key=self.key + COUNT_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoLockRow:
    """One lock as the table has it."""

    owner: str
    lease_ms: int
    version: str
    released: bool = False
    note: str = ""

    @property
    def holder_text(self) -> str | None:
        """The holder, for people; None if the lock is free."""
        return None if self.released else self.note or self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVersion:
    """A version number and the monotonic time when this process first saw it."""

    version: str
    since_ms: int

    def or_newer(self, row: DynamoLockRow, now_ms: int) -> SeenVersion:
        """Return this sighting, or a new one if the row's version number has changed."""
        if row.version == self.version:
            return self
        return SeenVersion(version=row.version, since_ms=now_ms)


class Take(Enum):
    """The condition of a take-over of the row."""

    IF_ABSENT = "absent"
    IF_RELEASED = "released"
    IF_UNCHANGED = "unchanged"


def decide(
    row: DynamoLockRow | None, sighting: SeenVersion | None, given_up: Collection[str], now_ms: int
) -> Take | None:
    """
    Return the condition under which the lock can be taken now, or None if it cannot.

    Args:
        row: The row in the table, None if there is none.
        sighting: Since when the row's version number is known.
        given_up: Version numbers that this process wrote and no longer uses, for example by a
            request that arrived after its time-out.
        now_ms: Monotonic time.
    """
    if row is None:
        return Take.IF_ABSENT
    if row.released:
        return Take.IF_RELEASED
    if row.version in given_up:
        return Take.IF_UNCHANGED
    if sighting is None or sighting.version != row.version:
        return None
    return Take.IF_UNCHANGED if now_ms - sighting.since_ms > row.lease_ms else None


def put_request(at: RowAddress, row: DynamoLockRow, take: Take, seen: str | None) -> Request:
    """Return the PutItem of the whole row, as in Java; ``seen`` is the replaced number."""
    request: Request = {
        "TableName": at.table,
        "Item": {
            KEY: _text(at.key),
            OWNER: _text(row.owner),
            LEASE: _text(str(row.lease_ms)),
            VERSION: _text(row.version),
            NOTE: _text(row.note),
        },
        "ExpressionAttributeNames": dict(_KEY_NAME),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if take is Take.IF_ABSENT:
        request["ConditionExpression"] = "attribute_not_exists(#k)"
    elif take is Take.IF_RELEASED:
        request["ConditionExpression"] = f"attribute_exists(#k) AND {RELEASED} = :r"
        request["ExpressionAttributeValues"] = {":r": _text("1")}
    else:
        request["ConditionExpression"] = f"attribute_exists(#k) AND {VERSION} = :v"
        request["ExpressionAttributeValues"] = {":v": _text(seen or "")}
    return request


def read_request(at: RowAddress) -> Request:
    """Return a strongly consistent GetItem of the row."""
    return {"TableName": at.table, "Key": {KEY: _text(at.key)}, "ConsistentRead": True}


def renew_request(at: RowAddress, row: DynamoLockRow, ours: Collection[str]) -> Request:
    """
    Return the UpdateItem with a new version number and a full lease.

    Args:
        at: The row.
        row: The own owner, the new number and the lease.
        ours: The numbers that the own row may have now; several after time-outs.
    """
    condition, values = _still_ours(row.owner, ours)
    return {
        "TableName": at.table,
        "Key": {KEY: _text(at.key)},
        "UpdateExpression": f"SET {LEASE} = :l, {VERSION} = :n",
        "ConditionExpression": condition,
        "ExpressionAttributeNames": dict(_KEY_NAME),
        "ExpressionAttributeValues": {
            ":l": _text(str(row.lease_ms)),
            ":n": _text(row.version),
            **values,
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def release_request(at: RowAddress, owner: str, ours: Collection[str]) -> Request:
    """Return the DeleteItem of the own row, as Java releases."""
    condition, values = _still_ours(owner, ours)
    return {
        "TableName": at.table,
        "Key": {KEY: _text(at.key)},
        "ConditionExpression": condition,
        "ExpressionAttributeNames": dict(_KEY_NAME),
        "ExpressionAttributeValues": values,
    }


def count_request(at: RowAddress, owner: str, version: str, now_ms: int) -> Request:
    """
    Return the UpdateItem that counts one holding and answers the count.

    A new count starts at the wall clock, so that old tokens do not return after a row was deleted.
    To Java, which can read nothing else, the row is a released lock.
    """
    counter = at.counter
    return {
        "TableName": counter.table,
        "Key": {KEY: _text(counter.key)},
        "UpdateExpression": (
            f"SET {TOKEN} = if_not_exists({TOKEN}, :s) + :one, {OWNER} = :w, {LEASE} = :l, "
            f"{VERSION} = :n, {RELEASED} = :r"
        ),
        "ExpressionAttributeValues": {
            ":s": {"N": str(max(0, now_ms))},
            ":one": {"N": "1"},
            ":w": _text(owner),
            ":l": _text("0"),
            ":n": _text(version),
            ":r": _text("1"),
        },
        "ReturnValues": "UPDATED_NEW",
    }


def decode_row(at: RowAddress, item: Item | None) -> DynamoLockRow | None:
    """
    Return the lock in an item, or None without an item.

    Raises:
        UnsafeSetupError: It is not the row of a lock (kind ``lock_row``); neither Java nor hoodoo
            could ever take it.
    """
    if not item:
        return None
    if _attribute(item, RELEASED) == "1":
        return DynamoLockRow(
            owner=_attribute(item, OWNER),
            lease_ms=0,
            version=_attribute(item, VERSION),
            released=True,
        )
    lease, version = _attribute(item, LEASE), _attribute(item, VERSION)
    if not (lease.isascii() and lease.isdigit() and len(lease) <= LEASE_DIGITS_MAX and version):
        raise UnsafeSetupError(
            "this row is not the row of a lock: delete it when no writer runs, or choose another "
            f"partition key; {KEY} {at.key!a} of the table {at.table!a} has {LEASE} "
            f"{lease[:40]!a} and {VERSION} {version[:40]!a}",
            kind="lock_row",
            table=at.table,
            key=at.key,
        )
    return DynamoLockRow(
        owner=_attribute(item, OWNER),
        lease_ms=int(lease),
        version=version,
        note=_attribute(item, NOTE),
    )


def decode_token(response: Mapping[str, Any]) -> int | None:
    """Return the count in the answer to ``count_request``, or None if it has none."""
    number = response.get("Attributes", {}).get(TOKEN, {}).get("N", "")
    return int(number) if number.isascii() and number.isdigit() else None


def _still_ours(owner: str, ours: Collection[str]) -> tuple[str, Request]:
    names = {f":v{place}": _text(version) for place, version in enumerate(sorted(ours))}
    condition = f"attribute_exists(#k) AND {OWNER} = :w AND {VERSION} IN ({', '.join(names)})"
    return condition, {":w": _text(owner), **names}


def _attribute(item: Item, name: str) -> str:
    value = item.get(name, {}).get("S", "")
    return value if isinstance(value, str) else ""


def _text(value: str) -> dict[str, str]:
    return {"S": value}
