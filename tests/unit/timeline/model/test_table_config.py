"""Typed properties of old and new tables, compared with those that Java creates."""

from __future__ import annotations

from pathlib import Path

import pytest

from filegroups.schema.new_table import new_table_properties
from timeline.errors import (
    ChecksumError,
    CorruptTableError,
    InvalidInputError,
    UnsupportedTableError,
)
from timeline.model.commit_metadata import MergeMode, TableType
from timeline.model.merge_definition import MergeDefinition
from timeline.model.table_config import TABLE_ID_KEY, TableConfig, table_checksum
from timeline.properties.properties_file import parse_properties

DATA = Path(__file__).parents[1] / "data"
EVENT_ID = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
COMMIT_ID = "ce9acb64-bde0-424c-9b91-f6ebba25356d"
PAYLOAD = "org.apache.hudi.common.model."


def java(name: str) -> dict[str, str]:
    return parse_properties((DATA / name).read_bytes(), path=name)


def by_order(*fields: str) -> MergeDefinition:
    return MergeDefinition(mode=MergeMode.EVENT_TIME_ORDERING, ordering_fields=fields)


def changed(**keys: str | None) -> dict[str, str]:
    base = new_table_properties("t", record_key_fields=("id",), merge=by_order("ts"))
    for key, value in keys.items():
        name = key.replace("__", ".")
        if value is None:
            del base[name]
        else:
            base[name] = value
    return base


@pytest.mark.parametrize("table_version", [8, 9])
def test_a_new_table_gets_exactly_javas_properties(table_version: int) -> None:
    assert new_table_properties(
        f"v{table_version}_cow_part",
        database="golden",
        table_version=table_version,
        record_key_fields=("id",),
        partition_fields=("region",),
        merge=by_order("ts"),
        hive_style=True,
    ) == java(f"v{table_version}_cow_part.properties")


@pytest.mark.parametrize("table_version", [8, 9])
def test_javas_properties_become_typed_fields(table_version: int) -> None:
    raw = java(f"v{table_version}_cow_part.properties")
    assert TableConfig.from_properties(raw) == TableConfig(
        name=f"v{table_version}_cow_part",
        database="golden",
        table_type=TableType.COPY_ON_WRITE,
        table_version=table_version,
        initial_version=table_version,
        timeline_layout_version=2,
        record_key_fields=("id",),
        partition_fields=("region",),
        partition_field_types=(None,),
        merge=MergeDefinition(
            mode=MergeMode.EVENT_TIME_ORDERING,
            ordering_fields=("ts",),
            strategy_id=EVENT_ID if table_version == 8 else None,
            payload_class=f"{PAYLOAD}DefaultHoodieRecordPayload" if table_version == 8 else None,
        ),
        key_generator_type="SIMPLE",
        hive_style_partitioning=True,
        url_encode_partitioning=False,
        populate_meta_fields=True,
        drop_partition_columns=False,
        slash_separated_dates=False,
        cdc_enabled=False,
        base_file_format="PARQUET",
        timeline_timezone="UTC",
        timeline_path="timeline",
        history_path="history",
        create_schema_json=None,
        metadata_partitions=(),
        table_id=None,
        raw=raw,
    )


def test_checksum_covers_database_and_name() -> None:
    assert table_checksum("v9_cow_part", "golden") == "1207748137"
    assert table_checksum("v8_cow_part", "golden") == "2822679831"


def test_a_wrong_checksum_is_refused_and_an_absent_one_is_not() -> None:
    with pytest.raises(ChecksumError) as refused:
        TableConfig.from_properties(changed(hoodie__table__checksum="1"), path="p")
    assert refused.value.fields["path"] == "p"
    assert TableConfig.from_properties(changed(hoodie__table__checksum=None)).name == "t"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie__table__name", None),
        ("hoodie__table__type", None),
        ("hoodie__table__type", "COW"),
        ("hoodie__table__version", None),
        ("hoodie__table__version", "nine"),
        ("hoodie__timeline__layout__version", None),
        ("hoodie__timeline__layout__version", "1"),
        ("hoodie__table__cdc__enabled", "maybe"),
        ("hoodie__record__merge__mode", "LAST_ONE"),
        ("hoodie__timeline__path", "../elsewhere"),
        ("hoodie__timeline__history__path", ".."),
    ],
)
def test_missing_and_impossible_values_are_a_corrupt_table(key: str, value: str | None) -> None:
    with pytest.raises(CorruptTableError) as refused:
        TableConfig.from_properties(changed(**{key: value}), path="p")
    assert refused.value.fields["path"] == "p"


