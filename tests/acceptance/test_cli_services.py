"""Table services on the command line: planned here, carried out there, cancelled by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli import ROWS, contents, run

LATER = "id,name,amount,day,version\n2,bo,9,2013-01-02,2\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A merge-on-read table whose one file group has a log."""
    source = tmp_path / "rows.csv"
    source.write_text(ROWS, encoding="utf-8")
    made = tmp_path / "people"
    conf = (
        *("--hoodie-conf", "hoodie.datasource.write.table.type=MERGE_ON_READ"),
        *("--hoodie-conf", "hoodie.clean.automatic=false"),
    )
    first = run("write", made, "--input", source, "--key", "id", "--ordering", "version", *conf)
    assert first.exit_code == 0, first.err
    source.write_text(LATER, encoding="utf-8")
    assert run("write", made, "--input", source, *conf).exit_code == 0
    return made


def rows(table: Path) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in run("read", table).rows)


def actions(table: Path) -> list[tuple[str, str]]:
    document = run("timeline", table, "--output", "json").document
    return [(one["action"], one["state"]) for one in document["instants"]]


def test_a_dry_run_lists_the_compaction(table: Path) -> None:
    before = contents(table)
    document = run("services", "plan", table, "--dry-run").document
    assert document["would_plan"]["file_groups"] == 1
    assert document["would_plan"]["log_files"] == 1
    assert document["would_plan"]["log_bytes"] > 0
    assert document["would_plan"]["due"] is False
    assert contents(table) == before


def test_a_plan_is_carried_out_by_a_worker_of_several_tables(table: Path, tmp_path: Path) -> None:
    planned = run("services", "plan", table).document
    assert planned["completion_time"] is None
    health = tmp_path / "health.json"
    answer = run("services", "worker", table, "--service", "compact", "--only", "execute",
                 "--rounds", 1, "--health", health)  # fmt: skip
    assert answer.exit_code == 0
    assert answer.document["requested_time"] == planned["requested_time"]
    reported = json.loads(health.read_text())
    assert reported.pop("at_ms") > 0
    assert reported == {
        "state": "ended",
        "doing": None,
        "rounds": 1,
        "receipts": 1,
        "failures": 0,
        "idle": [],
        "failing": [],
    }
    assert rows(table) == [(1, "ann"), (2, "bo"), (3, "eve")]
    assert run("table", "verify", table).exit_code == 0


def test_one_round_compacts_now(table: Path) -> None:
    done = run("services", "run", table, "--service", "compact").document
    assert done["completion_time"] > done["requested_time"]
    [base] = table.glob(f"*_{done['requested_time']}.parquet")
    assert (done["file_groups"], done["files_written"], done["rows_written"]) == (1, 1, 3)
    assert done["bytes_written"] == base.stat().st_size
    assert (done["log_files_merged"], done["log_bytes_merged"] > 0) == (1, True)
    assert rows(table) == [(1, "ann"), (2, "bo"), (3, "eve")]


def test_a_dry_run_names_the_plans_that_would_be_carried_out(table: Path) -> None:
    words = ("services", "run", table, "--service", "compact", "--dry-run")
    assert run(*words).document["would_carry_out"] == []
    planned = run("services", "plan", table).document["requested_time"]
    before = contents(table)
    assert run(*words).document["would_carry_out"] == [planned]
    alone = run("services", "run", table, "--instant", planned, "--dry-run").document
    assert alone["would_carry_out"] == [planned]
    assert "would_plan" not in alone
    assert contents(table) == before


