"""A process that holds the storage-based lock and says on demand whether it still believes so."""

from __future__ import annotations

import sys

from lockproviders.testing.contender import build_lock_over
from tests.servers.s3 import storage_lock_client
from timeline.errors import LeaseLostError


def main(url: str, table: str, lease_ms: str) -> None:
    lock = build_lock_over(storage_lock_client(url, table, lease_ms=int(lease_ms)))
    lease = lock.acquire("publish")
    print("holding", flush=True)
    sys.stdin.readline()
    try:
        lease.assert_held()
    except LeaseLostError:
        print("lost", flush=True)
    else:
        print("held", flush=True)
    lock.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
