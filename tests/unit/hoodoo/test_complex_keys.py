"""A complex key of one field has two forms, and a writer takes that of the stored keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.table import Table
from tableservices.upgrade import upgrade
from timeline.errors import HoodooError, InvalidInputError, UnsupportedTableError
from timeline.properties.properties_file import update_properties

FORM = "hoodie.write.complex.keygen.new.encoding"
COMPLEX = {"hoodie.datasource.write.keygenerator.type": "COMPLEX"}
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])


def rows(*keys: str, p: str = "x", v: int = 1) -> pa.Table:
    return pa.table({"id": list(keys), "p": [p] * len(keys), "v": [v] * len(keys)}, SCHEMA)


def table_of(root: Path, bare: bool, version: int = 8, **options: Any) -> Table:
    form = {FORM: str(bare).lower()} if version == 8 else {}
    properties = {**COMPLEX, "hoodie.write.table.version": str(version), **form}
    made = hoodoo.create_table(
        root,
        schema=SCHEMA,
        record_key=["id"],
        partition_by=["p"],
        properties=properties,
        **options,
    )
    with made:  # forgets the form, as tables made by Java do
        update_properties(made.context.ports.storage, {FORM: None}, now="now")
    return hoodoo.open_table(root, properties=form)


def opened(root: Path, bare: bool | None = None) -> Table:
    return hoodoo.open_table(root, properties={} if bare is None else {FORM: str(bare).lower()})


def keys(table: Table) -> list[str]:
    return sorted(table.to_arrow(columns=["_hoodie_record_key"])[0].to_pylist())


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("bare", [False, True])
def test_a_writer_takes_the_form_of_the_stored_keys(
    tmp_path: Path, bare: bool, table_type: str
) -> None:
    with table_of(tmp_path / "t", bare, table_type=table_type) as table:
        table.upsert(rows("a", "id:b"))
    with opened(tmp_path / "t") as table:
        result = table.upsert(rows("a", "id:b", "c", v=2))
        assert (result.rows_updated, result.rows_inserted) == (2, 1)
        assert keys(table) == (["a", "c", "id:b"] if bare else ["id:a", "id:c", "id:id:b"])
        table.delete(rows("a").select(["id", "p"]))
        assert table.to_arrow().num_rows == 2


def test_stored_keys_without_the_name_keep_their_form_in_version_9(tmp_path: Path) -> None:
    with table_of(tmp_path / "t", bare=True) as table:
        table.upsert(rows("a"))
        storage = table.context.ports.storage
        update_properties(storage, {"hoodie.table.version": "9"}, now="now")
    with opened(tmp_path / "t") as table:
        table.upsert(rows("a", v=2))
        assert keys(table) == ["a"]


def test_an_option_for_the_other_form_is_refused(tmp_path: Path) -> None:
    with table_of(tmp_path / "t", bare=True) as table:
        table.upsert(rows("a"))
    with (
        opened(tmp_path / "t", bare=False) as table,
        pytest.raises(InvalidInputError, match=f"{FORM}=true"),
    ):
        table.upsert(rows("a"))


def mixed(root: Path, p: str = "x") -> None:
    """Two releases of Hudi wrote to one table, each in its form."""
    with table_of(root, bare=True) as table:
        table.insert(rows("a", "b"))
    with opened(root) as table:
        table.context.key_encodings[""] = frozenset({True})
        table.bulk_insert(rows("a", p=p, v=2))


@pytest.mark.parametrize("p", ["x", "y"])
def test_a_table_with_both_forms_is_refused(tmp_path: Path, p: str) -> None:
    mixed(tmp_path / "t", p)
    with opened(tmp_path / "t") as table:
        for write in (table.upsert, table.insert):
            with pytest.raises(UnsupportedTableError, match="repair-keys") as refused:
                write(rows("a"))
            assert refused.value.kind == "mixed_key_encoding"


def test_a_file_group_of_the_other_key_form_is_not_read(tmp_path: Path) -> None:
    mixed(tmp_path / "t", "y")
    with opened(tmp_path / "t") as table:
        table.context.key_encodings[""] = frozenset({False})  # where a sample missed the others
        table.upsert(rows("a", v=3))
        with pytest.raises(UnsupportedTableError, match="repair-keys"):
            table.upsert(rows("a", p="y", v=3))


@pytest.mark.parametrize("bare", [False, True])
def test_an_upgrade_reads_the_stored_keys(tmp_path: Path, bare: bool) -> None:
    with table_of(tmp_path / "t", bare) as table:
        table.upsert(rows("a", "b"))
    with opened(tmp_path / "t") as table:
        if bare:
            with pytest.raises(HoodooError, match="keep version 8"):
                upgrade(table.context)
            return
        assert upgrade(table.context) is not None
    with opened(tmp_path / "t") as table:
        table.upsert(rows("a", v=2))
        assert keys(table) == ["id:a", "id:b"]


@pytest.mark.parametrize("bare", [False, True])
def test_a_table_without_rows_is_upgraded(tmp_path: Path, bare: bool) -> None:
    with table_of(tmp_path / "t", bare) as table:
        assert upgrade(table.context) is not None
    with opened(tmp_path / "t") as table:
        table.upsert(rows("a"))
        assert keys(table) == ["id:a"]
