"""The chaos run's own judgement: each way to break a promise is noticed, and nothing else is."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hoodoo.history_checker.history import HistoryRecorder
from hoodoo.history_checker.table_history import read_client_history
from tests.chaos.crew import Crew
from tests.chaos.faults import ON_THE_WIRE, Fault, Kind, counts_for, schedule
from tests.chaos.journal import Journal, OpRecord, events_of, operations_of, write_history
from tests.chaos.judge import check_rows
from tests.chaos.locks import LockSide
from tests.chaos.nemesis import Nemesis
from tests.chaos.report import figures
from tests.chaos.test_chaos import nothing_is_lacking
from tests.chaos.work import NUMBERS, Op, first_rows, own_row

WRITERS = 2
TABLES = ("t",)
SEED = 7


def applied(rows: pa.Table, op: Op) -> pa.Table:
    """The rows after an operation, by filters alone."""
    wanted = pa.array(op.keys, pa.int64())
    before = rows.filter(pc.is_in(rows["id"], wanted))
    new = op.rows(before)
    kept = rows.filter(pc.invert(pc.is_in(rows["id"], new["id"].combine_chunks())))
    return pa.concat_tables([kept, new])


def record(op: Op, answer: str | None) -> OpRecord:
    time = "20260102000000000"
    return OpRecord(op=op, invoked=1.0, reads=[], answered=2.0, answer=answer, instant=time)


@pytest.fixture
def done() -> tuple[pa.Table, list[OpRecord]]:
    """Ten operations of two writers, acknowledged and there."""
    rows, records = first_rows(WRITERS), []
    for number in [*range(1, 6), *range(NUMBERS + 1, NUMBERS + 6)]:
        op = Op.of(SEED, number, TABLES)
        rows = applied(rows, op)
        records.append(record(op, "ok"))
    assert {one.op.adds for one in records} == {True, False}
    return rows, records


def test_acknowledged_operations_that_exist_once_are_no_finding(
    done: tuple[pa.Table, list[OpRecord]],
) -> None:
    rows, records = done
    assert check_rows("t", rows, records, WRITERS) == []


def test_a_missing_acknowledged_operation_is_found(
    done: tuple[pa.Table, list[OpRecord]],
) -> None:
    rows, records = done
    lost = record(Op.of(SEED, 6, TABLES), "ok")
    found = check_rows("t", rows, [*records, lost], WRITERS)
    assert found[0] == f"t: {own_row(6)} was acknowledged and is lost"
    assert len(found) == 1 + len(lost.op.keys)


@pytest.mark.parametrize("answer", ["fail", None])
def test_an_operation_without_acknowledgement_that_exists_is_found(
    done: tuple[pa.Table, list[OpRecord]], answer: str | None
) -> None:
    rows, records = done
    op = Op.of(SEED, 6, TABLES)
    found = check_rows("t", applied(rows, op), [*records, record(op, answer)], WRITERS)
    assert f"t: {own_row(6)} was never acknowledged, it is there" in found
    assert ("op-6 was never settled" in found) is (answer is None)


def test_an_operation_that_counts_twice_is_found(done: tuple[pa.Table, list[OpRecord]]) -> None:
    rows, records = done
    op = next(one.op for one in records if one.op.adds)
    found = check_rows("t", applied(rows, op), records, WRITERS)
    assert len(found) == len(op.keys)
    assert all("the operations make" in one for one in found)


def test_a_duplicate_row_is_found(done: tuple[pa.Table, list[OpRecord]]) -> None:
    rows, records = done
    found = check_rows("t", pa.concat_tables([rows, rows.slice(0, 1)]), records, WRITERS)
    assert found == [f"t: row {rows['id'][0].as_py()} is there twice"]


def test_a_torn_journal_line_is_ignored_and_the_next_process_continues(tmp_path: Path) -> None:
    path = tmp_path / "write-0.ops.jsonl"
    Journal(path).log("invoke", op=1, reads=[["5", "20260101000000000"]])
    with path.open("ab") as out:
        out.write(b'{"event": "ok", "op"')
    Journal(path).log("repeat", op=1)
    Journal(path).log("ok", op=1, instant="20260102000000000")
    assert [one["event"] for one in events_of(path)] == ["invoke", "repeat", "ok"]
    (found,) = operations_of(path, SEED, TABLES)
    assert (found.answer, found.repeated, found.was_unknown) == ("ok", True, True)


def test_the_journal_for_verify_contains_reads_only_of_attempts_made_from_them(
    tmp_path: Path,
) -> None:
    records = [record(Op.of(SEED, number, TABLES), "ok") for number in (1, 2)]
    for one in records:
        one.reads = [("5", "20260101000000000")]
    records[1].repeated = True
    write_history(tmp_path / "h.jsonl", "write-0", "t", records)
    lines = (tmp_path / "h.jsonl").read_bytes().splitlines()
    assert [bool(json.loads(line)["reads"]) for line in lines] == [True, False]
    assert read_client_history(HistoryRecorder(), lines, source="h.jsonl") == 2


def test_a_seed_gives_the_same_faults_and_calm_at_the_end_of_every_two_minutes() -> None:
    crew = ["write-0", "write-1", "serve-0"]
    counts = counts_for(1_200, list(Kind))
    assert sum(counts.values()) >= 200
    faults = schedule(3, 1_200, counts, hold_s=4, crew=crew)
    assert faults == schedule(3, 1_200, counts, hold_s=4, crew=crew)
    assert faults != schedule(4, 1_200, counts, hold_s=4, crew=crew)
    assert [one.starts_s for one in faults] == sorted(one.starts_s for one in faults)
    assert max(one.starts_s % 120 for one in faults) <= 101
    assert max(one.starts_s for one in faults) <= 1_001
    assert {one.kind for one in faults} == set(Kind)
    assert min(one.lasts_s for one in faults if one.kind is Kind.PAUSE) > 4


@pytest.mark.parametrize("without", [(), ON_THE_WIRE, (Kind.DISK,), (*ON_THE_WIRE, Kind.SERVER)])
def test_a_long_run_has_as_many_faults_without_the_impossible_kinds(
    without: Sequence[Kind],
) -> None:
    possible = [one for one in Kind if one not in without]
    counts = counts_for(1_200, possible)
    assert set(counts) == set(possible)
    assert 222 <= sum(counts.values()) <= 232


def test_an_extended_run_counts_the_times_of_further_faults_from_then(tmp_path: Path) -> None:
    late_s = 7.0  # the delay so far moved everything after it
    nemesis = Nemesis(
        faults=[],
        crew=Crew(tmp_path),
        side=LockSide(properties=lambda _: {}),
        disk=None,
        started=time.monotonic() - 1_200,
        _late_s=late_s,
    )
    nemesis.go_on([Fault(kind=Kind.KILL, starts_s=30, lasts_s=1, target="write-1")])
    nemesis.act()
    assert not nemesis.has_struck_all
    due_s = nemesis.started + nemesis.faults[0].starts_s + late_s - time.monotonic()
    assert due_s == pytest.approx(30, abs=5)


@pytest.mark.parametrize(("hold_s", "calm_s"), [(4, 20), (10, 40)])
def test_the_calm_covers_two_leases_after_the_longest_pause(hold_s: float, calm_s: float) -> None:
    faults = schedule(3, 1_200, counts_for(1_200, list(Kind)), hold_s=hold_s, crew=["write-0"])
    assert max(one.starts_s % 120 for one in faults) <= 120 - calm_s + 1


def test_a_smoke_run_has_every_fault_of_the_reliability_profile() -> None:
    counts = counts_for(40, list(Kind))
    assert counts[Kind.KILL] >= 6
    assert counts[Kind.PAUSE] >= 4
    assert counts[Kind.CLOCK] >= 2
    assert sum(counts.values()) >= 15
    assert Kind.DISK not in counts_for(40, [Kind.KILL])


def test_figures_count_answers_and_the_longest_time_without_a_success() -> None:
    records = [record(Op.of(SEED, number, TABLES), "ok") for number in (1, 2, 3)]
    for one, answered in zip(records, (2.0, 3.5, 9.0), strict=True):
        one.answered = answered
    refused = record(Op.of(SEED, 4, TABLES), "fail")
    refused.error = "write_conflict"
    found = figures({"write-0": [*records, refused]})
    assert (found["ok"], found["failed"], found["longest_stall_ms"]) == (3, 1, 5_500)
    assert found["failed_by_kind"] == {"write_conflict": 1}
    assert found["longest_ms"] == 8_000


def test_a_fault_that_the_machine_cannot_cause_fails_a_test_where_servers_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing_is_lacking({"lacking": []})
    without = {"lacking": ["clock (install faketime from the distribution)"]}
    monkeypatch.setenv("HOODOO_SERVERS", "required")
    with pytest.raises(pytest.fail.Exception, match="install faketime"):
        nothing_is_lacking(without)
    monkeypatch.delenv("HOODOO_SERVERS")
    with pytest.raises(pytest.skip.Exception, match="install faketime"):
        nothing_is_lacking(without)
