"""Rows of a bucket index are written to the one file group of their bucket and partition."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hoodoo
from filegroups.index.buckets import (
    HashingMetadata,
    HashingNode,
    decode_hashing_metadata,
    encode_hashing_metadata,
    find_buckets,
    first_hashing_metadata,
)
from filegroups.keys.bucketing import BucketRules, bucket_of
from filegroups.settings.key_settings import BUCKET_PROPERTY_KEYS
from filegroups.settings.settings import WriteSettings
from filegroups.writing.workload import LocalWorkload
from hoodoo.writer import agreement
from tests.interop import golden_tables
from timeline.errors import CorruptTableError, SettingError, UnsupportedTableError
from timeline.model.commit_metadata import FileGroupId, WriteOperation
from timeline.properties.setting_enums import BucketEngine
from timeline.system import SystemIds

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
RING = {**BUCKETS, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}


def made(path: Path, properties: dict[str, str] = BUCKETS, **more: Any) -> hoodoo.Table:
    options = {"record_key": "id", "partition_by": "p", "ordering": "ts", **more}
    return hoodoo.create_table(path / "t", schema=SCHEMA, properties=properties, **options)


def batch(ids: range | list[int], v: int, *, ts: int = 1, p: str = "p") -> pa.Table:
    rows = [{"id": f"k{number:03d}", "p": p, "ts": ts, "v": v} for number in ids]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def values(table: hoodoo.Table) -> dict[tuple[str, str], int]:
    found = table.to_arrow().to_pylist()
    assert len({(row["p"], row["id"]) for row in found}) == len(found), "a key is stored twice"
    return {(row["p"], row["id"]): row["v"] for row in found}


class Blind(LocalWorkload):
    """A storage that must not receive reads for a lookup."""

    def tag(self, candidates: Any) -> Any:
        assert not candidates
        return super().tag(candidates)


def groups(table: hoodoo.Table) -> list[tuple[str, int | None]]:
    return [
        (s.file_group.partition_path, bucket_of(s.file_group.file_id)) for s in table.file_slices()
    ]


def test_upserts_reach_the_file_group_of_the_key_without_a_lookup(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(batch(range(40), 1))
        assert groups(table) == [("p", 0), ("p", 1), ("p", 2), ("p", 3)]
        rows = Blind(table.context.ports, batch(range(30, 60), 2, ts=2))
        result = table._run(WriteOperation.UPSERT, rows)
        assert (result.rows_updated, result.rows_inserted) == (10, 20)
        table.upsert(batch([5], 3, p="q"))
        assert groups(table)[:4] == [("p", 0), ("p", 1), ("p", 2), ("p", 3)]
        expected = {("p", f"k{n:03d}"): 1 if n < 30 else 2 for n in range(60)}
        assert values(table) == {**expected, ("q", "k005"): 3}


def test_every_row_is_in_the_bucket_of_its_key(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.insert(batch(range(100), 1))
        table.bulk_insert(batch(range(100, 200), 1))
        rules = BucketRules(buckets=4, hash_fields=("id",))
        snapshot = table.context.snapshot()
        slices = table.file_slices()
        assert len(slices) == 4
        where = find_buckets(
            table.context.ports.storage,
            snapshot,
            rules,
            ["p"],
            [one.file_group for one in slices],
        )
        rows = table.current_state().to_arrow(with_hoodie_columns=True)
        for one in slices:
            mine = rows.filter(pa.compute.equal(rows["_hoodie_file_name"], one.base_file.name))
            assert mine.num_rows
            assert where.misplaced(one.file_group, mine["_hoodie_record_key"]) == 0
        assert len(values(table)) == 200


def test_a_delete_needs_no_lookup_and_creates_no_bucket(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(batch([1, 2], 1))
        before = groups(table)
        result = table.delete(batch([1, 3, 4, 5, 6, 7], 0).select(["id", "p"]))
        assert result.rows_deleted == 1
        assert values(table) == {("p", "k002"): 1}
        assert groups(table) == before


@pytest.mark.parametrize("properties", [BUCKETS, RING], ids=["simple", "ring"])
def test_a_delete_reaches_no_other_partition(tmp_path: Path, properties: dict[str, str]) -> None:
    """Only one of the named buckets exists; it receives its own keys only."""
    with made(tmp_path, properties) as table:
        table.upsert(batch([1], 1))
        keys = pa.concat_tables([batch([1], 0, p="elsewhere"), batch([2], 0, p="nowhere")])
        keys = pa.concat_tables([keys, batch(range(40, 60), 0)])
        assert table.delete(keys.select(["id", "p"])).rows_deleted == 0
        assert values(table) == {("p", "k001"): 1}


def test_overwritten_partitions_get_new_file_groups_of_the_same_buckets(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(batch(range(20), 1))
        old = {one.file_group.file_id for one in table.file_slices()}
        table.insert_overwrite(batch(range(20), 2))
        new = {one.file_group.file_id for one in table.file_slices()}
        assert not old & new
        table.upsert(batch(range(20), 3, ts=5))
        assert {one.file_group.file_id for one in table.file_slices()} == new
        assert set(values(table).values()) == {3}


def test_inserts_may_drop_known_keys(tmp_path: Path) -> None:
    drop = {**BUCKETS, "hoodie.datasource.insert.dup.policy": "drop"}
    with made(tmp_path, drop) as table:
        table.insert(batch(range(5), 1))
        table.insert(batch(range(10), 2, ts=9))
        assert sorted(values(table).values()) == [1] * 5 + [2] * 5


def test_late_rows_lose_in_their_bucket(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(batch([1], 1, ts=10))
        table.upsert(batch([1, 2], 2, ts=5))
        assert values(table) == {("p", "k001"): 1, ("p", "k002"): 2}


def test_the_table_keeps_how_its_buckets_are_made(tmp_path: Path) -> None:
    with made(tmp_path) as table:
        table.upsert(batch(range(9), 1))
        assert {key: table.config.raw[key] for key in BUCKET_PROPERTY_KEYS.values()} == {
            "hoodoo.index.type": "BUCKET",
            "hoodoo.index.bucket.engine": "SIMPLE",
            "hoodoo.bucket.index.num.buckets": "4",
            "hoodoo.bucket.index.hash.field": "id",
        }
    with hoodoo.open_table(tmp_path / "t") as table:  # no option is repeated
        table.upsert(batch(range(9), 2, ts=2))
        assert set(values(table).values()) == {2}
        assert all(bucket is not None for _, bucket in groups(table))


@pytest.mark.parametrize(
    "other",
    [
        {"hoodie.bucket.index.num.buckets": "8"},
        {"hoodie.index.type": "SIMPLE"},
        {"hoodie.index.bucket.engine": "CONSISTENT_HASHING"},
    ],
)
def test_other_buckets_than_the_table_s_are_refused(tmp_path: Path, other: dict[str, str]) -> None:
    made(tmp_path).close()
    with pytest.raises(SettingError) as caught:
        hoodoo.open_table(tmp_path / "t", properties=other)
    assert caught.value.kind == "setting_against_table"


def test_writers_with_other_buckets_disagree() -> None:
    options = [
        agreement(
            WriteSettings.from_properties({**properties, "hoodie.table.recordkey.fields": "id"}),
            lock_provider="",
            lock_identity="",
        )["index"]
        for properties in (BUCKETS, {"hoodie.index.type": "BUCKET"}, {"hoodie.index.type": "BLOOM"})
    ]
    assert options == ["BUCKET SIMPLE 4 id", "BUCKET SIMPLE 256 id", "looked up"]


def test_hash_fields_must_be_key_fields(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        made(tmp_path, {**BUCKETS, "hoodie.bucket.index.hash.field": "v"})
    assert caught.value.fields["key"] == "hoodie.bucket.index.hash.field"


def test_some_hash_fields_of_a_longer_key_choose_the_bucket(tmp_path: Path) -> None:
    options = {**BUCKETS, "hoodie.bucket.index.hash.field": "ts"}
    with made(tmp_path, options, record_key=["id", "ts"], ordering=()) as table:
        table.upsert(batch(range(50), 1, ts=7))
        assert len(groups(table)) == 1  # all have the same hash field
        table.upsert(batch(range(50), 2, ts=7))
        assert set(values(table).values()) == {2}


# ---- refused settings


def made_by_java(path: Path, properties: dict[str, str]) -> Path:
    """Return a table without stored bucket options, as Java's are."""
    with made(path, properties) as table:
        table.upsert(batch(range(40), 1))
    file = path / "t" / ".hoodie" / "hoodie.properties"
    lines = [x for x in file.read_text().splitlines() if not x.startswith("hoodoo.")]
    file.write_text("\n".join(lines) + "\n")
    return path / "t"


