"""The metadata table of a table on S3: built beside rows, sorted on the local disk, read and used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from tableservices.metadata_table.sorting import SortedRecords
from tests.servers.s3 import BUCKET, S3Server

pytestmark = pytest.mark.integration

ADDRESS = f"s3a://{BUCKET}/tables/t"
PARTITIONS = ("bloom_filters", "column_stats", "partition_stats", "record_index")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def test_a_build_sorts_its_records_on_the_local_disk(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = server.properties()
    rows = pa.table(
        {
            "id": [f"k{number:04d}" for number in range(3_000)],
            "p": [f"p{number % 10}" for number in range(3_000)],
            "v": list(range(3_000)),
        }
    )
    with hoodoo.create_table(
        ADDRESS, record_key="id", partition_by="p", properties=properties
    ) as table:
        table.upsert(rows)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        few = partial(SortedRecords, rows_max=500)
        monkeypatch.setattr("tableservices.metadata_table.build.SortedRecords", few)
        built = table.metadata.create(*PARTITIONS)
        assert built is not None
        assert built.records["record_index"] == 3_000
        assert not list(tmp_path.iterdir())
        rebuilt = table.metadata.rebuild("record_index")
        assert rebuilt is not None
        assert rebuilt.records == {"record_index": 3_000}
    by_bloom = {**properties, "hoodie.index.type": "GLOBAL_BLOOM"}
    with hoodoo.open_table(ADDRESS, properties=by_bloom) as table:
        table.upsert([{"id": "k0007", "p": "p7", "v": -1}, {"id": "new", "p": "p7", "v": 3_000}])
        assert table.metadata.verify() == ()
        assert table.to_arrow(filter="v = -1").column("id").to_pylist() == ["k0007"]
        (one,) = table.plan(filter="v = 3000").slices
        assert one.file_group.partition_path == "p7"
        assert table.count() == 3_001
