"""Group commit by an option: the threads of a process share an instant of one table."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.files.rewrite import FileGroupTask
from filegroups.writing.workload import LocalWorkload
from filegroups.writing.write_request import CommitResult
from hoodoo.cli.invocation import commit_result_document
from hoodoo.inspect.explain import explain_instant
from tests.unit.timeline.engine import Heard, wait_for
from timeline.errors import ConflictError, InvalidInputError, SettingError, WriteConflictError
from timeline.model.commit_metadata import WriteOperation, WriteStat
from timeline.system import ThreadExecutor

GROUPED = {"hoodoo.group.commit.max.writes": "8", "hoodoo.group.commit.linger.ms": "60"}


def rows(number: int) -> pa.Table:
    return pa.table({"id": [f"k{number}"], "p": [f"p{number}"], "v": [number]})


def table_at(path: Path, **more: str) -> Any:
    properties = {**GROUPED, **more}
    return hoodoo.create_table(path, record_key="id", partition_by="p", properties=properties)


@pytest.mark.spec("GRP-1")
def test_threads_of_one_table_share_instants(tmp_path: Path) -> None:
    with table_at(tmp_path / "t") as table, ThreadExecutor(4, events=Heard()) as threads:
        # The leader commits after all have handed in: of four writes two are in one group.
        table._writer._group._before = lambda: wait_for(
            lambda: len(table._writer._group._waiting) == 4 or received
        )
        received: list[CommitResult] = []

        def write(number: int) -> CommitResult:
            received.append(table.insert(rows(number), batch_id=f"s/{number}"))
            return received[-1]

        results = threads.map(write, list(range(4)))
        assert sorted(table.to_arrow(columns=["v"]).column("v").to_pylist()) == [0, 1, 2, 3]
        shared = max(results, key=lambda result: result.group)
        members = [each for each in results if each.requested_time == shared.requested_time]
        assert len(members) == shared.group > 1
        assert commit_result_document(shared)["group"] == shared.group
        reported = explain_instant(table.context, shared.requested_time).lines()
        assert f"committed {shared.group} writes together" in reported
        assert sum(line.startswith("batch s/") for line in reported) == shared.group
        assert table.insert(rows(9), batch_id="s/0").already_published
        with pytest.raises(InvalidInputError, match="committed as insert"):
            table.upsert(rows(9), batch_id="s/0")


@pytest.mark.spec("GRP-2")
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_write_with_reads_is_validated_in_a_group_of_its_own(tmp_path: Path, kind: str) -> None:
    """A leader may wait for others; this one shares its instant with no other write."""
    path = tmp_path / "t"
    with (
        table_at(path, **{"hoodie.table.type": kind}) as table,
        hoodoo.open_table(path) as other,
    ):
        table.upsert(rows(1))
        with table.pin() as state:
            other.upsert(rows(1).set_column(2, "v", [[7]]))
            keys = state.to_arrow(columns=["id", "p"], filter=[("v", "==", 1)])
            with pytest.raises(WriteConflictError) as refused:
                table.delete(keys, reads=state.reads(filter=[("v", "==", 1)]))
        assert refused.value.kind == "changed_under_read"
        assert table.to_arrow(columns=["v"]).to_pylist() == [{"v": 7}]


def test_invalid_rows_of_a_member_are_raised_for_its_writer(tmp_path: Path) -> None:
    with table_at(tmp_path / "t") as table:
        table.insert(rows(1))
        with pytest.raises(InvalidInputError):
            table.insert(pa.table({"v": [1]}))
        assert table.upsert(rows(2)).group == 1


@pytest.mark.spec("GRP-1")
def test_rows_that_fit_the_schema_written_since_the_last_refresh_are_accepted(
    tmp_path: Path,
) -> None:
    with table_at(tmp_path / "t") as table, hoodoo.open_table(tmp_path / "t") as other:
        table.insert(rows(1))
        assert table.delete(rows(1).select(["id", "p"])).rows_deleted == 1
        other.insert(rows(2).append_column("w", [[7]]))
        result = table.upsert(rows(2).select(["id", "p"]).append_column("w", [[8]]), partial=True)
        assert result.rows_updated == 1
        assert table.to_arrow(columns=["v", "w"]).to_pylist() == [{"v": 2, "w": 8}]


@pytest.mark.spec("GRP-2")
def test_reads_of_a_write_are_validated_although_a_group_may_form(tmp_path: Path) -> None:
    serializable = {"hoodoo.write.isolation.level": "serializable"}
    path = tmp_path / "t"
    with table_at(path, **serializable) as table, hoodoo.open_table(path) as other:
        table.insert(rows(1))
        with table.pin() as state:
            other.insert(rows(2))
            with pytest.raises(ConflictError, match="read"):
                table.insert(rows(3), reads=state.reads())
        assert sorted(table.to_arrow(columns=["v"]).column("v").to_pylist()) == [1, 2]


class OfACluster(LocalWorkload):
    """Rows that are written by tasks elsewhere; each dies once behind its file, and is repeated."""

    def rewrite(self, tasks: Sequence[FileGroupTask]) -> list[tuple[WriteStat, ...]]:
        super().rewrite([replace(task, write_token="0-0-7") for task in tasks])
        return super().rewrite(tasks)

    def attempted(self) -> None:  # type: ignore[override]
        return None


@pytest.mark.spec("GRP-2")
def test_files_of_repeated_tasks_are_deleted_although_a_group_may_form(tmp_path: Path) -> None:
    with table_at(tmp_path / "t") as table:
        workload = OfACluster(table.context.ports, rows(1))
        table._run(WriteOperation.INSERT, workload)
        [_] = (tmp_path / "t" / "p1").glob("*.parquet")


@pytest.mark.spec("F26")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_waits_for_no_thread_of_its_parent(tmp_path: Path) -> None:
    """It is forked while a leader commits, and while another thread has the lock."""
    with table_at(tmp_path / "t") as table:
        table.insert(rows(1))
        ended: list[int] = []
        with table._writer._group._lock:
            ended.append(child_inserts(table, 2))
        table._writer._group._before = lambda: ended.append(child_inserts(table, 3))
        table.insert(rows(4))
        assert ended == [0, 0]
        assert sorted(table.to_arrow(columns=["v"]).column("v").to_pylist()) == [1, 2, 3, 4]


def child_inserts(table: Any, number: int) -> int:
    """How a forked child ends that inserts a row; one that hangs is killed by its alarm."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            table._writer._group._before = lambda: None
            table.insert(rows(number))
        except BaseException:  # noqa: BLE001
            os._exit(3)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_group_limit_of_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        table_at(tmp_path / "t", **{"hoodoo.group.commit.max.writes": "0"})
