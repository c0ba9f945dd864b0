"""Options of the metadata table's partitions: which ones a table gets, and how they are built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from timeline.model.metadata_table import PartitionKind
from timeline.properties.options import LayeredSettings, option

_Count = Annotated[int, Field(ge=1, le=10_000)]


class MetadataTableSettings(LayeredSettings):
    """
    Which partitions a metadata table gets when it is made, and their file groups.

    The number of file groups of a partition never changes, because a key's hash chooses one.
    """

    column_stats: bool = option(
        "hoodie.metadata.index.column.stats.enable",
        True,
        "Whether a new metadata table has statistics of columns, and of partitions (Spark's default "
        "in Hudi).",
    )
    column_stats_columns: tuple[str, ...] = option(
        "hoodie.metadata.index.column.stats.column.list",
        (),
        "The columns of new statistics; the first ones of the table by default.",
    )
    column_stats_columns_max: Annotated[int, Field(ge=1, le=10_000)] = option(
        "hoodie.metadata.index.column.stats.max.columns.to.index",
        32,
        "How many of the first columns new statistics have.",
    )
    column_stats_file_groups: _Count = option(
        "hoodie.metadata.index.column.stats.file.group.count",
        2,
        "File groups of new statistics of columns.",
    )
    partition_stats: bool = option(
        "hoodie.metadata.index.partition.stats.enable",
        True,
        "Whether new statistics of columns bring those of partitions (an option of Hudi 1.0; 1.1 "
        "and 1.2 always do).",
    )
    partition_stats_file_groups: _Count = option(
        "hoodie.metadata.index.partition.stats.file.group.count",
        1,
        "File groups of new statistics of partitions.",
    )
    bloom_filters: bool = option(
        "hoodie.metadata.index.bloom.filter.enable",
        False,
        "Whether a new metadata table has the bloom filters of base files.",
    )
    bloom_filters_file_groups: _Count = option(
        "hoodie.metadata.index.bloom.filter.file.group.count",
        4,
        "File groups of new bloom filters.",
    )
    record_index: bool = option(
        "hoodie.metadata.global.record.level.index.enable",
        False,
        "Whether a new metadata table has a record index of the whole table.",
        aliases=("hoodie.metadata.record.index.enable",),
    )
    record_index_file_groups_min: _Count = option(
        "hoodie.metadata.global.record.level.index.min.filegroup.count",
        10,
        "Least number of file groups of a new record index.",
        aliases=("hoodie.metadata.record.index.min.filegroup.count",),
    )
    record_index_file_groups_max: _Count = option(
        "hoodie.metadata.global.record.level.index.max.filegroup.count",
        10_000,
        "Greatest number of file groups of a new record index.",
        aliases=("hoodie.metadata.record.index.max.filegroup.count",),
    )
    record_index_growth: Annotated[float, Field(ge=1, le=1_000)] = option(
        "hoodie.metadata.record.index.growth.factor",
        2.0,
        "How many times more records than now a new record index has room for.",
    )
    record_index_file_group_bytes: Annotated[int, Field(ge=1, le=2**40)] = option(
        "hoodie.metadata.record.index.max.filegroup.size",
        1_073_741_824,
        "Bytes for which a file group of a new record index is planned.",
    )
    partitioned_record_index: bool = option(
        "hoodie.metadata.record.level.index.enable",
        False,
        "Whether a new metadata table has a record index with file groups of each partition.",
    )
    partitioned_file_groups_min: _Count = option(
        "hoodie.metadata.record.level.index.min.filegroup.count",
        1,
        "Least number of a partition's file groups in a new record index of each partition.",
        aliases=("hoodie.metadata.partitioned.record.index.min.filegroup.count",),
    )
    partitioned_file_groups_max: _Count = option(
        "hoodie.metadata.record.level.index.max.filegroup.count",
        10,
        "Greatest number of a partition's file groups in a new record index of each partition.",
        aliases=("hoodie.metadata.partitioned.record.index.max.filegroup.count",),
    )
    secondary_index: bool = option(
        "hoodie.metadata.index.secondary.enable",
        True,
        "Whether a new metadata table has the secondary index that the next options name.",
    )
    secondary_index_column: str | None = option(
        "hoodie.metadata.index.secondary.column",
        None,
        "The column of a secondary index of a new metadata table; it brings a record index with it.",
    )
    secondary_index_name: str | None = option(
        "hoodie.index.name",
        None,
        "Name of that secondary index; the column by default.",
    )

    @property
    def secondary_columns(self) -> Mapping[str, str]:
        """The column of the wanted secondary index, by its partition; empty for none."""
        if not self.secondary_index or not self.secondary_index_column:
            return {}
        prefix = PartitionKind.SECONDARY_INDEX.value
        name = self.secondary_index_name or self.secondary_index_column
        return {prefix + name.removeprefix(prefix): self.secondary_index_column}
