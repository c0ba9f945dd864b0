"""An entry of a catalog takes what the table has, and keeps what others added."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hoodoo.sync.columns import CatalogColumn
from hoodoo.sync.table_entry import (
    NEVER,
    SyncedUntil,
    TableEntry,
    partition_changes,
    same_location,
)

PART = "spark.sql.sources.schema.part."
ENTRY = TableEntry(
    database="d",
    name="t",
    location="/t",
    columns=(CatalogColumn("a", "int"),),
    partition_columns=(),
    input_format="in",
    properties={"EXTERNAL": "TRUE", f"{PART}0": "new"},
    serde_properties={"path": "/t"},
)


def test_properties_of_others_stay_and_parts_of_an_old_schema_go() -> None:
    held = replace(
        ENTRY,
        properties={"team": "data", f"{PART}0": "old", f"{PART}1": "rest"},
        serde_properties={"field.delim": ","},
    )
    made = held.updated(ENTRY, comments=False)
    assert made.properties == {"team": "data", f"{PART}0": "new"}, "a managed table stays managed"
    assert made.serde_properties == {"field.delim": ",", "path": "/t"}


def test_a_schema_of_spark_stays_without_sync_as_datasource() -> None:
    held = replace(ENTRY, properties={f"{PART}0": "theirs"})
    wanted = replace(ENTRY, properties={"EXTERNAL": "TRUE"})
    assert held.updated(wanted, comments=False).properties == {f"{PART}0": "theirs"}


def test_comments_change_on_request_only() -> None:
    held = replace(ENTRY, columns=(CatalogColumn("a", "int", "mine"),))
    wanted = replace(ENTRY, columns=(CatalogColumn("a", "bigint", "of the schema"),))
    assert held.updated(wanted, comments=False).columns == (CatalogColumn("a", "bigint", "mine"),)
    assert held.updated(wanted, comments=True).columns == wanted.columns


def test_the_last_commit_never_goes_back() -> None:
    until = SyncedUntil("20260102000000000", "20260102000000001")
    held = ENTRY.with_synced(until)
    assert held.synced == until
    assert held.with_synced(SyncedUntil("20260101000000000", "20260103000000000")).synced == (
        SyncedUntil("20260102000000000", "20260103000000000")
    )
    assert ENTRY.with_synced(NEVER).with_synced(until).synced == until


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/t/eu", "file:/t/eu", True),
        ("/t/eu", "file:///t/eu/", True),
        ("/t/eu", "hdfs://nn:8020/t/eu", True),
        ("s3://b/t", "s3a://b/t/", True),
        ("s3://b/t", "s3://other/t", False),
        ("/t/eu", "/t/us", False),
    ],
)
def test_locations_are_compared_by_host_and_path(one: str, other: str, same: bool) -> None:
    assert same_location(one, other) is same


def test_partitions_are_added_moved_and_dropped() -> None:
    changes = partition_changes(
        {("new",): "/t/new", ("same",): "/t/same", ("moved",): "/t/moved"},
        [("gone",), ("never",), ("same",)],
        {("same",): "file:/t/same", ("moved",): "/old/moved", ("gone",): "/t/gone"},
    )
    assert changes.added == {("new",): "/t/new"}
    assert changes.moved == {("moved",): "/t/moved"}
    assert changes.dropped == (("gone",),)
    assert changes.count == 3
