"""Plan and run a scan: file system view, schema, pruning, Arrow batches."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from filegroups.files.log_files import VisibleInstants
from filegroups.files.parquet import works_without
from filegroups.files.slice_reader import SliceRead, WholeFileGroups, read_slice
from filegroups.keys.generators import KeyGenerator
from filegroups.keys.keys import DroppedPartitionColumns, KeySpec, VirtualKeys
from filegroups.keys.timestamp_keys import folders_of_texts
from filegroups.merge.rules import MergeRules
from filegroups.reading.file_slices import with_files, with_logs
from filegroups.reading.file_system_view import FileSystemView
from filegroups.reading.filters import Filter, allowed_values, to_expression
from filegroups.reading.partition_pruning import PartitionField, PartitionPruner, partition_field
from filegroups.schema.column_ids import schema_history
from filegroups.schema.schema import (
    META_COLUMNS,
    PARTITION_COLUMN,
    TableSchema,
    with_meta,
)
from timeline.context import TableContext
from timeline.errors import (
    InvalidInputError,
    UnsupportedTableError,
)
from timeline.model.file_slice import BaseFile, FileSlice
from timeline.model.instant import Action
from timeline.model.instant_time import InstantTime
from timeline.pending_plans import pending_compactions
from timeline.properties.properties_file import load_config, may_have_misplaced_rows
from timeline.snapshot import Snapshot

# The choice of slices makes the query type: snapshot, time travel or incremental. Each slice is
# read in the same way. Batches stream, so the files being read bound the memory, not the table.


@dataclass(frozen=True, kw_only=True)
class ScanPlan:
    """The file slices of a scan, and how to read each of them."""

    slices: Sequence[FileSlice]
    read: SliceRead

    @property
    def files(self) -> tuple[BaseFile, ...]:
        """The base files of slices without log files, for engines that read base files directly."""
        return tuple(
            one.base_file for one in self.slices if one.base_file is not None and not one.log_files
        )

    @property
    def merged(self) -> tuple[FileSlice, ...]:
        """The slices with log files."""
        return tuple(with_logs(self.slices))

    @property
    def file_schema(self) -> pa.Schema:
        """The table's schema with the meta columns."""
        return self.read.file_schema

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of the batches."""
        return self.read.output_schema


def view_of(context: TableContext, snapshot: Snapshot) -> FileSystemView:
    """Return the file system view of a snapshot. Outside: 1 get per pending compaction."""
    plans = {}
    if snapshot.active.has_pending(Action.COMPACTION):
        plans = pending_compactions(context, snapshot.active)
    return FileSystemView(
        storage=context.ports.storage,
        snapshot=snapshot,
        pending_compactions=plans,
        together=context.ports.concurrently,
    )


def read_schema(context: TableContext, snapshot: Snapshot) -> TableSchema:
    """
    Return the table's schema in a snapshot, without meta columns.

    The newest visible commit with a schema decides, else the table's creation schema. Partition
    columns that files leave out are appended as text.

    Raises:
        UnsupportedTableError: The table has neither, so it was never written.
    """
    return _schema_and_folders(context, snapshot)[0]


def known_schema(context: TableContext, snapshot: Snapshot) -> TableSchema | None:
    """Return the schema as ``read_schema``, or None if the table has none yet."""
    if not (snapshot.newest_schema_json or context.config.create_schema_json):
        return None
    return read_schema(context, snapshot)


def _schema_and_folders(
    context: TableContext, snapshot: Snapshot
) -> tuple[TableSchema, DroppedPartitionColumns | None]:
    stored = _stored_schema(context, snapshot)
    folders = _folder_columns(context, stored)
    return stored if folders is None else stored.with_new_columns(folders.schema), folders


def _stored_schema(context: TableContext, snapshot: Snapshot) -> TableSchema:
    text = snapshot.newest_schema_json or context.config.create_schema_json
    if text:
        return TableSchema.from_avro(text)
    raise UnsupportedTableError(
        "the table has no schema, because no write is complete and its creation gave none: write "
        "to it first. If commits exist, run 'hoodoo table verify TABLE': a damaged commit file "
        "hides the schema",
        kind="no_schema",
    )


def _folder_columns(context: TableContext, stored: TableSchema) -> DroppedPartitionColumns | None:
    """Return the partition columns that files leave out; None if files hold all columns."""
    config = context.config
    if not config.drop_partition_columns:
        return None
    names = stored.arrow.names
    return DroppedPartitionColumns(
        fields=config.partition_fields,
        dropped=tuple(name for name in config.partition_fields if name not in names),
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
    )


def plan_scan(
    context: TableContext,
    snapshot: Snapshot,
    slices: Sequence[FileSlice],
    *,
    columns: Sequence[str] | None = None,
    filter: Filter = None,  # noqa: A002 - the public word of the Python surface
    among: pc.Expression | None = None,
    with_hoodie_columns: bool = False,
    base_filter: pc.Expression | None = None,
    visible: Container[InstantTime] | None = None,
    whole_file_groups: WholeFileGroups | None = None,
) -> ScanPlan:
    """
    Decide which slices and columns a scan reads.

    Args:
        context: The table.
        snapshot: The visible instants; the output has this snapshot's schema.
        slices: The file slices to read.
        columns: Names to return, in this order; None for all.
        filter: As for ``to_expression``.
        among: Rows that the filter chooses from; None for all.
        with_hoodie_columns: Return the five meta columns first if ``columns`` is None.
        base_filter: Rows of base files that count, before logs are merged into them.
        visible: The instants whose log blocks count; None for those of the snapshot.
        whole_file_groups: See ``SliceRead``.

    Raises:
        InvalidInputError: A column or an operator is unknown.
        UnsupportedTableError: A slice has log files that only a record merger of the table's owner
            can merge (``custom_merger``).
    """
    table_schema, folders = _schema_and_folders(context, snapshot)
    schema = with_meta(table_schema.arrow)
    names = (
        tuple(columns)
        if columns is not None
        else tuple(name for name in schema.names if with_hoodie_columns or name not in META_COLUMNS)
    )
    if not names:
        raise InvalidInputError(
            "the list of columns is empty: name at least one column; any column serves to count "
            "rows",
            kind="no_column",
        )
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidInputError(
            f"the table has no such column: {unknown}; choose one of {list(schema.names)}",
            kind="unknown_column",
            columns=unknown,
        )
    wanted = to_expression(filter, schema)
    rules = MergeRules(definition=context.config.merge)
    if any(True for _ in with_logs(slices)):
        rules = MergeRules.of(context.config.merge, table_schema.avro_json)
        visible = VisibleInstants.of(snapshot) if visible is None else visible
    return ScanPlan(
        slices=with_files(slices),
        read=SliceRead(
            file_schema=schema,
            columns=names,
            filter=wanted if among is None else among if wanted is None else among & wanted,
            base_filter=base_filter,
            rules=rules,
            keys=computed_keys(context),
            visible=visible or (),
            whole_file_groups=whole_file_groups,
            whole_filter=wanted,
            history=schema_history(context.ports.storage, snapshot),
            folders=folders,
        ),
    )


def pruner_of(
    context: TableContext, snapshot: Snapshot, condition: Filter
) -> PartitionPruner | None:
    """
    Return the pruner that chooses partitions for a filter; None if all partitions qualify.

    Outside: 1 get if the filter names a partition column, 1 more if indexes are defined.

    Raises:
        InvalidInputError: As for ``plan_scan``.
    """
    config = context.config
    if condition is None or not config.partition_fields:
        return None
    table_schema, folders = _schema_and_folders(context, snapshot)
    schema = with_meta(table_schema.arrow)
    expression = to_expression(condition, schema)
    if expression is None:
        return None
    columns = [name.partition(".")[0] for name in config.partition_fields]
    asked = {*columns, PARTITION_COLUMN}.intersection(schema.names)
    named = {name for name in asked if not works_without(expression, schema, name)}
    if not config.populate_meta_fields:
        named.discard(PARTITION_COLUMN)
    if not named:
        return None
    fields = _folder_fields(context, schema, folders)
    return PartitionPruner(
        condition=expression,
        schema=schema,
        named=frozenset(named),
        fields=tuple(_bounded(one, condition, schema) for one in fields),
        names=config.partition_fields,
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
    )


def folder_values(context: TableContext, snapshot: Snapshot) -> PartitionPruner:
    """Return the pruner whose ``exact_values`` are those of the partition columns in any row."""
    config = context.config
    table_schema, folders = _schema_and_folders(context, snapshot)
    schema = with_meta(table_schema.arrow)
    return PartitionPruner(
        condition=pc.scalar(True),
        schema=schema,
        named=frozenset(name.partition(".")[0] for name in config.partition_fields),
        fields=_folder_fields(context, schema, folders),
        names=config.partition_fields,
        hive_style=config.hive_style_partitioning,
        url_encode=config.url_encode_partitioning,
    )


def _folder_fields(
    context: TableContext, schema: pa.Schema, folders: DroppedPartitionColumns | None
) -> tuple[PartitionField | None, ...]:
    """Return how the values of each partition field become folders. Outside: as ``pruner_of``."""
    if not context.config.partition_fields:
        return ()
    # The context may be older than the property that says rows can be misplaced: load it again.
    config = load_config(context.ports.storage)
    if may_have_misplaced_rows(context.ports.storage, config):
        return (None,) * len(config.partition_fields)
    left_out = () if folders is None else folders.dropped
    return tuple(
        partition_field(config, schema, number, from_folder=name in left_out)
        for number, name in enumerate(config.partition_fields)
    )


def _bounded(
    one: PartitionField | None, condition: Filter, schema: pa.Schema
) -> PartitionField | None:
    """Limit a text field that holds times to the folders of the values that a filter names."""
    if one is None or one.times is None:
        return one
    values = allowed_values(condition, one.name, schema)
    if values is None:
        return one
    try:
        found = folders_of_texts(pa.array(values, one.type), one.times)
    except (pa.ArrowException, TypeError, ValueError):
        return one
    return one if found is None else replace(one, folders=found)


def computed_keys(context: TableContext) -> VirtualKeys | None:
    """Return how keys are computed for rows without meta columns; None if rows have them."""
    config = context.config
    if config.populate_meta_fields:
        return None
    kind = (config.key_generator_type or "").removesuffix("_AVRO")
    spec = KeySpec(
        record_key_fields=config.record_key_fields,
        key_generator=KeyGenerator.__members__.get(kind, KeyGenerator.SIMPLE),
        table_version=config.table_version,
        stores_keys=False,
    )
    return spec.virtual


def scan(context: TableContext, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """
    Read the planned slices in sequence, in batches of the output schema.

    A slice with log files is in memory while it is read, with only the columns needed.
    """
    for one in plan.slices:
        yield from read_slice(context.ports.storage, context.ports.events, one, plan.read)
