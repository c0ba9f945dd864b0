"""Explanations: the author of a change, the rejections before it, and the fate of missing files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.writing.write_request import CommitResult
from hoodoo.inspect import rejected_writes as given_up
from hoodoo.inspect.contention import measure_contention
from hoodoo.inspect.explain import explain_instant
from hoodoo.inspect.instants import list_instants, time_text
from hoodoo.inspect.rejected_writes import rejected_writes
from tableservices.restoring.restore import restore
from tableservices.restoring.savepoints import savepoint
from tests.interop import golden_tables
from timeline.commit import apply as settling
from timeline.errors import (
    InstantNotFoundError,
    OutcomeUnknownError,
    UnsafeSetupError,
    WriteConflictError,
)
from timeline.model.file_names import REJECTED_WRITES
from timeline.rollback.resolve_unknown import WriteOutcome

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
MANY = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.clean.automatic": "false",
}


class ConcurrentWriter:
    """An event sink that lets another writer commit right after a write's begin."""

    def __init__(self, other: hoodoo.Table) -> None:
        self.other: hoodoo.Table | None = other
        self.result: CommitResult | None = None

    def emit(self, name: str, /, **_: Any) -> None:
        if name == "begin.done" and self.other is not None:
            concurrent, self.other = self.other, None
            self.result = concurrent.upsert(ROWS.slice(1, 1))


def test_an_instant_time_is_formatted_for_users() -> None:
    assert time_text("20261121100956962") == "2026-11-21 10:09:56.962"
    assert time_text("20261121100956") == "2026-11-21 10:09:56.000"


def test_an_instant_summary_names_writer_and_work(tmp_path: Path) -> None:
    named = {**MANY, "hoodie.write.application.id": "loader"}
    with hoodoo.create_table(
        tmp_path / "t", schema=ROWS.schema, record_key="id", properties=named
    ) as table:
        result = table.upsert(ROWS)
        (account,) = list_instants(table.context)
    assert account.who == "loader"
    assert account.rows_text == "+3"
    assert (account.slot_number, account.attempts, account.refusals) == (1, 1, ())
    assert account.requested_time == result.requested_time
    assert any("by loader (pid " in line for line in account.lines())
    assert repr(account) == f"<commit {account.requested_time}: completed, upsert, +3 rows>"


@pytest.mark.spec("BEG-6")
def test_a_pending_write_names_its_writer(tmp_path: Path) -> None:
    """A user blocked by it must find its owner."""

    class Onlooker:
        def __init__(self, table: hoodoo.Table) -> None:
            self.table, self.seen = table, dict[str, list[str]]()

        def emit(self, name: str, /, **_: Any) -> None:
            for one in list_instants(self.table.context):
                if one.state == "inflight":
                    account = explain_instant(self.table.context, one.requested_time)
                    assert account.who == one.who
                    self.seen[one.who] = account.lines()

    with hoodoo.create_table(tmp_path / "t", schema=ROWS.schema, record_key="id") as table:
        loader = {**MANY, "hoodie.write.application.id": "loader"}
        onlooker = Onlooker(table)
        with hoodoo.open_table(tmp_path / "t", properties=loader, events=onlooker) as other:
            other.upsert(ROWS)
    (lines,) = onlooker.seen.values()
    assert list(onlooker.seen) == ["loader"]
    assert lines[1] == "operation upsert"
    assert lines[2].startswith("by loader (pid ")
    assert lines[-1] == "the heartbeat of its writer is fresh"


def test_a_rejected_attempt_is_reported_with_its_winner(tmp_path: Path) -> None:
    with (
        hoodoo.create_table(
            tmp_path / "t", schema=ROWS.schema, record_key="id", properties=MANY
        ) as first,
        hoodoo.open_table(
            tmp_path / "t", properties={**MANY, "hoodie.write.application.id": "rival"}
        ) as other,
    ):
        first.upsert(ROWS)
        concurrent = ConcurrentWriter(other)
        with hoodoo.open_table(tmp_path / "t", properties=MANY, events=concurrent) as slow:
            result = slow.upsert(ROWS.slice(0, 1))
        assert concurrent.result is not None
        account = explain_instant(first.context, result.requested_time)
        assert (account.attempts, len(account.refusals)) == (2, 1)
        assert concurrent.result.requested_time in account.rejections_text[0]
        assert "by rival" in account.rejections_text[0]


