"""The metastore lock by its database keeps the contract; a real metastore takes dead locks away."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.hivemetastore.database_client import ENTRY
from lockproviders.hookspecs import LockContext
from lockproviders.testing import LockProviderSuite
from tests.servers.hivemetastore import (
    DATABASE,
    PASSWORD,
    USER,
    HiveMetastore,
    lay_out_lock_tables,
    needs_mariadb_driver,
)
from tests.servers.mariadb import MariaDb, needs_mariadb
from timeline.system import SystemClock, SystemIds

pytestmark = pytest.mark.integration

PROPERTIES = "lock.json"
LEASE_S = 10  # a silent second or two of a busy machine must not end it


def make_client(folder: Path) -> LockClient:
    """A client of the lock that the folder names; also called in other processes."""
    context = LockContext(
        properties=json.loads((folder / PROPERTIES).read_text(encoding="utf-8")),
        table_identity="unused",
        table_address="unused",
        table_folder=None,
        clock=SystemClock(),
        ids=SystemIds(),
    )
    return ENTRY.factory(context)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    needs_mariadb()
    needs_mariadb_driver()
    folder = tmp_path_factory.mktemp("metastore")
    with MariaDb(folder / "database") as server:
        lay_out_lock_tables(server)
        with HiveMetastore(folder / "service", mariadb=server, timeout_s=LEASE_S):
            yield server


class TestHiveMetastoreDatabase(LockProviderSuite):
    capabilities = ENTRY.capabilities
    make_client = staticmethod(make_client)

    @pytest.fixture
    def folder(self, tmp_path: Path, database: MariaDb) -> Path:
        prefix = "hoodoo.lock.hivemetastore_database."
        properties = {
            "hoodie.write.lock.hivemetastore.database": "Default",
            "hoodie.write.lock.hivemetastore.table": f"t{uuid.uuid4().hex}",
            prefix + "url": f"mysql://{database.host}:{database.port}/{DATABASE}",
            prefix + "user": USER,
            prefix + "password": PASSWORD,
            prefix + "lease.ms": str(LEASE_S * 1000),
        }
        (tmp_path / PROPERTIES).write_text(json.dumps(properties), encoding="utf-8")
        return tmp_path
