"""The database servers that more than one suite runs on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.mariadb import MariaDb, needs_mariadb
from tests.servers.postgres import Postgres, memory_folder, needs_postgres


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    needs_mariadb()
    with (
        tempfile.TemporaryDirectory(prefix="mdb", dir=memory_folder()) as folder,
        MariaDb(Path(folder)) as server,
    ):
        server.create_database("locks", user="lock", password="geheim")
        server.url = f"mysql://lock:geheim@{server.host}:{server.port}/locks"
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    needs_postgres()
    with Postgres() as server:
        yield server
