"""The metadata table reads as Java Hudi reads it, and only what counts for the snapshot is read."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from filegroups.metadata_table.keys import IndexVersion
from filegroups.metadata_table.lag import Lag
from filegroups.metadata_table.lost_files import NEEDS_ALL_FILES
from filegroups.metadata_table.merge import live_files
from filegroups.metadata_table.reading import MetadataTable, open_metadata_table
from filegroups.metadata_table.records import ALL_PARTITIONS, BOUND
from filegroups.reading.file_system_view import FileSystemView
from tests.interop import golden_tables
from tests.unit.filegroups.metadata_table.test_decode import rows_of as decoded_rows
from timeline.errors import (
    CorruptTableError,
    MissingFileError,
    SnapshotExpiredError,
    UnsupportedTableError,
)
from timeline.model.file_names import parse_log_file_name
from timeline.model.metadata_table import BUILDING, PartitionKind, kind_of

NAMES = golden_tables.metadata_names()
METADATA = ".hoodie/metadata"
LATER, COMPLETED = "29991231235959000", "29991231235959999"
WITH_RECORDS = [
    name for name in NAMES if isinstance(golden_tables.account(name)["mdt_records"], list)
]


def opened(path: Path, *, snapshot: Any = None) -> MetadataTable:
    with hoodoo.open_table(path) as table:
        context = table.context
        found = open_metadata_table(
            context.ports.storage, table.config, snapshot or context.snapshot()
        )
    assert found is not None
    return found


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a golden table that no test changes."""
    folder, made = tmp_path_factory.mktemp("golden"), set()

    def path_of(name: str) -> Path:
        if name not in made:
            made.add(name)
            golden_tables.unpack(name, folder)
        return folder / name

    return path_of


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden_tables.unpack(getattr(request, "param", "v9_cow_services"), tmp_path)


# ---- What Java reads