@pytest.mark.parametrize("version", ["5", "7", "10"])
def test_other_table_versions_are_unsupported(version: str) -> None:
    with pytest.raises(UnsupportedTableError) as refused:
        TableConfig.from_properties(changed(hoodie__table__version=version))
    assert refused.value.fields["table_version"] == int(version)


@pytest.mark.parametrize(
    ("version", "advice"), [("5", "0.14.1 or 0.15.0 upgrade it"), ("10", "a newer release")]
)
def test_an_unsupported_table_version_is_refused_with_advice(version: str, advice: str) -> None:
    with pytest.raises(UnsupportedTableError, match=advice):
        TableConfig.from_properties(changed(hoodie__table__version=version))


def test_version_6_is_read_with_its_own_keys() -> None:
    config = TableConfig.from_properties(
        {
            "hoodie.table.name": "t",
            "hoodie.table.type": "MERGE_ON_READ",
            "hoodie.table.version": "6",
            "hoodie.timeline.layout.version": "1",
            "hoodie.table.precombine.field": "ts",
            "hoodie.compaction.payload.class": f"{PAYLOAD}OverwriteWithLatestAvroPayload",
            "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
        }
    )
    assert config.merge_mode is MergeMode.COMMIT_TIME_ORDERING
    assert config.key_generator_type == "COMPLEX"
    assert config.ordering_fields == ("ts",)
    assert config.timeline_timezone == "LOCAL"


def test_the_metadata_table_is_on_while_it_is_being_built() -> None:
    properties = changed()
    properties["hoodie.table.metadata.partitions"] = ""
    assert not TableConfig.from_properties(properties).metadata_table_on
    properties["hoodie.table.metadata.partitions.inflight"] = "files"
    config = TableConfig.from_properties(properties)
    assert config.metadata_table_on
    assert config.metadata_partitions == ("files",)


def test_types_of_a_custom_key_generator_are_split_from_the_fields() -> None:
    properties = changed()
    properties["hoodie.table.partition.fields"] = "region:SIMPLE,ts:TIMESTAMP"
    config = TableConfig.from_properties(properties)
    assert config.partition_fields == ("region", "ts")
    assert config.partition_field_types == ("SIMPLE", "TIMESTAMP")


def test_our_table_id_and_unknown_keys_are_kept() -> None:
    properties = {**new_table_properties("t"), TABLE_ID_KEY: "0123"}
    properties["somebody.else"] = "x"
    config = TableConfig.from_properties(properties)
    assert config.table_id == "0123"
    assert config.raw["somebody.else"] == "x"
    assert config.merge_mode is MergeMode.COMMIT_TIME_ORDERING


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", "a\nb", "a\x00", "x" * 256])
def test_table_names_that_cannot_be_folders_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        new_table_properties(name)


@pytest.mark.parametrize("field", ["_hoodie_record_key", "a,b", "a:b", "a/b", "a\tb", ""])
def test_columns_that_cannot_be_keys_are_refused(field: str) -> None:
    with pytest.raises(InvalidInputError):
        new_table_properties("t", record_key_fields=(field,))


def test_definitions_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        new_table_properties("t", merge=by_order())
    with pytest.raises(InvalidInputError):
        new_table_properties("t", table_version=8, merge=by_order("a", "b"))
    with pytest.raises(InvalidInputError):
        new_table_properties("t", partition_fields=("a", "a"))
    with pytest.raises(InvalidInputError):
        new_table_properties("t", table_version=6)
    with pytest.raises(InvalidInputError):
        new_table_properties("t", create_schema_json="[1]")
    with pytest.raises(UnsupportedTableError):
        new_table_properties("t", merge=MergeDefinition(mode=MergeMode.CUSTOM))


@pytest.mark.parametrize(
    ("keys", "partitions", "expected"),
    [
        (("a",), (), "NON_PARTITION"),
        (("a", "b"), (), "NON_PARTITION"),
        (("a",), ("p",), "SIMPLE"),
        (("a", "b"), ("p",), "COMPLEX"),
        (("a",), ("p", "q"), "COMPLEX"),
    ],
)
def test_the_key_generator_fits_the_number_of_fields(
    keys: tuple[str, ...], partitions: tuple[str, ...], expected: str
) -> None:
    properties = new_table_properties("t", record_key_fields=keys, partition_fields=partitions)
    assert properties["hoodie.table.keygenerator.type"] == expected
