"""Decide which partitions a metadata table gets, their definitions and their file groups."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from filegroups.metadata_table.column_stats import ALWAYS_INDEXED, columns_to_index
from filegroups.metadata_table.index_definitions import IndexDefinition, bad_definitions_error
from filegroups.metadata_table.keys import IndexVersion, file_group_id
from filegroups.schema.schema import TableSchema
from filegroups.settings.metadata_settings import MetadataTableSettings
from timeline.errors import InvalidInputError
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.model.table_config import TableConfig
from timeline.properties.options import TABLE_LAYER, PropertySet

_RECORD_BYTES: Final = 48  # of a record index, as Java Hudi estimates it
_ORDER: Final = (
    PartitionKind.FILES,
    PartitionKind.COLUMN_STATS,
    PartitionKind.BLOOM_FILTERS,
    PartitionKind.RECORD_INDEX,
    PartitionKind.SECONDARY_INDEX,
    PartitionKind.PARTITION_STATS,
)
#: Partitions without which a partition has no meaning.
_NEEDS: Final[Mapping[PartitionKind, PartitionKind]] = {
    PartitionKind.COLUMN_STATS: PartitionKind.FILES,
    PartitionKind.BLOOM_FILTERS: PartitionKind.FILES,
    PartitionKind.RECORD_INDEX: PartitionKind.FILES,
    PartitionKind.PARTITION_STATS: PartitionKind.COLUMN_STATS,
    PartitionKind.SECONDARY_INDEX: PartitionKind.RECORD_INDEX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartition:
    """
    A partition of the metadata table to build.

    Args:
        name: Its folder.
        file_groups: Its file groups; in a record index of each partition, those of a partition of
            the table that has no rows yet.
        definition: Its definition; None if Java keeps none.
        by_partition: In a record index of each partition, the file groups of partitions with rows.
    """

    name: str
    file_groups: int
    definition: IndexDefinition | None = None
    by_partition: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_per_partition(self) -> bool:
        """Whether each partition of the table has its own file groups in it."""
        return self.definition is not None and self.definition.is_per_partition

    @property
    def file_ids(self) -> tuple[str, ...]:
        """The file groups with which it begins; none if each partition of the table brings its own."""
        if self.is_per_partition:
            return ()
        return tuple(file_group_id(self.name, number) for number in range(self.file_groups))

    def file_ids_of(self, path: str) -> tuple[str, ...]:
        """Return the file groups of a partition of the table, in a record index of each partition."""
        return tuple(
            file_group_id(self.name, number, data_partition=path)
            for number in range(self.by_partition.get(path, self.file_groups))
        )


def makes_metadata_table(properties: PropertySet, *, enabled: bool | None) -> bool:
    """
    Return whether a new table gets a metadata table.

    In Hudi each table has one, so that the option of an index suffices. Here such an option counts
    if ``hoodie.metadata.enable`` is not given.

    Args:
        properties: Of the caller.
        enabled: ``hoodie.metadata.enable``; None if it is not given.
    """
    if enabled is not None:
        return enabled
    settings = MetadataTableSettings.from_properties(properties)
    asked = any(
        getattr(settings, name) and properties.find(settings.options[name]) is not None
        for name, kind in _SWITCHES.items()
        if not kind.is_named
    )
    return asked or bool(settings.secondary_columns)


def default_partitions(
    config: TableConfig, settings: MetadataTableSettings, indexed: Container[str] = ()
) -> tuple[str, ...]:
    """
    Return the partitions that the settings ask for, as Java Hudi 1.2.0 decides.

    Columns of ``indexed`` have a secondary index already. Java Hudi ignores the column of a
    secondary index without a record index; here the one brings the other.
    """
    wanted = [PartitionKind.FILES]
    if settings.column_stats:
        wanted.append(PartitionKind.COLUMN_STATS)
        if config.partition_fields and settings.partition_stats:
            wanted.append(PartitionKind.PARTITION_STATS)
    if settings.bloom_filters:
        wanted.append(PartitionKind.BLOOM_FILTERS)
    if settings.record_index or settings.partitioned_record_index:
        wanted.append(PartitionKind.RECORD_INDEX)
    secondary = settings.secondary_columns.items()
    more = (name for name, column in secondary if column not in indexed)
    return (*(kind.value for kind in wanted), *more)


def partition_warnings(config: TableConfig, properties: PropertySet) -> Iterator[str]:
    """
    Yield a warning for each option that asks a writer for other partitions than the table has.

    Java Hudi builds or deletes the partition before such a write. Here a build and a drop are steps
    of their own, and each writer maintains what the table has.

    Args:
        config: Of a table with a metadata table.
        properties: Of the writer.
    """
    given = properties.without_layer(TABLE_LAYER)
    settings = MetadataTableSettings.from_properties(given)
    present = {kind_of(name): name for name in config.metadata_partitions}
    for name, kind in _SWITCHES.items():
        found = given.find(settings.options[name])
        if found is None:
            continue
        key, text, _ = found
        wanted = getattr(settings, name)
        if not wanted and kind in present and name not in _OF_ONE_SCOPE:
            yield (
                f"{key}={text}, and the table has this partition of the metadata table: this "
                "writer maintains it; drop it for all engines with 'hoodoo metadata drop TABLE "
                f"{present[kind]}', or leave the option out"
            )
        elif wanted and kind not in present and not kind.is_named and _fits(kind, config):
            yield _not_built(key, text, f"create TABLE {kind.value}")
    least = given.find(settings.options["partitioned_file_groups_min"])
    is_split = PartitionKind.RECORD_INDEX in present and settings.partitioned_record_index
    if least is not None and is_split and settings.partitioned_file_groups_min > 1:
        yield (
            f"{least[0]}={least[1]} counts when the record index is built: a partition of the "
            "table that is new later gets one file group in it, so that all writers agree. "
            "'hoodoo metadata rebuild TABLE record_index' gives it more"
        )
    for index, column in settings.secondary_columns.items():
        if PartitionKind.SECONDARY_INDEX not in present:
            short = index.removeprefix(PartitionKind.SECONDARY_INDEX.value)
            key = settings.options["secondary_index_column"].key
            yield _not_built(key, column, f"create-index TABLE {short} --column {column}")


def _fits(kind: PartitionKind, config: TableConfig) -> bool:
    return kind is not PartitionKind.PARTITION_STATS or bool(config.partition_fields)


def _not_built(key: str, text: str, command: str) -> str:
    return (
        f"{key}={text}, and the table does not have this partition of the metadata table: build it "
        f"with 'hoodoo metadata {command}', while writers write, or leave the option out"
    )


#: Options that switch a partition on or off.
_SWITCHES: Final[Mapping[str, PartitionKind]] = {
    "column_stats": PartitionKind.COLUMN_STATS,
    "partition_stats": PartitionKind.PARTITION_STATS,
    "bloom_filters": PartitionKind.BLOOM_FILTERS,
    "record_index": PartitionKind.RECORD_INDEX,
    "partitioned_record_index": PartitionKind.RECORD_INDEX,
    "secondary_index": PartitionKind.SECONDARY_INDEX,
}
#: Options whose false says nothing against an index of the other scope.
_OF_ONE_SCOPE: Final = frozenset({"record_index", "partitioned_record_index"})


def with_needed(
    names: Iterable[str], config: TableConfig, settings: MetadataTableSettings
) -> tuple[str, ...]:
    """
    Return partitions and those that they need, in the order in which they are built.

    New statistics of columns bring those of partitions on a partitioned table, as in Java Hudi 1.2.0,
    unless the settings say no. A build again does not: the writers of Hudi 1.0 may have switched
    them off.

    Raises:
        InvalidInputError: A name is of no kind that can be built (``metadata_partition_name``), or
            the table cannot have the partition (``metadata_partition_unfit``).
    """
    found: dict[str, PartitionKind] = {}
    left = list(names)
    while left:
        name = left.pop()
        kind = kind_of(name)
        if kind not in _ORDER and name in config.metadata_partitions:
            raise InvalidInputError(
                f"this release does not build this partition of the metadata table: drop it with "
                f"'hoodoo metadata drop TABLE {name}', or let Java Hudi build it",
                kind="metadata_partition_name",
                partition=name,
            )
        if kind not in _ORDER:
            known = ", ".join(one.value + ("NAME" if one.is_named else "") for one in _ORDER)
            raise InvalidInputError(
                f"this release builds no partition of the metadata table with this name: use one "
                f"of {known}: {name!r}",
                kind="metadata_partition_name",
                partition=name,
            )
        if name in found:
            continue
        found[name] = kind
        if kind in _NEEDS:
            left.append(_NEEDS[kind].value)
        if kind is PartitionKind.COLUMN_STATS and config.partition_fields:
            pair = PartitionKind.PARTITION_STATS.value
            present = config.metadata_partitions
            is_new = name not in present and settings.partition_stats
            left += [pair] if pair in present or is_new else []
        if kind is PartitionKind.PARTITION_STATS and not config.partition_fields:
            raise InvalidInputError(
                "statistics of partitions need a partitioned table: build column_stats instead",
                kind="metadata_partition_unfit",
                partition=name,
            )
    return tuple(sorted(found, key=lambda name: (_ORDER.index(found[name]), name)))


def dependents(name: str, present: Iterable[str]) -> tuple[str, ...]:
    """Return the present partitions that have no meaning without one, itself included, sorted."""
    gone = {name}
    while True:
        kinds = {kind_of(one) for one in gone} - {None}  # nothing needs an unknown one
        more = {
            one
            for one in present
            if (kind := kind_of(one)) is not None
            and (_NEEDS.get(kind) in kinds or PartitionKind.FILES in kinds)
        }
        if more <= gone:
            return tuple(sorted(gone.intersection({*present, name})))
        gone |= more


def settings_as_built(
    settings: MetadataTableSettings,
    present: Mapping[str, IndexDefinition],
    avro_json: str | None,
) -> MetadataTableSettings:
    """
    Return the settings for a build of present partitions again: without an option, they stay alike.

    A record index keeps its scope, and statistics keep columns that were chosen by name.

    Args:
        settings: Of the caller.
        present: The definitions of the partitions that the metadata table has.
        avro_json: The table's schema without meta columns; None if it has none yet.
    """
    changes: dict[str, object] = {}
    index = present.get(PartitionKind.RECORD_INDEX.value)
    if index is not None and index.is_per_partition and not settings.record_index:
        changes["partitioned_record_index"] = True
    stats = present.get(PartitionKind.COLUMN_STATS.value)
    if stats is not None and avro_json is not None and not settings.column_stats_columns:
        default = set(columns_to_index(avro_json, stats.version))
        if stats.source_fields and not default <= set(stats.source_fields):
            named = [one for one in stats.source_fields if one not in ALWAYS_INDEXED]
            changes["column_stats_columns"] = tuple(named)
    return settings.model_copy(update=changes)


def planned_partitions(
    names: Sequence[str],
    config: TableConfig,
    settings: MetadataTableSettings,
    *,
    avro_json: str | None,
    rows: Mapping[str, int],
    columns: Mapping[str, str] | None = None,
) -> tuple[NewPartition, ...]:
    """
    Return the definitions and numbers of file groups of new partitions.

    Args:
        names: From ``with_needed``.
        config: The table's properties.
        settings: Hudi's options.
        avro_json: The table's schema without meta columns; None if it has none yet.
        rows: Of each partition of the table, an estimate.
        columns: The column of each new secondary index, by its partition.

    Raises:
        InvalidInputError: A secondary index has no column (``secondary_index_column``), or the
            table has record keys in no file (``metadata_partition_unfit``).
        CorruptTableError: The definition of a secondary index is lost (``bad_index_definitions``).
    """
    found = []
    for name in names:
        kind = kind_of(name)
        if kind is PartitionKind.COLUMN_STATS:
            made = _column_stats(config, settings, avro_json)
        elif kind is PartitionKind.RECORD_INDEX:
            made = _record_index(config, settings, rows)
        elif kind is PartitionKind.SECONDARY_INDEX:
            known = None if avro_json is None else TableSchema.from_avro(avro_json).arrow.names
            column = {**settings.secondary_columns, **(columns or {})}.get(name)
            total = sum(rows.values())
            made = _secondary(name, config, settings, total, column=column, known=known)
        else:
            counts = {
                PartitionKind.PARTITION_STATS: settings.partition_stats_file_groups,
                PartitionKind.BLOOM_FILTERS: settings.bloom_filters_file_groups,
            }
            made = NewPartition(
                name=name, file_groups=counts.get(kind, 1) if kind is not None else 1
            )
        found.append(made)
    return tuple(found)


def _definition(
    config: TableConfig,
    name: str,
    kind: PartitionKind,
    function: str,
    *,
    fields: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    version: IndexVersion = IndexVersion.V2,
) -> IndexDefinition:
    is_old = config.table_version < _FIRST_WITH_VERSIONS
    return IndexDefinition(
        name=name,
        index_type=kind.value.removesuffix("_"),
        function=function,
        source_fields=fields,
        options=options or {},
        version=IndexVersion.V1 if is_old else version,
        has_version=not is_old,
    )


_FIRST_WITH_VERSIONS: Final = 9


def _column_stats(
    config: TableConfig, settings: MetadataTableSettings, avro_json: str | None
) -> NewPartition:
    name = PartitionKind.COLUMN_STATS.value
    columns = (*ALWAYS_INDEXED, *settings.column_stats_columns)  # before the first rows
    if avro_json is not None:
        columns = columns_to_index(
            avro_json,
            IndexVersion.V1 if config.table_version < _FIRST_WITH_VERSIONS else IndexVersion.V2,
            listed=settings.column_stats_columns,
            columns_max=settings.column_stats_columns_max,
        )
    return NewPartition(
        name=name,
        file_groups=settings.column_stats_file_groups,
        definition=_definition(config, name, PartitionKind.COLUMN_STATS, name, fields=columns),
    )


def _record_index(
    config: TableConfig, settings: MetadataTableSettings, rows: Mapping[str, int]
) -> NewPartition:
    kind, split = PartitionKind.RECORD_INDEX, settings.partitioned_record_index
    definition = None
    if split and (settings.record_index or config.table_version < _FIRST_WITH_VERSIONS):
        raise InvalidInputError(
            "a record index of each partition needs table version 9, and excludes an index of the "
            "whole table: set hoodie.metadata.record.level.index.enable=false, or "
            "hoodie.metadata.global.record.level.index.enable=false on a table of version 9",
            kind="metadata_partition_unfit",
            partition=kind.value,
        )
    if config.table_version >= _FIRST_WITH_VERSIONS:  # older tables have no such definition
        definition = _definition(
            config,
            kind.value,
            kind,
            "",
            options={"isPartitioned": str(split).lower()},
            version=IndexVersion.V1,
        )
    if split:
        least, most = settings.partitioned_file_groups_min, settings.partitioned_file_groups_max
        return NewPartition(
            name=kind.value,
            file_groups=least,
            definition=definition,
            by_partition={
                path: _file_groups(count, least, most, settings) for path, count in rows.items()
            },
        )
    least, most = settings.record_index_file_groups_min, settings.record_index_file_groups_max
    return NewPartition(
        name=kind.value,
        file_groups=_file_groups(sum(rows.values()), least, most, settings),
        definition=definition,
    )


def _secondary(
    name: str,
    config: TableConfig,
    settings: MetadataTableSettings,
    rows: int,
    *,
    column: str | None,
    known: Sequence[str] | None,
) -> NewPartition:
    if not column and name in config.metadata_partitions:
        raise bad_definitions_error(f"it does not name the column of the index {name!r}", name)
    if not column or (known is not None and column not in known):
        raise InvalidInputError(
            "a secondary index needs a column of the table: name it by --column, or column= in "
            f"Python: {name} of column {column!r}",
            kind="secondary_index_column",
            partition=name,
            column=column or "",
        )
    least, most = settings.record_index_file_groups_min, settings.record_index_file_groups_max
    kind = PartitionKind.SECONDARY_INDEX
    return NewPartition(
        name=name,
        file_groups=_file_groups(rows, least, most, settings),
        definition=_definition(config, name, kind, "identity", fields=(column,)),
    )


def _file_groups(rows: int, least: int, most: int, settings: MetadataTableSettings) -> int:
    """
    Return the file groups for some records, as ``estimateFileGroupCount`` of Java Hudi 1.2.0.

    Java computes with numbers of 32 bits, and rounds the number of file groups down.
    """
    if least == most:
        return least
    expected = math.ceil(float(np.float32(rows) * np.float32(settings.record_index_growth)))
    found = expected // max(1, settings.record_index_file_group_bytes // _RECORD_BYTES)
    return most if found >= most else max(least, found)