class _Java:
    """A record of the account, in the form of a record that fastavro decodes."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.key = record["key"]
        files = record["filesystemMetadata"]
        self.value: dict[str, Any] = {**record, "filesystemMetadata": None}
        if files is not None:
            self.value["filesystemMetadata"] = dict(files["map"])
        stats = record["ColumnStatsMetadata"]
        if stats is not None:
            bounds = {name: _wrapped(stats[name]) for name in ("minValue", "maxValue")}
            self.value["ColumnStatsMetadata"] = {**stats, **bounds}
        bloom = record["BloomFilterMetadata"]
        if bloom is not None:
            data = base64.b64decode(bloom["bloomFilter"]["b64"])
            self.value["BloomFilterMetadata"] = {**bloom, "bloomFilter": data}


def _wrapped(union: dict[str, Any] | None) -> Any:
    if union is None:
        return None
    ((member, held),) = ((name, one) for name, one in union.items() if one is not None)
    value = held["value"]
    if isinstance(value, dict):
        value = Decimal(value["dec"]) if "dec" in value else base64.b64decode(value["b64"])
    return BOUND.field(int(member.removeprefix("member"))).name, {"value": value}


def plain(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("name", WITH_RECORDS)
def test_every_record_that_java_reads_is_read(name: str, unpacked: Callable[[str], Path]) -> None:
    metadata = opened(unpacked(name))
    expected: list[dict[str, Any]] = []
    for record in golden_tables.account(name)["mdt_records"]:
        expected += decoded_rows(_Java(record))
    found: list[dict[str, Any]] = []
    for partition in metadata.partitions:
        for one in metadata.read(partition):
            one.validate(full=True)
            found += one.to_pylist()
    assert plain(found) == plain(expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_listed_files_are_those_that_java_finds(
    name: str, unpacked: Callable[[str], Path]
) -> None:
    metadata = opened(unpacked(name))
    expected = set()
    for group in golden_tables.account(name)["slices_by_mdt"]:
        for one in group["slices"]:
            files = [one["base_file"], *one["log_files"]]
            expected |= {(group["partition"], file) for file in files if file}
    paths = metadata.partition_paths()
    assert set(paths) >= {path for path, _ in expected}
    found = metadata.files_of(paths)
    rows = found.to_pylist()
    for row in rows:
        file = unpacked(name) / row["partition_path"] / row["name"]
        assert file.stat().st_size == row["size"]
    assert {(row["partition_path"], row["name"]) for row in rows} >= expected
    with hoodoo.open_table(unpacked(name)) as table:
        context = table.context
        listed = FileSystemView(storage=context.ports.storage, snapshot=context.snapshot())
        assert set(listed.partition_paths()) == set(paths)
        for one in listed.latest_slices():
            files = [*one.log_files, *([one.base_file] if one.base_file else [])]
            for each in files:
                assert (each.file_group.partition_path, each.name) in expected


@pytest.mark.parametrize("name", NAMES)
def test_each_key_is_found_by_a_look_up(name: str, unpacked: Callable[[str], Path]) -> None:
    metadata = opened(unpacked(name))
    for partition in metadata.partitions:
        whole = pa.concat_tables(metadata.read(partition))
        keys = pc.unique(whole.column("key"))
        found = metadata.look_up(partition, pa.chunked_array([keys, pa.array(["no key$", "$"])]))
        assert plain(found.to_pylist()) == plain(whole.to_pylist())
        for key in keys.to_pylist()[:3]:
            some = metadata.look_up(partition, pa.array([key])).to_pylist()
            assert plain(some) == plain([row for row in whole.to_pylist() if row["key"] == key])
        assert metadata.look_up(partition, pa.array([], pa.string())).num_rows == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_table_of_a_finished_table_does_not_lag(
    name: str, unpacked: Callable[[str], Path]
) -> None:
    metadata = opened(unpacked(name))
    assert metadata.lag == Lag()
    assert not metadata.is_newer


def test_an_index_of_each_partition_is_looked_up_in_one_of_them(
    unpacked: Callable[[str], Path],
) -> None:
    metadata = opened(unpacked("v9_cow_partitioned_ri"))
    assert metadata.definitions["record_index"].is_per_partition
    whole = pa.concat_tables(metadata.read("record_index"))
    for row in whole.to_pylist():
        keys = pa.array([row["key"]])
        found = metadata.look_up("record_index", keys, row["partition_path"]).to_pylist()
        assert row in found
        assert metadata.look_up("record_index", keys, "nowhere").num_rows == 0


@pytest.mark.parametrize("name", ["v8_cow_secondary", "v9_mor_secondary"])
def test_a_secondary_index_finds_the_record_keys_of_values(
    name: str, unpacked: Callable[[str], Path]
) -> None:
    metadata, index = opened(unpacked(name)), "secondary_index_idx_name"
    with hoodoo.open_table(unpacked(name)) as table:
        rows = table.to_arrow(columns=["id", "name"]).to_pylist()
    values = [*{row["name"] for row in rows}, "nothing", "n", ""]
    for some in (values, values[:1], [None], ["n"], []):
        found = metadata.record_keys(index, pa.array(some, pa.string())).to_pylist()
        expected = [(row["name"], row["id"]) for row in rows if row["name"] in some]
        pairs = [(row["value"], row["record_key"]) for row in found]
        assert sorted(map(repr, pairs)) == sorted(map(repr, expected))


def test_the_definitions_of_indexes_are_read(unpacked: Callable[[str], Path]) -> None:
    found = opened(unpacked("v9_mor_secondary")).definitions["secondary_index_idx_name"]
    assert (found.index_type, found.source_fields) == ("secondary_index", ("name",))
    assert found.version is IndexVersion.V2
    old = opened(unpacked("v8_cow_secondary")).definitions["secondary_index_idx_name"]
    assert old.version is IndexVersion.V1


def test_a_table_without_a_metadata_table_has_none(tmp_path: Path) -> None:
    with hoodoo.open_table(golden_tables.unpack("v9_cow_part", tmp_path)) as table:
        context = table.context
        assert open_metadata_table(context.ports.storage, table.config, context.snapshot()) is None


# ---- Which instants count


def timelines(path: Path) -> tuple[Path, Path]:
    return path / METADATA / ".hoodie/timeline", path / ".hoodie/timeline"


def newest_commit(path: Path) -> tuple[str, Path, Path]:
    """The requested time of the newest commit, its completed file in the metadata table and here."""
    own, here = timelines(path)
    file = max(here.glob("*_*.commit"))
    time = file.name.split("_")[0]
    return time, next(own.glob(f"{time}_*.deltacommit")), file


def listed(metadata: MetadataTable) -> set[str]:
    return set(metadata.files_of(metadata.partition_paths()).column("name").to_pylist())


@pytest.mark.parametrize("path", ["v9_cow_files"], indirect=True)
def test_a_commit_that_is_pending_on_the_table_does_not_count(path: Path) -> None:
    time, _, file = newest_commit(path)
    before = listed(opened(path))
    file.unlink()
    metadata = opened(path)
    assert metadata.lag == Lag(pending=(time,))
    assert metadata.lag.is_trusted
    assert before - listed(metadata) == {name for name in before if time in name} != set()


@pytest.mark.parametrize("path", ["v9_cow_files"], indirect=True)
def test_a_commit_counts_while_its_savepoint_is_pending(path: Path) -> None:
    time, _, _ = newest_commit(path)
    before = listed(opened(path))
    (timelines(path)[1] / f"{time}.savepoint.inflight").touch()
    metadata = opened(path)
    assert metadata.lag == Lag()
    assert listed(metadata) == before


@pytest.mark.parametrize("path", ["v9_cow_files"], indirect=True)
def test_a_commit_that_the_metadata_table_lacks_is_lag(path: Path) -> None:
    time, own, _ = newest_commit(path)
    own.unlink()
    metadata = opened(path)
    assert metadata.lag == Lag(behind=(time,))
    assert not metadata.lag.is_trusted
    assert not any(time in name for name in listed(metadata))


@pytest.mark.parametrize("path", ["v9_cow_files"], indirect=True)
def test_a_clean_that_javas_restore_removed_from_the_metadata_table_is_no_lag(path: Path) -> None:
    """The deltacommit after the restore has what the clean deleted."""
    with hoodoo.open_table(path, properties={"hoodie.clean.commits.retained": "1"}) as table:
        for value in range(3):
            table.upsert([{**table.to_arrow().to_pylist()[0], "a": value}])
    own, here = timelines(path)
    clean, completed = max(one.stem for one in here.glob("*_*.clean")).split("_")
    next(own.glob(f"{clean}_*")).unlink()
    assert opened(path).lag == Lag(behind=(clean,))
    later = f"{int(completed) + 1}"
    for name in (f"{later}.restore.requested", f"{later}_{later}.restore"):
        (own / name).touch()
    assert opened(path).lag == Lag()
    time, commit, _ = newest_commit(path)
    commit.unlink()  # the listing after a restore has no records of a write
    assert opened(path).lag == Lag(behind=(time,))


@pytest.mark.parametrize("path", ["v9_cow_files"], indirect=True)
def test_a_commit_that_only_the_metadata_table_has_is_unknown(path: Path) -> None:
    time, _, _ = newest_commit(path)
    for file in timelines(path)[1].glob(f"{time}*"):
        file.unlink()
    metadata = opened(path)
    assert metadata.lag == Lag(unknown=(time,))
    assert not metadata.lag.is_trusted


@pytest.mark.parametrize("path", ["v9_cow_files"], indirect=True)
def test_a_commit_that_began_after_the_snapshot_does_not_count(path: Path) -> None:
    time, _, _ = newest_commit(path)
    here = timelines(path)[1]
    hidden = path / "hidden"
    hidden.mkdir()
    for file in list(here.glob(f"{time}*")):
        shutil.move(file, hidden / file.name)
    with hoodoo.open_table(path) as table:
        snapshot = table.context.snapshot()
    for file in list(hidden.iterdir()):
        shutil.move(file, here / file.name)
    metadata = opened(path, snapshot=snapshot)
    assert metadata.lag == Lag()
    assert not any(time in name for name in listed(metadata))
    assert any(time in name for name in listed(opened(path)))


def test_a_compaction_after_the_snapshot_leaves_only_records_of_files(path: Path) -> None:
    own, here = timelines(path)
    compaction = max(own.glob("*_*.commit")).name.split("_")[0]
    merged = [file.stem.split("_") for file in own.glob("*_*.deltacommit")]
    newest = max(requested for requested, completed in merged if completed < compaction)
    next(here.glob(f"{newest}_*")).unlink()  # it is pending in the snapshot
    metadata = opened(path)
    assert metadata.is_newer
    assert metadata.partition_paths() == ["p0", "p1", "p2"]
    assert list(metadata.read("column_stats"))
    with pytest.raises(SnapshotExpiredError):
        metadata.look_up("record_index", pa.array(["k000"]))
    with pytest.raises(SnapshotExpiredError):
        list(metadata.read("partition_stats"))


def test_a_log_before_a_compaction_is_not_read_again(path: Path) -> None:
    """Base files of a compaction have the rows of the logs below them."""
    metadata = opened(path)
    for partition in metadata.partitions:
        for one in metadata.slices(partition).values():
            base = one.base_file
            if base is not None and not base.requested_time.startswith("0000"):
                for log in one.log_files:
                    assert metadata.own.completions[log.instant_time] > base.requested_time


def test_a_pending_compaction_changes_nothing(path: Path) -> None:
    before = {name: pa.concat_tables(opened(path).read(name)) for name in opened(path).partitions}
    own, _ = timelines(path)
    next(iter(sorted(own.glob("*_*.commit"), reverse=True))).unlink()
    metadata = opened(path)
    for name, rows in before.items():
        pairs = (rows, pa.concat_tables(metadata.read(name)))
        if name == PartitionKind.FILES.value:
            pairs = (live_files(pairs[0]), live_files(pairs[1]))
        assert plain(pairs[0].to_pylist()) == plain(pairs[1].to_pylist())


# ---- Damage


def test_a_metadata_table_of_another_version_is_refused(path: Path) -> None:
    file = path / METADATA / ".hoodie/hoodie.properties"
    text = file.read_text().replace("hoodie.table.version=9", "hoodie.table.version=10")
    file.write_text(text)
    with pytest.raises(UnsupportedTableError) as caught:
        opened(path)
    assert caught.value.kind == "metadata_table_version"


def test_a_missing_metadata_table_is_named(path: Path) -> None:
    shutil.rmtree(path / METADATA)
    with pytest.raises(MissingFileError) as caught:
        opened(path)
    assert caught.value.kind == "metadata_table_missing"


def test_a_partition_without_files_is_named(path: Path) -> None:
    shutil.rmtree(path / METADATA / "column_stats")
    with pytest.raises(MissingFileError) as caught:
        opened(path).slices("column_stats")
    assert caught.value.kind == "metadata_table_missing"


def test_a_missing_file_group_is_damage(path: Path) -> None:
    for file in (path / METADATA / "column_stats").glob("*col-stats-0000-0_*"):
        file.unlink()
    with pytest.raises(CorruptTableError) as caught:
        opened(path).slices("column_stats")
    assert caught.value.kind == "metadata_file_groups"


@pytest.mark.parametrize("name", NAMES)
def test_a_partition_names_a_lost_file_or_needs_it_no_more(name: str, tmp_path: Path) -> None:
    path = golden_tables.unpack(name, tmp_path)
    for partition in opened(path).partitions:
        if kind_of(partition) not in NEEDS_ALL_FILES:
            continue
        expected = pa.concat_tables(opened(path).read(partition))
        for file in files_to_lose(path, partition):
            content = file.read_bytes()
            file.unlink()
            try:
                found = pa.concat_tables(opened(path).read(partition))
            except CorruptTableError as error:
                lost = error
            else:
                assert found.equals(expected), file.name
                continue
            finally:
                file.write_bytes(content)
            assert lost.kind in ("metadata_table_missing", "metadata_file_groups")
            assert file.name in str(lost) or lost.kind == "metadata_file_groups"
            assert "hoodoo metadata rebuild TABLE" in str(lost)


def files_to_lose(path: Path, partition: str) -> Iterator[Path]:
    """Yield the files of a partition, but for the first log file after a build, which replaces some."""
    slices = list(opened(path).slices(partition).values())
    built = [one for one in slices if one.base_instant_time.startswith(BUILDING)]
    logs = [log for one in built for log in one.log_files]
    later = [log for log in logs if not log.instant_time.startswith(BUILDING)]
    first = min((log.instant_time for log in later), default="")
    for file in sorted((path / METADATA / partition).iterdir()):
        log = parse_log_file_name(file.name)
        is_data = file.name.endswith(".hfile") or log is not None
        if is_data and (log is None or log.instant_time != first):
            yield file


def test_a_partition_that_is_not_complete_is_refused(path: Path) -> None:
    metadata = opened(path)
    for partition in ("bloom_filters", "nothing"):
        with pytest.raises(UnsupportedTableError) as caught:
            list(metadata.read(partition))
        assert caught.value.kind == "metadata_partition"


def test_damaged_index_definitions_are_named(path: Path) -> None:
    file = path / ".hoodie/.index_defs/index.json"
    for text in ("", "[]", '{"indexDefinitions": 3}', '{"indexDefinitions": {"a": 3}}'):
        file.write_text(text)
        with pytest.raises(CorruptTableError) as caught:
            _ = opened(path).definitions
        assert caught.value.kind == "bad_index_definitions"


def test_the_base_file_of_a_failed_task_is_not_read(path: Path) -> None:
    folder = path / METADATA / "files"
    base = max(folder.glob("*.hfile"), key=lambda one: one.name.split("_")[2])
    number = base.name.split("_")[1]
    before = listed(opened(path))
    for token in ("0-0-0", "9-9-9"):
        (folder / base.name.replace(number, token)).write_bytes(b"half a file")
    assert listed(opened(path)) == before


def test_keys_of_the_list_of_partitions_are_in_files(unpacked: Callable[[str], Path]) -> None:
    metadata = opened(unpacked("v8_cow_colstats_nonpart"))
    assert metadata.partition_paths() == [""]
    assert kind_of("files") is PartitionKind.FILES
    found = metadata.look_up("files", pa.array([ALL_PARTITIONS]))
    assert found.column("name").to_pylist() == ["."]
