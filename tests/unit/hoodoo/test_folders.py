"""Folders as other engines make them: levels inside of a value, metadata files of Parquet."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from timeline.errors import InvalidInputError, SettingError, UnsupportedTableError
from timeline.model.zones import TimelineZone
from timeline.rules.keys import KeySpec
from timeline.rules.moment_texts import MomentForm, MomentTexts
from timeline.writing.moment_folders import folders_as_stored

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("hour", pa.int32())])
METAFILE = "hoodie.partition.metafile.use.base.format"


def row(key: str, day: str, hour: int = 1) -> dict[str, object]:
    return {"id": key, "day": day, "hour": hour}


def table_of(folder: Path, *fields: str, **properties: str) -> hoodoo.Table:
    return hoodoo.create_table(
        folder / "t",
        schema=SCHEMA,
        record_key="id",
        partition_by=list(fields),
        properties={key.replace("__", "."): value for key, value in properties.items()},
    )


@pytest.mark.parametrize(
    ("fields", "style", "folder"),
    [
        (("day",), "false", "2018/08/31"),
        (("day",), "true", "day=2018/08/31"),
        (("day", "hour"), "false", "2018/08/31/1"),
        (("day", "hour"), "true", "day=2018/08/31/hour=1"),
    ],
)
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_slash_makes_levels(
    tmp_path: Path, fields: tuple[str, ...], style: str, folder: str, kind: str
):
    told = {
        "hoodie__datasource__write__hive_style_partitioning": style,
        "hoodie__datasource__write__table__type": kind,
    }
    with table_of(tmp_path, *fields, **told) as table:
        table.upsert([row("a", "2018/08/31"), row("b", "2018/09/01")])
        assert (tmp_path / "t" / folder / ".hoodie_partition_metadata").exists()
        assert table.upsert([row("a", "2018/08/31")]).rows_updated == 1
        assert table.delete([row("b", "2018/09/01")]).rows_deleted == 1
        assert table.to_arrow(["id", "day"]).to_pylist() == [{"id": "a", "day": "2018/08/31"}]
        assert table.to_arrow(["id"], partitions=[folder]).num_rows == 1


@pytest.mark.parametrize("operation", ["upsert", "bulk_insert", "insert_overwrite"])
@pytest.mark.parametrize(("there", "new"), [("2018", "2018/08"), ("2018/08", "2018")])
def test_a_partition_inside_of_another_is_refused(
    tmp_path: Path, operation: str, there: str, new: str
):
    with table_of(tmp_path, "day") as table:
        table.upsert([row("a", there)])
        with pytest.raises(InvalidInputError) as caught:
            table.write([row("b", new)], operation)
        assert caught.value.kind == "nested_partition"
        assert table.to_arrow(["id"]).to_pylist() == [{"id": "a"}]


def test_partitions_of_one_batch_do_not_nest(tmp_path: Path):
    with table_of(tmp_path, "day") as table:
        with pytest.raises(InvalidInputError) as caught:
            table.upsert([row("a", "2018"), row("b", "2018/08")])
        assert caught.value.kind == "nested_partition"


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_of_partitions_may_lie_in_parquet(tmp_path: Path, kind: str):
    told = {
        METAFILE.replace(".", "__"): "true",
        "hoodie__datasource__write__table__type": kind,
        "hoodie__compact__inline": "true",
        "hoodie__compact__inline__max__delta__commits": "1",
    }
    with table_of(tmp_path, "day", **told) as table:
        requested = table.upsert([row("a", "2018/08/31")]).requested_time
        table.upsert([row("a", "2018/08/31"), row("b", "2018/08/31", 2)])
        assert table.to_arrow(["id"]).num_rows == 2
    found = [path.name for path in (tmp_path / "t/2018/08/31").glob(".hoodie_partition*")]
    assert found == [".hoodie_partition_metadata.parquet"]
    footer = pq.read_metadata(tmp_path / "t/2018/08/31" / found[0])
    assert footer.num_rows == 0
    assert footer.metadata[b"commitTime"].decode() == requested
    assert footer.metadata[b"partitionDepth"] == b"3"


def test_an_option_that_says_otherwise_than_the_table_is_refused(tmp_path: Path):
    table_of(tmp_path, "day").close()
    with pytest.raises(SettingError, match=METAFILE.replace(".", r"\.")):
        hoodoo.open_table(tmp_path / "t", properties={METAFILE: "true"})


MOMENTS = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int32())])
AT = dt.datetime(2023, 3, 10, 12, 30, 0, 120_000, tzinfo=dt.UTC)


def table_of_moments(folder: Path, how: MomentTexts | None = None, **more: str) -> hoodoo.Table:
    """A table whose first row lies in a folder of a form, as another engine would make it."""
    properties = {"hoodie.datasource.write.hive_style_partitioning": "true", **more}
    address = folder / "t"
    table = hoodoo.create_table(
        address, schema=MOMENTS, record_key="id", partition_by="at", properties=properties
    )
    with table:
        if how is not None:
            table.core.context.moment_texts[""] = how
        table.upsert([{"id": "a", "at": AT, "v": 1}])
    return hoodoo.open_table(address)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("encoded", ["true", "false"])
@pytest.mark.parametrize(
    ("how", "name"),
    [
        (None, "1678451400120000"),
        (MomentTexts(MomentForm.SQL), "2023-03-10 12%3A30%3A00"),
        (MomentTexts(MomentForm.TIMESTAMP), "2023-03-10 12:30:00.12"),
    ],
)
def test_a_row_goes_into_the_folder_of_its_moment(
    tmp_path: Path, kind: str, encoded: str, how: MomentTexts | None, name: str
):
    told = {
        "hoodie.datasource.write.table.type": kind,
        "hoodie.datasource.write.partitionpath.urlencode": encoded,
    }
    with table_of_moments(tmp_path, how, **told) as table:
        shown = name.replace(":", "%3A") if encoded == "true" else name
        assert (tmp_path / "t" / f"at={shown}").is_dir()
        assert table.upsert([{"id": "a", "at": AT, "v": 2}]).rows_updated == 1
        later = AT + dt.timedelta(days=1)
        assert table.upsert([{"id": "b", "at": later, "v": 3}]).rows_inserted == 1
        assert table.delete([{"id": "a", "at": AT}]).rows_deleted == 1
        assert table.to_arrow(filter=[("at", "=", later)]).to_pylist() == [
            {"id": "b", "at": later, "v": 3}
        ]


def test_the_zone_of_folders_is_found_by_a_row(tmp_path: Path):
    how = MomentTexts(MomentForm.SQL, "Asia/Kolkata")
    with table_of_moments(tmp_path, how) as table:
        with pytest.raises(UnsupportedTableError) as caught:
            table.upsert([{"id": "a", "at": AT, "v": 2}])
        assert caught.value.kind == "partition_zone"
    zone = TimelineZone("Asia/Kolkata", ZoneInfo("Asia/Kolkata"))
    world = replace(table.core.context.world, zone=lambda: zone)
    context = replace(table.core.context, world=world)
    keys = KeySpec(record_key_fields=("id",), partition_fields=("at",), hive_style=True)
    assert folders_as_stored(context, context.snapshot(), keys).moments == how


def test_folders_of_several_forms_are_refused(tmp_path: Path):
    with table_of_moments(tmp_path) as table:
        table.core.context.moment_texts[""] = MomentTexts(MomentForm.SQL)
        table.upsert([{"id": "b", "at": AT, "v": 2}])
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(UnsupportedTableError) as caught:
            table.upsert([{"id": "b", "at": AT, "v": 2}])
        assert caught.value.kind == "mixed_partition_paths"
