"""The audit trail: its records, their times, and no effect of its failures on the lock."""

from __future__ import annotations

import json

import pytest

from lockproviders.audit import AUDIT_FOLDER, AuditTrail, read_audit, record_break
from lockproviders.registry import build_lock
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import StorageUnavailableError

NOW_MS = 1_700_000_001_000


class Writes:
    """A memory storage that records its writes and may refuse them."""

    def __init__(self) -> None:
        self._kept = MemoryStorage()
        self.written: list[str] = []
        self.refuses = False

    def __getattr__(self, name: str):
        return getattr(self._kept, name)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        if self.refuses:
            raise StorageUnavailableError("no answer")
        self.written.append(path)
        self._kept.write(path, data, durable=durable)


@pytest.fixture
def storage() -> Writes:
    return Writes()


def trail_over(machine, storage, *, keep_days: int = 7) -> AuditTrail:
    return AuditTrail(
        storage,
        clock=machine.clock,
        executor=machine.executor,
        events=machine.events,
        keep_days=keep_days,
    )


def hold(trail: AuditTrail, name: str, **more: object) -> None:
    trail.emit(
        name,
        provider="plain",
        identity="plain:t",
        owner="here/41/w1",
        purpose="publish 1",
        fencing_token=7,
        **more,
    )


def records(storage: Writes) -> list[dict]:
    (name,) = storage.names(AUDIT_FOLDER)
    return [json.loads(line) for line in storage.read(f"{AUDIT_FOLDER}/{name}").splitlines()]


def test_no_audit_record_is_written_while_a_lock_is_held_briefly(machine, storage) -> None:
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=None)
    assert storage.written == []
    hold(trail, "lock.released", held_ms=3, lost=False)
    assert storage.written == [f"{AUDIT_FOLDER}/{NOW_MS}_w1.jsonl"]


def test_records_have_the_fields_of_javas_and_no_more(machine, storage) -> None:
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=30_000)
    machine.clock.time_ms += 10_000
    hold(trail, "lock.renewed", expires_in_ms=30_000)
    machine.clock.time_ms += 5_000
    hold(trail, "lock.released", held_ms=15_000, lost=False)
    start, renewal, end = records(storage)
    assert {**start, "ownerId": json.loads(start["ownerId"])} == {
        "ownerId": {
            "owner": "here/41/w1",
            "purpose": "publish 1",
            "provider": "plain",
            "fencing_token": 7,
        },
        "transactionStartTime": NOW_MS,
        "timestamp": NOW_MS,
        "state": "START",
        "lockExpiration": NOW_MS + 30_000,
        "lockHeld": True,
    }
    assert (renewal["state"], renewal["timestamp"]) == ("RENEW", NOW_MS + 10_000)
    assert renewal["lockExpiration"] == NOW_MS + 40_000
    assert (end["state"], end["timestamp"], end["lockHeld"]) == ("END", NOW_MS + 15_000, True)


def test_long_holding_is_on_record_before_its_end(machine, storage) -> None:
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=None)
    (ticker,) = machine.executor.tickers
    assert ticker.interval_ms == 2_000
    ticker.work()
    assert [record["state"] for record in records(storage)] == ["START"]
    (open_one,) = read_audit(storage)
    assert (open_one.ended, open_one.end_ms) == ("open", None)
    ticker.work()
    assert len(storage.written) == 1, "no new event, so no write"
    hold(trail, "lock.released", held_ms=3, lost=False)
    assert ticker.stopped
    assert [record["state"] for record in records(storage)] == ["START", "END"]


def test_an_audit_record_is_read_as_it_was_written(machine, storage) -> None:
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=None)
    machine.clock.time_ms += 250
    hold(trail, "lock.released", held_ms=250, lost=True)
    (found,) = read_audit(storage)
    assert found.as_document() == {
        "owner": "here/41/w1",
        "purpose": "publish 1",
        "provider": "plain",
        "fencing_token": 7,
        "start_ms": NOW_MS,
        "end_ms": NOW_MS + 250,
        "held_ms": 250,
        "renewals": 0,
        "ended": "lost",
        "by": "",
    }


