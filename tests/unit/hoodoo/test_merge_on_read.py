"""Merge-on-read tables of Java: written, cleaned and verified; and the findings in our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import Verification, verify_at
from tests.interop import golden_tables
from timeline.properties.properties_file import update_properties

MANUAL = {"hoodie.clean.automatic": "false", "hoodie.metadata.enable": "false"}
PENDING, DONE = "v9_mor_compaction_pending", "v9_mor_compaction_done"


def newer(rows: pa.Table) -> pa.Table:
    """The same rows, each with a greater ordering value."""
    at = rows.schema.get_field_index("ts")
    raised = pc.cast(pc.add(rows.column(at), 1_000), rows.schema.field(at).type)
    return rows.set_column(at, rows.schema.field(at), raised)


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=str)


@pytest.mark.parametrize("name", [PENDING, DONE, "v8_mor_logs", "v8_mor_compaction_pending"])
def test_rows_are_appended_to_java_s_slices(tmp_path: Path, name: str) -> None:
    path = golden_tables.unpack(name, tmp_path)
    with hoodoo.open_table(path, properties=MANUAL) as table:
        rows = table.to_arrow()
        assert rows.num_rows > 2
        before = {one.file_group: one for one in table.file_slices()}
        result = table.upsert(newer(rows))
        assert (result.action, result.rows_inserted) == ("deltacommit", 0)
        assert in_order(table.to_arrow()) == in_order(newer(rows))
        for one in table.file_slices():
            old = before[one.file_group]
            assert one.base_file == old.base_file
            assert one.log_files[: len(old.log_files)] == old.log_files
        gone = rows.slice(0, 2)
        assert table.delete(gone).rows_deleted == 2
        assert in_order(table.to_arrow()) == in_order(newer(rows.slice(2)))
    assert verify_at(path, Layers()).problems == ()


def test_appends_go_to_the_slice_of_a_pending_compaction(tmp_path: Path) -> None:
    """
    It completed after the plan was requested, so it is on top of the compaction's result (fmt 6.1).
    """
    path = golden_tables.unpack(PENDING, tmp_path)
    requested = "20261121100843334"
    with hoodoo.open_table(path, properties=MANUAL) as table:
        table.upsert(newer(table.to_arrow()))
        view = table.current_state().view
        for one in table.file_slices():
            newest = view.slices(one.file_group.partition_path)[one.file_group][-1]
            assert (newest.base_instant_time, newest.base_file) == (requested, None)
            assert newest.log_files[-1] == one.log_files[-1]


def test_cleaning_deletes_expired_slices_with_their_logs_and_keeps_the_others(
    tmp_path: Path,
) -> None:
    path = golden_tables.unpack(DONE, tmp_path)
    settings = {**MANUAL, "hoodie.clean.commits.retained": "1"}
    with hoodoo.open_table(path, properties=settings) as table:
        rows, slices = table.to_arrow(), table.file_slices()
        table.upsert(newer(rows))
        first = table.services.clean()
        assert first is not None
        assert any(".log." in file for file in first.files)
        assert all("20261121100859010" not in file for file in first.files)
        assert in_order(table.to_arrow()) == in_order(newer(rows))
        for one in slices:
            files = [one.base_file, *one.log_files]
            assert all(file is None or (path / file.path).exists() for file in files)
    assert verify_at(path, Layers()).problems == ()


@pytest.mark.spec("CLN-2")
def test_cleaning_keeps_the_input_of_a_pending_compaction(tmp_path: Path) -> None:
    path = golden_tables.unpack(PENDING, tmp_path)
    settings = {**MANUAL, "hoodie.clean.commits.retained": "1"}
    with hoodoo.open_table(path, properties=settings) as table:
        rows = table.to_arrow()
        table.upsert(newer(rows))
        table.services.clean()
        assert in_order(table.to_arrow()) == in_order(newer(rows))


def test_a_global_index_finds_keys_in_logs(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a"], "p": ["x"], "ts": [1]})
    moved = pa.table({"id": ["a"], "p": ["y"], "ts": [2]})
    index = {**MANUAL, "hoodie.index.type": "GLOBAL_SIMPLE"}
    with hoodoo.create_table(
        tmp_path / "t",
        schema=rows.schema,
        record_key="id",
        partition_by="p",
        table_type="MERGE_ON_READ",
        properties=index,
    ) as table:
        table.upsert(rows)
        table.upsert(rows)
        table.upsert(moved)
        table.upsert(moved)
        assert table.to_arrow().to_pylist() == moved.to_pylist()


# ---------------------------------------------------------------- verifying


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A base file and two logs of one file group."""
    folder = tmp_path / "t"
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    with hoodoo.create_table(
        folder,
        schema=rows.schema,
        record_key="id",
        table_type="MERGE_ON_READ",
        properties=MANUAL,
    ) as table:
        table.upsert(rows)
        table.upsert(rows.slice(0, 1))
        table.upsert(rows.slice(1, 1))
    return folder


