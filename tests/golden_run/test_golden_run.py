"""The files of a fixed scenario keep their bytes, whatever happens to the code that writes them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.golden_run import recorded


def test_files_of_every_step_have_the_recorded_bytes(tmp_path: Path) -> None:
    told = recorded.report(recorded.load(), recorded.run_elsewhere(tmp_path))
    if told:
        pytest.fail(told, pytrace=False)


def test_a_difference_names_the_step_the_file_and_the_way_to_record() -> None:
    before = recorded.load()
    now = copy.deepcopy(before)
    now["steps"]["cow 02 insert"][".hoodie/.hoodoo/table.json"] = "other"
    told = recorded.report(before, now)
    assert "[cow 02 insert] .hoodie/.hoodoo/table.json: recorded" in told
    assert recorded.RECORD in told
    assert "that alone changes" not in told
    now["libraries"]["pyarrow"] = "0.1"
    assert "'pyarrow': '0.1'" in recorded.report(before, now)
    assert recorded.report(before, before) == ""
