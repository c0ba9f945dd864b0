"""The example provider keeps the contract of every lock provider."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # not needed once the plug-in is installed

from hoodoo_sqlite_lock import ENTRY, SqliteClient

from hoodoo.plugins import LockClient, SystemClock, SystemIds
from lockproviders.testing import LockProviderSuite


class TestSqliteLock(LockProviderSuite):
    """All tests of the shipped suite, over the example."""

    capabilities = ENTRY.capabilities

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        database = str(folder / "lock.db")
        # A short lease, so that the test of a killed holder does not wait half a minute.
        return SqliteClient(database, "t", clock=SystemClock(), ids=SystemIds(), lease_ms=4_000)
