"""A table whose past is archived, as its user sees it: verified, explained, archived by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.inspect.explain import explain_instant
from hoodoo.verify.verify import verify_at
from tests.acceptance.cli import contents, run
from timeline.commit import apply as settling
from timeline.commit.begin import begin
from timeline.errors import InstantNotFoundError, OutcomeUnknownError
from timeline.model.instant import Action
from timeline.rollback.resolve_unknown import WriteOutcome

FEW = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
KEEP = {**FEW, "hoodie.archive.automatic": "false"}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[hoodoo.Table]:
    """Six commits of one file group, none of them archived."""
    rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
    with hoodoo.create_table(
        tmp_path / "t", schema=rows.schema, record_key=["id"], properties=KEEP
    ) as made:
        for _ in range(6):
            made.upsert(rows)
        yield made


def flags(properties: dict[str, str]) -> list[str]:
    return [
        word for key, value in properties.items() for word in ("--hoodie-conf", f"{key}={value}")
    ]


def test_a_writer_archives_after_its_commit(tmp_path: Path):
    rows = pa.table({"id": [1], "name": ["a"]})
    with hoodoo.create_table(
        tmp_path / "t", schema=rows.schema, record_key=["id"], properties=FEW
    ) as made:
        for _ in range(5):
            made.upsert(rows)
        assert sum(one.archived for one in made.timeline) > 0


def test_archived_instants_are_verified_and_explained(table: hoodoo.Table, tmp_path: Path):
    first = table.timeline[0].requested_time
    result = table.services.archive()
    assert result is not None
    assert result.text.startswith("archived ")
    found = verify_at(tmp_path / "t", Layers())
    assert (found.problems, found.notes) == ((), ())
    account = explain_instant(table.context, first)
    assert account.archived
    assert account.state == "completed"


@pytest.mark.spec("UNK-3")
@pytest.mark.parametrize("completed", [True, False])
def test_the_answer_about_a_write_stays_when_its_rollback_is_archived(
    tmp_path: Path, *, completed: bool
):
    rows = pa.table({"id": [1], "name": ["a"]})
    with hoodoo.create_table(
        tmp_path / "t", schema=rows.schema, record_key=["id"], properties=KEEP
    ) as table:
        table.upsert(rows)
        if completed:
            gone = table.upsert(rows).requested_time
            table.rollback(gone)
        else:
            begun = begin(table.context, Action.COMMIT)
            begun.heartbeat.stop()
            gone = begun.requested_time
            table.context.low_water_mark.release(gone)
        assert table.resolve(gone).outcome is WriteOutcome.NOT_PUBLISHED
        head = table.context.commit_log.head()
        for _ in range(5):
            table.upsert(rows)
        slots = tmp_path / "t" / ".hoodie" / ".hoodoo" / "slots"
        for slot in slots.iterdir():
            os.utime(slot, (0, 0))
        table.services.archive()
        assert min(int(slot.name) for slot in slots.iterdir()) > head
        answer = table.resolve(gone)
        assert answer.outcome is WriteOutcome.NOT_PUBLISHED
        assert explain_instant(table.context, gone).state == "rolled back"
        (rollback,) = (one for one in table.timeline if one.action == "rollback")
        assert answer.why == f"the rollback {rollback.requested_time} removed it"


@pytest.mark.spec("UNK-3")
def test_an_interrupted_archive_is_found_by_the_time_in_its_error(
    table: hoodoo.Table, monkeypatch: pytest.MonkeyPatch
):
    def cut_off(*_: object) -> None:
        raise OSError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(settling, "_write_truncation_point", cut_off)
        with pytest.raises(OutcomeUnknownError) as unknown:
            table.services.archive()
    time = unknown.value.fields["requested_time"]
    answer = table.resolve(time)
    assert answer.outcome is WriteOutcome.PUBLISHED
    number = f"number {table.context.commit_log.head()} of this table"
    assert answer.why == f"as {number}; the next archiving deletes the remaining files"
    reported = explain_instant(table.context, time)
    assert reported.state == "decided"
    assert number in reported.remarks[0]
    table.services.archive()
    assert sum(one.archived for one in table.timeline) > 0


def test_the_command_line_lists_the_instants_to_archive_and_archives_them(
    table: hoodoo.Table, tmp_path: Path
):
    path = tmp_path / "t"
    table.close()
    before = contents(path)
    asked = ("services", "run", path, "--service", "archive", *flags(FEW))
    planned = run(*asked, "--dry-run").document["would_archive"]
    assert len(planned) >= 3
    assert contents(path) == before
    answer = run(*asked)
    assert answer.exit_code == 0, answer.err
    assert answer.document["text"].startswith(f"archived {len(planned)} instants")
    assert run("table", "verify", path).exit_code == 0
    listed = run("timeline", "show", path, "--history").document["instants"]
    assert sum(one["archived"] for one in listed) == len(planned)


@pytest.mark.parametrize("archived", [False, True])
def test_images_are_refused_where_a_clean_took_the_older_slice_archived_or_not(
    tmp_path: Path, archived: bool
) -> None:
    """The log was written during a compaction, so its earlier row was in the deleted slice."""
    keep = {
        **KEEP,
        "hoodie.clean.automatic": "false",
        "hoodie.compact.inline.max.delta.commits": "1",
    }
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    facts = {"record_key": "id", "table_type": "MERGE_ON_READ", "properties": keep}
    with hoodoo.create_table(tmp_path / "t", schema=schema, **facts) as table:
        table.upsert([{"id": "a", "v": 1}])
        since = table.upsert([{"id": "a", "v": 2}]).completion_time
        plan = table.services.schedule("compact")
        assert plan is not None
        table.upsert([{"id": "a", "v": 3}])
        table.services.execute(plan.requested_time)
        for value in range(4, 8):
            table.upsert([{"id": "a", "v": value}])
        assert table.services.clean() is not None
        if archived:
            for value in range(8, 14):
                table.upsert([{"id": "a", "v": value}])
            table.services.archive()
            assert not any(one.action == "clean" for one in table.timeline if not one.archived)
        with pytest.raises(InstantNotFoundError, match="the older files of"):
            table.changes(since, images=True).read_all()
