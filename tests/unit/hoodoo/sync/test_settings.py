"""Options of catalog sync are honoured or refused; none is silent."""

from __future__ import annotations

import pytest

from hoodoo.sync.settings import SyncSettings, SyncTool, pairs_of
from timeline.errors import SettingError, UnsafeSetupError
from timeline.properties.options import TABLE_LAYER, PropertySet

H = "hoodie.datasource.hive_sync."
GLUE = "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"
TOOLS = "hoodie.meta.sync.client.tool.class"


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        ({f"{H}enable": "true"}, (SyncTool.HIVE,)),
        ({"hoodie.datasource.meta.sync.enable": "true"}, (SyncTool.HIVE,)),
        ({"hoodie.datasource.meta.sync.enable": "true", TOOLS: GLUE}, (SyncTool.GLUE,)),
        ({f"{H}enable": "true", TOOLS: GLUE}, (SyncTool.GLUE, SyncTool.HIVE)),
    ],
)
def test_the_tools_are_those_that_hudi_would_run(
    given: dict[str, str], tools: tuple[SyncTool, ...]
) -> None:
    settings = SyncSettings.from_properties(given)
    assert settings.is_on
    assert settings.tools == tools


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        (TOOLS, "org.apache.hudi.gcp.bigquery.BigQuerySyncTool", "HiveSyncTool"),
        (f"{H}mode", "jdbc", "set this key to hms"),
        (f"{H}mode", "hiveql", "metastore.uris"),
        (f"{H}partition_extractor_class", "com.acme.Mine", "MultiPartKeysValueExtractor"),
        (f"{H}table_properties", "a", "KEY=VALUE"),
        (f"{H}serde_properties", "=b", "KEY=VALUE"),
        (f"{H}metastore.uris", "http://a", "thrift://host:port"),
        (f"{H}base_file_format", "ORC", "PARQUET"),
        (f"{H}table.strategy", "XX", "RO"),
    ],
)
def test_what_hoodoo_cannot_sync_with_is_refused_by_name(key: str, value: str, named: str) -> None:
    with pytest.raises(SettingError, match=named) as caught:
        SyncSettings.from_properties({f"{H}enable": "true", key: value})
    assert caught.value.fields["key"] == key


def test_a_value_that_only_a_sync_refuses_does_not_matter_while_it_is_off() -> None:
    given = {f"{H}mode": "jdbc"}
    assert not SyncSettings.from_properties(given).is_on
    with pytest.raises(SettingError):
        SyncSettings.from_properties(given, asked=True)


@pytest.mark.parametrize("key", [f"{H}metastore.uris", "hoodie.aws.glue.endpoint"])
def test_a_table_does_not_choose_the_catalog(key: str) -> None:
    given = PropertySet().with_layer(TABLE_LAYER, {key: "thrift://attacker:9083"})
    with pytest.raises(UnsafeSetupError, match="must not choose"):
        SyncSettings.from_properties(given.with_layer("code", {f"{H}enable": "true"}))


def test_glue_has_names_and_a_property_of_its_own() -> None:
    settings = SyncSettings.from_properties(
        {
            f"{H}table": "t",
            f"{H}table_properties": "a=b",
            "hoodie.datasource.meta.sync.glue.table_name": "orders",
            "hoodie.datasource.meta.sync.glue.metadata_file_listing": "true",
        }
    )
    glue = settings.of_tool(SyncTool.GLUE)
    assert glue.table == "orders"
    assert pairs_of(glue.table_properties) == {"hudi.metadata-listing-enabled": "TRUE", "a": "b"}
    assert settings.of_tool(SyncTool.HIVE) is settings
