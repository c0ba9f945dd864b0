"""Table services on the command line: planned here, carried out there, cancelled by hand."""

from __future__ import annotations

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


def test_a_dry_run_tells_what_would_be_compacted(table: Path) -> None:
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
    assert health.read_text() == '{"rounds": 1, "receipts": 1, "failures": 0}'
    assert rows(table) == [(1, "ann"), (2, "bo"), (3, "eve")]
    assert run("table", "verify", table).exit_code == 0


def test_one_round_compacts_now(table: Path) -> None:
    done = run("services", "run", table, "--service", "compact").document
    assert done["completion_time"] > done["requested_time"]
    assert rows(table) == [(1, "ann"), (2, "bo"), (3, "eve")]


def test_a_plan_is_cancelled_and_can_be_made_again(table: Path) -> None:
    planned = run("services", "plan", table).document["requested_time"]
    asked = run("services", "cancel", table, planned, "--output", "json")
    assert (asked.exit_code, asked.error["kind"]) == (1, "not_confirmed")
    assert run("services", "cancel", table, planned, "--yes").document["cancelled"] == planned
    gone = run("services", "cancel", table, planned, "--yes", "--output", "json")
    assert gone.error["kind"] == "plan_unknown"
    assert run("explain", table, planned, "--output", "json").document["state"] == "cancelled"
    again = run("services", "plan", table).document["requested_time"]
    done = run("services", "run", table, "--instant", again).document
    assert done["requested_time"] == again
    assert rows(table) == [(1, "ann"), (2, "bo"), (3, "eve")]


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


def test_a_writer_only_plans_inline_when_told_so(table: Path) -> None:
    source = table.parent / "more.csv"
    source.write_text("id,name,amount,day,version\n3,ev,9,2013-01-02,3\n", encoding="utf-8")
    answer = run("write", table, "--input", source,
                 "--hoodie-conf", "hoodie.compact.schedule.inline=true",
                 "--hoodie-conf", "hoodie.compact.inline.max.delta.commits=2")  # fmt: skip
    assert answer.exit_code == 0
    [pending] = sorted((table / ".hoodie" / "timeline").glob("*.compaction.*"))
    assert pending.name.endswith(".compaction.requested")
