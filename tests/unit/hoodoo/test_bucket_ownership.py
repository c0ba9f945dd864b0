"""Writers with bucket ranges: rows of other ranges are refused, and ranges never overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.keys.bucketing import BucketRules, SimpleBucketAssigner
from filegroups.settings.settings import WriteSettings
from filegroups.writing.write_request import CommitResult
from timeline.errors import InvalidInputError, SettingError, WriterDisagreementError
from timeline.rules.bucket_ranges import BucketRanges
from timeline.writer_registry import registered_writers

RANGE = "hoodoo.write.bucket.range"
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
MANY = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "8",
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "filesystem",
}
LOW, HIGH = {**MANY, RANGE: "0-3"}, {**MANY, RANGE: "4-7"}
KINDS = ["COPY_ON_WRITE", "MERGE_ON_READ"]


def made(path: Path, properties: dict[str, str] = MANY, kind: str = KINDS[0]) -> Path:
    options = {**properties, "hoodie.table.type": kind}
    hoodoo.create_table(
        path / "t",
        schema=SCHEMA,
        properties=options,
        record_key="id",
        partition_by="p",
        ordering="ts",
    ).close()
    return path / "t"


def buckets_of(rows: pa.Table) -> Any:
    rules = BucketRules(buckets=8, hash_fields=("id",))
    shares = SimpleBucketAssigner(hash_fields=rules.hash_fields, buckets=rules.buckets)
    return shares.numbers(rows["id"], rows["p"])


def batch(
    own: str, v: int = 1, *, ts: int = 1, partitions: str = "xy", rows: int = 200
) -> pa.Table:
    """Rows whose keys belong to some buckets."""
    every = pa.Table.from_pylist(
        [
            {"id": f"k{n:04d}", "p": partitions[n % len(partitions)], "ts": ts, "v": v}
            for n in range(rows)
        ],
        schema=SCHEMA,
    )
    mine = BucketRanges.parse(own)
    return every.filter(pa.array([number in mine for number in buckets_of(every).tolist()]))


def values(table: hoodoo.Table) -> dict[str, int]:
    found = table.to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key lies twice"
    return {row["id"]: row["v"] for row in found}


# ---- ranges


@pytest.mark.parametrize("text", ["a", "3-1", "0-", "-3", "1,,2", "0-3;5", "٣", "1-2-3"])
def test_an_invalid_range_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(SettingError) as caught:
        WriteSettings.from_properties({RANGE: text})
    assert (caught.value.kind, caught.value.fields["key"]) == ("setting_value", RANGE)


@pytest.mark.parametrize(
    ("made_with", "range_message"),
    [
        ({**MANY, "hoodie.index.type": "SIMPLE"}, "0-3"),
        ({**MANY, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}, "0-3"),
        (MANY, "0-8"),
    ],
    ids=["no bucket index", "ring", "beyond the last bucket"],
)
def test_a_table_without_such_buckets_is_refused_by_name(
    tmp_path: Path, made_with: dict[str, str], range_message: str
) -> None:
    path = made(tmp_path, made_with)
    with pytest.raises(SettingError) as caught:
        hoodoo.open_table(path, properties={**made_with, RANGE: range_message})
    assert (caught.value.kind, caught.value.fields["key"]) == ("setting_contradiction", RANGE)


def test_no_table_is_created_that_could_not_be_opened_again(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        made(tmp_path, {**MANY, RANGE: "0-8"})
    assert (caught.value.kind, caught.value.fields["key"]) == ("setting_contradiction", RANGE)
    assert not (tmp_path / "t").exists()


# ---- rows


@pytest.mark.spec("OWN-1")
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_other_buckets_are_refused_with_their_counts(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path, kind=kind)
    mine, strange = batch("0-3"), batch("5,7")
    with hoodoo.open_table(path, properties=LOW) as table:
        table.upsert(mine)
        before = sorted(str(one) for one in path.rglob("*.parquet"))
        counts = dict.fromkeys("57", 0)
        for number in buckets_of(strange).tolist():
            counts[str(number)] += 1
        writes: list[Callable[[pa.Table], CommitResult]] = [
            table.upsert,
            table.insert,
            table.bulk_insert,
            table.delete,
        ]
        for write in writes:
            with pytest.raises(InvalidInputError) as caught:
                write(pa.concat_tables([mine, strange]))
            fields = caught.value.fields
            assert caught.value.kind == "foreign_buckets"
            assert (fields["buckets"], fields["rows"]) == (counts, strange.num_rows)
            assert f"5 ({counts['5']}), 7 ({counts['7']})" in str(caught.value)
        assert sorted(str(one) for one in path.rglob("*.parquet")) == before
        assert [one.state for one in table.timeline] == ["completed"]
        assert values(table) == dict.fromkeys(mine["id"].to_pylist(), 1)


def test_a_partial_update_of_other_buckets_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path)
    with hoodoo.open_table(path, properties=MANY) as everybody:
        everybody.upsert(batch("0-7"))
    with hoodoo.open_table(path, properties=LOW) as table:
        with pytest.raises(InvalidInputError) as caught:
            table.upsert(batch("3-4", 9, ts=2), partial=True)
        assert list(caught.value.fields["buckets"]) == ["4"]
        table.upsert(batch("0-3", 9, ts=2), partial=True)
        assert {v for key, v in values(table).items() if key in batch("0-3")["id"].to_pylist()} == {
            9
        }


def test_overwrites_and_deletes_of_partitions_need_all_buckets(tmp_path: Path) -> None:
    path = made(tmp_path)
    with hoodoo.open_table(path, properties=LOW) as table:
        table.upsert(batch("0-3"))
        for write in (
            lambda: table.insert_overwrite(batch("0-3", 2)),
            lambda: table.insert_overwrite_table(batch("0-3", 2)),
            lambda: table.delete_partitions(["x"]),
        ):
            with pytest.raises(InvalidInputError) as caught:
                write()
            assert caught.value.kind == "foreign_buckets"
        assert set(values(table).values()) == {1}


def test_a_dry_run_refuses_the_same_rows(tmp_path: Path) -> None:
    path = made(tmp_path)
    with hoodoo.open_table(path, properties=LOW) as table:
        assert table.check_conflicts(batch("0-3")) == ()
        with pytest.raises(InvalidInputError):
            table.check_conflicts(batch("4"))


# ---- the registry


@pytest.mark.spec("OWN-1")
@pytest.mark.parametrize(
    "second_options", [{**MANY, RANGE: "3-5"}, MANY], ids=["a range that overlaps", "no range"]
)
def test_a_newcomer_with_buckets_of_another_writer_is_refused(
    tmp_path: Path, second_options: dict[str, str]
) -> None:
    path = made(tmp_path)
    with hoodoo.open_table(path, properties=LOW) as first:
        first.upsert(batch("0-3"))
        with hoodoo.open_table(path, properties=second_options) as second:
            with pytest.raises(WriterDisagreementError) as caught:
                second.upsert(batch("3"))
            assert caught.value.kind == "buckets_met"
            theirs = caught.value.fields["differences"][RANGE]
            assert theirs == {"mine": second_options.get(RANGE, "all"), "theirs": "0-3"}
            assert len(first.timeline) == 1
            assert [one.buckets for one in registered_writers(first.context)] == ["0-3"]
    with hoodoo.open_table(path, properties=second_options) as second:
        second.upsert(batch("3", 2, ts=2))  # the first one left


def test_a_writer_with_a_range_is_refused_while_another_writes_everywhere(tmp_path: Path) -> None:
    path = made(tmp_path)
    with hoodoo.open_table(path, properties=MANY) as first:
        first.upsert(batch("0-7"))
        with (
            hoodoo.open_table(path, properties=LOW) as second,
            pytest.raises(WriterDisagreementError),
        ):
            second.upsert(batch("0"))


def test_services_run_at_the_same_time_as_every_range(tmp_path: Path) -> None:
    path = made(tmp_path, kind="MERGE_ON_READ")
    with hoodoo.open_table(path, properties=LOW) as writer:
        writer.upsert(batch("0-3"))
        writer.upsert(batch("0-3", 2, ts=2))
        with hoodoo.open_table(path, properties=MANY) as worker:
            assert worker.services.compact() is not None
            entries = registered_writers(writer.context)
            assert sorted(one.buckets for one in entries) == ["", "0-3"]
            with pytest.raises(WriterDisagreementError):  # it writes rows, too
                worker.upsert(batch("0"))
            entries = registered_writers(writer.context)
            assert sorted(one.buckets for one in entries) == ["", "0-3"]
    with hoodoo.open_table(path, properties=MANY) as worker:
        worker.services.clean()
        worker.upsert(batch("0", 3, ts=3))
        assert [one.buckets for one in registered_writers(worker.context)] == ["all"]


# ---- side by side


@pytest.mark.spec("OWN-1")
@pytest.mark.parametrize("kind", KINDS)
def test_writers_of_disjoint_buckets_are_never_refused(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path, kind=kind)
    results: list[CommitResult] = []
    start = threading.Barrier(2, timeout=60)

    def write(properties: dict[str, str]) -> None:
        with hoodoo.open_table(path, properties=properties) as table:
            for section in range(4):
                start.wait()  # both begin again at the same moment
                rows = batch(
                    properties[RANGE], section, ts=section, partitions="xyz"[: 1 + section]
                )
                results.append(table.upsert(rows))

    threads = [threading.Thread(target=write, args=(options,)) for options in (LOW, HIGH)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(results) == 8
    assert {(one.attempts, one.refusals) for one in results} == {(1, ())}
    assert {one.redone for one in results} <= {"nothing", "publication"}
