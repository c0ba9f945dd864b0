"""The entries of a table in a catalog as pure values, and the changes that make them current."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from hoodoo.sync.columns import CatalogColumn, EntryColumns, columns_of
from hoodoo.sync.partition_values import EXTRACTORS, PartitionExtractor, Values
from hoodoo.sync.settings import SyncSettings, TableStrategy, pairs_of
from timeline.model.commit_metadata import TableType
from timeline.model.instant_time import InstantTime
from timeline.model.table_config import TableConfig

LAST_COMMIT: Final = "last_commit_time_sync"
LAST_COMPLETION: Final = "last_commit_completion_time_sync"
_SPARK: Final = "spark.sql.sources."

_INPUT: Final = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
_REALTIME_INPUT: Final = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
OUTPUT_FORMAT: Final = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
SERDE: Final = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """
    One entry of a catalog.

    Entries that hoodoo would make and entries that a catalog has are of this type. Only the named
    properties are compared and changed; a catalog's own and a user's others stay.
    """

    database: str
    name: str
    location: str
    columns: tuple[CatalogColumn, ...]
    partition_columns: tuple[CatalogColumn, ...]
    input_format: str
    properties: Mapping[str, str]
    serde_properties: Mapping[str, str]
    output_format: str = OUTPUT_FORMAT
    serde: str = SERDE

    @property
    def synced(self) -> SyncedUntil:
        """The last commit that the entry includes."""
        return SyncedUntil(
            self.properties.get(LAST_COMMIT, ""), self.properties.get(LAST_COMPLETION, "")
        )

    def updated(self, wanted: TableEntry, *, comments: bool) -> TableEntry:
        """
        Return this entry of a catalog with the changes that make it current.

        Args:
            wanted: The entry as hoodoo would make it.
            comments: Whether comments of columns change, too; else a user's stay.
        """
        columns = wanted.columns if comments else _commented(wanted.columns, self.columns)
        # EXTERNAL decides the kind of table, which a sync never changes.
        own = {key: value for key, value in wanted.properties.items() if key != "EXTERNAL"}
        kept = {key: value for key, value in self.properties.items() if not _is_part(key)}
        if not any(map(_is_part, wanted.properties)):  # not synced as a data source
            kept = dict(self.properties)
        return replace(
            self,
            location=self.location
            if same_location(self.location, wanted.location)
            else wanted.location,
            columns=columns,
            input_format=wanted.input_format,
            output_format=wanted.output_format,
            serde=wanted.serde,
            properties={**kept, **own},
            serde_properties={**self.serde_properties, **wanted.serde_properties},
        )

    def with_synced(self, until: SyncedUntil) -> TableEntry:
        """Return the entry with the later of both last commits; it never goes back."""
        later = self.synced.later(until)
        given = {LAST_COMMIT: later.requested_time, LAST_COMPLETION: later.completion_time}
        times = {key: value for key, value in given.items() if value}
        return replace(self, properties={**self.properties, **times})


@dataclass(frozen=True, slots=True)
class SyncedUntil:
    """The greatest requested and completion time that a sync included; empty if unknown."""

    requested_time: InstantTime = ""
    completion_time: InstantTime = ""

    def later(self, other: SyncedUntil) -> SyncedUntil:
        """Return the later of both, each time for itself."""
        return SyncedUntil(
            max(self.requested_time, other.requested_time),
            max(self.completion_time, other.completion_time),
        )


#: The last commit of an entry that no sync completed yet. An entry needs one, or the catalog could
#: not tell that another sync completed meanwhile. Hudi compares all partitions with it, too.
NEVER: Final = SyncedUntil("0" * 17)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPlan:
    """The facts of a table from which its entries follow."""

    settings: SyncSettings
    config: TableConfig
    location: str
    avro_json: str
    fields: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls, settings: SyncSettings, config: TableConfig, base_uri: str, avro_json: str
    ) -> EntryPlan:
        """Return the plan of a table at an address with this Avro schema."""
        fields = config.partition_fields
        if settings.partition_fields is not None:
            fields = settings.partition_fields
        if settings.no_partition_metadata or settings.extractor is _NOT_PARTITIONED:
            fields = ()
        location = settings.base_path or base_uri
        if location.startswith("file:"):  # Hudi registers local tables by their plain path
            location = urlsplit(location).path
        return cls(
            settings=settings,
            config=config,
            location=location.rstrip("/"),
            avro_json=avro_json,
            fields=fields,
        )

    @property
    def extractor(self) -> PartitionExtractor | None:
        """How paths become values; None for one value of each folder."""
        return self.settings.extractor

    def entries(self) -> tuple[TableEntry, ...]:
        """
        Return the entries of the table, as Hudi's own sync would make them.

        Raises:
            UnsupportedTableError: The catalog has no type for a column.
        """
        settings = self.settings
        columns = columns_of(
            self.avro_json,
            self.fields,
            meta_columns=self.config.populate_meta_fields and not settings.omit_metadata_fields,
            timestamps=settings.support_timestamp,
            comments=settings.sync_comment,
        )
        name = settings.table or self.config.name
        if self.config.table_type is not TableType.MERGE_ON_READ:
            return (self._entry(name, columns),)
        if settings.strategy is TableStrategy.READ_OPTIMIZED:
            return (self._entry(name, columns, optimized=True),)
        if settings.strategy is TableStrategy.SNAPSHOT:
            return (self._entry(name, columns, realtime=True),)
        optimized = name if settings.skip_ro_suffix else f"{name}_ro"
        found = [
            self._entry(optimized, columns, optimized=True),
            self._entry(f"{name}_rt", columns, realtime=True),
        ]
        if settings.snapshot_by_name and not settings.skip_ro_suffix:
            found.append(self._entry(name, columns, realtime=True))
        return tuple(found)

    def _entry(
        self, name: str, columns: EntryColumns, *, realtime: bool = False, optimized: bool = False
    ) -> TableEntry:
        settings = self.settings
        properties = {} if settings.create_managed_table else {"EXTERNAL": "TRUE"}
        properties |= pairs_of(settings.table_properties)
        serde = {"serialization.format": "1", "path": self.location}
        serde |= pairs_of(settings.serde_properties)
        if settings.sync_as_datasource:
            properties |= _spark_properties(columns, self.fields, settings)
            serde["hoodie.query.as.ro.table"] = str(optimized).lower()
        return TableEntry(
            database=(settings.database or self.config.database or "default").lower(),
            name=name.lower(),
            location=self.location,
            columns=columns.columns,
            partition_columns=columns.partition_columns,
            input_format=_REALTIME_INPUT if realtime else _INPUT,
            properties=properties,
            serde_properties=serde,
        )

    def location_of(self, partition_path: str) -> str:
        """Return the location of a partition."""
        return f"{self.location}/{partition_path}"


_NOT_PARTITIONED = EXTRACTORS["NonPartitionedExtractor"]


def _spark_properties(
    columns: EntryColumns, fields: tuple[str, ...], settings: SyncSettings
) -> dict[str, str]:
    text, most = columns.spark_schema, settings.schema_text_max
    parts = [text[start : start + most] for start in range(0, len(text), most)]
    properties = {f"{_SPARK}provider": "hudi", f"{_SPARK}schema.numParts": str(len(parts))}
    properties |= {f"{_SPARK}schema.part.{number}": part for number, part in enumerate(parts)}
    if settings.spark_version:
        properties["spark.sql.create.version"] = settings.spark_version
    if fields:
        properties[f"{_SPARK}schema.numPartCols"] = str(len(fields))
        named = {f"{_SPARK}schema.partCol.{number}": name for number, name in enumerate(fields)}
        properties |= named
    return properties


def _is_part(key: str) -> bool:
    """Return whether a property is one of the parts of Spark's schema, whose number may shrink."""
    return key.startswith(f"{_SPARK}schema.part.")


