"""Creating, opening and writing tables by path, with properties from every layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import hoodoo
from hoodoo.catalog import to_layers
from timeline.errors import (
    CorruptTableError,
    InvalidInputError,
    MalformedNameError,
    SettingError,
    TableConfigConflictError,
    TableNotFoundError,
    UnknownProviderError,
    UnsupportedTableError,
    WriterDisagreementError,
)
from timeline.model.commit_metadata import MergeMode, WriteOperation
from timeline.properties.properties_file import update_properties
from timeline.properties.setting_enums import CommitLockMode

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())])
ROWS = [{"id": "a", "p": "x", "ts": 1}, {"id": "b", "p": "y", "ts": 1}]
EXAMPLE = Path(__file__).parents[3] / "examples" / "lock_provider_plugin"
OCC = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def made(path: Path, **more: Any) -> hoodoo.Table:
    chosen = {"record_key": "id", "partition_by": "p", "ordering": "ts", **more}
    return hoodoo.create_table(path, **chosen)


def keys(table: hoodoo.Table) -> list[str]:
    return sorted(table.to_arrow(columns=["id"])["id"].to_pylist())


def test_a_table_is_created_and_opened_again(path: Path):
    with made(path, schema=SCHEMA) as table:
        table.insert(ROWS)
    with hoodoo.open_table(path) as again:
        assert keys(again) == ["a", "b"]
        assert again.schema.equals(SCHEMA)
        assert again.config.record_key_fields == ("id",)
        assert again.config.table_version == 9
        assert again.config.name == "t"
        assert again.config.merge_mode is MergeMode.EVENT_TIME_ORDERING


@pytest.mark.parametrize(
    "file", ["_delta_log/00000000000000000000.json", "metadata/v1.metadata.json"]
)
def test_a_folder_with_a_table_of_another_format_gets_no_table(path: Path, file: str):
    (path / file).parent.mkdir(parents=True)
    (path / file).write_text("{}")
    with pytest.raises(InvalidInputError, match="another folder") as refused:
        hoodoo.create_table(path, schema=SCHEMA, record_key="id")
    assert refused.value.kind == "table_exists"
    assert not (path / ".hoodie").exists()


def test_marks_of_deletes_are_boolean(path: Path):
    marked = SCHEMA.append(pa.field("_hoodie_is_deleted", pa.string()))
    with pytest.raises(InvalidInputError, match="cast it") as refused:
        hoodoo.create_table(path, schema=marked, record_key="id")
    assert refused.value.kind == "unsupported_type"


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ({}, "no_time_format"),
        (
            {"timestamp.type": "DATE_STRING", "input.dateformat": "yyyy"},
            "unsupported_partition_type",
        ),
    ],
)
def test_a_table_with_invalid_partition_folders_is_not_created(
    path: Path, times: dict[str, str], kind: str
):
    properties = {"hoodie.datasource.write.keygenerator.type": "TIMESTAMP"}
    if times:
        times = {"output.dateformat": "yyyy", **times}
    properties |= {f"hoodie.keygen.timebased.{name}": text for name, text in times.items()}
    with pytest.raises(InvalidInputError) as refused:
        made(path, schema=SCHEMA, partition_by="ts", ordering="", properties=properties)
    assert refused.value.kind == kind
    assert not path.exists()


def test_a_table_without_schema_takes_it_from_the_first_rows(path: Path):
    with made(path) as table:
        table.insert(ROWS)
        assert table.schema.names == ["id", "p", "ts"]


def test_an_address_may_be_a_text_or_a_uri(path: Path):
    made(str(path) + "/").close()
    assert hoodoo.open_table(f"file://{path}").config.name == "t"


def test_a_table_is_not_created_twice(path: Path):
    made(path).close()
    with pytest.raises(InvalidInputError) as caught:
        made(path, record_key="p")
    assert caught.value.kind == "table_exists"
    assert hoodoo.open_table(path).config.record_key_fields == ("id",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"record_key": "nope"},
        {"partition_by": "nope"},
        {"ordering": "nope"},
        {"ordering": "ts.nope"},
    ],
)
def test_columns_the_schema_does_not_have_are_refused(path: Path, wrong: dict[str, Any]):
    with pytest.raises(InvalidInputError):
        made(path, schema=SCHEMA, **wrong)
    assert not (path / ".hoodie").exists()


@pytest.mark.parametrize("with_schema", [True, False], ids=["with a schema", "taken from the rows"])
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_fields_inside_structs_may_key_partition_and_order(
    path: Path, table_type: str, with_schema: bool
) -> None:
    def rows(*each: tuple[str, str, int, str]) -> pa.Table:
        held = [{"who": {"id": i, "at": at}, "on": {"ts": ts}, "v": v} for i, at, ts, v in each]
        return pa.Table.from_pylist(held)

    first = rows(("a", "x", 2, "1"), ("b", "y", 2, "1"))
    with hoodoo.create_table(
        path,
        schema=first.schema if with_schema else None,
        record_key="who.id",
        partition_by="who.at",
        ordering="on.ts",
        table_type=table_type,
        properties={"hoodie.compact.inline": "false"},
    ) as table:
        table.upsert(first)
        table.upsert(rows(("a", "x", 1, "late"), ("b", "y", 3, "2"), ("c", "x", 1, "1")))
        found = table.to_arrow(columns=["who", "v"]).to_pylist()
    read_rows = sorted((one["who"]["at"], one["who"]["id"], one["v"]) for one in found)
    assert read_rows == [("x", "a", "1"), ("x", "c", "1"), ("y", "b", "2")]


@pytest.mark.parametrize(
    "line", ["hoodie.timeline.path=elsewhere", "hoodie.timeline.history.path=old"]
)
def test_a_table_whose_timeline_is_in_another_folder_is_refused(path: Path, line: str) -> None:
    """Its commits would be invisible, so each read would miss rows."""
    made(path).close()
    properties = path / ".hoodie" / "hoodie.properties"
    key = line.partition("=")[0]
    kept = [one for one in properties.read_text().splitlines() if not one.startswith(key)]
    properties.write_text("\n".join([*kept, line, ""]))
    with pytest.raises(UnsupportedTableError) as refused:
        hoodoo.open_table(path)
    assert (refused.value.kind, refused.value.fields["key"]) == ("timeline_folder", key)


def test_a_table_that_this_release_cannot_write_is_not_created(path: Path):
    with pytest.raises((SettingError, UnsupportedTableError)):
        made(path, properties={"hoodie.base.file.format": "ORC"})
    assert not (path / ".hoodie").exists()


@pytest.mark.parametrize("version", [8, 9])
def test_a_merge_on_read_table_differs_in_its_properties_only(tmp_path: Path, version: int):
    more = {"properties": {"hoodie.write.table.version": str(version)}, "name": "t"}
    raw = {}
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        with made(tmp_path / kind, schema=SCHEMA, table_type=kind, **more) as table:
            raw[kind] = dict(table.config.raw)
    assert raw["MERGE_ON_READ"] == {**raw["COPY_ON_WRITE"], "hoodie.table.type": "MERGE_ON_READ"}


def test_a_merge_on_read_table_is_opened_again_and_appended_to(path: Path):
    options = {"hoodie.logfile.data.block.format": "avro", "hoodie.logfile.max.size": "1000000"}
    with made(path, schema=SCHEMA, table_type="MERGE_ON_READ") as table:
        table.upsert(ROWS)
    with hoodoo.open_table(path, properties=options) as table:
        result = table.upsert(ROWS)
        assert (result.action, result.rows_inserted) == ("deltacommit", 0)
        assert all(one.log_files for one in table.file_slices())
        assert table.to_arrow().num_rows == len(ROWS)
        table.delete(ROWS)
        assert table.to_arrow().num_rows == 0


def test_a_table_is_not_opened_as_another_type(path: Path):
    made(path, schema=SCHEMA).close()
    with pytest.raises(SettingError) as caught:
        hoodoo.open_table(path, properties={"hoodie.datasource.write.table.type": "MERGE_ON_READ"})
    assert caught.value.kind == "setting_against_table"


PAYLOAD = "hoodie.datasource.write.payload.class"
MODEL = "org.apache.hudi.common.model."
GENERATOR = "hoodie.datasource.write.keygenerator.class"
OLD_STRATEGY = "hoodie.datasource.write.record.merger.strategy"


@pytest.mark.parametrize(
    ("key", "value", "means"),
    [
        (PAYLOAD, MODEL + "OverwriteWithLatestAvroPayload", "COMMIT_TIME_ORDERING"),
        (PAYLOAD, MODEL + "PartialUpdateAvroPayload", "IGNORE_DEFAULTS"),
        (OLD_STRATEGY, "ce9acb64-bde0-424c-9b91-f6ebba25356d", "COMMIT_TIME_ORDERING"),
        (GENERATOR, "org.apache.hudi.keygen.ComplexKeyGenerator", "COMPLEX"),
        ("hoodie.datasource.write.keygenerator.type", "COMPLEX", "COMPLEX"),
    ],
)
def test_a_merger_class_with_another_rule_than_the_tables_is_refused(
    tmp_path: Path, key: str, value: str, means: str
):
    """Java Hudi refuses such a writer, too; without a word its rows would merge otherwise."""
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())])
    facts = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    hoodoo.create_table(tmp_path / "t", schema=schema, **facts).close()
    with pytest.raises(SettingError, match=f"means {means}") as refused:
        hoodoo.open_table(tmp_path / "t", properties={key: value})
    assert refused.value.kind == "setting_against_table"


@pytest.mark.parametrize(
    "properties",
    [
        {PAYLOAD: MODEL + "DefaultHoodieRecordPayload"},
        {GENERATOR: "org.apache.hudi.keygen.SimpleKeyGenerator"},
        {GENERATOR: "org.apache.hudi.keygen.SimpleAvroKeyGenerator"},
        {OLD_STRATEGY: "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"},
    ],
)
def test_a_merger_class_with_the_rule_of_the_table_is_accepted(
    tmp_path: Path, properties: dict[str, str]
):
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())])
    facts = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
    hoodoo.create_table(tmp_path / "t", schema=schema, **facts).close()
    hoodoo.open_table(tmp_path / "t", properties=properties).close()


def test_a_path_without_a_table_is_reported(tmp_path: Path):
    with pytest.raises(TableNotFoundError):
        hoodoo.open_table(tmp_path)


def test_damaged_properties_are_reported(path: Path):
    made(path).close()
    file = path / ".hoodie" / "hoodie.properties"
    file.write_bytes(file.read_bytes().replace(b"name=t", b"name=u"))
    with pytest.raises(CorruptTableError):
        hoodoo.open_table(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.datasource.write.recordkey.field", "ts"),
        ("hoodie.datasource.write.partitionpath.field", "id"),
        ("hoodie.datasource.write.precombine.field", "id"),
        ("hoodie.datasource.write.hive_style_partitioning", "true"),
        ("hoodie.datasource.write.partitionpath.urlencode", "true"),
        ("hoodie.write.record.merge.mode", "COMMIT_TIME_ORDERING"),
    ],
)
def test_options_that_contradict_the_table_are_refused(path: Path, key: str, value: str):
    made(path).close()
    with pytest.raises(SettingError) as caught:
        hoodoo.open_table(path, properties={key: value})
    assert caught.value.fields["value"] == value
    assert f"{key}={value} (from " in caught.value.message


@pytest.mark.parametrize("key", ["hoodie.table.name", "hoodie.database.name"])
def test_a_write_by_the_name_of_another_table_is_refused(path: Path, key: str):
    made(path, schema=SCHEMA, properties={"hoodie.database.name": "sales"}).close()
    with hoodoo.open_table(path, properties={key: "another"}) as table:
        assert table.to_arrow().num_rows == 0
        with pytest.raises(SettingError, match=f"{key}=another") as caught:
            table.upsert(ROWS)
        assert caught.value.kind == "setting_against_table"
        assert table.timeline == []


@pytest.mark.parametrize(
    ("made_as", "given"),
    [
        ({}, {"hoodie.database.name": "sales"}),  # a table of an earlier release
        ({"hoodie.database.name": "sales"}, {"hoodie.database.name": "Sales"}),
        ({}, {"hoodie.table.name": "T"}),
    ],
)
def test_a_write_ignores_a_database_name_that_was_never_stored_and_the_case_of_the_table_name(
    path: Path, made_as: dict[str, str], given: dict[str, str]
):
    made(path, schema=SCHEMA, properties=made_as).close()
    with hoodoo.open_table(path, properties=given) as table:
        assert table.insert(ROWS).rows_inserted == len(ROWS)


def test_a_new_table_has_the_given_database(tmp_path: Path):
    given = {"hoodie.database.name": "sales"}
    with hoodoo.create_table(tmp_path / "t", schema=SCHEMA, properties=given) as table:
        assert table.config.database == "sales"
        assert table.insert(ROWS).rows_inserted == len(ROWS)


def test_options_that_repeat_the_table_are_accepted(path: Path):
    made(path).close()
    repeated = {
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "p",
        "hoodie.datasource.write.precombine.field": "ts",
    }
    hoodoo.open_table(path, properties=repeated).close()


def test_later_layers_win(path: Path, tmp_path: Path):
    made(path).close()
    file = tmp_path / "w.properties"
    file.write_text(
        "hoodie.parquet.max.file.size=1000000\nhoodie.parquet.compression.codec=snappy\n"
    )
    table = hoodoo.open_table(path, properties=[file, {"hoodie.parquet.max.file.size": 2_000_000}])
    assert table.settings.parquet_file_bytes_max == 2_000_000
    assert table.settings.parquet_compression == "snappy"


def test_properties_determine_the_written_files(path: Path):
    options = {
        "hoodie.parquet.max.file.size": "1000000",
        "hoodie.parquet.small.file.limit": "0",
        "hoodie.copyonwrite.record.size.estimate": "100000",
        "hoodie.copyonwrite.insert.auto.split": "true",
    }
    with made(path, properties=options) as table:
        table.insert([{"id": f"k{n}", "p": "x", "ts": 1} for n in range(25)])
        assert len(table.file_slices()) == 3


def test_properties_determine_the_limits(path: Path):
    options = {
        **OCC,
        "hoodie.write.num.retries.on.conflict.failures": "7",
        "hoodie.client.heartbeat.interval_in_ms": "5000",
        "hoodie.client.heartbeat.tolerable.misses": "3",
    }
    table = made(path, properties=options)
    limits = table.context.limits
    assert limits.retry.conflict_retries_max == 7
    assert limits.heartbeat.tolerated_ms == 15_000
    assert limits.publish_lock is CommitLockMode.LOCK
    assert table.context.ports.lock.provider == "filesystem"


def test_the_configured_operation_is_used(path: Path):
    made(path).close()
    options = {"hoodie.datasource.write.operation": "insert"}
    with hoodoo.open_table(path, properties=options) as table:
        table.write(ROWS)
        assert table.write(ROWS).operation == "insert"
        assert keys(table) == ["a", "a", "b", "b"]
        assert table.write(ROWS, WriteOperation.UPSERT).rows_updated >= 2


def test_every_verb_of_the_table(path: Path):
    with made(path) as table:
        table.bulk_insert(pl.DataFrame(ROWS))
        table.upsert([{"id": "a", "p": "x", "ts": 2}, {"id": "c", "p": "y", "ts": 1}])
        assert keys(table) == ["a", "b", "c"]
        table.delete([{"id": "b", "p": "y"}])
        assert keys(table) == ["a", "c"]
        table.insert_overwrite([{"id": "d", "p": "y", "ts": 1}])
        assert keys(table) == ["a", "d"]
        table.delete_partitions(["x"])
        assert keys(table) == ["d"]
        table.insert_overwrite_table([{"id": "e", "p": "z", "ts": 1}])
        assert keys(table) == ["e"]
        assert len(table.timeline) == 6
        assert table.scan(columns=["p"]).read_all()["p"].to_pylist() == ["z"]
        first = table.timeline[0]
        assert table.as_of(first.requested_time).to_arrow().num_rows == 2
        assert table.changes(table.timeline[4].completion_time).read_all().num_rows == 1


def test_deleting_no_partition_is_refused(path: Path):
    with made(path) as table, pytest.raises(InvalidInputError) as caught:
        table.delete_partitions([])
    assert caught.value.kind == "no_partition"


@pytest.mark.parametrize(("style", "form"), [("true", "p=VALUE"), ("false", "VALUE of p")])
def test_a_delete_of_a_partition_without_rows_is_told(path: Path, style: str, form: str) -> None:
    options = {"hoodie.datasource.write.hive_style_partitioning": style}
    with hoodoo.create_table(
        path, schema=SCHEMA, record_key="id", partition_by="p", properties=options
    ) as table:
        table.upsert(ROWS)
        other, own = ("x", "p=x") if style == "true" else ("p=x", "x")
        with pytest.warns(UserWarning, match=rf"deleted: \['{other}'\].*{form}$"):
            table.delete_partitions([other])
        assert keys(table) == ["a", "b"]
        table.delete_partitions([own])  # warnings are errors here
        assert keys(table) == ["b"]


@pytest.mark.parametrize(
    "use",
    [
        lambda table: table.delete_partitions("xy"),
        lambda table: table.delete([("ts", ">", 0)], "xy"),
        lambda table: table.to_arrow(partitions="xy"),
        lambda table: table.scan(partitions="xy"),
        lambda table: table.get_rows(["a"], partitions="xy"),
        lambda table: table.get_rows("ab"),
        lambda table: table.pin().reads(partitions="xy"),
    ],
)
def test_one_text_is_not_read_as_a_list_of_its_letters(
    path: Path, use: Callable[[hoodoo.Table], object]
):
    with made(path) as table:
        table.upsert([*ROWS, {"id": "c", "p": "xy", "ts": 1}])
        with pytest.raises(InvalidInputError) as caught:
            use(table)
        assert caught.value.kind == "one_text"
        assert keys(table) == ["a", "b", "c"]


@pytest.mark.parametrize("strange", [7, None, b"x"])
@pytest.mark.parametrize(
    "use",
    [
        lambda table, one: table.delete_partitions([one]),
        lambda table, one: table.delete([("ts", ">", 0)], [one]),
        lambda table, one: table.to_arrow(partitions=["x", one]),
        lambda table, one: table.get_rows([one]),
        lambda table, one: table.pin().reads(partitions=[one]),
    ],
)
def test_a_value_that_is_no_text_names_no_partition_and_no_key(
    path: Path, use: Callable[[hoodoo.Table, object], object], strange: object
):
    """The value of a partition column may be a number, its path never is."""
    with made(path) as table:
        table.upsert(ROWS)
        with pytest.raises(InvalidInputError) as caught:
            use(table, strange)
        assert caught.value.kind == "no_text"
        assert keys(table) == ["a", "b"]


def test_reads_of_a_path_without_a_partition_are_refused(path: Path):
    """They would be validated against nothing, and rows made from that read would be kept."""
    with made(path) as table, table.pin() as state, pytest.raises(MalformedNameError):
        state.reads(partitions=["x/"])


@pytest.mark.parametrize("lease_ms", ["-1", "9223372036854775807"])
def test_a_lease_that_no_clean_would_respect_is_refused(path: Path, lease_ms: str):
    made(path).close()
    with pytest.raises(SettingError) as caught:
        hoodoo.open_table(path, properties={"hoodoo.reader.lease.ms": lease_ms})
    assert caught.value.fields["key"] == "hoodoo.reader.lease.ms"


@pytest.mark.parametrize(("given", "lease_ms"), [("", 900_000), ("0", 0), ("5000", 5_000)])
def test_a_lease_has_the_given_length(path: Path, given: str, lease_ms: int):
    made(path).close()
    with hoodoo.open_table(path, properties={"hoodoo.reader.lease.ms": given}) as table:
        assert table.context.limits.reader_lease_ms == lease_ms


def test_a_batch_id_is_written_once(path: Path):
    with made(path) as table:
        assert not table.upsert(ROWS, batch_id="b").already_published
        assert table.upsert(ROWS, batch_id="b").already_published


@pytest.mark.parametrize("batch_id", ["", " ", 7])
def test_an_empty_batch_id_is_refused(path: Path, batch_id: Any):
    """An empty id (of an unset variable) would be none, and a repetition would write twice."""
    with made(path) as table:
        with pytest.raises(InvalidInputError) as caught:
            table.insert(ROWS, batch_id=batch_id)
        assert caught.value.kind == "batch_id"
        assert table.timeline == []


def test_reads_of_another_table_are_refused(tmp_path: Path):
    """It could not be compared: both chains may well have slots of the same numbers."""
    with made(tmp_path / "source") as source, made(tmp_path / "target") as target:
        source.upsert(ROWS)
        target.upsert(ROWS)
        with source.pin() as state:
            source.upsert([{"id": "a", "p": "x", "ts": 2}])
            with pytest.raises(InvalidInputError) as caught:
                target.upsert([{"id": "c", "p": "x", "ts": 1}], reads=state.reads())
        assert caught.value.kind == "reads_of_another_table"
        assert keys(target) == ["a", "b"]
        with hoodoo.open_table(tmp_path / "target").pin() as state:
            target.upsert([{"id": "c", "p": "x", "ts": 1}], reads=state.reads())


def test_two_writers_with_different_locks_are_refused(path: Path):
    first = made(path, properties=OCC)
    first.insert(ROWS)
    other = hoodoo.open_table(
        path,
        properties={
            **OCC,
            "hoodie.write.lock.provider": "in_process",
        },
    )
    with pytest.raises(WriterDisagreementError) as caught:
        other.upsert(ROWS)
    assert "lock_provider" in caught.value.fields["differences"]
    assert "hoodie.write.lock.provider: mine 'in_process'" in caught.value.message
    assert "wait until it is silent for 120000 ms" in caught.value.message
    first.close()


def test_services_with_another_lock_than_the_writers_are_refused(path: Path):
    first = made(path, properties=OCC)
    first.insert(ROWS)
    alone = {
        **OCC,
        "hoodie.write.lock.provider": "in_process",
    }
    with hoodoo.open_table(path, properties=alone) as other:
        for service in (other.services.clean, other.services.rollback_dead_writers):
            with pytest.raises(WriterDisagreementError):
                service()
    first.close()
    with hoodoo.open_table(path, properties=alone) as other:
        assert other.services.clean() is None, "once the writers are gone it may change"


def test_an_allowed_plug_in_provides_the_lock_of_a_table(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    info = tmp_path / "site" / "hoodoo_sqlite_lock-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hoodoo-sqlite-lock\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hoodoo.plugins]\nsqlite = hoodoo_sqlite_lock\n")
    monkeypatch.syspath_prepend(str(info.parent))
    chosen = {
        "hoodie.write.lock.provider": "sqlite",
        "example.sqlite.lock.path": str(tmp_path / "lock.db"),
    }
    with pytest.raises(UnknownProviderError):
        made(path, properties=chosen)
    with made(path, properties={**chosen, "hoodoo.plugins.allow": "hoodoo-sqlite-lock"}) as table:
        table.insert(ROWS)
        assert table.context.ports.lock.provider == "sqlite"
    assert (tmp_path / "lock.db").exists()


def test_an_unknown_index_is_refused_until_it_is_dropped(path: Path):
    with made(path) as table:
        table.insert(ROWS)
        storage = table.context.ports.storage
        update_properties(storage, {"hoodie.table.metadata.partitions": "expr_index_x"}, now="now")
    with hoodoo.open_table(path) as table, pytest.raises(TableConfigConflictError):
        table.upsert(ROWS)
    with hoodoo.open_table(path) as table:
        assert table.metadata.drop("expr_index_x") == ("expr_index_x",)
    with hoodoo.open_table(path) as table:
        table.upsert(ROWS)


def test_layers_are_built_from_each_form_of_properties(tmp_path: Path):
    file = tmp_path / "f.properties"
    assert to_layers(None).load().get("hoodie.table.name") is None
    assert to_layers({"hoodie.table.name": "m"}).load()["hoodie.table.name"] == "m"
    file.write_text("hoodie.table.name=f\n")
    assert to_layers(file).load()["hoodie.table.name"] == "f"
    assert to_layers([file, {"hoodie.table.name": "m"}]).load()["hoodie.table.name"] == "m"


def test_an_option_may_be_a_member_of_its_enum(tmp_path: Path) -> None:
    with hoodoo.create_table(
        tmp_path / "t",
        schema=pa.schema([("a", pa.int64())]),
        record_key="a",
        table_type=hoodoo.TableType.MERGE_ON_READ,
        properties={"hoodoo.write.isolation.level": hoodoo.Isolation.SERIALIZABLE},
    ) as table:
        assert table.config.table_type is hoodoo.TableType.MERGE_ON_READ
        assert table.settings.isolation is hoodoo.Isolation.SERIALIZABLE


def test_the_name_of_a_new_table_names_its_zookeeper_lock(tmp_path):
    properties = {
        "hoodie.write.lock.provider": "zookeeper",
        "hoodie.write.lock.zookeeper.url": "127.0.0.1:1",
        "hoodie.write.lock.zookeeper.base_path": "/locks",
    }
    table = hoodoo.create_table(tmp_path / "zk2", record_key="id", properties=properties)
    assert table.config.name == "zk2"


def test_dir_of_the_package_lists_public_names_only():
    errors = {name for name in hoodoo.errors.__all__ if name.endswith("Error")}
    shown = [name for name in dir(hoodoo) if not name.startswith("__")]
    assert shown == sorted({*hoodoo.__all__, *errors})


def test_a_delete_by_a_text_that_is_no_condition_names_keys(tmp_path):
    table = hoodoo.create_table(tmp_path / "t", record_key="id")
    with pytest.raises(InvalidInputError) as caught:
        table.delete("5")
    assert caught.value.kind == "filter"
    assert "'5' is no condition" in caught.value.message
    assert "for keys use keys=" in caught.value.message


def test_a_table_without_a_commit_has_its_timeline_folder(tmp_path: Path) -> None:
    # Java Hudi does not open a table without it.
    schema = pa.schema([("id", pa.int64())])
    hoodoo.create_table(tmp_path / "t", schema=schema, record_key="id").close()
    assert list((tmp_path / "t" / ".hoodie" / "timeline").iterdir()) == []


@pytest.mark.parametrize("role", ["record_key", "partition_by", "ordering"])
@pytest.mark.parametrize(
    "kind", [pa.struct([("a", pa.int32())]), pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())]
)
def test_a_field_of_several_values_has_no_role(path: Path, role: str, kind: pa.DataType) -> None:
    roles = {"record_key": "id", role: "v"}
    with pytest.raises(InvalidInputError, match="name a field inside") as caught:
        hoodoo.create_table(path, schema=SCHEMA.append(pa.field("v", kind)), **roles)
    assert (caught.value.kind, caught.value.fields["column"]) == ("unsupported_key_type", "v")
    assert not path.exists()


def test_a_key_that_occurs_twice_is_not_called_missing(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="occurs twice"):
        hoodoo.create_table(path, schema=SCHEMA.append(SCHEMA.field("id")), record_key="id")
