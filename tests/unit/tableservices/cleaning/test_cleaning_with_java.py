"""Cleans in mode shared: the content of their slots, and the cleans that are ended (FOR-9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from filegroups.table import TableReader
from tableservices.archiving.archived_timeline import append_to_archive
from tableservices.cleaning.execute import clean
from tableservices.cleaning.plan import CleaningSettings
from tests.unit.timeline.engine import BRISK, heard, new_table, opened, upsert
from tests.unit.timeline.publishing import commit_in_section
from timeline.codecs.archive_manifest import ArchivedInstant
from timeline.commit.apply import revert_if_restored
from timeline.commit.commit_lock import CommitSection
from timeline.commit_log import slots_with_removed_file
from timeline.model.file_names import TIMELINE, pending_file_names, timeline_path
from timeline.model.instant import Action
from timeline.model.slot import Slot, SlotKind
from timeline.properties.setting_enums import ForeignWriters

SHARED = replace(BRISK, foreign_writers=ForeignWriters.EXPECTED)
ONE = CleaningSettings(commits_retained=1)

pytestmark = pytest.mark.spec("FOR-9")


def row(version: int) -> list[dict[str, object]]:
    return [{"id": "a", "p": "x", "ts": version, "v": version}]


def written() -> TableReader:
    table = new_table()
    for version in range(4):
        upsert(table, row(version))
    return table


def newest(table: TableReader) -> Slot:
    commit_log = opened(table).context.commit_log
    found = commit_log.newest_own_slot(commit_log.head())
    assert found is not None
    return found


def cleaned() -> tuple[TableReader, Slot]:
    """A table whose newest slot is that of a clean, and the slot."""
    table = written()
    assert clean(opened(table, limits=SHARED).context, ONE) is not None
    return table, newest(table)


def files_of(table: TableReader) -> list[str]:
    names = table.context.ports.storage.names(TIMELINE)
    return sorted(name for name in names if ".clean" in name)


def lose(table: TableReader, names: list[str]) -> None:
    for name in names:
        table.context.ports.storage.delete(timeline_path(name))


def test_the_slot_of_a_clean_has_a_timeline_digest_in_mode_shared_only() -> None:
    _, slot = cleaned()
    assert (slot.kind, len(slot.timeline_digest)) == (SlotKind.CLEAN, 32)
    table = written()
    clean(table.context, ONE)
    assert newest(table).timeline_digest == ""


def test_the_slot_that_completes_another_engines_clean_has_no_timeline_digest() -> None:
    table = written()
    time = str(int(newest(table).completion_time) + 1)
    storage = table.context.ports.storage
    storage.create(timeline_path(f"{time}.clean.requested"), b"plan")
    context = opened(table, limits=SHARED).context

    def decide(section: CommitSection) -> Slot:
        return section.next_slot(
            context, SlotKind.CLEAN, Action.CLEAN, time, nonce="n", plan=b"plan", body=b"done"
        )

    taken, _ = commit_in_section(context, "finish clean", decide)
    assert taken is not None
    assert (taken.timeline_digest, len(files_of(table))) == ("", 3)


@pytest.mark.parametrize(
    ("left", "kinds"),
    [
        (0, [SlotKind.CLEAN, SlotKind.VOID, SlotKind.COMMIT]),
        (1, [SlotKind.CLEAN, SlotKind.COMMIT]),
        (2, [SlotKind.CLEAN, SlotKind.COMMIT]),
    ],
    ids=["nothing", "its requested file", "both"],
)
def test_the_next_slot_voids_a_clean_that_deleted_nothing(left: int, kinds: list[SlotKind]) -> None:
    table, slot = cleaned()
    inflight, requested = pending_file_names(Action.CLEAN, slot.requested_time)
    assert slot.file_name is not None
    lose(table, [slot.file_name, inflight, requested][: 3 - left])
    later = opened(table, limits=SHARED)
    upsert(later, row(5))
    commit_log = opened(table).context.commit_log
    assert [one.kind for one in commit_log.between(slot.number - 1, commit_log.head())] == kinds
    assert len(files_of(table)) == (3 if left else 0)
    ended = [one["number"] for one in heard(later, "publish.void")]
    assert ended == ([] if left else [slot.number])


def test_a_clean_that_is_in_the_archive_is_not_voided() -> None:
    """Java archived it; a savepoint keeps the first write of the timeline, which is older."""
    table, slot = cleaned()
    time, done = slot.requested_time, slot.completion_time
    rows = [ArchivedInstant(requested_time=time, completion_time=done, action="clean")]
    append_to_archive(table.context.ports.storage, rows)
    lose(table, files_of(table))
    upsert(opened(table, limits=SHARED), row(5))
    assert newest(table).number == slot.number + 1
    assert files_of(table) == []


def test_late_files_of_a_voided_clean_are_deleted() -> None:
    table, slot = cleaned()
    late = files_of(table)
    lose(table, late)
    upsert(opened(table, limits=SHARED), row(5))
    context = opened(table, limits=SHARED).context
    commit_log = context.commit_log.between(0, context.commit_log.head())
    assert slots_with_removed_file(commit_log) == {slot.number}
    for name in late:
        context.ports.storage.create(timeline_path(name), b"")
    revert_if_restored(context, slot, None)
    assert files_of(table) == []
