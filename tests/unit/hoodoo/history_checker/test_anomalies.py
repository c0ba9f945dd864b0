"""Each finding of the history checker fires on a run made for it; a serial run has none."""

from __future__ import annotations

import pytest

from hoodoo.history_checker.anomalies import Anomaly, AnomalyKind, find_anomalies
from hoodoo.history_checker.history import HistoryRecorder

A, B, C, D = "a", "b", "c", "d"


def serial() -> HistoryRecorder:
    """T1 writes a and b, T2 reads and writes a, T3 deletes b; two readers in between, one after."""
    run = HistoryRecorder()
    run.transaction("T1", position=10, answer="ok", batch="b1")
    run.writes("T1", [A, B])
    run.transaction("R1", snapshot=15, full=True)
    run.reads("R1", [(A, "T1"), (B, "T1")])
    run.transaction("R2", snapshot=15, full=True)
    run.reads("R2", [(A, "T1"), (B, "T1")])
    run.transaction("T2", position=20, snapshot=15, answer="ok", batch="b2")
    run.reads("T2", [(A, "T1"), (C, None)])
    run.writes("T2", [A, C])
    run.transaction("T3", position=30, snapshot=20)
    run.reads("T3", [(B, "T1")])
    run.writes("T3", [B], deletes=True)
    run.transaction("R3", snapshot=30, full=True)
    run.reads("R3", [(A, "T2"), (B, None), (C, "T2")])
    run.transaction("T4", position=40, snapshot=30)
    run.reads("T4", [(B, None)])
    run.writes("T4", [B])
    run.transaction("R4", snapshot=40, full=True)
    run.reads("R4", [(A, "T2"), (B, "T4"), (C, "T2")])
    return run


def found(run: HistoryRecorder) -> list[Anomaly]:
    return find_anomalies(run.finish())


def kinds(run: HistoryRecorder) -> list[AnomalyKind]:
    return sorted((one.kind for one in found(run)), key=lambda kind: kind.value)


def test_a_serial_run_has_no_finding() -> None:
    assert found(serial()) == []


def test_an_empty_run_has_no_finding() -> None:
    assert found(HistoryRecorder()) == []


def test_a_writer_that_overwrites_an_unseen_version_lost_an_update() -> None:
    run = serial()
    run.transaction("T5", position=50, snapshot=15)
    run.reads("T5", [(A, "T1")])
    run.writes("T5", [A])
    [one] = found(run)
    assert one.kind is AnomalyKind.LOST_UPDATE
    assert one.transactions == ("T1", "T5")
    assert "overwrote a later write of T2" in one.message


def test_two_first_inserts_of_one_key_lost_one_of_them() -> None:
    run = serial()
    run.transaction("T5", position=50, snapshot=40)
    run.reads("T5", [(D, None)])
    run.writes("T5", [D])
    run.transaction("T6", position=60, snapshot=40)
    run.reads("T6", [(D, None)])
    run.writes("T6", [D])
    assert kinds(run) == [AnomalyKind.LOST_UPDATE]


def test_an_acknowledged_write_that_is_not_there_is_lost() -> None:
    run = serial()
    run.transaction("T5", answer="ok")
    run.writes("T5", [D])
    [one] = found(run)
    assert (one.kind, one.transactions) == (AnomalyKind.LOST_UPDATE, ("T5",))


@pytest.mark.parametrize(
    ("rows", "who"),
    [
        ([(A, "T1"), (B, "T4"), (C, "T2")], "T2"),
        ([(A, "T2"), (B, None), (C, "T2")], "T4"),
        ([(A, "T2"), (B, "T4")], "T2"),
    ],
)
def test_a_read_that_lacks_a_committed_row_shows_a_lost_update(
    rows: list[tuple[str, str | None]], who: str
) -> None:
    run = serial()
    run.transaction("R5", snapshot=45, full=True)
    run.reads("R5", rows)
    [one] = found(run)
    assert one.kind is AnomalyKind.LOST_UPDATE
    assert who in one.message


def test_without_commit_time_order_an_older_write_may_win() -> None:
    run = serial()
    run.ordered = False
    run.transaction("R5", snapshot=45, full=True)
    run.reads("R5", [(A, "T1"), (B, "T4"), (C, "T2")])
    assert found(run) == []
    run.transaction("R6", snapshot=46, full=True)
    run.reads("R6", [(B, "T4"), (C, "T2")])
    assert kinds(run) == [AnomalyKind.LOST_UPDATE]


def test_one_key_in_two_rows_of_a_read_is_a_duplicate() -> None:
    run = serial()
    run.transaction("R5", snapshot=45, full=True)
    run.reads("R5", [(A, "T2"), (A, "T2"), (B, "T4"), (C, "T2")])
    assert kinds(run) == [AnomalyKind.DUPLICATE]


