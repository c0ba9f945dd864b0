"""Instants of another engine between the begin and the commit of a write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from filegroups.table import TableReader, open_reader
from tableservices.archiving.archived_timeline import append_to_archive, archived_row
from tableservices.restoring.restore import restore
from tests.simulation.test_second_refresh import Slotless
from tests.unit.timeline.engine import (
    BRISK,
    Behind,
    begun,
    new_table,
    opened,
    rows_of,
    upsert,
    world_of,
)
from timeline.codecs.instant_avro import encode_restore_plan, encode_rollback_plan
from timeline.commit.apply import data_files_of
from timeline.context import TableLimits
from timeline.errors import TableConfigConflictError
from timeline.model.commit_metadata import WriteOperation
from timeline.model.file_names import TIMELINE, parse_instant_name, timeline_path
from timeline.model.instant import Instant
from timeline.model.plans import InstantInfo, RestorePlan
from timeline.properties.setting_enums import ForeignWriters
from timeline.rollback.rollback import rollback_dead_writers, rollback_plan
from timeline.writer_registry import register_process

SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
OLD = [{"id": key, "p": "x", "ts": 1, "v": 1} for key in "ab"]
NEW = [{"id": key, "p": "x", "ts": 2, "v": 2} for key in "ab"]


def java_of(table: TableReader) -> TableReader:
    """Return a context that neither reads nor takes slots."""
    context = opened(table, application="java").context
    return TableReader(replace(context, commit_log=Slotless(context.ports, context.table_id)))


class AtTurn(Behind):
    """A lock before whose first commit section another engine acts."""

    def __init__(self, inner: Any, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self.act: Callable[[], None] | None = act

    def acquire(self, purpose: str) -> Any:
        if self.act is not None and purpose.startswith("commit"):
            act, self.act = self.act, None
            act()
        return self.inner.acquire(purpose)


def acted_on(table: TableReader, act: Callable[[], None]) -> TableReader:
    ports = world_of(table.context.ports.storage)
    return open_reader(replace(ports, lock=AtTurn(ports.lock, act)), SHARED)


def plans(table: TableReader, action: str, plan: bytes) -> None:
    """Return the pending files of another engine's table services."""
    time = int(table.context.active().newest_time or "0") + 2
    for state, data in (("requested", plan), ("inflight", b"")):
        table.context.ports.storage.create(timeline_path(f"{time}.{action}.{state}"), data)


# ---------------------------------------------------------------- the write itself


@pytest.mark.spec("PUB-6")
def test_a_write_that_a_planned_rollback_names_is_not_committed() -> None:
    """The rollback was planned under the lock, and deletes the files later without it (RB-4)."""
    table = new_table()
    upsert(table, OLD)
    storage = table.context.ports.storage

    named = []

    def plan() -> None:
        [target] = table.context.active().pending_ingestion
        named.append(target.requested_time)
        info = InstantInfo(requested_time=target.requested_time, action="commit")
        files = data_files_of(storage, target.requested_time)
        plans(table, "rollback", encode_rollback_plan(rollback_plan(storage, info, files)))

    result = upsert(acted_on(table, plan), NEW)
    assert named
    assert result.requested_time not in named
    assert rows_of(opened(table), "id", "v") == [("a", 2), ("b", 2)]


@pytest.mark.spec("PUB-6")
def test_no_write_is_committed_while_a_restore_is_pending() -> None:
    table = new_table()
    kept = upsert(table, OLD).requested_time

    def plan() -> None:
        infos = tuple(
            InstantInfo(requested_time=one.requested_time, action=one.action.value)
            for one in table.context.active().pending_ingestion
        )
        document = RestorePlan(instants_to_rollback=infos, savepoint_to_restore_timestamp=kept)
        plans(table, "restore", encode_restore_plan(document))

    with pytest.raises(TableConfigConflictError) as refused:
        upsert(acted_on(table, plan), NEW)
    assert refused.value.kind == "restore_pending"


# ---------------------------------------------------------------- Java's archiving


