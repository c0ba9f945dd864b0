"""Verification finds each damage, one at a time, with its kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import Verification, verify_at
from tests.interop import golden_tables

META_AND_ID = 6  # columns before the name
MANUAL = {"hoodie.clean.automatic": "false"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two commits of one file group."""
    folder = tmp_path / "t"
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    with hoodoo.create_table(
        folder, schema=rows.schema, record_key=["id"], properties=MANUAL
    ) as table:
        table.upsert(rows)
        table.upsert(rows.slice(0, 1))
    return folder


def check(path: Path) -> Verification:
    return verify_at(path, Layers())


def kinds(found: Verification) -> list[str]:
    return [each.kind for each in found.problems]


def base_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.parquet"), key=lambda file: file.name.rsplit("_", 1)[1])


def completed(path: Path) -> list[Path]:
    return sorted((path / ".hoodie" / "timeline").glob("*.commit"))


def slots(path: Path) -> list[Path]:
    return sorted((path / ".hoodie" / ".hoodoo" / "slots").iterdir())


def test_an_intact_table_has_neither_problems_nor_notes(path: Path) -> None:
    found = check(path)
    assert (found.problems, found.notes) == ((), ())
    assert (found.instants, found.file_slices, found.rows) == (2, 1, 3)


def test_an_older_version_that_was_cleaned_is_no_problem(path: Path) -> None:
    base_files(path)[0].unlink()
    assert check(path).ok


def test_a_key_field_that_is_no_column_is_a_problem(path: Path) -> None:
    properties = path / ".hoodie" / "hoodie.properties"
    text = properties.read_text()
    wrong = text.replace("hoodie.table.recordkey.fields=id", "hoodie.table.recordkey.fields=idd")
    assert wrong != text
    properties.write_text(wrong)
    (problem,) = check(path).problems
    assert (problem.kind, problem.path) == ("missing_key_column", ".hoodie/hoodie.properties")
    assert "['idd']" in problem.message


def test_old_markers_are_noted_with_the_command_that_deletes_them(path: Path) -> None:
    (path / ".hoodie" / ".temp" / "20200101000000000").mkdir(parents=True)
    (note,) = check(path).notes
    assert note.kind == "leftover"
    assert "hoodoo services run TABLE --service clean" in note.message


def test_a_truncated_file_is_found(path: Path) -> None:
    newest = base_files(path)[-1]
    newest.write_bytes(newest.read_bytes()[:-10])
    found = kinds(check(path))
    assert "file_size" in found
    assert "bad_base_file" in found


def test_a_file_without_an_instant_is_found(path: Path) -> None:
    newest = base_files(path)[-1]
    stray = newest.name.rsplit("_", 1)[0] + "_29990101000000000.parquet"
    shutil.copy(newest, path / stray)
    (problem,) = check(path).problems
    assert (problem.kind, problem.path) == ("unknown_instant", stray)


def test_a_second_file_of_a_committed_instant_is_found(path: Path) -> None:
    newest = base_files(path)[-1]
    other = newest.name.replace(newest.name[:8], "00000000", 1)
    shutil.copy(newest, path / other)
    found = kinds(check(path))
    assert "unannounced_file" in found
    assert "duplicate_key" in found


def test_a_late_file_of_a_left_out_file_group_is_only_noted(path: Path) -> None:
    """CL-1: a clustering hides its output for changed groups, also when it is late."""
    replaced = base_files(path)[-1]
    rows = pa.table({"id": [7], "name": ["g"]})
    with hoodoo.open_table(path, properties=MANUAL) as table:
        result = table.insert_overwrite_table(rows)
    late = f"{replaced.name.rsplit('_', 1)[0]}_{result.requested_time}.parquet"
    shutil.copy(replaced, path / late)
    found = check(path)
    assert found.problems == ()
    assert [(note.kind, note.path) for note in found.notes] == [("leftover", late)]


def test_a_key_in_two_file_groups_is_found(path: Path) -> None:
    with hoodoo.open_table(path, properties=MANUAL) as table:
        table.bulk_insert(pa.table({"id": [3, 4], "name": ["c", "d"]}))
    (problem,) = check(path).problems
    assert problem.kind == "duplicate_key"
    assert "['3']" in problem.message


def merge_on_read(path: Path) -> hoodoo.Table:
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    table = hoodoo.create_table(
        path,
        schema=rows.schema,
        record_key=["id"],
        table_type="MERGE_ON_READ",
        properties=MANUAL,
    )
    table.upsert(rows)
    table.upsert(pa.table({"id": [2], "name": ["B"]}))
    table.delete(pa.table({"id": [1]}))
    return table


def test_rows_are_those_of_merged_slices(tmp_path: Path) -> None:
    merge_on_read(tmp_path / "t").close()
    found = check(tmp_path / "t")
    assert (found.problems, found.file_slices, found.rows) == ((), 1, 2)


