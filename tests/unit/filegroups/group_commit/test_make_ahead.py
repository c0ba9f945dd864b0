"""On high-latency stores small files are precomputed while they are announced (PAR-1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from filegroups.files.parquet import is_small
from filegroups.files.rewrite import FileGroupTask
from filegroups.keys.bucketing import InsertBucket
from filegroups.table import TableReader
from filegroups.writing import workload as workloads
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write import write
from filegroups.writing.write_schema import schema_for
from tests.unit.timeline.engine import Far, as_table, data_files, new_table, planned, rows_of
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import WriteOperation

UPSERT, BULK = WriteOperation.UPSERT, WriteOperation.BULK_INSERT


def row(key: str, p: str, v: int) -> dict[str, Any]:
    return {"id": key, "p": p, "ts": v, "v": v}


class RecordingWorkload(LocalWorkload):
    """A workload that records its calls in order."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[str] = []

    def precompute(self, tasks: Sequence[FileGroupTask]) -> None:
        self.asked.append("make_ahead")
        super().precompute(tasks)

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> Any:
        self.asked.append("rewrite")
        return super().rewrite(tasks)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the partitions whose files are precomputed."""
    found: list[str] = []
    real = workloads.make_new_file_group

    def first_version(storage: Any, task: FileGroupTask, rows: Any) -> Any:
        found.append(task.partition_path)
        return real(storage, task, rows)

    monkeypatch.setattr(workloads, "make_new_file_group", first_version)
    return found


def written(table: TableReader, rows: Any, operation: WriteOperation = UPSERT) -> RecordingWorkload:
    workload = RecordingWorkload(table.context.ports, as_table(rows))
    write(table.context, planned(table, operation), workload)
    return workload


@pytest.mark.spec("PAR-1")
@pytest.mark.parametrize("far", [True, False])
def test_only_on_a_high_latency_store_files_are_made_ahead(far: bool, made: list[str]) -> None:
    storage = MemoryStorage()
    table = new_table(Far(storage) if far else storage)
    workload = written(table, [row("a", "x", 1), row("b", "y", 1)])
    assert workload.asked == (["make_ahead", "rewrite"] if far else ["rewrite"])
    assert sorted(made) == (["x", "y"] if far else [])
    assert rows_of(table, "id", "v") == [("a", 1), ("b", 1)]


@pytest.fixture
def written_tasks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FileGroupTask, Any]]:
    """Record the written tasks with their precomputed files."""
    found: list[tuple[FileGroupTask, Any]] = []
    real = workloads.write_task

    def write_task(storage: Any, task: FileGroupTask, rows: Any, made: Any = None) -> Any:
        found.append((task, made))
        return real(storage, task, rows, made)

    monkeypatch.setattr(workloads, "write_task", write_task)
    return found


def test_a_file_made_ahead_is_written_unchanged(
    written_tasks: list[tuple[FileGroupTask, Any]],
) -> None:
    storage = MemoryStorage()
    table = new_table(Far(storage))
    written(table, [row("a", "x", 1)])
    [(task, ahead)] = written_tasks
    assert task.announced
    [path] = data_files(table)
    assert storage.read(path) == ahead.content


def test_the_next_version_of_a_file_group_is_not_made_ahead(made: list[str]) -> None:
    """The precomputation would read its base file, which is another request."""
    table = new_table(Far(MemoryStorage()))
    written(table, [row("a", "x", 1)])
    made.clear()
    written(table, [row("a", "x", 2), row("n", "new", 2)])
    assert made == ["new"]
    assert rows_of(table, "id", "v") == [("a", 2), ("n", 2)]


def test_a_big_file_is_not_held_in_memory(made: list[str]) -> None:
    rows = [row(f"k{at}" + "x" * 2000, "x", 1) for at in range(600)]
    assert not is_small(as_table(rows))
    table = new_table(Far(MemoryStorage()))
    written(table, [*rows, row("a", "y", 1)], BULK)
    assert made == ["y"]
    assert len(rows_of(table, "id")) == 601


def test_files_made_for_an_earlier_attempt_are_not_written(
    written_tasks: list[tuple[FileGroupTask, Any]],
) -> None:
    table = new_table(Far(MemoryStorage()))
    plan = planned(table, UPSERT)
    workload = LocalWorkload(table.context.ports, as_table([row("a", "x", 1)]))
    schema, _ = schema_for(table.context, table.context.snapshot(), workload, plan)
    workload.prepare(plan.rules, schema)
    task = FileGroupTask(
        requested_time="20260102030405006",
        operation=UPSERT,
        partition_path="x",
        file_id="f-0",
        write_token="0-0-0",
        task_number=0,
        avro_json=schema.avro_json,
    )

    def placed_and_made_ahead() -> None:
        workload.tag({})
        workload.assign(
            [InsertBucket(number=0, partition_path="x", file_id=None, rows=1)],
            {0: "f-0"},
        )
        workload.precompute([task])

    placed_and_made_ahead()
    workload.rewrite([replace(task, write_token="0-1-0")])
    workload.tag({})  # assigned again
    workload.rewrite([task])
    placed_and_made_ahead()
    workload.release()
    assert [ahead for _, ahead in written_tasks] == [None, None]
    assert not workload._ahead


def test_an_error_of_making_ahead_is_raised_when_the_file_is_written() -> None:
    class Failing(RecordingWorkload):
        def precompute(self, tasks: Sequence[FileGroupTask]) -> None:
            super().precompute(tasks)
            raise InvalidInputError("no")

        def rewrite(self, tasks: Sequence[FileGroupTask]) -> Any:
            self._ahead.clear()
            return super().rewrite(tasks)

    table = new_table(Far(MemoryStorage()))
    workload = Failing(table.context.ports, as_table([row("a", "x", 1)]))
    assert write(table.context, planned(table, UPSERT), workload).rows_inserted == 1
    assert workload.asked == ["make_ahead", "rewrite"]
