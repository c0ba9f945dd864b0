"""The DynamoDB lock keeps the contract of every lock provider, on two independent servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.dynamodb.client import ENTRY
from lockproviders.testing import LockProviderSuite
from tests.servers.dynamodb import DynaliteServer, MotoServer, client_of, create_table

ADDRESS_FILE = "server.txt"  # other processes find the server by it
LEASE_MS = 60_000  # nothing hangs on how busy the machine is
SHORT_MS = 6_000  # where a lease must end
LEASE_FILE = "lease.txt"


def make_client(folder: Path) -> LockClient:
    url = (folder / ADDRESS_FILE).read_text(encoding="ascii")
    told = folder / LEASE_FILE
    lease_ms = int(told.read_text(encoding="ascii")) if told.exists() else LEASE_MS
    return client_of(url, folder.name, lease_ms=lease_ms)


@pytest.fixture(scope="module")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        create_table(server.url)
        yield server.url


@pytest.fixture(scope="module")
def dynalite_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DynaliteServer(tmp_path_factory.mktemp("dynalite")) as server:
        create_table(server.url)
        yield server.url


class _Suite(LockProviderSuite):
    capabilities = ENTRY.capabilities
    make_client = staticmethod(make_client)

    def test_killed_holder_does_not_block_for_ever(self, folder: Path, new_lock) -> None:
        (folder / LEASE_FILE).write_text(str(SHORT_MS), encoding="ascii")
        super().test_killed_holder_does_not_block_for_ever(folder, new_lock)


class TestDynamoLockOnMoto(_Suite):
    @pytest.fixture
    def folder(self, tmp_path: Path, moto_url: str) -> Path:
        (tmp_path / ADDRESS_FILE).write_text(moto_url, encoding="ascii")
        return tmp_path


@pytest.mark.integration
@pytest.mark.slow
class TestDynamoLockOnDynalite(_Suite):
    @pytest.fixture
    def folder(self, tmp_path: Path, dynalite_url: str) -> Path:
        (tmp_path / ADDRESS_FILE).write_text(dynalite_url, encoding="ascii")
        return tmp_path
