"""Folders and keys as other engines make them: levels, metadata files of Parquet, timestamps."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodoo
from filegroups.keys.keys import KeySpec, partition_paths, record_keys
from filegroups.writing.stored_forms import folders_as_stored, key_moments_as_stored
from hoodoo.verify.verify import verify
from timeline.context import TableContext
from timeline.errors import (
    HoodooError,
    InvalidInputError,
    SettingError,
    UnsupportedTableError,
)
from timeline.model.file_names import TimestampForm, TimestampTexts
from timeline.model.instant_time import TimelineZone
from timeline.ports.ports import Stats
from timeline.storage.local import LocalStorage

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
    options = {
        "hoodie__datasource__write__hive_style_partitioning": style,
        "hoodie__datasource__write__table__type": kind,
    }
    with table_of(tmp_path, *fields, **options) as table:
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


@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
@pytest.mark.parametrize("folder", ["2018", "2019"])
def test_a_folder_without_partitions_inside_another_does_not_matter(
    tmp_path: Path, operation: str, folder: str
):
    with table_of(tmp_path, "day") as table:
        table.upsert([row("a", "2018")])
        (tmp_path / "t" / folder / "_tmp").mkdir(parents=True)
        table.write([row("b", folder)], operation)
        assert table.to_arrow(["id"]).num_rows == 2


def test_a_bulk_insert_lists_only_partitions_that_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    listed: list[str] = []
    real = LocalStorage.list

    def list_one(storage: LocalStorage, folder: str) -> Stats:
        listed.append(folder)
        return real(storage, folder)

    with table_of(tmp_path, "day") as table:
        table.upsert([row(day, day) for day in "abc"])
        monkeypatch.setattr(LocalStorage, "list", list_one)
        table.bulk_insert([row(day, day) for day in "abcd"])
    assert [folder for folder in listed if not folder.startswith(".hoodie")] == ["d"]


def test_partitions_of_one_batch_do_not_nest(tmp_path: Path):
    with table_of(tmp_path, "day") as table:
        with pytest.raises(InvalidInputError) as caught:
            table.upsert([row("a", "2018"), row("b", "2018/08")])
        assert caught.value.kind == "nested_partition"


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_of_partitions_may_be_parquet(tmp_path: Path, kind: str):
    options = {
        METAFILE.replace(".", "__"): "true",
        "hoodie__datasource__write__table__type": kind,
        "hoodie__compact__inline": "true",
        "hoodie__compact__inline__max__delta__commits": "1",
    }
    with table_of(tmp_path, "day", **options) as table:
        requested = table.upsert([row("a", "2018/08/31")]).requested_time
        table.upsert([row("a", "2018/08/31"), row("b", "2018/08/31", 2)])
        assert table.to_arrow(["id"]).num_rows == 2
    found = [path.name for path in (tmp_path / "t/2018/08/31").glob(".hoodie_partition*")]
    assert found == [".hoodie_partition_metadata.parquet"]
    footer = pq.read_metadata(tmp_path / "t/2018/08/31" / found[0])
    assert footer.num_rows == 0
    assert footer.metadata[b"commitTime"].decode() == requested
    assert footer.metadata[b"partitionDepth"] == b"3"


def test_an_option_that_contradicts_the_table_is_refused(tmp_path: Path):
    table_of(tmp_path, "day").close()
    with pytest.raises(SettingError, match=METAFILE.replace(".", r"\.")):
        hoodoo.open_table(tmp_path / "t", properties={METAFILE: "true"})


MOMENTS = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int32())])
AT = dt.datetime(2023, 3, 10, 12, 30, 0, 120_000, tzinfo=dt.UTC)


def table_of_moments(folder: Path, how: TimestampTexts | None = None, **more: str) -> hoodoo.Table:
    """A table whose first row is in a folder of another engine's form."""
    properties = {"hoodie.datasource.write.hive_style_partitioning": "true", **more}
    address = folder / "t"
    table = hoodoo.create_table(
        address, schema=MOMENTS, record_key="id", partition_by="at", properties=properties
    )
    with table:
        if how is not None:
            table.context.timestamp_texts[""] = how
        table.upsert([{"id": "a", "at": AT, "v": 1}])
    return hoodoo.open_table(address)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("encoded", ["true", "false"])
