"""A whole small table on S3, with Java's lock file beside it, by two processes at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from hoodoo.assembly import Layers
from hoodoo.verify import verify_at
from tests.servers.s3 import BUCKET, S3Server, s3_properties
from timeline.errors import TableNotFoundError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 5
LOCK = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"

# What a writer process runs: add one to its own rows and to the shared ones, round by round.
WRITER = """
import sys
import pyarrow as pa
import hoodoo
from tests.integration.locks.test_storage_based_table import options
url, address, number, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with hoodoo.open_table(address, properties=options(url)) as table:
    for round_number in range(1, rounds + 1):
        keys = [*range(number * 100, number * 100 + 100), 1_000 + number]
        table.upsert(pa.table({
            "id": keys, "part": ["own"] * 100 + ["shared"], "seen": [round_number] * 101,
        }))
"""


def options(url: str) -> dict[str, str]:
    return {
        **s3_properties(url),
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.clean.failed.writes.policy": "LAZY",
        "hoodie.write.lock.provider": LOCK,
        "hoodie.write.num.retries.on.conflict.failures": "20",
        "hoodie.clean.automatic": "false",
        "hoodie.clean.commits.retained": "2",
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def test_a_table_lives_on_s3_and_two_processes_write_it_at_once(server: S3Server) -> None:
    told = options(server.url)
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("seen", pa.int64())])
    with hoodoo.create_table(
        f"s3a://{BUCKET}/tables/t",
        schema=schema,
        record_key="id",
        partition_by="part",
        properties=told,
    ) as table:
        own = pa.table({"id": range(200), "part": ["own"] * 200, "seen": [0] * 200})
        shared = pa.table({"id": [1_000, 1_001], "part": ["shared"] * 2, "seen": [0, 0]})
        table.insert(pa.concat_tables([own, shared]))
        assert table.to_arrow().num_rows == 202

    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, server.url, address, str(number), str(ROUNDS)], cwd=ROOT
        )
        for number, address in enumerate((f"s3://{BUCKET}/tables/t", f"s3a://{BUCKET}/tables/t/"))
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0]

    with hoodoo.open_table(f"s3://{BUCKET}/tables/t", properties=told) as table:
        rows = table.to_arrow()
        assert rows.num_rows == 202
        assert pc.unique(rows["seen"]).to_pylist() == [ROUNDS], "an update was lost"
        assert len(table.timeline) == 1 + 2 * ROUNDS
        cleaned = table.services.clean()
        assert cleaned is not None
        assert table.to_arrow().equals(rows)
    found = verify_at(f"s3://{BUCKET}/tables/t", Layers(code=told))
    assert found.problems == ()
    assert "tables/t/.hoodie/.locks/table_lock.json" in server.keys("tables/t/")
    assert not [key for key in server.keys("tables/t/") if key.endswith(".crc")]


def test_what_is_not_there_is_no_table(server: S3Server) -> None:
    with pytest.raises(TableNotFoundError):
        hoodoo.open_table(f"s3://{BUCKET}/nowhere", properties=options(server.url))
