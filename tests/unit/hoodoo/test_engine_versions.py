"""A newer release writes something new in kind, and an older process refuses it (REL-2 to REL-5)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from timeline.codecs import commit_log as slot_codec
from timeline.errors import UnsupportedTableError
from timeline.model import slot as engine_version
from timeline.model.instant import Action
from timeline.model.slot import SlotKind

PROPERTIES = {
    "hoodie.parquet.small.file.limit": "0",  # so each new key begins a file group
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
    "hoodie.clean.fileversions.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "2",
}
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
Made = Callable[[Path, str], None]
NEXT = engine_version.ENGINE_VERSION + 1
Newer = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Newer:
    """The next release, in which some kinds of slots and plans need its own version."""

    @contextmanager
    def raised(*things: SlotKind | Action) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(engine_version, "ENGINE_VERSION", NEXT)
            for one in things:
                if isinstance(one, SlotKind):
                    patch.setitem(engine_version.LEAST_FOR_SLOT, one, NEXT)
                else:
                    patch.setitem(engine_version.LEAST_FOR_PLAN, one, NEXT)
            yield
        slot_codec._remembered.cache_clear()  # another process has not decoded them

    return raised


def rows(*keys: str, v: int = 0) -> pa.Table:
    return pa.table({"id": list(keys), "v": [v] * len(keys)})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Copy a table of four commits and two file groups into a folder, without any writer."""
    originals: dict[str, Path] = {}

    def copy(path: Path, table_type: str) -> None:
        if table_type not in originals:
            originals[table_type] = tmp_path_factory.mktemp("original") / "t"
            properties = {**PROPERTIES, "hoodie.datasource.write.table.type": table_type}
            with hoodoo.create_table(
                originals[table_type],
                schema=rows("a").schema,
                record_key="id",
                ordering=["v"],
                properties=properties,
            ) as table:
                for keys in ("a", "b", "ab", "ab"):
                    table.upsert(rows(*keys))
        shutil.copytree(originals[table_type], path, dirs_exist_ok=True)

    return copy


def opened(path: Path) -> hoodoo.Table:
    return hoodoo.open_table(path, properties=PROPERTIES)


def files(path: Path) -> dict[str, bytes]:
    """All but the registry and the locks, which a refused process enters and leaves."""
    found = {one.relative_to(path).as_posix(): one for one in path.rglob("*") if one.is_file()}
    volatile = (".hoodie/.hoodoo/writers/", ".hoodie/.locks/", ".hoodie/.hoodoo/refused/")
    return {name: one.read_bytes() for name, one in found.items() if not name.startswith(volatile)}


def refused_by(path: Path, act: Callable[[hoodoo.Table], object]) -> None:
    before = files(path)
    with opened(path) as older, pytest.raises(UnsupportedTableError, match="Upgrade") as refused:
        act(older)
    assert refused.value.kind == "newer_engine"
    assert refused.value.fields["engine_version"] == NEXT - 1
    assert refused.value.fields["least_engine_version"] == NEXT
    assert files(path) == before, "a refused process changes nothing"


ACTS: dict[str, Callable[[hoodoo.Table], object]] = {
    "read": lambda table: table.to_arrow(),
    "upsert": lambda table: table.upsert(rows("c")),
    "delete": lambda table: table.delete(pa.table({"id": ["a"]})),
    "clean": lambda table: table.services.clean(),
    "compact": lambda table: table.services.compact(),
    "cluster": lambda table: table.services.cluster(),
    "archive": lambda table: table.services.archive(),
    "savepoint": lambda table: table.savepoint(),
    "dead writers": lambda table: table.services.rollback_dead_writers(),
}


def _cancelled(table: hoodoo.Table) -> None:
    planned = table.services.schedule("cluster")
    assert planned is not None
    assert table.services.cancel(planned.requested_time)


def _unsaved(table: hoodoo.Table) -> None:
    table.delete_savepoint(table.savepoint().requested_time)


def _restored(table: hoodoo.Table) -> None:
    assert table.restore(table.timeline[-2].requested_time) is not None


#: The actions of a newer process, and the kind of slot that each leaves at the head of the commit
#: log.
DONE: dict[str, tuple[Callable[[hoodoo.Table], object], SlotKind | Action, str]] = {
    "upsert": (lambda table: table.upsert(rows("b", v=9)), SlotKind.COMMIT, TYPES[0]),
    "upsert of logs": (lambda table: table.upsert(rows("b", v=9)), SlotKind.COMMIT, TYPES[1]),
    "clean": (lambda table: table.services.clean(), SlotKind.CLEAN, TYPES[0]),
    "archive": (lambda table: table.services.archive(), SlotKind.TRUNCATE, TYPES[0]),
    "savepoint": (lambda table: table.savepoint(), SlotKind.SAVEPOINT, TYPES[0]),
    "end of a savepoint": (_unsaved, SlotKind.UNSAVEPOINT, TYPES[0]),
    "cancel": (_cancelled, SlotKind.CANCEL, TYPES[0]),
    "restore": (_restored, SlotKind.RESTORE, TYPES[0]),
    "compaction": (lambda table: table.services.compact(), SlotKind.COMMIT, TYPES[1]),
    "log compaction": (lambda table: table.services.log_compact(), SlotKind.COMMIT, TYPES[1]),
    "clustering": (lambda table: table.services.cluster(), SlotKind.COMMIT, TYPES[0]),
    "plan of a compaction": (
        lambda table: table.services.schedule("compact"),
        Action.COMPACTION,
        TYPES[1],
    ),
    "plan of a log compaction": (
        lambda table: table.services.schedule("logcompact"),
        Action.LOGCOMPACTION,
        TYPES[1],
    ),
    "plan of a clustering": (
        lambda table: table.services.schedule("cluster"),
        Action.CLUSTERING,
        TYPES[0],
    ),
}