@pytest.mark.parametrize(
    ("how", "name"),
    [
        (None, "1678451400120000"),
        (TimestampTexts(TimestampForm.SQL), "2023-03-10 12%3A30%3A00"),
        (TimestampTexts(TimestampForm.TIMESTAMP), "2023-03-10 12:30:00.12"),
    ],
)
def test_a_row_is_written_to_the_folder_of_its_timestamp(
    tmp_path: Path, kind: str, encoded: str, how: TimestampTexts | None, name: str
):
    options = {
        "hoodie.datasource.write.table.type": kind,
        "hoodie.datasource.write.partitionpath.urlencode": encoded,
    }
    with table_of_moments(tmp_path, how, **options) as table:
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
    how = TimestampTexts(TimestampForm.SQL, "Asia/Kolkata")
    with table_of_moments(tmp_path, how) as table:
        with pytest.raises(UnsupportedTableError) as caught:
            table.upsert([{"id": "a", "at": AT, "v": 2}])
        assert caught.value.kind == "partition_zone"
    zone = TimelineZone("Asia/Kolkata", ZoneInfo("Asia/Kolkata"))
    ports = replace(table.context.ports, zone=lambda: zone)
    context = replace(table.context, ports=ports)
    keys = KeySpec(record_key_fields=("id",), partition_fields=("at",), hive_style=True)
    assert folders_as_stored(context, context.snapshot(), keys).moments == how


def in_london(table: hoodoo.Table) -> TableContext:
    zone = TimelineZone("Europe/London", ZoneInfo("Europe/London"))
    return replace(table.context, ports=replace(table.context.ports, zone=lambda: zone))


WINTER, SUMMER = (
    dt.datetime(2023, 1, 1, 12, 30, tzinfo=dt.UTC),
    dt.datetime(2023, 7, 1, 12, tzinfo=dt.UTC),
)
BY_MOMENT = KeySpec(record_key_fields=("id",), partition_fields=("at",), hive_style=True)


@pytest.mark.parametrize("zone", ["UTC", "Europe/London"])
def test_the_zone_is_found_although_some_folders_are_equal_in_both(tmp_path: Path, zone: str):
    how = TimestampTexts(TimestampForm.TIMESTAMP, zone)
    with table_of_moments(tmp_path, how) as table:
        table.context.timestamp_texts[""] = how
        winter = [{"id": f"{n}", "at": WINTER + dt.timedelta(n), "v": 1} for n in range(9)]
        table.upsert([*winter, {"id": "s", "at": SUMMER, "v": 1}])
    with hoodoo.open_table(tmp_path / "t") as table:
        context = in_london(table)
        assert folders_as_stored(context, context.snapshot(), BY_MOMENT).moments == how
        assert context.timestamp_texts[""] == how


def test_a_timestamp_without_a_known_folder_zone_is_refused(tmp_path: Path):
    how = TimestampTexts(TimestampForm.TIMESTAMP, "UTC")
    with table_of_moments(tmp_path, how) as table:
        context = in_london(table)
        keys = folders_as_stored(context, context.snapshot(), BY_MOMENT)
        rows = pa.table({"id": ["a"], "at": [WINTER], "v": [1]}, MOMENTS)
        assert partition_paths(rows, keys).to_pylist() == ["at=2023-01-01 12:30:00.0"]
        rows = pa.table({"id": ["a"], "at": [SUMMER], "v": [1]}, MOMENTS)
        with pytest.raises(UnsupportedTableError) as caught:
            partition_paths(rows, keys)
        assert caught.value.kind == "partition_zone"
        table.context.timestamp_texts[""] = how  # as another writer that knows it
        table.upsert([{"id": "s", "at": SUMMER, "v": 1}])
        context.timestamp_texts.clear()
        keys = folders_as_stored(context, context.snapshot(), keys)
        assert partition_paths(rows, keys).to_pylist() == ["at=2023-07-01 12:00:00.0"]


def test_another_name_of_utc_is_the_same_zone(tmp_path: Path):
    how = TimestampTexts(TimestampForm.SQL, "UTC")
    with table_of_moments(tmp_path, how) as table:
        zone = TimelineZone("Etc/UTC", ZoneInfo("Etc/UTC"))
        ports = replace(table.context.ports, zone=lambda: zone)
        context = replace(table.context, ports=ports)
        assert folders_as_stored(context, context.snapshot(), BY_MOMENT).moments == how


