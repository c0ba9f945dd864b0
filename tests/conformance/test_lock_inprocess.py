"""The in-process lock keeps the contract of every lock provider."""

from __future__ import annotations

from pathlib import Path

from lockproviders.client import LockClient
from lockproviders.inprocess import ENTRY, InProcessClient
from lockproviders.testing import LockProviderSuite


class TestInProcessLock(LockProviderSuite):
    capabilities = ENTRY.capabilities

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return InProcessClient(str(folder), host="here")
