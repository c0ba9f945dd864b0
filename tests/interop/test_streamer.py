"""
The checkpoint of a streamer, by turns with Java Hudi.

Maven has no bundle with HoodieStreamer for Hudi 1.x. So these tests use its parts that the bundle
of Spark has: the class that finds a checkpoint in a commit, the class that makes its entries, and
the writer that commits them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.streamer.run import Streamer
from tests.interop.java import WORK, JavaOracle, _surroundings, set_up

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("streamer_checkpoints.py")
SCHEMA = "id bigint, v string"


def java(*words: str) -> dict[str, Any]:
    """Ask the program one question, in a JVM of its own."""
    python = set_up("1.2.0")
    [jar] = (WORK / "jars").glob("hudi-spark3.5-bundle_2.12-1.2.0.jar")
    done = subprocess.run(
        [str(python), str(PROGRAM), str(jar), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=_surroundings(),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def put(folder: Path, number: int) -> None:
    path = folder / "in" / f"{number}.json"
    path.write_text(json.dumps({"id": number, "v": f"row {number}"}))
    os.utime(path, (1_000 * number, 1_000 * number))


def stream(folder: Path, **more: str) -> int:
    options = {
        "hoodie.streamer.ingestion.targetBasePath": str(folder / "t"),
        "hoodie.streamer.source.dfs.root": str(folder / "in"),
        "hoodoo.streamer.source.class": "JsonDFSSource",
        "hoodie.datasource.write.recordkey.field": "id",
        **{f"hoodoo.streamer.{key}": value for key, value in more.items()},
    }
    with Streamer(options) as streamer:
        return streamer.run().rows


def java_commits(oracle: JavaOracle, folder: Path, number: int, entries: Mapping[str, str]) -> None:
    """Let Java commit a row with the texts of its streamer, as HoodieStreamer does."""
    conf = {"hoodie.datasource.write.commitmeta.key.prefix": "streamer.", **entries}
    conf |= {"hoodie.metadata.enable": "false"}
    oracle.write(folder / "t", [{"id": number, "v": f"row {number}"}], schema=SCHEMA, conf=conf)


def test_java_finds_our_checkpoint_and_we_go_on_from_its(
    tmp_path: Path, java_oracle: Callable[..., JavaOracle]
) -> None:
    (tmp_path / "in").mkdir()
    put(tmp_path, 1)
    assert stream(tmp_path) == 1
    with hoodoo.open_table(tmp_path / "t") as table:
        table.upsert([{"id": 100, "v": "of another writer"}])
    ours = java("read", str(tmp_path / "t"))
    assert ours == {"class": "StreamerCheckpointV2", "checkpoint": "1000000", "reset": None}
    # Java's streamer reads file 2 from there on, and commits it with its entries.
    put(tmp_path, 2)
    oracle = java_oracle()
    java_commits(oracle, tmp_path, 2, java("entries", "2000000"))
    assert java("read", str(tmp_path / "t"))["checkpoint"] == "2000000"
    put(tmp_path, 3)
    assert stream(tmp_path) == 1  # file 3 only
    # A wish of ours is one that Java knows as fulfilled, and the other way round.
    assert stream(tmp_path, checkpoint="1000000") == 2
    found = java("read", str(tmp_path / "t"))
    assert found == {"class": "StreamerCheckpointV2", "checkpoint": "3000000", "reset": "1000000"}
    java_commits(oracle, tmp_path, 4, java("entries", "4000000", "2000000"))
    assert stream(tmp_path, checkpoint="2000000") == 0
    rows = oracle.read(tmp_path / "t", meta=False)
    assert [row["id"] for row in sorted(rows, key=lambda row: row["id"])] == [1, 2, 3, 4, 100]
