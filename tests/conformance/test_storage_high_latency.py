"""The high-latency store of the benchmarks is an S3, by the storage contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

import pytest

from benchmarks.farstore.client import BUCKET, FarStore, accounts, race, s3_options
from timeline.ports.ports import Storage
from timeline.storage.open_storage import storage_for
from timeline.testing.storage_suite import StorageSuite

DELAY_MS = 40


def storage_at(store: FarStore, table: str) -> Storage:
    served = s3_options(store.url)
    options = {
        "fs.s3a.endpoint": served["endpoint"],
        "fs.s3a.endpoint.region": served["region"],
        "fs.s3a.access.key": served["access_key_id"],
        "fs.s3a.secret.key": served["secret_access_key"],
    }
    return storage_for(f"s3://{BUCKET}/{table}", options=options)


@pytest.fixture(scope="module")
def near() -> Iterator[FarStore]:
    with FarStore(0) as running:
        yield running


@pytest.mark.slow
class TestFarStorage(StorageSuite):
    stamp_ms = 1_000
    _store: ClassVar[FarStore]
    _tables: ClassVar[Iterator[int]] = itertools.count()

    @pytest.fixture(autouse=True)
    def _running(self, near: FarStore) -> None:
        type(self)._store = near

    def make_storage(self) -> Storage:
        return storage_at(self._store, f"suite/{next(self._tables)}")


def test_a_folder_of_more_than_a_page_is_listed_whole(near: FarStore) -> None:
    table = storage_at(near, "pages")
    names = [f"{number:04}" for number in range(1_003)]
    for name in names:
        table.write(f"t/{name}/x", b"")
    assert [entry.name for entry in table.list("t")] == names
    table.delete_folder("t")
    assert table.list("") == []


@pytest.mark.parametrize(("size", "gets"), [(1_000, 1), (262_144, 1), (300_000, 2), (5_000_000, 1)])
def test_reading_the_end_of_a_file_costs_one_request(near: FarStore, size: int, gets: int) -> None:
    table = storage_at(near, f"ends/{size}")
    content = bytes(range(250)) * (size // 250 + 1)
    table.create("p/x", content[:size])
    with table.open_input("p/x") as file:
        file.seek(-20, 2)
        assert file.read() == content[size - 20 : size]
        assert accounts(near.url, f"ends/{size}/")["kinds"] == {"PUT": 1, "GET": gets}
        file.seek(0)
        assert file.read() == content[:size]


def test_racing_clients_are_delayed_concurrently_and_one_of_them_wins() -> None:
    with FarStore(DELAY_MS) as store:
        won = race(store.url, racers=8, names=10)
        served = accounts(store.url, "check/")
    assert won == [1] * 10
    assert served["kinds"] == {"PUT": 80}
    assert served["refused"] == 70
    assert served["at_once"] > 1
    assert served["busy_s"] >= 9.5 * DELAY_MS / 1000  # ten races, each behind the one before
