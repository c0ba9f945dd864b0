"""The oracle itself is tested first: Java Hudi must read a golden table as it once wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop import golden_tables
from tests.interop.java import JavaOracle, JavaRefusedError

pytestmark = pytest.mark.jvm


@pytest.mark.parametrize(
    ("version", "name"), [("1.2.0", "v9_cow_part"), ("1.0.2", "v8_cow_nonpart")]
)
def test_java_reads_its_own_golden_table(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, version: str, name: str
) -> None:
    table = golden_tables.unpack(name, tmp_path)
    expected = golden_tables.account(name)
    oracle = java_oracle(version)
    assert _comparable(oracle.read(table)) == _comparable(expected["snapshot"])
    assert oracle.timeline(table) == [i for i in expected["timeline"] if not i.get("archived")]


def test_java_refuses_a_path_that_is_no_table(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    with pytest.raises(JavaRefusedError, match=r"TableNotFound"):
        java_oracle("1.2.0").read(tmp_path)


def _comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Golden accounts leave the sequence number out."""
    kept = [{k: v for k, v in row.items() if k != "_hoodie_commit_seqno"} for row in rows]
    return sorted(kept, key=lambda row: json.dumps(row, sort_keys=True))
