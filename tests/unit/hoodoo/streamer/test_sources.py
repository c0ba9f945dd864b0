"""Sources but files and Kafka, transformers, schemas and bad records of a streamer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.streamer.bad_records import parse_json, read_good
from hoodoo.streamer.queries import flatten
from hoodoo.streamer.run import Streamer
from tests.unit.hoodoo.streamer.streams import rows_of, stream
from timeline.errors import HoodooError, InvalidInputError, SettingError

KEY = {"hoodie.datasource.write.recordkey.field": "id"}


def target(folder: Path, name: str, **more: str) -> dict[str, str]:
    """Return the options of a streamer into ``folder/t``."""
    return {
        **KEY,
        "hoodie.streamer.ingestion.targetBasePath": str(folder / "t"),
        "hoodoo.streamer.source.class": name,
        **{f"hoodie.streamer.{key.replace('__', '.')}": value for key, value in more.items()},
    }


def files(folder: Path, lines: str, **more: str) -> dict[str, str]:
    """Return the options of a streamer of one JSON file."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "rows.json").write_text(lines)
    return target(folder, "JsonDFSSource", **more) | {
        "hoodie.streamer.source.dfs.root": str(folder / "in")
    }


# ---- Another Hudi table


def hudi(folder: Path, **more: str) -> dict[str, str]:
    return target(folder, "HoodieIncrSource", source__hoodieincr__path=str(folder / "s"), **more)


def test_a_hudi_table_is_followed_by_completion_times(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "s", record_key="id") as source:
        source.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
        source.upsert([{"id": 2, "v": "B"}])
        assert stream(hudi(tmp_path)).batches == 1
        newest = source.timeline[-1].completion_time
        for number in range(3, 9):
            source.upsert([{"id": number, "v": "x"}, {"id": 1, "v": f"a{number}"}])
        report = stream(hudi(tmp_path, source__hoodieincr__num_instants="4"))
        assert (report.batches, report.rows) == (2, 5 + 3)
        assert report.checkpoint == source.timeline[-1].completion_time > newest
        assert rows_of(tmp_path / "t") == rows_of(tmp_path / "s")
        assert stream(hudi(tmp_path)).batches == 0


@pytest.mark.parametrize(
    "option",
    [
        "streamer.source.hoodieincr.missing.checkpoint.strategy=READ_LATEST",
        "deltastreamer.source.hoodieincr.read_latest_on_missing_ckpt=true",
    ],
)
def test_a_hudi_table_may_be_followed_from_its_newest_instant(tmp_path: Path, option: str) -> None:
    key, _, value = option.partition("=")
    with hoodoo.create_table(tmp_path / "s", record_key="id") as source:
        source.upsert([{"id": 1, "v": "a"}])
        source.upsert([{"id": 2, "v": "b"}])
        stream(hudi(tmp_path) | {f"hoodie.{key}": value})
        source.upsert([{"id": 3, "v": "c"}])
        stream(hudi(tmp_path) | {f"hoodie.{key}": value})
    assert rows_of(tmp_path / "t") == [(2, "b"), (3, "c")]


def test_a_service_of_a_hudi_table_is_no_news(tmp_path: Path) -> None:
    options = {"hoodie.compact.inline.max.delta.commits": "1"}
    with hoodoo.create_table(
        tmp_path / "s", record_key="id", table_type="MERGE_ON_READ", properties=options
    ) as source:
        source.upsert([{"id": 1, "v": "a"}])
        source.upsert([{"id": 1, "v": "b"}])
        stream(hudi(tmp_path))
        assert source.services.compact()
        assert stream(hudi(tmp_path)).batches == 0
        source.upsert([{"id": 1, "v": "c"}])
        assert stream(hudi(tmp_path)).rows == 1
    assert rows_of(tmp_path / "t") == [(1, "c")]


def test_a_checkpoint_of_another_hudi_table_is_refused(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "s", record_key="id") as source:
        source.upsert([{"id": 1, "v": "a"}])
        for text in ("20991231235959999", "resumeFromInstantRequestTime: 20200101000000000", "7"):
            with pytest.raises(InvalidInputError) as caught:
                stream(hudi(tmp_path) | {"hoodoo.streamer.checkpoint": text})
            assert caught.value.kind == "streamer_checkpoint"
        done = source.timeline[-1].completion_time
        wish = {"hoodoo.streamer.checkpoint": f"resumeFromInstantCompletionTime:{done}"}
        assert stream(hudi(tmp_path) | wish).batches == 0
    assert not (tmp_path / "t").exists()
    with pytest.raises(InvalidInputError, match="the path has no Hudi table"):
        Streamer(target(tmp_path, "HoodieIncrSource", source__hoodieincr__path="no"))


# ---- SQL


