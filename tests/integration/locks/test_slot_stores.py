"""A whole table whose commit slots are decided elsewhere, on a store without an atomic create."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.servers.dynamodb import DynaliteServer, MotoServer, lock_properties
from tests.servers.mariadb import MariaDb, needs_mariadb
from tests.servers.postgres import Postgres, memory_folder, needs_postgres
from timeline.errors import UnsafeSetupError
from timeline.model.file_names import BOUNDARIES, SLOTS
from timeline.storage.local import LocalStorage

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 12
WRITERS = 2
KEYS = 50

# Own keys and, in every second round, a key in the file group that the other one writes, too.
WRITER = """
import sys
import pyarrow as pa
import hoodoo
from tests.integration.locks.test_slot_stores import KEYS, ROUNDS, options, rows_of, without_create
url, address, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
without_create()
with hoodoo.open_table(address, properties=options(url)) as table:
    sys.stdin.readline()
    for step in range(1, ROUNDS + 1):
        table.upsert(rows_of(number, step), batch_id=f"{number}-{step}")
        if number == 0 and step % 4 == 0:
            table.services.clean()
            table.services.archive()
"""


def without_create() -> None:
    """The local disk as a store that cannot create atomically, and must not be asked to."""

    def refuse(self: LocalStorage, path: str, data: bytes, *, durable: bool = True) -> NoReturn:
        raise AssertionError(f"the store was asked to decide about {path}")

    LocalStorage.create = refuse


@contextmanager
def created_without() -> Iterator[None]:
    """The same for the test's own process, and back again."""
    real = LocalStorage.create
    without_create()
    try:
        yield
    finally:
        LocalStorage.create = real


def rows_of(writer: int, step: int) -> pa.Table:
    keys = [*range(writer * 1_000, writer * 1_000 + KEYS), 10_000 + 2 * step + writer]
    return pa.table(
        {
            "id": keys,
            "part": [f"own{writer}"] * KEYS + ["shared"],
            "seen": pa.array([step] * len(keys), pa.int64()),
        }
    )


def expected() -> dict[int, int]:
    found = {}
    for writer in range(WRITERS):
        found |= dict.fromkeys(range(writer * 1_000, writer * 1_000 + KEYS), ROUNDS)
        found |= {10_000 + 2 * step + writer: step for step in range(1, ROUNDS + 1)}
    return found


def options(url: str) -> dict[str, str]:
    """As many writers would have it, and no lock around publications: slots alone decide."""
    with_store = {
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.clean.failed.writes.policy": "LAZY",
        "hoodoo.publish.lock": "none",
        "hoodie.write.num.retries.on.conflict.failures": "30",
        "hoodie.client.heartbeat.interval_in_ms": "10000",
        "hoodie.clean.automatic": "false",
        "hoodie.archive.automatic": "false",
        "hoodie.clean.commits.retained": "2",
        "hoodie.keep.min.commits": "4",
        "hoodie.keep.max.commits": "6",
    }
    if url.startswith("http"):
        return {
            **with_store,
            **lock_properties(url, "t", lease_ms=20_000),
            "hoodoo.lock.dynamodb.create.table": "true",
            "hoodoo.slots.backend": "dynamodb",
        }
    return {
        **with_store,
        "hoodie.write.lock.provider": "sql",
        "hoodoo.lock.sql.url": url,
        "hoodoo.lock.sql.create_table": "true",
        "hoodoo.slots.backend": "sql",
    }