def test_a_rejected_attempt_is_reported_when_its_final_write_is_archived(tmp_path: Path) -> None:
    few = {
        **MANY,
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.archive.automatic": "false",
    }
    path = tmp_path / "t"
    with hoodoo.create_table(path, schema=ROWS.schema, record_key="id", properties=few) as table:
        table.upsert(ROWS)
        with (
            hoodoo.open_table(path, properties=few) as other,
            hoodoo.open_table(path, properties=few, events=ConcurrentWriter(other)) as slow,
        ):
            result = slow.upsert(ROWS.slice(0, 1))
        (refused,) = (one.instant for one in result.refusals)
        before = explain_instant(table.context, refused)
        assert before.state == "rejected"
        for _ in range(5):
            table.upsert(ROWS)
        table.services.archive()
        assert explain_instant(table.context, result.requested_time).archived
        assert explain_instant(table.context, refused) == before


def test_a_time_that_left_no_trace_is_an_error(tmp_path: Path) -> None:
    with hoodoo.create_table(tmp_path / "t", schema=ROWS.schema, record_key="id") as table:
        table.upsert(ROWS)
        with pytest.raises(InstantNotFoundError):
            explain_instant(table.context, "20200101000000000")


def lost_write(path: Path) -> WriteConflictError:
    """A write that conflicts and may not retry."""
    concurrent_properties = {**MANY, "hoodie.write.application.id": "rival"}
    mine = {
        **MANY,
        "hoodie.write.application.id": "loser",
        "hoodie.write.num.retries.on.conflict.failures": "0",
    }
    with (
        hoodoo.open_table(path, properties=concurrent_properties) as other,
        hoodoo.open_table(path, properties=mine, events=ConcurrentWriter(other)) as slow,
        pytest.raises(WriteConflictError) as refused,
    ):
        slow.upsert(ROWS.slice(0, 1), batch_id="load 7")
    return refused.value


def test_a_write_that_exhausted_its_budget_is_reported_and_counted(tmp_path: Path) -> None:
    """The timeline has no trace of it, and its client may be dead."""
    with hoodoo.create_table(
        tmp_path / "t", schema=ROWS.schema, record_key="id", properties=MANY
    ) as table:
        table.upsert(ROWS)
        error = lost_write(tmp_path / "t")
        instant = error.fields["report"]["instant"]
        account = explain_instant(table.context, instant)
        assert (account.state, account.who, account.attempts) == ("rejected", "loser", 1)
        assert "by rival" in account.rejections_text[0]
        lines = account.lines()
        assert lines[0] == f"commit {instant}: rejected"
        assert lines[-1] == (
            "not committed after 1 attempt; write again, or raise "
            "hoodie.write.num.retries.on.conflict.failures so that the engine retries by itself"
        )
        assert sum("the first commit wins" in line for line in lines) == 1
        assert "redone" not in "".join(lines)  # nothing was
        told = measure_contention(table.context)
        assert (told.writes, told.gave_up, told.refused_attempts) == (2, 1, 1)
        assert [(one.loser, one.winner) for one in told.meetings] == [("loser", "rival")]
        assert told.lines()[0] == (
            "2 writes committed, 1 attempt rejected, 1 write rejected after the last attempt"
        )
        assert told.lines()[1].startswith("1 time loser lost to rival: write_conflict")
        assert told.lines()[2] == "advice: writers change rows of one file group:"
        assert "  - use a bucket index with more buckets" in told.lines()
        assert told.lines()[-1] == f"  {instant} by loser: write_conflict (C1)"
        assert told.as_document()["rejected"] == (
            {"requested_time": instant, "writer": "loser", "kind": "write_conflict", "rule": "C1"},
        )
        (kept,) = rejected_writes(table.context)
        assert (kept.batch_id, kept.operation, kept.kind) == ("load 7", "upsert", "write_conflict")


def test_a_writer_without_a_name_is_its_process(tmp_path: Path) -> None:
    path = tmp_path / "t"
    once = {**MANY, "hoodie.write.num.retries.on.conflict.failures": "0"}
    with (
        hoodoo.create_table(path, schema=ROWS.schema, record_key="id", properties=MANY) as table,
        hoodoo.open_table(path, properties=once, events=ConcurrentWriter(table)) as slow,
    ):
        table.upsert(ROWS)
        with pytest.raises(WriteConflictError) as refused:
            slow.upsert(ROWS.slice(0, 1))
        summary = explain_instant(table.context, refused.value.fields["report"]["instant"])
        assert summary.lines()[2] == f"by pid {summary.pid} on {summary.host}"
        [conflict] = measure_contention(table.context).meetings
        assert conflict.loser == conflict.winner == summary.who


