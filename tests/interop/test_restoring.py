"""
Restores and rollbacks with Java Hudi: each reads the table and writes after the other's restore.

The cleaning of each engine keeps the savepoints of the other. Restores and rollbacks of either
leave a table that the other reads, verifies and writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import hoodoo
from hoodoo.configuration import Layers
from hoodoo.verify.verify import verify_at
from tableservices.upgrade import upgrade
from tests.interop import golden_tables
from tests.interop.java import JavaOracle

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("p", pa.string()),
        pa.field("v", pa.int64()),
    ]
)
ALONE = {"hoodie.metadata.enable": "false", "hoodie.clean.automatic": "false"}
JAVA = {
    **ALONE,
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
}
KEEP = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.compact.inline.max.delta.commits": "1",
}


def rows(value: int) -> list[dict[str, object]]:
    """Two keys of two partitions, and one key that only this value has."""
    return [
        {"id": "a", "p": "x", "v": value},
        {"id": "b", "p": "y", "v": value},
        {"id": f"only{value}", "p": "x", "v": value},
    ]


def state(*values: int) -> list[tuple[str, int]]:
    """The visible rows after these writes, in this order."""
    newest = {"a": values[-1], "b": values[-1]}
    return sorted([*newest.items(), *((f"only{value}", value) for value in values)])


def test_each_engine_reads_a_restore_of_the_other(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java, path = java_oracle("1.2.0"), tmp_path / "t"
    with hoodoo.create_table(
        path, schema=SCHEMA, record_key="id", partition_by="p", properties=ALONE
    ) as table:

        def ours() -> list[tuple[str, int]]:
            found = table.to_arrow(columns=["id", "v"]).to_pylist()
            return sorted((row["id"], row["v"]) for row in found)

        first = table.upsert(pa.Table.from_pylist(rows(1), SCHEMA)).requested_time
        table.upsert(pa.Table.from_pylist(rows(2), SCHEMA))
        table.savepoint(first)
        assert table.restore(first) is not None
        found = java.read(path, columns=["id", "v"], meta=False)
        assert sorted((row["id"], row["v"]) for row in found) == ours() == state(1)
        table.upsert(pa.Table.from_pylist(rows(3), SCHEMA))
        java.service(path, "restore", first, conf=JAVA)  # to the savepoint that we made
        assert ours() == state(1)
        table.upsert(pa.Table.from_pylist(rows(4), SCHEMA))
        assert ours() == state(1, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table_type", "version"),
    [
        ("COPY_ON_WRITE", "1.2.0"),
        ("MERGE_ON_READ", "1.2.0"),
        ("MERGE_ON_READ", "1.0.2"),
    ],
)
def test_java_and_hoodoo_restore_one_table(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, table_type: str, version: str
) -> None:
    java, path = java_oracle(version), tmp_path / "t"
    conf = {**JAVA, "hoodie.datasource.write.table.type": table_type}
    layout = {} if version == "1.2.0" else {"hoodie.write.table.version": "8"}
    with hoodoo.create_table(
        path,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        table_type=table_type,
        properties={**ALONE, **layout},
    ) as table:

        def ours() -> list[tuple[str, int]]:
            found = table.to_arrow(columns=["id", "v"]).to_pylist()
            return sorted((row["id"], row["v"]) for row in found)

        def theirs() -> list[tuple[str, int]]:
            found = java.read(path, columns=["id", "v"], meta=False)
            return sorted((row["id"], row["v"]) for row in found)

        def completed(action: str) -> list[str]:
            return [
                one["requested"]
                for one in java.timeline(path)
                if one["action"] == action and one["state"] == "COMPLETED"
            ]

        # Ours is kept by Java's cleaning, and restored by us.
        table.upsert(pa.Table.from_pylist(rows(1), SCHEMA))
        table.upsert(pa.Table.from_pylist(rows(2), SCHEMA))
        kept = table.savepoint(comments="by hoodoo")
        assert completed("savepoint") == [kept.requested_time]
        for value in (3, 4, 5):
            java.write(path, rows(value), conf=conf)
        java.service(path, "clean", conf={**conf, "hoodie.clean.commits.retained": "1"})
        assert all((path / file).exists() for file in kept.files)
        assert theirs() == ours() == state(1, 2, 3, 4, 5)
        done = table.restore(kept.requested_time)
        assert done is not None
        assert theirs() == ours() == state(1, 2)
        assert completed("restore") == [done.requested_time]
        table.delete_savepoint(kept.requested_time)
        assert completed("savepoint") == []

        # Java's is kept by our cleaning, and restored by Java.
        java.write(path, rows(6), conf=conf)
        newest = max(one.requested_time for one in table.timeline if one.action in COMMITS)
        java.service(path, "savepoint", newest, conf=conf)
        assert [one.requested_time for one in table.savepoints] == [newest]
        table.upsert(pa.Table.from_pylist(rows(7), SCHEMA))
        table.upsert(pa.Table.from_pylist(rows(8), SCHEMA))
        table.services.clean()
        java.service(path, "restore", newest, conf=conf)
        assert theirs() == ours() == state(1, 2, 6)

        # After our rollback Java reads the earlier rows; both continue.
        wrong = table.upsert(pa.Table.from_pylist(rows(9), SCHEMA))
        assert table.rollback(wrong.requested_time).why == "rolled back"
        assert theirs() == ours() == state(1, 2, 6)
        java.write(path, rows(10), conf=conf)
        table.upsert(pa.Table.from_pylist(rows(11), SCHEMA))
        assert theirs() == ours() == state(1, 2, 6, 10, 11)
    found = verify_at(path, Layers())
    assert found.ok, found.problems


@pytest.mark.parametrize(
    ("table_type", "version"),
    [
        ("COPY_ON_WRITE", "1.2.0"),
        ("MERGE_ON_READ", "1.2.0"),
        ("MERGE_ON_READ", "1.0.2"),
    ],
)
def test_rows_below_an_archive_exist_after_a_restore_by_either(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, table_type: str, version: str
) -> None:
    """Savepoints keep every write that is left: Java's line is the first of them (fmt 6.3)."""
    java, path = java_oracle(version), tmp_path / "t"
    layout = {} if version == "1.2.0" else {"hoodie.write.table.version": "8"}
    archives = {**layout, **KEEP}
    conf = {**JAVA, **KEEP, "hoodie.datasource.write.table.type": table_type}
    with hoodoo.create_table(
        path,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        table_type=table_type,
        properties={**ALONE, **archives, "hoodie.archive.automatic": "false"},
    ) as table:

        def both() -> list[tuple[str, int]]:
            found = table.to_arrow(columns=["id", "v"]).to_pylist()
            ours = sorted((row["id"], row["v"]) for row in found)
            read_by_java = java.read(path, columns=["id", "v"], meta=False)
            assert ours == sorted((row["id"], row["v"]) for row in read_by_java)
            return ours

        def write(value: int, *, of: slice) -> str:
            batch = pa.Table.from_pylist(rows(value)[of], SCHEMA)
            return table.upsert(batch).requested_time

        write(1, of=slice(None))
        saved = write(2, of=slice(1))
        table.savepoint(saved)
        wanted = both()
        for value in (3, 4, 5):
            java.write(path, rows(value), conf=conf)
        java.service(path, "archive", conf=conf)
        assert len(java.timeline(path, archived=True)) > len(java.timeline(path))
        java.service(path, "restore", saved, conf=conf)
        assert both() == wanted
        assert verify_at(path, Layers()).problems == ()
        if table_type == "MERGE_ON_READ":
            table.services.compact()
            assert both() == wanted
        for value in (6, 7, 8):
            write(value, of=slice(None))
        table.services.archive()
        assert table.restore(saved) is not None
        assert both() == wanted
        if table_type == "MERGE_ON_READ":
            java.service(path, "compact", conf=conf)
            assert both() == wanted
        java.write(path, rows(9)[2:], conf=conf)
        assert both() == sorted([*wanted, ("only9", 9)])
        assert verify_at(path, Layers()).problems == ()


