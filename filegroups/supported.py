"""
Refuse by name each table that this release cannot read or write.

An error is better than silence: a read of an unknown kind of table returns wrong rows, and a write
damages the state its own engine relies on.
"""

from __future__ import annotations

from filegroups.keys.generators import KeyGenerator
from filegroups.settings.known_keys import ELSEWHERE
from timeline.context import TableContext
from timeline.errors import MetadataTableOnError, UnsupportedTableError
from timeline.model.metadata_table import PartitionKind, kind_of
from timeline.model.table_config import TableConfig
from timeline.properties.properties_file import load_config

_KEY_GENERATORS = frozenset(
    {None, *KeyGenerator.__members__, *(f"{name}_AVRO" for name in KeyGenerator.__members__)}
)
_BOOTSTRAP_BASE = "hoodie.bootstrap.base.path"


def refuse_unreadable(config: TableConfig) -> None:
    """
    Refuse a table that this release cannot open.

    Raises:
        UnsupportedTableError: It was bootstrapped, has base files in another format than Parquet,
            or keeps its timeline in another folder. (An unknown table version is refused when the
            properties are read.)
    """
    if config.raw.get(_BOOTSTRAP_BASE):
        raise UnsupportedTableError(
            "this table was bootstrapped, and some of its rows are in files that are not Hudi's: "
            f"let Java Hudi rewrite it (cluster every file group): {config.raw[_BOOTSTRAP_BASE]}",
            kind="bootstrap",
        )
    if config.base_file_format.upper() != "PARQUET":
        raise UnsupportedTableError(
            "this release handles Parquet base files only: read the table with Java Hudi and "
            f"copy its rows into a table with Parquet files: {config.base_file_format}",
            kind="base_file_format",
        )
    folders = {
        "hoodie.timeline.path": (config.timeline_path, "timeline"),
        "hoodie.timeline.history.path": (config.history_path, "history"),
    }
    for key, (folder, default) in folders.items():
        if config.timeline_layout_version == 2 and folder != default:
            raise UnsupportedTableError(
                f"this release reads the timeline of a table in its default folder {default!r} only: "
                "read the table with Java Hudi and copy its rows into a new table: "
                f"{key}={folder}",
                kind="timeline_folder",
                key=key,
            )


def refuse_old_version(config: TableConfig) -> None:
    """
    Refuse to change a table whose timeline has the layout of version 6.

    Raises:
        UnsupportedTableError: Its version is 6.
    """
    if config.timeline_layout_version == 1:
        raise UnsupportedTableError(
            "this release reads tables of version 6 and does not write them: upgrade the table "
            "first with 'hoodoo table upgrade TABLE', or with one write of Java Hudi 1.2: "
            f"version {config.table_version}",
            kind="table_version",
            table_version=config.table_version,
        )


#: The kinds of partitions that this release maintains.
_MAINTAINED = frozenset(PartitionKind) - {PartitionKind.EXPRESSION_INDEX}


def is_maintained(partition: str) -> bool:
    """Return whether this release keeps a partition of the metadata table up to date."""
    return kind_of(partition) in _MAINTAINED


def refuse_unmaintained(config: TableConfig) -> None:
    """
    Refuse a write to a table whose metadata table has a partition that this release cannot maintain.

    Raises:
        MetadataTableOnError: It has one (MDT-6).
    """
    strange = [one for one in config.metadata_partitions if not is_maintained(one)]
    if strange:
        raise MetadataTableOnError(
            "the metadata table has partitions that this release cannot keep up to date, and a "
            "write would make them wrong. Drop each of them: 'hoodoo metadata drop TABLE NAME', or DROP "
            f"INDEX in Spark SQL: {', '.join(strange)}",
            partitions=strange,
        )


def load_writable(context: TableContext) -> TableConfig:
    """
    Read the table's current configuration, and refuse one that a write would damage.

    Errors: as ``refuse_unwritable``. Outside: 1 get.
    """
    config = load_config(context.ports.storage)
    refuse_unwritable(config)
    return config


def refuse_unwritable(config: TableConfig) -> None:
    """
    Refuse a table that a write of this release would damage.

    Args:
        config: The table's current configuration.

    Raises:
        MetadataTableOnError: The metadata table has a partition that this release cannot maintain
            (MDT-6).
        UnsupportedTableError: A table version, type or feature that this release cannot write.
    """
    refuse_old_version(config)
    refuse_unmaintained(config)
    what = None
    if config.key_generator_type not in _KEY_GENERATORS:
        what = f"key generator {config.key_generator_type}"
    elif config.slash_separated_dates:
        what = "folders of dates with slashes"
    if what is not None:
        raise UnsupportedTableError(
            f"this release does not write {what}; {ELSEWHERE}",
            kind="not_writable",
            feature=what,
        )