def test_the_newest_rejected_writes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_up, "REJECTED_WRITES_MAX", 2)
    monkeypatch.setattr(given_up, "_SLACK", 1)
    with hoodoo.create_table(
        tmp_path / "t", schema=ROWS.schema, record_key="id", properties=MANY
    ) as table:
        table.upsert(ROWS)
        times = [lost_write(tmp_path / "t").fields["report"]["instant"] for _ in range(4)]
        assert [one.requested_time for one in rejected_writes(table.context)] == times[2:]
        (tmp_path / "t" / REJECTED_WRITES / f"{times[3]}.json").write_text("torn")
        (tmp_path / "t" / REJECTED_WRITES / f"{times[0]}.json").write_text("[" * 100_000)
        (tmp_path / "t" / REJECTED_WRITES / "note.json").write_text("{}")
        assert [one.requested_time for one in rejected_writes(table.context)] == times[2:3]


def test_a_rejected_write_raises_its_error_also_when_it_cannot_be_recorded(tmp_path: Path) -> None:
    with hoodoo.create_table(
        tmp_path / "t", schema=ROWS.schema, record_key="id", properties=MANY
    ) as table:
        table.upsert(ROWS)
        (tmp_path / "t" / REJECTED_WRITES).write_text("no folder")
        assert lost_write(tmp_path / "t").kind == "write_conflict"
        assert rejected_writes(table.context) == []


@pytest.mark.spec("UNK-3")
def test_a_write_with_a_slot_is_reported_as_committed_without_its_completed_file(
    tmp_path: Path,
) -> None:
    """Its writer died or got no answer; a client that repeats it as lost would write it twice."""
    with hoodoo.create_table(
        tmp_path / "t", schema=ROWS.schema, record_key="id", properties=MANY
    ) as table:
        time = table.upsert(ROWS).requested_time
        (shown,) = (tmp_path / "t" / ".hoodie" / "timeline").glob(f"{time}_*.commit")
        shown.unlink()
        lines = "\n".join(explain_instant(table.context, time).lines())
        assert "committed, as number 1" in lines
        assert "do not repeat the write" in lines
        table.resolve(time)
        assert shown.exists()


@pytest.mark.spec("UNK-3")
@pytest.mark.parametrize("action", ["restore", "rollback"])
def test_a_committed_write_that_another_engine_removed_is_reported_as_removed(
    tmp_path: Path, action: str
) -> None:
    """Its commit slot stays for ever: Java Hudi writes no slot when it removes a commit (RST-3)."""
    path = tmp_path / "t"
    with hoodoo.create_table(path, schema=ROWS.schema, record_key="id", properties=MANY) as table:
        kept = table.upsert(ROWS).requested_time
        gone = table.upsert(ROWS).requested_time
        if action == "restore":
            restore(table.context, kept)
        else:
            table.rollback(gone)
    newest = max((path / ".hoodie" / ".hoodoo" / "slots").iterdir())
    newest.unlink()
    with hoodoo.open_table(path, properties=MANY) as table:
        (undone,) = (one for one in table.timeline if one.action == action)
        answer = table.resolve(gone)
        assert answer.outcome is WriteOutcome.NOT_PUBLISHED
        assert answer.why == f"the {action} {undone.requested_time} removed it"
        assert table.resolve(kept).outcome is WriteOutcome.PUBLISHED


