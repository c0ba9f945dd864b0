"""A whole small table on S3, with Java's lock file in it, by two processes at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.servers.s3 import BUCKET, S3Server, s3_properties
from timeline.errors import TableNotFoundError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 5
BURSTS = 6
LOCK = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"

# The program of a writer: add one to its own rows and to the shared ones, round by round.
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


# The same by a program that repeats a write if the error's own reaction allows it.
PATIENT_WRITER = """
import sys
import time
import pyarrow as pa
import hoodoo
from tests.integration.locks.test_storage_based_table import SHORT_LEASE, options
from timeline.errors import HoodooError, Reaction
AGAIN = (Reaction.REDO, Reaction.REOPEN, Reaction.WAIT, Reaction.STOP, Reaction.ASK)  # it asks by its batch id
url, address, number, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
with hoodoo.open_table(address, properties={**options(url), **SHORT_LEASE}) as table:
    end, written, repeated = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        keys = [*range(number * 1_000, number * 1_000 + 50), 10_000 + written * 2 + number]
        rows = pa.table({
            "id": keys, "part": ["own"] * 50 + ["shared"], "seen": [written + 1] * 51,
        })
        while True:
            try:
                table.upsert(rows, batch_id=f"{number}-{written}")
                break
            except HoodooError as error:
                print(f"{error.kind}: {error.message}", file=sys.stderr)
                if error.reaction not in AGAIN:
                    raise
                repeated += 1
                time.sleep(0.2)
        written += 1
print(written, repeated)
"""
SHORT_LEASE = {
    "hoodie.write.lock.storage.validity.timeout.secs": "10",
    "hoodie.write.lock.storage.renew.interval.secs": "1",
}


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


def test_two_processes_write_one_table_on_s3_at_once(server: S3Server) -> None:
    properties = options(server.url)
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("seen", pa.int64())])
    with hoodoo.create_table(
        f"s3a://{BUCKET}/tables/t",
        schema=schema,
        record_key="id",
        partition_by="part",
        properties=properties,
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
    assert [writer.wait(250) for writer in writers] == [0, 0]

    with hoodoo.open_table(f"s3://{BUCKET}/tables/t", properties=properties) as table:
        rows = table.to_arrow()
        assert rows.num_rows == 202
        assert pc.unique(rows["seen"]).to_pylist() == [ROUNDS], "an update was lost"
        assert len(table.timeline) == 1 + 2 * ROUNDS
        cleaned = table.services.clean()
        assert cleaned is not None
        assert table.to_arrow().equals(rows)
    found = verify_at(f"s3://{BUCKET}/tables/t", Layers(code=properties))
    assert found.problems == ()
    assert "tables/t/.hoodie/.locks/table_lock.json" in server.keys("tables/t/")
    assert not [key for key in server.keys("tables/t/") if key.endswith(".crc")]


@pytest.mark.slow
def test_no_row_is_lost_while_the_store_throttles_two_writers(server: S3Server) -> None:
    properties = options(server.url)
    address = f"s3://{BUCKET}/tables/throttled"
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("seen", pa.int64())])
    with hoodoo.create_table(
        address, schema=schema, record_key="id", partition_by="part", properties=properties
    ) as table:
        own = [*range(50), *range(1_000, 1_050)]
        table.insert(pa.table({"id": own, "part": ["own"] * 100, "seen": [0] * 100}))
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", PATIENT_WRITER, server.url, address, str(number), "14"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        instants = len(table.timeline)
        end = time.monotonic() + 60
        while len(table.timeline) < instants + 2 and time.monotonic() < end:
            time.sleep(0.1)
        for _ in range(BURSTS):  # so that every step of a write is hit once
            with server.throttling():
                time.sleep(0.3)
            time.sleep(0.5)
        with server.throttling():
            time.sleep(5)
        outputs = [writer.communicate(timeout=250)[0].split() for writer in writers]
        assert [writer.returncode for writer in writers] == [0, 0]
        written = [int(words[0]) for words in outputs]
        assert min(written) > 1
        assert server.throttled > 0
        rows = table.to_arrow()
    assert found_rows(rows) == expected_rows(written)
    assert verify_at(address, Layers(code=properties)).problems == ()


def found_rows(rows: pa.Table) -> dict[int, int]:
    found = dict(zip(rows["id"].to_pylist(), rows["seen"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows, "a row is there twice"
    return found


def expected_rows(written: list[int]) -> dict[int, int]:
    """The own rows by their last update, and one more by every upsert."""
    expected = {}
    for number, upserts in enumerate(written):
        expected.update(dict.fromkeys(range(number * 1_000, number * 1_000 + 50), upserts))
        expected.update({10_000 + upsert * 2 + number: upsert + 1 for upsert in range(upserts)})
    return expected


def test_a_missing_path_is_no_table(server: S3Server) -> None:
    with pytest.raises(TableNotFoundError):
        hoodoo.open_table(f"s3://{BUCKET}/nowhere", properties=options(server.url))
