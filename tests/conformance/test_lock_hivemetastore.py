"""The metastore lock by Thrift keeps the contract of every lock provider, on both databases."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.hivemetastore.thrift_client import ENTRY
from lockproviders.hookspecs import LockContext
from lockproviders.testing import LockProviderSuite
from lockproviders.testing.contender import build_lock_over
from tests.servers.hivemetastore import (
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
def on_derby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    folder = tmp_path_factory.mktemp("metastore") / "derby"
    with HiveMetastore(folder, timeout_s=LEASE_S) as server:
        yield warm(server, folder)


@pytest.fixture(scope="module")
def on_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    needs_mariadb()
    needs_mariadb_driver()
    folder = tmp_path_factory.mktemp("metastore")
    with MariaDb(folder / "database") as database:
        lay_out_lock_tables(database)
        with HiveMetastore(folder / "service", mariadb=database, timeout_s=LEASE_S) as server:
            yield warm(server, folder)


def fill(folder: Path, server: HiveMetastore) -> Path:
    """Give the other processes their lock; every test has one of its own."""
    properties = {
        "hoodie.write.lock.hivemetastore.uris": server.uri,
        "hoodie.write.lock.hivemetastore.database": "Default",
        "hoodie.write.lock.hivemetastore.table": f"t{uuid.uuid4().hex}",
    }
    (folder / PROPERTIES).write_text(json.dumps(properties), encoding="utf-8")
    return folder


def warm(server: HiveMetastore, folder: Path) -> HiveMetastore:
    """It listens before it has opened its database; the first answer is as late as it likes."""
    with contextlib.closing(build_lock_over(make_client(fill(folder, server)))) as lock:
        lock.acquire("warm").release()
    return server


class TestHiveMetastoreOnDerby(LockProviderSuite):
    capabilities = ENTRY.capabilities
    make_client = staticmethod(make_client)

    @pytest.fixture
    def folder(self, tmp_path: Path, on_derby: HiveMetastore) -> Path:
        return fill(tmp_path, on_derby)


@pytest.mark.slow
class TestHiveMetastoreOnMariaDb(LockProviderSuite):
    capabilities = ENTRY.capabilities
    make_client = staticmethod(make_client)

    @pytest.fixture
    def folder(self, tmp_path: Path, on_mariadb: HiveMetastore) -> Path:
        return fill(tmp_path, on_mariadb)