def test_a_plan_is_cancelled_and_can_be_made_again(table: Path) -> None:
    planned = run("services", "plan", table).document["requested_time"]
    asked = run("services", "cancel", table, planned, "--output", "json")
    assert (asked.exit_code, asked.error["kind"]) == (1, "not_confirmed")
    assert run("services", "cancel", table, planned, "--yes").document["cancelled"] == planned
    cancelled = run("services", "cancel", table, planned, "--yes", "--output", "json")
    assert cancelled.error["kind"] == "plan_unknown"
    assert run("explain", table, planned, "--output", "json").document["state"] == "cancelled"
    again = run("services", "plan", table).document["requested_time"]
    done = run("services", "run", table, "--instant", again).document
    assert done["requested_time"] == again
    assert rows(table) == [(1, "ann"), (2, "bo"), (3, "eve")]


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("compact", {"file_groups": 1, "log_files": 1}),
        ("logcompact", {"file_groups": 0}),
        ("cluster", {"groups": 1, "file_groups": 1}),
        ("clean", {"would_delete": [], "file_groups": 0, "bytes": 0}),
        ("archive", {"would_archive": []}),
        ("ttl", {"would_delete_partitions": [], "file_groups": 0, "bytes": 0}),
    ],
)
def test_a_dry_run_reports_each_service(
    table: Path, service: str, expected: dict[str, object]
) -> None:
    before = contents(table)
    document = run("services", "plan", table, "--dry-run", "--service", service).document
    found = document.get("would_plan", document)
    assert {key: found[key] for key in expected} == expected
    assert contents(table) == before


