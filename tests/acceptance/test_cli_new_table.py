"""A table that the command line makes: as it was said, and not at all where that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.cli import run

INSERT = ("--hoodie-conf", "hoodie.datasource.write.operation=insert")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("id,name\n1,ann\n1,bob\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("--key", ""), "no_key_fields"),
        (("--key", "", "--operation", "delete"), "no_key_fields"),
        (("--key", "id", "--batch-id", ""), "batch_id"),
        (("--key", "id", "--hoodie-conf", "hoodie.keep.max.commits=5"), "archive_range"),
    ],
)
def test_a_first_write_that_is_refused_leaves_no_table(
    tmp_path: Path, source: Path, words: tuple[str, ...], kind: str
) -> None:
    answer = run("write", tmp_path / "t", "--input", source, *words, "--output", "json")
    assert (answer.exit_code, answer.error["kind"]) == (1, kind)
    assert not (tmp_path / "t").exists()
    assert run("write", tmp_path / "t", "--input", source, "--key", "id").exit_code == 0


def test_the_first_rows_are_written_by_the_given_properties(tmp_path: Path, source: Path) -> None:
    words = ("write", tmp_path / "t", "--input", source, "--key", "id", *INSERT)
    assert run(*words, "--dry-run").document["operation"] == "insert"
    assert run(*words).document["operation"] == "insert"
    assert run("read", tmp_path / "t").rows == [{"id": 1, "name": "ann"}, {"id": 1, "name": "bob"}]


def test_an_overwrite_needs_confirmation_only_where_rows_may_exist(
    tmp_path: Path, source: Path
) -> None:
    words = ("write", tmp_path / "t", "--input", source, "--operation", "insert_overwrite")
    assert run(*words, "--key", "id").exit_code == 0
    assert run(*words, "--output", "json").error["kind"] == "not_confirmed"


@pytest.mark.parametrize("dry", [("--dry-run",), ()])
def test_a_dry_run_refuses_the_same_input_as_the_creation(
    tmp_path: Path, source: Path, dry: tuple[str, ...]
) -> None:
    words = ("table", "create", tmp_path / "t", "--schema-from", source, *dry, "--output", "json")
    assert run(*words, "--key", "code").error["kind"] == "missing_key_column"
    assert not (tmp_path / "t").exists()
    run("write", tmp_path / "t", "--input", source, "--key", "id")
    assert run(*words, "--key", "id").error["kind"] == "table_exists"
