#!/usr/bin/env python3
"""
The number of requests of a write, and how many of them run one after the other.

A writer on a high-latency store pays for *rounds*: requests that do not wait for each other take
as much time as one. Here the store is in this process and answers at once. Work that the engine
runs concurrently is played one piece after the other, and of concurrent pieces the longest
counts. So a number of rounds is a fact of the code, on any machine.

``python benchmarks/farstore/rounds.py`` prints every request of the usual writes with its round.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hoodoo
from benchmarks.farstore.client import BUCKET, HOST, s3_options
from benchmarks.farstore.server import Connection, Store
from hoodoo.configuration import Layers
from hoodoo.factory import compose_ports, limits_of, properties_of_table
from hoodoo.table import Table
from timeline.context import TableContext
from timeline.system import NullEvents, SystemClock, ThreadExecutor

ROUND_MS = 60
START_MS = 1_900_000_000_000  # later than the creation of the table


Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the store."""

    round: int  # of the call it belongs to, from 1
    kind: str
    key: str  # below the table
    status: int

    @property
    def text(self) -> str:
        """As it is printed."""
        return f"{self.round:3} {self.kind:6} {self.status} {self.key}"


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of some work to the store."""

    requests: tuple[Request, ...]

    @property
    def rounds(self) -> int:
        """Requests that waited for each other."""
        return max((one.round for one in self.requests), default=0)

    @property
    def kinds(self) -> dict[str, int]:
        """Requests by kind; a lookup without content counts as a GET."""
        found: dict[str, int] = {}
        for one in self.requests:
            kind = "GET" if one.kind == "HEAD" else one.kind
            found[kind] = found.get(kind, 0) + 1
        return found


class CountedStore:
    """A far store without delay in this process; ``with CountedStore() as store``."""

    def __init__(self) -> None:
        self._store = Store(0.0)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="counted-store", daemon=True)
        self._rounds: list[int] = []  # of the requests in the store's log
        self._now = 0
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def begin() -> None:
            server = await self._loop.create_server(lambda: Connection(self._store), HOST, 0)
            self.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
            self._ready.set()

        self._loop.run_until_complete(begin())
        self._loop.run_forever()

    @property
    def properties(self) -> dict[str, str]:
        """How a table in it is reached."""
        requests_of = s3_options(self.url)
        return {
            "fs.s3a.endpoint": requests_of["endpoint"],
            "fs.s3a.endpoint.region": requests_of["region"],
            "fs.s3a.access.key": requests_of["access_key_id"],
            "fs.s3a.secret.key": requests_of["secret_access_key"],
        }

    def address(self, table: str) -> str:
        """The address of a table in it."""
        return f"s3://{BUCKET}/{table}"

    def round(self) -> int:
        """The round of the newest request."""
        for _ in range(len(self._store.log) - len(self._rounds)):
            self._now += 1
            self._rounds.append(self._now)
        return self._now

    def rewind(self, number: int) -> None:
        """Make the next requests independent of those after that round."""
        self._now = number

    def requests_of(self, table: str, work: Callable[[], object]) -> Requests:
        """Run some work and return its requests to the store."""
        first = self.round()
        start = len(self._rounds)
        work()
        self.round()
        made = zip(self._store.log[start:], self._rounds[start:], strict=True)
        return Requests(
            tuple(
                Request(number - first, row[2], row[3].removeprefix(f"{table}/"), row[4])
                for row, number in made
            )
        )


class _Clock(SystemClock):
    """A clock on which every round takes as long as on a way around the world."""

    def __init__(self, store: CountedStore) -> None:
        self._store = store

    def now_ms(self) -> int:
        return START_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return self._store.round() * ROUND_MS

    def sleep_ms(self, duration_ms: int) -> None:
        """No process waits here."""


class _Counted:
    """An executor that runs tasks one after the other and counts them as concurrent."""

    def __init__(self, store: CountedStore) -> None:
        self._store = store
        self._background = ThreadExecutor(1)

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        first = last = self._store.round()
        results = []
        for task in tasks:
            self._store.rewind(first)
            results.append(work(task))
            last = max(last, self._store.round())
        self._store.rewind(last)
        return results

    def concurrently(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        return self.map(lambda call: call(), calls)

    def every(self, interval_ms: int, work: Callable[[], None]) -> Any:
        return self._background.every(interval_ms, work)


def open_counted(store: CountedStore, table: str, properties: Mapping[str, str]) -> Table:
    """A table of the store whose work is counted."""
    address = store.address(table)
    config, effective, settings = properties_of_table(address, Layers(code=properties))
    ports = compose_ports(address, effective, events=NullEvents())
    ports = replace(ports, executor=_Counted(store), clock=_Clock(store))
    context = TableContext.of(ports, config, limits_of(settings, effective))
    return Table(context, effective, settings)


WRITERS = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": "storage_based",
    "hoodie.clean.automatic": "false",
}
ROWS = 100


def rows(start: int, part: str, *, stamp: int = 0, count: int = ROWS) -> pa.Table:
    """Some rows of a partition."""
    return pa.table(
        {
            "id": [f"{part}-{number:06}" for number in range(start, start + count)],
            "part": [part] * count,
            "ts": [stamp] * count,
            "amount": [float(number) for number in range(count)],
        }
    )


#: What the metadata table of a table has.
METADATA = {
    "no metadata table": {"hoodie.metadata.enable": "false"},
    "files": {"hoodie.metadata.index.column.stats.enable": "false"},
    "column_stats": {"hoodie.metadata.index.column.stats.enable": "true"},
    "record_index": {
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
    },
}


def usual_writes(
    store: CountedStore,
    table: str,
    lock: str,
    metadata: str = "no metadata table",
    *,
    table_type: str = "COPY_ON_WRITE",
) -> dict[str, Requests]:
    """
    The requests of the usual calls to a store, in their order; no other process writes.

    ``metadata`` is a name of ``METADATA``. No call compacts the metadata table.
    """
    indexes = {
        "hoodie.metadata.enable": "true",
        "hoodoo.metadata.services.inline": "false",
        **METADATA[metadata],
    }
    properties = {**store.properties, **WRITERS, **indexes, "hoodoo.publish.lock": lock}
    made = hoodoo.create_table(
        store.address(table),
        schema=rows(0, "a").schema,
        record_key=["id"],
        partition_by=["part"],
        table_type=table_type,
        ordering=["ts"],
        properties=properties,
    )
    made.close()
    first = pa.concat_tables([rows(0, "a"), rows(0, "b")])
    opened: list[Table] = [open_counted(store, table, properties)]
    requests = {
        "first insert of a table": store.requests_of(table, lambda: opened[0].bulk_insert(first))
    }
    opened.pop().close()
    both = pa.concat_tables([rows(0, "a", stamp=3), rows(0, "b", stamp=3)])
    works: dict[str, Callable[[], object]] = {
        "open": lambda: opened.append(open_counted(store, table, properties)),
        "first upsert": lambda: opened[0].upsert(rows(0, "a", stamp=1)),
        "upsert": lambda: opened[0].upsert(rows(0, "a", stamp=2)),
        "insert": lambda: opened[0].insert(rows(1000, "a")),
        "upsert of two partitions": lambda: opened[0].upsert(both),
        "insert into a new partition": lambda: opened[0].insert(rows(0, "c")),
        "read": lambda: opened[0].to_arrow(columns=["id"]),
    }
    requests |= {title: store.requests_of(table, work) for title, work in works.items()}
    return {**requests, "close": store.requests_of(table, opened[0].close)}


def main() -> int:
    """Print the requests of the usual writes to a store."""
    with CountedStore() as store:
        for number, (metadata, lock) in enumerate(product(METADATA, ("none", "lock"))):
            found = usual_writes(store, f"t{number}", lock, metadata)
            for title, requests_of in found.items():
                rounds, kinds = requests_of.rounds, requests_of.kinds
                print(f"--- {metadata}, {lock}: {title}: {rounds} rounds, {kinds}")
                for request in requests_of.requests:
                    print(request.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
