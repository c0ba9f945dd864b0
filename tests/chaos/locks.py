"""
The locks of a chaos run: a real server each, and a wire before it that loses messages.

Leases are seconds here, so that a process can be stopped for longer than one while another
waits for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.servers.proxy import FaultProxy

LEASE_MS = 4_000
_KEY = "hoodie.write.lock."
_PASSWORD = "chaos-secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSide:
    """
    One provider, ready to use.

    Args:
        properties: Of a table with a name.
        lease_ms: Silence in ms after which a holder loses the lock.
        proxy: The wire, None without a server.
        restart: Kills the server and starts it again on its data; None if it has none.
        address: Address of a table with a name; None for a folder of the run.
    """

    properties: Callable[[str], dict[str, str]]
    lease_ms: int = LEASE_MS
    proxy: FaultProxy | None = None
    restart: Callable[[], None] | None = None
    address: Callable[[str], str] | None = None


@contextmanager
def _filesystem(_: Path) -> Iterator[LockSide]:
    yield LockSide(properties=lambda _name: {f"{_KEY}provider": "filesystem"}, lease_ms=0)


@contextmanager
def _zookeeper(folder: Path) -> Iterator[LockSide]:
    from tests.servers.zookeeper import ZooKeeperServer

    with ZooKeeperServer(folder) as server, FaultProxy(server.port) as proxy:

        def properties(name: str) -> dict[str, str]:
            return {
                f"{_KEY}provider": "zookeeper",
                f"{_KEY}zookeeper.url": proxy.address,
                f"{_KEY}zookeeper.base_path": "/chaos/locks",
                f"{_KEY}zookeeper.lock_key": name,
                f"{_KEY}zookeeper.session_timeout_ms": str(LEASE_MS),
                f"{_KEY}zookeeper.connection_timeout_ms": str(LEASE_MS),
            }

        yield LockSide(properties=properties, proxy=proxy, restart=_restart(server))


@contextmanager
def _dynamodb(folder: Path) -> Iterator[LockSide]:
    from tests.servers.dynamodb import DynaliteServer, create_table, lock_properties

    with DynaliteServer(folder) as server, FaultProxy(server.port) as proxy:
        create_table(server.url)

        def properties(name: str) -> dict[str, str]:
            return lock_properties(f"http://{proxy.address}", name, lease_ms=LEASE_MS)

        yield LockSide(properties=properties, proxy=proxy, restart=_restart(server))


@contextmanager
def _hivemetastore(folder: Path) -> Iterator[LockSide]:
    from tests.servers.hivemetastore import HiveMetastore

    seconds = 6
    # More connections to its database than contenders, as docs/locks/hivemetastore.md asks.
    pool = {"datanucleus.connectionPool.maxPoolSize": "64"}
    metastore = HiveMetastore(folder, timeout_s=seconds, settings=pool)
    with metastore as server, FaultProxy(server.port) as proxy:

        def properties(name: str) -> dict[str, str]:
            return {
                f"{_KEY}provider": "hivemetastore",
                f"{_KEY}hivemetastore.uris": f"thrift://{proxy.address}",
                f"{_KEY}hivemetastore.database": "default",
                f"{_KEY}hivemetastore.table": name,
                "hoodoo.lock.hivemetastore.lease.ms": str(seconds * 1_000),
                f"{_KEY}heartbeat_interval_ms": "1000",
            }

        yield LockSide(
            properties=properties,
            lease_ms=seconds * 1_000,
            proxy=proxy,
            restart=_restart(server),
        )


@contextmanager
def _postgresql(_: Path) -> Iterator[LockSide]:
    from tests.servers.postgres import Postgres, needs_postgres

    needs_postgres()
    with Postgres() as server, FaultProxy(server.port) as proxy:
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        yield LockSide(properties=_sql(url), proxy=proxy, restart=_restart(server))


@contextmanager
def _mariadb(folder: Path) -> Iterator[LockSide]:
    from tests.servers.mariadb import MariaDb, needs_mariadb

    needs_mariadb()
    with MariaDb(folder) as server, FaultProxy(server.port) as proxy:
        server.create_database("chaos", user="chaos", password=_PASSWORD)
        url = f"mysql://chaos:{_PASSWORD}@{proxy.address}/chaos"
        yield LockSide(properties=_sql(url), proxy=proxy, restart=_restart(server))


@contextmanager
def _storage_based(_: Path) -> Iterator[LockSide]:
    """
    Tables and locks are in one object store, whose wire loses both; it keeps nothing on disk.

    It is the store of the benchmarks, whose conditions ``tests/conformance`` proves atomic. moto takes
    3 ms of processor time a request, so fourteen processes would wait for it alone.
    """
    from benchmarks.farstore.client import BUCKET, FarStore
    from tests.servers.s3 import s3_properties

    seconds = 10
    with FarStore(0) as server, FaultProxy(urlsplit(server.url).port or 0) as proxy:

        def properties(_: str) -> dict[str, str]:
            return {
                **s3_properties(f"http://{proxy.address}"),
                f"{_KEY}provider": "storage_based",
                f"{_KEY}storage.validity.timeout.secs": str(seconds),
                f"{_KEY}storage.renew.interval.secs": "1",
            }

        yield LockSide(
            properties=properties,
            lease_ms=seconds * 1_000,
            proxy=proxy,
            address=lambda name: f"s3://{BUCKET}/{name}",
        )


def _sql(url: str) -> Callable[[str], dict[str, str]]:
    def properties(name: str) -> dict[str, str]:
        return {
            f"{_KEY}provider": "sql",
            "hoodoo.lock.sql.url": url,
            "hoodoo.lock.sql.key": name,
            "hoodoo.lock.sql.create_table": "true",
            "hoodoo.lock.sql.lease.ms": str(LEASE_MS),
            "hoodoo.lock.sql.timeout.ms": str(LEASE_MS // 4),
        }

    return properties


def _restart(server: Any) -> Callable[[], None]:
    def restart() -> None:
        server.kill()
        server.restart()

    return restart


#: By name: a function from a folder of its own to the lock, for the duration of the block.
LOCKS: Mapping[str, Callable[[Path], AbstractContextManager[LockSide]]] = {
    "filesystem": _filesystem,
    "zookeeper": _zookeeper,
    "dynamodb": _dynamodb,
    "hivemetastore": _hivemetastore,
    "postgresql": _postgresql,
    "mariadb": _mariadb,
    "storage_based": _storage_based,
}
