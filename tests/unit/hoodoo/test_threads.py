"""Threads share a table: they register once, and a close loses no row and hangs no thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
import hoodoo.writer
from timeline.writer_registry import registered_writers

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
OCC = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "50",
    "hoodie.write.commit.retry.max.attempts": "100",
    "hoodie.write.commit.retry.base.ms": "1",
    "hoodie.write.commit.retry.cap.ms": "2",
}
TOGETHER = {"hoodoo.group.commit.max.writes": "8"}
SECONDS_MAX = 60


def opened(path: Path, **more: str) -> hoodoo.Table:
    if not path.exists():
        hoodoo.create_table(path, schema=SCHEMA, record_key="id", properties=OCC).close()
    return hoodoo.open_table(path, properties={**OCC, **more})


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Return the results; a call that raises, or takes too long, fails the test."""
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        return [one.result(SECONDS_MAX) for one in running]


def keys_of(path: Path) -> list[str]:
    with hoodoo.open_table(path) as table:
        assert table.verify().problems == ()
        return sorted(table.to_arrow().column("id").to_pylist())


@pytest.mark.parametrize("more", [{}, TOGETHER], ids=["alone", "together"])
def test_a_close_loses_no_row_of_threads_that_write(tmp_path: Path, more: dict[str, str]) -> None:
    table, written = opened(tmp_path / "t", **more), threading.Semaphore(0)

    def write(name: int) -> None:
        for number in range(3):
            table.insert([{"id": f"{name}-{number}", "v": 1}])
            written.release()

    def read() -> None:
        for _ in range(6):
            table.to_arrow()

    def close() -> None:
        for _ in range(6):  # each while the writers go on
            assert written.acquire(timeout=SECONDS_MAX)
            table.close()

    in_threads([*(lambda name=name: write(name) for name in range(4)), read, close])
    table.close()
    assert keys_of(tmp_path / "t") == [f"{one}-{number}" for one in range(4) for number in range(3)]
    assert registered_writers(table.context) == []


@pytest.mark.parametrize(("threads", "more"), [(8, {}), (24, TOGETHER)], ids=["alone", "together"])
def test_two_tables_of_one_path_share_a_process(
    tmp_path: Path, threads: int, more: dict[str, str]
) -> None:
    tables = [opened(tmp_path / "t", **more) for _ in range(2)]

    def write(name: int) -> None:
        tables[name % 2].upsert([{"id": f"{name:02}", "v": name}])

    in_threads([lambda name=name: write(name) for name in range(threads)])
    for table in tables:
        table.close()
    assert keys_of(tmp_path / "t") == [f"{name:02}" for name in range(threads)]


def test_threads_that_begin_together_register_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, entered = opened(tmp_path / "t"), threading.Barrier(2)
    table.insert([{"id": "0", "v": 1}])
    table.close()
    register = hoodoo.writer.register_process
    registered: list[Any] = []

    def slow(*given: Any, **named: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            entered.wait(0.2)  # a second thread arrives here, too, unless it waits
        registered.append(register(*given, **named))
        return registered[-1]

    monkeypatch.setattr(hoodoo.writer, "register_process", slow)
    in_threads([table.savepoint, lambda: table.insert([{"id": "1", "v": 1}])])
    assert len(registered) == len(registered_writers(table.context)) == 1
    table.close()
    assert registered_writers(table.context) == []


def test_a_close_waits_for_a_thread_that_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write after that close would else find itself registered, and have no entry."""
    table, inside, closing = opened(tmp_path / "t"), threading.Event(), threading.Event()
    record = hoodoo.writer.TableWriter.register

    def slow(self: hoodoo.writer.TableWriter, buckets: str = "") -> None:
        record(self, buckets)
        inside.set()
        closing.wait(0.2)  # the close cannot end before this begin

    monkeypatch.setattr(hoodoo.writer.TableWriter, "register", slow)

    def close() -> None:
        assert inside.wait(SECONDS_MAX)
        table.close()
        closing.set()

    in_threads([lambda: table.insert([{"id": "1", "v": 1}]), close])
    table.insert([{"id": "2", "v": 1}])
    assert len(registered_writers(table.context)) == 1
    table.close()
