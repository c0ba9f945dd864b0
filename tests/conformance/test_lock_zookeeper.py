"""Both ZooKeeper locks keep the contract of every lock provider, on real servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.hookspecs import LockContext
from lockproviders.testing import LockProviderSuite
from lockproviders.zookeeper.client import ENTRY, IMPLICIT_ENTRY
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from timeline.machine import SystemClock, SystemIds

SESSION_MS = 2_000
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, server: ZooKeeperServer) -> Path:
    return told(tmp_path, server.address)


def told(folder: Path, address: str) -> Path:
    """Tell the servers and a lock name of its own to the clients, in other processes too."""
    (folder / "server.txt").write_text(address, encoding="ascii")
    (folder / "lock.txt").write_text(f"t{next(NUMBERS)}", encoding="ascii")
    return folder


def context(folder: Path) -> LockContext:
    name = (folder / "lock.txt").read_text(encoding="ascii")
    return LockContext(
        properties={
            "hoodie.write.lock.zookeeper.url": (folder / "server.txt").read_text(encoding="ascii"),
            "hoodie.write.lock.zookeeper.base_path": "/hudi/locks",
            "hoodie.write.lock.zookeeper.lock_key": name,
            "hoodie.write.lock.zookeeper.session_timeout_ms": str(SESSION_MS),
        },
        table_identity=name,
        table_address=f"s3a://bkt/{name}",
        table_folder=None,
        clock=SystemClock(),
        ids=SystemIds(),
    )


class TestZooKeeperLock(LockProviderSuite):
    capabilities = ENTRY.capabilities

    @pytest.fixture
    def folder(self, folder: Path) -> Path:
        return folder

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return ENTRY.factory(context(folder))


class TestImplicitZooKeeperLock(LockProviderSuite):
    capabilities = IMPLICIT_ENTRY.capabilities

    @pytest.fixture
    def folder(self, folder: Path) -> Path:
        return folder

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return IMPLICIT_ENTRY.factory(context(folder))


@pytest.mark.integration
class TestZooKeeperLockOnAnEnsemble(LockProviderSuite):
    capabilities = ENTRY.capabilities

    @pytest.fixture
    def folder(self, tmp_path: Path, ensemble: ZooKeeperEnsemble) -> Path:
        return told(tmp_path, ensemble.address)

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return ENTRY.factory(context(folder))


@pytest.mark.integration
@pytest.mark.slow
class TestImplicitZooKeeperLockOnAnEnsemble(LockProviderSuite):
    capabilities = IMPLICIT_ENTRY.capabilities

    @pytest.fixture
    def folder(self, tmp_path: Path, ensemble: ZooKeeperEnsemble) -> Path:
        return told(tmp_path, ensemble.address)

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return IMPLICIT_ENTRY.factory(context(folder))


def test_closed_clients_leave_no_connection(folder: Path, server: ZooKeeperServer) -> None:
    before = server.connections()
    for _ in range(3):
        client = ENTRY.factory(context(folder))
        holding = client.try_acquire("me")
        assert holding is not None
        client.close()
    assert server.connections() <= before
