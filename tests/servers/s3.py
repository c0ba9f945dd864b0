"""
An S3 to test against: moto's, made atomic, and a bucket in it.

No other package is suitable: s3rver and rclone ignore the conditions of a
conditional write, which is the one thing under test.
"""

from __future__ import annotations

from typing import Any, Self

from lockproviders.client import LockClient
from lockproviders.storage_based.client import StorageClient
from lockproviders.storage_based.lock_file import LOCK_PATH, ConditionalObject
from lockproviders.storage_based.settings import StorageLockSettings
from tests.servers.moto_server import ACCESS_KEY, REGION, SECRET_KEY, MotoServer
from timeline.storage.object_address import parse_object_address
from timeline.storage.object_client import ObjectSettings, open_client
from timeline.system import SystemClock, SystemIds

BUCKET = "lake"


class S3Server(MotoServer):
    """The server with an empty bucket; a restarted one has forgotten every object."""

    def start(self) -> Self:
        super().start()
        self.client().create_bucket(Bucket=BUCKET)
        return self

    def client(self) -> Any:
        """A client of another library, which shows the real content of the bucket."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def keys(self, prefix: str = "") -> list[str]:
        """Every key below a prefix, sorted."""
        pages = (
            self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        )
        return sorted(found["Key"] for page in pages for found in page.get("Contents", ()))

    def properties(self) -> dict[str, str]:
        """The properties of a caller."""
        return s3_properties(self.url)


def s3_properties(url: str) -> dict[str, str]:
    """Options of the server at an address, spelled as Hadoop spells them."""
    return {
        "fs.s3a.endpoint": url,
        "fs.s3a.endpoint.region": REGION,
        "fs.s3a.access.key": ACCESS_KEY,
        "fs.s3a.secret.key": SECRET_KEY,
        "fs.s3a.path.style.access": "true",
    }


def storage_lock_client(url: str, table: str, *, lease_ms: int) -> LockClient:
    """A client of the storage-based lock of a table in the bucket."""
    address = parse_object_address(f"s3://{BUCKET}/{table}")
    settings = StorageLockSettings.of(lease_ms)
    reached = ObjectSettings.from_properties(s3_properties(url), address)
    client = open_client(address, reached, retries=False, timeout_ms=settings.request_ms)
    place = ConditionalObject(client, address, LOCK_PATH)
    return StorageClient(place, settings, clock=SystemClock(), ids=SystemIds())
