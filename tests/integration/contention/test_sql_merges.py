"""
Two Spark sessions run MERGE on the same rows at once, at each isolation level.

Some statements add one to rows, so that the number of commits shows a lost update. Others set a row
to the sum of all rows. At ``serializable`` the table has the rows of a replay in the order of the
commit log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tests.integration.contention import merges
from tests.integration.contention.merges import KEYS
from timeline.rules.isolation import Isolation

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.xdist_group("busy"),
]

STATEMENTS = 100 if os.environ.get("HOODOO_NIGHTLY") else 4
SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.int64())])
PROPERTIES = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.write.num.retries.on.conflict.failures": "100",
}


@pytest.mark.timeout(2_400)
def test_no_update_of_two_sessions_that_merge_at_once_is_lost(tmp_path: Path) -> None:
    tables = {level.value: str(tmp_path / level.value) for level in Isolation}
    for path in tables.values():
        with hoodoo.create_table(
            path, schema=SCHEMA, record_key="id", properties=PROPERTIES
        ) as one:
            one.insert(pa.table({"id": range(KEYS), "v": [0] * KEYS}, SCHEMA))
    sessions = [started(name, tables) for name in ("first", "second")]
    try:
        for each in sessions:
            assert lines(each) == "ready\n"
        for level, path in tables.items():
            for each in sessions:
                print("go", file=each.stdin, flush=True)
            commits = sorted(one for each in sessions for one in json.loads(lines(each)))
            check(level, Path(path), commits)
    finally:
        for each in sessions:
            each.kill()
            each.communicate()


def started(name: str, tables: dict[str, str]) -> subprocess.Popen[str]:
    task = {
        "name": name,
        "tables": tables,
        "properties": PROPERTIES,
        "statements": STATEMENTS,
        "first": 1_000 if name == "first" else 2_000,
    }
    return subprocess.Popen(
        [sys.executable, "-m", merges.__name__, json.dumps(task)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines(session: subprocess.Popen[str]) -> str:
    assert session.stdout is not None
    line = session.stdout.readline()
    if not line:
        pytest.fail(f"a session ended with {session.wait()}")
    return line


def check(level: str, path: Path, commits: list[list[Any]]) -> None:
    assert len(commits) == 2 * STATEMENTS
    with hoodoo.open_table(path) as table:
        found = dict(
            zip(*(table.to_arrow()[name].to_pylist() for name in ("id", "v")), strict=True)
        )
    expected = dict.fromkeys(range(KEYS), 0)
    for _, kind, keys in commits:
        total = sum(expected[key] for key in range(KEYS)) % 1009
        for key in keys:
            expected[key] = total if kind == "total" else expected.get(key, 0) + 1
    assert found.keys() == expected.keys()
    if level == Isolation.SERIALIZABLE.value:
        assert found == expected
    last_total = {key: at for at, kind, keys in commits if kind == "total" for key in keys}
    for key in range(KEYS):
        adds = [at for at, kind, keys in commits if kind == "add" and key in keys]
        if key not in last_total:
            assert found[key] == len(adds)
        else:  # all later ones were added to it
            assert found[key] >= sum(at > last_total[key] for at in adds)
    verified = verify_at(path, Layers(), history=level == Isolation.SERIALIZABLE.value)
    assert verified.problems == ()
