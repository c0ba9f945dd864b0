"""No path from outside leads out of the table (SEC1, SEC2)."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.errors import MalformedNameError
from timeline.model.file_names import check_partition_path, check_relative_path, join, parent_folder

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/..",
    "a/../b",
    "a/../../b",
    ".",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "//a",
    "a\x00b",
    "a\nb",
    "a\rb",
    "a\x7fb",
    "a\\b",
    "..\\..\\x",
    "x" * 256,
    "ü" * 128,
    "a/" + "x" * 256,
]


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_are_refused(path: str):
    with pytest.raises(MalformedNameError) as caught:
        check_relative_path(path)
    assert caught.value.fields["path"] == path


@pytest.mark.parametrize("path", [p for p in HOSTILE if p])
def test_hostile_partition_paths_are_refused(path: str):
    with pytest.raises(MalformedNameError):
        check_partition_path(path)


@pytest.mark.parametrize("path", [".hoodie", ".hoodie/timeline", ".hoodie/.hoodoo/slots"])
def test_the_folder_of_the_table_is_no_partition(path: str):
    with pytest.raises(MalformedNameError):
        check_partition_path(path)


@pytest.mark.parametrize(
    "path",
    ["a", "a/b", "year=2026/month=01", "...", "..a", "a..", ".hoodiex", "x" * 255, "ü/ß", "a b%2F"],
)
def test_ordinary_paths_pass(path: str):
    assert check_relative_path(path) == path
    assert check_partition_path(path) == path


def test_the_unpartitioned_table_is_the_empty_path():
    assert check_partition_path("") == ""
    assert join("", "f.parquet") == "f.parquet"
    assert parent_folder("f.parquet") == ""
    assert parent_folder("a/b/f.parquet") == "a/b"


@pytest.mark.parametrize("pieces", [("a", "../b"), ("a", "/b"), ("", ""), ("..", "b")])
def test_joining_never_leaves(pieces: tuple[str, ...]):
    with pytest.raises(MalformedNameError):
        join(*pieces)


@given(st.text(alphabet="ab./\\\x00\n:%~", max_size=12))
def test_an_accepted_path_is_strictly_below_the_table(path: str):
    try:
        check_relative_path(path)
    except MalformedNameError:
        return
    resolved = posixpath.normpath(posixpath.join("/table", path))
    assert resolved == f"/table/{path}"
    assert "\\" not in path
