"""The object-store adapter keeps the storage contract on a real S3 server."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.servers.s3 import BUCKET, S3Server, s3_properties
from timeline.ports.ports import ObjectExistsError, Storage
from timeline.storage.object_store import ObjectInput
from timeline.storage.open_storage import storage_for
from timeline.testing.storage_suite import StorageSuite

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 4
RACES = 50

# The program of a racing process: create each name once, print how many it won.
RACER = """
import sys
from tests.servers.s3 import s3_properties
from timeline.ports.ports import ObjectExistsError
from timeline.storage.open_storage import storage_for
storage = storage_for(sys.argv[2], options=s3_properties(sys.argv[1]))
storage.create(f"ready/{sys.argv[3]}", b"")
while storage.stat("go") is None:
    pass
won = []
for race in range(int(sys.argv[4])):
    try:
        storage.create(f"race/{race:03}", sys.argv[3].encode())
    except ObjectExistsError:
        continue
    won.append(race)
print(*won)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


class TestS3Storage(StorageSuite):
    stamp_ms = 1_000
    _server: ClassVar[S3Server]
    _tables: ClassVar[Iterator[int]] = itertools.count()

    @pytest.fixture(autouse=True)
    def _running(self, server: S3Server) -> None:
        type(self)._server = server

    def make_storage(self) -> Storage:
        address = f"s3a://{BUCKET}/suite/{next(self._tables)}"
        return storage_for(address, options=self._server.properties())


@pytest.fixture
def table(server: S3Server, request: pytest.FixtureRequest) -> Storage:
    return storage_for(f"s3://{BUCKET}/{request.node.name}", options=server.properties())


def test_racing_processes_have_one_winner_a_name(server: S3Server, table: Storage) -> None:
    command = [sys.executable, "-c", RACER, server.url, table.base_uri]
    racers = [
        subprocess.Popen(
            [*command, str(number), str(RACES)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for number in range(PROCESSES)
    ]
    while len(table.names("ready")) < PROCESSES:
        assert all(racer.poll() is None for racer in racers)
    table.create("go", b"")
    won = [racer.communicate(timeout=200)[0].split() for racer in racers]
    assert sorted(int(race) for mine in won for race in mine) == list(range(RACES))
    for number, mine in enumerate(won):
        for race in mine[:5]:
            assert table.read(f"race/{int(race):03}") == str(number).encode()


def test_keys_are_the_paths_as_they_are(server: S3Server, table: Storage) -> None:
    path = "a b=c%2Fd/k=a:b+c@d/城市=東京/x#?"
    table.create(path, b"1")
    prefix = table.base_uri.removeprefix(f"s3://{BUCKET}/")
    assert server.keys(prefix) == [f"{prefix}/{path}"]


def test_a_table_may_be_a_whole_bucket(server: S3Server) -> None:
    server.client().create_bucket(Bucket="whole")
    table = storage_for("s3://whole/", options=server.properties())
    assert table.stat("") is None
    table.create("p/x", b"1")
    assert [entry.name for entry in table.list("")] == ["p"]
    assert table.locate("p/x") == "s3://whole/p/x"
    assert table.stat("") is not None


def test_marker_objects_of_other_tools_are_no_files(server: S3Server, table: Storage) -> None:
    prefix = table.base_uri.removeprefix(f"s3://{BUCKET}/")
    for marker in ("", "p/", "p/q/"):
        server.client().put_object(Bucket=BUCKET, Key=f"{prefix}/{marker}", Body=b"")
    table.create("p/x", b"")
    assert [(entry.name, entry.is_folder) for entry in table.list("p")] == [
        ("q", True),
        ("x", False),
    ]
    assert table.names("p") == ["x"]
    assert [entry.name for entry in table.list("")] == ["p"]


def test_a_folder_of_more_than_a_page_is_listed_whole(table: Storage) -> None:
    names = [f"{number:04}" for number in range(1_003)]
    for name in names:
        table.write(f"t/{name}", b"")
    assert table.names("t") == names
    table.delete_folder("t")
    assert table.list("") == []


def test_a_large_data_file_is_sent_in_parts_and_read_in_ranges(
    table: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timeline.storage import object_store

    monkeypatch.setattr(object_store, "_CONDITIONAL_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(object_store, "_PART_BYTES", 5 << 20)
    content = bytes(range(256)) * (12 << 12)  # 12 MiB
    with table.open_output("p/large") as file:
        file.write(content)
        assert table.stat("p/large") is None
    found = table.stat("p/large")
    assert found is not None
    assert found.size_bytes == len(content)
    assert '-3"' in found.version  # S3's tag of three parts
    with pytest.raises(ObjectExistsError), table.open_output("p/large") as again:
        again.write(content)
    with table.open_input("p/large") as read:
        assert isinstance(read, ObjectInput)
        read.seek(-8, 2)
        assert read.read() == content[-8:]
        read.seek(5_000_000)
        assert read.read(300) == content[5_000_000:5_000_300]


def test_a_data_file_whose_name_was_taken_meanwhile_is_discarded(
    server: S3Server, table: Storage
) -> None:
    other = storage_for(table.base_uri, options=s3_properties(server.url))
    file = table.open_output("p/x")
    file.write(b"mine")
    other.create("p/x", b"theirs")
    with pytest.raises(ObjectExistsError):
        file.close()
    assert table.read("p/x") == b"theirs"
