"""
A typed view of `hoodie.properties`, the file in which a table describes itself.

Every key of format 1.1 that changes how hoodoo reads or writes is a typed field. The raw mapping
is kept, because an update must keep every key that it does not know. Invalid content is refused
here, once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from timeline.errors import ChecksumError, CorruptTableError, UnsupportedTableError
from timeline.model.commit_metadata import CdcMode, MergeMode, TableType
from timeline.model.instant_time import LOCAL, UTC_ZONE
from timeline.model.merge_definition import MergeDefinition, merge_definition_of

TABLE_ID_KEY: Final = "hoodoo.table.id"
"""hoodoo's own key: it names the table in locks and registries, even after the table is moved."""

METADATA_COMPLETE: Final = "hoodie.table.metadata.partitions"
METADATA_INFLIGHT: Final = "hoodie.table.metadata.partitions.inflight"
METADATA_CHANGES: Final = "hoodoo.metadata.changes"
"""hoodoo's own key: how often partitions of the metadata table were built or dropped."""

LAYOUT_OF_VERSION: Final[Mapping[int, int]] = {6: 1, 8: 2, 9: 2}
"""The timeline layout version of each readable table version."""

_CHANGE_LOG_MODE: Final = "hoodie.table.cdc.supplemental.logging.mode"
_CHANGE_LOG_MODES: Final = frozenset(CdcMode.__members__)
_KEY_GENERATOR_OF_CLASS: Final = {
    "SimpleKeyGenerator": "SIMPLE",
    "SimpleAvroKeyGenerator": "SIMPLE_AVRO",
    "ComplexKeyGenerator": "COMPLEX",
    "ComplexAvroKeyGenerator": "COMPLEX_AVRO",
    "NonpartitionedKeyGenerator": "NON_PARTITION",
    "NonpartitionedAvroKeyGenerator": "NON_PARTITION_AVRO",
    "TimestampBasedKeyGenerator": "TIMESTAMP",
    "TimestampBasedAvroKeyGenerator": "TIMESTAMP_AVRO",
    "CustomKeyGenerator": "CUSTOM",
    "CustomAvroKeyGenerator": "CUSTOM_AVRO",
    "GlobalDeleteKeyGenerator": "GLOBAL_DELETE",
    "GlobalAvroDeleteKeyGenerator": "GLOBAL_DELETE_AVRO",
}

#: The fields that decide keys, folders and files of rows.
_OF_WRITERS: Final = (
    "table_type",
    "record_key_fields",
    "partition_fields",
    "partition_field_types",
    "key_generator_type",
    "hive_style_partitioning",
    "url_encode_partitioning",
    "populate_meta_fields",
    "drop_partition_columns",
    "change_log_mode",
    "base_file_format",
    "timeline_timezone",
    "timeline_path",
    "history_path",
)

_SLASH_SEPARATED_DATES: Final = "hoodie.datasource.write.slash.separated.date.partitioning"
_WRITERS_TIMES_IN_LOGS = 8  # table version


def table_checksum(name: str, database: str = "") -> str:
    """Return the checksum: CRC-32 of database, dot and name, as unsigned decimal (fmt 1.2)."""
    return str(zlib.crc32(f"{database}.{name}".encode()))


