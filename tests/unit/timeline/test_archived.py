"""The archive is read in any order of its files and rows (fmt 8, 11.2)."""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from tests.unit.timeline.archives import archived, with_metadata
from tests.unit.timeline.engine import Heard
from tests.unit.timeline.memory import MemoryStorage
from timeline.archived import ArchivedTimeline
from timeline.codecs import avro_schemas as schemas
from timeline.errors import CorruptTableError, MissingFileError
from timeline.model.file_names import HISTORY

TIMES = tuple(f"2026010203040500{n}" for n in range(1, 8))
T1, T2, T3, T4, T5, T6, T7 = TIMES
FOLDER = ".hoodie/archived"


def migrated() -> ArchivedTimeline:
    """Return an archive of version 6 as Java upgrades it, with files that Java archives later."""
    return archived(
        MemoryStorage(),
        (
            f"{T5}_{T1}_0.parquet",
            [(T5, T6, "commit"), (T3, T4, "clean"), (T1, T2, "commit")],
        ),
        (f"{T2}_{T6}_0.parquet", [(T2, T3, "commit"), (T6, T7, "replacecommit")]),
    )


def test_instants_are_sorted_although_their_files_are_not() -> None:
    assert [(one.requested_time, one.action) for one in migrated().instants()] == [
        (T1, "commit"),
        (T2, "commit"),
        (T3, "clean"),
        (T5, "commit"),
        (T6, "replacecommit"),
    ]


def test_no_write_of_a_range_is_missed_in_a_reversed_file() -> None:
    history = migrated()
    assert times(history, T1, None) == [T1, T2, T5, T6]
    assert times(history, T2, T6) == [T2, T5], "the start is excluded, the end is not"
    assert times(history, T7, None) == []


def test_an_archive_that_hudi_1_0_migrated_keeps_commits_as_json() -> None:
    name, rows = f"{T2}_{T1}_0.parquet", [(T2, T3, "commit"), (T1, T2, "deltacommit")]
    json_of = '{{"operationType": "{}", "version": 1}}'.format
    history = with_metadata(MemoryStorage(), lambda one: json_of(one).encode(), (name, rows))
    assert times(history, T1, None) == [T1, T2]
    damaged = with_metadata(MemoryStorage(), lambda _: b"{", (name, rows))
    with pytest.raises(CorruptTableError):
        list(damaged.commits_between(T1, None))


def test_an_archive_that_hudi_1_0_2_migrated_keeps_commits_without_a_container() -> None:
    rows = [(T2, T3, "replacecommit"), (T1, T2, "commit")]
    bare = {
        T1: bare_record(schemas.COMMIT_METADATA, {"operationType": T1}),
        T2: bare_record(
            schemas.REPLACE_COMMIT_METADATA,
            {"operationType": T2, "partitionToReplaceFileIds": {"p": ["f"]}},
        ),
    }
    history = with_metadata(MemoryStorage(), bare.__getitem__, (f"{T2}_{T1}_0.parquet", rows))
    assert times(history, T1, None) == [T1, T2]
    (_, replaced) = next(history.commits_between(T2, None))
    assert replaced.replaced_file_groups() == {("p", "f")}
    torn = with_metadata(
        MemoryStorage(), lambda one: bare[one][:-1], (f"{T2}_{T1}_0.parquet", rows)
    )
    with pytest.raises(CorruptTableError):
        list(torn.commits_between(T1, None))


