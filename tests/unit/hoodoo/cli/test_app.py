"""The parts that all commands share: exit codes, help texts, completion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hoodoo.cli import invocation
from hoodoo.cli.app import main
from hoodoo.cli.invocation import exit_code
from timeline import errors
from timeline.errors import HoodooError, Reaction

ROOT = Path(__file__).parents[4]
EXPECTED = {
    "BudgetSpentError": 3,
    "ClaimConflictError": 3,
    "ConflictError": 3,
    "DuplicateKeyError": 3,
    "SchemaConflictError": 3,
    "ServiceConflictError": 3,
    "SnapshotExpiredError": 3,
    "TableChangedError": 3,
    "TableConfigConflictError": 3,
    "WriteConflictError": 3,
    "LockTimeoutError": 4,
    "OutcomeUnknownError": 6,
}


def tree() -> list[type[HoodooError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [kind for kind in found if isinstance(kind, type) and kind is not Reaction]


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code(kind: type[HoodooError]) -> None:
    assert exit_code(kind("message")) == EXPECTED.get(kind.__name__, 1)


def test_the_help_lists_each_exit_code() -> None:
    codes = {
        value for name, value in vars(invocation).items() if name.isupper() and type(value) is int
    }
    shown = CliRunner().invoke(main, ["--help"]).output.partition("Exit codes:")[2]
    listed = re.findall(r"(\d+)  [a-z]", shown.partition("Options:")[0])
    assert sorted(map(int, listed)) == sorted(codes)


def test_the_page_of_the_command_line_explains_each_exit_code() -> None:
    page = (ROOT / "docs/how-to/command-line.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2].partition("##")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [
        *range(7),
        invocation.INTERRUPTED,
    ]


def commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command of the command line with its words."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            one = command.get_command(click.Context(command), name)
            assert one is not None
            yield from commands(one, (*path, name))


def test_the_first_line_of_each_help_fits_a_list_of_80_columns() -> None:
    long = [
        path
        for path, command in commands()
        if path and not re.fullmatch(r"[A-Z].{,43}\.", command.get_short_help_str(200))
    ]
    assert long == []


def test_each_option_has_a_help_text() -> None:
    missing = [
        (*path, option.name)
        for path, command in commands()
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]
    assert missing == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_calls_this_command(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell]).output
    assert f"_HOODOO_COMPLETE={shell}_complete" in script


def completed(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the completions of bash for the last word."""
    monkeypatch.setenv("_HOODOO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    output = CliRunner().invoke(main, prog_name="hoodoo", standalone_mode=True).output
    return [line.partition(",")[2] for line in output.splitlines()]


def test_commands_and_options_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed("hoodoo re", monkeypatch) == ["read", "restore"]
    assert completed("hoodoo services ca", monkeypatch) == ["cancel"]
    assert "--as-of" in completed("hoodoo read --a", monkeypatch)


def single_value_options() -> list[tuple[str, ...]]:
    return [
        (*path, option.opts[0])
        for path, command in commands()
        for option in command.params
        if isinstance(option, click.Option) and not (option.is_flag or option.multiple)
        if path and not isinstance(command, click.Group)
    ]


@pytest.mark.parametrize("words", single_value_options(), ids=" ".join)
def test_a_repeated_option_is_refused_because_only_the_last_would_count(
    words: tuple[str, ...],
) -> None:
    *path, option = words
    given = CliRunner().invoke(main, [*path, option, "1", option, "2"])
    assert given.exit_code == 2
    assert f"{option} may be given once, not 2 times" in given.stderr
