"""Manifests and files of the archived timeline under archivers that died or paused (fmt 8)."""

from __future__ import annotations

import pytest

from tableservices.archiving.archived_timeline import append_to_archive, archived_between
from tests.unit.timeline.engine import Behind, Heard
from tests.unit.timeline.memory import MemoryStorage
from timeline.archived import ArchivedTimeline
from timeline.codecs.archive_manifest import ArchivedInstant, archive_file, encode_manifest
from timeline.codecs.archived_instants import encode_archived_instants
from timeline.errors import CorruptTableError, MissingFileError
from timeline.model.file_names import HISTORY

T1, T2, T3 = (f"2026010203040500{n}" for n in (1, 2, 3))


def row(time: str) -> ArchivedInstant:
    return ArchivedInstant(requested_time=time, completion_time=time, action="commit")


def times(storage: MemoryStorage) -> list[str]:
    return [one.requested_time for one in ArchivedTimeline(storage, Heard()).instants()]


@pytest.fixture
def storage() -> MemoryStorage:
    storage = MemoryStorage()
    append_to_archive(storage, [row(T1)])
    return storage


def test_the_first_file_creates_the_first_manifest(storage: MemoryStorage):
    assert storage.names(HISTORY) == [f"{T1}_{T1}_0.parquet", "_version_", "manifest_1"]
    assert storage.read(f"{HISTORY}/_version_") == b"1"
    assert times(storage) == [T1]


def test_appending_the_same_rows_again_changes_nothing(storage: MemoryStorage):
    append_to_archive(storage, [row(T1)])
    assert storage.read(f"{HISTORY}/_version_") == b"1"


def test_a_complete_manifest_without_a_version_is_continued(storage: MemoryStorage):
    append_to_archive(storage, [row(T2)])
    storage.write(f"{HISTORY}/_version_", b"1")  # its archiver died before it said so
    assert archived_between(storage, T2, T2) == {(T2, "commit")}
    append_to_archive(storage, [row(T3)])
    assert storage.read(f"{HISTORY}/_version_") == b"3"
    assert times(storage) == [T1, T2, T3]


def test_an_append_without_rows_writes_the_version_of_a_complete_manifest(storage: MemoryStorage):
    append_to_archive(storage, [row(T2)])
    storage.write(f"{HISTORY}/_version_", b"1")
    append_to_archive(storage, [])
    assert times(storage) == [T1, T2]


@pytest.mark.parametrize(
    "stray", [b"torn", encode_manifest(()).replace(b"[", b'[ {"fileName": "x"}')]
)
def test_a_torn_manifest_is_written_again(storage: MemoryStorage, stray: bytes):
    storage.create(f"{HISTORY}/manifest_2", stray)
    append_to_archive(storage, [row(T2)])
    assert times(storage) == [T1, T2]


def test_a_manifest_with_a_missing_file_does_not_count(storage: MemoryStorage):
    append_to_archive(storage, [row(T2)])
    storage.write(f"{HISTORY}/_version_", b"1")
    storage.delete(f"{HISTORY}/{T2}_{T2}_0.parquet")
    append_to_archive(storage, [row(T3)])
    assert times(storage) == [T1, T3]


def test_a_damaged_manifest_of_the_current_version_is_reported(storage: MemoryStorage):
    storage.write(f"{HISTORY}/manifest_1", b"torn")
    with pytest.raises(CorruptTableError):
        append_to_archive(storage, [row(T2)])


def test_an_archiver_with_an_old_version_restores_the_newest(storage: MemoryStorage):
    class Waking(Behind):
        """Another archiver shows its manifest just before this one says its own number."""

        reached = False

        def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
            if path.endswith("_version_") and not self.reached:
                self.reached = True
                append_to_archive(self.inner, [row(T3)])
            self.inner.write(path, data, durable=durable)

    append_to_archive(Waking(storage), [row(T2)])
    assert storage.read(f"{HISTORY}/_version_") == b"3"
    assert times(storage) == [T1, T2, T3]


def test_a_missing_archive_file_is_reported_by_its_path(storage: MemoryStorage):
    path = f"{HISTORY}/{T1}_{T1}_0.parquet"
    storage.delete(path)
    with pytest.raises(MissingFileError, match="restore it from a backup") as caught:
        archived_between(storage, T1, T2)
    assert caught.value.fields["path"] == path


def test_files_that_another_archiver_merged_meanwhile_are_read_from_the_merged_file(
    storage: MemoryStorage,
):
    """The listed file is deleted, and a file of a newer manifest has its instants."""

    class Merging(Behind):
        merged = False

        def read(self, path: str) -> bytes:
            if path.endswith("_0.parquet") and not self.merged:
                self.merged = True
                data = encode_archived_instants([row(T1)])
                one = archive_file(T1, T1, level=1, size_bytes=len(data))
                self.inner.write(f"{HISTORY}/{one.file_name}", data)
                self.inner.write(f"{HISTORY}/manifest_2", encode_manifest([one]))
                self.inner.write(f"{HISTORY}/_version_", b"2")
                self.inner.delete(path)
            return self.inner.read(path)

    assert archived_between(Merging(storage), T1, T2) == {(T1, "commit")}
