"""
The arenas: each lock provider on a real server, together with the bare client of that server.

The servers are those of the tests, started from packages alone and kept until the end. Both
sides use the same server and different locks, so that neither ever waits for the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from lockproviders.registry import ProviderRegistry
from tests.servers.dynamodb import TABLE, DynaliteServer, create_table, lock_properties
from tests.servers.hivemetastore import (
    DATABASE,
    PASSWORD,
    USER,
    HiveMetastore,
    lay_out_lock_tables,
)
from tests.servers.mariadb import MariaDb, needs_mariadb
from tests.servers.moto_server import REGION, MotoServer
from tests.servers.s3 import BUCKET, S3Server, s3_properties
from tests.servers.zookeeper import ZooKeeperServer

ADDRESS = "s3://lake/flights"
LEASE_S = 60  # longer than any game: renewals are no part of it
SQL_DATABASE = "locks"
Spec = Mapping[str, Any]


class ArenaError(Exception):
    """An arena that cannot be set up here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """
    One provider against one bare client.

    Args:
        name: For the report.
        provider: Ours.
        bare: The bare client's, in ``bare.BARE``.
        port: The server's, None without a wire.
        properties: Ours, by port.
        further: Of the bare client.
        address: The table.
        folder: The table's, when it is local.
        threads: Contenders are threads of one process.
        java: The Java lock oracle's name of it, empty if Java has no such lock.
    """

    name: str
    provider: str
    bare: str
    port: int | None = None
    properties: Callable[[int], Mapping[str, str]] = lambda _: {}
    further: Mapping[str, Any]
    address: str = ADDRESS
    folder: str | None = None
    threads: bool = False
    java: str = ""

    def specs(self, port: int | None = None) -> dict[str, Spec]:
        """The specification of a contender for each side; through another port when it is named."""
        entry = ProviderRegistry().find(self.provider)
        chosen = port or self.port or 0
        ours = {
            "kind": "ours",
            "provider": self.provider,
            "properties": dict(self.properties(chosen)),
            "address": self.address,
            "folder": self.folder,
        }
        bare = {
            "kind": self.bare,
            "port": chosen,
            "poll_first_ms": entry.poll_first_ms,
            "poll_max_ms": entry.poll_max_ms,
            **self.further,
        }
        return {"ours": ours, "bare": bare}


