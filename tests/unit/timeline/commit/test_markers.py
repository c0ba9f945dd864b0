"""Markers announce data files, and both of Java's forms are read (fmt 1.4, SEC2)."""

from __future__ import annotations

import pytest

from tests.unit.timeline.memory import MemoryStorage
from timeline.commit.markers import create_marker, delete_markers, marker_files
from timeline.errors import MalformedNameError
from timeline.model.file_names import IOType

TIME = "20260102030405006"
FILE = f"0a1b-0_0-1-2_{TIME}.parquet"
LOG = f".0a1b-0_{TIME}.log.1_0-1-2"
FOLDER = f".hoodie/.temp/{TIME}"


def test_a_marker_has_the_path_that_java_reads():
    storage = MemoryStorage()
    create_marker(storage, TIME, "y=1/m=2", FILE, IOType.MERGE)
    assert storage.read(f"{FOLDER}/y=1/m=2/{FILE}.marker.MERGE") == b""


def test_announcing_a_file_twice_is_fine():
    storage = MemoryStorage()
    create_marker(storage, TIME, "", FILE, IOType.CREATE)
    create_marker(storage, TIME, "", FILE, IOType.CREATE)
    assert marker_files(storage, TIME) == (("", FILE, IOType.CREATE),)


def test_markers_of_all_partitions_are_found():
    storage = MemoryStorage()
    create_marker(storage, TIME, "y=1/m=2", FILE, IOType.MERGE)
    create_marker(storage, TIME, "y=2", LOG, IOType.CREATE)
    create_marker(storage, "20260102030405007", "y=3", FILE, IOType.CREATE)
    paths = [each.path for each in marker_files(storage, TIME)]
    assert paths == [f"y=1/m=2/{FILE}", f"y=2/{LOG}"]


def test_lists_of_the_timeline_server_are_read():
    storage = MemoryStorage()
    storage.create(f"{FOLDER}/MARKERS.type", b"TIMELINE_SERVER_BASED")
    storage.create(f"{FOLDER}/MARKERS0", f"a=1/{FILE}.marker.CREATE\n".encode())
    storage.create(f"{FOLDER}/MARKERS3", f"a=2/{FILE}.marker.MERGE\n{LOG}.marker.CREATE".encode())
    assert marker_files(storage, TIME) == (
        ("", LOG, IOType.CREATE),
        ("a=1", FILE, IOType.CREATE),
        ("a=2", FILE, IOType.MERGE),
    )


@pytest.mark.parametrize(
    "line",
    [
        f"../x/{FILE}.marker.CREATE",
        f"/etc/{FILE}.marker.CREATE",
        f"/{FILE}.marker.CREATE",
        f"a//{FILE}.marker.CREATE",
        f".hoodie/{FILE}.marker.CREATE",
        "a/hoodie.properties.marker.CREATE",
        f"a/{FILE}.marker.DELETE",
        f"a/{FILE}",
        f"a\\b/{FILE}.marker.CREATE",
    ],
)
def test_names_outside_the_grammar_are_ignored(line):
    storage = MemoryStorage()
    storage.create(f"{FOLDER}/MARKERS0", f"{line}\na/{FILE}.marker.CREATE\n".encode())
    assert [each.path for each in marker_files(storage, TIME)] == [f"a/{FILE}"]


def test_a_partition_path_out_of_the_table_gets_no_marker():
    with pytest.raises(MalformedNameError):
        create_marker(MemoryStorage(), TIME, "../x", FILE, IOType.CREATE)


def test_deleting_removes_only_this_instants_markers():
    storage = MemoryStorage()
    other = "20260102030405007"
    create_marker(storage, TIME, "y=1", FILE, IOType.CREATE)
    create_marker(storage, other, "y=1", FILE, IOType.CREATE)
    delete_markers(storage, TIME)
    assert marker_files(storage, TIME) == ()
    assert len(marker_files(storage, other)) == 1


def test_no_markers_is_an_empty_listing():
    assert marker_files(MemoryStorage(), TIME) == ()


@pytest.mark.parametrize("time", ["", ".", "..", "2026", f"{TIME}/x"])
def test_only_a_requested_time_names_markers(time):
    with pytest.raises(MalformedNameError):
        delete_markers(MemoryStorage(), time)
