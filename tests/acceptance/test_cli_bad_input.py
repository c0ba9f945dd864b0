"""Bad input: a clear error with its kind and exit code, and nothing changed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import hoodoo
from tests.acceptance.cli import Answer, contents, run, table_with_rows
from tests.interop import golden_tables


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return table_with_rows(tmp_path)


def refused(answer: Answer, kind: str, exit_code: int = 1) -> None:
    assert answer.exit_code == exit_code, answer.err
    assert answer.out == ""
    assert answer.error["kind"] == kind
    assert set(answer.error) >= {"kind", "reaction", "message"}


BAD_ROWS = {
    "missing_key_column": "name,amount,day,version\nann,1.0,2013-01-01,1\n",
    "null_key": "id,name,amount,day,version\n,ann,1.0,2013-01-01,1\n",
    "null_ordering": "id,name,amount,day,version\n1,ann,1.0,2013-01-01,\n",
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_rows_that_do_not_fit_change_nothing(table: Path, kind: str) -> None:
    source = table.parent / "bad.csv"
    source.write_text(BAD_ROWS[kind], encoding="utf-8")
    before = contents(table)
    refused(run("write", table, "--input", source, "--output", "json"), kind)
    assert contents(table) == before
    assert run("table", "verify", table).exit_code == 0


@pytest.mark.parametrize("kind", ["missing_key_column", "null_key", "null_ordering"])
def test_rows_that_do_not_fit_leave_no_new_table_behind(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "bad.csv"
    source.write_text(BAD_ROWS[kind], encoding="utf-8")
    new = tmp_path / "new"
    words = ("--key", "id", "--partition-by", "day", "--ordering", "version")
    refused(run("write", new, "--input", source, *words, "--output", "json"), kind)
    assert not new.exists()


def test_a_key_field_absent_from_the_schema_creates_no_table(tmp_path: Path) -> None:
    answer = run("table", "create", tmp_path / "t", "--schema", "id long", "--key", "code",
                 "--output", "json")  # fmt: skip
    refused(answer, "missing_key_column")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "words", [("read",), ("timeline", "show"), ("files",), ("table", "verify"), ("table", "show")]
)
def test_a_path_that_is_no_table(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "file.txt").write_text("x")
    refused(run(*words, tmp_path, "--output", "json"), "table_not_found")
    assert contents(tmp_path).keys() == {"file.txt"}


@pytest.mark.parametrize("version", ["5", "7", "10"])
def test_an_unsupported_table_version(table: Path, version: str) -> None:
    properties = table / ".hoodie" / "hoodie.properties"
    text = properties.read_text()
    assert "hoodie.table.version=9" in text
    properties.write_text(text.replace("hoodie.table.version=9", f"hoodie.table.version={version}"))
    before = contents(table)
    for words in (("read", table), ("table", "verify", table)):
        refused(run(*words, "--output", "json"), "table_version")
    assert contents(table) == before


def test_a_table_of_version_6_is_read_and_never_written(tmp_path: Path) -> None:
    table = golden_tables.unpack("v6_cow_nonpart", tmp_path)
    before = contents(table)
    assert run("read", table, "--output", "json").exit_code == 0
    rows = tmp_path / "rows.ndjson"
    rows.write_text('{"id": "new"}\n')
    refused(run("write", table, "--input", rows, "--output", "json"), "table_version")
    assert contents(table) == before


@pytest.mark.parametrize(
    ("refuses", "said"),
    [
        ("os.unlink", "access was denied"),
        ("timeline.storage.local.remove_tree", "the table is dropped, delete the rest of its"),
    ],
)
def test_a_table_with_files_that_may_not_be_deleted_is_not_dropped(
    table: Path, monkeypatch: pytest.MonkeyPatch, refuses: str, said: str
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(table))

    with monkeypatch.context() as patched:
        patched.setattr(refuses, denied)
        answer = run("table", "drop", table, "--yes", "--output", "json")
    refused(answer, "storage_unavailable")
    assert said in answer.error["message"]


def test_damaged_properties(table: Path) -> None:
    properties = table / ".hoodie" / "hoodie.properties"
    text = properties.read_text()
    properties.write_text(text.replace("hoodie.table.name=people", "hoodie.table.name=others"))
    (table / ".hoodie" / "hoodie.properties.backup").unlink(missing_ok=True)
    before = contents(table)
    answer = run("read", table, "--output", "json")
    assert (answer.exit_code, answer.error["reaction"]) == (1, "fix_table")
    found = run("table", "verify", table)
    assert found.exit_code == 5
    assert found.document["problems"][0]["path"].endswith("hoodie.properties")
    assert contents(table) == before


def test_a_torn_log_is_named_and_stops_reads_and_compaction(tmp_path: Path) -> None:
    table = tmp_path / "t"
    with hoodoo.create_table(table, record_key="id", table_type="MERGE_ON_READ") as made:
        made.upsert([{"id": "a", "v": 1}])
        first = made.timeline[-1].completion_time
        made.upsert([{"id": "a", "v": 2}])
    (log,) = table.glob(".*.log.*")
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    answer = run("read", table, "--output", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "log_torn")
    assert answer.error["path"] == log.name
    assert run("read", table, "--as-of", first).rows == [{"id": "a", "v": 1}]
    assert run("table", "verify", table).exit_code == 5
    compacted = run("services", "run", table, "--service", "compact", "--output", "json")
    assert (compacted.exit_code, compacted.error["kind"]) == (1, "log_torn")
    log.write_bytes(whole)
    assert run("read", table).rows == [{"id": "a", "v": 2}]


def test_a_torn_block_in_a_log_of_version_6_is_named(tmp_path: Path) -> None:
    """It was never committed, but a reader cannot be sure: the skipped block is reported."""
    table = golden_tables.unpack("v6_mor_logs", tmp_path)
    (log, *_) = sorted(path for path in table.rglob(".*.log.*") if path.suffix != ".crc")
    before = run("read", table).rows
    log.write_bytes(log.read_bytes() + b"#HUDI#" + bytes(7) + b"\x40torn")
    answer = run("read", table)
    assert (answer.exit_code, answer.rows) == (0, before)
    assert f"{log.name}: damaged from byte" in answer.err
    assert "'hoodoo table verify'" in answer.err
    assert run("read", table, "--quiet").err == ""


def test_a_wrong_type_in_a_property(table: Path) -> None:
    before = contents(table)
    source = table.parent / "rows.csv"
    answer = run("write", table, "--input", source, "--output", "json", "--hoodie-conf",
                 "hoodie.parquet.max.file.size=big")  # fmt: skip
    assert answer.exit_code == 1
    assert answer.error["key"] == "hoodie.parquet.max.file.size"
    assert answer.error["layer"] == "--hoodie-conf"
    assert contents(table) == before


def test_two_writers_with_different_lock_settings(table: Path) -> None:
    before = contents(table)
    source = table.parent / "rows.csv"
    many = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
            "hoodie.clean.failed.writes.policy": "LAZY"}  # fmt: skip
    with hoodoo.open_table(
        table, properties={**many, "hoodie.write.lock.provider": "filesystem"}
    ) as first:
        first.upsert(first.to_arrow())
        before = contents(table)
        answer = run("write", table, "--input", source, "--output", "json",
                     *(word for key, value in many.items()
                       for word in ("--hoodie-conf", f"{key}={value}")),
                     "--hoodie-conf", "hoodie.write.lock.provider=in_process")  # fmt: skip
    refused(answer, "writer_disagreement")
    assert "lock_provider" in answer.error["differences"]
    assert contents(table) == before


@pytest.mark.spec("FOR-7")
def test_a_write_that_would_not_maintain_the_metadata_table_is_refused(tmp_path: Path) -> None:
    table = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)
    before = contents(table)
    source = tmp_path / "rows.ndjson"
    source.write_text(run("read", table, "--limit", 1).out, encoding="utf-8")
    off = ("--hoodie-conf", "hoodie.metadata.enable=false")
    for more in ((), ("--dry-run",)):
        answer = run("write", table, "--input", source, "--output", "json", *off, *more)
        refused(answer, "metadata_table_on", exit_code=1)
        assert contents(table) == before
    assert run("write", table, "--input", source).exit_code == 0
    assert run("table", "verify", table).exit_code == 0
    assert run("metadata", "drop", table, "--yes", *off).exit_code == 0
    assert run("write", table, "--input", source, *off).exit_code == 0
    assert not (table / ".hoodie" / "metadata").exists()
    assert run("table", "show", table).document["metadata_table"] is False
    assert run("table", "verify", table).exit_code == 0


@pytest.mark.parametrize("query_type", ["snapshot", "read_optimized"])
@pytest.mark.parametrize("bound", ["--since", "--until"])
def test_an_unknown_range_is_refused(table: Path, query_type: str, bound: str) -> None:
    answer = run("read", table, "--query-type", query_type, bound, "2026-01-01")
    assert (answer.exit_code, answer.out) == (2, "")
    assert "incremental" in answer.err


def test_an_unexpected_error_requests_a_report(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nine")

    monkeypatch.setattr("hoodoo.catalog.open_table", broken)
    answer = run("files", table)
    assert answer.exit_code == 1
    assert "report" in answer.err
    assert "--debug" in answer.err


def test_no_colour_is_printed_with_no_color(tmp_path: Path) -> None:
    answer = run("read", tmp_path, env={"NO_COLOR": "1"})
    assert "\x1b" not in answer.err
    assert answer.err.startswith("error: ")
