"""Dataframe tools read a merge-on-read table unmodified, time travel included."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("HOODOO_FRAMES", ROOT / ".venv-frames")) / "bin" / "python"
SCHEMA = pa.schema(
    [("id", pa.string()), ("day", pa.string()), ("v", pa.int64()), ("big", pa.string())]
)
#: The tools that take the Arrow stream: they read every column of every row, and filter then.
STREAMS = ("pandas", "polars", "duckdb", "datafusion", "daft", "ibis", "pyarrow")
#: The ways that push columns and filter down into the scan.
PUSHED = (
    "pandas_method",
    "polars_method",
    "polars_lazy",
    "duckdb_method",
    "datafusion_dataset",
    "pyarrow_dataset",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("table") / "t"
    with hoodoo.create_table(
        path, schema=SCHEMA, record_key="id", partition_by="day", table_type="MERGE_ON_READ"
    ) as table:
        first = table.upsert(
            [{"id": str(n), "day": "ab"[n // 5], "v": n, "big": "x"} for n in range(10)]
        )
        table.upsert([{"id": "7", "day": "b", "v": 77, "big": "x"}])
        table.delete([{"id": "9", "day": "b"}])
        assert any(one.log_files for one in table.file_slices())
    return path, first.requested_time


def answer(tool: str, path: Path, *instant: str) -> dict[str, Any]:
    script = Path(__file__).with_name("tools.py")
    run = subprocess.run(
        [PYTHON, script, tool, str(path), *instant],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    print(tool, found["version"])
    return found


@pytest.mark.parametrize("tool", [*STREAMS, *PUSHED])
def test_a_tool_reads_the_rows_of_the_table_now_and_as_of_an_instant(
    written: tuple[Path, str], tool: str
) -> None:
    path, first = written
    now = answer(tool, path)
    assert now["rows"] == [{"id": "6", "v": 6}, {"id": "7", "v": 77}, {"id": "8", "v": 8}]
    then = answer(tool, path, first)
    assert then["rows"] == [{"id": str(n), "v": n} for n in (6, 7, 8, 9)]
    if tool in PUSHED:
        for columns, partitions in now["scans"]:
            assert partitions == ["b"]
            assert "big" not in columns
