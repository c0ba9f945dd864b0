"""The write sets that live writers have announced (BEG-6)."""

from __future__ import annotations

import pytest

from tests.unit.timeline.engine import new_table
from timeline.codecs.instant_avro import encode_commit
from timeline.commit.concurrent_commits import announced_writes
from timeline.commit.markers import create_marker
from timeline.context import TableContext
from timeline.model.commit_metadata import (
    Access,
    CommitMetadata,
    FileGroupId,
    WriteOperation,
    WriteSet,
    WriteStat,
)
from timeline.model.file_names import TIMELINE, IOType, heartbeat_path
from timeline.model.instant import Action

FIRST, SECOND = "20260101000000100", "20260101000000200"
F, G, H = (f"{n}1111111-2222-3333-4444-555555555555-0" for n in range(3))
WRITER = {"hoodoo.writer": "w", "hoodoo.pid": "7", "hoodoo.host": "h", "hoodoo.application": "a"}


def profile(*file_ids: str, **more: object) -> CommitMetadata:
    """Return a workload profile; without an id it only names the partition of new rows."""
    stats = tuple(
        WriteStat(file_id=file_id, prev_commit=FIRST, num_inserts=1)
        for file_id in file_ids or ("",)
    )
    return CommitMetadata(partition_to_write_stats={"x": stats}, **more)


def begun(
    context: TableContext,
    requested_time: str,
    announcement: CommitMetadata | None,
    *,
    action: str = "commit",
    beats: bool = True,
) -> None:
    storage = context.ports.storage
    if beats:
        storage.write(heartbeat_path(requested_time), b"")
    storage.create(f"{TIMELINE}/{requested_time}.{action}.requested", b"")
    if announcement is not None:
        inflight = "inflight" if action == "commit" else f"{action}.inflight"
        storage.create(f"{TIMELINE}/{requested_time}.{inflight}", encode_commit(announcement))


def marked(context: TableContext, name: str, kind: IOType = IOType.MERGE) -> None:
    create_marker(context.ports.storage, FIRST, "x", name, kind)


def touched(write_set: WriteSet) -> list[tuple[str, Access]]:
    """Return the named file groups with an access."""
    return [
        (item.file_group.file_id, item.access)
        for item in write_set.file_groups
        if item.file_group.file_id
    ]


@pytest.mark.spec("BEG-6")
@pytest.mark.parametrize(
    ("announcement", "beats"),
    [
        pytest.param(profile(F), False, id="seems dead"),
        pytest.param(None, True, id="a writer that has not announced its write set"),
    ],
)
def test_a_pending_write_without_announcement_hides_no_other(
    announcement: CommitMetadata | None, beats: bool
) -> None:
    context = new_table().context
    begun(context, FIRST, announcement, beats=beats)
    begun(context, SECOND, profile(G, extra_metadata=WRITER))
    [found] = announced_writes(context, context.active())
    assert (found.requested_time, found.completion_time) == (SECOND, SECOND)
    assert (found.action, found.writer) == (Action.COMMIT, "a (pid 7 on h)")
    assert touched(found.write_set) == [(G, Access.BASE)]


@pytest.mark.parametrize(
    ("below", "times"), [(None, [FIRST, SECOND]), (SECOND, [FIRST]), (FIRST, [])]
)
def test_only_writes_with_an_earlier_requested_time_are_announced(
    below: str | None, times: list[str]
) -> None:
    context = new_table().context
    for time in (FIRST, SECOND):
        begun(context, time, profile(F))
    found = announced_writes(context, context.active(), below=below)
    assert [one.requested_time for one in found] == times
    assert all(one.writer == "" for one in found), "another engine's instant names no writer"


@pytest.mark.spec("BEG-6")
@pytest.mark.parametrize(
    ("action", "access"), [("commit", Access.BASE), ("deltacommit", Access.LOG)]
)
def test_an_announced_deltacommit_appends_logs_to_the_file_groups_it_names(
    action: str, access: Access
) -> None:
    context = new_table().context
    begun(context, FIRST, profile(F), action=action)
    [found] = announced_writes(context, context.active())
    assert touched(found.write_set) == [(F, access)]
    assert found.write_set.inserting == ("x",)


def test_an_announced_deltacommit_creates_its_new_file_groups() -> None:
    context = new_table().context
    announcement = CommitMetadata(
        partition_to_write_stats={"x": (WriteStat(file_id=F, prev_commit="null", num_inserts=1),)}
    )
    begun(context, FIRST, announcement, action="deltacommit")
    [found] = announced_writes(context, context.active())
    assert touched(found.write_set) == [(F, Access.NEW)]


@pytest.mark.spec("BEG-6")
@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        (f"{F}_0-1-0_{FIRST}.parquet", IOType.MERGE, [(F, Access.BASE)]),
        (f"{F}_0-1-0_{FIRST}.parquet", IOType.CREATE, [(F, Access.NEW)]),
        (f".{F}_{FIRST}.log.1_0-1-0", IOType.APPEND, [(F, Access.LOG)]),
        (f".{F}_{FIRST}.log.1_0-1-0.cdc", IOType.APPEND, []),
        ("strange.parquet", IOType.MERGE, []),
    ],
)
def test_markers_announce_file_groups_when_the_workload_profile_names_none(
    name: str, kind: IOType, expected: list[tuple[str, Access]]
) -> None:
    context = new_table().context
    overwrites = WriteOperation.INSERT_OVERWRITE.hudi_name
    begun(context, FIRST, profile(operation_type=overwrites))
    marked(context, name, kind)
    marked(context, f"{H}_0-1-0_{FIRST}.parquet")
    [found] = announced_writes(context, context.active())
    assert touched(found.write_set) == [*expected, (H, Access.BASE)]
    assert found.write_set.partitions == ("x",)
    assert found.write_set.inserting == ("x",)


def test_markers_are_not_read_when_the_workload_profile_names_file_groups() -> None:
    context = new_table().context
    begun(context, FIRST, profile(F))
    marked(context, f"{G}_0-1-0_{FIRST}.parquet")
    [found] = announced_writes(context, context.active())
    assert [item.file_group for item in found.write_set.file_groups] == [FileGroupId("x", F)]
