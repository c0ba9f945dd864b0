"""
The demonstration under other locks: only the properties file is another one.

The file is that of ``configs/`` with the address of a real server of this test appended;
writers, cleaner and comparison are the demonstration's own. Two months without Spark here,
the whole year by two PySpark jobs in the nightly tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hoodoo.demo.flights import ROWS
from hoodoo.demo.run import ready_properties
from tests.servers.dynamodb import TABLE, MotoServer, rows
from tests.servers.hivemetastore import HiveMetastore
from tests.servers.moto_server import ACCESS_KEY, SECRET_KEY
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_500), pytest.mark.xdist_group("busy")]

LOCK = "hoodie.write.lock."


@contextmanager
def zookeeper(folder: Path) -> Iterator[Mapping[str, str]]:
    with ZooKeeperServer(folder) as server:
        yield {LOCK + "zookeeper.url": server.address}


@contextmanager
def dynamodb(folder: Path) -> Iterator[Mapping[str, str]]:
    with MotoServer(folder) as server:
        yield {
            LOCK + "dynamodb.endpoint_url": server.url,
            LOCK + "dynamodb.table": TABLE,
            "hoodoo.lock.dynamodb.create.table": "true",
            "hoodie.aws.access.key": ACCESS_KEY,
            "hoodie.aws.secret.key": SECRET_KEY,
        }
        assert rows(server.url)  # the lock was there


@contextmanager
def hivemetastore(folder: Path) -> Iterator[Mapping[str, str]]:
    with HiveMetastore(folder, timeout_s=20) as server:
        yield {LOCK + "hivemetastore.uris": server.uri}


SERVERS = (zookeeper, dynamodb, hivemetastore)


def play(tmp_path: Path, server: Callable[[Path], Any], *more: str) -> dict[str, Any]:
    """Start the server, play under its lock, and check the invariants of every lock."""
    ready = ready_properties(f"multi_writer_{server.__name__}.properties")
    chosen = tmp_path / ready.name
    with server(tmp_path / "server") as address:
        lines = "".join(f"{key}={value}\n" for key, value in address.items())
        chosen.write_text(f"{ready.read_text(encoding='utf-8')}\n{lines}", encoding="utf-8")
        chosen.chmod(0o600)
        command = [
            *(sys.executable, "-m", "hoodoo.cli", "demo", "--path", str(tmp_path / "flights")),
            *("--props", str(chosen), "--output", "json", *more),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["ok"] is True
    assert document["verify"]["problems"] == []
    written = [each for each in document["timeline"] if each["action"] == "commit"]
    assert {each["application"] for each in written} == {"loader", "corrector"}
    # Every slot was taken under the lock: its tokens grow in the order of the slots.
    taken = sorted(
        (each["slot_number"], each["fencing_token"])
        for each in document["timeline"]
        if each["slot_number"] is not None
    )
    tokens = [token for _, token in taken]
    assert len(tokens) >= sum(not each["archived"] for each in written)
    assert None not in tokens
    assert tokens == sorted(set(tokens))
    return document


@pytest.mark.parametrize(
    "server",
    [zookeeper, *(pytest.param(each, marks=pytest.mark.slow) for each in SERVERS[1:])],
)
def test_the_lock_is_exchanged_by_the_properties_file_alone(
    tmp_path: Path, server: Callable[[Path], Any]
) -> None:
    play(tmp_path, server, "--engine", "local", "--half-months", "4")


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_two_spark_writers_lose_nothing_under_the_lock(
    tmp_path: Path, server: Callable[[Path], Any]
) -> None:
    document = play(tmp_path, server)
    assert document["rows"] == ROWS
    assert document["overlaps"] > 0
    assert document["refused_and_retried"] > 0
    cleaned = [each for each in document["timeline"] if each["action"] == "clean"]
    assert {each["application"] for each in cleaned} == {"cleaner"}