def test_a_table_without_bucket_properties_is_accepted_when_its_files_fit(tmp_path: Path) -> None:
    path = made_by_java(tmp_path, BUCKETS)
    with hoodoo.open_table(path, properties=BUCKETS) as table:
        table.upsert(batch(range(40), 2, ts=2))
        assert set(values(table).values()) == {2}
    with hoodoo.open_table(path) as table:
        assert table.config.raw["hoodoo.bucket.index.num.buckets"] == "4"


@pytest.mark.parametrize(
    ("options", "kind"), [("2", "bucket_count"), ("8", "bucket_count"), ("256", "bucket_count")]
)
def test_a_table_made_with_another_number_of_buckets_is_refused(
    tmp_path: Path, options: str, kind: str
) -> None:
    path = made_by_java(tmp_path, BUCKETS)
    properties = {**BUCKETS, "hoodie.bucket.index.num.buckets": options}
    with hoodoo.open_table(path, properties=properties) as table:
        with pytest.raises(SettingError) as caught:
            table.upsert(batch([1], 2))
        assert caught.value.kind == kind
        assert len(table.timeline) == 1


def test_a_table_without_buckets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as drawn:  # one in 43 begins with eight digits, as buckets do
        drawn.setattr(SystemIds, "uuid", lambda _: "beefcafe-0000-4000-8000-000000000000")
        path = made_by_java(tmp_path, {})
    with hoodoo.open_table(path, properties=BUCKETS) as table:
        with pytest.raises(SettingError) as caught:
            table.upsert(batch([1], 2))
        assert caught.value.kind == "no_bucket"
        assert len(table.timeline) == 1