def test_javas_file_is_read_and_damaged_ones_are_passed_over(storage) -> None:
    lines = [
        {
            "ownerId": "5f1c",
            "transactionStartTime": 1_000,
            "timestamp": at,
            "state": state,
            "lockExpiration": at + 300_000,
            "lockHeld": state != "END",
        }
        for at, state in ((1_001, "START"), (31_000, "RENEW"), (40_000, "END"))
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    storage.write(f"{AUDIT_FOLDER}/1000_5f1c.jsonl", text.encode())
    for name, content in (
        ("2000_x.jsonl", b"{]"),
        ("3000_y.jsonl", b'{"timestamp": "soon"}'),
        ("4000_z.jsonl", b""),
        ("5000_u.jsonl", b'{"timestamp": 1700000000000000, "state": "END"}'),
        ("6000_v.jsonl", b'{"timestamp": 6000, "transactionStartTime": -1e18}'),
        ("7000_w.jsonl", b'{"timestamp": Infinity}'),
        ("8000_z.jsonl", b'{"timestamp": 1e999}'),
        ("9000_z.jsonl", b'{"timestamp": 1000000000000000000000000}'),
        ("notes.txt", b"not ours"),
    ):
        storage.write(f"{AUDIT_FOLDER}/{name}", content)
    (found,) = read_audit(storage)
    assert (found.owner, found.held_ms, found.renewals) == ("5f1c", 39_000, 1)
    assert found.ended == "released"


def test_a_time_range_selects_overlapping_leases(machine, storage) -> None:
    trail = trail_over(machine, storage)
    for _ in range(3):
        hold(trail, "lock.acquired", expires_in_ms=None)
        machine.clock.time_ms += 1_000
        hold(trail, "lock.released", lost=False)
        machine.clock.time_ms += 9_000
    starts = [one.start_ms - NOW_MS for one in read_audit(storage, since_ms=NOW_MS + 1_001)]
    assert starts == [10_000, 20_000]
    starts = [one.start_ms - NOW_MS for one in read_audit(storage, until_ms=NOW_MS + 19_999)]
    assert starts == [0, 10_000]


def test_two_holdings_in_one_millisecond_have_two_files(machine, storage) -> None:
    trail = trail_over(machine, storage)
    for _ in range(2):
        hold(trail, "lock.acquired", expires_in_ms=None)
        hold(trail, "lock.released", lost=False)
    assert len(set(storage.written)) == 2


def test_storage_that_does_not_answer_is_an_event_only(machine, storage) -> None:
    storage.refuses = True
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=None)
    hold(trail, "lock.released", lost=False)
    assert machine.events.names() == ["lock.audit_failed"]


def test_old_files_go_once_per_trail(machine, storage) -> None:
    old = NOW_MS - 8 * 24 * 3_600_000
    for name in (f"{old}_a.jsonl", f"{old}_b.broken.json", f"{NOW_MS - 1}_c.jsonl", "kept.txt"):
        storage.write(f"{AUDIT_FOLDER}/{name}", b"{}")
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=None)
    hold(trail, "lock.released", lost=False)
    assert storage.names(AUDIT_FOLDER) == [
        f"{NOW_MS - 1}_c.jsonl",
        f"{NOW_MS}_w1.jsonl",
        "kept.txt",
    ]


def test_renewals_without_end_make_no_file_without_end(machine, storage) -> None:
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=None)
    for _ in range(1_000):
        hold(trail, "lock.renewed", expires_in_ms=10)
    hold(trail, "lock.released", lost=False)
    kept = records(storage)
    assert len(kept) == 500
    assert (kept[0]["state"], kept[-1]["state"]) == ("START", "END")


def test_a_broken_lock_records_its_breaker(machine, storage) -> None:
    record_break(
        storage,
        clock=machine.clock,
        ids=machine.ids,
        holder_text='{"owner":"there/9/w2","purpose":"publish 2"}',
        provider="sql",
        identity="sql:x",
    )
    (found,) = read_audit(storage)
    assert (found.ended, found.owner, found.by) == ("broken", "there/9/w2", "here/41/w1")


@pytest.mark.parametrize(("option", "files"), [("true", 1), ("false", 0), ("", 0)])
def test_the_audit_has_a_property(machine, option, files) -> None:
    storage = MemoryStorage()
    lock = build_lock(
        {"hoodoo.lock.audit": option, "hoodie.write.lock.provider": "in_process"},
        storage=storage,
        clock=machine.clock,
        ids=machine.ids,
        events=machine.events,
        executor=machine.executor,
        table_identity="t",
    )
    lock.acquire("publish").release()
    assert len(storage.names(AUDIT_FOLDER)) == files
    assert "lock.released" in machine.events.names()


def test_lost_holding_that_is_never_given_back_makes_room(machine, storage) -> None:
    trail = trail_over(machine, storage)
    hold(trail, "lock.acquired", expires_in_ms=None)
    hold(trail, "lock.acquired", expires_in_ms=None)
    assert [ticker.stopped for ticker in machine.executor.tickers] == [True, False]


def test_events_of_an_unwatched_lock_are_passed_over(machine, storage) -> None:
    trail = trail_over(machine, storage)
    hold(trail, "lock.released", lost=False)
    trail.emit("publish.done", number=3)
    assert storage.written == []
