"""The options of catalog sync, and what follows from them for one table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import Field

from hoodoo.sync.partition_values import EXTRACTORS, PartitionExtractor
from lockproviders.hivemetastore.thrift_connection import Address, Tls, parse_uris
from timeline.errors import UnsafeSetupError
from timeline.properties.options import (
    TABLE_LAYER,
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
)

_HIVE = "hoodie.datasource.hive_sync."
_META = "hoodie.meta.sync."
_GLUE = "hoodie.datasource.meta.sync.glue."
_LISTING = "hudi.metadata-listing-enabled"  # a property of entries that Athena reads


class SyncTool(Enum):
    """A kind of catalog, by the name of Hudi's class for it."""

    HIVE = "org.apache.hudi.hive.HiveSyncTool"
    GLUE = "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"


class TableStrategy(Enum):
    """The entries of a merge-on-read table."""

    ALL = "ALL"
    READ_OPTIMIZED = "RO"
    SNAPSHOT = "RT"


class SyncSettings(OptionSettings):
    """The options as they are set; ``EntrySettings`` and the catalogs read them."""

    hive_enabled: bool = option(
        f"{_HIVE}enable", False, "Sync the table with a Hive Metastore after each commit."
    )
    meta_enabled: bool = option(
        "hoodie.datasource.meta.sync.enable",
        False,
        "Sync the table with the catalogs of hoodie.meta.sync.client.tool.class after each commit.",
    )
    tool_classes: tuple[str, ...] = option(
        f"{_META}client.tool.class",
        (SyncTool.HIVE.value,),
        "Catalogs to sync with, by Hudi's classes: HiveSyncTool, AwsGlueCatalogSyncTool.",
    )
    base_path: str | None = option(
        "hoodie.datasource.meta.sync.base.path",
        None,
        "Location of the table in the catalog, such as an s3a:// address; its own by default.",
    )
    database: str | None = option(
        f"{_HIVE}database", None, "Database of the entry; the table's own, else default."
    )
    table: str | None = option(f"{_HIVE}table", None, "Name of the entry; the table's by default.")
    uris: tuple[str, ...] = option(
        f"{_HIVE}metastore.uris",
        ("thrift://localhost:9083",),
        "The metastore's addresses, thrift://host:port with commas between them.",
        caller_only=True,
    )
    mode: str = option(
        f"{_HIVE}mode", "hms", "How to reach Hive; only the metastore's service, hms, is supported."
    )
    partition_fields: tuple[str, ...] | None = option(
        f"{_HIVE}partition_fields",
        None,
        "Partition columns of the entry; the table's by default.",
    )
    extractor_class: str | None = option(
        f"{_HIVE}partition_extractor_class",
        None,
        "How partition paths become values, by Hudi's class; by default it follows from the table.",
    )
    base_file_format: str = option(
        f"{_HIVE}base_file_format", "PARQUET", "Format of base files.", choices=("PARQUET",)
    )
    support_timestamp: bool = option(
        f"{_HIVE}support_timestamp", False, "Register times as timestamp, not as bigint."
    )
    auto_create_database: bool = option(
        f"{_HIVE}auto_create_database", True, "Create the database if it does not exist."
    )
    ignore_exceptions: bool = option(
        f"{_HIVE}ignore_exceptions",
        False,
        "Only log that the sync after a commit failed, without a warning.",
    )
    skip_ro_suffix: bool = option(
        f"{_HIVE}skip_ro_suffix",
        False,
        "Give the read-optimized entry of a merge-on-read table the table's name, without _ro.",
    )
    create_managed_table: bool = option(
        f"{_HIVE}create_managed_table",
        False,
        "Create a managed table: dropping the entry deletes the data.",
    )
    table_properties: str | None = option(
        f"{_HIVE}table_properties", None, "More properties of the entry: lines of KEY=VALUE."
    )
    serde_properties: str | None = option(
        f"{_HIVE}serde_properties", None, "More properties of its serde: lines of KEY=VALUE."
    )
    omit_metadata_fields: bool = option(
        f"{_HIVE}omit_metadata_fields", False, "Leave the columns _hoodie_... out of the entry."
    )
    sync_comment: bool = option(
        f"{_HIVE}sync_comment", False, "Register the documentation of columns as their comments."
    )
    sync_as_datasource: bool = option(
        f"{_HIVE}sync_as_datasource",
        True,
        "Register the table as Spark's data source hudi, too, with its Spark schema.",
    )
    schema_text_max: Annotated[int, Field(ge=1)] = option(
        f"{_HIVE}schema_string_length_thresh",
        4_000,
        "Longest property with a part of the Spark schema, in characters.",
    )
    batch_size: Annotated[int, Field(ge=1, le=100_000)] = option(
        f"{_HIVE}batch_num", 1_000, "Partitions in one request to the catalog."
    )
    conditional: bool = option(
        "hoodie.datasource.meta_sync.condition.sync",
        False,
        "Move the entry's last synced commit only if schema, properties or partitions changed.",
    )
    strategy: TableStrategy = option(
        f"{_HIVE}table.strategy",
        TableStrategy.ALL,
        "Entries of a merge-on-read table: read-optimized, snapshot, or all.",
    )
    snapshot_by_name: bool = option(
        f"{_META}sync_snapshot_with_table_name",
        True,
        "Register the snapshot of a merge-on-read table under the table's name, too.",
    )
    incremental: bool = option(
        f"{_META}incremental",
        True,
        "Sync only partitions of commits after the last synced one; else compare all.",
    )
    decode_partition: bool | None = option(
        f"{_META}decode_partition",
        None,
        "Decode %XX in partition values; by default as the table encodes them.",
    )
    no_partition_metadata: bool = option(
        f"{_META}no_partition_metadata",
        False,
        "Register no partition columns and no partitions; Spark finds them in the table.",
    )
    spark_version: str | None = option(
        "hoodie.meta_sync.spark.version", None, "spark.sql.create.version of the entry."
    )
    glue_database: str | None = option(
        f"{_GLUE}database_name",
        None,
        "Database of the entry in Glue, if it has another name there.",
    )
    glue_table: str | None = option(
        f"{_GLUE}table_name", None, "Name of the entry in Glue, if it has another name there."
    )
    glue_skip_archive: bool = option(
        f"{_GLUE}skip_table_archive", True, "Do not keep the earlier version of a changed entry."
    )
    glue_metadata_listing: bool = option(
        f"{_GLUE}metadata_file_listing",
        False,
        "Athena lists files by the table's metadata table.",
    )
    glue_region: str | None = option(
        "hoodie.aws.glue.region",
        None,
        "Region of Glue; AWS_REGION or the profile's by default.",
        caller_only=True,
    )
    glue_endpoint: str | None = option(
        "hoodie.aws.glue.endpoint",
        None,
        "Address of Glue; that of the region by default.",
        caller_only=True,
    )
    timeout_ms: Annotated[int, OptionKind.MS, Field(ge=100, le=600_000)] = option(
        "hoodoo.sync.timeout.ms", 20_000, "Longest wait for one answer of the catalog."
    )
    pause_ms: Annotated[int, OptionKind.MS, Field(ge=0, le=86_400_000)] = option(
        "hoodoo.sync.pause.ms",
        60_000,
        "After a catalog that did not answer, commits of this process do not sync for so long. A "
        "further failure doubles the pause, up to ten minutes.",
    )
    tls: str = option(
        "hoodoo.sync.metastore.tls",
        "off",
        "Use TLS, and the metastore must prove its name; never falls back to plain text.",
        choices=("off", "verify"),
    )
    tls_ca: str | None = option(
        "hoodoo.sync.metastore.tls.ca",
        None,
        "File of the authorities that may sign the metastore's certificate; the "
        "system's by default.",
    )

    @property
    def is_on(self) -> bool:
        """Whether each commit is followed by a sync."""
        return self.hive_enabled or self.meta_enabled

    @property
    def tools(self) -> tuple[SyncTool, ...]:
        """The catalogs, each once. As in Hudi, ``hive_sync.enable`` adds the Hive Metastore."""
        named = [_TOOLS[name.rpartition(".")[2]] for name in self.tool_classes]
        return tuple(dict.fromkeys([*named, *[SyncTool.HIVE] * self.hive_enabled]))

    def of_tool(self, tool: SyncTool) -> SyncSettings:
        """Return the settings of the entries in one catalog."""
        if tool is not SyncTool.GLUE:
            return self
        listing = f"{_LISTING}={str(self.glue_metadata_listing).upper()}"
        return self.model_copy(
            update={
                "database": self.glue_database or self.database,
                "table": self.glue_table or self.table,
                "table_properties": f"{listing}\n{self.table_properties or ''}",
            }
        )

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The metastore's addresses."""
        return parse_uris(self.options["uris"].key, self.uris, "sync")

    @property
    def verified_by(self) -> Tls | None:
        """How the metastore proves its name; None for a plain connection."""
        return Tls(ca_file=self.tls_ca or "") if self.tls == "verify" else None

    @property
    def extractor(self) -> PartitionExtractor | None:
        """How partition paths become values; None if it follows from the table."""
        return EXTRACTORS[self.extractor_class.rpartition(".")[2]] if self.extractor_class else None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], *, asked: bool = False) -> SyncSettings:
        """
        Read the options.

        Args:
            properties: All properties.
            asked: Refuse what hoodoo cannot sync with, also if no option switches the sync on.

        Raises:
            SettingError: A value is wrong, or not supported; names key, value and layer.
            UnsafeSetupError: The table itself names the metastore (SEC11).
        """
        given = as_property_set(properties)
        made = super().from_properties(given)
        if made.is_on or asked:
            _refuse(made, given)
        return made


