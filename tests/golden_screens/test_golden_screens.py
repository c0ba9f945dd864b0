"""Each command prints the committed screen for a person at 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_screens import screens


def test_each_command_prints_the_committed_screen(tmp_path: Path) -> None:
    found = screens.difference(screens.run_elsewhere(tmp_path))
    if found:
        pytest.fail(found, pytrace=False)


def test_no_screen_is_wider_than_80_columns() -> None:
    lines = screens.RECORDED.read_text(encoding="utf-8").splitlines()
    exempt = ("$ ", "error: ", "file:")  # the typed line, and lines of standard error
    wide = [line for line in lines if len(line) > screens.WIDTH and not line.startswith(exempt)]
    assert wide == []