@pytest.mark.parametrize("form", [TimestampForm.SQL, TimestampForm.TIMESTAMP])
def test_rows_in_folders_of_timestamps_need_no_repair(tmp_path: Path, form: TimestampForm):
    with table_of_moments(tmp_path, TimestampTexts(form)) as table:
        assert verify(table.context, all_columns=True).problems == ()
        assert table.repair_keys().rows == 0


def test_folders_of_several_forms_are_refused(tmp_path: Path):
    with table_of_moments(tmp_path) as table:
        table.context.timestamp_texts[""] = TimestampTexts(TimestampForm.SQL)
        table.upsert([{"id": "b", "at": AT, "v": 2}])
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(UnsupportedTableError) as caught:
            table.upsert([{"id": "b", "at": AT, "v": 2}])
        assert caught.value.kind == "mixed_partition_paths"


TIMES = {
    "hoodie.table.keygenerator.type": "TIMESTAMP",
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
}


def with_properties(table: Path, **changed: str | None) -> None:
    """The table's own file, with keys changed or gone."""
    file = table / ".hoodie/hoodie.properties"
    own = dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
    own |= {key.replace("__", "."): value or "" for key, value in changed.items()}
    file.write_text("".join(f"{key}={value}\n" for key, value in own.items() if value))


@pytest.mark.parametrize(
    "changed",
    [
        {"hoodie__keygen__timebased__timestamp__type": None},
        {"hoodie__keygen__timebased__output__dateformat": None},
        {"hoodie__keygen__timebased__timestamp__type": "STARDATE"},
        {"hoodie__keygen__timebased__timestamp__type": "DATE_STRING"},
        {"hoodie__keygen__timebased__output__dateformat": "QQQQ~"},
        {"hoodie__keygen__timebased__timezone": "Mars/Base"},
    ],
)
def test_a_read_needs_no_settings_of_a_key_generator(
    tmp_path: Path, changed: dict[str, str | None]
):
    rows = [{"id": "a", "at": 1_700_000_000_000}]
    schema = pa.schema([("id", pa.string()), ("at", pa.int64())])
    address = tmp_path / "t"
    with hoodoo.create_table(
        address, schema=schema, record_key="id", partition_by="at", properties=TIMES
    ) as table:
        table.upsert(rows)
    with_properties(address, **changed)
    with hoodoo.open_table(address) as table:
        assert table.to_arrow(filter=[("at", "=", 1_700_000_000_000)]).to_pylist() == rows
        assert len(table.file_slices()) == 1
        with pytest.raises(InvalidInputError) as caught:
            table.upsert(rows)
        assert caught.value.kind == "no_time_format"
    with_properties(address, hoodie__keygen__timebased__timezone=None)
    options = {key: value for key, value in TIMES.items() if "timebased" in key}
    with hoodoo.open_table(address, properties=options) as table:
        assert table.upsert(rows).rows_updated == 1


def test_a_custom_generator_without_types_is_refused_with_the_missing_option(tmp_path: Path):
    address = tmp_path / "t"
    rows = [{"id": "a", "day": "x", "hour": 1}]
    with table_of(tmp_path, "day") as table:
        table.upsert(rows)
    with_properties(address, hoodie__table__keygenerator__type="CUSTOM")
    with hoodoo.open_table(address) as table:
        assert table.to_arrow(["id"]).num_rows == 1
        with pytest.raises(SettingError) as caught:
            table.upsert(rows)
    suggestions = {caught.value.fields["key"]: caught.value.fields["suggestion"]}
    with hoodoo.open_table(address, properties=suggestions) as table:
        assert table.upsert(rows).rows_updated == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.timestamp("us", "UTC")])
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda table: table.delete_partitions(["2"]), ["a"]),
        (lambda table: table.delete([("id", "=", "a")]), ["b"]),
        (lambda table: table.upsert([]), ["a", "b"]),
        (lambda table: table.delete([]), ["a", "b"]),
    ],
)
def test_operations_that_create_no_folder_need_no_type_of_a_partition_field(
    tmp_path: Path, change: Callable[[hoodoo.Table], object], left: list[str], kind: pa.DataType
):
    days = pa.array(["1", "2"] if kind == pa.string() else [1, 2], kind)
    rows = pa.table({"id": ["a", "b"], "day": days})
    with hoodoo.create_table(
        tmp_path / "t", schema=rows.schema, record_key="id", partition_by="day"
    ) as table:
        table.upsert(rows)
    with_properties(tmp_path / "t", hoodie__table__keygenerator__type="CUSTOM")
    with hoodoo.open_table(tmp_path / "t") as table:
        change(table)
        assert sorted(table.to_arrow(["id"]).column("id").to_pylist()) == left
        with pytest.raises(SettingError) as caught:
            table.delete(rows)
        assert caught.value.kind == "setting_missing"


