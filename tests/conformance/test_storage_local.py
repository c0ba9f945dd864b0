"""The local storage keeps the storage contract, waiting for the disk or not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from timeline.ports.ports import Storage
from timeline.storage.local import LocalStorage
from timeline.testing.storage_suite import StorageSuite


class TestLocalStorage(StorageSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_storage(self) -> Storage:
        return LocalStorage(Path(tempfile.mkdtemp(dir=self.folder)) / "table")


class TestRelaxedLocalStorage(TestLocalStorage):
    def make_storage(self) -> Storage:
        base = Path(tempfile.mkdtemp(dir=self.folder)) / "table"
        return LocalStorage(base, durability="relaxed")