def _advice(version: int) -> str:
    """Return the advice for a table of a version that is not read."""
    if version > max(LAYOUT_OF_VERSION):
        return "a newer release wrote it, so use a newer release of hoodoo"
    if version > min(LAYOUT_OF_VERSION):
        return "let Java Hudi 1.0.2 or later upgrade it with one write"
    return (
        "let Java Hudi 0.14.1 or 0.15.0 upgrade it to version 6 (one write, or hudi-cli: upgrade "
        "table --toVersion SIX), then run 'hoodoo table upgrade TABLE'"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """
    The typed content of `hoodie.properties`.

    `partition_field_types` has one entry per partition field: its type in a CUSTOM key generator,
    else None. `metadata_partitions` names the partitions of the metadata table, also those still
    being built; if it is not empty the metadata table is on. With `slash_separated_dates` the value
    `2024-05-03` has the folder `2024/05/03`, since Hudi 1.2. `timeline_path` is below `.hoodie`,
    `history_path` below the timeline; both are checked to be plain folder names. `merge` defines
    how two versions of a record are merged.
    """

    name: str
    database: str
    table_type: TableType
    table_version: int
    initial_version: int
    timeline_layout_version: int
    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    partition_field_types: tuple[str | None, ...]
    merge: MergeDefinition
    key_generator_type: str | None
    hive_style_partitioning: bool
    url_encode_partitioning: bool
    populate_meta_fields: bool
    drop_partition_columns: bool
    slash_separated_dates: bool
    cdc_enabled: bool
    base_file_format: str
    timeline_timezone: str
    timeline_path: str
    history_path: str
    create_schema_json: str | None
    metadata_partitions: tuple[str, ...]
    table_id: str | None
    raw: Mapping[str, str]

    @property
    def partition_metafile_ending(self) -> str:
        """The suffix of a partition's metadata file: empty (a text file), or that of base files."""
        in_base_format = self.raw.get("hoodie.partition.metafile.use.base.format", "false")
        return ".parquet" if in_base_format.lower() == "true" else ""

    @property
    def may_have_old_logs(self) -> bool:
        """Whether log names may contain the time of their base file, as in version 6 (fmt 5.1)."""
        return self.initial_version < _WRITERS_TIMES_IN_LOGS

    @classmethod
    def from_properties(
        cls, mapping: Mapping[str, str], *, path: str = ".hoodie/hoodie.properties"
    ) -> TableConfig:
        """
        Check and type the properties of a table.

        Args:
            mapping: Every key and value of the file.
            path: The path that errors name as the damaged file.

        Raises:
            ChecksumError: The checksum exists and does not match name and database.
            CorruptTableError: Name, type, version or layout version is missing or invalid, the
                layout does not belong to the version, or properties for merging contradict each
                other.
            UnsupportedTableError: The table version is none of 6, 8 and 9.
        """
        text = _Text(mapping, path)
        name = text.required("hoodie.table.name")
        database = mapping.get("hoodie.database.name", "")
        checksum = mapping.get("hoodie.table.checksum")
        if checksum is not None and checksum != table_checksum(name, database):
            raise ChecksumError(
                "the table checksum does not fit the name and the database: restore "
                f"hoodie.properties from a backup: {path}",
                path=path,
            )
        version = text.number("hoodie.table.version")
        layout = text.number("hoodie.timeline.layout.version")
        if version not in LAYOUT_OF_VERSION:
            raise UnsupportedTableError(
                f"this release reads the table versions 6, 8 and 9; {_advice(version)}: {version}",
                kind="table_version",
                table_version=version,
                path=path,
            )
        if layout != LAYOUT_OF_VERSION[version]:
            raise text.wrong("hoodie.timeline.layout.version")
        table_type = text.required("hoodie.table.type")
        if table_type not in TableType.__members__:
            raise text.wrong("hoodie.table.type")
        if mapping.get(_CHANGE_LOG_MODE, "").strip().upper() not in {"", *_CHANGE_LOG_MODES}:
            raise text.wrong(_CHANGE_LOG_MODE)
        partition = [one.partition(":") for one in text.names("hoodie.table.partition.fields")]
        return cls(
            name=name,
            database=database,
            table_type=TableType[table_type],
            table_version=version,
            initial_version=text.number("hoodie.table.initial.version", default=version),
            timeline_layout_version=layout,
            record_key_fields=text.names("hoodie.table.recordkey.fields"),
            partition_fields=tuple(field for field, _, _ in partition),
            partition_field_types=tuple(kind or None for _, _, kind in partition),
            merge=merge_definition_of(mapping, table_version=version, path=path),
            key_generator_type=_key_generator_type(mapping),
            hive_style_partitioning=text.flag("hoodie.datasource.write.hive_style_partitioning"),
            url_encode_partitioning=text.flag("hoodie.datasource.write.partitionpath.urlencode"),
            populate_meta_fields=text.flag("hoodie.populate.meta.fields", default=True),
            drop_partition_columns=text.flag("hoodie.datasource.write.drop.partition.columns"),
            slash_separated_dates=mapping.get(_SLASH_SEPARATED_DATES, "").strip().lower() == "true",
            cdc_enabled=text.flag("hoodie.table.cdc.enabled"),
            base_file_format=mapping.get("hoodie.table.base.file.format") or "PARQUET",
            timeline_timezone=text.zone("hoodie.table.timeline.timezone"),
            timeline_path=text.folder("hoodie.timeline.path", default="timeline"),
            history_path=text.folder("hoodie.timeline.history.path", default="history"),
            create_schema_json=mapping.get("hoodie.table.create.schema") or None,
            metadata_partitions=text.names(METADATA_COMPLETE) + text.names(METADATA_INFLIGHT),
            table_id=mapping.get(TABLE_ID_KEY) or None,
            raw=dict(mapping),
        )

    @property
    def merge_mode(self) -> MergeMode:
        """The rule that decides between two versions of a record."""
        return self.merge.mode

    @property
    def ordering_fields(self) -> tuple[str, ...]:
        """The ordering fields, whether the merge mode uses them or not."""
        return self.merge.ordering_fields

    @property
    def change_log_mode(self) -> CdcMode | None:
        """The content of change logs; None if none are written. It was checked on reading."""
        if not self.cdc_enabled:
            return None
        mode = self.raw.get(_CHANGE_LOG_MODE) or CdcMode.DATA_BEFORE_AFTER.value
        return CdcMode[mode.strip().upper()]

    def differs_for_writers(self, before: TableConfig) -> tuple[str, ...]:
        """
        Return the changed fields that a write begun under ``before`` cannot adopt; empty for none.

        The table's version and its metadata table have their own rules. A plug-in's addition to
        ``merge`` is no part of the file.
        """
        if self.raw == before.raw:
            return ()
        mine, theirs = replace(self.merge, merger=None), replace(before.merge, merger=None)
        changed = [name for name in _OF_WRITERS if getattr(self, name) != getattr(before, name)]
        return (*changed, *(["merge"] if mine != theirs else []))

    @property
    def complete_metadata_partitions(self) -> tuple[str, ...]:
        """The partitions of the metadata table that readers may use, sorted."""
        listed = (one.strip() for one in self.raw.get(METADATA_COMPLETE, "").split(","))
        return tuple(sorted(one for one in listed if one))

    @property
    def metadata_state(self) -> tuple[tuple[str, ...], str]:
        """
        The partitions of the metadata table, and how often partitions were built or dropped.

        A partition that was dropped and built again has other file groups (MDT-11).
        """
        return tuple(sorted(self.metadata_partitions)), self.raw.get(METADATA_CHANGES, "")

    @property
    def metadata_table_on(self) -> bool:
        """Whether a metadata table governs what readers see (fmt 10)."""
        return bool(self.metadata_partitions)


@dataclass(frozen=True, slots=True)
class _Text:
    """Typed access to the texts of one file, with errors that name key and path."""

    mapping: Mapping[str, str]
    path: str

    def required(self, key: str) -> str:
        text = self.mapping.get(key, "")
        if not text:
            raise CorruptTableError(
                f"the table properties lack a key: restore hoodie.properties from a backup: {key} "
                f"in {self.path}",
                kind="table_property_missing",
                path=self.path,
                key=key,
            )
        return text

    def wrong(self, key: str) -> CorruptTableError:
        text = self.mapping.get(key, "")
        return CorruptTableError(
            "a table property has a value that it cannot have: restore hoodie.properties from a "
            f"backup: {key}={text!r} in {self.path}",
            kind="table_property_wrong",
            path=self.path,
            key=key,
            value=text,
        )

    def number(self, key: str, default: int | None = None) -> int:
        if default is not None and not self.mapping.get(key):
            return default
        text = self.required(key)
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise self.wrong(key)
        return int(text)

    def flag(self, key: str, *, default: bool = False) -> bool:
        text = self.mapping.get(key, "").strip().lower()
        if text not in {"", "true", "false"}:
            raise self.wrong(key)
        return text == "true" if text else default

    def zone(self, key: str) -> str:
        # Without the key Java's default applies.
        name = self.mapping.get(key, "").strip().upper() or LOCAL
        if name not in (LOCAL, UTC_ZONE.name):
            raise self.wrong(key)
        return name

    def names(self, key: str) -> tuple[str, ...]:
        listed = (one.strip() for one in self.mapping.get(key, "").split(","))
        return tuple(one for one in listed if one)

    def folder(self, key: str, default: str) -> str:
        text = self.mapping.get(key) or default
        # One plain name: anything else could lead out of the table's folder (SEC1).
        if not all(one.isalnum() or one in "_-." for one in text) or set(text) == {"."}:
            raise self.wrong(key)
        return text


def _short_class(name: str) -> str:
    return name.rpartition(".")[2]


def _key_generator_type(mapping: Mapping[str, str]) -> str | None:
    kind = mapping.get("hoodie.table.keygenerator.type")
    if kind:
        return kind.upper()
    class_name = mapping.get("hoodie.table.keygenerator.class")
    if class_name:
        # An unknown class is the user's own; Hudi's name for that is USER_PROVIDED.
        return _KEY_GENERATOR_OF_CLASS.get(_short_class(class_name), "USER_PROVIDED")
    return None