def test_a_dry_run_of_cleaning_reports_file_groups_and_bytes(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text(ROWS, encoding="utf-8")
    made = tmp_path / "people"
    conf = ("--hoodie-conf", "hoodie.clean.automatic=false")
    for _ in range(3):
        assert run("write", made, "--input", source, "--key", "id", *conf).exit_code == 0
    retained = ("--hoodie-conf", "hoodie.clean.commits.retained=1")
    dry_run = run("services", "run", made, "--dry-run", *retained).document
    assert dry_run["file_groups"] == 1
    assert (
        dry_run["bytes"] == sum((made / one).stat().st_size for one in dry_run["would_delete"]) > 0
    )


def test_a_plan_of_a_live_executor_is_refused_or_waited_for(table: Path) -> None:
    planned = run("services", "plan", table).document["requested_time"]
    beat = table / ".hoodie" / ".heartbeat" / planned
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    run_it = ("services", "run", table, "--instant", planned, "--output", "json")
    refused = run(*run_it)
    assert (refused.exit_code, refused.error["kind"]) == (3, "plan_claimed")
    assert run(*run_it, "--wait", "0.2").error["waited_ms"] == 200
    silent = ("--hoodie-conf", "hoodie.client.heartbeat.interval_in_ms=1000",
              "--hoodie-conf", "hoodie.client.heartbeat.tolerable.misses=1")  # fmt: skip
    assert run(*run_it, "--wait", "30", *silent).document["requested_time"] == planned


def test_a_failure_in_a_worker_is_in_its_output_health_and_exit_code(
    table: Path, tmp_path: Path
) -> None:
    health = tmp_path / "health.json"
    source = tmp_path / "rows.csv"
    for _ in range(4):
        assert run("write", table, "--input", source).exit_code == 0
    answer = run("services", "worker", table, "--service", "compact", "--rounds", 1,
                 "--health", health, "--events",
                 "--hoodie-conf", "hoodie.compaction.strategy=com.acme.Best")  # fmt: skip
    assert answer.exit_code == 1
    assert answer.document["error"]["kind"] == "setting_value"
    assert answer.document["table"].endswith("people")
    assert "service.failed" in answer.err
    assert "compact of " in answer.err
    [failing] = json.loads(health.read_text())["failing"]
    assert (failing["service"], failing["kind"]) == ("compact", "setting_value")


def test_a_health_file_in_a_missing_folder_is_an_input_error(table: Path, tmp_path: Path) -> None:
    health = tmp_path / "missing" / "health.json"
    answer = run("services", "worker", table, "--rounds", 1, "--health", health, "--output", "json")
    assert answer.exit_code == 1
    assert answer.error["kind"] == "health_file"
    assert str(health) in answer.error["message"]


def test_an_unknown_service_is_refused_by_name(table: Path) -> None:
    answer = run("services", "run", table, "--service", "vacuum", "--output", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, "no_service")
    assert "compact" in answer.error["message"]


def test_an_unknown_strategy_is_refused_and_nothing_changed(table: Path) -> None:
    before = contents(table)
    answer = run("services", "plan", table, "--output", "json",
                 "--hoodie-conf", "hoodie.compaction.strategy=com.acme.Best")  # fmt: skip
    assert (answer.exit_code, answer.error["kind"]) == (1, "setting_value")
    assert contents(table) == before


def test_a_writer_compacts_inline_when_it_is_due(table: Path) -> None:
    source = table.parent / "more.csv"
    source.write_text("id,name,amount,day,version\n3,ev,9,2013-01-02,3\n", encoding="utf-8")
    answer = run("write", table, "--input", source,
                 "--hoodie-conf", "hoodie.compact.inline=true",
                 "--hoodie-conf", "hoodie.compact.inline.max.delta.commits=2")  # fmt: skip
    assert answer.exit_code == 0
    assert rows(table) == [(1, "ann"), (2, "bo"), (3, "ev")]
    assert run("services", "plan", table).document["requested_time"] is None


def test_a_writer_only_plans_inline_by_option(table: Path) -> None:
    source = table.parent / "more.csv"
    source.write_text("id,name,amount,day,version\n3,ev,9,2013-01-02,3\n", encoding="utf-8")
    answer = run("write", table, "--input", source,
                 "--hoodie-conf", "hoodie.compact.schedule.inline=true",
                 "--hoodie-conf", "hoodie.compact.inline.max.delta.commits=2")  # fmt: skip
    assert answer.exit_code == 0
    [pending] = sorted((table / ".hoodie" / "timeline").glob("*.compaction.*"))
    assert pending.name.endswith(".compaction.requested")


def test_a_worker_imports_everything_before_a_signal_may_interrupt_it() -> None:
    """If a signal interrupts PyArrow's import of pandas, the cleanup would find half of it."""
    said = "import sys; import hoodoo.cli.services as r; {}; print('pandas' in sys.modules)"
    for call, there in (("r", "False"), ("r.import_all()", "True")):
        asked = [sys.executable, "-c", said.format(call)]
        assert (
            subprocess.run(asked, capture_output=True, text=True, check=True).stdout == f"{there}\n"
        )


def test_a_worker_reports_its_services_and_why_none_was_due(table: Path, tmp_path: Path) -> None:
    health = tmp_path / "health.json"
    answer = run("services", "worker", table, "--rounds", 2, "--interval-ms", 100,
                 "--health", health)  # fmt: skip
    assert answer.exit_code == 0
    assert answer.out == ""
    said = answer.err.splitlines()
    assert said[0].endswith(
        "services clean, metadata, archive, compact, logcompact, cluster, ttl, sync, every 0.1 s"
    )
    reasons = {
        "clean": "all files are within the retention",
        "metadata": "the table has no metadata table",
        "archive": "2 commits; it runs above 30 (hoodie.keep.max.commits)",
        "compact": "not due by NUM_COMMITS of 5 commits, 3600 s "
        "(hoodie.compact.inline.trigger.strategy)",
        "logcompact": "hoodie.log.compaction.enable is off",
        "cluster": "hoodie.clustering.async.enabled is off",
        "ttl": "hoodie.partition.ttl.strategy.days.retain is not set",
        "sync": "hoodie.datasource.hive_sync.enable is false",
    }
    assert said[1:-1] == [f"{name}: nothing to do: {why}" for name, why in reasons.items()]
    idle = json.loads(health.read_text())["idle"]
    assert {one["service"]: one["why"] for one in idle} == reasons


def test_a_run_without_work_reports_the_reason(table: Path) -> None:
    document = run("services", "run", table, "--service", "archive").document
    assert document["requested_time"] is None
    assert document["why"] == "2 commits; it runs above 30 (hoodie.keep.max.commits)"
    people = run("services", "run", table, "--service", "logcompact", "-o", "table").out
    assert people == "logcompact: nothing to do: no file group needs it\n"


def test_a_clean_names_the_dead_write_that_it_rolled_back(table: Path) -> None:
    timeline = table / ".hoodie" / "timeline"
    dead = "20200101000000000"
    for ending in (".deltacommit.requested", ".deltacommit.inflight"):
        (timeline / f"{dead}{ending}").write_bytes(b"")
    lazy = ("--hoodie-conf", "hoodie.clean.failed.writes.policy=LAZY",
            "--hoodie-conf", "hoodie.write.concurrency.mode=OPTIMISTIC_CONCURRENCY_CONTROL",
            "--hoodie-conf", "hoodie.write.lock.provider=filesystem")  # fmt: skip
    document = run("services", "run", table, "--service", "clean", *lazy).document
    assert document["rolled_back"] == [dead]
    assert document["why"] == "all files are within the retention"
    assert not list(timeline.glob(f"{dead}.*"))