def _commented(
    columns: Iterable[CatalogColumn], held: Iterable[CatalogColumn]
) -> tuple[CatalogColumn, ...]:
    comments = {one.name: one.comment for one in held}
    return tuple(replace(one, comment=comments.get(one.name, one.comment)) for one in columns)


# ---- Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanges:
    """The changes of a catalog's partitions: locations by values, and the values to drop."""

    added: Mapping[Values, str]
    moved: Mapping[Values, str]
    dropped: tuple[Values, ...]

    @property
    def count(self) -> int:
        """The number of changed partitions."""
        return len(self.added) + len(self.moved) + len(self.dropped)


def partition_changes(
    live: Mapping[Values, str], gone: Iterable[Values], registered: Mapping[Values, str]
) -> PartitionChanges:
    """
    Return the changes that make a catalog's partitions current.

    Args:
        live: Location of each partition of the table that has rows, by its values.
        gone: Values of partitions that the table no longer has.
        registered: Location of each of the catalog's partitions with these values.
    """
    return PartitionChanges(
        added={values: place for values, place in live.items() if values not in registered},
        moved={
            values: place
            for values, place in live.items()
            if values in registered and not same_location(registered[values], place)
        },
        dropped=tuple(one for one in gone if one in registered and one not in live),
    )


def same_location(one: str, other: str) -> bool:
    """Return whether two locations are one folder; the schemes of one store are equal."""
    (host, path), (other_host, other_path) = _parts(one), _parts(other)
    # The metastore adds its own file system to a plain path.
    return path == other_path and (host == other_host or not (host and other_host))


def _parts(location: str) -> tuple[str, str]:
    """Return the host or bucket of a location, and its path."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return "", "/" + location.removeprefix("file:").strip("/")
    host, _, path = rest.partition("/")
    return "" if scheme == "file" else host, "/" + path.strip("/")