def test_a_query_reads_hudi_tables_by_name(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "s", record_key="id") as source:
        source.upsert([{"id": 1, "n": 4}, {"id": 2, "n": 6}])
    query = "SELECT 1 AS id, sum(n) AS total FROM s"
    options = target(tmp_path, "SqlSource", source__sql__sql__query=query)
    options["hoodoo.streamer.source.sql.tables"] = f"s={tmp_path / 's'}"
    assert stream(options).rows == 1
    assert rows_of(tmp_path / "t") == [(1, 10)]
    (tmp_path / "q.sql").write_text("SELECT 2 AS id, 7 AS total")
    stream(target(tmp_path, "SqlFileBasedSource", source__sql__file=str(tmp_path / "q.sql")))
    assert rows_of(tmp_path / "t") == [(1, 10), (2, 7)]
    wrong = target(tmp_path, "SqlSource", source__sql__sql__query="SELECT x")
    with pytest.raises(InvalidInputError, match=r"executor spark.*sql\.query: Binder Error"):
        stream(wrong)
    with pytest.raises(SettingError, match="run it once"):
        Streamer(options | {"hoodoo.streamer.continuous": "true"})


# ---- Transformers


def shout(rows: pa.Table) -> list[dict[str, Any]]:
    return [{**row, "v": row["v"].upper()} for row in rows.to_pylist()]


def fail(rows: pa.Table) -> pa.Table:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("transformers", "expected"),
    [
        ("", [(1, "a"), (2, "b")]),
        ("SqlQueryBasedTransformer", [(1, "a")]),
        (f"{__name__}:shout,x:org.apache.hudi.utilities.transform.SqlQueryBasedTransformer",
         [(2, "B")]),
    ],
)  # fmt: skip
def test_transformers_run_in_their_order(
    tmp_path: Path, transformers: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__(__name__, fromlist=["x"]))
    lines = '{"id": 1, "v": "a"}\n{"id": 2, "v": "b"}\n'
    options = files(tmp_path, lines, transformer__class=transformers)
    if transformers:
        options["hoodie.streamer.transformer.sql"] = "SELECT * FROM <SRC> WHERE v = 'a'"
        options["hoodie.streamer.transformer.sql.x"] = "SELECT * FROM <SRC> WHERE v = 'B'"
    stream(options)
    assert rows_of(tmp_path / "t") == expected


def test_a_full_load_and_changes_of_aws_dms_are_merged(tmp_path: Path) -> None:
    options = files(tmp_path, '{"id": 1, "v": "a"}\n{"id": 2, "v": "b"}\n')
    options |= {
        "hoodie.streamer.transformer.class": "org.apache.hudi.utilities.transform.AWSDmsTransformer",
        "hoodie.datasource.write.payload.class": "org.apache.hudi.payload.AWSDmsAvroPayload",
    }
    stream(options)
    assert rows_of(tmp_path / "t") == [(1, "a", ""), (2, "b", "")]
    text = '{"id": 1, "v": "c", "Op": "U"}\n{"id": 2, "v": "b", "Op": "D"}\n'
    (tmp_path / "in" / "later.json").write_text(text)
    stream(options)
    assert rows_of(tmp_path / "t") == [(1, "c", "U")]
    stored = (tmp_path / "t" / ".hoodie" / "hoodie.properties").read_text()
    assert "org.apache.hudi.common.model.AWSDmsAvroPayload" in stored


def test_a_filter_that_leaves_nothing_still_moves_the_checkpoint(tmp_path: Path) -> None:
    options = files(tmp_path, '{"id": 1}\n', transformer__sql="SELECT * FROM <SRC> WHERE id > 1")
    assert stream(options).rows == 0
    assert stream(options).batches == 0
    assert rows_of(tmp_path / "t") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_such_module:f", "the function cannot be imported"),
        ("hoodoo.errors:nothing", "the function cannot be imported"),
        ("AwsDmsTransformer", "this is no transformer"),
        ("SqlQueryBasedTransformer", "to a query with <SRC>"),
    ],
)
def test_a_wrong_transformer_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        Streamer(files(tmp_path, "", transformer__class=name))
    assert text in caught.value.message


def test_a_failing_transformer_writes_nothing(tmp_path: Path) -> None:
    options = files(tmp_path, '{"id": 1}\n', transformer__class="os:fspath")
    with pytest.raises(InvalidInputError, match=r"the transformer failed.*os:fspath: TypeError"):
        stream(options)
    assert not (tmp_path / "t").exists()


def test_flatten_joins_the_names_of_structs() -> None:
    rows = pa.table({"a": [{"b": 1, "c": {"d": 2}}, None], "e": [3, 4]})
    assert flatten(rows).to_pylist() == [
        {"a_b": 1, "a_c_d": 2, "e": 3},
        {"a_b": None, "a_c_d": None, "e": 4},
    ]


# ---- Schemas

AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "w", "type": ["null", "string"]},
    ],
}


