"""Committed writes of a recorded run: before the recording, or until a restore removed them."""

from __future__ import annotations

from hoodoo.history_checker.anomalies import find_anomalies
from hoodoo.history_checker.history import HistoryRecorder


def read(run: HistoryRecorder, name: str, version: str | None, snapshot: int) -> None:
    run.transaction(name, snapshot=snapshot)
    run.reads(name, [("a", version)])


def kinds(run: HistoryRecorder) -> list[str]:
    return [one.kind.value for one in find_anomalies(run.finish())]


def test_only_an_unrecorded_writer_may_precede_the_recording() -> None:
    for writer, recorded, found in (
        ("T1", False, []),
        ("T1", True, ["dirty_read"]),
        ("T5", False, ["dirty_read"]),
        ("T9", False, ["dirty_read"]),
    ):
        run = HistoryRecorder(known_since="T5")
        if recorded:
            run.transaction(writer)
            run.writes(writer, ["a"])
        read(run, "reader", writer, 10)
        assert kinds(run) == found, writer


def test_only_a_writer_that_began_before_a_restore_may_be_restored_away() -> None:
    for writer, found in (("T1", []), ("T5", ["dirty_read"]), ("T9", ["dirty_read"])):
        run = HistoryRecorder()
        run.restored_away("T5")
        run.transaction(writer)
        run.writes(writer, ["a"])
        read(run, "reader", writer, 10)
        assert kinds(run) == found, writer


def test_a_commit_that_survived_a_restore_is_checked() -> None:
    run = HistoryRecorder()
    run.restored_away("T5")
    for name, position in (("T1", 10), ("T2", 20)):
        run.transaction(name, position=position)
        run.writes(name, ["a"])
    read(run, "reader", "T1", 25)
    assert kinds(run) == ["lost_update"]


def test_reads_before_and_after_a_restore_may_differ() -> None:
    run = HistoryRecorder()
    run.restored_away("T5")
    run.transaction("T1", position=10)
    run.writes("T1", ["a"])
    run.transaction("T2")
    run.writes("T2", ["a"])
    read(run, "before", "T2", 20)
    read(run, "after", "T1", 20)
    assert kinds(run) == []


def test_an_uncommitted_row_is_reported_as_dirty_and_not_also_as_old() -> None:
    run = HistoryRecorder()
    run.transaction("T1", position=10)
    run.transaction("T2")
    for name in ("T1", "T2"):
        run.writes(name, ["a"])
    read(run, "reader", "T2", 20)
    assert kinds(run) == ["dirty_read"]
