"""File slices by completion time, and logs by requested time (fmt 6.1, 5.7, NBCC-3)."""

from __future__ import annotations

import pytest

from timeline.model.commit_metadata import FileGroupId
from timeline.model.file_slice import (
    BaseFile,
    FileSlice,
    LogFile,
    Slicing,
    merged_slice,
    slice_file_group,
    slice_files,
)

G, B = FileGroupId("p", "g"), FileGroupId("p", "b")


def base(time: str, group: FileGroupId = G) -> BaseFile:
    return BaseFile(file_group=group, name=f"{time}.parquet", requested_time=time, size_bytes=10)


def log(time: str, version: int = 1, token: str = "0-0-0", group: FileGroupId = G) -> LogFile:
    return LogFile(
        file_group=group,
        name=f"{time}.{version}.{token}",
        instant_time=time,
        log_version=version,
        write_token=token,
        size_bytes=1,
    )


def as_tuples(slices: list[FileSlice]) -> list[tuple[str, bool, list[str]]]:
    return [
        (one.base_instant_time, one.base_file is not None, [each.name for each in one.log_files])
        for one in slices
    ]


def sliced(bases, logs, completions, pending=()):
    return as_tuples(
        slice_file_group(G, bases, logs, completion_of=completions.get, pending_compactions=pending)
    )


COMPLETIONS = {"t21": "t40", "t30": "t50", "t35": "t90"}
T21, T30, T35 = (f"{time}.1.0-0-0" for time in ("t21", "t30", "t35"))


def test_the_worked_example():
    logs = [log("t35"), log("t21"), log("t30")]
    assert sliced([base("t10"), base("t60")], logs, COMPLETIONS) == [
        ("t10", True, [T21, T30]),
        ("t60", True, [T35]),
    ]


def test_a_pending_compaction_opens_an_empty_slice():
    logs = [log("t35"), log("t21"), log("t30")]
    assert sliced([base("t10")], logs, COMPLETIONS, pending=["t60"]) == [
        ("t10", True, [T21, T30]),
        ("t60", False, [T35]),
    ]


def test_logs_without_a_base_open_a_slice_of_the_first_one():
    assert sliced([], [log("t30"), log("t21")], COMPLETIONS) == [("t21", False, [T21, T30])]


def test_a_log_below_every_base_opens_its_own_slice():
    assert sliced([base("t60")], [log("t21")], COMPLETIONS) == [
        ("t21", False, [T21]),
        ("t60", True, []),
    ]


def test_a_log_of_unknown_completion_joins_the_newest_slice():
    assert sliced([base("t10"), base("t60")], [log("t21")], {}) == [
        ("t10", True, []),
        ("t60", True, [T21]),
    ]


@pytest.mark.spec("NBCC-3")
def test_a_log_completed_at_the_key_belongs_to_the_slice():
    assert sliced([base("t10"), base("t40")], [log("t21")], COMPLETIONS)[1][2] == [T21]


def test_logs_keep_the_order_of_time_version_and_token():
    logs = [log("t30"), log("t21", 2), log("t21", 1, "1-0-0"), log("t21", 1, "0-0-0")]
    names = sliced([base("t10")], logs, {"t21": "t90", "t30": "t50"})[0][2]
    assert names == ["t21.1.0-0-0", "t21.1.1-0-0", "t21.2.0-0-0", "t30.1.0-0-0"]


def test_a_later_completion_does_not_reorder_logs():
    completions = {"t21": "t90", "t30": "t50"}
    assert sliced([base("t10")], [log("t30"), log("t21")], completions)[0][2] == [T21, T30]


def test_files_of_a_partition_are_grouped_and_sorted():
    h = FileGroupId("p", "h")
    found = slice_files(
        [base("t20", h), base("t10"), base("t30")],
        [log("t21", group=h)],
        completion_of=COMPLETIONS.get,
        pending_compactions={G: ["t60"], FileGroupId("p", "none"): ["t60"]},
    )
    assert list(found) == [G, h]
    assert [key for key, _, _ in as_tuples(found[G])] == ["t10", "t30", "t60"]
    assert as_tuples(found[h]) == [("t20", True, [T21])]
    assert found[h][0].size_bytes == 11


def merged(bases, logs, completions, pending=()):
    slices = slice_file_group(
        G, bases, logs, completion_of=completions.get, pending_compactions=pending
    )
    return as_tuples([merged_slice(slices, pending)])


def test_a_pending_compaction_is_read_with_the_slice_below():
    logs = [log("t35"), log("t21"), log("t30")]
    assert merged([base("t10")], logs, COMPLETIONS, pending=["t60"]) == [
        ("t10", True, [T21, T30, T35])
    ]
    assert merged([base("t10"), base("t60")], logs, COMPLETIONS, pending=()) == [
        ("t60", True, [T35])
    ]


def test_several_pending_compactions_are_read_with_all_slices_below():
    logs = [log("t35"), log("t21"), log("t30")]
    assert merged([base("t10")], logs, COMPLETIONS, pending=["t45", "t60"]) == [
        ("t10", True, [T21, T30, T35])
    ]


def test_a_pending_compaction_of_logs_alone():
    logs = [log("t21"), log("t35")]
    assert merged([], logs, COMPLETIONS, pending=["t60"]) == [("t21", False, [T21, T35])]
    assert merged([], [log("t35")], COMPLETIONS, pending=["t60"]) == [("t60", False, [T35])]


def test_slices_of_logs_alone_belong_together():
    named = Slicing.BY_NAME
    logs = [log("t21"), log("t30")]
    slices = slice_file_group(G, [], logs, completion_of=COMPLETIONS.get, slicing=named)
    assert len(slices) == 2
    assert as_tuples([merged_slice(slices)]) == [("t21", False, [T21, T30])]
    slices = slice_file_group(G, [base("t10")], logs, completion_of=COMPLETIONS.get)
    assert as_tuples([merged_slice(slices)]) == [("t10", True, [T21, T30])]


def test_nothing_below_a_base_file_belongs_to_its_slice():
    logs = [log("t21"), log("t35")]
    slices = slice_file_group(
        G, [base("t30")], logs, completion_of=COMPLETIONS.get, slicing=Slicing.BY_NAME
    )
    assert as_tuples(slices[:2]) == [("t21", False, [T21]), ("t30", True, [])]
    assert as_tuples([merged_slice(slices[:2])]) == [("t30", True, [])]
    assert as_tuples([merged_slice(slices[:2], ["t30"])]) == [("t30", True, [])]


def test_a_file_group_of_logs_alone_is_found_where_nothing_is_pending():
    found = slice_files([base("t10")], [log("t21", group=B)], completion_of=COMPLETIONS.get)
    assert {group: as_tuples(slices) for group, slices in found.items()} == {
        G: [("t10", True, [])],
        B: [("t21", False, [T21])],
    }
