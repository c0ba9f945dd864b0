"""Instants of version 6: a whole timeline of them, or those kept by an upgrade (fmt 2.2, 11.2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import hoodoo
from filegroups.files.log_files import VisibleInstants
from filegroups.table import TableReader
from tests.interop import golden_tables
from tests.unit.timeline.codecs.test_legacy_archive import block, state
from tests.unit.timeline.engine import StillClock, new_table, opened, rows_of, upsert
from tests.unit.timeline.memory import MemoryStorage, MemoryWorld
from timeline.codecs.instant_avro import decode_commit, encode_commit
from timeline.errors import InstantNotFoundError, MalformedNameError, UnsupportedTableError
from timeline.model.commit_metadata import CommitMetadata, FileGroupId
from timeline.model.file_names import instant_file_name, legacy_archive, timeline_path
from timeline.model.file_slice import BaseFile, LogFile, Slicing, slice_file_group
from timeline.model.instant import Action, Instant, State
from timeline.model.instant_time import WallMs, instant_time
from timeline.snapshot import ActiveTimeline, CommitReader, Snapshot, TimelineReader

T1, T2, T3, T4 = (f"2026010203040500{n}" for n in range(1, 5))
NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01


class Aged:
    """A clock that dates files, and the storage of a table with legacy instants."""

    def __init__(self) -> None:
        self.clock = StillClock(NEW_YEAR_MS)
        self.storage = MemoryStorage(ports=MemoryWorld(self.clock))

    def create(self, name: str, data: bytes = b"{}", *, at_ms: int) -> None:
        self.clock.wall = at_ms
        self.storage.create(timeline_path(name), data)


# ---- kept in layout 2


def test_a_legacy_instant_completes_at_the_age_of_its_file() -> None:
    aged = Aged()
    aged.create("20260101000000000.commit.requested", at_ms=NEW_YEAR_MS)
    aged.create("20260101000000000.commit", at_ms=NEW_YEAR_MS + 61_005)
    (instant,) = TimelineReader(aged.storage).read().instants
    assert instant == Instant(
        action=Action.COMMIT,
        requested_time="20260101000000000",
        state=State.COMPLETED,
        completion_time="20260101000101005",
        legacy=True,
    )
    assert instant_file_name(instant) == "20260101000000000.commit"


def test_no_instant_completes_before_it_was_requested() -> None:
    aged = Aged()
    aged.create(f"{T1}.commit", at_ms=NEW_YEAR_MS)  # restored with an old date
    assert TimelineReader(aged.storage).read().instants[0].completion_time == T1


def test_a_legacy_instant_that_appears_later_is_dated_too() -> None:
    aged = Aged()
    aged.create("20260101000000000.commit", at_ms=NEW_YEAR_MS + 1)
    reader = TimelineReader(aged.storage)
    reader.read()
    aged.create("20260101000000500.clean", at_ms=NEW_YEAR_MS + 700)
    assert [one.completion_time for one in reader.read().instants] == [
        "20260101000000001",
        "20260101000000700",
    ]


def test_after_an_interrupted_upgrade_the_dated_file_counts() -> None:
    names = (f"{T1}.commit", f"{T1}_{T2}.commit")
    for order in (names, names[::-1]):
        (instant,) = ActiveTimeline.of(order).instants
        assert (instant.completion_time, instant.legacy) == (T2, False)


def legacy_table() -> tuple[TableReader, tuple[str, str]]:
    """Return a table whose first commit is legacy, and the completion times of its commits."""
    clock = StillClock(NEW_YEAR_MS)
    storage = MemoryStorage(ports=MemoryWorld(clock))
    table = new_table(storage, clock=clock)
    upsert(table, [{"id": "a", "p": "x", "ts": 1, "v": 1}, {"id": "b", "p": "x", "ts": 1, "v": 1}])
    clock.wall += 60_000
    upsert(table, [{"id": "a", "p": "x", "ts": 2, "v": 2}])
    first, second = table.context.active().completed_writes
    body = as_json(table.context.commits.read(first))
    clock.wall = NEW_YEAR_MS + 30_000
    storage.create(timeline_path(f"{first.requested_time}.commit"), body)
    storage.delete(timeline_path(instant_file_name(first)))
    clock.wall = NEW_YEAR_MS + 120_000
    return opened(table, clock=clock), ("20260101000030000", second.completion_time or "")


def as_json(metadata: CommitMetadata) -> bytes:
    return json.dumps(
        {
            "partitionToWriteStats": {
                partition_path: [
                    {"fileId": one.file_id, "path": one.path, "fileSizeInBytes": 1} for one in stats
                ]
                for partition_path, stats in metadata.partition_to_write_stats.items()
            },
            "operationType": metadata.operation_type,
            "extraMetadata": dict(metadata.extra_metadata),
        }
    ).encode()


def test_a_table_with_legacy_instants_is_read_and_written() -> None:
    table, (first, second) = legacy_table()
    assert [entry.completion_time for entry in table.timeline] == [first, second]
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 1)]
    upsert(table, [{"id": "b", "p": "x", "ts": 3, "v": 3}])
    assert rows_of(table, "id", "v") == [("a", 2), ("b", 3)]


def test_incremental_ranges_go_by_the_age_of_the_file() -> None:
    table, (first, _) = legacy_table()
    assert table.changes("earliest", first).read_all()["v"].to_pylist() == [1, 1]
    assert table.changes(first).read_all()["v"].to_pylist() == [2]
    before = instant_time(WallMs(NEW_YEAR_MS + 29_999))
    assert table.changes("earliest", before).read_all().num_rows == 0


# ---- layout 1


def snapshot_of(*names: str, as_of: str | None = None) -> Snapshot:
    storage = MemoryStorage()
    for name in names:
        storage.create(f".hoodie/{name}", b"{}")
    return Snapshot(
        active=TimelineReader(storage, layout_version=1).read(),
        head=0,
        commits=CommitReader(storage, ".hoodie"),
        as_of=as_of,
        slicing=Slicing.BY_NAME,
    )


def test_layout_1_completes_when_it_was_requested_and_knows_no_other_names() -> None:
    snapshot = snapshot_of(
        f"{T1}.inflight",
        f"{T1}.commit",
        f"{T2}.compaction.requested",
        f"{T3}_{T4}.commit",
        "hoodie.properties",
    )
    assert [(one.action, one.completion_time) for one in snapshot.active.instants] == [
        (Action.COMMIT, T1),
        (Action.COMPACTION, None),
    ]
    assert snapshot.commits.read(snapshot.active.instants[0]) == CommitMetadata()


def test_a_log_on_a_pending_compaction_shows_while_blocks_of_pending_writes_do_not() -> None:
    names = (f"{T1}.deltacommit", f"{T2}.compaction.inflight", f"{T3}.deltacommit.inflight")
    snapshot = snapshot_of(*names, f"{T4}.deltacommit")
    assert snapshot.log_file_is_visible(T2)
    assert not snapshot.is_committed(T2), "its base file is hidden"
    visible = VisibleInstants.of(snapshot)
    assert [time in visible for time in (T1, T3, T4)] == [True, False, True]
    assert "20250101000000000" in visible, "archived"


def test_time_travel_hides_logs_of_later_base_instants_and_later_blocks() -> None:
    names = (f"{T1}.deltacommit", f"{T2}.compaction.inflight", f"{T3}.deltacommit")
    snapshot = snapshot_of(*names, as_of=T1)
    assert (snapshot.log_file_is_visible(T1), snapshot.log_file_is_visible(T2)) == (True, False)
    visible = VisibleInstants.of(snapshot)
    assert (T1 in visible, T3 in visible) == (True, False)


GROUP = FileGroupId("p", "g")


def base(time: str) -> BaseFile:
    return BaseFile(file_group=GROUP, name=f"{time}.parquet", requested_time=time, size_bytes=1)


def log(time: str, version: int = 1) -> LogFile:
    return LogFile(
        file_group=GROUP,
        name=f"{time}.{version}",
        instant_time=time,
        log_version=version,
        write_token="0-0-0",
        size_bytes=1,
    )


def test_the_file_name_alone_assigns_a_legacy_log_to_its_slice() -> None:
    found = slice_file_group(
        GROUP,
        [base(T1), base(T3)],
        [log(T4), log(T2), log(T1, 2), log(T1)],
        completion_of={T1: T4, T2: T4}.get,
        pending_compactions=[T4],
        slicing=Slicing.BY_NAME,
    )
    assert [
        (one.base_instant_time, one.base_file is not None, [each.name for each in one.log_files])
        for one in found
    ] == [
        (T1, True, [f"{T1}.1", f"{T1}.2"]),
        (T2, False, [f"{T2}.1"]),
        (T3, True, []),
        (T4, False, [f"{T4}.1"]),
    ]


def test_the_archive_folder_follows_from_the_properties() -> None:
    assert legacy_archive(None) == legacy_archive("") == ".hoodie/archived"
    assert legacy_archive("old") == ".hoodie/old"
    with pytest.raises(MalformedNameError):
        legacy_archive("../../elsewhere")


@pytest.fixture
def unpacked(tmp_path: Path) -> Iterator[Callable[..., hoodoo.Table]]:
    tables: list[hoodoo.Table] = []

    def open_without(name: str, *removed: str) -> hoodoo.Table:
        """Open a golden table without the files of some instants."""
        path = golden_tables.unpack(name, tmp_path)
        for pattern in removed:
            gone = list((path / ".hoodie").glob(pattern))
            assert gone
            for file in gone:
                file.unlink()
        tables.append(hoodoo.open_table(path))
        return tables[-1]

    yield open_without
    for table in tables:
        table.close()


def test_a_pending_clustering_has_another_name_and_prevents_no_time_travel(
    unpacked: Callable[..., hoodoo.Table],
) -> None:
    table = unpacked(
        "v6_cow_clustering_done", "20261121102415110.replacecommit", "20261121102416909.*"
    )
    assert (table.timeline[-1].action, table.timeline[-1].state) == ("replacecommit", "inflight")
    assert table.as_of("20261121102416000").to_arrow().num_rows == 9


def test_a_pending_overwrite_prevents_time_travel(unpacked: Callable[..., hoodoo.Table]) -> None:
    table = unpacked("v6_overwrite", "20261121102530548.replacecommit", "20261121102532450.*")
    assert table.as_of("20261121102529999").to_arrow().num_rows == 4
    with pytest.raises(InstantNotFoundError) as caught:
        table.as_of("20261121102530548")
    assert caught.value.kind == "time_travel_pending"


def test_logs_stay_in_their_slice_when_the_instant_in_their_name_is_archived(
    unpacked: Callable[..., hoodoo.Table],
) -> None:
    table = unpacked("v6_mor_compaction_done", "20261121102354382.*")
    [slices] = table.current_state().view.slices("region=us").values()
    assert [(one.base_instant_time, len(one.log_files)) for one in slices] == [
        ("20261121102354382", 3),
        ("20261121102402149", 2),
    ]


def test_archived_rows_that_active_instants_rewrote_are_returned_for_merge_on_read_only(
    tmp_path: Path,
) -> None:
    """Java 0.15 does this for merge-on-read tables only (checked on a table with compactions)."""
    path = golden_tables.unpack("v6_mor_compaction_done", tmp_path)
    folder, first, compaction = path / ".hoodie", "20261121102354382", "20261121102402149"
    bases = sorted(path.glob(f"region=*/*_{compaction}.parquet"))
    stats = {
        base.parent.name: [
            {"fileId": base.name.split("_")[0], "path": f"{base.parent.name}/{base.name}"}
        ]
        for base in bases
    }
    finished = {"partitionToWriteStats": stats, "operationType": "COMPACT", "compacted": True}
    (folder / f"{compaction}.commit").write_text(json.dumps(finished))
    for file in folder.glob(f"{first}.*"):
        file.unlink()
    with hoodoo.open_table(path) as table:
        before = table.changes("earliest").read_all()
        (folder / "archived").mkdir(exist_ok=True)
        archived = block(state(first, "deltacommit", "COMPLETED"))
        (folder / "archived/.commits_.archive.1_1-0-1").write_bytes(archived)
        after = table.changes("earliest").read_all()
        later = table.changes(first).read_all()
    assert len(bases) == 2
    assert sorted(before["id"].to_pylist()) == ["a00", "a01", "a04", "e00"]
    assert sorted(after["id"].to_pylist()) == ["a00", "a01", "a04", "e00", "e01"]
    assert sorted(later["id"].to_pylist()) == ["a00", "a01", "a04", "e00"]


def test_an_upgraded_table_keeps_logs_that_are_named_by_their_base_instant(tmp_path: Path) -> None:
    """The log file is below a compaction of the range, although the range lacks its base file."""
    path = golden_tables.unpack("v9_mor_compaction_done", tmp_path)
    base, written = "20261121100854449", "20261121100855418"
    [log_file] = path.glob(f"region=eu/.*_{written}.log.1_*")
    renamed = log_file.rename(log_file.with_name(log_file.name.replace(written, base)))
    [commit] = (path / ".hoodie/timeline").glob(f"{written}_*.deltacommit")
    metadata = decode_commit(commit.read_bytes())
    stats = dict(metadata.partition_to_write_stats)
    [stat] = stats["region=eu"]
    stats["region=eu"] = (replace(stat, path=f"region=eu/{renamed.name}"),)
    commit.write_bytes(encode_commit(replace(metadata, partition_to_write_stats=stats)))
    with hoodoo.open_table(path) as table:
        found = table.changes("20261121100855100", with_hoodie_columns=True).read_all()
    files = dict(
        zip(*(found[name].to_pylist() for name in ("id", "_hoodie_file_name")), strict=True)
    )
    assert files["e00"].endswith("-442_20261121100859010.parquet"), "a file of the compaction"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("hoodie.bootstrap.base.path=file:/elsewhere", "bootstrap"),
        ("hoodie.table.base.file.format=LANCE", "base_file_format"),
        ("hoodie.table.version=10", "table_version"),
        ("hoodie.table.version=5", "table_version"),
    ],
)
def test_unsupported_properties_are_refused_by_name(tmp_path: Path, line: str, kind: str) -> None:
    path = golden_tables.unpack("v6_cow_nonpart", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    key, _, value = line.partition("=")
    kept = [one for one in properties.read_text().splitlines() if not one.startswith(key + "=")]
    properties.write_text("\n".join([*kept, line, ""]))
    with pytest.raises(UnsupportedTableError) as caught:
        hoodoo.open_table(path)
    assert caught.value.kind == kind
    assert value in caught.value.message


def test_no_service_changes_a_table_of_version_6(unpacked: Callable[..., hoodoo.Table]) -> None:
    table = unpacked("v6_cow_nonpart", "20261121102247930.commit")
    for change in (table.services.clean, table.services.rollback_dead_writers):
        with pytest.raises(UnsupportedTableError, match="upgrade the table first") as caught:
            change()
        assert caught.value.kind == "table_version"
    assert [entry.action for entry in table.timeline] == ["commit", "commit", "commit"]
    with pytest.raises(UnsupportedTableError, match="upgrade the table first"):
        table.upsert([{"id": "new"}])