def test_one_batch_in_two_commits_is_a_duplicate() -> None:
    run = serial()
    run.transaction("T5", position=50, batch="b2")
    [one] = found(run)
    assert (one.kind, one.transactions) == (AnomalyKind.DUPLICATE, ("T2", "T5"))


def test_a_version_of_an_aborted_write_is_a_dirty_read() -> None:
    run = serial()
    run.transaction("T5", answer="fail")
    run.writes("T5", [A])
    run.transaction("R5", snapshot=45)
    run.reads("R5", [(A, "T5")])
    assert AnomalyKind.DIRTY_READ in kinds(run)


def test_a_version_of_after_the_snapshot_is_a_dirty_read() -> None:
    run = serial()
    run.transaction("R5", snapshot=15)
    run.reads("R5", [(C, "T2")])
    assert AnomalyKind.DIRTY_READ in kinds(run)


def test_a_version_of_before_the_recording_is_clean() -> None:
    run = serial()
    run.known_since = "T"
    run.transaction("R5", snapshot=45)
    run.reads("R5", [(D, "S9")])
    assert found(run) == []


def test_two_answers_of_one_snapshot_are_not_repeatable() -> None:
    run = HistoryRecorder(ordered=False)
    for name, position in (("T1", 10), ("T2", 20)):
        run.transaction(name, position=position)
        run.writes(name, [A])
    run.transaction("R", snapshot=25)
    run.reads("R", [(A, "T2")])
    run.reads("R", [(A, "T1")])
    [one] = found(run)
    assert (one.kind, one.transactions) == (AnomalyKind.NON_REPEATABLE_READ, ("R",))


def test_full_reads_of_one_snapshot_that_see_different_rows_are_not_repeatable() -> None:
    run = HistoryRecorder(ordered=False)
    for name, rows in (("R1", [(A, "T0"), (B, "T0")]), ("R2", [(A, "T0")])):
        run.transaction(name, snapshot=15, full=True)
        run.reads(name, rows)
    run.known_since = "T1"
    [one] = found(run)
    assert (one.kind, one.item) == (AnomalyKind.NON_REPEATABLE_READ, B)


def test_two_writers_that_read_each_others_rows_are_a_write_skew() -> None:
    run = serial()
    run.transaction("T5", position=50, snapshot=40)
    run.reads("T5", [(A, "T2"), (C, "T2")])
    run.writes("T5", [A])
    run.transaction("T6", position=60, snapshot=40)
    run.reads("T6", [(A, "T2"), (C, "T2")])
    run.writes("T6", [C])
    [one] = found(run)
    assert one.kind is AnomalyKind.WRITE_SKEW
    assert sorted(one.transactions) == ["T5", "T6"]
    assert "G2" in one.message


def test_readers_that_saw_two_writes_in_opposite_order_are_a_cycle() -> None:
    """No snapshot numbers: the order alone contradicts itself."""
    run = serial()
    run.transaction("T5", position=50)
    run.writes("T5", [A])
    run.transaction("T6", position=60)
    run.writes("T6", [C])
    run.transaction("R5")
    run.reads("R5", [(A, "T5"), (C, "T2")])
    run.transaction("R6")
    run.reads("R6", [(A, "T2"), (C, "T6")])
    [one] = found(run)
    assert one.kind is AnomalyKind.CYCLE
    assert sorted(one.transactions) == ["R5", "R6", "T5", "T6"]


def test_a_rejection_of_a_committed_write_is_a_wrong_answer() -> None:
    run = serial()
    run.transaction("T4", answer="fail")
    assert kinds(run) == [AnomalyKind.WRONG_ANSWER]


def test_findings_of_one_kind_are_counted_after_a_hundred() -> None:
    run = HistoryRecorder()
    for number in range(150):
        run.transaction(f"T{number}", answer="ok")
        run.writes(f"T{number}", [A])
    shown = found(run)
    assert len(shown) == 101
    assert shown[-1].message == "and 50 more like these"


def test_many_events_are_checked_at_once() -> None:
    """Each of 300 writers reads and writes 20 keys; the reader at the end lacks one."""
    run = HistoryRecorder()
    newest: dict[str, str] = {}
    for number in range(300):
        keys = [f"k{(number * 31 + step * 7) % 1_000}" for step in range(20)]
        name = f"T{number:05d}"
        run.transaction(name, position=number, snapshot=number - 1 if number else None)
        run.reads(name, [(key, newest.get(key)) for key in keys])
        run.writes(name, keys)
        newest.update(dict.fromkeys(keys, name))
    assert found(run) == []
    run.transaction("R", snapshot=300, full=True)
    run.reads("R", list(newest.items())[:-1])
    assert kinds(run) == [AnomalyKind.LOST_UPDATE]