def test_keys_are_those_of_merged_slices(tmp_path: Path) -> None:
    """The log took 1 away and left 2: only 2 is there twice."""
    with merge_on_read(tmp_path / "t") as table:
        table.bulk_insert(pa.table({"id": [1, 2], "name": ["x", "y"]}))
    found = check(tmp_path / "t")
    (problem,) = found.problems
    assert (problem.kind, found.rows) == ("duplicate_key", 4)
    assert "['2']" in problem.message


@pytest.mark.parametrize("begins", ["beefcafe", "12345678"])
def test_a_writer_that_ignored_the_buckets_is_found(tmp_path: Path, begins: str) -> None:
    """Java keeps no index options in the table: without them it makes file groups of its own."""
    rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
    with hoodoo.create_table(
        tmp_path / "t", schema=rows.schema, record_key=["id"], properties={**MANUAL, **buckets}
    ) as table:
        table.upsert(rows)
    assert check(tmp_path / "t").ok
    (file,) = base_files(tmp_path / "t")
    shutil.copy(file, file.with_name(f"{begins}{file.name[8:]}"))
    assert "no_bucket" in kinds(check(tmp_path / "t"))


def test_a_damaged_log_is_found_by_merging_it(tmp_path: Path) -> None:
    merge_on_read(tmp_path / "t").close()
    log = max((tmp_path / "t").glob(".*.log.*"))
    log.write_bytes(b"x" * log.stat().st_size)
    assert "bad_log_file" in kinds(check(tmp_path / "t"))


@pytest.mark.parametrize("on_read", [False, True], ids=["base file", "merged slice"])
def test_damage_in_any_column_is_found_when_all_are_decoded(
    path: Path, tmp_path: Path, on_read: bool
) -> None:
    if on_read:
        path = tmp_path / "on_read"
        merge_on_read(path).close()
    file = base_files(path)[-1]
    chunk = pq.read_metadata(file).row_group(0).column(META_AND_ID)
    assert chunk.path_in_schema == "name"
    content = bytearray(file.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + 8] = b"\xff" * 8
    file.write_bytes(content)
    assert check(path).ok
    found = verify_at(path, Layers(), all_columns=True)
    assert [(one.kind, one.path) for one in found.problems] == [("bad_base_file", file.name)]


def test_two_versions_from_one_source_are_a_lost_update(path: Path) -> None:
    """The second commit's metadata is put under a third instant: both built on the first."""
    second = completed(path)[-1]
    requested = second.name.split("_")[0]
    later = "29990101000000000"
    content = second.read_bytes().replace(requested.encode(), later.encode())
    (second.parent / f"{later}_29990101000000001.commit").write_bytes(content)
    newest = base_files(path)[-1]
    shutil.copy(newest, path / newest.name.replace(requested, later))
    assert "lost_update" in kinds(check(path))


def test_a_version_made_from_a_newer_one_is_a_lost_update(path: Path) -> None:
    """Readers see the newer one only (hole 23)."""
    second = completed(path)[-1]
    first_time, second_time = (file.name.split("_")[0] for file in completed(path)[-2:])
    between = f"{int(second_time) - 1:017}"
    content = second.read_bytes().replace(second_time.encode(), between.encode())
    content = content.replace(first_time.encode(), second_time.encode())
    (second.parent / f"{between}_29990101000000001.commit").write_bytes(content)
    newest = base_files(path)[-1]
    shutil.copy(newest, path / newest.name.replace(second_time, between))
    (problem,) = (one for one in check(path).problems if one.kind == "lost_update")
    assert f"computed from the newer {second_time}" in problem.message


def test_a_completed_file_that_was_edited_is_found(path: Path) -> None:
    with completed(path)[0].open("ab") as file:
        file.write(b"\n")
    assert "completed_differs" in kinds(check(path))


def older_commit_without_completed_file(folder: Path, table_type: str) -> tuple[str, bytes]:
    """Four writes; delete the completed file of the second, or of a compaction, and return both."""
    schema = pa.schema([("id", pa.int64())])
    with hoodoo.create_table(
        folder, schema=schema, record_key=["id"], table_type=table_type, properties=MANUAL
    ) as table:
        for k in range(3):
            table.bulk_insert({"id": [k]})
        chosen = completed(folder)[1:2]
        if table_type == "MERGE_ON_READ":
            table.upsert({"id": [0]})
            table.services.compact()
            chosen = completed(folder)
        table.bulk_insert({"id": [3]})
        table.bulk_insert({"id": [4]})
    content = chosen[0].read_bytes()
    chosen[0].unlink()
    return str(chosen[0]), content


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_an_older_commit_without_its_completed_file_is_found_and_resolve_creates_it(
    tmp_path: Path, table_type: str
) -> None:
    """RB-3; a decided commit stays decided, so no file of it is a leftover."""
    name, content = older_commit_without_completed_file(tmp_path / "t", table_type)
    found = check(tmp_path / "t")
    assert (kinds(found), found.notes) == (["completed_missing"], ())
    time = Path(name).name[:17]
    assert f"hoodoo explain TABLE {time} --resolve" in found.problems[0].message
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.resolve(time).completion_time == Path(name).name[18:35]
        assert Path(name).read_bytes() == content
        assert table.count() == 5
    assert check(tmp_path / "t").ok


