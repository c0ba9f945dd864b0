"""The families S10 and S15 find the faults they exist for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockproviders.storage_based.client import StorageClient
from lockproviders.storage_based.lock_file import LockRecord, ObjectVersion, StorageHolding, Tag
from tests.simulation import test_second_refresh as second
from tests.simulation.families import BY_ID
from tests.simulation.family import Build, play_schedule
from tests.simulation.stories_of_others import (
    MARGIN_MS,
    TERMS,
    beside_another_engine,
    locking,
    why_not,
)


class Hasty(StorageClient):
    """Believes its own clock alone when it says that the holder's time is over."""

    def _is_free(self, record: LockRecord | None, seen: ObjectVersion | None) -> bool:
        return record is None or record.expired or not record.is_valid_at(self._clock.now_ms())


class Rude(StorageClient):
    """Assumes that its own request was done whenever the outcome is unknown."""

    def _take(self, record: LockRecord, over: Tag | None, *, after_shared: bool) -> Tag | None:
        found = super()._take(record, over, after_shared=after_shared)
        return ("nobody", None) if found is None else found


def first_failure(family: str, build: Build, limit: int) -> str:
    mutant = replace(BY_ID[family], build=build)
    for number in range(limit):
        failure = play_schedule(mutant, number).failure
        if failure is not None:
            return failure
    return ""


@pytest.mark.parametrize("client_of", [Hasty, Rude])
def test_a_lock_with_two_holders_is_detected(client_of: type[StorageClient]) -> None:
    found = first_failure("S10", lambda draw, name: locking(draw, name, client_of), 300)
    assert "hold the lock at once" in found or "took what" in found


def test_a_lease_that_is_renewed_after_its_end_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StorageHolding, "is_held", lambda self: True)
    monkeypatch.setattr(StorageHolding, "expires_in_ms", lambda self: TERMS.validity_ms)
    assert "at once" in first_failure("S10", locking, 300)


def record(nonce: str, token: int, *, expired: bool = False, owner: str = "") -> LockRecord:
    return LockRecord(
        expired=expired,
        valid_until_ms=0,
        owner=owner or nonce,
        nonce=nonce,
        note=nonce,
        token=token,
    )


@pytest.mark.parametrize(
    ("before", "after", "later_ms", "found"),
    [
        (record("a", 1), record("a", 1, expired=True), 0, ""),
        (record("a", 1, expired=True), record("a", 1), 0, "lives again"),
        (record("a", 1, expired=True), record("b", 2), 0, ""),
        (record("a", 1), record("b", 2), 0, "took what"),
        (record("a", 1), record("b", 2), TERMS.validity_ms - MARGIN_MS, ""),
        (record("a", 1), record("b", 2, owner="a"), 0, ""),
        (record("a", 1), record("b", 1), TERMS.validity_ms, "fencing token"),
        (record("a", 1), record("b", 2, expired=True), 0, "gave back what"),
    ],
)
def test_every_rule_of_the_lock_file_can_be_broken(
    before: LockRecord, after: LockRecord, later_ms: int, found: str
) -> None:
    reasons = "; ".join(why_not(before, 1_000, after, 1_000 + later_ms))
    assert (found in reasons) if found else (reasons == "")


def test_without_the_second_refresh_rows_are_lost() -> None:
    """Without the second refresh (FOR-4) the other engine's rows or ours are lost."""

    def build(draw, name: str):
        return beside_another_engine(draw, name, ours=second.alone)

    assert "FOR-4" in first_failure("S15", build, 60)
