"""The in-memory storage, and the observing one around it, keep the storage contract."""

from __future__ import annotations

from tests.unit.timeline.memory import MemoryStorage
from tests.unit.timeline.recording import RecordingStorage
from timeline.ports.ports import Storage
from timeline.testing.storage_suite import StorageSuite


class TestMemoryStorage(StorageSuite):
    def make_storage(self) -> Storage:
        return MemoryStorage("memory://suite")


class TestObservedStorage(StorageSuite):
    def make_storage(self) -> Storage:
        return RecordingStorage(MemoryStorage("memory://suite"))