def test_two_file_groups_of_one_bucket_are_named() -> None:
    rules = BucketRules(buckets=4, hash_fields=("id",))
    twins = [
        FileGroupId("p", "00000001-4059-494c-88db-1b3bfb6ab2ed-0"),
        FileGroupId("p", "00000001-26e7-4322-9b6d-2c55fdfd80cf-0"),
    ]
    with pytest.raises(CorruptTableError) as caught:
        find_buckets(None, None, rules, ["p"], twins)  # type: ignore[arg-type]
    assert caught.value.kind == "duplicate_bucket"
    known = find_buckets(None, None, rules, ["p"], twins[:1]).known  # type: ignore[arg-type]
    assert known == {("p", 1): twins[0]}


def test_a_bucket_beyond_the_configured_number_is_refused() -> None:
    group = FileGroupId("p", "00000004-4059-494c-88db-1b3bfb6ab2ed-0")
    for buckets in (1, 4):
        rules = BucketRules(buckets=buckets, hash_fields=("id",))
        with pytest.raises(SettingError) as caught:
            find_buckets(None, None, rules, ["p"], [group])  # type: ignore[arg-type]
        assert caught.value.kind == "bucket_count"


# ---- two writers


class Meddled(LocalWorkload):
    """A workload that lets another writer commit before the files of the first attempt."""

    act: Callable[[], object] | None = None
    attempts = 0

    def rewrite(self, tasks: Any) -> Any:
        self.attempts += 1
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return super().rewrite(tasks)