@pytest.fixture
def registry() -> Iterator[str]:
    """Serve the schema as a Confluent registry does, with a login."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == "Basic dTpw"  # u:p
            found = self.path in ("/subjects/s/versions/latest", "/schemas/ids/7")
            self.send_response(200 if allowed and found else 404 if allowed else 401)
            self.end_headers()
            if allowed and found:
                self.wfile.write(json.dumps({"id": 7, "schema": json.dumps(AVRO)}).encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("origin", ["file", "registry"])
def test_a_given_schema_decides_the_columns(tmp_path: Path, origin: str, registry: str) -> None:
    lines = '{"id": 1, "at": "2026-01-02T03:04:05Z", "more": 1}\n{"id": 2}\n'
    options = files(tmp_path, lines)
    if origin == "file":
        (tmp_path / "s.avsc").write_text(json.dumps(AVRO))
        key = "hoodie.streamer.schemaprovider.source.schema.file"
        options[key] = f"file://{tmp_path}/s.avsc"
    else:
        key = "hoodie.streamer.schemaprovider.registry.url"
        options[key] = f"http://u:p@{registry}/subjects/s/versions/latest"
    stream(options)
    with hoodoo.open_table(tmp_path / "t") as table:
        rows = table.to_arrow()
    assert rows.column_names == ["id", "at", "w"]
    assert rows.schema.field("id").type == pa.int32()
    assert pa.types.is_timestamp(rows.schema.field("at").type)
    assert rows.column("w").null_count == 2


def test_texts_like_times_of_json_without_a_schema_stay_texts(tmp_path: Path) -> None:
    options = files(tmp_path, '{"id": 1, "at": "2026-01-02 03:04:05"}\n')
    stream(options)
    (tmp_path / "in" / "b.json").write_text('{"id": 2, "at": "unknown"}\n')
    stream(options)
    with hoodoo.open_table(tmp_path / "t") as table:
        rows = table.to_arrow().sort_by("id")
    assert rows.column("at").to_pylist() == ["2026-01-02 03:04:05", "unknown"]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://u:wrong@{}/subjects/s/versions/latest", "the registry answers 401"),
        ("http://u:p@{}/subjects/no/versions/latest", "the registry answers 404"),
        ("http://u:secret@127.0.0.1:1/x", "does not answer"),
        ("ftp://u:secret@x/y", "begins with http"),
    ],
)
def test_a_registry_without_the_schema_is_an_error(
    tmp_path: Path, address: str, text: str, registry: str
) -> None:
    options = files(tmp_path, "")
    options["hoodie.streamer.schemaprovider.registry.url"] = address.format(registry)
    with pytest.raises(HoodooError, match=text) as caught:
        Streamer(options)
    assert "secret" not in str(caught.value)


# ---- Bad records


def test_bad_records_go_to_their_table_once(tmp_path: Path) -> None:
    lines = [json.dumps({"id": number, "n": number}) for number in range(100)]
    lines[3], lines[50], lines[99] = "nonsense", '{"id": 50, "n": "x"}', '{"n": 5}'
    options = files(tmp_path, "\n".join(lines)) | {
        "hoodie.errortable.enable": "true",
        "hoodie.errortable.base.path": str(tmp_path / "bad"),
    }
    assert stream(options).rows == 97
    assert len(rows_of(tmp_path / "t")) == 97
    bad = rows_of(tmp_path / "bad")
    where = f"file:{tmp_path}/in"
    assert [row[0] for row in bad] == [
        f"{where} after None, row 97",
        f"{where}/rows.json line 4",
        f"{where}/rows.json line 51",
    ]
    assert bad[1][1] == "nonsense"
    assert "record key is null" in bad[0][2]
    assert stream(options | {"hoodoo.streamer.ignore.checkpoint": "again"}).rows == 97
    assert len(rows_of(tmp_path / "bad")) == 3


def test_bad_records_are_an_error_by_default_and_skipped_on_request(tmp_path: Path) -> None:
    options = files(tmp_path, '{"id": 1}\nnonsense\n')
    with pytest.raises(InvalidInputError, match="cannot be read"):
        stream(options)
    assert not (tmp_path / "t").exists()
    with pytest.warns(UserWarning, match=r"1 record skipped by .*rows\.json line 2"):
        stream(options | {"hoodie.streamer.source.json.skip.invalid.records": "true"})
    assert rows_of(tmp_path / "t") == [(1,)]
    with pytest.raises(SettingError, match=r"set hoodie\.errortable\.base\.path to a path"):
        Streamer(options | {"hoodie.errortable.enable": "true"})


def test_good_records_are_read_with_few_attempts() -> None:
    attempts = []

    def parse(records: Any, schema: pa.Schema | None) -> pa.Table:
        attempts.append(len(records))
        return parse_json("x")(records, schema)

    records = [b'{"id": %d}' % number for number in range(1000)]
    records[700] = b'{"id": 1} {"id": 2}'
    rows, bad = read_good(records, None, parse)
    assert rows.column("id").to_pylist() == [n for n in range(1000) if n != 700]
    assert list(bad) == [700]
    assert len(attempts) <= 2 * 10 + 1
