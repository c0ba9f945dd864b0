"""Folders give the values of columns that files leave out (fmt 4.1)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from filegroups.keys.keys import DroppedPartitionColumns
from timeline.errors import CorruptTableError


def values(path: str, *fields: str, **more: bool) -> list[str | None]:
    columns = DroppedPartitionColumns(fields=fields, dropped=fields, **more)
    return list(columns.values(path).values())


@pytest.mark.parametrize(
    ("path", "fields", "style", "expected"),
    [
        ("us", ("r",), {}, ["us"]),
        ("us/2024", ("r", "y"), {}, ["us", "2024"]),
        ("r=us/y=2024", ("r", "y"), {"hive_style": True}, ["us", "2024"]),
        ("r=a=b", ("r",), {"hive_style": True}, ["a=b"]),
        ("2024/03/09", ("d",), {}, ["2024/03/09"]),
        ("r=us/d=2024/03", ("r", "d"), {"hive_style": True}, ["us", "2024/03"]),
        ("__HIVE_DEFAULT_PARTITION__", ("r",), {}, [None]),
        ("a%2Fb%25", ("r",), {"url_encode": True}, ["a/b%"]),
        ("a%2Fb", ("r",), {}, ["a%2Fb"]),
    ],
)
def test_a_partition_path_is_split_as_it_was_joined(
    path: str, fields: tuple[str, ...], style: dict[str, bool], expected: list[str | None]
) -> None:
    assert values(path, *fields, **style) == expected


@pytest.mark.parametrize(
    ("path", "style"),
    [
        ("us", {}),
        ("a/b/c", {}),
        ("us/2024", {"hive_style": True}),
        ("y=2024/r=us", {"hive_style": True}),
        ("r=us", {"hive_style": True}),
    ],
)
def test_a_folder_of_another_form_is_refused(path: str, style: dict[str, bool]) -> None:
    with pytest.raises(CorruptTableError) as refused:
        values(path, "r", "y", **style)
    assert refused.value.kind == "bad_partition_path"


def test_only_columns_that_the_files_lack_are_filled() -> None:
    columns = DroppedPartitionColumns(fields=("r", "y"), dropped=("y",))
    filled = columns.fill(pa.table({"r": [1], "a": [2]}), "us/2024")
    assert filled.to_pylist() == [{"r": 1, "a": 2, "y": "2024"}]


def test_levels_without_a_name_belong_to_the_field_before_them() -> None:
    columns = DroppedPartitionColumns(fields=("a", "b"), dropped=("a", "b"), hive_style=True)
    assert columns.values("a=1/x/b=2/y/z") == {"a": "1/x", "b": "2/y/z"}
    assert columns.values("a=1/x=2/b=3") == {"a": "1/x=2", "b": "3"}