@pytest.mark.parametrize("properties", [BUCKETS, RING], ids=["simple", "ring"])
def test_a_bucket_that_two_concurrent_writers_create_gets_one_file_group(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    many = {
        **properties,
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.write.lock.provider": "filesystem",
    }
    with made(tmp_path, many) as table, hoodoo.open_table(tmp_path / "t", properties=many) as other:
        workload = Meddled(table.context.ports, batch(range(20), 1, ts=1))
        workload.act = lambda: other.upsert(batch(range(10, 30), 2, ts=2))
        table._run(WriteOperation.UPSERT, workload)
        assert workload.attempts == 2
        expected = {("p", f"k{n:03d}"): 1 if n < 10 else 2 for n in range(30)}
        assert values(table) == expected
        ids = [one.file_group.file_id for one in table.file_slices()]
        assert len(ids) == 4


# ---- consistent hashing


def test_first_hashing_metadata_is_java_s_to_the_byte(tmp_path: Path) -> None:
    path = golden_tables.unpack("v9_consistent_bucket", tmp_path)
    folder = path / ".hoodie/.bucket_index/consistent_hashing_metadata/region=us"
    data = (folder / "00000000000000.hashing_meta").read_bytes()
    assert encode_hashing_metadata(first_hashing_metadata("region=us", 2)) == data
    assert decode_hashing_metadata(data, path="x") == first_hashing_metadata("region=us", 2)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"nodes": 3}', json.dumps({"nodes": []}).encode()]
)
def test_damaged_hashing_metadata_is_named(data: bytes) -> None:
    with pytest.raises(CorruptTableError) as caught:
        decode_hashing_metadata(data, path="here")
    assert caught.value.kind == "bad_hashing_metadata"


def test_rows_of_the_golden_ring_are_routed_to_their_file_groups(tmp_path: Path) -> None:
    table = hoodoo.open_table(golden_tables.unpack("v9_consistent_bucket", tmp_path))
    context = table.context
    files = [one.file_group for one in table.file_slices()]
    rules = BucketRules(engine=BucketEngine.CONSISTENT_HASHING, buckets=256, hash_fields=("id",))
    where = find_buckets(context.ports.storage, context.snapshot(), rules, ["region=us"], files)
    rows = golden_tables.account("v9_consistent_bucket")["snapshot"]
    assert {group.file_id for group in where.known.values()} == {
        row["_hoodie_file_name"] for row in rows
    }
    for row in rows:
        keys = pa.array([row["_hoodie_record_key"]])
        number = int(where.assigner.numbers(keys, pa.array(["region=us"]))[0])
        assert where.known["region=us", number].file_id == row["_hoodie_file_name"]


def test_a_ring_is_made_with_its_partition_and_kept(tmp_path: Path) -> None:
    with made(tmp_path, RING) as table:
        table.upsert(batch(range(40), 1))
        table.upsert(batch(range(60), 2, ts=2))
        expected = {node.file_id for node in first_hashing_metadata("p", 4).nodes}
        assert {one.file_group.file_id for one in table.file_slices()} == expected
        assert set(values(table).values()) == {2}
        assert len(values(table)) == 60


def test_a_ring_s_partitions_are_not_overwritten_under_its_fixed_file_ids(tmp_path: Path) -> None:
    with made(tmp_path, RING) as table:
        table.upsert(batch(range(4), 1))
        for act in (
            lambda: table.insert_overwrite(batch(range(4), 2)),
            lambda: table.delete_partitions(["p"]),
        ):
            with pytest.raises(UnsupportedTableError) as caught:
                act()
            assert caught.value.kind == "not_writable"
        assert set(values(table).values()) == {1}


