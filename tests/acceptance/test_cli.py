"""Every verb of the command line on a small table, with the shapes scripts rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hoodoo.table import Table
from tests.acceptance.cli import ROWS, Answer, contents, run, table_with_rows

RECEIPT = {
    "action", "operation", "requested_time", "completion_time", "attempts", "rows_inserted",
    "rows_updated", "rows_deleted", "files_written", "bytes_written",
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return table_with_rows(tmp_path)


def csv(folder: Path, text: str) -> Path:
    file = folder / "more.csv"
    file.write_text(text, encoding="utf-8")
    return file


def upsert(table: Path, text: str, *more: str) -> Answer:
    return run("write", table, "--input", csv(table.parent, text), *more)


LATER = "id,name,amount,day,version\n2,bert,3.5,2013-01-02,2\n4,dan,4.5,2013-01-03,1\n"


def test_a_write_prints_its_result(table: Path) -> None:
    result = upsert(table, LATER).document
    assert set(result) == RECEIPT
    assert (result["action"], result["operation"], result["attempts"]) == ("commit", "upsert", 1)
    assert (result["rows_inserted"], result["rows_updated"]) == (1, 1)


def test_read_prints_one_object_a_row(table: Path) -> None:
    assert run("read", table).rows == [
        {"id": 1, "name": "ann", "amount": 1.5, "day": "2013-01-01", "version": 1},
        {"id": 2, "name": "bob", "amount": 2.5, "day": "2013-01-02", "version": 1},
        {"id": 3, "name": "eve", "amount": None, "day": "2013-01-02", "version": 1},
    ]


def test_read_as_json_is_an_array(table: Path) -> None:
    assert [row["id"] for row in run("read", table, "--output", "json").document] == [1, 2, 3]
    none = run("read", table, "--filter", "id = 9", "--output", "json")
    assert none.document == []


def test_read_projects_filters_and_limits(table: Path) -> None:
    answer = run("read", table, "--columns", "name,id", "--filter", "day = '2013-01-02' and id < 3")
    assert answer.out == '{"name":"bob","id":2}\n'
    assert len(run("read", table, "--limit", 2).rows) == 2
    assert run("read", table, "--limit", 0).out == ""


def test_read_prints_meta_columns_by_option(table: Path) -> None:
    row = run("read", table, "--meta", "--limit", 1).rows[0]
    assert list(row)[:5] == [
        "_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key",
        "_hoodie_partition_path", "_hoodie_file_name",
    ]  # fmt: skip
    assert (row["_hoodie_record_key"], row["_hoodie_partition_path"]) == ("1", "2013-01-01")


def test_read_supports_time_travel_and_changes(table: Path) -> None:
    first = run("timeline", "show", table).document["instants"][0]
    upsert(table, LATER)
    old = run("read", table, "--as-of", first["requested_time"]).rows
    assert [row["name"] for row in old] == ["ann", "bob", "eve"]
    changed = run("read", table, "--since", first["completion_time"]).rows
    assert [row["name"] for row in changed] == ["bert", "dan"]
    some = run("read", table, "--since", first["completion_time"], "--filter", "id = 4").rows
    assert [row["name"] for row in some] == ["dan"]
    assert (
        len(run("read", table, "--since", "earliest", "--until", first["completion_time"]).rows)
        == 3
    )


def test_every_change_is_printed_with_its_images(table: Path) -> None:
    first = run("timeline", "show", table).document["instants"][0]
    upsert(table, LATER)
    changes = run("read", table, "--query-type", "cdc", "--since", first["completion_time"]).rows
    assert [(row["op"], row["after"]["name"]) for row in changes] == [("u", "bert"), ("i", "dan")]
    assert changes[0]["before"]["name"] == "bob"
    assert changes[1]["before"] is None
    every = run("read", table, "--query-type", "cdc", "--columns", "id").rows
    assert [(row["op"], row["after"]) for row in every[:2]] == [("i", {"id": 1}), ("i", {"id": 2})]


def test_changes_take_no_filter(table: Path) -> None:
    answer = run("read", table, "--query-type", "cdc", "--filter", "id = 1", "--output", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "unsupported_query")


def test_timeline_show_has_the_promised_shape(table: Path) -> None:
    document = run("timeline", "show", table).document
    assert set(document) == {"table", "instants"}
    assert document["table"] == {
        "name": "people",
        "version": 9,
        "type": "COPY_ON_WRITE",
        "base_path": f"file:{table}",
    }
    (instant,) = document["instants"]
    assert set(instant) == {"requested_time", "completion_time", "action", "state", "archived"}
    assert (instant["action"], instant["state"], instant["archived"]) == (
        "commit",
        "completed",
        False,
    )


def test_files_has_the_promised_shape(table: Path) -> None:
    document = run("files", table).document
    assert document["as_of"] is None
    assert [one["partition_path"] for one in document["file_slices"]] == [
        "2013-01-01",
        "2013-01-02",
    ]
    for one in document["file_slices"]:
        assert set(one) == {
            "partition_path", "file_id", "base_instant_time", "base_file", "log_files",
        }  # fmt: skip
        assert (table / one["partition_path"] / one["base_file"]).is_file()
        assert one["log_files"] == []


def test_table_show_prints_the_properties_of_the_table(table: Path) -> None:
    document = run("table", "show", table).document
    assert document["record_key"] == ["id"]
    assert document["partition_by"] == ["day"]
    assert document["ordering"] == ["version"]
    assert document["columns"][0] == {"name": "id", "type": "int64"}


def test_an_intact_table_verifies(table: Path) -> None:
    upsert(table, LATER)
    for more in ((), ("--history",)):
        answer = run("table", "verify", table, *more)
        assert answer.exit_code == 0
        assert (answer.document["ok"], answer.document["problems"]) == (True, [])


def test_a_missing_file_is_a_problem_with_exit_code_5(table: Path) -> None:
    file = next((table / "2013-01-01").glob("*.parquet"))
    file.unlink()
    answer = run("table", "verify", table)
    assert answer.exit_code == 5
    assert answer.document["ok"] is False
    assert answer.document["problems"][0]["kind"] == "missing_file"
    assert answer.document["problems"][0]["path"] == f"2013-01-01/{file.name}"


def test_explain_names_the_writer(table: Path) -> None:
    time = run("timeline", "show", table).document["instants"][0]["requested_time"]
    story = run("explain", table, time).document
    assert (story["operation"], story["attempts"], story["slot_number"]) == ("UPSERT", 1, 1)
    assert story["pid"] > 0
    assert run("explain", table, "20200101000000000").exit_code == 1
    assert run("explain", table).exit_code == 2


def test_explain_resolves_a_write_of_unknown_outcome(table: Path) -> None:
    time = run("timeline", "show", table).document["instants"][0]["requested_time"]
    document = run("explain", table, time, "--resolve").document
    assert document["outcome"] == "published"
    assert run("explain", table, "20200101000000000", "--resolve").exit_code == 1


def test_explain_sums_up_conflicts_between_writers(table: Path) -> None:
    document = run("explain", table, "--contention").document
    assert document["refused_attempts"] == 0
    assert document["meetings"] == []
    assert run("explain", table, "x", "--contention").exit_code == 2


def test_explain_prints_every_cell_of_the_matrix() -> None:
    document = run("explain", "--matrix").document
    assert len(document["cells"]) == 16
    every = [cell for cell in document["actions"] if cell["strategy"] == "every"]
    assert len(every) == 12 * 12 * 2
    assert {cell["rule"] for cell in document["cells"] + every} <= set(document["rules"])
    assert document["kinds"]["C2"] == "deleted_under_reader"


def test_a_created_table_is_empty_until_the_first_write(tmp_path: Path) -> None:
    table = tmp_path / "t"
    schema = "id long, name string, at timestamp"
    assert run("table", "create", table, "--schema", schema, "--key", "id").exit_code == 0
    assert run("read", table).out == ""
    source = csv(tmp_path, "id,name,at\n1,a,2013-01-01T10:00:00Z\n")
    assert run("write", table, "--input", source).exit_code == 0
    assert run("read", table).rows == [{"id": 1, "name": "a", "at": "2013-01-01T10:00:00.000000Z"}]


@pytest.mark.parametrize("ending", ["parquet", "ndjson", "arrow"])
def test_every_input_format_is_read(tmp_path: Path, ending: str) -> None:
    rows = pa.table({"id": [1, 2], "name": ["a", None]})
    source = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(rows, source)
    elif ending == "ndjson":
        source.write_text('{"id":1,"name":"a"}\n{"id":2,"name":null}\n', encoding="utf-8")
    else:
        with pa.OSFile(str(source), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    table = tmp_path / "t"
    assert run("write", table, "--input", source, "--key", "id").exit_code == 0
    assert run("write", table, "--input", source).document["rows_updated"] == 2
    assert run("read", table).rows == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_all_input_files_are_written_in_one_commit(table: Path) -> None:
    first, second = table.parent / "a.csv", table.parent / "b.ndjson"
    first.write_text("id,name,amount,day,version\n7,gus,1.0,2013-01-03,1\n", encoding="utf-8")
    second.write_text(
        '{"version": 1, "day": "2013-01-03", "id": 8, "name": "hal", "amount": null}\n',
        encoding="utf-8",
    )
    before = len(run("log", table, "-o", "json").document["instants"])
    done = run("write", table, "--input", first, "--input", second)
    assert done.exit_code == 0, done.err
    assert done.document["rows_inserted"] == 2
    assert len(run("log", table, "-o", "json").document["instants"]) == before + 1
    names = [row["name"] for row in run("read", table, "--columns", "name").rows]
    assert sorted(names) == ["ann", "bob", "eve", "gus", "hal"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id,name,amount,day\n8,hal,1.0,2013-01-03\n", "the same columns"),
        ("id,name,amount,day,version\nx,hal,1.0,2013-01-03,1\n", "the same column types"),
    ],
)
def test_input_files_that_differ_in_form_are_refused(tmp_path: Path, text: str, why: str) -> None:
    first, second = csv(tmp_path, ROWS), tmp_path / "second.csv"
    second.write_text(text, encoding="utf-8")
    inputs = ("--input", first, "--input", second)
    done = run("write", tmp_path / "t", *inputs, "--key", "id", "-o", "json")
    assert (done.exit_code, done.error["kind"]) == (1, "input_file")
    assert why in done.error["message"]
    assert not (tmp_path / "t").exists()


def test_a_dry_run_writes_nothing(table: Path) -> None:
    before = contents(table)
    answer = upsert(table, LATER, "--dry-run")
    assert (answer.exit_code, answer.document["rows"]) == (0, 2)
    assert answer.document["partitions"] == ["2013-01-02", "2013-01-03"]
    assert contents(table) == before
    run("services", "run", table, "--dry-run")
    assert contents(table) == before


def test_deleting_by_key_and_by_partition(table: Path) -> None:
    keys = csv(table.parent, "id,day\n1,2013-01-01\n")
    result = run("write", table, "--input", keys, "--operation", "delete").document
    assert result["rows_deleted"] == 1
    conf = "hoodie.datasource.write.partitions.to.delete=2013-01-02"
    asked = run("write", table, "--operation", "delete_partition", "--hoodie-conf", conf,
                "--output", "json")  # fmt: skip
    assert (asked.exit_code, asked.error["kind"]) == (1, "not_confirmed")
    done = run("write", table, "--operation", "delete_partition", "--hoodie-conf", conf, "--yes")
    assert (done.exit_code, done.document["action"]) == (0, "replacecommit")
    assert run("read", table).out == ""


@pytest.mark.spec("BATCH-1")
def test_a_repeated_partition_delete_keeps_rows_written_since(table: Path) -> None:
    conf = "hoodie.datasource.write.partitions.to.delete=2013-01-02"
    delete = ("write", table, "--operation", "delete_partition", "--hoodie-conf", conf)
    run(*delete, "--batch-id", "d/1", "--yes")
    rows = csv(table.parent, "id,day,name,amount,version\n9,2013-01-02,new,1,1\n")
    assert run("write", table, "--input", rows).exit_code == 0
    again = run(*delete, "--batch-id", "d/1", "--yes")
    assert again.document["already_published"]
    assert "new" in [row["name"] for row in run("read", table).rows]


def test_a_write_reports_a_misspelled_key(table: Path) -> None:
    conf = "hoodie.write.concurency.mode=OPTIMISTIC_CONCURRENCY_CONTROL"
    answer = upsert(table, LATER, "--hoodie-conf", conf)
    assert answer.exit_code == 0
    assert "hoodie.write.concurrency.mode" in answer.err


@pytest.mark.parametrize("command", [("table", "verify"), ("table", "show"), ("read",), ("files",)])
def test_every_command_reports_a_misspelled_key(table: Path, command: tuple[str, ...]) -> None:
    answer = run(*command, table, "--hoodie-conf", "hoodie.cleen.automatic=true")
    assert answer.exit_code == 0
    assert answer.err.count("did you mean hoodie.clean.automatic") == 1


def test_deleting_by_filter(table: Path) -> None:
    asked = ("write", table, "--operation", "delete", "--filter", "amount > 2")
    before = contents(table)
    assert run(*asked, "--dry-run").document["rows"] == 1
    refused = run(*asked, "--output", "json")
    assert (refused.exit_code, refused.error["kind"]) == (1, "not_confirmed")
    assert contents(table) == before
    assert run(*asked, "--yes").document["rows_deleted"] == 1
    assert [row["name"] for row in run("read", table).rows] == ["ann", "eve"]
    wrong = run("write", table, "--filter", "amount > 2", "--output", "json")
    assert (wrong.exit_code, wrong.error["kind"]) == (1, "filter")


def test_cleaning_once_prints_a_result(table: Path) -> None:
    for number in range(2, 5):
        upsert(table, f"id,name,amount,day,version\n2,b{number},1,2013-01-02,{number}\n",
               "--hoodie-conf", "hoodie.clean.automatic=false")  # fmt: skip
    answer = run("services", "run", table, "--hoodie-conf", "hoodie.clean.commits.retained=1")
    assert answer.exit_code == 0
    assert set(answer.document) >= RECEIPT
    assert len(answer.document["files_deleted"]) == 2
    assert run("table", "verify", table).exit_code == 0


def test_a_worker_ends_after_its_rounds(table: Path) -> None:
    answer = run("services", "worker", table, "--rounds", 2, "--interval-ms", 100)
    assert answer.exit_code == 0
    assert "2 rounds" in answer.err


def test_the_lock_is_examined(table: Path) -> None:
    document = run("locks", "doctor", table).document
    assert set(document) == {"provider", "ok", "checks"}
    assert (document["provider"], document["ok"]) == ("filesystem", True)
    assert set(document["checks"][0]) == {
        *("name", "ok", "seconds", "message"),
        *("skipped", "advice"),
    }


def test_config_show_names_the_layer_and_hides_secrets(table: Path, tmp_path: Path) -> None:
    props = tmp_path / "w.properties"
    props.write_text(
        "hoodie.clean.commits.retained=7\nhoodie.write.lock.zookeeper.password=geheim\n"
    )
    answer = run(
        "config", "show", table, "--props", props, "--hoodie-conf", "hoodie.index.type=SIMPLE"
    )
    assert "geheim" not in answer.out
    values = {each["key"]: each for each in answer.document["values"]}
    assert values["hoodie.clean.commits.retained"]["value"] == "7"
    assert values["hoodie.clean.commits.retained"]["layer"] == str(props)
    assert values["hoodie.index.type"]["layer"] == "--hoodie-conf"


def test_config_check_has_an_exit_code(tmp_path: Path) -> None:
    assert run("config", "check").exit_code == 0
    bad = run("config", "check", "--hoodie-conf", "hoodie.clean.commits.retained=few")
    assert bad.exit_code == 5
    assert bad.document["problems"][0]["key"] == "hoodie.clean.commits.retained"


def test_dropping_needs_confirmation_and_then_deletes_everything(table: Path) -> None:
    assert run("table", "drop", table).exit_code == 1
    assert run("table", "drop", table, "--dry-run").exit_code == 0
    assert table.exists()
    assert run("table", "drop", table, "--yes").exit_code == 0
    assert not table.exists()


def test_a_rollback_of_a_missing_write_is_refused(table: Path) -> None:
    answer = run("rollback", table, "20200101000000000", "--yes", "--output", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "no_such_write")


@pytest.mark.spec("RB-3")
def test_a_rollback_of_a_committed_write_reports_it_as_committed(table: Path) -> None:
    """Its writer died between its slot and the file that shows it: the rollback makes the file."""
    (shown,) = (table / ".hoodie" / "timeline").glob("*.commit")
    shown.unlink()
    document = run("rollback", table, shown.name[:17], "--yes").document
    assert document["why"] == "it was committed"
    assert (document["rolled_back"], document["files_deleted"]) == (None, [])
    assert shown.exists()


def test_a_savepoint_is_created_restored_and_deleted(table: Path, tmp_path: Path) -> None:
    def instants() -> list[str]:
        shown = run("timeline", "show", table).document["instants"]
        return [one["requested_time"] for one in shown if one["action"] == "commit"]

    then = sorted(run("read", table).out.splitlines())
    assert run("savepoint", "create", table, "--dry-run").document["completion_time"] is None
    made = run("savepoint", "create", table, "--comment", "before").document
    assert made["requested_time"] == instants()[-1]
    assert made["files_kept"]
    listed = run("savepoint", "list", table).document["savepoints"]
    assert [(one["requested_time"], one["comment"]) for one in listed] == [
        (made["requested_time"], "before")
    ]
    more = tmp_path / "more.csv"
    more.write_text("id,name,amount,day,version\n9,new,1.0,2013-01-01,1\n")
    assert run("write", table, "--input", more).exit_code == 0
    newest = instants()[-1]
    refused = run("rollback", table, made["requested_time"], "--yes", "--output", "json")
    assert refused.error["kind"] == "savepointed"
    planned = run("restore", table, made["requested_time"], "--dry-run").document
    assert (planned["instants_taken_away"], planned["completion_time"]) == ([newest], None)
    assert run("restore", table, made["requested_time"]).exit_code == 1  # not confirmed
    assert run("restore", table).exit_code == 2
    assert run("restore", table, "--finish", "--yes").document["attempts"] == 0
    done = run("restore", table, made["requested_time"], "--yes").document
    assert done["instants_taken_away"] == [newest]
    assert done["files_deleted"] == planned["files_deleted"]
    assert sorted(run("read", table).out.splitlines()) == then
    assert run("write", table, "--input", more).exit_code == 0
    newest = instants()[-1]
    assert run("rollback", table, newest, "--yes").document["why"] == "rolled back"
    assert sorted(run("read", table).out.splitlines()) == then
    assert run("savepoint", "delete", table, made["requested_time"], "--yes").exit_code == 0
    assert run("savepoint", "list", table).document == {"savepoints": []}
    assert run("table", "verify", table).exit_code == 0
    document = run("explain", table, newest).document
    assert document["state"] == "rolled back"


def test_partitions_expire_by_their_days(table: Path) -> None:
    days = ("--hoodie-conf", "hoodie.partition.ttl.strategy.days.retain=1")
    planned = run("services", "run", table, "--service", "ttl", *days, "--dry-run")
    assert planned.document["would_delete_partitions"] == []
    assert run("services", "run", table, "--service", "ttl", *days).document["attempts"] == 0


def test_a_table_is_upgraded_once(tmp_path: Path) -> None:
    old = ("--hoodie-conf", "hoodie.write.table.version=8")
    made = run("table", "create", tmp_path / "t", "--schema", "id int", "--key", "id", *old)
    assert made.exit_code == 0, made.err
    shown = run("table", "upgrade", tmp_path / "t", "--dry-run").document
    assert (shown["from_version"], shown["version"], shown["upgraded"]) == (8, 9, False)
    assert run("table", "upgrade", tmp_path / "t", "--yes").document["upgraded"]
    assert run("table", "show", tmp_path / "t").document["version"] == 9
    assert run("table", "upgrade", tmp_path / "t", "--yes").document["upgraded"] is False


def test_an_upgrade_keeps_the_metadata_table_of_version_8(tmp_path: Path) -> None:
    old = ("--hoodie-conf", "hoodie.write.table.version=8")
    on = ("--hoodie-conf", "hoodie.metadata.enable=true")
    run("table", "create", tmp_path / "t", "--schema", "id int", "--key", "id", *old, *on)
    assert run("table", "upgrade", tmp_path / "t", "--yes").document["upgraded"]
    assert run("table", "show", tmp_path / "t").document["metadata_table"]
    assert run("metadata", "verify", tmp_path / "t").document == {"ok": True, "problems": []}


def test_orphans_are_shown_before_they_are_removed(table: Path) -> None:
    assert run("table", "orphans", table).document == {"orphans": [], "removed": False}
    assert run("table", "orphans", table, "--remove", "--yes").document["removed"] is False
    short = run("table", "orphans", table, "--older-than-hours", "0", "--output", "json")
    assert (short.exit_code, short.error["kind"]) == (1, "horizon")


def test_writers_is_empty_without_writers(table: Path) -> None:
    assert run("writers", table).document == {"writers": [], "readers": []}


@pytest.mark.parametrize("output", ["table", "json", "ndjson"])
def test_every_output_form_works_for_every_command_that_reads(table: Path, output: str) -> None:
    time = run("timeline", "show", table).document["instants"][0]["requested_time"]
    for words in (
        ("read", table),
        ("timeline", "show", table, "--history"),
        ("files", table),
        ("table", "show", table),
        ("table", "verify", table),
        ("explain", table, time),
        ("explain", "--matrix"),
        ("config", "show", table),
        ("config", "check"),
        ("writers", table),
        ("locks", "doctor", table),
        ("services", "run", table),
    ):
        answer = run(*words, "--output", output)
        assert (answer.exit_code, bool(answer.out)) == (0, True), words
        if output == "ndjson":
            assert all(json.loads(line) is not None for line in answer.out.splitlines())


def test_a_repeated_batch_reports_that_nothing_was_written(table: Path) -> None:
    source = table.parent / "rows.csv"
    words = ("write", table, "--input", source, "--batch-id", "b/1", "--output", "table")
    assert "nothing was written" not in run(*words).out
    source.write_text(ROWS.replace("ann", "zoe"), encoding="utf-8")
    again = run(*words)
    assert (again.exit_code, "nothing was written" in again.out) == (0, True)
    assert {row["name"] for row in run("read", table).rows} == {"ann", "bob", "eve"}


def test_an_interrupted_change_reports_that_it_may_have_been_committed(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Table.write

    def interrupted(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Table, "write", interrupted)
    answer = upsert(table, LATER)
    assert (answer.exit_code, answer.out) == (130, "")
    assert "hoodoo log" in answer.err
    assert {row["name"] for row in run("read", table).rows} == {"ann", "bert", "eve", "dan"}


def test_a_long_row_is_written_to_a_new_and_to_an_existing_table(tmp_path: Path) -> None:
    source, table = tmp_path / "rows.ndjson", tmp_path / "t"
    row = json.dumps({"id": 1, "name": "x" * (3 << 20)})
    source.write_text(row + "\n" + row.replace("1,", "2,", 1), encoding="utf-8")
    assert run("write", table, "--input", source, "--key", "id").exit_code == 0
    again = run("write", table, "--input", source)
    assert again.exit_code == 0, again.err
    assert again.document["rows_updated"] == 2


def test_values_cannot_steer_a_terminal(tmp_path: Path) -> None:
    source = tmp_path / "rows.ndjson"
    source.write_text(json.dumps({"id": 1, "name": "\x1b[31mred\u202e"}), encoding="utf-8")
    table = tmp_path / "t"
    run("write", table, "--input", source, "--key", "id")
    for output in ("table", "json", "ndjson"):
        out = run("read", table, "--output", output).out
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_the_installed_command_prints_json_to_a_pipe(table: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hoodoo.cli", *words],
            capture_output=True,
            text=True,
            check=False,
        )

    read = command("read", str(table), "--columns", "id")
    assert (read.returncode, read.stdout, read.stderr) == (0, '{"id":1}\n{"id":2}\n{"id":3}\n', "")
    missing = command("read", str(table / "nothing"))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("error: ")
    assert missing.stderr.count("\n") == 1
    usage = command("read")
    assert (usage.returncode, usage.stdout) == (2, "")


def test_a_reader_that_closes_the_pipe_early_is_no_error(table: Path) -> None:
    line = f"'{sys.executable}' -m hoodoo.cli config show '{table}' | head -c 10; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_log_lists_instants_newest_first(table: Path) -> None:
    second = upsert(table, LATER).document
    found = run("log", table, "--output", "json").document["instants"]
    assert [one["operation"] for one in found] == ["UPSERT", "UPSERT"]
    assert found[0]["requested_time"] == second["requested_time"]
    assert run("log", table, "-n", "1", "--output", "json").document["instants"] == found[:1]
    assert run("log", table, "--action", "clean", "--output", "json").document["instants"] == []
    assert run("log", table, "--writer", "no such", "--output", "json").document["instants"] == []
    people = run("log", table, "--output", "table", env={"COLUMNS": "80"}).out.splitlines()
    assert people[0].split() == [
        "instant",
        "completed",
        "(UTC)",
        "action",
        "rows",
        "size",
        "writer",
    ]
    assert people[1].startswith(second["requested_time"])
    assert max(map(len, people)) <= 80


def test_short_names_of_instants_work_in_each_command(table: Path) -> None:
    upsert(table, LATER)
    assert len(run("read", table, "--as-of", "@-2").rows) == 3
    assert {row["id"] for row in run("read", table, "--since", "@-2").rows} == {2, 4}
    newest = run("explain", table, "@-1", "--output", "json").document["requested_time"]
    made = run("savepoint", "create", table, "@-2", "--output", "json").document
    assert made["requested_time"] < newest
    assert (
        run("rollback", table, "@-1", "--yes", "--output", "json").document["rolled_back"] == newest
    )
