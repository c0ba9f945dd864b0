"""The filesystem lock keeps the contract of every lock provider."""

from __future__ import annotations

from pathlib import Path

from lockproviders.client import LockClient
from lockproviders.filesystem import ENTRY, FlockClient
from lockproviders.testing import LockProviderSuite
from timeline.system import SystemClock


class TestFilesystemLock(LockProviderSuite):
    capabilities = ENTRY.capabilities

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return FlockClient(str(folder / ".locks"), clock=SystemClock())