def archive_as_java(table: TableReader, keep: int) -> list[str]:
    """
    Archive all completed writes but the newest ``keep``, as Java's rule does.

    Java keeps the newest of those below the oldest pending write (TimelineArchiverV2).
    """
    storage = table.context.ports.storage
    active = table.context.active()
    completed = list(active.completed_writes)
    pending = [one.requested_time for one in active.pending_ingestion]
    limit = min(pending, default="9")
    below = [one.requested_time for one in completed if one.requested_time < limit]
    if pending and below:
        limit = below[-1]
    going = [
        one for one in completed[: max(0, len(completed) - keep)] if one.requested_time < limit
    ]
    rows, gone = [], []
    for instant in going:
        names = [n for n in sorted(active.file_names) if _is_of(n, instant)]
        done = next(n for n in names if n.count("_"))
        rows.append(archived_row(storage, done, instant, [n for n in names if n != done], None))
        gone += sorted(names, key=lambda name: name == done)
    append_to_archive(storage, rows)
    for name in gone:
        storage.delete(timeline_path(name))
    return [one.requested_time for one in going]


def _is_of(name: str, instant: Instant) -> bool:
    found = parse_instant_name(name)
    return found is not None and found.requested_time == instant.requested_time


@pytest.mark.spec("FOR-6")
@pytest.mark.parametrize("archives", [False, True])
def test_a_concurrent_commit_that_was_archived_before_the_refresh_conflicts(archives: bool) -> None:
    """It was requested before this write, and completed after the base snapshot of this write."""
    table = new_table()
    upsert(table, OLD)
    java = java_of(table)
    theirs = begun(java, WriteOperation.UPSERT, NEW[:1])
    further = begun(java, WriteOperation.UPSERT, [{"id": "k", "p": "z", "ts": 2, "v": 2}])
    [concurrent_time, *_] = [one.requested_time for one in java.context.active().pending_ingestion]
    mine = opened(table, limits=SHARED)
    register_process(mine.context, {})

    def meanwhile() -> None:
        theirs()
        further()
        for number in range(5):
            upsert(java, [{"id": f"n{number}", "p": "y", "ts": 1, "v": 1}])
        if archives:
            assert concurrent_time in archive_as_java(java, 4)

    assert upsert(mine, NEW[1:], meanwhile).attempts == 2
    rows = dict(rows_of(opened(table), "id", "v"))
    assert (rows["a"], rows["b"]) == (2, 2)


# ---------------------------------------------------------------- a late rollback


class Dies(Behind):
    """A storage whose writer dies before its completed file."""

    def create(self, path: str, data: bytes, **how: Any) -> None:
        name = path.removeprefix(f"{TIMELINE}/")
        if name != path and "_" in name and name.endswith(".commit"):
            raise KeyboardInterrupt
        self.inner.create(path, data, **how)


@pytest.mark.spec("RST-1")
@pytest.mark.spec("FOR-6")
@pytest.mark.parametrize(
    ("how", "limits"),
    [("restored", BRISK), ("restored", SHARED), ("archived", SHARED)],
    ids=["ours restored", "shared restored", "shared archived"],
)
def test_a_rollback_with_an_old_timeline_restores_no_file(how: str, limits: TableLimits) -> None:
    """The target was committed and applied, and is restored away or archived since."""
    table = new_table()
    kept = upsert(table, OLD).requested_time
    dying = opened(table, storage=Dies(table.context.ports.storage), limits=limits)
    with pytest.raises(KeyboardInterrupt):
        upsert(dying, NEW)
    upkeep = opened(table, limits=limits)
    register_process(upkeep.context, {})
    listed = upkeep.context.active()
    assert len(listed.pending_ingestion) == 1
    upsert(opened(table, limits=limits), [{"id": "c", "p": "y", "ts": 1, "v": 1}])  # helps
    if how == "restored":
        restore(opened(table, limits=limits).context, kept)
    else:
        java = java_of(table)
        for number in range(5):
            upsert(java, [{"id": f"n{number}", "p": f"z{number}", "ts": 1, "v": 1}])
        assert archive_as_java(java, 4)
    before = rows_of(opened(table), "id", "v")
    names = set(table.context.ports.storage.names(TIMELINE))
    rollback_dead_writers(upkeep.context, listed)
    assert rows_of(opened(table), "id", "v") == before
    assert set(table.context.ports.storage.names(TIMELINE)) <= names