#: By short name of Hudi's class: the catalogs that hoodoo syncs with.
_TOOLS: Mapping[str, SyncTool] = {tool.value.rpartition(".")[2]: tool for tool in SyncTool}


def _refuse(made: SyncSettings, given: PropertySet) -> None:
    for field in ("uris", "glue_region", "glue_endpoint"):
        key = made.options[field].key
        if given.layer_of(key) == TABLE_LAYER:
            raise UnsafeSetupError(
                "a table must not choose the catalog of its sync: put the key into the writer's "
                f"own properties: {key}",
                kind="endpoint_from_table",
                key=key,
            )
    others = [name for name in made.tool_classes if name.rpartition(".")[2] not in _TOOLS]
    if others or not made.tool_classes:
        known = " or ".join(tool.value for tool in SyncTool)
        raise made.refusal(given, "tool_classes", f"hoodoo syncs with {known} only", known)
    if made.mode.casefold() != "hms":
        raise made.refusal(
            given,
            "mode",
            "hoodoo syncs by the metastore's own service: set this key to hms, and "
            f"{made.options['uris'].key} to its thrift://host:port",
            "hms",
        )
    if made.extractor_class and made.extractor_class.rpartition(".")[2] not in EXTRACTORS:
        known = ", ".join(EXTRACTORS)
        raise made.refusal(given, "extractor_class", f"choose one of {known}", known)
    for field in ("table_properties", "serde_properties"):
        try:
            pairs_of(getattr(made, field))
        except ValueError:
            raise made.refusal(
                given, field, "give lines of KEY=VALUE", "lines of KEY=VALUE"
            ) from None
    if SyncTool.HIVE in made.tools:
        parse_uris(made.options["uris"].key, made.uris, given.layer_of(made.options["uris"].key))


def pairs_of(text: str | None) -> dict[str, str]:
    """
    Return the properties of lines of KEY=VALUE.

    Raises:
        ValueError: A line has no ``=``.
    """
    pairs: dict[str, Any] = {}
    for line in filter(None, map(str.strip, (text or "").splitlines())):
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise ValueError(line)
        pairs[key.strip()] = value.strip()
    return pairs
