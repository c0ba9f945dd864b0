"""Spark on a store without an atomic create: the driver asks the slot store, tasks only write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from hoodoo.spark.options import storage_properties
from hoodoo.spark.tasks import StorageAddress
from timeline.model.file_names import SLOTS
from timeline.storage.local import LocalStorage
from timeline.storage.non_atomic import NonAtomicStorage

pytestmark = pytest.mark.spark


def test_tasks_write_whole_files_only(tmp_path: Path) -> None:
    settings = {"hoodoo.slots.backend": "sql", "hoodoo.lock.sql.url": "/nowhere"}
    assert storage_properties(settings) == {"hoodoo.slots.backend": "sql"}
    for options, kind in ((("hoodoo.slots.backend", "sql"),), NonAtomicStorage), ((), LocalStorage):
        storage = StorageAddress(base_uri=f"file:{tmp_path}", options=options).open()
        assert type(storage) is kind


@pytest.mark.slow
def test_a_data_frame_is_saved_by_a_slot_of_the_database(
    save: Callable[..., Any], path: str, tmp_path: Path
) -> None:
    options = {
        "hoodoo__slots__backend": "sql",
        "hoodoo__lock__sql__url": str(tmp_path / "slots.db"),
        "hoodoo__lock__sql__create_table": "true",
    }
    save([(1, "mon", 10, 1.0), (2, "mon", 10, 2.0)], **options)
    save([(1, "mon", 11, 7.0)], **options)
    properties = {key.replace("__", "."): value for key, value in options.items()}
    with hoodoo.open_table(path, properties=properties) as table:
        rows = table.to_arrow(columns=["id", "amount"]).to_pylist()
    assert sorted((row["id"], row["amount"]) for row in rows) == [(1, 7.0), (2, 2.0)]
    assert not (Path(path) / SLOTS).exists()
