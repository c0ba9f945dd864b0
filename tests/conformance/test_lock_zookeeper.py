"""Both ZooKeeper locks keep the contract of every lock provider, on real servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.hookspecs import LockContext
from lockproviders.testing import LockProviderSuite
from lockproviders.testing.contender import wait_for
from lockproviders.zookeeper.client import ENTRY, IMPLICIT_ENTRY
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from timeline.system import SystemClock, SystemIds

SESSION_MS = 30_000  # nothing hangs on how busy the machine is
SHORT_MS = 4_000  # where a session must end
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
    """Give the servers and a lock name of its own to the clients, in other processes too."""
    (folder / "server.txt").write_text(address, encoding="ascii")
    (folder / "lock.txt").write_text(f"t{next(NUMBERS)}", encoding="ascii")
    return with_sessions(folder, SESSION_MS)


def with_sessions(folder: Path, length_ms: int) -> Path:
    """Of this length, for the clients that are made from now on, in other processes too."""
    (folder / "session.txt").write_text(str(length_ms), encoding="ascii")
    return folder


def context(folder: Path) -> LockContext:
    name = (folder / "lock.txt").read_text(encoding="ascii")
    return LockContext(
        properties={
            "hoodie.write.lock.zookeeper.url": (folder / "server.txt").read_text(encoding="ascii"),
            "hoodie.write.lock.zookeeper.base_path": "/hudi/locks",
            "hoodie.write.lock.zookeeper.lock_key": name,
            "hoodie.write.lock.zookeeper.session_timeout_ms": (
                (folder / "session.txt").read_text(encoding="ascii")
            ),
        },
        table_identity=name,
        table_address=f"s3a://bkt/{name}",
        table_folder=None,
        clock=SystemClock(),
        ids=SystemIds(),
    )


class _Suite(LockProviderSuite):
    def test_killed_holder_does_not_block_for_ever(self, folder: Path, new_lock) -> None:
        super().test_killed_holder_does_not_block_for_ever(
            with_sessions(folder, SHORT_MS), new_lock
        )


class TestZooKeeperLock(_Suite):
    capabilities = ENTRY.capabilities

    @pytest.fixture
    def folder(self, folder: Path) -> Path:
        return folder

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return ENTRY.factory(context(folder))


class TestImplicitZooKeeperLock(_Suite):
    capabilities = IMPLICIT_ENTRY.capabilities

    @pytest.fixture
    def folder(self, folder: Path) -> Path:
        return folder

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return IMPLICIT_ENTRY.factory(context(folder))


@pytest.mark.integration
class TestZooKeeperLockOnAnEnsemble(_Suite):
    capabilities = ENTRY.capabilities

    @pytest.fixture
    def folder(self, tmp_path: Path, ensemble: ZooKeeperEnsemble) -> Path:
        return told(tmp_path, ensemble.address)

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return ENTRY.factory(context(folder))


@pytest.mark.integration
@pytest.mark.slow
class TestImplicitZooKeeperLockOnAnEnsemble(_Suite):
    capabilities = IMPLICIT_ENTRY.capabilities

    @pytest.fixture
    def folder(self, tmp_path: Path, ensemble: ZooKeeperEnsemble) -> Path:
        return told(tmp_path, ensemble.address)

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return IMPLICIT_ENTRY.factory(context(folder))


def test_closed_clients_leave_no_connection(folder: Path, server: ZooKeeperServer) -> None:
    clients = [ENTRY.factory(context(told(folder, server.address))) for _ in range(3)]
    try:
        before = server.connections()
        for client in clients:
            assert client.try_acquire("me") is not None
        assert server.connections() >= before + len(clients)
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: server.connections() <= before)
