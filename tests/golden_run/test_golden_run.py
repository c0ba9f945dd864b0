"""The files of fixed scenarios keep their bytes while the code that writes them changes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.golden_run import recorded


def test_files_of_every_step_have_the_recorded_bytes(tmp_path: Path) -> None:
    found = recorded.report(recorded.load(), recorded.run_elsewhere(tmp_path))
    if found:
        pytest.fail(found, pytrace=False)


def test_a_difference_names_the_step_the_file_and_the_way_to_record() -> None:
    before = recorded.load()
    now = copy.deepcopy(before)
    now["steps"]["cow 02 insert"][".hoodie/.hoodoo/table.json"] = "other"
    found = recorded.report(before, now)
    assert "[cow 02 insert] .hoodie/.hoodoo/table.json: recorded" in found
    assert recorded.RECORD in found
    assert "Other libraries" not in found
    now["libraries"]["pyarrow"] = "0.1"
    assert "'pyarrow': '0.1'" in recorded.report(before, now)
    assert recorded.report(before, before) == ""
