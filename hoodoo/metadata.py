"""The metadata table of one opened table: build, drop and show its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from filegroups.metadata_table.index_definitions import read_index_definitions
from filegroups.metadata_table.new_partitions import (
    default_partitions,
    planned_partitions,
    with_needed,
)
from filegroups.metadata_table.reading import open_metadata_table
from filegroups.settings.metadata_settings import MetadataTableSettings
from hoodoo.inspect.metadata_table import MetadataStatus, metadata_status
from hoodoo.verify.metadata_table import check_metadata_table
from hoodoo.verify.verify import Finding
from tableservices.metadata_table.build import MetadataBuild, build_partitions
from tableservices.metadata_table.drop import drop_partitions, dropped_partitions
from timeline.context import TableContext
from timeline.errors import InvalidInputError
from timeline.model.file_names import METADATA_TABLE, is_partition_file, join
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.model.table_config import TableConfig
from timeline.partitions import list_partition_paths
from timeline.properties.options import PropertySet
from timeline.properties.properties_file import load_config

#: Kinds of indexes in Hudi's SQL, and their partitions; a secondary index has a name of its own.
INDEX_TYPES: Final = ("secondary_index", "record_index", "bloom_filters", "column_stats")


class MetadataPartitions:
    """
    The partitions of the metadata table; ``Table.metadata`` returns it.

    Each call may run while other processes write the table.
    """

    def __init__(
        self, context: TableContext, properties: PropertySet, register: Callable[[], None]
    ) -> None:
        self._context = context
        self._properties = properties
        self._register = register

    @property
    def settings(self) -> MetadataTableSettings:
        """Which partitions a new metadata table gets, and how they are built."""
        return MetadataTableSettings.from_properties(self._properties)

    def to_create(self, *partitions: str, column: str | None = None) -> tuple[str, ...]:
        """Return what ``create`` would build. Arguments, errors: as there. Outside: 1 get."""
        config, settings = self._config(), self.settings
        wanted = with_needed(partitions or self._default(config), config, settings)
        planned_partitions(
            wanted,
            config,
            settings,
            avro_json=None,
            rows={},
            columns=self._columns(wanted, column),
        )
        missing = tuple(sorted(set(wanted) - set(config.complete_metadata_partitions)))
        if not missing:
            self._refuse_lost(wanted)
        return missing

    def create(self, *partitions: str, column: str | None = None) -> MetadataBuild | None:
        """
        Build partitions of the metadata table, and those that they need.

        A build that another process began and did not end is ended.

        Args:
            partitions: Folders of the metadata table; by default those that the options ask for.
            column: The column of a new secondary index.

        Returns:
            The built partitions; None if all are complete.

        Raises:
            InvalidInputError: A partition of this name cannot be built, or not on this table.
            TableChangedError: Another process dropped the partition meanwhile; build it again.
            CorruptTableError: A data file is damaged, or all partitions are complete by the
                properties and one has no files.
        """
        self._register()
        wanted = partitions or self._default(self._config())
        columns = self._columns(wanted, column)
        built = build_partitions(self._context, wanted, self.settings, columns=columns)
        if built is None:
            self._refuse_lost(wanted)
        return built

    def to_rebuild(self, *partitions: str) -> tuple[str, ...]:
        """Return what ``rebuild`` would build again. Errors: as there. Outside: 1 get."""
        config = self._config()
        dropped_partitions(config, partitions)  # raises if there is no such partition
        if not partitions or PartitionKind.FILES.value in partitions:
            return tuple(sorted(config.metadata_partitions))
        return tuple(sorted(set(partitions)))

    def rebuild(self, *partitions: str) -> MetadataBuild | None:
        """
        Build partitions again from the files of the table; by default all.

        Readers do not use them meanwhile, and writers maintain them. ``files`` is built again with
        all other partitions.

        Returns:
            The built partitions; None if the table has no metadata table.

        Raises:
            InvalidInputError: The metadata table has no such partition
                (``metadata_partition_unknown``).
            TableChangedError, CorruptTableError: As ``create``.
        """
        names = self.to_rebuild(*partitions)
        if not names:
            return None
        self._register()
        return build_partitions(self._context, names, self.settings, again=names)

    def to_drop(self, *partitions: str) -> tuple[str, ...]:
        """Return what ``drop`` would drop. Errors: as there. Outside: 1 get."""
        return dropped_partitions(self._config(), partitions)

    def drop(self, *partitions: str) -> tuple[str, ...]:
        """
        Drop partitions and those that need them; without names the whole metadata table.

        Returns:
            The dropped partitions.

        Raises:
            InvalidInputError: The metadata table has no such partition
                (``metadata_partition_unknown``).
        """
        self._register()
        return drop_partitions(self._context, partitions)

    def status(self) -> MetadataStatus:
        """Return partitions, size, lag and what waits. Outside: as ``metadata_status``."""
        return metadata_status(self._context)

    def verify(self) -> tuple[Finding, ...]:
        """
        Compare the metadata table with the timeline, the files and the keys of the table.

        Returns:
            The differences; none without a metadata table.

        Outside: 1 list for each partition; as ``check_metadata_table``.
        """
        context = replace(self._context, config=self._config())
        snapshot = context.snapshot()
        storage = context.ports.storage
        sizes = {
            join(path, entry.name): entry.size_bytes
            for path in list_partition_paths(storage)
            for entry in storage.list(path)
            if not entry.is_folder and not is_partition_file(entry.name)
        }
        found = check_metadata_table(context, snapshot, sizes)
        return tuple(Finding(kind=kind, path=path, message=text) for kind, path, text in found)

    def to_repair(self) -> tuple[str, ...]:
        """Return the partitions that ``repair`` would build again. Outside: as ``verify``."""
        present = set(self._config().metadata_partitions)
        wrong: set[str] = set()
        for one in self.verify():
            named = one.path.removeprefix(f"{METADATA_TABLE}/").partition("/")[0]
            wrong.add(named if named in present else PartitionKind.FILES.value)
        if not wrong <= present:  # the list of files is missing
            return self.to_rebuild()
        return self.to_rebuild(*sorted(wrong)) if wrong else ()

    def repair(self) -> tuple[str, ...]:
        """
        Build the partitions again in which ``verify`` finds a difference.

        If instants or files are wrong, that is the whole metadata table.

        Returns:
            The partitions that were built again.

        Raises: as ``rebuild``.
        """
        wrong = self.to_repair()
        if wrong:
            self.rebuild(*wrong)
        return wrong

    def create_index(
        self, name: str, column: str | None = None, *, index_type: str = "secondary_index"
    ) -> MetadataBuild | None:
        """
        Create an index, as ``CREATE INDEX`` of Hudi's SQL does.

        Args:
            name: Of the index. Only secondary indexes have names of their own.
            column: The column of a secondary index.
            index_type: One of `INDEX_TYPES`.

        Raises:
            InvalidInputError: The type is unknown (``index_type``), or as ``create``.
        """
        return self.create(index_partition(name, index_type), column=column)

    def drop_index(self, name: str) -> tuple[str, ...]:
        """
        Drop an index by its name, or by the name of its partition.

        Raises:
            InvalidInputError: There is no such index (``metadata_partition_unknown``).
        """
        return self.drop(self.index_named(name))

    def index_named(self, name: str) -> str:
        """Return the partition of an index. Outside: 1 get."""
        secondary = f"{PartitionKind.SECONDARY_INDEX.value}{name}"
        return secondary if secondary in self._config().metadata_partitions else name

    def _refuse_lost(self, complete: Iterable[str]) -> None:
        """Refuse partitions without files. Outside: as ``open_metadata_table``, 1 list for each."""
        context = self._context
        table = open_metadata_table(context.ports.storage, self._config(), context.snapshot())
        if table is not None:
            for name in complete:
                table.slices(name)

    def _default(self, config: TableConfig) -> tuple[str, ...]:
        """Return the partitions that the options ask for. Outside: 1 get."""
        known = read_index_definitions(self._context.ports.storage)
        indexed = {
            one.source_fields[0]
            for name, one in known.items()
            if kind_of(name) is PartitionKind.SECONDARY_INDEX and one.source_fields
            if name in config.complete_metadata_partitions
        }
        return default_partitions(config, self.settings, indexed)

    def _columns(self, names: Iterable[str], column: str | None) -> dict[str, str]:
        """Return the column of each secondary index: the given one, or that of its definition."""
        known = read_index_definitions(self._context.ports.storage)
        found = {name: one.source_fields[0] for name, one in known.items() if one.source_fields}
        if column is not None:
            found |= {name: column for name in names if name not in found}
        return found

    def _config(self) -> TableConfig:
        return load_config(self._context.ports.storage)


def index_partition(name: str, index_type: str) -> str:
    """
    Return the partition of an index.

    Raises:
        InvalidInputError: The type is unknown (``index_type``).
    """
    if index_type not in INDEX_TYPES:
        raise InvalidInputError(
            f"there is no index of this type: use one of {', '.join(INDEX_TYPES)}: {index_type!r}",
            kind="index_type",
            index_type=index_type,
        )
    if index_type != INDEX_TYPES[0]:
        return index_type
    return f"{PartitionKind.SECONDARY_INDEX.value}{name}"