@pytest.mark.spec("UNK-3")
@pytest.mark.parametrize("action", ["restore", "rollback"])
def test_an_interrupted_rollback_or_restore_is_found_by_its_own_time(
    tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error names that time, and its slot exists: it must not be reported as unknown."""
    with hoodoo.create_table(
        tmp_path / "t", schema=ROWS.schema, record_key="id", properties=MANY
    ) as table:
        kept, gone = (table.upsert(ROWS).requested_time for _ in range(2))
        undo: Callable[[], object] = partial(restore, table.context, kept)
        if action == "rollback":
            undo = partial(table.rollback, gone)
        with monkeypatch.context() as patch:
            patch.setattr(settling, "_write_pending", cut_off)
            with pytest.raises(OutcomeUnknownError) as unknown:
                undo()
        own = unknown.value.fields["requested_time"]
        told = explain_instant(table.context, own)
        assert (told.action, told.state) == (action, "decided")
        assert "committed, as number 3" in told.remarks[0]
        assert table.resolve(own).outcome is WriteOutcome.PUBLISHED
        assert [one.action for one in table.timeline if one.requested_time == own] == [action]
        assert table.resolve(gone).outcome is WriteOutcome.NOT_PUBLISHED


@pytest.mark.spec("RST-1")
def test_a_write_is_not_reported_as_committed_while_it_is_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pending files go last: until then it resembles a commit whose completed file is late."""
    with hoodoo.create_table(
        tmp_path / "t", schema=ROWS.schema, record_key="id", properties=MANY
    ) as table:
        kept, gone = (table.upsert(ROWS).requested_time for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(settling, "data_files_of", cut_off)
            with pytest.raises(OutcomeUnknownError):
                restore(table.context, kept)
        (remark,) = explain_instant(table.context, gone).remarks
        assert remark.startswith("rolled back by ")
        assert table.resolve(gone).outcome is WriteOutcome.NOT_PUBLISHED


@pytest.mark.spec("SLOT-6")
def test_an_undecided_write_is_not_explained_without_its_slot_store(
    tmp_path: Path,
) -> None:
    """It would pass for a dead writer's, to be rolled back, though a slot elsewhere has it."""
    elsewhere = {
        **MANY,
        "hoodoo.slots.backend": "sql",
        "hoodoo.lock.sql.url": str(tmp_path / "slots.db"),
        "hoodoo.lock.sql.create_table": "true",
    }
    path = tmp_path / "t"
    with hoodoo.create_table(
        path, schema=ROWS.schema, record_key="id", properties=elsewhere
    ) as table:
        time = table.upsert(ROWS).requested_time
    (shown,) = (path / ".hoodie" / "timeline").glob(f"{time}_*.commit")
    shown.unlink()
    with hoodoo.open_table(path, properties=MANY) as table:
        for asked in (time, "20200101000000000"):
            with pytest.raises(UnsafeSetupError, match="another store"):
                explain_instant(table.context, asked)
    with hoodoo.open_table(path, properties=elsewhere) as table:
        assert explain_instant(table.context, time).remarks[0].startswith("committed, as number 1")


def test_a_savepoint_names_its_own_writer_and_not_that_of_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loader = {**MANY, "hoodie.write.application.id": "loader"}
    keeper = {**MANY, "hoodie.write.application.id": "keeper"}
    with hoodoo.create_table(path, schema=ROWS.schema, record_key="id", properties=loader) as table:
        table.upsert(ROWS)
    with hoodoo.open_table(path, properties=keeper) as table:
        savepoint(table.context)
        told = {one.action: (one.who, one.slot_number) for one in list_instants(table.context)}
    assert told == {"commit": ("loader", 1), "savepoint": ("keeper", 2)}


def test_a_plan_completed_by_another_engine_has_no_slot_number(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with hoodoo.create_table(path, schema=ROWS.schema, record_key="id", properties=MANY) as table:
        for _ in range(2):
            table.bulk_insert(ROWS)
        table.services.cluster()
        done = list_instants(table.context)[-1]
        assert (done.action, done.slot_number) == ("replacecommit", 4)
    max((path / ".hoodie" / ".hoodoo" / "slots").iterdir()).unlink()  # Java Hudi takes none
    with hoodoo.open_table(path, properties=MANY) as table:
        assert list_instants(table.context)[-1].slot_number is None


def cut_off(*_: object) -> None:
    raise OSError("cut off")


def test_archived_instants_are_explained_too(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_clean_archive", tmp_path)
    with hoodoo.open_table(path) as table:
        told = list_instants(table.context, archived=True)
        archived = [account for account in told if account.archived]
        assert archived
        one = next(account for account in archived if account.action == "commit")
        assert explain_instant(table.context, one.requested_time).archived


def test_java_hudis_instants_have_no_invented_writer(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_cow_part", tmp_path)
    with hoodoo.open_table(path) as table:
        for account in list_instants(table.context):
            assert (account.who, account.attempts, account.slot_number) == ("", None, None)


def test_conflicts_of_the_writers_of_a_table_are_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loader = {**MANY, "hoodie.write.application.id": "loader"}
    with (
        hoodoo.create_table(path, schema=ROWS.schema, record_key="id", properties=MANY) as first,
        hoodoo.open_table(
            path, properties={**MANY, "hoodie.write.application.id": "rival"}
        ) as other,
    ):
        first.upsert(ROWS)
        for _ in range(2):
            with hoodoo.open_table(path, properties=loader, events=ConcurrentWriter(other)) as slow:
                slow.upsert(ROWS.slice(0, 1))
        told = measure_contention(first.context)
    assert (told.writes, told.refused_attempts, told.waits) == (5, 2, 0)
    [meeting] = told.meetings
    assert (meeting.loser, meeting.winner) == ("loader", "rival")
    assert (meeting.kind, meeting.times, meeting.written_again) == ("write_conflict", 2, 2)
    assert meeting.lost_seconds > 0
    assert len(meeting.places) == 1
    assert "bucket index" in told.advice[0]
    assert told.lines()[1].startswith(
        "2 times loader lost to rival: write_conflict; 2 written again"
    )