@pytest.mark.spec("SLOT-3")
@pytest.mark.spec("REL-5")
@pytest.mark.parametrize("done", DONE)
def test_an_older_process_works_until_it_finds_a_slot_for_a_newer_engine(
    done: str, made: Made, tmp_path: Path, newer: Newer
) -> None:
    act, thing, table_type = DONE[done]
    made(tmp_path, table_type)
    early = opened(tmp_path)
    early.upsert(rows("old", v=8))
    with newer(thing), opened(tmp_path) as table:
        act(table)
    for name in ("read", "upsert"):
        refused_by(tmp_path, ACTS[name])
    with pytest.raises(UnsupportedTableError) as refused:
        early.to_arrow()
    assert refused.value.kind == "newer_engine"
    early.close()
    with newer(thing), opened(tmp_path) as table:
        assert {"a", "b"} <= set(table.to_arrow()["id"].to_pylist())


@pytest.mark.spec("SLOT-3")
@pytest.mark.parametrize("act", ACTS)
def test_an_older_process_refuses_every_action_after_a_slot_for_a_newer_one(
    act: str, made: Made, tmp_path: Path, newer: Newer
) -> None:
    made(tmp_path, TYPES[1])
    with newer(SlotKind.COMMIT), opened(tmp_path) as table:
        table.upsert(rows("b", v=9))
    refused_by(tmp_path, ACTS[act])


def planned(path: Path, newer: Newer, service: str, action: Action) -> str:
    """A newer process plans, and writes rows behind the plan, which every release may apply."""
    with newer(action), opened(path) as table:
        plan = table.services.schedule(service)
        assert plan is not None
        table.upsert(rows("c", v=9))
        return plan.requested_time


PLANNED: list[Any] = [
    ("compact", Action.COMPACTION, TYPES[1], ("read", "upsert", "clean", "cluster")),
    ("logcompact", Action.LOGCOMPACTION, TYPES[1], ("compact", "cluster")),
    ("cluster", Action.CLUSTERING, TYPES[0], ("upsert", "clean", "cluster")),
]


@pytest.mark.spec("REL-3")
@pytest.mark.parametrize(("service", "action", "table_type", "acts"), PLANNED)
def test_an_older_process_neither_executes_nor_evaluates_plans_of_a_newer_one(
    service: str,
    action: Action,
    table_type: str,
    acts: tuple[str, ...],
    made: Made,
    tmp_path: Path,
    newer: Newer,
) -> None:
    made(tmp_path, table_type)
    time = planned(tmp_path, newer, service, action)
    refused_by(tmp_path, lambda table: table.services.execute(time))
    for act in acts:
        refused_by(tmp_path, ACTS[act])
    with newer(action), opened(tmp_path) as table:
        assert table.services.execute(time) is not None
    with opened(tmp_path) as older:  # the executed plan concerns no one any more
        older.upsert(rows("d", v=9))
        assert sorted(older.to_arrow()["id"].to_pylist()) == ["a", "b", "c", "d"]


@pytest.mark.spec("REL-3")
def test_a_pending_clustering_of_a_newer_process_hides_no_row_from_an_older_reader(
    made: Made, tmp_path: Path, newer: Newer
) -> None:
    made(tmp_path, TYPES[0])
    planned(tmp_path, newer, "cluster", Action.CLUSTERING)
    with opened(tmp_path) as older:
        assert sorted(older.to_arrow()["id"].to_pylist()) == ["a", "b", "c"]


@pytest.mark.spec("REL-5")
@pytest.mark.parametrize("table_type", TYPES)
def test_a_newer_process_that_writes_nothing_new_refuses_no_older_one(
    table_type: str, made: Made, tmp_path: Path, newer: Newer
) -> None:
    made(tmp_path, table_type)
    service = "cluster" if table_type == TYPES[0] else "compact"
    with opened(tmp_path) as older, newer(SlotKind.SAVEPOINT), opened(tmp_path) as table:
        plan = older.services.schedule(service)
        assert plan is not None
        table.upsert(rows("c", v=9))
        assert table.services.execute(plan.requested_time) is not None
        table.services.clean()
    with opened(tmp_path) as older:
        older.upsert(rows("d", v=9))
        older.services.clean()
        assert sorted(older.to_arrow()["id"].to_pylist()) == ["a", "b", "c", "d"]


@pytest.mark.spec("REL-7")
def test_a_slot_below_the_newest_two_needs_no_version(
    made: Made, tmp_path: Path, newer: Newer
) -> None:
    made(tmp_path, TYPES[0])
    with newer(SlotKind.SAVEPOINT), opened(tmp_path) as table:
        table.savepoint()
        table.upsert(rows("c", v=9))
        table.upsert(rows("c", v=9))
    with opened(tmp_path) as older:
        older.upsert(rows("d", v=9))
        assert sorted(older.to_arrow()["id"].to_pylist()) == ["a", "b", "c", "d"]