@pytest.mark.parametrize(("version", "release"), [(3, "0.15.0"), (5, "0.15.0"), (7, "1.0.2")])
def test_an_old_table_names_the_release_that_upgrades_it(
    tmp_path: Path, version: int, release: str
):
    table_of(tmp_path, "day").close()
    with_properties(tmp_path / "t", hoodie__table__version=str(version))
    with pytest.raises(UnsupportedTableError, match=re.escape(release)):
        hoodoo.open_table(tmp_path / "t")


@pytest.mark.parametrize(
    "changed",
    [
        {"hoodie__table__keygenerator__type": "USER_PROVIDED"},
        {"hoodie__allow__operation__metadata__field": "true"},
    ],
)
def test_a_table_that_is_only_read_names_a_next_step(
    tmp_path: Path, changed: dict[str, str | None]
):
    with table_of(tmp_path, "day") as table:
        table.upsert([row("a", "x")])
    with_properties(tmp_path / "t", **changed)
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.to_arrow(["id"]).num_rows == 1
        with pytest.raises(HoodooError, match="copy its rows into a new table"):
            table.upsert([row("a", "x")])


# ---- hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled

CONSISTENT = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
ENCODED = "hoodie.datasource.write.partitionpath.urlencode"
OF_TIMES = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("v", pa.int64()),
    ]
)
FINE = dt.datetime(2023, 3, 10, 12, 30, 0, 123_456, tzinfo=dt.UTC)


def of_times(moment: dt.datetime, v: int) -> dict[str, object]:
    return {"at": moment, "local": moment.replace(tzinfo=None), "day": moment.date(), "v": v}


def table_of_times(
    folder: Path, key: str, partition_by: str, consistent: str | None
) -> hoodoo.Table:
    return hoodoo.create_table(
        folder / "t",
        schema=OF_TIMES,
        record_key=key.split(","),
        partition_by=partition_by,
        ordering="v",
        properties={ENCODED: "true", **({} if consistent is None else {CONSISTENT: consistent})},
    )


def addresses(table: hoodoo.Table) -> list[tuple[str, str, int]]:
    rows = table.current_state().to_arrow(with_hoodie_columns=True).to_pylist()
    return [(one["_hoodie_record_key"], one["_hoodie_partition_path"], one["v"]) for one in rows]


@pytest.mark.parametrize(
    ("consistent", "key", "partition_by", "address"),
    [
        ("true", "at", "day", ("2023-03-10 12:30:00.123", "2023-03-10")),
        ("true", "local", "at", ("1678451400123456", "2023-03-10 12%3A30%3A00.123")),
        ("true", "at,day", "at", ("at:2023-03-10 12:30:00.123,day:2023-03-10", "2023-03-10 12%3A30%3A00.123")),
        ("true", "day", "local", ("2023-03-10", "1678451400123456")),
        ("false", "at", "at", ("1678451400123456", "1678451400123456")),
        (None, "at,day", "day", ("at:1678451400123456,day:2023-03-10", "2023-03-10")),
    ],
)  # fmt: skip
def test_keys_and_folders_show_timestamps_as_the_option_says(
    tmp_path: Path, consistent: str | None, key: str, partition_by: str, address: tuple[str, str]
):
    with table_of_times(tmp_path, key, partition_by, consistent) as table:
        table.upsert([of_times(FINE, 1)])
        assert table.upsert([of_times(FINE, 2)]).rows_updated == 1
        assert addresses(table) == [(*address, 2)]
        assert verify(table.context, all_columns=True).problems == ()
    with hoodoo.open_table(tmp_path / "t") as table:  # without the option
        assert table.upsert([of_times(FINE, 3)]).rows_updated == 1
        assert addresses(table) == [(*address, 3)]