def logs(path: Path) -> list[Path]:
    return sorted(path.glob(".*.log.*"))


def check(path: Path) -> Verification:
    return verify_at(path, Layers())


def test_an_intact_table_with_logs_has_no_problem(ours: Path) -> None:
    found = check(ours)
    assert (found.problems, found.notes) == ((), ())
    assert (found.instants, found.file_slices, found.rows) == (3, 1, 3)


def test_a_missing_log_is_found(ours: Path) -> None:
    logs(ours)[0].unlink()
    (problem,) = check(ours).problems
    assert (problem.kind, ".log.1_" in problem.path) == ("missing_file", True)


def test_a_log_of_another_size_is_found(ours: Path) -> None:
    with logs(ours)[1].open("ab") as file:
        file.write(b"more")
    assert [one.kind for one in check(ours).problems] == ["file_size", "log_torn"]


def test_a_log_that_no_commit_names_is_found(ours: Path) -> None:
    known = logs(ours)[0]
    known.with_name(known.name.replace(".log.1_", ".log.2_")).write_bytes(known.read_bytes())
    assert [one.kind for one in check(ours).problems] == ["unannounced_file"]


def test_a_log_of_an_unknown_instant_is_found(ours: Path) -> None:
    known = logs(ours)[-1]
    group, _, rest = known.name.partition("_")
    later = str(int(rest[:17]) + 40) + rest[17:]
    known.with_name(f"{group}_{later}").write_bytes(known.read_bytes())
    assert [one.kind for one in check(ours).problems] == ["unknown_instant"]


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE"])
def test_rows_are_ordered_by_a_field_inside_a_struct(
    tmp_path: Path, table_type: str, index: str
) -> None:
    def row(at: int, partition: str, value: int) -> dict[str, Any]:
        return {"id": "a", "p": partition, "s": {"at": at}, "v": value}

    properties = {"hoodie.index.type": index, **MANUAL}
    options = {"record_key": "id", "partition_by": "p", "ordering": "v", "table_type": table_type}
    with hoodoo.create_table(tmp_path, **options, properties=properties) as table:
        table.upsert([row(5, "x", 1)])
        storage = table.context.ports.storage
    ordering = {"hoodie.table.ordering.fields": "s.at"}  # as Java says it
    update_properties(storage, ordering, now="20261121000000000")
    with hoodoo.open_table(tmp_path, properties=properties) as table:
        table.upsert([row(6, "x", 2)])
        table.upsert([row(4, "x", 3)])
        assert table.to_arrow().to_pylist() == [row(6, "x", 2)]
        if index == "GLOBAL_SIMPLE":
            table.upsert([row(5, "y", 4)])
            assert table.to_arrow().to_pylist() == [row(6, "x", 2)]
        table.delete([row(0, "x", 0)])
        table.upsert([row(5, "x", 5)])
        # The log's delete has the ordering value of its row. A base file forgets it, and with a
        # global index a deleted key starts again elsewhere.
        late = (table_type, index) == ("MERGE_ON_READ", "SIMPLE")
        assert table.to_arrow().to_pylist() == ([] if late else [row(5, "x", 5)])