def bare_record(schema: schemas.Schema, record: dict[str, object]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return body.getvalue()


def test_a_write_without_completion_time_counts_by_its_requested_time() -> None:
    history = archived(MemoryStorage(), (f"{T2}_{T2}_0.parquet", [(T2, None, "commit")]))
    assert (times(history, T1, T2), times(history, T2, None)) == ([T2], [])


def test_completions_are_of_writes_where_a_savepoint_shares_their_requested_time() -> None:
    rows = [(T1, T2, "commit"), (T1, T5, "savepoint"), (T3, None, "commit")]
    history = archived(MemoryStorage(), (f"{T1}_{T5}_0.parquet", rows))
    assert history.times().completions == {T1: T2, T3: T3}, "without one, the requested time counts"


def test_repeated_times_are_read_from_new_files_only() -> None:
    storage = MemoryStorage()
    history = archived(storage, (f"{T1}_{T1}_0.parquet", [(T1, T2, "commit")]))
    first = history.times()
    assert history.times() is first
    storage.delete(f"{HISTORY}/{T1}_{T1}_0.parquet")  # not read again
    with pytest.raises(MissingFileError):
        history.instants()
    more = MemoryStorage()
    archived(more, (f"{T3}_{T3}_0.parquet", [(T3, T4, "commit")]))
    storage.create(f"{HISTORY}/{T3}_{T3}_0.parquet", more.read(f"{HISTORY}/{T3}_{T3}_0.parquet"))
    names = (f"{T1}_{T1}_0.parquet", f"{T3}_{T3}_0.parquet")
    listed = [{"fileName": name, "fileLen": 1} for name in names]
    storage.create(f"{HISTORY}/manifest_2", json.dumps({"files": listed}).encode())
    storage.write(f"{HISTORY}/_version_", b"2")
    assert history.times().completions == {T1: T2, T3: T4}


def test_the_archive_rules_out_unknown_instants_from_its_oldest_one_on() -> None:
    rows = [(T2, T2, "commit"), (T4, T4, "commit")]
    times = archived(MemoryStorage(), (f"{T2}_{T4}_0.parquet", rows)).times()
    assert [one for one in TIMES if times.rules_out(one)] == [T3, T5, T6, T7]
    assert not ArchivedTimeline(MemoryStorage(), Heard()).times().rules_out(T1)


def test_archived_writes_are_found_by_their_requested_time_too() -> None:
    found = migrated().writes_between(T1, T5, by_request=True)
    assert [one.requested_time for one in found] == [T2, T5]


def times(history: ArchivedTimeline, since: str, until: str | None) -> list[str]:
    found = list(history.commits_between(since, until))
    assert [row.requested_time for row, _ in found] == [one.operation_type for _, one in found]
    return [row.requested_time for row, _ in found]


def with_second_manifest() -> MemoryStorage:
    """Return an archive whose second manifest names one file more than the first."""
    storage, more = MemoryStorage(), MemoryStorage()
    first, second = f"{T1}_{T1}_0.parquet", f"{T3}_{T3}_0.parquet"
    archived(storage, (first, [(T1, T2, "commit")]))
    archived(more, (second, [(T3, T4, "commit")]))
    storage.create(f"{HISTORY}/{second}", more.read(f"{HISTORY}/{second}"))
    listed = [{"fileName": name, "fileLen": 1} for name in (first, second)]
    storage.create(f"{HISTORY}/manifest_2", json.dumps({"files": listed}).encode())
    storage.write(f"{HISTORY}/_version_", b"2")
    return storage


def requested(storage: MemoryStorage) -> list[str]:
    history = ArchivedTimeline(storage, Heard())
    assert list(history.times().completions) == [one.requested_time for one in history.instants()]
    return [one.requested_time for one in history.instants()]


@pytest.mark.spec("GC-5")
def test_a_version_that_was_put_back_hides_nothing() -> None:
    """A slow archiver rewrote the version after the newer instants left the timeline."""
    storage = with_second_manifest()
    history = ArchivedTimeline(storage, Heard())
    assert list(history.times().completions) == [T1, T3]
    storage.write(f"{HISTORY}/_version_", b"1")
    assert requested(storage) == [T1, T3]
    assert not ArchivedTimeline(storage, Heard()).times().rules_out(T3)
    assert list(history.times().completions) == [T1, T3]
    storage.delete(f"{HISTORY}/manifest_1")
    assert requested(storage) == [T1, T3]


@pytest.mark.spec("GC-5")
@pytest.mark.parametrize("stray", [b"", b'{"files":', b'{"files":[{"fileName":"gone"}]}'])
def test_a_manifest_beyond_the_version_counts_only_if_it_is_whole(stray: bytes) -> None:
    storage = with_second_manifest()
    storage.create(f"{HISTORY}/manifest_3", stray)
    assert requested(storage) == [T1, T3]


def test_a_manifest_that_a_listing_lacks_is_read_where_the_version_names_it() -> None:
    class Late(MemoryStorage):
        def names(self, folder: str) -> list[str]:
            return [name for name in super().names(folder) if name != "manifest_2"]

    late, storage = Late(), with_second_manifest()
    for name in storage.names(HISTORY):
        late.create(f"{HISTORY}/{name}", storage.read(f"{HISTORY}/{name}"))
    assert requested(late) == [T1, T3]


def test_a_version_without_its_manifest_is_damage() -> None:
    storage = with_second_manifest()
    storage.delete(f"{HISTORY}/manifest_2")
    with pytest.raises(MissingFileError, match=r"manifest_2 \[see "):
        ArchivedTimeline(storage, Heard()).times()


def test_without_a_version_the_newest_manifest_counts() -> None:
    storage = MemoryStorage()
    archived(storage, (f"{T1}_{T1}_0.parquet", [(T1, T2, "commit")]))
    storage.create(f"{HISTORY}/manifest_2", b'{"files":[]}')
    storage.delete(f"{HISTORY}/_version_")
    assert ArchivedTimeline(storage, Heard()).instants() == []


def test_a_table_that_was_never_archived_has_no_archived_timeline() -> None:
    assert ArchivedTimeline(MemoryStorage(), Heard()).instants() == []
    assert ArchivedTimeline(MemoryStorage(), Heard(), legacy_folder=FOLDER).instants() == []
