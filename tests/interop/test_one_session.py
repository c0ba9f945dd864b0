"""
Hudi's bundle and hoodoo in one Spark session, and in two, on one table.

Both write copy-on-write batches under one ZooKeeper lock, with the metadata table on: by turns, then
at once. ``HOODOO_SESSION_COMMITS`` is the number of commits of each test; the issue's is 100.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.interop.java import BUNDLE, set_up_both
from tests.servers.zookeeper import ZooKeeperServer

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "oracles" / "one_session.py"
COMMITS, COMMITS_NIGHTLY = 12, 100
ROWS = 20  # of one batch; half of them are keys that both sides write


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[str]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server.address


@pytest.fixture(scope="module")
def python() -> Path:
    return set_up_both()


@pytest.mark.jvm
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("turns", marks=pytest.mark.slow),
        "at-once",
        pytest.param("two-sessions", marks=pytest.mark.slow),
    ],
)
def test_rows_are_exact_if_the_bundle_and_hoodoo_write_one_table(
    python: Path, tmp_path: Path, lock: str, nightly: bool, how: str
) -> None:
    usual = COMMITS_NIGHTLY if nightly else COMMITS
    commits = int(os.environ.get("HOODOO_SESSION_COMMITS", usual))
    table = tmp_path / "table"

    def started(sides: str, begin: str) -> subprocess.Popen[str]:
        task = {
            "table": str(table),
            "jar": str(BUNDLE),
            "zookeeper": lock,
            "commits": commits,
            "rows": ROWS,
            "sides": sides,
            "begin": begin,
        }
        return subprocess.Popen(
            [python, SCRIPT, json.dumps(task)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)},
            stdout=subprocess.PIPE,
            text=True,
        )

    if how == "two-sessions":
        running = [started("java", "makes"), started("ours", "waits")]
    else:
        running = [started(how, "makes")]
    outputs = [one.communicate()[0] for one in running]
    assert [one.returncode for one in running] == [0] * len(running), outputs
    written = [one for output in outputs for one in json.loads(output.splitlines()[-1])]
    print({side: sum(one["side"] == side for one in written) for side in ("java", "ours")})
    assert len(written) == commits

    with hoodoo.open_table(table) as opened:
        found = opened.to_arrow(columns=["id", "side", "number"]).to_pylist()
        assert opened.metadata.verify() == ()
    own = {(f"{one['side']}-{one['number']}-{i}", one["side"], one["number"])
           for one in written for i in range(ROWS // 2)}  # fmt: skip
    shared = {(row["id"], row["side"], row["number"]) for row in found if row["id"][:6] == "shared"}
    assert {tuple(row.values()) for row in found} == own | shared
    assert len(found) == len(own) + ROWS // 2
    # A batch is one commit: its shared rows are all there, or all replaced by the last one.
    assert {row[1:] for row in shared} == {(written[-1]["side"], written[-1]["number"])} or (
        how != "turns" and len({row[1:] for row in shared}) == 1
    )
    assert verify_at(table, Layers()).problems == ()
