"""A DynamoDB table in memory: real conditions, and faults that a test chooses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from lockproviders.dynamodb.connection import (
    THROTTLED,
    ConditionFailedError,
    MissingTableError,
    TableExistsError,
)
from tests.unit.lockproviders.plain_machine import PlainIds
from timeline.errors import UnavailableError, UnsafeSetupError


class CountingIds(PlainIds):
    """Ids that differ and that a test can predict."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def uuid(self) -> str:
        self.made += 1
        return f"u{self.made}"


class FakeTable:
    """
    Rows and requests.

    A fault applies to the first request of its operation: ``lost`` (never arrives), ``unheard``
    (done, without an answer), ``late`` (not done, and may ``land`` later), ``twice`` (done twice,
    with the second answer), ``throttled``, ``denied``.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.exists = True
        self.being_created = False
        self.sends_items = True  # dynalite does not send them
        self.asked: list[str] = []
        self.requests: list[Mapping[str, Any]] = []
        self.faults: list[tuple[str, str]] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.late: list[tuple[str, Mapping[str, Any]]] = []
        self.opened = 0
        self.closed = 0

    def connect(self) -> FakeTable:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def call(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(operation)
        self.requests.append(request)
        self.before_answer()
        fault = self._fault_of(operation)
        if fault == "throttled":
            raise UnavailableError("throttled", kind=THROTTLED, maybe_done=False)
        if fault == "denied":
            raise UnsafeSetupError("denied")
        if fault == "late":
            self.late.append((operation, request))
        if fault in ("lost", "late"):
            raise UnavailableError("no answer", maybe_done=True)
        if fault == "twice":
            self._do(operation, request)
        try:
            return self._do(operation, request)
        finally:
            if fault == "unheard":
                raise UnavailableError("no answer", maybe_done=True)

    def land(self) -> None:
        """Execute the late requests; their answers are lost."""
        for operation, request in self.late:
            with contextlib.suppress(ConditionFailedError):
                self._do(operation, request)
        self.late.clear()

    def _fault_of(self, operation: str) -> str | None:
        for place, (where, fault) in enumerate(self.faults):
            if where in (operation, "any"):
                if where != "any":
                    del self.faults[place]
                return fault
        return None

    def _do(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if operation == "create_table":
            if self.exists or self.being_created:
                raise TableExistsError
            self.being_created = True
            return {}
        if not self.exists:
            raise MissingTableError("requested resource not found")
        key = request["Item"]["key"] if operation == "put_item" else request["Key"]["key"]
        row = self.rows.get(key["S"])
        if operation == "get_item":
            assert request["ConsistentRead"] is True
            return {} if row is None else {"Item": dict(row)}
        values = request.get("ExpressionAttributeValues", {})
        if not _holds(request.get("ConditionExpression"), row, values):
            shown = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
            raise ConditionFailedError(row if shown and self.sends_items else None)
        if operation == "put_item":
            self.rows[key["S"]] = dict(request["Item"])
        elif operation == "delete_item":
            self.rows.pop(key["S"], None)
        else:
            changed = _updated(request["UpdateExpression"], row or {"key": key}, values)
            self.rows[key["S"]] = changed
            return {"Attributes": changed}
        return {}


def _holds(condition: str | None, row: dict[str, Any] | None, values: Mapping[str, Any]) -> bool:
    for clause in (condition or "").split(" AND "):
        if clause == "attribute_not_exists(#k)":
            fits = row is None
        elif clause == "attribute_exists(#k)":
            fits = row is not None
        elif " IN (" in clause:
            name, _, names = clause.removesuffix(")").partition(" IN (")
            fits = row is not None and row.get(name) in [values[n] for n in names.split(", ")]
        elif clause:
            name, _, value = clause.partition(" = ")
            fits = row is not None and row.get(name) == values[value]
        else:
            fits = True
        if not fits:
            return False
    return True


def _updated(expression: str, row: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(row)
    for part in (
        expression.removeprefix("SET ").replace("if_not_exists(fencingToken, :s)", "@").split(", ")
    ):
        name, _, value = part.partition(" = ")
        if value == "@ + :one":
            start = row.get(name, values[":s"])["N"]
            changed[name] = {"N": str(int(start) + 1)}
        else:
            changed[name] = values[value]
    return changed
