"""The history of a table: the facts of its own files, and those of journals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.history_checker.anomalies import AnomalyKind, find_anomalies
from hoodoo.history_checker.history import HistoryRecorder
from hoodoo.history_checker.table_history import (
    check_history,
    read_client_history,
    record_versions,
)
from tests.history_lines import read_line, write_line
from timeline.commit.begin import begin
from timeline.errors import InvalidInputError
from timeline.model.commit_metadata import Access, AccessedFileGroup, FileGroupId, WriteSet
from timeline.model.instant import Action

NEVER = "20200101000000000"
ARCHIVING = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.archive.automatic": "false",
    "hoodoo.storage.durability": "relaxed",
}


def rows(*keys: str, value: int = 0) -> pa.Table:
    return pa.table({"id": list(keys), "part": ["p"] * len(keys), "value": [value] * len(keys)})


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Any]:
    made = hoodoo.create_table(
        tmp_path / "t",
        schema=rows("a").schema,
        record_key="id",
        partition_by="part",
        properties={"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING", **ARCHIVING},
    )
    with made:
        yield made


def archive(table: Any, tmp_path: Path) -> None:
    """Everything so far, and its slots."""
    head = table.context.commit_log.head()
    for value in range(5):
        table.upsert(rows("a", value=value))
    slots = tmp_path / "t" / ".hoodie" / ".hoodoo" / "slots"
    for slot in slots.iterdir():
        os.utime(slot, (0, 0))
    table.services.archive()
    assert min(int(slot.name) for slot in slots.iterdir()) > head


def ended_pending(table: Any, *, beside: bool) -> str:
    """A write that was rolled back before its commit; with ``beside``, another one was too."""
    context = table.context
    begun = begin(context, Action.COMMIT)
    if beside:
        table.upsert(rows("a", value=9))
    begun.heartbeat.stop()
    context.low_water_mark.release(begun.requested_time)
    table.services.rollback_dead_writers()
    return begun.requested_time


def journal(tmp_path: Path, *lines: str) -> list[Path]:
    path = tmp_path / "client.jsonl"
    path.write_text("".join(lines))
    return [path]


def found(table: Any, journals: list[Path]) -> list[tuple[AnomalyKind, str]]:
    return [(one.kind, one.item) for one in check_history(table.context, journals)]


def test_a_table_written_in_order_has_no_finding(table: Any, tmp_path: Path) -> None:
    first = table.upsert(rows("a", "b"), batch_id="1").requested_time
    second = table.upsert(rows("a", value=1), batch_id="2")
    third = table.delete(rows("b").select(["id", "part"])).requested_time
    records = journal(
        tmp_path,
        write_line("one", "ok", ["a", "b"], instant=first, batch="1"),
        write_line("two", "ok", ["a"], instant=second.requested_time, reads=[("a", first)]),
        write_line("three", "ok", ["b"], instant=third, deletes=True),
        write_line("four", "fail", ["a"]),
        write_line("five", "unknown", ["c"]),
        read_line("r", [("a", second.requested_time), ("b", first)], at=second.completion_time),
        '{"event": "write", "na',  # a client that was killed
    )
    assert found(table, records) == []
    assert found(table, []) == []


def test_an_acknowledged_write_that_the_table_does_not_know_is_lost(
    table: Any, tmp_path: Path
) -> None:
    table.upsert(rows("a"))
    records = journal(tmp_path, write_line("one", "ok", ["b"], instant=NEVER))
    assert found(table, records) == [(AnomalyKind.LOST_UPDATE, "")]


def test_a_key_whose_newest_row_is_an_older_one_is_lost(table: Any, tmp_path: Path) -> None:
    table.upsert(rows("a"))
    later = table.upsert(rows("b")).requested_time
    records = journal(tmp_path, write_line("one", "ok", ["a", "b", "c"], instant=later))
    assert found(table, records) == [(AnomalyKind.LOST_UPDATE, "c"), (AnomalyKind.LOST_UPDATE, "a")]


def test_keys_that_an_overwrite_hid_are_not_lost(table: Any, tmp_path: Path) -> None:
    first = table.upsert(rows("a")).requested_time
    table.insert_overwrite(rows("b"))
    assert found(table, journal(tmp_path, write_line("one", "ok", ["a"], instant=first))) == []


def test_a_client_that_saw_an_uncommitted_row_read_dirty(table: Any, tmp_path: Path) -> None:
    table.upsert(rows("a"))
    pending = "29990101000000000"
    records = journal(tmp_path, read_line("r", [("a", pending)]))
    assert found(table, records) == [(AnomalyKind.DIRTY_READ, "a")]


def test_a_restored_away_write_is_not_lost(table: Any, tmp_path: Path) -> None:
    kept = table.upsert(rows("a")).requested_time
    table.savepoint(kept)
    gone = table.upsert(rows("b")).requested_time
    table.restore(kept)
    assert found(table, journal(tmp_path, write_line("one", "ok", ["b"], instant=gone))) == []


def test_a_journaled_overwrite_hides_keys_outside_the_journal(table: Any, tmp_path: Path) -> None:
    first = table.upsert(rows("a")).requested_time
    second = table.insert_overwrite(rows("b"))
    records = journal(
        tmp_path,
        write_line("one", "ok", ["a"], instant=first),
        write_line("two", "ok", ["b"], instant=second.requested_time),
        read_line("r", [("a", None)], at=second.completion_time),
    )
    assert found(table, records) == []


def test_a_restored_away_write_was_visible_to_earlier_readers(table: Any, tmp_path: Path) -> None:
    kept = table.upsert(rows("a")).requested_time
    table.savepoint(kept)
    gone = table.upsert(rows("a", "b"))
    records = journal(
        tmp_path,
        write_line("one", "ok", ["a"], instant=kept),
        write_line("two", "ok", ["a", "b"], instant=gone.requested_time),
        read_line(
            "r", [("a", gone.requested_time), ("b", gone.requested_time)], at=gone.completion_time
        ),
    )
    assert found(table, records) == []
    table.restore(kept)
    assert found(table, records) == []


def test_a_rollback_of_a_completed_write_excuses_it(table: Any, tmp_path: Path) -> None:
    table.upsert(rows("a"))
    gone = table.upsert(rows("b")).requested_time
    table.rollback(gone)
    assert found(table, journal(tmp_path, write_line("one", "ok", ["b"], instant=gone))) == []
    never = journal(tmp_path, write_line("one", "ok", ["b"], instant=NEVER))
    assert found(table, never) == [(AnomalyKind.LOST_UPDATE, "")]


def test_a_rollback_of_a_completed_write_excuses_it_when_it_is_archived(
    table: Any, tmp_path: Path
) -> None:
    table.upsert(rows("a"))
    gone = table.upsert(rows("b")).requested_time
    table.rollback(gone)
    archive(table, tmp_path)
    assert found(table, journal(tmp_path, write_line("one", "ok", ["b"], instant=gone))) == []


@pytest.mark.parametrize("archived", [False, True])
def test_a_restored_away_delete_counted_for_readers_in_between(
    table: Any, tmp_path: Path, *, archived: bool
) -> None:
    kept = table.upsert(rows("a", "b")).requested_time
    table.savepoint(kept)
    gone = table.delete(rows("b").select(["id", "part"]))
    table.restore(kept)
    table.delete_savepoint(kept)
    if archived:
        archive(table, tmp_path)
    records = journal(
        tmp_path,
        write_line("one", "ok", ["a", "b"], instant=kept),
        read_line("r", [("a", kept), ("b", None)], at=gone.completion_time),
    )
    assert found(table, records) == []


@pytest.mark.parametrize(("beside", "archived"), [(False, False), (True, True)])
def test_a_rollback_excuses_no_answer_about_a_write_that_was_never_committed(
    table: Any, tmp_path: Path, *, beside: bool, archived: bool
) -> None:
    """
    Its abort slot proves that, or a write that began after it: then it was not the newest one.
    """
    table.upsert(rows("a"))
    gone = ended_pending(table, beside=beside)
    if archived:
        archive(table, tmp_path)
    records = journal(tmp_path, write_line("one", "ok", ["b"], instant=gone))
    assert found(table, records) == [(AnomalyKind.LOST_UPDATE, "")]


def test_keys_of_two_partitions_are_two_rows(table: Any, tmp_path: Path) -> None:
    """The newest state has only one of them: the other was deleted."""
    other = pa.table({"id": ["a"], "part": ["q"], "value": [1]})
    first = table.upsert(rows("a")).requested_time
    second = table.upsert(other).requested_time
    third = table.delete(other.select(["id", "part"])).requested_time
    records = journal(
        tmp_path,
        write_line("one", "ok", ["a"], instant=first),
        write_line("two", "ok", ["a"], instant=second),
        write_line("three", "ok", ["a"], instant=third, deletes=True),
    )
    assert found(table, records) == []


@pytest.mark.parametrize(
    "line",
    [
        "not json\n",
        '{"event": "write", "answer": "maybe", "keys": []}\n',
        '{"event": "write", "answer": "ok", "keys": ["a"]}\n',
        '{"event": "read"}\n',
        write_line("w", "ok", ["a"], instant="9" * 19),
        write_line("w", "ok", ["a"], instant="9" * 20),
        write_line("w", "ok", ["a"], instant=""),
        read_line("r", [], at="9" * 20),
        read_line("r", [], at="2026-01-01"),
        "[]\n",
    ],
)
def test_a_line_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_client_history(HistoryRecorder(), [line.encode()], source="j")
    assert caught.value.fields["line"] == 1


# ---------------------------------------------------------------- writes of a group

GROUP_TIME, OTHER_TIME = "20260101000009000", "20260101000008000"


def of_lines(*lines: str, committed: tuple[str, ...]) -> list[tuple[AnomalyKind, str]]:
    run = HistoryRecorder(ordered=True, by_commits=True)
    read_client_history(run, [line.encode() for line in lines], source="j")
    for name in committed:
        run.transaction(name, position=int(name) + 1, places=["p"])
    return [(one.kind, one.item) for one in find_anomalies(run.finish())]


@pytest.mark.spec("GRP-1")
@pytest.mark.parametrize("one_write", [False, True])
def test_writes_of_a_group_have_each_read_a_snapshot_of_their_own(*, one_write: bool) -> None:
    """One read a key before it was written again; the one that writes it read it after that."""
    first, second = "20260101000001000", "20260101000002000"
    lines = [
        write_line("p", "ok", ["a"], instant=first),
        write_line("q", "ok", ["a"], instant=second),
        write_line("A", "ok", ["x"], instant=GROUP_TIME, reads=[("a", first)]),
        write_line("B", "ok", ["a"], instant=GROUP_TIME, reads=[("a", second)]),
    ]
    if one_write:
        lines[2:] = [write_line("A", "ok", ["x", "a"], instant=GROUP_TIME, reads=[("a", first)])]
    records = of_lines(*lines, committed=(first, second, GROUP_TIME))
    assert records == ([(AnomalyKind.LOST_UPDATE, "a")] if one_write else [])


@pytest.mark.spec("GRP-1")
def test_a_group_member_that_read_an_uncommitted_row_read_dirty() -> None:
    lines = [
        write_line("A", "ok", ["x"], instant=GROUP_TIME, reads=[("a", "29990101000000000")]),
        write_line("B", "ok", ["y"], instant=GROUP_TIME),
    ]
    assert of_lines(*lines, committed=(GROUP_TIME,)) == [(AnomalyKind.DIRTY_READ, "a")]


@pytest.mark.spec("GRP-1")
@pytest.mark.parametrize("answers", [("ok", "fail"), ("fail", "ok")])
@pytest.mark.parametrize(
    ("committed", "kind"),
    [((GROUP_TIME,), AnomalyKind.WRONG_ANSWER), ((), AnomalyKind.LOST_UPDATE)],
)
def test_each_answer_of_a_group_is_compared_with_the_commit(
    answers: tuple[str, str], committed: tuple[str, ...], kind: AnomalyKind
) -> None:
    lines = [write_line(one, one, [one], instant=GROUP_TIME) for one in answers]
    assert of_lines(*lines, committed=committed) == [(kind, "")]


@pytest.mark.spec("GRP-1")
@pytest.mark.parametrize(
    ("batches", "kinds"),
    [(("b", "c"), [AnomalyKind.DUPLICATE]), (("c", "b"), [AnomalyKind.DUPLICATE]), ("cd", [])],
)
def test_a_batch_of_a_group_that_another_commit_has_is_there_twice(
    batches: tuple[str, str], kinds: list[AnomalyKind]
) -> None:
    lines = [write_line(one, "ok", [one], instant=GROUP_TIME, batch=one) for one in batches]
    lines += [write_line("b", "ok", ["b"], instant=OTHER_TIME, batch="b")] * 2  # asked again
    records = of_lines(*lines, committed=(GROUP_TIME, OTHER_TIME))
    assert [kind for kind, _ in records] == kinds


# ---------------------------------------------------------------- versions of file groups

GROUP = FileGroupId("p", "f")
FIRST, SECOND, THIRD = (f"2026010100000{time}000" for time in (1, 2, 5))
COMPLETED = {FIRST: 3, SECOND: 4, THIRD: 6}


def of_file_group(*made: tuple[str, str]) -> list[tuple[AnomalyKind, str]]:
    """The findings if only slots with these (requested time, source) exist."""
    run = HistoryRecorder(ordered=True)
    for name, second in COMPLETED.items():
        run.transaction(name, position=int(f"2026010100000{second}000"))
    write_sets = []
    for name, source in made:
        group = AccessedFileGroup(
            file_group=GROUP, access=Access.BASE, source_requested_time=source, files=("f",)
        )
        write_sets.append((name, WriteSet.of([group])))
    record_versions(run, write_sets)
    return [(one.kind, one.item) for one in find_anomalies(run.finish())]


def test_a_version_without_a_slot_precedes_versions_made_from_it() -> None:
    # The second began before the first was committed, conflicted with it, and was rebased on its
    # file.
    assert of_file_group((SECOND, FIRST), (THIRD, SECOND)) == []


def test_a_version_that_skips_another_is_a_lost_update_although_its_source_slot_is_truncated() -> (
    None
):
    found = of_file_group((SECOND, FIRST), (THIRD, FIRST))
    assert (AnomalyKind.LOST_UPDATE, str(GROUP)) in found
