"""The storage-based lock keeps the contract of every lock provider, on a real S3 server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockproviders.client import LockClient
from lockproviders.storage_based.client import ENTRY
from lockproviders.testing import LockProviderSuite
from tests.servers.s3 import BUCKET, S3Server, storage_lock_client
from timeline.errors import LeaseLostError

ADDRESS_FILE = "server.txt"  # other processes find the server by it
LEASE_MS = 60_000  # nothing hangs on how busy the machine is
SHORT_MS = 4_000  # where a lease must end
LEASE_FILE = "lease.txt"


def make_client(folder: Path) -> LockClient:
    url = (folder / ADDRESS_FILE).read_text(encoding="ascii")
    told = folder / LEASE_FILE
    lease_ms = int(told.read_text(encoding="ascii")) if told.exists() else LEASE_MS
    return storage_lock_client(url, folder.name, lease_ms=lease_ms)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, server: S3Server) -> Path:
    (tmp_path / ADDRESS_FILE).write_text(server.url, encoding="ascii")
    return tmp_path


class TestStorageBasedLock(LockProviderSuite):
    capabilities = ENTRY.capabilities
    make_client = staticmethod(make_client)

    @pytest.fixture
    def folder(self, tmp_path: Path, server: S3Server) -> Path:
        (tmp_path / ADDRESS_FILE).write_text(server.url, encoding="ascii")
        return tmp_path

    def test_killed_holder_does_not_block_for_ever(self, folder: Path, new_lock) -> None:
        (folder / LEASE_FILE).write_text(str(SHORT_MS), encoding="ascii")
        super().test_killed_holder_does_not_block_for_ever(folder, new_lock)


def lock_file(server: S3Server, folder: Path) -> dict[str, object]:
    key = f"{folder.name}/.hoodie/.locks/table_lock.json"
    found = server.client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    content = json.loads(found)
    assert isinstance(content, dict)
    return content


def test_the_file_is_java_s_with_our_fields_behind(server: S3Server, folder: Path) -> None:
    client = make_client(folder)
    before_ms = time.time() * 1000
    holding = client.try_acquire("me")
    after_ms = time.time() * 1000
    assert holding is not None
    held = lock_file(server, folder)
    assert list(held) == [
        "expired", "validUntil", "owner", "hoodooNonce", "hoodooOwner", "hoodooToken", "hoodooAloneTo"
    ]  # fmt: skip
    assert held["expired"] is False
    assert before_ms - 2_000 < int(str(held["validUntil"])) - LEASE_MS < after_ms + 2_000
    holding.release()
    assert lock_file(server, folder) == {**held, "expired": True}


def test_a_java_holder_blocks_and_its_release_frees_the_lock(
    server: S3Server, folder: Path
) -> None:
    key = f"{folder.name}/.hoodie/.locks/table_lock.json"
    until = int(time.time() * 1000) + 60_000
    java = {"expired": False, "validUntil": until, "owner": "6a7b7c1e-0000-4000-8000-000000000001"}
    put = server.client().put_object
    put(Bucket=BUCKET, Key=key, Body=json.dumps(java))
    client = make_client(folder)
    assert client.try_acquire("me") is None
    assert "Java" in (client.holder() or "")
    put(Bucket=BUCKET, Key=key, Body=json.dumps({**java, "expired": True}))
    holding = client.try_acquire("me")
    assert holding is not None
    assert (holding.fencing_token or 0) > until


def test_a_lock_that_java_took_after_our_end_is_lost_and_stays_java_s(
    server: S3Server, folder: Path
) -> None:
    holding = make_client(folder).try_acquire("zombie")
    assert holding is not None
    key = f"{folder.name}/.hoodie/.locks/table_lock.json"
    java = {"expired": False, "validUntil": int(time.time() * 1000) + 60_000, "owner": "j"}
    server.client().put_object(Bucket=BUCKET, Key=key, Body=json.dumps(java))
    with pytest.raises(LeaseLostError):
        holding.renew()
    assert not holding.is_held()
    holding.release()
    assert lock_file(server, folder) == java