def test_new_folders_that_java_cannot_read_are_refused(tmp_path: Path):
    options = {CONSISTENT: "true"}
    with pytest.raises(SettingError, match=ENCODED):
        hoodoo.create_table(
            tmp_path / "t", schema=OF_TIMES, record_key="v", partition_by="at", properties=options
        )
    assert not (tmp_path / "t").exists()
    with hoodoo.create_table(
        tmp_path / "t", record_key="v", partition_by="at", properties=options
    ) as table:
        with pytest.raises(SettingError, match=ENCODED):
            table.upsert(pa.Table.from_pylist([of_times(FINE, 1)], OF_TIMES))
        assert not any((tmp_path / "t").glob("2023*"))


@pytest.mark.parametrize(("stored", "asked"), [("true", "false"), ("false", "true")])
@pytest.mark.parametrize(("key", "partition_by"), [("at", "day"), ("day", "at")])
def test_the_other_form_of_stored_timestamps_is_refused(
    tmp_path: Path, stored: str, asked: str, key: str, partition_by: str
):
    with table_of_times(tmp_path, key, partition_by, stored) as table:
        table.upsert([of_times(FINE, 1)])
    with hoodoo.open_table(tmp_path / "t", properties={CONSISTENT: asked}) as table:
        with pytest.raises(InvalidInputError, match=CONSISTENT) as caught:
            table.upsert([of_times(FINE, 2)])
        assert caught.value.kind == "setting_against_table"
        assert table.to_arrow(["v"]).to_pylist() == [{"v": 1}]


def test_keys_of_a_table_of_another_engine_are_made_as_it_stored_them(tmp_path: Path):
    with table_of_times(tmp_path, "at", "day", "true") as table:
        table.upsert([of_times(FINE, 1)])
        properties = tmp_path / "t/.hoodie/hoodie.properties"
    text = properties.read_text(encoding="utf-8")  # Java stores the option nowhere
    kept = [line for line in text.splitlines() if not line.startswith(CONSISTENT)]
    assert len(kept) < len(text.splitlines())
    properties.write_text("\n".join(kept) + "\n", encoding="utf-8")
    with hoodoo.open_table(tmp_path / "t") as table:
        assert table.upsert([of_times(FINE, 2)]).rows_updated == 1
        assert table.upsert([of_times(SUMMER, 3)]).rows_inserted == 1
        assert ("2023-07-01 12:00:00.0", "2023-07-01", 3) in addresses(table)


def test_keys_in_a_zone_that_this_process_does_not_have_are_refused(tmp_path: Path):
    kolkata = TimestampTexts(TimestampForm.TIMESTAMP, "Asia/Kolkata")
    with table_of_times(tmp_path, "at", "day", "true") as table:
        table.context.timestamp_texts["key"] = kolkata  # as another writer there
        table.upsert([of_times(FINE, 1)])
        assert addresses(table)[0][0] == "2023-03-10 18:00:00.123"
    with hoodoo.open_table(tmp_path / "t") as table:
        with pytest.raises(UnsupportedTableError) as caught:
            table.upsert([of_times(FINE, 2)])
        assert caught.value.kind == "key_form"
        zone = TimelineZone("Asia/Kolkata", ZoneInfo("Asia/Kolkata"))
        context = replace(table.context, ports=replace(table.context.ports, zone=lambda: zone))
        keys = KeySpec(record_key_fields=("at",), partition_fields=("day",))
        found = key_moments_as_stored(context, context.snapshot(), keys)
        assert found.key_moments == kolkata


def test_the_zone_of_keys_that_fit_two_zones_is_not_guessed(tmp_path: Path):
    with table_of_times(tmp_path, "at", "day", "true") as table:
        table.upsert([of_times(WINTER, 1)])
        context = in_london(table)
        keys = KeySpec(record_key_fields=("at",), partition_fields=("day",))
        keys = key_moments_as_stored(context, context.snapshot(), keys)
        rows = pa.Table.from_pylist([of_times(SUMMER, 2)], OF_TIMES)
        with pytest.raises(UnsupportedTableError) as caught:
            record_keys(rows, keys)
        assert caught.value.kind == "partition_zone"