def test_a_clean_creates_the_missing_completed_file_of_an_older_commit(tmp_path: Path) -> None:
    name, content = older_commit_without_completed_file(tmp_path / "t", "COPY_ON_WRITE")
    with hoodoo.open_table(tmp_path / "t") as table:
        table.services.clean()
        assert Path(name).read_bytes() == content


def test_a_completed_file_that_another_engine_is_restoring_away_is_not_created(
    tmp_path: Path,
) -> None:
    """Java's restore deletes the completed file before the data files."""
    name, _ = older_commit_without_completed_file(tmp_path / "t", "COPY_ON_WRITE")
    (Path(name).parent / "29990101000000000.restore.inflight").touch()
    with hoodoo.open_table(tmp_path / "t") as table:
        table.resolve(Path(name).name[:17])
        assert not Path(name).exists()


def test_a_damaged_slot_is_found(path: Path) -> None:
    first = slots(path)[0]
    first.write_bytes(first.read_bytes().replace(b'"n":1', b'"n":7'))
    assert kinds(check(path)) == ["checksum"]


def test_a_gap_in_the_commit_log_is_found(path: Path) -> None:
    slots(path)[0].unlink()
    assert kinds(check(path)) == ["slot_missing"]


@pytest.mark.spec("SLOT-1")
@pytest.mark.parametrize("lost", [slice(1, None), slice(None)], ids=["newest", "all"])
def test_a_commit_log_that_ends_before_an_own_write_is_found(path: Path, lost: slice) -> None:
    """Its numbers would be taken again, as after a backup that is older than the table."""
    for slot in slots(path)[lost]:
        slot.unlink()
    assert kinds(check(path)) == ["slots_lost"]


@pytest.mark.spec("GC-2")
def test_a_commit_log_with_only_a_truncation_point_is_found(path: Path) -> None:
    few = {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    }
    with hoodoo.open_table(path, properties=few) as table:
        for _ in range(5):
            table.upsert(pa.table({"id": [1], "name": ["d"]}))
    assert check(path).ok
    for slot in slots(path):
        slot.unlink()
    assert kinds(check(path)) == ["slot_missing", "slots_lost"]


@pytest.mark.spec("SLOT-6")
def test_a_slot_store_without_the_table_or_of_another_one_is_reported(tmp_path: Path) -> None:
    options = {
        **MANUAL,
        "hoodoo.slots.backend": "sql",
        "hoodoo.lock.sql.url": str(tmp_path / "slots.db"),
        "hoodoo.lock.sql.create_table": "true",
    }
    path, rows = tmp_path / "t", pa.table({"id": [1], "name": ["a"]})
    with hoodoo.create_table(
        path, schema=rows.schema, record_key=["id"], properties=options
    ) as table:
        table.upsert(rows)
    whole = verify_at(path, Layers().with_code(options))
    assert (whole.problems, whole.notes) == ((), ())
    unseen = check(path)
    assert (unseen.ok, [note.kind for note in unseen.notes]) == (True, ["slots_elsewhere"])
    (tmp_path / "slots.db").unlink()
    assert kinds(verify_at(path, Layers().with_code(options))) == ["slots_lost"]


def test_times_that_contradict_each_other_are_found(path: Path) -> None:
    first, second = completed(path)
    requested, completion = second.name.removesuffix(".commit").split("_")
    before = first.name.split("_")[0]
    second.rename(second.with_name(f"{requested}_{before}.commit"))
    assert "time_order" in kinds(check(path))
    assert completion > requested


def test_a_dead_write_is_a_note_because_the_next_clean_removes_it(tmp_path: Path) -> None:
    found = check(golden_tables.unpack("v9_inflight_crashed", tmp_path))
    assert found.ok
    assert {note.kind for note in found.notes} == {"leftover"}


@pytest.mark.parametrize("name", [*golden_tables.names("v8"), *golden_tables.names("v9")])
def test_the_tables_of_java_hudi_verify(tmp_path: Path, name: str) -> None:
    found = verify_at(golden_tables.unpack(name, tmp_path), Layers(), history=True)
    assert found.problems == ()