@pytest.mark.slow
def test_an_upgrade_writes_the_same_properties_as_javas(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path
) -> None:
    java, ours, theirs = java_oracle("1.2.0"), tmp_path / "ours", tmp_path / "theirs"
    with hoodoo.create_table(
        ours,
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="v",
        properties={**ALONE, "hoodie.write.table.version": "8"},
    ) as table:
        table.upsert(pa.Table.from_pylist(rows(1), SCHEMA))
    shutil.copytree(ours, theirs)
    with hoodoo.open_table(ours) as table:
        assert upgrade(table.context) is not None
    conf = {**JAVA, "hoodie.write.auto.upgrade": "true", "hoodie.table.ordering.fields": "v"}
    java.write(theirs, rows(2), conf=conf)
    java.write(ours, rows(2), conf=conf)

    def properties_of(path: Path) -> dict[str, str]:
        with hoodoo.open_table(path) as table:
            raw = table.config.raw
            return {key: text for key, text in raw.items() if "metadata.partitions" not in key}

    assert properties_of(ours) == properties_of(theirs)
    assert java.read(ours, columns=["id", "v"]) == java.read(theirs, columns=["id", "v"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v6_cow_clean_archive", "v6_overwrite", "v6_cow_clustering_done"])
def test_java_continues_on_a_table_that_we_upgraded_from_version_6(
    java_oracle: Callable[..., JavaOracle], tmp_path: Path, name: str
) -> None:
    java, path = java_oracle("1.2.0"), golden_tables.unpack(name, tmp_path)
    before = java.read(path, meta=False)
    with hoodoo.open_table(path) as table:
        assert upgrade(table.context) is not None
        keys = table.config.record_key_fields
    assert java.read(path, meta=False) == before
    assert java.properties(path)["hoodie.table.version"] == "9"
    conf = {**ALONE, "hoodie.archive.automatic": "false", "hoodie.metadata.enable": "false"}
    java.write(path, before[:1], conf=conf)
    assert java.read(path, meta=False) == before
    with hoodoo.open_table(path) as table:
        assert len(table.to_arrow()) == len(before)
        assert keys == table.config.record_key_fields
    archived = [one["requested"] for one in java.timeline(path, archived=True)]
    assert sorted(archived) == sorted(set(archived))


COMMITS = ("commit", "deltacommit")