def test_ranges_of_a_later_instant_count_once_it_is_committed(tmp_path: Path) -> None:
    with made(tmp_path, RING) as table:
        table.upsert(batch(range(40), 1))
        folder = tmp_path / "t/.hoodie/.bucket_index/consistent_hashing_metadata/p"
        *kept, last = first_hashing_metadata("p", 4).nodes
        halves = (
            HashingNode(value=2_000_000_000, file_id_prefix="a" * 8),
            HashingNode(value=last.value, file_id_prefix="b" * 8),
        )
        later = HashingMetadata(
            partition_path="p", instant="29991231235959999", nodes=(*kept, *halves)
        )
        (folder / "29991231235959999.hashing_meta").write_bytes(encode_hashing_metadata(later))
        context = table.context
        rules = BucketRules(engine=BucketEngine.CONSISTENT_HASHING, buckets=4, hash_fields=("id",))
        files = [one.file_group for one in table.file_slices()]
        where = find_buckets(context.ports.storage, context.snapshot(), rules, ["p"], files)
        assert len(where.fixed) == 4
        (folder / "29991231235959999.commit").write_bytes(b"")
        with pytest.raises(SettingError) as caught:  # the newer ranges have other file groups
            find_buckets(context.ports.storage, context.snapshot(), rules, ["p"], files)
        assert caught.value.kind == "no_bucket"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v9_simple_bucket", {**BUCKETS, "hoodie.bucket.index.hash.field": "id"}),
        ("v9_consistent_bucket", {**RING, "hoodie.bucket.index.num.buckets": "2"}),
    ],
)
def test_golden_merge_on_read_buckets_are_written_to(
    tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    path = golden_tables.unpack(name, tmp_path)
    before = golden_tables.account(name)["snapshot"]
    with hoodoo.open_table(path, properties=options) as table:
        files = {one.file_group.file_id for one in table.file_slices()}
        rows = [{**row, "ts": 99, "val": 9.5} for row in table.to_arrow().to_pylist()]
        table.upsert(pa.Table.from_pylist(rows, schema=table.schema))
        found = table.current_state().to_arrow(with_hoodie_columns=True).to_pylist()
        assert {one.file_group.file_id for one in table.file_slices()} == files
        assert sorted((row["id"], row["val"]) for row in found) == sorted(
            (row["id"], 9.5) for row in before
        )
        homes = {
            row["_hoodie_record_key"]: row["_hoodie_file_name"].split("_")[0] for row in before
        }
        for row in found:
            assert row["_hoodie_file_name"].split("_")[0] == homes[row["_hoodie_record_key"]]
        table.upsert(
            pa.Table.from_pylist([{**rows[0], "id": "new", "region": "eu"}], schema=table.schema)
        )
        assert len(table.to_arrow()) == len(before) + 1


def test_archived_ranges_count_by_file_groups_of_their_own(tmp_path: Path) -> None:
    """A split that failed before the timeline starts keeps most file groups and has no own ones."""
    with made(tmp_path, RING) as table:
        table.upsert(batch(range(40), 1))
        *kept, last = first_hashing_metadata("p", 4).nodes
        failed = HashingMetadata(
            partition_path="p",
            instant="20200101000000000",
            nodes=(
                *kept,
                HashingNode(value=2_000_000_000, file_id_prefix="a" * 8),
                HashingNode(value=last.value, file_id_prefix="b" * 8),
            ),
        )
        folder = tmp_path / "t/.hoodie/.bucket_index/consistent_hashing_metadata/p"
        file = folder / "20200101000000000.hashing_meta"
        file.write_bytes(encode_hashing_metadata(failed))
        context = table.context
        rules = BucketRules(engine=BucketEngine.CONSISTENT_HASHING, buckets=4, hash_fields=("id",))
        files = [one.file_group for one in table.file_slices()]
        where = find_buckets(context.ports.storage, context.snapshot(), rules, ["p"], files)
        assert len(where.fixed) == 4
        where = find_buckets(
            context.ports.storage,
            context.snapshot(),
            rules,
            ["p"],
            [FileGroupId("p", node.file_id) for node in failed.nodes[:4]],
        )
        assert len(where.fixed) == 5
