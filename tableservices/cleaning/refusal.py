"""Tables that this release must not clean, looked at before planning and again in the turn."""

from __future__ import annotations

from timeline.context import TableContext
from timeline.errors import UnsupportedTableError
from timeline.properties.properties_file import load_config, refuse_behind_metadata_table

__all__ = ["refuse_uncleanable"]

_VERSIONS = (8, 9)


def refuse_uncleanable(context: TableContext, verb: str = "clean") -> None:
    """
    Pass when deleting old slices, or instants, leaves the table whole for every reader.

    Outside: 1 get. The properties are read anew, because another engine may have changed
    them since the table was opened.

    Raises:
        MetadataTableOnError: The metadata table is on: it would go on listing files that
            are gone (FOR-7).
        UnsupportedTableError: Its timeline has another layout.
    """
    config = load_config(context.world.storage)
    refuse_behind_metadata_table(
        config, without_metadata_table=context.limits.without_metadata_table
    )
    unsupported = {
        f"table version {config.table_version}": config.table_version not in _VERSIONS,
    }
    for what, refused in unsupported.items():
        if refused:
            raise UnsupportedTableError(
                f"this release does not {verb} {what}; let Java Hudi {verb} this table",
                kind="not_cleanable",
                feature=what,
            )
