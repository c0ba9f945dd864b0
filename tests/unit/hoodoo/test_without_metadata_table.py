"""A commit without a metadata table switches it off; nothing else does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hoodoo
from tableservices.orphan_files import Orphan, remove_orphans
from tests.interop import golden_tables
from timeline.errors import (
    HoodooError,
    LockTimeoutError,
    WriterDisagreementError,
)
from timeline.properties.properties_file import load_config
from timeline.storage.local import LocalStorage

OFF = {"hoodie.metadata.enable": "false"}
SORTED = {"hoodie.clustering.plan.strategy.sort.columns": "val"}
WARNING = "metadata table was switched off"
MUTATIONS = ("create", "write", "delete", "delete_folder", "open_output")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return golden_tables.unpack("v9_cow_mdt_record_index", tmp_path)


def row(key: str = "new") -> dict[str, Any]:
    return {"id": key, "ts": 1_000, "val": 1.0, "name": f"by us {key}", "region": "xx"}


def state(path: Path) -> dict[str, bytes]:
    """The metadata table and the properties."""
    files = [path / ".hoodie/hoodie.properties", *(path / ".hoodie/metadata").rglob("*")]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


def keys(path: Path) -> list[str]:
    with hoodoo.open_table(path) as table:
        return sorted(table.to_arrow(["id"]).column("id").to_pylist())


def test_a_committed_write_switches_the_metadata_table_off_and_warns(path: Path) -> None:
    before = keys(path)
    with hoodoo.open_table(path, properties=OFF) as table:
        with pytest.warns(UserWarning, match=WARNING):
            table.upsert([row()])
        assert not table.config.metadata_table_on
        table.upsert([row("second")])  # and says it once
    assert not (path / ".hoodie/metadata").exists()
    assert keys(path) == sorted([*before, "new", "second"])


@pytest.mark.parametrize("opened", ["while it is on", "when it is off"])
def test_once_the_metadata_table_is_off_the_option_costs_no_further_get(
    path: Path, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    read, asked = LocalStorage.read, list[str]()

    def counted(storage: LocalStorage, name: str, *more: Any) -> bytes:
        asked.extend([name] if name.endswith("hoodie.properties") else [])
        return read(storage, name, *more)

    def gets(table: hoodoo.Table) -> int:
        asked.clear()
        table.upsert([row(str(len(table.timeline)))])
        return len(asked)

    table = hoodoo.open_table(path, properties=OFF)
    with pytest.warns(UserWarning, match=WARNING):
        table.upsert([row()])
    if opened == "when it is off":
        table.close()
        table = hoodoo.open_table(path, properties=OFF)
    with table, hoodoo.open_table(path) as plain:
        for one in (table, plain):
            one.upsert([row()])
        monkeypatch.setattr(LocalStorage, "read", counted)
        assert gets(table) == gets(plain)


def wrong_type(table: hoodoo.Table) -> None:
    table.upsert([{**row(), "val": [1.0]}])


def missing_column(table: hoodoo.Table) -> None:
    table.upsert([{"id": "new"}])


def null_key(table: hoodoo.Table) -> None:
    table.upsert([{**row(), "id": None}])


def no_partition(table: hoodoo.Table) -> None:
    table.delete_partitions([])


def unknown_filter(table: hoodoo.Table) -> None:
    table.delete([("unknown", "==", 1)])


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (wrong_type, "schema_mismatch"),
        (missing_column, "missing_column"),
        (null_key, "null_key"),
        (no_partition, "no_partition"),
        (unknown_filter, "filter"),
    ],
)
def test_a_write_refused_for_its_rows_leaves_the_metadata_table_on(
    path: Path, write: Callable[[hoodoo.Table], None], kind: str
) -> None:
    before = state(path)
    with hoodoo.open_table(path, properties=OFF) as table, pytest.raises(HoodooError) as refused:
        write(table)
    assert refused.value.kind == kind
    assert state(path) == before


def test_a_write_that_is_rolled_back_leaves_the_metadata_table_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(path)
    monkeypatch.setattr(
        "timeline.commit.commit._assert_still_pending", raising(HoodooError("taken for dead"))
    )
    with (
        hoodoo.open_table(path, properties=OFF) as table,
        pytest.raises(HoodooError, match="taken for dead"),
    ):
        table.upsert([row()])
    assert state(path) == before


def test_a_write_that_does_not_get_the_lock_leaves_the_metadata_table_on(path: Path) -> None:
    before = state(path)
    with hoodoo.open_table(path) as other, other.context.ports.lock.acquire("held"):
        options = {**OFF, "hoodie.write.lock.client.num_retries": "0"}
        options |= {"hoodie.write.lock.wait_time_ms": "1", "hoodie.write.lock.num_retries": "0"}
        with hoodoo.open_table(path, properties=options) as table, pytest.raises(LockTimeoutError):
            table.upsert([row()])
    assert state(path) == before


def test_a_writer_that_disagrees_with_a_live_one_leaves_the_metadata_table_on(path: Path) -> None:
    before = state(path)
    mode = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    lazy = {"hoodie.clean.failed.writes.policy": "LAZY"}
    with (
        hoodoo.open_table(path) as other,
        hoodoo.open_table(path, properties={**OFF, **mode, **lazy}) as table,
    ):
        other._register_writer()
        with pytest.raises(WriterDisagreementError):
            table.upsert([row()])
    assert state(path) == before


@pytest.mark.parametrize("lock", ["lock", "none"])
def test_a_crash_at_any_call_leaves_no_commit_in_a_table_with_a_metadata_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    options = {**OFF, "hoodoo.publish.lock": lock, "hoodie.clean.automatic": "false"}
    seen = set()
    for calls in range(100):
        path = golden_tables.unpack("v9_cow_mdt_record_index", tmp_path / str(calls))
        before = keys(path)
        table = hoodoo.open_table(path, properties=options)
        with monkeypatch.context() as patched:
            dies = died_after(patched, calls)
            with warnings.catch_warnings(), suppress(_Died):
                warnings.simplefilter("ignore")
                table.upsert([row()])
        on = load_config(LocalStorage(path)).metadata_table_on
        published = keys(path) != before
        seen.add((on, published))
        assert not (on and published), f"after {calls} calls"
        if not dies():
            break
    assert seen == {(True, False), (False, False), (False, True)}


class _Died(BaseException):
    """The process is gone."""


def died_after(patched: pytest.MonkeyPatch, calls: int) -> Callable[[], bool]:
    """Let no change of the storage happen after so many; returns whether that limit was reached."""
    made = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **more: Any) -> Any:
            nonlocal made
            made += 1
            if made > calls:
                raise _Died
            return change(*values, **more)

        return call

    for name in MUTATIONS:
        patched.setattr(LocalStorage, name, counted(getattr(LocalStorage, name)))
    return lambda: made > calls


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


def clean(table: hoodoo.Table) -> object:
    return table.services.clean()


def cluster(table: hoodoo.Table) -> object:
    return table.services.cluster(sort_by=["val"])


def plan(table: hoodoo.Table) -> object:
    return table.services.schedule("cluster")


def roll_back(table: hoodoo.Table) -> object:
    newest = [one for one in table.timeline if one.completion_time][-1]
    return table.rollback(newest.requested_time)


def restore(table: hoodoo.Table) -> object:
    writes = [one for one in table.timeline if one.action == "commit" and one.completion_time]
    return table.restore(writes[-2].requested_time)


@pytest.mark.parametrize("work", [roll_back, restore])
def test_a_restore_and_a_rollback_obey_the_option(
    path: Path, work: Callable[[hoodoo.Table], object]
) -> None:
    with (
        hoodoo.open_table(path, properties={**OFF, **SORTED}) as table,
        pytest.warns(UserWarning, match=WARNING),
    ):
        assert work(table) is not None
    assert not (path / ".hoodie/metadata").exists()


def test_a_clean_without_work_leaves_the_metadata_table_on(path: Path) -> None:
    before = state(path)
    with hoodoo.open_table(path, properties=OFF) as table:
        assert table.services.clean() is None
    assert state(path) == before


def test_a_savepoint_leaves_the_metadata_table_on(path: Path) -> None:
    before = state(path)
    with hoodoo.open_table(path, properties=OFF) as table:
        table.savepoint()
    assert state(path) == before


def test_removing_orphans_switches_the_metadata_table_off(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(path)
    with hoodoo.open_table(path, properties=OFF) as table:
        context = table.context
        assert remove_orphans(context) == []
        assert state(path) == before, "there was none"
        partition = table.file_slices()[0].file_group.partition_path
        stray = Orphan(path=f"{partition}/stray", size_bytes=1, age_ms=1, why="made up")
        (path / stray.path).write_bytes(b"x")
        monkeypatch.setattr("tableservices.orphan_files.find_orphans", lambda *_, **__: [stray])
        with pytest.warns(UserWarning, match=WARNING):
            remove_orphans(context)
    assert not (path / stray.path).exists()
    assert not (path / ".hoodie/metadata").exists()
