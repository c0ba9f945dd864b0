"""
Two independent servers that speak DynamoDB: moto behind a mutex, and dynalite.

Neither is the real one, so the lock relies on behaviour that both share. moto
is one of the test requirements. dynalite is installed from npm into ``.work`` when first
needed, at one fixed version, and keeps its tables on disk, so that it can be restarted.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lockproviders.dynamodb.client import DynamoClient
from lockproviders.dynamodb.connection import BotoTransport
from lockproviders.dynamodb.settings import DynamoSettings
from tests.servers import server_missing
from tests.servers.moto_server import (
    ACCESS_KEY,
    HOST,
    REGION,
    SECRET_KEY,
    ChildServer,
    MotoServer,
)
from timeline.system import SystemClock, SystemIds

__all__ = [
    "TABLE",
    "ChildServer",
    "DynaliteServer",
    "MotoServer",
    "boto_client",
    "client_of",
    "create_table",
    "lock_properties",
    "rows",
]

TABLE = "hudi_locks"
DYNALITE = "dynalite@4.0.0"
STAY_ALIVE = Path(__file__).with_name("dynalite_lives.cjs")
INSTALL_SECONDS_MAX = 240
ROOT = Path(__file__).resolve().parents[2]


class DynaliteServer(ChildServer):
    """dynalite with its tables in the folder; up in a fraction of a second."""

    def __init__(self, folder: Path, *, port: int | None = None, create_ms: int = 0) -> None:
        super().__init__(folder, port=port)
        self._create_ms = create_ms

    def command(self) -> Sequence[str]:
        return [
            *("node", "--require", str(STAY_ALIVE), str(dynalite())),
            *("--host", HOST, "--port", str(self.port)),
            *("--path", str(self.folder / "tables"), "--createTableMs", str(self._create_ms)),
        ]


def dynalite() -> Path:
    """The installed program; skips the test where it cannot be installed."""
    place = ROOT / ".work" / "dynalite"
    program = place / "node_modules" / ".bin" / "dynalite"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "install.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not program.exists():
            npm = shutil.which("npm")
            if npm is None:
                server_missing("dynalite needs node and npm, install them from the distribution")
            command = [npm, "install", "--no-audit", "--no-fund", "--silent", DYNALITE]
            done = subprocess.run(  # noqa: PLW1510  the code is looked at below
                command, cwd=place, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX
            )
            if done.returncode != 0:
                server_missing(f"dynalite could not be installed: {done.stderr[-300:]}")
    return program


def lock_properties(url: str, key: str, *, lease_ms: int, **further: str) -> dict[str, str]:
    """The properties of a lock on a server."""
    prefix = "hoodie.write.lock."
    return {
        prefix + "provider": "dynamodb",
        prefix + "wait_time_ms": str(lease_ms),
        prefix + "dynamodb.table": TABLE,
        prefix + "dynamodb.partition_key": key,
        prefix + "dynamodb.region": REGION,
        prefix + "dynamodb.endpoint_url": url,
        "hoodie.aws.access.key": ACCESS_KEY,
        "hoodie.aws.secret.key": SECRET_KEY,
        **further,
    }


def client_of(
    url: str,
    key: str,
    *,
    lease_ms: int,
    wrap: Callable[[BotoTransport], BotoTransport] = lambda transport: transport,
    **further: str,
) -> DynamoClient:
    """A client of the lock; ``wrap`` may put faults between it and the server."""
    settings = DynamoSettings.from_properties(
        lock_properties(url, key, lease_ms=lease_ms, **further)
    )
    return DynamoClient(
        settings,
        lambda: wrap(BotoTransport(settings)),
        clock=SystemClock(),
        ids=SystemIds(),
    )


def boto_client(url: str) -> Any:
    """An ordinary client, for looking at rows from outside."""
    import boto3

    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


def create_table(url: str, name: str = TABLE, *, hash_key: str = "key") -> None:
    """The table as Java creates it; one that exists stays."""
    client = boto_client(url)
    with contextlib.suppress(client.exceptions.ResourceInUseException):
        client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": hash_key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": hash_key, "AttributeType": "S"}],
        )
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})


def rows(url: str) -> dict[str, dict[str, Any]]:
    """All rows by key."""
    items = boto_client(url).scan(TableName=TABLE, ConsistentRead=True)["Items"]
    return {item["key"]["S"]: item for item in items}
