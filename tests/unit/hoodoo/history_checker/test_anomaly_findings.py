"""Findings of the history checker word by word, and valid runs that resemble an anomaly."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hoodoo.history_checker.anomalies import Anomaly, AnomalyKind, find_anomalies
from hoodoo.history_checker.history import HistoryRecorder

A, B, C = "a", "b", "c"


def found(run: HistoryRecorder) -> list[Anomaly]:
    return find_anomalies(run.finish())


def findings_of(run: HistoryRecorder) -> list[tuple[str, tuple[str, ...], str, str]]:
    return [(one.kind.value, one.transactions, one.item, one.message) for one in found(run)]


def three_writes(*, ordered: bool = True) -> HistoryRecorder:
    """T1 writes a and b at 10, T2 a at 20, T3 b at 30."""
    run = HistoryRecorder(ordered=ordered)
    for name, position, items in (("T1", 10, [A, B]), ("T2", 20, [A]), ("T3", 30, [B])):
        run.transaction(name, position=position)
        run.writes(name, items)
    return run


def read(
    run: HistoryRecorder, name: str, versions: list[tuple[str, str | None]], **how: object
) -> None:
    run.transaction(name, **how)
    run.reads(name, versions)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (AnomalyKind.LOST_UPDATE, "lost_update"),
        (AnomalyKind.DUPLICATE, "duplicate"),
        (AnomalyKind.DIRTY_READ, "dirty_read"),
        (AnomalyKind.NON_REPEATABLE_READ, "non_repeatable_read"),
        (AnomalyKind.WRITE_SKEW, "write_skew"),
        (AnomalyKind.CYCLE, "cycle"),
        (AnomalyKind.WRONG_ANSWER, "wrong_answer"),
    ],
)
def test_names_of_findings_are_stable(kind: AnomalyKind, name: str) -> None:
    assert kind.value == name


@pytest.mark.parametrize(("lost", "shown", "more"), [(100, 100, None), (102, 101, 2)])
def test_a_hundred_findings_are_spelled_out(lost: int, shown: int, more: int | None) -> None:
    run = HistoryRecorder()
    for number in range(lost):
        run.transaction(f"T{number}", answer="ok")
        run.writes(f"T{number}", [A])
    findings = found(run)
    assert len(findings) == shown
    last = findings[-1]
    assert (last.transactions == ()) is (more is not None)
    assert {one.kind for one in findings} == {AnomalyKind.LOST_UPDATE}


def test_an_answer_without_a_commit_and_a_commit_without_an_answer() -> None:
    run = HistoryRecorder()
    run.transaction("T1", answer="ok")
    run.writes("T1", [A])
    run.transaction("T2", position=10, answer="fail")
    run.transaction("T3", answer="ok")  # it wrote nothing
    run.transaction("T4", answer="fail")
    run.writes("T4", [A])
    assert findings_of(run) == [
        ("lost_update", ("T1",), "", "T1 was answered ok, and its row is missing"),
        ("wrong_answer", ("T2",), "", "T2 was answered fail, and its row exists"),
    ]


def test_a_batch_that_was_committed_twice_names_all_its_commits() -> None:
    run = HistoryRecorder()
    for name, position, batch in (("T2", 10, "x"), ("T1", 20, "x"), ("T3", 30, "y")):
        run.transaction(name, position=position, batch=batch)
    run.transaction("T4", batch="y")  # never committed
    assert findings_of(run) == [
        ("duplicate", ("T1", "T2"), "", "batch x was committed by each of ['T1', 'T2']")
    ]


def test_rows_of_one_key_are_counted_with_their_file_group() -> None:
    run = three_writes()
    run.transaction("R", snapshot=35, full=True)
    run.reads("R", [(A, "T2"), (A, "T2"), (B, "T3")])
    assert findings_of(run) == [("duplicate", ("R",), A, "a: R saw 2 rows of it")]


def test_a_client_may_read_a_key_twice() -> None:
    run = three_writes()
    read(run, "R", [(A, "T2"), (A, "T2")], snapshot=35)
    assert found(run) == []


def test_a_dirty_read_names_the_write_that_was_never_committed() -> None:
    run = HistoryRecorder()
    run.transaction("T1", answer="fail")
    run.writes("T1", [A])
    read(run, "R", [(A, "T1")], snapshot=15)
    assert ("dirty_read", ("R", "T1"), A) in [one[:3] for one in findings_of(run)]
    assert "a: R read the version of T1, which was never committed" in [
        o[3] for o in findings_of(run)
    ]


def test_a_writer_may_read_its_own_rows_before_it_aborts() -> None:
    run = HistoryRecorder()
    run.transaction("T1", answer="fail")
    run.writes("T1", [A])
    run.reads("T1", [(A, "T1")])
    assert found(run) == []


def test_a_key_that_was_not_there_is_no_dirty_read() -> None:
    run = HistoryRecorder()
    run.transaction("T1", answer="fail")
    run.writes("T1", [A])
    read(run, "R", [(A, None)], snapshot=15)
    assert found(run) == []


def test_a_version_committed_after_the_snapshot_is_reported() -> None:
    run = three_writes()
    read(run, "R", [(A, "T2")], snapshot=15)
    messages = [one[3] for one in findings_of(run) if one[0] == "dirty_read"]
    assert messages == ["a: R read the version of T2, which was committed after its snapshot"]


def test_a_version_completed_at_the_time_of_the_snapshot_is_in_it() -> None:
    run = three_writes()
    read(run, "R", [(A, "T2")], snapshot=20)
    assert found(run) == []


def test_a_partly_retried_writer_may_see_more_than_its_first_snapshot() -> None:
    run = three_writes()
    run.transaction("T4", position=40, snapshot=15)
    run.reads("T4", [(A, "T2")])
    assert found(run) == []


def test_a_stale_read_names_the_newest_write_by_then() -> None:
    run = three_writes()
    read(run, "R", [(A, "T1")], snapshot=25)
    assert findings_of(run) == [
        (
            "lost_update",
            ("R", "T1"),
            A,
            "a: R read the version of T1, although T2 wrote it by then",
        )
    ]


def test_an_empty_read_names_the_reader_alone() -> None:
    run = three_writes()
    read(run, "R", [(A, None)], snapshot=25)
    assert findings_of(run) == [
        ("lost_update", ("R",), A, "a: R did not see it, although T2 wrote it by then")
    ]


def test_a_full_read_that_lacks_a_key_names_its_writer() -> None:
    run = three_writes()
    run.transaction("R", snapshot=25, full=True)
    run.reads("R", [(A, "T2")])
    assert findings_of(run) == [
        (
            "lost_update",
            ("T1", "R"),
            B,
            "b: T1 wrote it, no client deleted it, and R does not see it",
        )
    ]


def test_a_full_read_lacks_nothing_that_was_written_after_it_or_deleted_before_it() -> None:
    run = three_writes()
    run.transaction("T4", position=40)
    run.writes("T4", [A], deletes=True)
    run.transaction("T5", position=50)
    run.writes("T5", [C])
    run.transaction("R", snapshot=45, full=True)
    run.reads("R", [(B, "T3")])
    assert found(run) == []


def test_without_commit_time_order_a_delete_may_not_count() -> None:
    run = three_writes(ordered=False)
    run.transaction("T4", position=15)
    run.writes("T4", [A], deletes=True)
    run.transaction("R", snapshot=45, full=True)
    run.reads("R", [(B, "T3")])
    assert found(run) == []


def test_two_versions_in_one_snapshot_name_both_readers_and_both_writers() -> None:
    run = three_writes(ordered=False)
    read(run, "R1", [(A, "T1")], snapshot=25)
    read(run, "R2", [(A, "T2")], snapshot=25)
    read(run, "R3", [(A, "T1")], snapshot=15)
    assert findings_of(run) == [
        (
            "non_repeatable_read",
            ("R1", "R2"),
            A,
            "a: R1 and R2 saw versions T1 and T2 in one snapshot",
        )
    ]


def test_readers_without_a_snapshot_are_compared_with_themselves_alone() -> None:
    run = three_writes(ordered=False)
    read(run, "R1", [(A, "T1")])
    read(run, "R2", [(A, "T2")])
    assert found(run) == []
    read(run, "R3", [(A, "T1")])
    run.reads("R3", [(A, "T2")])
    assert [one[:2] for one in findings_of(run)] == [("non_repeatable_read", ("R3",))]


def test_partly_retried_writers_are_compared_with_themselves_alone() -> None:
    run = three_writes(ordered=False)
    for name, position, version in (("T4", 40, "T1"), ("T5", 50, "T2")):
        run.transaction(name, position=position, snapshot=25)
        run.reads(name, [(A, version)])
    assert found(run) == []


def test_two_versions_in_one_full_read_are_a_duplicate_and_nothing_else() -> None:
    run = three_writes(ordered=False)
    run.transaction("R", snapshot=35, full=True)
    run.reads("R", [(A, "T1"), (A, "T2"), (B, "T3")])
    assert [one[0] for one in findings_of(run)] == ["duplicate"]


def test_findings_after_a_full_read_with_two_versions_are_still_reported() -> None:
    run = three_writes(ordered=False)
    run.transaction("R1", snapshot=35, full=True)
    run.reads("R1", [(A, "T1"), (A, "T2"), (B, "T3")])
    read(run, "R2", [(B, "T1")], snapshot=25)
    read(run, "R3", [(B, "T3")], snapshot=25)
    assert [one[:3] for one in findings_of(run) if one[0] == "non_repeatable_read"] == [
        ("non_repeatable_read", ("R2", "R3"), B)
    ]


def test_full_reads_of_one_snapshot_are_named_and_those_of_others_are_not() -> None:
    run = HistoryRecorder(ordered=False, known_since="T1")
    for name, rows, snapshot in (
        ("R1", [(A, "T0"), (B, "T0")], 15),
        ("R2", [(A, "T0")], 15),
        ("R3", [(A, "T0"), (B, "T0")], 25),
    ):
        run.transaction(name, snapshot=snapshot, full=True)
        run.reads(name, rows)
    read(run, "R4", [(A, "T0")], snapshot=15)  # not a full read: it may lack any row
    assert findings_of(run) == [
        (
            "non_repeatable_read",
            ("R1", "R2"),
            B,
            "b: of R1, R2, reads of one snapshot, not all saw it",
        )
    ]


def test_a_skew_is_reported_as_a_path_of_dependencies() -> None:
    run = three_writes()
    for name, position, writes in (("T4", 40, A), ("T5", 50, B)):
        run.transaction(name, position=position, snapshot=35)
        run.reads(name, [(A, "T2"), (B, "T3")])
        run.writes(name, [writes])
    assert findings_of(run) == [
        ("write_skew", ("T4", "T5"), "", "no serial order: T4 -rw-> T5 -rw-> T4 (G2)")
    ]


def test_a_cycle_through_readers_is_no_skew() -> None:
    run = three_writes()
    read(run, "R1", [(A, "T2"), (B, "T1")])
    read(run, "R2", [(A, "T1"), (B, "T3")])
    [one] = findings_of(run)
    assert one[0] == "cycle"
    assert sorted(one[1]) == ["R1", "R2", "T2", "T3"]


def test_an_update_over_an_unseen_one_names_all_three() -> None:
    run = three_writes()
    run.transaction("T4", position=40, snapshot=15)
    run.reads("T4", [(A, "T1")])
    run.writes("T4", [A])
    assert findings_of(run) == [
        (
            "lost_update",
            ("T1", "T4"),
            A,
            "a: T4 read the version of T1, and overwrote a later write of T2",
        )
    ]


# ---------------------------------------------------------------- places, and deletes of unknown rows


def rows_read(run: HistoryRecorder, name: str, rows: list[tuple[str, str, str]]) -> None:
    """Rows of (item, version, place)."""
    items, versions, places = ([row[at] for row in rows] for at in range(3))
    run.reads_rows(
        name, *(pa.chunked_array([pa.array(each)]) for each in (items, versions, places))
    )


def test_duplicates_in_one_partition_are_reported_with_it() -> None:
    run = three_writes()
    run.transaction("R", snapshot=35, full=True)
    rows_read(run, "R", [(A, "T2", "x"), (A, "T2", "x"), (B, "T3", "y")])
    assert findings_of(run) == [("duplicate", ("R",), A, "a: R saw 2 rows of it in x")]


def test_a_key_in_two_partitions_is_neither_duplicate_nor_lost() -> None:
    run = three_writes()
    run.transaction("R", snapshot=35, full=True)
    rows_read(run, "R", [(A, "T1", "x"), (A, "T2", "y"), (B, "T3", "x")])
    assert {one[0] for one in findings_of(run)}.isdisjoint({"duplicate", "lost_update"})


def test_a_serial_run_with_a_key_in_two_partitions_has_no_finding() -> None:
    """T1 writes a in x, T2 another a in y, T4 reads both and writes the one in x again."""
    run = three_writes()
    run.transaction("R", snapshot=35, full=True)
    rows_read(run, "R", [(A, "T1", "x"), (A, "T2", "y"), (B, "T3", "x")])
    read(run, "R2", [(A, "T1")], snapshot=35)
    read(run, "R3", [(A, "T2")], snapshot=35)
    run.transaction("T4", position=40, snapshot=35)
    run.reads("T4", [(A, "T1"), (B, "T3")])
    run.writes("T4", [A])
    assert findings_of(run) == []


def test_a_row_of_a_writer_without_a_journal_shows_its_partition() -> None:
    """T4 wrote another a in y: after it, T5 read and wrote the one of T2 in x."""
    run = HistoryRecorder()
    for name, position, place in (("T2", 20, "x"), ("T4", 40, "y"), ("T5", 50, "x")):
        run.transaction(name, position=position, places=[place])
    run.writes("T4", [A, B])
    run.reads("T5", [(A, "T2"), (B, "T4")])
    run.writes("T5", [A])
    assert findings_of(run) == []


def test_a_skew_in_one_partition_is_found_despite_a_key_in_two() -> None:
    run = three_writes()
    for name, position, writes in (("T4", 40, A), ("T5", 50, B)):
        run.transaction(name, position=position, snapshot=35)
        run.reads(name, [(A, "T2"), (B, "T3")])
        run.writes(name, [writes, C])
    run.transaction("R", snapshot=55, full=True)
    rows_read(run, "R", [(A, "T4", "x"), (B, "T5", "x"), (C, "T4", "x"), (C, "T5", "y")])
    assert [one[:2] for one in findings_of(run)] == [("write_skew", ("T4", "T5"))]


def test_a_key_in_one_partition_is_checked() -> None:
    run = three_writes()
    run.transaction("R", snapshot=35, full=True)
    rows_read(run, "R", [(A, "T1", "x"), (B, "T3", "x")])
    assert [one[:3] for one in findings_of(run)] == [("lost_update", ("R", "T1"), A)]


@pytest.mark.parametrize(("cleared", "lost"), [(9, ["T1"]), (10, [])])
def test_rows_before_a_delete_of_unknown_rows_may_be_missing(cleared: int, lost: list[str]) -> None:
    run = HistoryRecorder(cleared=cleared)
    run.transaction("T1", position=10)
    run.writes("T1", [A])
    run.transaction("R", snapshot=25, full=True)
    run.reads("R", [])
    assert [one[1][0] for one in findings_of(run)] == lost
