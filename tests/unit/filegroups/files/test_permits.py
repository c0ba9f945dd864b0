"""Threads that write small files compute one after another, and hold no permit during I/O."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from filegroups.files.parquet import with_compute_lock
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from tests.unit.timeline.engine import Behind, as_table, new_table, planned
from tests.unit.timeline.memory import MemoryStorage
from timeline.model.commit_metadata import WriteOperation
from timeline.storage.local import LocalStorage

FEW = pa.table({"id": pa.array([1, 2])})
MANY = pa.table({"id": pa.array(range(200_000))})


class Permits(Behind):
    """Records the permits, and whether one is held during a storage request."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.held = False
        self.taken = 0
        self.asked: list[str] = []

    @property
    def compute_permit(self) -> Permits:
        return self

    def __enter__(self) -> None:
        assert not self.held
        self.held = True
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self.held = False

    def __getattr__(self, name: str) -> Any:
        if self.held:
            self.asked.append(name)
        return super().__getattr__(name)


def insert(storage: Permits, rows: pa.Table) -> None:
    table = new_table(storage)
    plan = planned(table, WriteOperation.BULK_INSERT)
    storage.taken = 0
    write(table.context, plan, LocalWorkload(table.context.ports, rows))


def test_a_small_write_takes_a_permit_for_its_rows_and_one_for_its_file() -> None:
    storage = Permits(MemoryStorage())
    insert(storage, as_table([{"id": "a", "p": "x", "ts": 1, "v": 1}]))
    assert storage.taken == 2


def test_no_storage_request_runs_under_a_permit() -> None:
    storage = Permits(MemoryStorage())
    insert(storage, as_table([{"id": "a", "p": "x", "ts": 1, "v": 1}]))
    assert storage.asked == []


def test_a_large_write_takes_no_permit() -> None:
    storage = Permits(MemoryStorage())
    keys = [f"{number:0100}" for number in range(12_000)]
    rows = as_table([{"id": key, "p": "x", "ts": 1, "v": 1} for key in keys])
    insert(storage, rows)
    assert storage.taken == 0


def test_few_rows_hold_the_permit_of_a_local_storage(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with with_compute_lock(storage, FEW):
        assert storage.compute_permit.locked()
    assert not storage.compute_permit.locked()


def test_many_rows_do_not(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with with_compute_lock(storage, MANY):
        assert not storage.compute_permit.locked()


def test_a_storage_without_a_permit_blocks_no_writer() -> None:
    with with_compute_lock(MemoryStorage(), FEW), with_compute_lock(MemoryStorage(), FEW):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_does_not_wait_for_the_permit_of_its_parent(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with with_compute_lock(storage, FEW):
        child = os.fork()
        if child == 0:
            os._exit(1 if storage.compute_permit.locked() else 0)
        assert os.waitpid(child, 0)[1] == 0
