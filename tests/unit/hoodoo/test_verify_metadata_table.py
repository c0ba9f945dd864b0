"""``verify`` names each difference between a table and its metadata table."""

from __future__ import annotations

from pathlib import Path

import pytest

import hoodoo
from tests.interop import golden_tables


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return golden_tables.unpack(getattr(request, "param", "v9_cow_files"), tmp_path)


def problems(path: Path) -> set[tuple[str, str]]:
    with hoodoo.open_table(path) as table:
        return {(one.kind, one.path) for one in table.verify().problems}


@pytest.mark.parametrize("path", golden_tables.metadata_names(), indirect=True)
def test_a_metadata_table_of_java_has_no_problem(path: Path) -> None:
    assert not {one for one in problems(path) if one[0].startswith("metadata")}


def test_the_metadata_table_after_writes_has_no_problem(path: Path) -> None:
    with hoodoo.open_table(path) as table:
        rows = table.to_arrow()
        table.upsert(rows.slice(0, 2))
        table.delete(filter="id = 'k001'")
        table.services.clean()
    assert not problems(path)


def newest(path: Path) -> str:
    return max((path / ".hoodie/timeline").glob("*_*.commit")).name.split("_")[0]


def test_a_commit_that_the_metadata_table_lacks_is_named_with_its_files(path: Path) -> None:
    time = newest(path)
    next((path / ".hoodie/metadata/.hoodie/timeline").glob(f"{time}_*")).unlink()
    files = {str(one.relative_to(path)) for one in path.glob(f"p*/*_{time}.parquet")}
    assert files
    expected = {("metadata_missing_file", file) for file in files}
    assert problems(path) == {("metadata_behind", time), *expected}


def test_a_file_that_is_listed_and_missing_is_named(path: Path) -> None:
    files = sorted(path.glob("p0/*.parquet"), key=lambda one: one.name.split("_")[2])
    files[0].unlink()  # an old slice, which no read of the newest rows needs
    assert problems(path) == {("metadata_stale_file", str(files[0].relative_to(path)))}


def test_a_damaged_metadata_table_is_named(path: Path) -> None:
    for file in (path / ".hoodie/metadata/files").glob(".*.log.*"):
        file.write_bytes(file.read_bytes().replace(b"DATABLK*", b"damaged!"))
    assert {kind for kind, _ in problems(path)} == {"bad_hfile"}
