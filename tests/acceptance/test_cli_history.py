"""``hoodoo table verify --history`` with journals: findings for scripts, and exit code 5."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.cli import run, table_with_rows
from tests.history_lines import write_line


def test_a_write_that_a_journal_knows_and_the_table_does_not_is_a_finding(tmp_path: Path) -> None:
    table = table_with_rows(tmp_path)
    journal = tmp_path / "client.jsonl"
    instant = run("timeline", "show", table).document["instants"][0]["requested_time"]
    journal.write_text(write_line("one", "ok", ["1"], instant=instant))
    assert run("table", "verify", table, journal, "--history").exit_code == 0
    journal.write_text(write_line("one", "ok", ["1"], instant="20200101000000000"))
    answer = run("table", "verify", table, journal, "--history")
    assert answer.exit_code == 5
    [problem] = answer.document["problems"]
    assert problem["kind"] == "lost_update"
    assert "20200101000000000 was answered ok" in problem["message"]


def test_journals_need_the_option_history(tmp_path: Path) -> None:
    table = table_with_rows(tmp_path)
    assert run("table", "verify", table, __file__).exit_code == 2