def write_at_once(url: str, address: str) -> None:
    """Two processes upsert, clean and archive one table; nothing may be lost."""
    with_store = options(url)
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("seen", pa.int64())])
    with created_without():
        hoodoo.create_table(
            address, schema=schema, record_key="id", partition_by="part", properties=with_store
        ).close()
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, url, address, str(number)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                text=True,
            )
            for number in range(WRITERS)
        ]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            writer.communicate(timeout=250)
        assert [writer.returncode for writer in writers] == [0, 0]
        with hoodoo.open_table(address, properties=with_store) as table:
            table.services.clean()
            table.services.archive()
            rows = table.to_arrow()
            storage = table.context.ports.storage
            slots, truncation_point = storage.names(SLOTS), storage.names(BOUNDARIES)
        assert verify_at(address, Layers(code=with_store)).problems == ()
    found = dict(zip(rows["id"].to_pylist(), rows["seen"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows, "a row is there twice"
    assert found == expected()
    assert truncation_point, "nothing was archived"
    assert int(slots[0]) == int(truncation_point[-1]) + 1, (
        "slots were not collected up to the boundary"
    )
    assert not (Path(address) / SLOTS).exists(), "a slot was decided by the store"


def test_two_processes_share_a_table_by_sqlite(tmp_path: Path) -> None:
    write_at_once(str(tmp_path / "slots.db"), str(tmp_path / "table"))


def test_a_writer_without_the_tables_slot_store_is_refused(tmp_path: Path) -> None:
    """It may read; and no other writer may work without the slot store."""
    with_store = options(str(tmp_path / "slots.db"))
    address = str(tmp_path / "table")
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("seen", pa.int64())])
    with hoodoo.create_table(
        address, schema=schema, record_key="id", partition_by="part", properties=with_store
    ) as table:
        table.upsert(rows_of(0, 1))
    plain = {key: value for key, value in with_store.items() if not key.startswith("hoodoo.slots.")}
    elsewhere = {**with_store, "hoodoo.slots.table": "others"}
    for properties in (plain, elsewhere):
        with hoodoo.open_table(address, properties=properties) as table:
            assert table.to_arrow().num_rows == KEYS + 1
            with pytest.raises(UnsafeSetupError, match=r"Set hoodoo\.slots\.\*") as refused:
                table.upsert(rows_of(1, 1))
            assert refused.value.kind == "slots_elsewhere"
            with pytest.raises(UnsafeSetupError):
                table.services.clean()


def test_a_copy_of_a_table_does_not_take_its_slots(tmp_path: Path) -> None:
    """It has the identity of the first; two tables in one chain would finish each other's work."""
    with_store = options(str(tmp_path / "slots.db"))
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("seen", pa.int64())])
    with hoodoo.create_table(
        str(tmp_path / "a"),
        schema=schema,
        record_key="id",
        partition_by="part",
        properties=with_store,
    ) as table:
        table.upsert(rows_of(0, 1))
    (tmp_path / "a").rename(tmp_path / "b")
    with (
        hoodoo.open_table(str(tmp_path / "b"), properties=with_store) as table,
        pytest.raises(UnsafeSetupError, match="another store"),
    ):
        table.upsert(rows_of(0, 2))
    moved = {**with_store, "hoodoo.slots.key": f"file:{tmp_path / 'a'}"}
    with hoodoo.open_table(str(tmp_path / "b"), properties=moved) as table:
        table.upsert(rows_of(0, 2))
    # Without ours it has no identity any more, and begins a commit log of its own.
    shutil.rmtree(tmp_path / "b" / ".hoodie" / ".hoodoo")
    with hoodoo.open_table(str(tmp_path / "b"), properties=with_store) as table:
        table.upsert(rows_of(0, 3))
        assert table.to_arrow().num_rows == KEYS + 3
    assert verify_at(str(tmp_path / "b"), Layers(code=with_store)).problems == ()


@pytest.mark.slow
def test_two_processes_share_a_table_by_mariadb(tmp_path: Path) -> None:
    needs_mariadb()
    with (
        tempfile.TemporaryDirectory(prefix="mdb", dir=memory_folder()) as folder,
        MariaDb(Path(folder)) as server,
    ):
        server.create_database("locks", user="lock", password="geheim")
        url = f"mysql://lock:geheim@{server.host}:{server.port}/locks"
        write_at_once(url, str(tmp_path / "table"))


def test_two_processes_share_a_table_by_postgres(tmp_path: Path) -> None:
    needs_postgres()
    with Postgres() as server:
        write_at_once(server.url, str(tmp_path / "table"))


@pytest.mark.slow
def test_two_processes_share_a_table_by_dynamodb(tmp_path: Path) -> None:
    with MotoServer(tmp_path / "moto") as server:
        write_at_once(server.url, str(tmp_path / "table"))


@pytest.mark.slow
def test_two_processes_share_a_table_by_another_dynamodb(tmp_path: Path) -> None:
    with DynaliteServer(tmp_path / "dynalite") as server:
        write_at_once(server.url, str(tmp_path / "table"))
