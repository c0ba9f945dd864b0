"""Handles that share one memory world, and the records of a recording storage."""

from __future__ import annotations

import pytest

from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from tests.unit.timeline.recording import RecordingStorage
from timeline.errors import InvalidInputError
from timeline.ports.ports import ObjectExistsError, ObjectMissingError, Value


class Frozen:
    """A clock that does not advance."""

    def now_ms(self) -> int:
        return 1_700_000_000_123

    def monotonic_ms(self) -> int:
        return 0

    def sleep_ms(self, duration_ms: int) -> None:
        pytest.fail("nothing here may wait")


class Kept:
    """A sink that keeps names and fields."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Value]]] = []

    def emit(self, name: str, /, **fields: Value) -> None:
        self.events.append((name, fields))


def test_memory_storages_of_one_process_have_the_same_tables_by_name() -> None:
    ports = MemoryWorld()
    MemoryStorage("memory://a", ports=ports).create("x", b"1")
    assert MemoryStorage("memory://a/", ports=ports).read("x") == b"1"
    for other in (MemoryStorage("memory://b", ports=ports), MemoryStorage("memory://a")):
        with pytest.raises(ObjectMissingError):
            other.read("x")


def test_objects_have_timestamps_of_the_simulated_clock() -> None:
    storage = MemoryStorage(ports=MemoryWorld(Frozen()))
    storage.create("x", b"")
    found = storage.stat("x")
    assert found is not None
    assert found.modified_ms == storage.now_ms() == 1_700_000_000_123


@pytest.mark.parametrize("uri", ["memory://", "memory:x", "/a", ""])
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(InvalidInputError):
        MemoryStorage(uri)


def test_observed_storage_notes_calls_bytes_and_failures() -> None:
    events = Kept()
    ticks = iter(range(100))
    storage = RecordingStorage(MemoryStorage(), events=events, timer=lambda: float(next(ticks)))
    storage.create("a/x", b"123")
    with pytest.raises(ObjectExistsError):
        storage.create("a/x", b"12345")
    assert storage.read("a/x") == b"123"
    storage.names("a")
    assert storage.operations() == ["create a/x", "create a/x", "read a/x", "names a"]
    assert [call.size_bytes for call in storage.calls] == [3, 5, 3, 0]
    assert [call.failure for call in storage.calls] == [None, "ObjectExistsError", None, None]
    assert {call.seconds for call in storage.calls} == {1.0}
    assert storage.count("create") == 2
    assert storage.count() == 4
    assert events.events[1] == (
        "storage.call",
        {
            "operation": "create",
            "path": "a/x",
            "seconds": 1.0,
            "size_bytes": 5,
            "failure": "ObjectExistsError",
        },
    )
    storage.forget()
    assert storage.calls == []