class Servers:
    """The servers, each started when an arena first needs it; closed with ``stack``."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    @cached_property
    def zookeeper(self) -> ZooKeeperServer:
        return self._stack.enter_context(ZooKeeperServer(self.folder / "zookeeper"))

    @cached_property
    def dynamodb(self) -> tuple[str, int]:
        """dynalite where it can be installed, else moto."""
        try:
            server: Any = self._stack.enter_context(DynaliteServer(self.folder / "dynalite"))
            name = "dynalite"
        except pytest.skip.Exception:
            server = self._stack.enter_context(MotoServer(self.folder / "moto"))
            name = "moto"
        create_table(server.url)
        return name, server.port

    @cached_property
    def s3(self) -> S3Server:
        return self._stack.enter_context(S3Server(self.folder / "s3"))

    @cached_property
    def metastore(self) -> HiveMetastore:
        # Ten connections to its database, the default, are fewer than sixteen contenders hold.
        server = HiveMetastore(
            self.folder / "metastore",
            timeout_s=LEASE_S,
            settings={"datanucleus.connectionPool.maxPoolSize": "64"},
        )
        return self._stack.enter_context(server)

    @cached_property
    def mariadb(self) -> MariaDb:
        needs_mariadb()
        server = self._stack.enter_context(MariaDb(self.folder / "mariadb"))
        lay_out_lock_tables(server)
        server.create_database(SQL_DATABASE, user=USER, password=PASSWORD)
        return server


def _filesystem(servers: Servers) -> Arena:
    folder = servers.folder / "table"
    folder.mkdir()
    return Arena(
        name="filesystem",
        provider="filesystem",
        bare="portalocker",
        further={"path": str(folder / "bare.lock")},
        address=folder.as_uri(),
        folder=str(folder),
    )


def _in_process(_: Servers) -> Arena:
    return Arena(
        name="in_process",
        provider="in_process",
        bare="threading.Lock",
        further={"key": "bare"},
        threads=True,
    )


def _zookeeper(servers: Servers) -> Arena:
    prefix = "hoodie.write.lock.zookeeper."
    return Arena(
        name="zookeeper",
        provider="zookeeper",
        bare="kazoo's recipe",
        port=servers.zookeeper.port,
        properties=lambda port: {
            prefix + "url": f"127.0.0.1:{port}",
            prefix + "base_path": "/bench",
            prefix + "lock_key": "ours",
        },
        further={},
        java="zookeeper",
    )


def _dynamodb(servers: Servers) -> Arena:
    name, server_port = servers.dynamodb
    return Arena(
        name=f"dynamodb ({name})",
        provider="dynamodb",
        bare="boto3",
        port=server_port,
        properties=lambda port: lock_properties(
            f"http://127.0.0.1:{port}", "ours", lease_ms=LEASE_S * 1000
        ),
        further={"table": TABLE, "region": REGION},
        java="dynamodb",
    )


def _hivemetastore(servers: Servers) -> Arena:
    prefix = "hoodie.write.lock.hivemetastore."
    return Arena(
        name="hivemetastore (Derby)",
        provider="hivemetastore",
        bare="thrift",
        port=servers.metastore.port,
        properties=lambda port: {
            prefix + "uris": f"thrift://127.0.0.1:{port}",
            prefix + "database": "default",
            prefix + "table": "ours",
        },
        further={},
        java="hms",
    )


def _hivemetastore_database(servers: Servers) -> Arena:
    prefix = "hoodoo.lock.hivemetastore_database."
    return Arena(
        name="hivemetastore_database (MariaDB)",
        provider="hivemetastore_database",
        bare="pymysql, metastore tables",
        port=servers.mariadb.port,
        properties=lambda port: {
            "hoodie.write.lock.hivemetastore.database": "default",
            "hoodie.write.lock.hivemetastore.table": "ours",
            prefix + "url": f"mysql://127.0.0.1:{port}/{DATABASE}",
            prefix + "user": USER,
            prefix + "password": PASSWORD,
            prefix + "lease.ms": str(LEASE_S * 1000),
        },
        further={"database": DATABASE, "user": USER, "password": PASSWORD},
    )


def _storage_based(servers: Servers) -> Arena:
    return Arena(
        name="storage_based (S3, moto)",
        provider="storage_based",
        bare="obstore",
        port=servers.s3.port,
        properties=lambda port: s3_properties(f"http://127.0.0.1:{port}"),
        further={"bucket": BUCKET, "region": REGION},
        address=f"s3://{BUCKET}/flights",
        java="storage",
    )


def _sql_sqlite(servers: Servers) -> Arena:
    path = servers.folder / "locks.db"
    return Arena(
        name="sql (SQLite)",
        provider="sql",
        bare="sqlite3",
        properties=lambda _: {
            "hoodoo.lock.sql.url": str(path),
            "hoodoo.lock.sql.create_table": "true",
        },
        further={"path": str(path)},
    )


def _sql_mariadb(servers: Servers) -> Arena:
    prefix = "hoodoo.lock.sql."
    return Arena(
        name="sql (MariaDB)",
        provider="sql",
        bare="pymysql",
        port=servers.mariadb.port,
        properties=lambda port: {
            prefix + "url": f"mysql://127.0.0.1:{port}/{SQL_DATABASE}",
            prefix + "user": USER,
            prefix + "password": PASSWORD,
            prefix + "create_table": "true",
        },
        further={"database": SQL_DATABASE, "user": USER, "password": PASSWORD},
    )


_MAKERS: Mapping[str, Callable[[Servers], Arena]] = {
    "filesystem": _filesystem,
    "in_process": _in_process,
    "zookeeper": _zookeeper,
    "dynamodb": _dynamodb,
    "hivemetastore": _hivemetastore,
    "hivemetastore_database": _hivemetastore_database,
    "storage_based": _storage_based,
    "sql_sqlite": _sql_sqlite,
    "sql_mariadb": _sql_mariadb,
}
ARENAS = tuple(_MAKERS)


def set_up(name: str, servers: Servers) -> Arena:
    """
    The arena of a name, its server running.

    Raises:
        ArenaError: The server cannot be had or did not start.
    """
    try:
        return _MAKERS[name](servers)
    except (pytest.skip.Exception, pytest.fail.Exception, OSError, RuntimeError) as error:
        raise ArenaError(str(error).splitlines()[0]) from error
