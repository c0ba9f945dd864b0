"""The streamer on a Spark session: the same batches and checkpoints, computed by Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from hoodoo.streamer.run import Streamer
from tests.unit.hoodoo.streamer.streams import options, put, rows_of, stream
from timeline.errors import InvalidInputError

pytestmark = pytest.mark.spark

JAVA_KEY = "streamer.checkpoint.key.v2"
SQL = "hoodie.streamer.transformer.sql"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def double(df: Any) -> Any:
    """A transformer that gets and returns a DataFrame."""
    return df.withColumn("v", df["v"] * 2)


def test_files_go_through_transformers_into_the_table_with_their_checkpoint(
    spark: Any, folder: Path
) -> None:
    kept = len(spark.sparkContext._jsc.getPersistentRDDs())
    put(folder, "a.json", [{"id": 1, "v": 1}, {"id": 2, "v": 2}], at_s=1_000)
    put(folder, "b.json", [{"id": 2, "v": 20}, {"id": 3, "v": -1}], at_s=2_000)
    (folder / "join.sql").write_text(
        "-- first; the good rows\nCACHE TABLE good AS SELECT *, ';' AS t FROM <SRC> WHERE v > 0;\n"
        "SELECT s.id, s.v + u.more AS v FROM good s JOIN ups u ON s.id = u.id WHERE t = ';';\n"
    )
    chosen = options(folder, **{"source.limit": "10"}) | {
        "hoodie.streamer.transformer.class": f"SqlFileBasedTransformer,{__name__}:double",
        f"{SQL}.file": f"file://{folder}/join.sql",
    }
    spark.sql("SELECT id, 100 AS more FROM range(5)").createOrReplaceTempView("ups")
    report = stream(chosen, spark)
    assert (report.batches, report.rows, report.checkpoint) == (2, 3, "2000000")
    assert rows_of(folder / "t") == [(1, 202), (2, 240)]
    with hoodoo.open_table(folder / "t") as table:
        [newest, first] = [one.extra_metadata for one in table.snapshot.commits_newest_first()]
    assert (newest[JAVA_KEY], first[JAVA_KEY]) == ("2000000", "1000000")
    # The streamer of this process continues, and that of Spark after it.
    put(folder, "c.json", [{"id": 4, "v": 4}], at_s=3_000)
    assert stream(options(folder)).rows == 1
    put(folder, "d.json", [{"id": 5, "v": 5}], at_s=4_000)
    assert stream(options(folder), spark).rows == 1
    assert rows_of(folder / "t")[2:] == [(4, 4), (5, 5)]
    assert stream(options(folder), spark).batches == 0
    assert len(spark.sparkContext._jsc.getPersistentRDDs()) == kept


def test_files_of_other_columns_are_a_batch_of_their_own(spark: Any, folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": 1}], at_s=1_000)
    put(folder, "b.json", [{"v": 2, "id": 2}], at_s=2_000)
    put(folder, "c.json", [{"id": 3, "v": 3, "w": "x"}], at_s=3_000)
    with Streamer(options(folder), spark=spark) as streamer:
        [first, _] = [streamer.write_batch()[0] for _ in range(2)]
    assert first is not None
    assert (first.rows, first.checkpoint) == (2, "2000000")
    assert rows_of(folder / "t") == [(1, 1, None), (2, 2, None), (3, 3, "x")]


def test_a_given_schema_decides_the_columns_of_parquet_files(spark: Any, folder: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "v": [1.5, 2.5], "left_out": ["a", "b"]})
    pq.write_table(rows, folder / "in" / "a.parquet")
    fields = [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", "double"]}]
    fields.append({"name": "missing", "type": ["null", "string"]})
    (folder / "s.avsc").write_text(json.dumps({"type": "record", "name": "r", "fields": fields}))
    key = "hoodie.streamer.schemaprovider.source.schema.file"
    more = {key: str(folder / "s.avsc"), "hoodoo.streamer.source.class": "ParquetDFSSource"}
    assert stream(options(folder) | more, spark).rows == 2
    assert rows_of(folder / "t") == [(1, 1.5, None), (2, 2.5, None)]


def test_bad_records_and_rows_without_a_key_go_to_their_table(spark: Any, folder: Path) -> None:
    put(folder, "a.json", [{"id": 1, "v": 1}, "{oh", {"v": 3}], at_s=1_000)
    bad = {"hoodie.errortable.enable": "true", "hoodie.errortable.base.path": str(folder / "bad")}
    assert stream(options(folder) | bad, spark).rows == 1
    assert rows_of(folder / "t") == [(1, 1)]
    with hoodoo.open_table(folder / "bad") as table:
        records = sorted(row["record"] for row in table.to_arrow().to_pylist())
    assert records == ['{"v":3}', "{oh"]


def test_a_hudi_table_and_a_query_of_it_are_sources(spark: Any, folder: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    with hoodoo.create_table(folder / "s", schema=schema, record_key="id") as source:
        source.upsert([{"id": 1, "v": 1}, {"id": 2, "v": 2}])
        more = {
            "hoodoo.streamer.source.class": "HoodieIncrSource",
            "hoodie.streamer.source.hoodieincr.path": str(folder / "s"),
        }
        assert stream(options(folder) | more, spark).rows == 2
        source.upsert([{"id": 2, "v": 20}])
        assert stream(options(folder) | more, spark).rows == 1
        assert rows_of(folder / "t") == [(1, 1), (2, 20)]
    more = {
        "hoodoo.streamer.source.class": "SqlSource",
        "hoodoo.streamer.source.sql.tables": f"s={folder / 's'}",
        "hoodie.streamer.source.sql.sql.query": "SELECT id, v + 1 AS v FROM s LATERAL VIEW "
        "explode(array(1)) one AS n WHERE v > 1",
        "hoodie.streamer.ingestion.targetBasePath": str(folder / "q"),
    }
    assert stream(options(folder) | more, spark).rows == 1


@pytest.mark.parametrize(
    ("more", "line", "text"),
    [
        ({SQL: "SELECT nothing FROM <SRC>"}, {"id": 1}, "the query fails, correct it"),
        ({SQL: "SELEC"}, {"id": 1}, "the query fails, correct it"),
        ({SQL: "SELECT CAST(v AS INT) v, id FROM <SRC>"}, {"id": 1, "v": "x"}, "Spark cannot compute"),
        ({"hoodie.streamer.transformer.class": "builtins:len"}, {"id": 1}, "the transformer failed"),
        ({}, "{oh", "not one JSON object|cannot be read"),
        ({}, {"v": 1}, "id"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_an_error_and_leaves_no_table(
    spark: Any, folder: Path, driver_writes: None, more: dict[str, str], line: object, text: str
) -> None:
    if "CAST" in str(more) and spark.version < "4":
        pytest.skip("casts are lenient before Spark 4")
    put(folder, "a.json", [line], at_s=1_000)
    with pytest.raises(InvalidInputError, match=text):
        stream(options(folder) | more, spark)
    assert not (folder / "t").exists()
