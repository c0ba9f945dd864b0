"""Tables and columns that are not clustered, refused by name before anything is planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tableservices.clustering.curves import sortable_column
from timeline.context import TableContext
from timeline.errors import UnsupportedTableError
from timeline.index.adoption import keeps_buckets
from timeline.index.consistent import FOLDER as CONSISTENT_FOLDER
from timeline.model.claim import FileGroupId
from timeline.model.schema import TableSchema
from timeline.properties.properties_file import load_config
from timeline.readable import refuse_unwritable
from timeline.reading.read import read_schema
from timeline.reading.snapshot import Snapshot
from timeline.rules.bucketing import bucket_of

__all__ = ["refuse_bucket_names", "refuse_unclusterable", "refuse_unsortable"]

_FOLLOWS = "a record's file group follows from its key, so rows cannot move"
_BUCKETS_MAX = 10_000  # of a guess: the file ids of other tables begin like that once in 65,536


def refuse_unclusterable(context: TableContext, snapshot: Snapshot) -> TableSchema:
    """
    Pass when the table's rows may move to other file groups; returns its schema.

    Outside: 1 get, 1 list.

    Raises:
        TableConfigConflictError: Its metadata table is on.
        UnsupportedTableError: It is not written by this release; its columns have ids; it was
            never written; or a row's file group follows from its key.
    """
    config = load_config(context.world.storage)
    refuse_unwritable(config, without_metadata_table=context.limits.without_metadata_table)
    if snapshot.newest_internal_schema_json:
        raise UnsupportedTableError(
            "the table's columns have ids (schema on read): this release reads such a table and "
            "does not write it; let Java Hudi cluster it",
            kind="schema_on_read",
        )
    if context.world.storage.list(CONSISTENT_FOLDER):
        raise _buckets("buckets of consistent hashing are resized, which this release does not do")
    if keeps_buckets(config):
        raise _buckets(_FOLLOWS)
    return read_schema(context, snapshot)


def refuse_bucket_names(file_groups: Iterable[FileGroupId]) -> None:
    """
    Refuse file groups that are all named as buckets, where the table does not say what it has.

    Raises:
        UnsupportedTableError: They are.
    """
    numbers = [bucket_of(group.file_id) for group in file_groups]
    if numbers and all(number is not None and number < _BUCKETS_MAX for number in numbers):
        raise _buckets(_FOLLOWS)


def _buckets(why: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        f"tables with a bucket index are not clustered: {why}",
        kind="not_clusterable",
        feature="clustering a bucket index",
    )


def refuse_unsortable(schema: TableSchema, columns: Sequence[str]) -> None:
    """
    Refuse sort columns before a plan names them.

    Raises:
        InvalidInputError: One is not there or has no order.
    """
    empty = schema.arrow.empty_table()
    for name in columns:
        sortable_column(empty, name)
